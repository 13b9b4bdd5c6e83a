//! Deliveries that failed before their journal: the table `failures`, with a row for each message and recipient.
//!
//! No delivery reads it, and no lock or result depends on it. A row is written if that is possible at once. What was
//! delivered since is left out when the rows are read: the record of a delivery never touches them.

use super::activity::{ResultFilter, like, outcome_is};
use super::event::{Diff, EventRecord, EventType};
use super::message_addresses::AddressPattern;
use super::{AttemptResult, Cause, CopyKey, Database, Outcome, statements, time_span};
use crate::base::{hex, timestamp};
use crate::database::{DatabaseError, DatabaseFailure, Dialect, Query, Value, columns_of};
use crate::lock::LockName;
use crate::message::{Identity, Role};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use uuid::Uuid;

/// How long the answer to the write is awaited. Until then nobody but the client of the failed delivery waits.
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a row is kept: longer than Postfix keeps a message (`maximal_queue_lifetime`, 5 days).
pub(crate) const RETENTION: Duration = Duration::from_hours(7 * 24);

/// How many unknown recipients get a row in each hour, on all hosts together. The table `unknown_recipients` counts them all.
const UNKNOWN_RECIPIENTS_PER_HOUR: usize = 1000;

/// How many texts of causes are counted, the most frequent: some name an address or a size.
const MOST_CAUSES: usize = 1000;

/// Rows of a page of all failures.
const PAGE: usize = 500;

pub(super) const RECORDING_FAILURES: &str = "recording deliveries that failed before their journal";

/// The most characters of a recipient, which is part of the key (RFC 5321 section 4.5.3.1: 64 and 255 octets), and of a text.
const RECIPIENT_LIMIT: usize = 320;
const TEXT_LIMIT: usize = 1000;

/// A delivery to one recipient that failed before its journal.
#[derive(Clone, Debug)]
pub struct FailureRecord<'a> {
    pub identity: &'a Identity,
    /// The envelope recipient, folded.
    pub recipient: &'a str,
    /// The user and the name of the recipient's mailbox, if they are known.
    pub mailbox: Option<(&'a str, &'a str)>,
    pub lock: &'a LockName,
    /// The envelope sender; empty for the null sender, `None` if it is unknown.
    pub sender: Option<&'a str>,
    /// The decoded From.
    pub author: Option<&'a str>,
    pub subject: Option<&'a str>,
    pub message_id: &'a str,
    pub queue_id: Option<&'a str>,
    pub host: &'a str,
    pub outcome: Outcome,
}

impl FailureRecord<'_> {
    fn is_refused_as_unknown(&self) -> bool {
        matches!(&self.outcome, Outcome::Refused(why) if why == Cause::UnknownRecipient.as_str())
    }
}

/// Writes the failures and their events. If the server refuses a value, or a right is missing for the events, only the failures
/// are written, without what the author wrote.
///
/// # Errors
/// The error of the last `write`.
pub(super) fn record_with_fallback(
    failures: &[FailureRecord<'_>],
    dialect: Dialect,
    mut write: impl FnMut(Vec<String>) -> Result<(), DatabaseError>,
) -> Result<(), DatabaseError> {
    // Its refusal has counted an unknown recipient already. On MySQL, an INSERT that reads the table would lock its rows.
    let limit = (is_mysql(dialect) && failures.iter().any(FailureRecord::is_refused_as_unknown))
        .then(|| format!("SELECT {} INTO @maildrop_unknown", unknown_recipients_in_hour(dialect)));
    let with_limit = |statements: Vec<String>| limit.iter().cloned().chain(statements).collect();
    match write(with_limit(with_events(dialect, failures))) {
        Err(error) if matches!(error.failure, DatabaseFailure::Refused | DatabaseFailure::AccessDenied) => {
            let mut bare = failures.to_vec();
            bare.iter_mut().for_each(|failure| (failure.author, failure.subject) = (None, None));
            write(with_limit(bare.iter().map(|failure| upsert(dialect, failure)).collect()))
        }
        written => written,
    }
}

/// The failures, and an event for the first try of each deferred delivery if a subscription names that type.
fn with_events(dialect: Dialect, failures: &[FailureRecord<'_>]) -> Vec<String> {
    let named = format!("'{}'", EventType::MessageDeferred.as_str());
    let mut statements = Vec::new();
    if is_mysql(dialect) {
        // An INSERT that reads the table would wait for sessions that change a subscription, and in the transaction the read
        // would fix its snapshot. Without the transaction, a try would count twice if its event cannot be written.
        statements.push(format!(
            "SELECT EXISTS (SELECT 1 FROM subscriptions WHERE JSON_CONTAINS(types, JSON_QUOTE({named}))) INTO @maildrop_named"
        ));
        statements.push("START TRANSACTION".into());
    }
    for failure in failures {
        let (recipient, cause) = (limited(failure.recipient, RECIPIENT_LIMIT), failure.outcome.to_string());
        let event = |rows: &str| {
            let event = EventRecord {
                event: Uuid::now_v7(),
                kind: EventType::MessageDeferred,
                // The mailbox may be unknown yet. One such event exists for a message and recipient.
                key: CopyKey::new(failure.identity, Role::Recipient, &recipient, ""),
                role: Role::Recipient,
                user: "",
                mailbox: "",
                recipient: &recipient,
                identity: failure.identity,
                message_id: failure.message_id,
                manner: None,
                attempt: None,
                queue_id: failure.queue_id,
                host: failure.host,
                diff: Diff::deferred(&limited(&cause, TEXT_LIMIT)),
            };
            statements::event(dialect, &event, rows)
        };
        let upsert = upsert(dialect, failure);
        match dialect {
            _ if matches!(failure.outcome, Outcome::Refused(_)) => statements.push(upsert),
            // A row that was inserted, and not updated, has no xmax.
            Dialect::Postgresql => statements.push(format!(
                "WITH written AS ({upsert} RETURNING xmax = 0 AS is_first) {}",
                event(&format!(
                    "FROM written WHERE is_first AND EXISTS (SELECT 1 FROM subscriptions WHERE {named} = ANY (types))"
                ))
            )),
            // 1: inserted; 2: updated (reference manual, "INSERT ... ON DUPLICATE KEY UPDATE").
            Dialect::Mysql | Dialect::Mariadb => {
                statements.extend([upsert, event("FROM DUAL WHERE ROW_COUNT() = 1 AND @maildrop_named")]);
            }
            // An embedded database has no subscribers.
            Dialect::Sqlite => statements.push(upsert),
        }
    }
    statements.extend(is_mysql(dialect).then(|| "COMMIT".into()));
    statements
}

fn is_mysql(dialect: Dialect) -> bool {
    matches!(dialect, Dialect::Mysql | Dialect::Mariadb)
}

/// How many unknown recipients all hosts have refused in this hour.
fn unknown_recipients_in_hour(dialect: Dialect) -> String {
    format!("(SELECT coalesce(sum(u.in_hour), 0) FROM unknown_recipients u WHERE u.last_at >= {})", dialect.this_hour())
}

/// Inserts a failure, or counts one more try.
fn upsert(dialect: Dialect, failure: &FailureRecord<'_>) -> String {
    let now = statements::now(dialect);
    let text =
        |text: Option<&str>| dialect.literal(Value::optional_text(text.map(|it| limited(it, TEXT_LIMIT)).as_deref()));
    let (queue_id, host, cause) =
        (text(failure.queue_id), text(Some(failure.host)), text(Some(&failure.outcome.to_string())));
    let (user, mailbox) = (text(failure.mailbox.map(|(user, _)| user)), text(failure.mailbox.map(|(_, name)| name)));
    let values = [
        dialect.literal(Value::Bytes(failure.identity.as_bytes())),
        dialect.literal(Value::Text(&limited(failure.recipient, RECIPIENT_LIMIT))),
        dialect.literal(Value::Bytes(failure.lock.digest())),
        text(failure.sender),
        text(failure.author),
        text(failure.subject),
        text(Some(failure.message_id)),
        queue_id.clone(),
        host.clone(),
        cause.clone(),
        user.clone(),
        mailbox.clone(),
    ]
    .join(", ");
    let from = if is_mysql(dialect) { "FROM DUAL " } else { "" };
    let condition = match failure.is_refused_as_unknown() {
        true if is_mysql(dialect) => format!("@maildrop_unknown <= {UNKNOWN_RECIPIENTS_PER_HOUR}"),
        true => format!("{} <= {UNKNOWN_RECIPIENTS_PER_HOUR}", unknown_recipients_in_hour(dialect)),
        // SQLite's parser wants a condition before ON CONFLICT.
        false => "1 = 1".into(),
    };
    let update = format!(
        "queue_id = {queue_id}, host = {host}, cause = {cause}, count = failures.count + 1, last_at = {now}, \
         imap_user = {user}, mailbox = {mailbox}"
    );
    format!(
        "INSERT INTO failures (identity, recipient, lock_digest, sender, author, subject, message_id, queue_id, host, cause, \
         imap_user, mailbox, count, first_at, last_at) SELECT {values}, 1, {now}, {now} {from}WHERE {condition} {}",
        dialect.or_update("identity, recipient", &update)
    )
}

/// The text, cut to so many characters.
fn limited(text: &str, characters: usize) -> Cow<'_, str> {
    match text.char_indices().nth(characters) {
        Some((end, _)) => Cow::Borrowed(&text[..end]),
        None => Cow::Borrowed(text),
    }
}

/// How many deliveries have failed since a time, in microseconds since 1970.
pub(crate) fn count(database: &mut dyn Database, since: i64) -> Result<u64, DatabaseError> {
    let sql = format!("SELECT count(*) FROM failures f WHERE f.first_at >= ? AND {STILL_FAILED}");
    let doing = "counting the deliveries that failed before their journal";
    Ok(database.query_number(doing, &sql, &[Value::Moment(since)])?.unsigned_abs())
}

/// The deliveries that wait for a retry, since they failed before their journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitingDeliveries {
    pub(crate) all: u64,
    /// Those of which an earlier attempt was deferred.
    pub(crate) with_attempt: u64,
    /// The most frequent cause ([`Cause::as_str`]), how many have it, and when the first of them failed, in microseconds
    /// since 1970.
    pub(crate) cause: &'static str,
    pub(crate) of_cause: u64,
    pub(crate) since: i64,
}

/// The deliveries that wait for a retry and were last tried since a time, in microseconds since 1970. `None` if there are none.
pub(crate) fn waiting(
    database: &mut dyn Database,
    last_tried_since: i64,
) -> Result<Option<WaitingDeliveries>, DatabaseError> {
    let dialect = database.dialect();
    let sql = format!(
        "SELECT w.cause, count(*), sum(w.tried), {} FROM (SELECT f.cause, f.first_at, CASE WHEN EXISTS (SELECT 1 FROM attempts a \
         WHERE a.lock_digest = f.lock_digest AND a.identity = f.identity AND a.recipient = f.recipient AND a.started_at >= ? \
         AND a.role = 'recipient' AND {}) THEN 1 ELSE 0 END AS tried FROM failures f WHERE f.first_at >= ? AND f.last_at >= ? \
         AND f.cause LIKE 'deferred: %' AND {STILL_FAILED}) w GROUP BY w.cause ORDER BY count(*) DESC LIMIT {MOST_CAUSES}",
        dialect.microseconds("min(w.first_at)"),
        outcome_is(ResultFilter::Deferred),
    );
    let since = Value::Moment(last_tried_since);
    let first = Value::Moment(last_tried_since.saturating_sub(time_span::microseconds(RETENTION)));
    let rows: Vec<(Outcome, u64, u64, i64)> =
        database.query("counting the deliveries that wait", &sql, &[since, first, since])?;
    let (mut all, mut with_attempt) = (0, 0);
    let mut causes: BTreeMap<&'static str, (u64, i64)> = BTreeMap::new();
    for (cause, count, tried, first) in rows {
        let AttemptResult::Deferred(cause) = AttemptResult::of_copy(Some(&cause)) else { continue };
        (all, with_attempt) = (all + count, with_attempt + tried);
        let (of_cause, since) = causes.entry(cause).or_insert((0, first));
        (*of_cause, *since) = (*of_cause + count, first.min(*since));
    }
    let most = causes.into_iter().max_by_key(|(_, (count, _))| *count);
    Ok(most.map(|(cause, (of_cause, since))| WaitingDeliveries { all, with_attempt, cause, of_cause, since }))
}

/// Calls `see` for each failure since a time, in microseconds since 1970, also if it is over. Some hundred are in memory at a
/// time.
pub(crate) fn each_failure(
    database: &mut dyn Database,
    since: i64,
    mut see: impl FnMut(&FailedDelivery),
) -> Result<(), DatabaseError> {
    let mut page = failed_deliveries(database, FailuresOf::Ever(since), None, PAGE)?;
    while let Some(last) = page.last() {
        page.iter().for_each(&mut see);
        page = failed_deliveries(database, FailuresOf::Ever(since), Some(&last.cursor()), PAGE)?;
    }
    Ok(())
}

/// A delivery that failed before its journal.
#[derive(Clone, Debug, Serialize)]
pub struct FailedDelivery {
    #[serde(skip)]
    pub identity: Identity,
    #[serde(skip)]
    pub lock: LockName,
    pub recipient: String,
    pub sender: Option<String>,
    pub author: Option<String>,
    pub subject: Option<String>,
    pub message_id: String,
    pub queue_id: Option<String>,
    pub host: String,
    #[serde(serialize_with = "as_reason")]
    pub cause: Outcome,
    /// How many tries have failed.
    pub count: u64,
    /// When the first and the last of them failed, in microseconds since 1970.
    #[serde(serialize_with = "timestamp::serialize")]
    pub first_at: i64,
    #[serde(serialize_with = "timestamp::serialize")]
    pub last_at: i64,
    /// Whether it was delivered or refused since, as far as the ledger knows.
    pub is_over: bool,
}

/// The place of a failure among all, the newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureCursor {
    pub first_at: i64,
    pub identity: Identity,
    pub recipient: String,
}

impl FailureCursor {
    /// The place behind all failures of this time and later, in microseconds since 1970.
    pub(crate) fn before(moment: i64) -> Self {
        Self { first_at: moment, identity: Identity::from_bytes([0; 32]), recipient: String::new() }
    }

    /// Parses what its `Display` writes.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '.');
        let (first_at, identity, recipient) = (parts.next()?, parts.next()?, parts.next()?);
        let identity = Identity::from_bytes(hex::decode(identity)?.try_into().ok()?);
        Some(Self { first_at: first_at.parse().ok()?, identity, recipient: recipient.to_owned() })
    }
}

impl fmt::Display for FailureCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.first_at, hex::encode(self.identity.as_bytes()), self.recipient)
    }
}

impl FailedDelivery {
    /// Its place among all.
    #[must_use]
    pub fn cursor(&self) -> FailureCursor {
        FailureCursor { first_at: self.first_at, identity: self.identity, recipient: self.recipient.clone() }
    }

    /// Whether it was refused for good, so that no further try follows.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        matches!(self.cause, Outcome::Refused(_))
    }

    /// Whether no row of `addresses` had the recipient.
    pub(crate) fn is_unknown_recipient(&self) -> bool {
        self.cause.reason() == Cause::UnknownRecipient.as_str()
    }
}

fn as_reason<S: Serializer>(cause: &Outcome, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&cause.to_string())
}

columns_of! { FailedDelivery:
    identity, lock, recipient, sender, author, subject, message_id, queue_id, host, cause, count, first_at, last_at, is_over
}

/// Which failures are read.
#[derive(Clone, Copy, Debug)]
pub enum FailuresOf<'a> {
    /// Of one message, also those that are over.
    Message(&'a [u8; 32]),
    /// All messages of a Message-ID.
    Lock(&'a LockName),
    /// Since this time, in microseconds since 1970.
    QueueId(&'a str, i64),
    /// Those with an envelope recipient or sender like this, since this time.
    Addresses(&'a AddressPattern, i64),
    /// Those with this in their subject or author, since this time.
    Piece(&'a str, i64),
    /// All since this time.
    Since(i64),
    /// All since this time, also those that are over.
    Ever(i64),
}

/// Whether a delivery `f` has neither been delivered nor refused since. A copy in its mailbox says so, which may have come for
/// another address of the mailbox; or an attempt after whose message or copy is pruned, or which found another address's copy.
pub(super) const STILL_FAILED: &str = "NOT EXISTS (SELECT 1 FROM messages m JOIN copies c ON c.message = m.id \
         WHERE m.identity = f.identity AND (c.recipient = f.recipient OR (c.imap_user = f.imap_user AND c.mailbox = f.mailbox)) \
         AND c.role = 'recipient' AND c.state = 'delivered') \
     AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.lock_digest = f.lock_digest AND a.identity = f.identity \
         AND a.recipient = f.recipient AND a.role = 'recipient' \
         AND (a.outcome IN ('appended', 'adopted', 'already there', 'already there; not looked for') OR a.outcome LIKE 'refused: %'))";

/// The failures of deliveries, the newest first by their first try, at most `limit`. The next page begins behind (`after`) the
/// last failure of the page before.
pub fn failed_deliveries(
    database: &mut dyn Database,
    of: FailuresOf<'_>,
    after: Option<&FailureCursor>,
    limit: usize,
) -> Result<Vec<FailedDelivery>, DatabaseError> {
    let dialect = database.dialect();
    let pattern = match of {
        FailuresOf::Addresses(pattern, _) => pattern.like(),
        FailuresOf::Piece(piece, _) => like(piece),
        _ => String::new(),
    };
    let (mut condition, mut values) = match of {
        FailuresOf::Message(identity) => ("f.identity = ?", vec![Value::Bytes(identity)]),
        FailuresOf::Lock(lock) => ("f.lock_digest = ?", vec![Value::Bytes(lock.digest())]),
        FailuresOf::QueueId(queue_id, since) => {
            ("f.first_at >= ? AND f.queue_id = ?", vec![Value::Moment(since), Value::Text(queue_id)])
        }
        // At most the rows of a week are read: a row goes after `RETENTION`.
        FailuresOf::Addresses(_, since) => (
            "f.first_at >= ? AND (f.recipient LIKE ? ESCAPE '!' OR lower(f.sender) LIKE ? ESCAPE '!')",
            vec![Value::Moment(since), Value::Text(&pattern), Value::Text(&pattern)],
        ),
        FailuresOf::Piece(_, since) => (
            "f.first_at >= ? AND (lower(f.subject) LIKE ? ESCAPE '!' OR lower(f.author) LIKE ? ESCAPE '!')",
            vec![Value::Moment(since), Value::Text(&pattern), Value::Text(&pattern)],
        ),
        FailuresOf::Since(since) | FailuresOf::Ever(since) => ("f.first_at >= ?", vec![Value::Moment(since)]),
    };
    let behind;
    if let Some(last) = after {
        // MySQL cannot use an index for a comparison of rows alone.
        behind = format!("{condition} AND f.first_at <= ? AND (f.first_at, f.identity, f.recipient) < (?, ?, ?)");
        condition = &behind;
        values.extend([Value::Moment(last.first_at); 2]);
        values.extend([Value::Bytes(last.identity.as_bytes()), Value::Text(&last.recipient)]);
    }
    let (is_over, condition) = match of {
        FailuresOf::Message(_) | FailuresOf::Ever(_) => {
            (format!("CASE WHEN {STILL_FAILED} THEN 0 ELSE 1 END"), condition.to_owned())
        }
        _ => ("0".to_owned(), format!("{condition} AND {STILL_FAILED}")),
    };
    let sql = format!(
        "SELECT {}, {}, f.recipient, f.sender, f.author, f.subject, f.message_id, f.queue_id, f.host, f.cause, f.count, {}, {}, {is_over} \
         FROM failures f WHERE {condition} ORDER BY f.first_at DESC, f.identity DESC, f.recipient DESC LIMIT {limit}",
        dialect.hex("f.identity"),
        dialect.hex("f.lock_digest"),
        dialect.microseconds("f.first_at"),
        dialect.microseconds("f.last_at")
    );
    database.query("reading the deliveries that failed before their journal", &sql, &values)
}
