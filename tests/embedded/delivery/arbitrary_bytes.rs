//! Whatever comes on standard input is a message, and the same message again when it comes back from a mailbox.

use crate::properties;
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
            b"X-Original-To: ",
            b"Received: ",
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

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn it_is_received_and_keeps_its_identity(raw in message()) {
        properties::message::holds(&raw);
    }
}
