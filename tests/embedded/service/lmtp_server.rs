//! The LMTP server on real sockets, with somebody behind it who answers as the addresses say.

use crate::program::wait_until;
use maildrop_command::base::listener::Listener;
use maildrop_command::config::Config;
use maildrop_command::delivery::{StatusDetail, Verdict};
use maildrop_command::protocol::Request;
use maildrop_command::service::inflight_message::{Body, InflightMessage};
use maildrop_command::service::lmtp::LmtpServer;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use tokio::sync::{Semaphore, mpsc, watch};

const CERTIFICATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/imap_peer.pem");

/// A message that was handed out.
#[derive(Clone, Debug)]
struct Seen {
    request: Request,
    bytes: Vec<u8>,
}

impl Seen {
    fn recipients(&self) -> Vec<&str> {
        self.request.recipients.iter().map(|it| it.address.as_str()).collect()
    }
}

/// The server, and who delivers for it.
struct Front {
    directory: tempfile::TempDir,
    port: u16,
    seen: Arc<Mutex<Vec<Seen>>>,
    /// How many messages may still be answered.
    answers: Arc<Semaphore>,
    stop: Option<watch::Sender<bool>>,
    thread: Option<JoinHandle<()>>,
}

impl Front {
    fn new(more: &str) -> Self {
        Self::with_answers(more, Semaphore::MAX_PERMITS)
    }

    fn with_answers(more: &str, answers: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let run = directory.path().display();
        let text = format!(
            "[database]\nengine = \"postgresql\"\nhost = \"localhost\"\ndatabase = \"x\"\nuser = \"x\"\n[imap]\nhost = \
             \"localhost\"\nuser = \"x\"\npassword_file = \"/x\"\n[service]\nruntime_directory = \"{run}\"\nlmtp = \
             [\"{run}/lmtp\"]\n{more}"
        );
        let config = Config::parse(Path::new("/x"), &text).unwrap();
        let messages = directory.path().join("messages");
        std::fs::create_dir(&messages).unwrap();
        std::fs::write(messages.join("left by a front that died"), "x").unwrap();

        let mut listening = Listener::open_all(&config.service.lmtp_endpoints()).unwrap();
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = tcp.local_addr().unwrap().port();
        listening.push(Listener::Tcp(tcp));
        let server = LmtpServer::new(&config, "mx.example".into(), listening).unwrap();
        let (seen, answers) = (Arc::<Mutex<Vec<Seen>>>::default(), Arc::new(Semaphore::new(answers)));
        let (stop, stopped) = watch::channel(false);
        let (seen_here, answers_here) = (seen.clone(), answers.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (hand_out, handed) = mpsc::channel(10);
                tokio::spawn(deliver(handed, seen_here, answers_here));
                server.run(hand_out, stopped).await.unwrap();
            });
        });
        Self { directory, port, seen, answers, stop: Some(stop), thread: Some(thread) }
    }

    fn connect(&self) -> Client<UnixStream> {
        Client::greeted(UnixStream::connect(self.directory.path().join("lmtp")).unwrap())
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.directory.path().join("messages")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// Tells it to stop, and waits until it has.
    fn stop(mut self) -> Vec<Seen> {
        self.stop.take().unwrap().send(true).unwrap();
        self.thread.take().unwrap().join().unwrap();
        assert_eq!(self.files(), [] as [PathBuf; 0]);
        self.seen()
    }
}

/// Answers for each recipient as its address says.
async fn deliver(mut handed: mpsc::Receiver<InflightMessage>, seen: Arc<Mutex<Vec<Seen>>>, answers: Arc<Semaphore>) {
    while let Some(InflightMessage { request, message, answer }) = handed.recv().await {
        let bytes = match &message {
            Body::Memory(bytes) => bytes.clone(),
            Body::File(file) => {
                assert_eq!(request.file.as_deref(), Some(file.path()));
                std::fs::read(file.path()).unwrap()
            }
        };
        assert_eq!(request.size, bytes.len() as u64);
        let verdicts: Vec<Verdict> = request.recipients.iter().map(|it| verdict(&it.address)).collect();
        seen.lock().unwrap().push(Seen { request, bytes });
        let answers = answers.clone();
        tokio::spawn(async move {
            answers.acquire().await.unwrap().forget();
            drop(message);
            // A client that has hung up does not get it.
            let _ = answer.send(verdicts);
        });
    }
}

fn verdict(address: &str) -> Verdict {
    match address.split(['@', '+']).next().unwrap() {
        "nobody" => Verdict::unknown_recipient(address),
        "full" => Verdict::over_quota(address),
        "busy" => Verdict::deferred(StatusDetail::SYSTEM, address),
        _ => Verdict::delivered(address),
    }
}

/// One connection to it.
struct Client<S: Read>(BufReader<S>);

impl<S: Read + Write> Client<S> {
    fn greeted(stream: S) -> Self {
        let mut client = Self(BufReader::new(stream));
        assert_eq!(client.replies(1), ["220 mx.example LMTP maildropd"]);
        client
    }

    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.get_mut().write_all(bytes.as_ref()).unwrap();
        self.0.get_mut().flush().unwrap();
    }

    /// So many replies; of one with many lines, the last line.
    fn replies(&mut self, count: usize) -> Vec<String> {
        let mut replies = Vec::new();
        while replies.len() < count {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            let line = line.strip_suffix("\r\n").unwrap_or_else(|| panic!("{line:?} after {replies:?}")).to_owned();
            if line.as_bytes()[3] == b' ' {
                replies.push(line);
            }
        }
        replies
    }

    fn say(&mut self, command: &str) -> String {
        self.send(format!("{command}\r\n"));
        self.replies(1).remove(0)
    }

    /// Sends a message as Postfix does, and returns the answers to it.
    fn deliver(&mut self, sender: &str, recipients: &[&str], message: &[u8]) -> Vec<String> {
        let rcpt: String = recipients.iter().map(|it| format!("RCPT TO:<{it}>\r\n")).collect();
        self.send(format!("MAIL FROM:<{sender}> BODY=8BITMIME SMTPUTF8\r\n{rcpt}DATA\r\n"));
        let replies = self.replies(recipients.len() + 2);
        assert!(replies[recipients.len() + 1].starts_with("354 "), "{replies:?}");
        self.send(stuffed(message));
        self.replies(recipients.len())
    }

    /// What still comes up to the end.
    fn rest(&mut self) -> String {
        let mut rest = String::new();
        self.0.read_to_string(&mut rest).unwrap();
        rest
    }
}

/// With the dots that lines begin with doubled, and the end.
fn stuffed(message: &[u8]) -> Vec<u8> {
    let mut sent = Vec::new();
    for byte in message {
        if *byte == b'.' && (sent.is_empty() || sent.ends_with(b"\r\n")) {
            sent.push(b'.');
        }
        sent.push(*byte);
    }
    sent.extend_from_slice(b".\r\n");
    sent
}

const MESSAGE: &[u8] = b"Subject: Hello\r\nMessage-ID: <123-abc@mail.google.com>\r\n\r\nHello\r\n";

#[test]
fn each_recipient_has_an_answer_of_its_own_in_order() {
    let front = Front::new("");
    let mut client = front.connect();
    client.say("LHLO x");
    let recipients = ["doug@x", "nobody@x", "full@x", "busy@x", "doug@x", "doug@x"];
    for _ in 0..3 {
        assert_eq!(
            client.deliver("lisa@gmail.com", &recipients, MESSAGE),
            [
                "250 2.0.0 doug@x",
                "550 5.1.1 nobody@x",
                "552 5.2.2 full@x",
                "451 4.3.0 busy@x",
                "250 2.0.0 doug@x",
                "250 2.0.0 doug@x"
            ]
        );
    }
    let fifty: Vec<String> = (0..50).map(|number| format!("doug+{number}@x")).collect();
    let fifty: Vec<&str> = fifty.iter().map(String::as_str).collect();
    let answers = client.deliver("", &fifty, MESSAGE);
    assert_eq!(answers, fifty.iter().map(|it| format!("250 2.0.0 {it}")).collect::<Vec<_>>());
    assert_eq!(client.say("QUIT"), "221 2.0.0 Bye");
    let seen = front.stop();
    assert_eq!((seen.len(), seen[0].recipients(), seen[3].recipients()), (4, recipients.to_vec(), fifty));
    assert_eq!(seen[0].bytes, [b"Return-Path: <lisa@gmail.com>\r\n", MESSAGE].concat());
    assert_eq!((seen[3].request.sender.as_str(), seen[0].request.time_left_ms), ("", 240_000));
}

#[test]
fn every_message_is_handed_out_as_it_came() {
    let front = Front::new("spool_threshold = 100000\n");
    let mut client = front.connect();
    client.say("LHLO x");
    let big: Vec<u8> = (0..150_000).flat_map(|line| format!("{line:066}\r\n").into_bytes()).collect();
    assert!(big.len() > 10_000_000);
    let long_line = [b"X: y\r\n\r\n", "z".repeat(5000).as_bytes(), b"\r\n"].concat();
    let dots = b".\r\n..\r\n.a\r\n\r\n.\n.\n\r.\r\n".to_vec();
    let odd: Vec<u8> = (0..=255).chain(*b"\r\n").collect();
    let messages = [MESSAGE.to_vec(), Vec::new(), long_line, dots, odd, "J\u{f6}rg\r\n".into(), big];
    for message in &messages {
        let answers = client.deliver("j\u{f6}rg@m\u{fc}ller.example", &["\"odd name\"@x", "doug@x"], message);
        assert_eq!(answers, ["250 2.0.0 odd name@x", "250 2.0.0 doug@x"]);
    }
    drop(client);
    let seen = front.stop();
    assert_eq!(seen.len(), messages.len());
    for (seen, message) in seen.iter().zip(&messages) {
        let expected = ["Return-Path: <j\u{f6}rg@m\u{fc}ller.example>\r\n".as_bytes(), message].concat();
        assert!(seen.bytes == expected, "{}", String::from_utf8_lossy(&message[..message.len().min(200)]));
        assert_eq!(seen.request.file.is_some(), seen.bytes.len() > 100_000);
        assert_eq!(seen.recipients(), ["odd name@x", "doug@x"]);
        assert_eq!(seen.request.sender, "j\u{f6}rg@m\u{fc}ller.example");
    }
}

#[test]
fn twenty_clients_at_once_get_each_their_own_answers() {
    let front = Front::new("spool_threshold = 3000\n");
    std::thread::scope(|scope| {
        for client in 0..20 {
            let front = &front;
            scope.spawn(move || {
                let mut connection = front.connect();
                connection.say("LHLO x");
                for number in 0..10 {
                    let message = format!("Subject: {client} {number}\r\n\r\n{}\r\n", "x".repeat(number * 600));
                    let recipients = [format!("doug+{client}+{number}@x"), format!("busy+{client}+{number}@x")];
                    assert_eq!(
                        connection.deliver("", &[&recipients[0], &recipients[1]], message.as_bytes()),
                        [format!("250 2.0.0 {}", recipients[0]), format!("451 4.3.0 {}", recipients[1])]
                    );
                }
            });
        }
    });
    let seen = front.stop();
    assert_eq!(seen.len(), 200);
    for seen in seen {
        let recipient = seen.recipients()[0].to_owned();
        let number = recipient.trim_start_matches("doug+").trim_end_matches("@x").replace('+', " ");
        let expected = format!("Return-Path: <>\r\nSubject: {number}\r\n");
        assert!(seen.bytes.starts_with(expected.as_bytes()), "{recipient}");
    }
}

#[test]
fn who_hangs_up_before_the_last_dot_has_handed_over_nothing() {
    let front = Front::new("spool_threshold = 10\n");
    let session = [
        "LHLO x\r\nMAIL FROM:<lisa@gmail.com>\r\nRCPT TO:<doug@x>\r\nRCPT TO:<nobody@x>\r\nDATA\r\n".as_bytes(),
        MESSAGE,
        b"..\r\n.\r\n",
    ]
    .concat();
    for length in 0..session.len() {
        front.connect().send(&session[..length]);
    }
    // The server has read all of that once it has answered somebody who came later.
    let mut client = front.connect();
    client.say("LHLO x");
    assert_eq!(client.deliver("", &["doug@x"], MESSAGE), ["250 2.0.0 doug@x"]);
    assert_eq!(front.seen().len(), 1);
    wait_until("the files are removed", || front.files().is_empty());

    // With the last dot it is delivered, whether or not anybody waits for what becomes of it.
    let mut gone = front.connect();
    gone.send("LHLO x\r\nMAIL FROM:<>\r\nRCPT TO:<doug@x>\r\nRCPT TO:<nobody@x>\r\nDATA\r\n");
    gone.replies(5);
    gone.send(stuffed(MESSAGE));
    drop(gone);
    wait_until("it is handed over", || front.seen().len() == 2);
    assert_eq!(front.seen()[1].recipients(), ["doug@x", "nobody@x"]);
    drop(client);
    assert_eq!(front.stop().len(), 2);
}

#[test]
fn what_is_sent_ahead_is_answered_after_the_message() {
    let front = Front::with_answers("", 0);
    let mut client = front.connect();
    client.send("LHLO x\r\nMAIL FROM:<>\r\nRCPT TO:<doug@x>\r\nDATA\r\n");
    client.replies(4);
    client.send([MESSAGE, b".\r\nQUIT\r\n"].concat());
    wait_until("it is handed over", || front.seen().len() == 1);
    front.answers.add_permits(1);
    assert_eq!(client.rest(), "250 2.0.0 doug@x\r\n221 2.0.0 Bye\r\n");
    front.stop();
}

#[test]
fn past_the_limit_a_connection_waits_and_is_not_refused() {
    let front = Front::new("max_connections = 2\n");
    let mut first = front.connect();
    let mut second = front.connect();
    let third = UnixStream::connect(front.directory.path().join("lmtp")).unwrap();
    assert!(first.say("NOOP").starts_with("250 ") && second.say("NOOP").starts_with("250 "));
    third.set_nonblocking(true).unwrap();
    assert_eq!((&third).read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    third.set_nonblocking(false).unwrap();
    assert_eq!(first.say("QUIT"), "221 2.0.0 Bye");
    let mut third = Client::greeted(third);
    third.say("LHLO x");
    assert_eq!(third.deliver("", &["doug@x"], MESSAGE), ["250 2.0.0 doug@x"]);
    drop((first, second, third));
    front.stop();
}

#[test]
fn connections_by_tcp_take_no_places_from_those_on_this_machine() {
    let front = Front::new("max_connections = 1\n");
    let _first = Client::greeted(TcpStream::connect(("127.0.0.1", front.port)).unwrap());
    let mut second = front.connect();
    assert_eq!(second.say("NOOP"), "250 2.0.0 Ok");
}

#[test]
fn at_its_end_the_server_answers_what_it_has_begun_and_takes_nothing_new() {
    let mut front = Front::with_answers("", 1);
    let (mut idle, mut waiting, mut sending) = (front.connect(), front.connect(), front.connect());
    idle.say("LHLO x");
    assert_eq!(idle.deliver("", &["doug@x"], MESSAGE), ["250 2.0.0 doug@x"]);
    for client in [&mut waiting, &mut sending] {
        client.send("LHLO x\r\nMAIL FROM:<>\r\nRCPT TO:<doug@x>\r\nDATA\r\n");
        client.replies(4);
    }
    waiting.send(stuffed(MESSAGE));
    wait_until("it is handed over", || front.seen().len() == 2);
    front.stop.as_ref().unwrap().send(true).unwrap();
    let ends = "421 4.3.2 The service ends\r\n";
    assert_eq!(idle.rest(), ends);
    // The next listener there need not wait for the messages in progress.
    wait_until("its sockets are closed", || {
        let refused = UnixStream::connect(front.directory.path().join("lmtp")).err();
        let refused_by_tcp = TcpStream::connect(("127.0.0.1", front.port)).err();
        [refused, refused_by_tcp].iter().flatten().filter(|it| it.kind() == ErrorKind::ConnectionRefused).count() == 2
    });
    sending.send(stuffed(MESSAGE));
    wait_until("it is handed over", || front.seen().len() == 3);
    assert!(!front.thread.as_ref().unwrap().is_finished());
    front.answers.add_permits(2);
    for client in [&mut waiting, &mut sending] {
        assert_eq!(client.rest(), format!("250 2.0.0 doug@x\r\n{ends}"));
    }
    front.thread.take().unwrap().join().unwrap();
}

#[test]
fn over_tcp_a_session_can_be_encrypted_and_nothing_is_carried_over() {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    let front = Front::new(&format!("certificate_file = \"{CERTIFICATE}\"\nkey_file = \"{CERTIFICATE}\"\n"));
    let mut client = Client::greeted(TcpStream::connect(("127.0.0.1", front.port)).unwrap());
    assert_eq!(client.say("LHLO x"), "250 STARTTLS");
    assert!(client.say("MAIL FROM:<mallory@x>").starts_with("250 "));
    // What comes behind the command may be somebody else's.
    client.send("STARTTLS\r\nRCPT TO:<mallory@x>\r\n");
    assert_eq!(client.replies(1), ["220 2.0.0 Begin TLS"]);

    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(CERTIFICATE).unwrap()).unwrap();
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let session = rustls::ClientConnection::new(Arc::new(config), "127.0.0.1".try_into().unwrap()).unwrap();
    let stream = rustls::StreamOwned::new(session, client.0.into_inner());
    let mut client = Client(BufReader::new(stream));
    assert_eq!(client.say("RCPT TO:<doug@x>"), "503 5.5.1 Say MAIL first");
    let offered = client.say("LHLO x");
    assert_eq!(offered, "250 XFORWARD NAME ADDR PORT PROTO HELO IDENT SOURCE");
    assert!(client.say("XFORWARD IDENT=4bXyz ADDR=192.0.2.7").starts_with("250 "));
    let big = "x\r\n".repeat(200_000);
    assert_eq!(client.deliver("", &["doug@x"], big.as_bytes()), ["250 2.0.0 doug@x"]);
    assert_eq!(client.say("QUIT"), "221 2.0.0 Bye");
    let seen = front.stop();
    assert_eq!((seen.len(), seen[0].recipients()), (1, vec!["doug@x"]));
    assert_eq!(seen[0].request.queue_id.as_deref(), Some("4bXyz"));
    assert_eq!(seen[0].request.client_address.as_deref(), Some("192.0.2.7"));
    assert_eq!(seen[0].bytes.len(), "Return-Path: <>\r\n".len() + big.len());
}
