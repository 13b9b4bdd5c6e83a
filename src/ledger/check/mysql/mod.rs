//! What `check` verifies on a MySQL or MariaDB server.

use super::{FORGETS, Finding, FindingState, Requirements, bad, bad_if, good, only, warning};
use crate::database::{DatabaseError, DatabaseFailure, Dialect, Privacy, Query};
use crate::ledger::Database;
use std::collections::HashMap;
use std::time::Duration;

/// If the packet is smaller, in bytes, a record with long headers may not fit; see `ledger::mysql`.
const SMALLEST_PACKET: u64 = 4 << 20;

/// The variables that are read, and those of SHOW STATUS. No server has all of them.
const VARIABLES: &str = "read_only super_read_only innodb_read_only innodb_flush_log_at_trx_commit log_bin sync_binlog \
    binlog_format wsrep_on wsrep_cluster_name group_replication_group_name group_replication_single_primary_mode \
    group_replication_consistency performance_schema rpl_semi_sync_source_enabled rpl_semi_sync_source_timeout \
    rpl_semi_sync_source_wait_point rpl_semi_sync_source_wait_no_replica rpl_semi_sync_master_enabled \
    rpl_semi_sync_master_timeout rpl_semi_sync_master_wait_point rpl_semi_sync_master_wait_no_slave";
const STATUS: &str = "Slaves_connected Rpl_semi_sync_source_status Rpl_semi_sync_master_status";

/// The server's variables. Those of semi-synchronous replication have MySQL's names (source, replica), not MariaDB's
/// (master, slave).
#[derive(Default)]
struct Variables(HashMap<String, String>);

impl Variables {
    fn of(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        let name = |name: String| name.replace("sync_master", "sync_source").replace("no_slave", "no_replica");
        Self(pairs.into_iter().map(|(old, value)| (name(old), value)).collect())
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Any value that does not mean "no" counts as yes: MariaDB's read_only has more than two values.
    fn on(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| !["OFF", "0", "NO", ""].iter().any(|off| value.eq_ignore_ascii_case(off)))
    }

    fn in_a_group(&self) -> bool {
        self.get("group_replication_group_name").is_some_and(|name| !name.is_empty())
    }
}

pub(super) fn server(database: &mut dyn Database) -> Result<String, DatabaseError> {
    let mut names: Vec<String> = show(database, "VARIABLES", "server_uuid server_uid hostname port")?
        .into_iter()
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    names.sort();
    Ok(names.join(", "))
}

pub(super) fn inspect(database: &mut dyn Database, wanted: Requirements) -> Result<Vec<Finding>, DatabaseError> {
    let (product, doing) = (database.dialect(), "reading the server's variables");
    let mut pairs = show(database, "VARIABLES", VARIABLES)?;
    pairs.extend(show(database, "STATUS", STATUS)?);
    let variables = Variables::of(pairs);
    let (number, largest_packet): (String, u64) = only(database, doing, "SELECT VERSION(), @@max_allowed_packet")?;
    let mut findings = vec![version(product, &number)];
    findings.extend(settings(&variables));
    if variables.in_a_group() {
        findings.push(group_members(database)?);
    }
    findings.extend(match variables.on("rpl_semi_sync_source_enabled") {
        true => semi_synchronous(wanted, &variables),
        // The members of a group have all commits.
        false if variables.in_a_group() => Vec::new(),
        false => vec![asynchronous(wanted.replicated, followers(database, &variables)?)],
    });
    findings.push(packet(largest_packet));
    findings.push(encryption(database.privacy()));
    Ok(findings)
}

/// The answer to a SHOW of these variables, with names in lower case.
fn show(database: &mut dyn Database, what: &str, names: &str) -> Result<Vec<(String, String)>, DatabaseError> {
    let show = format!("SHOW GLOBAL {what} WHERE Variable_name IN ('{}')", names.replace(' ', "', '"));
    let mut rows: Vec<(String, String)> = database.query("reading the server's variables", &show, &[])?;
    rows.iter_mut().for_each(|(name, _)| name.make_ascii_lowercase());
    Ok(rows)
}

/// Two counts that only a role with a special right may read; `None` for another role.
fn counts(database: &mut dyn Database, doing: &str, ask: &str) -> Result<Option<(u64, u64)>, DatabaseError> {
    match database.query_first(doing, ask, &[]) {
        Err(error) if error.failure == DatabaseFailure::AccessDenied => Ok(None),
        counts => counts,
    }
}

/// Whether this member of a group belongs to its majority: a minority still gives locks, but commits nothing.
fn group_members(database: &mut dyn Database) -> Result<Finding, DatabaseError> {
    let ask = "SELECT COUNT(*), COALESCE(SUM(member_state = 'ONLINE'), 0) \
               FROM performance_schema.replication_group_members";
    Ok(match counts(database, "asking for the members of the group", ask)? {
        Some((all, online)) => members(all, online),
        None => {
            let fix = "GRANT SELECT ON performance_schema.replication_group_members, to see it";
            warning("group members", "our role may not see them", fix)
        }
    })
}

/// How many servers follow this one; `None` if our role cannot learn that.
fn followers(database: &mut dyn Database, said: &Variables) -> Result<Option<u64>, DatabaseError> {
    if database.dialect() == Dialect::Mariadb {
        // On MariaDB, any role may read this count.
        return Ok(said.get("slaves_connected").map_or(Some(0), |count| count.parse().ok()));
    }
    if !said.on("log_bin") || !said.on("performance_schema") {
        return Ok((!said.on("log_bin")).then_some(0));
    }
    let ask = "SELECT COUNT(*), 0 FROM performance_schema.threads WHERE processlist_command LIKE 'Binlog Dump%'";
    Ok(counts(database, "asking who follows", ask)?.map(|(followers, _)| followers))
}

fn version(product: Dialect, version: &str) -> Finding {
    let (oldest, name) = match product {
        Dialect::Mariadb => ((10, 6, 0), "MariaDB 10.6"),
        // The first version with CHECK constraints. Below 5.7.5, a second GET_LOCK frees the first.
        _ => ((8, 0, 16), "MySQL 8.0.16"),
    };
    match numbers(version) {
        Some(numbers) if numbers >= oldest => good("version", version),
        Some(_) => bad("version", version, format!("{name} is the oldest that this program is made for")),
        None => warning("version", version, "the version cannot be read; make sure that it is a current one"),
    }
}

/// Whether the server takes writes, keeps them, and has locks that exclude everywhere.
fn settings(said: &Variables) -> Vec<Finding> {
    let read_only = ["read_only", "super_read_only", "innodb_read_only"].into_iter().filter(|name| said.on(name));
    let read_only: Vec<&str> = read_only.collect();
    let mut findings = vec![match read_only.is_empty() {
        true => good("read_only", "OFF"),
        false => {
            let fix = "connect to the primary: a replica takes no writes, and a lock on it excludes nobody";
            bad("read_only", format!("{} is on", read_only.join(", ")), fix)
        }
    }];
    let mut look = |what: &str, is_good: fn(&str) -> bool, state, fix: &str| {
        findings.extend(said.get(what).map(|value| match is_good(value) {
            true => good(what, value),
            false => Finding { state, ..bad(what, value, fix) },
        }));
    };
    let fix = "set it to 1: a commit that a power failure can undo is forgotten, and its message delivered twice";
    look("innodb_flush_log_at_trx_commit", |value| value == "1", FindingState::Bad, fix);
    if said.on("log_bin") {
        let fix = "set it to 1: after a power failure replicas, and a primary that recovers by its binary log, may miss commits";
        look("sync_binlog", |value| value == "1", FindingState::Warning, fix);
        let fix = "set it to ROW (or MIXED): InnoDB refuses to log READ COMMITTED by statement";
        look("binlog_format", |value| !value.eq_ignore_ascii_case("STATEMENT"), FindingState::Bad, fix);
    }
    if said.on("wsrep_on") {
        let fix =
            "GET_LOCK holds on one node only: send every delivery to the same node, or use a server without Galera";
        findings.push(bad("Galera", said.get("wsrep_cluster_name").unwrap_or("on"), fix));
    }
    if said.in_a_group() {
        let what = "group_replication_consistency";
        if said.get(what).is_some_and(|value| value.eq_ignore_ascii_case("EVENTUAL")) {
            let fix = "set it to BEFORE_ON_PRIMARY_FAILOVER: a new primary may be read before it has applied what was recorded";
            findings.push(bad(what, "EVENTUAL", fix));
        }
        findings.push(match said.on("group_replication_single_primary_mode") {
            true => {
                let fix =
                    "send every delivery to the primary; a fail-over frees all locks while their holders still run";
                warning("Group Replication", "single primary", fix)
            }
            false => bad(
                "Group Replication",
                "several primaries",
                "GET_LOCK holds on one member only: use single-primary mode",
            ),
        });
    }
    findings
}

fn members(all: u64, online: u64) -> Finding {
    let (what, found) = ("group members", format!("{online} of {all} online"));
    if online * 2 > all {
        good(what, found)
    } else {
        bad(what, found, "connect to the greater part of the group: this one gives locks, and commits nothing")
    }
}

/// The finding if no commit waits for another server.
fn asynchronous(replicated: bool, followers: Option<u64>) -> Finding {
    let what = "replication";
    match followers {
        Some(0) | None if replicated => {
            let fix = "use Group Replication, or turn semi-synchronous replication on (database.durability)";
            bad(what, "no commit waits for another server", fix)
        }
        Some(0) => good(what, "none"),
        None => {
            let fix = format!(
                "GRANT SELECT (processlist_command) ON performance_schema.threads, to see it; if any does: {FORGETS}"
            );
            warning(what, "whether replicas follow is unknown, and no commit waits for them", fix)
        }
        Some(followers) => bad_if(
            replicated,
            what,
            format!("to {followers}, and no commit waits for it"),
            format!("turn semi-synchronous replication on: {FORGETS}"),
        ),
    }
}

/// The finding on how long a commit waits for a replica. Past `rpl_semi_sync_..._timeout` the commit continues without one.
/// Unlike PostgreSQL, the server does not report that.
fn semi_synchronous(Requirements { replicated, deadline }: Requirements, said: &Variables) -> Vec<Finding> {
    let of = |name: &str| said.get(&format!("rpl_semi_sync_source_{name}")).unwrap_or_default();
    let timeout = of("timeout").parse().map(Duration::from_millis).unwrap_or_default();
    let waits = format!("a commit waits {} s, and then for nobody", timeout.as_secs());
    let faults: [(bool, &str, &str); 3] = [
        (of("status").eq_ignore_ascii_case("OFF"), "no commit waits now", "see that a replica is connected"),
        (timeout < deadline, &waits, "set rpl_semi_sync_..._timeout above delivery.deadline"),
        (
            of("wait_no_replica").eq_ignore_ascii_case("OFF"),
            "it waits for nobody where no replica is connected",
            "turn rpl_semi_sync_..._wait_no_replica (wait_no_slave) on",
        ),
    ];
    let what = "semi-synchronous replication";
    let faults = faults.iter().filter(|(is_so, ..)| *is_so);
    let mut findings: Vec<_> =
        faults.map(|(_, found, fix)| bad_if(replicated, what, *found, format!("{fix}: {FORGETS}"))).collect();
    let wait_point = of("wait_point");
    if !wait_point.eq_ignore_ascii_case("AFTER_SYNC") {
        let fix = "set rpl_semi_sync_..._wait_point = AFTER_SYNC: others act on a commit before a replica has it";
        findings.push(warning(what, format!("it waits at {wait_point}"), fix));
    }
    if findings.is_empty() {
        findings.push(good(what, format!("a commit waits for a replica, {} s at most", timeout.as_secs())));
    }
    findings
}

fn packet(bytes: u64) -> Finding {
    let found = format!("{} MiB; the source of a larger message is not kept", bytes >> 20);
    if bytes < SMALLEST_PACKET {
        bad("max_allowed_packet", found, "set it to 16 MiB or more")
    } else {
        good("max_allowed_packet", found)
    }
}

fn encryption(privacy: Privacy) -> Finding {
    let what = "encryption";
    match privacy {
        Privacy::InClear => {
            let fix = "set tls: who can listen in reads the mail's headers, and who can step in takes the password";
            warning(what, "none, over the network", fix)
        }
        Privacy::CaFileAndPublic => good(
            what,
            "TLS; the certificate may be by database.ca_file or by any public authority: on MySQL and MariaDB the file is no pin",
        ),
        Privacy::Good => good(what, "TLS, or not over the network"),
    }
}

/// The three numbers that a version begins with.
fn numbers(version: &str) -> Option<(u32, u32, u32)> {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse().ok());
    Some((numbers.next()??, numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests;
