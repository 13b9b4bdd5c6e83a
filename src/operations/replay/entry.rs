//! An entry of the list: the location of a message, and what is known before it is read. Together with a result, an entry is a
//! line of JSON in the file of failures, which a later replay reads back.

use super::lines::FilePart;
use super::source::standard_input;
use super::{Form, PartialEnvelope, ReplayOutcome};
use crate::base::hex;
use crate::message::Message;
use crate::site::Envelope;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The beginning of each line, so that a line is recognized without parsing all of it.
const MARK: &str = "{\"maildrop_command_replay\":1";

/// The first version of this format.
const VERSION: u8 = 1;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReplayEntry {
    pub(crate) source: Location,
    message_id: Option<String>,
    /// The message's identity, once it was read: the file may have changed when it is read a second time.
    identity: Option<String>,
    /// The envelope for the one recipient whose delivery failed; empty if no envelope was known.
    #[serde(default)]
    pub(super) envelope: PartialEnvelope,
}

/// The location of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Location {
    Piece(Piece),
    /// In the ledger: the source of the copy with this key.
    Ledger {
        ledger: String,
    },
    /// In the entry itself: the bytes of a piece of this form, as base64, because standard input cannot be read twice.
    Content {
        content: String,
        form: Form,
    },
}

/// A part of a file that contains a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Piece {
    pub(crate) form: Form,
    /// `None` is standard input.
    #[serde(rename = "file", deserialize_with = "named_file")]
    pub(crate) path: Option<PathBuf>,
    #[serde(default)]
    pub(crate) offset: u64,
    /// The number of bytes; without it, the piece extends to the end of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) length: Option<u64>,
}

/// A line of the file of failures.
#[derive(Serialize, Deserialize)]
struct FailureLine {
    maildrop_command_replay: u8,
    #[serde(flatten)]
    entry: ReplayEntry,
    result: String,
    reason: String,
}

/// In a line, a [`Piece`] never refers to standard input: a line without a file is another [`Location`].
fn named_file<'de, D: Deserializer<'de>>(file: D) -> Result<Option<PathBuf>, D::Error> {
    PathBuf::deserialize(file).map(Some)
}

/// Whether a file begins with a line of this format.
pub(crate) fn is_line(beginning: &[u8]) -> bool {
    beginning.starts_with(MARK.as_bytes())
}

pub(super) fn digest(text: &str) -> Option<[u8; 32]> {
    hex::decode(text)?.try_into().ok()
}

impl Piece {
    /// The whole of a file; without a path, of standard input.
    pub(crate) fn whole(form: Form, path: Option<&Path>) -> Self {
        Self { form, path: path.map(Path::to_owned), offset: 0, length: None }
    }

    pub(crate) fn open(&self) -> io::Result<FilePart> {
        let file = match &self.path {
            Some(path) => File::open(path)?,
            None => standard_input().map_err(io::Error::other)?.try_clone()?,
        };
        Ok(FilePart::new(file, self.offset, self.length))
    }

    /// The piece's bytes, up to this many, or the error for people.
    pub(super) fn first_bytes(&self, limit: u64) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        let read = self.open().and_then(|file| file.take(limit).read_to_end(&mut bytes));
        read.map(|_| bytes).map_err(|error| format!("it cannot be read: {error}"))
    }
}

impl Location {
    /// The bytes of [`Content`](Self::Content).
    pub(super) fn decode(content: &str) -> Result<Vec<u8>, &'static str> {
        match STANDARD.decode(content) {
            // An empty message was never sent.
            Ok(bytes) if bytes.is_empty() => {
                Err("the message is not in this line: it could not be read when it failed")
            }
            Ok(bytes) => Ok(bytes),
            Err(_) => Err("its content is no base64"),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Piece(Piece { path, offset, .. }) => {
                let path = path.as_deref().unwrap_or(Path::new("standard input")).display();
                if *offset == 0 { path.fmt(f) } else { write!(f, "{path}, byte {offset}") }
            }
            Self::Content { .. } => f.write_str("standard input"),
            Self::Ledger { .. } => f.write_str("the ledger"),
        }
    }
}

impl ReplayEntry {
    pub(crate) fn new(source: Location) -> Self {
        Self { source, message_id: None, identity: None, envelope: PartialEnvelope::default() }
    }

    /// Parses a line of a file of failures, or returns the problem.
    fn from_line(line: &[u8]) -> Result<Self, String> {
        let line: Result<FailureLine, _> = serde_json::from_slice(line);
        line.map(|line| line.entry).map_err(|error| format!("no line of a replay: {error}"))
    }

    /// For an entry that refers to a line of an earlier replay: the entry in that line. Any other entry is returned itself.
    pub(super) fn resolve(&self) -> Result<Cow<'_, Self>, String> {
        match &self.source {
            // The read has no size limit: the line may contain a whole message.
            Location::Piece(piece) if piece.form == Form::Failures => {
                Self::from_line(&piece.first_bytes(u64::MAX)?).map(Cow::Owned)
            }
            _ => Ok(Cow::Borrowed(self)),
        }
    }

    /// The line that records the failure, without a line end. `message` and `envelope` are set if they are known.
    pub(crate) fn into_line(
        mut self,
        message: Option<&Message>,
        envelope: Option<&Envelope>,
        outcome: &ReplayOutcome,
    ) -> String {
        // Standard input cannot be read twice, and JSON cannot contain a path that is not UTF-8.
        if let Location::Piece(piece) = &self.source
            && piece.path.as_deref().and_then(Path::to_str).is_none()
        {
            let content = STANDARD.encode(piece.first_bytes(u64::MAX).unwrap_or_default());
            self.source = Location::Content { content, form: piece.form };
        }
        if let Some(message) = message {
            self.message_id = message.message_id().map(ToOwned::to_owned);
            self.identity = Some(hex::encode(message.identity().as_bytes()));
        }
        if let Some(envelope) = envelope {
            self.envelope = envelope.clone().into();
        }
        let (result, reason) = (outcome.as_str().to_owned(), outcome.detail().to_owned());
        // Serialization cannot fail for these types.
        serde_json::to_string(&FailureLine { maildrop_command_replay: VERSION, entry: self, result, reason })
            .unwrap_or_default()
    }

    /// Whether this is the message that failed: the file at its location may have changed meanwhile.
    pub(crate) fn is_about(&self, message: &Message) -> bool {
        // A mail reader that rewrites the mbox keeps the Message-ID, but may move the end of the message.
        self.identity.as_deref().is_none_or(|identity| identity == hex::encode(message.identity().as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_about_one_message() {
        let message = Message::receive(b"Message-ID: <1@x>\n\nx\n".to_vec()).unwrap();
        let source =
            Location::Piece(Piece { offset: 7, length: Some(9), ..Piece::whole(Form::Mbox, Some(Path::new("/a b"))) });
        let entry = ReplayEntry::new(source.clone());
        let outcome = ReplayOutcome::Deferred("why\n".into());
        let line = entry.into_line(Some(&message), None, &outcome);
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
        assert!(from_line("{\"form\":\"message\"}").is_err(), "it would be standard input");
    }
}
