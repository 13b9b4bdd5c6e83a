//! `check`: whether a login to the mailbox store leads to the right mailbox, how long it takes, and which rights it has there.

use super::database;
use crate::base::deadline::Deadline;
use crate::base::endpoint::Endpoint;
use crate::base::timestamp;
use crate::config::Config;
use crate::imap::{Locks, Rights, Settings};
use crate::ledger::FindingState::{Bad, Good, Warning};
use crate::ledger::check::good;
use crate::ledger::{Database, Destination, Finding};
use crate::mailbox::imap::authorization::prove;
use crate::mailbox::{MailboxError, MailboxFailure};
use crate::message::Address;
use crate::operations::dovecot_settings::{SessionsOfProcess, sessions_of_a_process};
use crate::site::{RENEWED_EVERY, Recipient, SeenMailboxes, Site};
use std::time::Duration;

const LOGIN_CHECK: &str = "user of the login";

/// The time limit of the login check: some servers delay the answer to a failed login by seconds. A server may never answer a
/// login for a user that does not exist. The limit then lets `check` report its other findings, before the process
/// [ends](crate::base::server_waits).
const LOGIN_CHECK_TIMEOUT: Duration = Duration::from_secs(40);

/// The number of logins that are measured.
const LOGINS: usize = 5;

const KEPT_PROCESSES: &str = "as it comes, Dovecot starts a process for each login; if all mailboxes belong to one uid, have Dovecot keep its processes: postfix/README.md, \
                              \"A Dovecot instance for deliveries\"";

pub(super) fn inspect(
    site: &Site,
    database: Option<&mut Box<dyn Database>>,
    recipient: Option<Address>,
    deadline: Deadline,
) -> Vec<Finding> {
    let Some(database) = database else { return vec![greeting(site, deadline)] };
    let missing = match site.recipient(recipient, &[], database.as_mut()) {
        Ok(Recipient::Known(_, to)) => return logins(site, database.as_mut(), &to, deadline),
        Ok(Recipient::Unknown(address)) => {
            let fix = "add it to the table addresses with its imap_user, or name its domain in [routing]";
            Bad.finding("recipient", format!("{address} has no mailbox here"), fix)
        }
        Ok(Recipient::Nobody) => {
            let fix = "name an address: check --recipient scuba@mail.axial.net";
            Warning.finding("mailbox login", "not tried: no address is known", fix)
        }
        Err(error) => database::failed("recipient", &error),
    };
    vec![missing, greeting(site, deadline)]
}

/// Reads at least the server's greeting, if no mailbox can be tried.
fn greeting(site: &Site, deadline: Deadline) -> Finding {
    let what = "mailbox store";
    site.try_greeting(deadline).map_or_else(|error| failed(what, &error), |said| good(what, said))
}

fn logins(site: &Site, database: &mut dyn Database, to: &Destination, deadline: Deadline) -> Vec<Finding> {
    let tried = match site.try_mailboxes(to, deadline) {
        Ok(tried) => tried,
        Err(error) => return vec![failed("mailbox store", &error)],
    };
    let mut findings = vec![good("mailbox login", format!("{} of {}; {}", to.inbox, to.user, tried.said))];
    findings.push(match site.time_logins(&to.user, LOGINS, deadline) {
        Ok(median) => login_time(median, tried.said.contains("Dovecot"), dovecot_here(site, deadline)),
        Err(error) => failed("login", &error),
    });
    findings.extend(site.config().and_then(|config| append_grace(config, &tried.said)));
    if !tried.uid_plus {
        let fix = "a copy too many, which a lost lock can leave, cannot be taken out: choose a server with UIDPLUS";
        findings.push(Warning.finding("UIDPLUS", "not offered", fix));
    }
    findings.extend(rights(to, &tried));
    if let Some(imap) = site.imap_of_named_users() {
        findings.push(match site.some_users(2, database) {
            Ok(users) => login_check(site, imap, &to.user, &users, deadline),
            Err(error) => database::failed(LOGIN_CHECK, &error),
        });
        findings.push(age_of_the_proof(site, database));
    }
    findings
}

/// How many sessions a process of the Dovecot on this machine serves.
fn dovecot_here(site: &Site, deadline: Deadline) -> Option<SessionsOfProcess> {
    match &site.config()?.imap.address {
        // At another address of 127.0.0.0/8 there may be a server other than the one that doveconf describes.
        Endpoint::Tcp { host, port } if ["localhost", "127.0.0.1", "::1"].contains(&host.as_str()) => {
            sessions_of_a_process(*port, deadline)
        }
        _ => None,
    }
}

fn login_time(median: Duration, is_dovecot: bool, sessions: Option<SessionsOfProcess>) -> Finding {
    let found = format!("{:.1} ms, the median of {LOGINS}", median.as_secs_f64() * 1000.0);
    match sessions {
        Some(SessionsOfProcess::Many) if is_dovecot => good("login", format!("{found}; Dovecot keeps its processes")),
        _ if is_dovecot => Good.finding("login", found, KEPT_PROCESSES),
        _ => good("login", found),
    }
}

/// The findings on rights that the service account lacks for deliveries (RFC 4314 section 4), if the server reports rights.
/// INBOX's rights decide whether a top-level mailbox may be created, if any rights do. For `k`, RFC 2086 has the older letter
/// `c`.
fn rights(to: &Destination, tried: &SeenMailboxes) -> Vec<Finding> {
    let of_missing = if tried.sent_is_missing { &tried.inbox_rights } else { &Rights::Unknown };
    let wanted = [
        (&to.inbox, &tried.inbox_rights, "i", "insert", "deliver"),
        (&to.sent, &tried.sent_rights, "i", "insert", "deliver"),
        (&to.sent, of_missing, "kc", "create", "make it the first time (in INBOX)"),
    ];
    let reported = wanted.into_iter().filter_map(|(mailbox, rights, letters, right, for_what)| {
        let Rights::Of(has) = rights else { return None };
        let what = format!("rights to {mailbox}");
        let fix = format!("give the service account the right {right} there ({letters}), to {for_what}");
        Some(match has.contains(|letter| letters.contains(letter)) {
            true => good(what, format!("{right}: {has}")),
            false => Bad.finding(what, format!("no right {right}"), fix),
        })
    });
    reported.collect()
}

/// Checks that a login leads to the mailbox of the user that it names, and not to the service account's own mailbox. A login for
/// the service account cannot show the difference, so another user of the table is tried instead.
fn login_check(site: &Site, imap: &Settings, to: &str, users: &[Destination], deadline: Deadline) -> Finding {
    let others = users.iter().map(|other| other.user.as_str()).filter(|other| *other != to);
    let mut users = std::iter::once(to).filter(|user| !site.is_service_account(user)).chain(others);
    let Some(user) = users.next() else {
        let found = "not tried: the service account's own mailbox does not show where mail for others goes";
        return Warning.finding(LOGIN_CHECK, found, "name somebody else: check --recipient scuba@mail.axial.net");
    };
    let in_time = deadline.or_sooner(Deadline::after(LOGIN_CHECK_TIMEOUT));
    let proven = prove(imap, (user, users.next()), "INBOX", in_time, in_time);
    proven.map_or_else(|error| failed(LOGIN_CHECK, &error), |honoured| good(LOGIN_CHECK, honoured.to_string()))
}

/// The age of the login proof on which deliveries rely.
fn age_of_the_proof(site: &Site, database: &mut dyn Database) -> Finding {
    let what = "user of the login, as deliveries know it";
    match site.age_of_the_proof(database) {
        Ok(None) => good(what, "not proven yet, or too long ago: the next delivery, or the timer, has to prove it"),
        Ok(Some(age)) if age < 2 * RENEWED_EVERY => good(what, format!("proven {} ago", timestamp::span(age))),
        Ok(Some(age)) => {
            let fix = "once it is 14 days old, a delivery has to prove it, or is deferred: see that maildropd or \
                       maildrop-command-proof.timer runs, and what `maildrop_command check --renew-proof` says \
                       (docs/imap-servers.md, \"Proof of logins\")";
            Warning.finding(what, format!("proven {} ago, and not renewed since", timestamp::span(age)), fix)
        }
        Err(error) => database::failed(what, &error),
    }
}

/// Whether `imap.append_grace` is too short for this server, judged by its greeting.
fn append_grace(config: &Config, said: &str) -> Option<Finding> {
    let (late, append_grace) = (Locks::by_greeting(said).max_late_append(), config.imap.append_grace);
    let least = config.delivery.deadline + late;
    let [shown, late, least_text] = [append_grace, late, least].map(humantime::format_duration);
    let found = format!(
        "{shown} is less than {late} above delivery.deadline: for so long this server may still store what an attempt that died has sent, \
         and its copy would be duplicated"
    );
    let fix = format!("say \"{least_text}\" at least: docs/imap-servers.md, \"How late a copy may arrive\"");
    (append_grace < least).then(|| Warning.finding("imap.append_grace", found, fix))
}

/// The finding on a failure of the mailbox store, with its fix.
fn failed(what: &str, error: &MailboxError) -> Finding {
    let fix = match error.failure {
        MailboxFailure::Unreachable | MailboxFailure::TimedOut | MailboxFailure::ConnectionLost => {
            "see that it runs, that imap.host, port and encryption fit it, that its certificate is for that name, and that \
             imap.ca_file is of the CA that signed it"
        }
        // RFC 5530 section 3.
        MailboxFailure::AccessDenied | MailboxFailure::LoginRefused => {
            "see imap.user, its password, and its right to act for every user (Dovecot: a master user, this host in its allow_nets; Cyrus: \
             proxyservers). With AUTHORIZATIONFAILED the password is right: see whether the user exists (Dovecot with PAM: leave out \
             `result_success = continue`, since PAM knows no user without a password)"
        }
        MailboxFailure::IdentityIgnored => {
            "deliveries are deferred until it does: choose another way of logging in (imap.login_user), or another server \
             (docs/imap-servers.md, \"Proof of logins\")"
        }
        MailboxFailure::NoSuchMailbox => "see the mailbox's name in the table addresses or in [routing]",
        MailboxFailure::Local => "fix the file or setting that it names",
        _ => "the server's own log says more",
    };
    Bad.finding(what, error.to_string(), fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fix_is_named_unless_dovecot_is_known_to_keep_its_processes_or_another_server_is_there() {
        use SessionsOfProcess::{Many, One};
        let time = "12.3 ms, the median of 5";
        let kept = &format!("{time}; Dovecot keeps its processes");
        for (is_dovecot, sessions, found, has_fix) in [
            (true, Some(One), time, true),
            (true, Some(Many), kept, false),
            (true, None, time, true),
            (false, None, time, false),
        ] {
            let finding = login_time(Duration::from_micros(12_340), is_dovecot, sessions);
            assert_eq!((finding.found.as_str(), finding.fix.is_some()), (found, has_fix));
        }
    }
}
