//! Requests to a site's servers outside of a delivery: the tests of `check`, and the test whether a slow server still answers.

use super::Site;
use crate::base::deadline::Deadline;
use crate::base::server_waits::{self, ServerKind};
use crate::database::{DatabaseError, DatabaseFailure};
use crate::imap;
use crate::ledger::check::rows;
use crate::ledger::{Database, Destination};
use crate::mailbox::{MailboxError, MailboxFailure};
use crate::message::Address;
use crate::site::routing::{Party, Route};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The user to whose mailbox `check` can log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recipient {
    /// The user of this address.
    Known(Address, Destination),
    /// This address has no mailbox.
    Unknown(Address),
    /// There is no address to test.
    Nobody,
}

/// The state of a user's mailboxes.
#[derive(Clone, Debug, Default)]
pub(crate) struct SeenMailboxes {
    /// How the server describes itself.
    pub said: String,
    /// Whether the server has UIDPLUS (RFC 4315).
    pub uid_plus: bool,
    /// Our rights to INBOX.
    pub inbox_rights: imap::Rights,
    /// Our rights to Sent.
    pub sent_rights: imap::Rights,
    /// Whether Sent does not exist yet. Dovecot still reports the rights to it.
    pub sent_is_missing: bool,
}

impl Site {
    /// The user to whose mailbox `check` may log in: that of the named address, or of any address of the table whose user is not
    /// in `other_than`.
    ///
    /// # Errors
    /// If the database does not answer, or answers with an error.
    pub fn recipient(
        &self,
        named: Option<Address>,
        other_than: &[&str],
        database: &mut dyn Database,
    ) -> Result<Recipient, DatabaseError> {
        let Some(site) = self.as_configured() else { return Ok(Recipient::Nobody) };
        let address = match named {
            Some(address) => address,
            None => match rows::any_address(database, other_than)?.and_then(|address| Address::parse(&address).ok()) {
                Some(address) => address,
                None => return Ok(Recipient::Nobody),
            },
        };
        let lookups = site.router.lookups(&address, Party::Recipient);
        let lookups: Vec<&str> = lookups.iter().map(String::as_str).collect();
        let book = database.addresses(&lookups)?;
        Ok(match site.router.route(&address, Party::Recipient, &book) {
            Route::To(destination) => Recipient::Known(address, destination),
            Route::NoImapUser(_) | Route::Unknown | Route::TableEmpty => Recipient::Unknown(address),
        })
    }

    /// Logs in to a user's mailboxes and reads their state. Creates nothing.
    ///
    /// # Errors
    /// If the server cannot be reached, or refuses the login.
    pub(crate) fn try_mailboxes(&self, to: &Destination, deadline: Deadline) -> Result<SeenMailboxes, MailboxError> {
        let Some(site) = self.as_configured() else { return Ok(SeenMailboxes::default()) };
        let mut inbox = imap::connect(site.imap()?, deadline)?.open(&to.user, &to.inbox)?;
        let inbox_rights = inbox.my_rights()?;
        let (sent_rights, sent_is_missing) = if site.config.sent.enabled {
            let mut sent = imap::connect(site.imap()?, deadline)?.open(&to.user, &to.sent)?;
            match sent.my_rights()? {
                rights @ imap::Rights::Of(_) => (rights, sent.is_missing()?),
                rights => (rights.clone(), rights == imap::Rights::NoMailbox),
            }
        } else {
            (imap::Rights::Unknown, false)
        };
        let (said, uid_plus) = (inbox.describe(), inbox.has_uid_plus());
        Ok(SeenMailboxes { said, uid_plus, inbox_rights, sent_rights, sent_is_missing })
    }

    /// How long a login for this user takes, with its connection: the median of `count` logins, one after the other.
    ///
    /// # Errors
    /// As for [`try_mailboxes`](Self::try_mailboxes).
    pub(crate) fn time_logins(&self, user: &str, count: usize, deadline: Deadline) -> Result<Duration, MailboxError> {
        let Some(site) = self.as_configured() else { return Ok(Duration::ZERO) };
        let mut times = Vec::new();
        for _ in 0..count {
            let begun = Instant::now();
            let _session = imap::connect(site.imap()?, deadline)?.authenticate(user)?;
            times.push(begun.elapsed());
        }
        times.sort_unstable();
        Ok(times.get(count / 2).copied().unwrap_or_default())
    }

    /// Up to `count` users of the table, without the service account.
    ///
    /// # Errors
    /// As for [`recipient`](Self::recipient).
    pub(crate) fn some_users(
        &self,
        count: usize,
        database: &mut dyn Database,
    ) -> Result<Vec<Destination>, DatabaseError> {
        let mut users: Vec<Destination> = Vec::new();
        let account = self.imap_settings().map(|imap| imap.user.as_str());
        while users.len() < count {
            let not_of: Vec<&str> = users.iter().map(|to| to.user.as_str()).chain(account).collect();
            match self.recipient(None, &not_of, database)? {
                Recipient::Known(_, to) if !not_of.contains(&to.user.as_str()) => users.push(to),
                _ => break,
            }
        }
        Ok(users)
    }

    /// The servers of this site, each with a function that asks whether it still answers, for [`server_waits::watch`]. An
    /// embedded site has none.
    pub(crate) fn servers(&self) -> Vec<server_waits::WaitedServer> {
        let Some(configured) = self.as_configured() else { return Vec::new() };
        let site = self.clone();
        let database = server_waits::WaitedServer {
            kind: ServerKind::Database,
            name: configured.database_name(),
            ask: Arc::new(move |deadline| {
                let asked = site.open_database(None, deadline);
                // An error is an answer too.
                let answered =
                    asked.and_then(|mut database| database.select("asking whether it answers", "SELECT 1", &[]));
                let silent = |failure| matches!(failure, DatabaseFailure::Unreachable | DatabaseFailure::TimedOut);
                answered.err().is_none_or(|error| !silent(error.failure))
            }),
        };
        let site = self.clone();
        let mailbox_store = configured.imap.as_ref().map(|imap| server_waits::WaitedServer {
            kind: ServerKind::MailboxStore,
            name: format!("the mailbox store at {}", imap.address),
            ask: Arc::new(move |deadline| {
                let silent = |failure| matches!(failure, MailboxFailure::Unreachable | MailboxFailure::TimedOut);
                site.try_greeting(deadline).err().is_none_or(|error| !silent(error.failure))
            }),
        });
        std::iter::once(database).chain(mailbox_store).collect()
    }

    /// The greeting of the mailbox store.
    ///
    /// # Errors
    /// If the server cannot be reached, or sends no greeting.
    pub(crate) fn try_greeting(&self, deadline: Deadline) -> Result<String, MailboxError> {
        let Some(site) = self.as_configured() else { return Ok("Maildir".into()) };
        Ok(imap::connect(site.imap()?, deadline)?.describe())
    }
}
