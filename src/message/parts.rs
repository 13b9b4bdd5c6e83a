//! The content of a message for people who read it: its parts (RFC 2045, RFC 2046), its text, its header fields.
//!
//! No delivery reads any of this. The walk over the parts is this crate's own, because it must end soon on any input. It
//! reads each byte once per level of nesting, and limits the levels. The crate mailparse decodes the parts. A
//! [budget](ReadingBudget) counts the bytes.

use super::decode::{guarded, name_for_people, text, tidy};
use super::fields::{Field, Fields, split_line, without_line_end};
use super::reading_budget::ReadingBudget;
use base64::Engine;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use mailparse::body::Body;
use mailparse::{DispositionType, ParsedContentType, parse_content_disposition, parse_content_type};

/// The deepest nesting of multiparts. A multipart that lies deeper is treated as one part.
const DEEPEST: usize = 16;
/// How many parts are listed.
const MOST_PARTS: usize = 300;
/// How many header fields of a message are shown.
const MOST_FIELDS: usize = 300;
/// RFC 2046 section 5.1.1 allows a boundary of 70 characters; some programs write longer ones.
const LONGEST_BOUNDARY: usize = 200;
/// How many parameters of a field are read: mailparse compares each with each (0.18, `compute_parameter_encodings`).
const MOST_PARAMETERS: usize = 64;
/// How many encoded bytes are read for each decoded one. No encoding needs more than three, line ends not counted.
const ENCODED_LENGTH: usize = 8;

/// Base64 as mail programs write it: possibly without padding, or with meaningless bits in the last character.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A part that has no parts itself.
#[derive(Clone, Debug)]
pub(crate) struct Part<'a> {
    /// Such as `text/html`, in lower case.
    pub(crate) kind: String,
    /// The file name that the message's author wrote. It is not checked.
    pub(crate) name: Option<String>,
    /// Without angle brackets.
    pub(crate) content_id: Option<String>,
    /// Whether the part is a file, and not text to be shown.
    attachment: bool,
    charset: Option<String>,
    encoding: String,
    body: &'a [u8],
    budget: &'a ReadingBudget,
}

/// The parts of a message, from the top.
#[derive(Clone, Debug)]
pub(crate) struct Parts<'a> {
    pub(crate) all: Vec<Part<'a>>,
    /// Whether there are more parts than are listed.
    pub(crate) more: bool,
    pub(crate) budget: &'a ReadingBudget,
}

impl<'a> Parts<'a> {
    /// The parts of a message, or of any other bytes, as far as the budget allows.
    pub(crate) fn of(message: &'a [u8], budget: &'a ReadingBudget) -> Self {
        let mut parts = Self { all: Vec::new(), more: false, budget };
        parts.walk(message, "text/plain", 0);
        parts
    }

    fn walk(&mut self, entity: &'a [u8], default: &str, depth: usize) {
        if self.all.len() >= MOST_PARTS {
            self.more = true;
            return;
        }
        let mut fields = Fields::of(entity);
        let (mut kind, mut disposition, mut encoding, mut content_id) = (None, None, None, None);
        for field in fields.by_ref() {
            let slot = if field.is("Content-Type") {
                &mut kind
            } else if field.is("Content-Disposition") {
                &mut disposition
            } else if field.is("Content-Transfer-Encoding") {
                &mut encoding
            } else if field.is("Content-ID") {
                &mut content_id
            } else {
                continue;
            };
            slot.get_or_insert_with(|| text(&field));
        }
        let body = fields.body();
        if !self.budget.spend(entity.len() - body.len()) {
            self.more = true;
            return;
        }
        let kind = kind.and_then(|value| guarded(|| parse_content_type(few_parameters(&value))));
        let kind = kind.unwrap_or_else(|| ParsedContentType {
            mimetype: default.into(),
            charset: String::new(),
            params: Default::default(),
        });
        if let Some(inner) = kind.mimetype.strip_prefix("multipart/")
            && depth < DEEPEST
            && let Some(boundary) = kind.params.get("boundary").filter(|boundary| !boundary.is_empty())
        {
            let before = self.all.len();
            let default = if inner == "digest" { "message/rfc822" } else { "text/plain" };
            for part in (Split {
                rest: Some(body),
                boundary: boundary.get(..LONGEST_BOUNDARY).unwrap_or(boundary).as_bytes(),
                begun: false,
                budget: self.budget,
            }) {
                self.walk(part, default, depth + 1);
                if self.more {
                    return;
                }
            }
            if self.all.len() > before {
                return;
            }
        }
        let disposition = disposition.and_then(|value| guarded(|| parse_content_disposition(few_parameters(&value))));
        let name =
            disposition.as_ref().and_then(|found| found.params.get("filename")).or_else(|| kind.params.get("name"));
        self.all.push(Part {
            name: name.map(|name| tidy(name, 255, false)).filter(|name| !name.is_empty()),
            content_id: content_id.map(|id| id.trim_matches(['<', '>', ' ']).to_owned()).filter(|id| !id.is_empty()),
            attachment: disposition.is_some_and(|found| found.disposition == DispositionType::Attachment),
            charset: kind.params.get("charset").cloned(),
            kind: tidy(&kind.mimetype, 100, false),
            encoding: encoding.unwrap_or_default().trim().to_ascii_lowercase(),
            body,
            budget: self.budget,
        });
    }

    /// The plain text, up to `most` bytes, and whether it was cut. `None` if there is no such part.
    pub(crate) fn text(&self, most: usize) -> Option<(String, bool)> {
        let mut texts = self.all.iter().filter(|part| part.kind == "text/plain" && !part.attachment).peekable();
        texts.peek()?;
        let mut all = String::new();
        let mut cut = false;
        for part in texts {
            if all.len() >= most {
                cut = true;
                break;
            }
            if !all.is_empty() {
                all.push('\n');
            }
            let (text, shorter) = part.text(most - all.len());
            all.push_str(&text);
            cut |= shorter;
        }
        Some((all, cut))
    }

    /// The part that mail programs show if they can show HTML.
    pub(crate) fn html(&self) -> Option<&Part<'a>> {
        self.all.iter().find(|part| part.kind == "text/html" && !part.attachment)
    }
}

impl Part<'_> {
    /// The decoded content; empty if the budget is exhausted.
    pub(crate) fn content(&self) -> Vec<u8> {
        self.decoded(self.body)
    }

    fn decoded(&self, body: &[u8]) -> Vec<u8> {
        if !self.budget.spend(body.len()) {
            return Vec::new();
        }
        match self.encoding.as_str() {
            "base64" => {
                let in_alphabet = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
                let mut digits: Vec<u8> = body.iter().copied().filter(in_alphabet).collect();
                // A single character left over encodes no byte.
                if digits.len() % 4 == 1 {
                    digits.pop();
                }
                LENIENT.decode(digits).unwrap_or_default()
            }
            "quoted-printable" => {
                let kind = ParsedContentType::default();
                let decoded = guarded(|| match Body::new(body, &kind, &Some(self.encoding.clone())) {
                    Body::QuotedPrintable(body) => body.get_decoded().ok(),
                    _ => None,
                });
                decoded.flatten().unwrap_or_else(|| body.to_vec())
            }
            _ => body.to_vec(),
        }
    }

    /// The part's text, up to `most` bytes, and whether it was cut.
    pub(crate) fn text(&self, most: usize) -> (String, bool) {
        // No charset uses more than four bytes for a character that takes one byte in UTF-8.
        let most_bytes = most.saturating_mul(4);
        let body = self.body.get(..most_bytes.saturating_mul(ENCODED_LENGTH)).unwrap_or(self.body);
        let mut content = self.decoded(body);
        let mut cut = body.len() < self.body.len() || content.len() > most_bytes;
        content.truncate(most_bytes);
        if !self.budget.spend(content.len()) {
            return (String::new(), true);
        }
        let label = self.charset.as_deref().map(str::trim).unwrap_or_default();
        // Programs that name no charset usually write UTF-8.
        let named = !label.is_empty()
            && !label.eq_ignore_ascii_case("us-ascii")
            && !label.eq_ignore_ascii_case("ascii")
            && !is_utf_7(label);
        let mut text = if named {
            let kind =
                ParsedContentType { mimetype: "text/plain".into(), charset: label.into(), params: Default::default() };
            let decoded = guarded(|| match Body::new(&content, &kind, &Some("binary".into())) {
                Body::Binary(body) => body.get_as_string().ok(),
                _ => None,
            });
            decoded.flatten().unwrap_or_else(|| String::from_utf8_lossy(&content).into_owned())
        } else {
            String::from_utf8_lossy(&content).into_owned()
        };
        if text.len() > most {
            cut = true;
            text.truncate(text.floor_char_boundary(most));
        }
        (text.replace("\r\n", "\n"), cut)
    }
}

/// UTF-7 is not decoded, because the time grows with the square of its length: at each `+`, charset 0.1.5 touches all memory
/// that is left. Browsers must not support UTF-7 either (Encoding Standard, section 4.2).
fn is_utf_7(label: &str) -> bool {
    let label = label.to_ascii_lowercase();
    label.contains("utf-7") || label.contains("utf7")
}

fn few_parameters(value: &str) -> &str {
    let end = value.match_indices(';').nth(MOST_PARAMETERS);
    end.and_then(|(at, _)| value.get(..at)).unwrap_or(value)
}

/// The header fields of a message, decoded, in order; and whether there are more.
pub(crate) fn header_fields(message: &[u8], budget: &ReadingBudget) -> (Vec<(String, String)>, bool) {
    let mut fields = Fields::of(message).filter(|field| !field.name.is_empty());
    let affordable = |field: &Field<'_>| budget.spend(field.name.len() + field.value.len());
    let some = fields
        .by_ref()
        .take(MOST_FIELDS)
        .take_while(affordable)
        .map(|field| (name_for_people(field.name), text(&field)))
        .collect();
    (some, fields.next().is_some())
}

/// The parts between the boundary lines (RFC 2046 section 5.1.1). If the last boundary is missing, the last part extends to the
/// end.
struct Split<'a, 'b> {
    /// The bytes that are left to read; `None` after the last boundary.
    rest: Option<&'a [u8]>,
    boundary: &'b [u8],
    begun: bool,
    budget: &'b ReadingBudget,
}

impl<'a> Iterator for Split<'a, '_> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            let all = self.rest.take()?;
            let mut rest = all;
            let mut found = None;
            while !rest.is_empty() {
                let at = all.len() - rest.len();
                let (line, after) = split_line(rest);
                if !self.budget.spend(line.len()) {
                    return None;
                }
                if let Some(last) = self.is_boundary(line) {
                    found = Some((at, after, last));
                    break;
                }
                rest = after;
            }
            let begun = std::mem::replace(&mut self.begun, true);
            let Some((at, after, last)) = found else {
                return if begun { Some(all) } else { None };
            };
            self.rest = (!last).then_some(after);
            if begun {
                // The line end before the boundary belongs to the boundary.
                let part = all.get(..at).unwrap_or_default();
                let part = part.strip_suffix(b"\n").unwrap_or(part);
                return Some(part.strip_suffix(b"\r").unwrap_or(part));
            }
        }
    }
}

impl Split<'_, '_> {
    /// `None` if a line is not the boundary; otherwise whether it is the last one.
    fn is_boundary(&self, line: &[u8]) -> Option<bool> {
        let rest = line.strip_prefix(b"--")?.strip_prefix(self.boundary)?;
        let rest = without_line_end(rest).trim_ascii_end();
        match rest {
            b"" => Some(false),
            b"--" => Some(true),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::deadline::Deadline;
    use std::time::Duration;

    const NESTED: &str = "Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\nContent-Type: multipart/mixed; boundary=outer\r\n\r\nnot shown\r\n\
        --outer\r\nContent-Type: multipart/alternative; boundary=\"outer2\"\r\n\r\n\
        --outer2\r\nContent-Type: text/plain; charset=iso-8859-1\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\ngr=FC=DF=\r\n dich\r\n\
        --outer2\r\nContent-Type: TEXT/HTML; charset=utf-8\r\n\r\n<p>grüß</p>\r\n--outer2--\r\n\
        --outer\r\nContent-Type: image/png; name=a.png\r\nContent-Disposition: attachment; filename*=utf-8''b%C3%BC.png\r\n\
        Content-ID: <pic@x>\r\nContent-Transfer-Encoding: BASE64\r\n\r\naGVs\r\nbG8\r\n--outer--\r\nnot shown\r\n";

    fn budget_of(message: &[u8]) -> &'static ReadingBudget {
        Box::leak(Box::new(ReadingBudget::of(message, Deadline::after(Duration::from_hours(1)))))
    }

    fn parts_of(message: &[u8]) -> Parts<'_> {
        Parts::of(message, budget_of(message))
    }

    fn fields_of(message: &[u8]) -> (Vec<(String, String)>, bool) {
        header_fields(message, budget_of(message))
    }

    fn kinds(message: &str) -> Vec<String> {
        parts_of(message.as_bytes()).all.into_iter().map(|part| part.kind).collect()
    }

    #[test]
    fn parts_of_parts_are_distinguished_and_decoded() {
        let parts = parts_of(NESTED.as_bytes());
        assert_eq!(kinds(NESTED), ["text/plain", "text/html", "image/png"]);
        assert_eq!(parts.text(1000), Some(("grüß dich".into(), false)));
        assert_eq!(parts.html().unwrap().text(1000).0, "<p>grüß</p>");
        let picture = &parts.all[2];
        assert_eq!((picture.name.as_deref(), picture.content_id.as_deref()), (Some("bü.png"), Some("pic@x")));
        assert_eq!(picture.content(), b"hello");
        assert!(picture.attachment && !parts.more);
        let (fields, more) = fields_of(NESTED.as_bytes());
        assert_eq!((fields[0].clone(), fields.len(), more), (("Subject".into(), "Grüße".into()), 2, false));
    }

    #[test]
    fn a_text_that_is_cut_is_cut_between_characters_and_says_so() {
        let message = format!("Content-Type: text/plain; charset=utf-8\n\n{}", "ü".repeat(100));
        let parts = parts_of(message.as_bytes());
        assert_eq!(parts.text(11), Some(("ü".repeat(5), true)));
        assert_eq!(parts.text(200), Some(("ü".repeat(100), false)));
        assert_eq!(parts_of(b"\n\xfc\xff plain").text(100), Some(("\u{fffd}\u{fffd} plain".into(), false)));
        assert_eq!(parts_of(b"Content-Type: text/plain; charset=nonsense\n\nx").text(9), Some(("x".into(), false)));
    }

    #[test]
    fn a_message_without_any_structure_is_one_part() {
        for message in [
            "",
            "x",
            "Subject: a\n\nbody",
            "Content-Type: multipart/mixed\n\nbody",
            "Content-Type: multipart/mixed; boundary=x\n\nbody",
            "Content-Type: ;;;=\n\nx",
        ] {
            assert_eq!(kinds(message).len(), 1, "{message}");
        }
        // Without its last boundary, it extends to the end.
        let open = "Content-Type: multipart/mixed; boundary=x\n\n--x\n\none\n--x\n\ntwo";
        assert_eq!(parts_of(open.as_bytes()).text(100), Some(("one\ntwo".into(), false)));
        // A longer boundary with the same beginning is a different one.
        let other = "Content-Type: multipart/mixed; boundary=x\n\n--xy\n--x\n\none\n--xz\n--x--";
        assert_eq!(parts_of(other.as_bytes()).text(100), Some(("one\n--xz".into(), false)));
        // Messages within a digest are parts.
        let digest = "Content-Type: multipart/digest; boundary=x\n\n--x\n\nSubject: a\n\nb\n--x--";
        assert_eq!(kinds(digest), ["message/rfc822"]);
    }

    #[test]
    fn what_is_made_to_cost_much_costs_little() {
        let mut deep = String::new();
        for level in 0..5000 {
            deep.push_str(&format!("Content-Type: multipart/mixed; boundary=b{level}\n\n--b{level}\n"));
        }
        assert_eq!(parts_of(deep.as_bytes()).all.len(), 1);
        let many = format!("Content-Type: multipart/mixed; boundary=x\n\n{}", "--x\n\na\n".repeat(100_000));
        let parts = parts_of(many.as_bytes());
        assert!(parts.more && parts.all.len() == MOST_PARTS);
        let long = format!(
            "Content-Type: text/plain; {}\nContent-Disposition: {}\n\nx",
            "=?a".repeat(3_000_000),
            ";a*0*=b".repeat(1_000_000)
        );
        assert_eq!(parts_of(long.as_bytes()).all.len(), 1);
        let (fields, more) = fields_of("A: b\n".repeat(100_000).as_bytes());
        assert!(more && fields.len() == MOST_FIELDS);
    }

    /// Reads everything that the web UI reads of a message.
    #[track_caller]
    fn read_all(message: &[u8], what: &str) {
        let budget = budget_of(message);
        let parts = Parts::of(message, budget);
        for part in &parts.all {
            part.content();
            part.text(1 << 20);
        }
        parts.text(1 << 20);
        header_fields(message, budget);
        assert!(!budget.is_exhausted(), "{what}");
    }

    /// Each of these would take hours if the reading were quadratic.
    #[test]
    fn parts_are_read_in_time_in_proportion_to_the_length_of_the_message() {
        let multipart = |boundary: &str| format!("Content-Type: multipart/mixed; boundary=\"{boundary}\"\n\n");
        let header = |name: &str, value: &str| format!("Content-Type: text/plain\n{name}: {value}\n\nx");
        let long = "b".repeat(LONGEST_BOUNDARY);
        let level = |n: usize| multipart(&"b".repeat(n + 1)) + "--" + &"b".repeat(n + 1) + "\n";
        let text = |charset: &str, encoding: &str, body: &str| {
            format!("Content-Type: text/plain; charset={charset}\nContent-Transfer-Encoding: {encoding}\n\n{body}")
        };
        for (what, message) in [
            ("parts without end", multipart("x") + &"--x\n\na\n".repeat(100_000)),
            ("empty parts", multipart("x") + &"--x\n".repeat(300_000)),
            ("parts that are multiparts", multipart("x") + &format!("--x\n{}--y\n", multipart("y")).repeat(20_000)),
            ("levels without end", (0..1000).map(|n| level(n % 190)).collect()),
            (
                "boundaries that others begin with",
                (0..100).map(level).collect::<String>() + &format!("--{long}\n").repeat(5_000),
            ),
            ("lines that are almost a boundary", multipart(&long) + &format!("--{long}x\n").repeat(5_000)),
            ("one line", multipart("x") + &"--x".repeat(400_000)),
            ("white space behind a boundary", multipart("x") + "--x" + &" ".repeat(1_000_000)),
            ("a long field", header("Subject", &"=?utf-8?Q?a?= ".repeat(80_000))),
            ("a folded field", header("Subject", &"=?\n ".repeat(300_000))),
            ("a long name", header(&"x".repeat(1_000_000), "")),
            ("many fields", "Content-Type: a\n".repeat(80_000)),
            ("UTF-7", text("utf-7", "8bit", &"+-".repeat(500_000))),
            ("another name of UTF-7", text("csUnicode11UTF7", "base64", &"Ky0r".repeat(300_000))),
            ("states", text("iso-2022-jp", "8bit", &"\u{1b}$B\u{1b}(B".repeat(300_000))),
            ("lines that go on", text("utf-8", "quoted-printable", &"=\n".repeat(500_000))),
            ("signs", text("utf-8", "quoted-printable", &"=".repeat(1_000_000))),
            ("no digits", text("utf-8", "base64", &"=!".repeat(500_000))),
        ] {
            read_all(message.as_bytes(), what);
        }
        // Fields of eight kilobytes, each of which takes long.
        let words = format!("{} =?{}", "x".repeat(4000), "?=a".repeat(300));
        let parameters: String = (0..1100).map(|n| format!(";{n}*0*=")).collect();
        let part =
            format!("--x\nContent-Type: a{parameters}\nContent-Disposition: {parameters}\nContent-ID: {words}\n\n");
        read_all((multipart("x") + &part.repeat(300)).as_bytes(), "fields of parts");
        read_all(format!("A: {words}\n").repeat(300).as_bytes(), "fields of the header");
    }

    #[test]
    fn so_many_parameters_are_read_and_no_more() {
        let name = |before: usize| {
            let message = format!("Content-Type: image/png{}; name=x\n\n", ";a=b".repeat(before));
            parts_of(message.as_bytes()).all.remove(0).name
        };
        assert_eq!((name(MOST_PARAMETERS - 1), name(MOST_PARAMETERS)), (Some("x".into()), None));
    }

    #[test]
    fn what_reads_beyond_its_budget_ends() {
        let message = [b"Content-Type: multipart/mixed; boundary=x\n\n".as_slice(), &b"--x\n\na\n".repeat(9)].concat();
        let late = ReadingBudget::of(&message, Deadline::after(Duration::ZERO));
        let parts = Parts::of(&message, &late);
        assert!(parts.all.is_empty() && header_fields(&message, &late).0.is_empty() && late.is_exhausted());
        let budget = ReadingBudget::of(&message, Deadline::after(Duration::from_hours(1)));
        let parts = Parts::of(&message, &budget);
        while budget.spend(message.len()) {}
        assert!(parts.all.len() == 9 && parts.all.iter().all(|part| part.content().is_empty()));
    }

    #[test]
    fn of_a_large_text_no_more_is_decoded_than_is_shown() {
        for (encoding, one) in [("base64", "YWJj\n"), ("quoted-printable", "=61=62=63=\n"), ("8bit", "abc")] {
            let message = format!("Content-Transfer-Encoding: {encoding}\n\n{}", one.repeat(100_000));
            let parts = parts_of(message.as_bytes());
            assert_eq!(parts.text(30), Some(("abc".repeat(10), true)), "{encoding}");
            assert_eq!(parts.all[0].content().len(), 300_000);
        }
    }

    #[test]
    fn base64_that_is_broken_gives_what_there_is() {
        let of = |body: &str| {
            let message = format!("Content-Transfer-Encoding: base64\n\n{body}");
            parts_of(message.as_bytes()).all[0].content()
        };
        assert_eq!(of("aGVsbG8="), b"hello");
        assert_eq!(of("aGVs bG8"), b"hello");
        assert_eq!(of("aGVsbG8!?=\n=\nX"), b"hello\x17");
        // One character is left over.
        assert_eq!(of("aGVsbG8gd29ybGQhx"), b"hello world!");
        assert_eq!(of("a"), b"");
        assert_eq!(of(""), b"");
    }

    #[test]
    fn as_many_levels_and_parts_are_distinguished_as_are_known_and_no_more() {
        let nested = |levels: usize| {
            let open = (0..levels).map(|n| format!("Content-Type: multipart/mixed; boundary=b{n}\n\n--b{n}\n"));
            kinds(&(open.collect::<String>() + "Content-Type: image/png\n\nx"))
        };
        assert_eq!((nested(DEEPEST), nested(DEEPEST + 1)), (vec!["image/png".into()], vec!["multipart/mixed".into()]));
        let of = |count| {
            let message = format!("Content-Type: multipart/mixed; boundary=x\n\n{}--x--\n", "--x\n\na\n".repeat(count));
            let parts = parts_of(message.as_bytes());
            (parts.all.len(), parts.more)
        };
        assert_eq!([of(MOST_PARTS), of(MOST_PARTS + 1)], [(MOST_PARTS, false), (MOST_PARTS, true)]);
        let fields = |count| fields_of("A: b\n".repeat(count).as_bytes()).1;
        assert_eq!((fields(MOST_FIELDS), fields(MOST_FIELDS + 1)), (false, true));
    }

    #[test]
    fn the_text_is_of_all_parts_that_are_no_files_up_to_its_limit() {
        let message = "Content-Type: multipart/mixed; boundary=x\n\n--x\n\none\n\
            --x\nContent-Disposition: attachment\n\nfile\n--x\nContent-Type: text/html\nContent-Disposition: attachment\n\n<p>\n\
            --x\n\ntwo\n--x--\n";
        let parts = parts_of(message.as_bytes());
        for (most, text, cut) in
            [(100, "one\ntwo", false), (7, "one\ntwo", false), (6, "one\ntw", true), (3, "one", true), (2, "on", true)]
        {
            assert_eq!(parts.text(most), Some((text.into(), cut)), "{most}");
        }
        assert!(parts.html().is_none());
        assert_eq!(parts_of(b"Content-Type: image/png\n\nx").text(9), None);
    }

    #[test]
    fn a_charset_is_honoured_where_one_is_named_and_ascii_is_none() {
        let of = |charset: &str| {
            let message =
                [format!("Content-Type: text/plain; charset={charset}\n\n").as_bytes(), b"\xfc\xc3\xbc"].concat();
            parts_of(&message).text(100).unwrap().0
        };
        for charset in ["us-ascii", "US-ASCII", "ascii", "\" \""] {
            assert_eq!(of(charset), "\u{fffd}ü", "{charset}");
        }
        assert_eq!(of("iso-8859-1"), "üÃ¼");
        // Four bytes may encode one character, and are not too many for it.
        let cut = |body: &str| {
            let message = format!("Content-Type: text/plain; charset=iso-2022-jp\n\n{body}");
            parts_of(message.as_bytes()).text(1).unwrap()
        };
        assert_eq!((cut("\u{1b}(Ba"), cut("\u{1b}(Bab")), (("a".into(), false), ("a".into(), true)));
    }
}
