//! Estimates the time of the next upload from the speed of those before.

use crate::base::deadline::Deadline;
use std::cell::Cell;
use std::time::Duration;

/// The lowest speed of an upload in bytes per second, not counting one stall. A mailbox that accepts a byte now and then
/// must not delay the other recipients of its message until the deadline.
const SLOWEST: u64 = 64 * 1024;

/// The time that one message has for all its uploads, and the measured speed.
///
/// A mailbox store behind a slow line accepts each copy of a large message, but not all copies within one deadline. So the
/// next upload begins only if it fits into half of the remaining time. The other half is for the answers and for the record.
#[derive(Debug)]
pub struct UploadTime {
    deadline: Deadline,
    /// The bytes uploaded so far, and how long that took.
    seen: Cell<(u64, Duration)>,
}

impl UploadTime {
    #[must_use]
    pub fn until_deadline(deadline: Deadline) -> Self {
        Self { deadline, seen: Cell::default() }
    }

    /// Whether an upload of this size fits. The first one always does: each try delivers at least one copy.
    pub(super) fn fits(&self, size: u64) -> bool {
        let (bytes, took) = self.seen.get();
        bytes == 0 || took.mul_f64(size as f64 / bytes as f64) <= self.deadline.remaining() / 2
    }

    /// The deadline of an upload of `size` bytes that may stall for `stall`: never past half of the remaining time.
    pub(super) fn until(&self, size: u64, stall: Duration) -> Deadline {
        self.deadline.half_way().or_within(Some(stall.saturating_add(Duration::from_secs(size / SLOWEST))))
    }

    pub(super) fn note(&self, size: u64, took: Duration) {
        let (bytes, so_far) = self.seen.get();
        self.seen.set((bytes.saturating_add(size), so_far.saturating_add(took)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_upload_always_begins_and_a_further_one_if_it_fits_into_half_of_what_is_left() {
        let time = UploadTime::until_deadline(Deadline::after(Duration::from_secs(100)));
        assert!(time.fits(u64::MAX));
        time.note(1_000_000, Duration::from_secs(10));
        assert!(time.fits(4_900_000) && !time.fits(5_100_000));
        // A faster upload lowers the estimate.
        time.note(1_000_000, Duration::ZERO);
        assert!(time.fits(9_800_000) && !time.fits(10_200_000));
        assert!(!UploadTime { deadline: Deadline::after(Duration::ZERO), ..time }.fits(1_000));
    }

    #[test]
    fn an_upload_has_time_by_its_size_and_never_more_than_half_of_what_is_left() {
        let time = UploadTime::until_deadline(Deadline::after(Duration::from_secs(100)));
        let seconds = |size| time.until(size, Duration::from_secs(10)).remaining().as_secs_f64().round();
        assert_eq!([0, 10 * SLOWEST, 1000 * SLOWEST].map(seconds), [10.0, 20.0, 50.0]);
    }
}
