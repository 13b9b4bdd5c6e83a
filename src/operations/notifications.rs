//! How far behind subscribers are, what happened, and telling them once more.

use crate::database::DatabaseError;
use crate::ledger::Database;
pub(crate) use crate::ledger::notifications::history::{
    event, events_after, message, newest, pending, tell_all, tell_one, test, tries,
};
use crate::ledger::notifications::overview;
pub(crate) use crate::ledger::notifications::overview::{Behind, Figures, Overview, figures};
use uuid::Uuid;

/// How far behind they are.
///
/// # Errors
/// Where the database cannot be asked.
pub(crate) fn status(database: &mut dyn Database) -> Result<Overview, DatabaseError> {
    overview::overview(database)
}

/// Has the notifier tell what was given up, of one subscription or of all, since then or whenever; how many notifications these are.
///
/// # Errors
/// Where it may not be committed.
pub(crate) fn redeliver(
    database: &mut dyn Database,
    subscription: Option<Uuid>,
    since: Option<i64>,
) -> Result<u64, DatabaseError> {
    overview::tell_again(database, subscription, since)
}
