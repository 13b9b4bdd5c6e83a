//! What an answer means, and how a subscription is given back.

use super::super::request_failure::RequestFailure;
use super::super::send::ReceiverResponse;
use super::samples::{due, leased};
use super::*;

const DAYS: Duration = Duration::from_hours(120);

fn active_leases(leased: Leased, waiting: i64) -> ActiveLease {
    let mut lease = ActiveLease::new(leased, 3, Instant::now());
    lease.waiting.extend((1..=waiting).map(due));
    lease
}

fn answer(lease: &mut ActiveLease, position: i64, status: u16, retry_after: Option<u64>) -> Next {
    let retry_after = retry_after.map(Duration::from_secs);
    let answer = Ok(ReceiverResponse { status, retry_after, body: b"x".to_vec(), is_ours: false });
    let sent = Sent {
        subscription: lease.leased.subscription,
        position: Some(position),
        started_at: 0,
        took: Duration::ZERO,
        answer,
    };
    lease.answered(sent, position, &Schedule::default(), DAYS);
    lease.attempts.last().unwrap().next
}

fn positions(lease: &mut ActiveLease) -> Vec<i64> {
    std::iter::from_fn(|| lease.next()).map(|due| due.position).collect()
}

#[test]
fn as_many_are_asked_at_once_as_may_be_and_in_order_one() {
    let mut lease = active_leases(leased(false, 0), 5);
    assert_eq!(positions(&mut lease), [1, 2, 3]);
    assert_eq!(answer(&mut lease, 2, 204, None), Next::Done);
    assert_eq!(positions(&mut lease), [4]);
    let mut lease = active_leases(leased(true, 0), 5);
    assert_eq!(positions(&mut lease), [1]);
    answer(&mut lease, 1, 200, None);
    assert_eq!(positions(&mut lease), [2]);
    // The failed notification holds up the later ones.
    assert!(matches!(answer(&mut lease, 2, 500, None), Next::Again(_)));
    assert_eq!(positions(&mut lease), [0; 0]);
    assert!(lease.is_finished() && lease.rests_for.is_none());
}

#[test]
fn answers_are_written_down_within_a_tenth_of_a_second_of_the_last_time_whatever_comes_meanwhile() {
    let mut lease = active_leases(leased(false, 0), 60);
    let after = |lease: &ActiveLease, milliseconds| lease.settled_at + Duration::from_millis(milliseconds);
    assert_eq!(lease.flush_in(after(&lease, 500)), None);
    let _ = positions(&mut lease);
    answer(&mut lease, 1, 204, None);
    assert_eq!(lease.flush_in(after(&lease, 1)), Some(Duration::from_millis(49)));
    answer(&mut lease, 2, 204, None);
    assert_eq!(lease.flush_in(after(&lease, 49)), Some(Duration::from_millis(1)));
    assert!(!lease.is_due(after(&lease, 49)) && lease.is_due(after(&lease, 50)) && lease.is_due(after(&lease, 101)));
    // Fifty answers are settled at once.
    for position in 3..=50 {
        assert_eq!(lease.flush_in(after(&lease, 1)), Some(Duration::from_millis(49)));
        let _ = positions(&mut lease);
        answer(&mut lease, position, 204, None);
    }
    assert_eq!(lease.flush_in(after(&lease, 1)), Some(Duration::ZERO));
}

#[test]
fn five_failures_in_a_row_give_the_receiver_a_rest_and_then_it_is_asked_once() {
    let mut lease = active_leases(leased(false, 0), 9);
    for position in 1..=4 {
        let _ = positions(&mut lease);
        answer(&mut lease, position, 500, None);
        assert_eq!(lease.rests_for, None);
    }
    answer(&mut lease, 5, 301, None);
    assert!(lease.rests_for.unwrap() < Duration::from_secs(7) && lease.closing);
    assert_eq!((positions(&mut lease), lease.failures), (vec![], 5));

    let mut probe = active_leases(leased(false, 5), 9);
    assert_eq!(positions(&mut probe), [1]);
    answer(&mut probe, 1, 500, None);
    // The next step of the schedule: five minutes.
    assert!(probe.rests_for.unwrap() >= Duration::from_mins(4) && probe.is_finished());

    let mut well = active_leases(leased(false, 7), 9);
    assert_eq!(positions(&mut well), [1]);
    answer(&mut well, 1, 200, None);
    assert_eq!((positions(&mut well), well.failures), (vec![2, 3, 4], 0));
}

#[test]
fn a_receiver_that_asks_for_a_rest_has_it_and_one_that_is_gone_is_disabled() {
    let mut lease = active_leases(leased(false, 0), 9);
    let _ = positions(&mut lease);
    assert_eq!(answer(&mut lease, 1, 429, Some(60)), Next::Again(Duration::from_secs(60)));
    assert_eq!(lease.rests_for, Some(Duration::from_secs(60)));
    assert!(!lease.is_finished(), "two are under way");
    assert_eq!(positions(&mut lease), [0; 0]);

    let mut gone = active_leases(leased(false, 0), 9);
    let _ = positions(&mut gone);
    assert!(matches!(answer(&mut gone, 1, 410, None), Next::Again(_)));
    assert!(matches!(&gone.state, Some(StateChange::Disabled(why)) if why.contains("410")));

    let mut days = active_leases(Leased { failing_for: DAYS, ..leased(false, 9) }, 9);
    let _ = positions(&mut days);
    answer(&mut days, 1, 500, None);
    assert!(matches!(&days.state, Some(StateChange::Disabled(why)) if why.contains("5days") && why.contains("500")));
}

#[test]
fn a_notification_is_given_up_after_its_last_wait() {
    let mut lease = active_leases(leased(false, 0), 0);
    lease.waiting.push_back(Due { tries: 9, ..due(1) });
    let _ = positions(&mut lease);
    assert_eq!(answer(&mut lease, 1, 500, None), Next::GivenUp);
    let shown = lease.attempts.last().unwrap();
    assert_eq!((shown.outcome.as_str(), shown.response.as_deref()), ("answered 500", Some("x")));
}

#[test]
fn nobody_is_disabled_before_so_long_nor_for_a_first_failure() {
    for (failures, failing_for) in [(9, DAYS / 2), (0, DAYS * 2)] {
        let mut lease = active_leases(Leased { failing_for, ..leased(false, failures) }, 9);
        let _ = positions(&mut lease);
        answer(&mut lease, 1, 500, None);
        assert_eq!(lease.state, None, "{failures}");
    }
}

/// The receiver was down for days, but accepted a notification a moment ago: the next failure is its first.
#[test]
fn who_has_just_taken_something_is_not_disabled_for_what_fails_then() {
    let mut lease = active_leases(Leased { failing_for: DAYS * 2, ..leased(false, 9) }, 9);
    assert_eq!(positions(&mut lease), [1]);
    answer(&mut lease, 1, 204, None);
    let _ = positions(&mut lease);
    answer(&mut lease, 2, 500, None);
    answer(&mut lease, 3, 503, None);
    assert_eq!((&lease.state, lease.failures), (&None, 2));

    // A receiver that has just answered its verification request is not disabled either.
    let unverified = Leased { state: SubscriptionState::Unverified, failing_for: DAYS * 2, ..leased(false, 9) };
    let mut lease = active_leases(unverified, 2);
    lease.verified();
    let _ = positions(&mut lease);
    answer(&mut lease, 1, 500, None);
    assert_eq!((&lease.state, lease.failures), (&Some(StateChange::Verified), 1));
}

#[test]
fn what_was_not_tried_is_no_failure_and_waits_as_it_was() {
    let mut lease = active_leases(Leased { failing_for: DAYS * 2, ..leased(false, 4) }, 9);
    assert_eq!(positions(&mut lease), [1, 2, 3]);
    lease.not_tried(Some(2), &Schedule::default());
    assert_eq!((lease.failures, &lease.state, lease.attempts.len(), lease.requests()), (4, &None, 0, 2));
    // The rest is the first step of the schedule, or longer if the receiver has asked for that.
    assert!(lease.rests_for.unwrap() >= Duration::from_secs(4) && lease.rests_for.unwrap() <= Duration::from_secs(6));
    assert!(!lease.is_finished(), "two are under way");
    assert_eq!(positions(&mut lease), [0; 0]);
    answer(&mut lease, 1, 204, None);
    answer(&mut lease, 3, 503, Some(60));
    assert!(lease.is_finished());
    lease.not_tried(None, &Schedule::default());
    assert_eq!(lease.rests_for, Some(Duration::from_secs(60)));
}

/// However often this happens, the receiver has not failed.
#[test]
fn what_notifiers_end_with_is_a_failed_try_of_what_is_due_first_and_no_failure_of_the_receivers() {
    let ended = Leased { failing_for: DAYS * 2, lease_limit: Some(0), ..leased(false, 4) };
    for (tries, is_given_up) in [(0, false), (8, false), (9, true)] {
        let mut lease = active_leases(ended.clone(), 0);
        lease.ended_notifiers(Some(&Due { tries, ..due(7) }), 5, &Schedule::default());
        let one = &lease.attempts[0];
        assert_eq!((one.position, one.status, one.outcome.as_str()), (Some(7), None, ENDED_NOTIFIERS));
        assert_eq!(one.next == Next::GivenUp, is_given_up);
        assert_eq!((lease.failures, &lease.state), (4, &None));
        assert!(lease.is_finished() && lease.rests_for.is_some_and(|rest| rest >= Duration::from_mins(4)));
    }
    // Nothing is due any more.
    let mut lease = active_leases(ended, 0);
    lease.ended_notifiers(None, 5, &Schedule::default());
    assert!(lease.is_finished() && lease.attempts.is_empty());
}

#[test]
fn what_waits_and_what_is_under_way_takes_memory_until_it_is_answered() {
    let large = Due { diff: "x".repeat(1000), ..due(1) };
    let mut lease = active_leases(leased(false, 0), 0);
    assert!(large.bytes() >= 1000 && lease.bytes() == 0);
    lease.waiting.push_back(large.clone());
    assert_eq!(lease.bytes(), large.bytes());
    assert_eq!(positions(&mut lease), [1]);
    assert_eq!(lease.bytes(), large.bytes());
    answer(&mut lease, 1, 204, None);
    assert_eq!(lease.bytes(), 0);
}

#[test]
fn who_is_asked_one_thing_at_a_time_makes_use_of_one_request() {
    use SubscriptionState::{Active, Disabled, Unverified};
    for (state, in_order, failures, wanted_slots) in [
        (Active, false, 0, 64),
        (Active, false, 4, 64),
        (Active, false, 5, 1),
        (Active, true, 0, 1),
        (Unverified, false, 0, 1),
        // The lease is given back at once.
        (Disabled, false, 0, 0),
    ] {
        let mut lease = active_leases(Leased { state, max_in_flight: 64, ..leased(in_order, failures) }, 0);
        assert_eq!(lease.wanted_slots(), wanted_slots, "{state:?} {in_order} {failures}");
        lease.close();
        assert_eq!(lease.wanted_slots(), 0);
    }
    let mut lost = active_leases(leased(false, 0), 0);
    lost.mark_lost(true);
    assert_eq!(lost.wanted_slots(), 0);
}

#[test]
fn of_two_rests_the_longer_one_counts_and_each_failure_makes_the_next_one_longer() {
    let mut lease = active_leases(leased(false, 0), 9);
    let _ = positions(&mut lease);
    for (position, asked, rest) in [(1, 900, 900), (2, 60, 900), (3, 1000, 1000)] {
        answer(&mut lease, position, 503, Some(asked));
        assert_eq!(lease.rests_for, Some(Duration::from_secs(rest)));
    }
    // The fifth failure takes the first step of the schedule, and so on.
    for (failures, minutes) in [(4, 0), (5, 4), (6, 24), (7, 96)] {
        let mut lease = active_leases(leased(false, failures), 1);
        let _ = positions(&mut lease);
        answer(&mut lease, 1, 500, None);
        let rest = lease.rests_for.unwrap();
        let longest = Duration::from_mins(minutes * 3 / 2) + Duration::from_secs(6);
        assert!(rest >= Duration::from_mins(minutes) && rest <= longest, "{failures}: {rest:?}");
    }
}

#[test]
fn a_receiver_rests_where_it_asks_for_that_or_is_overloaded_and_not_for_any_failure() {
    for (status, asked, rests) in [
        (500, None, false),
        (501, None, false),
        (505, None, false),
        (500, Some(60), true),
        (400, Some(60), true),
        (429, None, true),
        (502, None, true),
        (503, None, true),
        (504, None, true),
    ] {
        let mut lease = active_leases(leased(false, 0), 9);
        let _ = positions(&mut lease);
        answer(&mut lease, 1, status, asked);
        assert_eq!((lease.rests_for.is_some(), lease.closing), (rests, rests), "{status} {asked:?}");
    }
}

/// Due notifications may be read while an answer arrives that closes the subscription.
#[test]
fn nothing_is_sent_any_more_where_it_is_closed_or_lost_even_if_more_is_read_meanwhile() {
    let mut closed = active_leases(leased(false, 0), 1);
    closed.close();
    let mut lost = active_leases(leased(false, 0), 1);
    lost.mark_lost(true);
    for lease in [&mut closed, &mut lost] {
        lease.waiting.push_back(due(2));
        assert_eq!(positions(lease), [0; 0]);
        assert!(lease.is_finished());
    }
}

#[test]
fn it_is_reported_in_a_line_what_came_of_a_try() {
    let shown = |status| {
        let mut lease = active_leases(leased(false, 0), 1);
        let _ = positions(&mut lease);
        answer(&mut lease, 1, status, None);
        lease.attempts.pop().unwrap().outcome
    };
    assert_eq!([shown(204), shown(301)], ["taken, 204", "answered 301"]);
}

#[test]
fn of_an_answer_its_beginning_is_kept_unless_it_is_of_ours() {
    let kept = |body: &[u8], is_ours| {
        let mut lease = active_leases(leased(false, 0), 1);
        let _ = positions(&mut lease);
        let answer = Ok(ReceiverResponse { status: 500, retry_after: None, body: body.to_vec(), is_ours });
        let subscription = lease.leased.subscription;
        let sent = Sent { subscription, position: Some(1), started_at: 0, took: Duration::ZERO, answer };
        lease.answered(sent, 1, &Schedule::default(), DAYS);
        lease.attempts.pop().unwrap().response
    };
    assert_eq!(kept(b"a\0b", false).as_deref(), Some("a\u{fffd}b"));
    assert_eq!((kept(b"", false), kept(b"secret", true)), (None, None));
    assert_eq!(kept(&[b'x'; 2 * KEPT], false), Some("x".repeat(KEPT)));
}

/// A failed verification request, which is recorded without a position.
fn unanswered(lease: &mut ActiveLease, age: Duration) {
    lease.leased.age = age;
    let answer = Err(RequestFailure::Failed("no answer within 10 s".into()));
    let subscription = lease.leased.subscription;
    let sent = Sent { subscription, position: None, started_at: 0, took: Duration::ZERO, answer };
    lease.not_verified(sent, "the answer lacks the challenge".into(), &Schedule::default(), DAYS);
}

#[test]
fn a_callback_that_does_not_answer_its_question_is_asked_again_until_its_time_is_over() {
    let unverified = |failures| Leased { state: SubscriptionState::Unverified, ..leased(false, failures) };
    let mut lease = active_leases(unverified(1), 1);
    assert_eq!(positions(&mut lease), [0; 0], "it gets nothing yet");
    unanswered(&mut lease, DAYS);
    let shown = lease.attempts.last().unwrap();
    assert_eq!((lease.failures, &lease.state, shown.outcome.as_str()), (2, &None, "the answer lacks the challenge"));
    // The second step of the schedule.
    assert!(lease.rests_for.unwrap() >= Duration::from_mins(4) && lease.is_finished());
    assert_eq!(shown.next, Next::Again(lease.rests_for.unwrap()));
    let mut late = active_leases(unverified(1), 0);
    unanswered(&mut late, DAYS + Duration::from_secs(1));
    assert_eq!(late.state, Some(StateChange::Disabled(NEVER_ANSWERED.into())));

    let mut lease = active_leases(unverified(3), 2);
    lease.verified();
    assert_eq!((lease.state.clone(), lease.failures), (Some(StateChange::Verified), 0));
    assert_eq!(positions(&mut lease), [1, 2]);
}

#[test]
fn more_is_read_where_there_is_room_and_where_it_is_known_what_comes_next() {
    let mut lease = active_leases(leased(false, 0), 2);
    assert!(lease.wants_more() && !lease.has_room(), "nobody is asked yet");
    assert_eq!(positions(&mut lease), [1, 2]);
    assert!(lease.wants_more() && lease.has_room());
    lease.waiting.push_back(due(3));
    assert!(!lease.has_room(), "there is one to be sent");
    lease.waiting.extend([due(4), due(5)]);
    assert!(!lease.wants_more());
    assert_eq!(positions(&mut lease), [3]);
    lease.waiting.clear();
    assert!(!lease.has_room(), "three are under way");
    lease.read_to_the_end = true;
    assert!(!lease.wants_more());
    for stops in [ActiveLease::close, |lease: &mut ActiveLease| lease.mark_lost(true)] {
        let mut lease = active_leases(leased(false, 0), 1);
        lease.mark_lost(false);
        assert!(lease.wants_more() && !lease.is_finished());
        stops(&mut lease);
        assert!(!lease.wants_more() && lease.is_finished());
    }
    // In order, the next notification is known only when the previous one is settled.
    let mut lease = active_leases(leased(true, 0), 1);
    assert!(!lease.wants_more() && positions(&mut lease) == [1] && !lease.wants_more() && !lease.has_room());
    answer(&mut lease, 1, 204, None);
    assert!(!lease.wants_more());
    lease.attempts.clear();
    assert!(lease.wants_more());
    let unverified = Leased { state: SubscriptionState::Unverified, ..leased(false, 0) };
    assert!(!active_leases(unverified, 0).wants_more());
    let idle = Leased { state: SubscriptionState::Paused, ..leased(false, 0) };
    assert!(active_leases(idle, 1).is_finished());
    // Nothing waits, and nothing is left to read.
    let mut empty = active_leases(leased(false, 0), 0);
    assert!(!empty.is_finished());
    empty.read_to_the_end = true;
    assert!(empty.is_finished());
    empty.challenge = Some("x".into());
    assert!(!empty.is_finished(), "its question is under way");
}
