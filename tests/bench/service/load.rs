//! Clients of LMTP that give messages as fast as they are taken, or at a given rate.

use super::processor::Used;
use crate::figures::{Series, milliseconds};
use crate::site::{STRANGER, message, with_crlf};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// As long as a reply may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// A session in which the greeting has been exchanged.
pub struct Session(BufReader<UnixStream>);

impl Session {
    pub fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap_or_else(|error| panic!("{}: {error}", socket.display()));
        stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        let mut session = Self(BufReader::new(stream));
        session.replies(1);
        session.write(b"LHLO bench.example\r\n");
        session.replies(1);
        session
    }

    /// Gives a message whose line ends are CRLF, and waits for its replies; the commands in one packet, as lmtp(8) sends them.
    pub fn deliver(&mut self, recipients: &[&str], message: &[u8]) -> Vec<String> {
        self.give(recipients, message);
        self.replies(recipients.len())
    }

    pub fn give(&mut self, recipients: &[&str], message: &[u8]) {
        let mut commands = format!("MAIL FROM:<{STRANGER}>\r\n");
        for recipient in recipients {
            commands += &format!("RCPT TO:<{recipient}>\r\n");
        }
        self.write(format!("{commands}DATA\r\n").as_bytes());
        for reply in self.replies(recipients.len() + 2) {
            assert!(reply.starts_with('2') || reply.starts_with("354"), "{reply}");
        }
        self.write(message);
        self.write(b".\r\n");
    }

    pub fn replies(&mut self, count: usize) -> Vec<String> {
        let mut replies = Vec::with_capacity(count);
        while replies.len() < count {
            let mut line = String::new();
            self.0.read_line(&mut line).expect("a reply");
            assert!(!line.is_empty(), "the connection was closed");
            if line.as_bytes().get(3) != Some(&b'-') {
                replies.push(line.trim_end().to_owned());
            }
        }
        replies
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).expect("it reads");
    }
}

/// Who is given messages, and how.
#[derive(Clone, Debug)]
pub struct Load {
    pub socket: PathBuf,
    /// As RCPT names them.
    pub recipients: Vec<String>,
    /// So many of them have each message, the next ones in turn.
    pub each: usize,
    pub connections: usize,
    /// Of one message, in bytes.
    pub size: usize,
}

/// What a number of messages took.
pub struct Spent {
    pub wall: Duration,
    pub used: Used,
    /// From the closing dot to the last reply, or, at a given rate, from when the message was due.
    pub latencies: Vec<Duration>,
}

impl Spent {
    /// How long each message took.
    pub fn milliseconds(&self) -> Series {
        self.latencies.iter().map(|span| milliseconds(*span)).collect()
    }
}

impl Load {
    /// Gives so many messages, each connection one after the other.
    pub fn give(&self, messages: usize) -> Spent {
        self.run(messages, None)
    }

    /// Gives so many messages at so many per second, whether or not those before have been taken; there are connections enough.
    pub fn give_at(&self, per_second: f64, messages: usize) -> Spent {
        self.run(messages, Some(Duration::from_secs_f64(1.0 / per_second)))
    }

    fn run(&self, messages: usize, pause: Option<Duration>) -> Spent {
        // Made beforehand: it is not what is measured.
        let texts: Vec<Vec<u8>> = (0..messages).map(|_| with_crlf(&message(STRANGER, self.size))).collect();
        let sessions: Vec<Session> = (0..self.connections).map(|_| Session::connect(&self.socket)).collect();
        let (next, together) = (AtomicUsize::new(0), Barrier::new(self.connections + 1));
        let (next, together, texts) = (&next, &together, &texts);
        thread::scope(|scope| {
            let clients: Vec<_> = sessions
                .into_iter()
                .map(|mut session| {
                    scope.spawn(move || {
                        let mut latencies = Vec::new();
                        together.wait();
                        let began = Instant::now();
                        loop {
                            let number = next.fetch_add(1, Ordering::Relaxed);
                            let Some(text) = texts.get(number) else { return latencies };
                            let due = pause.map(|pause| began + pause * u32::try_from(number).expect("a number"));
                            if let Some(due) = due {
                                thread::sleep(due.saturating_duration_since(Instant::now()));
                            }
                            let from = due.unwrap_or_else(Instant::now);
                            self.deliver(&mut session, number, text);
                            latencies.push(from.elapsed());
                        }
                    })
                })
                .collect();
            let before = Used::now();
            together.wait();
            let began = Instant::now();
            let latencies = clients.into_iter().flat_map(|client| client.join().expect("a client")).collect();
            Spent { wall: began.elapsed(), used: Used::now().since(&before), latencies }
        })
    }

    fn deliver(&self, session: &mut Session, number: usize, text: &[u8]) {
        let all = self.recipients.len();
        let to: Vec<&str> =
            (0..self.each).map(|at| self.recipients[(number * self.each + at) % all].as_str()).collect();
        for reply in session.deliver(&to, text) {
            assert!(reply.starts_with("250 "), "{reply}");
        }
    }
}
