//! The jobs at workers, counted by recipient and by message.

use super::job::{Job, JobId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long a recipient counts as slow, unless a delivery to them succeeds earlier.
const SLOW_FOR: Duration = Duration::from_mins(30);

#[derive(Default)]
pub(super) struct AtWork {
    /// When each job began, and for which recipients.
    all: BTreeMap<JobId, (Instant, BTreeSet<String>)>,
    /// The number of jobs for each recipient.
    users: BTreeMap<String, usize>,
    /// The deliveries of one message, by [its name](Job::message), and when each began.
    messages: BTreeMap<String, BTreeMap<JobId, Instant>>,
}

impl AtWork {
    pub(super) fn begins(&mut self, id: JobId, job: &Job, now: Instant) {
        let users: BTreeSet<String> = job.users_at_work().into_iter().cloned().collect();
        for user in &users {
            *self.users.entry(user.clone()).or_default() += 1;
        }
        self.all.insert(id, (now, users));
        if let Some(message) = job.message() {
            self.messages.entry(message.to_owned()).or_default().insert(id, now);
        }
    }

    pub(super) fn ends(&mut self, id: JobId, job: &Job) {
        for user in self.all.remove(&id).map(|(_, users)| users).unwrap_or_default() {
            if let Some(count) = self.users.get_mut(&user) {
                *count -= 1;
                if *count == 0 {
                    self.users.remove(&user);
                }
            }
        }
        if let Some(message) = job.message()
            && let Some(deliveries) = self.messages.get_mut(message)
        {
            deliveries.remove(&id);
            if deliveries.is_empty() {
                self.messages.remove(message);
            }
        }
    }

    /// The number of jobs for this recipient.
    pub(super) fn of_user(&self, user: &str) -> usize {
        self.users.get(user).copied().unwrap_or_default()
    }

    /// When each delivery of the message with this name began.
    pub(super) fn of_message(&self, message: &str) -> impl Iterator<Item = Instant> {
        self.messages.get(message).into_iter().flat_map(|deliveries| deliveries.values().copied())
    }

    /// When this job began.
    pub(super) fn since(&self, id: JobId) -> Option<Instant> {
        self.all.get(&id).map(|(since, _)| *since)
    }

    /// How many jobs are for a slow recipient, or run for longer than `patience`.
    pub(super) fn slow_ones(&self, slow: &Slow, patience: Duration, now: Instant) -> usize {
        let is_slow = |(since, users): &&(Instant, BTreeSet<String>)| {
            now >= *since + patience || users.iter().any(|user| slow.holds(user, now))
        };
        self.all.values().filter(is_slow).count()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty() && self.users.is_empty() && self.messages.is_empty()
    }
}

/// Recipients that made a worker wait for a long time without a delivery, and until when they count as slow.
#[derive(Default)]
pub(super) struct Slow(BTreeMap<String, Instant>);

impl Slow {
    pub(super) fn note(&mut self, user: &str, now: Instant) {
        self.0.insert(user.to_owned(), now + SLOW_FOR);
    }

    /// A delivery to the recipient had a final result.
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
        let (mut slow, now) = (Slow::default(), Instant::now());
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
