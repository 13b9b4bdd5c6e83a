//! `check`: each of the database's servers, if there are several.

use super::database;
use crate::base::deadline::Deadline;
use crate::ledger::check::{bad, good, warning};
use crate::ledger::{Finding, server};
use crate::site::Site;

/// Whether each server is usable, and whether at most one accepts writes.
pub(super) fn look(site: &Site, deadline: Deadline) -> Vec<Finding> {
    let mut findings = Vec::new();
    if site.config().is_none_or(|config| config.database.addresses.len() < 2) {
        return findings;
    }
    let mut primaries: Vec<(String, String)> = Vec::new();
    for (name, opened) in site.open_each_database(deadline) {
        let what = format!("server {name}");
        let asked = opened.and_then(|mut database| Ok((database.is_read_only()?, server(database.as_mut())?)));
        findings.push(match asked {
            Ok((true, _)) => good(what, "takes no writes: passed over for as long as that is so"),
            Ok((false, server)) => {
                primaries.push((name, server));
                good(what, "takes writes")
            }
            Err(error) if error.may_pass() => {
                let fix = "deliveries pass it over; if it is to take over one day, see to it";
                warning(what, error.to_string(), fix)
            }
            Err(error) => database::failed(&what, &error),
        });
    }
    if let [(first, server), rest @ ..] = &primaries[..]
        && let Some((other, _)) = rest.iter().find(|(_, other)| other != server)
    {
        let fix = "stop the one that was primary before (docs/failover.md, \"Two primaries\"): a lock on one excludes nobody who asks \
                    the other, and deliveries use the first of the list";
        findings.push(bad("one primary", format!("{first} and {other} both take writes"), fix));
    }
    findings
}
