//! Subscriptions: what they may be to, and what is done with them (`ledger::subscriptions` has the SQL).

use crate::ledger::event::EventType;
use crate::ledger::notifications::DISABLED;
pub(crate) use crate::ledger::subscriptions::{
    Change, NewSubscription, Subscription, Those, Turn, change, count_of_owner, create, delete, disable, new_secret,
    pause, read, resume, some, there,
};
use crate::message::{Address, fold};

/// The state of one that is told what happens.
pub(crate) const ACTIVE: &str = "active";

/// The state of one that is told nothing until somebody resumes it.
pub(crate) const OFF: &str = "disabled";

/// Whose subscriptions are that are made by hand.
pub(crate) const OPERATOR: &str = "operator";

/// The state of one whose callback has not answered its question yet.
pub(crate) const UNVERIFIED: &str = "unverified";

/// Why such a one is not told anything again.
pub(crate) const UNANSWERED: &str =
    "it is unverified: its callback has not answered its question yet, and is told nothing before it has";

/// What became of so many of them, as it is told and written down: "1 notification is due again".
pub(crate) fn notifications_are(many: u64, are: &str) -> String {
    format!("{many} {} {are}", if many == 1 { "notification is" } else { "notifications are" })
}

/// The longest name of a resource, in characters, that the tables hold.
const LONGEST: usize = 511;

/// The types of events that can be subscribed to: those of copies, and that another subscription of the same owner is disabled.
pub(crate) const TYPES: [&str; EventType::ALL.len() + 1] = {
    let mut names = [DISABLED; EventType::ALL.len() + 1];
    let mut at = 0;
    while at < EventType::ALL.len() {
        names[at] = EventType::ALL[at].as_str();
        at += 1;
    }
    names
};

/// Those of them that are named, each once.
pub(crate) fn types(named: &[String]) -> Vec<&'static str> {
    TYPES.into_iter().filter(|name| named.iter().any(|named| named == name)).collect()
}

/// What a subscription is to.
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

    /// What is addressed to a domain.
    ///
    /// # Errors
    /// Where it is none.
    pub(crate) fn domain(name: &str) -> Result<Self, String> {
        // As an address's would be: folded, without an address literal's doubts.
        let address = Address::parse(&format!("x@{name}")).map_err(|error| format!("--domain {name}: {error}"))?;
        Self::of("domain", address.folded().domain().to_owned())
    }

    /// What is addressed to one address.
    ///
    /// # Errors
    /// Where it is none.
    pub(crate) fn address(address: &str) -> Result<Self, String> {
        Address::parse(address).map_err(|error| format!("--address {address}: {error}"))?;
        Self::of("address", fold(address))
    }

    /// What is in a mailbox: the mailbox store's user, a slash, and its name.
    ///
    /// # Errors
    /// Where it has no slash between two names.
    pub(crate) fn mailbox(name: &str) -> Result<Self, String> {
        match name.split_once('/') {
            Some((user, mailbox)) if !user.is_empty() && !mailbox.is_empty() => Self::of("mailbox", name.to_owned()),
            _ => Err(format!("--mailbox {name}: a user and a mailbox are wanted, such as scuba/INBOX")),
        }
    }

    /// The copies of one message.
    ///
    /// # Errors
    /// Where it is no identity: 64 hexadecimal digits.
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
