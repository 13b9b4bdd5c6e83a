//! How long a delivery took, stage by stage.

use crate::ledger::stage_times::STAGES;
use std::time::Duration;
use uuid::Uuid;

/// How long each stage of a delivery took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    /// Connecting to the database, the IMAP server's greeting beside it.
    pub connect: Duration,
    /// Asking the database whose addresses these are.
    pub route: Duration,
    /// Logging in to the mailboxes, and asking an IMAP server where they stand: side by side.
    pub authenticate: Duration,
    /// Asking where the mailboxes stand, if that was not asked with the login.
    pub position: Duration,
    pub journal: Duration,
    /// Waiting for the lock included.
    pub lock: Duration,
    /// Reading the ledger under the lock.
    pub look: Duration,
    /// Searching and appending.
    pub append: Duration,
    /// Up to the COMMIT.
    pub record: Duration,
    /// Its name in the journal; `None` before there is one.
    pub attempt: Option<Uuid>,
    /// How often the database was waited for, once connected.
    pub database_round_trips: u32,
    /// How often the IMAP server was waited for, in all mailboxes that could be opened, TLS apart.
    pub imap_round_trips: u32,
}

impl Stages {
    pub(crate) fn named(&self) -> [(&'static str, Duration); 9] {
        let [connect, route, authenticate, position, journal, lock, look, append, record] = STAGES;
        [
            (connect, self.connect),
            (route, self.route),
            (authenticate, self.authenticate),
            (position, self.position),
            (journal, self.journal),
            (lock, self.lock),
            (look, self.look),
            (append, self.append),
            (record, self.record),
        ]
    }

    /// The stages that took any time, in milliseconds to the hundredth, for the ledger: `{"connect":1.27,"lock":0.31}`.
    pub fn as_json(&self) -> String {
        let took = self.named().into_iter().filter(|(_, span)| !span.is_zero());
        let took: Vec<String> = took.map(|(name, span)| format!("\"{name}\":{}", milliseconds(span))).collect();
        format!("{{{}}}", took.join(","))
    }
}

/// Milliseconds to the hundredth: most stages take less than one.
pub fn milliseconds(span: Duration) -> f64 {
    (span.as_secs_f64() * 100_000.0).round() / 100.0
}
