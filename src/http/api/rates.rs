//! The rate limit of tokens: each may save up the requests of one second. The counts are in the memory of this process.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// The number of remembered tokens above which the idle ones are removed.
const REMEMBERED: usize = 1000;

/// How many requests a token had left at a moment.
#[derive(Clone, Copy)]
struct Left {
    requests: f64,
    at: Instant,
}

#[derive(Default)]
pub(super) struct Rates(Mutex<HashMap<Uuid, Left>>);

impl Rates {
    /// Counts a request of a token that may make `rate` requests per second.
    ///
    /// # Errors
    /// If the token has no request left: how long it has to wait. Such a request is not counted.
    pub(super) fn count(&self, token: Uuid, rate: u32, now: Instant) -> Result<(), Duration> {
        let rate = f64::from(rate.max(1));
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= REMEMBERED && !all.contains_key(&token) {
            // A token that was idle for a second has its full rate, so removing it changes nothing.
            all.retain(|_, left| now.saturating_duration_since(left.at) < Duration::from_secs(1));
        }
        let left = all.entry(token).or_insert(Left { requests: rate, at: now });
        let saved = now.saturating_duration_since(left.at).as_secs_f64() * rate;
        let requests = (left.requests + saved).min(rate);
        *left = Left { requests, at: now };
        if requests < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - requests) / rate));
        }
        left.requests -= 1.0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_has_its_own_rate_and_saves_up_no_more_than_a_second() {
        let (rates, begun) = (Rates::default(), Instant::now());
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let count = |token, rate, after| rates.count(token, rate, begun + Duration::from_millis(after)).is_ok();
        let many = |token, rate, after| (0..200).filter(|_| count(token, rate, after)).count();
        assert_eq!((many(one, 50, 0), many(other, 3, 0)), (50, 3));
        assert_eq!(rates.count(other, 3, begun).unwrap_err().as_millis(), 333);
        assert_eq!((many(one, 50, 100), many(other, 3, 300)), (5, 0));
        assert_eq!((many(one, 50, 60_000), many(other, 3, 60_000)), (50, 3));
        // A clock that stops, or goes back, adds nothing.
        assert_eq!(many(one, 50, 0), 0);
    }

    #[test]
    fn tokens_that_are_not_used_any_more_take_no_room() {
        let (rates, begun) = (Rates::default(), Instant::now());
        for token in 0..5000 {
            let at = begun + Duration::from_millis(token);
            rates.count(Uuid::from_u128(token.into()), 50, at).unwrap();
        }
        assert!(rates.0.lock().unwrap().len() <= 2 * REMEMBERED);
    }
}
