//! Shards: which of several queue runners takes a message.
//!
//! The lock's name decides, so two deliveries of one Message-ID never run at once, and no runner waits for another's lock.
//! As in GNU Mailman, each queue runner has a range of the hashes, all of equal size. Bounds are integers: with floating
//! point, a hash on a bound could be in two shards.

/// One of several shards of all Message-IDs. The shards cover everything, and none overlaps another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    index: u32,
    count: u32,
}

impl Shard {
    /// The only shard, with all messages.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// The shard `index`, counted from 0, of `count` shards; `None` if `index` is too high.
    #[must_use]
    pub fn new(index: u32, count: u32) -> Option<Self> {
        (index < count).then_some(Self { index, count })
    }

    /// Whether the shard has the message whose lock begins with these eight bytes, as a big-endian number. With 2^n shards
    /// the n highest bits are the shard's index.
    #[must_use]
    pub fn has_first_bytes(&self, first_bytes: u64) -> bool {
        range_of(first_bytes, self.count) == self.index
    }
}

/// The index of the range, of `count` ranges of equal size, that contains `number`.
fn range_of(number: u64, count: u32) -> u32 {
    u32::try_from((u128::from(number) * u128::from(count)) >> 64).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::LockName;

    #[test]
    fn shards_cover_everything_once_and_evenly() {
        for count in [1_u32, 2, 3, 4, 7, 64] {
            let shards: Vec<Shard> = (0..count).map(|index| Shard::new(index, count).unwrap()).collect();
            let mut sizes = vec![0; count as usize];
            for n in 0..2000 {
                let lock = LockName::new("maildrop", format!("<{n}@mail.google.com>").as_bytes());
                let found: Vec<usize> =
                    (0..shards.len()).filter(|&i| shards[i].has_first_bytes(lock.number_at(0))).collect();
                assert_eq!(found.len(), 1, "{n} of {count}");
                sizes[found[0]] += 1;
            }
            let share = 2000 / count;
            assert!(sizes.iter().all(|&size| size > share / 4 && size < share * 3), "{count}: {sizes:?}");
        }
    }

    #[test]
    fn with_a_power_of_two_the_highest_bits_are_the_shard() {
        for bits in 0..5_u32 {
            for first in [0, 1, u64::MAX, u64::MAX >> 1, (u64::MAX >> 1) + 1, 0x1234_5678_9abc_def0, 0xf000 << 48] {
                let high = u32::try_from(u128::from(first) << bits >> 64).unwrap();
                assert!(Shard::new(high, 1 << bits).unwrap().has_first_bytes(first), "{first:x} {bits}");
            }
        }
    }

    #[test]
    fn shards_have_the_ends_of_the_range() {
        assert_eq!((range_of(0, 3), range_of(u64::MAX, 3), range_of(u64::MAX / 3 + 1, 3)), (0, 2, 1));
        assert_eq!((Shard::new(4, 4), Shard::new(0, 0)), (None, None));
    }
}
