//! Parses columns of the ledger's tables. A missing value, or one that this release does not know, is an error.

use super::api_tokens::Bounds;
use super::notifications::SubscriptionState;
use super::web_sessions::WebRole;
use super::{CopyKey, Outcome};
use crate::database::{Columns, DatabaseError, FromColumn, FromRow};
use crate::lock::LockName;
use crate::mailbox::{Placement, Position};
use crate::message::{Identity, Role};

/// Whether a copy `c` is delivered, otherwise owed; NULL in a state that this release does not know.
pub(super) const IS_DELIVERED: &str = "CASE c.state WHEN 'delivered' THEN 1 WHEN 'owed' THEN 0 END";

macro_rules! from_column {
    ($($column:ty: $read:expr,)+) => {$(
        impl FromColumn for $column {
            fn from_column(text: &str) -> Option<Self> {
                let read: fn(&str) -> Option<Self> = $read;
                read(text)
            }
        }
    )+};
}

from_column! {
    CopyKey: |text| FromColumn::from_column(text).map(Self::from_bytes),
    Identity: |text| FromColumn::from_column(text).map(Self::from_bytes),
    LockName: |text| FromColumn::from_column(text).map(Self::from_digest),
    Outcome: |text| Some(Self::from_text(text)),
    Role: Self::parse,
    SubscriptionState: Self::parse,
    WebRole: Self::parse,
    // Unreadable bounds must not be taken for no bounds at all.
    Bounds: |text| serde_json::from_str(text).ok(),
    Vec<String>: |text| serde_json::from_str(text).ok(),
}

/// UIDVALIDITY, and the UID in the column after it.
impl FromRow for Option<Placement> {
    fn from_row(columns: &mut Columns<'_>) -> Result<Self, DatabaseError> {
        Ok(numbers_of_imap(columns)?.map(|(uid_validity, uid)| Placement { uid_validity, uid }))
    }
}

/// UIDVALIDITY, and UIDNEXT in the column after it.
impl FromRow for Option<Position> {
    fn from_row(columns: &mut Columns<'_>) -> Result<Self, DatabaseError> {
        Ok(numbers_of_imap(columns)?.map(|(uid_validity, uid_next)| Position { uid_validity, uid_next }))
    }
}

/// Two numbers that are known together or not at all. One that IMAP cannot have counts as unknown, which only makes a
/// search longer.
fn numbers_of_imap(columns: &mut Columns<'_>) -> Result<Option<(u32, u32)>, DatabaseError> {
    let (one, other): (Option<i64>, Option<i64>) = columns.read()?;
    let number = |number: Option<i64>| number.and_then(|number| u32::try_from(number).ok());
    Ok(number(one).zip(number(other)))
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
        let mut select = |sql: &str| database.select("reading", sql, &[]).unwrap().remove(0);
        let mut delivered = |state: &str| {
            select(&format!("SELECT {IS_DELIVERED} FROM (SELECT {state} AS state) c")).read::<bool>().ok()
        };
        let states = ["'owed'", "'delivered'", "'observer'", "NULL"].map(&mut delivered);
        assert_eq!(states, [Some(false), Some(true), None, None]);
        let row = select("SELECT 'recipient', 'sender', 'observer', NULL");
        assert_eq!(row.read::<(Role, Role)>().unwrap(), (Role::Recipient, Role::Sender));
        assert!(row.value::<Role>(2).is_err() && row.read::<(Role, Role, Outcome, Role)>().is_err());
        assert_eq!(row.value(2).unwrap(), Some(Outcome::Other("observer".into())));
    }
}
