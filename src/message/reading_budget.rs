//! Limits the work of reading the content of one message, which a stranger may have made costly on purpose.

use crate::base::deadline::Deadline;
use std::cell::Cell;

/// Nested multiparts read a byte once for each of their 17 levels; the other readers together read it less often.
const STEPS_PER_BYTE: u64 = 64;
/// How many steps even the smallest message may cost.
const FEWEST_STEPS: u64 = 64 << 10;
/// After how many steps the clock is read.
const STEPS_PER_CLOCK_READING: u64 = 1 << 20;

/// Counts the work of readers, one step per byte. The readers end soon after the budget is exhausted, by the number of steps
/// or by the clock. Their result then does not cover the whole message.
#[derive(Debug)]
pub(crate) struct ReadingBudget {
    deadline: Deadline,
    most: u64,
    steps: Cell<u64>,
    exhausted: Cell<bool>,
}

impl ReadingBudget {
    /// A budget in proportion to the message, until the deadline.
    pub(crate) fn of(message: &[u8], deadline: Deadline) -> Self {
        let most = STEPS_PER_BYTE.saturating_mul(message.len() as u64).saturating_add(FEWEST_STEPS);
        Self { deadline, most, steps: Cell::new(0), exhausted: Cell::new(deadline.passed()) }
    }

    /// Whether this many bytes may be read.
    pub(crate) fn spend(&self, bytes: usize) -> bool {
        let before = self.steps.get();
        let steps = before.saturating_add(bytes as u64);
        self.steps.set(steps);
        let is_late = || before / STEPS_PER_CLOCK_READING < steps / STEPS_PER_CLOCK_READING && self.deadline.passed();
        if steps > self.most || is_late() {
            self.exhausted.set(true);
        }
        !self.is_exhausted()
    }

    pub(crate) fn is_exhausted(&self) -> bool {
        self.exhausted.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_budget_is_exhausted_by_steps_or_by_the_clock_and_stays_so() {
        let long = Deadline::after(Duration::from_mins(10));
        let budget = ReadingBudget::of(b"1234", long);
        assert!(budget.spend(FEWEST_STEPS as usize + 4 * STEPS_PER_BYTE as usize) && !budget.is_exhausted());
        assert!(!budget.spend(1) && !budget.spend(0) && budget.is_exhausted());

        let late = Deadline::after(Duration::ZERO);
        assert!(!ReadingBudget::of(b"", late).spend(0));
        let large = vec![0; 1 << 20];
        let begun_in_time = ReadingBudget { exhausted: Cell::new(false), ..ReadingBudget::of(&large, late) };
        assert!(begun_in_time.spend(STEPS_PER_CLOCK_READING as usize - 1) && !begun_in_time.spend(1));
    }
}
