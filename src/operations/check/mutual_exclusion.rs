//! `check --self-test`: proves on the live database that the lock excludes, and that all hosts take the same locks.

use crate::base::deadline::Deadline;
use crate::database::DatabaseError;
use crate::ledger::check::{bad, good, rows};
use crate::ledger::{self, Finding, time_span};
use crate::lock::{Acquired, LockName};
use crate::site::Site;
use std::collections::BTreeMap;
use std::time::Duration;

/// How far back the hosts' locks are compared.
const LATELY: Duration = Duration::from_hours(1);

/// Proves that four connections lead to one server. While one holds the lock, another must be refused, and the first must still
/// hold the lock afterwards. This detects statement poolers, read/write splits, balancers, and clusters whose lock is local to a
/// node.
pub(super) fn proven(site: &Site, deadline: Deadline) -> Result<Finding, DatabaseError> {
    let what = "mutual exclusion";
    let name = LockName::new("maildrop self-test", uuid::Uuid::now_v7().as_bytes());
    let open = || site.open_database(None, deadline);
    let [mut first, mut second, mut third, mut fourth] = [open()?, open()?, open()?, open()?];
    let broken = |found: &str| {
        let fix = "deliver to one primary, directly or through a pooler in transaction mode: this one would let the same \
                    message be delivered twice at once";
        Ok(bad(what, found, fix))
    };
    // Two connections that happen to reach the same server would prove nothing about a balancer.
    let server = ledger::server(first.as_mut())?;
    for other in [&mut second, &mut third, &mut fourth] {
        let other = ledger::server(other.as_mut())?;
        if other != server {
            return broken(&format!("four connections lead to more than one server: {server}; {other}"));
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
    if !matches!(second.acquire(&name, Duration::from_secs(1))?, Acquired::Held) {
        return broken("a lock that was let go of is still held");
    }
    second.release(&name)?;
    Ok(good(what, "one connection held the lock, the other was refused"))
}

/// Whether the hosts that have delivered recently take the locks that this host would take for the same messages. Single messages
/// may differ: the ledger does not keep a Message-ID beyond ASCII unchanged, and a replay takes the recorded lock. A host with no
/// lock in common has another namespace.
pub(super) fn namespaces(site: &Site, deadline: Deadline) -> Result<Finding, DatabaseError> {
    let what = "lock.namespace";
    let mut database = site.open_database(None, deadline)?;
    let lately = time_span::now(database.as_mut())?.saturating_sub(time_span::microseconds(LATELY));
    let mut hosts: BTreeMap<String, bool> = BTreeMap::new();
    for taken in rows::taken_locks(database.as_mut(), lately)? {
        let ours = site.lock_of_message_id(taken.message_id.as_bytes()) == taken.lock;
        *hosts.entry(taken.host).or_default() |= ours;
    }
    let others: Vec<&str> = hosts.iter().filter(|(_, ours)| !**ours).map(|(host, _)| host.as_str()).collect();
    Ok(if !others.is_empty() {
        let fix =
            "make it the same on all hosts: until then their locks exclude nobody here, and mail is deferred (4.3.5)";
        bad(what, format!("in the last hour another one on {}", others.join(", ")), fix)
    } else if hosts.is_empty() {
        good(what, "nobody has delivered in the last hour")
    } else {
        let hosts: Vec<String> = hosts.into_keys().collect();
        good(what, format!("in the last hour the same on {}", hosts.join(", ")))
    })
}
