//! Parses the requested untagged data: STATUS, SEARCH, FETCH; and the code APPENDUID. Each function returns `None` for any
//! other line.

use super::token::{Token, Tokens};
use super::wire::{Answer, Segment};
use super::{Placement, Position};

/// The tokens after `* NAME`.
fn after<'a>(data: &'a [Segment], name: &str) -> Option<Tokens<'a>> {
    let mut tokens = Tokens::of(data);
    tokens.next().filter(|token| token.is("*"))?;
    tokens.next().filter(|token| token.is(name))?;
    Some(tokens)
}

/// The items of STATUS.
fn status_items(data: &[Segment]) -> Option<Tokens<'_>> {
    let mut tokens = after(data, "STATUS")?;
    // The mailbox's name need not be compared, since there is one request at a time.
    tokens.name().filter(|token| !matches!(token, Token::Open | Token::Close))?;
    tokens.next().filter(|token| *token == Token::Open)?;
    Some(tokens)
}

/// `* STATUS "INBOX" (UIDNEXT 4392 UIDVALIDITY 1)` (RFC 3501 section 7.2.4). `None` also if one of the two is missing.
pub(crate) fn position(data: &[Segment]) -> Option<Position> {
    let mut tokens = status_items(data)?;
    let (mut uid_validity, mut uid_next) = (None, None);
    loop {
        match tokens.next()? {
            Token::Close => break,
            name if name.is("UIDVALIDITY") => uid_validity = tokens.next()?.nonzero(),
            name if name.is("UIDNEXT") => uid_next = tokens.next()?.nonzero(),
            _ => tokens.skip_value()?,
        }
    }
    Some(Position { uid_validity: uid_validity?, uid_next: uid_next? })
}

/// `* STATUS INBOX (X-GUID c8885b2662830a6b210000009331bd36)`: Dovecot's id of the mailbox, if the command asked for that
/// alone.
pub(crate) fn guid(data: &[Segment]) -> Option<String> {
    let mut tokens = status_items(data)?;
    tokens.next().filter(|token| token.is("X-GUID"))?;
    let Token::Atom(id) = tokens.next()? else { return None };
    Some(String::from_utf8_lossy(id).into_owned())
}

/// `* SEARCH 2 3 6` (RFC 3501 section 7.2.5).
pub(crate) fn search(data: &[Segment]) -> Option<Vec<u32>> {
    let tokens = after(data, "SEARCH")?;
    // Any other token belongs to an extension: `(MODSEQ 917162500)`.
    Some(tokens.take_while(|token| *token != Token::Open).filter_map(|token| token.nonzero()).collect())
}

/// Whether it is a line of LIST: `* LIST (\HasNoChildren) "/" Sent` (RFC 3501 section 7.2.2).
pub(crate) fn is_list(data: &[Segment]) -> bool {
    after(data, "LIST").is_some()
}

/// `* CAPABILITY IMAP4rev1 UIDPLUS`, in capitals.
pub(crate) fn capabilities(data: &[Segment]) -> Option<Vec<String>> {
    let names = after(data, "CAPABILITY")?.filter_map(|token| match token {
        Token::Atom(name) => Some(String::from_utf8_lossy(name).to_ascii_uppercase()),
        _ => None,
    });
    Some(names.collect())
}

/// `* MYRIGHTS INBOX lrswipkxte` (RFC 4314 section 3.8): the rights.
pub fn my_rights(data: &[Segment]) -> Option<String> {
    let mut tokens = after(data, "MYRIGHTS")?;
    tokens.name()?;
    match tokens.next()? {
        Token::Atom(rights) => Some(String::from_utf8_lossy(rights).into_owned()),
        // An empty set of rights can only be a string.
        Token::String(rights) => Some(String::from_utf8_lossy(&rights).into_owned()),
        Token::Open | Token::Close => None,
    }
}

/// `* 7 EXISTS`: how many messages the mailbox has.
pub(crate) fn exists(data: &[Segment]) -> Option<u64> {
    let mut tokens = Tokens::of(data);
    tokens.next().filter(|token| token.is("*"))?;
    let count = tokens.next()?.number()?;
    tokens.next().filter(|token| token.is("EXISTS"))?;
    Some(count)
}

/// The requested attributes of one message.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Fetched {
    pub(crate) uid: u32,
    /// Whether it has the flag `\Deleted`; `None` if the server sent no flags.
    pub(crate) deleted: Option<bool>,
    /// RFC822.SIZE, in bytes.
    pub(crate) size: Option<u64>,
    /// The one requested BODY section; `None` also if the server says NIL.
    pub(crate) body: Option<Vec<u8>>,
}

/// `* 12 FETCH (UID 7 FLAGS (\Seen) RFC822.SIZE 44827 BODY[] {44827}...)` (RFC 3501 section 7.4.2). `None` for another line,
/// or one without a UID.
pub(crate) fn fetched(data: &[Segment]) -> Option<Fetched> {
    let mut tokens = Tokens::of(data);
    tokens.next().filter(|token| token.is("*"))?;
    tokens.next()?.nonzero()?;
    tokens.next().filter(|token| token.is("FETCH"))?;
    tokens.next().filter(|token| *token == Token::Open)?;
    let mut fetched = Fetched::default();
    loop {
        match tokens.next()? {
            Token::Close => break,
            name if name.is("UID") => fetched.uid = tokens.next()?.nonzero()?,
            name if name.is("RFC822.SIZE") => fetched.size = tokens.next()?.number(),
            name if name.is("FLAGS") => {
                tokens.next().filter(|token| *token == Token::Open)?;
                let mut deleted = false;
                loop {
                    match tokens.name()? {
                        Token::Close => break,
                        flag => deleted |= flag.is("\\Deleted"),
                    }
                }
                fetched.deleted = Some(deleted);
            }
            Token::Atom(name) if name.get(..5).is_some_and(|name| name.eq_ignore_ascii_case(b"BODY[")) => {
                fetched.body = tokens.next()?.string().map(std::borrow::Cow::into_owned);
            }
            _ => tokens.skip_value()?,
        }
    }
    (fetched.uid != 0).then_some(fetched)
}

/// `[APPENDUID 38505 3955]` (RFC 4315 section 3). Servers may send a set even for one message: `3955:3955`.
pub(crate) fn append_uid(answer: &Answer) -> Option<Placement> {
    let (uid_validity, uids) = answer.code("APPENDUID")?.split_once(' ')?;
    let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number != 0);
    let uid = match uids.trim().split_once(':') {
        None => number(uids.trim())?,
        Some((first, last)) => number(first).filter(|first| number(last) == Some(*first))?,
    };
    Some(Placement { uid_validity: number(uid_validity)?, uid })
}

#[cfg(test)]
mod tests {
    use super::super::wire::{Code, Status};
    use super::*;

    fn text(text: &str) -> Vec<Segment> {
        vec![Segment::Text(text.as_bytes().to_vec())]
    }

    #[test]
    fn a_position_needs_both_halves() {
        let both = Some(Position { uid_validity: 3, uid_next: 17 });
        assert_eq!(position(&text("* STATUS INBOX (UIDNEXT 17 UIDVALIDITY 3)")), both);
        assert_eq!(position(&text("* status \"a (b) \\\"\" (UIDVALIDITY 3 X (1 (2)) UIDNEXT 17)")), both);
        let literal = vec![
            Segment::Text(b"* STATUS ".to_vec()),
            Segment::Literal(b"Entw (UIDNEXT 1".to_vec()),
            Segment::Text(b" (UIDNEXT 17 UIDVALIDITY 3)".to_vec()),
        ];
        assert_eq!(position(&literal), both);
        assert_eq!(position(&text("* STATUS BODY[x (UIDVALIDITY 3 UIDNEXT 17)")), both);
        for half in [
            "* STATUS INBOX (UIDNEXT 17)",
            "* STATUS INBOX (UIDNEXT 17 UIDVALIDITY 0)",
            "* STATUS INBOX (UIDNEXT 17 UIDVALIDITY 3",
            "* STATUS INBOX",
            "* LIST INBOX (UIDNEXT 17 UIDVALIDITY 3)",
        ] {
            assert_eq!(position(&text(half)), None, "{half}");
        }
    }

    #[test]
    fn an_id_is_reported_only_where_it_is_asked_for() {
        let shown = guid(&text("* STATUS INBOX (X-GUID c8885b2662830a6b)"));
        assert_eq!(shown.as_deref(), Some("c8885b2662830a6b"));
        // Courier leaves out unknown items.
        for other in
            ["* STATUS \"INBOX\" ()", "* STATUS INBOX (X-GUID)", "* STATUS INBOX (UIDNEXT 1)", "* LIST (X-GUID a)"]
        {
            assert_eq!(guid(&text(other)), None, "{other}");
        }
    }

    #[test]
    fn a_search_may_find_nothing() {
        assert_eq!(search(&text("* SEARCH")), Some(vec![]));
        assert_eq!(search(&text("* SEARCH 2 84 882 (MODSEQ 917162500)")), Some(vec![2, 84, 882]));
        assert_eq!(search(&text("* 5 EXISTS")), None);
        assert_eq!(exists(&text("* 5 EXISTS")), Some(5));
    }

    #[test]
    fn a_fetched_message_is_read_in_any_order() {
        let data = vec![
            Segment::Text(b"* 1 FETCH (BODY[HEADER.FIELDS (MESSAGE-ID)] ".to_vec()),
            Segment::Literal(b"Message-ID: <) UID 9>\r\n\r\n".to_vec()),
            Segment::Text(b" MODSEQ (5) FLAGS (\\Seen \\deleted) UID 4 RFC822.SIZE 77)".to_vec()),
        ];
        let expected = Fetched {
            uid: 4,
            deleted: Some(true),
            size: Some(77),
            body: Some(b"Message-ID: <) UID 9>\r\n\r\n".to_vec()),
        };
        assert_eq!(fetched(&data), Some(expected));
        let keywords = fetched(&text("* 2 FETCH (FLAGS ($a[b \\Deleted BODY[) UID 4)")).unwrap();
        assert_eq!((keywords.uid, keywords.deleted), (4, Some(true)));
        let flags = fetched(&text("* 2 FETCH (FLAGS (\\Seen) UID 4)")).unwrap();
        assert_eq!((flags.deleted, flags.body), (Some(false), None));
        assert_eq!(fetched(&text("* 2 FETCH (UID 4 BODY[] NIL)")).unwrap().body, None);
        assert_eq!(fetched(&text("* 2 FETCH (UID 4 BODY[] \"\")")).unwrap().body, Some(vec![]));
        assert_eq!(fetched(&text("* 2 FETCH (FLAGS (\\Seen))")), None);
        assert_eq!(fetched(&text("* 2 FETCH (UID 4 BODY[]")), None);
    }

    #[test]
    fn an_appenduid_names_one_message() {
        for (arguments, placement) in [
            ("38505 3955", Some((38505, 3955))),
            ("38505 3955:3955", Some((38505, 3955))),
            ("38505 3955:3956", None),
            ("38505 3955,3957", None),
            ("38505", None),
            ("0 1", None),
            ("1 0", None),
            ("x y", None),
        ] {
            let code = Some(Code { name: "APPENDUID".into(), arguments: arguments.into() });
            let answer = Answer { status: Status::Ok, code, text: String::new() };
            let expected = placement.map(|(uid_validity, uid)| Placement { uid_validity, uid });
            assert_eq!(append_uid(&answer), expected, "{arguments}");
        }
    }
}
