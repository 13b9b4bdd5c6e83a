//! One delivery, from top to bottom. Uses all rooms below it.
//!
//! Given a message, an envelope and open connections, [`deliver`] says what became of it. It knows nothing of standard input,
//! exit codes or its process; it only asks whether its [`Caller`] still lives.
//!
//! ```text
//! 1  journal   one autocommit statement: for each copy owed, "attempt by host/pid/queue id, open", and where its
//!              mailbox stood (UIDVALIDITY, UIDNEXT)
//! 2  lock      held elsewhere: end the attempt, try again later
//! 3  look      a new statement, so a new snapshot: which copies are delivered? which attempts are open?
//! 4  append    INBOX first, then Sent; search first if another attempt is open; before the last CRLF, which makes the
//!              server store the message: is the lock still ours, and does the caller still live?
//! 5  record    message, copies, attempts ended; COMMIT
//! ```
//!
//! Why in this order:
//!
//! - The journal commits *before* the lock is taken: a crash after APPEND must leave a trace, and the lock's own
//!   transaction can commit nothing while it holds the lock.
//! - The look comes *after* the lock, in a statement of its own: a snapshot older than the lock misses a row that was
//!   committed a moment ago. It reads the journal, too: the first to journal need not be the first to get the lock.
//! - The record comes *after* the append: exit 0 means that the copy is there.
//!
//! Whatever goes wrong: what was appended is recorded if the lock is still held, and the message stays with Postfix. An attempt
//! that sent no APPEND ends itself; any other stays open, and the next one searches.

mod caller;
mod deliver_copy;
mod lock_name;
mod other_attempts;
mod report;
mod stages;
mod verdict;

pub use caller::{Caller, NoCaller};
pub use lock_name::{bare_message_id, lock_of, lock_of_message_id};
pub use report::{CopyReport, Deferral, Delivered, Manner, Refusal};
pub use stages::{Stages, milliseconds};
pub use verdict::{StatusDetail, Verdict};

pub use crate::config::Policy;
use crate::database::DatabaseError;
use crate::ledger::{AcquiredAndLooked, Cause, CopyHistory, CopyKey, EndedAttempt, Journal, JournalCopy, Ledger};
use crate::ledger::{MessageRecord, Outcome, Record};
use crate::lock::LockName;
use crate::mailbox::{Mailbox, MailboxError};
use crate::message::{Message, Role};
use deliver_copy::{Copy, End, LockLost, deliver_copy};
use other_attempts::OtherAttempts;
use std::time::Instant;
use time::OffsetDateTime;
use tracing::{debug, warn};
use uuid::Uuid;

/// One message on its way to one envelope recipient.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    pub message: &'a Message,
    /// The envelope sender; empty for the null sender.
    pub sender: &'a str,
    /// The envelope recipient, folded, so that it is the same in each retry.
    pub recipient: &'a str,
    pub queue_id: Option<&'a str>,
    pub lock: &'a LockName,
    /// Names this attempt; a new one for each.
    pub attempt: Uuid,
    /// Host and process, for people who look for the holder of a lock.
    pub host: &'a str,
    pub pid: u32,
    /// The INTERNALDATE of the copies.
    pub arrived: OffsetDateTime,
    pub policy: &'a Policy,
    pub caller: &'a dyn Caller,
    /// Whether the mailboxes may have lost what the ledger has as delivered: each copy is then looked for in all of its
    /// mailbox, and appended if it is not there. Asked for by people, never by Postfix.
    pub restore: bool,
}

/// A copy owed by this delivery, and the mailbox it belongs in.
pub struct OwedCopy<'a> {
    pub role: Role,
    /// Whether it is the author's own copy: if it fails, the message is delivered all the same. Its role is the recipient's where
    /// the author keeps sent mail in INBOX, so that an author who is a recipient, too, has one copy there.
    pub authors: bool,
    /// The user that the mailbox store knows.
    pub user: String,
    pub mailbox_name: String,
    pub mailbox: Result<&'a mut dyn Mailbox, NotOpened>,
}

/// Why a mailbox is not opened.
#[derive(Clone, Debug)]
pub enum NotOpened {
    /// It could not be.
    Trouble(MailboxError),
    /// The author's mail program is about to save a copy of its own: ours stays owed until that has been looked for.
    LeftToTheAuthor,
}

impl From<MailboxError> for NotOpened {
    fn from(error: MailboxError) -> Self {
        Self::Trouble(error)
    }
}

/// Delivers one message to one envelope recipient.
///
/// `owed` is the recipient's copy, and then the sender's, if one is owed; or any one copy that people want delivered again.
///
/// # Errors
/// Where the message is to be tried again (nearly always), or is refused for good.
pub fn deliver(
    delivery: &Delivery<'_>,
    database: &mut dyn Ledger,
    owed: Vec<OwedCopy<'_>>,
    stages: &mut Stages,
) -> Result<Delivered, Refusal> {
    // Where the mailboxes stand, before anything is written. A Sent mailbox that is out of reach must not hold up the recipient's
    // copy.
    let began = Instant::now();
    let mut copies: Vec<Copy<'_>> = owed.into_iter().map(|owed| Copy::ask_position(delivery, owed)).collect();
    if let Some(error) = copies.first_mut().and_then(Copy::take_trouble) {
        return Err(Deferral::Mailbox(error).into());
    }
    stages.position = began.elapsed();

    // 1 journal
    let began = Instant::now();
    database.journal(&journal(delivery, &copies)).map_err(Deferral::Database)?;
    stages.journal = began.elapsed();

    // 2 lock, 3 look
    let began = Instant::now();
    let keys: Vec<CopyKey> = copies.iter().map(|copy| copy.key).collect();
    let acquired = database.acquire_and_look(delivery.lock, delivery.policy.lock_wait, &keys);
    stages.lock = began.elapsed();
    let looked = match acquired {
        Ok(AcquiredAndLooked::Held { looked, took }) => {
            stages.lock = stages.lock.saturating_sub(took);
            stages.look = took;
            looked
        }
        Ok(AcquiredAndLooked::Busy(holder)) => {
            end_attempt(delivery, database, &copies, &Outcome::Busy, stages);
            return Err(Deferral::Busy(holder).into());
        }
        Err(error) => {
            end_attempt(delivery, database, &copies, &Outcome::Deferred(Cause::LockUnanswered, None), stages);
            return Err(Deferral::Database(error).into());
        }
    };
    let result = deliver_under_lock(delivery, database, &mut copies, &keys, looked, stages);
    // On every path. PostgreSQL has released it with the record's COMMIT; elsewhere it is released here, after the COMMIT.
    if let Err(error) = database.release(delivery.lock) {
        debug!(%error, "the lock was not released; the server frees it with the connection");
    }
    result
}

/// Steps 3 to 5: everything that happens while the lock is ours.
fn deliver_under_lock(
    delivery: &Delivery<'_>,
    database: &mut dyn Ledger,
    copies: &mut [Copy<'_>],
    keys: &[CopyKey],
    looked: Result<Vec<CopyHistory>, DatabaseError>,
    stages: &mut Stages,
) -> Result<Delivered, Refusal> {
    // 3 look: what it saw
    let began = Instant::now();
    let histories = looked.map_err(|error| (Cause::LedgerUnreadable, Deferral::Database(error)));
    let others = match histories.and_then(|histories| OtherAttempts::read(delivery, copies, &histories)) {
        Ok(others) => others,
        Err((cause, deferral)) => {
            end_attempt(delivery, database, copies, &Outcome::Deferred(cause, None), stages);
            return Err(deferral.into());
        }
    };
    stages.look += began.elapsed();

    // 4 append: the recipient's copy first. Where it fails, the sender's is not tried.
    let began = Instant::now();
    let mut ends: Vec<End> = Vec::with_capacity(copies.len());
    for (copy, others) in copies.iter_mut().zip(&others) {
        ends.push(match ends.last() {
            Some(End::Failed { .. }) => End::NotTried,
            // With the lock lost nothing can be recorded: the attempt stays open, and the next one searches.
            _ => deliver_copy(delivery, database, copy, others, keys).map_err(|LockLost| Deferral::LockLost)?,
        });
    }
    stages.append = began.elapsed();

    // 5 record: what was appended, even where another copy failed. Otherwise each retry would deliver to INBOX again what the
    // recipient has already filed.
    let began = Instant::now();
    let headers;
    let took = stages.as_json();
    let mut record = Record::default();
    for ((copy, others), end) in copies.iter().zip(&others).zip(&ends) {
        record.copies.extend(end.state().map(|state| copy.record(delivery, state)));
        if let Some(outcome) = end.outcome().filter(|_| copy.journalled()) {
            record.ended.push(EndedAttempt { attempt: delivery.attempt, key: copy.key, outcome, stages: Some(&took) });
        }
        if end.ends_earlier_attempts() {
            record.ended.extend(others.earlier_of_this_recipient().map(|earlier| EndedAttempt {
                attempt: earlier.attempt,
                key: copy.key,
                outcome: Outcome::Died,
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
    Ok(Delivered { copies: reports, brought: None })
}

/// The journal has the copies whose mailboxes are within reach: no other can be appended.
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

/// Ends an attempt that has sent no APPEND. Where that fails it stays open, and costs the next one a search.
fn end_attempt(
    delivery: &Delivery<'_>,
    database: &mut dyn Ledger,
    copies: &[Copy<'_>],
    outcome: &Outcome,
    stages: &Stages,
) {
    let (attempt, took) = (delivery.attempt, stages.as_json());
    let ended =
        |copy: &Copy<'_>| EndedAttempt { attempt, key: copy.key, outcome: outcome.clone(), stages: Some(&took) };
    let ended = copies.iter().filter(|copy| copy.journalled()).map(ended).collect();
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
