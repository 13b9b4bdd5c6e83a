//! `audit --embedded`: what became of copies in Maildirs.

use crate::program::{feed, program};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

const MESSAGE: &[u8] = b"From: lisa@gmail.com\nMessage-ID: <1@x>\nDate: Mon, 1 Jan 2026 00:00:00 +0000\n\nhello\n";

struct Scene(tempfile::TempDir);

impl Scene {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn deliver(&self, recipient: &str) {
        self.deliver_this(recipient, MESSAGE);
    }

    fn deliver_this(&self, recipient: &str, message: &[u8]) {
        let here = self.path().to_str().unwrap();
        let arguments = ["--embedded", here, "--sender", "lisa@gmail.com", "--recipient", recipient];
        feed(program(&arguments), message).delivered();
    }

    fn audit(&self, more: &[&str], exit: i32) -> String {
        let here = self.path().to_str().unwrap();
        let output = program(&[&["audit", "--embedded", here], more].concat()).output().unwrap();
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(exit), "{text}");
        text
    }
}

#[test]
fn a_maildirs_copies_are_there_or_gone() {
    let scene = Scene::new();
    let none = scene.audit(&[], 66);
    assert!(none.contains("holds no ledger"), "{none}");
    for recipient in ["doug@x", "scuba@x", "anna@x"] {
        scene.deliver(recipient);
    }
    let well = scene.audit(&[], 0);
    assert!(well.starts_with("Looked for 3 copies in 3 mailboxes, ") && well.contains("all are there, once"), "{well}");

    let new = scene.path().join("doug@x/new");
    let file = fs::read_dir(new).unwrap().next().unwrap().unwrap().path();
    fs::remove_file(file).unwrap();
    fs::remove_dir_all(scene.path().join("anna@x")).unwrap();
    let shown = scene.audit(&[], 65);
    assert!(shown.contains(": 1 lost, 1 gone, most likely"), "{shown}");
    assert!(shown.contains("the whole mailbox is gone") && shown.contains("INBOX of anna@x"), "{shown}");
    assert!(!scene.path().join("anna@x").exists(), "looking made a Maildir");
    let one = scene.audit(&["--mailbox", "doug@x/INBOX"], 0);
    assert!(one.contains("<1@x>") && one.contains("most likely its owner"), "{one}");
    let found: Value = serde_json::from_str(&scene.audit(&["--json"], 65)).unwrap();
    assert_eq!((&found["copies"], &found["gone"][0]["why"]), (&3.into(), &"no mailbox".into()));
}

/// At three in the morning nobody wants to think of quotes.
#[test]
fn the_command_that_is_reported_can_be_pasted() {
    let scene = Scene(tempfile::Builder::new().prefix("it's here ").tempdir().unwrap());
    for recipient in ["doug@x", "anna@x"] {
        scene.deliver(recipient);
        fs::remove_dir_all(scene.path().join(recipient)).unwrap();
    }
    let shown = scene.audit(&["--mailbox", "anna@x/INBOX"], 65);
    let command = shown.split('`').find(|part| part.starts_with("maildrop_command replay --restore")).expect(&shown);
    let arguments = command.strip_prefix("maildrop_command").unwrap();
    let script = format!("exec \"$0\"{arguments}");
    let output = Command::new("sh").arg("-c").arg(script).arg(program(&[]).get_program()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("of 1 copies in 1 mailboxes, 1 would be delivered again"), "{output:?}");
}

#[test]
fn an_attempt_that_never_ended_is_reported_once_it_is_settled() {
    let scene = Scene::new();
    scene.deliver("doug@x");
    let ledger = rusqlite::Connection::open(scene.path().join("ledger.sqlite")).unwrap();
    ledger.execute("UPDATE attempts SET ended_at = NULL, outcome = NULL", []).unwrap();
    scene.audit(&[], 0);
    ledger.execute("UPDATE attempts SET started_at = started_at - 600000000", []).unwrap();
    let shown = scene.audit(&[], 65);
    assert!(shown.contains(": 1 never ended.") && shown.contains("another attempt has delivered the copy"), "{shown}");
}

/// One mailbox that has lost everything must not bury what others have lost.
#[test]
fn of_one_mailbox_a_few_are_listed_unless_it_was_asked_for() {
    let scene = Scene::new();
    let message = String::from_utf8(MESSAGE.to_vec()).unwrap();
    for number in 1..=7 {
        scene.deliver_this("doug@x", message.replace("<1@x>", &format!("<{number}@x>")).as_bytes());
    }
    fs::remove_dir_all(scene.path().join("doug@x")).unwrap();
    let shown = scene.audit(&[], 65);
    assert_eq!(shown.matches("the whole mailbox is gone").count(), 5, "{shown}");
    assert!(shown.contains("and 2 more") && shown.contains("--mailbox doug@x/INBOX lists them"), "{shown}");
    let all = scene.audit(&["--mailbox", "doug@x/INBOX"], 65);
    assert_eq!(all.matches("the whole mailbox is gone").count(), 7, "{all}");
    let mistyped = scene.audit(&["--mailbox", "Doug"], 0);
    assert!(mistyped.starts_with("No copy for Doug ") && mistyped.contains("as in scuba/INBOX"), "{mistyped}");
}
