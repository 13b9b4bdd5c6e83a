//! The sections of the file, and what holds where a key is left out.

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
    /// Keeps the locks of different programs, or installations, apart that share a database server.
    pub namespace: String,
    /// How long to wait for a lock held elsewhere. Zero: not at all. Left out: see [`Lock::wait_within`].
    #[serde(deserialize_with = "values::optional_duration")]
    pub wait: Option<Duration>,
}

impl Lock {
    /// How long a delivery of so long a deadline waits for a lock held elsewhere.
    #[must_use]
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
    /// Postfix's `recipient_delimiter`: a set of characters, none if empty.
    pub recipient_delimiter: String,
    /// What becomes of mail for an address that has no mailbox here.
    pub unknown: UnknownRecipient,
    /// `[[routing.domain]]`: rules for whole domains, asked after the table `addresses`.
    pub domain: Vec<DomainRule>,
}

impl Default for Routing {
    fn default() -> Self {
        Self { recipient_delimiter: "+".into(), unknown: UnknownRecipient::default(), domain: Vec::new() }
    }
}

/// A rule for all addresses of one domain.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DomainRule {
    /// The domain; case does not count.
    #[serde(rename = "name")]
    pub domain: String,
    /// The user, made from `{address}`, `{local}` and `{domain}`: of the folded address, without its extension.
    pub user: String,
    /// The mailbox for arriving mail.
    pub inbox: String,
    /// The mailbox for sent mail.
    pub sent: String,
}

impl Default for DomainRule {
    fn default() -> Self {
        let [domain, user, inbox, sent] = ["", "{address}", "INBOX", "Sent"].map(ToOwned::to_owned);
        Self { domain, user, inbox, sent }
    }
}

impl DomainRule {
    /// Whether the template for the user has no unknown placeholder. One without any is one user, who gets the mail of the whole domain.
    #[must_use]
    pub fn has_known_placeholders(&self) -> bool {
        let bare =
            ["{address}", "{local}", "{domain}"].iter().fold(self.user.clone(), |bare, known| bare.replace(known, ""));
        !self.user.is_empty() && !bare.contains(['{', '}'])
    }
}

/// What becomes of mail for an address that has no mailbox here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownRecipient {
    /// It is refused for good: 5.1.1.
    Reject,
    /// It stays with Postfix: 4.1.1, so that an address which is not in the table `addresses` for a while costs no mail.
    /// Postfix has asked the same table at RCPT TO, and refused what was not in it.
    #[default]
    Defer,
}

/// `[sent]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sent {
    /// Whether senders who live here get a Sent copy.
    pub enabled: bool,
    /// Where to look whether it is there already.
    pub look: Look,
    /// With [`Look::Mailbox`]: how long after a message was recorded its Sent copy is looked for.
    #[serde(deserialize_with = "values::duration")]
    pub look_after: Duration,
    /// What proves who the author of a message is.
    pub trust: Trust,
    /// Whose Authentication-Results count (RFC 8601 section 2.5): the name that our filter signs with.
    pub authserv_id: Option<String>,
    /// Left out: see [`Sent::retry_for`].
    #[serde(deserialize_with = "values::optional_duration")]
    pub retry_for: Option<Duration>,
}

impl Default for Sent {
    fn default() -> Self {
        Self {
            enabled: true,
            look: Look::default(),
            look_after: Duration::from_mins(10),
            trust: Trust::default(),
            authserv_id: None,
            retry_for: None,
        }
    }
}

impl Sent {
    /// Past this time since the first attempt, a Sent copy that cannot be appended stays owed, and the delivery is done.
    ///
    /// By default a day, or half of the time after which Postfix gives up: between two tries it waits for at most as long as the
    /// message is old (within `minimal_backoff_time` and `maximal_backoff_time`), so that one falls into the other half.
    #[must_use]
    pub(crate) fn retry_for(&self, queue_lifetime: Duration) -> Duration {
        self.retry_for.unwrap_or(Duration::from_hours(24).min(queue_lifetime / 2))
    }
}

/// Where to look whether a Sent copy is there already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Look {
    /// In the ledger: for members whose mail program saves nothing.
    #[default]
    Ledger,
    /// In the mailbox too, by Message-ID: for members whose mail program saves a copy of its own. It does so after it has handed
    /// the message over, so that no delivery looks: its copy stays owed, and `replay --owed` looks later.
    Mailbox,
}

/// What proves who the author of a message is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Trust {
    /// The From header: a forged one puts a copy into a member's Sent mailbox.
    #[default]
    Header,
    /// Besides, the client has authenticated (SASL), or our filter's Authentication-Results say that DMARC passed.
    Authenticated,
}

/// `[record]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Record {
    /// Whether the raw source of messages is kept in the database.
    pub raw: bool,
    /// Of messages of at most this size, in bytes.
    #[serde(deserialize_with = "values::bytes")]
    pub raw_limit: u64,
    /// Which header fields are kept.
    pub headers: HeaderFields,
}

/// Which header fields the ledger keeps in its column `headers`. They are for people who ask the tables, and for subscriptions that are
/// told the details of a message.
/// From, To, Cc, Subject and Date are in columns of their own besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HeaderFields {
    /// All of them.
    #[default]
    All,
    /// Those that say who wrote what to whom, and in answer to what.
    Few,
    None,
}

impl Default for Record {
    fn default() -> Self {
        Self { raw: false, raw_limit: 10_000_000, headers: HeaderFields::All }
    }
}

/// `[delivery]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Delivery {
    /// By when a delivery has ended, whatever happens, counted from its beginning.
    #[serde(deserialize_with = "values::duration")]
    pub deadline: Duration,
    /// What `<transport>_time_limit` is in Postfix's main.cf: at that time it kills the delivery and *bounces* the
    /// message.
    #[serde(deserialize_with = "values::duration")]
    pub postfix_time_limit: Duration,
    /// What `maximal_queue_lifetime` is in Postfix's main.cf: until then it may bring a message back, and then it bounces it.
    #[serde(deserialize_with = "values::duration")]
    pub postfix_queue_lifetime: Duration,
    /// Larger messages are refused for good (5.3.4), in bytes.
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

/// `[retention]`: what `prune` forgets. What is left out is kept for ever.
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
    /// Events older than this, and what subscribers were told of them, or are still to be told.
    #[serde(deserialize_with = "values::optional_duration")]
    pub events_older_than: Option<Duration>,
    /// Rows of the operations log older than this.
    #[serde(deserialize_with = "values::optional_duration")]
    pub operations_older_than: Option<Duration>,
}

impl Retention {
    /// The first of these that forgets what has to be remembered for longer than `least`: its key, and why it has to be.
    ///
    /// What was delivered is known by the ledger alone. As long as a message may come back, from Postfix's queue or after
    /// the end of an attempt that was cut short, a ledger that has forgotten it delivers it again.
    #[must_use]
    pub(crate) fn forgets_too_early(&self, least: Duration) -> Option<(&'static str, String)> {
        let ages =
            [("attempts_older_than", self.attempts_older_than), ("messages_older_than", self.messages_older_than)];
        let (key, age) = ages.into_iter().find_map(|(key, age)| Some((key, age.filter(|age| *age <= least)?)))?;
        let span = humantime::format_duration;
        Some((
            key,
            format!(
                "{} is too short: it has to be longer than {}, which is for how long Postfix may bring a message back \
                 (delivery.postfix_queue_lifetime) and imap.settle; a message that is forgotten sooner would be delivered again",
                span(age),
                span(least)
            ),
        ))
    }

    /// Why events are forgotten too early: a subscriber is told by all the waits of `retry`, and then somebody may look.
    #[must_use]
    pub(crate) fn forgets_events_too_early(&self, retry: &[Duration]) -> Option<String> {
        let (age, tried) = (self.events_older_than?, retry.iter().sum::<Duration>());
        let span = humantime::format_duration;
        (age <= tried).then(|| {
            format!(
                "{} is too short: it has to be longer than {}, which is for how long a notification is tried (notifications.retry)",
                span(age),
                span(tried)
            )
        })
    }
}

/// `[log]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Where records go.
    pub to: LogTo,
    /// The file, if they go to a file.
    #[serde(deserialize_with = "values::optional_path")]
    pub file: Option<PathBuf>,
    /// The least that is logged.
    pub level: Level,
    /// How a record in a file is written.
    pub format: Format,
}

/// Where log records go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogTo {
    /// syslog(3).
    #[default]
    Syslog,
    /// systemd's journal.
    Journald,
    /// A file.
    File,
}
