//! Delivering again what the ledger knows: Sent copies that deliveries left owed, and copies that a mailbox has lost.
//!
//! The message comes from the ledger's sources where they are kept, else from another copy of it. The rest is an ordinary
//! delivery of that one copy: journal, lock, look, append, record. So it may run beside deliveries and beside itself.

use crate::audit::{self, Audit, Gone};
use crate::database::{Database, DatabaseError};
use crate::deadline::Deadline;
use crate::delivery::{Manner, Refusal};
use crate::ledger::CopyKey;
use crate::ledger::recorded::{self, Mailboxes, RecordedCopy};
use crate::mailbox::{MailboxError, MailboxFailure, Reading, Recorded, Role};
use crate::message::{Identity, Message};
use crate::site::Site;
use std::fmt::Write as _;
use thiserror::Error;

/// Why a copy could not be brought.
#[derive(Debug, Error)]
pub enum RedeliveryError {
    /// No source of the message is kept, and no copy of it is left.
    #[error("nothing is left of the message to deliver: {0}")]
    NoSource(String),
    /// No source of the message is kept, and a mailbox that may hold a copy of it could not be read. Later it may be.
    #[error("the message could not be read: {0}")]
    OutOfReach(String),
    /// The delivery ended so.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The ledger could not be read.
    #[error("the database: {0}")]
    Database(#[from] DatabaseError),
}

/// A copy that is not in its mailbox.
#[derive(Debug)]
pub struct Lost {
    /// The copy.
    pub copy: RecordedCopy,
    /// Why it is not there, as far as the mailbox tells: whether it was lost, or taken out by its owner.
    pub gone: Gone,
}

/// What was looked at, and what came of it.
#[derive(Debug, Default)]
pub struct Losses {
    /// How many copies were looked for.
    pub copies: usize,
    /// In how many mailboxes.
    pub mailboxes: usize,
    /// The copies that are not there at all, lost or taken out.
    pub lost: Vec<Lost>,
    /// Mailboxes that could not be looked at: user, mailbox, why.
    pub unseen: Vec<(String, String, MailboxError)>,
}

/// Which of these copies are no longer in their mailboxes, under whatever UID. Looks only. `deadline` is asked for each
/// mailbox; `each` hears how many are done.
///
/// # Errors
/// [`DatabaseError`]; a mailbox that cannot be read is told among the losses.
pub fn lost(
    site: &Site,
    database: &mut dyn Database,
    mailboxes: &Mailboxes,
    deadline: impl Fn() -> Deadline,
    each: &mut dyn FnMut(usize),
) -> Result<Losses, DatabaseError> {
    let Audit { copies, mailboxes, gone, unseen, .. } = audit::look(site, database, mailboxes, &deadline, each)?;
    let lost =
        gone.into_iter().filter(|(_, gone)| gone.now().is_none()).map(|(copy, gone)| Lost { copy, gone }).collect();
    Ok(Losses { copies, mailboxes, lost, unseen })
}

/// Finishes a copy that is owed. The ledger has it as owed, so its author was vouched for when the message came.
///
/// # Errors
/// [`RedeliveryError`]; the copy then stays owed.
pub fn finish(site: &Site, copy: &RecordedCopy, deadline: Deadline) -> Result<Manner, RedeliveryError> {
    bring(site, copy, false, deadline)
}

/// Delivers a lost copy again, unless it is in its mailbox after all: that is looked for under the lock, whatever was seen
/// before.
///
/// # Errors
/// [`RedeliveryError`]; the ledger then stays as it was.
pub fn restore(site: &Site, copy: &RecordedCopy, deadline: Deadline) -> Result<Manner, RedeliveryError> {
    bring(site, copy, true, deadline)
}

fn bring(site: &Site, copy: &RecordedCopy, restore: bool, deadline: Deadline) -> Result<Manner, RedeliveryError> {
    let message = {
        let mut database = site.open_database(None, deadline)?;
        source(site, database.as_mut(), copy, deadline)?
    };
    Ok(site.deliver_again(copy, &message, restore, deadline)?)
}

/// The message of a copy, as it is to be delivered for it.
fn source(
    site: &Site,
    database: &mut dyn Database,
    copy: &RecordedCopy,
    deadline: Deadline,
) -> Result<Message, RedeliveryError> {
    let message = message_of_ledger(site, database, (copy.message, &copy.identity), Some(copy.key()), deadline)?;
    Ok(addressed(message, copy))
}

/// A message that the ledger has recorded, from the sources that it keeps or from any copy: with the lines that pipe(8)
/// prepended for that one. `last` is a copy to be tried last.
///
/// # Errors
/// [`RedeliveryError::NoSource`], [`RedeliveryError::OutOfReach`], and what the database says.
pub fn message_of_ledger(
    site: &Site,
    database: &mut dyn Database,
    (message, identity): (i64, &Identity),
    last: Option<CopyKey>,
    deadline: Deadline,
) -> Result<Message, RedeliveryError> {
    let same = |bytes: Vec<u8>| Message::receive(bytes).ok().filter(|message| message.identity() == identity);
    if let Some(message) = recorded::source(database, message)?.and_then(same) {
        return Ok(message);
    }
    let mut why = String::from("its source is not kept (record.raw)");
    let mut out_of_reach = false;
    let mut others = recorded::of_message(database, message)?;
    // The lost copy itself comes last: it may be there after all.
    others.sort_by_key(|other| Some(other.key()) == last);
    for other in &others {
        let read = site
            .mailbox(&other.user, &other.mailbox, deadline)
            .and_then(|mut mailbox| read_wherever_it_is(mailbox.as_mut(), other));
        match read {
            Ok(Some(bytes)) => {
                if let Some(message) = same(bytes) {
                    return Ok(as_it_came(site, message, other));
                }
            }
            Ok(None) => {
                let _ = write!(why, "; not in {} of {} any more", other.mailbox, other.user);
            }
            Err(error) => {
                // A mailbox that is not there holds nothing.
                out_of_reach |= error.trying_again_can_help() && error.failure != MailboxFailure::NoSuchMailbox;
                let _ = write!(why, "; {error}");
            }
        }
    }
    Err(if out_of_reach { RedeliveryError::OutOfReach(why) } else { RedeliveryError::NoSource(why) })
}

/// The message of a copy, under the name that its lock is named after: the bytes may come from Cyrus, which stores X for each
/// byte beyond ASCII. Where the ledger's text is not that name to the last byte, it stays as it is.
fn as_it_came(site: &Site, message: Message, copy: &RecordedCopy) -> Message {
    let is_its_name = site.lock_of_message_id(copy.message_id.as_bytes()) == copy.lock;
    if is_its_name && message.message_id().is_some() { message.with_message_id(&copy.message_id) } else { message }
}

/// The bytes of a copy, under its recorded UID or another.
fn read_wherever_it_is(mailbox: &mut dyn Reading, copy: &RecordedCopy) -> Result<Option<Vec<u8>>, MailboxError> {
    let recorded = copy.recorded();
    let same = |bytes: &Vec<u8>| Identity::of(bytes) == copy.identity;
    if let Some(bytes) = mailbox.read(&recorded)?.filter(same) {
        return Ok(Some(bytes));
    }
    let has_uids = mailbox.presence(&[])?.position.is_some();
    match copy.whereabouts(mailbox, has_uids)? {
        Some(placement) => mailbox.read(&Recorded { placement, ..recorded }),
        None => Ok(None),
    }
}

/// The message with this copy's recipient in the lines that pipe(8) prepended for another: nobody is to learn from a copy
/// who else got one. The original recipient of this one is not known, so that X-Original-To goes.
fn addressed(message: Message, copy: &RecordedCopy) -> Message {
    let body = message.without_prepended_lines();
    let prepended = message.as_received().get(..message.as_received().len() - body.len()).unwrap_or_default();
    // Who the lines are about is Delivered-To; without flag D, X-Original-To. Beside another's Delivered-To, an
    // X-Original-To of this recipient's is an alias that both are in.
    let line = message.prepended_line("Delivered-To").or_else(|| message.prepended_line("X-Original-To"));
    let own = line.is_some_and(|address| address.eq_ignore_ascii_case(&copy.recipient));
    if copy.role == Role::Sender || prepended.is_empty() || own {
        return message;
    }
    let mut bytes = Vec::with_capacity(message.as_received().len());
    for line in prepended.split_inclusive(|&byte| byte == b'\n') {
        let is = |name: &str| line.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name.as_bytes()));
        if is("Return-Path:") {
            bytes.extend_from_slice(line);
        } else if is("Delivered-To:") {
            bytes.extend_from_slice(format!("Delivered-To: {}\r\n", copy.recipient).as_bytes());
        }
    }
    bytes.extend_from_slice(body);
    // Nothing that identifies a message is in these lines; and it is not empty.
    Message::receive(bytes).unwrap_or(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::LockName;

    #[test]
    fn lines_for_another_recipient_are_not_told() {
        let told = |lines: &str| {
            let message = Message::receive(format!("{lines}Subject: x\r\n\r\nx\r\n").into_bytes()).unwrap();
            let copy = RecordedCopy {
                message: 1,
                identity: *message.identity(),
                lock: LockName::new("maildrop", b"<1@x>"),
                message_id: "<1@x>".into(),
                sender: String::new(),
                subject: None,
                recorded_at: 0,
                role: Role::Recipient,
                user: "doug".into(),
                mailbox: "INBOX".into(),
                recipient: "doug@x".into(),
                placement: None,
                reason: None,
            };
            let bytes = addressed(message, &copy).as_received().to_vec();
            String::from_utf8(bytes).unwrap().split_once("Subject:").unwrap().0.to_owned()
        };
        let own = "Return-Path: <>\r\nX-Original-To: all@x\r\nDelivered-To: Doug@x\r\n";
        assert_eq!(told(own), own);
        assert_eq!(told("X-Original-To: doug@x\r\n"), "X-Original-To: doug@x\r\n");
        assert_eq!(told("X-Original-To: scuba@x\r\nDelivered-To: scuba@x\r\n"), "Delivered-To: doug@x\r\n");
        // Mail to doug goes to scuba, too.
        assert_eq!(told("X-Original-To: doug@x\r\nDelivered-To: scuba@x\r\n"), "Delivered-To: doug@x\r\n");
        // What stands further down came with the message, and says nothing of whose lines those at the top are.
        let further_down = "X-Original-To: scuba@x\r\nReceived: from x\r\nDelivered-To: doug@x\r\n";
        assert_eq!(told(further_down), "Received: from x\r\nDelivered-To: doug@x\r\n");
    }
}
