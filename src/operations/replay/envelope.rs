//! Where the envelope of a replayed message comes from: options, a sidecar, the records of a queue file, or the lines that
//! pipe(8) prepended.

use crate::message::{Address, EnvelopeSender, Message};
use crate::site::Envelope;
use serde::Deserialize;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// What one of these places says of an envelope. Each of them may leave things unsaid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartialEnvelope {
    /// The envelope sender; empty for the null sender.
    pub(crate) sender: Option<String>,
    /// The envelope recipients, each with what it was before rewriting.
    pub(crate) recipients: Vec<(String, Option<String>)>,
    pub(crate) queue_id: Option<String>,
    /// The address of the SMTP client.
    pub(crate) client_address: Option<String>,
    /// The SASL user name, if the client logged in.
    pub(crate) sasl_username: Option<String>,
}

/// `FILE.envelope`, a TOML file beside a message or an mbox.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sidecar {
    sender: Option<String>,
    #[serde(default)]
    recipients: Vec<String>,
    original_recipient: Option<String>,
    queue_id: Option<String>,
    client_address: Option<String>,
    sasl_username: Option<String>,
}

impl PartialEnvelope {
    /// This, and what it leaves unsaid from `other`.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            sender: self.sender.or(other.sender),
            recipients: if self.recipients.is_empty() { other.recipients } else { self.recipients },
            queue_id: self.queue_id.or(other.queue_id),
            client_address: self.client_address.or(other.client_address),
            sasl_username: self.sasl_username.or(other.sasl_username),
        }
    }

    /// What the sidecar of a file says; nothing, where there is none.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub(crate) fn beside(file: &Path) -> Result<Self, String> {
        let path = sidecar(file);
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidFilename) => {
                return Ok(Self::default());
            }
            Err(error) => return Err(failed(&error)),
        };
        let Sidecar { sender, recipients, original_recipient, queue_id, client_address, sasl_username } =
            toml::from_str(&text).map_err(|error| failed(&error.message()))?;
        let recipients = recipients.into_iter().map(|recipient| (recipient, original_recipient.clone())).collect();
        Ok(Self { sender, recipients, queue_id, client_address, sasl_username })
    }

    /// What the lines say that pipe(8) prepended with its flags R, O and D. The recipient is Delivered-To; without flag D it
    /// is X-Original-To, the recipient before rewriting.
    pub(crate) fn in_prepended_lines(message: &Message) -> Self {
        let original = message.prepended_line("X-Original-To");
        let recipient = message.prepended_line("Delivered-To").or_else(|| original.clone());
        Self {
            sender: message.prepended_line("Return-Path"),
            recipients: recipient.map(|recipient| (recipient, original)).into_iter().collect(),
            ..Self::default()
        }
    }

    /// An envelope for each recipient; or, in the place of one, what is wrong with it.
    pub(crate) fn envelopes(&self) -> impl Iterator<Item = Result<Envelope, String>> + '_ {
        self.recipients.iter().map(|(recipient, original)| {
            let address = Address::parse(recipient).map_err(|error| format!("the recipient {recipient:?}: {error}"))?;
            Ok(Envelope {
                // For the record only; a message from a file may have none.
                sender: EnvelopeSender::for_the_record(self.sender.as_deref().unwrap_or_default()),
                recipient: address,
                original_recipient: original.clone(),
                queue_id: self.queue_id.clone(),
                client_address: self.client_address.clone(),
                sasl_username: self.sasl_username.clone(),
            })
        })
    }
}

/// The name of the sidecar of a file.
fn sidecar(file: &Path) -> PathBuf {
    let mut name = OsString::from(file);
    name.push(".envelope");
    name.into()
}

/// Whether the lines that pipe(8) prepended to the message, if it bears any, were prepended for this recipient.
pub(crate) fn was_prepended_for(message: &Message, envelope: &Envelope) -> bool {
    let recipient = envelope.recipient.to_string();
    let ours = |line: &str| {
        let same = |other: &str| line.eq_ignore_ascii_case(other);
        same(&recipient) || envelope.original_recipient.as_deref().is_some_and(same)
    };
    let line = message.prepended_line("Delivered-To").or_else(|| message.prepended_line("X-Original-To"));
    line.is_none_or(|line| ours(&line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> Message {
        Message::receive(text.as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn prepended_lines_are_an_envelope_and_lines_further_down_are_not() {
        let given = PartialEnvelope::in_prepended_lines(&message(
            "Return-Path: <lisa@gmail.com>\nX-Original-To: alias@axial.net\nDelivered-To: doug@axial.net\n\
             Received: from x\nDelivered-To: mallory@axial.net\n\nx\n",
        ));
        assert_eq!(given.sender.as_deref(), Some("<lisa@gmail.com>"));
        assert_eq!(given.recipients, [("doug@axial.net".into(), Some("alias@axial.net".into()))]);
        let envelope = given.envelopes().next().unwrap().unwrap();
        assert_eq!((envelope.sender.as_str(), envelope.recipient.domain()), ("lisa@gmail.com", "axial.net"));

        let none =
            PartialEnvelope::in_prepended_lines(&message("Received: from x\nDelivered-To: mallory@axial.net\n\nx\n"));
        assert_eq!(none, PartialEnvelope::default());
    }

    #[test]
    fn lines_for_somebody_else_are_told_apart() {
        let doug = PartialEnvelope { recipients: vec![("Doug@axial.net".into(), None)], ..PartialEnvelope::default() };
        let envelope = doug.envelopes().next().unwrap().unwrap();
        for (lines, ours) in [
            ("", true),
            ("Return-Path: <a@b>\n", true),
            ("Delivered-To: doug@axial.net\n", true),
            ("X-Original-To: doug@axial.net\n", true),
            ("X-Original-To: alias@axial.net\nDelivered-To: doug@axial.net\n", true),
            ("Delivered-To: scuba@axial.net\n", false),
            ("X-Original-To: scuba@axial.net\n", false),
        ] {
            let message = message(&format!("{lines}Subject: x\n\nx\n"));
            assert_eq!(was_prepended_for(&message, &envelope), ours, "{lines}");
        }
    }

    #[test]
    fn what_one_place_leaves_unsaid_another_says() {
        let options = PartialEnvelope { sender: Some(String::new()), ..PartialEnvelope::default() };
        let sidecar = PartialEnvelope {
            sender: Some("lisa@gmail.com".into()),
            recipients: vec![("doug@axial.net".into(), None), ("no address".into(), None)],
            sasl_username: Some("lisa".into()),
            ..PartialEnvelope::default()
        };
        let given = options.or(sidecar);
        assert_eq!((given.sender.as_deref(), given.sasl_username.as_deref()), (Some(""), Some("lisa")));
        let envelopes: Vec<_> = given.envelopes().collect();
        assert!(envelopes[0].is_ok());
        assert!(envelopes[1].as_ref().unwrap_err().contains("no @domain"));
    }

    #[test]
    fn a_sidecar_with_a_mistake_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("1.eml");
        assert_eq!(PartialEnvelope::beside(&file), Ok(PartialEnvelope::default()));
        std::fs::write(sidecar(&file), "sender = \"lisa@gmail.com\"\nrecipient = \"doug@axial.net\"\n").unwrap();
        let error = PartialEnvelope::beside(&file).unwrap_err();
        assert!(error.contains("1.eml.envelope: unknown field `recipient`"), "{error}");
        std::fs::write(sidecar(&file), "recipients = [\"doug@axial.net\"]\nqueue_id = \"4bXyz\"\n").unwrap();
        let given = PartialEnvelope::beside(&file).unwrap();
        assert_eq!((given.recipients.len(), given.queue_id.as_deref()), (1, Some("4bXyz")));
    }
}
