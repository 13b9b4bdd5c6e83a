//! Routing: which mailboxes an address has.

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

/// What the table `addresses` says of the addresses that were asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressBook {
    /// The addresses that are there (folded as they are in the table: lower case), and where they lead.
    pub entries: Vec<(String, Destination)>,
    /// Whether the table has no row at all: an unknown recipient is then deferred, never refused.
    pub empty: bool,
}
