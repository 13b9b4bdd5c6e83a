//! What is at workers now, as it is counted.

use super::job::{Job, JobId};
use std::collections::BTreeMap;
use std::time::Instant;

#[derive(Default)]
pub(super) struct AtWork {
    /// How many messages for an address there are.
    users: BTreeMap<String, usize>,
    /// The deliveries of one message, by [its name](Job::message), and since when they are there.
    messages: BTreeMap<String, BTreeMap<JobId, Instant>>,
}

impl AtWork {
    pub(super) fn begins(&mut self, id: JobId, job: &Job, now: Instant) {
        for user in job.users_at_work() {
            *self.users.entry(user.clone()).or_default() += 1;
        }
        if let Some(message) = job.message() {
            self.messages.entry(message.to_owned()).or_default().insert(id, now);
        }
    }

    pub(super) fn ends(&mut self, id: JobId, job: &Job) {
        for user in job.users_at_work() {
            if let Some(count) = self.users.get_mut(user) {
                *count -= 1;
                if *count == 0 {
                    self.users.remove(user);
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

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.users.is_empty() && self.messages.is_empty()
    }
}
