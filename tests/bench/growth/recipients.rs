//! One message to more and more recipients, a process for each, all started in the same instant: all of them want the lock.

use super::curve::{in_turns, linear};
use super::fixture::{Fixture, address, attempt, clear, messages_in};
use crate::figures::{Report, Series};
use crate::floor::Calls;
use crate::plot;
use crate::site::{SIZE, STRANGER, Site, message, with_crlf};
use crate::support::database::Engine;
use crate::support::imap_server::somebody;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

const RECIPIENTS: [usize; 8] = [1, 2, 5, 10, 20, 50, 100, 200];

/// A process that has not got the lock retries this much later, in place of Postfix's five minutes and more. It does not
/// count as time.
const PAUSE: Duration = Duration::from_millis(300);
/// After so many rounds something else is wrong.
const PATIENCE: usize = 100;

/// How Postfix would be set up.
struct Way {
    name: &'static str,
    short: &'static str,
    /// How many processes at once.
    at_once: usize,
    lock_wait: &'static str,
}

const WAYS: [Way; 3] = [
    Way {
        name: "all at once, --lock-wait=0s",
        short: "--lock-wait=0s",
        at_once: usize::MAX,
        lock_wait: "--lock-wait=0s",
    },
    Way {
        name: "all at once, --lock-wait=120s",
        short: "--lock-wait=120s",
        at_once: usize::MAX,
        lock_wait: "--lock-wait=120s",
    },
    // postfix/master.cf.maildrop
    Way {
        name: "as shipped: 20 at once, --lock-wait=30s",
        short: "as shipped",
        at_once: 20,
        lock_wait: "--lock-wait=30s",
    },
];

/// What is measured of one message: seconds, tries deferred, rounds; of those that got the lock, the median and the longest
/// wait for it, in seconds. Of bare APPENDs only the first.
type Outcome = [f64; 5];

pub fn measure(report: &mut Report, site: &Site, runs: usize, at_most: usize) {
    let counts: Vec<usize> = RECIPIENTS.into_iter().filter(|count| *count <= at_most).collect();
    let everybody: Vec<String> = (0..at_most).map(|_| somebody("recipient")).collect();
    let author = somebody("author");
    let fixture = Fixture::new(Engine::Postgres17, everybody.iter().chain([&author]));
    report.progress(format!("growth: a message to each of {at_most} recipients, so that their mailboxes are there"));
    everybody.iter().for_each(|user| drop(fixture.deliver(user)));
    let mut sent = messages_in(&author, "Sent");
    let mut expected = vec![1; everybody.len()];

    report.progress(format!("growth: {runs} messages to 1 to {at_most} recipients, in {} ways", WAYS.len()));
    // In no way: bare APPENDs.
    let ways: Vec<Option<&Way>> = WAYS.iter().map(Some).chain([None]).collect();
    let places: Vec<(Option<&Way>, usize)> =
        ways.iter().flat_map(|way| counts.iter().map(move |count| (*way, *count))).collect();
    let measured = in_turns(0, runs, &places, |(way, count)| {
        expected[..*count].iter_mut().for_each(|messages| *messages += 1);
        let Some(way) = way else { return bare_appends(site, &everybody[..*count]) };
        let outcome = one_message(&fixture, &author, &everybody[..*count], way);
        sent += 1;
        assert_eq!(messages_in(&author, "Sent"), sent, "one copy in Sent, of one message");
        outcome
    });
    for (user, expected) in everybody.iter().zip(expected) {
        assert_eq!(messages_in(user, "INBOX"), expected, "one copy of each message for each of its recipients");
    }

    let connections = fixture.count("SELECT current_setting('max_connections')::bigint");
    report.line(format!(
        "### The recipients\n\nOne message, of somebody who lives here, so that her Sent mailbox gets a copy as well: a process \
         for each recipient. Those deferred (75) are all tried again together, when the others are done, as Postfix does with \
         what is left of a queue file; the pause before that (five minutes or more with Postfix) is not in the time. That each \
         recipient has one copy of each message, and Sent has one, was asserted. Each process has one connection to \
         PostgreSQL (max_connections {connections}) and two to Dovecot (mail_max_userip_connections and process_limit 2000); a \
         bare APPEND has one, and asks nothing."
    ));
    let measured: Vec<&[[Series; 5]]> = measured.chunks(counts.len()).collect();
    let appends = measured[WAYS.len()];
    let mut curves = Vec::new();
    let mut seconds = |name, outcomes: &[[Series; 5]]| {
        let medians = outcomes.iter().map(|outcome| outcome[0].median());
        let points: Vec<(f64, f64)> = counts.iter().map(|count| *count as f64).zip(medians).collect();
        curves.push((name, points.clone()));
        points
    };
    for (way, outcomes) in WAYS.iter().zip(&measured) {
        tell(report, way, &counts, outcomes, appends);
        linear(report, &format!("Until all are in, {}", way.name), &seconds(way.short, outcomes));
    }
    linear(report, "Bare APPENDs, all at once", &seconds("bare APPENDs", appends));
    report.plot("recipients", "The recipients", plot::curves("One message", "recipients", "seconds", &curves));
    clear(everybody.iter().chain([&author]));
}

fn tell(report: &mut Report, way: &Way, counts: &[usize], outcomes: &[[Series; 5]], appends: &[[Series; 5]]) {
    let row = |((count, outcome), append): ((&usize, &[Series; 5]), &[Series; 5])| {
        let [took, deferred, rounds, wait, longest] = outcome;
        let [deferred, rounds] = [deferred, rounds].map(|series| format!("{:.0}", series.median()));
        let [wait, longest] = [wait, longest].map(|series| format!("{:.2}", series.median()));
        [count.to_string(), took.to_string(), deferred, rounds, wait, longest, append[0].to_string()]
    };
    let header = [
        way.name,
        "until all are in, s",
        "deferred (75)",
        "rounds",
        "wait for the lock, median, s",
        "longest, s",
        "as many bare APPENDs at once, s",
    ];
    report.table(header, &counts.iter().zip(outcomes).zip(appends).map(row).collect::<Vec<_>>());
}

/// Delivers one message to all of these.
fn one_message(fixture: &Fixture, author: &str, recipients: &[String], way: &Way) -> Outcome {
    let author = address(author);
    let message = message(&author, SIZE);
    let mut owed: Vec<&String> = recipients.iter().collect();
    let (mut took, mut deferrals, mut rounds) = (Duration::ZERO, 0, 0);
    fixture.log();
    while !owed.is_empty() {
        if rounds > 0 {
            thread::sleep(PAUSE);
        }
        rounds += 1;
        assert!(rounds <= PATIENCE, "{} recipients are still owed a message", owed.len());
        let began = Instant::now();
        let left = in_processes(way.at_once, &owed, |user| {
            let mut command = fixture.command(user, &author);
            command.arg(way.lock_wait);
            let tried = attempt(&mut command, &message);
            assert!(matches!(tried.exit, Some(0 | 75)), "{:?}: {}", tried.exit, tried.output);
            tried.exit == Some(75)
        });
        took += began.elapsed();
        deferrals += left.len();
        owed = left;
    }
    let records = fixture.log();
    let (delivered, deferred): (Vec<_>, Vec<_>) = records.iter().partition(|record| record["message"] == "delivered");
    assert_eq!((delivered.len(), deferred.len()), (recipients.len(), deferrals));
    for record in deferred {
        assert!(record["verdict"].as_str().is_some_and(|verdict| verdict.contains("holds its lock")), "{record}");
    }
    let ledger = "SELECT count(*) FROM copies WHERE message = (SELECT max(id) FROM messages) AND state = 'delivered'";
    assert_eq!(fixture.count(ledger), recipients.len() + 1);
    let waits: Series = delivered.iter().map(|record| record["lock_ms"].as_f64().expect("a time") / 1000.0).collect();
    [took.as_secs_f64(), deferrals as f64, rounds as f64, waits.median(), waits.quantile(1.0)]
}

/// As many bare APPENDs at once.
fn bare_appends(site: &Site, users: &[String]) -> Outcome {
    let message = with_crlf(&message(STRANGER, SIZE));
    let began = Instant::now();
    let left = in_processes(usize::MAX, &users.iter().collect::<Vec<_>>(), |user| {
        attempt(&mut site.floor(Calls::Append, user), &message).exit != Some(0)
    });
    assert!(left.is_empty(), "{left:?}");
    [began.elapsed().as_secs_f64(), f64::NAN, f64::NAN, f64::NAN, f64::NAN]
}

/// Runs something for each of these, so many at once; those for which it says so are left.
fn in_processes<'a>(at_once: usize, users: &[&'a String], run: impl Fn(&str) -> bool + Sync) -> Vec<&'a String> {
    let queue = Mutex::new(users.iter().copied().collect::<VecDeque<_>>());
    let left = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..at_once.min(users.len()) {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().unwrap().pop_front();
                    let Some(user) = next else { return };
                    if run(user) {
                        left.lock().unwrap().push(user);
                    }
                }
            });
        }
    });
    left.into_inner().unwrap()
}
