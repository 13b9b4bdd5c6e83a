//! The jobs at workers, counted by recipient and by message.

use super::job::{Job, JobId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long a recipient counts as slow, unless a delivery to them succeeds earlier.
const SLOW_FOR: Duration = Duration::from_mins(30);

/// There are no more jobs than workers, so searches read all of them.
#[derive(Default)]
pub(super) struct RunningJobs(BTreeMap<JobId, Running>);

struct Running {
    since: Instant,
    users: BTreeSet<String>,
    /// The name of the message: see [`Job::message`].
    message: Option<String>,
}

impl RunningJobs {
    pub(super) fn begins(&mut self, id: JobId, job: &Job, now: Instant) {
        let users = job.users_at_work().into_iter().cloned().collect();
        self.0.insert(id, Running { since: now, users, message: job.message().map(ToOwned::to_owned) });
    }

    pub(super) fn ends(&mut self, id: JobId) {
        self.0.remove(&id);
    }

    /// The number of jobs for this recipient.
    pub(super) fn of_user(&self, user: &str) -> usize {
        self.0.values().filter(|running| running.users.contains(user)).count()
    }

    /// When each delivery of the message with this name began.
    pub(super) fn of_message(&self, message: &str) -> impl Iterator<Item = Instant> {
        self.0.values().filter(move |running| running.message.as_deref() == Some(message)).map(|running| running.since)
    }

    /// When this job began.
    pub(super) fn since(&self, id: JobId) -> Option<Instant> {
        self.0.get(&id).map(|running| running.since)
    }

    /// How many jobs are for a slow recipient, or have run for longer than `patience`.
    pub(super) fn slow_ones(&self, slow: &SlowRecipients, patience: Duration, now: Instant) -> usize {
        let is_slow = |running: &&Running| {
            now >= running.since + patience || running.users.iter().any(|user| slow.holds(user, now))
        };
        self.0.values().filter(is_slow).count()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Recipients that kept a worker waiting for long without a delivery, and until when they count as slow.
#[derive(Default)]
pub(super) struct SlowRecipients(BTreeMap<String, Instant>);

impl SlowRecipients {
    pub(super) fn note(&mut self, user: &str, now: Instant) {
        self.0.insert(user.to_owned(), now + SLOW_FOR);
    }

    /// Forgets a recipient once a delivery to them had a final result.
    pub(super) fn forget(&mut self, user: &str) {
        self.0.remove(user);
    }

    pub(super) fn holds(&self, user: &str, now: Instant) -> bool {
        self.0.get(user).is_some_and(|until| now < *until)
    }

    pub(super) fn drop_old(&mut self, now: Instant) {
        self.0.retain(|_, until| now < *until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipient_is_slow_for_half_an_hour_and_then_nothing_is_known_of_him() {
        let (mut slow, now) = (SlowRecipients::default(), Instant::now());
        slow.note("a@x", now);
        let until = now + SLOW_FOR;
        let before = until - Duration::from_nanos(1);
        slow.drop_old(before);
        assert!(slow.holds("a@x", before));
        assert!(!slow.holds("a@x", until));
        slow.drop_old(until);
        assert!(slow.0.is_empty());
    }
}
