//! Takes mail into the file queue that has no Postfix behind it: who is known, how large it may be, whose it is. Uses `delivery`,
//! `handover`, `ledger`, `message`, `queue` and `site`.

use crate::delivery::{Deferral, Refusal};
use crate::handover::LARGEST_MESSAGE;
use crate::ledger::Database;
use crate::message::{Address, Message};
use crate::queue::{NewMail, Queue, QueueError};
use crate::site::Site;
use std::path::Path;
use std::time::SystemTime;
use thiserror::Error;

/// The largest message that is taken in, in bytes.
pub(crate) fn largest(site: &Site) -> u64 {
    site.config().and_then(|config| config.delivery.message_size_limit).unwrap_or(LARGEST_MESSAGE)
}

/// The queue in this folder, made if there is none.
///
/// # Errors
/// Where it cannot be opened.
pub(crate) fn queue(folder: &Path) -> Result<Queue, QueueError> {
    // Root may write into another user's queue, and makes none.
    match Queue::existing(folder) {
        Err(QueueError::NoQueue { .. }) => Queue::open(folder),
        existing => existing,
    }
}

/// Mail for these recipients is not taken in now, or never.
#[derive(Debug)]
pub(crate) struct NotKnown {
    pub(crate) problems: Vec<(Address, Refusal)>,
    /// All of them are unknown, which the database has committed. Who gives up for good must not do so while one of them may
    /// yet be known.
    pub(crate) for_good: bool,
}

/// Whether all recipients are known: once mail is taken in, nobody could be told any more.
///
/// # Errors
/// Where the database cannot say.
pub(crate) fn at_the_door(
    site: &Site,
    recipients: &[Address],
    database: &mut dyn Database,
) -> Result<Result<(), NotKnown>, Deferral> {
    let known = site.at_the_door(recipients, database)?;
    let problems = recipients.iter().zip(known).filter_map(|(to, known)| Some((to.clone(), known.err()?)));
    let problems: Vec<_> = problems.collect();
    if problems.is_empty() {
        return Ok(Ok(()));
    }
    let for_good = problems.iter().all(|(_, refusal)| matches!(refusal, Refusal::UnknownRecipient));
    Ok(Err(NotKnown { problems, for_good }))
}

/// Why a message was not taken in. Nothing is left of it.
#[derive(Debug, Error)]
pub(crate) enum NotTaken {
    #[error("it is larger than the {0} bytes allowed here")]
    TooLarge(u64),
    #[error("{0}")]
    NoMessage(String),
    #[error("its From is not the envelope sender")]
    AnotherAuthor,
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// Takes a message in, of `limit` bytes at most; its ID. It is on the disk then.
///
/// # Errors
/// Where it is none, or cannot be written.
pub(crate) fn take_in(site: &Site, queue: &Queue, mail: NewMail, raw: &[u8], limit: u64) -> Result<String, NotTaken> {
    if raw.len() as u64 > limit {
        return Err(NotTaken::TooLarge(limit));
    }
    // What the queue keeps is what came; the delivery reads it in the same way.
    let message = Message::receive(raw.to_vec()).map_err(|error| NotTaken::NoMessage(error.to_string()))?;
    if mail.vouches {
        let author = message.from_address().map(|author| author.folded().to_string());
        let sender = Address::parse(&mail.sender).ok().map(|sender| sender.folded().to_string());
        if author.is_none() || author != sender {
            return Err(NotTaken::AnotherAuthor);
        }
    }
    Ok(queue.enqueue(&site.lock_name(&message), mail, raw, SystemTime::now())?.id())
}
