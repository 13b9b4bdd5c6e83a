//! The story of one delivery, from top to bottom.
//!
//! Given a message, an envelope and open connections, [`deliver`] returns what came of it. It knows nothing of standard
//! input, exit codes or the process it runs in: the pipe and whatever comes later call the same code.
//!
//! ```text
//! 1  journal   one autocommit statement: for each copy owed, "attempt by host/pid/queue id, open", and where its
//!              mailbox stood (UIDVALIDITY, UIDNEXT)
//! 2  lock      held elsewhere: end the attempt, try again later
//! 3  look      a new statement, so a new snapshot: which copies are delivered? which attempts are open?
//! 4  append    INBOX first, then Sent; search first if anybody else's attempt is open
//! 5  record    message, copies, attempts ended; COMMIT
//! ```
//!
//! Why in this order:
//!
//! - The journal commits *before* the lock is taken: a crash after APPEND must leave a trace, and the lock's own
//!   transaction can commit nothing while it holds the lock.
//! - The look comes *after* the lock, in a statement of its own: a snapshot older than the lock misses a row that was
//!   committed a moment ago. The journal is read again there, too: whoever was the first to journal need not be the
//!   first to get the lock.
//! - The record comes *after* the append: exit 0 means that the copy is there.
//!
//! Whatever goes wrong on the way: what was appended is recorded if the lock is still held, and the message stays with
//! Postfix. An attempt that sent no APPEND ends itself; any other stays open, and the next one will look.

mod copy;
mod outcome;
pub(crate) mod verdict;

pub use outcome::{CopyReport, Deferral, Delivered, Manner, Refusal, Stages, milliseconds};
pub use verdict::{StatusDetail, Verdict, report};

use crate::ledger::{CopyKey, EndedAttempt, Journal, JournalCopy, Ledger, MessageRecord, Record};
use crate::lock::{Acquired, LockName, NamedLock};
use crate::mailbox::{Mailbox, MailboxError, Role};
use crate::message::Message;
use copy::{Copy, End, LockLost, OtherAttempts};
use std::time::{Duration, Instant};
use time::OffsetDateTime;
use tracing::{debug, warn};
use uuid::Uuid;

/// One message on its way to one envelope recipient.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    /// The message.
    pub message: &'a Message,
    /// The envelope sender; empty for the null sender.
    pub sender: &'a str,
    /// The envelope recipient, folded: every retry for this recipient bears the same.
    pub recipient: &'a str,
    /// Postfix's queue id, if given.
    pub queue_id: Option<&'a str>,
    /// The lock that guards the message.
    pub lock: &'a LockName,
    /// Names this attempt; a new one for each.
    pub attempt: Uuid,
    /// This host's name, for whoever looks for the holder of a lock.
    pub host: &'a str,
    /// This process's id, for the same.
    pub pid: u32,
    /// When the message arrived: the INTERNALDATE of its copies.
    pub arrived: OffsetDateTime,
    /// What the operator has chosen.
    pub policy: &'a Policy,
    /// Whether the mailboxes may have lost what the ledger has as delivered: each copy is then looked for in all of its
    /// mailbox, and appended if it is not there. Asked for by people, never by Postfix.
    pub restore: bool,
}

/// What the operator has chosen about deliveries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How long to wait for a lock held elsewhere. Zero: not at all.
    pub lock_wait: Duration,
    /// How long after its beginning an attempt that never ended may still land its APPEND. Longer than any delivery
    /// lives.
    pub settle: Duration,
    /// Past this time since the first attempt, a Sent copy that cannot be appended stays owed, and the delivery is done.
    pub sent_retry_for: Duration,
    /// Whether a mailbox over quota refuses a message for good (5.2.2) rather than for now (4.2.2).
    pub over_quota_refuses: bool,
    /// Whether to look for the member's own copy in Sent first, by Message-ID.
    pub look_in_sent: bool,
    /// Keep the raw source of messages of at most this size, in bytes; zero keeps none.
    pub keep_source_up_to: u64,
}

impl Policy {
    /// For one machine without a configuration.
    #[must_use]
    pub fn embedded() -> Self {
        Self {
            lock_wait: Duration::ZERO,
            settle: Duration::from_mins(5),
            sent_retry_for: Duration::from_hours(24),
            over_quota_refuses: false,
            look_in_sent: false,
            keep_source_up_to: 0,
        }
    }
}

/// A copy owed by this delivery, and the mailbox it belongs in.
pub struct OwedCopy<'a> {
    /// Why the mailbox gets it.
    pub role: Role,
    /// The user that the mailbox store knows.
    pub user: String,
    /// The mailbox's name.
    pub mailbox_name: String,
    /// The mailbox, opened; or why it could not be.
    pub mailbox: Result<Box<dyn Mailbox + 'a>, MailboxError>,
}

/// Delivers one message to one envelope recipient: the recipient's copy, and the sender's if one is owed.
///
/// `owed` holds the recipient's copy first; a copy for the sender, if any, second. (Or one copy alone, whichever it is, that
/// people want delivered again.)
///
/// # Errors
/// [`Refusal`] says whether the message is to be tried again (nearly always) or refused for good, and why.
pub fn deliver<D>(
    delivery: &Delivery<'_>,
    database: &mut D,
    owed: Vec<OwedCopy<'_>>,
    stages: &mut Stages,
) -> Result<Delivered, Refusal>
where
    D: NamedLock + Ledger + ?Sized,
{
    // Where the mailboxes stand, before anything is written anywhere. A Sent mailbox that is out of reach must not hold
    // up the recipient's copy: it is remembered as such, and its copy stays owed.
    let began = Instant::now();
    let mut copies: Vec<Copy<'_>> = owed.into_iter().map(|owed| Copy::stand(delivery, owed)).collect();
    if let Some(error) = copies.first_mut().and_then(Copy::take_trouble) {
        return Err(Deferral::Mailbox(error).into());
    }
    stages.position = began.elapsed();

    // 1 journal
    let began = Instant::now();
    database.journal(&journal(delivery, &copies)).map_err(Deferral::Database)?;
    stages.journal = began.elapsed();

    // 2 lock
    let began = Instant::now();
    let acquired = database.acquire(delivery.lock, delivery.policy.lock_wait);
    stages.lock = began.elapsed();
    match acquired {
        Ok(Acquired::Held) => {}
        Ok(Acquired::Busy(holder)) => {
            end_attempt(delivery, database, &copies, "busy", stages);
            return Err(Deferral::Busy(holder).into());
        }
        Err(error) => {
            end_attempt(delivery, database, &copies, "deferred: the lock could not be asked for", stages);
            return Err(Deferral::Database(error).into());
        }
    }
    let result = deliver_under_lock(delivery, database, &mut copies, stages);
    // On every path. PostgreSQL has freed it with the record's COMMIT; elsewhere it is let go here, after the COMMIT.
    if let Err(error) = database.release(delivery.lock) {
        debug!(%error, "the lock was not released; the server frees it with the connection");
    }
    result
}

/// Steps 3 to 5: everything that happens while the lock is ours.
fn deliver_under_lock<D>(
    delivery: &Delivery<'_>,
    database: &mut D,
    copies: &mut [Copy<'_>],
    stages: &mut Stages,
) -> Result<Delivered, Refusal>
where
    D: NamedLock + Ledger + ?Sized,
{
    // 3 look
    let began = Instant::now();
    let keys: Vec<CopyKey> = copies.iter().map(|copy| copy.key).collect();
    let histories = match database.look(&keys) {
        Ok(histories) => histories,
        Err(error) => {
            end_attempt(delivery, database, copies, "deferred: the ledger could not be read", stages);
            return Err(Deferral::Database(error).into());
        }
    };
    let others = match OtherAttempts::read(delivery, copies, &histories) {
        Ok(others) => others,
        Err(deferral) => {
            end_attempt(delivery, database, copies, deferral.outcome(), stages);
            return Err(deferral.into());
        }
    };
    stages.look = began.elapsed();

    // 4 append: the recipient's copy first. Where it fails, the sender's is not tried.
    let began = Instant::now();
    let mut ends: Vec<End> = Vec::with_capacity(copies.len());
    for (copy, others) in copies.iter_mut().zip(&others) {
        ends.push(match ends.last() {
            Some(End::Failed { .. }) => End::NotTried,
            // With the lock lost, nothing can be written down: the attempt stays open, and the next one will look.
            _ => copy::settle(delivery, database, copy, others, &keys).map_err(|LockLost| Deferral::LockLost)?,
        });
    }
    stages.append = began.elapsed();

    // 5 record: what was appended is written down even where another copy failed, or each retry would deliver the INBOX
    // copy again to somebody who has already filed it.
    let began = Instant::now();
    let headers;
    let took = stages.as_json();
    let mut record = Record::default();
    for ((copy, others), end) in copies.iter().zip(&others).zip(&ends) {
        record.copies.extend(end.state().map(|state| copy.record(delivery, state)));
        if copy.journalled() && !end.stays_open() {
            record.ended.push(EndedAttempt {
                attempt: delivery.attempt,
                key: copy.key,
                outcome: end.outcome(),
                stages: Some(&took),
            });
        }
        if end.settles_earlier_attempts() {
            record.ended.extend(others.earlier_of_this_recipient(delivery.policy.settle).map(|earlier| EndedAttempt {
                attempt: earlier.attempt,
                key: copy.key,
                outcome: "died; its copy was looked for",
                stages: None,
            }));
        }
    }
    if !record.copies.is_empty() {
        headers = delivery.message.headers_json();
        record.message = Some(message_record(delivery, &headers));
    }
    database.record(&record).map_err(Deferral::Database)?;
    stages.record = began.elapsed();

    let mut reports = Vec::with_capacity(copies.len());
    for (copy, end) in copies.iter().zip(ends) {
        match end {
            End::Failed { refusal, .. } => return Err(refusal),
            End::Done(manner) => reports.push(copy.report(manner)),
            End::GivenUp(reason) => reports.push(copy.report(Manner::Owed(reason))),
            End::Unchecked => reports.push(copy.report(Manner::AlreadyThere)),
            End::NotTried => {}
        }
    }
    Ok(Delivered { copies: reports })
}

/// What goes into the journal: the copies whose mailboxes are within reach. No other can be appended.
fn journal<'a>(delivery: &Delivery<'a>, copies: &'a [Copy<'_>]) -> Journal<'a> {
    Journal {
        attempt: delivery.attempt,
        identity: delivery.message.identity(),
        lock: delivery.lock,
        message_id: delivery.message.message_id_for_people(),
        recipient: delivery.recipient,
        queue_id: delivery.queue_id,
        host: delivery.host,
        pid: delivery.pid,
        copies: copies
            .iter()
            .filter(|copy| copy.journalled())
            .map(|copy| JournalCopy {
                key: copy.key,
                role: copy.role,
                user: &copy.user,
                mailbox: &copy.mailbox_name,
                position: copy.position,
            })
            .collect(),
    }
}

/// Ends an attempt that has sent no APPEND. Where even that fails the attempt stays open, and costs the next one a
/// search: no more.
fn end_attempt<D>(delivery: &Delivery<'_>, database: &mut D, copies: &[Copy<'_>], outcome: &str, stages: &Stages)
where
    D: Ledger + ?Sized,
{
    let journalled = copies.iter().filter(|copy| copy.journalled());
    let took = stages.as_json();
    let ended = journalled
        .map(|copy| EndedAttempt { attempt: delivery.attempt, key: copy.key, outcome, stages: Some(&took) })
        .collect();
    if let Err(error) = database.record(&Record { ended, ..Record::default() }) {
        warn!(%error, "this attempt could not be ended in the ledger; the next one will search the mailbox");
    }
}

/// What the ledger keeps of the message.
fn message_record<'a>(delivery: &Delivery<'a>, headers: &'a str) -> MessageRecord<'a> {
    let message = delivery.message;
    let size = message.as_received().len() as u64;
    MessageRecord {
        identity: message.identity(),
        lock: delivery.lock,
        message_id: message.message_id_for_people(),
        content_digest: message.content_digest().as_bytes(),
        sender: delivery.sender,
        from: message.from(),
        to: message.to(),
        cc: message.cc(),
        subject: message.subject(),
        date: message.date(),
        headers,
        size,
        raw: (size <= delivery.policy.keep_source_up_to).then(|| message.as_received()),
    }
}
