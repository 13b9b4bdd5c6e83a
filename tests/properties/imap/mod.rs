//! Replies of an IMAP server: what they promise whatever the bytes (`src/imap/property_tests.rs`), and that imap-proto reads the
//! same in those that are well-formed. Part of the library's own tests.

mod imap_proto_reads;

use super::property_tests::{ArbitraryMessage, Read, any_argument, any_reply};
use proptest::prelude::*;
use std::cell::RefCell;

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

/// What ours reads in a reply that imap-proto can read; both have read the same.
fn read(line: &str) -> Read {
    let read = RefCell::new(None);
    any_reply(line.as_bytes(), &|sent, ours| {
        assert_eq!(sent, line.as_bytes());
        let theirs = imap_proto_reads::response(sent).unwrap_or_else(|| panic!("imap-proto does not read {line:?}"));
        imap_proto_reads::compare(&theirs, ours);
        read.replace(Some(ours.clone()));
    });
    read.take().unwrap_or_else(|| panic!("incomplete: {line:?}"))
}

#[test]
fn status() {
    let mut dice = Dice(1);
    for _ in 0..3000 {
        let (uid_next, uid_validity) = (dice.uid(), dice.uid());
        let mut items = vec![format!("UIDNEXT {uid_next}"), format!("{} {uid_validity}", dice.cased("UIDVALIDITY"))];
        if dice.below(2) == 0 {
            items.insert(0, format!("MESSAGES {}", dice.below(9)));
        }
        if dice.below(2) == 0 {
            items.reverse();
        }
        let line = format!("* {} {} ({})\r\n", dice.cased("STATUS"), dice.mailbox(), items.join(" "));
        assert_eq!(read(&line).position, Some((uid_validity, uid_next)), "{line:?}");
    }
}

#[test]
fn search() {
    let mut dice = Dice(2);
    for _ in 0..1000 {
        let uids: Vec<u32> = (0..dice.below(20)).map(|_| dice.uid()).collect();
        let list: String = uids.iter().map(|uid| format!(" {uid}")).collect();
        let line = format!("* {}{list}\r\n", dice.cased("SEARCH"));
        assert_eq!(read(&line).search, Some(uids), "{line:?}");
    }
}

#[test]
fn fetched() {
    let mut dice = Dice(3);
    for _ in 0..5000 {
        let body = dice.body();
        let flags = dice.one_of(&["", "\\Seen", "\\Seen \\Deleted", "$Forwarded \\Deleted NonJunk"]);
        let (uid, size) = (dice.uid(), dice.below(1 << 30));
        let mut items = [
            format!("UID {uid}"),
            format!("FLAGS ({flags})"),
            format!("RFC822.SIZE {size}"),
            format!("BODY[] {body}"),
            "MODSEQ (12)".to_owned(),
        ];
        for at in 0..items.len() {
            items.swap(at, usize::try_from(dice.below(5)).unwrap());
        }
        let line = format!("* {} FETCH ({})\r\n", dice.below(9) + 1, items.join(" "));
        let Some(ArbitraryMessage { body, .. }) = read(&line).fetched else { panic!("{line:?}") };
        let deleted = Some(flags.contains("Deleted"));
        assert_eq!(read(&line).fetched, Some(ArbitraryMessage { uid, size: Some(size), deleted, body }), "{line:?}");
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
        let read = read(&line);
        assert_eq!((read.text.as_str(), read.status), (text, Some(word.to_ascii_uppercase().as_str())), "{line:?}");
        let inside = code.trim_end().trim_matches(['[', ']']);
        let (name, arguments) = inside.split_once(' ').unwrap_or((inside, ""));
        let expected = (!name.is_empty()).then(|| (name.to_ascii_uppercase(), arguments.to_owned()));
        assert_eq!(read.code, expected, "{line:?}");
        assert_eq!(read.append_uid, code.starts_with("[APPENDUID").then_some((validity, uid)), "{line:?}");
    }
}

/// Pieces that replies are made of, in any order.
fn reply() -> impl Strategy<Value = Vec<u8>> {
    let pieces: &[&[u8]] = &[
        b"* ",
        b"+ ",
        b"A1 ",
        b"OK ",
        b"no ",
        b"BYE ",
        b"[APPENDUID 1 2] ",
        b"[TRYCREATE] ",
        b"[",
        b"]",
        b"{3}\r\n",
        b"~{1}\r\n",
        b"{0}\r\n",
        b"{99999999999}\r\n",
        b"STATUS ",
        b"INBOX ",
        b"(UIDNEXT 17 UIDVALIDITY 3)",
        b"UIDNEXT ",
        b"SEARCH 1 2",
        b"1 FETCH (",
        b"UID 4 ",
        b"UID ",
        b"FLAGS (\\Seen \\Deleted) ",
        b"BODY[] ",
        b"BODY[HEADER.FIELDS (MESSAGE-ID)] ",
        b"NIL ",
        b"RFC822.SIZE 3 ",
        b"\"a \\\" b\" ",
        b"\"",
        b"\\",
        b"(",
        b")",
        b")\r\n",
        b"\r\n",
        b"\n",
        b"\r",
        b" ",
        b"0 ",
        b"4294967295 ",
        b"4294967296 ",
        b"\xc3\xbc",
        b"\xff",
        b"\0",
    ];
    let piece = prop_oneof![
        9 => prop::sample::select(pieces.to_vec()).prop_map(<[u8]>::to_vec),
        1 => prop::collection::vec(any::<u8>(), 0..4),
    ];
    prop::collection::vec(piece, 1..30).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4000) })]

    #[test]
    fn a_reply_is_read_to_its_end_and_no_further(bytes in reply()) {
        any_reply(&bytes, &imap_proto_reads::the_same);
    }

    #[test]
    fn no_argument_gets_out_of_its_quotes(text in "(?s)(\\PC|[\"\\\\{}+&%*() \r\n]){0,40}") {
        any_argument(&text);
    }

    #[test]
    fn however_long_it_is(text in "[ -~ü]{990,1010}") {
        any_argument(&text);
    }
}
