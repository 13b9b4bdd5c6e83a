//! Recent delivery attempts on all hosts, searched by a name, a state or a time.

use crate::database::DatabaseError;
use crate::ledger::activity::{self, By, Counted, FoundTried, Wanted};
use crate::ledger::failures::{self, FailureCursor, FailuresOf, failed_deliveries};
use crate::ledger::notifications::overview;
pub(crate) use crate::ledger::notifications::overview::AtAGlance;
use crate::ledger::{Database, FailedDelivery, statistics, time_span};
use crate::message::{Address, Role, fold, queue_id};
use crate::site::Site;
use std::time::Duration;

/// The time span over which recent deliveries are counted.
pub(crate) const LATELY: Duration = Duration::from_hours(1);
/// Postfix waits at most 4000 s between two tries of one message (maximal_backoff_time). If a message was deferred more
/// than twice that long ago, no active queue holds it.
pub(crate) const STILL_TRIED: Duration = Duration::from_secs(8000);

/// The time span over which failures before the journal are counted.
pub(crate) const FAILED_WITHIN: Duration = Duration::from_hours(24);

/// How long notifications are reported as given up.
const GIVEN_UP: Duration = Duration::from_hours(24);

/// The overview figures of the web UI.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figures {
    /// Recipients' copies within the last hour.
    pub(crate) delivered: u64,
    pub(crate) refused: u64,
    /// Recipients' deferred copies that are still retried.
    pub(crate) deferred: u64,
    /// Sent copies that are owed.
    pub(crate) owed: u64,
    /// Deliveries that first failed before their journal within the last day, and were not delivered since.
    pub(crate) failed: u64,
    /// A summary of the subscribers, if there are any and this role may read them.
    pub(crate) shown: Option<AtAGlance>,
    /// When the figures were counted, in microseconds since 1970.
    pub(crate) at: i64,
}

/// Counts all figures.
pub(crate) fn figures(database: &mut dyn Database) -> Result<Figures, DatabaseError> {
    let now = time_span::now(database)?;
    let before = |span| now.saturating_sub(time_span::microseconds(span));
    let counted = activity::count(database, before(LATELY), before(STILL_TRIED))?;
    let owed = statistics::owed_copies(database, None)?;
    let failed = failures::count(database, before(FAILED_WITHIN))?;
    let shown = overview::at_a_glance(database, before(GIVEN_UP))?;
    let Counted { delivered, refused, deferred } = counted;
    Ok(Figures { delivered, refused, deferred, owed, failed, shown, at: now })
}

/// The meaning that was given to a search text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakenAs {
    MessageId,
    QueueId,
    /// An address, or a mailbox's user.
    Address,
    /// Part of a subject, or of an author's name or address.
    Piece,
}

/// The attempts that match `wanted` and the text `what`, at most `limit`, and the meaning that was given to the text.
/// `what` is a Message-ID, a queue id, an address or a mailbox's user, recognized as `trace` does. Otherwise it is part
/// of a subject or an author.
pub(crate) fn search(
    site: &Site,
    database: &mut dyn Database,
    what: &str,
    mut wanted: Wanted,
    limit: usize,
) -> Result<(FoundTried, Option<TakenAs>), DatabaseError> {
    let what = what.trim();
    if what.is_empty() {
        return Ok((activity::find(database, &wanted, limit)?, None));
    }
    if what.starts_with('<') || what.contains('@') {
        wanted.by = Some(By::Lock(site.lock_of_message_id(what.as_bytes())));
        let found = activity::find(database, &wanted, limit)?;
        if !found.tried.is_empty() || what.starts_with('<') {
            return Ok((found, Some(TakenAs::MessageId)));
        }
    } else {
        // A long queue id contains the arrival time of its message; the search starts there.
        let arrived = queue_id::arrived(what);
        let lock = match arrived {
            Some(arrived) => activity::lock_of_queue_id(database, what, arrived)?,
            None => None,
        };
        wanted.by = Some(By::QueueId(what.to_owned(), lock));
        let found = activity::find(database, &wanted, limit)?;
        // If the search ran out of time, an older attempt may still match a queue id. Other meanings are then not tried.
        let is_like_one = arrived.is_some() || queue_id::is_like_a_short_one(what);
        if !found.tried.is_empty() || is_like_one && found.looked_back_to.is_some() {
            return Ok((found, Some(TakenAs::QueueId)));
        }
    }
    // In the spelling that the ledger stores: see `Delivery::recipient`.
    let address = Address::parse(what).map_or_else(|_| fold(what), |address| address.folded().to_string());
    wanted.by = Some(By::Address { address, user: what.to_owned() });
    let found = activity::find(database, &wanted, limit)?;
    if !found.tried.is_empty() || what.contains('@') {
        return Ok((found, Some(TakenAs::Address)));
    }
    wanted.by = Some(By::Piece(what.to_owned()));
    Ok((activity::find(database, &wanted, limit)?, Some(TakenAs::Piece)))
}

/// The deliveries that failed before their journal and match `wanted`, the newest first, at most `limit`, for a search text
/// with the meaning that [`search`] gives it. None is found by a mailbox's user, or by part of a subject or an author.
pub(crate) fn search_failed(
    site: &Site,
    database: &mut dyn Database,
    what: &str,
    wanted: &Wanted,
    limit: usize,
) -> Result<Vec<FailedDelivery>, DatabaseError> {
    let Wanted { since, until, host, user, role, .. } = wanted;
    if user.is_some() || *role == Some(Role::Sender) {
        return Ok(Vec::new());
    }
    let mut found = failed_by_text(site, database, what.trim(), (*since, *until), limit)?;
    found.retain(|failure| until.is_none_or(|until| failure.first_at < until));
    found.retain(|failure| host.as_ref().is_none_or(|host| *host == failure.host));
    Ok(found)
}

fn failed_by_text(
    site: &Site,
    database: &mut dyn Database,
    what: &str,
    (since, until): (i64, Option<i64>),
    limit: usize,
) -> Result<Vec<FailedDelivery>, DatabaseError> {
    if what.is_empty() {
        let before = until.map(FailureCursor::before);
        return failed_deliveries(database, FailuresOf::Since(since, before.as_ref()), limit);
    }
    let is_message_id = what.starts_with('<') || what.contains('@');
    let lock = site.lock_of_message_id(what.as_bytes());
    let by_id = if is_message_id { FailuresOf::Lock(&lock) } else { FailuresOf::QueueId(what, since) };
    let found = failed_deliveries(database, by_id, limit)?;
    if !found.is_empty() || !what.contains('@') || what.starts_with('<') {
        return Ok(found);
    }
    let address = Address::parse(what).map_or_else(|_| fold(what), |address| address.folded().to_string());
    failed_deliveries(database, FailuresOf::Address(&address, since), limit)
}
