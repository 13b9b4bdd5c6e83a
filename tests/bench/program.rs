//! What does not depend on how busy the machine is, or hardly.

use crate::figures::{Report, Series, in_turns, milliseconds};
use crate::floor::{self, Calls, Servers};
use crate::process;
use crate::site::{SIZE, STRANGER, Site, Way, message, program, with_crlf};
use crate::support::counting_proxy::CountingProxy;
use std::process::Command;

/// The size of a large message.
const LARGE: usize = 20_000_000;

pub fn measure(report: &mut Report, site: &Site, runs: usize) {
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
    let (mut ours, mut theirs) = (Series::default(), Series::default());
    let floor = |calls| process::run(&mut site.floor(calls, user), &with_crlf(&message(STRANGER, SIZE))).processor;
    in_turns(
        runs,
        &mut [
            &mut |counts| {
                let used = site.deliver(&configuration, user, &message(STRANGER, SIZE)).ended.processor;
                ours.push_if(counts, milliseconds(used));
            },
            &mut |counts| theirs.push_if(counts, milliseconds(floor(Calls::Same))),
        ],
    );
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
        ["processor time of a delivery".to_owned(), format!("{ours} ms"), format!("floor: {theirs} ms")],
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
    let (ours, theirs) = round_trips(site);
    let tell = |[postgres, imap]: [usize; 2]| format!("PostgreSQL {postgres}, IMAP {imap}");
    rows.push(["round trips, farewells among them".to_owned(), tell(ours), format!("floor: {}", tell(theirs))]);
    report.table(["the process", "delivery", "beside it"], &rows);
    if ours != theirs {
        report.line("**The floor no longer makes the calls of a delivery: floor.rs has to follow.**");
    }
}

/// How often a delivery, and its floor, wait for PostgreSQL and for Dovecot.
fn round_trips(site: &Site) -> ([usize; 2], [usize; 2]) {
    let (postgres, imap) = (&site.servers.postgres, &site.servers.imap);
    let proxies = [CountingProxy::before(&postgres.0, postgres.1), CountingProxy::before(&imap.0, imap.1)];
    let ports = [proxies[0].port, proxies[1].port];
    let by_proxies = site.configuration(Way::Ports(ports[0], ports[1]));
    // The login to a server is checked once, and nobody has been to this one yet.
    site.deliver(&by_proxies, &site.user, &message(STRANGER, SIZE));
    for proxy in &proxies {
        proxy.round_trips_in_all();
    }
    site.deliver(&by_proxies, &site.user, &message(STRANGER, SIZE));
    let ours = proxies.each_ref().map(CountingProxy::round_trips_in_all);
    let [postgres, imap] = ports.map(|port| ("127.0.0.1".to_owned(), port));
    let servers = Servers { postgres, imap, ..site.servers.clone() };
    floor::deliver(&servers, &site.user, &with_crlf(&message(STRANGER, SIZE)), Calls::Same);
    (ours, proxies.each_ref().map(CountingProxy::round_trips_in_all))
}
