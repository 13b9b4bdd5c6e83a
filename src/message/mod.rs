//! A message: its bytes, what can be read in them, and its identity.
//!
//! Only an empty message is refused. `fields` splits the header, `decode` reads metadata from it, and `identity` decides whether
//! two messages are the same. All of it takes time in proportion to the length of the message.

pub(crate) mod address;
pub mod authentication_results;
mod copy_role;
mod date_field;
mod decode;
mod disclosure;
mod fields;
mod identity;
pub(crate) mod parts;
pub(crate) mod queue_id;
pub(crate) mod reading_budget;

pub(crate) use address::as_stored;
pub use address::{Address, AddressError, EnvelopeSender, Recipient, fold};
pub use copy_role::Role;
pub(crate) use decode::author_in;
pub(crate) use disclosure::shown_sender;
pub(crate) use identity::key_of_copy;
pub use identity::{ContentDigest, Identity, message_id_as_stored};

use decode::{FIELD_LIMIT, Metadata};
use disclosure::ReceivedFields;
use fields::{Field, Fields, without_mbox_line};
use identity::{DistinguishedBy, Essence};
use memchr::{memchr, memchr_iter, memrchr};
use std::borrow::Cow;
use std::time::Duration;
use thiserror::Error;
use time::OffsetDateTime;

/// A message as it was received, ready to be appended to a mailbox.
#[derive(Clone)]
pub struct Message {
    /// With CRLF line ends and no NUL.
    bytes: Vec<u8>,
    /// How many bytes of it pipe(8) prepended for one recipient.
    prepended: usize,
    nul_bytes_replaced: usize,
    message_id: Option<Vec<u8>>,
    message_id_for_people: String,
    content_digest: ContentDigest,
    identity: Identity,
    distinguished_by: DistinguishedBy,
    metadata: Metadata,
}

/// What the file queue has to know about a message before it stores it, read without a copy of its bytes.
pub(crate) struct Outline {
    /// See [`Message::lock_subject`].
    pub(crate) lock_subject: Vec<u8>,
    /// Whether another message with the same text would have the same identity: this one lacks a Message-ID or a Date, and
    /// has no Received field.
    pub(crate) may_be_one_of_many: bool,
    /// See [`Message::from_address`].
    pub(crate) from_address: Option<Address>,
}

impl Outline {
    /// The outline of bytes that [`Message::receive`] would accept.
    ///
    /// # Errors
    /// As for [`Message::receive`].
    pub(crate) fn of(raw: &[u8]) -> Result<Self, MessageError> {
        let bytes = without_mbox_line(raw);
        if bytes.is_empty() {
            return Err(MessageError::Empty);
        }
        let Essence { message_id, content_digest, distinguished_by, .. } = Essence::of(bytes);
        let may_be_one_of_many = distinguished_by == DistinguishedBy::Nothing;
        let lock_subject = message_id.unwrap_or_else(|| generated_message_id(&content_digest).into_bytes());
        Ok(Self { lock_subject, may_be_one_of_many, from_address: Metadata::of(bytes).from_address })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MessageError {
    /// Standard input was empty, or had only an mbox `From ` line.
    #[error("the message is empty")]
    Empty,
}

impl Message {
    /// Reads a message as pipe(8) delivers it.
    ///
    /// An mbox `From ` line at the very top is dropped. Line ends become CRLF, and the last line gets one if it has none. NUL,
    /// which an IMAP literal cannot carry (RFC 3501 section 4.3), becomes 0x80, as in Dovecot. All other bytes stay as they are,
    /// including a bare CR.
    ///
    /// # Errors
    /// [`MessageError::Empty`] if nothing is left. Nothing else is refused, however odd.
    pub fn receive(raw: Vec<u8>) -> Result<Self, MessageError> {
        // Computed before the line ends become CRLF: the identity ignores CR, and hashing is faster without it.
        let Essence { message_id, content_digest, identity, distinguished_by } = Essence::of(without_mbox_line(&raw));
        let (bytes, nul_bytes_replaced) = as_imap_wants_it(raw);
        if bytes.is_empty() {
            return Err(MessageError::Empty);
        }
        let prepended = end_of_prepended_lines(&bytes);
        let message_id_for_people = match &message_id {
            Some(id) => message_id_for_people(id),
            None => generated_message_id(&content_digest),
        };
        let metadata = Metadata::of(bytes.get(prepended..).unwrap_or_default());
        Ok(Self {
            bytes,
            prepended,
            nul_bytes_replaced,
            message_id,
            message_id_for_people,
            content_digest,
            identity,
            distinguished_by,
            metadata,
        })
    }

    /// The recipient's copy: everything that was received.
    #[must_use]
    pub fn as_received(&self) -> &[u8] {
        &self.bytes
    }

    /// The recipient's copy, without a second allocation of that size.
    pub(crate) fn into_received(self) -> Vec<u8> {
        self.bytes
    }

    /// The Sent copy: without the lines Return-Path, X-Original-To and Delivered-To that pipe(8) prepended for one
    /// recipient.
    #[must_use]
    pub fn without_prepended_lines(&self) -> &[u8] {
        self.bytes.get(self.prepended..).unwrap_or_default()
    }

    /// The value of a line that pipe(8) prepended: Return-Path, X-Original-To or Delivered-To. `None` if pipe(8) did not prepend
    /// it: a line of that name further down belongs to the message.
    #[must_use]
    pub(crate) fn prepended_line(&self, name: &str) -> Option<String> {
        let prepended = self.bytes.get(..self.prepended).unwrap_or_default();
        let value = Fields::of(prepended).find(|field| field.is(name))?.relaxed_value();
        Some(decode::tidy(&String::from_utf8_lossy(&value), FIELD_LIMIT, false)).filter(|value| !value.is_empty())
    }

    /// The recipient for whom pipe(8) prepended lines: Delivered-To, or X-Original-To if pipe(8) ran without its flag D.
    #[must_use]
    pub(crate) fn prepended_recipient(&self) -> Option<String> {
        self.prepended_line("Delivered-To").or_else(|| self.prepended_line("X-Original-To"))
    }

    /// The same message without the lines that pipe(8) prepended, for another recipient.
    #[must_use]
    pub(crate) fn for_another_recipient(&self) -> Self {
        let mut other = self.clone();
        other.bytes.drain(..other.prepended);
        other.prepended = 0;
        other
    }

    /// The message for a mailbox whose owner may not have been the recipient of this copy. The message is in the filtered
    /// form, see `disclosure`. The Received fields stay if the identity covers them.
    #[must_use]
    pub fn for_any_recipient(self) -> Self {
        let keep = self.distinguished_by == DistinguishedBy::Received;
        self.filtered(if keep { ReceivedFields::Unchanged } else { ReceivedFields::WithoutRecipients })
    }

    /// The message as it is shown to a person who may see a copy of it. The identity stays that of the message, even if the
    /// filtered bytes would have another one.
    #[must_use]
    pub fn for_display(self) -> Self {
        self.filtered(ReceivedFields::WithoutRecipients)
    }

    /// Whether [`Message::for_any_recipient`] leaves Received fields in it, which may name the recipient for whom the message was
    /// received.
    #[must_use]
    pub(crate) fn keeps_received_for_others(&self) -> bool {
        self.distinguished_by == DistinguishedBy::Received
    }

    fn filtered(mut self, received: ReceivedFields) -> Self {
        disclosure::filter(&mut self.bytes, received);
        self.prepended = 0;
        self
    }

    /// The message with the Message-ID that it had before a mailbox store changed some of its bytes.
    #[must_use]
    pub(crate) fn with_message_id(self, message_id: &str) -> Self {
        Self { message_id: Some(message_id.into()), message_id_for_people: message_id.into(), ..self }
    }

    /// How many NUL bytes became 0x80.
    #[must_use]
    pub(crate) fn nul_bytes_replaced(&self) -> usize {
        self.nul_bytes_replaced
    }

    /// The size as appended for the recipient, in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The identity: the same for every recipient's copy, and for the copy that a mailbox returns.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    #[must_use]
    pub fn content_digest(&self) -> &ContentDigest {
        &self.content_digest
    }

    /// The Message-ID as text for people: with angle brackets, without control characters, at most 998 bytes. `None` if the
    /// message has none.
    #[must_use]
    pub fn message_id(&self) -> Option<&str> {
        self.message_id.as_ref().map(|_| self.message_id_for_people.as_str())
    }

    /// As [`message_id`](Self::message_id), or an id generated from the content if the message has none.
    #[must_use]
    pub fn message_id_for_people(&self) -> &str {
        &self.message_id_for_people
    }

    /// The name of the lock: the Message-ID, or one generated from the content if there is none. It is the same for every
    /// recipient's copy.
    #[must_use]
    pub fn lock_subject(&self) -> &[u8] {
        self.message_id.as_deref().unwrap_or(self.message_id_for_people.as_bytes())
    }

    /// The author's address: the one mailbox of the one From field. `None` if there are several or none, or if the field is odd,
    /// for example with a CR that ends no line.
    #[must_use]
    pub fn from_address(&self) -> Option<&Address> {
        self.metadata.from_address.as_ref()
    }

    /// The first From field, decoded, without control characters, at most 8 kB.
    #[must_use]
    pub fn from(&self) -> Option<&str> {
        self.metadata.from.as_deref()
    }

    /// The first To field, in the same form.
    #[must_use]
    pub fn to(&self) -> Option<&str> {
        self.metadata.to.as_deref()
    }

    /// The first Cc field, in the same form.
    #[must_use]
    pub fn cc(&self) -> Option<&str> {
        self.metadata.cc.as_deref()
    }

    /// The first Subject field, in the same form.
    #[must_use]
    pub fn subject(&self) -> Option<&str> {
        self.metadata.subject.as_deref()
    }

    /// The Date in seconds since 1970, if it can be read and lies between 1970 and 9999.
    #[must_use]
    pub fn date(&self) -> Option<i64> {
        self.metadata.date
    }

    /// The header fields in order, decoded, as a JSON array of `[name, value]`. There are at most 1000 fields and 256 kB; a
    /// last entry with an empty name marks a cut. The fields are in the filtered form (see `disclosure`), because the ledger
    /// keeps one row for all recipients, and none of them may know of a blind copy to another. Each call computes the array.
    #[must_use]
    pub fn headers_json(&self) -> String {
        decode::json(self.without_prepended_lines(), |_| true)
    }

    /// Like [`headers_json`](Self::headers_json), for the fields of these names only.
    #[must_use]
    pub(crate) fn headers_json_of(&self, names: &[&str]) -> String {
        decode::json(self.without_prepended_lines(), |field| names.iter().any(|name| field.is(name)))
    }

    /// The topmost field of this name, prepended lines included: unfolded, nothing decoded. `None` if there is none, or if its
    /// value is empty or longer than 8 kB.
    #[must_use]
    pub fn topmost(&self, name: &str) -> Option<String> {
        let value = Fields::of(&self.bytes).find(|field| field.is(name))?.relaxed_value();
        let value = if value.len() > FIELD_LIMIT { return None } else { String::from_utf8_lossy(&value) };
        Some(decode::tidy(&value, usize::MAX, false)).filter(|value| !value.is_empty())
    }

    /// The age of the message at `now`, by its topmost Received field: the Postfix whose queue holds the message wrote it.
    /// `None` if there is no such field, if it cannot be read, or if its time is in the future.
    #[must_use]
    pub fn came_before(&self, now: OffsetDateTime) -> Option<Duration> {
        let field = Fields::of(&self.bytes).find(|field| field.is("Received"))?;
        let came = date_field::of_received(field.value)?;
        now.unix_timestamp().checked_sub(came).and_then(|age| u64::try_from(age).ok()).map(Duration::from_secs)
    }

    /// Whether the topmost Authentication-Results field of this site vouches for the domain of [`Message::from_address`]. Only
    /// fields of this site's own filter count: the border must delete forged ones (RFC 8601 section 5).
    ///
    /// A domain that folding changes is never vouched for. A domain with ß may belong to a stranger (RFC 5892 appendix B.1 allows
    /// it), but it is [folded](fold) to the one with ss.
    #[must_use]
    pub fn authentication_results(&self, authserv_id: &str) -> authentication_results::Vouched {
        use authentication_results::{Vouched, dmarc};
        let Some(from) = self.from_address() else {
            return Vouched::No(Cow::Borrowed("there is not exactly one From address"));
        };
        if fold(from.domain()) != from.domain().to_lowercase() {
            return Vouched::No(Cow::Borrowed("the author's domain is looked up as another one, since it is folded"));
        }
        let fields = Fields::of(&self.bytes).filter(|field| field.is("Authentication-Results"));
        let values = fields.map(|field| (!field.has_bare_cr()).then(|| field.relaxed_value()));
        dmarc(values, authserv_id, from.domain())
    }
}

/// The length in bytes at which a Message-ID as text is cut: the longest line of RFC 5322 section 2.1.1.
const MESSAGE_ID_LIMIT: usize = 998;
/// The longest Message-ID to search for, in bytes: servers limit the length of a command line.
const LONGEST_SEARCHED: usize = 500;

/// A message as a mailbox returns it, reduced to what everyone with a copy may see: see `disclosure`.
#[must_use]
pub(crate) fn filtered(mut bytes: Vec<u8>) -> Vec<u8> {
    disclosure::filter(&mut bytes, ReceivedFields::WithoutRecipients);
    bytes
}

/// The values of Bcc and Resent-Bcc of a message as a mailbox returns it: relaxed, in order. The identity does not cover
/// them.
#[must_use]
pub(crate) fn blind_recipients(bytes: &[u8]) -> Vec<Vec<u8>> {
    let are_blind = |field: &Field<'_>| field.is("bcc") || field.is("resent-bcc");
    Fields::of(bytes).filter(are_blind).map(|field| field.relaxed_value()).collect()
}

/// These bytes of a Message-ID in the form of [`Message::message_id`].
#[must_use]
pub(crate) fn message_id_for_people(id: &[u8]) -> String {
    decode::tidy(&String::from_utf8_lossy(id), MESSAGE_ID_LIMIT, false)
}

/// The Message-ID in a header, unfolded and trimmed, with no byte lost. Nothing else is read: a mailbox may return thousands of
/// headers, and an attacker may have made them slow to read.
#[must_use]
pub(crate) fn message_id_in(header: &[u8]) -> Option<Vec<u8>> {
    let id = Fields::of(without_mbox_line(header)).find(|field| field.is("message-id"))?.relaxed_value();
    Some(id).filter(|id| !identity::counts_as_missing(id))
}

impl std::fmt::Debug for Message {
    /// Shows names and sizes, but not the content.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Message")
            .field("message_id", &self.message_id_for_people)
            .field("identity", &self.identity)
            .field("size", &self.bytes.len())
            .finish_non_exhaustive()
    }
}

/// A Message-ID for IMAP SEARCH HEADER, without its angle brackets. `None` for a generated id, which is in no mailbox, and
/// for an id that servers may read differently, so that a search could miss the message.
///
/// Such an id has text beside the angle brackets, white space, bytes beyond ASCII, quotes or an uncommon length, or looks
/// like an encoded word. A server decodes encoded words (RFC 2047) before it compares.
pub fn message_id_for_search(id: &str) -> Option<&str> {
    let bare = without_brackets(id);
    let plain = |b: u8| b.is_ascii_graphic() && !matches!(b, b'"' | b'\\' | b'<' | b'>' | b'(' | b')');
    let fits = !bare.is_empty() && bare.len() <= LONGEST_SEARCHED && bare.bytes().all(plain) && !bare.contains("=?");
    (fits && !was_made_up(id)).then_some(bare)
}

/// A Message-ID without its angle brackets, if they enclose all of it. An odd one with text beside them stays whole for
/// comparisons.
pub(crate) fn without_brackets(id: &str) -> &str {
    let id = id.trim();
    id.strip_prefix('<').and_then(|id| id.strip_suffix('>')).unwrap_or(id)
}

/// Whether this [name](Message::message_id_for_people) was generated for a message without a Message-ID.
pub(crate) fn was_made_up(id: &str) -> bool {
    without_brackets(id).ends_with(MADE_UP)
}

/// The suffix of a generated Message-ID.
const MADE_UP: &str = "@missing.message-id";

fn generated_message_id(content: &ContentDigest) -> String {
    format!("<{}{MADE_UP}>", crate::base::hex::encode(content.as_bytes()))
}

/// Converts line ends and NUL in place, as [`Message::receive`] documents, and counts the NULs.
fn as_imap_wants_it(mut bytes: Vec<u8>) -> (Vec<u8>, usize) {
    let mbox_line = bytes.len() - without_mbox_line(&bytes).len();
    bytes.drain(..mbox_line);
    end_lines_by_crlf(&mut bytes);
    let mut nul_bytes = 0;
    let mut rest = bytes.as_mut_slice();
    while let Some(at) = memchr(0, rest) {
        let (_, from_nul) = rest.split_at_mut(at);
        let Some((nul, after)) = from_nul.split_first_mut() else { break };
        *nul = 0x80;
        nul_bytes += 1;
        rest = after;
    }
    (bytes, nul_bytes)
}

/// Inserts a CR before each LF that has none, and ends the last line by CRLF if it has no line end.
fn end_lines_by_crlf(bytes: &mut Vec<u8>) {
    if bytes.last().is_some_and(|last| *last != b'\n') {
        bytes.extend_from_slice(b"\r\n");
    }
    let is_bare = |bytes: &[u8], at: usize| at.checked_sub(1).and_then(|before| bytes.get(before)) != Some(&b'\r');
    let bare = memchr_iter(b'\n', bytes).filter(|&at| is_bare(bytes, at)).count();
    // From the last line to the first, so that no byte is overwritten before it is moved. The bytes before the first bare LF
    // stay in place.
    let (mut from, mut to) = (bytes.len(), bytes.len() + bare);
    // Growth by doubling could take more memory than a worker may have.
    bytes.reserve_exact(bare);
    bytes.resize(to, 0);
    let mut before = from;
    while from < to {
        let Some(at) = bytes.get(..before).and_then(|rest| memrchr(b'\n', rest)) else { break };
        before = at;
        if is_bare(bytes, at) {
            to -= from - at;
            bytes.copy_within(at..from, to);
            from = at;
            to -= 1;
            if let Some(cr) = bytes.get_mut(to) {
                *cr = b'\r';
            }
        }
    }
}

/// The offset at which a Received field is inserted: at the top, but below the Return-Path (RFC 5322 section 3.6.7) and the
/// other lines for one recipient. Lines that begin no field also stay above: an mbox `From ` line must be first, and a
/// continuation line would continue the new field.
#[must_use]
pub(crate) fn place_of_received(bytes: &[u8]) -> usize {
    let stays_above = |field: &Field<'_>| field.name.is_empty() || PREPENDED.iter().any(|name| field.is(name));
    let mut fields = Fields::of(without_mbox_line(bytes));
    let mut rest = fields.rest();
    while fields.next().is_some_and(|field| stays_above(&field)) {
        rest = fields.rest();
    }
    bytes.len() - rest.len()
}

/// The lines that pipe(8) prepends for one recipient, in its order.
const PREPENDED: [&str; 3] = ["Return-Path", "X-Original-To", "Delivered-To"];

/// The end of the lines that pipe(8) prepended with its flags R, O and D. These lines are at the very top, each at most
/// once, in this order (`src/global/mail_copy.c`). Lines below them belong to the message, whatever their names are.
fn end_of_prepended_lines(bytes: &[u8]) -> usize {
    let mut fields = Fields::of(bytes);
    let mut end = 0;
    let mut names = PREPENDED.into_iter();
    while let Some(field) = fields.next() {
        if !names.any(|name| field.is(name)) {
            break;
        }
        end = bytes.len() - fields.rest().len();
    }
    // A message of such lines only is kept whole, so that a Sent copy is never empty.
    if end == bytes.len() { 0 } else { end }
}

#[cfg(test)]
mod identity_tests;
#[cfg(test)]
mod tests;
