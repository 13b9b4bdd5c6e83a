//! The ledger: what was tried and what was done, in the database that every machine shares.
//!
//! Three tables (`sql/<engine>/`): `attempts` is the journal, a row per copy that a process set out to deliver;
//! `messages` is what is known of a message; `copies` says for each copy where it is, or that it is still owed.

mod bare;
mod mysql;
pub(crate) mod postgres;
#[cfg(any(test, feature = "test-properties"))]
pub mod properties;
pub mod recorded;
mod sqlite;

use crate::database::{DatabaseError, DatabaseFailure};
use crate::lock::LockName;
use crate::mailbox::{Placement, Position, Role};
use crate::message::Identity;
use crate::routing::AddressBook;
use sha2::{Digest, Sha256};
use std::time::Duration;
use uuid::Uuid;

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
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
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
    pub delivered: Option<Delivered>,
    /// Attempts at it that have not ended, oldest first, our own among them if it was journalled.
    pub open_attempts: Vec<OpenAttempt>,
}

/// A copy that is recorded as delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivered {
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
#[derive(Clone, Copy, Debug)]
pub struct EndedAttempt<'a> {
    /// Which attempt.
    pub attempt: Uuid,
    /// At which copy.
    pub key: CopyKey,
    /// How, in one word or a short line: `appended`, `adopted`, `already there`, `busy`, `deferred: …`,
    /// `refused: …`.
    pub outcome: &'a str,
    /// How long its stages took, as [`Stages::as_json`](crate::delivery::Stages::as_json) writes it; `None` for an attempt
    /// of another process, which took that with it.
    pub stages: Option<&'a str>,
}

impl AddressBook {
    /// The book, unless none of the addresses is in it and the server takes no writes: a standby that lags behind may not
    /// have them *yet*, and whoever is not found is refused for good. A delivery could not go on there anyway.
    fn unless_a_replica_knows_nobody(self, doing: &str, read_only: bool) -> Result<Self, DatabaseError> {
        if read_only && self.entries.is_empty() {
            let detail = "the server takes no writes (a standby?), so that an address it lacks may be known elsewhere";
            return Err(DatabaseError::new(DatabaseFailure::ReadOnly, doing, detail));
        }
        Ok(self)
    }
}

/// What happened to messages, attempts and copies.
pub trait Ledger {
    /// Which mailboxes these addresses have, in one round trip.
    ///
    /// # Errors
    /// [`DatabaseError`]
    fn addresses(&mut self, addresses: &[&str]) -> Result<AddressBook, DatabaseError>;

    /// Writes the journal and commits it at once, before the lock is taken. Tries again on a deadlock or lock wait.
    ///
    /// # Errors
    /// [`DatabaseError`]
    fn try_journal(&mut self, journal: &Journal<'_>) -> Result<(), DatabaseError>;

    /// The same; where the server refuses it for what it says of the message, it is written without that.
    ///
    /// # Errors
    /// [`DatabaseError`]
    fn journal(&mut self, journal: &Journal<'_>) -> Result<(), DatabaseError> {
        bare::journal_or_bare(journal, |journal| self.try_journal(journal))
    }

    /// What is known of these copies, in the order asked for, in a new statement and so a new snapshot: called under the
    /// lock.
    ///
    /// # Errors
    /// [`DatabaseError`]
    fn look(&mut self, copies: &[CopyKey]) -> Result<Vec<CopyHistory>, DatabaseError>;

    /// Writes down how it ended, and commits. On PostgreSQL this frees the lock, which lives in the same transaction;
    /// elsewhere the lock is still held afterwards. Called without the lock (an attempt that found it busy ends itself),
    /// it is a transaction of its own.
    ///
    /// Where the server refuses the record for what it says of the message, it is written without that, under the same
    /// lock: the copies are in their mailboxes, and no header is worth deferring them for ever.
    ///
    /// # Errors
    /// [`DatabaseError`]; nothing, or (a lost reply to COMMIT) everything has then been written down.
    fn record(&mut self, record: &Record<'_>) -> Result<(), DatabaseError>;

    /// How long ago the first attempt at any of these copies began, by the database's clock; zero if there was none.
    ///
    /// # Errors
    /// [`DatabaseError`]
    fn first_attempt_age(&mut self, copies: &[CopyKey]) -> Result<Duration, DatabaseError>;
}
