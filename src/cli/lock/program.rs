//! A program that runs while its lock is held, and not a moment longer: `lock exec`.
//!
//! One loop hears everything: what the [thread that holds the lock](crate::operations::hold_lock) says, signals, and that
//! the program has ended. Where the lock is lost, the program and all that it started get SIGTERM, and what is left after
//! the grace SIGKILL.
//!
//! The program has a process group of its own, so that a signal reaches all that it started; but if standard input is a
//! terminal it stays in ours, or it could not read from it: then a key like Ctrl-C reaches it by itself, and a signal sent
//! to us reaches the program alone.

use crate::base::deadline::Deadline;
use crate::database::{DatabaseError, DatabaseFailure};
use crate::ledger::Database;
use crate::lock::{Acquired, Holder};
use crate::operations::hold_lock::{LockRequest, PATIENCE, PERIOD, Report, hold};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;

/// What connecting may take, beside the wait for the lock.
const CONNECTING: Duration = Duration::from_secs(30);
/// Between two looks whether all that the program started has ended.
const LOOK: Duration = Duration::from_millis(50);
/// What is passed on to the program.
const PASSED_ON: [(i32, Signal); 6] = [
    (SIGHUP, Signal::HUP),
    (SIGINT, Signal::INT),
    (SIGQUIT, Signal::QUIT),
    (SIGTERM, Signal::TERM),
    (SIGUSR1, Signal::USR1),
    (SIGUSR2, Signal::USR2),
];

/// How it went.
#[derive(Debug)]
pub enum Outcome {
    /// The lock is held elsewhere. The program was not started.
    Busy(Option<Holder>),
    /// A signal came while it waited for the lock. The program was not started.
    Interrupted(i32),
    /// The program ended by itself, and the lock was held to its end: its exit status, 128 + n where signal n ended it.
    Ended(u8),
    /// The lock was lost while the program ran, which has been ended.
    Lost(String),
}

/// It could not be run.
#[derive(Debug, Error)]
pub(crate) enum ProgramError {
    /// The lock could not be asked for.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The system refuses a process, a thread or a signal's handler.
    #[error("{doing}: {source}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// Why not.
        source: io::Error,
    },
}

fn refused(doing: &'static str) -> impl Fn(io::Error) -> ProgramError {
    move |source| ProgramError::System { doing, source }
}

enum Event {
    Lock(Report),
    Signal(i32),
    /// The program has ended, and waits to be collected.
    Ended,
}

/// Takes the lock over the connection that `open` makes, runs `command` while it holds it, and lets go of it. Where the
/// lock is lost, the program has `grace` to end after SIGTERM.
///
/// # Errors
/// [`ProgramError`], before the program was started.
pub(crate) fn run_under_lock(
    open: impl FnOnce(Deadline) -> Result<Box<dyn Database>, DatabaseError> + Send + 'static,
    request: LockRequest,
    command: &[OsString],
    grace: Duration,
) -> Result<Outcome, ProgramError> {
    let (send, events) = mpsc::channel();
    pass_signals_on(send.clone())?;
    let deadline = Deadline::after(request.wait.saturating_add(CONNECTING));
    let (done, wait) = mpsc::channel::<()>();
    let holder = {
        let send = send.clone();
        move || {
            // Nobody hears what is said to a process that ends.
            let report = |report| drop(send.send(Event::Lock(report)));
            match open(deadline) {
                Ok(mut database) => hold(database.as_mut(), &request, grace, &wait, report),
                Err(error) => report(Report::Asked(Err(error))),
            }
        }
    };
    thread::Builder::new().name("lock".into()).spawn(holder).map_err(refused("starting the lock's thread"))?;

    match events.recv_timeout(deadline.remaining() + PATIENCE) {
        Ok(Event::Lock(Report::Asked(Ok(Acquired::Held)))) => {}
        Ok(Event::Lock(Report::Asked(Ok(Acquired::Busy(holder))))) => return Ok(Outcome::Busy(holder)),
        Ok(Event::Lock(Report::Asked(Err(error)))) => return Err(error.into()),
        Ok(Event::Signal(signal)) => return Ok(Outcome::Interrupted(signal)),
        Ok(_) | Err(_) => {
            let detail = "the server does not answer";
            return Err(DatabaseError::new(DatabaseFailure::TimedOut, "asking for the lock", detail).into());
        }
    }
    let mut running = Running::start(command, grace, send)?;
    let lost = running.watch(&events);
    let status = running.child.wait().map_err(refused("collecting the program"))?;
    if let Some(why) = lost {
        return Ok(Outcome::Lost(why));
    }
    drop(done);
    Ok(match let_go(&events) {
        Ok(()) => {
            let status = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
            Outcome::Ended(status.and_then(|status| u8::try_from(status).ok()).unwrap_or(u8::MAX))
        }
        Err(why) => Outcome::Lost(why),
    })
}

/// Waits until the lock is let go, and with it for the word that it was held to the end.
fn let_go(events: &Receiver<Event>) -> Result<(), String> {
    let end = Instant::now() + PATIENCE;
    loop {
        match events.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(Event::Lock(Report::LetGo)) => return Ok(()),
            Ok(Event::Lock(Report::Lost(why))) => return Err(why),
            Ok(_) => {}
            Err(_) => return Err("the server does not answer".into()),
        }
    }
}

/// Hears signals from now on: those that ended the process until now, unless whoever started it had them ignored
/// (nohup(1), a shell's background job), which the program inherits.
fn pass_signals_on(send: Sender<Event>) -> Result<(), ProgramError> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    // Ctrl-Z stops the terminal's foreground group. A program that has a group of its own would go on, while we, stopped,
    // lose its lock, and another machine begins: so nothing is stopped.
    let stop = has_own_group().then_some(SIGTSTP);
    let heard = PASSED_ON.iter().map(|(number, _)| *number).chain(stop);
    let heard = heard.filter(|number| ignored & (1 << (number - 1)) == 0);
    let mut signals = Signals::new(heard).map_err(refused("setting up signals"))?;
    let hear = move || {
        for signal in signals.forever() {
            if signal != SIGTSTP && send.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(hear).map_err(refused("starting the signals' thread"))?;
    Ok(())
}

/// Whether the program gets a process group of its own: not if it may read from a terminal.
fn has_own_group() -> bool {
    !io::stdin().is_terminal()
}

/// The program.
struct Running {
    child: Child,
    pid: Pid,
    /// Whether it has a process group of its own.
    grouped: bool,
    grace: Duration,
}

impl Running {
    /// Starts it by way of this program, which puts itself under [`die_with`] and becomes it.
    fn start(command: &[OsString], grace: Duration, send: Sender<Event>) -> Result<Self, ProgramError> {
        let grouped = has_own_group();
        // The very file that runs, even if an upgrade has put another in its place.
        let mut start = Command::new("/proc/self/exe");
        start.arg0(env!("CARGO_PKG_NAME")).args(["lock", "program", &std::process::id().to_string(), "--"]);
        start.args(command);
        if grouped {
            start.process_group(0);
        }
        crate::base::core_dumps::leave_to_others();
        let mut child = start.spawn().map_err(refused("starting the program"))?;
        let pid = Pid::from_child(&child);
        // Collected by whoever sends signals, and not here: until then its number is nobody else's.
        let await_end = move || {
            let end = || waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
            while matches!(end(), Err(rustix::io::Errno::INTR)) {}
            // Nobody hears what is said to a process that ends.
            drop(send.send(Event::Ended));
        };
        if let Err(error) = thread::Builder::new().name("end".into()).spawn(await_end) {
            // Unwatched it must not run.
            drop(child.kill().and_then(|()| child.wait()));
            return Err(refused("starting the thread that awaits the program's end")(error));
        }
        Ok(Self { child, pid, grouped, grace })
    }

    /// Until the program has ended: by itself, or because the lock was lost, which is then told.
    fn watch(&mut self, events: &Receiver<Event>) -> Option<String> {
        let mut proved = Instant::now();
        let mut ended = false;
        while !ended {
            let silent = format!("the server has not answered for {} s", (PERIOD + PATIENCE).as_secs());
            let left = (proved + PERIOD + PATIENCE).saturating_duration_since(Instant::now());
            let lost = match events.recv_timeout(left) {
                Ok(Event::Ended) => {
                    ended = true;
                    None
                }
                Ok(Event::Signal(signal)) => {
                    self.pass_on(signal);
                    None
                }
                Ok(Event::Lock(Report::Still(asked))) => {
                    proved = asked;
                    None
                }
                Ok(Event::Lock(Report::Lost(why))) => Some(why),
                Ok(Event::Lock(Report::Asked(_) | Report::LetGo)) => None,
                Err(RecvTimeoutError::Timeout) => Some(silent),
                Err(RecvTimeoutError::Disconnected) => Some("the thread that holds it has ended".into()),
            };
            if let Some(why) = lost {
                self.end(events);
                return Some(why);
            }
        }
        None
    }

    /// SIGTERM, the grace, SIGKILL: until the program has ended, and all of its group.
    fn end(&mut self, events: &Receiver<Event>) {
        self.send(Signal::TERM);
        let kill_at = Instant::now() + self.grace;
        let mut ended = false;
        while Instant::now() < kill_at {
            if ended && !self.has_others() {
                return;
            }
            let left = kill_at.saturating_duration_since(Instant::now());
            match events.recv_timeout(if ended { left.min(LOOK) } else { left }) {
                Ok(Event::Ended) => ended = true,
                Ok(Event::Signal(signal)) => self.pass_on(signal),
                Ok(Event::Lock(_)) | Err(_) => {}
            }
        }
        // As long as nobody has collected the program, the group's number is its own.
        self.send(Signal::KILL);
    }

    fn pass_on(&self, number: i32) {
        // The terminal sends these to its whole foreground group.
        if !self.grouped && matches!(number, SIGINT | SIGQUIT) {
            return;
        }
        if let Some((_, signal)) = PASSED_ON.iter().find(|(known, _)| *known == number) {
            self.send(*signal);
        }
    }

    fn send(&self, signal: Signal) {
        // It may have ended in this very moment.
        let _ = if self.grouped { kill_process_group(self.pid, signal) } else { kill_process(self.pid, signal) };
    }

    /// Whether anything else runs in the program's group.
    fn has_others(&self) -> bool {
        let leader = self.pid.as_raw_nonzero().get();
        let Ok(processes) = std::fs::read_dir("/proc") else { return true };
        self.grouped
            && processes.flatten().any(|process| {
                let number = process.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
                let stat = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
                // proc_pid_stat(5): `pid (comm) state ppid pgrp`, where comm may hold anything.
                let mut fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
                let (state, group) = (fields.next(), fields.nth(1).and_then(|group| group.parse::<i32>().ok()));
                number != Some(leader) && group == Some(leader) && !matches!(state, Some("Z" | "X"))
            })
    }
}

/// Becomes `command`, having asked the kernel for SIGKILL when the process `parent` ends: were it to die with the lock, by
/// the OOM killer say, nobody would be left to end the program. Comes back only with an error.
#[must_use]
pub(crate) fn die_with(parent: u32, command: &[OsString]) -> io::Error {
    let Some((program, arguments)) = command.split_first() else {
        return io::Error::new(io::ErrorKind::NotFound, "no program is given");
    };
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        return error.into();
    }
    // It may have ended before the kernel was asked.
    if std::os::unix::process::parent_id() != parent {
        return io::Error::other("whoever started this has ended");
    }
    crate::base::core_dumps::leave_to_others();
    Command::new(program).args(arguments).exec()
}
