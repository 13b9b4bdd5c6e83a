//! What came of a delivery.

use crate::database::DatabaseError;
use crate::ledger::Outcome;
use crate::ledger::recorded::EarlierDelivery;
use crate::ledger::stages::STAGES;
use crate::lock::Holder;
use crate::mailbox::{MailboxError, Placement};
use crate::message::Role;
use std::time::Duration;
use thiserror::Error;
use uuid::Uuid;

/// Everything that is owed is in its mailbox and in the ledger, durably, or is recorded as owed.
#[derive(Debug)]
pub struct Delivered {
    /// The copies, the recipient's first.
    pub copies: Vec<CopyReport>,
    /// Where the recipient's copy was there already: how it came to be there, if somebody has asked.
    pub brought: Option<EarlierDelivery>,
}

/// One copy, and how it came to be where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyReport {
    /// Why the mailbox gets it.
    pub role: Role,
    /// The mailbox's user.
    pub user: String,
    /// The mailbox.
    pub mailbox: String,
    /// How it came there.
    pub manner: Manner,
}

/// How a copy came to be where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Manner {
    /// We appended it now; where, if the server told.
    Appended(Option<Placement>),
    /// An attempt that never ended had appended it, or the member's own mail program had: we found it, and did not
    /// append it again.
    Adopted(Option<Placement>),
    /// The ledger had it as delivered before we came.
    AlreadyThere,
    /// The sender's copy could not be appended, and is recorded as owed; why.
    Owed(String),
}

impl Manner {
    /// How the ledger says it.
    #[must_use]
    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            Self::Appended(_) => Outcome::Appended,
            Self::Adopted(_) => Outcome::Adopted,
            Self::AlreadyThere => Outcome::AlreadyThere,
            Self::Owed(_) => Outcome::Owed,
        }
    }

    /// The word for the log, and for whoever sent the message.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        self.outcome().word()
    }
}

/// A delivery that did not happen.
#[derive(Debug, Error)]
pub enum Refusal {
    /// For now: the message stays with whoever sent it here, who tries again.
    #[error(transparent)]
    Deferred(#[from] Deferral),
    /// For good: nobody here bears the recipient's address.
    #[error("unknown recipient")]
    UnknownRecipient,
    /// For good, because the operator chose so: the recipient's mailbox is over quota.
    #[error("over quota: {0}")]
    OverQuota(MailboxError),
}

/// Why a delivery is put off.
#[derive(Debug, Error)]
pub enum Deferral {
    /// Another delivery of this message holds its lock. Never success: that other one may still fail.
    #[error("another delivery of this message holds its lock")]
    Busy(Option<Holder>),
    /// An earlier attempt for this very recipient never ended, and is too young: its APPEND may still land.
    #[error("an earlier attempt never ended, and began only {0:?} ago: its copy may still arrive")]
    Unsettled(Duration),
    /// Nobody here bears the recipient's address, and the operator chose to wait until somebody does.
    #[error("unknown recipient, which routing.unknown defers")]
    UnknownRecipient,
    /// No address is known at all: a table not yet filled, or the wrong database. No reason to refuse mail.
    #[error("the table of addresses is empty")]
    NobodyKnown,
    /// The recipient was not in the table of addresses, and is by now; or the table has become empty.
    #[error("the table of addresses has just been changed")]
    AddressesChanged,
    /// The lock was lost before the append: its connection ended, or its server forgot it.
    #[error("the lock was lost on the way")]
    LockLost,
    /// Another host delivers this message, or has just delivered it, under another lock, which excludes nobody who asks
    /// for ours; which host, if that is known.
    #[error(
        "{} delivers this message under another lock, which excludes nobody here: lock.namespace has to be the same on all hosts",
        .0.as_deref().unwrap_or("another host")
    )]
    OtherLock(Option<String>),
    /// Whoever handed the message over has died: it may not be all of it.
    #[error("the program that handed the message over has died: it may not be all of it")]
    CallerGone,
    /// What we wrote into the journal cannot be read under the lock: a server that forgot a commit (fail-over), or one
    /// that reads elsewhere than it writes (a read/write split).
    #[error("the journal does not show what was just written to it")]
    JournalForgotten,
    /// The message was sent to the mailbox store, and the answer is missing.
    #[error("the outcome of an append is unknown: {0}")]
    Unknown(MailboxError),
    /// The database failed.
    #[error("the database: {0}")]
    Database(DatabaseError),
    /// The mailbox store failed.
    #[error("the mailbox store: {0}")]
    Mailbox(MailboxError),
}

/// How long each stage of a delivery took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    /// Connecting to the database, the IMAP server's greeting beside it.
    pub connect: Duration,
    /// Asking the database whose addresses these are.
    pub route: Duration,
    /// Logging in to the mailboxes, and asking an IMAP server where they stand: side by side.
    pub authenticate: Duration,
    /// Asking where the mailboxes stand, if that was not asked with the login.
    pub position: Duration,
    /// Writing the journal.
    pub journal: Duration,
    /// Getting the lock, waiting for it included.
    pub lock: Duration,
    /// Reading the ledger under the lock.
    pub look: Duration,
    /// Searching and appending.
    pub append: Duration,
    /// Recording, up to the COMMIT.
    pub record: Duration,
    /// The attempt under which the journal has it; `None` before there is one.
    pub attempt: Option<Uuid>,
    /// How often the database was waited for, once connected.
    pub database_round_trips: u32,
    /// How often the mailboxes' server was waited for, in all mailboxes that could be opened, TLS apart.
    pub imap_round_trips: u32,
}

impl Stages {
    /// The stages with their names, in their order.
    #[must_use]
    pub(crate) fn named(&self) -> [(&'static str, Duration); 9] {
        let [connect, route, authenticate, position, journal, lock, look, append, record] = STAGES;
        [
            (connect, self.connect),
            (route, self.route),
            (authenticate, self.authenticate),
            (position, self.position),
            (journal, self.journal),
            (lock, self.lock),
            (look, self.look),
            (append, self.append),
            (record, self.record),
        ]
    }

    /// The stages that took any time, in milliseconds to the hundredth, for the ledger: `{"connect":1.27,"lock":0.31}`.
    #[must_use]
    pub fn as_json(&self) -> String {
        let took = self.named().into_iter().filter(|(_, span)| !span.is_zero());
        let took: Vec<String> = took.map(|(name, span)| format!("\"{name}\":{}", milliseconds(span))).collect();
        format!("{{{}}}", took.join(","))
    }
}

/// Milliseconds to the hundredth: most stages take less than one.
#[must_use]
pub fn milliseconds(span: Duration) -> f64 {
    (span.as_secs_f64() * 100_000.0).round() / 100.0
}
