//! What `check` asks of a MySQL or MariaDB server.

use super::{MysqlDatabase, Product, column, only_row, sql};
use crate::database::{DatabaseError, DatabaseFailure, Finding, Inspect, State};
use crate::ledger::{CopyKey, EndedAttempt, Ledger};
use crate::lock::{LockName, NamedLock};
use crate::schema::Schema;
use std::collections::HashMap;
use uuid::Uuid;

/// Below this, in bytes, a record with long headers may not fit; see `ledger::mysql`.
const SMALLEST_PACKET: u64 = 4 << 20;

/// The server's variables that are looked at. One that a server does not have is not there to go wrong.
const VARIABLES: [&str; 14] = [
    "read_only",
    "super_read_only",
    "innodb_read_only",
    "innodb_flush_log_at_trx_commit",
    "log_bin",
    "sync_binlog",
    "binlog_format",
    "wsrep_on",
    "wsrep_cluster_name",
    "group_replication_group_name",
    "group_replication_single_primary_mode",
    "max_allowed_packet",
    "max_connections",
    "log_bin_trust_function_creators",
];

type Variables = HashMap<String, String>;

impl Inspect for MysqlDatabase {
    fn round_trips(&self) -> u32 {
        self.round_trips
    }

    fn describe(&mut self) -> Result<String, DatabaseError> {
        Ok(match self.product() {
            Product::Mysql => format!("MySQL {}", self.version),
            Product::Mariadb => format!("MariaDB {}", self.version),
        })
    }

    fn any_address(&mut self) -> Result<Option<String>, DatabaseError> {
        let doing = "looking for an address";
        let answers = self.run(doing, "SELECT address FROM addresses WHERE address NOT LIKE '@%' LIMIT 1", 1)?;
        answers.first().and_then(|rows| rows.first()).map(|row| column(row, 0, doing)).transpose()
    }

    fn inspect(&mut self) -> Result<Vec<Finding>, DatabaseError> {
        let variables = self.variables()?;
        let mut findings = vec![self.version_found()];
        findings.push(writable(&variables));
        findings.extend(durable(&variables));
        findings.extend(replicated(&variables));
        findings.push(packet(self.max_allowed_packet as u64));
        findings.push(self.lock_found()?);
        findings.push(self.proxy_found()?);
        findings.push(self.privacy_found());
        let schema = self.schema_found()?;
        let complete = schema.state == State::Good;
        findings.push(schema);
        if complete {
            findings.push(self.rights_found()?);
        }
        findings.push(self.functions_found(&variables)?);
        Ok(findings)
    }
}

impl MysqlDatabase {
    fn variables(&mut self) -> Result<Variables, DatabaseError> {
        let doing = "reading the server's variables";
        let names = VARIABLES.map(|name| format!("'{name}'")).join(", ");
        let answers = self.run(doing, &format!("SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})"), 1)?;
        let rows = answers.iter().flatten();
        rows.map(|row| Ok((column::<String>(row, 0, doing)?.to_ascii_lowercase(), column(row, 1, doing)?))).collect()
    }

    fn version_found(&self) -> Finding {
        let (oldest, name) = match self.product() {
            // CHECK constraints; below 5.7.5 a second GET_LOCK frees the first.
            Product::Mysql => ((8, 0, 16), "MySQL 8.0.16"),
            Product::Mariadb => ((10, 6, 0), "MariaDB 10.6"),
        };
        let found = self.version.clone();
        match numbers(&self.version) {
            Some(version) if version >= oldest => good("version", found),
            Some(_) => bad("version", found, format!("{name} is the oldest that this program is made for")),
            None => warning("version", found, "the version cannot be read; make sure that it is a current one"),
        }
    }

    /// Whether GET_LOCK does what it says, on this connection: a proxy that hands statements to changing sessions shows
    /// itself here.
    fn lock_found(&mut self) -> Result<Finding, DatabaseError> {
        let what = "GET_LOCK";
        let name = LockName::new("maildrop check", Uuid::now_v7().as_bytes());
        let took = self.acquire(&name, std::time::Duration::ZERO);
        let held = matches!(took, Ok(crate::lock::Acquired::Held)) && self.still_held(&name)?;
        self.release(&name)?;
        let freed = !self.still_held(&name)?;
        Ok(if held && freed {
            good(what, "taken, held and released".into())
        } else {
            bad(
                what,
                format!("{took:?}, then held: {held}, then freed: {freed}"),
                "connect to the server itself, or pin the session: a proxy between must not hand statements of one \
                 connection to several sessions",
            )
        })
    }

    fn proxy_found(&mut self) -> Result<Finding, DatabaseError> {
        let doing = "asking for the session's id";
        let answers = self.run(doing, "SELECT CONNECTION_ID()", 1)?;
        let session: u64 = column(only_row(&answers, doing)?, 0, doing)?;
        let greeted = u64::from(self.connection.connection_id());
        Ok(if session == greeted {
            good("session", "the server's own".into())
        } else {
            warning(
                "session",
                format!("greeted as {greeted}, talking to {session}: a proxy is in between"),
                "make sure that it keeps a connection that has called GET_LOCK on one session of the primary",
            )
        })
    }

    fn privacy_found(&self) -> Finding {
        if self.in_clear {
            warning(
                "encryption",
                "none, over the network".into(),
                "set tls: whoever can listen in reads the mail's headers, and whoever can step in takes the password",
            )
        } else {
            good("encryption", "TLS, or not over the network".into())
        }
    }

    fn schema_found(&mut self) -> Result<Finding, DatabaseError> {
        let (what, mend) = ("schema", "maildrop_command migrate");
        let applied = self.applied()?;
        let mut missing = Vec::new();
        for migration in self.known().iter().filter(|migration| !migration.optional) {
            match applied.iter().find(|applied| applied.number == migration.number) {
                None => missing.push(format!("{} ({})", migration.number, migration.name)),
                Some(applied) if applied.checksum != migration.checksum() => {
                    return Ok(bad(
                        what,
                        format!("migration {} was applied in another form", migration.number),
                        "an applied migration is never changed: compare the schema with sql/mysql by hand",
                    ));
                }
                Some(_) => {}
            }
        }
        Ok(if missing.is_empty() {
            good(what, format!("{} migrations applied", applied.len()))
        } else {
            bad(what, format!("not applied: {}", missing.join(", ")), mend)
        })
    }

    /// Whether our role may do what a delivery does. Each right is asked for by a statement that changes nothing: MySQL
    /// checks rights before it looks for rows.
    fn rights_found(&mut self) -> Result<Finding, DatabaseError> {
        let what = "rights";
        let tries = [
            "INSERT INTO attempts SELECT * FROM attempts WHERE FALSE",
            "INSERT INTO messages SELECT * FROM messages WHERE FALSE",
            "INSERT INTO message_sources SELECT * FROM message_sources WHERE FALSE",
            "INSERT INTO copies SELECT * FROM copies WHERE FALSE",
            "UPDATE messages SET id = LAST_INSERT_ID(id) WHERE FALSE",
            "UPDATE copies SET state = state WHERE FALSE",
        ];
        let nothing = CopyKey::from_bytes([0; 32]);
        let mut refused = Vec::new();
        let mut note = |result: Result<(), DatabaseError>| match result {
            Ok(()) => Ok(()),
            Err(error) if error.failure == DatabaseFailure::AccessDenied => {
                refused.push(error.detail);
                Ok(())
            }
            Err(error) => Err(error),
        };
        for statement in tries {
            note(self.run("trying our rights", statement, 1).map(drop))?;
        }
        note(self.addresses(&[]).map(drop))?;
        note(self.look(&[nothing]).map(drop))?;
        let ended = vec![EndedAttempt { attempt: Uuid::nil(), key: nothing, outcome: "", stages: None }];
        note(self.record(&crate::ledger::Record { ended, ..Default::default() }))?;
        Ok(if refused.is_empty() {
            good(what, "enough for a delivery".into())
        } else {
            bad(what, refused.join("; "), "grant what sql/mysql/grants.sql grants")
        })
    }

    /// The lock's SQL functions: an extra for people, but one that must not tell them another name than ours.
    fn functions_found(&mut self, variables: &Variables) -> Result<Finding, DatabaseError> {
        let what = "maildrop_lock_name()";
        let doing = "comparing the lock's name";
        let (namespace, id) = (crate::lock::DEFAULT_NAMESPACE, "<check@maildrop.invalid>");
        let ours = LockName::new(namespace, id.as_bytes()).mysql_name();
        let ask = format!("SELECT maildrop_lock_name({}, {})", sql::text(id), sql::text(namespace));
        let answers = match self.run(doing, &ask, 1) {
            Ok(answers) => answers,
            Err(error) if error.failure == DatabaseFailure::AccessDenied => {
                return Ok(good(what, "not ours to call, if it is there; a delivery does not need it".into()));
            }
            Err(error) if error.failure == DatabaseFailure::Schema => {
                let mend = if on(variables, "log_bin") && !on(variables, "log_bin_trust_function_creators") {
                    "only for people who look at locks: under binary logging, migrate as an administrator with SUPER, or \
                     set log_bin_trust_function_creators while migrating"
                } else {
                    "only for people who look at locks: migrate as a role that may create routines"
                };
                return Ok(warning(what, "not there".into(), mend));
            }
            Err(error) => return Err(error),
        };
        let theirs: Option<String> = column(only_row(&answers, doing)?, 0, doing)?;
        Ok(if theirs.as_deref() == Some(ours.as_str()) {
            good(what, "names the same lock as this program".into())
        } else {
            bad(what, format!("{theirs:?} instead of {ours}"), "drop it, and maildrop_command migrate")
        })
    }
}

fn writable(variables: &Variables) -> Finding {
    let read_only: Vec<&str> =
        ["read_only", "super_read_only", "innodb_read_only"].into_iter().filter(|name| on(variables, name)).collect();
    if read_only.is_empty() {
        good("read_only", "OFF".into())
    } else {
        bad(
            "read_only",
            format!("{} is on", read_only.join(", ")),
            "connect to the primary: a replica takes no writes, and a lock on it excludes nobody",
        )
    }
}

fn durable(variables: &Variables) -> Vec<Finding> {
    let mut findings = Vec::new();
    let what = "innodb_flush_log_at_trx_commit";
    match variables.get(what).map(String::as_str) {
        None => {}
        Some("1") => findings.push(good(what, "1".into())),
        Some(other) => findings.push(bad(
            what,
            other.into(),
            "set it to 1: a commit that a power failure can undo is forgotten, and its message delivered twice",
        )),
    }
    if on(variables, "log_bin") {
        let what = "sync_binlog";
        match variables.get(what).map(String::as_str) {
            None => {}
            Some("1") => findings.push(good(what, "1".into())),
            Some(other) => findings.push(warning(
                what,
                other.into(),
                "set it to 1: after a power failure replicas, and a primary that recovers by its binary log, may miss \
                 commits",
            )),
        }
        let what = "binlog_format";
        if let Some(format) = variables.get(what) {
            findings.push(if format.eq_ignore_ascii_case("STATEMENT") {
                bad(what, format.clone(), "set it to ROW (or MIXED): InnoDB refuses to log READ COMMITTED by statement")
            } else {
                good(what, format.clone())
            });
        }
    }
    findings
}

fn replicated(variables: &Variables) -> Vec<Finding> {
    let mut findings = Vec::new();
    if on(variables, "wsrep_on") {
        findings.push(bad(
            "Galera",
            variables.get("wsrep_cluster_name").cloned().unwrap_or_else(|| "on".into()),
            "GET_LOCK holds on one node only: send every delivery to the same node, or use a server without Galera",
        ));
    }
    if variables.get("group_replication_group_name").is_some_and(|name| !name.is_empty()) {
        findings.push(if on(variables, "group_replication_single_primary_mode") {
            warning(
                "Group Replication",
                "single primary".into(),
                "send every delivery to the primary; a fail-over frees all locks while their holders still run",
            )
        } else {
            bad(
                "Group Replication",
                "several primaries".into(),
                "GET_LOCK holds on one member only: use single-primary mode",
            )
        });
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

/// Whether a variable says yes, in whatever way. What is neither yes nor no counts as yes: MariaDB has more than one
/// sort of read only.
fn on(variables: &Variables, name: &str) -> bool {
    variables.get(name).is_some_and(|value| !["OFF", "0", "NO", ""].iter().any(|off| value.eq_ignore_ascii_case(off)))
}

/// The three numbers that a version begins with.
fn numbers(version: &str) -> Option<(u32, u32, u32)> {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse().ok());
    Some((numbers.next()??, numbers.next()??, numbers.next()??))
}

fn good(what: &str, found: String) -> Finding {
    Finding { what: what.into(), state: State::Good, found, mend: None }
}

fn warning(what: &str, found: String, mend: impl Into<String>) -> Finding {
    Finding { what: what.into(), state: State::Warning, found, mend: Some(mend.into()) }
}

fn bad(what: &str, found: String, mend: impl Into<String>) -> Finding {
    Finding { what: what.into(), state: State::Bad, found, mend: Some(mend.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_its_first_three_numbers() {
        assert_eq!(numbers("9.7.4-2"), Some((9, 7, 4)));
        assert_eq!(numbers("11.8.6-MariaDB-0+deb13u1 from Debian"), Some((11, 8, 6)));
        assert_eq!(numbers("unknown"), None);
    }

    #[test]
    fn a_server_that_forgets_or_does_not_write_is_bad() {
        let variables = |pairs: &[(&str, &str)]| -> Variables {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let states = |findings: Vec<Finding>| findings.into_iter().map(|finding| finding.state).collect::<Vec<_>>();
        assert_eq!(writable(&variables(&[("read_only", "ON")])).state, State::Bad);
        assert_eq!(writable(&variables(&[("read_only", "OFF"), ("super_read_only", "OFF")])).state, State::Good);
        assert_eq!(states(durable(&variables(&[("innodb_flush_log_at_trx_commit", "2")]))), [State::Bad]);
        let logged = [("log_bin", "ON"), ("sync_binlog", "0"), ("binlog_format", "STATEMENT")];
        assert_eq!(states(durable(&variables(&logged))), [State::Warning, State::Bad]);
        assert_eq!(states(replicated(&variables(&[("wsrep_on", "ON")]))), [State::Bad]);
        let group = [("group_replication_group_name", "7b2f"), ("group_replication_single_primary_mode", "OFF")];
        assert_eq!(states(replicated(&variables(&group))), [State::Bad]);
        assert!(replicated(&variables(&[("wsrep_on", "OFF"), ("group_replication_group_name", "")])).is_empty());
    }
}
