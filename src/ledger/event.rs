//! The event of a copy that a record changes: one for each change, written by the record itself.
//!
//! An event is the change of the copy's row in that transaction. So a client that applies the diffs of a copy in order
//! has its state and its location in the mailbox. A delivery that changes nothing has no event. Events leave the site, so
//! their reasons name no hosts.

use super::{CopyKey, public_reason};
use crate::base::text_enum::text_enum;
use crate::mailbox::Placement;
use crate::message::{Identity, Role, author_in};
use serde_json::{Map, Value, json};
use uuid::Uuid;

text_enum! {
    /// The type of an event.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum EventType {
        /// A recipient's copy is in its mailbox.
        MessageDelivered = "message.delivered",
        /// A recipient's copy is refused for good, by a rule of the operator's.
        MessageRefused = "message.refused",
        /// The first try of a recipient's copy failed before its journal. Only subscribers that name this type get it.
        MessageDeferred = "message.deferred",
        /// The author's copy is in Sent.
        SentDelivered = "sent.delivered",
        /// The author's copy is given up for now.
        SentOwed = "sent.owed",
        /// A delivered copy was gone from its recorded location, and is at another one now.
        CopyRestored = "copy.restored",
        /// A duplicate of a copy was removed; the recorded one stays.
        CopyRemoved = "copy.removed",
    }
}

/// The state of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventState<'a> {
    /// It is in its mailbox; with its location, if the server reported it.
    Delivered(Option<Placement>),
    /// It is owed, with the reason.
    Owed(&'a str),
    /// It is refused permanently, with the reason. No row of a copy has this state.
    Refused(&'a str),
}

impl<'a> EventState<'a> {
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

    fn reason(self) -> Option<&'a str> {
        match self {
            Self::Owed(reason) | Self::Refused(reason) => Some(public_reason(reason)),
            Self::Delivered(_) => None,
        }
    }
}

/// The fields of a copy that have changed: `{"field": {"---": old, "+++": new}, …}`. `null`: the field had no value, or
/// has none any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diff(Map<String, Value>);

impl Diff {
    /// What has changed; empty if the state is the same.
    fn between(before: Option<EventState<'_>>, after: EventState<'_>) -> Self {
        let of = |state: Option<EventState<'_>>| {
            let at = state.and_then(EventState::placement);
            [
                ("state", json!(state.map(EventState::state))),
                ("uid_validity", json!(at.map(|at| at.uid_validity))),
                ("uid", json!(at.map(|at| at.uid))),
                ("reason", json!(state.and_then(EventState::reason))),
            ]
        };
        let both = of(before).into_iter().zip(of(Some(after)));
        let changes = both.filter(|((_, before), (_, after))| before != after);
        let change = |((field, before), (_, after)): ((&str, Value), _)| (field.to_owned(), changed(&before, &after));
        Self(changes.map(change).collect())
    }

    /// The diff of a copy whose first try failed before its journal.
    pub(super) fn deferred(reason: &str) -> Self {
        let fields = [("state", "deferred"), ("reason", public_reason(reason))];
        Self(fields.map(|(field, now)| (field.to_owned(), changed(&Value::Null, &now.into()))).into_iter().collect())
    }

    /// The diff of a duplicate that is removed beside the recorded copy.
    #[must_use]
    pub fn taken_out(placement: Placement) -> Self {
        let gone = |number: u32| changed(&number.into(), &Value::Null);
        let fields = [("uid_validity", placement.uid_validity), ("uid", placement.uid)];
        Self(fields.map(|(field, number)| (field.to_owned(), gone(number))).into_iter().collect())
    }

    #[must_use]
    pub fn as_json(&self) -> String {
        json!(self.0).to_string()
    }
}

fn changed(before: &Value, after: &Value) -> Value {
    json!({ "---": before, "+++": after })
}

/// The event of a copy that had the state `before`, and has the state `after`. `None` if nothing has changed, or if
/// only the reason for owing it has changed. Also `None` for a delivered copy that is now owed or refused: the ledger
/// never reverts a delivered copy.
#[must_use]
pub fn change<'a>(role: Role, before: Option<EventState<'a>>, after: EventState<'a>) -> Option<(EventType, Diff)> {
    use EventState::{Delivered, Owed, Refused};
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

/// An event, as a record writes it for the publisher.
#[derive(Clone, Debug)]
pub struct EventRecord<'a> {
    /// The event's id, the same in each of its notifications. UUID version 7.
    pub event: Uuid,
    pub kind: EventType,
    /// The copy that it is about.
    pub key: CopyKey,
    pub role: Role,
    /// The mailbox's user.
    pub user: &'a str,
    pub mailbox: &'a str,
    /// The address that the copy belongs to: the envelope recipient of the delivery; of an author's copy, the author's
    /// address.
    pub recipient: &'a str,
    /// The message's identity, and its Message-ID, for people.
    pub identity: &'a Identity,
    pub message_id: &'a str,
    /// How the copy got into the mailbox: `appended` or `adopted`.
    pub manner: Option<&'static str>,
    /// The attempt that has changed the copy.
    pub attempt: Option<Uuid>,
    pub queue_id: Option<&'a str>,
    pub host: &'a str,
    pub diff: Diff,
}

/// The address that a copy belongs to: the envelope recipient of the delivery that brought it. For an author's copy it
/// is the author's, by the From that the ledger has; empty if that names no author.
pub(crate) fn address(role: Role, recipient: &str, from: Option<&str>) -> String {
    match role {
        Role::Recipient => recipient.to_owned(),
        Role::Sender => from.and_then(author_in).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use EventState::{Delivered, Owed, Refused};
    use EventType::{CopyRestored, MessageDelivered, MessageRefused, SentDelivered, SentOwed};

    const fn at(uid: u32) -> Option<Placement> {
        Some(Placement { uid_validity: 7, uid })
    }

    /// Subscribers select events by these names, and rows contain them.
    #[test]
    fn each_type_of_event_has_its_name() {
        let names = [
            "message.delivered",
            "message.refused",
            "message.deferred",
            "sent.delivered",
            "sent.owed",
            "copy.restored",
            "copy.removed",
        ];
        assert_eq!(EventType::ALL.map(EventType::as_str), names);
    }

    #[test]
    fn what_has_changed_is_reported_once_and_nothing_else() {
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
                Refused("over quota: appending: NO"),
                Some((
                    MessageRefused,
                    r#"{"state":{"---":null,"+++":"refused"},"reason":{"---":null,"+++":"over quota"}}"#.into(),
                )),
            ),
            (recipient, Some(Delivered(at(3))), Delivered(at(3)), None),
            (recipient, Some(Delivered(None)), Delivered(None), None),
            // A delivered copy stays delivered.
            (sender, Some(Delivered(at(3))), Owed("x"), None),
            (recipient, Some(Delivered(at(3))), Refused("x"), None),
            // Otherwise each try would have an event.
            (sender, Some(Owed("x")), Owed("y"), None),
        ];
        for (role, before, after, shown) in cases {
            let reported = change(role, before, after).map(|(kind, diff)| (kind, json!(diff.0)));
            let shown = shown.map(|(kind, diff)| (kind, serde_json::from_str(&diff).unwrap()));
            assert_eq!(reported, shown, "{before:?}, {after:?}");
        }
        let taken_out = r#"{"uid_validity":{"---":7,"+++":null},"uid":{"---":3,"+++":null}}"#;
        let taken_out: Value = serde_json::from_str(taken_out).unwrap();
        let diff = Diff::taken_out(Placement { uid_validity: 7, uid: 3 }).as_json();
        assert_eq!(serde_json::from_str::<Value>(&diff).unwrap(), taken_out);
    }
}
