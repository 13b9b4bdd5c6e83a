//! Messages that wait although a worker is ready, event by event.

use super::tests::{BYTES, SETTINGS, Scene, delivered, frame, one_answer, one_work, request};
use super::*;
use crate::protocol::DatabaseState;

impl Scene {
    /// A broker with this configured number of workers, all of them ready.
    fn of(workers: usize, settings: Settings) -> Self {
        let now = Instant::now();
        let mut scene =
            Self { broker: Broker::new(Settings { workers, ..settings }, CrashRecords::default(), now), now };
        for worker in 1..=workers as u64 {
            assert_eq!(scene.ready(worker), []);
        }
        scene
    }

    /// A delivery of the message with this queue id. pipe(8) sends one for each recipient.
    fn submit_with_queue_id(&mut self, queue_id: &str, id: u64, to: &[&str]) -> Vec<Action> {
        let request = Box::new(Request { queue_id: Some(queue_id.into()), ..request(u128::from(id), to) });
        self.handle(Event::Submitted { id: LocalId(id), request, body: Body::Memory(BYTES.to_vec()) })
    }
}

/// The one message that goes to a worker, among other actions.
#[track_caller]
fn the_work(actions: Vec<Action>) -> (u64, Vec<u8>, Uuid) {
    let works = actions.into_iter().filter(|action| matches!(action, Action::Work { .. })).collect();
    match one_work(works) {
        (worker, address, Header::Deliver(Request { id, .. })) => (worker, address, id),
        other => panic!("{other:?}"),
    }
}

fn id(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

const FIVE: [&str; 5] = ["a@x", "b@x", "c@x", "d@x", "e@x"];

#[test]
fn a_message_that_comes_once_for_each_recipient_has_two_workers_and_other_mail_overtakes() {
    let mut scene = Scene::of(4, SETTINGS);
    let mut at_work = Vec::new();
    for (number, to) in (10..).zip(FIVE) {
        at_work.extend(scene.submit_with_queue_id("4c1", number, &[to]));
    }
    assert_eq!(at_work.len(), 2);
    let (first, address, _) = the_work(vec![at_work.remove(0)]);
    assert_eq!(scene.broker.gauges(scene.now).queued, 3);
    // Other messages do not wait for this one, with or without a queue id.
    one_work(scene.submit_with_queue_id("4c2", 20, &["a@x"]));
    let (other, others, _) = one_work(scene.submit(21, &["b@x"]));
    // A free worker is for other messages. The next delivery of this message starts when one of its own deliveries has ended.
    one_answer(scene.reply(other, &others, frame(&delivered(21, 1))));
    let actions = scene.reply(first, &address, frame(&delivered(10, 1)));
    assert_eq!(the_work(actions).2, id(12));
}

/// That delivery may hold the message's lock until its deadline, so a second worker would wait in vain.
#[test]
fn of_a_message_one_of_whose_deliveries_takes_long_no_second_one_gets_ready() {
    let mut scene = Scene::of(4, SETTINGS);
    let (_, hangs, _) = the_work(scene.submit_with_queue_id("4c1", 10, &["a@x"]));
    let (second, address, _) = the_work(scene.submit_with_queue_id("4c1", 11, &["b@x"]));
    assert_eq!(scene.submit_with_queue_id("4c1", 12, &["c@x"]), []);
    assert_eq!(scene.pass(5, &[1, 2, 3, 4]), []);
    // It was the second delivery, which did not have the lock.
    assert_eq!(one_answer(scene.reply(second, &address, frame(&delivered(11, 1)))).0, 11);
    assert_eq!(scene.submit_with_queue_id("4c1", 13, &["d@x"]), []);
    // The waiting deliveries are answered in time, and no other message waits for them.
    one_work(scene.submit(20, &["b@x"]));
    assert_eq!(scene.pass(24, &[1, 2, 3, 4]), []);
    assert_eq!(one_answer(scene.pass(1, &[1, 2, 3, 4])), (12, vec!["4.4.5".into()]));
    let actions = scene.reply(1, &hangs, frame(&delivered(10, 1)));
    assert_eq!(the_work(actions).2, id(13));
    assert_eq!(scene.submit_with_queue_id("4c1", 14, &["e@x"]).len(), 1, "two again");
}

#[test]
fn of_two_workers_a_message_has_one_and_of_one_that_one() {
    let mut scene = Scene::of(2, SETTINGS);
    one_work(scene.submit_with_queue_id("4c1", 10, &["a@x"]));
    assert_eq!(scene.submit_with_queue_id("4c1", 11, &["b@x"]), []);
    one_work(scene.submit_with_queue_id("4c2", 12, &["c@x"]));
    let mut scene = Scene::of(1, SETTINGS);
    one_work(scene.submit_with_queue_id("4c1", 10, &["a@x"]));
    // An operator may start more workers manually than are configured.
    scene.ready(2);
    one_work(scene.submit_with_queue_id("4c1", 11, &["b@x"]));
    assert_eq!(scene.submit_with_queue_id("", 12, &["c@x"]), []);
    one_work(scene.ready(3));
}

#[test]
fn a_delivery_whose_worker_is_lost_makes_room_for_the_next_one_of_its_message() {
    let mut scene = Scene::of(3, SETTINGS);
    for (number, to) in (10..).zip(FIVE) {
        scene.submit_with_queue_id("4c1", number, &[to]);
    }
    let actions = scene.handle(Event::WorkerGone { connection: ConnectionId(1) });
    assert_eq!(the_work(actions).2, id(12));
}

const ALL: [u64; 4] = [1, 2, 3, 4];

/// The reply of a worker that got no answer from the mailbox.
fn in_vain(id: u64, database: DatabaseState) -> Vec<u8> {
    let Header::Reply(reply) = delivered(u128::from(id), 1) else { unreachable!() };
    let results = vec![Verdict::deferred(StatusDetail::NO_ANSWER, "the mailbox does not answer")];
    frame(&Header::Reply(Reply { results, database, ..reply }))
}

impl Scene {
    /// For each of these recipients, a worker has a message for this many seconds, and gets no answer from the mailbox.
    fn wait_in_vain(&mut self, for_whom: &[&str], seconds: u64, database: &DatabaseState) {
        for (number, to) in (100..).zip(for_whom) {
            let (worker, address, _) = one_work(self.submit(number, &[to]));
            assert_eq!(self.pass(seconds, &ALL), []);
            one_answer(self.reply(worker, &address, in_vain(number, database.clone())));
        }
    }
}

#[test]
fn recipients_who_have_workers_wait_in_vain_have_half_of_them_together_and_others_the_rest() {
    let mut scene = Scene::of(4, SETTINGS);
    scene.wait_in_vain(&["a@x", "b@x", "c@x"], 20, &DatabaseState::There);
    let (first, address, _) = one_work(scene.submit(10, &["A@x"]));
    one_work(scene.submit(11, &["b@x"]));
    // A third slow recipient waits only as long as a recipient with too many deliveries. Other recipients of the same message get
    // their copies.
    assert_eq!(scene.submit(12, &["c@x"]), []);
    assert_eq!(scene.submit(13, &["c@x", "d@x"]), []);
    let (other, others, _) = one_work(scene.submit(14, &["d@x"]));
    one_answer(scene.reply(other, &others, frame(&delivered(14, 1))));
    assert_eq!(scene.pass(4, &ALL), []);
    let (works, answers) = scene.pass(1, &ALL).into_iter().partition(|action| matches!(action, Action::Work { .. }));
    assert_eq!(one_answer(answers), (12, vec!["4.4.5".into()]));
    let Header::Deliver(Request { recipients, .. }) = one_work(works).2 else { panic!("no request") };
    assert_eq!(recipients.len(), 1);
    // After its delivery, the first recipient is no longer slow, so a third delivery may start.
    assert_eq!(scene.submit(15, &["c@x"]), []);
    let actions = scene.reply(first, &address, frame(&delivered(10, 1)));
    assert_eq!(the_work(actions).2, id(15));
    one_work(scene.submit(16, &["a@x"]));
}

/// A recipient who is not yet known as slow counts once the delivery takes too long.
#[test]
fn a_message_that_has_been_at_work_for_long_counts_as_one_for_somebody_who_is_slow() {
    let mut scene = Scene::of(4, SETTINGS);
    scene.wait_in_vain(&["a@x"], 5, &DatabaseState::There);
    one_work(scene.submit(10, &["b@x"]));
    one_work(scene.submit(11, &["c@x"]));
    assert_eq!(scene.pass(4, &ALL), []);
    let (worker, address, _) = one_work(scene.submit(12, &["a@x"]));
    one_answer(scene.reply(worker, &address, in_vain(12, DatabaseState::There)));
    assert_eq!(scene.pass(1, &ALL), []);
    assert_eq!(scene.submit(13, &["a@x"]), []);
    one_work(scene.submit(14, &["d@x"]));
}

/// The mailbox may be one that is always slow. Its next delivery gets all of the remaining time.
#[test]
fn a_worker_is_reported_of_who_has_had_one_wait_in_vain() {
    let mut scene = Scene::of(4, SETTINGS);
    let shown = |action: Vec<Action>| match one_work(action).2 {
        Header::Deliver(Request { slow, .. }) => slow,
        other => panic!("{other:?}"),
    };
    scene.wait_in_vain(&["a@x"], 20, &DatabaseState::There);
    assert!(shown(scene.submit(10, &["a@x"])));
    assert!(!shown(scene.submit(11, &["b@x"])));
    assert!(!shown(scene.submit(12, &["b@x", "A@x"])), "the other one may be delivered to soon");
}

#[test]
fn what_fails_at_once_or_for_the_databases_sake_or_long_ago_makes_nobody_slow() {
    for (seconds, database, later) in [
        (4, DatabaseState::There, 0),
        (20, DatabaseState::Away("it is away".into()), 0),
        (20, DatabaseState::There, 30 * 60),
    ] {
        let mut scene = Scene::of(4, SETTINGS);
        scene.wait_in_vain(&["a@x", "b@x", "c@x"], seconds, &database);
        assert_eq!(scene.pass(later, &ALL), []);
        for (number, to) in [(10, "a@x"), (11, "b@x"), (12, "c@x")] {
            one_work(scene.submit(number, &[to]));
        }
    }
    // With one worker, there is no share for slow recipients.
    let mut scene = Scene::of(1, SETTINGS);
    scene.wait_in_vain(&["a@x"], 20, &DatabaseState::There);
    one_work(scene.submit(10, &["a@x"]));
}

/// The result says nothing about the mailboxes of recipients that were left out, however long the delivery takes.
#[test]
fn nobody_is_slow_for_a_message_that_has_left_him_out() {
    let mut scene = Scene::of(4, SETTINGS);
    one_work(scene.submit(10, &["a@x"]));
    one_work(scene.submit(11, &["a@x"]));
    assert_eq!(scene.submit(12, &["a@x", "b@x"]), []);
    let (worker, address, _) = one_work(scene.pass(5, &ALL));
    assert_eq!(scene.pass(5, &ALL), []);
    one_answer(scene.reply(worker, &address, in_vain(12, DatabaseState::There)));
    assert_eq!(["a@x", "b@x"].map(|user| scene.broker.slow.contains_key(user)), [false, true]);
}
