//! Subscriptions as users create, change and read them. The notifier's part is in `notifications`.

use super::notifications::bulk;
use super::notifications::overview::Progress;
use super::{Database, time_span};
use crate::base::deadline::Deadline;
use crate::base::text_enum::text_enum;
use crate::base::timestamp;
use crate::database::{DatabaseError, Dialect, Query, Value, columns_of, unreadable};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::fmt;
use std::time::Duration;
use uuid::Uuid;

text_enum! {
    /// Whether a subscription is sent anything.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum SubscriptionState {
        /// Its callback has not answered the challenge yet.
        Unverified = "unverified",
        Active = "active",
        /// A user has paused it: its events are kept.
        Paused = "paused",
        /// Nothing is sent to it until a user resumes it.
        Disabled = "disabled",
    }
}

impl fmt::Display for SubscriptionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A subscription to be created: which events, and the callback to send them to.
#[derive(Clone, Debug)]
pub(crate) struct NewSubscription {
    pub(crate) owner: String,
    pub(crate) callback_url: String,
    /// `all`, `domain`, `address`, `mailbox` or `message`.
    pub(crate) resource: &'static str,
    /// Empty for `all`.
    pub(crate) resource_id: String,
    /// The types of events; empty: all types.
    pub(crate) types: Vec<&'static str>,
    /// `thin` or `full`.
    pub(crate) detail: &'static str,
    pub(crate) in_order: bool,
    pub(crate) max_in_flight: u8,
    pub(crate) description: String,
    /// Whether its callback has to answer a challenge first.
    pub(crate) verify: bool,
    pub(crate) expires_after: Option<Duration>,
}

/// A subscription and its progress.
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
    pub(crate) state: SubscriptionState,
    pub(crate) state_reason: Option<String>,
    #[serde(serialize_with = "timestamp::serialize_optional")]
    pub(crate) expires_at: Option<i64>,
    #[serde(serialize_with = "timestamp::serialize")]
    pub(crate) created_at: i64,
    #[serde(serialize_with = "timestamp::serialize")]
    pub(crate) updated_at: i64,
    pub(crate) secret_generation: u32,
    /// When it got its present secret, if it had another one before.
    #[serde(serialize_with = "timestamp::serialize_optional")]
    pub(crate) secret_rotated_at: Option<i64>,
    #[serde(flatten)]
    pub(crate) progress: Progress,
}

columns_of! { Subscription:
    id, owner, callback_url, resource, resource_id, types, detail, in_order, max_in_flight, description, state, state_reason,
    expires_at, created_at, updated_at, secret_generation, secret_rotated_at, progress
}

const READING: &str = "reading subscriptions";

/// Creates a subscription, unless its owner has one with the same resource and callback. Returns the id, and whether it
/// is new.
///
/// # Errors
/// If the database fails.
pub(crate) fn create(database: &mut dyn Database, new: &NewSubscription) -> Result<(Uuid, bool), DatabaseError> {
    let dialect = database.dialect();
    let (id, now) = (Uuid::now_v7(), dialect.now());
    let callback_digest = Sha256::digest(new.callback_url.as_bytes());
    let expires_at = match new.expires_after {
        Some(after) => Value::Moment(time_span::now(database)?.saturating_add(time_span::microseconds(after))),
        None => Value::Null,
    };
    let (types, array) = (types_of(dialect, &new.types), array(dialect));
    let (state, verified_at) = first_state(new.verify, now);
    let (target, target_digest, again) = match dialect {
        Dialect::Postgresql => ("", "", "ON CONFLICT (owner, resource, resource_id, callback_digest) DO NOTHING"),
        _ => (", target_digest", ", ?", "ON DUPLICATE KEY UPDATE id = subscriptions.id"),
    };
    let insert = format!(
        "INSERT INTO subscriptions (id, owner, callback_url, callback_digest, resource, resource_id, types, detail, in_order, \
         max_in_flight, description, state, verified_at, expires_at, created_at, updated_at{target}) \
         VALUES (?, ?, ?, ?, ?, ?, {array}, ?, {}, {}, ?, '{state}', {verified_at}, ?, {now}, {now}{target_digest}) {again}",
        if new.in_order { "TRUE" } else { "FALSE" },
        new.max_in_flight,
    );
    let digest = target_of(&new.owner, new.resource, &new.resource_id, &new.callback_url);
    let mut values = vec![
        Value::Uuid(id),
        Value::Text(&new.owner),
        Value::Text(&new.callback_url),
        Value::Bytes(&callback_digest),
        Value::Text(new.resource),
        Value::Text(&new.resource_id),
        Value::Text(&types),
        Value::Text(new.detail),
        Value::Text(&new.description),
        expires_at,
    ];
    if dialect != Dialect::Postgresql {
        values.push(Value::Bytes(&digest));
    }
    database.change("making a subscription", &insert, &values)?;
    let made = there(database, new)?;
    let made = made.ok_or_else(|| unreadable("the subscription that was just made is not there".to_owned()))?;
    Ok((made, made == id))
}

/// The owner's existing subscription with the same resource and callback.
///
/// # Errors
/// If the database fails.
pub(crate) fn there(database: &mut dyn Database, new: &NewSubscription) -> Result<Option<Uuid>, DatabaseError> {
    find_target(database, [&new.owner, new.resource, &new.resource_id], &new.callback_url)
}

fn find_target(database: &mut dyn Database, of: [&str; 3], callback_url: &str) -> Result<Option<Uuid>, DatabaseError> {
    let there = format!(
        "SELECT {} FROM subscriptions WHERE owner = ? AND resource = ? AND resource_id = ? AND callback_digest = ?",
        database.dialect().uuid("id")
    );
    let [owner, resource, resource_id] = of.map(Value::Text);
    let callback_digest = Sha256::digest(callback_url.as_bytes());
    database.query_first(READING, &there, &[owner, resource, resource_id, Value::Bytes(&callback_digest)])
}

/// The initial state of a subscription with a new callback, and its `verified_at`.
fn first_state(verify: bool, now: &str) -> (SubscriptionState, &str) {
    if verify { (SubscriptionState::Unverified, "NULL") } else { (SubscriptionState::Active, now) }
}

/// The digest by which two subscriptions are the same: over their parts, each with its length before it.
fn target_of(owner: &str, resource: &str, resource_id: &str, callback_url: &str) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in [owner, resource, resource_id, callback_url] {
        hash.update(u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().into()
}

/// Types of events in the form that their column takes.
fn types_of(dialect: Dialect, types: &[&str]) -> String {
    match dialect {
        Dialect::Postgresql => format!("{{{}}}", types.join(",")),
        _ => serde_json::to_string(types).unwrap_or_else(|_| "[]".into()),
    }
}

/// The placeholder for that column's value.
fn array(dialect: Dialect) -> &'static str {
    if dialect == Dialect::Postgresql { "?::text[]" } else { "?" }
}

/// All subscriptions, or the one with this id, the oldest first.
///
/// # Errors
/// If the database fails.
pub(crate) fn read(database: &mut dyn Database, id: Option<Uuid>) -> Result<Vec<Subscription>, DatabaseError> {
    match id {
        Some(id) => select(database, "WHERE s.id = ?", &[Value::Uuid(id)], ""),
        None => select(database, "", &[], ""),
    }
}

fn select(
    database: &mut dyn Database,
    which: &str,
    values: &[Value<'_>],
    limit: &str,
) -> Result<Vec<Subscription>, DatabaseError> {
    let dialect = database.dialect();
    let types = if dialect == Dialect::Postgresql { "array_to_json(s.types)::text" } else { "CAST(s.types AS char)" };
    let columns = [
        dialect.uuid("s.id"),
        "s.owner, s.callback_url, s.resource, s.resource_id".into(),
        types.into(),
        "s.detail, s.in_order, s.max_in_flight, s.description, s.state, s.state_reason".into(),
        dialect.microseconds("s.expires_at"),
        dialect.microseconds("s.created_at"),
        dialect.microseconds("s.updated_at"),
        "s.secret_generation".into(),
        dialect.microseconds("s.secret_rotated_at"),
        Progress::columns(database),
    ];
    let sql = format!(
        "SELECT {} FROM subscriptions s LEFT JOIN subscription_queues q ON q.subscription = s.id {which} ORDER BY s.id {limit}",
        columns.join(", ")
    );
    database.query(READING, &sql, values)
}

/// Pauses an active subscription: its events are kept, and sent once it is resumed. `false` if no active subscription
/// has this id.
///
/// # Errors
/// If the database fails.
pub(crate) fn pause(database: &mut dyn Database, id: Uuid) -> Result<bool, DatabaseError> {
    let sql = paused(database.dialect());
    Ok(database.change("pausing a subscription", &sql, &[Value::Uuid(id)])? > 0)
}

fn paused(dialect: Dialect) -> String {
    let now = dialect.now();
    format!("UPDATE subscriptions SET state = 'paused', updated_at = {now} WHERE id = ? AND state = 'active'")
}

/// Why a subscription is disabled whose callback never answered its challenge.
pub(crate) const NEVER_ANSWERED: &str = "the callback has not answered its question within a day";

/// Makes a paused or disabled subscription active, as if its receiver had never failed: what waits is due at once. If its
/// callback has never answered its challenge, the challenge is sent again, for a day. Otherwise a user who may subscribe
/// could have notifications sent to any third party. `false`, with nothing changed, if no paused or disabled subscription
/// has this id.
///
/// # Errors
/// If the database fails; in that case nothing is changed.
pub(crate) fn resume(database: &mut dyn Database, id: Uuid) -> Result<bool, DatabaseError> {
    let doing = "resuming a subscription";
    let stopped = "SELECT 1 FROM subscriptions WHERE id = ? AND state IN ('paused', 'disabled')";
    if database.select(doing, stopped, &[Value::Uuid(id)])?.is_empty() {
        return Ok(false);
    }
    bulk::end_waits(database, id)?;
    let id = Value::Uuid(id);
    let [forgiven, resumed] = resumed(database.dialect());
    database.execute_together(doing, &[(&forgiven, &[id, id]), (&resumed, &[id])])?;
    Ok(true)
}

/// Also ends the notifier's lease: that notifier would otherwise record an earlier result later.
fn resumed(dialect: Dialect) -> [String; 2] {
    let now = dialect.now();
    let forgiven = format!(
        "UPDATE subscription_queues SET due_at = {now}, failures = 0, failing_since = NULL, paused_until = NULL, leased_by = NULL, \
         leased_until = NULL, lease_limit = NULL WHERE subscription = ? \
         AND EXISTS (SELECT 1 FROM subscriptions s WHERE s.id = ? AND s.state IN ('paused', 'disabled'))"
    );
    let resumed = format!(
        "UPDATE subscriptions SET state = CASE WHEN verified_at IS NULL THEN 'unverified' ELSE 'active' END, \
         state_reason = NULL, updated_at = {now} WHERE id = ? AND state IN ('paused', 'disabled')"
    );
    [forgiven, resumed]
}

/// Disables an active or paused subscription until it is resumed, with this reason. A disabled one stays unchanged. An
/// unverified one does, too: no notifications are sent to it anyway.
///
/// # Errors
/// If the database fails; in that case nothing is changed.
pub(crate) fn disable(database: &mut dyn Database, id: Uuid, reason: &str) -> Result<bool, DatabaseError> {
    let sql = format!(
        "UPDATE subscriptions SET state = 'disabled', state_reason = ?, updated_at = {} \
         WHERE id = ? AND state IN ('active', 'paused')",
        database.dialect().now()
    );
    Ok(database.change("disabling a subscription", &sql, &[Value::Text(reason), Value::Uuid(id)])? > 0)
}

/// Gives the subscription a new secret. Requests are also signed with the old one for a day. `false` if there is no
/// subscription with this id.
///
/// # Errors
/// If the database fails.
pub(crate) fn new_secret(database: &mut dyn Database, id: Uuid) -> Result<bool, DatabaseError> {
    let now = database.dialect().now();
    let sql = format!(
        "UPDATE subscriptions SET secret_generation = secret_generation + 1, secret_rotated_at = {now}, updated_at = {now} \
         WHERE id = ?"
    );
    Ok(database.change("giving a subscription another secret", &sql, &[Value::Uuid(id)])? > 0)
}

/// Why a subscription is disabled that still exists with some of its notifications.
pub(crate) const BEING_REMOVED: &str = "it is being removed";

/// Removes a subscription and its notifications. Many notifications are removed in batches; the subscription is
/// disabled first, so that no part of them is sent. `false` if the time was over before the end. The subscription then
/// still exists, [disabled](BEING_REMOVED), and a repeated call continues.
///
/// # Errors
/// If the database fails; in that case the subscription still exists.
pub(crate) fn delete(database: &mut dyn Database, id: Uuid, until: Option<Deadline>) -> Result<bool, DatabaseError> {
    let (doing, now, values) = ("removing a subscription", database.dialect().now(), [Value::Uuid(id)]);
    if bulk::is_large(database, id)? {
        let disable = format!(
            "UPDATE subscriptions SET state = 'disabled', state_reason = '{BEING_REMOVED}', updated_at = {now} \
             WHERE id = ? AND state IN ('active', 'paused')"
        );
        database.change(doing, &disable, &values)?;
        if !bulk::remove(database, id, until)? {
            return Ok(false);
        }
    }
    database.execute_together(
        doing,
        &[
            ("DELETE FROM subscription_queues WHERE subscription = ?", &values),
            ("DELETE FROM notifications WHERE subscription = ?", &values),
            ("DELETE FROM subscriptions WHERE id = ?", &values),
        ],
    )?;
    Ok(true)
}

/// A filter on subscriptions. The default selects all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Those<'a> {
    pub(crate) owner: Option<&'a str>,
    pub(crate) resource: Option<&'a str>,
    pub(crate) resource_id: Option<&'a str>,
    pub(crate) state: Option<SubscriptionState>,
    /// Those created after this one.
    pub(crate) after: Option<Uuid>,
}

/// At most `most` of these subscriptions, the oldest first.
///
/// # Errors
/// If the database fails.
pub(crate) fn some(
    database: &mut dyn Database,
    those: &Those<'_>,
    most: usize,
) -> Result<Vec<Subscription>, DatabaseError> {
    let (mut which, mut values) = ("WHERE 1 = 1".to_owned(), Vec::new());
    for (column, value) in [
        ("owner", those.owner),
        ("resource", those.resource),
        ("resource_id", those.resource_id),
        ("state", those.state.map(SubscriptionState::as_str)),
    ] {
        if let Some(value) = value {
            which += &format!(" AND s.{column} = ?");
            values.push(Value::Text(value));
        }
    }
    if let Some(after) = those.after {
        which += " AND s.id > ?";
        values.push(Value::Uuid(after));
    }
    select(database, &which, &values, &format!("LIMIT {most}"))
}

/// How many subscriptions an owner has.
///
/// # Errors
/// If the database fails.
pub(crate) fn count_of_owner(database: &mut dyn Database, owner: &str) -> Result<u64, DatabaseError> {
    let sql = "SELECT count(*) FROM subscriptions WHERE owner = ?";
    Ok(database.query_number(READING, sql, &[Value::Text(owner)])?.unsigned_abs())
}

/// Whether a change pauses or resumes the subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Pause,
    Resume,
}

/// The new values of a subscription's fields; `None`: unchanged.
#[derive(Clone, Debug, Default)]
pub(crate) struct Change {
    pub(crate) callback_url: Option<String>,
    pub(crate) types: Option<Vec<&'static str>>,
    pub(crate) detail: Option<&'static str>,
    pub(crate) in_order: Option<bool>,
    pub(crate) max_in_flight: Option<u8>,
    pub(crate) description: Option<String>,
    /// In microseconds since 1970; `Some(None)`: it does not expire.
    pub(crate) expires_at: Option<Option<i64>>,
}

/// Changes a subscription, and pauses or resumes it, in one transaction. With `verify`, a new callback has to answer a
/// challenge first. `false` if the owner has another subscription with the resulting resource and callback.
///
/// # Errors
/// If the database fails; in that case nothing is changed.
pub(crate) fn change(
    database: &mut dyn Database,
    is: &Subscription,
    change: &Change,
    becomes: Option<Turn>,
    verify: bool,
) -> Result<bool, DatabaseError> {
    let (dialect, doing) = (database.dialect(), "changing a subscription");
    let (mut set, mut values) = (vec![format!("updated_at = {}", dialect.now())], Vec::new());
    let types = change.types.as_ref().map(|types| types_of(dialect, types));
    let callback = change.callback_url.as_ref().filter(|url| **url != is.callback_url).map(|url| {
        let target = target_of(&is.owner, &is.resource, &is.resource_id, url);
        (url, Sha256::digest(url.as_bytes()), target)
    });
    if let Some((url, digest, target)) = &callback {
        if find_target(database, [&is.owner, &is.resource, &is.resource_id], url)?.is_some() {
            return Ok(false);
        }
        let (state, verified_at) = first_state(verify, dialect.now());
        set.extend(["callback_url = ?", "callback_digest = ?", "state_reason = NULL"].map(Into::into));
        set.push(format!("state = '{state}', verified_at = {verified_at}"));
        values.extend([Value::Text(url), Value::Bytes(digest)]);
        if dialect != Dialect::Postgresql {
            set.push("target_digest = ?".into());
            values.push(Value::Bytes(target));
        }
    }
    if let Some(types) = &types {
        set.push(format!("types = {}", array(dialect)));
        values.push(Value::Text(types));
    }
    for (column, value) in [("detail", change.detail), ("description", change.description.as_deref())] {
        if let Some(value) = value {
            set.push(format!("{column} = ?"));
            values.push(Value::Text(value));
        }
    }
    if let Some(in_order) = change.in_order {
        set.push(format!("in_order = {}", if in_order { "TRUE" } else { "FALSE" }));
    }
    if let Some(most) = change.max_in_flight {
        set.push(format!("max_in_flight = {most}"));
    }
    if let Some(expires_at) = change.expires_at {
        set.push("expires_at = ?".into());
        values.push(expires_at.map_or(Value::Null, Value::Moment));
    }
    let id = Value::Uuid(is.id);
    values.push(id);
    let set = format!("UPDATE subscriptions SET {} WHERE id = ?", set.join(", "));
    let (paused, [forgiven, resumed]) = (paused(dialect), resumed(dialect));
    let one = [id];
    // In the notifier's order when it settles: the row of `subscription_queues` first.
    if becomes == Some(Turn::Resume) {
        bulk::end_waits(database, is.id)?;
    }
    let turn: &[(&str, &[Value<'_>])] = match becomes {
        None => &[],
        Some(Turn::Pause) => &[(&paused, &one)],
        Some(Turn::Resume) => &[(&forgiven, &[id, id]), (&resumed, &one)],
    };
    database.execute_together(doing, &[turn, &[(&*set, &*values)]].concat())?;
    Ok(true)
}
