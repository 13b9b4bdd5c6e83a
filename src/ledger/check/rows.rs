//! What `check` reads from the tables' rows, on any engine.

use crate::database::{DatabaseError, Dialect, Query, Value};
use crate::ledger::Database;
use crate::message::fold;

/// The most addresses that are read.
const LOOKED_AT: usize = 10_000;

/// The addresses of the table that deliveries cannot find, each with the spelling that deliveries look up.
pub(crate) fn unfolded_addresses(database: &mut dyn Database) -> Result<Vec<(String, String)>, DatabaseError> {
    // Only beyond ASCII does a text have more bytes than characters. There the CHECK of the table does not cover all folding.
    let sql = format!(
        "SELECT address FROM addresses WHERE octet_length(address) <> char_length(address) OR address <> lower(address) \
         LIMIT {LOOKED_AT}"
    );
    let addresses: Vec<String> = database.query("looking for addresses that cannot be found", &sql, &[])?;
    let spellings = addresses.into_iter().map(|address| (fold(&address), address));
    Ok(spellings.filter(|(folded, address)| folded != address).map(|(folded, address)| (address, folded)).collect())
}

/// Any address of the table for a test login: no `@domain`, and none of these users' addresses. Always `None` for an embedded
/// database, in which no address is special.
pub(crate) fn any_address(database: &mut dyn Database, not_of: &[&str]) -> Result<Option<String>, DatabaseError> {
    if database.dialect() == Dialect::Sqlite {
        return Ok(None);
    }
    // An IN list must not be empty, and no user has an empty name.
    let users: Vec<Value<'_>> = not_of.iter().chain([&""]).map(|user| Value::Text(user)).collect();
    let places = vec!["?"; users.len()].join(", ");
    let sql = format!(
        "SELECT address FROM addresses WHERE address NOT LIKE '@%' AND imap_user NOT IN ({places}) \
         AND destination IS NULL LIMIT 1"
    );
    database.query_first("looking for an address", &sql, &users)
}
