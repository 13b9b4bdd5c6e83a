//! The requests that a receiver gets, and the results of its answers.

use super::super::connect::Resolve;
use super::*;
use crate::config::Notifications;
use crate::webhook::MasterKey;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

const OK: &str = "HTTP/1.1 204 No Content\r\n\r\n";

/// A receiver's reaction to a request.
enum Does {
    ReceiverResponse(String),
    AnswerAndClose(&'static str),
    Nothing,
}

/// A receiver, and the requests that it got: the number of the connection, the head, the body.
struct Receiver {
    port: u16,
    heard: mpsc::Receiver<(usize, String, String)>,
}

impl Receiver {
    fn new(does: impl IntoIterator<Item = Does>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (hears, heard) = mpsc::channel();
        let does = Arc::new(Mutex::new(does.into_iter().collect::<VecDeque<_>>()));
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let (hears, does, stream) = (hears.clone(), Arc::clone(&does), stream.unwrap());
                std::thread::spawn(move || serve(number, stream, &hears, &does));
            }
        });
        Self { port, heard }
    }

    fn connection(&self) -> usize {
        self.heard.recv_timeout(LONG).unwrap().0
    }
}

fn serve(
    number: usize,
    stream: TcpStream,
    hears: &mpsc::Sender<(usize, String, String)>,
    does: &Mutex<VecDeque<Does>>,
) {
    let (mut reader, mut writer) = (BufReader::new(stream.try_clone().unwrap()), stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
        }
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        hears.send((number, head, String::from_utf8(body).unwrap())).unwrap();
        let next = does.lock().unwrap().pop_front();
        match next.expect("so many requests were not expected") {
            Does::ReceiverResponse(answer) => writer.write_all(answer.as_bytes()).unwrap(),
            Does::AnswerAndClose(answer) => return writer.write_all(answer.as_bytes()).unwrap(),
            Does::Nothing => {}
        }
    }
}

fn connector() -> Connector {
    by(Arc::new(|_| unreachable!("an address is not looked up")))
}

fn by(resolve: Resolve) -> Connector {
    let rules = Notifications {
        allow_http: true,
        allow_ports: Vec::new(),
        allow_networks: vec!["127.0.0.1".parse().unwrap()],
        ..Notifications::default()
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let tls = tls.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
    Connector::new(rules, &tls, resolve)
}

fn secrets(subscription: Uuid) -> Vec<WebhookSecret> {
    vec![MasterKey::new(&[7; 32]).secret(subscription, 1)]
}

/// A notification of this subscription to the receiver.
fn job(receiver: &Receiver, subscription: u128) -> SendJob {
    job_at(&format!("http://127.0.0.1:{}/in?a=b", receiver.port), subscription)
}

/// A notification of this subscription to a callback on this machine.
fn job_at(url: &str, subscription: u128) -> SendJob {
    let rules = Notifications {
        allow_http: true,
        allow_ports: Vec::new(),
        allow_networks: Vec::new(),
        ..Notifications::default()
    };
    let rules = Notifications { allow_networks: vec!["127.0.0.1".parse().unwrap()], ..rules };
    let subscription = Uuid::from_u128(subscription);
    SendJob {
        subscription,
        position: Some(7),
        callback: Callback::parse(url, &rules).unwrap(),
        id: "evt_1".into(),
        body: "{\"a\":1}".into(),
        secrets: secrets(subscription),
        number: 3,
    }
}

fn sender() -> Sender {
    Sender::start(connector(), LONG).unwrap()
}

fn sent(sender: &Sender, job: SendJob) -> Sent {
    assert!(sender.send(job));
    sender.sent.recv_timeout(LONG).unwrap()
}

#[test]
fn a_receiver_gets_what_standard_webhooks_asks_for_and_its_answer_is_reported() {
    let answer = "HTTP/1.1 429 Too Many Requests\r\nretry-after: 7\r\ncontent-length: 4\r\n\r\nslow";
    let receiver = Receiver::new([Does::ReceiverResponse(answer.into())]);
    let before = timestamp::now();
    let shown = sent(&sender(), job(&receiver, 1));
    let after = timestamp::now();
    let subscription = Uuid::from_u128(1);
    assert_eq!((shown.subscription, shown.position), (subscription, Some(7)));
    assert!((before..=after).contains(&shown.started_at));
    assert!(shown.took <= Duration::from_micros(u64::try_from(after - before + 1).unwrap()));
    let retry_after = Some(Duration::from_secs(7));
    assert_eq!(shown.answer, Ok(ReceiverResponse { status: 429, retry_after, body: b"slow".to_vec(), is_ours: true }));

    let (_, head, body) = receiver.heard.recv_timeout(LONG).unwrap();
    assert!(head.starts_with("POST /in?a=b HTTP/1.1\r\n"), "{head}");
    let header = |name: &str| {
        let value = head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value.unwrap_or_else(|| panic!("{name} in {head}"))
    };
    assert_eq!(header("host"), format!("127.0.0.1:{}", receiver.port));
    assert_eq!((header("webhook-id"), header("maildrop-attempt"), body.as_str()), ("evt_1", "3", "{\"a\":1}"));
    assert_eq!(header("maildrop-subscription"), subscription.to_string());
    let moment: i64 = header("webhook-timestamp").parse().unwrap();
    assert!((before / 1_000_000..=after / 1_000_000).contains(&moment));
    assert_eq!(header("webhook-signature"), sign(&secrets(subscription), "evt_1", moment, &body));
}

#[test]
fn a_connection_is_used_again_by_its_subscription_and_by_no_other() {
    let receiver = Receiver::new((0..4).map(|_| Does::ReceiverResponse(OK.into())));
    let sender = sender();
    let connection = |subscription| {
        sent(&sender, job(&receiver, subscription)).answer.unwrap();
        receiver.connection()
    };
    assert_eq!([1, 1, 2, 1].map(connection), [0, 0, 1, 0]);
}

/// The owner has changed the callback while the old connection is idle: the old receiver gets no further request.
#[test]
fn a_callback_that_was_changed_is_asked_where_it_is_now_and_not_over_the_old_ones_connection() {
    let [old, new] = [2, 1].map(|count| Receiver::new((0..count).map(|_| Does::ReceiverResponse(OK.into()))));
    let sender = sender();
    for receiver in [&old, &new, &old] {
        sent(&sender, job(receiver, 1)).answer.unwrap();
        assert_eq!(receiver.heard.try_iter().count(), 1);
    }
    // Name, scheme and port distinguish connections; the path does not.
    let at = |url| connection_key(&job_at(url, 1));
    let is = at("http://hooks.example.com:8443/in");
    for other in
        ["https://hooks.example.com:8443/in", "http://other.example.com:8443/in", "http://hooks.example.com/in"]
    {
        assert_ne!(at(other), is, "{other}");
    }
    assert_eq!(at("http://HOOKS.example.com:8443/?out"), is);
}

#[test]
fn one_that_the_receiver_has_closed_meanwhile_costs_no_failure() {
    let receiver = Receiver::new([Does::AnswerAndClose(OK), Does::ReceiverResponse(OK.into())]);
    let sender = sender();
    for number in 0..2 {
        assert_eq!(sent(&sender, job(&receiver, 1)).answer.unwrap().status, 204);
        assert_eq!(receiver.connection(), number);
    }
}

#[test]
fn a_connection_is_used_for_a_minute_and_rests_for_five_seconds() {
    let receiver = Receiver::new([Does::ReceiverResponse(OK.into())]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = HttpClient { connector: connector(), idle: Mutex::default() };
    let [mine, others] = [1, 2].map(|subscription| job(&receiver, subscription));
    runtime.block_on(client.post(&mine, &AtomicBool::default())).unwrap();
    let [mine, others] = [mine, others].map(|job| connection_key(&job));
    assert!(client.idle_connection(&others).is_none());
    let mut connection = client.idle_connection(&mine).unwrap();
    let now = connection.rests_since;
    let ago = |span: Duration| now.checked_sub(span).unwrap();
    let short = Duration::from_nanos(1);
    for (opened, rests_since, is_fresh) in [
        (Duration::ZERO, Duration::ZERO, true),
        (LONGEST_USE - short, LONGEST_REST - short, true),
        (LONGEST_USE, Duration::ZERO, false),
        (LONGEST_REST, LONGEST_REST, false),
    ] {
        (connection.opened, connection.rests_since) = (ago(opened), ago(rests_since));
        assert_eq!(connection.is_fresh(now), is_fresh, "{opened:?} {rests_since:?}");
    }
    // An expired connection is closed at the next search, even for another subscription.
    client.idle.lock().unwrap().insert(mine, vec![connection]);
    assert!(client.idle_connection(&others).is_none());
    assert!(client.idle.lock().unwrap().is_empty());
}

#[test]
fn the_beginning_of_an_answer_is_read_and_no_more_and_then_nothing_else_comes_on_that_connection() {
    let of = |length: usize| {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
        Does::ReceiverResponse(head + &"x".repeat(length))
    };
    let receiver = Receiver::new([of(LONGEST_ANSWER), of(LONGEST_ANSWER + 1), of(1)]);
    let sender = sender();
    let shown = [(0, LONGEST_ANSWER), (0, LONGEST_ANSWER), (1, 1)];
    for expected in shown {
        let answer = sent(&sender, job(&receiver, 1)).answer.unwrap();
        assert_eq!((receiver.connection(), answer.body.len()), expected);
    }
}

#[test]
fn a_receiver_that_says_nothing_is_given_up_in_time() {
    let receiver = Receiver::new([Does::Nothing]);
    let sender = Sender::start(connector(), Duration::from_millis(50)).unwrap();
    let shown = sent(&sender, job(&receiver, 1));
    assert_eq!(shown.answer, Err(RequestFailure::Failed("no answer within 0.05 s".into())));
}

#[test]
fn what_is_no_http_and_what_nobody_listens_on_are_failures() {
    let receiver = Receiver::new([Does::AnswerAndClose("220 mail.axial.net ESMTP\r\n")]);
    let problem = sent(&sender(), job(&receiver, 1)).answer.unwrap_err();
    assert!(problem.to_string().starts_with("HTTP: "), "{problem}");
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let (port, (_, heard)) = (listener.local_addr().unwrap().port(), mpsc::channel());
    drop(listener);
    let problem = sent(&sender(), job(&Receiver { port, heard }, 1)).answer.unwrap_err();
    assert!(problem.to_string().starts_with("connecting: "), "{problem}");
}

/// If the lookup of a host never began, the receiver has not failed.
#[test]
fn what_waits_for_its_lookup_until_its_time_is_over_was_not_tried_and_is_not_looked_up_later() {
    let receiver = Receiver::new([Does::ReceiverResponse(OK.into())]);
    // The runtime waits for its threads at its end. The channel that they wait for is dropped earlier, even if the test fails.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (goes_on, silence) = mpsc::channel::<()>();
    let (silence, asked) = (Mutex::new(silence), Arc::new(Mutex::new(Vec::new())));
    let asks = Arc::clone(&asked);
    let connector = by(Arc::new(move |name: &str| {
        asks.lock().unwrap().push(name.to_owned());
        if name.starts_with("silent") {
            // Blocks until the other end is dropped.
            let _ = silence.lock().unwrap().recv();
        }
        Ok(vec![std::net::Ipv4Addr::LOCALHOST.into()])
    }));
    let at = |name: &str| job_at(&format!("http://{name}.example:{}/", receiver.port), 1);
    // The first lookups take all threads, and hang.
    let hung = runtime.block_on(async {
        let hung: Vec<_> = (0..MOST_LOOKUPS).map(|number| at(&format!("silent{number}"))).collect();
        let hung = hung.into_iter().map(|job| {
            let connector = connector.clone();
            let connects = async move { connector.connect(&job.callback, &AtomicBool::default()).await };
            tokio::spawn(async move { connects.await.is_ok() })
        });
        let hung: Vec<_> = hung.collect();
        while asked.lock().unwrap().len() < MOST_LOOKUPS {
            tokio::task::yield_now().await;
        }
        hung
    });
    let hasty = Sender::start(connector.clone(), Duration::from_millis(50)).unwrap();
    let shown = sent(&hasty, at("given-up"));
    assert_eq!(shown.answer, Err(RequestFailure::NotTried("its host was not looked up within 0.05 s".into())));
    // Once these have ended, the next host is looked up; the one that was given up is not.
    let patient = Sender::start(connector, LONG).unwrap();
    drop(goes_on);
    let shown = sent(&patient, at("known"));
    assert!(shown.answer.is_ok(), "{shown:?}");
    runtime.block_on(async {
        for one in hung {
            assert!(one.await.unwrap());
        }
    });
    assert_eq!(asked.lock().unwrap().split_off(MOST_LOOKUPS), ["known.example"]);
}
