//! The sources of a replayed message's envelope: options, a sidecar, the records of a queue file, or the lines that
//! pipe(8) prepended.

use crate::message::{Address, EnvelopeSender, Message};
use crate::site::Envelope;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::Path;

/// The part of an envelope that one source gives: all of it, some, or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PartialEnvelope {
    /// The envelope sender; empty for the null sender.
    pub(crate) sender: Option<String>,
    /// The envelope recipients, each with its address before rewriting.
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

impl From<Envelope> for PartialEnvelope {
    fn from(envelope: Envelope) -> Self {
        let Envelope { sender, recipient, original_recipient, queue_id, client_address, sasl_username } = envelope;
        let recipients = vec![(recipient.to_string(), original_recipient)];
        Self { sender, recipients, queue_id, client_address, sasl_username }
    }
}

impl PartialEnvelope {
    /// This envelope; missing parts come from `other`.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            sender: self.sender.or(other.sender),
            recipients: if self.recipients.is_empty() { other.recipients } else { self.recipients },
            queue_id: self.queue_id.or(other.queue_id),
            client_address: self.client_address.or(other.client_address),
            sasl_username: self.sasl_username.or(other.sasl_username),
        }
    }

    /// Reads the sidecar of a file; an empty envelope if there is none. An `Err` is the problem with the sidecar.
    pub(crate) fn beside(file: &Path) -> Result<Self, String> {
        let path = file.with_added_extension("envelope");
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

    /// Reads the lines that pipe(8) prepended with its flags R, O and D.
    pub(crate) fn in_prepended_lines(message: &Message) -> Self {
        let original = message.prepended_line("X-Original-To");
        Self {
            sender: message.prepended_line("Return-Path"),
            recipients: message.prepended_recipient().map(|recipient| (recipient, original)).into_iter().collect(),
            ..Self::default()
        }
    }

    /// An envelope for each recipient, or the error in the recipient's address.
    pub(crate) fn envelopes(&self) -> impl Iterator<Item = Result<Envelope, String>> + '_ {
        self.recipients.iter().map(|(recipient, original)| {
            let address = Address::parse(recipient).map_err(|error| format!("the recipient {recipient:?}: {error}"))?;
            Ok(Envelope {
                // The sender is only recorded; a message from a file may have none.
                sender: self.sender.as_deref().map(EnvelopeSender::for_the_record),
                recipient: address,
                original_recipient: original.clone(),
                queue_id: self.queue_id.clone(),
                client_address: self.client_address.clone(),
                sasl_username: self.sasl_username.clone(),
            })
        })
    }
}

/// Whether the lines that pipe(8) prepended to the message belong to this recipient. Also true without such lines.
pub(crate) fn was_prepended_for(message: &Message, envelope: &Envelope) -> bool {
    let recipient = envelope.recipient.to_string();
    message.prepended_recipient().is_none_or(|line| {
        let same = |other: &str| line.eq_ignore_ascii_case(other);
        same(&recipient) || envelope.original_recipient.as_deref().is_some_and(same)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_for_somebody_else_are_distinguished() {
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
            let message = Message::receive(format!("{lines}Subject: x\n\nx\n").into_bytes()).unwrap();
            assert_eq!(was_prepended_for(&message, &envelope), ours, "{lines}");
        }
    }
}
