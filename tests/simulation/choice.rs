//! Who decides: chance, or every possibility in turn.

/// A source of decisions.
pub enum Choice {
    /// A random schedule.
    Random(Random),
    /// One schedule of all.
    Every(Every),
}

impl Choice {
    /// One of `0..n`. In a random schedule 0, the ordinary course of things, is the likely one.
    pub fn of(&mut self, n: usize) -> usize {
        match self {
            Self::Random(random) => random.of(n),
            Self::Every(every) => every.of(n),
        }
    }
}

/// xorshift64*: a schedule is found again by its seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33
    }

    fn of(&mut self, n: usize) -> usize {
        if n < 2 || self.next() % 100 < 70 {
            return 0;
        }
        usize::try_from(self.next()).expect("31 bits") % n
    }
}

/// Depth-first through all decisions: each schedule repeats the last one up to the last decision that can still be made
/// otherwise.
#[derive(Default)]
pub struct Every {
    made: Vec<(usize, usize)>,
    at: usize,
}

impl Every {
    fn of(&mut self, n: usize) -> usize {
        if n < 2 {
            return 0;
        }
        if self.at == self.made.len() {
            self.made.push((0, n));
        }
        let (picked, of) = self.made[self.at];
        assert_eq!(of, n, "a schedule must repeat itself");
        self.at += 1;
        picked
    }

    /// Goes on to the next schedule; `false` when there is none left.
    pub fn advance(&mut self) -> bool {
        self.at = 0;
        while let Some((picked, of)) = self.made.pop() {
            if picked + 1 < of {
                self.made.push((picked + 1, of));
                return true;
            }
        }
        false
    }
}
