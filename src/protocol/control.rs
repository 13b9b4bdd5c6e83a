//! The requests and replies of the master's control socket: one line of JSON in each direction.

use crate::base::text_enum::text_enum;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// The longest line, in bytes. The status of some hundred processes fits, each with the last lines that it wrote.
pub const LONGEST_LINE: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Report the status. The master answers at once.
    Status,
    /// End the service; each process finishes the message in progress. The master answers once all other processes have ended.
    Stop,
    /// Replace the processes one at a time; each finishes its message in progress. The master answers once all new ones are
    /// ready.
    Restart,
    /// Reread the configuration, reopen the log, then restart. The master answers as for [`Restart`](Self::Restart). If the
    /// configuration is invalid, it answers at once, and changes nothing.
    Reload,
    /// Reopen the log. The master answers once that is done.
    Reopen,
}

/// The line that a client sends to the master.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub command: Command,
    /// The content of the file [`key_beside`] the socket. [`Command::Status`] needs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// The file with the control socket's key. The master writes a new key at each start, and the kernel keeps confined
/// processes of the service from reading the file. The peer's user id cannot replace the key, because confined processes and
/// an operator's command run as the same user.
pub fn key_beside(socket: &Path) -> PathBuf {
    socket.with_file_name("control.key")
}

/// The line that the master answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Whether the master did what was requested.
    pub done: bool,
    /// Why not, and how to fix it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Additional information for the operator, if the request was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
}

impl Answer {
    /// An answer to a request that was done.
    pub fn done() -> Self {
        Self { done: true, problem: None, note: None, status: None }
    }

    /// An answer to a request that was not done, with the reason.
    pub fn failed(problem: impl Into<String>) -> Self {
        Self { done: false, problem: Some(problem.into()), note: None, status: None }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub version: String,
    pub pid: u32,
    /// When the master started: RFC 3339.
    pub since: String,
    /// Uptime of the master, in seconds.
    pub up_s: f64,
    pub configuration: PathBuf,
    pub state: State,
    /// Why the service is degraded, one sentence for each reason.
    #[serde(default)]
    pub reasons: Vec<String>,
    /// The addresses on which the front accepts LMTP.
    #[serde(default)]
    pub listeners: Vec<String>,
    /// The addresses on which the front serves metrics and health.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub http: Vec<String>,
    /// The front, then the workers by their numbers, then the other processes.
    pub processes: Vec<Process>,
    /// The front's own figures: the length of its queue, the number of busy workers, the content of the file queue.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub front: Value,
    /// The timer's tasks and their last results.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timer: Vec<Task>,
    #[serde(default)]
    pub counted: Counted,
}

/// The master's counters since its start. They outlive each front.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// How many processes were started, and how they ended, by role.
    pub roles: BTreeMap<Role, Ends>,
    /// Whether the master applied the configuration file when it last read that file.
    pub configuration_is_applied: bool,
    /// When the master last applied a configuration: RFC 3339.
    pub configuration_taken_over_at: String,
}

/// The counters of one role's processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ends {
    pub started: u64,
    /// How many ended in each way: `asked` if the master requested it, `killed` if the master killed the process, `done`
    /// after the process's share of messages. Otherwise the kind of [`End`]: `exit 70`, `SIGSEGV`, `not started`.
    pub ended: BTreeMap<String, u64>,
}

impl Counted {
    pub(crate) fn started(&mut self, role: Role) {
        self.roles.entry(role).or_default().started += 1;
    }

    /// Counts a process that has ended, or could not be started.
    pub(crate) fn ended(&mut self, role: Role, how: String) {
        *self.roles.entry(role).or_default().ended.entry(how).or_default() += 1;
    }
}

text_enum! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum State {
        Starting = "starting",
        Well = "well",
        /// Mail flows more slowly than it should, or not at all.
        Degraded = "degraded",
        /// The service is ending, as requested.
        Stopping = "stopping",
    }
}

text_enum! {
    /// What a process of the service does, in the order in which the master starts them. The texts are the names on the command
    /// line, in the JSON and for people. A worker's or a runner's number follows it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Role {
        /// Accepts LMTP connections, and passes messages to the workers.
        Front = "front",
        /// Delivers messages, one at a time.
        Worker = "worker",
        /// Takes messages out of the file queue, and passes them to the front.
        Runner = "runner",
        /// Retries owed copies, prunes, and renews the proof of logins.
        Timer = "timer",
        /// Publishes events, and sends webhooks to subscribers.
        Notifier = "notifier",
        Web = "web",
    }
}

impl Role {
    /// Whether the role may have several processes.
    pub fn is_numbered(self) -> bool {
        matches!(self, Self::Worker | Self::Runner)
    }

    /// Whether mail goes through the role. A restart waits only for processes of such roles.
    pub fn carries_mail(self) -> bool {
        !matches!(self, Self::Timer | Self::Notifier | Self::Web)
    }
}

/// One process that the master starts, and restarts whenever it ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Process {
    pub role: Role,
    /// The number within the role, from 1.
    pub number: u32,
    /// The process id, if the process runs.
    pub pid: Option<u32>,
    /// When the process started: RFC 3339.
    pub since: Option<String>,
    /// Uptime of the process, in seconds.
    pub up_s: Option<f64>,
    /// Whether the process takes work: the front listens, or the worker has reported that it is ready.
    pub ready: bool,
    /// Whether the master has requested that the process ends after the message in progress.
    pub ending: bool,
    /// How often the master has restarted the process.
    pub restarts: u64,
    /// Whether the process died so often that the master starts it only once a minute.
    pub throttled: bool,
    /// Seconds until the master starts the process, if it does not run.
    pub starts_in_s: Option<f64>,
    /// How the previous process ended.
    pub last_end: Option<LastEnd>,
}

/// A task that the timer runs at intervals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// `finish_owed`, `prune`, `renew_proof` or `index_addresses`.
    pub task: String,
    /// The interval, in seconds.
    pub every_s: f64,
    /// When the next run begins, if the task is not running: RFC 3339.
    pub next_at: Option<String>,
    /// How many runs have failed since the last one that succeeded.
    pub failed_runs: u32,
    /// The result of the last run that ended.
    pub last: Option<LastRun>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastRun {
    /// When the run began: RFC 3339.
    pub at: String,
    /// How long the run took, in seconds.
    pub took_s: f64,
    /// Whether the run succeeded. Single copies may still be owed after a run that succeeded.
    pub well: bool,
    /// The result in one line.
    pub result: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastEnd {
    /// RFC 3339.
    pub at: String,
    #[serde(flatten)]
    pub end: End,
    /// The last lines that it wrote to standard error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub output: Vec<String>,
}

/// How a process ended. An exit status and a signal of the same number are different ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The process ended itself, with this exit status.
    Exit(i32),
    Signal(i32),
    /// The master could not start the process, with the reason.
    NotStarted(String),
}

impl End {
    /// The end in one or two words, as the counters name it.
    pub fn kind(&self) -> String {
        match self {
            Self::Exit(status) => format!("exit {status}"),
            Self::Signal(signal) => signal_hook::low_level::signal_name(*signal)
                .map_or_else(|| format!("signal {signal}"), ToOwned::to_owned),
            Self::NotStarted(_) => "not started".into(),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exit(status) => write!(f, "ended with exit status {status}"),
            Self::Signal(_) => write!(f, "ended by {}", self.kind()),
            Self::NotStarted(problem) => write!(f, "could not be started: {problem}"),
        }
    }
}

/// A value as one line of JSON, with its newline.
pub fn line(what: &impl Serialize) -> String {
    // Serialization fails only for map keys that are not text.
    let mut line = serde_json::to_string(what).unwrap_or_default();
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_and_an_exit_status_of_the_same_number_are_two_things() {
        let (exit, signal) = (End::Exit(10), End::Signal(10));
        assert_ne!(line(&exit), line(&signal));
        assert_eq!(
            (exit.to_string(), signal.to_string()),
            ("ended with exit status 10".into(), "ended by SIGUSR1".into())
        );
        let last = LastEnd { at: "2026-11-22T10:00:00Z".into(), end: End::Signal(9), output: vec!["x".into()] };
        let text = line(&last);
        assert_eq!(text, "{\"at\":\"2026-11-22T10:00:00Z\",\"signal\":9,\"output\":[\"x\"]}\n");
        assert_eq!(serde_json::from_str::<LastEnd>(&text).unwrap(), last);
    }

    #[test]
    fn a_request_is_a_word_in_an_object() {
        let reload = Request { command: Command::Reload, key: None };
        assert_eq!(line(&reload), "{\"command\":\"reload\"}\n");
        assert!(serde_json::from_str::<Request>("{\"command\":\"shoot\"}").is_err());
    }

    #[test]
    fn an_end_is_counted_in_a_word_or_two() {
        let kinds = [End::Exit(70), End::Signal(9), End::Signal(99), End::NotStarted("no memory".into())];
        assert_eq!(kinds.each_ref().map(End::kind), ["exit 70", "SIGKILL", "signal 99", "not started"]);
        let shown = kinds.map(|end| end.to_string());
        assert_eq!(shown[2..], ["ended by signal 99", "could not be started: no memory"]);
        let mut counted = Counted::default();
        for how in ["SIGKILL", "SIGKILL", "done"] {
            counted.started(Role::Worker);
            counted.ended(Role::Worker, how.into());
        }
        let ended = [("SIGKILL".to_owned(), 2), ("done".to_owned(), 1)].into();
        assert_eq!(counted.roles, [(Role::Worker, Ends { started: 3, ended })].into());
    }

    #[test]
    fn words_are_those_of_the_json_and_mail_goes_through_three_roles() {
        let json = |what: &str| format!("\"{what}\"\n");
        for state in [State::Starting, State::Well, State::Degraded, State::Stopping] {
            assert_eq!(json(state.as_str()), line(&state));
        }
        for role in Role::ALL {
            assert_eq!(json(role.as_str()), line(&role));
        }
        assert_eq!(Role::ALL.map(Role::carries_mail), [true, true, true, false, false, false]);
    }
}
