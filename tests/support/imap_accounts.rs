//! An IMAP server that makes of the names in a login what a test tells it to. It has mailboxes that are numbers and no more, and
//! says afterwards who came, and what was appended to whose.
#![allow(dead_code, reason = "every test target uses a part of it")]

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use maildrop_command::base::endpoint::Endpoint;
use maildrop_command::base::secret::Secret;
use maildrop_command::imap::{Encryption, Mechanism, Settings};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The password of everybody.
pub const PASSWORD: &str = "service-secret";

/// Who logs in: SASL PLAIN's two names; LOGIN has the second only.
#[derive(Clone)]
pub struct Login {
    /// On whose behalf.
    pub acting_for: String,
    pub name: String,
    /// How many have come before.
    pub earlier: usize,
    /// How many connections there were so far.
    pub connected: Arc<AtomicUsize>,
}

/// What comes of a login.
pub enum Welcome {
    /// Not let in: `NO [LIMIT] too many`.
    Refused(&'static str),
    /// The connection ends.
    CutOff,
    /// No answer, for as long as the client waits.
    Silent,
    /// Let in, to mailboxes that stand so: UIDVALIDITY and UIDNEXT. Others can be made there, in an account `below …` only below
    /// INBOX, in one that is `full …` none, and in one that is `busy …` none at this moment.
    /// The server has an id of INBOX, or none.
    To { account: String, uid_validity: u32, uid_next: u32, id: Option<String> },
    /// Let in, and there are no mailboxes.
    Empty,
    /// Let in, and what is asked of a mailbox gets this answer.
    Answering(&'static str),
}

impl Welcome {
    pub fn to(account: &str, uid_validity: u32, uid_next: u32) -> Self {
        Self::To { account: account.into(), uid_validity, uid_next, id: None }
    }

    /// The same, with an id.
    pub fn with_id(account: &str, id: &str, uid_validity: u32, uid_next: u32) -> Self {
        Self::To { account: account.into(), uid_validity, uid_next, id: Some(id.into()) }
    }
}

/// The server.
pub struct Accounts {
    pub port: u16,
    heard: Arc<Mutex<Heard>>,
}

#[derive(Default)]
struct Heard {
    logins: Vec<String>,
    appended: Vec<String>,
    /// Whose, and what.
    made: Vec<(String, String)>,
    /// How often one was made, or should have been.
    creations: usize,
}

impl Accounts {
    /// A server that answers logins so. `rights` is what MYRIGHTS says; without it, it has no ACL.
    pub fn start(rights: Option<&'static str>, welcome: impl Fn(&Login) -> Welcome + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard = Arc::new(Mutex::new(Heard::default()));
        let (welcome, commands, connected) = (Arc::new(welcome), Arc::clone(&heard), Arc::<AtomicUsize>::default());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (welcome, commands, connected) =
                    (Arc::clone(&welcome), Arc::clone(&commands), Arc::clone(&connected));
                connected.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || converse(stream, rights, welcome.as_ref(), &commands, &connected));
            }
        });
        Self { port, heard }
    }

    /// As its clients reach it.
    pub fn settings(&self) -> Settings {
        Settings {
            address: Endpoint::Tcp { host: "127.0.0.1".into(), port: self.port },
            encryption: Encryption::None,
            ca_file: None,
            user: "service".into(),
            password: Secret::new(PASSWORD.into()),
            act_for_user: true,
            login: Mechanism::Plain,
            login_user: None,
        }
    }

    /// The names that logged in, or wanted to, `doug by service`; forgotten with this.
    pub fn logins(&self) -> Vec<String> {
        std::mem::take(&mut self.heard.lock().unwrap().logins)
    }

    /// Whose mailboxes were made, and are there still.
    pub fn made(&self) -> Vec<(String, String)> {
        self.heard.lock().unwrap().made.clone()
    }

    /// How often a mailbox was made, or should have been.
    pub fn creations(&self) -> usize {
        self.heard.lock().unwrap().creations
    }

    /// What was appended: `INBOX of service`.
    pub fn appended(&self) -> Vec<String> {
        self.heard.lock().unwrap().appended.clone()
    }
}

fn converse(
    stream: TcpStream,
    rights: Option<&str>,
    welcome: &dyn Fn(&Login) -> Welcome,
    heard: &Mutex<Heard>,
    connected: &Arc<AtomicUsize>,
) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut out = stream.try_clone().ok()?;
    let mut lines = BufReader::new(stream);
    let acl = if rights.is_some() { " ACL" } else { "" };
    let can = format!("[CAPABILITY IMAP4rev1 SASL-IR AUTH=PLAIN UIDPLUS LITERAL+{acl}]");
    out.write_all(format!("* OK {can} ready\r\n").as_bytes()).ok()?;
    let (mut mailboxes, mut its_id) = (None, None);
    let mut refusal = "NO [NONEXISTENT] no such mailbox";
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let (tag, command) = line.trim_end().split_once(' ')?;
        let words: Vec<&str> = command.split(' ').collect();
        let answer = match words.as_slice() {
            ["AUTHENTICATE" | "LOGIN", rest @ ..] => {
                let login = login(rest, &mut heard.lock().unwrap().logins, connected)?;
                match welcome(&login) {
                    Welcome::Refused(answer) => format!("{tag} {answer}\r\n"),
                    Welcome::CutOff => return None,
                    Welcome::Silent => {
                        let _ = std::io::copy(&mut lines, &mut std::io::sink());
                        return None;
                    }
                    Welcome::Empty => format!("{tag} OK {can} in\r\n"),
                    Welcome::Answering(answer) => {
                        refusal = answer;
                        format!("{tag} OK {can} in\r\n")
                    }
                    Welcome::To { account, uid_validity, uid_next, id } => {
                        its_id = id;
                        mailboxes = Some((account, uid_validity, uid_next));
                        format!("{tag} OK {can} in\r\n")
                    }
                }
            }
            ["LOGOUT"] => return None,
            ["CREATE", mailbox] if mailbox.contains("maildrop-check-") => {
                let (account, ..) = mailboxes.as_ref()?;
                heard.lock().unwrap().creations += 1;
                let is_below = mailbox.trim_matches('"').starts_with("INBOX.");
                let refused = account.starts_with("full ") || (account.starts_with("below ") && !is_below);
                if account.starts_with("busy ") {
                    format!("{tag} NO [UNAVAILABLE] later\r\n")
                } else if refused {
                    format!("{tag} NO [CANNOT] not here\r\n")
                } else {
                    heard.lock().unwrap().made.push((account.clone(), (*mailbox).to_owned()));
                    format!("{tag} OK done\r\n")
                }
            }
            ["DELETE", mailbox] => {
                let (account, ..) = mailboxes.as_ref()?;
                let gone = (account.clone(), (*mailbox).to_owned());
                heard.lock().unwrap().made.retain(|made| *made != gone);
                format!("{tag} OK done\r\n")
            }
            ["STATUS", mailbox, ..] if mailbox.contains("maildrop-check-") => {
                let (account, ..) = mailboxes.as_ref()?;
                match heard.lock().unwrap().made.contains(&(account.clone(), (*mailbox).to_owned())) {
                    true => format!("* STATUS {mailbox} (UIDVALIDITY 9 UIDNEXT 1)\r\n{tag} OK done\r\n"),
                    false => format!("{tag} NO [NONEXISTENT] no such mailbox\r\n"),
                }
            }
            ["STATUS", mailbox, "(X-GUID)"] => match &its_id {
                Some(id) => format!("* STATUS {mailbox} (X-GUID {id})\r\n{tag} OK done\r\n"),
                None => format!("{tag} BAD Invalid status item\r\n"),
            },
            ["STATUS", mailbox, ..] => match &mailboxes {
                Some((_, uid_validity, uid_next)) => {
                    format!("* STATUS {mailbox} (UIDVALIDITY {uid_validity} UIDNEXT {uid_next})\r\n{tag} OK done\r\n")
                }
                None => format!("{tag} {refusal}\r\n"),
            },
            ["MYRIGHTS", mailbox] => match rights {
                Some(_) if mailbox.contains("Sent") => format!("{tag} NO [NONEXISTENT] no such mailbox\r\n"),
                Some(rights) => format!("* MYRIGHTS {mailbox} {rights}\r\n{tag} OK done\r\n"),
                None => format!("{tag} BAD what?\r\n"),
            },
            ["APPEND", mailbox, .., literal] => {
                let length = literal.trim_start_matches('{').trim_end_matches("+}").parse::<usize>().ok()?;
                std::io::copy(&mut lines.by_ref().take(length as u64 + 2), &mut std::io::sink()).ok()?;
                let (account, uid_validity, uid_next) = mailboxes.as_mut()?;
                heard.lock().unwrap().appended.push(format!("{} of {account}", mailbox.trim_matches('"')));
                *uid_next += 1;
                format!("{tag} OK [APPENDUID {uid_validity} {}] done\r\n", *uid_next - 1)
            }
            _ => format!("{tag} OK done\r\n"),
        };
        out.write_all(answer.as_bytes()).ok()?;
    }
}

fn login(words: &[&str], logins: &mut Vec<String>, connected: &Arc<AtomicUsize>) -> Option<Login> {
    let (acting_for, name) = match words {
        ["PLAIN", response] => {
            let response = String::from_utf8(STANDARD.decode(response).ok()?).ok()?;
            let names: Vec<&str> = response.split('\0').collect();
            (names.first()?.to_string(), names.get(1)?.to_string())
        }
        [name, _] => (String::new(), name.trim_matches('"').to_owned()),
        _ => return None,
    };
    let earlier = logins.len();
    logins.push(if acting_for.is_empty() { name.clone() } else { format!("{acting_for} by {name}") });
    Some(Login { acting_for, name, earlier, connected: Arc::clone(connected) })
}
