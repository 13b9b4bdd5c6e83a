//! `check`: whether a login to the mailbox store leads to the right mailbox, and which rights the login has there.

use super::{database, login_time};
use crate::base::deadline::Deadline;
use crate::base::timestamp;
use crate::config::Config;
use crate::imap::{Locks, Rights, Settings};
use crate::ledger::check::{advised, bad, good, warning};
use crate::ledger::{Database, Destination, Finding};
use crate::mailbox::imap::authorization::{Honoured, are_one, prove};
use crate::mailbox::{MailboxError, MailboxFailure};
use crate::message::Address;
use crate::site::{RENEWED_EVERY, Recipient, SeenMailboxes, Site};
use std::time::Duration;

/// The time limit of the login check: some servers delay the answer to a failed login by seconds. A server may never answer a
/// login for a user that does not exist. The limit then lets `check` report its other findings, before the process
/// [ends](crate::base::server_waits).
const LOGIN_CHECK_TIMEOUT: Duration = Duration::from_secs(40);

/// How many users one user is compared with: mailboxes that were created in the same second may look identical.
const OTHERS: usize = 5;

pub(super) fn look(
    site: &Site,
    database: Option<&mut Box<dyn Database>>,
    recipient: Option<Address>,
    deadline: Deadline,
) -> Vec<Finding> {
    let Some(database) = database else { return greeting(site, deadline) };
    let missing = match site.recipient(recipient, &[], database.as_mut()) {
        Ok(Recipient::Known(address, to)) => return logins(site, database.as_mut(), &address, &to, deadline),
        Ok(Recipient::Unknown(address)) => {
            let fix = "add it to the table addresses with its imap_user, or name its domain in [routing]";
            bad("recipient", format!("{address} has no mailbox here"), fix)
        }
        Ok(Recipient::Nobody) => {
            let fix = "name an address: check --recipient scuba@mail.axial.net";
            warning("mailbox login", "not tried: no address is known", fix)
        }
        Err(error) => database::failed("recipient", &error),
    };
    std::iter::once(missing).chain(greeting(site, deadline)).collect()
}

fn logins(
    site: &Site,
    database: &mut dyn Database,
    address: &Address,
    to: &Destination,
    deadline: Deadline,
) -> Vec<Finding> {
    let tried = match site.try_mailboxes(to, deadline) {
        Ok(tried) => tried,
        Err(error) => return vec![failed("mailbox store", &error)],
    };
    let mut findings = vec![good("mailbox login", format!("{address}: {} of {}; {}", to.inbox, to.user, tried.said))];
    findings.push(match site.time_logins(&to.user, login_time::LOGINS, deadline) {
        Ok(median) => login_time::finding(site, median, &tried.said, deadline),
        Err(error) => failed("login", &error),
    });
    findings.extend(site.config().and_then(|config| append_grace(config, &tried.said)));
    if !tried.uid_plus {
        let fix = "a copy too many, which a lost lock can leave, cannot be taken out: choose a server with UIDPLUS";
        findings.push(warning("UIDPLUS", "not offered", fix));
    }
    findings.extend(rights(to, &tried));
    if let Some(imap) = site.imap_of_named_users() {
        findings.extend(whose_mailboxes(site, imap, &to.user, database, deadline));
    }
    findings
}

/// Whether logins lead to the mailboxes of the users that they name.
fn whose_mailboxes(
    site: &Site,
    imap: &Settings,
    to: &str,
    database: &mut dyn Database,
    deadline: Deadline,
) -> Vec<Finding> {
    let others: Vec<String> = match site.some_users(OTHERS + 1, database) {
        Ok(users) => users.into_iter().map(|other| other.user).filter(|other| other != to).take(OTHERS).collect(),
        Err(error) => return vec![database::failed("two users", &error)],
    };
    let in_time = deadline.or_sooner(Deadline::after(LOGIN_CHECK_TIMEOUT));
    let mut findings = vec![login_check(site, imap, to, &others, in_time), age_of_the_proof(site, database)];
    findings.extend(two_users(imap, to, &others, deadline));
    findings
}

/// The findings on rights that the service account lacks for deliveries (RFC 4314 section 4), if the server reports rights.
fn rights(to: &Destination, tried: &SeenMailboxes) -> Vec<Finding> {
    let lacks = |mailbox: &str, letters: &str, right: &str, for_what: &str| {
        let fix = format!("give the service account the right {right} there ({letters}), to {for_what}");
        bad(format!("rights to {mailbox}"), format!("no right {right}"), fix)
    };
    let mut findings = Vec::new();
    for (mailbox, rights) in [(&to.inbox, &tried.inbox_rights), (&to.sent, &tried.sent_rights)] {
        match rights {
            Rights::Of(letters) if !letters.contains('i') => findings.push(lacks(mailbox, "i", "insert", "deliver")),
            Rights::Of(letters) => findings.push(good(format!("rights to {mailbox}"), letters)),
            Rights::Unknown | Rights::NoMailbox => {}
        }
    }
    // INBOX's rights decide whether a top-level mailbox may be created, if any rights do. For `k`, RFC 2086 has the older letter
    // `c`.
    if let Rights::Of(letters) = &tried.inbox_rights
        && tried.sent_is_missing
        && !letters.contains(['k', 'c'])
    {
        findings.push(lacks(&to.sent, "k, in INBOX", "create", "make it the first time"));
    }
    findings
}

/// Checks that a login leads to the mailbox of the user that it names, and not to the service account's own mailbox. A login for
/// the service account cannot show the difference, so another user of the table is tried instead.
fn login_check(site: &Site, imap: &Settings, to: &str, others: &[String], deadline: Deadline) -> Finding {
    let what = "user of the login";
    let mut users =
        std::iter::once(to).filter(|user| !site.is_service_account(user)).chain(others.iter().map(String::as_str));
    let Some(user) = users.next() else {
        let found = "not tried: the service account's own mailbox does not show where mail for others goes";
        return warning(what, found, "name somebody else: check --recipient scuba@mail.axial.net");
    };
    match prove(imap, (user, users.next()), "INBOX", deadline, deadline) {
        Ok(honoured @ Honoured::EachHasHisOwn) => {
            let fix =
                "mail for a misspelt imap_user would go where nobody reads it: see that the table addresses is right";
            advised(what, honoured.to_string(), fix)
        }
        Ok(honoured) => good(what, honoured.to_string()),
        Err(error) => failed(what, &error),
    }
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
            warning(what, format!("proven {} ago, and not renewed since", timestamp::span(age)), fix)
        }
        Err(error) => database::failed(what, &error),
    }
}

/// Checks that some other user of the table has another INBOX than the user `to`.
fn two_users(imap: &Settings, to: &str, others: &[String], deadline: Deadline) -> Option<Finding> {
    let what = "two users";
    for other in others {
        match are_one(imap, [to, other], deadline) {
            Ok(Some(false)) => return Some(good(what, format!("{to} and {other} have an INBOX each"))),
            // Two mailboxes look identical if they have equal message counts, and come from one skeleton or were created in the
            // same second.
            Ok(Some(true) | None) => {}
            Err(error) => return Some(failed(what, &error)),
        }
    }
    (!others.is_empty()).then(|| {
        let fix = "deliver a message to one of them, and run this again. If it says the same, see whether the others have it, too: then \
                    mail for one goes to all, by imap.act_for_user or imap.login_user, or by what the server makes of them \
                    (docs/imap-servers.md, \"Proof of logins\")";
        warning(what, format!("the INBOXes of {to}, {} could not be distinguished", others.join(", ")), fix)
    })
}

/// Reads at least the server's greeting, if no mailbox can be tried.
fn greeting(site: &Site, deadline: Deadline) -> Vec<Finding> {
    let what = "mailbox store";
    match site.try_greeting(deadline) {
        Ok(said) => {
            let append_grace = site.config().and_then(|config| append_grace(config, &said));
            std::iter::once(good(what, said)).chain(append_grace).collect()
        }
        Err(error) => vec![failed(what, &error)],
    }
}

/// Whether `imap.append_grace` is too short for this server, judged by its greeting, or longer than necessary.
fn append_grace(config: &Config, said: &str) -> Option<Finding> {
    const WHY: &str = "docs/imap-servers.md, \"How late a copy may arrive\"";
    let what = "imap.append_grace";
    let (locks, append_grace) = (Locks::by_greeting(said), config.imap.append_grace);
    let least = config.delivery.deadline + locks.max_late_append();
    let [shown, least_text] = [append_grace, least].map(humantime::format_duration);
    match locks {
        _ if append_grace < least => {
            let found = format!(
                "{shown} is less than {} above delivery.deadline: for so long this server may still store what an attempt that \
                 died has sent, and its copy would be duplicated",
                humantime::format_duration(locks.max_late_append())
            );
            Some(warning(what, found, format!("say \"{least_text}\" at least: {WHY}")))
        }
        Locks::EndWithTheProcess if append_grace > least => {
            let fix = format!("on Cyrus \"{least_text}\" can do, after which the next try looks: {WHY}");
            Some(advised(what, shown.to_string(), fix))
        }
        Locks::EndWithTheProcess | Locks::MayOutliveIt => None,
    }
}

/// The finding on a failure of the mailbox store, with its fix.
fn failed(what: &str, error: &MailboxError) -> Finding {
    let fix = match error.failure {
        MailboxFailure::Unreachable | MailboxFailure::TimedOut | MailboxFailure::ConnectionLost => {
            "see that it runs, that imap.host, port and encryption fit it, that its certificate is for that name, and that \
             imap.ca_file is of the CA that signed it"
        }
        // RFC 5530 section 3: the password was right.
        MailboxFailure::AccessDenied if error.detail.contains("[AUTHORIZATIONFAILED]") => {
            "the password is right, but the account may not act for this user: see whether the user exists (Cyrus: proxyservers; Dovecot \
             with PAM: leave out `result_success = continue`, since PAM knows no user without a password)"
        }
        MailboxFailure::AccessDenied | MailboxFailure::LoginRefused => {
            "see imap.user, its password, and its right to act for every user (Dovecot: a master user, this host in its allow_nets; Cyrus: proxyservers)"
        }
        MailboxFailure::IdentityIgnored => {
            "deliveries are deferred until it does: choose another way of logging in (imap.login_user), or another server \
             (docs/imap-servers.md, \"Proof of logins\")"
        }
        MailboxFailure::NoSuchMailbox => "see the mailbox's name in the table addresses or in [routing]",
        MailboxFailure::Local => "fix the file or setting that it names",
        _ => "the server's own log says more",
    };
    bad(what, error.to_string(), fix)
}
