//! What the notifier reads and writes, on MySQL (8.0.1 or later) and MariaDB (10.6 or later), which have SKIP LOCKED.
//!
//! A session is READ COMMITTED: in REPEATABLE READ a claim would hold up inserts between the rows that it takes, and publishing
//! would wait for whoever changes a subscription.

use super::{
    COPIED, LEASING, Leased, Next, Notifications, PUBLISHED_AT_ONCE, Published, Settlement, Wake, as_taken, choice,
    is_to_be_leased, later, leased_columns, matches, ought_to_be_served, published_now, receiver,
};
use crate::database::mysql::{bytes_column, column, sql};
use crate::database::{DatabaseError, MysqlDatabase, Tables};
use crate::lock::{Acquired, LockName, NamedLock};
use std::time::Duration;
use uuid::Uuid;

const PUBLISHING: &str = "publishing events";

impl Notifications for MysqlDatabase {
    fn publish(&mut self, lock: &LockName, wake: Wake) -> Result<Published, DatabaseError> {
        match self.acquire(lock, Duration::ZERO)? {
            Acquired::Held => {}
            Acquired::Busy(_) => return Ok(Published::Busy),
        }
        let published = self.retrying(|database| database.publish_under_lock(wake));
        // COMMIT first: who has the lock next sees what was published. Where the connection is gone, so is the lock.
        let released = self.release(lock);
        let published = published?;
        released?;
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
        let by = sql::bytes(by.as_bytes());
        let due = format!(
            "START TRANSACTION; SELECT subscription FROM subscription_queues WHERE subscription IN ({}) AND {} FOR UPDATE SKIP LOCKED",
            sql::list(choice.subscriptions.iter().map(|(id, _)| sql::bytes(id.as_bytes()))),
            is_to_be_leased(self),
        );
        let ids = self.retrying(|database| {
            let answers = database.run(LEASING, &due, 2)?;
            let rows = answers.last().map(Vec::as_slice).unwrap_or_default();
            let ids = rows.iter().map(|row| bytes_column::<16>(row, 0, LEASING).map(|id| sql::bytes(&id)));
            let ids = ids.collect::<Result<Vec<_>, _>>()?;
            if ids.is_empty() {
                database.run(LEASING, "COMMIT", 1)?;
                return Ok(String::new());
            }
            let ids = sql::list(ids);
            let take = format!(
                "UPDATE subscription_queues SET leased_by = {by}, leased_until = {until}, leased_among = {} \
                 WHERE subscription IN ({ids}); COMMIT",
                choice.among
            );
            database.run(LEASING, &take, 2)?;
            Ok(ids)
        })?;
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let ago = |moment: &str| format!("TIMESTAMPDIFF(MICROSECOND, {moment}, UTC_TIMESTAMP(6)) / 1000000");
        let columns =
            leased_columns("LOWER(HEX(q.subscription))", ago, |truth| format!("({truth})"), "UTC_TIMESTAMP(6)");
        let select = format!(
            "SELECT {columns} FROM subscription_queues q LEFT JOIN subscriptions s ON s.id = q.subscription \
             WHERE q.subscription IN ({ids})"
        );
        choice.leased(&self.select(LEASING, &select, &[])?)
    }

    fn settle(&mut self, settlements: &[Settlement<'_>]) -> Result<Vec<Uuid>, DatabaseError> {
        let doing = "settling notifications";
        let mut statements = vec!["START TRANSACTION".to_owned()];
        statements.extend(settlements.iter().flat_map(|one| self.settling(one)));
        statements.push("COMMIT".into());
        let batch = statements.join("; ");
        let answers = self.retrying(|database| database.run(doing, &batch, statements.len()))?;
        let ours = answers.iter().flatten().map(|row| column::<Option<Vec<u8>>>(row, 0, doing));
        let ours = ours.map(|id| id.map(|id| id.and_then(|id| Uuid::from_slice(&id).ok())));
        Ok(super::lost(settlements, &ours.collect::<Result<Vec<_>, _>>()?))
    }
}

impl MysqlDatabase {
    fn publish_under_lock(&mut self, wake: Wake) -> Result<Published, DatabaseError> {
        let oldest = format!(
            "START TRANSACTION; SELECT position, event FROM outbox ORDER BY position LIMIT {PUBLISHED_AT_ONCE}"
        );
        let answers = self.run(PUBLISHING, &oldest, 2)?;
        let rows = answers.last().map(Vec::as_slice).unwrap_or_default();
        let positions = rows.iter().map(|row| column::<i64>(row, 0, PUBLISHING)).collect::<Result<Vec<_>, _>>()?;
        let published = Published::Events { count: rows.len(), last: positions.last().copied().unwrap_or_default() };
        let positions = sql::list(positions.iter().map(ToString::to_string));
        let events = rows.iter().map(|row| bytes_column::<16>(row, 1, PUBLISHING).map(|event| sql::bytes(&event)));
        let events = sql::list(events.collect::<Result<Vec<_>, _>>()?);
        let now = "UTC_TIMESTAMP(6)";
        let mut statements = Vec::new();
        if !rows.is_empty() {
            let matching = matches(self.dialect(), &published_now(&events));
            statements.push(format!(
                "INSERT INTO events ({COPIED}, published_at) SELECT {COPIED}, {now} FROM outbox WHERE position IN ({positions}) \
                 ORDER BY position"
            ));
            statements.push(format!(
                "INSERT INTO notifications (subscription, event, due_at) SELECT m.id, m.position, {now} FROM ({matching}) m \
                 ON DUPLICATE KEY UPDATE due_at = notifications.due_at"
            ));
            statements.push(format!(
                "INSERT INTO subscription_queues (subscription, due_at) \
                 SELECT m.id, {now} FROM (SELECT DISTINCT a.id FROM ({matching}) a ORDER BY a.id) m \
                 ON DUPLICATE KEY UPDATE due_at = CASE \
                 WHEN subscription_queues.due_at <= {now} THEN subscription_queues.due_at \
                 ELSE GREATEST({now}, COALESCE(subscription_queues.open_until, {now})) END"
            ));
            statements.push(format!("DELETE FROM outbox WHERE position IN ({positions})"));
        }
        if let Some(these) = ought_to_be_served(self, wake) {
            statements.push(format!(
                "INSERT INTO subscription_queues (subscription, due_at) SELECT w.id, {now} FROM (SELECT s.id FROM subscriptions s \
                 LEFT JOIN subscription_queues q ON q.subscription = s.id WHERE q.due_at IS NULL AND {these} \
                 ORDER BY s.id) w \
                 ON DUPLICATE KEY UPDATE due_at = COALESCE(subscription_queues.due_at, \
                 GREATEST({now}, COALESCE(subscription_queues.open_until, {now})))"
            ));
        }
        statements.push("COMMIT".into());
        self.run(PUBLISHING, &statements.join("; "), statements.len())?;
        Ok(published)
    }

    fn settling(&self, settlement: &Settlement<'_>) -> Vec<String> {
        let Settlement { by, lease, host, tries, failures, open_for, state, idle, in_order, .. } = settlement;
        let (subscription, by) = (sql::bytes(settlement.subscription.as_bytes()), sql::bytes(by.as_bytes()));
        let (now, null) = ("UTC_TIMESTAMP(6)", || "NULL".to_owned());
        let mut statements = vec![format!(
            "SELECT CASE WHEN leased_by = {by} THEN subscription END FROM subscription_queues WHERE subscription = {subscription} FOR UPDATE"
        )];
        let (mut done, mut attempts, mut changes) = (Vec::new(), Vec::new(), Vec::new());
        for one in tries.iter() {
            let Some(position) = one.position else { continue };
            let (status, outcome) = (sql::optional_number(one.status), sql::text(&one.outcome));
            let next_at = match one.next {
                Next::Again(wait) => later(self, wait),
                Next::Done | Next::GivenUp => null(),
            };
            attempts.push(format!(
                "({subscription}, {position}, (TIMESTAMP'1970-01-01 00:00:00' + INTERVAL {} MICROSECOND), \
                 {}, {}, {status}, {outcome}, {}, {next_at})",
                one.started_at,
                sql::text(host),
                u32::try_from(one.took.as_millis()).unwrap_or(u32::MAX),
                sql::optional_text(one.response.as_deref()),
            ));
            let failed_at = match one.next {
                Next::Done => {
                    done.push((position, one.due_at));
                    continue;
                }
                Next::Again(_) => "NULL",
                Next::GivenUp => now,
            };
            changes.push(format!(
                "UPDATE notifications SET tries = tries + 1, due_at = {next_at}, last_status = {status}, last_error = {outcome}, \
                 failed_at = {failed_at} WHERE subscription = {subscription} AND event = {position} AND {}",
                as_taken(self.dialect(), std::iter::once((position, one.due_at))),
            ));
        }
        if !attempts.is_empty() {
            // Where the answer to COMMIT was lost, they are there already. (ON DUPLICATE KEY wants a right to change rows.)
            statements.push(format!(
                "INSERT IGNORE INTO notification_attempts (subscription, event, started_at, host, milliseconds, status, outcome, response, \
                 next_at) VALUES {}",
                attempts.join(", ")
            ));
        }
        statements.extend(changes);
        if !done.is_empty() {
            let as_taken = as_taken(self.dialect(), done.iter().copied());
            let done = sql::list(done.iter().map(|(position, _)| position.to_string()));
            statements.push(format!(
                "DELETE FROM notifications WHERE subscription = {subscription} AND event IN ({done}) AND ({as_taken} OR due_at IS NULL)"
            ));
        }
        if let Some((state, reason)) = state {
            let (state, reason) = (sql::text(state), sql::optional_text(*reason));
            let which = format!(
                "id = {subscription} AND state IN ('unverified', 'active') AND callback_url = {} \
                 AND EXISTS (SELECT 1 FROM subscription_queues q WHERE q.subscription = {subscription} AND q.leased_by = {by})",
                sql::text(settlement.callback)
            );
            statements.push(format!(
                "UPDATE subscriptions SET state = {state}, state_reason = {reason}, updated_at = {now} WHERE {which}"
            ));
        }
        let pending = format!("FROM notifications WHERE subscription = {subscription} AND due_at IS NOT NULL");
        let next = if *in_order {
            format!("(SELECT due_at {pending} ORDER BY event LIMIT 1)")
        } else {
            // min() in a statement that changes rows reads all that wait.
            format!("(SELECT due_at {pending} ORDER BY due_at LIMIT 1)")
        };
        let open_until = open_for.map_or_else(null, |wait| later(self, wait));
        let due_at = match (idle, open_for, lease) {
            (true, _, _) => null(),
            // For as long as it is leased it counts for nothing; left alone, it makes no new entry of the index.
            (false, None, Some(_)) => "due_at".into(),
            (false, None, None) => next,
            // GREATEST is NULL where one of them is.
            (false, Some(_), _) => format!("COALESCE(GREATEST({next}, {open_until}), {open_until})"),
        };
        let (leased_by, leased_until) =
            lease.map_or_else(|| (null(), null()), |lease| (by.clone(), later(self, lease)));
        let failing_since = receiver::failing_since(settlement, now);
        let seen = receiver::last_seen(settlement, now, sql::text);
        statements.push(format!(
            "UPDATE subscription_queues SET due_at = {due_at}, leased_by = {leased_by}, leased_until = {leased_until}, \
             failures = {failures}, failing_since = {failing_since}, open_until = {open_until}, leased_among = {}{seen} \
             WHERE subscription = {subscription} AND leased_by = {by}",
            settlement.leased_among(),
        ));
        statements
    }
}
