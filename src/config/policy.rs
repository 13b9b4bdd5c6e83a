//! The part of the configuration that a delivery uses.

use super::sections::HeaderFields;
use crate::base::deadline;
use std::time::Duration;

/// The operator's settings for deliveries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How long to wait for a lock held elsewhere. Zero: not at all.
    pub lock_wait: Duration,
    /// How long after its beginning the APPEND of an attempt that never ended may still be stored. Longer than any delivery
    /// lives. Zero if a free lock proves that its last holder can store nothing more.
    pub append_grace: Duration,
    /// Past this time since the first attempt, a Sent copy that cannot be appended stays owed, and the delivery is done.
    pub sent_retry_for: Duration,
    /// For how long Postfix may retry a message.
    pub queue_lifetime: Duration,
    /// How long one mailbox may hold up the other recipients of its message.
    pub slow_mailbox_timeout: Duration,
    /// How long an author's mailbox may take to open while other messages wait for the process that opens it; `None`: half of
    /// the time that is left. The upload has all of that time: an abandoned APPEND may be stored after another delivery, of the
    /// same message to another recipient, has searched for it without success.
    pub author_patience: Option<Duration>,
    /// How long recipients' mailboxes may take to open while other messages wait for the process that opens them; `None`: until
    /// the delivery's deadline. Nothing is journalled before they are open, so giving up costs another try, but no search.
    pub opening_patience: Option<Duration>,
    /// Whether a mailbox over quota refuses a message for good (5.2.2) rather than for now (4.2.2).
    pub over_quota_refuses: bool,
    /// Whether to look for the author's own copy in Sent first, by Message-ID.
    pub look_in_sent: bool,
    /// Keep the raw source of messages of at most this size, in bytes; zero keeps none.
    pub keep_source_up_to: u64,
    /// Which header fields the ledger keeps.
    pub headers: HeaderFields,
}

impl Policy {
    /// The policy of one machine without a configuration.
    pub fn embedded() -> Self {
        Self {
            lock_wait: deadline::lock_wait(deadline::OF_A_DELIVERY),
            // The kernel frees flock(2) when the last thread of its holder has ended. Every link(2) of the holder has ended by
            // then, too.
            append_grace: Duration::ZERO,
            sent_retry_for: Duration::from_hours(24),
            queue_lifetime: Duration::from_hours(5 * 24),
            slow_mailbox_timeout: Duration::from_secs(5),
            author_patience: None,
            opening_patience: None,
            over_quota_refuses: false,
            look_in_sent: false,
            keep_source_up_to: 0,
            headers: HeaderFields::All,
        }
    }
}
