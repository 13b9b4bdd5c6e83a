//! The primary dies among deliveries, and its standby takes over. Where commits wait for the standby, nothing is lost,
//! nothing is duplicated, and the ledger of the new primary has it all. Where they do not, the ledger forgets, and
//! epochs keep what it forgot from being duplicated.

use crate::fixtures::delivery_storm::{Storm, hurry};
use crate::fixtures::last_crlf_gate::Gate;
use crate::fixtures::primary_and_standby::{Pair, go_to, hosts};
use crate::support::check_report::assert_reported_before;
use crate::support::database::{Connection, Engine};
use crate::support::own_server::OwnServer;
use crate::support::site_fixture::Scene;

const MESSAGES: usize = 24;
/// Where commits wait for nobody: how many of doug's the standby hears of, and how many at least are delivered after
/// that, before the primary dies.
const KNOWN: usize = 6;
const FORGOTTEN: usize = 6;

/// A session with the database on the server that has taken over.
fn ledger(pair: &Pair, scene: &Scene) -> Connection {
    Connection::open_at(Engine::Postgres17, &pair.standby.address(), Some(&scene.database.name))
}

fn site(pair: &Pair) -> (Scene, Gate) {
    let mut scene = pair.site(&[], "");
    for name in ["scuba", "lisa"] {
        scene.member(name);
    }
    let gate = hurry(&mut scene);
    (scene, gate)
}

#[test]
fn a_primary_that_dies_among_deliveries_loses_nothing_and_doubles_nothing() {
    let pair = Pair::start("POSTGRES17");
    let (mut scene, gate) = site(&pair);
    pair.be_synchronous();
    go_to(&mut scene, &[&pair.primary, &pair.standby], "");
    assert_reported_before(&scene, "replication", "a commit waits for standby", ["ok", "ok"]);
    the_primary_dies_among_deliveries(&mut scene, &pair, &gate);
}

/// Nobody ends the former primary: it answers, and its commits wait for a standby that follows it no more. One mail host has it first,
/// the other one the standby that takes over.
#[test]
fn a_primary_that_goes_on_answering_among_deliveries_loses_nothing_and_doubles_nothing() {
    let pair = Pair::start("POSTGRES17");
    let (mut scene, gate) = site(&pair);
    pair.be_synchronous();
    let (former, new) = (&pair.primary, &pair.standby);
    let by = |name: &str, order: [&OwnServer; 2]| {
        scene.other_configuration(name, |settings| settings.database_more = hosts(&order, ""))
    };
    let storm = Storm::by(&scene, MESSAGES, vec![by("one.toml", [former, new]), by("another.toml", [new, former])]);
    storm.deliver(|| {
        storm.stop_some(&gate, MESSAGES / 3);
        pair.part();
        pair.promote();
        gate.open();
        assert_eq!(Pair::session(former).texts("SELECT pg_is_in_recovery()::text"), ["false"]);
    });
    storm.each_is_there_once(&mut ledger(&pair, &scene));
    // What it was asked to commit waits there for ever.
    former.kill();
    former.start();
    pair.be_alone();
    scene.database.connect_again();
}

/// It takes what waits at the gate with it; each message is there once all the same, and the ledger says so.
pub fn the_primary_dies_among_deliveries(scene: &mut Scene, pair: &Pair, gate: &Gate) {
    let storm = Storm::of(scene, MESSAGES);
    storm.deliver(|| {
        storm.stop_some(gate, MESSAGES / 3);
        pair.primary.kill();
        gate.open();
        pair.promote();
    });
    storm.each_is_there_once(&mut ledger(pair, scene));
    // So that the site can be removed.
    pair.primary.start();
    pair.be_alone();
    scene.database.connect_again();
}

/// No commit waits. The standby hears of some deliveries to doug, and not of the next; among these the primary is
/// killed. Scuba's come when all of doug's are done. How many copies are there more than once.
fn a_fail_over_that_forgets_among_deliveries(with_epochs: bool) -> usize {
    let pair = Pair::start("POSTGRES17");
    let (mut scene, gate) = site(&pair);
    pair.catch_up();
    go_to(&mut scene, &[&pair.primary, &pair.standby], "");
    assert_reported_before(&scene, "replication", "to 1, and no commit waits for it", ["warning", "bad"]);

    let storm = Storm::of(&scene, MESSAGES);
    storm.deliver_some(0..KNOWN, &["doug"], || {});
    pair.catch_up();
    pair.part();
    storm.deliver_some(KNOWN..MESSAGES, &["doug"], || {
        storm.stop_some(&gate, FORGOTTEN);
        pair.primary.kill();
        gate.open();
        pair.promote();
    });
    let mut database = ledger(&pair, &scene);
    let known = storm.recorded(&mut database, "doug", "INBOX").len();
    assert!((KNOWN..=MESSAGES - FORGOTTEN).contains(&known), "{known} of doug's {MESSAGES} copies are known");
    if !with_epochs {
        // As if there had been no fail-over: an empty table is as after the migration.
        database.execute("DELETE FROM epochs");
    }
    storm.deliver_some(0..MESSAGES, &["scuba"], || {});

    let report = storm.counted();
    assert!(report.lost.is_empty(), "{report:?}");
    assert_eq!(storm.recorded(&mut database, "lisa", "Sent").len(), MESSAGES, "each of scuba's deliveries records it");
    drop(database);
    pair.primary.start();
    scene.database.connect_again();
    report.duplicates.len()
}

#[test]
fn what_a_fail_over_among_deliveries_has_forgotten_is_there_once() {
    assert_eq!(a_fail_over_that_forgets_among_deliveries(true), 0);
}

/// The negative control: without epochs, lisa's copy of each message whose delivery to doug was forgotten is made once
/// more.
#[test]
fn without_epochs_what_a_fail_over_among_deliveries_has_forgotten_is_duplicated() {
    let twice = a_fail_over_that_forgets_among_deliveries(false);
    assert!(twice >= FORGOTTEN, "only {twice} copies are duplicated");
}
