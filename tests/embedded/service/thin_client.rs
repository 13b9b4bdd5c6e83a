//! What Postfix starts, `deliver --via`, with the service's own front and worker.

use crate::program::{Outcome, Running, program};
use crate::support::test_front::{Service, message, until};
use rustix::process::Signal;

fn deliver(service: &Service, message: &[u8]) -> Running {
    let (directory, socket) = (service.path().display().to_string(), service.path().join("run/clients.sock"));
    let envelope =
        ["--sender", "lisa@gmail.com", "--recipient", "doug@x", "--queue-id", "4bXyz", "--lock-wait", "100s"];
    let socket = socket.display().to_string();
    let via = ["--embedded", &directory, "--via", &socket, "--via-only"];
    Running::start(program(&[&via[..], &envelope].concat()), message)
}

#[test]
fn its_message_is_delivered_by_a_worker_and_it_tells_postfix_so() {
    let service = Service::start();
    let worker = service.worker();
    let ended: Vec<Outcome> = (0..4).map(|number| deliver(&service, &message(number)).end()).collect();
    assert!(ended.iter().all(|outcome| outcome.delivered().starts_with("INBOX appended")), "{ended:?}");
    assert_eq!(deliver(&service, &message(1)).end().delivered(), "INBOX already there");
    assert_eq!(service.inbox("doug@x").len(), 4);
    worker.signal(Signal::TERM);
    assert_eq!(worker.end().code(), Some(0));
    assert!(service.log().contains("delivered=5"), "{}", service.log());
}

#[test]
fn where_its_worker_is_killed_postfix_tries_again_and_one_copy_is_there() {
    let service = Service::start();
    let worker = service.worker();
    let message = message(1);
    let lock = service.hold_lock_of(&message);
    let delivery = deliver(&service, &message);
    until("the delivery waits for the lock", || service.open_attempts() > 0);
    worker.signal(Signal::KILL);
    assert_eq!(delivery.end().deferred("4.3.0 "), "the process that delivered it has ended");
    drop(lock);
    let _next = service.worker();
    assert!(deliver(&service, &message).end().delivered().starts_with("INBOX appended"));
    assert_eq!(service.inbox("doug@x").len(), 1);
}

/// It waits in a file of the front's, which its worker reads.
#[test]
fn a_large_message_is_delivered_whole_and_nothing_of_it_is_left_behind() {
    let service = Service::start();
    let _worker = service.worker();
    let message = [message(1), b"a line of a large message\r\n".repeat(40_000)].concat();
    assert!(deliver(&service, &message).end().delivered().starts_with("INBOX appended"));
    let copies = service.inbox("doug@x");
    assert_eq!(copies.len(), 1);
    let copy = std::fs::read_to_string(&copies[0]).unwrap();
    assert_eq!(copy.matches("a line of a large message").count(), 40_000);
    until("its file is gone", || std::fs::read_dir(service.path().join("run/messages")).unwrap().count() == 0);
}
