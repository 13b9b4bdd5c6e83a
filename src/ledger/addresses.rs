//! The contents of the table `addresses`: the mailboxes of each address.

use crate::database::{DatabaseError, DatabaseFailure, columns_of};
use crate::message::fold;

/// The mailbox for an address's mail, and the one for its owner's sent mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The user's name at the mailbox store. Empty in a row of the table that names none, or that names a destination.
    pub user: String,
    /// The mailbox for arriving mail: `INBOX`.
    pub inbox: String,
    /// The mailbox for sent mail: `Sent`.
    pub sent: String,
}

columns_of! { Destination: user, inbox, sent }

/// A mailbox by one name: the case of INBOX does not matter (RFC 9051 section 5.1), but a copy's key depends on it.
pub(crate) fn one_name(mailbox: &str) -> &str {
    if mailbox.eq_ignore_ascii_case("INBOX") { "INBOX" } else { mailbox }
}

impl Destination {
    pub fn new(user: impl Into<String>, inbox: &str, sent: &str) -> Self {
        Self { user: user.into(), inbox: one_name(inbox).into(), sent: one_name(sent).into() }
    }
}

/// What the table `addresses` has of the addresses that were asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AddressBook {
    /// The addresses that exist (as the table spells them), and their destinations.
    pub entries: Vec<(String, Destination)>,
    /// Whether the table has no row at all: an unknown recipient is then deferred, never refused.
    pub empty: bool,
    /// How many seconds ago the login to the mailbox store was proven, by the database's clock. `None` if that was not
    /// asked for, or if it was never proven; negative if that clock was set back.
    pub proven: Option<f64>,
}

impl AddressBook {
    pub(crate) fn get(&self, address: &str) -> Option<&Destination> {
        // A collation, or a view over the platform's own tables, may ignore case.
        self.entries.iter().find(|(known, _)| fold(known) == address).map(|(_, destination)| destination)
    }
}

/// The error of an embedded database, which has no such table: any address has a mailbox there.
pub(super) fn no_table(doing: &str) -> DatabaseError {
    let detail = "this database has no table of addresses: a mistake in this program";
    DatabaseError::new(DatabaseFailure::Local, doing, detail)
}

impl AddressBook {
    /// The book, unless it is empty and the server takes no writes: a standby that lags behind may not have the
    /// addresses yet.
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

    /// Otherwise mail for an address that was entered a moment ago would bounce.
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

    #[test]
    fn an_address_is_found_whatever_its_case_in_the_table_and_the_inbox_has_one_name() {
        let entry = |address: &str, user| (address.to_owned(), Destination::new(user, "Inbox", "inbox/Sent"));
        let book =
            AddressBook { entries: vec![entry("Doug@X.org", "doug"), entry("a@x.org", "anna")], ..Default::default() };
        let found = |address| book.get(address).map(|to| (to.user.as_str(), to.inbox.as_str(), to.sent.as_str()));
        assert_eq!(found("doug@x.org"), Some(("doug", "INBOX", "inbox/Sent")));
        assert_eq!(found("a@x.org"), Some(("anna", "INBOX", "inbox/Sent")));
        assert_eq!(found("b@x.org"), None);
    }
}
