//! An IMAP server that does as a test tells it: what real servers do not do on command.

use maildrop_command::base::deadline::Deadline;
use maildrop_command::base::endpoint::Endpoint;
use maildrop_command::base::secret::Secret;
use maildrop_command::imap::{Encryption, Mechanism, Settings, connect};
use maildrop_command::mailbox::ImapMailbox;
use maildrop_command::mailbox::NewCopy;
use maildrop_command::message::Identity;
use maildrop_command::message::Role;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use time::macros::datetime;

/// The password that no error may show.
pub const PASSWORD: &str = "correct horse battery staple";

/// What the peer can do unless a test says otherwise: as little as possible.
pub const BARE: &str = "IMAP4rev1 SASL-IR AUTH=PLAIN";

/// For 127.0.0.1, signed by itself, until 2126:
/// `openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 36500 -subj "/CN=a peer of the tests" -addext
/// subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE`.
const CERTIFICATE_AND_KEY: &[u8] = include_bytes!("imap_peer.pem");

/// The server's end of one connection.
pub struct Peer {
    stream: TcpStream,
    tls: Option<ServerConnection>,
    /// The tag of the last command.
    pub tag: String,
}

impl Read for Peer {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match &mut self.tls {
            Some(tls) => rustls::Stream::new(tls, &mut self.stream).read(buffer),
            None => self.stream.read(buffer),
        }
    }
}

impl Peer {
    /// The server's end of this connection.
    pub fn on(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        Self { stream, tls: None, tag: String::new() }
    }

    /// Says these lines, as they are, in one packet.
    pub fn say(&mut self, lines: &str) {
        let lines = lines.replace('\n', "\r\n");
        let shown = match &mut self.tls {
            Some(tls) => rustls::Stream::new(tls, &mut self.stream).write_all(lines.as_bytes()),
            None => self.stream.write_all(lines.as_bytes()),
        };
        shown.expect("the client listens");
    }

    /// Says something that is TLS's own: new keys (RFC 8446 section 4.6.3), which the client has to answer.
    pub fn renew_keys(&mut self) {
        let tls = self.tls.as_mut().expect("a peer under TLS");
        tls.refresh_traffic_keys().unwrap();
        tls.write_tls(&mut self.stream).unwrap();
    }

    /// Answers the last command.
    pub fn answer(&mut self, answer: &str) {
        let line = format!("{} {answer}\n", self.tag);
        self.say(&line);
    }

    /// The next command, without its tag.
    pub fn command(&mut self) -> String {
        let line = self.line();
        let (tag, command) = line.split_once(' ').unwrap_or_else(|| panic!("no command: {line:?}"));
        self.tag = tag.to_owned();
        command.to_owned()
    }

    /// The next line.
    pub fn line(&mut self) -> String {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let byte = self.take(1);
            assert_eq!(byte.len(), 1, "the client went away after {:?}", String::from_utf8_lossy(&line));
            line.extend(byte);
        }
        line.truncate(line.len() - 2);
        String::from_utf8(line).expect("a line in ASCII")
    }

    /// So many bytes, or fewer if the client goes away.
    pub fn take(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        Read::take(self, length as u64).read_to_end(&mut bytes).expect("bytes or an end");
        bytes
    }

    /// Everything that still comes until the client goes away.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // A reset is an end as well.
        let _ = self.read_to_end(&mut bytes);
        bytes
    }

    /// Whether nothing comes for a while, and the client is still there.
    pub fn silence(&mut self) -> bool {
        use std::io::ErrorKind::{Interrupted, WouldBlock};
        self.stream.set_read_timeout(Some(Duration::from_millis(150))).unwrap();
        let heard = loop {
            match self.read(&mut [0]) {
                // This process was stopped, and goes on (signal(7)).
                Err(error) if error.kind() == Interrupted => {}
                heard => break heard,
            }
        };
        self.stream.set_read_timeout(None).unwrap();
        heard.is_err_and(|error| error.kind() == WouldBlock)
    }

    /// Says no more, and goes on listening.
    pub fn hang_up(&mut self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Greets, lets the client in, and says what it can do.
    pub fn welcome(&mut self, capabilities: &str) {
        self.say(&format!("* OK [CAPABILITY {capabilities}] Peer ready.\n"));
        assert!(self.command().starts_with("AUTHENTICATE PLAIN "));
        self.answer(&format!("OK [CAPABILITY {capabilities}] Logged in"));
    }

    /// The APPEND command up to its literal, which the client may have announced in either form: its length.
    pub fn append(&mut self) -> usize {
        let command = self.command();
        assert!(command.starts_with("APPEND "), "{command}");
        let announced = command.rsplit_once('{').and_then(|(_, rest)| rest.strip_suffix('}')).expect("a literal");
        announced.trim_end_matches('+').parse().expect("its length")
    }
}

/// Lets a peer run beside the test: where it is, and itself, to be joined at the end.
pub fn peer<T: Send + 'static>(script: impl FnOnce(&mut Peer) -> T + Send + 'static) -> (Settings, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        script(&mut Peer::on(stream))
    });
    (settings(port), thread)
}

/// As [`peer`], under TLS from the first byte.
pub fn tls_peer<T: Send + 'static>(script: impl FnOnce(&mut Peer) -> T + Send + 'static) -> (Settings, JoinHandle<T>) {
    let certificate = CertificateDer::from_pem_slice(CERTIFICATE_AND_KEY).unwrap();
    let key = PrivateKeyDer::from_pem_slice(CERTIFICATE_AND_KEY).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let (settings, thread) = peer(move |peer| {
        peer.tls = Some(ServerConnection::new(Arc::new(config)).unwrap());
        script(peer)
    });
    let ca_file = Some(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/imap_peer.pem").into());
    (Settings { encryption: Encryption::Implicit, ca_file, ..settings }, thread)
}

/// How to reach a peer.
pub fn settings(port: u16) -> Settings {
    Settings {
        address: Endpoint::Tcp { host: "127.0.0.1".into(), port },
        encryption: Encryption::None,
        ca_file: None,
        user: "service".into(),
        password: Secret::new(PASSWORD.into()),
        act_for_user: true,
        login: Mechanism::Plain,
        login_user: None,
    }
}

/// lisa's mailbox there.
pub fn mailbox(settings: &Settings) -> ImapMailbox {
    let connection = connect(settings, Deadline::after(Duration::from_secs(120))).expect("the peer greets");
    connection.authenticate("lisa").expect("the peer lets us in").open("INBOX")
}

/// A copy of a message.
pub fn copy<'a>(bytes: &'a [u8], identity: &'a Identity) -> NewCopy<'a> {
    NewCopy { bytes, identity, role: Role::Recipient, seen: false, arrived: datetime!(2026-02-03 04:05:06 +01:00) }
}
