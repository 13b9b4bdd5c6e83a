use super::*;
use crate::service::lmtp::StartTls;
use crate::service::lmtp::session::Settings;
use crate::service::lmtp::spool::Spool;
use std::sync::Arc;
use tokio::io::{DuplexStream, duplex};
use tokio::task::JoinHandle;

/// A conversation, its client's end, and the receiver of its messages. The clock is paused, and advances when all tasks wait.
struct Scene {
    client: DuplexStream,
    submitted: mpsc::Receiver<InflightMessage>,
    stop: watch::Sender<bool>,
    conversation: JoinHandle<io::Result<SessionEnd>>,
    began: Instant,
}

const DEADLINE: Duration = Duration::from_mins(4);

impl Scene {
    fn new() -> Self {
        Self::with_space_for(1000)
    }

    /// `bytes` is the size of the buffer in each direction.
    fn with_space_for(bytes: usize) -> Self {
        let spool = Spool { directory: "/nonexistent".into(), above: u64::MAX, limit: None };
        let settings = Settings {
            host: "mx.example".into(),
            postmaster: "postmaster@x".into(),
            max_recipients: 100,
            deadline: DEADLINE,
            spool: Arc::new(spool),
            tally: super::super::counters::LmtpTally::default(),
        };
        let (client, mut server) = duplex(bytes);
        let (submissions, submitted) = mpsc::channel(1);
        let (stop, stopped) = watch::channel(false);
        let mut context = SessionContext { submissions, stop: stopped };
        let conversation = tokio::spawn(async move {
            let mut session = LmtpSession::new(Arc::new(settings), StartTls::NotOffered);
            context.drive(&mut server, &mut session).await
        });
        Self { client, submitted, stop, conversation, began: Instant::now() }
    }

    async fn say(&mut self, text: &str) {
        self.client.write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads up to this text, which must come.
    async fn read_until(&mut self, text: &str) -> String {
        let mut heard = Vec::new();
        while !heard.ends_with(text.as_bytes()) {
            heard.push(self.client.read_u8().await.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&heard))));
        }
        String::from_utf8(heard).unwrap()
    }

    /// The remaining data up to the end.
    async fn rest(&mut self) -> String {
        let mut heard = String::new();
        self.client.read_to_string(&mut heard).await.unwrap();
        heard
    }

    /// Starts a message to this many recipients.
    async fn data(&mut self, recipients: usize) {
        let recipients = "RCPT TO:<doug@x>\r\n".repeat(recipients);
        self.say(&format!("LHLO x\r\nMAIL FROM:<>\r\n{recipients}DATA\r\n")).await;
        self.read_until("354 Send the message, and a dot alone on its last line\r\n").await;
    }

    fn passed(&self) -> Duration {
        self.began.elapsed()
    }
}

fn delivered(count: usize) -> Vec<Verdict> {
    vec![Verdict::delivered("x"); count]
}

#[tokio::test(start_paused = true)]
async fn a_client_that_says_nothing_between_two_messages_is_reported_why_it_has_to_go() {
    let mut scene = Scene::new();
    scene.say("LHLO x\r\n").await;
    scene.read_until("SOURCE\r\n").await;
    assert_eq!(scene.rest().await, "421 4.4.2 Nothing came for too long\r\n");
    assert!(scene.passed() >= COMMAND);
}

#[tokio::test(start_paused = true)]
async fn within_a_message_nothing_is_reported_that_could_be_taken_for_its_answer() {
    for begun in ["MAIL FROM:<>\r\n", "MAIL FROM:<>\r\nRCPT TO:<a@b>\r\nDATA\r\n", "NOO"] {
        let mut scene = Scene::new();
        scene.say("LHLO x\r\n").await;
        scene.read_until("SOURCE\r\n").await;
        scene.say(begun).await;
        let replies = scene.rest().await;
        assert!(!replies.contains("421"), "{replies}");
        assert_eq!(scene.conversation.await.unwrap().unwrap(), SessionEnd::Over);
        assert!(scene.submitted.try_recv().is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_command_or_a_message_that_comes_byte_by_byte_has_an_end() {
    let mut scene = Scene::new();
    scene.read_until("\r\n").await;
    while scene.client.write_u8(b'x').await.is_ok() {
        tokio::time::sleep(Duration::from_secs(50)).await;
    }
    assert!(scene.passed() < COMMAND + Duration::from_mins(2), "{:?}", scene.passed());

    let mut scene = Scene::new();
    scene.data(1).await;
    while scene.client.write_u8(b'x').await.is_ok() {
        tokio::time::sleep(DATA_BLOCK / 2).await;
    }
    assert!((DATA..DATA + DATA_BLOCK * 2).contains(&scene.passed()), "{:?}", scene.passed());
}

#[tokio::test(start_paused = true)]
async fn replies_that_nobody_takes_end_the_conversation() {
    let mut scene = Scene::new();
    while scene.client.write_all(b"HELP\r\n").await.is_ok() {}
    assert_eq!(scene.conversation.await.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_behind_a_message_is_answered_behind_its_verdicts() {
    let mut scene = Scene::new();
    scene.data(3).await;
    scene.say("Subject: x\r\n\r\n.\r\nNOOP\r\nQUIT\r\n").await;
    let submission = scene.submitted.recv().await.unwrap();
    assert_eq!(submission.request.recipients.len(), 3);
    assert_eq!(submission.message.in_memory(), b"Return-Path: <>\r\nSubject: x\r\n\r\n");
    submission.answer.send(delivered(3)).unwrap();
    assert_eq!(scene.rest().await, format!("{}250 2.0.0 Ok\r\n221 2.0.0 Bye\r\n", "250 2.0.0 x\r\n".repeat(3)));
}

#[tokio::test(start_paused = true)]
async fn a_message_whose_verdicts_never_come_is_deferred() {
    let deferred = "451 4.3.0 The delivery did not end\r\n";
    // The broker has dropped the delivery.
    let mut scene = Scene::new();
    scene.data(2).await;
    scene.say(".\r\n").await;
    drop(scene.submitted.recv().await.unwrap());
    assert_eq!(scene.read_until(&deferred.repeat(2)).await, deferred.repeat(2));
    // The broker keeps the delivery, but sends no verdicts.
    scene.data(2).await;
    let began = Instant::now();
    scene.say(".\r\n").await;
    let submission = scene.submitted.recv().await.unwrap();
    assert_eq!(scene.read_until(&deferred.repeat(2)).await, deferred.repeat(2));
    assert!(began.elapsed() > DEADLINE && began.elapsed() < DEADLINE + Duration::from_mins(1));
    assert!(submission.answer.is_closed());
    // The broker is gone.
    drop(scene.submitted);
    let (_, submitted) = mpsc::channel(1);
    scene.submitted = submitted;
    scene.data(2).await;
    scene.say(".\r\nQUIT\r\n").await;
    assert_eq!(scene.rest().await, format!("{}221 2.0.0 Bye\r\n", deferred.repeat(2)));
}

#[tokio::test(start_paused = true)]
async fn who_hangs_up_has_nothing_handed_out_but_what_was_whole() {
    for begun in ["", "Subject: x\r\n", "Subject: x\r\n.", "Subject: x\r\n.\r"] {
        let mut scene = Scene::new();
        scene.data(1).await;
        scene.say(begun).await;
        drop(scene.client);
        assert!(scene.submitted.recv().await.is_none());
    }
    let mut scene = Scene::new();
    scene.data(1).await;
    scene.say("Subject: x\r\n.\r\n").await;
    drop(scene.client);
    let submission = scene.submitted.recv().await.unwrap();
    assert_eq!(submission.message.in_memory(), b"Return-Path: <>\r\nSubject: x\r\n");
    // The delivery goes on, although nobody receives its result.
    submission.answer.send(delivered(1)).unwrap();
    assert!(scene.conversation.await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn at_the_end_of_the_service_what_has_begun_goes_on() {
    let ends = "421 4.3.2 The service ends\r\n";
    // A client that has not sent a message yet may still begin.
    let mut scene = Scene::new();
    scene.read_until("\r\n").await;
    scene.stop.send(true).unwrap();
    tokio::time::sleep(BEGIN / 2).await;
    scene.data(1).await;
    scene.say(".\r\n").await;
    let submission = scene.submitted.recv().await.unwrap();
    submission.answer.send(delivered(1)).unwrap();
    assert_eq!(scene.rest().await, format!("250 2.0.0 x\r\n{ends}"));
    // A client that never begins is disconnected soon.
    let mut scene = Scene::new();
    scene.stop.send(true).unwrap();
    assert!(scene.rest().await.ends_with(ends));
    assert!(scene.passed() < Duration::from_mins(1));
    // This client keeps its connection for later.
    let mut scene = Scene::new();
    scene.data(1).await;
    scene.say(".\r\n").await;
    scene.submitted.recv().await.unwrap().answer.send(delivered(1)).unwrap();
    scene.read_until("250 2.0.0 x\r\n").await;
    let began = Instant::now();
    drop(scene.stop);
    let mut heard = String::new();
    scene.client.read_to_string(&mut heard).await.unwrap();
    assert_eq!((heard.as_str(), began.elapsed()), (ends, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn at_the_end_of_the_service_who_has_handed_over_nothing_is_left_soon_whatever_he_says() {
    // This client stops in the middle of a command or of an envelope.
    for begun in ["NOO", "LHLO x\r\nMAIL FROM:<>\r\n", "LHLO x\r\nMAIL FROM:<>\r\nRCPT TO:<a@b>\r\nRC"] {
        let mut scene = Scene::new();
        scene.say(begun).await;
        scene.stop.send(true).unwrap();
        let replies = scene.rest().await;
        assert!(!replies.contains("421"), "{replies}");
        assert!(scene.passed() < Duration::from_mins(1), "{begun}: {:?}", scene.passed());
        assert_eq!(scene.conversation.await.unwrap().unwrap(), SessionEnd::Over);
    }
    // One client keeps sending commands; the message of another one does not end.
    for said in ["NOOP\r\n", "RSET\r\nMAIL FROM:<>\r\n", "a line\r\n"] {
        let mut scene = Scene::new();
        if said == "a line\r\n" {
            scene.data(1).await;
        } else {
            scene.say("LHLO x\r\n").await;
            scene.read_until("SOURCE\r\n").await;
        }
        scene.stop.send(true).unwrap();
        while scene.client.write_all(said.as_bytes()).await.is_ok() {
            tokio::time::sleep(BEGIN / 2).await;
        }
        assert!(scene.passed() < Duration::from_mins(1), "{said}: {:?}", scene.passed());
        // A client that does send its message has enough time for it.
        assert!(scene.passed() > BEGIN * 2, "{said}: {:?}", scene.passed());
    }
}

#[tokio::test(start_paused = true)]
async fn at_the_end_of_the_service_what_has_come_is_answered_before_the_farewell() {
    let mut scene = Scene::new();
    scene.data(1).await;
    scene.say(".\r\n").await;
    scene.submitted.recv().await.unwrap().answer.send(delivered(1)).unwrap();
    scene.read_until("250 2.0.0 x\r\n").await;
    let (mut replies, mut commands) = tokio::io::split(scene.client);
    scene.stop.send(true).unwrap();
    // As much as the buffer takes before the server's task runs, and the same again while it replies.
    commands.write_all(&b"DATA\r\n".repeat(150)).await.unwrap();
    let shown = tokio::spawn(async move { commands.write_all(&b"DATA\r\n".repeat(150)).await });
    let mut heard = String::new();
    replies.read_to_string(&mut heard).await.unwrap();
    shown.await.unwrap().unwrap();
    assert_eq!(heard, "503 5.5.1 There is no recipient\r\n".repeat(300) + "421 4.3.2 The service ends\r\n");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_thousands_of_commands_at_once_leaves_others_their_turns() {
    let mut scene = Scene::with_space_for(BLOCK * 10);
    scene.read_until("\r\n").await;
    let (count, reply) = (BLOCK / "RCPT TO:<a@b>\r\n".len(), "503 5.5.1 Say MAIL first\r\n");
    assert!(scene.client.write_all(&b"RCPT TO:<a@b>\r\n".repeat(count)).await.is_ok());
    let (mut heard, mut at_once) = (vec![0; BLOCK * 10], Vec::new());
    while at_once.iter().sum::<usize>() < count * reply.len() {
        // The client has its turn only when the session yields.
        at_once.push(scene.client.read(&mut heard).await.unwrap());
    }
    let most = COMMANDS_AT_ONCE / "RCPT TO:<a@b>\r\n".len() + 1;
    assert!(at_once.iter().all(|bytes| *bytes <= most * reply.len()), "{at_once:?}");
}

#[tokio::test(start_paused = true)]
async fn at_the_end_of_the_service_who_never_stops_talking_is_left_as_soon() {
    let mut scene = Scene::new();
    scene.say("LHLO x\r\n").await;
    scene.read_until("SOURCE\r\n").await;
    scene.stop.send(true).unwrap();
    let (mut replies, mut commands) = tokio::io::split(scene.client);
    tokio::spawn(async move { tokio::io::copy(&mut replies, &mut tokio::io::sink()).await });
    let flood = tokio::spawn(async move {
        // The session always has data to read.
        while commands.write_all(&b"DATA\r\n".repeat(1000)).await.is_ok() {}
    });
    for _ in 0..60 {
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert!(flood.is_finished() && scene.conversation.is_finished());
}
