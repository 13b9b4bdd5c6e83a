//! All that the ledger has of a message, found by its Message-ID, a queue id or an address.

mod summary;

pub(crate) use summary::{RecipientState, RecipientSummary, held_then};

use crate::base::{hex, timestamp};
use crate::database::DatabaseError;
use crate::ledger::notifications::by_message;
use crate::ledger::trace::{self, By, FoundMessage, MessageTrace};
use crate::ledger::{Database, time_span};
use crate::lock::LockName;
use crate::message::{Address, fold};
use crate::site::Site;
use serde::Serialize;
use std::time::Duration;

/// What `trace --json` prints.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Trace {
    pub(crate) asked: Asked,
    /// The database's clock, in microseconds since 1970.
    #[serde(serialize_with = "timestamp::serialize")]
    pub(crate) now: i64,
    /// Whether there are more messages than the limit.
    pub(crate) more: bool,
    /// The newest first.
    pub(crate) messages: Vec<TracedMessage>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Asked {
    pub(crate) what: String,
    /// The meaning of the last search.
    #[serde(rename = "as")]
    pub(crate) taken_as: TakenAs,
    /// Whether another meaning was possible.
    #[serde(skip)]
    pub(crate) guessed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum TakenAs {
    #[serde(rename = "Message-ID")]
    MessageId,
    #[serde(rename = "queue id")]
    QueueId,
    /// The address of a recipient or an envelope sender, or the name of a mailbox's user.
    #[serde(rename = "address")]
    Address,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct TracedMessage {
    pub(crate) state: RecipientState,
    /// The state in a sentence.
    pub(crate) verdict: String,
    pub(crate) recipients: Vec<RecipientSummary>,
    #[serde(flatten)]
    pub(crate) trace: MessageTrace,
}

/// The times that decide the state of an attempt that has not ended.
struct Times {
    now: i64,
    /// `delivery.deadline`: after it, the attempt's process is gone.
    deadline: Duration,
    /// `imap.append_grace`: after it, the attempt's APPEND has landed or never will.
    append_grace: Duration,
}

/// Traces `what`: a Message-ID in angle brackets, a queue id (no `@`), or either a Message-ID or an address. The search
/// for queue ids and addresses covers attempts since `since` (microseconds since 1970). It returns the newest messages,
/// at most `limit`.
pub(crate) fn trace(
    site: &Site,
    database: &mut dyn Database,
    what: &str,
    since: i64,
    limit: usize,
) -> Result<Trace, DatabaseError> {
    let what = what.trim();
    let lock = site.lock_of_message_id(what.as_bytes());
    // In the spelling that the ledger stores: see `Delivery::recipient`.
    let address = Address::parse(what).map_or_else(|_| fold(what), |address| address.folded().to_string());
    let guessed = !what.starts_with('<') && what.contains('@');
    let (mut taken_as, by) = match what.starts_with('<') || guessed {
        true => (TakenAs::MessageId, By::Lock(&lock)),
        false => (TakenAs::QueueId, By::QueueId(what, since)),
    };
    let (mut found, mut more) = trace::find(database, by, limit)?;
    if guessed && found.is_empty() {
        taken_as = TakenAs::Address;
        (found, more) = trace::find(database, By::Address { address: &address, user: what, since }, limit)?;
    }
    let asked = Asked { what: what.to_owned(), taken_as, guessed };
    let (now, messages) = read(site, database, found)?;
    Ok(Trace { asked, now, more, messages })
}

/// Traces one message by its identity; `None` if the ledger knows nothing of it. A message without a delivered copy is
/// found only by its `lock`.
pub(crate) fn of_identity(
    site: &Site,
    database: &mut dyn Database,
    identity: [u8; 32],
    lock: Option<LockName>,
) -> Result<Option<(i64, TracedMessage)>, DatabaseError> {
    let Some(found) = trace::find_identity(database, identity, lock)? else { return Ok(None) };
    let (now, messages) = read(site, database, vec![found])?;
    let is_known = |MessageTrace { message, attempts, failures, .. }: &MessageTrace| {
        message.is_some() || !attempts.is_empty() || !failures.is_empty()
    };
    Ok(messages.into_iter().next().filter(|message| is_known(&message.trace)).map(|message| (now, message)))
}

/// All that the ledger has of these messages, and the database's clock.
fn read(
    site: &Site,
    database: &mut dyn Database,
    found: Vec<FoundMessage>,
) -> Result<(i64, Vec<TracedMessage>), DatabaseError> {
    let mut stories: Vec<MessageTrace> = Vec::new();
    for found in found {
        // Messages that share a Message-ID share a lock.
        let holder = match stories.iter().find(|other| other.lock.name == found.lock) {
            Some(other) => other.lock.holder.clone(),
            None => database.holder(&found.lock)?,
        };
        let mut story = trace::read(database, &found, holder)?;
        let identity = hex::decode(&story.identity).and_then(|bytes| bytes.try_into().ok());
        story.notifications =
            identity.map(|identity| by_message::of_message(database, &identity)).transpose()?.flatten();
        stories.push(story);
    }
    let now = time_span::now(database)?;
    let times = Times { now, deadline: site.deadline(), append_grace: site.policy().append_grace };
    let traced = |trace: MessageTrace| {
        let recipients = summary::of_recipients(&trace, &times);
        let (state, verdict) = summary::of_message(&trace, &recipients);
        TracedMessage { state, verdict, recipients, trace }
    };
    Ok((now, stories.into_iter().map(traced).collect()))
}
