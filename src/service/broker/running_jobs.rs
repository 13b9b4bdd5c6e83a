//! What is at workers now, as it is counted.

use super::job::{Job, JobId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// For how long a recipient counts as slow, unless something is delivered to him before.
const SLOW_FOR: Duration = Duration::from_mins(30);

#[derive(Default)]
pub(super) struct AtWork {
    /// Since when each message is there, and for whom.
    all: BTreeMap<JobId, (Instant, BTreeSet<String>)>,
    /// How many messages for an address there are.
    users: BTreeMap<String, usize>,
    /// The deliveries of one message, by [its name](Job::message), and since when they are there.
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

    /// How many messages for this address there are.
    pub(super) fn of_user(&self, user: &str) -> usize {
        self.users.get(user).copied().unwrap_or_default()
    }

    /// Since when deliveries of the message of this name are there.
    pub(super) fn of_message(&self, message: &str) -> impl Iterator<Item = Instant> {
        self.messages.get(message).into_iter().flat_map(|deliveries| deliveries.values().copied())
    }

    /// Since when this message is there.
    pub(super) fn since(&self, id: JobId) -> Option<Instant> {
        self.all.get(&id).map(|(since, _)| *since)
    }

    /// How many are there for somebody who is slow, or have been there for longer than this.
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

/// Recipients who had a worker wait for a long time, and then nothing was delivered to them; and until when they count as such.
#[derive(Default)]
pub(super) struct Slow(BTreeMap<String, Instant>);

impl Slow {
    pub(super) fn note(&mut self, user: &str, now: Instant) {
        self.0.insert(user.to_owned(), now + SLOW_FOR);
    }

    /// Something came of a message for him.
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
