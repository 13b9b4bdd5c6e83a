//! Waits for servers, in the subcommands that people start. (A delivery has its [watchdog](crate::pipe::deadline_watchdog).)
//!
//! A server that hangs (SIGSTOP, a paused container, a stuck disk) keeps its connections. The server's kernel acknowledges what
//! is sent, so no time limit of TCP ends the wait. No fixed limit fits: an index on a large table may take an hour.
//!
//! So code that waits for an answer registers the wait ([`for_answer`]), and one thread watches these waits ([`watch`]). The
//! thread reports to a person at a terminal which server has not answered yet. Every ten seconds it sends the server a small
//! request over another connection, which a busy server answers. If the server does not answer, the process ends.

use crate::base::deadline::Deadline;
use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// After how long a wait is reported to a person, and the interval of further reports.
const REPORT_AFTER: Duration = Duration::from_secs(2);
/// After how long a server is probed over another connection, and the interval of further probes.
const ASK_AFTER: Duration = Duration::from_secs(10);
/// How long a probe may take, including the login, on an overloaded server.
const ASK_FOR: Duration = Duration::from_secs(20);
/// How often the thread checks the waits.
const LOOK: Duration = Duration::from_millis(250);

/// The kind of server that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerKind {
    Database,
    MailboxStore,
}

/// A server that may be waited for.
pub(crate) struct WaitedServer {
    pub kind: ServerKind,
    /// What people call it: `the database at db.example.com port 5432`.
    pub name: String,
    /// Sends the server a small request over a separate connection. Returns whether it answered; an error is an answer too.
    pub ask: Arc<dyn Fn(Deadline) -> bool + Send + Sync>,
}

/// The waits of this process.
static WAITS: Mutex<Waits> = Mutex::new(Waits { last: 0, open: BTreeMap::new(), are_watched: false });

struct Waits {
    last: u64,
    open: BTreeMap<u64, OpenWait>,
    are_watched: bool,
}

struct OpenWait {
    kind: ServerKind,
    since: Instant,
    /// Whether this is a probe over another connection, which has a limit of its own.
    is_probe: bool,
}

thread_local! {
    /// Whether this thread sends a probe over another connection.
    static ASKS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// A wait for an answer, which ends when this is dropped.
#[must_use]
pub(crate) struct Awaited(u64);

fn waits() -> MutexGuard<'static, Waits> {
    WAITS.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn for_answer(kind: ServerKind) -> Awaited {
    let mut waits = waits();
    waits.last += 1;
    let number = waits.last;
    waits.open.insert(number, OpenWait { kind, since: Instant::now(), is_probe: ASKS.get() });
    Awaited(number)
}

impl Drop for Awaited {
    fn drop(&mut self) {
        waits().open.remove(&self.0);
    }
}

/// The kind of server for whose answer this process has waited longest.
pub(crate) fn awaited() -> Option<ServerKind> {
    waits().open.values().next().map(|wait| wait.kind)
}

/// Whether the waits of this process are watched.
pub(crate) fn are_watched() -> bool {
    waits().are_watched
}

/// Whether a wait has lasted so long that [`watch`] reports it.
pub(crate) fn is_shown() -> bool {
    are_watched() && oldest(|_| true).is_some_and(|(_, since)| since.elapsed() >= REPORT_AFTER)
}

fn oldest(of: impl Fn(ServerKind) -> bool) -> Option<(u64, Instant)> {
    let waits = waits();
    let found = waits.open.iter().find(|(_, wait)| !wait.is_probe && of(wait.kind));
    found.map(|(number, wait)| (*number, wait.since))
}

/// Watches the waits of this process from now on. A second call changes nothing.
///
/// `report` reports to a person which server has not answered yet. `end` ends the process for the given reason: a server hangs, or
/// an answer has been missing for longer than `longest`.
///
/// # Errors
/// If the system gives no thread.
pub(crate) fn watch(
    servers: Vec<WaitedServer>,
    longest: Duration,
    report: impl Fn(&str) + Send + 'static,
    end: impl Fn(&str) + Send + 'static,
) -> io::Result<()> {
    if servers.is_empty() || std::mem::replace(&mut waits().are_watched, true) {
        return Ok(());
    }
    let mut watched: Vec<WatchedServer> = servers.into_iter().map(WatchedServer::new).collect();
    let watch = move || {
        loop {
            thread::sleep(LOOK);
            for server in &mut watched {
                match server.look(longest) {
                    WaitCheck::Nothing => {}
                    WaitCheck::Report(text) => report(&text),
                    WaitCheck::End(text) => end(&text),
                }
            }
        }
    };
    thread::Builder::new().name("waiting".into()).spawn(watch).map(|_| ())
}

/// The result of one check of a server.
enum WaitCheck {
    Nothing,
    Report(String),
    End(String),
}

/// A server, and the longest current wait for it.
struct WatchedServer {
    server: WaitedServer,
    wait: Option<u64>,
    /// How long the wait had lasted at the last report, and at the last successful probe.
    shown: Duration,
    asked: Duration,
    asking: Option<(Receiver<bool>, Instant)>,
}

impl WatchedServer {
    fn new(server: WaitedServer) -> Self {
        Self { server, wait: None, shown: Duration::ZERO, asked: Duration::ZERO, asking: None }
    }

    fn look(&mut self, longest: Duration) -> WaitCheck {
        let found = oldest(|kind| kind == self.server.kind);
        let wait = found.map(|(number, _)| number);
        if self.wait != wait {
            (self.wait, self.shown, self.asked, self.asking) = (wait, Duration::ZERO, Duration::ZERO, None);
        }
        let Some((_, since)) = found else { return WaitCheck::Nothing };
        let (waited, name) = (since.elapsed(), &self.server.name);
        let seconds = waited.as_secs();
        if waited >= longest {
            return WaitCheck::End(format!("{name} has not answered for {seconds} s, longer than any answer may take"));
        }
        match &self.asking {
            None if waited >= self.asked + ASK_AFTER => self.asking = self.ask(),
            None => {}
            Some((answer, asked)) => match answer.try_recv() {
                Ok(true) => (self.asking, self.asked) = (None, waited),
                Err(TryRecvError::Empty) if asked.elapsed() < ASK_FOR => {}
                // A probe whose thread has panicked counts as one without an answer.
                Ok(false) | Err(TryRecvError::Empty | TryRecvError::Disconnected) => {
                    let text = format!("{name} has not answered for {seconds} s, nor does it over another connection");
                    return WaitCheck::End(text);
                }
            },
        }
        if waited >= self.shown + REPORT_AFTER {
            self.shown = waited;
            return WaitCheck::Report(format!("waiting for {name} … {seconds} s"));
        }
        WaitCheck::Nothing
    }

    /// Sends the probe on a thread of its own, which may block too. `None` if the system gives no thread, which is no fault of
    /// the server.
    fn ask(&self) -> Option<(Receiver<bool>, Instant)> {
        let (say, answer) = mpsc::channel();
        let ask = Arc::clone(&self.server.ask);
        let asking = move || {
            ASKS.set(true);
            // The receiver is gone once the wait that the probe belonged to has ended.
            let _ = say.send(ask(Deadline::after(ASK_FOR)));
        };
        thread::Builder::new().name("asking".into()).spawn(asking).ok().map(|_| (answer, Instant::now()))
    }
}
