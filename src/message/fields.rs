//! Splits the header of a message into its fields: bytes in, slices of them out, nothing decoded.
//!
//! The parser is this crate's own, because no message may be refused. The crate mailparse fails on a message whose first
//! line begins with a space, and reads a whole body as header fields if the blank line is missing. As in Postfix, the body
//! begins at a line that is no header field (`src/global/is_header.c`, `src/global/mime_state.c`). But an mbox `From ` line
//! is skipped.

use memchr::memchr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field<'a> {
    /// The name as written, without the white space that the obsolete syntax allows before the colon (RFC 5322 section 4.5).
    /// The name is empty for lines that neither are a field nor begin the body: continuation lines at the very top, and an
    /// mbox `From ` line anywhere.
    pub name: &'a [u8],
    /// Everything after the colon, line ends and folding included.
    pub value: &'a [u8],
}

impl Field<'_> {
    /// Whether it has this name; case does not matter.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name.as_bytes())
    }

    /// The value unfolded, in relaxed form: see [`relaxed`].
    pub(crate) fn relaxed_value(&self) -> Vec<u8> {
        // The capacity is the upper limit: the value may be as long as a message.
        let mut relaxed_value = Vec::with_capacity(self.value.len());
        relaxed_value.extend(relaxed(self.value));
        relaxed_value
    }

    /// Whether it contains a CR that is no part of a line end. [`relaxed`] drops such a CR, as the identity must; other
    /// readers take it for a space or a line end. So trust must not depend on such a field.
    pub(crate) fn has_bare_cr(&self) -> bool {
        self.value.split(|&byte| byte == b'\n').any(|line| without_line_end(line).contains(&b'\r'))
    }
}

/// The header fields from the top, one by one. The iterator reads each byte once and keeps nothing, so that a header of a
/// million fields costs no memory.
#[derive(Clone, Debug)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
    at_top: bool,
    body: Option<&'a [u8]>,
}

impl<'a> Fields<'a> {
    /// The fields of the header that `message` begins with.
    pub fn of(message: &'a [u8]) -> Self {
        Self { rest: message, at_top: true, body: None }
    }

    /// The bytes that are left to read: the message from the next field on.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The body: what follows the blank line, or begins with the first line that is no header field. The body is known once
    /// the fields are exhausted; until then this is empty.
    pub(crate) fn body(&self) -> &'a [u8] {
        self.body.unwrap_or_default()
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Field<'a>;

    fn next(&mut self) -> Option<Field<'a>> {
        if self.body.is_some() {
            return None;
        }
        let all = self.rest;
        let (line, after) = split_line(all);
        let text = without_line_end(line);
        let nameless = self.at_top && begins_with_white_space(line) || is_mbox_line(line);
        let colon = if nameless { Some((0, 0)) } else { name_and_colon(text) };
        self.at_top = false;
        let Some((name_end, value_start)) = colon else {
            self.body = Some(if text.is_empty() { after } else { all });
            self.rest = &[];
            return None;
        };
        let mut end = line.len();
        let mut rest = after;
        while begins_with_white_space(rest) {
            let (continuation, after) = split_line(rest);
            end += continuation.len();
            rest = after;
        }
        self.rest = rest;
        Some(Field {
            name: all.get(..name_end).unwrap_or_default(),
            value: all.get(value_start..end).unwrap_or_default(),
        })
    }
}

/// The value of a field unfolded and in the "relaxed" form of RFC 6376 section 3.4.2. Line ends are dropped, runs of white space
/// become one space, and none is left at either end. NUL is read as 0x80, as this program and IMAP servers that cannot store NUL
/// replace it.
pub(super) fn relaxed(value: &[u8]) -> impl Iterator<Item = u8> {
    let mut bytes = value.iter().copied().filter(|b| !matches!(b, b'\r' | b'\n')).peekable();
    let mut begun = false;
    std::iter::from_fn(move || {
        let mut space = false;
        while bytes.next_if(|b| matches!(b, b' ' | b'\t')).is_some() {
            space = true;
        }
        let next = *bytes.peek()?;
        if space && begun {
            return Some(b' ');
        }
        begun = true;
        bytes.next();
        Some(if next == 0 { 0x80 } else { next })
    })
}

/// `bytes` without an mbox line at the beginning: `From sender date` (pipe(8) flag F, local(8)). The header field `From :`, which
/// the obsolete syntax allows, is no mbox line.
pub(super) fn without_mbox_line(bytes: &[u8]) -> &[u8] {
    let (line, rest) = split_line(bytes);
    if is_mbox_line(line) { rest } else { bytes }
}

fn is_mbox_line(line: &[u8]) -> bool {
    line.strip_prefix(b"From ").is_some_and(|rest| rest.trim_ascii_start().first() != Some(&b':'))
}

/// The length of the comment (RFC 5322 section 3.2.2) at the beginning of `bytes`; `None` if it is not closed.
pub(super) fn length_of_comment(bytes: &[u8]) -> Option<usize> {
    let (mut depth, mut escaped) = (0_usize, false);
    let end = bytes.iter().position(|byte| {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'(' => depth += 1,
            b')' => depth -= 1,
            _ => {}
        }
        depth == 0
    })?;
    Some(end + 1)
}

/// The first line with its line end, and the rest.
pub(super) fn split_line(bytes: &[u8]) -> (&[u8], &[u8]) {
    let end = memchr(b'\n', bytes).map_or(bytes.len(), |at| at + 1);
    bytes.split_at_checked(end).unwrap_or((bytes, &[]))
}

/// A line without its LF and the CRs before it. Several CRs count as one: a mail store that keeps LF and returns CRLF removes one
/// of them.
pub(super) fn without_line_end(line: &[u8]) -> &[u8] {
    let mut line = line.strip_suffix(b"\n").unwrap_or(line);
    while let Some(shorter) = line.strip_suffix(b"\r") {
        line = shorter;
    }
    line
}

fn begins_with_white_space(line: &[u8]) -> bool {
    matches!(line.first(), Some(b' ' | b'\t'))
}

/// Where the name ends and where the value begins, if this line begins a header field (RFC 5322 sections 2.2 and 4.5).
fn name_and_colon(line: &[u8]) -> Option<(usize, usize)> {
    let name_end = line.iter().position(|b| !matches!(b, b'!'..=b'9' | b';'..=b'~')).filter(|&end| end > 0)?;
    let white = line.get(name_end..)?.iter().position(|b| !matches!(b, b' ' | b'\t'))?;
    let colon = name_end + white;
    (line.get(colon) == Some(&b':')).then_some((name_end, colon + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(message: &[u8]) -> (Vec<(String, String)>, String) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut fields = Fields::of(message);
        let found = fields.by_ref().map(|f| (text(f.name), text(&f.relaxed_value()))).collect();
        (found, text(fields.body()))
    }

    #[track_caller]
    fn check(message: &[u8], fields: &[(&str, &str)], body: &str) {
        let expected: Vec<_> = fields.iter().map(|&(n, v)| (n.to_owned(), v.to_owned())).collect();
        assert_eq!(split(message), (expected, body.to_owned()));
    }

    #[test]
    fn an_ordinary_message() {
        check(
            b"From: lisa@gmail.com\r\nSubject: a\r\n\tlong  one \r\n\r\nbody\r\n",
            &[("From", "lisa@gmail.com"), ("Subject", "a long one")],
            "body\r\n",
        );
        check(b"A: b\n\nbody", &[("A", "b")], "body");
        check(b"A: b", &[("A", "b")], "");
        check(b"A:\n\n\nbody", &[("A", "")], "\nbody");
    }

    #[test]
    fn a_missing_blank_line_begins_the_body() {
        check(b"A: b\nHello, Doug\nC: d\n", &[("A", "b")], "Hello, Doug\nC: d\n");
        check(b"no header at all\n", &[], "no header at all\n");
        check(b"\nbody", &[], "body");
        check(b": empty name\n", &[], ": empty name\n");
        check("Größe: 1\n".as_bytes(), &[], "Größe: 1\n");
    }

    #[test]
    fn a_first_line_that_begins_with_a_space_continues_nothing() {
        check(b" odd\n too\nA: b\n\nx", &[("", "odd too"), ("A", "b")], "x");
        check(b"Delivered-To: doug\n odd\nA: b\n\nx", &[("Delivered-To", "doug odd"), ("A", "b")], "x");
    }

    #[test]
    fn an_mbox_line_is_nothing_wherever_it_stands() {
        check(b"From a b\nA: b\n\nx", &[("", "From a b"), ("A", "b")], "x");
        check(
            b"Delivered-To: doug\nFrom a b\nA: b\n\nx",
            &[("Delivered-To", "doug"), ("", "From a b"), ("A", "b")],
            "x",
        );
    }

    #[test]
    fn odd_bytes() {
        check(b"From : lisa\n\n", &[("From", "lisa")], "");
        check(b"A: b\r\r\n\r\r\nbody", &[("A", "b")], "body");
        check(b"A: b\rC: d\r\r", &[("A", "bC: d")], "");
        check(b"A: b\n \n c\n\nx", &[("A", "b c")], "x");
        check(b"", &[], "");
    }

    #[test]
    fn a_cr_that_ends_no_line_is_reported() {
        let bare = |message: &[u8]| Fields::of(message).next().unwrap().has_bare_cr();
        for ordinary in
            [&b"A: b"[..], b"A: b\n", b"A: b\r\n", b"A: b\r\n c\r\n", b"A: b\n\tc\n\nx\ry", b"A: b\r\r\n c\r\r"]
        {
            assert!(!bare(ordinary), "{ordinary:?}");
        }
        for odd in [&b"A: b\rc"[..], b"A:\rb\r\n", b"A: b\r c\r\n", b"A: b\r\n c\rd\r\n", b"A: b\r\r\n c\r\rd\n"] {
            assert!(bare(odd), "{odd:?}");
        }
    }

    #[test]
    fn an_mbox_line_is_not_a_from_field() {
        assert_eq!(without_mbox_line(b"From lisa Mon Nov 20\nA: b\n"), b"A: b\n");
        assert_eq!(without_mbox_line(b"From : lisa\n"), b"From : lisa\n");
        assert_eq!(without_mbox_line(b"From: lisa\n"), b"From: lisa\n");
        assert_eq!(without_mbox_line(b"From "), b"");
        // The following line is no part of it.
        assert_eq!(without_mbox_line(b"From \n: x\n"), b": x\n");
    }
}
