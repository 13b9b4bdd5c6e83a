//! Who a message is from and to, as pipe(8) and local(8) say it.

use crate::program::{Outcome, feed, program};
use std::path::{Path, PathBuf};

const MESSAGE: &str = "From: lisa@gmail.com\nMessage-ID: <123-abc@mail.google.com>\nSubject: Hello\n\nHello\n";

/// A directory for `--embedded`.
struct SiteFolder(tempfile::TempDir);

impl SiteFolder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Delivers with these arguments and this environment.
    fn deliver(&self, arguments: &[&str], environment: &[(&str, &str)], message: &str) -> Outcome {
        let mut command = program(&["--embedded", self.path().to_str().unwrap()]);
        command.args(arguments).envs(environment.iter().copied());
        feed(command, message.as_bytes())
    }

    /// What is in somebody's INBOX.
    fn inbox(&self, name: &str) -> Vec<PathBuf> {
        let Ok(new) = std::fs::read_dir(self.path().join(name).join("new")) else { return Vec::new() };
        new.map(|entry| entry.unwrap().path()).collect()
    }

    fn senders(&self) -> Vec<String> {
        let ledger = rusqlite::Connection::open(self.path().join("ledger.sqlite")).unwrap();
        let mut query = ledger.prepare("SELECT sender FROM messages ORDER BY id").unwrap();
        query.query_map((), |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }
}

#[test]
fn the_null_sender_has_three_spellings() {
    let place = SiteFolder::new();
    for (number, sender) in ["", "<>", "MAILER-DAEMON", "mailer-daemon"].into_iter().enumerate() {
        let message = MESSAGE.replace("123-abc", &number.to_string());
        place.deliver(&["--sender", sender, "--recipient", "doug@mail.axial.net"], &[], &message).delivered();
    }
    // Only the bare word: with a domain it is somebody.
    place.deliver(&["--sender", "MAILER-DAEMON@x", "--recipient", "doug@mail.axial.net"], &[], MESSAGE).delivered();
    assert_eq!(place.senders(), ["", "", "", "", "MAILER-DAEMON@x"]);
    assert_eq!(place.inbox("doug@mail.axial.net").len(), 5);
}

#[test]
fn under_local_the_environment_says_it() {
    let place = SiteFolder::new();
    let environment = [("RECIPIENT", "doug@mail.axial.net"), ("SENDER", "lisa@gmail.com")];
    // local(8) puts an mbox line before the message.
    let message = format!("From lisa@gmail.com  Fri Nov 20 13:00:00 2026\n{MESSAGE}");
    place.deliver(&[], &environment, &message).delivered();
    assert_eq!(std::fs::read_to_string(&place.inbox("doug@mail.axial.net")[0]).unwrap(), MESSAGE);
    assert_eq!(place.senders(), ["lisa@gmail.com"]);
    // The null sender, there: an empty $SENDER.
    let bounce = MESSAGE.replace("123", "456");
    place.deliver(&[], &[("RECIPIENT", "doug@mail.axial.net"), ("SENDER", "")], &bounce).delivered();
    assert_eq!(place.senders(), ["lisa@gmail.com", ""]);
    // What the options say counts more.
    place.deliver(&["--recipient", "scuba@x", "--sender", "a@b"], &environment, MESSAGE).delivered();
    assert_eq!((place.inbox("doug@mail.axial.net").len(), place.inbox("scuba@x").len()), (2, 1));
}

#[test]
fn a_missing_or_senseless_envelope_is_deferred() {
    let place = SiteFolder::new();
    for (arguments, expected) in [
        (&["--sender", "lisa@gmail.com"][..], "no envelope recipient"),
        (&["--sender", "lisa@gmail.com", "--recipient", ""], "no envelope recipient"),
        (&["--recipient", "doug@x"], "no envelope sender"),
        (&[], "no envelope recipient"),
        (&["--sender", "", "--recipient", "doug"], "the envelope recipient: it has no @domain"),
        (&["--sender", "", "--recipient", "@x"], "the envelope recipient: its local part or its domain is empty"),
        (&["--sender", "", "--recipient", "a\nb@x"], "the envelope recipient: it holds a control character"),
    ] {
        let outcome = place.deliver(arguments, &[], MESSAGE);
        let text = outcome.deferred("4.3.5 ");
        assert!(text.starts_with(expected), "{arguments:?}: {text}");
    }
    // Nothing of a message is believed unasked.
    let message = format!("Delivered-To: doug@x\nX-Original-To: doug@x\n{MESSAGE}");
    place.deliver(&["--sender", ""], &[], &message).deferred("4.3.5 no envelope recipient");
    assert!(place.inbox("doug@x").is_empty());
}

#[test]
fn a_header_names_the_recipient_only_where_configured_and_only_the_topmost_line() {
    let place = SiteFolder::new();
    let arguments = ["--sender", "lisa@gmail.com", "--recipient-header", "Delivered-To"];
    // pipe(8) puts its own line at the top; those below are the sender's to choose.
    let message = format!(
        "Return-Path: <lisa@gmail.com>\nDelivered-To: doug@mail.axial.net\nX-A: b\ndelivered-to: \
         victim@x\n{MESSAGE}\nDelivered-To: scuba@x\n"
    );
    place.deliver(&arguments, &[], &message).delivered();
    assert_eq!((place.inbox("doug@mail.axial.net").len(), place.inbox("victim@x").len()), (1, 0));
    place.deliver(&arguments, &[], MESSAGE).deferred("4.3.5 the message has no Delivered-To line");
    // Whatever the environment says: it is not asked.
    place
        .deliver(&arguments, &[("RECIPIENT", "victim@x")], MESSAGE)
        .deferred("4.3.5 the message has no Delivered-To line");
    // The body is no header.
    place
        .deliver(&arguments, &[], &format!("{MESSAGE}\nDelivered-To: victim@x\n"))
        .deferred("4.3.5 the message has no Delivered-To line");
    assert!(place.inbox("victim@x").is_empty());
}

/// pipe(8) hands over what the sender wrote, unquoted.
#[test]
fn odd_addresses_are_addresses() {
    let place = SiteFolder::new();
    let long = format!("{}@mail.axial.net", "x".repeat(250));
    for (recipient, user) in [
        ("--config@mail.axial.net", "--config@mail.axial.net"),
        ("-h@mail.axial.net", "-h@mail.axial.net"),
        ("Doug@Mail.Axial.NET", "doug@mail.axial.net"),
        ("doug+lists@mail.axial.net", "doug+lists@mail.axial.net"),
        ("two words@mail.axial.net", "two%20words@mail.axial.net"),
        ("a@b@mail.axial.net", "a@b@mail.axial.net"),
        ("../../etc/passwd@mail.axial.net", "%2E./../etc/passwd@mail.axial.net"),
        ("o'hara\"; DROP TABLE messages; --@mail.axial.net", ""),
        ("gr\u{fc}\u{df}e@mail.axial.net", "gr%C3%BC%C3%9Fe@mail.axial.net"),
        ("doug@[192.0.2.1]", "doug@%5B192.0.2.1%5D"),
        (&long, ""),
    ] {
        let outcome = place.deliver(&["--sender", "-@x", "--recipient", recipient], &[], MESSAGE);
        assert_eq!(outcome.delivered(), "INBOX appended", "{recipient}");
        if !user.is_empty() && !user.contains('/') {
            assert_eq!(place.inbox(user).len(), 1, "{recipient}");
        }
    }
    // One level deep, each a mailbox; and nothing beside the directory.
    let maildirs =
        std::fs::read_dir(place.path()).unwrap().filter(|entry| entry.as_ref().unwrap().path().join("new").is_dir());
    assert_eq!(maildirs.count(), 11);
    assert_eq!(place.senders(), ["-@x"]);
}

/// The sender is for the record only, whatever it is.
#[test]
fn an_unreadable_sender_holds_nothing_up() {
    use std::os::unix::ffi::OsStrExt;
    let place = SiteFolder::new();
    let mut command = program(&["--embedded", place.path().to_str().unwrap(), "--recipient", "doug@x", "--sender"]);
    command.arg(std::ffi::OsStr::from_bytes(b"l\xefsa@x"));
    feed(command, MESSAGE.as_bytes()).delivered();
    for sender in ["nobody", "a\u{1b}[31mb@x", &"y".repeat(5000)] {
        let message = MESSAGE.replace("123", &sender.len().to_string());
        place.deliver(&["--recipient", "doug@x", "--sender", sender], &[], &message).delivered();
    }
    let senders = place.senders();
    assert_eq!(senders[..3], ["l\u{fffd}sa@x", "nobody", "a[31mb@x"]);
    assert_eq!(senders[3], "y".repeat(320));
}
