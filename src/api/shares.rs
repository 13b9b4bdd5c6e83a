//! What all tokens share, such as memory: so much in all, and of that no more than half for one token, so that none leaves nothing to the
//! others. For this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use uuid::Uuid;

#[derive(Default)]
struct Taken {
    all: usize,
    /// By those that have any of it.
    each: HashMap<Uuid, usize>,
}

pub(super) struct Shares {
    most: usize,
    taken: Mutex<Taken>,
}

impl Shares {
    pub(super) fn of(most: usize) -> Arc<Self> {
        Arc::new(Self { most, taken: Mutex::default() })
    }

    /// So much for this token; `None` where there is not so much left, or not for it.
    pub(super) fn take(self: &Arc<Self>, token: Uuid, amount: usize) -> Option<Share> {
        let mut share = Share { of: Arc::clone(self), token, amount: 0 };
        share.take_more(amount).then_some(share)
    }
}

/// What a token has taken. Dropped, it is given back.
pub(super) struct Share {
    of: Arc<Shares>,
    token: Uuid,
    amount: usize,
}

impl Share {
    /// Whether there was so much more. If not, it stays as it is: who waited for more, and kept what it has, could wait for another one
    /// that does the same.
    pub(super) fn take_more(&mut self, more: usize) -> bool {
        let mut taken = self.of.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let all = taken.all.saturating_add(more);
        let own = taken.each.get(&self.token).copied().unwrap_or_default().saturating_add(more);
        if all > self.of.most || own > self.of.most / 2 {
            return false;
        }
        taken.all = all;
        taken.each.insert(self.token, own);
        self.amount = self.amount.saturating_add(more);
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.of.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.all = taken.all.saturating_sub(self.amount);
        let own = taken.each.get(&self.token).copied().unwrap_or_default().saturating_sub(self.amount);
        if own > 0 {
            taken.each.insert(self.token, own);
        } else {
            taken.each.remove(&self.token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_token_has_half_at_most_and_all_together_what_there_is() {
        let shares = Shares::of(10);
        let [one, other, third] = [1, 2, 3].map(Uuid::from_u128);
        let mut ones = shares.take(one, 3).unwrap();
        assert!(!ones.take_more(3) && ones.take_more(2) && !ones.take_more(1));
        assert!(shares.take(one, 1).is_none());
        let others = [3, 1].map(|amount| shares.take(other, amount).unwrap());
        assert!(shares.take(third, 2).is_none());
        let thirds = shares.take(third, 1).unwrap();
        assert!(shares.take(other, 1).is_none());
        drop(ones);
        assert!(shares.take(other, 2).is_none() && shares.take(other, 1).is_some() && shares.take(one, 5).is_some());
        drop((others, thirds));
        assert!(shares.take(third, 5).is_some());
        let taken = shares.taken.lock().unwrap();
        assert_eq!((taken.all, taken.each.len()), (0, 0));
    }
}
