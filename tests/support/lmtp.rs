//! A client of LMTP on a unix socket, as small as it can be (RFC 2033).
#![allow(dead_code, reason = "every test target uses a part of it")]

use crate::support::program::PATIENCE;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// A session in which the greeting has been exchanged.
pub struct Lmtp(BufReader<UnixStream>);

impl Lmtp {
    #[track_caller]
    pub fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap_or_else(|error| panic!("{}: {error}", socket.display()));
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut lmtp = Self(BufReader::new(stream));
        let greeting = lmtp.reply();
        assert!(greeting.starts_with("220 "), "{greeting}");
        assert_eq!(&lmtp.say("LHLO sender.example")[..3], "250");
        lmtp
    }

    /// Sends a command, and waits for its reply: the last line of it.
    #[track_caller]
    pub fn say(&mut self, command: &str) -> String {
        self.0.get_mut().write_all(format!("{command}\r\n").as_bytes()).unwrap();
        self.reply()
    }

    /// Gives a message, up to its closing dot: as many replies as there are recipients come of it.
    #[track_caller]
    pub fn give(&mut self, sender: &str, recipients: &[String], message: &str) {
        self.accepts(&format!("MAIL FROM:<{sender}> BODY=8BITMIME"), "250");
        for recipient in recipients {
            self.accepts(&format!("RCPT TO:<{recipient}>"), "250");
        }
        self.accepts("DATA", "354");
        self.0.get_mut().write_all(data(message).as_bytes()).unwrap();
    }

    /// Gives a message, and waits for all of its replies.
    #[track_caller]
    pub fn deliver(&mut self, sender: &str, recipients: &[String], message: &str) -> Vec<String> {
        self.give(sender, recipients, message);
        self.replies(recipients.len())
    }

    /// So many replies.
    #[track_caller]
    pub fn replies(&mut self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.reply()).collect()
    }

    #[track_caller]
    fn accepts(&mut self, command: &str, code: &str) {
        let reply = self.say(command);
        assert!(reply.starts_with(code), "{command}: {reply}");
    }

    #[track_caller]
    fn reply(&mut self) -> String {
        self.try_reply().unwrap()
    }

    fn try_reply(&mut self) -> std::io::Result<String> {
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line)?;
            let text = line.strip_suffix("\r\n").ok_or_else(|| std::io::Error::other(format!("no reply: {line:?}")))?;
            if text.as_bytes().get(3) != Some(&b'-') {
                return Ok(text.to_owned());
            }
        }
    }

    /// Whether the other side has closed the connection, or closes it before it says anything more.
    pub fn is_closed(&mut self) -> bool {
        let mut line = String::new();
        self.0.read_line(&mut line).map_or(true, |length| length == 0)
    }
}

/// Why there are no replies.
pub enum Failed {
    /// Nobody listens.
    Connecting,
    /// The session ended, or the server deferred the message before its data.
    Later,
}

/// Tries to deliver once at a server that may end at any moment: all the replies, or none.
pub fn attempt(socket: &Path, sender: &str, recipients: &[String], message: &str) -> Result<Vec<String>, Failed> {
    let stream = UnixStream::connect(socket).map_err(|_| Failed::Connecting)?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut lmtp = Lmtp(BufReader::new(stream));
    let mut talk = || -> Result<Vec<String>, std::io::Error> {
        let wanted =
            |reply: String, code| if reply.starts_with(code) { Ok(()) } else { Err(std::io::Error::other(reply)) };
        wanted(lmtp.try_reply()?, "220 ")?;
        let envelope = recipients.iter().map(|recipient| (format!("RCPT TO:<{recipient}>"), "250"));
        let begin = [("LHLO sender.example".to_owned(), "250"), (format!("MAIL FROM:<{sender}> BODY=8BITMIME"), "250")];
        for (command, code) in begin.into_iter().chain(envelope).chain([("DATA".into(), "354")]) {
            lmtp.0.get_mut().write_all(format!("{command}\r\n").as_bytes())?;
            wanted(lmtp.try_reply()?, code)?;
        }
        lmtp.0.get_mut().write_all(data(message).as_bytes())?;
        recipients.iter().map(|_| lmtp.try_reply()).collect()
    };
    talk().map_err(|_| Failed::Later)
}

/// The lines of a message, to its closing dot.
fn data(message: &str) -> String {
    let mut data = String::new();
    for line in message.lines() {
        let stuffing = if line.starts_with('.') { "." } else { "" };
        data += &format!("{stuffing}{line}\r\n");
    }
    data + ".\r\n"
}
