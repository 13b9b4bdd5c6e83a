//! A primary that was left behind and stands first in the list: it hangs, or it takes writes that it never commits. What comes in
//! afterwards is delivered by the next server on the first try, by pipe and by a worker whose session was kept.

use crate::fixtures::primary_and_standby::{Pair, go_to};
use crate::support::database::{Connection, Engine};
use crate::support::lmtp::Lmtp;
use crate::support::program::wait_until;
use crate::support::service::Service;
use crate::support::site_fixture::{LISA, Scene};
use crate::support::wire::{Fate, Speaker, Wire, says};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Nobody waits for a server that takes writes.
const IMPATIENT: &str = "failover_timeout = \"0s\"\n";
const DEADLINE: &str = "[delivery]\ndeadline = \"60s\"\n";

fn by_worker(lmtp: &mut Lmtp, scene: &Scene, id: &str) {
    let replies = lmtp.deliver(LISA, &["doug@mail.axial.net".into()], &scene.message(id));
    assert!(replies[0].starts_with("250 2.0.0 INBOX appended"), "{replies:?}\n{}", scene.log());
}

fn goes_on_by_the_new_primary(leave_behind: impl Fn(&Pair), back: impl Fn(&Pair)) {
    let pair = Pair::start("POSTGRES17");
    let (former, new) = (&pair.primary, &pair.standby);
    let mut scene = pair.site(&[], "");
    pair.be_synchronous();
    scene.configure(|settings| settings.more = DEADLINE.into());
    go_to(&mut scene, &[former, new], IMPATIENT);
    let service = Service::start_with(&mut scene, "workers = 1\n", &[]);
    let mut lmtp = Lmtp::connect(&service.socket);
    by_worker(&mut lmtp, &scene, "before");

    leave_behind(&pair);
    pair.promote();
    by_worker(&mut lmtp, &scene, "by-worker");
    scene.deliver("doug", scene.message("by-pipe")).delivered();
    by_worker(&mut lmtp, &scene, "again");
    assert_eq!(scene.inbox("doug").len(), 5);
    let mut ledger = Connection::open_at(Engine::Postgres17, &new.address(), Some(&scene.database.name));
    for id in ["before", "by-worker", "by-pipe", "again"] {
        let recorded = format!("SELECT message_id FROM messages WHERE message_id = '{}'", scene.message_id(id));
        assert_eq!(ledger.texts(&recorded).len(), 1, "{id}");
    }
    assert!(ledger.texts("SELECT message_id FROM attempts WHERE ended_at IS NULL").is_empty());
    drop((ledger, lmtp));
    service.end();
    back(&pair);
    // So that the site can be removed.
    pair.be_alone();
    scene.database.connect_again();
}

/// Each of its processes is stopped: its kernel lets everybody connect.
#[test]
fn by_one_that_hangs() {
    goes_on_by_the_new_primary(|pair| pair.primary.pause(), |pair| pair.primary.go_on());
}

/// Nobody has ended it: it answers, and its commits wait for a standby that follows it no more.
#[test]
fn by_one_that_commits_nothing() {
    goes_on_by_the_new_primary(Pair::part, |_| {});
}

/// The standby is only away: there is no other server, and the commit is waited for.
#[test]
fn a_primary_whose_standby_is_away_is_used_until_another_takes_over() {
    let pair = Pair::start("POSTGRES17");
    let mut scene = pair.site(&[], "");
    pair.be_synchronous();
    go_to(&mut scene, &[&pair.primary, &pair.standby], "failover_timeout = \"0s\"");
    pair.standby.cut_off();
    let mut session = Pair::session(&pair.primary);
    session.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_replication");
    wait_until("nobody follows", || session.texts("SELECT state FROM pg_stat_replication").is_empty());
    let delivery = scene.start("doug", &[], scene.message("x"));
    // The server's own may wait, too, at any time.
    let waits =
        "SELECT pid::text FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND backend_type = 'client backend'";
    wait_until("its commit waits", || session.texts(waits).len() == 1);
    pair.standby.connect();
    delivery.end().delivered();
    assert_eq!(scene.inbox("doug").len(), 2);
    drop(session);
    pair.be_alone();
}

on_two_engines!(a_server_that_falls_silent_before_a_delivery_is_passed_over);

/// A session was kept, and is asked where the next message goes.
fn a_server_that_falls_silent_before_a_delivery_is_passed_over(engine: Engine) {
    // The look-up of the session's second delivery.
    let look_up = |engine: Engine| if engine.is_postgres() { "maildrop_addresses" } else { "addresses" };
    is_passed_over_once_silent(engine, look_up, false);
}

/// It is asked whether the session carries nothing over: the next message is in the worker's hands by then. Only PostgreSQL is asked
/// that after a record, and only in a session's first delivery.
#[test]
fn a_server_that_falls_silent_after_a_delivery_is_passed_over() {
    is_passed_over_once_silent(Engine::Postgres17, |_| "pg_advisory_unlock_all", true);
}

/// It falls silent when the program says this, after the first delivery or in it. The same server has another address.
fn is_passed_over_once_silent(engine: Engine, at: impl Fn(Engine) -> &'static str, in_the_first: bool) {
    let mut scene = Scene::with(engine, &["doug"]);
    let (may_fall, at) = (Arc::new(AtomicBool::new(in_the_first)), at(engine));
    let heard = may_fall.clone();
    let wire = Wire::to(engine.address(), move |speaker, piece| {
        let falls = speaker == Speaker::Program && says(piece, at) && heard.load(Ordering::SeqCst);
        if falls { Fate::Silence } else { Fate::Pass }
    });
    let (host, port) = engine.address();
    let hosts = format!("hosts = [\"{}\", \"{host}:{port}\"]\n{IMPATIENT}", wire.address);
    scene.configure(|settings| (settings.database_more, settings.more) = (hosts, DEADLINE.into()));
    let service = Service::start_with(&mut scene, "workers = 1\n", &[]);
    let mut lmtp = Lmtp::connect(&service.socket);
    by_worker(&mut lmtp, &scene, "before");
    may_fall.store(true, Ordering::SeqCst);
    by_worker(&mut lmtp, &scene, "by-worker");
    by_worker(&mut lmtp, &scene, "again");
    scene.deliver("doug", scene.message("by-pipe")).delivered();
    assert_eq!(scene.inbox("doug").len(), 4);
    drop(lmtp);
    service.end();
}
