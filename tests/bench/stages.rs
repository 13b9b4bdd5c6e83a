//! Where the time of a delivery goes, stage by stage, beside its floor; and other kinds of deliveries beside the plain one.

use crate::figures::{Report, Series, in_turns, milliseconds, ratio};
use crate::floor::{self, Calls, STAGES};
use crate::process;
use crate::site::{Delivery, MEMBER, SIZE, STRANGER, Site, Way, message, with_crlf};
use std::time::Instant;

pub fn measure(report: &mut Report, site: &Site, runs: usize) {
    against_the_floor(report, site, runs);
    other_deliveries(report, site, runs / 2);
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
    // The delivery asks where a mailbox stands as part of opening it, and the look rides with the lock.
    for places in [0..=0, 1..=1, 2..=3, 4..=4, 5..=6, 7..=7, 8..=8] {
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
