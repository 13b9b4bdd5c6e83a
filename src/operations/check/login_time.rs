//! `check`: how long a login takes, and whether Dovecot starts a process for each.

use crate::base::deadline::Deadline;
use crate::base::endpoint::Endpoint;
use crate::ledger::Finding;
use crate::ledger::check::good;
use crate::operations::dovecot_settings::{SessionsOfProcess, sessions_of_a_process};
use crate::site::Site;
use std::time::Duration;

/// The number of logins that are measured.
pub(super) const LOGINS: usize = 5;

const FIX: &str = "if all mailboxes belong to one uid, have Dovecot keep its processes: postfix/README.md, \
                   \"A Dovecot instance for deliveries\"";

/// The median duration of the logins, and the process settings of the Dovecot on this machine, if there is one.
pub(super) fn finding(site: &Site, median: Duration, said: &str, deadline: Deadline) -> Finding {
    let is_dovecot = said.contains("Dovecot");
    let port = site.config().and_then(|config| match &config.imap.address {
        // At another address of 127.0.0.0/8 there may be a server other than the one that doveconf describes.
        Endpoint::Tcp { host, port } if ["localhost", "127.0.0.1", "::1"].contains(&host.as_str()) => Some(*port),
        _ => None,
    });
    let sessions = port.filter(|_| is_dovecot).and_then(|port| sessions_of_a_process(port, deadline));
    with_sessions(median, is_dovecot, sessions)
}

fn with_sessions(median: Duration, is_dovecot: bool, sessions: Option<SessionsOfProcess>) -> Finding {
    let found = format!("{:.1} ms, the median of {LOGINS}", median.as_secs_f64() * 1000.0);
    let (more, fix) = match sessions {
        Some(SessionsOfProcess::One) => ("; Dovecot starts a process for each, doveconf says", Some(FIX.to_owned())),
        Some(SessionsOfProcess::Many) => ("; Dovecot keeps its processes, doveconf says", None),
        None if is_dovecot => ("", Some(format!("as it comes, Dovecot starts a process for each login: {FIX}"))),
        None => ("", None),
    };
    Finding { fix, ..good("login", format!("{found}{more}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fix_is_named_unless_dovecot_is_known_to_keep_its_processes_or_another_server_is_there() {
        let median = Duration::from_micros(12_340);
        for (is_dovecot, sessions, found, has_fix) in [
            (
                true,
                Some(SessionsOfProcess::One),
                "12.3 ms, the median of 5; Dovecot starts a process for each, doveconf says",
                true,
            ),
            (
                true,
                Some(SessionsOfProcess::Many),
                "12.3 ms, the median of 5; Dovecot keeps its processes, doveconf says",
                false,
            ),
            (true, None, "12.3 ms, the median of 5", true),
            (false, None, "12.3 ms, the median of 5", false),
        ] {
            let finding = with_sessions(median, is_dovecot, sessions);
            assert_eq!((finding.found.as_str(), finding.fix.is_some()), (found, has_fix));
        }
    }
}
