//! What `check` verifies on PostgreSQL.

use super::{FORGETS, Finding, Requirements, bad, bad_if, good, only, warning};
use crate::database::{DatabaseError, Query};
use crate::ledger::Database;
use std::time::Duration;

/// Times are in milliseconds. A setting that an older server does not know has no row.
const SETTINGS: &str = "SELECT name, setting FROM unnest('{default_transaction_read_only, synchronous_commit, fsync, \
    full_page_writes, server_encoding, client_encoding, statement_timeout, idle_session_timeout, max_connections}'::text[]) \
    WITH ORDINALITY w (name, place) JOIN pg_settings USING (name) ORDER BY place";

/// Any role can count the standbys: without rights, a role sees their rows with few values (PostgreSQL, "The Cumulative
/// Statistics System").
const REPLICATION: &str = "SELECT current_setting('synchronous_standby_names'), current_setting('synchronous_commit'), \
    (SELECT count(*) FROM pg_stat_replication)";

/// Products with which more than one server takes writes, or has locks of its own. pglogical mostly replicates in one direction,
/// so it only gives a warning.
const EXTENSIONS: &str =
    "SELECT extname::text FROM pg_extension WHERE extname IN ('bdr', 'spock', 'pglogical', 'citus') ORDER BY extname";

pub(super) fn inspect(database: &mut dyn Database, wanted: Requirements) -> Result<Vec<Finding>, DatabaseError> {
    let doing = "reading the server's settings";
    let mut findings = Vec::new();
    let is_standby: bool = only(database, doing, "SELECT pg_is_in_recovery()")?;
    findings.push(match is_standby {
        true => bad("role of the server", "standby", "name the primary: a lock on a standby excludes nobody"),
        false => good("role of the server", "primary"),
    });
    let settings: Vec<(String, String)> = database.query(doing, SETTINGS, &[])?;
    findings.extend(settings.iter().map(|(name, value)| setting(name, value, wanted.deadline)));
    if !is_standby {
        let (names, commit, standbys): (String, String, i64) = only(database, doing, REPLICATION)?;
        findings.push(replication(wanted.replicated, &names, &commit, standbys));
    }
    for name in database.query::<String>(doing, EXTENSIONS, &[])? {
        let fix = "a lock excludes on one server only: send every delivery to the same primary (of Citus, the coordinator), and \
                    see that its answered commits are on whichever takes over";
        findings.push(match name.as_str() {
            "bdr" | "spock" => bad(name, "several primaries", fix),
            _ => warning(name, "there", fix),
        });
    }
    Ok(findings)
}

/// The finding on whether commits are also on the server that takes over.
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

/// The finding on a setting's value.
fn setting(name: &str, value: &str, deadline: Duration) -> Finding {
    // Times are in milliseconds, 0 is "no limit".
    let shorter_than_a_delivery =
        || value.parse().is_ok_and(|limit| limit > 0 && Duration::from_millis(limit) < deadline);
    match (name, value) {
        ("default_transaction_read_only", "on") => {
            bad(name, value, "ALTER ROLE ... SET default_transaction_read_only = off, or name the primary")
        }
        // The commit is answered before it is on disk. `local`, `remote_write` and the other values all wait for the disk.
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
    use crate::ledger::FindingState;

    #[test]
    fn a_commit_that_no_standby_has_is_found() {
        for (names, commit, standbys, state, if_replicated) in [
            ("", "on", 0, FindingState::Good, FindingState::Bad),
            ("", "on", 2, FindingState::Warning, FindingState::Bad),
            ("pg2", "on", 1, FindingState::Good, FindingState::Good),
            ("pg2", "remote_apply", 1, FindingState::Good, FindingState::Good),
            ("pg2", "local", 1, FindingState::Warning, FindingState::Bad),
            ("pg2", "on", 0, FindingState::Bad, FindingState::Bad),
        ] {
            for (replicated, state) in [(false, state), (true, if_replicated)] {
                let finding = replication(replicated, names, commit, standbys);
                assert_eq!(finding.state, state, "{finding:?}");
                assert_eq!(finding.fix.is_none(), state == FindingState::Good, "{finding:?}");
            }
        }
    }

    #[test]
    fn a_setting_with_which_something_is_lost_or_deferred_is_found() {
        for (name, value, state, found) in [
            ("default_transaction_read_only", "on", FindingState::Bad, "on"),
            ("default_transaction_read_only", "off", FindingState::Good, "off"),
            ("synchronous_commit", "off", FindingState::Bad, "off"),
            ("synchronous_commit", "local", FindingState::Good, "local"),
            ("fsync", "off", FindingState::Bad, "off"),
            ("full_page_writes", "off", FindingState::Bad, "off"),
            ("full_page_writes", "on", FindingState::Good, "on"),
            ("server_encoding", "UTF8", FindingState::Good, "UTF8"),
            ("server_encoding", "SQL_ASCII", FindingState::Bad, "SQL_ASCII"),
            ("client_encoding", "UTF8", FindingState::Good, "UTF8"),
            ("client_encoding", "LATIN1", FindingState::Bad, "LATIN1"),
            ("statement_timeout", "0", FindingState::Good, "none"),
            ("statement_timeout", "119999", FindingState::Warning, "119999 ms"),
            ("statement_timeout", "120000", FindingState::Good, "120000 ms"),
            ("idle_session_timeout", "0", FindingState::Good, "none"),
            ("idle_session_timeout", "1", FindingState::Warning, "1 ms"),
            ("max_connections", "0", FindingState::Good, "0"),
        ] {
            let finding = setting(name, value, Duration::from_mins(2));
            assert_eq!((finding.state, finding.found.as_str()), (state, found), "{finding:?}");
            assert_eq!(finding.fix.is_none(), state == FindingState::Good, "{finding:?}");
        }
    }
}
