//! The name of a queued message: `TIME-LOCK[,TRIES[,NEXT]].msg`.
//!
//! What changes between attempts is in the name alone, because a rename is atomic and rewriting a file is not.

use crate::base::back_off::doubled;
use crate::lock::LockName;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const ENDING: &str = ".msg";
/// The pause after the first attempt. Each further pause is twice as long, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_mins(1);
const LONGEST_PAUSE: Duration = Duration::from_hours(1);

/// How many ids (nanoseconds) are reserved for each part of a message. A part uses one each time it is settled in part, or
/// is refused, released and refused once more.
const IDS_OF_A_PART: u64 = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    /// When the message was accepted, in nanoseconds since 1970; a few nanoseconds later if that name was taken.
    pub(super) time: u64,
    /// The first eight bytes of the lock's digest, the same for all messages with one Message-ID.
    pub(super) lock: u64,
    /// How often the message was tried and deferred.
    pub(super) tries: u32,
    /// The earliest next attempt, in seconds since 1970; `None` for as soon as possible.
    pub(super) next: Option<u64>,
}

impl Name {
    pub(crate) fn new(now: SystemTime, lock: &LockName) -> Self {
        Self::of_digest(now, lock.number_at(0))
    }

    /// The name of a file that is looked up by the first bytes of a digest.
    pub(super) fn of_digest(now: SystemTime, lock: u64) -> Self {
        Self { time: nanoseconds(now), lock, tries: 0, next: None }
    }

    /// Parses the name of a file; `None` unless this program would write the name in exactly this way.
    pub(super) fn read(text: &str) -> Option<Self> {
        let (id, state) = match text.strip_suffix(ENDING)?.split_once(',') {
            Some((id, state)) => (id, Some(state)),
            None => (text.strip_suffix(ENDING)?, None),
        };
        let (time, lock) = id.split_once('-')?;
        let (tries, next) = match state.map(|state| state.split_once(',').map_or((state, None), |(t, n)| (t, Some(n))))
        {
            None => (0, None),
            Some((tries, next)) => (tries.parse().ok()?, next.map(str::parse).transpose().ok()?),
        };
        let name = Self { time: time.parse().ok()?, lock: u64::from_str_radix(lock, 16).ok()?, tries, next };
        (name.to_string() == text).then_some(name)
    }

    /// The part of the name that stays the same for as long as the message is in the queue.
    pub fn id(&self) -> String {
        format!("{:020}-{:016x}", self.time, self.lock)
    }

    /// The next name, for when this one is taken.
    pub(super) fn later(self) -> Self {
        Self { time: self.time.saturating_add(1), ..self }
    }

    /// The first of the names reserved for one part of this message. `place` is the number of the part, below the number of
    /// recipients.
    pub(super) fn of_part(self, place: usize) -> Self {
        let ids = u64::try_from(place).unwrap_or(u64::MAX).saturating_mul(IDS_OF_A_PART).saturating_add(1);
        Self { time: self.time.saturating_add(ids), ..self }
    }

    /// Whether this is the message with this id, or a part of it, if it was accepted for so many recipients.
    pub(super) fn is_part_of(&self, id: &str, recipients: usize) -> bool {
        let Some(whole) = Self::read(&format!("{id}{ENDING}")) else { return false };
        let parts = u64::try_from(recipients).unwrap_or(u64::MAX).saturating_add(1);
        let last = whole.time.saturating_add(parts.saturating_mul(IDS_OF_A_PART));
        self.lock == whole.lock && (whole.time..=last).contains(&self.time)
    }

    /// The name after one more attempt that was deferred.
    pub(super) fn deferred(self, now: SystemTime) -> Self {
        let tries = self.tries.saturating_add(1);
        Self { tries, next: Some(seconds(now).saturating_add(pause_after(tries).as_secs())), ..self }
    }

    /// The same name without a time of the next attempt: to be tried as soon as possible.
    pub(super) fn due_at_once(self) -> Self {
        Self { next: None, ..self }
    }

    /// Whether the message may be tried now. No pause is longer than an hour, so a later time was written by a wrong clock,
    /// and is ignored.
    pub(super) fn is_due(&self, now: SystemTime) -> bool {
        let now = seconds(now);
        self.next.is_none_or(|next| next <= now || next > now.saturating_add(LONGEST_PAUSE.as_secs()))
    }

    /// Since when the message may be tried, in nanoseconds since 1970. A time in the future was written by a wrong clock,
    /// and is ignored.
    pub(super) fn due_since(&self, now: SystemTime) -> u64 {
        let next = self.next.filter(|next| *next <= seconds(now));
        next.map_or(self.time, |next| next.saturating_mul(1_000_000_000).max(self.time))
    }

    /// When it was accepted, in microseconds since 1970.
    pub(super) fn accepted_at(&self) -> i64 {
        i64::try_from(self.time / 1000).unwrap_or(i64::MAX)
    }

    /// The earliest next attempt, in microseconds since 1970.
    pub(super) fn next_try(&self) -> Option<i64> {
        self.next.map(|next| i64::try_from(next.saturating_mul(1_000_000)).unwrap_or(i64::MAX))
    }

    /// How long ago the last attempt may have begun, at most: the time since the message became due.
    pub(super) fn overdue(&self, now: SystemTime) -> Duration {
        let since = self.next.map_or(self.time, |next| next.saturating_mul(1_000_000_000).max(self.time));
        Duration::from_nanos(nanoseconds(now).saturating_sub(since))
    }

    /// Whether the message waits for a retry, and has been in the queue for longer than `span`. A released message has no
    /// `next`, so it is tried in any case.
    pub(super) fn was_tried_before(&self, now: SystemTime, span: Duration) -> bool {
        self.next.is_some() && self.age(now) > span
    }

    /// For how long the message has been in the queue.
    pub(super) fn age(&self, now: SystemTime) -> Duration {
        Duration::from_nanos(nanoseconds(now).saturating_sub(self.time))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id())?;
        if self.tries > 0 || self.next.is_some() {
            write!(f, ",{}", self.tries)?;
        }
        if let Some(next) = self.next {
            write!(f, ",{next}")?;
        }
        f.write_str(ENDING)
    }
}

/// How long to wait after this many attempts: a minute, then twice as long each time, up to an hour. Attempts never end,
/// because no other system has the message any more.
pub fn pause_after(tries: u32) -> Duration {
    doubled(FIRST_PAUSE, tries.saturating_sub(1), LONGEST_PAUSE)
}

fn nanoseconds(moment: SystemTime) -> u64 {
    let since = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn seconds(moment: SystemTime) -> u64 {
    moment.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn a_name_says_when_which_lock_how_often_and_when_again() {
        let lock = LockName::from_digest([0xab; 32]);
        let name = Name::new(at(1_700_000_000), &lock);
        assert_eq!(name.to_string(), "01700000000000000000-abababababababab.msg");
        let name = name.deferred(at(1_700_000_100));
        assert_eq!(name.to_string(), "01700000000000000000-abababababababab,1,1700000160.msg");
        assert_eq!(name.due_at_once().to_string(), "01700000000000000000-abababababababab,1.msg");
        assert_eq!(name.id(), "01700000000000000000-abababababababab");
        assert_eq!((name.accepted_at(), name.next_try()), (1_700_000_000_000_000, Some(1_700_000_160_000_000)));
    }

    #[test]
    fn a_part_is_known_by_the_id_of_its_whole_and_no_other_message_is() {
        let name = |nanoseconds: u64, digest| {
            Name::new(at(1_700_000_000) + Duration::from_nanos(nanoseconds), &LockName::from_digest([digest; 32]))
        };
        let (whole, id) = (name(0, 1), name(0, 1).id());
        // Both recipients were deferred, then one was refused.
        let parts = [whole, whole.of_part(0).deferred(at(1_700_000_100)), whole.of_part(0).of_part(1)];
        assert!(parts.iter().all(|part| part.is_part_of(&id, 2)));
        let others = [name(0, 2), name(3 * IDS_OF_A_PART + 1, 1), Name { time: whole.time - 1, ..whole }];
        assert!(!others.iter().any(|other| other.is_part_of(&id, 2)));
        assert!(!whole.is_part_of("4jY5Kl1pjDzBFGl", 2));
    }

    #[test]
    fn names_that_nobody_here_wrote_are_none() {
        let strange = [
            "",
            ".msg",
            "1-1.msg",
            "01700000000000000000-ABABABABABABABAB.msg",
            "01700000000000000000-abababababababab",
            "01700000000000000000-abababababababab,0.msg",
            "01700000000000000000-abababababababab,01.msg",
            "01700000000000000000-abababababababab,+1.msg",
            "01700000000000000000-abababababababab,1,.msg",
            "01700000000000000000-abababababababab,1,2,3.msg",
            "01700000000000000000-abababababababab,-1.msg",
            "99999999999999999999-abababababababab.msg",
            "01700000000000000000-abababababababab.msg.msg",
        ];
        for text in strange {
            assert_eq!(Name::read(text), None, "{text}");
        }
    }

    #[test]
    fn pauses_double_up_to_an_hour_and_go_on_for_ever() {
        let minutes = |tries| pause_after(tries).as_secs() / 60;
        assert_eq!([0, 1, 2, 3, 6, 7, 33, u32::MAX].map(minutes), [1, 1, 2, 4, 32, 60, 60, 60]);
    }

    #[test]
    fn a_time_that_only_a_wrong_clock_can_have_written_is_not_waited_for() {
        let name = Name::new(at(0), &LockName::from_digest([0; 32])).deferred(at(10_000));
        assert!(!name.is_due(at(10_000)) && !name.is_due(at(10_059)) && name.is_due(at(10_060)));
        assert!(!name.is_due(at(10_060 - 3_600)), "an hour is the longest pause");
        assert!(name.is_due(at(10_060 - 3_601)), "the clock was ahead when it was written");
        assert!(name.is_due(at(1_000)));
    }

    #[test]
    fn it_is_due_since_its_next_try_or_since_it_came() {
        let name = Name::new(at(9_000), &LockName::from_digest([0; 32]));
        assert_eq!(name.due_since(at(9_000)), 9_000_000_000_000);
        let deferred = name.deferred(at(10_000));
        assert_eq!(deferred.due_since(at(10_060)), 10_060_000_000_000);
        assert_eq!(deferred.due_since(at(1_000)), 9_000_000_000_000, "the clock was ahead when it was written");
        assert_eq!(name.deferred(at(1_000)).due_since(at(10_000)), 9_000_000_000_000, "the clock was set back");
        assert_eq!(deferred.due_at_once().due_since(at(10_060)), 9_000_000_000_000);
    }

    proptest! {
        #[test]
        fn each_name_is_read_as_it_was_written(time: u64, lock: u64, tries: u32, next: Option<u64>) {
            let name = Name { time, lock, tries, next };
            prop_assert_eq!(Name::read(&name.to_string()), Some(name));
        }

        #[test]
        fn no_text_is_too_odd_to_be_looked_at(text in "[-,.0-9a-f]{0,60}(\\.msg)?|\\PC*") {
            if let Some(name) = Name::read(&text) {
                prop_assert_eq!(name.to_string(), text);
            }
        }
    }
}
