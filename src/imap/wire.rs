//! Replies on the wire: [`Reader`] receives bytes and returns complete replies.
//!
//! The reader limits the size of a reply, never recurses, and accepts any byte: text for people is often not ASCII (`NO
//! [TRYCREATE] Mailbox doesn't exist: Entwürfe`).

use super::Broken;

/// The limit for the lines of one reply, in bytes without literals. A SEARCH that finds a hundred thousand messages fits.
const MAX_LINES: usize = 1 << 20;
/// The limit for the literals of one reply, in bytes. A larger message is never compared.
pub(crate) const MAX_LITERALS: usize = 256 << 20;
/// The limit for a server's text in the log, in characters.
const MAX_TEXT: usize = 400;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// `+`: the server waits for more.
    Continue,
    /// The answer to a command (with its tag), or a remark (without a tag).
    Status(Option<String>, Answer),
    /// Untagged data: `* 3 EXISTS`, `* SEARCH 2 5`, `* 1 FETCH (...)`.
    Data(Vec<Segment>),
}

impl Reply {
    /// The untagged data; empty for any other reply.
    pub(crate) fn data(&self) -> &[Segment] {
        if let Self::Data(data) = self { data } else { &[] }
    }

    /// The arguments of the code with this name, if the reply is a remark with that code: `* OK [UIDVALIDITY 3]`.
    pub(crate) fn code(&self, name: &str) -> Option<&str> {
        if let Self::Status(None, answer) = self { answer.code(name) } else { None }
    }
}

/// `OK`, `NO`, `BAD`, `BYE` or `PREAUTH`, with code and text (RFC 3501 section 7.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: Status,
    pub(crate) code: Option<Code>,
    /// For people, cleaned for a log.
    pub(crate) text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Ok,
    No,
    Bad,
    Bye,
    PreAuth,
}

impl Status {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::No => "NO",
            Self::Bad => "BAD",
            Self::Bye => "BYE",
            Self::PreAuth => "PREAUTH",
        }
    }
}

/// A response code: `[APPENDUID 38505 3955]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Code {
    /// In capitals.
    pub(crate) name: String,
    /// As received.
    pub(crate) arguments: String,
}

impl Answer {
    pub(crate) fn code(&self, name: &str) -> Option<&str> {
        self.code.as_ref().filter(|code| code.name == name).map(|code| code.arguments.as_str())
    }

    pub(crate) fn has_code(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.code(name).is_some())
    }
}

/// A part of an untagged reply.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    /// A line, or its text before, between and after literals, without `{n}` and line ends.
    Text(Vec<u8>),
    Literal(Vec<u8>),
}

#[derive(Default)]
pub(crate) struct Reader {
    fed: Vec<u8>,
    /// How many bytes of `fed` are consumed.
    used: usize,
    /// How many bytes after `used` contain no line end.
    searched: usize,
    segments: Vec<Segment>,
    /// The incomplete literal, and its full length.
    literal: Option<(Vec<u8>, usize)>,
    lines: usize,
    literals: usize,
}

impl Reader {
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.fed.drain(..self.used);
        self.used = 0;
        self.fed.extend_from_slice(bytes);
    }

    /// Whether each received byte belongs to a returned reply.
    pub(crate) fn is_empty(&self) -> bool {
        self.used == self.fed.len() && self.segments.is_empty() && self.literal.is_none()
    }

    /// The next complete reply, if all its bytes have been received.
    pub(crate) fn next(&mut self) -> Result<Option<Reply>, Broken> {
        loop {
            if !self.take_literal() {
                return Ok(None);
            }
            let Some(mut line) = self.take_line()? else { return Ok(None) };
            match announced_literal(&line, !self.segments.is_empty())? {
                Some((length, text_length)) => {
                    self.literals = self.literals.saturating_add(length);
                    if self.literals > MAX_LITERALS {
                        return Err(Broken::protocol(format!("the server announced a literal of {length} bytes")));
                    }
                    line.truncate(text_length);
                    self.segments.push(Segment::Text(line));
                    // Memory is allocated as the bytes arrive, because announcing a large number costs a hostile server
                    // nothing.
                    self.literal = Some((Vec::new(), length));
                }
                None => {
                    (self.lines, self.literals) = (0, 0);
                    let mut segments = std::mem::take(&mut self.segments);
                    if segments.is_empty() {
                        return parse(line).map(Some);
                    }
                    segments.push(Segment::Text(line));
                    return Ok(Some(Reply::Data(segments)));
                }
            }
        }
    }

    /// Continues an incomplete literal; `false` if it is still incomplete.
    fn take_literal(&mut self) -> bool {
        if let Some((mut literal, length)) = self.literal.take() {
            let fed = self.fed.get(self.used..).unwrap_or_default();
            let taken = fed.get(..length - literal.len()).unwrap_or(fed);
            literal.extend_from_slice(taken);
            self.used += taken.len();
            if literal.len() < length {
                self.literal = Some((literal, length));
                return false;
            }
            self.segments.push(Segment::Literal(literal));
        }
        true
    }

    /// The next line without its end. A bare LF ends a line as well.
    fn take_line(&mut self) -> Result<Option<Vec<u8>>, Broken> {
        let fed = self.fed.get(self.used..).unwrap_or_default();
        let end = fed.iter().skip(self.searched).position(|byte| *byte == b'\n').map(|at| at + self.searched);
        if self.lines + end.unwrap_or(fed.len()) > MAX_LINES {
            return Err(Broken::protocol(format!("the server sent a line of more than {MAX_LINES} bytes")));
        }
        let Some(end) = end else {
            self.searched = fed.len();
            return Ok(None);
        };
        let mut line = fed.get(..end).unwrap_or_default().to_vec();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        self.lines += end;
        self.used += end + 1;
        self.searched = 0;
        Ok(Some(line))
    }
}

/// The length of the literal that a line announces at its end (`{5}`), and the end of the text before it. `continued`: the
/// line follows a literal.
fn announced_literal(line: &[u8], continued: bool) -> Result<Option<(usize, usize)>, Broken> {
    // Text for people may end in `{5}` without announcing a literal.
    if !continued && !is_data(line) {
        return Ok(None);
    }
    let Some(inside) = line.strip_suffix(b"}") else { return Ok(None) };
    let digits = inside.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let Some((before, number)) = inside.split_at_checked(inside.len() - digits) else { return Ok(None) };
    let Some(before) = before.strip_suffix(b"{").filter(|_| digits > 0) else { return Ok(None) };
    // `~{5}` announces a binary literal (RFC 3516 section 4.4).
    let before = before.strip_suffix(b"~").unwrap_or(before);
    match std::str::from_utf8(number).ok().and_then(|number| number.parse().ok()) {
        Some(length) => Ok(Some((length, before.len()))),
        None => Err(Broken::protocol("the server announced a literal of a length beyond all bounds")),
    }
}

/// Whether a line is the beginning of untagged data.
fn is_data(line: &[u8]) -> bool {
    let mut words = line.splitn(3, |byte| *byte == b' ');
    words.next() == Some(b"*") && words.next().is_some_and(|word| status(word).is_none())
}

fn status(word: &[u8]) -> Option<Status> {
    [Status::Ok, Status::No, Status::Bad, Status::Bye, Status::PreAuth]
        .into_iter()
        .find(|status| word.eq_ignore_ascii_case(status.as_str().as_bytes()))
}

fn parse(line: Vec<u8>) -> Result<Reply, Broken> {
    if line.first() == Some(&b'+') {
        return Ok(Reply::Continue);
    }
    if is_data(&line) {
        return Ok(Reply::Data(vec![Segment::Text(line)]));
    }
    let mut words = line.splitn(3, |byte| *byte == b' ');
    let (tag, word, rest) = (words.next(), words.next(), words.next());
    let tag = tag.and_then(|tag| std::str::from_utf8(tag).ok()).filter(|tag| !tag.is_empty());
    let (Some(tag), Some(status)) = (tag, word.and_then(status)) else {
        return Err(Broken::protocol(format!("this is no IMAP: {:?}", for_people(&line))));
    };
    let (code, text) = split_code(rest.unwrap_or_default());
    let answer = Answer { status, code, text: for_people(text) };
    Ok(Reply::Status((tag != "*").then(|| tag.to_owned()), answer))
}

/// Splits `[CODE arguments] text`. The space before the text is often missing.
fn split_code(text: &[u8]) -> (Option<Code>, &[u8]) {
    let Some(inside) = text.strip_prefix(b"[") else { return (None, text) };
    let (mut quoted, mut escaped) = (false, false);
    let end = inside.iter().position(|byte| {
        let ends = *byte == b']' && !quoted;
        quoted ^= *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && quoted && !escaped;
        ends
    });
    // If a quote is never closed, the code ends at the first bracket.
    let Some(end) = end.or_else(|| inside.iter().position(|byte| *byte == b']')) else { return (None, text) };
    let code = String::from_utf8_lossy(inside.get(..end).unwrap_or_default());
    let (name, arguments) = code.split_once(' ').unwrap_or((&code, ""));
    let code = Code { name: name.to_ascii_uppercase(), arguments: arguments.trim().to_owned() };
    (Some(code), inside.get(end + 1..).unwrap_or_default().trim_ascii_start())
}

/// A server's text for a log: without control characters, and limited in length.
pub(crate) fn for_people(text: &[u8]) -> String {
    let text = text.get(..MAX_TEXT * 4).unwrap_or(text);
    String::from_utf8_lossy(text)
        .chars()
        .take(MAX_TEXT)
        .map(|character| if character.is_control() { ' ' } else { character })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::imap::MailboxFailure;

    /// Feeds all bytes at once, and then byte by byte: the result must be the same.
    fn replies(bytes: &[u8]) -> Result<Vec<Reply>, Broken> {
        let read = |chunk: usize| {
            let (mut reader, mut replies) = (Reader::default(), Vec::new());
            for chunk in bytes.chunks(chunk) {
                reader.feed(chunk);
                while let Some(reply) = reader.next()? {
                    replies.push(reply);
                }
            }
            Ok(replies)
        };
        let whole = read(usize::MAX);
        let trickled = read(1);
        match (&whole, &trickled) {
            (Ok(whole), Ok(trickled)) => assert_eq!(whole, trickled),
            (Err(_), Err(_)) => {}
            _ => panic!("whole: {whole:?}, byte by byte: {trickled:?}"),
        }
        whole
    }

    fn one(line: &str) -> Reply {
        let mut replies = replies(format!("{line}\r\n").as_bytes()).unwrap();
        assert_eq!(replies.len(), 1);
        replies.remove(0)
    }

    fn answer(line: &str) -> Answer {
        match one(line) {
            Reply::Status(_, answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_code_is_kept_whatever_stands_around_it() {
        let plain = answer("A1 NO [TRYCREATE] Mailbox doesn't exist: Entwürfe");
        assert_eq!(plain.code("TRYCREATE"), Some(""));
        assert_eq!(plain.text, "Mailbox doesn't exist: Entwürfe");
        // imap-proto 0.17 panics here.
        let glued = answer("A1 NO [TRYCREATE]üx");
        assert_eq!((glued.code("TRYCREATE"), glued.text.as_str()), (Some(""), "üx"));
        assert_eq!(answer("a ok [AppendUid 38505 3955] done").code("APPENDUID"), Some("38505 3955"));
        assert_eq!(answer("a NO [BADCHARSET (\"x]\" UTF-8)] no").code("BADCHARSET"), Some("(\"x]\" UTF-8)"));
        assert_eq!(answer("a NO [BADCHARSET \"x] no").code("BADCHARSET"), Some("\"x"));
        assert_eq!(answer("a NO [unclosed").code, None);
        assert_eq!(answer("a NO").text, "");
        assert_eq!(answer("a OK []x").text, "x");
    }

    #[test]
    fn text_that_is_no_utf_8_is_no_obstacle() {
        let replies = replies(b"A1 NO [OVERQUOTA] Postfach \xfcbervoll\x1b[31m\r\n").unwrap();
        let [Reply::Status(Some(tag), answer)] = replies.as_slice() else { panic!("{replies:?}") };
        assert_eq!(tag, "A1");
        assert_eq!(answer.code("OVERQUOTA"), Some(""));
        assert_eq!(answer.text, "Postfach \u{fffd}bervoll [31m");
    }

    #[test]
    fn a_literal_is_taken_whole_whatever_is_in_it() {
        let replies = replies(b"* 1 FETCH (BODY[] {12}\r\nA1 OK done\r\n UID 4)\r\nA1 OK\r\n").unwrap();
        let Some(Reply::Data(segments)) = replies.first() else { panic!("{replies:?}") };
        assert_eq!(
            segments.as_slice(),
            [
                Segment::Text(b"* 1 FETCH (BODY[] ".to_vec()),
                Segment::Literal(b"A1 OK done\r\n".to_vec()),
                Segment::Text(b" UID 4)".to_vec()),
            ]
        );
        assert_eq!(replies.len(), 2);
    }

    #[test]
    fn an_empty_literal_and_two_in_one_reply() {
        let replies = replies(b"* LIST () {0}\r\n ~{1}\r\nx {}\r\n").unwrap();
        let Some(Reply::Data(segments)) = replies.first() else { panic!("{replies:?}") };
        assert_eq!(segments.len(), 5);
        assert_eq!(segments.get(1), Some(&Segment::Literal(Vec::new())));
        assert_eq!(segments.get(4), Some(&Segment::Text(b" {}".to_vec())));
    }

    #[test]
    fn braces_in_what_is_reported_to_people_announce_nothing() {
        assert_eq!(answer("* OK see {5}").text, "see {5}");
        assert_eq!(answer("A1 NO [X] {5}").text, "{5}");
        assert_eq!(one("+ {5}"), Reply::Continue);
    }

    #[test]
    fn a_huge_literal_is_refused_when_it_is_announced() {
        for length in ["268435457", "99999999999999999999999999"] {
            let broken = replies(format!("* 1 FETCH (BODY[] {{{length}}}\r\n").as_bytes()).unwrap_err();
            assert_eq!(broken.failure, MailboxFailure::Protocol);
        }
        // Several literals in one reply share the limit.
        let mut reader = Reader { literals: MAX_LITERALS - 1, ..Reader::default() };
        reader.feed(b"* X {2}\r\n");
        assert!(reader.next().is_err());
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut reader = Reader::default();
        let outcome = (0..200).try_for_each(|_| {
            reader.feed(&[b'x'; 8192]);
            reader.next().map(|reply| assert_eq!(reply, None))
        });
        assert_eq!(outcome.unwrap_err().failure, MailboxFailure::Protocol);
    }

    #[test]
    fn what_is_no_imap_is_reported_to_be_none() {
        for line in ["", "HTTP/1.1 400 Bad Request", "220 mx.example ESMTP", "* ", " OK", "A1", "\0\0"] {
            let outcome = replies(format!("{line}\r\n").as_bytes());
            match outcome {
                Err(broken) => assert_eq!(broken.failure, MailboxFailure::Protocol),
                Ok(replies) => assert!(matches!(replies.as_slice(), [Reply::Data(_)]), "{line:?}: {replies:?}"),
            }
        }
    }

    #[test]
    fn a_bare_line_feed_ends_a_line_too() {
        assert_eq!(replies(b"+\nA1 OK x\n").unwrap().len(), 2);
    }

    /// The end of a literal arrives together with the bytes after it.
    #[test]
    fn where_a_reply_is_cut_in_two_does_not_matter() {
        let bytes = b"* 1 FETCH (BODY[] {12}\r\nA1 OK done\r\n UID 4)\r\nA1 OK\r\n";
        let whole = replies(bytes).unwrap();
        for cut in 0..bytes.len() {
            let (mut reader, mut replies) = (Reader::default(), Vec::new());
            for piece in [&bytes[..cut], &bytes[cut..]] {
                reader.feed(piece);
                while let Some(reply) = reader.next().unwrap() {
                    replies.push(reply);
                }
            }
            assert_eq!(replies, whole, "{cut}");
        }
    }

    #[test]
    fn as_much_as_a_reply_may_have_is_taken() {
        let mut reader = Reader { literals: MAX_LITERALS - 2, ..Reader::default() };
        reader.feed(b"* X {2}\r\nab\r\n");
        assert!(matches!(reader.next(), Ok(Some(Reply::Data(_)))));
        let line = |length: usize| format!("* {}\n", "x".repeat(length - 2));
        assert_eq!(replies_at_once(&line(MAX_LINES)).unwrap(), 1);
        assert!(replies_at_once(&line(MAX_LINES + 1)).is_err());
        // The text between literals counts as well, separately in each reply.
        let half = format!("* {}{{0}}\n", "x".repeat(MAX_LINES / 2));
        let rest = |length: usize| format!("{}\n", "x".repeat(length));
        assert_eq!(replies_at_once(&format!("{half}{}", rest(MAX_LINES / 2 - 5)).repeat(2)).unwrap(), 2);
        assert!(replies_at_once(&format!("{half}{}", rest(MAX_LINES / 2))).is_err());
    }

    fn replies_at_once(text: &str) -> Result<usize, Broken> {
        let (mut reader, mut count) = (Reader::default(), 0);
        reader.feed(text.as_bytes());
        while reader.next()?.is_some() {
            count += 1;
        }
        Ok(count)
    }

    /// RFC 3501 section 9: within a quoted string a backslash also escapes a backslash.
    #[test]
    fn a_quoted_argument_ends_where_its_quote_ends() {
        for arguments in [r#""]\\""#, r#""\"]""#, r#""]" "]""#] {
            let answer = answer(&format!("a NO [BADCHARSET {arguments}] no]"));
            assert_eq!((answer.code("BADCHARSET"), answer.text.as_str()), (Some(arguments), "no]"));
        }
    }

    #[test]
    fn a_log_has_so_many_letters_of_what_a_server_says_and_no_more() {
        let umlauts = "ü".repeat(MAX_TEXT);
        assert_eq!(for_people(umlauts.as_bytes()), umlauts);
        assert_eq!(for_people("x".repeat(MAX_TEXT * 5).as_bytes()), "x".repeat(MAX_TEXT));
    }
}
