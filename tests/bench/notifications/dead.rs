//! A receiver that is dead, with a million notifications waiting for it.

use super::daemon::{Daemon, subscribe};
use super::until;
use crate::figures::{Ratio, Report, Series, milliseconds};
use crate::growth::fixture::Fixture;
use crate::growth::verdict;
use crate::support::database::Engine;
use crate::support::receivers::Receivers;
use maildrop_command::base::deadline::Deadline;
use maildrop_command::ledger::Notifications;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Each wait of the schedule here, and how many of them are looked at.
const STEP: Duration = Duration::from_secs(3);
const STEPS: usize = 5;
/// How many polls one figure is the mean of.
const POLLS: u32 = 20;

pub fn measure(report: &mut Report, runs: usize) {
    let waiting = if runs >= 20 { 1_000_000 } else { 10_000 };
    report.progress(format!("notifications: a dead receiver, and {waiting} that wait for it"));
    let receivers = Receivers::start();
    let fixtures = [0, waiting].map(|waiting| {
        let fixture = Fixture::new(Engine::Postgres17, []);
        subscribe(&fixture, "domain", "dead.example", &receivers.url(503, Duration::ZERO, u32::from(waiting > 0)), 1);
        // Both have their queue, and statistics of it: they differ in what waits, and in nothing else.
        for statement in FILL.split(";\n") {
            fixture.execute(&statement.replace(":rows", &waiting.to_string()));
        }
        fixture
    });
    let (mut none, mut many) = (Series::default(), Series::default());
    {
        let sites = fixtures.each_ref().map(|fixture| fixture.site_of_the_page(None));
        let mut sessions =
            sites.each_ref().map(|site| site.open_database(None, Deadline::after(Duration::from_mins(10))).unwrap());
        // Both rest, as between two probes.
        for fixture in &fixtures {
            fixture.execute("UPDATE subscription_queues SET due_at = now() + interval '1 hour'");
        }
        for round in 0..runs * 10 {
            let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
            for at in order {
                // One alone takes a quarter of a millisecond, of which the scheduler's part is a third.
                let began = Instant::now();
                for _ in 0..POLLS {
                    let found = sessions[at].has_unpublished(0).unwrap();
                    let leased = sessions[at].lease(Uuid::now_v7(), STEP, 100, &[], 0).unwrap();
                    assert!(!found && leased.is_empty());
                }
                let took = milliseconds(began.elapsed()) / f64::from(POLLS);
                [&mut none, &mut many][at].push_if(round >= 20, took);
            }
        }
    }
    let fixture = &fixtures[1];
    fixture.execute("UPDATE subscription_queues SET due_at = now()");
    let retry = vec![format!("\"{}s\"", STEP.as_secs()); 20].join(", ");
    let daemon = Daemon::start(fixture, &format!("retry_schedule = [{retry}]\n"));
    let failed = "SELECT coalesce(max(failures), 0)::bigint FROM subscription_queues";
    until("the receiver rests", || fixture.count(failed) >= 5);
    let (since, before) = (Instant::now(), receivers.count(1..2));
    std::thread::sleep(STEP * STEPS as u32);
    let (probes, steps) = (receivers.count(1..2) - before, since.elapsed().as_secs_f64() / (0.8 * STEP.as_secs_f64()));
    let memory = daemon.most_memory();
    drop(daemon);
    let ratio = Ratio::of(&many, &none);
    let row = |what: &str, seen: String, goal: String| [what.to_owned(), seen, goal];
    report.table(
        [&format!("{waiting} wait for a dead receiver"), "seen", "goal"],
        &[
            row("a poll, ms", format!("{many}; with none {none}"), {
                format!("≤ × 1.2: {ratio}, {}", verdict(ratio.value <= 1.2))
            }),
            row(
                "memory of the notifier, MB, at most",
                format!("{memory:.1}"),
                format!("≤ 64: {}", verdict(memory <= 64.0)),
            ),
            row(
                "probes in 15 s, the steps of the schedule being 3 s, a fifth shorter or longer",
                probes.to_string(),
                // A step may be a fifth shorter, and one may begin as the looking begins.
                format!("≤ 1 a step: {}", verdict(probes as f64 <= steps.ceil())),
            ),
        ],
    );
}

const FILL: &str = "INSERT INTO events (event, type, copy_key, identity, message_id, role, recipient, imap_user, mailbox, host, diff, created_at, \
published_at) SELECT gen_random_uuid(), 'message.delivered', sha256(n::text::bytea), sha256(n::text::bytea), '<' || n || '@x.example>', \
'recipient', 'doug@dead.example', 'doug', 'INBOX', 'mx1', '{}', now(), now() FROM generate_series(1, :rows) n;
INSERT INTO notifications (subscription, event, due_at) SELECT s.id, e.position, now() - interval '1 hour' \
+ e.position * interval '1 millisecond' FROM subscriptions s, events e;
INSERT INTO subscription_queues (subscription, due_at) SELECT id, now() FROM subscriptions;
VACUUM (ANALYZE) notifications, events, subscription_queues;
CHECKPOINT";
