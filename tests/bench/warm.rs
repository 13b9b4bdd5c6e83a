//! A warm delivery beside a cold one: a process that keeps its sessions, beside the program as pipe(8) starts it. Each
//! server in a container of its own, whose processor time the kernel counts (cgroups).

use crate::figures::{Report, Series, milliseconds, ratio, rest};
use crate::process;
use crate::site::{Site as BenchSite, message};
use crate::support::counting_proxy::CountingProxy;
use crate::support::database::Engine;
use crate::support::env_if_there;
use crate::support::own_server::OwnServer;
use crate::support::site_fixture::{LISA, Scene};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::base::log;
use maildrop_command::delivery::{NoCaller, Policy, Stages, Verdict};
use maildrop_command::message::{Address, Message};
use maildrop_command::site::{self, Envelope, Sessions, Site, Terms};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// An ordinary message's size, in bytes.
const SIZE: usize = 4_000;
/// Deliveries in a row, cold or warm: what a server uses is too little to be counted for one.
const IN_A_ROW: usize = 20;
/// What every delivery may take.
const TIME: Duration = Duration::from_secs(240);

pub fn measure(report: &mut Report, _: &BenchSite, runs: usize) {
    if env_if_there("MAILDROP_TEST_POSTGRES17_CONTAINER").is_none() {
        return report.line("Not measured here: it starts servers of its own beside those of `tests/servers/up`.");
    }
    let rounds = runs.div_ceil(10);
    let dovecot = OwnServer::dovecot();
    for engine in [Engine::Postgres17, Engine::Mysql9, Engine::Mariadb118] {
        report.progress(format!("{engine:?}"));
        let database = OwnServer::database(engine);
        for authors_here in [false, true] {
            let mut fixture = Fixture::new(engine, &database, &dovecot, authors_here);
            fixture.measure(report, rounds);
        }
    }
}

/// A site on servers of its own.
struct Fixture {
    scene: Scene,
    engine: Engine,
    authors_here: bool,
    /// Where the kernel counts: the database's, Dovecot's.
    counters: [Option<PathBuf>; 2],
    site: Site,
    sessions: Sessions,
}

/// What deliveries of one kind cost, each.
#[derive(Default)]
struct Cost {
    wall: Series,
    ours: Series,
    /// The servers' processor time: a figure for each row of deliveries.
    servers: [Series; 2],
}

impl Fixture {
    fn new(engine: Engine, database: &OwnServer, dovecot: &OwnServer, authors_here: bool) -> Self {
        let mut scene = Scene::on(engine, database, dovecot);
        scene.member("doug");
        if authors_here {
            scene.member(LISA.split('@').next().unwrap_or_default());
        }
        let file = scene.path("log");
        scene.configure(|settings| {
            settings.more = format!(
                "[log]\nto = \"file\"\nfile = \"{file}\"\nformat = \"json\"\n[sent]\nauthor_check = \"header\"\n"
            )
        });
        let site = scene.site();
        // Once for this process, as once for each of the others.
        let _ = log::start(&site.config().expect("it has one").log_settings());
        let counters = [&database.container, &dovecot.container].map(|container| counter(container));
        Self { scene, engine, authors_here, counters, site, sessions: Sessions::default() }
    }

    fn measure(&mut self, report: &mut Report, rounds: usize) {
        let (mut cold, mut warm) = (Cost::default(), Cost::default());
        for round in 0..=rounds {
            // The first round is a warm-up.
            let order = if round % 2 == 0 { [true, false] } else { [false, true] };
            for is_warm in order {
                rest();
                let cost = if is_warm { &mut warm } else { &mut cold };
                let mut unused = Cost::default();
                self.in_a_row(is_warm, if round == 0 { &mut unused } else { cost });
            }
        }
        let what = if self.authors_here { "INBOX and Sent" } else { "INBOX" };
        let trips = [self.round_trips(false), self.round_trips(true)];
        let row = |name: &str, cost: &Cost, [database, imap]: [usize; 2]| {
            let [at_database, at_imap] = &cost.servers;
            let cell = |series: &Series| if series.len() == 0 { "?".to_owned() } else { series.to_string() };
            [
                name.to_owned(),
                cost.wall.to_string(),
                cost.ours.to_string(),
                cell(at_database),
                cell(at_imap),
                format!("{database}"),
                format!("{imap}"),
            ]
        };
        let mut rows = vec![row("cold", &cold, trips[0]), row("warm", &warm, trips[1])];
        let [database, imap] = [0, 1].map(|at| match warm.servers[at].len() {
            0 => "?".to_owned(),
            _ => ratio(&warm.servers[at], &cold.servers[at]),
        });
        let of_both = [ratio(&warm.wall, &cold.wall), ratio(&warm.ours, &cold.ours)];
        let [wall, ours] = of_both;
        let empty = String::new;
        rows.push(["warm ÷ cold".into(), wall, ours, database, imap, empty(), empty()]);
        let title = format!("{:?}, {what}", self.engine);
        let header =
            [title.as_str(), "ms", "our CPU, ms", "database CPU, ms", "Dovecot CPU, ms", "SQL trips", "IMAP trips"];
        report.table(header, &rows);
    }

    fn in_a_row(&mut self, is_warm: bool, cost: &mut Cost) {
        let before = self.counted();
        for _ in 0..IN_A_ROW {
            let message = message(if self.authors_here { LISA } else { "ann@elsewhere.example" }, SIZE);
            let (took, used) = if is_warm { self.warm(message) } else { self.cold(&message) };
            cost.wall.push(milliseconds(took));
            cost.ours.push(milliseconds(used));
        }
        for ((before, after), series) in before.into_iter().zip(self.counted()).zip(&mut cost.servers) {
            if let (Some(before), Some(after)) = (before, after) {
                series.push(milliseconds(after.saturating_sub(before)) / IN_A_ROW as f64);
            }
        }
    }

    fn cold(&self, message: &[u8]) -> (Duration, Duration) {
        let ended = process::run(&mut self.scene.command("doug", &["--queue-id", "4cBxyz1234z9rs"]), message);
        assert!(ended.output.starts_with("2."), "{}", ended.output);
        (ended.took, ended.processor)
    }

    fn warm(&mut self, message: Vec<u8>) -> (Duration, Duration) {
        let (began, used) = (Instant::now(), processor());
        deliver(&self.site, &mut self.sessions, message);
        (began.elapsed(), processor().saturating_sub(used))
    }

    /// How often each server is waited for, by what goes over the wire, for a delivery that is not the first.
    fn round_trips(&mut self, is_warm: bool) -> [usize; 2] {
        let (database, imap) = (self.scene.settings.database.clone(), self.scene.settings.imap.clone());
        let proxies = [&database, &imap].map(|(host, port)| CountingProxy::before(host, *port));
        let [database, imap] = proxies.each_ref().map(|proxy| ("127.0.0.1".to_owned(), proxy.port));
        let by_proxies = self.scene.other_configuration("proxies.toml", |settings| {
            (settings.database, settings.imap) = (database, imap);
        });
        let author = if self.authors_here { LISA } else { "ann@elsewhere.example" };
        if is_warm {
            let config = maildrop_command::config::Config::load(by_proxies.as_ref()).expect("a configuration");
            let (site, mut sessions) = (Site::configured(config).expect("a site"), Sessions::default());
            deliver(&site, &mut sessions, message(author, SIZE));
            let _first = proxies.each_ref().map(CountingProxy::round_trips);
            deliver(&site, &mut sessions, message(author, SIZE));
            return proxies.each_ref().map(CountingProxy::round_trips);
        }
        process::run(&mut self.scene.command_by(&by_proxies, "doug", &[]), &message(author, SIZE));
        proxies.each_ref().map(CountingProxy::round_trips_in_all)
    }

    /// The processor time that the servers have used so far.
    fn counted(&self) -> [Option<Duration>; 2] {
        self.counters.each_ref().map(|file| {
            let text = std::fs::read_to_string(file.as_ref()?).ok()?;
            let microseconds = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
            microseconds.parse().ok().map(Duration::from_micros)
        })
    }
}

/// A delivery as a process that goes on would make it, up to where it is ready for the next one.
fn deliver(site: &Site, sessions: &mut Sessions, message: Vec<u8>) {
    let began = Instant::now();
    let message = Message::receive(message).expect("a message");
    let envelope = Envelope {
        sender: Some(LISA.into()),
        recipient: Address::parse("doug@mail.axial.net").expect("an address"),
        original_recipient: None,
        queue_id: Some("4cBxyz1234z9rs".into()),
        client_address: None,
        sasl_username: None,
    };
    let mut stages = Stages::default();
    let policy: Policy = site.policy();
    let terms = Terms { policy: &policy, caller: &NoCaller, deadline: Deadline::after(TIME) };
    let result = site.deliver(sessions, &message, &envelope, &terms, &mut stages);
    let verdict = Verdict::from(result.as_ref().unwrap_or_else(|refusal| panic!("{refusal}")));
    site::log_delivery(&message, &envelope, &site.lock_name(&message), &result, &verdict, &stages, began);
    sessions.end();
}

/// The processor time of this process's threads that run.
fn processor() -> Duration {
    let threads = std::fs::read_dir("/proc/self/task").expect("threads");
    let of_one = |path: PathBuf| {
        let text = std::fs::read_to_string(path).ok()?;
        text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
    };
    threads.flatten().filter_map(|thread| of_one(thread.path().join("schedstat"))).sum()
}

/// Where the kernel counts a container's processor time, by version 2 of its cgroups.
fn counter(container: &str) -> Option<PathBuf> {
    let output = Command::new("docker").args(["inspect", "--format", "{{.Id}}", container]).output().ok()?;
    let id = String::from_utf8(output.stdout).ok()?;
    let id = id.trim();
    [format!("docker/{id}"), format!("unified/docker/{id}"), format!("system.slice/docker-{id}.scope")]
        .map(|folder| PathBuf::from("/sys/fs/cgroup").join(folder).join("cpu.stat"))
        .into_iter()
        .find(|file| file.exists())
}
