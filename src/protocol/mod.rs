//! What a way in hands over to the service, and what it is told: frames that front, thin client, runners and workers understand.
//!
//! A frame is `MDR1`, the length of its header (four bytes, the highest first), the header (a JSON object), and the bytes of a
//! message, where one follows. It is one frame of ZMTP, since the Paranoid Pirate's workers take exactly one.

pub(crate) mod client;
pub mod control;
pub(crate) mod control_client;
mod recipient_batches;
mod results;
pub mod status_text;
pub mod zmtp;

pub use crate::config::LARGEST_MESSAGE;
pub(crate) use recipient_batches::portions;
pub use results::{Told, Untellable};

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use thiserror::Error;
use uuid::Uuid;

/// How each frame of ours begins. What begins otherwise comes from another program.
pub const MARK: &[u8; 4] = b"MDR1";

/// The longest header, in bytes: a thousand recipients, each with an original address, of 300 bytes each, and some more.
pub const LONGEST_HEADER: usize = 1 << 20;

/// Mark and length.
const PREFIX: usize = 8;

/// What a frame is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Header {
    /// Deliver a message. From a client it waits for [`Go`](Self::Go); to a worker it counts at once.
    Deliver(Request),
    /// The broker has all of this request.
    Received { id: Uuid },
    /// Its client is still there, and wants it: it may begin.
    Go { id: Uuid },
    /// Its client does not want it any more. What has begun goes on.
    Cancel { id: Uuid },
    /// What became of it.
    Reply(Reply),
}

/// A message to be delivered, and all that is known of it besides its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Its name. One that is handed over again keeps it.
    pub id: Uuid,
    /// How long the delivery may take, in milliseconds, from when a worker gets it. The broker takes off what it has waited.
    pub time_left_ms: u64,
    /// The envelope sender as the way in has it.
    pub sender: String,
    /// The envelope recipients, in their order. There is at least one.
    pub recipients: Vec<Recipient>,
    /// Postfix's queue id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_id: Option<String>,
    /// The address of the SMTP client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_address: Option<String>,
    /// The SASL user name, if the client logged in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sasl_username: Option<String>,
    /// How long to wait for a lock held elsewhere, in milliseconds, where the way in was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_wait_ms: Option<u64>,
    /// Whether the author gets no copy, whatever the site has chosen: nobody vouches for who it is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_sent: bool,
    /// The size of the message in bytes.
    pub size: u64,
    /// The file that the message is in, by its whole path. `None`: it follows the header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Who hands it over.
    #[serde(default, skip_serializing_if = "is_default")]
    pub source: Source,
    /// The message has crashed a worker before: this one is its own, and ends after it. The broker fills it in.
    #[serde(default, skip_serializing_if = "is_default")]
    pub suspect: bool,
    /// Some of its recipients had a worker wait of late, and then nothing was delivered to them: their mailboxes may take all of the time to
    /// open, since such messages have no more than their part of the workers. The broker fills it in.
    #[serde(default, skip_serializing_if = "is_default")]
    pub slow: bool,
}

#[cfg(test)]
impl Request {
    /// A message of so many bytes to these addresses, in tests.
    pub(crate) fn to(addresses: &[&str], size: usize) -> Self {
        Self {
            id: Uuid::nil(),
            time_left_ms: 240_000,
            sender: "lisa@gmail.com".into(),
            recipients: addresses.iter().map(|to| Recipient { address: (*to).into(), original: None }).collect(),
            queue_id: None,
            client_address: None,
            sasl_username: None,
            lock_wait_ms: None,
            no_sent: false,
            size: size as u64,
            file: None,
            source: Source::Mta,
            suspect: false,
            slow: false,
        }
    }
}

/// Who hands a message over, and has it until it is delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Postfix, or another mail system.
    #[default]
    Mta,
    /// A runner, out of the file queue: no mail system has it.
    Queue,
    /// A person, out of what is shunted: it gets a worker of its own.
    Shunt,
    /// The service, out of what is shunted, once a new build is there: behind other mail.
    Upgrade,
}

impl Source {
    /// Whether it has a copy of a shunted message alone: its holder tries it, too.
    #[must_use]
    pub fn is_shunt(self) -> bool {
        matches!(self, Self::Shunt | Self::Upgrade)
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// One envelope recipient.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recipient {
    /// As the way in has it.
    pub address: String,
    /// Before any rewriting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original: Option<String>,
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    pub id: Uuid,
    /// One for each recipient, in the request's order.
    pub results: Vec<Told>,
    /// Whether the worker ends now, as it was asked to, or because it has served for long enough: it gets nothing more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
    /// What the worker has opened since its last reply.
    #[serde(default, skip_serializing_if = "is_default")]
    pub logins: Logins,
    /// How the worker has found the database.
    #[serde(default, skip_serializing_if = "is_default")]
    pub database: Found,
}

/// How a delivery has found what every delivery needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// It was not asked.
    #[default]
    NotAsked,
    /// It is there.
    There,
    /// Nothing can be delivered by it, and why.
    Away(String),
}

/// How many sessions were opened, which is what takes most of the time of a delivery that has to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Logins {
    /// With the database.
    pub database: u64,
    /// With the IMAP server, as a user.
    pub imap: u64,
}

impl Logins {
    pub(crate) fn add(&mut self, more: Self) {
        self.database = self.database.saturating_add(more.database);
        self.imap = self.imap.saturating_add(more.imap);
    }
}

/// Why a frame is none of ours, or cannot be read.
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
    /// The frame, with the message that it is about.
    ///
    /// # Errors
    /// Where a path is not UTF-8.
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

    /// Reads a frame: the header, and the bytes of the message that follows it.
    ///
    /// # Errors
    /// [`Unreadable::NotOurs`] for another program's; the others for one of ours that makes no sense.
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
    use crate::delivery::{StatusDetail, Verdict};

    fn request(size: u64) -> Request {
        let mut request = Request::to(&["scuba@mail.axial.net", "doug@mail.axial.net"], 0);
        request.recipients[1].original = Some("Doug@axial.net".into());
        Request { id: Uuid::from_u128(7), queue_id: Some("4ABC".into()), size, ..request }
    }

    #[test]
    fn what_is_handed_over_is_read_as_it_was() {
        let told = |verdict: &Verdict| Told::from(verdict);
        let reply = Reply {
            id: Uuid::from_u128(7),
            results: vec![
                told(&Verdict::delivered("INBOX appended (uid 17)")),
                told(&Verdict::deferred(StatusDetail::NO_ANSWER, "the database cannot be reached")),
            ],
            leaving: true,
            logins: Logins { database: 1, imap: 8 },
            database: Found::Away("the database cannot be reached".into()),
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
            (Header::Cancel { id: Uuid::from_u128(8) }, b""),
            (Header::Reply(reply), b""),
        ];
        for (header, message) in headers {
            let frame = header.frame(message).unwrap();
            assert_eq!(Header::read(&frame), Ok((header, message)));
        }
    }

    /// A service of an older version reads what it knows.
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
        let reply = Reply { id, results, leaving: false, logins: Logins::default(), database: Found::NotAsked };
        assert_eq!(fields(&Header::Reply(reply)), ["id", "kind", "results"]);
    }

    #[test]
    fn what_is_cut_short_or_is_no_frame_of_ours_is_told_apart() {
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
