//! What is in a message, for people who look at it: its parts (RFC 2045, RFC 2046), its text, its header fields.
//!
//! No delivery reads any of this. The walk is our own, since it has to be over soon whatever comes: it looks at each byte once
//! for each level of nesting, of which it knows few, and mailparse decodes no more than it is given.

use super::decode::{FIELD_LIMIT, guarded, text, tidy};
use super::fields::{Field, Fields, split_line, without_line_end};
use base64::Engine;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use mailparse::body::Body;
use mailparse::{DispositionType, ParsedContentType, parse_content_disposition, parse_content_type};

/// Multiparts within multiparts: what lies deeper is one part.
const DEEPEST: usize = 16;
/// How many parts are told apart.
const MOST_PARTS: usize = 300;
/// How many header fields of a message are shown.
const MOST_FIELDS: usize = 300;
/// A boundary has 70 characters at most (RFC 2046 section 5.1.1); those of odd programs are longer.
const LONGEST_BOUNDARY: usize = 200;

/// Base64 as mail programs write it: without padding, or with bits that mean nothing in the last character.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A part that has no parts itself.
#[derive(Clone, Debug)]
pub(crate) struct Part<'a> {
    /// Its type, such as `text/html`, in lower case.
    pub(crate) kind: String,
    /// The name of the file that it was, as its author says; nobody has looked whether that is a good one.
    pub(crate) name: Option<String>,
    /// Its Content-ID, without angle brackets.
    pub(crate) content_id: Option<String>,
    /// Whether it is to be shown as a file only.
    attachment: bool,
    charset: Option<String>,
    encoding: String,
    body: &'a [u8],
}

/// The parts of a message, from the top.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parts<'a> {
    pub(crate) all: Vec<Part<'a>>,
    /// Whether there are more than are told apart.
    pub(crate) more: bool,
}

impl<'a> Parts<'a> {
    /// Those of a message, or of anything else.
    pub(crate) fn of(message: &'a [u8]) -> Self {
        let mut parts = Self::default();
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
        let kind = kind.and_then(|value| guarded(|| parse_content_type(&value))).unwrap_or_else(|| ParsedContentType {
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
        let disposition = disposition.and_then(|value| guarded(|| parse_content_disposition(&value)));
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
        });
    }

    /// The text that its author wrote, up to so many bytes of it; and whether that is not all. `None` where there is none.
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

    /// The part that mail programs show of it where they can show HTML.
    pub(crate) fn html(&self) -> Option<&Part<'a>> {
        self.all.iter().find(|part| part.kind == "text/html" && !part.attachment)
    }
}

impl Part<'_> {
    /// What it holds.
    pub(crate) fn content(&self) -> Vec<u8> {
        match self.encoding.as_str() {
            "base64" => {
                let in_alphabet = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
                let mut digits: Vec<u8> = self.body.iter().copied().filter(in_alphabet).collect();
                // A single character left over holds no byte.
                if digits.len() % 4 == 1 {
                    digits.pop();
                }
                LENIENT.decode(digits).unwrap_or_default()
            }
            "quoted-printable" => {
                let kind = ParsedContentType::default();
                let decoded = guarded(|| match Body::new(self.body, &kind, &Some(self.encoding.clone())) {
                    Body::QuotedPrintable(body) => body.get_decoded().ok(),
                    _ => None,
                });
                decoded.flatten().unwrap_or_else(|| self.body.to_vec())
            }
            _ => self.body.to_vec(),
        }
    }

    /// Its text, up to so many bytes; and whether that is not all.
    pub(crate) fn text(&self, most: usize) -> (String, bool) {
        let mut content = self.content();
        // No charset has characters of more than four bytes for one of one byte in UTF-8.
        let mut cut = content.len() > most.saturating_mul(4);
        content.truncate(most.saturating_mul(4));
        let label = self.charset.as_deref().map(str::trim).unwrap_or_default();
        // Programs that name no charset write UTF-8 as a rule.
        let named =
            !label.is_empty() && !label.eq_ignore_ascii_case("us-ascii") && !label.eq_ignore_ascii_case("ascii");
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

/// The header fields of a message, decoded, in order; and whether there are more.
pub(crate) fn header_fields(message: &[u8]) -> (Vec<(String, String)>, bool) {
    let mut fields = Fields::of(message).filter(|field| !field.name.is_empty());
    let name = |field: &Field<'_>| {
        tidy(&String::from_utf8_lossy(field.name.get(..FIELD_LIMIT).unwrap_or(field.name)), 256, false)
    };
    let some = fields.by_ref().take(MOST_FIELDS).map(|field| (name(&field), text(&field))).collect();
    (some, fields.next().is_some())
}

/// What lies between the lines of a boundary (RFC 2046 section 5.1.1); where the last line is missing, up to the end.
struct Split<'a, 'b> {
    /// What is left to look at; `None` after the last line.
    rest: Option<&'a [u8]>,
    boundary: &'b [u8],
    begun: bool,
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
                // The line end before the boundary belongs to it.
                let part = all.get(..at).unwrap_or_default();
                let part = part.strip_suffix(b"\n").unwrap_or(part);
                return Some(part.strip_suffix(b"\r").unwrap_or(part));
            }
        }
    }
}

impl Split<'_, '_> {
    /// Whether a line is the boundary, and the last one.
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

    const NESTED: &str = "Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\nContent-Type: multipart/mixed; boundary=outer\r\n\r\nnot shown\r\n\
        --outer\r\nContent-Type: multipart/alternative; boundary=\"outer2\"\r\n\r\n\
        --outer2\r\nContent-Type: text/plain; charset=iso-8859-1\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\ngr=FC=DF=\r\n dich\r\n\
        --outer2\r\nContent-Type: TEXT/HTML; charset=utf-8\r\n\r\n<p>grüß</p>\r\n--outer2--\r\n\
        --outer\r\nContent-Type: image/png; name=a.png\r\nContent-Disposition: attachment; filename*=utf-8''b%C3%BC.png\r\n\
        Content-ID: <pic@x>\r\nContent-Transfer-Encoding: BASE64\r\n\r\naGVs\r\nbG8\r\n--outer--\r\nnot shown\r\n";

    fn kinds(message: &str) -> Vec<String> {
        Parts::of(message.as_bytes()).all.into_iter().map(|part| part.kind).collect()
    }

    #[test]
    fn parts_of_parts_are_told_apart_and_decoded() {
        let parts = Parts::of(NESTED.as_bytes());
        assert_eq!(kinds(NESTED), ["text/plain", "text/html", "image/png"]);
        assert_eq!(parts.text(1000), Some(("grüß dich".into(), false)));
        assert_eq!(parts.html().unwrap().text(1000).0, "<p>grüß</p>");
        let picture = &parts.all[2];
        assert_eq!((picture.name.as_deref(), picture.content_id.as_deref()), (Some("bü.png"), Some("pic@x")));
        assert_eq!(picture.content(), b"hello");
        assert!(picture.attachment && !parts.more);
        let (fields, more) = header_fields(NESTED.as_bytes());
        assert_eq!((fields[0].clone(), fields.len(), more), (("Subject".into(), "Grüße".into()), 2, false));
    }

    #[test]
    fn a_text_that_is_cut_is_cut_between_characters_and_says_so() {
        let message = format!("Content-Type: text/plain; charset=utf-8\n\n{}", "ü".repeat(100));
        let parts = Parts::of(message.as_bytes());
        assert_eq!(parts.text(11), Some(("ü".repeat(5), true)));
        assert_eq!(parts.text(200), Some(("ü".repeat(100), false)));
        assert_eq!(Parts::of(b"\n\xfc\xff plain").text(100), Some(("\u{fffd}\u{fffd} plain".into(), false)));
        assert_eq!(Parts::of(b"Content-Type: text/plain; charset=nonsense\n\nx").text(9), Some(("x".into(), false)));
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
        // Without its last line it goes on to the end.
        let open = "Content-Type: multipart/mixed; boundary=x\n\n--x\n\none\n--x\n\ntwo";
        assert_eq!(Parts::of(open.as_bytes()).text(100), Some(("one\ntwo".into(), false)));
        // A boundary that another one begins with is another one.
        let other = "Content-Type: multipart/mixed; boundary=x\n\n--xy\n--x\n\none\n--xz\n--x--";
        assert_eq!(Parts::of(other.as_bytes()).text(100), Some(("one\n--xz".into(), false)));
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
        assert_eq!(Parts::of(deep.as_bytes()).all.len(), 1);
        let many = format!("Content-Type: multipart/mixed; boundary=x\n\n{}", "--x\n\na\n".repeat(100_000));
        let parts = Parts::of(many.as_bytes());
        assert!(parts.more && parts.all.len() == MOST_PARTS);
        let long = format!(
            "Content-Type: text/plain; {}\nContent-Disposition: {}\n\nx",
            "=?a".repeat(3_000_000),
            ";a*0*=b".repeat(1_000_000)
        );
        assert_eq!(Parts::of(long.as_bytes()).all.len(), 1);
        let (fields, more) = header_fields("A: b\n".repeat(100_000).as_bytes());
        assert!(more && fields.len() == MOST_FIELDS);
    }

    #[test]
    fn base64_that_is_broken_gives_what_there_is() {
        let of = |body: &str| {
            let message = format!("Content-Transfer-Encoding: base64\n\n{body}");
            Parts::of(message.as_bytes()).all[0].content()
        };
        assert_eq!(of("aGVsbG8="), b"hello");
        assert_eq!(of("aGVs bG8"), b"hello");
        assert_eq!(of("aGVsbG8!?=\n=\nX"), b"hello\x17");
        // A character is left over.
        assert_eq!(of("aGVsbG8gd29ybGQhx"), b"hello world!");
        assert_eq!(of("a"), b"");
        assert_eq!(of(""), b"");
    }

    #[test]
    fn as_many_levels_and_parts_are_told_apart_as_are_known_and_no_more() {
        let nested = |levels: usize| {
            let open = (0..levels).map(|n| format!("Content-Type: multipart/mixed; boundary=b{n}\n\n--b{n}\n"));
            kinds(&(open.collect::<String>() + "Content-Type: image/png\n\nx"))
        };
        assert_eq!((nested(DEEPEST), nested(DEEPEST + 1)), (vec!["image/png".into()], vec!["multipart/mixed".into()]));
        let of = |count| {
            let message = format!("Content-Type: multipart/mixed; boundary=x\n\n{}--x--\n", "--x\n\na\n".repeat(count));
            let parts = Parts::of(message.as_bytes());
            (parts.all.len(), parts.more)
        };
        assert_eq!([of(MOST_PARTS), of(MOST_PARTS + 1)], [(MOST_PARTS, false), (MOST_PARTS, true)]);
        let fields = |count| header_fields("A: b\n".repeat(count).as_bytes()).1;
        assert_eq!((fields(MOST_FIELDS), fields(MOST_FIELDS + 1)), (false, true));
    }

    #[test]
    fn the_text_is_of_all_parts_that_are_no_files_up_to_its_limit() {
        let message = "Content-Type: multipart/mixed; boundary=x\n\n--x\n\none\n\
            --x\nContent-Disposition: attachment\n\nfile\n--x\nContent-Type: text/html\nContent-Disposition: attachment\n\n<p>\n\
            --x\n\ntwo\n--x--\n";
        let parts = Parts::of(message.as_bytes());
        for (most, text, cut) in
            [(100, "one\ntwo", false), (7, "one\ntwo", false), (6, "one\ntw", true), (3, "one", true), (2, "on", true)]
        {
            assert_eq!(parts.text(most), Some((text.into(), cut)), "{most}");
        }
        assert!(parts.html().is_none());
        assert_eq!(Parts::of(b"Content-Type: image/png\n\nx").text(9), None);
    }

    #[test]
    fn a_charset_is_honoured_where_one_is_named_and_ascii_is_none() {
        let of = |charset: &str| {
            let message =
                [format!("Content-Type: text/plain; charset={charset}\n\n").as_bytes(), b"\xfc\xc3\xbc"].concat();
            Parts::of(&message).text(100).unwrap().0
        };
        for charset in ["us-ascii", "US-ASCII", "ascii", "\" \""] {
            assert_eq!(of(charset), "\u{fffd}ü", "{charset}");
        }
        assert_eq!(of("iso-8859-1"), "üÃ¼");
        // Four bytes may stand for one, and are not too many for it.
        let cut = |body: &str| {
            let message = format!("Content-Type: text/plain; charset=iso-2022-jp\n\n{body}");
            Parts::of(message.as_bytes()).text(1).unwrap()
        };
        assert_eq!((cut("\u{1b}(Ba"), cut("\u{1b}(Bab")), (("a".into(), false), ("a".into(), true)));
    }
}
