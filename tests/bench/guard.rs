//! The regression guard: what a delivery costs, in figures that are the same however busy the machine is, beside the
//! committed ones (guard.toml); and how large the program is. `tests/bench/guard` builds and starts everything, and `.ci/run`
//! runs that.
//!
//! Valgrind's DHAT counts the release program's instructions and allocations; a proxy before each server counts round trips,
//! farewells among them. Ten runs of each delivery, on a machine with five times as much to do as it has processors for,
//! differed by 0.4 % in instructions (PostgreSQL, a Sent copy; all else by 0.2 % at most), by 0.1 % in allocations and their
//! bytes, and by nothing in round trips. So little is seen that one query more, or one more copy of the message, stands out.
//!
//! Another Rust, another valgrind, or another release of a dependency moves the figures as well. The processor should not, since
//! valgrind shows every program the same one, with AVX2 where there is any; but that was seen on one machine only.

#[allow(unused_imports, unused_macros, reason = "it uses a part of what the tests use")]
#[macro_use]
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use support::counting_proxy::CountingProxy;
use support::database::Engine;
use support::program::feed;
use support::site_fixture::{LISA, Scene};

/// What somebody holds the lock of is deferred at once.
const NO_WAIT: [&str; 2] = ["--lock-wait", "0s"];
/// Where the committed figures are.
const COMMITTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bench/guard.toml");

/// A figure, and by how many percent it may differ from the committed one: more than twice what ten runs differed by; of bytes,
/// what a buffer more takes that a longer host name or path makes grow, or packets that come otherwise: three runs of one delivery
/// differed by 4 %. One more copy of the message shows where that is large.
const FIGURES: [(&str, f64); 6] = [
    ("instructions", 2.0),
    ("allocations", 0.5),
    ("bytes_allocated", 5.0),
    ("peak_heap", 5.0),
    ("database_round_trips", 0.0),
    ("imap_round_trips", 0.0),
];

/// The same of instructions, where the committed figures were made with other tools or on another processor.
const INSTRUCTIONS_ELSEWHERE: f64 = 10.0;

/// The same of allocations, where they were made with other tools: Rust's own library and the C library allocate, too.
const ALLOCATIONS_BY_OTHERS: f64 = 2.0;

/// What the program may have, in bytes: each delivery is a process that starts it.
const MOST_BYTES: u64 = 9_000_000;

const ONE_COPY: &str = "one_copy";
const NOTIFIED: &str = "notified";

/// By name.
type Figures = BTreeMap<String, u64>;
/// By engine and kind of delivery.
type Table = BTreeMap<String, BTreeMap<String, Figures>>;

/// The file.
#[derive(serde::Deserialize)]
struct Committed {
    made_with: String,
    #[serde(flatten)]
    figures: Table,
}

/// A kind of delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Into the recipient's INBOX.
    OneCopy,
    /// And into the author's Sent.
    SentCopy,
    /// It is delivered already.
    ThereAlready,
    /// Another holds the lock.
    Busy,
    /// One copy of a message of a million bytes: where each byte counts.
    Large,
    /// One copy, and somebody is subscribed to it: what that costs is the server's, and nothing of ours. So it is held to [`Self::OneCopy`]
    /// of the same run, and no figures of it are committed.
    Notified,
}

impl Kind {
    /// What changes the site for all that come after it is the last one.
    const ALL: [(Self, &'static str); 6] = [
        (Self::OneCopy, ONE_COPY),
        (Self::SentCopy, "sent_copy"),
        (Self::ThereAlready, "there_already"),
        (Self::Busy, "busy"),
        (Self::Large, "large"),
        (Self::Notified, NOTIFIED),
    ];
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let option = |name: &str| arguments.iter().position(|a| a == name).and_then(|at| arguments.get(at + 1));
    let program = option("--program").expect("--program: which?");
    let made_with = option("--made-with").expect("--made-with: what?");
    let runs: usize = option("--runs").map_or(3, |runs| runs.parse().expect("a number of runs"));

    let mut figures_now = Table::new();
    let mut spread = BTreeMap::new();
    for (engine, name) in [(Engine::Postgres17, "postgresql"), (Engine::Mariadb118, "mariadb")] {
        let mut site = Site::set_up(engine, program);
        for (kind, kind_name) in Kind::ALL {
            if kind == Kind::Notified {
                site.scene.database.subscribe();
            }
            let figures: Vec<Figures> = (0..runs).map(|run| site.measure(kind, run)).collect();
            let of = |figure: &str| figures.iter().map(|figures| figures[figure]).collect::<Vec<_>>();
            let kinds = figures_now.entry(name.to_owned()).or_default().entry(kind_name.to_owned()).or_default();
            for (figure, _) in FIGURES {
                let (least, most) = (of(figure).into_iter().min().unwrap(), of(figure).into_iter().max().unwrap());
                // The least: what else there is was waiting.
                kinds.insert(figure.to_owned(), least);
                spread.insert((name, kind_name, figure), most - least);
            }
        }
    }

    if arguments.iter().any(|argument| argument == "--accept") {
        std::fs::write(COMMITTED, text(made_with, &figures_now)).unwrap();
    }
    let committed = std::fs::read_to_string(COMMITTED).unwrap_or_else(|error| panic!("{COMMITTED}: {error}"));
    let committed: Committed = toml::from_str(&committed).unwrap_or_else(|error| panic!("{COMMITTED}: {error}"));
    let elsewhere = committed.made_with != *made_with;
    // All but the processor, which comes last.
    let tools = |made_with: &str| made_with.splitn(4, ", ").take(3).map(str::to_owned).collect::<Vec<_>>();
    let other_tools = tools(&committed.made_with) != tools(made_with);
    let mut beyond = Vec::new();
    println!("| {:46} | {:>12} | {:>12} | {:>10} | {:>6} |", "", "committed", "now", "difference", "spread");
    println!("|-{:-<46}-|-{:->12}:|-{:->12}:|-{:->10}:|-{:->6}:|", "", "", "", "", "");
    for ((engine, kind, figure), spread) in &spread {
        let now = figures_now[*engine][*kind][*figure];
        let was = if *kind == NOTIFIED {
            figures_now[*engine][ONE_COPY][*figure]
        } else {
            committed.figures.get(*engine).and_then(|kinds| kinds.get(*kind)?.get(*figure)).copied().unwrap_or(0)
        };
        let percent = |part: f64, whole: u64| 100.0 * part / (whole as f64).max(1.0);
        let (difference, spread) = (percent(now as f64 - was as f64, was), percent(*spread as f64, now));
        let name = format!("{engine}, {}: {}", kind.replace('_', " "), figure.replace('_', " "));
        println!("| {name:46} | {was:>12} | {now:>12} | {difference:>+9.2}% | {spread:>5.2}% |");
        let tolerance = FIGURES.iter().find(|(known, _)| known == figure).unwrap().1;
        let tolerance = match *figure {
            _ if *kind == NOTIFIED => tolerance,
            "instructions" if elsewhere => INSTRUCTIONS_ELSEWHERE,
            "allocations" if other_tools => ALLOCATIONS_BY_OTHERS,
            _ => tolerance,
        };
        // A delivery that costs less is no failure, but the committed figure would hide a later rise up to it.
        if difference < -tolerance {
            println!("{name}: better by {:.2} %: `tests/bench/guard --accept` keeps that", -difference);
        }
        if difference > tolerance {
            beyond.push(format!("{name}: {was}, now {now}, {difference:+.2} %; {tolerance} % is let by"));
        }
    }
    if elsewhere {
        println!("The committed figures were made with {}; these with {made_with}.", committed.made_with);
        println!("So instructions may differ by {INSTRUCTIONS_ELSEWHERE} %.");
    }
    let bytes = std::fs::metadata(program).unwrap_or_else(|error| panic!("{program}: {error}")).len();
    println!("The program has {bytes} bytes, of {MOST_BYTES} at most.");
    if bytes > MOST_BYTES {
        eprintln!("The program is too large.");
    }
    if !beyond.is_empty() {
        eprintln!("A delivery costs more than what is committed:\n    {}", beyond.join("\n    "));
        eprintln!("If it is meant: `tests/bench/guard --accept` writes the new figures, to be committed.");
    }
    if beyond.is_empty() && bytes <= MOST_BYTES { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The file, to be committed.
fn text(made_with: &str, table: &Table) -> String {
    let mut text = format!("# Written by tests/bench/guard --accept.\nmade_with = {made_with:?}\n");
    for (engine, kinds) in table {
        for (kind, figures) in kinds.iter().filter(|(kind, _)| *kind != NOTIFIED) {
            text += &format!("\n[{engine}.{kind}]\n");
            for (figure, _) in FIGURES {
                text += &format!("{figure} = {}\n", figures[figure]);
            }
        }
    }
    text
}

/// A site on one engine, reached through proxies that count.
struct Site<'a> {
    scene: Scene,
    program: &'a str,
    database: CountingProxy,
    imap: CountingProxy,
}

impl<'a> Site<'a> {
    fn set_up(engine: Engine, program: &'a str) -> Self {
        let mut scene = Scene::with(engine, &["scuba", "lisa"]);
        let role = format!("deliver_{}", scene.run);
        if engine.is_postgres() {
            // The 4096 rounds of an ordinary password are nine tenths of a delivery's instructions, and not ours.
            scene.database.execute("SET scram_iterations = 1");
        }
        scene.database.create_role_of_grants_file(&role, "deliver-secret");
        let before = |(host, port): &(String, u16)| CountingProxy::before(host, *port);
        let (database, imap) = (before(&scene.settings.database), before(&scene.settings.imap));
        let log = format!("[log]\nto = \"file\"\nfile = \"{}\"\n", scene.path("log"));
        scene.configure(|settings| {
            settings.role = role;
            settings.database_password = "deliver-secret".into();
            settings.database = ("127.0.0.1".into(), database.port);
            settings.imap = ("127.0.0.1".into(), imap.port);
            settings.more = log;
        });
        let site = Self { scene, program, database, imap };
        // The mailboxes come to be.
        site.deliver(&message(LISA, &site.scene.message_id("first"), 100), 0);
        site
    }

    fn deliver(&self, message: &str, exit: i32) {
        let outcome = feed(self.scene.command("scuba", &NO_WAIT), message.as_bytes());
        assert_eq!(outcome.exit, Some(exit), "{outcome:?}");
    }

    fn measure(&self, kind: Kind, run: usize) -> Figures {
        let id = self.scene.message_id(&format!("{kind:?}{run}"));
        let author = if kind == Kind::SentCopy { LISA } else { "ann@elsewhere.example" };
        let message = message(author, &id, if kind == Kind::Large { 1_000_000 } else { 8_000 });
        if kind == Kind::ThereAlready {
            self.deliver(&message, 0);
        }
        let lock = (kind == Kind::Busy).then(|| self.scene.hold(&id));
        self.database.round_trips_in_all();
        self.imap.round_trips_in_all();
        let mut figures = self.under_valgrind(&message, if lock.is_some() { 75 } else { 0 });
        let mut trips = |name: &str, proxy: &CountingProxy| {
            figures.insert(name.to_owned(), proxy.round_trips_in_all() as u64);
        };
        trips("database_round_trips", &self.database);
        trips("imap_round_trips", &self.imap);
        figures
    }

    /// What DHAT counts of a delivery.
    fn under_valgrind(&self, message: &str, exit: i32) -> Figures {
        let counted = self.scene.path("dhat.json");
        let mut command = Command::new("valgrind");
        command.args(["--quiet", "--tool=dhat", &format!("--dhat-out-file={counted}"), self.program]).env_clear();
        command.args(self.scene.command("scuba", &NO_WAIT).get_args());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let outcome = command.spawn().and_then(|mut child| {
            let mut stdin = child.stdin.take().expect("a pipe");
            std::io::Write::write_all(&mut stdin, message.as_bytes())?;
            drop(stdin);
            child.wait_with_output()
        });
        let outcome = outcome.unwrap_or_else(|error| panic!("valgrind: {error}"));
        assert_eq!(outcome.status.code(), Some(exit), "{outcome:?}");
        dhat(Path::new(&counted))
    }
}

/// Reads what DHAT wrote: instructions at the end, and of each place that allocates `tbk` blocks of `tb` bytes, of which
/// `gb` were there when most were.
fn dhat(file: &Path) -> Figures {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let counted: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(counted["tu"], "instrs", "DHAT's unit of time");
    let sum = |name: &str| counted["pps"].as_array().unwrap().iter().map(|place| place[name].as_u64().unwrap()).sum();
    [
        ("instructions", counted["te"].as_u64().unwrap()),
        ("allocations", sum("tbk")),
        ("bytes_allocated", sum("tb")),
        ("peak_heap", sum("gb")),
    ]
    .into_iter()
    .map(|(name, figure)| (name.to_owned(), figure))
    .collect()
}

/// A message, as pipe(8) hands it over, of about this many bytes.
fn message(author: &str, id: &str, size: usize) -> String {
    let mut text = format!(
        "Return-Path: <{author}>\n\
         X-Original-To: scuba@mail.axial.net\n\
         Received: from relay.elsewhere.example (relay.elsewhere.example [192.0.2.7])\n\
         \tby mx1.mail.axial.net (Postfix) with ESMTPS id 4cBxyz1234z9rs\n\
         \tfor <scuba@mail.axial.net>; Thu, 20 Nov 2025 16:00:00 +0000 (UTC)\n\
         From: =?utf-8?q?Some_B=C3=B6dy?= <{author}>\n\
         To: Scuba <scuba@mail.axial.net>, \"Doug\" <doug@mail.axial.net>\n\
         Subject: =?utf-8?b?V2llIHdhcidzIGJlaW0gVGF1Y2hlbj8=?= and some more words\n\
         Date: Thu, 20 Nov 2025 17:00:00 +0100\n\
         Message-ID: {id}\n\
         MIME-Version: 1.0\n\
         Content-Type: text/plain; charset=utf-8\n\
         Content-Transfer-Encoding: 8bit\n\
         \n"
    );
    while text.len() < size {
        text.push_str("All work and no play makes Jack a dull boy; nothing but Arbeit und kein Spaß.\n");
    }
    text
}
