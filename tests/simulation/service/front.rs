//! One front: the real broker and the real sessions of LMTP, and the mistakes that they could make.

use crate::mistake::Mistake;
use maildrop_command::delivery::Verdict;
use maildrop_command::protocol::{Header, Request};
use maildrop_command::service::broker::state::{Action, Broker, ConnectionId, Event, LocalId, Settings};
use maildrop_command::service::inflight_message::Body;
use maildrop_command::service::lmtp::{self, LmtpSession, Spool, StartTls, Step};
use maildrop_command::service::shunt::CrashRecords;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a message waits for a worker.
const WORKER_WAIT: Duration = Duration::from_secs(10);
/// How long it waits for one of its recipients, before it goes to the others.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a delivery may take.
pub const DEADLINE: Duration = Duration::from_secs(240);

/// One host's front: one process after the other.
pub struct Front {
    broker: Broker,
    pub up: bool,
    /// How many there have been.
    pub lives: u64,
    last_id: u64,
    /// What its broker has received so far, as a hash: that makes it what it is.
    history: u64,
    /// The sessions of LMTP whose message is being delivered.
    pub sessions: BTreeMap<LocalId, Lmtp>,
    /// What clients have said that has not arrived, by their connections, each in its order.
    pub late: BTreeMap<ConnectionId, VecDeque<Word>>,
    mistake: Option<Mistake>,
    max_per_recipient: usize,
    /// A mistake's: the other names of a worker's connection.
    aliases: BTreeMap<ConnectionId, ConnectionId>,
    /// A mistake's: what was handed over.
    handed: BTreeMap<LocalId, (Request, Vec<u8>)>,
}

/// A session of LMTP, and what Postfix waits for there.
pub struct Lmtp {
    pub job: usize,
    /// By their places in the job.
    pub recipients: Vec<usize>,
    session: LmtpSession,
}

/// A job, and of its recipients, by their places, whether each is delivered.
pub type Heard = (usize, Vec<(usize, bool)>);

/// What comes from a client.
#[derive(Clone, Hash)]
pub enum Word {
    Said(Vec<u8>),
    Gone,
}

impl Front {
    pub fn new(mistake: Option<Mistake>, max_per_recipient: usize, began: Instant) -> Self {
        Self {
            broker: Broker::new(settings(0, max_per_recipient), CrashRecords::default(), began),
            up: false,
            lives: 0,
            last_id: 0,
            history: 0,
            sessions: BTreeMap::new(),
            late: BTreeMap::new(),
            mistake,
            max_per_recipient,
            aliases: BTreeMap::new(),
            handed: BTreeMap::new(),
        }
    }

    /// A new process.
    pub fn start(&mut self, now: Instant) {
        self.lives += 1;
        self.broker = Broker::new(settings(self.lives, self.max_per_recipient), CrashRecords::default(), now);
        self.up = true;
    }

    /// It dies, with all that it knew.
    pub fn die(&mut self) {
        self.up = false;
        self.history = 0;
        self.late.clear();
        self.sessions.clear();
        self.aliases.clear();
        self.handed.clear();
    }

    /// A name that no connection and no message has had.
    pub fn id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Whether it has no message in progress.
    pub fn is_idle(&self) -> bool {
        !self.up || (self.broker.is_idle() && self.sessions.is_empty())
    }

    pub fn hash_state(&self, hash: &mut impl Hasher) {
        (self.up, self.lives, self.last_id, self.history, &self.late).hash(hash);
        for (id, lmtp) in &self.sessions {
            (id, lmtp.job, &lmtp.recipients).hash(hash);
        }
    }

    fn note(&mut self, what: impl Hash, now: Instant, began: Instant) {
        let mut hash = DefaultHasher::new();
        (self.history, now.saturating_duration_since(began)).hash(&mut hash);
        what.hash(&mut hash);
        self.history = hash.finish();
    }

    /// Tells the broker, and says what it wants done.
    pub fn handle(&mut self, event: Event, now: Instant, began: Instant) -> Vec<Action> {
        match &event {
            Event::WorkerReady { connection, .. } => self.note(("ready", connection), now, began),
            Event::WorkerBeat { connection } => self.note(("beat", connection), now, began),
            Event::WorkerAnswered { connection, address, .. } => self.note((connection, address), now, began),
            Event::WorkerGone { connection } => self.note(("worker gone", connection), now, began),
            Event::ClientSaid { connection, body } => self.note(("said", connection, body), now, began),
            Event::ClientDelivers { connection, request, .. } => {
                self.note(("delivers", connection, request.id), now, began);
            }
            Event::ClientGone { connection } => self.note(("client gone", connection), now, began),
            Event::Submitted { id, .. } => self.note(("handed", id), now, began),
            // How a worker's process ended is for those that count what messages have done: nobody is notified here.
            Event::ProcessEnded(_) => {}
            Event::Stop => self.note("stop", now, began),
        }
        let actions = match (self.mistake, event) {
            (Some(Mistake::ReadyByHeartbeat), Event::WorkerBeat { connection }) => {
                let mut actions = self.broker.handle(Event::WorkerBeat { connection }, now);
                // The broker knows a connection that has said READY, and takes a second one for a sign of life: the
                // mistake is that it is somebody new.
                let alias = ConnectionId(self.id());
                self.aliases.insert(alias, connection);
                let name = b"worker".to_vec();
                actions.extend(self.broker.handle(Event::WorkerReady { connection: alias, name, pid: None }, now));
                actions
            }
            (Some(Mistake::BeginsWithoutGo), Event::ClientSaid { connection, body }) => {
                let go = match Header::read(&body) {
                    Ok((Header::Deliver(request), _)) => Header::Go { id: request.id }.frame(b"").ok(),
                    _ => None,
                };
                let mut actions = self.broker.handle(Event::ClientSaid { connection, body }, now);
                if let Some(body) = go {
                    actions.extend(self.broker.handle(Event::ClientSaid { connection, body }, now));
                }
                actions
            }
            (Some(Mistake::HandedOn), Event::WorkerGone { connection }) => {
                let actions = self.broker.handle(Event::WorkerGone { connection }, now);
                self.hand_on(actions, now)
            }
            (Some(Mistake::HandedOn), Event::Submitted { id, request, body }) => {
                self.handed.insert(id, (request.as_ref().clone(), body.in_memory().to_vec()));
                self.broker.handle(Event::Submitted { id, request, body }, now)
            }
            (_, event) => self.broker.handle(event, now),
        };
        self.named(actions)
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Instant, began: Instant) -> Vec<Action> {
        self.note("tick", now, began);
        let mut actions = self.broker.tick(now);
        if self.mistake == Some(Mistake::HandedOn) {
            actions = self.hand_on(actions, now);
        }
        self.named(actions)
    }

    /// Names each worker by the connection that it has.
    fn named(&self, mut actions: Vec<Action>) -> Vec<Action> {
        actions.retain_mut(|action| match action {
            Action::Work { connection, .. } => {
                *connection = self.aliases.get(connection).copied().unwrap_or(*connection);
                true
            }
            Action::Beat { connection } | Action::EndWorker { connection, .. } => {
                !self.aliases.contains_key(connection)
            }
            _ => true,
        });
        actions
    }

    /// In place of an answer: the same message once more.
    fn hand_on(&mut self, actions: Vec<Action>, now: Instant) -> Vec<Action> {
        let mut done = Vec::new();
        for action in actions {
            match action {
                Action::Answer { id, .. } if self.handed.contains_key(&id) => {
                    let (request, body) = self.handed[&id].clone();
                    let event = Event::Submitted { id, request: Box::new(request), body: Body::Memory(body) };
                    done.extend(self.broker.handle(event, now));
                }
                action => done.push(action),
            }
        }
        done
    }

    /// Postfix hands a message over by LMTP: what the broker is to receive.
    pub fn lmtp(
        &mut self,
        job: usize,
        recipients: Vec<usize>,
        addresses: &[String],
        message: &[u8],
    ) -> Result<Event, String> {
        let mut session = LmtpSession::new(lmtp_settings(), StartTls::NotOffered);
        let mut envelope = "LHLO mx\r\nMAIL FROM:<lisa@gmail.com>\r\n".to_owned();
        for address in addresses {
            envelope.push_str("RCPT TO:<");
            envelope.push_str(address);
            envelope.push_str(">\r\n");
        }
        envelope.push_str("DATA\r\n");
        let (_, Step::More) = session.feed(envelope.as_bytes()) else { return Err("no end to an envelope".into()) };
        let replies = String::from_utf8_lossy(&session.replies()).into_owned();
        let taken = replies.lines().filter(|line| line.starts_with("250 2.1.5 ")).count();
        if taken != addresses.len() || !replies.lines().next_back().is_some_and(|line| line.starts_with("354 ")) {
            return Err(format!("an envelope is not taken: {replies}"));
        }
        let mut data = String::from_utf8_lossy(message).replace('\n', "\r\n");
        data.push_str(".\r\n");
        let (_, Step::Deliver(transaction)) = session.feed(data.as_bytes()) else { return Err("no message".into()) };
        let id = LocalId(self.id());
        self.sessions.insert(id, Lmtp { job, recipients, session });
        Ok(Event::Submitted { id, request: Box::new(transaction.request), body: transaction.message })
    }

    /// What Postfix hears at the end of a message: of each recipient, by its place, whether it is delivered. `None`: it
    /// has hung up.
    pub fn answer(&mut self, id: LocalId, mut verdicts: Vec<Verdict>) -> Result<Option<Heard>, String> {
        let Some(Lmtp { job, recipients, mut session }) = self.sessions.remove(&id) else { return Ok(None) };
        if self.mistake == Some(Mistake::RepliesInAnotherOrder) {
            verdicts.reverse();
        }
        session.answer(Some(&verdicts));
        let mut replies = session.replies();
        if self.mistake == Some(Mistake::OneReplyTooMany) {
            replies.extend_from_slice(b"250 2.0.0 Ok\r\n");
        }
        let codes = read(&replies, recipients.len())?;
        Ok(Some((job, recipients.into_iter().zip(codes).collect())))
    }
}

/// What Postfix makes of the replies to a message: one for each recipient, in their order. One too many it takes for
/// the reply to its next command, which fits none of that command's: it bounces what it was about to send.
fn read(replies: &[u8], recipients: usize) -> Result<Vec<bool>, String> {
    let replies = String::from_utf8_lossy(replies);
    let mut lines = replies.lines();
    let mut collected = Vec::with_capacity(recipients);
    for line in lines.by_ref().take(recipients) {
        collected.push(match line.as_bytes().first() {
            Some(b'2') => true,
            Some(b'4') => false,
            _ => return Err(format!("BOUNCED: {line}")),
        });
    }
    if collected.len() < recipients {
        return Err(format!("{} replies, where there are {recipients} recipients", collected.len()));
    }
    lines.next().map_or(Ok(collected), |line| Err(format!("BOUNCED: a reply that nobody has asked for: {line}")))
}

fn settings(run: u64, max_per_recipient: usize) -> Settings {
    Settings {
        worker_wait: WORKER_WAIT,
        workers: 1,
        max_per_recipient,
        patience: PATIENCE,
        recipient_delimiter: "+".into(),
        mailbox_sessions: 2,
        longest_delivery: DEADLINE,
        run,
    }
}

fn lmtp_settings() -> Arc<lmtp::Settings> {
    thread_local! {
        static SETTINGS: Arc<lmtp::Settings> = Arc::new(lmtp::Settings {
            host: "mx1".into(),
            postmaster: "postmaster@x".into(),
            max_recipients: 50,
            deadline: DEADLINE,
            // No message here is so large that it goes into a file.
            spool: Arc::new(Spool { directory: "/nonexistent".into(), above: u64::MAX, limit: None }),
            tally: lmtp::LmtpTally::default(),
        });
    }
    SETTINGS.with(Arc::clone)
}
