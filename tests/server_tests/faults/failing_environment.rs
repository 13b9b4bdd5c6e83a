//! Whatever fails around it, the message stays with Postfix, with one clear line that gives nothing away.

use crate::support::database::Engine;
use crate::support::program::{Outcome, feed};
use crate::support::site_fixture::Scene;
use crate::support::wire::silent_server;
use base64::Engine as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

const PG: Engine = Engine::Postgres17;

on_each_engine!(
    a_wrong_password_for_the_database,
    a_database_that_is_not_there,
    a_database_that_says_nothing,
    a_database_without_the_schema,
    passwords_are_never_reported,
);

/// Nothing was delivered or begun, and the answer said so in time.
fn deferred(scene: &Scene, outcome: &Outcome, line: &str) {
    outcome.deferred(line);
    let log_text = format!("{}{}", outcome.line, scene.log());
    for secret in [&scene.settings.database_password, &scene.settings.imap_password] {
        assert!(!log_text.contains(secret), "{log_text}");
    }
    assert!(scene.inbox("doug").is_empty());
}

/// Where nobody listens. (A port that was free a moment ago may be another test's by now.)
fn nobody() -> (String, u16) {
    ("127.0.0.1".into(), 1)
}

fn in_time(outcome: &Outcome) {
    // Not in the default deadline's four minutes, however much else the machine has to do.
    assert!(outcome.took < Duration::from_secs(60), "{outcome:?}");
}

fn a_wrong_password_for_the_database(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug"]);
    scene.configure(|settings| settings.database_password = "not-the-right-one".into());
    let outcome = scene.deliver("doug", scene.message("x"));
    deferred(&scene, &outcome, "4.3.5 the database is not set up for deliveries");
}

fn a_database_that_is_not_there(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug"]);
    scene.configure(|settings| settings.database = nobody());
    deferred(&scene, &scene.deliver("doug", scene.message("x")), "4.4.1 the database cannot be reached");
    scene.configure(|settings| settings.database = ("no-such-host.invalid".into(), 1));
    deferred(&scene, &scene.deliver("doug", scene.message("x")), "4.4.1 the database cannot be reached");
}

fn a_database_that_says_nothing(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug"]);
    scene.configure(|settings| settings.database = ("127.0.0.1".into(), silent_server().port()));
    let outcome = scene.deliver_with("doug", &["--deadline", "2s"], scene.message("x"));
    deferred(&scene, &outcome, "4.4.");
    in_time(&outcome);
}

fn a_database_without_the_schema(engine: Engine) {
    let scene = Scene::bare(engine);
    let outcome = scene.deliver("doug", scene.message("x"));
    deferred(&scene, &outcome, "4.3.5 the database is not set up for deliveries");
}

/// Not in the line and not in the log, however much is logged, whether it goes well or not; nor as base64.
fn passwords_are_never_reported(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug", "lisa"]);
    let role = format!("r{}", scene.run);
    let password = format!("geheim-{}", scene.run);
    scene.database.create_role_of_grants_file(&role, &password);
    scene.configure(|settings| {
        settings.role = role;
        settings.database_password = password.clone();
    });
    let trace = ["--log-level", "trace"];
    scene.deliver_with("doug", &trace, scene.message("good")).delivered();
    let mut outputs = String::new();
    let mut secrets = vec![password, "service-secret".to_owned()];
    for (database, imap) in [(true, false), (false, true)] {
        let wrong = format!("falsch-{}", scene.run);
        let was = (scene.settings.database_password.clone(), scene.settings.imap_password.clone());
        scene.configure(|settings| {
            settings.database_password = if database { wrong.clone() } else { was.0.clone() };
            settings.imap_password = if imap { wrong.clone() } else { was.1.clone() };
        });
        let outcome = scene.deliver_with("doug", &trace, scene.message("wrong"));
        outcome.deferred("4.3.5 ");
        let check = scene.subcommand(&["check", "--all", "--self-test"]);
        assert_eq!(check.status.code(), Some(69));
        outputs.push_str(&outcome.line);
        outputs.push_str(&String::from_utf8_lossy(&check.stdout));
        outputs.push_str(&String::from_utf8_lossy(&check.stderr));
        scene.configure(|settings| (settings.database_password, settings.imap_password) = was);
        secrets.push(wrong);
    }
    let log = scene.log();
    assert!(log.contains("TRACE") || log.contains("DEBUG"), "nothing much is logged: {log}");
    for secret in secrets {
        for (what, texts) in [("log", &log), ("output", &outputs)] {
            assert!(!texts.contains(&secret), "{secret} in the {what}: {texts}");
            // Whatever stands before it, one of three shifts is how it looks in base64.
            for shift in 0..3 {
                let text = [&[0; 3][..shift], secret.as_bytes()].concat();
                let encoded = base64::engine::general_purpose::STANDARD_NO_PAD.encode(text);
                let inner = &encoded[4..encoded.len() - 4];
                assert!(!texts.contains(inner), "{secret} as {inner} in the {what}: {texts}");
            }
        }
    }
}

#[test]
fn a_mailbox_store_that_fails() {
    let mut scene = Scene::with(PG, &["doug"]);
    let message = scene.message("x");
    let dovecot = scene.settings.imap.clone();

    scene.configure(|settings| settings.imap_password = "not-the-right-one".into());
    deferred(&scene, &scene.deliver("doug", &message), "4.3.5 the mailbox store is not set up for this recipient");
    scene.configure(|settings| settings.imap_password = "service-secret".into());

    scene.configure(|settings| settings.imap = nobody());
    deferred(&scene, &scene.deliver("doug", &message), "4.4.1 the mailbox store cannot be reached");

    scene.configure(|settings| settings.imap = ("127.0.0.1".into(), silent_server().port()));
    let outcome = scene.deliver_with("doug", &["--deadline", "2s"], &message);
    deferred(&scene, &outcome, "4.4.");
    in_time(&outcome);

    // A web server, say: it is no IMAP server, and says so at length.
    let odd = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = odd.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in odd.incoming() {
            let _ = std::io::Write::write_all(&mut stream.unwrap(), &b"HTTP/1.1 400 Bad Request ".repeat(100_000));
        }
    });
    scene.configure(|settings| settings.imap = ("127.0.0.1".into(), port));
    deferred(&scene, &scene.deliver_with("doug", &["--deadline", "5s"], &message), "4.");

    // Nothing of all this is in the way afterwards.
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
    scene.configure(|settings| settings.imap = dovecot);
    scene.deliver("doug", &message).delivered();
}

#[test]
fn a_configuration_that_is_wrong() {
    let scene = Scene::with(PG, &["doug"]);
    let message = scene.message("x");
    let good = std::fs::read_to_string(scene.path("config.toml")).unwrap();
    let deliver = |text: &str| {
        std::fs::write(scene.path("config.toml"), text).unwrap();
        scene.deliver("doug", &message)
    };
    for (text, check_output) in [
        (good.replace("[imap]", "[imap]\nhots = \"x\""), "imap.hots"),
        (good.replace("[database]", "[databaes]"), "databaes"),
        (good.replace("[imap]", "[imap"), "line "),
        (good.replace("user = \"service\"", "user = 7"), "imap.user"),
        (good.replace("user = \"service\"", "user = \"service\"\npassword = \"topsecret\""), "imap.password"),
        (good.replacen("password_file", "password = \"topsecret\"\npassword_file", 1), "password"),
        // What cannot be parsed is not quoted either.
        (good.replace("user = \"service\"", "user = \"service\"\npassword = topsecret"), "line "),
        (good.replace("imap.password", "no-such.password"), "no-such.password"),
        (format!("{good}\n[delivery]\ndeadline = \"2000s\"\n"), "delivery.deadline"),
        (String::new(), "database"),
    ] {
        let outcome = deliver(&text);
        outcome.deferred("4.3.5 ");
        assert!(outcome.line.contains(check_output), "{check_output}: {outcome:?}");
        assert!(!outcome.line.contains("topsecret"), "{outcome:?}");
    }
    std::fs::write(scene.path("config.toml"), b"\xff\xfe").unwrap();
    scene.deliver("doug", &message).deferred("4.3.5 ");
    std::fs::remove_file(scene.path("config.toml")).unwrap();
    scene.deliver("doug", &message).deferred("4.3.5 ");
    std::fs::create_dir(scene.path("config.toml")).unwrap();
    scene.deliver("doug", &message).deferred("4.3.5 ");
    std::fs::remove_dir(scene.path("config.toml")).unwrap();

    std::fs::write(scene.path("config.toml"), &good).unwrap();
    std::fs::write(scene.path("imap.password"), "\n").unwrap();
    scene.deliver("doug", &message).deferred("4.3.5 ");
    std::fs::remove_file(scene.path("imap.password")).unwrap();
    scene.deliver("doug", &message).deferred("4.3.5 ");
    assert!(scene.inbox("doug").is_empty());
}

#[test]
fn a_message_larger_than_the_operator_allows_is_refused() {
    let mut scene = Scene::with(PG, &["doug"]);
    scene.configure(|settings| settings.more = "[delivery]\nmessage_size_limit = \"1kB\"\n".into());
    let message = |size: usize| {
        let message = scene.message("size");
        message.clone() + &"x".repeat(size - message.len())
    };
    assert!(scene.deliver("doug", message(1001)).ended(65, "5.3.4 ").contains("1000 bytes"));
    scene.deliver("doug", message(1000)).delivered();
    assert_eq!(scene.inbox("doug").len(), 1);
}

#[test]
fn a_log_that_cannot_be_written() {
    let mut scene = Scene::with(PG, &["doug"]);
    scene.configure(|settings| settings.more = "[log]\nto = \"file\"\nfile = \"/no/such/folder/log\"\n".into());
    scene.deliver("doug", scene.message("x")).deferred("4.3.5 the log: ");
    scene.configure(|settings| settings.more = "[log]\nto = \"file\"\nfile = \"/dev/full\"\n".into());
    scene.deliver("doug", scene.message("x")).delivered();
}

#[test]
fn secrets_that_others_can_read_are_warned_of() {
    let scene = Scene::with(PG, &["doug"]);
    let check_output = || String::from_utf8(scene.subcommand(&["check", "--all"]).stdout).unwrap();
    assert!(!check_output().contains("chmod"), "{}", check_output());
    std::fs::set_permissions(scene.path("imap.password"), std::fs::Permissions::from_mode(0o644)).unwrap();
    let warned = scene.subcommand(&["check", "--all"]);
    assert_eq!(warned.status.code(), Some(0));
    assert!(String::from_utf8(warned.stdout).unwrap().contains("chmod"));
    // A delivery goes on.
    let outcome = feed(scene.command("doug", &[]), scene.message("x").as_bytes());
    outcome.delivered();
}
