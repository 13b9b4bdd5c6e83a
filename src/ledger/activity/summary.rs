//! The figures above the list of attempts: the recent results.

use super::super::Database;
use super::{Came, outcome_is};
use crate::database::{DatabaseError, Query, Value, unreadable};

/// The recent results for recipients' copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Attempts.
    pub(crate) delivered: u64,
    pub(crate) refused: u64,
    /// Copies that were deferred, and are by now neither delivered nor refused.
    pub(crate) deferred: u64,
}

/// Counts the results of recipients' copies since a time, and the copies deferred since another time that still wait.
pub(crate) fn count(database: &mut dyn Database, since: i64, deferred_since: i64) -> Result<Counted, DatabaseError> {
    let number = |came| format!("coalesce(sum(CASE WHEN {} THEN 1 ELSE 0 END), 0)", outcome_is(came));
    let sql = format!(
        "SELECT {}, {} FROM attempts a WHERE a.started_at >= ? AND a.role = 'recipient'",
        number(Came::Delivered),
        number(Came::Refused)
    );
    let counted = database.query_first("counting attempts", &sql, &[Value::Moment(since)])?;
    let (delivered, refused) = counted.ok_or_else(|| unreadable("an answer without a row".into()))?;
    // Nearly all deferred copies are delivered soon after, within the rows that are read anyway. Only the rest are
    // looked up.
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
