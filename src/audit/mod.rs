//! The audit: does what the ledger says still hold in the mailboxes?
//!
//! Four things are looked for: recorded copies that are gone, copies that are there twice, copies that are still owed, and
//! attempts that never ended. It only looks; [`take_out`] mends the second, one copy at a time, under the message's lock.
//! Mailboxes are read by ranges of UIDs, from the lowest that a copy in question could have got.
//!
//! Why a copy is gone is hard to tell from outside: users delete and file their mail. What can be known is in [`Gone`].

mod in_mailbox;
mod take_out;

pub(crate) use take_out::OF_A_REPAIR;
pub use take_out::{NotTaken, take_out};

use crate::database::{Database, DatabaseError, Value};
use crate::deadline::Deadline;
use crate::ledger::recorded::{self, Mailboxes, RecordedCopy, Selection};
use crate::mailbox::{MailboxError, Placement};
use crate::site::Site;
use std::time::Duration;

/// How long one mailbox may take to be looked through.
pub(crate) const PATIENCE: Duration = Duration::from_mins(10);

/// What was looked at, and what was found.
#[derive(Debug, Default)]
pub struct Audit {
    /// How many recorded copies were looked for.
    pub copies: usize,
    /// In how many mailboxes.
    pub mailboxes: usize,
    /// Copies that are not where the ledger has them.
    pub gone: Vec<(RecordedCopy, Gone)>,
    /// Copies that are there twice.
    pub twice: Vec<Twice>,
    /// Attempts that never ended.
    pub never_ended: Vec<NeverEnded>,
    /// Copies that deliveries left owed.
    pub owed: Vec<RecordedCopy>,
    /// Mailboxes that could not be looked at, or not to the end: user, mailbox, why.
    pub unseen: Vec<(String, String, MailboxError)>,
}

/// Why a copy is not where the ledger has it, as far as the mailbox tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// The mailbox is an older one than the copy was stored in: under the same UIDVALIDITY it has yet to give out this UID,
    /// or has given it to another message. The copy is lost.
    OlderMailbox,
    /// The mailbox has another UIDVALIDITY, as one made anew has; the copy is not in it, and nothing that came after it is.
    NewMailbox,
    /// The mailbox is not there any more.
    NoMailbox,
    /// The mailbox has another UIDVALIDITY, and the copy is in it, here: nothing is lost.
    Renumbered(Placement),
    /// It is in the same mailbox under another UID: its owner, or a program, has put it back.
    Elsewhere(Placement),
    /// The mailbox is the same, and goes on, or has another UIDVALIDITY and what came later; the copy is not in it. Its owner
    /// has most likely deleted it, or filed it elsewhere.
    Removed,
}

impl Gone {
    /// Whether the mailbox has lost it, and not its owner, most likely.
    #[must_use]
    pub fn is_loss(self) -> bool {
        matches!(self, Self::OlderMailbox | Self::NewMailbox | Self::NoMailbox)
    }

    /// The word that programs get.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OlderMailbox => "older mailbox",
            Self::NewMailbox => "new mailbox",
            Self::NoMailbox => "no mailbox",
            Self::Renumbered(_) => "renumbered",
            Self::Elsewhere(_) => "elsewhere",
            Self::Removed => "removed",
        }
    }

    /// Where the copy is now, if it is in its mailbox.
    #[must_use]
    pub fn now(self) -> Option<Placement> {
        match self {
            Self::Renumbered(at) | Self::Elsewhere(at) => Some(at),
            Self::OlderMailbox | Self::NewMailbox | Self::NoMailbox | Self::Removed => None,
        }
    }
}

/// A copy that is there twice.
#[derive(Debug)]
pub struct Twice {
    /// The one that the ledger has. It stays.
    pub copy: RecordedCopy,
    /// Where that one is.
    pub keep: Placement,
    /// Where the other one is.
    pub extra: Placement,
    /// Whether the two are the same to the last byte. If not, they differ in what was added on the way, and only people can
    /// tell which to keep.
    pub same_bytes: bool,
}

/// An attempt that began long enough ago, and has not ended.
#[derive(Clone, Debug)]
pub struct NeverEnded {
    /// The Message-ID, for people.
    pub message_id: String,
    /// The envelope recipient.
    pub recipient: String,
    /// The mailbox's user.
    pub user: String,
    /// The mailbox.
    pub mailbox: String,
    /// The host on which it ran.
    pub host: String,
    /// Its process id there.
    pub pid: i64,
    /// Postfix's queue id.
    pub queue_id: Option<String>,
    /// When it began, in microseconds since 1970.
    pub started_at: i64,
    /// How long ago that was, by the database's clock.
    pub age: Duration,
    /// Whether the ledger has the copy as delivered, by another attempt.
    pub delivered: bool,
}

/// Looks through the ledger and the mailboxes. `each` hears how many mailboxes are done, of how many.
///
/// # Errors
/// [`DatabaseError`]; a mailbox that cannot be read is told in the [`Audit`].
pub fn audit(
    site: &Site,
    database: &mut dyn Database,
    selection: &Selection<'_>,
    each: &mut dyn FnMut(usize, usize),
) -> Result<Audit, DatabaseError> {
    let mailboxes = recorded::delivered(database, selection)?;
    let never_ended = never_ended(site, database, selection)?;
    let owed = recorded::owed(database, selection)?;
    let of = mailboxes.len();
    let deadline = || Deadline::after(PATIENCE);
    let found = look(site, database, &mailboxes, &deadline, &mut |done| each(done, of))?;
    Ok(Audit { never_ended, owed, ..found })
}

/// Looks through these mailboxes. `each` hears how many are done.
pub(crate) fn look(
    site: &Site,
    database: &mut dyn Database,
    mailboxes: &Mailboxes,
    deadline: &dyn Fn() -> Deadline,
    each: &mut dyn FnMut(usize),
) -> Result<Audit, DatabaseError> {
    let mut audit = Audit::default();
    for ((user, mailbox), copies) in mailboxes {
        audit.mailboxes += 1;
        audit.copies += copies.len();
        let looked = site
            .mailbox(user, mailbox, deadline())
            .and_then(|mut opened| in_mailbox::look(database, opened.as_mut(), (user, mailbox), copies));
        match looked {
            Ok(found) => {
                let found = found?;
                audit.gone.extend(found.gone);
                audit.twice.extend(found.twice);
            }
            Err(error) => audit.unseen.push((user.clone(), mailbox.clone(), error)),
        }
        each(audit.mailboxes);
    }
    Ok(audit)
}

/// The attempts that have not ended, and began longer ago than any delivery lives.
fn never_ended(
    site: &Site,
    database: &mut dyn Database,
    selection: &Selection<'_>,
) -> Result<Vec<NeverEnded>, DatabaseError> {
    let doing = "reading the journal";
    let deadline = i64::try_from(site.deadline().as_micros()).unwrap_or(i64::MAX);
    let dialect = database.dialect();
    let (started_at, now) = (dialect.microseconds("a.started_at"), dialect.microseconds(dialect.now()));
    // Both ways in by time: PostgreSQL has an index of times, the other engines keep attempts in the order of their names,
    // which begin with the time of the host that made them. An hour for clocks that differ.
    let sql = format!(
        "SELECT a.message_id, a.recipient, a.imap_user, a.mailbox, a.host, a.pid, a.queue_id, {started_at}, {now}, \
         c.copy_key IS NOT NULL \
         FROM attempts a LEFT JOIN copies c ON c.copy_key = a.copy_key AND c.state = 'delivered' \
         WHERE a.attempt >= ? AND a.started_at >= ? AND a.ended_at IS NULL ORDER BY a.started_at, a.attempt"
    );
    let named_after = recorded::name_of_moment(selection.since.saturating_sub(recorded::HOUR));
    let rows = database.select(doing, &sql, &[Value::Uuid(named_after), Value::Moment(selection.since)])?;
    let mut never_ended = Vec::new();
    for row in rows {
        let text = |column: usize| row.text(column).unwrap_or_default().to_owned();
        let (started_at, now) = (row.value(7)?.unwrap_or(0), row.value(8)?.unwrap_or(0));
        let age: i64 = now - started_at;
        let (user, mailbox) = (text(2), text(3));
        if age < deadline || !selection.has(&user, &mailbox) {
            continue;
        }
        never_ended.push(NeverEnded {
            message_id: text(0),
            recipient: text(1),
            user,
            mailbox,
            host: text(4),
            pid: row.value(5)?.unwrap_or(0),
            queue_id: row.text(6).map(ToOwned::to_owned),
            started_at,
            age: Duration::from_micros(age.unsigned_abs()),
            // PostgreSQL says t, the others 1.
            delivered: matches!(row.text(9), Some("t" | "1")),
        });
    }
    Ok(never_ended)
}
