//! A resource that all clients of a process share, such as memory. There is a limit for all, and a lower one for each token or
//! login, so that no client uses up everything.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Debug, Default)]
struct SharesTaken {
    all: usize,
    /// The shares of those clients that have taken any.
    each: HashMap<String, usize>,
}

#[derive(Debug)]
pub struct FairQuota {
    most: usize,
    each: usize,
    taken: Mutex<SharesTaken>,
}

impl FairQuota {
    /// A quota of which each client may take half.
    pub(crate) fn of(most: usize) -> Arc<Self> {
        Self::with(most, most / 2)
    }

    pub(crate) fn with(most: usize, each: usize) -> Arc<Self> {
        Arc::new(Self { most, each, taken: Mutex::default() })
    }

    /// Takes this amount for this client. `None` if less is left, or if the client would exceed its limit.
    pub(crate) fn take(self: &Arc<Self>, client: &str, amount: usize) -> Option<Reservation> {
        let mut share = Reservation { of: Arc::clone(self), client: client.to_owned(), amount: 0 };
        share.take_more(amount).then_some(share)
    }

    /// Takes the memory for reading a message of `size` bytes: twice its size, but no more than one client's limit. A message
    /// that is larger than that limit is read only while no other share is taken.
    pub(crate) fn take_to_read(self: &Arc<Self>, client: &str, size: usize) -> Option<Reservation> {
        if size <= self.each {
            return self.take(client, size.saturating_mul(2).min(self.each));
        }
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.all > 0 || !self.can_hold(size) {
            return None;
        }
        taken.all = size;
        taken.each.insert(client.to_owned(), size);
        Some(Reservation { of: Arc::clone(self), client: client.to_owned(), amount: size })
    }

    /// Whether a message of this many bytes can ever be read.
    pub(crate) fn can_hold(&self, size: usize) -> bool {
        size <= self.most
    }
}

/// The amount that a client has taken. Dropping it returns the amount.
#[derive(Debug)]
pub(crate) struct Reservation {
    of: Arc<FairQuota>,
    client: String,
    amount: usize,
}

impl Reservation {
    /// Takes more, and returns whether that was possible. If not, the share stays as it is, and nothing waits: two clients that
    /// kept their shares while they waited could wait for each other.
    pub(crate) fn take_more(&mut self, more: usize) -> bool {
        let mut taken = self.of.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let all = taken.all.saturating_add(more);
        let own = taken.each.get(&self.client).copied().unwrap_or_default().saturating_add(more);
        if all > self.of.most || own > self.of.each {
            return false;
        }
        taken.all = all;
        taken.each.insert(self.client.clone(), own);
        self.amount = self.amount.saturating_add(more);
        true
    }

    /// Sets the amount, without regard to any limit.
    pub(crate) fn becomes(&mut self, amount: usize) {
        let mut taken = self.of.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.all = taken.all.saturating_sub(self.amount).saturating_add(amount);
        let own = taken.each.get(&self.client).copied().unwrap_or_default();
        let own = own.saturating_sub(self.amount).saturating_add(amount);
        self.amount = amount;
        if own > 0 {
            taken.each.insert(self.client.clone(), own);
        } else {
            taken.each.remove(&self.client);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.becomes(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_has_half_at_most_and_all_together_what_there_is() {
        let shares = FairQuota::of(10);
        let mut ones = shares.take("one", 3).unwrap();
        assert!(!ones.take_more(3) && ones.take_more(2) && !ones.take_more(1));
        assert!(shares.take("one", 1).is_none());
        let others = [3, 1].map(|amount| shares.take("other", amount).unwrap());
        assert!(shares.take("third", 2).is_none());
        let thirds = shares.take("third", 1).unwrap();
        assert!(shares.take("other", 1).is_none());
        drop(ones);
        assert!(shares.take("other", 2).is_none() && shares.take("other", 1).is_some());
        assert!(shares.take("one", 5).is_some());
        drop((others, thirds));
        assert!(shares.take("third", 5).is_some());
        let taken = shares.taken.lock().unwrap();
        assert_eq!((taken.all, taken.each.len()), (0, 0));
    }

    #[test]
    fn a_message_takes_twice_its_size_while_it_is_read_and_a_large_one_waits_until_nobody_has_anything() {
        let shares = FairQuota::of(20);
        let mut small = shares.take_to_read("one", 4).unwrap();
        assert!(shares.take_to_read("one", 2).is_none(), "it has 8 of 10");
        small.becomes(4);
        assert!(shares.take_to_read("one", 3).is_some());
        assert!(shares.take_to_read("other", 7).is_some() && shares.take_to_read("other", 11).is_none());
        drop(small);
        let large = shares.take_to_read("other", 11).unwrap();
        assert!(shares.take_to_read("other", 1).is_none() && shares.take_to_read("one", 5).is_none());
        assert!(shares.take_to_read("one", 4).is_some());
        drop(large);
        assert!(shares.take_to_read("one", 21).is_none() && !shares.can_hold(21));
        assert!(shares.take_to_read("one", 20).is_some());
    }
}
