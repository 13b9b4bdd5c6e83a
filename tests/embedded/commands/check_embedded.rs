//! `check` on one machine without servers.

use crate::program::{feed, program};
use serde_json::Value as Json;
use std::path::Path;

fn check(directory: &Path) -> (Option<i32>, String) {
    let directory = directory.to_str().unwrap();
    let output = program(&["check", "--all", "--self-test", "--json", "--embedded", directory]).output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap())
}

#[test]
fn an_embedded_site_is_looked_at_too() {
    let directory = tempfile::tempdir().unwrap();
    let (exit, text) = check(directory.path());
    assert!(exit == Some(66) && text.contains("no delivery has been made there"), "{text}");

    let at = directory.path().to_str().unwrap();
    let to = ["--embedded", at, "--sender", "lisa@gmail.com", "--recipient", "doug@mail.axial.net"];
    feed(program(&to), b"From: lisa@gmail.com\nMessage-ID: <1@gmail.com>\n\nx\n").delivered();
    let (exit, text) = check(directory.path());
    assert_eq!(exit, Some(0), "{text}");
    let findings: Vec<Json> = serde_json::from_str(&text).unwrap();
    let state = |what: &str| {
        let found = findings.iter().find(|finding| finding["what"].as_str().unwrap().starts_with(what));
        found.unwrap_or_else(|| panic!("{what}: {text}"))["state"].clone()
    };
    for what in ["database", "file system", "named lock", "migration 0001_schema", "mutual exclusion"] {
        assert_eq!(state(what), "ok", "{what}: {text}");
    }
    // There is no table of addresses, and there are no mailboxes to log in to.
    assert!(!text.contains("addresses") && !text.contains("mailbox"), "{text}");
}
