//! The messages between master and front: one line of JSON each, over a pair of sockets that is the front's standard input.
//!
//! The master learns first how a worker has ended. The front knows which workers take work, and which worker must be ended.

use super::line_stream::LineStream;
use crate::protocol::control::{LONGEST_LINE, Status, Task, line};
use crate::service::shunt::WorkerEnd;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Stdio;

/// A message from the master to the front.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ToFront {
    /// A poll, which the front answers with a [`FromFront::Status`]. A front that does not answer for half a minute is killed.
    Ask,
    /// The status of the service, every two seconds, and as soon as it changes. The front serves it as metrics and health.
    Service { status: Box<Status> },
    /// A worker was started.
    WorkerStarted { pid: u32 },
    /// A worker has ended. The message that it had in progress is answered with 451.
    WorkerEnded(WorkerEnd),
}

/// A report from a process to the master.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FromFront {
    /// Whether the process takes work. All processes except the front send this ([`readiness`](crate::base::readiness)).
    Ready { ready: bool },
    /// The front's status: the answer to a poll.
    Status(FrontReport),
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FrontReport {
    /// Whether the front accepts connections, and listens for workers.
    pub accepting: bool,
    /// Why the last delivery that used the database could not use it; `None` if it could.
    pub database_away: Option<String>,
    /// Figures for `service status`, which shows them as they are: the queue's length, how many workers are busy.
    #[serde(default)]
    pub known: Map<String, Value>,
    /// The timer's state file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timer: Vec<Task>,
}

/// The front's end: its standard input, which ends when the master does. It is non-blocking, for tokio.
///
/// # Errors
/// If standard input is not a socket: no master has started this process as a front.
pub fn to_the_master() -> io::Result<UnixStream> {
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    stream.peer_addr()?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// How many bytes may wait for a front that reads nothing.
const LONGEST_QUEUE: usize = 4 << 20;

/// Both ends of a link: the master's, and the standard input of the process that is about to start.
pub(super) fn pair() -> io::Result<(LineStream, Stdio)> {
    let (ours, theirs) = UnixStream::pair()?;
    Ok((LineStream::new(ours)?, Stdio::from(OwnedFd::from(theirs))))
}

/// The master's end. None of these operations blocks.
impl LineStream {
    /// Sends the notice now, or as soon as the socket can take it.
    ///
    /// # Errors
    /// If the front no longer reads.
    pub(super) fn notify(&mut self, notice: &ToFront) -> io::Result<()> {
        if self.waiting() > LONGEST_QUEUE {
            return Err(io::Error::other("it reads nothing"));
        }
        self.say(&line(notice))
    }

    /// The reports that have arrived.
    ///
    /// # Errors
    /// If the process has closed its end, or has sent an invalid report.
    pub(super) fn reports(&mut self) -> io::Result<Vec<FromFront>> {
        let mut reports = Vec::new();
        loop {
            match self.next_line(LONGEST_LINE) {
                Ok(Some(line)) => reports.push(serde_json::from_slice(&line)?),
                Err(error) if reports.is_empty() => return Err(error),
                // The next call returns the error again.
                Ok(None) | Err(_) => return Ok(reports),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::control::End;
    use std::io::{BufRead, BufReader, Write};

    fn pair() -> (LineStream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (LineStream::new(ours).unwrap(), theirs)
    }

    #[test]
    fn a_notice_is_one_line_that_says_how_a_worker_ended() {
        let output = vec!["thread 'main' has overflowed its stack".to_owned()];
        let notice = ToFront::WorkerEnded(WorkerEnd { pid: 77, end: End::Signal(11), by_us: false, output });
        let text = line(&notice);
        assert_eq!(
            text,
            "{\"kind\":\"worker_ended\",\"pid\":77,\"signal\":11,\"by_us\":false,\
             \"output\":[\"thread 'main' has overflowed its stack\"]}\n"
        );
        assert_eq!(serde_json::from_str::<ToFront>(&text).unwrap(), notice);
    }

    #[test]
    fn reports_come_in_pieces() {
        let (mut link, mut front) = pair();
        let away = FrontReport { accepting: true, database_away: Some("away".into()), ..FrontReport::default() };
        let (report, other) = (FromFront::Status(away), FromFront::Status(FrontReport::default()));
        let text = line(&report) + &line(&other);
        let (one, two) = text.split_at(20);
        front.write_all(one.as_bytes()).unwrap();
        assert_eq!(link.reports().unwrap(), []);
        front.write_all(two.as_bytes()).unwrap();
        assert_eq!(link.reports().unwrap(), [report, other]);
        front.write_all(b"hello\n").unwrap();
        assert!(link.reports().is_err());
        drop(front);
        assert!(link.reports().is_err());
    }

    #[test]
    fn what_a_process_says_of_itself_is_understood() {
        use crate::base::readiness::{READY, UNREADY};
        let (mut link, mut process) = pair();
        process.write_all([READY, UNREADY].concat().as_bytes()).unwrap();
        assert_eq!(link.reports().unwrap(), [true, false].map(|ready| FromFront::Ready { ready }));
    }

    #[test]
    fn a_line_that_does_not_end_is_not_kept() {
        let (mut link, mut front) = pair();
        // One byte, so that the following reads do not end exactly at the limit.
        front.write_all(b"x").unwrap();
        assert_eq!(link.reports().unwrap(), []);
        let front = std::thread::spawn(move || front.write_all(&vec![b'x'; 2 * LONGEST_LINE]));
        let error = loop {
            match link.reports() {
                Ok(reports) => assert_eq!(reports, []),
                Err(error) => break error,
            }
        };
        assert_eq!(error.to_string(), "a line without an end");
        assert!(link.received() < LONGEST_LINE + 20_000);
        drop(link);
        let _ = front.join().unwrap();
    }

    #[test]
    fn a_front_that_reads_nothing_does_not_hold_up_the_master() {
        let (mut link, front) = pair();
        assert_eq!(link.waiting(), 0);
        // Together, these notices exceed the limit on waiting data.
        let ended = (0..LONGEST_QUEUE / 10).map(|_| link.notify(&ToFront::Ask)).find(Result::is_err);
        assert_eq!(ended.unwrap().unwrap_err().to_string(), "it reads nothing");
        assert!(link.waiting() > 0 && link.waiting() <= LONGEST_QUEUE + line(&ToFront::Ask).len());
        // The waiting notices arrive whole and in their order.
        let mut lines = BufReader::new(front).lines();
        for _ in 0..100 {
            assert_eq!(lines.next().unwrap().unwrap(), "{\"kind\":\"ask\"}");
        }
    }
}
