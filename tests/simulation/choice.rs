//! Who decides: chance, or every possibility in turn.

use std::collections::HashMap;

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
            Self::Random(random) => random.of(n, random.changes),
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

    /// The same where all are as likely.
    pub fn one_of(&mut self, n: usize) -> usize {
        match self {
            Self::Random(random) => random.of(n, 100),
            Self::Every(every) => every.of(n),
        }
    }

    /// Whether everything that can follow from here has been seen already: this very state was met in an earlier schedule.
    /// `state` is asked for only where that can be.
    pub fn known(&mut self, state: impl FnOnce() -> u64) -> bool {
        match self {
            Self::Random(_) => false,
            Self::Every(every) => every.known(state),
        }
    }
}

/// xorshift64*: a schedule is found again by its seed.
pub struct Random {
    state: u64,
    /// How likely a mishap is, in percent: few in most schedules, many in some.
    mishaps: u64,
    /// How likely it is that somebody else goes on: an interrupted process may have to stay so for a whole delivery of
    /// another's, or for one step.
    changes: u64,
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self {
            state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            mishaps: [2, 5, 10, 30][(seed % 4) as usize],
            changes: [5, 15, 30, 60][(seed / 4 % 4) as usize],
        }
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
///
/// What can follow from a state does not depend on how it came about, so a state met again is not gone through again: its
/// schedules are only counted. This is exact, as far as the state that is hashed is all of it (`run::state`) and no two of
/// them have one 64-bit hash: one chance in 300,000 at ten million states.
#[derive(Default)]
pub struct Every {
    made: Vec<(usize, usize)>,
    at: usize,
    /// How many schedules go on from each state that is done with.
    schedules_from: HashMap<u64, u128>,
    /// The states that the current schedule came through, with the number of decisions before each, and how many schedules
    /// are known to go on from it by now.
    under_way: Vec<(usize, u64, u128)>,
}

/// What an exhaustive run came to.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// How many schedules there are: sequences of decisions, from the start to the end.
    pub schedules: u128,
    /// How many different states they come through.
    pub states: usize,
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

    fn known(&mut self, state: impl FnOnce() -> u64) -> bool {
        if self.at < self.made.len() {
            return false;
        }
        let state = state();
        if let Some(&schedules) = self.schedules_from.get(&state) {
            self.count(schedules);
            return true;
        }
        // A state that followed from itself would be a schedule without end.
        debug_assert!(self.under_way.iter().all(|(_, known, _)| *known != state), "a schedule that goes in a circle");
        self.under_way.push((self.at, state, 0));
        false
    }

    /// The schedule has come to its end.
    pub fn ended(&mut self) {
        self.count(1);
    }

    fn count(&mut self, schedules: u128) {
        self.under_way.last_mut().expect("every schedule begins in a state").2 += schedules;
    }

    /// Goes on to the next schedule; says how far it all went when there is none left.
    pub fn advance(&mut self) -> Option<Extent> {
        self.at = 0;
        while let Some((picked, of)) = self.made.pop() {
            if picked + 1 < of {
                self.made.push((picked + 1, of));
                self.done_with(self.made.len());
                return None;
            }
        }
        let schedules = self.done_with(0);
        Some(Extent { schedules, states: self.schedules_from.len() })
    }

    /// The same schedule once more.
    pub fn again(&mut self) {
        self.at = 0;
        self.under_way.clear();
        self.schedules_from.clear();
    }

    pub fn states(&self) -> usize {
        self.schedules_from.len()
    }

    /// Everything that follows from the states with at least so many decisions before them has been seen.
    fn done_with(&mut self, decisions: usize) -> u128 {
        let mut all = 0;
        while let Some((_, state, schedules)) = self.under_way.pop_if(|(before, _, _)| *before >= decisions) {
            self.schedules_from.insert(state, schedules);
            match self.under_way.last_mut() {
                Some((_, _, above)) => *above += schedules,
                None => all = schedules,
            }
        }
        all
    }
}
