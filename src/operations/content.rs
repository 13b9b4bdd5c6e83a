//! Access to the content of a message, from any store. The content is returned only after the operations log has recorded who
//! requested it.

use super::redelivery::{self, MessageSource, RedeliveryError};
use crate::base::deadline::Deadline;
use crate::base::fair_quota::{FairQuota, Reservation};
use crate::database::{DatabaseError, DatabaseFailure};
use crate::ledger::operations_log::{self, Actor, Affected, Operation};
use crate::ledger::{Database, audit_queries};
use crate::message::{Identity, Message};
use crate::site::Site;
use std::sync::Arc;

/// A request for content: by whom, and for which part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look<'a> {
    pub(crate) actor: Actor<'a>,
    pub(crate) operation: Operation,
    /// The part of the message: `HTML`, `part 2`.
    pub(crate) object: Option<&'a str>,
    /// The memory to read into, and the client whose quota pays for it: a token or a login.
    pub(crate) memory: (&'a Arc<FairQuota>, &'a str),
}

/// The result of a request.
pub(crate) enum ContentResult<T> {
    /// The result, and its memory.
    Shown(T, Reservation),
    /// The ledger has no message with that identity, or the message has no such part.
    Unknown,
    /// There is not enough free memory at the moment. Nothing was read.
    Busy,
    /// The content is not available now. `why` is the reason; `may_pass` says whether a retry may help.
    Unavailable { why: String, may_pass: bool },
}

/// The message takes longer to parse than any legitimate message.
pub(crate) struct TakesTooLong;

/// Applies `of` to the message with this identity, in the form [for display](Message::for_display). `of` returns `None` if the
/// message has no such part. The message comes from the ledger's stored sources or, if `mailboxes` has a deadline, from a
/// mailbox. The operations log records each request, also one that fails.
///
/// # Errors
/// If the database fails, or if the operations log cannot be written. In that case nothing is shown.
pub(crate) fn look<T>(
    site: &Site,
    database: &mut dyn Database,
    identity: &[u8; 32],
    look: Look<'_>,
    mailboxes: Option<Deadline>,
    of: impl FnOnce(Message) -> Result<Option<T>, TakesTooLong>,
) -> Result<ContentResult<T>, DatabaseError> {
    let Some((message, message_id, size)) = audit_queries::message_with(database, identity)? else {
        return Ok(ContentResult::Unknown);
    };
    let (memory, client) = look.memory;
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    let share = memory.take_to_read(client, size);
    if share.is_none() && memory.can_hold(size) {
        return Ok(ContentResult::Busy);
    }
    let wanted = (message, &Identity::from_bytes(*identity));
    let affected = Affected {
        identity: Some(identity),
        message_id: Some(&message_id),
        object: look.object,
        ..Affected::default()
    };
    let Some(share) = share else {
        let why = "it is larger than the memory for messages, a quarter of service.worker_memory";
        operations_log::write(database, look.actor, look.operation, affected, &format!("not shown: {why}"))?;
        return Ok(ContentResult::Unavailable { why: why.into(), may_pass: false });
    };
    let found = match mailboxes {
        Some(deadline) => redelivery::message_and_its_place(site, database, wanted, None, deadline),
        None => from_ledger(database, wanted),
    };
    let mut write =
        |affected, outcome: &str| operations_log::write(database, look.actor, look.operation, affected, outcome);
    match found {
        Ok((message, place)) => {
            let made = match of(message.for_display()) {
                Ok(Some(made)) => made,
                Ok(None) => {
                    write(affected, "not shown: the message has no such part")?;
                    return Ok(ContentResult::Unknown);
                }
                Err(TakesTooLong) => {
                    let why = "it takes too long to read";
                    write(affected, &format!("not shown: {why}"))?;
                    return Ok(ContentResult::Unavailable { why: why.into(), may_pass: true });
                }
            };
            match &place {
                MessageSource::Mailbox { user, mailbox } => {
                    write(Affected { user: Some(user), mailbox: Some(mailbox), ..affected }, "shown")?;
                }
                MessageSource::Ledger => write(affected, "shown, from the ledger's sources")?,
            }
            Ok(ContentResult::Shown(made, share))
        }
        Err(RedeliveryError::Database(error)) => Err(error),
        Err(error) => {
            let may_pass = matches!(error, RedeliveryError::OutOfReach { .. });
            let why = match error {
                RedeliveryError::NoSource(why) | RedeliveryError::OutOfReach { why, .. } => why,
                other => other.to_string(),
            };
            write(affected, &format!("not shown: {why}"))?;
            Ok(ContentResult::Unavailable { why, may_pass })
        }
    }
}

/// Reads the message from the ledger's sources, for callers that may open no mailbox.
fn from_ledger(
    database: &mut dyn Database,
    (message, identity): (i64, &Identity),
) -> Result<(Message, MessageSource), RedeliveryError> {
    let why = match audit_queries::source(database, message) {
        Ok(Some(bytes)) => match Message::receive(bytes).ok().filter(|message| message.identity() == identity) {
            Some(message) => return Ok((message, MessageSource::Ledger)),
            None => "its source in the ledger is another message's",
        },
        Ok(None) => {
            "its source is not kept (record.keep_source), and mailboxes may not be opened here (web.allow_mailbox_access)"
        }
        Err(error) if error.failure == DatabaseFailure::AccessDenied => {
            "mailboxes may not be opened here (web.allow_mailbox_access), and the role in the database may not read the sources that record.keep_source keeps"
        }
        Err(error) => return Err(error.into()),
    };
    Err(RedeliveryError::NoSource(why.into()))
}
