//! Notifications: what they cost a delivery, how soon they are sent, how many, and what slow and dead receivers do to
//! the others. The notifier is the release program, a process of its own; the receivers are in this one
//! (support/receivers.rs), and answer at once.

mod burden;
mod daemon;
mod dead;
mod delivered;

use crate::figures::{Ratio, Report, Series, milliseconds};
use crate::growth::fixture::{Fixture, has};
use crate::growth::verdict;
use crate::site::Site;
use crate::support::database::Engine;
use crate::support::receivers::Receivers;
use daemon::{Article, Daemon, happen, pending, subscribe};
use std::thread::sleep;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Receivers that answer at once.
const QUICK: u32 = 8;
/// Nothing that is waited for takes longer.
const PATIENCE: Duration = Duration::from_secs(120);

pub fn measure(report: &mut Report, _: &Site, runs: usize) {
    delivered::measure(report, runs);
    soon(report, runs);
    many(report, runs);
    burden::measure(report, runs);
    dead::measure(report, runs);
}

/// How long it takes from the commit until the request has begun, while there is nothing else to do.
fn soon(report: &mut Report, runs: usize) {
    report.progress("notifications: how soon");
    let mut rows = Vec::new();
    for (engine, name) in engines() {
        let (fixture, receivers) = (Fixture::new(engine, []), Receivers::start());
        subscribe(&fixture, "all", "", &receivers.url(204, Duration::ZERO, 1), 1);
        let daemon = Daemon::start(&fixture, "");
        let series = latencies(&fixture, &receivers, 1..2, "mail.example", runs * 2);
        daemon.end();
        rows.push([
            name.to_owned(),
            series.len().to_string(),
            format!("{:.0}", series.median()),
            format!("{:.0}", series.quantile(0.95)),
            verdict(series.median() <= 200.0 && series.quantile(0.95) <= 500.0).to_owned(),
        ]);
    }
    let header = ["commit → the request has come, idle, ms", "events", "p50 (≤ 200)", "p95 (≤ 500)", ""];
    report.table(header, &rows);
}

/// Events one after the other: milliseconds from before each was committed until each of these receivers had it.
fn latencies(
    fixture: &Fixture,
    receivers: &Receivers,
    who: std::ops::Range<u32>,
    domain: &str,
    events: usize,
) -> Series {
    let mut committed = Vec::new();
    for number in 0..events {
        // At no fixed distance from the polls of the notifier.
        sleep(Duration::from_millis(20 + (number as u64 * 37) % 61));
        let (event, began) = (Uuid::now_v7(), Instant::now());
        happen(fixture, &format!("one {number}"), 1, domain, Some(event));
        committed.push((event.as_u128(), began));
    }
    until("all have come", || receivers.count(who.clone()) >= events * who.len());
    receivers.look(|came| {
        let of_these = came.iter().filter(|one| who.contains(&one.receiver));
        let known = of_these.filter_map(|one| {
            let (_, began) = committed.iter().find(|(event, _)| *event == one.event)?;
            Some(milliseconds(one.arrived - *began))
        });
        known.collect()
    })
}

/// How many a second, beside the ad platform's daemon.
fn many(report: &mut Report, runs: usize) {
    let events = if runs >= 20 { 2_500 } else { 250 };
    let rounds = if runs >= 20 { 3 } else { 1 };
    let shown = events * QUICK as usize;
    let mut rows = Vec::new();
    let mut ours_on_postgresql = Series::default();
    for (engine, name) in engines() {
        report.progress(format!("notifications: how many, {name}"));
        let (mut rate, mut processor, mut article, mut its) =
            (Series::default(), Series::default(), Series::default(), Series::default());
        let fixture = Fixture::new(engine, []);
        for round in 0..rounds {
            let receivers = Receivers::start();
            fixture.execute("DELETE FROM subscriptions");
            for number in 0..QUICK {
                subscribe(&fixture, "all", "", &receivers.url(204, Duration::ZERO, number), number as usize);
            }
            happen(&fixture, &format!("many {round}"), events, "mail.example", None);
            let daemon = Daemon::start(&fixture, "");
            rate.push(rate_of(&receivers, shown));
            until("all are settled", || pending(&fixture) == 0);
            processor.push(milliseconds(daemon.processor()) / shown as f64);
            daemon.end();
            once(&receivers, shown);
            if engine.is_postgres() && Article::is_here() {
                let receivers = Receivers::start();
                // Some of them, so that it ends in the same time.
                let tasks = shown / 4;
                let daemon = Article::start(&fixture, &receivers, QUICK, tasks);
                article.push(rate_of(&receivers, tasks));
                its.push(milliseconds(daemon.processor()) / tasks as f64);
                once(&receivers, tasks);
            }
        }
        let goal = if engine.is_postgres() {
            format!("≥ 2,000: {}", verdict(rate.median() >= 2_000.0))
        } else {
            format!("× {}", Ratio::of(&rate, &ours_on_postgresql))
        };
        let row = |what: String, rate: &Series, processor: &Series, goal: String| {
            [what, shown.to_string(), format!("{:.0}", rate.median()), format!("{:.2}", processor.median()), goal]
        };
        rows.push(row(format!("the notifier, {name}"), &rate, &processor, goal));
        if article.len() > 0 {
            let ratio = Ratio::of(&rate, &article);
            let goal = format!("ours ÷ it {ratio} (≥ 5: {})", verdict(ratio.value >= 5.0));
            rows.push(row("the ad platform's shape in Python".into(), &article, &its, goal));
        }
        if engine.is_postgres() {
            ours_on_postgresql = rate;
        }
    }
    report.table(["8 receivers that answer at once", "sent", "a second", "its processor time each, ms", ""], &rows);
    report
        .line("From the first request to the last. The Python daemon is given a quarter as many. Each was sent once.");
}

/// How many came in a second, from the first to the last of so many.
fn rate_of(receivers: &Receivers, sent: usize) -> f64 {
    until("all have come", || receivers.look(|came| came.len()) >= sent);
    receivers.look(|came| {
        let (first, last) = (came.first().expect("one").arrived, came.last().expect("one").arrived);
        came.len() as f64 / (last - first).as_secs_f64()
    })
}

/// Each receiver has each event once.
fn once(receivers: &Receivers, sent: usize) {
    let different: std::collections::BTreeSet<(u32, u128)> =
        receivers.look(|came| came.iter().map(|one| (one.receiver, one.event)).collect());
    assert_eq!((different.len(), receivers.look(|came| came.len())), (sent, sent), "each was sent once");
}

fn engines() -> impl Iterator<Item = (Engine, &'static str)> {
    [(Engine::Postgres17, "PostgreSQL"), (Engine::Mariadb118, "MariaDB")].into_iter().filter(|(engine, _)| has(*engine))
}

/// Waits for something, looking seldom.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        sleep(Duration::from_millis(20));
    }
}
