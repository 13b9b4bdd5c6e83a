//! All that the ledger has of a message, found by its Message-ID, a queue id, an address, or a part of subject or author.

mod summary;

pub(crate) use super::search::TakenAs;
pub(crate) use summary::{RecipientState, RecipientSummary, held_then};

use super::search;
use crate::base::{hex, timestamp};
use crate::database::DatabaseError;
use crate::ledger::failures::{FailuresOf, failed_deliveries};
use crate::ledger::message_addresses;
use crate::ledger::message_search;
use crate::ledger::notifications::by_message;
use crate::ledger::trace::{self, By, FoundMessage, MessageTrace};
use crate::ledger::{Database, Outcome, time_span};
use crate::lock::LockName;
use crate::site::Site;
use serde::Serialize;
use std::time::Duration;

/// The limit of each statement of a search: a short queue id has no index of its own.
const PATIENCE: Duration = Duration::from_mins(10);

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

#[derive(Clone, Debug, Serialize)]
pub(crate) struct TracedMessage {
    pub(crate) state: RecipientState,
    /// The state in a sentence.
    pub(crate) verdict: String,
    pub(crate) recipients: Vec<RecipientSummary>,
    #[serde(flatten)]
    pub(crate) trace: MessageTrace,
}

/// The times that decide the state of an attempt that has not ended, and how a reason is worded.
struct Times {
    wording: Wording,
    now: i64,
    /// `delivery.deadline`: after it, the attempt's process is gone.
    deadline: Duration,
    /// `imap.append_grace`: after it, the attempt's APPEND has landed or never will.
    append_grace: Duration,
}

/// How much of a reason the summaries contain.
#[derive(Clone, Copy)]
enum Wording {
    /// With the text of the server or the system.
    Full,
    /// Without it: the reader has it elsewhere.
    Short,
}

impl Times {
    fn reason(&self, outcome: &Outcome) -> String {
        match self.wording {
            Wording::Full => outcome.reason(),
            Wording::Short => outcome.without_detail().reason(),
        }
    }
}

/// Traces `what`, whose meaning [`search::meanings`] recognizes. Recorded messages are found by an address however old they are;
/// the search for a part of a subject or an author, and for attempts, goes back to `since` (microseconds since 1970). It returns
/// the newest messages, at most `limit`.
pub(crate) fn trace(
    site: &Site,
    database: &mut dyn Database,
    what: &str,
    since: i64,
    limit: usize,
) -> Result<Trace, DatabaseError> {
    let (meanings, text) = search::meanings(what);
    let (mut taken_as, mut found, mut more) = (TakenAs::MessageId, Vec::new(), false);
    for meaning in meanings {
        taken_as = *meaning;
        (found, more) = find_taken_as(site, database, taken_as, text, since, limit)?;
        if !found.is_empty() {
            break;
        }
    }
    let guessed = meanings.len() > 1 && taken_as != TakenAs::QueueId;
    let asked = Asked { what: what.trim().to_owned(), taken_as, guessed };
    let (now, messages) = read(site, database, found, Wording::Full)?;
    Ok(Trace { asked, now, more, messages })
}

/// The newest messages for a text of this meaning, at most `limit`, and whether there are more.
fn find_taken_as(
    site: &Site,
    database: &mut dyn Database,
    taken_as: TakenAs,
    text: &str,
    since: i64,
    limit: usize,
) -> Result<(Vec<FoundMessage>, bool), DatabaseError> {
    match taken_as {
        TakenAs::MessageId => trace::find(database, By::Lock(&site.lock_of_message_id(text.as_bytes())), limit),
        TakenAs::QueueId => {
            let lock = search::lock_of_queue_id(database, text)?;
            database.limit_statement_time(PATIENCE);
            trace::find(database, By::QueueId(text, since, lock), limit)
        }
        TakenAs::Piece => {
            let failed = failed_deliveries(database, FailuresOf::Piece(text, since), None, limit)?;
            let (mut found, mut next): (Vec<FoundMessage>, _) = (Vec::new(), None);
            loop {
                let page = message_search::containing(database, text, next, limit - found.len())?;
                let listed = message_search::read_messages(database, &page.ids)?;
                let recent = listed.iter().filter(|message| message.recorded_at >= since);
                found.extend(recent.map(FoundMessage::from));
                next = page.next;
                if found.len() >= limit || next.is_none() || page.looked_back_to.is_none_or(|back| back < since) {
                    found.extend(failed.iter().map(FoundMessage::from));
                    let (found, more_of_all) = trace::newest(found, limit);
                    return Ok((found, next.is_some() || more_of_all));
                }
            }
        }
        TakenAs::Address | TakenAs::Domain | TakenAs::Beginning => {
            let Some(pattern) = search::pattern(taken_as, text) else { return Ok((Vec::new(), false)) };
            search::index_what_is_missing(site, database);
            let page = message_addresses::find(database, &pattern, None, None, limit)?;
            let listed = message_search::read_messages(database, &page.ids)?;
            let (mut found, more) =
                trace::find(database, By::Addresses { pattern: &pattern, user: text, since }, limit)?;
            found.extend(listed.iter().map(FoundMessage::from));
            let failed = failed_deliveries(database, FailuresOf::Addresses(&pattern, since), None, limit)?;
            found.extend(failed.iter().map(FoundMessage::from));
            let (found, more_of_all) = trace::newest(found, limit);
            Ok((found, more || more_of_all || page.next.is_some()))
        }
    }
}

/// Traces one message by its identity, in short words; `None` if the ledger knows nothing of it. A message without a delivered copy is
/// found only by its `lock`.
pub(crate) fn of_identity(
    site: &Site,
    database: &mut dyn Database,
    identity: [u8; 32],
    lock: Option<LockName>,
) -> Result<Option<(i64, TracedMessage)>, DatabaseError> {
    let Some(found) = trace::find_identity(database, identity, lock)? else { return Ok(None) };
    let (now, messages) = read(site, database, vec![found], Wording::Short)?;
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
    wording: Wording,
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
    let times = Times { wording, now, deadline: site.deadline(), append_grace: site.policy().append_grace };
    let traced = |trace: MessageTrace| {
        let recipients = summary::of_recipients(&trace, &times);
        let (state, verdict) = summary::of_message(&trace, &recipients);
        TracedMessage { state, verdict, recipients, trace }
    };
    Ok((now, stories.into_iter().map(traced).collect()))
}
