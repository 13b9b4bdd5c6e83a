//! Each step of a notifier by itself: its calls of a scripted database, and the requests that it sends.

use super::super::leased_subscription::samples::{due, leased};
use super::super::send::ReceiverResponse;
use super::round::{READ_AT_ONCE, at_once, random};
use super::tests::settings;
use super::*;
use crate::database::DatabaseError;
use crate::ledger::notifications::{
    Due, LARGEST_DUE, Next, Notifications, PUBLISHED_AT_ONCE, Published, Settlement, StateChange, SubscriptionState,
    Wake, WebhookAttempt,
};
use crate::site::embedded::Embedded;
use crate::webhook::WebhookSecret;
use std::collections::VecDeque;
use std::sync::mpsc;
use tokio::sync::mpsc::UnboundedReceiver;

/// A database with scripted answers, which records its calls.
#[derive(Default)]
struct RecordedLedger {
    /// How many events each publication has.
    events: usize,
    /// How many subscriptions the next lease returns, the highest number already used, and a template for them.
    subscriptions: u128,
    before: u128,
    like: Option<Leased>,
    /// How many notifications each of the next reads returns.
    due: VecDeque<i64>,
    /// The subscriptions whose leases are lost.
    lost: Vec<Uuid>,
    /// How large each notification is, in bytes.
    bytes: usize,
    asked: Vec<String>,
}

fn numbers<'a>(ids: impl IntoIterator<Item = &'a Uuid>) -> String {
    ids.into_iter().map(|id| format!(" {}", id.as_u128())).collect()
}

impl Notifications for RecordedLedger {
    fn publish(&mut self, _: &LockName, wake: Wake) -> Result<Published, DatabaseError> {
        self.asked.push(format!("publish, wake {wake:?}"));
        Ok(Published::Events { count: self.events, last: 7 })
    }

    fn has_unpublished(&mut self, after: i64) -> Result<bool, DatabaseError> {
        self.asked.push(format!("anything after {after}"));
        Ok(false)
    }

    fn lease(
        &mut self,
        _: Uuid,
        lease: Duration,
        most: usize,
        served: &[&str],
        _: usize,
    ) -> Result<Vec<Leased>, DatabaseError> {
        let but: String = served.iter().map(|owner| format!(" but {owner}'s")).collect();
        self.asked.push(format!("lease {most} for {lease:?}{but}"));
        let all = 1..=std::mem::take(&mut self.subscriptions);
        let like = self.like.clone().unwrap_or_else(|| Leased { max_in_flight: 1, ..leased(false, 0) });
        Ok(all.map(|id| Leased { subscription: Uuid::from_u128(self.before + id), ..like.clone() }).collect())
    }

    fn lease_longer(&mut self, _: Uuid, _: Duration, subscriptions: &[Uuid]) -> Result<Vec<Uuid>, DatabaseError> {
        self.asked.push(format!("longer{}", numbers(subscriptions)));
        Ok(self.lost.clone())
    }

    fn due(&mut self, leased: &Leased, _: &[i64], most: usize) -> Result<Vec<Due>, DatabaseError> {
        self.asked.push(format!("read{} {most}", numbers([&leased.subscription])));
        let most = i64::try_from(most).unwrap();
        let all = (1..=self.due.pop_front().unwrap_or(0).min(most)).map(due);
        Ok(all.map(|due| Due { diff: "x".repeat(self.bytes), ..due }).collect())
    }

    fn settle(&mut self, settlements: &[Settlement<'_>]) -> Result<Vec<Uuid>, DatabaseError> {
        self.asked.push(format!("settle{}", numbers(settlements.iter().map(|one| &one.subscription))));
        Ok(Vec::new())
    }
}

/// Runs a test with a notifier, the channel for its answers, and the channel of its requests.
fn with(does: impl FnOnce(&mut Notifier<'_>, mpsc::Sender<Sent>, UnboundedReceiver<SendJob>)) {
    let folder = tempfile::tempdir().unwrap();
    let site = Site::embedded(Embedded::new(folder.path().to_owned()));
    let (sender, answers, jobs) = Sender::nowhere();
    does(&mut Notifier::new(&site, settings(&folder.path().join("key")), sender), answers, jobs);
}

fn ago(milliseconds: u64) -> Instant {
    Instant::now().checked_sub(Duration::from_millis(milliseconds)).unwrap()
}

/// A subscription with this number, which has as many waiting notifications as it may send.
fn full(number: u128) -> ActiveLease {
    let leased = Leased { subscription: Uuid::from_u128(number), ..leased(false, 0) };
    let mut lease = ActiveLease::new(leased, 3, Instant::now());
    lease.waiting.extend((1..=3).map(due));
    lease
}

fn put(notifier: &mut Notifier<'_>, lease: ActiveLease) {
    notifier.active_leases.insert(lease.leased.subscription, lease);
}

/// A try that is not settled yet.
fn tried() -> WebhookAttempt {
    let (outcome, next) = ("taken, 204".into(), Next::Done);
    let (started_at, took) = (0, Duration::ZERO);
    WebhookAttempt { position: Some(9), due_at: 0, started_at, took, status: Some(204), outcome, response: None, next }
}

fn question_answered(status: u16, body: &str) -> Sent {
    let answer = Ok(ReceiverResponse { status, retry_after: None, body: body.into(), is_ours: false });
    let (subscription, took) = (Uuid::from_u128(1), Duration::ZERO);
    Sent { subscription, position: None, started_at: 0, took, answer }
}

#[test]
fn a_lease_outlives_a_request_and_is_made_longer_while_half_of_that_is_left() {
    with(|notifier, _, _| {
        assert_eq!(notifier.lease, notifier.settings.notifications.timeout + Duration::from_secs(15));
        let mut lease = full(1);
        let after = |lease: &ActiveLease, milliseconds| lease.leased_at + Duration::from_millis(milliseconds);
        assert!(!notifier.is_to_be_leased_longer(&lease, after(&lease, 7_499)));
        assert!(notifier.is_to_be_leased_longer(&lease, after(&lease, 7_500)));
        lease.lost = true;
        assert!(!notifier.is_to_be_leased_longer(&lease, after(&lease, 60_000)), "it is somebody else's");
    });
}

#[test]
fn the_database_is_asked_where_a_poll_is_due_or_any_subscription_wants_something_of_it() {
    with(|notifier, _, _| {
        let now = Instant::now();
        assert!(notifier.has_to_do(now, false), "it was never looked for work");
        assert!(!notifier.has_to_do(now, true), "it ends");
        // However slow this machine is, the last poll counts as recent.
        notifier.polled_at = Some(now + Duration::from_hours(1));
        assert!(!notifier.has_to_do(now, false));
        put(notifier, full(1));
        assert!(!notifier.has_to_do(now, false) && !notifier.has_to_do(now, true));
        let wants = |notifier: &mut Notifier<'_>, change: fn(&mut ActiveLease)| {
            let mut lease = full(1);
            change(&mut lease);
            put(notifier, lease);
            assert!(notifier.has_to_do(now, false) && notifier.has_to_do(now, true));
        };
        wants(notifier, ActiveLease::close);
        wants(notifier, |has_room| has_room.waiting.clear());
        wants(notifier, |answered| (answered.attempts, answered.settled_at) = (vec![tried()], ago(1_000)));
        wants(notifier, |old| old.leased_at = ago(8_000));
        // But no round begins in the pause after two failures.
        notifier.round_failed(now);
        assert!(notifier.has_to_do(now, true));
        let pause = notifier.round_failed(now);
        assert!(!notifier.has_to_do(now, false) && !notifier.has_to_do(now, true));
        assert!(notifier.has_to_do(now + pause, true));
    });
}

#[test]
fn the_database_is_asked_again_at_once_and_then_ever_more_rarely_until_it_answers() {
    with(|notifier, _, _| {
        let now = Instant::now();
        assert!(!notifier.round_succeeded() && notifier.pause_left(now).is_zero());
        for milliseconds in [0, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000] {
            let pause = Duration::from_millis(milliseconds);
            assert_eq!(notifier.round_failed(now), pause);
            assert_eq!((notifier.pause_left(now), notifier.pause_left(now + pause)), (pause, Duration::ZERO));
        }
        assert!(notifier.round_succeeded() && notifier.pause_left(now).is_zero());
        assert_eq!(notifier.round_failed(now), Duration::ZERO);
    });
}

#[test]
fn leases_are_made_longer_of_those_that_have_nothing_to_be_written_down_and_what_is_lost_is_let_go() {
    with(|notifier, _, _| {
        let old = |number| ActiveLease { leased_at: ago(8_000), ..full(number) };
        put(notifier, old(1));
        put(notifier, ActiveLease { attempts: vec![tried()], ..old(2) });
        put(notifier, ActiveLease { closing: true, ..old(3) });
        put(notifier, full(4));
        let mut under_way = old(5);
        under_way.next().unwrap();
        put(notifier, under_way);
        let mut database = RecordedLedger { lost: vec![Uuid::from_u128(5)], ..RecordedLedger::default() };
        notifier.settle(&mut database).unwrap();
        assert_eq!(database.asked, ["longer 1 5", "settle 2 3"]);
        let lost: Vec<u128> = notifier
            .active_leases
            .values()
            .filter(|lease| lease.lost)
            .map(|lease| lease.leased.subscription.as_u128())
            .collect();
        assert_eq!((numbers(notifier.active_leases.keys()).as_str(), lost), (" 1 2 4 5", vec![5]));
    });
}

#[test]
fn it_is_written_down_how_a_subscription_is_left() {
    with(|notifier, _, _| {
        let left = |lease: &ActiveLease| {
            let settlement = notifier.settlement(lease);
            (settlement.lease.is_some(), settlement.idle)
        };
        // The subscription stays leased, and no notification is sent.
        assert_eq!(left(&full(1)), (true, false));
        assert_eq!(left(&ActiveLease { closing: true, ..full(1) }), (false, false));
        let mut verified = full(1);
        verified.verified();
        assert_eq!(left(&verified), (true, false));
        let mut disabled = full(1);
        disabled.disable("gone".into());
        assert_eq!(left(&disabled), (false, true));
        let idle = Leased { state: SubscriptionState::Paused, ..leased(false, 0) };
        assert_eq!(left(&ActiveLease::new(idle, 3, Instant::now())), (false, true));
    });
}

#[test]
fn a_subscription_is_read_to_its_end_or_for_ten_seconds() {
    with(|notifier, _, _| {
        let empty = |number| ActiveLease { waiting: VecDeque::new(), ..full(number) };
        put(notifier, empty(1));
        put(notifier, empty(2));
        put(notifier, ActiveLease { since: ago(11_000), ..empty(3) });
        let mut database = RecordedLedger { due: [100, 99].into(), ..RecordedLedger::default() };
        notifier.read(&mut database).unwrap();
        assert_eq!(database.asked, ["read 1 100", "read 2 100"]);
        let ends: Vec<bool> = notifier.active_leases.values().map(|lease| lease.read_to_the_end).collect();
        assert_eq!(ends, [false, true, true]);
    });
}

#[test]
fn once_a_rounds_time_is_over_nothing_more_is_read_and_the_next_one_goes_on_there() {
    with(|notifier, _, _| {
        put(notifier, ActiveLease { waiting: VecDeque::new(), ..full(1) });
        let mut database = RecordedLedger { due: [1].into(), ..RecordedLedger::default() };
        notifier.round_ends = Deadline::after(Duration::ZERO);
        notifier.read(&mut database).unwrap();
        assert_eq!(database.asked, [""; 0]);
        assert!(notifier.active_leases.values().all(ActiveLease::wants_more));
        notifier.round_ends = Deadline::after(ROUND);
        notifier.read(&mut database).unwrap();
        assert_eq!(database.asked, ["read 1 100"]);
    });
}

#[test]
fn it_is_looked_for_more_at_once_where_there_was_as_much_as_could_be_had() {
    for (events, subscriptions, concurrency, more) in
        [(1, 0, 8, false), (PUBLISHED_AT_ONCE, 0, 8, true), (1, 1, 8, false), (1, 2, 8, true), (1, 100, 512, true)]
    {
        with(|notifier, _, _| {
            notifier.settings.notifications.concurrency = concurrency;
            let mut database = RecordedLedger { events, subscriptions, ..RecordedLedger::default() };
            notifier.poll(&mut database).unwrap();
            assert_eq!(notifier.polled_at.is_none(), more, "{events} {subscriptions}");
            // One lease statement returns at most as many subscriptions as a quarter of the concurrency.
            let most = (concurrency / 4).min(100);
            assert_eq!(
                database.asked[..2],
                ["publish, wake All".into(), format!("lease {most} for {:?}", notifier.lease)]
            );
            assert_eq!(notifier.active_leases.len() as u128, subscriptions);
        });
    }
}

#[test]
fn a_notifier_at_its_limit_leases_nothing_more_and_later_continues_where_it_stopped() {
    with(|notifier, _, _| {
        notifier.settings.notifications.concurrency = 3;
        put(notifier, full(1));
        let mut database = RecordedLedger::default();
        notifier.poll(&mut database).unwrap();
        let woken_at = notifier.woken_at;
        assert!(woken_at.is_some());
        // However slow this machine is, the last wake counts as recent.
        notifier.woken_at = woken_at.map(|at| at + Duration::from_hours(1));
        let before = notifier.woken_at;
        (notifier.published_before, notifier.published_at_wake) = (5, 6);
        notifier.poll(&mut database).unwrap();
        assert_eq!(database.asked, ["publish, wake All", "anything after 5"]);
        assert_eq!((notifier.woken_at, notifier.published_before), (before, 5));
    });
}

/// The allotment of each leased subscription.
fn allotments(notifier: &Notifier<'_>) -> Vec<usize> {
    notifier.active_leases.values().map(|lease| lease.allotment).collect()
}

#[test]
fn who_is_asked_one_thing_at_a_time_keeps_one_request_from_others_however_many_he_may_have() {
    use SubscriptionState::{Active, Unverified};
    let most = || Leased { max_in_flight: 64, ..leased(false, 0) };
    for (like, each) in [
        (Leased { state: Unverified, ..most() }, 1),
        (Leased { in_order: true, ..most() }, 1),
        (Leased { failures: 5, ..most() }, 1),
        (Leased { state: Active, ..most() }, 64),
    ] {
        with(|notifier, _, _jobs| {
            let mut database =
                RecordedLedger { subscriptions: 8, like: Some(like.clone()), ..RecordedLedger::default() };
            notifier.poll(&mut database).unwrap();
            assert_eq!(allotments(notifier), [each; 8], "{like:?}");
            assert_eq!(notifier.free(), 512 - 8 * each);
        });
    }
}

#[test]
fn who_answers_again_may_have_as_many_as_any_other_from_the_next_look_on_as_far_as_there_are_any() {
    with(|notifier, _, _jobs| {
        notifier.settings.notifications.concurrency = 8;
        let like = Some(Leased { failures: 5, max_in_flight: 6, ..leased(false, 0) });
        let mut database = RecordedLedger { subscriptions: 2, like, ..RecordedLedger::default() };
        notifier.poll(&mut database).unwrap();
        assert_eq!(allotments(notifier), [1, 1]);
        for lease in notifier.active_leases.values_mut() {
            lease.failures = 0;
            lease.waiting.extend((1..=6).map(due));
        }
        assert_eq!(notifier.active_leases.values().map(ActiveLease::limit).max(), Some(1));
        notifier.poll(&mut database).unwrap();
        assert_eq!((allotments(notifier), notifier.free()), (vec![6, 2], 0));
    });
}

/// However the receivers of one token behave, half of the requests remain for others. A subscription that an operator made
/// belongs to the site, and does not count.
#[test]
fn the_subscriptions_of_one_token_have_half_of_all_requests_and_then_nothing_more_is_leased_for_it() {
    with(|notifier, _, _jobs| {
        notifier.settings.notifications.concurrency = 16;
        let of = |owner: &str| Some(Leased { owner: owner.into(), max_in_flight: 6, ..leased(false, 0) });
        let mut database = RecordedLedger { subscriptions: 2, like: of("token:a"), ..RecordedLedger::default() };
        notifier.poll(&mut database).unwrap();
        assert_eq!(allotments(notifier), [6, 2]);
        // These were leased by code that ignores the limit: each has one request, and gets no more.
        database = RecordedLedger { subscriptions: 4, before: 2, like: of("token:a"), ..database };
        notifier.poll(&mut database).unwrap();
        assert_eq!(allotments(notifier), [6, 2, 1, 1, 1, 1]);
        database = RecordedLedger { subscriptions: 1, before: 6, like: of("operator"), ..database };
        notifier.poll(&mut database).unwrap();
        assert_eq!((allotments(notifier), notifier.free()), (vec![6, 2, 1, 1, 1, 1, 4], 0));
        let leases: Vec<&str> = database
            .asked
            .iter()
            .filter_map(|asked| asked.strip_prefix("lease ")?.split_once(" for 30s"))
            .map(|(most, but)| {
                assert_eq!(most, "4");
                but
            })
            .collect();
        assert_eq!(leases, ["", " but token:a's", " but token:a's"]);
    });
}

#[test]
fn a_question_that_was_not_asked_counts_for_none_and_is_asked_again() {
    with(|notifier, answers, mut jobs| {
        let unverified = Leased { state: SubscriptionState::Unverified, ..leased(false, 2) };
        notifier.begin(unverified, Instant::now());
        let asked = jobs.try_recv().unwrap();
        let answer = Err(RequestFailure::NotTried("its host was not looked up within 15 s".into()));
        let (subscription, took) = (asked.subscription, Duration::ZERO);
        answers.send(Sent { subscription, position: None, started_at: 0, took, answer }).unwrap();
        notifier.receive_answers(true);
        let lease = notifier.active_leases.values().next().unwrap();
        assert_eq!((lease.failures, lease.attempts.len(), &lease.state), (2, 0, &None));
        assert!(lease.is_finished() && lease.rests_for.is_some());
    });
}

#[test]
fn a_new_callback_is_asked_a_question_for_a_day_where_callbacks_are_asked() {
    use SubscriptionState::{Active, Unverified};
    let day = VERIFIED_WITHIN;
    for (state, verify, age, asked, becomes) in [
        (Unverified, true, day, true, None),
        (Unverified, true, day + Duration::from_secs(1), false, Some(false)),
        (Unverified, false, day * 2, false, Some(true)),
        (Active, true, day * 2, false, None),
        (Active, false, Duration::ZERO, false, None),
    ] {
        with(|notifier, _, mut jobs| {
            notifier.settings.notifications.verify_callbacks = verify;
            notifier.begin(Leased { state, age, ..leased(false, 2) }, Instant::now());
            let lease = notifier.active_leases.values().next().unwrap();
            assert_eq!(
                lease.state.as_ref().map(|state| matches!(state, StateChange::Verified)),
                becomes,
                "{state:?} {verify}"
            );
            let sent = jobs.try_recv().ok();
            assert_eq!((sent.is_some(), lease.challenge.is_some()), (asked, asked), "{state:?} {verify}");
            if let (Some(job), Some(challenge)) = (sent, &lease.challenge) {
                assert!(job.body.contains(challenge) && (job.position, job.number) == (None, 3));
            }
        });
    }
    assert_ne!(random(), random(), "a challenge can be guessed");
}

#[test]
fn a_callback_is_reported_from_then_on_that_its_challenge_comes_back_in_an_answer_that_says_yes() {
    for (status, body, problem) in [
        (200, r#"{"challenge":"c"}"#, None),
        (200, "{}", Some("the answer lacks the challenge")),
        (500, r#"{"challenge":"c"}"#, Some("answered 500")),
    ] {
        with(|notifier, answers, _| {
            let unverified = Leased { state: SubscriptionState::Unverified, ..leased(false, 0) };
            put(
                notifier,
                ActiveLease { challenge: Some("c".into()), ..ActiveLease::new(unverified, 3, Instant::now()) },
            );
            answers.send(question_answered(status, body)).unwrap();
            notifier.receive_answers(true);
            let lease = notifier.active_leases.values().next().unwrap();
            assert_eq!(lease.leased.state == SubscriptionState::Active, problem.is_none());
            assert_eq!(lease.attempts.first().map(|one| one.outcome.as_str()), problem);
        });
    }
}

#[test]
fn nothing_is_sent_that_could_outlive_its_lease_nor_while_the_database_does_not_answer() {
    with(|notifier, _, mut jobs| {
        put(notifier, ActiveLease { leased_at: ago(15_000), ..full(1) });
        put(notifier, full(2));
        notifier.round_failed(Instant::now());
        notifier.start_requests();
        assert!(jobs.try_recv().is_err());
        notifier.round_succeeded();
        notifier.start_requests();
        let sent: Vec<_> = std::iter::from_fn(|| jobs.try_recv().ok()).collect();
        let of: Vec<_> = sent.iter().map(|job| (job.subscription.as_u128(), job.position, job.number)).collect();
        assert_eq!(of, [(2, Some(1), 1), (2, Some(2), 1), (2, Some(3), 1)]);
    });
}

#[test]
fn the_secret_before_signs_beside_the_new_one_for_a_day() {
    let day = ROTATION;
    for (generation, age, signing) in [
        (1, None, &[1][..]),
        (1, Some(Duration::ZERO), &[1]),
        (2, None, &[2]),
        (3, Some(day.saturating_sub(Duration::from_nanos(1))), &[3, 2]),
        (3, Some(day), &[3]),
        (3, Some(day * 2), &[3]),
    ] {
        with(|notifier, _, mut jobs| {
            let leased = Leased { secret_generation: generation, secret_age: age, ..leased(false, 0) };
            notifier.send(&leased, Some(1), "evt_1".into(), "{}".into(), 1);
            let key = &notifier.settings.key;
            let wanted: Vec<_> = signing.iter().map(|one| key.secret(leased.subscription, *one).expose()).collect();
            let secrets: Vec<_> = jobs.try_recv().unwrap().secrets.iter().map(WebhookSecret::expose).collect();
            assert_eq!(secrets, wanted, "{generation} {age:?}");
        });
    }
}

/// Example: sixty subscriptions to messages with long headers.
#[test]
fn what_is_read_fits_into_the_memory_and_who_finds_none_left_is_given_back_and_comes_again() {
    with(|notifier, _, _jobs| {
        notifier.settings.memory = 3 * LARGEST_DUE;
        let empty = |number| ActiveLease { waiting: VecDeque::new(), ..full(number) };
        (1..=4).for_each(|number| put(notifier, empty(number)));
        let mut database = RecordedLedger { due: [100; 4].into(), bytes: 100 << 10, ..RecordedLedger::default() };
        notifier.read(&mut database).unwrap();
        // Each read needs memory for the requested number of notifications of the largest size.
        assert_eq!(database.asked, ["read 1 3", "read 2 1"]);
        assert!(notifier.held() <= notifier.settings.memory);
        let given_back: Vec<bool> = notifier.active_leases.values().map(ActiveLease::is_finished).collect();
        assert_eq!(given_back, [false, false, true, true]);
        // No more subscriptions are leased while their notifications could not be read.
        database.asked.clear();
        notifier.polled_at = None;
        notifier.poll(&mut database).unwrap();
        assert!(!database.asked.iter().any(|asked| asked.starts_with("lease")), "{:?}", database.asked);
        // Once the notifications are answered, their memory is available again.
        notifier.active_leases.clear();
        put(notifier, empty(3));
        database = RecordedLedger { due: [1].into(), ..RecordedLedger::default() };
        notifier.poll(&mut database).unwrap();
        assert!(database.asked.contains(&"read 3 3".into()), "{:?}", database.asked);
    });
    assert_eq!([at_once(0, 0), at_once(0, 1), at_once(LARGEST_DUE, 1), at_once(LARGEST_DUE, 0)], [1, 0, 0, 1]);
    assert_eq!(at_once(usize::MAX, 0), READ_AT_ONCE);
}

#[test]
fn while_a_notification_is_leased_that_ended_a_notifier_half_as_many_are_leased() {
    with(|notifier, _, _jobs| {
        let mut database = RecordedLedger {
            subscriptions: 1,
            like: Some(Leased { lease_limit: Some(6), ..leased(false, 0) }),
            ..RecordedLedger::default()
        };
        notifier.poll(&mut database).unwrap();
        database = RecordedLedger { subscriptions: 1, before: 1, ..RecordedLedger::default() };
        notifier.poll(&mut database).unwrap();
        assert_eq!(database.asked[1], format!("lease 2 for {:?}", notifier.lease));
        put(notifier, full(3));
        database.asked.clear();
        notifier.poll(&mut database).unwrap();
        assert!(!database.asked.iter().any(|asked| asked.starts_with("lease")), "{:?}", database.asked);
    });
}

#[test]
fn what_two_notifiers_have_ended_with_alone_is_not_sent_a_third_time() {
    with(|notifier, _, mut jobs| {
        let like = Some(Leased { lease_limit: Some(0), full: true, failures: 3, ..leased(false, 0) });
        let mut database = RecordedLedger { subscriptions: 1, like, due: [1].into(), ..RecordedLedger::default() };
        notifier.poll(&mut database).unwrap();
        notifier.start_requests();
        assert!(jobs.try_recv().is_err());
        let lease = notifier.active_leases.values().next().unwrap();
        let settlement = notifier.settlement(lease);
        assert_eq!((settlement.attempts.len(), settlement.failures, settlement.alone), (1, 3, true));
        assert_eq!((settlement.lease, settlement.state), (None, None));
    });
}

/// Example: a subscription that is resumed while a request is in flight.
#[test]
fn who_is_leased_again_by_the_same_notifier_is_not_sent_again_what_is_under_way() {
    with(|notifier, answers, mut jobs| {
        let mut lease = full(1);
        lease.next().unwrap();
        lease.mark_lost(true);
        put(notifier, lease);
        notifier.begin(leased(false, 0), Instant::now());
        let mut database = RecordedLedger::default();
        notifier.read(&mut database).unwrap();
        assert_eq!(notifier.active_leases.values().next().unwrap().in_flight.keys().copied().collect::<Vec<_>>(), [1]);
        assert!(jobs.try_recv().is_err());
        let answer = Ok(ReceiverResponse { status: 204, retry_after: None, body: Vec::new(), is_ours: false });
        let (subscription, took) = (Uuid::from_u128(1), Duration::ZERO);
        answers.send(Sent { subscription, position: Some(1), started_at: 0, took, answer }).unwrap();
        notifier.receive_answers(true);
        let lease = notifier.active_leases.values().next().unwrap();
        assert_eq!((lease.requests(), lease.attempts.len()), (0, 1));
    });
}

#[test]
fn after_a_commit_in_doubt_nothing_is_sent_before_each_lease_was_made_longer() {
    with(|notifier, _, mut jobs| {
        put(notifier, full(1));
        notifier.extend_all_leases();
        notifier.start_requests();
        assert!(jobs.try_recv().is_err());
        let mut database = RecordedLedger::default();
        notifier.settle(&mut database).unwrap();
        assert_eq!(database.asked, ["longer 1"]);
        notifier.start_requests();
        assert!(jobs.try_recv().is_ok());
    });
}

/// If one receiver's host is gone, that receiver has failed. If no route leads to any receiver, none has failed.
#[test]
fn an_outage_of_our_own_network_is_no_failure_of_the_receivers() {
    with(|notifier, answers, _jobs| {
        for number in 1..=3 {
            let mut lease = full(number);
            lease.leased.callback_url = format!("https://{number}.example/");
            lease.next().unwrap();
            put(notifier, lease);
            let answer = Err(RequestFailure::Unreachable("connecting: Network is unreachable".into()));
            let (subscription, took) = (Uuid::from_u128(number), Duration::ZERO);
            answers.send(Sent { subscription, position: Some(1), started_at: 0, took, answer }).unwrap();
        }
        notifier.receive_answers(true);
        let failures: Vec<u32> = notifier.active_leases.values().map(|lease| lease.failures).collect();
        assert_eq!(failures, [1, 0, 0]);
        assert!(notifier.active_leases.values().skip(1).all(|lease| lease.attempts.is_empty() && lease.is_finished()));
    });
}
