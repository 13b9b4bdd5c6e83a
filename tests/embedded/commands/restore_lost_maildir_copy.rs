//! `--embedded`: a Maildir that has lost a copy gets it back, once, from another copy of the message.

use crate::program::{feed, program};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::delivery::Manner;
use maildrop_command::ledger::audit_queries::Selection;
use maildrop_command::operations::redelivery;
use maildrop_command::site::Site;
use maildrop_command::site::embedded::Embedded;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

fn files(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_file_that_is_gone_is_there_again() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path().to_str().unwrap();
    let message = b"From: lisa@gmail.com\nMessage-ID: <1@x>\nDate: Mon, 1 Jan 2026 00:00:00 +0000\n\nhello\n";
    for recipient in ["doug@x", "scuba@x"] {
        let command = program(&["--embedded", here, "--sender", "lisa@gmail.com", "--recipient", recipient]);
        feed(command, message).delivered();
    }
    let site = Site::embedded(Embedded::new(directory.path().to_owned()));
    let lost = || {
        let mut database = site.open_database(None, soon()).unwrap();
        redelivery::lost(&site, database.as_mut(), &Selection { since: 0, mailbox: None }, soon()).unwrap()
    };
    let none = lost();
    assert_eq!((none.copies, none.mailboxes, none.gone.len()), (2, 2, 0));

    let new = directory.path().join("doug@x/new");
    let file = files(&new).remove(0);
    let content = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    let lost_now = lost().gone;
    assert_eq!(lost_now.iter().map(|(copy, _)| copy.user.as_str()).collect::<Vec<_>>(), ["doug@x"]);
    assert_eq!(redelivery::restore(&site, &lost_now[0].0, soon()).unwrap(), Manner::Appended(None));
    assert_eq!(redelivery::restore(&site, &lost_now[0].0, soon()).unwrap(), Manner::AlreadyThere);
    assert_eq!(files(&new), std::slice::from_ref(&file));
    assert_eq!(fs::read(file).unwrap(), content);
    assert_eq!(lost().gone.len(), 0);
}

/// A recipient may get a message hours after another has got it: from a busy lock, or a mailbox that was out of reach.
#[test]
fn what_was_delivered_since_counts_however_old_the_message_is() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path().to_str().unwrap();
    let message = b"From: lisa@gmail.com\nMessage-ID: <1@x>\nDate: Mon, 1 Jan 2026 00:00:00 +0000\n\nhello\n";
    for recipient in ["doug@x", "scuba@x"] {
        feed(program(&["--embedded", here, "--sender", "lisa@gmail.com", "--recipient", recipient]), message)
            .delivered();
    }
    let ledger = rusqlite::Connection::open(directory.path().join("ledger.sqlite")).unwrap();
    ledger.execute("UPDATE messages SET recorded_at = recorded_at - 7200000000", []).unwrap();
    ledger.execute("UPDATE copies SET updated_at = updated_at - 7200000000 WHERE imap_user = 'doug@x'", []).unwrap();
    for user in ["doug@x", "scuba@x"] {
        fs::remove_dir_all(directory.path().join(user)).unwrap();
    }
    let restore = |since: &str| {
        let more = ["--restore", "--since", since, "--json"];
        let output = program(&[["replay", "--embedded", here].as_slice(), &more].concat()).output().unwrap();
        let lines = String::from_utf8(output.stdout).unwrap();
        lines.lines().map(|line| line.contains("scuba@x")).collect::<Vec<bool>>()
    };
    assert_eq!(restore("1h"), [true], "scuba's, and not doug's");
    assert_eq!(restore("3h").len(), 2);
}

#[test]
fn of_a_mailbox_that_cannot_be_read_nobody_says_that_nothing_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path().to_str().unwrap();
    let message = b"From: lisa@gmail.com\nMessage-ID: <1@x>\n\nhello\n";
    feed(program(&["--embedded", here, "--sender", "lisa@gmail.com", "--recipient", "doug@x"]), message).delivered();
    let cur = directory.path().join("doug@x/cur");
    fs::remove_dir(&cur).unwrap();
    fs::write(&cur, "").unwrap();
    let look = || program(&["replay", "--embedded", here, "--restore", "--since", "1h"]).output().unwrap();
    let output = look();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(75), "{printed}");
    assert!(
        printed.starts_with("1 of 1 mailboxes could not be looked at") && !printed.contains("nothing is lost"),
        "{printed}"
    );
    fs::remove_file(&cur).unwrap();
    fs::create_dir(&cur).unwrap();
    let output = look();
    assert!(output.status.success() && output.stdout.starts_with(b"nothing is lost"), "{output:?}");
}
