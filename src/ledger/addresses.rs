//! What the table `addresses` says: who lives here, and in which mailboxes.

use crate::database::{DatabaseError, DatabaseFailure};
use crate::message::fold;

/// Where mail for an address goes, and where its owner's sent mail is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The user that the mailbox store knows.
    pub user: String,
    /// The mailbox for arriving mail: `INBOX`.
    pub inbox: String,
    /// The mailbox for sent mail: `Sent`.
    pub sent: String,
}

/// The one name of a mailbox: INBOX has as many spellings as upper and lower case give it (RFC 9051 section 5.1), and a
/// copy's name in the ledger is made of the mailbox's.
pub(crate) fn one_name(mailbox: &str) -> &str {
    if mailbox.eq_ignore_ascii_case("INBOX") { "INBOX" } else { mailbox }
}

impl Destination {
    pub fn new(user: impl Into<String>, inbox: &str, sent: &str) -> Self {
        Self { user: user.into(), inbox: one_name(inbox).into(), sent: one_name(sent).into() }
    }
}

/// What the table `addresses` says of the addresses that were asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AddressBook {
    /// The addresses that are there (as the table spells them), and where they lead.
    pub entries: Vec<(String, Destination)>,
    /// Whether the table has no row at all: an unknown recipient is then deferred, never refused.
    pub empty: bool,
    /// How many seconds ago the way in to the mailbox store was proven, by the database's clock, if it was asked for and ever
    /// was; negative if that clock was set back.
    pub proven: Option<f64>,
}

impl AddressBook {
    pub(crate) fn get(&self, address: &str) -> Option<&Destination> {
        // Where a collation, or a view over the platform's own tables, does not tell case apart, neither do we.
        self.entries.iter().find(|(known, _)| fold(known) == address).map(|(_, destination)| destination)
    }
}

/// Why a database without the table cannot be asked for it: an embedded site needs none, since any address has a mailbox there.
pub(super) fn no_table(doing: &str) -> DatabaseError {
    DatabaseError::new(
        DatabaseFailure::Local,
        doing,
        "this database has no table of addresses: a mistake in this program",
    )
}

impl AddressBook {
    /// The book, unless none of the addresses is in it and the server takes no writes: a standby that lags behind may not
    /// have them *yet*. A delivery could not go on there anyway, and this says why.
    pub(super) fn unless_a_replica_knows_none(self, doing: &str, read_only: bool) -> Result<Self, DatabaseError> {
        if read_only && self.entries.is_empty() {
            let detail = "the server takes no writes (a standby?), so that an address it lacks may be known elsewhere";
            return Err(DatabaseError::new(DatabaseFailure::ReadOnly, doing, detail));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else mail would bounce for an address that was entered a moment ago.
    #[test]
    fn only_a_server_that_takes_writes_may_know_nobody() {
        let known = AddressBook {
            entries: vec![("doug@x.org".into(), Destination::new("doug", "inbox", "Sent"))],
            ..AddressBook::default()
        };
        for (book, read_only) in [(&known, true), (&known, false), (&AddressBook::default(), false)] {
            let there = book.clone().unless_a_replica_knows_none("looking up", read_only).unwrap();
            assert_eq!(&there, book);
        }
        let error = AddressBook::default().unless_a_replica_knows_none("looking up", true).unwrap_err();
        assert_eq!(error.failure, DatabaseFailure::ReadOnly);
    }
}
