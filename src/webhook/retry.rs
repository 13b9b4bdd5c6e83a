//! When a notification is retried.

use sha2::{Digest, Sha256};
use std::time::{Duration, SystemTime};

/// The longest wait that a receiver can request.
const LONGEST_REST: Duration = Duration::from_hours(24);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule(Vec<Duration>);

#[cfg(test)]
impl Default for Schedule {
    fn default() -> Self {
        Self(crate::config::RETRY.to_vec())
    }
}

impl Schedule {
    pub fn new(waits: Vec<Duration>) -> Self {
        Self(waits)
    }

    /// How long to wait after `failed` failed tries; `None` if there are no more tries. Each wait is up to a fifth shorter
    /// or longer, derived from `of`, so that notifications that failed together are not retried together. `asked` is the
    /// wait that the receiver requested; a shorter one than ours has no effect.
    pub fn after(&self, failed: u32, of: &[u8], asked: Option<Duration>) -> Option<Duration> {
        let index = usize::try_from(failed.checked_sub(1)?).ok()?;
        let wait = spread(*self.0.get(index)?, of, failed);
        Some(asked.map_or(wait, |asked| asked.min(LONGEST_REST).max(wait)))
    }

    /// As [`after`](Self::after), but without an end: the last wait is repeated.
    pub fn after_at_least(&self, failed: u32, of: &[u8], asked: Option<Duration>) -> Duration {
        let last = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.after(failed.clamp(1, last.max(1)), of, asked).unwrap_or(LONGEST_REST)
    }
}

/// Between 80 and 120 % of a wait.
fn spread(wait: Duration, of: &[u8], failed: u32) -> Duration {
    let digest = Sha256::new().chain_update(of).chain_update(failed.to_be_bytes()).finalize();
    let [first, second, ..] = <[u8; 32]>::from(digest);
    let part = f64::from(u16::from_be_bytes([first, second])) / f64::from(u16::MAX);
    wait.mul_f64(0.8 + 0.4 * part)
}

/// The header `Retry-After`: RFC 9110 section 10.2.3.
pub struct RetryAfter;

impl RetryAfter {
    /// How long to wait from `now` on: a number of seconds, or a date in any of HTTP's three forms.
    pub fn read(text: &str, now: SystemTime) -> Option<Duration> {
        let text = text.trim();
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            // A number too large for `u64` counts as `u64::MAX`; the caller limits it.
            return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
        }
        let moment = httpdate::parse_http_date(text).ok()?;
        Some(moment.duration_since(now).unwrap_or(Duration::ZERO))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_waits_are_those_of_the_specification_a_fifth_shorter_or_longer_and_then_it_is_given_up() {
        let schedule = Schedule::default();
        let mut all = Duration::ZERO;
        let seconds = [5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400];
        for (failed, wait) in (1..).zip(seconds.map(Duration::from_secs)) {
            for of in 0..100_u8 {
                let after = schedule.after(failed, &[of], None).unwrap();
                assert!(after >= wait.mul_f64(0.8) && after <= wait.mul_f64(1.2), "{failed} {after:?}");
            }
            all += wait;
        }
        assert_eq!(all.as_secs(), 272_105);
        assert_eq!((schedule.after(10, b"x", None), schedule.after(0, b"x", None)), (None, None));
        assert_ne!(schedule.after(3, b"x", None), schedule.after(3, b"y", None));
        // A receiver that is down is retried without end.
        let day = Duration::from_hours(24);
        assert!(schedule.after_at_least(1000, b"x", None) >= day.mul_f64(0.8));
        assert_eq!(Schedule::new(Vec::new()).after_at_least(3, b"x", None), day);
    }

    #[test]
    fn a_receiver_may_ask_for_a_longer_wait_up_to_a_day_and_for_no_shorter_one() {
        let schedule = Schedule::default();
        let after = |asked| schedule.after(1, b"x", Some(Duration::from_secs(asked))).unwrap().as_secs();
        assert!(after(0) >= 4);
        assert_eq!((after(60), after(86_400), after(86_401)), (60, 86_400, 86_400));
    }

    #[test]
    fn both_forms_of_retry_after_are_read() {
        // Sun, 06 Nov 1994 08:49:37 GMT: the example of RFC 9110 section 5.6.7.
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777 - 90);
        let read = |text| RetryAfter::read(text, now).map(|wait| wait.as_secs());
        assert_eq!((read("120"), read(" 0 "), read("99999999999999999999999")), (Some(120), Some(0), Some(u64::MAX)));
        assert_eq!(read("Sun, 06 Nov 1994 08:49:37 GMT"), Some(90));
        assert_eq!(read("Sunday, 06-Nov-94 08:49:37 GMT"), Some(90));
        assert_eq!(read("Sun Nov  6 08:49:37 1994"), Some(90));
        assert_eq!(read("Sun, 06 Nov 1994 08:00:00 GMT"), Some(0));
        for text in ["", "-1", "1.5", "soon", "+3", "1h"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
