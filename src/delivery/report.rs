//! The report of a delivery: the copies that are delivered or owed, or why it is refused or deferred.

use crate::database::{DatabaseError, DatabaseFailure};
use crate::ledger::audit_queries::EarlierDelivery;
use crate::ledger::{Cause, Outcome};
use crate::lock::Holder;
use crate::mailbox::{MailboxError, MailboxFailure, Placement};
use crate::message::Role;
use std::time::Duration;
use thiserror::Error;

/// All owed copies are durably in their mailboxes and in the ledger, or are recorded as owed.
#[derive(Debug)]
pub struct Delivered {
    /// The copies, the recipient's first.
    pub copies: Vec<CopyReport>,
    /// How the recipient's copy was delivered before; set only if it was already there and the ledger was queried.
    pub brought: Option<EarlierDelivery>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyReport {
    pub role: Role,
    pub user: String,
    pub mailbox: String,
    pub manner: Manner,
}

/// How a copy got into its mailbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Manner {
    /// This delivery appended it, with the UID if the server reported one.
    Appended(Option<Placement>),
    /// An attempt that never ended had appended it, or the author's own mail program had saved it.
    Adopted(Option<Placement>),
    /// The ledger had it as delivered.
    AlreadyThere,
    /// The sender's copy could not be appended and is recorded as owed, for this reason.
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

/// Why a recipient's message was not delivered.
#[derive(Clone, Debug, Error)]
pub enum Refusal {
    /// The message stays with Postfix or the sending host, which retries.
    #[error(transparent)]
    Deferred(#[from] Deferral),
    /// Refused for good (5.1.1).
    #[error("unknown recipient")]
    UnknownRecipient,
    /// Refused for good (5.2.2), only if the operator configured that.
    #[error("over quota: {0}")]
    OverQuota(MailboxError),
}

/// Why a delivery is deferred.
#[derive(Clone, Debug, Error)]
pub enum Deferral {
    /// Never a success: the delivery that holds the lock may still fail.
    #[error("another delivery of this message holds its lock")]
    Busy(Option<Holder>),
    #[error("an earlier attempt never ended, and began only {0:?} ago: its copy may still arrive")]
    Unsettled(Duration),
    #[error("unknown recipient: the table addresses has no row for it, and routing.unknown_recipient = \"defer\"")]
    UnknownRecipient,
    /// No address is known at all: the table is not filled yet, or this is the wrong database. Mail must not be refused for
    /// that.
    #[error("the table of addresses is empty")]
    NobodyKnown,
    /// The row was written for a later version, which may deliver to other destinations.
    #[error(
        "the row {0} of the table addresses names a destination, or no IMAP user: this version delivers only to IMAP users"
    )]
    NoImapUser(String),
    /// Between two queries, the recipient was added to the table, or the table became empty.
    #[error("the table of addresses has just been changed")]
    AddressesChanged,
    /// The lock was lost before the append: its connection ended, or its server forgot it.
    #[error("the lock was lost on the way")]
    LockLost,
    /// The other host delivers the message, or has just delivered it. `None` if its name is unknown.
    #[error(
        "{} delivers this message under another lock, which excludes nobody here: lock.namespace has to be the same on all hosts",
        .0.as_deref().unwrap_or("another host")
    )]
    OtherLock(Option<String>),
    #[error("the program that handed the message over has died: it may not be all of it")]
    CallerGone,
    /// The server forgot a commit (fail-over), or reads and writes on different servers (a read/write split).
    #[error("the journal does not show what was just written to it")]
    JournalForgotten,
    #[error("the outcome of an append is unknown: {0}")]
    Unknown(MailboxError),
    #[error("the database: {0}")]
    Database(DatabaseError),
    #[error("the mailbox store: {0}")]
    Mailbox(MailboxError),
    /// A state that the code excludes has occurred: no setting fixes that.
    #[error("an internal error: {0}")]
    Internal(&'static str),
}

impl Refusal {
    /// How a delivery ended that has no journal; `None` if that cannot be recorded, or need not be.
    pub(crate) fn outcome_before_journal(&self) -> Option<Outcome> {
        match self {
            Self::UnknownRecipient => Some(Outcome::Refused(Cause::UnknownRecipient.as_str().into())),
            Self::OverQuota(error) => Some(Outcome::Refused(format!("{}: {error}", error.failure.as_str()))),
            Self::Deferred(deferral) => deferral.outcome_before_journal(),
        }
    }
}

impl Deferral {
    /// As [`Refusal::outcome_before_journal`].
    pub(crate) fn outcome_before_journal(&self) -> Option<Outcome> {
        use DatabaseFailure::{AccessDenied, Other, Refused, Schema};
        let (cause, detail) = match self {
            Self::UnknownRecipient => (Cause::UnknownRecipient, None),
            Self::NobodyKnown => (Cause::NobodyKnown, None),
            Self::NoImapUser(_) => (Cause::NoImapUser, None),
            Self::AddressesChanged => (Cause::AddressesChanged, None),
            Self::Mailbox(error) => (Cause::Mailbox(error.failure), Some(error.to_string())),
            Self::Internal(what) => (Cause::Mailbox(MailboxFailure::Internal), Some((*what).into())),
            Self::Database(error) if matches!(error.failure, AccessDenied | Other | Refused | Schema) => {
                (Cause::JournalRefused, Some(error.to_string()))
            }
            // A database that cannot be reached or takes no writes takes no failure either.
            Self::Database(_) => return None,
            // These are in the journal.
            Self::Busy(_)
            | Self::Unsettled(_)
            | Self::LockLost
            | Self::OtherLock(_)
            | Self::CallerGone
            | Self::JournalForgotten
            | Self::Unknown(_) => return None,
        };
        Some(Outcome::Deferred(cause, detail))
    }
}
