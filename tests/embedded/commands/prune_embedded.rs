//! `prune` on one machine without servers: what tests/server_tests/commands/prune.rs shows on the other engines, on SQLite.

use crate::program::{feed, program};
use crate::support::clients_and_processes;
use maildrop_command::lock::{Acquired, DEFAULT_NAMESPACE, LockName, NamedLock};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

fn message(id: &str) -> String {
    format!("From: lisa@gmail.com\nMessage-ID: <{id}@mail.google.com>\nSubject: {id}\n\n{id}\n")
}

fn deliver(directory: &Path, id: &str) -> crate::program::Outcome {
    let directory = directory.to_str().unwrap();
    let command = program(&["--embedded", directory, "--sender", "lisa@gmail.com", "--recipient", "doug@x"]);
    feed(command, message(id).as_bytes())
}

fn pruned(directory: &Path, kind: &str) -> Value {
    let ages = ["--messages-older-than", "400d", "--attempts-older-than", "30d", "--sources-older-than", "7d"];
    let output = program(&["prune", "--json", "--embedded", directory.to_str().unwrap()]).args(ages).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let all: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    all.into_iter().find(|done| done["what"] == kind).unwrap()
}

/// Makes it 500 days later.
fn time_passes(ledger: &rusqlite::Connection) {
    const SPAN: i64 = 500 * 86_400_000_000;
    let attempts: Vec<Vec<u8>> = ledger
        .prepare("SELECT attempt FROM attempts")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    for attempt in attempts {
        let now = u128::from_be_bytes(attempt.as_slice().try_into().unwrap());
        let then = now - (((SPAN / 1000) as u128) << 80);
        ledger
            .execute("UPDATE attempts SET attempt = ? WHERE attempt = ?", (&then.to_be_bytes()[..], &attempt))
            .unwrap();
    }
    for columns in [
        "attempts SET started_at = started_at - ?1, ended_at = ended_at - ?1",
        "messages SET recorded_at = recorded_at - ?1",
        "copies SET updated_at = updated_at - ?1",
    ] {
        ledger.execute(&format!("UPDATE {columns}"), [SPAN]).unwrap();
    }
}

#[test]
fn what_is_old_is_forgotten_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    for id in ["old", "owed", "died", "held", "heard"] {
        deliver(directory, id).delivered();
    }
    let ledger = rusqlite::Connection::open(directory.join("ledger.sqlite")).unwrap();
    let change = |sql: &str| ledger.execute(sql, ()).unwrap();
    change(
        "UPDATE copies SET state = 'owed' WHERE message = (SELECT id FROM messages WHERE message_id LIKE '<owed@%')",
    );
    change("UPDATE attempts SET ended_at = NULL, outcome = NULL WHERE message_id LIKE '<died@%'");
    change("INSERT INTO message_sources SELECT id, x'00' FROM messages WHERE message_id LIKE '<o%'");
    time_passes(&ledger);
    deliver(directory, "young").delivered();
    deliver(directory, "heard").delivered();
    let mut holder = clients_and_processes::open(directory);
    let held = LockName::new(DEFAULT_NAMESPACE, b"held@mail.google.com");
    assert!(matches!(holder.acquire(&held, Duration::ZERO).unwrap(), Acquired::Held));

    let short = program(&["prune", "--messages-older-than", "5d", "--embedded", directory.to_str().unwrap()]).output();
    assert_eq!(short.unwrap().status.code(), Some(64));
    // Attempts and sources go before messages.
    let done = pruned(directory, "messages");
    assert_eq!(
        (&done["removed"], &done["kept_owed"], &done["kept_locked"]),
        (&1.into(), &1.into(), &1.into()),
        "{done}"
    );
    assert_eq!(done["kept_referenced"], 2);
    let texts = |sql: &str| -> Vec<String> {
        let mut statement = ledger.prepare(sql).unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    let known = "SELECT substr(message_id, 2, instr(message_id, '@') - 2) FROM";
    assert_eq!(texts(&format!("{known} messages ORDER BY 1")), ["died", "heard", "held", "owed", "young"]);
    assert_eq!(texts(&format!("{known} attempts ORDER BY 1")), ["died", "heard", "young"]);
    let sources = "SELECT m.message_id FROM messages m JOIN message_sources s ON s.message_id = m.id";
    assert_eq!(texts(sources), ["<owed@mail.google.com>"]);

    holder.release(&held).unwrap();
    assert_eq!(pruned(directory, "messages")["removed"], 1);
    for id in ["young", "heard", "owed"] {
        let outcome = deliver(directory, id);
        let shown = outcome.delivered();
        assert!(shown.starts_with(if id == "owed" { "INBOX app" } else { "INBOX already there" }), "{id}: {shown}");
    }
    assert!(deliver(directory, "old").delivered().starts_with("INBOX appended"));
}
