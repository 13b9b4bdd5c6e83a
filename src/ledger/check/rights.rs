//! The rights that the roles of deliveries and of the notifier need: those that `sql/*/grants.sql` and `sql/*/grants-notify.sql`
//! grant. After an upgrade, `check` thus reports the rights that a role still lacks.

use super::{Finding, bad, good, warning};
use crate::database::{DatabaseError, DatabaseFailure, Dialect, Query, Tables};

/// The files of all engines grant the same, except for one more right for MySQL's form of a record ([`OF_MYSQL`]). PostgreSQL's
/// files name the columns.
const OF_DELIVERIES: &str = include_str!("../../../sql/postgres/grants.sql");
const OF_THE_NOTIFIER: &str = include_str!("../../../sql/postgres/grants-notify.sql");

/// A right on some columns of a table, or on the whole table if there are none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Right<'a> {
    table: &'a str,
    right: &'a str,
    columns: Vec<&'a str>,
}

const OF_MYSQL: (&str, &str, &str) = ("messages", "UPDATE", "id");

/// Parses a file's grants: `GRANT SELECT, UPDATE (state, updated_at) ON subscriptions TO :"role";`.
fn granted(file: &str) -> Vec<Right<'_>> {
    let lines: Vec<&str> = file.split(';').collect();
    let mut all = Vec::new();
    for statement in lines {
        let Some((_, grant)) = statement.split_once("\nGRANT ") else { continue };
        let Some((rights, on)) = grant.split_once(" ON ").or_else(|| grant.split_once("\n    ON ")) else { continue };
        let Some((tables, _)) = on.split_once(" TO ") else { continue };
        // The columns belong to the last right.
        let (rights, columns) = rights.split_once('(').unwrap_or((rights, ""));
        let rights: Vec<&str> = rights.split(',').map(str::trim).collect();
        for table in tables.split(", ").map(|table| table.trim_start_matches("maildrop.")) {
            for (at, right) in rights.iter().enumerate() {
                let of_it = if at + 1 == rights.len() { columns.trim_end_matches([')', '\n', ' ']) } else { "" };
                let columns = of_it.split(", ").filter(|column| !column.is_empty()).collect();
                all.push(Right { table, right, columns });
            }
        }
    }
    all
}

/// The rights that the role of deliveries lacks. The schema must be up to date: the rights are tried on its tables.
///
/// # Errors
/// If the server does not answer.
pub(super) fn of_deliveries<D: Tables + ?Sized>(database: &mut D) -> Result<Vec<Finding>, DatabaseError> {
    let is_postgres = database.dialect() == Dialect::Postgresql;
    let mut needed = granted(OF_DELIVERIES);
    let (table, right, column) = OF_MYSQL;
    needed.extend((!is_postgres).then(|| Right { table, right, columns: vec![column] }));
    let fix = if is_postgres {
        "grant what sql/postgres/grants.sql grants"
    } else {
        "grant what sql/mysql/grants.sql grants"
    };
    let mut findings = Vec::new();
    for Right { table, right, columns } in needed {
        if has(database, table, right, &columns)? {
            continue;
        }
        let what = format!("{right} on {table}");
        let only_some = match table {
            "message_addresses" | "message_addresses_read" => {
                "needed by a timer of this role, so that people find addresses"
            }
            "message_sources" => "needed only with record.keep_source",
            "unknown_recipients" => "needed with routing.unknown_recipient = \"reject\", which defers without it",
            "failures" if right == "DELETE" => "needed by a timer of this role, so that a row goes after seven days",
            "failures" => "without it a delivery that fails before its journal is only in the log",
            "outbox" | "subscriptions" => "needed once anybody is subscribed, who is notified of nothing without it",
            _ => {
                findings.push(bad(what, "not granted", fix));
                continue;
            }
        };
        findings.push(warning(what, format!("not granted; {only_some}"), fix));
    }
    if findings.is_empty() {
        findings.push(good("rights", "all that grants.sql gives"));
    }
    Ok(findings)
}

/// The rights that the notifier's role lacks: `INSERT on outbox`.
///
/// # Errors
/// If the server does not answer.
pub(crate) fn missing_to_the_notifier<D: Tables + ?Sized>(database: &mut D) -> Result<Vec<String>, DatabaseError> {
    let mut missing = Vec::new();
    for Right { table, right, columns } in granted(OF_THE_NOTIFIER) {
        if !has(database, table, right, &columns)? {
            missing.push(format!("{right} on {table}"));
        }
    }
    Ok(missing)
}

pub(in crate::ledger) fn has<D: Tables + ?Sized>(
    database: &mut D,
    table: &str,
    right: &str,
    of: &[&str],
) -> Result<bool, DatabaseError> {
    let doing = "asking for our rights";
    if database.dialect() == Dialect::Postgresql {
        let privileges = match (table.strip_prefix("FUNCTION "), of) {
            (Some(function), _) => format!("has_function_privilege('{function}', '{right}')"),
            (None, []) => format!("has_table_privilege('{table}', '{right}')"),
            (None, columns) => {
                let each =
                    columns.iter().map(|column| format!("has_column_privilege('{table}', '{column}', '{right}')"));
                each.collect::<Vec<_>>().join(" AND ")
            }
        };
        return Ok(database.query_first(doing, &format!("SELECT {privileges}"), &[])?.unwrap_or_default());
    }
    if table.starts_with("FUNCTION ") {
        return Ok(true);
    }
    // Tries a statement that changes nothing: the server checks rights before it searches rows. The statements also read: without
    // SELECT, this reports the other rights as missing too.
    let columns = if of.is_empty() { "*".to_owned() } else { of.join(", ") };
    let tried = match right {
        "SELECT" => database.select(doing, &format!("SELECT {columns} FROM {table} WHERE FALSE"), &[]).map(drop),
        // The columns without a default value.
        "INSERT" if table == "outbox" => {
            let sql = "INSERT INTO outbox (event, type, copy_key, identity, message_id, role, recipient, imap_user, mailbox, host, diff, \
                       created_at) SELECT '', '', '', '', '', 'recipient', '', '', '', '', '{}', UTC_TIMESTAMP(6) FROM DUAL WHERE FALSE";
            database.change(doing, sql, &[]).map(drop)
        }
        "INSERT" => {
            database.change(doing, &format!("INSERT INTO {table} SELECT * FROM {table} WHERE FALSE"), &[]).map(drop)
        }
        "UPDATE" => {
            // Each table on which the whole-table UPDATE is granted has this column.
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

    #[test]
    fn a_file_is_read_to_its_last_column() {
        let file =
            "-- x\n\nGRANT SELECT, UPDATE (a, b) ON t, u TO :\"role\";\nGRANT INSERT\n    ON maildrop.v TO 'x'@'%';\n";
        let right = |table, right, columns: &[&'static str]| Right { table, right, columns: columns.to_vec() };
        let all = [
            right("t", "SELECT", &[]),
            right("t", "UPDATE", &["a", "b"]),
            right("u", "SELECT", &[]),
            right("u", "UPDATE", &["a", "b"]),
        ];
        assert_eq!(granted(file), [&all[..], &[right("v", "INSERT", &[])]].concat());
        for (file, rights) in [(OF_DELIVERIES, 32), (OF_THE_NOTIFIER, 18)] {
            let granted = granted(file);
            assert_eq!(granted.len(), rights, "{granted:#?}");
            assert!(granted.contains(&right("maildrop_migrations", "SELECT", &[])));
        }
    }

    #[test]
    fn mysql_s_files_grant_the_same() {
        let same = |postgres: &'static str, mysql: &'static str| {
            let of = |file: &'static str| {
                granted(file).into_iter().map(|right| (right.table, right.right)).collect::<BTreeSet<_>>()
            };
            let (postgres, mysql) = (of(postgres), of(mysql));
            let more: Vec<_> = mysql.difference(&postgres).copied().collect();
            let less: Vec<_> = postgres.difference(&mysql).copied().collect();
            (more, less)
        };
        let (more, less) = same(OF_DELIVERIES, include_str!("../../../sql/mysql/grants.sql"));
        assert_eq!((more, less), (vec![(OF_MYSQL.0, OF_MYSQL.1)], vec![("FUNCTION maildrop_epoch()", "EXECUTE")]));
        let (more, less) = same(OF_THE_NOTIFIER, include_str!("../../../sql/mysql/grants-notify.sql"));
        assert!(more.is_empty() && less.is_empty(), "{more:?} {less:?}");
    }
}
