//! What one delivery costs, beside what the servers themselves take for it, and beside what people deliver by today.
//! `tests/bench/run` builds and starts everything; README.md beside this file says how to read what it prints.
//!
//! Nothing is asserted: clocks lie. Runs of what is compared take turns, so that both have the machine in the same mood.

mod comparison;
mod failures;
mod figures;
mod floor;
mod growth;
mod mariadb;
mod notifications;
mod page;
mod peer;
mod peers;
mod plot;
mod process;
mod program;
mod service;
mod site;
mod stages;
#[allow(unused_imports, unused_macros, reason = "it uses a part of what the tests use")]
#[path = "../support/mod.rs"]
mod support;
mod through_postfix;
mod warm;

use figures::Report;
use floor::{Calls, Servers};
use site::{SIZE, Site};
use std::io::Read;
use std::path::PathBuf;
use std::time::Instant;

/// Measures a part. The number is that of the runs of an ordinary delivery; who measures what takes longer does so less
/// often.
type Measure = fn(&mut Report, &Site, usize);

/// What is measured: a name for `--only`, and how.
const PARTS: [(&str, Measure); 14] = [
    ("peers", peers::measure),
    ("postfix", through_postfix::measure),
    ("stages", stages::measure),
    ("growth", growth::measure),
    ("process", program::measure),
    ("warm", warm::measure),
    ("many", service::many::measure),
    ("service", service::measure),
    ("poison", service::poison::measure_alone),
    ("memory", service::measure_memory),
    ("memory-without-store", service::measure_memory_without_store),
    ("page", page::measure),
    ("notifications", notifications::measure),
    ("failures", failures::measure),
];

fn main() {
    // Cargo says that this is a bench.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if arguments.first().is_some_and(|first| first == "floor") {
        return floor_in_a_process(&arguments[1..]);
    }
    if arguments.first().is_some_and(|first| first == "--version") {
        // Whether it runs at all, where it was not built.
        return println!("{}", env!("CARGO_PKG_VERSION"));
    }
    let runs: usize = option("--runs").map_or(60, |runs| runs.parse().expect("a number of runs"));
    let only = option("--only");
    let parts: Vec<_> = PARTS.iter().filter(|(name, _)| only.as_ref().is_none_or(|only| only == name)).collect();
    assert!(!parts.is_empty(), "the parts are {:?}", PARTS.map(|(name, _)| name));
    let began = Instant::now();
    let mut report = Report::new(option("--write").map(PathBuf::from));
    site::wait_for_servers();
    let site = Site::set_up();
    describe(&mut report, &site, runs);
    for (name, measure) in parts {
        report.begin(name);
        measure(&mut report, &site, runs);
    }
    report.line(format!("Measured in {} s; load average at the end {}.", began.elapsed().as_secs(), load()));
    report.end();
}

/// What was said on the command line after this.
fn option(name: &str) -> Option<String> {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    arguments.nth(1)
}

fn floor_in_a_process(arguments: &[String]) {
    let calls = Calls::named(&arguments[0]);
    let mut message = Vec::new();
    std::io::stdin().read_to_end(&mut message).expect("a message");
    floor::deliver(&Servers::from_arguments(&arguments[2..]), &arguments[1], &message, calls);
}

fn describe(report: &mut Report, site: &Site, runs: usize) {
    let model = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = model.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map(|(_, name)| name);
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    let (postgres, imap) = (&site.servers.postgres.0, &site.servers.imap.0);
    report.line(format!("{processors} × {}, load average {}.", model.unwrap_or("?"), load()));
    report.line(format!("{} at {postgres}; Dovecot (Maildir) at {imap}.", site.servers_describe_themselves()));
    report.line(format!("Messages of {SIZE} bytes if nothing else is said; {runs} runs each, in turns."));
    report.line(
        "Milliseconds: the median (the quartiles). Ratios: the median (the quartiles) of those of neighbouring runs.",
    );
}

fn load() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap_or_default().split(' ').take(3).collect::<Vec<_>>().join(" ")
}
