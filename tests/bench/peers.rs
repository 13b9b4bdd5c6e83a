//! Ours beside its peers, whole processes as Postfix starts them: one at a time, and several at once.

use crate::comparison::{Comparison, PROCESSOR_TIME, SIZES, Size};
use crate::figures::{Ratio, Report, Series, milliseconds, rest};
use crate::peer::{Peer, Peers, Run};
use crate::site::{Site, message};
use std::sync::Barrier;
use std::thread;

/// So many at once.
const AT_ONCE: usize = 8;
/// Who is compared.
const ALL: [Peer; 6] = [Peer::Ours, Peer::Floor, Peer::Article, Peer::DovecotLda, Peer::Courier, Peer::OursOnMariadb];
/// Who of them depends on how Dovecot takes logins, and who is beside them.
const WITH_LOGIN: [Peer; 4] = [Peer::Ours, Peer::Floor, Peer::Article, Peer::DovecotLda];
/// Who of them gives the author a copy as well.
const WITH_SENT: [Peer; 2] = [Peer::Ours, Peer::Article];
/// What a delivery may cost in processor time, in milliseconds; asked of small messages.
const PROCESSOR: f64 = 3.0;

/// What is measured at one time, in turns.
struct Block {
    /// In the names of users.
    name: String,
    how: &'static str,
    size: Size,
    at_once: usize,
    /// Whether the author lives here.
    sent: bool,
    runs: usize,
    warm_up: usize,
}

pub fn measure(report: &mut Report, site: &Site, runs: usize) {
    let mut peers = Peers::set_up(site);
    for size in SIZES {
        let bytes = size.bytes;
        let runs = (runs / size.rarer).max(3);
        let warm_up = if bytes > 1_000_000 { 1 } else { 4 };
        let block = |kind: &str, how, at_once, sent, runs| Block {
            name: format!("{kind}{bytes}"),
            how,
            size,
            at_once,
            sent,
            runs,
            warm_up,
        };
        let alone = block("one", "one at a time", 1, false, runs);
        compare(report, &mut peers, &alone, &ALL);
        compare(report, &mut peers, &block("eight", "8 at once", AT_ONCE, false, (runs / 3).max(3)), &ALL);
        compare(report, &mut peers, &block("sent", "with a Sent copy", 1, true, (runs / 2).max(3)), &WITH_SENT);
        // As postfix/README.md has it: Dovecot's processes go on to the next login.
        peers.keep_imap_processes(true);
        let alone = block("kept", "one at a time, IMAP processes kept", 1, false, (runs / 2).max(3));
        compare(report, &mut peers, &alone, &WITH_LOGIN);
        compare(
            report,
            &mut peers,
            &block("keptsent", "with a Sent copy, kept", 1, true, (runs / 2).max(3)),
            &WITH_SENT,
        );
        peers.keep_imap_processes(false);
    }
}

/// What was measured of one peer.
struct Measured {
    peer: Peer,
    users: Vec<String>,
    /// From the first start to the last end, in milliseconds.
    wall: Series,
    /// Of each process by itself, likewise.
    each: Series,
    /// Of each process, likewise.
    processor: Series,
}

fn compare(report: &mut Report, peers: &mut Peers, block: &Block, who: &[Peer]) {
    report.progress(format!("{}, {}, {} runs", block.how, block.size.name, block.runs));
    let mut all: Vec<Measured> = who.iter().map(|peer| begin(peers, block, *peer)).collect();
    for round in 0..block.warm_up + block.runs {
        let mut deliver = |measured: &mut Measured| {
            let runs = batch(peers, block, measured);
            if round >= block.warm_up {
                measured.add(&runs);
            }
        };
        // Every other round backwards.
        if round % 2 == 0 {
            all.iter_mut().for_each(&mut deliver);
        } else {
            all.iter_mut().rev().for_each(&mut deliver);
        }
    }
    for measured in &all {
        finish(peers, block, measured);
    }
    tell(report, block, &all);
}

fn begin(peers: &mut Peers, block: &Block, peer: Peer) -> Measured {
    let users: Vec<String> = (0..block.at_once).map(|n| format!("{}-{}-{n}", peer.short(), block.name)).collect();
    users.iter().for_each(|user| peers.add_user(user));
    if block.sent {
        peers.add_user(&author(&users[0]));
    }
    Measured { peer, users, wall: Series::default(), each: Series::default(), processor: Series::default() }
}

/// The author of what this user gets, where the author lives here.
fn author(user: &str) -> String {
    format!("author-{user}")
}

/// One message to each of the users, all at once.
fn batch(peers: &Peers, block: &Block, measured: &Measured) -> Vec<Run> {
    let deliveries: Vec<_> = measured
        .users
        .iter()
        .map(|user| {
            let domain = if block.sent { "mail.example" } else { "elsewhere.example" };
            let message = message(&format!("{}@{domain}", author(user)), block.size.bytes);
            peers.delivery(measured.peer, user, message)
        })
        .collect();
    rest();
    let together = Barrier::new(deliveries.len());
    thread::scope(|scope| {
        let begin = |delivery| {
            let together = &together;
            scope.spawn(move || {
                together.wait();
                run(delivery)
            })
        };
        let threads: Vec<_> = deliveries.into_iter().map(begin).collect();
        threads.into_iter().map(|thread| thread.join().expect("a delivery")).collect()
    })
}

fn run(delivery: impl FnOnce() -> Run) -> Run {
    delivery()
}

impl Measured {
    fn add(&mut self, runs: &[Run]) {
        let began = runs.iter().map(|run| run.began).min().expect("a run");
        let ended = runs.iter().map(|run| run.began + run.took).max().expect("a run");
        self.wall.push(milliseconds(ended - began));
        for run in runs {
            self.each.push(milliseconds(run.took));
            self.processor.push(milliseconds(run.processor));
        }
    }
}

/// Everybody has what was delivered, each once; then it is taken away, since large messages fill the disk.
fn finish(peers: &Peers, block: &Block, measured: &Measured) {
    let expected = block.warm_up + block.runs;
    let peer = measured.peer;
    for user in &measured.users {
        assert_eq!(peers.site.messages(user, "INBOX"), expected, "{peer:?} has delivered to {user}");
        peers.remove_mail(user);
    }
    if block.sent {
        let author = author(&measured.users[0]);
        assert_eq!(peers.site.messages(&author, "Sent"), expected, "{peer:?} has given {author} copies");
        peers.remove_mail(&author);
    }
}

fn tell(report: &mut Report, block: &Block, all: &[Measured]) {
    let (ours, others) = all.split_first().expect("ours");
    let mut rows = Vec::new();
    for measured in all {
        let peer = measured.peer;
        let processor = if peer == Peer::Floor { String::new() } else { measured.processor.to_string() };
        let ratio = if peer == Peer::Ours { String::new() } else { Ratio::of(&ours.wall, &measured.wall).to_string() };
        rows.push([peer.title().to_owned(), measured.wall.to_string(), measured.each.to_string(), processor, ratio]);
    }
    let first = format!("{}, {}, {} runs", block.size.name, block.how, block.runs);
    let all_of_them = if block.at_once == 1 { "ms" } else { "ms until all have ended" };
    report.table([&first, all_of_them, "ms of each", "its processor time, ms", "ours ÷ it"], &rows);
    for measured in others {
        let peer = measured.peer;
        let (what, ratio) = if peer == Peer::OursOnMariadb {
            ("on MariaDB ÷ on PostgreSQL".to_owned(), Ratio::of(&measured.wall, &ours.wall))
        } else {
            (format!("÷ {}", peer.title()), Ratio::of(&ours.wall, &measured.wall))
        };
        report.compare(Comparison { what, how: block.how, size: block.size, ratio, target: peer.target() });
    }
    if block.at_once == 1 && !block.sent {
        report.compare(Comparison {
            what: PROCESSOR_TIME.to_owned(),
            how: block.how,
            size: block.size,
            ratio: Ratio::alone(&ours.processor),
            target: (block.size == SIZES[0]).then_some(PROCESSOR),
        });
    }
}
