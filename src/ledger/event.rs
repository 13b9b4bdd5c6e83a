//! What there is to tell of a copy that a record changes: one event for each, written by the record itself.
//!
//! An event is what became of the copy's row in that transaction, so that whoever applies the diffs of a copy one after the other
//! has its state, and its place in the mailbox. Nothing else is told: a delivery that changes nothing has no event.

use super::CopyKey;
use crate::base::words::words;
use crate::mailbox::Placement;
use crate::message::{Identity, Role, author_in};
use serde::ser::{Serialize, SerializeMap, Serializer};
use uuid::Uuid;

words! {
    /// What kind of an event it is.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum EventType {
        /// A recipient's copy is in its mailbox.
        MessageDelivered = "message.delivered",
        /// A recipient's copy is refused for good, by a rule of the operator's.
        MessageRefused = "message.refused",
        /// The author's copy is in Sent.
        SentDelivered = "sent.delivered",
        /// The author's copy is given up for now.
        SentOwed = "sent.owed",
        /// A delivered copy was gone from where it was recorded, and is somewhere else now.
        CopyRestored = "copy.restored",
        /// A copy that was there twice was taken out; the one that is recorded stays.
        CopyRemoved = "copy.removed",
    }
}

/// How a copy stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing<'a> {
    /// It is in its mailbox; where, if the server told.
    Delivered(Option<Placement>),
    /// It is owed, and why.
    Owed(&'a str),
    /// It is refused for good, and why. No row of a copy says so.
    Refused(&'a str),
}

impl<'a> Standing<'a> {
    const fn state(self) -> &'static str {
        match self {
            Self::Delivered(_) => "delivered",
            Self::Owed(_) => "owed",
            Self::Refused(_) => "refused",
        }
    }

    const fn placement(self) -> Option<Placement> {
        match self {
            Self::Delivered(placement) => placement,
            Self::Owed(_) | Self::Refused(_) => None,
        }
    }

    const fn reason(self) -> Option<&'a str> {
        match self {
            Self::Owed(reason) | Self::Refused(reason) => Some(reason),
            Self::Delivered(_) => None,
        }
    }
}

/// The fields of a copy that have changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diff<'a>(Vec<Change<'a>>);

/// A field, what it was, and what it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change<'a> {
    field: &'static str,
    before: Field<'a>,
    after: Field<'a>,
}

/// `null` in JSON: it was not there, or is not there any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(untagged)]
enum Field<'a> {
    Nothing,
    Text(&'a str),
    Number(u32),
}

impl<'a> Diff<'a> {
    /// What has changed; nothing, where a copy stands as it stood.
    fn between(before: Option<Standing<'a>>, after: Standing<'a>) -> Self {
        let text = |text: Option<&'a str>| text.map_or(Field::Nothing, Field::Text);
        let number = |number: Option<u32>| number.map_or(Field::Nothing, Field::Number);
        let of = |standing: Option<Standing<'a>>| {
            let at = standing.and_then(Standing::placement);
            [
                ("state", text(standing.map(Standing::state))),
                ("uid_validity", number(at.map(|at| at.uid_validity))),
                ("uid", number(at.map(|at| at.uid))),
                ("reason", text(standing.and_then(Standing::reason))),
            ]
        };
        let both = of(before).into_iter().zip(of(Some(after)));
        let changes = both.map(|((field, before), (_, after))| Change { field, before, after });
        Self(changes.filter(|change| change.before != change.after).collect())
    }

    /// Of a copy that was there beside the recorded one, and is taken out.
    #[must_use]
    pub fn taken_out(placement: Placement) -> Self {
        let gone = |field, number| Change { field, before: Field::Number(number), after: Field::Nothing };
        Self(vec![gone("uid_validity", placement.uid_validity), gone("uid", placement.uid)])
    }

    /// `{"field": {"---": old, "+++": new}, …}`.
    #[must_use]
    pub fn as_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|_| "{}".to_owned())
    }
}

impl Serialize for Diff<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for change in &self.0 {
            map.serialize_entry(change.field, change)?;
        }
        map.end()
    }
}

impl Serialize for Change<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("---", &self.before)?;
        map.serialize_entry("+++", &self.after)?;
        map.end()
    }
}

/// What there is to tell of a copy that stood so before, and stands so now: `None` where nothing has changed, where a delivered copy
/// stays delivered because the ledger takes back none, and where only the reason for which it is owed is another one.
#[must_use]
pub fn change<'a>(role: Role, before: Option<Standing<'a>>, after: Standing<'a>) -> Option<(EventType, Diff<'a>)> {
    use Standing::{Delivered, Owed, Refused};
    let kind = match (before, after) {
        (Some(Delivered(_)), Delivered(_)) => EventType::CopyRestored,
        (Some(Delivered(_)), Owed(_) | Refused(_)) | (Some(Owed(_)), Owed(_)) => return None,
        (_, Delivered(_)) if role == Role::Sender => EventType::SentDelivered,
        (_, Delivered(_)) => EventType::MessageDelivered,
        (_, Owed(_)) => EventType::SentOwed,
        (_, Refused(_)) => EventType::MessageRefused,
    };
    let diff = Diff::between(before, after);
    (!diff.0.is_empty()).then_some((kind, diff))
}

/// An event, as a record writes it for whoever publishes it.
#[derive(Clone, Debug)]
pub struct EventRecord<'a> {
    /// Its own name, the same in every notification of it. Version 7.
    pub event: Uuid,
    pub kind: EventType,
    /// The copy that it is about.
    pub key: CopyKey,
    pub role: Role,
    /// The mailbox's user.
    pub user: &'a str,
    pub mailbox: &'a str,
    /// Whose it is: the envelope recipient of the delivery; of an author's copy the author's address.
    pub recipient: &'a str,
    /// Which message it is of, and its Message-ID, for people.
    pub identity: &'a Identity,
    pub message_id: &'a str,
    /// How the copy got there: `appended` or `adopted`.
    pub manner: Option<&'static str>,
    /// Who has changed it.
    pub attempt: Option<Uuid>,
    pub queue_id: Option<&'a str>,
    pub host: &'a str,
    pub diff: Diff<'a>,
}

/// Whose a copy is: the envelope recipient's of the delivery that brought it; the author's, if it is the author's copy, by the From that
/// the ledger has. Empty where that names nobody.
pub(crate) fn address(role: Role, recipient: &str, from: Option<&str>) -> String {
    match role {
        Role::Recipient => recipient.to_owned(),
        Role::Sender => from.and_then(author_in).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use EventType::{CopyRestored, MessageDelivered, MessageRefused, SentDelivered, SentOwed};
    use Standing::{Delivered, Owed, Refused};

    const fn at(uid: u32) -> Option<Placement> {
        Some(Placement { uid_validity: 7, uid })
    }

    /// Subscribers ask for them by these names, and rows have them.
    #[test]
    fn each_type_of_event_has_its_name() {
        let names =
            ["message.delivered", "message.refused", "sent.delivered", "sent.owed", "copy.restored", "copy.removed"];
        assert_eq!(EventType::ALL.map(EventType::as_str), names);
    }

    #[test]
    fn what_has_changed_is_told_once_and_nothing_else() {
        let delivered = r#""state":{"---":null,"+++":"delivered"}"#;
        let (recipient, sender) = (Role::Recipient, Role::Sender);
        let cases = [
            (
                recipient,
                None,
                Delivered(at(3)),
                Some((
                    MessageDelivered,
                    format!(r#"{{{delivered},"uid_validity":{{"---":null,"+++":7}},"uid":{{"---":null,"+++":3}}}}"#),
                )),
            ),
            // A server without UIDPLUS.
            (recipient, None, Delivered(None), Some((MessageDelivered, format!("{{{delivered}}}")))),
            (sender, None, Delivered(None), Some((SentDelivered, format!("{{{delivered}}}")))),
            (
                sender,
                None,
                Owed("over \"quota\""),
                Some((
                    SentOwed,
                    r#"{"state":{"---":null,"+++":"owed"},"reason":{"---":null,"+++":"over \"quota\""}}"#.into(),
                )),
            ),
            (
                sender,
                Some(Owed("x")),
                Delivered(None),
                Some((
                    SentDelivered,
                    r#"{"state":{"---":"owed","+++":"delivered"},"reason":{"---":"x","+++":null}}"#.into(),
                )),
            ),
            (
                recipient,
                Some(Delivered(at(3))),
                Delivered(at(4)),
                Some((CopyRestored, r#"{"uid":{"---":3,"+++":4}}"#.into())),
            ),
            (
                recipient,
                Some(Delivered(None)),
                Delivered(at(4)),
                Some((CopyRestored, r#"{"uid_validity":{"---":null,"+++":7},"uid":{"---":null,"+++":4}}"#.into())),
            ),
            (
                recipient,
                None,
                Refused("over quota"),
                Some((
                    MessageRefused,
                    r#"{"state":{"---":null,"+++":"refused"},"reason":{"---":null,"+++":"over quota"}}"#.into(),
                )),
            ),
            (recipient, Some(Delivered(at(3))), Delivered(at(3)), None),
            (recipient, Some(Delivered(None)), Delivered(None), None),
            // What is delivered stays so.
            (sender, Some(Delivered(at(3))), Owed("x"), None),
            (recipient, Some(Delivered(at(3))), Refused("x"), None),
            // Each try would be told.
            (sender, Some(Owed("x")), Owed("y"), None),
        ];
        for (role, before, after, told) in cases {
            let said = change(role, before, after).map(|(kind, diff)| (kind, diff.as_json()));
            assert_eq!(said, told, "{before:?}, {after:?}");
        }
        let taken_out = r#"{"uid_validity":{"---":7,"+++":null},"uid":{"---":3,"+++":null}}"#;
        assert_eq!(Diff::taken_out(Placement { uid_validity: 7, uid: 3 }).as_json(), taken_out);
    }
}
