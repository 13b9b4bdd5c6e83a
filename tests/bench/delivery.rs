//! What one delivery costs, beside what the servers themselves take for it. `tests/bench/run` builds and starts everything;
//! README.md beside this file says what was seen, and how to read it.
//!
//! Nothing is asserted: clocks lie. Runs of what is compared take turns, so that both have the machine in the same mood.

mod figures;
mod floor;
mod process;
mod site;
#[allow(unused_imports, unused_macros, reason = "it uses a part of what the tests use")]
#[path = "../support/mod.rs"]
mod support;

use figures::{Report, Series, ratio};
use floor::{Calls, STAGES, Servers};
use site::{Delivery, MEMBER, STRANGER, Site, Way, message, program, with_crlf};
use std::io::Read;
use std::process::Command;
use std::time::{Duration, Instant};
use support::counting_proxy::CountingProxy;

/// Runs that are not counted: caches fill, mailboxes come to be.
const WARM_UP: usize = 5;
/// A rich mailbox.
const RICH: usize = 30_000;
/// The size of an ordinary message, in bytes.
const SIZE: usize = 8_000;
/// The size of a large one.
const LARGE: usize = 20_000_000;

fn main() {
    // Cargo says that this is a bench.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if arguments.first().is_some_and(|first| first == "floor") {
        return floor_in_a_process(&arguments[1..]);
    }
    let option = |name: &str| arguments.iter().position(|a| a == name).and_then(|at| arguments.get(at + 1));
    let runs: usize = option("--runs").map_or(200, |runs| runs.parse().expect("a number of runs"));
    let began = Instant::now();
    let mut report = Report::default();
    let site = Site::set_up();
    describe(&mut report, &site, runs);
    against_the_floor(&mut report, &site, runs);
    other_deliveries(&mut report, &site, runs / 2);
    rich_mailbox(&mut report, &site, runs / 2);
    process_and_program(&mut report, &site, runs);
    report.line(format!("Measured in {} s; load average at the end {}.", began.elapsed().as_secs(), load()));
    if let Some(file) = option("--write") {
        std::fs::write(file, report.text()).unwrap_or_else(|error| panic!("{file}: {error}"));
    }
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
    report.line(format!("Messages of {SIZE} bytes; {runs} runs each, in turns, {WARM_UP} before them not counted."));
    report
        .line("Milliseconds: the median (the quartiles). Ratios: of the medians (the quartiles of neighbouring runs).");
}

fn load() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap_or_default().split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// Runs each of these in turns, every other round backwards.
fn in_turns(runs: usize, tasks: &mut [&mut dyn FnMut(bool)]) {
    for round in 0..WARM_UP + runs {
        let counts = round >= WARM_UP;
        if round % 2 == 0 {
            tasks.iter_mut().for_each(|task| task(counts));
        } else {
            tasks.iter_mut().rev().for_each(|task| task(counts));
        }
    }
}

fn milliseconds(span: Duration) -> f64 {
    span.as_secs_f64() * 1000.0
}

/// A delivery's time, whole and by stage, and its floors'.
fn against_the_floor(report: &mut Report, site: &Site, runs: usize) {
    let configuration = site.configuration(Way::Plain);
    let user = &site.user;
    let body = || with_crlf(&message(STRANGER, SIZE));
    let (mut deliveries, mut floors) = (Vec::<Delivery>::new(), Vec::new());
    let (mut same, mut fewest, mut running) = (Series::default(), Series::default(), Series::default());
    let process = |calls| milliseconds(process::run(&mut site.floor(calls, user), &body()).took);
    in_turns(
        runs,
        &mut [
            &mut |counts| {
                let delivery = site.deliver(&configuration, user, &message(STRANGER, SIZE));
                if counts {
                    deliveries.push(delivery);
                }
            },
            &mut |counts| {
                let took = process(Calls::Same);
                if counts {
                    same.push(took);
                }
            },
            &mut |counts| {
                let (message, began) = (body(), Instant::now());
                let stages = floor::deliver(&site.servers, user, &message, Calls::Same);
                if counts {
                    running.push(milliseconds(began.elapsed()));
                    floors.push(stages);
                }
            },
            &mut |counts| {
                let took = process(Calls::Fewest);
                if counts {
                    fewest.push(took);
                }
            },
        ],
    );
    let whole: Series = deliveries.iter().map(|delivery| milliseconds(delivery.ended.took)).collect();
    let row = |what: &str, series: &Series| [what.to_owned(), series.to_string(), ratio(&whole, series)];
    report.table(
        ["one recipient, one copy, both servers in the clear", "ms", "delivery ÷ it"],
        &[
            [format!("delivery, {} runs", whole.len()), whole.to_string(), String::new()],
            row("floor: the same calls, in a process of its own (target ≤ 1.3)", &same),
            row("floor: the same calls, in a program that runs on", &running),
            row("floor: as few calls as can be, in a process of its own", &fewest),
        ],
    );

    let mut rows = Vec::new();
    let total: Series = deliveries.iter().map(|delivery| delivery.total).collect();
    // The delivery asks where a mailbox stands as part of opening it.
    for places in [0..=0, 1..=1, 2..=3, 4..=4, 5..=5, 6..=6, 7..=7, 8..=8] {
        let name = STAGES[places.clone()].join(", ");
        let of_ours = |delivery: &Delivery| delivery.stages[places.clone()].iter().sum();
        let ours: Series = deliveries.iter().map(of_ours).collect();
        let of_theirs = |stages: &floor::Stages| milliseconds(stages[places.clone()].iter().sum());
        let theirs: Series = floors.iter().map(of_theirs).collect();
        rows.push([name, ours.to_string(), theirs.to_string(), ratio(&ours, &theirs)]);
    }
    let nothing = String::new;
    let inside = |delivery: &Delivery| delivery.total - delivery.stages.iter().sum::<f64>();
    let own: Series = deliveries.iter().map(inside).collect();
    let around: Series = deliveries.iter().map(|d| milliseconds(d.ended.took) - d.total).collect();
    rows.push(["options, configuration, log, reading the message".into(), own.to_string(), nothing(), nothing()]);
    rows.push(["starting and ending the process".into(), around.to_string(), nothing(), nothing()]);
    rows.push(["all".into(), whole.to_string(), running.to_string(), ratio(&whole, &running)]);
    rows.push(["from main to the verdict".into(), total.to_string(), running.to_string(), ratio(&total, &running)]);
    report.table(["stage", "delivery, ms", "floor in a program that runs on, ms", "ratio"], &rows);
}

/// Other kinds of deliveries, beside the plain one.
fn other_deliveries(report: &mut Report, site: &Site, runs: usize) {
    let (plain, tls) = (site.configuration(Way::Plain), site.configuration(Way::Tls));
    let user = &site.user;
    let mut series: [Series; 3] = Default::default();
    let [one, two, encrypted] = &mut series;
    let deliver = |series: &mut Series, configuration, author, counts| {
        let delivery = site.deliver(configuration, user, &message(author, SIZE));
        if counts {
            series.push(milliseconds(delivery.ended.took));
        }
    };
    in_turns(
        runs,
        &mut [
            &mut |counts| deliver(one, &plain, STRANGER, counts),
            &mut |counts| deliver(two, &plain, MEMBER, counts),
            &mut |counts| deliver(encrypted, &tls, STRANGER, counts),
        ],
    );
    let [one, two, encrypted] = &series;
    report.table(
        ["other deliveries", "ms", "÷ the plain one"],
        &[
            ["one copy, in the clear".into(), one.to_string(), String::new()],
            ["a Sent copy as well".into(), two.to_string(), ratio(two, one)],
            ["both servers under TLS".into(), encrypted.to_string(), ratio(encrypted, one)],
        ],
    );
}

/// A mailbox with a lot in it.
fn rich_mailbox(report: &mut Report, site: &Site, runs: usize) {
    site.fill(RICH);
    let configuration = site.configuration(Way::Plain);
    let mut deliveries: [Vec<Delivery>; 2] = Default::default();
    let mut appends: [Series; 4] = Default::default();
    let [poor, rich] = &mut deliveries;
    let [append_poor, append_rich, status_poor, status_rich] = &mut appends;
    let deliver = |deliveries: &mut Vec<Delivery>, user, counts| {
        let delivery = site.deliver(&configuration, user, &message(STRANGER, SIZE));
        if counts {
            deliveries.push(delivery);
        }
    };
    let append = |series: &mut Series, calls, user: &str, counts| {
        let message = with_crlf(&message(STRANGER, SIZE));
        let took = process::run(&mut site.floor(calls, user), &message).took;
        if counts {
            series.push(milliseconds(took));
        }
    };
    in_turns(
        runs,
        &mut [
            &mut |counts| deliver(poor, &site.poor_user, counts),
            &mut |counts| deliver(rich, &site.rich_user, counts),
            &mut |counts| append(append_poor, Calls::Append, &site.poor_user, counts),
            &mut |counts| append(append_rich, Calls::Append, &site.rich_user, counts),
            &mut |counts| append(status_poor, Calls::StatusAppend, &site.poor_user, counts),
            &mut |counts| append(status_rich, Calls::StatusAppend, &site.rich_user, counts),
        ],
    );
    let [append_poor, append_rich, status_poor, status_rich] = &appends;
    let of = |what: fn(&Delivery) -> f64| deliveries.each_ref().map(|some| some.iter().map(what).collect::<Series>());
    let [poor, rich] = &of(|delivery| milliseconds(delivery.ended.took));
    let [poor_login, rich_login] = &of(|delivery| delivery.stages[2] + delivery.stages[3]);
    let [poor_append, rich_append] = &of(|delivery| delivery.stages[7]);
    let row = |what: &str, poor: &Series, rich: &Series| {
        [what.to_owned(), poor.to_string(), rich.to_string(), ratio(rich, poor)]
    };
    report.table(
        ["", "into a mailbox that began empty, ms", &format!("into one of {RICH}, ms"), "ratio"],
        &[
            row("delivery", poor, rich),
            row("of it: authenticate, position", poor_login, rich_login),
            row("of it: append", poor_append, rich_append),
            row("a bare APPEND: connect, log in, append", append_poor, append_rich),
            row("the same with a STATUS before it", status_poor, status_rich),
        ],
    );
    for (what, small, large) in [
        ("a bare APPEND grows (target ≤ 1.2)", append_poor, append_rich),
        ("a bare STATUS and APPEND grow", status_poor, status_rich),
    ] {
        let growth = large.median() - small.median();
        let beyond = (rich.median() - growth) / poor.median();
        let rounds: Series = rich.beyond(large, small).zip(poor.values()).map(|(left, poor)| left / poor).collect();
        let (low, high) = (rounds.quantile(0.25), rounds.quantile(0.75));
        report.line(format!(
            "- Beyond the {growth:.1} ms by which {what}: {beyond:.2} × the delivery into the other; the quartiles \
             of single rounds are {low:.2} and {high:.2}."
        ));
    }
}

/// What does not depend on how busy the machine is, or hardly.
fn process_and_program(report: &mut Report, site: &Site, runs: usize) {
    let configuration = site.configuration(Way::Plain);
    let user = &site.user;
    let (mut version, mut nothing) = (Series::default(), Series::default());
    let start = |series: &mut Series, command: &mut Command, counts| {
        let took = milliseconds(process::run(command, b"").took);
        if counts {
            series.push(took);
        }
    };
    in_turns(
        runs,
        &mut [&mut |counts| start(&mut version, Command::new(program()).arg("--version"), counts), &mut |counts| {
            start(&mut nothing, &mut Command::new("/bin/true"), counts)
        }],
    );
    let memory = |size: usize, way| {
        let peaks = (0..3)
            .map(|_| process::peak_memory(&mut site.command(&site.configuration(way), user), &message(STRANGER, size)));
        peaks.max().unwrap_or_default() as f64 / 1000.0
    };
    let large = LARGE as f64 / 1e6;
    let time = |command: &mut dyn FnMut()| {
        let before = process::children_time();
        (0..runs).for_each(|_| command());
        (process::children_time() - before) / runs as f64
    };
    let ours = time(&mut || drop(process::run(&mut site.command(&configuration, user), &message(STRANGER, SIZE))));
    let theirs =
        time(&mut || drop(process::run(&mut site.floor(Calls::Same, user), &with_crlf(&message(STRANGER, SIZE)))));
    let mut rows = vec![
        ["--version (target < 2 ms)".to_owned(), format!("{version} ms"), format!("/bin/true: {nothing} ms")],
        [
            "the program (target < 9 MB)".to_owned(),
            format!("{:.2} MB", std::fs::metadata(program()).unwrap().len() as f64 / 1e6),
            String::new(),
        ],
        [
            format!("peak memory, a message of {SIZE} bytes (target ≤ 12 MB)"),
            format!("{:.1} MB", memory(SIZE, Way::Plain)),
            format!("under TLS: {:.1} MB", memory(SIZE, Way::Tls)),
        ],
        [
            format!("peak memory, a message of {large} MB (target ≤ {} MB)", 2.0 * large + 10.0),
            format!("{:.1} MB", memory(LARGE, Way::Plain)),
            String::new(),
        ],
        ["processor time of a delivery".to_owned(), format!("{ours:.2} ms"), format!("floor: {theirs:.2} ms")],
    ];
    let counted = [
        process::instructions(&site.command(&configuration, user), &message(STRANGER, SIZE)),
        process::instructions(&site.floor(Calls::Same, user), &with_crlf(&message(STRANGER, SIZE))),
    ];
    if let [Some(ours), Some(theirs)] = counted.map(|count| count.map(|count| count / 1e6)) {
        rows.push([
            "instructions of a delivery (valgrind --tool=callgrind)".to_owned(),
            format!("{ours:.1} million"),
            format!("floor: {theirs:.1} million"),
        ]);
    }
    let (postgres, imap) = (&site.servers.postgres, &site.servers.imap);
    let proxies = [CountingProxy::before(&postgres.0, postgres.1), CountingProxy::before(&imap.0, imap.1)];
    let by_proxies = site.configuration(Way::Ports(proxies[0].port, proxies[1].port));
    site.deliver(&by_proxies, user, &message(STRANGER, SIZE));
    rows.push([
        "round trips, farewells among them".to_owned(),
        format!("PostgreSQL {}", proxies[0].round_trips()),
        format!("IMAP {}", proxies[1].round_trips()),
    ]);
    report.table(["the process", "delivery", "beside it"], &rows);
}
