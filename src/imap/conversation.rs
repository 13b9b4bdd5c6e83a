//! Commands out, answers back, in order, over one connection. After any failure the connection is dropped: what is on
//! it could no longer be told apart.

use super::argument::{Command, Part};
use super::stream::Stream;
use super::wire::{Answer, Reader, Reply, Segment, Status, for_people};
use super::{Broken, fetch};
use super::{MailboxError, MailboxFailure};
use crate::base::deadline::Deadline;
use std::io::IoSlice;
use std::thread;
use std::time::{Duration, Instant};

/// How long a write may make no headway before we look whether the server has said something meanwhile.
const STALL: Duration = Duration::from_millis(500);
/// How long, once the server takes no more bytes, we wait for what it says about that.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// RFC 7888 section 5: with LITERAL-, the longest literal that need not wait for the server, in bytes.
const LITERAL_MINUS_LIMIT: usize = 4096;

/// A connection on which we talk.
pub(crate) struct Conversation {
    /// `None` once it has failed or was given up.
    stream: Option<Stream>,
    reader: Reader,
    commands: u64,
    capabilities: Vec<String>,
    /// What no log and no error may show, should the server say it back.
    secrets: Vec<String>,
    /// Whether anything was said since the server was last heard.
    spoke: bool,
    round_trips: u32,
    /// When it began.
    since: Instant,
    /// Whether the server has refused a command, or has said what nobody had asked for: then nothing more than the delivery
    /// at hand is entrusted to this connection.
    doubtful: bool,
}

/// What the server says without a tag.
pub(crate) enum Untagged<'a> {
    /// Data: `* 3 EXISTS`.
    Data(&'a [Segment]),
    /// A remark: `* OK [UIDVALIDITY 3]`.
    Remark(&'a Answer),
}

impl<'a> Untagged<'a> {
    /// The data; nothing where it is a remark.
    pub(crate) fn data(&self) -> &'a [Segment] {
        match self {
            Self::Data(data) => data,
            Self::Remark(_) => &[],
        }
    }

    /// The arguments of the code of this name, where it is a remark with that code.
    pub(crate) fn code(&self, name: &str) -> Option<&'a str> {
        match self {
            Self::Data(_) => None,
            Self::Remark(answer) => answer.code(name),
        }
    }
}

/// How far a command got.
pub(crate) enum Progress {
    /// All of it was sent but its last CRLF.
    Sent,
    /// The server has answered before.
    Answered(Answer),
}

impl Conversation {
    pub(super) fn new(stream: Stream) -> Self {
        Self {
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

    /// How often we said something and then heard the server.
    pub fn round_trips(&self) -> u32 {
        self.round_trips
    }

    /// When the connection was made.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// Whether nothing speaks against more deliveries by this connection: it stands, each command that was sent has been
    /// answered by OK, and nothing else has come in.
    pub(crate) fn is_sound(&mut self) -> bool {
        let quiet = !self.doubtful && !self.spoke && self.reader.is_empty();
        quiet && self.stream.as_mut().is_some_and(Stream::is_quiet)
    }

    /// Another deadline, and round trips counted anew.
    pub(crate) fn begin_anew(&mut self, deadline: Deadline) {
        self.round_trips = 0;
        self.set_deadline(deadline);
    }

    /// Another deadline.
    pub(crate) fn set_deadline(&mut self, deadline: Deadline) {
        if let Some(stream) = &mut self.stream {
            stream.set_deadline(deadline);
        }
    }

    /// Waits before the server is asked again; never past the deadline.
    pub(crate) fn pause(&self, span: Duration) {
        thread::sleep(self.stream.as_ref().map_or(Duration::ZERO, |stream| span.min(stream.remaining())));
    }

    /// What the server has said that it can do, in capitals.
    pub(crate) fn capabilities(&self) -> &[String] {
        &self.capabilities
    }

    /// Whether the server has said that it can do this.
    pub(crate) fn can(&self, capability: &str) -> bool {
        self.capabilities.iter().any(|known| known == capability)
    }

    /// Forgets what the server said that it can do: it was said before TLS, or before the login.
    pub(crate) fn forget_capabilities(&mut self) {
        self.capabilities.clear();
    }

    /// From now on, no log and no error shows this, should the server say it back.
    pub(crate) fn hide(&mut self, secret: &str) {
        if secret.is_empty() {
            return;
        }
        // As a quoted string has it, and as that is quoted once more in what is told of a line that is no IMAP.
        if secret.contains(['\\', '"']) {
            let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
            let once = quoted(secret);
            self.secrets.extend([quoted(&once), once]);
        }
        self.secrets.push(secret.to_owned());
    }

    /// Whether the connection is still of use.
    pub(crate) fn is_usable(&self) -> bool {
        self.stream.is_some()
    }

    /// Drops the connection as it is.
    pub(crate) fn give_up(&mut self) {
        self.stream = None;
    }

    /// The connection itself, to go on under TLS. What the server has already said must have been heard to its end: what
    /// is left could be anybody's, slipped in before the encryption (RFC 3501 section 6.2.1; CVE-2011-0411 and its kin).
    pub(super) fn bare_stream(&mut self) -> Result<&mut Stream, Broken> {
        if !self.reader.is_empty() {
            self.give_up();
            return Err(Broken::protocol("something was slipped in between STARTTLS and TLS"));
        }
        self.stream.as_mut().ok_or_else(given_up)
    }

    /// The server's first words.
    pub(crate) fn greeting(&mut self) -> Result<Answer, Broken> {
        loop {
            if let Some(Reply::Status(None, answer)) = self.hear(None)? {
                self.learn_from(&answer);
                return Ok(answer);
            }
        }
    }

    /// Sends a command and waits for what comes of it. What comes without a tag goes to `on_untagged`.
    pub(crate) fn run(
        &mut self,
        command: &Command<'_>,
        on_untagged: &mut dyn FnMut(&Untagged<'_>),
    ) -> Result<Answer, Broken> {
        let mut tag = String::new();
        match self.send(command, &mut tag, true)? {
            Progress::Sent => self.answer(&tag, on_untagged),
            Progress::Answered(answer) => Ok(answer),
        }
    }

    /// Sends two commands, and only then waits for what comes of them.
    pub(crate) fn run_both(&mut self, one: &Command<'_>, other: &Command<'_>) -> Result<[Answer; 2], Broken> {
        let mut tags = [String::new(), String::new()];
        for (command, tag) in [one, other].into_iter().zip(&mut tags) {
            if let Progress::Answered(answer) = self.send(command, tag, true)? {
                return Err(Broken::lost(answer.quote()));
            }
        }
        let [one, other] = tags;
        Ok([self.answer(&one, &mut |_| {})?, self.answer(&other, &mut |_| {})?])
    }

    /// Sends a command but not its last CRLF, and says under which tag. Each literal goes when the server is ready for it.
    pub fn begin(&mut self, command: &Command<'_>) -> Result<(String, Progress), Broken> {
        let mut tag = String::new();
        let progress = self.send(command, &mut tag, false)?;
        Ok((tag, progress))
    }

    /// Sends the last CRLF of a command that was begun.
    pub fn end(&mut self, tag: &str) -> Result<Progress, Broken> {
        self.write(b"\r\n", &[], tag)
    }

    /// Sends a line and no more: for a farewell to which the answer does not matter, and for what answers a `+`.
    pub(crate) fn say(&mut self, line: &str) -> Result<(), Broken> {
        self.write(format!("{line}\r\n").as_bytes(), &[], "").map(drop)
    }

    /// LOGOUT, if the connection still stands. Nobody waits for the answer.
    pub(crate) fn log_out(&mut self) {
        self.commands += 1;
        let line = format!("A{} LOGOUT", self.commands);
        if let Err(broken) = self.say(&line) {
            tracing::debug!(reason = broken.detail, "IMAP LOGOUT was not sent");
        }
    }

    /// Hears what comes until the answer to this command.
    pub(crate) fn answer(&mut self, tag: &str, on_untagged: &mut dyn FnMut(&Untagged<'_>)) -> Result<Answer, Broken> {
        loop {
            match self.hear(None)? {
                Some(Reply::Status(Some(its_tag), answer)) => return self.tagged(tag, &its_tag, answer),
                Some(Reply::Status(None, answer)) => self.remark(&answer, on_untagged)?,
                Some(Reply::Data(data)) => self.data(&data, on_untagged),
                // A `+` that nobody waits for: some servers send one even after a LITERAL+.
                Some(Reply::Continue) => self.doubtful = true,
                None => {}
            }
        }
    }

    /// Waits for the server's `+`. What it says before is heard and means nothing; an answer to the command means that the
    /// `+` will not come.
    pub(crate) fn invitation(&mut self, tag: &str) -> Result<Progress, Broken> {
        loop {
            match self.hear(None)? {
                Some(Reply::Continue) => return Ok(Progress::Sent),
                Some(Reply::Status(Some(its_tag), answer)) => {
                    return self.tagged(tag, &its_tag, answer).map(Progress::Answered);
                }
                Some(Reply::Status(None, answer)) => self.remark(&answer, &mut |_| {})?,
                Some(Reply::Data(data)) => self.data(&data, &mut |_| {}),
                None => {}
            }
        }
    }

    fn send(&mut self, command: &Command<'_>, tag: &mut String, whole: bool) -> Result<Progress, Broken> {
        self.commands += 1;
        *tag = format!("A{}", self.commands);
        tracing::debug!(tag, command = command.shown(), "IMAP command");
        let mut pending = format!("{tag} ").into_bytes();
        for part in command.parts() {
            match part {
                Part::Text(text) => pending.extend_from_slice(text.as_bytes()),
                Part::Literal(bytes) => {
                    let at_once = self.can("LITERAL+") || (self.can("LITERAL-") && bytes.len() <= LITERAL_MINUS_LIMIT);
                    let plus = if at_once { "+" } else { "" };
                    pending.extend_from_slice(format!("{{{}{plus}}}\r\n", bytes.len()).as_bytes());
                    if !at_once {
                        self.forget_old_invitations(tag)?;
                    }
                    // Not before the server asks for it: if it says NO instead, it would take the message for commands.
                    if !at_once {
                        if let Progress::Answered(answer) = self.write(&pending, &[], tag)? {
                            return Ok(Progress::Answered(answer));
                        }
                        if let Progress::Answered(answer) = self.invitation(tag)? {
                            return Ok(Progress::Answered(answer));
                        }
                        pending.clear();
                    }
                    if let Progress::Answered(answer) = self.write(&pending, bytes, tag)? {
                        return Ok(Progress::Answered(answer));
                    }
                    pending.clear();
                }
            }
        }
        if whole {
            pending.extend_from_slice(b"\r\n");
        }
        self.write(&pending, &[], tag)
    }

    /// Hears what has already come in: a `+` sent before the command cannot be an answer to it.
    fn forget_old_invitations(&mut self, tag: &str) -> Result<(), Broken> {
        while let Some(reply) = self.next_reply().inspect_err(|_| self.stream = None)? {
            match reply {
                Reply::Continue => self.doubtful = true,
                Reply::Data(data) => self.data(&data, &mut |_| {}),
                Reply::Status(None, answer) => self.remark(&answer, &mut |_| {})?,
                Reply::Status(Some(its_tag), answer) => return self.tagged(tag, &its_tag, answer).map(drop),
            }
        }
        Ok(())
    }

    /// Writes it all, `bytes` and then `more`, in one packet where they fit. A server that takes no more may have answered
    /// already, and may even wait for us to hear it: a refused literal (RFC 7888 section 4). The command is then cut off in
    /// its midst, so the connection is of no further use.
    fn write(&mut self, bytes: &[u8], more: &[u8], tag: &str) -> Result<Progress, Broken> {
        let mut pieces = [IoSlice::new(bytes), IoSlice::new(more)];
        let mut rest = pieces.as_mut_slice();
        // What is empty is skipped.
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
                        return Ok(Progress::Sent);
                    }
                    self.spoke = true;
                    IoSlice::advance_slices(&mut rest, written);
                }
                Ok(None) => {
                    if let Some(answer) = self.early_answer(tag, Duration::from_millis(1))? {
                        self.give_up();
                        return Ok(Progress::Answered(answer));
                    }
                }
                Err(broken) => {
                    let early = self.early_answer(tag, LAST_WORDS);
                    self.give_up();
                    return match early {
                        Ok(Some(answer)) => Ok(Progress::Answered(answer)),
                        // What the server said at its end tells more than a broken pipe.
                        Err(last_words) if last_words.failure == MailboxFailure::ConnectionLost => Err(last_words),
                        _ => Err(broken),
                    };
                }
            }
        }
    }

    /// A refusal of the command that is still being sent, if the server has sent one.
    fn early_answer(&mut self, tag: &str, patience: Duration) -> Result<Option<Answer>, Broken> {
        while let Some(reply) = self.hear(Some(patience))? {
            match reply {
                Reply::Continue => self.doubtful = true,
                Reply::Data(data) => self.data(&data, &mut |_| {}),
                Reply::Status(None, answer) => self.remark(&answer, &mut |_| {})?,
                Reply::Status(Some(its_tag), answer) => {
                    let answer = self.tagged(tag, &its_tag, answer)?;
                    if answer.status == Status::Ok {
                        self.give_up();
                        return Err(Broken::protocol("the server said OK to a command that it did not have yet"));
                    }
                    return Ok(Some(answer));
                }
            }
        }
        Ok(None)
    }

    /// The next reply. `None`: none came within `patience`.
    fn hear(&mut self, patience: Option<Duration>) -> Result<Option<Reply>, Broken> {
        let heard = self.hear_or_fail(patience);
        if heard.is_err() {
            self.give_up();
        }
        heard
    }

    fn hear_or_fail(&mut self, patience: Option<Duration>) -> Result<Option<Reply>, Broken> {
        let mut chunk = [0; 16 * 1024];
        loop {
            if let Some(reply) = self.next_reply()? {
                return Ok(Some(reply));
            }
            let stream = self.stream.as_mut().ok_or_else(given_up)?;
            match stream.read(&mut chunk, patience)? {
                None => return Ok(None),
                Some(0) => return Err(Broken::lost("the server closed the connection")),
                Some(read) => {
                    self.round_trips += u32::from(std::mem::take(&mut self.spoke));
                    self.reader.feed(chunk.get(..read).unwrap_or_default());
                }
            }
        }
    }

    /// The next reply of those that came in, without our secrets.
    fn next_reply(&mut self) -> Result<Option<Reply>, Broken> {
        let secrets = &self.secrets;
        let hide = |text: &mut String| {
            for secret in secrets {
                // Hardly ever.
                if text.contains(secret.as_str()) {
                    *text = text.replace(secret, "…");
                }
            }
        };
        match self.reader.next() {
            Ok(Some(Reply::Status(tag, mut answer))) => {
                hide(&mut answer.text);
                // A short password may well be part of what we go by.
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

    /// An untagged status: a remark, or the server's farewell.
    fn remark(&mut self, answer: &Answer, on_untagged: &mut dyn FnMut(&Untagged<'_>)) -> Result<(), Broken> {
        if answer.status == Status::Bye {
            self.give_up();
            return Err(farewell(answer));
        }
        tracing::debug!(?answer.status, ?answer.code, text = answer.text, "IMAP remark");
        self.doubtful |= answer.status != Status::Ok;
        self.learn_from(answer);
        on_untagged(&Untagged::Remark(answer));
        Ok(())
    }

    fn data(&mut self, data: &[Segment], on_untagged: &mut dyn FnMut(&Untagged<'_>)) {
        match fetch::capabilities(data) {
            Some(capabilities) => self.capabilities = capabilities,
            // Of all that is asked for without a mailbox selected, a delivery needs this alone.
            None => self.doubtful |= fetch::position(data).is_none(),
        }
        on_untagged(&Untagged::Data(data));
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

/// What a BYE means, whenever it comes.
pub(crate) fn farewell(answer: &Answer) -> Broken {
    Broken::lost(format!("the server said BYE: {}", answer.text))
}

impl Answer {
    /// Whether the server did as it was asked.
    pub(crate) fn is_ok(&self) -> bool {
        self.status == Status::Ok
    }

    /// What it says, for a log: `NO [OVERQUOTA] Quota exceeded`.
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

    /// The refusal as an error (RFC 5530 says what the codes mean).
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
