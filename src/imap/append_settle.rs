//! How late a server may store an APPEND whose sender is gone: what the kernel still sends, and the locks of the server's own dead.

use super::stream::USER_TIMEOUT;
use std::time::Duration;

/// What becomes of the lock on a mailbox when the server's process that holds it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Locks {
    /// It is the kernel's (fcntl(2)), and ends with the process. So it is on Cyrus.
    EndWithTheProcess,
    /// It may be a file that stays, and that the server's other processes go by for [`DEAD_LOCKS`]. So it is on Dovecot with
    /// Maildir, and on Courier; and it may be so on any other.
    MayOutliveIt,
}

/// For how long a lock of the dead is gone by: Dovecot 2.4 on Maildir stored an APPEND 110 seconds late.
const DEAD_LOCKS: Duration = Duration::from_mins(2);

impl Locks {
    /// By what the server says when it greets. Cyrus has its name there, unless `serverinfo` is off (imapd.conf(5)).
    pub(crate) fn by_greeting(greeting: &str) -> Self {
        if greeting.contains("Cyrus IMAP") { Self::EndWithTheProcess } else { Self::MayOutliveIt }
    }

    /// How long after the end of our process its APPEND may still land. A proxy in between may add to that: see
    /// config.example.toml.
    pub(crate) const fn late(self) -> Duration {
        match self {
            Self::EndWithTheProcess => USER_TIMEOUT,
            Self::MayOutliveIt => USER_TIMEOUT.saturating_add(DEAD_LOCKS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_server_that_calls_itself_cyrus_is_taken_for_one() {
        for (greeting, expected) in [
            (
                "[CAPABILITY IMAP4rev1 SASL-IR] mail.example Cyrus IMAP 3.10.1-Debian server ready",
                Locks::EndWithTheProcess,
            ),
            ("mail.example Cyrus IMAP server ready", Locks::EndWithTheProcess),
            ("[CAPABILITY IMAP4rev1 SASL-IR] Dovecot ready.", Locks::MayOutliveIt),
            ("mail.example IMAP server ready", Locks::MayOutliveIt),
            ("", Locks::MayOutliveIt),
        ] {
            assert_eq!(Locks::by_greeting(greeting), expected, "{greeting}");
        }
        assert_eq!(Locks::EndWithTheProcess.late(), Duration::from_secs(30));
        assert_eq!(Locks::MayOutliveIt.late(), Duration::from_secs(150));
    }
}
