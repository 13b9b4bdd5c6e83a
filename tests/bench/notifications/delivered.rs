//! What it costs a delivery that somebody is subscribed, and that nobody is.

use super::daemon::subscribe;
use crate::figures::{Ratio, Report, Series, in_turns, milliseconds};
use crate::growth::fixture::{Fixture, attempt};
use crate::growth::verdict;
use crate::site::{SIZE, STRANGER, message};
use crate::support::counting_proxy::CountingProxy;
use crate::support::database::Engine;
use crate::support::imap_server::somebody;
use crate::support::program::wait_for;
use std::fs;
use std::time::Duration;

/// Of the tables that a delivery reads and writes for subscribers.
const BLOCKS: &str = "SELECT (SELECT sum(heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit + idx_blks_read, 0)) \
    FROM pg_statio_user_tables WHERE relname IN ('outbox', 'subscriptions'))::bigint \
    + (SELECT sum(blks_hit + blks_read) FROM pg_statio_user_sequences WHERE relname LIKE 'outbox%')::bigint";

pub fn measure(report: &mut Report, runs: usize) {
    report.progress("notifications: what they cost a delivery");
    let user = somebody("notified");
    let fixture = Fixture::new(Engine::Postgres17, [&user]);
    let subscribed = |somebody: bool| {
        fixture.execute("DELETE FROM subscriptions");
        if somebody {
            subscribe(&fixture, "all", "", "https://receiver.example/", 1);
        }
    };
    let mut wall: [Series; 2] = Default::default();
    let mut log: [Series; 2] = Default::default();
    let [(nobody_wall, nobody_wal), (notified_wall, notified_wal)] = {
        let mut pairs = wall.iter_mut().zip(log.iter_mut());
        [pairs.next().unwrap(), pairs.next().unwrap()]
    };
    let once = |somebody: bool, counts: bool, wall: &mut Series, wal: &mut Series| {
        subscribed(somebody);
        let before = position_of_the_log(&fixture);
        wall.push_if(counts, milliseconds(fixture.deliver(&user).took));
        // A page that is written whole after a checkpoint is in few of them: the median leaves it out.
        wal.push_if(counts, (position_of_the_log(&fixture) - before) as f64);
    };
    fixture.execute("CHECKPOINT");
    in_turns(
        runs * 2,
        &mut [&mut |counts| once(false, counts, nobody_wall, nobody_wal), &mut |counts| {
            once(true, counts, notified_wall, notified_wal);
        }],
    );
    let [nobody_blocks, notified_blocks] = [false, true].map(|somebody| {
        subscribed(somebody);
        // What is dead of those before.
        fixture.execute("VACUUM subscriptions");
        fixture.deliver(&user);
        let before = blocks(&fixture);
        (0..10).for_each(|_| drop(fixture.deliver(&user)));
        (blocks(&fixture) - before) as f64 / 10.0
    });
    // Before a statement is planned, a new session reads the first block of each index of its tables.
    let indexes = "SELECT count(*) FROM pg_indexes WHERE tablename =";
    let [of_subscriptions, of_outbox] =
        ["subscriptions", "outbox"].map(|table| fixture.count(&format!("{indexes} '{table}'")) as f64);
    let [nobody_blocks, notified_blocks] =
        [nobody_blocks - of_subscriptions, notified_blocks - of_subscriptions - of_outbox];
    let [nobody_trips, notified_trips] = [false, true].map(|somebody| {
        subscribed(somebody);
        round_trips(&fixture, &user)
    });
    let [nobody, notified] = &wall;
    let [nobody_wal, notified_wal] = log.each_ref().map(Series::median);
    let (ratio, bytes) = (Ratio::of(notified, nobody), notified_wal - nobody_wal);
    let row = |what: &str, nobody: String, notified: String, goal: String| [what.to_owned(), nobody, notified, goal];
    report.table(
        ["a delivery, PostgreSQL", "nobody is subscribed", "somebody is", "goal"],
        &[
            row("round trips", nobody_trips.to_string(), notified_trips.to_string(), {
                format!("+0: {}", verdict(notified_trips == nobody_trips))
            }),
            row("write-ahead log, bytes (median)", format!("{nobody_wal:.0}"), format!("{notified_wal:.0}"), {
                format!("≤ +600: {bytes:+.0}, {}", verdict(bytes <= 600.0))
            }),
            row(
                "blocks of outbox and subscriptions",
                format!("{nobody_blocks:.1}"),
                format!("{notified_blocks:.1}"),
                format!("≤ 1, ≤ 8: {}", verdict(nobody_blocks <= 1.0 && notified_blocks <= 8.0)),
            ),
            row("wall, ms", nobody.to_string(), notified.to_string(), {
                format!("≤ × 1.03: {ratio}, {}", verdict(ratio.value <= 1.03))
            }),
        ],
    );
    report.line(format!(
        "Blocks: without the first one of each index, which a session reads once, when it plans its first statement of that table: \
         {of_subscriptions} of subscriptions, {of_outbox} of outbox."
    ));
}

fn position_of_the_log(fixture: &Fixture) -> usize {
    fixture.count("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")
}

/// A session's counts are there once it has ended.
fn blocks(fixture: &Fixture) -> usize {
    let sessions = "SELECT numbackends::bigint FROM pg_stat_database WHERE datname = current_database()";
    wait_for("the deliveries' sessions end", Duration::from_secs(60), || fixture.count(sessions) <= 1);
    // So are those of this one, once a setting asks for them (src/backend/tcop/postgres.c).
    fixture.execute("SELECT pg_stat_force_next_flush()");
    fixture.count(BLOCKS)
}

/// Of one delivery, with the database.
fn round_trips(fixture: &Fixture, user: &str) -> usize {
    let (host, port) = fixture.engine.address();
    let proxy = CountingProxy::before(&host, port);
    let direct = fixture.configuration_with("direct.toml", "");
    let own = format!("host = \"{host}\"\nport = {port}\n");
    let by_proxy = fs::read_to_string(&direct).unwrap().replacen(
        &own,
        &format!("host = \"127.0.0.1\"\nport = {}\n", proxy.port),
        1,
    );
    let path = fixture.path("counted.toml");
    fs::write(&path, by_proxy).unwrap();
    let mut command = std::process::Command::new(crate::site::program());
    command.arg("--config").arg(path).args([
        "--sender",
        STRANGER,
        "--recipient",
        &crate::growth::fixture::address(user),
    ]);
    let tried = attempt(&mut command, &message(STRANGER, SIZE));
    assert_eq!(tried.exit, Some(0), "{}", tried.output);
    proxy.round_trips_in_all()
}
