//! Ends the process at the deadline, whatever the process is waiting for.
//!
//! The [deadline](crate::base::deadline) bounds the waits that the code knows of. The watchdog covers all others: a name
//! server, a hanging disk, a bug. A delivery that exceeded Postfix's own limit would *bounce* the message.

use crate::base::watchdog;
use crate::delivery::Verdict;
use crate::pipe::exit_status::{LINE_LIMIT, claim, exit_status, write_line};
use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How long exit(3) may take: it runs the handlers of atexit(3), and waits for another thread that is running them.
const EXIT_LIMIT: Duration = Duration::from_secs(1);

const DELIVERY: &str = "a delivery";

/// Into how many sleeps the wait before the abort is divided; [`end`] says why.
const STEPS: u32 = 15;

#[derive(Debug)]
pub struct Watchdog(watchdog::Watchdog);

impl Watchdog {
    /// Starts a thread that, `deadline` from now, reports `verdict` and ends the process with its exit code, which is 75 for
    /// a [deferral](Verdict::deferred). If a verdict was reported before, its code counts: the delivery is over, and only
    /// the end of the process hangs.
    ///
    /// The thread does not log, and allows stdout half a second and exit(3) one second. Then it aborts, which Postfix defers
    /// as well (killed by a signal: 4.3.0).
    ///
    /// # Errors
    /// If no thread can be started. The delivery must then not begin, since nothing would bound it.
    pub fn start(deadline: Duration, verdict: Verdict) -> io::Result<Self> {
        let watchdog = watchdog::Watchdog::start(move |_| end(verdict.clone()))?;
        watchdog.watch_always(DELIVERY, deadline);
        Ok(Self(watchdog))
    }

    /// Moves the deadline to `left` from now. Called once the configuration has been read, which happens under the first
    /// deadline.
    pub(crate) fn move_to(&self, left: Duration) {
        self.0.watch_always(DELIVERY, left);
    }
}

fn end(verdict: Verdict) -> ! {
    // Without this thread, only a hanging exit(3) would be left unbounded.
    let _ = thread::Builder::new().name("abort".into()).spawn(|| {
        // Several short sleeps, because only one of them elapses while the whole process is stopped or gets no processor.
        // The others then still leave time to exit. After one long sleep, a process that has already reported would be
        // aborted during its exit.
        for _ in 0..STEPS {
            thread::sleep((LINE_LIMIT + EXIT_LIMIT) / STEPS);
        }
        std::process::abort();
    });
    // The claim comes before any wait for another thread: from now on the delivery cannot report anything else.
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
            // The delivery is writing its own line, or has written it, and ends by itself.
            thread::sleep(LINE_LIMIT);
            first
        }
    };
    std::process::exit(u8::from(exit).into());
}
