//! `lock exec`: a command that runs on one machine at a time, while its lock is held.
//!
//! One loop receives the reports of the [thread that holds the lock](crate::operations::lock_holder), and signals, among them that
//! of the command's end. If the lock is lost, the command and all its descendants get SIGTERM. What still runs after the grace
//! gets SIGKILL.
//!
//! The command has a process group of its own, so that a signal reaches all its descendants. If standard input is a
//! terminal, the command stays in our group, since it could not read from the terminal otherwise. Then Ctrl-C reaches
//! it directly, and a signal sent to us reaches only the command.

use super::{look, program_name, who};
use crate::base::core_dumps;
use crate::cli::site_options::SiteOptions;
use crate::cli::{Ended, Failure, complain, duration, exit, fail};
use crate::database::{DatabaseError, DatabaseFailure};
use crate::lock::{Acquired, Holder, LockName};
use crate::operations::lock_holder::{CONNECTING, HolderReport, PATIENCE, PERIOD, hold, lock_of_program};
use clap::Args;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind, IsTerminal};
use std::os::unix::process::{CommandExt, ExitStatusExt, parent_id};
use std::process::{Child, Command};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};
use std::{iter, thread};
use sysexits::ExitCode;

/// The signals that are passed on to the command.
const PASSED_ON: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    site: SiteOptions,
    /// How long to wait for the lock if it is held elsewhere: 30s, 10m, 2h
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = duration)]
    wait: Duration,
    /// How long the command may take to end after SIGTERM, if the lock is lost
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    grace: Duration,
    /// The exit status if the lock is held elsewhere
    #[arg(long, value_name = "STATUS", default_value_t = 75)]
    busy_code: u8,
    /// The lock's name: any text
    #[arg(value_parser = program_name)]
    name: String,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

enum ProgramEvent {
    Lock(HolderReport),
    Signal(i32),
}

fn refused(doing: &'static str) -> impl Fn(io::Error) -> Failure {
    move |error| fail(ExitCode::OsErr, format!("{doing}: {error}"))
}

pub(super) fn run(arguments: &Arguments) -> Ended {
    let Arguments { site: options, wait, grace, name, command, .. } = arguments;
    options.log_to_stderr();
    let site = options.resolve()?;
    let lock = lock_of_program(site.namespace(), name);
    let (send, events) = mpsc::channel();
    send_signals(send.clone())?;
    let (done, is_done) = mpsc::channel::<()>();
    let (wait, grace) = (*wait, *grace);
    let hold_lock = move || {
        // Once this process ends, there is no receiver.
        let report = |report| drop(send.send(ProgramEvent::Lock(report)));
        hold(|deadline| site.open_primary(deadline), &lock, (wait, grace), &is_done, report);
    };
    thread::Builder::new().name("lock".into()).spawn(hold_lock).map_err(refused("starting the lock's thread"))?;

    match events.recv_timeout(wait.saturating_add(CONNECTING + PATIENCE)) {
        Ok(ProgramEvent::Lock(HolderReport::Asked(Ok(Acquired::Held)))) => {
            tracing::info!(name, lock = lock.mysql_name(), "the lock is held");
        }
        Ok(ProgramEvent::Lock(HolderReport::Asked(Ok(Acquired::Busy(holder))))) => {
            return Err(busy(arguments, &lock, holder));
        }
        Ok(ProgramEvent::Lock(HolderReport::Asked(Err(error)))) => return Err(error.into()),
        Ok(ProgramEvent::Signal(signal)) => exit(u8::try_from(128 + signal).unwrap_or(u8::MAX)),
        Ok(_) | Err(_) => {
            let (doing, silent) = ("asking for the lock", "the server does not answer");
            return Err(DatabaseError::new(DatabaseFailure::TimedOut, doing, silent).into());
        }
    }
    let mut running = RunningProgram::start(command)?;
    let held = running.watch(&events, grace);
    let status = running.child.wait().map_err(refused("collecting the command"))?;
    drop(done);
    if let Err(why) = held.and_then(|()| released(&events)) {
        let text = format!("{name}: the lock was lost while the command ran, so it was ended: {why}");
        return Err(fail(ExitCode::Unavailable, text));
    }
    let status = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    exit(status.and_then(|status| u8::try_from(status).ok()).unwrap_or(u8::MAX))
}

/// The failure if another process holds the lock.
fn busy(Arguments { site, name, busy_code, .. }: &Arguments, lock: &LockName, holder: Option<Holder>) -> Failure {
    // A second query: MySQL's own answer has only the session, unless the list has more.
    let listed =
        look(site, |_| Some(*lock)).ok().and_then(|listing| listing.entries.into_iter().find(|one| !one.waits));
    let who = listed.map(|entry| who(&entry)).or_else(|| holder.map(|holder| holder.to_string()));
    let who = who.unwrap_or_else(|| "somebody who has released it since".into());
    fail(*busy_code, format!("{name}: held by {who}"))
}

/// Waits for the report that the lock is released, which proves that it was held to the end.
fn released(events: &Receiver<ProgramEvent>) -> Result<(), String> {
    let end = |event| match event {
        ProgramEvent::Lock(HolderReport::Released) => Some(Ok(())),
        ProgramEvent::Lock(HolderReport::Lost(why)) => Some(Err(why)),
        _ => None,
    };
    let mut events = iter::from_fn(|| events.recv_timeout(PATIENCE).ok());
    events.find_map(end).unwrap_or_else(|| Err("the server does not answer".into()))
}

/// Handles signals from now on, except those that were ignored at the start (nohup(1), a shell's background job): the
/// command inherits the ignored ones.
fn send_signals(send: Sender<ProgramEvent>) -> Result<(), Failure> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    // Ctrl-Z stops the terminal's foreground group. A command with a group of its own would continue, while we are
    // stopped and lose its lock, and another machine starts the same command. So SIGTSTP is caught, and stops nothing.
    let stop = has_own_group().then_some(SIGTSTP);
    let handled = PASSED_ON.into_iter().chain(stop).filter(|number| ignored & (1 << (number - 1)) == 0);
    let mut signals = Signals::new(handled.chain([SIGCHLD])).map_err(refused("setting up signals"))?;
    let send_each = move || {
        for signal in signals.forever() {
            if signal != SIGTSTP && send.send(ProgramEvent::Signal(signal)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(send_each).map_err(refused("starting the signals' thread"))?;
    Ok(())
}

/// Whether the command gets a process group of its own.
fn has_own_group() -> bool {
    !io::stdin().is_terminal()
}

struct RunningProgram {
    child: Child,
    pid: Pid,
    grouped: bool,
}

impl RunningProgram {
    /// Starts the command through `lock program`, which [`become_program`] recognizes.
    fn start(command: &[OsString]) -> Result<Self, Failure> {
        let grouped = has_own_group();
        // The very file that is running, even if an upgrade has replaced it.
        let mut start = Command::new("/proc/self/exe");
        start.arg0(env!("CARGO_PKG_NAME")).args(["lock", "program", &std::process::id().to_string(), "--"]);
        start.args(command);
        if grouped {
            start.process_group(0);
        }
        core_dumps::leave_to_others();
        let child = start.spawn().map_err(refused("starting the command"))?;
        Ok(Self { pid: Pid::from_child(&child), child, grouped })
    }

    /// Waits until the command has ended, or ends it if the lock is lost; then the error is the reason.
    fn watch(&self, events: &Receiver<ProgramEvent>, grace: Duration) -> Result<(), String> {
        let mut proved = Instant::now();
        // Why the lock is lost, and when what still runs is killed.
        let mut lost: Option<(String, Instant)> = None;
        loop {
            // The command may end before its descendants, so a group has the whole grace.
            if self.has_ended() && (lost.is_none() || !self.grouped) {
                return lost.map_or(Ok(()), |(why, _)| Err(why));
            }
            let until = lost.as_ref().map_or(proved + PERIOD + PATIENCE, |(_, kill_at)| *kill_at);
            let why = match events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(ProgramEvent::Lock(HolderReport::Lost(why))) => why,
                Ok(ProgramEvent::Lock(HolderReport::Still(asked))) => {
                    proved = asked;
                    continue;
                }
                Ok(ProgramEvent::Signal(signal)) => {
                    self.pass_on(signal);
                    continue;
                }
                Ok(ProgramEvent::Lock(HolderReport::Asked(_) | HolderReport::Released)) => continue,
                Err(_) => format!("the server has not answered for {} s", (PERIOD + PATIENCE).as_secs()),
            };
            match lost {
                None => {
                    self.send(Signal::TERM);
                    lost = Some((why, Instant::now() + grace));
                }
                Some((why, kill_at)) if Instant::now() >= kill_at => {
                    self.send(Signal::KILL);
                    return Err(why);
                }
                Some(_) => {}
            }
        }
    }

    /// Whether the command has ended. It is not reaped, so its process id and its group's number stay its own.
    fn has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        !matches!(waitid(WaitId::Pid(self.pid), options), Ok(None))
    }

    fn pass_on(&self, number: i32) {
        // The terminal sends these signals to its whole foreground group.
        let was_received = !self.grouped && matches!(number, SIGINT | SIGQUIT);
        let signal = Signal::from_named_raw(number).filter(|_| PASSED_ON.contains(&number) && !was_received);
        signal.into_iter().for_each(|signal| self.send(signal));
    }

    fn send(&self, signal: Signal) {
        // The command may just have ended.
        let _ = if self.grouped { kill_process_group(self.pid, signal) } else { kill_process(self.pid, signal) };
    }
}

/// Becomes the command, if this is the command line that `lock exec` starts. It is no subcommand: completions would offer it.
pub(crate) fn become_program(arguments: &[OsString]) {
    if let [_, lock, program, parent, _, command, arguments @ ..] = arguments
        && lock == "lock"
        && program == "program"
        && let Some(parent) = parent.to_str().and_then(|parent| parent.parse().ok())
    {
        let error = die_with(parent, command, arguments);
        complain(&format!("{}: {error}", command.display()));
        // The exit statuses of env(1) and the shells.
        exit(if error.kind() == ErrorKind::NotFound { 127 } else { 126 })
    }
}

/// Sets PDEATHSIG, so that the command is killed if `parent` is (by the OOM killer, for example), and then execs
/// it. Returns only with an error.
fn die_with(parent: u32, command: &OsStr, arguments: &[OsString]) -> io::Error {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        return error.into();
    }
    // The parent may have ended before PDEATHSIG was set.
    if parent_id() != parent {
        return io::Error::other("the parent process has ended");
    }
    core_dumps::leave_to_others();
    Command::new(command).args(arguments).exec()
}
