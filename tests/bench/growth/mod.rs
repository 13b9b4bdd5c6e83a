//! How the cost of a delivery grows: with the mailbox, with the ledger, with the message, with its recipients, and with how
//! many processes run at once. Each is a curve: a table, a plot, the factor by which it grows, and whether that is within
//! its target.
//!
//! What grows is filled first, all of it at once; nothing else is measured meanwhile.

mod curve;
pub mod fixture;
mod ledger;
mod mailbox;
mod processes;
mod recipients;
mod size;

use crate::figures::Report;
use crate::site::Site;
pub use curve::verdict;

/// With fewer runs than these, it is only to be seen whether all of it works: what takes longest is left out.
const EARNEST: usize = 20;

pub fn measure(report: &mut Report, site: &Site, runs: usize) {
    let earnest = runs >= EARNEST;
    let last_power = u32::from(earnest);
    let (mailboxes, ledgers) = std::thread::scope(|scope| {
        let report = &*report;
        let mailboxes = scope.spawn(move || mailbox::fill(report, 4 + last_power));
        let ledgers = ledger::fill(report, 5 + last_power);
        (mailboxes.join().expect("mailboxes"), ledgers)
    });
    mailbox::measure(report, site, runs / 3, &mailboxes);
    ledger::measure(report, site, runs, &ledgers);
    size::measure(report, site, runs / 4);
    recipients::measure(report, site, runs.div_ceil(20), if earnest { 200 } else { 20 });
    processes::measure(report, site, runs.div_ceil(20));
}
