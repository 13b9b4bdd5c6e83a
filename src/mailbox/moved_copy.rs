//! Looks for a copy that is not where the ledger has it.

use super::{FoundCopy, Mailbox, MailboxError, Matching, Placement, Position, Wanted};
use crate::message::message_id_for_search;
use time::OffsetDateTime;

/// Looks for a copy in all of a mailbox, which may have been renumbered, restored from a backup, or put together by hand.
///
/// `wanted.since` does not count. Where there are UIDs and a Message-ID that servers can be asked for, what is at or above the recorded place is compared
/// first, message by message: a SEARCH by header may be answered from an index that has not seen the newest ones. Then the
/// server is asked for the Message-ID, and what it names is compared. Otherwise all that arrived since `wanted.not_before` is.
pub fn look_everywhere(
    mailbox: &mut dyn Mailbox,
    wanted: &Wanted<'_>,
    recorded: Option<Placement>,
    has_uids: bool,
) -> Result<Vec<FoundCopy>, MailboxError> {
    let wanted = Wanted { since: None, matching: Matching::Identity, ..*wanted };
    if !has_uids || wanted.message_id.and_then(message_id_for_search).is_none() {
        return Ok(mailbox.find(&wanted)?.copies);
    }
    let from = |at: Placement| Position { uid_validity: at.uid_validity, uid_next: at.uid };
    if let Some(at) = recorded {
        let found = mailbox.find(&Wanted { since: Some(from(at)), ..wanted })?;
        if found.in_range && !found.copies.is_empty() {
            return Ok(found.copies);
        }
    }
    let by_id = Wanted { matching: Matching::MessageId, not_before: OffsetDateTime::UNIX_EPOCH, ..wanted };
    let lowest = mailbox.find(&by_id)?.copies.iter().filter_map(|copy| copy.placement).min_by_key(|at| at.uid);
    match lowest {
        Some(at) => Ok(mailbox.find(&Wanted { since: Some(from(at)), ..wanted })?.copies),
        None => Ok(Vec::new()),
    }
}
