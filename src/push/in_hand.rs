//! A subscription that this process has leased: what is sent next, what an answer means, and how it is left. No input or output.
//!
//! | answer | notification | subscription |
//! |---|---|---|
//! | 2xx | done | no failures any more |
//! | 410 | waits | disabled: the receiver wants no more |
//! | 429, 502, 503, 504, or one with Retry-After | tried again by the schedule, not before Retry-After | rests as long |
//! | any other, or none | tried again by the schedule; given up after its last wait | five failures in a row: rests by the schedule |
//!
//! One that rests is asked once when its rest is over: a receiver that is down costs a request for each step of the schedule, and not
//! one for each event.

use super::send::Sent;
use crate::ledger::notifications::{Due, Leased, Next, SubscriptionState, Try};
use crate::ledger::subscriptions::NEVER_ANSWERED;
use crate::webhook::Schedule;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// After so many failures in a row nothing is sent but one try at a time.
const FAILURES: u32 = 5;
/// Writing answers down begins so long after the last time, or as soon as there are so many for one subscription: they are written down
/// within a tenth of a second, of which half is for the writing.
pub(super) const SETTLED_EACH: Duration = Duration::from_millis(50);
const SETTLED_AT_ONCE: usize = 50;
/// How much of an answer is kept, in bytes.
const KEPT: usize = 1 << 10;

/// One that is leased.
#[derive(Debug)]
pub(super) struct InHand {
    pub(super) leased: Leased,
    /// How many requests it may have at once here.
    pub(super) allotment: usize,
    pub(super) waiting: VecDeque<Due>,
    /// What is asked now, by the event's position, with how often it has failed, and since when it was due.
    pub(super) in_flight: BTreeMap<i64, (u32, i64)>,
    /// What was answered, and is not written down yet.
    pub(super) tries: Vec<Try>,
    /// The challenge of the question that it is asked.
    pub(super) challenge: Option<String>,
    pub(super) failures: u32,
    /// For how long nothing is sent to it at all.
    pub(super) rests_for: Option<Duration>,
    /// A new state, and why.
    pub(super) state: Option<(&'static str, Option<String>)>,
    /// Nothing is sent any more under this lease, and it is given back as soon as what is asked is answered.
    pub(super) closing: bool,
    /// Somebody else may have it by now.
    pub(super) lost: bool,
    /// The last read has brought all that was due.
    pub(super) read_to_the_end: bool,
    pub(super) since: Instant,
    /// When the lease was last known to be ours.
    pub(super) leased_at: Instant,
    pub(super) settled_at: Instant,
}

impl InHand {
    pub(super) fn new(leased: Leased, allotment: usize, now: Instant) -> Self {
        Self {
            failures: leased.failures,
            closing: leased.state == SubscriptionState::Idle,
            leased,
            allotment,
            waiting: VecDeque::new(),
            in_flight: BTreeMap::new(),
            tries: Vec::new(),
            challenge: None,
            rests_for: None,
            state: None,
            lost: false,
            read_to_the_end: false,
            since: now,
            leased_at: now,
            settled_at: now,
        }
    }

    /// Whether its receiver has failed so often that it is asked once at a time.
    pub(super) fn is_probed(&self) -> bool {
        self.failures >= FAILURES
    }

    /// How many requests it may have now.
    pub(super) fn limit(&self) -> usize {
        if self.leased.in_order || self.is_probed() { 1 } else { self.allotment }
    }

    pub(super) fn requests(&self) -> usize {
        self.in_flight.len() + usize::from(self.challenge.is_some())
    }

    /// What is sent next, if anything may be.
    pub(super) fn next(&mut self) -> Option<Due> {
        if self.closing
            || self.lost
            || self.leased.state != SubscriptionState::Active
            || self.requests() >= self.limit()
        {
            return None;
        }
        let due = self.waiting.pop_front()?;
        self.in_flight.insert(due.position, (due.tries, due.due_at));
        Some(due)
    }

    /// Nothing is sent any more.
    pub(super) fn close(&mut self) {
        self.closing = true;
        self.waiting.clear();
    }

    /// Whether it can be given back.
    pub(super) fn is_finished(&self) -> bool {
        let done = self.closing || self.lost || (self.waiting.is_empty() && self.read_to_the_end);
        done && self.requests() == 0
    }

    /// In how long its answers have to be written down, if there are any. Another one that comes meanwhile puts that off for none.
    pub(super) fn until_settled(&self, now: Instant) -> Option<Duration> {
        match self.tries.len() {
            0 => None,
            1..SETTLED_AT_ONCE => Some(SETTLED_EACH.saturating_sub(now.saturating_duration_since(self.settled_at))),
            SETTLED_AT_ONCE.. => Some(Duration::ZERO),
        }
    }

    /// Whether that is now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.until_settled(now).is_some_and(|left| left.is_zero())
    }

    /// Whether more could be sent while answers are waited for.
    pub(super) fn has_room(&self) -> bool {
        !self.leased.in_order && self.waiting.is_empty() && (1..self.limit()).contains(&self.requests())
    }

    /// What there is to be told next has to be read.
    pub(super) fn wants_more(&self) -> bool {
        let may = !self.closing && !self.lost && !self.read_to_the_end;
        // In order, the next one is known once the one before it is written down.
        let settled = !self.leased.in_order || (self.tries.is_empty() && self.requests() == 0);
        may && settled && self.leased.state == SubscriptionState::Active && self.waiting.len() < self.limit()
    }

    /// Takes an answer about an event.
    pub(super) fn answered(&mut self, sent: Sent, position: i64, schedule: &Schedule, disable_after: Duration) {
        let (failed_before, due_at) = self.in_flight.remove(&position).unwrap_or_default();
        let mut seed = self.leased.subscription.as_bytes().to_vec();
        seed.extend(position.to_be_bytes());
        let next = if is_taken(&sent) {
            self.failures = 0;
            Next::Done
        } else {
            let asked = sent.answer.as_ref().ok().and_then(|answer| answer.retry_after);
            self.failed(&sent, schedule, disable_after);
            schedule.after(failed_before + 1, &seed, asked).map_or(Next::GivenUp, Next::Again)
        };
        let one = told(sent, Some(position), due_at, next);
        self.tries.push(one);
    }

    /// Takes a failure: of a notification, or of the question.
    pub(super) fn failed(&mut self, sent: &Sent, schedule: &Schedule, disable_after: Duration) {
        self.failures = self.failures.saturating_add(1);
        let (status, asked) = match &sent.answer {
            Ok(answer) => (Some(answer.status), answer.retry_after),
            Err(_) => (None, None),
        };
        let wants_rest = asked.is_some() || matches!(status, Some(429 | 502 | 503 | 504));
        if self.is_probed() || wants_rest {
            let steps = self.failures.saturating_sub(FAILURES - 1).max(1);
            let rest = schedule.after_at_least(steps, self.leased.subscription.as_bytes(), asked);
            self.rests_for = Some(self.rests_for.map_or(rest, |other| other.max(rest)));
            self.close();
        } else if self.leased.in_order {
            // What comes after it waits for it.
            self.close();
        }
        let failing_for = self.leased.failing_for + self.since.elapsed();
        if status == Some(410) {
            self.disable("the receiver answered 410: it wants no more".into());
        } else if self.leased.failures > 0 && failing_for > disable_after {
            let days = humantime::format_duration(Duration::from_secs(failing_for.as_secs()));
            self.disable(format!("nothing was taken for {days}; the last answer: {}", outcome(sent)));
        }
    }

    /// The callback has answered its question, or need not be asked.
    pub(super) fn verified(&mut self) {
        self.leased.state = SubscriptionState::Active;
        self.state = Some(("active", None));
        self.failures = 0;
    }

    /// It has not: it is asked again by the schedule, for as long as it may take. What was amiss is kept with its subscription, where
    /// people look for it.
    pub(super) fn not_verified(&mut self, sent: Sent, problem: String, schedule: &Schedule, within: Duration) {
        self.failures = self.failures.saturating_add(1);
        let asked = sent.answer.as_ref().ok().and_then(|answer| answer.retry_after);
        let rest = schedule.after_at_least(self.failures, self.leased.subscription.as_bytes(), asked);
        self.rests_for = Some(rest);
        self.tries.push(Try { outcome: problem, ..told(sent, None, 0, Next::Again(rest)) });
        self.close();
        if self.leased.age > within {
            self.disable(NEVER_ANSWERED.into());
        }
    }

    /// Somebody else may have it by now, where `lost`: nothing is sent any more.
    pub(super) fn lose(&mut self, lost: bool) {
        if lost {
            self.lost = true;
            self.waiting.clear();
        }
    }

    pub(super) fn disable(&mut self, why: String) {
        self.state = Some(("disabled", Some(why)));
        self.close();
    }
}

/// Whether the receiver has it.
pub(super) fn is_taken(sent: &Sent) -> bool {
    sent.answer.as_ref().is_ok_and(|answer| (200..300).contains(&answer.status))
}

/// What came of a try, in one line.
pub(super) fn outcome(sent: &Sent) -> String {
    match &sent.answer {
        Ok(answer) if is_taken(sent) => format!("taken, {}", answer.status),
        Ok(answer) => format!("answered {}", answer.status),
        Err(problem) => problem.clone(),
    }
}

fn told(sent: Sent, position: Option<i64>, due_at: i64, next: Next) -> Try {
    let outcome = outcome(&sent);
    let answer = sent.answer.ok();
    let shown = answer.as_ref().filter(|answer| !answer.is_ours && !answer.body.is_empty());
    let response = shown.map(|answer| {
        let beginning = answer.body.get(..KEPT).unwrap_or(&answer.body);
        // Neither engine has a NUL in a text.
        String::from_utf8_lossy(beginning).replace('\0', "\u{FFFD}")
    });
    Try {
        position,
        due_at,
        started_at: sent.started_at,
        took: sent.took,
        status: answer.map(|answer| answer.status),
        outcome,
        response,
        next,
    }
}

/// What is leased, and due, in tests.
#[cfg(test)]
pub(super) mod samples {
    use super::*;
    use uuid::Uuid;

    pub(in super::super) fn leased(in_order: bool, failures: u32) -> Leased {
        Leased {
            subscription: Uuid::from_u128(1),
            callback_url: "https://example.com/".into(),
            full: false,
            in_order,
            max_in_flight: 3,
            secret_generation: 1,
            secret_age: None,
            state: SubscriptionState::Active,
            age: Duration::ZERO,
            failures,
            failing_for: Duration::ZERO,
        }
    }

    pub(in super::super) fn due(position: i64) -> Due {
        Due {
            position,
            tries: 0,
            due_at: 0,
            event: Uuid::from_u128(2),
            event_type: "message.delivered".into(),
            copy_key: String::new(),
            identity: String::new(),
            message_id: String::new(),
            role: String::new(),
            recipient: String::new(),
            imap_user: String::new(),
            mailbox: String::new(),
            manner: None,
            attempt: None,
            queue_id: None,
            host: String::new(),
            diff: String::new(),
            created_at: 0,
            message: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::send::Answer;
    use super::samples::{due, leased};
    use super::*;

    const DAYS: Duration = Duration::from_hours(120);

    fn in_hand(leased: Leased, waiting: i64) -> InHand {
        let mut hand = InHand::new(leased, 3, Instant::now());
        hand.waiting.extend((1..=waiting).map(due));
        hand
    }

    fn answer(hand: &mut InHand, position: i64, status: u16, retry_after: Option<u64>) -> Next {
        let retry_after = retry_after.map(Duration::from_secs);
        let answer = Ok(Answer { status, retry_after, body: b"x".to_vec(), is_ours: false });
        let sent = Sent {
            subscription: hand.leased.subscription,
            position: Some(position),
            started_at: 0,
            took: Duration::ZERO,
            answer,
        };
        hand.answered(sent, position, &Schedule::default(), DAYS);
        hand.tries.last().unwrap().next
    }

    fn positions(hand: &mut InHand) -> Vec<i64> {
        std::iter::from_fn(|| hand.next()).map(|due| due.position).collect()
    }

    #[test]
    fn as_many_are_asked_at_once_as_may_be_and_in_order_one() {
        let mut hand = in_hand(leased(false, 0), 5);
        assert_eq!(positions(&mut hand), [1, 2, 3]);
        assert_eq!(answer(&mut hand, 2, 204, None), Next::Done);
        assert_eq!(positions(&mut hand), [4]);
        let mut hand = in_hand(leased(true, 0), 5);
        assert_eq!(positions(&mut hand), [1]);
        answer(&mut hand, 1, 200, None);
        assert_eq!(positions(&mut hand), [2]);
        // One that fails holds up those after it.
        assert!(matches!(answer(&mut hand, 2, 500, None), Next::Again(_)));
        assert_eq!(positions(&mut hand), [0; 0]);
        assert!(hand.is_finished() && hand.rests_for.is_none());
    }

    #[test]
    fn answers_are_written_down_within_a_tenth_of_a_second_of_the_last_time_whatever_comes_meanwhile() {
        let mut hand = in_hand(leased(false, 0), 60);
        let after = |hand: &InHand, milliseconds| hand.settled_at + Duration::from_millis(milliseconds);
        assert_eq!(hand.until_settled(after(&hand, 500)), None);
        let _ = positions(&mut hand);
        answer(&mut hand, 1, 204, None);
        assert_eq!(hand.until_settled(after(&hand, 1)), Some(Duration::from_millis(49)));
        answer(&mut hand, 2, 204, None);
        assert_eq!(hand.until_settled(after(&hand, 49)), Some(Duration::from_millis(1)));
        assert!(!hand.is_due(after(&hand, 49)) && hand.is_due(after(&hand, 50)) && hand.is_due(after(&hand, 101)));
        // Or as soon as there are fifty.
        for position in 3..=50 {
            assert_eq!(hand.until_settled(after(&hand, 1)), Some(Duration::from_millis(49)));
            let _ = positions(&mut hand);
            answer(&mut hand, position, 204, None);
        }
        assert_eq!(hand.until_settled(after(&hand, 1)), Some(Duration::ZERO));
    }

    #[test]
    fn five_failures_in_a_row_give_the_receiver_a_rest_and_then_it_is_asked_once() {
        let mut hand = in_hand(leased(false, 0), 9);
        for position in 1..=4 {
            let _ = positions(&mut hand);
            answer(&mut hand, position, 500, None);
            assert_eq!(hand.rests_for, None);
        }
        answer(&mut hand, 5, 301, None);
        assert!(hand.rests_for.unwrap() < Duration::from_secs(7) && hand.closing);
        assert_eq!((positions(&mut hand), hand.failures), (vec![], 5));

        let mut probe = in_hand(leased(false, 5), 9);
        assert_eq!(positions(&mut probe), [1]);
        answer(&mut probe, 1, 500, None);
        // The next step of the schedule: five minutes.
        assert!(probe.rests_for.unwrap() >= Duration::from_mins(4) && probe.is_finished());

        let mut well = in_hand(leased(false, 7), 9);
        assert_eq!(positions(&mut well), [1]);
        answer(&mut well, 1, 200, None);
        assert_eq!((positions(&mut well), well.failures), (vec![2, 3, 4], 0));
    }

    #[test]
    fn a_receiver_that_asks_for_a_rest_has_it_and_one_that_is_gone_is_disabled() {
        let mut hand = in_hand(leased(false, 0), 9);
        let _ = positions(&mut hand);
        assert_eq!(answer(&mut hand, 1, 429, Some(60)), Next::Again(Duration::from_secs(60)));
        assert_eq!(hand.rests_for, Some(Duration::from_secs(60)));
        assert!(!hand.is_finished(), "two are under way");
        assert_eq!(positions(&mut hand), [0; 0]);

        let mut gone = in_hand(leased(false, 0), 9);
        let _ = positions(&mut gone);
        assert!(matches!(answer(&mut gone, 1, 410, None), Next::Again(_)));
        assert!(matches!(&gone.state, Some(("disabled", Some(why))) if why.contains("410")));

        let mut days = in_hand(Leased { failing_for: DAYS, ..leased(false, 9) }, 9);
        let _ = positions(&mut days);
        answer(&mut days, 1, 500, None);
        assert!(matches!(&days.state, Some(("disabled", Some(why))) if why.contains("5days") && why.contains("500")));
    }

    #[test]
    fn a_notification_is_given_up_after_its_last_wait() {
        let mut hand = in_hand(leased(false, 0), 0);
        hand.waiting.push_back(Due { tries: 9, ..due(1) });
        let _ = positions(&mut hand);
        assert_eq!(answer(&mut hand, 1, 500, None), Next::GivenUp);
        let told = hand.tries.last().unwrap();
        assert_eq!((told.outcome.as_str(), told.response.as_deref()), ("answered 500", Some("x")));
    }

    #[test]
    fn nobody_is_disabled_before_so_long_nor_for_a_first_failure() {
        for (failures, failing_for) in [(9, DAYS / 2), (0, DAYS * 2)] {
            let mut hand = in_hand(Leased { failing_for, ..leased(false, failures) }, 9);
            let _ = positions(&mut hand);
            answer(&mut hand, 1, 500, None);
            assert_eq!(hand.state, None, "{failures}");
        }
    }

    #[test]
    fn of_two_rests_the_longer_one_counts_and_each_failure_makes_the_next_one_longer() {
        let mut hand = in_hand(leased(false, 0), 9);
        let _ = positions(&mut hand);
        for (position, asked, rest) in [(1, 900, 900), (2, 60, 900), (3, 1000, 1000)] {
            answer(&mut hand, position, 503, Some(asked));
            assert_eq!(hand.rests_for, Some(Duration::from_secs(rest)));
        }
        // The fifth failure is the first step of the schedule, and so on.
        for (failures, minutes) in [(4, 0), (5, 4), (6, 24), (7, 96)] {
            let mut hand = in_hand(leased(false, failures), 1);
            let _ = positions(&mut hand);
            answer(&mut hand, 1, 500, None);
            let rest = hand.rests_for.unwrap();
            let longest = Duration::from_mins(minutes * 3 / 2) + Duration::from_secs(6);
            assert!(rest >= Duration::from_mins(minutes) && rest <= longest, "{failures}: {rest:?}");
        }
    }

    #[test]
    fn a_receiver_rests_where_it_asks_for_that_or_is_overloaded_and_not_for_any_failure() {
        for (status, asked, rests) in
            [(500, None, false), (500, Some(60), true), (400, Some(60), true), (429, None, true), (503, None, true)]
        {
            let mut hand = in_hand(leased(false, 0), 9);
            let _ = positions(&mut hand);
            answer(&mut hand, 1, status, asked);
            assert_eq!((hand.rests_for.is_some(), hand.closing), (rests, rests), "{status} {asked:?}");
        }
    }

    /// What was due may be read while an answer comes in that ends it.
    #[test]
    fn nothing_is_sent_any_more_where_it_is_closed_or_lost_even_if_more_is_read_meanwhile() {
        let mut closed = in_hand(leased(false, 0), 1);
        closed.close();
        let mut lost = in_hand(leased(false, 0), 1);
        lost.lose(true);
        for hand in [&mut closed, &mut lost] {
            hand.waiting.push_back(due(2));
            assert_eq!(positions(hand), [0; 0]);
            assert!(hand.is_finished());
        }
    }

    #[test]
    fn it_is_told_in_a_line_what_came_of_a_try() {
        let told = |status| {
            let mut hand = in_hand(leased(false, 0), 1);
            let _ = positions(&mut hand);
            answer(&mut hand, 1, status, None);
            hand.tries.pop().unwrap().outcome
        };
        assert_eq!([told(204), told(301)], ["taken, 204", "answered 301"]);
    }

    #[test]
    fn of_an_answer_its_beginning_is_kept_unless_it_is_of_ours() {
        let kept = |body: &[u8], is_ours| {
            let mut hand = in_hand(leased(false, 0), 1);
            let _ = positions(&mut hand);
            let answer = Ok(Answer { status: 500, retry_after: None, body: body.to_vec(), is_ours });
            let subscription = hand.leased.subscription;
            let sent = Sent { subscription, position: Some(1), started_at: 0, took: Duration::ZERO, answer };
            hand.answered(sent, 1, &Schedule::default(), DAYS);
            hand.tries.pop().unwrap().response
        };
        assert_eq!(kept(b"a\0b", false).as_deref(), Some("a\u{fffd}b"));
        assert_eq!((kept(b"", false), kept(b"secret", true)), (None, None));
        assert_eq!(kept(&[b'x'; 2 * KEPT], false), Some("x".repeat(KEPT)));
    }

    /// A question's answer is like no notification's.
    fn unanswered(hand: &mut InHand, age: Duration) {
        hand.leased.age = age;
        let answer = Err("no answer within 10 s".to_owned());
        let subscription = hand.leased.subscription;
        let sent = Sent { subscription, position: None, started_at: 0, took: Duration::ZERO, answer };
        hand.not_verified(sent, "the answer lacks the challenge".into(), &Schedule::default(), DAYS);
    }

    #[test]
    fn a_callback_that_does_not_answer_its_question_is_asked_again_until_its_time_is_over() {
        let unverified = |failures| Leased { state: SubscriptionState::Unverified, ..leased(false, failures) };
        let mut hand = in_hand(unverified(1), 1);
        assert_eq!(positions(&mut hand), [0; 0], "it is told nothing yet");
        unanswered(&mut hand, DAYS);
        let told = hand.tries.last().unwrap();
        assert_eq!((hand.failures, &hand.state, told.outcome.as_str()), (2, &None, "the answer lacks the challenge"));
        // The second step of the schedule.
        assert!(hand.rests_for.unwrap() >= Duration::from_mins(4) && hand.is_finished());
        assert_eq!(told.next, Next::Again(hand.rests_for.unwrap()));
        let mut late = in_hand(unverified(1), 0);
        unanswered(&mut late, DAYS + Duration::from_secs(1));
        assert_eq!(late.state, Some(("disabled", Some(NEVER_ANSWERED.into()))));

        let mut hand = in_hand(unverified(3), 2);
        hand.verified();
        assert_eq!((hand.state.clone(), hand.failures), (Some(("active", None)), 0));
        assert_eq!(positions(&mut hand), [1, 2]);
    }

    #[test]
    fn more_is_read_where_there_is_room_and_where_it_is_known_what_comes_next() {
        let mut hand = in_hand(leased(false, 0), 2);
        assert!(hand.wants_more() && !hand.has_room(), "nobody is asked yet");
        assert_eq!(positions(&mut hand), [1, 2]);
        assert!(hand.wants_more() && hand.has_room());
        hand.waiting.push_back(due(3));
        assert!(!hand.has_room(), "there is one to be sent");
        hand.waiting.extend([due(4), due(5)]);
        assert!(!hand.wants_more());
        assert_eq!(positions(&mut hand), [3]);
        hand.waiting.clear();
        assert!(!hand.has_room(), "three are under way");
        hand.read_to_the_end = true;
        assert!(!hand.wants_more());
        for stops in [InHand::close, |hand: &mut InHand| hand.lose(true)] {
            let mut hand = in_hand(leased(false, 0), 1);
            hand.lose(false);
            assert!(hand.wants_more() && !hand.is_finished());
            stops(&mut hand);
            assert!(!hand.wants_more() && hand.is_finished());
        }
        // In order, what comes next is known once the one before it is written down.
        let mut hand = in_hand(leased(true, 0), 1);
        assert!(!hand.wants_more() && positions(&mut hand) == [1] && !hand.wants_more() && !hand.has_room());
        answer(&mut hand, 1, 204, None);
        assert!(!hand.wants_more());
        hand.tries.clear();
        assert!(hand.wants_more());
        let unverified = Leased { state: SubscriptionState::Unverified, ..leased(false, 0) };
        assert!(!in_hand(unverified, 0).wants_more());
        let idle = Leased { state: SubscriptionState::Idle, ..leased(false, 0) };
        assert!(in_hand(idle, 1).is_finished());
        // Nothing waits, and nothing is to be read.
        let mut empty = in_hand(leased(false, 0), 0);
        assert!(!empty.is_finished());
        empty.read_to_the_end = true;
        assert!(empty.is_finished());
        empty.challenge = Some("x".into());
        assert!(!empty.is_finished(), "its question is under way");
    }
}
