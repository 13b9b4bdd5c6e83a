//! More and more processes at once, each with a message of its own for a user of its own.

use super::curve::{in_turns, linear, verdict};
use super::fixture::{Fixture, attempt, clear};
use crate::figures::{Report, Series, milliseconds};
use crate::floor::Calls;
use crate::plot;
use crate::site::{SIZE, STRANGER, Site, message, with_crlf};
use crate::support::database::Engine;
use crate::support::imap_server::somebody;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

const AT_ONCE: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// So many for each measurement, at least; and twice as many as run at once.
const DELIVERIES: usize = 64;
/// What is left, with the most at once, of the most messages per second.
const SUSTAINED: f64 = 0.8;

pub fn measure(report: &mut Report, site: &Site, runs: usize) {
    let users: Vec<String> = (0..AT_ONCE[AT_ONCE.len() - 1]).map(|_| somebody("process")).collect();
    let fixture = Fixture::new(Engine::Postgres17, &users);
    users.iter().for_each(|user| drop(fixture.deliver(user)));
    report.progress(format!("growth: {runs} times 1 to 64 processes at once"));
    let measured = in_turns(0, runs, &AT_ONCE, |at_once| {
        let users = &users[..*at_once];
        let [rate, latency] = busy(users, |user| (fixture.command(user, STRANGER), message(STRANGER, SIZE)));
        let append = |user: &str| (site.floor(Calls::Append, user), with_crlf(&message(STRANGER, SIZE)));
        let [append_rate, append_latency] = busy(users, append);
        [rate, latency, append_rate, append_latency]
    });
    let rows: Vec<[String; 5]> = AT_ONCE
        .iter()
        .zip(&measured)
        .map(|(at_once, series)| {
            let [rate, latency, append_rate, append_latency] = series.each_ref().map(Series::to_string);
            [at_once.to_string(), rate, latency, append_rate, append_latency]
        })
        .collect();
    report.line(format!(
        "### The processes\n\nSo many processes at once, each with another message for another user; whenever one has ended, the \
         next one starts. Of the {DELIVERIES} deliveries (or twice as many as run at once, if that is more) of each \
         measurement: how many in a second, and the median of how long each took."
    ));
    let header = ["processes at once", "deliveries/s", "each, ms", "bare APPENDs/s", "each, ms"];
    report.table(header, &rows);
    let points = |column: usize| -> Vec<(f64, f64)> {
        let medians = measured.iter().map(|series: &[Series; 4]| series[column].median());
        AT_ONCE.iter().map(|count| *count as f64).zip(medians).collect()
    };
    linear(report, "A delivery", &points(1));
    linear(report, "A bare APPEND", &points(3));
    let rates = points(0);
    let best = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let kept = rates[rates.len() - 1].1 / best;
    report.line(format!(
        "- With 64 at once there are {kept:.2} × as many deliveries per second as with the best number (target ≥ {SUSTAINED}): {}.",
        verdict(kept >= SUSTAINED)
    ));
    let curves = [("delivery", points(1)), ("bare APPEND", points(3))];
    report.plot("processes", "The processes", plot::curves("Each of them", "processes at once", "ms", &curves));
    clear(&users);
}

/// Keeps a process running for each of these users until enough have been: how many there were in a second; the median of
/// how many milliseconds each took.
fn busy(users: &[String], process: impl Fn(&str) -> (Command, Vec<u8>) + Sync) -> [f64; 2] {
    let deliveries = DELIVERIES.max(2 * users.len());
    let (begun, took) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let began = Instant::now();
    thread::scope(|scope| {
        for user in users {
            scope.spawn(|| {
                while begun.fetch_add(1, Ordering::Relaxed) < deliveries {
                    let (mut command, message) = process(user);
                    let tried = attempt(&mut command, &message);
                    assert_eq!(tried.exit, Some(0), "{}", tried.output);
                    took.lock().unwrap().push(milliseconds(tried.took));
                }
            });
        }
    });
    let span = began.elapsed().as_secs_f64();
    let took: Series = took.into_inner().unwrap().into_iter().collect();
    [deliveries as f64 / span, took.median()]
}
