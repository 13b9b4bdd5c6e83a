//! Replies that are well-formed, read by us and by imap-proto: both must read the same. (What is not well-formed is tried
//! beside the code that reads it: imap-proto panics on some of that.)

use super::fetch::{self, Fetched};
use super::wire::{Reader, Reply, Status};
use crate::mailbox::{Placement, Position};
use imap_proto::{AttributeValue, MailboxDatum, Response, ResponseCode, StatusAttribute};

/// The same numbers on each run (xorshift64*): a failure can be tried again.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }

    fn one_of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[usize::try_from(self.below(choices.len() as u64)).unwrap()]
    }

    fn uid(&mut self) -> u32 {
        match self.below(4) {
            0 => u32::MAX,
            1 => 1,
            _ => u32::try_from(self.below(1 << 30) + 1).unwrap(),
        }
    }

    /// Any case of a keyword.
    fn cased(&mut self, word: &str) -> String {
        word.chars().map(|c| if self.below(2) == 0 { c.to_ascii_lowercase() } else { c }).collect()
    }

    /// A mailbox's name in one of its forms.
    fn mailbox(&mut self) -> String {
        self.one_of(&[
            "INBOX",
            "inbox",
            "Sent",
            "\"Sent Messages\"",
            "\"a (b) \\\"c\\\" {3}\"",
            "{7}\r\na) {2} ",
            "Entw&APw-rfe",
        ])
        .to_owned()
    }

    /// A body in one of its forms.
    fn body(&mut self) -> String {
        match self.below(4) {
            0 => "NIL".into(),
            // Nothing escaped: imap-proto leaves the backslashes in.
            1 => "\"quoted text] (x) {2}\"".into(),
            _ => {
                let pieces = ["a", "\r\n", ")", "{5}", "\"", "]", " UID 3"];
                let text: String = (0..self.below(200)).map(|_| self.one_of(&pieces)).collect();
                format!("{{{}}}\r\n{text}", text.len())
            }
        }
    }
}

fn ours(line: &str) -> Reply {
    let mut reader = Reader::default();
    reader.feed(line.as_bytes());
    let reply = reader.next().unwrap().unwrap_or_else(|| panic!("incomplete: {line:?}"));
    assert!(reader.is_empty(), "{line:?}");
    reply
}

fn theirs(line: &str) -> Response<'_> {
    let (rest, response) = Response::parse(line.as_bytes()).unwrap_or_else(|e| panic!("{line:?}: {e:?}"));
    assert!(rest.is_empty(), "{line:?}");
    response
}

fn data(line: &str) -> Vec<super::wire::Segment> {
    match ours(line) {
        Reply::Data(data) => data,
        other => panic!("{line:?}: {other:?}"),
    }
}

#[test]
fn status() {
    let mut dice = Dice(1);
    for _ in 0..3000 {
        let mut items =
            vec![format!("UIDNEXT {}", dice.uid()), format!("{} {}", dice.cased("UIDVALIDITY"), dice.uid())];
        if dice.below(2) == 0 {
            items.insert(0, format!("MESSAGES {}", dice.below(9)));
        }
        if dice.below(2) == 0 {
            items.reverse();
        }
        let line = format!("* {} {} ({})\r\n", dice.cased("STATUS"), dice.mailbox(), items.join(" "));
        let Response::MailboxData(MailboxDatum::Status { status, .. }) = theirs(&line) else { panic!("{line:?}") };
        let mut position = Position { uid_validity: 0, uid_next: 0 };
        for attribute in status {
            match attribute {
                StatusAttribute::UidNext(uid) => position.uid_next = uid,
                StatusAttribute::UidValidity(uid) => position.uid_validity = uid,
                _ => {}
            }
        }
        assert_eq!(fetch::position(&data(&line)), Some(position), "{line:?}");
    }
}

#[test]
fn search() {
    let mut dice = Dice(2);
    for _ in 0..1000 {
        let uids: String = (0..dice.below(20)).map(|_| format!(" {}", dice.uid())).collect();
        let line = format!("* {}{uids}\r\n", dice.cased("SEARCH"));
        let Response::MailboxData(MailboxDatum::Search(found)) = theirs(&line) else { panic!("{line:?}") };
        assert_eq!(fetch::search(&data(&line)), Some(found), "{line:?}");
    }
}

#[test]
fn fetched() {
    let mut dice = Dice(3);
    for _ in 0..5000 {
        let body = dice.body();
        let flags = dice.one_of(&["", "\\Seen", "\\Seen \\Deleted", "$Forwarded \\Deleted NonJunk"]);
        let mut items = [
            format!("UID {}", dice.uid()),
            format!("FLAGS ({flags})"),
            format!("RFC822.SIZE {}", dice.below(1 << 30)),
            format!("BODY[] {body}"),
            "MODSEQ (12)".to_owned(),
        ];
        for at in 0..items.len() {
            items.swap(at, usize::try_from(dice.below(5)).unwrap());
        }
        let line = format!("* {} FETCH ({})\r\n", dice.below(9) + 1, items.join(" "));
        let Response::Fetch(_, attributes) = theirs(&line) else { panic!("{line:?}") };
        let mut expected = Fetched::default();
        for attribute in attributes {
            match attribute {
                AttributeValue::Uid(uid) => expected.uid = uid,
                AttributeValue::Rfc822Size(size) => expected.size = Some(size.into()),
                AttributeValue::Flags(flags) => expected.deleted = Some(flags.iter().any(|flag| flag == "\\Deleted")),
                AttributeValue::BodySection { data, .. } => expected.body = data.map(std::borrow::Cow::into_owned),
                _ => {}
            }
        }
        assert_eq!(fetch::fetched(&data(&line)), Some(expected), "{line:?}");
    }
}

#[test]
fn answers_and_their_codes() {
    let mut dice = Dice(4);
    for _ in 0..3000 {
        let (validity, uid) = (dice.uid(), dice.uid());
        let appenduid = format!("[APPENDUID {validity} {uid}] ");
        let code = dice.one_of(&["", "[TRYCREATE] ", "[tryCreate] ", "[READ-ONLY] ", "[UIDVALIDITY 7] ", &appenduid]);
        let text = dice.one_of(&["done", "Mailbox doesn't exist: Entwürfe", "see {5}", "a ] b"]);
        let word = dice.one_of(&["OK", "NO", "BAD", "ok"]);
        let tag = dice.one_of(&["*", "A1", "abc.7"]);
        let line = format!("{tag} {word} {code}{text}\r\n");
        let Reply::Status(its_tag, answer) = ours(&line) else { panic!("{line:?}") };
        let (their_tag, status, outcome) = match theirs(&line) {
            Response::Done { tag, status, outcome } => (Some(tag.0), status, outcome),
            Response::Data { status, outcome } => (None, status, outcome),
            other => panic!("{line:?}: {other:?}"),
        };
        assert_eq!(its_tag, their_tag, "{line:?}");
        assert_eq!(outcome.information.as_deref(), Some(answer.text.as_str()), "{line:?}");
        let same_status = match status {
            imap_proto::Status::Ok => answer.status == Status::Ok,
            imap_proto::Status::No => answer.status == Status::No,
            imap_proto::Status::Bad => answer.status == Status::Bad,
            _ => false,
        };
        assert!(same_status, "{line:?}");
        match outcome.code {
            None => assert_eq!(answer.code, None, "{line:?}"),
            Some(ResponseCode::TryCreate) => assert_eq!(answer.code("TRYCREATE"), Some(""), "{line:?}"),
            Some(ResponseCode::ReadOnly) => assert_eq!(answer.code("READ-ONLY"), Some(""), "{line:?}"),
            Some(ResponseCode::UidValidity(7)) => assert_eq!(answer.code("UIDVALIDITY"), Some("7"), "{line:?}"),
            Some(ResponseCode::AppendUid(their_validity, uids)) => {
                assert_eq!((their_validity, uids.len()), (validity, 1), "{line:?}");
                let expected = Placement { uid_validity: validity, uid };
                assert_eq!(fetch::append_uid(&answer), Some(expected), "{line:?}");
            }
            Some(other) => panic!("{line:?}: {other:?}"),
        }
    }
}
