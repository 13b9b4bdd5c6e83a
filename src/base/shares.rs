//! What all clients of a process share, such as memory: so much in all, and of that no more than a part for one token or login, so that
//! none leaves nothing to the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// By those that have any of it.
    each: HashMap<String, usize>,
}

#[derive(Debug)]
pub struct Shares {
    most: usize,
    each: usize,
    taken: Mutex<Taken>,
}

impl Shares {
    /// Of which each client may have half.
    pub(crate) fn of(most: usize) -> Arc<Self> {
        Self::with(most, most / 2)
    }

    pub(crate) fn with(most: usize, each: usize) -> Arc<Self> {
        Arc::new(Self { most, each, taken: Mutex::default() })
    }

    /// So much for this client; `None` where there is not so much left, or not for it.
    pub(crate) fn take(self: &Arc<Self>, client: &str, amount: usize) -> Option<Share> {
        let mut share = Share { of: Arc::clone(self), client: client.to_owned(), amount: 0 };
        share.take_more(amount).then_some(share)
    }

    /// The memory of a message of so many bytes that is read: twice as much, as far as a share goes. What is larger than a share is read
    /// while nobody else has anything.
    pub(crate) fn take_to_read(self: &Arc<Self>, client: &str, size: usize) -> Option<Share> {
        if size <= self.each {
            return self.take(client, size.saturating_mul(2).min(self.each));
        }
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.all > 0 || !self.can_hold(size) {
            return None;
        }
        taken.all = size;
        taken.each.insert(client.to_owned(), size);
        Some(Share { of: Arc::clone(self), client: client.to_owned(), amount: size })
    }

    /// Whether a message of so many bytes can ever be read.
    pub(crate) fn can_hold(&self, size: usize) -> bool {
        size <= self.most
    }
}

/// What a client has taken. Dropped, it is given back.
#[derive(Debug)]
pub(crate) struct Share {
    of: Arc<Shares>,
    client: String,
    amount: usize,
}

impl Share {
    /// Whether there was so much more. If not, it stays as it is: who waited for more, and kept what it has, could wait for another one
    /// that does the same.
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

    /// From now on it is so much, whatever the others have.
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

impl Drop for Share {
    fn drop(&mut self) {
        self.becomes(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_has_half_at_most_and_all_together_what_there_is() {
        let shares = Shares::of(10);
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
        let shares = Shares::of(20);
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
