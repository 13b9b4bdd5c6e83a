//! Receivers that answer as none should: each costs the notifier its own requests, no more than it may have at once, and no longer than a
//! request may take. Every try is written down, nothing is lost, and who answers well is notified everything.

use crate::notifications::event_delivery::{Notifier, PENDING, RETRY, happen, subscribe};
use crate::notifications::event_schema::hold_to_the_document;
use crate::support::database::Engine;
use crate::support::program::wait_until;
use crate::support::site_fixture::Scene;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

/// A path, and what is written down of a try there. Eight seconds are more than those who do answer need, on a machine that hangs
/// for a while.
const BAD_ANSWERS: [(&str, &str); 12] = [
    ("/silent", "no answer within 8 s"),
    ("/drips-its-head", "no answer within 8 s"),
    ("/drips-its-body", "no answer within 8 s"),
    ("/hangs-up", "HTTP: %"),
    ("/garbage", "HTTP: %"),
    ("/http2", "HTTP: %"),
    ("/no-tls", "not called: %"),
    ("/endless-head", "HTTP: %"),
    ("/redirect", "answered 301"),
    ("/moved", "answered 308"),
    ("/seconds", "answered 429"),
    ("/date", "answered 429"),
];
/// These take what they are notified.
const WELL: [&str; 4] = ["/closes", "/closes-unsaid", "/endless", "/interim"];

const EVENTS: usize = 6;

#[derive(Default)]
struct Seen {
    /// Of each path: requests so far, those under way, the most of these.
    requests: Mutex<BTreeMap<String, [usize; 3]>>,
    /// The connections of `/silent`.
    silent: Mutex<Vec<TcpStream>>,
    bodies: Mutex<BTreeSet<String>>,
}

on_two_engines!(receivers_that_misbehave_cost_their_own_requests_and_nothing_is_lost);

fn receivers_that_misbehave_cost_their_own_requests_and_nothing_is_lost(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    let (port, seen) = start();
    for path in BAD_ANSWERS.map(|(path, _)| path).into_iter().chain(WELL) {
        let scheme = if path == "/no-tls" { "https" } else { "http" };
        let described = [("description", &*format!("'{path}'"))];
        subscribe(&mut scene, ("all", ""), &format!("{scheme}://127.0.0.1:{port}{path}"), &described);
    }
    let config = Notifier::configuration(&mut scene, RETRY, "");
    let text = std::fs::read_to_string(&config).unwrap().replace("timeout = \"200s\"", "timeout = \"8s\"");
    std::fs::write(&config, text).unwrap();
    happen(&mut scene, EVENTS, "message.delivered");
    let notifier = Notifier::start_at(&config);
    let of = |path: &str| format!("(SELECT id FROM subscriptions WHERE description = '{path}')");
    for path in WELL {
        wait_until(&format!("{path} has all"), || {
            scene.database.count(&format!("{PENDING} WHERE subscription = {}", of(path))) == 0
        });
    }
    for (path, outcome) in BAD_ANSWERS {
        wait_until(&format!("{path}: {outcome}"), || {
            let tries = "SELECT count(*) FROM notification_attempts WHERE subscription =";
            scene.database.count(&format!("{tries} {} AND outcome LIKE '{outcome}'", of(path))) > 0
        });
    }
    wait_until("who does not answer rests", || {
        let later = if engine.is_postgres() {
            "now() + interval '40 minutes'"
        } else {
            "UTC_TIMESTAMP(6) + INTERVAL 40 MINUTE"
        };
        let resting = format!("SELECT count(*) FROM subscription_queues WHERE paused_until > {later}");
        scene.database.count(&resting) == BAD_ANSWERS.len() as i64
    });
    notifier.end();
    // Of what went wrong nothing else is said, and everything still waits.
    for (path, outcome) in BAD_ANSWERS {
        let expected = scene.database.texts(&format!(
            "SELECT DISTINCT outcome FROM notification_attempts WHERE subscription = {} AND outcome NOT LIKE '{outcome}'",
            of(path)
        ));
        assert_eq!(expected, [""; 0], "{path}");
        let left = scene.database.count(&format!("{PENDING} WHERE subscription = {}", of(path)));
        assert_eq!(left, EVENTS as i64, "{path}: nothing is lost");
    }
    hold_to_the_document(&seen.bodies.lock().unwrap(), &[]);
    let requests = seen.requests.lock().unwrap();
    assert!(!requests.contains_key("/canary"), "no redirect is followed");
    for (path, [came, _, most]) in requests.iter() {
        // Who goes on writing hears late that nobody listens any more.
        let knows = !path.contains("drips") && !path.contains("endless");
        assert!(!knows || *most <= 4, "{path}: {most} at once");
        let written = scene
            .database
            .count(&format!("SELECT count(*) FROM notification_attempts WHERE subscription = {}", of(path)));
        assert_eq!(written, *came as i64, "{path}: each try is written down, once");
    }
    for path in WELL {
        assert_eq!(requests[path][0], EVENTS, "{path}: each event was sent once");
    }
}

/// Raw answers, a thread for each connection.
fn start() -> (u16, Arc<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, seen) = (listener.local_addr().unwrap().port(), Arc::new(Seen::default()));
    let shared = Arc::clone(&seen);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let seen = Arc::clone(&shared);
            // One that is cut off is the notifier's end.
            std::thread::spawn(move || serve(stream.unwrap(), &seen).ok());
        }
    });
    (port, seen)
}

fn serve(mut stream: TcpStream, seen: &Seen) -> std::io::Result<()> {
    while let Some(path) = request(&mut stream, seen)? {
        let count =
            |change: &dyn Fn(&mut [usize; 3])| change(seen.requests.lock().unwrap().entry(path.clone()).or_default());
        let silent = if path == "/silent" { Some(silent_with(&stream, seen)?) } else { None };
        count(&|[came, now, most]| {
            *came += 1;
            *now = silent.unwrap_or(*now + 1);
            *most = (*most).max(*now);
        });
        let last = answer(&mut stream, &path);
        // A client that has read the end of the answer may ask again before this thread goes on.
        if silent.is_none() {
            count(&|[_, now, _]| *now -= 1);
        }
        let (last, goes_on) = last?;
        stream.write_all(&last)?;
        if !goes_on {
            break;
        }
    }
    Ok(())
}

/// How many are under way with this one. The other end closes each of them before it asks again, and the thread that has it may hear of
/// that later.
fn silent_with(stream: &TcpStream, seen: &Seen) -> std::io::Result<usize> {
    let mut all = seen.silent.lock().unwrap();
    all.retain(|one| recv(one, &mut [0], RecvFlags::PEEK | RecvFlags::DONTWAIT) == Err(Errno::AGAIN));
    all.push(stream.try_clone()?);
    Ok(all.len())
}

/// The path of the next one; `None`: there is none, or it is no HTTP.
fn request(stream: &mut TcpStream, seen: &Seen) -> std::io::Result<Option<String>> {
    let (mut read, mut byte) = (Vec::new(), [0]);
    while !read.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte)? == 0 {
            return Ok(None);
        }
        read.push(byte[0]);
        // A TLS handshake begins with its type, 22 (RFC 8446, section 5.1).
        if read[0] == 22 {
            stream.write_all(b"HTTP/1.1 400 this is no TLS\r\n\r\n")?;
            read.resize(517, 0);
            return Ok(None);
        }
    }
    let head = String::from_utf8_lossy(&read).to_lowercase();
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()?.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    seen.bodies.lock().unwrap().insert(String::from_utf8(body).expect("JSON is UTF-8"));
    Ok(head.split(' ').nth(1).map(str::to_owned))
}

/// Writes the answer but for its end: that, and whether the connection goes on after it.
fn answer(stream: &mut TcpStream, path: &str) -> std::io::Result<(Vec<u8>, bool)> {
    // Until the other end has had enough.
    let drip = |stream: &mut TcpStream| -> std::io::Result<_> {
        loop {
            stream.write_all(b"x")?;
            std::thread::sleep(Duration::from_secs(1));
        }
    };
    let text = match path {
        "/silent" => {
            stream.read_exact(&mut [0])?;
            return Ok((vec![], false));
        }
        "/drips-its-head" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nx-")?;
            return drip(stream);
        }
        "/drips-its-body" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10000\r\n\r\n")?;
            return drip(stream);
        }
        "/hangs-up" => return Ok((vec![], false)),
        "/garbage" => "220 mail.example.com ESMTP\r\n\r\n".into(),
        // Its preface: an empty frame of SETTINGS, and GOAWAY (RFC 9113, section 6).
        "/http2" => {
            let (settings, goaway) = ([0, 0, 0, 4, 0, 0, 0, 0, 0], [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
            return Ok(([&settings[..], &goaway].concat(), false));
        }
        "/endless-head" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\n")?;
            loop {
                stream.write_all(format!("x-more: {}\r\n", "x".repeat(1000)).as_bytes())?;
            }
        }
        "/redirect" => "HTTP/1.1 301 X\r\nlocation: /canary\r\ncontent-length: 0\r\n\r\n".into(),
        "/moved" => "HTTP/1.1 308 X\r\nlocation: /canary\r\ncontent-length: 0\r\n\r\n".into(),
        "/seconds" => "HTTP/1.1 429 X\r\nretry-after: 3600\r\ncontent-length: 0\r\n\r\n".into(),
        "/date" => {
            let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(3600));
            format!("HTTP/1.1 429 X\r\nretry-after: {date}\r\ncontent-length: 0\r\n\r\n")
        }
        "/closes" => "HTTP/1.1 204 X\r\nconnection: close\r\n\r\n".into(),
        // It looks as if another request might come.
        "/closes-unsaid" => "HTTP/1.1 204 X\r\n\r\n".into(),
        // A hundred megabytes, if anybody wants them.
        "/endless" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n")?;
            for _ in 0..1000 {
                stream.write_all(&[b'x'; 100_000])?;
            }
            return Ok((vec![], false));
        }
        // What comes before the answer is none (RFC 9110, section 15.2).
        "/interim" => "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 X\r\n\r\n".into(),
        _ => "HTTP/1.1 204 X\r\n\r\n".into(),
    };
    Ok((text.into_bytes(), !["/garbage", "/closes", "/closes-unsaid"].contains(&path)))
}
