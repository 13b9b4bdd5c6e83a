//! Protocol errors of a peer.

use super::handshake::SocketType;
use thiserror::Error;

/// Why a connection is unusable. A retry only helps if the peer sends something else.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ZmtpError {
    #[error("the peer does not speak ZMTP")]
    NotZmtp,
    #[error("the peer speaks version {0} of ZMTP, which is older than 3")]
    Version(u8),
    #[error("the peer wants the security mechanism `{0}`, and NULL is the only one here")]
    Mechanism(String),
    #[error("the peer is a {theirs} socket, which does not talk with a {ours}")]
    Incompatible { ours: SocketType, theirs: String },
    #[error("the peer's handshake: {0}")]
    Handshake(&'static str),
    #[error("a frame has the flags {0:#04x}, which ZMTP does not have")]
    Flags(u8),
    #[error("a frame of {announced} bytes is announced, and {limit} are the limit")]
    FrameTooLong { announced: u64, limit: usize },
    #[error("a message of more than {0} bytes")]
    MessageTooLong(usize),
    #[error("a message of more than {0} frames")]
    TooManyFrames(usize),
    #[error("a command that makes no sense here: `{0}`")]
    Command(String),
    #[error("the peer ended the connection: {0}")]
    Refused(String),
}

/// Text for people: up to 80 characters of the peer's bytes, with only printable ASCII.
pub(super) fn printable(bytes: &[u8]) -> String {
    let printable = |byte: &u8| if (b' '..=b'~').contains(byte) { char::from(*byte) } else { '?' };
    bytes.iter().take(80).map(printable).collect()
}
