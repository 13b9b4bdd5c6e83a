//! What holds for any bytes of a server's, and for any argument of ours: functions that panic where it does not, for
//! tests and for the fuzz targets (tests/fuzz).

use super::argument::{Command, Part};
use super::fetch::{self, Fetched};
use super::token::Tokens;
use super::wire::{Answer, Reader, Reply, Segment, Status};
use crate::mailbox::{Placement, Position};
use base64::Engine;
use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD};
use imap_proto::rfc4315::UidSetMember;
use imap_proto::{AttributeValue, MailboxDatum, Response, ResponseCode, StatusAttribute};

/// What a server sends is read to the end of each reply and no byte further, however it arrives; costs no more memory than
/// was sent; and says what another reader (imap-proto) reads in it.
///
/// # Panics
/// Where it does not hold.
pub fn any_reply(bytes: &[u8]) {
    // Byte by byte: a reply is there as soon as its last byte is, so nothing after it was needed.
    let (mut reader, mut begin, mut ended) = (Reader::default(), 0, None);
    let mut replies = Vec::new();
    for (at, byte) in bytes.iter().enumerate() {
        reader.feed(std::slice::from_ref(byte));
        match reader.next() {
            Ok(None) => {}
            Ok(Some(reply)) => {
                assert!(reader.is_empty(), "more than the reply was read");
                let sent = bytes.get(begin..=at).unwrap_or_default();
                what_it_says(sent, &reply);
                begin = at + 1;
                replies.push(reply);
                assert!(matches!(reader.next(), Ok(None)), "a reply of no bytes");
            }
            Err(broken) => {
                assert_eq!(broken.failure, crate::mailbox::MailboxFailure::Protocol);
                assert!(!broken.detail.contains(char::is_control), "{:?}", broken.detail);
                ended = Some(broken.detail);
                break;
            }
        }
    }
    // In pieces, and all at once: the same.
    let piece = 1 + usize::from(bytes.first().copied().unwrap_or_default());
    for piece in [piece, usize::MAX] {
        let (mut reader, mut again, mut broken) = (Reader::default(), Vec::new(), None);
        'fed: for piece in bytes.chunks(piece) {
            reader.feed(piece);
            loop {
                match reader.next() {
                    Ok(None) => break,
                    Ok(Some(reply)) => again.push(reply),
                    Err(error) => {
                        broken = Some(error.detail);
                        break 'fed;
                    }
                }
            }
        }
        assert_eq!(again, replies, "in pieces of {piece}");
        assert_eq!(broken, ended, "in pieces of {piece}");
    }
}

/// What is read in one reply.
fn what_it_says(sent: &[u8], reply: &Reply) {
    match reply {
        Reply::Continue => {}
        Reply::Status(tag, answer) => {
            assert!(tag.as_ref().is_none_or(|tag| !tag.is_empty() && tag.len() < sent.len()));
            assert!(answer.text.chars().count() <= 400 && !answer.text.contains(char::is_control), "{answer:?}");
            if let Some(placement) = fetch::append_uid(answer) {
                assert!(placement.uid != 0 && placement.uid_validity != 0);
            }
            as_imap_proto_reads_status(sent, tag.as_deref(), answer);
        }
        Reply::Data(data) => {
            let kept: usize = data.iter().map(|(Segment::Text(part) | Segment::Literal(part))| part.len()).sum();
            assert!(kept < sent.len(), "more is kept than was sent");
            assert!(Tokens::of(data).count() <= sent.len() + data.len(), "more tokens than bytes");
            let (position, found) = (fetch::position(data), fetch::search(data));
            assert!(position.is_none_or(|at| at.uid_validity != 0 && at.uid_next != 0));
            assert!(found.as_ref().is_none_or(|uids| uids.len() <= sent.len() && !uids.contains(&0)));
            let fetched = fetch::fetched(data);
            if let Some(fetched) = &fetched {
                assert_ne!(fetched.uid, 0);
                assert!(fetched.body.as_ref().is_none_or(|body| body.len() < sent.len()));
            }
            let _ = (fetch::capabilities(data), fetch::exists(data));
            as_imap_proto_reads_data(sent, position, found, fetched);
        }
    }
}

/// What imap-proto reads in these bytes; `None` where it does not read all of them, or panics, as it does on some.
fn theirs(sent: &[u8]) -> Option<Response<'_>> {
    // It recurses, and would overflow its stack. What it reads in a number with a sign is not for us to follow.
    if sent.iter().filter(|byte| **byte == b'(').count() > 50 {
        return None;
    }
    match std::panic::catch_unwind(|| Response::parse(sent)).ok()? {
        Ok(([], response)) => Some(response),
        _ => None,
    }
}

fn as_imap_proto_reads_status(sent: &[u8], tag: Option<&str>, answer: &Answer) {
    let (their_tag, status, outcome) = match theirs(sent) {
        Some(Response::Done { tag, status, outcome }) => (Some(tag.0), status, outcome),
        Some(Response::Data { status, outcome }) => (None, status, outcome),
        _ => return,
    };
    assert_eq!(tag, their_tag.as_deref());
    let same = match status {
        imap_proto::Status::Ok => Status::Ok,
        imap_proto::Status::No => Status::No,
        imap_proto::Status::Bad => Status::Bad,
        imap_proto::Status::Bye => Status::Bye,
        imap_proto::Status::PreAuth => Status::PreAuth,
    };
    assert_eq!(answer.status, same);
    match outcome.code {
        Some(ResponseCode::TryCreate) => assert_eq!(answer.code("TRYCREATE"), Some("")),
        Some(ResponseCode::AppendUid(uid_validity, uids)) => {
            // It takes 0 for a number as well.
            if let [UidSetMember::Uid(uid @ 1..)] = *uids
                && uid_validity != 0
            {
                assert_eq!(fetch::append_uid(answer), Some(Placement { uid_validity, uid }));
            }
        }
        _ => {}
    }
}

fn as_imap_proto_reads_data(
    sent: &[u8],
    position: Option<Position>,
    found: Option<Vec<u32>>,
    fetched: Option<Fetched>,
) {
    match theirs(sent) {
        Some(Response::MailboxData(MailboxDatum::Status { status, .. })) => {
            let (mut validities, mut nexts) = (Vec::new(), Vec::new());
            for attribute in status {
                match attribute {
                    StatusAttribute::UidNext(uid) => nexts.push(uid),
                    StatusAttribute::UidValidity(uid) => validities.push(uid),
                    _ => {}
                }
            }
            // It takes 0 for a number as well.
            if let ([uid_validity], [uid_next]) = (validities.as_slice(), nexts.as_slice())
                && (*uid_validity != 0 && *uid_next != 0)
            {
                assert_eq!(position, Some(Position { uid_validity: *uid_validity, uid_next: *uid_next }));
            }
        }
        Some(Response::MailboxData(MailboxDatum::Search(uids))) if !uids.contains(&0) => assert_eq!(found, Some(uids)),
        Some(Response::Fetch(1.., attributes)) => as_imap_proto_reads_fetch(&attributes, fetched),
        _ => {}
    }
}

fn as_imap_proto_reads_fetch(attributes: &[AttributeValue<'_>], fetched: Option<Fetched>) {
    let mut expected = Fetched::default();
    let mut seen = [0; 4];
    for attribute in attributes {
        match attribute {
            AttributeValue::Uid(uid) => (expected.uid, seen[0]) = (*uid, seen[0] + 1),
            AttributeValue::Rfc822Size(size) => (expected.size, seen[1]) = (Some((*size).into()), seen[1] + 1),
            AttributeValue::Flags(flags) => {
                let deleted = flags.iter().any(|flag| flag.eq_ignore_ascii_case("\\Deleted"));
                (expected.deleted, seen[2]) = (Some(deleted), seen[2] + 1);
            }
            // It leaves the backslashes of a quoted string in.
            AttributeValue::BodySection { data, .. } if !data.as_ref().is_some_and(|data| data.contains(&b'\\')) => {
                expected.body = data.as_ref().map(|data| data.to_vec());
                seen[3] += 1;
            }
            _ => return,
        }
    }
    // What is told twice is told wrongly by somebody.
    if seen[0] == 1 && expected.uid != 0 && seen.iter().all(|times| *times <= 1) {
        assert_eq!(fetched, Some(expected));
    }
}

/// No argument gets out of its quotes: an independent reader of the command (RFC 3501 section 9) finds one argument there,
/// with these bytes, whatever they are; or the command is never sent.
///
/// # Panics
/// Where it does not hold.
pub fn any_argument(text: &str) {
    let sendable = !text.contains(['\r', '\n', '\0']);
    let before_and_after = |argument: fn(Command<'static>, String) -> Option<Command<'static>>| {
        let command = argument(Command::new("STATUS"), text.to_owned())?.word("(UIDNEXT)");
        assert!(!command.shown().contains(char::is_control), "{:?}", command.shown());
        assert!(command.parts().len() <= 3);
        let (shown, read) = (command.shown().to_owned(), argument_of(&command));
        Some((shown, read))
    };
    let string = before_and_after(|command, text| command.string(&text).ok());
    assert_eq!(string.map(|(_, read)| read), sendable.then(|| text.as_bytes().to_vec()));
    let secret = before_and_after(|command, text| command.secret(&text).ok());
    assert_eq!(secret, sendable.then(|| ("STATUS … (UIDNEXT)".to_owned(), text.as_bytes().to_vec())));
    let mailbox = before_and_after(|command, text| command.mailbox(&text).ok());
    let name = mailbox.map(|(_, read)| from_modified_utf7(&read));
    assert_eq!(name, (sendable && !text.is_empty()).then(|| text.to_owned()));
}

/// The one argument of `STATUS argument (UIDNEXT)`, as a server reads it.
fn argument_of(command: &Command<'_>) -> Vec<u8> {
    let mut texts = Vec::new();
    let mut literal = None;
    for part in command.parts() {
        match part {
            Part::Text(text) => {
                assert!(text.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{text:?}");
                texts.push(text.as_str());
            }
            Part::Literal(bytes) => {
                assert!(literal.replace(bytes.to_vec()).is_none(), "two arguments");
                assert!(!bytes.contains(&0));
            }
        }
    }
    match (texts.as_slice(), literal) {
        ([before, after], Some(literal)) => {
            assert_eq!((*before, *after), ("STATUS ", " (UIDNEXT)"));
            literal
        }
        ([all], None) => {
            let mut rest = all.strip_prefix("STATUS \"").expect("a quoted string").bytes();
            let mut read = Vec::new();
            loop {
                match rest.next().expect("it is closed") {
                    b'"' => break,
                    b'\\' => {
                        let escaped = rest.next().expect("something is escaped");
                        assert!(matches!(escaped, b'"' | b'\\'), "quoted-specials");
                        read.push(escaped);
                    }
                    byte => read.push(byte),
                }
            }
            assert_eq!(rest.collect::<Vec<u8>>(), b" (UIDNEXT)");
            read
        }
        other => panic!("{other:?}"),
    }
}

/// RFC 3501 section 5.1.3, backwards.
fn from_modified_utf7(encoded: &[u8]) -> String {
    let base64 = GeneralPurpose::new(&alphabet::IMAP_MUTF7, NO_PAD);
    let mut rest = std::str::from_utf8(encoded).expect("ASCII");
    let mut name = String::new();
    while let Some((plain, shifted)) = rest.split_once('&') {
        name.push_str(plain);
        let (inside, after) = shifted.split_once('-').expect("it is shifted back");
        if inside.is_empty() {
            name.push('&');
        } else {
            let bytes = base64.decode(inside).expect("base64");
            let units: Vec<u16> =
                bytes.chunks(2).map(|pair| u16::from_be_bytes(pair.try_into().expect("16 bits"))).collect();
            name.push_str(&String::from_utf16(&units).expect("UTF-16"));
        }
        rest = after;
    }
    name + rest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    /// Pieces that replies are made of, in any order.
    fn reply() -> impl Strategy<Value = Vec<u8>> {
        let pieces: &[&[u8]] = &[
            b"* ",
            b"+ ",
            b"A1 ",
            b"OK ",
            b"no ",
            b"BYE ",
            b"[APPENDUID 1 2] ",
            b"[TRYCREATE] ",
            b"[",
            b"]",
            b"{3}\r\n",
            b"~{1}\r\n",
            b"{0}\r\n",
            b"{99999999999}\r\n",
            b"STATUS ",
            b"INBOX ",
            b"(UIDNEXT 17 UIDVALIDITY 3)",
            b"UIDNEXT ",
            b"SEARCH 1 2",
            b"1 FETCH (",
            b"UID 4 ",
            b"UID ",
            b"FLAGS (\\Seen \\Deleted) ",
            b"BODY[] ",
            b"BODY[HEADER.FIELDS (MESSAGE-ID)] ",
            b"NIL ",
            b"RFC822.SIZE 3 ",
            b"\"a \\\" b\" ",
            b"\"",
            b"\\",
            b"(",
            b")",
            b")\r\n",
            b"\r\n",
            b"\n",
            b"\r",
            b" ",
            b"0 ",
            b"4294967295 ",
            b"4294967296 ",
            b"\xc3\xbc",
            b"\xff",
            b"\0",
        ];
        let piece = prop_oneof![
            9 => prop::sample::select(pieces.to_vec()).prop_map(<[u8]>::to_vec),
            1 => prop::collection::vec(any::<u8>(), 0..4),
        ];
        prop::collection::vec(piece, 1..30).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4000) })]

        #[test]
        fn a_reply_is_read_to_its_end_and_no_further(bytes in reply()) {
            super::any_reply(&bytes);
        }

        #[test]
        fn no_argument_gets_out_of_its_quotes(text in "(?s)(\\PC|[\"\\\\{}+&%*() \r\n]){0,40}") {
            super::any_argument(&text);
        }

        #[test]
        fn however_long_it_is(text in "[ -~ü]{990,1010}") {
            super::any_argument(&text);
        }
    }
}
