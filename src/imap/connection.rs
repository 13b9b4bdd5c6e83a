//! Sends commands and receives answers, in order, over one connection. After a failure the connection is dropped, because its
//! further replies would be ambiguous.

use super::argument::{Command, Part};
use super::stream::Stream;
use super::wire::{Answer, Reader, Reply, Status, for_people};
use super::{Broken, fetch};
use super::{MailboxError, MailboxFailure};
use crate::base::deadline::Deadline;
use std::io::IoSlice;
use std::thread;
use std::time::{Duration, Instant};

/// How long a write may make no progress before the client checks whether the server has already refused the command.
const STALL: Duration = Duration::from_millis(500);
/// How long the client waits for the server's last message on a broken connection.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// RFC 7888 section 5: with LITERAL-, the longest literal in bytes that need not wait for the server.
const LITERAL_MINUS_LIMIT: usize = 4096;

pub(crate) struct Conversation {
    /// `None` after a failure, or after the connection was given up.
    stream: Option<Stream>,
    /// The deadline of the delivery.
    deadline: Deadline,
    /// During a large upload: the longest time without an accepted byte, and the deadline for all bytes.
    pace: Option<(Duration, Deadline)>,
    reader: Reader,
    commands: u64,
    capabilities: Vec<String>,
    /// Secrets that no log and no error may show, if the server repeats them.
    secrets: Vec<String>,
    /// Whether the client has sent anything since it last received something.
    spoke: bool,
    round_trips: u32,
    since: Instant,
    /// Whether the server has refused a command, or sent unsolicited data. The connection is then not reused, because its
    /// state is uncertain.
    doubtful: bool,
}

pub(crate) enum CommandProgress {
    /// All bytes were sent except the last CRLF.
    Sent,
    /// The server has answered before the end of the command.
    Answered(Answer),
}

impl Conversation {
    pub(super) fn new(stream: Stream) -> Self {
        Self {
            deadline: stream.deadline(),
            pace: None,
            stream: Some(stream),
            reader: Reader::default(),
            commands: 0,
            capabilities: Vec::new(),
            secrets: Vec::new(),
            spoke: false,
            round_trips: 0,
            since: Instant::now(),
            doubtful: false,
        }
    }

    /// How often the client sent something and then received the first bytes in response.
    pub fn round_trips(&self) -> u32 {
        self.round_trips
    }

    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// Whether another delivery may use this connection: it is open, each command was answered with OK, and nothing else
    /// came.
    pub(crate) fn is_sound(&mut self) -> bool {
        let quiet = !self.doubtful && !self.spoke && self.reader.is_empty();
        quiet && self.stream.as_mut().is_some_and(Stream::is_quiet)
    }

    pub(crate) fn restart(&mut self, deadline: Deadline) {
        self.round_trips = 0;
        self.set_deadline(deadline);
    }

    pub(crate) fn set_deadline(&mut self, deadline: Deadline) {
        self.deadline = deadline;
        self.patient_until(None);
    }

    /// Limits the waits for the server, if `until` is before the delivery's deadline. `None` restores that deadline.
    pub(crate) fn patient_until(&mut self, until: Option<Deadline>) {
        let until = until.map_or(self.deadline, |until| until.or_sooner(self.deadline));
        if let Some(stream) = &mut self.stream {
            stream.set_deadline(until);
        }
    }

    /// From now on a wait ends if the server accepts no byte for the given duration, and at the given deadline at the
    /// latest. `None` restores the delivery's deadline.
    pub(crate) fn set_pace(&mut self, pace: Option<(Duration, Deadline)>) {
        self.pace = pace;
        self.patient_until(pace.map(|(stall, until)| Deadline::after(stall).or_sooner(until)));
    }

    /// Prepares for an upload of `bytes` bytes whose time is measured.
    pub(crate) fn keep_little_unsent(&self, bytes: usize) {
        // A smaller upload may fit into the kernel's buffers, and then shows nothing about the line.
        if let Some(stream) = self.stream.as_ref().filter(|_| bytes >= 1 << 20)
            && let Err(error) = stream.keep_little_unsent()
        {
            tracing::debug!(%error, "the time of this upload is not the line's");
        }
    }

    /// Waits before a repeated request, never past the deadline.
    pub(crate) fn pause(&self, span: Duration) {
        thread::sleep(self.stream.as_ref().map_or(Duration::ZERO, |stream| span.min(stream.remaining())));
    }

    /// In capital letters.
    pub(crate) fn capabilities(&self) -> &[String] {
        &self.capabilities
    }

    pub(crate) fn can(&self, capability: &str) -> bool {
        self.capabilities.iter().any(|known| known == capability)
    }

    /// The server may announce other capabilities after TLS and after the login (RFC 3501 sections 6.2.1 and 6.2.2).
    pub(crate) fn forget_capabilities(&mut self) {
        self.capabilities.clear();
    }

    /// From now on no log and no error shows this secret, if the server repeats it.
    pub(crate) fn hide(&mut self, secret: &str) {
        if secret.is_empty() {
            return;
        }
        // Also as a quoted string, and as a string quoted twice: the error about a line that is no IMAP quotes that line.
        if secret.contains(['\\', '"']) {
            let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
            let once = quoted(secret);
            self.secrets.extend([quoted(&once), once]);
        }
        self.secrets.push(secret.to_owned());
    }

    pub(crate) fn is_usable(&self) -> bool {
        self.stream.is_some()
    }

    pub(crate) fn give_up(&mut self) {
        self.stream = None;
    }

    /// The connection itself, to continue under TLS. No byte may be left unread: an attacker could have inserted it before
    /// the encryption (RFC 3501 section 6.2.1; CVE-2011-0411).
    pub(super) fn bare_stream(&mut self) -> Result<&mut Stream, Broken> {
        if !self.reader.is_empty() {
            self.give_up();
            return Err(Broken::protocol("something was slipped in between STARTTLS and TLS"));
        }
        self.stream.as_mut().ok_or_else(given_up)
    }

    pub(crate) fn greeting(&mut self) -> Result<Answer, Broken> {
        loop {
            if let Reply::Status(None, answer) = self.wait_for_reply()? {
                self.learn_from(&answer);
                return Ok(answer);
            }
        }
    }

    /// Sends a command and waits for its answer. Untagged replies go to `on_untagged`.
    pub(crate) fn run(&mut self, command: &Command<'_>, on_untagged: &mut dyn FnMut(&Reply)) -> Result<Answer, Broken> {
        match self.send(command, true)? {
            (tag, CommandProgress::Sent) => self.answer(&tag, on_untagged),
            (_, CommandProgress::Answered(answer)) => Ok(answer),
        }
    }

    /// Sends both commands before it waits for their answers, so that the server has both even if the connection is lost.
    pub(crate) fn run_both(&mut self, one: &Command<'_>, other: &Command<'_>) -> Result<[Answer; 2], Broken> {
        let mut send = |command| match self.send(command, true)? {
            (tag, CommandProgress::Sent) => Ok(tag),
            (_, CommandProgress::Answered(answer)) => Err(Broken::lost(answer.quote())),
        };
        let (one, other) = (send(one)?, send(other)?);
        Ok([self.answer(&one, &mut |_| {})?, self.answer(&other, &mut |_| {})?])
    }

    /// Sends a command without its last CRLF, and returns its tag.
    pub fn begin(&mut self, command: &Command<'_>) -> Result<(String, CommandProgress), Broken> {
        self.send(command, false)
    }

    /// Sends the last CRLF of a command that [`begin`](Self::begin) sent.
    pub fn end(&mut self, tag: &str) -> Result<CommandProgress, Broken> {
        self.write(b"\r\n", &[], tag)
    }

    /// Sends a line in response to a `+`.
    pub(crate) fn say(&mut self, line: &str) -> Result<(), Broken> {
        self.write(format!("{line}\r\n").as_bytes(), &[], "").map(drop)
    }

    /// Waits for the answer to this command.
    pub(crate) fn answer(&mut self, tag: &str, on_untagged: &mut dyn FnMut(&Reply)) -> Result<Answer, Broken> {
        loop {
            let reply = self.wait_for_reply()?;
            if let Some(answer) = self.take(reply, tag, on_untagged)? {
                return Ok(answer);
            }
        }
    }

    /// The answer to this command, if it comes within `patience`; other replies do not extend that time. The beginning of an
    /// incomplete reply is kept.
    pub(crate) fn answer_within(&mut self, tag: &str, patience: Duration) -> Result<Option<Answer>, Broken> {
        let until = Instant::now() + patience;
        // The first read has the full patience, so that bytes which have arrived are read even if this process was suspended
        // meanwhile.
        let mut left = patience;
        loop {
            while let Some(reply) = self.next_reply().inspect_err(|_| self.stream = None)? {
                if let Some(answer) = self.take(reply, tag, &mut |_| {})? {
                    return Ok(Some(answer));
                }
            }
            if left.is_zero() || !self.read(Some(left))? {
                return Ok(None);
            }
            left = until.saturating_duration_since(Instant::now());
        }
    }

    /// Waits for the server's `+` (RFC 3501 section 7.5). An answer to the command comes instead of it.
    pub(crate) fn invitation(&mut self, tag: &str) -> Result<CommandProgress, Broken> {
        loop {
            match self.wait_for_reply()? {
                Reply::Continue => return Ok(CommandProgress::Sent),
                reply => {
                    if let Some(answer) = self.take(reply, tag, &mut |_| {})? {
                        return Ok(CommandProgress::Answered(answer));
                    }
                }
            }
        }
    }

    /// Sends a command, with its last CRLF if `whole`, and returns its tag. A literal is sent when the server is ready for
    /// it.
    fn send(&mut self, command: &Command<'_>, whole: bool) -> Result<(String, CommandProgress), Broken> {
        self.commands += 1;
        let tag = format!("A{}", self.commands);
        tracing::debug!(tag, command = command.shown(), "IMAP command");
        let mut pending = format!("{tag} ").into_bytes();
        for part in command.parts() {
            match part {
                Part::Text(text) => pending.extend_from_slice(text.as_bytes()),
                Part::Literal(bytes) => {
                    let at_once = self.can("LITERAL+") || (self.can("LITERAL-") && bytes.len() <= LITERAL_MINUS_LIMIT);
                    let plus = if at_once { "+" } else { "" };
                    pending.extend_from_slice(format!("{{{}{plus}}}\r\n", bytes.len()).as_bytes());
                    // Not before the server asks for the literal: a server that says NO instead would read the message as
                    // commands.
                    if !at_once {
                        self.forget_old_invitations(&tag)?;
                        if let early @ CommandProgress::Answered(_) = self.write(&pending, &[], &tag)? {
                            return Ok((tag, early));
                        }
                        if let early @ CommandProgress::Answered(_) = self.invitation(&tag)? {
                            return Ok((tag, early));
                        }
                        pending.clear();
                    }
                    if let early @ CommandProgress::Answered(_) = self.write(&pending, bytes, &tag)? {
                        return Ok((tag, early));
                    }
                    pending.clear();
                }
            }
        }
        if whole {
            pending.extend_from_slice(b"\r\n");
        }
        let progress = self.write(&pending, &[], &tag)?;
        Ok((tag, progress))
    }

    /// Reads the replies that have come already, because a `+` from before the command does not belong to this one.
    fn forget_old_invitations(&mut self, tag: &str) -> Result<(), Broken> {
        while let Some(reply) = self.next_reply().inspect_err(|_| self.stream = None)? {
            if self.take(reply, tag, &mut |_| {})?.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Writes `bytes` and then `more`, in one packet if they fit. A server that accepts no more bytes may have refused the
    /// literal, and wait until this client reads the refusal (RFC 7888 section 4). The command is then incomplete, and the
    /// connection cannot be used further.
    fn write(&mut self, bytes: &[u8], more: &[u8], tag: &str) -> Result<CommandProgress, Broken> {
        let mut pieces = [IoSlice::new(bytes), IoSlice::new(more)];
        let mut rest = pieces.as_mut_slice();
        // Skips empty pieces.
        IoSlice::advance_slices(&mut rest, 0);
        loop {
            let stream = self.stream.as_mut().ok_or_else(given_up)?;
            let outcome = if rest.is_empty() {
                stream.flush(STALL).map(|flushed| flushed.then_some(0))
            } else {
                stream.write(rest, STALL)
            };
            match outcome {
                Ok(Some(written)) => {
                    if rest.is_empty() {
                        return Ok(CommandProgress::Sent);
                    }
                    self.spoke = true;
                    IoSlice::advance_slices(&mut rest, written);
                    if self.pace.is_some() {
                        self.set_pace(self.pace);
                    }
                }
                Ok(None) => {
                    if let Some(answer) = self.early_answer(tag, Duration::from_millis(1))? {
                        self.give_up();
                        return Ok(CommandProgress::Answered(answer));
                    }
                }
                Err(broken) => {
                    let early = self.early_answer(tag, LAST_WORDS);
                    self.give_up();
                    return match early {
                        Ok(Some(answer)) => Ok(CommandProgress::Answered(answer)),
                        // The server's last message is more specific than a broken pipe.
                        Err(last_words) if last_words.failure == MailboxFailure::ConnectionLost => Err(last_words),
                        _ => Err(broken),
                    };
                }
            }
        }
    }

    /// The server's refusal of a command that is still being sent, if there is one.
    fn early_answer(&mut self, tag: &str, patience: Duration) -> Result<Option<Answer>, Broken> {
        let answer = self.answer_within(tag, patience)?;
        if answer.as_ref().is_some_and(Answer::is_ok) {
            self.give_up();
            return Err(Broken::protocol("the server said OK to a command that it did not have yet"));
        }
        Ok(answer)
    }

    /// The answer to the command with this tag, if the reply is one. Other replies are noted or go to `on_untagged`.
    fn take(&mut self, reply: Reply, tag: &str, on_untagged: &mut dyn FnMut(&Reply)) -> Result<Option<Answer>, Broken> {
        match reply {
            // An unsolicited `+`: some servers send one even after a literal of LITERAL+.
            Reply::Continue => self.doubtful = true,
            Reply::Data(ref data) => {
                match fetch::capabilities(data) {
                    Some(capabilities) => self.capabilities = capabilities,
                    // Without a selected mailbox a delivery requests no other data.
                    None => self.doubtful |= fetch::position(data).is_none(),
                }
                on_untagged(&reply);
            }
            Reply::Status(None, ref answer) => {
                if answer.status == Status::Bye {
                    self.give_up();
                    return Err(farewell(answer));
                }
                tracing::debug!(?answer.status, ?answer.code, text = answer.text, "IMAP remark");
                self.doubtful |= answer.status != Status::Ok;
                self.learn_from(answer);
                on_untagged(&reply);
            }
            Reply::Status(Some(its_tag), answer) => return self.tagged(tag, &its_tag, answer).map(Some),
        }
        Ok(None)
    }

    fn wait_for_reply(&mut self) -> Result<Reply, Broken> {
        loop {
            if let Some(reply) = self.next_reply().inspect_err(|_| self.stream = None)? {
                return Ok(reply);
            }
            self.read(None)?;
        }
    }

    /// Reads bytes for [`next_reply`](Self::next_reply); `false` if none came within `patience`.
    fn read(&mut self, patience: Option<Duration>) -> Result<bool, Broken> {
        self.read_or_fail(patience).inspect_err(|_| self.stream = None)
    }

    fn read_or_fail(&mut self, patience: Option<Duration>) -> Result<bool, Broken> {
        let mut chunk = [0; 16 * 1024];
        let stream = self.stream.as_mut().ok_or_else(given_up)?;
        match stream.read(&mut chunk, patience)? {
            None => Ok(false),
            Some(0) => Err(Broken::lost("the server closed the connection")),
            Some(read) => {
                self.round_trips += u32::from(std::mem::take(&mut self.spoke));
                self.reader.feed(chunk.get(..read).unwrap_or_default());
                Ok(true)
            }
        }
    }

    /// The next complete reply, without our secrets.
    fn next_reply(&mut self) -> Result<Option<Reply>, Broken> {
        let secrets = &self.secrets;
        let hide = |text: &mut String| {
            for secret in secrets {
                if text.contains(secret.as_str()) {
                    *text = text.replace(secret, "…");
                }
            }
        };
        match self.reader.next() {
            Ok(Some(Reply::Status(tag, mut answer))) => {
                hide(&mut answer.text);
                // In these codes nothing is hidden: a short password may occur in a number that the client needs.
                const READ: [&str; 4] = ["CAPABILITY", "APPENDUID", "UIDVALIDITY", "UIDNEXT"];
                if let Some(code) = answer.code.as_mut().filter(|code| !READ.contains(&code.name.as_str())) {
                    hide(&mut code.arguments);
                }
                Ok(Some(Reply::Status(tag, answer)))
            }
            Ok(reply) => Ok(reply),
            Err(mut broken) => {
                hide(&mut broken.detail);
                Err(broken)
            }
        }
    }

    fn tagged(&mut self, tag: &str, its_tag: &str, answer: Answer) -> Result<Answer, Broken> {
        tracing::debug!(tag = its_tag, ?answer.status, ?answer.code, text = answer.text, "IMAP answer");
        if its_tag != tag {
            self.give_up();
            return Err(Broken::protocol(format!("the server answered {its_tag:?}, and was asked {tag:?}")));
        }
        match answer.status {
            Status::Ok | Status::No | Status::Bad => {
                self.doubtful |= answer.status != Status::Ok;
                self.learn_from(&answer);
                Ok(answer)
            }
            Status::Bye | Status::PreAuth => {
                self.give_up();
                Err(Broken::protocol("the server answered with what is no answer"))
            }
        }
    }

    fn learn_from(&mut self, answer: &Answer) {
        if let Some(capabilities) = answer.code("CAPABILITY") {
            self.capabilities = capabilities.split_ascii_whitespace().map(str::to_ascii_uppercase).collect();
        }
    }
}

fn given_up() -> Broken {
    Broken::lost("the connection was given up before")
}

pub(crate) fn farewell(answer: &Answer) -> Broken {
    Broken::lost(format!("the server said BYE: {}", answer.text))
}

impl Answer {
    pub(crate) fn is_ok(&self) -> bool {
        self.status == Status::Ok
    }

    /// The answer as text for a log: `NO [OVERQUOTA] Quota exceeded`.
    pub(crate) fn quote(&self) -> String {
        let status = self.status.as_str();
        match &self.code {
            Some(code) if code.arguments.is_empty() => format!("{status} [{}] {}", code.name, self.text),
            Some(code) => {
                format!("{status} [{} {}] {}", code.name, for_people(code.arguments.as_bytes()), self.text)
            }
            None => format!("{status} {}", self.text),
        }
    }

    /// The answer as an error, by its response code (RFC 5530 section 3; OVERQUOTA also in RFC 9208).
    pub(crate) fn refusal(&self, doing: &str) -> MailboxError {
        let failure = if self.has_code(&["OVERQUOTA"]) {
            MailboxFailure::OverQuota
        } else if self.has_code(&["TRYCREATE", "NONEXISTENT"]) {
            MailboxFailure::NoSuchMailbox
        } else if self.has_code(&["CANNOT", "LIMIT", "NOPERM"]) {
            MailboxFailure::RefusedForGood
        } else {
            MailboxFailure::Refused
        };
        MailboxError::new(failure, doing, self.quote())
    }
}
