//! A message goes by the front to a worker, and what became of it comes back.

use crate::support::test_front::{Service, message, request, until};
use maildrop_command::protocol::Header;
use rustix::process::Signal;
use std::process::{Command, Stdio};

#[test]
fn each_recipient_has_a_copy_and_a_verdict() {
    let service = Service::start();
    let _worker = service.worker();
    let mut client = service.client();
    for number in 0..3 {
        let message = message(number);
        let request = request(&["doug@x", "nobody", "scuba@x"], &message);
        let verdicts = client.deliver(&request, &message);
        assert!(verdicts[0].starts_with("2.0.0 INBOX appended"), "{verdicts:?}");
        assert!(verdicts[1].starts_with("4.3.5 "), "{verdicts:?}");
        assert!(verdicts[2].starts_with("2.0.0 INBOX appended"), "{verdicts:?}");
        // The same message again: it is there.
        let again = crate::support::test_front::request(&["doug@x"], &message);
        assert_eq!(client.deliver(&again, &message), ["2.0.0 INBOX already there"]);
    }
    for address in ["doug@x", "scuba@x"] {
        let copies = service.inbox(address);
        assert_eq!(copies.len(), 3, "{copies:?}");
    }
    assert_eq!(service.log().matches(" delivered queue_id=4bXyz").count(), 9, "{}", service.log());
}

#[test]
fn what_the_client_does_not_let_begin_is_not_delivered() {
    let service = Service::start();
    let (message, mut first, mut second) = (message(1), service.client(), service.client());
    let never = request(&["doug@x"], &message);
    first.say(&Header::Deliver(never.clone()), &message);
    assert_eq!(first.hear(), Header::Received { id: never.id });
    // What comes after it is delivered, and it is not, though there is a worker now, and its client has gone.
    drop(first);
    let other = crate::support::test_front::message(2);
    let request = request(&["scuba@x"], &other);
    second.hand_over(&request, &other);
    let _worker = service.worker();
    assert!(second.verdicts(&request)[0].starts_with("2.0.0 "));
    assert!(service.inbox("doug@x").is_empty());
}

#[test]
fn another_programs_words_come_back_as_they_went() {
    let service = Service::start();
    let _worker = service.worker();
    let mut client = service.client();
    for words in [&b"17"[..], b"", b"MDR", &[0; 70_000]] {
        client.say_plain(words);
        assert_eq!(client.hear_plain(), words);
    }
}

#[test]
fn a_front_that_is_asked_to_end_answers_what_has_begun() {
    let mut service = Service::start();
    let worker = service.worker();
    let message = message(1);
    let lock = service.hold_lock_of(&message);
    let (request, mut client) = (request(&["doug@x"], &message), service.client());
    client.hand_over(&request, &message);
    until("the delivery waits for the lock", || service.open_attempts() > 0);
    let front = service.front.take().unwrap();
    front.signal(Signal::TERM);
    until("it has heard that", || service.log().contains("the front ends"));
    drop(lock);
    assert!(client.verdicts(&request)[0].starts_with("2.0.0 "));
    assert_eq!(front.end().code(), Some(0));
    // The worker finds the next front by itself.
    service.start_front();
    let mut client = service.client();
    let again = crate::support::test_front::request(&["doug@x"], &message);
    assert_eq!(client.deliver(&again, &message), ["2.0.0 INBOX already there"]);
    worker.signal(Signal::TERM);
    assert_eq!(worker.end().code(), Some(0));
}

#[test]
fn a_second_front_does_not_take_the_sockets() {
    let service = Service::start();
    let mut second = Command::new(env!("CARGO_BIN_EXE_maildropd"));
    second.arg("--config").arg(service.config()).args(["--role", "front"]).stdin(Stdio::null());
    let output = second.output().unwrap();
    assert_eq!(output.status.code(), Some(69));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("clients.sock: another program answers there"), "{errors}");
    // It still serves.
    service.client();
}
