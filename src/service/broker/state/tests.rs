//! The broker's actions, event by event.

use super::*;
use crate::protocol::{DatabaseState, Logins};

pub(super) const SECOND: Duration = Duration::from_secs(1);

pub(super) const SETTINGS: Settings = Settings {
    worker_wait: Duration::from_secs(30),
    workers: 1,
    max_per_recipient: 2,
    patience: Duration::from_secs(5),
    recipient_delimiter: String::new(),
    mailbox_sessions: 3,
    longest_delivery: Duration::from_mins(4),
    run: 7,
};

/// A broker, and the time as the test sets it.
pub(super) struct Scene {
    pub(super) broker: Broker,
    pub(super) now: Instant,
}

impl Scene {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { broker: Broker::new(SETTINGS, CrashRecords::default(), now), now }
    }

    pub(super) fn with_workers(workers: &[u64]) -> Self {
        let mut scene = Self::new();
        for worker in workers {
            assert_eq!(scene.ready(*worker), []);
        }
        scene
    }

    pub(super) fn handle(&mut self, event: Event) -> Vec<Action> {
        self.broker.handle(event, self.now)
    }

    pub(super) fn ready(&mut self, worker: u64) -> Vec<Action> {
        let pid = i32::try_from(worker).ok();
        self.handle(Event::WorkerReady { connection: ConnectionId(worker), name: b"host/1/x".to_vec(), pid })
    }

    pub(super) fn beat(&mut self, worker: u64) -> Vec<Action> {
        self.handle(Event::WorkerBeat { connection: ConnectionId(worker) })
    }

    pub(super) fn submit(&mut self, id: u64, to: &[&str]) -> Vec<Action> {
        let request = Box::new(request(u128::from(id), to));
        self.handle(Event::Submitted { id: LocalId(id), request, body: Body::Memory(BYTES.to_vec()) })
    }

    pub(super) fn say(&mut self, client: u64, header: &Header) -> Vec<Action> {
        let message = if matches!(header, Header::Deliver(_)) { BYTES } else { b"" };
        self.say_bytes(client, header.frame(message).unwrap())
    }

    pub(super) fn say_bytes(&mut self, client: u64, frame: Vec<u8>) -> Vec<Action> {
        self.handle(Event::ClientSaid { connection: ConnectionId(client), body: frame })
    }

    pub(super) fn reply(&mut self, worker: u64, address: &[u8], frame: Vec<u8>) -> Vec<Action> {
        let connection = ConnectionId(worker);
        self.handle(Event::WorkerAnswered { connection, address: address.to_vec(), body: frame })
    }

    /// Lets this much time pass, one second after the other, while these workers send heartbeats.
    pub(super) fn pass(&mut self, seconds: u64, beating: &[u64]) -> Vec<Action> {
        let mut actions = Vec::new();
        for _ in 0..seconds {
            self.now += SECOND;
            for worker in beating {
                actions.extend(self.beat(*worker));
            }
            actions.extend(self.broker.tick(self.now));
        }
        actions.retain(|action| !matches!(action, Action::Beat { .. }));
        actions
    }
}

pub(super) const BYTES: &[u8] = b"Subject: x\r\n\r\nx\r\n";

pub(super) fn request(id: u128, to: &[&str]) -> Request {
    Request { id: Uuid::from_u128(id), ..Request::to(to, BYTES.len()) }
}

pub(super) fn deliver(id: u128, to: &[&str]) -> Header {
    Header::Deliver(request(id, to))
}

pub(super) fn go(id: u128) -> Header {
    Header::Go { id: Uuid::from_u128(id) }
}

pub(super) fn delivered(id: u128, recipients: usize) -> Header {
    let shown = Verdict::delivered("INBOX appended");
    Header::Reply(Reply {
        id: Uuid::from_u128(id),
        results: vec![shown; recipients],
        leaving: false,
        logins: Logins::default(),
        database: DatabaseState::NotAsked,
    })
}

pub(super) fn leaving(id: u128, recipients: usize) -> Header {
    let Header::Reply(reply) = delivered(id, recipients) else { unreachable!() };
    Header::Reply(Reply { leaving: true, ..reply })
}

pub(super) fn frame(header: &Header) -> Vec<u8> {
    header.frame(b"").unwrap()
}

/// The worker, the address and the request, if this is the only action.
#[track_caller]
pub(super) fn one_work(actions: Vec<Action>) -> (u64, Vec<u8>, Header) {
    match <[Action; 1]>::try_from(actions) {
        Ok([Action::Work { connection, address, body }]) => {
            let (header, message) = Header::read(&body).unwrap();
            assert_eq!(message, BYTES);
            (connection.0, address, header)
        }
        other => panic!("{other:?}"),
    }
}

/// The verdicts for the LMTP server, if this is the only action.
#[track_caller]
pub(super) fn one_answer(actions: Vec<Action>) -> (u64, Vec<String>) {
    match <[Action; 1]>::try_from(actions) {
        Ok([Action::Answer { id, verdicts }]) => (id.0, verdicts.iter().map(Verdict::code).collect()),
        other => panic!("{other:?}"),
    }
}

/// The frames that clients get.
pub(super) fn shown(actions: &[Action]) -> Vec<(u64, Header)> {
    let shown = |action: &Action| match action {
        Action::SendToClient { connection, body, .. } => Some((connection.0, Header::read(body).unwrap().0)),
        _ => None,
    };
    actions.iter().filter_map(shown).collect()
}

pub(super) fn codes(header: &Header) -> Vec<String> {
    let Header::Reply(reply) = header else { panic!("{header:?}") };
    reply.results.iter().map(Verdict::code).collect()
}

#[test]
fn a_message_goes_to_the_worker_that_has_waited_longest_and_its_answer_comes_back() {
    let mut scene = Scene::with_workers(&[1, 2]);
    let (first, address, _) = one_work(scene.submit(10, &["a@x", "b@x"]));
    let (second, ..) = one_work(scene.submit(11, &["c@x"]));
    assert_eq!((first, second), (1, 2));
    assert_eq!(one_answer(scene.reply(1, &address, frame(&delivered(10, 2)))), (10, vec!["2.0.0".into(); 2]));
    let (third, ..) = one_work(scene.submit(12, &["d@x"]));
    assert_eq!(third, 1);
    // The LMTP server counts its own replies.
    assert_eq!(scene.broker.counters().traffics, BTreeMap::new());
    assert_eq!(scene.broker.counters().dispatched, 3);
    assert_eq!(scene.broker.gauges(scene.now), Gauges { in_work: 2, busy: 2, ..Gauges::default() });
}

#[test]
fn a_message_goes_to_the_worker_that_has_the_sessions_of_its_recipients_open() {
    let mut scene = Scene::with_workers(&[1, 2, 3]);
    let mut serve = |id: u64, to: &[&str]| {
        let (worker, address, _) = one_work(scene.submit(id, to));
        assert_eq!(one_answer(scene.reply(worker, &address, frame(&delivered(u128::from(id), to.len())))).0, id);
        worker
    };
    // A new recipient's message goes to the worker that has waited longest. Later messages go to the worker with the recipient's
    // session.
    assert_eq!([serve(10, &["a@x"]), serve(11, &["b@x"]), serve(12, &["a@x"]), serve(13, &["b@x"])], [1, 2, 1, 2]);
    assert_eq!(serve(14, &["c@x", "d@x"]), 3);
    // The worker with the most sessions of the recipients gets the message; of two with the same number, the one that has waited
    // longest.
    assert_eq!([serve(15, &["c@x", "d@x", "a@x"]), serve(16, &["b@x", "a@x"])], [3, 1]);
    // A worker keeps three sessions, and has closed its earliest ones by now.
    assert_eq!([serve(17, &["e@x"]), serve(18, &["e@x", "f@x", "g@x"]), serve(19, &["b@x"])], [2, 2, 1]);
}

#[test]
fn a_message_does_not_wait_for_the_worker_that_has_its_session_while_another_is_ready() {
    let mut scene = Scene::with_workers(&[1, 2]);
    assert_eq!(one_work(scene.submit(10, &["a@x"])).0, 1);
    assert_eq!(one_work(scene.submit(11, &["a@x"])).0, 2);
}

#[test]
fn who_asks_is_reported_whether_anything_is_under_way() {
    let mut scene = Scene::with_workers(&[1, 2]);
    assert!(scene.broker.is_idle());
    let (_, address, _) = one_work(scene.submit(10, &["a@x"]));
    assert!(!scene.broker.is_idle());
    one_answer(scene.reply(1, &address, frame(&delivered(10, 1))));
    assert!(scene.broker.is_idle());
}

#[test]
fn what_is_held_what_waits_and_what_is_at_work_are_counted_apart() {
    let mut scene = Scene::with_workers(&[1]);
    for id in [10, 11, 12] {
        scene.submit(id, &["a@x"]);
    }
    scene.say(5, &deliver(13, &["d@x"]));
    let gauges = Gauges { in_work: 1, queued: 2, held: 1, busy: 1, ..Gauges::default() };
    assert_eq!(scene.broker.gauges(scene.now), gauges);
}

#[test]
fn a_heartbeat_that_is_two_seconds_late_is_counted_each_second_but_not_while_the_broker_itself_did_not_run() {
    let mut scene = Scene::with_workers(&[1, 2]);
    scene.pass(4, &[2]);
    assert_eq!(scene.broker.counters().missed_heartbeats, 3);
    scene.now += 60 * SECOND;
    assert_eq!(scene.broker.tick(scene.now).len(), 2);
    assert_eq!(scene.broker.counters().missed_heartbeats, 3);
}

#[test]
fn a_broker_that_is_a_second_late_each_time_ends_who_is_silent_all_the_same() {
    let mut scene = Scene::with_workers(&[1]);
    one_work(scene.submit(10, &["a@x"]));
    let mut actions = Vec::new();
    for _ in 0..5 {
        scene.now += 2 * SECOND;
        actions.extend(scene.broker.tick(scene.now));
    }
    assert!(actions.contains(&Action::EndWorker { connection: ConnectionId(1), pid: Some(1) }), "{actions:?}");
}

#[test]
fn a_heartbeat_does_not_make_a_worker_ready() {
    let mut scene = Scene::with_workers(&[1]);
    one_work(scene.submit(10, &["a@x"]));
    assert_eq!(scene.submit(11, &["b@x"]), []);
    assert_eq!(scene.beat(1), []);
    // READY during a delivery does not make a worker ready, nor does a heartbeat without a READY before.
    assert_eq!(scene.ready(1), []);
    assert_eq!(scene.beat(9), []);
    assert_eq!(scene.broker.gauges(scene.now).queued, 1);
}

#[test]
fn workers_hear_a_heartbeat_each_second() {
    let mut scene = Scene::with_workers(&[1, 2]);
    let beats = |actions: Vec<Action>| actions.iter().filter(|a| matches!(a, Action::Beat { .. })).count();
    assert_eq!(beats(scene.broker.tick(scene.now)), 0);
    scene.now = scene.broker.next_tick();
    assert_eq!(beats(scene.broker.tick(scene.now)), 2);
    assert_eq!(beats(scene.broker.tick(scene.now)), 0);
}

#[test]
fn a_worker_that_ends_costs_its_message_a_deferral_at_once_and_no_other_worker_gets_it() {
    let mut scene = Scene::with_workers(&[1, 2]);
    one_work(scene.submit(10, &["a@x", "b@x"]));
    let actions = scene.handle(Event::WorkerGone { connection: ConnectionId(1) });
    assert_eq!(one_answer(actions), (10, vec!["4.3.0".into(); 2]));
    assert_eq!(scene.pass(300, &[2]), []);
    assert_eq!(scene.broker.counters().workers_lost, 1);
}

#[test]
fn a_silent_worker_gets_nothing_new_and_is_ended_after_ten_seconds() {
    let mut scene = Scene::with_workers(&[1, 2]);
    let (_, address, _) = one_work(scene.submit(10, &["a@x"]));
    // After three seconds without heartbeats, new messages wait. The delivery in progress is not answered yet.
    assert_eq!(scene.pass(3, &[]), []);
    assert_eq!(scene.submit(11, &["b@x"]), []);
    let gauges = scene.broker.gauges(scene.now);
    assert_eq!((gauges.ready, gauges.silent), (0, 2));
    // The second worker sends a heartbeat, and gets the message.
    let (worker, ..) = one_work(scene.beat(2));
    assert_eq!(worker, 2);
    let actions = scene.pass(7, &[2]);
    assert_eq!(actions[0], Action::EndWorker { connection: ConnectionId(1), pid: Some(1) });
    assert_eq!(one_answer(actions[1..].iter().map(clone).collect()), (10, vec!["4.3.0".into()]));
    // If the late reply still comes, it is dropped.
    assert_eq!(scene.reply(1, &address, frame(&delivered(10, 1))), []);
}

fn clone(action: &Action) -> Action {
    match action {
        Action::Answer { id, verdicts } => Action::Answer { id: *id, verdicts: verdicts.clone() },
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_worker_that_is_back_before_ten_seconds_answers_its_message() {
    let mut scene = Scene::with_workers(&[1]);
    let (_, address, _) = one_work(scene.submit(10, &["a@x"]));
    assert_eq!(scene.pass(9, &[]), []);
    assert_eq!(one_answer(scene.reply(1, &address, frame(&delivered(10, 1)))), (10, vec!["2.0.0".into()]));
}

#[test]
fn no_worker_is_blamed_for_a_time_in_which_the_broker_itself_did_not_run() {
    let mut scene = Scene::with_workers(&[1]);
    one_work(scene.submit(10, &["a@x"]));
    scene.now += 60 * SECOND;
    let actions = scene.broker.tick(scene.now);
    assert_eq!(actions, [Action::Beat { connection: ConnectionId(1) }]);
    // The worker's time counts from then on.
    assert_eq!(scene.pass(9, &[]), []);
    assert_eq!(scene.pass(1, &[]).len(), 2);
}

#[test]
fn a_delivery_that_goes_on_past_its_deadline_is_ended_with_its_worker() {
    let mut scene = Scene::with_workers(&[1]);
    let mut request = Box::new(request(10, &["a@x"]));
    request.time_left_ms = 20_000;
    let body = Body::Memory(BYTES.to_vec());
    one_work(scene.handle(Event::Submitted { id: LocalId(10), request, body }));
    assert_eq!(scene.pass(24, &[1]), []);
    let actions = scene.pass(1, &[1]);
    assert_eq!(actions[0], Action::EndWorker { connection: ConnectionId(1), pid: Some(1) });
    assert_eq!(one_answer(actions[1..].iter().map(clone).collect()), (10, vec!["4.3.0".into()]));
}

#[test]
fn an_address_and_its_extensions_are_one_user() {
    let users = |addresses: &[&str], delimiters: &str| {
        let users = crate::service::broker::job::users(&request(1, addresses), delimiters);
        users.into_iter().collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    };
    assert_eq!(users(&["Doug+1@X", "doug+2@x", "doug@x"], "+"), ["doug@x"]);
    assert_eq!(users(&["doug+1@x", "doug-2@x"], "+-"), ["doug@x"]);
    assert_eq!(users(&["doug+1@x", "doug@x"], ""), ["doug+1@x", "doug@x"]);
    assert_eq!(users(&["no address"], "+"), ["no address"]);
}

#[test]
fn what_waits_for_too_long_is_deferred_by_congestion() {
    let mut scene = Scene::new();
    assert_eq!(scene.submit(10, &["a@x", "b@x"]), []);
    assert_eq!(scene.pass(29, &[]), []);
    assert_eq!(one_answer(scene.pass(1, &[])), (10, vec!["4.4.5".into(); 2]));
    assert_eq!(scene.ready(1), []);
    assert_eq!(scene.broker.counters().waited_too_long, 1);
}

#[test]
fn a_message_with_little_time_waits_for_half_of_it() {
    let mut scene = Scene::new();
    let mut request = Box::new(request(10, &["a@x"]));
    request.time_left_ms = 4_000;
    assert_eq!(scene.handle(Event::Submitted { id: LocalId(1), request, body: Body::Memory(BYTES.to_vec()) }), []);
    assert_eq!(scene.broker.next_tick(), scene.now + SECOND);
    assert_eq!(scene.pass(1, &[]), []);
    assert_eq!(one_answer(scene.pass(1, &[])).1, ["4.4.5"]);
}

#[test]
fn what_it_has_waited_is_taken_off_the_time_of_its_delivery() {
    let mut scene = Scene::new();
    scene.submit(10, &["a@x"]);
    scene.pass(12, &[]);
    let (_, _, header) = one_work(scene.ready(1));
    assert_eq!(header, Header::Deliver(Request { time_left_ms: 228_000, ..request(10, &["a@x"]) }));
    assert_eq!(scene.broker.counters().waits.sum, Duration::from_secs(12));
    // The time never exceeds that of a delivery.
    let mut scene = Scene::with_workers(&[1]);
    let endless = Request { time_left_ms: u64::MAX, ..request(10, &["a@x"]) };
    let body = Body::Memory(BYTES.to_vec());
    let (_, _, header) = one_work(scene.handle(Event::Submitted { id: LocalId(1), request: Box::new(endless), body }));
    assert_eq!(header, Header::Deliver(request(10, &["a@x"])));
}

#[test]
fn no_more_messages_for_one_recipient_are_at_work_than_allowed_and_others_overtake() {
    let mut scene = Scene::with_workers(&[1, 2, 3, 4]);
    let (first, address, _) = one_work(scene.submit(10, &["a@x"]));
    one_work(scene.submit(11, &["A@X", "c@x"]));
    assert_eq!(scene.submit(12, &["a@X", "A@x"]), []);
    assert_eq!(scene.submit(13, &["a@x"]), []);
    let (_, _, overtaking) = one_work(scene.submit(14, &["b@x", "b@X"]));
    assert_eq!(overtaking, deliver(14, &["b@x", "b@X"]));
    // When one delivery ends, the first waiting message starts.
    let actions = scene.reply(first, &address, frame(&delivered(10, 1)));
    let works: Vec<_> = actions.into_iter().filter(|action| matches!(action, Action::Work { .. })).collect();
    assert_eq!(one_work(works).2, deliver(12, &["a@X", "A@x"]));
}

#[test]
fn a_message_to_several_goes_to_the_others_where_one_of_them_has_too_many_at_work() {
    let mut scene = Scene::with_workers(&[1, 2, 3]);
    one_work(scene.submit(10, &["a@x"]));
    one_work(scene.submit(11, &["a@x"]));
    // Most recipients are available soon, so the message waits for a moment, and others overtake it.
    assert_eq!(scene.submit(12, &["d@x", "A@x", "e@x", "a@x"]), []);
    assert_eq!(scene.pass(4, &[1, 2, 3]), []);
    assert_eq!(scene.broker.next_tick(), scene.now + SECOND);
    let (worker, address, header) = one_work(scene.pass(1, &[1, 2, 3]));
    let Header::Deliver(Request { recipients, .. }) = header else { panic!("{header:?}") };
    let recipients: Vec<_> = recipients.into_iter().map(|recipient| recipient.address).collect();
    assert_eq!(recipients, ["d@x", "e@x"]);
    assert_eq!(scene.broker.counters().excluded_recipients, 2);
    // Each recipient has a verdict of its own, in the order of the message.
    let answer = one_answer(scene.reply(worker, &address, frame(&delivered(12, 2))));
    assert_eq!(answer, (12, ["2.0.0", "4.4.5", "2.0.0", "4.4.5"].map(String::from).to_vec()));
    // So a mailbox that hangs occupies no more workers than its limit, no matter who the other recipients are.
    assert_eq!(scene.submit(13, &["a@x", "d@x"]), []);
    let (worker, address, _) = one_work(scene.pass(5, &[1, 2, 3]));
    // A reply with results for recipients that were left out is invalid.
    let mut actions = scene.reply(worker, &address, frame(&delivered(13, 2)));
    assert_eq!(actions.pop(), Some(Action::CloseWorker { connection: ConnectionId(worker) }));
    assert_eq!(one_answer(actions), (13, vec!["4.3.0".into(); 2]));
    assert_eq!(scene.broker.counters().wrong_answers, 1);
}

#[test]
fn a_message_to_several_is_whole_where_its_recipients_have_their_turn_in_time() {
    let mut scene = Scene::with_workers(&[1, 2, 3]);
    let (first, address, _) = one_work(scene.submit(10, &["a@x"]));
    one_work(scene.submit(11, &["a@x"]));
    assert_eq!(scene.submit(12, &["d@x", "a@x"]), []);
    scene.pass(4, &[1, 2, 3]);
    let actions = scene.reply(first, &address, frame(&delivered(10, 1)));
    let works: Vec<_> = actions.into_iter().filter(|action| matches!(action, Action::Work { .. })).collect();
    let Header::Deliver(Request { recipients, .. }) = one_work(works).2 else { panic!("no request") };
    assert_eq!(recipients.len(), 2);
    assert_eq!(scene.broker.counters().excluded_recipients, 0);
}

#[test]
fn a_message_to_those_alone_who_have_too_many_at_work_waits_no_longer_than_one_to_others_too() {
    let mut scene = Scene::with_workers(&[1, 2, 3]);
    let (first, address, _) = one_work(scene.submit(10, &["a@x"]));
    one_work(scene.submit(11, &["a@x"]));
    scene.now += SECOND / 2;
    assert_eq!(scene.submit(12, &["a@x", "A@x"]), []);
    scene.now += SECOND / 2;
    assert_eq!(scene.broker.tick(scene.now).len(), 3);
    assert_eq!(scene.pass(4, &[1, 2, 3]), []);
    let until = scene.broker.next_tick();
    assert_eq!(until, scene.now + SECOND / 2);
    scene.now = until;
    assert_eq!(one_answer(scene.broker.tick(scene.now)), (12, vec!["4.4.5".into(); 2]));
    assert!(scene.broker.next_tick() > scene.now);
    assert_eq!(scene.broker.counters().waited_too_long, 1);
    // The recipient becomes available in time.
    assert_eq!(scene.submit(13, &["a@x"]), []);
    assert_eq!(scene.pass(4, &[1, 2, 3]), []);
    let actions = scene.reply(first, &address, frame(&delivered(10, 1)));
    assert!(matches!(actions[..], [Action::Answer { .. }, Action::Work { .. }]), "{actions:?}");
    // A message without a ready worker waits for a worker.
    scene.submit(14, &["b@x"]);
    assert_eq!(scene.submit(15, &["a@x"]), []);
    assert_eq!(scene.pass(29, &[1, 2, 3]), []);
    assert_eq!(one_answer(scene.pass(1, &[1, 2, 3])).0, 15);
}

/// The message's time to wait for a worker ends before `service.slow_mailbox_timeout` does.
#[test]
fn a_message_to_several_with_little_time_goes_to_the_others_at_the_end_of_it() {
    let mut scene = Scene::with_workers(&[1, 2, 3]);
    one_work(scene.submit(10, &["a@x"]));
    one_work(scene.submit(11, &["a@x"]));
    let request = Box::new(Request { time_left_ms: 4_000, ..request(12, &["d@x", "a@x"]) });
    assert_eq!(scene.handle(Event::Submitted { id: LocalId(12), request, body: Body::Memory(BYTES.to_vec()) }), []);
    let Header::Deliver(Request { recipients, time_left_ms, .. }) = one_work(scene.pass(1, &[1, 2, 3])).2 else {
        panic!("no request")
    };
    assert_eq!((recipients.len(), time_left_ms), (1, 3_000));
}

#[test]
fn the_broker_is_due_when_the_patience_with_a_busy_mailbox_is_over_between_two_heartbeats() {
    let half = SECOND / 2;
    let mut scene = Scene::with_workers(&[1, 2, 3]);
    for id in [10, 11] {
        one_work(scene.submit(id, &["a@x"]));
    }
    scene.now += half;
    assert_eq!(scene.submit(12, &["d@x", "a@x"]), []);
    scene.now += half;
    assert_eq!(scene.broker.tick(scene.now).len(), 3, "a heartbeat for each");
    scene.pass(4, &[1, 2, 3]);
    assert_eq!(scene.broker.next_tick(), scene.now + half);
    // If no worker is ready then, the next action is the next heartbeat.
    one_work(scene.submit(13, &["e@x"]));
    scene.now += half;
    assert_eq!(scene.broker.tick(scene.now), []);
    assert_eq!(scene.broker.next_tick(), scene.now + half);
}

#[test]
fn one_delivery_tells_of_the_database_for_all() {
    let found = |id: u64, database: DatabaseState| {
        let Header::Reply(reply) = delivered(u128::from(id), 1) else { unreachable!() };
        frame(&Header::Reply(Reply { database, ..reply }))
    };
    let mut scene = Scene::with_workers(&[1]);
    let away = DatabaseState::Away("the database cannot be reached".into());
    for (id, says, known) in [
        (10, away, Some("the database cannot be reached")),
        (11, DatabaseState::NotAsked, Some("the database cannot be reached")),
        (12, DatabaseState::There, None),
    ] {
        let (_, address, _) = one_work(scene.submit(id, &["a@x"]));
        one_answer(scene.reply(1, &address, found(id, says)));
        assert_eq!(scene.broker.database_away(), known);
    }
}

#[test]
fn an_answer_that_is_none_puts_the_message_off_and_its_worker_is_disconnected() {
    let request = deliver(10, &["a@x", "b@x"]).frame(BYTES).unwrap();
    let untellable = br#"{"kind":"reply","id":"00000000-0000-0000-0000-00000000000a","results":[{"code":"2.0.0","text":""},{"code":"5.0.0","text":""}]}"#;
    let length = u32::try_from(untellable.len()).unwrap().to_be_bytes();
    let untellable = [&b"MDR1"[..], &length, untellable].concat();
    for wrong in [
        request,
        b"ok".to_vec(),
        frame(&delivered(10, 1)),
        frame(&delivered(10, 3)),
        frame(&delivered(11, 2)),
        frame(&go(10)),
        untellable,
    ] {
        let mut scene = Scene::with_workers(&[1]);
        let (_, address, _) = one_work(scene.submit(10, &["a@x", "b@x"]));
        let mut actions = scene.reply(1, &address, wrong);
        assert_eq!(actions.pop(), Some(Action::CloseWorker { connection: ConnectionId(1) }));
        assert_eq!(one_answer(actions), (10, vec!["4.3.0".into(); 2]));
        assert_eq!(scene.broker.counters().wrong_answers, 1);
        assert_eq!(scene.submit(11, &["c@x"]), []);
        assert_eq!(one_work(scene.ready(2)).0, 2);
    }
}

#[test]
fn a_worker_that_leaves_gets_nothing_more_and_its_connection_is_closed() {
    let close = || Action::CloseWorker { connection: ConnectionId(1) };
    // The worker reports its end with its reply.
    let mut scene = Scene::with_workers(&[1]);
    let (_, address, _) = one_work(scene.submit(10, &["a@x"]));
    let actions = scene.reply(1, &address, frame(&leaving(10, 1)));
    assert!(matches!(actions.as_slice(), [Action::Answer { .. }, last] if *last == close()), "{actions:?}");
    assert_eq!(scene.submit(11, &["a@x"]), []);
    // The worker reports its end while it is idle.
    let mut scene = Scene::with_workers(&[1]);
    assert_eq!(scene.reply(1, b"leaving", frame(&leaving(0, 0))), [close()]);
    assert_eq!(scene.submit(11, &["a@x"]), []);
    // The worker reports its end while a message is on its way. It still delivers that message.
    let mut scene = Scene::with_workers(&[1]);
    let (_, address, _) = one_work(scene.submit(10, &["a@x"]));
    assert_eq!(scene.reply(1, b"leaving", frame(&leaving(0, 0))), []);
    let actions = scene.reply(1, &address, frame(&delivered(10, 1)));
    assert!(matches!(actions.as_slice(), [Action::Answer { .. }, last] if *last == close()), "{actions:?}");
}

#[test]
fn an_answer_to_the_broker_before_this_one_is_nobodys() {
    let mut scene = Scene::with_workers(&[1]);
    let (_, address, _) = one_work(scene.submit(10, &["a@x"]));
    let other = [&6_u64.to_be_bytes()[..], &address[8..]].concat();
    assert_eq!(scene.reply(1, &other, frame(&delivered(10, 1))), []);
    assert_eq!(one_answer(scene.reply(1, &address, frame(&delivered(10, 1)))).0, 10);
}

#[test]
fn a_broker_that_is_stopped_delivers_what_waits_while_there_are_workers_and_defers_the_rest() {
    let mut scene = Scene::with_workers(&[1]);
    let (_, first, _) = one_work(scene.submit(10, &["a@x"]));
    scene.submit(11, &["b@x"]);
    scene.say(5, &deliver(12, &["c@x"]));
    // A request without GO is deferred.
    let actions = scene.handle(Event::Stop);
    assert_eq!(actions.len(), 1);
    assert_eq!(shown(&actions).iter().map(|(_, header)| codes(header)).collect::<Vec<_>>(), [["4.3.2"]]);
    let actions = scene.reply(1, &first, frame(&delivered(10, 1)));
    let [Action::Answer { .. }, Action::Work { address, .. }] = actions.as_slice() else { panic!("{actions:?}") };
    // The LMTP server was just receiving this message.
    assert_eq!(scene.submit(13, &["d@x"]), []);
    let actions = scene.reply(1, address, frame(&leaving(11, 1)));
    let answers: Vec<_> = actions.iter().filter(|action| matches!(action, Action::Answer { .. })).map(clone).collect();
    assert_eq!(answers.len(), 2);
    assert_eq!(one_answer(answers[1..].iter().map(clone).collect()), (13, vec!["4.3.2".into()]));
    assert!(scene.broker.is_idle());
}
