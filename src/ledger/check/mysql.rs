//! What `check` asks of a MySQL or MariaDB server.

use super::{FORGETS, Finding, Inspect, State, Wanted, bad, bad_if, good, warning};
use crate::database::mysql::{Privacy, Product, column, only_row, sql};
use crate::database::{DatabaseError, DatabaseFailure, MysqlDatabase};
use crate::ledger::{CopyKey, EndedAttempt, Ledger, Outcome, Record};
use crate::lock::{Acquired, DEFAULT_NAMESPACE, LockName, NamedLock};
use crate::schema::{self, MigrationState};
use std::collections::HashMap;
use std::time::Duration;
use uuid::Uuid;

/// Below this, in bytes, a record with long headers may not fit; see `ledger::mysql`.
const SMALLEST_PACKET: u64 = 4 << 20;

/// The server's variables that are read. No server has all of them: semi-synchronous replication has other names on MySQL (source,
/// replica) and MariaDB (master, slave).
const VARIABLES: &str = "read_only super_read_only innodb_read_only innodb_flush_log_at_trx_commit log_bin sync_binlog \
    binlog_format wsrep_on wsrep_cluster_name group_replication_group_name group_replication_single_primary_mode \
    group_replication_consistency rpl_semi_sync_source_enabled rpl_semi_sync_source_timeout \
    rpl_semi_sync_source_wait_point rpl_semi_sync_source_wait_no_replica rpl_semi_sync_master_enabled \
    rpl_semi_sync_master_timeout rpl_semi_sync_master_wait_point rpl_semi_sync_master_wait_no_slave \
    max_allowed_packet max_connections performance_schema log_bin_trust_function_creators";

/// The same of its status.
const STATUS: &str = "Slaves_connected Rpl_semi_sync_source_status Rpl_semi_sync_master_status";

type Variables = HashMap<String, String>;

impl Inspect for MysqlDatabase {
    fn describe(&mut self) -> Result<String, DatabaseError> {
        Ok(match self.product() {
            Product::Mysql => format!("MySQL {}", self.version),
            Product::Mariadb => format!("MariaDB {}", self.version),
        })
    }

    fn any_address(&mut self, not_of: &[&str]) -> Result<Option<String>, DatabaseError> {
        let doing = "looking for an address";
        // A list may not be empty, and no user has no name.
        let not_of = sql::list(not_of.iter().chain([&""]).map(|user| sql::text(user)));
        let ask = format!(
            "SELECT address FROM addresses WHERE address NOT LIKE '@%' AND imap_user NOT IN ({not_of}) LIMIT 1"
        );
        let answers = self.run(doing, &ask, 1)?;
        answers.first().and_then(|rows| rows.first()).map(|row| column(row, 0, doing)).transpose()
    }

    fn server(&mut self) -> Result<String, DatabaseError> {
        let doing = "asking which server it is";
        let ask = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('server_uuid', 'server_uid', 'hostname', 'port')";
        let mut said: Vec<_> =
            self.pairs(doing, ask)?.into_iter().map(|(name, value)| format!("{name} {value}")).collect();
        said.sort();
        Ok(said.join(", "))
    }

    fn inspect(&mut self, wanted: Wanted) -> Result<Vec<Finding>, DatabaseError> {
        let variables = self.variables()?;
        let mut findings = vec![version(self.product(), &self.version)];
        findings.push(writable(&variables));
        findings.extend(durable(&variables));
        findings.extend(clustered(&variables));
        findings.extend(self.group_found(&variables)?);
        findings.extend(replication(wanted, &variables, || self.followers(&variables))?);
        findings.push(packet(self.max_allowed_packet as u64));
        findings.push(self.lock_found()?);
        findings.push(self.proxy_found()?);
        findings.push(self.privacy_found());
        let schema = self.schema_found()?;
        let complete = schema.state == State::Good;
        findings.push(schema);
        if complete {
            findings.push(self.rights_found()?);
            findings.push(self.refusing_found()?);
            findings.push(self.telling_found()?);
        }
        findings.push(self.functions_found(&variables)?);
        Ok(findings)
    }
}

impl MysqlDatabase {
    fn variables(&mut self) -> Result<Variables, DatabaseError> {
        let doing = "reading the server's variables";
        let show = |what: &str, names: &str| {
            let names = names.split(' ').map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
            format!("SHOW GLOBAL {what} WHERE Variable_name IN ({names})")
        };
        let mut variables = self.pairs(doing, &show("VARIABLES", VARIABLES))?;
        variables.extend(self.pairs(doing, &show("STATUS", STATUS))?);
        Ok(variables)
    }

    /// What a SHOW of names and values answers, names in lower case.
    fn pairs(&mut self, doing: &str, show: &str) -> Result<Variables, DatabaseError> {
        let answers = self.run(doing, show, 1)?;
        let rows = answers.iter().flatten();
        rows.map(|row| Ok((column::<String>(row, 0, doing)?.to_ascii_lowercase(), column(row, 1, doing)?))).collect()
    }

    /// Whether this member of a group is in its majority: a minority still gives locks, and commits nothing.
    fn group_found(&mut self, variables: &Variables) -> Result<Option<Finding>, DatabaseError> {
        if !in_a_group(variables) {
            return Ok(None);
        }
        let what = "group members";
        let doing = "asking for the members of the group";
        let ask = "SELECT COUNT(*), COALESCE(SUM(member_state = 'ONLINE'), 0) \
                   FROM performance_schema.replication_group_members";
        let answers = match self.run(doing, ask, 1) {
            Err(error) if error.failure == DatabaseFailure::AccessDenied => {
                let mend = "GRANT SELECT ON performance_schema.replication_group_members, to be told";
                return Ok(Some(warning(what, error.detail, mend)));
            }
            answers => answers?,
        };
        let row = only_row(&answers, doing)?;
        let (all, online): (u64, u64) = (column(row, 0, doing)?, column(row, 1, doing)?);
        Ok(Some(members(all, online)))
    }

    /// How many servers follow this one, where the server tells us.
    fn followers(&mut self, variables: &Variables) -> Result<Option<u64>, DatabaseError> {
        match who_follows(self.product(), variables) {
            WhoFollows::Told(count) => return Ok(Some(count)),
            WhoFollows::Hidden => return Ok(None),
            WhoFollows::ToBeAsked => {}
        }
        let doing = "asking who follows";
        let ask = "SELECT COUNT(*) FROM performance_schema.threads WHERE processlist_command LIKE 'Binlog Dump%'";
        match self.run(doing, ask, 1) {
            Err(error) if error.failure == DatabaseFailure::AccessDenied => Ok(None),
            answers => column(only_row(&answers?, doing)?, 0, doing).map(Some),
        }
    }

    /// Whether GET_LOCK works on this connection: with a proxy that hands statements to changing sessions, it does not.
    fn lock_found(&mut self) -> Result<Finding, DatabaseError> {
        let name = LockName::new("maildrop check", Uuid::now_v7().as_bytes());
        let took = self.acquire(&name, Duration::ZERO);
        let held = self.still_held(&name)?;
        self.release(&name)?;
        let freed = !self.still_held(&name)?;
        Ok(lock(&took, held, freed))
    }

    fn proxy_found(&mut self) -> Result<Finding, DatabaseError> {
        let doing = "asking for the session's id";
        let answers = self.run(doing, "SELECT CONNECTION_ID()", 1)?;
        let session: u64 = column(only_row(&answers, doing)?, 0, doing)?;
        let greeted = u64::from(self.id);
        Ok(if session == greeted {
            good("session", "the server's own")
        } else {
            let found = format!("greeted as {greeted}, talking to {session}: a proxy is in between");
            let mend = "make sure that it keeps a connection that has called GET_LOCK on one session of the primary";
            warning("session", found, mend)
        })
    }

    fn privacy_found(&self) -> Finding {
        match self.privacy {
            Privacy::InClear => {
                let mend =
                    "set tls: who can listen in reads the mail's headers, and who can step in takes the password";
                warning("encryption", "none, over the network", mend)
            }
            Privacy::CaFileAndPublic => good(
                "encryption",
                "TLS; the certificate may be by database.ca_file or by any public authority: on MySQL and MariaDB the file is no pin",
            ),
            Privacy::Good => good("encryption", "TLS, or not over the network"),
        }
    }

    fn schema_found(&mut self) -> Result<Finding, DatabaseError> {
        let what = "schema";
        let all = schema::status(self)?;
        let needed = |state| all.iter().filter(move |migration| migration.state == state && !migration.optional);
        if let Some(edited) = needed(MigrationState::Edited).next() {
            let found = format!("migration {} was applied with another text", edited.number);
            return Ok(bad(what, found, "recreate the database: docs/upgrade.md"));
        }
        let missing: Vec<String> = needed(MigrationState::Pending)
            .map(|migration| format!("{} ({})", migration.number, migration.name))
            .collect();
        Ok(if missing.is_empty() {
            let applied = all.iter().filter(|migration| migration.state != MigrationState::Pending).count();
            good(what, format!("{applied} migrations applied"))
        } else {
            bad(what, format!("not applied: {}", missing.join(", ")), "maildrop_command migrate")
        })
    }

    /// Whether our role may do what a delivery does, tried by statements that change nothing: MySQL checks rights before it looks
    /// for rows.
    fn rights_found(&mut self) -> Result<Finding, DatabaseError> {
        let what = "rights";
        let tries = [
            "INSERT INTO attempts SELECT * FROM attempts WHERE FALSE",
            "INSERT INTO messages SELECT * FROM messages WHERE FALSE",
            "INSERT INTO message_sources SELECT * FROM message_sources WHERE FALSE",
            "INSERT INTO copies SELECT * FROM copies WHERE FALSE",
            "INSERT INTO ways_in SELECT * FROM ways_in WHERE FALSE",
            "UPDATE ways_in SET host = host WHERE FALSE",
            "INSERT INTO epochs SELECT * FROM epochs WHERE FALSE",
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
        let ended = vec![EndedAttempt { attempt: Uuid::nil(), key: nothing, outcome: Outcome::Busy, stages: None }];
        note(self.record(&Record { ended, ..Default::default() }))?;
        Ok(if refused.is_empty() {
            good(what, "enough for a delivery")
        } else {
            bad(what, refused.join("; "), "grant what sql/mysql/grants.sql grants")
        })
    }

    /// Whether our role may write down that it refuses a recipient.
    fn refusing_found(&mut self) -> Result<Finding, DatabaseError> {
        let tried =
            ["INSERT INTO refusals (host, refused, last_at) SELECT '', 1, UTC_TIMESTAMP(6) FROM DUAL WHERE FALSE \
                      ON DUPLICATE KEY UPDATE refused = refusals.refused + 1"];
        let needed = "needed with routing.unknown = \"reject\", which defers without it";
        self.right_found("rights on refusals", &tried, needed)
    }

    /// Whether our role may write down what there is to tell subscribers.
    fn telling_found(&mut self) -> Result<Finding, DatabaseError> {
        let tried = [
            "SELECT EXISTS (SELECT 1 FROM subscriptions)",
            "INSERT INTO outbox (event, type, copy_key, identity, message_id, role, recipient, imap_user, mailbox, host, diff, \
             created_at) SELECT '', '', '', '', '', 'recipient', '', '', '', '', '{}', UTC_TIMESTAMP(6) FROM DUAL WHERE FALSE",
        ];
        let needed = "needed once anybody is subscribed, who is told of nothing without it";
        self.right_found("rights on outbox", &tried, needed)
    }

    /// Whether our role may do what only some deliveries do.
    fn right_found(&mut self, what: &str, tried: &[&str], needed: &str) -> Result<Finding, DatabaseError> {
        for statement in tried {
            match self.run("trying our rights", statement, 1) {
                Ok(_) => {}
                Err(error) if error.failure == DatabaseFailure::AccessDenied => {
                    let found = format!("{}; {needed}", error.detail);
                    return Ok(warning(what, found, "grant what sql/mysql/grants.sql grants"));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(good(what, "granted"))
    }

    /// The lock's SQL functions are for people only, but must give the same name as this program.
    fn functions_found(&mut self, variables: &Variables) -> Result<Finding, DatabaseError> {
        let what = "maildrop_lock_name()";
        let doing = "comparing the lock's name";
        let (namespace, id) = (DEFAULT_NAMESPACE, "check@maildrop.invalid");
        let ours = LockName::new(namespace, id.as_bytes()).mysql_name();
        let ask = format!("SELECT maildrop_lock_name({}, {})", sql::text(id), sql::text(namespace));
        let answers = match self.run(doing, &ask, 1) {
            Ok(answers) => answers,
            Err(error) if error.failure == DatabaseFailure::AccessDenied => {
                return Ok(good(what, "not ours to call, if it is there; a delivery does not need it"));
            }
            Err(error) if error.failure == DatabaseFailure::Schema => {
                return Ok(warning(what, "not there", how_to_make_functions(variables)));
            }
            Err(error) => return Err(error),
        };
        let theirs: Option<String> = column(only_row(&answers, doing)?, 0, doing)?;
        Ok(if theirs.as_deref() == Some(ours.as_str()) {
            good(what, "names the same lock as this program")
        } else {
            bad(what, format!("{theirs:?} instead of {ours}"), "drop it, and maildrop_command migrate")
        })
    }
}

fn version(product: Product, version: &str) -> Finding {
    let (oldest, name) = match product {
        // CHECK constraints; below 5.7.5 a second GET_LOCK frees the first.
        Product::Mysql => ((8, 0, 16), "MySQL 8.0.16"),
        Product::Mariadb => ((10, 6, 0), "MariaDB 10.6"),
    };
    match numbers(version) {
        Some(numbers) if numbers >= oldest => good("version", version),
        Some(_) => bad("version", version, format!("{name} is the oldest that this program is made for")),
        None => warning("version", version, "the version cannot be read; make sure that it is a current one"),
    }
}

/// A lock that was asked for, and let go of.
fn lock(took: &Result<Acquired, DatabaseError>, held: bool, freed: bool) -> Finding {
    let what = "GET_LOCK";
    if matches!(took, Ok(Acquired::Held)) && held && freed {
        good(what, "taken, held and released")
    } else {
        let mend = "connect to the server itself, or pin the session: a proxy between must not hand statements of one \
                    connection to several sessions";
        bad(what, format!("{took:?}, then held: {held}, then freed: {freed}"), mend)
    }
}

fn how_to_make_functions(variables: &Variables) -> &'static str {
    if on(variables, "log_bin") && !on(variables, "log_bin_trust_function_creators") {
        "only for people who look at locks: under binary logging, migrate as an administrator with SUPER, or set \
         log_bin_trust_function_creators while migrating"
    } else {
        "only for people who look at locks: migrate as a role that may create routines"
    }
}

fn writable(variables: &Variables) -> Finding {
    let read_only: Vec<&str> =
        ["read_only", "super_read_only", "innodb_read_only"].into_iter().filter(|name| on(variables, name)).collect();
    if read_only.is_empty() {
        good("read_only", "OFF")
    } else {
        let mend = "connect to the primary: a replica takes no writes, and a lock on it excludes nobody";
        bad("read_only", format!("{} is on", read_only.join(", ")), mend)
    }
}

fn durable(variables: &Variables) -> Vec<Finding> {
    let mut findings = Vec::new();
    let one = |what: &str, otherwise: State, mend: &str| {
        let found = variables.get(what)?.clone();
        let (state, mend) = if found == "1" { (State::Good, None) } else { (otherwise, Some(mend.to_owned())) };
        Some(Finding { what: what.to_owned(), state, found, mend })
    };
    let mend = "set it to 1: a commit that a power failure can undo is forgotten, and its message delivered twice";
    findings.extend(one("innodb_flush_log_at_trx_commit", State::Bad, mend));
    if on(variables, "log_bin") {
        let mend = "set it to 1: after a power failure replicas, and a primary that recovers by its binary log, may miss commits";
        findings.extend(one("sync_binlog", State::Warning, mend));
        let what = "binlog_format";
        findings.extend(variables.get(what).map(|format| {
            if format.eq_ignore_ascii_case("STATEMENT") {
                bad(what, format, "set it to ROW (or MIXED): InnoDB refuses to log READ COMMITTED by statement")
            } else {
                good(what, format)
            }
        }));
    }
    findings
}

fn clustered(variables: &Variables) -> Vec<Finding> {
    let mut findings = Vec::new();
    if on(variables, "wsrep_on") {
        let name = variables.get("wsrep_cluster_name").map_or("on", String::as_str);
        let mend =
            "GET_LOCK holds on one node only: send every delivery to the same node, or use a server without Galera";
        findings.push(bad("Galera", name, mend));
    }
    if in_a_group(variables) {
        let what = "group_replication_consistency";
        if variables.get(what).is_some_and(|value| value.eq_ignore_ascii_case("EVENTUAL")) {
            let mend = "set it to BEFORE_ON_PRIMARY_FAILOVER: a new primary may be read before it has applied what was recorded";
            findings.push(bad(what, "EVENTUAL", mend));
        }
        findings.push(if on(variables, "group_replication_single_primary_mode") {
            let mend = "send every delivery to the primary; a fail-over frees all locks while their holders still run";
            warning("Group Replication", "single primary", mend)
        } else {
            bad("Group Replication", "several primaries", "GET_LOCK holds on one member only: use single-primary mode")
        });
    }
    findings
}

fn in_a_group(variables: &Variables) -> bool {
    variables.get("group_replication_group_name").is_some_and(|name| !name.is_empty())
}

fn members(all: u64, online: u64) -> Finding {
    let (what, found) = ("group members", format!("{online} of {all} online"));
    if online * 2 > all {
        good(what, found)
    } else {
        bad(what, found, "connect to the greater part of the group: this one gives locks, and commits nothing")
    }
}

/// One of the variables and states of semi-synchronous replication.
fn semi_sync<'a>(variables: &'a Variables, mysql: &str, mariadb: &str) -> &'a str {
    let name = |of: &str| format!("rpl_semi_sync_{of}");
    variables.get(&name(mysql)).or_else(|| variables.get(&name(mariadb))).map(String::as_str).unwrap_or_default()
}

fn waits_for_a_replica(variables: &Variables) -> bool {
    semi_sync(variables, "source_enabled", "master_enabled").eq_ignore_ascii_case("ON")
}

/// Whether a commit waits for another server. `followers` asks who follows, where that matters.
fn replication(
    wanted: Wanted,
    variables: &Variables,
    followers: impl FnOnce() -> Result<Option<u64>, DatabaseError>,
) -> Result<Vec<Finding>, DatabaseError> {
    Ok(match waits_for_a_replica(variables) {
        true => semi_synchronous(wanted, variables),
        // A group's members have what was committed.
        false if in_a_group(variables) => Vec::new(),
        false => vec![asynchronous(wanted.replicated, followers()?)],
    })
}

/// Whether the server's variables say how many servers follow it.
#[derive(Debug, PartialEq, Eq)]
enum WhoFollows {
    Told(u64),
    /// Another table tells it, to whoever may look.
    ToBeAsked,
    Hidden,
}

fn who_follows(product: Product, variables: &Variables) -> WhoFollows {
    match product {
        // It tells everybody.
        Product::Mariadb => {
            let count = variables.get("slaves_connected").and_then(|count| count.parse().ok());
            WhoFollows::Told(count.unwrap_or_default())
        }
        Product::Mysql if !on(variables, "log_bin") => WhoFollows::Told(0),
        Product::Mysql if on(variables, "performance_schema") => WhoFollows::ToBeAsked,
        Product::Mysql => WhoFollows::Hidden,
    }
}

/// Where no commit waits for another server.
fn asynchronous(replicated: bool, followers: Option<u64>) -> Finding {
    let what = "replication";
    match followers {
        Some(0) | None if replicated => {
            let mend = "use Group Replication, or turn semi-synchronous replication on (database.durability)";
            bad(what, "no commit waits for another server", mend)
        }
        Some(0) => good(what, "none"),
        None => {
            let found = "who follows cannot be told, and no commit waits for it";
            let mend = format!(
                "GRANT SELECT (processlist_command) ON performance_schema.threads, to be told; if any does: {FORGETS}"
            );
            warning(what, found, mend)
        }
        Some(followers) => bad_if(
            replicated,
            what,
            format!("to {followers}, and no commit waits for it"),
            format!("turn semi-synchronous replication on: {FORGETS}"),
        ),
    }
}

/// For how long a commit waits for a replica: past `..._timeout` it goes on without one, and unlike PostgreSQL the server does
/// not say so.
fn semi_synchronous(Wanted { replicated, deadline }: Wanted, variables: &Variables) -> Vec<Finding> {
    let value = |mysql: &str, mariadb: &str| semi_sync(variables, mysql, mariadb);
    let off = |value: &str| value.eq_ignore_ascii_case("OFF");
    let what = "semi-synchronous replication";
    let mut findings = Vec::new();
    if off(value("source_status", "master_status")) {
        findings.push(bad_if(
            replicated,
            what,
            "no commit waits now",
            format!("see that a replica is connected: {FORGETS}"),
        ));
    }
    let timeout = value("source_timeout", "master_timeout").parse().map(Duration::from_millis).unwrap_or_default();
    if timeout < deadline {
        let found = format!("a commit waits {} s, and then for nobody", timeout.as_secs());
        let mend = format!("set rpl_semi_sync_..._timeout above delivery.deadline: {FORGETS}");
        findings.push(bad_if(replicated, what, found, mend));
    }
    let wait_point = value("source_wait_point", "master_wait_point");
    if !wait_point.eq_ignore_ascii_case("AFTER_SYNC") {
        let mend = "set rpl_semi_sync_..._wait_point = AFTER_SYNC: others act on a commit before a replica has it";
        findings.push(warning(what, format!("it waits at {wait_point}"), mend));
    }
    if off(value("source_wait_no_replica", "master_wait_no_slave")) {
        let mend = format!("turn rpl_semi_sync_..._wait_no_replica (wait_no_slave) on: {FORGETS}");
        findings.push(bad_if(replicated, what, "it waits for nobody where no replica is connected", mend));
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

/// Whether a variable is on. What is neither yes nor no counts as yes: MariaDB's read_only has more than two values.
fn on(variables: &Variables, name: &str) -> bool {
    variables.get(name).is_some_and(|value| !["OFF", "0", "NO", ""].iter().any(|off| value.eq_ignore_ascii_case(off)))
}

/// The three numbers that a version begins with.
fn numbers(version: &str) -> Option<(u32, u32, u32)> {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse().ok());
    Some((numbers.next()??, numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests;
