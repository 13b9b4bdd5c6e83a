//! Ends the process at the deadline, whatever it is waiting for.
//!
//! Each wait is bounded by the [deadline](crate::base::deadline); this is for the one that is not: a name server, a disk that
//! hangs, a bug. Past Postfix's own limit the message would *bounce*.

use crate::base::watchdog;
use crate::delivery::Verdict;
use crate::pipe::exit_status::{LINE_LIMIT, claim, exit_status, write_line};
use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How long exit(3) may take: it runs what was registered with atexit(3), and waits for another thread that is in it.
const EXIT_LIMIT: Duration = Duration::from_secs(1);

/// What is watched.
const DELIVERY: &str = "a delivery";

/// In how many steps that is waited for.
const STEPS: u32 = 15;

#[derive(Debug)]
pub struct Watchdog(watchdog::Watchdog);

impl Watchdog {
    /// Starts a thread that, `deadline` from now, reports `verdict` and ends the process with its exit code (of a
    /// [deferral](Verdict::deferred): 75). If a verdict was reported before, that one's code counts: the delivery is over then,
    /// and only its end hangs.
    ///
    /// The thread does not log, and gives stdout half a second and exit(3) one second. Then it aborts, which is a
    /// deferral for Postfix, too (killed by a signal: 4.3.0).
    ///
    /// # Errors
    /// Where there is no thread to be had. The delivery must then not begin, since nothing would bound it.
    pub fn start(deadline: Duration, verdict: Verdict) -> io::Result<Self> {
        let watchdog = watchdog::Watchdog::start(move |_| end(verdict.clone()))?;
        watchdog.watch_always(DELIVERY, deadline);
        Ok(Self(watchdog))
    }

    /// Moves the deadline to `left` from now, once the configuration has been read (under a deadline, too).
    pub(crate) fn move_to(&self, left: Duration) {
        self.0.watch_always(DELIVERY, left);
    }
}

fn end(verdict: Verdict) -> ! {
    // There may be no thread to be had. Nothing depends on it: the exit code is enough.
    let _ = thread::Builder::new().name("abort".into()).spawn(|| {
        // In short steps. A process that stands still as a whole (stopped, or without a processor) loses one of them, and the others are
        // left to it for its end: one that has reported would else be killed beside its own exit.
        for _ in 0..STEPS {
            thread::sleep((LINE_LIMIT + EXIT_LIMIT) / STEPS);
        }
        std::process::abort();
    });
    // Claimed here, before any thread is waited for: from now on the delivery cannot report anything else.
    let exit = match claim(&verdict) {
        Ok(()) => {
            let exit = exit_status(&verdict);
            let (done, wait) = mpsc::channel();
            let _ = thread::Builder::new().name("last line".into()).spawn(move || {
                write_line(&verdict);
                let _ = done.send(());
            });
            let _ = wait.recv_timeout(LINE_LIMIT);
            exit
        }
        Err(first) => {
            // The delivery is writing its own line, or has, and ends by itself.
            thread::sleep(LINE_LIMIT);
            first
        }
    };
    std::process::exit(u8::from(exit).into());
}
