//! Accepts mail without Postfix into the file queue: checks recipients, size and author, and makes identical messages distinct.
//! Also builds the request that hands a shunted message back to the service.

use crate::database::DatabaseError;
use crate::delivery::{Deferral, Refusal};
use crate::ledger::Database;
use crate::lock::LockName;
use crate::message::authentication_results::remove_ours;
use crate::message::{Address, Identity, MessageError, Outline, place_of_received};
use crate::protocol::{LARGEST_MESSAGE, Request, Source};
use crate::queue::{Envelope, Name, Queue, QueueError};
use crate::site::Site;
use memchr::memchr;
use std::path::Path;
use std::time::SystemTime;
use thiserror::Error;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;
use uuid::Uuid;

/// The largest message that is accepted, in bytes.
pub(crate) fn largest(site: &Site) -> u64 {
    site.config().and_then(|config| config.delivery.message_size_limit).unwrap_or(LARGEST_MESSAGE)
}

/// Opens the queue in this folder, and creates it if there is none.
///
/// # Errors
/// If the queue cannot be opened or created.
pub(crate) fn queue(folder: &Path) -> Result<Queue, QueueError> {
    // Root may write into another user's queue, but does not create one.
    match Queue::existing(folder) {
        Err(QueueError::NoQueue { .. }) => Queue::open(folder),
        existing => existing,
    }
}

/// The delivery request of a shunted message. The client still has the message, and its next try looks for copies with the same
/// keys.
pub(crate) fn shunted_request(envelope: Envelope) -> Request {
    let origin = envelope.origin.unwrap_or_default();
    Request {
        queue_id: origin.queue_id,
        client_address: origin.client_address,
        sasl_username: origin.sasl_username,
        no_sent: !envelope.may_owe_sent,
        source: Source::Shunt,
        ..Request::new(envelope.sender, envelope.recipients, envelope.size)
    }
}

/// The recipients that are refused, now or permanently.
#[derive(Debug)]
pub(crate) struct NotKnown {
    pub(crate) problems: Vec<(Address, Refusal)>,
    /// Whether all refused recipients are unknown, as the database has committed it. A permanent rejection is wrong while one of
    /// them may still become known.
    pub(crate) for_good: bool,
}

/// Checks that all recipients are known: once mail is accepted, nobody could be notified of an unknown one.
///
/// # Errors
/// If the database does not answer.
pub(crate) fn check_recipients(
    site: &Site,
    recipients: &[Address],
    database: &mut dyn Database,
) -> Result<Result<(), NotKnown>, Deferral> {
    let known = site.check_recipients(recipients, database)?;
    let problems = recipients.iter().zip(known).filter_map(|(to, known)| Some((to.clone(), known.err()?)));
    let problems: Vec<_> = problems.collect();
    if problems.is_empty() {
        return Ok(Ok(()));
    }
    let for_good = problems.iter().all(|(_, refusal)| matches!(refusal, Refusal::UnknownRecipient));
    Ok(Err(NotKnown { problems, for_good }))
}

/// Why a message was not accepted. No part of it is kept.
#[derive(Debug, Error)]
pub(crate) enum NotAccepted {
    #[error("it is larger than the {0} bytes allowed here")]
    TooLarge(u64),
    #[error(transparent)]
    NoMessage(#[from] MessageError),
    #[error("its From is not the envelope sender")]
    AnotherAuthor,
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// A message that is about to be written into the queue.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) id: String,
    pub(crate) identity: Identity,
    pub(crate) lock: LockName,
}

/// Accepts a message of at most `limit` bytes, and returns its ID. By then the message is on the disk. `raw` is the only copy in
/// memory.
/// `announce` is called before it is written.
///
/// # Errors
/// If `raw` is no acceptable message, or if it cannot be announced or written.
pub(crate) fn take_in(
    site: &Site,
    queue: &Queue,
    mail: Envelope,
    mut raw: Vec<u8>,
    limit: u64,
    announce: impl FnOnce(&Accepted) -> Result<(), DatabaseError>,
) -> Result<String, NotAccepted> {
    if raw.len() as u64 > limit {
        return Err(NotAccepted::TooLarge(limit));
    }
    // Our own filter has not read this message, so it cannot have written these fields.
    if let Some(authserv_id) = site.config().and_then(|config| config.sent.authserv_id.as_deref()) {
        remove_ours(&mut raw, authserv_id);
    }
    // The delivery parses the queue's file in the same way, so it takes the same lock.
    let mut outline = Outline::of(&raw)?;
    if outline.may_be_one_of_many {
        insert_received(&mut raw, &gethostname::gethostname().to_string_lossy());
        outline = Outline::of(&raw)?;
    }
    if raw.len() as u64 > limit {
        return Err(NotAccepted::TooLarge(limit));
    }
    if mail.may_owe_sent {
        let author = outline.from_address.map(|author| author.folded().to_string());
        let sender = Address::parse(&mail.sender).ok().map(|sender| sender.folded().to_string());
        if author.is_none() || author != sender {
            return Err(NotAccepted::AnotherAuthor);
        }
    }
    let (lock, now) = (site.lock_of_message_id(&outline.lock_subject), SystemTime::now());
    announce(&Accepted { id: Name::new(now, &lock).id(), identity: Identity::of(&raw), lock })?;
    Ok(queue.enqueue(&lock, mail, &raw, now)?.id())
}

/// Puts a Received field on top, as every mail system does (RFC 5321 section 4.4). The field has the form of pickup(8)'s, since
/// no SMTP client submitted the message.
///
/// Tuesday's "Backup done" is another message than Monday's, though they do not differ in a byte. Without the field, the second
/// would count as already delivered. The field is in the queue's file, so every try has the same one.
fn insert_received(raw: &mut Vec<u8>, host: &str) {
    // Only characters of a Domain (RFC 5321 section 4.1.2): a host's name must not end the line or open a comment.
    let host: String = host.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.')).collect();
    let host = if host.is_empty() { "localhost" } else { &host };
    let date = OffsetDateTime::now_utc().format(&Rfc2822).unwrap_or_default();
    let before = |at: usize| at.checked_sub(1).and_then(|before| raw.get(before));
    let end = if memchr(b'\n', raw).and_then(before) == Some(&b'\r') { "\r\n" } else { "\n" };
    let at = place_of_received(raw);
    let begin = if matches!(before(at), None | Some(b'\n')) { "" } else { end };
    // Folded, since lines should have at most 78 characters (RFC 5322 section 2.1.1).
    let field = format!("{begin}Received: by {host} (maildrop_command){end}\tid {}; {date}{end}", Uuid::now_v7());
    raw.reserve_exact(field.len());
    raw.splice(at..at, field.into_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Identity, Message};
    use proptest::prelude::*;

    fn with_received(raw: &[u8], host: &str) -> Vec<u8> {
        let mut kept = raw.to_vec();
        insert_received(&mut kept, host);
        kept
    }

    /// The text above the field, the field without its varying parts, and the text below it.
    fn taken_apart(raw: &[u8]) -> (String, String) {
        let kept = with_received(raw, "mx1.example");
        let text = String::from_utf8(kept).unwrap();
        let (above, rest) = text.split_once("Received: by mx1.example (maildrop_command)").unwrap();
        let (field, below) = rest.split_once(" +0000").unwrap();
        let (id, date) = field.trim_start().strip_prefix("id ").unwrap().split_once("; ").unwrap();
        assert!(Uuid::try_parse(id).is_ok() && OffsetDateTime::parse(&format!("{date} +0000"), &Rfc2822).is_ok());
        (above.to_owned(), below.to_owned())
    }

    #[test]
    fn the_field_stands_above_what_came_and_below_what_is_no_part_of_it() {
        for (above, below) in [
            ("", "\nSubject: x\n\nx\n"),
            ("", "\r\nSubject: x\r\n\r\nx\n"),
            ("", "\nBackup done"),
            ("", "\n\nBackup done\n"),
            ("From lisa@x Thu Nov 26 03:00:00 2026\n", "\nSubject: x\n\nx\n"),
            ("Return-Path: <>\r\nDelivered-To: doug@x\r\n", "\r\nSubject: x\r\n\r\nx\r\n"),
            ("Return-Path:\n <>\n", "\n\nx\n"),
            (" continues nothing\n", "\nSubject: x\n\nx\n"),
        ] {
            let line_end = if below.starts_with("\r\n") { 2 } else { 1 };
            let came = [above, &below[line_end..]].concat();
            assert_eq!(taken_apart(came.as_bytes()), (above.to_owned(), below.to_owned()));
        }
        // If the last line above has no line end, it gets one.
        assert_eq!(taken_apart(b"Return-Path: <>"), ("Return-Path: <>\n".into(), "\n".into()));
    }

    #[test]
    fn each_line_is_short_and_no_name_of_a_host_breaks_it() {
        for host in ["", "mx1\r\nBcc: x", "(\u{fc}", &"a.b-".repeat(16)] {
            let kept = with_received(b"x", host);
            let lines: Vec<&str> = str::from_utf8(&kept).unwrap().lines().collect();
            assert!(lines.len() == 3 && lines.iter().all(|line| line.len() <= 98), "{lines:?}");
            assert!(
                lines[0].starts_with("Received: by ") && lines[1].starts_with("\tid ") && lines[2] == "x",
                "{lines:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_is_distinguished_from_then_on(raw in "(From x\n)?([ \t]x\r?\n)?(Delivered-To: x\r?\n)?\\PC{0,20}(\r?\n\\PC{0,20}){0,4}") {
            let Ok(message) = Message::receive(raw.clone().into_bytes()) else { return Ok(()) };
            let outline = Outline::of(raw.as_bytes()).unwrap();
            prop_assert_eq!(&outline.lock_subject, message.lock_subject());
            prop_assert_eq!(outline.from_address.as_ref(), message.from_address());
            prop_assume!(outline.may_be_one_of_many);
            let [one, other] = [(); 2].map(|()| with_received(raw.as_bytes(), "mx1.example"));
            prop_assert!(!Outline::of(&one).unwrap().may_be_one_of_many);
            prop_assert_ne!(Identity::of(&one), Identity::of(&other));
            // Every try, and every reader of the mailbox, computes the same identity.
            prop_assert_eq!(Identity::of(Message::receive(one.clone()).unwrap().as_received()), Identity::of(&one));
        }
    }
}
