//! What was tried lately, on all hosts, as somebody asks for it who knows little: a name, a state, a time.

use crate::database::DatabaseError;
use crate::ledger::activity::{self, By, FoundTried, Wanted};
use crate::ledger::{Database, statistics, time_span};
use crate::message::{Address, fold};
use crate::site::Site;
use std::time::Duration;

/// What of the last hour is counted.
pub(crate) const LATELY: Duration = Duration::from_hours(1);
/// Postfix waits at most 4000 s between two tries of one message (maximal_backoff_time): what was put off before twice that is in no
/// queue that moves.
pub(crate) const STILL_TRIED: Duration = Duration::from_secs(8000);

/// The figures that stand above everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Figures {
    /// Recipients' copies within the last hour.
    pub(crate) delivered: u64,
    pub(crate) refused: u64,
    /// Recipients' copies that were put off, and that somebody will try again.
    pub(crate) deferred: u64,
    /// Sent copies.
    pub(crate) owed: u64,
}

/// Counts them.
pub(crate) fn figures(database: &mut dyn Database) -> Result<Figures, DatabaseError> {
    let now = time_span::now(database)?;
    let before = |span| now.saturating_sub(time_span::microseconds(span));
    let counted = activity::count(database, before(LATELY))?;
    Ok(Figures {
        delivered: counted.delivered,
        refused: counted.refused,
        deferred: activity::deferred(database, before(STILL_TRIED))?,
        owed: statistics::owed_copies(database, None)?,
    })
}

/// What was tried of what is `wanted`, at most `limit` of it. `what` is a Message-ID, a queue id, an address or the name of a
/// mailbox's user, guessed as `trace` guesses; and what it was taken for.
pub(crate) fn search(
    site: &Site,
    database: &mut dyn Database,
    what: &str,
    mut wanted: Wanted,
    limit: usize,
) -> Result<(FoundTried, Option<&'static str>), DatabaseError> {
    let what = what.trim();
    if what.is_empty() {
        return Ok((activity::find(database, &wanted, limit)?, None));
    }
    if what.starts_with('<') || what.contains('@') {
        wanted.by = Some(By::Lock(site.lock_of_message_id(what.as_bytes())));
        let found = activity::find(database, &wanted, limit)?;
        if !found.tried.is_empty() || what.starts_with('<') {
            return Ok((found, Some("a Message-ID")));
        }
    } else {
        wanted.by = Some(By::QueueId(what.to_owned()));
        let found = activity::find(database, &wanted, limit)?;
        if !found.tried.is_empty() {
            return Ok((found, Some("a queue id")));
        }
    }
    // As the ledger keeps it: see `Delivery::recipient`.
    let address = Address::parse(what).map_or_else(|_| fold(what), |address| address.folded().to_string());
    wanted.by = Some(By::Address { address, user: what.to_owned() });
    Ok((activity::find(database, &wanted, limit)?, Some("an address or a mailbox's user")))
}
