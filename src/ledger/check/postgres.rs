//! What `check` asks of PostgreSQL.

use super::{FORGETS, Finding, Inspect, State, Wanted, bad, bad_if, good, warning};
use crate::database::postgres::{column, only};
use crate::database::{DatabaseError, PostgresDatabase, relatives};
use crate::lock::{Acquired, LockName, NamedLock};
use crate::schema::{self, MigrationState, MigrationStatus};
use postgres::types::Type;
use std::time::Duration;
use uuid::Uuid;

/// Every right that a delivery needs, as `sql/postgres/grants.sql` gives it.
const RIGHTS: [(&str, &[&str]); 11] = [
    ("addresses", &["SELECT"]),
    ("attempts", &["SELECT", "INSERT", "UPDATE"]),
    ("messages", &["SELECT", "INSERT"]),
    ("copies", &["SELECT", "INSERT", "UPDATE"]),
    ("ways_in", &["SELECT", "INSERT", "UPDATE"]),
    ("epochs", &["SELECT", "INSERT"]),
    ("maildrop_migrations", &["SELECT"]),
    ("message_sources", &["SELECT", "INSERT"]),
    ("refusals", &["SELECT", "INSERT", "UPDATE"]),
    ("outbox", &["INSERT"]),
    ("subscriptions", &["SELECT"]),
];

/// `grants.sql` gives UPDATE on some columns. NULL where there is no such table.
const RIGHT: &str = "SELECT n, has_any_column_privilege(to_regclass(t), r) \
    FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS asked (t, r, n) ORDER BY n";

/// The function that each delivery runs. Where default privileges say so, not everybody may. NULL where there is no such function.
const FUNCTION: &str = "maildrop_epoch()";
const MAY_EXECUTE: &str = "SELECT has_function_privilege(to_regprocedure($1), 'EXECUTE')";

const SETTINGS: [&str; 9] = [
    "default_transaction_read_only",
    "synchronous_commit",
    "fsync",
    "full_page_writes",
    "server_encoding",
    "client_encoding",
    "statement_timeout",
    "idle_session_timeout",
    "max_connections",
];

/// A time is in milliseconds. A setting that an older server does not know has no row.
const SETTING: &str = "SELECT name, setting FROM pg_settings WHERE name = ANY ($1)";

/// Any role can count the standbys: without rights, it sees their rows with little in them.
const REPLICATION: &str = "SELECT current_setting('synchronous_standby_names'), current_setting('synchronous_commit'), \
    (SELECT count(*) FROM pg_stat_replication)";

/// Extensions with which more than one server takes writes.
const EXTENSIONS: &str =
    "SELECT extname::text FROM pg_extension WHERE extname IN ('bdr', 'spock', 'pglogical', 'citus') ORDER BY extname";

impl Inspect for PostgresDatabase {
    fn describe(&mut self) -> Result<String, DatabaseError> {
        let doing = "asking for the server's version";
        let version: String = only(doing, &self.query(doing, "SELECT current_setting('server_version')", &[])?)?;
        // Debian's reads "17.11 (Debian 17.11-0+deb13u1)".
        Ok(format!("PostgreSQL {}", version.split(' ').next().unwrap_or_default()))
    }

    fn any_address(&mut self, not_of: &[&str]) -> Result<Option<String>, DatabaseError> {
        let doing = "looking for an address";
        let sql = "SELECT address::text FROM addresses \
                   WHERE address NOT LIKE '@%' AND imap_user::text <> ALL ($1) LIMIT 1";
        let rows = self.query(doing, sql, &[(&not_of, Type::TEXT_ARRAY)])?;
        rows.first().map(|row| column(doing, row, 0)).transpose()
    }

    fn server(&mut self) -> Result<String, DatabaseError> {
        let doing = "asking which server it is";
        // Not the system_identifier, which a standby shares with its primary.
        let sql = "SELECT 'the one that is up since ' || pg_postmaster_start_time()";
        only(doing, &self.query(doing, sql, &[])?)
    }

    fn inspect(&mut self, wanted: Wanted) -> Result<Vec<Finding>, DatabaseError> {
        if let Some(relative) = self.relative()? {
            // It may not know what else would be asked.
            return Ok(vec![relative]);
        }
        let standby = self.standby()?;
        // A standby refuses the lock's transaction, which may write.
        let is_primary = standby.state == State::Good;
        let mut findings = vec![standby];
        findings.extend(self.settings(wanted.deadline)?);
        if is_primary {
            findings.push(self.replication(wanted.replicated)?);
            findings.push(self.excludes()?);
        }
        findings.extend(self.extensions()?);
        findings.extend(schema(&schema::status(self)?));
        findings.extend(self.rights()?);
        Ok(findings)
    }
}

impl PostgresDatabase {
    fn standby(&mut self) -> Result<Finding, DatabaseError> {
        let doing = "asking whether the server is a standby";
        Ok(if only(doing, &self.query(doing, "SELECT pg_is_in_recovery()", &[])?)? {
            bad("role of the server", "standby", "name the primary: a lock on a standby excludes nobody")
        } else {
            good("role of the server", "primary")
        })
    }

    /// A finding, where it is no PostgreSQL.
    fn relative(&mut self) -> Result<Option<Finding>, DatabaseError> {
        let doing = "asking for the product";
        let version: String = only(doing, &self.query(doing, "SELECT version()", &[])?)?;
        Ok(relatives::of_postgresql(&version).map(|name| {
            bad("product", name, "use PostgreSQL itself: whether this one's advisory locks exclude has not been tried")
        }))
    }

    /// Whether what was committed is also on the server that takes over.
    fn replication(&mut self, replicated: bool) -> Result<Finding, DatabaseError> {
        let doing = "asking for standbys";
        let rows = self.query(doing, REPLICATION, &[])?;
        let row = rows.first().ok_or_else(|| DatabaseError::other(doing, "no answer"))?;
        let standbys: i64 = column(doing, row, 2)?;
        Ok(replication(replicated, column(doing, row, 0)?, column(doing, row, 1)?, standbys))
    }

    fn extensions(&mut self) -> Result<Vec<Finding>, DatabaseError> {
        let doing = "asking for extensions";
        let rows = self.query(doing, EXTENSIONS, &[])?;
        let names = rows.iter().map(|row| column::<String>(doing, row, 0)).collect::<Result<Vec<_>, _>>()?;
        names.iter().map(|name| self.extension(name)).collect()
    }

    fn extension(&mut self, name: &str) -> Result<Finding, DatabaseError> {
        let one_primary = "a lock excludes on one server only: send every delivery to the same one, and see that its \
                           answered commits are on whichever takes over";
        Ok(match name {
            "citus" => {
                let doing = "asking which node of Citus it is";
                let group: i32 = only(doing, &self.query(doing, "SELECT groupid FROM pg_dist_local_group", &[])?)?;
                if group == 0 {
                    let mend = "never send a delivery to a worker: a lock excludes on one node only";
                    warning("Citus", "the coordinator", mend)
                } else {
                    bad("Citus", "a worker", "name the coordinator: a lock excludes on one node only")
                }
            }
            // It is mostly used one way; used both ways, it makes several primaries.
            "pglogical" => warning(name, "there", one_primary),
            _ => bad(name, "several primaries", one_primary),
        })
    }

    fn settings(&mut self, deadline: Duration) -> Result<Vec<Finding>, DatabaseError> {
        let doing = "reading the server's settings";
        let mut findings = Vec::new();
        for row in &self.query(doing, SETTING, &[(&&SETTINGS[..], Type::TEXT_ARRAY)])? {
            let (name, value): (String, String) = (column(doing, row, 0)?, column(doing, row, 1)?);
            findings.push(setting(&name, &value, deadline));
        }
        // The order of the list, whatever the server's.
        findings.sort_by_key(|finding| SETTINGS.iter().position(|name| *name == finding.what));
        Ok(findings)
    }

    /// Takes a lock, asks whether it is held, and lets go: with a pooler that gives each statement another server process, it is
    /// not.
    fn excludes(&mut self) -> Result<Finding, DatabaseError> {
        let what = "named lock";
        let name = LockName::new("maildrop check", Uuid::now_v7().as_bytes());
        let held = match self.acquire(&name, Duration::ZERO)? {
            Acquired::Held => self.still_held(&name),
            Acquired::Busy(_) => Ok(false),
        };
        self.release(&name)?;
        Ok(if held? {
            good(what, "taken, still held, let go")
        } else {
            bad(what, "it did not stay with the connection", "a pooler must be in transaction or session mode")
        })
    }

    fn rights(&mut self) -> Result<Vec<Finding>, DatabaseError> {
        let doing = "asking for the role's rights";
        let needed = RIGHTS.iter().flat_map(|(table, rights)| rights.iter().map(|right| (*table, *right)));
        let (tables, rights): (Vec<&str>, Vec<&str>) = needed.unzip();
        let rows = self.query(doing, RIGHT, &[(&tables, Type::TEXT_ARRAY), (&rights, Type::TEXT_ARRAY)])?;
        let mut findings = Vec::new();
        for ((table, right), row) in tables.into_iter().zip(rights).zip(&rows) {
            let what = format!("{right} on {table}");
            let mend = "see sql/postgres/grants.sql";
            findings.push(match column::<Option<bool>>(doing, row, 1)? {
                Some(true) => good(what, "granted"),
                // No such table: the finding on its migration says so.
                None => continue,
                Some(false) if table == "message_sources" => {
                    warning(what, "not granted; needed only with record.raw", mend)
                }
                Some(false) if table == "refusals" => {
                    let found = "not granted; needed with routing.unknown = \"reject\", which defers without it";
                    warning(what, found, mend)
                }
                Some(false) if matches!(table, "outbox" | "subscriptions") => warning(
                    what,
                    "not granted; needed once anybody is subscribed, who is told of nothing without it",
                    mend,
                ),
                Some(false) => bad(what, "not granted", mend),
            });
        }
        let what = format!("EXECUTE on {FUNCTION}");
        match only::<Option<bool>>(doing, &self.query(doing, MAY_EXECUTE, &[(&FUNCTION, Type::TEXT)])?)? {
            Some(true) => findings.push(good(what, "granted")),
            Some(false) => findings.push(bad(what, "not granted", "see sql/postgres/grants.sql")),
            None => {}
        }
        Ok(findings)
    }
}

/// Whether what was committed is also on the server that takes over.
fn replication(replicated: bool, names: &str, commit: &str, standbys: i64) -> Finding {
    let what = "replication";
    match (names, commit, standbys) {
        ("", _, 0) if replicated => {
            bad(what, "none", "start a standby, and name it in synchronous_standby_names (database.durability)")
        }
        ("", _, 0) => good(what, "none"),
        ("", _, standbys) => bad_if(
            replicated,
            what,
            format!("to {standbys}, and no commit waits for it"),
            format!("set synchronous_standby_names: {FORGETS}"),
        ),
        (_, _, 0) => bad(
            what,
            format!("synchronous_standby_names = {names}, and there is none"),
            "start a standby, or set it to '': each delivery waits at its first commit until its deadline, and is deferred",
        ),
        (_, "off" | "local", _) => bad_if(
            replicated,
            what,
            format!("synchronous_commit = {commit}: no commit waits for {names}"),
            format!("ALTER ROLE ... SET synchronous_commit = on: {FORGETS}"),
        ),
        _ => good(what, format!("a commit waits for {names}")),
    }
}

/// `migrate` applies all that are missing, so of those only the first is told.
fn schema(all: &[MigrationStatus]) -> Vec<Finding> {
    let mut missing = false;
    let told = all.iter().filter_map(|migration| {
        let what = format!("migration {:04}_{}", migration.number, migration.name);
        let run = "run `maildrop_command migrate`";
        let pending = migration.state == MigrationState::Pending;
        if pending && missing {
            return None;
        }
        missing |= pending && !migration.optional;
        Some(match migration.state {
            MigrationState::Applied => good(what, "applied"),
            MigrationState::Newer => good(what, "applied by a newer release"),
            MigrationState::Pending if migration.optional => warning(what, "left out", run),
            MigrationState::Pending => bad(what, "not applied", run),
            MigrationState::Edited => bad(what, "applied with another text", "recreate the database: docs/upgrade.md"),
            MigrationState::Unknown => bad(what, "not known to this release", "find out which program has applied it"),
        })
    });
    told.collect()
}

/// What a setting's value means to a delivery.
fn setting(name: &str, value: &str, deadline: Duration) -> Finding {
    // Times are in milliseconds, 0 is "no limit".
    let shorter_than_a_delivery =
        || value.parse().is_ok_and(|limit| limit > 0 && Duration::from_millis(limit) < deadline);
    match (name, value) {
        ("default_transaction_read_only", "on") => {
            bad(name, value, "ALTER ROLE ... SET default_transaction_read_only = off, or name the primary")
        }
        // The commit is answered before it is on disk. `local`, `remote_write` and the rest all wait for the disk.
        ("synchronous_commit", "off") => {
            bad(name, value, "ALTER ROLE ... SET synchronous_commit = on: a crash forgets what was delivered")
        }
        ("fsync" | "full_page_writes", "off") => bad(name, value, "turn it on: a crash destroys the database"),
        ("server_encoding", "UTF8") | ("client_encoding", "UTF8") => good(name, value),
        ("server_encoding", _) => {
            bad(name, value, "make a database with ENCODING 'UTF8': this one refuses some characters of some subjects")
        }
        ("client_encoding", _) => bad(name, value, "a pooler must not set it"),
        ("statement_timeout" | "idle_session_timeout", _) if shorter_than_a_delivery() => warning(
            name,
            format!("{value} ms"),
            "ALTER ROLE ... SET it to 0: it is shorter than a delivery may take, which then defers",
        ),
        ("statement_timeout" | "idle_session_timeout", "0") => good(name, "none"),
        ("statement_timeout" | "idle_session_timeout", _) => good(name, format!("{value} ms")),
        _ => good(name, value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_that_no_standby_has_is_found() {
        for (names, commit, standbys, state, if_replicated) in [
            ("", "on", 0, State::Good, State::Bad),
            ("", "on", 2, State::Warning, State::Bad),
            ("pg2", "on", 1, State::Good, State::Good),
            ("pg2", "remote_apply", 1, State::Good, State::Good),
            ("pg2", "local", 1, State::Warning, State::Bad),
            ("pg2", "on", 0, State::Bad, State::Bad),
        ] {
            for (replicated, state) in [(false, state), (true, if_replicated)] {
                let finding = replication(replicated, names, commit, standbys);
                assert_eq!(finding.state, state, "{finding:?}");
                assert_eq!(finding.mend.is_none(), state == State::Good, "{finding:?}");
            }
        }
    }

    #[test]
    fn of_all_migrations_that_are_missing_the_first_is_told() {
        use MigrationState::{Applied, Edited, Newer, Pending, Unknown};
        let (needed, optional) = (false, true);
        for (all, told) in [
            (
                &[(Applied, needed), (Applied, optional), (Newer, needed)][..],
                &[(State::Good, "applied"), (State::Good, "applied"), (State::Good, "applied by a newer release")][..],
            ),
            (
                &[(Applied, needed), (Pending, needed), (Pending, needed), (Pending, optional)],
                &[(State::Good, "applied"), (State::Bad, "not applied")],
            ),
            // One that the server refused does not stand in for one that was never tried.
            (
                &[(Pending, optional), (Pending, optional), (Pending, needed), (Pending, needed)],
                &[(State::Warning, "left out"), (State::Warning, "left out"), (State::Bad, "not applied")],
            ),
            (
                &[(Pending, needed), (Edited, needed), (Unknown, needed), (Applied, needed)],
                &[
                    (State::Bad, "not applied"),
                    (State::Bad, "applied with another text"),
                    (State::Bad, "not known to this release"),
                    (State::Good, "applied"),
                ],
            ),
        ] {
            let all = (1..).zip(all).map(|(number, &(state, optional))| MigrationStatus {
                number,
                name: "x".into(),
                optional,
                state,
            });
            let findings = schema(&all.collect::<Vec<_>>());
            let found: Vec<_> = findings.iter().map(|finding| (finding.state, finding.found.as_str())).collect();
            assert_eq!(found, told);
            assert_eq!(findings[0].what, "migration 0001_x");
        }
    }

    #[test]
    fn a_setting_with_which_something_is_lost_or_deferred_is_found() {
        for (name, value, state, found) in [
            ("default_transaction_read_only", "on", State::Bad, "on"),
            ("default_transaction_read_only", "off", State::Good, "off"),
            ("synchronous_commit", "off", State::Bad, "off"),
            ("synchronous_commit", "local", State::Good, "local"),
            ("fsync", "off", State::Bad, "off"),
            ("full_page_writes", "off", State::Bad, "off"),
            ("full_page_writes", "on", State::Good, "on"),
            ("server_encoding", "UTF8", State::Good, "UTF8"),
            ("server_encoding", "SQL_ASCII", State::Bad, "SQL_ASCII"),
            ("client_encoding", "UTF8", State::Good, "UTF8"),
            ("client_encoding", "LATIN1", State::Bad, "LATIN1"),
            ("statement_timeout", "0", State::Good, "none"),
            ("statement_timeout", "119999", State::Warning, "119999 ms"),
            ("statement_timeout", "120000", State::Good, "120000 ms"),
            ("idle_session_timeout", "0", State::Good, "none"),
            ("idle_session_timeout", "1", State::Warning, "1 ms"),
            ("max_connections", "0", State::Good, "0"),
        ] {
            let finding = setting(name, value, Duration::from_mins(2));
            assert_eq!((finding.state, finding.found.as_str()), (state, found), "{finding:?}");
            assert_eq!(finding.mend.is_none(), state == State::Good, "{finding:?}");
        }
    }
}
