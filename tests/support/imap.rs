//! A mail program that looks into a mailbox: a small raw IMAP client (RFC 9051), independent of the one under test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A session, logged in.
pub struct Imap {
    stream: BufReader<TcpStream>,
    tag: u32,
}

/// One message of a mailbox.
#[derive(Clone, Debug)]
pub struct InMailbox {
    pub uid: u32,
    /// As the server wrote them, such as `\Seen`.
    pub flags: Vec<String>,
    /// The whole message, as it is in the mailbox.
    pub content: Vec<u8>,
}

impl InMailbox {
    /// The value of the topmost field of this name, not unfolded; empty without one.
    pub fn field(&self, name: &str) -> String {
        let text = String::from_utf8_lossy(&self.content).into_owned();
        let header = text.split("\r\n\r\n").next().unwrap_or_default();
        let wanted = format!("{name}:").to_ascii_lowercase();
        let line = header.lines().find(|line| line.to_ascii_lowercase().starts_with(&wanted));
        line.map(|line| line[wanted.len()..].trim().to_owned()).unwrap_or_default()
    }
}

impl Imap {
    /// `address` with or without a port; 143 if without.
    pub fn login(address: &str, user: &str, password: &str) -> Self {
        let mut imap = Self::connect(address);
        imap.run(&format!("LOGIN \"{user}\" \"{password}\"")).unwrap_or_else(|no| panic!("{user} cannot log in: {no}"));
        imap
    }

    /// The same, before the login.
    pub fn connect(address: &str) -> Self {
        let address = if address.contains(':') { address.to_owned() } else { format!("{address}:143") };
        let stream =
            TcpStream::connect(&address).unwrap_or_else(|error| panic!("no IMAP server at {address}: {error}"));
        // Dovecot believes in a lock of the dead for up to two minutes.
        stream.set_read_timeout(Some(Duration::from_secs(240))).unwrap();
        let mut imap = Self { stream: BufReader::new(stream), tag: 0 };
        let greeting = imap.line();
        assert!(greeting.starts_with("* OK"), "{greeting:?}");
        imap
    }

    /// Every message of a mailbox, by UID; none if there is no such mailbox. Sets no flag.
    pub fn messages(&mut self, mailbox: &str) -> Vec<InMailbox> {
        if self.run(&format!("EXAMINE \"{mailbox}\"")).is_err() {
            return Vec::new();
        }
        let responses = self.run("UID FETCH 1:* (FLAGS BODY.PEEK[])").unwrap_or_else(|no| panic!("{mailbox}: {no}"));
        responses.into_iter().filter_map(in_mailbox).collect()
    }

    /// Runs a command: the untagged responses, each with the literals in it; or the line that refused it.
    pub fn run(&mut self, command: &str) -> Result<Vec<Response>, String> {
        let tag = self.begin(command);
        self.send(b"\r\n");
        let mut responses = Vec::new();
        let end = self.answer(&tag, &mut responses);
        if end.starts_with("OK") { Ok(responses) } else { Err(end) }
    }

    /// Sends a command under a tag of its own, without the CRLF at its end.
    pub fn begin(&mut self, command: &str) -> String {
        self.tag += 1;
        let tag = format!("t{} ", self.tag);
        self.send(format!("{tag}{command}").as_bytes());
        tag
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    /// The answer to the command of this tag; what comes before it goes to `responses`.
    pub fn answer(&mut self, tag: &str, responses: &mut Vec<Response>) -> String {
        loop {
            let response = self.response();
            match response.text.strip_prefix(tag) {
                Some(end) => return end.to_owned(),
                None => responses.push(response),
            }
        }
    }

    /// The next that the server says, whatever it is about.
    pub fn next_response(&mut self) -> String {
        self.response().text
    }

    /// Says that nothing more will come, and hears the server out until it hangs up.
    pub fn hang_up(mut self) -> String {
        // A reset instead of a good-bye is an end, too, and may have come already.
        let _ = self.stream.get_mut().shutdown(std::net::Shutdown::Write);
        let mut rest = Vec::new();
        let _ = self.stream.read_to_end(&mut rest);
        String::from_utf8_lossy(&rest).into_owned()
    }

    /// The port at this end.
    pub fn port(&self) -> u16 {
        self.stream.get_ref().local_addr().unwrap().port()
    }

    fn response(&mut self) -> Response {
        let mut response = Response { text: String::new(), literals: Vec::new() };
        loop {
            let line = self.line();
            response.text.push_str(&line);
            let length =
                line.strip_suffix('}').and_then(|line| line.rsplit_once('{')).and_then(|(_, n)| n.parse().ok());
            let Some(length) = length else { return response };
            let mut literal = vec![0; length];
            self.stream.read_exact(&mut literal).unwrap();
            response.literals.push(literal);
        }
    }

    fn line(&mut self) -> String {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line).unwrap();
        assert!(line.ends_with(b"\r\n"), "the IMAP server went away: {:?}", String::from_utf8_lossy(&line));
        line.truncate(line.len() - 2);
        String::from_utf8(line).expect("a line in ASCII")
    }
}

/// An untagged response: its text, with each literal's bytes taken out of it.
#[derive(Debug)]
pub struct Response {
    pub text: String,
    pub literals: Vec<Vec<u8>>,
}

/// `* 1 FETCH (UID 7 FLAGS (\Seen) BODY[] {…}…)`; nothing for a response of another kind.
fn in_mailbox(response: Response) -> Option<InMailbox> {
    let text = response.text;
    let after = |what: &str| text.split_once(what).map(|(_, rest)| rest);
    let content = response.literals.into_iter().next()?;
    let uid = after("UID ")?.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
    let flags = after("FLAGS (")?.split_once(')')?.0.split_whitespace().map(str::to_owned).collect();
    Some(InMailbox { uid, flags, content })
}
