//! Properties for any bytes of a client, as functions that panic if one is violated. Unit tests and the fuzz target (tests/fuzz)
//! call them.

use super::session::{LmtpSession, Settings, StartTls, Step, Transaction};
use super::spool::Spool;
use crate::delivery::Verdict;
use crate::protocol::Recipient;
use crate::service::inflight_message::Body;
use memchr::memmem;
use std::sync::Arc;
use std::time::Duration;

/// The largest message, in bytes.
const LIMIT: u64 = 2000;

/// The replies that a client has received, and the messages that were delivered for it.
#[derive(Debug, Default, PartialEq, Eq)]
struct ReadSession {
    replies: Vec<u8>,
    delivered: Vec<Delivered>,
    closed: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct Delivered {
    sender: String,
    recipients: Vec<Recipient>,
    queue_id: Option<String>,
    client_address: Option<String>,
    message: Vec<u8>,
}

/// Checks the properties of a session. Its result depends only on the bytes, not on how they are split. A second parser of the
/// same bytes counts the same number of replies.
///
/// # Panics
/// If a property is violated.
pub fn any_bytes(bytes: &[u8]) {
    let whole = read_session(bytes, bytes.len().max(1));
    for piece in [1, 2, 7] {
        assert_eq!(read_session(bytes, piece), whole, "in pieces of {piece}");
    }
    count(bytes, &whole);
}

/// Feeds a session, `piece` bytes at a time.
fn read_session(bytes: &[u8], piece: usize) -> ReadSession {
    let settings = Settings {
        host: "mx.example".into(),
        postmaster: "postmaster@x".into(),
        max_recipients: 60,
        deadline: Duration::from_secs(240),
        spool: Arc::new(Spool { directory: "/nonexistent".into(), above: u64::MAX, limit: Some(LIMIT) }),
        tally: super::counters::LmtpTally::default(),
    };
    let client = StartTls::NotOffered;
    let mut session = LmtpSession::new(Arc::new(settings), client);
    let mut heard = ReadSession { replies: session.replies(), ..ReadSession::default() };
    for mut piece in bytes.chunks(piece) {
        loop {
            let (taken, step) = session.feed(piece);
            piece = &piece[taken..];
            heard.replies.extend(session.replies());
            match step {
                Step::More => {
                    assert!(piece.is_empty());
                    break;
                }
                Step::Deliver(transaction) => {
                    let verdicts = verdicts(&transaction, heard.delivered.len());
                    heard.delivered.push(delivered(*transaction));
                    session.answer(verdicts.as_deref());
                }
                Step::Close => {
                    heard.closed = true;
                    return heard;
                }
                Step::StartTls => panic!("it was not offered"),
            }
        }
    }
    heard
}

/// The verdicts of this turn: one for each recipient, none, too few, or too many.
fn verdicts(transaction: &Transaction, turn: usize) -> Option<Vec<Verdict>> {
    let recipients = transaction.request.recipients.len();
    let count = match turn % 4 {
        0 => recipients,
        1 => return None,
        2 => recipients - 1,
        _ => recipients + 1,
    };
    Some(vec![Verdict::delivered("INBOX appended"); count])
}

fn delivered(transaction: Transaction) -> Delivered {
    let Transaction { request, message } = transaction;
    let Body::Memory(message) = message else { panic!("no file was to be made") };
    assert_eq!((request.size, request.file), (message.len() as u64, None));
    Delivered {
        sender: request.sender,
        recipients: request.recipients,
        queue_id: request.queue_id,
        client_address: request.client_address,
        message,
    }
}

/// Parses the same bytes again, only by their line ends, and counts the replies.
fn count(bytes: &[u8], heard: &ReadSession) {
    let replies = replies(&heard.replies);
    let mut replies = replies.iter();
    let mut delivered = heard.delivered.iter();
    assert_eq!(replies.next().map(String::as_str), Some("220"));
    let (mut rest, mut recipients) = (bytes, 0);
    while let Some(end) = memmem::find(rest, b"\r\n") {
        let (line, behind) = (&rest[..end], &rest[end + 2..]);
        rest = behind;
        let reply = replies.next().expect("each line has its reply").as_str();
        let verb = line.get(..4).unwrap_or_default().to_ascii_uppercase();
        match (verb.as_slice(), reply) {
            (_, "221" | "421") => {
                assert!(heard.closed);
                break;
            }
            (b"MAIL", "250") => recipients = 0,
            (b"RCPT", "250") => recipients += 1,
            (b"DATA", "354") => {
                let after_a_line = [b"\r\n", rest].concat();
                let Some(end) = memmem::find(&after_a_line, b"\r\n.\r\n") else { break };
                let content = &rest[..end];
                rest = &rest[end + 3..];
                let shown: Vec<&str> = replies.by_ref().take(recipients).map(String::as_str).collect();
                assert!(recipients > 0 && shown.len() == recipients, "{shown:?} for {recipients}");
                let plain = without_dots(content);
                // A line end counts as one byte, as in `spool`.
                let size = plain.len() - memchr::memchr_iter(b'\n', &plain).count();
                if size as u64 > LIMIT {
                    assert!(shown.iter().all(|code| *code == "552"), "{shown:?}");
                } else {
                    let delivered = delivered.next().expect("it is delivered");
                    assert_eq!(delivered.recipients.len(), recipients);
                    let after_ours = memmem::find(&delivered.message, b">\r\n").expect("a Return-Path") + 3;
                    assert!(delivered.message.starts_with(b"Return-Path: <"));
                    assert!(delivered.message[after_ours..] == plain, "the message is another one");
                    assert!(shown.iter().all(|code| matches!(*code, "250" | "451")), "{shown:?}");
                }
            }
            (b"DATA", code) => assert!(code.starts_with(['4', '5']), "{code}"),
            _ => assert_ne!(reply, "354"),
        }
    }
    assert_eq!(replies.next(), None, "a reply to nothing");
    assert_eq!(delivered.next(), None, "a message from nowhere");
}

/// The codes, one for each reply. Checks that each line is printable.
fn replies(said: &[u8]) -> Vec<String> {
    let shown = std::str::from_utf8(said).expect("ASCII");
    assert!(shown.ends_with("\r\n"));
    let mut codes = Vec::new();
    for line in shown.split_terminator("\r\n") {
        assert!(line.len() < 400 && line.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{line:?}");
        let (code, rest) = line.split_at(3);
        assert!(code.bytes().all(|byte| byte.is_ascii_digit()), "{line:?}");
        match rest.chars().next() {
            Some(' ') => codes.push(code.to_owned()),
            other => assert_eq!(other, Some('-'), "{line:?}"),
        }
    }
    codes
}

/// Removes the leading dot of each line.
fn without_dots(content: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    let mut rest = content;
    while !rest.is_empty() {
        let end = memmem::find(rest, b"\r\n").map_or(rest.len(), |end| end + 2);
        let (line, behind) = rest.split_at(end);
        plain.extend_from_slice(line.strip_prefix(b".").unwrap_or(line));
        rest = behind;
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    /// An input that libFuzzer found: nearly all of it is line ends.
    #[test]
    fn a_message_is_as_large_as_where_its_lines_end_with_lf() {
        let lines = "x\r\n".repeat(999);
        any_bytes(format!("LHLO x\r\nMAIL FROM:<>\r\nRCPT TO:<a@b>\r\nDATA\r\n{lines}.\r\nQUIT\r\n").as_bytes());
    }

    /// The parts of a session, and texts that resemble them.
    const PIECES: [&str; 34] = [
        "LHLO mx.example\r\n",
        "MAIL FROM:<lisa@gmail.com>\r\n",
        "MAIL FROM:<> SIZE=5000\r\n",
        "MAIL FROM:<> SIZE=30 BODY=8BITMIME SMTPUTF8\r\n",
        "RCPT TO:<doug@mail.axial.net>\r\n",
        "RCPT TO:<doug@mail.axial.net>\r\n",
        "RCPT TO:<\"odd name\"@x>\r\n",
        "RCPT TO:<no>\r\n",
        "RCPT TO:<a b>\r\n",
        "DATA\r\n",
        "DATA\r\n",
        "Subject: x\r\n\r\n",
        ".\r\n",
        "\r\n.\r\n",
        "\n.\n",
        "\r.\r\n",
        "\n.\r\n",
        "\r\n.\n",
        "\r\n.\r\r\n",
        "..\r\n",
        ".x\r\n",
        "\r\n",
        "\r",
        "\n",
        ".",
        "\0\u{e9}",
        "RSET\r\n",
        "NOOP\r\n",
        "QUIT\r\n",
        "XFORWARD IDENT=4bXyz ADDR=192.0.2.7\r\n",
        "HELO x\r\n",
        "BDAT 5\r\n",
        "STARTTLS\r\n",
        "FOO\r\n",
    ];

    proptest! {
        #[test]
        fn any_pieces_of_a_session_are_answered_as_they_should_be(pieces in vec(select(&PIECES[..]), 0..60)) {
            any_bytes(pieces.concat().as_bytes());
        }

        #[test]
        fn any_message_goes_through_or_is_refused_for_each_recipient(
            recipients in 1..60_usize,
            pieces in vec(select(&PIECES[11..26]), 0..40),
            large in any::<bool>(),
        ) {
            let recipients = "RCPT TO:<doug@mail.axial.net>\r\n".repeat(recipients);
            let large = if large { "x".repeat(3000) } else { String::new() };
            let one = format!("MAIL FROM:<>\r\n{recipients}DATA\r\n{}{large}\r\n.\r\n", pieces.concat());
            any_bytes(format!("LHLO x\r\n{}QUIT\r\n", one.repeat(5)).as_bytes());
        }

        #[test]
        fn garbage_is_answered_line_by_line(bytes in vec(any::<u8>(), 0..2000)) {
            any_bytes(&bytes);
        }
    }
}
