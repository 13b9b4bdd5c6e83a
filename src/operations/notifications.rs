//! Subscribers' backlog, past events, and redelivery of notifications.

use super::operations_log::{OperationResult, logged};
use super::subscriptions::{Resource, Subscription, notifications_are};
use crate::base::deadline::Deadline;
use crate::base::hex;
use crate::database::DatabaseError;
use crate::ledger::Database;
pub(crate) use crate::ledger::notifications::Due;
use crate::ledger::notifications::TEST;
use crate::ledger::notifications::bulk;
pub(crate) use crate::ledger::notifications::bulk::{
    Many, count_events, count_notifications, given_up_since, still_pending,
};
use crate::ledger::notifications::history;
pub(crate) use crate::ledger::notifications::history::{
    NotificationAttempt, Pending, Taken, attempts, events_after, message, messages, newest, pending, pending_one, taken,
};
use crate::ledger::notifications::overview;
pub(crate) use crate::ledger::notifications::overview::{Behind, NotificationFigures, Overview, figures};
use crate::ledger::operations_log::{Actor, Operation};
use crate::webhook::payload;
use std::time::Duration;
use uuid::Uuid;

/// The time limit for a change of many notifications for which a client waits. Clients wait at most ten seconds.
const AT_MOST: Duration = Duration::from_secs(4);

pub(crate) fn soon() -> Deadline {
    Deadline::after(AT_MOST)
}

/// The backlog of all subscribers.
///
/// # Errors
/// If the database fails.
pub(crate) fn status(database: &mut dyn Database) -> Result<Overview, DatabaseError> {
    overview::overview(database)
}

/// Queues a test notification for a subscription.
///
/// # Errors
/// Here and in all functions below: if the database fails, or if the operations log cannot be written.
pub(crate) fn test(database: &mut dyn Database, by: Actor<'_>, subscription: Uuid) -> Result<Uuid, DatabaseError> {
    let test = |database: &mut dyn Database| history::test(database, subscription, by.host);
    let object = subscription.to_string();
    logged(database, by, Operation::TestedSubscription, Some(&object), test, |event| {
        OperationResult::to(payload::id(*event))
    })
}

/// Queues this event for redelivery to a subscription that receives it.
pub(crate) fn enqueue_event(
    database: &mut dyn Database,
    by: Actor<'_>,
    subscription: Uuid,
    (event, position): (Uuid, i64),
) -> Result<(), DatabaseError> {
    let object = subscription.to_string();
    let change = |database: &mut dyn Database| history::enqueue_event(database, subscription, position);
    logged(database, by, Operation::NotifiedAgain, Some(&object), change, |()| OperationResult::to(payload::id(event)))
}

/// Queues the events of a time span for redelivery to a subscription, or only those that were given up.
pub(crate) fn enqueue_range(
    database: &mut dyn Database,
    by: Actor<'_>,
    subscription: Uuid,
    span: (i64, i64),
    after: Option<i64>,
    only_given_up: bool,
    until: Option<Deadline>,
) -> Result<Many, DatabaseError> {
    let object = subscription.to_string();
    let change =
        |database: &mut dyn Database| bulk::enqueue_range(database, subscription, span, after, only_given_up, until);
    logged(database, by, Operation::NotifiedAgain, Some(&object), change, due_again)
}

/// Queues given-up notifications for redelivery: of one subscription or of all, since a moment or of any age. The work ends with
/// the last notification, or at the deadline `until`.
pub(crate) fn redeliver(
    database: &mut dyn Database,
    by: Actor<'_>,
    subscription: Option<Uuid>,
    since: Option<i64>,
    until: Option<Deadline>,
) -> Result<Many, DatabaseError> {
    let object = subscription.map(|id| id.to_string());
    let change = |database: &mut dyn Database| bulk::requeue_given_up(database, subscription, since, until);
    logged(database, by, Operation::NotifiedAgain, object.as_deref(), change, due_again)
}

fn due_again(many: &Many) -> OperationResult {
    OperationResult::to(notifications_are(many.notifications, "due again"))
}

/// Which of a subscription's pending notifications are given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropSelection {
    All,
    /// Events before this moment, in microseconds since 1970.
    Before(i64),
    Event(Uuid),
}

/// Gives up these notifications, and returns their number. `None` if the event does not exist.
pub(crate) fn give_up(
    database: &mut dyn Database,
    by: Actor<'_>,
    subscription: Uuid,
    what: DropSelection,
) -> Result<Option<u64>, DatabaseError> {
    let (event, before) = match what {
        DropSelection::All => (None, None),
        DropSelection::Before(moment) => (None, Some(moment)),
        DropSelection::Event(event) => match history::event(database, event)? {
            Some(event) => (Some(event.position), None),
            None => return Ok(None),
        },
    };
    let object = subscription.to_string();
    let give_up = |database: &mut dyn Database| bulk::give_up(database, subscription, event, before);
    let came = |many: &u64| OperationResult::to(notifications_are(*many, "given up"));
    logged(database, by, Operation::GaveUpNotifications, Some(&object), give_up, came).map(Some)
}

/// The event with this id, in the detail that the subscription receives. `None` if it is outside the subscription's resource. The
/// event types that the subscription has chosen do not matter here.
///
/// # Errors
/// If the database fails.
pub(crate) fn event_of(
    database: &mut dyn Database,
    one: &Subscription,
    event: Uuid,
) -> Result<Option<Due>, DatabaseError> {
    let Some(mut due) = history::event(database, event)?.filter(|event| is_about(one, event)) else { return Ok(None) };
    if one.detail == "full"
        && let Some(identity) = hex::decode(&due.identity).and_then(|bytes| bytes.try_into().ok())
    {
        due.message = message(database, &identity)?.map(|message| message.detail);
    }
    Ok(Some(due))
}

fn is_about(one: &Subscription, event: &Due) -> bool {
    if event.event_type == TEST {
        return event.subscription == Some(one.id);
    }
    match one.resource.as_str() {
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
