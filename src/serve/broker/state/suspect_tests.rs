//! Messages that end workers, event by event.

use super::tests::{BYTES, SETTINGS, Scene, delivered, frame, go, one_answer, one_work, request, told};
use super::*;
use crate::handover::Source;
use crate::handover::control::End;
use crate::queue::Suspect;
use crate::serve::suspects::Loss;

const ABORT: End = End::Signal(signal_hook::consts::SIGABRT);

impl Scene {
    /// A broker that is to have four workers.
    fn of_several() -> Self {
        let now = Instant::now();
        Self { broker: Broker::new(Settings { workers: 4, ..SETTINGS }, Suspects::default(), now), now }
    }

    /// A worker that had a message ends so: what its asker is told, and the master's notice of it.
    fn die(&mut self, worker: u64, end: End, by_us: bool) -> Vec<Action> {
        let answered = self.handle(Event::WorkerGone { connection: ConnectionId(worker) });
        self.notice(worker, end, by_us);
        answered
    }

    fn notice(&mut self, worker: u64, end: End, by_us: bool) {
        let said = vec!["a suspect's delivery comes to: lock".to_owned(), "it overflowed".to_owned()];
        let pid = u32::try_from(worker).unwrap();
        assert_eq!(self.handle(Event::ProcessEnded(WorkerEnd { pid, end, by_us, said })), []);
    }

    /// The message kills this worker, which has had no message before, and that is decided.
    fn killed(&mut self, worker: u64, id: u64) {
        self.ready(worker);
        let got = one_work(self.hand(id, &["a@x"])).0;
        assert_eq!(got, worker);
        assert_eq!(one_answer(self.die(worker, ABORT, false)), (id, vec!["4.3.0".into()]));
        assert_eq!(self.pass(10, &[]), []);
    }

    /// Hands another message over, which goes to a worker: its address.
    fn hand_another(&mut self, id: u64) -> Vec<u8> {
        let actions = self.another(id);
        let [Action::Work { address, .. }] = &actions[..] else { panic!("{actions:?}") };
        address.clone()
    }

    /// Two workers that have each delivered a message, the first of them longer ago.
    fn two_used_workers(&mut self, workers: [u64; 2]) {
        let addresses = workers.map(|worker| {
            self.ready(worker);
            self.hand_another(20 + worker)
        });
        for (worker, address) in workers.iter().zip(addresses) {
            one_answer(self.reply(*worker, &address, frame(&delivered(u128::from(20 + worker), 1))));
        }
    }

    fn another(&mut self, id: u64) -> Vec<Action> {
        self.another_to(id, "b@x")
    }

    fn another_to(&mut self, id: u64, to: &str) -> Vec<Action> {
        let request = Box::new(Request { size: 3, ..request(id.into(), &[to]) });
        self.handle(Event::Handed { id: LocalId(id), request, body: Body::Memory(b"x\r\n".to_vec()) })
    }

    fn orders(&mut self) -> Vec<Order> {
        self.broker.orders()
    }

    /// What is remembered of the one message.
    fn remembered(&mut self) -> Suspect {
        let remembered = |order| match order {
            Order::Remember(digest, suspect) if digest == Digest::of(BYTES) => Some(suspect),
            _ => None,
        };
        self.orders().into_iter().filter_map(remembered).next_back().expect("something is remembered")
    }
}

/// What a message is told that gets no worker.
#[track_caller]
fn refusal(actions: Vec<Action>) -> String {
    match <[Action; 1]>::try_from(actions) {
        Ok([Action::Answer { verdicts, .. }]) => verdicts[0].to_string(),
        other => panic!("{other:?}"),
    }
}

fn copy() -> (Digest, Shunted) {
    let shunted =
        Shunted { size: BYTES.len() as u64, since: 0, set_aside_at: 0, deaths: Vec::new(), envelopes: Vec::new() };
    (Digest::of(BYTES), shunted)
}

#[test]
fn after_one_death_the_next_try_has_a_new_worker_which_is_replaced_afterwards() {
    let mut scene = Scene::new();
    scene.killed(1, 10);
    let suspect = scene.remembered();
    assert_eq!((suspect.counted, suspect.deaths.len()), (1, 1));
    let standing = scene.broker.standing(scene.now);
    assert_eq!((standing.suspects, standing.tried_alone), (1, 1));
    let death = &suspect.deaths[0];
    assert_eq!((death.signal, death.pid, death.stage.as_deref()), (6, 1, Some("lock")));
    assert_eq!(death.said[1], "it overflowed");

    // One that has had another message is not new: it makes way for one that is.
    scene.ready(2);
    let address = scene.hand_another(11);
    one_answer(scene.reply(2, &address, frame(&delivered(11, 1))));
    let actions = scene.hand(12, &["a@x"]);
    assert_eq!(actions, [Action::RetireWorker { connection: ConnectionId(2), pid: 2 }]);
    // Nothing more of the kind while the new one is on its way, and what it leaves is nobody's doing.
    assert_eq!(scene.pass(2, &[]), []);
    let leaves = scene.reply(2, b"leaving", super::tests::leaving(0, 0).frame(b"").unwrap());
    assert_eq!(leaves, [Action::CloseWorker { connection: ConnectionId(2) }]);
    let (worker, address, header) = one_work(scene.ready(3));
    assert_eq!(worker, 3);
    assert!(matches!(header, Header::Deliver(Request { suspect: true, .. })), "it says how far it comes");
    let actions = scene.reply(3, &address, frame(&delivered(12, 1)));
    let [Action::Answer { .. }, Action::RetireWorker { connection: ConnectionId(3), pid: 3 }] = actions[..] else {
        panic!("{actions:?}")
    };
    // It is delivered: any other try is as any other message's.
    assert!(matches!(scene.orders()[..], [.., Order::Forget(_), Order::Delivered { .. }]));
    scene.ready(4);
    let (_, _, header) = one_work(scene.hand(13, &["a@x"]));
    assert!(matches!(header, Header::Deliver(Request { suspect: false, .. })));
}

#[test]
fn after_two_it_is_set_aside_answered_at_once_and_tried_once_an_hour() {
    let mut scene = Scene::new();
    scene.killed(1, 10);
    scene.killed(2, 11);
    let orders = scene.orders();
    let Some(Order::SetAside(digest, shunted, Body::Memory(bytes))) = orders.last() else { panic!("{orders:?}") };
    assert_eq!((*digest, bytes.as_slice()), (Digest::of(BYTES), BYTES));
    assert_eq!((shunted.deaths.len(), shunted.envelopes[0].recipients[0].address.as_str()), (2, "a@x"));
    assert_eq!(scene.handle(Event::Copies(vec![copy()])), []);
    let standing = scene.broker.standing(scene.now);
    assert_eq!((standing.suspects, standing.tried_alone, standing.shunted), (1, 0, 1));
    assert_eq!(standing.oldest_shunted, Some(shunted.since));

    // No worker, though one waits; and what it came with this time is kept as well.
    scene.ready(3);
    let text = refusal(scene.hand(12, &["b@x"]));
    assert!(text.starts_with("4.3.0 set aside: it has ended 2 workers"), "{text}");
    assert!(matches!(&scene.orders()[..], [Order::SetAside(_, s, _)] if s.envelopes[0].recipients[0].address == "b@x"));
    let frame_of_it = Header::Deliver(request(20, &["a@x"]));
    let actions = scene.say(50, &frame_of_it);
    assert!(matches!(&told(&actions)[..], [(50, Header::Reply(_))]), "{actions:?}");
    assert_eq!(scene.say(50, &go(20)), [Action::CloseClient { connection: ConnectionId(50) }]);
    let counters = scene.broker.counters();
    assert_eq!((counters.set_aside, counters.refused_as_set_aside), (1, 2));
    // Others flow.
    scene.hand_another(13);

    // Since its last try, an hour; then one try has a worker, and a second one none.
    scene.pass(3600 - 31, &[3]);
    assert!(refusal(scene.hand(14, &["a@x"])).contains("set aside"));
    scene.pass(31, &[3]);
    scene.ready(4);
    let (worker, ..) = one_work(scene.hand(15, &["a@x"]));
    assert_eq!(worker, 4);
    assert!(refusal(scene.hand(16, &["a@x"])).contains("set aside"));
    one_answer(scene.die(4, ABORT, false));
    scene.pass(10, &[3]);
    assert_eq!(scene.remembered().counted, 3);
    assert!(refusal(scene.hand(17, &["a@x"])).contains("it has ended 3 workers"));

    // Repaired.
    scene.pass(3600, &[3]);
    scene.ready(5);
    let (_, address, _) = one_work(scene.hand(18, &["a@x"]));
    scene.orders();
    scene.reply(5, &address, frame(&delivered(18, 1)));
    let orders = scene.orders();
    let [Order::Remember(_, suspect), Order::Delivered { to, .. }] = &orders[..] else { panic!("{orders:?}") };
    assert_eq!((suspect.counted, to.as_slice()), (0, &["a@x".to_owned()][..]));
    // The copy is kept for b@x, whose try is as any other's now.
    scene.ready(6);
    let (_, address, _) = one_work(scene.hand(19, &["b@x"]));
    scene.reply(6, &address, frame(&delivered(19, 1)));
    assert!(matches!(&scene.orders()[..], [Order::Remember(..), Order::Delivered { to, .. }] if to == &["b@x"]));
    scene.handle(Event::Copies(Vec::new()));
    assert!(matches!(scene.orders()[..], [Order::Forget(_)]));
    assert!(scene.broker.suspects().is_empty());
}

#[test]
fn what_ends_a_worker_from_outside_is_not_the_messages_doing() {
    let table = [
        ("SIGKILL", End::Signal(9), false),
        ("SIGTERM", End::Signal(15), false),
        ("SIGKILL by the master", End::Signal(9), true),
        ("SIGABRT of one that the master has told to end", ABORT, true),
        ("an exit status", End::Exit(6), false),
    ];
    for (what, end, by_us) in table {
        let mut scene = Scene::with_workers(&[1]);
        one_work(scene.hand(10, &["a@x"]));
        one_answer(scene.die(1, end, by_us));
        scene.pass(30, &[]);
        assert!(scene.orders().is_empty() && scene.broker.suspects().is_empty(), "{what}");
    }
    // Killed by the broker, for it was silent, whatever it then died of.
    let mut scene = Scene::with_workers(&[1]);
    one_work(scene.hand(10, &["a@x"]));
    scene.pass(10, &[]);
    scene.die(1, ABORT, false);
    scene.pass(30, &[]);
    assert!(scene.broker.suspects().is_empty());
}

#[test]
fn the_masters_notice_may_come_before_the_connection_ends_or_never() {
    let mut scene = Scene::with_workers(&[1]);
    one_work(scene.hand(10, &["a@x"]));
    scene.notice(1, ABORT, false);
    assert!(scene.broker.suspects().is_empty());
    one_answer(scene.handle(Event::WorkerGone { connection: ConnectionId(1) }));
    scene.pass(10, &[]);
    assert_eq!(scene.remembered().counted, 1);

    let mut scene = Scene::with_workers(&[1]);
    one_work(scene.hand(10, &["a@x"]));
    one_answer(scene.handle(Event::WorkerGone { connection: ConnectionId(1) }));
    scene.pass(60, &[]);
    // Another process has this number by now, and dies without a message.
    scene.notice(1, ABORT, false);
    scene.pass(10, &[]);
    assert!(scene.broker.suspects().is_empty());
}

#[test]
fn several_deaths_at_once_count_against_nobody_and_each_is_tried_alone_then() {
    let mut scene = Scene::with_workers(&[1, 2]);
    one_work(scene.hand(10, &["a@x"]));
    scene.hand_another(11);
    scene.die(1, ABORT, false);
    scene.die(2, ABORT, false);
    scene.pass(10, &[]);
    assert_eq!(scene.remembered().counted, 0);

    // Both come back at once. The second waits until it is known what the first has done.
    scene.ready(3);
    scene.ready(4);
    one_work(scene.hand(12, &["a@x"]));
    assert_eq!(scene.another(13), []);
    one_answer(scene.die(3, ABORT, false));
    assert_eq!(scene.pass(9, &[4]), []);
    let actions = scene.pass(1, &[4]);
    let [Action::Work { connection: ConnectionId(4), .. }] = actions[..] else { panic!("{actions:?}") };
    assert_eq!(scene.remembered().counted, 1);
}

#[test]
fn the_copy_is_of_the_death_that_it_is_kept_for_however_late_that_is_decided() {
    let (mut suspects, began) = (Suspects::default(), Instant::now());
    let mut dies = |pid: u32, now: Instant| {
        let (request, body) = (Box::new(request(u128::from(pid), &["a@x"])), Body::Memory(BYTES.to_vec()));
        let loss = Loss { pid: i32::try_from(pid).unwrap(), request, body };
        suspects.connection_ended(loss.pid, Some(loss), now);
        suspects.process_ended(WorkerEnd { pid, end: ABORT, by_us: false, said: Vec::new() }, false, now);
    };
    dies(1, began);
    dies(2, began + Duration::from_secs(10));
    suspects.pass(began + Duration::from_secs(11));
    suspects.pass(began + Duration::from_secs(20));
    assert!(matches!(suspects.orders().last(), Some(Order::SetAside(_, _, Body::Memory(bytes))) if bytes == BYTES));
    assert_eq!(suspects.times_set_aside(), 1);
}

fn retired(worker: u64) -> Action {
    Action::RetireWorker { connection: ConnectionId(worker), pid: i32::try_from(worker).unwrap() }
}

#[test]
fn one_worker_makes_way_for_a_suspect_and_no_other_one_until_a_new_one_is_there() {
    let mut scene = Scene::of_several();
    scene.killed(1, 10);
    scene.two_used_workers([2, 3]);
    assert_eq!(scene.hand(12, &["a@x"]), [retired(2)]);
    assert_eq!(scene.handle(Event::WorkerGone { connection: ConnectionId(2) }), []);
    // None begins: the suspect comes again and again, and others go on.
    for id in 12..16 {
        let address = scene.hand_another(id + 100);
        one_answer(scene.reply(3, &address, frame(&delivered((id + 100).into(), 1))));
        assert_eq!(one_answer(scene.pass(300, &[3])), (id, vec!["4.4.5".into()]));
        assert_eq!(scene.hand(id + 1, &["a@x"]), []);
    }
    let (worker, address, _) = one_work(scene.ready(4));
    assert_eq!(worker, 4);
    let actions = scene.reply(4, &address, frame(&delivered(16, 1)));
    assert!(matches!(&actions[..], [Action::Answer { .. }, last] if *last == retired(4)), "{actions:?}");
}

#[test]
fn the_last_worker_of_several_is_not_replaced_for_a_suspect() {
    let mut scene = Scene::of_several();
    scene.killed(1, 10);
    // It is new itself.
    scene.ready(2);
    let (_, address, _) = one_work(scene.hand(11, &["a@x"]));
    one_answer(scene.reply(2, &address, frame(&deferred(11))));
    assert_eq!(scene.hand(12, &["a@x"]), []);
    let address = scene.hand_another(13);
    one_answer(scene.reply(2, &address, frame(&delivered(13, 1))));
    // As soon as there is another one.
    assert_eq!(one_work(scene.ready(3)).0, 3);
}

#[test]
fn one_that_is_about_to_end_is_no_other_worker() {
    let mut scene = Scene::of_several();
    scene.killed(1, 10);
    scene.two_used_workers([2, 3]);
    assert_eq!(scene.hand(12, &["a@x"]), [retired(2)]);
    assert_eq!(scene.handle(Event::WorkerGone { connection: ConnectionId(3) }), []);
    let (worker, address, _) = one_work(scene.ready(4));
    assert_eq!(worker, 4);
    // It would be replaced, if it were not the only one that stays.
    one_answer(scene.reply(4, &address, frame(&delivered(12, 1))));
}

/// It is deferred, and stays a suspect.
fn deferred(id: u128) -> Header {
    let Header::Reply(reply) = delivered(id, 1) else { unreachable!() };
    let results = vec![Told::from(&Verdict::deferred(StatusDetail::SYSTEM, "not now"))];
    Header::Reply(Reply { results, ..reply })
}

#[test]
fn the_next_suspect_waits_until_the_worker_of_the_last_one_is_replaced() {
    let mut scene = Scene::of_several();
    scene.killed(1, 10);
    scene.ready(2);
    scene.ready(3);
    let (_, address, _) = one_work(scene.hand(11, &["a@x"]));
    assert_eq!(scene.hand(12, &["a@x"]), []);
    let actions = scene.reply(2, &address, frame(&deferred(11)));
    assert!(matches!(&actions[..], [Action::Answer { .. }, last] if *last == retired(2)), "{actions:?}");
    assert_eq!(scene.handle(Event::WorkerGone { connection: ConnectionId(2) }), []);
    // Nothing is kept for it meanwhile.
    let address = scene.hand_another(13);
    one_answer(scene.reply(3, &address, frame(&delivered(13, 1))));
    assert_eq!(one_work(scene.ready(4)).0, 4);
}

#[test]
fn one_new_worker_is_kept_for_a_suspect_that_waits_and_others_have_the_rest() {
    let mut scene = Scene::of_several();
    scene.killed(1, 10);
    scene.ready(2);
    let address = scene.hand_another(11);
    scene.ready(3);
    scene.hand_another(12);
    // Its recipient has as many at work as one may have.
    assert_eq!(scene.hand(13, &["b@x"]), []);
    assert_eq!((scene.ready(4), scene.ready(5)), (vec![], vec![]));
    let actions = scene.another_to(14, "c@x");
    assert!(matches!(actions[..], [Action::Work { connection: ConnectionId(4), .. }]), "{actions:?}");
    assert_eq!(scene.another_to(15, "d@x"), []);
    let actions = scene.reply(2, &address, frame(&delivered(11, 1)));
    let to = actions.iter().filter_map(|action| match action {
        Action::Work { connection, .. } => Some(connection.0),
        _ => None,
    });
    assert_eq!(to.collect::<BTreeSet<_>>(), [2, 5].into(), "{actions:?}");
}

#[test]
fn a_message_that_ends_two_workers_at_which_it_was_at_once_is_set_aside_for_an_hour_to_the_second() {
    let mut scene = Scene::with_workers(&[1, 2]);
    scene.hand(10, &["a@x"]);
    scene.hand(11, &["a@x"]);
    let keeps_a_copy = |scene: &mut Scene| scene.orders().iter().any(|order| matches!(order, Order::SetAside(..)));
    one_answer(scene.die(1, ABORT, false));
    assert_eq!(scene.pass(10, &[2]), []);
    assert!(!keeps_a_copy(&mut scene), "one death is not enough");
    assert_eq!(scene.broker.counters().set_aside, 0);
    one_answer(scene.die(2, ABORT, false));
    assert_eq!(scene.pass(10, &[]), []);
    assert!(keeps_a_copy(&mut scene));
    scene.ready(3);
    scene.pass(3599, &[3]);
    assert!(refusal(scene.hand(12, &["a@x"])).contains("set aside"));
    scene.pass(1, &[3]);
    assert_eq!(one_work(scene.hand(13, &["a@x"])).0, 3);
}

#[test]
fn the_masters_notice_and_the_end_of_the_connection_are_waited_for_ten_seconds() {
    // While it is open what another worker died of, no suspect is tried.
    let mut scene = Scene::new();
    scene.killed(1, 10);
    scene.ready(2);
    scene.hand_another(11);
    one_answer(scene.handle(Event::WorkerGone { connection: ConnectionId(2) }));
    scene.ready(3);
    assert_eq!(scene.hand(12, &["a@x"]), []);
    assert_eq!(scene.pass(9, &[3]), []);
    assert_eq!(one_work(scene.pass(1, &[3])).0, 3);
    // A connection that goes on does not belong to the process that has ended.
    let mut scene = Scene::with_workers(&[1]);
    scene.hand(10, &["a@x"]);
    scene.notice(1, ABORT, false);
    scene.pass(10, &[1]);
    one_answer(scene.handle(Event::WorkerGone { connection: ConnectionId(1) }));
    assert!(scene.orders().is_empty());
}

#[test]
fn a_silent_worker_is_not_the_one_that_makes_way() {
    let mut scene = Scene::new();
    scene.killed(1, 10);
    scene.two_used_workers([2, 3]);
    assert_eq!(scene.pass(3, &[3]), []);
    assert_eq!(scene.hand(12, &["a@x"]), [retired(3)]);
}

#[test]
fn a_suspect_does_not_wait_for_ordinary_messages_but_for_another_suspect() {
    let mut scene = Scene::new();
    scene.killed(1, 10);
    scene.ready(2);
    let address = scene.hand_another(11);
    scene.ready(3);
    assert_eq!(one_work(scene.hand(12, &["a@x"])).0, 3);
    one_answer(scene.reply(2, &address, frame(&delivered(11, 1))));
    assert_eq!(scene.hand(13, &["a@x"]), []);
}

#[test]
fn an_ordinary_message_does_not_take_the_new_worker_that_a_suspect_waits_for() {
    let mut scene = Scene::new();
    scene.killed(1, 10);
    // Both are there before a worker is, the ordinary one first.
    assert_eq!(scene.another(11), []);
    assert_eq!(scene.hand(12, &["a@x"]), []);
    let (worker, _, header) = one_work(scene.ready(2));
    assert!(worker == 2 && matches!(header, Header::Deliver(Request { suspect: true, .. })));
    let actions = scene.ready(3);
    assert!(matches!(actions[..], [Action::Work { connection: ConnectionId(3), .. }]), "{actions:?}");
}

/// Nor does the second of two that may both begin at the same moment, of which the first has another new one.
#[test]
fn of_two_new_workers_the_ordinary_messages_before_a_suspect_have_one() {
    let mut scene = Scene::of_several();
    scene.killed(1, 10);
    for worker in 2..=5 {
        scene.ready(worker);
    }
    // They have as many at work for one recipient as there may be.
    let hand = |scene: &mut Scene, id: u64, to: &[&str]| {
        let body = format!("{id}\r\n").into_bytes();
        let request = Box::new(Request { size: body.len() as u64, ..request(id.into(), to) });
        scene.handle(Event::Handed { id: LocalId(id), request, body: Body::Memory(body) })
    };
    assert_eq!([11, 12].map(|id| hand(&mut scene, id, &["b@x"]).len()), [1, 1]);
    // So these wait for him, and go to the others after the same time.
    assert_eq!(hand(&mut scene, 13, &["b@x", "c@x"]), []);
    assert_eq!(hand(&mut scene, 14, &["b@x", "d@x"]), []);
    assert_eq!(scene.hand(15, &["b@x", "e@x"]), []);
    let begun = scene.pass(5, &[2, 3, 4, 5]).into_iter().filter_map(|action| match action {
        Action::Work { body, .. } => match Header::read(&body).unwrap().0 {
            Header::Deliver(request) => Some((request.id.as_u128(), request.suspect)),
            other => panic!("{other:?}"),
        },
        _ => None,
    });
    assert_eq!(begun.collect::<Vec<_>>(), [(13, false), (15, true)]);
}

#[test]
fn what_a_person_tries_has_a_worker_at_once() {
    let mut scene = Scene::new();
    scene.killed(1, 10);
    scene.killed(2, 11);
    scene.ready(3);
    let by_hand = Box::new(Request { source: Source::Shunt, ..request(12, &["a@x"]) });
    let actions = scene.handle(Event::Handed { id: LocalId(12), request: by_hand, body: Body::Memory(BYTES.to_vec()) });
    let [Action::Work { .. }] = actions[..] else { panic!("{actions:?}") };
    scene.orders();
    one_answer(scene.die(3, ABORT, false));
    scene.pass(10, &[]);
    // It is no other try of Postfix's: what the copy came with is known.
    assert!(!scene.orders().iter().any(|order| matches!(order, Order::SetAside(..))));
}

#[test]
fn a_refusal_ends_what_somebody_hears_of_and_not_what_a_person_tries() {
    let refused = |id: u64| {
        let refused = Told::from(&Verdict::by_code("5.1.1", "unknown").unwrap());
        frame(&Header::Reply(Reply {
            id: Uuid::from_u128(id.into()),
            results: vec![refused],
            leaving: false,
            logins: Logins::default(),
            database: Found::NotAsked,
        }))
    };
    for (source, ends) in [(Source::Mta, true), (Source::Queue, true), (Source::Shunt, false)] {
        let mut scene = Scene::new();
        scene.killed(1, 10);
        scene.ready(2);
        let request = Box::new(Request { source, ..request(11, &["a@x"]) });
        let event = Event::Handed { id: LocalId(11), request, body: Body::Memory(BYTES.to_vec()) };
        let (_, address, _) = one_work(scene.handle(event));
        scene.reply(2, &address, refused(11));
        assert_eq!(scene.broker.suspects().is_empty(), ends, "{source:?}");
    }
}

#[test]
fn a_new_front_knows_what_the_one_before_it_has_written_down() {
    let mut scene = Scene::new();
    scene.killed(1, 10);
    let suspect = scene.remembered();
    let again = |suspect: Suspect, copies| {
        let mut scene = Scene::new();
        scene.broker.suspects = Suspects::remembered(vec![(Digest::of(BYTES), suspect)], copies, scene.now);
        scene
    };
    let mut next = again(suspect, Vec::new());
    next.killed(2, 11);
    let orders = next.orders();
    assert!(matches!(orders.last(), Some(Order::SetAside(..))), "{orders:?}");
    let Some(Order::Remember(_, suspect)) = orders.into_iter().rev().nth(1) else { panic!() };

    // The hour goes on. A clock that was set back makes it an hour at most.
    for set_back in [0, 3_600_000_000 * 24 * 365] {
        let mut suspect = suspect.clone();
        suspect.tried_at = suspect.tried_at.map(|at| at + set_back);
        let mut third = again(suspect, vec![copy()]);
        third.ready(3);
        assert!(refusal(third.hand(12, &["a@x"])).contains("set aside"));
        third.pass(3601, &[3]);
        one_work(third.hand(13, &["a@x"]));
    }
    // A copy of which nothing else is remembered, out of a backup, say.
    let mut fourth = Scene::with_workers(&[3]);
    fourth.handle(Event::Copies(vec![copy()]));
    let (_, _, header) = one_work(fourth.hand(12, &["a@x"]));
    assert!(matches!(header, Header::Deliver(Request { suspect: true, .. })));
    assert!(refusal(fourth.hand(13, &["a@x"])).contains("set aside"));
}

#[test]
fn a_service_that_ends_waits_for_no_new_worker() {
    let mut scene = Scene::new();
    scene.killed(1, 10);
    scene.ready(2);
    scene.hand_another(11);
    assert_eq!(scene.hand(12, &["a@x"]), []);
    assert_eq!(one_answer(scene.handle(Event::Stop)), (12, vec!["4.3.2".into()]));
}

#[test]
fn what_has_not_come_back_for_a_month_is_forgotten_but_no_copy_is() {
    let mut scene = Scene::new();
    scene.killed(1, 10);
    let mut suspect = scene.remembered();
    suspect.tried_at = None;
    suspect.deaths[0].at -= 1_000_000 * 3600 * 24 * 31;
    for (copies, forgotten) in [(Vec::new(), true), (vec![copy()], false)] {
        let suspects = vec![(Digest::of(BYTES), suspect.clone())];
        let all = Suspects::remembered(suspects, copies, scene.now);
        assert_eq!(all.is_empty(), forgotten);
    }
}
