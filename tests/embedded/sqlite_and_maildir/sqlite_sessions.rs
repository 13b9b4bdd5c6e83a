//! SQLite and file locks: one session serves one delivery after another, and none of them leaves anything to the next.

use crate::support::clients_and_processes::{client, open, soon};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::database::{DatabaseFailure, Idle, SqliteDatabase, Tables};
use maildrop_command::lock::{Acquired, LockName, NamedLock};
use std::path::Path;
use std::time::Duration;

fn name() -> LockName {
    LockName::new("maildrop", b"123-abc@mail.google.com")
}

fn take(database: &mut SqliteDatabase) {
    assert!(matches!(database.acquire(&name(), Duration::ZERO).unwrap(), Acquired::Held));
}

fn boxed(directory: &Path) -> Box<SqliteDatabase> {
    Box::new(open(directory))
}

#[test]
fn the_lock_tells_of_the_delivery_that_holds_it_and_waits_by_its_deadline() {
    let directory = tempfile::tempdir().unwrap();
    let mut database = boxed(directory.path());
    take(&mut database);
    database.release(&name()).unwrap();
    let idle = Idle::after(database).unwrap();
    let mut onlooker = open(directory.path());
    assert_eq!(onlooker.holder(&name()).unwrap(), None);

    let mut database = idle.begin(&client("SECOND"), soon()).unwrap();
    take(&mut database);
    assert_eq!(onlooker.holder(&name()).unwrap().unwrap().queue_id.as_deref(), Some("SECOND"));
    database.release(&name()).unwrap();

    // A deadline that has passed ends whatever would wait, and leaves the session in doubt.
    let mut database = Idle::after(database).unwrap().begin(&client("THIRD"), Deadline::after(Duration::ZERO)).unwrap();
    let error = database.select("asking", "SELECT 1", &[]).unwrap_err();
    assert_eq!(error.failure, DatabaseFailure::TimedOut, "{error}");
    assert!(Idle::after(database).is_none());
}

#[test]
fn a_session_with_anything_left_is_thrown_away() {
    let directory = tempfile::tempdir().unwrap();
    let leave = |what: &str, leave: &mut dyn FnMut(&mut SqliteDatabase)| {
        let mut database = boxed(directory.path());
        leave(&mut database);
        assert!(Idle::after(database).is_none(), "{what}");
        // It is closed, and with it whatever it held.
        let mut next = open(directory.path());
        take(&mut next);
        next.change("writing", "DELETE FROM unknown_recipients", &[]).unwrap();
    };
    leave("a lock", &mut |database| take(database));
    leave("a lock taken twice", &mut |database| {
        take(database);
        take(database);
        database.release(&name()).unwrap();
        take(database);
    });
    leave("a lock that was kept for longer", &mut |database| {
        take(database);
        database.keep(Duration::from_secs(20)).unwrap();
        database.release(&name()).unwrap();
    });
    leave("a transaction", &mut |database| {
        database.select("leaving a transaction", "BEGIN IMMEDIATE", &[]).unwrap();
    });
    leave("an error", &mut |database| {
        database.select("asking", "SELECT nonsense", &[]).unwrap_err();
    });
}
