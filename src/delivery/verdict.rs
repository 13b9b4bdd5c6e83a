//! What Postfix is told: one exit code, one line.
//!
//! Postfix looks at the line first: if the output of a command that failed begins with an enhanced status code, that code
//! decides, whatever the exit code is (`src/global/pipe_command.c`). So `5.1.1` with exit 75 bounces, and `2.0.0` with exit
//! 75 bounces too. Here, both come from one constructor and cannot disagree.

use super::outcome::{CopyReport, Deferral, Delivered, Manner, Refusal};
use crate::database::DatabaseFailure;
use crate::mailbox::MailboxFailure;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};
use sysexits::ExitCode;

/// The longest line, its newline included. It may reach the sender, and the mail log.
const LONGEST_LINE: usize = 199;

/// Subject and detail of an enhanced status code, `X.3.0`, without its class (RFC 3463 section 2): the class follows from
/// the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusDetail(u16, u16);

impl StatusDetail {
    /// X.0.0: nothing more is known.
    pub const UNDEFINED: Self = Self(0, 0);
    /// X.1.1: bad destination mailbox address.
    pub const UNKNOWN_ADDRESS: Self = Self(1, 1);
    /// X.2.2: mailbox full.
    pub const MAILBOX_FULL: Self = Self(2, 2);
    /// X.3.0: other or undefined mail system status.
    pub const SYSTEM: Self = Self(3, 0);
    /// X.3.5: system incorrectly configured.
    pub const SYSTEM_CONFIGURATION: Self = Self(3, 5);
    /// X.4.1: no answer from host.
    pub const NO_ANSWER: Self = Self(4, 1);
    /// X.4.2: bad connection.
    pub const BAD_CONNECTION: Self = Self(4, 2);
    /// X.4.5: mail system congestion.
    pub const CONGESTION: Self = Self(4, 5);
}

/// How a delivery ended. Class and exit code always agree: 2 with 0, 4 with 75, 5 with a code that Postfix bounces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    class: u8,
    detail: StatusDetail,
    text: String,
    exit: ExitCode,
}

impl Verdict {
    /// The recipient's copy is in its mailbox: 2.0.0, exit 0.
    #[must_use]
    pub fn delivered(text: impl Into<String>) -> Self {
        Self::new(2, StatusDetail::UNDEFINED, text, ExitCode::Ok)
    }

    /// Not now: 4.X.X, exit 75. Postfix keeps the message and tries again.
    #[must_use]
    pub fn deferred(detail: StatusDetail, text: impl Into<String>) -> Self {
        Self::new(4, detail, text, ExitCode::TempFail)
    }

    /// There is no such recipient: 5.1.1, exit 67. Postfix bounces the message.
    #[must_use]
    pub fn unknown_recipient(text: impl Into<String>) -> Self {
        Self::new(5, StatusDetail::UNKNOWN_ADDRESS, text, ExitCode::NoUser)
    }

    /// The message is larger than a rule of the operator's allows: 5.3.4, exit 65. Postfix bounces it.
    #[must_use]
    pub fn too_big(text: impl Into<String>) -> Self {
        Self::new(5, StatusDetail(3, 4), text, ExitCode::DataErr)
    }

    /// The mailbox is over quota, and a rule of the operator's says not to wait: 5.2.2, exit 77. Postfix bounces it.
    #[must_use]
    pub fn over_quota(text: impl Into<String>) -> Self {
        Self::new(5, StatusDetail::MAILBOX_FULL, text, ExitCode::NoPerm)
    }

    fn new(class: u8, detail: StatusDetail, text: impl Into<String>, exit: ExitCode) -> Self {
        Self { class, detail, text: text.into(), exit }
    }

    /// The code to exit with.
    #[must_use]
    pub fn exit(&self) -> ExitCode {
        self.exit
    }

    /// The text as it was given.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// `4.3.0 text` and a newline: fewer than 200 bytes of printable ASCII. Anything else in the text is a `?`.
    #[must_use]
    pub fn line(&self) -> String {
        let mut line = self.to_string();
        // Every character is one byte by now.
        line.truncate(LONGEST_LINE - 1);
        line.truncate(line.trim_ascii_end().len());
        line.push('\n');
        line
    }
}

impl From<&Delivered> for Verdict {
    /// `INBOX appended (uid 17), Sent already there`: Postfix logs the first 100 characters of it.
    fn from(delivered: &Delivered) -> Self {
        let told: Vec<String> = delivered.copies.iter().map(told).collect();
        Self::delivered(told.join(", "))
    }
}

/// A copy, for the line.
fn told(copy: &CopyReport) -> String {
    let CopyReport { mailbox, manner, .. } = copy;
    match manner {
        Manner::Appended(Some(placement)) | Manner::Adopted(Some(placement)) => {
            format!("{mailbox} {} (uid {})", manner.as_str(), placement.uid)
        }
        _ => format!("{mailbox} {}", manner.as_str()),
    }
}

impl From<&Refusal> for Verdict {
    /// The line may reach the sender: it says what kind of thing failed, and nothing of hosts, accounts or causes. Those
    /// are in the log.
    fn from(refusal: &Refusal) -> Self {
        let deferral = match refusal {
            Refusal::UnknownRecipient => return Self::unknown_recipient("no such recipient here"),
            Refusal::OverQuota(_) => return Self::over_quota("the recipient's mailbox is full"),
            Refusal::Deferred(deferral) => deferral,
        };
        let (detail, text) = match deferral {
            Deferral::Busy(holder) => {
                let held_for = holder.as_ref().and_then(|holder| holder.held_for);
                let text = "another delivery of this message holds its lock";
                return Self::deferred(
                    StatusDetail::SYSTEM,
                    held_for.map_or(text.into(), |held_for| format!("{text}, {} s", held_for.as_secs())),
                );
            }
            Deferral::Unsettled(_) => {
                (StatusDetail::SYSTEM, "an earlier delivery of this message was cut short; waiting for what it sent")
            }
            Deferral::UnknownRecipient => {
                (StatusDetail::UNKNOWN_ADDRESS, "no such recipient here; deferred by routing.unknown")
            }
            Deferral::NobodyKnown => (StatusDetail::SYSTEM_CONFIGURATION, "no recipient addresses are configured"),
            Deferral::LockLost => (StatusDetail::BAD_CONNECTION, "the lock on this message was lost"),
            Deferral::JournalForgotten => (StatusDetail::SYSTEM, "the database forgot what was written to it"),
            Deferral::Unknown(_) => (StatusDetail::BAD_CONNECTION, "the mailbox store did not answer"),
            Deferral::Database(error) => match error.failure {
                DatabaseFailure::Unreachable | DatabaseFailure::TimedOut => {
                    (StatusDetail::NO_ANSWER, "the database cannot be reached")
                }
                DatabaseFailure::ConnectionLost => {
                    (StatusDetail::BAD_CONNECTION, "the connection to the database was lost")
                }
                DatabaseFailure::AccessDenied | DatabaseFailure::Schema | DatabaseFailure::Local => {
                    (StatusDetail::SYSTEM_CONFIGURATION, "the database is not set up for deliveries")
                }
                DatabaseFailure::ReadOnly => (StatusDetail::SYSTEM, "the database takes no writes"),
                DatabaseFailure::Contention | DatabaseFailure::Refused | DatabaseFailure::Other => {
                    (StatusDetail::SYSTEM, "the database failed")
                }
            },
            Deferral::Mailbox(error) => match error.failure {
                MailboxFailure::Unreachable | MailboxFailure::TimedOut => {
                    (StatusDetail::NO_ANSWER, "the mailbox store cannot be reached")
                }
                MailboxFailure::ConnectionLost => {
                    (StatusDetail::BAD_CONNECTION, "the connection to the mailbox store was lost")
                }
                MailboxFailure::OverQuota => (StatusDetail::MAILBOX_FULL, "the mailbox is full"),
                MailboxFailure::AccessDenied | MailboxFailure::NoSuchMailbox | MailboxFailure::Local => {
                    (StatusDetail::SYSTEM_CONFIGURATION, "the mailbox store is not set up for this recipient")
                }
                MailboxFailure::Refused | MailboxFailure::RefusedForGood | MailboxFailure::Protocol => {
                    (StatusDetail::SYSTEM, "the mailbox store did not take the message")
                }
                MailboxFailure::Internal => (StatusDetail::SYSTEM, "an internal error"),
            },
        };
        Self::deferred(detail, text)
    }
}

impl fmt::Display for Verdict {
    /// The line without its newline, and without its limit.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StatusDetail(subject, detail) = self.detail;
        // No colon after the code, or Postfix does not see one (`src/global/dsn_util.c`).
        write!(f, "{}.{subject}.{detail} ", self.class)?;
        self.text.chars().try_for_each(|c| fmt::Write::write_char(f, if matches!(c, ' '..='~') { c } else { '?' }))
    }
}

/// No verdict has been reported.
const NONE: u8 = u8::MAX;

/// The exit code of the verdict that this process has reported.
static REPORTED: AtomicU8 = AtomicU8::new(NONE);

/// Whether its line was written, or could not be.
static WRITTEN: AtomicBool = AtomicBool::new(false);

/// How long a line may take. A stdout that nobody reads may block for ever.
pub(crate) const LINE_LIMIT: Duration = Duration::from_millis(500);

/// Reports the verdict on stdout, if it is the first of this process, and returns the code to exit with: that of the
/// *first* verdict. The delivery and the [watchdog](crate::watchdog) may race, and a line and an exit code of two different
/// verdicts would bounce the message (`2.0.0` with exit 75).
///
/// One write, whatever becomes of it: stdout is a pipe that Postfix may not be reading (EAGAIN) or has closed (EPIPE), and
/// the exit code alone says enough then. Takes no lock that another thread could hold, and does not panic. It can block
/// where stdout can, which Postfix's cannot: it is O_NONBLOCK.
#[must_use = "the process must end with this code"]
pub fn report(verdict: &Verdict) -> ExitCode {
    match claim(verdict) {
        Ok(()) => {
            write_line(verdict);
            verdict.exit
        }
        Err(first) => {
            // The watchdog has the word, and the process must not end before its line is out: a deferral without a
            // reason helps nobody.
            let begun = Instant::now();
            while !WRITTEN.load(Ordering::Acquire) && begun.elapsed() < LINE_LIMIT {
                std::thread::sleep(Duration::from_millis(2));
            }
            first
        }
    }
}

/// Makes this the verdict of the process, at once and without waiting for anything; or says the exit code of the one that
/// was first. Whoever claims it writes its line.
pub(crate) fn claim(verdict: &Verdict) -> Result<(), ExitCode> {
    match REPORTED.compare_exchange(NONE, u8::from(verdict.exit), Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(()),
        Err(code) => Err(exit_code(code)),
    }
}

/// Writes the line of the verdict that was claimed.
pub(crate) fn write_line(verdict: &Verdict) {
    // A failure is ordinary (see `report`), changes nothing, and there is nobody left to tell: a log could block.
    let _ = write_once(verdict.line().as_bytes());
    WRITTEN.store(true, Ordering::Release);
}

/// The codes that a verdict can have. Any other number cannot come here; 75 is right for it all the same.
fn exit_code(code: u8) -> ExitCode {
    [ExitCode::Ok, ExitCode::NoUser, ExitCode::DataErr, ExitCode::NoPerm]
        .into_iter()
        .find(|known| u8::from(*known) == code)
        .unwrap_or(ExitCode::TempFail)
}

/// One write(2) to stdout. Not through [`std::io::Stdout`], whose buffer is behind a lock: a duplicate of the descriptor
/// is the same pipe with the same O_NONBLOCK.
fn write_once(line: &[u8]) -> io::Result<()> {
    let mut stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    loop {
        match stdout.write(line) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            // Up to PIPE_BUF bytes a pipe takes all or none (pipe(7)).
            written => return written.map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> [Verdict; 5] {
        [
            Verdict::delivered(text),
            Verdict::deferred(StatusDetail::SYSTEM, text),
            Verdict::unknown_recipient(text),
            Verdict::too_big(text),
            Verdict::over_quota(text),
        ]
    }

    #[test]
    fn the_class_and_the_exit_code_agree() {
        for verdict in all("x") {
            let class = verdict.line().bytes().next();
            match u8::from(verdict.exit()) {
                0 => assert_eq!(class, Some(b'2')),
                75 => assert_eq!(class, Some(b'4')),
                65 | 67 | 77 => assert_eq!(class, Some(b'5')),
                other => panic!("exit {other}"),
            }
            assert_eq!(exit_code(u8::from(verdict.exit())), verdict.exit());
        }
    }

    #[test]
    fn the_lines_are_what_postfix_reads() {
        assert_eq!(Verdict::deferred(StatusDetail::SYSTEM, "no database").line(), "4.3.0 no database\n");
        assert_eq!(Verdict::delivered("delivered").line(), "2.0.0 delivered\n");
        assert_eq!(Verdict::unknown_recipient("no such user").line(), "5.1.1 no such user\n");
        assert_eq!(Verdict::too_big("too big").line(), "5.3.4 too big\n");
        assert_eq!(Verdict::over_quota("").line(), "5.2.2\n");
    }

    #[test]
    fn hostile_text_stays_one_short_line_of_printable_ascii() {
        for text in ["a\nb", "a\r\n5.1.1 b", "\u{1b}[31mred", "ä\u{202e}€", "\0", &"x".repeat(1000), &"é ".repeat(1000)]
        {
            for verdict in all(text) {
                let line = verdict.line();
                assert!(line.len() < 200, "{}", line.len());
                let (end, body) = line.as_bytes().split_last().unwrap();
                assert_eq!(*end, b'\n');
                assert!(body.iter().all(|b| (b' '..=b'~').contains(b)), "{line:?}");
            }
        }
        assert_eq!(Verdict::delivered("a\nb\u{1b}é").line(), "2.0.0 a?b??\n");
        assert_eq!(Verdict::delivered("x".repeat(1000)).line().len(), 199);
    }
}
