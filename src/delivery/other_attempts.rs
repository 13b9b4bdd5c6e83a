//! What earlier and concurrent attempts at one copy mean for ours: whether we have to wait, where to search, and what may be
//! taken out.

use super::attempt::Attempt;
use super::{Deferral, Delivery, lost_commits};
use crate::ledger::{Cause, CopyHistory, DeliveredAt, Looked, OpenAttempt};
use crate::lock::LockName;
use crate::mailbox::{FoundCopy, Placement, Position};
use std::time::Duration;
use time::OffsetDateTime;

/// How far below the UIDNEXT that an attempt noted its copy may be. A server that crashes may give out again the UIDs of the
/// APPENDs that were in flight (Dovecot: "next_uid was lowered (101 -> 100)"): to one mailbox, from all hosts. That is `maxproc` of
/// postfix/master.cf.maildrop (20), or `serve.workers`, of each host at most, and mostly far less. Each costs one more header in
/// the FETCH of a search, which is made where an attempt has not ended: for all 256, of 4 KB each, some 25 ms on Dovecot and 11 ms
/// on Cyrus.
const IN_FLIGHT: u32 = 256;

/// How many of the newest are compared by themselves where all of a mailbox is looked through: what was appended last may be in no
/// index yet. After a fail-over that is so for each copy.
const NEWEST: u32 = 20;

/// Whether one copy is delivered, and the attempts at it, ours excepted, that have not ended.
#[derive(Default)]
pub(super) struct OtherAttempts {
    /// Where the ledger has it, once it is delivered.
    pub delivered: Option<DeliveredAt>,
    /// Why the ledger has it as owed, if it has.
    pub owed: Option<String>,
    others: Vec<Other>,
    /// How long ago one began that we have to wait for: it is so young that its APPEND may still land.
    pub unsettled: Option<Duration>,
    /// Whether the copy then just stays owed, if it is: it is the author's, and no recipient, who may never come back, is to wait for it.
    pub defer_to_owed: bool,
    /// Whether the ledger may have forgotten others.
    pub forgotten: bool,
}

/// One of them.
struct Other {
    attempt: OpenAttempt,
    /// It was for a recipient whose copy this is; at the author's copy for any of ours; at one that is owed for anybody.
    died: bool,
}

impl OtherAttempts {
    /// Notes for each attempt what the ledger showed under the lock.
    ///
    /// # Errors
    /// With what the journal is to say of it: [`Deferral::JournalForgotten`] where our own attempt is not in it;
    /// [`Deferral::OtherLock`] where another host delivers this message under another lock.
    pub fn read(
        delivery: &Delivery<'_>,
        attempts: &mut [Attempt<'_>],
        looked: &Looked,
    ) -> Result<(), (Cause, Deferral)> {
        let histories = &looked.copies[..];
        let forgets = lost_commits::may_be(delivery.came, looked.epoch, delivery.policy.queue_lifetime);
        let not_there = || (Cause::JournalForgotten, Deferral::JournalForgotten);
        let mine = |attempt: &&OpenAttempt| attempt.attempt == delivery.attempt;
        let own_age = histories.iter().flat_map(|h| &h.open_attempts).find(mine).map(|attempt| attempt.age);
        let own_age = own_age.ok_or_else(not_there)?;
        if let Some(host) = under_another_lock(delivery, histories) {
            return Err((Cause::OtherLock, Deferral::OtherLock(host)));
        }
        let of_recipients = attempts.iter().any(Attempt::is_recipients);
        for attempt in attempts {
            let history = histories.iter().find(|history| history.key == attempt.key).ok_or_else(not_there)?;
            let journalled = history.open_attempts.iter().any(|open| mine(&open));
            if attempt.is_journalled() && !journalled {
                return Err(not_there());
            }
            let settle = delivery.policy.settle;
            let mut others = Vec::with_capacity(history.open_attempts.len());
            let mut unsettled = None;
            // For an attempt at a copy that is owed nobody need come back: it was given up, and its recipient answered; or it was made by
            // whoever finishes what is owed, and comes only for as long as it is. So each of them counts, whosever it was.
            let owed = history.owed.is_some();
            let of_ours = |recipient: &str| match attempt.recipients() {
                // The author's.
                [] => delivery.recipients.iter().any(|ours| ours == recipient),
                its => its.iter().any(|&place| delivery.recipients.get(place).is_some_and(|ours| ours == recipient)),
            };
            for other in history.open_attempts.iter().filter(|open| !mine(open)) {
                // One that began after us did not die: it waits for our lock, for a second alias of the same recipient. If
                // we deferred to it as it defers to us, neither would ever deliver. An age below zero is a clock that was
                // set back, and says nothing.
                let began_after_us = other.age >= 0.0
                    && (other.age < own_age || (other.age == own_age && other.attempt > delivery.attempt));
                let earlier = (owed || of_ours(&other.recipient)) && !began_after_us;
                // One that began after us may have had the lock before our row in the journal could be seen. At a copy that is owed it
                // is waited for, too: no other recipient is deferred for it, and whoever has the lock last finishes the copy, or it
                // stays owed.
                if (earlier || owed) && !settle.is_zero() && other.age < settle.as_secs_f64() {
                    unsettled.get_or_insert(Duration::from_secs_f64(other.age.max(0.0)));
                }
                others.push(Other { attempt: other.clone(), died: earlier });
            }
            attempt.others = Self {
                delivered: history.delivered,
                owed: history.owed.clone(),
                others,
                defer_to_owed: of_recipients && !attempt.is_recipients(),
                unsettled,
                forgotten: forgets,
            };
        }
        Ok(())
    }

    /// The earlier attempts that died: those that its recipients, or whoever finishes what is owed, come back to look for.
    pub fn that_died(&self) -> impl Iterator<Item = &OpenAttempt> {
        self.others.iter().filter(|other| other.died).map(|other| &other.attempt)
    }

    /// Whether there is one.
    pub fn died_before(&self) -> bool {
        self.that_died().next().is_some()
    }

    /// Whether there is no attempt but ours.
    pub fn is_empty(&self) -> bool {
        self.others.is_empty()
    }

    /// When the first of them began: no copy of theirs arrived before. By the database's clock, as a span before `now`.
    pub fn first_began(&self, now: OffsetDateTime) -> OffsetDateTime {
        let oldest = self.others.iter().map(|other| other.attempt.age).fold(0.0, f64::max);
        now.checked_sub(time::Duration::saturating_seconds_f64(oldest)).unwrap_or(OffsetDateTime::UNIX_EPOCH)
    }

    /// The lowest UIDNEXT that they noted. What lies below may be the mailbox owner's, and is never taken out. `None` where
    /// one of them saw another UIDVALIDITY than `today`'s, or none at all.
    pub fn floor(&self, today: Option<Position>) -> Option<Position> {
        let today = today?;
        let mut lowest = today;
        for other in &self.others {
            let position = other.attempt.position.filter(|position| position.uid_validity == today.uid_validity)?;
            lowest.uid_next = lowest.uid_next.min(position.uid_next);
        }
        Some(lowest)
    }
}

/// Where a search begins; without a floor the whole mailbox is searched. See [`IN_FLIGHT`].
pub(super) fn search_from(floor: Option<Position>) -> Option<Position> {
    below(floor, IN_FLIGHT)
}

/// Where the newest of a mailbox begin that stands there. See [`NEWEST`].
pub(super) fn newest_from(position: Option<Position>) -> Option<Position> {
    below(position, NEWEST)
}

fn below(position: Option<Position>, uids: u32) -> Option<Position> {
    position.map(|position| Position { uid_next: position.uid_next.saturating_sub(uids).max(1), ..position })
}

/// Whether a copy lies where an attempt that never ended may have left it: at the floor or above, or anywhere without one.
pub(super) fn is_above(copy: &FoundCopy, floor: Option<Position>) -> bool {
    floor.is_none_or(|floor| {
        let is_above = |place: Placement| place.uid_validity == floor.uid_validity && place.uid >= floor.uid_next;
        copy.placement.is_some_and(is_above)
    })
}

/// Whether another host delivers one of our copies, or has just delivered it, under another lock, which does not exclude it here;
/// and which host, if that is known.
///
/// The journal excludes it all the same: each journals before it looks, so of two that run at once at least one sees the other
/// and is deferred. Both may be: which came first does not show, since an older row can be committed later.
///
/// It counts only for as long as that attempt may run or its APPEND may land. Past that it is searched for like any other,
/// whatever its lock: so a namespace can be changed on purpose.
fn under_another_lock(delivery: &Delivery<'_>, histories: &[CopyHistory]) -> Option<Option<String>> {
    // The negative control of the two-host test: there each process has a lock of its own, and nothing is to see it.
    if cfg!(feature = "test-without-lock") {
        return None;
    }
    let settle = delivery.policy.settle.as_secs_f64();
    let is_another = |lock: &LockName, age: f64| lock != delivery.lock && age < settle;
    let attempts = histories.iter().flat_map(|history| &history.open_attempts);
    let recorded = histories.iter().filter_map(|history| history.recorded);
    attempts
        .filter(|open| is_another(&open.lock, open.age))
        .map(|open| Some(open.host.clone()))
        .chain(recorded.filter(|(lock, age)| is_another(lock, *age)).map(|_| None))
        .next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::deadline::Deadline;
    use crate::delivery::Whose;
    use crate::delivery::{NoCaller, OwedCopy, Policy, UploadTime};
    use crate::mailbox::{MailboxError, MailboxFailure};
    use crate::message::{Message, Role};
    use uuid::Uuid;

    const SETTLE: Duration = Duration::from_mins(10);

    fn position(uid_validity: u32, uid_next: u32) -> Option<Position> {
        Some(Position { uid_validity, uid_next })
    }

    /// Attempts by their age in seconds, where the mailbox stood, and whether they were for this recipient and died.
    fn others(attempts: &[(f64, Option<Position>, bool)]) -> OtherAttempts {
        let open = |(number, &(age, position, _)): (usize, &(f64, Option<Position>, bool))| OpenAttempt {
            host: String::new(),
            lock: LockName::from_digest([0; 32]),
            attempt: Uuid::from_u128(number as u128),
            recipient: String::new(),
            age,
            position,
        };
        let other = |(number, of)| Other { attempt: open((number, of)), died: of.2 };
        OtherAttempts { others: attempts.iter().enumerate().map(other).collect(), ..OtherAttempts::default() }
    }

    /// Which of these attempts, by age and recipient, have died for a delivery to doug that began 5 seconds ago.
    fn died(settle: Duration, attempts: &[(f64, &str)]) -> Result<Vec<usize>, Deferral> {
        let message = Message::receive(b"Subject: x\r\n\r\nx\r\n".to_vec()).unwrap();
        let own = Uuid::from_u128(100);
        let lock = crate::delivery::lock_of("maildrop", &message);
        let delivery = Delivery {
            message: &message,
            sender: None,
            recipients: &["doug".to_owned()],
            is_one_of_several: false,
            queue_id: None,
            lock: &lock,
            attempt: own,
            host: "mx1",
            pid: 1,
            arrived: OffsetDateTime::UNIX_EPOCH,
            came: None,
            policy: &Policy { settle, ..Policy::embedded() },
            upload_time: &UploadTime::until_deadline(Deadline::after(SETTLE)),
            restore: false,
            caller: &NoCaller,
        };
        let (role, user, mailbox_name) = (Role::Recipient, "doug".to_owned(), "INBOX".to_owned());
        let mailbox = Err(MailboxError::new(MailboxFailure::Unreachable, "", "").into());
        let attempt = Attempt::begin(
            &delivery,
            OwedCopy { role, whose: Whose::Recipients(vec![0]), user, mailbox_name, mailbox },
        );
        let open = |attempt, age, recipient: &str| OpenAttempt {
            attempt,
            recipient: recipient.into(),
            host: "mx1".into(),
            lock,
            age,
            position: None,
        };
        let mut open_attempts: Vec<OpenAttempt> = attempts
            .iter()
            .enumerate()
            .map(|(number, &(age, recipient))| open(Uuid::from_u128(number as u128), age, recipient))
            .collect();
        open_attempts.push(open(own, 5.0, "doug"));
        let history = CopyHistory { key: attempt.key, delivered: None, owed: None, recorded: None, open_attempts };
        let mut attempts = [attempt];
        OtherAttempts::read(&delivery, &mut attempts, &Looked { copies: vec![history], epoch: None })
            .map_err(|(_, deferral)| deferral)?;
        let [Attempt { others, .. }] = attempts;
        if let Some(age) = others.unsettled {
            return Err(Deferral::Unsettled(age));
        }
        Ok(others.that_died().map(|earlier| earlier.attempt.as_u128() as usize).collect())
    }

    #[test]
    fn only_what_was_tried_for_this_recipient_and_is_settled_is_looked_after_and_ended() {
        let all = [(600.0, "doug"), (600.0, "scuba"), (4.9, "doug"), (5.1, "scuba")];
        assert_eq!(died(SETTLE, &all).unwrap(), [0]);
        for unsettled in [599.9, 5.1, -1.0] {
            assert!(matches!(died(SETTLE, &[(unsettled, "doug")]), Err(Deferral::Unsettled(_))), "{unsettled}");
        }
        // Where no APPEND can land later (`settle` is zero), no delivery waits.
        assert_eq!(
            died(Duration::ZERO, &[(5.1, "doug"), (4.9, "doug"), (5.1, "scuba"), (-1.0, "doug")]).unwrap(),
            [0, 3]
        );
    }

    #[test]
    fn no_copy_arrived_before_the_first_attempt_began() {
        let now = OffsetDateTime::UNIX_EPOCH + time::Duration::days(20_000);
        let began = |ages: &[f64]| {
            let attempts: Vec<_> = ages.iter().map(|&age| (age, None, false)).collect();
            (now - others(&attempts).first_began(now)).whole_seconds()
        };
        assert_eq!(began(&[]), 0);
        assert_eq!(began(&[60.0, 259_200.0, 600.0]), 259_200);
        // A clock that was set back.
        assert_eq!(began(&[-60.0]), 0);
        assert_eq!(others(&[(f64::MAX, None, false)]).first_began(now), OffsetDateTime::UNIX_EPOCH);
    }

    #[test]
    fn nothing_below_the_lowest_uidnext_is_taken_out_and_a_bounded_number_of_uids_below_is_searched() {
        let floor = |noted: &[Option<Position>], today| {
            let attempts: Vec<_> = noted.iter().map(|&noted| (0.0, noted, false)).collect();
            others(&attempts).floor(today)
        };
        assert_eq!(floor(&[position(1, 900), position(1, 800)], position(1, 1000)), position(1, 800));
        // UIDNEXT was lowered since.
        assert_eq!(floor(&[position(1, 900)], position(1, 890)), position(1, 890));
        assert_eq!(floor(&[position(1, 900), position(2, 800)], position(1, 1000)), None);
        assert_eq!(floor(&[position(1, 900), None], position(1, 1000)), None);
        assert_eq!(floor(&[position(1, 900)], None), None);

        assert_eq!(search_from(position(1, 900)), position(1, 900 - 256));
        assert_eq!(newest_from(position(1, 900)), position(1, 880));
        assert_eq!(search_from(position(1, 3)), position(1, 1));
        assert_eq!(search_from(None), None);

        let is_above = |uid_validity, uid, floor| {
            is_above(&FoundCopy { placement: Some(Placement { uid_validity, uid }), deleted: false }, floor)
        };
        assert!(is_above(1, 900, position(1, 900)) && is_above(1, 1, None));
        assert!(!is_above(1, 899, position(1, 900)) && !is_above(2, 900, position(1, 900)));
    }
}
