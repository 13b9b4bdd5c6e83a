//! What makes two byte strings the same message.
//!
//! Every copy of one message must get the same identity, from Postfix and, years later, from an IMAP server. Two messages must
//! never share one, even if a stranger has copied the Message-ID. So the identity covers what the author wrote, and nothing that
//! is added or changed in transit:
//!
//! * not covered: Received, Return-Path, Delivered-To, X-Original-To, Authentication-Results, DKIM-Signature, ARC-*,
//!   spam marks, and everything else that is not in `AUTHOR_FIELDS`;
//! * ignored differences: CRLF and LF (a CR never counts), NUL and 0x80, folding and runs of white space in fields, the
//!   order of fields with different names, empty lines at the end of the body, an mbox `From ` line;
//! * also ignored, in fields: the difference between a byte beyond ASCII and `X`. Cyrus stores the one as the other
//!   (imapd.conf(5): `munge8bit`, on by default; seen on 3.10).
//!
//! Messages without a Message-ID or a Date may be equal in everything that their author wrote: "Backup done", every night,
//! from a printer or a power supply. For these messages alone, the identity covers the Received fields as well. All copies
//! of one queue file have the same Received fields, and two messages never do. Such a message that is sent in two
//! transactions counts as two: a second copy is better than none.
//!
//! Received fields that pickup(8) puts on top of others are not covered. `postsuper -r` adds one when it requeues a message,
//! which some recipients may have already.
//!
//! The identity begins with the day of the message's Date, so that keys of one time are close together in the ledger's indexes
//! (see `date_field`).
//!
//! The encoding must never change, because ledgers store its digests. The tests pin it.

use super::date_field;
use super::fields::{Field, Fields, relaxed};
use memchr::memchr2;
use sha2::{Digest, Sha256};
use std::fmt;

/// The fields that the author writes: in lower case, sorted.
///
/// Content-Length is not among them: it counts the bytes of one copy, and mail stores add and drop it. Neither are Bcc and
/// Resent-Bcc, which a recipient's copy does not have.
const AUTHOR_FIELDS: [&str; 29] = [
    "cc",
    "content-alternative",
    "content-base",
    "content-description",
    "content-disposition",
    "content-duration",
    "content-features",
    "content-id",
    "content-language",
    "content-location",
    "content-md5",
    "content-transfer-encoding",
    "content-type",
    "date",
    "from",
    "in-reply-to",
    "message-id",
    "mime-version",
    "references",
    "reply-to",
    "resent-cc",
    "resent-date",
    "resent-from",
    "resent-message-id",
    "resent-sender",
    "resent-to",
    "sender",
    "subject",
    "to",
];

/// The digest of what the author wrote: SHA-256 over the author's fields and the body.
///
/// For each name of the author's fields (`AUTHOR_FIELDS`) that occurs: `u32 big-endian length · name · SHA-256 of its values in
/// order`. Each value is relaxed, its bytes beyond ASCII are read as X, and LF ends it.
///
/// If the message has no Message-ID or no Date, the same follows for `received`. Values that begin with `by ` and contain
/// `, from userid ` are left out if another Received field follows.
///
/// Then come a zero `u32` and the body: without CR, with NUL read as 0x80, and without the line ends at its end.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContentDigest([u8; 32]);

impl ContentDigest {
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContentDigest({})", crate::base::hex::encode(&self.0))
    }
}

/// The identity of a message. The first four bytes are the UTC day of the first Date, in days since 1970, big-endian. The
/// day is 0 if the Date cannot be read, or lies before 1990 or after 2100. The first 28 bytes of one SHA-256 follow: over
/// (Message-ID with X for each byte beyond ASCII, digest of what the author wrote), both length-prefixed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity([u8; 32]);

/// A key of the day and the first 28 bytes of `digest`.
#[must_use]
fn by_day(day: [u8; 4], digest: &[u8; 32]) -> [u8; 32] {
    let mut key = [0; 32];
    for (place, byte) in key.iter_mut().zip(day.iter().chain(digest)) {
        *place = *byte;
    }
    key
}

impl Identity {
    /// The identity of any bytes: of a message as it came, or as a mailbox returns it. The time is proportional to their
    /// length.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Essence::of(bytes).identity
    }

    #[must_use]
    pub(crate) fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", crate::base::hex::encode(&self.0))
    }
}

/// The key of a copy: the first four bytes of the message's identity, and the first 28 bytes of a SHA-256. The
/// hash covers the identity, role, user and mailbox; the last three are length-prefixed (four bytes, big-endian).
#[must_use]
pub(crate) fn key_of_copy(identity: &[u8; 32], role: &str, user: &str, mailbox: &str) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(identity);
    for part in [role, user, mailbox] {
        hash_length(&mut hash, part.len());
        hash.update(part.as_bytes());
    }
    let [a, b, c, d, ..] = *identity;
    by_day([a, b, c, d], &hash.finalize().into())
}

/// The results of one pass over a message.
pub(super) struct Essence {
    /// The value of the first Message-ID field, relaxed; `None` if there is none or it is empty.
    pub message_id: Option<Vec<u8>>,
    pub content_digest: ContentDigest,
    pub identity: Identity,
    pub distinguished_by: DistinguishedBy,
}

/// What distinguishes a message from another one with the same text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DistinguishedBy {
    /// Its Message-ID and its Date.
    Author,
    /// Its Received fields, since it lacks one of these.
    Received,
    /// Nothing, since it has no Received field either.
    Nothing,
}

impl Essence {
    pub fn of(bytes: &[u8]) -> Self {
        let mut message_id: Option<Vec<u8>> = None;
        let mut dated = false;
        let mut day: Option<u32> = None;
        let mut received: Option<Sha256> = None;
        // The last Received field of pickup(8), which counts only if no other follows.
        let mut picked_up: Option<Field<'_>> = None;
        // One hasher per name, so that the order of names does not matter and no field is kept for sorting.
        let mut hashers: [Option<Sha256>; AUTHOR_FIELDS.len()] = [const { None }; AUTHOR_FIELDS.len()];
        let mut fields = Fields::of(bytes);
        for field in fields.by_ref() {
            let slot = AUTHOR_FIELDS.iter().position(|name| field.is(name)).and_then(|at| hashers.get_mut(at));
            if let Some(hasher) = slot {
                hash_value(hasher.get_or_insert_default(), &field);
            }
            if message_id.is_none() && field.is("message-id") {
                message_id = Some(field.relaxed_value());
            }
            if field.is("date") {
                dated |= relaxed(field.value).next().is_some();
                day.get_or_insert_with(|| date_field::of_value(relaxed(field.value)));
            }
            if field.is("received") {
                picked_up = Some(field).filter(is_of_pickup);
                if picked_up.is_none() {
                    hash_value(received.get_or_insert_default(), &field);
                }
            }
        }
        if let Some(field) = picked_up {
            hash_value(received.get_or_insert_default(), &field);
        }
        let message_id = message_id.filter(|id| !counts_as_missing(id));
        let received_counts = message_id.is_none() || !dated;
        let distinguished_by = match &received {
            _ if !received_counts => DistinguishedBy::Author,
            Some(_) => DistinguishedBy::Received,
            None => DistinguishedBy::Nothing,
        };
        let received = received.filter(|_| received_counts);
        let mut hash = Sha256::new();
        let names = AUTHOR_FIELDS.iter().chain(&["received"]);
        for (name, hasher) in names.zip(hashers.into_iter().chain([received])) {
            if let Some(hasher) = hasher {
                hash_length(&mut hash, name.len());
                hash.update(name);
                hash.update(hasher.finalize());
            }
        }
        hash_length(&mut hash, 0);
        hash_body(&mut hash, fields.body());
        let content_digest = ContentDigest(hash.finalize().into());

        let mut hash = Sha256::new();
        let id = message_id.as_deref().unwrap_or_default();
        hash_length(&mut hash, id.len());
        // In pieces, because the id may be as long as a message.
        id.chunks(4096).for_each(|piece| hash.update(message_id_as_stored(piece)));
        hash_length(&mut hash, content_digest.0.len());
        hash.update(content_digest.0);
        let day = day.unwrap_or_default().to_be_bytes();
        let identity = Identity(by_day(day, &hash.finalize().into()));
        Self { message_id, content_digest, identity, distinguished_by }
    }
}

/// Whether a Message-ID counts as missing. One lock for all messages with an empty id would make them wait for each other.
pub(super) fn counts_as_missing(id: &[u8]) -> bool {
    id.is_empty() || matches!(id.strip_prefix(b"<").map(<[u8]>::trim_ascii_start), Some([] | [b'>', ..]))
}

/// Whether pickup(8) has added the field (`src/pickup/pickup.c`): `by HOST (Postfix, from userid UID) id QUEUE-ID; DATE`.
fn is_of_pickup(received: &Field<'_>) -> bool {
    let value: Vec<u8> = relaxed(received.value).take(1024).collect();
    value.starts_with(b"by ") && memchr::memmem::find(&value, b", from userid ").is_some()
}

/// A byte of a field as every store has it: Cyrus writes `X` for a byte beyond ASCII.
pub(super) fn as_stored(byte: u8) -> u8 {
    if byte.is_ascii() { byte } else { b'X' }
}

/// A Message-ID as every store has it. Identity and lock use this form, since one message must have one lock.
pub fn message_id_as_stored(id: &[u8]) -> Vec<u8> {
    id.iter().copied().map(as_stored).collect()
}

fn hash_length(hash: &mut Sha256, length: usize) {
    hash.update(u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
}

/// Hashes the value in relaxed form, then LF, which no relaxed value contains. In small pieces, because one field may be the
/// whole message.
fn hash_value(hash: &mut Sha256, field: &Field<'_>) {
    let mut piece = Vec::with_capacity(1024);
    for byte in relaxed(field.value) {
        piece.push(as_stored(byte));
        if piece.len() == 1024 {
            hash.update(&piece);
            piece.clear();
        }
    }
    piece.push(b'\n');
    hash.update(&piece);
}

/// Hashes the body without CR, with NUL read as 0x80, and without the line ends at its end (pipe(8) flag B adds one).
fn hash_body(hash: &mut Sha256, body: &[u8]) {
    let mut rest = body;
    while let [shorter @ .., b'\r' | b'\n'] = rest {
        rest = shorter;
    }
    while let Some(at) = memchr2(b'\r', 0, rest) {
        let (before, after) = rest.split_at_checked(at).unwrap_or((rest, &[]));
        hash.update(before);
        if after.first() == Some(&0) {
            hash.update([0x80]);
        }
        rest = after.get(1..).unwrap_or_default();
    }
    hash.update(rest);
}
