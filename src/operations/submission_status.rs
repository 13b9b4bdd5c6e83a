//! The state of a message that the API has accepted, for each recipient: from the queue of this host, and from the ledger.

use crate::base::text_enum::text_enum;
use crate::config::MAX_RECIPIENTS;
use crate::database::DatabaseError;
use crate::ledger::Database;
use crate::ledger::failures::{FailuresOf, failed_deliveries};
use crate::ledger::notifications::history::{Message, message};
use crate::ledger::submissions::{self, Submission};
use crate::message::{Role, as_stored};
use crate::queue::{Entry, Queue, QueueError, State};
use std::path::Path;
use thiserror::Error;

text_enum! {
    /// The state of a submission, overall or for one recipient. The first one that any recipient has is that of all.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) enum SubmissionState {
        /// It is in the queue, and is tried until it is delivered. On another host than the queue's: it is not delivered yet.
        Queued = "queued",
        /// An operator holds it back, or its file cannot be read.
        Held = "held",
        /// It was refused for good, and the queue keeps it for an operator.
        Refused = "refused",
        /// Neither the queue nor the ledger has it: an operator has removed it, or the ledger's rows were pruned.
        Gone = "gone",
        Delivered = "delivered",
    }
}

/// The state of a submission for one recipient.
#[derive(Clone, Debug)]
pub(crate) struct SubmittedRecipient {
    pub(crate) address: String,
    pub(crate) state: SubmissionState,
    /// Why it is refused or cannot be read, or why the last try failed before the mailbox was open.
    pub(crate) reason: Option<String>,
    /// How often the queue has tried and deferred it; 0 once the queue does not have it.
    pub(crate) tries: u32,
    /// In microseconds since 1970.
    pub(crate) next_try: Option<i64>,
}

#[derive(Clone, Debug)]
pub(crate) struct SubmissionStatus {
    pub(crate) submission: Submission,
    /// In microseconds since 1970.
    pub(crate) accepted_at: i64,
    pub(crate) recipients: Vec<SubmittedRecipient>,
    /// Known once a copy is delivered.
    pub(crate) message: Option<Message>,
}

/// Why the state of a submission is not known now.
#[derive(Debug, Error)]
pub(crate) enum StatusUnknown {
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// The state of the submission with this id; `None` if there is none. `host` has the queue in `folder`.
///
/// # Errors
/// If the ledger or the queue cannot be read.
pub(crate) fn status(
    database: &mut dyn Database,
    (host, folder): (&str, &Path),
    id: &str,
) -> Result<Option<SubmissionStatus>, StatusUnknown> {
    let Some((submission, accepted_at)) = submissions::read(database, id)? else { return Ok(None) };
    // The queue first: what leaves it meanwhile was recorded before, and the ledger is read after.
    let is_here = submission.host == host;
    let queued = if is_here { in_queue(folder, id, submission.recipients.len())? } else { Vec::new() };
    let message = message(database, &submission.identity)?;
    let copies = message.iter().flat_map(|message| &message.copies);
    let copies = copies.filter(|copy| copy.role == Role::Recipient && copy.delivered);
    let mut delivered: Vec<String> = copies.map(|copy| copy.recipient.clone()).collect();
    delivered.extend(submissions::delivered_recipients(database, &submission)?);
    let failed = failed_deliveries(database, FailuresOf::Message(&submission.identity), None, MAX_RECIPIENTS as usize)?;
    let of_recipient = |address: &String| {
        let has = |entry: &&Entry| entry.recipients.iter().any(|other| as_stored(other) == *address);
        let waiting = queued.iter().find(has);
        let state = match waiting.map(|entry| entry.state) {
            Some(State::New | State::Work | State::Shunted) => SubmissionState::Queued,
            Some(State::Held | State::Bad) => SubmissionState::Held,
            Some(State::Refused) => SubmissionState::Refused,
            None if delivered.contains(address) => SubmissionState::Delivered,
            None if is_here => SubmissionState::Gone,
            None => SubmissionState::Queued,
        };
        let failed = failed.iter().find(|failed| failed.recipient == *address && state == SubmissionState::Queued);
        let reason = waiting.and_then(|entry| entry.reason.clone());
        SubmittedRecipient {
            address: address.clone(),
            state,
            reason: reason.or_else(|| failed.map(|failed| failed.cause.reason())),
            tries: waiting.map_or(0, |entry| entry.tries),
            next_try: waiting.and_then(|entry| entry.next_try),
        }
    };
    let recipients = submission.recipients.iter().map(of_recipient).collect();
    Ok(Some(SubmissionStatus { submission, accepted_at, recipients, message }))
}

fn in_queue(folder: &Path, id: &str, recipients: usize) -> Result<Vec<Entry>, QueueError> {
    match Queue::existing(folder) {
        Ok(queue) => queue.parts_of(id, recipients),
        Err(QueueError::NoQueue { .. }) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
