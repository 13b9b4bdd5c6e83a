//! Which deaths of workers count against the message that they had in hand.
//!
//! Only a death by the worker's own hand: a crash, an abort (too little memory is one, and so is the worker's own watchdog). And only
//! one that stands alone: where another worker dies within ten seconds, with another message or with none, something else
//! may be the cause of both, such as a library that is just being replaced. So it is decided ten seconds later.

use crate::handover::Request;
use crate::handover::control::End;
use crate::queue::Digest;
use crate::serve::handed::Body;
use signal_hook::consts::{SIGABRT, SIGBUS, SIGILL, SIGSEGV};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Deaths that are less than this apart may have one cause.
pub(crate) const APART: Duration = Duration::from_secs(10);

/// How a worker has ended, as the master tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerEnd {
    pub pid: u32,
    pub end: End,
    /// The master has killed it, or told it to end.
    pub by_us: bool,
    /// The last lines that it wrote to standard error, oldest first.
    pub said: Vec<String>,
}

/// Which message a worker had in hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct With {
    pub(super) digest: Digest,
    /// By pipe(8) one message for several recipients is as many messages of different bytes, and one queue id.
    pub(super) queue_id: Option<String>,
}

/// The message itself, for a copy if it comes to that.
pub(super) type Lost = Option<Box<(Request, Body)>>;

/// A death that the ten seconds are over for.
pub(super) struct Decided {
    pub(super) digest: Digest,
    pub(super) counts: bool,
    pub(super) lost: Lost,
}

struct Death {
    at: Instant,
    with: Option<With>,
    lost: Lost,
    own_hand: bool,
    decided: bool,
    counted: bool,
}

/// The deaths of the last seconds.
#[derive(Default)]
pub(super) struct Deaths(VecDeque<Death>);

impl WorkerEnd {
    /// Whether it is a death: nobody has told it to end, and it had not served for long enough.
    pub(super) fn is_death(&self) -> bool {
        !self.by_us && self.end != End::Exit(0)
    }

    /// The signal, if the process has ended by its own hand. What kills from outside (SIGKILL, SIGTERM) is none of these.
    pub(super) fn own_hand(&self) -> Option<i32> {
        match self.end {
            End::Signal(signal @ (SIGABRT | SIGSEGV | SIGILL | SIGBUS)) if !self.by_us => Some(signal),
            _ => None,
        }
    }
}

impl With {
    fn is_of_the_same_message_as(&self, other: &Self) -> bool {
        self.digest == other.digest || (self.queue_id.is_some() && self.queue_id == other.queue_id)
    }
}

impl Deaths {
    pub(super) fn happened(&mut self, with: Option<With>, lost: Lost, own_hand: bool, now: Instant) {
        self.0.push_back(Death { at: now, with, lost, own_hand, decided: false, counted: false });
    }

    /// Whether one is less than ten seconds ago: another one now would stand beside it.
    pub(super) fn any_lately(&self, now: Instant) -> bool {
        self.0.back().is_some_and(|death| now.saturating_duration_since(death.at) < APART)
    }

    /// Those that can be decided by now.
    pub(super) fn decide(&mut self, now: Instant) -> Vec<Decided> {
        let mut decided = Vec::new();
        for at in 0..self.0.len() {
            let Some(death) = self.0.get(at) else { break };
            if death.decided || now.saturating_duration_since(death.at) < APART {
                continue;
            }
            let verdict = death.with.as_ref().filter(|_| death.own_hand).map(|with| {
                let near = |other: &&Death| apart(death.at, other.at) < APART;
                let others = || self.0.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, other)| other);
                let is_same = |other: &Death| other.with.as_ref().is_some_and(|o| o.is_of_the_same_message_as(with));
                let alone = others().filter(near).all(is_same);
                // Several workers that it has ended at once are one death.
                let is_known =
                    |other: &Death| other.counted && other.with.as_ref().is_some_and(|o| o.digest == with.digest);
                (with.digest, alone && !others().filter(near).any(is_known))
            });
            if let Some(death) = self.0.get_mut(at) {
                death.decided = true;
                death.counted = verdict.is_some_and(|(_, counts)| counts);
                let lost = death.lost.take();
                decided.extend(verdict.map(|(digest, counts)| Decided { digest, counts, lost }));
            }
        }
        // What is decided still stands beside those that are not.
        self.0.retain(|death| !death.decided || now.saturating_duration_since(death.at) < 2 * APART);
        decided
    }
}

fn apart(one: Instant, other: Instant) -> Duration {
    one.saturating_duration_since(other).max(other.saturating_duration_since(one))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(end: End, by_us: bool) -> WorkerEnd {
        WorkerEnd { pid: 7, end, by_us, said: Vec::new() }
    }

    #[test]
    fn only_a_death_by_its_own_hand_is_the_messages_doing() {
        // What has ended it, by us or not; whether it is a death; whether by its own hand.
        let table = [
            (End::Signal(6), false, true, true),
            (End::Signal(11), false, true, true),
            (End::Signal(4), false, true, true),
            (End::Signal(7), false, true, true),
            (End::Signal(6), true, false, false),
            (End::Signal(9), false, true, false),
            (End::Signal(9), true, false, false),
            (End::Signal(15), false, true, false),
            (End::Signal(8), false, true, false),
            // An exit status of that number is no signal.
            (End::Exit(6), false, true, false),
            (End::Exit(70), false, true, false),
            (End::Exit(0), false, false, false),
            (End::Exit(0), true, false, false),
            (End::NotStarted("no memory".into()), false, true, false),
        ];
        for (how, by_us, is_death, own_hand) in table {
            let end = end(how, by_us);
            assert_eq!((end.is_death(), end.own_hand().is_some()), (is_death, own_hand), "{end:?}");
        }
    }

    /// Seconds, message (0: none), queue id (0: none), by its own hand.
    type Told = (u64, u8, u8, bool);
    /// What it is, what happens, and what counts.
    type Case = (&'static str, &'static [Told], &'static [(u8, bool)]);

    /// Which messages have what counts against them, and what does not, each death once it can be decided.
    fn decided(deaths: &[Told]) -> Vec<(u8, bool)> {
        let (began, mut all, mut verdicts) = (Instant::now(), Deaths::default(), Vec::new());
        let digest = |message: u8| Digest::of(&[message]);
        let mut tell = |verdict: Decided| {
            let message = (0..=u8::MAX).find(|message| digest(*message) == verdict.digest).unwrap();
            verdicts.push((message, verdict.counts));
        };
        for second in 0..100 {
            let now = began + Duration::from_secs(second);
            for (_, message, queue_id, own_hand) in deaths.iter().filter(|death| death.0 == second) {
                let queue_id = (*queue_id > 0).then(|| queue_id.to_string());
                let with = (*message > 0).then(|| With { digest: digest(*message), queue_id });
                all.happened(with, None, *own_hand, now);
            }
            all.decide(now).into_iter().for_each(&mut tell);
        }
        assert!(all.0.is_empty(), "none is kept for longer than it is of use");
        verdicts
    }

    #[test]
    fn deaths_within_ten_seconds_of_one_another_have_a_common_cause() {
        let table: [Case; 11] = [
            ("alone", &[(5, 1, 0, true)], &[(1, true)]),
            ("two that are ten seconds apart", &[(5, 1, 0, true), (15, 2, 0, true)], &[(1, true), (2, true)]),
            ("two that are nine seconds apart", &[(5, 1, 0, true), (14, 2, 0, true)], &[(1, false), (2, false)]),
            (
                "a row of them, each nine seconds after the last",
                &[(5, 1, 0, true), (14, 2, 0, true), (23, 3, 0, true)],
                &[(1, false), (2, false), (3, false)],
            ),
            ("one with a message, one with none", &[(5, 1, 0, true), (6, 0, 0, true)], &[(1, false)]),
            ("one killed beside it, such as for memory", &[(5, 1, 0, true), (6, 2, 0, false)], &[(1, false)]),
            ("one killed alone", &[(5, 1, 0, false)], &[]),
            (
                "the same message at several workers",
                &[(5, 1, 0, true), (5, 1, 0, true), (7, 1, 0, true)],
                &[(1, true), (1, false), (1, false)],
            ),
            ("the same message later", &[(5, 1, 0, true), (15, 1, 0, true)], &[(1, true), (1, true)]),
            (
                "one message of Postfix's for two recipients by pipe(8)",
                &[(5, 1, 9, true), (5, 2, 9, true)],
                &[(1, true), (2, true)],
            ),
            ("two messages of Postfix's", &[(5, 1, 8, true), (5, 2, 9, true)], &[(1, false), (2, false)]),
        ];
        for (what, deaths, verdicts) in table {
            assert_eq!(decided(deaths), verdicts, "{what}");
        }
    }

    #[test]
    fn another_death_now_would_stand_beside_one_of_the_last_ten_seconds() {
        let (mut deaths, now) = (Deaths::default(), Instant::now());
        assert!(!deaths.any_lately(now));
        deaths.happened(None, None, false, now);
        assert!(deaths.any_lately(now + APART - Duration::from_millis(1)));
        assert!(!deaths.any_lately(now + APART));
    }
}
