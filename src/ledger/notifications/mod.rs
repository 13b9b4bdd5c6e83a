//! What the notifier reads and writes: events are published ([`queue`]), subscriptions are leased, tries are settled ([`settle`]).
//!
//! - Publishing: rows of `outbox` become rows of `events`, whose positions are in the order of the commits, and of
//!   `notifications`, one for each subscription that wants them. Under a named lock, so that one notifier does it at a time.
//! - A *subscription* is leased, and not each notification: a lease is one small row, so that many notifications that wait cost a
//!   poll nothing, and one receiver is served by one notifier, in order where that is asked for.
//! - Claims compare with the beginning of their statement, which an index can serve, and not with the present moment.
//! - Settling locks the row of `subscription_queues` first, and asks what is due next in a later statement. Publishing inserts
//!   first, and locks then. So that whoever comes second sees what the first one did, and no wake-up is lost.
//! - MySQL's session is READ COMMITTED: in REPEATABLE READ a claim would hold up inserts between the rows that it takes, and publishing
//!   would wait for whoever changes a subscription.

pub(crate) mod attempts;
pub(crate) mod bulk;
pub(crate) mod by_message;
pub(crate) mod history;
pub(crate) mod overview;
mod queue;
mod settle;

pub use super::subscriptions::SubscriptionState;
use crate::database::{Columns, DatabaseError, DatabaseFailure, Dialect, FromRow, Query, Tables, Value, columns_of};
use crate::lock::LockName;
use std::time::Duration;
use uuid::Uuid;

/// The type of what is sent to see that it comes. It is sent to the one subscription that its event names, and is about no copy.
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
    let sql = "SELECT bool_and(coalesce(has_table_privilege(to_regclass(name), 'SELECT'), false)) \
               FROM string_to_table(?, ' ') name";
    let may = database.query_first("asking what may be read of notifications", sql, &[Value::Text(tables)])?;
    Ok(may.unwrap_or_default())
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
    /// One that has expired, or was removed, counts as disabled.
    pub state: SubscriptionState,
    /// How long it has been as it is: a callback that was changed has its time to answer, however old the subscription is.
    pub age: Duration,
    /// How many tries have failed in a row, and since when.
    pub failures: u32,
    pub failing_for: Duration,
    /// A notifier has ended without giving it back, and had leased so many at most; 0: this one alone, and so had the one before it.
    pub ended_among: Option<u32>,
}

columns_of! { Leased:
    subscription, owner, callback_url, full, in_order, max_in_flight, secret_generation, secret_age, state, age, failures, failing_for;
    ended_among: None
}

impl Leased {
    /// Whether it may be sent anything.
    #[must_use]
    pub(crate) fn is_served(&self) -> bool {
        matches!(self.state, SubscriptionState::Unverified | SubscriptionState::Active)
    }
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

    /// What is known of those that were leased, and which notifier had ended with them.
    fn note(&self, leased: &mut [Leased]) {
        for leased in leased {
            let chosen = self.subscriptions.iter().find(|(id, _)| *id == leased.subscription);
            leased.ended_among = chosen.and_then(|(_, ended_among)| *ended_among);
        }
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
    /// Of a test: whom it is sent to.
    pub subscription: Option<Uuid>,
    pub host: String,
    /// JSON.
    pub diff: String,
    /// In microseconds since 1970.
    pub created_at: i64,
    /// Where everything is asked for, and the message is recorded.
    pub message: Option<MessageDetail>,
}

columns_of! { Due:
    position, tries, event, event_type, copy_key, identity, message_id, role, recipient, imap_user, mailbox, manner, attempt,
    queue_id, host, diff, created_at, subscription, due_at, message
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

columns_of! { MessageDetail: sender, from, to, cc, subject, date, headers, size }

impl FromRow for Option<MessageDetail> {
    fn from_row(columns: &mut Columns<'_>) -> Result<Self, DatabaseError> {
        if columns.skip_null(8) { Ok(None) } else { columns.read().map(Some) }
    }
}

impl MessageDetail {
    /// Its columns, of `m`, a row of `messages`.
    fn columns(dialect: Dialect, headers: &str) -> String {
        let date = dialect.microseconds("m.sent_at");
        format!("m.sender, m.header_from, m.header_to, m.header_cc, m.subject, {date}, {headers}, m.size")
    }
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

/// What a notifier has found out about a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateChange {
    /// Its callback has answered the challenge, or need not be asked.
    Verified,
    /// It is sent nothing more, and why.
    Disabled(String),
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
    pub state: Option<&'a StateChange>,
    /// The callback that was asked: it alone gets that state. One that its owner has set meanwhile has answered nothing.
    pub callback: &'a str,
    /// Whether it is told of nothing, so that it need not be served.
    pub idle: bool,
    /// Whether the next notifier is to lease it alone, since others have ended with it.
    pub alone: bool,
}

/// What the notifier reads and writes. An embedded database has no subscriptions.
pub trait Notifications {
    /// Publishes what deliveries have written, the oldest first, in one transaction under this lock, and looks for subscriptions that
    /// ought to be served and are not. From the first one on: what was written before, and committed late, comes
    /// before what was committed after it. Else two events of one copy could change places, and the older one have the greater
    /// sequence.
    ///
    /// # Errors
    /// Where it may not be committed. Then nothing is published.
    fn publish(&mut self, lock: &LockName, wake: Wake) -> Result<Published, DatabaseError>;

    /// Whether anything is to be published after this position. What was published before it may be there still for the server, dead,
    /// as long as anybody holds an old snapshot: it is not read again.
    ///
    /// # Errors
    /// Where it cannot be read.
    fn has_unpublished(&mut self, after: i64) -> Result<bool, DatabaseError>;

    /// Leases subscriptions that are due, at most so many, the longest due first; those that somebody else is taking are left out, and so
    /// are those of the owners that are served enough. Fewer, or none beside those that are in hand, where a notifier has ended without
    /// giving them back.
    ///
    /// # Errors
    /// Where it may not be committed.
    fn lease(
        &mut self,
        by: Uuid,
        lease: Duration,
        most: usize,
        served: &[&str],
        in_hand: usize,
    ) -> Result<Vec<Leased>, DatabaseError>;

    /// Leases for longer what is leased; returns what is not ours any more.
    ///
    /// # Errors
    /// Where it may not be committed.
    fn lease_longer(&mut self, by: Uuid, lease: Duration, subscriptions: &[Uuid]) -> Result<Vec<Uuid>, DatabaseError>;

    /// The notifications of a subscription that are due, but for those of these positions, at most so many. In order: none after
    /// one that is not settled.
    ///
    /// # Errors
    /// Where they cannot be read.
    fn due(&mut self, leased: &Leased, except: &[i64], most: usize) -> Result<Vec<Due>, DatabaseError>;

    /// Writes down what came of tries, and how their subscriptions are left, in one transaction. In the order of their ids, as publishing
    /// wakes them. A notification that somebody has asked for meanwhile stays as it is, and is told again: an answer that was under way is
    /// not the one that was asked for. One that was given up meanwhile and was taken all the same is done. Returns the subscriptions that
    /// are not leased to us any more, or are gone: their tries are written down, and how they are left is somebody else's to say.
    ///
    /// # Errors
    /// Where it may not be committed. Then nothing is written down, and what was sent is sent again.
    fn settle(&mut self, settlements: &[Settlement<'_>]) -> Result<Vec<Uuid>, DatabaseError>;
}

/// The beginning of the statement, which an index can be compared with.
fn now(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Postgresql => "now()",
        _ => dialect.now(),
    }
}

/// So long after it.
fn later(dialect: Dialect, wait: Duration) -> String {
    moment(dialect, '+', wait)
}

/// So long before it.
fn earlier(dialect: Dialect, ago: Duration) -> String {
    moment(dialect, '-', ago)
}

fn moment(dialect: Dialect, sign: char, from_now: Duration) -> String {
    let (now, micros) = (now(dialect), i64::try_from(from_now.as_micros()).unwrap_or(i64::MAX));
    match dialect {
        Dialect::Postgresql => format!("({now} {sign} {micros} * interval '1 microsecond')"),
        Dialect::Mysql | Dialect::Mariadb => format!("({now} {sign} INTERVAL {micros} MICROSECOND)"),
        Dialect::Sqlite => format!("({now} {sign} {micros})"),
    }
}

/// What is read of an event `e`, from the third column of [`Due`] on.
fn event_columns(dialect: Dialect) -> String {
    format!(
        "{}, e.type, {}, {}, e.message_id, e.role, e.recipient, e.imap_user, e.mailbox, e.manner, {}, e.queue_id, e.host, {}, {}, {}",
        dialect.uuid("e.event"),
        dialect.hex("e.copy_key"),
        dialect.hex("e.identity"),
        dialect.uuid("e.attempt"),
        dialect.text_of_json("e.diff"),
        dialect.microseconds("e.created_at"),
        dialect.uuid("e.subscription"),
    )
}

/// Who wants which of these events `e`: five joins, each by the index on `(resource, resource_id)`, and those that are tested. `s` is the
/// subscription.
fn matches(dialect: Dialect, of: &str) -> String {
    let now = now(dialect);
    let (domain, mailbox, message, wanted) = match dialect {
        Dialect::Postgresql => (
            // Behind the last one: a local part may hold an `@` (RFC 5321, section 4.1.2). Since PostgreSQL 14.
            "lower(split_part(e.recipient, '@', -1))",
            "e.imap_user || '/' || e.mailbox",
            "encode(e.identity, 'hex')",
            "(s.types = '{}' OR e.type = ANY (s.types))",
        ),
        _ => (
            "LOWER(SUBSTRING_INDEX(e.recipient, '@', -1))",
            "CONCAT(e.imap_user, '/', e.mailbox)",
            "LOWER(HEX(e.identity))",
            "(JSON_LENGTH(s.types) = 0 OR JSON_CONTAINS(s.types, JSON_QUOTE(CONVERT(e.type USING utf8mb4))))",
        ),
    };
    let arm = |resource: &str, id: &str| {
        format!(
            "SELECT s.id, e.position FROM events e JOIN subscriptions s ON s.resource = '{resource}' \
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
            "SELECT s.id, e.position FROM events e JOIN subscriptions s ON s.id = e.subscription \
             WHERE {of} AND e.type = '{TEST}'"
        ),
    ]
    .join(" UNION ALL ")
}

#[cfg(test)]
mod tests;
