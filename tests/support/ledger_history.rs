//! What the ledger looks like when time has passed, and when much has happened.

use crate::support::site_fixture::Scene;
use std::time::{SystemTime, UNIX_EPOCH};
use uuid::Uuid;

/// A row of `attempts` that nobody delivered.
pub struct Made<'a> {
    /// Tells attempts apart that began in the same moment.
    pub number: u64,
    pub role: &'a str,
    /// In microseconds since 1970.
    pub began: u64,
    /// `None`: it has not ended.
    pub outcome: Option<&'a str>,
    /// As JSON.
    pub stages: &'a str,
}

/// Microseconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64
}

/// The UUID (version 7) of the attempt of this number that began in this moment.
pub fn uuid(began: u64, number: u64) -> Uuid {
    Uuid::from_u128((u128::from(began / 1000) << 80) | u128::from(number))
}

impl Scene {
    fn bytes(&self, hex: &str) -> String {
        if self.database.engine.is_postgres() { format!("decode('{hex}','hex')") } else { format!("X'{hex}'") }
    }

    fn uuid(&self, uuid: Uuid) -> String {
        if self.database.engine.is_postgres() { format!("'{uuid}'") } else { format!("X'{}'", uuid.simple()) }
    }

    fn moment(&self, microseconds: u64) -> String {
        if self.database.engine.is_postgres() {
            format!("'1970-01-01Z'::timestamptz + {microseconds} * interval '1 microsecond'")
        } else {
            format!("TIMESTAMP'1970-01-01 00:00:00' + INTERVAL {microseconds} MICROSECOND")
        }
    }

    /// Adds attempts.
    pub fn add_attempts(&mut self, made: &[Made<'_>]) {
        for made in made.chunks(1000) {
            let rows: Vec<String> = made
                .iter()
                .map(|made| {
                    let attempt = self.uuid(uuid(made.began, made.number));
                    let key = self.bytes(&format!("{:064x}", u128::from(made.number) * 2 + u128::from(made.role == "sender")));
                    let digest = self.bytes(&format!("{:064x}", made.number));
                    let began = self.moment(made.began);
                    let (ended, outcome) = match made.outcome {
                        Some(outcome) => (began.clone(), format!("'{outcome}'")),
                        None => ("NULL".to_owned(), "NULL".to_owned()),
                    };
                    format!(
                        "({attempt}, {key}, '{}', 'u', 'INBOX', {digest}, {digest}, '<{}>', 'r', 'mx1', 1, {began}, {ended}, \
                         {outcome}, '{}')",
                        made.role, made.number, made.stages
                    )
                })
                .collect();
            self.database.execute(&format!(
                "INSERT INTO attempts (attempt, copy_key, role, imap_user, mailbox, identity, lock_digest, message_id, \
                 recipient, host, pid, started_at, ended_at, outcome, stages) VALUES {}",
                rows.join(",")
            ));
        }
    }

    /// Makes it so many days later for all that the ledger has.
    pub fn days_pass(&mut self, days: u64) {
        let postgres = self.database.engine.is_postgres();
        let earlier = |column: &str| match postgres {
            true => format!("{column} = {column} - interval '{days} days'"),
            false => format!("{column} = {column} - INTERVAL {days} DAY"),
        };
        let hex = if postgres { "replace(attempt::text, '-', '')" } else { "lower(hex(attempt))" };
        for attempt in self.database.texts(&format!("SELECT DISTINCT {hex} FROM attempts")) {
            let now = Uuid::parse_str(&attempt).unwrap();
            let then = Uuid::from_u128(now.as_u128() - (u128::from(days * 86_400_000) << 80));
            let (then, now) = (self.uuid(then), self.uuid(now));
            self.database.execute(&format!("UPDATE attempts SET attempt = {then} WHERE attempt = {now}"));
        }
        let (started, ended) = (earlier("started_at"), earlier("ended_at"));
        self.database.execute(&format!("UPDATE attempts SET {started}, {ended}"));
        self.database.execute(&format!("UPDATE messages SET {}", earlier("recorded_at")));
        let (delivered, updated) = (earlier("delivered_at"), earlier("updated_at"));
        self.database.execute(&format!("UPDATE copies SET {delivered}, {updated}"));
    }

    /// Adds messages that were delivered to nobody who is here, so many days ago, each with a copy.
    pub fn add_messages(&mut self, messages: u64, days_ago: u64) {
        let began = now() - days_ago * 86_400_000_000;
        for number in 0..messages {
            let moment = self.moment(began + number);
            let digest = self.bytes(&format!("{:064x}", u128::from(u64::MAX) + u128::from(number)));
            self.database.execute(&format!(
                "INSERT INTO messages (identity, lock_digest, message_id, content_digest, sender, headers, size, recorded_at) \
                 VALUES ({digest}, {digest}, '<made>', {digest}, 'x', '[]', 1, {moment})"
            ));
            self.database.execute(&format!(
                "INSERT INTO copies (copy_key, message, role, imap_user, mailbox, recipient, state, updated_at) \
                 SELECT {digest}, id, 'recipient', 'x', 'INBOX', 'x', 'delivered', {moment} FROM messages WHERE \
                 identity = {digest}"
            ));
        }
    }
}

/// A long queue id of Postfix, of this second (see src/message/queue_id.rs).
pub fn long_queue_id(mut seconds: u64) -> String {
    const DIGITS: &[u8; 52] = b"0123456789BCDFGHJKLMNPQRSTVWXYZbcdfghjklmnpqrstvwxyz";
    let mut digits = Vec::new();
    while seconds > 0 {
        digits.push(char::from(DIGITS[(seconds % 52) as usize]));
        seconds /= 52;
    }
    let seconds: String = digits.into_iter().rev().collect();
    format!("{seconds}1000zBFGl")
}
