//! The format of a file of the queue: the envelope as JSON, a line `---`, and the bytes of the message as they came.

use super::QueueError;
use super::shunted::Origin;
use crate::base::timestamp;
use crate::message::Recipient;
use memchr::memmem;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Separates the envelope from the message. No line of the JSON can be `---`, because line ends in a text are escaped.
const DIVIDER: &[u8] = b"\n---\n";

/// The longest envelope, in bytes, with the divider. A file without a divider in its first 4 MiB is unreadable.
pub(super) const LONGEST: usize = 1 << 22;

/// The part of a file before the message.
// An unknown key makes the file unreadable, so that it is moved to `bad/`. A later release may have written the key, which
// could change how the message must be handled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Envelope {
    /// The envelope sender; empty for the null sender.
    pub sender: String,
    /// When the message was accepted, in microseconds since 1970.
    #[serde(serialize_with = "timestamp::serialize", deserialize_with = "read_time")]
    pub queued_at: i64,
    pub injected_by: String,
    /// Whether the sender's Sent mailbox may get a copy. In the queue, the submitter then vouches for the sender.
    #[serde(default)]
    pub may_owe_sent: bool,
    /// Why the last attempt refused the message.
    pub reason: Option<String>,
    /// The size of the message in bytes, which reveals a truncated file.
    pub size: u64,
    /// Where a shunted message came from.
    pub origin: Option<Origin>,
    /// The envelope recipients. There is at least one.
    pub recipients: Vec<Recipient>,
}

/// Why a file cannot be read as a message of the queue.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum Unreadable {
    #[error("no line `---` follows an envelope: it is cut short, or is no file of the queue")]
    NoEnvelope,
    #[error("its envelope: {0}")]
    Envelope(String),
    #[error("its envelope names no recipient")]
    NoRecipient,
    #[error("its message has {found} bytes, and should have {expected}: it is cut short, or was changed")]
    AnotherSize { expected: u64, found: u64 },
}

impl Envelope {
    /// The beginning of a file: everything before the message.
    pub(super) fn written(&self) -> Result<Vec<u8>, QueueError> {
        let json = serde_json::to_vec_pretty(self);
        let bytes =
            [json.map_err(|error| QueueError::Envelope { problem: error.to_string() })?.as_slice(), DIVIDER].concat();
        // A message whose envelope could not be read back must not be accepted.
        match Self::read(&bytes) {
            Ok((read, at)) if read == *self && at == bytes.len() => Ok(bytes),
            Ok(_) => Err(QueueError::Envelope { problem: "it would not be read as it is written".into() }),
            Err(unreadable) => Err(QueueError::Envelope { problem: unreadable.to_string() }),
        }
    }

    /// Reads the envelope at the beginning of a file. Returns it with the offset at which the message begins.
    pub(super) fn read(bytes: &[u8]) -> Result<(Self, usize), Unreadable> {
        let end = memmem::find(bytes.get(..LONGEST).unwrap_or(bytes), DIVIDER).ok_or(Unreadable::NoEnvelope)?;
        let json = serde_json::from_slice(bytes.get(..end).unwrap_or_default());
        let envelope: Self = json.map_err(|error| Unreadable::Envelope(error.to_string()))?;
        if envelope.recipients.is_empty() {
            return Err(Unreadable::NoRecipient);
        }
        Ok((envelope, end + DIVIDER.len()))
    }

    /// Reads a whole file: the envelope and the message.
    pub(super) fn read_with_message(mut file: Vec<u8>) -> Result<(Self, Vec<u8>), Unreadable> {
        let (envelope, at) = Self::read(&file)?;
        envelope.check_size((file.len() - at) as u64)?;
        file.drain(..at);
        Ok((envelope, file))
    }

    /// Checks that `found` bytes are the whole message.
    pub(super) fn check_size(&self, found: u64) -> Result<(), Unreadable> {
        let expected = self.size;
        if found == expected { Ok(()) } else { Err(Unreadable::AnotherSize { expected, found }) }
    }
}

fn read_time<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    let text = String::deserialize(deserializer)?;
    timestamp::read_exact(&text).ok_or_else(|| serde::de::Error::custom("queued_at is no moment"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn envelope() -> Envelope {
        Envelope {
            sender: "lisa@gmail.com".into(),
            queued_at: 1_700_000_000_123_456,
            injected_by: "user 0, process 7".into(),
            may_owe_sent: true,
            reason: None,
            size: 3,
            origin: None,
            recipients: vec![
                Recipient { address: "scuba@mail.axial.net".into(), original: None },
                Recipient { address: "doug@mail.axial.net".into(), original: Some("Doug@axial.net".into()) },
            ],
        }
    }

    #[test]
    fn people_can_read_it() {
        let text = String::from_utf8(envelope().written().unwrap()).unwrap();
        assert_eq!(
            text,
            "{\n  \"sender\": \"lisa@gmail.com\",\n  \"queued_at\": \"2023-11-14T22:13:20.123456Z\",\n  \
             \"injected_by\": \"user 0, process 7\",\n  \"may_owe_sent\": true,\n  \"reason\": null,\n  \
             \"size\": 3,\n  \"origin\": null,\n  \"recipients\": [\n    {\n      \"address\": \"scuba@mail.axial.net\"\n    },\n    \
             {\n      \"address\": \"doug@mail.axial.net\",\n      \"original\": \"Doug@axial.net\"\n    }\n  ]\n}\n---\n"
        );
    }

    #[test]
    fn an_envelope_ends_within_four_mebibytes() {
        let space = |length: usize| [&vec![b' '; length - DIVIDER.len()], DIVIDER].concat();
        assert!(matches!(Envelope::read(&space(4 << 20)), Err(Unreadable::Envelope(_))));
        assert!(matches!(Envelope::read(&space((4 << 20) + 1)), Err(Unreadable::NoEnvelope)));
    }

    #[test]
    fn what_is_cut_short_anywhere_is_unreadable() {
        let file = [envelope().written().unwrap(), b"a\n\xff".to_vec()].concat();
        assert_eq!(Envelope::read_with_message(file.clone()), Ok((envelope(), b"a\n\xff".to_vec())));
        for length in 0..file.len() {
            assert!(Envelope::read_with_message(file[..length].to_vec()).is_err(), "{length}");
        }
        let longer = [&file[..], b"x"].concat();
        assert_eq!(Envelope::read_with_message(longer), Err(Unreadable::AnotherSize { expected: 3, found: 4 }));
    }

    #[test]
    fn what_another_program_may_have_meant_is_not_guessed() {
        let at = |queued_at: &str, recipients: &str| {
            format!(
                r#"{{"sender":"","queued_at":"{queued_at}","injected_by":"","size":0,"recipients":[{recipients}]}}"#
            )
        };
        for (json, problem) in [
            (r#"{"x": 1}"#, "unknown field"),
            (r#"{"sender": "#, "Envelope"),
            ("\u{0}", "Envelope"),
            (&at("2d", r#"{"address":"a"}"#), "no moment"),
            (&at("2023-11-14T22:13:20Z", ""), "NoRecipient"),
            (&at("2023-11-14T22:13:20Z", r#"{"address":"a","x":1}"#), "unknown field"),
        ] {
            let unreadable = Envelope::read(format!("{json}\n---\n").as_bytes()).unwrap_err();
            assert!(format!("{unreadable:?}").contains(problem), "{unreadable:?}");
        }
        assert!(matches!(Envelope::read(b"{\"sender\": \"\xff\"}\n---\n"), Err(Unreadable::Envelope(_))));
        let nobody = Envelope { recipients: Vec::new(), ..envelope() };
        assert!(matches!(nobody.written(), Err(QueueError::Envelope { .. })));
    }

    proptest! {
        #[test]
        fn any_text_and_any_bytes_come_back_as_they_were(
            sender in any::<String>(), address in "\\PC*(\n---\n|\"\"\"|'''|\\\\|\u{7f}|\r)?\\PC*", original: Option<String>,
            reason: Option<String>, message: Vec<u8>,
        ) {
            let recipients = vec![Recipient { address, original }];
            let size = message.len() as u64;
            let envelope = Envelope { sender, reason, recipients, size, ..envelope() };
            let file = [envelope.written().unwrap(), message.clone()].concat();
            prop_assert_eq!(Envelope::read_with_message(file), Ok((envelope, message)));
        }
    }
}
