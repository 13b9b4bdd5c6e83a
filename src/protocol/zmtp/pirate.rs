//! The Paranoid Pirate's messages between a worker and its queue, and their timeouts.
//!
//! A worker's DEALER sends and receives READY and HEARTBEAT as one frame each. A request and its reply have three frames: the
//! address of the client, an empty one, and the body. The guide's own worker does not accept more than three frames.

use super::connection::Message;
use std::fmt;
use std::time::Duration;
use thiserror::Error;

/// The interval of heartbeats, on either side.
pub const INTERVAL: Duration = Duration::from_secs(1);

/// After this many intervals without a heartbeat, a peer counts as dead.
pub const LIVENESS: u32 = 3;

/// The first pause before a peer reconnects. It doubles after each failed connection, up to [`LONGEST_PAUSE`].
pub const FIRST_PAUSE: Duration = Duration::from_secs(1);
pub const LONGEST_PAUSE: Duration = Duration::from_secs(32);

const READY: &[u8] = &[1];
const HEARTBEAT: &[u8] = &[2];

/// A message between a worker and its queue.
#[derive(Clone, PartialEq, Eq)]
pub enum PirateMessage {
    /// The worker is new, and ready for work. Only a worker sends this.
    Ready,
    /// The sender lives.
    Heartbeat,
    /// A request to a worker, or its reply: then the worker is ready for more work.
    Work { client: Vec<u8>, body: Vec<u8> },
}

/// Why a message is not one of the Paranoid Pirate's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NoPirate {
    #[error("it has {0} frames, where one, two or three were expected")]
    Frames(usize),
    #[error("its only frame is neither READY nor HEARTBEAT")]
    Word,
    #[error("no empty frame stands before its body")]
    NoDelimiter,
    #[error("it has no address")]
    NoAddress,
}

impl PirateMessage {
    /// # Errors
    /// If the frames have another form.
    pub fn parse(frames: Message) -> Result<Self, NoPirate> {
        match <[Vec<u8>; 1]>::try_from(frames) {
            Ok([word]) if word == READY => Ok(Self::Ready),
            Ok([word]) if word == HEARTBEAT => Ok(Self::Heartbeat),
            Ok(_) => Err(NoPirate::Word),
            Err(frames) => envelope(frames).map(|(client, body)| Self::Work { client, body }),
        }
    }

    /// The frames as a worker sends or receives them. The ROUTER's own first frame, the worker's address, is never sent.
    pub fn frames(&self) -> Vec<&[u8]> {
        match self {
            Self::Ready => vec![READY],
            Self::Heartbeat => vec![HEARTBEAT],
            Self::Work { client, body } => vec![client, b"", body],
        }
    }
}

impl fmt::Debug for PirateMessage {
    /// The kind of the message, or the lengths of its frames, since a body may be mail.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("READY"),
            Self::Heartbeat => f.write_str("HEARTBEAT"),
            Self::Work { .. } => f.debug_list().entries(self.frames().iter().map(|frame| frame.len())).finish(),
        }
    }
}

fn envelope(frames: Message) -> Result<(Vec<u8>, Vec<u8>), NoPirate> {
    let count = frames.len();
    let [client, delimiter, body] = <[Vec<u8>; 3]>::try_from(frames).map_err(|_| NoPirate::Frames(count))?;
    if !delimiter.is_empty() {
        return Err(NoPirate::NoDelimiter);
    }
    if client.is_empty() {
        return Err(NoPirate::NoAddress);
    }
    Ok((client, body))
}

/// Parses a message between a client and its queue, in the form of a REQ: an empty frame and the body.
///
/// # Errors
/// If it has another form.
pub fn from_client(frames: Message) -> Result<Vec<u8>, NoPirate> {
    let count = frames.len();
    let [delimiter, body] = <[Vec<u8>; 2]>::try_from(frames).map_err(|_| NoPirate::Frames(count))?;
    if delimiter.is_empty() { Ok(body) } else { Err(NoPirate::NoDelimiter) }
}

/// The frames of such a message, for either side to send.
pub fn to_client(body: &[u8]) -> [&[u8]; 2] {
    [b"", body]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(frames: &[&[u8]]) -> Message {
        frames.iter().map(|frame| frame.to_vec()).collect()
    }

    #[test]
    fn each_word_is_read_as_it_is_sent() {
        let (client, body) = (b"c".to_vec(), b"\x01".to_vec());
        for word in [PirateMessage::Ready, PirateMessage::Heartbeat, PirateMessage::Work { client, body }] {
            assert_eq!(PirateMessage::parse(message(&word.frames())), Ok(word));
        }
        assert_eq!(from_client(message(&to_client(b"x"))), Ok(b"x".to_vec()));
        assert_eq!(PirateMessage::Ready.frames(), [b"\x01"]);
        assert_eq!(PirateMessage::Heartbeat.frames(), [b"\x02"]);
    }

    #[test]
    fn no_log_shows_what_a_body_says() {
        let (client, body) = (b"c".to_vec(), b"secret".to_vec());
        let word = PirateMessage::Work { client, body };
        let words = format!("{word:?} {:?} {:?}", PirateMessage::Ready, PirateMessage::Heartbeat);
        assert_eq!(words, "[1, 0, 6] READY HEARTBEAT");
    }

    #[test]
    fn what_is_no_word_is_refused_by_its_mistake() {
        let cases: [(&[&[u8]], NoPirate); 9] = [
            (&[], NoPirate::Frames(0)),
            (&[b""], NoPirate::Word),
            (&[b"\x03"], NoPirate::Word),
            (&[b"\x01\x01"], NoPirate::Word),
            (&[b"a", b""], NoPirate::Frames(2)),
            (&[b"a", b"b", b"c"], NoPirate::NoDelimiter),
            (&[b"", b"", b"c"], NoPirate::NoAddress),
            (&[b"a", b"", b"c", b"d"], NoPirate::Frames(4)),
            (&[b"a", b"b", b"", b"d"], NoPirate::Frames(4)),
        ];
        for (frames, expected) in cases {
            assert_eq!(PirateMessage::parse(message(frames)), Err(expected), "{frames:?}");
        }
        assert_eq!(from_client(message(&[b"x"])), Err(NoPirate::Frames(1)));
        assert_eq!(from_client(message(&[b"x", b"y"])), Err(NoPirate::NoDelimiter));
    }
}
