//! Receivers of notifications, all on one port and in one thread of their own, so that hardly anything of them is measured: what they
//! answer, and after how long, is in the path, `/STATUS/MILLISECONDS/NUMBER`. They note what came, and when.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A request that came.
#[derive(Clone, Copy, Debug)]
pub struct Came {
    /// The number of its path.
    pub receiver: u32,
    /// The event's id, `webhook-id` without its prefix.
    pub event: u128,
    pub arrived: Instant,
    /// When it was answered; `None`: not yet, or nobody was there any more.
    pub answered: Option<Instant>,
    pub status: u16,
}

/// Receivers, for as long as this process lives.
pub struct Receivers {
    pub port: u16,
    noted: Arc<Noted>,
}

#[derive(Default)]
struct Noted {
    came: Mutex<Vec<Came>>,
    bodies: Mutex<BTreeSet<String>>,
}

/// So many bodies are kept: enough to see what they are like, and nothing beside what is measured.
const BODIES_KEPT: usize = 500;

impl Receivers {
    pub fn start() -> Self {
        let noted = Arc::new(Noted::default());
        let shared = Arc::clone(&noted);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let noted = Arc::clone(&shared);
                    // One that is cut off is the client's end.
                    tokio::spawn(async move { serve(stream, &noted).await.ok() });
                }
            });
        });
        Self { port, noted }
    }

    /// Where a receiver is that answers with this status after so long.
    pub fn url(&self, status: u16, after: Duration, receiver: u32) -> String {
        format!("http://127.0.0.1:{}/{status}/{}/{receiver}", self.port, after.as_millis())
    }

    /// Looks at all that has come.
    pub fn look<T>(&self, at: impl FnOnce(&[Came]) -> T) -> T {
        at(&self.noted.came.lock().unwrap())
    }

    /// The first bodies that came, each once.
    pub fn bodies(&self) -> BTreeSet<String> {
        self.noted.bodies.lock().unwrap().clone()
    }

    /// How many came to these receivers.
    pub fn count(&self, receivers: std::ops::Range<u32>) -> usize {
        self.look(|came| came.iter().filter(|one| receivers.contains(&one.receiver)).count())
    }

    /// Waits until all is noted that processes have sent that are no more: one thread serves all connections in turn, and a connection
    /// that is opened now comes after them.
    pub fn all_is_noted(&self) {
        for _ in 0..2 {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
            stream.write_all(b"POST /204/0/0 HTTP/1.1\r\ncontent-length: 0\r\n\r\n").unwrap();
            stream.read_exact(&mut [0; 12]).unwrap();
        }
    }
}

async fn serve(mut stream: tokio::net::TcpStream, noted: &Noted) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut read = Vec::new();
    loop {
        let head = loop {
            if let Some(end) = memchr::memmem::find(&read, b"\r\n\r\n") {
                break end + 4;
            }
            if stream.read_buf(&mut read).await? == 0 {
                return Ok(());
            }
        };
        let (arrived, text) = (Instant::now(), String::from_utf8_lossy(&read[..head]).into_owned());
        let header = |wanted: &str| {
            let mut headers = text.lines().filter_map(|line| line.split_once(": "));
            headers.find_map(|(name, value)| name.eq_ignore_ascii_case(wanted).then_some(value))
        };
        let length: usize = header("content-length").and_then(|length| length.parse().ok()).unwrap_or_default();
        while read.len() < head + length {
            if stream.read_buf(&mut read).await? == 0 {
                return Ok(());
            }
        }
        let mut path = text.split(' ').nth(1).unwrap_or_default().split('/').skip(1);
        let mut number = || path.next().and_then(|part| part.parse::<u32>().ok()).expect("/STATUS/MILLISECONDS/NUMBER");
        let (status, after, receiver) = (number() as u16, Duration::from_millis(number().into()), number());
        let event = header("webhook-id").and_then(|id| u128::from_str_radix(id.strip_prefix("evt_")?, 16).ok());
        let place = event.map(|event| {
            let mut came = noted.came.lock().unwrap();
            came.push(Came { receiver, event, arrived, answered: None, status });
            came.len() - 1
        });
        if event.is_some() {
            let mut bodies = noted.bodies.lock().unwrap();
            if bodies.len() < BODIES_KEPT {
                bodies.insert(String::from_utf8_lossy(&read[head..head + length]).into_owned());
            }
        }
        read.drain(..head + length);
        if !after.is_zero() {
            tokio::time::sleep(after).await;
        }
        let length = if status == 204 { "" } else { "content-length: 0\r\n" };
        // Noted first: who has the answer may look at once.
        if let Some(place) = place
            && let Some(one) = noted.came.lock().unwrap().get_mut(place)
        {
            one.answered = Some(Instant::now());
        }
        stream.write_all(format!("HTTP/1.1 {status} X\r\n{length}\r\n").as_bytes()).await?;
    }
}
