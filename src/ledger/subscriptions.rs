//! Subscriptions as people make them and look at them. What the notifier does with them is in `notifications`.

use super::columns::{number, optional, owned};
use super::notifications::overview::Progress;
use super::{Database, time_span};
use crate::base::timestamp;
use crate::database::{DatabaseError, Dialect, Row, Value, unreadable};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::time::Duration;
use uuid::Uuid;

/// What somebody wants to be told, and where.
#[derive(Clone, Debug)]
pub(crate) struct NewSubscription {
    pub(crate) owner: &'static str,
    pub(crate) callback_url: String,
    /// `all`, `domain`, `address`, `mailbox` or `message`.
    pub(crate) resource: &'static str,
    /// Empty for `all`.
    pub(crate) resource_id: String,
    /// The types of events; none: all.
    pub(crate) types: Vec<&'static str>,
    /// `thin` or `full`.
    pub(crate) detail: &'static str,
    pub(crate) in_order: bool,
    pub(crate) max_in_flight: u8,
    pub(crate) description: String,
    /// `unverified` or `active`.
    pub(crate) state: &'static str,
    pub(crate) expires_after: Option<Duration>,
}

/// A subscription, and how it goes.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Subscription {
    pub(crate) id: Uuid,
    pub(crate) owner: String,
    pub(crate) callback_url: String,
    pub(crate) resource: String,
    pub(crate) resource_id: String,
    pub(crate) types: Vec<String>,
    pub(crate) detail: String,
    pub(crate) in_order: bool,
    pub(crate) max_in_flight: u8,
    pub(crate) description: String,
    pub(crate) state: String,
    pub(crate) state_reason: Option<String>,
    #[serde(serialize_with = "timestamp::serialize_optional")]
    pub(crate) expires_at: Option<i64>,
    #[serde(serialize_with = "timestamp::serialize")]
    pub(crate) created_at: i64,
    pub(crate) secret_generation: u32,
    #[serde(flatten)]
    pub(crate) progress: Progress,
}

const READING: &str = "reading subscriptions";

/// Makes a subscription, unless its owner has one to the same callback of the same: the id, and whether it is new.
///
/// # Errors
/// Where the database fails.
pub(crate) fn create(database: &mut dyn Database, new: &NewSubscription) -> Result<(Uuid, bool), DatabaseError> {
    let dialect = database.dialect();
    let (id, now) = (Uuid::now_v7(), dialect.now());
    let callback_digest = Sha256::digest(new.callback_url.as_bytes());
    let expires_at = match new.expires_after {
        Some(after) => Value::Moment(time_span::now(database)?.saturating_add(time_span::microseconds(after))),
        None => Value::Null,
    };
    let types = match dialect {
        Dialect::Postgresql => format!("{{{}}}", new.types.join(",")),
        _ => serde_json::to_string(&new.types).unwrap_or_else(|_| "[]".into()),
    };
    let array = if dialect == Dialect::Postgresql { "?::text[]" } else { "?" };
    let (target, target_digest, again) = match dialect {
        Dialect::Postgresql => ("", "", "ON CONFLICT (owner, resource, resource_id, callback_digest) DO NOTHING"),
        _ => (", target_digest", ", ?", "ON DUPLICATE KEY UPDATE id = subscriptions.id"),
    };
    let insert = format!(
        "INSERT INTO subscriptions (id, owner, callback_url, callback_digest, resource, resource_id, types, detail, in_order, \
         max_in_flight, description, state, expires_at, created_at, updated_at{target}) \
         VALUES (?, ?, ?, ?, ?, ?, {array}, ?, {}, {}, ?, ?, ?, {now}, {now}{target_digest}) {again}",
        if new.in_order { "TRUE" } else { "FALSE" },
        new.max_in_flight,
    );
    let digest = target_of(new);
    let mut values = vec![
        Value::Uuid(id),
        Value::Text(new.owner),
        Value::Text(&new.callback_url),
        Value::Bytes(&callback_digest),
        Value::Text(new.resource),
        Value::Text(&new.resource_id),
        Value::Text(&types),
        Value::Text(new.detail),
        Value::Text(&new.description),
        Value::Text(new.state),
        expires_at,
    ];
    if dialect != Dialect::Postgresql {
        values.push(Value::Bytes(&digest));
    }
    database.change("making a subscription", &insert, &values)?;
    let there = format!(
        "SELECT {} FROM subscriptions WHERE owner = ? AND resource = ? AND resource_id = ? AND callback_digest = ?",
        dialect.uuid("id")
    );
    let same = [
        Value::Text(new.owner),
        Value::Text(new.resource),
        Value::Text(&new.resource_id),
        Value::Bytes(&callback_digest),
    ];
    let rows = database.select(READING, &there, &same)?;
    let row = rows.first().ok_or_else(|| unreadable("the subscription that was just made is not there".to_owned()))?;
    let made = number(row, 0)?;
    Ok((made, made == id))
}

/// What makes a subscription the same: its parts, each with its length before it.
fn target_of(new: &NewSubscription) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in [new.owner, new.resource, &new.resource_id, &new.callback_url] {
        hash.update(u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().into()
}

/// All subscriptions, or the one with this id; the oldest first.
///
/// # Errors
/// Where the database fails.
pub(crate) fn read(database: &mut dyn Database, id: Option<Uuid>) -> Result<Vec<Subscription>, DatabaseError> {
    let dialect = database.dialect();
    let types = if dialect == Dialect::Postgresql { "array_to_json(s.types)::text" } else { "CAST(s.types AS char)" };
    let columns = [
        dialect.uuid("s.id"),
        "s.owner, s.callback_url, s.resource, s.resource_id".into(),
        types.into(),
        "s.detail, CASE WHEN s.in_order THEN 1 ELSE 0 END, s.max_in_flight, s.description, s.state, s.state_reason"
            .into(),
        dialect.microseconds("s.expires_at"),
        dialect.microseconds("s.created_at"),
        "s.secret_generation".into(),
        Progress::columns(database),
    ];
    let which = if id.is_some() { "WHERE s.id = ?" } else { "" };
    let sql = format!(
        "SELECT {} FROM subscriptions s LEFT JOIN subscription_queues q ON q.subscription = s.id {which} ORDER BY s.id",
        columns.join(", ")
    );
    let values: Vec<Value<'_>> = id.into_iter().map(Value::Uuid).collect();
    database.select(READING, &sql, &values)?.iter().map(subscription).collect()
}

fn subscription(row: &Row) -> Result<Subscription, DatabaseError> {
    let types = owned(row, 5)?;
    Ok(Subscription {
        id: number(row, 0)?,
        owner: owned(row, 1)?,
        callback_url: owned(row, 2)?,
        resource: owned(row, 3)?,
        resource_id: owned(row, 4)?,
        types: serde_json::from_str(&types).map_err(|_| unreadable(format!("a subscription's types are {types:?}")))?,
        detail: owned(row, 6)?,
        in_order: number::<u8>(row, 7)? == 1,
        max_in_flight: number(row, 8)?,
        description: owned(row, 9)?,
        state: owned(row, 10)?,
        state_reason: optional(row, 11),
        expires_at: row.value(12)?,
        created_at: number(row, 13)?,
        secret_generation: number(row, 14)?,
        progress: Progress::of(row, 15)?,
    })
}

/// Has an active subscription rest: what happens is kept, and told once it is resumed. `false` where none is active by this id.
///
/// # Errors
/// Where the database fails.
pub(crate) fn pause(database: &mut dyn Database, id: Uuid) -> Result<bool, DatabaseError> {
    let now = database.dialect().now();
    let sql =
        format!("UPDATE subscriptions SET state = 'paused', updated_at = {now} WHERE id = ? AND state = 'active'");
    Ok(database.change("pausing a subscription", &sql, &[Value::Uuid(id)])? > 0)
}

/// Makes one that is paused or disabled active again, as if its receiver had never failed. `false` where there is none by this id.
///
/// # Errors
/// Where the database fails.
pub(crate) fn resume(database: &mut dyn Database, id: Uuid) -> Result<bool, DatabaseError> {
    let doing = "resuming a subscription";
    let now = database.dialect().now();
    let forgiven =
        "UPDATE subscription_queues SET failures = 0, failing_since = NULL, open_until = NULL WHERE subscription = ?";
    database.change(doing, forgiven, &[Value::Uuid(id)])?;
    let sql = format!(
        "UPDATE subscriptions SET state = 'active', state_reason = NULL, updated_at = {now} \
         WHERE id = ? AND state IN ('paused', 'disabled')"
    );
    Ok(database.change(doing, &sql, &[Value::Uuid(id)])? > 0)
}

/// Gives it another secret; the one before it signs beside it for a day. `false` where there is none by this id.
///
/// # Errors
/// Where the database fails.
pub(crate) fn new_secret(database: &mut dyn Database, id: Uuid) -> Result<bool, DatabaseError> {
    let now = database.dialect().now();
    let sql = format!(
        "UPDATE subscriptions SET secret_generation = secret_generation + 1, secret_rotated_at = {now}, updated_at = {now} \
         WHERE id = ?"
    );
    Ok(database.change("giving a subscription another secret", &sql, &[Value::Uuid(id)])? > 0)
}

/// Removes it, with what it was still to be told.
///
/// # Errors
/// Where the database fails; it is there then.
pub(crate) fn delete(database: &mut dyn Database, id: Uuid) -> Result<(), DatabaseError> {
    let values = [Value::Uuid(id)];
    database.change_together(
        "removing a subscription",
        &[
            ("DELETE FROM subscription_queues WHERE subscription = ?", &values),
            ("DELETE FROM notifications WHERE subscription = ?", &values),
            ("DELETE FROM subscriptions WHERE id = ?", &values),
        ],
    )
}
