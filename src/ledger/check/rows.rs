//! What `check` reads from the tables' rows, on any engine.

use crate::database::{DatabaseError, Dialect, Query, Value, columns_of};
use crate::ledger::Database;
use crate::lock::LockName;
use crate::message::fold;

/// The most addresses that are read.
const LOOKED_AT: usize = 10_000;
/// The most attempts of the last hour that are read.
const ATTEMPTS: usize = 1000;

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

/// An address with one mailbox for both arriving and sent mail, if there is one.
pub(crate) fn address_with_one_mailbox(database: &mut dyn Database) -> Result<Option<String>, DatabaseError> {
    let sql = "SELECT address FROM addresses WHERE inbox = sent OR (lower(inbox) = 'inbox' AND lower(sent) = 'inbox') \
               ORDER BY address LIMIT 1";
    database.query_first("looking for addresses with one mailbox", sql, &[])
}

/// A host, the Message-ID of one of its attempts, and the lock that the attempt used.
pub(crate) struct TakenLock {
    pub(crate) host: String,
    pub(crate) message_id: String,
    pub(crate) lock: LockName,
}

columns_of! { TakenLock: host, message_id, lock }

/// The locks that deliveries have used since a time, the newest first.
pub(crate) fn taken_locks(database: &mut dyn Database, since: i64) -> Result<Vec<TakenLock>, DatabaseError> {
    let dialect = database.dialect();
    let sql = format!(
        "SELECT a.host, a.message_id, {} FROM attempts a WHERE a.started_at >= ? ORDER BY a.started_at DESC LIMIT {ATTEMPTS}",
        dialect.hex("a.lock_digest")
    );
    database.query("reading which locks were taken", &sql, &[Value::Moment(since)])
}
