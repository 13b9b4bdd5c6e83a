//! What the front tells the master, and hears of it: how it stands, and which workers have ended.

use super::broker::sockets::{Report as Broker, Started};
use super::master::front_channel::{Notice, Report};
use super::shunt::WorkerEnd;
use super::timer::written_down;
use crate::config::Serve;
use crate::protocol::control::{Status, Task, line};
use crate::queue::{Queue, State, Waiting};
use serde_json::{Map, Value};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, info, warn};

/// How often it is looked whether the database is away, which the master hears of unasked.
const LOOK: Duration = Duration::from_millis(100);

/// How old a look into the file queue may be.
const FRESH: Duration = Duration::from_secs(5);

/// Answers the master, and tells it of each change, until it has ended. What it says of the service goes to `service`.
///
/// # Errors
/// Where it cannot be talked with any more: it has ended, and the system is about to tell us to.
pub async fn tell_master(
    master: UnixStream,
    ask: mpsc::Sender<oneshot::Sender<Broker>>,
    started: watch::Sender<Started>,
    ended: mpsc::Sender<WorkerEnd>,
    stop: watch::Receiver<bool>,
    service: watch::Sender<Option<Status>>,
    serve: &Serve,
) -> io::Result<()> {
    let mut files = Files::of(serve);
    let (heard, mut says) = tokio::net::UnixStream::from_std(master)?.into_split();
    let mut notices = BufReader::new(heard).lines();
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = None;
    loop {
        let asked = tokio::select! {
            notice = notices.next_line() => match notice? {
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(notice) => match heard_of(&notice, &service) {
                    Heard::Asks => true,
                    Heard::Nothing => false,
                    Heard::Started(pid) => {
                        started.send_modify(|started| started.extend([pid]));
                        false
                    }
                    Heard::Ended(worker) => {
                        // Its number may be another process's from now on.
                        let pid = i32::try_from(worker.pid).ok();
                        started.send_modify(|started| started.retain(|one| Some(*one) != pid));
                        // The broker ends with this process.
                        if ended.send(worker).await.is_err() {
                            return Ok(());
                        }
                        false
                    }
                },
            },
            _ = looks.tick() => false,
        };
        let (tell, told) = oneshot::channel();
        // The broker ends with this process.
        if ask.send(tell).await.is_err() {
            return Ok(());
        }
        let Ok(broker) = told.await else { return Ok(()) };
        let standing = (!*stop.borrow(), broker.database_away.clone());
        files.look().await;
        if asked || last.as_ref() != Some(&standing) {
            let (accepting, database_away) = standing.clone();
            let (known, timer) = (known(&broker, files.seen.queue.iter()), files.seen.timer.clone());
            let report = Report::Standing { accepting, database_away, known, timer };
            says.write_all(line(&report).as_bytes()).await?;
            last = Some(standing);
        }
    }
}

/// What waits in the file queue, and what the timer has written down. They are read by another thread, now and then: a folder of a
/// million files takes a while, and the master is answered at once.
struct Files {
    queue: PathBuf,
    /// `None`: there is no timer.
    timer: Option<PathBuf>,
    looks: Option<JoinHandle<Seen>>,
    looked: Option<Instant>,
    /// What was read last; nothing where it could not be.
    seen: Seen,
}

#[derive(Default)]
struct Seen {
    queue: Vec<(State, Waiting)>,
    timer: Vec<Task>,
}

impl Files {
    fn of(serve: &Serve) -> Self {
        let timer = serve.has_timer().then(|| serve.timer_state());
        Self { queue: serve.queue(), timer, looks: None, looked: None, seen: Seen::default() }
    }

    /// Takes what was seen, if a look has ended; begins another one when it is time. It does not wait for one.
    async fn look(&mut self) {
        if self.looks.as_ref().is_some_and(JoinHandle::is_finished)
            && let Some(look) = self.looks.take()
        {
            (self.seen, self.looked) = (look.await.unwrap_or_default(), Some(Instant::now()));
        }
        if self.looks.is_none() && self.looked.is_none_or(|looked| looked.elapsed() >= FRESH) {
            let (queue, timer) = (self.queue.clone(), self.timer.clone());
            self.looks = Some(tokio::task::spawn_blocking(move || {
                let waiting = Queue::existing(&queue).and_then(|queue| queue.waiting());
                let queue =
                    waiting.inspect_err(|error| debug!(%error, "the file queue cannot be counted")).unwrap_or_default();
                Seen { queue, timer: timer.as_deref().map(written_down).unwrap_or_default() }
            }));
        }
    }
}

/// What the master says.
enum Heard {
    /// It asks how we stand.
    Asks,
    /// A worker, by its process.
    Started(i32),
    Ended(WorkerEnd),
    Nothing,
}

fn heard_of(notice: &str, service: &watch::Sender<Option<Status>>) -> Heard {
    match serde_json::from_str(notice) {
        Ok(Notice::Ask) => Heard::Asks,
        Ok(Notice::Service { status }) => {
            service.send_replace(Some(*status));
            Heard::Nothing
        }
        Ok(Notice::WorkerEnded { number, pid, end, by_us, said }) => {
            if !by_us {
                info!(number, pid, ?end, "a worker has ended");
            }
            Heard::Ended(WorkerEnd { pid, end, by_us, said })
        }
        // The system gives no other numbers.
        Ok(Notice::WorkerStarted { pid, .. }) => i32::try_from(pid).map_or(Heard::Nothing, Heard::Started),
        Err(error) => {
            warn!(%error, "what the master says cannot be read");
            Heard::Nothing
        }
    }
}

/// The figures for people.
fn known<'a>(broker: &Broker, queue: impl Iterator<Item = &'a (State, Waiting)>) -> Map<String, Value> {
    let standing = &broker.standing;
    let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let figures = [
        ("queued", standing.queued),
        ("held", standing.held),
        ("ready", standing.ready),
        ("busy", standing.busy),
        ("silent", standing.silent),
        ("suspects", standing.suspects),
    ];
    let figures = figures.map(|(name, count)| (name, number(count)));
    let figures = figures.into_iter().map(|(name, number)| (name.to_owned(), Value::from(number)));
    let queue = queue.map(|(state, it)| (format!("file_queue_{state}"), Value::from(number(it.messages))));
    figures.chain(queue).collect()
}

#[cfg(test)]
#[path = "master_link_tests.rs"]
mod tests;
