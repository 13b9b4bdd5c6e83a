//! How far behind subscribers are, what happened, and telling them once more.

use super::subscriptions::{self, Resource, Subscription};
use crate::base::deadline::Deadline;
use crate::base::hex;
use crate::database::DatabaseError;
use crate::ledger::Database;
pub(crate) use crate::ledger::notifications::Due;
use crate::ledger::notifications::history;
pub(crate) use crate::ledger::notifications::history::{
    Pending, Taken, Told, events_after, message, newest, pending, pending_one, taken, tell_one, test, tries,
};
use crate::ledger::notifications::many;
pub(crate) use crate::ledger::notifications::many::{Many, tell_all};
use crate::ledger::notifications::overview;
pub(crate) use crate::ledger::notifications::overview::{Behind, Figures, Overview, figures};
use crate::ledger::notifications::{DISABLED, TEST};
use std::time::Duration;
use uuid::Uuid;

/// How long a change of many notifications goes on for somebody who waits for its answer, ten seconds at most.
const AT_MOST: Duration = Duration::from_secs(4);

/// Until then.
pub(crate) fn soon() -> Deadline {
    Deadline::after(AT_MOST)
}

/// How far behind they are.
///
/// # Errors
/// Where the database cannot be asked.
pub(crate) fn status(database: &mut dyn Database) -> Result<Overview, DatabaseError> {
    overview::overview(database)
}

/// Has the notifier tell what was given up, of one subscription or of all, since then or whenever, until the end or that moment.
///
/// # Errors
/// Where it may not be committed.
pub(crate) fn redeliver(
    database: &mut dyn Database,
    subscription: Option<Uuid>,
    since: Option<i64>,
    until: Option<Deadline>,
) -> Result<Many, DatabaseError> {
    many::tell_again(database, subscription, since, until)
}

/// What is given up of what a subscription is still to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GivenUp {
    All,
    /// What happened before this moment, in microseconds since 1970.
    Before(i64),
    Event(Uuid),
}

/// Gives that up; how many notifications these were. `None` where there is no such event.
///
/// # Errors
/// Where it may not be committed.
pub(crate) fn give_up(
    database: &mut dyn Database,
    subscription: Uuid,
    what: GivenUp,
) -> Result<Option<u64>, DatabaseError> {
    let (event, before) = match what {
        GivenUp::All => (None, None),
        GivenUp::Before(moment) => (None, Some(moment)),
        GivenUp::Event(event) => match history::event(database, event)? {
            Some(event) => (Some(event.position), None),
            None => return Ok(None),
        },
    };
    many::give_up(database, subscription, event, before).map(Some)
}

/// The event of this id, as a subscription is told of it; none that is of no concern to it, whatever types it has chosen.
///
/// # Errors
/// Where it cannot be read.
pub(crate) fn event_of(
    database: &mut dyn Database,
    one: &Subscription,
    event: Uuid,
) -> Result<Option<Due>, DatabaseError> {
    let Some(mut due) = history::event(database, event)?.filter(|event| is_about(one, event)) else { return Ok(None) };
    if due.event_type == DISABLED {
        let gone = subscriptions::read(database, due.attempt)?.into_iter().next();
        return Ok(gone.filter(|gone| gone.owner == one.owner && gone.id != one.id).map(|_| due));
    }
    if one.detail == "full"
        && let Some(identity) = hex::decode(&due.identity).and_then(|bytes| bytes.try_into().ok())
    {
        due.message = message(database, &identity)?.map(|message| message.detail);
    }
    Ok(Some(due))
}

fn is_about(one: &Subscription, event: &Due) -> bool {
    if event.event_type == TEST {
        return event.attempt == Some(one.id);
    }
    match one.resource.as_str() {
        // Whose it is, is asked for.
        _ if event.event_type == DISABLED => event.attempt.is_some(),
        "all" => true,
        "domain" => event
            .recipient
            .rsplit_once('@')
            .is_some_and(|(_, domain)| Resource::domain(domain).is_ok_and(|resource| resource.id == one.resource_id)),
        "address" => event.recipient.to_lowercase() == one.resource_id,
        "mailbox" => format!("{}/{}", event.imap_user, event.mailbox) == one.resource_id,
        _ => event.identity == one.resource_id,
    }
}
