//! The start of a connection: greeting and READY (RFC 23, "Greeting" and "The NULL Security Mechanism").

use super::error::{ZmtpError, printable};
use super::frame::{read_short, write_short};
use crate::base::text_enum::text_enum;
use std::fmt;

/// The length of a greeting: signature (10), version (2), mechanism (20), as-server (1), filler (31).
pub(super) const GREETING: usize = 64;

/// The longest identity, in bytes.
const LONGEST_IDENTITY: usize = 255;

text_enum! {
    /// The socket types of requests and replies.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum SocketType {
        Req = "REQ",
        Rep = "REP",
        Dealer = "DEALER",
        Router = "ROUTER",
    }
}

impl SocketType {
    /// Whether these two types may be connected (RFC 23, "The Socket-Type Property").
    fn talks_with(self, other: Self) -> bool {
        matches!(
            (self, other),
            (Self::Req, Self::Rep | Self::Router)
                | (Self::Rep, Self::Req | Self::Dealer)
                | (Self::Dealer, Self::Rep | Self::Dealer | Self::Router)
                | (Self::Router, Self::Req | Self::Dealer | Self::Router)
        )
    }
}

impl fmt::Display for SocketType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The peer, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub socket_type: SocketType,
    /// The peer's identity for routing, if it has one: 1 to 255 bytes, the first of them not 0.
    pub identity: Option<Vec<u8>>,
}

pub(super) fn greeting() -> [u8; GREETING] {
    let mut greeting = [0; GREETING];
    let text = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL";
    for (byte, value) in greeting.iter_mut().zip(text) {
        *byte = *value;
    }
    greeting
}

/// Checks as much of a peer's greeting as has arrived, because a peer of an older version waits for our answer before it
/// sends the rest. `true` if the greeting is complete.
pub(super) fn check_greeting(bytes: &[u8]) -> Result<bool, ZmtpError> {
    // The eight bytes in between are padding.
    if bytes.first().is_some_and(|byte| *byte != 0xff) || bytes.get(9).is_some_and(|byte| *byte != 0x7f) {
        return Err(ZmtpError::NotZmtp);
    }
    // A peer of a newer version has to use our version with us (RFC 23, "Version Negotiation").
    if let Some(&version) = bytes.get(10)
        && version < 3
    {
        return Err(ZmtpError::Version(version));
    }
    if let Some(mechanism) = bytes.get(12..32) {
        let name = mechanism.trim_ascii_end();
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        let rest = mechanism.get(name.len()..).unwrap_or_default();
        if name != b"NULL" || rest.iter().any(|byte| *byte != 0) {
            return Err(ZmtpError::Mechanism(printable(name)));
        }
    }
    Ok(bytes.len() >= GREETING)
}

/// The body of our READY, after its name.
pub(super) fn ready(socket_type: SocketType, identity: Option<&[u8]>) -> Vec<u8> {
    let mut body = Vec::new();
    let mut property = |name: &str, value: &[u8]| {
        write_short(name.as_bytes(), &mut body);
        body.extend_from_slice(&u32::try_from(value.len()).unwrap_or(u32::MAX).to_be_bytes());
        body.extend_from_slice(value);
    };
    property("Socket-Type", socket_type.as_str().as_bytes());
    if let Some(identity) = identity {
        property("Identity", identity);
    }
    body
}

/// Parses the body of a peer's READY, after its name. Unknown properties are ignored.
pub(super) fn read_ready(ours: SocketType, mut body: &[u8]) -> Result<Peer, ZmtpError> {
    let (mut socket_type, mut identity) = (None, None);
    while !body.is_empty() {
        let (name, value, rest) = property(body).ok_or(ZmtpError::Handshake("a property is cut short"))?;
        // RFC 23: property names are case-insensitive.
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            let known = std::str::from_utf8(value).ok().and_then(SocketType::parse);
            let known = known.filter(|known| ours.talks_with(*known));
            socket_type = Some(known.ok_or_else(|| ZmtpError::Incompatible { ours, theirs: printable(value) })?);
        } else if name.eq_ignore_ascii_case(b"Identity") && !value.is_empty() {
            if value.len() > LONGEST_IDENTITY {
                return Err(ZmtpError::Handshake("its identity is longer than 255 bytes"));
            }
            // A router makes such identities itself, for peers without one (zmq_setsockopt(3), ZMQ_ROUTING_ID).
            if value.first() == Some(&0) {
                return Err(ZmtpError::Handshake("its identity begins with a zero"));
            }
            identity = Some(value.to_vec());
        }
        body = rest;
    }
    let socket_type = socket_type.ok_or(ZmtpError::Handshake("it does not say its socket type"))?;
    Ok(Peer { socket_type, identity })
}

/// The name, the value, and the remaining bytes.
fn property(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (name, rest) = read_short(bytes)?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (value, rest) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
    Some((name, value, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_greeting_and_ready_are_accepted() {
        assert_eq!(check_greeting(&greeting()), Ok(true));
        for length in 0..GREETING {
            assert_eq!(check_greeting(&greeting()[..length]), Ok(false), "{length}");
        }
        for (ours, theirs) in [(SocketType::Router, SocketType::Dealer), (SocketType::Rep, SocketType::Req)] {
            let peer = Peer { socket_type: theirs, identity: Some(b"w1".to_vec()) };
            assert_eq!(read_ready(ours, &ready(theirs, Some(b"w1"))), Ok(peer));
        }
        let nameless = Peer { socket_type: SocketType::Dealer, identity: None };
        assert_eq!(read_ready(SocketType::Router, &ready(SocketType::Dealer, Some(b""))), Ok(nameless.clone()));
        assert_eq!(read_ready(SocketType::Router, &ready(SocketType::Dealer, None)), Ok(nameless));
    }

    #[test]
    fn a_greeting_is_refused_as_soon_as_it_is_wrong() {
        assert_eq!(check_greeting(b"EHLO"), Err(ZmtpError::NotZmtp));
        assert_eq!(check_greeting(b"\xff\0\0\0\0\0\0\0\x01\0"), Err(ZmtpError::NotZmtp));
        assert_eq!(check_greeting(b"\xff\0\0\0\0\0\0\0\x01\x7f\x01"), Err(ZmtpError::Version(1)));
        for name in ["PLAIN", "CURVE", "", "NULLX", "\u{1b}[2J", "NULL\0X"] {
            let mut other = greeting();
            other[12..32].fill(0);
            other[12..12 + name.len()].copy_from_slice(name.as_bytes());
            assert!(matches!(check_greeting(&other[..32]), Err(ZmtpError::Mechanism(_))), "{name:?}");
        }
        // Versions 3.1, 3.2 and 4.0 have to speak 3.0 with us.
        let mut newer = greeting();
        newer[10..12].copy_from_slice(&[4, 1]);
        assert_eq!(check_greeting(&newer), Ok(true));
    }

    #[test]
    fn who_may_talk_with_whom_is_the_rfcs_table() {
        use SocketType::{Dealer, Rep, Req, Router};
        let table = [
            (Req, vec![Rep, Router]),
            (Rep, vec![Req, Dealer]),
            (Dealer, vec![Rep, Dealer, Router]),
            (Router, vec![Req, Dealer, Router]),
        ];
        for (ours, partners) in table {
            for theirs in SocketType::ALL {
                let read = read_ready(ours, &ready(theirs, None));
                assert_eq!(read.is_ok(), partners.contains(&theirs), "{ours} {theirs}: {read:?}");
            }
        }
        let publisher = read_ready(Router, b"\x0bSocket-Type\0\0\0\x03PUB");
        assert_eq!(publisher, Err(ZmtpError::Incompatible { ours: Router, theirs: "PUB".into() }));
        let shown = publisher.unwrap_err().to_string();
        assert_eq!(shown, "the peer is a PUB socket, which does not talk with a ROUTER");
    }

    #[test]
    fn a_ready_that_makes_no_sense_is_refused_for_a_reason() {
        let read = |body: &[u8]| read_ready(SocketType::Router, body);
        let whole = ready(SocketType::Dealer, Some(b"x"));
        for length in 1..whole.len() {
            let first_is_whole = length == 1 + 11 + 4 + 6;
            assert_eq!(read(&whole[..length]).is_ok(), first_is_whole, "{length}");
        }
        assert!(matches!(read(b""), Err(ZmtpError::Handshake(_))));
        assert!(matches!(read(&ready(SocketType::Dealer, Some(&[1; 256]))), Err(ZmtpError::Handshake(_))));
        assert!(read(&ready(SocketType::Dealer, Some(&[1; 255]))).is_ok());
        assert!(matches!(read(&ready(SocketType::Dealer, Some(b"\0x"))), Err(ZmtpError::Handshake(_))));
        assert!(matches!(read(b"\x01X\xff\xff\xff\xff"), Err(ZmtpError::Handshake(_))));
        let others = [b"\x06X-Lang\0\0\0\x01C\x0bsocket-type\0\0\0\x06DEALER".as_slice()].concat();
        assert_eq!(read(&others).map(|peer| peer.socket_type), Ok(SocketType::Dealer));
    }
}
