//! The ledger: what was tried and what was done, in the database that every machine shares.
//!
//! Three tables (`sql/<engine>/`) are a delivery's own: `attempts` is the journal, with a row for each attempt at a copy; `messages`
//! has the recorded fields of a message; `copies` has the location of each copy, or that it is owed. docs/schema.md describes all.
//!
//! | of | modules |
//! |---|---|
//! | a delivery | `addresses`, `epoch`, `event`, `failures`, `outcome`, `record_fallback`, `statements` |
//! | people's questions | `activity`, `deliveries`, `delivery_locks`, `message_addresses`, `message_search`, `stage_times`, `statistics`, `time_span`, `trace` |
//! | replay, audit, prune | `audit_queries`, `retention` |
//! | notifications | `notifications`, `subscriptions` |
//! | web UI and API | `api_tokens`, `operations_log`, `submissions`, `web_sessions` |
//! | one engine | `mysql`, `postgres`, `sqlite`; for all of them `check`, `columns`, `schema` |

pub(crate) mod activity;
mod addresses;
pub(crate) mod api_tokens;
pub mod audit_queries;
pub(crate) mod check;
mod columns;
pub(crate) mod deliveries;
pub(crate) mod delivery_locks;
mod epoch;
pub mod event;
pub mod failures;
pub(crate) mod message_addresses;
pub(crate) mod message_search;
mod mysql;
pub mod notifications;
pub mod operations_log;
mod outcome;
pub(crate) mod postgres;
mod record_fallback;
pub(crate) mod retention;
pub mod schema;
mod sqlite;
pub(crate) mod stage_times;
mod statements;
pub(crate) mod statistics;
pub(crate) mod submissions;
pub(crate) mod subscriptions;
pub(crate) mod time_span;
pub(crate) mod trace;
pub mod web_sessions;

pub(crate) use addresses::one_name;
pub use addresses::{AddressBook, Destination};
pub use check::{Finding, FindingState, Requirements, describe, inspect, server};
pub use deliveries::NeverEnded;
pub use epoch::Epoch;
pub use event::EventRecord;
pub use failures::{FailedDelivery, FailureRecord};
pub use notifications::Notifications;
pub(crate) use outcome::public_reason;
pub use outcome::{AttemptResult, Cause, Outcome};

use crate::database::{Columns, DatabaseError, FromRow, Session, Tables, columns_of};
use crate::ledger::schema::Schema;
use crate::lock::{Acquired, Holder, LockName, NamedLock};
use crate::mailbox::{Placement, Position};
use crate::message::{Identity, Role, key_of_copy};
use sha2::{Digest, Sha256};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// All operations of this program on a database.
pub trait Database: Send + Session + NamedLock + Ledger + Schema + Tables {}

impl<T: Send + Session + NamedLock + Ledger + Schema + Tables> Database for T {}

/// The key of a copy: the message's day, and a digest of message, role, user and mailbox; the same on every engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CopyKey([u8; 32]);

impl CopyKey {
    /// The key of this copy. No change of this program may change a key: ledgers contain them.
    #[must_use]
    pub fn new(identity: &Identity, role: Role, user: &str, mailbox: &str) -> Self {
        Self(key_of_copy(identity.as_bytes(), role.as_str(), user, mailbox))
    }

    /// The key with these bytes, as the ledger stores them.
    #[must_use]
    pub(crate) fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The key as the ledger stores it: 32 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// What a process journals before it takes the lock: a row for each copy. A crash after APPEND leaves these rows open.
#[derive(Clone, Debug)]
pub struct Journal<'a> {
    /// The attempt's id. UUID version 7, so that rows of one time lie together.
    pub attempt: Uuid,
    /// The message's identity.
    pub identity: &'a Identity,
    /// The lock that guards it.
    pub lock: &'a LockName,
    /// The Message-ID, for people.
    pub message_id: &'a str,
    /// Postfix's queue id, if given.
    pub queue_id: Option<&'a str>,
    /// The envelope sender of this delivery; empty for the null sender, `None` if that is not known.
    pub sender: Option<&'a str>,
    /// This host's name.
    pub host: &'a str,
    /// This process's id.
    pub pid: u32,
    /// The copies to be delivered.
    pub copies: Vec<JournalCopy<'a>>,
}

/// One copy in the journal.
#[derive(Clone, Debug)]
pub struct JournalCopy<'a> {
    /// The copy's key.
    pub key: CopyKey,
    pub role: Role,
    /// The mailbox's user.
    pub user: &'a str,
    /// The mailbox.
    pub mailbox: &'a str,
    /// The envelope recipient for whom it is delivered. Of an author's copy: the recipient whose delivery makes it, and
    /// is retried if it fails.
    pub recipient: &'a str,
    /// The mailbox's position before anything is appended; `None` in a store without UIDs.
    pub position: Option<Position>,
}

/// What the ledger knows of one copy.
#[derive(Clone, Debug)]
pub struct CopyHistory {
    /// The copy's key.
    pub key: CopyKey,
    /// Set if the copy is recorded as delivered.
    pub delivered: Option<DeliveredAt>,
    /// Set if it is recorded as owed: the reason.
    pub owed: Option<String>,
    /// If it is delivered: the lock under which its message was recorded, and how many seconds ago by the database's
    /// clock.
    pub recorded: Option<(LockName, f64)>,
    /// Attempts at it that have not ended, the oldest first; including our own, if it was journalled.
    pub open_attempts: Vec<OpenAttempt>,
}

impl CopyHistory {
    /// The history of a copy that the ledger does not know.
    fn unknown(key: &CopyKey) -> Self {
        Self { key: *key, delivered: None, owed: None, recorded: None, open_attempts: Vec::new() }
    }
}

/// A copy that is recorded as delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveredAt {
    /// Its location, if the server reported it.
    pub placement: Option<Placement>,
}

/// An attempt that has not ended: it is running, or its process died.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenAttempt {
    /// The attempt's id.
    pub attempt: Uuid,
    /// The envelope recipient it delivered to.
    pub recipient: String,
    /// The host that it runs or ran on.
    pub host: String,
    /// Its lock: every other attempt at this copy should have the same.
    pub lock: LockName,
    /// How long ago it began, by the database's clock, in seconds; negative if that clock was set back.
    pub age: f64,
    /// The mailbox's position when it began.
    pub position: Option<Position>,
}

columns_of! { OpenAttempt: attempt, recipient, age, position, host, lock }

impl FromRow for Option<OpenAttempt> {
    fn from_row(columns: &mut Columns<'_>) -> Result<Self, DatabaseError> {
        if columns.skip_null(7) { Ok(None) } else { columns.read().map(Some) }
    }
}

/// What a delivery records at its end, in one transaction.
#[derive(Clone, Debug, Default)]
pub struct Record<'a> {
    /// The message; present whenever `copies` is not empty.
    pub message: Option<MessageRecord<'a>>,
    /// The copies that are delivered, or owed.
    pub copies: Vec<CopyRecord<'a>>,
    /// The attempts that have ended.
    pub ended: Vec<EndedAttempt<'a>>,
    /// The events of this record, for subscribers: written only if there is a subscription. An embedded database has no
    /// subscribers.
    pub events: Vec<EventRecord<'a>>,
}

/// What the ledger keeps of a message.
#[derive(Clone, Debug)]
pub struct MessageRecord<'a> {
    /// The digest of Message-ID and what the author wrote.
    pub identity: &'a Identity,
    /// The lock that guards it.
    pub lock: &'a LockName,
    /// The Message-ID as it stood in the message, decoded for people; generated if it had none.
    pub message_id: &'a str,
    /// The digest of what the author wrote.
    pub content_digest: &'a [u8; 32],
    /// The envelope sender; empty for the null sender.
    pub sender: &'a str,
    /// The decoded From.
    pub from: Option<&'a str>,
    /// The decoded To.
    pub to: Option<&'a str>,
    /// The decoded Cc.
    pub cc: Option<&'a str>,
    pub subject: Option<&'a str>,
    /// The Date, in seconds since 1970, if it could be parsed.
    pub date: Option<i64>,
    /// All header fields, in order, as a JSON array of `[name, value]`, bounded in size.
    pub headers: &'a str,
    /// The size as appended for the recipient, in bytes.
    pub size: u64,
    /// The message as received, if it is to be kept.
    pub raw: Option<&'a [u8]>,
}

/// One copy's row.
#[derive(Clone, Debug)]
pub struct CopyRecord<'a> {
    /// The copy's key.
    pub key: CopyKey,
    pub role: Role,
    /// The mailbox's user.
    pub user: &'a str,
    /// The mailbox.
    pub mailbox: &'a str,
    /// The envelope recipient of the delivery that brought it.
    pub recipient: &'a str,
    /// A delivered copy never becomes owed.
    pub state: CopyState<'a>,
}

/// Whether a copy is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyState<'a> {
    /// It is in its mailbox; with its location, if the server reported it.
    Delivered(Option<Placement>),
    /// It is owed, with the reason.
    Owed(&'a str),
}

/// An attempt at one copy that has ended.
#[derive(Clone, Debug)]
pub struct EndedAttempt<'a> {
    /// The attempt's id.
    pub attempt: Uuid,
    /// The copy's key.
    pub key: CopyKey,
    /// Its outcome.
    pub outcome: Outcome,
    /// How long its stages took, as [`Stages::as_json`](crate::delivery::Stages::as_json) writes it; `None` for an
    /// attempt of another process that died.
    pub stages: Option<&'a str>,
}

/// A login to a mailbox store: the server, the service account, and how the user is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginCheck {
    /// For people.
    pub text: String,
    /// Its key in the ledger.
    pub digest: [u8; 32],
}

impl LoginCheck {
    /// The login that `text` describes.
    #[must_use]
    pub fn new(text: String) -> Self {
        let digest = Sha256::digest(text.as_bytes()).into();
        Self { text, digest }
    }
}

/// The result of a request for a lock, and for the history of some copies under it.
#[derive(Debug)]
pub enum LockResult {
    /// The lock is ours.
    Held {
        /// The copies' history, or why it could not be read.
        looked: Result<Snapshot, DatabaseError>,
        /// How long the look took; zero if it shared a round trip with the lock.
        took: Duration,
    },
    /// Another session has the lock; its holder, as far as the server and the journal show.
    Busy(Option<Holder>),
}

/// What the ledger knows of some copies, and since when its memory is complete.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// In the order asked for.
    pub copies: Vec<CopyHistory>,
    /// How long ago the present [`Epoch`] began, by the database's clock; `None`: the ledger has forgotten nothing.
    pub epoch: Option<Duration>,
}

/// What a delivery reads and writes, over the session that holds the lock.
///
/// An embedded database has no table of addresses: methods on that table fail there.
pub trait Ledger: NamedLock {
    /// The mailboxes of these addresses, and when this login to the mailbox store was last proven, in one round trip.
    ///
    /// # Errors
    /// If the server cannot be asked, or if it knows none of the addresses and takes no writes: another server may know
    /// them.
    fn look_up(
        &mut self,
        _addresses: &[&str],
        _login_check: Option<&LoginCheck>,
    ) -> Result<AddressBook, DatabaseError> {
        Err(addresses::no_table("looking addresses up"))
    }

    /// The mailboxes of these addresses.
    ///
    /// # Errors
    /// As [`look_up`](Self::look_up).
    fn addresses(&mut self, addresses: &[&str]) -> Result<AddressBook, DatabaseError> {
        self.look_up(addresses, None)
    }

    /// Records that this host has just proven a login; or that it has found that the login does not lead to the right
    /// mailboxes, so that an earlier proof no longer counts. On PostgreSQL this releases the lock, if one is held.
    ///
    /// # Errors
    /// If it may not have been committed.
    fn record_login_check(
        &mut self,
        _login_check: &LoginCheck,
        _host: &str,
        _is_proven: bool,
    ) -> Result<(), DatabaseError> {
        Err(addresses::no_table(statements::RECORDING_A_LOGIN))
    }

    /// Records that `host` refuses a recipient permanently, since none of these addresses is in the table. `false`,
    /// with nothing written, if one of them is in the table by now, or if the table is empty.
    ///
    /// The statement that writes searches for them once more. So they are missing at the commit, on a server that can
    /// commit: no standby, no former primary, no minority of a cluster. A mere read never refuses a recipient.
    ///
    /// # Errors
    /// If it may not have been committed. In that case no recipient is refused.
    fn refuse(&mut self, _host: &str, _addresses: &[&str]) -> Result<bool, DatabaseError> {
        Err(addresses::no_table("writing down that a recipient is refused"))
    }

    /// Writes the journal and commits it at once, before the lock is taken. Retries after a deadlock or a lock wait.
    ///
    /// # Errors
    /// If it may not have been committed, or if the server refuses one of its values.
    fn try_journal(&mut self, journal: &Journal<'_>) -> Result<(), DatabaseError>;

    /// As [`try_journal`](Self::try_journal). If the server refuses a value from the message, the journal is written
    /// without these values.
    ///
    /// # Errors
    /// If it may not have been committed.
    fn journal(&mut self, journal: &Journal<'_>) -> Result<(), DatabaseError> {
        record_fallback::journal_with_fallback(journal, |journal| self.try_journal(journal))
    }

    /// Records deliveries that failed before their journal. Called without the lock. It waits 100 ms for other sessions
    /// (a second on MySQL), and little longer for the answer.
    ///
    /// # Errors
    /// If they may not have been recorded: then only the log has them.
    fn record_failures(&mut self, failures: &[FailureRecord<'_>]) -> Result<(), DatabaseError>;

    /// Takes the lock, and then reads these copies, which this session has journalled. The read is a later statement
    /// than the one that took the lock, so it has a newer snapshot. A server does both in one round trip. If a new
    /// epoch is not recorded yet, it is recorded before this returns.
    ///
    /// # Errors
    /// If the lock could not be asked for, as [`NamedLock::acquire`]; in that case it is not held.
    fn acquire_and_look(
        &mut self,
        lock: &LockName,
        wait: Duration,
        copies: &[CopyKey],
    ) -> Result<LockResult, DatabaseError> {
        Ok(match self.acquire(lock, wait)? {
            Acquired::Held => timed_look(|| {
                let epoch = self.epoch()?;
                if epoch.is_unwritten() {
                    self.begin_epoch()?;
                }
                Ok(Snapshot { copies: self.look(copies)?, epoch: epoch.began() })
            }),
            Acquired::Busy(holder) => LockResult::Busy(holder),
        })
    }

    /// The history of these copies, in the order asked for, from a new snapshot. Called under the lock.
    ///
    /// # Errors
    /// If it cannot be read.
    fn look(&mut self, copies: &[CopyKey]) -> Result<Vec<CopyHistory>, DatabaseError>;

    /// The database's epoch. An embedded one has none: no other server takes over from it, and nothing in it changes
    /// when its file is restored.
    ///
    /// # Errors
    /// If the epoch cannot be read.
    fn epoch(&mut self) -> Result<Epoch, DatabaseError> {
        Ok(Epoch::default())
    }

    /// Records that another epoch has begun, unless another session has done so by now, and commits.
    ///
    /// # Errors
    /// If it may not have been committed.
    fn begin_epoch(&mut self) -> Result<(), DatabaseError> {
        Ok(())
    }

    /// Writes the record, commits, and releases the lock: on PostgreSQL the same transaction holds it, and on MySQL it is
    /// released right after the COMMIT. On an embedded site it is still held. Called without the lock (by an attempt that
    /// found it busy), it is a transaction of its own.
    ///
    /// If the server refuses a value from the message, the record is written without these values, under the same lock.
    /// The copies are in their mailboxes, and must not be deferred for ever. Likewise it is written without its events
    /// if these cannot be written.
    ///
    /// # Errors
    /// If it may not have been committed: in that case nothing is written, or (a lost reply to COMMIT) everything.
    fn record(&mut self, record: &Record<'_>) -> Result<(), DatabaseError>;

    /// How long ago the first attempt at any of these copies began, by the database's clock; zero if there was none.
    ///
    /// # Errors
    /// If the attempts cannot be read.
    fn first_attempt_age(&mut self, copies: &[CopyKey]) -> Result<Duration, DatabaseError>;
}

/// Runs the look in a round trip of its own.
fn timed_look(look: impl FnOnce() -> Result<Snapshot, DatabaseError>) -> LockResult {
    let began = Instant::now();
    let looked = look();
    LockResult::Held { looked, took: began.elapsed() }
}

#[cfg(test)]
mod tests;
