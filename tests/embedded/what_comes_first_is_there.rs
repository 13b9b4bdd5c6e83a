//! The same words of an author may come twice: what comes first is there, whoever sent it on, and the second is told how
//! the first one came.

use crate::program::{Outcome, feed, program};
use serde_json::Value;
use std::path::Path;

/// What the boss wrote.
const WORDS: &str = "From: boss@mail.axial.net\nTo: doug@mail.axial.net, eve@mail.axial.net\nSubject: Budget\n\
                     Date: Fri, 20 Nov 2026 13:00:00 +0100\nMessage-ID: <123-abc@mail.axial.net>\n\nTen percent.\n";

fn deliver(directory: &Path, sender: &str, queue_id: &str, message: &str) -> Outcome {
    let directory = directory.to_str().unwrap();
    let envelope = ["--sender", sender, "--recipient", "doug@mail.axial.net", "--queue-id", queue_id];
    feed(program(&[&["--embedded", directory], &envelope[..]].concat()), message.as_bytes())
}

fn trace(directory: &Path, more: &[&str]) -> String {
    let arguments = [&["trace", "<123-abc@mail.axial.net>", "--embedded", directory.to_str().unwrap()], more].concat();
    let output = program(&arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_copy_that_a_stranger_sent_ahead_is_the_one_that_is_there_and_log_and_trace_say_how_it_came() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let ahead = format!("X-Spam-Flag: YES\nAutocrypt: addr=boss@mail.axial.net; keydata=AAAA\n{WORDS}");
    let genuine = format!("DKIM-Signature: v=1; d=mail.axial.net\nList-Id: <all.mail.axial.net>\n{WORDS}");
    assert_eq!(deliver(directory, "bounce@evil.example", "4bAHEAD", &ahead).delivered(), "INBOX appended");
    assert_eq!(deliver(directory, "boss@mail.axial.net", "4bBOSS", &genuine).delivered(), "INBOX already there");

    let inbox = directory.join("doug@mail.axial.net/new");
    let files: Vec<_> = std::fs::read_dir(inbox).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    assert!(std::fs::read_to_string(&files[0]).unwrap().contains("X-Spam-Flag: YES"));
    let ledger = rusqlite::Connection::open(directory.join("ledger.sqlite")).unwrap();
    let sender = |row: &rusqlite::Row<'_>| row.get::<_, String>(0);
    let senders: Vec<String> = ledger
        .prepare("SELECT sender FROM messages")
        .unwrap()
        .query_map([], sender)
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(senders, ["bounce@evil.example"]);

    let log = std::fs::read_to_string(directory.join("delivery.log")).unwrap();
    let record = |queue_id: &str| {
        let is_its = |line: &&str| line.contains(&format!(" delivered queue_id={queue_id} "));
        log.lines().find(is_its).unwrap_or_else(|| panic!("{log}"))
    };
    assert!(!record("4bAHEAD").contains("earlier_"), "{log}");
    let second = record("4bBOSS");
    let host = |record: &str| record.split(" earlier_host=").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    assert!(second.contains(" earlier_queue_id=4bAHEAD "), "{log}");
    assert!(
        second.contains(" earlier_sender=\"bounce@evil.example\"")
            || second.contains(" earlier_sender=bounce@evil.example"),
        "{log}"
    );
    assert!(second.contains(" earlier_at=") && !host(second).is_empty(), "{log}");

    let json: Value = serde_json::from_str(&trace(directory, &["--json"])).unwrap();
    let told = &json["messages"][0];
    let attempts = &told["attempts"];
    assert_eq!(attempts[0]["copies"][0]["earlier"], Value::Null, "{json}");
    let earlier = &attempts[1]["copies"][0]["earlier"];
    assert_eq!((&earlier["queue_id"], &earlier["host"]), (&"4bAHEAD".into(), &attempts[0]["host"]), "{json}");
    assert_eq!(earlier["sender"], "bounce@evil.example", "{json}");
    assert_eq!(earlier["delivered_at"], told["copies"][0]["delivered_at"], "{json}");
    assert!(second.contains(earlier["delivered_at"].as_str().unwrap()), "{log}");
    let text = trace(directory, &[]);
    let line = text.lines().find(|line| line.starts_with("Already there in INBOX of doug@mail.axial.net: "));
    let line = line.unwrap_or_else(|| panic!("{text}"));
    assert!(
        line.contains("queue id 4bAHEAD on ") && line.ends_with("envelope sender <bounce@evil.example>."),
        "{text}"
    );
}
