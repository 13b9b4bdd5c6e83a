//! The log record of a delivery.

use super::Envelope;
use crate::base::{hex, timestamp};
use crate::delivery::{CopyReport, Deferral, Delivered, Refusal, Stages, Verdict, milliseconds};
use crate::lock::LockName;
use crate::message::Message;
use std::time::Instant;
use tracing::{info, warn};

/// Logs a delivery as one record. The record has Postfix's queue id, so one search finds the message in both logs. docs/log.md
/// explains each field.
pub fn log_delivery(
    message: &Message,
    envelope: &Envelope,
    lock: &LockName,
    result: &Result<Delivered, Refusal>,
    verdict: &Verdict,
    stages: &Stages,
    began: Instant,
) {
    macro_rules! record {
        ($level:ident, $text:literal, $($field:tt)*) => {
            $level!(
                queue_id = envelope.queue_id.as_deref().unwrap_or_default(),
                message_id = message.message_id_for_people(),
                message_key = hex::encode(message.identity().as_bytes()),
                lock = lock.mysql_name(),
                attempt = stages.attempt.map(tracing::field::display),
                recipient = %envelope.recipient,
                original_recipient = envelope.original_recipient.as_deref().unwrap_or_default(),
                sender = envelope.sender.as_deref().unwrap_or_default(),
                client_address = envelope.client_address.as_deref().unwrap_or_default(),
                sasl_username = envelope.sasl_username.as_deref().unwrap_or_default(),
                size = message.size(),
                verdict = %verdict,
                connect_ms = milliseconds(stages.connect),
                route_ms = milliseconds(stages.route),
                authenticate_ms = milliseconds(stages.authenticate),
                position_ms = milliseconds(stages.position),
                journal_ms = milliseconds(stages.journal),
                lock_ms = milliseconds(stages.lock),
                look_ms = milliseconds(stages.look),
                append_ms = milliseconds(stages.append),
                record_ms = milliseconds(stages.record),
                total_ms = milliseconds(began.elapsed()),
                database_round_trips = stages.database_round_trips,
                imap_round_trips = stages.imap_round_trips,
                $($field)*
                $text
            )
        };
    }
    match result {
        Ok(delivered) => {
            let in_words = |copy: &CopyReport| format!("{} {}", copy.role.as_str(), copy.manner.as_str());
            let copies: Vec<String> = delivered.copies.iter().map(in_words).collect();
            let brought = delivered.brought.as_ref();
            record!(
                info,
                "delivered",
                copies = copies.join(", "),
                earlier_queue_id = brought.and_then(|brought| brought.queue_id.as_deref()),
                earlier_host = brought.and_then(|brought| brought.host.as_deref()),
                earlier_sender = brought.and_then(|brought| brought.sender.as_deref()),
                earlier_at = brought.map(|brought| timestamp::exact(brought.delivered_at)),
            );
        }
        Err(refusal @ Refusal::Deferred(Deferral::Busy(holder))) => {
            let holder = holder.clone().unwrap_or_default();
            record!(
                info,
                "deferred",
                cause = %refusal,
                holder_host = holder.host,
                holder_pid = holder.pid,
                holder_queue_id = holder.queue_id,
                holder_session = holder.session,
                held_for_s = holder.held_for.map(|held_for| held_for.as_secs()),
            );
        }
        Err(refusal @ Refusal::Deferred(_)) => record!(warn, "deferred", cause = %refusal,),
        Err(refusal) => record!(warn, "refused", cause = %refusal,),
    }
}
