//! A hundred receivers that take ten seconds for an answer, beside four that answer at once.

use super::daemon::{Daemon, happen, subscribe};
use super::{latencies, until};
use crate::figures::{Report, Series};
use crate::growth::fixture::Fixture;
use crate::growth::verdict;
use crate::support::database::Engine;
use crate::support::receivers::Receivers;
use std::ops::Range;
use std::time::Duration;

const QUICK: Range<u32> = 0..4;
const SLOW: Range<u32> = 100..200;

pub fn measure(report: &mut Report, runs: usize) {
    let events = if runs >= 20 { 5_000 } else { 250 };
    let rounds = if runs >= 20 { 2 } else { 1 };
    let (mut alone, mut beside) = (Series::default(), Series::default());
    let (mut soon_alone, mut soon_beside) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let order = if round % 2 == 0 { [false, true] } else { [true, false] };
        for slow in order {
            report.progress(format!(
                "notifications: four quick receivers{}",
                if slow { " beside a hundred slow ones" } else { "" }
            ));
            let (fixture, receivers) = (Fixture::new(Engine::Postgres17, []), Receivers::start());
            for number in QUICK {
                subscribe(
                    &fixture,
                    "domain",
                    "quick.example",
                    &receivers.url(204, Duration::ZERO, number),
                    number as usize,
                );
            }
            for number in SLOW {
                subscribe(
                    &fixture,
                    "domain",
                    "slow.example",
                    &receivers.url(204, Duration::from_secs(10), number),
                    number as usize,
                );
            }
            if slow {
                happen(&fixture, "slow", 60, "slow.example", None);
            }
            let daemon = Daemon::start(&fixture, "");
            if slow {
                // Each is asked as often at once as may be.
                until("the slow ones are asked", || receivers.count(SLOW) >= SLOW.len() * 4);
            }
            let soon = latencies(&fixture, &receivers, QUICK, "quick.example", runs * 2);
            let received = receivers.count(QUICK);
            happen(&fixture, "quick", events, "quick.example", None);
            let all = received + events * QUICK.len();
            until("the quick ones have all", || receivers.count(QUICK) >= all);
            let rate = receivers.look(|came| {
                let came: Vec<_> = came.iter().filter(|one| QUICK.contains(&one.receiver)).skip(received).collect();
                came.len() as f64 / (came.last().unwrap().arrived - came[0].arrived).as_secs_f64()
            });
            drop(daemon);
            if slow {
                beside.push(rate);
                soon_beside.extend(soon.values());
            } else {
                alone.push(rate);
                soon_alone.extend(soon.values());
            }
        }
    }
    let part = beside.median() / alone.median();
    let [soon_alone, soon_beside]: [Series; 2] = [soon_alone, soon_beside].map(|all| all.into_iter().collect());
    let late = soon_beside.quantile(0.95);
    let row = |what: &str, rate: &Series, soon: &Series, goal: String| {
        let numbers = [rate.median(), soon.median(), soon.quantile(0.95)].map(|number| format!("{number:.0}"));
        let [rate, half, most] = numbers;
        [what.to_owned(), rate, half, most, goal]
    };
    report.table(
        ["four quick receivers", "a second", "p50, ms", "p95, ms", "goal"],
        &[
            row("alone", &alone, &soon_alone, String::new()),
            row("beside 100 that take 10 s", &beside, &soon_beside, {
                format!("≥ 0.9 of alone: {part:.2}, {}; p95 ≤ 1 s: {}", verdict(part >= 0.9), verdict(late <= 1000.0))
            }),
        ],
    );
    report.line(format!(
        "Rates: a backlog of {} notifications. p50, p95: from the commit to the request, one event after another.",
        events * QUICK.len()
    ));
}
