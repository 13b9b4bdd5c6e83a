//! Earlier and concurrent attempts at one copy decide whether this attempt has to wait, where it searches, and which copies
//! it may remove.

use super::copy_attempt::Attempt;
use super::{Deferral, Delivery, lost_commits};
use crate::ledger::{Cause, CopyHistory, DeliveredAt, OpenAttempt, Snapshot};
use crate::lock::LockName;
use crate::mailbox::{FoundCopy, Placement, Position};
use std::time::Duration;
use time::OffsetDateTime;

/// How far a copy may be below the UIDNEXT that its attempt noted. A server that crashes may reuse the UIDs of the APPENDs
/// in flight (Dovecot logs "next_uid was lowered (101 -> 100)").
///
/// The APPENDs in flight to one mailbox, over all hosts, are at most `maxproc` of postfix/master.cf.maildrop (20) or
/// `service.workers` for each host. Each UID costs one more header in the FETCH of a search, which runs only if an attempt
/// has not ended.
const IN_FLIGHT: u32 = 256;

/// How many of the newest messages a search of a whole mailbox compares one by one, as they may not be in the server's index
/// yet. The number is small, because after a fail-over this search runs for each copy.
const NEWEST: u32 = 20;

/// Whether one copy is delivered, and the open attempts at it except ours.
#[derive(Default)]
pub(super) struct OtherAttempts {
    /// If the copy is delivered.
    pub delivered: Option<DeliveredAt>,
    /// If the copy is owed: the recorded reason.
    pub owed: Option<String>,
    others: Vec<OtherAttempt>,
    /// The age of an attempt whose APPEND may still land, so that this delivery has to wait for it.
    pub unsettled: Option<Duration>,
    /// Whether an owed copy simply stays owed in that case: it is the author's. The recipients are not made to wait for it,
    /// because a retry of theirs is not certain.
    pub defer_to_owed: bool,
    /// Whether the ledger may have forgotten other attempts, see [`lost_commits`].
    pub forgotten: bool,
}

struct OtherAttempt {
    attempt: OpenAttempt,
    /// Whether it died without an end, so that its copy has to be searched for. For a recipient's copy, only attempts for
    /// its own recipients count. For the author's copy, attempts for any recipient of this delivery count; for an owed copy,
    /// all.
    died: bool,
}

impl OtherAttempts {
    /// Notes for each attempt what the ledger showed under the lock.
    ///
    /// # Errors
    /// The cause is for the journal. [`Deferral::JournalForgotten`] if our own attempt is not in the journal;
    /// [`Deferral::OtherLock`] if another host delivers this message under another lock.
    pub fn read(
        delivery: &Delivery<'_>,
        attempts: &mut [Attempt<'_>],
        looked: &Snapshot,
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
            let append_grace = delivery.policy.append_grace;
            let mut others = Vec::with_capacity(history.open_attempts.len());
            let mut unsettled = None;
            // At an owed copy all attempts count, whichever recipient they name, because no retry for that recipient is
            // certain. Its attempt was given up and answered, or is a redelivery's, which continues only while the copy is
            // owed.
            let owed = history.owed.is_some();
            let of_ours = |recipient: &str| match attempt.recipients() {
                // The author's copy.
                [] => delivery.recipients.iter().any(|ours| ours == recipient),
                its => its.iter().any(|&place| delivery.recipients.get(place).is_some_and(|ours| ours == recipient)),
            };
            for other in history.open_attempts.iter().filter(|open| !mine(open)) {
                // An attempt that began after ours is alive: it waits for our lock, for a second alias of the same
                // recipient. If each deferred to the other, neither would ever deliver. A negative age comes from a clock
                // that was set back, and proves nothing.
                let began_after_us = other.age >= 0.0
                    && (other.age < own_age || (other.age == own_age && other.attempt > delivery.attempt));
                let earlier = (owed || of_ours(&other.recipient)) && !began_after_us;
                // An attempt that began after ours may have held the lock before us. At an owed copy this delivery waits for
                // such an attempt as well. That defers no other recipient, and the last holder of the lock delivers the
                // copy, or leaves it owed.
                if (earlier || owed) && !append_grace.is_zero() && other.age < append_grace.as_secs_f64() {
                    unsettled.get_or_insert(Duration::from_secs_f64(other.age.max(0.0)));
                }
                others.push(OtherAttempt { attempt: other.clone(), died: earlier });
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

    /// The earlier attempts that died: this delivery searches for their copies and then ends them.
    pub fn that_died(&self) -> impl Iterator<Item = &OpenAttempt> {
        self.others.iter().filter(|other| other.died).map(|other| &other.attempt)
    }

    pub fn died_before(&self) -> bool {
        self.that_died().next().is_some()
    }

    pub fn is_empty(&self) -> bool {
        self.others.is_empty()
    }

    /// When the oldest of the other attempts began: none of their copies arrived before. Only ages are taken from the
    /// database's clock, so a difference to this host's clock does not matter.
    pub fn first_began(&self, now: OffsetDateTime) -> OffsetDateTime {
        let oldest = self.others.iter().map(|other| other.attempt.age).fold(0.0, f64::max);
        now.checked_sub(time::Duration::saturating_seconds_f64(oldest)).unwrap_or(OffsetDateTime::UNIX_EPOCH)
    }

    /// The lowest UIDNEXT that the attempts noted. A message below it may have been there before, and is never removed.
    /// `None` if an attempt noted no position, or another UIDVALIDITY than `today`'s.
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

/// Where a search begins, [`IN_FLIGHT`] UIDs below the floor; `None` searches the whole mailbox.
pub(super) fn search_from(floor: Option<Position>) -> Option<Position> {
    below(floor, IN_FLIGHT)
}

/// Where the [`NEWEST`] messages of a mailbox with this position begin.
pub(super) fn newest_from(position: Option<Position>) -> Option<Position> {
    below(position, NEWEST)
}

fn below(position: Option<Position>, uids: u32) -> Option<Position> {
    position.map(|position| Position { uid_next: position.uid_next.saturating_sub(uids).max(1), ..position })
}

/// Whether an attempt that never ended may have left this copy: it is at or above the floor, or there is no floor.
pub(super) fn is_above(copy: &FoundCopy, floor: Option<Position>) -> bool {
    floor.is_none_or(|floor| {
        let is_above = |place: Placement| place.uid_validity == floor.uid_validity && place.uid >= floor.uid_next;
        copy.placement.is_some_and(is_above)
    })
}

/// Whether another host delivers one of our copies, or has just delivered it, under another lock, which does not exclude
/// ours. `Some(None)` if that host is unknown.
///
/// Even so, two such deliveries never append at once. Each host journals before it looks, so at least one of the two sees
/// the other and is deferred. Both may be deferred: their order is unknown, since an older row can be committed later.
///
/// Such an attempt counts only for `imap.append_grace`, while it may be running or its APPEND may land. After that it is
/// searched for like any other, so that an operator can change the namespace.
fn under_another_lock(delivery: &Delivery<'_>, histories: &[CopyHistory]) -> Option<Option<String>> {
    // The negative control of the two-host test gives each process a lock of its own, and must not be stopped by this check.
    if cfg!(feature = "test-without-lock") {
        return None;
    }
    let append_grace = delivery.policy.append_grace.as_secs_f64();
    let is_another = |lock: &LockName, age: f64| lock != delivery.lock && age < append_grace;
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

    /// Attempts by their age in seconds, their noted position, and whether they died.
    fn others(attempts: &[(f64, Option<Position>, bool)]) -> OtherAttempts {
        let open = |(number, &(age, position, _)): (usize, &(f64, Option<Position>, bool))| OpenAttempt {
            host: String::new(),
            lock: LockName::from_digest([0; 32]),
            attempt: Uuid::from_u128(number as u128),
            recipient: String::new(),
            age,
            position,
        };
        let other = |(number, of)| OtherAttempt { attempt: open((number, of)), died: of.2 };
        OtherAttempts { others: attempts.iter().enumerate().map(other).collect(), ..OtherAttempts::default() }
    }

    /// Indexes of the attempts, given by age and recipient, that have died for a delivery to doug that began 5 seconds ago.
    fn died(append_grace: Duration, attempts: &[(f64, &str)]) -> Result<Vec<usize>, Deferral> {
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
            policy: &Policy { append_grace, ..Policy::embedded() },
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
        OtherAttempts::read(&delivery, &mut attempts, &Snapshot { copies: vec![history], epoch: None })
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
        // If no APPEND can land later (`append_grace` is zero), no delivery waits.
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
        // UIDNEXT was lowered since then.
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
