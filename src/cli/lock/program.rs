//! `lock exec`: a program that runs only while its lock is held.
//!
//! One loop receives the reports of the [thread that holds the lock](crate::operations::lock_holder), signals, and the
//! program's end. If the lock is lost, the program and all its descendants get SIGTERM. What still runs after the grace
//! gets SIGKILL.
//!
//! The program has a process group of its own, so that a signal reaches all its descendants. If standard input is a
//! terminal, the program stays in our group, since it could not read from the terminal otherwise. Then Ctrl-C reaches
//! it directly, and a signal sent to us reaches only the program.

use crate::base::deadline::Deadline;
use crate::cli::{Failure, fail};
use crate::database::{DatabaseError, DatabaseFailure};
use crate::ledger::Database;
use crate::lock::{Acquired, Holder};
use crate::operations::lock_holder::{HolderReport, LockRequest, PATIENCE, PERIOD, hold};
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
use sysexits::ExitCode;

/// The time limit for connecting, in addition to the wait for the lock.
const CONNECTING: Duration = Duration::from_secs(30);
/// The signals that are passed on to the program.
const PASSED_ON: [(i32, Signal); 6] = [
    (SIGHUP, Signal::HUP),
    (SIGINT, Signal::INT),
    (SIGQUIT, Signal::QUIT),
    (SIGTERM, Signal::TERM),
    (SIGUSR1, Signal::USR1),
    (SIGUSR2, Signal::USR2),
];

/// How the program ended.
pub(super) enum ProgramOutcome {
    /// The lock is held elsewhere. The program was not started.
    Busy(Option<Holder>),
    /// The program ended by itself, and the lock was held to its end: its exit status, or 128 + n if signal n ended it.
    /// Or signal n arrived during the wait for the lock, and the program was not started.
    Ended(i32),
    /// The lock was lost while the program ran, and the program has been ended.
    Lost(String),
}

fn refused(doing: &'static str) -> impl Fn(io::Error) -> Failure {
    move |error| fail(ExitCode::OsErr, format!("{doing}: {error}"))
}

enum ProgramEvent {
    Lock(HolderReport),
    Signal(i32),
    /// The program has ended, but is not reaped yet.
    Ended,
}

/// Takes the lock over a connection that `open` makes, runs `command` while it is held, and releases it. If the lock is lost, the
/// program has `grace` to end after SIGTERM.
pub(super) fn run_under_lock(
    open: impl Fn(Deadline) -> Result<Box<dyn Database>, DatabaseError> + Send + 'static,
    request: LockRequest,
    command: &[OsString],
    grace: Duration,
) -> Result<ProgramOutcome, Failure> {
    let (send, events) = mpsc::channel();
    pass_signals_on(send.clone())?;
    let deadline = Deadline::after(request.wait.saturating_add(CONNECTING));
    let (done, wait) = mpsc::channel::<()>();
    let holder = {
        let send = send.clone();
        move || {
            // Once this process ends, there is no receiver.
            let report = |report| drop(send.send(ProgramEvent::Lock(report)));
            match open(deadline) {
                Ok(mut database) => {
                    let another = || open(Deadline::after(CONNECTING));
                    hold(database.as_mut(), another, &request, grace, &wait, report);
                }
                Err(error) => report(HolderReport::Asked(Err(error))),
            }
        }
    };
    thread::Builder::new().name("lock".into()).spawn(holder).map_err(refused("starting the lock's thread"))?;

    match events.recv_timeout(deadline.remaining() + PATIENCE) {
        Ok(ProgramEvent::Lock(HolderReport::Asked(Ok(Acquired::Held)))) => {}
        Ok(ProgramEvent::Lock(HolderReport::Asked(Ok(Acquired::Busy(holder))))) => {
            return Ok(ProgramOutcome::Busy(holder));
        }
        Ok(ProgramEvent::Lock(HolderReport::Asked(Err(error)))) => return Err(error.into()),
        Ok(ProgramEvent::Signal(signal)) => return Ok(ProgramOutcome::Ended(128 + signal)),
        Ok(_) | Err(_) => {
            let error =
                DatabaseError::new(DatabaseFailure::TimedOut, "asking for the lock", "the server does not answer");
            return Err(error.into());
        }
    }
    let mut running = RunningProgram::start(command, grace, send)?;
    let lost = running.watch(&events);
    let status = running.child.wait().map_err(refused("collecting the program"))?;
    if let Some(why) = lost {
        return Ok(ProgramOutcome::Lost(why));
    }
    drop(done);
    let status = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(i32::MAX);
    Ok(let_go(&events).map_or_else(ProgramOutcome::Lost, |()| ProgramOutcome::Ended(status)))
}

/// Waits for the report that the lock is released, which proves that it was held to the end.
fn let_go(events: &Receiver<ProgramEvent>) -> Result<(), String> {
    let end = Instant::now() + PATIENCE;
    loop {
        match events.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(ProgramEvent::Lock(HolderReport::Released)) => return Ok(()),
            Ok(ProgramEvent::Lock(HolderReport::Lost(why))) => return Err(why),
            Ok(_) => {}
            Err(_) => return Err("the server does not answer".into()),
        }
    }
}

/// Handles signals from now on, except those that were ignored at the start (nohup(1), a shell's background job): the
/// program inherits the ignored ones.
fn pass_signals_on(send: Sender<ProgramEvent>) -> Result<(), Failure> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    // Ctrl-Z stops the terminal's foreground group. A program with a group of its own would continue, while we are
    // stopped and lose its lock, and another machine starts the same program. So SIGTSTP is caught, and stops nothing.
    let stop = has_own_group().then_some(SIGTSTP);
    let passed_on = PASSED_ON.iter().map(|(number, _)| *number).chain(stop);
    let passed_on = passed_on.filter(|number| ignored & (1 << (number - 1)) == 0);
    let mut signals = Signals::new(passed_on).map_err(refused("setting up signals"))?;
    let pass_on = move || {
        for signal in signals.forever() {
            if signal != SIGTSTP && send.send(ProgramEvent::Signal(signal)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(pass_on).map_err(refused("starting the signals' thread"))?;
    Ok(())
}

/// Whether the program gets a process group of its own.
fn has_own_group() -> bool {
    !io::stdin().is_terminal()
}

struct RunningProgram {
    child: Child,
    pid: Pid,
    grouped: bool,
    grace: Duration,
}

impl RunningProgram {
    /// Starts the program through `lock program`, which calls [`die_with`].
    fn start(command: &[OsString], grace: Duration, send: Sender<ProgramEvent>) -> Result<Self, Failure> {
        let grouped = has_own_group();
        // The very file that is running, even if an upgrade has replaced it.
        let mut start = Command::new("/proc/self/exe");
        start.arg0(env!("CARGO_PKG_NAME")).args(["lock", "program", &std::process::id().to_string(), "--"]);
        start.args(command);
        if grouped {
            start.process_group(0);
        }
        crate::base::core_dumps::leave_to_others();
        let mut child = start.spawn().map_err(refused("starting the program"))?;
        let pid = Pid::from_child(&child);
        // NOWAIT: the process id is not reused until the thread that sends signals has reaped the process.
        let await_end = move || {
            let end = || waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
            while matches!(end(), Err(rustix::io::Errno::INTR)) {}
            drop(send.send(ProgramEvent::Ended));
        };
        if let Err(error) = thread::Builder::new().name("end".into()).spawn(await_end) {
            // The program must not run unwatched.
            drop(child.kill().and_then(|()| child.wait()));
            return Err(refused("starting the thread that awaits the program's end")(error));
        }
        Ok(Self { child, pid, grouped, grace })
    }

    /// Waits until the program has ended. Returns why the lock was lost, if that is what ended it.
    fn watch(&mut self, events: &Receiver<ProgramEvent>) -> Option<String> {
        let mut proved = Instant::now();
        let why = loop {
            let left = (proved + PERIOD + PATIENCE).saturating_duration_since(Instant::now());
            match events.recv_timeout(left) {
                Ok(ProgramEvent::Ended) => return None,
                Ok(ProgramEvent::Signal(signal)) => self.pass_on(signal),
                Ok(ProgramEvent::Lock(HolderReport::Still(asked))) => proved = asked,
                Ok(ProgramEvent::Lock(HolderReport::Lost(why))) => break why,
                Ok(ProgramEvent::Lock(HolderReport::Asked(_) | HolderReport::Released)) => {}
                Err(RecvTimeoutError::Timeout) => {
                    break format!("the server has not answered for {} s", (PERIOD + PATIENCE).as_secs());
                }
                Err(RecvTimeoutError::Disconnected) => break "the thread that holds it has ended".into(),
            }
        };
        self.end(events);
        Some(why)
    }

    /// SIGTERM, the grace, SIGKILL. The program may end before its descendants, so a group has the whole grace.
    fn end(&mut self, events: &Receiver<ProgramEvent>) {
        self.send(Signal::TERM);
        let kill_at = Instant::now() + self.grace;
        while Instant::now() < kill_at {
            match events.recv_timeout(kill_at.saturating_duration_since(Instant::now())) {
                Ok(ProgramEvent::Ended) if !self.grouped => return,
                Ok(ProgramEvent::Signal(signal)) => self.pass_on(signal),
                Ok(_) | Err(_) => {}
            }
        }
        // The program is not reaped yet, so the group's number is still its own.
        self.send(Signal::KILL);
    }

    fn pass_on(&self, number: i32) {
        // The terminal sends these signals to its whole foreground group.
        if !self.grouped && matches!(number, SIGINT | SIGQUIT) {
            return;
        }
        if let Some((_, signal)) = PASSED_ON.iter().find(|(known, _)| *known == number) {
            self.send(*signal);
        }
    }

    fn send(&self, signal: Signal) {
        // The program may just have ended.
        let _ = if self.grouped { kill_process_group(self.pid, signal) } else { kill_process(self.pid, signal) };
    }
}

/// Sets PDEATHSIG, so that the program is killed if `parent` is (by the OOM killer, for example), and then execs
/// `command`. Returns only with an error.
pub(super) fn die_with(parent: u32, command: &[OsString]) -> io::Error {
    let Some((program, arguments)) = command.split_first() else {
        return io::Error::new(io::ErrorKind::NotFound, "no program is given");
    };
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        return error.into();
    }
    // The parent may have ended before PDEATHSIG was set.
    if std::os::unix::process::parent_id() != parent {
        return io::Error::other("the parent process has ended");
    }
    crate::base::core_dumps::leave_to_others();
    Command::new(program).args(arguments).exec()
}
