//! `check`: whether every connection leads to one server, which is the only one that takes writes.

use super::database;
use crate::base::deadline::Deadline;
use crate::database::DatabaseError;
use crate::ledger::FindingState::{Bad, Warning};
use crate::ledger::check::good;
use crate::ledger::{Finding, server};
use crate::lock::{Acquired, LockName};
use crate::site::Site;
use std::collections::BTreeMap;
use std::time::Duration;

pub(super) const MUTUAL_EXCLUSION: &str = "mutual exclusion";

/// If there are several servers: whether each is usable, and whether at most one accepts writes.
pub(super) fn inspect_each(site: &Site, deadline: Deadline) -> Vec<Finding> {
    let mut findings = Vec::new();
    if site.config().is_none_or(|config| config.database.addresses.len() < 2) {
        return findings;
    }
    let mut primaries = BTreeMap::new();
    for (name, opened) in site.open_each_database(deadline) {
        let what = format!("server {name}");
        let asked = opened.and_then(|mut database| Ok((database.is_read_only()?, server(database.as_mut())?)));
        findings.push(match asked {
            Ok((true, _)) => good(what, "takes no writes: passed over for as long as that is so"),
            Ok((false, server)) => {
                primaries.insert(server, name);
                good(what, "takes writes")
            }
            Err(error) => {
                let state = if error.may_pass() { Warning } else { Bad };
                Finding { state, ..database::failed(&what, &error) }
            }
        });
    }
    if primaries.len() > 1 {
        let names = primaries.into_values().collect::<Vec<_>>().join(" and ");
        let fix = "stop the one that was primary before (docs/failover.md, \"Two primaries\"): a lock on one excludes nobody who asks \
                   the other, and deliveries use the first of the list";
        findings.push(Bad.finding("one primary", format!("{names} both take writes"), fix));
    }
    findings
}

/// Proves that four connections lead to one server. While one holds the lock, another must be refused, and the first must still
/// hold the lock afterwards. This detects statement poolers, read/write splits, balancers, and clusters whose lock is local to a
/// node.
pub(super) fn prove_mutual_exclusion(site: &Site, deadline: Deadline) -> Result<Finding, DatabaseError> {
    let name = LockName::new("maildrop self-test", uuid::Uuid::now_v7().as_bytes());
    let open = || site.open_database(None, deadline);
    let [mut first, mut second, mut third, mut fourth] = [open()?, open()?, open()?, open()?];
    let broken = |found: &str| {
        let fix = "deliver to one primary, directly or through a pooler in transaction mode: this one would let the same message be \
                   delivered twice at once";
        Ok(Bad.finding(MUTUAL_EXCLUSION, found, fix))
    };
    // Two connections that happen to reach the same server would prove nothing about a balancer.
    let one = server(first.as_mut())?;
    for other in [&mut second, &mut third, &mut fourth] {
        let other = server(other.as_mut())?;
        if other != one {
            return broken(&format!("four connections lead to more than one server: {one}; {other}"));
        }
    }
    if !matches!(first.acquire(&name, Duration::ZERO)?, Acquired::Held) {
        return broken("a lock that nobody can hold is held");
    }
    for _ in 0..3 {
        if matches!(second.acquire(&name, Duration::ZERO)?, Acquired::Held) {
            return broken("two connections held the same lock at once");
        }
        if !first.still_held(&name)? {
            return broken("the lock was lost between two statements of its own connection");
        }
    }
    first.release(&name)?;
    Ok(good(MUTUAL_EXCLUSION, "one connection held the lock, the other was refused"))
}
