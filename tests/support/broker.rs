//! The service's broker, played by a test: it hears what a client hands over, and answers what the test says.
#![allow(dead_code, reason = "every test target uses a part of it")]

use crate::program::PATIENCE;
use maildrop_command::delivery::Verdict;
use maildrop_command::protocol::zmtp::{Blocking, BlockingError, Settings, SocketType, from_client, to_client};
use maildrop_command::protocol::{DatabaseState, Header, Logins, MARK, Reply, Request};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Instant;
use uuid::Uuid;

/// Where clients connect to.
pub struct Broker {
    socket: PathBuf,
    _folder: Option<tempfile::TempDir>,
    listener: UnixListener,
}

/// One client's connection.
pub struct Client(Blocking);

fn patience() -> Instant {
    Instant::now() + PATIENCE
}

impl Broker {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let broker = Self::at(folder.path());
        Self { _folder: Some(folder), ..broker }
    }

    /// In the runtime directory of a service.
    pub fn at(folder: &Path) -> Self {
        let socket = folder.join("clients.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        Self { socket, _folder: None, listener }
    }

    pub fn socket(&self) -> PathBuf {
        self.socket.clone()
    }

    /// The next client that has not hung up by then: it waits for one try for no more than 2.5 s, and then makes the next.
    pub fn accept(&self) -> Client {
        std::iter::repeat_with(|| self.accept_once()).flatten().next().unwrap()
    }

    /// The next client. `None`: it has hung up by then.
    pub fn accept_once(&self) -> Option<Client> {
        let longest = 64 << 20;
        let settings = Settings {
            socket_type: SocketType::Router,
            identity: None,
            longest_frame: longest,
            most_frames: 4,
            longest_message: longest,
        };
        match Blocking::handshake(self.listener.accept().unwrap().0, settings, patience()) {
            Ok(connection) => Some(Client(connection)),
            Err(BlockingError::Closed) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Whether nobody has come since the last client, not even one that has hung up.
    pub fn nobody_else_came(&self) -> bool {
        self.listener.set_nonblocking(true).unwrap();
        let came = self.listener.accept();
        self.listener.set_nonblocking(false).unwrap();
        came.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }

    /// The next client, up to the message that it hands over, the word that it has arrived, and Go. One that has hung up meanwhile, since
    /// this was too late for it, makes its next try.
    pub fn until_go(&self) -> (Client, Request) {
        loop {
            let mut client = self.accept();
            let request = match client.hear() {
                Some((Header::Deliver(request), _)) => request,
                None => continue,
                other => panic!("no message: {other:?}"),
            };
            client.say(&Header::Received { id: request.id });
            match client.hear() {
                Some((Header::Go { id }, rest)) if id == request.id && rest.is_empty() => return (client, request),
                None => {}
                other => panic!("no Go: {other:?}"),
            }
        }
    }
}

impl Client {
    /// What it says next, and the bytes that follow. `None`: it has hung up.
    #[track_caller]
    pub fn hear(&mut self) -> Option<(Header, Vec<u8>)> {
        let body = match self.0.receive(patience()) {
            Ok(message) => from_client(message.expect("it says something")).unwrap(),
            Err(BlockingError::Closed) => return None,
            Err(error) => panic!("{error}"),
        };
        let (header, message) = Header::read(&body).unwrap();
        Some((header, message.to_vec()))
    }

    /// The message that it hands over.
    #[track_caller]
    pub fn deliver(&mut self) -> (Request, Vec<u8>) {
        match self.hear() {
            Some((Header::Deliver(request), message)) => (request, message),
            other => panic!("no message: {other:?}"),
        }
    }

    /// Says that the message has arrived, and hears that it may begin.
    #[track_caller]
    pub fn receive_and_go(&mut self, request: &Request) {
        self.say(&Header::Received { id: request.id });
        assert_eq!(self.hear(), Some((Header::Go { id: request.id }, Vec::new())));
    }

    pub fn say(&mut self, header: &Header) {
        self.say_bytes(&header.frame(b"").unwrap());
    }

    /// Any bytes as the body.
    pub fn say_bytes(&mut self, body: &[u8]) {
        self.say_frames(&to_client(body));
    }

    /// Any frames. It may have hung up.
    pub fn say_frames(&mut self, frames: &[&[u8]]) {
        let _ = self.0.send(frames, patience());
    }

    /// What became of it.
    pub fn reply(&mut self, id: Uuid, verdicts: &[Verdict]) {
        let results = verdicts.to_vec();
        self.say(&Header::Reply(Reply {
            id,
            results,
            leaving: false,
            logins: Logins::default(),
            database: DatabaseState::NotAsked,
        }));
    }
}

/// A frame with any text as its header.
pub fn frame_of(header: &str) -> Vec<u8> {
    let length = u32::try_from(header.len()).unwrap().to_be_bytes();
    [&MARK[..], &length, header.as_bytes()].concat()
}
