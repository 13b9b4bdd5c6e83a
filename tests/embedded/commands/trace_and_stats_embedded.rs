//! `trace` and `stats` on one machine without servers: the same questions, asked of SQLite, file locks and Maildirs.

use crate::program::{feed, program};
use crate::support::clients_and_processes;
use maildrop_command::database::{Dialect, Tables, Value};
use maildrop_command::delivery::lock_of_message_id;
use maildrop_command::lock::{Acquired, DEFAULT_NAMESPACE, NamedLock};
use serde_json::Value as Json;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use uuid::Uuid;

const ID: &str = "<123-abc@mail.google.com>";
const MESSAGE: &str = "From: lisa@gmail.com\nMessage-ID: <123-abc@mail.google.com>\nSubject: Hello\n\nHello\n";

fn deliver(directory: &Path, recipient: &str) -> crate::program::Outcome {
    let directory = directory.to_str().unwrap();
    let mut command = program(&["--embedded", directory, "--sender", "lisa@gmail.com", "--recipient", recipient]);
    command.args(["--queue-id", "4bXyz", "--lock-wait", "0s"]);
    feed(command, MESSAGE.as_bytes())
}

fn asked(directory: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = program(arguments).args(["--embedded", directory.to_str().unwrap()]).output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap())
}

fn json(directory: &Path, arguments: &[&str]) -> Json {
    let (exit, text) = asked(directory, &[arguments, &["--json"]].concat());
    assert_eq!(exit, Some(0), "{text}");
    serde_json::from_str(&text).unwrap()
}

#[test]
fn a_messages_history_is_reported_by_any_of_its_names() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    for recipient in ["doug@x", "lisa@gmail.com", "scuba@x"] {
        deliver(directory, recipient).delivered();
    }
    for what in [ID, "123-abc@mail.google.com", "4bXyz", "scuba@x", "lisa@gmail.com"] {
        let json = json(directory, &["trace", what]);
        let report = &json["messages"][0];
        assert_eq!((&report["state"], &report["message_id"]), (&"delivered".into(), &ID.into()), "{what}: {json}");
        assert_eq!(report["copies"].as_array().unwrap().len(), 4, "{what}: {json}");
        // To the hundredth of a millisecond, of which it may have taken none.
        assert!(report["attempts"][2]["stages_ms"]["append"].is_number(), "{what}: {json}");
    }
    let (exit, output) = asked(directory, &["trace", "<another@x>"]);
    assert!(exit == Some(66) && output.starts_with("NEVER SEEN HERE"), "{output}");
    let (exit, output) = asked(&directory.join("elsewhere"), &["trace", ID]);
    assert!(exit == Some(66) && output.contains("holds no ledger"), "{output}");

    let json = json(directory, &["stats"]);
    assert_eq!((&json["attempts"]["all"], &json["attempts"]["delivered"]), (&3.into(), &3.into()), "{json}");
    assert_eq!((&json["copies"]["appended"], &json["messages"]["recorded"]), (&4.into(), &1.into()), "{json}");
}

#[test]
fn what_cannot_be_written_to_a_full_disk_is_no_success_and_a_reader_who_has_left_is() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    deliver(directory, "doug@x").delivered();
    let stats = |stdout: Stdio| {
        let mut command = program(&["stats", "--json", "--embedded", directory.to_str().unwrap()]);
        let output = command.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (exit, output) = stats(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into());
    assert!(
        exit == Some(74) && output.starts_with("maildrop_command: standard output: No space left"),
        "{exit:?} {output}"
    );
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(stats(writer.into()), (Some(0), String::new()));
}

/// Root's `--output /dev/null` must not put a file into the place of the device; here stands a pipe for it.
#[test]
fn what_is_no_file_is_written_to_and_never_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    deliver(directory, "doug@x").delivered();
    let (pipe, link, file) = (directory.join("pipe"), directory.join("link.prom"), directory.join("file.prom"));
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::read_to_string(pipe).unwrap()
    });
    let stats = |output: &Path| asked(directory, &["stats", "--output", output.to_str().unwrap()]);
    assert_eq!(stats(&pipe), (Some(0), String::new()));
    let kind = std::fs::symlink_metadata(&pipe).unwrap().file_type();
    assert!(!kind.is_file(), "the pipe was replaced");
    assert!(reader.join().unwrap().contains(" 1 delivered"));

    std::fs::write(&file, "old").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    assert_eq!(stats(&link), (Some(0), String::new()));
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink(), "the link was replaced");
    assert!(std::fs::read_to_string(&file).unwrap().contains(" 1 delivered"));
    let (exit, output) = stats(directory);
    assert_eq!(exit, Some(73), "{output}");
}

#[test]
fn who_holds_the_lock_is_reported_without_taking_it() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let name = lock_of_message_id(DEFAULT_NAMESPACE, ID.as_bytes());
    let (mut holder, mut onlooker) = (clients_and_processes::open(directory), clients_and_processes::open(directory));
    assert_eq!(onlooker.holder(&name).unwrap(), None);
    assert!(matches!(holder.acquire(&name, Duration::ZERO).unwrap(), Acquired::Held));
    let seen = onlooker.holder(&name).unwrap().unwrap();
    assert_eq!((seen.pid, seen.queue_id.as_deref()), (Some(std::process::id()), Some("4bXyz")));
    deliver(directory, "doug@x").deferred("4.3.0 another delivery of this message holds its lock");

    let report = json(directory, &["trace", ID]);
    let shown = &report["messages"][0];
    assert_eq!(
        (&shown["state"], &shown["lock"]["holder"]["pid"]),
        (&"deferred".into(), &std::process::id().into()),
        "{shown}"
    );
    assert!(holder.still_held(&name).unwrap());
    holder.release(&name).unwrap();
    assert_eq!(onlooker.holder(&name).unwrap(), None);
    // A holder that was killed leaves its file, and nobody holds it.
    let digits: String = name.digest().iter().map(|byte| format!("{byte:02x}")).collect();
    let file = directory.join("locks").join(digits);
    std::fs::write(file, r#"{"host":"mx1.example","pid":1,"queue_id":null,"since":0}"#).unwrap();
    assert_eq!(onlooker.holder(&name).unwrap(), None);
    deliver(directory, "doug@x").delivered();
}

/// As tests/server_tests/engines/shared_statements.rs on the other engines.
#[test]
fn what_goes_in_comes_out_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut database = clients_and_processes::open(directory.path());
    assert_eq!(database.dialect(), Dialect::Sqlite);
    let make =
        "CREATE TABLE kinds (number INTEGER PRIMARY KEY, words TEXT, bytes BLOB, name BLOB, moment INTEGER) STRICT";
    database.change("making a table", make, &[]).unwrap();
    let bytes: Vec<u8> = (0..=255).collect();
    let uuid = Uuid::now_v7();
    let words = "'); DROP TABLE kinds; -- ?\\\r\n\u{1F600}";
    let moment = 1_700_000_000_123_457;
    let insert = "INSERT INTO kinds VALUES (?, ?, ?, ?, ?)";
    let values =
        [Value::Integer(1), Value::Text(words), Value::Bytes(&bytes), Value::Uuid(uuid), Value::Moment(moment)];
    assert_eq!(database.change("inserting", insert, &values).unwrap(), 1);
    let null = [Value::Integer(2), Value::Null, Value::Null, Value::Null, Value::Null];
    assert_eq!(database.change("inserting", insert, &null).unwrap(), 1);

    let dialect = database.dialect();
    let (hex, name, micro) = (dialect.hex("bytes"), dialect.uuid("name"), dialect.microseconds("moment"));
    let select = format!("SELECT words, {hex}, {name}, {micro} FROM kinds WHERE number = ?");
    let rows = database.select("looking", &select, &[Value::Integer(1)]).unwrap();
    assert_eq!((rows[0].text(0), rows[0].value::<i64>(3).unwrap()), (Some(words), Some(moment)));
    assert_eq!(rows[0].value::<Vec<u8>>(1).unwrap(), Some(bytes));
    assert_eq!(rows[0].value::<[u8; 16]>(2).unwrap().unwrap(), *uuid.as_bytes());
    let rows = database.select("looking", &select, &[Value::Integer(2)]).unwrap();
    assert_eq!((rows[0].text(0), rows[0].text(3)), (None, None), "{rows:?}");
    // SQLite's hex() of NULL is the empty text.
    assert_eq!(rows[0].value::<Vec<u8>>(1).unwrap().unwrap_or_default(), Vec::<u8>::new());

    let (delete, one) = ("DELETE FROM kinds WHERE number = ?", [Value::Integer(1)]);
    database.execute_together("together", &[(delete, &one), (insert, &null)]).unwrap_err();
    assert_eq!(database.select("counting", "SELECT 1 FROM kinds", &[]).unwrap().len(), 2);
    assert_eq!(database.change("deleting", "DELETE FROM kinds", &[]).unwrap(), 2);
}
