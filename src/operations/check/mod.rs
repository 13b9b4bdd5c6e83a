//! Checks everything that a delivery relies on.

mod database;
mod mailboxes;
mod postfix;
mod servers;

use crate::base::deadline::Deadline;
use crate::config::Config;
use crate::ledger::Finding;
use crate::ledger::FindingState::{Bad, Warning};
use crate::ledger::check::good;
use crate::message::Address;
use crate::site::Site;

/// Runs all checks. A failure is a [`Finding`] and does not end the others. No check takes a lock of a delivery, or creates a
/// mailbox.
///
/// `recipient` is the address whose mailbox is logged in to; without it, some address of the table. `self_test` proves on the
/// live database that the lock excludes.
pub(crate) fn check(site: &Site, recipient: Option<Address>, self_test: bool, deadline: Deadline) -> Vec<Finding> {
    let mut findings = site.config().map(|config| settings(config, deadline)).unwrap_or_default();
    findings.extend(servers::inspect_each(site, deadline));
    let mut opened = site.open_database(None, deadline);
    let with_tables = match &mut opened {
        Ok(opened) => database::inspect_all(site, opened.as_mut(), &mut findings).then_some(opened),
        Err(error) => {
            findings.push(database::failed("database", error));
            None
        }
    };
    if with_tables.is_some() {
        findings.extend(site.config().and_then(|config| database::rights_of_the_notifier(config, deadline)));
    }
    // On an embedded site, each recipient's Maildir is created on first use.
    if site.config().is_some() {
        findings.extend(mailboxes::inspect(site, with_tables, recipient, deadline));
    }
    if self_test && opened.is_ok() {
        let proven = servers::prove_mutual_exclusion(site, deadline);
        findings.push(proven.unwrap_or_else(|error| database::failed(servers::MUTUAL_EXCLUSION, &error)));
    }
    findings
}

/// Checks the configuration's settings, and Postfix's own. Whether the times of the configuration fit together was checked when
/// it was loaded.
fn settings(config: &Config, deadline: Deadline) -> Vec<Finding> {
    let mut findings = vec![good("configuration", config.file.display().to_string())];
    findings.extend(postfix::inspect(config, deadline));
    let warnings = config.warnings().into_iter();
    findings.extend(warnings.map(|found| Finding { fix: None, ..Warning.finding("configuration", found, "") }));
    if let Err(error) = crate::base::log::start(&config.log_settings()) {
        let fix = "start what it names, or choose another log in [log]: until then every delivery is 75";
        findings.push(Bad.finding("log", error.to_string(), fix));
    }
    findings
}
