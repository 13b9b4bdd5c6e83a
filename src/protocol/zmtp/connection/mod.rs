//! One connection, without input or output: bytes in, messages out; messages in, bytes out.

use super::error::{ZmtpError, printable};
use super::frame::{Header, read_short, write_command, write_message};
use super::handshake::{GREETING, Peer, SocketType, check_greeting, greeting, read_ready, ready};
use std::fmt;

/// The longest command. A READY of ZeroMQ's library has about 50 bytes.
const LONGEST_COMMAND: usize = 8 << 10;

/// The longest context of a PING (RFC 37).
const LONGEST_CONTEXT: usize = 16;

/// So many answers to PINGs may wait to be written. Further ones would say nothing new, and a peer that sends PINGs and reads
/// nothing could make us hold any number.
const WAITING_PONGS: usize = 8;

/// So much of a frame is made room for at once. More only as it comes: an announcement must cost nothing.
const ROOM: usize = 64 << 10;

/// The frames of one message. There is at least one.
pub type Message = Vec<Vec<u8>>;

/// What we are, and how much we take.
#[derive(Clone, Debug)]
pub struct Settings {
    pub socket_type: SocketType,
    /// Our name for a ROUTER at the other end: 1 to 255 bytes, the first of them not 0. `None`: it gives us one.
    pub identity: Option<Vec<u8>>,
    /// The longest frame that we take, in bytes.
    pub longest_frame: usize,
    /// The most frames of one message.
    pub most_frames: usize,
    /// The longest message, in bytes, all of its frames together.
    pub longest_message: usize,
}

/// One connection. It says what to write ([`outgoing`](Self::outgoing)), and is told what was read ([`feed`](Self::feed)).
///
/// It holds one message at most that is not complete, and what it was fed and has not given out: read a bounded piece, feed it, and
/// ask for [messages](Self::next) until there is none, before you read again.
pub struct Connection {
    settings: Settings,
    stage: Stage,
    /// What was fed, and how much of it is understood.
    pending: Vec<u8>,
    understood: usize,
    /// The frames that have come of a message that is not complete, and how long they are.
    frames: Message,
    length: usize,
    /// A message that is complete and was not asked for.
    complete: Option<Message>,
    failed: Option<ZmtpError>,
    peer: Option<Peer>,
    outgoing: Vec<u8>,
    /// How much of `outgoing` has been written.
    written: usize,
    waiting_pongs: usize,
    /// What was sent before the handshake was done.
    held_back: Vec<u8>,
}

/// What comes next.
enum Stage {
    Greeting,
    Header,
    Body { header: Header, length: usize, body: Vec<u8> },
}

impl Connection {
    /// A connection that has just been made, by either side. There is a greeting to be written.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            stage: Stage::Greeting,
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

    /// Takes what was read from the peer.
    ///
    /// # Errors
    /// Where the peer breaks the protocol or a limit: then all messages before are given out, and nothing more will come of this
    /// connection.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), ZmtpError> {
        if self.failed.is_none() {
            self.pending.drain(..self.understood);
            self.understood = 0;
            self.pending.extend_from_slice(bytes);
        }
        self.advance()
    }

    /// The next message that is complete.
    ///
    /// # Errors
    /// As [`feed`](Self::feed), once the messages before are given out.
    #[expect(clippy::should_implement_trait, reason = "an iterator that has ended does not go on")]
    pub fn next(&mut self) -> Result<Option<Message>, ZmtpError> {
        if self.complete.is_none() {
            self.advance()?;
        }
        Ok(self.complete.take())
    }

    /// Sends a message, of at least one frame. Before the handshake is done it waits for that.
    pub fn send(&mut self, frames: &[&[u8]]) {
        let into = if self.peer.is_some() { &mut self.outgoing } else { &mut self.held_back };
        write_message(frames, into);
    }

    /// What is to be written to the peer.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        self.outgoing.get(self.written..).unwrap_or_default()
    }

    /// So many bytes of it have been written.
    pub fn wrote(&mut self, bytes: usize) {
        self.written = self.written.saturating_add(bytes);
        if self.written >= self.outgoing.len() {
            // Its memory too: it may have held a large message.
            self.outgoing = Vec::new();
            self.written = 0;
            self.waiting_pongs = 0;
        }
    }

    /// The other end, once the handshake is done.
    #[must_use]
    pub fn peer(&self) -> Option<&Peer> {
        self.peer.as_ref()
    }

    /// Understands what was fed, up to the end of a message.
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
            self.stage = Stage::Header;
            self.understood = 0;
        } else {
            self.understood = pending.len() - rest.len();
            self.pending = pending;
        }
        result
    }

    /// Understands one greeting, header or body. `false`: more has to come first.
    fn step(&mut self, rest: &mut &[u8]) -> Result<bool, ZmtpError> {
        match &mut self.stage {
            Stage::Greeting => {
                if !check_greeting(rest)? {
                    return Ok(false);
                }
                *rest = rest.get(GREETING..).unwrap_or_default();
                let ours = ready(self.settings.socket_type, self.settings.identity.as_deref());
                write_command(b"READY", &ours, &mut self.outgoing);
                self.stage = Stage::Header;
            }
            Stage::Header => {
                let Some((header, size)) = Header::read(rest)? else { return Ok(false) };
                *rest = rest.get(size..).unwrap_or_default();
                let length = self.admit(header)?;
                self.stage = Stage::Body { header, length, body: Vec::new() };
            }
            Stage::Body { header, length, body } => {
                let (piece, after) = rest.split_at(rest.len().min(*length - body.len()));
                if body.capacity() - body.len() < piece.len() {
                    // Doubled as it comes, and never more than was announced.
                    let room = piece.len().max(body.len()).max(ROOM).min(*length - body.len());
                    body.reserve_exact(room);
                }
                body.extend_from_slice(piece);
                *rest = after;
                if body.len() < *length {
                    return Ok(false);
                }
                let (header, body) = (*header, std::mem::take(body));
                self.stage = Stage::Header;
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

    /// Whether a frame may come; its length.
    fn admit(&self, header: Header) -> Result<usize, ZmtpError> {
        let settings = &self.settings;
        let limit = if header.command { LONGEST_COMMAND } else { settings.longest_frame };
        let too_long = ZmtpError::FrameTooLong { announced: header.length, limit };
        let length = usize::try_from(header.length).ok().filter(|length| *length <= limit).ok_or(too_long)?;
        // A command may stand between two frames of a message: ZeroMQ's library puts its PING wherever it is.
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
            // <https://rfc.zeromq.org/spec/37/>: two bytes of time to live, and a context that is to come back.
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

    /// How much memory a peer's bytes take up, our answers to them included.
    #[cfg(any(test, feature = "test-properties"))]
    pub(super) fn held(&self) -> usize {
        let of = |message: &Message| message.iter().map(Vec::capacity).sum::<usize>();
        let body = if let Stage::Body { body, .. } = &self.stage { body.capacity() } else { 0 };
        let complete = self.complete.as_ref().map_or(0, of);
        self.pending.capacity() + of(&self.frames) + complete + body + self.outgoing.capacity()
    }
}

impl fmt::Debug for Connection {
    /// Without what is said on it: that may be somebody's mail.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("peer", &self.peer).field("failed", &self.failed).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
