//! Brings the schema up to date, and tells how it stands.

use crate::base::deadline::Deadline;
use crate::schema::{self, Application, MigrateError, Migration, MigrationStatus};
use crate::site::Site;

/// How the schema stands.
#[derive(Debug)]
pub(crate) struct SchemaStatus {
    /// The migrations that this release knows or that are applied, in order.
    pub(crate) migrations: Vec<MigrationStatus>,
    /// Whether a newer release has migrated this database. This one delivers on it, and adds nothing.
    pub(crate) newer: bool,
}

/// Applies what is missing, under a lock that all machines share; `each` hears of each migration. With `status_only` it
/// changes nothing, and looks.
///
/// # Errors
/// The database fails or refuses, or an applied migration is not the one that this release knows. What was applied by then
/// stays.
pub(crate) fn migrate(
    site: &Site,
    status_only: bool,
    deadline: Deadline,
    each: &mut dyn FnMut(&Migration, &Application),
) -> Result<SchemaStatus, MigrateError> {
    let mut database = site.open_database(None, deadline)?;
    let newer = !status_only && !schema::migrate(database.as_mut(), each)?.newer.is_empty();
    Ok(SchemaStatus { migrations: schema::status(database.as_mut())?, newer })
}
