//! The plan of a delivery: the mailboxes of one message's copies. The table of addresses names the recipient's mailbox, and the
//! author's Sent if there is proof that the author sent the message.

use super::deliver::NO_OUTCOME;
use super::{Configured, Envelope, Kind, Site};
use crate::config::{self, AuthorCheck};
use crate::delivery::{Deferral, Refusal};
use crate::ledger::{AddressBook, CopyKey, Database, Destination};
use crate::mailbox::Placement;
use crate::message::authentication_results::Vouched;
use crate::message::{Address, Message, Role};
use crate::site::routing::{Party, Route};
use std::fmt;
use tracing::{info, warn};

pub(super) struct Destinations {
    /// Each recipient's mailbox, in the order of the recipients, or the refusal.
    pub(super) recipients: Vec<Result<Destination, Refusal>>,
    /// The author's mailbox, if a Sent copy is owed.
    pub(super) sender: Option<Destination>,
    /// The age of the proof of logins to the mailbox store, in seconds; `None` if there is no proof.
    pub(super) proven: Option<f64>,
}

/// A copy that a delivery would make, with its state in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlannedCopy {
    /// Why the mailbox gets the copy.
    pub role: Role,
    /// The mailbox's user.
    pub user: String,
    pub mailbox: String,
    /// The state before the delivery.
    pub state: StateBefore,
}

/// The state of a copy before a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateBefore {
    /// The copy is delivered, at this place if the server reported one.
    ThereAlready(Option<Placement>),
    /// No attempt exists, or all have ended without a copy.
    ToBeAppended,
    /// The author's own mail program saves a copy: see [`Site::left_to_authors_for`].
    ToBeLeft,
    /// This many attempts have not ended: they are running, or have died.
    ToBeLookedFor(usize),
}

impl fmt::Display for PlannedCopy {
    /// For people: `INBOX of doug (recipient): to be appended`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} ({}): ", self.mailbox, self.user, self.role.as_str())?;
        match self.state {
            StateBefore::ThereAlready(Some(at)) => write!(f, "there already (uid {})", at.uid),
            StateBefore::ThereAlready(None) => f.write_str("there already"),
            StateBefore::ToBeAppended => f.write_str("to be appended"),
            StateBefore::ToBeLeft => f.write_str("to be left to the author's own mail program"),
            StateBefore::ToBeLookedFor(open) => write!(f, "to be looked for: {open} attempts at it have not ended"),
        }
    }
}

impl Site {
    /// Finds the mailboxes of the recipients' copies, and of the author's if one is owed, in one round trip. An unknown recipient
    /// is not refused here: see [`refuse`](Self::refuse).
    pub(super) fn destinations(
        &self,
        message: &Message,
        envelopes: &[Envelope],
        database: &mut dyn Database,
    ) -> Result<Destinations, Deferral> {
        let site = match &self.kind {
            Kind::Embedded(embedded) => {
                let recipient = |envelope: &Envelope| Ok(embedded.recipient(&envelope.recipient.to_string()));
                let author = message.from_address().filter(|_| self.sent_copies);
                let sender = author.and_then(|from| embedded.sender(&from.to_string()));
                return Ok(Destinations {
                    recipients: envelopes.iter().map(recipient).collect(),
                    sender,
                    proven: None,
                });
            }
            Kind::Configured(site) => site,
        };
        let sent = &site.config.sent;
        let author = message.from_address().filter(|_| self.sent_copies);
        // The evidence for the author is the same for all recipients.
        let vouched = |author: &&Address| {
            envelopes.first().is_some_and(|envelope| author_vouched_for(sent, message, envelope, author))
        };
        let author = author.filter(vouched);
        let router = &site.router;
        let of_recipients = envelopes.iter().flat_map(|to| router.lookups(&to.recipient, Party::Recipient));
        let of_author = author.iter().flat_map(|author| router.lookups(author, Party::Sender));
        let book = self.look_up(of_recipients.chain(of_author), database)?;
        let recipients = envelopes.iter().map(|to| site.recipient(&to.recipient, &book)).collect();
        let sender = match author.map(|author| router.route(author, Party::Sender, &book)) {
            Some(Route::To(destination)) => Some(destination),
            Some(Route::NoImapUser(row)) => {
                warn!(row, "no Sent copy: the author's row of the table addresses names no IMAP user");
                None
            }
            Some(Route::Unknown | Route::TableEmpty) | None => None,
        };
        Ok(Destinations { recipients, sender, proven: book.proven })
    }

    /// Plans what [`deliver`](Self::deliver) would do with each copy, the recipient's first. This writes, creates and locks
    /// nothing.
    ///
    /// # Errors
    /// The refusal with which a delivery would end before it opens a mailbox.
    pub(crate) fn plan(
        &self,
        message: &Message,
        envelope: &Envelope,
        database: &mut dyn Database,
    ) -> Result<Vec<PlannedCopy>, Refusal> {
        let destinations = self.destinations(message, std::slice::from_ref(envelope), database)?;
        let Destinations { recipients, sender, .. } = destinations;
        let recipient = recipients.into_iter().next().unwrap_or(Err(NO_OUTCOME.into()))?;
        let mut copies = vec![(Role::Recipient, recipient.user, recipient.inbox)];
        copies.extend(sender.map(|sender| (role_of_sent(&sender), sender.user, sender.sent)));
        copies.dedup_by(|(_, a, inbox), (_, b, sent)| a == b && inbox == sent);
        let key =
            |(role, user, mailbox): &(Role, String, String)| CopyKey::new(message.identity(), *role, user, mailbox);
        let keys: Vec<CopyKey> = copies.iter().map(key).collect();
        let histories = database.look(&keys).map_err(Deferral::Database)?;
        let left_to_authors = self.left_to_authors_for().is_some();
        let planned = copies.into_iter().zip(&histories).enumerate().map(|(at, ((role, user, mailbox), history))| {
            let state = match (&history.delivered, history.open_attempts.len()) {
                (Some(delivered), 0) => StateBefore::ThereAlready(delivered.placement),
                // The author's copy is the second.
                (None, _) if at > 0 && left_to_authors => StateBefore::ToBeLeft,
                (None, 0) => StateBefore::ToBeAppended,
                (_, open) => StateBefore::ToBeLookedFor(open),
            };
            PlannedCopy { role, user, mailbox, state }
        });
        Ok(planned.collect())
    }

    fn look_up(
        &self,
        lookups: impl Iterator<Item = String>,
        database: &mut dyn Database,
    ) -> Result<AddressBook, Deferral> {
        let mut each: Vec<String> = Vec::with_capacity(4);
        for lookup in lookups {
            // Addresses of one domain share some lookups.
            if !each.contains(&lookup) {
                each.push(lookup);
            }
        }
        let each: Vec<&str> = each.iter().map(String::as_str).collect();
        database.look_up(&each, self.login_check()).map_err(Deferral::Database)
    }

    /// Decides for each recipient whether its mail can be accepted, for transports whose client learns of no later refusal. For
    /// an unknown recipient the database commits the decision, as in a delivery.
    ///
    /// # Errors
    /// If the database cannot decide.
    pub(crate) fn check_recipients(
        &self,
        recipients: &[Address],
        database: &mut dyn Database,
    ) -> Result<Vec<Result<(), Refusal>>, Deferral> {
        // At an embedded site, each address has a mailbox.
        let Some(site) = self.as_configured() else { return Ok(vec![Ok(()); recipients.len()]) };
        let lookups = recipients.iter().flat_map(|to| site.router.lookups(to, Party::Recipient));
        let book = self.look_up(lookups, database)?;
        let known = |to: &Address| match site.recipient(to, &book) {
            Ok(_) => Ok(()),
            Err(Refusal::UnknownRecipient) => Err(self.refuse(to, database)),
            Err(other) => Err(other),
        };
        Ok(recipients.iter().map(known).collect())
    }

    /// Refuses the recipient for good if the database commits that it is unknown; otherwise defers. A read alone does not
    /// suffice: a replica that lags behind may not have the address yet.
    pub(super) fn refuse(&self, recipient: &Address, database: &mut dyn Database) -> Refusal {
        let Some(site) = self.as_configured() else {
            return Deferral::Internal("an embedded site refuses nobody").into();
        };
        let lookups = site.router.lookups(recipient, Party::Recipient);
        let lookups: Vec<&str> = lookups.iter().map(String::as_str).collect();
        match database.refuse(&self.host, &lookups) {
            Ok(true) => Refusal::UnknownRecipient,
            Ok(false) => Deferral::AddressesChanged.into(),
            Err(error) => Deferral::Database(error).into(),
        }
    }
}

impl Configured {
    /// The mailbox for mail to this address, from the database's rows and the rules.
    fn recipient(&self, address: &Address, book: &AddressBook) -> Result<Destination, Refusal> {
        match self.router.route(address, Party::Recipient, book) {
            Route::To(destination) => Ok(destination),
            Route::Unknown => Err(match self.config.routing.unknown_recipient {
                config::UnknownRecipient::Reject => Refusal::UnknownRecipient,
                config::UnknownRecipient::Defer => Deferral::UnknownRecipient.into(),
            }),
            Route::NoImapUser(row) => Err(Deferral::NoImapUser(row).into()),
            Route::TableEmpty => Err(Deferral::NobodyKnown.into()),
        }
    }
}

/// The role of the author's copy. If sent mail is kept in the author's inbox, or in INBOX, it is an ordinary recipient's: other
/// addresses of the same user mostly have INBOX. So a message to oneself and to others is one copy there, whichever delivery
/// comes first.
pub(super) fn role_of_sent(author: &Destination) -> Role {
    if author.sent == author.inbox || author.sent == "INBOX" { Role::Recipient } else { Role::Sender }
}

/// Whether a Sent copy may be made for this author. A forged From must not write into a member's mailbox.
fn author_vouched_for(sent: &config::Sent, message: &Message, envelope: &Envelope, author: &Address) -> bool {
    if !sent.enabled {
        return false;
    }
    match sent.author_check {
        AuthorCheck::Header => true,
        // Postfix decides who may send under which address (smtpd_sender_login_maps), but checks only the envelope sender. A
        // member who has logged in can still write any name into the From field.
        AuthorCheck::Authenticated
            if envelope.sasl_username.as_deref().is_some_and(|name| !name.is_empty())
                && envelope.sender.as_deref().is_some_and(|sender| {
                    Address::parse(sender).is_ok_and(|sender| sender.folded() == author.folded())
                }) =>
        {
            true
        }
        AuthorCheck::Authenticated => {
            let vouched = match &sent.authserv_id {
                Some(ours) => message.authentication_results(ours),
                None => Vouched::No("the client did not log in as the author".into()),
            };
            if let Vouched::No(why) = &vouched {
                info!(%author, %why, "no Sent copy: nobody vouches for the author");
            }
            vouched == Vouched::Yes
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(from: &str) -> Message {
        Message::receive(format!("From: {from}\nSubject: x\n\nx\n").into_bytes()).unwrap()
    }

    fn envelope(sender: &str, sasl_username: &str) -> Envelope {
        Envelope {
            sender: Some(sender.into()),
            recipient: Address::parse("doug@axial.net").unwrap(),
            original_recipient: None,
            queue_id: None,
            client_address: None,
            sasl_username: Some(sasl_username.into()),
        }
    }

    #[test]
    fn a_member_who_logged_in_is_the_author_of_what_bears_the_members_own_name_only() {
        let sent = config::Sent { author_check: AuthorCheck::Authenticated, ..config::Sent::default() };
        let vouched = |from: &str, sender: &str, sasl_username: &str| {
            let message = message(from);
            let author = message.from_address().unwrap();
            author_vouched_for(&sent, &message, &envelope(sender, sasl_username), author)
        };
        assert!(vouched("Lisa <Lisa@axial.net>", "lisa@axial.net", "lisa"));
        assert!(!vouched("The Boss <boss@axial.net>", "mallory@axial.net", "mallory"));
        assert!(!vouched("lisa@axial.net", "lisa@axial.net", ""));
        assert!(!vouched("lisa@axial.net", "", "lisa"));
    }

    /// A message to others and to its author is one copy there, whichever delivery comes first.
    #[test]
    fn where_an_author_keeps_what_is_sent_in_inbox_her_copy_is_that_of_a_recipient() {
        for (inbox, sent, role) in [
            ("INBOX", "Sent", Role::Sender),
            ("INBOX", "INBOX", Role::Recipient),
            ("INBOX", "Inbox", Role::Recipient),
            ("Mail", "Mail", Role::Recipient),
            // Another address of the author has its mail in INBOX.
            ("Sales", "inbox", Role::Recipient),
            ("Sales", "Sent", Role::Sender),
        ] {
            assert_eq!(role_of_sent(&Destination::new("lisa", inbox, sent)), role, "{inbox} {sent}");
        }
    }
}
