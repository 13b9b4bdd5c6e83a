//! A session with PostgreSQL.
//!
//! It works through PgBouncer in transaction mode, so it uses only unnamed statements (`query_typed`) and simple-query
//! batches. There are no startup options, and no session state except the session's name; settings are made for one
//! transaction.

mod application_name;
mod connect;
mod connection;
mod error;
mod tables;

pub(crate) use application_name::ProcessName;

use super::former_primary::Timeline;
use super::{Client, DatabaseError, DatabaseFailure, Dialect, FromRow, Limits, Row, Sealed, Server, Session, Value};
use super::{session, unreadable};
use crate::base::deadline::Deadline;
use crate::base::server_waits::{self, ServerKind};
use connection::PostgresConnection;
use postgres::types::{ToSql, Type};
use postgres::{Error, SimpleQueryMessage};
use std::thread;
use std::time::Duration;
use tracing::debug;

/// The pause before a contended statement is retried. It is short, because the server has already waited for its
/// `deadlock_timeout` (1 s by default).
const REST: Duration = Duration::from_millis(20);

/// How long a statement that changes rows waits for another session's lock. Shorter waits are ordinary. After a longer one
/// the statement is rolled back, which releases its own locks, and retried. The same time as on MySQL
/// (`innodb_lock_wait_timeout`).
const ROW_LOCK_WAIT: Duration = Duration::from_secs(10);

/// How long a change of little value waits for another session's lock.
const SHORT_LOCK_WAIT: Duration = Duration::from_millis(100);

/// How long after the deadline an answer may still come, if the server itself ends the statement at the deadline.
const MORE_PATIENCE: Duration = Duration::from_secs(5);

/// Whether the server takes no writes; the cluster's identifier, and how far its history reaches; whether commits wait for a
/// standby while none follows.
///
/// The timeline comes from the present position in the write-ahead log. `pg_control_checkpoint()` has that of the last
/// checkpoint, for which a promotion does not wait. `sync_state` is NULL for a role without `pg_read_all_stats`; such a
/// standby counts as synchronous.
const SERVER_STATUS: &str = "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::bool, system_identifier, \
     CASE WHEN NOT pg_is_in_recovery() THEN pg_walfile_name(pg_current_wal_insert_lsn()) END, \
     CASE WHEN current_setting('synchronous_standby_names') <> '' AND current_setting('synchronous_commit') NOT IN ('off', 'local') \
          THEN NOT EXISTS (SELECT FROM pg_stat_get_wal_senders() WHERE sync_state IS DISTINCT FROM 'async') ELSE false END \
     FROM pg_control_system()";

/// At the beginning of a transaction that writes: suppresses the warnings of its statements.
pub(crate) const SUPPRESS_NOTICES: &str = "SET LOCAL client_min_messages = error;";
/// Right before the COMMIT, whatever the role's setting is: any warning after this is about the COMMIT itself, or about its
/// wait for a standby.
pub(crate) const SHOW_COMMIT_WARNINGS: &str = "SET LOCAL client_min_messages = warning;";

/// Whether a transaction is open, whether the server takes no writes, and whether our role may call the functions whose plans a
/// session keeps (of these only the last one is looked up, since all are created together).
///
/// Inside a transaction, `transaction_timestamp()` is older than the statement; outside, both times are equal. A transaction's
/// lock ended with the transaction. This program takes no session-level lock; any such lock is freed here.
const PROOF: &str = "SELECT transaction_timestamp() <> statement_timestamp(), current_setting('transaction_read_only')::bool, \
     coalesce(has_function_privilege(to_regproc('maildrop_copy'), 'EXECUTE'), false), pg_advisory_unlock_all()";

/// The answer to [`PROOF`].
type Proof = (bool, bool, bool);

pub struct PostgresDatabase {
    connection: PostgresConnection,
    /// The server of this connection, and what is known of its history.
    server: Server,
    /// Whether the next statement also reads [`SERVER_STATUS`]: behind a pooler or a virtual address, another server may
    /// answer.
    status_is_due: bool,
    /// Whether the next answer has to come soon.
    hurried: bool,
    /// From [`SERVER_STATUS`].
    timeline: Option<Timeline>,
    lacks_sync_standby: bool,
    /// The session's name on the server, and the name of this delivery if it differs.
    called: ProcessName,
    name: Option<String>,
    deadline: Deadline,
    /// How long the server may work on a statement that only reads, if there is a limit.
    longest: Option<Duration>,
    pub(crate) transaction: Transaction,
    /// The server's identifier of the transaction that has taken the last lock.
    pub(crate) locked_in: String,
    /// Whether an error came during this delivery. The state of the session on the server is then uncertain, so the session
    /// is not reused.
    doubtful: bool,
    /// See [`plans_are_cached`](Self::plans_are_cached).
    cached_plans: bool,
    /// What the session has proved with its last COMMIT, unless something was asked since: see [`commit`](Self::commit).
    proof: Option<Proof>,
    /// Whether the server reports its epoch, as far as is known: see `ledger::epoch`.
    pub(crate) reports_epoch: bool,
    round_trips: u32,
}

/// The value of a parameter (`$1` and so on), and its type.
pub(crate) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// The transaction that is open on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transaction {
    /// None: each statement is a transaction of its own.
    None,
    /// The one that holds the advisory lock of this key.
    Lock(i64),
    /// The one that holds the schema's lock, and applies migrations.
    Schema,
}

impl Session for PostgresDatabase {
    fn round_trips(&self) -> u32 {
        self.round_trips
    }

    fn said_read_only(&self) -> bool {
        self.connection.reports_read_only()
    }

    fn is_read_only(&mut self) -> Result<bool, DatabaseError> {
        let doing = "asking whether the server takes writes";
        let ask = "SELECT (pg_is_in_recovery() OR current_setting('transaction_read_only')::bool)::text";
        self.read(doing, ask, &[])?.first().ok_or_else(|| unreadable("no answer".into()))?.read()
    }

    fn lacks_sync_standby(&self) -> bool {
        self.lacks_sync_standby
    }

    fn check_still_primary(&mut self) -> Result<(), DatabaseError> {
        self.compare("comparing it with the other servers")
    }

    fn expect_fast_reply(&mut self) {
        self.hurried = true;
    }

    fn limit_statement_time(&mut self, longest: Duration) {
        // The server's limit ends before ours, so that a slow server is not taken for one that hangs.
        let silence = self.server.limits.silence;
        self.longest = Some(longest.min(silence - silence / 8));
    }

    fn begin(&mut self, client: &Client, deadline: Deadline, _: Sealed) -> Result<(), DatabaseError> {
        // The server may have ended the session meanwhile.
        self.connection.poll_incoming().map_err(|failed| error::unanswered("beginning a delivery", &failed))?;
        (self.status_is_due, self.hurried) = (self.server.timelines.is_some(), false);
        (self.timeline, self.lacks_sync_standby) = (None, false);
        let process = ProcessName::of(client);
        self.name = (process != self.called).then(|| process.to_string());
        (self.deadline, self.round_trips, self.longest) = (deadline, 0, None);
        Ok(())
    }

    /// The session's name is replaced if it contains a queue id, because the next delivery has another one. No round trip if
    /// the delivery ended with its record.
    fn end(&mut self, _: Sealed) -> Result<(), DatabaseError> {
        let doing = "ending a delivery's use of the session";
        let left = |what: &str| Err(DatabaseError::other(doing, what));
        if self.transaction != Transaction::None {
            return left("a transaction is still open");
        }
        if self.doubtful {
            return left("an error came in its conversation");
        }
        let nameless = ProcessName { queue_id: None, ..self.called.clone() };
        let rename = if nameless == self.called {
            String::new()
        } else {
            format!(
                ", set_config('application_name', {}, false)",
                Dialect::Postgresql.literal(Value::Text(&nameless.to_string()))
            )
        };
        let (is_open, is_read_only, cached_plans) = match self.proof.take() {
            Some(proof) => proof,
            None => {
                let by = Deadline::after(session::RESET_TIMEOUT);
                let soon = |this: &Self| this.silence().map(|silence| silence.min(by.remaining()));
                self.ask_who_answers_within(doing, soon(self))?;
                self.expect_fast_reply();
                let (soon, proof) = (soon(self), format!("{PROOF}{rename}"));
                let answers = self.ask(doing, soon, async |client| client.simple_query(&proof).await)?;
                Batch::of(doing, &answers)?.last()?
            }
        };
        (self.called, self.cached_plans) = (nameless, cached_plans);
        if is_open {
            return left("a transaction is still open on the server");
        }
        if is_read_only {
            return left("the server takes no writes any more");
        }
        Ok(())
    }
}

impl PostgresDatabase {
    /// The deadline of the delivery that the session serves.
    pub(crate) fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// The prefix of a statement that only reads, so that the server ends the statement in time. It holds for the
    /// transaction that the server makes of the batch, so it does not reach the next client of a pooler.
    fn time_limit(&self) -> String {
        match self.longest.filter(|_| self.transaction == Transaction::None) {
            Some(longest) => format!("SET LOCAL statement_timeout = {}; ", session::longest(longest, self.deadline)),
            None => String::new(),
        }
    }

    /// The prefix of statements that change rows, in a transaction of their own or in the lock's. It also limits each
    /// statement's wait for other sessions' locks.
    pub(crate) fn limits_of_changes(&self) -> String {
        let lock_wait = milliseconds(ROW_LOCK_WAIT.min(self.deadline.remaining()));
        format!("SET LOCAL lock_timeout = {lock_wait}; {}", self.time_limit())
    }

    /// The delivery's name for its transactions, if the session was opened under another one.
    pub(crate) fn name_to_set(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Whether statements go through the functions whose plans a session keeps: from its second delivery on, if the
    /// functions exist.
    pub(crate) fn plans_are_cached(&self) -> bool {
        self.cached_plans
    }

    /// Runs work whose inner failures leave nothing in doubt, because the work ends with a ROLLBACK.
    pub(crate) fn keep_doubtful_flag<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        let doubtful = self.doubtful;
        let done = work(self)?;
        self.doubtful = doubtful;
        Ok(done)
    }

    /// Runs a statement that reads texts, in one round trip, and without a named statement. A healthy server answers at
    /// once, so an unresponsive one is given up. Values are parameters, so that the planner finds an index for a list.
    ///
    /// Not for the lock's transaction: the client library leaves the portal open, whose snapshot holds back VACUUM until the
    /// next statement, while IMAP works. A [`batch`](Self::batch) leaves no portal.
    pub(crate) fn read(&mut self, doing: &str, sql: &str, values: &[Parameter<'_>]) -> Result<Vec<Row>, DatabaseError> {
        let silence = self.silence();
        let rows = if !self.status_is_due || self.transaction != Transaction::None {
            self.ask(doing, silence, async |client| client.query_typed(sql, values).await)?
        } else {
            self.status_is_due = false;
            // Both are sent before either is answered.
            let (who, rows) = self.ask(doing, silence, async |client| {
                let asked = (client.simple_query(SERVER_STATUS), client.query_typed(sql, values));
                let (who, rows) = tokio::join!(biased; asked.0, asked.1);
                Ok((who, rows?))
            })?;
            self.check_server_status(doing, who)?;
            rows
        };
        let cells = |row: &postgres::Row| (0..row.len()).map(|index| row.try_get(index)).collect::<Result<_, _>>();
        rows.iter().map(|row| cells(row).map(Row).map_err(|error| error::failed(doing, &error))).collect()
    }

    /// Runs one statement with parameters: one round trip, no named statement.
    pub(crate) fn execute(&mut self, doing: &str, sql: &str, values: &[Parameter<'_>]) -> Result<u64, DatabaseError> {
        self.ask_who_answers(doing)?;
        let patience = self.patience();
        self.ask(doing, patience, async |client| client.execute_typed(sql, values).await)
    }

    /// Runs statements in one round trip, each with a snapshot of its own, up to the first that fails. They are not
    /// parametrised, so they may contain only constants, numbers and hexadecimal digits.
    pub(crate) fn batch(&mut self, doing: &str, sql: &str) -> Result<Batch, DatabaseError> {
        self.ask_who_answers(doing)?;
        let patience = self.patience();
        let answers = self.ask(doing, patience, async |client| client.simple_query(sql).await)?;
        Batch::of(doing, &answers)
    }

    /// Runs these statements at the end of a transaction, and commits it, in one round trip. From a session's second delivery on,
    /// the proof that [`Session::end`] wants goes along: a statement of its own behind the COMMIT.
    pub(crate) fn commit(&mut self, doing: &str, statements: &str) -> Result<(), DatabaseError> {
        let proof = if self.plans_are_cached() { PROOF } else { "" };
        let answers = self.batch(doing, &format!("{statements}{SHOW_COMMIT_WARNINGS} COMMIT; {proof}"))?;
        self.check_commit_warning(doing)?;
        self.proof = (!proof.is_empty()).then(|| answers.last()).transpose()?;
        Ok(())
    }

    /// Changes rows of little value, all or none: waits for no other session, no standby and no disk, and soon gives up a
    /// server that does not answer. A power loss of the server may lose the change.
    pub(crate) fn change_briefly(&mut self, doing: &str, sql: &str, longest: Duration) -> Result<(), DatabaseError> {
        if self.transaction != Transaction::None {
            return Err(DatabaseError::other(doing, "a transaction is open"));
        }
        // Half of what is left: the result has to be reported before the deadline.
        let longest = longest.min(self.deadline.remaining() / 2);
        let sql = format!(
            "{SUPPRESS_NOTICES} SET LOCAL lock_timeout = {}; SET LOCAL statement_timeout = {}; SET LOCAL synchronous_commit = off; {sql}",
            milliseconds(SHORT_LOCK_WAIT),
            milliseconds(longest).max(1)
        );
        self.ask(doing, Some(longest), async |client| client.simple_query(&sql).await).map(drop)
    }

    /// One round trip. Earlier notices of the server are dropped.
    fn ask<T>(
        &mut self,
        doing: &str,
        silence: Option<Duration>,
        ask: impl AsyncFnOnce(&tokio_postgres::Client) -> Result<T, Error>,
    ) -> Result<T, DatabaseError> {
        self.round_trips += 1;
        self.proof = None;
        for notice in self.connection.notices() {
            debug!(said = %notice, "a notice of the database server");
        }
        let _awaited = server_waits::for_answer(ServerKind::Database);
        self.hurried = false;
        self.connection.ask(silence, ask).map_err(|failed| {
            self.doubtful = true;
            error::unanswered(doing, &failed)
        })
    }

    /// How long the server may take to answer a statement that only reads. A subcommand that people start has no such limit:
    /// it checks over another connection whether the server hangs.
    fn silence(&self) -> Option<Duration> {
        let Limits { login, silence, .. } = self.server.limits;
        (!server_waits::are_watched()).then_some(if self.hurried { login } else { silence })
    }

    /// How long to wait for the answer to any other statement. Without limit, because it may be a COMMIT, whose outcome
    /// would then be unknown; unless [`limit_statement_time`](Session::limit_statement_time) was called.
    fn patience(&self) -> Option<Duration> {
        self.longest.map(|_| self.deadline.remaining() + MORE_PATIENCE)
    }

    /// Reads [`SERVER_STATUS`] in a round trip of its own, if that is due. [`read`](Self::read) sends it along instead.
    fn ask_who_answers(&mut self, doing: &str) -> Result<(), DatabaseError> {
        let silence = self.silence();
        self.ask_who_answers_within(doing, silence)
    }

    fn ask_who_answers_within(&mut self, doing: &str, silence: Option<Duration>) -> Result<(), DatabaseError> {
        if !std::mem::take(&mut self.status_is_due) {
            return Ok(());
        }
        let who = self.ask(doing, silence, async |client| Ok(client.simple_query(SERVER_STATUS).await))?;
        self.check_server_status(doing, who)
    }

    fn check_server_status(
        &mut self,
        doing: &str,
        who: Result<Vec<SimpleQueryMessage>, Error>,
    ) -> Result<(), DatabaseError> {
        let answers = match who {
            Ok(answers) => Batch::of(doing, &answers)?,
            // Some services have PostgreSQL's protocol and not all of its functions.
            Err(error) => {
                debug!(%error, "how far the server's history reaches is not known");
                return Ok(());
            }
        };
        let (is_read_only, cluster, log_file, wait_in_vain): (bool, Option<String>, Option<String>, bool) =
            answers.last()?;
        // A session whose server reported this on connecting was opened to read.
        if is_read_only && !self.connection.reports_read_only() {
            self.doubtful = true;
            self.server.suspect();
            let detail = format!("{} takes no writes", self.server.address);
            return Err(DatabaseError::new(DatabaseFailure::ReadOnly, doing, detail));
        }
        self.timeline = timeline(cluster.as_deref(), log_file.as_deref());
        self.lacks_sync_standby = wait_in_vain;
        self.compare(doing)
    }

    /// Fails if this process has met a server with a later timeline.
    fn compare(&mut self, doing: &str) -> Result<(), DatabaseError> {
        let compared = self.server.compare(self.timeline.as_ref(), doing);
        self.doubtful |= compared.is_err();
        compared
    }

    /// Checks that the COMMIT of the last round trip has reached the standbys that it waits for.
    ///
    /// If its wait for a synchronous standby was cancelled (`pg_cancel_backend`), the server answers with success and a
    /// warning. The commit is on this server alone, and a fail-over may lose it (PostgreSQL manual, "Synchronous
    /// Replication").
    ///
    /// # Errors
    /// If that wait was ended, with [`DatabaseFailure::InDoubt`].
    pub(crate) fn check_commit_warning(&mut self, doing: &str) -> Result<(), DatabaseError> {
        let Some(notice) = self.connection.notices().into_iter().find(error::in_doubt) else { return Ok(()) };
        self.doubtful = true;
        Err(DatabaseError::new(DatabaseFailure::InDoubt, doing, error::said_in_full(&notice)))
    }

    /// Ends any open transaction, and makes the connection usable again.
    pub(crate) fn roll_back(&mut self) -> Result<(), DatabaseError> {
        self.transaction = Transaction::None;
        // Outside a transaction the server answers with a warning, no error.
        self.batch("rolling back", "ROLLBACK").map(|_| ())
    }

    /// [`roll_back`](Self::roll_back) after a failure, which is returned. If the rollback fails too, the connection is
    /// gone, and the server has rolled back by itself.
    pub(crate) fn roll_back_after(&mut self, failure: DatabaseError) -> DatabaseError {
        match self.roll_back() {
            Ok(()) => failure,
            Err(second) => {
                let detail = format!("{}; then, {}", failure.detail, second);
                DatabaseError { detail, ..failure }
            }
        }
    }

    /// Runs a step, and retries it with pauses while that can help and time is left.
    pub(crate) fn retrying<T>(
        &mut self,
        mut step: impl FnMut(&mut Self) -> Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        loop {
            match step(self) {
                Err(error) if error.trying_again_at_once_can_help() && !self.deadline.passed() => {
                    thread::sleep(REST.min(self.deadline.remaining()));
                }
                done => return done,
            }
        }
    }
}

pub(crate) struct Batch {
    /// The rows of all statements, in order.
    pub(crate) rows: Vec<Row>,
    /// How many rows they changed, or returned.
    pub(crate) count: u64,
}

impl Batch {
    fn of(doing: &str, answers: &[SimpleQueryMessage]) -> Result<Self, DatabaseError> {
        let mut batch = Self { rows: Vec::new(), count: 0 };
        for answer in answers {
            match answer {
                SimpleQueryMessage::Row(row) => {
                    let cells = (0..row.len()).map(|index| row.try_get(index).map(|cell| cell.map(ToOwned::to_owned)));
                    batch
                        .rows
                        .push(Row(cells.collect::<Result<_, _>>().map_err(|error| error::failed(doing, &error))?));
                }
                SimpleQueryMessage::CommandComplete(count) => batch.count += count,
                _ => {}
            }
        }
        Ok(batch)
    }

    pub(crate) fn last<T: FromRow>(&self) -> Result<T, DatabaseError> {
        self.rows.last().ok_or_else(|| unreadable("the server answered without a row".into()))?.read()
    }
}

/// The first eight digits of a log file's name are its timeline (PostgreSQL manual, "WAL Internals").
fn timeline(system: Option<&str>, log_file: Option<&str>) -> Option<Timeline> {
    let number = u64::from_str_radix(log_file?.get(..8)?, 16).ok()?;
    Some(Timeline { cluster: format!("postgresql/{}", system?), number })
}

/// A time span as PostgreSQL's settings accept it: whole milliseconds, and never 0, which means "no limit".
pub fn milliseconds(span: Duration) -> i32 {
    i32::try_from(span.as_millis()).unwrap_or(i32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::{Endpoint, Idle, Tables as _, Tls};
    use std::io::{self, Write};
    use std::net::TcpListener;
    use std::time::Instant;

    /// A server that accepts a client and then hangs. Returns its port.
    fn hanging_server() -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            let mut client = listener.accept().unwrap().0;
            // "Frontend/Backend Protocol" in PostgreSQL's manual: AuthenticationOk, ReadyForQuery.
            client.write_all(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I").unwrap();
            io::copy(&mut client, &mut io::sink())
        });
        port
    }

    /// A session with such a server.
    fn session(limits: Limits) -> PostgresDatabase {
        let server = Server {
            address: Endpoint::Tcp { host: "127.0.0.1".into(), port: hanging_server() },
            database: "x".into(),
            user: "x".into(),
            password: None,
            tls: Tls::Off,
            limits,
            timelines: None,
        };
        let client = Client { host: "mx1".into(), pid: 1, queue_id: None };
        PostgresDatabase::connect(&server, &client, Deadline::after(Duration::from_mins(1))).unwrap()
    }

    #[test]
    fn a_server_that_hangs_between_two_deliveries_costs_the_session_and_that_soon() {
        let limits = Limits::default();
        let (session, began) = (session(limits), Instant::now());
        assert!(Idle::after(Box::new(session)).is_none());
        assert!(began.elapsed() < limits.silence, "{:?}", began.elapsed());
    }

    #[test]
    fn with_a_statement_time_limit_a_server_that_hangs_is_given_up_whatever_it_is_asked() {
        for ask in [
            |session: &mut PostgresDatabase| session.select("asking", "SELECT 1", &[]).map(drop),
            |session: &mut PostgresDatabase| session.change("changing", "DELETE FROM x", &[]).map(drop),
            |session: &mut PostgresDatabase| session.execute("changing", "DELETE FROM x", &[]).map(drop),
        ] {
            let mut session = session(Limits::default());
            session.limit_statement_time(Duration::from_mins(1));
            session.deadline = Deadline::after(Duration::ZERO);
            let error = ask(&mut session).unwrap_err();
            assert_eq!(error.failure, DatabaseFailure::TimedOut, "{error}");
            let error = ask(&mut session).unwrap_err();
            assert_eq!(error.failure, DatabaseFailure::ConnectionLost, "{error}");
        }
    }

    #[test]
    fn a_history_is_reported_by_the_system_and_the_name_of_a_log_file() {
        let shown = timeline(Some("7412345678901234567"), Some("0000001A0000000100000002")).unwrap();
        assert_eq!((shown.cluster.as_str(), shown.number), ("postgresql/7412345678901234567", 26));
        for (system, file) in [(None, Some("000000010000000000000001")), (Some("7"), None), (Some("7"), Some("x"))] {
            assert_eq!(timeline(system, file), None);
        }
    }

    #[test]
    fn a_time_limit_is_never_no_limit() {
        assert_eq!(milliseconds(Duration::ZERO), 1);
        assert_eq!(milliseconds(Duration::from_micros(1_500)), 1);
        assert_eq!(milliseconds(Duration::from_secs(240)), 240_000);
        assert_eq!(milliseconds(Duration::MAX), i32::MAX);
    }
}
