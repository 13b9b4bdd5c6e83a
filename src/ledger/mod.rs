//! The ledger: what was tried and what was done, in the database that every machine shares.
//! Uses `base`, `message`, `imap`, `database`, `lock`, `mailbox` and `schema`.
//!
//! Three tables (`sql/<engine>/`): `attempts` is the journal, a row per copy that a process set out to deliver;
//! `messages` is what is known of a message; `copies` says for each copy where it is, or that it is still owed.

mod addresses;
pub(crate) mod check;
mod columns;
pub(crate) mod deliveries;
pub(crate) mod forget;
pub(crate) mod lock_users;
mod mysql;
mod outcome;
pub(crate) mod postgres;
pub mod recorded;
mod sqlite;
pub(crate) mod stage_times;
pub(crate) mod statistics;
pub(crate) mod time_span;
pub(crate) mod trace;
mod without_headers;

pub(crate) use addresses::one_name;
pub use addresses::{AddressBook, Destination};
pub use check::{Finding, Inspect, State};
pub use deliveries::NeverEnded;
pub use lock_users::LockPurpose;
pub use outcome::{AttemptResult, Cause, Outcome};

use crate::database::{DatabaseError, Session, Tables};
use crate::lock::{Acquired, Holder, Holders, LockName, NamedLock};
use crate::mailbox::{Placement, Position};
use crate::message::Identity;
use crate::message::Role;
use crate::schema::Schema;
use sha2::{Digest, Sha256};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Everything that a database is to this program.
pub trait Database: Session + NamedLock + Holders + Ledger + Schema + Inspect + Tables {}

impl<T: Session + NamedLock + Holders + Ledger + Schema + Inspect + Tables> Database for T {}

/// The name of a copy: (message, user, mailbox, role), as a digest. One copy, one key, on every engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CopyKey([u8; 32]);

impl CopyKey {
    /// SHA-256 over identity, and length-prefixed role, user and mailbox.
    #[must_use]
    pub fn new(identity: &Identity, role: Role, user: &str, mailbox: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(identity.as_bytes());
        for part in [role.as_str(), user, mailbox] {
            hash.update(u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
            hash.update(part.as_bytes());
        }
        Self(hash.finalize().into())
    }

    /// The key as read back from the ledger.
    #[must_use]
    pub(crate) fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its 32 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// What a process writes down before it takes the lock: one row per copy. A crash after APPEND then leaves a trace.
#[derive(Clone, Debug)]
pub struct Journal<'a> {
    /// Names this attempt. Version 7, so that rows of one time lie together.
    pub attempt: Uuid,
    /// Whose message it is.
    pub identity: &'a Identity,
    /// The lock that guards it.
    pub lock: &'a LockName,
    /// The Message-ID, for people.
    pub message_id: &'a str,
    /// The envelope recipient that this process delivers to.
    pub recipient: &'a str,
    /// Postfix's queue id, if given.
    pub queue_id: Option<&'a str>,
    /// This host's name.
    pub host: &'a str,
    /// This process's id.
    pub pid: u32,
    /// The copies it sets out to deliver.
    pub copies: Vec<JournalCopy<'a>>,
}

/// One copy in the journal.
#[derive(Clone, Debug)]
pub struct JournalCopy<'a> {
    /// The copy's name.
    pub key: CopyKey,
    /// Its role.
    pub role: Role,
    /// The mailbox's user.
    pub user: &'a str,
    /// The mailbox.
    pub mailbox: &'a str,
    /// Where the mailbox stood before anything was appended; `None` in a store without UIDs.
    pub position: Option<Position>,
}

/// What the ledger knows of one copy.
#[derive(Clone, Debug)]
pub struct CopyHistory {
    /// The copy's name.
    pub key: CopyKey,
    /// Set once the copy is recorded as delivered; where, if known.
    pub delivered: Option<DeliveredAt>,
    /// Under which lock its message was recorded, and how many seconds ago by the database's clock; only where it is
    /// delivered.
    pub recorded: Option<(LockName, f64)>,
    /// Attempts at it that have not ended, oldest first, our own among them if it was journalled.
    pub open_attempts: Vec<OpenAttempt>,
}

/// Where a copy is that is recorded as delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveredAt {
    /// Where it was stored, if the server told.
    pub placement: Option<Placement>,
}

/// An attempt that has not ended, as far as the ledger knows: it runs now, or it died.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenAttempt {
    /// Its name.
    pub attempt: Uuid,
    /// The envelope recipient it delivered to.
    pub recipient: String,
    /// The host that it runs or ran on.
    pub host: String,
    /// The lock that guards it: every other attempt at this copy should have the same.
    pub lock: LockName,
    /// How long ago it began, by the database's clock, in seconds; negative if that clock was set back.
    pub age: f64,
    /// Where the mailbox stood when it began.
    pub position: Option<Position>,
}

/// What a delivery writes down at its end, in one transaction.
#[derive(Clone, Debug, Default)]
pub struct Record<'a> {
    /// The message; present whenever `copies` is not empty.
    pub message: Option<MessageRecord<'a>>,
    /// The copies that are delivered, or owed.
    pub copies: Vec<CopyRecord<'a>>,
    /// The attempts that have ended.
    pub ended: Vec<EndedAttempt<'a>>,
}

/// What the ledger keeps of a message.
#[derive(Clone, Debug)]
pub struct MessageRecord<'a> {
    /// (Message-ID, digest of what the author wrote), as one digest.
    pub identity: &'a Identity,
    /// The lock that guards it.
    pub lock: &'a LockName,
    /// The Message-ID as it stood in the message, decoded for people; made up where it had none.
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
    /// The decoded Subject.
    pub subject: Option<&'a str>,
    /// The Date, in seconds since 1970, where it could be read.
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
    /// The copy's name.
    pub key: CopyKey,
    /// Its role.
    pub role: Role,
    /// The mailbox's user.
    pub user: &'a str,
    /// The mailbox.
    pub mailbox: &'a str,
    /// The envelope recipient of the delivery that brought it.
    pub recipient: &'a str,
    /// Delivered, or owed. A copy once delivered never becomes owed again.
    pub state: CopyState<'a>,
}

/// Whether a copy is where it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyState<'a> {
    /// It is in its mailbox; where, if the server told.
    Delivered(Option<Placement>),
    /// It is still owed, and why.
    Owed(&'a str),
}

/// An attempt at one copy that has ended.
#[derive(Clone, Debug)]
pub struct EndedAttempt<'a> {
    /// Which attempt.
    pub attempt: Uuid,
    /// At which copy.
    pub key: CopyKey,
    /// How.
    pub outcome: Outcome,
    /// How long its stages took, as [`Stages::as_json`](crate::delivery::Stages::as_json) writes it; `None` for an attempt
    /// of another process, which took that with it.
    pub stages: Option<&'a str>,
}

/// A way of logging in to a mailbox store: the server, the service account, and how the user is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WayIn {
    /// For people.
    pub text: String,
    /// Its name in the ledger.
    pub digest: [u8; 32],
}

impl WayIn {
    /// The way in that `text` describes.
    #[must_use]
    pub fn new(text: String) -> Self {
        let digest = Sha256::digest(text.as_bytes()).into();
        Self { text, digest }
    }
}

/// What came of asking for a lock, and of looking at what is known of some copies under it.
#[derive(Debug)]
pub enum AcquiredAndLooked {
    /// The lock is ours.
    Held {
        /// What is known of the copies, in the order asked for; or why that could not be read.
        looked: Result<Vec<CopyHistory>, DatabaseError>,
        /// How long the look took by itself: nothing, where it was in one round trip with the lock.
        took: Duration,
    },
    /// Another session has the lock; which one, as far as the server and the journal tell.
    Busy(Option<Holder>),
}

/// What happened to messages, attempts and copies. It is written and read over the session that holds the lock.
///
/// A database without a table of addresses leaves out what has to do with that.
pub trait Ledger: NamedLock {
    /// Which mailboxes these addresses have, and when this way in to the mailbox store was last proven, in one round trip.
    ///
    /// # Errors
    /// Where the server cannot be asked; where it knows none of the addresses and takes no writes, so that another server may
    /// know them; where this database has no table of addresses.
    fn look_up(&mut self, _addresses: &[&str], _way_in: Option<&WayIn>) -> Result<AddressBook, DatabaseError> {
        Err(addresses::no_table("looking addresses up"))
    }

    /// Which mailboxes these addresses have.
    ///
    /// # Errors
    /// As [`look_up`](Self::look_up).
    fn addresses(&mut self, addresses: &[&str]) -> Result<AddressBook, DatabaseError> {
        self.look_up(addresses, None)
    }

    /// Remembers that this host has just proven a way in. On PostgreSQL this frees the lock, if one is held.
    ///
    /// # Errors
    /// Where it may not be committed; where this database has no table of addresses.
    fn record_way_in(&mut self, _way_in: &WayIn, _host: &str) -> Result<(), DatabaseError> {
        Err(addresses::no_table("remembering a way in to the mailbox store"))
    }

    /// Writes down that `host` refuses a recipient for good who is none of these addresses, and commits; `false`, with
    /// nothing written, where one of them is in the table by now, or the table is empty.
    ///
    /// The one statement that writes finds them missing once more. So the absence is no older than the commit, and the
    /// server that says so is one that commits: no standby, no former primary that has not heard of its successor, no part of a
    /// cluster that is cut off from the rest. Nothing that was read earlier refuses a recipient.
    ///
    /// # Errors
    /// Where it may not be committed; where this database has no table of addresses. Then no recipient is refused.
    fn refuse(&mut self, _host: &str, _addresses: &[&str]) -> Result<bool, DatabaseError> {
        Err(addresses::no_table("writing down that a recipient is refused"))
    }

    /// Writes the journal and commits it at once, before the lock is taken. Tries again on a deadlock or lock wait.
    ///
    /// # Errors
    /// Where it may not be committed, or where the server refuses a value of it.
    fn try_journal(&mut self, journal: &Journal<'_>) -> Result<(), DatabaseError>;

    /// The same; where the server refuses it for what it says of the message, it is written without that.
    ///
    /// # Errors
    /// Where it may not be committed.
    fn journal(&mut self, journal: &Journal<'_>) -> Result<(), DatabaseError> {
        without_headers::journal_or_bare(journal, |journal| self.try_journal(journal))
    }

    /// Takes the lock, and then looks at these copies, which this session has journalled: by a statement of its own behind
    /// the one that took the lock, and so in a newer snapshot. Where an engine can do both in one round trip, it does.
    ///
    /// # Errors
    /// Where the lock could not be asked for, as [`NamedLock::acquire`]; it is not held then.
    fn acquire_and_look(
        &mut self,
        lock: &LockName,
        wait: Duration,
        copies: &[CopyKey],
    ) -> Result<AcquiredAndLooked, DatabaseError> {
        Ok(match self.acquire(lock, wait)? {
            Acquired::Held => looked_by_itself(|| self.look(copies)),
            Acquired::Busy(holder) => AcquiredAndLooked::Busy(holder),
        })
    }

    /// What is known of these copies, in the order asked for, in a new statement and so a new snapshot: called under the
    /// lock.
    ///
    /// # Errors
    /// Where it cannot be read.
    fn look(&mut self, copies: &[CopyKey]) -> Result<Vec<CopyHistory>, DatabaseError>;

    /// Writes down how it ended, and commits. On PostgreSQL this frees the lock, which lives in the same transaction;
    /// elsewhere the lock is still held afterwards. Called without the lock (an attempt that found it busy ends itself),
    /// it is a transaction of its own.
    ///
    /// Where the server refuses the record for what it says of the message, it is written without that, under the same
    /// lock: the copies are in their mailboxes, and no header is worth deferring them for ever.
    ///
    /// # Errors
    /// Where it may not be committed: nothing, or (a lost reply to COMMIT) everything has then been written down.
    fn record(&mut self, record: &Record<'_>) -> Result<(), DatabaseError>;

    /// How long ago the first attempt at any of these copies began, by the database's clock; zero if there was none.
    ///
    /// # Errors
    /// Where it cannot be read.
    fn first_attempt_age(&mut self, copies: &[CopyKey]) -> Result<Duration, DatabaseError>;
}

/// The lock is held, and this is the look, in a round trip of its own.
fn looked_by_itself(look: impl FnOnce() -> Result<Vec<CopyHistory>, DatabaseError>) -> AcquiredAndLooked {
    let began = Instant::now();
    let looked = look();
    AcquiredAndLooked::Held { looked, took: began.elapsed() }
}
