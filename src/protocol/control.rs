//! How the service is asked how it is, and told what to do: one line of JSON each way on its control socket.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// The longest line, in bytes: the status of some hundred processes, each with the last lines that it wrote.
pub const LONGEST_LINE: usize = 1 << 20;

/// What is asked of the master of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// How it is. Answered at once.
    Status,
    /// End after the messages in hand. Answered once all other processes of the service have ended.
    Stop,
    /// Replace one process after the other, each after the message in hand. Answered once all are new, and up.
    Restart,
    /// Read the configuration anew, open the log anew, then restart as above. Answered as [`Restart`](Self::Restart) is, or at
    /// once where the configuration is not in order: then nothing has changed.
    Reload,
    /// Open the log anew. Answered once that is done.
    Reopen,
}

/// A line to the master.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub command: Command,
    /// What stands in the file [`key_beside`] the socket. [`Command::Status`] needs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// The file with the control socket's key. The master writes it anew at each start. The kernel keeps confined processes of the service
/// from reading it, and a connection's user does not tell them from an operator's command.
#[must_use]
pub fn key_beside(socket: &Path) -> PathBuf {
    socket.with_file_name("control.key")
}

/// The line that comes back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Whether it was done.
    pub done: bool,
    /// Why not, and what mends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// What else is to be known where it was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// How the service is, if that was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
}

impl Answer {
    /// It was done.
    #[must_use]
    pub fn done() -> Self {
        Self { done: true, problem: None, note: None, status: None }
    }

    /// It was not.
    #[must_use]
    pub fn failed(problem: impl Into<String>) -> Self {
        Self { done: false, problem: Some(problem.into()), note: None, status: None }
    }
}

/// How the service is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Of the program that runs.
    pub version: String,
    /// The master's process id.
    pub pid: u32,
    /// Since when it runs: RFC 3339.
    pub since: String,
    /// The same in seconds.
    pub up_s: f64,
    /// The configuration file.
    pub configuration: PathBuf,
    /// How it is as a whole.
    pub state: State,
    /// Why it is not well, one sentence each.
    #[serde(default)]
    pub reasons: Vec<String>,
    /// Where mail comes in.
    #[serde(default)]
    pub listeners: Vec<String>,
    /// Where metrics and health are asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub http: Vec<String>,
    /// The front, then the workers by their numbers.
    pub processes: Vec<Process>,
    /// What the front knows: how long its queue is, how many workers are busy, what is in the file queue.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub front: Value,
    /// What the timer does, and what came of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timer: Vec<Task>,
    /// What the master has counted.
    #[serde(default)]
    pub counted: Counted,
}

/// What the master has counted since it began. It outlives each front.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Processes that were started, and how they ended, by what they do.
    pub roles: BTreeMap<Role, Ends>,
    /// Whether the configuration that is in the file was taken over when it was last read.
    pub configuration_is_taken_over: bool,
    /// When a configuration was last taken over: RFC 3339.
    pub configuration_taken_over_at: String,
}

/// The processes of one role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ends {
    /// How many were started.
    pub started: u64,
    /// How many ended in which way: `asked` to by the master, or `killed` by it, `done` with their share; `exit 70`, `SIGSEGV`,
    /// `not started`.
    pub ended: BTreeMap<String, u64>,
}

impl Counted {
    /// A process was started.
    pub(crate) fn started(&mut self, role: Role) {
        self.roles.entry(role).or_default().started += 1;
    }

    /// A process has ended, or could not be started.
    pub(crate) fn ended(&mut self, role: Role, how: String) {
        *self.roles.entry(role).or_default().ended.entry(how).or_default() += 1;
    }
}

/// How the service is as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It is not ready yet.
    Starting,
    Well,
    /// Mail flows more slowly than it should, or not at all.
    Degraded,
    /// It has been told to end.
    Stopping,
}

impl State {
    /// Its name, as the JSON has it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Well => "well",
            Self::Degraded => "degraded",
            Self::Stopping => "stopping",
        }
    }
}

/// What a process of the service does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Holds the LMTP connections, and hands messages to the workers.
    Front,
    /// Delivers one message after the other.
    Worker,
    /// Takes messages out of the file queue, and hands them to the front.
    Runner,
    /// Finishes owed copies, and prunes.
    Timer,
    /// Publishes events, and tells subscribers.
    Notify,
    /// Serves the page.
    Web,
}

impl Role {
    /// In the order in which the master starts them.
    pub const ALL: [Self; 6] = [Self::Front, Self::Worker, Self::Runner, Self::Timer, Self::Notify, Self::Web];

    /// What people call it, where there is one of it; of a worker or a runner, with its number.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Front => "front",
            Self::Worker => "worker",
            Self::Runner => "runner",
            Self::Timer => "timer",
            Self::Notify => "notifier",
            Self::Web => "page",
        }
    }

    /// Whether there may be several of it.
    #[must_use]
    pub fn is_numbered(self) -> bool {
        matches!(self, Self::Worker | Self::Runner)
    }

    /// Whether mail goes through it: nobody waits for one through which none does.
    #[must_use]
    pub fn carries_mail(self) -> bool {
        !matches!(self, Self::Timer | Self::Notify | Self::Web)
    }

    /// Its name, as the command line and the JSON have it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Front => "front",
            Self::Worker => "worker",
            Self::Runner => "runner",
            Self::Timer => "timer",
            Self::Notify => "notify",
            Self::Web => "web",
        }
    }
}

/// One process that the master starts, and starts again whenever it has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Process {
    pub role: Role,
    /// Which of its role, from 1.
    pub number: u32,
    /// Its process id, if it runs.
    pub pid: Option<u32>,
    /// Since when it runs: RFC 3339.
    pub since: Option<String>,
    /// The same in seconds.
    pub up_s: Option<f64>,
    /// Whether it takes work: the front listens, the worker has said that it is ready.
    pub ready: bool,
    /// Whether it has been told to end after what it has in hand.
    pub ending: bool,
    /// How often it was started again.
    pub restarts: u64,
    /// Whether it died so often that it is started once a minute only.
    pub throttled: bool,
    /// In how many seconds it is started again, if it does not run.
    pub starts_in_s: Option<f64>,
    /// How the last one ended.
    pub last_end: Option<LastEnd>,
}

/// What is done at intervals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// `finish_owed`, `prune` or `renew_proof`.
    pub task: String,
    /// How often, in seconds.
    pub every_s: f64,
    /// When the next run begins, if none is under way: RFC 3339.
    pub next_at: Option<String>,
    /// How many runs have failed since one went well.
    pub failed_runs: u32,
    /// What came of the last run that ended.
    pub last: Option<LastRun>,
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastRun {
    /// When it began: RFC 3339.
    pub at: String,
    /// How long it took, in seconds.
    pub took_s: f64,
    /// Whether nothing was amiss: single copies may be owed still.
    pub well: bool,
    /// In one line.
    pub said: String,
}

/// How a process ended, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastEnd {
    /// RFC 3339.
    pub at: String,
    #[serde(flatten)]
    pub end: End,
    /// The last lines that it wrote to standard error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub said: Vec<String>,
}

/// How a process ended: by itself and by a signal are two things, whatever the numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// By itself, with this exit status.
    Exit(i32),
    /// A signal ended it.
    Signal(i32),
    /// It could not be started.
    NotStarted(String),
}

impl End {
    /// In one or two words, as it is counted.
    #[must_use]
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
            Self::Signal(signal) => match signal_hook::low_level::signal_name(*signal) {
                Some(name) => write!(f, "ended by {name}"),
                None => write!(f, "ended by signal {signal}"),
            },
            Self::NotStarted(problem) => write!(f, "could not be started: {problem}"),
        }
    }
}

/// A value as one line.
#[must_use]
pub fn line(what: &impl Serialize) -> String {
    // It fails only for map keys that are not text.
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
        let last = LastEnd { at: "2026-11-22T10:00:00Z".into(), end: End::Signal(9), said: vec!["x".into()] };
        let text = line(&last);
        assert_eq!(text, "{\"at\":\"2026-11-22T10:00:00Z\",\"signal\":9,\"said\":[\"x\"]}\n");
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
        let told = kinds.map(|end| end.to_string());
        assert_eq!(told[2..], ["ended by signal 99", "could not be started: no memory"]);
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
