//! Messages that crash workers, event by event.

use super::tests::{BYTES, Scene, delivered, frame, go, leaving, one_answer, one_work, request, shown};
use super::*;
use crate::protocol::Source;
use crate::protocol::control::End;
use crate::queue::{CrashedMessage, Digest, Envelope, Recipient};

const ABORT: End = End::Signal(signal_hook::consts::SIGABRT);
const HOUR: u64 = 3600;

impl Scene {
    /// Ends a worker with a message: first its connection, then the master's report. Returns the actions of the first event.
    fn die(&mut self, worker: u64, end: End, by_us: bool) -> Vec<Action> {
        let answered = self.handle(Event::WorkerGone { connection: ConnectionId(worker) });
        self.report(worker, end, by_us);
        answered
    }

    fn report(&mut self, worker: u64, end: End, by_us: bool) {
        let (pid, output) = (u32::try_from(worker).unwrap(), vec!["a line".to_owned(), "it overflowed".to_owned()]);
        assert_eq!(self.handle(Event::ProcessEnded(WorkerEnd { pid, end, by_us, output })), []);
    }

    /// Lets the message crash this new worker.
    fn crash(&mut self, worker: u64, id: u64) {
        self.ready(worker);
        assert_eq!(one_work(self.submit(id, &["a@x"])).0, worker);
        assert_eq!(one_answer(self.die(worker, ABORT, false)), (id, vec!["4.3.0".into()]));
    }

    /// Sends another message, which goes to a worker. Returns its address.
    fn submit_another(&mut self, id: u64) -> Vec<u8> {
        let actions = self.another(id);
        let [Action::Work { address, .. }] = &actions[..] else { panic!("{actions:?}") };
        address.clone()
    }

    fn another(&mut self, id: u64) -> Vec<Action> {
        let request = Box::new(Request { size: 3, ..request(id.into(), &["b@x"]) });
        self.handle(Event::Submitted { id: LocalId(id), request, body: Body::Memory(b"x\r\n".to_vec()) })
    }

    /// A delivery from this source.
    fn submit_from(&mut self, source: Source, id: u64) -> Vec<Action> {
        self.submit_to(source, id, &["a@x"])
    }

    fn submit_to(&mut self, source: Source, id: u64, to: &[&str]) -> Vec<Action> {
        let request = Box::new(Request { source, ..request(id.into(), to) });
        self.handle(Event::Submitted { id: LocalId(id), request, body: Body::Memory(BYTES.to_vec()) })
    }

    fn orders(&mut self) -> Vec<Order> {
        self.broker.orders()
    }

    /// The number of crashes of the message in the last stored record.
    fn counted(&mut self) -> Option<u32> {
        let counted = |order: &Order| match order {
            Order::Crashed { digest, crashes, .. } if *digest == Digest::of(BYTES) => Some(*crashes),
            _ => None,
        };
        self.orders().iter().filter_map(counted).next_back()
    }

    /// The number of suspects, and of messages that were shunted.
    fn figures(&self) -> (usize, u64) {
        (self.broker.gauges(self.now).suspects, self.broker.counters().newly_shunted)
    }
}

/// The reply to a message that gets no worker.
#[track_caller]
fn refusal(actions: Vec<Action>) -> String {
    match <[Action; 1]>::try_from(actions) {
        Ok([Action::Answer { verdicts, .. }]) => verdicts[0].to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn after_one_crash_the_next_try_is_alone_and_its_worker_is_reported_to_end() {
    let mut scene = Scene::new();
    scene.crash(1, 10);
    let orders = scene.orders();
    let [Order::Crashed { digest, crashes: 1, reason, request, body: Body::Memory(bytes) }] = &orders[..] else {
        panic!("{orders:?}")
    };
    assert_eq!((*digest, bytes.as_slice()), (Digest::of(BYTES), BYTES));
    assert_eq!(request.recipients[0].address, "a@x");
    assert_eq!(reason, "worker 1 ended by SIGABRT: it overflowed");
    assert_eq!(scene.figures(), (1, 0));

    scene.ready(3);
    let (worker, address, header) = one_work(scene.submit(12, &["a@x"]));
    assert_eq!(worker, 3);
    assert!(matches!(header, Header::Deliver(Request { suspect: true, .. })), "it ends after this message");
    let actions = scene.reply(3, &address, frame(&leaving(12, 1)));
    let [Action::Answer { .. }, Action::CloseWorker { connection: ConnectionId(3) }] = actions[..] else {
        panic!("{actions:?}")
    };
    // After its delivery, the message is treated like any other.
    assert!(matches!(scene.orders()[..], [Order::Remove(digest)] if digest == Digest::of(BYTES)));
    scene.ready(4);
    let (_, _, header) = one_work(scene.submit(13, &["a@x"]));
    assert!(matches!(header, Header::Deliver(Request { suspect: false, .. })));
}

#[test]
fn after_two_crashes_it_is_shunted_answered_at_once_and_tried_once_an_hour_until_it_is_delivered() {
    let mut scene = Scene::new();
    scene.crash(1, 10);
    scene.crash(2, 11);
    assert_eq!(scene.counted(), Some(2));
    assert_eq!(scene.figures(), (0, 1));

    // The message gets no worker, although one is idle.
    scene.ready(3);
    let text = refusal(scene.submit(12, &["b@x"]));
    assert_eq!(text, format!("4.3.0 shunted: it has crashed 2 workers ({})", Digest::of(BYTES)));
    let actions = scene.say(50, &Header::Deliver(request(20, &["a@x"])));
    assert!(matches!(&shown(&actions)[..], [(50, Header::Reply(_))]), "{actions:?}");
    assert_eq!(scene.say(50, &go(20)), [Action::CloseClient { connection: ConnectionId(50) }]);
    assert_eq!(scene.broker.counters().refused_shunted, 2);
    // Other messages are delivered.
    scene.submit_another(13);

    scene.pass(HOUR - 1, &[3]);
    assert!(refusal(scene.submit(14, &["a@x"])).contains("shunted"));
    scene.pass(1, &[3]);
    scene.ready(4);
    assert_eq!(one_work(scene.submit(15, &["a@x"])).0, 4);
    assert!(refusal(scene.submit(16, &["a@x"])).contains("shunted"));
    one_answer(scene.die(4, ABORT, false));
    assert_eq!(scene.counted(), Some(3));
    assert!(refusal(scene.submit(17, &["a@x"])).contains("it has crashed 3 workers"));

    // Now it no longer crashes.
    scene.pass(HOUR, &[3]);
    scene.ready(5);
    let (_, address, _) = one_work(scene.submit(18, &["a@x"]));
    scene.reply(5, &address, frame(&leaving(18, 1)));
    assert!(matches!(scene.orders()[..], [Order::Remove(digest)] if digest == Digest::of(BYTES)));
    assert!(scene.broker.crashes().is_empty());
}

/// The holder keeps the message for the remaining recipients. If its copy was tried, it may be the only one for them.
#[test]
fn a_copy_goes_once_its_holder_delivers_to_one_recipient_and_stays_where_its_own_try_does_not_deliver_to_all() {
    let partly = |id: u64| {
        let Header::Reply(reply) = leaving(id.into(), 2) else { unreachable!() };
        let results = vec![Verdict::delivered("x"), Verdict::deferred(StatusDetail::SYSTEM, "x")];
        frame(&Header::Reply(Reply { results, ..reply }))
    };
    for (source, goes) in [(Source::Mta, true), (Source::Queue, true), (Source::Shunt, false), (Source::Upgrade, false)]
    {
        let mut scene = Scene::new();
        scene.crash(1, 10);
        scene.crash(2, 11);
        scene.orders();
        scene.pass(HOUR, &[]);
        scene.ready(3);
        let (_, address, _) = one_work(scene.submit_to(source, 12, &["a@x", "b@x"]));
        scene.reply(3, &address, partly(12));
        assert_eq!((scene.broker.crashes().is_empty(), scene.orders().len()), (goes, usize::from(goes)), "{source:?}");
        // The remaining recipients need not wait for an hour.
        scene.ready(4);
        one_work(scene.submit(13, &["b@x"]));
    }
}

#[test]
fn what_ends_a_worker_from_outside_is_no_crash_of_the_message() {
    let table = [
        ("SIGKILL", End::Signal(9), false),
        ("SIGTERM", End::Signal(15), false),
        ("SIGKILL by the master", End::Signal(9), true),
        ("SIGABRT of one that the master has sent a stop signal", ABORT, true),
        ("an exit status", End::Exit(6), false),
    ];
    for (what, end, by_us) in table {
        let mut scene = Scene::with_workers(&[1]);
        one_work(scene.submit(10, &["a@x"]));
        one_answer(scene.die(1, end, by_us));
        assert!(scene.orders().is_empty() && scene.broker.crashes().is_empty(), "{what}");
    }
    // The broker killed the unresponsive worker. The signal that ended it does not matter.
    let mut scene = Scene::with_workers(&[1]);
    one_work(scene.submit(10, &["a@x"]));
    scene.pass(10, &[]);
    scene.die(1, ABORT, false);
    assert!(scene.broker.crashes().is_empty());
    // This worker has no message.
    let mut scene = Scene::with_workers(&[1]);
    scene.die(1, ABORT, false);
    assert!(scene.broker.crashes().is_empty());
}

#[test]
fn the_masters_report_may_come_before_the_connection_ends_or_too_late() {
    let mut scene = Scene::with_workers(&[1]);
    one_work(scene.submit(10, &["a@x"]));
    let (end, output) = (ABORT, Vec::new());
    let report = Event::ProcessEnded(WorkerEnd { pid: 1, end, by_us: false, output });
    assert_eq!(one_answer(scene.handle(report)), (10, vec!["4.3.0".into()]));
    assert_eq!(scene.figures(), (1, 0));
    assert_eq!(scene.handle(Event::WorkerGone { connection: ConnectionId(1) }), []);
    assert_eq!(scene.figures(), (1, 0));

    // Any other end may come after a reply that was not read yet.
    let mut scene = Scene::with_workers(&[1]);
    let (_, address, _) = one_work(scene.submit(10, &["a@x"]));
    scene.report(1, End::Exit(0), false);
    one_answer(scene.reply(1, &address, frame(&delivered(10, 1))));

    let mut scene = Scene::with_workers(&[1]);
    one_work(scene.submit(10, &["a@x"]));
    one_answer(scene.handle(Event::WorkerGone { connection: ConnectionId(1) }));
    scene.pass(10, &[]);
    // By now another process has this id, and dies without a message.
    scene.report(1, ABORT, false);
    assert!(scene.broker.crashes().is_empty());
}

#[test]
fn a_message_that_several_workers_had_at_once_is_shunted_only_by_a_crash_of_its_own_worker() {
    let mut scene = Scene::with_workers(&[1, 2]);
    scene.submit(10, &["a@x"]);
    scene.submit(11, &["b@x"]);
    one_answer(scene.die(1, ABORT, false));
    one_answer(scene.die(2, ABORT, false));
    assert_eq!((scene.counted(), scene.figures()), (Some(1), (1, 0)));
    scene.crash(3, 12);
    assert_eq!(scene.figures(), (0, 1));
}

#[test]
fn suspects_are_tried_one_at_a_time_and_wait_for_no_ordinary_message() {
    let mut scene = Scene::new();
    scene.crash(1, 10);
    scene.ready(2);
    let address = scene.submit_another(11);
    scene.ready(3);
    assert_eq!(one_work(scene.submit(12, &["a@x"])).0, 3);
    scene.ready(4);
    assert_eq!(scene.submit(13, &["c@x"]), []);
    one_answer(scene.reply(2, &address, frame(&delivered(11, 1))));
    let [Action::Answer { .. }, Action::Work { connection, .. }] = scene.die(3, ABORT, false)[..] else { panic!() };
    assert_eq!(connection, ConnectionId(4), "the other one begins once the first has ended");
}

#[test]
fn what_a_person_has_tried_has_a_worker_at_once_and_what_a_new_build_tries_comes_behind_other_mail() {
    let mut scene = Scene::new();
    scene.crash(1, 10);
    scene.crash(2, 11);
    scene.ready(3);
    assert_eq!(one_work(scene.submit_from(Source::Shunt, 12)).0, 3);
    scene.die(3, ABORT, false);
    assert_eq!(scene.counted(), Some(3));

    assert_eq!(scene.submit_from(Source::Upgrade, 13), []);
    assert_eq!(scene.another(14), []);
    let actions = scene.ready(4);
    let [Action::Work { connection: ConnectionId(4), body, .. }] = &actions[..] else { panic!("{actions:?}") };
    let Ok((Header::Deliver(first), _)) = Header::read(body) else { panic!() };
    assert_eq!((first.id, first.suspect), (Uuid::from_u128(14), false));
    assert_eq!(one_work(scene.ready(5)).0, 5);
}

#[test]
fn a_refusal_ends_a_message_for_its_holder_and_not_where_somebody_else_has_it_tried() {
    let refused = |id: u64| {
        let refused = Verdict::by_code("5.1.1", "unknown").unwrap();
        let Header::Reply(reply) = leaving(id.into(), 1) else { unreachable!() };
        frame(&Header::Reply(Reply { results: vec![refused], ..reply }))
    };
    for (source, ends) in [(Source::Mta, true), (Source::Queue, true), (Source::Shunt, false)] {
        let mut scene = Scene::new();
        scene.crash(1, 10);
        scene.ready(2);
        let (_, address, _) = one_work(scene.submit_from(source, 11));
        scene.reply(2, &address, refused(11));
        assert_eq!(scene.broker.crashes().is_empty(), ends, "{source:?}");
    }
}

#[test]
fn a_new_front_knows_what_the_one_before_it_has_written_down() {
    let remembered = |crashes| {
        let mut scene = Scene::new();
        let envelope = Envelope {
            sender: "lisa@gmail.com".into(),
            queued_at: 0,
            injected_by: "the service".into(),
            may_owe_sent: true,
            reason: None,
            size: BYTES.len() as u64,
            origin: None,
            recipients: vec![Recipient { address: "a@x".into(), original: None }],
        };
        let message =
            CrashedMessage { digest: Digest::of(BYTES), crashes, since: 0, changed: 0, file: "/x".into(), envelope };
        scene.broker.crashes = CrashRecords::remembered(vec![message], scene.now);
        scene
    };
    let mut suspect = remembered(1);
    suspect.crash(2, 11);
    assert_eq!((suspect.counted(), suspect.figures()), (Some(2), (0, 1)));

    // The cause of the crashes may be fixed.
    let mut shunted = remembered(5);
    shunted.ready(3);
    let (_, _, header) = one_work(shunted.submit(12, &["a@x"]));
    assert!(matches!(header, Header::Deliver(Request { suspect: true, .. })));
    assert!(refusal(shunted.submit(13, &["a@x"])).contains("it has crashed 5 workers"));
}
