//! Turns an entry into a message with the known parts of its envelope.

use super::entry::{self, Location, Piece, ReplayEntry};
use super::runner::{Replay, ReplayJob, ReplayOutcome};
use super::source::{mbox, postcat_output};
use super::{Form, PartialEnvelope};
use crate::base::deadline::Deadline;
use crate::ledger::deliveries::{KnownDelivery, known_delivery};
use crate::ledger::{CopyKey, Database};
use crate::message::Message;
use crate::operations::redelivery;
use crate::site::Site;

/// How many bytes larger than its message a file may be: it may contain records of the envelope.
const RECORDS: u64 = 64 * 1024;
pub(crate) const TOO_LARGE: &str = "it is larger than delivery.message_size_limit allows";

/// A message that was read, with the known parts of its envelope.
pub(super) struct Loaded {
    pub(super) message: Message,
    pub(super) envelope: PartialEnvelope,
    /// Whether the lines at the top that look prepended come from this host's pipe(8).
    pub(super) lines_are_ours: bool,
}

impl Replay<'_> {
    /// The message at a location, without what the file's form adds, and the part of the envelope that is there.
    fn read(&self, source: &Location) -> Result<(Vec<u8>, PartialEnvelope), String> {
        match source {
            Location::Piece(piece) => {
                let limit = self.size_limit.unwrap_or(u64::MAX).saturating_add(RECORDS);
                let bytes = piece.first_bytes(limit)?;
                if bytes.len() as u64 == limit {
                    return Err(format!("it cannot be read: {TOO_LARGE}"));
                }
                let sidecar = piece.path.as_deref().map(PartialEnvelope::beside).transpose()?.unwrap_or_default();
                let (bytes, records) = message_in(piece.form, bytes)?;
                Ok((bytes, sidecar.or(records)))
            }
            Location::Content { content, form } => Ok(message_in(*form, Location::decode(content)?)?),
            Location::Ledger { .. } => Err("the ledger has it".into()),
        }
    }
}

impl ReplayJob<'_> {
    /// Reads the message and the known parts of its envelope, or returns the result if that fails.
    pub(super) fn load(&mut self, entry: &ReplayEntry) -> Result<Loaded, ReplayOutcome> {
        let (message, known) = match &entry.source {
            Location::Ledger { ledger } => self.load_from_ledger(ledger)?,
            source => {
                let (bytes, known) = self.replay.read(source).map_err(ReplayOutcome::Refused)?;
                let message = Message::receive(bytes).map_err(|error| ReplayOutcome::Refused(error.to_string()))?;
                (message, self.replay.envelope.clone().or(known))
            }
        };
        if !entry.is_about(&message) {
            return Err(ReplayOutcome::Refused("another message is there now".into()));
        }
        // Postfix has not delivered what is in its queue, so the lines at the top came with the message.
        let lines_are_ours = !matches!(
            &entry.source,
            Location::Piece(Piece { form: Form::QueueFile, .. }) | Location::Content { form: Form::QueueFile, .. }
        );
        let mut envelope = entry.envelope.clone().or(known);
        if lines_are_ours {
            envelope = envelope.or(PartialEnvelope::in_prepended_lines(&message));
        }
        Ok(Loaded { message, envelope, lines_are_ours })
    }

    /// Reads the message of the delivery of the copy with this key.
    fn load_from_ledger(&mut self, key: &str) -> Result<(Message, PartialEnvelope), ReplayOutcome> {
        let key = CopyKey::from_bytes(entry::digest(key).unwrap_or_default());
        let known = known_delivery(self.database()?, &key)?;
        let known = known.ok_or_else(|| ReplayOutcome::Refused("the ledger does not know it any more".into()))?;
        let whose = format!("{} to {}: ", known.message_id, known.recipient);
        let site = self.replay.site;
        message_of(site, self.database()?, known).map_err(|outcome| outcome.about(&whose))
    }
}

/// Reads the message of a delivery from any place that the ledger knows, and its envelope.
pub(crate) fn message_of(
    site: &Site,
    database: &mut dyn Database,
    known: KnownDelivery,
) -> Result<(Message, PartialEnvelope), ReplayOutcome> {
    if known.delivered {
        return Err(ReplayOutcome::AlreadyThere);
    }
    let queue_id = known.queue_id.as_deref().unwrap_or("QUEUE-ID");
    let row = known.message.ok_or_else(|| {
        ReplayOutcome::Refused(format!(
            "nobody has got it yet, so the ledger has no source of it: Postfix has it in its queue, and tries it again (at once: \
             `postqueue -i {queue_id}`); or replay it from a file"
        ))
    })?;
    let deadline = Deadline::after(site.deadline());
    let (message, _) = redelivery::message_and_its_place(site, database, (row, &known.identity), None, deadline)?;
    let (sender, queue_id, recipients) = (known.sender, known.queue_id, vec![(known.recipient, None)]);
    Ok((message, PartialEnvelope { sender, recipients, queue_id, ..PartialEnvelope::default() }))
}

/// The message in the content of a file of this form, and the part of the envelope there.
fn message_in(form: Form, bytes: Vec<u8>) -> Result<(Vec<u8>, PartialEnvelope), &'static str> {
    match form {
        Form::Message if is_packed(&bytes) => {
            Err("it is compressed, or encrypted (Dovecot's mail_compress or mail_crypt?): unpack it first")
        }
        Form::Message => Ok((bytes, PartialEnvelope::default())),
        Form::Failures => Err("a line that leads to another such line"),
        Form::Mbox if !mbox::is_from_line(&bytes) => Err("no message begins there: the mbox has changed"),
        Form::Mbox => Ok((mbox::message(bytes), PartialEnvelope::default())),
        Form::QueueFile => postcat_output::message(bytes),
    }
}

/// Whether a file begins like gzip, bzip2, xz, Zstandard, or Dovecot's LZ4 and mail_crypt: no message begins so. Such a file
/// contains the message in another form, as in a backup, or in a Maildir that Dovecot compresses.
fn is_packed(bytes: &[u8]) -> bool {
    const BEGINNINGS: [&[u8]; 5] =
        [b"\x1f\x8b\x08", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"Dovecot-LZ4\x0d\x2a\x9b\xc5", b"CRYPTED\x03\x07"];
    let is_bzip2 = matches!(bytes, [b'B', b'Z', b'h', b'1'..=b'9', rest @ ..] if rest.starts_with(b"1AY&SY"));
    is_bzip2 || BEGINNINGS.iter().any(|beginning| bytes.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else the line itself would be delivered.
    #[test]
    fn a_line_of_failures_that_leads_to_another_is_no_message() {
        let line = br#"{"maildrop_command_replay":1,"source":{"form":"failures","file":"/a"}}"#;
        assert!(message_in(Form::Failures, line.to_vec()).is_err());
        assert_eq!(message_in(Form::Message, line.to_vec()).map(|(bytes, _)| bytes), Ok(line.to_vec()));
    }
}
