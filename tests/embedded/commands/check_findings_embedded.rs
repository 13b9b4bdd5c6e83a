//! What `check` says of a directory, its database and its locks.

use crate::support::clients_and_processes::open;
use maildrop_command::ledger::{Finding, FindingState, Requirements, describe, inspect, server};

#[test]
fn what_is_in_order_has_nothing_to_fix() {
    let directory = tempfile::tempdir().unwrap();
    let mut database = open(directory.path());
    assert_eq!(server(&mut database).unwrap(), directory.path().join("ledger.sqlite").display().to_string());
    assert!(describe(&mut database).unwrap().starts_with("SQLite 3."));
    let good = |what: &str, found: &str| Finding {
        what: what.into(),
        state: FindingState::Good,
        found: found.into(),
        fix: None,
    };
    assert_eq!(
        inspect(&mut database, Requirements::default()).unwrap(),
        [
            good("file system", "of this machine"),
            good("named lock", "taken, still held, let go"),
            good("migration 0001_schema", "applied"),
        ]
    );
}
