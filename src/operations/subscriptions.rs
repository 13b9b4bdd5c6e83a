//! Subscriptions: their resources, and the operations on them (`ledger::subscriptions` has the SQL). Each function that changes a
//! subscription for a person also writes to the operations log.

use super::operations_log::{self, OperationResult, logged};
use crate::base::deadline::Deadline;
use crate::database::DatabaseError;
use crate::ledger::Database;
use crate::ledger::event::EventType;
use crate::ledger::operations_log::{Actor, Operation};
use crate::ledger::subscriptions as rows;
pub(crate) use crate::ledger::subscriptions::{
    Change, NewSubscription, Subscription, SubscriptionState, Those, Turn, count_of_owner, read, some, there,
};
use crate::message::{Address, fold};
use url::Url;
use uuid::Uuid;

/// The owner of the subscriptions that are created manually.
pub(crate) const OPERATOR: &str = "operator";

/// Why an unverified subscription receives no redelivery.
pub(crate) const UNANSWERED: &str =
    "it is unverified: its callback has not answered the verification request yet, and gets nothing before";

/// The number of notifications and their new state, for output and the operations log: "1 notification is due again".
pub(crate) fn notifications_are(many: u64, are: &str) -> String {
    format!("{many} {} {are}", if many == 1 { "notification is" } else { "notifications are" })
}

/// The resource of a subscription, as text.
pub(crate) fn resource_of(one: &Subscription) -> String {
    format!("{} {}", one.resource, one.resource_id).trim_end().to_owned()
}

/// Performs a logged operation on one subscription.
fn on<T>(
    database: &mut dyn Database,
    by: Actor<'_>,
    operation: Operation,
    id: Uuid,
    work: impl FnOnce(&mut dyn Database) -> Result<T, DatabaseError>,
    outcome: impl FnOnce(&T) -> OperationResult,
) -> Result<T, DatabaseError> {
    logged(database, by, operation, Some(&id.to_string()), work, outcome)
}

/// Creates a subscription, or finds an equal one. Returns its id, and whether it is new. The caller shows its secret to the
/// client.
///
/// # Errors
/// Here and in all functions below: if the database fails, or if the operations log cannot be written.
pub(crate) fn create(
    database: &mut dyn Database,
    by: Actor<'_>,
    new: &NewSubscription,
) -> Result<(Uuid, bool), DatabaseError> {
    let came = |(id, created): &(Uuid, bool)| match created {
        true => OperationResult::to(format!("of {} {}", new.resource, new.resource_id).trim_end()).with(*id),
        false => OperationResult::to("shown").with(*id).instead(Operation::LookedAtSecret),
    };
    logged(database, by, Operation::MadeSubscription, None, |database| rows::create(database, new), came)
}

/// Changes the settings. `false` if the owner already has a subscription like the changed one.
pub(crate) fn change(
    database: &mut dyn Database,
    by: Actor<'_>,
    is: &Subscription,
    wanted: &Change,
    becomes: Option<Turn>,
    verify: bool,
) -> Result<bool, DatabaseError> {
    let settings = settings_of(wanted, &is.callback_url);
    let (operation, turned) = match becomes {
        Some(Turn::Pause) => (Operation::PausedSubscription, "paused"),
        Some(Turn::Resume) => (Operation::ResumedSubscription, "resumed"),
        None => (Operation::ChangedSubscription, "changed"),
    };
    let outcome = match (becomes, settings.as_str()) {
        (_, "") => turned.to_owned(),
        (None, settings) => format!("{turned}: {settings}"),
        (Some(_), settings) => format!("{turned}, and changed: {settings}"),
    };
    let change = |database: &mut dyn Database| rows::change(database, is, wanted, becomes, verify);
    let came = |changed: &bool| OperationResult::to(if *changed { outcome } else { "there is one like that".into() });
    on(database, by, operation, is.id, change, came)
}

/// The names of the changed settings. Only the host of a callback is named: the rest of its URL may be secret.
fn settings_of(wanted: &Change, callback_url: &str) -> String {
    let callback = wanted.callback_url.as_deref().filter(|url| *url != callback_url).map(|url| {
        let host = Url::parse(url).ok().and_then(|url| url.host_str().map(str::to_owned));
        format!("callback_url (at {})", host.as_deref().unwrap_or("no host"))
    });
    let others = [
        ("types", wanted.types.is_some()),
        ("detail", wanted.detail.is_some()),
        ("in_order", wanted.in_order.is_some()),
        ("max_in_flight", wanted.max_in_flight.is_some()),
        ("description", wanted.description.is_some()),
        ("expires", wanted.expires_at.is_some()),
    ];
    let others = others.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name.to_owned());
    callback.into_iter().chain(others).collect::<Vec<_>>().join(", ")
}

/// Pauses a subscription. `false` if no active subscription has this id.
pub(crate) fn pause(database: &mut dyn Database, by: Actor<'_>, id: Uuid) -> Result<bool, DatabaseError> {
    let came = |changed: &bool| OperationResult::unless_unchanged(*changed, "paused");
    on(database, by, Operation::PausedSubscription, id, |database| rows::pause(database, id), came)
}

/// Resumes a subscription. `false` if no paused or disabled subscription has this id.
pub(crate) fn resume(database: &mut dyn Database, by: Actor<'_>, id: Uuid) -> Result<bool, DatabaseError> {
    let came = |changed: &bool| OperationResult::unless_unchanged(*changed, "resumed");
    on(database, by, Operation::ResumedSubscription, id, |database| rows::resume(database, id), came)
}

/// Stops the notifications of a subscription until it is resumed, and records the reason. `false` if no active or paused
/// subscription has this id.
pub(crate) fn disable(
    database: &mut dyn Database,
    by: Actor<'_>,
    id: Uuid,
    reason: &str,
) -> Result<bool, DatabaseError> {
    let came = |changed: &bool| OperationResult::unless_unchanged(*changed, reason);
    on(database, by, Operation::DisabledSubscription, id, |database| rows::disable(database, id, reason), came)
}

/// Renews the secret. `false` if no subscription has this id.
pub(crate) fn new_secret(database: &mut dyn Database, by: Actor<'_>, id: Uuid) -> Result<bool, DatabaseError> {
    let came = |changed: &bool| OperationResult::unless_unchanged(*changed, "renewed");
    on(database, by, Operation::RotatedSecret, id, |database| rows::new_secret(database, id), came)
}

/// Records that a secret is shown. Call this before the secret is shown.
pub(crate) fn shows_secret(database: &mut dyn Database, by: Actor<'_>, id: Uuid) -> Result<(), DatabaseError> {
    operations_log::shown(database, by, Operation::LookedAtSecret, id)
}

/// Removes a subscription. `false` if the deadline passed first; another call continues.
pub(crate) fn delete(
    database: &mut dyn Database,
    by: Actor<'_>,
    one: &Subscription,
    until: Option<Deadline>,
) -> Result<bool, DatabaseError> {
    let came = |gone: &bool| match gone {
        true => OperationResult::to(format!("it was of {}, and made by {}", resource_of(one), one.owner)),
        false => OperationResult::to("a part of its pending notifications is removed"),
    };
    let delete = |database: &mut dyn Database| rows::delete(database, one.id, until);
    on(database, by, Operation::RemovedSubscription, one.id, delete, came)
}

/// The longest name of a resource in the tables, in characters.
const LONGEST: usize = 511;

/// The types of events that can be subscribed to.
pub(crate) const TYPES: [&str; EventType::TEXTS.len()] = EventType::TEXTS;

/// The event types among these names, without duplicates.
pub(crate) fn types(named: &[String]) -> Vec<&'static str> {
    TYPES.into_iter().filter(|name| named.iter().any(|named| named == name)).collect()
}

/// The resource of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resource {
    pub(crate) kind: &'static str,
    pub(crate) id: String,
}

impl Resource {
    /// All mail.
    pub(crate) fn all() -> Self {
        Self { kind: "all", id: String::new() }
    }

    /// Mail to a domain.
    ///
    /// # Errors
    /// If the name is no domain, or is too long.
    pub(crate) fn domain(name: &str) -> Result<Self, String> {
        // The domain is folded like that of an address, with the parser's rules for address literals.
        let address = Address::parse(&format!("x@{name}")).map_err(|error| format!("--domain {name}: {error}"))?;
        Self::of("domain", address.folded().domain().to_owned())
    }

    /// Mail to one address.
    ///
    /// # Errors
    /// If the text is no address, or is too long.
    pub(crate) fn address(address: &str) -> Result<Self, String> {
        Address::parse(address).map_err(|error| format!("--address {address}: {error}"))?;
        Self::of("address", fold(address))
    }

    /// Mail in a mailbox, named as the mailbox store's user, a slash, and the mailbox's name.
    ///
    /// # Errors
    /// If the slash between two names is missing, or if the name is too long.
    pub(crate) fn mailbox(name: &str) -> Result<Self, String> {
        match name.split_once('/') {
            Some((user, mailbox)) if !user.is_empty() && !mailbox.is_empty() => Self::of("mailbox", name.to_owned()),
            _ => Err(format!("--mailbox {name}: a user and a mailbox are wanted, such as scuba/INBOX")),
        }
    }

    /// The copies of one message.
    ///
    /// # Errors
    /// If the text is no identity of 64 hexadecimal digits.
    pub(crate) fn message(identity: &str) -> Result<Self, String> {
        let digits = identity.to_ascii_lowercase();
        if digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            Self::of("message", digits)
        } else {
            Err(format!(
                "--message {identity}: an identity of 64 hexadecimal digits is wanted, as `trace --json` prints it"
            ))
        }
    }

    fn of(kind: &'static str, id: String) -> Result<Self, String> {
        if id.chars().count() <= LONGEST {
            Ok(Self { kind, id })
        } else {
            Err(format!("--{kind}: it is longer than {LONGEST} characters"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_subscribed_to_is_named_as_events_name_it() {
        let named = |resource: Result<Resource, String>| resource.map(|it| (it.kind, it.id)).ok();
        let is = |kind, id: &str| Some((kind, id.to_owned()));
        assert_eq!(named(Resource::domain("Mail.AXIAL.net")), is("domain", "mail.axial.net"));
        assert_eq!(named(Resource::address("Scuba@Mail.axial.net")), is("address", "scuba@mail.axial.net"));
        assert_eq!(named(Resource::mailbox("scuba/INBOX/Old")), is("mailbox", "scuba/INBOX/Old"));
        assert_eq!(named(Resource::message(&"AB".repeat(32))), is("message", &"ab".repeat(32)));
        for wrong in [
            Resource::domain(""),
            Resource::address("scuba"),
            Resource::mailbox("scuba"),
            Resource::mailbox("/INBOX"),
            Resource::message("abc"),
            Resource::mailbox(&format!("scuba/{}", "x".repeat(LONGEST))),
        ] {
            assert!(wrong.is_err(), "{wrong:?}");
        }
        assert_eq!(types(&["sent.owed".into(), "message.delivered".into()]), ["message.delivered", "sent.owed"]);
    }
}
