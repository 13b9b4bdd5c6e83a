//! A message to ten recipients on a machine that has just been set up: ten processes make the same directory, the same
//! database and the same tables at the same time.

use crate::support::clients_and_processes::{child, identity, open, subject};
use maildrop_command::ledger::schema::Schema;
use maildrop_command::ledger::{CopyKey, Journal, JournalCopy, Ledger};
use maildrop_command::ledger::{FindingState, Requirements, describe, inspect};
use maildrop_command::lock::LockName;
use maildrop_command::message::Role;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use uuid::Uuid;

fn key() -> CopyKey {
    CopyKey::new(&identity("a message"), Role::Sender, "lisa@mail.axial.net", "Sent")
}

/// Opens the directory and journals an attempt.
#[test]
fn opener() {
    let Some(directory) = subject() else { return };
    let mut database = open(Path::new(&directory));
    let journal = Journal {
        attempt: Uuid::now_v7(),
        identity: &identity("a message"),
        lock: &LockName::new("maildrop", b"1"),
        message_id: "1",
        queue_id: None,
        sender: None,
        host: "mx1.example",
        pid: std::process::id(),
        copies: vec![JournalCopy {
            key: key(),
            role: Role::Sender,
            user: "lisa@mail.axial.net",
            mailbox: "Sent",
            recipient: "doug@mail.axial.net",
            position: None,
        }],
    };
    database.journal(&journal).unwrap();
}

#[test]
fn all_of_them_get_a_working_database() {
    // A race is seldom lost at the first try.
    for _ in 0..10 {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("some/where/mail");
        let processes: Vec<_> = (0..10)
            .map(|_| {
                child("delivery::ten_on_a_new_directory::opener", directory.to_str().unwrap())
                    .stdout(Stdio::null())
                    .stderr(Stdio::piped())
                    .spawn()
                    .unwrap()
            })
            .collect();
        for process in processes {
            let output = process.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        let mut database = open(&directory);
        assert_eq!(database.look(&[key()]).unwrap()[0].open_attempts.len(), 10);
        assert_eq!(database.applied().unwrap().len(), database.known().len());
        for finding in inspect(&mut database, Requirements::default()).unwrap() {
            assert_eq!(finding.state, FindingState::Good, "{finding:?}");
        }
        assert!(describe(&mut database).unwrap().starts_with("SQLite 3."));
        assert_eq!(std::fs::metadata(&directory).unwrap().mode() & 0o7777, 0o700);
        for file in ["ledger.sqlite", "ledger.sqlite-wal"] {
            assert_eq!(std::fs::metadata(directory.join(file)).unwrap().mode() & 0o7777, 0o600, "{file}");
        }
        assert_eq!(std::fs::read_dir(directory.join("locks")).unwrap().count(), 0);
    }
}

/// The switch to WAL wants the database for itself.
#[test]
fn the_switch_to_wal_waits_for_a_reader() {
    let directory = tempfile::tempdir().unwrap();
    let reader = rusqlite::Connection::open(directory.path().join("ledger.sqlite")).unwrap();
    reader.execute_batch("CREATE TABLE x (y); BEGIN; SELECT * FROM x").unwrap();
    let reading = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        reader.execute_batch("COMMIT").unwrap();
    });
    let mut database = open(directory.path());
    assert_eq!(database.applied().unwrap().len(), database.known().len());
    reading.join().unwrap();
}
