//! What happens at the service by itself, while deliveries run: fronts die, workers hang, words are late, time
//! passes.

use super::front::Word;
use super::{Around, DEAD, Effect, SILENT, Service};
use crate::scenario::Left;
use maildrop_command::service::broker::state::{ConnectionId, LocalId};
use std::collections::VecDeque;

/// Something that happens by itself.
#[derive(Clone, Copy)]
enum Happening {
    FrontDies(usize),
    WorkerStops(usize),
    WorkerContinues(usize),
    Passes(u32),
    /// lmtp(8) gives up its connection, or dies.
    HangsUp(usize, LocalId),
    /// pipe(8) dies.
    CallerDies(usize),
    /// The program that it has started is killed.
    ClientDies(usize),
    Arrives(usize, ConnectionId),
}

impl Service<'_> {
    /// Something happens by itself, or nothing does. `false`: nothing.
    pub fn happens(&mut self, around: &mut Around<'_>) -> Result<bool, String> {
        let kinds = self.possible(*around.left);
        let Some(kind) = around.choice.mishap(kinds.len() + 1).checked_sub(1) else { return Ok(false) };
        let happening = kinds[kind][around.choice.one_of(kinds[kind].len())];
        self.happen(happening, around)?;
        Ok(true)
    }

    fn possible(&self, left: Left) -> Vec<Vec<Happening>> {
        let mut kinds = vec![Vec::new(); 6];
        let hosts = 0..self.fronts.len();
        let workers = self.workers.iter().enumerate();
        if left.fronts_die > 0 {
            kinds[0].extend(hosts.clone().filter(|host| self.fronts[*host].up).map(Happening::FrontDies));
        }
        if left.stops > 0 {
            let stops = workers.clone().filter(|(_, worker)| worker.alive && !worker.stopped);
            kinds[1].extend(stops.map(|(which, _)| Happening::WorkerStops(which)));
        }
        let stopped = workers.filter(|(_, worker)| worker.stopped);
        kinds[2].extend(stopped.map(|(which, _)| Happening::WorkerContinues(which)));
        if left.passes > 0 {
            kinds[3].extend([SILENT, DEAD].map(Happening::Passes));
        }
        if left.callers_die > 0 {
            for host in hosts.clone() {
                kinds[4].extend(self.fronts[host].sessions.keys().map(|id| Happening::HangsUp(host, *id)));
            }
            let callers = self.clients.iter().filter(|(_, client)| !client.orphan);
            kinds[4].extend(callers.map(|(job, _)| Happening::CallerDies(*job)));
            kinds[4].extend(self.clients.keys().map(|job| Happening::ClientDies(*job)));
        }
        for host in hosts {
            kinds[5].extend(self.late_words(host).map(|connection| Happening::Arrives(host, connection)));
        }
        kinds.retain(|happenings| !happenings.is_empty());
        kinds
    }

    pub fn late_words(&self, host: usize) -> impl Iterator<Item = ConnectionId> {
        self.fronts[host].late.iter().filter(|(_, words)| !words.is_empty()).map(|(connection, _)| *connection)
    }

    fn happen(&mut self, happening: Happening, around: &mut Around<'_>) -> Result<(), String> {
        match happening {
            Happening::FrontDies(host) => {
                around.left.fronts_die -= 1;
                self.front_dies(host, around)
            }
            Happening::WorkerStops(which) => {
                around.left.stops -= 1;
                around.trace.say(|| format!("worker {which} hangs"));
                self.workers[which].stopped = true;
                Ok(())
            }
            Happening::WorkerContinues(which) => self.continues(which, around),
            Happening::Passes(seconds) => {
                around.left.passes -= 1;
                self.pass(seconds, around)
            }
            Happening::HangsUp(host, id) => {
                around.left.callers_die -= 1;
                if let Some(lmtp) = self.fronts[host].sessions.remove(&id) {
                    around.trace.say(|| format!("lmtp(8) of job {} hangs up", lmtp.job));
                    self.effects.push_back(Effect::Deferred { job: lmtp.job });
                }
                Ok(())
            }
            Happening::CallerDies(job) => {
                around.left.callers_die -= 1;
                around.trace.say(|| format!("pipe(8) of job {job} dies"));
                if let Some(client) = self.clients.get_mut(&job) {
                    client.orphan = true;
                }
                Ok(())
            }
            Happening::ClientDies(job) => {
                around.left.callers_die -= 1;
                around.trace.say(|| format!("client of job {job} is killed"));
                self.client_dies(job, around)
            }
            Happening::Arrives(host, connection) => self.next_word_arrives(host, connection, around),
        }
    }

    pub fn next_word_arrives(
        &mut self,
        host: usize,
        connection: ConnectionId,
        around: &mut Around<'_>,
    ) -> Result<(), String> {
        let words = self.fronts[host].late.get_mut(&connection);
        let Some(word) = words.and_then(VecDeque::pop_front) else { return Ok(()) };
        around.trace.say(|| format!("what a client had said at {connection:?} arrives"));
        if matches!(word, Word::Gone) {
            self.fronts[host].late.remove(&connection);
        }
        self.arrives(host, connection, word, around)
    }
}
