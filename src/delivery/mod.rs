//! One delivery, from top to bottom.
//!
//! Given a message, an envelope and open connections, [`deliver`] returns the result for each recipient. This module knows
//! nothing of standard input, exit codes or processes, except that it asks whether the [`Caller`] still lives.
//!
//! ```text
//! 1  journal   one autocommit statement: for each copy owed, "attempt by host/pid/queue id, open", and its
//!              mailbox's position (UIDVALIDITY, UIDNEXT)
//! 2  lock      held elsewhere: end the attempt, try again later
//! 3  look      a new statement, so a new snapshot: which copies are delivered? which attempts are open?
//! 4  append    INBOX first, then Sent; search first if another attempt is open, or the ledger may have forgotten one;
//!              before the last CRLF, which makes the server store the message: is the lock still ours, and does the
//!              caller still live?
//! 5  record    message, copies, attempts ended; COMMIT
//! ```
//!
//! Why in this order:
//!
//! - The journal commits *before* the lock is taken. A crash after APPEND must leave a trace, and the lock's own
//!   transaction can commit nothing while it holds the lock.
//! - The look comes *after* the lock, in a separate statement. A snapshot older than the lock misses a row that was
//!   committed just before. The look reads the journal as well: the first delivery to journal need not be the first to get
//!   the lock.
//! - The record comes *after* the append: exit 0 means that the copy is in the mailbox.
//!
//! If a step fails, the message stays with Postfix. The copies that were appended are recorded if the lock is still held. An
//! attempt that sent no APPEND ends itself. Any other attempt stays open, and the next one searches.

mod append_round;
mod caller;
mod copy_attempt;
mod events;
mod lock_name;
mod lost_commits;
mod other_attempts;
mod report;
mod resolve;
mod sent_copy;
mod stage_times;
mod upload_time;
mod verdict;

pub use caller::{Caller, NoCaller};
pub use lock_name::{bare_message_id, lock_of, lock_of_message_id};
pub use lost_commits::looked_for;
pub use report::{CopyReport, Deferral, Delivered, Manner, Refusal};
pub use stage_times::{Stages, milliseconds};
pub use upload_time::UploadTime;
pub use verdict::{StatusDetail, Verdict};

use crate::config::HeaderFields;
pub use crate::config::Policy;
use crate::database::DatabaseError;
use crate::ledger::{Cause, CopyKey, EndedAttempt, Journal, JournalCopy, Ledger, LockResult};
use crate::ledger::{MessageRecord, Outcome, Record};
use crate::lock::LockName;
use crate::mailbox::{Mailbox, MailboxError};
use crate::message::{Message, Role};
use append_round::{Round, deliver_round};
use copy_attempt::{Attempt, End};
use other_attempts::OtherAttempts;
use resolve::{LockLost, UnderLock};
use std::cell::OnceCell;
use std::time::{Duration, Instant};
use time::OffsetDateTime;
use tracing::{debug, warn};
use uuid::Uuid;

/// By how much longer one mailbox may delay the others if a whole mailbox has to be searched.
const PATIENCE_WITH_SEARCHES: u32 = 12;

/// One message that is delivered to one envelope recipient, or to several under one lock.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    pub message: &'a Message,
    /// The envelope sender; empty for the null sender, `None` if it is unknown.
    pub sender: Option<&'a str>,
    /// The envelope recipients, case-folded, so that each retry spells them alike. There is at least one.
    pub recipients: &'a [String],
    /// Whether other batches of this message follow. A mailbox that hangs may then not use up all the time.
    pub is_one_of_several: bool,
    pub queue_id: Option<&'a str>,
    pub lock: &'a LockName,
    /// The id of this attempt, unique among all attempts.
    pub attempt: Uuid,
    /// Host and process id, for people who look for the holder of a lock.
    pub host: &'a str,
    pub pid: u32,
    /// The INTERNALDATE of the copies.
    pub arrived: OffsetDateTime,
    /// How long ago the message came, by this host's clock; `None` if that is unknown. See [`Message::came_before`].
    pub came: Option<Duration>,
    pub policy: &'a Policy,
    /// The time that all batches of the message share for their uploads.
    pub upload_time: &'a UploadTime,
    pub caller: &'a dyn Caller,
    /// Whether the mailboxes may have lost copies that the ledger records as delivered. Each copy is then searched for in its
    /// whole mailbox, and appended if it is missing. Only people request this, never Postfix.
    pub restore: bool,
}

/// The owner of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    /// These recipients, as indexes into [`Delivery::recipients`]: several addresses may have one mailbox.
    Recipients(Vec<usize>),
    /// The author: if this copy fails, the message is still delivered. If the author keeps sent mail in INBOX, the copy's
    /// role is the recipient's, so that an author who is also a recipient gets one copy there.
    Authors,
}

/// A copy that this delivery owes, with its mailbox.
pub struct OwedCopy<'a> {
    pub role: Role,
    pub whose: Whose,
    /// The user name in the mailbox store.
    pub user: String,
    pub mailbox_name: String,
    pub mailbox: Result<&'a mut dyn Mailbox, NotOpened>,
}

/// Why a mailbox is not opened.
#[derive(Clone, Debug)]
pub enum NotOpened {
    /// Connecting, logging in or finding the mailbox failed.
    Trouble(MailboxError),
    /// The author's mail program is about to save its own copy. Ours stays owed until a search has looked for that one.
    LeftToTheAuthor,
}

impl From<MailboxError> for NotOpened {
    fn from(error: MailboxError) -> Self {
        Self::Trouble(error)
    }
}

#[derive(Debug)]
pub struct Ended {
    /// One result for each recipient, in their order.
    pub recipients: Vec<Result<Delivered, Refusal>>,
    /// The recipients whom the journal does not have, by their places, and why.
    pub unjournalled: Vec<(usize, Outcome)>,
    /// Whether the author's copy is missing or in doubt, and a retry of it is certain. Either one of these recipients was
    /// deferred and will be retried, or the copy is recorded as owed. Until that retry, no other batch of the same
    /// transaction may append it: an unanswered APPEND may still land.
    pub author_retry_is_certain: bool,
    /// Whether the author's open mailbox hangs, and no recipient's mailbox does.
    pub author_hangs: bool,
}

/// Delivers one message to its envelope recipients.
///
/// `owed` has the recipients' copies and then the author's, if one is owed. For a redelivery it has one single copy. A
/// failure of one copy affects that copy alone. Only a failure of the database or the lock affects all copies, since they
/// share both.
pub fn deliver(
    delivery: &Delivery<'_>,
    database: &mut dyn Ledger,
    owed: Vec<OwedCopy<'_>>,
    stages: &mut Stages,
) -> Ended {
    // Positions are read before anything is written: the journal needs them, and an unreachable mailbox must not hold up the
    // others.
    let began = Instant::now();
    let mut attempts: Vec<Attempt<'_>> = owed.into_iter().map(|owed| Attempt::begin(delivery, owed)).collect();
    stages.position = began.elapsed();
    let journalled = journal_attempts(delivery, database, &mut attempts, stages);
    let unjournalled = unjournalled(&attempts, journalled.as_ref().err());
    let delivered = match journalled {
        Ok(true) => deliver_copies(delivery, database, &mut attempts, stages),
        Ok(false) => Ok(()),
        Err(deferral) => Err(deferral),
    };
    // A server that hangs for all mailboxes proves nothing about one author.
    let hang = |recipients| attempts.iter().any(|attempt| attempt.is_recipients() == recipients && attempt.has_hung);
    let author_hangs = hang(false) && !hang(true);
    match delivered {
        Ok(()) => Ended {
            recipients: outcomes(delivery, &attempts),
            unjournalled,
            author_retry_is_certain: sent_copy::retry_is_certain(&attempts),
            author_hangs,
        },
        Err(deferral) => Ended {
            recipients: delivery.recipients.iter().map(|_| Err(deferral.clone().into())).collect(),
            unjournalled,
            author_retry_is_certain: false,
            author_hangs,
        },
    }
}

/// Journals the attempts whose mailboxes are open; `false`, with nothing journalled, if there is nothing to start.
fn journal_attempts(
    delivery: &Delivery<'_>,
    database: &mut dyn Ledger,
    attempts: &mut [Attempt<'_>],
    stages: &mut Stages,
) -> Result<bool, Deferral> {
    // If no recipient's mailbox is open, nothing is journalled: every recipient is deferred anyway. An author's copy without
    // recipients is a redelivery, which people request.
    let of_recipients = attempts.iter().any(Attempt::is_recipients);
    if attempts.iter().filter(|it| it.is_recipients() == of_recipients).all(Attempt::is_out_of_reach) {
        attempts.iter_mut().for_each(Attempt::end_out_of_reach);
        return Ok(false);
    }

    // 1 journal
    let began = Instant::now();
    database.journal(&journal(delivery, attempts)).map_err(Deferral::Database)?;
    stages.journal = began.elapsed();
    Ok(true)
}

/// The recipients without a journalled attempt, and why: their mailboxes are not open, or the journal failed.
fn unjournalled(attempts: &[Attempt<'_>], failed: Option<&Deferral>) -> Vec<(usize, Outcome)> {
    let mut unjournalled = Vec::new();
    for attempt in attempts {
        let outcome = match (&attempt.mailbox, failed) {
            (Err(NotOpened::Trouble(error)), _) => Deferral::Mailbox(error.clone()).outcome_before_journal(),
            (_, Some(deferral)) => deferral.outcome_before_journal(),
            (_, None) => None,
        };
        let Some(outcome) = outcome else { continue };
        unjournalled.extend(attempt.recipients().iter().map(|&place| (place, outcome.clone())));
    }
    unjournalled
}

/// Ends each journalled attempt, or returns why no copy could be delivered.
fn deliver_copies(
    delivery: &Delivery<'_>,
    database: &mut dyn Ledger,
    attempts: &mut [Attempt<'_>],
    stages: &mut Stages,
) -> Result<(), Deferral> {
    // 2 lock, 3 look
    let began = Instant::now();
    let keys: Vec<CopyKey> = attempts.iter().map(|attempt| attempt.key).collect();
    let acquired = database.acquire_and_look(delivery.lock, delivery.policy.lock_wait, &keys);
    stages.lock = began.elapsed();
    let looked = match acquired {
        Ok(LockResult::Held { looked, took }) => {
            stages.lock = stages.lock.saturating_sub(took);
            stages.look = took;
            looked
        }
        Ok(LockResult::Busy(holder)) => {
            end_attempts(delivery, database, attempts, &Outcome::Busy, stages);
            return Err(Deferral::Busy(holder));
        }
        Err(error) => {
            end_attempts(delivery, database, attempts, &Outcome::Deferred(Cause::LockUnanswered, None), stages);
            return Err(Deferral::Database(error));
        }
    };
    let began = Instant::now();
    let read = looked
        .map_err(|error| (Cause::LedgerUnreadable, Deferral::Database(error)))
        .and_then(|looked| OtherAttempts::read(delivery, attempts, &looked));
    let result = match read {
        Ok(()) => {
            stages.look += began.elapsed();
            append_and_record(delivery, database, attempts, &keys, stages)
        }
        Err((cause, deferral)) => {
            end_attempts(delivery, database, attempts, &Outcome::Deferred(cause, None), stages);
            Err(deferral)
        }
    };
    // On every path. A server has released the lock after the COMMIT of the record; an embedded database releases it here.
    if let Err(error) = database.release(delivery.lock) {
        debug!(%error, "the lock was not released; the server frees it with the connection");
    }
    result
}

/// Steps 4 and 5, while this delivery holds the lock.
fn append_and_record(
    delivery: &Delivery<'_>,
    database: &mut dyn Ledger,
    attempts: &mut [Attempt<'_>],
    keys: &[CopyKey],
    stages: &mut Stages,
) -> Result<(), Deferral> {
    // 4 append: the recipients' copies first. If none of these is delivered, the author's is not appended. If the lock is
    // lost, nothing can be recorded: the attempts stay open, and the next one searches.
    let began = Instant::now();
    let several = delivery.is_one_of_several || attempts.iter().filter(|it| it.is_recipients()).count() > 1;
    // One second more for each megabyte that the server has to store.
    let size = Duration::from_millis(delivery.message.as_received().len() as u64 / 1000);
    // A search of a whole mailbox may take long, and would take as long in the next attempt.
    let times = if attempts.iter().any(|it| it.others.forgotten) { PATIENCE_WITH_SEARCHES } else { 1 };
    let patience = several.then(|| delivery.policy.slow_mailbox_timeout.saturating_mul(times).saturating_add(size));
    let mut under_lock = UnderLock { delivery, database, keys };
    for recipients in [true, false] {
        // Even then, a copy that an earlier attempt may have left is searched for. The recipient who owns that attempt may
        // never be delivered, and then nobody else would search.
        let is_any_there = attempts.iter().any(|it| it.end.is_there());
        let look_only = !recipients && !is_any_there && attempts.iter().any(Attempt::is_recipients);
        let round = attempts.iter_mut().filter(|it| it.is_recipients() == recipients);
        let round = round.filter(|it| !look_only || (it.is_journalled() && it.others.died_before()));
        deliver_round(&mut under_lock, round, Round { look_only, patience }).map_err(|LockLost| Deferral::LockLost)?;
    }
    stages.append = began.elapsed();

    // 5 record: the appended copies, even if another copy failed. Otherwise each retry would append to INBOX once more,
    // although the recipient may have moved the first copy elsewhere.
    let began = Instant::now();
    record(delivery, database, attempts, stages).map_err(Deferral::Database)?;
    stages.record = began.elapsed();
    Ok(())
}

fn record(
    delivery: &Delivery<'_>,
    database: &mut dyn Ledger,
    attempts: &[Attempt<'_>],
    stages: &Stages,
) -> Result<(), DatabaseError> {
    let headers;
    let took = stages.as_json();
    let authors = OnceCell::new();
    let mut record = Record::default();
    for attempt in attempts {
        let Attempt { key, end, .. } = attempt;
        let recipient = recipient(delivery, attempts, attempt);
        // The event of a Sent copy names the author, whichever recipient owns the copy. The copy's role decides, since
        // readers of the event use the role as well.
        let concerned = match attempt.role {
            Role::Sender => authors.get_or_init(|| author(delivery)).as_deref().unwrap_or(recipient),
            Role::Recipient => recipient,
        };
        record.events.extend(events::event(delivery, attempt, concerned));
        record.copies.extend(end.state().map(|state| attempt.record(recipient, state)));
        if let Some(outcome) = end.outcome().filter(|_| attempt.is_journalled()) {
            record.ended.push(EndedAttempt { attempt: delivery.attempt, key: *key, outcome, stages: Some(&took) });
        }
        if end.ends_earlier_attempts() {
            record.ended.extend(attempt.others.that_died().map(|earlier| EndedAttempt {
                attempt: earlier.attempt,
                key: *key,
                outcome: Outcome::Died,
                stages: None,
            }));
        }
    }
    if !record.copies.is_empty() {
        headers = match delivery.policy.headers {
            HeaderFields::All => delivery.message.headers_json(),
            HeaderFields::Few => delivery.message.headers_json_of(&FEW_FIELDS),
            HeaderFields::None => "[]".into(),
        };
        record.message = Some(message_record(delivery, &headers));
    }
    database.record(&record)
}

fn outcomes(delivery: &Delivery<'_>, attempts: &[Attempt<'_>]) -> Vec<Result<Delivered, Refusal>> {
    let retrying = sent_copy::who_retries(delivery, attempts);
    let of = |recipient: usize| {
        let concerns = |attempt: &&Attempt<'_>| match attempt.is_recipients() {
            true => attempt.recipients().contains(&recipient),
            false => retrying.contains(&recipient),
        };
        let (mut reports, mut refused) = (Vec::with_capacity(2), None);
        for attempt in attempts.iter().filter(concerns) {
            reports.extend(attempt.report());
            match (&attempt.end, &refused) {
                (End::Failed { refusal, .. }, None) => refused = Some(refusal.clone()),
                // A deferral takes precedence over a refusal for good: Postfix does not retry a refused recipient.
                (End::Failed { refusal: refusal @ Refusal::Deferred(_), .. }, Some(known))
                    if !matches!(known, Refusal::Deferred(_)) =>
                {
                    refused = Some(refusal.clone());
                }
                _ => {}
            }
        }
        // A recipient without any copy must never be answered with success.
        let refused =
            refused.or_else(|| reports.is_empty().then(|| Deferral::Internal("no copy for a recipient").into()));
        refused.map_or(Ok(Delivered { copies: reports, brought: None }), Err)
    };
    (0..delivery.recipients.len()).map(of).collect()
}

/// The author's address as events name it, empty if it is too long; `None` if the message does not have exactly one author.
fn author(delivery: &Delivery<'_>) -> Option<String> {
    Some(delivery.message.from_address()?.named().unwrap_or_default())
}

/// The recipient that a copy's row and its attempts' rows name, so that they can be joined. The author's copy has an
/// [owner](sent_copy::owner) among the recipients.
fn recipient<'a>(delivery: &Delivery<'a>, attempts: &[Attempt<'_>], attempt: &Attempt<'_>) -> &'a str {
    let place = attempt.recipients().first().copied().unwrap_or_else(|| sent_copy::owner(attempts));
    delivery.recipients.get(place).map_or("", String::as_str)
}

/// Contains only the copies whose mailboxes are open: no other copy can be appended.
fn journal<'a>(delivery: &Delivery<'a>, attempts: &'a [Attempt<'_>]) -> Journal<'a> {
    Journal {
        attempt: delivery.attempt,
        identity: delivery.message.identity(),
        lock: delivery.lock,
        message_id: delivery.message.message_id_for_people(),
        queue_id: delivery.queue_id,
        sender: delivery.sender,
        host: delivery.host,
        pid: delivery.pid,
        copies: attempts
            .iter()
            .filter(|attempt| attempt.is_journalled())
            .map(|attempt| JournalCopy {
                key: attempt.key,
                role: attempt.role,
                user: &attempt.user,
                mailbox: &attempt.mailbox_name,
                recipient: recipient(delivery, attempts, attempt),
                position: attempt.position,
            })
            .collect(),
    }
}

/// Ends the attempts, none of which has sent an APPEND. If that fails, they stay open, and the next attempts have to search.
fn end_attempts(
    delivery: &Delivery<'_>,
    database: &mut dyn Ledger,
    attempts: &[Attempt<'_>],
    outcome: &Outcome,
    stages: &Stages,
) {
    let took = stages.as_json();
    let ended = |it: &Attempt<'_>| EndedAttempt {
        attempt: delivery.attempt,
        key: it.key,
        outcome: outcome.clone(),
        stages: Some(&took),
    };
    let ended = attempts.iter().filter(|it| it.is_journalled()).map(ended).collect();
    if let Err(error) = database.record(&Record { ended, ..Record::default() }) {
        warn!(%error, "this attempt could not be ended in the ledger; the next one will search the mailbox");
    }
}

/// For `record.keep_headers = "few"`.
const FEW_FIELDS: [&str; 9] =
    ["From", "To", "Cc", "Subject", "Date", "Message-ID", "References", "In-Reply-To", "List-Id"];

fn message_record<'a>(delivery: &Delivery<'a>, headers: &'a str) -> MessageRecord<'a> {
    let message = delivery.message;
    let size = message.as_received().len() as u64;
    MessageRecord {
        identity: message.identity(),
        lock: delivery.lock,
        message_id: message.message_id_for_people(),
        content_digest: message.content_digest().as_bytes(),
        sender: delivery.sender.unwrap_or_default(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::deadline::Deadline;

    #[test]
    fn a_recipient_without_a_copy_is_deferred_as_an_internal_error_and_not_as_one_of_the_database() {
        let message = Message::receive(b"Subject: x\r\n\r\nx\r\n".to_vec()).unwrap();
        let delivery = Delivery {
            message: &message,
            sender: None,
            recipients: &["doug".to_owned()],
            is_one_of_several: false,
            queue_id: None,
            lock: &lock_of("maildrop", &message),
            attempt: Uuid::from_u128(1),
            host: "mx1",
            pid: 1,
            arrived: OffsetDateTime::UNIX_EPOCH,
            came: None,
            policy: &Policy::embedded(),
            upload_time: &UploadTime::until_deadline(Deadline::after(Duration::ZERO)),
            restore: false,
            caller: &NoCaller,
        };
        let outcomes = outcomes(&delivery, &[]);
        assert!(matches!(&outcomes[..], [Err(Refusal::Deferred(Deferral::Internal(_)))]), "{outcomes:?}");
    }

    #[test]
    fn with_few_headers_these_fields_are_kept_and_no_other() {
        let kept = ["From", "To", "Cc", "Subject", "Date", "Message-ID", "References", "In-Reply-To", "List-Id"];
        let others = ["Bcc", "Received", "Sender", "Reply-To", "X-Spam-Flag", "Content-Type"];
        let raw: String = kept.iter().chain(&others).map(|name| format!("{name}: x\r\n")).collect();
        let message = crate::message::Message::receive(format!("{raw}\r\nx\r\n").into()).unwrap();
        let fields: Vec<[String; 2]> = serde_json::from_str(&message.headers_json_of(&FEW_FIELDS)).unwrap();
        let names: Vec<&str> = fields.iter().map(|[name, _]| name.as_str()).collect();
        assert_eq!(names, kept);
    }
}
