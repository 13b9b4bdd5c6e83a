//! What `check` says of a directory, its database and its locks.

use crate::support::clients_and_processes::open;
use maildrop_command::ledger::{Finding, FindingState, Requirements, describe, inspect, server};
use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;

#[test]
fn what_is_in_order_has_nothing_to_fix() {
    let directory = tempfile::tempdir().unwrap();
    set_permissions(directory.path(), Permissions::from_mode(0o700)).unwrap();
    let mut database = open(directory.path());
    let name = directory.path().display().to_string();
    assert_eq!(server(&mut database).unwrap(), name);
    assert!(describe(&mut database).unwrap().starts_with("SQLite 3."));
    let mut findings = inspect(&mut database, Requirements::default()).unwrap();
    // Which one it is, is this machine's.
    let file_system = findings.remove(3);
    assert_eq!(
        (file_system.what.as_str(), file_system.state, file_system.fix),
        ("file system", FindingState::Good, None)
    );
    let good = |what: &str, found: &str| Finding {
        what: what.into(),
        state: FindingState::Good,
        found: found.into(),
        fix: None,
    };
    assert_eq!(
        findings,
        [
            good("journal_mode", "wal"),
            good("synchronous", "2"),
            good(&format!("mode of {name}"), "0700"),
            good("named lock", "taken, still held, let go"),
            good("migration 0001_schema", "applied"),
        ]
    );
}

#[test]
fn what_is_not_in_order_is_reported_with_what_fixes_it() {
    let directory = tempfile::tempdir().unwrap();
    let name = directory.path().display().to_string();
    let mut database = open(directory.path());
    for (mode, state) in [(0o750, FindingState::Warning), (0o705, FindingState::Warning), (0o2700, FindingState::Good)]
    {
        set_permissions(directory.path(), Permissions::from_mode(mode)).unwrap();
        let findings = inspect(&mut database, Requirements::default()).unwrap();
        let found = findings.iter().find(|finding| finding.what == format!("mode of {name}")).unwrap();
        assert_eq!((found.state, found.found.clone()), (state, format!("{mode:04o}")));
        assert_eq!(found.fix.is_some(), state == FindingState::Warning);
        if let Some(fix) = &found.fix {
            assert_eq!(fix, &format!("chmod 0700 {name}"));
        }
    }
}
