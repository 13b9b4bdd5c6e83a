//! Ends a process of the service in which an operation exceeds its time limit.
//!
//! The process aborts, since nothing else stops a thread that hangs. The broker notices that a worker's connection ends, and
//! defers its message. SIGABRT counts as a crash.
//!
//! If a server owes this process an answer, the message is not the cause. So the process gets SIGKILL, which does not count as a
//! crash of the message ([`shunt`](super::shunt)).

use crate::base::server_waits;
use crate::base::watchdog::Watchdog;
use rustix::process::{Signal, getpid, kill_process};
use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use tracing::error;

/// How long writing the last log record may take: the log may be the cause of the hang.
const LAST_RECORD: Duration = Duration::from_secs(1);

/// Starts the watchdog.
pub(super) fn start() -> io::Result<Watchdog> {
    Watchdog::start(end_the_process)
}

fn end_the_process(what: &'static str) {
    let waits_for_a_server = server_waits::awaited().is_some();
    let (done, wait) = mpsc::channel();
    // Without a thread, there is no record.
    let _ = thread::Builder::new().name("last record".into()).spawn(move || {
        error!(what, waits_for_a_server, "it took too long: this process ends, and its message is deferred");
        let _ = done.send(());
    });
    let _ = wait.recv_timeout(LAST_RECORD);
    if waits_for_a_server {
        // If the kill fails, the abort follows.
        let _ = kill_process(getpid(), Signal::KILL);
    }
    std::process::abort();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the signal, the front concludes whether the message in progress is the cause.
    #[test]
    fn an_end_while_a_server_owes_an_answer_is_a_kill_and_any_other_an_abort() {
        use std::os::unix::process::ExitStatusExt;
        use std::process::{Command, Stdio};
        const OWES: &str = "MAILDROP_TEST_THIS_PROCESS_ENDS_WHILE_A_SERVER_OWES_AN_ANSWER";
        if let Ok(owes) = std::env::var(OWES) {
            // This branch is the process that the test starts.
            let _awaited = (owes == "true").then(|| server_waits::for_answer(server_waits::ServerKind::Database));
            return end_the_process("this");
        }
        let name =
            "service::process_watchdog::tests::an_end_while_a_server_owes_an_answer_is_a_kill_and_any_other_an_abort";
        for (owes, signal) in [("false", Signal::ABORT), ("true", Signal::KILL)] {
            let mut ends = Command::new(std::env::current_exe().unwrap());
            ends.args(["--exact", name]).env(OWES, owes).stdout(Stdio::null()).stderr(Stdio::null());
            let ended = ends.status().unwrap();
            assert_eq!(ended.signal(), Some(signal.as_raw()), "{owes}: {ended}");
        }
    }
}
