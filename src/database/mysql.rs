//! A connection to MySQL 8.0.16 or later, or MariaDB 10.6 or later: bearer of that engine's lock ([`crate::lock`]),
//! ledger ([`crate::ledger`]), schema and inspection.
//!
//! # One connection
//!
//! The lock is a user-level lock (`GET_LOCK`), which lives in the session: the connection is never pooled (the crate's
//! pool resets a connection that comes back to it, and the reset frees the lock) and never reconnected (`mysql::Conn`
//! does not reconnect by itself). Once a read has timed out or the connection has ended, it is put aside for good: a late
//! answer would be taken for the answer to the next question, and "the lock is yours" is not a thing to read by mistake.
//!
//! # Statements
//!
//! All go over the text protocol, in batches, values as hexadecimal literals (see `sql`). Every result set of a batch is
//! read to its end: the crate drops errors of the second and later statements with a result that nobody reads.
//!
//! # Privacy
//!
//! TLS is rustls with ring. The crate trusts Mozilla's root certificates *in addition to* the CA file: a private CA adds
//! trust, and is no pin. Without TLS, `caching_sha2_password` asks the server for its RSA key and believes the answer, so
//! that somebody in between could take the password: `check` warns about TCP without TLS to another host.

mod connect;
mod error;
mod inspect;
mod schema;
pub(crate) mod sql;
mod tables;

use super::{Client, DatabaseError, DatabaseFailure, Server};
use crate::deadline::Deadline;
use crate::ledger::CopyKey;
use error::Standing;
use mysql::prelude::{FromValue, Queryable};
use mysql::{Conn, Row};
use std::fmt;
use std::time::Duration;
use tracing::{debug, warn};

/// Which of the two it is. They differ in a handful of places, each of which asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Product {
    /// Oracle's MySQL, Percona Server.
    Mysql,
    /// MariaDB.
    Mariadb,
}

/// A connection to MySQL or MariaDB.
pub struct MysqlDatabase {
    connection: Conn,
    /// Why the connection is of no further use, once it is.
    lost: Option<String>,
    deadline: Deadline,
    product: Product,
    /// As the server gives it: `11.8.6-MariaDB-0+deb13u1`.
    version: String,
    /// The longest packet that the server takes in this session, in bytes.
    max_allowed_packet: usize,
    /// Whether what is sent can be read on its way to another host.
    in_clear: bool,
    /// The copies last journalled: whoever holds the lock has most likely journalled one of them too.
    journalled: Vec<CopyKey>,
    round_trips: u32,
}

/// Without the connection, whose own form shows the password.
impl fmt::Debug for MysqlDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlDatabase")
            .field("version", &self.version)
            .field("session", &self.connection.connection_id())
            .field("lost", &self.lost)
            .finish_non_exhaustive()
    }
}

/// What one statement answered: its rows, and none for a statement that gives none.
pub(crate) type Answer = Vec<Row>;

impl MysqlDatabase {
    /// Connects, and sets the session up: two round trips, one more for TLS, and one or two for some forms of
    /// authentication. Every wait ends by `deadline`, except for the resolver's.
    ///
    /// # Errors
    /// [`DatabaseError`]: unreachable, access denied, no such database ([`DatabaseFailure::Schema`]), out of time, or a CA
    /// file that cannot be read ([`DatabaseFailure::Local`]).
    pub fn connect(server: &Server, client: &Client, deadline: Deadline) -> Result<Self, DatabaseError> {
        let connection = connect::open(server, client, deadline)?;
        let mut database = Self {
            connection,
            lost: None,
            deadline,
            product: Product::Mysql,
            version: String::new(),
            max_allowed_packet: 0,
            in_clear: connect::in_clear(server),
            journalled: Vec::new(),
            round_trips: 0,
        };
        database.set_session_up()?;
        Ok(database)
    }

    /// - `SET NAMES`: what `init_connect` or `skip-character-set-client-handshake` made of the character set that was asked
    ///   for on connecting, the server would put a question mark for each character of a mailbox's name that it has not.
    /// - READ COMMITTED: what a statement does not change, it does not lock; and no read view outlives its statement.
    /// - `autocommit`: the look and the journal are transactions of their own.
    /// - strict: what does not fit is an error, never cut.
    /// - `sql_select_limit`: of what is asked for, all rows come. `completion_type`: after a COMMIT, no transaction is open.
    /// - waits for row locks and metadata locks end within the deadline. A row lock is another delivery's record, which
    ///   takes milliseconds: ten seconds is a fault, and worth a try anew.
    /// - `wait_timeout`: an idle session outlives the deadline by a minute and no more, so that the server frees the lock
    ///   of a host that vanished without a FIN, hours before its own default or TCP's keepalive would.
    /// - `time_zone`: nothing here depends on it, and nothing shall.
    fn set_session_up(&mut self) -> Result<(), DatabaseError> {
        let doing = "setting the database session up";
        let left = self.deadline.remaining().as_secs().max(1);
        let (row_lock_wait, idle) = (left.min(10), left + 60);
        let batch = format!(
            "SET NAMES utf8mb4; \
             SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
             SET SESSION autocommit = 1, time_zone = '+00:00', \
             sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION', \
             innodb_lock_wait_timeout = {row_lock_wait}, lock_wait_timeout = {left}, wait_timeout = {idle}, \
             sql_select_limit = 18446744073709551615, completion_type = 0; \
             SELECT VERSION(), @@max_allowed_packet"
        );
        let answers = self.run(doing, &batch, 4)?;
        let row = only_row(&answers, doing)?;
        self.version = column(row, 0, doing)?;
        self.max_allowed_packet = column(row, 1, doing)?;
        self.product =
            if self.version.to_ascii_lowercase().contains("mariadb") { Product::Mariadb } else { Product::Mysql };
        Ok(())
    }

    /// Which of the two it is.
    pub(crate) fn product(&self) -> Product {
        self.product
    }

    /// What is left of the deadline that the connection was opened with.
    pub(crate) fn remaining(&self) -> Duration {
        self.deadline.remaining()
    }

    /// The longest packet that the server takes, in bytes.
    pub(crate) fn max_allowed_packet(&self) -> usize {
        self.max_allowed_packet
    }

    /// The copies last journalled over this connection.
    pub(crate) fn journalled(&self) -> &[CopyKey] {
        &self.journalled
    }

    /// Remembers the copies just journalled.
    pub(crate) fn remember_journalled(&mut self, copies: Vec<CopyKey>) {
        self.journalled = copies;
    }

    /// Runs a batch of statements in one round trip, and gives what each of them answered. The server runs none after one
    /// that failed.
    ///
    /// # Errors
    /// The first error of any of them; or that the server answered more or fewer than there are statements.
    pub(crate) fn run(&mut self, doing: &str, batch: &str, statements: usize) -> Result<Vec<Answer>, DatabaseError> {
        self.usable(doing)?;
        self.round_trips += 1;
        let answers = read_every_result_set(&mut self.connection, batch).map_err(|error| self.failed(doing, &error))?;
        if answers.len() == statements {
            return Ok(answers);
        }
        Err(DatabaseError::new(
            DatabaseFailure::Other,
            doing,
            format!("{} answers to {statements} statements", answers.len()),
        ))
    }

    /// Runs one statement that bears a single value too large to be doubled into a hexadecimal literal, as a prepared
    /// statement: two round trips.
    pub(crate) fn run_with_bytes(&mut self, doing: &str, statement: &str, value: &[u8]) -> Result<(), DatabaseError> {
        self.usable(doing)?;
        self.round_trips += 2;
        // `exec_drop` drops the errors of later result sets; an INSERT has one, and its error is returned.
        self.connection.exec_drop(statement, (value,)).map_err(|error| self.failed(doing, &error))
    }

    /// Does a piece of work that the server may abort for the sake of another's (a deadlock, a lock wait), again and again
    /// until it is through or the deadline has come. What was begun is rolled back on every failure, since MySQL rolls
    /// back a whole transaction on a deadlock and only the statement on a lock wait. The named lock stays: it belongs to
    /// the session.
    pub(crate) fn retrying<T>(
        &mut self,
        mut work: impl FnMut(&mut Self) -> Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        let mut pause = Duration::from_millis(5);
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
            if !error.trying_again_at_once_can_help() || self.remaining() <= pause {
                return Err(error);
            }
            debug!(%error, "trying again");
            // Two that collided must not collide in step: connection ids tell them apart.
            let stagger = Duration::from_millis(u64::from(self.connection.connection_id() % 7));
            std::thread::sleep((pause + stagger).min(self.remaining()));
            pause = (pause * 2).min(Duration::from_millis(200));
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
        let (error, standing) = error::standing(doing, error);
        if standing == Standing::Lost {
            warn!(%error, "the database connection is lost, and any lock with it");
            self.lost = Some(error.to_string());
        }
        error
    }
}

fn read_every_result_set(connection: &mut Conn, batch: &str) -> Result<Vec<Answer>, mysql::Error> {
    let mut result = connection.query_iter(batch)?;
    let mut answers = Vec::new();
    while let Some(set) = result.iter() {
        answers.push(set.collect::<Result<Answer, mysql::Error>>()?);
    }
    Ok(answers)
}

/// The only row of the last answer.
pub(crate) fn only_row<'a>(answers: &'a [Answer], doing: &str) -> Result<&'a Row, DatabaseError> {
    match answers.last().map(Vec::as_slice) {
        Some([row]) => Ok(row),
        _ => Err(DatabaseError::new(DatabaseFailure::Other, doing, "the server did not answer with one row")),
    }
}

/// A column of a row. What may be NULL is read as an `Option`: the crate's own shortcut panics on NULL.
pub(crate) fn column<T: FromValue>(row: &Row, index: usize, doing: &str) -> Result<T, DatabaseError> {
    match row.get_opt(index) {
        Some(Ok(value)) => Ok(value),
        Some(Err(_)) | None => Err(DatabaseError::new(
            DatabaseFailure::Other,
            doing,
            format!("column {} of the answer is not what it should be", index + 1),
        )),
    }
}

/// A column of 16 or 32 bytes.
pub(crate) fn bytes_column<const N: usize>(row: &Row, index: usize, doing: &str) -> Result<[u8; N], DatabaseError> {
    let bytes: Vec<u8> = column(row, index, doing)?;
    let length = bytes.len();
    bytes.try_into().map_err(|_| {
        DatabaseError::new(
            DatabaseFailure::Other,
            doing,
            format!("column {} of the answer has {length} bytes instead of {N}", index + 1),
        )
    })
}
