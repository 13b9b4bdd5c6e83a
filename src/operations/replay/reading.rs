//! Turns an entry into a message with the known parts of its envelope.

use super::entry::{Location, ReplayEntry};
use super::runner::{ReplayJob, ReplayOutcome};
use super::source::{mbox, postcat_output};
use super::{Form, PartialEnvelope};
use crate::base::deadline::Deadline;
use crate::ledger::Database;
use crate::ledger::deliveries::{KnownDelivery, known_delivery};
use crate::message::Message;
use crate::operations::redelivery;
use crate::site::Site;

/// How many bytes larger than its message a file may be: it may contain records of the envelope.
const RECORDS: u64 = 64 * 1024;
pub(crate) const TOO_LARGE: &str = "it is larger than delivery.message_size_limit allows";

impl ReplayJob<'_> {
    /// Reads the message and the known parts of its envelope, or returns the result if that fails.
    pub(super) fn load(&mut self, entry: &mut ReplayEntry) -> Result<(Message, PartialEnvelope), ReplayOutcome> {
        let limit = self.replay.site.config().and_then(|config| config.delivery.message_size_limit).unwrap_or(u64::MAX);
        let (message, known) = match entry.source.form {
            Form::Ledger => self.load_from_ledger(entry)?,
            _ => self.load_from_file(&entry.source, limit).map_err(ReplayOutcome::Refused)?,
        };
        if message.size() > limit {
            return Err(ReplayOutcome::Refused(TOO_LARGE.into()));
        }
        if !entry.is_about(&message) {
            return Err(ReplayOutcome::Refused("another message is there now".into()));
        }
        let mut envelope = entry.envelope.clone().or(known);
        if entry.source.lines_are_ours() {
            envelope = envelope.or(PartialEnvelope::in_prepended_lines(&message));
        }
        Ok((message, envelope))
    }

    /// Reads the message at a location, without what the file's form adds, and its envelope as far as it is in options and files.
    fn load_from_file(&self, source: &Location, limit: u64) -> Result<(Message, PartialEnvelope), String> {
        let limit = limit.saturating_add(RECORDS);
        let bytes = source.first_bytes(limit)?;
        if bytes.len() as u64 == limit {
            return Err(TOO_LARGE.into());
        }
        let (bytes, records) = message_in(source.form, bytes)?;
        let message = Message::receive(bytes).map_err(|error| error.to_string())?;
        let sidecar = source.content.is_none().then(|| PartialEnvelope::beside(&source.file)).transpose()?;
        Ok((message, self.replay.envelope.clone().or(sidecar.unwrap_or_default()).or(records)))
    }

    /// Reads the message of the delivery of a copy, and notes in the entry whose it is.
    fn load_from_ledger(&mut self, entry: &mut ReplayEntry) -> Result<(Message, PartialEnvelope), ReplayOutcome> {
        let known = entry.source.copy_key().map(|key| known_delivery(self.database()?, &key)).transpose()?.flatten();
        let known = known.ok_or_else(|| ReplayOutcome::Refused("the ledger does not know it any more".into()))?;
        entry.message_id = Some(known.message_id.clone());
        entry.envelope.recipients = vec![(known.recipient.clone(), None)];
        message_of(self.replay.site, self.database()?, known)
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
fn message_in(form: Form, bytes: Vec<u8>) -> Result<(Vec<u8>, PartialEnvelope), String> {
    match form {
        Form::Message if is_packed(&bytes) => {
            Err("it is compressed, or encrypted (Dovecot's mail_compress or mail_crypt?): unpack it first".into())
        }
        Form::Message => Ok((bytes, PartialEnvelope::default())),
        Form::Mbox if !mbox::is_from_line(&bytes) => Err("no message begins there: the mbox has changed".into()),
        Form::Mbox => Ok((mbox::message(bytes), PartialEnvelope::default())),
        Form::QueueFile => Ok(postcat_output::message(bytes)?),
        Form::Failures | Form::Ledger => {
            Err(ReplayEntry::from_line(&bytes).err().unwrap_or_else(|| "a line that leads to another such line".into()))
        }
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
