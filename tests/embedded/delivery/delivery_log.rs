//! One record for each delivery, wherever it goes: into a file, as text or as JSON, to syslog, to journald. It has the fields
//! that docs/log.md documents, no more and no less, and Postfix's queue id among them.

use crate::program::{feed, program, wait_until};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::database::Client;
use maildrop_command::ledger::schema::open_embedded;
use maildrop_command::lock::{Acquired, LockName, NamedLock};
use serde_json::Value;
use std::collections::BTreeSet;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const MESSAGE: &[u8] = b"From: lisa@gmail.com\nMessage-ID: <123-abc@mail.google.com>\nSubject: x\n\nx\n";
const ENVELOPE: [&str; 6] =
    ["--sender", "lisa@gmail.com", "--recipient", "doug@mail.axial.net", "--queue-id", "4bXyz12abc"];

/// A configuration whose servers are all away: the delivery is deferred, and says so in its log.
fn configuration(directory: &Path, log: &str) -> String {
    let file = directory.join("config.toml");
    let text = format!(
        "[database]\nfailover_timeout = \"0s\"\nengine = \"postgresql\"\nhost = \"127.0.0.1\"\nport = 1\ndatabase = \"x\"\nuser = \"x\"\n\
         [imap]\nhost = \"127.0.0.1\"\nport = 1\nuser = \"x\"\npassword_file = \"{}\"\nencryption = \"none\"\n[log]\n{log}\n",
        directory.join("password").display()
    );
    std::fs::write(directory.join("password"), "x\n").unwrap();
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

fn deliver(config: &str) {
    let command = program(&[&["--config", config], &ENVELOPE[..]].concat());
    feed(command, MESSAGE).deferred("4.");
}

/// The names in the first column of the page's table.
fn documented() -> BTreeSet<String> {
    let cells =
        include_str!("../../../docs/log.md").lines().filter_map(|line| line.strip_prefix("| `")?.split_once(" | "));
    cells.flat_map(|(cell, _)| cell.split(", ").map(|name| name.trim_matches('`').to_owned())).collect()
}

/// The names of the fields of a record in text: what stands before `=`, outside of quotes.
fn fields(record: &str) -> BTreeSet<String> {
    let outside: String = record.replace("\\\"", "").split('"').step_by(2).collect();
    outside.split_whitespace().filter_map(|word| Some(word.split_once('=')?.0.to_owned())).collect()
}

#[test]
fn every_field_is_documented_and_every_documented_field_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path().to_str().unwrap();
    let log = || std::fs::read_to_string(directory.path().join("delivery.log")).unwrap();
    let envelope = [&["--embedded", here], &ENVELOPE[..]].concat();
    feed(program(&envelope), MESSAGE).delivered();
    assert_eq!(feed(program(&envelope), MESSAGE).delivered(), "INBOX already there");

    // Another holds the lock.
    let client = Client { host: "mx2.example".into(), pid: 4711, queue_id: Some("4bOTHER".into()) };
    let deadline = Deadline::after(Duration::from_secs(60));
    let mut locks = open_embedded(directory.path(), &client, deadline).unwrap();
    let lock = LockName::new("maildrop", b"123-abc@mail.google.com");
    assert!(matches!(locks.acquire(&lock, Duration::ZERO).unwrap(), Acquired::Held));
    feed(program(&[&envelope[..], &["--lock-wait", "0s"]].concat()), MESSAGE).deferred("4.3.0 another delivery");

    let (log, mut seen) = (log(), BTreeSet::new());
    let records: Vec<&str> = log.lines().filter(|line| line.contains("queue_id=4bXyz12abc")).collect();
    assert_eq!(records.len(), 3, "one record for each delivery: {log}");
    for record in records {
        seen.extend(fields(record));
    }
    // A lock in a file has no session on a server.
    seen.insert("holder_session".into());
    assert_eq!(seen, documented());
    // They mean what the table says.
    assert!(log.contains(&format!("lock={}", lock.mysql_name())), "{log}");
    assert!(log.contains("copies=\"recipient appended\"") && log.contains("holder_queue_id=4bOTHER"), "{log}");
}

#[test]
fn in_a_file_it_is_text_or_json() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("log");
    for format in ["text", "json"] {
        let log = format!("to = \"file\"\nfile = \"{}\"\nformat = \"{format}\"", file.display());
        deliver(&configuration(directory.path(), &log));
    }
    let text = std::fs::read_to_string(&file).unwrap();
    let records: Vec<&str> = text.lines().filter(|line| line.contains("deferred")).collect();
    assert_eq!(records.len(), 2, "{text}");
    assert!(records[0].contains(" deferred queue_id=4bXyz12abc "), "{text}");
    let json: Value = serde_json::from_str(records[1]).unwrap();
    assert_eq!((&json["message"], &json["queue_id"]), (&"deferred".into(), &"4bXyz12abc".into()), "{text}");
    assert!(json["total_ms"].is_number() && json["database_round_trips"].is_number(), "{text}");
}

/// Delivers where `socket` is a path below /run or /dev at which we listen; what arrives there. In a mount namespace of its
/// own, so that neither this machine's log nor another test sees any of it.
fn heard(log: &str, over: &str, socket: &str) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("place");
    let path = place.join(socket);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(place.join("null"), "").unwrap();
    let listener = UnixDatagram::bind(&path).unwrap();
    listener.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let config = configuration(directory.path(), log);
    let plain = program(&[&["--config", &config], &ENVELOPE[..]].concat());
    let mut inside = Command::new("unshare");
    inside.args(["--mount", "--map-root-user", "sh", "-ec", "mount --bind \"$0\" \"$1\"; shift; exec \"$@\""]);
    inside.arg(&place).arg(over).arg(plain.get_program()).args(plain.get_args());
    feed(inside, MESSAGE).deferred("4.");
    let mut records = Vec::new();
    let mut buffer = [0; 65536];
    wait_until("the record arrives", || {
        while let Ok(length) = listener.recv(&mut buffer) {
            records.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
        }
        records.iter().any(|record| record.contains("deferred"))
    });
    records.retain(|record| record.contains("deferred"));
    records
}

#[test]
fn to_syslog_it_goes_as_mail() {
    let records = heard("to = \"syslog\"", "/dev", "log");
    assert_eq!(records.len(), 1, "{records:?}");
    // Facility mail (2) and severity warning (4), RFC 5424 section 6.2.1.
    assert!(records[0].starts_with("<20>") && records[0].contains("maildrop_command["), "{records:?}");
    assert!(records[0].contains(" deferred queue_id=4bXyz12abc "), "{records:?}");
}

#[test]
fn to_journald_it_goes_field_by_field() {
    let records = heard("to = \"journald\"", "/run", "systemd/journal/socket");
    assert_eq!(records.len(), 1, "{records:?}");
    let has = |field: &str, value: &str| {
        // The native protocol: `FIELD=value`, or the name, a length in 8 bytes, and the value.
        let record = &records[0];
        let at = record.find(&format!("{field}\n")).or_else(|| record.find(&format!("{field}=")));
        at.is_some_and(|at| {
            record[at..].chars().take(field.len() + value.len() + 20).collect::<String>().contains(value)
        })
    };
    assert!(has("SYSLOG_IDENTIFIER", "maildrop_command") && has("SYSLOG_FACILITY", "2"), "{records:?}");
    assert!(has("MAILDROP_QUEUE_ID", "4bXyz12abc") && has("MESSAGE", "deferred"), "{records:?}");
}

/// People see on standard error what a delivery would log, and nothing of it on standard output.
#[test]
fn subcommands_for_people_tell_on_standard_error() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path().to_str().unwrap();
    feed(program(&[&["--embedded", here], &ENVELOPE[..]].concat()), MESSAGE).delivered();
    let exec = |more: &[&str]| {
        let arguments = [&["lock", "exec", "--embedded", here], more, &["x", "--", "/bin/echo", "through"]].concat();
        let output = program(&arguments).output().unwrap();
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"through\n"[..]), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(exec(&[]), "");
    assert!(exec(&["-v"]).contains("the lock is held name=x"), "{}", exec(&["-v"]));
    // A configuration cannot send a delivery's log there.
    let config = configuration(directory.path(), "to = \"stderr\"");
    feed(program(&[&["--config", &config], &ENVELOPE[..]].concat()), MESSAGE).deferred("4.3.5");
}
