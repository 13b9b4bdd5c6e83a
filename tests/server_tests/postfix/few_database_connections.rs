//! How few connections to the database will do: two hundred deliveries in the same instant, through PgBouncer in transaction
//! mode, which has twenty connections to the server for all of them, its own questions for passwords included.

use crate::support::database::{ADMINISTRATOR, Connection, Engine};
use crate::support::own_server::OwnServer;
use crate::support::program::{PATIENCE, Running, wait_until};
use crate::support::site_fixture::{LISA, Scene};
use postgres::{NoTls, SimpleQueryMessage};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const SERVER_CONNECTIONS: i64 = 20;
const RECIPIENTS: usize = 20;
/// Messages to one recipient, whose author does not live here.
const SINGLE: usize = 100;
/// Messages to several recipients, each by a member of its own, who gets a Sent copy.
const SHARED: usize = 10;
const RECIPIENTS_OF_EACH: usize = 10;
const DELIVERIES: usize = SINGLE + SHARED * RECIPIENTS_OF_EACH;

/// For every other of the shared messages; the others wait for nobody.
const LOCK_WAIT: [&str; 2] = ["--lock-wait", "60s"];
const NO_WAIT: [&str; 2] = ["--lock-wait", "0s"];

#[test]
fn two_hundred_deliveries_at_once_end_well_on_twenty_server_connections() {
    let recipients: Vec<String> = (0..RECIPIENTS).map(|n| format!("user{n}")).collect();
    let authors: Vec<String> = (0..SHARED).map(|n| format!("author{n}")).collect();
    let names: Vec<&str> = recipients.iter().chain(&authors).map(String::as_str).collect();
    let mut scene = Scene::with(Engine::Postgres17, &names);
    let role = format!("deliver_{}", scene.run);
    scene.database.create_role_of_grants_file(&role, "deliver-secret");
    let pooler = OwnServer::pooler();
    let mut console = Console::of(&pooler);
    // Of each pool, and of all pools of a database: deliveries have a pool, and so has the role that looks up passwords.
    console.say(&format!("SET default_pool_size = {SERVER_CONNECTIONS}"));
    console.say(&format!("SET max_db_connections = {SERVER_CONNECTIONS}"));
    scene.configure(|settings| {
        settings.database = pooler.address();
        settings.role.clone_from(&role);
        settings.database_password = "deliver-secret".into();
    });

    let mut waiting = Vec::with_capacity(DELIVERIES);
    for n in 0..SINGLE {
        waiting.push(Waiting {
            recipient: n % RECIPIENTS,
            arguments: &[],
            message: scene.message(&format!("single{n}")),
        });
    }
    for (n, author) in authors.iter().enumerate() {
        let message = scene.message(&format!("shared{n}")).replace(LISA, &format!("{author}@mail.axial.net"));
        let arguments: &[&str] = if waits_for_the_lock(n) { &LOCK_WAIT } else { &NO_WAIT };
        for k in 0..RECIPIENTS_OF_EACH {
            waiting.push(Waiting { recipient: (n + k) % RECIPIENTS, arguments, message: message.clone() });
        }
    }
    assert_eq!(waiting.len(), DELIVERIES);

    // PgBouncer holds them all up, and lets them go in the same instant.
    console.say("PAUSE");
    let start = |waiting: Waiting| {
        let running = scene.start(&recipients[waiting.recipient], waiting.arguments, &waiting.message);
        (waiting, running)
    };
    let mut running: Vec<(Waiting, Running)> = waiting.into_iter().map(start).collect();
    wait_until("all are there", || console.clients(&scene.database.name) == DELIVERIES);
    let watch = Watch::begin(scene.session(), &scene.database.name, &pooler);
    // Until those who wait for a lock have taken every connection to the server.
    let locks: Vec<Connection> = (0..SHARED)
        .filter(|n| waits_for_the_lock(*n))
        .map(|n| scene.hold(&scene.message_id(&format!("shared{n}"))))
        .collect();
    console.say("RESUME");
    wait_until("no connection is left", || watch.most() >= SERVER_CONNECTIONS);
    drop(locks);
    let (mut tries, began) = (DELIVERIES, Instant::now());
    while !running.is_empty() {
        assert!(began.elapsed() < PATIENCE, "{} are deferred again and again", running.len());
        let mut deferred = Vec::new();
        for (waiting, delivery) in running {
            let outcome = delivery.end_within(PATIENCE);
            if outcome.exit == Some(75) {
                outcome.deferred("4.3.0 another delivery of this message holds its lock");
                deferred.push(waiting);
            } else {
                outcome.delivered();
            }
        }
        // Postfix comes again.
        tries += deferred.len();
        running = deferred.into_iter().map(start).collect();
    }
    let most = watch.end();
    println!("{DELIVERIES} deliveries, {tries} tries, at most {most} server connections");
    assert_eq!(most, SERVER_CONNECTIONS, "server connections at a time, at most");

    for (n, name) in recipients.iter().enumerate() {
        let single = (0..SINGLE).filter(|message| message % RECIPIENTS == n).map(|message| format!("single{message}"));
        let to_it = |message: &usize| (0..RECIPIENTS_OF_EACH).any(|k| (message + k) % RECIPIENTS == n);
        let shared = (0..SHARED).filter(to_it).map(|message| format!("shared{message}"));
        let mut expected: Vec<String> = single.chain(shared).collect();
        expected.sort();
        assert_eq!(subjects(&scene, name, "INBOX"), expected, "{name}");
    }
    for (n, name) in authors.iter().enumerate() {
        assert_eq!(subjects(&scene, name, "Sent"), [format!("shared{n}")], "{name}");
    }
    let mut count = |sql: &str| scene.database.count(sql);
    assert_eq!(count("SELECT count(*) FROM messages"), (SINGLE + SHARED) as i64);
    assert_eq!(count("SELECT count(*) FROM copies WHERE state = 'delivered'"), (DELIVERIES + SHARED) as i64);
    assert_eq!(count("SELECT count(*) FROM copies WHERE state <> 'delivered'"), 0);
    assert_eq!(count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);

    // What PgBouncer keeps open is idle, and outside any transaction; nobody holds a lock.
    let here = "datname = current_database()";
    assert_eq!(count(&format!("SELECT count(*) FROM pg_stat_activity WHERE {here} AND state LIKE 'idle in %'")), 0);
    let locks = "locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    assert_eq!(count(&format!("SELECT count(*) FROM pg_locks WHERE {locks}")), 0);
    wait_until("PgBouncer has nobody left", || console.clients(&scene.database.name) == 0);
    let pools = console.rows("SHOW POOLS");
    for pool in pools.iter().filter(|pool| pool["database"] == scene.database.name) {
        assert_eq!((pool["cl_waiting"].as_str(), pool["sv_active"].as_str()), ("0", "0"), "{pool:?}");
    }
}

fn waits_for_the_lock(shared: usize) -> bool {
    shared.is_multiple_of(2)
}

/// A recipient that Postfix has a message for.
struct Waiting {
    recipient: usize,
    arguments: &'static [&'static str],
    message: String,
}

fn subjects(scene: &Scene, name: &str, mailbox: &str) -> Vec<String> {
    let mut subjects: Vec<String> =
        scene.mailbox(name, mailbox).iter().map(|message| message.field("Subject")).collect();
    subjects.sort();
    subjects
}

/// PgBouncer's administration console, which understands simple queries only.
struct Console(postgres::Client);

impl Console {
    fn of(pooler: &OwnServer) -> Self {
        let (host, port) = pooler.address();
        let (user, password) = ADMINISTRATOR;
        let mut options = postgres::Config::new();
        options.host(&host).port(port).user(user).password(password).dbname("pgbouncer");
        Self(options.connect(NoTls).unwrap())
    }

    fn say(&mut self, command: &str) {
        self.0.simple_query(command).unwrap_or_else(|error| panic!("{command}: {error:?}"));
    }

    fn rows(&mut self, question: &str) -> Vec<BTreeMap<String, String>> {
        let answers = self.0.simple_query(question).unwrap_or_else(|error| panic!("{question}: {error:?}"));
        let row = |answer| match answer {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        };
        let cells = |row: postgres::SimpleQueryRow| {
            let names = row.columns().iter().map(|column| column.name().to_owned());
            names.enumerate().map(|(n, name)| (name, row.get(n).unwrap_or_default().to_owned())).collect()
        };
        answers.into_iter().filter_map(row).map(cells).collect()
    }

    /// How many are connected for this database, or about to be.
    fn clients(&mut self, database: &str) -> usize {
        self.rows("SHOW CLIENTS").iter().filter(|client| client["database"] == database).count()
    }
}

/// Counts the connections that PostgreSQL has from the pooler, all the time.
struct Watch {
    over: Arc<AtomicBool>,
    most: Arc<AtomicI64>,
    thread: thread::JoinHandle<()>,
}

impl Watch {
    fn begin(mut session: Connection, database: &str, pooler: &OwnServer) -> Self {
        let (over, most) = (Arc::<AtomicBool>::default(), Arc::<AtomicI64>::default());
        // PgBouncer closes one to make room for another, and the server may take a moment to let go of it: a new one counts
        // when it has been there for longer than that.
        let count = format!(
            "SELECT count(*)::text FROM pg_stat_activity WHERE datname = '{database}' AND client_addr = '{}' \
             AND backend_start < clock_timestamp() - interval '3 seconds'",
            pooler.address().0
        );
        let thread = thread::spawn({
            let (over, most) = (over.clone(), most.clone());
            move || {
                while !over.load(Ordering::SeqCst) {
                    most.fetch_max(session.texts(&count)[0].parse().unwrap(), Ordering::SeqCst);
                    thread::sleep(Duration::from_millis(10));
                }
            }
        });
        Self { over, most, thread }
    }

    /// The most that there ever were.
    fn most(&self) -> i64 {
        self.most.load(Ordering::SeqCst)
    }

    fn end(self) -> i64 {
        self.over.store(true, Ordering::SeqCst);
        self.thread.join().unwrap();
        self.most.load(Ordering::SeqCst)
    }
}
