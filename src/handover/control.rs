//! How the service is asked how it is, and told what to do: one line of JSON each way on its control socket.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;
use std::path::PathBuf;

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
}

/// The line that comes back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Whether it was done.
    pub done: bool,
    /// Why not, and what mends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// How the service is, if that was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
}

impl Answer {
    /// It was done.
    #[must_use]
    pub fn done() -> Self {
        Self { done: true, problem: None, status: None }
    }

    /// It was not.
    #[must_use]
    pub fn failed(problem: impl Into<String>) -> Self {
        Self { done: false, problem: Some(problem.into()), status: None }
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
    /// The front, then the workers by their numbers.
    pub processes: Vec<Process>,
    /// What the front knows: how long its queue is, how many workers are busy.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub front: Value,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Holds the LMTP connections, and hands messages to the workers.
    Front,
    /// Delivers one message after the other.
    Worker,
    /// Takes messages out of the file queue, and hands them to the front.
    Runner,
}

impl Role {
    /// Its name, as the command line and the JSON have it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Front => "front",
            Self::Worker => "worker",
            Self::Runner => "runner",
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
        let reload = Request { command: Command::Reload };
        assert_eq!(line(&reload), "{\"command\":\"reload\"}\n");
        assert!(serde_json::from_str::<Request>("{\"command\":\"shoot\"}").is_err());
    }
}
