//! Nobody learns of a blind copy to somebody else: whichever copy the ledger keeps, nothing of it that names another recipient is shown, or
//! appended for anybody but its own mailbox.

use crate::program::{feed, program};
use crate::support::clients_and_processes;
use crate::visitor::{Page, Visitor, copies, text};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::delivery::Manner;
use maildrop_command::ledger::audit_queries::Selection;
use maildrop_command::message::Identity;
use maildrop_command::operations::redelivery;
use maildrop_command::site::Site;
use maildrop_command::site::embedded::Embedded;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

const BLIND: &str = "whistleblower@y.example";
const OPEN: &str = "doug@x.example";
const AUTHOR: &str = "lisa@z.example";
const DATE: &str = "Date: Mon, 1 Jan 2026 00:00:00 +0000\r\n";
const ID: &str = "Message-ID: <1@z.example>\r\n";

/// What the author wrote, but for a Bcc.
fn letter(more: &str) -> String {
    format!("From: <{AUTHOR}>\r\nTo: {OPEN}\r\nSubject: figures\r\n{more}\r\nhello\r\n")
}

/// One recipient's copy, as Postfix and pipe(8) hand it over; for a blind recipient with the Bcc that some mail programs leave in.
fn copy_for(recipient: &str, letter: &str) -> String {
    let bcc = if recipient == BLIND { format!("Bcc: {BLIND}\r\n") } else { String::new() };
    format!(
        "Return-Path: <{AUTHOR}>\r\nX-Original-To: {recipient}\r\nDelivered-To: {recipient}\r\n\
         Received: from a by mx (Postfix) with ESMTPS id 4b\r\n\tfor <{recipient}>; Mon, 1 Jan 2026 00:00:00 +0000\r\n{bcc}{letter}"
    )
}

/// The letter with the Received line that is left in the filtered form.
fn filtered(letter: &str) -> String {
    format!("Received: from a by mx (Postfix) with ESMTPS id 4b; Mon, 1 Jan 2026 00:00:00 +0000\r\n{letter}")
}

struct SiteFolder {
    directory: TempDir,
    page: Page,
}

impl SiteFolder {
    /// Both have got it, in this order.
    fn delivered(order: [&str; 2], letter: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        clients_and_processes::open(directory.path());
        let page = Page::of(&Site::embedded(Embedded::new(directory.path().to_owned())));
        let place = Self { directory, page };
        for recipient in order {
            place.deliver(recipient, &copy_for(recipient, letter));
        }
        place
    }

    fn deliver(&self, recipient: &str, message: &str) {
        let here = self.directory.path().to_str().unwrap();
        let command = program(&["--embedded", here, "--sender", AUTHOR, "--recipient", recipient]);
        feed(command, message.as_bytes()).delivered();
    }

    fn files(&self, mailbox: &str) -> Vec<PathBuf> {
        let files = |part: &str| fs::read_dir(self.directory.path().join(mailbox).join(part)).unwrap();
        ["new", "cur"].iter().flat_map(|part| files(part)).map(|entry| entry.unwrap().path()).collect()
    }

    fn lose(&self, mailbox: &str) {
        for file in self.files(mailbox) {
            fs::remove_file(file).unwrap();
        }
    }

    /// What this mailbox has lost is restored, one copy; what is there then.
    fn restored(&self, mailbox: &str) -> Vec<String> {
        let site = Site::embedded(Embedded::new(self.directory.path().to_owned()));
        let soon = || Deadline::after(Duration::from_secs(60));
        let mut database = site.open_database(None, soon()).unwrap();
        let lost =
            redelivery::lost(&site, database.as_mut(), &Selection { since: 0, mailbox: None }, soon()).unwrap().gone;
        let [(lost, _)] = lost.as_slice() else { panic!("{lost:?}") };
        assert_eq!(redelivery::restore(&site, lost, soon()).unwrap(), Manner::Appended(None));
        // It is known for the same message: nothing is duplicated.
        assert_eq!(redelivery::restore(&site, lost, soon()).unwrap(), Manner::AlreadyThere);
        self.contents(mailbox)
    }

    fn contents(&self, mailbox: &str) -> Vec<String> {
        self.files(mailbox).iter().map(|file| fs::read_to_string(file).unwrap().replace('\n', "\r\n")).collect()
    }

    fn visitor(&self, role: &str) -> Visitor<'_> {
        let here = self.directory.path().to_str().unwrap();
        let output = program(&["web", "login", "--embedded", here, "--name", "anna", "--role", role]).output().unwrap();
        self.page.log_in(&String::from_utf8(output.stdout).unwrap())
    }
}

fn path_of(message: &str) -> String {
    let identity = Identity::of(message.as_bytes());
    format!("/messages/{}", identity.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

#[test]
fn the_web_ui_and_the_ledger_show_nobody_else_s_blind_copy_in_any_order() {
    // Where the identity covers Received, no filtered form of that identity could be without; what is shown is, all the same.
    for letter in [letter(&format!("{ID}{DATE}")), letter(ID)] {
        for order in [[BLIND, OPEN], [OPEN, BLIND]] {
            let place = SiteFolder::delivered(order, &letter);
            let reader = place.visitor("reader");
            for recipient in order {
                let path = path_of(&copy_for(recipient, &letter));
                let (content, source) = (format!("{path}/content"), format!("{path}/source"));
                let shown = reader.get(&content);
                assert!(text(shown.shown()).contains("figures"), "{}", shown.body);
                assert_eq!(reader.get(&source).shown(), filtered(&letter));
                for (name, hidden) in [("content", &shown.body), ("source", &reader.get(&source).body)] {
                    let names = |address: &str| hidden.contains(address) && !(address == OPEN && letter.contains(OPEN));
                    assert!(!names(BLIND), "{name}, {order:?}: {hidden}");
                    for field in ["Bcc", "Delivered-To:", "Return-Path:", "X-Original-To:"] {
                        assert!(!hidden.contains(&format!("\n{field}")), "{name}, {order:?}, {field}: {hidden}");
                    }
                }
            }
            // What API and webhooks show comes from here.
            let ledger = rusqlite::Connection::open(place.directory.path().join("ledger.sqlite")).unwrap();
            let headers: Vec<String> = {
                let mut rows = ledger.prepare("SELECT headers FROM messages").unwrap();
                rows.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
            };
            assert!(!headers.is_empty());
            for headers in headers {
                assert!(headers.contains("figures") && headers.contains("with ESMTPS id 4b; Mon"), "{headers}");
                assert!(!headers.contains(BLIND) && !headers.contains("for <"), "{headers}");
            }
        }
    }
}

#[test]
fn what_a_mailbox_has_lost_comes_back_without_a_trace_of_whose_copy_it_was_taken_from() {
    let letter = letter(&format!("{ID}{DATE}"));
    for order in [[BLIND, OPEN], [OPEN, BLIND]] {
        for lost in [OPEN, BLIND] {
            let place = SiteFolder::delivered(order, &letter);
            place.lose(lost);
            assert_eq!(place.restored(lost), [filtered(&letter)], "{order:?}");
            // The other one's is as it came, and once that is lost, too, it comes from the filtered one.
            let other = if lost == OPEN { BLIND } else { OPEN };
            assert_eq!(place.contents(other), [copy_for(other, &letter)]);
            place.lose(other);
            assert_eq!(place.restored(other), [filtered(&letter)]);
        }
    }
}

/// A mail program saves what it sends with the Bcc, in the author's own Sent mailbox: that is the author's to keep, and nobody else's.
#[test]
fn the_bcc_in_an_authors_own_sent_copy_stays_there() {
    let letter = letter(&format!("{ID}{DATE}"));
    // With a mailbox here, the author has a Sent mailbox.
    let place =
        SiteFolder::delivered([AUTHOR, AUTHOR], "From: ada@x.example\r\nMessage-ID: <0@x.example>\r\n\r\nx\r\n");
    for recipient in [OPEN, "ada@x.example"] {
        place.deliver(recipient, &copy_for(recipient, &letter));
    }
    let sent = format!("{AUTHOR}/.Sent");
    let [file] = place.files(&sent).try_into().unwrap();
    fs::write(&file, format!("Bcc: {BLIND}\n{}", letter.replace("\r\n", "\n"))).unwrap();
    for lost in [OPEN, "ada@x.example"] {
        place.lose(lost);
    }
    let site = Site::embedded(Embedded::new(place.directory.path().to_owned()));
    let soon = || Deadline::after(Duration::from_secs(60));
    let mut database = site.open_database(None, soon()).unwrap();
    let lost = redelivery::lost(&site, database.as_mut(), &Selection { since: 0, mailbox: None }, soon()).unwrap().gone;
    assert_eq!(lost.len(), 2);
    for (lost, _) in &lost {
        assert_eq!(redelivery::restore(&site, lost, soon()).unwrap(), Manner::Appended(None));
    }
    for recipient in [OPEN, "ada@x.example"] {
        assert_eq!(place.contents(recipient), std::slice::from_ref(&letter));
    }
    assert_eq!(place.contents(&sent), [format!("Bcc: {BLIND}\r\n{letter}")]);
}

/// Of a message without Date the Received lines are part of what identifies it: changed, it would be another message,
/// and delivered twice.
#[test]
fn where_received_identifies_the_message_it_is_appended_unchanged_and_the_web_ui_asks_before() {
    let letter = letter(ID);
    // Of one queue file, which has no `for` where it has several recipients; the other one's came with a Bcc.
    let received = "Received: from a by mx for <team@y.example>; Mon, 1 Jan 2026 00:00:00 +0000\r\n";
    let message = format!("{received}{letter}");
    let place = SiteFolder::delivered([BLIND, OPEN], &letter);
    for recipient in [BLIND, OPEN] {
        place.lose(recipient);
        place.deliver(recipient, &format!("Delivered-To: {recipient}\r\n{message}"));
    }
    let anna = place.visitor("operator");
    place.lose(OPEN);
    let screen = anna.get(&path_of(&message)).shown().to_owned();
    let restore: Vec<String> = copies(&screen).into_iter().filter(|one| one.contains("restore")).collect();
    let plan = anna.post("/again/plan", &restore.join("&"));
    let page_text = text(plan.shown());
    assert!(page_text.contains("its Received fields may name another recipient"), "{page_text}");
    // Nothing is chosen unless somebody does.
    let form = &plan.body[plan.body.find("/again/start").unwrap()..];
    assert!(form.contains("type=\"checkbox\" name=\"copy\"") && !form.contains("checked"), "{form}");
    assert!(text(&anna.post("/again/start", "").body).contains("Nothing was selected"));
    assert!(place.files(OPEN).is_empty());
    let confirmed = anna.confirm(&plan.body);
    assert!(confirmed.contains("DELIVERED to INBOX of doug@x.example"), "{confirmed}");
    assert_eq!(place.contents(OPEN), [message]);
}

/// What is distinguished by Message-ID and Date is not asked about.
#[test]
fn the_web_ui_asks_nothing_where_nothing_can_be_disclosed() {
    let letter = letter(&format!("{ID}{DATE}"));
    let place = SiteFolder::delivered([BLIND, OPEN], &letter);
    let anna = place.visitor("operator");
    place.lose(OPEN);
    let screen = anna.get(&path_of(&letter)).shown().to_owned();
    let plan = anna.post("/again/plan", &copies(&screen).join("&"));
    assert!(!plan.shown().contains("another recipient"), "{}", plan.body);
    assert!(anna.confirm(&plan.body).contains("DELIVERED to INBOX of doug@x.example"));
    assert_eq!(place.contents(OPEN), [filtered(&letter)]);
}

/// The path of a file is what somebody replays: it is delivered as it is there.
#[test]
fn what_is_replayed_from_a_file_is_delivered_as_the_file_has_it() {
    let letter = letter(&format!("{ID}{DATE}"));
    let place = SiteFolder::delivered([OPEN, "ada@x.example"], &letter);
    let file = place.directory.path().join("message");
    let message = format!("Received: by mx for <{BLIND}>; Mon, 1 Jan 2026 00:00:00 +0000\r\nBcc: {BLIND}\r\n{letter}");
    fs::write(&file, &message).unwrap();
    replay(place.directory.path(), &["--recipient", "eve@x.example", "--sender", AUTHOR, file.to_str().unwrap()]);
    assert_eq!(place.contents("eve@x.example"), [message]);
}

fn replay(directory: &Path, arguments: &[&str]) {
    let output =
        program(&[&["replay", "--embedded", directory.to_str().unwrap()], arguments].concat()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
