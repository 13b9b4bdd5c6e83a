//! Commands and their arguments. An argument from outside is quoted or sent as a literal, so that no name or password can be
//! read as a command.

use super::Broken;
use super::MailboxFailure;
use base64::Engine;
use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD};
use std::borrow::Cow;
use time::{Date, Month, OffsetDateTime};

/// A command without its tag and its last CRLF.
pub(crate) struct Command<'a> {
    parts: Vec<Part<'a>>,
    shown: String,
}

/// Text is sent as it is; a literal, when the server is ready for it.
pub(crate) enum Part<'a> {
    Text(String),
    Literal(Cow<'a, [u8]>),
}

impl<'a> Command<'a> {
    /// `name` is sent as it is, so it must be a constant of this program.
    pub fn new(name: &str) -> Self {
        Self { parts: vec![Part::Text(name.to_owned())], shown: name.to_owned() }
    }

    /// A word that is sent as it is: an atom, a flag list, a set of UIDs. It must not come from outside.
    pub(crate) fn word(mut self, word: &str) -> Self {
        self.text(&format!(" {word}"));
        self.shown.push(' ');
        self.shown.push_str(word);
        self
    }

    pub fn mailbox(mut self, name: &str) -> Result<Self, Broken> {
        let encoded = mailbox_name(name)?;
        self.shown.push_str(&format!(" {encoded:?}"));
        self.argument(encoded.as_bytes())?;
        Ok(self)
    }

    /// Any other argument that a log may show.
    pub(crate) fn string(mut self, text: &str) -> Result<Self, Broken> {
        self.shown.push_str(&format!(" {text:?}"));
        self.argument(text.as_bytes())?;
        Ok(self)
    }

    /// An argument that no log may show.
    pub(crate) fn secret(mut self, text: &str) -> Result<Self, Broken> {
        self.shown.push_str(" …");
        self.argument(text.as_bytes())?;
        Ok(self)
    }

    /// A word in base64 that no log may show.
    pub(crate) fn secret_word(mut self, word: &str) -> Self {
        self.text(&format!(" {word}"));
        self.shown.push_str(" …");
        self
    }

    /// A message. Only this argument may contain line ends.
    pub(crate) fn message(mut self, bytes: &'a [u8]) -> Self {
        self.shown.push_str(&format!(" {{{}}}", bytes.len()));
        self.text(" ");
        self.parts.push(Part::Literal(Cow::Borrowed(bytes)));
        self
    }

    pub(crate) fn parts(&self) -> &[Part<'a>] {
        &self.parts
    }

    /// The command as a log may show it.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    fn text(&mut self, text: &str) {
        match self.parts.last_mut() {
            Some(Part::Text(last)) => last.push_str(text),
            _ => self.parts.push(Part::Text(text.to_owned())),
        }
    }

    /// Quotes the argument, or makes it a literal if a quoted string cannot carry it (RFC 3501 section 4.3: 7-bit, no CR or
    /// LF).
    fn argument(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        if bytes.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
            return Err(Broken::new(MailboxFailure::Local, "an argument with a line end or a NUL in it is never sent"));
        }
        self.text(" ");
        // Servers limit the length of a command line; a literal has no such limit.
        if bytes.len() <= 1000 && bytes.iter().all(|byte| matches!(byte, b' '..=b'~')) {
            let mut quoted = String::with_capacity(bytes.len() + 2);
            quoted.push('"');
            for byte in bytes {
                if matches!(byte, b'"' | b'\\') {
                    quoted.push('\\');
                }
                quoted.push(char::from(*byte));
            }
            quoted.push('"');
            self.text(&quoted);
        } else {
            self.parts.push(Part::Literal(Cow::Owned(bytes.to_vec())));
        }
        Ok(())
    }
}

/// A mailbox's name in the protocol's encoding: modified UTF-7 (RFC 3501 section 5.1.3).
///
/// # Errors
/// If the name is empty or contains CR, LF or NUL: no mailbox has such a name.
pub(crate) fn mailbox_name(name: &str) -> Result<String, Broken> {
    if name.is_empty() || name.contains(['\r', '\n', '\0']) {
        return Err(Broken::new(MailboxFailure::Local, format!("{name:?} cannot be the name of a mailbox")));
    }
    let base64 = GeneralPurpose::new(&alphabet::IMAP_MUTF7, NO_PAD);
    let mut encoded = String::with_capacity(name.len());
    let mut shifted: Vec<u8> = Vec::new();
    let unshift = |encoded: &mut String, shifted: &mut Vec<u8>| {
        if !shifted.is_empty() {
            encoded.push('&');
            encoded.push_str(&base64.encode(&*shifted));
            encoded.push('-');
            shifted.clear();
        }
    };
    for character in name.chars() {
        if matches!(character, ' '..='~') {
            unshift(&mut encoded, &mut shifted);
            encoded.push(character);
            if character == '&' {
                encoded.push('-');
            }
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                shifted.extend(unit.to_be_bytes());
            }
        }
    }
    unshift(&mut encoded, &mut shifted);
    Ok(encoded)
}

/// An INTERNALDATE: `"17-Jul-1996 02:44:25 -0700"`, the day padded with a space (RFC 3501 section 9, `date-time`).
pub(crate) fn date_time(at: OffsetDateTime) -> String {
    let (hours, minutes, _) = at.offset().as_hms();
    let sign = if at.offset().is_negative() { '-' } else { '+' };
    format!(
        "\"{:>2}-{}-{:04} {:02}:{:02}:{:02} {sign}{:02}{:02}\"",
        at.day(),
        month(at.month()),
        at.year(),
        at.hour(),
        at.minute(),
        at.second(),
        hours.unsigned_abs(),
        minutes.unsigned_abs(),
    )
}

/// A day for SEARCH: `7-Jul-1996` (RFC 3501 section 9, `date`).
pub fn date(day: Date) -> String {
    format!("{}-{}-{:04}", day.day(), month(day.month()), day.year())
}

fn month(month: Month) -> String {
    month.to_string().chars().take(3).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    fn sent(command: &Command<'_>) -> String {
        command
            .parts()
            .iter()
            .map(|part| match part {
                Part::Text(text) => text.clone(),
                Part::Literal(bytes) => format!("<{}>", String::from_utf8_lossy(bytes)),
            })
            .collect()
    }

    #[test]
    fn mailbox_names_are_spelt_in_modified_utf_7() {
        for (name, encoded) in [
            ("INBOX", "INBOX"),
            ("Entwürfe", "Entw&APw-rfe"),
            // The examples of RFC 3501 section 5.1.3.
            ("~peter/mail/台北/日本語", "~peter/mail/&U,BTFw-/&ZeVnLIqe-"),
            ("Tom & Jerry", "Tom &- Jerry"),
            ("☺!", "&Jjo-!"),
            // Outside the Basic Multilingual Plane: a surrogate pair.
            ("📥", "&2D3c5Q-"),
            ("tab\there", "tab&AAk-here"),
            ("\u{7f}", "&AH8-"),
        ] {
            assert_eq!(mailbox_name(name).unwrap(), encoded, "{name}");
        }
    }

    #[test]
    fn no_line_end_and_no_nul_ever_leaves_in_an_argument() {
        for bad in ["a\rb", "a\nb", "a\0b", "\r\nA2 DELETE INBOX"] {
            assert!(mailbox_name(bad).is_err());
            assert!(Command::new("STATUS").mailbox(bad).is_err());
            assert!(Command::new("LOGIN").string(bad).is_err());
            assert!(Command::new("LOGIN").secret(bad).is_err());
        }
        assert!(mailbox_name("").is_err());
    }

    #[test]
    fn quotes_cannot_be_broken_out_of() {
        let command = Command::new("STATUS").mailbox(r#"a" (UIDNEXT) \"#).unwrap().word("(UIDVALIDITY)");
        assert_eq!(sent(&command), r#"STATUS "a\" (UIDNEXT) \\" (UIDVALIDITY)"#);
    }

    #[test]
    fn what_cannot_be_quoted_is_a_literal() {
        let long = "x".repeat(1001);
        let command = Command::new("LOGIN").string("müller").unwrap().secret(&long).unwrap();
        assert_eq!(sent(&command), format!("LOGIN <müller> <{long}>"));
    }

    #[test]
    fn a_log_shows_neither_secret_nor_message() {
        let command = Command::new("LOGIN").string("lisa").unwrap().secret("hunter2").unwrap();
        assert_eq!(command.shown(), r#"LOGIN "lisa" …"#);
        assert_eq!(Command::new("AUTHENTICATE").word("PLAIN").secret_word("aGk=").shown(), "AUTHENTICATE PLAIN …");
        assert_eq!(Command::new("APPEND").message(b"Subject: hello\r\n").shown(), "APPEND {16}");
    }

    #[test]
    fn dates_are_spelt_as_imap_spells_them() {
        assert_eq!(date_time(datetime!(1996-07-17 02:44:25 -07:00)), "\"17-Jul-1996 02:44:25 -0700\"");
        assert_eq!(date_time(datetime!(2026-12-01 23:00:09 +05:30)), "\" 1-Dec-2026 23:00:09 +0530\"");
        assert_eq!(date(datetime!(2026-02-03 0:00 UTC).date()), "3-Feb-2026");
    }
}
