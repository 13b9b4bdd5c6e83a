//! Publishes events, and leases subscriptions.

use super::{
    Choice, Due, Leased, MessageDetail, Notifications, PUBLISHED_AT_ONCE, Published, READ_OF_HEADERS, Settlement, Wake,
    earlier, event_columns, later, matches, now, settle,
};
use crate::database::{DatabaseError, Dialect, Query, Row, UnlockedChange, Value};
use crate::ledger::Database;
use crate::lock::{Acquired, LockName};
use std::time::Duration;
use uuid::Uuid;

const PUBLISHING: &str = "publishing events";
const LEASING: &str = "leasing subscriptions";

/// The column of [`Due`] with the time since when it is due.
const DUE_AT: usize = 18;

/// For how long a subscription counts as changed lately, by the database's clock, as in `subscriptions.updated_at`.
const CHANGED_OF_LATE: Duration = Duration::from_mins(10);

/// The columns copied unchanged from `outbox` to `events`.
const COPIED: &str = "event, type, copy_key, identity, message_id, role, recipient, imap_user, mailbox, manner, attempt, queue_id, \
     subscription, host, diff, created_at";

impl Notifications for dyn Database + '_ {
    fn publish(&mut self, lock: &LockName, wake: Wake) -> Result<Published, DatabaseError> {
        match self.acquire(lock, Duration::ZERO)? {
            Acquired::Held => {}
            Acquired::Busy(_) => return Ok(Published::Busy),
        }
        match publish_under_lock(self, wake) {
            // The commit comes before the release, so the next holder of the lock sees what was published.
            Ok(published) => self.commit_and_release(lock).map(|()| published),
            Err(error) => match self.release(lock) {
                Ok(()) => Err(error),
                // The connection is gone, and the lock with it.
                Err(second) => Err(DatabaseError { detail: format!("{}; then, {second}", error.detail), ..error }),
            },
        }
    }

    fn has_unpublished(&mut self, after: i64) -> Result<bool, DatabaseError> {
        let first = "SELECT position FROM outbox WHERE position > ? ORDER BY position LIMIT 1";
        Ok(!self.select("looking for events", first, &[Value::Integer(after)])?.is_empty())
    }

    fn lease(
        &mut self,
        by: Uuid,
        lease: Duration,
        most: usize,
        served: &[&str],
        active_leases: usize,
    ) -> Result<Vec<Leased>, DatabaseError> {
        let choice = choice(self, most, served, active_leases)?;
        if choice.is_empty() {
            return Ok(Vec::new());
        }
        let dialect = self.dialect();
        let chosen = dialect.list(choice.subscriptions.iter().map(|(id, _)| Value::Uuid(*id)));
        let taken = UnlockedChange {
            table: "subscription_queues",
            key: "subscription",
            which: &format!("subscription IN ({chosen}) AND {}", is_to_be_leased(dialect)),
            set: &format!(
                "leased_by = {}, leased_until = {}, lease_limit = {}",
                dialect.literal(Value::Uuid(by)),
                later(dialect, lease),
                choice.among
            ),
        };
        let taken = self.change_unlocked(LEASING, &taken)?;
        let taken = taken.iter().map(Row::read).collect::<Result<Vec<Uuid>, _>>()?;
        if taken.is_empty() {
            return Ok(Vec::new());
        }
        let select = format!(
            "SELECT {} FROM subscription_queues q LEFT JOIN subscriptions s ON s.id = q.subscription WHERE q.subscription IN ({})",
            leased_columns(dialect),
            dialect.list(taken.into_iter().map(Value::Uuid))
        );
        let mut leased = self.query(LEASING, &select, &[])?;
        choice.note(&mut leased);
        Ok(leased)
    }

    fn lease_longer(&mut self, by: Uuid, lease: Duration, subscriptions: &[Uuid]) -> Result<Vec<Uuid>, DatabaseError> {
        if subscriptions.is_empty() {
            return Ok(Vec::new());
        }
        let (dialect, doing) = (self.dialect(), "leasing subscriptions for longer");
        let (now, until) = (now(dialect), later(dialect, lease));
        let whose = format!(
            "leased_by = {} AND subscription IN ({})",
            dialect.literal(Value::Uuid(by)),
            dialect.list(subscriptions.iter().map(|id| Value::Uuid(*id)))
        );
        self.change(doing, &format!("UPDATE subscription_queues SET leased_until = {until} WHERE {whose}"), &[])?;
        let ours = format!(
            "SELECT {} FROM subscription_queues WHERE {whose} AND leased_until > {now}",
            dialect.uuid("subscription")
        );
        let kept: Vec<Uuid> = self.query(doing, &ours, &[])?;
        Ok(subscriptions.iter().copied().filter(|id| !kept.contains(id)).collect())
    }

    fn due(&mut self, leased: &Leased, except: &[i64], most: usize) -> Result<Vec<Due>, DatabaseError> {
        let dialect = self.dialect();
        let except = match except {
            [] => String::new(),
            positions => {
                let positions = dialect.list(positions.iter().map(|position| Value::Integer(*position)));
                format!("AND n.event NOT IN ({positions})")
            }
        };
        let now = now(dialect);
        let (due, order) = if leased.in_order {
            ("n.due_at IS NOT NULL".to_owned(), "n.event")
        } else {
            (format!("n.due_at <= {now}"), "n.due_at, n.event")
        };
        let (columns, join) = if leased.full {
            let headers = format!("LEFT({}, {READ_OF_HEADERS})", dialect.text_of_json("m.headers"));
            (
                format!(", {}", MessageDetail::columns(dialect, &headers)),
                "LEFT JOIN messages m ON m.identity = e.identity",
            )
        } else {
            (String::new(), "")
        };
        let select = format!(
            "SELECT n.event, n.tries, {}, CASE WHEN n.due_at <= {now} THEN {} END{columns} \
             FROM notifications n JOIN events e ON e.position = n.event {join} \
             WHERE n.subscription = ? AND {due} {except} ORDER BY {order} LIMIT {most}",
            event_columns(dialect),
            dialect.microseconds("n.due_at"),
        );
        let rows = self.select("reading what is due", &select, &[Value::Uuid(leased.subscription)])?;
        // In order, everything behind a notification that has to wait also waits.
        rows.iter().take_while(|row| row.text(DUE_AT).is_some()).map(Row::read).collect()
    }

    fn settle(&mut self, settlements: &[Settlement<'_>]) -> Result<Vec<Uuid>, DatabaseError> {
        settle::settle(self, settlements)
    }
}

fn publish_under_lock(database: &mut dyn Database, wake: Wake) -> Result<Published, DatabaseError> {
    let dialect = database.dialect();
    let now = now(dialect);
    let oldest =
        format!("SELECT position, {} FROM outbox ORDER BY position LIMIT {PUBLISHED_AT_ONCE}", dialect.uuid("event"));
    let rows: Vec<(i64, Uuid)> = database.query(PUBLISHING, &oldest, &[])?;
    let published = Published::Events { count: rows.len(), last: rows.last().map_or(0, |(position, _)| *position) };
    let mut statements = Vec::new();
    if !rows.is_empty() {
        let positions = dialect.list(rows.iter().map(|(position, _)| Value::Integer(*position)));
        let events = dialect.list(rows.iter().map(|(_, event)| Value::Uuid(*event)));
        let matching = matches(dialect, &published_now(&events));
        statements.push(format!(
            "INSERT INTO events ({COPIED}, published_at) SELECT {COPIED}, {now} FROM outbox WHERE position IN ({positions}) \
             ORDER BY position"
        ));
        statements.push(dialect.insert_new(&format!(
            "notifications (subscription, event, due_at) SELECT m.id, m.position, {now} FROM ({matching}) m"
        )));
        // In a fixed order, so that two transactions that wake subscriptions do not deadlock.
        statements.push(format!(
            "INSERT INTO subscription_queues (subscription, due_at) \
             SELECT m.id, {now} FROM (SELECT DISTINCT a.id FROM ({matching}) a ORDER BY a.id) m {}",
            due_where(dialect, &format!("subscription_queues.due_at IS NULL OR subscription_queues.due_at > {now}"))
        ));
        statements.push(format!("DELETE FROM outbox WHERE position IN ({positions})"));
    }
    if let Some(these) = ought_to_be_served(dialect, wake) {
        statements.push(format!(
            "INSERT INTO subscription_queues (subscription, due_at) SELECT w.id, {now} FROM (SELECT s.id FROM subscriptions s \
             LEFT JOIN subscription_queues q ON q.subscription = s.id WHERE q.due_at IS NULL AND {these} ORDER BY s.id) w {}",
            due_where(dialect, "subscription_queues.due_at IS NULL")
        ));
    }
    if !statements.is_empty() {
        let statements: Vec<(&str, &[Value<'_>])> = statements.iter().map(|sql| (sql.as_str(), &[][..])).collect();
        database.execute_together(PUBLISHING, &statements)?;
    }
    Ok(published)
}

/// The conflict clause of an INSERT into `subscription_queues`. If `which` holds for the existing row, that row becomes due now,
/// or when the pause of its receiver ends.
fn due_where(dialect: Dialect, which: &str) -> String {
    let now = now(dialect);
    let due = format!("GREATEST({now}, COALESCE(subscription_queues.paused_until, {now}))");
    dialect.or_update_where("subscription_queues", "subscription", which, &[("due_at", &due)])
}

/// Limits the match to these events `e`, and to subscriptions `s` that existed when the events were recorded. Both times are the
/// database's.
fn published_now(events: &str) -> String {
    // COALESCE keeps PostgreSQL from using the index on the events' time, which would select a third of all events.
    format!("e.event IN ({events}) AND COALESCE(s.created_at <= e.created_at, FALSE)")
}

/// Selects the subscriptions `s` that have work: those not verified yet, and those with a due notification. `None`: no search is
/// needed.
fn ought_to_be_served(dialect: Dialect, wake: Wake) -> Option<String> {
    let now = now(dialect);
    let changed = match wake {
        Wake::Nobody => return None,
        Wake::Changed => {
            format!("(s.state = 'unverified' OR s.updated_at > {}) AND ", earlier(dialect, CHANGED_OF_LATE))
        }
        Wake::All => String::new(),
    };
    Some(format!(
        "{changed}s.state IN ('unverified', 'active') AND (s.expires_at IS NULL OR s.expires_at > {now}) \
         AND (s.state = 'unverified' OR EXISTS (SELECT 1 FROM notifications n \
         WHERE n.subscription = s.id AND n.due_at IS NOT NULL))"
    ))
}

/// Which rows of `subscription_queues` may be leased.
fn is_to_be_leased(dialect: Dialect) -> String {
    let now = now(dialect);
    format!("due_at <= {now} AND (leased_until IS NULL OR leased_until < {now})")
}

/// The subscriptions to lease next. Another notifier may lease them first.
fn choice(
    database: &mut dyn Database,
    most: usize,
    served: &[&str],
    active_leases: usize,
) -> Result<Choice, DatabaseError> {
    let dialect = database.dialect();
    let sql = format!(
        "SELECT {}, lease_limit FROM subscription_queues WHERE {}{} ORDER BY due_at LIMIT {most}",
        dialect.uuid("subscription"),
        is_to_be_leased(dialect),
        of_others(served.len()),
    );
    let values: Vec<Value<'_>> = served.iter().map(|owner| Value::Text(owner)).collect();
    Ok(Choice::of(database.query(LEASING, &sql, &values)?, active_leases))
}

/// The columns of [`Leased`], from `q`, a row of `subscription_queues`, and `s`, its row of `subscriptions`. A removed
/// subscription has no row `s`.
fn leased_columns(dialect: Dialect) -> String {
    let now = now(dialect);
    let ago = |moment| dialect.seconds_between(moment, now);
    format!(
        "{}, COALESCE(s.owner, ''), COALESCE(s.callback_url, ''), COALESCE(s.detail = 'full', FALSE), COALESCE(s.in_order, FALSE), \
         COALESCE(s.max_in_flight, 1), COALESCE(s.secret_generation, 0), {}, \
         CASE WHEN s.id IS NULL OR s.expires_at <= {now} THEN 'disabled' ELSE s.state END, COALESCE({}, 0), q.failures, COALESCE({}, 0)",
        dialect.uuid("q.subscription"),
        ago("s.secret_rotated_at"),
        ago("s.updated_at"),
        ago("q.failing_since"),
    )
}

/// A condition that excludes rows of `subscription_queues` with one of these owners. The row of a removed subscription has no
/// owner.
fn of_others(owners: usize) -> String {
    if owners == 0 {
        return String::new();
    }
    format!(
        " AND NOT EXISTS (SELECT 1 FROM subscriptions s WHERE s.id = subscription_queues.subscription AND s.owner IN ({}))",
        vec!["?"; owners].join(", ")
    )
}
