//! What was tried lately, on all hosts, as somebody asks for it who knows little: a name, a state, a time.

use crate::database::DatabaseError;
use crate::ledger::activity::{self, By, Counted, FoundTried, Wanted};
use crate::ledger::notifications::overview;
pub(crate) use crate::ledger::notifications::overview::AtAGlance;
use crate::ledger::{Database, statistics, time_span};
use crate::message::{Address, fold, queue_id};
use crate::site::Site;
use std::time::Duration;

/// What of the last hour is counted.
pub(crate) const LATELY: Duration = Duration::from_hours(1);
/// Postfix waits at most 4000 s between two tries of one message (maximal_backoff_time): what was deferred before twice that is in no
/// queue that moves.
pub(crate) const STILL_TRIED: Duration = Duration::from_secs(8000);

/// For so long it is said of notifications that they were given up.
const GIVEN_UP: Duration = Duration::from_hours(24);

/// The figures that stand above everything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figures {
    /// Recipients' copies within the last hour.
    pub(crate) delivered: u64,
    pub(crate) refused: u64,
    /// Recipients' copies that were deferred, and that somebody will try again.
    pub(crate) deferred: u64,
    /// Sent copies.
    pub(crate) owed: u64,
    /// How it goes with those who are told, where there are any, and where they may be seen.
    pub(crate) told: Option<AtAGlance>,
    /// When they were counted, in microseconds since 1970.
    pub(crate) at: i64,
}

/// Counts them.
pub(crate) fn figures(database: &mut dyn Database) -> Result<Figures, DatabaseError> {
    let now = time_span::now(database)?;
    let before = |span| now.saturating_sub(time_span::microseconds(span));
    let counted = activity::count(database, before(LATELY), before(STILL_TRIED))?;
    let owed = statistics::owed_copies(database, None)?;
    let told = overview::at_a_glance(database, before(GIVEN_UP))?;
    let Counted { delivered, refused, deferred } = counted;
    Ok(Figures { delivered, refused, deferred, owed, told, at: now })
}

/// What somebody's words were taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakenAs {
    MessageId,
    QueueId,
    /// Or a mailbox's user.
    Address,
    /// A piece of a subject, or of an author's name or address.
    Piece,
}

/// What was tried of what is `wanted`, at most `limit` of it. `what` is a Message-ID, a queue id, an address or the name of a
/// mailbox's user, guessed as `trace` guesses, or else a piece of a subject or of an author; and what it was taken for.
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
        // A long one says when their message came: it is looked for from there.
        let arrived = queue_id::arrived(what);
        let lock = match arrived {
            Some(arrived) => activity::lock_of_queue_id(database, what, arrived)?,
            None => None,
        };
        wanted.by = Some(By::QueueId(what.to_owned(), lock));
        let found = activity::find(database, &wanted, limit)?;
        // What is like one, and may be older than what there was time for, is nothing else.
        let is_like_one = arrived.is_some() || queue_id::is_like_a_short_one(what);
        if !found.tried.is_empty() || is_like_one && found.looked_back_to.is_some() {
            return Ok((found, Some(TakenAs::QueueId)));
        }
    }
    // As the ledger keeps it: see `Delivery::recipient`.
    let address = Address::parse(what).map_or_else(|_| fold(what), |address| address.folded().to_string());
    wanted.by = Some(By::Address { address, user: what.to_owned() });
    let found = activity::find(database, &wanted, limit)?;
    if !found.tried.is_empty() || what.contains('@') {
        return Ok((found, Some(TakenAs::Address)));
    }
    wanted.by = Some(By::Piece(what.to_owned()));
    Ok((activity::find(database, &wanted, limit)?, Some(TakenAs::Piece)))
}
