//! Waits for servers, for the subcommands that people start. (A delivery has its [watchdog](crate::pipe::watchdog).)
//!
//! A server that stands still (SIGSTOP, a paused container, a disk that hangs) keeps its connections: its kernel acknowledges what is
//! sent, so no time limit of TCP ends the wait. A fixed limit would not do: an index on a large table may take an hour.
//!
//! So code that waits for an answer says so ([`for_answer`]), and one thread watches these waits ([`watch`]). It tells a person at a
//! terminal which server is waited for. Every ten seconds it asks the server something small over another connection: a server that
//! is busy answers that. With one that does not, the process ends.

use crate::base::deadline::Deadline;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// When, and how often, a person is told.
const TELL_AFTER: Duration = Duration::from_secs(2);
/// When, and how often, a server is asked over another connection.
const ASK_AFTER: Duration = Duration::from_secs(10);
/// How long that may take, the login included, on a server that is short of everything.
const ASK_FOR: Duration = Duration::from_secs(20);
/// How often the waits are looked at.
const LOOK: Duration = Duration::from_millis(250);

/// Who is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whom {
    Database,
    MailboxStore,
}

/// A server that may be waited for.
pub(crate) struct Server {
    /// Who it is.
    pub whom: Whom,
    /// What people call it: `the database at db.example.com port 5432`.
    pub name: String,
    /// Asks it something small over a connection of its own; whether it answered, be it by an error.
    pub ask: Arc<dyn Fn(Deadline) -> bool + Send + Sync>,
}

/// The waits of a process that is watched; nothing in any other, a delivery among them.
static WAITS: OnceLock<Mutex<Waits>> = OnceLock::new();

#[derive(Default)]
struct Waits {
    last: u64,
    open: BTreeMap<u64, (Whom, Instant)>,
}

/// How many answers this process waits for, watched or not.
static AWAITED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Whether this thread asks over another connection: that wait has a limit of its own.
    static ASKS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// An answer that is waited for, until this is dropped.
#[must_use]
pub(crate) struct Awaited(Option<u64>);

/// Says that an answer is waited for.
pub(crate) fn for_answer(whom: Whom) -> Awaited {
    AWAITED.fetch_add(1, Ordering::Relaxed);
    let Some(waits) = WAITS.get().filter(|_| !ASKS.get()) else { return Awaited(None) };
    let mut waits = waits.lock().unwrap_or_else(PoisonError::into_inner);
    waits.last += 1;
    let number = waits.last;
    waits.open.insert(number, (whom, Instant::now()));
    Awaited(Some(number))
}

impl Drop for Awaited {
    fn drop(&mut self) {
        AWAITED.fetch_sub(1, Ordering::Relaxed);
        if let (Some(number), Some(waits)) = (self.0, WAITS.get()) {
            waits.lock().unwrap_or_else(PoisonError::into_inner).open.remove(&number);
        }
    }
}

/// Whether this process waits for an answer.
pub(crate) fn is_awaited() -> bool {
    AWAITED.load(Ordering::Relaxed) > 0
}

/// Whether the waits of this process are watched.
pub(crate) fn are_watched() -> bool {
    WAITS.get().is_some()
}

/// Whether a wait is open, so that [`watch`] tells of it.
pub(crate) fn is_told() -> bool {
    oldest(|_| true).is_some_and(|(_, since)| since.elapsed() >= TELL_AFTER)
}

fn oldest(of: impl Fn(Whom) -> bool) -> Option<(u64, Instant)> {
    let waits = WAITS.get()?.lock().unwrap_or_else(PoisonError::into_inner);
    waits.open.iter().find(|(_, (whom, _))| of(*whom)).map(|(number, (_, since))| (*number, *since))
}

/// Watches over the waits of this process from now on. `tell` tells a person who is waited for; `end` ends the process, for the
/// reason that it is given: a server stands still, or an answer has been missing for longer than `longest`. Where this was
/// called before, that stands.
///
/// # Errors
/// The system gives us no thread.
pub(crate) fn watch(
    servers: Vec<Server>,
    longest: Duration,
    tell: impl Fn(&str) + Send + 'static,
    end: impl Fn(&str) + Send + 'static,
) -> io::Result<()> {
    if servers.is_empty() || WAITS.set(Mutex::default()).is_err() {
        return Ok(());
    }
    let mut watched: Vec<Watched> = servers.into_iter().map(Watched::new).collect();
    let watch = move || {
        loop {
            thread::sleep(LOOK);
            for server in &mut watched {
                match server.look(longest) {
                    Look::Nothing => {}
                    Look::Tell(text) => tell(&text),
                    Look::End(text) => end(&text),
                }
            }
        }
    };
    thread::Builder::new().name("waiting".into()).spawn(watch).map(|_| ())
}

/// What has to be done about a server.
enum Look {
    Nothing,
    Tell(String),
    End(String),
}

/// A server, and the wait for it that has lasted longest.
struct Watched {
    server: Server,
    wait: Option<u64>,
    /// How long it had lasted when it was told, and when the server was asked.
    told: Duration,
    asked: Duration,
    asking: Option<(Receiver<bool>, Instant)>,
}

impl Watched {
    fn new(server: Server) -> Self {
        Self { server, wait: None, told: Duration::ZERO, asked: Duration::ZERO, asking: None }
    }

    fn look(&mut self, longest: Duration) -> Look {
        let found = oldest(|whom| whom == self.server.whom);
        let wait = found.map(|(number, _)| number);
        if self.wait != wait {
            (self.wait, self.told, self.asked, self.asking) = (wait, Duration::ZERO, Duration::ZERO, None);
        }
        let Some((_, since)) = found else { return Look::Nothing };
        let (waited, name) = (since.elapsed(), &self.server.name);
        let seconds = waited.as_secs();
        if waited >= longest {
            return Look::End(format!("{name} has not answered for {seconds} s, longer than any answer may take"));
        }
        match &self.asking {
            None if waited >= self.asked + ASK_AFTER => self.asking = self.ask(),
            None => {}
            Some((answer, asked)) => match answer.try_recv() {
                Ok(true) => (self.asking, self.asked) = (None, waited),
                Err(TryRecvError::Empty) if asked.elapsed() < ASK_FOR => {}
                // A thread that asks and has panicked has no answer either.
                Ok(false) | Err(TryRecvError::Empty | TryRecvError::Disconnected) => {
                    let text = format!("{name} has not answered for {seconds} s, nor does it over another connection");
                    return Look::End(text);
                }
            },
        }
        if waited >= self.told + TELL_AFTER {
            self.told = waited;
            return Look::Tell(format!("waiting for {name} … {seconds} s"));
        }
        Look::Nothing
    }

    /// Asks on a thread of its own, which may block like the rest. `None` where the system gives no thread: then the server is not
    /// blamed.
    fn ask(&self) -> Option<(Receiver<bool>, Instant)> {
        let (say, answer) = mpsc::channel();
        let ask = Arc::clone(&self.server.ask);
        let asking = move || {
            ASKS.set(true);
            // The receiver is gone once the first answer has come.
            let _ = say.send(ask(Deadline::after(ASK_FOR)));
        };
        thread::Builder::new().name("asking".into()).spawn(asking).ok().map(|_| (answer, Instant::now()))
    }
}
