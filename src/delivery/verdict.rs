//! The answer to the sender of a message: an enhanced status code and one line. The pipe derives the exit status from it.
//!
//! If the output of a failed command begins with an enhanced status code, Postfix ignores the exit status
//! (`src/global/pipe_command.c`): `5.1.1` with exit 75 bounces, and so does `2.0.0`.

use super::report::{CopyReport, Deferral, Delivered, Manner, Refusal};
use crate::database::DatabaseFailure;
use crate::mailbox::MailboxFailure;
use std::fmt;

/// In bytes, with its newline. The line may reach the sender, and the mail log.
const LONGEST_LINE: usize = 199;

/// Subject and detail of an enhanced status code (RFC 3463 section 2): `3.0` of `X.3.0`. The verdict adds the class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusDetail(u16, u16);

impl StatusDetail {
    /// X.0.0: nothing more is known.
    pub(crate) const UNDEFINED: Self = Self(0, 0);
    /// X.1.1: bad destination mailbox address.
    pub(crate) const UNKNOWN_ADDRESS: Self = Self(1, 1);
    /// X.2.2: mailbox full.
    pub(crate) const MAILBOX_FULL: Self = Self(2, 2);
    /// X.3.0: other or undefined mail system status.
    pub const SYSTEM: Self = Self(3, 0);
    /// X.3.1: mail system full.
    pub(crate) const SYSTEM_FULL: Self = Self(3, 1);
    /// X.3.2: system not accepting network messages.
    pub(crate) const NOT_ACCEPTING: Self = Self(3, 2);
    /// X.3.5: system incorrectly configured.
    pub(crate) const SYSTEM_CONFIGURATION: Self = Self(3, 5);
    /// X.4.1: no answer from host.
    pub(crate) const NO_ANSWER: Self = Self(4, 1);
    /// X.4.2: bad connection.
    pub(crate) const BAD_CONNECTION: Self = Self(4, 2);
    /// X.3.4: message too big for system.
    pub(crate) const MESSAGE_TOO_BIG: Self = Self(3, 4);
    /// X.4.5: mail system congestion.
    pub(crate) const CONGESTION: Self = Self(4, 5);
}

/// How a delivery ended: class 2 (delivered), 4 (deferred) or 5 (refused for good), its detail, and a line of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    class: u8,
    detail: StatusDetail,
    text: String,
}

impl Verdict {
    /// 2.0.0: the recipient's copy is in its mailbox.
    pub fn delivered(text: impl Into<String>) -> Self {
        Self::new(2, StatusDetail::UNDEFINED, text)
    }

    /// 4.X.X: Postfix keeps the message and retries it.
    pub fn deferred(detail: StatusDetail, text: impl Into<String>) -> Self {
        Self::new(4, detail, text)
    }

    /// 5.1.1: Postfix bounces the message.
    pub fn unknown_recipient(text: impl Into<String>) -> Self {
        Self::new(5, StatusDetail::UNKNOWN_ADDRESS, text)
    }

    /// 5.3.4, only if the operator configured a limit: Postfix bounces the message.
    pub fn too_big(text: impl Into<String>) -> Self {
        Self::new(5, StatusDetail::MESSAGE_TOO_BIG, text)
    }

    /// 5.2.2, only if the operator configured that: Postfix bounces the message.
    pub fn over_quota(text: impl Into<String>) -> Self {
        Self::new(5, StatusDetail::MAILBOX_FULL, text)
    }

    /// The verdict with this enhanced status code; `None` if no delivery ends with that code. A deferral may have any
    /// detail.
    pub(crate) fn by_code(code: &str, text: impl Into<String>) -> Option<Self> {
        let number = |part: &str| {
            let digits = (1..=3).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
            digits.then(|| part.parse::<u16>().ok()).flatten()
        };
        let mut parts = code.split('.').map(number);
        let (class, subject, detail) = (parts.next()??, parts.next()??, parts.next()??);
        let verdict = Self::new(u8::try_from(class).ok()?, StatusDetail(subject, detail), text);
        let known = match (verdict.class, verdict.detail) {
            (2, detail) => detail == StatusDetail::UNDEFINED,
            (4, _) => true,
            (5, detail) => [StatusDetail::UNKNOWN_ADDRESS, StatusDetail::MESSAGE_TOO_BIG, StatusDetail::MAILBOX_FULL]
                .contains(&detail),
            _ => false,
        };
        (known && parts.next().is_none()).then_some(verdict)
    }

    fn new(class: u8, detail: StatusDetail, text: impl Into<String>) -> Self {
        Self { class, detail, text: text.into() }
    }

    pub(crate) fn class(&self) -> u8 {
        self.class
    }

    pub(crate) fn detail(&self) -> StatusDetail {
        self.detail
    }

    /// The enhanced status code: `4.3.0`.
    pub(crate) fn code(&self) -> String {
        let StatusDetail(subject, detail) = self.detail;
        format!("{}.{subject}.{detail}", self.class)
    }

    /// The text as given, unfiltered.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// `4.3.0 text` and a newline: fewer than 200 bytes of printable ASCII. Any other character of the text becomes a `?`.
    pub fn line(&self) -> String {
        let mut line = self.to_string();
        // This cannot split a character: the text is ASCII by now.
        line.truncate(LONGEST_LINE - 1);
        line.truncate(line.trim_ascii_end().len());
        line.push('\n');
        line
    }
}

impl From<&Delivered> for Verdict {
    /// `INBOX appended (uid 17), Sent already there`: Postfix logs the first 100 characters of this line.
    fn from(delivered: &Delivered) -> Self {
        let shown: Vec<String> = delivered.copies.iter().map(shown).collect();
        Self::delivered(shown.join(", "))
    }
}

fn shown(copy: &CopyReport) -> String {
    let CopyReport { mailbox, manner, .. } = copy;
    match manner {
        Manner::Appended(Some(placement)) | Manner::Adopted(Some(placement)) => {
            format!("{mailbox} {} (uid {})", manner.as_str(), placement.uid)
        }
        _ => format!("{mailbox} {}", manner.as_str()),
    }
}

impl From<&Refusal> for Verdict {
    /// The line may reach the sender, so it names only the kind of failure. Only the log names hosts, accounts and causes.
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
                (StatusDetail::UNKNOWN_ADDRESS, "no such recipient here; deferred by routing.unknown_recipient")
            }
            Deferral::NobodyKnown => (StatusDetail::SYSTEM_CONFIGURATION, "no recipient addresses are configured"),
            Deferral::NoImapUser(_) => (
                StatusDetail::SYSTEM_CONFIGURATION,
                "the recipient's row of addresses names no IMAP user; this version delivers only to IMAP users",
            ),
            Deferral::AddressesChanged => (StatusDetail::SYSTEM, "the table of addresses has just been changed"),
            Deferral::LockLost => (StatusDetail::BAD_CONNECTION, "the lock on this message was lost"),
            Deferral::OtherLock(_) => (StatusDetail::SYSTEM_CONFIGURATION, "another host uses another lock.namespace"),
            Deferral::CallerGone => (StatusDetail::SYSTEM, "the program that handed the message over has died"),
            Deferral::JournalForgotten => (StatusDetail::SYSTEM, "the database forgot what was written to it"),
            Deferral::Internal(_) => (StatusDetail::SYSTEM, "an internal error"),
            Deferral::Unknown(_) => {
                (StatusDetail::BAD_CONNECTION, "the mailbox store did not say whether it has the message")
            }
            Deferral::Database(error) => match error.failure {
                DatabaseFailure::Unreachable | DatabaseFailure::TimedOut => {
                    (StatusDetail::NO_ANSWER, "the database cannot be reached")
                }
                DatabaseFailure::ConnectionLost => {
                    (StatusDetail::BAD_CONNECTION, "the connection to the database was lost")
                }
                DatabaseFailure::AccessDenied
                | DatabaseFailure::Schema
                | DatabaseFailure::Unsupported
                | DatabaseFailure::Local => {
                    (StatusDetail::SYSTEM_CONFIGURATION, "the database is not set up for deliveries")
                }
                DatabaseFailure::ReadOnly => (StatusDetail::SYSTEM, "the database takes no writes"),
                DatabaseFailure::Behind => (StatusDetail::SYSTEM, "the database has missed a fail-over"),
                DatabaseFailure::InDoubt => (StatusDetail::SYSTEM, "the database did not confirm a commit"),
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
                MailboxFailure::AccessDenied
                | MailboxFailure::LoginRefused
                | MailboxFailure::NoSuchMailbox
                | MailboxFailure::Local => {
                    (StatusDetail::SYSTEM_CONFIGURATION, "the mailbox store is not set up for this recipient")
                }
                MailboxFailure::IdentityIgnored => (
                    StatusDetail::SYSTEM_CONFIGURATION,
                    "the mailbox store ignores on whose behalf it is asked: run maildrop_command check",
                ),
                MailboxFailure::Refused | MailboxFailure::RefusedForGood | MailboxFailure::Protocol => {
                    (StatusDetail::SYSTEM, "the mailbox store did not take the message")
                }
                MailboxFailure::Internal => (StatusDetail::SYSTEM, "an internal error"),
            },
        };
        Self::deferred(detail, text)
    }
}

#[cfg(test)]
impl Verdict {
    /// One verdict for each exit status.
    pub(crate) fn one_of_each(text: &str) -> [Self; 5] {
        [
            Self::delivered(text),
            Self::deferred(StatusDetail::SYSTEM, text),
            Self::unknown_recipient(text),
            Self::too_big(text),
            Self::over_quota(text),
        ]
    }
}

impl fmt::Display for Verdict {
    /// The line without its newline and without the length limit.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StatusDetail(subject, detail) = self.detail;
        // No colon after the code: Postfix would not recognise the code (`src/global/dsn_util.c`).
        write!(f, "{}.{subject}.{detail} ", self.class)?;
        self.text.chars().try_for_each(|c| fmt::Write::write_char(f, if matches!(c, ' '..='~') { c } else { '?' }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_are_what_postfix_reads() {
        assert_eq!(Verdict::deferred(StatusDetail::SYSTEM, "no database").line(), "4.3.0 no database\n");
        assert_eq!(Verdict::delivered("delivered").line(), "2.0.0 delivered\n");
        assert_eq!(Verdict::unknown_recipient("no such user").line(), "5.1.1 no such user\n");
        assert_eq!(Verdict::too_big("too big").line(), "5.3.4 too big\n");
        assert_eq!(Verdict::over_quota("").line(), "5.2.2\n");
    }

    /// Postfix retries after any failure: a class 5 would bounce the message.
    #[test]
    fn each_deferral_is_of_class_4_and_its_code_says_what_failed() {
        use DatabaseFailure as D;
        use MailboxFailure as M;
        let code = |deferral| Verdict::from(&Refusal::Deferred(deferral)).code();
        for (failures, expected) in [
            (&[D::Unreachable, D::TimedOut][..], "4.4.1"),
            (&[D::ConnectionLost], "4.4.2"),
            (&[D::AccessDenied, D::Schema, D::Unsupported, D::Local], "4.3.5"),
            (&[D::ReadOnly, D::Behind, D::InDoubt, D::Contention, D::Refused, D::Other], "4.3.0"),
        ] {
            for failure in failures {
                let error = crate::database::DatabaseError::new(*failure, "asking", "no");
                assert_eq!(code(Deferral::Database(error)), expected, "{failure:?}");
            }
        }
        for (failures, expected) in [
            (&[M::Unreachable, M::TimedOut][..], "4.4.1"),
            (&[M::ConnectionLost], "4.4.2"),
            (&[M::OverQuota], "4.2.2"),
            (&[M::AccessDenied, M::LoginRefused, M::NoSuchMailbox, M::Local, M::IdentityIgnored], "4.3.5"),
            (&[M::Refused, M::RefusedForGood, M::Protocol, M::Internal], "4.3.0"),
        ] {
            for failure in failures {
                let error = crate::mailbox::MailboxError::new(*failure, "asking", "no");
                assert_eq!(code(Deferral::Mailbox(error.clone())), expected, "{failure:?}");
                assert_eq!(code(Deferral::Unknown(error)), "4.4.2");
            }
        }
        for (deferral, expected) in [
            (Deferral::Busy(None), "4.3.0"),
            (Deferral::Unsettled(std::time::Duration::ZERO), "4.3.0"),
            (Deferral::UnknownRecipient, "4.1.1"),
            (Deferral::NobodyKnown, "4.3.5"),
            (Deferral::NoImapUser("doug@x".into()), "4.3.5"),
            (Deferral::AddressesChanged, "4.3.0"),
            (Deferral::LockLost, "4.4.2"),
            (Deferral::OtherLock(None), "4.3.5"),
            (Deferral::CallerGone, "4.3.0"),
            (Deferral::JournalForgotten, "4.3.0"),
            (Deferral::Internal("x"), "4.3.0"),
        ] {
            assert_eq!(code(deferral), expected);
        }
    }

    #[test]
    fn a_code_that_no_delivery_ends_with_is_no_verdict() {
        for code in ["2.0.0", "4.0.0", "4.3.2", "4.4.5", "4.999.999", "5.1.1", "5.2.2", "5.3.4"] {
            assert_eq!(Verdict::by_code(code, "x").unwrap().code(), code);
        }
        for code in ["2.1.5", "5.0.0", "5.1.2", "5.3.0", "3.0.0", "4.3", "4.3.0.0", "4.3.1000", "4.+3.0", "4..0", ""] {
            assert_eq!(Verdict::by_code(code, "x"), None, "{code}");
        }
    }

    #[test]
    fn an_internal_error_is_deferred_and_is_nobodys_mistake_but_ours() {
        let refusal = Refusal::from(Deferral::Internal("no outcome for a recipient"));
        assert_eq!(Verdict::from(&refusal).line(), "4.3.0 an internal error\n");
        assert_eq!(refusal.to_string(), "an internal error: no outcome for a recipient");
    }

    #[test]
    fn hostile_text_stays_one_short_line_of_printable_ascii() {
        for text in ["a\nb", "a\r\n5.1.1 b", "\u{1b}[31mred", "ä\u{202e}€", "\0", &"x".repeat(1000), &"é ".repeat(1000)]
        {
            for verdict in Verdict::one_of_each(text) {
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
