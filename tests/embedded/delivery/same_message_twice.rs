//! The same words of an author may come twice: the first is delivered, no matter which host forwarded it, and the
//! second learns how the first one came.

use crate::program::{Outcome, feed, program};
use crate::visitor::text;
use crate::web_ui::screens_embedded::SiteFolder;
use serde_json::Value;
use std::path::Path;

/// What the boss wrote.
const WORDS: &str = "From: boss@mail.axial.net\nTo: doug@mail.axial.net, eve@mail.axial.net\nSubject: Budget\n\
                     Date: Fri, 20 Nov 2026 13:00:00 +0100\nMessage-ID: <123-abc@mail.axial.net>\n\nTen percent.\n";

fn deliver(directory: &Path, sender: &str, queue_id: &str, message: &str) -> Outcome {
    deliver_to("doug@mail.axial.net", directory, sender, queue_id, message)
}

fn deliver_to(recipient: &str, directory: &Path, sender: &str, queue_id: &str, message: &str) -> Outcome {
    let directory = directory.to_str().unwrap();
    let envelope = ["--sender", sender, "--recipient", recipient, "--queue-id", queue_id];
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
    let report = &json["messages"][0];
    let attempts = &report["attempts"];
    assert_eq!(attempts[0]["copies"][0]["earlier"], Value::Null, "{json}");
    let earlier = &attempts[1]["copies"][0]["earlier"];
    assert_eq!((&earlier["queue_id"], &earlier["host"]), (&"4bAHEAD".into(), &attempts[0]["host"]), "{json}");
    assert_eq!(earlier["sender"], "bounce@evil.example", "{json}");
    assert_eq!(earlier["delivered_at"], report["copies"][0]["delivered_at"], "{json}");
    assert!(second.contains(earlier["delivered_at"].as_str().unwrap()), "{log}");
    let text = trace(directory, &[]);
    let line = text.lines().find(|line| line.starts_with("Already there in INBOX of doug@mail.axial.net: "));
    let line = line.unwrap_or_else(|| panic!("{text}"));
    assert!(
        line.contains("queue id 4bAHEAD on ") && line.ends_with("envelope sender <bounce@evil.example>."),
        "{text}"
    );
}

/// Of the record in the log with this queue id, a field's value.
fn logged(directory: &Path, queue_id: &str, field: &str) -> Option<String> {
    let log = std::fs::read_to_string(directory.join("delivery.log")).unwrap();
    let is_its = |line: &&str| line.contains(&format!(" delivered queue_id={queue_id} "));
    let record = log.lines().find(is_its).unwrap_or_else(|| panic!("{log}"));
    let value = record.split(&format!(" {field}=")).nth(1)?.split(' ').next()?;
    Some(value.trim_matches('"').to_owned())
}

#[test]
fn the_earlier_copy_is_reported_with_its_own_envelope_sender_and_not_with_that_of_the_message_for_somebody_else() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let ahead = format!("X-Spam-Flag: YES\n{WORDS}");
    // The first row of the message is of the genuine one, for eve; doug's copy is the stranger's.
    let eve = deliver_to("eve@mail.axial.net", directory, "boss@mail.axial.net", "4bEVE", WORDS);
    assert_eq!(eve.delivered(), "INBOX appended");
    assert_eq!(deliver(directory, "", "4bAHEAD", &ahead).delivered(), "INBOX appended");
    assert_eq!(deliver(directory, "boss@mail.axial.net", "4bBOSS", WORDS).delivered(), "INBOX already there");
    assert_eq!(logged(directory, "4bBOSS", "earlier_queue_id").as_deref(), Some("4bAHEAD"));
    assert_eq!(logged(directory, "4bBOSS", "earlier_sender").as_deref(), Some(""));

    let traced = || -> Value { serde_json::from_str(&trace(directory, &["--json"])).unwrap() };
    let json = &traced()["messages"][0];
    assert_eq!(json["message"]["sender"], "boss@mail.axial.net", "{json}");
    let senders: Vec<&Value> = (0..3).map(|attempt| &json["attempts"][attempt]["sender"]).collect();
    assert_eq!(senders, ["boss@mail.axial.net", "", "boss@mail.axial.net"], "{json}");
    let earlier = &json["attempts"][2]["copies"][0]["earlier"];
    assert_eq!((&earlier["queue_id"], &earlier["sender"]), (&"4bAHEAD".into(), &"".into()), "{json}");
    let text = trace(directory, &[]);
    let there = |text: &str| {
        let line = text.lines().find(|line| line.starts_with("Already there in INBOX of doug@mail.axial.net: "));
        line.unwrap_or_else(|| panic!("{text}")).to_owned()
    };
    assert!(there(&text).contains("queue id 4bAHEAD on ") && there(&text).ends_with("envelope sender <>."), "{text}");
    // In the table, only that of the attempt that had another one than the message.
    let of_table = |queue_id: &str| {
        let line = text.lines().find(|line| line.contains(&format!(" {queue_id} ")) && !line.starts_with("Already"));
        line.unwrap_or_else(|| panic!("{text}")).to_owned()
    };
    let header = |text: &str| text.lines().find(|line| line.contains("how it ended")).unwrap().to_owned();
    assert!(header(&text).contains("envelope sender") && of_table("4bAHEAD").contains(" <> "), "{text}");
    assert!(!of_table("4bEVE").contains('<') && !of_table("4bBOSS").contains('<'), "{text}");

    // As a program of before the column has journalled it.
    let ledger = rusqlite::Connection::open(directory.join("ledger.sqlite")).unwrap();
    assert_eq!(ledger.execute("UPDATE attempts SET sender = NULL WHERE queue_id = '4bAHEAD'", []).unwrap(), 1);
    assert_eq!(deliver(directory, "boss@mail.axial.net", "4bAGAIN", WORDS).delivered(), "INBOX already there");
    assert_eq!(logged(directory, "4bAGAIN", "earlier_queue_id").as_deref(), Some("4bAHEAD"));
    assert_eq!(logged(directory, "4bAGAIN", "earlier_sender"), None);
    let json = traced();
    let earlier = &json["messages"][0]["attempts"][3]["copies"][0]["earlier"];
    assert_eq!((&earlier["queue_id"], &earlier["sender"]), (&"4bAHEAD".into(), &Value::Null), "{json}");
    let text = trace(directory, &[]);
    assert!(there(&text).ends_with("envelope sender unknown."), "{text}");
    assert!(!header(&text).contains("envelope sender"), "{text}");

    // And once that attempt is forgotten.
    assert_eq!(ledger.execute("DELETE FROM attempts WHERE queue_id = '4bAHEAD'", []).unwrap(), 1);
    assert_eq!(deliver(directory, "boss@mail.axial.net", "4bLATER", WORDS).delivered(), "INBOX already there");
    for field in ["earlier_queue_id", "earlier_sender"] {
        assert_eq!(logged(directory, "4bLATER", field), None);
    }
    assert!(logged(directory, "4bLATER", "earlier_at").is_some());
    let text = trace(directory, &[]);
    assert!(there(&text).contains("an attempt that is no longer kept") && there(&text).ends_with("unknown."), "{text}");
}

#[test]
fn the_page_tells_the_envelope_sender_of_an_attempt_and_of_the_copy_that_it_found_where_the_message_has_another_one() {
    let place = SiteFolder::new();
    deliver_to("eve@mail.axial.net", place.path(), "boss@mail.axial.net", "4bEVE", WORDS).delivered();
    let stranger = "bounce@evil.example";
    deliver(place.path(), stranger, "4bAHEAD", &format!("X-Spam-Flag: YES\n{WORDS}")).delivered();
    assert_eq!(deliver(place.path(), "boss@mail.axial.net", "4bBOSS", WORDS).delivered(), "INBOX already there");
    let json: Value = serde_json::from_str(&trace(place.path(), &["--json"])).unwrap();
    let viewer = place.visitor("viewer");
    let page = text(&viewer.get(&format!("/messages/{}", json["messages"][0]["identity"].as_str().unwrap())).body);
    assert!(page.contains("Envelope sender boss@mail.axial.net "), "{page}");
    assert_eq!(page.matches(&format!(", for doug@mail.axial.net, envelope sender <{stranger}>")).count(), 1, "{page}");
    let (_, there) = page.split_once("(it had been delivered ").unwrap_or_else(|| panic!("{page}"));
    assert!(there.split(')').next().unwrap().ends_with(&format!(", envelope sender <{stranger}>")), "{page}");
    assert_eq!(page.matches(", envelope sender <").count(), 2, "{page}");
}
