//! Why a request has no answer: the cause, and the text that the subscription's owner may read about it.

use rustix::io::Errno;
use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};
use thiserror::Error;

/// The text for the owner of a subscription if no address of a host may be called, or if TLS fails. There is one text for all
/// reasons: a subscriber must not learn which names and hosts our networks have.
pub(super) const NOT_CALLED: &str = "not called: its host has no public address, or TLS failed";

/// Why there is no answer. Each variant holds the text for the log.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum RequestFailure {
    /// The receiver has failed.
    #[error("{0}")]
    Failed(String),
    /// The receiver has failed; only the log may say how.
    #[error("{NOT_CALLED}")]
    NotCalled(String),
    /// No route leads to the receiver. The receiver has failed, unless there is no route to [several hosts](Outage).
    #[error("{NOT_CALLED}")]
    Unreachable(String),
    /// The request was not tried, so the receiver has not failed.
    #[error("{0}")]
    NotTried(String),
}

impl RequestFailure {
    /// The lookup of the host has failed.
    pub(super) fn looking_up(error: &io::Error) -> Self {
        Self::of("looking up its host", error, Self::NotCalled)
    }

    /// None of the host's addresses accepted a connection.
    pub(super) fn connecting(error: &io::Error) -> Self {
        Self::of("connecting", error, Self::Failed)
    }

    fn of(doing: &str, error: &io::Error, receivers_failure: fn(String) -> Self) -> Self {
        let detail = format!("{doing}: {error}");
        if is_ours(error) {
            Self::NotTried(detail)
        } else if is_unreachable(error) || is_temporary(error) {
            Self::Unreachable(detail)
        } else {
            receivers_failure(detail)
        }
    }

    /// The text for the log.
    pub(super) fn detail(&self) -> &str {
        let (Self::Failed(detail) | Self::NotCalled(detail) | Self::Unreachable(detail) | Self::NotTried(detail)) =
            self;
        detail
    }
}

/// Whether a resource of this machine or process is exhausted.
fn is_ours(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

/// Whether no route leads to the host.
pub(super) fn is_unreachable(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::NETDOWN))
}

/// Whether no name server has answered: EAI_AGAIN of getaddrinfo(3). The standard library keeps only the text of that.
fn is_temporary(error: &io::Error) -> bool {
    let text = error.to_string();
    ["Temporary failure in name resolution", "Try again"].iter().any(|again| text.contains(again))
}

/// No outage begins within this time after the last answer from any receiver.
const QUIET: Duration = Duration::from_mins(1);

/// Whether our own network has failed: no route leads to several hosts, and no receiver has answered for a while.
#[derive(Debug, Default)]
pub(super) struct Outage {
    answered_at: Option<Instant>,
    /// The hosts without a route since the last answer; two are enough.
    hosts: BTreeSet<String>,
}

impl Outage {
    /// Records that a receiver has answered.
    pub(super) fn is_over(&mut self, now: Instant) {
        *self = Self { answered_at: Some(now), hosts: BTreeSet::new() };
    }

    /// Records that no route leads to this host. Returns whether other hosts have no route either: in that case the host itself
    /// has not failed.
    pub(super) fn has(&mut self, host: &str, now: Instant) -> bool {
        if self.hosts.len() < 2 {
            self.hosts.insert(host.to_owned());
        }
        self.hosts.len() > 1 && self.answered_at.is_none_or(|at| now.saturating_duration_since(at) >= QUIET)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use RequestFailure::{Failed, NotCalled, NotTried, Unreachable};

    fn os(errno: Errno) -> io::Error {
        io::Error::from_raw_os_error(errno.raw_os_error())
    }

    #[test]
    fn what_this_machine_lacks_is_not_the_receivers_failure() {
        for lacks in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM] {
            assert!(matches!(RequestFailure::connecting(&os(lacks)), NotTried(_)), "{lacks}");
            assert!(matches!(RequestFailure::looking_up(&os(lacks)), NotTried(_)), "{lacks}");
        }
        for unreachable in [Errno::NETUNREACH, Errno::HOSTUNREACH, Errno::NETDOWN] {
            assert!(matches!(RequestFailure::connecting(&os(unreachable)), Unreachable(_)), "{unreachable}");
        }
        for receivers in [Errno::CONNREFUSED, Errno::CONNRESET, Errno::TIMEDOUT] {
            assert!(matches!(RequestFailure::connecting(&os(receivers)), Failed(_)), "{receivers}");
        }
        let said = |text: &str| RequestFailure::looking_up(&io::Error::other(text.to_owned()));
        let gai = "failed to lookup address information:";
        assert!(matches!(said(&format!("{gai} Temporary failure in name resolution")), Unreachable(_)));
        assert!(matches!(said(&format!("{gai} Name or service not known")), NotCalled(_)));
    }

    #[test]
    fn an_owner_reads_one_text_whether_a_name_is_unknown_not_public_or_without_a_name_server() {
        let all =
            [NotCalled("unknown".into()), NotCalled("TLS: of db.internal".into()), Unreachable("no route".into())];
        for one in all {
            assert_eq!(one.to_string(), NOT_CALLED);
            assert_ne!(one.detail(), NOT_CALLED);
        }
    }

    #[test]
    fn no_way_to_several_hosts_is_an_outage_of_our_own_once_nobody_has_answered_for_a_while() {
        let (mut outage, now) = (Outage::default(), Instant::now());
        assert!(!outage.has("a", now) && !outage.has("a", now), "one host alone may be gone");
        assert!(outage.has("b", now) && outage.has("a", now) && outage.has("c", now));
        outage.is_over(now);
        let later = now + QUIET;
        assert!(!outage.has("a", now) && !outage.has("b", now), "somebody has just answered");
        assert!(outage.has("a", later));
        outage.is_over(later);
        assert!(!outage.has("a", later + QUIET));
    }
}
