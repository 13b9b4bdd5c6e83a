//! The trace of one message, as `trace` and the web UI show it, and in JSON.

use crate::base::timestamp;
use crate::database::columns_of;
use crate::ledger::audit_queries::EarlierDelivery;
use crate::ledger::notifications::by_message::NotifiedEvent;
use crate::ledger::{AttemptResult, Cause, FailedDelivery, Outcome, stage_times};
use crate::lock::{Holder, LockName};
use crate::message::Role;
use serde::ser::{Serialize, Serializer};
use std::time::Duration;
use uuid::Uuid;

/// Everything that is known of a message.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct MessageTrace {
    pub(crate) message_id: String,
    /// The digest of Message-ID and what the author wrote.
    pub(crate) identity: String,
    /// The lock that guards it, and its present holder.
    pub(crate) lock: HeldLock,
    /// What was recorded with the first copy; `None` if none is delivered yet.
    pub(crate) message: Option<RecordedMessage>,
    /// Recipients' copies first, by user.
    pub(crate) copies: Vec<TracedCopy>,
    /// The oldest first.
    pub(crate) attempts: Vec<TracedAttempt>,
    /// The deliveries that failed before their journal, also those that are over.
    pub(crate) failures: Vec<FailedDelivery>,
    /// The notifications of its events; `None` if they were not requested, or if this role may not read them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) notifications: Option<Vec<NotifiedEvent>>,
}

/// A lock and its holder.
#[derive(Clone, Debug)]
pub(crate) struct HeldLock {
    pub(crate) name: LockName,
    /// The present holder.
    pub(crate) holder: Option<Holder>,
}

/// A message as it was recorded.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct RecordedMessage {
    #[serde(skip)]
    pub(super) message_id: String,
    /// The envelope sender; empty for the null sender.
    pub(crate) sender: String,
    pub(crate) from: Option<String>,
    pub(crate) to: Option<String>,
    pub(crate) subject: Option<String>,
    pub(crate) size: u64,
    /// In microseconds since 1970.
    #[serde(serialize_with = "timestamp::serialize")]
    pub(crate) recorded_at: i64,
    /// Whether its source is kept in the database.
    pub(crate) source_kept: bool,
}

columns_of! { RecordedMessage: message_id, sender, from, to, subject, size, recorded_at, source_kept }

/// A copy that is delivered or owed.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct TracedCopy {
    /// The copy's key.
    #[serde(skip)]
    pub(crate) key: [u8; 32],
    pub(crate) role: Role,
    pub(crate) user: String,
    pub(crate) mailbox: String,
    /// The envelope recipient of the delivery that brought it, or owes it.
    pub(crate) recipient: String,
    /// Whether it is delivered; otherwise it is owed.
    #[serde(rename = "state", serialize_with = "delivered_or_owed")]
    pub(crate) delivered: bool,
    /// Its location, if the server reported it.
    pub(crate) uid_validity: Option<u32>,
    pub(crate) uid: Option<u32>,
    /// Why it is owed.
    pub(crate) reason: Option<String>,
    /// In microseconds since 1970.
    #[serde(serialize_with = "timestamp::serialize_optional")]
    pub(crate) delivered_at: Option<i64>,
    /// In microseconds since 1970.
    #[serde(serialize_with = "timestamp::serialize")]
    pub(crate) updated_at: i64,
}

columns_of! { TracedCopy:
    key, role, user, mailbox, recipient, delivered, uid_validity, uid, reason, delivered_at, updated_at
}

/// One process's attempt at a message.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct TracedAttempt {
    #[serde(serialize_with = "as_text")]
    pub(crate) attempt: Uuid,
    #[serde(skip)]
    pub(super) message_id: String,
    pub(crate) recipient: String,
    pub(crate) queue_id: Option<String>,
    /// The envelope sender of the delivery; empty for the null sender, `None` if that is not known.
    pub(crate) sender: Option<String>,
    pub(crate) host: String,
    pub(crate) pid: u32,
    #[serde(skip)]
    pub(super) session: Option<u64>,
    /// In microseconds since 1970.
    #[serde(serialize_with = "timestamp::serialize")]
    pub(crate) began_at: i64,
    /// When the last of its copies ended, if all have.
    #[serde(serialize_with = "timestamp::serialize_optional")]
    pub(crate) ended_at: Option<i64>,
    /// Whether it holds the lock now.
    pub(crate) holds_the_lock: bool,
    /// If it ended because another attempt had the lock: that attempt, if the journal shows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lock_was_held_by: Option<LockHeldThen>,
    /// Its copies, the recipient's first.
    pub(crate) copies: Vec<TriedCopy>,
    /// Milliseconds of each stage, in their order.
    #[serde(rename = "stages_ms", serialize_with = "stage_times::serialize")]
    pub(crate) stages: Vec<(&'static str, f64)>,
}

columns_of! { TracedAttempt:
    attempt, message_id, recipient, queue_id, sender, host, pid, session, began_at, stages;
    ended_at: None, holds_the_lock: false, lock_was_held_by: None, copies: Vec::new()
}

/// The attempt that had the lock when another one gave up waiting for it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct LockHeldThen {
    pub(crate) host: String,
    pub(crate) pid: u32,
    pub(crate) queue_id: Option<String>,
    /// For how long in all; `None` if it still has it.
    #[serde(rename = "held_for_s", serialize_with = "in_seconds")]
    pub(crate) held_for: Option<Duration>,
}

/// When an attempt waited for its message's lock and had it, in microseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockSpan {
    /// The beginning and end of its wait. It asks for the lock right after its journal is written, which the journal
    /// records as its beginning.
    pub(crate) asked_at: i64,
    pub(crate) waited_until: i64,
    /// The time until which it then had the lock.
    pub(crate) had: Had,
}

/// The time until which an attempt had the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Had {
    /// It never got the lock.
    Never,
    Until(i64),
    /// It has the lock now.
    Still,
}

/// An attempt's part in one copy.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct TriedCopy {
    /// The copy's key.
    #[serde(skip)]
    pub(crate) key: [u8; 32],
    pub(crate) role: Role,
    pub(crate) user: String,
    pub(crate) mailbox: String,
    /// The envelope recipient. One attempt may be for several.
    pub(crate) recipient: String,
    /// How the attempt at it ended; `None` if it has not.
    #[serde(serialize_with = "as_optional_text")]
    pub(crate) outcome: Option<Outcome>,
    /// In microseconds since 1970.
    #[serde(serialize_with = "timestamp::serialize_optional")]
    pub(crate) ended_at: Option<i64>,
    /// If a recipient's copy was in the mailbox already: the delivery that brought it.
    pub(crate) earlier: Option<EarlierDelivery>,
}

columns_of! { TriedCopy: key, role, user, mailbox, recipient, outcome, ended_at; earlier: None }

fn as_text<S: Serializer>(name: &impl std::fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(name)
}

fn in_seconds<S: Serializer>(span: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    span.map(|span| span.as_secs_f64()).serialize(serializer)
}

fn as_optional_text<S: Serializer>(text: &Option<Outcome>, serializer: S) -> Result<S::Ok, S::Error> {
    text.as_ref().map(ToString::to_string).serialize(serializer)
}

fn delivered_or_owed<S: Serializer>(delivered: &bool, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(if *delivered { "delivered" } else { "owed" })
}

impl Serialize for HeldLock {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let holder = self.holder.as_ref().map(|holder| {
            serde_json::json!({
                "host": holder.host,
                "pid": holder.pid,
                "queue_id": holder.queue_id,
                "session": holder.session,
                "held_for_s": holder.held_for.map(|held_for| held_for.as_secs_f64()),
            })
        });
        // As text: many programs round JSON numbers above 2^53.
        let (postgresql, mysql) = (self.name.postgres_key().to_string(), self.name.mysql_name());
        serde_json::json!({ "postgresql": postgresql, "mysql": mysql, "holder": holder }).serialize(serializer)
    }
}

impl TracedAttempt {
    /// The part of the attempt that was for this envelope recipient.
    pub(crate) fn part_for(&self, recipient: &str) -> Option<Self> {
        let copies: Vec<TriedCopy> = self.copies.iter().filter(|copy| copy.recipient == recipient).cloned().collect();
        (!copies.is_empty()).then(|| Self { copies, ..self.clone() })
    }

    /// The result of the attempt.
    pub(crate) fn result(&self) -> AttemptResult {
        AttemptResult::of_attempt(self.copies.iter().map(|copy| (copy.role, copy.result())))
    }

    /// The envelope sender of the delivery, if it is known and differs from the one that the message is recorded with.
    pub(crate) fn another_sender(&self, message: Option<&RecordedMessage>) -> Option<&str> {
        let recorded = message.map(|message| message.sender.as_str());
        self.sender.as_deref().filter(|sender| recorded != Some(sender))
    }

    /// When it waited for the lock and had it; `None` if that is not known. The length of the wait is known once the
    /// attempt has ended.
    pub(crate) fn lock_span(&self) -> Option<LockSpan> {
        let asked_at = self.began_at;
        let waited = self.stages.iter().find(|(stage, _)| *stage == "lock").map(|(_, took)| (took * 1000.0) as i64);
        let Some(ended_at) = self.ended_at else {
            let waited_until = asked_at.saturating_add(waited.unwrap_or_default());
            return self.holds_the_lock.then_some(LockSpan { asked_at, waited_until, had: Had::Still });
        };
        let in_vain = |copy: &TriedCopy| {
            matches!(copy.outcome, Some(Outcome::Busy | Outcome::Deferred(Cause::LockUnanswered, _)))
        };
        let had = if self.copies.iter().any(in_vain) { Had::Never } else { Had::Until(ended_at) };
        Some(LockSpan { asked_at, waited_until: asked_at.saturating_add(waited?).min(ended_at), had })
    }
}

impl TriedCopy {
    /// The result for this copy.
    pub(crate) fn result(&self) -> AttemptResult {
        AttemptResult::of_copy(self.outcome.as_ref())
    }
}
