//! The operations log: who did what, in the web UI, with the command line or with the API. Rows are added, and none is
//! ever changed; `prune` deletes the old ones.

use super::Database;
use super::activity::like;
use crate::base::log::is_unsafe;
use crate::base::text_enum::text_enum;
use crate::base::timestamp;
use crate::database::{DatabaseError, Query, Value, columns_of};
use serde::Serialize;

text_enum! {
    /// The operations that are logged, because other people may want to know of them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum Operation {
        /// A user has read the text, HTML, headers or list of parts of a message.
        LookedAtContent = "looked at content",
        /// A user has downloaded the source of a message, or one of its parts.
        Downloaded = "downloaded",
        /// A message was redelivered to a recipient.
        DeliveredAgain = "delivered again",
        /// An owed Sent copy was delivered.
        FinishedOwed = "finished owed",
        /// A copy that a mailbox had lost was restored.
        Restored = "restored",
        /// A token of the API was made.
        MadeToken = "made a token",
        RevokedToken = "revoked a token",
        /// A link was made that logs a user in to the web UI.
        MadeLogin = "made a login",
        /// A login of a user to the web UI was ended.
        EndedLogin = "ended a login",
        MadeSubscription = "made a subscription",
        ChangedSubscription = "changed a subscription",
        TestedSubscription = "tested a subscription",
        PausedSubscription = "paused a subscription",
        ResumedSubscription = "resumed a subscription",
        DisabledSubscription = "disabled a subscription",
        RemovedSubscription = "removed a subscription",
        /// A user has read the secret with which a subscriber verifies our requests.
        LookedAtSecret = "looked at a secret",
        RotatedSecret = "rotated a secret",
        /// A notification was sent to a subscriber once more.
        NotifiedAgain = "notified again",
        /// Undelivered notifications of a subscriber were given up.
        GaveUpNotifications = "gave up notifications",
        /// Old rows of the ledger were removed.
        Pruned = "pruned",
    }
}

/// The person who does something, and from where.
#[derive(Clone, Copy, Debug)]
pub struct Actor<'a> {
    pub name: &'a str,
    /// `page`, `command line` or `api`.
    pub interface: &'a str,
    /// That person's role in the web UI.
    pub role: Option<&'a str>,
    /// The host whose process does it.
    pub host: &'a str,
}

/// The object of an operation; what does not apply is left out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Affected<'a> {
    /// The message.
    pub identity: Option<&'a [u8; 32]>,
    pub message_id: Option<&'a str>,
    /// The mailbox, and its user.
    pub user: Option<&'a str>,
    pub mailbox: Option<&'a str>,
    /// Any other object: a recipient, a subscription, a login.
    pub object: Option<&'a str>,
}

/// A row of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Logged {
    #[serde(skip)]
    pub id: i64,
    /// In microseconds since 1970, by the database's clock.
    #[serde(serialize_with = "timestamp::serialize")]
    pub created_at: i64,
    pub actor: String,
    pub interface: String,
    pub role: Option<String>,
    pub host: String,
    /// The text of an [`Operation`]; a newer release may have others.
    pub operation: String,
    /// In hexadecimal digits.
    pub identity: Option<String>,
    pub message_id: Option<String>,
    pub user: Option<String>,
    pub mailbox: Option<String>,
    pub target: Option<String>,
    /// Empty if it had only begun.
    pub outcome: String,
}

columns_of! { Logged:
    id, created_at, actor, interface, role, host, operation, identity, message_id, user, mailbox, target, outcome
}

/// How much of a text is kept, in characters: what the columns of MySQL's table hold.
const NAME: usize = 64;
const SHORT: usize = 255;
const LONG: usize = 1024;

/// Logs one operation. `outcome` is one line, and empty if the operation is only about to begin.
///
/// # Errors
/// If the row is not written. An operation of the web UI is then not carried out.
pub fn write(
    database: &mut dyn Database,
    actor: Actor<'_>,
    operation: Operation,
    affected: Affected<'_>,
    outcome: &str,
) -> Result<(), DatabaseError> {
    let sql = format!(
        "INSERT INTO operations (created_at, actor, interface, role, host, operation, identity, message_id, imap_user, mailbox, target, outcome) \
         VALUES ({}, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        database.dialect().now()
    );
    let optional = |value: Option<&str>, most| value.map(|value| clean(value, most));
    let texts = [
        Some(clean(actor.name, NAME)),
        Some(clean(actor.interface, NAME)),
        optional(actor.role, NAME),
        Some(clean(actor.host, SHORT)),
        Some(operation.as_str().to_owned()),
        optional(affected.message_id, LONG),
        optional(affected.user, SHORT),
        optional(affected.mailbox, SHORT),
        optional(affected.object, LONG),
        Some(clean(outcome, LONG)),
    ];
    let mut values: Vec<_> = texts.iter().map(|text| text.as_deref().map_or(Value::Null, Value::Text)).collect();
    values.insert(5, affected.identity.map_or(Value::Null, |identity| Value::Bytes(identity)));
    database.change("writing the operations log", &sql, &values).map(drop)
}

/// As much of a text as a column holds, on one line.
fn clean(text: &str, most: usize) -> String {
    text.chars().map(|c| if is_unsafe(c) { '?' } else { c }).take(most).collect()
}

/// The row after the beginning `o` of an operation that is about the same: its end, or its next beginning.
const NEXT_OUTCOME: &str = "(SELECT e.outcome FROM operations e WHERE e.id > o.id AND e.id <= o.id + 1000 \
     AND e.actor = o.actor AND e.operation = o.operation AND coalesce(e.message_id, '') = coalesce(o.message_id, '') \
     AND coalesce(e.imap_user, '') = coalesce(o.imap_user, '') AND coalesce(e.mailbox, '') = coalesce(o.mailbox, '') \
     AND coalesce(e.target, '') = coalesce(o.target, '') ORDER BY e.id LIMIT 1)";

/// The newest rows, or those before this id, with this part in the actor, the object or the message's id or mailbox user. A
/// beginning whose end is recorded is left out.
///
/// # Errors
/// If they cannot be read.
pub fn read(
    database: &mut dyn Database,
    before: Option<i64>,
    part: &str,
    limit: usize,
) -> Result<Vec<Logged>, DatabaseError> {
    let dialect = database.dialect();
    let columns = ["actor", "target", "message_id", "imap_user"];
    let matches = match part.trim() {
        "" => "1 = 1".to_owned(),
        _ => columns.map(|column| format!("lower(o.{column}) LIKE ? ESCAPE '!'")).join(" OR "),
    };
    let sql = format!(
        "SELECT o.id, {}, o.actor, o.interface, o.role, o.host, o.operation, NULLIF({}, ''), o.message_id, o.imap_user, \
         o.mailbox, o.target, o.outcome FROM operations o WHERE o.id < ? AND ({matches}) \
         AND (o.outcome <> '' OR coalesce({NEXT_OUTCOME}, '') = '') ORDER BY o.id DESC LIMIT {limit}",
        dialect.microseconds("o.created_at"),
        // SQLite's hex() of NULL is an empty text.
        dialect.hex("o.identity"),
    );
    let pattern = like(part.trim());
    let mut values = vec![Value::Integer(before.unwrap_or(i64::MAX))];
    values.extend(columns.iter().filter(|_| !part.trim().is_empty()).map(|_| Value::Text(&pattern)));
    database.query("reading the operations log", &sql, &values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::deadline::Deadline;
    use crate::database::Client;
    use std::time::Duration;

    const ANNA: Actor<'_> = Actor { name: "anna", interface: "web UI", role: Some("reader"), host: "mx1" };

    fn ledger(directory: &std::path::Path) -> impl Database {
        let client = Client { host: "mx1".into(), pid: 1, queue_id: None };
        crate::ledger::schema::open_embedded(directory, &client, Deadline::after(Duration::from_mins(2))).unwrap()
    }

    #[test]
    fn what_was_done_is_read_back_newest_first_page_by_page() {
        let directory = tempfile::tempdir().unwrap();
        let mut database = ledger(directory.path());
        let identity = [7; 32];
        for number in 0..5 {
            let id = format!("<{number}@x>");
            let affected = Affected { identity: Some(&identity), message_id: Some(&id), ..Affected::default() };
            write(&mut database, ANNA, Operation::LookedAtContent, affected, "shown").unwrap();
        }
        let ids = |rows: &[Logged]| rows.iter().map(|row| row.message_id.clone().unwrap()).collect::<Vec<_>>();
        let newest = read(&mut database, None, "", 2).unwrap();
        assert_eq!(ids(&newest), ["<4@x>", "<3@x>"]);
        let first = &newest[0];
        assert!(first.created_at > 0);
        assert_eq!(
            (first.actor.as_str(), first.role.as_deref(), first.interface.as_str()),
            ("anna", Some("reader"), "web UI")
        );
        assert_eq!((first.operation.as_str(), first.outcome.as_str()), ("looked at content", "shown"));
        assert_eq!(first.identity, Some("07".repeat(32)));
        let rest = read(&mut database, Some(newest[1].id), "", 10).unwrap();
        assert_eq!(ids(&rest), ["<2@x>", "<1@x>", "<0@x>"]);
    }

    #[test]
    fn an_operation_is_one_row_once_its_end_is_recorded_and_is_found_by_a_part_of_its_object() {
        let directory = tempfile::tempdir().unwrap();
        let mut database = ledger(directory.path());
        let mut log = |object, outcome| {
            let affected = Affected { message_id: Some("<1@x>"), object: Some(object), ..Affected::default() };
            write(&mut database, ANNA, Operation::Restored, affected, outcome).unwrap();
        };
        // The first one of doug was cut short.
        for (object, outcome) in
            [("doug@x", ""), ("doug@x", ""), ("100%@x", ""), ("doug@x", "delivered"), ("scuba@x", "")]
        {
            log(object, outcome);
        }
        let mut found = |part: &str| {
            let rows = read(&mut database, None, part, 10).unwrap();
            rows.into_iter().map(|row| (row.target.unwrap(), row.outcome)).collect::<Vec<_>>()
        };
        let row = |target: &str, outcome: &str| (target.to_owned(), outcome.to_owned());
        let doug = [row("doug@x", "delivered"), row("doug@x", "")];
        assert_eq!(found(" DOUG "), doug);
        assert_eq!((found("ann").len(), found("<1@").len(), found("boris").len()), (4, 4, 0));
        assert_eq!(found("0%@"), [row("100%@x", "")]);
        assert_eq!(found(""), [row("scuba@x", ""), doug[0].clone(), row("100%@x", ""), doug[1].clone()]);
    }

    #[test]
    fn whatever_a_stranger_wrote_is_one_line_that_fits() {
        let directory = tempfile::tempdir().unwrap();
        let mut database = ledger(directory.path());
        let id = format!("<{}'; DROP TABLE operations; --\r\n\0\u{1b}[2J@x>", "ü".repeat(2000));
        let affected = Affected { message_id: Some(&id), mailbox: Some("In\nbox"), ..Affected::default() };
        let bounced = "line one\nline two";
        write(&mut database, Actor { role: None, ..ANNA }, Operation::Restored, affected, bounced).unwrap();
        let rows = read(&mut database, None, "", 10).unwrap();
        assert_eq!(rows[0].message_id.as_deref().unwrap().chars().count(), LONG);
        assert_eq!((rows[0].mailbox.as_deref(), rows[0].outcome.as_str()), (Some("In?box"), "line one?line two"));
        assert_eq!((rows[0].role.as_deref(), rows[0].identity.as_deref(), rows[0].user.as_deref()), (None, None, None));
    }
}
