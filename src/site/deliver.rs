//! One delivery at a site, from the route to the record; and the redelivery of a recorded copy.

use super::Site;
use super::open::{Greeting, OpeningTimes, Owed, RecipientsMailbox, silent_a_moment_ago};
use super::plan::Destinations;
use super::sessions::{Opened, SILENT, Sessions};
use crate::base::deadline::Deadline;
use crate::database::DatabaseFailure;
use crate::delivery::{
    self, Caller, CopyReport, Deferral, Delivered, Delivery, Manner, NoCaller, OwedCopy, Policy, Refusal, Stages,
    UploadTime, Whose,
};
use crate::ledger::audit_queries::{self, EarlierDelivery, RecordedCopy};
use crate::ledger::failures::WRITE_TIMEOUT;
use crate::ledger::{self, CopyKey, Database, Destination, FailureRecord};
use crate::mailbox::ImapMailbox;
use crate::message::{Address, Message, Role};
use std::time::{Duration, Instant};
use time::OffsetDateTime;
use tracing::{debug, warn};
use uuid::Uuid;

/// What Postfix knows about a message besides its bytes.
#[derive(Clone, Debug)]
pub struct Envelope {
    /// The envelope sender; empty for the null sender, `None` if it is unknown.
    pub sender: Option<String>,
    /// The envelope recipient.
    pub recipient: Address,
    /// The recipient as the sender gave it, before any rewriting.
    pub original_recipient: Option<String>,
    /// Postfix's queue id.
    pub queue_id: Option<String>,
    /// The address of the SMTP client.
    pub client_address: Option<String>,
    /// The SASL user name, if the client logged in.
    pub sasl_username: Option<String>,
}

/// The rules, the caller and the deadline of a delivery.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    /// The operator's settings.
    pub policy: &'a Policy,
    /// The program that passed the message on.
    pub caller: &'a dyn Caller,
    /// The time by which the delivery has ended in any case.
    pub deadline: Deadline,
}

pub(super) const NO_OUTCOME: Deferral = Deferral::Internal("no outcome for a recipient");

/// The result of a message for one of its recipients, and how long it took.
#[derive(Debug)]
pub struct Outcome {
    pub result: Result<Delivered, Refusal>,
    pub stages: Stages,
    /// Set if the delivery failed before its journal.
    unjournalled: Option<Unjournalled>,
}

/// The end of a delivery that failed before its journal.
#[derive(Debug)]
struct Unjournalled {
    outcome: ledger::Outcome,
    /// The user and the name of the recipient's mailbox, if they are known.
    mailbox: Option<(String, String)>,
}

impl Outcome {
    /// That of a delivery without a journal.
    fn refused(refusal: impl Into<Refusal>, stages: Stages) -> Self {
        Self::refused_at(None, refusal, stages)
    }

    /// That of a delivery without a journal to this mailbox, if it is known.
    fn refused_at(mailbox: Option<(String, String)>, refusal: impl Into<Refusal>, stages: Stages) -> Self {
        let refusal = refusal.into();
        let unjournalled = refusal.outcome_before_journal().map(|outcome| Unjournalled { outcome, mailbox });
        Self { unjournalled, result: Err(refusal), stages }
    }
}

impl Site {
    /// Delivers a message to the envelope's recipient over `sessions`, and opens the sessions that are missing.
    ///
    /// # Errors
    /// If the message is deferred, which is nearly always the case, or refused for good: [`Refusal`] has the reason.
    pub fn deliver(
        &self,
        sessions: &mut Sessions,
        message: &Message,
        envelope: &Envelope,
        terms: &Terms<'_>,
        stages: &mut Stages,
    ) -> Result<Delivered, Refusal> {
        let outcomes = self.deliver_to_all(sessions, message, std::slice::from_ref(envelope), terms);
        let nobody = || Outcome::refused(NO_OUTCOME, *stages);
        let outcome = outcomes.into_iter().next().unwrap_or_else(nobody);
        *stages = outcome.stages;
        outcome.result
    }

    /// Delivers a message to several recipients, whose envelopes differ in nothing else. Returns one outcome for each, in their
    /// order. A batch has as many recipients as can have their mailboxes open at once. The batches are delivered one after the
    /// other, each under one lock.
    pub fn deliver_to_all(
        &self,
        sessions: &mut Sessions,
        message: &Message,
        envelopes: &[Envelope],
        terms: &Terms<'_>,
    ) -> Vec<Outcome> {
        let mut stages = Stages::default();
        let delivered = self.route_and_deliver(sessions, message, envelopes, terms, &mut stages);
        let outcomes = delivered
            .unwrap_or_else(|deferral| envelopes.iter().map(|_| Outcome::refused(deferral.clone(), stages)).collect());
        if outcomes.iter().any(|outcome| outcome.unjournalled.is_some()) {
            self.record_failures(sessions, message, envelopes, &outcomes);
        }
        outcomes
    }

    /// Records the deliveries that failed before their journal, as far as the database takes them at once. The result of
    /// the delivery does not depend on it.
    fn record_failures(
        &self,
        sessions: &mut Sessions,
        message: &Message,
        envelopes: &[Envelope],
        outcomes: &[Outcome],
    ) {
        let Some(database) = &mut sessions.used_database else { return };
        let recipients: Vec<String> = envelopes.iter().map(|to| to.recipient.folded().to_string()).collect();
        let lock = self.lock_name(message);
        let failed = envelopes.iter().zip(&recipients).zip(outcomes).filter_map(|((envelope, recipient), ended)| {
            let Unjournalled { outcome, mailbox } = ended.unjournalled.as_ref().filter(|_| ended.result.is_err())?;
            Some(FailureRecord {
                identity: message.identity(),
                recipient,
                mailbox: mailbox.as_ref().map(|(user, mailbox)| (user.as_str(), mailbox.as_str())),
                lock: &lock,
                sender: envelope.sender.as_deref(),
                author: message.from(),
                subject: message.subject(),
                message_id: message.message_id_for_people(),
                queue_id: envelope.queue_id.as_deref(),
                host: &self.host,
                outcome: outcome.clone(),
            })
        });
        let mut failed: Vec<FailureRecord<'_>> = failed.collect();
        // In one order in all processes: two that write the same rows would otherwise wait for each other.
        failed.sort_by(|one, other| one.recipient.cmp(other.recipient));
        if let Err(error) = database.record_failures(&failed) {
            debug!(%error, "this failure is only in the log");
        }
    }

    fn route_and_deliver(
        &self,
        sessions: &mut Sessions,
        message: &Message,
        envelopes: &[Envelope],
        terms: &Terms<'_>,
        stages: &mut Stages,
    ) -> Result<Vec<Outcome>, Deferral> {
        let queue_id = envelopes.first().and_then(|envelope| envelope.queue_id.as_deref());
        let (began, mut patience) = (Instant::now(), self.patience(terms.deadline));
        let Opened { mut database, greeting, has_served } =
            sessions.for_a_delivery(self, queue_id, terms, &mut patience).map_err(Deferral::Database)?;
        stages.connect = began.elapsed();
        // The server may have ended a kept session, or may not be the primary. Nothing is journalled yet, so another session may
        // start over.
        let mut may_be_stale = has_served || self.has_several_databases();
        let routed = loop {
            let routed = self.route_or_refuse(message, envelopes, database.as_mut(), terms.deadline, stages);
            let Err(Deferral::Database(error)) = &routed else { break routed };
            let another = error.failure == DatabaseFailure::TimedOut && self.has_several_databases();
            let at_once = std::mem::take(&mut may_be_stale) && (another || error.a_new_session_can_help());
            if !at_once && !patience.once_more_after(error, |error| terms.caller.is_kept_waiting(error)) {
                break routed;
            }
            debug!(%error, "the session with the database is reopened");
            let began = Instant::now();
            let opened = self.await_database(queue_id, terms, &mut patience);
            database = opened.map_err(Deferral::Database)?;
            stages.connect += began.elapsed();
        };
        let result = routed.and_then(|destinations| {
            let to = Routed { message, envelopes, destinations };
            self.deliver_in_batches(to, greeting, terms, database.as_mut(), sessions, stages)
        });
        stages.database_round_trips = database.round_trips();
        sessions.used_database = Some(database);
        result
    }

    /// Finds the mailboxes of the copies. An unknown recipient is refused or deferred.
    fn route_or_refuse(
        &self,
        message: &Message,
        envelopes: &[Envelope],
        database: &mut dyn Database,
        deadline: Deadline,
        stages: &mut Stages,
    ) -> Result<Destinations, Deferral> {
        let began = Instant::now();
        let mut destinations = self.destinations(message, envelopes, database)?;
        self.make_sure_of_the_primary(database, deadline).map_err(Deferral::Database)?;
        for (destination, envelope) in destinations.recipients.iter_mut().zip(envelopes) {
            if let Err(refusal @ Refusal::UnknownRecipient) = destination {
                *refusal = match self.refuse(&envelope.recipient, database) {
                    // The other recipients cannot use this session either.
                    Refusal::Deferred(Deferral::Database(error)) if error.a_new_session_can_help() => {
                        return Err(Deferral::Database(error));
                    }
                    other => other,
                };
            }
        }
        stages.route = began.elapsed();
        Ok(destinations)
    }

    fn deliver_in_batches(
        &self,
        to: Routed<'_>,
        mut greeting: Option<Greeting>,
        terms: &Terms<'_>,
        database: &mut dyn Database,
        sessions: &mut Sessions,
        stages: &mut Stages,
    ) -> Result<Vec<Outcome>, Deferral> {
        let Routed { message, envelopes, destinations } = to;
        let mut began = Instant::now();
        let opening = &Terms { deadline: terms.deadline.leaving(WRITE_TIMEOUT), ..*terms };
        let proven = self.prove_login_by_one_of(&destinations, opening, database, &mut sessions.silent);
        let Destinations { recipients, mut sender, .. } = destinations;
        let unproven = match proven {
            Ok(unproven) => unproven,
            Err(deferral) => {
                let deferred = |to: Result<Destination, Refusal>| {
                    Outcome::refused_at(to.ok().map(|to| (to.user, to.inbox)), deferral.clone(), *stages)
                };
                return Ok(recipients.into_iter().map(deferred).collect());
            }
        };
        let mut outcomes: Vec<Option<Outcome>> = recipients.iter().map(|_| None).collect();
        let mut mailboxes: Vec<RecipientsMailbox> = Vec::with_capacity(recipients.len());
        for ((place, destination), outcome) in recipients.into_iter().enumerate().zip(&mut outcomes) {
            match destination {
                Err(refusal) => *outcome = Some(Outcome::refused(refusal, *stages)),
                Ok(to) => match mailboxes.iter_mut().find(|known| known.is_at(&to.user, &to.inbox)) {
                    Some(known) => known.recipients.push(place),
                    None => mailboxes.push(RecipientsMailbox { to, recipients: vec![place] }),
                },
            }
        }
        // If Sent is also the mailbox of a recipient's copy, a note to oneself has one copy.
        sender.take_if(|sender| mailboxes.iter().any(|known| known.is_at(&sender.user, &sender.sent)));
        let at_once = self.mailbox_sessions() - usize::from(sender.is_some());
        let upload_time = UploadTime::until_deadline(terms.deadline);
        for of_batch in batches(&mailboxes, at_once) {
            sessions.keep_mailboxes();
            let mut stages = *stages;
            let closed = sender.as_ref().and_then(|author| match sessions.silent.holds(&author.user, Instant::now()) {
                true => Some(silent_a_moment_ago()),
                false => unproven.clone(),
            });
            let asked = sender.as_ref().filter(|_| closed.is_none());
            // Each batch has the full opening time.
            let times = OpeningTimes::of(terms, mailboxes.len() > 1);
            let mut owed = self.open_mailboxes(of_batch, asked, greeting.take(), &mut sessions.kept, times);
            // If the server hangs for all mailboxes, that proves nothing about one author.
            if let Some(author) = owed.iter().find_map(Owed::silent_author)
                && owed.iter().any(|one| !one.took_too_long())
            {
                sessions.silent.note(author, Instant::now(), SILENT);
            }
            owed.extend(sender.as_ref().zip(closed).map(|(author, error)| Owed::unopened(author, error)));
            // In the first batch, this includes the proof of the logins.
            stages.authenticate = began.elapsed();
            let places: Vec<usize> = of_batch.iter().flat_map(|mailbox| mailbox.recipients.iter().copied()).collect();
            let to = places.iter().filter_map(|&place| envelopes.get(place)).collect();
            let batch =
                Batch { envelopes: to, is_one_of_several: of_batch.len() < mailboxes.len(), upload_time: &upload_time };
            let ended = self.deliver_copies(message, &batch, terms, database, &mut owed, &mut stages);
            // The author's mailbox has used all the available time, under the message's lock. This process does not use that
            // mailbox again before the bytes sent to it have settled. Otherwise each of the author's other messages would wait as
            // long, one after the other.
            if let Some(author) = sender.as_ref().filter(|_| ended.author_hangs) {
                sessions.silent.note(&author.user, Instant::now(), terms.policy.append_grace.max(SILENT));
            }
            // Only one batch waits for an author's mailbox that hangs. If an APPEND got no answer, the next batch does not append
            // that copy either: its search would miss the copy while it is in flight.
            sender.take_if(|_| ended.author_retry_is_certain);
            sessions.used_mailboxes = owed.into_iter().filter_map(Owed::into_imap_mailbox).collect();
            stages.imap_round_trips = sessions.used_mailboxes.iter().map(ImapMailbox::round_trips).sum();
            stages.database_round_trips = database.round_trips();
            let mut unjournalled = ended.unjournalled.into_iter().peekable();
            for (at, (place, result)) in places.into_iter().zip(ended.recipients).enumerate() {
                let unjournalled = unjournalled.next_if(|(recipient, _)| *recipient == at).map(|(_, outcome)| {
                    let mailbox = of_batch.iter().find(|mailbox| mailbox.recipients.contains(&place));
                    let mailbox = mailbox.map(|mailbox| (mailbox.to.user.clone(), mailbox.to.inbox.clone()));
                    Unjournalled { outcome, mailbox }
                });
                if let Some(outcome) = outcomes.get_mut(place) {
                    *outcome = Some(Outcome { result, stages, unjournalled });
                }
            }
            began = Instant::now();
        }
        let missing = || Outcome::refused(NO_OUTCOME, *stages);
        Ok(outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(missing)).collect())
    }

    fn deliver_copies(
        &self,
        message: &Message,
        Batch { envelopes, is_one_of_several, upload_time }: &Batch<'_>,
        terms: &Terms<'_>,
        database: &mut dyn Database,
        owed: &mut [Owed],
        stages: &mut Stages,
    ) -> delivery::Ended {
        let attempt = Uuid::now_v7();
        stages.attempt = Some(attempt);
        let arrived = OffsetDateTime::now_utc();
        let recipients: Vec<String> = envelopes.iter().map(|to| to.recipient.folded().to_string()).collect();
        let delivery = Delivery {
            message,
            sender: envelopes.first().and_then(|envelope| envelope.sender.as_deref()),
            recipients: &recipients,
            is_one_of_several: *is_one_of_several,
            queue_id: envelopes.first().and_then(|envelope| envelope.queue_id.as_deref()),
            lock: &self.lock_name(message),
            attempt,
            host: &self.host,
            pid: std::process::id(),
            arrived,
            came: message.came_before(arrived),
            policy: terms.policy,
            upload_time,
            caller: terms.caller,
            restore: false,
        };
        let copies = owed.iter_mut().map(Owed::lend).collect();
        let mut ended = delivery::deliver(&delivery, database, copies, stages);
        for delivered in ended.recipients.iter_mut().filter_map(|result| result.as_mut().ok()) {
            delivered.brought = how_it_came(message, &delivered.copies, database);
        }
        ended
    }

    /// Delivers one recorded copy again, to the mailbox that the ledger names: an owed copy, or with `restore` one that its
    /// mailbox may have lost. The author was checked when the copy was recorded.
    ///
    /// # Errors
    /// If the copy is not in the mailbox afterwards, or if that is unknown: [`Refusal`] has the reason.
    pub(crate) fn deliver_again(
        &self,
        copy: &RecordedCopy,
        message: &Message,
        restore: bool,
        deadline: Deadline,
    ) -> Result<Manner, Refusal> {
        let mut database = self.open_database(None, deadline).map_err(Deferral::Database)?;
        self.prove_login(&copy.user, &copy.mailbox, database.as_mut(), deadline)?;
        let mut mailbox = self.mailbox(&copy.user, &copy.mailbox, deadline);
        let owed = OwedCopy {
            role: copy.role,
            // Only an author's copy is ever recorded as owed.
            whose: if !restore || copy.role == Role::Sender { Whose::Authors } else { Whose::Recipients(vec![0]) },
            user: copy.user.clone(),
            mailbox_name: copy.mailbox.clone(),
            mailbox: match &mut mailbox {
                Ok(mailbox) => Ok(mailbox.as_mut()),
                Err(error) => Err(error.clone().into()),
            },
        };
        // Only the operator, or the timer, retries this: a failure is reported, and the copy is not recorded as owed once more.
        let policy = Policy { sent_retry_for: Duration::MAX, keep_source_up_to: 0, ..self.policy() };
        let delivery = Delivery {
            message,
            sender: Some(&copy.sender),
            recipients: std::slice::from_ref(&copy.recipient),
            is_one_of_several: false,
            queue_id: None,
            lock: &copy.lock,
            attempt: Uuid::now_v7(),
            host: &self.host,
            pid: std::process::id(),
            arrived: copy.arrived(),
            came: message.came_before(OffsetDateTime::now_utc()),
            policy: &policy,
            upload_time: &UploadTime::until_deadline(deadline),
            caller: &NoCaller,
            restore,
        };
        let ended = delivery::deliver(&delivery, database.as_mut(), vec![owed], &mut Stages::default());
        let delivered = ended.recipients.into_iter().next().unwrap_or(Err(NO_OUTCOME.into()))?;
        Ok(delivered.copies.into_iter().next().map_or(Manner::AlreadyThere, |copy| copy.manner))
    }
}

/// A message, and the mailboxes of its copies.
struct Routed<'a> {
    message: &'a Message,
    envelopes: &'a [Envelope],
    destinations: Destinations,
}

/// The recipients whose copies are delivered under one lock.
struct Batch<'a> {
    envelopes: Vec<&'a Envelope>,
    /// Whether the message has other batches as well.
    is_one_of_several: bool,
    /// The upload time, which all batches of the message share.
    upload_time: &'a UploadTime,
}

/// Splits the mailboxes into as few batches as possible, whose sizes differ by at most one. So hardly any batch has a single
/// mailbox.
fn batches<T>(all: &[T], at_once: usize) -> impl Iterator<Item = &[T]> {
    let count = all.len().div_ceil(at_once.max(1));
    // The larger batches come first: if a mailbox of the first batch hangs, another one can show that the server as a whole is
    // not slow.
    let end = move |batch: usize| (batch * all.len()).div_ceil(count);
    (0..count).filter_map(move |batch| all.get(end(batch)..end(batch + 1)))
}

/// Reads, for the log, how the recipient's copy was delivered earlier, if it was there already. Everything is recorded and the
/// lock is free: if this fails, the message is still delivered.
fn how_it_came(message: &Message, copies: &[CopyReport], database: &mut dyn Database) -> Option<EarlierDelivery> {
    let is_there = |copy: &&CopyReport| copy.role == Role::Recipient && copy.manner == Manner::AlreadyThere;
    let copy = copies.iter().find(is_there)?;
    let key = CopyKey::new(message.identity(), copy.role, &copy.user, &copy.mailbox);
    audit_queries::earlier_delivery(database, &key).unwrap_or_else(|error| {
        warn!(%error, "how the copy that was there already came to be there is not known");
        None
    })
}

#[cfg(test)]
mod tests {
    use super::batches;

    #[test]
    fn batches_are_of_one_size_or_of_two_that_differ_by_one() {
        let sizes = |count: usize, at_once| batches(&vec![(); count], at_once).map(<[()]>::len).collect::<Vec<_>>();
        assert_eq!(sizes(0, 8), [0; 0]);
        assert_eq!(sizes(1, 8), [1]);
        assert_eq!(sizes(8, 8), [8]);
        assert_eq!(sizes(9, 8), [5, 4]);
        // Postfix hands over 50 at once (postfix/main.cf.maildropd), and the author is local.
        assert_eq!(sizes(50, 7), [7, 6, 6, 6, 7, 6, 6, 6]);
        assert_eq!(sizes(3, 2), [2, 1]);
        assert_eq!(sizes(3, 1), [1, 1, 1]);
    }

    #[test]
    fn each_is_in_one_batch() {
        for count in 1..120 {
            let all: Vec<usize> = (0..count).collect();
            for at_once in 1..12 {
                let batches: Vec<_> = batches(&all, at_once).collect();
                assert_eq!(batches.concat(), all);
                assert!(batches.iter().all(|batch| (1..=at_once).contains(&batch.len())));
                assert_eq!(batches.len(), count.div_ceil(at_once));
            }
        }
    }
}
