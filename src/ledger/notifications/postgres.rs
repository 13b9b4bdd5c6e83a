//! What the notifier reads and writes, on PostgreSQL. A batch outside of a transaction is one of its own (PostgreSQL manual, "Multiple
//! Statements in a Simple Query"), and each of its statements has a snapshot of its own.

use super::{
    COPIED, LEASING, Leased, Next, Notifications, PUBLISHED_AT_ONCE, Published, Settlement, Wake, as_taken, choice,
    is_to_be_leased, later, leased_columns, matches, ought_to_be_served, published_now, receiver,
};
use crate::database::postgres::{HEAR_OF_THE_COMMIT, PostgresDatabase, Transaction, literal};
use crate::database::{DatabaseError, Tables};
use crate::ledger::columns;
use crate::lock::{Acquired, LockName, NamedLock};
use std::time::Duration;
use uuid::Uuid;

const PUBLISHING: &str = "publishing events";

impl Notifications for PostgresDatabase {
    fn publish(&mut self, lock: &LockName, wake: Wake) -> Result<Published, DatabaseError> {
        // The lock is a transaction, and what is published goes with it.
        match self.acquire(lock, Duration::ZERO)? {
            Acquired::Held => {}
            Acquired::Busy(_) => return Ok(Published::Busy),
        }
        let published = match self.publish_under_lock(wake) {
            Ok(published) => published,
            Err(error) => return Err(self.roll_back_after(error)),
        };
        let committed = self.batch(PUBLISHING, &format!("{HEAR_OF_THE_COMMIT} COMMIT"));
        self.transaction = Transaction::None;
        committed?;
        self.replicated(PUBLISHING)?;
        Ok(published)
    }

    fn lease(
        &mut self,
        by: Uuid,
        lease: Duration,
        most: usize,
        served: &[&str],
        in_hand: usize,
    ) -> Result<Vec<Leased>, DatabaseError> {
        let choice = choice(self, most, served, in_hand)?;
        if choice.is_empty() {
            return Ok(Vec::new());
        }
        let until = later(self, lease);
        let ago = |moment: &str| format!("extract(epoch FROM now() - {moment})");
        let columns =
            leased_columns("replace(q.subscription::text, '-', '')", ago, |truth| format!("({truth})::int"), "now()");
        let taken = format!(
            "WITH due AS (SELECT subscription FROM subscription_queues WHERE subscription IN ({}) AND {} FOR UPDATE SKIP LOCKED), \
                  q AS (UPDATE subscription_queues u SET leased_by = {}, leased_until = {until}, leased_among = {} FROM due \
                        WHERE u.subscription = due.subscription RETURNING u.*) \
             SELECT {columns} FROM q LEFT JOIN subscriptions s ON s.id = q.subscription",
            choice.subscriptions.iter().map(|(id, _)| literal::uuid(*id)).collect::<Vec<_>>().join(", "),
            is_to_be_leased(self),
            literal::uuid(by),
            choice.among,
        );
        choice.leased(&self.change_and_read(LEASING, &taken)?)
    }

    fn settle(&mut self, settlements: &[Settlement<'_>]) -> Result<Vec<Uuid>, DatabaseError> {
        let doing = "settling notifications";
        let batch = settlements.iter().map(|one| self.settling(one)).collect::<Vec<_>>().join("; ");
        let answers = self.change_batch(doing, &batch)?;
        let ours = answers.rows().map(|row| row.value(doing, 0)).collect::<Result<Vec<_>, _>>()?;
        Ok(super::lost(settlements, &ours))
    }
}

impl PostgresDatabase {
    fn publish_under_lock(&mut self, wake: Wake) -> Result<Published, DatabaseError> {
        let oldest = format!(
            "SELECT position, replace(event::text, '-', '') FROM outbox ORDER BY position LIMIT {PUBLISHED_AT_ONCE}"
        );
        let rows = self.select(PUBLISHING, &oldest, &[])?;
        let mut statements = Vec::new();
        let positions: Vec<i64> = rows.iter().map(|row| columns::number(row, 0)).collect::<Result<_, _>>()?;
        let published = Published::Events { count: rows.len(), last: positions.last().copied().unwrap_or_default() };
        if !rows.is_empty() {
            let positions: Vec<String> = positions.iter().map(ToString::to_string).collect();
            let positions = positions.join(", ");
            let events =
                rows.iter().map(|row| super::uuid(row, 1).map(literal::uuid)).collect::<Result<Vec<_>, _>>()?;
            let matching = matches(self.dialect(), &published_now(&events.join(", ")));
            statements.push(format!(
                "INSERT INTO events ({COPIED}, published_at) SELECT {COPIED}, now() FROM outbox WHERE position IN ({positions}) \
                 ORDER BY position"
            ));
            // What is told is a subscription's, so that waking them takes their rows in one order.
            statements.push(format!(
                "WITH told AS (INSERT INTO notifications (subscription, event, due_at) {matching} ON CONFLICT DO NOTHING \
                 RETURNING subscription) \
                 INSERT INTO subscription_queues AS q (subscription, due_at) \
                 SELECT DISTINCT subscription, now() FROM told ORDER BY subscription \
                 ON CONFLICT (subscription) DO UPDATE SET due_at = GREATEST(now(), q.open_until) \
                 WHERE q.due_at IS NULL OR q.due_at > now()"
            ));
            statements.push(format!("DELETE FROM outbox WHERE position IN ({positions})"));
        }
        if let Some(these) = ought_to_be_served(self, wake) {
            statements.push(format!(
                "INSERT INTO subscription_queues AS q (subscription, due_at) SELECT s.id, now() FROM subscriptions s \
                 LEFT JOIN subscription_queues old ON old.subscription = s.id \
                 WHERE old.due_at IS NULL AND {these} ORDER BY s.id \
                 ON CONFLICT (subscription) DO UPDATE SET due_at = GREATEST(now(), q.open_until) WHERE q.due_at IS NULL"
            ));
        }
        if !statements.is_empty() {
            // Whoever holds a subscription's row for long does not hold up what is told to others, and was published before.
            self.batch(PUBLISHING, &format!("{}{}", self.limits_of_changes(), statements.join("; ")))?;
        }
        Ok(published)
    }

    fn settling(&self, settlement: &Settlement<'_>) -> String {
        let Settlement { by, lease, host, tries, failures, open_for, state, idle, in_order, .. } = settlement;
        let (subscription, by) = (literal::uuid(settlement.subscription), literal::uuid(*by));
        let mut statements = vec![format!(
            "SELECT CASE WHEN leased_by = {by} THEN subscription END FROM subscription_queues WHERE subscription = {subscription} FOR UPDATE"
        )];
        let (mut done, mut attempts, mut changes) = (Vec::new(), Vec::new(), Vec::new());
        for one in tries.iter() {
            let Some(position) = one.position else { continue };
            let (status, outcome) = (literal::optional_number(one.status), literal::text(&one.outcome));
            let next_at = match one.next {
                Next::Again(wait) => later(self, wait),
                Next::Done | Next::GivenUp => literal::null(),
            };
            attempts.push(format!(
                "({subscription}, {position}, ('1970-01-01 00:00:00+00'::timestamptz + {} * interval '1 microsecond'), \
                 {}, {}, {status}, {outcome}, {}, {next_at})",
                one.started_at,
                literal::text(host),
                i32::try_from(one.took.as_millis()).unwrap_or(i32::MAX),
                literal::optional_text(one.response.as_deref()),
            ));
            let failed_at = match one.next {
                Next::Done => {
                    done.push((position, one.due_at));
                    continue;
                }
                Next::Again(_) => "NULL",
                Next::GivenUp => "now()",
            };
            changes.push(format!(
                "UPDATE notifications SET tries = tries + 1, due_at = {next_at}, last_status = {status}, last_error = {outcome}, \
                 failed_at = {failed_at} WHERE subscription = {subscription} AND event = {position} AND {}",
                as_taken(self.dialect(), std::iter::once((position, one.due_at))),
            ));
        }
        // In one statement, which is planned once.
        if !attempts.is_empty() {
            statements.push(format!(
                "INSERT INTO notification_attempts (subscription, event, started_at, host, milliseconds, status, outcome, response, \
                 next_at) VALUES {} ON CONFLICT DO NOTHING",
                attempts.join(", ")
            ));
        }
        statements.extend(changes);
        if !done.is_empty() {
            let as_taken = as_taken(self.dialect(), done.iter().copied());
            let done = done.iter().map(|(position, _)| position.to_string()).collect::<Vec<_>>().join(", ");
            statements.push(format!(
                "DELETE FROM notifications WHERE subscription = {subscription} AND event IN ({done}) AND ({as_taken} OR due_at IS NULL)"
            ));
        }
        if let Some((state, reason)) = state {
            let (state, reason) = (literal::text(state), literal::optional_text(*reason));
            let which = format!(
                "id = {subscription} AND state IN ('unverified', 'active') AND callback_url = {} \
                 AND EXISTS (SELECT 1 FROM subscription_queues q WHERE q.subscription = {subscription} AND q.leased_by = {by})",
                literal::text(settlement.callback)
            );
            statements.push(format!(
                "UPDATE subscriptions SET state = {state}, state_reason = {reason}, updated_at = now() WHERE {which}"
            ));
        }
        let pending = format!("FROM notifications WHERE subscription = {subscription} AND due_at IS NOT NULL");
        let next = if *in_order {
            format!("(SELECT due_at {pending} ORDER BY event LIMIT 1)")
        } else {
            format!("(SELECT min(due_at) {pending})")
        };
        let open_until = open_for.map_or_else(literal::null, |wait| later(self, wait));
        let due_at = match (idle, open_for, lease) {
            (true, _, _) => literal::null(),
            // For as long as it is leased it counts for nothing; left alone, it makes no new entry of the index.
            (false, None, Some(_)) => "due_at".into(),
            (false, None, None) => next,
            (false, Some(_), _) => format!("GREATEST({next}, {open_until})"),
        };
        let (leased_by, leased_until) =
            lease.map_or_else(|| (literal::null(), literal::null()), |lease| (by.clone(), later(self, lease)));
        let failing_since = receiver::failing_since(settlement, "now()");
        let seen = receiver::last_seen(settlement, "now()", literal::text);
        statements.push(format!(
            "UPDATE subscription_queues SET due_at = {due_at}, leased_by = {leased_by}, leased_until = {leased_until}, \
             failures = {failures}, failing_since = {failing_since}, open_until = {open_until}, leased_among = {}{seen} \
             WHERE subscription = {subscription} AND leased_by = {by}",
            settlement.leased_among(),
        ));
        statements.join("; ")
    }
}
