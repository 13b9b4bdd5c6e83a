//! What stands above the list of what was tried: how much came of it of late, and the copies that are owed.

use super::super::{Database, columns};
use super::{Came, outcome_is};
use crate::database::{DatabaseError, Value};

/// A copy that is owed now.
#[derive(Clone, Debug)]
pub(crate) struct OwedCopy {
    pub(crate) identity: [u8; 32],
    pub(crate) user: String,
    pub(crate) mailbox: String,
    pub(crate) reason: Option<String>,
    /// When that was found out, in microseconds since 1970.
    pub(crate) since: i64,
    pub(crate) subject: Option<String>,
}

/// The copies that are owed, the newest first, and whether there are more.
pub(crate) fn owed(database: &mut dyn Database, limit: usize) -> Result<(Vec<OwedCopy>, bool), DatabaseError> {
    let dialect = database.dialect();
    let sql = format!(
        "SELECT {}, c.imap_user, c.mailbox, c.reason, {}, m.subject FROM copies c JOIN messages m ON m.id = c.message \
         WHERE c.state = 'owed' ORDER BY c.updated_at DESC LIMIT {}",
        dialect.hex("m.identity"),
        dialect.microseconds("c.updated_at"),
        limit + 1
    );
    let rows = database.select("reading what is owed", &sql, &[])?;
    let more = rows.len() > limit;
    let owed = rows.iter().take(limit).map(|row| {
        Ok(OwedCopy {
            identity: row.digest(0)?,
            user: columns::owned(row, 1)?,
            mailbox: columns::owned(row, 2)?,
            reason: columns::optional(row, 3),
            since: columns::number(row, 4)?,
            subject: columns::optional(row, 5),
        })
    });
    Ok((owed.collect::<Result<_, DatabaseError>>()?, more))
}

/// How recipients' copies came out that were tried of late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Attempts.
    pub(crate) delivered: u64,
    pub(crate) refused: u64,
    /// Copies that were deferred, and that are neither there by now nor refused.
    pub(crate) deferred: u64,
}

/// Counts what came of recipients' copies since a moment, and what was deferred since another and waits still.
pub(crate) fn count(database: &mut dyn Database, since: i64, deferred_since: i64) -> Result<Counted, DatabaseError> {
    let number = |came| format!("coalesce(sum(CASE WHEN {} THEN 1 ELSE 0 END), 0)", outcome_is(came));
    let sql = format!(
        "SELECT {}, {} FROM attempts a WHERE a.started_at >= ? AND a.role = 'recipient'",
        number(Came::Delivered),
        number(Came::Refused)
    );
    let rows = database.select("counting attempts", &sql, &[Value::Moment(since)])?;
    let row = rows.first().ok_or_else(|| columns::missing(0))?;
    let (delivered, refused) = (columns::number(row, 0)?, columns::number(row, 1)?);
    // Nearly all that was deferred is delivered soon after: within the rows that are read anyway. Only what is left is looked up.
    let any = |condition: &str| format!("max(CASE WHEN {condition} THEN 1 ELSE 0 END)");
    let sql = format!(
        "SELECT count(*) FROM (SELECT a.copy_key FROM attempts a WHERE a.started_at >= ? AND a.role = 'recipient' \
         GROUP BY a.copy_key HAVING {} = 1 AND {} = 0) k \
         WHERE NOT EXISTS (SELECT 1 FROM copies c WHERE c.copy_key = k.copy_key AND c.state = 'delivered') \
         AND NOT EXISTS (SELECT 1 FROM attempts b WHERE b.copy_key = k.copy_key AND b.outcome LIKE 'refused: %')",
        any(outcome_is(Came::Deferred)),
        any("a.outcome IN ('appended', 'adopted', 'already there', 'already there; not looked for') \
             OR a.outcome LIKE 'refused: %'"),
    );
    let deferred = database.select("counting what is deferred", &sql, &[Value::Moment(deferred_since)])?;
    Ok(Counted { delivered, refused, deferred: columns::only_number(&deferred)? })
}
