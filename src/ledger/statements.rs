//! The statements of a delivery's journal, look and record, once for all engines. Values are literals in them
//! ([`Dialect::literal`]): they are sent in batches, which have no parameters.

use super::{
    CopyHistory, CopyKey, CopyRecord, CopyState, DeliveredAt, EndedAttempt, EventRecord, Journal, LoginCheck,
    MessageRecord, OpenAttempt, Record,
};
use crate::database::{DatabaseError, Dialect, Query, Row, Tables, Value, sqlite};
use crate::lock::LockName;
use crate::mailbox::Placement;
use std::time::Duration;

pub(super) const JOURNALLING: &str = "writing the journal";
pub(super) const RECORDING: &str = "recording the delivery";
pub(super) const RECORDING_A_LOGIN: &str = "remembering a login to the mailbox store";

/// The present time. On PostgreSQL, `now()` would be when the lock's transaction began, before anything was appended.
pub(super) fn now(dialect: Dialect) -> String {
    match dialect {
        // In microseconds, which SQLite's own function does not offer.
        Dialect::Sqlite => sqlite::now().to_string(),
        _ => dialect.now().into(),
    }
}

/// How long ago a time was, in seconds; negative if a clock was set back.
fn age(dialect: Dialect, moment: &str) -> String {
    dialect.seconds_between(moment, &now(dialect))
}

/// The keys of copies, for the inside of an IN list.
pub(super) fn keys(dialect: Dialect, copies: &[CopyKey]) -> String {
    dialect.list(copies.iter().map(|key| Value::Bytes(key.as_bytes())))
}

/// Inserts the attempts of a journal, which has at least one.
pub(super) fn journal(dialect: Dialect, journal: &Journal<'_>) -> String {
    let literal = |value| dialect.literal(value);
    let session = match dialect {
        Dialect::Postgresql => "pg_backend_pid()",
        Dialect::Mysql | Dialect::Mariadb => "CONNECTION_ID()",
        // There is no server that could number sessions.
        Dialect::Sqlite => "NULL",
    };
    let of_all = [
        literal(Value::Uuid(journal.attempt)),
        literal(Value::Bytes(journal.identity.as_bytes())),
        literal(Value::Bytes(journal.lock.digest())),
        literal(Value::Text(journal.message_id)),
        literal(Value::optional_text(journal.queue_id)),
        literal(Value::optional_text(journal.sender)),
        literal(Value::Text(journal.host)),
        journal.pid.to_string(),
        session.to_owned(),
        now(dialect),
    ]
    .join(", ");
    let rows = journal.copies.iter().map(|copy| {
        let of_copy = [
            Value::Bytes(copy.key.as_bytes()),
            Value::Text(copy.role.as_str()),
            Value::Text(copy.user),
            Value::Text(copy.mailbox),
            Value::Text(copy.recipient),
            Value::optional_number(copy.position.map(|position| position.uid_validity)),
            Value::optional_number(copy.position.map(|position| position.uid_next)),
        ];
        format!("({of_all}, {})", dialect.list(of_copy))
    });
    format!(
        "INSERT INTO attempts (attempt, identity, lock_digest, message_id, queue_id, sender, host, pid, session, started_at, \
         copy_key, role, imap_user, mailbox, recipient, uid_validity, uid_next) VALUES {}",
        rows.collect::<Vec<_>>().join(", ")
    )
}

/// The look in two statements with a snapshot each, the attempts' first. An attempt's end is committed together with
/// its copy, so an ended attempt has its copy in the later snapshot. In the other order, a commit in between would show
/// neither the copy nor the attempt. (PostgreSQL's look is one statement, whose plan a session keeps.)
pub(super) fn look(dialect: Dialect, copies: &[CopyKey]) -> [String; 2] {
    let (keys, key) = (keys(dialect, copies), dialect.hex("copy_key"));
    [
        format!(
            "SELECT {key}, {}, recipient, {}, uid_validity, uid_next, host, {} FROM attempts \
             WHERE copy_key IN ({keys}) AND ended_at IS NULL ORDER BY started_at, attempt",
            dialect.uuid("attempt"),
            age(dialect, "started_at"),
            dialect.hex("lock_digest")
        ),
        format!(
            "SELECT {key}, uid_validity, uid, {}, {}, CASE WHEN state = 'owed' THEN COALESCE(reason, '') END \
             FROM copies LEFT JOIN messages ON messages.id = copies.message WHERE copy_key IN ({keys})",
            dialect.hex("lock_digest"),
            age(dialect, "recorded_at")
        ),
    ]
}

/// Combines the answers to [`look`] into the history of each copy that was asked for.
pub(super) fn histories(
    copies: &[CopyKey],
    attempts: &[Row],
    recorded: &[Row],
) -> Result<Vec<CopyHistory>, DatabaseError> {
    let mut histories: Vec<CopyHistory> = copies.iter().map(CopyHistory::unknown).collect();
    for row in attempts {
        let (key, attempt): (CopyKey, OpenAttempt) = row.read()?;
        for history in histories.iter_mut().filter(|history| history.key == key) {
            history.open_attempts.push(attempt.clone());
        }
    }
    type Recorded = (CopyKey, Option<Placement>, Option<LockName>, Option<f64>, Option<String>);
    for row in recorded {
        let (key, placement, lock, age, owed): Recorded = row.read()?;
        for history in histories.iter_mut().filter(|history| history.key == key) {
            if owed.is_some() {
                history.owed.clone_from(&owed);
            } else {
                (history.delivered, history.recorded) = (Some(DeliveredAt { placement }), lock.zip(age));
            }
        }
    }
    Ok(histories)
}

/// How long ago the first attempt at any of these copies began, ended or not; zero if there was none.
pub(super) fn first_attempt_age(database: &mut impl Tables, copies: &[CopyKey]) -> Result<Duration, DatabaseError> {
    if copies.is_empty() {
        return Ok(Duration::ZERO);
    }
    let dialect = database.dialect();
    let sql = format!(
        "SELECT {} FROM attempts WHERE copy_key IN ({})",
        age(dialect, "MIN(started_at)"),
        keys(dialect, copies)
    );
    let age = database.query_first::<Option<Duration>>("looking for the first attempt", &sql, &[])?;
    Ok(age.flatten().unwrap_or_default())
}

/// Records that a login was proven just now, or that it is no longer proven.
pub(super) fn login_check(dialect: Dialect, login_check: &LoginCheck, host: &str, is_proven: bool) -> String {
    let (now, host) = (now(dialect), dialect.literal(Value::Text(host)));
    if !is_proven {
        return format!(
            "UPDATE login_checks SET verified_at = {}, host = {host} WHERE digest = {}",
            dialect.literal(Value::Moment(0)),
            dialect.literal(Value::Bytes(&login_check.digest))
        );
    }
    format!(
        "INSERT INTO login_checks (digest, login, verified_at, host) VALUES ({}, {now}, {host}) {}",
        dialect.list([Value::Bytes(&login_check.digest), Value::Text(&login_check.text)]),
        dialect.or_update("digest", &format!("verified_at = {now}, host = {host}"))
    )
}

/// The id of the message's row.
pub(super) fn id_of(dialect: Dialect, message: &MessageRecord<'_>) -> String {
    id_by(&dialect.literal(Value::Bytes(message.identity.as_bytes())))
}

fn id_by(identity: &str) -> String {
    format!("(SELECT id FROM messages WHERE identity = {identity})")
}

/// Inserts the message, unless another recipient's delivery has recorded it. `cached`: by the function whose plan a session
/// keeps.
pub(super) fn message(dialect: Dialect, message: &MessageRecord<'_>, cached: bool) -> String {
    let values = [
        Value::Bytes(message.identity.as_bytes()),
        Value::Bytes(message.lock.digest()),
        Value::Text(message.message_id),
        Value::Bytes(message.content_digest),
        Value::Text(message.sender),
        Value::optional_text(message.from),
        Value::optional_text(message.to),
        Value::optional_text(message.cc),
        Value::optional_text(message.subject),
        dialect.date(message.date),
        Value::Json(message.headers),
        Value::Integer(i64::try_from(message.size).unwrap_or(i64::MAX)),
    ];
    if cached { call(dialect, MESSAGE, values) } else { inserted_message(dialect, &dialect.list(values)) }
}

pub(super) fn inserted_message(dialect: Dialect, values: &str) -> String {
    let unless_there = match dialect {
        Dialect::Postgresql | Dialect::Sqlite => "ON CONFLICT (identity) DO NOTHING",
        // IGNORE would truncate values that do not fit.
        Dialect::Mysql | Dialect::Mariadb => "ON DUPLICATE KEY UPDATE id = messages.id",
    };
    format!(
        "INSERT INTO messages (identity, lock_digest, message_id, content_digest, sender, header_from, header_to, header_cc, subject, \
         sent_at, headers, size, recorded_at) VALUES ({values}, {}) {unless_there}",
        now(dialect)
    )
}

/// Inserts the message's source, unless it exists: a delivery has no right to change one. `source` is a literal, or a
/// parameter's placeholder.
pub(super) fn source(dialect: Dialect, message: &MessageRecord<'_>, source: &str) -> String {
    format!(
        "INSERT INTO message_sources (message_id, source) SELECT m.id, {source} FROM messages m WHERE m.identity = {} \
         AND NOT EXISTS (SELECT 1 FROM message_sources s WHERE s.message_id = m.id)",
        dialect.literal(Value::Bytes(message.identity.as_bytes()))
    )
}

/// Whether the message's source is still to be stored.
pub(super) fn source_is_missing(dialect: Dialect, message: &MessageRecord<'_>) -> String {
    format!(
        "SELECT CASE WHEN EXISTS (SELECT 1 FROM message_sources WHERE message_id = {}) THEN 0 ELSE 1 END",
        id_of(dialect, message)
    )
}

/// The values of a delivered copy, in the order of the parameters of `maildrop_copy`.
fn values_of_copy<'a>(
    message: &'a MessageRecord<'_>,
    copy: &'a CopyRecord<'_>,
    placement: Option<Placement>,
) -> [Value<'a>; 8] {
    [
        Value::Bytes(message.identity.as_bytes()),
        Value::Bytes(copy.key.as_bytes()),
        Value::Text(copy.role.as_str()),
        Value::Text(copy.user),
        Value::Text(copy.mailbox),
        Value::Text(copy.recipient),
        Value::optional_number(placement.map(|placement| placement.uid_validity)),
        Value::optional_number(placement.map(|placement| placement.uid)),
    ]
}

/// Records a delivered copy with these values: only another delivery changes its location. MySQL assigns from left to
/// right.
pub(super) fn delivered_copy(dialect: Dialect, values: [&str; 8]) -> String {
    let ([identity, key, role, user, mailbox, recipient, uid_validity, uid], now) = (values, now(dialect));
    let set = format!(
        "recipient = {recipient}, uid_validity = {uid_validity}, uid = {uid}, reason = NULL, \
         delivered_at = COALESCE(copies.delivered_at, {now}), updated_at = {now}, state = 'delivered'"
    );
    format!(
        "INSERT INTO copies (message, copy_key, role, imap_user, mailbox, recipient, state, uid_validity, uid, delivered_at, updated_at) \
         VALUES ({}, {key}, {role}, {user}, {mailbox}, {recipient}, 'delivered', {uid_validity}, {uid}, {now}, {now}) {}",
        id_by(identity),
        dialect.or_update("copy_key", &set)
    )
}

fn literals<const COUNT: usize>(dialect: Dialect, values: [Value<'_>; COUNT]) -> [String; COUNT] {
    values.map(|value| dialect.literal(value))
}

/// PostgreSQL's functions with statements of the record, whose planning takes longer than their execution: the message; a
/// delivered copy, with the end of the attempt at it.
pub(super) const MESSAGE: &str = "maildrop_message";
pub(super) const COPY: &str = "maildrop_copy";

fn call<'a>(dialect: Dialect, function: &str, values: impl IntoIterator<Item = Value<'a>>) -> String {
    format!("SELECT {function}({})", dialect.list(values))
}

/// Records a delivered copy. With the end of an attempt at it: both, by the function whose plan a session keeps.
fn delivered(dialect: Dialect, values: [Value<'_>; 8], end: Option<&EndedAttempt<'_>>) -> String {
    let Some(end) = end else {
        return delivered_copy(dialect, literals(dialect, values).each_ref().map(String::as_str));
    };
    let outcome = end.outcome.to_string();
    call(dialect, COPY, values.into_iter().chain(values_of_end(end, &outcome)))
}

/// Records a copy as owed, unless it is delivered.
fn owed_copy(dialect: Dialect, message: &MessageRecord<'_>, copy: &CopyRecord<'_>, reason: &str) -> String {
    let (now, [recipient, reason]) =
        (now(dialect), [copy.recipient, reason].map(|text| dialect.literal(Value::Text(text))));
    let values = [
        Value::Bytes(copy.key.as_bytes()),
        Value::Text(copy.role.as_str()),
        Value::Text(copy.user),
        Value::Text(copy.mailbox),
    ];
    let set = [("recipient", recipient.as_str()), ("reason", &reason), ("updated_at", &now)];
    format!(
        "INSERT INTO copies (message, copy_key, role, imap_user, mailbox, recipient, state, reason, updated_at) \
         VALUES ({}, {}, {recipient}, 'owed', {reason}, {now}) {}",
        id_of(dialect, message),
        dialect.list(values),
        dialect.or_update_where("copies", "copy_key", "copies.state <> 'delivered'", &set)
    )
}

/// Records an attempt's end. An attempt that has ended stays unchanged.
pub(super) fn ended_attempt(dialect: Dialect, [key, attempt, outcome, stages]: [&str; 4]) -> String {
    format!(
        "UPDATE attempts SET ended_at = {}, outcome = {outcome}, stages = {stages} \
         WHERE copy_key = {key} AND attempt = {attempt} AND ended_at IS NULL",
        now(dialect)
    )
}

/// The values of an attempt's end, in the order of the last parameters of `maildrop_copy`.
fn values_of_end<'a>(ended: &'a EndedAttempt<'_>, outcome: &'a str) -> [Value<'a>; 3] {
    [Value::Uuid(ended.attempt), Value::Text(outcome), ended.stages.map_or(Value::Null, Value::Json)]
}

/// Inserts a copy's event, once for each row of `rows`.
pub(super) fn event(dialect: Dialect, event: &EventRecord<'_>, rows: &str) -> String {
    let diff = event.diff.as_json();
    let values = [
        Value::Uuid(event.event),
        Value::Text(event.kind.as_str()),
        Value::Bytes(event.key.as_bytes()),
        Value::Bytes(event.identity.as_bytes()),
        Value::Text(event.message_id),
        Value::Text(event.role.as_str()),
        Value::Text(event.recipient),
        Value::Text(event.user),
        Value::Text(event.mailbox),
        Value::optional_text(event.manner),
        Value::optional_uuid(event.attempt),
        Value::optional_text(event.queue_id),
        Value::Text(event.host),
        Value::Json(&diff),
    ];
    format!(
        "INSERT INTO outbox (event, type, copy_key, identity, message_id, role, recipient, imap_user, mailbox, manner, attempt, queue_id, \
         host, diff, created_at) SELECT {}, {} {rows}",
        dialect.list(values),
        now(dialect)
    )
}

/// The statements after the message in its record: its copies, the attempts that have ended, and the events if there
/// are subscriptions. `cached`: uses the functions whose plans a session keeps.
///
/// # Errors
/// If there are copies without their message.
pub(super) fn after_message(dialect: Dialect, record: &Record<'_>, cached: bool) -> Result<Vec<String>, DatabaseError> {
    let mut statements = Vec::new();
    let mut ended: Vec<&EndedAttempt<'_>> = record.ended.iter().collect();
    for copy in &record.copies {
        let Some(message) = &record.message else {
            return Err(DatabaseError::other(RECORDING, "copies without their message: a mistake in this program"));
        };
        statements.push(match copy.state {
            CopyState::Delivered(placement) => {
                let end = ended.iter().position(|one| cached && one.key == copy.key).map(|place| ended.remove(place));
                delivered(dialect, values_of_copy(message, copy, placement), end)
            }
            CopyState::Owed(reason) => owed_copy(dialect, message, copy, reason),
        });
    }
    statements.extend(ended.into_iter().map(|one| {
        let [attempt, outcome, stages] = literals(dialect, values_of_end(one, &one.outcome.to_string()));
        ended_attempt(dialect, [&dialect.literal(Value::Bytes(one.key.as_bytes())), &attempt, &outcome, &stages])
    }));
    // Without subscriptions, this costs a read of an empty table. MySQL has read it before its transaction.
    let if_subscribed = match dialect {
        Dialect::Postgresql => "WHERE EXISTS (SELECT 1 FROM subscriptions)",
        Dialect::Mysql | Dialect::Mariadb => "FROM DUAL WHERE @maildrop_subscribed",
        // An embedded database has no subscribers.
        Dialect::Sqlite => return Ok(statements),
    };
    statements.extend(record.events.iter().map(|one| event(dialect, one, if_subscribed)));
    Ok(statements)
}
