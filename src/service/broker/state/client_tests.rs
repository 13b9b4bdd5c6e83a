//! Requests of clients, event by event.

use super::tests::{Scene, codes, deliver, delivered, frame, go, one_work, request, shown};
use super::*;
use crate::service::inflight_message::MessageFile;

impl Scene {
    /// The replies to clients, counted by code.
    fn replies(&self, via: &str) -> Vec<(&str, u64)> {
        let traffic = self.broker.counters().traffics.get(via).into_iter();
        traffic.flat_map(|traffic| &traffic.replies).map(|(code, number)| (code.as_str(), *number)).collect()
    }
}

#[test]
fn who_says_go_for_a_request_that_is_not_there_is_cut_off_at_once() {
    let mut scene = Scene::with_workers(&[1]);
    assert_eq!(scene.say(9, &go(5)), [Action::CloseClient { connection: ConnectionId(9) }]);
}

#[test]
fn a_clients_request_waits_for_its_word() {
    let mut scene = Scene::with_workers(&[1]);
    let actions = scene.say(5, &deliver(10, &["a@x"]));
    assert_eq!(shown(&actions), [(5, Header::Received { id: Uuid::from_u128(10) })]);
    assert_eq!(actions.len(), 1);
    let (_, address, _) = one_work(scene.say(5, &go(10)));
    assert_eq!(scene.say(5, &go(10)), []);
    assert_eq!(shown(&scene.reply(1, &address, frame(&delivered(10, 1)))), [(5, delivered(10, 1))]);
    assert_eq!(scene.reply(1, &address, frame(&delivered(10, 1))), []);
    assert_eq!(scene.broker.counters().late_answers, 1);
    assert_eq!(scene.say(5, &go(10)), [Action::CloseClient { connection: ConnectionId(5) }]);
}

#[test]
fn a_message_in_a_file_has_its_file_until_it_is_answered_or_its_client_has_left() {
    let folder = tempfile::tempdir().unwrap();
    let mut scene = Scene::with_workers(&[1]);
    let [first, second] = ["1", "2"].map(|name| folder.path().join(name));
    for (connection, path) in [(5, &first), (6, &second)] {
        let body = Body::File(MessageFile::create(path.clone()).unwrap());
        let request = Box::new(Request { file: Some(path.clone()), ..request(10, &["a@x"]) });
        let connection = ConnectionId(connection);
        let actions = scene.handle(Event::ClientDelivers { connection, request, body });
        assert_eq!(shown(&actions), [(connection.0, Header::Received { id: Uuid::from_u128(10) })]);
    }
    assert_eq!(scene.handle(Event::ClientGone { connection: ConnectionId(6) }), []);
    assert!(first.exists() && !second.exists());
    let actions = scene.say(5, &go(10));
    let [Action::Work { address, body, .. }] = &actions[..] else { panic!("{actions:?}") };
    let Ok((Header::Deliver(request), message)) = Header::read(body) else { panic!("{body:?}") };
    assert_eq!((request.file.as_deref(), message), (Some(first.as_path()), &b""[..]));
    assert_eq!(shown(&scene.reply(1, address, frame(&delivered(10, 1)))), [(5, delivered(10, 1))]);
    assert!(!first.exists());
}

#[test]
fn a_request_whose_client_never_lets_it_begin_is_deferred() {
    let mut scene = Scene::with_workers(&[1]);
    scene.say(5, &deliver(10, &["a@x"]));
    assert_eq!(scene.broker.gauges(scene.now).held, 1);
    let actions = scene.pass(240, &[1]);
    assert_eq!(shown(&actions).iter().map(|(_, header)| codes(header)).collect::<Vec<_>>(), [["4.4.5"]]);
    assert_eq!(scene.say(5, &go(10)), [Action::CloseClient { connection: ConnectionId(5) }]);
}

#[test]
fn what_a_client_leaves_behind_before_it_began_is_dropped() {
    let mut scene = Scene::new();
    for id in [10, 11, 12] {
        scene.say(u64::try_from(id).unwrap(), &deliver(id, &["a@x"]));
    }
    scene.say(10, &go(10));
    for connection in [10, 11, 12].map(ConnectionId) {
        assert_eq!(scene.handle(Event::ClientGone { connection }), []);
    }
    assert_eq!(scene.ready(1), []);
    assert_eq!(scene.broker.gauges(scene.now), Gauges { ready: 1, ..Gauges::default() });
    assert_eq!(scene.broker.counters().dropped, 3);
}

#[test]
fn a_delivery_that_has_begun_goes_on_without_its_client() {
    let mut scene = Scene::with_workers(&[1]);
    scene.say(5, &deliver(10, &["a@x"]));
    let (_, address, _) = one_work(scene.say(5, &go(10)));
    assert_eq!(scene.handle(Event::ClientGone { connection: ConnectionId(5) }), []);
    assert_eq!(scene.reply(1, &address, frame(&delivered(10, 1))), []);
    assert_eq!(scene.replies("command"), [], "nobody got a reply");
}

/// A client retries on a new connection. The broker may read the frames of the old one later.
#[test]
fn a_request_that_is_sent_again_begins_by_the_word_of_its_own_connection_alone() {
    let mut scene = Scene::with_workers(&[1, 2]);
    for connection in [6, 5] {
        let received = Header::Received { id: Uuid::from_u128(10) };
        assert_eq!(shown(&scene.say(connection, &deliver(10, &["a@x"]))), [(connection, received)]);
    }
    let (_, address, _) = one_work(scene.say(6, &go(10)));
    assert_eq!(scene.say(7, &go(10)), [Action::CloseClient { connection: ConnectionId(7) }]);
    assert_eq!(scene.handle(Event::ClientGone { connection: ConnectionId(5) }), []);
    assert_eq!(shown(&scene.reply(1, &address, frame(&delivered(10, 1)))), [(6, delivered(10, 1))]);
    assert_eq!(scene.replies("command"), [("2.0.0", 1)]);
    assert_eq!(scene.broker.gauges(scene.now), Gauges { ready: 2, ..Gauges::default() });
}

#[test]
fn another_programs_words_pass_through_as_they_are_by_any_worker() {
    let mut scene = Scene::with_workers(&[1]);
    let actions = scene.say_bytes(5, b"17".to_vec());
    let [Action::Work { connection, address, body }] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!((connection.0, body), (1, &b"17".to_vec()));
    let shown = Action::SendToClient { connection: ConnectionId(5), body: b"17".to_vec() };
    assert_eq!(scene.reply(1, address, b"17".to_vec()), [shown]);
    // If the worker ends, the client gets no answer: its program would not understand ours.
    scene.say_bytes(5, b"18".to_vec());
    assert_eq!(scene.handle(Event::WorkerGone { connection: ConnectionId(1) }), []);
    scene.say_bytes(5, b"19".to_vec());
    assert_eq!(scene.pass(30, &[]), []);
    assert_eq!(scene.broker.gauges(scene.now), Gauges::default());
}

#[test]
fn what_makes_no_sense_closes_its_connection() {
    let mut scene = Scene::new();
    let frames = vec![b"MDR1".to_vec(), frame(&delivered(10, 1)), frame(&Header::Received { id: Uuid::nil() })];
    for frame in frames {
        assert_eq!(scene.say_bytes(5, frame), [Action::CloseClient { connection: ConnectionId(5) }]);
    }
    assert_eq!(scene.broker.counters().refused_requests, 3);
    assert_eq!(scene.broker.gauges(scene.now), Gauges::default());
}
