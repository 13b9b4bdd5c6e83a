//! One delivery, from top to bottom.
//!
//! Given a message, an envelope and open connections, [`deliver`] says what became of it. It knows nothing of standard input,
//! exit codes or its process; it only asks whether its [`Caller`] still lives.
//!
//! ```text
//! 1  journal   one autocommit statement: for each copy owed, "attempt by host/pid/queue id, open", and where its
//!              mailbox stood (UIDVALIDITY, UIDNEXT)
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
//! - The journal commits *before* the lock is taken: a crash after APPEND must leave a trace, and the lock's own
//!   transaction can commit nothing while it holds the lock.
//! - The look comes *after* the lock, in a statement of its own: a snapshot older than the lock misses a row that was
//!   committed a moment ago. It reads the journal, too: the first to journal need not be the first to get the lock.
//! - The record comes *after* the append: exit 0 means that the copy is there.
//!
//! Whatever goes wrong: what was appended is recorded if the lock is still held, and the message stays with Postfix. An attempt
//! that sent no APPEND ends itself; any other stays open, and the next one searches.

mod append_round;
mod attempt;
mod caller;
mod events;
mod lock_name;
mod lost_commits;
mod other_attempts;
mod report;
mod resolve;
mod sent_copy;
mod stages;
mod upload_time;
mod verdict;

pub use caller::{Caller, NoCaller};
pub use lock_name::{bare_message_id, lock_of, lock_of_message_id};
pub use lost_commits::looked_for;
pub use report::{CopyReport, Deferral, Delivered, Manner, Refusal};
pub use stages::{Stages, milliseconds};
pub use upload_time::UploadTime;
pub use verdict::{StatusDetail, Verdict};

use crate::config::HeaderFields;
pub use crate::config::Policy;
use crate::database::DatabaseError;
use crate::ledger::{AcquiredAndLooked, Cause, CopyKey, EndedAttempt, Journal, JournalCopy, Ledger};
use crate::ledger::{MessageRecord, Outcome, Record};
use crate::lock::LockName;
use crate::mailbox::{Mailbox, MailboxError};
use crate::message::{Message, Role};
use append_round::{Round, deliver_round};
use attempt::{Attempt, End};
use other_attempts::OtherAttempts;
use resolve::{LockLost, UnderLock};
use std::cell::OnceCell;
use std::time::{Duration, Instant};
use time::OffsetDateTime;
use tracing::{debug, warn};
use uuid::Uuid;

/// How many times as long as otherwise one mailbox may hold up the others where all of it is looked through.
const PATIENCE_WITH_SEARCHES: u32 = 12;

/// One message on its way to one envelope recipient, or to several under one lock.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    pub message: &'a Message,
    /// The envelope sender; empty for the null sender, `None` where that is not known.
    pub sender: Option<&'a str>,
    /// The envelope recipients, folded, so that each is the same in each retry. There is at least one.
    pub recipients: &'a [String],
    /// Whether the message has more mailboxes than these, in batches of their own: whatever hangs may not have all the time then.
    pub is_one_of_several: bool,
    pub queue_id: Option<&'a str>,
    pub lock: &'a LockName,
    /// Names this attempt; a new one for each.
    pub attempt: Uuid,
    /// Host and process, for people who look for the holder of a lock.
    pub host: &'a str,
    pub pid: u32,
    /// The INTERNALDATE of the copies.
    pub arrived: OffsetDateTime,
    /// How long ago the message came, by this host's clock; `None` where that is not known. See [`Message::came_before`].
    pub came: Option<Duration>,
    pub policy: &'a Policy,
    /// The time for the uploads of all batches of the message.
    pub upload_time: &'a UploadTime,
    pub caller: &'a dyn Caller,
    /// Whether the mailboxes may have lost what the ledger has as delivered: each copy is then looked for in all of its
    /// mailbox, and appended if it is not there. Asked for by people, never by Postfix.
    pub restore: bool,
}

/// Whose a copy is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    /// It is these recipients', by their places in [`Delivery::recipients`]: several addresses may have one mailbox.
    Recipients(Vec<usize>),
    /// It is the author's own: if it fails, the message is delivered all the same. Its role is the recipient's where the author
    /// keeps sent mail in INBOX, so that an author who is a recipient, too, has one copy there.
    Authors,
}

/// A copy owed by this delivery, and the mailbox it belongs in.
pub struct OwedCopy<'a> {
    pub role: Role,
    pub whose: Whose,
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

/// What came of one delivery.
#[derive(Debug)]
pub struct Ended {
    /// Of each recipient, in their order.
    pub recipients: Vec<Result<Delivered, Refusal>>,
    /// Whether the author's copy is not there, or this is not known, and is seen to: one of these recipients comes back for it, since he was
    /// deferred, or it is recorded as owed. Until then nobody else of the same transaction is to append it: an APPEND that was not
    /// answered may still land.
    pub author_is_seen_to: bool,
    /// Whether the author's mailbox, which was open, hangs, and no recipient's does.
    pub author_hangs: bool,
}

/// Delivers one message to its envelope recipients.
///
/// `owed` has the recipients' copies, and then the author's, if one is owed; or any one copy that people want delivered again.
/// What goes wrong with one copy is that copy's alone. Only what is common to all, the database and the lock, fails for all.
pub fn deliver(
    delivery: &Delivery<'_>,
    database: &mut dyn Ledger,
    owed: Vec<OwedCopy<'_>>,
    stages: &mut Stages,
) -> Ended {
    // Where the mailboxes stand, before anything is written. A mailbox that is out of reach must not hold up the copies of
    // others.
    let began = Instant::now();
    let mut attempts: Vec<Attempt<'_>> = owed.into_iter().map(|owed| Attempt::begin(delivery, owed)).collect();
    stages.position = began.elapsed();
    let delivered = deliver_copies(delivery, database, &mut attempts, stages);
    // A server that hangs for all says nothing of one author.
    let hang = |recipients| attempts.iter().any(|attempt| attempt.is_recipients() == recipients && attempt.has_hung);
    let author_hangs = hang(false) && !hang(true);
    match delivered {
        Ok(()) => Ended {
            recipients: outcomes(delivery, &attempts),
            author_is_seen_to: sent_copy::is_seen_to(&attempts),
            author_hangs,
        },
        Err(deferral) => Ended {
            recipients: delivery.recipients.iter().map(|_| Err(deferral.clone().into())).collect(),
            author_is_seen_to: false,
            author_hangs,
        },
    }
}

/// Brings each attempt to its end; or says why none of the copies could be delivered.
fn deliver_copies(
    delivery: &Delivery<'_>,
    database: &mut dyn Ledger,
    attempts: &mut [Attempt<'_>],
    stages: &mut Stages,
) -> Result<(), Deferral> {
    // Without a recipient's mailbox there is nothing to begin with: an author's copy alone is delivered when people ask for it.
    let of_recipients = attempts.iter().any(Attempt::is_recipients);
    if attempts.iter().filter(|it| it.is_recipients() == of_recipients).all(Attempt::is_out_of_reach) {
        attempts.iter_mut().for_each(Attempt::end_out_of_reach);
        return Ok(());
    }

    // 1 journal
    let began = Instant::now();
    database.journal(&journal(delivery, attempts)).map_err(Deferral::Database)?;
    stages.journal = began.elapsed();

    // 2 lock, 3 look
    let began = Instant::now();
    let keys: Vec<CopyKey> = attempts.iter().map(|attempt| attempt.key).collect();
    let acquired = database.acquire_and_look(delivery.lock, delivery.policy.lock_wait, &keys);
    stages.lock = began.elapsed();
    let looked = match acquired {
        Ok(AcquiredAndLooked::Held { looked, took }) => {
            stages.lock = stages.lock.saturating_sub(took);
            stages.look = took;
            looked
        }
        Ok(AcquiredAndLooked::Busy(holder)) => {
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
    // On every path. PostgreSQL has released it with the record's COMMIT; elsewhere it is released here, after the COMMIT.
    if let Err(error) = database.release(delivery.lock) {
        debug!(%error, "the lock was not released; the server frees it with the connection");
    }
    result
}

/// Steps 4 and 5, while the lock is ours.
fn append_and_record(
    delivery: &Delivery<'_>,
    database: &mut dyn Ledger,
    attempts: &mut [Attempt<'_>],
    keys: &[CopyKey],
    stages: &mut Stages,
) -> Result<(), Deferral> {
    // 4 append: the recipients' copies first. If none of them is there, the author's is not tried. With the lock lost nothing
    // can be recorded: the attempt stays open, and the next one searches.
    let began = Instant::now();
    let several = delivery.is_one_of_several || attempts.iter().filter(|it| it.is_recipients()).count() > 1;
    // A second more for each megabyte, which the server has to store.
    let size = Duration::from_millis(delivery.message.as_received().len() as u64 / 1000);
    // To look through all of a mailbox may take long, and would the next time, too.
    let times = if attempts.iter().any(|it| it.others.forgotten) { PATIENCE_WITH_SEARCHES } else { 1 };
    let patience = several.then(|| delivery.policy.batch_patience.saturating_mul(times).saturating_add(size));
    let mut under_lock = UnderLock { delivery, database, keys };
    for recipients in [true, false] {
        // What an earlier attempt at the author's copy has left is looked for all the same: the recipient who owns it may be one
        // whose own mailbox never takes the message.
        let is_any_there = attempts.iter().any(|it| it.end.is_there());
        let look_only = !recipients && !is_any_there && attempts.iter().any(Attempt::is_recipients);
        let round = attempts.iter_mut().filter(|it| it.is_recipients() == recipients);
        let round = round.filter(|it| !look_only || (it.is_journalled() && it.others.died_before()));
        deliver_round(&mut under_lock, round, Round { look_only, patience }).map_err(|LockLost| Deferral::LockLost)?;
    }
    stages.append = began.elapsed();

    // 5 record: what was appended, even where another copy failed. Otherwise each retry would deliver to INBOX again what the
    // recipient has already filed.
    let began = Instant::now();
    record(delivery, database, attempts, stages).map_err(Deferral::Database)?;
    stages.record = began.elapsed();
    Ok(())
}

/// Writes down how the attempts ended, and what that makes of the copies.
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
        // The event of the author's copy names the author, whoever owns it. By its role, as those do who read its row.
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

/// What came of each recipient's delivery.
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
                // A deferral before a refusal for good: a recipient who is refused does not come back.
                (End::Failed { refusal: refusal @ Refusal::Deferred(_), .. }, Some(known))
                    if !matches!(known, Refusal::Deferred(_)) =>
                {
                    refused = Some(refusal.clone());
                }
                _ => {}
            }
        }
        // Who has no copy at all is not delivered to, whatever brought that about.
        let refused =
            refused.or_else(|| reports.is_empty().then(|| Deferral::Internal("no copy for a recipient").into()));
        refused.map_or(Ok(Delivered { copies: reports, brought: None }), Err)
    };
    (0..delivery.recipients.len()).map(of).collect()
}

/// The author's address as events name it, nothing in place of an endless one; `None` where the message has no one author.
fn author(delivery: &Delivery<'_>) -> Option<String> {
    Some(delivery.message.from_address()?.named().unwrap_or_default())
}

/// The recipient that the rows of a copy and of its attempts name, by which one finds the other: its own, or the
/// [owner](sent_copy::owner) of the author's.
fn recipient<'a>(delivery: &Delivery<'a>, attempts: &[Attempt<'_>], attempt: &Attempt<'_>) -> &'a str {
    let place = attempt.recipients().first().copied().unwrap_or_else(|| sent_copy::owner(attempts));
    delivery.recipients.get(place).map_or("", String::as_str)
}

/// The journal has the copies whose mailboxes are open: no other can be appended.
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

/// Ends the attempts, none of which has sent an APPEND. Where that fails they stay open, and cost the next ones a search.
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

/// Of the header, with `record.headers = "few"`.
const FEW_FIELDS: [&str; 9] =
    ["From", "To", "Cc", "Subject", "Date", "Message-ID", "References", "In-Reply-To", "List-Id"];

/// What the ledger keeps of the message.
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
