//! Percentiles in constant memory: values are counted by their first seven binary digits, as in an HDR histogram. A percentile is
//! off by less than 1 %.

use std::collections::BTreeMap;

const DIGITS: u32 = 7;

#[derive(Clone, Debug, Default)]
pub(crate) struct Histogram {
    /// The number of values for each rounded value.
    rounded: BTreeMap<u64, u64>,
    pub(crate) count: u64,
    /// The greatest value, not rounded.
    pub(crate) greatest: u64,
}

impl Histogram {
    pub(crate) fn add(&mut self, value: u64) {
        *self.rounded.entry(rounded(value)).or_default() += 1;
        self.count += 1;
        self.greatest = self.greatest.max(value);
    }

    /// The value that `percent` of all values do not exceed; zero if there are no values.
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
    fn small_values_are_exact_and_none_are_zero() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentile(50), 0);
        (1..=100).for_each(|value| histogram.add(value));
        assert_eq!([50, 90, 99, 100].map(|percent| histogram.percentile(percent)), [50, 90, 99, 100]);
        assert_eq!((histogram.greatest, histogram.count), (100, 100));
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
            let shown = histogram.percentile(percent) as f64;
            prop_assert!((shown - exact).abs() <= exact * 0.01 + 0.5, "{shown} for {exact}");
        }
    }
}
