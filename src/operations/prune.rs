//! Removes old rows (`ledger::retention` has the SQL), and nothing that a delivery may still need:
//!
//! 1. An open attempt stays. No delivery reads an ended one.
//! 2. A message is removed under its own lock. Every delivery that reads the message or records a copy of it holds that lock. So
//!    no delivery reads half of a message, or records a copy of a removed one.
//! 3. A delivery that is about to take the lock already has its attempt in the journal. The query under the lock has a snapshot
//!    of its own, so it finds that attempt, and the message stays. A later delivery waits for the lock, and records a new
//!    message.

use crate::base::text_enum::text_enum;
use crate::config::Retention;
use crate::database::{DatabaseError, DatabaseFailure};
use crate::ledger::retention::{self, OldAttempts, OldEvents, OldMessage, OldMessages, OldSources};
use crate::ledger::{Database, Record, failures, time_span};
use crate::lock::Acquired;
use serde::Serialize;
use std::time::Duration;

text_enum! {
    /// The kinds of rows that are removed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub(crate) enum Kind {
        /// Attempts that have ended, and submissions to the API.
        Attempts = "attempts",
        Sources = "sources",
        /// Messages with their copies, sources and attempts.
        Messages = "messages",
        /// Events with their pending notifications and their notification attempts.
        Events = "events",
        /// Rows of the operations log.
        Operations = "operations",
        /// Deliveries that failed before their journal.
        Failures = "failures",
    }
}

/// How many rows of one kind were removed, or would be, and how many were kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Pruned {
    #[serde(rename = "what")]
    pub(crate) kind: Kind,
    #[serde(skip)]
    pub(crate) age: Duration,
    /// `age` before now, by the database's clock, in microseconds since 1970.
    #[serde(serialize_with = "crate::base::timestamp::serialize")]
    pub(crate) before: i64,
    /// The number of removed rows; for messages, the number of messages.
    pub(crate) removed: u64,
    /// The number of rows that a dry run would remove.
    pub(crate) would_remove: Option<u64>,
    /// Attempts that never ended.
    #[serde(rename = "kept_open")]
    pub(crate) open: u64,
    /// Messages, or their sources, with an owed copy.
    #[serde(rename = "kept_owed")]
    pub(crate) owed: u64,
    /// Messages that were referenced later, or that have an attempt that never ended.
    pub(crate) kept_referenced: u64,
    /// Messages whose lock was held.
    #[serde(rename = "kept_locked")]
    pub(crate) locked: u64,
}

/// The kinds for which `retention` has an age, and the failures, which are not kept for longer by any site.
pub(crate) fn kinds(retention: &Retention) -> Vec<(Kind, Duration)> {
    let ages = [
        (Kind::Attempts, retention.attempts_older_than),
        (Kind::Sources, retention.sources_older_than),
        (Kind::Messages, retention.messages_older_than),
        (Kind::Events, retention.events_older_than),
        (Kind::Operations, retention.operations_older_than),
        (Kind::Failures, Some(failures::RETENTION)),
    ];
    ages.into_iter().filter_map(|(kind, age)| Some((kind, age?))).collect()
}

/// Counts the rows of one kind that [`prune`] would remove.
pub(crate) fn dry_run(database: &mut dyn Database, kind: Kind, age: Duration) -> Result<Pruned, DatabaseError> {
    let before = before(database, age)?;
    let would_remove = match kind {
        Kind::Attempts => {
            retention::count_attempts(database, before, true)? + retention::count_submissions(database, before)?
        }
        Kind::Sources => retention::count_sources(database, before, false)?,
        Kind::Messages => retention::count_messages(database, before, false)?,
        Kind::Events => retention::count_events(database, before)?,
        Kind::Operations => retention::count_operations(database, before)?,
        Kind::Failures => retention::count_failures(database, before)?,
    };
    Ok(Pruned { would_remove: Some(would_remove), ..kept(database, kind, age, before)? })
}

/// Removes rows older than `age` by the database's clock, in small batches. Each batch is a transaction of its own, with a
/// `pause` after it. After each batch `progress` receives the number of removed rows. If it returns `false`, the work stops, and
/// the kept rows are not counted.
///
/// # Errors
/// If the database fails, or if our role may not delete. Earlier batches stay removed.
pub(crate) fn prune(
    database: &mut dyn Database,
    kind: Kind,
    age: Duration,
    pause: Duration,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<Pruned, DatabaseError> {
    let before = before(database, age)?;
    let tables: &[&str] = match kind {
        Kind::Attempts => &["attempts", "submissions"],
        Kind::Sources => &["message_sources"],
        Kind::Messages => &["attempts", "message_sources", "copies", "message_addresses", "messages"],
        Kind::Events => &["notifications", "notification_attempts", "events"],
        Kind::Operations => &["operations"],
        Kind::Failures => &["failures"],
    };
    retention::try_right(database, tables)?;
    let (mut removed, mut locked, mut stopped) = (0, 0, false);
    let mut attempts = OldAttempts::before(before);
    let mut sources = OldSources::before(before);
    let mut messages = OldMessages::before(before);
    let mut events = OldEvents::before(before);
    loop {
        let gone = match kind {
            Kind::Attempts => match attempts.delete_batch(database)? {
                None => retention::delete_submissions(database, before)?,
                gone => gone,
            },
            Kind::Sources => sources.delete_batch(database)?,
            Kind::Messages => match messages.some(database)? {
                Some(some) => Some(forget_messages(database, &some, before, &mut locked)?),
                None => None,
            },
            Kind::Events => events.delete_batch(database)?,
            Kind::Operations => retention::delete_operations(database, before)?,
            Kind::Failures => retention::delete_old_failures(database, before)?,
        };
        let Some(gone) = gone else { break };
        removed += gone;
        if !progress(removed) {
            stopped = true;
            break;
        }
        std::thread::sleep(pause);
    }
    // Counting the kept rows reads all old rows. A caller that has stopped the work does not wait for that.
    let kept = if stopped { nothing(kind, age, before) } else { kept(database, kind, age, before)? };
    Ok(Pruned { removed, locked, ..kept })
}

fn before(database: &mut dyn Database, age: Duration) -> Result<i64, DatabaseError> {
    Ok(time_span::now(database)?.saturating_sub(time_span::microseconds(age)))
}

fn nothing(kind: Kind, age: Duration, before: i64) -> Pruned {
    Pruned { kind, age, before, removed: 0, would_remove: None, open: 0, owed: 0, kept_referenced: 0, locked: 0 }
}

/// The counts of old rows that are kept.
fn kept(database: &mut dyn Database, kind: Kind, age: Duration, before: i64) -> Result<Pruned, DatabaseError> {
    let none = nothing(kind, age, before);
    Ok(match kind {
        Kind::Attempts => Pruned { open: retention::count_attempts(database, before, false)?, ..none },
        Kind::Sources => Pruned { owed: retention::count_sources(database, before, true)?, ..none },
        Kind::Messages => Pruned {
            owed: retention::count_owed_messages(database, before)?,
            kept_referenced: retention::count_messages(database, before, true)?,
            ..none
        },
        Kind::Events | Kind::Operations | Kind::Failures => none,
    })
}

/// Removes these messages, each under its lock. A message whose lock is held is left for the next run.
fn forget_messages(
    database: &mut dyn Database,
    messages: &[OldMessage],
    before: i64,
    locked: &mut u64,
) -> Result<u64, DatabaseError> {
    let mut gone = 0;
    for message in messages {
        match forget_under_lock(database, message, before) {
            Ok(Some(forgotten)) => gone += u64::from(forgotten),
            Ok(None) => *locked += 1,
            // Another transaction conflicted; the next run retries.
            Err(error) if error.failure == DatabaseFailure::Contention => *locked += 1,
            Err(error) => return Err(error),
        }
    }
    Ok(gone)
}

/// Whether the message was removed; `None` if its lock was held.
fn forget_under_lock(
    database: &mut dyn Database,
    message: &OldMessage,
    before: i64,
) -> Result<Option<bool>, DatabaseError> {
    if !matches!(database.acquire(&message.lock, Duration::ZERO)?, Acquired::Held) {
        return Ok(None);
    }
    let forgotten = message.forget(database, before).and_then(|forgotten| {
        if forgotten {
            // On PostgreSQL the lock is the transaction: an empty record commits it, but release would roll it back.
            database.record(&Record::default())?;
        }
        Ok(forgotten)
    });
    let released = database.release(&message.lock);
    forgotten.and_then(|forgotten| released.map(|()| Some(forgotten)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::deadline::Deadline;
    use crate::database::{Client, Tables, Value};
    use uuid::Uuid;

    #[test]
    fn what_was_kept_is_counted_unless_it_is_stopped() {
        for (goes_on, open) in [(true, 1), (false, 0)] {
            let directory = tempfile::tempdir().unwrap();
            let client = Client { host: "mx1".into(), pid: 1, queue_id: None };
            let deadline = Deadline::after(Duration::from_mins(2));
            let mut database = crate::ledger::schema::open_embedded(directory.path(), &client, deadline).unwrap();
            // One of two old attempts has ended; the other never did.
            let began = 1_600_000_000_000_000;
            let insert = "INSERT INTO attempts (attempt, copy_key, role, imap_user, mailbox, identity, lock_digest, message_id, \
                          recipient, host, pid, started_at, ended_at) \
                          VALUES (?, ?, 'recipient', 'lisa', 'INBOX', ?, ?, 'x', 'lisa@x', 'mx1', 1, ?, ?)";
            for (number, ended) in [(1, Value::Moment(began)), (2, Value::Null)] {
                let attempt = Uuid::from_u128(time_span::first_uuid_of(began).as_u128() + number);
                let (key, digest) = ([0; 32], [7; 32]);
                let [key, digest] = [&key, &digest].map(|bytes| Value::Bytes(bytes));
                let values = [Value::Uuid(attempt), key, digest, digest, Value::Moment(began), ended];
                database.change("filling", insert, &values).unwrap();
            }
            let (age, none) = (Duration::from_hours(24), Duration::ZERO);
            let pruned = prune(&mut database, Kind::Attempts, age, none, &mut |_| goes_on).unwrap();
            assert_eq!((pruned.removed, pruned.open), (1, open));
        }
    }
}
