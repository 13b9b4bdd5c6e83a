//! Searches for a copy that is not at its recorded place.

use super::{FoundCopy, Mailbox, MailboxError, Matching, Placement, Position, Wanted};
use crate::message::message_id_for_search;
use time::OffsetDateTime;

/// Searches a whole mailbox, which may have been renumbered, restored from a backup, or assembled manually.
///
/// `wanted.since` is ignored. With UIDs and a searchable Message-ID, the messages from `recorded` on are compared first,
/// because the index for a SEARCH by header may lack the newest. Then the server searches for the Message-ID, and the
/// messages from its first result on are compared.
///
/// Otherwise all messages that arrived since `wanted.not_before` are compared.
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
