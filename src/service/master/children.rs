//! The processes that the master starts. Each slot has one process at a time, for the front, a worker, or another role.

use super::line_stream::LineStream;
use super::restarts::Restarts;
use super::stderr_tail::StderrTail;
use crate::base::timestamp::{exact, now as wall_clock};
use crate::protocol::control::{End, LastEnd, Process, Role};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// A process that ends by itself with exit status 0 after this time has done its share, and has not died. Nor has a worker that
/// ends earlier: it may end after its first message, to be replaced. The next worker then starts at least this long after the
/// previous start. So no process that ends at once is restarted without a pause.
const SHARE: Duration = Duration::from_secs(1);
/// How many bytes of one process's standard error are read at once: a process that writes without end must not delay the others.
const READ_AT_ONCE: usize = 64 << 10;

/// A slot for one process at a time.
pub(super) struct Slot {
    pub(super) role: Role,
    /// The number within the role, from 1.
    pub(super) number: u32,
    pub(super) phase: Phase,
    restarts: Restarts,
    /// How many processes were started in this slot.
    started: u64,
    last_end: Option<LastEnd>,
    /// Since when no process in this slot has been ready; `None` if one is.
    unready_since: Option<Instant>,
}

pub(super) enum Phase {
    /// No process runs in this slot until this time.
    Waiting(Instant),
    Running(Box<Running>),
}

pub(super) struct Running {
    child: Child,
    pub(super) pid: u32,
    since: Instant,
    since_wall: i64,
    stderr: Option<ChildStderr>,
    tail: StderrTail,
    /// The number of requested restarts when the process was started.
    pub(super) generation: u64,
    pub(super) life: Life,
    /// Whether the process was ever ready.
    served: bool,
    /// The link for the process's reports, and for notices to the front. `None` once the link cannot be used any more.
    pub(super) link: Option<LineStream>,
    /// Only used for the front.
    pub(super) pings: Pings,
}

/// The state of a running process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// The process takes no work yet, or not at present.
    Unready,
    /// The process takes work.
    Ready,
    /// The process was requested to end. If it has not, it is killed at `kill_at`.
    Ending { kill_at: Instant },
    /// The master has killed the process, after a request to end (`asked`) or without one.
    Killed { asked: bool },
}

/// The master's polls of the front, and its answers.
pub(super) struct Pings {
    /// Whether the front has ever answered.
    pub(super) has_answered: bool,
    /// How many polls were sent since the last answer.
    pub(super) unanswered: u32,
    pub(super) next_ask: Instant,
}

/// A process that has ended.
pub(super) struct Ended {
    pub(super) role: Role,
    pub(super) name: String,
    pub(super) pid: u32,
    pub(super) last: LastEnd,
    /// Whether the master has killed the process, or requested its end.
    pub(super) by_us: bool,
    pub(super) generation: u64,
    /// Whether the process was ever ready.
    pub(super) served: bool,
    /// How the process ended, as the counters name it.
    pub(super) kind: String,
}

impl Slot {
    pub(super) fn new(role: Role, number: u32, restarts: Restarts, now: Instant) -> Self {
        let phase = Phase::Waiting(now);
        Self { role, number, phase, restarts, started: 0, last_end: None, unready_since: Some(now) }
    }

    /// The name for people: `the front`, `worker 3`.
    pub(super) fn name(&self) -> String {
        let role = self.role.as_str();
        if self.role.is_numbered() { format!("{role} {}", self.number) } else { format!("the {role}") }
    }

    pub(super) fn running(&self) -> Option<&Running> {
        match &self.phase {
            Phase::Running(running) => Some(running),
            Phase::Waiting(_) => None,
        }
    }

    pub(super) fn running_mut(&mut self) -> Option<&mut Running> {
        match &mut self.phase {
            Phase::Running(running) => Some(running),
            Phase::Waiting(_) => None,
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.running().is_some_and(|running| running.life == Life::Ready)
    }

    pub(super) fn is_throttled(&self) -> bool {
        self.restarts.is_throttled()
    }

    /// How long no process in the slot has been ready.
    pub(super) fn unready_for(&self, now: Instant) -> Option<Duration> {
        self.unready_since.map(|since| now.saturating_duration_since(since))
    }

    pub(super) fn set_ready(&mut self, ready: bool, now: Instant) {
        match self.running_mut() {
            Some(running) if matches!(running.life, Life::Unready | Life::Ready) => {
                running.life = if ready { Life::Ready } else { Life::Unready };
                running.served |= ready;
            }
            Some(_) if ready => return,
            _ => {}
        }
        self.unready_since = if ready { None } else { self.unready_since.or(Some(now)) };
    }

    /// Starts a process in the slot. `command` is complete except for its standard output and standard error. `link` is the
    /// master's end of its standard input.
    ///
    /// Only the main thread may call this: the process gets its death signal when the *thread* that started it ends
    /// (PR_SET_PDEATHSIG(2const)).
    pub(super) fn start(&mut self, command: io::Result<(Command, Option<LineStream>)>, generation: u64, now: Instant) {
        self.started += 1;
        let spawned = command.and_then(|(mut command, link)| {
            // With a process group of its own, Ctrl-C at the terminal reaches only the master.
            let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0).spawn()?;
            let stderr = child.stderr.take();
            if let Some(stderr) = &stderr {
                rustix::io::ioctl_fionbio(stderr, true)?;
            }
            Ok((child, stderr, link))
        });
        match spawned {
            Ok((child, stderr, link)) => {
                let pid = child.id();
                info!(process = self.name(), pid, "started");
                self.phase = Phase::Running(Box::new(Running {
                    child,
                    pid,
                    since: now,
                    since_wall: wall_clock(),
                    stderr,
                    tail: StderrTail::default(),
                    generation,
                    life: Life::Unready,
                    served: false,
                    link,
                    pings: Pings { has_answered: false, unanswered: 0, next_ask: now },
                }));
            }
            Err(error) => {
                let end = End::NotStarted(error.to_string());
                let pause = self.restarts.died(Duration::ZERO);
                warn!(process = self.name(), %error, again_in = ?pause, "it could not be started");
                self.last_end = Some(LastEnd { at: exact(wall_clock()), end, output: Vec::new() });
                self.phase = Phase::Waiting(now + pause);
            }
        }
    }

    /// Logs what the process has written to standard error.
    pub(super) fn listen(&mut self) {
        let name = self.name();
        if let Some(running) = self.running_mut() {
            for line in running.read_what_it_says() {
                warn!(process = name, pid = running.pid, "it says: {line}");
            }
        }
    }

    /// Reaps the process if it has ended, and schedules the next start. Returns how the process ended.
    pub(super) fn ended(&mut self, now: Instant) -> Option<Ended> {
        let name = self.name();
        let running = self.running_mut()?;
        // A process that was never ready counts as one without a life, however long it ran: the pause keeps doubling.
        let lived = if running.served { now.saturating_duration_since(running.since) } else { Duration::ZERO };
        let status = match running.child.try_wait() {
            Ok(Some(status)) => status,
            Ok(None) => {
                self.restarts.lives(lived);
                return None;
            }
            Err(error) => {
                // ECHILD cannot happen: nothing else waits for the master's children.
                warn!(process = name, %error, "it cannot be waited for");
                return None;
            }
        };
        self.listen();
        let old = std::mem::replace(&mut self.phase, Phase::Waiting(now));
        let Phase::Running(running) = old else { return None };
        let end = match (status.code(), status.signal()) {
            (Some(code), _) => End::Exit(code),
            (None, signal) => End::Signal(signal.unwrap_or_default()),
        };
        let output = running.tail.into_lines();
        let Running { pid, generation, served, life, .. } = *running;
        let (asked, killed) = match life {
            Life::Unready | Life::Ready => (false, false),
            Life::Ending { .. } => (true, false),
            Life::Killed { asked } => (asked, true),
        };
        let done = end == End::Exit(0) && (lived >= SHARE || self.role == Role::Worker);
        if asked || done {
            info!(process = name, pid, "{end}");
            if !asked {
                self.phase = Phase::Waiting(now.max(running.since + SHARE));
            }
        } else {
            let pause = self.restarts.died(lived);
            self.phase = Phase::Waiting(now + pause);
            warn!(process = name, pid, again_in = ?pause, throttled = self.restarts.is_throttled(), "{end}");
        }
        self.unready_since = self.unready_since.or(Some(now));
        let (role, by_us) = (self.role, asked || killed);
        let kind = match (asked, killed) {
            (_, true) => "killed".into(),
            (true, false) => "asked".into(),
            (false, false) if done => "done".into(),
            (false, false) => end.kind(),
        };
        let last = LastEnd { at: exact(wall_clock()), end, output };
        self.last_end = Some(last.clone());
        Some(Ended { role, name, pid, last, by_us, generation, served, kind })
    }

    /// Resets the restart counter, and starts a waiting process now: the request for a restart means that an operator has fixed
    /// something.
    pub(super) fn forgive(&mut self, restarts: Restarts, now: Instant) {
        self.restarts = restarts;
        if let Phase::Waiting(until) = &mut self.phase {
            *until = now;
        }
    }

    /// The process in `service status`.
    pub(super) fn status(&self, now: Instant) -> Process {
        let running = self.running();
        let starts_in = match self.phase {
            Phase::Waiting(until) => Some(until.saturating_duration_since(now).as_secs_f64()),
            Phase::Running(_) => None,
        };
        Process {
            role: self.role,
            number: self.number,
            pid: running.map(|running| running.pid),
            since: running.map(|running| exact(running.since_wall)),
            up_s: running.map(|running| now.saturating_duration_since(running.since).as_secs_f64()),
            ready: self.is_ready(),
            ending: running.is_some_and(Running::is_asked_to_end),
            restarts: self.started.saturating_sub(1),
            throttled: self.is_throttled(),
            starts_in_s: starts_in,
            last_end: self.last_end.clone(),
        }
    }

    /// How the previous process in the slot ended, in a few words.
    pub(super) fn how_it_ended(&self) -> String {
        self.last_end.as_ref().map_or_else(|| "it has not ended yet".into(), LastEnd::to_text)
    }
}

impl Running {
    /// Sends SIGTERM: the process ends after the message in progress. Once `patience` is over, it is killed.
    pub(super) fn request_end(&mut self, now: Instant, patience: Duration) {
        self.send(Signal::TERM);
        self.life = match self.life {
            Life::Killed { .. } => Life::Killed { asked: true },
            Life::Ending { kill_at } => Life::Ending { kill_at: kill_at.min(now + patience) },
            Life::Unready | Life::Ready => Life::Ending { kill_at: now + patience },
        };
    }

    /// Handles the loss of the link: most likely the process has ended by itself, and SIGKILL changes nothing. Its end counts as its
    /// own.
    pub(super) fn lose(&mut self) {
        self.link = None;
        self.send(Signal::KILL);
    }

    pub(super) fn is_asked_to_end(&self) -> bool {
        matches!(self.life, Life::Ending { .. } | Life::Killed { asked: true })
    }

    /// When the process must be killed.
    pub(super) fn kill_at(&self) -> Option<Instant> {
        match self.life {
            Life::Ending { kill_at } => Some(kill_at),
            Life::Unready | Life::Ready | Life::Killed { .. } => None,
        }
    }

    /// Sends SIGKILL.
    pub(super) fn kill(&mut self) {
        self.life = Life::Killed { asked: self.is_asked_to_end() };
        self.send(Signal::KILL);
    }

    /// Makes the process reopen its log. In a process that has just begun, the signal does nothing; the log is opened later
    /// anyway.
    pub(super) fn reopen_log(&self) {
        self.send(Signal::URG);
    }

    /// The standard error of the process, for poll(2).
    pub(super) fn standard_error(&self) -> Option<&ChildStderr> {
        self.stderr.as_ref()
    }

    fn send(&self, signal: Signal) {
        // The child has not been reaped, so its id is still its own, even if it has ended.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    fn read_what_it_says(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut buffer = [0; 4096];
        for _ in 0..READ_AT_ONCE / buffer.len() {
            let Some(stderr) = &mut self.stderr else { break };
            match stderr.read(&mut buffer) {
                Ok(0) => self.stderr = None,
                Ok(count) => lines.extend(self.tail.take(buffer.get(..count).unwrap_or_default())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.stderr = None,
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts a shell with this script in the slot.
    fn shell(slot: &mut Slot, script: &str, now: Instant) {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null());
        slot.start(Ok((command, None)), 3, now);
    }

    fn ended(slot: &mut Slot, now: Instant) -> Ended {
        std::iter::repeat_with(|| slot.ended(now)).flatten().next().unwrap()
    }

    #[test]
    fn how_a_process_has_ended_is_reported_with_the_last_that_it_said() {
        let begin = Instant::now();
        let mut slot = Slot::new(Role::Worker, 7, Restarts::new(10), begin);
        assert_eq!((slot.name().as_str(), slot.how_it_ended().as_str()), ("worker 7", "it has not ended yet"));
        shell(&mut slot, "echo one >&2; echo two >&2; exit 3", begin);
        let status = slot.status(begin + Duration::from_secs(2));
        assert_eq!((status.restarts, status.up_s, status.ready, status.ending), (0, Some(2.0), false, false));
        assert_eq!((status.starts_in_s, status.pid), (None, slot.running().map(|running| running.pid)));
        let one = ended(&mut slot, begin);
        assert_eq!((one.name.as_str(), one.kind.as_str(), one.by_us, one.served), ("worker 7", "exit 3", false, false));
        assert_eq!((one.last.output.as_slice(), one.generation), (&["one".to_owned(), "two".to_owned()][..], 3));
        let how = "ended with exit status 3; it said: two";
        assert_eq!((one.last.to_text(), slot.how_it_ended()), (how.into(), how.into()));
        assert!(matches!(slot.phase, Phase::Waiting(until) if until == begin + Duration::from_millis(100)));
        let status = slot.status(begin);
        assert_eq!((status.starts_in_s, status.pid, status.up_s), (Some(0.1), None, None));
        // A process that was ready, and ends by itself with status 0, has done its share. One that was requested to end has not
        // died either.
        for (script, asked, kind) in [("exit 0", false, "done"), ("exit 5", true, "asked")] {
            shell(&mut slot, script, begin);
            slot.set_ready(true, begin);
            if asked {
                slot.running_mut().unwrap().request_end(begin, Duration::from_mins(1));
            }
            let one = ended(&mut slot, begin + SHARE);
            assert_eq!((one.kind.as_str(), one.by_us, one.served), (kind, asked, true));
            assert!(matches!(slot.phase, Phase::Waiting(until) if until == begin + SHARE), "the next begins at once");
        }
        assert_eq!(slot.status(begin).restarts, 2);
        // Only the master ends a runner: if it ends at once by itself, that is a death.
        slot.role = Role::Runner;
        shell(&mut slot, "exit 0", begin);
        slot.set_ready(true, begin);
        assert_eq!(ended(&mut slot, begin).kind, "exit 0");
        assert!(matches!(slot.phase, Phase::Waiting(until) if until > begin));
        // After a reset, the next start is due now.
        slot.forgive(Restarts::new(10), begin);
        assert!(matches!(slot.phase, Phase::Waiting(until) if until == begin));
    }

    #[test]
    fn a_worker_that_the_front_ends_at_once_has_not_died_and_the_next_begins_a_second_after_it_did() {
        let mut now = Instant::now();
        let mut slot = Slot::new(Role::Worker, 1, Restarts::new(10), now);
        // A worker may end before it reports that it is ready.
        for ready in [true, false].repeat(10) {
            shell(&mut slot, "exit 0", now);
            slot.set_ready(ready, now);
            let one = ended(&mut slot, now + SHARE / 10);
            assert_eq!((one.kind.as_str(), one.by_us, slot.is_throttled()), ("done", false, false));
            assert!(matches!(slot.phase, Phase::Waiting(until) if until == now + SHARE));
            now += SHARE;
        }
    }

    #[test]
    fn what_cannot_be_started_is_tried_again_after_a_pause() {
        let begin = Instant::now();
        let mut slot = Slot::new(Role::Timer, 1, Restarts::new(10), begin);
        slot.start(Ok((Command::new("/nonexistent"), None)), 0, begin);
        assert!(slot.running().is_none() && slot.ended(begin).is_none());
        assert!(matches!(slot.phase, Phase::Waiting(until) if until == begin + Duration::from_millis(100)));
        assert!(slot.how_it_ended().starts_with("could not be started: "), "{}", slot.how_it_ended());
        let unready = slot.unready_for(begin + Duration::from_secs(5));
        assert_eq!(unready, Some(Duration::from_secs(5)));
    }

    #[test]
    fn one_that_writes_without_end_does_not_hold_up_the_master() {
        let begin = Instant::now();
        let mut slot = Slot::new(Role::Worker, 1, Restarts::new(10), begin);
        shell(&mut slot, "exec yes >&2", begin);
        for _ in 0..3 {
            slot.listen();
        }
        let running = slot.running_mut().unwrap();
        assert!(running.standard_error().is_some());
        running.kill();
        assert_eq!(ended(&mut slot, begin).kind, "killed");
    }

    #[test]
    fn it_is_killed_at_the_earliest_of_the_times_that_were_reported_and_once() {
        let begin = Instant::now();
        let mut slot = Slot::new(Role::Worker, 1, Restarts::new(10), begin);
        shell(&mut slot, "trap '' TERM; exec sleep 100", begin);
        let running = slot.running_mut().unwrap();
        assert!(!running.is_asked_to_end() && running.kill_at().is_none());
        for (patience, kills_after) in [(30, 30), (5, 5), (60, 5)] {
            running.request_end(begin, Duration::from_secs(patience));
            assert_eq!(running.kill_at(), Some(begin + Duration::from_secs(kills_after)));
        }
        assert!(running.is_asked_to_end());
        running.kill();
        assert_eq!(running.kill_at(), None);
        let one = ended(&mut slot, begin);
        assert_eq!((one.kind.as_str(), one.by_us), ("killed", true));
    }

    #[test]
    fn a_log_is_opened_again_at_once_and_who_does_not_listen_to_that_yet_lives_on() {
        let begin = Instant::now();
        for (trap, expected) in [("trap 'exit 9' URG", "exit 9"), ("", "asked")] {
            let mut slot = Slot::new(Role::Runner, 1, Restarts::new(10), begin);
            let script = format!("{trap}; trap 'exit 8' TERM; echo up >&2; while :; do sleep 0.01; done");
            shell(&mut slot, script.trim_start_matches("; "), begin);
            while slot.running_mut().unwrap().read_what_it_says() != ["up"] {}
            slot.running().unwrap().reopen_log();
            if trap.is_empty() {
                // The process still runs, and can be requested to end.
                slot.running_mut().unwrap().request_end(begin, Duration::from_mins(1));
            }
            let one = ended(&mut slot, begin);
            assert_eq!(one.kind, expected);
            assert!(matches!(one.last.end, End::Exit(_)), "{}", one.last.to_text());
        }
    }
}
