//! An entry of the list: the location of a message, and what is known before it is read. Together with a result, an entry is a
//! line of JSON in the file of failures, which a later replay reads back.

use super::{Form, PartialEnvelope, ReplayOutcome};
use crate::base::hex;
use crate::ledger::CopyKey;
use crate::message::Message;
use crate::site::Envelope;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

/// The beginning of each line, so that a line is recognized without parsing all of it.
const MARK: &str = "{\"maildrop_command_replay\":1";

/// The folder in which a process has the files that it opened. A copy of standard input has no other name.
pub(super) const OPEN_FILES: &str = "/proc/self/fd";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ReplayEntry {
    /// The version of this format. It comes first, as [`MARK`].
    maildrop_command_replay: u8,
    pub(crate) source: Location,
    pub(super) message_id: Option<String>,
    /// The message's identity, once it was read: the file may have changed when it is read a second time.
    identity: Option<String>,
    /// The envelope for the one recipient whose delivery failed; empty if no envelope was known.
    #[serde(default)]
    pub(super) envelope: PartialEnvelope,
    /// The result, for people.
    result: String,
    reason: String,
}

/// The location of a message: a part of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Location {
    pub(crate) form: Form,
    /// Of [`Form::Ledger`], the key of the copy.
    pub(super) file: PathBuf,
    #[serde(default)]
    pub(super) offset: u64,
    /// The number of bytes; without it, the part extends to the end of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) length: Option<u64>,
    /// The bytes themselves, as base64, if a later replay cannot read the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) content: Option<String>,
}

/// Whether a file begins with a line of this format.
pub(crate) fn is_line(beginning: &[u8]) -> bool {
    beginning.starts_with(MARK.as_bytes())
}

impl Location {
    /// The whole of a file.
    pub(crate) fn whole(form: Form, file: impl Into<PathBuf>) -> Self {
        Self { form, file: file.into(), offset: 0, length: None, content: None }
    }

    pub(crate) fn in_ledger(copy: CopyKey) -> Self {
        Self::whole(Form::Ledger, hex::encode(copy.as_bytes()))
    }

    pub(super) fn copy_key(&self) -> Option<CopyKey> {
        Some(CopyKey::from_bytes(hex::decode(self.file.to_str()?)?.try_into().ok()?))
    }

    /// The bytes, up to this many, or the error for people.
    pub(super) fn first_bytes(&self, limit: u64) -> Result<Vec<u8>, String> {
        if let Some(content) = &self.content {
            let bytes = STANDARD.decode(content).map_err(|_| "its content is no base64")?;
            // An empty message was never sent.
            let why = "the message is not in this line: it could not be read when it failed";
            return if bytes.is_empty() { Err(why.into()) } else { Ok(bytes) };
        }
        let mut bytes = Vec::new();
        let mut read = || {
            let mut file = File::open(&self.file)?;
            file.seek(SeekFrom::Start(self.offset))?;
            file.take(self.length.unwrap_or(u64::MAX).min(limit)).read_to_end(&mut bytes)
        };
        read().map_err(|error: io::Error| format!("it cannot be read: {error}"))?;
        Ok(bytes)
    }

    /// Whether the lines at the top that look prepended come from this host's pipe(8). Postfix has not delivered what is in its
    /// queue, so there the lines came with the message.
    pub(super) fn lines_are_ours(&self) -> bool {
        self.form != Form::QueueFile
    }

    /// Whether a later replay can read the file. It cannot read standard input, and JSON cannot contain a path that is not UTF-8.
    fn can_be_named(&self) -> bool {
        self.content.is_some() || (self.file.to_str().is_some() && !self.file.starts_with(OPEN_FILES))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { form: Form::Ledger, .. } => return f.write_str("the ledger"),
            Self { file, .. } if self.content.is_some() || file.starts_with(OPEN_FILES) => {
                f.write_str("standard input")
            }
            Self { file, .. } => file.display().fmt(f),
        }?;
        if self.offset == 0 { Ok(()) } else { write!(f, ", byte {}", self.offset) }
    }
}

impl ReplayEntry {
    pub(crate) fn new(source: Location) -> Self {
        let (result, reason) = (String::new(), String::new());
        let envelope = PartialEnvelope::default();
        Self { maildrop_command_replay: 1, source, message_id: None, identity: None, envelope, result, reason }
    }

    /// Parses a line of a file of failures, or returns the problem.
    pub(super) fn from_line(line: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(line).map_err(|error| format!("no line of a replay: {error}"))
    }

    /// For an entry that refers to a line of an earlier replay: the entry in that line, if it can be read. Any other entry is
    /// returned itself.
    pub(super) fn resolve(self) -> Self {
        if self.source.form != Form::Failures {
            return self;
        }
        // The read has no size limit: the line may contain a whole message.
        self.source.first_bytes(u64::MAX).and_then(|line| Self::from_line(&line)).unwrap_or(self)
    }

    /// The line that records the failure, without a line end. `message` and `envelope` are set if they are known.
    pub(crate) fn to_line(
        &self,
        message: Option<&Message>,
        envelope: Option<&Envelope>,
        outcome: &ReplayOutcome,
    ) -> String {
        let mut line = Self { result: outcome.as_str().into(), reason: outcome.detail().into(), ..self.clone() };
        if !self.source.can_be_named() {
            let content = STANDARD.encode(self.source.first_bytes(u64::MAX).unwrap_or_default());
            line.source = Location { content: Some(content), ..Location::whole(self.source.form, "-") };
        }
        if let Some(message) = message {
            line.message_id = message.message_id().map(ToOwned::to_owned);
            line.identity = Some(identity(message));
        }
        if let Some(envelope) = envelope {
            line.envelope = envelope.clone().into();
        }
        // Serialization cannot fail for these types.
        serde_json::to_string(&line).unwrap_or_default()
    }

    /// Whether this is the message that failed: the file at its location may have changed meanwhile.
    pub(crate) fn is_about(&self, message: &Message) -> bool {
        // A mail reader that rewrites the mbox keeps the Message-ID, but may move the end of the message.
        self.identity.as_ref().is_none_or(|known| *known == identity(message))
    }
}

fn identity(message: &Message) -> String {
    hex::encode(message.identity().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_about_one_message() {
        let message = Message::receive(b"Message-ID: <1@x>\n\nx\n".to_vec()).unwrap();
        let source = Location { offset: 7, length: Some(9), ..Location::whole(Form::Mbox, "/a b") };
        let entry = ReplayEntry::new(source.clone());
        let outcome = ReplayOutcome::Deferred("why\n".into());
        let line = entry.to_line(Some(&message), None, &outcome);
        assert!(is_line(line.as_bytes()) && !line.contains('\n'), "{line}");
        let entry = ReplayEntry::from_line(line.as_bytes()).unwrap();
        assert_eq!(entry.source, source);
        let cut = Message::receive(b"Message-ID: <1@x>\n\n".to_vec()).unwrap();
        assert!(entry.is_about(&message) && !entry.is_about(&cut), "the same Message-ID, and not the same message");
    }

    #[test]
    fn a_line_without_a_file_is_no_line() {
        let from_line = |source: &str| {
            let line = format!("{MARK},\"source\":{source},\"result\":\"deferred\",\"reason\":\"\"}}");
            ReplayEntry::from_line(line.as_bytes())
        };
        assert!(from_line("{\"form\":\"message\",\"file\":\"/a\"}").is_ok());
        assert!(from_line("{\"form\":\"message\"}").is_err());
    }
}
