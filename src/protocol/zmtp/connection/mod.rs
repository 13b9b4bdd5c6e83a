//! One connection, without input or output. Received bytes become messages, and sent messages become bytes.

use super::error::{ZmtpError, printable};
use super::frame::{Header, read_short, write_command, write_message};
use super::handshake::{GREETING, Peer, SocketType, check_greeting, greeting, read_ready, ready};
use std::fmt;

/// The longest command, in bytes. A READY of ZeroMQ's library has about 50 bytes.
const LONGEST_COMMAND: usize = 8 << 10;

/// The longest context of a PING (RFC 37), in bytes.
const LONGEST_CONTEXT: usize = 16;

/// How many answers to PINGs may wait to be written. Without a limit, a peer that sends PINGs and reads nothing would use up
/// memory; and further answers carry no information.
const WAITING_PONGS: usize = 8;

/// How many bytes of a frame are allocated at first. More is allocated only as data arrives, because announcing a length
/// must not use memory.
const ROOM: usize = 64 << 10;

/// The frames of one message. There is at least one.
pub type Message = Vec<Vec<u8>>;

/// Our socket type, and the limits for a peer.
#[derive(Clone, Debug)]
pub struct Settings {
    pub socket_type: SocketType,
    /// Our identity for a ROUTER at the other end: 1 to 255 bytes, the first of them not 0. If it is `None`, the router
    /// makes one.
    pub identity: Option<Vec<u8>>,
    /// The longest frame that is accepted, in bytes.
    pub longest_frame: usize,
    /// The largest number of frames in one message.
    pub most_frames: usize,
    /// The longest message, in bytes, all of its frames together.
    pub longest_message: usize,
}

/// One connection. [`outgoing`](Self::outgoing) has the bytes to write, and [`feed`](Self::feed) takes the bytes that were
/// read.
///
/// A connection holds at most one incomplete message, and the bytes that were fed and not returned yet. To bound its memory,
/// feed a piece of bounded size, and take all [messages](Self::next) before you read more.
pub struct Connection {
    settings: Settings,
    stage: Expecting,
    /// The bytes that were fed, and how many of these are parsed.
    pending: Vec<u8>,
    understood: usize,
    /// The frames of the incomplete message, and their total length.
    frames: Message,
    length: usize,
    /// A complete message that was not taken yet.
    complete: Option<Message>,
    failed: Option<ZmtpError>,
    peer: Option<Peer>,
    outgoing: Vec<u8>,
    /// How many bytes of `outgoing` have been written.
    written: usize,
    waiting_pongs: usize,
    /// The messages that were sent before the handshake was done.
    held_back: Vec<u8>,
}

enum Expecting {
    Greeting,
    Header,
    Body { header: Header, length: usize, body: Vec<u8> },
}

impl Connection {
    /// A new connection of either side, with its greeting to be written.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            stage: Expecting::Greeting,
            pending: Vec::new(),
            understood: 0,
            frames: Vec::new(),
            length: 0,
            complete: None,
            failed: None,
            peer: None,
            outgoing: greeting().to_vec(),
            written: 0,
            waiting_pongs: 0,
            held_back: Vec::new(),
        }
    }

    /// Takes bytes that were read from the peer.
    ///
    /// # Errors
    /// If the peer violates the protocol or a limit. Earlier messages can still be taken; no later ones come.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), ZmtpError> {
        if self.failed.is_none() {
            self.pending.drain(..self.understood);
            self.understood = 0;
            self.pending.extend_from_slice(bytes);
        }
        self.advance()
    }

    /// The next complete message.
    ///
    /// # Errors
    /// The error of [`feed`](Self::feed), once the messages before it are taken.
    #[expect(clippy::should_implement_trait, reason = "an iterator that has ended does not go on")]
    pub fn next(&mut self) -> Result<Option<Message>, ZmtpError> {
        if self.complete.is_none() {
            self.advance()?;
        }
        Ok(self.complete.take())
    }

    /// Sends a message of at least one frame. The message waits until the handshake is done.
    pub fn send(&mut self, frames: &[&[u8]]) {
        let into = if self.peer.is_some() { &mut self.outgoing } else { &mut self.held_back };
        write_message(frames, into);
    }

    /// The bytes to write to the peer.
    pub fn outgoing(&self) -> &[u8] {
        self.outgoing.get(self.written..).unwrap_or_default()
    }

    /// Records that this many bytes have been written.
    pub fn wrote(&mut self, bytes: usize) {
        self.written = self.written.saturating_add(bytes);
        if self.written >= self.outgoing.len() {
            // A new vector, because this also frees the memory of a large message.
            self.outgoing = Vec::new();
            self.written = 0;
            self.waiting_pongs = 0;
        }
    }

    /// The peer, once the handshake is done.
    pub fn peer(&self) -> Option<&Peer> {
        self.peer.as_ref()
    }

    fn advance(&mut self) -> Result<(), ZmtpError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let pending = std::mem::take(&mut self.pending);
        let mut rest = pending.get(self.understood..).unwrap_or_default();
        let result = loop {
            if self.complete.is_some() {
                break Ok(());
            }
            match self.step(&mut rest) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        if let Err(error) = &result {
            self.failed = Some(error.clone());
            self.frames = Vec::new();
            self.stage = Expecting::Header;
            self.understood = 0;
        } else {
            self.understood = pending.len() - rest.len();
            self.pending = pending;
        }
        result
    }

    /// Parses one greeting, header or body; `false` if more bytes are needed.
    fn step(&mut self, rest: &mut &[u8]) -> Result<bool, ZmtpError> {
        match &mut self.stage {
            Expecting::Greeting => {
                if !check_greeting(rest)? {
                    return Ok(false);
                }
                *rest = rest.get(GREETING..).unwrap_or_default();
                let ours = ready(self.settings.socket_type, self.settings.identity.as_deref());
                write_command(b"READY", &ours, &mut self.outgoing);
                self.stage = Expecting::Header;
            }
            Expecting::Header => {
                let Some((header, size)) = Header::read(rest)? else { return Ok(false) };
                *rest = rest.get(size..).unwrap_or_default();
                let length = self.admit(header)?;
                self.stage = Expecting::Body { header, length, body: Vec::new() };
            }
            Expecting::Body { header, length, body } => {
                let (piece, after) = rest.split_at(rest.len().min(*length - body.len()));
                if body.capacity() - body.len() < piece.len() {
                    // The allocation doubles as data arrives, and never exceeds the announced length.
                    let room = piece.len().max(body.len()).max(ROOM).min(*length - body.len());
                    body.reserve_exact(room);
                }
                body.extend_from_slice(piece);
                *rest = after;
                if body.len() < *length {
                    return Ok(false);
                }
                let (header, body) = (*header, std::mem::take(body));
                self.stage = Expecting::Header;
                if header.command {
                    self.command(&body)?;
                } else {
                    self.length += body.len();
                    self.frames.push(body);
                    if !header.more {
                        self.length = 0;
                        self.complete = Some(std::mem::take(&mut self.frames));
                    }
                }
            }
        }
        Ok(true)
    }

    /// Checks whether a frame is allowed. Returns its length.
    fn admit(&self, header: Header) -> Result<usize, ZmtpError> {
        let settings = &self.settings;
        let limit = if header.command { LONGEST_COMMAND } else { settings.longest_frame };
        let too_long = ZmtpError::FrameTooLong { announced: header.length, limit };
        let length = usize::try_from(header.length).ok().filter(|length| *length <= limit).ok_or(too_long)?;
        // A command may come between two frames of a message: ZeroMQ's library sends its PING at any place.
        if header.command {
            return Ok(length);
        }
        if self.peer.is_none() {
            return Err(ZmtpError::Handshake("a message comes before READY"));
        }
        if self.frames.len() >= settings.most_frames {
            return Err(ZmtpError::TooManyFrames(settings.most_frames));
        }
        if length > settings.longest_message.saturating_sub(self.length) {
            return Err(ZmtpError::MessageTooLong(settings.longest_message));
        }
        Ok(length)
    }

    fn command(&mut self, bytes: &[u8]) -> Result<(), ZmtpError> {
        let (name, body) = read_short(bytes).ok_or_else(|| ZmtpError::Command(printable(bytes)))?;
        match (name, self.peer.is_some()) {
            (b"READY", false) => {
                self.peer = Some(read_ready(self.settings.socket_type, body)?);
                self.outgoing.append(&mut self.held_back);
                self.held_back = Vec::new();
                Ok(())
            }
            (b"ERROR", _) => {
                let (reason, _) = read_short(body).unwrap_or((body, b""));
                Err(ZmtpError::Refused(printable(reason)))
            }
            // <https://rfc.zeromq.org/spec/37/>: two bytes of time to live, and a context to return.
            (b"PING", true) => {
                let context = body.get(2..).filter(|context| context.len() <= LONGEST_CONTEXT);
                let context = context.ok_or_else(|| ZmtpError::Command("PING".into()))?;
                if self.waiting_pongs < WAITING_PONGS {
                    self.waiting_pongs += 1;
                    write_command(b"PONG", context, &mut self.outgoing);
                }
                Ok(())
            }
            (b"PONG", true) => Ok(()),
            _ => Err(ZmtpError::Command(printable(name))),
        }
    }

    /// The memory that the peer's bytes use, with our answers to them.
    #[cfg(any(test, feature = "test-properties"))]
    pub(super) fn held(&self) -> usize {
        let of = |message: &Message| message.iter().map(Vec::capacity).sum::<usize>();
        let body = if let Expecting::Body { body, .. } = &self.stage { body.capacity() } else { 0 };
        let complete = self.complete.as_ref().map_or(0, of);
        self.pending.capacity() + of(&self.frames) + complete + body + self.outgoing.capacity()
    }
}

impl fmt::Debug for Connection {
    /// Without the content, which may be mail.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("peer", &self.peer).field("failed", &self.failed).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
