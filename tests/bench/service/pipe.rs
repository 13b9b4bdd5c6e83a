//! A process for each recipient, as pipe(8) starts it: one that hands its message over to the service, one that delivers by itself,
//! and dovecot-lda, which appends and records nothing.

use super::fixture::{Fixture, Format, Service};
use super::processor::Used;
use crate::figures::{Ratio, Report, Series, milliseconds, rest};
use crate::peer::{DOVECOT_CONF, DOVECOT_LDA, identity};
use crate::process;
use crate::site::{STRANGER, message, program};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// Deliveries in a row: one uses too little to be counted.
const IN_A_ROW: usize = 10;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Via,
    Alone,
    Lda,
}

const ALL: [(Way, &str, &str); 3] = [
    (Way::Via, "via", "maildrop_command --via"),
    (Way::Alone, "alone", "maildrop_command, by itself"),
    (Way::Lda, "lda", "dovecot-lda (append only)"),
];

pub fn measure(report: &mut Report, fixture: &Fixture<'_>, runs: usize) {
    let mut rows = Vec::new();
    for kept in [false, true] {
        fixture.dovecot(kept);
        let how = if kept { "processes kept" } else { "Dovecot as it comes" };
        report.progress(format!("one process each: {how}"));
        let service = fixture.start("recycle_after = 1000000\n");
        let users = ALL.map(|(_, name, _)| fixture.users(Format::Maildir, &format!("{name}-{kept}"), 1).remove(0));
        let mut costs = [(); 3].map(|()| (Series::default(), Series::default()));
        for round in 0..=(runs / 6).max(3) {
            let mut one = |at: usize| {
                rest();
                let (wall, used) = in_a_row(ALL[at].0, &service, &users[at]);
                let (walls, all) = &mut costs[at];
                walls.push_if(round > 0, milliseconds(wall) / IN_A_ROW as f64);
                all.push_if(round > 0, milliseconds(used) / IN_A_ROW as f64);
            };
            if round % 2 == 0 { (0..3).for_each(&mut one) } else { (0..3).rev().for_each(&mut one) }
        }
        let (via_wall, via) = &costs[0];
        for ((_, _, title), (walls, all)) in ALL.iter().zip(&costs) {
            let ratio =
                |one, other| if std::ptr::eq(all, via) { String::new() } else { Ratio::of(one, other).to_string() };
            rows.push([
                format!("{title}, {how}"),
                all.to_string(),
                walls.to_string(),
                ratio(via, all),
                ratio(via_wall, walls),
            ]);
        }
    }
    report.table(["a process for each recipient", "CPU, ms", "ms", "--via ÷ it (CPU)", "--via ÷ it (wall)"], &rows);
    report.line("To be: ÷ dovecot-lda ≤ 0.5; ÷ by itself ≤ 0.4.");
}

fn in_a_row(way: Way, service: &Service, user: &str) -> (Duration, Duration) {
    let messages: Vec<Vec<u8>> = (0..IN_A_ROW).map(|_| message(STRANGER, super::SIZE)).collect();
    let before = Used::now();
    let began = Instant::now();
    for message in &messages {
        process::run(&mut command(way, service, user), message);
    }
    let wall = began.elapsed();
    (wall, Used::now().since(&before).all)
}

fn command(way: Way, service: &Service, user: &str) -> Command {
    let mut command = match way {
        Way::Lda => {
            let mut lda = Command::new(DOVECOT_LDA);
            lda.args(["-c", DOVECOT_CONF, "-o", "log_path=/dev/null", "-f", STRANGER, "-d", user]);
            lda
        }
        Way::Via | Way::Alone => {
            let mut ours = Command::new(program());
            ours.arg("deliver").arg("--config").arg(&service.config);
            ours.args(["--sender", STRANGER, "--queue-id", "4cBxyz1234z9rs", "--recipient"]);
            ours.arg(format!("{user}@mail.example"));
            if way == Way::Via {
                ours.arg("--via").arg(&service.clients);
            }
            ours
        }
    };
    let (uid, gid) = identity(if way == Way::Lda { "vmail" } else { "maildrop" });
    command.uid(uid).gid(gid);
    command
}
