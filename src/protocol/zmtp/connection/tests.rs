//! One connection with bytes that are valid, nearly valid, and random.

use super::super::property_tests::{any_bytes, any_messages, handshake, settings};
use super::*;
use proptest::prelude::*;

/// A router after the handshake with a dealer.
fn ready_router() -> Connection {
    let mut router = Connection::new(settings(SocketType::Router));
    router.feed(&handshake(SocketType::Dealer)).unwrap();
    assert_eq!(router.peer().unwrap().socket_type, SocketType::Dealer);
    router.wrote(router.outgoing().len());
    router
}

#[test]
fn what_is_sent_before_the_handshake_waits_for_it() {
    let mut dealer = Connection::new(Settings { identity: Some(b"w1".to_vec()), ..settings(SocketType::Dealer) });
    dealer.send(&[b"", b"early"]);
    assert_eq!(dealer.outgoing(), greeting());
    let mut router = Connection::new(settings(SocketType::Router));
    router.send(&[b"for the dealer"]);
    for _ in 0..3 {
        let bytes = dealer.outgoing().to_vec();
        dealer.wrote(bytes.len());
        router.feed(&bytes).unwrap();
        let bytes = router.outgoing().to_vec();
        router.wrote(bytes.len());
        dealer.feed(&bytes).unwrap();
    }
    assert_eq!(router.peer().unwrap().identity.as_deref(), Some(&b"w1"[..]));
    assert_eq!(router.next(), Ok(Some(vec![b"".to_vec(), b"early".to_vec()])));
    assert_eq!(dealer.next(), Ok(Some(vec![b"for the dealer".to_vec()])));
    assert_eq!((router.next(), dealer.next()), (Ok(None), Ok(None)));
    assert!(router.outgoing().is_empty() && dealer.outgoing().is_empty());
}

#[test]
fn what_is_written_in_part_goes_on_where_it_ended() {
    let mut router = ready_router();
    router.send(&[b"abc"]);
    router.wrote(2);
    assert_eq!(router.outgoing(), b"abc");
    router.send(&[b"d"]);
    assert_eq!(router.outgoing(), b"abc\0\x01d");
    router.wrote(6);
    assert!(router.outgoing().is_empty());
}

#[test]
fn what_is_too_long_is_refused_when_it_is_announced_and_costs_nothing() {
    let limits = settings(SocketType::Router);
    let announced = |length: u64| [&[2][..], &length.to_be_bytes()].concat();
    for length in [1 << 40, u64::MAX, limits.longest_frame as u64 + 1] {
        let mut router = ready_router();
        let error = ZmtpError::FrameTooLong { announced: length, limit: limits.longest_frame };
        assert_eq!(router.feed(&announced(length)), Err(error.clone()));
        assert_eq!(router.next(), Err(error.clone()));
        assert_eq!(router.feed(b"\0\x01x"), Err(error));
        assert!(router.held() < 1000, "{}", router.held());
    }
    // For the longest allowed frame, memory is allocated as it arrives.
    let mut router = ready_router();
    router.feed(&announced(limits.longest_frame as u64)).unwrap();
    router.feed(b"x").unwrap();
    assert!(router.held() <= ROOM + 1000, "{}", router.held());

    // Nor is more allocated than was announced, or earlier than needed.
    for piece in [ROOM / 2, 10_000] {
        let mut router = ready_router();
        router.feed(&announced(limits.longest_frame as u64)).unwrap();
        for fed in (piece..limits.longest_frame).step_by(piece) {
            router.feed(&vec![7; piece]).unwrap();
            let room = if fed <= ROOM { ROOM } else { limits.longest_frame };
            assert!(router.held() <= room + piece + 1000, "{fed}: {}", router.held());
        }
    }

    let mut router = ready_router();
    let command = ZmtpError::FrameTooLong { announced: 1 << 40, limit: LONGEST_COMMAND };
    assert_eq!(router.feed(&[&[6][..], &(1u64 << 40).to_be_bytes()].concat()), Err(command));
}

#[test]
fn a_message_of_too_many_frames_or_bytes_is_refused() {
    let limits = settings(SocketType::Router);
    let mut router = ready_router();
    router.feed(&b"\x01\0".repeat(limits.most_frames)).unwrap();
    assert_eq!(router.feed(b"\0\0"), Err(ZmtpError::TooManyFrames(limits.most_frames)));

    let mut router = ready_router();
    let mut bytes = Vec::new();
    write_message(&[&vec![7; limits.longest_frame], &vec![7; limits.longest_frame], b""], &mut bytes);
    assert_eq!(router.feed(&bytes), Err(ZmtpError::MessageTooLong(limits.longest_message)));
    // The limit holds to the byte.
    for (more, complete) in [(0, true), (1, false)] {
        let mut router = ready_router();
        let rest = vec![7; limits.longest_message - limits.longest_frame + more];
        let mut bytes = Vec::new();
        write_message(&[&vec![7; limits.longest_frame], &rest], &mut bytes);
        assert_eq!(router.feed(&bytes).is_ok(), complete, "{more}");
    }
    // Each message may use the whole limit.
    let mut router = ready_router();
    let half = vec![7; limits.longest_frame];
    for _ in 0..3 {
        let mut bytes = Vec::new();
        write_message(&[&half, b"x"], &mut bytes);
        router.feed(&bytes).unwrap();
        assert_eq!(router.next(), Ok(Some(vec![half.clone(), b"x".to_vec()])));
    }
}

#[test]
fn a_ping_is_answered_wherever_it_stands_and_a_flood_of_them_is_not_kept() {
    let mut router = ready_router();
    router.feed(b"\x01\x01a\x04\x0b\x04PING\0\x0aback\0\x01b").unwrap();
    assert_eq!(router.outgoing(), b"\x04\x09\x04PONGback");
    assert_eq!(router.next(), Ok(Some(vec![b"a".to_vec(), b"b".to_vec()])));
    router.wrote(router.outgoing().len());
    for _ in 0..10_000 {
        router.feed(b"\x04\x07\x04PING\0\x0a").unwrap();
    }
    assert_eq!(router.outgoing(), b"\x04\x05\x04PONG".repeat(WAITING_PONGS));
    router.wrote(router.outgoing().len());
    router.feed(b"\x04\x07\x04PING\0\x0a\x04\x05\x04PONG").unwrap();
    assert_eq!(router.outgoing(), b"\x04\x05\x04PONG");
    assert_eq!(router.next(), Ok(None));
}

#[test]
fn a_command_out_of_place_ends_the_connection_for_a_reason() {
    let refused = |bytes: &[u8]| ready_router().feed(bytes).unwrap_err();
    assert_eq!(refused(b"\x04\x0a\x05ERROR\x03bad"), ZmtpError::Refused("bad".into()));
    assert_eq!(refused(b"\x04\x06\x05ERROR"), ZmtpError::Refused(String::new()));
    assert_eq!(refused(b"\x04\x06\x05READY"), ZmtpError::Command("READY".into()));
    assert_eq!(refused(b"\x04\x0a\x09SUBSCRIBE"), ZmtpError::Command("SUBSCRIBE".into()));
    assert_eq!(refused(b"\x04\x06\x04PING\0"), ZmtpError::Command("PING".into()));
    assert_eq!(refused(&[b"\x04\x18\x04PING\0\0".as_slice(), &[b'x'; 17]].concat()), ZmtpError::Command("PING".into()));
    assert_eq!(refused(b"\x04\x00"), ZmtpError::Command(String::new()));
    assert_eq!(refused(b"\x04\x02\xff\x1b"), ZmtpError::Command("??".into()));

    let mut early = Connection::new(settings(SocketType::Router));
    early.feed(&greeting()).unwrap();
    assert_eq!(early.feed(b"\0\x01x"), Err(ZmtpError::Handshake("a message comes before READY")));
    let mut early = Connection::new(settings(SocketType::Router));
    early.feed(&greeting()).unwrap();
    assert_eq!(early.feed(b"\x04\x07\x04PING\0\x0a"), Err(ZmtpError::Command("PING".into())));
}

#[test]
fn what_was_complete_before_a_mistake_is_given_out() {
    let mut router = ready_router();
    router.feed(b"\0\x01a\0\x01b\xff").unwrap();
    assert_eq!(router.next(), Ok(Some(vec![b"a".to_vec()])));
    assert_eq!(router.next(), Ok(Some(vec![b"b".to_vec()])));
    assert_eq!(router.next(), Err(ZmtpError::Flags(0xff)));
    assert_eq!(router.next(), Err(ZmtpError::Flags(0xff)));
}

#[test]
fn no_log_shows_what_is_reported_on_a_connection() {
    let mut router = ready_router();
    router.feed(b"\0\x06secret").unwrap();
    router.send(&[b"secret"]);
    let shown = format!("{router:?}");
    assert!(shown.starts_with("Connection") && shown.contains("Dealer") && !shown.contains("secret"), "{shown}");
}

proptest! {
    #[test]
    fn any_bytes_give_messages_or_an_error_however_they_are_split(
        bytes in proptest::collection::vec(any::<u8>(), 0..600), ready in any::<bool>(), piece in 1usize..70
    ) {
        any_bytes(&bytes, ready, piece);
    }

    // Random bytes that mostly are frames get further than others.
    #[test]
    fn frames_that_are_nearly_right_give_messages_or_an_error(
        frames in proptest::collection::vec((0u8..9, proptest::collection::vec(0u8..3, 0..300)), 0..20), piece in 1usize..70
    ) {
        let mut bytes = Vec::new();
        for (flags, body) in frames {
            bytes.extend_from_slice(&[flags, u8::try_from(body.len()).unwrap_or(0)]);
            bytes.extend_from_slice(&body);
        }
        any_bytes(&bytes, true, piece);
    }

    #[test]
    fn messages_arrive_as_they_were_sent_however_they_are_split(
        messages in proptest::collection::vec(
            proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 1..5), 0..5
        ),
        piece in 1usize..400
    ) {
        any_messages(&messages, piece);
    }
}
