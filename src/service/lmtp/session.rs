//! One LMTP session (RFC 2033), without a socket: the client's bytes go in, replies and whole messages come out.

use super::command::{self, Command, CommandError, Mail};
use super::counters::LmtpTally;
use super::data::DataReader;
use super::path::Path;
use super::replies::Replies;
use super::spool::{Incoming, Spool};
use super::xforward::{self, Forwarded};
use crate::config::{Config, MAX_RECIPIENTS};
use crate::delivery::Verdict;
use crate::message::{Address, AddressError};
use crate::protocol::client::milliseconds;
use crate::protocol::{LONGEST_HEADER, Recipient, Request};
use crate::service::inflight_message::Body;
use memchr::memchr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest command, in bytes, with its CR LF. RFC 5321 section 4.5.3.1.4 requires 512 bytes, and more for extensions.
/// XFORWARD may have seven attributes of 255 bytes, each byte encoded as three.
const LONGEST_LINE: usize = 8192;

/// After this many invalid commands without a message in between, the client is disconnected: it is no LMTP client.
const MOST_ERRORS: u32 = 20;

/// How many commands without progress may come between two messages; each further one counts as an error. Postfix has the same
/// limit for its own clients (postconf(5), `smtpd_junk_command_limit`).
const MOST_JUNK: u32 = 100;

/// The total length of one message's addresses, in bytes. JSON takes at most two bytes for each, and the header of a frame must
/// have space for that.
const LONGEST_ENVELOPE: usize = LONGEST_HEADER / 3;

/// The settings that all sessions share.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This host's name, for the greeting.
    pub host: String,
    /// The address for mail to `<postmaster>`, which has no domain (RFC 5321 section 4.5.1).
    pub postmaster: String,
    /// The largest number of recipients of one message.
    pub max_recipients: usize,
    /// How long a delivery may take.
    pub deadline: Duration,
    /// Where messages are stored, and how large they may be.
    pub spool: Arc<Spool>,
    /// The counters of replies.
    pub tally: LmtpTally,
}

impl Settings {
    pub fn new(config: &Config, host: String) -> Self {
        let domain = config.routing.domain.first().map_or(&host, |rule| &rule.domain);
        Self {
            postmaster: format!("postmaster@{domain}"),
            host,
            max_recipients: MAX_RECIPIENTS as usize,
            deadline: config.delivery.deadline,
            spool: Arc::new(Spool::new(config)),
            tally: LmtpTally::default(),
        }
    }
}

/// Whether STARTTLS is offered, or required, from here on. Before a required STARTTLS, a client may do little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartTls {
    /// TLS is not available, or already in use.
    NotOffered,
    Offered,
    Required,
}

/// A complete message. Its verdicts go to [`LmtpSession::answer`].
#[derive(Debug)]
pub struct Transaction {
    pub request: Request,
    pub message: Body,
}

/// What the caller must do once the replies so far are written.
#[derive(Debug)]
pub enum Step {
    /// All bytes are consumed: read more.
    More,
    /// Deliver this, then call [`LmtpSession::answer`]. The session has consumed no byte after the message.
    Deliver(Box<Transaction>),
    /// Begin TLS, then call [`LmtpSession::secured`]. Discard the bytes after the command: an attacker on the path may have
    /// inserted them (RFC 3207 section 4.2; CVE-2011-0411).
    StartTls,
    /// Close the connection.
    Close,
}

/// The state of the session, for time limits and the end of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Between two messages, with no command begun. `has_served` is false before the first message.
    Idle { has_served: bool },
    /// In a command, or between two commands of one message.
    Command,
    /// In a message.
    Data,
}

#[derive(Debug)]
pub struct LmtpSession {
    settings: Arc<Settings>,
    starttls: StartTls,
    has_said_lhlo: bool,
    state: SessionState,
    forwarded: Forwarded,
    /// The received part of the current line.
    line: Vec<u8>,
    line_is_too_long: bool,
    errors: u32,
    /// The number of commands without progress since the last message.
    junk: u32,
    has_served: bool,
    /// The command that is being answered.
    command: &'static str,
    out: Vec<u8>,
}

#[derive(Debug)]
enum SessionState {
    Idle,
    LmtpEnvelope(LmtpEnvelope),
    Data(Box<Data>),
    /// A message is at the broker, since this time.
    Delivering(Replies, Instant),
    Closed,
}

#[derive(Debug)]
struct LmtpEnvelope {
    sender: Path,
    recipients: Vec<Recipient>,
    /// The total length of the addresses, as [`LONGEST_ENVELOPE`] counts it.
    length: usize,
}

#[derive(Debug)]
struct Data {
    envelope: LmtpEnvelope,
    replies: Replies,
    reader: DataReader,
    incoming: Incoming,
}

impl LmtpSession {
    /// A new session, with its greeting to be written.
    pub fn new(settings: Arc<Settings>, starttls: StartTls) -> Self {
        let out = format!("220 {} LMTP maildropd\r\n", settings.host).into_bytes();
        Self {
            settings,
            starttls,
            has_said_lhlo: false,
            state: SessionState::Idle,
            forwarded: Forwarded::default(),
            line: Vec::new(),
            line_is_too_long: false,
            errors: 0,
            junk: 0,
            has_served: false,
            command: command::OTHER,
            out,
        }
    }

    /// Takes the replies that are to be written.
    #[must_use]
    pub fn replies(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    pub(super) fn phase(&self) -> Phase {
        match &self.state {
            SessionState::Idle if self.line.is_empty() => Phase::Idle { has_served: self.has_served },
            SessionState::Data(_) => Phase::Data,
            SessionState::Idle
            | SessionState::LmtpEnvelope(_)
            | SessionState::Delivering(..)
            | SessionState::Closed => Phase::Command,
        }
    }

    /// Consumes bytes of the client. Returns how many, and the next step.
    #[must_use]
    pub fn feed(&mut self, input: &[u8]) -> (usize, Step) {
        let mut rest = input;
        loop {
            let taken = |rest: &[u8]| input.len() - rest.len();
            let (used, step) = match &mut self.state {
                SessionState::Closed => return (input.len(), Step::Close),
                SessionState::Delivering(..) => {
                    self.answer(None);
                    continue;
                }
                SessionState::Data(data) => {
                    let Data { reader, incoming, .. } = data.as_mut();
                    let (used, ended) = reader.read(rest, |bytes| incoming.take(bytes));
                    (used, if ended { self.end_of_data() } else { None })
                }
                SessionState::Idle | SessionState::LmtpEnvelope(_) => {
                    let (used, whole) = self.read_line(rest);
                    (used, if whole { self.command() } else { None })
                }
            };
            rest = rest.get(used..).unwrap_or_default();
            match step {
                Some(step) => return (taken(rest), step),
                None if rest.is_empty() && !matches!(self.state, SessionState::Closed) => {
                    return (input.len(), Step::More);
                }
                None => {}
            }
        }
    }

    /// Replies with the verdicts on the message. `None`: the result is unknown.
    pub fn answer(&mut self, verdicts: Option<&[Verdict]>) {
        if let SessionState::Delivering(replies, since) = std::mem::replace(&mut self.state, SessionState::Idle) {
            self.reply(since.elapsed(), |out| replies.write(verdicts, out));
        }
    }

    /// Writes the replies to a message. The counters count exactly the lines that the client gets.
    fn reply(&mut self, after: Duration, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.out.len();
        write(&mut self.out);
        self.settings.tally.replied(self.out.get(before..).unwrap_or_default(), after);
        self.has_served = true;
    }

    /// Restarts the session after the TLS handshake (RFC 3207 section 4.2).
    pub(super) fn secured(&mut self) {
        *self = Self::new(self.settings.clone(), StartTls::NotOffered);
        self.out.clear();
    }

    /// Writes the last reply to a client whose time is over.
    pub(super) fn close(&mut self, reply: &str) {
        self.say(reply);
        self.state = SessionState::Closed;
    }

    fn say(&mut self, reply: &str) {
        self.settings.tally.answered(self.command, reply);
        self.out.extend_from_slice(reply.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    /// Consumes bytes of the line. Returns how many, and whether the line is complete. Only CR LF ends a line.
    fn read_line(&mut self, input: &[u8]) -> (usize, bool) {
        let mut rest = input;
        while let Some(at) = memchr(b'\n', rest) {
            let (piece, behind) = rest.split_at(at + 1);
            self.append(piece);
            rest = behind;
            if self.line.ends_with(b"\r\n") {
                return (input.len() - rest.len(), true);
            }
        }
        self.append(rest);
        (input.len(), false)
    }

    fn append(&mut self, piece: &[u8]) {
        self.line.extend_from_slice(piece);
        if self.line.len() > LONGEST_LINE {
            self.line_is_too_long = true;
            // The last two bytes may contain the CR of the line end.
            self.line.drain(..self.line.len() - 2);
            self.line.shrink_to(LONGEST_LINE);
        }
    }

    fn command(&mut self) -> Option<Step> {
        let line = std::mem::take(&mut self.line);
        self.command = command::name(&line);
        if std::mem::take(&mut self.line_is_too_long) {
            self.error("500 5.5.2 The line is too long");
            return None;
        }
        let command = match Command::read(line.strip_suffix(b"\r\n").unwrap_or(&line)) {
            Ok(command) => command,
            Err(error) => {
                self.error(&error.to_string());
                return None;
            }
        };
        let before_tls = matches!(
            command,
            Command::Lhlo | Command::Helo | Command::Noop | Command::Quit | Command::StartTls | Command::Foreign
        );
        if self.starttls == StartTls::Required && !before_tls {
            // RFC 3207 section 4 asks for 530. That would bounce mail if an operator has forgotten to enable TLS in Postfix.
            self.error("451 4.7.0 Say STARTTLS first");
            return None;
        }
        // These two discard the message that was begun, so disconnecting afterwards cuts off no message.
        if matches!(command, Command::Lhlo | Command::Rset) {
            self.reset();
        }
        if self.is_junk_too_many(&command) {
            return None;
        }
        match command {
            Command::Lhlo => self.lhlo(),
            // RFC 2033 section 4.1.
            Command::Helo => self.error("500 5.5.1 This is LMTP: say LHLO"),
            Command::Mail(mail) => self.mail(mail),
            Command::Rcpt(to) => self.rcpt(to),
            Command::Data => self.data(),
            Command::Rset | Command::Noop => self.say("250 2.0.0 Ok"),
            Command::Vrfy => self.say("252 2.0.0 Send a message, and see"),
            Command::Help => self.say("214 2.0.0 LHLO MAIL RCPT DATA RSET NOOP VRFY HELP QUIT: see RFC 2033"),
            Command::Quit => {
                self.close("221 2.0.0 Bye");
                return Some(Step::Close);
            }
            Command::StartTls if self.starttls == StartTls::NotOffered => {
                self.error(&CommandError::Unknown.to_string());
            }
            Command::StartTls => {
                self.reset();
                self.say("220 2.0.0 Begin TLS");
                return Some(Step::StartTls);
            }
            Command::Xforward(_) if !matches!(self.state, SessionState::Idle) => {
                self.say("503 5.5.1 XFORWARD comes before MAIL");
            }
            Command::Xforward(more) => {
                self.forwarded.add(more);
                self.say("250 2.0.0 Ok");
            }
            Command::Foreign => {
                self.close("421 4.7.0 This is LMTP, without CHUNKING");
                return Some(Step::Close);
            }
        }
        None
    }

    /// Replies to an invalid command. Too many of them end the session, but never within a message: its client must first get its
    /// replies. (RCPT after a refused MAIL does not count: Postfix pipelines both, and takes a 421 for our failure.)
    fn error(&mut self, reply: &str) {
        if !self.is_error_too_many() {
            self.say(reply);
        }
    }

    /// Counts an error. Ends the session if there are too many.
    fn is_error_too_many(&mut self) -> bool {
        self.errors = self.errors.saturating_add(1);
        let too_many = self.errors > MOST_ERRORS && matches!(self.state, SessionState::Idle);
        if too_many {
            self.close("421 4.7.0 Too many errors");
        }
        too_many
    }

    /// Counts a command without progress. Ends the session if there are too many.
    fn is_junk_too_many(&mut self, command: &Command) -> bool {
        if !matches!(command, Command::Lhlo | Command::Rset | Command::Noop | Command::Vrfy | Command::Help) {
            return false;
        }
        self.junk = self.junk.saturating_add(1);
        self.junk > MOST_JUNK && self.is_error_too_many()
    }

    fn reset(&mut self) {
        self.state = SessionState::Idle;
        self.forwarded = Forwarded::default();
    }

    fn lhlo(&mut self) {
        self.has_said_lhlo = true;
        let size = self.settings.spool.announced().map_or("SIZE".into(), |limit| format!("SIZE {limit}"));
        let mut lines = vec![self.settings.host.clone()];
        lines.extend(["PIPELINING", "ENHANCEDSTATUSCODES", "8BITMIME", "SMTPUTF8"].map(str::to_owned));
        lines.push(size);
        if self.starttls != StartTls::Required {
            lines.push(format!("XFORWARD {}", xforward::NAMES));
        }
        if self.starttls != StartTls::NotOffered {
            lines.push("STARTTLS".into());
        }
        let last = lines.len() - 1;
        for (at, line) in lines.iter().enumerate() {
            let separator = if at == last { ' ' } else { '-' };
            self.say(&format!("250{separator}{line}"));
        }
    }

    fn mail(&mut self, mail: Mail) {
        if !self.has_said_lhlo {
            return self.say("503 5.5.1 Say LHLO first");
        }
        if !matches!(self.state, SessionState::Idle) {
            return self.say("503 5.5.1 There is a sender already");
        }
        // A message may be smaller than its SIZE. Up to the announced limit it is accepted here, and measured at its end.
        if self.settings.spool.announced().zip(mail.size).is_some_and(|(limit, size)| size > limit) {
            // RFC 1870 section 6.1.
            return self.say("552 5.3.4 The message is larger than this server takes");
        }
        self.state = SessionState::LmtpEnvelope(LmtpEnvelope { sender: mail.from, recipients: Vec::new(), length: 0 });
        self.say("250 2.1.0 Ok");
    }

    fn rcpt(&mut self, mut to: Path) {
        let SessionState::LmtpEnvelope(envelope) = &mut self.state else {
            return self.say("503 5.5.1 Say MAIL first");
        };
        if to.address.eq_ignore_ascii_case("postmaster") {
            to.address.clone_from(&self.settings.postmaster);
        } else if let Err(refusal) = deliverable(&to) {
            return self.say(refusal);
        }
        // JSON adds quotes, a comma and the keys to each address.
        let length = envelope.length + to.address.len() + "{'address':'','original':null},".len();
        if envelope.recipients.len() >= self.settings.max_recipients || length > LONGEST_ENVELOPE {
            // RFC 5321 section 4.5.3.1.10: the client sends another message to the remaining recipients.
            return self.say("452 4.5.3 Too many recipients");
        }
        envelope.length = length;
        // Two equal addresses are two recipients: each gets a reply (RFC 2033 section 4.2).
        envelope.recipients.push(Recipient { address: to.address, original: None });
        self.say("250 2.1.5 Ok");
    }

    fn data(&mut self) {
        match std::mem::replace(&mut self.state, SessionState::Idle) {
            SessionState::LmtpEnvelope(envelope) if !envelope.recipients.is_empty() => {
                let return_path = [b"Return-Path: <", envelope.sender.written.as_slice(), b">\r\n"].concat();
                self.state = SessionState::Data(Box::new(Data {
                    replies: Replies::to(&envelope.recipients),
                    reader: DataReader::new(),
                    incoming: Incoming::new(self.settings.spool.clone(), &return_path),
                    envelope,
                }));
                self.say("354 Send the message, and a dot alone on its last line");
            }
            state => {
                self.state = state;
                // RFC 2033 section 4.2: 503 if no recipient was accepted.
                self.say("503 5.5.1 There is no recipient");
            }
        }
    }

    fn end_of_data(&mut self) -> Option<Step> {
        let SessionState::Data(data) = std::mem::replace(&mut self.state, SessionState::Idle) else { return None };
        let Data { envelope, replies, incoming, .. } = *data;
        let forwarded = std::mem::take(&mut self.forwarded);
        (self.errors, self.junk) = (0, 0);
        let since = Instant::now();
        self.settings.tally.received(envelope.recipients.len(), incoming.size());
        let (message, size) = match incoming.end() {
            Ok(taken) => taken,
            Err(refusal) => {
                self.reply(since.elapsed(), |out| replies.all(&refusal.to_string(), out));
                return None;
            }
        };
        let file = match &message {
            Body::File(file) => Some(file.path().to_owned()),
            Body::Memory(_) => None,
        };
        let request = Request {
            time_left_ms: milliseconds(self.settings.deadline),
            queue_id: forwarded.queue_id,
            client_address: forwarded.client_address,
            file,
            ..Request::new(envelope.sender.address, envelope.recipients, size)
        };
        self.state = SessionState::Delivering(replies, since);
        Some(Step::Deliver(Box::new(Transaction { request, message })))
    }
}

/// Whether a delivery could parse this address. If not, each attempt would be deferred.
fn deliverable(to: &Path) -> Result<(), &'static str> {
    if !to.has_domain {
        return Err("450 4.1.3 An address has a domain here");
    }
    match Address::parse(&to.address) {
        // Quoted addresses may have spaces at an end. They would be lost on the way, which would change the address.
        Ok(address) if address.to_string() == to.address => Ok(()),
        Err(AddressError::ControlCharacter) => Err("501 5.1.3 The recipient's address holds a control character"),
        Ok(_) | Err(AddressError::Empty | AddressError::NoDomain | AddressError::EmptyPart) => {
            Err("450 4.1.3 No mailbox here can have this address")
        }
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
