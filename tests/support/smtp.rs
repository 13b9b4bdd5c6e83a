//! A sending MTA, as small as it can be (RFC 5321).

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A session in which the greeting has been exchanged.
pub struct Smtp(BufReader<TcpStream>);

/// A reply: its code, and the text of its last line.
pub type Reply = (u16, String);

impl Smtp {
    pub fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap_or_else(|error| panic!("no SMTP server at {address}: {error}"));
        stream.set_read_timeout(Some(Duration::from_secs(240))).unwrap();
        let mut smtp = Self(BufReader::new(stream));
        let greeting = smtp.reply();
        assert_eq!(greeting.0, 220, "{greeting:?}");
        assert_eq!(smtp.say("EHLO sender.example").0, 250);
        smtp
    }

    /// Sends a command, or the dot that ends a message, and waits for the reply.
    pub fn say(&mut self, line: &str) -> Reply {
        self.0.get_mut().write_all(format!("{line}\r\n").as_bytes()).unwrap();
        self.reply()
    }

    /// Gives the envelope and the content (CRLF, 8 bits), all but the closing dot: `say(".")`.
    pub fn give(&mut self, sender: &str, recipients: &[String], message: &[u8]) {
        let reply = self.say(&format!("MAIL FROM:<{sender}> BODY=8BITMIME"));
        assert_eq!(reply.0, 250, "{reply:?}");
        self.give_content(recipients, message);
    }

    /// The same, once MAIL has been said.
    pub fn give_content(&mut self, recipients: &[String], message: &[u8]) {
        for recipient in recipients {
            let reply = self.say(&format!("RCPT TO:<{recipient}>"));
            assert_eq!(reply.0, 250, "{recipient}: {reply:?}");
        }
        let reply = self.say("DATA");
        assert_eq!(reply.0, 354, "{reply:?}");
        let mut stuffed = Vec::with_capacity(message.len());
        for line in message.split_inclusive(|byte| *byte == b'\n') {
            if line.starts_with(b".") {
                stuffed.push(b'.');
            }
            stuffed.extend_from_slice(line);
        }
        self.0.get_mut().write_all(&stuffed).unwrap();
    }

    /// Gives content that has no line beginning with a dot, after DATA was answered.
    pub fn say_more(&mut self, content: &str) {
        self.0.get_mut().write_all(content.as_bytes()).unwrap();
    }

    /// Ends the message; Postfix's queue id.
    pub fn end(&mut self) -> String {
        let reply = self.say(".");
        match reply.1.split_once("queued as ") {
            Some((_, id)) if reply.0 == 250 => id.to_owned(),
            _ => panic!("the message was not taken: {reply:?}"),
        }
    }

    fn reply(&mut self) -> Reply {
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            let code =
                line.get(..3).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("not a reply: {line:?}"));
            if line.as_bytes().get(3) != Some(&b'-') {
                return (code, line.get(4..).unwrap_or_default().trim_end().to_owned());
            }
        }
    }
}
