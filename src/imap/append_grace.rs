//! How late a server may store an APPEND whose sender has ended: the kernel may still send bytes, and a killed server
//! process may leave a lock.

use super::stream::USER_TIMEOUT;
use std::time::Duration;

/// What happens to the lock on a mailbox when the server process that holds it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Locks {
    /// The kernel holds the lock (fcntl(2)), so it ends with the process, as on Cyrus.
    EndWithTheProcess,
    /// The lock may be a file that stays, and that the server's other processes respect for [`DEAD_LOCKS`]. Dovecot with
    /// Maildir and Courier do so; any unknown server may.
    MayOutliveIt,
}

/// How long other processes respect the lock of a killed one. Dovecot 2.4 on Maildir was seen to store an APPEND 110 seconds
/// late.
const DEAD_LOCKS: Duration = Duration::from_mins(2);

impl Locks {
    /// Cyrus names itself in its greeting, unless `serverinfo` is off (imapd.conf(5)).
    pub(crate) fn by_greeting(greeting: &str) -> Self {
        if greeting.contains("Cyrus IMAP") { Self::EndWithTheProcess } else { Self::MayOutliveIt }
    }

    /// How long after the end of our process its APPEND may still land. A proxy in between adds to that: see
    /// `imap.append_grace` in config.example.toml.
    pub(crate) const fn max_late_append(self) -> Duration {
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
        assert_eq!(Locks::EndWithTheProcess.max_late_append(), Duration::from_secs(30));
        assert_eq!(Locks::MayOutliveIt.max_late_append(), Duration::from_secs(150));
    }
}
