//! How an attempt at one copy ended, and the text of that in the ledger.
//!
//! Deliveries and `audit --repair` write an [`Outcome`]; `trace`, `stats` and other readers of the journal parse it.

use crate::mailbox::MailboxFailure;
use crate::message::Role;
use std::fmt;

/// How an attempt at one copy ended. An attempt that sent an APPEND and got no answer does not end, and has no outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The copy was appended.
    Appended,
    /// The copy was found in the mailbox, and recorded instead of appended again.
    Adopted,
    /// The ledger had the copy as delivered.
    AlreadyThere,
    /// Like `AlreadyThere`, but the mailbox could not be searched for a copy that an earlier attempt may have left there.
    AlreadyThereUnchecked,
    /// The Sent copy could not be made, and is recorded as owed.
    Owed,
    /// Another delivery of the message held its lock.
    Busy,
    /// Deferred for another cause, with the text of the server or the system, if there is one.
    Deferred(Cause, Option<String>),
    /// Refused by a rule of the operator, with the reason.
    Refused(String),
    /// The process of the attempt died before it could record an end; a later attempt has searched for its copy.
    Died,
    /// `audit --repair` removed a duplicated copy.
    AuditTookOut,
    /// `audit --repair` recorded that it would remove a copy, but left it.
    AuditLeft,
    /// A text of another release, which this one does not know.
    Other(String),
}

/// Why an attempt was deferred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// An earlier attempt for the same recipient never ended. That attempt is too young: its APPEND may still take effect, so a
    /// search would prove nothing.
    Unsettled,
    /// Another host delivers this message under another lock.
    OtherLock,
    /// The journal's row that was just written is missing.
    JournalForgotten,
    /// The ledger could not be read under the lock.
    LedgerUnreadable,
    /// The database did not answer the request for the lock.
    LockUnanswered,
    /// The program that submitted the message has died.
    CallerGone,
    /// The recipient's copy failed, so the Sent copy was not tried.
    RecipientsCopyFailed,
    /// No row of `addresses` has the recipient, and `routing.unknown_recipient` defers.
    UnknownRecipient,
    /// The table `addresses` has no row at all.
    NobodyKnown,
    /// The recipient's row of `addresses` names no IMAP user.
    NoImapUser,
    /// The table `addresses` was changed while it was read.
    AddressesChanged,
    /// The database refused the journal.
    JournalRefused,
    /// The mailbox store failed.
    Mailbox(MailboxFailure),
    /// A cause of another release, which this one does not know, in that release's words.
    Another(String),
}

const DEFERRED: &str = "deferred: ";
const REFUSED: &str = "refused: ";

impl Outcome {
    /// The outcomes without details, whose text is always the same.
    const PLAIN: [Self; 9] = [
        Self::Appended,
        Self::Adopted,
        Self::AlreadyThere,
        Self::AlreadyThereUnchecked,
        Self::Owed,
        Self::Busy,
        Self::Died,
        Self::AuditTookOut,
        Self::AuditLeft,
    ];

    /// The outcome without its details.
    #[must_use]
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Appended => "appended",
            Self::Adopted => "adopted",
            Self::AlreadyThere => "already there",
            Self::AlreadyThereUnchecked => "already there; not looked for",
            Self::Owed => "owed",
            Self::Busy => "busy",
            Self::Deferred(..) => "deferred",
            Self::Refused(_) => "refused",
            Self::Died => "died; its copy was looked for",
            Self::AuditTookOut => "audit: took out a copy too many",
            Self::AuditLeft => "audit: left a copy too many",
            Self::Other(_) => "other",
        }
    }

    /// Why the attempt was deferred or refused, for people; for any other outcome its whole text.
    #[must_use]
    pub(crate) fn reason(&self) -> String {
        let text = self.to_string();
        let reason = text.strip_prefix(DEFERRED).or_else(|| text.strip_prefix(REFUSED));
        reason.map_or_else(|| text.clone(), ToOwned::to_owned)
    }

    /// The outcome without the text of a server or the system.
    #[must_use]
    pub(crate) fn without_detail(&self) -> Self {
        match self {
            Self::Deferred(cause, _) => Self::Deferred(cause.clone(), None),
            other => other.clone(),
        }
    }

    /// Parses a text from the ledger.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        if let Some(plain) = Self::PLAIN.into_iter().find(|plain| plain.word() == text) {
            return plain;
        }
        if let Some(why) = text.strip_prefix(REFUSED) {
            return Self::Refused(why.to_owned());
        }
        match text.strip_prefix(DEFERRED).map(|rest| (rest, Cause::split(rest))) {
            Some((_, Some((cause, detail)))) => Self::Deferred(cause, detail),
            Some((rest, None)) => Self::Deferred(Cause::Another(rest.to_owned()), None),
            None => Self::Other(text.to_owned()),
        }
    }
}

/// A reason in the ledger, without the text of the server or of the system, which may name hosts: for readers outside the
/// site.
#[must_use]
pub(crate) fn public_reason(reason: &str) -> &str {
    let reason = reason.strip_prefix(DEFERRED).or_else(|| reason.strip_prefix(REFUSED)).unwrap_or(reason);
    reason.split_once(": ").map_or(reason, |(words, _)| words)
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deferred(cause, None) => write!(f, "{DEFERRED}{cause}"),
            Self::Deferred(cause, Some(detail)) => write!(f, "{DEFERRED}{cause}: {detail}"),
            Self::Refused(why) => write!(f, "{REFUSED}{why}"),
            Self::Other(text) => f.write_str(text),
            plain => f.write_str(plain.word()),
        }
    }
}

impl Cause {
    /// The causes that this release writes, except those of the mailbox store.
    const OWN: [Self; 12] = [
        Self::Unsettled,
        Self::OtherLock,
        Self::JournalForgotten,
        Self::LedgerUnreadable,
        Self::LockUnanswered,
        Self::CallerGone,
        Self::RecipientsCopyFailed,
        Self::UnknownRecipient,
        Self::NobodyKnown,
        Self::NoImapUser,
        Self::AddressesChanged,
        Self::JournalRefused,
    ];

    /// The fixed text under which deferrals are counted. The details are left out, since they differ from one message to the
    /// next.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Unsettled => "an earlier attempt may still land",
            Self::OtherLock => "another host has another lock",
            Self::JournalForgotten => "the journal was forgotten",
            Self::LedgerUnreadable => "the ledger could not be read",
            Self::LockUnanswered => "the lock could not be asked for",
            Self::CallerGone => "the client that passed the message has died",
            Self::RecipientsCopyFailed => "the recipient's copy failed",
            Self::UnknownRecipient => "unknown recipient",
            Self::NobodyKnown => "the table of addresses is empty",
            Self::NoImapUser => "the recipient has no IMAP user",
            Self::AddressesChanged => "the table of addresses was just changed",
            Self::JournalRefused => "the database refused the journal",
            Self::Mailbox(failure) => failure.as_str(),
            Self::Another(_) => ANOTHER_CAUSE,
        }
    }

    /// Parses a known cause, and the detail after it.
    fn split(text: &str) -> Option<(Self, Option<String>)> {
        let (words, detail) = text.split_once(": ").map_or((text, None), |(words, detail)| (words, Some(detail)));
        let mut known = Self::OWN.into_iter().chain(MailboxFailure::ALL.map(Self::Mailbox));
        known.find(|cause| cause.as_str() == words).map(|cause| (cause, detail.map(ToOwned::to_owned)))
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Another(words) => f.write_str(words),
            known => f.write_str(known.as_str()),
        }
    }
}

/// The name under which causes are counted that this release does not know.
const ANOTHER_CAUSE: &str = "another cause";

/// The result of an attempt, over all its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AttemptResult {
    /// Exit status 0.
    Delivered,
    /// Exit status 75: another delivery of the message held its lock.
    Busy,
    /// Exit status 75 for another cause ([`Cause::as_str`]).
    Deferred(&'static str),
    /// Exit status 65 or 77: refused by a rule of the operator.
    Refused,
    /// The process of the attempt died before it could record an end; a later attempt searched for its copy.
    Died,
    /// Not a delivery: `audit --repair`.
    Audit,
    /// The attempt has not ended: it is running, or its process died, or the result of its APPEND is unknown.
    Open,
}

impl AttemptResult {
    /// The result of the attempt at one copy; `None` is an attempt that has not ended.
    #[must_use]
    pub(crate) fn of_copy(outcome: Option<&Outcome>) -> Self {
        match outcome {
            None => Self::Open,
            Some(
                Outcome::Appended
                | Outcome::Adopted
                | Outcome::AlreadyThere
                | Outcome::AlreadyThereUnchecked
                | Outcome::Owed,
            ) => Self::Delivered,
            Some(Outcome::Busy) => Self::Busy,
            Some(Outcome::Deferred(cause, _)) => Self::Deferred(cause.as_str()),
            Some(Outcome::Refused(_)) => Self::Refused,
            Some(Outcome::Died) => Self::Died,
            Some(Outcome::AuditTookOut | Outcome::AuditLeft) => Self::Audit,
            Some(Outcome::Other(_)) => Self::Deferred(ANOTHER_CAUSE),
        }
    }

    /// The result of an attempt at several copies: the recipient's failure, or else the sender's.
    pub(crate) fn of_attempt(copies: impl Iterator<Item = (Role, Self)>) -> Self {
        let failed = copies.filter(|(_, result)| *result != Self::Delivered);
        failed.min_by_key(|(role, _)| *role == Role::Sender).map_or(Self::Delivered, |(_, result)| result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_is_read_back_from_its_text() {
        let causes = Cause::OWN.into_iter().chain(MailboxFailure::ALL.map(Cause::Mailbox));
        let deferred = causes.flat_map(|cause| {
            [None, Some(""), Some("appending: NO [OVERQUOTA] : x")]
                .map(|detail| Outcome::Deferred(cause.clone(), detail.map(ToOwned::to_owned)))
        });
        let others = [
            Outcome::Refused("over quota: appending: NO".into()),
            Outcome::Deferred(Cause::Another("appending: over quota: x".into()), None),
            Outcome::Other("a newer word".into()),
            Outcome::Other(String::new()),
        ];
        for outcome in Outcome::PLAIN.into_iter().chain(deferred).chain(others) {
            assert_eq!(Outcome::from_text(&outcome.to_string()), outcome);
        }
    }

    #[test]
    fn what_earlier_releases_have_written_is_still_read() {
        let result = |text: &str| {
            assert_eq!(Outcome::from_text(text).to_string(), text);
            AttemptResult::of_copy(Some(&Outcome::from_text(text)))
        };
        for text in ["appended", "adopted", "already there", "already there; not looked for", "owed"] {
            assert_eq!(result(text), AttemptResult::Delivered, "{text}");
        }
        assert_eq!(result("busy"), AttemptResult::Busy);
        assert_eq!(result("died; its copy was looked for"), AttemptResult::Died);
        assert_eq!(result("refused: over quota: appending: NO"), AttemptResult::Refused);
        assert_eq!(result("audit: took out a copy too many"), AttemptResult::Audit);
        assert_eq!(result("audit: left a copy too many"), AttemptResult::Audit);
        for cause in [
            "an earlier attempt may still land",
            "the journal was forgotten",
            "the ledger could not be read",
            "the lock could not be asked for",
            "the recipient's copy failed",
            "another host has another lock",
            "the client that passed the message has died",
            "the mailbox store refused",
            "the mailbox store refused for good",
        ] {
            assert_eq!(result(&format!("deferred: {cause}")), AttemptResult::Deferred(cause));
            assert_eq!(result(&format!("deferred: {cause}: x: y")), AttemptResult::Deferred(cause));
        }
        for text in ["deferred: appending: over quota: x", "deferred: the mailbox store refused us: x", "unknown", ""] {
            assert_eq!(result(text), AttemptResult::Deferred(ANOTHER_CAUSE), "{text}");
        }
        assert_eq!(AttemptResult::of_copy(None), AttemptResult::Open);
    }

    /// `stats` counts by these texts, and rows of earlier releases contain them.
    #[test]
    fn each_failure_of_a_mailbox_store_has_its_words() {
        use MailboxFailure as F;
        for (words, failure) in [
            ("the mailbox store is out of reach", F::Unreachable),
            ("the mailbox store refuses our account", F::AccessDenied),
            ("the mailbox store refuses the login", F::LoginRefused),
            ("the mailbox store ignores on whose behalf we come", F::IdentityIgnored),
            ("the mailbox store's connection was lost", F::ConnectionLost),
            ("the mailbox store did not answer in time", F::TimedOut),
            ("no such mailbox", F::NoSuchMailbox),
            ("over quota", F::OverQuota),
            ("the mailbox store refused", F::Refused),
            ("the mailbox store refused for good", F::RefusedForGood),
            ("the mailbox store's answer makes no sense", F::Protocol),
            ("something on this machine", F::Local),
            ("an internal error", F::Internal),
        ] {
            let outcome = Outcome::from_text(&format!("deferred: {words}: x"));
            assert_eq!(outcome, Outcome::Deferred(Cause::Mailbox(failure), Some("x".into())));
        }
    }

    #[test]
    fn people_are_reported_why_without_the_word_before_it() {
        let reason = |text: &str| Outcome::from_text(text).reason();
        assert_eq!(reason("deferred: over quota: appending: NO"), "over quota: appending: NO");
        assert_eq!((reason("refused: over quota"), reason("busy")), ("over quota".into(), "busy".into()));
    }

    #[test]
    fn a_reader_outside_the_site_learns_no_host_and_no_socket() {
        let unreachable = "the mailbox store is out of reach";
        for (text, shown) in [
            ("deferred: the mailbox store is out of reach: connecting to /run/dovecot/imap: refused", unreachable),
            ("the mailbox store is out of reach: connecting to 10.0.0.7:143: refused", unreachable),
            ("refused: over quota: appending: NO", "over quota"),
            ("deferred: unknown recipient", "unknown recipient"),
            ("left to the author", "left to the author"),
        ] {
            assert_eq!(public_reason(text), shown, "{text}");
        }
    }

    #[test]
    fn the_recipients_copy_speaks_first() {
        let failed = AttemptResult::Deferred("the recipient's copy failed");
        let quota = AttemptResult::Deferred("over quota");
        let of = |recipient, sender| {
            let both = [(Role::Recipient, recipient), (Role::Sender, sender)];
            let result = AttemptResult::of_attempt(both.into_iter());
            assert_eq!(AttemptResult::of_attempt(both.into_iter().rev()), result);
            result
        };
        assert_eq!(of(AttemptResult::Delivered, AttemptResult::Delivered), AttemptResult::Delivered);
        assert_eq!(of(quota, failed), quota);
        assert_eq!(of(AttemptResult::Delivered, quota), quota);
        assert_eq!(of(AttemptResult::Delivered, AttemptResult::Open), AttemptResult::Open);
        assert_eq!(AttemptResult::of_attempt([(Role::Sender, quota)].into_iter()), quota);
    }
}
