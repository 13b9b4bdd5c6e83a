//! What holds for any bytes on standard input.

use maildrop_command::message::{Address, Identity, Message, message_id_for_search};

/// What pipe(8) writes before the message for one recipient, with its flags R, O and D.
const FOR_DOUG: &[u8] = b"Return-Path: <lisa@gmail.com>\nX-Original-To: doug@x\nDelivered-To: doug@mail.axial.net\n";
const FOR_SCUBA: &[u8] = b"Return-Path: <lisa@gmail.com>\r\nX-Original-To: scuba@x\r\nDelivered-To: scuba@x\r\n";
/// What mail hosts on the way write before it.
const ON_THE_WAY: &[u8] = b"Received: from a by b\n\tfor <doug@mail.axial.net>; Fri, 20 Nov 2026 13:00:00 +0100\n";

/// The same message has the same identity in all its copies, is stored as it came, and what is read in it is bounded.
pub fn holds(raw: &[u8]) {
    let stored = as_stored(raw);
    let Ok(message) = Message::receive(raw.to_vec()) else {
        assert!(stored.is_empty(), "refused");
        return;
    };
    let bytes = message.as_received();
    assert_eq!(bytes, stored, "stored otherwise than it came");
    assert_eq!(message.size(), bytes.len() as u64);
    the_sent_copy_is_the_end_of_it(&message);
    every_copy_is_the_same_message(raw, &message);
    recipients_see_nothing_of_each_other(raw);
    the_filtered_form_is_the_same_message_and_names_no_recipient(&message);
    what_is_read_is_bounded(&message);

    // A word more is another message.
    let other = [bytes, b"x\r\n"].concat();
    assert_ne!(Identity::of(&other), *message.identity());
    assert_ne!(Message::receive(other).unwrap().content_digest(), message.content_digest());
}

/// The message as it has to be in the mailbox, by the words of the documentation alone: without an mbox line at the top,
/// each line ended by CRLF, 0x80 for NUL, and otherwise as it came.
fn as_stored(raw: &[u8]) -> Vec<u8> {
    let (line, rest) = raw.split_at(raw.iter().position(|&byte| byte == b'\n').map_or(raw.len(), |at| at + 1));
    let mbox = line.strip_prefix(b"From ").is_some_and(|sender| !sender.trim_ascii_start().starts_with(b":"));
    let mut stored = Vec::with_capacity(raw.len());
    for &byte in if mbox { rest } else { raw } {
        match byte {
            b'\n' if stored.last() != Some(&b'\r') => stored.extend_from_slice(b"\r\n"),
            0 => stored.push(0x80),
            other => stored.push(other),
        }
    }
    if !stored.is_empty() && !stored.ends_with(b"\n") {
        stored.extend_from_slice(b"\r\n");
    }
    stored
}

fn the_sent_copy_is_the_end_of_it(message: &Message) {
    let (bytes, sent) = (message.as_received(), message.without_prepended_lines());
    assert!(!sent.is_empty());
    let prepended = bytes.strip_suffix(sent).expect("the Sent copy is the end of what was received");
    // What is left out is lines of pipe(8)'s and their continuation, and nothing else.
    let mut names = ["return-path", "x-original-to", "delivered-to"].into_iter();
    for line in prepended.split_inclusive(|&byte| byte == b'\n') {
        if !line.starts_with(b" ") && !line.starts_with(b"\t") {
            let name = line.split(|&byte| byte == b':').next().unwrap().trim_ascii_end().to_ascii_lowercase();
            assert!(names.any(|known| known.as_bytes() == name), "{:?} is left out", String::from_utf8_lossy(line));
        }
    }
}

fn every_copy_is_the_same_message(raw: &[u8], message: &Message) {
    let (bytes, identity) = (message.as_received(), *message.identity());
    let with_lf = with_lf(bytes);
    for (what, copy) in [
        ("as it came", raw),
        ("as it was appended", bytes),
        ("the Sent copy", message.without_prepended_lines()),
        ("with LF", &with_lf),
        ("with an empty line at the end", &[bytes, b"\r\n"].concat()),
        ("with an mbox line", &[b"From lisa@gmail.com Fri Nov 20 13:00:00 2026\n", bytes].concat()),
        ("for Doug", &[FOR_DOUG, bytes].concat()),
        ("for Scuba", &[FOR_SCUBA, &with_lf].concat()),
    ] {
        assert_eq!(Identity::of(copy), identity, "{what}");
        let Ok(received) = Message::receive(copy.to_vec()) else {
            assert!(as_stored(copy).is_empty(), "{what}: refused");
            continue;
        };
        assert_eq!(*received.identity(), identity, "{what}, received");
        assert_eq!(received.content_digest(), message.content_digest(), "{what}");
        assert_eq!(received.lock_subject(), message.lock_subject(), "{what}");
    }
    // Without an id or a date, the Received fields are all that tells one night's message from the next one's.
    let on_the_way = Identity::of(&[ON_THE_WAY, bytes].concat());
    if message.message_id().is_none() {
        assert_ne!(on_the_way, identity);
    } else if message.topmost("Date").is_some() {
        assert_eq!(on_the_way, identity);
    }
    // Appending what was received changes nothing more.
    if !bytes.starts_with(b"From ") {
        assert_eq!(Message::receive(bytes.to_vec()).unwrap().as_received(), bytes);
    }
}

/// As a store has it that keeps lines ended by LF.
fn with_lf(bytes: &[u8]) -> Vec<u8> {
    let mut lines = Vec::with_capacity(bytes.len());
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        match line.strip_suffix(b"\n") {
            Some(mut text) => {
                while let [shorter @ .., b'\r'] = text {
                    text = shorter;
                }
                lines.extend_from_slice(text);
                lines.push(b'\n');
            }
            None => lines.extend_from_slice(line),
        }
    }
    lines
}

/// The ledger keeps one row for all recipients, and Sent one copy: none of them shall learn of a blind copy to another.
fn recipients_see_nothing_of_each_other(raw: &[u8]) {
    // What begins with white space would continue pipe(8)'s last line, and an mbox line stands above it or is no such line.
    if raw.starts_with(b" ") || raw.starts_with(b"\t") || raw.starts_with(b"From ") {
        return;
    }
    let bare = Message::receive(raw.to_vec()).unwrap();
    let [doug, scuba] = [FOR_DOUG, FOR_SCUBA].map(|lines| Message::receive([lines, raw].concat()).unwrap());
    for copy in [&doug, &scuba] {
        assert_eq!(copy.without_prepended_lines(), bare.as_received(), "a line of the envelope in Sent");
        assert!(copy.size() > bare.size(), "the recipient's copy has them");
    }
    assert_eq!(doug.headers_json(), scuba.headers_json());
    assert_eq!((doug.from(), doug.to(), doug.cc()), (scuba.from(), scuba.to(), scuba.cc()));
    assert_eq!((doug.subject(), doug.date()), (scuba.subject(), scuba.date()));
    assert_eq!((doug.identity(), doug.lock_subject()), (scuba.identity(), scuba.lock_subject()));
}

/// What is appended for anybody is the message itself, and nothing that is private is left in what is shown.
fn the_filtered_form_is_the_same_message_and_names_no_recipient(message: &Message) {
    let appended = message.clone().for_any_recipient();
    assert_eq!((appended.identity(), appended.lock_subject()), (message.identity(), message.lock_subject()));
    assert_eq!(Identity::of(appended.as_received()), *message.identity(), "the filtered form is another message");
    let received = Message::receive(appended.as_received().to_vec()).unwrap();
    assert_eq!((received.content_digest(), received.from()), (message.content_digest(), message.from()));
    assert_eq!(
        received.clone().for_any_recipient().as_received(),
        received.as_received(),
        "not the same when repeated"
    );
    for shown in [&appended, &message.clone().for_display()] {
        assert!(!shown.as_received().is_empty());
        for name in [
            "Bcc",
            "Resent-Bcc",
            "Delivered-To",
            "X-Original-To",
            "Envelope-To",
            "X-Envelope-To",
            "Return-Path",
            "X-Rcpt-To",
        ] {
            assert_eq!(shown.topmost(name), None);
        }
    }
    let shown = message.clone().for_display();
    assert_eq!(message.headers_json(), shown.headers_json());
}

fn what_is_read_is_bounded(message: &Message) {
    assert!(!message.lock_subject().is_empty());
    let id = message.message_id_for_people();
    assert!(!id.is_empty() || message.message_id().is_some());
    assert!(id.len() <= 998 && !id.contains(char::is_control), "{id:?}");
    if let Some(id) = message.message_id().and_then(message_id_for_search) {
        assert!(
            !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"\\<>()".contains(&byte)),
            "{id:?}"
        );
    }
    let texts = [message.from(), message.to(), message.cc(), message.subject()].map(|text| text.map(str::to_owned));
    for text in
        texts.into_iter().chain(["Delivered-To", "X-Original-To", "To"].map(|name| message.topmost(name))).flatten()
    {
        assert!(text.len() <= 3 * 8 * 1024 && !text.contains(char::is_control), "{text:?}");
        assert_eq!(text, text.trim());
    }
    assert!(message.date().is_none_or(|seconds| (1..=253_402_300_799).contains(&seconds)));
    if let Some(author) = message.from_address() {
        assert_eq!(Address::parse(&author.to_string()).as_ref(), Ok(author));
        let odd = |c: char| c.is_whitespace() || c.is_control() || "<>(),;:\"\\".contains(c);
        assert!(!author.to_string().contains(odd), "{author}");
    }
    let _ = message.authentication_results("mx");

    let json = message.headers_json();
    assert!(json.len() <= 256 * 1024 + 100, "{} bytes", json.len());
    let fields: Vec<[String; 2]> = serde_json::from_str(&json).unwrap();
    assert!(fields.len() <= 1001, "{} fields", fields.len());
    assert!(fields.iter().flatten().all(|text| !text.contains(char::is_control)), "{json}");
}
