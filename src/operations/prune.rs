//! Removes old rows, so that deliveries never notice. Which rows those are, in SQL, is in `ledger::forget`.
//!
//! Nothing that a delivery may still need goes:
//!
//! 1. An open attempt stays; an ended one is looked at by no delivery.
//! 2. A message goes only under its own lock. Every delivery that looks it up, or records a copy of it, holds that lock: so
//!    no delivery sees half of it, or records a copy of a message that has just gone.
//! 3. A delivery that is about to take the lock has its attempt in the journal by then. The look under the lock, which has a
//!    snapshot of its own, sees it, and the message stays. A delivery that comes later waits for the lock, and finds a
//!    message that nobody has heard of.

use crate::config::Retention;
use crate::database::{DatabaseError, DatabaseFailure};
use crate::ledger::forget::{self, OldAttempts, OldMessage, OldMessages, OldSources};
use crate::ledger::{Database, Record, time_span};
use crate::lock::Acquired;
use serde::Serialize;
use std::time::Duration;

/// What is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Attempts that have ended.
    Attempts,
    /// The raw sources of messages.
    Sources,
    /// Messages, with their copies, sources and attempts.
    Messages,
}

impl Kind {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Attempts => "attempts",
            Self::Sources => "sources",
            Self::Messages => "messages",
        }
    }

    /// Where it is removed from.
    fn tables(self) -> &'static [&'static str] {
        match self {
            Self::Attempts => &["attempts"],
            Self::Sources => &["message_sources"],
            Self::Messages => &["attempts", "message_sources", "copies", "messages"],
        }
    }
}

/// How much of one kind was forgotten, or would be, and what was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Pruned {
    #[serde(rename = "what")]
    pub(crate) kind: Kind,
    /// What is older than this is too old.
    #[serde(skip)]
    pub(crate) age: Duration,
    /// What is older than this moment, in microseconds since 1970.
    #[serde(serialize_with = "crate::base::timestamp::serialize")]
    pub(crate) before: i64,
    /// How many rows are gone; of messages, how many messages.
    pub(crate) removed: u64,
    /// How many would be, in a dry run.
    pub(crate) would_remove: Option<u64>,
    /// Kept: attempts that never ended.
    #[serde(rename = "kept_open")]
    pub(crate) open: u64,
    /// Kept: messages, or their sources, with a copy that is owed.
    #[serde(rename = "kept_owed")]
    pub(crate) owed: u64,
    /// Kept: messages that were heard of since, or with an attempt that never ended.
    #[serde(rename = "kept_heard_of")]
    pub(crate) heard_of: u64,
    /// Kept: messages whose lock was held.
    #[serde(rename = "kept_locked")]
    pub(crate) locked: u64,
}

/// What to forget is what `retention` gives an age for.
pub(crate) fn kinds(retention: &Retention) -> Vec<(Kind, Duration)> {
    let ages = [
        (Kind::Attempts, retention.attempts_older_than),
        (Kind::Sources, retention.sources_older_than),
        (Kind::Messages, retention.messages_older_than),
    ];
    ages.into_iter().filter_map(|(kind, age)| Some((kind, age?))).collect()
}

/// Counts what [`prune`] would forget of one kind, and what it would keep.
///
/// # Errors
/// The ledger cannot be read.
pub(crate) fn dry_run(database: &mut dyn Database, kind: Kind, age: Duration) -> Result<Pruned, DatabaseError> {
    let before = before(database, age)?;
    let would_remove = match kind {
        Kind::Attempts => forget::count_attempts(database, before, true)?,
        Kind::Sources => forget::count_sources(database, before, false)?,
        Kind::Messages => forget::count_messages(database, before, false)?,
    };
    Ok(Pruned { would_remove: Some(would_remove), ..kept(database, kind, age, before)? })
}

/// Forgets what is older than `age` by the database's clock, in small batches, each a transaction of its own, and rests for
/// `pause` after each. `progress` hears after each batch how many rows are gone.
///
/// # Errors
/// The database fails, or its role may delete nothing. What is gone by then is gone.
pub(crate) fn prune(
    database: &mut dyn Database,
    kind: Kind,
    age: Duration,
    pause: Duration,
    progress: &mut dyn FnMut(u64),
) -> Result<Pruned, DatabaseError> {
    let before = before(database, age)?;
    forget::try_right(database, kind.tables())?;
    let (mut removed, mut locked) = (0, 0);
    let mut attempts = OldAttempts::before(before);
    let mut sources = OldSources::before(before);
    let mut messages = OldMessages::before(before);
    loop {
        let gone = match kind {
            Kind::Attempts => attempts.forget_some(database)?,
            Kind::Sources => sources.forget_some(database)?,
            Kind::Messages => match messages.some(database)? {
                Some(some) => Some(forget_messages(database, &some, before, &mut locked)?),
                None => None,
            },
        };
        let Some(gone) = gone else { break };
        removed += gone;
        progress(removed);
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }
    Ok(Pruned { removed, locked, ..kept(database, kind, age, before)? })
}

fn before(database: &mut dyn Database, age: Duration) -> Result<i64, DatabaseError> {
    Ok(time_span::now(database)?.saturating_sub(time_span::microseconds(age)))
}

/// What is old, and stays.
fn kept(database: &mut dyn Database, kind: Kind, age: Duration, before: i64) -> Result<Pruned, DatabaseError> {
    let none = Pruned { kind, age, before, removed: 0, would_remove: None, open: 0, owed: 0, heard_of: 0, locked: 0 };
    Ok(match kind {
        Kind::Attempts => Pruned { open: forget::count_attempts(database, before, false)?, ..none },
        Kind::Sources => Pruned { owed: forget::count_sources(database, before, true)?, ..none },
        Kind::Messages => Pruned {
            owed: forget::count_owed_messages(database, before)?,
            heard_of: forget::count_messages(database, before, true)?,
            ..none
        },
    })
}

/// Forgets these messages, each under its lock. One whose lock is held is left for the next time.
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
            // Another's transaction was in the way (what it is, the server knows): next time.
            Err(error) if error.failure == DatabaseFailure::Contention => *locked += 1,
            Err(error) => return Err(error),
        }
    }
    Ok(gone)
}

/// Whether it was forgotten; `None` where its lock was held.
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
            // On PostgreSQL the lock is the transaction, and to record nothing is to commit it; letting go would roll it back.
            database.record(&Record::default())?;
        }
        Ok(forgotten)
    });
    let released = database.release(&message.lock);
    forgotten.and_then(|forgotten| released.map(|()| Some(forgotten)))
}
