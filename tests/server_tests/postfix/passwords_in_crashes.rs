//! Passwords are never printed by a process that dies of a bug: not by what it says to Postfix, not by the text of the panic,
//! not by the log, and not by its arguments. (failing_environment.rs has the same of one that ends as it should.)

use crate::support::database::Engine;
use crate::support::env;
use crate::support::program::{feed, program, wait_until};
use crate::support::site_fixture::Scene;
use base64::Engine as _;
use std::process::{Command, Stdio};

on_each_engine!(a_process_that_dies_of_a_bug_tells_none);

/// A timer that prunes, or the owner of the tables who migrates, needs no access to everybody's mail.
#[test]
fn who_asks_the_database_alone_needs_no_password_of_the_mailbox_store() {
    let scene = Scene::with(Engine::Postgres17, &["doug"]);
    scene.deliver("doug", scene.message("one")).delivered();
    // Not even root can read this.
    std::fs::remove_file(scene.path("imap.password")).unwrap();
    std::fs::create_dir(scene.path("imap.password")).unwrap();
    let id = scene.message_id("one");
    for subcommand in [
        &["migrate"][..],
        &["migrate", "--status"],
        &["prune", "--dry-run", "--messages-older-than", "400d"],
        &["prune", "--messages-older-than", "400d", "--attempts-older-than", "30d"],
        &["trace", &id],
        &["stats"],
        &["lock", "list"],
        &["lock", "try", "x"],
    ] {
        let printed_text = scene.subcommand(subcommand);
        assert_eq!(printed_text.status.code(), Some(0), "{subcommand:?}: {printed_text:?}");
    }
    let config = scene.path("config.toml");
    let output_text = program(&["lock", "exec", "--config", &config, "x", "--", "true"]).output().unwrap();
    assert_eq!(output_text.status.code(), Some(0), "{output_text:?}");
    for subcommand in [&["check"][..], &["audit"], &["replay", "--owed"]] {
        let printed = scene.subcommand(subcommand);
        assert_eq!(printed.status.code(), Some(78), "{subcommand:?}: {printed:?}");
        assert!(String::from_utf8_lossy(&printed.stderr).contains("imap.password_file"), "{subcommand:?}: {printed:?}");
    }
    scene.deliver("doug", scene.message("two")).deferred("4.3.5");
    assert_eq!(scene.inbox("doug").len(), 1);
}

/// No form of the secret: not as it is, not in base64 whatever stands before it, not in hexadecimal digits.
#[track_caller]
fn tells_no(secret: &str, what: &str, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    assert!(!text.contains(secret), "{secret} in the {what}: {text}");
    for shift in 0..3 {
        let bytes = [&[0; 3][..shift], secret.as_bytes()].concat();
        let encoded = base64::engine::general_purpose::STANDARD_NO_PAD.encode(bytes);
        let inner = &encoded[4..encoded.len() - 4];
        assert!(!text.contains(inner), "{secret} as {inner} in the {what}: {text}");
    }
    let digits: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
    assert!(!text.to_lowercase().contains(&digits), "{secret} as {digits} in the {what}: {text}");
}

fn a_process_that_dies_of_a_bug_tells_none(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug", "lisa"]);
    let password = format!("geheim-{}", scene.run);
    let role = format!("r{}", scene.run);
    scene.database.create_role_of_grants_file(&role, &password);
    scene.configure(|settings| {
        settings.role = role;
        settings.database_password = password.clone();
    });
    let secrets = [password.as_str(), "service-secret"];
    let with_faults = format!("{}/bin/maildrop_command-with-faults", env("MAILDROP_TEST_OPT"));
    for fault in ["panic", "panic-twice", "abort", "overflow", "memory"] {
        for place in ["before", "imap", "imap-sender", "after"] {
            let ours = scene.command("doug", &["--log-level", "trace"]);
            let mut command = Command::new(&with_faults);
            command.args(ours.get_args()).env_clear();
            command.env("MAILDROP_TEST_FAULT", format!("{fault}@{place}")).env("RUST_BACKTRACE", "full");
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let message = scene.message(&format!("{fault}-{place}"));
            // It may end without having read everything.
            let _ = std::io::Write::write_all(&mut child.stdin.take().unwrap(), message.as_bytes());
            let output = child.wait_with_output().unwrap();
            assert_ne!(output.status.code(), Some(0), "{fault}@{place}: {output:?}");
            for secret in secrets {
                tells_no(secret, "output", &output.stdout);
                tells_no(secret, "standard error", &output.stderr);
            }
        }
    }
    let log = scene.log();
    assert!(log.contains("TRACE") || log.contains("DEBUG"), "nothing much is logged: {log}");
    assert!(log.contains("a bug: panicked") && log.contains("a fault to order"), "no panic is in it: {log}");
    for secret in secrets {
        tells_no(secret, "log", log.as_bytes());
    }
    // What everybody on the machine can read of a delivery under way.
    let mut under_way = scene.command("doug", &[]);
    under_way.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut under_way = under_way.spawn().unwrap();
    let mut listed = Vec::new();
    wait_until("it is listed", || {
        // Empty until the new program is in the place of this one. It does not end before it has read the message.
        listed = std::fs::read(format!("/proc/{}/cmdline", under_way.id())).unwrap();
        !listed.is_empty()
    });
    assert!(String::from_utf8_lossy(&listed).contains("--recipient"), "{listed:?}");
    for secret in secrets {
        tells_no(secret, "argument list", &listed);
    }
    std::io::Write::write_all(&mut under_way.stdin.take().unwrap(), scene.message("listed").as_bytes()).unwrap();
    assert_eq!(under_way.wait().unwrap().code(), Some(0));
    feed(scene.command("doug", &[]), scene.message("well").as_bytes()).delivered();
}
