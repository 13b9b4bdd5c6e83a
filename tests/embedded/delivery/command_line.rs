//! What the command line does where nothing else is needed: it never turns a mistake into a lost or bounced message.

use crate::program::{Running, as_delivered, feed, program, wait_until};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

const MESSAGE: &str = "From: lisa@gmail.com\nMessage-ID: <123-abc@mail.google.com>\nSubject: Hello\n\nHello\n";

fn envelope(directory: &Path) -> Vec<&str> {
    vec!["--embedded", directory.to_str().unwrap(), "--sender", "lisa@gmail.com", "--recipient", "doug@x"]
}

fn copies(directory: &Path) -> usize {
    std::fs::read_dir(directory.join("doug@x/new")).map_or(0, Iterator::count)
}

fn output(arguments: &[&str]) -> Output {
    program(arguments).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn without_a_place_to_deliver_to_the_message_stays_with_postfix() {
    let outcome = feed(program(&["--sender", "", "--recipient", "doug@x"]), MESSAGE.as_bytes());
    outcome.deferred("4.3.5 neither --config FILE nor --embedded DIR is given");
    feed(program(&[]), MESSAGE.as_bytes()).deferred("4.3.5 neither");
    feed(program(&["deliver"]), MESSAGE.as_bytes()).deferred("4.3.5 neither");
}

/// Under pipe(8) the path would be in Postfix's queue directory.
#[test]
fn a_relative_directory_is_for_people_at_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = program(&["--embedded", "mail", "--sender", "", "--recipient", "doug@x"]);
    command.current_dir(folder.path());
    let outcome = feed(command, MESSAGE.as_bytes());
    assert!(outcome.deferred("4.3.5 --embedded DIR is relative").contains("give the path from the root"));
    assert!(!folder.path().join("mail").exists());
}

#[test]
fn a_command_line_that_cannot_be_read_is_deferred() {
    let directory = tempfile::tempdir().unwrap();
    for wrong in [
        &["--no-such-option"][..],
        &["--recipient"],
        &["stray"],
        &["--deadline", "soon"],
        &["--deadline", "-1s"],
        &["--log-level", "loud"],
        &["--config", "/etc/x", "--embedded", "/tmp/x"],
        &["--recipient", "a@b", "--recipient", "c@d"],
        &["--help"],
        &["--version"],
        &["-h"],
        &["deliver", "--no-such-option"],
    ] {
        let mut arguments = if wrong[0] == "deliver" { Vec::new() } else { envelope(directory.path()) };
        arguments.extend(wrong);
        let outcome = feed(program(&arguments), MESSAGE.as_bytes());
        outcome.deferred("4.3.5 bad arguments: ");
    }
    assert_eq!(copies(directory.path()), 0);
}

/// A person has mistyped it, or Postfix has a wrong entry: for now, and with what helps the one who reads it.
#[test]
fn a_subcommand_that_is_mistyped_is_deferred_with_a_suggestion() {
    let shown = output(&["auditt", "--since", "1h"]);
    assert_eq!(shown.status.code(), Some(75));
    let line = String::from_utf8(shown.stdout).unwrap();
    assert!(
        line.starts_with("4.3.5 bad arguments: ") && line.ends_with("a similar subcommand exists: 'audit'\n"),
        "{line}"
    );
}

#[test]
fn help_and_version_are_for_people() {
    for (arguments, expected) in [
        (&["--help"][..], "Exit status of a delivery"),
        (&["deliver", "--help"], "--recipient-header"),
        (&["migrate", "--help"], "[default: /etc/maildrop_command/config.toml]"),
        (&["check", "--help"], "Examples:"),
        (&["lock", "--help"], "key"),
        (&["lock", "exec", "--help"], "Exit status: the command's"),
        (&["lock", "list", "--help"], "Examples:"),
        (&["lock", "try", "--help"], "only a glimpse"),
        (&["lock", "key", "--help"], "Examples:"),
        (&["--version"], "maildrop_command "),
    ] {
        let output = output(arguments);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(text.contains(expected), "{arguments:?}: {text}");
    }
    // The others mean what sysexits(3) says: a mistake in them is no delivery.
    for arguments in [&["migrate", "--no-such-option"][..], &["check", "--no-such-option"], &["lock"], &["lock", "key"]]
    {
        assert_eq!(output(arguments).status.code(), Some(64), "{arguments:?}");
    }
    for arguments in [&["migrate", "--config", "/no/such/file"][..], &["check", "--config", "/no/such/file"]] {
        let output = output(arguments);
        assert_eq!(output.status.code(), Some(78), "{arguments:?}");
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.contains("/no/such/file") && errors.lines().count() == 1, "{errors}");
    }
}

/// A user who redirects it to a file on a full disk must not believe that the file is whole.
#[test]
fn what_cannot_be_reported_is_an_error_of_every_subcommand() {
    let directory = tempfile::tempdir().unwrap();
    feed(program(&envelope(directory.path())), MESSAGE.as_bytes()).delivered();
    let message = directory.path().join("message.eml");
    std::fs::write(&message, MESSAGE).unwrap();
    let (path, message) = (directory.path().to_str().unwrap(), message.to_str().unwrap());
    let at = |arguments: &[&'static str]| [arguments, &["--embedded", path]].concat();
    let failures = directory.path().join("failures");
    let failures = ["--failures-to", failures.to_str().unwrap(), message];
    let replay = [at(&["replay", "--sender", "", "--recipient", "x@x"]), failures.to_vec()].concat();
    let inject = [at(&["inject", "--recipient", "x@x"]), vec![message]].concat();
    assert!(program(&inject).stdin(Stdio::null()).output().unwrap().status.success());
    let state = directory.path().join("state");
    let config = directory.path().join("config.toml");
    let servers = "[database]\nengine = \"postgresql\"\nhost = \"db.invalid\"\ndatabase = \"x\"\nuser = \"x\"\n\
                   [imap]\nhost = \"imap.invalid\"\nuser = \"x\"\npassword_file = \"/nowhere\"\n";
    std::fs::write(&config, format!("{servers}[service]\nstate_directory = {state:?}\n")).unwrap();
    let config = config.to_str().unwrap();
    for arguments in [
        vec!["--help"],
        vec!["-h"],
        vec!["--version"],
        vec!["deliver", "--help"],
        vec!["help", "trace"],
        vec!["check", "--help"],
        vec!["migrate", "--help"],
        vec!["lock", "exec", "--help"],
        vec!["lock", "key", "<1@x>"],
        at(&["trace", "<123-abc@mail.google.com>"]),
        at(&["trace", "<123-abc@mail.google.com>", "--json"]),
        at(&["stats"]),
        at(&["audit"]),
        at(&["prune", "--messages-older-than", "400d"]),
        at(&["prune", "--json"]),
        at(&["lock", "list"]),
        at(&["lock", "try", "x"]),
        replay,
        inject,
        at(&["web", "login", "--name", "anna", "--role", "viewer"]),
        at(&["web", "sessions"]),
        at(&["web", "sessions", "--json"]),
        vec!["queue", "list", "--config", config],
        vec!["queue", "list", "--json", "--config", config],
        vec!["shunt", "list", "--config", config],
        vec!["shunt", "list", "--json", "--config", config],
        // These ask servers.
        vec!["token", "create", "--help"],
        vec!["subscription", "create", "--help"],
        vec!["notify", "status", "--help"],
    ] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output_text = program(&arguments).stdin(Stdio::null()).stdout(full).output().unwrap();
        let stderr = String::from_utf8(output_text.stderr).unwrap();
        assert_eq!(output_text.status.code(), Some(74), "{arguments:?}: {stderr}");
        let complaints = stderr.lines().filter(|line| line.contains("standard output: No space left on device"));
        assert_eq!(complaints.count(), 1, "{arguments:?}: {stderr}");
        // Nobody reads it to the end, which is no failure.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let printed = program(&arguments).stdin(Stdio::null()).stdout(writer).output().unwrap();
        assert_eq!(printed.status.code(), Some(0), "{arguments:?}: {}", String::from_utf8_lossy(&printed.stderr));
    }
}

#[test]
fn the_lock_of_a_message_has_a_name_that_others_can_take() {
    let text = String::from_utf8(output(&["lock", "key", "<123-abc@mail.google.com>"]).stdout).unwrap();
    let json = output(&["lock", "key", "--json", "123-abc@mail.google.com"]).stdout;
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let (postgresql, mysql) = (json["postgresql"].as_str().unwrap(), json["mysql"].as_str().unwrap());
    assert_eq!(text, format!("postgresql  {postgresql}\nmysql       {mysql}\n"));
    postgresql.parse::<i64>().unwrap();
    assert!(mysql.len() <= 64 && mysql.starts_with("maildrop:"));
    let other = output(&["lock", "key", "--json", "--namespace", "other", "123-abc@mail.google.com"]).stdout;
    assert_ne!(serde_json::from_slice::<serde_json::Value>(&other).unwrap(), json);
}

#[test]
fn a_dry_run_does_nothing_and_is_no_delivery() {
    let directory = tempfile::tempdir().unwrap();
    let mut arguments = envelope(directory.path());
    arguments.push("--dry-run");
    let outcome = feed(program(&arguments), MESSAGE.as_bytes());
    let shown = outcome.deferred("4.0.0 dry run, nothing done: ");
    assert!(shown.contains("INBOX of doug@x (recipient): to be appended"), "{shown}");
    assert_eq!(copies(directory.path()), 0);
    feed(program(&envelope(directory.path())), MESSAGE.as_bytes()).delivered();
    let outcome = feed(program(&arguments), MESSAGE.as_bytes());
    assert!(outcome.deferred("4.0.0 dry run").contains("there already"), "{outcome:?}");
    assert_eq!(copies(directory.path()), 1);
}

/// Also what is refused before anybody asks where the message goes.
#[test]
fn a_dry_run_never_refuses_a_message() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    std::fs::write(file("password"), "secret\n").unwrap();
    let (config, password, log) = (file("config.toml"), file("password"), file("delivery.log"));
    let text = format!(
        "[database]\nengine = \"postgresql\"\nhost = \"db.invalid\"\ndatabase = \"x\"\nuser = \"x\"\n\
         [imap]\nhost = \"imap.invalid\"\nuser = \"x\"\npassword_file = {password:?}\n\
         [delivery]\nmessage_size_limit = 10\n[log]\nto = \"file\"\nfile = {log:?}\n"
    );
    std::fs::write(&config, text).unwrap();
    let mut arguments = vec!["--sender", "lisa@x", "--recipient", "doug@x", "--config", config.to_str().unwrap()];
    let refused = feed(program(&arguments), MESSAGE.as_bytes());
    assert_eq!(refused.exit, Some(65), "{refused:?}");
    arguments.push("--dry-run");
    feed(program(&arguments), MESSAGE.as_bytes()).deferred("4.0.0 dry run, nothing done: 5.3.4 ");
}

#[test]
fn help_that_the_service_cannot_say_is_an_error() {
    for arguments in [&["--help"][..], &["--version"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut service = std::process::Command::new(env!("CARGO_BIN_EXE_maildropd"));
        let printed = service.args(arguments).stdout(full).output().unwrap();
        let stderr = String::from_utf8(printed.stderr).unwrap();
        assert_eq!(printed.status.code(), Some(74), "{stderr}");
        assert!(stderr.contains("standard output: No space left on device"), "{stderr}");
    }
}

#[test]
fn a_stdout_that_takes_nothing_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let script = |text: &str| {
        let mut command = std::process::Command::new("/bin/sh");
        command.args(["-c", text, env!("CARGO_BIN_EXE_maildrop_command")]).args(envelope(directory.path())).env_clear();
        feed(command, MESSAGE.as_bytes())
    };
    assert_eq!(script("exec \"$0\" \"$@\" >&-").exit, Some(0));
    assert_eq!(script("exec \"$0\" \"$@\" >&- 2>&-").exit, Some(0));
    assert_eq!(script("exec \"$0\" \"$@\" >/dev/full").exit, Some(0));
    // A verdict that is not success, too.
    assert_eq!(script("exec \"$0\" \"$@\" --no-such-option >&-").exit, Some(75));
    assert_eq!(copies(directory.path()), 1);
}

#[test]
fn a_pipe_that_is_full_changes_nothing() {
    for blocking in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let (_ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut &theirs, &[b'x'; 4096]).is_ok() {}
        theirs.set_nonblocking(!blocking).unwrap();
        let mut command = program(&envelope(directory.path()));
        // At which the one whose pipe blocks is ended: long after it has delivered.
        command.args(["--deadline", "20s"]).stdin(std::fs::File::open(message(directory.path())).unwrap());
        let mut child = command.stdout(OwnedFd::from(theirs)).spawn().unwrap();
        wait_until("it ends", || child.try_wait().unwrap().is_some());
        assert_eq!(child.wait().unwrap().code(), Some(0), "blocking: {blocking}");
        assert_eq!(copies(directory.path()), 1);
    }
}

fn message(directory: &Path) -> std::path::PathBuf {
    let path = directory.join("message");
    std::fs::write(&path, MESSAGE).unwrap();
    path
}

#[test]
fn a_message_that_does_not_end_is_deferred_at_the_deadline() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = program(&envelope(directory.path()));
    let (_ours, theirs) = UnixStream::pair().unwrap();
    command.args(["--deadline", "1s"]).stdin(OwnedFd::from(theirs)).stdout(Stdio::piped());
    let child = command.spawn().unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(75));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "4.4.5 the delivery took too long\n");
}

#[test]
fn a_log_that_cannot_be_opened_is_deferred_and_one_that_is_full_holds_nothing_up() {
    let directory = tempfile::tempdir().unwrap();
    symlink("/dev/full", directory.path().join("delivery.log")).unwrap();
    feed(program(&envelope(directory.path())), MESSAGE.as_bytes()).delivered();
    assert_eq!(copies(directory.path()), 1);

    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("delivery.log")).unwrap();
    feed(program(&envelope(directory.path())), MESSAGE.as_bytes()).deferred("4.3.5 the log: ");
    assert_eq!(copies(directory.path()), 0);
}

#[test]
fn a_directory_that_cannot_be_made_is_deferred() {
    let directory = tempfile::tempdir().unwrap();
    let file = message(directory.path());
    feed(program(&envelope(&file)), MESSAGE.as_bytes()).deferred("4.3.5 ");
    feed(program(&envelope(&file.join("below"))), MESSAGE.as_bytes()).deferred("4.3.5 ");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o000)).unwrap();
}

/// Between the copy and its record: nothing of the dead process can come later, so that nobody has to wait.
#[test]
fn what_died_before_it_recorded_is_found_by_the_very_next_try() {
    let directory = tempfile::tempdir().unwrap();
    feed(program(&envelope(directory.path())), MESSAGE.as_bytes()).delivered();
    let ledger = rusqlite::Connection::open(directory.path().join("ledger.sqlite")).unwrap();
    let forget = "DELETE FROM copies; DELETE FROM messages; UPDATE attempts SET ended_at = NULL, outcome = NULL";
    ledger.execute_batch(forget).unwrap();
    let again = feed(program(&envelope(directory.path())), MESSAGE.as_bytes());
    assert!(again.delivered().contains("INBOX adopted"), "{again:?}");
    assert_eq!(copies(directory.path()), 1);
    let open: i64 =
        ledger.query_row("SELECT count(*) FROM attempts WHERE ended_at IS NULL", (), |row| row.get(0)).unwrap();
    assert_eq!(open, 0);
}

/// The kill comes at any moment; the very next try finds what it has left, and the message is there once.
#[test]
fn killed_at_any_moment_and_tried_again_it_is_there_once() {
    let directory = tempfile::tempdir().unwrap();
    let body = format!("{MESSAGE}{}", "x".repeat(200_000));
    for milliseconds in [1, 3, 6, 10, 15, 20, 30] {
        let running = Running::start(program(&envelope(directory.path())), body.as_bytes());
        std::thread::sleep(Duration::from_millis(milliseconds));
        running.kill();
    }
    feed(program(&envelope(directory.path())), body.as_bytes()).delivered();
    assert_eq!(copies(directory.path()), 1);
    let file = std::fs::read_dir(directory.path().join("doug@x/new")).unwrap().next().unwrap().unwrap().path();
    let with_crlf = std::fs::read_to_string(file).unwrap().replace('\n', "\r\n");
    assert_eq!(with_crlf.as_bytes(), as_delivered(body.as_bytes()));
}

#[test]
fn an_embedded_site_has_no_notifications() {
    let directory = tempfile::tempdir().unwrap();
    feed(program(&envelope(directory.path())), MESSAGE.as_bytes()).delivered();
    for command in [&["subscription", "list"][..], &["notify", "status"], &["notify", "redeliver"]] {
        let site = ["--embedded", directory.path().to_str().unwrap()];
        let asked = output(&[command, &site].concat());
        let errors = String::from_utf8(asked.stderr).unwrap();
        assert_eq!(
            (asked.status.code(), errors.trim()),
            (Some(78), "maildrop_command: an embedded site has no notifications")
        );
    }
}
