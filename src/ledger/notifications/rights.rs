//! What the notifier's role has to be allowed, as `sql/*/grants-notify.sql` gives it: a role that was given what an older release
//! needed is told what it lacks.

use crate::database::{DatabaseError, DatabaseFailure, Dialect, Tables};
use crate::ledger::{Database, columns};

const OF_A_MESSAGE: [&str; 10] = [
    "identity",
    "message_id",
    "sender",
    "header_from",
    "header_to",
    "header_cc",
    "subject",
    "sent_at",
    "headers",
    "size",
];

/// A table, a right, and on which of its columns; none: all of them.
const NEEDED: [(&str, &str, &[&str]); 18] = [
    ("maildrop_migrations", "SELECT", &[]),
    ("outbox", "SELECT", &[]),
    ("outbox", "DELETE", &[]),
    ("events", "SELECT", &[]),
    ("events", "INSERT", &[]),
    ("subscription_queues", "SELECT", &[]),
    ("subscription_queues", "INSERT", &[]),
    ("subscription_queues", "UPDATE", &[]),
    ("subscription_queues", "DELETE", &[]),
    ("notifications", "SELECT", &[]),
    ("notifications", "INSERT", &[]),
    ("notifications", "UPDATE", &[]),
    ("notifications", "DELETE", &[]),
    ("notification_attempts", "SELECT", &[]),
    ("notification_attempts", "INSERT", &[]),
    ("subscriptions", "SELECT", &[]),
    ("subscriptions", "UPDATE", &["state", "state_reason", "updated_at"]),
    ("messages", "SELECT", &OF_A_MESSAGE),
];

/// What of it our role lacks: `INSERT on outbox`. Asks for the schema's own tables, so that it has to be up to date.
///
/// # Errors
/// Where the server cannot be asked.
pub(crate) fn missing_rights(database: &mut dyn Database) -> Result<Vec<String>, DatabaseError> {
    let mut missing = Vec::new();
    for (table, right, of) in NEEDED {
        if !has(database, table, right, of)? {
            missing.push(format!("{right} on {table}"));
        }
    }
    Ok(missing)
}

pub(super) fn has<D: Tables + ?Sized>(
    database: &mut D,
    table: &str,
    right: &str,
    of: &[&str],
) -> Result<bool, DatabaseError> {
    let doing = "asking for the notifier's rights";
    if database.dialect() == Dialect::Postgresql {
        let each = of.iter().map(|column| format!("has_column_privilege('{table}', '{column}', '{right}')"));
        let each: Vec<String> = match of {
            [] => vec![format!("has_table_privilege('{table}', '{right}')")],
            _ => each.collect(),
        };
        let sql = format!("SELECT CASE WHEN {} THEN 1 ELSE 0 END", each.join(" AND "));
        let rows = database.select(doing, &sql, &[])?;
        return Ok(columns::only_number::<u8>(&rows)? == 1);
    }
    // By a statement that changes nothing: rights are checked before it is looked for rows. Where SELECT is missing, so is the rest.
    let columns = if of.is_empty() { "*".to_owned() } else { of.join(", ") };
    let tried = match right {
        "SELECT" => database.select(doing, &format!("SELECT {columns} FROM {table} WHERE FALSE"), &[]).map(drop),
        "INSERT" => {
            database.change(doing, &format!("INSERT INTO {table} SELECT * FROM {table} WHERE FALSE"), &[]).map(drop)
        }
        "UPDATE" => {
            // Those of which all columns change have this one.
            let of = if of.is_empty() { &["due_at"] } else { of };
            let same: Vec<String> = of.iter().map(|column| format!("{column} = {column}")).collect();
            database.change(doing, &format!("UPDATE {table} SET {} WHERE FALSE", same.join(", ")), &[]).map(drop)
        }
        _ => database.change(doing, &format!("DELETE FROM {table} WHERE FALSE"), &[]).map(drop),
    };
    match tried {
        Ok(()) => Ok(true),
        Err(error) if error.failure == DatabaseFailure::AccessDenied => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// What a file grants, as [`NEEDED`] has it.
    fn granted(file: &str) -> BTreeSet<(String, String, Vec<String>)> {
        let text: Vec<&str> = file.lines().filter(|line| !line.starts_with("--")).collect();
        let mut all = BTreeSet::new();
        for statement in text.join(" ").split(';').filter_map(|one| one.trim().strip_prefix("GRANT ")) {
            let (rights, on) = statement.split_once(" ON ").unwrap();
            let tables = on.split_once(" TO ").unwrap().0;
            let columns = rights.split_once('(').map(|(_, columns)| columns.trim_end_matches([')', ' ']));
            let columns: Vec<String> = columns.into_iter().flat_map(|list| list.split(", ")).map(Into::into).collect();
            let rights: Vec<&str> = rights.split('(').next().unwrap().split(", ").map(str::trim).collect();
            for table in tables.split(", ").map(|table| table.trim().trim_start_matches("maildrop.")) {
                for (at, right) in rights.iter().enumerate() {
                    // The columns are of the last right.
                    let of = if at + 1 == rights.len() { columns.clone() } else { Vec::new() };
                    all.insert((table.to_owned(), (*right).to_owned(), of));
                }
            }
        }
        all
    }

    #[test]
    fn what_is_needed_is_what_the_files_grant() {
        let needed: BTreeSet<_> = NEEDED
            .iter()
            .map(|(table, right, of)| {
                ((*table).to_owned(), (*right).to_owned(), of.iter().map(|column| (*column).to_owned()).collect())
            })
            .collect();
        assert_eq!(needed.len(), NEEDED.len());
        assert_eq!(granted(include_str!("../../../sql/postgres/grants-notify.sql")), needed);
        assert_eq!(granted(include_str!("../../../sql/mysql/grants-notify.sql")), needed);
    }
}
