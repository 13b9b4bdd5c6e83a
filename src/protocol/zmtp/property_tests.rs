//! Properties for any bytes of a peer, as functions that panic if one is violated. Tests and the fuzz target (tests/fuzz) use
//! them.

use super::connection::{Connection, Message, Settings};
use super::error::ZmtpError;
use super::frame::write_command;
use super::handshake::{SocketType, greeting, ready};

/// The memory that is allowed in addition to the limits: buffers, half a header, answers to PINGs.
const BESIDE: usize = 64 << 10;

/// Small limits, which random bytes can reach.
pub fn settings(socket_type: SocketType) -> Settings {
    Settings { socket_type, identity: None, longest_frame: 100_000, most_frames: 8, longest_message: 150_000 }
}

/// The greeting and READY of a peer of this type.
pub fn handshake(theirs: SocketType) -> Vec<u8> {
    let mut bytes = greeting().to_vec();
    write_command(b"READY", &ready(theirs, None), &mut bytes);
    bytes
}

/// Any bytes, after a handshake or instead of it, give messages or an error. How they are split makes no difference, and their
/// memory use is bounded.
///
/// # Panics
/// If a property is violated.
pub fn any_bytes(bytes: &[u8], after_a_handshake: bool, piece: usize) {
    let before = if after_a_handshake { handshake(SocketType::Dealer) } else { Vec::new() };
    let all = [&before, bytes].concat();
    let whole = read(&all, all.len().max(1));
    assert_eq!(whole, read(&all, piece.max(1)), "split into pieces of {piece}");
    assert_eq!(whole, read(&all, 1), "split into bytes");
    let sent: usize = whole.0.iter().flatten().map(Vec::len).sum();
    assert!(sent <= bytes.len(), "more was read than was sent");
}

/// The messages that one end sends arrive at the other.
///
/// # Panics
/// If a message does not arrive unchanged.
pub fn any_messages(messages: &[Message], piece: usize) {
    let mut dealer = Connection::new(settings(SocketType::Dealer));
    for message in messages {
        let frames: Vec<&[u8]> = message.iter().map(Vec::as_slice).collect();
        dealer.send(&frames);
    }
    let answer = dealer.feed(&handshake(SocketType::Router));
    assert_eq!(answer, Ok(()));
    assert_eq!(read(dealer.outgoing(), piece.max(1)), (messages.to_vec(), None));
}

/// The messages that a router parses from these bytes.
fn read(bytes: &[u8], piece: usize) -> (Vec<Message>, Option<ZmtpError>) {
    let mut router = Connection::new(settings(SocketType::Router));
    let mut messages = Vec::new();
    for piece in bytes.chunks(piece) {
        let fed = router.feed(piece);
        let limit = settings(SocketType::Router).longest_message + 3 * piece.len() + BESIDE;
        assert!(router.held() <= limit, "{} bytes are held", router.held());
        let ended = loop {
            match router.next() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        assert!(fed.is_ok() || fed.err() == ended, "an error was forgotten");
        if ended.is_some() {
            return (messages, ended);
        }
    }
    (messages, None)
}
