//! The notifier, the Python daemon beside it, and what they are given to do.

use crate::growth::fixture::Fixture;
use crate::support::database::ADMINISTRATOR;
use crate::support::receivers::Receivers;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use uuid::Uuid;

/// Somebody subscribes. `number` tells subscriptions apart.
pub fn subscribe(fixture: &Fixture, resource: &str, resource_id: &str, url: &str, number: usize) {
    fixture.execute(&if fixture.engine.is_postgres() {
        format!(
            "INSERT INTO subscriptions (id, owner, callback_url, callback_digest, resource, resource_id, state, created_at, updated_at) \
             VALUES (gen_random_uuid(), 'anna', '{url}', sha256('{resource_id} {number}'), '{resource}', '{resource_id}', 'active', now(), \
             now())"
        )
    } else {
        let digest = format!("UNHEX(SHA2('{resource_id} {number}', 256))");
        format!(
            "INSERT INTO subscriptions (id, owner, callback_url, callback_digest, target_digest, resource, resource_id, types, \
             description, state, created_at, updated_at) VALUES (UNHEX(REPLACE(UUID(), '-', '')), 'anna', '{url}', {digest}, {digest}, \
             '{resource}', '{resource_id}', '[]', '', 'active', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))"
        )
    });
}

/// Deliveries have written down so many events of copies of users of this domain; a single one may have this id.
pub fn happen(fixture: &Fixture, seed: &str, events: usize, domain: &str, id: Option<Uuid>) {
    let diff = r#"{"state": {"---": null, "+++": "delivered"}, "uid_validity": {"---": null, "+++": 1700000000}, "uid": {"---": null, "+++": 7}}"#;
    let columns = "event, type, copy_key, identity, message_id, role, recipient, imap_user, mailbox, manner, host, diff, created_at";
    fixture.execute(&if fixture.engine.is_postgres() {
        let id = id.map_or_else(|| "gen_random_uuid()".into(), |id| format!("'{id}'"));
        format!(
            "INSERT INTO outbox ({columns}) SELECT {id}, 'message.delivered', sha256(('{seed}' || n)::bytea), \
             sha256(('{seed}' || n)::bytea), '<' || md5('{seed}' || n) || '@elsewhere.example>', 'recipient', 'user' || n % 100 || \
             '@{domain}', 'user' || n % 100, 'INBOX', 'appended', 'mx1.mail.example', '{diff}', clock_timestamp() \
             FROM generate_series(1, {events}) n"
        )
    } else {
        let id = id.map_or_else(
            || format!("UNHEX(LEFT(SHA2(CONCAT('event {seed}', seq), 256), 32))"),
            |id| format!("X'{}'", id.simple()),
        );
        format!(
            "INSERT INTO outbox ({columns}) SELECT {id}, 'message.delivered', UNHEX(SHA2(CONCAT('{seed}', seq), 256)), \
             UNHEX(SHA2(CONCAT('{seed}', seq), 256)), CONCAT('<', MD5(CONCAT('{seed}', seq)), '@elsewhere.example>'), 'recipient', \
             CONCAT('user', seq % 100, '@{domain}'), CONCAT('user', seq % 100), 'INBOX', 'appended', 'mx1.mail.example', '{diff}', \
             UTC_TIMESTAMP(6) FROM seq_1_to_{events}"
        )
    });
}

/// How many are to be published, or sent.
pub fn pending(fixture: &Fixture) -> usize {
    fixture.count("SELECT (SELECT count(*) FROM outbox) + (SELECT count(*) FROM notifications)")
}

/// The notifier. Dropped, it is killed.
pub struct Daemon(Child);

impl Daemon {
    /// With more lines of `[notifications]`.
    pub fn start(fixture: &Fixture, more: &str) -> Self {
        let key = fixture.path("key");
        fs::write(&key, [7; 32]).unwrap();
        let notifications =
            format!("[notifications]\nsecret_key_file = {key:?}\nallow_networks = [\"127.0.0.0/8\"]\n{more}");
        let config = fixture.configuration_with("notifier.toml", &notifications);
        let mut command = Command::new(env!("CARGO_BIN_EXE_maildropd"));
        command.arg("--config").arg(config).args(["--role", "notifier"]).env_clear().stdin(Stdio::null());
        Self(command.spawn().unwrap())
    }

    /// The processor time that it has used.
    pub fn processor(&self) -> Duration {
        processor(&self.0)
    }

    /// The most memory that it has had, in MB.
    pub fn most_memory(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its peak");
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1000.0
    }

    /// Ends on the usual signal, once the requests under way are answered.
    pub fn end(mut self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The ad platform's daemon in Python.
pub struct Article(Child);

impl Article {
    /// Whether this machine has what it needs.
    pub fn is_here() -> bool {
        Command::new("python3")
            .args(["-c", "import gevent, requests, psycopg2"])
            .output()
            .is_ok_and(|output| output.status.success())
    }

    /// With so many tasks for so many receivers.
    pub fn start(fixture: &Fixture, receivers: &Receivers, quick: u32, tasks: usize) -> Self {
        fixture.execute("DROP TABLE IF EXISTS article_tasks");
        fixture.execute(
            "CREATE TABLE article_tasks (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, callback_url text NOT NULL, \
             event text NOT NULL, body text NOT NULL, taken_until timestamptz)",
        );
        let url = receivers.url(204, Duration::ZERO, 0);
        let url = url.trim_end_matches('0');
        fixture.execute(&format!(
            "INSERT INTO article_tasks (callback_url, event, body) SELECT '{url}' || n % {quick}, replace(gen_random_uuid()::text, '-', ''), \
             json_build_object('id', n, 'created', now(), 'resource', 'message', 'resource_id', md5(n::text), 'diff', \
             json_build_object('state', json_build_object('---', NULL, '+++', 'delivered')))::text FROM generate_series(1, {tasks}) n"
        ));
        let (host, port) = fixture.engine.address();
        let (user, password) = ADMINISTRATOR;
        let database = fixture.database_name();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bench/article/notify.py");
        let mut command = Command::new("python3");
        command.arg(script).arg(format!("host={host} port={port} dbname={database} user={user} password={password}"));
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }

    pub fn processor(&self) -> Duration {
        processor(&self.0)
    }
}

impl Drop for Article {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The processor time of a process, user and system (proc_pid_stat(5), fields 14 and 15).
fn processor(child: &Child) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ').skip(11).take(2);
    let ticks: u64 = fields.map(|field| field.parse::<u64>().unwrap()).sum();
    // The kernel tells user space of a hundred ticks a second.
    Duration::from_millis(ticks * 10)
}
