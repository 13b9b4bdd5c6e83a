//! An mbox (RFC 4155): where its messages begin, and how to restore their original form.
//!
//! A message begins with a line that begins with `From `, at the top of the file or after an empty line. Within a message `>From
//! `, `>>From ` and so on lose one `>` (mboxrd).
//!
//! If only `From ` was quoted (mboxo), an author's own line that begins with `>From ` loses its `>`. Postfix's local(8) writes
//! that form (`src/global/mail_copy.c`). If nothing was quoted, and only Content-Length shows where a message ends (mboxcl2),
//! messages would be cut. Such an mbox is refused.

use crate::operations::replay::lines::Line;
use memchr::memchr;

/// Whether a line separates messages. A header field `From :` does not.
pub(crate) fn is_from_line(line: &[u8]) -> bool {
    line.strip_prefix(b"From ").is_some_and(|rest| rest.trim_ascii_start().first() != Some(&b':'))
}

/// The error for an mbox in which, according to Content-Length fields, separator lines belong to messages.
const UNQUOTED: &str = "that is an mbox of the kind mboxcl2, it seems: by a Content-Length field, a line that begins \
    with `From ` belongs to the message before it. Convert it to mboxrd; or, if those fields are wrong, give --format mbox";

/// Finds the beginnings of messages.
#[derive(Debug, Default)]
pub(crate) struct Divider {
    /// Whether Content-Length fields are checked.
    checks_lengths: bool,
    /// Whether the previous line is not empty.
    after_text: bool,
    in_header: bool,
    /// The length of the message's body according to its header, in bytes.
    length: u64,
    /// The offset at which the body ends, according to that length.
    ends: u64,
}

impl Divider {
    pub(crate) fn new(checks_lengths: bool) -> Self {
        Self { checks_lengths, ..Self::default() }
    }

    /// # Errors
    /// If the previous message has not ended yet according to its Content-Length.
    pub(crate) fn begins(&mut self, line: Line<'_>) -> Result<bool, &'static str> {
        let begins = !self.after_text && is_from_line(line.head);
        self.after_text = !line.is_blank();
        if begins && line.offset < self.ends {
            return Err(UNQUOTED);
        }
        if begins {
            (self.in_header, self.length, self.ends) = (self.checks_lengths, 0, 0);
        } else if self.in_header && line.is_blank() {
            self.in_header = false;
            self.ends = (line.offset + line.head.len() as u64).saturating_add(self.length);
        } else if self.in_header {
            self.length = content_length(line.head).unwrap_or(self.length);
        }
        Ok(begins)
    }
}

fn content_length(line: &[u8]) -> Option<u64> {
    let (name, value) = line.split_at_checked(b"Content-Length:".len())?;
    name.eq_ignore_ascii_case(b"Content-Length:").then_some(value)?;
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

/// The message in a piece of an mbox: without its `From ` line, the quoting, and the empty line after it.
pub(crate) fn message(mut piece: Vec<u8>) -> Vec<u8> {
    for end in [b"\r\n\r\n".as_slice(), b"\n\n"] {
        if piece.ends_with(end) {
            piece.truncate(piece.len() - end.len() / 2);
            break;
        }
    }
    let from_line = memchr(b'\n', &piece).map_or(piece.len(), |end| end + 1);
    if is_from_line(&piece) {
        piece.drain(..from_line);
    }
    if memchr::memmem::find(&piece, b">From ").is_none() {
        return piece;
    }
    let mut message = Vec::with_capacity(piece.len());
    for line in piece.split_inclusive(|&byte| byte == b'\n') {
        let unquoted = line.strip_prefix(b">").filter(|rest| {
            let marks = rest.iter().take_while(|&&byte| byte == b'>').count();
            rest.get(marks..).is_some_and(|rest| rest.starts_with(b"From "))
        });
        message.extend_from_slice(unquoted.unwrap_or(line));
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_becomes_the_message_it_was() {
        let check = |piece: &str, wanted: &str| {
            assert_eq!(String::from_utf8(message(piece.as_bytes().to_vec())).unwrap(), wanted, "{piece:?}");
        };
        check("From a Sat\nA: b\n\nx\n\n", "A: b\n\nx\n");
        check("From a Sat\r\nA: b\r\n\r\nx\r\n\r\n", "A: b\r\n\r\nx\r\n");
        check("From a Sat\nA: b\n\nx", "A: b\n\nx");
        check(
            "From a\nA: b\n\n>From x\n>>From y\n> From z\nFrom w\n>>>From\n",
            "A: b\n\nFrom x\n>From y\n> From z\nFrom w\n>>>From\n",
        );
        // After a message without a body, one empty line ends both the header and the message.
        check("From a\nA: b\n\n", "A: b\n");
    }

    #[test]
    fn a_message_that_has_not_ended_is_reported_by_its_length() {
        let begins = |text: &str| {
            let (mut divider, mut offset) = (Divider::new(true), 0);
            let lines = text.split_inclusive('\n').map(|line| {
                let begins = divider.begins(Line { offset, head: line.as_bytes() });
                offset += line.len() as u64;
                begins
            });
            lines.collect::<Result<Vec<bool>, _>>().ok().map(|begins| begins.iter().filter(|begins| **begins).count())
        };
        let mbox = |length: &str| format!("From a\n{length}\nx\n\nFrom y\n\nFrom b\nA: b\n\nz\n");
        // The first body is "x", an empty line, and a `From y` line of its author.
        assert_eq!(begins(&mbox("content-length: 10\n")), None);
        assert_eq!(begins(&mbox("Content-Length: 2\n")), Some(3));
        assert_eq!(begins(&mbox("Content-Length: many\n")), Some(3));
        assert_eq!(begins(&mbox("")), Some(3));
        assert_eq!(begins(&mbox("Content-Length: 10\n").replace("\nFrom y", "\n>From y")), Some(2));
        // A message begins only after an empty line, and no header field begins one.
        assert_eq!(begins("From a\nA: b\n\nx\nFrom here on\n\nFrom b\n\nFrom : field\n"), Some(2));
        // In a body, a Content-Length line has no meaning.
        assert_eq!(begins("From a\n\nContent-Length: 99\n\nFrom b\n\nz\n"), Some(2));
    }
}
