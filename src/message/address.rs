//! Envelope addresses as pipe(8) passes them without its flag q: in the internal, unquoted form, `odd "name@x`.

use serde::{Deserialize, Serialize};
use std::fmt;
use thiserror::Error;

/// In bytes: 64 of local part, 255 of domain and the `@` between them (RFC 5321 section 4.5.3.1).
const LONGEST: usize = 320;

/// `local@domain`, divided at the last `@`: a local part may contain one, a domain may not.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    local: String,
    domain: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AddressError {
    #[error("it is empty")]
    Empty,
    #[error("it has no @domain")]
    NoDomain,
    /// The part before or after the last `@` is empty.
    #[error("its local part or its domain is empty")]
    EmptyPart,
    /// No SMTP address can contain one (RFC 5321 section 4.1.2).
    #[error("it holds a control character")]
    ControlCharacter,
}

impl Address {
    /// Reads an address, with or without `<` and `>` around it.
    ///
    /// # Errors
    /// [`AddressError`] if the text is no address. The error does not repeat the text, which a stranger wrote.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let text = without_brackets(text);
        if text.trim().is_empty() {
            return Err(AddressError::Empty);
        }
        if text.chars().any(char::is_control) {
            return Err(AddressError::ControlCharacter);
        }
        let (local, domain) = text.rsplit_once('@').ok_or(AddressError::NoDomain)?;
        if local.is_empty() || domain.is_empty() {
            return Err(AddressError::EmptyPart);
        }
        Ok(Self { local: local.into(), domain: domain.into() })
    }

    /// The part before the last `@`.
    #[must_use]
    pub fn local(&self) -> &str {
        &self.local
    }

    /// The part after the last `@`.
    #[must_use]
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// The address as it is looked up, see [`fold`]. RFC 5321 section 2.4 leaves the case of local parts to the host of the
    /// mailbox, which is this site.
    #[must_use]
    pub fn folded(&self) -> Self {
        Self { local: fold(&self.local), domain: fold(&self.domain) }
    }

    /// The folded address, as the ledger and events name it. `None` if it is longer than 320 bytes: SMTP cannot carry such
    /// an address, so no column has to hold it.
    #[must_use]
    pub(crate) fn named(&self) -> Option<String> {
        // One call for both parts saves allocations in each delivery. The result is the same, because folding works per
        // character.
        let address = fold(&[self.local.as_str(), "@", &self.domain].concat());
        (address.len() <= LONGEST).then_some(address)
    }

    /// The address without its extension, `doug+lists@x` → `doug@x`; `None` if it has no extension. `delimiters` is
    /// Postfix's `recipient_delimiter`, a set of characters: the first one in the local part divides the local part.
    ///
    /// As in `src/global/split_addr.c`, a delimiter at the beginning divides nothing, and MAILER-DAEMON, double-bounce and
    /// postmaster are never divided. If `-` is a delimiter, `owner-list` and `list-request` are not divided either.
    #[must_use]
    pub fn without_extension(&self, delimiters: &str) -> Option<Self> {
        let at = self.local.find(|c| delimiters.contains(c))?;
        let folded = self.local.to_ascii_lowercase();
        let list_role = delimiters.contains('-') && (folded.starts_with("owner-") || folded.ends_with("-request"));
        if list_role || matches!(folded.as_str(), "mailer-daemon" | "double-bounce" | "postmaster") {
            return None;
        }
        let local = self.local.get(..at).filter(|local| !local.is_empty())?;
        Some(Self { local: local.into(), domain: self.domain.clone() })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.local, self.domain)
    }
}

/// An address in the spelling that the ledger stores (`Delivery::recipient`), also of a text that is none.
pub(crate) fn as_stored(text: &str) -> String {
    Address::parse(text).map_or_else(|_| fold(text), |address| address.folded().to_string())
}

/// The folding of all addresses, except for the directory names of an embedded site (ASCII only). That folding is Unicode's
/// full case folding (The Unicode Standard, section 3.13, D144).
///
/// Postfix folds alike for table lookups and for pipe(8) (`src/util/casefold.c`, ICU's `FoldCase`). With another folding, an
/// address that Postfix finds would be unknown here, or belong to another user. The result is mostly lower case; but ß
/// becomes ss, and the ς at the end of a word becomes σ.
#[must_use]
pub fn fold(text: &str) -> String {
    if text.is_ascii() { text.to_ascii_lowercase() } else { caseless::default_case_fold_str(text) }
}

/// An envelope recipient.
// An unknown key makes a file of the queue unreadable: a later release may have written that key, and it could change who
// gets the message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipient {
    /// The address as the transport received it.
    pub address: String,
    /// The address before any rewriting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnvelopeSender {
    /// The null sender of bounces and other notifications (RFC 5321 section 4.5.5).
    Null,
    Address(Address),
}

impl EnvelopeSender {
    /// Reads what pipe(8) passes for `${sender}`. The null sender is empty (with `null_sender=`), `<>` or a bare `MAILER-DAEMON`
    /// (without it). Anything else is an address.
    ///
    /// # Errors
    /// [`AddressError`] if the text is neither.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let bare = without_brackets(text).trim();
        if bare.is_empty() || bare.eq_ignore_ascii_case("MAILER-DAEMON") {
            return Ok(Self::Null);
        }
        Address::parse(text).map(Self::Address)
    }

    /// The sender for the ledger and the log; empty for the null sender. A sender that is no address must not delay a
    /// message, so it is recorded as it is, cut to 320 characters.
    #[must_use]
    pub(crate) fn for_the_record(text: &str) -> String {
        match Self::parse(text) {
            Ok(sender) => sender.to_string(),
            Err(_) => text.chars().filter(|c| !c.is_control()).take(320).collect(),
        }
    }

    #[must_use]
    pub(crate) fn address(&self) -> Option<&Address> {
        match self {
            Self::Null => None,
            Self::Address(address) => Some(address),
        }
    }
}

impl fmt::Display for EnvelopeSender {
    /// The address; nothing for the null sender.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address().map_or(Ok(()), |address| address.fmt(f))
    }
}

/// Removes all brackets, so that parsing the result once more gives the same text. Otherwise the ledger could store an
/// address that differs from the received one.
fn without_brackets(mut text: &str) -> &str {
    loop {
        text = text.trim_matches([' ', '\t', '\r', '\n']);
        match text.strip_prefix('<').and_then(|rest| rest.strip_suffix('>')) {
            Some(inside) => text = inside,
            None => return text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        Address::parse(text).unwrap()
    }

    #[test]
    fn a_sender_that_cannot_be_read_is_recorded_all_the_same() {
        for (text, recorded) in [("<lisa@gmail.com>", "lisa@gmail.com"), ("MAILER-DAEMON", ""), ("a\u{7}b c", "ab c")] {
            assert_eq!(EnvelopeSender::for_the_record(text), recorded, "{text}");
        }
        assert_eq!(EnvelopeSender::for_the_record(&"x ".repeat(400)), "x ".repeat(160));
    }

    #[test]
    fn the_last_at_sign_divides() {
        for (text, local, domain) in [
            ("doug@mail.axial.net", "doug", "mail.axial.net"),
            ("<doug@mail.axial.net>", "doug", "mail.axial.net"),
            (" < doug@mail.axial.net >", "doug", "mail.axial.net"),
            ("<<doug@mail.axial.net>>", "doug", "mail.axial.net"),
            ("<doug@mail.axial.net", "<doug", "mail.axial.net"),
            ("odd \"name@sender.test", "odd \"name", "sender.test"),
            ("a@b@c", "a@b", "c"),
            ("jörg@müller.example", "jörg", "müller.example"),
            ("x@[192.0.2.1]", "x", "[192.0.2.1]"),
        ] {
            assert_eq!((address(text).local(), address(text).domain()), (local, domain));
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for (text, why) in [
            ("", AddressError::Empty),
            (" ", AddressError::Empty),
            ("<>", AddressError::Empty),
            ("doug", AddressError::NoDomain),
            ("@x", AddressError::EmptyPart),
            ("doug@", AddressError::EmptyPart),
            ("do\nug@x", AddressError::ControlCharacter),
            ("do\0ug@x", AddressError::ControlCharacter),
        ] {
            assert_eq!(Address::parse(text), Err(why), "{text:?}");
        }
    }

    #[test]
    fn the_null_sender_has_three_spellings() {
        for text in ["", "<>", "MAILER-DAEMON", "mailer-daemon"] {
            assert_eq!(EnvelopeSender::parse(text), Ok(EnvelopeSender::Null), "{text:?}");
        }
        let somebody = EnvelopeSender::parse("MAILER-DAEMON@x").unwrap();
        assert_eq!(somebody.to_string(), "MAILER-DAEMON@x");
        assert_eq!(EnvelopeSender::Null.to_string(), "");
    }

    /// The forms that Postfix 3.10 passes to pipe(8) and uses for table lookups.
    #[test]
    fn folding_is_that_of_postfix() {
        for (text, folded) in [
            ("JÖRG+X@Mail.Axial.NET", "jörg+x@mail.axial.net"),
            ("JÖRG@MÜLLER.example", "jörg@müller.example"),
            ("νίκος@x", "νίκοσ@x"),
            ("ΝΊΚΟΣ@x", "νίκοσ@x"),
            ("Groß@x", "gross@x"),
            ("GROẞ@x", "gross@x"),
            ("ŉa@x", "\u{2bc}na@x"),
            ("İ@x", "i\u{307}@x"),
            ("ı@x", "ı@x"),
            ("\u{212a}im@x", "kim@x"),
            ("ﬁona@x", "fiona@x"),
        ] {
            assert_eq!(address(text).folded().to_string(), folded, "{text}");
        }
    }

    #[test]
    fn what_is_folded_is_an_address_still_and_folds_to_itself() {
        for c in '\0'..=char::MAX {
            let folded = fold(&c.to_string());
            assert_eq!(fold(&folded), folded, "{c:?}");
            assert_eq!(folded.contains('@'), c == '@', "{c:?}");
            assert_eq!(folded.contains(char::is_control), c.is_control(), "{c:?}");
        }
    }

    #[test]
    fn the_extension_goes_as_postfix_takes_it() {
        let bare = |text: &str, delimiters: &str| address(text).without_extension(delimiters).map(|a| a.to_string());
        assert_eq!(bare("doug+lists@x", "+").as_deref(), Some("doug@x"));
        assert_eq!(bare("doug+a+b@x", "+").as_deref(), Some("doug@x"));
        assert_eq!(bare("doug-a+b@x", "+-").as_deref(), Some("doug@x"));
        assert_eq!(bare("doug+@x", "+").as_deref(), Some("doug@x"));
        assert_eq!(bare("doug+lists@x", ""), None);
        assert_eq!(bare("doug@x", "+"), None);
        assert_eq!(bare("+doug@x", "+"), None);
        assert_eq!(bare("owner-list@x", "+-"), None);
        assert_eq!(bare("list-request@x", "+-"), None);
        assert_eq!(bare("double-bounce@x", "-"), None);
        assert_eq!(bare("owner+list@x", "+-").as_deref(), Some("owner@x"));
    }
}
