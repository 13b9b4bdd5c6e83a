//! Properties that hold for any bytes from a server, and for any argument of ours. The functions panic on a violation; tests
//! and the fuzz targets (tests/fuzz) call them.

use super::argument::{Command, Part};
use super::fetch;
use super::token::Tokens;
use super::wire::{Reader, Reply, Segment};
use base64::Engine;
use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD};

/// The parsed contents of a reply, for a comparison with another parser.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// The tag of a status, if it has one.
    pub tag: Option<String>,
    /// `OK`, `NO`, `BAD`, `BYE` or `PREAUTH`.
    pub status: Option<&'static str>,
    /// The code of a status, and its arguments.
    pub code: Option<(String, String)>,
    /// The text of a status for people.
    pub text: String,
    /// UIDVALIDITY and UID of the stored message.
    pub append_uid: Option<(u32, u32)>,
    /// UIDVALIDITY and UIDNEXT of a mailbox.
    pub position: Option<(u32, u32)>,
    /// The UIDs that SEARCH returned.
    pub search: Option<Vec<u32>>,
    /// A message of a mailbox.
    pub fetched: Option<ArbitraryMessage>,
}

/// The fetched attributes of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArbitraryMessage {
    /// Its UID.
    pub uid: u32,
    /// Its size in bytes.
    pub size: Option<u64>,
    /// Whether it is marked `\Deleted`.
    pub deleted: Option<bool>,
    /// Its bytes, or some of them.
    pub body: Option<Vec<u8>>,
}

/// A server's bytes are consumed to the end of each reply and no byte further, however they arrive. They use no more memory
/// than was sent. `compare` receives each reply and its parsed contents.
///
/// # Panics
/// If this does not hold.
pub fn any_reply(bytes: &[u8], compare: &dyn Fn(&[u8], &Read)) {
    // Byte by byte: a reply is complete with its last byte, so the parser needs no byte after it.
    let (mut reader, mut begin, mut ended) = (Reader::default(), 0, None);
    let mut replies = Vec::new();
    for (at, byte) in bytes.iter().enumerate() {
        reader.feed(std::slice::from_ref(byte));
        match reader.next() {
            Ok(None) => {}
            Ok(Some(reply)) => {
                assert!(reader.is_empty(), "more than the reply was read");
                let sent = bytes.get(begin..=at).unwrap_or_default();
                compare(sent, &what_it_says(sent, &reply));
                begin = at + 1;
                replies.push(reply);
                assert!(matches!(reader.next(), Ok(None)), "a reply of no bytes");
            }
            Err(broken) => {
                assert_eq!(broken.failure, crate::imap::MailboxFailure::Protocol);
                assert!(!broken.detail.contains(char::is_control), "{:?}", broken.detail);
                ended = Some(broken.detail);
                break;
            }
        }
    }
    // In pieces, and all at once: the result is the same.
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

/// The parsed contents of one reply.
fn what_it_says(sent: &[u8], reply: &Reply) -> Read {
    match reply {
        Reply::Continue => Read::default(),
        Reply::Status(tag, answer) => {
            assert!(tag.as_ref().is_none_or(|tag| !tag.is_empty() && tag.len() < sent.len()));
            assert!(answer.text.chars().count() <= 400 && !answer.text.contains(char::is_control), "{answer:?}");
            let append_uid = fetch::append_uid(answer).map(|at| (at.uid_validity, at.uid));
            assert!(append_uid.is_none_or(|(uid_validity, uid)| uid_validity != 0 && uid != 0));
            Read {
                tag: tag.clone(),
                status: Some(answer.status.as_str()),
                code: answer.code.as_ref().map(|code| (code.name.clone(), code.arguments.clone())),
                text: answer.text.clone(),
                append_uid,
                ..Read::default()
            }
        }
        Reply::Data(data) => {
            let kept: usize = data.iter().map(|(Segment::Text(part) | Segment::Literal(part))| part.len()).sum();
            assert!(kept < sent.len(), "more is kept than was sent");
            assert!(Tokens::of(data).count() <= sent.len() + data.len(), "more tokens than bytes");
            let position = fetch::position(data).map(|at| (at.uid_validity, at.uid_next));
            assert!(position.is_none_or(|(uid_validity, uid_next)| uid_validity != 0 && uid_next != 0));
            let search = fetch::search(data);
            assert!(search.as_ref().is_none_or(|uids| uids.len() <= sent.len() && !uids.contains(&0)));
            let fetched = fetch::fetched(data).map(|fetched| {
                assert_ne!(fetched.uid, 0);
                assert!(fetched.body.as_ref().is_none_or(|body| body.len() < sent.len()));
                ArbitraryMessage { uid: fetched.uid, size: fetched.size, deleted: fetched.deleted, body: fetched.body }
            });
            let _ = (fetch::capabilities(data), fetch::exists(data));
            Read { position, search, fetched, ..Read::default() }
        }
    }
}

/// No argument escapes its quotes. An independent parser of the command (RFC 3501 section 9) finds exactly one argument, with
/// these bytes, or the command is never sent.
///
/// # Panics
/// If this does not hold.
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
