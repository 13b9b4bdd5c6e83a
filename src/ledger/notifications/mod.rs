//! What the notifier reads and writes: it publishes events ([`queue`]), leases subscriptions, and settles attempts
//! ([`settle`]).
//!
//! - Publishing turns rows of `outbox` into rows of `events`, whose positions are in the order of the commits. Publishing also
//!   inserts a row of `notifications` for each subscription that matches. A named lock ensures that one notifier publishes at a
//!   time.
//! - The lease is on the *subscription*, not on each notification. A lease is one small row, so waiting notifications cost a poll
//!   nothing. One notifier serves one receiver, in order if the subscription wants that.
//! - A claim compares with the time at which its statement began, not with the present moment: only the former can use an index.
//! - Settling locks the row of `subscription_queues` first, and reads in a later statement what is due next. Publishing inserts
//!   the notifications first, and locks that row afterwards. So the second of the two sees the changes of the first, and no
//!   wake-up is lost.
//! - MySQL's session is READ COMMITTED. In REPEATABLE READ a claim would block inserts between the rows that it takes. Publishing
//!   would then wait for each transaction that changes a subscription.

pub(crate) mod attempts;
pub(crate) mod bulk;
pub(crate) mod by_message;
pub(crate) mod history;
pub(crate) mod overview;
mod queue;
mod settle;

pub use super::subscriptions::SubscriptionState;
use crate::database::{Columns, DatabaseError, DatabaseFailure, Dialect, FromRow, Query, Tables, Value, columns_of};
use crate::ledger::event::EventType;
use crate::lock::LockName;
use std::time::Duration;
use uuid::Uuid;

/// The type of a test event. Such an event goes only to the subscription that it names, and is about no copy.
pub(crate) const TEST: &str = "subscription.test";

/// The maximum size of all header fields in a notification together, in bytes, as JSON.
pub(crate) const LONGEST_HEADERS: usize = 16 << 10;

/// How many characters of a header's JSON are read. The server's text of a field, of at least seven bytes, may have up to three
/// more blanks.
const READ_OF_HEADERS: usize = LONGEST_HEADERS * 3 / 2;

/// The maximum memory of one notification, in bytes: a header whose characters have four bytes each, and the fields of [a
/// message](crate::message), which are cut when they are recorded.
pub(crate) const LARGEST_DUE: usize = 160 << 10;

/// How many events are published in one transaction.
pub(crate) const PUBLISHED_AT_ONCE: usize = 500;

/// Reads these tables. `None` if there are no subscribers, as on an embedded site. Also `None` if the tables do not exist yet, or
/// if our role may not read them, as the role of deliveries.
///
/// PostgreSQL logs each refused statement, so its privileges are read first. The other engines simply refuse the statement.
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

/// Whether these tables of PostgreSQL exist, and our role may read them.
fn may_be_read(database: &mut (impl Tables + ?Sized), tables: &str) -> Result<bool, DatabaseError> {
    let sql = "SELECT bool_and(coalesce(has_table_privilege(to_regclass(name), 'SELECT'), false)) \
               FROM string_to_table(?, ' ') name";
    let may = database.query_first("asking what may be read of notifications", sql, &[Value::Text(tables)])?;
    Ok(may.unwrap_or_default())
}

/// Which subscriptions are also searched for work, in case a wake-up was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    Nobody,
    /// Those not verified yet, and those changed lately: resumed, for example.
    Changed,
    /// All. This is expensive if a subscription has received many notifications while another session holds an old snapshot: it
    /// reads about as many blocks as the subscription has dead rows.
    All,
}

/// The result of publishing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// This many events, up to this position in `outbox`; 0 if there were none.
    Events { count: usize, last: i64 },
    /// Another notifier is publishing.
    Busy,
}

/// A leased subscription.
#[derive(Clone, Debug, PartialEq)]
pub struct Leased {
    pub subscription: Uuid,
    /// The name of the owner.
    pub owner: String,
    pub callback_url: String,
    /// Whether its notifications contain all fields of a message.
    pub full: bool,
    pub in_order: bool,
    /// How many requests may be in flight at once.
    pub max_in_flight: u32,
    pub secret_generation: u32,
    /// How long ago the subscription got its present secret, if it had another one before.
    pub secret_age: Option<Duration>,
    /// The state of a subscription that has expired, or was removed, is read as disabled.
    pub state: SubscriptionState,
    /// How long the subscription has been unchanged. A changed callback has the full time to answer its challenge,
    /// however old the subscription is.
    pub age: Duration,
    /// How many tries have failed in a row, and since when.
    pub failures: u32,
    pub failing_for: Duration,
    /// Set if a notifier ended without returning this lease: the most leases that it had at once. 0: it had only this lease, and
    /// so had the notifier before it.
    pub lease_limit: Option<u32>,
}

columns_of! { Leased:
    subscription, owner, callback_url, full, in_order, max_in_flight, secret_generation, secret_age, state, age, failures, failing_for;
    lease_limit: None
}

impl Leased {
    /// Whether the subscription may get anything.
    #[must_use]
    pub(crate) fn is_served(&self) -> bool {
        matches!(self.state, SubscriptionState::Unverified | SubscriptionState::Active)
    }
}

/// Which subscriptions are leased now.
#[derive(Clone, Debug, PartialEq)]
struct Choice {
    /// Each subscription, and its [`Leased::lease_limit`].
    subscriptions: Vec<(Uuid, Option<u32>)>,
    /// Recorded with each lease, in case this notifier ends before it returns the leases.
    among: u32,
}

impl Choice {
    /// Chooses among the due subscriptions, in their order. If another notifier has ended with some of them, this one takes at
    /// most half as many leases, and finally a single one. Present leases count.
    fn of(mut due: Vec<(Uuid, Option<u32>)>, active_leases: usize) -> Self {
        let Some(least) = due.iter().filter_map(|(_, lease_limit)| *lease_limit).min() else {
            // More subscriptions may be leased beside these later, so none of these counts as leased alone.
            let among = u32::try_from(active_leases + due.len()).unwrap_or(u32::MAX).max(2);
            return Self { subscriptions: due, among };
        };
        due.sort_by_key(|(_, lease_limit)| lease_limit.unwrap_or(u32::MAX));
        due.truncate(at_most_after(least).saturating_sub(active_leases));
        Self { subscriptions: due, among: least / 2 }
    }

    fn is_empty(&self) -> bool {
        self.subscriptions.is_empty()
    }

    /// Sets `lease_limit` in the subscriptions that were leased.
    fn note(&self, leased: &mut [Leased]) {
        for leased in leased {
            let chosen = self.subscriptions.iter().find(|(id, _)| *id == leased.subscription);
            leased.lease_limit = chosen.and_then(|(_, lease_limit)| *lease_limit);
        }
    }
}

/// The most leases a notifier may have while it has one with this `lease_limit`.
pub(crate) fn at_most_after(lease_limit: u32) -> usize {
    usize::try_from(lease_limit / 2).unwrap_or(usize::MAX).max(1)
}

/// A notification that is due, with its event.
#[derive(Clone, Debug, PartialEq)]
pub struct Due {
    /// The event's position.
    pub position: i64,
    /// How many tries have failed.
    pub tries: u32,
    /// Since when the notification is due, in microseconds since 1970. If this differs when a try is settled, a user has
    /// requested a redelivery meanwhile, or another notifier has tried it.
    pub due_at: i64,
    pub event: Uuid,
    pub event_type: String,
    /// In hexadecimal digits.
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
    /// The subscription that a test event is sent to; `None` in any other event.
    pub subscription: Option<Uuid>,
    pub host: String,
    /// JSON.
    pub diff: String,
    /// In microseconds since 1970.
    pub created_at: i64,
    /// Set if the subscription wants full detail and the message is recorded.
    pub message: Option<MessageDetail>,
}

columns_of! { Due:
    position, tries, event, event_type, copy_key, identity, message_id, role, recipient, imap_user, mailbox, manner, attempt,
    queue_id, host, diff, created_at, subscription, due_at, message
}

/// What the ledger has recorded about a message.
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
    /// The columns of `m`, a row of `messages`.
    fn columns(dialect: Dialect, headers: &str) -> String {
        let date = dialect.microseconds("m.sent_at");
        format!("m.sender, m.header_from, m.header_to, m.header_cc, m.subject, {date}, {headers}, m.size")
    }
}

impl Due {
    /// How much memory this takes, in bytes.
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

/// What follows for a notification after a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The receiver has accepted the notification.
    Done,
    /// The notification is retried after this time.
    Again(Duration),
    /// The notification is not retried automatically.
    GivenUp,
}

#[derive(Clone, Debug, PartialEq)]
pub struct WebhookAttempt {
    /// The event's position; `None` for a challenge, which is about no event.
    pub position: Option<i64>,
    /// [`Due::due_at`], as it was when the notification was read.
    pub due_at: i64,
    /// In microseconds since 1970.
    pub started_at: i64,
    pub took: Duration,
    /// The HTTP status of the response, if there was one.
    pub status: Option<u16>,
    /// The result, in one line: `answered 503`.
    pub outcome: String,
    /// The beginning of the response, if it may be shown.
    pub response: Option<String>,
    pub next: Next,
}

/// A change of a subscription's state by the notifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateChange {
    /// The callback has answered the challenge, or needs none.
    Verified,
    /// Nothing is sent to the subscription any more, for this reason.
    Disabled(String),
}

/// The results of attempts at one subscription, and its state after them.
#[derive(Clone, Debug, PartialEq)]
pub struct Settlement<'a> {
    pub subscription: Uuid,
    pub in_order: bool,
    /// The notifier that has the lease.
    pub by: Uuid,
    /// How long the lease lasts from now on; `None`: the lease is returned.
    pub lease: Option<Duration>,
    pub host: &'a str,
    pub attempts: &'a [WebhookAttempt],
    /// How many tries in a row have failed by now.
    pub failures: u32,
    /// For how long nothing is sent to the receiver; `None`: no pause.
    pub open_for: Option<Duration>,
    pub state: Option<&'a StateChange>,
    /// The callback that was tried; `state` applies only to it. A callback that the owner has set meanwhile has not answered
    /// anything.
    pub callback: &'a str,
    /// Whether the subscription gets nothing and need not be served.
    pub idle: bool,
    /// Whether the next notifier must lease only this subscription, because others have ended with it.
    pub alone: bool,
}

/// What the notifier reads and writes. An embedded database has no subscriptions.
pub trait Notifications {
    /// Publishes what deliveries have written to `outbox`, the oldest first, in one transaction under this lock. Also wakes
    /// subscriptions that have work and are not due.
    ///
    /// Publishing always starts from the first row: a row that was written early and committed late comes before rows committed
    /// after it. Otherwise two events of one copy could change places, and the older one would have the greater sequence.
    ///
    /// # Errors
    /// If the commit failed, or if its result is unknown. After a failed commit, nothing is published.
    fn publish(&mut self, lock: &LockName, wake: Wake) -> Result<Published, DatabaseError>;

    /// Whether there are events to publish after this position. Published rows before it are not read again: they may stay on the
    /// server as dead rows, as long as a session holds an old snapshot.
    ///
    /// # Errors
    /// If the database does not answer.
    fn has_unpublished(&mut self, after: i64) -> Result<bool, DatabaseError>;

    /// Leases at most `most` due subscriptions, the longest due first. This skips those that another notifier is leasing, and
    /// those of owners in `served`, which have enough requests in progress. If a notifier has ended without returning its leases,
    /// fewer are leased, or none beside the present `active_leases`.
    ///
    /// # Errors
    /// If the commit failed, or if its result is unknown.
    fn lease(
        &mut self,
        by: Uuid,
        lease: Duration,
        most: usize,
        served: &[&str],
        active_leases: usize,
    ) -> Result<Vec<Leased>, DatabaseError>;

    /// Extends these leases, and returns the subscriptions whose lease we have lost.
    ///
    /// # Errors
    /// If the commit failed, or if its result is unknown.
    fn lease_longer(&mut self, by: Uuid, lease: Duration, subscriptions: &[Uuid]) -> Result<Vec<Uuid>, DatabaseError>;

    /// At most `most` due notifications of a subscription, except those at these positions. With `in_order`, none after one that
    /// has to wait.
    ///
    /// # Errors
    /// If the database does not answer.
    fn due(&mut self, leased: &Leased, except: &[i64], most: usize) -> Result<Vec<Due>, DatabaseError>;

    /// Records the results of attempts, and the new states of their subscriptions, in one transaction. The settlements must be in
    /// the order of their subscription ids, the order in which publishing wakes subscriptions.
    ///
    /// A notification whose redelivery was requested meanwhile stays due and is sent again: the response in progress was not to
    /// that request. A notification that was given up meanwhile, but that the receiver has accepted, is done.
    ///
    /// Returns the subscriptions whose lease we have lost, or that are gone. Their attempts are recorded; their state is left to the
    /// notifier that has the lease.
    ///
    /// # Errors
    /// If the commit failed, or if its result is unknown. After a failed commit nothing is recorded, and what was sent is sent
    /// again.
    fn settle(&mut self, settlements: &[Settlement<'_>]) -> Result<Vec<Uuid>, DatabaseError>;
}

/// The time at which the statement began: only that can use an index.
fn now(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Postgresql => "now()",
        _ => dialect.now(),
    }
}

/// A time after [`now`].
fn later(dialect: Dialect, wait: Duration) -> String {
    moment(dialect, '+', wait)
}

/// A time before [`now`].
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

/// The columns of an event `e`, from the third column of [`Due`] on.
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

/// A subscription without types gets all events except this one: an outage would send one notification for each message.
const ONLY_IF_NAMED: &str = EventType::MessageDeferred.as_str();

/// Selects which subscriptions `s` match which of these events `e`: five joins, each by the index on `(resource, resource_id)`,
/// and one for test events.
fn matches(dialect: Dialect, of: &str) -> String {
    let now = now(dialect);
    let (domain, mailbox, message, is_named, names_none) = match dialect {
        Dialect::Postgresql => (
            // The part behind the last `@`: a local part may contain one (RFC 5321 section 4.1.2). PostgreSQL 14 or later.
            "lower(split_part(e.recipient, '@', -1))",
            "e.imap_user || '/' || e.mailbox",
            "encode(e.identity, 'hex')",
            "e.type = ANY (s.types)",
            "s.types = '{}'",
        ),
        _ => (
            "LOWER(SUBSTRING_INDEX(e.recipient, '@', -1))",
            "CONCAT(e.imap_user, '/', e.mailbox)",
            "LOWER(HEX(e.identity))",
            "JSON_CONTAINS(s.types, JSON_QUOTE(CONVERT(e.type USING utf8mb4)))",
            "JSON_LENGTH(s.types) = 0",
        ),
    };
    let arm = |resource: &str, id: &str| {
        format!(
            "SELECT s.id, e.position FROM events e JOIN subscriptions s ON s.resource = '{resource}' \
             AND s.resource_id = {id} WHERE {of} AND e.type <> '{TEST}' \
             AND ({is_named} OR {names_none} AND e.type <> '{ONLY_IF_NAMED}') \
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
