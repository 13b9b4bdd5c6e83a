//! What came of a delivery.

use crate::database::DatabaseError;
use crate::ledger::Outcome;
use crate::ledger::audit_queries::EarlierDelivery;
use crate::lock::Holder;
use crate::mailbox::{MailboxError, Placement};
use crate::message::Role;
use std::time::Duration;
use thiserror::Error;

/// Everything that is owed is in its mailbox and in the ledger, durably, or is recorded as owed.
#[derive(Debug)]
pub struct Delivered {
    /// The copies, the recipient's first.
    pub copies: Vec<CopyReport>,
    /// Where the recipient's copy was there already: how it came to be there, if that was asked.
    pub brought: Option<EarlierDelivery>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyReport {
    pub role: Role,
    pub user: String,
    pub mailbox: String,
    pub manner: Manner,
}

/// How a copy came to be where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Manner {
    /// We appended it now; where, if the server told.
    Appended(Option<Placement>),
    /// An attempt that never ended had appended it, or the author's own mail program had.
    Adopted(Option<Placement>),
    /// The ledger had it as delivered.
    AlreadyThere,
    /// The sender's copy could not be appended, and is recorded as owed; why.
    Owed(String),
}

impl Manner {
    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            Self::Appended(_) => Outcome::Appended,
            Self::Adopted(_) => Outcome::Adopted,
            Self::AlreadyThere => Outcome::AlreadyThere,
            Self::Owed(_) => Outcome::Owed,
        }
    }

    /// The word for the log, and for the sender.
    pub fn as_str(&self) -> &'static str {
        self.outcome().word()
    }
}

/// A delivery that did not happen.
#[derive(Clone, Debug, Error)]
pub enum Refusal {
    /// For now: the message stays with the host that sent it here, which tries again.
    #[error(transparent)]
    Deferred(#[from] Deferral),
    /// For good.
    #[error("unknown recipient")]
    UnknownRecipient,
    /// For good, because the operator chose so.
    #[error("over quota: {0}")]
    OverQuota(MailboxError),
}

/// Why a delivery is deferred.
#[derive(Clone, Debug, Error)]
pub enum Deferral {
    /// Never success: that other delivery may still fail.
    #[error("another delivery of this message holds its lock")]
    Busy(Option<Holder>),
    #[error("an earlier attempt never ended, and began only {0:?} ago: its copy may still arrive")]
    Unsettled(Duration),
    #[error("unknown recipient, which routing.unknown defers")]
    UnknownRecipient,
    /// No address is known at all: the table is not yet filled, or it is the wrong database. No reason to refuse mail.
    #[error("the table of addresses is empty")]
    NobodyKnown,
    /// The recipient was not in it, and now is; or it has become empty.
    #[error("the table of addresses has just been changed")]
    AddressesChanged,
    /// Before the append: its connection ended, or its server forgot it.
    #[error("the lock was lost on the way")]
    LockLost,
    /// Or has just delivered it; which host, if that is known.
    #[error(
        "{} delivers this message under another lock, which excludes nobody here: lock.namespace has to be the same on all hosts",
        .0.as_deref().unwrap_or("another host")
    )]
    OtherLock(Option<String>),
    #[error("the program that handed the message over has died: it may not be all of it")]
    CallerGone,
    /// The server forgot a commit (fail-over), or reads elsewhere than it writes (a read/write split).
    #[error("the journal does not show what was just written to it")]
    JournalForgotten,
    #[error("the outcome of an append is unknown: {0}")]
    Unknown(MailboxError),
    #[error("the database: {0}")]
    Database(DatabaseError),
    #[error("the mailbox store: {0}")]
    Mailbox(MailboxError),
    /// What cannot happen, and has: no setting of the operator's mends it.
    #[error("an internal error: {0}")]
    Internal(&'static str),
}
