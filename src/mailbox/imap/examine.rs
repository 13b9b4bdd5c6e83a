//! Reads an IMAP mailbox with EXAMINE and BODY.PEEK, which change neither `\Seen` nor `\Recent` (RFC 3501 sections 6.3.2 and
//! 6.4.5).

use super::mailbox::{ImapMailbox, Selected, UIDS_PER_FETCH};
use super::message_id_match;
use crate::imap::argument::Command;
use crate::mailbox::{
    Listed, MailboxError, MailboxFailure, MailboxPresence, Position, Presence, ReadableMailbox, Recorded,
};
use std::collections::BTreeMap;

/// How many UIDs one SEARCH covers. The answer is one line, and [`wire`](crate::imap::wire) limits the length of a line.
const UIDS_PER_SEARCH: u32 = 50_000;

/// A sequence set such as `1:3,7`, from UIDs in ascending order.
fn sequence_set(uids: &[u32]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &uid in uids {
        match ranges.last_mut() {
            Some((_, last)) if uid <= last.saturating_add(1) => *last = uid,
            _ => ranges.push((uid, uid)),
        }
    }
    let range = |(first, last)| if first == last { format!("{first}") } else { format!("{first}:{last}") };
    ranges.into_iter().map(range).collect::<Vec<_>>().join(",")
}

impl ImapMailbox {
    /// Some servers say NO without a code for a missing mailbox (Cyrus 3.10): then LIST decides.
    fn examine(&mut self, doing: &str) -> Result<Selected, MailboxError> {
        let error = match self.select("EXAMINE", doing) {
            Err(error) if error.failure == MailboxFailure::Refused => error,
            examined => return examined,
        };
        let missing = !self.is_listed(doing)?;
        Err(if missing { MailboxError { failure: MailboxFailure::NoSuchMailbox, ..error } } else { error })
    }
}

impl ReadableMailbox for ImapMailbox {
    fn presence(&mut self, copies: &[Recorded<'_>]) -> Result<MailboxPresence, MailboxError> {
        let doing = self.doing("looking which copies are in");
        let selected = self.examine(&doing)?;
        let uid_validity = selected.uid_validity;
        let uid = |copy: &Recorded<'_>| copy.placement.filter(|at| at.uid_validity == uid_validity).map(|at| at.uid);
        let mut uids: Vec<u32> = copies.iter().filter_map(uid).collect();
        uids.sort_unstable();
        uids.dedup();
        let mut there = BTreeMap::new();
        if !selected.empty {
            for uids in uids.chunks(UIDS_PER_FETCH) {
                self.fetch(&doing, &sequence_set(uids), 1, "(FLAGS)", &mut |fetched| {
                    there.insert(fetched.uid, fetched.deleted.unwrap_or(false));
                })?;
            }
        }
        let presence = |copy: &Recorded<'_>| match copy.placement {
            None => Presence::Unplaced,
            Some(at) if at.uid_validity != uid_validity => Presence::Renumbered,
            Some(at) => match there.get(&at.uid) {
                Some(false) => Presence::There,
                Some(true) => Presence::MarkedDeleted,
                None => Presence::Gone,
            },
        };
        let position = selected.uid_next.map(|uid_next| Position { uid_validity, uid_next });
        Ok(MailboxPresence { position, copies: copies.iter().map(presence).collect() })
    }

    fn read(&mut self, copy: &Recorded<'_>) -> Result<Option<Vec<u8>>, MailboxError> {
        let Some(at) = copy.placement else { return Ok(None) };
        let doing = self.doing("reading a message of");
        let selected = self.examine(&doing)?;
        if selected.uid_validity != at.uid_validity {
            return Ok(None);
        }
        let mut bytes = None;
        self.fetch(&doing, &at.uid.to_string(), at.uid, "(BODY.PEEK[])", &mut |fetched| {
            if fetched.uid == at.uid {
                bytes = fetched.body.or(bytes.take());
            }
        })?;
        Ok(bytes)
    }

    fn list(&mut self, since: Position, take: &mut dyn FnMut(Listed)) -> Result<(), MailboxError> {
        let doing = self.doing("listing messages of");
        let selected = self.examine(&doing)?;
        if selected.uid_validity != since.uid_validity || selected.empty {
            return Ok(());
        }
        let mut lowest = since.uid_next;
        // Messages that arrive meanwhile are not listed.
        while let Some(uid_next) = selected.uid_next.filter(|uid_next| lowest < *uid_next) {
            let highest = (uid_next - 1).min(lowest.saturating_add(UIDS_PER_SEARCH - 1));
            let mut uids =
                self.searched(&doing, &Command::new("UID SEARCH").word("UID").word(&format!("{lowest}:{highest}")))?;
            uids.retain(|uid| (lowest..=highest).contains(uid));
            uids.sort_unstable();
            for uids in uids.chunks(UIDS_PER_FETCH) {
                // The whole header, because a single field may come from a wrong cache: see `candidates`.
                let items = "(FLAGS RFC822.SIZE BODY.PEEK[HEADER])";
                let mut listed = BTreeMap::new();
                self.fetch(&doing, &sequence_set(uids), lowest, items, &mut |fetched| {
                    let Some(header) = fetched.body else { return };
                    listed.insert(
                        fetched.uid,
                        Listed {
                            uid: fetched.uid,
                            deleted: fetched.deleted.unwrap_or(false),
                            size: fetched.size.unwrap_or(0),
                            message_id: message_id_match::message_id(&header),
                        },
                    );
                })?;
                listed.into_values().for_each(&mut *take);
            }
            lowest = highest.saturating_add(1);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::sequence_set;

    #[test]
    fn neighbours_are_written_as_a_range() {
        for (uids, set) in [
            (&[7][..], "7"),
            (&[1, 2, 3], "1:3"),
            (&[1, 3, 4, 9, 9, 10], "1,3:4,9:10"),
            (&[4_294_967_294, 4_294_967_295], "4294967294:4294967295"),
        ] {
            assert_eq!(sequence_set(uids), set);
        }
    }
}
