//! How long the stages of a delivery take, for the log and the ledger.

use crate::ledger::stage_times::STAGES;
use std::time::Duration;
use uuid::Uuid;

/// How long each stage of a delivery took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    /// Connecting to the database, in parallel with the IMAP server's greeting.
    pub connect: Duration,
    /// Querying the database for the users of the addresses.
    pub route: Duration,
    /// Logging in to the mailboxes and asking an IMAP server for their positions, in parallel.
    pub authenticate: Duration,
    /// Reading the mailboxes' positions, if the login did not include that.
    pub position: Duration,
    pub journal: Duration,
    /// Including the wait for the lock.
    pub lock: Duration,
    /// Reading the ledger under the lock.
    pub look: Duration,
    /// Searching and appending.
    pub append: Duration,
    /// Including the COMMIT.
    pub record: Duration,
    /// The attempt's id in the journal; `None` before there is one.
    pub attempt: Option<Uuid>,
    /// The round trips to the database after connecting.
    pub database_round_trips: u32,
    /// The round trips to the IMAP server for all opened mailboxes, without those of TLS.
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
