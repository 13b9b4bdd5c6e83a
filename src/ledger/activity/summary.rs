//! What stands above the list of what was tried: how much came of it of late.

use super::super::Database;
use super::{Came, outcome_is};
use crate::database::{DatabaseError, Query, Value, unreadable};

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
    let counted = database.query_first("counting attempts", &sql, &[Value::Moment(since)])?;
    let (delivered, refused) = counted.ok_or_else(|| unreadable("an answer without a row".into()))?;
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
    let deferred = database.query_number("counting what is deferred", &sql, &[Value::Moment(deferred_since)])?;
    Ok(Counted { delivered, refused, deferred: deferred.unsigned_abs() })
}
