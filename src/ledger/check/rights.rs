//! The rights that the roles of deliveries and of the notifier need: those that `sql/*/grants.sql` and `sql/*/grants-notifier.sql`
//! grant. After an upgrade, `check` thus reports the rights that a role still lacks.

use super::FindingState::{Bad, Warning};
use super::{Finding, good};
use crate::database::{DatabaseError, DatabaseFailure, Dialect, Query, Tables};

/// The files of all engines grant the same, except for one more right for MySQL's form of a record ([`OF_MYSQL`]). PostgreSQL's
/// files name the columns.
const OF_DELIVERIES: &str = include_str!("../../../sql/postgres/grants.sql");
const OF_THE_NOTIFIER: &str = include_str!("../../../sql/postgres/grants-notifier.sql");

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
    let mut all = Vec::new();
    for statement in file.split(';') {
        let Some((_, grant)) = statement.split_once("\nGRANT ") else { continue };
        let Some((rights, on)) = grant.split_once("ON ") else { continue };
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

/// How the tables begin that only some sites or a timer write to, as the comments in `grants.sql` say.
const OF_SOME_SITES: [&str; 5] = ["message_", "unknown_recipients", "failures", "outbox", "subscriptions"];

/// The rights that the role of deliveries lacks. The schema must be up to date: the rights are tried on its tables.
///
/// # Errors
/// If the server does not answer.
pub(super) fn of_deliveries(database: &mut dyn Tables) -> Result<Vec<Finding>, DatabaseError> {
    let is_postgres = database.dialect() == Dialect::Postgresql;
    let mut needed = granted(OF_DELIVERIES);
    let (table, right, column) = OF_MYSQL;
    needed.extend((!is_postgres).then(|| Right { table, right, columns: vec![column] }));
    let file = file(database, "grants.sql");
    let fix = format!("grant what {file} grants");
    let findings = missing(database, needed)?.into_iter().map(|Right { table, right, .. }| {
        let what = format!("{right} on {table}");
        match OF_SOME_SITES.iter().any(|begin| table.starts_with(begin)) {
            true => Warning.finding(what, format!("not granted; {file} says which sites need it"), &fix),
            false => Bad.finding(what, "not granted", &fix),
        }
    });
    let findings: Vec<Finding> = findings.collect();
    Ok(if findings.is_empty() { vec![good("rights", "all that grants.sql gives")] } else { findings })
}

/// Whether the notifier's role has its rights.
///
/// # Errors
/// If the server does not answer.
pub(crate) fn of_the_notifier(database: &mut dyn Tables) -> Result<Finding, DatabaseError> {
    let missing = missing(database, granted(OF_THE_NOTIFIER))?;
    let missing: Vec<String> = missing.iter().map(|Right { table, right, .. }| format!("{right} on {table}")).collect();
    if missing.is_empty() {
        return Ok(good("notifier", "its role has enough rights"));
    }
    let found = format!("its role lacks {}: subscribers miss notifications", missing.join(", "));
    Ok(Warning.finding("notifier", found, format!("grant what {} grants", file(database, "grants-notifier.sql"))))
}

fn file(database: &mut dyn Tables, name: &str) -> String {
    format!("sql/{}/{name}", if database.dialect() == Dialect::Postgresql { "postgres" } else { "mysql" })
}

fn missing<'a>(database: &mut dyn Tables, needed: Vec<Right<'a>>) -> Result<Vec<Right<'a>>, DatabaseError> {
    let mut missing = Vec::new();
    for needed in needed {
        if !has(database, needed.table, needed.right, &needed.columns)? {
            missing.push(needed);
        }
    }
    Ok(missing)
}

pub(in crate::ledger) fn has(
    database: &mut dyn Tables,
    table: &str,
    right: &str,
    of: &[&str],
) -> Result<bool, DatabaseError> {
    let doing = "asking for our rights";
    if database.dialect() == Dialect::Postgresql {
        let ask = match (table.strip_prefix("FUNCTION "), of) {
            (Some(function), _) => format!("SELECT has_function_privilege('{function}', '{right}')"),
            (None, []) => format!("SELECT has_table_privilege('{table}', '{right}')"),
            (None, columns) => format!(
                "SELECT bool_and(has_column_privilege('{table}', c, '{right}')) FROM unnest('{{{}}}'::text[]) c",
                columns.join(", ")
            ),
        };
        return Ok(database.query_first(doing, &ask, &[])?.unwrap_or_default());
    }
    // Tries a statement that changes nothing: the server checks rights before it searches rows. The statements also read: without
    // SELECT, this reports the other rights as missing too.
    let sql = match right {
        "EXECUTE" => return Ok(true),
        "SELECT" if of.is_empty() => format!("SELECT * FROM {table} WHERE FALSE"),
        "SELECT" => format!("SELECT {} FROM {table} WHERE FALSE", of.join(", ")),
        // Its columns must not be read. With IGNORE the server does not miss the others.
        "INSERT" if table == "outbox" => "INSERT IGNORE INTO outbox (event) SELECT '' FROM DUAL WHERE FALSE".to_owned(),
        "INSERT" => format!("INSERT INTO {table} SELECT * FROM {table} WHERE FALSE"),
        // Each table on which the whole-table UPDATE is granted has this column.
        "UPDATE" => {
            let of = if of.is_empty() { &["due_at"] } else { of };
            let same: Vec<String> = of.iter().map(|column| format!("{column} = {column}")).collect();
            format!("UPDATE {table} SET {} WHERE FALSE", same.join(", "))
        }
        _ => format!("DELETE FROM {table} WHERE FALSE"),
    };
    let tried = match right {
        "SELECT" => database.select(doing, &sql, &[]).map(drop),
        _ => database.change(doing, &sql, &[]).map(drop),
    };
    match tried {
        Err(error) if error.failure == DatabaseFailure::AccessDenied => Ok(false),
        tried => tried.map(|()| true),
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
        let (more, less) = same(OF_THE_NOTIFIER, include_str!("../../../sql/mysql/grants-notifier.sql"));
        assert!(more.is_empty() && less.is_empty(), "{more:?} {less:?}");
    }
}
