//! The settings of a server, and its replication: what is right, and what another value costs.

use super::FindingState::{self, Bad, Good, Warning};
use super::{Finding, Requirements, good};
use crate::database::{DatabaseError, Dialect, Query};
use crate::ledger::Database;
use std::collections::BTreeMap;
use std::time::Duration;

/// What a fail-over costs if no commit waits for another server.
pub(crate) const FORGETS: &str =
    "a fail-over forgets what has not arrived yet, which is then delivered twice, and is not in the ledger";

const GROUP: &str = "group_replication_group_name";
const ONE_NODE: &str = "GET_LOCK holds on one server only: use a server without Galera, or single-primary mode";
const ONE_PRIMARY: &str = "a lock excludes on one server only: send every delivery to the same primary (of Citus, the coordinator), and see \
                           that its answered commits are on whichever takes over";

/// A setting, whether its value is right, what another value is, and what fixes it.
type Rule = (&'static str, fn(&str) -> bool, FindingState, &'static str);

/// The settings of all engines. A setting that the server does not have has no finding. On PostgreSQL an installed extension
/// counts as a setting: with these products more than one server takes writes, or has locks of its own.
const RULES: [Rule; 14] = [
    ("version", is_supported, Bad, "MySQL 8.0.16 and MariaDB 10.6 are the oldest that this program is made for"),
    ("fsync", |value| value != "off", Bad, "turn it on: a crash destroys the database"),
    ("full_page_writes", |value| value != "off", Bad, "turn it on: a crash destroys the database"),
    // `local`, `remote_write` and the other values all wait for the disk.
    ("synchronous_commit", |value| value != "off", Bad, "set it to on: a crash forgets what was delivered"),
    ("server_encoding", |value| value == "UTF8", Bad, "make one with ENCODING 'UTF8': this refuses some subjects"),
    ("innodb_flush_log_at_trx_commit", |value| value == "1", Bad, "set it to 1: a power failure undoes commits"),
    ("sync_binlog", |value| value == "1", Warning, "set it to 1: after a power failure commits may be missing"),
    // In a smaller one a record with long headers may not fit; see `ledger::mysql`.
    ("max_allowed_packet", |bytes| bytes.parse().unwrap_or(0) >= 4 << 20, Bad, "set it to 16 MiB or more"),
    ("wsrep_on", is_off, Bad, ONE_NODE),
    ("group_replication_single_primary_mode", |value| !is_off(value), Bad, ONE_NODE),
    (
        "group_replication_consistency",
        |value| value != "EVENTUAL",
        Bad,
        "set it to BEFORE_ON_PRIMARY_FAILOVER: a new primary may be read before it has applied what was recorded",
    ),
    ("bdr", |_| false, Bad, ONE_PRIMARY),
    ("spock", |_| false, Bad, ONE_PRIMARY),
    ("citus", |_| false, Warning, ONE_PRIMARY),
];

fn is_off(value: &str) -> bool {
    ["OFF", "0", "NO", ""].contains(&value)
}

/// MySQL 8.0.16 is the first with CHECK constraints.
fn is_supported(version: &str) -> bool {
    let oldest = if version.contains("MariaDB") { [10, 6, 0] } else { [8, 0, 16] };
    let numbers = version.split(|c: char| !c.is_ascii_digit()).map_while(|digits| digits.parse::<u32>().ok());
    numbers.take(3).collect::<Vec<_>>() >= oldest.to_vec()
}

/// The values by their names, and the number of connected standbys if every role may count them.
#[derive(Default)]
pub(super) struct Settings(BTreeMap<String, String>);

impl Settings {
    pub(super) fn read(database: &mut dyn Database) -> Result<Self, DatabaseError> {
        let statements: &[&str] = if database.dialect() == Dialect::Postgresql {
            &[
                "SELECT name, coalesce(setting, '') FROM pg_settings UNION ALL SELECT extname, extversion FROM pg_extension \
               UNION ALL SELECT 'standbys', count(*)::text FROM pg_stat_replication",
            ]
        } else {
            &["SHOW GLOBAL STATUS", "SHOW GLOBAL VARIABLES"]
        };
        let mut settings = Self::default();
        for statement in statements {
            let rows: Vec<(String, String)> = database.query("reading the server's settings", statement, &[])?;
            settings.0.extend(rows.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)));
        }
        Ok(settings)
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    fn is_on(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| !is_off(value))
    }

    /// MySQL calls the servers of semi-synchronous replication source and replica, MariaDB master and slave.
    fn semi_sync(&self, name: &str) -> Option<&str> {
        ["source", "master"].iter().find_map(|server| self.get(&format!("rpl_semi_sync_{server}_{name}")))
    }

    /// Past the timeout of semi-synchronous replication a commit goes on without a replica.
    fn waits_for_replica(&self, deadline: Duration) -> Option<String> {
        let timeout: u64 = self.semi_sync("timeout")?.parse().ok()?;
        let switches = ["enabled", "status", "wait_no_replica", "wait_no_slave"];
        let is_off = switches.iter().filter_map(|name| self.semi_sync(name)).any(is_off);
        (!is_off && Duration::from_millis(timeout) >= deadline)
            .then(|| format!("a replica, {} s at most", timeout / 1000))
    }
}

/// The finding on each rule, and on replication. `commits_end`: whether they can, as far as the session knows.
pub(super) fn inspect(settings: &Settings, wanted: Requirements, commits_end: bool) -> Vec<Finding> {
    // Without a binary log its setting means nothing.
    let is_used = |(name, ..): &&Rule| *name != "sync_binlog" || settings.is_on("log_bin");
    let judged = RULES.iter().filter(is_used).filter_map(|(name, is_right, otherwise, fix)| {
        let value = settings.get(name)?;
        Some(if is_right(value) { good(*name, value) } else { otherwise.finding(*name, value, *fix) })
    });
    judged.chain([replication(settings, wanted, commits_end)]).collect()
}

/// Whether a server that takes over has the commits that this one has confirmed.
fn replication(settings: &Settings, wanted: Requirements, commits_end: bool) -> Finding {
    let (what, start) = ("replication", "start one that can be reached: until then each delivery is deferred");
    let (waits_for, followers, fix) = if let Some(names) = settings.get("synchronous_standby_names") {
        let is_local = names.is_empty() || ["off", "local"].map(Some).contains(&settings.get("synchronous_commit"));
        let fix = "set synchronous_standby_names, and synchronous_commit to neither off nor local";
        ((!is_local).then(|| names.to_owned()), settings.get("standbys"), fix)
    } else if settings.is_on(GROUP) {
        (Some("the majority of its group".to_owned()), (!commits_end).then_some("0"), "")
    } else {
        let followers = settings.get("slaves_connected").or_else(|| settings.semi_sync("clients"));
        let fix = "turn semi-synchronous replication on, wait_no_replica (wait_no_slave) too, with a timeout above delivery.deadline";
        (settings.waits_for_replica(wanted.deadline), followers, fix)
    };
    match (waits_for, followers) {
        (Some(whom), Some("0")) => Bad.finding(what, format!("a commit waits for {whom}, and there is none"), start),
        (Some(whom), _) => good(what, format!("a commit waits for {whom}")),
        (None, Some("0")) if !wanted.replicated => good(what, "none"),
        (None, followers) => {
            // MySQL does not show its replicas to every role.
            let (found, otherwise) = match followers.filter(|followers| *followers != "0") {
                Some(followers) => (format!("to {followers}, and no commit waits for it"), Warning),
                None => ("no commit waits for another server, if any follows".to_owned(), Good),
            };
            let state = if wanted.replicated { Bad } else { otherwise };
            state.finding(what, found, format!("{fix}: {FORGETS}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Settings {
        Settings(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn a_setting_with_which_something_is_lost_or_refused_is_found() {
        for (pairs, state) in [
            (&[("version", "8.0.15")][..], Bad),
            (&[("version", "8.0.16")], Good),
            (&[("version", "9.7.4-2")], Good),
            (&[("version", "10.5.29-MariaDB")], Bad),
            (&[("version", "11.8.6-MariaDB-0+deb13u1 from Debian")], Good),
            (&[("version", "unknown")], Bad),
            (&[("fsync", "off")], Bad),
            (&[("full_page_writes", "off")], Bad),
            (&[("full_page_writes", "on")], Good),
            (&[("synchronous_commit", "off")], Bad),
            (&[("synchronous_commit", "local")], Good),
            (&[("server_encoding", "SQL_ASCII")], Bad),
            (&[("server_encoding", "UTF8")], Good),
            (&[("innodb_flush_log_at_trx_commit", "2")], Bad),
            (&[("sync_binlog", "0"), ("log_bin", "ON")], Warning),
            (&[("max_allowed_packet", "4194303")], Bad),
            (&[("max_allowed_packet", "4194304")], Good),
            // One finding on each product with which a lock does not exclude.
            (&[("wsrep_on", "ON")], Bad),
            (&[("wsrep_on", "OFF")], Good),
            (&[("group_replication_single_primary_mode", "OFF")], Bad),
            (&[("group_replication_single_primary_mode", "ON")], Good),
            (&[("group_replication_consistency", "EVENTUAL")], Bad),
            (&[("group_replication_consistency", "BEFORE_ON_PRIMARY_FAILOVER")], Good),
            (&[("bdr", "3.7")], Bad),
            (&[("citus", "13.0")], Warning),
        ] {
            let findings = inspect(&settings(pairs), Requirements::default(), true);
            let finding = &findings[0];
            assert_eq!((finding.what.as_str(), finding.state), (pairs[0].0, state), "{finding:?}");
            assert_eq!(finding.fix.is_none(), state == Good, "{finding:?}");
        }
        let unused = [("sync_binlog", "0"), ("log_bin", "OFF")];
        assert_eq!(inspect(&settings(&unused), Requirements::default(), true).len(), 1);
    }

    /// The state if commits may be local, and if they have to be replicated.
    fn replicated(pairs: &[(&str, &str)], commits_end: bool) -> [FindingState; 2] {
        [false, true].map(|replicated| {
            let wanted = Requirements { replicated, ..Requirements::default() };
            let finding = replication(&settings(pairs), wanted, commits_end);
            let may_be_forgotten = finding.found.contains("no commit waits");
            assert_eq!(finding.is_unreplicated_commit(), may_be_forgotten, "{finding:?}");
            finding.state
        })
    }

    #[test]
    fn a_commit_that_no_standby_has_is_found() {
        for (names, commit, standbys, states) in [
            ("", "on", "0", [Good, Bad]),
            ("", "on", "2", [Warning, Bad]),
            ("pg2", "on", "1", [Good, Good]),
            ("pg2", "remote_apply", "1", [Good, Good]),
            ("pg2", "local", "1", [Warning, Bad]),
            ("pg2", "on", "0", [Bad, Bad]),
        ] {
            let pairs = [("synchronous_standby_names", names), ("synchronous_commit", commit), ("standbys", standbys)];
            assert_eq!(replicated(&pairs, true), states, "{pairs:?}");
        }
    }

    #[test]
    fn a_commit_that_no_replica_and_no_majority_has_is_found() {
        let deadline = Requirements::default().deadline.as_millis();
        let [enough, less] = [deadline, deadline - 1].map(|timeout| timeout.to_string());
        for (server, no_replica) in [("source", "wait_no_replica"), ("master", "wait_no_slave")] {
            for (fault, clients, states) in [
                (("timeout", enough.as_str()), "1", [Good, Good]),
                (("timeout", &enough), "0", [Bad, Bad]),
                (("timeout", &less), "1", [Warning, Bad]),
                (("enabled", "OFF"), "1", [Warning, Bad]),
                (("status", "OFF"), "1", [Warning, Bad]),
                ((no_replica, "OFF"), "1", [Warning, Bad]),
                ((no_replica, "OFF"), "0", [Good, Bad]),
            ] {
                let mut values =
                    BTreeMap::from([("enabled", "ON"), ("status", "ON"), ("timeout", &enough), (no_replica, "ON")]);
                values.extend([("clients", clients), fault]);
                let names: Vec<_> = values.keys().map(|name| format!("rpl_semi_sync_{server}_{name}")).collect();
                let pairs: Vec<_> = names.iter().map(String::as_str).zip(values.into_values()).collect();
                assert_eq!(replicated(&pairs, true), states, "{pairs:?}");
            }
        }
        // MariaDB shows everybody how many follow, and MySQL does not.
        assert_eq!(replicated(&[("slaves_connected", "2")], true), [Warning, Bad]);
        assert_eq!(replicated(&[("slaves_connected", "0")], true), [Good, Bad]);
        assert_eq!(replicated(&[], true), [Good, Bad]);
        assert_eq!([true, false].map(|commits_end| replicated(&[(GROUP, "7b2f")], commits_end)), [[Good; 2], [Bad; 2]]);
    }
}
