//! Recent delivery attempts on all hosts, searched by a name, a state or a time.

use super::search;
pub(crate) use super::search::TakenAs;
use crate::database::DatabaseError;
use crate::ledger::activity::{self, Counted, FoundTried, ResultFilter, SearchBy, Wanted};
use crate::ledger::failures::{self, FailureCursor, FailuresOf, RETENTION, WaitingDeliveries, failed_deliveries};
use crate::ledger::notifications::overview;
pub(crate) use crate::ledger::notifications::overview::AtAGlance;
use crate::ledger::{Database, FailedDelivery, statistics, time_span};
use crate::message::{Role, as_stored, queue_id};
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
    /// Recipients' deferred copies that are still retried, those that wait included.
    pub(crate) deferred: u64,
    /// The deliveries that failed before their journal, and are still retried.
    pub(crate) waiting: Option<WaitingDeliveries>,
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
    let waiting = failures::waiting(database, before(STILL_TRIED))?;
    let deferred = deferred + waiting.map_or(0, |waiting| waiting.all - waiting.with_attempt);
    Ok(Figures { delivered, refused, deferred, waiting, owed, failed, shown, at: now })
}

/// The attempts that match `wanted` and the text `what`, at most `limit`, and the meaning that was given to the text
/// ([`search::meanings`]). What domains or addresses begin with has no attempts: it finds messages.
pub(crate) fn search(
    site: &Site,
    database: &mut dyn Database,
    what: &str,
    mut wanted: Wanted,
    limit: usize,
) -> Result<(FoundTried, Option<TakenAs>), DatabaseError> {
    let (meanings, text) = search::meanings(what);
    if text.is_empty() {
        return Ok((activity::find(database, &wanted, limit)?, None));
    }
    let mut last = (FoundTried { tried: Vec::new(), more: false, looked_back_to: None }, None);
    for meaning in meanings {
        let (taken_as, by) = match meaning {
            TakenAs::MessageId => (*meaning, SearchBy::Lock(site.lock_of_message_id(text.as_bytes()))),
            TakenAs::QueueId => {
                (*meaning, SearchBy::QueueId(text.to_owned(), search::lock_of_queue_id(database, text)?))
            }
            TakenAs::Address => (*meaning, SearchBy::Address { address: as_stored(text), user: text.to_owned() }),
            // A mailbox's user.
            TakenAs::Beginning if meanings.contains(&TakenAs::Piece) => {
                (TakenAs::Address, SearchBy::Address { address: as_stored(text), user: text.to_owned() })
            }
            TakenAs::Beginning if meanings.contains(&TakenAs::Address) => continue,
            TakenAs::Beginning | TakenAs::Domain => {
                last.1 = Some(*meaning);
                continue;
            }
            TakenAs::Piece => (*meaning, SearchBy::Piece(text.to_owned())),
        };
        wanted.by = Some(by);
        let found = activity::find(database, &wanted, limit)?;
        // If the search ran out of time, an older attempt may still match a queue id. Other meanings are then not tried.
        let is_like_a_queue_id =
            taken_as == TakenAs::QueueId && (queue_id::arrived(text).is_some() || queue_id::is_like_a_short_one(text));
        let ends = !found.tried.is_empty() || is_like_a_queue_id && found.looked_back_to.is_some();
        last = (found, Some(taken_as));
        if ends {
            break;
        }
    }
    Ok(last)
}

/// A page of deliveries that failed before their journal.
#[derive(Debug, Default)]
pub(crate) struct FailuresPage {
    pub(crate) failures: Vec<FailedDelivery>,
    /// The next page begins behind this one.
    pub(crate) next: Option<FailureCursor>,
}

/// The deliveries that failed before their journal and match `wanted`, the newest first, at most `limit`.
///
/// A search text has the first of its meanings ([`search::meanings`]) that finds one. No meaning is a mailbox's user.
pub(crate) fn search_failed(
    site: &Site,
    database: &mut dyn Database,
    what: &str,
    wanted: &Wanted,
    after: Option<FailureCursor>,
    limit: usize,
) -> Result<FailuresPage, DatabaseError> {
    let Wanted { since, until, host, user, role, result, .. } = wanted;
    let never = matches!(result, Some(ResultFilter::Delivered | ResultFilter::Unended));
    if user.is_some() || *role == Some(Role::Sender) || never {
        return Ok(FailuresPage::default());
    }
    let after = after.or_else(|| until.map(FailureCursor::before));
    // A delivery that was deferred in that time may also have attempts long before.
    let is_deferred = *result == Some(ResultFilter::Deferred);
    let first = if is_deferred { since.saturating_sub(time_span::microseconds(RETENTION)) } else { *since };
    let mut failures = failed_by_text(site, database, what.trim(), first, after.as_ref(), limit)?;
    let next = failures.last().filter(|_| failures.len() >= limit).map(FailedDelivery::cursor);
    failures.retain(|failure| host.as_ref().is_none_or(|host| *host == failure.host));
    failures.retain(|failure| result.is_none() || failure.is_refused() != is_deferred && failure.last_at >= *since);
    Ok(FailuresPage { failures, next })
}

fn failed_by_text(
    site: &Site,
    database: &mut dyn Database,
    what: &str,
    since: i64,
    after: Option<&FailureCursor>,
    limit: usize,
) -> Result<Vec<FailedDelivery>, DatabaseError> {
    let (meanings, text) = search::meanings(what);
    if text.is_empty() {
        return failed_deliveries(database, FailuresOf::Since(since), after, limit);
    }
    let lock = site.lock_of_message_id(text.as_bytes());
    for meaning in meanings {
        let pattern = search::pattern(*meaning, text);
        let of = match (meaning, &pattern) {
            (_, Some(pattern)) => FailuresOf::Addresses(pattern, since),
            (TakenAs::MessageId, None) => FailuresOf::Lock(&lock),
            (TakenAs::QueueId, None) => FailuresOf::QueueId(text, since),
            (_, None) => FailuresOf::Piece(text, since),
        };
        let found = failed_deliveries(database, of, after, limit)?;
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Ok(Vec::new())
}
