//! Header fields as text, for the ledger and for people. If a field cannot be decoded, metadata is lost, but never the message.
//!
//! The header functions of mailparse do that, within bounds. Their time grows with the square of a field's length if the
//! field has many `=?`, and with the cube if it also has many `?=` that end no word. Panics of mailparse, which have
//! occurred, are caught. The body is never passed to it.

use super::address::Address;
use super::date_field;
use super::disclosure::shown;
use super::fields::{Field, Fields, relaxed};
use memchr::memmem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The length in bytes at which a field is cut, both before and after it is decoded.
pub(super) const FIELD_LIMIT: usize = 8 * 1024;
/// A field with more encoded words than this is left undecoded. No honest field of 8 kB has so many.
const WORDS_LIMIT: usize = 256;
/// A field is also left undecoded if mailparse would read this many characters of it (0.18, `is_boundary`). It reads the whole
/// field up to each `=?`, and up to each `?=` that may end the word.
const STEPS_LIMIT: usize = 2 << 20;
/// How many fields the JSON has at most.
pub(super) const JSON_FIELDS_LIMIT: usize = 1000;
/// How many bytes are read for the JSON at most, and how many it has, without the marker that ends a shortened list.
pub(super) const JSON_LIMIT: usize = 256 * 1024;
/// The last second of the year 9999. A later date counts as none, since databases refuse it.
const LAST_SECOND: i64 = 253_402_300_799;

/// What the ledger shows of a header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Metadata {
    pub from: Option<String>,
    pub from_address: Option<Address>,
    pub to: Option<String>,
    pub cc: Option<String>,
    pub subject: Option<String>,
    pub date: Option<i64>,
}

impl Metadata {
    /// Reads the first field of each name. The author's address is set only if there is exactly one From.
    pub fn of(message: &[u8]) -> Self {
        let mut known = Self::default();
        let mut from_fields = 0_usize;
        let mut dated = false;
        let first = |slot: &mut Option<String>, field: &Field<'_>| {
            if slot.is_none() {
                *slot = Some(text(field));
            }
        };
        for field in Fields::of(message) {
            if field.is("from") {
                from_fields += 1;
                known.from_address = if from_fields == 1 { only_mailbox(&field) } else { None };
                first(&mut known.from, &field);
            } else if field.is("to") {
                first(&mut known.to, &field);
            } else if field.is("cc") {
                first(&mut known.cc, &field);
            } else if field.is("subject") {
                first(&mut known.subject, &field);
            } else if field.is("date") && !dated {
                dated = true;
                let moment = date_field::moment(relaxed(field.value).take(FIELD_LIMIT));
                known.date = moment.filter(|seconds| (1..=LAST_SECOND).contains(seconds));
            }
        }
        known
    }
}

/// A field's value, unfolded and decoded, of at most [`FIELD_LIMIT`] bytes. Control characters are removed, because an
/// encoded word may decode to NUL, which PostgreSQL refuses.
pub(super) fn text(field: &Field<'_>) -> String {
    let (value, cut) = bounded_value(field);
    let decoded = with_parsed(&value, |header| header.get_value());
    let decoded = decoded.unwrap_or_else(|| String::from_utf8_lossy(&value).into_owned());
    tidy(&decoded, FIELD_LIMIT, cut)
}

pub(super) fn name_for_people(name: &[u8]) -> String {
    tidy(&String::from_utf8_lossy(name.get(..FIELD_LIMIT).unwrap_or(name)), 256, false)
}

/// The text without control characters and surrounding white space, cut at a character boundary. `…` marks a cut, made here or
/// before.
pub(super) fn tidy(text: &str, limit: usize, already_cut: bool) -> String {
    let mut tidy: String = text.chars().filter(|c| !c.is_control()).collect();
    let trimmed = tidy.trim();
    if trimmed.len() != tidy.len() {
        tidy = trimmed.to_owned();
    }
    if tidy.len() > limit || already_cut {
        const MARK: char = '…';
        tidy.truncate(tidy.floor_char_boundary(limit.saturating_sub(MARK.len_utf8())));
        tidy.push(MARK);
    }
    tidy
}

/// The fields from the top, in order, as a JSON array of `[name, value]`. If it is cut short, the last entry has an empty
/// name and says so. The array contains only the fields that `kept` selects, and only as [everyone may see them](shown).
pub(super) fn json(message: &[u8], kept: impl Fn(&Field<'_>) -> bool) -> String {
    let mut json = String::from("[");
    let mut read = 0_usize;
    let mut count = 0_usize;
    for field in Fields::of(message).filter(kept) {
        let Some((name, value)) = shown(&field) else { continue };
        let field = Field { name, value: &value };
        read = read.saturating_add(field.value.len().min(FIELD_LIMIT));
        let name = name_for_people(field.name);
        let entry = if count < JSON_FIELDS_LIMIT && read <= JSON_LIMIT {
            // Strings always serialize.
            serde_json::to_string(&[name, text(&field)]).ok()
        } else {
            None
        };
        if count > 0 {
            json.push(',');
        }
        match entry {
            Some(entry) if json.len() + entry.len() <= JSON_LIMIT => json.push_str(&entry),
            _ => {
                json.push_str(r#"["","(the fields that follow are left out: too many, or too long)"]"#);
                break;
            }
        }
        count += 1;
    }
    json.push(']');
    json
}

/// The one mailbox in this field; `None` if there are none or several, or if it is a group or odd. An address in an encoded
/// word does not count (RFC 2047 section 5); mailparse ensures that.
fn only_mailbox(field: &Field<'_>) -> Option<Address> {
    let (value, cut) = bounded_value(field);
    if cut || field.has_bare_cr() {
        return None;
    }
    let mailbox = with_parsed(&value, |header| mailparse::addrparse_header(header).ok()?.extract_single_info())??;
    let address = Address::parse(&mailbox.addr).ok()?;
    let odd = |c: char| c.is_whitespace() || matches!(c, '<' | '>' | '(' | ')' | ',' | ';' | ':' | '"' | '\\');
    (!address.local().contains(odd) && !address.domain().contains(odd)).then_some(address)
}

/// The author's address, in the form of [`Address::named`]. `from` is the [`text`] of a From field, of a message that has
/// one author. The address is the part between the last angle brackets if they end the text. Otherwise it is the whole text,
/// if that is one mailbox. The name before it may have been decoded, and may look like an address itself.
pub(crate) fn author_in(from: &str) -> Option<String> {
    let from = from.trim();
    let address = match from.strip_suffix('>').and_then(|rest| rest.rsplit_once('<')) {
        Some((_, address)) => address.to_owned(),
        None => guarded(|| mailparse::addrparse(from).ok()?.extract_single_info())??.addr,
    };
    Address::parse(&address).ok()?.named()
}

/// The value unfolded, and whether it was longer than [`FIELD_LIMIT`] and was cut. A cut never leaves an incomplete UTF-8
/// character, since mailparse would then read the whole field as Latin-1.
fn bounded_value(field: &Field<'_>) -> (Vec<u8>, bool) {
    let mut relaxed = relaxed(field.value);
    let mut value: Vec<u8> = relaxed.by_ref().take(FIELD_LIMIT).collect();
    let cut = relaxed.next().is_some();
    if cut
        && let Err(error) = std::str::from_utf8(&value)
        && error.error_len().is_none()
    {
        value.truncate(error.valid_up_to());
    }
    (value, cut)
}

/// Passes a value of at most [`FIELD_LIMIT`] bytes to mailparse as a header field, unless that would [take too
/// long](takes_too_long).
fn with_parsed<T>(value: &[u8], read: impl FnOnce(&mailparse::MailHeader<'_>) -> T) -> Option<T> {
    if takes_too_long(value) {
        return None;
    }
    let line = [b"x: ", value].concat();
    guarded(|| mailparse::parse_header(&line).ok().map(|(header, _)| read(&header)))?
}

/// Whether mailparse would take too long for the value: see [`WORDS_LIMIT`] and [`STEPS_LIMIT`].
fn takes_too_long(value: &[u8]) -> bool {
    // For mailparse, the end of a word is followed by one of these characters or by nothing. mailparse looks for that
    // character by counting characters, not bytes. So with characters beyond ASCII, it may miss any end.
    let ascii = value.is_ascii();
    let ends = |at: usize| ascii && value.get(at).is_none_or(|b| b.is_ascii_whitespace() || b"\"()<>,".contains(b));
    let find = |from: usize, what: &[u8]| Some(from + memmem::find(value.get(from..)?, what)?);
    let (mut words, mut steps, mut from) = (0, 0, 0);
    while let Some(word) = find(from, b"=?") {
        words += 1;
        steps += word;
        let behind = word + 2;
        let mut end = behind;
        from = loop {
            if words > WORDS_LIMIT || steps > STEPS_LIMIT {
                return true;
            }
            let Some(at) = find(end, b"?=") else { break behind };
            steps += at;
            end = at + 2;
            if ends(end) {
                break end;
            }
        };
    }
    false
}

/// `None` if mailparse panics: a panic there must not fail the delivery.
pub(super) fn guarded<T>(read: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(read)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_in_the_decoder_costs_metadata_only() {
        assert_eq!(guarded(|| -> u8 { panic!("as mailparse might") }), None);
        assert_eq!(with_parsed(b"value", |_| -> u8 { panic!("as mailparse might") }), None);
    }

    #[test]
    fn so_many_encoded_words_are_decoded_and_no_more() {
        for (words, decoded) in [(1, true), (WORDS_LIMIT, true), (WORDS_LIMIT + 1, false)] {
            let value = format!(" {}", "=?utf-8?Q?=C3=A4?= ".repeat(words));
            let field = format!("Subject:{value}\r\n\r\n");
            let subject = Metadata::of(field.as_bytes()).subject.unwrap();
            assert_eq!(subject, if decoded { "ä".repeat(words) } else { value.trim().to_owned() }, "{words}");
        }
    }

    /// A field of 8 kB took seconds, and a header has many. A field that takes so long gives no author.
    #[test]
    fn a_field_that_would_take_long_to_decode_stays_as_it_is() {
        let (within, beyond) = (" =?".repeat(60) + &"?=a".repeat(60), " =?".repeat(90) + &"?=a".repeat(90));
        assert!(!takes_too_long(within.as_bytes()) && takes_too_long(beyond.as_bytes()));
        let one_word = |before: usize| format!("{} =?{}", "x".repeat(before), "?=a".repeat(300));
        assert!(!takes_too_long(one_word(4000).as_bytes()) && takes_too_long(one_word(7500).as_bytes()));
        // The end of one word does not begin another, although its last characters together with the end look like it.
        let padded = |words: usize| " =?utf-8?B?4Q==?=".repeat(words);
        assert!(!takes_too_long(padded(WORDS_LIMIT).as_bytes()) && takes_too_long(padded(WORDS_LIMIT + 1).as_bytes()));
        // With a character beyond ASCII, mailparse misses the ends of words.
        let shifted = format!("ä{}", " =?utf-8?Q?a?=".repeat(100));
        assert!(!takes_too_long(&shifted.as_bytes()[2..]) && takes_too_long(shifted.as_bytes()));
        // A subject with as many lines as fit, in which each word ends.
        let lines = " =?utf-8?B?0JjQvNGPLCDQpNCw0LzQuNC70LjRjyDQmNC80Y8sINCk0LDQvNC40LvQuNGPIA==?=".repeat(100);
        assert!(lines.len() < FIELD_LIMIT && !takes_too_long(lines.as_bytes()));

        let header =
            |value: &str| Metadata::of(format!("From: {value} <lisa@x>\r\nSubject: {value}\r\n\r\n").as_bytes());
        let known = header(&beyond);
        assert_eq!((known.from_address, known.subject.as_deref()), (None, Some(beyond.trim())));
        assert!(header("=?utf-8?Q?=C3=A4?= b").from_address.is_some());
    }

    /// Whatever a name or a comment contains, the address is the one of the field itself, or none.
    #[test]
    fn the_author_is_the_same_in_a_from_that_is_decoded() {
        let long = format!("Lisa <{}@x>", "l".repeat(400));
        for (from, found) in [
            ("lisa@x", true),
            ("<lisa@x>", true),
            ("Lisa <Lisa@X>", true),
            ("\"Miller, Lisa\" <lisa@x> ", true),
            ("=?utf-8?Q?Miller=2C_Lisa?= <lisa@x>", true),
            ("=?utf-8?Q?=3Cother=40y=3E?= <lisa@x>", true),
            ("lisa@x (=?utf-8?Q?=3Cother=40y=3E?=)", true),
            ("Lisa <lisa@x> (=?utf-8?Q?x=29_=3Cother=40y=3E?=)", false),
            ("lisa@x, other@y", false),
            (&long, false),
        ] {
            let known = Metadata::of(format!("From: {from}\r\n\r\n").as_bytes());
            let author = author_in(known.from.as_deref().unwrap());
            let wanted = known.from_address.and_then(|address| address.named()).filter(|_| found);
            assert_eq!((author.is_some(), author), (found, wanted), "{from}");
        }
    }

    #[test]
    fn a_text_is_cut_where_it_is_longer_than_its_limit_and_not_before() {
        assert_eq!(tidy("abcd", 4, false), "abcd");
        assert_eq!(tidy("abcde", 4, false), "a…");
        assert_eq!(tidy("abcd", 4, true), "a…");
    }

    #[test]
    fn twenty_long_fields_are_all_in_the_json() {
        let fields = json(format!("a: {}\r\n", "x".repeat(8000)).repeat(20).as_bytes(), |_| true);
        let fields: Vec<[String; 2]> = serde_json::from_str(&fields).unwrap();
        assert_eq!(fields.len(), 20);
        assert!(fields.iter().all(|[name, value]| name == "a" && value.len() == 8000));
    }
}
