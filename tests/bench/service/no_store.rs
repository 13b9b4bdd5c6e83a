//! An IMAP server that stores nothing: it says that it has, and counts. For what is seen of the service after so many messages that
//! a real server would take most of the time, and most of the disk.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::collections::HashMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

const CAPABILITIES: &str = "IMAP4rev1 SASL-IR AUTH=PLAIN LITERAL+ UIDPLUS";

/// How many messages each mailbox has been given.
type Counts = Arc<Mutex<HashMap<String, u64>>>;

/// Lets it listen at this socket, for as long as the bench runs. Only these users are let in.
pub fn listen(socket: &Path, users: Vec<String>) {
    let listener = UnixListener::bind(socket).expect("a folder of ours");
    fs::set_permissions(socket, fs::Permissions::from_mode(0o666)).expect("a socket of ours");
    let (users, counts) = (Arc::new(users), Counts::default());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (users, counts) = (users.clone(), counts.clone());
            thread::spawn(move || {
                // The client has gone.
                let _ = serve(stream.expect("a client"), &users, &counts);
            });
        }
    });
}

fn serve(stream: UnixStream, users: &[String], counts: &Counts) -> io::Result<()> {
    let mut reader = BufReader::with_capacity(64 << 10, stream.try_clone()?);
    let say = |lines: String| (&stream).write_all(lines.as_bytes());
    say(format!("* OK [CAPABILITY {CAPABILITIES}] It stores nothing.\r\n"))?;
    let (mut user, mut line) = (0, String::new());
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let (tag, command) = line.trim_end().split_once(' ').unwrap_or_default();
        let words: Vec<&str> = command.split(' ').collect();
        match words.as_slice() {
            ["CAPABILITY"] => say(format!("* CAPABILITY {CAPABILITIES}\r\n{tag} OK\r\n"))?,
            ["AUTHENTICATE", "PLAIN", response] => {
                let response = STANDARD.decode(response).unwrap_or_default();
                let authorized = response.split(|byte| *byte == 0).next().unwrap_or_default();
                match users.iter().position(|known| known.as_bytes() == authorized) {
                    Some(position) => {
                        user = position;
                        say(format!("{tag} OK [CAPABILITY {CAPABILITIES}] Logged in\r\n"))?;
                    }
                    None => say(format!("{tag} NO [AUTHORIZATIONFAILED] nobody of that name\r\n"))?,
                }
            }
            ["STATUS", mailbox, ..] => {
                let next = counts.lock().expect("no panic").get(&key(user, mailbox)).copied().unwrap_or_default() + 1;
                let expected = format!("MESSAGES {} UIDNEXT {next} UIDVALIDITY {}", next - 1, user + 1);
                say(format!("* STATUS {mailbox} ({expected})\r\n{tag} OK\r\n"))?;
            }
            ["APPEND", mailbox, .., literal] => {
                let size =
                    literal.trim_start_matches('{').trim_end_matches("+}").parse().expect("a literal of LITERAL+");
                io::copy(&mut (&mut reader).take(size), &mut io::sink())?;
                reader.read_line(&mut String::new())?;
                let uid = {
                    let mut counts = counts.lock().expect("no panic");
                    let count = counts.entry(key(user, mailbox)).or_default();
                    *count += 1;
                    *count
                };
                say(format!("{tag} OK [APPENDUID {} {uid}] Forgotten\r\n", user + 1))?;
            }
            ["LOGOUT"] => say(format!("* BYE\r\n{tag} OK\r\n"))?,
            ["NOOP"] => say(format!("{tag} OK\r\n"))?,
            _ => say(format!("{tag} BAD it knows no such command\r\n"))?,
        }
    }
}

fn key(user: usize, mailbox: &str) -> String {
    format!("{user} {}", mailbox.trim_matches('"'))
}
