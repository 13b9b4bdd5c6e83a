//! Whatever comes on standard input is a message, and the same message again when it comes back from a mailbox.

use maildrop_command::message::{Identity, Message};
use proptest::prelude::*;

/// Pieces that messages are made of, in any order.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        prop::sample::select(vec![
            &b"From: "[..],
            b"From ",
            b"Message-ID: ",
            b"Subject: ",
            b"To: ",
            b"Date: ",
            b"Return-Path: ",
            b"Delivered-To: ",
            b"Content-Type: ",
            b"\n",
            b"\r\n",
            b"\r",
            b"\0",
            b"\x80",
            b" ",
            b"\t",
            b":",
            b"<a@b>",
            b"=?utf-8?q?",
            b"?=",
            b"=?utf-8?B?AAA=?=",
            b"\"",
            b"(",
            b"\\",
            b",",
            b"\xc3",
            b"\xc3\xb6",
            b"20 Nov 2026 13:00",
            b"99999999999",
        ])
        .prop_map(<[u8]>::to_vec),
        prop::collection::vec(any::<u8>(), 0..4),
    ];
    prop::collection::vec(piece, 1..40).prop_map(|pieces| pieces.concat())
}

fn is_mbox_line_only(raw: &[u8]) -> bool {
    raw.is_empty()
        || raw.starts_with(b"From ") && raw.iter().position(|&b| b == b'\n').is_none_or(|at| at + 1 == raw.len())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn it_is_received_and_keeps_its_identity(raw in message()) {
        let Ok(message) = Message::receive(raw.clone()) else {
            prop_assert!(is_mbox_line_only(&raw));
            return Ok(());
        };
        let bytes = message.as_received();
        let identity = *message.identity();
        prop_assert!(bytes.ends_with(b"\r\n"));
        prop_assert!(!bytes.contains(&0));
        prop_assert!(bytes.iter().enumerate().all(|(at, &b)| b != b'\n' || at > 0 && bytes[at - 1] == b'\r'));
        prop_assert_eq!(Identity::of(&raw), identity);
        prop_assert_eq!(Identity::of(bytes), identity);
        prop_assert_eq!(Identity::of(message.without_prepended_lines()), identity);
        prop_assert_eq!(Identity::of(&[&b"Delivered-To: doug@x\r\n"[..], bytes].concat()), identity);
        // Appending what was received changes nothing more.
        if !bytes.starts_with(b"From ") {
            let again = Message::receive(bytes.to_vec()).unwrap();
            prop_assert_eq!(again.as_received(), bytes);
        }
        let fields: Vec<[String; 2]> = serde_json::from_str(&message.headers_json()).unwrap();
        prop_assert!(fields.iter().flatten().all(|text| !text.contains(char::is_control)));
    }
}
