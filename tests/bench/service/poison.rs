//! A message that workers die of, while others flow: how long the others take meanwhile.
//!
//! Built with the feature `test-faults`, the program has bugs that a message may order, each of which is measured by itself. Without, it has
//! none, and SIGABRT stands for them.

use super::fixture::{Fixture, Format, Otherwise, Service};
use super::load::Session;
use super::{CONNECTIONS, SIZE, USERS, load_of, quantiles, ratios};
use crate::figures::Report;
use crate::site::{STRANGER, Site, message, with_crlf};
use std::sync::atomic::{AtomicBool, Ordering};
#[cfg(not(feature = "test-faults"))]
use {
    super::fixture::until,
    crate::site::program,
    postgres::SimpleQueryMessage,
    rustix::process::{Pid, Signal, kill_process},
    std::process::Command,
};

/// So many others, at least.
const OTHERS: usize = 1000;
/// For so long the others flow.
const SECONDS: f64 = 60.0;

/// The bugs that a message may order (src/base/fault_injection.rs).
#[cfg(feature = "test-faults")]
const FAULTS: [(&str, &str); 4] = [
    ("abort", "an abort"),
    ("overflow", "a stack that overflows"),
    ("loop", "an endless loop"),
    ("4GB", "4 GB of memory"),
];

/// By itself (`--only poison`).
pub fn measure_alone(report: &mut Report, site: &Site, runs: usize) {
    measure(report, &Fixture::set_up(site), runs);
}

/// The others at half the greatest rate, alone; and then while a message crashes two workers, and is shunted.
pub fn measure(report: &mut Report, fixture: &Fixture<'_>, runs: usize) {
    report.progress("a message that crashes workers");
    fixture.dovecot(true);
    // An endless loop ends at the deadline, by the worker's watchdog.
    let otherwise = Otherwise {
        delivery: "deadline = \"10s\"\n",
        environment: &[("MAILDROP_TEST_FAULT", "by-message")],
        ..Otherwise::default()
    };
    let service = fixture.start_with("recycle_after = 1000000\n", &otherwise);
    let users = fixture.users(Format::Sdbox, "poison", USERS + 1);
    let mut addresses: Vec<String> = users.into_iter().map(|user| format!("{user}@mail.example")).collect();
    let its_own = addresses.pop().unwrap_or_default();
    let load = |connections| load_of(&service, &addresses, connections);
    let few = (runs * 10).max(100);
    load(CONNECTIONS).give(few);
    let rate = few as f64 / load(CONNECTIONS).give(few).wall.as_secs_f64() / 2.0;
    let count = OTHERS.max((rate * SECONDS) as usize);
    let flow = || load(CONNECTIONS * 4).give_at(rate, count).milliseconds();
    let alone = flow();
    let mut rows = vec![quantiles(&format!("without ({rate:.0} per second)"), &alone)];
    let mut beside = |what: &str, end: &(dyn Fn() + Sync)| {
        let is_shunted = AtomicBool::new(false);
        let (beside, in_time) = std::thread::scope(|scope| {
            scope.spawn(|| {
                end();
                is_shunted.store(true, Ordering::SeqCst);
            });
            let beside = flow();
            (beside, is_shunted.load(Ordering::SeqCst))
        });
        let while_it =
            format!("while {what} crashed two workers{}", if in_time { "" } else { " (the second one later)" });
        rows.push(quantiles(&while_it, &beside));
        rows.push(ratios("÷; of p99 it may be 2", &beside, &alone));
    };
    #[cfg(not(feature = "test-faults"))]
    beside("one", &|| end_two_workers(fixture.site, &service, &its_own));
    #[cfg(feature = "test-faults")]
    for (fault, called) in FAULTS {
        report.progress(called);
        beside(called, &|| order_until_shunted(&service, fault, &its_own));
    }
    report.table([&format!("{count} others, a message takes, ms"), "p50", "p90", "p99"], &rows);
}

/// Gives a message that orders this fault until it is shunted.
#[cfg(feature = "test-faults")]
fn order_until_shunted(service: &Service, fault: &str, to: &str) {
    let text = [format!("X-Test-Fault: {fault}\r\n").as_bytes(), &with_crlf(&message(STRANGER, SIZE))].concat();
    let mut session = Session::connect(&service.socket);
    loop {
        let reply = session.deliver(&[to], &text).remove(0);
        assert!(reply.starts_with("451 "), "{reply}");
        if reply.starts_with("451 4.3.0 shunted") {
            return;
        }
    }
}

/// The program has no bugs to order. So the message's lock is held elsewhere, and the worker that waits for it is sent SIGABRT, which
/// is what the end of a worker by its own hand is to its master.
#[cfg(not(feature = "test-faults"))]
fn end_two_workers(site: &Site, service: &Service, to: &str) {
    let text = with_crlf(&message(STRANGER, SIZE));
    let lines = String::from_utf8_lossy(&text).into_owned();
    let id = lines.lines().find_map(|line| line.strip_prefix("Message-ID: ")).expect("its Message-ID");
    let key = Command::new(program()).args(["lock", "key", "--json", id]).output().expect("it runs").stdout;
    let key: serde_json::Value = serde_json::from_slice(&key).expect("JSON");
    let mut holder = site.administrator();
    let lock = format!("SELECT pg_advisory_lock({})", key["postgresql"].as_str().expect("a key"));
    holder.batch_execute(&lock).expect("nobody else has it");
    let mut session = Session::connect(&service.socket);
    loop {
        session.give(&[to], &text);
        let mut worker = None;
        until("a worker waits for its lock, or it is shunted", || {
            worker = waits_for_a_lock(&mut holder, service);
            worker.is_some() || service.status()["front"]["file_queue_shunted"] == 1
        });
        if let Some(worker) = worker {
            kill_process(worker, Signal::ABORT).expect("it is ours");
        }
        let reply = session.replies(1).remove(0);
        assert!(reply.starts_with("451 "), "{reply}");
        if reply.starts_with("451 4.3.0 shunted") {
            return;
        }
    }
}

/// The worker that waits for an advisory lock: its process stands in its session's name, `maildrop QUEUEID pid@host`. The session of one that
/// has died may wait a while longer.
#[cfg(not(feature = "test-faults"))]
fn waits_for_a_lock(client: &mut postgres::Client, service: &Service) -> Option<Pid> {
    let asked =
        "SELECT application_name FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'";
    let answer = client.simple_query(asked).expect("an answer");
    let names = answer.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    let mut pids = names.filter_map(|name| Pid::from_raw(name.rsplit(' ').next()?.split('@').next()?.parse().ok()?));
    let workers = service.processes("worker");
    pids.find(|pid| workers.contains(pid))
}
