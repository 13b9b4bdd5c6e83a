//! The ledger as a source: the deliveries that it knows of, each with its envelope. The message comes from the sources that
//! it keeps, or from the mailbox of anybody who has got it.

use crate::database::{Database, DatabaseError, Dialect, Value};
use crate::ledger::CopyKey;
use crate::ledger::recorded::{HOUR, name_of_moment};
use crate::message::{Address, Identity};
use crate::replay::list::{Entry, List, Place};
use crate::replay::{Given, ReplayError};
use crate::site::Site;
use uuid::Uuid;

/// How many rows are asked for at a time.
const PAGE: usize = 2000;

/// Which deliveries. What is not said does not narrow it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerQuery {
    /// Those of messages with one of these Message-IDs.
    pub message_ids: Vec<String>,
    /// Those that were tried since, in microseconds since 1970.
    pub since: Option<i64>,
    /// Those whose recipient's copy is not delivered.
    pub failed: bool,
    /// Those to one of these addresses.
    pub recipients: Vec<Address>,
}

/// What the ledger has of a delivery.
pub(in crate::replay) struct Known {
    /// Whether the recipient has it.
    pub delivered: bool,
    /// The row of its message, if it has one, and the message's identity.
    pub message: Option<(i64, Identity)>,
    pub given: Given,
    pub message_id: String,
}

impl LedgerQuery {
    /// Writes down the deliveries, each once, as old as its first attempt is.
    pub(super) fn list(&self, site: &Site, database: &mut dyn Database, list: &List) -> Result<(), ReplayError> {
        if !self.message_ids.is_empty() {
            for id in &self.message_ids {
                let lock = site.lock_of_message_id(id.as_bytes());
                self.page(database, "a.lock_digest = ?", &[Value::Bytes(lock.digest())], list)?;
            }
            return Ok(());
        }
        if database.dialect() != Dialect::Postgresql {
            // The key begins with the attempt, whose UUID begins with the time: by the clock of its host, hence the hour.
            let from = name_of_moment(self.since.unwrap_or_default().saturating_sub(HOUR));
            return self.page(database, "a.attempt >= ?", &[Value::Uuid(from)], list);
        }
        // PostgreSQL finds a day by its block range index, and would sort the whole table for each page otherwise.
        let doing = "asking the ledger when it begins";
        let clock = database.dialect();
        let bounds = format!(
            "SELECT {}, {} FROM attempts a",
            clock.microseconds("min(a.started_at)"),
            clock.microseconds("max(a.started_at)")
        );
        let rows = database.select(doing, &bounds, &[])?;
        let Some(row) = rows.first() else { return Ok(()) };
        let (Some(first), Some(last)) = (row.value::<i64>(0)?, row.value::<i64>(1)?) else { return Ok(()) };
        let mut day = self.since.unwrap_or(first).max(first);
        while day <= last {
            let next = day + 24 * HOUR;
            let values = [Value::Moment(day), Value::Moment(next)];
            self.page(database, "a.started_at >= ? AND a.started_at < ?", &values, list)?;
            day = next;
        }
        Ok(())
    }

    fn page(
        &self,
        database: &mut dyn Database,
        condition: &str,
        values: &[Value<'_>],
        list: &List,
    ) -> Result<(), ReplayError> {
        let dialect = database.dialect();
        let recipients: Vec<String> = self.recipients.iter().map(|address| address.folded().to_string()).collect();
        let mut sql = format!(
            "SELECT {}, {}, {}, {} FROM attempts a WHERE a.role = 'recipient' AND {condition} AND a.attempt > ?",
            dialect.microseconds("a.started_at"),
            dialect.uuid("a.attempt"),
            dialect.hex("a.copy_key"),
            dialect.hex("a.lock_digest"),
        );
        if self.since.is_some() {
            sql += " AND a.started_at >= ?";
        }
        if !recipients.is_empty() {
            sql += &format!(" AND a.recipient IN ({})", vec!["?"; recipients.len()].join(", "));
        }
        if self.failed {
            sql += " AND NOT EXISTS (SELECT 1 FROM copies c WHERE c.copy_key = a.copy_key AND c.state = 'delivered')";
        }
        sql += &format!(" ORDER BY a.attempt LIMIT {PAGE}");
        // An attempt has one row for its recipient's copy: its UUID tells where the next page begins.
        let mut last = Uuid::nil();
        loop {
            let mut values = values.to_vec();
            values.push(Value::Uuid(last));
            values.extend(self.since.map(Value::Moment));
            values.extend(recipients.iter().map(|recipient| Value::Text(recipient)));
            let rows = database.select("asking the ledger what to replay", &sql, &values)?;
            for row in &rows {
                last = Uuid::from_bytes(row.digest(1)?);
                list.add(&Entry {
                    at: row.value(0)?.unwrap_or_default(),
                    place: Place::Ledger(CopyKey::from_bytes(row.digest(2)?)),
                    lock: Some(row.digest(3)?),
                })?;
            }
            if rows.len() < PAGE {
                return Ok(());
            }
        }
    }
}

/// What the ledger has of the delivery of a copy; `None` where it has nothing any more.
pub(in crate::replay) fn read(database: &mut dyn Database, key: &CopyKey) -> Result<Option<Known>, DatabaseError> {
    let sql = format!(
        "SELECT a.recipient, a.queue_id, a.message_id, m.sender, c.state, m.id, {} FROM attempts a \
         LEFT JOIN messages m ON m.identity = a.identity LEFT JOIN copies c ON c.copy_key = a.copy_key \
         WHERE a.copy_key = ? ORDER BY a.attempt DESC LIMIT 1",
        database.dialect().hex("a.identity")
    );
    let rows = database.select("reading a delivery from the ledger", &sql, &[Value::Bytes(key.as_bytes())])?;
    let Some(row) = rows.first() else { return Ok(None) };
    let text = |index| row.text(index).map(ToOwned::to_owned);
    let identity = Identity::from_bytes(row.digest(6)?);
    Ok(Some(Known {
        delivered: row.text(4) == Some("delivered"),
        message: row.value(5)?.map(|message| (message, identity)),
        given: Given {
            sender: text(3),
            recipients: text(0).map(|recipient| (recipient, None)).into_iter().collect(),
            queue_id: text(1),
            ..Given::default()
        },
        message_id: text(2).unwrap_or_default(),
    }))
}
