//! What failed, a line of JSON each, in a file that a replay takes back in.

use super::list::{Location, Piece};
use super::{Form, PartialEnvelope};
use crate::base::hex;
use crate::ledger::CopyKey;
use crate::lock::LockName;
use crate::message::Message;
use crate::site::Envelope;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// How each line begins: what it is, then how old the message is, so that both are at hand without the rest.
const BEGINNING: &str = "{\"maildrop_command_replay\":1,\"at\":";

/// The first version of this form.
const VERSION: u8 = 1;

/// A line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Failure {
    maildrop_command_replay: u8,
    at: i64,
    source: Source,
    #[serde(default)]
    message_id: Option<String>,
    /// The digest of the lock's name.
    #[serde(default)]
    lock: Option<String>,
    /// The message's identity, once it had been read: a file or an mbox may have changed by the time it is read again.
    #[serde(default)]
    identity: Option<String>,
    #[serde(default)]
    envelope: Option<EnvelopeLine>,
    result: String,
    reason: String,
}

/// Where the message is.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Source {
    Piece {
        form: Form,
        file: PathBuf,
        #[serde(default)]
        offset: u64,
        /// Without it, to the end of the file.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        length: Option<u64>,
    },
    Ledger {
        ledger: String,
    },
    /// Nowhere where it could be read again (standard input): the message itself, base64. With a form, what it was written
    /// in, which could not be read.
    Content {
        content: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        form: Option<Form>,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct EnvelopeLine {
    sender: String,
    recipient: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    original_recipient: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    queue_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client_address: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sasl_username: Option<String>,
}

/// Where a message that failed is to be read again.
pub(crate) enum FailedSource {
    Location(Location),
    Content(Form, Vec<u8>),
}

/// What is known of what failed.
pub(crate) enum FailedContent<'a> {
    /// The message, and its lock.
    Message(&'a Message, &'a LockName),
    /// What no message could be read from, where it cannot be had again.
    Bytes(&'a [u8]),
}

/// Whether a file begins with such a line.
pub(crate) fn is_line(beginning: &[u8]) -> bool {
    let mark = BEGINNING.split_once(',').map_or(BEGINNING, |(mark, _)| mark);
    beginning.starts_with(mark.as_bytes())
}

/// How old the message of a line is, by the line's beginning.
pub(crate) fn at_of(beginning: &[u8]) -> Option<i64> {
    let rest = std::str::from_utf8(beginning.strip_prefix(BEGINNING.as_bytes())?.get(..32)?).ok()?;
    rest.split_once(',')?.0.parse().ok()
}

impl Failure {
    /// A line, without its line end. `what` is written down where `place` cannot be read again.
    pub fn line(
        at: i64,
        place: &Location,
        what: &FailedContent<'_>,
        envelope: Option<&Envelope>,
        result: &str,
        reason: &str,
    ) -> String {
        let source = match place {
            Location::Piece(Piece { form, path: Some(path), offset, length }) if path.to_str().is_some() => {
                let length = Some(*length).filter(|length| *length != Piece::TO_THE_END);
                Source::Piece { form: *form, file: path.clone(), offset: *offset, length }
            }
            Location::Piece(Piece { form, .. }) => match what {
                FailedContent::Message(message, _) => {
                    Source::Content { content: STANDARD.encode(message.as_received()), form: None }
                }
                FailedContent::Bytes(bytes) => Source::Content { content: STANDARD.encode(bytes), form: Some(*form) },
            },
            Location::Ledger(key) => Source::Ledger { ledger: hex::encode(key.as_bytes()) },
        };
        let message = match what {
            FailedContent::Message(message, lock) => Some((message, lock)),
            FailedContent::Bytes(_) => None,
        };
        let failure = Self {
            maildrop_command_replay: VERSION,
            at,
            source,
            message_id: message.and_then(|(message, _)| message.message_id().map(ToOwned::to_owned)),
            lock: message.map(|(_, lock)| hex::encode(lock.digest())),
            identity: message.map(|(message, _)| hex::encode(message.identity().as_bytes())),
            envelope: envelope.map(|envelope| EnvelopeLine {
                sender: envelope.sender.clone(),
                recipient: envelope.recipient.to_string(),
                original_recipient: envelope.original_recipient.clone(),
                queue_id: envelope.queue_id.clone(),
                client_address: envelope.client_address.clone(),
                sasl_username: envelope.sasl_username.clone(),
            }),
            result: result.to_owned(),
            reason: reason.to_owned(),
        };
        failure.written()
    }

    fn written(&self) -> String {
        // Nothing in it can fail to be JSON.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The line of what failed once more before its message could be read: all that this one says.
    pub(crate) fn once_more(&self, result: &str, reason: &str) -> String {
        Self { result: result.to_owned(), reason: reason.to_owned(), ..self.clone() }.written()
    }

    /// Reads a line; or says what is wrong with it.
    pub(crate) fn read(line: &[u8]) -> Result<Self, String> {
        let failure: Self = serde_json::from_slice(line).map_err(|error| format!("no line of a replay: {error}"))?;
        if failure.maildrop_command_replay != VERSION {
            return Err("a line of a newer release".into());
        }
        Ok(failure)
    }

    /// Where the message is.
    pub(crate) fn again(&self) -> Result<FailedSource, &'static str> {
        Ok(match &self.source {
            Source::Piece { form: Form::Failures, .. } | Source::Content { form: Some(Form::Failures), .. } => {
                return Err("a line that leads to another such line");
            }
            Source::Piece { form, file, offset, length } => FailedSource::Location(Location::Piece(Piece {
                form: *form,
                path: Some(file.clone()),
                offset: *offset,
                length: length.unwrap_or(Piece::TO_THE_END),
            })),
            Source::Ledger { ledger } => {
                let key = digest(ledger).ok_or("a copy's key has 64 hexadecimal digits")?;
                FailedSource::Location(Location::Ledger(CopyKey::from_bytes(key)))
            }
            Source::Content { content, .. } if content.is_empty() => {
                return Err("the message is not in this line: it could not be read when it failed");
            }
            Source::Content { content, form } => {
                let bytes = STANDARD.decode(content).map_err(|_| "its content is no base64")?;
                FailedSource::Content(form.unwrap_or(Form::Message), bytes)
            }
        })
    }

    /// The digest of its lock's name, if it is told.
    pub(crate) fn lock(&self) -> Option<[u8; 32]> {
        digest(self.lock.as_deref()?)
    }

    /// Whether this is the message that failed: what it was taken from may have changed since.
    pub(crate) fn is_about(&self, message: &Message) -> bool {
        match self.identity.as_deref() {
            // A mail reader that rewrote the mbox leaves the Message-ID, and not where the message ends.
            Some(identity) => identity == hex::encode(message.identity().as_bytes()),
            None => self.message_id.as_deref().is_none_or(|id| message.message_id() == Some(id)),
        }
    }

    /// The one recipient for whom it failed, with the rest of the envelope; nothing, where no envelope was known.
    pub(crate) fn given(&self) -> PartialEnvelope {
        let Some(envelope) = &self.envelope else { return PartialEnvelope::default() };
        PartialEnvelope {
            sender: Some(envelope.sender.clone()),
            recipients: vec![(envelope.recipient.clone(), envelope.original_recipient.clone())],
            queue_id: envelope.queue_id.clone(),
            client_address: envelope.client_address.clone(),
            sasl_username: envelope.sasl_username.clone(),
        }
    }
}

/// 32 bytes from hexadecimal digits.
fn digest(text: &str) -> Option<[u8; 32]> {
    hex::decode(text)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_back() {
        let message = Message::receive(b"Message-ID: <1@x>\n\nx\n".to_vec()).unwrap();
        let lock = LockName::new("maildrop", b"<1@x>");
        let given = PartialEnvelope {
            sender: Some(String::new()),
            recipients: vec![("doug@x".into(), Some("alias@x".into()))],
            sasl_username: Some("lisa".into()),
            ..PartialEnvelope::default()
        };
        let envelope = given.envelopes().next().unwrap().unwrap();
        let file = Location::Piece(Piece { form: Form::Mbox, path: Some("/a b".into()), offset: 7, length: 9 });
        let stdin = Location::Piece(Piece { form: Form::Message, path: None, offset: 0, length: Piece::TO_THE_END });
        let ledger = Location::Ledger(CopyKey::from_bytes([0xab; 32]));
        for place in [file, stdin, ledger] {
            let line = Failure::line(
                12,
                &place,
                &FailedContent::Message(&message, &lock),
                Some(&envelope),
                "deferred",
                "why\n",
            );
            assert!(is_line(line.as_bytes()) && !line.contains('\n'), "{line}");
            assert_eq!(at_of(line.as_bytes()), Some(12));
            let failure = Failure::read(line.as_bytes()).unwrap();
            assert_eq!((failure.lock(), failure.given()), (Some(*lock.digest()), given.clone()));
            assert!(failure.is_about(&message));
            let cut = Message::receive(b"Message-ID: <1@x>\n\n".to_vec()).unwrap();
            assert!(!failure.is_about(&cut), "the same Message-ID, and not the same message");
            match failure.again().unwrap() {
                FailedSource::Location(again) => assert_eq!(again, place),
                FailedSource::Content(form, content) => {
                    assert_eq!((form, content.as_slice()), (Form::Message, message.as_received()));
                }
            }
        }
        let stdin = Location::Piece(Piece { form: Form::Message, path: None, offset: 0, length: Piece::TO_THE_END });
        let line = Failure::line(12, &stdin, &FailedContent::Bytes(b""), None, "deferred", "a bug");
        assert!(Failure::read(line.as_bytes()).unwrap().again().is_err(), "nobody is owed an empty message");
        let cut = Location::Piece(Piece { form: Form::QueueFile, path: None, offset: 3, length: 5 });
        let line = Failure::line(12, &cut, &FailedContent::Bytes(b"*** E"), None, "refused", "it is not whole");
        let line = Failure::read(line.as_bytes()).unwrap().once_more("refused", "it still is not");
        let failure = Failure::read(line.as_bytes()).unwrap();
        assert!(
            matches!(failure.again(), Ok(FailedSource::Content(Form::QueueFile, bytes)) if bytes == b"*** E"),
            "{line}"
        );
        assert!(Failure::read(b"{}").is_err());
    }
}
