//! Whatever comes on standard input is in the mailbox afterwards, byte for byte, or is refused with one clear line.

use crate::support::database::Engine;
use crate::support::program::as_delivered;
use crate::support::site_fixture::Scene;

const PG: Engine = Engine::Postgres17;

/// Delivers each message to a mailbox of its own, and compares.
fn delivered_as_they_came(messages: &[(&str, Vec<u8>)]) {
    let mut scene = Scene::with(PG, &["doug"]);
    for (what, message) in messages {
        let outcome = scene.deliver("doug", message);
        assert_eq!(outcome.exit, Some(0), "{what}: {outcome:?}");
        outcome.delivered();
    }
    let inbox = scene.inbox("doug");
    assert_eq!(inbox.len(), messages.len());
    for ((what, message), copy) in messages.iter().zip(inbox) {
        same(what, &copy.content, &as_delivered(message));
    }
    assert_eq!(scene.database.count("SELECT count(*) FROM messages"), messages.len() as i64);
}

#[track_caller]
pub fn same(what: &str, found: &[u8], wanted: &[u8]) {
    if found != wanted {
        let at = found.iter().zip(wanted).take_while(|(a, b)| a == b).count();
        let around = |bytes: &[u8]| {
            let (from, to) = (at.saturating_sub(30).min(bytes.len()), (at + 30).min(bytes.len()));
            String::from_utf8_lossy(&bytes[from..to]).into_owned()
        };
        panic!("{what}: differs at byte {at} of {}: {:?}, wanted {:?}", wanted.len(), around(found), around(wanted));
    }
}

#[test]
fn odd_messages() {
    let header = |id: &str| format!("From: lisa@gmail.com\nMessage-ID: <{id}@odd>\nSubject: odd\n");
    let message = |id: &str, body: &[u8]| [header(id).as_bytes(), b"\n", body].concat();
    let boundary = |n: usize| format!("--{n}\nContent-Type: multipart/mixed; boundary={}\n\n", n + 1);
    delivered_as_they_came(&[
        ("no header at all", b"Hello, this is no header.\nAnd this neither.\n".to_vec()),
        ("a body without a header", b"\nHello\n".to_vec()),
        ("one byte", b"x".to_vec()),
        ("one line end", b"\n".to_vec()),
        ("a header without a body", header("no-body").into_bytes()),
        ("no Message-ID", b"From: lisa@gmail.com\nSubject: nameless\n\nHello\n".to_vec()),
        ("an empty Message-ID", b"From: lisa@gmail.com\nMessage-ID:\nSubject: empty\n\nHello\n".to_vec()),
        (
            "several Message-IDs",
            b"Message-ID: <a@several>\nFrom: lisa@gmail.com\nMessage-ID: <b@several>\nMessage-ID: <c@several>\n\nx\n"
                .to_vec(),
        ),
        ("a Message-ID of 10,000 characters", message(&"i".repeat(10_000), b"long\n")),
        ("a Message-ID of odd bytes", b"Message-ID: <\"o'\\dd\xff\xc3\x28\x01\">\nFrom: x\n\nx\n".to_vec()),
        ("NUL bytes", b"Subject: a\0b\nMessage-ID: <n\0ul@odd>\n\n\0\0body\0\n".to_vec()),
        (
            "8-bit bytes",
            b"Subject: gr\xfc\xdfe \xc3\xa4\nFrom: \xe4@x\nMessage-ID: <8bit@odd>\n\n\xff\xfe\x80\n".to_vec(),
        ),
        ("every byte", message("every", &(0..=255).collect::<Vec<u8>>())),
        ("bare CR", message("cr", b"one\rtwo\r\rthree\n\r\n")),
        ("bare LF and CRLF", b"Message-ID: <lf@odd>\r\nSubject: mixed\n\r\none\ntwo\r\nthree\n".to_vec()),
        ("no newline at the end", message("no-newline", b"the end")),
        (
            "a From_ line",
            b"From lisa@gmail.com Fri Nov 20 13:00:00 2026\nMessage-ID: <from_@odd>\n\nFrom here\n".to_vec(),
        ),
        ("a header line of 1 MB", format!("Message-ID: <1mb@odd>\nSubject: {}\n\nx\n", "y".repeat(1 << 20)).into()),
        (
            "20,000 header fields",
            format!("Message-ID: <20k@odd>\n{}\nx\n", "X-Filler: something long enough to count\n".repeat(20_000))
                .into(),
        ),
        (
            "1,000 parts in each other",
            format!(
                "Message-ID: <deep@odd>\nMIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=0\n\n{}",
                (0..1000).map(boundary).collect::<String>()
            )
            .into(),
        ),
        (
            "comments in comments",
            format!("From: {}lisa@gmail.com\nMessage-ID: <c@odd>\n\nx\n", "(".repeat(100_000)).into(),
        ),
        ("a To of 100,000 addresses", format!("To: {}\nMessage-ID: <to@odd>\n\nx\n", "a@b, ".repeat(100_000)).into()),
        ("IMAP in it", message("imap", b"}\r\n{5+}\r\na LOGOUT\r\n* BYE\r\n.\r\n.\n")),
    ]);
}

#[test]
fn fifty_megabytes() {
    let scene = Scene::with(PG, &["doug"]);
    let line = b"The quick brown fox jumps over the lazy dog, over and over.\n";
    let message = |megabytes: usize| {
        [scene.message(&format!("big{megabytes}")).as_bytes(), &line.repeat(megabytes * 1_000_000 / line.len())]
            .concat()
    };
    for megabytes in [5, 50] {
        let message = message(megabytes);
        scene.deliver("doug", &message).delivered();
        let copy = scene.inbox("doug").pop().unwrap();
        same("big", &copy.content, &as_delivered(&message));
    }
}

/// A store that keeps LF and gives out CRLF, as Dovecot does, takes one CR for part of the line end. It is no other
/// message for that: an attempt that died is found again.
#[test]
fn a_bare_cr_before_a_line_end_is_the_stores_to_keep() {
    let mut scene = Scene::with(PG, &["doug"]);
    let message = scene.message("cr") + "end\r\r\nend\r";
    scene.deliver("doug", &message).delivered();
    let copy = scene.inbox("doug").remove(0);
    same("CR at the end", &copy.content, &as_delivered((scene.message("cr") + "end\r\nend\r\n").as_bytes()));
    scene.database.execute("DELETE FROM copies");
    scene.database.execute("UPDATE attempts SET ended_at = NULL");
    scene.ten_minutes_pass();
    assert!(scene.deliver("doug", &message).delivered().starts_with("INBOX adopted"));
    assert_eq!(scene.inbox("doug").len(), 1);
}

#[test]
fn nothing_at_all_is_deferred() {
    let scene = Scene::with(PG, &["doug"]);
    scene.deliver("doug", "").deferred("4.3.0 the message is empty");
    scene.deliver("doug", "From lisa@gmail.com Fri Nov 20 13:00:00 2026\n").deferred("4.3.0 the message is empty");
    assert_eq!(scene.inbox("doug").len(), 0);
}

#[test]
fn a_message_without_an_id_is_one_message_to_all_its_recipients() {
    let mut scene = Scene::with(PG, &["lisa", "scuba", "doug"]);
    let message = "From: lisa@mail.axial.net\nSubject: nameless\n\nHello\n";
    for name in ["scuba", "doug"] {
        // As pipe(8) writes it with its flags D, O and R: not the same bytes.
        let copy = format!("Return-Path: <lisa@mail.axial.net>\nDelivered-To: {name}@mail.axial.net\n{message}");
        scene.deliver(name, copy).delivered();
    }
    assert_eq!((scene.inbox("scuba").len(), scene.inbox("doug").len()), (1, 1));
    assert_eq!(scene.sent("lisa").len(), 1);
    assert_eq!(scene.database.count("SELECT count(*) FROM messages"), 1);
    // Another message without an id is another message.
    scene.deliver("scuba", message.replace("Hello", "Good-bye")).delivered();
    assert_eq!((scene.inbox("scuba").len(), scene.sent("lisa").len()), (2, 2));
}
