//! The master's loop. It waits for signals, reports of its processes, requests on the control socket, and the time of the next
//! action.

use super::children::{Ended, Phase, Slot};
use super::control::{Control, ControlConnection};
use super::front_channel::{self, FromFront, FrontReport, ToFront};
use super::instance_lock;
use super::lifecycle::{Mode, Reload};
use super::line_stream::LineStream;
use super::listeners::{Listeners, hand_over};
use super::restarts::Restarts;
use super::systemd::Systemd;
use super::{Program, Start};
use crate::base::{files, timestamp};
use crate::config::{Config, DatabaseRole};
use crate::protocol::control::{Counted, LastEnd, Role, State, Status};
use crate::service::error::ServiceError;
use crate::service::shunt::WorkerEnd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tracing::{error, info, warn};

/// The interval at which the master polls the front for its status.
const ASK: Duration = Duration::from_secs(2);
/// A front that leaves this many polls unanswered, which takes half a minute, is killed. Polls are counted rather than time:
/// while a machine is suspended, the master does not poll either.
const ASKED_IN_VAIN: u32 = 15;
/// The limit for a front that has never answered, two minutes: it hangs in its start.
const ASKED_FROM_THE_START: u32 = 60;
/// Up to this number of unanswered polls, the master pings systemd's watchdog. Beyond it, even killing the front has failed, and
/// systemd must act.
const UNKILLABLE: u32 = 2 * ASKED_IN_VAIN;
/// How long the master retries to bind a socket on which another process still listens. The front of a killed master ends within
/// a moment.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same limit for HTTP, without which mail is still delivered.
const PATIENCE_FOR_HTTP: Duration = Duration::from_secs(1);
/// The longest wait of the loop.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// The signals that the master handles.
pub(super) const SIGNALS: [i32; 6] = [SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2];
/// The variables in which systemd passes data to its service. They are removed, since no other process may use them.
const OF_SYSTEMD: [&str; 6] =
    ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];

/// The state of the running master.
pub(super) struct Supervisor {
    pub(super) file: PathBuf,
    pub(super) config: Config,
    pub(super) program: Program,
    /// The front, then the workers and the other roles by their numbers.
    pub(super) slots: Vec<Slot>,
    pub(super) listeners: Listeners,
    pub(super) http: Listeners,
    /// Why metrics and health are not served; mail is still delivered.
    pub(super) no_http: Option<String>,
    pub(super) control: Control,
    signals: SignalDelivery<UnixStream, SignalOnly>,
    pub(super) systemd: Systemd,
    pub(super) mode: Mode,
    /// The number of restarts so far. A process of an earlier generation must still be replaced.
    pub(super) generation: u64,
    /// The clients that wait for a restart.
    pub(super) waiting: Vec<ControlConnection>,
    pub(super) reload: Option<Reload>,
    /// Why the configuration that is now in the file was not applied.
    pub(super) not_taken_over: Option<String>,
    /// Whether the front and a worker have ever been ready at the same time.
    pub(super) was_ready: bool,
    /// The last report of the front that runs.
    pub(super) front: FrontReport,
    pub(super) began: Instant,
    pub(super) began_wall: i64,
    /// The state and the reasons that were last logged.
    pub(super) shown: (State, Vec<String>),
    pub(super) counted: Counted,
    lock: File,
}

impl Supervisor {
    /// Takes sockets and locks, and prepares the slots. `signals` are the signals to handle.
    pub(super) fn begin(
        signals: &[i32],
        file: &Path,
        config: Config,
        text: &str,
        program: Program,
    ) -> Result<Self, ServiceError> {
        let now = Instant::now();
        // This comes first, since it removes variables from the environment.
        let (mut listeners, mut http) = Listeners::from_systemd()?;
        own_directory(&config.service.runtime_directory)?;
        let lock = instance_lock::take(&config.service.master_lock())?;
        own_directory(&config.service.state_directory)?;
        // The handler comes before the first process, so that no SIGCHLD is lost.
        let (read, write) = UnixStream::pair().map_err(ServiceError::system("making a pair of sockets"))?;
        let signals = SignalDelivery::with_pipe(read, write, SignalOnly, signals)
            .map_err(ServiceError::system("setting up signals"))?;
        let control = Control::bind(&config.service.control_socket())?;
        if !config.service.lmtp.is_empty() || !listeners.names().is_empty() {
            config.lmtp_makes_sent_copies()?;
        }
        let new = listeners.missing_within(PATIENCE, &config.service.lmtp)?;
        listeners.take_over(new, &config.service.lmtp);
        let no_http = http.missing_within(PATIENCE_FOR_HTTP, config.service.http.as_slice()).map_or_else(
            |error| Some(error.to_string()),
            |new| {
                http.take_over(new, config.service.http.as_slice());
                None
            },
        );
        if let Some(problem) = &no_http {
            error!(problem, "metrics and health cannot be asked for; mail is delivered all the same");
        }
        if listeners.names().is_empty() {
            warn!("LMTP is spoken nowhere: service.lmtp is empty, and systemd has handed over no socket");
        }
        if rustix::process::geteuid().is_root() {
            warn!("this service needs no rights of root's: start it as the user of deliveries");
        }
        let mut supervisor = Self {
            file: file.to_owned(),
            config,
            program,
            slots: Vec::new(),
            listeners,
            http,
            no_http,
            control,
            signals,
            systemd: Systemd::new(),
            mode: Mode::Running,
            generation: 0,
            waiting: Vec::new(),
            reload: None,
            not_taken_over: None,
            was_ready: false,
            front: FrontReport::default(),
            began: now,
            began_wall: timestamp::now(),
            shown: (State::Starting, Vec::new()),
            counted: Counted::default(),
            lock,
        };
        supervisor.is_taken_over();
        supervisor.write_checked(text)?;
        supervisor.fit_slots(now);
        info!(version = env!("CARGO_PKG_VERSION"), listeners = ?supervisor.listeners.names(), "the service begins");
        Ok(supervisor)
    }

    /// Runs until the service has ended with all its processes, after a request to stop.
    pub(super) fn supervise(&mut self) {
        while !self.turn(Instant::now()) {
            self.wait();
        }
    }

    /// One turn of the loop. Returns whether it was the last.
    fn turn(&mut self, now: Instant) -> bool {
        self.handle_signals(now);
        self.read_processes(now);
        self.notice_ends(now);
        for (from, request) in self.control.requests(now) {
            self.asked(from, request.command, now);
        }
        let over = match &self.mode {
            Mode::Running => {
                self.finish_reload(now);
                self.replace_one(now);
                self.start_what_is_due(now);
                self.ask_the_front(now);
                self.fail_who_waits_too_long(now);
                false
            }
            Mode::Stopping(_) => self.go_on_stopping(now),
        };
        self.kill_what_is_due(now);
        self.report_status(now);
        over
    }

    /// Waits for input, a signal, or the next due time.
    fn wait(&self) {
        let (control_in, control_out) = self.control.sources();
        let mut sources = vec![PollFd::new(self.signals.get_read(), PollFlags::IN)];
        sources.extend(control_in.iter().map(|source| PollFd::new(source, PollFlags::IN)));
        sources.extend(control_out.iter().map(|source| PollFd::new(source, PollFlags::OUT)));
        for running in self.slots.iter().filter_map(Slot::running) {
            sources.extend(running.standard_error().map(|stderr| PollFd::new(stderr, PollFlags::IN)));
            if let Some(link) = &running.link {
                let out = if link.waiting() > 0 { PollFlags::OUT } else { PollFlags::empty() };
                sources.push(PollFd::from_borrowed_fd(link.as_fd(), PollFlags::IN | out));
            }
        }
        let now = Instant::now();
        let left = self.next().map_or(LONGEST_WAIT, |next| next.saturating_duration_since(now)).min(LONGEST_WAIT);
        // Rounded up: a wait that ends too early would make the loop spin until the time has come.
        let left = left + Duration::from_millis(1);
        let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        // EINTR means that a signal is pending. Any other error means a lack of memory, so the loop waits a moment and goes on.
        if let Err(error) = poll(&mut sources, Some(&left))
            && error != rustix::io::Errno::INTR
        {
            error!(%error, "poll(2)");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// When the next action is due.
    fn next(&self) -> Option<Instant> {
        let of_slots = self.slots.iter().filter_map(|slot| match &slot.phase {
            Phase::Waiting(until) => matches!(self.mode, Mode::Running).then_some(*until),
            Phase::Running(running) => {
                let is_asked = slot.role == Role::Front && running.link.is_some();
                let ask = is_asked.then_some(running.pings.next_ask);
                let ask = ask.filter(|_| matches!(self.mode, Mode::Running));
                running.kill_at().into_iter().chain(ask).min()
            }
        });
        let of_mode = match &self.mode {
            Mode::Running => None,
            Mode::Stopping(stopping) => stopping.next(),
        };
        of_slots.chain(of_mode).chain(self.control.next()).chain(self.systemd.next()).min()
    }

    fn handle_signals(&mut self, now: Instant) {
        let signals: Vec<i32> = self.signals.pending().collect();
        for signal in signals {
            match signal {
                SIGTERM | SIGINT => self.stop(now),
                SIGHUP if matches!(self.mode, Mode::Running) => self.begin_reload(Vec::new()),
                // The log has the reason of a failure.
                SIGUSR1 => drop(self.restart_if_it_can(now)),
                SIGUSR2 => drop(self.reopen()),
                // SIGCHLD: each turn checks which processes have ended.
                _ => {}
            }
        }
    }

    /// Reads the standard error of the processes, and their reports.
    fn read_processes(&mut self, now: Instant) {
        for slot in &mut self.slots {
            slot.listen();
            let Some(running) = slot.running_mut() else { continue };
            let Some(link) = &mut running.link else { continue };
            let reports = match link.send().and_then(|()| link.reports()) {
                Ok(reports) => reports,
                Err(error) => {
                    Self::lost(slot, &error, now);
                    continue;
                }
            };
            if !reports.is_empty() {
                (running.pings.has_answered, running.pings.unanswered) = (true, 0);
            }
            for report in reports {
                match report {
                    FromFront::Ready { ready } => slot.set_ready(ready, now),
                    FromFront::Status(report) if slot.role == Role::Front => {
                        slot.set_ready(report.accepting, now);
                        self.front = report;
                    }
                    FromFront::Status(_) => warn!(process = slot.name(), "it says what only the front may say"),
                }
            }
        }
    }

    /// Handles a process that has closed its standard input, or sends invalid reports. Most likely it has ended, which SIGCHLD
    /// reports at once.
    fn lost(slot: &mut Slot, error: &io::Error, now: Instant) {
        if let Some(running) = slot.running_mut() {
            let closed = [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];
            if !closed.contains(&error.kind()) {
                warn!(pid = running.pid, %error, "a process cannot be talked to");
            }
            running.lose();
        }
        slot.set_ready(false, now);
    }

    /// Reaps the processes that have ended, and notifies the front.
    fn notice_ends(&mut self, now: Instant) {
        let ended: Vec<Ended> = self.slots.iter_mut().filter_map(|slot| slot.ended(now)).collect();
        for one in ended {
            self.counted.ended(one.role, one.kind.clone());
            let is_waited_for = one.role.carries_mail() && one.generation == self.generation;
            if !one.by_us && !one.served && is_waited_for {
                self.reject_waiters(&one.name, &one.last.to_text(), now);
            }
            match one.role {
                Role::Front => self.front = FrontReport::default(),
                Role::Worker => {
                    let LastEnd { end, output, .. } = one.last;
                    let end = WorkerEnd { pid: one.pid, end, by_us: one.by_us, output };
                    self.send_to_front(&ToFront::WorkerEnded(end), now);
                }
                Role::Runner | Role::Timer | Role::Notifier | Role::Web => {}
            }
        }
        self.drop_surplus();
    }

    fn send_to_front(&mut self, notice: &ToFront, now: Instant) {
        let Some(slot) = self.slots.iter_mut().find(|slot| slot.role == Role::Front) else { return };
        if let Some(link) = slot.running_mut().and_then(|running| running.link.as_mut())
            && let Err(error) = link.notify(notice)
        {
            Self::lost(slot, &error, now);
        }
    }

    fn start_what_is_due(&mut self, now: Instant) {
        let checked = self.config.service.checked_configuration();
        let (mut started, mut failed) = (Vec::new(), Vec::new());
        for slot in &mut self.slots {
            if !matches!(slot.phase, Phase::Waiting(until) if until <= now) {
                continue;
            }
            let start = Start { role: slot.role, number: slot.number, file: &self.file, checked: &checked };
            let command = command(&self.program, &start, &self.listeners, &self.http);
            slot.start(command, self.generation, now);
            match slot.running() {
                Some(running) => {
                    self.counted.started(slot.role);
                    started.push((slot.role, running.pid));
                }
                None => {
                    self.counted.ended(slot.role, "not started".into());
                    if slot.role.carries_mail() {
                        failed.push((slot.name(), slot.how_it_ended()));
                    }
                }
            }
        }
        for (name, how) in failed {
            self.reject_waiters(&name, &how, now);
        }
        let new_front = started.iter().any(|(role, _)| *role == Role::Front);
        // A new front gets the list of all running workers.
        let workers = self.slots.iter().filter(|slot| slot.role == Role::Worker);
        let workers = workers.filter_map(|slot| slot.running().map(|running| running.pid));
        let news = workers.filter(|pid| new_front || started.iter().any(|(_, new)| new == pid));
        for pid in news.collect::<Vec<_>>() {
            self.send_to_front(&ToFront::WorkerStarted { pid }, now);
        }
    }

    fn ask_the_front(&mut self, now: Instant) {
        let running = self.slots.iter_mut().find(|slot| slot.role == Role::Front).and_then(Slot::running_mut);
        let Some(running) = running else { return };
        if running.link.is_none() || now < running.pings.next_ask {
            return;
        }
        let pings = &mut running.pings;
        pings.next_ask = now + ASK;
        pings.unanswered += 1;
        let most = if pings.has_answered { ASKED_IN_VAIN } else { ASKED_FROM_THE_START };
        if pings.unanswered == most {
            error!(pid = running.pid, times = most, "the front does not answer: killed");
            running.kill();
        }
        self.send_to_front(&ToFront::Ask, now);
        self.send_status_to_front(now);
    }

    /// Sends the front the status, from which it makes its metrics and its readiness.
    pub(super) fn send_status_to_front(&mut self, now: Instant) {
        // The front knows its own figures.
        let status = Status { front: Value::Null, ..self.status(now) };
        self.send_to_front(&ToFront::Service { status: Box::new(status) }, now);
    }

    /// Reports the status to systemd and to the log.
    fn report_status(&mut self, now: Instant) {
        let front = self.slots.iter().find(|slot| slot.role == Role::Front);
        let is_ready = front.is_some_and(Slot::is_ready);
        self.was_ready |= is_ready && self.slots.iter().any(|slot| slot.role == Role::Worker && slot.is_ready());
        let pings = front.and_then(Slot::running).map(|running| &running.pings);
        let hangs = pings.is_some_and(|pings| pings.has_answered && pings.unanswered >= UNKILLABLE);
        // Only the front accepts mail, so the service is ready when the front is.
        if is_ready && matches!(self.mode, Mode::Running) && self.reload.is_none() {
            self.systemd.ready();
        }
        self.systemd.watchdog(!hangs, now);
        self.publish_status(now);
    }

    /// Makes as many slots as the configuration requires.
    pub(super) fn fit_slots(&mut self, now: Instant) {
        let restarts = self.restarts();
        for role in Role::ALL {
            for number in 1..=count(role, &self.config) {
                if !self.slots.iter().any(|slot| (slot.role, slot.number) == (role, number)) {
                    self.slots.push(Slot::new(role, number, restarts.clone(), now));
                }
            }
        }
        self.drop_surplus();
    }

    /// Drops the slots that the configuration no longer requires, once no process runs in them.
    fn drop_surplus(&mut self) {
        let config = &self.config;
        self.slots.retain(|slot| slot.running().is_some() || !is_surplus(slot, config));
    }

    /// The configured processes that have no account in the database. No process uses the account of another.
    pub(super) fn without_account(&self) -> impl Iterator<Item = String> {
        let (config, names) = (&self.config, ["the timer", "the notifier", "the web UI"]);
        names.into_iter().zip([Role::Timer, Role::Notifier, Role::Web]).filter_map(|(name, role)| {
            let missing = account(role).filter(|account| !config.database.accounts.contains_key(account))?;
            (wanted(role, config) > 0).then(|| format!("{name} is not started: {} is missing", missing.key()))
        })
    }

    pub(super) fn restarts(&self) -> Restarts {
        Restarts::new(self.config.service.restarts)
    }

    /// Writes the checked configuration, which the processes read.
    pub(super) fn write_checked(&self, text: &str) -> Result<(), ServiceError> {
        let path = self.config.service.checked_configuration();
        let temporary = path.with_extension("new");
        // No fsync(2): the file need not survive a power failure, since each start writes it.
        let written = std::fs::write(&temporary, text).and_then(|()| std::fs::rename(&temporary, &path));
        written.map_err(ServiceError::file("writing", &path))
    }

    /// Removes the files of the service, and answers the clients that wait for its end.
    pub(super) fn end(self) {
        let Self { listeners, http, control, mode, lock, .. } = self;
        let systemd_listens = listeners.are_kept_by_systemd() || http.are_kept_by_systemd();
        // systemd's sockets stay, and queue new connections.
        drop((listeners, http));
        control.close();
        info!("the service has ended");
        // A client that gets the answer may start the next master at once, which needs the lock.
        drop(lock);
        if let Mode::Stopping(stopping) = mode {
            stopping.answer_waiting_clients(systemd_listens);
        }
    }
}

/// The database account that a role needs: without it, the role is not started.
fn account(role: Role) -> Option<DatabaseRole> {
    match role {
        Role::Timer => Some(DatabaseRole::Timer),
        Role::Notifier => Some(DatabaseRole::Notifier),
        Role::Web => Some(DatabaseRole::Web),
        Role::Front | Role::Worker | Role::Runner => None,
    }
}

/// How many processes of a role there should be.
fn count(role: Role, config: &Config) -> u32 {
    match account(role).is_none_or(|account| config.database.accounts.contains_key(&account)) {
        false => 0,
        // Each site has addresses to index and failures to prune.
        true if role == Role::Timer => 1,
        true => wanted(role, config),
    }
}

/// How many processes of a role the configuration asks for.
fn wanted(role: Role, config: &Config) -> u32 {
    match role {
        Role::Front => 1,
        Role::Worker => config.service.workers,
        Role::Runner => config.service.runners,
        Role::Timer => config.service.has_timer().into(),
        Role::Notifier => config.notifications.has_notifier().into(),
        Role::Web => config.web.has_web_ui().into(),
    }
}

/// Whether the slot's number exceeds the number of processes that there should be.
pub(super) fn is_surplus(slot: &Slot, config: &Config) -> bool {
    slot.number > count(slot.role, config)
}

fn own_directory(path: &Path) -> Result<(), ServiceError> {
    files::own_directory(path).map_err(ServiceError::file("making the directory", path))
}

/// The command that starts a process, and the master's end of the link to it.
fn command(
    program: &Program,
    start: &Start<'_>,
    lmtp: &Listeners,
    http: &Listeners,
) -> io::Result<(Command, Option<LineStream>)> {
    let mut command = program(start);
    for name in OF_SYSTEMD {
        command.env_remove(name);
    }
    // The C library reserves 64 MB of address space for each of several threads (mallopt(3), M_ARENA_MAX). Ten recipients whose
    // mailboxes are opened in parallel would use up `service.worker_memory`.
    command.env("MALLOC_ARENA_MAX", "2");
    let (link, stdin) = front_channel::pair()?;
    command.stdin(stdin);
    if start.role == Role::Front {
        hand_over(lmtp, http, &mut command)?;
    }
    Ok((command, Some(link)))
}

#[cfg(test)]
#[path = "supervisor_tests.rs"]
mod tests;
