//! Compares one mailbox with the copies that the ledger has in it.

use super::{DuplicatedCopy, NotInPlace};
use crate::database::DatabaseError;
use crate::ledger::Database;
use crate::ledger::audit_queries::{self, DeliveredCopy, RecordedCopy};
use crate::mailbox::{Listed, MailboxError, MailboxFailure, Placement, Position, Presence, ReadableMailbox, Recorded};
use crate::message::{Identity, filtered, message_id_for_search};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use thiserror::Error;

/// The number of copies in one query.
const PAGE: usize = 500;

#[derive(Default)]
pub(super) struct InMailbox {
    pub(super) gone: Vec<(RecordedCopy, NotInPlace)>,
    pub(super) twice: Vec<DuplicatedCopy>,
}

/// Why a mailbox could not be compared.
#[derive(Debug, Error)]
pub(super) enum LookError {
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error(transparent)]
    Mailbox(#[from] MailboxError),
}

/// Compares the mailbox of this user and name.
pub(super) fn look(
    database: &mut dyn Database,
    mailbox: &mut dyn ReadableMailbox,
    name: (&str, &str),
    copies: &[DeliveredCopy],
) -> Result<InMailbox, LookError> {
    let mut found = InMailbox::default();
    let position = match mailbox.presence(&[]) {
        Ok(seen) => seen.position,
        Err(error) if error.failure == MailboxFailure::NoSuchMailbox => {
            for page in copies.chunks(PAGE) {
                let page = audit_queries::of_mailbox(database, name, page)?;
                found.gone.extend(page.into_iter().map(|copy| (copy, NotInPlace::NoMailbox)));
            }
            return Ok(found);
        }
        Err(error) => return Err(error.into()),
    };
    let list = position.map(|position| List::read(mailbox, position, copies)).transpose()?.unwrap_or_default();
    let mut compared = Compared { mailbox, position, list, contents: HashMap::new() };
    for page in copies.chunks(PAGE) {
        let page = audit_queries::of_mailbox(database, name, page)?;
        let asked: Vec<Recorded<'_>> = page.iter().map(RecordedCopy::recorded).collect();
        let presences = compared.mailbox.presence(&asked)?.copies;
        for (copy, presence) in page.into_iter().zip(presences) {
            if let Some(gone) = compared.why_gone(&copy, presence)? {
                found.gone.push((copy, gone));
                continue;
            }
            let mut others = compared.list.others(&copy);
            let (Some(keep), false) = (copy.placement, others.is_empty()) else { continue };
            // A copy that the ledger has in another role is no duplicate.
            let known = audit_queries::of_message(database, copy.message)?;
            others.retain(|at| {
                let is_it =
                    |k: &RecordedCopy| (k.user.as_str(), k.mailbox.as_str()) == name && k.placement == Some(*at);
                !known.iter().any(is_it) && !found.twice.iter().any(|twice| twice.extra == *at)
            });
            compared.add_twice(&copy, keep, others, &mut found.twice)?;
        }
    }
    taken_out_before(&mut found.gone);
    Ok(found)
}

/// A mailbox may have kept one copy through a change of its UIDVALIDITY, or got it back from a backup. Such a mailbox has
/// everything that it contained when that copy arrived. So the owner removed the missing older copies before.
fn taken_out_before(gone: &mut [(RecordedCopy, NotInPlace)]) {
    let mut newest: HashMap<u32, u32> = HashMap::new();
    for (copy, why) in gone.iter() {
        if let (NotInPlace::Renumbered(_), Some(at)) = (why, copy.placement) {
            let newest = newest.entry(at.uid_validity).or_default();
            *newest = at.uid.max(*newest);
        }
    }
    for (copy, why) in gone {
        let before = |at: Placement| newest.get(&at.uid_validity).is_some_and(|newest| at.uid < *newest);
        if *why == NotInPlace::NewMailbox && copy.placement.is_some_and(before) {
            *why = NotInPlace::Removed;
        }
    }
}

/// A mailbox that is being compared.
struct Compared<'a> {
    mailbox: &'a mut dyn ReadableMailbox,
    /// `None` in a store without UIDs.
    position: Option<Position>,
    list: List,
    /// The contents by UID, so that each of a thousand messages with one Message-ID is read once. `None` if the message is gone.
    /// Before a copy is removed, it is read a second time.
    contents: HashMap<u32, Option<Content>>,
}

#[derive(Clone, Copy)]
struct Content {
    identity: Identity,
    /// SHA-256 of the message's [filtered form](filtered).
    bytes: [u8; 32],
}

impl Compared<'_> {
    /// Why a copy is not at its recorded place; `None` if it is.
    fn why_gone(&mut self, copy: &RecordedCopy, presence: Presence) -> Result<Option<NotInPlace>, MailboxError> {
        let otherwise = match presence {
            Presence::There | Presence::MarkedDeleted => {
                // The list compares only Message-IDs, so the bytes decide.
                let is_other = self.list.shows_another_message(copy)
                    && match copy.placement {
                        Some(at) => self.content(copy, at)?.is_some_and(|there| there.identity != copy.identity),
                        None => false,
                    };
                if !is_other {
                    return Ok(None);
                }
                NotInPlace::OlderMailbox
            }
            Presence::Gone => match (self.position, copy.placement) {
                (Some(position), Some(at)) if at.uid >= position.uid_next => NotInPlace::OlderMailbox,
                _ => NotInPlace::Removed,
            },
            Presence::Renumbered => {
                let now = copy.locate(self.mailbox, self.position.is_some())?.flatten();
                return Ok(Some(now.map_or(NotInPlace::NewMailbox, NotInPlace::Renumbered)));
            }
            Presence::Unplaced => {
                let now = copy.locate(self.mailbox, self.position.is_some())?;
                return Ok(now.is_none().then_some(NotInPlace::Removed));
            }
        };
        for at in self.list.named(message_name(&copy.message_id)) {
            if self.content(copy, at)?.is_some_and(|there| there.identity == copy.identity) {
                return Ok(Some(NotInPlace::Elsewhere(at)));
            }
        }
        Ok(Some(otherwise))
    }

    /// Adds those of `others` that are the same message as the copy at `keep`.
    fn add_twice(
        &mut self,
        copy: &RecordedCopy,
        keep: Placement,
        others: Vec<Placement>,
        twice: &mut Vec<DuplicatedCopy>,
    ) -> Result<(), MailboxError> {
        let is_it = |content: &Content| content.identity == copy.identity;
        for extra in others {
            let Some(kept) = self.content(copy, keep)?.filter(is_it) else { break };
            if let Some(there) = self.content(copy, extra)?.filter(is_it) {
                twice.push(DuplicatedCopy { copy: copy.clone(), keep, extra, same: there.bytes == kept.bytes });
            }
        }
        Ok(())
    }

    /// The content at this place; `None` if no message is there any more.
    fn content(&mut self, copy: &RecordedCopy, at: Placement) -> Result<Option<Content>, MailboxError> {
        if let Some(known) = self.contents.get(&at.uid) {
            return Ok(*known);
        }
        let bytes = self.mailbox.read(&Recorded { placement: Some(at), ..copy.recorded() })?;
        let content = bytes
            .map(|bytes| Content { identity: Identity::of(&bytes), bytes: Sha256::digest(filtered(bytes)).into() });
        self.contents.insert(at.uid, content);
        Ok(content)
    }
}

/// The messages that have arrived in the mailbox since the first of the copies: UIDs and names, sorted by each. Each message
/// takes 32 bytes.
#[derive(Default)]
struct List {
    uid_validity: u32,
    by_uid: Vec<(u32, u64)>,
    by_name: Vec<(u64, u32)>,
}

impl List {
    fn read(
        mailbox: &mut dyn ReadableMailbox,
        position: Position,
        copies: &[DeliveredCopy],
    ) -> Result<Self, MailboxError> {
        let placed = copies.iter().filter_map(|copy| {
            let at = copy.placement.filter(|at| at.uid_validity == position.uid_validity)?;
            Some(copy.lowest.map_or(at.uid, |lowest| lowest.min(at.uid)))
        });
        let mut list = Self { uid_validity: position.uid_validity, ..Self::default() };
        let Some(lowest) = placed.min() else { return Ok(list) };
        mailbox.list(Position { uid_next: lowest, ..position }, &mut |listed: Listed| {
            // A message that the mailbox's owner has marked as deleted does not count.
            if !listed.deleted {
                let name = listed.message_id.as_deref().map_or_else(|| named(&listed.size), named);
                list.by_uid.push((listed.uid, name));
            }
        })?;
        list.by_name = list.by_uid.iter().map(|(uid, name)| (*name, *uid)).collect();
        list.by_name.sort_unstable();
        Ok(list)
    }

    fn name_of(&self, uid: u32) -> Option<u64> {
        let at = self.by_uid.binary_search_by_key(&uid, |(uid, _)| *uid).ok()?;
        self.by_uid.get(at).map(|(_, name)| *name)
    }

    fn at(&self, uid: u32) -> Placement {
        Placement { uid_validity: self.uid_validity, uid }
    }

    fn named(&self, name: u64) -> Vec<Placement> {
        let first = self.by_name.partition_point(|(other, _)| *other < name);
        let same = self.by_name.iter().skip(first).take_while(|(other, _)| *other == name);
        same.map(|(_, uid)| self.at(*uid)).collect()
    }

    /// Whether the message at the copy's UID has another Message-ID. Only Message-IDs that every store returns unchanged can show
    /// that.
    fn shows_another_message(&self, copy: &RecordedCopy) -> bool {
        let there = copy.placement.and_then(|at| self.name_of(at.uid));
        let plain = message_id_for_search(&copy.message_id).is_some();
        plain && there.is_some_and(|there| there != message_name(&copy.message_id))
    }

    /// The other places of messages with the same name as the one at the copy's UID.
    fn others(&self, copy: &RecordedCopy) -> Vec<Placement> {
        let Some(at) = copy.placement.filter(|at| at.uid_validity == self.uid_validity) else { return Vec::new() };
        let Some(name) = self.name_of(at.uid) else { return Vec::new() };
        self.named(name).into_iter().filter(|other| *other != at).collect()
    }
}

/// A Message-ID (or the size of a message without one) as a hash of eight bytes. Hashes may collide, so the bytes of the messages
/// are always compared too.
fn named(what: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// The hash of the ledger's Message-ID in the spelling that a list has: Cyrus stores X for each byte beyond ASCII.
fn message_name(message_id: &str) -> u64 {
    let stored: Vec<u8> = message_id.bytes().map(|byte| if byte.is_ascii() { byte } else { b'X' }).collect();
    named(stored.as_slice())
}
