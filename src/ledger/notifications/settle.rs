//! Records the results of attempts, and the state of their subscriptions afterwards.

use super::{Next, Settlement, StateChange, later, now};
use crate::database::{DatabaseError, Dialect, Row, Value};
use crate::ledger::Database;
use std::fmt::Write;
use uuid::Uuid;

/// A statement, and its values.
type Statement<'a> = (String, Vec<Value<'a>>);

/// See [`Notifications::settle`](super::Notifications::settle).
pub(super) fn settle(database: &mut dyn Database, settlements: &[Settlement<'_>]) -> Result<Vec<Uuid>, DatabaseError> {
    let dialect = database.dialect();
    let statements: Vec<Statement<'_>> = settlements.iter().flat_map(|one| statements(dialect, one)).collect();
    let statements: Vec<_> = statements.iter().map(|(sql, values)| (sql.as_str(), values.as_slice())).collect();
    let rows = database.execute_together("settling notifications", &statements)?;
    let ours = rows.iter().map(Row::read).collect::<Result<Vec<Option<Uuid>>, _>>()?;
    Ok(settlements.iter().map(|one| one.subscription).filter(|id| !ours.contains(&Some(*id))).collect())
}

/// The first of these statements returns the subscription's id if we still have its lease.
fn statements<'a>(dialect: Dialect, settlement: &'a Settlement<'_>) -> Vec<Statement<'a>> {
    let (subscription, by) = (Value::Uuid(settlement.subscription), Value::Uuid(settlement.by));
    let now = now(dialect);
    let locked = format!(
        "SELECT CASE WHEN leased_by = ? THEN {} END FROM subscription_queues WHERE subscription = ? FOR UPDATE",
        dialect.uuid("subscription")
    );
    let mut statements = vec![(locked, vec![by, subscription])];
    statements.extend(of_tries(dialect, settlement));
    if let Some(state) = settlement.state {
        let (set, reason) = match state {
            StateChange::Verified => (format!("state = 'active', verified_at = {now}"), Value::Null),
            StateChange::Disabled(why) => ("state = 'disabled'".into(), Value::Text(why)),
        };
        let change = format!(
            "UPDATE subscriptions SET {set}, state_reason = ?, updated_at = {now} \
             WHERE id = ? AND state IN ('unverified', 'active') AND callback_url = ? \
             AND EXISTS (SELECT 1 FROM subscription_queues q WHERE q.subscription = ? AND q.leased_by = ?)"
        );
        statements.push((change, vec![reason, subscription, Value::Text(settlement.callback), subscription, by]));
    }
    statements.push(queue(dialect, settlement));
    statements
}

/// Records the attempts, and changes their notifications.
fn of_tries<'a>(dialect: Dialect, settlement: &'a Settlement<'_>) -> Vec<Statement<'a>> {
    let (subscription, now) = (Value::Uuid(settlement.subscription), now(dialect));
    let (mut rows, mut attempt, mut changes, mut done) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for one in settlement.attempts {
        let Some(position) = one.position else { continue };
        let (status, outcome) = (Value::optional_number(one.status), Value::Text(&one.outcome));
        let (next_at, given_up_at) = match one.next {
            Next::Again(wait) => (later(dialect, wait), "NULL"),
            Next::GivenUp => ("NULL".into(), now),
            Next::Done => ("NULL".into(), "NULL"),
        };
        rows.push(format!("(?, {position}, ?, ?, ?, ?, ?, ?, {next_at})"));
        attempt.extend([
            subscription,
            Value::Moment(one.started_at),
            Value::Text(settlement.host),
            Value::Integer(i32::try_from(one.took.as_millis()).unwrap_or(i32::MAX).into()),
            status,
            outcome,
            Value::optional_text(one.response.as_deref()),
        ]);
        if one.next == Next::Done {
            done.push((position, one.due_at));
            continue;
        }
        let change = format!(
            "UPDATE notifications SET tries = tries + 1, due_at = {next_at}, last_status = ?, last_error = ?, given_up_at = {given_up_at} \
             WHERE subscription = ? AND event = {position} AND {}",
            as_taken(dialect, &[(position, one.due_at)])
        );
        changes.push((change, vec![status, outcome, subscription]));
    }
    let mut statements = Vec::new();
    // All attempts are in one statement, which is planned once. If the reply to an earlier COMMIT was lost, the rows exist already.
    if !rows.is_empty() {
        let insert = dialect.insert_new(&format!(
            "notification_attempts (subscription, event, started_at, host, milliseconds, status, outcome, response, next_at) VALUES {}",
            rows.join(", ")
        ));
        statements.push((insert, attempt));
    }
    statements.extend(changes);
    if !done.is_empty() {
        let delete = format!(
            "DELETE FROM notifications WHERE subscription = ? AND event IN ({}) AND ({} OR due_at IS NULL)",
            dialect.list(done.iter().map(|(position, _)| Value::Integer(*position))),
            as_taken(dialect, &done)
        );
        statements.push((delete, vec![subscription]));
    }
    statements
}

/// Whether `notifications.due_at` is still the same as when these were read. The comparison is one of numbers, with CASE, so that
/// no engine uses an index on it: the rows are found by their key.
fn as_taken(dialect: Dialect, read: &[(i64, i64)]) -> String {
    let mut was = format!("{} = CASE event", dialect.microseconds("due_at"));
    for (position, due_at) in read {
        let _ = write!(was, " WHEN {position} THEN {due_at}");
    }
    was + " END"
}

/// Updates the row of `subscription_queues`: when it is due next, its lease, and the health of its receiver.
fn queue<'a>(dialect: Dialect, settlement: &'a Settlement<'_>) -> Statement<'a> {
    let Settlement { lease, open_for, idle, in_order, alone, failures, .. } = settlement;
    let (subscription, by, now) = (Value::Uuid(settlement.subscription), Value::Uuid(settlement.by), now(dialect));
    let null = || "NULL".to_owned();
    let (mut set, mut values) = (Vec::new(), Vec::new());
    // For a min() in a statement that changes rows, MySQL would read all waiting rows.
    let order = if *in_order { "event" } else { "due_at" };
    let next = format!(
        "(SELECT due_at FROM notifications WHERE subscription = ? AND due_at IS NOT NULL ORDER BY {order} LIMIT 1)"
    );
    let paused_until = open_for.map_or_else(null, |wait| later(dialect, wait));
    match (idle, open_for, lease) {
        (true, _, _) => set.push("due_at = NULL".into()),
        // A leased row's `due_at` is not used. Left unchanged, it adds no entry to the index.
        (false, None, Some(_)) => {}
        (false, None, None) => {
            set.push(format!("due_at = {next}"));
            values.push(subscription);
        }
        // On MySQL, GREATEST is NULL if one of its arguments is.
        (false, Some(_), _) => {
            set.push(format!("due_at = COALESCE(GREATEST({next}, {paused_until}), {paused_until})"));
            values.push(subscription);
        }
    }
    match lease {
        Some(lease) => {
            set.push(format!("leased_by = ?, leased_until = {}", later(dialect, *lease)));
            values.push(by);
        }
        None => {
            let among = if *alone { "1" } else { "NULL" };
            set.push(format!("leased_by = NULL, leased_until = NULL, lease_limit = {among}"));
        }
    }
    set.push(format!(
        "failures = {failures}, failing_since = {}, paused_until = {paused_until}",
        failing_since(settlement, now)
    ));
    if settlement.attempts.iter().any(|one| one.next == Next::Done) {
        set.push(format!("last_success_at = {now}"));
    }
    if let Some(failed) = settlement.attempts.iter().rev().find(|one| one.next != Next::Done) {
        set.push(format!("last_failure_at = {now}, last_failure = ?"));
        values.push(Value::Text(&failed.outcome));
    }
    values.extend([subscription, by]);
    let update = format!("UPDATE subscription_queues SET {} WHERE subscription = ? AND leased_by = ?", set.join(", "));
    (update, values)
}

/// Since when the receiver fails. If it has accepted a notification among these attempts, or has answered its challenge, that is
/// now: an earlier series of failures has ended.
fn failing_since(settlement: &Settlement<'_>, now: &str) -> String {
    let is_taken = settlement.attempts.iter().any(|one| one.next == Next::Done);
    let is_verified = settlement.state == Some(&StateChange::Verified);
    match settlement.failures {
        0 => "NULL".into(),
        _ if is_taken || is_verified => now.into(),
        _ => format!("COALESCE(failing_since, {now})"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::WebhookAttempt;
    use super::*;
    use std::time::Duration;

    fn attempt(next: Next) -> WebhookAttempt {
        let outcome = if next == Next::Done { "answered 204" } else { "answered 500" }.to_owned();
        let response = None;
        let (started_at, took) = (0, Duration::ZERO);
        WebhookAttempt { position: Some(1), due_at: 0, started_at, took, status: None, outcome, response, next }
    }

    #[test]
    fn who_has_taken_anything_has_failed_since_then_and_no_longer() {
        let (again, done, given_up) = (Next::Again(Duration::ZERO), Next::Done, Next::GivenUp);
        let (never, new, kept) = ("NULL", "now()", "COALESCE(failing_since, now())");
        let (verified, disabled) = (StateChange::Verified, StateChange::Disabled("gone".into()));
        for (failures, attempts, state, since) in [
            (0, &[done][..], None, never),
            (0, &[again, done], None, never),
            (1, &[again], None, kept),
            (2, &[again, given_up], Some(&disabled), kept),
            (1, &[done, again], None, new),
            // The attempts are in the order of their responses: the response to an earlier request may come later.
            (1, &[again, done, given_up], None, new),
            (1, &[again], Some(&verified), new),
        ] {
            let attempts: Vec<WebhookAttempt> = attempts.iter().copied().map(attempt).collect();
            let settlement = Settlement {
                subscription: Uuid::nil(),
                in_order: false,
                by: Uuid::nil(),
                lease: None,
                host: "mx1",
                attempts: &attempts,
                failures,
                open_for: None,
                state,
                callback: "",
                idle: false,
                alone: false,
            };
            let (shown, values) = queue(Dialect::Postgresql, &settlement);
            assert!(shown.contains(&format!("failing_since = {since},")), "{settlement:?}: {shown}");
            let (good, bad) =
                (attempts.iter().any(|one| one.next == done), attempts.iter().any(|one| one.next != done));
            assert_eq!(shown.contains(", last_success_at = now()"), good, "{shown}");
            assert_eq!(shown.contains(", last_failure_at = now(), last_failure = ?"), bad, "{shown}");
            assert_eq!(values.iter().any(|value| matches!(value, Value::Text("answered 500"))), bad);
            assert_eq!(shown.matches('?').count(), values.len());
        }
    }
}
