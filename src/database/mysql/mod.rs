//! A session with MySQL 8.0.16 or later, or MariaDB 10.6 or later.
//!
//! # One connection
//!
//! The lock is a user-level lock (`GET_LOCK`) of the session. So the connection is never in the crate's pool, which resets
//! returned connections and thereby frees the lock. `mysql::Conn` does not reconnect by itself.
//!
//! Once a read has timed out, the connection is not used any more. A late answer ("the lock is yours") would be taken for
//! the answer to the next statement.
//!
//! # Time limits
//!
//! The server's limits are set for each delivery. The socket's are set once, when the connection is opened, to the time that
//! the *first* delivery may take, plus two seconds. So a wait of a later delivery may end after its deadline, which the
//! process's watchdog enforces; and a delivery with more time than the first cannot begin in this session. A server that
//! vanished is given up within 30 s, by keepalives.
//!
//! # Statements
//!
//! Statements use the text protocol, in batches, with values as hexadecimal literals ([`Dialect::literal`]). Every result
//! set of a batch is read to its end, because the crate would otherwise drop the errors of the second and later statements.
//!
//! # Privacy
//!
//! TLS is rustls with ring. The crate trusts Mozilla's root certificates *in addition to* the CA file, so a private CA does
//! not exclude public ones. Without TLS, `caching_sha2_password` accepts any RSA key, so a machine in between could take the
//! password. `check` warns about TCP without TLS to another host.

mod connect;
mod error;
pub(crate) mod sql;
mod tables;

use super::former_primary::Timeline;
use super::{Client, DatabaseError, DatabaseFailure, Dialect, FromRow, Limits, Row, Sealed, Server, Session};
use super::{session, unreadable, unsupported_products};
use crate::base::back_off::BackOff;
use crate::base::deadline::Deadline;
use crate::base::server_waits::{self, ServerKind};
use error::ConnectionState;
use mysql::prelude::Queryable;
use mysql::{Conn, Value};
use std::borrow::Cow;
use std::fmt;
use std::thread;
use std::time::Duration;
use tracing::{debug, warn};

/// How much longer than the deadline the socket waits, because the answer to a wait for the lock may come right at the
/// deadline.
const MORE_PATIENCE: Duration = Duration::from_secs(2);

/// The name of the server's replication group; without a group, no row or an empty name. With LIKE the server reads only
/// this variable; with WHERE it would read all of them, which takes milliseconds.
const GROUP: &str = "SHOW GLOBAL VARIABLES LIKE 'group_replication_group_name'; ";
/// The prefix of cluster names that stand for replication groups.
const VIEWS: &str = "group/";
/// The server's view of its group: NULL or empty if the server is in none. A role may lack the right to read it.
const VIEW: &str = "SELECT (SELECT VIEW_ID FROM performance_schema.replication_group_member_stats \
     WHERE MEMBER_ID = @@server_uuid), NULL, NULL";
/// The view; the server's state in its group; and whether it reaches no more than half of the members. In that case it
/// commits nothing (MySQL manual, "Network Partitioning").
const VIEW_AND_MEMBERS: &str = "SELECT \
     (SELECT VIEW_ID FROM performance_schema.replication_group_member_stats WHERE MEMBER_ID = @@server_uuid), \
     (SELECT MEMBER_STATE FROM performance_schema.replication_group_members WHERE MEMBER_ID = @@server_uuid), \
     (SELECT SUM(MEMBER_STATE = 'UNREACHABLE') * 2 >= COUNT(*) FROM performance_schema.replication_group_members)";
/// The state of a member that takes part.
const ONLINE: &str = "ONLINE";
/// The common prefix of both tables' names.
const MEMBERS: &str = "replication_group_member";

/// Frees every lock of the session; how many there were, and whether the server takes no writes.
fn release() -> String {
    format!("SELECT RELEASE_ALL_LOCKS(), {}", sql::READ_ONLY)
}

pub struct MysqlDatabase {
    /// `None` once a thread has been abandoned with it, because the server did not answer.
    connection: Option<Conn>,
    /// The server's id of the connection.
    pub(crate) id: u32,
    /// Why the connection is unusable, once it is.
    lost: Option<String>,
    /// The time limit of the next answer, if it has to come soon.
    reply_within: Option<Duration>,
    /// Whether an error came during this delivery. The state of the session on the server is then uncertain, so the session
    /// is not reused.
    doubtful: bool,
    deadline: Deadline,
    /// Whether the server took no writes, as reported with the last COMMIT; `None` if there was none, or something was asked
    /// since. See [`commit`](Self::commit).
    committed: Option<bool>,
    /// How long the server may work on a statement that only reads, if there is a limit.
    longest: Option<Duration>,
    /// How long the socket waits for an answer; set when the connection was opened.
    patience: Duration,
    /// The settings for this delivery, until they have been sent with its first statement.
    to_set: Option<String>,
    product: Dialect,
    /// As the server reports it: `11.8.6-MariaDB-0+deb13u1`.
    pub(crate) version: String,
    /// Whether the server may be a node of Galera: every MariaDB may, and few of the others.
    knows_galera: bool,
    /// Whether the server reported that it takes no writes when the session was set up, and has not reported otherwise
    /// since.
    said_read_only: bool,
    server: Server,
    /// The server's group, if its view can be read; and whether the next statement reads the view.
    group: Option<String>,
    status_is_due: bool,
    /// Whether the server counts as read-only because it is outside of its group, which would not get its commits.
    is_outside: bool,
    /// What the view says.
    timeline: Option<Timeline>,
    lacks_sync_standby: bool,
    /// The longest packet that the server takes in this session, in bytes.
    pub(crate) max_allowed_packet: usize,
    round_trips: u32,
}

/// Without the connection, whose own Debug output shows the password.
impl fmt::Debug for MysqlDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlDatabase")
            .field("version", &self.version)
            .field("session", &self.id)
            .field("lost", &self.lost)
            .finish_non_exhaustive()
    }
}

/// The answer to one statement: its rows, or none.
pub(crate) type Answer = Vec<Row>;

impl Session for MysqlDatabase {
    fn round_trips(&self) -> u32 {
        self.round_trips
    }

    fn said_read_only(&self) -> bool {
        self.said_read_only
    }

    fn lacks_sync_standby(&self) -> bool {
        self.lacks_sync_standby
    }

    fn check_still_primary(&mut self) -> Result<(), DatabaseError> {
        self.compare("comparing it with the other servers")
    }

    fn is_read_only(&mut self) -> Result<bool, DatabaseError> {
        let doing = "asking whether the server takes writes";
        let is_read_only: bool = self.run_for(doing, &format!("SELECT {}", sql::READ_ONLY), 1)?;
        // A server that has left its group, or did not find it, accepts writes, which no other server gets.
        let is_read_only = is_read_only || self.is_outside;
        self.said_read_only &= is_read_only;
        Ok(is_read_only)
    }

    fn expect_fast_reply(&mut self) {
        // If there is no other server, this one gets its full time.
        let Limits { login, silence, .. } = self.server.limits;
        self.reply_within = (login < silence).then_some(login.min(session::RESET_TIMEOUT));
    }

    fn limit_statement_time(&mut self, longest: Duration) {
        self.longest = Some(longest);
    }

    fn begin(&mut self, _: &Client, deadline: Deadline, _: Sealed) -> Result<(), DatabaseError> {
        let doing = "beginning a delivery";
        self.usable(doing)?;
        if deadline.remaining() > self.patience {
            let detail = "the session was opened for shorter deliveries: its socket would not wait long enough";
            return Err(DatabaseError::new(DatabaseFailure::Local, doing, detail));
        }
        (self.deadline, self.round_trips, self.reply_within, self.longest) = (deadline, 0, None, None);
        self.to_set = Some(format!("SET SESSION {}", time_limits(deadline)));
        self.status_is_due = self.group.is_some();
        (self.timeline, self.lacks_sync_standby, self.is_outside) = (None, false, false);
        Ok(())
    }

    fn end(&mut self, _: Sealed) -> Result<(), DatabaseError> {
        let doing = "ending a delivery's use of the session";
        let left = |what: &str| Err(DatabaseError::other(doing, what));
        if self.doubtful {
            return left("an error came in its conversation");
        }
        let is_read_only = match self.committed.take() {
            Some(is_read_only) => is_read_only,
            None => {
                self.reply_within = Some(self.server.limits.login.min(session::RESET_TIMEOUT));
                let (locks, is_read_only): (u64, bool) = self.run_for(doing, &format!("ROLLBACK; {}", release()), 2)?;
                if locks != 0 {
                    return left("a lock was still held");
                }
                is_read_only
            }
        };
        if is_read_only {
            return left("the server takes no writes any more");
        }
        Ok(())
    }
}

/// The settings of one delivery:
///
/// - Waits for row locks and metadata locks end within the deadline. A row lock is held by another delivery's record,
///   which takes milliseconds. Ten seconds is a fault, and the statement is retried.
/// - `wait_timeout`: the server ends a session that stays idle until a minute after the deadline. That frees the lock of a
///   host that vanished without a FIN, hours before the server's default or TCP's keepalive would.
fn time_limits(deadline: Deadline) -> String {
    let left = deadline.remaining().as_secs().max(1);
    let (row_lock_wait, idle) = (left.min(10), left + 60);
    format!("innodb_lock_wait_timeout = {row_lock_wait}, lock_wait_timeout = {left}, wait_timeout = {idle}")
}

impl MysqlDatabase {
    /// Connects, and sets the session up: two round trips, one more for TLS, and one or two for some forms of
    /// authentication. Every wait ends by `deadline`, except that of the resolver.
    ///
    /// # Errors
    /// If the server cannot be reached in time or refuses us. [`DatabaseFailure::Schema`] if there is no such database;
    /// [`DatabaseFailure::Local`] if a CA file cannot be read; [`DatabaseFailure::Unsupported`] if the server is another
    /// product than MySQL or MariaDB.
    pub fn connect(server: &Server, client: &Client, deadline: Deadline) -> Result<Self, DatabaseError> {
        let awaited = server_waits::for_answer(ServerKind::Database);
        let patience = deadline.remaining() + MORE_PATIENCE;
        let connection = connect::open(server, client, deadline, patience)?;
        drop(awaited);
        let mut database = Self {
            id: connection.connection_id(),
            connection: Some(connection),
            reply_within: None,
            lost: None,
            doubtful: false,
            committed: None,
            deadline,
            longest: None,
            patience,
            to_set: None,
            product: Dialect::Mysql,
            version: String::new(),
            knows_galera: false,
            said_read_only: false,
            server: server.clone(),
            group: None,
            status_is_due: false,
            is_outside: false,
            timeline: None,
            lacks_sync_standby: false,
            max_allowed_packet: 0,
            round_trips: 0,
        };
        database.set_session_up()?;
        if server.is_suspect() {
            database.run("asking how far the server's history reaches", "DO 0", 1)?;
        }
        Ok(database)
    }

    /// - `SET NAMES`: `init_connect` or `skip-character-set-client-handshake` may have set another character set. In
    ///   that set the server would replace characters of a mailbox's name by question marks.
    /// - READ COMMITTED: a statement locks only what it changes, and no read view outlives its statement.
    /// - `autocommit`: the look and the journal are transactions of their own.
    /// - `sql_mode`: a value that does not fit is an error, and is not cut.
    /// - `sql_select_limit`: no rows are left out. `completion_type`: a COMMIT opens no new transaction.
    /// - `time_zone`: no result depends on the server's zone.
    fn set_session_up(&mut self) -> Result<(), DatabaseError> {
        let doing = "setting the database session up";
        let time_limits = time_limits(self.deadline);
        let batch = format!(
            "SET NAMES utf8mb4; \
             SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
             SET SESSION autocommit = 1, time_zone = '+00:00', \
             sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION', \
             {time_limits}, \
             sql_select_limit = 18446744073709551615, completion_type = 0; \
             {GROUP}SELECT VERSION(), @@max_allowed_packet, @@version_comment, {read_only}",
            read_only = sql::READ_ONLY
        );
        let answers = self.run(doing, &batch, 5)?;
        let comment: String;
        (self.version, self.max_allowed_packet, comment, self.said_read_only) = only(&answers)?;
        if let Some(product) = unsupported_products::detect_mysql_fork(&self.version) {
            return Err(unsupported_products::refused(doing, product, "MySQL or MariaDB"));
        }
        self.product =
            if self.version.to_ascii_lowercase().contains("mariadb") { Dialect::Mariadb } else { Dialect::Mysql };
        // Percona XtraDB Cluster reports "WSREP version 26…", and Codership's own MySQL is called "MySQL-wsrep".
        self.knows_galera = self.product == Dialect::Mariadb || comment.to_ascii_lowercase().contains("wsrep");
        if let Some([group]) = answers.get(3).map(Vec::as_slice) {
            self.group = group.text(1).filter(|name| !name.is_empty()).map(ToOwned::to_owned);
        }
        self.status_is_due = self.group.is_some();
        Ok(())
    }

    /// Whether it may be a node of Galera: every MariaDB may, and few of the others.
    pub(crate) fn knows_galera(&self) -> bool {
        self.knows_galera
    }

    /// Adds a time limit on the server to a statement that only reads. The limit is part of the statement, so that it does
    /// not stay in the session. It is a hint on MySQL (manual, "Statement Execution Time Optimizer Hints"), and `SET
    /// STATEMENT` on MariaDB.
    fn in_time(&self, sql: String) -> String {
        let Some((longest, rest)) = self.longest.zip(sql.strip_prefix("SELECT ")) else { return sql };
        let longest = session::longest(longest, self.deadline);
        if self.product == Dialect::Mariadb {
            format!("SET STATEMENT max_statement_time = {}.{:03} FOR {sql}", longest / 1000, longest % 1000)
        } else {
            format!("SELECT /*+ MAX_EXECUTION_TIME({longest}) */ {rest}")
        }
    }

    /// The time left until the delivery's deadline.
    pub fn remaining(&self) -> Duration {
        self.deadline.remaining()
    }

    /// Runs a batch of statements in one round trip, and returns the answer of each. The server runs none after one
    /// that failed.
    ///
    /// # Errors
    /// If one of them fails, or if the number of answers differs from that of the statements.
    pub(crate) fn run(&mut self, doing: &str, batch: &str, statements: usize) -> Result<Vec<Answer>, DatabaseError> {
        if !std::mem::take(&mut self.status_is_due) {
            return self.converse(doing, batch, statements);
        }
        let doubtful = self.doubtful;
        // A role may lack the right to both tables, or, if it was granted by an early script, to the second one.
        for ask in [VIEW_AND_MEMBERS, VIEW] {
            match self.converse(doing, &format!("{ask}; {batch}"), statements + 1) {
                Ok(mut answers) => {
                    let view = answers.remove(0);
                    self.judge_view(doing, &view)?;
                    return Ok(answers);
                }
                // The failed statement is the first of the batch, so no statement has run.
                Err(error) if error.failure == DatabaseFailure::AccessDenied && error.detail.contains(MEMBERS) => {
                    debug!(%error, "how far the group's history reaches is not known, or not whether it has a majority");
                    self.doubtful = doubtful;
                }
                Err(error) => return Err(error),
            }
        }
        self.group = None;
        self.converse(doing, batch, statements)
    }

    /// [`run`](Self::run), for the only row of the last answer.
    pub(crate) fn run_for<T: FromRow>(
        &mut self,
        doing: &str,
        batch: &str,
        statements: usize,
    ) -> Result<T, DatabaseError> {
        only(&self.run(doing, batch, statements)?)
    }

    /// Runs these statements at the end of a transaction, commits it, and then releases the lock, in one round trip. After this
    /// the session carries nothing over.
    pub(crate) fn commit(&mut self, doing: &str, mut statements: Vec<String>) -> Result<(), DatabaseError> {
        statements.extend(["COMMIT".to_owned(), release()]);
        let (_locks, is_read_only): (u64, bool) = self.run_for(doing, &statements.join("; "), statements.len())?;
        self.committed = Some(is_read_only);
        Ok(())
    }

    /// Whether nothing was asked since a [`commit`](Self::commit).
    pub(crate) fn has_committed(&self) -> bool {
        self.committed.is_some()
    }

    fn judge_view(&mut self, doing: &str, answer: &Answer) -> Result<(), DatabaseError> {
        let (Some(group), Some(row)) = (&self.group, answer.first()) else { return Ok(()) };
        let (view, state) = (row.text(0), row.text(1));
        self.timeline = view.and_then(|view| timeline(group, view));
        self.lacks_sync_standby = row.value(2)?.unwrap_or(false);
        let is_inside = match state {
            Some(state) => state == ONLINE,
            None => view.is_some_and(|view| !view.is_empty()),
        };
        if is_inside { self.compare(doing) } else { self.refuse_one_outside(doing, state) }
    }

    /// A member that has booted and has not joined its group is an ordinary server. It takes writes, unless its options
    /// forbid that, and no other server gets its commits. A session that was opened to read stays usable for reading.
    fn refuse_one_outside(&mut self, doing: &str, state: Option<&str>) -> Result<(), DatabaseError> {
        if self.said_read_only {
            self.is_outside = true;
            return Ok(());
        }
        self.doubtful = true;
        self.server.suspect();
        let state = state.map(|state| format!(" ({state})")).unwrap_or_default();
        let detail = format!(
            "{}: it is not online in its group{state}: START GROUP_REPLICATION, or, if it is to be used alone, take \
             group_replication_group_name out of its options",
            self.server.address
        );
        Err(DatabaseError::new(DatabaseFailure::ReadOnly, doing, detail))
    }

    /// Fails if this process has met a later view of the group: another server has taken over, and this one was left behind.
    fn compare(&mut self, doing: &str) -> Result<(), DatabaseError> {
        let compared = self.server.compare(self.timeline.as_ref(), doing);
        self.doubtful |= compared.is_err();
        compared
    }

    fn converse(&mut self, doing: &str, batch: &str, statements: usize) -> Result<Vec<Answer>, DatabaseError> {
        self.usable(doing)?;
        self.round_trips += 1;
        self.committed = None;
        let _awaited = server_waits::for_answer(ServerKind::Database);
        let (set, batch) = match &self.to_set {
            Some(set) => (1, Cow::Owned(format!("{set}; {batch}"))),
            None => (0, Cow::Borrowed(batch)),
        };
        let read = match self.reply_within.take() {
            Some(limit) => self.send_batch_with_timeout(doing, batch.into_owned(), limit)?,
            None => read_every_result_set(self.connection(doing)?, &batch),
        };
        let mut answers = read.map_err(|error| self.failed(doing, &error))?;
        self.to_set = None;
        answers.drain(..set.min(answers.len()));
        if answers.len() == statements {
            return Ok(answers);
        }
        self.doubtful = true;
        Err(DatabaseError::other(doing, format!("{} answers to {statements} statements", answers.len())))
    }

    /// Runs one statement as a prepared statement, in two round trips. Its single value is too large to be doubled by a
    /// hexadecimal literal.
    pub(crate) fn run_with_bytes(&mut self, doing: &str, statement: &str, value: &[u8]) -> Result<(), DatabaseError> {
        self.usable(doing)?;
        self.round_trips += 2;
        self.committed = None;
        let _awaited = server_waits::for_answer(ServerKind::Database);
        // `exec_drop` drops the errors of later result sets; an INSERT has one, and its error is returned.
        self.connection(doing)?.exec_drop(statement, (value,)).map_err(|error| self.failed(doing, &error))
    }

    /// Retries work that the server may abort because of another session (a deadlock, a lock wait), until the deadline.
    /// Each failure is rolled back: MySQL rolls back the whole transaction on a deadlock, but only the statement on a
    /// lock wait. The named lock belongs to the session, and stays.
    pub(crate) fn retrying<T>(
        &mut self,
        mut work: impl FnMut(&mut Self) -> Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        let mut back_off = BackOff::new(Duration::from_millis(5), Duration::from_millis(200));
        loop {
            let error = match work(self) {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            if self.lost.is_none()
                && let Err(second) = self.run("rolling back", "ROLLBACK", 1)
            {
                warn!(error = %second, "the transaction was not rolled back; it ends with the connection");
                return Err(error);
            }
            // The pause depends on the connection's id, so that two sessions that collided do not collide once more.
            let pause = back_off.pause() + Duration::from_millis(u64::from(self.id % 7));
            if !error.trying_again_at_once_can_help() || self.remaining() <= pause {
                return Err(error);
            }
            debug!(%error, "trying again");
            thread::sleep(pause);
        }
    }

    /// Changes rows of little value: waits for other sessions as short as the server can, a second, and soon gives up a
    /// server that does not answer. Nothing else follows in this delivery, so the time limit stays in the session.
    pub(crate) fn change_briefly(
        &mut self,
        doing: &str,
        mut statements: Vec<String>,
        longest: Duration,
    ) -> Result<(), DatabaseError> {
        // Half of what is left: the result has to be reported before the deadline.
        self.reply_within = Some(longest.min(self.remaining() / 2));
        // A batch that failed before may have left its transaction open.
        let begin = ["ROLLBACK", "SET SESSION innodb_lock_wait_timeout = 1, lock_wait_timeout = 1"];
        statements.splice(0..0, begin.map(str::to_owned));
        self.run(doing, &statements.join("; "), statements.len()).map(drop)
    }

    pub(crate) fn connection(&mut self, doing: &str) -> Result<&mut Conn, DatabaseError> {
        self.usable(doing)?;
        let none = || DatabaseError::other(doing, "there is no connection");
        self.connection.as_mut().ok_or_else(none)
    }

    /// Runs a batch, and gives up a server that does not answer soon. The socket's own limit is that of a whole delivery.
    fn send_batch_with_timeout(
        &mut self,
        doing: &str,
        batch: String,
        limit: Duration,
    ) -> Result<Result<Vec<Answer>, mysql::Error>, DatabaseError> {
        self.connection(doing)?;
        let Some(mut connection) = self.connection.take() else {
            return Err(DatabaseError::other(doing, "no connection"));
        };
        let read = move || {
            let read = read_every_result_set(&mut connection, &batch);
            (connection, read)
        };
        match connect::within(limit, doing, read) {
            Ok((connection, read)) => {
                self.connection = Some(connection);
                Ok(read)
            }
            Err(error) => {
                (self.doubtful, self.lost) = (true, Some(error.to_string()));
                Err(error)
            }
        }
    }

    fn usable(&self, doing: &str) -> Result<(), DatabaseError> {
        match &self.lost {
            None => Ok(()),
            Some(why) => Err(DatabaseError::new(
                DatabaseFailure::ConnectionLost,
                doing,
                format!("the connection was given up earlier: {why}"),
            )),
        }
    }

    fn failed(&mut self, doing: &str, error: &mysql::Error) -> DatabaseError {
        self.doubtful = true;
        let (error, connection) = error::classify(doing, error);
        if connection == ConnectionState::Lost {
            warn!(%error, "the database connection is lost, and any lock with it");
            self.lost = Some(error.to_string());
        }
        error
    }
}

/// The name of a view is an identifier from the group's bootstrap, and a number that each change of members increments
/// (MySQL manual, "Group Membership").
fn timeline(group: &str, view: &str) -> Option<Timeline> {
    let (made, number) = view.split_once(':')?;
    Some(Timeline { cluster: format!("{VIEWS}{group}/{made}"), number: number.parse().ok()? })
}

fn read_every_result_set(connection: &mut Conn, batch: &str) -> Result<Vec<Answer>, mysql::Error> {
    let mut result = connection.query_iter(batch)?;
    let mut answers = Vec::new();
    while let Some(set) = result.iter() {
        answers.push(set.map(|row| Ok(as_text(row?))).collect::<Result<Answer, mysql::Error>>()?);
    }
    Ok(answers)
}

/// The text protocol has only texts and NULL.
fn as_text(row: mysql::Row) -> Row {
    let cells = row.unwrap().into_iter().map(|value| match value {
        Value::NULL => None,
        Value::Bytes(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        other => Some(other.as_sql(true)),
    });
    Row(cells.collect())
}

pub(crate) fn only<T: FromRow>(answers: &[Answer]) -> Result<T, DatabaseError> {
    match answers.last().map(Vec::as_slice) {
        Some([row]) => row.read(),
        _ => Err(unreadable("the server did not answer with one row".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_time_limits_go_by_what_is_left_of_the_deadline() {
        for (seconds, row_lock) in [(0, 1), (200, 10)] {
            let limits = time_limits(Deadline::after(Duration::from_secs(seconds)));
            let numbers: Vec<u64> =
                limits.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
            let [row, left, idle] = numbers[..] else { panic!("{limits}") };
            assert!(left == seconds.max(1) || left + 100 > seconds && left < seconds, "{limits}");
            assert_eq!((row, idle), (row_lock, left + 60), "{limits}");
        }
    }

    #[test]
    fn views_of_one_group_compare_until_it_is_bootstrapped_again() {
        let shown = |view| timeline("7b2f", view);
        let first = shown("17638565520143210:3").unwrap();
        assert_eq!((first.cluster.as_str(), first.number), ("group/7b2f/17638565520143210", 3));
        assert_eq!(
            shown("17638565520143210:12").map(|later| later.cluster == first.cluster && later.number > 3),
            Some(true)
        );
        assert_ne!(shown("17638565990143210:1").unwrap().cluster, first.cluster);
        assert_eq!([shown(""), shown("x"), shown("1:x")], [None, None, None]);
    }
}
