//! Percentiles in constant memory: values are counted by their first seven binary digits (as in an HDR histogram), so that what
//! is told is less than 1 % away from the true value.

use std::collections::BTreeMap;

/// How many binary digits of a value count.
const DIGITS: u32 = 7;

/// Counted values. The unit is whoever counts' own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Histogram {
    /// How many values there are of each, rounded.
    rounded: BTreeMap<u64, u64>,
    count: u64,
    greatest: u64,
}

impl Histogram {
    pub(crate) fn add(&mut self, value: u64) {
        *self.rounded.entry(rounded(value)).or_default() += 1;
        self.count += 1;
        self.greatest = self.greatest.max(value);
    }

    /// How many values.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The greatest of them, exactly.
    pub(crate) fn greatest(&self) -> u64 {
        self.greatest
    }

    /// The value that `percent` of all values do not exceed, to within 1 %; zero where there are none.
    pub(crate) fn percentile(&self, percent: u64) -> u64 {
        let rank = (self.count * percent).div_ceil(100);
        let mut seen = 0;
        let found = self.rounded.iter().find(|(_, count)| {
            seen += *count;
            seen >= rank
        });
        found.map_or(0, |(value, _)| (*value).min(self.greatest))
    }
}

/// The middle of all values that begin with the same digits.
fn rounded(value: u64) -> u64 {
    let rest = (u64::BITS - value.leading_zeros()).saturating_sub(DIGITS);
    ((value >> rest) << rest) + (1 << rest) / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_has_no_percentiles() {
        assert_eq!(Histogram::default().percentile(50), 0);
    }

    #[test]
    fn small_values_are_exact() {
        let mut histogram = Histogram::default();
        (1..=100).for_each(|value| histogram.add(value));
        assert_eq!((histogram.percentile(50), histogram.percentile(90)), (50, 90));
        assert_eq!((histogram.percentile(99), histogram.percentile(100)), (99, 100));
        assert_eq!((histogram.greatest(), histogram.count()), (100, 100));
    }

    proptest! {
        #[test]
        fn a_percentile_is_within_one_percent_of_the_true_one(
            mut values in prop::collection::vec(0_u64..1 << 40, 1..300), percent in 1_u64..=100
        ) {
            let mut histogram = Histogram::default();
            values.iter().for_each(|value| histogram.add(*value));
            values.sort_unstable();
            let rank = (values.len() as u64 * percent).div_ceil(100) as usize;
            let exact = values[rank - 1] as f64;
            let told = histogram.percentile(percent) as f64;
            prop_assert!((told - exact).abs() <= exact * 0.01 + 0.5, "{told} for {exact}");
        }
    }
}
