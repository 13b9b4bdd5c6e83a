//! How far behind subscribers are, for people.

use super::{SubscriptionState, if_readable, now};
use crate::base::timestamp;
use crate::database::{DatabaseError, Query, Value, columns_of, unreadable};
use crate::ledger::Database;
use serde::Serialize;
use uuid::Uuid;

const FAR_BEHIND: &str = "reading how far behind subscribers are";

/// How far behind all subscribers are.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Overview {
    /// Events not published yet, and how long the oldest has waited, in seconds.
    pub unpublished: u64,
    pub oldest_unpublished_s: Option<f64>,
    pub subscriptions: Vec<Behind>,
}

/// The figures for monitoring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct NotificationFigures {
    /// Events not published yet, and how long the oldest has waited, in seconds.
    pub(crate) unpublished: u64,
    pub(crate) oldest_unpublished_s: f64,
    /// Notifications to be sent, and notifications that were given up.
    pub(crate) pending: u64,
    pub(crate) given_up: u64,
    /// How late the longest due subscription is, in seconds, among those whose receivers do not pause. A subscription that is
    /// being served is due since its turn began.
    pub(crate) late_s: f64,
    /// Receivers that pause because they did not answer.
    pub(crate) resting: u64,
    pub(crate) disabled: u64,
}

columns_of! { NotificationFigures: unpublished, oldest_unpublished_s, pending, given_up, late_s, resting, disabled }

/// Reads the figures. `None` if there are no subscribers, as on an embedded site. Also `None` if the tables do not exist yet, or
/// if our role may not read them, as the role of deliveries.
///
/// # Errors
/// If the database does not answer.
pub(crate) fn figures(database: &mut dyn Database) -> Result<Option<NotificationFigures>, DatabaseError> {
    let (dialect, now) = (database.dialect(), now(database.dialect()));
    let late = |since| format!("GREATEST(COALESCE({}, 0), 0)", dialect.seconds_between(since, now));
    let sql = format!(
        "SELECT (SELECT count(*) FROM outbox), (SELECT {} FROM outbox), \
         (SELECT count(*) FROM notifications WHERE due_at IS NOT NULL), \
         (SELECT count(*) FROM notifications WHERE due_at IS NULL), \
         (SELECT {} FROM subscription_queues WHERE due_at <= {now}), \
         (SELECT count(*) FROM subscription_queues WHERE paused_until > {now}), \
         (SELECT count(*) FROM subscriptions WHERE state = 'disabled')",
        late("min(created_at)"),
        late("min(due_at)"),
    );
    let tables = "outbox notifications subscription_queues subscriptions";
    Ok(if_readable(database, tables, |database| database.query_first(FAR_BEHIND, &sql, &[]))?.flatten())
}

/// The figures at the top of the web UI.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AtAGlance {
    /// How long ago the oldest event happened that is still to be sent to an active subscription, in seconds.
    pub(crate) behind_s: Option<f64>,
    /// Subscriptions that were disabled.
    pub(crate) disabled: u64,
    /// Notifications that were given up since the requested moment.
    pub(crate) given_up: u64,
}

columns_of! { AtAGlance: behind_s, disabled, given_up }

/// Reads these figures, counting what was given up since `since`. `None` if there are no subscriptions, or if our role may not
/// read them.
///
/// # Errors
/// If the database does not answer.
pub(crate) fn at_a_glance(database: &mut dyn Database, since: i64) -> Result<Option<AtAGlance>, DatabaseError> {
    let (dialect, now) = (database.dialect(), now(database.dialect()));
    let sql = format!(
        "SELECT (SELECT count(*) FROM subscriptions), \
         (SELECT {} FROM (SELECT {OLDEST} AS oldest FROM subscriptions s WHERE s.state = 'active') t), \
         (SELECT count(*) FROM subscriptions WHERE state = 'disabled'), \
         (SELECT count(*) FROM notifications WHERE given_up_at >= ?)",
        dialect.seconds_between("min(t.oldest)", now),
    );
    let (tables, moments) = ("events notifications subscriptions", [Value::Moment(since)]);
    let read = if_readable(database, tables, |database| database.query_first(FAR_BEHIND, &sql, &moments))?;
    Ok(read.flatten().and_then(|(subscriptions, glance): (u64, AtAGlance)| (subscriptions > 0).then_some(glance)))
}

/// How far behind a subscription is.
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

columns_of! { Behind: subscription, owner, resource, resource_id, callback_url, state, reason, progress }

/// The progress of a subscription.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Progress {
    /// Notifications to be sent, and notifications that were given up.
    pub pending: u64,
    pub given_up: u64,
    /// How long ago the oldest event happened that is still to be sent, in seconds.
    pub behind_s: Option<f64>,
    /// How many tries in a row have failed, and since when.
    pub failures: u32,
    #[serde(serialize_with = "timestamp::serialize_optional")]
    pub failing_since: Option<i64>,
    /// How long its receiver still pauses, in seconds, and until when.
    pub rests_s: Option<f64>,
    #[serde(serialize_with = "timestamp::serialize_optional")]
    pub resting_until: Option<i64>,
    /// How long ago a receiver last accepted a notification, in seconds.
    pub last_success_ago_s: Option<f64>,
    /// The error of the last try, if it failed, and how long ago that was, in seconds.
    pub last_failure: Option<String>,
    pub last_failure_ago_s: Option<f64>,
}

columns_of! { Progress:
    pending, given_up, behind_s, failures, failing_since, rests_s, resting_until, last_success_ago_s, last_failure,
    last_failure_ago_s
}

/// When the oldest event happened that is still to be sent to the subscription `s`. The search is by position, which is in the
/// table's key; the time is not.
const OLDEST: &str = "(SELECT e.created_at FROM notifications n JOIN events e ON e.position = n.event \
                      WHERE n.subscription = s.id AND n.due_at IS NOT NULL ORDER BY n.event LIMIT 1)";

impl Progress {
    /// The columns from `s`, a row of `subscriptions`, and `q`, its row of `subscription_queues`, if there is one.
    pub(in crate::ledger) fn columns(database: &dyn Database) -> String {
        let (dialect, now) = (database.dialect(), now(database.dialect()));
        let of = |due: &str| {
            format!("(SELECT count(*) FROM notifications n WHERE n.subscription = s.id AND n.due_at IS {due})")
        };
        let resting = |what: String| format!("CASE WHEN q.paused_until > {now} THEN {what} END");
        format!(
            "{}, {}, {}, coalesce(q.failures, 0), {}, {}, {}, {}, \
             CASE WHEN q.failures > 0 THEN q.last_failure END, CASE WHEN q.failures > 0 THEN {} END",
            of("NOT NULL"),
            of("NULL"),
            dialect.seconds_between(OLDEST, now),
            dialect.microseconds("q.failing_since"),
            resting(dialect.seconds_between(now, "q.paused_until")),
            resting(dialect.microseconds("q.paused_until")),
            dialect.seconds_between("q.last_success_at", now),
            dialect.seconds_between("q.last_failure_at", now),
        )
    }
}

/// Reads how far behind all subscribers are.
///
/// # Errors
/// If the database does not answer.
pub(crate) fn overview(database: &mut dyn Database) -> Result<Overview, DatabaseError> {
    let (doing, dialect) = (FAR_BEHIND, database.dialect());
    let outbox = format!("SELECT count(*), {} FROM outbox", dialect.seconds_between("min(created_at)", now(dialect)));
    let outbox = database.query_first(doing, &outbox, &[])?;
    let (unpublished, oldest_unpublished_s) = outbox.ok_or_else(|| unreadable("an answer without a row".into()))?;
    let subscriptions = format!(
        "SELECT {}, s.owner, s.resource, s.resource_id, s.callback_url, s.state, s.state_reason, {} \
         FROM subscriptions s LEFT JOIN subscription_queues q ON q.subscription = s.id ORDER BY s.owner, s.id",
        dialect.uuid("s.id"),
        Progress::columns(database),
    );
    Ok(Overview { unpublished, oldest_unpublished_s, subscriptions: database.query(doing, &subscriptions, &[])? })
}
