//! The protocol of a mail transport with the service: frames between front, thin client, runners and workers.
//!
//! A frame is `MDR1`, the length of the header (four bytes, big-endian), the header (a JSON object), and the bytes of a
//! message, if any. All of that is one ZMTP frame, because the Paranoid Pirate's workers accept exactly one.

pub(crate) mod client;
pub mod control;
pub(crate) mod control_client;
mod recipient_batches;
mod results;
pub mod status_text;
pub mod zmtp;

pub use crate::config::LARGEST_MESSAGE;
pub use crate::message::Recipient;
pub(crate) use recipient_batches::chunk_recipients;

use crate::delivery::Verdict;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use thiserror::Error;
use uuid::Uuid;

/// The first bytes of each frame. A frame that begins differently comes from another program.
pub const MARK: &[u8; 4] = b"MDR1";

/// The longest header, in bytes. A thousand recipients with original addresses of 300 bytes fit, with all other fields.
pub const LONGEST_HEADER: usize = 1 << 20;

/// The bytes before the header: the mark and the header's length.
const PREFIX: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Header {
    /// Deliver a message. A client's request waits for [`Go`](Self::Go); a worker begins at once.
    Deliver(Request),
    /// The broker has received the whole request.
    Received { id: Uuid },
    /// The client waits for the delivery, which may begin now.
    Go { id: Uuid },
    /// The result of the request. The broker defers a request with this, in place of [`Received`](Self::Received).
    Reply(Reply),
}

/// A message to deliver, with everything known about it except its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub id: Uuid,
    /// How long the delivery may take, in milliseconds, once a worker has the request. The broker subtracts the time in its
    /// queue.
    pub time_left_ms: u64,
    /// The envelope sender as the transport received it.
    pub sender: String,
    /// The envelope recipients, in their order. There is at least one.
    pub recipients: Vec<Recipient>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_address: Option<String>,
    /// The SASL user name, if the client logged in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sasl_username: Option<String>,
    /// How long to wait for a lock held elsewhere, in milliseconds, if the transport has a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_wait_ms: Option<u64>,
    /// Whether the author gets no copy, whatever the configuration says: the author is not authenticated.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_sent: bool,
    /// Of the message, in bytes.
    pub size: u64,
    /// The absolute path of the file with the message; `None` if the message follows the header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub source: Source,
    /// Whether the message has crashed a worker before. Its worker ends after this message. The broker sets this.
    #[serde(default, skip_serializing_if = "is_default")]
    pub suspect: bool,
    /// Whether all recipients of this message made a worker wait recently, without a delivery. Opening their mailboxes may
    /// take all of the time, because the broker limits the workers that such messages occupy. The broker sets this.
    #[serde(default, skip_serializing_if = "is_default")]
    pub slow: bool,
}

impl Request {
    /// A request with a new id. The client sets the time that is left.
    pub(crate) fn new(sender: String, recipients: Vec<Recipient>, size: u64) -> Self {
        Self {
            id: Uuid::now_v7(),
            time_left_ms: 0,
            sender,
            recipients,
            queue_id: None,
            client_address: None,
            sasl_username: None,
            lock_wait_ms: None,
            no_sent: false,
            size,
            file: None,
            source: Source::Mta,
            suspect: false,
            slow: false,
        }
    }
}

#[cfg(test)]
impl Request {
    /// A request to these addresses with a message of `size` bytes, for tests.
    pub(crate) fn to(addresses: &[&str], size: usize) -> Self {
        let recipients = addresses.iter().map(|to| Recipient { address: (*to).into(), original: None }).collect();
        let (id, time_left_ms) = (Uuid::nil(), 240_000);
        Self { id, time_left_ms, ..Self::new("lisa@gmail.com".into(), recipients, size as u64) }
    }
}

/// The origin of a request. It keeps the message until that is delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Postfix, or another mail system.
    #[default]
    Mta,
    /// A runner, from the file queue: no mail system has the message.
    Queue,
    /// An operator, from the shunted messages: the message gets a worker of its own.
    Shunt,
    /// The service, from the shunted messages, once a new build runs: behind other mail.
    Upgrade,
}

impl Source {
    /// The name of the transport in the metrics.
    pub(crate) fn transport(self) -> &'static str {
        match self {
            Self::Mta => "command",
            Self::Queue => "queue",
            Self::Shunt | Self::Upgrade => "shunt",
        }
    }

    /// Whether the source has only a copy of a shunted message, which the message's holder retries as well.
    pub fn is_shunt(self) -> bool {
        matches!(self, Self::Shunt | Self::Upgrade)
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    pub id: Uuid,
    /// One result for each recipient, in the request's order.
    #[serde(with = "results")]
    pub results: Vec<Verdict>,
    /// Whether the worker ends now, on request or after its share of messages. It gets no more messages.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
    /// The sessions that the worker has opened since its last reply.
    #[serde(default, skip_serializing_if = "is_default")]
    pub logins: Logins,
    /// Whether the worker could use the database.
    #[serde(default, skip_serializing_if = "is_default")]
    pub database: DatabaseState,
}

/// The state of the database during a delivery.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DatabaseState {
    /// The delivery did not use the database.
    #[default]
    NotAsked,
    There,
    /// No delivery can use the database, for this reason.
    Away(String),
}

/// How many sessions were opened. Opening a session takes most of a delivery's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Logins {
    /// With the database.
    pub database: u64,
    /// With the IMAP server, as one user.
    pub imap: u64,
}

impl Logins {
    pub(crate) fn add(&mut self, more: Self) {
        self.database = self.database.saturating_add(more.database);
        self.imap = self.imap.saturating_add(more.imap);
    }
}

/// Why a frame belongs to another program, or cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unreadable {
    #[error("it does not begin with MDR1: another program's")]
    NotOurs,
    #[error("it is cut short")]
    CutShort,
    #[error("its header is longer than {LONGEST_HEADER} bytes")]
    TooLong,
    #[error("its header: {0}")]
    Header(String),
    #[error("a message follows a header that has none, or is of another size than its header says")]
    AnotherSize,
    #[error("it names no recipient")]
    NoRecipient,
}

impl Header {
    /// Encodes the frame with the bytes of its message.
    ///
    /// # Errors
    /// [`Unreadable::Header`] if a path is not UTF-8; [`Unreadable::TooLong`] if the header is too long.
    pub fn frame(&self, message: &[u8]) -> Result<Vec<u8>, Unreadable> {
        let header = serde_json::to_vec(self).map_err(|error| Unreadable::Header(error.to_string()))?;
        let length = u32::try_from(header.len()).ok().filter(|_| header.len() <= LONGEST_HEADER);
        let length = length.ok_or(Unreadable::TooLong)?;
        let mut frame = Vec::with_capacity(PREFIX + header.len() + message.len());
        frame.extend_from_slice(MARK);
        frame.extend_from_slice(&length.to_be_bytes());
        frame.extend_from_slice(&header);
        frame.extend_from_slice(message);
        Ok(frame)
    }

    /// Parses a frame: the header, and the bytes of the message that follows it.
    ///
    /// # Errors
    /// [`Unreadable::NotOurs`] if the frame is another program's; the other variants if it is one of ours and invalid.
    pub fn read(frame: &[u8]) -> Result<(Self, &[u8]), Unreadable> {
        let rest = frame.strip_prefix(MARK).ok_or(Unreadable::NotOurs)?;
        let (length, rest) = rest.split_first_chunk::<4>().ok_or(Unreadable::CutShort)?;
        let length = u32::from_be_bytes(*length) as usize;
        if length > LONGEST_HEADER {
            return Err(Unreadable::TooLong);
        }
        let (header, message) = rest.split_at_checked(length).ok_or(Unreadable::CutShort)?;
        let header: Self = serde_json::from_slice(header).map_err(|error| Unreadable::Header(error.to_string()))?;
        let expected = match &header {
            Self::Deliver(request) if request.recipients.is_empty() => return Err(Unreadable::NoRecipient),
            Self::Deliver(Request { size, file: None, .. }) => *size,
            _ => 0,
        };
        if message.len() as u64 != expected {
            return Err(Unreadable::AnotherSize);
        }
        Ok((header, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::StatusDetail;

    fn request(size: u64) -> Request {
        let mut request = Request::to(&["scuba@mail.axial.net", "doug@mail.axial.net"], 0);
        request.recipients[1].original = Some("Doug@axial.net".into());
        Request { id: Uuid::from_u128(7), queue_id: Some("4ABC".into()), size, ..request }
    }

    #[test]
    fn what_is_handed_over_is_read_as_it_was() {
        let reply = Reply {
            id: Uuid::from_u128(7),
            results: vec![
                Verdict::delivered("INBOX appended (uid 17)"),
                Verdict::deferred(StatusDetail::NO_ANSWER, "the database cannot be reached"),
            ],
            leaving: true,
            logins: Logins { database: 1, imap: 8 },
            database: DatabaseState::Away("the database cannot be reached".into()),
        };
        let message = b"Subject: x\r\n\r\n\0\xff\r\n";
        let headers = [
            (Header::Deliver(request(message.len() as u64)), &message[..]),
            (Header::Deliver(Request { no_sent: true, ..request(0) }), b""),
            (Header::Deliver(Request { source: Source::Queue, suspect: true, slow: true, ..request(0) }), b""),
            (Header::Deliver(Request { source: Source::Shunt, ..request(0) }), b""),
            (Header::Deliver(Request { file: Some("/run/x".into()), ..request(1 << 40) }), b""),
            (Header::Received { id: Uuid::from_u128(8) }, b""),
            (Header::Go { id: Uuid::from_u128(8) }, b""),
            (Header::Reply(reply), b""),
        ];
        for (header, message) in headers {
            let frame = header.frame(message).unwrap();
            assert_eq!(Header::read(&frame), Ok((header, message)));
        }
    }

    /// Omitted fields keep the frame readable for a service of an older version.
    #[test]
    fn a_header_says_nothing_of_what_is_as_it_mostly_is() {
        let fields = |header: &Header| match serde_json::to_value(header).unwrap() {
            serde_json::Value::Object(fields) => fields.into_iter().map(|(name, _)| name).collect::<Vec<_>>(),
            other => panic!("{other}"),
        };
        assert_eq!(
            fields(&Header::Deliver(Request { queue_id: None, ..request(0) })),
            ["id", "kind", "recipients", "sender", "size", "time_left_ms"]
        );
        let (id, results) = (Uuid::nil(), Vec::new());
        let reply = Reply { id, results, leaving: false, logins: Logins::default(), database: DatabaseState::NotAsked };
        assert_eq!(fields(&Header::Reply(reply)), ["id", "kind", "results"]);
    }

    #[test]
    fn what_is_cut_short_or_is_no_frame_of_ours_is_distinguished() {
        let message = b"Subject: x\r\n\r\nx\r\n";
        let frame = Header::Deliver(request(message.len() as u64)).frame(message).unwrap();
        for length in 0..frame.len() {
            let read = Header::read(&frame[..length]);
            let expected = if length < MARK.len() { Unreadable::NotOurs } else { Unreadable::CutShort };
            let in_the_message = length >= frame.len() - message.len();
            let expected = if in_the_message { Unreadable::AnotherSize } else { expected };
            assert_eq!(read, Err(expected), "{length}");
        }
        assert_eq!(Header::read(b"0"), Err(Unreadable::NotOurs));
        assert_eq!(Header::read(b"MDR1\xff\xff\xff\xff"), Err(Unreadable::TooLong));
        assert!(matches!(Header::read(b"MDR1\0\0\0\x02{}"), Err(Unreadable::Header(_))));
        let nobody = Header::Deliver(Request { recipients: Vec::new(), ..request(0) }).frame(b"").unwrap();
        assert_eq!(Header::read(&nobody), Err(Unreadable::NoRecipient));
        let more = [Header::Go { id: Uuid::nil() }.frame(b"").unwrap(), b"x".to_vec()].concat();
        assert_eq!(Header::read(&more), Err(Unreadable::AnotherSize));
    }

    #[test]
    fn a_header_may_be_as_long_as_it_may_and_logins_are_summed() {
        let of = |more: usize| {
            let empty = Header::Deliver(Request { sender: String::new(), ..request(0) });
            let length = empty.frame(b"").unwrap().len() - PREFIX;
            Header::Deliver(Request { sender: "x".repeat(LONGEST_HEADER - length + more), ..request(0) })
        };
        let longest = of(0);
        assert_eq!(Header::read(&longest.frame(b"").unwrap()), Ok((longest, &b""[..])));
        assert_eq!(of(1).frame(b""), Err(Unreadable::TooLong));
        let mut logins = Logins { database: 1, imap: 2 };
        logins.add(Logins { database: 10, imap: u64::MAX });
        assert_eq!(logins, Logins { database: 11, imap: u64::MAX });
    }
}
