//! The part of the configuration that a delivery uses.

use super::sections::HeaderFields;
use crate::base::deadline;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How long to wait for a lock held elsewhere; zero for not at all.
    pub lock_wait: Duration,
    /// For how long after the beginning of an attempt that never ended its APPEND may still be stored. This is longer than
    /// any delivery may take. Zero if a free lock proves that its last holder can store nothing more.
    pub append_grace: Duration,
    /// How long after the first attempt a Sent copy is retried. After that it stays owed, and the delivery succeeds.
    pub sent_retry_for: Duration,
    /// For how long Postfix may retry a message (`maximal_queue_lifetime`).
    pub queue_lifetime: Duration,
    /// How long one mailbox may hold up the other recipients of its message.
    pub slow_mailbox_timeout: Duration,
    /// How long an author's mailbox may take to open while other messages wait for this process; `None` for half of the time
    /// left. The upload is not limited in this way: an abandoned APPEND may be stored after another delivery of the message
    /// has searched for the copy in vain.
    pub author_patience: Option<Duration>,
    /// How long recipients' mailboxes may take to open while other messages wait for this process; `None` for the time until
    /// the deadline. Nothing is journalled before they are open, so giving up costs a retry, but no search.
    pub opening_patience: Option<Duration>,
    /// Whether a mailbox over quota refuses a message for good (5.2.2) rather than for now (4.2.2).
    pub over_quota_refuses: bool,
    /// Whether to search Sent for the author's own copy first, by Message-ID.
    pub look_in_sent: bool,
    /// Up to which size, in bytes, the raw source of a message is kept; zero keeps none.
    pub keep_source_up_to: u64,
    /// Which header fields the ledger keeps.
    pub headers: HeaderFields,
}

impl Policy {
    /// The policy of an embedded site, which has no configuration.
    pub fn embedded() -> Self {
        Self {
            lock_wait: deadline::lock_wait(deadline::OF_A_DELIVERY),
            // The kernel releases a lock of flock(2) when the last thread of its holder has ended. By then every link(2) of
            // the holder has ended as well, so no copy can appear later.
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
