//! Many users, as a site has them: hardly a copy goes to one for whom a worker has a session, so that nearly each is a login. Beside it the
//! mailbox store's own LMTP, which records nothing.

use super::fixture::{Fixture, Otherwise, Service, until};
use super::load::{Load, Spent};
use super::processor::{CYRUS, DOVECOT, MARIADB, OURS, POSTFIX, POSTGRESQL, Used};
use super::{CONNECTIONS, SIZE};
use crate::figures::{Report, Series, milliseconds, ratio};
use crate::peer::{MAILS, Peers};
use crate::site::{STRANGER, Site, message, with_crlf};
use crate::support::counting_proxy::CountingProxy;
use crate::support::database::Engine;
use crate::support::imap::Imap;
use crate::support::run::Random;
use crate::support::smtp::Smtp;
use crate::through_postfix;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Recipients of a message.
const EACH: [usize; 2] = [1, 10];
/// Of the service: those of the docs, but that no worker is replaced meanwhile.
const SERVE: &str = "recycle_after = 1000000\n";

/// Round trips are counted, not timed: these are enough.
const COPIES_FOR_ROUND_TRIPS: usize = 100;

/// How much is measured.
struct Effort {
    users: &'static [usize],
    /// Copies in a round, and rounds: of what is recommended, which has a goal, and of the others.
    kept: (usize, usize),
    others: (usize, usize),
}

impl Effort {
    fn of(&self, store: Store) -> (usize, usize) {
        if store == DOVECOT_KEPT { self.kept } else { self.others }
    }
}

/// A mailbox store. All of them apply quotas and ACLs, and so does their LMTP.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Store {
    Dovecot { processes_are_kept: bool },
    Cyrus,
}

const DOVECOT_KEPT: Store = Store::Dovecot { processes_are_kept: true };
const STORES: [Store; 3] = [DOVECOT_KEPT, Store::Dovecot { processes_are_kept: false }, Store::Cyrus];

impl Store {
    fn title(self) -> &'static str {
        match self {
            DOVECOT_KEPT => "Dovecot, IMAP processes kept",
            Self::Dovecot { .. } => "Dovecot as it comes",
            Self::Cyrus => "Cyrus",
        }
    }

    fn name(self) -> &'static str {
        match self {
            DOVECOT_KEPT => "kept",
            Self::Dovecot { .. } => "fresh",
            Self::Cyrus => "cyrus",
        }
    }

    fn program(self) -> &'static str {
        if self == Self::Cyrus { CYRUS } else { DOVECOT }
    }

    /// Lines of `[imap]`, if it is not where the configuration says.
    fn imap(self) -> Option<&'static str> {
        (self == Self::Cyrus).then_some("host = \"127.0.0.1\"\nport = 1143\n")
    }

    fn lmtp(self) -> (&'static str, PathBuf) {
        match self {
            Self::Dovecot { .. } => ("Dovecot's LMTP", Fixture::dovecots_socket()),
            Self::Cyrus => ("Cyrus' lmtpd, without duplicates", CYRUS_LMTP.into()),
        }
    }
}

const CYRUS_CONF: &str = "/srv/cyrus/cyrus.conf";
const CYRUS_LMTP: &str = "/srv/cyrus/run/lmtp";

/// Cyrus with LMTP, and with processes that serve as many sessions as they do by default.
fn prepare_cyrus() {
    let settings = fs::read_to_string(CYRUS_CONF).expect("Cyrus is in the image `bench`");
    let lmtp =
        format!("SERVICES {{\n    lmtp cmd=\"lmtpd -C /srv/cyrus/imapd.conf\" listen=\"{CYRUS_LMTP}\" prefork=2\n");
    fs::write(CYRUS_CONF, settings.replace("SERVICES {\n", &lmtp).replace(" -U 30", "")).expect("Cyrus' folder");
    let master = fs::read_to_string("/srv/cyrus/run/master.pid").expect("Cyrus runs");
    let master = master.trim().parse().ok().and_then(Pid::from_raw).expect("a number");
    kill_process(master, Signal::HUP).expect("Cyrus runs");
    until("Cyrus speaks LMTP", || UnixStream::connect(CYRUS_LMTP).is_ok());
}

pub fn measure(report: &mut Report, site: &Site, runs: usize) {
    let effort = if runs < 20 {
        Effort { users: &[30], kept: (60, 1), others: (60, 1) }
    } else {
        Effort { users: &[8, 300, 3_000], kept: (runs * 10, runs / 6), others: (runs * 5, runs / 20) }
    };
    let mut bench =
        Bench { peers: Peers::set_up(site), fixture: Fixture::set_up(site), random: Random::seeded(), effort };
    prepare_cyrus();
    let Effort { kept, others, .. } = bench.effort;
    report.line(format!(
        "Recipients at random, messages of {SIZE} bytes by {CONNECTIONS} connections, in turns. {} rounds of {} copies with Dovecot's processes \
         kept, {} of {} otherwise. CPU: processor time of a copy, in all; its parts are known to hundredths of a second of a round. Context \
         switches: of the whole machine.",
        kept.1, kept.0, others.1, others.0
    ));
    for store in STORES {
        bench.store(report, store);
    }
    bench.through_postfix(report);
}

struct Bench<'a> {
    peers: Peers<'a>,
    fixture: Fixture<'a>,
    random: Random,
    effort: Effort,
}

/// What is given mail.
struct Receiver {
    title: String,
    socket: PathBuf,
    /// Behind a user's name.
    domain: &'static str,
    database: Option<&'static str>,
}

/// The users of a store, and how many copies each is to have.
type Users = HashMap<String, usize>;

/// What copies cost.
#[derive(Default)]
struct Cost {
    rate: Series,
    processor: Series,
    parts: BTreeMap<&'static str, Series>,
    switches: Series,
}

impl Cost {
    fn add(&mut self, spent: &Spent, copies: usize, programs: &[&'static str]) {
        self.rate.push(copies as f64 / spent.wall.as_secs_f64());
        self.processor.push(milliseconds(spent.used.all) / copies as f64);
        self.switches.push(spent.used.switches as f64 / copies as f64);
        for &program in programs {
            let part = milliseconds(spent.used.by(program)) / copies as f64;
            self.parts.entry(program).or_default().push(part);
        }
    }

    fn parts(&self, programs: &[&'static str]) -> String {
        let parts: Vec<String> =
            programs.iter().map(|program| format!("{} {:.2}", program, self.parts[program].median())).collect();
        parts.join(", ")
    }
}

impl Bench<'_> {
    fn store(&mut self, report: &mut Report, store: Store) {
        if let Store::Dovecot { processes_are_kept } = store {
            self.fixture.dovecot(processes_are_kept);
        }
        let mut users = Users::new();
        let names: Vec<Vec<String>> =
            self.effort.users.iter().map(|count| self.add_users(report, store, *count)).collect();
        for name in names.iter().flatten() {
            users.insert(name.clone(), 0);
        }
        let services = self.start(store, None);
        let (title, socket) = store.lmtp();
        let mut receivers: Vec<Receiver> =
            services.iter().map(|(database, service)| Receiver::ours(database, service)).collect();
        receivers.push(Receiver { title: title.to_owned(), socket, domain: "", database: None });
        let mut rows = Vec::new();
        for names in &names {
            // Each has one message from the start.
            let first = Load { connections: 1, ..self.load(receivers.last().expect("its own"), names.clone(), 1) };
            first.give(names.len());
            names.iter().for_each(|name| *users.get_mut(name).expect("a user") += 1);
            for each in EACH {
                // Eight have no message of ten.
                let each = each.min(names.len());
                report.progress(format!("{}, {} users, to {each} each", store.title(), names.len()));
                rows.extend(self.cell(store, &receivers, names, each, &mut users));
            }
        }
        drop(services);
        self.count_round_trips(store, &names, &mut users, &mut rows);
        check(store, &users);
        let title = format!("{}: users", store.title());
        let header = [
            title.as_str(),
            "to each",
            "",
            "copies/s",
            "CPU, ms",
            "of it",
            "the store's LMTP ÷ it",
            "database round trips",
            "context switches",
        ];
        report.table(header, &rows);
    }

    /// So many users of a store; on Cyrus with a mailbox and a quota, which an administrator has to make.
    fn add_users(&mut self, report: &Report, store: Store, count: usize) -> Vec<String> {
        report.progress(format!("{}, making {count} users", store.title()));
        let names: Vec<String> = (0..count).map(|number| format!("many-{}-{count}-{number}", store.name())).collect();
        self.peers.add_users(&names);
        if store == Store::Cyrus {
            let mut administrator = Imap::login("127.0.0.1:1143", "service", "service-secret");
            for name in &names {
                for command in [format!("CREATE user/{name}"), format!("SETQUOTA user/{name} (STORAGE 100000000)")] {
                    administrator.run(&command).unwrap_or_else(|error| panic!("{command}: {error}"));
                }
            }
        }
        names
    }

    /// The service on each database; behind a proxy, where there are some.
    fn start(&self, store: Store, proxies: Option<&[CountingProxy; 2]>) -> [(&'static str, Service); 2] {
        let mariadb = self.peers.mariadb.configuration.as_path();
        [(POSTGRESQL, "-postgresql", None), (MARIADB, "-mariadb", Some(mariadb))].map(
            |(database, name, configuration)| {
                let proxy = proxies.map(|proxies| &proxies[usize::from(database == MARIADB)]);
                let place = proxy.map(|proxy| format!("host = \"127.0.0.1\"\nport = {}\n", proxy.port));
                let otherwise = Otherwise {
                    name,
                    configuration,
                    database: place.as_deref(),
                    imap: store.imap(),
                    ..Otherwise::default()
                };
                (database, self.fixture.start_with(SERVE, &otherwise))
            },
        )
    }

    /// For these users, all of whom are given as many messages, one after the other.
    fn load(&self, receiver: &Receiver, users: Vec<String>, each: usize) -> Load {
        let recipients = users.into_iter().map(|user| format!("{user}{}", receiver.domain)).collect();
        Load { socket: receiver.socket.clone(), recipients, each, connections: CONNECTIONS, size: SIZE }
    }

    /// The recipients of so many messages, those of each distinct, which are to have them.
    fn choose(&mut self, names: &[String], each: usize, messages: usize, users: &mut Users) -> Vec<String> {
        let mut all = Vec::new();
        for _ in 0..messages {
            let mut chosen: Vec<&String> = Vec::new();
            while chosen.len() < each.min(names.len()) {
                let name = &names[self.random.next() as usize % names.len()];
                if !chosen.contains(&name) {
                    chosen.push(name);
                    *users.get_mut(name).expect("a user") += 1;
                }
            }
            all.extend(chosen.into_iter().cloned());
        }
        all
    }

    fn cell(
        &mut self,
        store: Store,
        receivers: &[Receiver],
        names: &[String],
        each: usize,
        users: &mut Users,
    ) -> Vec<[String; 9]> {
        let (copies, rounds) = self.effort.of(store);
        let messages = copies / each;
        let mut costs: Vec<Cost> = receivers.iter().map(|_| Cost::default()).collect();
        let mut give = |bench: &mut Self, receiver: &Receiver| {
            let chosen = bench.choose(names, each, messages, users);
            bench.load(receiver, chosen, each).give(messages)
        };
        for round in 0..=rounds {
            let mut order: Vec<usize> = (0..receivers.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for at in order {
                let spent = give(self, &receivers[at]);
                // The first opens sessions.
                if round > 0 {
                    costs[at].add(&spent, messages * each, &receivers[at].programs(store));
                }
            }
        }
        let peer = costs.last().expect("the store's own LMTP");
        let rows = receivers.iter().zip(&costs).map(|(receiver, cost)| {
            [
                names.len().to_string(),
                each.to_string(),
                receiver.title.clone(),
                format!("{:.0}", cost.rate.median()),
                cost.processor.to_string(),
                cost.parts(&receiver.programs(store)),
                receiver.database.map_or_else(String::new, |_| ratio(&peer.processor, &cost.processor)),
                String::new(),
                format!("{:.0}", cost.switches.median()),
            ]
        });
        rows.collect()
    }

    /// Fills in how often a database is waited for, by what goes over the wire.
    fn count_round_trips(&mut self, store: Store, names: &[Vec<String>], users: &mut Users, rows: &mut [[String; 9]]) {
        let proxies = [Engine::Postgres17, Engine::Mariadb118].map(|engine| {
            let (host, port) = engine.address();
            CountingProxy::before(&host, port)
        });
        let services = self.start(store, Some(&proxies));
        let mut rows = rows.iter_mut();
        for names in names {
            for each in EACH.map(|each| each.min(names.len())) {
                let messages = COPIES_FOR_ROUND_TRIPS / each;
                for ((database, service), proxy) in services.iter().zip(&proxies) {
                    let receiver = Receiver::ours(database, service);
                    // The first opens sessions.
                    for _ in 0..2 {
                        let _ = proxy.round_trips();
                        let chosen = self.choose(names, each, messages, users);
                        self.load(&receiver, chosen, each).give(messages);
                    }
                    let row = rows.next().expect("a row for each");
                    row[7] = format!("{:.2}", proxy.round_trips() as f64 / (messages * each) as f64);
                }
                // Its own LMTP has no database.
                let _ = rows.next();
            }
        }
    }

    /// The same through a real Postfix, which hands it over by LMTP.
    fn through_postfix(&mut self, report: &mut Report) {
        self.fixture.dovecot(true);
        let service = self.fixture.start(SERVE);
        through_postfix::set_up(&self.peers, &service);
        let mut rows = Vec::new();
        for count in self.effort.users {
            for each in EACH.map(|each| each.min(*count)) {
                report.progress(format!("through Postfix, {count} users, to {each} each"));
                let receivers =
                    [("lmtp", "maildropd, PostgreSQL", Some(POSTGRESQL)), ("dovecot", "Dovecot's LMTP", None)];
                let mut all = receivers.map(|(transport, title, database)| {
                    let names: Vec<String> =
                        (0..*count).map(|number| format!("{transport}-{count}-{each}-{number}")).collect();
                    self.peers.add_users(&names);
                    let receiver =
                        Receiver { title: title.to_owned(), socket: Fixture::dovecots_socket(), domain: "", database };
                    let first = self.load(&receiver, names.clone(), 1);
                    first.give(names.len());
                    let users: Users = names.iter().map(|name| (name.clone(), 1)).collect();
                    (receiver, names, users, Cost::default())
                });
                let (copies, rounds) = self.effort.others;
                let messages = copies / each;
                for round in 0..=rounds {
                    for at in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
                        let (receiver, names, users, cost) = &mut all[at];
                        let chosen = self.choose(names, each, messages, users);
                        let spent = give_to_postfix(&chosen, each);
                        // The first makes Postfix start its processes.
                        if round > 0 {
                            let programs = [&receiver.programs(DOVECOT_KEPT)[..], &[POSTFIX]].concat();
                            cost.add(&spent, messages * each, &programs);
                        }
                    }
                }
                for (receiver, _, users, cost) in &all {
                    check(DOVECOT_KEPT, users);
                    let programs = [&receiver.programs(DOVECOT_KEPT)[..], &[POSTFIX]].concat();
                    let [rate, processor] = [format!("{:.0}", cost.rate.median()), cost.processor.to_string()];
                    rows.push([
                        count.to_string(),
                        each.to_string(),
                        receiver.title.clone(),
                        rate,
                        processor,
                        cost.parts(&programs),
                    ]);
                }
            }
        }
        let header =
            ["through Postfix, Dovecot's processes kept: users", "to each", "", "copies/s", "CPU, ms", "of it"];
        report.table(header, &rows);
    }
}

impl Receiver {
    fn ours(database: &'static str, service: &Service) -> Self {
        Self {
            title: format!("maildropd, {database}"),
            socket: service.socket.clone(),
            domain: "@mail.example",
            database: Some(database),
        }
    }

    /// Whose processor time is measured.
    fn programs(&self, store: Store) -> Vec<&'static str> {
        let ours = self.database.map(|database| [database, OURS]);
        let mut all = vec![store.program()];
        all.extend(ours.into_iter().flatten());
        all
    }
}

/// Gives Postfix a message for each so many of these, and waits until it has got rid of the last.
fn give_to_postfix(chosen: &[String], each: usize) -> Spent {
    let to: Vec<Vec<String>> =
        chosen.chunks(each).map(|names| names.iter().map(|name| format!("{name}@mail.example")).collect()).collect();
    let texts: Vec<Vec<u8>> = to.iter().map(|_| with_crlf(&message(STRANGER, SIZE))).collect();
    let all: Vec<_> = to.iter().zip(&texts).collect();
    let (before, began) = (Used::now(), Instant::now());
    std::thread::scope(|scope| {
        for some in all.chunks(all.len().div_ceil(CONNECTIONS)) {
            scope.spawn(move || {
                let mut session = Smtp::connect("127.0.0.1:25");
                for (to, text) in some {
                    session.give(STRANGER, to, text);
                    assert_eq!(session.say(".").0, 250);
                }
            });
        }
    });
    through_postfix::wait_for_the_queue(began);
    Spent { wall: began.elapsed(), used: Used::now().since(&before), latencies: Vec::new() }
}

/// Each has what it was given, once.
fn check(store: Store, users: &Users) {
    if store == Store::Cyrus {
        // Mailboxes are in folders that are named otherwise.
        assert_eq!(messages_below(Path::new("/srv/cyrus/mail")), users.values().sum::<usize>(), "in Cyrus");
        return;
    }
    for (name, count) in users {
        assert_eq!(messages_below(&Path::new(MAILS).join(name).join("Maildir")), *count, "{name}");
    }
}

/// The files of a Maildir or of Cyrus' that are messages.
fn messages_below(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())).flatten();
    let count = |entry: fs::DirEntry| {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            return messages_below(&entry.path());
        }
        let (name, folder) = (entry.file_name(), folder.file_name().unwrap_or_default().to_owned());
        let is_cyrus = name.to_string_lossy().strip_suffix('.').is_some_and(|number| number.parse::<u32>().is_ok());
        usize::from(is_cyrus || folder == "cur" || folder == "new")
    };
    entries.map(count).sum()
}
