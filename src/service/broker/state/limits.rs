//! How long a message waits at the broker, and for what.
//!
//! | it waits for | at the longest | and then |
//! |---|---|---|
//! | a worker | `waits_until`: `service.worker_wait`, or half of its time | it is deferred |
//! | another delivery of the same message | the same | it is deferred |
//! | some of its recipients, who are at their limit (`is_at_limit`) | `patient_until`: `service.slow_mailbox_timeout` | the others get it |
//! | all of its recipients, who are at their limit | `deferred_at`: `service.slow_mailbox_timeout` | it is deferred |
//!
//! The first two limits count from the message's arrival, or from its client's GO. The others count from when a worker was first
//! ready for it, and none of them lasts longer than the first. A message that waits for anything except a worker does not block
//! the messages behind it.

use super::super::job::{Job, JobId, Stage};
use super::Broker;
use crate::delivery::Verdict;
use crate::protocol::zmtp::INTERVAL;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How many deliveries of one message run at the same time: one holds the message's lock, while the next one prepares.
const OF_A_MESSAGE: usize = 2;
/// How long a recipient counts as slow, unless a delivery to them succeeds earlier.
const SLOW_FOR: Duration = Duration::from_mins(30);

impl Broker {
    /// The jobs at workers, and when each began. There are no more of them than workers.
    fn running_jobs(&self) -> impl Iterator<Item = (&Job, Instant)> {
        self.workers.jobs().filter_map(|id| match self.jobs.get(&id) {
            Some(job @ Job { stage: Stage::At { since, .. }, .. }) => Some((job, *since)),
            _ => None,
        })
    }

    /// Whether the deliveries of the same message are at their limit. One more would occupy a worker, which would only wait for
    /// the message's lock. If the delivery with the lock waits for a mailbox that hangs, no second one prepares.
    pub(super) fn waits_for_its_message(&self, id: JobId, now: Instant) -> bool {
        let Some(message) = self.jobs.get(&id).and_then(Job::message) else { return false };
        let (mut at_work, mut takes_long) = (0, false);
        for (_, since) in self.running_jobs().filter(|(job, _)| job.message() == Some(message)) {
            at_work += 1;
            takes_long |= now >= since + self.settings.patience;
        }
        let at_most = match self.settings.workers {
            _ if takes_long => 1,
            // The configured number counts, not the number of running workers: an operator may have started more manually.
            1 => OF_A_MESSAGE,
            several => OF_A_MESSAGE.min(several - 1),
        };
        at_work >= at_most
    }

    /// Whether the message waits because some of its recipients are at their limit.
    ///
    /// The message waits for `service.slow_mailbox_timeout`: by then, most recipients are available. Then the message goes to the
    /// recipients that are not at their limit; if there are none, it is deferred. So a mailbox that hangs delays other recipients
    /// only for that long, and occupies at most `service.max_per_recipient` workers.
    pub(super) fn is_held_back(&mut self, id: JobId, now: Instant) -> bool {
        let Some(job) = self.jobs.get(&id) else { return false };
        let users = job.users().iter().enumerate();
        let excluded_recipients: BTreeSet<usize> =
            users.filter(|(_, user)| self.is_at_limit(user)).map(|(place, _)| place).collect();
        if excluded_recipients.is_empty() {
            return false;
        }
        let since = job.throttled_since.unwrap_or(now);
        let waits = excluded_recipients.len() == job.users().len() || now < self.patient_until(job, since);
        if let Some(job) = self.jobs.get_mut(&id) {
            job.throttled_since = Some(since);
            if !waits {
                job.excluded_recipients = excluded_recipients;
            }
        }
        waits
    }

    /// Whether the deliveries to this recipient are at their limit. All slow recipients share half of the workers: if many
    /// mailboxes hang, the other recipients have the rest.
    fn is_at_limit(&self, user: &str) -> bool {
        let at_most = match self.settings.workers {
            1 => usize::MAX,
            several => several / 2,
        };
        let is_slow = |(job, since): &(&Job, Instant)| {
            self.now >= *since + self.settings.patience
                || job.delivered_users().any(|user| self.slow.contains_key(user))
        };
        let is_for = |(job, _): &(&Job, Instant)| job.delivered_users().any(|other| other == user);
        self.running_jobs().filter(is_for).count() >= self.settings.max_per_recipient
            || (self.slow.contains_key(user) && self.running_jobs().filter(is_slow).count() >= at_most)
    }

    /// Notes which recipients kept a worker waiting. A failure while the database is unavailable says nothing about the
    /// recipients.
    pub(super) fn note_slow_recipients(&mut self, id: JobId, verdicts: &[Verdict]) {
        let Some(job @ Job { stage: Stage::At { since, .. }, .. }) = self.jobs.get(&id) else { return };
        let took_long = self.now >= *since + self.settings.patience && self.database_away.is_none();
        for ((place, user), verdict) in job.users().iter().enumerate().zip(verdicts) {
            match verdict.class() {
                _ if job.excluded_recipients.contains(&place) => {}
                4 if took_long => drop(self.slow.insert(user.clone(), self.now + SLOW_FOR)),
                4 => {}
                _ => drop(self.slow.remove(user)),
            }
        }
    }

    /// Until when a message waits for a worker. At least half of its time is left for the delivery.
    fn waits_until(&self, job: &Job) -> Instant {
        (job.queued + self.settings.worker_wait).min(job.arrived + job.time / 2)
    }

    /// Until when a message that has been held back since `since` waits for all of its recipients. This ends before
    /// [`waits_until`](Self::waits_until), so that the message goes to the other recipients instead of being deferred.
    pub(super) fn patient_until(&self, job: &Job, since: Instant) -> Instant {
        let latest = self.waits_until(job).checked_sub(INTERVAL).unwrap_or(since);
        latest.min(since + self.settings.patience)
    }

    /// When a queued message is deferred. If all of its recipients are at their limit, this is soon: otherwise the sending
    /// process would wait as well. (lmtp(8) has some twenty processes for all mail.)
    pub(super) fn deferred_at(&self, job: &Job) -> Instant {
        let latest = self.waits_until(job);
        let since = job.throttled_since.filter(|_| job.users().iter().all(|user| self.is_at_limit(user)));
        since.map_or(latest, |since| latest.min(since + self.settings.patience))
    }
}
