//! The sections of the file, and the defaults of keys that are left out.

use super::values;
use crate::base::deadline;
use crate::base::log::{Format, Level};
use crate::lock::DEFAULT_NAMESPACE;
use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;

/// `[lock]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lock {
    /// Separates the locks of different programs, or installations, that share a database server.
    pub namespace: String,
    /// How long to wait for a lock held elsewhere; zero for not at all. `None`: see [`Lock::wait_within`].
    #[serde(deserialize_with = "values::optional_duration")]
    pub wait: Option<Duration>,
}

impl Lock {
    /// How long a delivery with this deadline waits for a lock held elsewhere.
    pub(crate) fn wait_within(&self, deadline: Duration) -> Duration {
        self.wait.unwrap_or_else(|| deadline::lock_wait(deadline))
    }
}

impl Default for Lock {
    fn default() -> Self {
        Self { namespace: DEFAULT_NAMESPACE.to_owned(), wait: None }
    }
}

/// `[routing]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Routing {
    /// Postfix's `recipient_delimiter`, a set of characters; empty for none.
    pub recipient_delimiter: String,
    /// What happens to mail for an address that has no mailbox here.
    pub unknown_recipient: UnknownRecipient,
    /// `[[routing.domain]]`: rules for whole domains, used after the table `addresses`.
    pub domain: Vec<DomainRule>,
}

impl Default for Routing {
    fn default() -> Self {
        Self { recipient_delimiter: "+".into(), unknown_recipient: UnknownRecipient::default(), domain: Vec::new() }
    }
}

/// A rule for all addresses of one domain.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DomainRule {
    /// The domain; case does not count.
    #[serde(rename = "name")]
    pub domain: String,
    /// The template of the user: `{address}`, `{local}` and `{domain}` are those of the folded address without its
    /// extension.
    pub user: String,
    pub inbox: String,
    pub sent: String,
}

impl Default for DomainRule {
    fn default() -> Self {
        let [domain, user, inbox, sent] = ["", "{address}", "INBOX", "Sent"].map(ToOwned::to_owned);
        Self { domain, user, inbox, sent }
    }
}

impl DomainRule {
    /// Whether the template for the user has no unknown placeholder. A template without any placeholder names one user, who
    /// gets the mail of the whole domain.
    pub fn has_known_placeholders(&self) -> bool {
        let bare =
            ["{address}", "{local}", "{domain}"].iter().fold(self.user.clone(), |bare, known| bare.replace(known, ""));
        !self.user.is_empty() && !bare.contains(['{', '}'])
    }
}

/// What happens to mail for an address that has no mailbox here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownRecipient {
    /// Refused for good (5.1.1).
    Reject,
    /// Deferred (4.1.1), so that no mail is lost while an address is missing from the table `addresses` for a while. Unknown
    /// addresses do not pile up, because Postfix has queried the same table at RCPT TO and refused them.
    #[default]
    Defer,
}

/// `[sent]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sent {
    /// Whether senders who have a mailbox here get a Sent copy.
    pub enabled: bool,
    /// Where a delivery checks whether the copy already exists.
    pub dedup_by: DedupBy,
    /// With [`DedupBy::Mailbox`]: how long after the record of a message its Sent copy is searched for.
    #[serde(deserialize_with = "values::duration")]
    pub dedup_delay: Duration,
    /// The evidence that identifies the author of a message.
    pub author_check: AuthorCheck,
    /// The authserv-id (RFC 8601 section 2.5) that our filter writes. Only its Authentication-Results count.
    pub authserv_id: Option<String>,
    /// `None`: see [`Sent::retry_for`].
    #[serde(deserialize_with = "values::optional_duration")]
    pub retry_for: Option<Duration>,
}

impl Default for Sent {
    fn default() -> Self {
        Self {
            enabled: true,
            dedup_by: DedupBy::default(),
            dedup_delay: Duration::from_mins(10),
            author_check: AuthorCheck::default(),
            authserv_id: None,
            retry_for: None,
        }
    }
}

impl Sent {
    /// How long after the first attempt a Sent copy is retried. After that it stays owed, and the delivery succeeds.
    ///
    /// By default a day, but at most half of the time after which Postfix gives up. Between two tries Postfix waits at most
    /// as long as the message is old, within `minimal_backoff_time` and `maximal_backoff_time`. So at least one try falls
    /// into the second half.
    pub(crate) fn retry_for(&self, queue_lifetime: Duration) -> Duration {
        self.retry_for.unwrap_or(Duration::from_hours(24).min(queue_lifetime / 2))
    }
}

/// Where a delivery checks whether a Sent copy already exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DedupBy {
    /// In the ledger: for authors whose mail program saves no copy.
    #[default]
    Ledger,
    /// In the mailbox as well, by Message-ID: for authors whose mail program saves its own copy. The program does so only
    /// after it has submitted the message, so a delivery leaves its copy owed, and `replay --owed` searches later.
    Mailbox,
}

/// The evidence that identifies the author of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuthorCheck {
    /// The From header alone. A forged one puts a copy into another user's Sent mailbox.
    #[default]
    Header,
    /// Besides the From header, the client has authenticated (SASL), or our filter's Authentication-Results say that DMARC
    /// passed.
    Authenticated,
}

/// `[record]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Record {
    /// Whether the raw source of messages is kept in the database.
    pub keep_source: bool,
    /// The largest message whose raw source is kept, in bytes.
    #[serde(deserialize_with = "values::bytes")]
    pub keep_source_max: u64,
    pub keep_headers: HeaderFields,
}

/// Which header fields the ledger keeps in its column `headers`, for people who query the tables, and for subscriptions with
/// full detail. From, To, Cc, Subject and Date have columns of their own in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HeaderFields {
    #[default]
    All,
    /// Those that name the author and the recipients, and the message that is answered.
    Few,
    None,
}

impl Default for Record {
    fn default() -> Self {
        Self { keep_source: false, keep_source_max: 10_000_000, keep_headers: HeaderFields::All }
    }
}

/// `[delivery]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Delivery {
    /// The longest time that a delivery may take, from its beginning.
    #[serde(deserialize_with = "values::duration")]
    pub deadline: Duration,
    /// The value of `<transport>_time_limit` in Postfix's main.cf: at that time Postfix kills the delivery and *bounces* the
    /// message.
    #[serde(deserialize_with = "values::duration")]
    pub postfix_time_limit: Duration,
    /// The value of `maximal_queue_lifetime` in Postfix's main.cf: until then Postfix may retry a message, and after that it
    /// bounces the message.
    #[serde(deserialize_with = "values::duration")]
    pub postfix_queue_lifetime: Duration,
    /// In bytes. Larger messages are refused for good (5.3.4).
    #[serde(deserialize_with = "values::optional_bytes")]
    pub message_size_limit: Option<u64>,
}

impl Default for Delivery {
    fn default() -> Self {
        Self {
            deadline: deadline::OF_A_DELIVERY,
            postfix_time_limit: Duration::from_secs(1000),
            postfix_queue_lifetime: Duration::from_secs(5 * 24 * 60 * 60),
            message_size_limit: None,
        }
    }
}

/// `[retention]`: the ages at which `prune` deletes rows. `None` keeps them for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    /// Attempts older than this.
    #[serde(deserialize_with = "values::optional_duration")]
    pub attempts_older_than: Option<Duration>,
    /// Raw sources of messages older than this.
    #[serde(deserialize_with = "values::optional_duration")]
    pub sources_older_than: Option<Duration>,
    /// Messages older than this, and all that belongs to them.
    #[serde(deserialize_with = "values::optional_duration")]
    pub messages_older_than: Option<Duration>,
    /// Events older than this, and their notifications, sent or not.
    #[serde(deserialize_with = "values::optional_duration")]
    pub events_older_than: Option<Duration>,
    /// Rows of the operations log older than this.
    #[serde(deserialize_with = "values::optional_duration")]
    pub operations_older_than: Option<Duration>,
}

impl Retention {
    /// The first of these ages that is not longer than `least`: its key, and the reason why it must be longer.
    ///
    /// Only the ledger knows what was delivered. If it has deleted the record of a message that comes back, from Postfix's
    /// queue or after an attempt that died, the message is delivered twice.
    pub(crate) fn forgets_too_early(&self, least: Duration) -> Option<(&'static str, String)> {
        let ages =
            [("attempts_older_than", self.attempts_older_than), ("messages_older_than", self.messages_older_than)];
        let (key, age) = ages.into_iter().find_map(|(key, age)| Some((key, age.filter(|age| *age <= least)?)))?;
        let [age, least] = [age, least].map(humantime::format_duration);
        let problem = format!(
            "{age} is too short: it has to be longer than {least}, which is for how long Postfix may bring a message back \
             (delivery.postfix_queue_lifetime) and imap.append_grace; a message that is forgotten sooner would be delivered again"
        );
        Some((key, problem))
    }

    /// The reason if events are deleted too early: retries take all the waits of `retry_schedule`, and need the events until
    /// then.
    pub(crate) fn forgets_events_too_early(&self, retry: &[Duration]) -> Option<String> {
        let (age, tried) = (self.events_older_than?, retry.iter().sum::<Duration>());
        let [shown, least] = [age, tried].map(humantime::format_duration);
        let why = "which is for how long a notification is tried (notifications.retry_schedule)";
        (age <= tried).then(|| format!("{shown} is too short: it has to be longer than {least}, {why}"))
    }
}

/// `[log]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    pub to: LogTo,
    /// The file, if they go to a file.
    #[serde(deserialize_with = "values::optional_path")]
    pub file: Option<PathBuf>,
    /// The lowest level that is logged.
    pub level: Level,
    /// How a record in a file is written.
    pub format: Format,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogTo {
    /// syslog(3).
    #[default]
    Syslog,
    /// systemd's journal.
    Journald,
    File,
}
