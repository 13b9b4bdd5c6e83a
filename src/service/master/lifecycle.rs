//! The master's reactions to commands and signals: stop, restart, reload, reopen, status.

use super::children::{Running, Slot};
use super::control::ControlConnection;
use super::listeners::{Bound, bind_missing};
use super::supervisor::{Supervisor, is_surplus};
use crate::base::log;
use crate::base::timestamp::{self, exact};
use crate::config::Config;
use crate::protocol::control::{Answer, Command, Role};
use signal_hook::consts::SIGCHLD;
use std::path::Path;
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};
use tracing::{error, info, warn};

/// How much longer than a delivery's deadline a process may take to end: it must still report the result of its message.
const GRACE: Duration = Duration::from_secs(30);
/// How long a process may take to end after the second request to end.
pub(super) const LAST_GRACE: Duration = Duration::from_secs(5);
/// Once the service has ended, the socket unit listens again, and the next connection starts the service (systemd.socket(5)).
const SYSTEMD_LISTENS: &str = "systemd keeps the service's sockets, and starts it again for the next one who connects. \
    `systemctl stop maildropd.socket maildropd.service` keeps it ended";

/// Whether the master runs the service or ends it.
pub(super) enum Mode {
    Running,
    Stopping(Stopping),
}

/// The progress of the service's end.
pub(super) struct Stopping {
    /// Whether the front, which ends first, has ended. The workers still finish the messages that it has passed to them.
    front_has_ended: bool,
    /// When all processes get the second request to end; [`LAST_GRACE`] later, the master kills them.
    at_once_at: Option<Instant>,
    waiting: Vec<ControlConnection>,
}

impl Stopping {
    pub(super) fn next(&self) -> Option<Instant> {
        self.at_once_at
    }

    pub(super) fn answer_waiting_clients(self, systemd_listens: bool) {
        let note = systemd_listens.then(|| SYSTEMD_LISTENS.to_owned());
        let answer = Answer { note, ..Answer::done() };
        for one in self.waiting {
            one.answer_last(&answer);
        }
    }
}

/// A reload whose configuration is being read.
pub(super) struct Reload {
    read: mpsc::Receiver<Result<NewConfiguration, String>>,
    /// Whether the log was reopened.
    reopened: Result<(), String>,
    waiting: Vec<ControlConnection>,
    /// Whether the file may have changed since the thread began to read it. If so, the master reads it once more.
    is_outdated: bool,
}

/// A valid configuration, its text, and the new listeners that it needs.
pub(super) struct NewConfiguration {
    config: Config,
    text: String,
    lmtp: Vec<Bound>,
    http: Vec<Bound>,
}

impl NewConfiguration {
    /// Reads the configuration that replaces `old`. The service now listens on the addresses `lmtp` and `http`.
    pub(super) fn read(file: &Path, old: &Config, lmtp: Vec<String>, http: Vec<String>) -> Result<Self, String> {
        let (config, text) = Config::load_with_text(file).map_err(|error| error.to_string())?;
        let (service, old) = (&config.service, &old.service);
        for (key, changed) in [
            ("runtime_directory", service.runtime_directory != old.runtime_directory),
            ("state_directory", service.state_directory != old.state_directory),
        ] {
            if changed {
                return Err(format!(
                    "service.{key} has changed, which it cannot while the service runs: `maildrop_command service stop`, then \
                     `start`"
                ));
            }
        }
        if !service.lmtp.is_empty() || !lmtp.is_empty() {
            config.lmtp_makes_sent_copies().map_err(|error| error.to_string())?;
        }
        service.try_tls().map_err(|error| error.to_string())?;
        let lmtp = bind_missing(lmtp, &service.lmtp).map_err(|error| error.to_string())?;
        let http = bind_missing(http, service.http.as_slice()).map_err(|error| error.to_string())?;
        Ok(Self { config, text, lmtp, http })
    }
}

impl Supervisor {
    /// Handles a request from the control socket.
    pub(super) fn asked(&mut self, who: ControlConnection, command: Command, now: Instant) {
        let stopping = matches!(self.mode, Mode::Stopping(_));
        match command {
            Command::Status => {
                let answer = Answer { status: Some(self.status(now)), ..Answer::done() };
                self.control.answer(who, &answer, now);
            }
            Command::Stop => {
                if !stopping {
                    self.stop(now);
                }
                if let Mode::Stopping(stopping) = &mut self.mode {
                    stopping.waiting.push(who);
                }
            }
            Command::Reopen => {
                let answer = self.reopen().map_or_else(Answer::failed, |()| Answer::done());
                self.control.answer(who, &answer, now);
            }
            Command::Restart | Command::Reload if stopping => {
                self.control.answer(who, &Answer::failed("the service is ending"), now);
            }
            Command::Restart => match self.restart_if_it_can(now) {
                Ok(()) => self.waiting.push(who),
                Err(problem) => self.control.answer(who, &Answer::failed(problem), now),
            },
            Command::Reload => self.begin_reload(vec![who]),
        }
    }

    /// Begins to end the service. The second request ends it at once.
    pub(super) fn stop(&mut self, now: Instant) {
        if let Mode::Stopping(stopping) = &mut self.mode {
            warn!("the second request to end: the service ends at once");
            stopping.at_once_at = Some(now);
            return;
        }
        info!("the service ends: the workers last, and each process after the message in progress");
        self.systemd.stopping();
        let patience = self.patience();
        self.mode =
            Mode::Stopping(Stopping { front_has_ended: false, at_once_at: Some(now + patience), waiting: Vec::new() });
        let reloading = self.reload.take().map(|reload| reload.waiting).unwrap_or_default();
        for who in std::mem::take(&mut self.waiting).into_iter().chain(reloading) {
            self.control.answer(who, &Answer::failed("the service ends"), now);
        }
        // The workers end later: the front still answers for the messages that clients have passed to it.
        self.request_end(|role| role != Role::Worker, now, patience);
    }

    /// Continues to end the service. Returns whether all processes have ended.
    pub(super) fn go_on_stopping(&mut self, now: Instant) -> bool {
        let Mode::Stopping(stopping) = &mut self.mode else { return false };
        let front_runs = self.slots.iter().any(|slot| slot.role == Role::Front && slot.running().is_some());
        let at_once = stopping.at_once_at.is_some_and(|at| at <= now);
        if at_once {
            stopping.at_once_at = None;
            self.request_end(|_| true, now, LAST_GRACE);
        } else if !front_runs && !std::mem::replace(&mut stopping.front_has_ended, true) {
            let patience = self.patience();
            self.request_end(|role| role == Role::Worker, now, patience);
        }
        self.slots.iter().all(|slot| slot.running().is_none())
    }

    fn request_end(&mut self, which: impl Fn(Role) -> bool, now: Instant, patience: Duration) {
        for running in self.slots.iter_mut().filter(|slot| which(slot.role)).filter_map(Slot::running_mut) {
            running.request_end(now, patience);
        }
    }

    /// How long a process may take to end after the first request to end.
    fn patience(&self) -> Duration {
        self.config.delivery.deadline + GRACE
    }

    /// Kills each process that has not ended in time after a request to end.
    pub(super) fn kill_what_is_due(&mut self, now: Instant) {
        for slot in &mut self.slots {
            let name = slot.name();
            if let Some(running) = slot.running_mut()
                && running.kill_at().is_some_and(|at| at <= now)
            {
                warn!(process = name, pid = running.pid, "it has not ended in time: killed");
                running.kill();
            }
        }
    }

    /// If a process that a restart has started does not become ready in time, the restart fails. The status shows the process,
    /// which is not killed.
    pub(super) fn fail_who_waits_too_long(&mut self, now: Instant) {
        let (generation, limit) = (self.generation, self.patience());
        let is_late = |slot: &&Slot| {
            let is_new = slot.running().is_some_and(|running| running.generation == generation);
            is_new && slot.role.carries_mail() && slot.unready_for(now).is_some_and(|unready| unready >= limit)
        };
        if !self.waiting.is_empty()
            && let Some(name) = self.slots.iter().find(is_late).map(Slot::name)
        {
            self.reject_waiters(&name, "it does not say that it is ready", now);
        }
    }

    /// Begins to replace the processes one at a time. If a new front could not begin, nothing is replaced, and the old front goes
    /// on.
    pub(super) fn restart_if_it_can(&mut self, now: Instant) -> Result<(), String> {
        self.config.service.try_tls().map_err(|error| {
            error!(%error, "nothing was replaced: a new front could not begin");
            error.to_string()
        })?;
        self.restart(now);
        Ok(())
    }

    fn restart(&mut self, now: Instant) {
        self.generation += 1;
        info!("one process after the other is replaced");
        let restarts = self.restarts();
        self.slots.iter_mut().for_each(|slot| slot.forgive(restarts.clone(), now));
    }

    /// Replaces the next process if the last new one is up. So a fault that keeps new processes from coming up costs one process,
    /// not all.
    pub(super) fn replace_one(&mut self, now: Instant) {
        let (generation, patience) = (self.generation, self.patience());
        let is_old = |slot: &Slot| slot.running().is_some_and(|running| running.generation < generation);
        let front_is_up = self.slots.iter().any(|slot| slot.role == Role::Front && slot.is_ready());
        // Without a front, no worker can connect to the broker and become ready. A runner is ready without a front, and waits for
        // one.
        let is_up =
            |slot: &Slot| slot.is_ready() || (!front_is_up && slot.role != Role::Front && slot.running().is_some());
        // A process that carries no mail does not hold up the restart if it does not come up.
        let is_new = |slot: &&Slot| !is_old(slot) && slot.role.carries_mail();
        let all_new_are_up = self.slots.iter().filter(is_new).all(is_up);
        let one_ends = self.slots.iter().filter_map(Slot::running).any(Running::is_asked_to_end);
        if !all_new_are_up || one_ends {
            return;
        }
        // Workers and runners come first, then the front: a new front has no work for them yet, so it waits for none of them. The
        // timer, the notifier and the web UI come last.
        let mut old: Vec<&mut Slot> = self.slots.iter_mut().filter(|slot| is_old(slot)).collect();
        old.sort_by_key(|slot| (!slot.role.carries_mail(), slot.role == Role::Front, slot.number));
        if let Some((name, running)) = old.into_iter().next().and_then(|slot| Some((slot.name(), slot.running_mut()?)))
        {
            info!(process = name, pid = running.pid, "it is replaced, after its message in progress");
            running.request_end(now, patience);
        } else if self.slots.iter().all(|slot| slot.is_ready() || !slot.role.carries_mail()) {
            for who in std::mem::take(&mut self.waiting) {
                self.control.answer(who, &Answer::done(), now);
            }
        }
    }

    /// Whether some processes must still be replaced.
    pub(super) fn is_restarting(&self) -> bool {
        self.slots.iter().filter_map(Slot::running).any(|running| running.generation < self.generation)
    }

    /// Answers the clients that wait for a restart: a process that was started for it does not come up, for this reason.
    pub(super) fn reject_waiters(&mut self, name: &str, how: &str, now: Instant) {
        let problem = format!(
            "{name} does not come up: {how}. It is tried again; the others stay as they are until it is up, and are replaced then"
        );
        for who in std::mem::take(&mut self.waiting) {
            self.control.answer(who, &Answer::failed(&problem), now);
        }
    }

    /// Begins to apply the configuration file, and reopens the log. A thread reads the file and binds the new listeners, since a
    /// disk or a name server may be slow.
    pub(super) fn begin_reload(&mut self, waiting: Vec<ControlConnection>) {
        if let Some(reload) = &mut self.reload {
            reload.waiting.extend(waiting);
            reload.is_outdated = true;
            return;
        }
        self.systemd.reloading();
        let reopened = self.reopen();
        let (file, old) = (self.file.clone(), self.config.clone());
        let (lmtp, http) = (self.listeners.places(), self.http.places());
        let (read_sender, read) = mpsc::channel();
        let reading = move || {
            // If the service ends, the receiver is gone, and nobody needs the result.
            let _ = read_sender.send(NewConfiguration::read(&file, &old, lmtp, http));
            // The signal wakes the main loop.
            let _ = signal_hook::low_level::raise(SIGCHLD);
        };
        if let Err(error) = thread::Builder::new().name("reload".into()).spawn(reading) {
            error!(%error, "the configuration cannot be read");
        }
        self.reload = Some(Reload { read, reopened, waiting, is_outdated: false });
    }

    /// Applies the configuration of a reload, once the thread has read it.
    pub(super) fn finish_reload(&mut self, now: Instant) {
        let Some(reload) = &self.reload else { return };
        let read = match reload.read.try_recv() {
            Err(TryRecvError::Empty) => return,
            Err(TryRecvError::Disconnected) => Err("an internal error".into()),
            Ok(read) => read,
        };
        let Some(Reload { reopened, waiting, is_outdated, .. }) = self.reload.take() else { return };
        if is_outdated {
            drop(read);
            return self.begin_reload(waiting);
        }
        match self.reloaded(read, now).and(reopened) {
            Ok(()) => self.waiting.extend(waiting),
            Err(problem) => {
                for who in waiting {
                    self.control.answer(who, &Answer::failed(problem.clone()), now);
                }
            }
        }
    }

    /// Applies a configuration that was read. If that fails, the old one stays, and `Err` has the reason for people.
    pub(super) fn reloaded(&mut self, read: Result<NewConfiguration, String>, now: Instant) -> Result<(), String> {
        match read.and_then(|new| self.take_over(new, now)) {
            Ok(()) => {
                self.not_taken_over = None;
                self.is_taken_over();
                info!("the configuration was reloaded, and is valid");
                self.restart(now);
                Ok(())
            }
            Err(problem) => {
                error!(problem, "the configuration was not taken over: the service goes on with the old one");
                self.not_taken_over = Some(problem.clone());
                self.counted.configuration_is_applied = false;
                Err(problem)
            }
        }
    }

    /// Records that the configuration in the file is in use.
    pub(super) fn is_taken_over(&mut self) {
        self.counted.configuration_is_applied = true;
        self.counted.configuration_taken_over_at = exact(timestamp::now());
    }

    fn take_over(&mut self, new: NewConfiguration, now: Instant) -> Result<(), String> {
        let NewConfiguration { config, text, lmtp, http } = new;
        self.write_checked(&text).map_err(|error| error.to_string())?;
        if config.log_settings() != self.config.log_settings() {
            warn!("[log] has changed: for all processes but the master, which keeps its log until it is restarted");
        }
        self.listeners.take_over(lmtp, &config.service.lmtp);
        self.http.take_over(http, config.service.http.as_slice());
        self.no_http = None;
        self.config = config;
        self.fit_slots(now);
        let patience = self.patience();
        for slot in self.slots.iter_mut().filter(|slot| is_surplus(slot, &self.config)) {
            if let Some(running) = slot.running_mut() {
                running.request_end(now, patience);
            }
        }
        Ok(())
    }

    /// Reopens the log, here and in all processes.
    pub(super) fn reopen(&mut self) -> Result<(), String> {
        self.slots.iter().filter_map(Slot::running).for_each(Running::reopen_log);
        log::reopen().map_err(|error| {
            error!(%error, "the log goes on in the file that was open");
            error.to_string()
        })
    }
}
