//! Percentiles in constant memory: how many values fell into each of a few thousand buckets, whose width grows with the
//! value (as in an HDR histogram). A bucket's middle is at most 1/128, less than 1 %, away from any value in it.

/// Buckets between a power of two and the next, as a power of two.
const BITS: u32 = 6;
const PER_OCTAVE: u64 = 1 << BITS;

/// Counted values. The unit is whoever counts' own.
#[derive(Clone, Debug, Default)]
pub(super) struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    greatest: u64,
}

impl Histogram {
    pub(super) fn add(&mut self, value: u64) {
        let bucket = bucket(value);
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        if let Some(count) = self.buckets.get_mut(bucket) {
            *count += 1;
        }
        self.count += 1;
        self.greatest = self.greatest.max(value);
    }

    /// How many values.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// The greatest of them, exactly.
    pub(super) fn greatest(&self) -> u64 {
        self.greatest
    }

    /// The value that `percent` of all values do not exceed, to within 1 %; zero where there are none.
    pub(super) fn percentile(&self, percent: u64) -> u64 {
        let rank = (self.count * percent).div_ceil(100);
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank && *count > 0 {
                return middle(bucket).min(self.greatest);
            }
        }
        self.greatest
    }
}

fn bucket(value: u64) -> usize {
    let octave = value.checked_ilog2().unwrap_or(0).saturating_sub(BITS);
    // Up to 2^BITS each value has its own bucket; above, 2^BITS buckets share each octave.
    let bucket = u64::from(octave) * PER_OCTAVE + (value >> octave);
    usize::try_from(bucket).unwrap_or(usize::MAX)
}

fn middle(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let octave = (bucket / PER_OCTAVE).saturating_sub(1);
    let lowest = (bucket - octave * PER_OCTAVE) << octave;
    lowest + (1 << octave) / 2
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
