//! Columns of the ledger's tables. A value that is missing, or that this release does not know, is an error.

use super::Outcome;
use crate::database::{DatabaseError, Row, unreadable};
use crate::mailbox::Placement;
use crate::message::Role;
use std::str::FromStr;

pub(super) fn missing(column: usize) -> DatabaseError {
    unreadable(format!("column {} of the answer is missing", column + 1))
}

pub(super) fn text(row: &Row, column: usize) -> Result<&str, DatabaseError> {
    row.text(column).ok_or_else(|| missing(column))
}

pub(super) fn owned(row: &Row, column: usize) -> Result<String, DatabaseError> {
    text(row, column).map(ToOwned::to_owned)
}

pub(super) fn optional(row: &Row, column: usize) -> Option<String> {
    row.text(column).map(ToOwned::to_owned)
}

pub(super) fn number<T: FromStr>(row: &Row, column: usize) -> Result<T, DatabaseError> {
    row.value(column)?.ok_or_else(|| missing(column))
}

/// The number in the only row of an answer; zero where it is NULL.
pub(super) fn only_number<T: FromStr + Default>(rows: &[Row]) -> Result<T, DatabaseError> {
    Ok(rows.first().ok_or_else(|| missing(0))?.value(0)?.unwrap_or_default())
}

pub(super) fn role(row: &Row, column: usize) -> Result<Role, DatabaseError> {
    let text = text(row, column)?;
    Role::parse(text).ok_or_else(|| unreadable(format!("a copy with the role {text:?}, which this release lacks")))
}

/// Whether a copy is delivered; else it is owed.
pub(super) fn delivered(row: &Row, column: usize) -> Result<bool, DatabaseError> {
    match text(row, column)? {
        "delivered" => Ok(true),
        "owed" => Ok(false),
        other => Err(unreadable(format!("a copy in the state {other:?}, which this release lacks"))),
    }
}

/// How an attempt that has ended did so.
pub(super) fn outcome(row: &Row, column: usize) -> Outcome {
    Outcome::from_text(row.text(column).unwrap_or_default())
}

/// UIDVALIDITY, and the UID in the column after it.
pub(super) fn placement(row: &Row, column: usize) -> Result<Option<Placement>, DatabaseError> {
    let (uid_validity, uid) = (row.value(column)?, row.value(column + 1)?);
    Ok(uid_validity.zip(uid).map(|(uid_validity, uid)| Placement { uid_validity, uid }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::deadline::Deadline;
    use crate::database::{Client, Tables};
    use std::time::Duration;

    #[test]
    fn a_word_that_this_release_lacks_is_an_error_and_no_guess() {
        let directory = tempfile::tempdir().unwrap();
        let client = Client { host: "mx1".into(), pid: 1, queue_id: None };
        let deadline = Deadline::after(Duration::from_mins(2));
        let mut database = crate::ledger::schema::open_embedded(directory.path(), &client, deadline).unwrap();
        let rows = database
            .select("reading", "SELECT 'recipient', 'owed', 'observer', NULL, 'sender', 'delivered'", &[])
            .unwrap();
        let row = &rows[0];
        assert_eq!((role(row, 0).unwrap(), delivered(row, 1).unwrap()), (Role::Recipient, false));
        assert_eq!((role(row, 4).unwrap(), delivered(row, 5).unwrap()), (Role::Sender, true));
        for column in [2, 3] {
            assert!(role(row, column).is_err() && delivered(row, column).is_err());
        }
        assert_eq!(outcome(row, 2), Outcome::Other("observer".into()));
    }
}
