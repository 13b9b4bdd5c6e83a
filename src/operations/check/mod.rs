//! Does everything that a delivery relies on work, and does it keep the promises?

mod database;
mod mailboxes;
mod mutual_exclusion;

use crate::base::deadline::Deadline;
use crate::config::Config;
use crate::ledger::check::{bad, good, warning};
use crate::ledger::{Finding, State};
use crate::message::Address;
use crate::site::Site;
use std::time::Duration;

/// What to look at besides what every delivery needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    /// Whose mailbox to log in to; without it, that of some address of the table.
    pub(crate) recipient: Option<Address>,
    /// Whether to prove on the live database that the lock excludes, and that the hosts which have delivered lately take the
    /// same locks.
    pub(crate) self_test: bool,
}

/// Looks at everything, as far as it can be looked at: what fails is a [`Finding`], and never ends the rest. Takes no lock of a
/// delivery, and creates no mailbox.
pub(crate) fn check(site: &Site, asked: &Asked, deadline: Deadline) -> Vec<Finding> {
    let mut findings = site.config().map(settings).unwrap_or_default();
    let mut opened = match site.open_database(None, deadline) {
        Ok(opened) => Some(opened),
        Err(error) => {
            findings.push(database::failed("database", &error));
            None
        }
    };
    // Without its tables nothing can be asked of a database that would say more than that.
    let with_tables = match &mut opened {
        Some(opened) => database::look(site, opened.as_mut(), &mut findings).then_some(opened),
        None => None,
    };
    // Embedded, each recipient's Maildir is made when it is first needed.
    if site.config().is_some() {
        mailboxes::look(site, with_tables, asked.recipient.clone(), deadline, &mut findings);
    }
    if asked.self_test && opened.is_some() {
        for (what, found) in [
            ("mutual exclusion", mutual_exclusion::proven(site, deadline)),
            ("lock.namespace", mutual_exclusion::namespaces(site, deadline)),
        ] {
            findings.push(found.unwrap_or_else(|error| database::failed(what, &error)));
        }
    }
    findings
}

/// Whether something breaks a promise.
pub(crate) fn is_bad(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.state == State::Bad)
}

/// What the configuration itself says. That its times fit one another, and what Postfix's are said to be, is seen to when it
/// is read.
fn settings(config: &Config) -> Vec<Finding> {
    let delivery = &config.delivery;
    let span = |span: Duration| humantime::format_duration(span).to_string();
    let with = |finding: Finding, advice: &str| Finding { mend: Some(advice.into()), ..finding };
    let wait = config.policy().lock_wait;
    let mut findings = vec![
        good("configuration", config.file.display().to_string()),
        with(
            good(
                "deadline",
                format!("{}; Postfix's limit: {}", span(delivery.deadline), span(delivery.postfix_time_limit)),
            ),
            "see that main.cf says the same: postconf maildrop_time_limit command_time_limit",
        ),
        with(
            good(
                "queue lifetime",
                format!(
                    "{}; a Sent copy is tried for {}, an attempt that died is settled after {}",
                    span(delivery.postfix_queue_lifetime),
                    span(config.sent.retry_for),
                    span(config.imap.settle)
                ),
            ),
            "see that main.cf says the same: postconf maximal_queue_lifetime",
        ),
        match wait.is_zero() {
            true => with(
                good("lock wait", "none: a lock held elsewhere is 75 at once"),
                "master.cf may say otherwise: --lock-wait",
            ),
            false => good("lock wait", span(wait)),
        },
    ];
    let warnings = config.warnings().into_iter();
    findings.extend(warnings.map(|found| Finding { mend: None, ..warning("configuration", found, "") }));
    if let Err(error) = crate::base::log::start(&config.log_settings()) {
        let mend = "start what it names, or choose another log in [log]: until then every delivery is 75";
        findings.push(bad("log", error.to_string(), mend));
    }
    findings
}
