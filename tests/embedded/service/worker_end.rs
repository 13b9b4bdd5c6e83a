//! A worker ends, in any way: its message is deferred or delivered, and nobody else's is touched.

use crate::support::test_front::{Service, message, request, until};
use rustix::process::Signal;
use std::os::unix::process::ExitStatusExt;

#[test]
fn killed_in_the_middle_of_a_delivery_it_costs_its_message_a_deferral_at_once() {
    let service = Service::start();
    let worker = service.worker();
    let message = message(1);
    let lock = service.hold_lock_of(&message);
    let (request, mut client) = (request(&["doug@x", "scuba@x"], &message), service.client());
    client.hand_over(&request, &message);
    until("the delivery waits for the lock", || service.open_attempts() > 0);
    let other = service.worker();
    worker.signal(Signal::KILL);
    let text = "4.3.0 the process that delivered it has ended";
    assert_eq!(client.verdicts(&request), [text; 2]);
    // No other worker has got it.
    drop(lock);
    assert!(service.inbox("doug@x").is_empty());
    let message = crate::support::test_front::message(2);
    let request = crate::support::test_front::request(&["doug@x"], &message);
    assert!(client.deliver(&request, &message)[0].starts_with("2.0.0 "));
    assert_eq!(service.inbox("doug@x").len(), 1);
    drop(other);
}

#[test]
fn stopped_it_gets_nothing_new_costs_one_message_at_most_and_is_killed() {
    let service = Service::start();
    let stopped = service.worker();
    let _other = service.worker();
    stopped.signal(Signal::STOP);
    // The broker does not know yet: it may hand it one message, of several clients'.
    let mut clients: Vec<_> = (0..6)
        .map(|number| {
            let message = message(number);
            let request = request(&[&format!("{number}@x")], &message);
            let mut client = service.client();
            client.hand_over(&request, &message);
            (client, request)
        })
        .collect();
    let verdicts: Vec<String> = clients.iter_mut().flat_map(|(client, request)| client.verdicts(request)).collect();
    let deferred = verdicts.iter().filter(|verdict| *verdict == "4.3.0 the process that delivered it hung").count();
    let delivered = verdicts.iter().filter(|verdict| verdict.starts_with("2.0.0 ")).count();
    assert!(deferred <= 1 && deferred + delivered == 6, "{verdicts:?}");
    assert_eq!(stopped.end().signal(), Some(Signal::KILL.as_raw()));
}

#[test]
fn asked_to_end_it_finishes_its_message() {
    let service = Service::start();
    let worker = service.worker();
    let message = message(1);
    let lock = service.hold_lock_of(&message);
    let (request, mut client) = (request(&["doug@x"], &message), service.client());
    client.hand_over(&request, &message);
    until("the delivery waits for the lock", || service.open_attempts() > 0);
    worker.signal(Signal::TERM);
    drop(lock);
    assert!(client.verdicts(&request)[0].starts_with("2.0.0 "));
    assert_eq!(worker.end().code(), Some(0));
}

#[test]
fn workers_that_are_replaced_one_after_the_other_cost_no_message() {
    let service = Service::start();
    let mut worker = service.worker();
    for round in 0..5 {
        let clients: Vec<_> = (0..8)
            .map(|number| {
                let message = message(round * 100 + number);
                let request = request(&[&format!("{number}@x")], &message);
                let mut client = service.client();
                client.hand_over(&request, &message);
                (client, request)
            })
            .collect();
        worker.signal(Signal::TERM);
        let next = service.worker();
        for (mut client, request) in clients {
            let verdicts = client.verdicts(&request);
            assert!(verdicts[0].starts_with("2.0.0 "), "{verdicts:?}\n{}", service.log());
        }
        assert_eq!(std::mem::replace(&mut worker, next).end().code(), Some(0));
    }
}

#[test]
fn a_worker_finds_a_front_that_was_killed_and_started_again() {
    let mut service = Service::start();
    let _worker = service.worker();
    let connected = service.connected();
    service.front = None;
    service.start_front();
    until("the worker is connected again", || service.connected() > connected);
    let message = message(1);
    let request = request(&["doug@x"], &message);
    assert!(service.client().deliver(&request, &message)[0].starts_with("2.0.0 "));
}

/// Bugs to order are in the program that is built with the feature alone.
#[cfg(feature = "test-faults")]
mod by_a_bug {
    use super::*;
    use crate::service::shunted_messages::TIME_TO_HANG;
    use maildrop_command::protocol::Request;

    /// A worker with a bug has a message; another worker and another message go on.
    fn struck(fault: &str, milliseconds: u64, verdict: &str) -> std::process::ExitStatus {
        let service = Service::start();
        let worker = service.worker_with(&[("MAILDROP_TEST_FAULT", fault)]);
        let message = message(1);
        let request = Request { time_left_ms: milliseconds, ..request(&["doug@x", "scuba@x"], &message) };
        let mut client = service.client();
        assert_eq!(client.deliver(&request, &message), [verdict; 2], "{fault}\n{}", service.log());
        let _other = service.worker();
        if fault.starts_with("panic@") {
            worker.signal(Signal::TERM);
        } else {
            let mut again = crate::support::test_front::request(&["doug@x"], &message);
            again.lock_wait_ms = None;
            assert!(client.deliver(&again, &message)[0].starts_with("2.0.0 "));
        }
        worker.end()
    }

    #[test]
    fn an_abort_or_a_stack_that_overflows_or_too_little_memory_ends_the_worker_alone() {
        for fault in ["abort@before", "overflow@before", "memory@before", "panic-twice@before"] {
            let status = struck(fault, 240_000, "4.3.0 the process that delivered it has ended");
            assert!(status.signal().is_some(), "{fault}: {status}");
        }
    }

    #[test]
    fn a_delivery_that_hangs_is_ended_by_the_workers_own_watchdog() {
        let status = struck("hang@before", TIME_TO_HANG, "4.3.0 the process that delivered it has ended");
        assert_eq!(status.signal(), Some(Signal::ABORT.as_raw()));
    }

    #[test]
    fn a_panic_is_caught_and_the_worker_goes_on() {
        let status = struck("panic@before", 240_000, "4.3.0 an internal error");
        assert_eq!(status.code(), Some(0));
    }
}
