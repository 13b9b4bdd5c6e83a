//! The one change of keys: those of messages and copies begin with the day of the message's Date.
//!
//! Which key each one becomes is worked out here, since SQL cannot read a Date, and written into the table `keys_by_day`, which the
//! migration before has made; the migration's own statements take it from there, in one transaction. Whatever ends it before its
//! COMMIT leaves all keys as they were, and `migrate` begins anew.

use crate::base::timestamp;
use crate::database::{DatabaseError, DatabaseFailure, Dialect, Row, Tables, Value};
use crate::message::{by_day, day_of_date, day_of_moment, key_of_copy};
use std::collections::BTreeMap;

/// Rows of one answer, and of one INSERT.
const PAGE: usize = 500;

const DOING: &str = "working out keys that begin with a day";

/// An hour, in microseconds.
const HOUR: i64 = 3_600_000_000;
/// Postfix may come back for a message that was deferred for five days (`maximal_queue_lifetime`), or as long as the site says.
const WEEK: i64 = 7 * 24 * HOUR;

/// What has become of how many keys.
#[derive(Debug, Default)]
pub(super) struct Worked {
    messages: u64,
    copies: u64,
    /// Messages whose Date the ledger does not have, though they have one: their header was refused, or cut short.
    dateless: u64,
}

impl Worked {
    /// For people; `None` where there was nothing.
    pub fn told(&self) -> Option<String> {
        let Self { messages, copies, dateless } = self;
        if messages + copies == 0 {
            return None;
        }
        let lost = match dateless {
            0 => String::new(),
            _ => format!(
                "; of {dateless} messages the header is not kept: if one of them comes again, it counts as another message"
            ),
        };
        Some(format!("the keys of {messages} messages and {copies} copies begin with the day of their Date{lost}"))
    }
}

/// Fills `keys_by_day`: for each identity and each copy's key that is in the ledger, what it becomes. What an earlier try has left
/// there goes.
///
/// # Errors
/// Where the tables cannot be read, or that one not be written; [`DatabaseFailure::Refused`], where a delivery is open.
pub(super) fn work_out(database: &mut dyn Tables) -> Result<Worked, DatabaseError> {
    nothing_is_open(database)?;
    // On MySQL, who migrates need not have the right to delete rows.
    let empty = match database.dialect() {
        Dialect::Mysql | Dialect::Mariadb => "TRUNCATE TABLE keys_by_day",
        Dialect::Postgresql | Dialect::Sqlite => "DELETE FROM keys_by_day",
    };
    database.change(DOING, empty, &[])?;
    let mut worked = Worked::default();
    messages(database, &mut worked)?;
    attempts(database, &mut worked)?;
    copies(database, &mut worked)?;
    Ok(worked)
}

/// An attempt that has not ended may have left a copy, which only the next attempt under the same key looks for. So nothing is
/// changed while one is open for which somebody may come back.
fn nothing_is_open(database: &mut dyn Tables) -> Result<(), DatabaseError> {
    let dialect = database.dialect();
    // An embedded ledger is migrated by whatever delivers first, and nobody else could end what is open: only what may be running is
    // waited for.
    let long = if dialect == Dialect::Sqlite { HOUR } else { WEEK };
    let (now, began) = (dialect.microseconds(dialect.now()), dialect.microseconds("started_at"));
    let sql =
        format!("SELECT count(*), max({began}) FROM attempts WHERE ended_at IS NULL AND {began} > {now} - {long}");
    let rows = database.select(DOING, &sql, &[])?;
    let Some(open) = rows.first().map(|row| row.value::<u64>(0)).transpose()?.flatten().filter(|open| *open > 0) else {
        return Ok(());
    };
    let last = rows.first().map(|row| row.value(1)).transpose()?.flatten().map_or_else(String::new, timestamp::told);
    let detail = format!(
        "{open} attempts at a copy have not ended, the last one of {last}: let the release that made them deliver what is in Postfix's \
         queues (postqueue -f), then stop deliveries, and migrate. Where nobody comes back for them, end them: \
         UPDATE attempts SET ended_at = started_at WHERE ended_at IS NULL"
    );
    Err(DatabaseError::new(DatabaseFailure::Refused, "changing the keys", detail))
}

fn messages(database: &mut dyn Tables, worked: &mut Worked) -> Result<(), DatabaseError> {
    let dialect = database.dialect();
    let sql = format!(
        "SELECT id, {}, headers, {} FROM messages WHERE id > ? ORDER BY id LIMIT {PAGE}",
        dialect.hex("identity"),
        dialect.microseconds("sent_at")
    );
    let mut last = i64::MIN;
    loop {
        let rows = database.select(DOING, &sql, &[Value::Integer(last)])?;
        let mut becomes = BTreeMap::new();
        for row in &rows {
            last = row.value(0)?.unwrap_or(i64::MAX);
            let was: [u8; 32] = row.digest(1)?;
            let day = match date(row.text(2).unwrap_or_default()) {
                Header::Dated(value) => day_of_date(&value),
                Header::Dateless => 0,
                Header::NotKept => {
                    let sent_at: Option<i64> = row.value(3)?;
                    worked.dateless += u64::from(sent_at.is_none());
                    sent_at.map_or(0, day_of_moment)
                }
            };
            becomes.insert(was, by_day(day.to_be_bytes(), &was));
        }
        worked.messages += write(database, &becomes)?;
        if rows.len() < PAGE {
            return Ok(());
        }
    }
}

/// What a message's header says, as the ledger keeps it: `[["Name", "value"], …]`.
enum Header {
    Dated(String),
    Dateless,
    /// It is empty, or was cut short before a Date came.
    NotKept,
}

fn date(headers: &str) -> Header {
    let fields: Vec<(String, String)> = serde_json::from_str(headers).unwrap_or_default();
    let cut = fields.last().is_none_or(|(name, _)| name.is_empty());
    match fields.into_iter().find(|(name, _)| name.eq_ignore_ascii_case("date")) {
        Some((_, value)) => Header::Dated(value),
        None if cut => Header::NotKept,
        None => Header::Dateless,
    }
}

/// The keys of the journal; and identities of messages that were never recorded, whose day nobody knows: they get day 0.
fn attempts(database: &mut dyn Tables, worked: &mut Worked) -> Result<(), DatabaseError> {
    let hex = |column| database.dialect().hex(column);
    let sql = format!(
        "SELECT DISTINCT {}, {}, {}, a.role, a.imap_user, a.mailbox, a.copy_key FROM attempts a \
         LEFT JOIN keys_by_day k ON k.was = a.identity WHERE a.copy_key > ? ORDER BY a.copy_key LIMIT {PAGE}",
        hex("a.copy_key"),
        hex("a.identity"),
        hex("k.becomes")
    );
    page_by_page(database, &sql, worked)
}

/// The keys of copies of which no attempt is kept.
fn copies(database: &mut dyn Tables, worked: &mut Worked) -> Result<(), DatabaseError> {
    let hex = |column| database.dialect().hex(column);
    let sql = format!(
        "SELECT {}, {}, {}, c.role, c.imap_user, c.mailbox, c.copy_key FROM copies c JOIN messages m ON m.id = c.message \
         JOIN keys_by_day k ON k.was = m.identity WHERE c.copy_key > ? \
         AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.copy_key = c.copy_key) ORDER BY c.copy_key LIMIT {PAGE}",
        hex("c.copy_key"),
        hex("m.identity"),
        hex("k.becomes")
    );
    page_by_page(database, &sql, worked)
}

/// Rows of: copy's key, its message's identity, what that becomes (or NULL), role, user, mailbox.
fn page_by_page(database: &mut dyn Tables, sql: &str, worked: &mut Worked) -> Result<(), DatabaseError> {
    let mut last = Vec::new();
    loop {
        let rows = database.select(DOING, sql, &[Value::Bytes(&last)])?;
        let mut becomes = BTreeMap::new();
        let mut copies = 0;
        for row in &rows {
            let key: [u8; 32] = row.digest(0)?;
            let was: [u8; 32] = row.digest(1)?;
            let identity = match row.bytes(2)?.map(<[u8; 32]>::try_from) {
                Some(Ok(identity)) => identity,
                _ => *becomes.entry(was).or_insert_with(|| by_day([0; 4], &was)),
            };
            let text = |index| Row::text(row, index).unwrap_or_default();
            copies += u64::from(becomes.insert(key, key_of_copy(&identity, text(3), text(4), text(5))).is_none());
            last = key.to_vec();
        }
        write(database, &becomes)?;
        worked.copies += copies;
        if rows.len() < PAGE {
            return Ok(());
        }
    }
}

fn write(database: &mut dyn Tables, becomes: &BTreeMap<[u8; 32], [u8; 32]>) -> Result<u64, DatabaseError> {
    if becomes.is_empty() {
        return Ok(0);
    }
    let places = vec!["(?, ?)"; becomes.len()].join(", ");
    let values: Vec<Value<'_>> =
        becomes.iter().flat_map(|(was, becomes)| [Value::Bytes(was), Value::Bytes(becomes)]).collect();
    database.change(DOING, &format!("INSERT INTO keys_by_day (was, becomes) VALUES {places}"), &values)
}
