//! A receiver of notifications on this machine: HTTP/1.1, a thread for each connection. At its end all that came is held to the API's
//! document. What it answers is the path's:
//!
//! | path | answer |
//! |---|---|
//! | `/quick…` | 204, and the challenge to a question |
//! | `/slow` | 204, once [`Receiver::release`] was called |
//! | `/asked` | 200 with the challenge, once [`Receiver::release`] was called |
//! | `/some` | 204; of each fourth event once [`Receiver::release`] was called |
//! | `/dead` | 503 |
//! | `/gone` | 410 |
//! | `/broken` | 500, until [`Receiver::release`] was called; then as `/quick` |
//! | `/once` | 500 to the first try of each third event, else 204 |
//! | `/mute` | 200 with another challenge to a question |
//! | `/late` | 204, after a while |
//! | `/dying` | 204; after [`Receiver::die`] none, until [`Receiver::release`] was called |

use crate::notifications::event_schema::hold_to_the_document;
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// One request.
#[derive(Clone, Debug)]
pub struct Request {
    pub path: String,
    pub headers: HashMap<String, String>,
    pub body: String,
}

impl Request {
    pub fn id(&self) -> &str {
        &self.headers["webhook-id"]
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// The event's place in the order of all.
    pub fn sequence(&self) -> i64 {
        self.json()["data"]["copy"]["sequence"].as_i64().unwrap()
    }
}

#[derive(Default)]
struct Seen {
    requests: Mutex<Vec<(Request, bool)>>,
    released: Mutex<bool>,
    dead: AtomicBool,
    changed: Condvar,
}

impl Seen {
    fn wait_until_released(&self) {
        let mut released = self.released.lock().unwrap();
        while !*released {
            released = self.changed.wait(released).unwrap();
        }
    }
}

pub struct Receiver {
    pub port: u16,
    seen: Arc<Seen>,
}

impl Receiver {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Seen::default());
        let shared = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let seen = Arc::clone(&shared);
                // One that is cut off is the notifier's end.
                std::thread::spawn(move || serve(stream.unwrap(), &seen).ok());
            }
        });
        Self { port, seen }
    }

    /// The URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// What has come to a path so far, whether it was answered or not.
    pub fn came(&self, path: &str) -> Vec<Request> {
        let requests = self.seen.requests.lock().unwrap();
        requests.iter().filter(|(request, _)| request.path == path).map(|(request, _)| request.clone()).collect()
    }

    /// Those that were answered with 2xx.
    pub fn taken(&self, path: &str) -> Vec<Request> {
        let requests = self.seen.requests.lock().unwrap();
        let taken = requests.iter().filter(|(request, taken)| request.path == path && *taken);
        taken.map(|(request, _)| request.clone()).collect()
    }

    /// `/dying` hangs up from now on, on each request.
    pub fn die(&self) {
        self.seen.dead.store(true, Ordering::SeqCst);
    }

    /// `/slow` answers from now on, and `/broken` and `/dying` as they ought to.
    pub fn release(&self) {
        self.seen.dead.store(false, Ordering::SeqCst);
        *self.seen.released.lock().unwrap() = true;
        self.seen.changed.notify_all();
    }
}

/// What came is as the API's document says, whatever the test is about.
impl Drop for Receiver {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let bodies: BTreeSet<String> =
            self.seen.requests.lock().unwrap().iter().map(|(request, _)| request.body.clone()).collect();
        if !bodies.is_empty() {
            hold_to_the_document(&bodies, &[]);
        }
    }
}

fn serve(stream: TcpStream, seen: &Seen) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        assert!(line.starts_with("POST "), "{line}");
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        let mut body = vec![0; headers["content-length"].parse().unwrap()];
        reader.read_exact(&mut body)?;
        let request = Request { path, headers, body: String::from_utf8(body).unwrap() };
        let at = {
            let mut requests = seen.requests.lock().unwrap();
            requests.push((request.clone(), false));
            requests.len() - 1
        };
        if request.path == "/dying" && seen.dead.load(Ordering::SeqCst) {
            return Ok(());
        }
        let (status, answer) = answer(&request, seen);
        if status < 300 {
            seen.requests.lock().unwrap()[at].1 = true;
        }
        write!(stream, "HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n{answer}", answer.len())?;
    }
}

fn answer(request: &Request, seen: &Seen) -> (u16, String) {
    let challenge = request.json()["data"]["challenge"].clone();
    match request.path.split('?').next().unwrap_or_default() {
        path @ ("/slow" | "/some") if path == "/slow" || request.sequence() % 4 == 0 => {
            seen.wait_until_released();
            (204, String::new())
        }
        "/asked" => {
            seen.wait_until_released();
            (200, serde_json::json!({ "challenge": challenge }).to_string())
        }
        "/late" => {
            std::thread::sleep(Duration::from_millis(50));
            (204, String::new())
        }
        "/broken" if !*seen.released.lock().unwrap() => (500, "no room".into()),
        "/dead" => (503, String::new()),
        "/gone" => (410, String::new()),
        "/mute" => (200, r#"{"challenge":"another"}"#.into()),
        "/once" if request.sequence() % 3 == 0 && request.headers["maildrop-attempt"] == "1" => (500, "not now".into()),
        _ if challenge.is_string() => (200, serde_json::json!({ "challenge": challenge }).to_string()),
        _ => (204, String::new()),
    }
}
