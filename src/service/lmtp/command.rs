//! Parses one line of the client into a command and its parameters.

use super::path::{self, Path, PathError};
use super::xforward::{self, Forwarded};
use thiserror::Error;

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Lhlo,
    /// HELO or EHLO: the client treats this server as an SMTP server.
    Helo,
    Mail(Mail),
    Rcpt(Path),
    Data,
    Rset,
    Noop,
    Vrfy,
    Help,
    Quit,
    StartTls,
    Xforward(Forwarded),
    /// The following bytes are not commands. They belong to a message (BDAT, RFC 3030), or to an HTTP request that an attacker
    /// has made a browser send here. To read on could mean to execute such bytes as commands. Postfix ends these sessions too
    /// (smtpd_forbidden_commands).
    Foreign,
}

/// What [`name`] returns for a word that is no LMTP command.
pub(super) const OTHER: &str = "other";

/// The name of the command at the start of a line, for the counters. The name is never the client's own text.
pub(super) fn name(line: &[u8]) -> &'static str {
    let verb = line.split(|byte| matches!(byte, b' ' | b'\r')).next().unwrap_or_default();
    let known = ["LHLO", "MAIL", "RCPT", "DATA", "RSET", "NOOP", "VRFY", "HELP", "QUIT", "STARTTLS", "XFORWARD"];
    known.into_iter().find(|name| verb.eq_ignore_ascii_case(name.as_bytes())).unwrap_or(OTHER)
}

/// MAIL, with the parameters that are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mail {
    pub from: Path,
    pub size: Option<u64>,
}

/// Why a line is no valid command. The line is not repeated, since it may contain anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum CommandError {
    #[error("500 5.5.1 There is no such command here")]
    Unknown,
    /// The reply is not 500: for that, Postfix would bounce a message with a strange byte in an address.
    #[error("451 4.5.2 A line ends with CR LF, and holds no other control character")]
    ControlCharacter,
    #[error("501 5.5.4 This command has no argument")]
    Argument,
    #[error("501 5.5.4 LHLO wants the client's name")]
    NoName,
    #[error("501 5.5.2 Say MAIL FROM:<address>")]
    MailSyntax,
    #[error("501 5.5.2 Say RCPT TO:<address>")]
    RcptSyntax,
    /// The reply is not 501, as RFC 5321 has it: the bounce would have no address to go to, and the message would be lost.
    #[error("451 4.1.7 The sender's address cannot be read")]
    Sender,
    #[error("501 5.1.3 The recipient's address cannot be read")]
    Recipient,
    #[error("501 5.5.4 The value of a parameter cannot be read")]
    ParameterValue,
    #[error("555 5.5.4 There is no such parameter here")]
    Parameter,
    #[error("501 5.5.4 Say XFORWARD NAME=value, in xtext, with the names that LHLO offered")]
    Xforward,
}

impl Command {
    /// Parses a line without its CR LF.
    pub(super) fn read(line: &[u8]) -> Result<Self, CommandError> {
        // Other programs may treat a bare CR or LF as a line end, so such a line is not executed.
        if line.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
            return Err(CommandError::ControlCharacter);
        }
        let line = line.trim_ascii_end();
        let verb_end = line.iter().position(|byte| !byte.is_ascii_alphabetic()).unwrap_or(line.len());
        let (verb, rest) = line.split_at_checked(verb_end).ok_or(CommandError::Unknown)?;
        if !matches!(rest.first(), None | Some(b' ' | b'\t')) {
            return Err(CommandError::Unknown);
        }
        let argument = rest.trim_ascii_start();
        let alone = |command| if argument.is_empty() { Ok(command) } else { Err(CommandError::Argument) };
        match verb.to_ascii_uppercase().as_slice() {
            b"LHLO" if argument.is_empty() => Err(CommandError::NoName),
            b"LHLO" => Ok(Self::Lhlo),
            b"HELO" | b"EHLO" => Ok(Self::Helo),
            b"MAIL" => mail(argument).map(Self::Mail),
            b"RCPT" => rcpt(argument).map(Self::Rcpt),
            b"DATA" => alone(Self::Data),
            b"RSET" => alone(Self::Rset),
            b"NOOP" => Ok(Self::Noop),
            b"VRFY" => Ok(Self::Vrfy),
            b"HELP" => Ok(Self::Help),
            b"QUIT" => alone(Self::Quit),
            b"STARTTLS" => alone(Self::StartTls),
            b"XFORWARD" => xforward::read(argument).map(Self::Xforward).ok_or(CommandError::Xforward),
            b"BDAT" | b"GET" | b"HEAD" | b"POST" | b"PUT" | b"PATCH" | b"DELETE" | b"OPTIONS" | b"CONNECT" => {
                Ok(Self::Foreign)
            }
            _ => Err(CommandError::Unknown),
        }
    }
}

fn mail(argument: &[u8]) -> Result<Mail, CommandError> {
    let text = after_keyword(argument, b"FROM:").ok_or(CommandError::MailSyntax)?;
    let (from, rest) = path::read(text).map_err(|error| match error {
        PathError::NoBrackets => CommandError::MailSyntax,
        PathError::NoAddress => CommandError::Sender,
    })?;
    let mut size = None;
    for (name, value) in parameters(rest, CommandError::MailSyntax)? {
        match (name.to_ascii_uppercase().as_slice(), value) {
            // RFC 1870 section 5: up to 20 digits. A number beyond u64 is beyond the size limit, too.
            (b"SIZE", Some(digits)) if (1..=20).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit) => {
                let number = std::str::from_utf8(digits).map_err(|_| CommandError::ParameterValue)?;
                size = Some(number.parse().unwrap_or(u64::MAX));
            }
            // RFC 6152. The message is passed on unchanged in either case.
            (b"BODY", Some(body)) if body.eq_ignore_ascii_case(b"8BITMIME") || body.eq_ignore_ascii_case(b"7BIT") => {}
            // RFC 6531 section 3.4. Addresses beyond ASCII are accepted with and without SMTPUTF8: the recipient's name does not
            // depend on it, and a refusal would bounce mail.
            (b"SMTPUTF8", None) => {}
            (b"SIZE" | b"BODY" | b"SMTPUTF8", _) => return Err(CommandError::ParameterValue),
            _ => return Err(CommandError::Parameter),
        }
    }
    Ok(Mail { from, size })
}

fn rcpt(argument: &[u8]) -> Result<Path, CommandError> {
    let text = after_keyword(argument, b"TO:").ok_or(CommandError::RcptSyntax)?;
    let (to, rest) = path::read(text).map_err(|error| match error {
        PathError::NoBrackets => CommandError::RcptSyntax,
        PathError::NoAddress => CommandError::Recipient,
    })?;
    if to.is_null() {
        return Err(CommandError::Recipient);
    }
    match parameters(rest, CommandError::RcptSyntax)?.next() {
        None => Ok(to),
        Some(_) => Err(CommandError::Parameter),
    }
}

/// The text after `FROM:` or `TO:`. Some clients send a space after the colon.
fn after_keyword<'a>(text: &'a [u8], keyword: &[u8]) -> Option<&'a [u8]> {
    let (said, rest) = text.split_at_checked(keyword.len())?;
    said.eq_ignore_ascii_case(keyword).then(|| rest.trim_ascii_start())
}

/// `NAME=value` or `NAME`, each after a space.
fn parameters(text: &[u8], syntax: CommandError) -> Result<impl Iterator<Item = (&[u8], Option<&[u8]>)>, CommandError> {
    if !matches!(text.first(), None | Some(b' ' | b'\t')) {
        return Err(syntax);
    }
    let words = text.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
    Ok(words.map(|word| match word.iter().position(|byte| *byte == b'=') {
        Some(at) => (word.get(..at).unwrap_or_default(), word.get(at + 1..)),
        None => (word, None),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Command, CommandError> {
        Command::read(line.as_bytes())
    }

    #[test]
    fn a_command_is_counted_by_its_name_and_by_no_word_of_the_clients() {
        for (line, counted) in [
            ("MAIL FROM:<lisa@x>\r\n", "MAIL"),
            ("rcpt TO:<doug@x>\r\n", "RCPT"),
            ("NOOP\r\n", "NOOP"),
            ("XFORWARD IDENT=x\r\n", "XFORWARD"),
            ("MAILS\r\n", OTHER),
            ("doug@x\r\n", OTHER),
            ("", OTHER),
        ] {
            assert_eq!(name(line.as_bytes()), counted, "{line}");
        }
    }

    fn from(line: &str) -> (String, Option<u64>) {
        match read(line) {
            Ok(Command::Mail(Mail { from, size })) => (from.address, size),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn each_command_is_read_in_any_case() {
        for (line, command) in [
            ("LHLO mx.example", Command::Lhlo),
            ("lhlo mx.example", Command::Lhlo),
            ("EHLO x", Command::Helo),
            ("HELO", Command::Helo),
            ("DATA", Command::Data),
            ("data ", Command::Data),
            ("RSET", Command::Rset),
            ("NOOP whatever", Command::Noop),
            ("VRFY doug", Command::Vrfy),
            ("HELP me", Command::Help),
            ("QuIt", Command::Quit),
            ("STARTTLS", Command::StartTls),
            ("BDAT 10 LAST", Command::Foreign),
            ("GET / HTTP/1.1", Command::Foreign),
            ("HEAD / HTTP/1.1", Command::Foreign),
            ("POST / HTTP/1.1", Command::Foreign),
            ("PUT / HTTP/1.1", Command::Foreign),
            ("PATCH / HTTP/1.1", Command::Foreign),
            ("DELETE / HTTP/1.1", Command::Foreign),
            ("OPTIONS * HTTP/1.1", Command::Foreign),
            ("CONNECT x:25 HTTP/1.1", Command::Foreign),
        ] {
            assert_eq!(read(line), Ok(command), "{line}");
        }
    }

    #[test]
    fn mail_and_rcpt_have_an_address_and_parameters() {
        assert_eq!(from("MAIL FROM:<lisa@gmail.com>"), ("lisa@gmail.com".into(), None));
        assert_eq!(from("mail from: <lisa@gmail.com> size=123"), ("lisa@gmail.com".into(), Some(123)));
        assert_eq!(from("MAIL FROM:<> SIZE=1 BODY=8BITMIME  SMTPUTF8"), (String::new(), Some(1)));
        assert_eq!(from("MAIL FROM:<a@b> body=7bit"), ("a@b".into(), None));
        assert_eq!(from("MAIL FROM:<a@b> SIZE=99999999999999999999"), ("a@b".into(), Some(u64::MAX)));
        assert_eq!(from("MAIL FROM:<MAILER-DAEMON>").0, "MAILER-DAEMON");
        assert!(matches!(read("RCPT TO:<doug@x>"), Ok(Command::Rcpt(path)) if path.address == "doug@x"));
        assert!(matches!(read("rcpt to: <postmaster>"), Ok(Command::Rcpt(path)) if path.address == "postmaster"));
    }

    #[test]
    fn what_is_no_command_is_distinguished() {
        use CommandError::*;
        for (line, error) in [
            ("", Unknown),
            (" ", Unknown),
            ("FOO", Unknown),
            ("MAILFROM:<a@b>", Unknown),
            ("MAIL:", Unknown),
            ("NOOP\nRSET", ControlCharacter),
            ("NO\rOP", ControlCharacter),
            ("NOOP\r", ControlCharacter),
            ("NOOP \0", ControlCharacter),
            ("LHLO", NoName),
            ("DATA now", Argument),
            ("RSET x", Argument),
            ("QUIT x", Argument),
            ("MAIL", MailSyntax),
            ("MAIL <a@b>", MailSyntax),
            ("MAIL FROM:a@b", MailSyntax),
            ("MAIL FROM:<a@b>SIZE=1", MailSyntax),
            ("MAIL FROM:<a@b", Sender),
            ("MAIL FROM:<a@b> SIZE", ParameterValue),
            ("MAIL FROM:<a@b> SIZE=", ParameterValue),
            ("MAIL FROM:<a@b> SIZE=-1", ParameterValue),
            ("MAIL FROM:<a@b> SIZE=+1", ParameterValue),
            ("MAIL FROM:<a@b> SIZE=999999999999999999999", ParameterValue),
            ("MAIL FROM:<a@b> BODY=BINARYMIME", ParameterValue),
            ("MAIL FROM:<a@b> SMTPUTF8=1", ParameterValue),
            ("MAIL FROM:<a@b> RET=FULL", Parameter),
            ("MAIL FROM:<a@b> AUTH=<>", Parameter),
            ("MAIL FROM:<a@b> =", Parameter),
            ("RCPT TO:<>", Recipient),
            ("RCPT TO:<a b@c>", Recipient),
            ("RCPT TO:a@b", RcptSyntax),
            ("RCPT FROM:<a@b>", RcptSyntax),
            ("RCPT TO:<a@b>x", RcptSyntax),
            ("RCPT TO:<a@b> NOTIFY=NEVER", Parameter),
            ("XFORWARD", Xforward),
            ("XFORWARD FOO=bar", Xforward),
        ] {
            assert_eq!(read(line), Err(error), "{line:?}");
            let class = if matches!(error, Sender | ControlCharacter) { '4' } else { '5' };
            let error_text = error.to_string();
            assert!(
                error_text.starts_with(class) && error_text[3..].starts_with(&format!(" {class}.")),
                "{error_text}"
            );
        }
    }
}
