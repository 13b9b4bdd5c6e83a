//! Tables that a role may not read, and the values of rows.

use super::overview::Progress;
use super::{Choice, at_most_after, if_readable};
use crate::database::{DatabaseError, DatabaseFailure, Dialect, Row, Tables, UnlockedChange, Value};
use crate::ledger::check::rights;
use crate::ledger::tests::{Site, site};
use uuid::Uuid;

/// A server that answers each statement in this way.
struct Answering {
    dialect: Dialect,
    answer: Result<&'static str, DatabaseFailure>,
    site: Site,
}

impl Answering {
    fn with(&mut self, dialect: Dialect, answer: Result<&'static str, DatabaseFailure>) -> &mut Self {
        (self.dialect, self.answer) = (dialect, answer);
        self
    }
}

impl Tables for Answering {
    fn dialect(&self) -> Dialect {
        self.dialect
    }

    fn select(&mut self, doing: &str, _: &str, _: &[Value<'_>]) -> Result<Vec<Row>, DatabaseError> {
        let select = self.answer.map_err(|failure| DatabaseError::new(failure, doing, "no"))?;
        self.site.database.select(doing, select, &[])
    }

    fn change(&mut self, doing: &str, _: &str, _: &[Value<'_>]) -> Result<u64, DatabaseError> {
        self.select(doing, "", &[]).map(|rows| rows.len() as u64)
    }

    fn execute_together(&mut self, doing: &str, _: &[(&str, &[Value<'_>])]) -> Result<Vec<Row>, DatabaseError> {
        self.select(doing, "", &[])
    }

    fn change_unlocked(&mut self, doing: &str, _: &UnlockedChange<'_>) -> Result<Vec<Row>, DatabaseError> {
        self.select(doing, "", &[])
    }
}

fn answering() -> Answering {
    Answering { dialect: Dialect::Sqlite, answer: Ok("SELECT 1"), site: site() }
}

#[test]
fn where_a_role_may_not_read_or_nothing_is_there_to_be_read_there_is_no_answer_and_no_failure() {
    let mut server = answering();
    let read = |server: &mut Answering| {
        let rows = if_readable(server, "events", |server| server.select("reading", "", &[]));
        rows.map(|rows| rows.map(|rows| rows.len())).map_err(|error| error.failure)
    };
    for dialect in [Dialect::Postgresql, Dialect::Mysql, Dialect::Mariadb] {
        assert_eq!(read(server.with(dialect, Ok("SELECT 1"))), Ok(Some(1)), "{dialect:?}");
        for failure in [DatabaseFailure::TimedOut, DatabaseFailure::Other, DatabaseFailure::ConnectionLost] {
            assert_eq!(read(server.with(dialect, Err(failure))), Err(failure), "{dialect:?}");
        }
    }
    assert_eq!(read(server.with(Dialect::Sqlite, Ok("SELECT 1"))), Ok(None));
    // PostgreSQL reports in advance what the other engines report by refusing the statement.
    assert_eq!(read(server.with(Dialect::Postgresql, Ok("SELECT 0"))), Ok(None));
    for refused in [DatabaseFailure::AccessDenied, DatabaseFailure::Schema] {
        assert_eq!(read(server.with(Dialect::Mysql, Err(refused))), Ok(None));
    }
}

#[test]
fn a_right_is_missing_where_the_server_says_so_and_a_failure_is_none() {
    let mut server = answering();
    for (table, right) in
        [("events", "SELECT"), ("events", "INSERT"), ("outbox", "DELETE"), ("notifications", "UPDATE")]
    {
        let mut has = |dialect, answer| {
            rights::has(server.with(dialect, answer), table, right, &[]).map_err(|error| error.failure)
        };
        assert_eq!(has(Dialect::Postgresql, Ok("SELECT 1")), Ok(true));
        assert_eq!(has(Dialect::Postgresql, Ok("SELECT 0")), Ok(false));
        assert_eq!(has(Dialect::Mysql, Ok("SELECT 1 WHERE FALSE")), Ok(true));
        assert_eq!(has(Dialect::Mysql, Err(DatabaseFailure::AccessDenied)), Ok(false));
        let lost = Err(DatabaseFailure::ConnectionLost);
        assert_eq!(
            [has(Dialect::Postgresql, lost), has(Dialect::Mysql, lost)],
            [Err(DatabaseFailure::ConnectionLost); 2]
        );
    }
}

#[test]
fn how_far_behind_one_is_stands_in_columns_of_its_own() {
    let mut server = answering();
    let columns = "SELECT 'before', 10, 11, 12.5, 13, 14, 15.5, 16, 16.5, 'gone', 17.5";
    let rows = server.with(Dialect::Sqlite, Ok(columns)).select("reading", "", &[]).unwrap();
    let (_, progress): (String, Progress) = rows[0].read().unwrap();
    assert_eq!((progress.pending, progress.given_up, progress.behind_s), (10, 11, Some(12.5)));
    assert_eq!((progress.failures, progress.failing_since, progress.rests_s), (13, Some(14), Some(15.5)));
    assert_eq!((progress.resting_until, progress.last_success_ago_s), (Some(16), Some(16.5)));
    assert_eq!(progress.last_failure.as_deref(), Some("gone"));
    assert_eq!(progress.last_failure_ago_s, Some(17.5));
}

/// The subscriptions that are leased of those due, if earlier leases were not returned. Also the number that is recorded with the
/// leases.
#[test]
fn where_a_notifier_has_ended_half_as_many_are_leased_and_at_last_one_alone() {
    let choose = |ended: &[Option<u32>], active_leases| {
        let due = (1..).map(Uuid::from_u128).zip(ended.iter().copied()).collect();
        let Choice { subscriptions, among } = Choice::of(due, active_leases);
        (subscriptions.iter().map(|(id, _)| id.as_u128()).collect::<Vec<_>>(), among)
    };
    // No notifier has ended. A single leased subscription does not count as alone: others may be leased beside it.
    assert_eq!(choose(&[None, None], 5), (vec![1, 2], 7));
    assert_eq!(choose(&[None], 0), (vec![1], 2));
    assert_eq!(choose(&[], 0), (vec![], 2));
    // Subscriptions that a notifier has ended with come first, and are limited together with the present leases.
    assert_eq!(choose(&[None, Some(8), Some(8), Some(8)], 0), (vec![2, 3, 4, 1], 4));
    assert_eq!(choose(&[None, Some(8), Some(8), Some(8)], 2), (vec![2, 3], 4));
    assert_eq!(choose(&[Some(8); 3], 4).0, [0; 0]);
    assert_eq!(choose(&[Some(8), Some(4), Some(5)], 0), (vec![2, 3], 2));
    // After one alone, the next notifier also leases one alone.
    for (ended, among) in [(3, 1), (2, 1), (1, 0), (0, 0)] {
        assert_eq!(choose(&[None, Some(ended)], 0), (vec![2], among));
        assert_eq!(choose(&[None, Some(ended)], 1).0, [0; 0]);
    }
    // The number halves down to one, however many there were.
    let (mut ended, mut times) = (60, 0);
    while ended > 0 {
        assert_eq!(choose(&[Some(ended); 60], 0).0.len(), at_most_after(ended));
        (ended, times) = (choose(&[Some(ended); 60], 0).1, times + 1);
    }
    assert_eq!(times, 6);
}
