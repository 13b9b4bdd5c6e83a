//! One mailbox: the copies that the ledger has in it, and what is really there.

use crate::database::DatabaseError;
use crate::ledger::Database;
use crate::ledger::recorded::{self, DeliveredCopy, RecordedCopy};
use crate::mailbox::{Listed, MailboxError, MailboxFailure, Placement, Position, Presence, Reading, Recorded};
use crate::message::{Identity, message_id_for_search};
use crate::operations::audit::{Gone, Twice};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// How many copies are asked about at a time.
const PAGE: usize = 500;

/// What was found.
#[derive(Default)]
pub(crate) struct InMailbox {
    pub gone: Vec<(RecordedCopy, Gone)>,
    pub twice: Vec<Twice>,
}

/// Looks at one mailbox. The inner error is the database's, which ends the audit.
pub(crate) fn look(
    database: &mut dyn Database,
    mailbox: &mut dyn Reading,
    name: (&str, &str),
    copies: &[DeliveredCopy],
) -> Result<Result<InMailbox, DatabaseError>, MailboxError> {
    let position = match mailbox.presence(&[]) {
        Ok(seen) => Ok(seen.position),
        Err(error) if error.failure == MailboxFailure::NoSuchMailbox => Err(Gone::NoMailbox),
        Err(error) => return Err(error),
    };
    let list = match position {
        Ok(Some(position)) => List::read(mailbox, position, copies)?,
        Ok(None) | Err(_) => List::default(),
    };
    let (mut found, mut contents) = (InMailbox::default(), Contents::default());
    for page in copies.chunks(PAGE) {
        let page = match recorded::of_mailbox(database, name, page) {
            Ok(page) => page,
            Err(error) => return Ok(Err(error)),
        };
        let asked: Vec<Recorded<'_>> = page.iter().map(RecordedCopy::recorded).collect();
        let presences = match position {
            Ok(_) => mailbox.presence(&asked)?.copies,
            Err(_) => vec![Presence::Gone; page.len()],
        };
        for (copy, presence) in page.into_iter().zip(presences) {
            let gone = match position {
                Ok(position) => why(mailbox, position, (&list, &mut contents), &copy, presence)?,
                Err(gone) => Some(gone),
            };
            if let Some(gone) = gone {
                found.gone.push((copy, gone));
                continue;
            }
            let others = list.others(&copy);
            if let Some(keep) = copy.placement.filter(|_| !others.is_empty()) {
                // What the ledger has as a copy of its own, in another role, is none too many.
                let known = match recorded::of_message(database, copy.message) {
                    Ok(known) => known,
                    Err(error) => return Ok(Err(error)),
                };
                let is_known = |at: &Placement| {
                    known.iter().any(|k| (k.user.as_str(), k.mailbox.as_str()) == name && k.placement == Some(*at))
                };
                let is_told = |at: &Placement| found.twice.iter().any(|twice| twice.extra == *at);
                let extras = others.into_iter().filter(|at| !is_known(at) && !is_told(at)).collect();
                found.twice.extend(twice(mailbox, &mut contents, &copy, keep, extras)?);
            }
        }
    }
    taken_out_before(&mut found.gone);
    Ok(Ok(found))
}

/// A mailbox that came through a change of its UIDVALIDITY, or out of a backup, with one copy has all that was in it when
/// that one came: what is missing of the older ones was taken out before, by its owner.
fn taken_out_before(gone: &mut [(RecordedCopy, Gone)]) {
    let mut newest: HashMap<u32, u32> = HashMap::new();
    for (copy, why) in gone.iter() {
        if let (Gone::Renumbered(_), Some(at)) = (why, copy.placement) {
            let newest = newest.entry(at.uid_validity).or_default();
            *newest = at.uid.max(*newest);
        }
    }
    for (copy, why) in gone {
        let before = |at: Placement| newest.get(&at.uid_validity).is_some_and(|newest| at.uid < *newest);
        if *why == Gone::NewMailbox && copy.placement.is_some_and(before) {
            *why = Gone::Removed;
        }
    }
}

/// Why a copy is not where it should be; `None` if it is.
fn why(
    mailbox: &mut dyn Reading,
    position: Option<Position>,
    (list, contents): (&List, &mut Contents),
    copy: &RecordedCopy,
    presence: Presence,
) -> Result<Option<Gone>, MailboxError> {
    match presence {
        Presence::There | Presence::MarkedDeleted => {
            if !list.shows_another_message(copy) {
                return Ok(None);
            }
            // The list goes by Message-IDs; the bytes decide.
            let there = copy.placement.map(|at| contents.of(mailbox, copy, at)).transpose()?.flatten();
            if there.is_none_or(|there| there.identity == copy.identity) {
                return Ok(None);
            }
            Ok(Some(elsewhere(mailbox, list, contents, copy)?.map_or(Gone::OlderMailbox, Gone::Elsewhere)))
        }
        Presence::Gone => {
            let older = match (position, copy.placement) {
                (Some(position), Some(at)) => at.uid >= position.uid_next,
                _ => false,
            };
            let otherwise = if older { Gone::OlderMailbox } else { Gone::Removed };
            Ok(Some(elsewhere(mailbox, list, contents, copy)?.map_or(otherwise, Gone::Elsewhere)))
        }
        Presence::Renumbered => {
            let now = copy.whereabouts(mailbox, position.is_some())?.flatten();
            Ok(Some(now.map_or(Gone::NewMailbox, Gone::Renumbered)))
        }
        Presence::Unplaced => {
            let now = copy.whereabouts(mailbox, position.is_some())?;
            Ok(now.is_none().then_some(Gone::Removed))
        }
    }
}

/// Where else in the list the copy is.
fn elsewhere(
    mailbox: &mut dyn Reading,
    list: &List,
    contents: &mut Contents,
    copy: &RecordedCopy,
) -> Result<Option<Placement>, MailboxError> {
    for at in list.named(message_name(&copy.message_id)) {
        if contents.of(mailbox, copy, at)?.is_some_and(|there| there.identity == copy.identity) {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// Those of `extras` that are the same message as the copy that is kept.
fn twice(
    mailbox: &mut dyn Reading,
    contents: &mut Contents,
    copy: &RecordedCopy,
    keep: Placement,
    extras: Vec<Placement>,
) -> Result<Vec<Twice>, MailboxError> {
    let mut twice = Vec::new();
    if extras.is_empty() {
        return Ok(twice);
    }
    let Some(kept) = contents.of(mailbox, copy, keep)?.filter(|kept| kept.identity == copy.identity) else {
        return Ok(twice);
    };
    for extra in extras {
        if let Some(there) = contents.of(mailbox, copy, extra)?.filter(|there| there.identity == copy.identity) {
            twice.push(Twice { copy: copy.clone(), keep, extra, same_bytes: there.bytes == kept.bytes });
        }
    }
    Ok(twice)
}

/// What messages that share a name were found to be: among a thousand of one Message-ID each is read once, and not once for each
/// other. What is taken out is read again before that.
#[derive(Default)]
struct Contents(HashMap<u32, Option<Content>>);

/// A message, in sixty-four bytes.
#[derive(Clone, Copy)]
struct Content {
    identity: Identity,
    /// SHA-256 of all of it.
    bytes: [u8; 32],
}

impl Contents {
    /// What is there; under the UIDVALIDITY of the [`List`]. `None` if nothing is any more.
    fn of(
        &mut self,
        mailbox: &mut dyn Reading,
        copy: &RecordedCopy,
        at: Placement,
    ) -> Result<Option<Content>, MailboxError> {
        if let Some(known) = self.0.get(&at.uid) {
            return Ok(*known);
        }
        let bytes = mailbox.read(&Recorded { placement: Some(at), ..copy.recorded() })?;
        let content =
            bytes.map(|bytes| Content { identity: Identity::of(&bytes), bytes: Sha256::digest(&bytes).into() });
        self.0.insert(at.uid, content);
        Ok(content)
    }
}

/// What arrived in the mailbox since the first of the copies in question: UIDs, and what they are called, twice over. Thirty-two
/// bytes for each message.
#[derive(Default)]
struct List {
    uid_validity: u32,
    by_uid: Vec<(u32, u64)>,
    by_name: Vec<(u64, u32)>,
}

impl List {
    fn read(mailbox: &mut dyn Reading, position: Position, copies: &[DeliveredCopy]) -> Result<Self, MailboxError> {
        let placed = copies.iter().filter_map(|copy| {
            let at = copy.placement.filter(|at| at.uid_validity == position.uid_validity)?;
            Some(copy.lowest.map_or(at.uid, |lowest| lowest.min(at.uid)))
        });
        let mut list = Self { uid_validity: position.uid_validity, ..Self::default() };
        let Some(lowest) = placed.min() else { return Ok(list) };
        mailbox.list(Position { uid_next: lowest, ..position }, &mut |listed: Listed| {
            // On its way out: its owner has dealt with it.
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

    /// Whether the message at the copy's place bears another Message-ID. Only of one that every store has as we have it.
    fn shows_another_message(&self, copy: &RecordedCopy) -> bool {
        let there = copy.placement.and_then(|at| self.name_of(at.uid));
        let plain = message_id_for_search(&copy.message_id).is_some();
        plain && there.is_some_and(|there| there != message_name(&copy.message_id))
    }

    /// Where else there is something of the same name as what is at the copy's place.
    fn others(&self, copy: &RecordedCopy) -> Vec<Placement> {
        let Some(at) = copy.placement.filter(|at| at.uid_validity == self.uid_validity) else { return Vec::new() };
        let Some(name) = self.name_of(at.uid) else { return Vec::new() };
        self.named(name).into_iter().filter(|other| *other != at).collect()
    }
}

/// A Message-ID (or a size, where there is none) in eight bytes. Two may meet: what bears a name is always compared by its
/// bytes.
fn named(what: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// The ledger's Message-ID, as a list names it.
fn message_name(message_id: &str) -> u64 {
    let stored: Vec<u8> = message_id.bytes().map(|byte| if byte.is_ascii() { byte } else { b'X' }).collect();
    named(stored.as_slice())
}
