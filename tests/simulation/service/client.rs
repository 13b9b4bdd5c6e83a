//! The program that pipe(8) starts where it hands its message to a front: the words of `handover`, and what they mean.
//!
//! What talks with the socket (`src/protocol/client.rs`) is not run here. This does the same: three tries, a look at
//! the caller before Go, a delivery of its own only where no Go was sent.

use super::{Around, Asked, Effect, Service, name};
use crate::scenario::Scenario;
use crate::service::front::{DEADLINE, Word};
use maildrop_command::delivery::Verdict;
use maildrop_command::message::Message;
use maildrop_command::protocol::{Header, Recipient, Reply, Request, Source};
use maildrop_command::service::broker::state::{ConnectionId, Event};
use std::hash::{Hash, Hasher};
use std::rc::Rc;
use std::time::Duration;
use uuid::Uuid;

/// How long one try may take.
const PATIENCE: Duration = Duration::from_millis(2500);

const TRIES: u32 = 3;

pub struct Client {
    pub host: usize,
    /// The name of its request.
    id: Uuid,
    recipients: Vec<usize>,
    message: Rc<Message>,
    cut: bool,
    /// Whether its parent has died.
    pub orphan: bool,
    pub connection: Option<ConnectionId>,
    pub stage: Stage,
    tries: u32,
    /// Until when it waits.
    until: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// It waits for the word that the broker has its message.
    AwaitsReceipt,
    /// It has that word, and has not said Go. The answers since then wait for it.
    HasReceipt(Option<Vec<bool>>),
    AwaitsReply,
}

impl Client {
    pub fn hash_state(&self, hash: &mut impl Hasher) {
        (self.id, &self.recipients, self.orphan, self.connection, &self.stage, self.tries, self.until).hash(hash);
    }
}

impl<'s> Service<'s> {
    /// pipe(8) starts a program, which hands the message to the front of its host.
    pub fn client(
        &mut self,
        host: usize,
        job: usize,
        recipients: Vec<usize>,
        message: &Rc<Message>,
        cut: bool,
        around: &mut Around<'_>,
    ) -> Result<(), String> {
        self.last_client += 1;
        let id = Uuid::from_u128(self.last_client);
        let (given, alone) = (false, false);
        self.asked.insert(id, Asked { job, cut, message: Rc::clone(message), given, alone });
        let message = Rc::clone(message);
        // A message that ends too early has an author who died.
        let (orphan, connection, stage, tries, until) = (cut, None, Stage::AwaitsReceipt, 0, Duration::ZERO);
        let client = Client { host, id, recipients, message, cut, orphan, connection, stage, tries, until };
        self.clients.insert(job, client);
        self.try_client(job, around)
    }

    /// A client's next try.
    fn try_client(&mut self, job: usize, around: &mut Around<'_>) -> Result<(), String> {
        let Some(client) = self.clients.get_mut(&job) else { return Ok(()) };
        let front = &mut self.fronts[client.host];
        if !front.up || client.tries == TRIES {
            return self.alone(job, around);
        }
        client.tries += 1;
        let connection = ConnectionId(front.id());
        (client.connection, client.stage, client.until) = (Some(connection), Stage::AwaitsReceipt, self.now + PATIENCE);
        let (id, tries) = (client.id, client.tries);
        let request = request(self.scenario, job, client);
        let frame = Header::Deliver(request).frame(client.message.as_received()).map_err(|error| error.to_string())?;
        around.trace.say(|| format!("client of job {job}: Deliver {id}, try {tries}"));
        if around.left.late_words > 0 && around.choice.mishap(2) > 0 {
            around.left.late_words -= 1;
            front.late.entry(connection).or_default();
        }
        self.say(job, Word::Said(frame), around)
    }

    fn say(&mut self, job: usize, word: Word, around: &mut Around<'_>) -> Result<(), String> {
        let Some(&Client { host, connection: Some(connection), .. }) = self.clients.get(&job) else { return Ok(()) };
        if let Some(words) = self.fronts[host].late.get_mut(&connection) {
            around.trace.say(|| format!("client of job {job}: that is on its way for longer"));
            words.push_back(word);
            return Ok(());
        }
        self.arrives(host, connection, word, around)
    }

    /// The front hears what a client has said.
    pub fn arrives(
        &mut self,
        host: usize,
        connection: ConnectionId,
        word: Word,
        around: &mut Around<'_>,
    ) -> Result<(), String> {
        let event = match word {
            Word::Said(body) => Event::ClientSaid { connection, body },
            Word::Gone => Event::ClientGone { connection },
        };
        self.event(host, event, around)
    }

    fn says(&mut self, job: usize, header: &Header, around: &mut Around<'_>) -> Result<(), String> {
        let frame = header.frame(b"").map_err(|error| error.to_string())?;
        around.trace.say(|| format!("client of job {job}: {header:?}"));
        self.say(job, Word::Said(frame), around)
    }

    /// A client closes its connection.
    fn closes(&mut self, job: usize, around: &mut Around<'_>) -> Result<(), String> {
        self.say(job, Word::Gone, around)?;
        if let Some(client) = self.clients.get_mut(&job) {
            client.connection = None;
        }
        Ok(())
    }

    /// The service has never said that it has the message: its client delivers it.
    fn alone(&mut self, job: usize, around: &mut Around<'_>) -> Result<(), String> {
        let Some(Client { id, recipients, cut, orphan, message, .. }) = self.clients.remove(&job) else {
            return Ok(());
        };
        around.trace.say(|| format!("client of job {job}: no service, it delivers by itself"));
        if let Some(asked) = self.asked.get_mut(&id) {
            asked.alone = true;
            if asked.given {
                return Err("a client delivers by itself what a worker has".into());
            }
        }
        self.effects.push_back(Effect::Alone { job, recipients, cut, orphan, message });
        Ok(())
    }

    /// A client ends without knowing what became of its message.
    fn is_deferred(&mut self, job: usize, around: &mut Around<'_>) {
        if self.clients.remove(&job).is_some() {
            around.trace.say(|| format!("client of job {job}: deferred"));
            self.effects.push_back(Effect::Deferred { job });
        }
    }

    /// A client is killed.
    pub fn client_dies(&mut self, job: usize, around: &mut Around<'_>) -> Result<(), String> {
        self.closes(job, around)?;
        self.is_deferred(job, around);
        Ok(())
    }

    /// A client has the broker's receipt, and goes on.
    pub fn client_goes_on(&mut self, job: usize, around: &mut Around<'_>) -> Result<(), String> {
        let until = self.now + DEADLINE;
        let Some(client) = self.clients.get_mut(&job) else { return Ok(()) };
        let id = client.id;
        if client.orphan {
            self.closes(job, around)?;
            self.is_deferred(job, around);
            return Ok(());
        }
        let early = match std::mem::replace(&mut client.stage, Stage::AwaitsReply) {
            Stage::HasReceipt(early) => early,
            _ => None,
        };
        client.until = until;
        self.says(job, &Header::Go { id }, around)?;
        match early {
            Some(delivered) => self.client_gets_reply(job, delivered, around),
            None => {
                // Its front has died meanwhile.
                if self.clients.get(&job).is_some_and(|client| client.connection.is_none()) {
                    self.is_deferred(job, around);
                }
                Ok(())
            }
        }
    }

    /// The front says something to a client.
    pub fn tell(
        &mut self,
        host: usize,
        connection: ConnectionId,
        body: &[u8],
        around: &mut Around<'_>,
    ) -> Result<(), String> {
        let at = |client: &Client| client.host == host && client.connection == Some(connection);
        let Some((&job, client)) = self.clients.iter_mut().find(|(_, client)| at(client)) else { return Ok(()) };
        let (header, _) = Header::read(body).map_err(|error| error.to_string())?;
        around.trace.say(|| format!("client of job {job} is answered: {header:?}"));
        let delivered = match header {
            Header::Received { id } if id == client.id && client.stage == Stage::AwaitsReceipt => {
                client.stage = Stage::HasReceipt(None);
                return Ok(());
            }
            Header::Reply(Reply { id, results, .. }) if id == client.id => delivered(&results)?,
            header => return Err(format!("a client is answered what it cannot understand: {header:?}")),
        };
        if delivered.len() != client.recipients.len() {
            return Err("not one result for each of a client's recipients".into());
        }
        match &client.stage {
            Stage::AwaitsReceipt if delivered.contains(&true) => {
                Err("a client has said no Go, and is answered with success".into())
            }
            Stage::HasReceipt(_) => {
                client.stage = Stage::HasReceipt(Some(delivered));
                Ok(())
            }
            Stage::AwaitsReceipt | Stage::AwaitsReply => self.client_gets_reply(job, delivered, around),
        }
    }

    /// A client ends, and tells Postfix, if that is still there, what became of its message.
    fn client_gets_reply(&mut self, job: usize, delivered: Vec<bool>, around: &mut Around<'_>) -> Result<(), String> {
        self.closes(job, around)?;
        let Some(Client { recipients, orphan, .. }) = self.clients.remove(&job) else { return Ok(()) };
        self.effects.push_back(if orphan {
            Effect::Deferred { job }
        } else {
            Effect::Replied { job, delivered: recipients.into_iter().zip(delivered).collect() }
        });
        Ok(())
    }

    /// A client's front has died.
    pub fn client_is_cut_off(&mut self, job: usize, around: &mut Around<'_>) -> Result<(), String> {
        let Some(client) = self.clients.get_mut(&job) else { return Ok(()) };
        client.connection = None;
        match client.stage {
            Stage::AwaitsReceipt => self.try_client(job, around),
            // It learns so when it says Go.
            Stage::HasReceipt(_) => Ok(()),
            Stage::AwaitsReply => {
                self.is_deferred(job, around);
                Ok(())
            }
        }
    }

    /// A front closes a client's connection: the client has said Go for what the front does not have (any more).
    pub fn client_is_sent_away(
        &mut self,
        host: usize,
        connection: ConnectionId,
        around: &mut Around<'_>,
    ) -> Result<(), String> {
        around.trace.say(|| format!("the front of host {host} closes {connection:?}"));
        self.fronts[host].late.remove(&connection);
        let at = |client: &Client| client.host == host && client.connection == Some(connection);
        if let Some((&job, client)) = self.clients.iter().find(|(_, client)| at(client)) {
            if client.stage != Stage::AwaitsReply {
                return Err("a client whose words make sense is sent away".into());
            }
            self.client_is_cut_off(job, around)?;
        }
        self.event(host, Event::ClientGone { connection }, around)
    }

    /// Those clients that have waited for too long go on without.
    pub fn clients_lose_patience(&mut self, around: &mut Around<'_>) -> Result<(), String> {
        let late = self.clients.iter().filter(|(_, client)| self.now >= client.until);
        for job in late.map(|(job, _)| *job).collect::<Vec<_>>() {
            let Some(client) = self.clients.get(&job) else { continue };
            match client.stage {
                Stage::HasReceipt(_) => {}
                Stage::AwaitsReceipt => {
                    self.closes(job, around)?;
                    self.try_client(job, around)?;
                }
                Stage::AwaitsReply => {
                    self.closes(job, around)?;
                    self.is_deferred(job, around);
                }
            }
        }
        Ok(())
    }
}

fn request(scenario: &Scenario, job: usize, client: &Client) -> Request {
    let recipients = client.recipients.iter().map(|&place| scenario.jobs[job].recipients[place]);
    Request {
        id: client.id,
        time_left_ms: u64::try_from(DEADLINE.as_millis()).expect("minutes"),
        sender: "lisa@gmail.com".into(),
        recipients: recipients.map(|user| Recipient { address: name(user), original: None }).collect(),
        queue_id: None,
        client_address: None,
        sasl_username: None,
        lock_wait_ms: None,
        no_sent: false,
        size: client.message.as_received().len() as u64,
        file: None,
        source: Source::Mta,
        suspect: false,
        slow: false,
    }
}

/// Of each verdict, whether it says that the message is there.
fn delivered(verdicts: &[Verdict]) -> Result<Vec<bool>, String> {
    let class = |verdict: &Verdict| match verdict.line().as_bytes().first() {
        Some(b'2') => Ok(true),
        Some(b'4') => Ok(false),
        _ => Err(format!("BOUNCED: {verdict}")),
    };
    verdicts.iter().map(class).collect()
}
