//! Checks everything that a delivery relies on.

mod database;
mod hosts;
mod login_time;
mod mailboxes;
mod mutual_exclusion;
mod notifier;
mod postfix;

use crate::base::deadline::Deadline;
use crate::config::Config;
use crate::ledger::Finding;
use crate::ledger::check::{advised, bad, good, warning};
use crate::message::Address;
use crate::site::Site;
use crate::webhook::MasterKey;
use std::path::Path;
use std::{fs, io};

/// Runs all checks. A failure is a [`Finding`] and does not end the others. No check takes a lock of a delivery, or creates a
/// mailbox.
///
/// `recipient` is the address whose mailbox is logged in to; without it, some address of the table. `self_test` proves on the
/// live database that the lock excludes, and that the hosts which have delivered recently take the same locks.
pub(crate) fn check(site: &Site, recipient: Option<Address>, self_test: bool, deadline: Deadline) -> Vec<Finding> {
    let mut findings = site.config().map(|config| settings(config, deadline)).unwrap_or_default();
    findings.extend(hosts::look(site, deadline));
    let mut opened = site.open_database(None, deadline);
    let with_tables = match &mut opened {
        Ok(opened) => database::look(site, opened.as_mut(), &mut findings).then_some(opened),
        Err(error) => {
            findings.push(database::failed("database", error));
            None
        }
    };
    if with_tables.is_some() {
        findings.extend(site.config().and_then(|config| notifier::look(config, deadline)));
    }
    // On an embedded site, each recipient's Maildir is created on first use.
    if site.config().is_some() {
        findings.extend(mailboxes::look(site, with_tables, recipient, deadline));
    }
    if self_test && opened.is_ok() {
        for (what, found) in [
            ("mutual exclusion", mutual_exclusion::proven(site, deadline)),
            ("lock.namespace", mutual_exclusion::namespaces(site, deadline)),
        ] {
            findings.push(found.unwrap_or_else(|error| database::failed(what, &error)));
        }
    }
    findings
}

/// Whether the key that signs notifications exists and is valid.
fn key_file(path: &Path) -> Finding {
    let (what, as_service) = ("notifications.secret_key_file", "run this as the service's user, who has to read it");
    let problem = match MasterKey::read(path) {
        Ok(_) => return good(what, path.display().to_string()),
        Err(problem) => format!("{}: {problem}", path.display()),
    };
    let is_missing = fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    let fix = "put it there, the same file as on the other hosts (docs/notifications.md, \"Setting it up\"): until then nobody is shown \
                anything from here";
    warning(what, problem, if is_missing { fix } else { as_service })
}

/// Checks the configuration's settings, and Postfix's own. Whether the times of the configuration fit together was checked when
/// it was loaded.
fn settings(config: &Config, deadline: Deadline) -> Vec<Finding> {
    let wait = config.policy().lock_wait;
    let mut findings = vec![good("configuration", config.file.display().to_string())];
    findings.extend(postfix::look(config, deadline));
    findings.push(match wait.is_zero() {
        true => advised(
            "lock wait",
            "none: a lock held elsewhere is 75 at once",
            "master.cf may say otherwise: --lock-wait",
        ),
        false => good("lock wait", humantime::format_duration(wait).to_string()),
    });
    findings.extend(config.notifications.secret_key_file.as_deref().map(key_file));
    let warnings = config.warnings().into_iter();
    findings.extend(warnings.map(|found| Finding { fix: None, ..warning("configuration", found, "") }));
    if let Err(error) = crate::base::log::start(&config.log_settings()) {
        let fix = "start what it names, or choose another log in [log]: until then every delivery is 75";
        findings.push(bad("log", error.to_string(), fix));
    }
    findings
}
