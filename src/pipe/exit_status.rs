//! The line on standard output and the exit status, exactly one of each per process.

use crate::delivery::{StatusDetail, Verdict};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};
use sysexits::ExitCode;

/// The exit status for a verdict: 0 for class 2, one that Postfix bounces for class 5, 75 for everything else.
pub fn exit_status(verdict: &Verdict) -> ExitCode {
    match (verdict.class(), verdict.detail()) {
        (2, _) => ExitCode::Ok,
        (5, StatusDetail::UNKNOWN_ADDRESS) => ExitCode::NoUser,
        (5, StatusDetail::MESSAGE_TOO_BIG) => ExitCode::DataErr,
        (5, StatusDetail::MAILBOX_FULL) => ExitCode::NoPerm,
        _ => ExitCode::TempFail,
    }
}

const NONE: u8 = u8::MAX;

/// The exit code of the verdict that this process has reported, or [`NONE`].
static REPORTED: AtomicU8 = AtomicU8::new(NONE);

/// Whether the attempt to write that verdict's line is over.
static WRITTEN: AtomicBool = AtomicBool::new(false);

/// How long the line may take: a stdout that nobody reads may block for ever.
pub(crate) const LINE_LIMIT: Duration = Duration::from_millis(500);

/// Reports the verdict on stdout, if it is the first of this process, and returns the exit code of the *first* verdict. The
/// delivery and the [watchdog](crate::pipe::deadline_watchdog) may race. The line of one with the exit code of the other would
/// bounce the message: `2.0.0` with exit 75 does.
///
/// The line is one write, which may fail: Postfix may not read its pipe (EAGAIN) or may have closed it (EPIPE), and the exit
/// code suffices. The write takes no lock that another thread could hold, and does not panic. It does not block, because
/// Postfix's pipe is O_NONBLOCK.
#[must_use = "the process must end with this code"]
pub fn report(verdict: &Verdict) -> ExitCode {
    match claim(verdict) {
        Ok(()) => {
            write_line(verdict);
            exit_status(verdict)
        }
        Err(first) => {
            // The process must not end before the watchdog's line is written: otherwise the log would show a deferral
            // without a reason.
            let begun = Instant::now();
            while !WRITTEN.load(Ordering::Acquire) && begun.elapsed() < LINE_LIMIT {
                std::thread::sleep(Duration::from_millis(2));
            }
            first
        }
    }
}

/// Makes this the verdict of the process, without waiting; the caller then writes its line. `Err` has the exit code of an
/// earlier verdict.
pub(crate) fn claim(verdict: &Verdict) -> Result<(), ExitCode> {
    match REPORTED.compare_exchange(NONE, u8::from(exit_status(verdict)), Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(()),
        Err(code) => Err(exit_code(code)),
    }
}

/// Writes the line of the verdict that was claimed.
pub(crate) fn write_line(verdict: &Verdict) {
    // A failure is normal, see [`report`]. It is not logged, because the log could block.
    let _ = write_once(verdict.line().as_bytes());
    WRITTEN.store(true, Ordering::Release);
}

/// The exit code with this number, and 75 for any other, which never occurs.
fn exit_code(code: u8) -> ExitCode {
    [ExitCode::Ok, ExitCode::NoUser, ExitCode::DataErr, ExitCode::NoPerm]
        .into_iter()
        .find(|known| u8::from(*known) == code)
        .unwrap_or(ExitCode::TempFail)
}

/// One write(2) to stdout, without the lock of [`std::io::Stdout`]. A duplicate of the descriptor is the same pipe, and also
/// O_NONBLOCK.
fn write_once(line: &[u8]) -> io::Result<()> {
    let mut stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    loop {
        match stdout.write(line) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            // A pipe accepts up to PIPE_BUF bytes completely or not at all (pipe(7)).
            written => return written.map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// sysexits(3). Postfix bounces on 65, 67 and 77, and retries on 75.
    #[test]
    fn each_verdict_has_its_exit_code_and_another_one_is_deferred() {
        for (verdict, code) in [
            (Verdict::delivered("x"), 0),
            (Verdict::unknown_recipient("x"), 67),
            (Verdict::too_big("x"), 65),
            (Verdict::over_quota("x"), 77),
            (Verdict::deferred(StatusDetail::SYSTEM, "x"), 75),
            (Verdict::deferred(StatusDetail::UNKNOWN_ADDRESS, "x"), 75),
            (Verdict::deferred(StatusDetail::MESSAGE_TOO_BIG, "x"), 75),
            (Verdict::deferred(StatusDetail::MAILBOX_FULL, "x"), 75),
        ] {
            assert_eq!(u8::from(exit_status(&verdict)), code, "{verdict}");
            assert_eq!(u8::from(exit_code(code)), code);
        }
        assert_eq!(exit_code(70), ExitCode::TempFail);
    }

    #[test]
    fn the_class_and_the_exit_code_agree() {
        for verdict in Verdict::one_of_each("x") {
            let class = verdict.line().bytes().next();
            match u8::from(exit_status(&verdict)) {
                0 => assert_eq!(class, Some(b'2')),
                75 => assert_eq!(class, Some(b'4')),
                65 | 67 | 77 => assert_eq!(class, Some(b'5')),
                other => panic!("exit {other}"),
            }
            assert_eq!(exit_code(u8::from(exit_status(&verdict))), exit_status(&verdict));
        }
    }

    /// No other test of this library may claim the verdict: there is one for each process.
    #[test]
    fn the_second_waits_for_the_line_of_the_first_but_not_for_ever() {
        claim(&Verdict::deferred(StatusDetail::SYSTEM, "the watchdog's")).unwrap();
        let begun = Instant::now();
        assert_eq!(report(&Verdict::delivered("too late")), ExitCode::TempFail);
        // No line was written. A longer wait on a busy machine is no failure.
        assert!(begun.elapsed() >= LINE_LIMIT && !WRITTEN.load(Ordering::Acquire));
        WRITTEN.store(true, Ordering::Release);
        assert_eq!(report(&Verdict::unknown_recipient("too late, too")), ExitCode::TempFail);
    }
}
