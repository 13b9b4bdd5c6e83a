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
mod tests {
    use super::super::test_properties::{any_bytes, any_messages, handshake, settings};
    use super::*;
    use proptest::prelude::*;

    /// A router whose dealer has said who it is.
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
        // The longest that is allowed has room made for it as it comes.
        let mut router = ready_router();
        router.feed(&announced(limits.longest_frame as u64)).unwrap();
        router.feed(b"x").unwrap();
        assert!(router.held() <= ROOM + 1000, "{}", router.held());

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
        // Each message has all of it.
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
        for _ in 0..10_000 {
            router.feed(b"\x04\x07\x04PING\0\x0a").unwrap();
        }
        assert!(router.outgoing().len() < 100, "{}", router.outgoing().len());
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
        assert_eq!(
            refused(&[b"\x04\x18\x04PING\0\0".as_slice(), &[b'x'; 17]].concat()),
            ZmtpError::Command("PING".into())
        );
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

    proptest! {
        #[test]
        fn any_bytes_give_messages_or_an_error_however_they_are_split(
            bytes in proptest::collection::vec(any::<u8>(), 0..600), ready in any::<bool>(), piece in 1usize..70
        ) {
            any_bytes(&bytes, ready, piece);
        }

        // Bytes that mostly are frames get further than any.
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
}
