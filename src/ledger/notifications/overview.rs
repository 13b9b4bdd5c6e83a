//! How far behind subscribers are, for people.

use super::{SubscriptionState, if_readable, now, seconds, uuid};
use crate::base::timestamp;
use crate::database::{DatabaseError, Row, Value};
use crate::ledger::{Database, columns};
use serde::Serialize;
use uuid::Uuid;

const FAR_BEHIND: &str = "reading how far behind subscribers are";

/// How far behind all of it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Overview {
    /// Events that nobody has published yet, and since when the oldest waits, in seconds.
    pub unpublished: u64,
    pub oldest_unpublished_s: Option<f64>,
    pub subscriptions: Vec<Behind>,
}

/// The same in figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Figures {
    /// Events that nobody has published yet, and since when the oldest waits.
    pub(crate) unpublished: u64,
    pub(crate) oldest_unpublished_s: f64,
    /// Notifications that are to be told, and those that were given up.
    pub(crate) pending: u64,
    pub(crate) given_up: u64,
    /// By how much the subscription that is due for longest is late, of those whose receivers do not rest. One that is served is due
    /// since its turn began.
    pub(crate) late_s: f64,
    /// Receivers that rest, since they did not answer.
    pub(crate) resting: u64,
    pub(crate) disabled: u64,
}

/// Reads them. `None` where there are no subscribers, as on an embedded site; where the tables are not there yet; and where our role
/// may not see them, as that of deliveries.
///
/// # Errors
/// Where they cannot be read.
pub(crate) fn figures(database: &mut dyn Database) -> Result<Option<Figures>, DatabaseError> {
    let (dialect, now) = (database.dialect(), now(database.dialect()));
    let sql = format!(
        "SELECT (SELECT count(*) FROM outbox), (SELECT {} FROM outbox), \
         (SELECT count(*) FROM notifications WHERE due_at IS NOT NULL), \
         (SELECT count(*) FROM notifications WHERE due_at IS NULL), \
         (SELECT {} FROM subscription_queues WHERE due_at <= {now}), \
         (SELECT count(*) FROM subscription_queues WHERE open_until > {now}), \
         (SELECT count(*) FROM subscriptions WHERE state = 'disabled')",
        dialect.seconds_between("min(created_at)", now),
        dialect.seconds_between("min(due_at)", now),
    );
    let tables = "outbox notifications subscription_queues subscriptions";
    let rows = if_readable(database, tables, |database| database.select(FAR_BEHIND, &sql, &[]))?.unwrap_or_default();
    let Some(row) = rows.first() else { return Ok(None) };
    let span = |at| Ok::<_, DatabaseError>(seconds(row, at)?.map_or(0.0, |span| span.as_secs_f64()));
    Ok(Some(Figures {
        unpublished: columns::number(row, 0)?,
        oldest_unpublished_s: span(1)?,
        pending: columns::number(row, 2)?,
        given_up: columns::number(row, 3)?,
        late_s: span(4)?,
        resting: columns::number(row, 5)?,
        disabled: columns::number(row, 6)?,
    }))
}

/// What stands above everything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AtAGlance {
    /// How long ago the oldest event happened that is still to be told to somebody, of those who are told.
    pub(crate) behind_s: Option<f64>,
    /// Subscriptions that were disabled.
    pub(crate) disabled: u64,
    /// Notifications that were given up of late.
    pub(crate) given_up: u64,
}

/// Reads it, with what was given up since a moment. `None` where nobody is subscribed, and where our role may not see it.
///
/// # Errors
/// Where it cannot be read.
pub(crate) fn at_a_glance(database: &mut dyn Database, since: i64) -> Result<Option<AtAGlance>, DatabaseError> {
    let (dialect, now) = (database.dialect(), now(database.dialect()));
    let sql = format!(
        "SELECT (SELECT count(*) FROM subscriptions), (SELECT count(*) FROM subscriptions WHERE state = 'disabled'), \
         (SELECT count(*) FROM notifications WHERE failed_at >= ?), \
         (SELECT {} FROM (SELECT {OLDEST} AS oldest FROM subscriptions s WHERE s.state = 'active') t)",
        dialect.seconds_between("min(t.oldest)", now),
    );
    let (tables, moments) = ("events notifications subscriptions", [Value::Moment(since)]);
    let read = if_readable(database, tables, |database| database.select(FAR_BEHIND, &sql, &moments))?;
    let rows = read.unwrap_or_default();
    let Some(row) = rows.first().filter(|row| row.text(0) != Some("0")) else { return Ok(None) };
    Ok(Some(AtAGlance {
        behind_s: seconds(row, 3)?.map(|span| span.as_secs_f64()),
        disabled: columns::number(row, 1)?,
        given_up: columns::number(row, 2)?,
    }))
}

/// How far behind a subscriber is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Behind {
    pub subscription: Uuid,
    pub owner: String,
    pub resource: String,
    pub resource_id: String,
    pub callback_url: String,
    pub state: SubscriptionState,
    pub reason: Option<String>,
    #[serde(flatten)]
    pub progress: Progress,
}

/// How it goes with a subscriber.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Progress {
    /// Notifications that are to be told, and those that were given up.
    pub pending: u64,
    pub given_up: u64,
    /// How long ago the oldest happened that is still to be told, in seconds.
    pub behind_s: Option<f64>,
    /// Tries that have failed in a row, and since when.
    pub failures: u32,
    #[serde(serialize_with = "timestamp::serialize_optional")]
    pub failing_since: Option<i64>,
    /// How long its receiver rests still, in seconds.
    pub rests_s: Option<f64>,
    /// How long ago a receiver has taken something, in seconds.
    pub last_success_ago_s: Option<f64>,
    /// What was amiss with the last try, where it failed, and how long ago that was, in seconds.
    pub last_failure: Option<String>,
    pub last_failure_ago_s: Option<f64>,
}

/// When the oldest event happened that is still to be told to the subscription `s`. It is found by its place in the table's key, which
/// a filter on its moment would not be.
const OLDEST: &str = "(SELECT e.created_at FROM notifications n JOIN events e ON e.position = n.event \
                      WHERE n.subscription = s.id AND n.due_at IS NOT NULL ORDER BY n.event LIMIT 1)";

impl Progress {
    /// Its columns, of `s`, a row of `subscriptions`, and `q`, that of `subscription_queues`, if there is one.
    pub(in crate::ledger) fn columns(database: &dyn Database) -> String {
        let (dialect, now) = (database.dialect(), now(database.dialect()));
        let of = |due: &str| {
            format!("(SELECT count(*) FROM notifications n WHERE n.subscription = s.id AND n.due_at IS {due})")
        };
        format!(
            "{}, {}, {}, coalesce(q.failures, 0), {}, CASE WHEN q.open_until > {now} THEN {} END, {}, \
             CASE WHEN q.failures > 0 THEN q.last_failure END, CASE WHEN q.failures > 0 THEN {} END",
            of("NOT NULL"),
            of("NULL"),
            dialect.seconds_between(OLDEST, now),
            dialect.microseconds("q.failing_since"),
            dialect.seconds_between(now, "q.open_until"),
            dialect.seconds_between("q.last_success_at", now),
            dialect.seconds_between("q.last_failure_at", now),
        )
    }

    /// Reads them, from this column on.
    pub(in crate::ledger) fn of(row: &Row, first: usize) -> Result<Self, DatabaseError> {
        let span = |at| Ok::<_, DatabaseError>(seconds(row, at)?.map(|span| span.as_secs_f64()));
        Ok(Self {
            pending: columns::number(row, first)?,
            given_up: columns::number(row, first + 1)?,
            behind_s: span(first + 2)?,
            failures: columns::number(row, first + 3)?,
            failing_since: row.value(first + 4)?,
            rests_s: span(first + 5)?,
            last_success_ago_s: span(first + 6)?,
            last_failure: columns::optional(row, first + 7),
            last_failure_ago_s: span(first + 8)?,
        })
    }
}

/// Reads it.
///
/// # Errors
/// Where it cannot be read.
pub(crate) fn overview(database: &mut dyn Database) -> Result<Overview, DatabaseError> {
    let (doing, dialect) = (FAR_BEHIND, database.dialect());
    let outbox = format!("SELECT count(*), {} FROM outbox", dialect.seconds_between("min(created_at)", now(dialect)));
    let outbox = database.select(doing, &outbox, &[])?;
    let oldest = outbox.first().map(|row| seconds(row, 1)).transpose()?.flatten();
    let subscriptions = format!(
        "SELECT {}, s.owner, s.resource, s.resource_id, s.callback_url, s.state, s.state_reason, {} \
         FROM subscriptions s LEFT JOIN subscription_queues q ON q.subscription = s.id ORDER BY s.owner, s.id",
        dialect.uuid("s.id"),
        Progress::columns(database),
    );
    let rows = database.select(doing, &subscriptions, &[])?;
    let behind = rows.iter().map(|row| {
        Ok(Behind {
            subscription: uuid(row, 0)?,
            owner: columns::owned(row, 1)?,
            resource: columns::owned(row, 2)?,
            resource_id: columns::owned(row, 3)?,
            callback_url: columns::owned(row, 4)?,
            state: SubscriptionState::of(row, 5)?,
            reason: columns::optional(row, 6),
            progress: Progress::of(row, 7)?,
        })
    });
    Ok(Overview {
        unpublished: columns::only_number(&outbox)?,
        oldest_unpublished_s: oldest.map(|span| span.as_secs_f64()),
        subscriptions: behind.collect::<Result<_, DatabaseError>>()?,
    })
}
