//! What the notifier reads and writes: events are published, subscriptions are leased, tries are settled. A file per engine.
//!
//! - Publishing: rows of `outbox` become rows of `events`, whose positions are in the order of the commits, and of
//!   `notifications`, one for each subscription that wants them. Under a named lock, so that one notifier does it at a time.
//! - A *subscription* is leased, and not each notification: a lease is one small row, so that many notifications that wait cost a
//!   poll nothing, and one receiver is served by one notifier, in order where that is asked for.
//! - Claims compare with `now()`, which an index can serve, and not with `clock_timestamp()`.
//! - Settling locks the row of `subscription_queues` first, and asks what is due next in a later statement. Publishing inserts
//!   first, and locks then. So that whoever comes second sees what the first one did, and no wake-up is lost.

pub(crate) mod history;
pub(crate) mod many;
mod mysql;
pub(crate) mod of_message;
pub(crate) mod overview;
mod postgres;
mod receiver;
pub(crate) mod tries;

use super::columns;
use crate::database::{DatabaseError, DatabaseFailure, Dialect, Row, SqliteDatabase, Tables, Value};
use crate::lock::LockName;
use std::fmt::Write;
use std::time::Duration;
use uuid::Uuid;

/// The type of what is sent to see that it comes. It is told to the one subscription that stands in the place of the attempt, and
/// is about no copy.
pub(crate) const TEST: &str = "subscription.test";

/// The longest header fields that are told, all together, in bytes, as JSON.
pub(crate) const LONGEST_HEADERS: usize = 16 << 10;

/// How much of a header's JSON is read, in characters: the server has up to three blanks more in each field, of at least seven bytes.
const READ_OF_HEADERS: usize = LONGEST_HEADERS * 3 / 2;

/// A notification takes no more memory, in bytes: a header of characters of four bytes each, and what [a message](crate::message) says
/// of itself, which is cut when it is recorded.
pub(crate) const LARGEST_DUE: usize = 160 << 10;

/// How many events are published in one transaction.
pub(crate) const PUBLISHED_AT_ONCE: usize = 500;

/// Reads these tables. `None` where there are no subscribers, as on an embedded site; where the tables are not there yet; and where
/// our role may not see them, as that of deliveries. PostgreSQL writes each refusal in its log, so it is asked first; the others
/// are asked at once, and may refuse.
fn if_readable<D: Tables + ?Sized, T>(
    database: &mut D,
    tables: &str,
    read: impl FnOnce(&mut D) -> Result<T, DatabaseError>,
) -> Result<Option<T>, DatabaseError> {
    let dialect = database.dialect();
    if dialect == Dialect::Sqlite || (dialect == Dialect::Postgresql && !may_be_read(database, tables)?) {
        return Ok(None);
    }
    match read(database) {
        Ok(read) => Ok(Some(read)),
        Err(error) if matches!(error.failure, DatabaseFailure::AccessDenied | DatabaseFailure::Schema) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether our role may read these tables of PostgreSQL, and they are there.
fn may_be_read(database: &mut (impl Tables + ?Sized), tables: &str) -> Result<bool, DatabaseError> {
    let sql = "SELECT CASE WHEN bool_and(coalesce(has_table_privilege(to_regclass(name), 'SELECT'), false)) THEN 1 ELSE 0 END \
               FROM string_to_table(?, ' ') name";
    let rows = database.select("asking what may be read of notifications", sql, &[Value::Text(tables)])?;
    Ok(columns::only_number::<u8>(&rows)? == 1)
}

/// Which subscriptions are looked at that ought to be served, and that nobody has woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    Nobody,
    /// Those that are not asked yet, and those that somebody has changed of late: resumed, say.
    Changed,
    /// All. Whoever has been told a lot while somebody holds an old snapshot costs as many blocks as rows of his are dead.
    All,
}

/// What came of publishing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// So many events, up to this position in `outbox`; 0: none.
    Events { count: usize, last: i64 },
    /// Another notifier is at it.
    Busy,
}

/// Whether a subscription is told of anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscriptionState {
    /// Its receiver has not answered its first question yet.
    Unverified,
    Active,
    /// Paused by people, disabled, expired or removed: it is told of nothing.
    Idle,
}

/// A subscription that is leased.
#[derive(Clone, Debug, PartialEq)]
pub struct Leased {
    pub subscription: Uuid,
    /// Whose it is.
    pub owner: String,
    pub callback_url: String,
    /// Whether it is told everything about a message.
    pub full: bool,
    pub in_order: bool,
    /// How many requests it may have at once.
    pub max_in_flight: u32,
    pub secret_generation: u32,
    /// How long ago it was given its present secret, if it had another one before.
    pub secret_age: Option<Duration>,
    pub state: SubscriptionState,
    /// How long it has been as it is: a callback that was changed has its time to answer, however old the subscription is.
    pub age: Duration,
    /// How many tries have failed in a row, and since when.
    pub failures: u32,
    pub failing_for: Duration,
    /// A notifier has ended without giving it back, and had leased so many at most; 0: this one alone, and so had the one before it.
    pub ended_among: Option<u32>,
}

/// Which subscriptions are leased now.
#[derive(Clone, Debug, PartialEq)]
struct Choice {
    /// Of each, [`Leased::ended_among`].
    subscriptions: Vec<(Uuid, Option<u32>)>,
    /// What is written down of all of them, should this notifier end before it has given them back.
    among: u32,
}

impl Choice {
    /// Of those that are due, in their order. Where a notifier had leased too much to live, this one has leased half as many at once, and
    /// at last one alone; with those that it has leased already.
    fn of(mut due: Vec<(Uuid, Option<u32>)>, in_hand: usize) -> Self {
        let Some(least) = due.iter().filter_map(|(_, ended_among)| *ended_among).min() else {
            // More may be leased beside them later: no one that was leased like this counts as alone.
            let among = u32::try_from(in_hand + due.len()).unwrap_or(u32::MAX).max(2);
            return Self { subscriptions: due, among };
        };
        due.sort_by_key(|(_, ended_among)| ended_among.unwrap_or(u32::MAX));
        due.truncate(at_most_after(least).saturating_sub(in_hand));
        Self { subscriptions: due, among: least / 2 }
    }

    fn is_empty(&self) -> bool {
        self.subscriptions.is_empty()
    }

    /// The same of those that were leased.
    fn leased(&self, rows: &[Row]) -> Result<Vec<Leased>, DatabaseError> {
        let leased = rows.iter().map(|row| {
            let mut leased = leased_of(row)?;
            let chosen = self.subscriptions.iter().find(|(id, _)| *id == leased.subscription);
            leased.ended_among = chosen.and_then(|(_, ended_among)| *ended_among);
            Ok(leased)
        });
        leased.collect()
    }
}

/// How many a notifier has leased at most, while it has one that another notifier has ended with among so many.
pub(crate) fn at_most_after(ended_among: u32) -> usize {
    usize::try_from(ended_among / 2).unwrap_or(usize::MAX).max(1)
}

/// A notification that is due, with its event.
#[derive(Clone, Debug, PartialEq)]
pub struct Due {
    /// The event's position.
    pub position: i64,
    /// How many tries have failed.
    pub tries: u32,
    /// Since when it is due, in microseconds since 1970. Where that is another moment once a try is settled, somebody has asked for
    /// it meanwhile, or another notifier has tried it.
    pub due_at: i64,
    pub event: Uuid,
    pub event_type: String,
    /// Hexadecimal digits.
    pub copy_key: String,
    pub identity: String,
    pub message_id: String,
    pub role: String,
    pub recipient: String,
    pub imap_user: String,
    pub mailbox: String,
    pub manner: Option<String>,
    pub attempt: Option<Uuid>,
    pub queue_id: Option<String>,
    pub host: String,
    /// JSON.
    pub diff: String,
    /// In microseconds since 1970.
    pub created_at: i64,
    /// Where everything is asked for, and the message is recorded.
    pub message: Option<MessageDetail>,
}

/// What is known of a message.
#[derive(Clone, Debug, PartialEq)]
pub struct MessageDetail {
    pub sender: String,
    pub from: Option<String>,
    pub to: Option<String>,
    pub cc: Option<String>,
    pub subject: Option<String>,
    /// In microseconds since 1970.
    pub date: Option<i64>,
    /// JSON: `[["Name", "value"], …]`, or its beginning, which may end anywhere.
    pub headers: String,
    pub size: u64,
}

impl Due {
    /// How much memory it takes, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let optional = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let message = self.message.as_ref().map_or(0, |message| {
            let MessageDetail { sender, from, to, cc, subject, date: _, headers, size: _ } = message;
            sender.len() + headers.len() + [from, to, cc, subject].map(optional).iter().sum::<usize>()
        });
        let texts = [
            &self.event_type,
            &self.copy_key,
            &self.identity,
            &self.message_id,
            &self.role,
            &self.recipient,
            &self.imap_user,
            &self.mailbox,
            &self.host,
            &self.diff,
        ];
        let texts: usize = texts.iter().map(|text| text.len()).sum();
        size_of::<Self>() + texts + optional(&self.manner) + optional(&self.queue_id) + message
    }
}

/// What became of one try, for its notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The receiver has it.
    Done,
    /// It is tried again, so long from now.
    Again(Duration),
    /// It is not tried again by itself.
    GivenUp,
}

/// One try.
#[derive(Clone, Debug, PartialEq)]
pub struct Try {
    /// The event's position; `None` for a question that is about no event.
    pub position: Option<i64>,
    /// Since when it was due, as it was read.
    pub due_at: i64,
    /// In microseconds since 1970.
    pub started_at: i64,
    pub took: Duration,
    /// Of the answer, if one came.
    pub status: Option<u16>,
    /// In one line: `answered 503`.
    pub outcome: String,
    /// The beginning of the answer, where it may be shown.
    pub response: Option<String>,
    pub next: Next,
}

/// How a subscription is left.
#[derive(Clone, Debug, PartialEq)]
pub struct Settlement<'a> {
    pub subscription: Uuid,
    pub in_order: bool,
    /// Who has leased it.
    pub by: Uuid,
    /// For how long it is leased from now on; `None`: it is given back.
    pub lease: Option<Duration>,
    pub host: &'a str,
    pub tries: &'a [Try],
    /// How many tries have failed in a row by now.
    pub failures: u32,
    /// For how long nothing is sent at all.
    pub open_for: Option<Duration>,
    /// A new state, and why.
    pub state: Option<(&'a str, Option<&'a str>)>,
    /// The callback that was asked: it alone gets that state. One that its owner has set meanwhile has answered nothing.
    pub callback: &'a str,
    /// Whether it is told of nothing, so that it need not be served.
    pub idle: bool,
    /// Whether the next notifier is to lease it alone, since others have ended with it.
    pub alone: bool,
}

impl Settlement<'_> {
    /// What becomes of `subscription_queues.leased_among`.
    fn leased_among(&self) -> &'static str {
        match (self.lease, self.alone) {
            (Some(_), _) => "leased_among",
            (None, true) => "1",
            (None, false) => "NULL",
        }
    }
}

/// What the notifier reads and writes. An embedded database has no subscriptions.
pub trait Notifications: Tables {
    /// Publishes what deliveries have written, the oldest first, in one transaction under this lock, and looks for subscriptions that
    /// ought to be served and are not. From the first one on: what was written before, and committed late, comes
    /// before what was committed after it. Else two events of one copy could change places, and the older one have the greater
    /// sequence.
    ///
    /// # Errors
    /// Where it may not be committed. Then nothing is published.
    fn publish(&mut self, _lock: &LockName, _wake: Wake) -> Result<Published, DatabaseError> {
        Err(no_subscriptions())
    }

    /// Whether anything is to be published after this position. What was published before it may be there still for the server, dead,
    /// as long as anybody holds an old snapshot: it is not read again.
    ///
    /// # Errors
    /// Where it cannot be read.
    fn has_unpublished(&mut self, after: i64) -> Result<bool, DatabaseError> {
        let first = "SELECT position FROM outbox WHERE position > ? ORDER BY position LIMIT 1";
        Ok(!self.select("looking for events", first, &[Value::Integer(after)])?.is_empty())
    }

    /// Leases subscriptions that are due, at most so many, the longest due first; those that somebody else is taking are left out, and so
    /// are those of the owners that are served enough. Fewer, or none beside those that are in hand, where a notifier has ended without
    /// giving them back.
    ///
    /// # Errors
    /// Where it may not be committed.
    fn lease(
        &mut self,
        _by: Uuid,
        _lease: Duration,
        _most: usize,
        _served: &[&str],
        _in_hand: usize,
    ) -> Result<Vec<Leased>, DatabaseError> {
        Err(no_subscriptions())
    }

    /// Leases for longer what is leased; returns what is not ours any more.
    ///
    /// # Errors
    /// Where it may not be committed.
    fn lease_longer(&mut self, by: Uuid, lease: Duration, subscriptions: &[Uuid]) -> Result<Vec<Uuid>, DatabaseError> {
        if subscriptions.is_empty() {
            return Ok(Vec::new());
        }
        let (dialect, doing) = (self.dialect(), "leasing subscriptions for longer");
        let now = now(self);
        let until = later(self, lease);
        let places = vec!["?"; subscriptions.len()].join(", ");
        let mut values = vec![Value::Uuid(by)];
        values.extend(subscriptions.iter().map(|id| Value::Uuid(*id)));
        let whose = format!("leased_by = ? AND subscription IN ({places})");
        let longer = format!("UPDATE subscription_queues SET leased_until = {until} WHERE {whose}");
        self.change(doing, &longer, &values)?;
        let ours = format!(
            "SELECT {} FROM subscription_queues WHERE {whose} AND leased_until > {now}",
            dialect.uuid("subscription")
        );
        let rows = self.select(doing, &ours, &values)?;
        let kept = rows.iter().map(|row| uuid(row, 0)).collect::<Result<Vec<_>, _>>()?;
        Ok(subscriptions.iter().copied().filter(|id| !kept.contains(id)).collect())
    }

    /// The notifications of a subscription that are due, but for those of these positions, at most so many. In order: none after
    /// one that is not settled.
    ///
    /// # Errors
    /// Where they cannot be read.
    fn due(&mut self, leased: &Leased, except: &[i64], most: usize) -> Result<Vec<Due>, DatabaseError> {
        let mut except = except.iter().fold(String::new(), |mut list, position| {
            let _ = write!(list, "{}{position}", if list.is_empty() { "" } else { ", " });
            list
        });
        if !except.is_empty() {
            except = format!("AND n.event NOT IN ({except})");
        }
        let now = now(self);
        let (due, order) = if leased.in_order {
            ("n.due_at IS NOT NULL".to_owned(), "n.event")
        } else {
            (format!("n.due_at <= {now}"), "n.due_at, n.event")
        };
        let (columns, join) = if leased.full {
            let columns = format!(
                ", m.sender, m.header_from, m.header_to, m.header_cc, m.subject, {}, LEFT({}, {READ_OF_HEADERS}), m.size",
                self.dialect().microseconds("m.sent_at"),
                text_of_json(self, "m.headers")
            );
            (columns, "LEFT JOIN messages m ON m.identity = e.identity")
        } else {
            (String::new(), "")
        };
        let select = format!(
            "SELECT n.event, n.tries, {}, CASE WHEN n.due_at <= {now} THEN {} END{columns} \
             FROM notifications n JOIN events e ON e.position = n.event {join} \
             WHERE n.subscription = ? AND {due} {except} ORDER BY {order} LIMIT {most}",
            event_columns(self),
            self.dialect().microseconds("n.due_at"),
        );
        let rows = self.select("reading what is due", &select, &[Value::Uuid(leased.subscription)])?;
        // In order, whatever comes after one that has to wait waits, too.
        let rows = rows.iter().take_while(|row| row.text(17).is_some());
        rows.map(|row| due_of(row, leased.full)).collect()
    }

    /// Writes down what came of tries, and how their subscriptions are left, in one transaction. In the order of their ids, as publishing
    /// wakes them. A notification that somebody has asked for meanwhile stays as it is, and is told again: an answer that was under way is
    /// not the one that was asked for. One that was given up meanwhile and was taken all the same is done. Returns the subscriptions that
    /// are not leased to us any more, or are gone: their tries are written down, and how they are left is somebody else's to say.
    ///
    /// # Errors
    /// Where it may not be committed. Then nothing is written down, and what was sent is sent again.
    fn settle(&mut self, _settlements: &[Settlement<'_>]) -> Result<Vec<Uuid>, DatabaseError> {
        Err(no_subscriptions())
    }
}

impl Notifications for SqliteDatabase {}

fn no_subscriptions() -> DatabaseError {
    DatabaseError::other("telling subscribers", "an embedded database has no table of subscriptions")
}

/// The beginning of the statement, which an index can be compared with.
fn now<T: Tables + ?Sized>(database: &T) -> &'static str {
    match database.dialect() {
        Dialect::Postgresql => "now()",
        _ => "UTC_TIMESTAMP(6)",
    }
}

/// So long after it.
fn later<T: Tables + ?Sized>(database: &T, wait: Duration) -> String {
    moment(database, '+', wait)
}

/// So long before it.
fn earlier<T: Tables + ?Sized>(database: &T, ago: Duration) -> String {
    moment(database, '-', ago)
}

fn moment<T: Tables + ?Sized>(database: &T, sign: char, from_now: Duration) -> String {
    let micros = i64::try_from(from_now.as_micros()).unwrap_or(i64::MAX);
    match database.dialect() {
        Dialect::Postgresql => format!("(now() {sign} {micros} * interval '1 microsecond')"),
        _ => format!("(UTC_TIMESTAMP(6) {sign} INTERVAL {micros} MICROSECOND)"),
    }
}

fn text_of_json<T: Tables + ?Sized>(database: &T, column: &str) -> String {
    match database.dialect() {
        Dialect::Postgresql => format!("{column}::text"),
        _ => format!("CAST({column} AS CHAR)"),
    }
}

/// Of these, the ones that are not among those that the database says are leased to us.
fn lost(settlements: &[Settlement<'_>], ours: &[Option<Uuid>]) -> Vec<Uuid> {
    settlements.iter().map(|one| one.subscription).filter(|id| !ours.contains(&Some(*id))).collect()
}

fn uuid(row: &Row, index: usize) -> Result<Uuid, DatabaseError> {
    row.digest::<16>(index).map(Uuid::from_bytes)
}

fn seconds(row: &Row, index: usize) -> Result<Option<Duration>, DatabaseError> {
    // Negative where a clock was set back.
    Ok(row.value::<f64>(index)?.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default()))
}

/// Which rows of `subscription_queues` may be leased.
fn is_to_be_leased<T: Tables + ?Sized>(database: &T) -> String {
    let now = now(database);
    format!("due_at <= {now} AND (leased_until IS NULL OR leased_until < {now})")
}

/// Those that are leased next, as things stand: somebody else may take them first.
fn choice<D: Tables + ?Sized>(
    database: &mut D,
    most: usize,
    served: &[&str],
    in_hand: usize,
) -> Result<Choice, DatabaseError> {
    let sql = format!(
        "SELECT {}, leased_among FROM subscription_queues WHERE {}{} ORDER BY due_at LIMIT {most}",
        database.dialect().uuid("subscription"),
        is_to_be_leased(database),
        of_others(&vec!["?".to_owned(); served.len()]),
    );
    let values: Vec<Value<'_>> = served.iter().map(|owner| Value::Text(owner)).collect();
    let rows = database.select(LEASING, &sql, &values)?;
    let due = rows.iter().map(|row| Ok((uuid(row, 0)?, row.value(1)?))).collect::<Result<_, DatabaseError>>()?;
    Ok(Choice::of(due, in_hand))
}

const LEASING: &str = "leasing subscriptions";

/// The columns of [`Leased`], of `q`, a row of `subscription_queues`, and `s`, that of `subscriptions`, if there is one. A moment's age
/// in seconds is `ago`.
fn leased_columns(id: &str, ago: impl Fn(&str) -> String, truth: impl Fn(&str) -> String, now: &str) -> String {
    format!(
        "{id}, s.callback_url, {}, {}, s.max_in_flight, s.secret_generation, {}, \
         CASE WHEN s.id IS NULL OR s.expires_at <= {now} THEN 'gone' ELSE s.state END, {}, q.failures, {}, s.owner",
        truth("s.detail = 'full'"),
        truth("s.in_order"),
        ago("s.secret_rotated_at"),
        ago("s.updated_at"),
        ago("q.failing_since"),
    )
}

/// Which of the rows of `subscription_queues` that are due are of nobody among these owners: a condition more. What is left of a
/// subscription that was removed is nobody's.
fn of_others(owners: &[String]) -> String {
    if owners.is_empty() {
        return String::new();
    }
    format!(
        " AND NOT EXISTS (SELECT 1 FROM subscriptions s WHERE s.id = subscription_queues.subscription AND s.owner IN ({}))",
        owners.join(", ")
    )
}

/// Reads them. Of a subscription that was removed there is nothing but its row in the queue.
fn leased_of(row: &Row) -> Result<Leased, DatabaseError> {
    Ok(Leased {
        subscription: uuid(row, 0)?,
        owner: columns::optional(row, 11).unwrap_or_default(),
        callback_url: columns::optional(row, 1).unwrap_or_default(),
        full: row.text(2) == Some("1"),
        in_order: row.text(3) == Some("1"),
        max_in_flight: row.value::<u32>(4)?.unwrap_or_default().max(1),
        secret_generation: row.value(5)?.unwrap_or_default(),
        secret_age: seconds(row, 6)?,
        state: match row.text(7) {
            Some("active") => SubscriptionState::Active,
            Some("unverified") => SubscriptionState::Unverified,
            _ => SubscriptionState::Idle,
        },
        age: seconds(row, 8)?.unwrap_or_default(),
        failures: columns::number(row, 9)?,
        failing_for: seconds(row, 10)?.unwrap_or_default(),
        ended_among: None,
    })
}

/// What is read of an event `e`, from the third column of [`due_of`] on.
fn event_columns<T: Tables + ?Sized>(database: &T) -> String {
    let dialect = database.dialect();
    format!(
        "{}, e.type, {}, {}, e.message_id, e.role, e.recipient, e.imap_user, e.mailbox, e.manner, {}, e.queue_id, e.host, {}, {}",
        dialect.uuid("e.event"),
        dialect.hex("e.copy_key"),
        dialect.hex("e.identity"),
        dialect.uuid("e.attempt"),
        text_of_json(database, "e.diff"),
        dialect.microseconds("e.created_at"),
    )
}

fn due_of(row: &Row, full: bool) -> Result<Due, DatabaseError> {
    let attempt = row.text(12).map(|_| uuid(row, 12)).transpose()?;
    let message = if full && row.text(18).is_some() {
        Some(MessageDetail {
            sender: columns::owned(row, 18)?,
            from: columns::optional(row, 19),
            to: columns::optional(row, 20),
            cc: columns::optional(row, 21),
            subject: columns::optional(row, 22),
            date: row.value(23)?,
            headers: columns::owned(row, 24)?,
            size: columns::number(row, 25)?,
        })
    } else {
        None
    };
    Ok(Due {
        position: columns::number(row, 0)?,
        tries: columns::number(row, 1)?,
        due_at: columns::number(row, 17)?,
        event: uuid(row, 2)?,
        event_type: columns::owned(row, 3)?,
        copy_key: columns::owned(row, 4)?,
        identity: columns::owned(row, 5)?,
        message_id: columns::owned(row, 6)?,
        role: columns::owned(row, 7)?,
        recipient: columns::owned(row, 8)?,
        imap_user: columns::owned(row, 9)?,
        mailbox: columns::owned(row, 10)?,
        manner: columns::optional(row, 11),
        attempt,
        queue_id: columns::optional(row, 13),
        host: columns::owned(row, 14)?,
        diff: columns::owned(row, 15)?,
        created_at: columns::number(row, 16)?,
        message,
    })
}

/// Who wants which of these events `e`: five joins, each by the index on `(resource, resource_id)`, and those that are tested. `s` is the
/// subscription.
fn matches(dialect: Dialect, of: &str) -> String {
    let (domain, mailbox, message, wanted, now) = match dialect {
        Dialect::Postgresql => (
            // Behind the last one: a local part may hold an `@` (RFC 5321, section 4.1.2). Since PostgreSQL 14.
            "lower(split_part(e.recipient, '@', -1))",
            "e.imap_user || '/' || e.mailbox",
            "encode(e.identity, 'hex')",
            "(s.types = '{}' OR e.type = ANY (s.types))",
            "now()",
        ),
        _ => (
            "LOWER(SUBSTRING_INDEX(e.recipient, '@', -1))",
            "CONCAT(e.imap_user, '/', e.mailbox)",
            "LOWER(HEX(e.identity))",
            "(JSON_LENGTH(s.types) = 0 OR JSON_CONTAINS(s.types, JSON_QUOTE(CONVERT(e.type USING utf8mb4))))",
            "UTC_TIMESTAMP(6)",
        ),
    };
    let arm = |resource: &str, id: &str| {
        format!(
            "SELECT s.id, e.position, {now} FROM events e JOIN subscriptions s ON s.resource = '{resource}' \
             AND s.resource_id = {id} WHERE {of} AND e.type <> '{TEST}' AND {wanted} \
             AND (s.expires_at IS NULL OR s.expires_at > {now})"
        )
    };
    [
        arm("all", "''"),
        arm("domain", domain),
        arm("address", "lower(e.recipient)"),
        arm("mailbox", mailbox),
        arm("message", message),
        format!(
            "SELECT s.id, e.position, {now} FROM events e JOIN subscriptions s ON s.id = e.attempt \
             WHERE {of} AND e.type = '{TEST}'"
        ),
    ]
    .join(" UNION ALL ")
}

/// Of the events `e`, those that are published now, for the subscriptions `s` that were there when they were recorded. Both moments are
/// the database's.
fn published_now(events: &str) -> String {
    // Not as a bare comparison: PostgreSQL would look for the events by the index on their time, a third of all.
    format!("e.event IN ({events}) AND COALESCE(s.created_at <= e.created_at, FALSE)")
}

/// What is copied from `outbox` to `events` as it is.
const COPIED: &str = "event, type, copy_key, identity, message_id, role, recipient, imap_user, mailbox, manner, attempt, queue_id, \
     host, diff, created_at";

/// For so long a subscription counts as changed of late. By the database's clock, as `subscriptions.updated_at` is.
const CHANGED_OF_LATE: Duration = Duration::from_mins(10);

/// Of the subscriptions `s`, those that ought to be served: they have not been asked yet, or something is due. `None`: nobody is
/// looked for.
fn ought_to_be_served<T: Tables + ?Sized>(database: &T, wake: Wake) -> Option<String> {
    let now = now(database);
    let changed = match wake {
        Wake::Nobody => return None,
        Wake::Changed => {
            format!("(s.state = 'unverified' OR s.updated_at > {}) AND ", earlier(database, CHANGED_OF_LATE))
        }
        Wake::All => String::new(),
    };
    Some(format!(
        "{changed}s.state IN ('unverified', 'active') AND (s.expires_at IS NULL OR s.expires_at > {now}) \
         AND (s.state = 'unverified' OR EXISTS (SELECT 1 FROM notifications n \
         WHERE n.subscription = s.id AND n.due_at IS NOT NULL))"
    ))
}

/// Whether `notifications.due_at` is still what it was when these were read. It is compared as a number, and by CASE, so that neither
/// engine looks for an index for it: the rows are found by their key.
fn as_taken(dialect: Dialect, read: impl Iterator<Item = (i64, i64)>) -> String {
    let mut was = format!("{} = CASE event", dialect.microseconds("due_at"));
    for (position, due_at) in read {
        let _ = write!(was, " WHEN {position} THEN {due_at}");
    }
    was + " END"
}

#[cfg(test)]
mod tests;
