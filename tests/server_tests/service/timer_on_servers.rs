//! The service finishes what is owed, and prunes, by itself: on each engine, by several hosts at once, whatever ends in between.

use crate::support::database::Engine;
use crate::support::ledger_history::{self, Made};
use crate::support::program::{PATIENCE, wait_for, wait_until};
use crate::support::service::Service;
use crate::support::site_fixture::{LISA, Scene};
use crate::support::wire::Wire;
use crate::support::{host_and_port, server};
use maildrop_command::lock::LockName;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

on_two_engines![
    of_two_hosts_one_finishes_what_is_owed_and_nothing_is_duplicated,
    the_other_host_goes_on_where_one_is_killed,
    a_mailbox_store_that_refuses_costs_no_copy_and_is_tried_again,
    a_user_who_is_refused_holds_up_nobody_elses_copy,
    a_store_that_lets_nobody_in_ends_the_run_after_three_users,
    the_role_of_deliveries_is_enough_to_finish_what_is_owed,
    pruning_has_a_role_and_a_configuration_of_its_own,
    how_the_service_is_tells_of_it,
    the_service_indexes_addresses_and_prunes_failures_as_the_role_of_deliveries_whatever_else_its_timer_does,
];

const OWED: &str = "SELECT count(*) FROM copies WHERE state = 'owed'";

/// A timer of one host. Dropped, it is killed.
struct Timer {
    process: Child,
    state: String,
    finishes_owed: bool,
}

impl Timer {
    /// With these lines of `[service]`.
    fn start(scene: &Scene, host: &str, serve: &str) -> Self {
        let folder = scene.path(host);
        let config = scene.other_configuration(&format!("{host}.toml"), |settings| {
            settings.more +=
                &format!("[service]\nruntime_directory = \"{folder}/run\"\nstate_directory = \"{folder}\"\n{serve}");
        });
        let mut command = Command::new(env!("CARGO_BIN_EXE_maildropd"));
        command.args(["--config", &config, "--role", "timer"]).env_clear().stdin(Stdio::null());
        let finishes_owed = !serve.contains("finish_owed_every = \"0s\"");
        Self { process: command.spawn().unwrap(), state: format!("{folder}/timer.json"), finishes_owed }
    }

    /// What came of the last run of this task.
    fn last_of(&self, task: &str) -> Value {
        let text = std::fs::read_to_string(&self.state).unwrap_or_default();
        let tasks = serde_json::from_str::<Vec<Value>>(&text).unwrap_or_default();
        tasks.into_iter().find(|one| one["task"] == task).map_or(Value::Null, |mut one| one["last"].take())
    }

    /// What came of the last try to finish owed copies; of a timer that does not try, of `prune`.
    fn last(&self) -> Value {
        let finished = self.last_of("finish_owed");
        if finished.is_null() && !self.finishes_owed { self.last_of("prune") } else { finished }
    }

    fn log_text(&self) -> String {
        self.last()["result"].as_str().unwrap_or_default().to_owned()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Ends on the usual signal.
    #[track_caller]
    fn end(mut self) {
        self.signal(Signal::TERM);
        wait_for("the timer ends", PATIENCE, || self.process.try_wait().unwrap().is_some());
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Locks of MySQL and MariaDB are of all sites on a server that have one namespace: a timer that runs once is to find
/// no other at it.
fn of_its_own(scene: &Scene) -> String {
    format!("[lock]\nnamespace = \"{}\"\n", scene.run)
}

/// A site that owes Lisa her copies of these messages.
fn owing(engine: Engine, ids: &[&str]) -> Scene {
    let mut scene = Scene::with(engine, &["lisa", "doug"]);
    for id in ids {
        scene.deliver("doug", scene.message(id)).delivered();
    }
    owe_all(&mut scene, &["lisa"]);
    assert_eq!(scene.database.count(OWED), ids.len() as i64);
    scene
}

/// From now on these authors are owed what they had in Sent.
fn owe_all(scene: &mut Scene, authors: &[&str]) {
    for author in authors {
        let mut author = scene.look(author);
        for command in ["SELECT Sent", "STORE 1:* +FLAGS (\\Deleted)", "EXPUNGE", "LOGOUT"] {
            author.run(command).unwrap();
        }
    }
    scene.database.execute(
        "UPDATE copies SET state = 'owed', reason = 'over quota', uid_validity = NULL, uid = NULL, delivered_at = NULL \
         WHERE role = 'sender'",
    );
    assert!(authors.iter().all(|author| scene.sent(author).is_empty()));
}

/// Lets the messages with these subjects be recorded so many hours ago, and their owed copies be tried half as long ago.
fn tried_before(scene: &mut Scene, subjects: &str, hours: u32) {
    let ago = |hours: u32| match scene.database.engine.is_postgres() {
        true => format!("interval '{hours} hours'"),
        false => format!("INTERVAL {hours} HOUR"),
    };
    let (recorded, tried) = (ago(hours), ago(hours / 2));
    let these = format!("(SELECT id FROM messages WHERE subject LIKE '{subjects}')");
    scene.database.execute(&format!(
        "UPDATE copies SET updated_at = updated_at - {tried} WHERE state = 'owed' AND message IN {these}"
    ));
    scene.database.execute(&format!(
        "UPDATE messages SET recorded_at = recorded_at - {recorded} WHERE subject LIKE '{subjects}'"
    ));
}

/// Each of these is there once, and owed no more.
#[track_caller]
fn all_are_finished(scene: &mut Scene, ids: &[&str]) {
    assert_eq!(scene.database.count(OWED), 0);
    let mut there: Vec<String> = scene.sent("lisa").iter().map(|copy| copy.field("Subject")).collect();
    there.sort();
    assert_eq!(there, ids);
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
}

const EACH_SECOND: &str = "finish_owed_every = \"1s\"\n";
/// One run, in a test.
const ONCE: &str = "finish_owed_every = \"6h\"\n";

fn of_two_hosts_one_finishes_what_is_owed_and_nothing_is_duplicated(engine: Engine) {
    let ids = ["a", "b", "c", "d", "e"];
    let mut scene = owing(engine, &ids);
    let hosts = ["one", "two"].map(|host| Timer::start(&scene, host, EACH_SECOND));
    wait_until("nothing is owed", || scene.database.count(OWED) == 0);
    for host in &hosts {
        wait_until("both have seen so", || host.log_text() == "nothing is owed");
    }
    hosts.into_iter().for_each(Timer::end);
    all_are_finished(&mut scene, &ids);
    let log = scene.log();
    assert_eq!(log.matches("an owed copy is finished").count(), ids.len(), "{log}");
}

fn the_other_host_goes_on_where_one_is_killed(engine: Engine) {
    let mut scene = owing(engine, &["a", "b"]);
    let held = ["a", "b"].map(|id| scene.hold(&scene.message_id(id)));
    let one = Timer::start(&scene, "one", EACH_SECOND);
    wait_until("a copy is in progress", || {
        scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL") == 1
    });
    let two = Timer::start(&scene, "two", EACH_SECOND);
    wait_until("the other waits for its turn", || two.log_text().starts_with("another host is at it"));
    one.signal(Signal::KILL);
    drop(held);
    wait_until("one is finished, and the other not settled", || scene.database.count(OWED) == 1);
    scene.ten_minutes_pass();
    wait_until("nothing is owed", || scene.database.count(OWED) == 0);
    two.end();
    all_are_finished(&mut scene, &["a", "b"]);
}

fn a_mailbox_store_that_refuses_costs_no_copy_and_is_tried_again(engine: Engine) {
    let ids = ["a", "b", "c", "d"];
    let mut scene = owing(engine, &ids);
    let imap = scene.settings.imap.clone();
    // Nobody listens there.
    scene.configure(|settings| settings.imap = ("127.0.0.1".into(), 1));
    let refused = Timer::start(&scene, "one", EACH_SECOND);
    wait_until("a run has failed", || refused.last()["well"] == false);
    let shown = refused.log_text();
    assert!(shown.starts_with("the mailbox store: ") && shown.ends_with(" (4 still owed)"), "{shown}");
    refused.end();
    // No copy was tried, so each is still due.
    let reasons = scene.database.texts("SELECT reason FROM copies WHERE state = 'owed'");
    assert_eq!(reasons, ["over quota"; 4]);
    assert_eq!(scene.sent("lisa").len(), 0);

    scene.configure(|settings| settings.imap = imap);
    // As the one before it has failed, it begins at once.
    let timer = Timer::start(&scene, "one", EACH_SECOND);
    wait_until("nothing is owed", || scene.database.count(OWED) == 0);
    timer.end();
    all_are_finished(&mut scene, &ids);
}

/// A wire to this mailbox store on which this user's logins have trouble while the flag is up; and how many had.
type Trouble = fn((String, u16), &str, &Arc<AtomicBool>) -> (Wire, Arc<AtomicUsize>);

/// A site whose program writes to doug as a user who is no longer let in, or whose mailbox hangs. Its copies have been tried before; one of
/// Lisa's was tried after them, and another never.
fn one_user_in_trouble(engine: Engine, more: &str, trouble: Trouble) {
    let mut scene = Scene::with(engine, &["lisa", "doug", "noreply"]);
    let (flag, dovecot) = (Arc::new(AtomicBool::new(false)), scene.settings.imap.clone());
    let (wire, met) = trouble(dovecot, &scene.user("noreply"), &flag);
    let namespace = of_its_own(&scene);
    scene.configure(|settings| {
        settings.imap = ("127.0.0.1".into(), wire.address.port());
        settings.more = format!("{more}{namespace}");
    });
    for id in ["dead1", "dead2", "dead3", "dead4", "dead5"] {
        scene.deliver("doug", scene.message(id).replace(LISA, "noreply@mail.axial.net")).delivered();
    }
    for id in ["tried", "new"] {
        scene.deliver("doug", scene.message(id)).delivered();
    }
    owe_all(&mut scene, &["lisa", "noreply"]);
    tried_before(&mut scene, "dead%", 48);
    tried_before(&mut scene, "tried", 24);
    flag.store(true, Ordering::SeqCst);

    let timer = Timer::start(&scene, "one", ONCE);
    wait_until("a run has ended", || !timer.last().is_null());
    let result = timer.log_text();
    assert!(result.starts_with("2 finished, 1 failed, 4 passed over, "), "{result}");
    assert_eq!((&timer.last()["well"], met.load(Ordering::SeqCst)), (&true.into(), 1), "{result}");
    assert_eq!((scene.database.count(OWED), scene.sent("lisa").len()), (5, 2));
    timer.end();

    flag.store(false, Ordering::SeqCst);
    // The one that was tried is left alone for a while.
    let timer = Timer::start(&scene, "two", ONCE);
    wait_until("a run has ended", || !timer.last().is_null());
    assert_eq!(timer.log_text(), "4 finished, 1 still owed");
    timer.end();
    assert_eq!(scene.sent("noreply").len(), 4);
}

fn a_user_who_is_refused_holds_up_nobody_elses_copy(engine: Engine) {
    one_user_in_trouble(engine, "", Wire::where_logins_are_refused);
}

#[test]
fn a_user_whose_mailbox_hangs_holds_up_nobody_elses_copy() {
    one_user_in_trouble(Engine::Postgres17, "[delivery]\ndeadline = \"20s\"\n", Wire::where_logins_hang);
}

/// Their messages would have to be read from mailboxes whose logins are refused, and they were tried longest ago.
#[test]
fn recipients_who_are_gone_hold_up_nobody_elses_copy() {
    let mut scene = owing(Engine::Postgres17, &["a", "b", "c", "d", "e"]);
    scene.database.execute(
        "UPDATE copies SET imap_user = CASE role WHEN 'recipient' THEN 'gone' || message ELSE imap_user END, \
         recipient = 'gone' || message || '@mail.axial.net', updated_at = updated_at - interval '1 minute' \
         WHERE message IN (SELECT id FROM messages WHERE subject IN ('a', 'b', 'c', 'd'))",
    );
    let timer = Timer::start(&scene, "one", ONCE);
    wait_until("a run has ended", || !timer.last().is_null());
    let result = timer.log_text();
    assert!(result.starts_with("1 finished, 4 failed, 4 still owed; "), "{result}");
    timer.end();
    assert_eq!(scene.sent("lisa").len(), 1);
}

/// A thousand owed copies are no reason for a thousand logins with a wrong password.
fn a_store_that_lets_nobody_in_ends_the_run_after_three_users(engine: Engine) {
    let recipients = ["anna", "doug", "emil", "kim", "scuba"];
    let mut scene = Scene::with(engine, &recipients);
    scene.member("lisa");
    let namespace = of_its_own(&scene);
    scene.configure(|settings| settings.more = namespace);
    for name in recipients {
        scene.deliver(name, scene.message(name)).delivered();
    }
    owe_all(&mut scene, &["lisa"]);
    scene.configure(|settings| settings.imap_password = "not-the-right-one".into());
    let timer = Timer::start(&scene, "one", ONCE);
    wait_until("a run has failed", || timer.last()["well"] == false);
    let result = timer.log_text();
    assert!(
        result.starts_with("the mailbox store has refused the logins of 3 users, and let nobody in (5 still owed)"),
        "{result}"
    );
    timer.end();

    scene.configure(|settings| settings.imap_password = "service-secret".into());
    let timer = Timer::start(&scene, "two", EACH_SECOND);
    wait_until("nothing is owed", || scene.database.count(OWED) == 0);
    timer.end();
    all_are_finished(&mut scene, &recipients);
}

/// A run has time for a few copies, however long each of them may take.
#[test]
fn a_deadline_of_an_hour_leaves_time_to_finish_what_is_owed() {
    let mut scene = owing(Engine::Postgres17, &["a"]);
    scene.configure(|settings| settings.more = "[delivery]\ndeadline = \"1h\"\npostfix_time_limit = \"2h\"\n".into());
    let timer = Timer::start(&scene, "one", ONCE);
    wait_until("a run has ended", || !timer.last().is_null());
    assert_eq!(timer.log_text(), "1 finished");
    timer.end();
    all_are_finished(&mut scene, &["a"]);
}

fn the_role_of_deliveries_is_enough_to_finish_what_is_owed(engine: Engine) {
    let mut scene = owing(engine, &["a"]);
    let role = format!("r{}", scene.run);
    scene.database.create_role_of_grants_file(&role, "secret");
    scene.configure(|settings| (settings.role, settings.database_password) = (role, "secret".into()));
    let timer = Timer::start(&scene, "one", EACH_SECOND);
    wait_until("nothing is owed", || scene.database.count(OWED) == 0);
    timer.end();
    all_are_finished(&mut scene, &["a"]);
}

/// The passwords of deliveries are out of its reach, and so is the mailbox store's.
fn pruning_has_a_role_and_a_configuration_of_its_own(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug"]);
    let day = 86_400_000_000;
    let old = |number| Made {
        number,
        role: "recipient",
        began: ledger_history::now() - 60 * day,
        outcome: Some("appended"),
        stages: "{}",
    };
    scene.add_attempts(&[
        old(1),
        old(2),
        Made { outcome: None, ..old(3) },
        Made { began: ledger_history::now() - day, ..old(4) },
    ]);
    let operator = format!("{}_o", scene.run);
    scene.database.create_operator(&operator, "secret");
    scene.file("operator.password", "secret\n", 0o600);
    let password = scene.seen("operator.password");
    scene.configure(|settings| {
        settings.database_more += &format!("roles.timer = {{ user = {operator:?}, password_file = {password:?} }}\n");
        settings.more = "[retention]\nattempts_older_than = \"30d\"\n".into();
    });
    for password in ["database.password", "imap.password"] {
        std::fs::remove_file(scene.path(password)).unwrap();
    }
    let serve = "finish_owed_every = \"0s\"\nprune_every = \"1h\"\n";
    let timer = Timer::start(&scene, "one", serve);
    wait_until("it has pruned", || !timer.last().is_null());
    assert_eq!(
        (timer.log_text().as_str(), &timer.last()["well"]),
        ("2 attempts removed, 0 failures removed", &true.into())
    );
    timer.end();
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts"), 2);

    // A right too few: it says so, and tries again.
    let whom = if engine.is_postgres() { operator } else { format!("'{operator}'@'%'") };
    scene.database.execute(&format!("REVOKE DELETE ON attempts FROM {whom}"));
    let timer = Timer::start(&scene, "two", serve);
    wait_until("it has failed", || timer.last()["well"] == false);
    assert!(timer.log_text().contains("asking for the right to forget"), "{}", timer.log_text());
    timer.end();
}

fn how_the_service_is_tells_of_it(engine: Engine) {
    let mut scene = owing(engine, &["a"]);
    let service = Service::start_with(&mut scene, &format!("workers = 2\n{EACH_SECOND}"), &[]);
    let finish_owed = |status: &Value| {
        let mut tasks = status["timer"].as_array().into_iter().flatten();
        tasks.find(|task| task["task"] == "finish_owed").cloned().unwrap_or_default()
    };
    wait_until("nothing is owed", || finish_owed(&service.status())["last"]["result"] == "nothing is owed");
    let status = service.status();
    let task = finish_owed(&status);
    assert_eq!(
        (&task["task"], &task["every_s"], &task["failed_runs"]),
        (&"finish_owed".into(), &1.0.into(), &0.into())
    );
    assert!(status["processes"].as_array().unwrap().iter().any(|one| one["role"] == "timer"), "{status}");
    service.end();
    all_are_finished(&mut scene, &["a"]);
}

fn the_service_indexes_addresses_and_prunes_failures_as_the_role_of_deliveries_whatever_else_its_timer_does(
    engine: Engine,
) {
    let now = if engine.is_postgres() { "now()" } else { "UTC_TIMESTAMP(6)" };
    let mut scene = Scene::with(engine, &["doug"]);
    let (role, own) = (format!("r{}", scene.run), of_its_own(&scene));
    scene.database.create_role_of_grants_file(&role, "secret");
    scene.configure(|settings| {
        (settings.role, settings.database_password) = (role, "secret".into());
        settings.more += &own;
    });
    scene.deliver("doug", scene.message("one")).delivered();
    let indexed = "SELECT count(*) FROM message_addresses WHERE address = 'doug@mail.axial.net' AND role = 'recipient'";
    assert_eq!(scene.database.count(indexed), 0);
    let week = if engine.is_postgres() { "interval '7 days'" } else { "INTERVAL 7 DAY" };
    for (recipient, at) in [("old@x", format!("{now} - {week}")), ("new@x", now.to_owned())] {
        scene.database.execute(&format!(
            "INSERT INTO failures (identity, recipient, lock_digest, message_id, host, cause, count, first_at, last_at) \
             SELECT identity, '{recipient}', lock_digest, message_id, 'mx1', 'deferred: no such mailbox', 1, {at}, {at} FROM messages"
        ));
    }
    let service = Service::start_with(&mut scene, "workers = 1\nfinish_owed_every = \"0s\"\n", &[]);
    wait_until("it is indexed", || scene.database.count(indexed) == 1);
    // Its recipient, author and sender, and two addresses of the header.
    assert_eq!(scene.database.count("SELECT count(*) FROM message_addresses"), 5);
    wait_until("failures of a week ago are gone", || scene.database.count("SELECT count(*) FROM failures") == 1);
    assert_eq!(scene.database.texts("SELECT recipient FROM failures"), ["new@x"]);
    service.end();
}

#[test]
fn the_proof_that_logins_lead_to_their_users_is_renewed_by_the_timer() {
    let mut scene = Scene::with(Engine::Postgres17, &["doug", "scuba"]);
    scene.deliver("doug", scene.message("one")).delivered();
    scene.database.execute("UPDATE login_checks SET verified_at = verified_at - interval '8 days'");
    let timer = Timer::start(&scene, "one", ONCE);
    wait_until("it is renewed", || {
        scene.database.count("SELECT count(*) FROM login_checks WHERE verified_at > now() - interval '1 day'") == 1
    });
    timer.end();
}

/// What the server says of the session that holds the timer's lock: its state, and whether it holds a snapshot or has written.
fn holder(scene: &mut Scene) -> Vec<String> {
    let key = LockName::new("maildrop exec", b"maildropd finish_owed").postgres_key();
    scene.database.texts(&format!(
        "SELECT a.state || ', ' || coalesce(a.backend_xmin::text, 'no snapshot') || ', ' || coalesce(a.backend_xid::text, 'no xid') \
         FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 \
         AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
         AND (l.classid::bigint << 32) | l.objid::bigint = {key}"
    ))
}

/// However long a copy takes, VACUUM goes on.
fn the_lock_holds_back_no_vacuum(mut scene: Scene) {
    let held = scene.hold(&scene.message_id("a"));
    let timer = Timer::start(&scene, "one", EACH_SECOND);
    wait_until("a copy is in progress", || {
        scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL") == 1
    });
    assert_eq!(holder(&mut scene), ["idle in transaction, no snapshot, no xid"]);
    drop(held);
    wait_until("nothing is owed", || scene.database.count(OWED) == 0);
    timer.end();
    all_are_finished(&mut scene, &["a"]);
    // It ends with its holder.
    wait_until("the lock is free", || holder(&mut scene).is_empty());
}

#[test]
fn on_postgresql_the_lock_holds_no_snapshot() {
    the_lock_holds_back_no_vacuum(owing(Engine::Postgres17, &["a"]));
}

#[test]
fn pgbouncer_in_transaction_mode_may_stand_between() {
    let mut scene = owing(Engine::Postgres17, &["a"]);
    scene.configure(|settings| settings.database = host_and_port(server("PGBOUNCER"), 5432));
    the_lock_holds_back_no_vacuum(scene);
}
