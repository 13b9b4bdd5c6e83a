//! `--via`: hands the message over to the running service, if there is one.

use super::incoming::caller_gone;
use crate::base::deadline::Deadline;
use crate::delivery::{Caller, StatusDetail, Verdict};
use crate::protocol::client::{self, Handover, Lost, NotTaken, milliseconds};
use crate::protocol::{Recipient, Request};
use crate::site::Envelope;
use std::path::Path;
use std::time::Duration;
use tracing::{debug, warn};

/// Hands a message over, and waits for its verdict. `Ok` means that this process must not deliver the message: the service
/// has it or may have it, or the caller has died.
///
/// # Errors
/// The reason why the service certainly does not have the message, so that this process may deliver it.
pub(super) fn hand_over(
    socket: &Path,
    envelope: &Envelope,
    lock_wait: Option<Duration>,
    raw: &[u8],
    caller: &dyn Caller,
    deadline: Deadline,
) -> Result<Verdict, String> {
    let request = request(envelope, lock_wait, raw);
    let verdict = match client::hand_over(socket, Handover { request: &request, message: raw, caller, deadline }) {
        client::HandoverResult::NotTaken(NotTaken { why, .. }) => return Err(why),
        client::HandoverResult::CallerGone => {
            let verdict = caller_gone();
            warn!(verdict = %verdict, queue_id = envelope.queue_id, "no message");
            verdict
        }
        client::HandoverResult::Answered(verdicts) => {
            verdicts.into_iter().next().unwrap_or_else(|| deferred(Lost::Nonsense))
        }
        client::HandoverResult::Lost(lost) => deferred(lost),
    };
    debug!(id = %request.id, queue_id = envelope.queue_id, %verdict, "handed over to the service");
    Ok(verdict)
}

/// The message may have been delivered already. The retry finds that in the ledger.
fn deferred(lost: Lost) -> Verdict {
    let detail = match lost {
        Lost::Connection => StatusDetail::BAD_CONNECTION,
        Lost::Silent => StatusDetail::NO_ANSWER,
        Lost::Nonsense => StatusDetail::SYSTEM,
    };
    Verdict::deferred(detail, lost.to_string())
}

fn request(envelope: &Envelope, lock_wait: Option<Duration>, raw: &[u8]) -> Request {
    let recipient =
        Recipient { address: envelope.recipient.to_string(), original: envelope.original_recipient.clone() };
    let sender = envelope.sender.clone().unwrap_or_default();
    Request {
        queue_id: envelope.queue_id.clone(),
        client_address: envelope.client_address.clone(),
        sasl_username: envelope.sasl_username.clone(),
        lock_wait_ms: lock_wait.map(milliseconds),
        ..Request::new(sender, vec![recipient], raw.len() as u64)
    }
}
