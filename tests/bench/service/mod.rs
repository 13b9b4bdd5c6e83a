//! The service, `maildropd`: what a copy costs, how long it takes, and what becomes of sessions and memory while messages pass.

pub mod fixture;
mod load;
pub mod many;
mod no_store;
mod pipe;
pub mod poison;
pub mod processor;

use crate::figures::{Report, Series, milliseconds};
use crate::site::Site;
use fixture::{Fixture, Format, Otherwise, Service, until};
use load::{Load, Session};
use rustix::process::{Signal, kill_process};
use std::time::Instant;

/// Of one message, in bytes.
const SIZE: usize = 4_000;
/// Clients that give messages at once.
const CONNECTIONS: usize = 8;
/// As many users as a worker keeps sessions for.
const USERS: usize = 8;

pub fn measure(report: &mut Report, site: &Site, runs: usize) {
    let fixture = Fixture::set_up(site);
    pipe::measure(report, &fixture, runs);
    sessions(report, &fixture);
    latency(report, &fixture, runs);
    kills(report, &fixture, runs);
    poison::measure(report, &fixture, runs);
}

/// Sessions that are opened for a thousand deliveries, by a single worker.
fn sessions(report: &mut Report, fixture: &Fixture<'_>) {
    report.progress("sessions per 1,000 deliveries");
    fixture.dovecot(true);
    let service = fixture.start("workers = 1\nrecycle_after = 1000000\n");
    let recipients = fixture.users(Format::Sdbox, "sessions", USERS);
    let recipients: Vec<String> = recipients.into_iter().map(|user| format!("{user}@mail.example")).collect();
    let load = load_of(&service, &recipients, 1);
    let (sql, logins) = (fixture.site.sessions(), Fixture::imap_logins());
    load.give(1000);
    // The counting connections are sessions, too.
    let sql = fixture.site.sessions() - sql - 1;
    let first = Fixture::imap_logins() - logins;
    load.give(1000);
    let next = Fixture::imap_logins() - logins - first;
    let row = |what: &str, seen: usize, most: usize| [what.to_owned(), seen.to_string(), format!("≤ {most}")];
    let rows = [
        row("SQL sessions", sql, 1),
        row("IMAP logins, 8 users in turn", first, 5 + USERS),
        row("IMAP logins for the next 1,000", next, 5),
    ];
    report.table(["opened for 1,000 deliveries, one worker", "seen", "may be"], &rows);
    report.line("The first login of each of the eight users is among them.");
}

/// How long single messages take, alone and at half the greatest rate.
fn latency(report: &mut Report, fixture: &Fixture<'_>, runs: usize) {
    report.progress("latency");
    fixture.dovecot(true);
    let service = fixture.start("recycle_after = 1000000\n");
    let recipients = fixture.users(Format::Sdbox, "latency", USERS);
    let recipients: Vec<String> = recipients.into_iter().map(|user| format!("{user}@mail.example")).collect();
    let load = |connections| load_of(&service, &recipients, connections);
    let messages = (runs * 10).max(100);
    load(CONNECTIONS).give(messages);
    let greatest = messages as f64 / load(CONNECTIONS).give(messages).wall.as_secs_f64();
    let alone = load(1).give(messages);
    let half = load(CONNECTIONS * 4).give_at(greatest / 2.0, messages);
    let (alone, half) = (alone.milliseconds(), half.milliseconds());
    let rows = [
        quantiles("one at a time", &alone),
        quantiles(&format!("at half the greatest rate ({greatest:.0} per second)"), &half),
        ratios("÷ alone; of p99 it may be 3", &half, &alone),
    ];
    report.table([&format!("a message takes, ms ({messages} each)"), "p50", "p90", "p99"], &rows);
}

/// Messages of the usual size, each for one of these.
fn load_of(service: &Service, recipients: &[String], connections: usize) -> Load {
    Load { socket: service.socket.clone(), recipients: recipients.to_vec(), each: 1, connections, size: SIZE }
}

const QUANTILES: [f64; 3] = [0.5, 0.9, 0.99];

fn quantiles(what: &str, series: &Series) -> [String; 4] {
    let [p50, p90, p99] = QUANTILES.map(|part| format!("{:.1}", series.quantile(part)));
    [what.to_owned(), p50, p90, p99]
}

fn ratios(what: &str, of: &Series, by: &Series) -> [String; 4] {
    let [p50, p90, p99] = QUANTILES.map(|part| format!("{:.2}", of.quantile(part) / by.quantile(part)));
    [what.to_owned(), p50, p90, p99]
}

/// A worker is killed in the midst of a message: when its client has the answer, and when the new worker is ready.
fn kills(report: &mut Report, fixture: &Fixture<'_>, runs: usize) {
    report.progress("killed workers");
    let user = fixture.users(Format::Sdbox, "killed", 1).remove(0);
    let (mut answered, mut ready) = (Series::default(), Series::default());
    for _ in 0..(runs / 6).max(3) {
        // A new one each time: the pauses before a new start grow.
        let service = fixture.start("workers = 1\n");
        let worker = service.processes("worker").remove(0);
        let mut session = Session::connect(&service.socket);
        // It stops before it is given the message, so that it has the message however slow the machine is.
        kill_process(worker, Signal::STOP).expect("it is ours");
        let text = crate::site::with_crlf(&crate::site::message(crate::site::STRANGER, SIZE));
        session.give(&[&format!("{user}@mail.example")], &text);
        until("the front has handed it over", || service.status().to_string().contains("\"busy\":1"));
        let killed = Instant::now();
        kill_process(worker, Signal::KILL).expect("it is ours");
        let reply = session.replies(1).remove(0);
        answered.push(milliseconds(killed.elapsed()));
        assert!(reply.starts_with("451 "), "{reply}");
        until("there is a new worker", || service.processes("worker").first().is_some_and(|now| *now != worker));
        until("it is ready", || service.status()["state"] == "well");
        ready.push(milliseconds(killed.elapsed()));
    }
    let row = |what: &str, series: &Series, most: &str| [what.to_owned(), series.to_string(), most.to_owned()];
    let rows = [row("451", &answered, "≤ 100"), row("a new worker is ready", &ready, "≤ 500")];
    report.table(["a worker is killed, ms until", "seen", "may be"], &rows);
}

/// How the memory of front and worker grows.
pub fn measure_memory(report: &mut Report, site: &Site, runs: usize) {
    let fixture = Fixture::set_up(site);
    fixture.dovecot(true);
    let users = fixture.users(Format::Sdbox, "memory", USERS);
    memory_before(report, &fixture, &Otherwise::default(), users, runs);
}

/// The same before an IMAP server that stores nothing: a mailbox of a hundred thousand messages would cost more than all the rest.
pub fn measure_memory_without_store(report: &mut Report, site: &Site, runs: usize) {
    let fixture = Fixture::set_up(site);
    let users: Vec<String> = (0..USERS).map(|number| format!("nothing-of-{number}")).collect();
    site.add_users(&users);
    let socket = fixture.path("imap");
    no_store::listen(&socket, users.clone());
    let imap = format!("socket = \"{}\"\n", socket.display());
    let otherwise = Otherwise { imap: Some(&imap), ..Otherwise::default() };
    memory_before(report, &fixture, &otherwise, users, runs);
}

fn memory_before(
    report: &mut Report,
    fixture: &Fixture<'_>,
    otherwise: &Otherwise<'_>,
    users: Vec<String>,
    runs: usize,
) {
    let service = fixture.start_with("recycle_after = 100000000\n", otherwise);
    let recipients = users.into_iter().map(|user| format!("{user}@mail.example"));
    let load = Load {
        socket: service.socket.clone(),
        recipients: recipients.collect(),
        each: 1,
        connections: CONNECTIONS,
        size: 1000,
    };
    // 60 runs make 60,000 messages.
    let (mut given, mut rows, mut first) = (0, Vec::new(), None);
    for upto in
        [1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000].into_iter().filter(|upto| *upto <= runs * 1_000)
    {
        report.progress(format!("memory, up to {upto} messages"));
        while given < upto {
            let messages = (upto - given).min(1_000);
            load.give(messages);
            given += messages;
        }
        let now = [service.memory("front"), service.memory("worker")];
        let [front, worker] = now;
        let [front_first, worker_first] = *first.get_or_insert(now);
        let row = [front, front / front_first, worker, worker / worker_first].map(|number| format!("{number:.2}"));
        let [front, front_ratio, worker, worker_ratio] = row;
        rows.push([upto.to_string(), front, front_ratio, worker, worker_ratio]);
    }
    report.table(["messages", "front, MB (≤ 20)", "÷ first (≤ 1.1)", "worker, MB (≤ 25)", "÷ first (≤ 1.1)"], &rows);
}
