//! A message that crashes each worker that delivers it, by a bug in what reads it and not by a signal from outside: it is shunted
//! after two workers, and others flow: twenty at least, or `MAILDROP_TEST_OTHERS=1000`. The service is whole, with a master.

use crate::support::test_front::{message, request, until};
use crate::support::test_master::Stage;
use crate::support::whole_service::Whole;
use maildrop_command::protocol::{Header, Request};
use maildrop_command::queue::{Digest, Queue};
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn a_message_that_crashes_each_worker_is_shunted_after_two_of_them_while_others_flow() {
    // Each at a service of its own.
    std::thread::scope(|scope| {
        for fault in ["abort", "overflow", "4GB", "loop"] {
            scope.spawn(move || shunted_while_others_flow(fault));
        }
    });
}

fn shunted_while_others_flow(fault: &str) {
    let mut service = Whole(Stage::new(""));
    service.configure("");
    service.let_messages_order_faults();
    service.start();
    service.0.wait_until_well();
    let poison = format!("Message-ID: <{fault}@x>\r\nFrom: lisa@gmail.com\r\nX-Test-Fault: {fault}\r\n\r\nx\r\n");
    let (poison, is_over) = (poison.into_bytes(), AtomicBool::new(false));
    let others = std::env::var("MAILDROP_TEST_OTHERS").map_or(20, |others| others.parse().unwrap());
    let flow = || {
        let mut sent = 0;
        while !is_over.load(Ordering::SeqCst) || sent < others {
            let harmless = message(sent);
            let verdicts = service.client().deliver(&request(&["scuba@x"], &harmless), &harmless);
            assert!(verdicts[0].starts_with("2.0.0 INBOX appended"), "{fault}, {sent}: {verdicts:?}");
            sent += 1;
        }
        sent
    };
    let (sent, ended_by_the_broker) = std::thread::scope(|scope| {
        let flow = scope.spawn(flow);
        let ended = AtTheEnd(&is_over);
        // As Postfix does: again and again, and each time some time later, when it is known how the worker has ended.
        let (mut deaths, mut ended_by_the_broker) = (0, 0);
        loop {
            let verdict = try_once(fault, &service, &poison);
            match verdict.as_str() {
                reply if reply.starts_with("4.3.0 shunted: it has crashed 2 workers") => break,
                // No worker was there in time.
                reply if reply.starts_with("4.4.5 ") => continue,
                // The machine hung for so long that the broker came before the worker's own watchdog: that counts against nobody.
                reply if reply.starts_with("4.3.0 its delivery took too long") => {
                    ended_by_the_broker += 1;
                    continue;
                }
                reply => {
                    assert!(reply.starts_with("4.3.0 the process that delivered it has ended"), "{fault}: {reply}")
                }
            }
            deaths += 1;
            assert!(deaths <= 2, "{fault}: it gets a third worker");
            until("it is known", || match deaths {
                1 => service.figures().sum("maildropd_suspect_messages", &[""]) == 1.0,
                _ => crashes(&service, &poison) == Some(deaths),
            });
        }
        drop(ended);
        (flow.join().unwrap(), ended_by_the_broker)
    });
    // It has cost two workers, and no more.
    assert_eq!(crashes(&service, &poison), Some(2), "{fault}");
    until("the figures tell", || {
        service.figures().sum("maildropd_queue_oldest_message_timestamp_seconds", &["state=\"shunted\""]) > 0.0
    });
    let figures = service.figures();
    for (name, label, number) in [
        ("maildropd_lost_workers_total", "", 2.0 + f64::from(ended_by_the_broker)),
        ("maildropd_queue_messages", "state=\"shunted\"", 1.0),
        ("maildropd_suspect_messages", "", 0.0),
        ("maildropd_shunted_messages_total", "", 1.0),
        ("maildropd_refused_shunted_messages_total", "", 1.0),
    ] {
        assert_eq!(figures.sum(name, &[label]), number, "{fault}: {name}");
    }
    let inbox = |address: &str| {
        let entries = std::fs::read_dir(service.0.path(address).join("new")).into_iter().flatten();
        entries.map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap()).collect::<Vec<_>>()
    };
    let (there, nobody) = (inbox("scuba@x"), inbox("doug@x"));
    assert_eq!((there.len(), nobody.len()), (sent, 0), "{fault}");
    for number in 0..sent {
        let id = format!("Message-ID: <{number}@x>");
        assert_eq!(there.iter().filter(|text| text.contains(&id)).count(), 1, "{fault}: {id}");
    }
}

/// How many crashes of the message are written down.
fn crashes(service: &Whole, message: &[u8]) -> Option<u32> {
    let queue = Queue::existing(&service.0.path("state/queue")).unwrap();
    queue.crashed_message(Digest::of(message)).unwrap().map(|(found, _)| found.crashes)
}

/// Hands it over, and says what came of it.
fn try_once(fault: &str, service: &Whole, poison: &[u8]) -> String {
    let milliseconds = if fault == "loop" { 5000 } else { 240_000 };
    let request = Request { time_left_ms: milliseconds, ..request(&["doug@x"], poison) };
    let mut client = service.client();
    client.say(&Header::Deliver(request.clone()), poison);
    let reply = match client.hear() {
        Header::Received { .. } => {
            client.say(&Header::Go { id: request.id }, b"");
            client.hear()
        }
        reply => reply,
    };
    let Header::Reply(reply) = reply else { panic!("{fault}: {reply:?}") };
    reply.results[0].to_string()
}

/// Ends what goes on until then, even where the test fails first.
struct AtTheEnd<'a>(&'a AtomicBool);

impl Drop for AtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
