//! How an attempt ended, from what the ledger says of its copies.

use crate::audit::OF_A_REPAIR;
use crate::delivery::Stages;
use crate::mailbox::{MailboxFailure, Role};
use std::collections::BTreeMap;

/// How an attempt, or its part in one copy, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ending {
    /// It is done: Postfix was told 0.
    Delivered,
    /// Another delivery of the message held its lock: 75.
    Busy,
    /// Put off for another cause, in the words of this release: 75.
    Deferred(&'static str),
    /// Refused by a rule of the operator's: 65 or 77.
    Refused,
    /// It died; a later one looked for its copy.
    Died,
    /// None of Postfix's tries: `audit --repair` wrote down what it was about to take out.
    Repair,
    /// It has not ended: it runs, or it died, or what came of its append is not known.
    Open,
}

/// What a deferral says that is not about the mailbox store ([`crate::delivery`]).
const CAUSES: [&str; 5] = [
    "an earlier attempt may still land",
    "the journal was forgotten",
    "the ledger could not be read",
    "the lock could not be asked for",
    "the recipient's copy failed",
];

/// Any cause that this release does not know: an older or newer one wrote it.
const ANOTHER_CAUSE: &str = "another cause";

impl Ending {
    /// Of the attempt at one copy.
    pub(super) fn of_copy(ended: bool, outcome: Option<&str>) -> Self {
        let outcome = outcome.unwrap_or_default();
        match outcome {
            _ if !ended => Self::Open,
            "appended" | "adopted" | "already there" | "already there; not looked for" | "owed" => Self::Delivered,
            "busy" => Self::Busy,
            _ if outcome.starts_with("died") => Self::Died,
            _ if outcome.starts_with("refused: ") => Self::Refused,
            _ if outcome.starts_with(OF_A_REPAIR) => Self::Repair,
            _ => Self::Deferred(cause(outcome.strip_prefix("deferred: ").unwrap_or(outcome))),
        }
    }

    /// Of an attempt at several copies. The recipient's comes first: where it failed, the sender's was not tried.
    pub(super) fn of_attempt(copies: impl Iterator<Item = (Role, Self)>) -> Self {
        let mut worst = (true, Self::Delivered);
        for (role, ending) in copies {
            let told = (role == Role::Sender, ending);
            let worse = match (told, worst) {
                ((_, Self::Delivered), _) => false,
                (_, (_, Self::Delivered)) => true,
                ((sender, _), (worst_is_sender, _)) => worst_is_sender && !sender,
            };
            if worse {
                worst = told;
            }
        }
        worst.1
    }
}

/// Only what is known: a server's own words differ from one message to the next, and no counting by them would end.
fn cause(text: &str) -> &'static str {
    let mailbox = MailboxFailure::ALL.map(MailboxFailure::as_str);
    let says = |cause: &&str| text.strip_prefix(cause).is_some_and(|rest| rest.is_empty() || rest.starts_with(": "));
    CAUSES.into_iter().chain(mailbox).find(says).unwrap_or(ANOTHER_CAUSE)
}

/// Milliseconds of each stage that this release knows, in the stages' own order.
pub(super) fn stages(json: &str) -> Vec<(&'static str, f64)> {
    let known = Stages::default().named().map(|(name, _)| name);
    // The ledger keeps what a delivery wrote. What cannot be read is as good as not kept.
    let read: BTreeMap<String, f64> = serde_json::from_str(json).unwrap_or_default();
    known.into_iter().filter_map(|name| read.get(name).map(|took| (name, *took))).collect()
}

/// The role that the ledger's word names.
pub(super) fn role(word: Option<&str>) -> Role {
    if word == Some(Role::Sender.as_str()) { Role::Sender } else { Role::Recipient }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copys_ending_is_read_from_its_outcome() {
        let ending = |outcome| Ending::of_copy(true, Some(outcome));
        assert_eq!(ending("appended"), Ending::Delivered);
        assert_eq!(ending("owed"), Ending::Delivered);
        assert_eq!(ending("busy"), Ending::Busy);
        assert_eq!(ending("died; its copy was looked for"), Ending::Died);
        assert_eq!(ending("refused: over quota: appending: NO"), Ending::Refused);
        assert_eq!(ending("audit: took out a copy too many"), Ending::Repair);
        assert_eq!(ending("deferred: over quota: appending: NO"), Ending::Deferred("over quota"));
        assert_eq!(ending("deferred: the recipient's copy failed"), Ending::Deferred("the recipient's copy failed"));
        assert_eq!(
            ending("deferred: the mailbox store refused for good: x"),
            Ending::Deferred("the mailbox store refused for good")
        );
        assert_eq!(ending("deferred: appending: over quota: x"), Ending::Deferred(ANOTHER_CAUSE));
        assert_eq!(Ending::of_copy(false, Some("appended")), Ending::Open);
    }

    #[test]
    fn stages_come_in_their_own_order_whatever_the_database_made_of_it() {
        let read = stages(r#"{"append": 3, "lock": 0.31, "connect": 1.27, "new": 1}"#);
        let names: Vec<String> = read.iter().map(|(name, took)| format!("{name} {took}")).collect();
        assert_eq!(names, ["connect 1.27", "lock 0.31", "append 3"]);
        assert!(stages("nonsense").is_empty());
    }

    #[test]
    fn the_recipients_copy_speaks_first() {
        let failed = Ending::Deferred("the recipient's copy failed");
        let quota = Ending::Deferred("over quota");
        let of = |recipient, sender| {
            let both = [(Role::Recipient, recipient), (Role::Sender, sender)];
            let ending = Ending::of_attempt(both.into_iter());
            assert_eq!(Ending::of_attempt(both.into_iter().rev()), ending);
            ending
        };
        assert_eq!(of(Ending::Delivered, Ending::Delivered), Ending::Delivered);
        assert_eq!(of(quota, failed), quota);
        assert_eq!(of(Ending::Delivered, quota), quota);
        assert_eq!(of(Ending::Delivered, Ending::Open), Ending::Open);
        assert_eq!(Ending::of_attempt([(Role::Sender, quota)].into_iter()), quota);
    }
}
