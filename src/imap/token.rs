//! Splits untagged data into tokens. Parentheses are counted, so that no depth of them overflows the stack.

use super::wire::Segment;
use std::borrow::Cow;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    Open,
    Close,
    /// An atom, a number, a flag, `NIL`, `BODY[HEADER.FIELDS (MESSAGE-ID)]`.
    Atom(&'a [u8]),
    /// A quoted string or a literal.
    String(Cow<'a, [u8]>),
}

impl<'a> Token<'a> {
    pub(super) fn is(&self, name: &str) -> bool {
        matches!(self, Self::Atom(atom) if atom.eq_ignore_ascii_case(name.as_bytes()))
    }

    pub(super) fn number(&self) -> Option<u64> {
        match self {
            Self::Atom(atom) => std::str::from_utf8(atom).ok()?.parse().ok(),
            _ => None,
        }
    }

    /// The UID or UIDVALIDITY in the token: above zero (RFC 3501 section 9, `nz-number`).
    pub(super) fn nonzero(&self) -> Option<u32> {
        self.number().and_then(|number| u32::try_from(number).ok()).filter(|number| *number != 0)
    }

    pub(super) fn string(self) -> Option<Cow<'a, [u8]>> {
        match self {
            Self::String(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// Splits a reply into tokens. The first is the `*`.
pub(super) struct Tokens<'a> {
    segments: std::slice::Iter<'a, Segment>,
    text: &'a [u8],
}

impl<'a> Tokens<'a> {
    pub(super) fn of(segments: &'a [Segment]) -> Self {
        Self { segments: segments.iter(), text: &[] }
    }

    /// The next token, as the name of a flag or a mailbox, in which brackets are ordinary characters. RFC 3501 section 9:
    /// `ATOM-CHAR` includes `[`, and `ASTRING-CHAR` also `]`.
    pub(super) fn name(&mut self) -> Option<Token<'a>> {
        self.token(|_| false)
    }

    /// Skips one value, which is a single token or a whole list; `None` if there is none.
    pub(super) fn skip_value(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            match self.next()? {
                Token::Open => depth += 1,
                Token::Close => depth = depth.checked_sub(1)?,
                _ => {}
            }
            if depth == 0 {
                return Some(());
            }
        }
    }

    fn quoted(&mut self) -> Token<'a> {
        let mut string = Vec::new();
        let mut bytes = self.text.iter();
        while let Some(byte) = bytes.next() {
            match byte {
                b'"' => break,
                b'\\' => string.extend(bytes.next()),
                byte => string.push(*byte),
            }
        }
        self.text = bytes.as_slice();
        Token::String(Cow::Owned(string))
    }

    /// An atom ends at the next space or parenthesis. The brackets in a section's name belong to the atom.
    fn atom(&mut self, names_section: impl Fn(&[u8]) -> bool) -> Token<'a> {
        let has_section = names_section(self.text);
        let mut brackets = 0_usize;
        let end = self.text.iter().position(|byte| {
            match byte {
                b'[' if has_section => brackets += 1,
                b']' => brackets = brackets.saturating_sub(1),
                b' ' | b'(' | b')' | b'"' => return brackets == 0,
                _ => {}
            }
            false
        });
        let (atom, rest) = self.text.split_at_checked(end.unwrap_or(self.text.len())).unwrap_or((self.text, &[]));
        self.text = rest;
        Token::Atom(atom)
    }
}

/// Whether the text begins with an item of FETCH that has a section: `BODY[]`, `BINARY[1]`, `BINARY.SIZE[1]` (RFC 3516).
fn is_section(text: &[u8]) -> bool {
    let name = text.split(|byte| *byte == b'[').next().unwrap_or_default();
    ["BODY", "BINARY", "BINARY.SIZE"].iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        self.token(is_section)
    }
}

impl<'a> Tokens<'a> {
    fn token(&mut self, names_section: impl Fn(&[u8]) -> bool) -> Option<Token<'a>> {
        loop {
            let Some((first, rest)) = self.text.split_first() else {
                match self.segments.next()? {
                    Segment::Text(text) => self.text = text,
                    Segment::Literal(bytes) => return Some(Token::String(Cow::Borrowed(bytes))),
                }
                continue;
            };
            match first {
                b' ' => self.text = rest,
                b'(' => {
                    self.text = rest;
                    return Some(Token::Open);
                }
                b')' => {
                    self.text = rest;
                    return Some(Token::Close);
                }
                b'"' => {
                    self.text = rest;
                    return Some(self.quoted());
                }
                _ => return Some(self.atom(names_section)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Vec<Token<'static>> {
        let segments = Box::leak(Box::new([Segment::Text(text.as_bytes().to_vec())]));
        Tokens::of(segments).collect()
    }

    #[test]
    fn brackets_belong_to_their_atom() {
        assert_eq!(
            tokens(r#"* 1 FETCH (BODY[HEADER.FIELDS ("Message-ID")] "a \"b\"" FLAGS (\Seen))"#),
            [
                Token::Atom(b"*"),
                Token::Atom(b"1"),
                Token::Atom(b"FETCH"),
                Token::Open,
                Token::Atom(br#"BODY[HEADER.FIELDS ("Message-ID")]"#),
                Token::String(Cow::Borrowed(br#"a "b""#)),
                Token::Atom(b"FLAGS"),
                Token::Open,
                Token::Atom(br"\Seen"),
                Token::Close,
                Token::Close,
            ]
        );
    }

    /// RFC 3501 section 9: a keyword may contain `[`. An unclosed one used to consume the rest of the reply.
    #[test]
    fn a_bracket_in_a_name_is_a_letter() {
        assert_eq!(tokens("a[b (c]").len(), 3);
        let segments = [Segment::Text(b"BODY[x (y".to_vec())];
        let mut tokens = Tokens::of(&segments);
        assert_eq!(tokens.name(), Some(Token::Atom(b"BODY[x")));
        assert_eq!(tokens.name(), Some(Token::Open));
    }

    #[test]
    fn what_is_left_open_ends_with_the_reply() {
        assert_eq!(tokens("\"open").len(), 1);
        assert_eq!(tokens("BODY[ (").len(), 1);
        assert_eq!(tokens("\"\\").len(), 1);
        assert_eq!(tokens("a]]) b").len(), 3);
    }

    #[test]
    fn thousands_of_parentheses_are_only_counted() {
        // imap-proto 0.17 overflows its stack here.
        let nested = format!("{}x{} UID 5", "(".repeat(5000), ")".repeat(5000));
        let segments = [Segment::Text(nested.into_bytes())];
        let mut tokens = Tokens::of(&segments);
        assert_eq!(tokens.skip_value(), Some(()));
        assert!(tokens.next().is_some_and(|token| token.is("uid")));
        assert_eq!(Tokens::of(&[Segment::Text("(".repeat(5000).into_bytes())]).skip_value(), None);
        assert_eq!(Tokens::of(&[Segment::Text(b")".to_vec())]).skip_value(), None);
    }

    #[test]
    fn a_uid_is_above_zero_and_fits_32_bits() {
        for (text, number) in
            [("1", Some(1)), ("4294967295", Some(u32::MAX)), ("0", None), ("4294967296", None), ("-1", None)]
        {
            assert_eq!(Token::Atom(text.as_bytes()).nonzero(), number);
        }
    }
}
