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
            Self::Random(random) => random.of(n, 30),
            Self::Every(every) => every.of(n),
        }
    }

    /// The same for what goes wrong. In a random schedule it is rare enough to strike anywhere: a delivery has some fifty
    /// points, and what is likely at each of them has all happened before anything was appended.
    pub fn mishap(&mut self, n: usize) -> usize {
        match self {
            Self::Random(random) => random.of(n, random.mishaps),
            Self::Every(every) => every.of(n),
        }
    }
}

/// xorshift64*: a schedule is found again by its seed.
pub struct Random {
    state: u64,
    /// How likely a mishap is, in percent: few in most schedules, many in some.
    mishaps: u64,
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self { state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1, mishaps: [2, 5, 10, 30][(seed % 4) as usize] }
    }

    fn next(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33
    }

    fn of(&mut self, n: usize, percent: u64) -> usize {
        if n < 2 || self.next() % 100 >= percent {
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
