//! How long a message waits at the broker, and for what.
//!
//! | it waits for | at the longest | and then |
//! |---|---|---|
//! | a worker | `waits_until`: `serve.queue_wait`, or half of its time | it is deferred |
//! | another delivery of the same message | the same | it is deferred |
//! | some of its recipients, who are at their limit (`is_at_limit`) | `patient_until`: `serve.batch_patience` | it goes to the others |
//! | all of its recipients, who are at theirs | `deferred_at`: `serve.batch_patience` | it is deferred |
//!
//! The first two count from when it came, or was let begin; the others from when a worker was first there for it. None of them lasts
//! longer than the first. What waits for anything but a worker does not hold up those behind it.

use super::super::job::{Job, JobId};
use super::Broker;
use crate::delivery::Verdict;
use crate::protocol::zmtp::INTERVAL;
use std::collections::BTreeSet;
use std::time::Instant;

/// How many deliveries of one message are at workers at once. It has one lock, which one of them has: the next one gets ready beside it.
const OF_A_MESSAGE: usize = 2;

impl Broker {
    /// Whether as many deliveries of the same message are at work as may be at once: each more would take a worker, and wait there for
    /// the message's lock. Where the one that has the lock waits for a mailbox that hangs, no second one gets ready beside it.
    pub(super) fn waits_for_its_message(&self, id: JobId, now: Instant) -> bool {
        let Some(message) = self.jobs.get(&id).and_then(Job::message) else { return false };
        let (mut at_work, mut takes_long) = (0, false);
        for since in self.at_work.of_message(message) {
            at_work += 1;
            takes_long |= now >= since + self.settings.patience;
        }
        let at_most = match self.settings.workers {
            _ if takes_long => 1,
            // It does not go by how many there are, where somebody starts them by hand.
            1 => OF_A_MESSAGE,
            several => OF_A_MESSAGE.min(several - 1),
        };
        at_work >= at_most
    }

    /// Whether so many messages for its recipients are at work that it has to wait. It waits for `serve.batch_patience`, since most
    /// have their turn by then. Then it goes to the others, and leaves out who has none: a mailbox that hangs holds up the others of
    /// its messages for so long, and no more workers than `serve.per_user`. Where there are no others, it is deferred.
    pub(super) fn is_held_back(&mut self, id: JobId, now: Instant) -> bool {
        let Some(job) = self.jobs.get(&id) else { return false };
        let users = job.users().iter().enumerate();
        let left_out: BTreeSet<usize> =
            users.filter(|(_, user)| self.is_at_limit(user)).map(|(place, _)| place).collect();
        if left_out.is_empty() {
            return false;
        }
        let since = job.held_back.unwrap_or(now);
        let waits = left_out.len() == job.users().len() || now < self.patient_until(job, since);
        if let Some(job) = self.jobs.get_mut(&id) {
            job.held_back = Some(since);
            if !waits {
                job.left_out = left_out;
            }
        }
        waits
    }

    /// Whether as many messages for this recipient are at work as may be at once. All who are slow have half of the workers together:
    /// where the mailboxes of many hang, the others have the rest.
    fn is_at_limit(&self, user: &str) -> bool {
        let at_most = match self.settings.workers {
            1 => usize::MAX,
            several => several / 2,
        };
        let slow_ones = || self.at_work.slow_ones(&self.slow, self.settings.patience, self.now);
        self.at_work.of_user(user) >= self.settings.per_user
            || (self.slow.holds(user, self.now) && slow_ones() >= at_most)
    }

    /// Hears from what becomes of a message who of its recipients has a worker wait. What fails for the database's sake says nothing of
    /// them.
    pub(super) fn learn_who_is_slow(&mut self, id: JobId, verdicts: &[Verdict]) {
        let (Some(job), Some(since)) = (self.jobs.get(&id), self.at_work.since(id)) else { return };
        let took_long = self.now >= since + self.settings.patience && self.database_away.is_none();
        for ((place, user), verdict) in job.users().iter().enumerate().zip(verdicts) {
            match verdict.class() {
                _ if job.left_out.contains(&place) => {}
                4 if took_long => self.slow.note(user, self.now),
                4 => {}
                _ => self.slow.forget(user),
            }
        }
    }

    /// Until when a message waits for a worker: at least half of its time is for the delivery.
    fn waits_until(&self, job: &Job) -> Instant {
        (job.queued + self.settings.queue_wait).min(job.arrived + job.time / 2)
    }

    /// Until when a message waits for all of its recipients, held back since then: it goes to the others before it is deferred
    /// for having waited for too long.
    pub(super) fn patient_until(&self, job: &Job, since: Instant) -> Instant {
        let latest = self.waits_until(job).checked_sub(INTERVAL).unwrap_or(since);
        latest.min(since + self.settings.patience)
    }

    /// When a message is deferred that waits still: soon, where it is for those alone who have as many at work as they may. Who has
    /// handed it over (lmtp(8) has some twenty processes for all mail) would wait with it.
    pub(super) fn deferred_at(&self, job: &Job) -> Instant {
        let latest = self.waits_until(job);
        let since = job.held_back.filter(|_| job.users().iter().all(|user| self.is_at_limit(user)));
        since.map_or(latest, |since| latest.min(since + self.settings.patience))
    }
}
