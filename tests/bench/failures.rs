//! What an outage of the mailbox store writes: deliveries that fail before their journal, tried ten times each.

use crate::figures::Report;
use crate::site::Site;
use crate::support::database::Engine;
use crate::support::outage::{Outage, WrittenRows};
use std::time::Instant;

/// How often each message is tried.
const TRIES: usize = 10;

pub fn measure(report: &mut Report, _: &Site, runs: usize) {
    let messages = if runs >= 20 { 1_000 } else { 100 };
    let tries = messages * TRIES;
    let rows = [Engine::Postgres17, Engine::Mariadb118].map(|engine| {
        report.progress(format!("failures: {engine:?}"));
        let mut outage = Outage::begin(engine);
        let began = Instant::now();
        (0..TRIES).for_each(|_| outage.try_each(messages));
        let each = began.elapsed().as_secs_f64() * 1000.0 / tries as f64;
        let WrittenRows { inserted, updated, updated_in_indexes, elsewhere } = outage.written(tries);
        let in_indexes = updated_in_indexes.map_or("not counted".to_owned(), |updated| updated.to_string());
        [
            format!("{engine:?}"),
            inserted.to_string(),
            updated.to_string(),
            in_indexes,
            elsewhere.to_string(),
            format!("{each:.1}"),
        ]
    });
    report.line(format!("{tries} tries of {messages} messages while nothing listens at the mailbox store's port:"));
    report.table(
        ["", "rows inserted", "rows updated", "of these, in an index", "rows of other tables", "ms for a try"],
        &rows,
    );
}
