//! APPEND (RFC 3501 section 6.3.11): stores a copy; the result says whether it is stored, or that this is not known.

use super::mailbox::{ImapMailbox, is_missing};
use crate::imap::Broken;
use crate::imap::argument::date_time;
use crate::imap::connection::Progress;
use crate::imap::fetch;
use crate::imap::wire::{Answer, Status};
use crate::mailbox::{Appended, MailboxError, MailboxFailure, NewCopy};
use std::time::Duration;

/// An APPEND that is under way.
pub(super) enum UnderWay {
    /// All but its last CRLF is with the server.
    Uploaded { tag: String },
    /// Its last CRLF was sent; or the server answered, or the connection broke, at that.
    Completed { tag: String, progress: Result<Progress, Broken> },
}

impl ImapMailbox {
    /// Uploads the copy; where the mailbox has gone since its position was asked for, it is created once more.
    pub(super) fn upload_or_create(&mut self, copy: &NewCopy<'_>) -> Result<(), Appended> {
        let doing = self.doing("appending to");
        if memchr::memchr(0, copy.bytes).is_some() {
            let detail = "a NUL cannot be sent (RFC 3501 section 4.3)";
            return Err(Appended::NotSent(MailboxError::new(MailboxFailure::Local, doing, detail)));
        }
        loop {
            let command = match self.command("APPEND", &doing) {
                Ok(command) if copy.seen => command.word("(\\Seen)"),
                Ok(command) => command,
                Err(error) => return Err(Appended::NotSent(error)),
            };
            let command = command.word(&date_time(copy.arrived)).message(copy.bytes);
            match self.conversation.begin(&command) {
                Ok((tag, Progress::Sent)) => {
                    self.append = Some(UnderWay::Uploaded { tag });
                    return Ok(());
                }
                Ok((_, Progress::Answered(answer))) => match self.refused(&doing, &answer) {
                    Appended::MadeAnew => {}
                    refused => return Err(refused),
                },
                Err(broken) => return Err(Appended::NotSent(broken.while_doing(&doing))),
            }
        }
    }

    pub(super) fn complete_upload(&mut self) {
        if let Some(UnderWay::Uploaded { tag }) = self.append.take() {
            let progress = self.conversation.end(&tag);
            self.append = Some(UnderWay::Completed { tag, progress });
        }
    }

    pub(super) fn has_answer_within(&mut self, patience: Duration) -> bool {
        let Some(UnderWay::Completed { tag, progress: progress @ Ok(Progress::Sent) }) = &mut self.append else {
            return true;
        };
        match self.conversation.answer_within(tag, patience) {
            Ok(None) => return false,
            Ok(Some(answer)) => *progress = Ok(Progress::Answered(answer)),
            Err(broken) => *progress = Err(broken),
        }
        true
    }

    pub(super) fn appended(&mut self) -> Appended {
        let doing = self.doing("appending to");
        let Some(UnderWay::Completed { tag, progress }) = self.append.take() else {
            let detail = "no APPEND was completed: a bug of our own";
            return Appended::NotSent(MailboxError::new(MailboxFailure::Internal, doing, detail));
        };
        let answer = match progress {
            Ok(Progress::Sent) => self.conversation.answer(&tag, &mut |_| {}),
            Ok(Progress::Answered(answer)) => Ok(answer),
            Err(broken) => Err(broken),
        };
        match answer {
            Ok(answer) if answer.is_ok() => Appended::Stored(fetch::append_uid(&answer)),
            // It has all of the message now.
            Ok(answer) if tells_of_trouble(&answer) => Appended::Unknown(answer.refusal(&doing)),
            Ok(answer) => self.refused(&doing, &answer),
            Err(broken) => Appended::Unknown(broken.while_doing(&doing)),
        }
    }

    /// An answer that is no success: the server refused, or said OK before it had the message, which makes no sense.
    fn refused(&mut self, doing: &str, refusal: &Answer) -> Appended {
        if refusal.is_ok() {
            // It cannot have stored what it did not have.
            self.conversation.give_up();
            let detail = "the server said OK before it had the message";
            return Appended::NotSent(MailboxError::new(MailboxFailure::Protocol, doing, detail));
        }
        if !is_missing(refusal) || self.created || !self.conversation.is_usable() {
            return Appended::Refused(refusal.refusal(doing));
        }
        // RFC 3501 section 6.3.11: TRYCREATE. It was there a moment ago, and was removed since.
        match self.create() {
            Ok(()) => Appended::MadeAnew,
            Err(error) => Appended::Refused(error),
        }
    }
}

/// Codes of an answer by which the server does not refuse the message, but has failed (RFC 5530 section 3).
const FAILED: [&str; 4] = ["UNAVAILABLE", "SERVERBUG", "CONTACTADMIN", "CORRUPTION"];

/// The same in words.
const IN_WORDS: [&str; 6] = ["unavailable", "system error", "internal error", "connection", "time out", "timed out"];

/// Whether a NO says that something has failed. By RFC 3501 section 6.3.11 nothing is stored then either. But a proxy says so, too,
/// where it has passed on all of the message and its backend is gone before it has answered: a frontend of Cyrus Murder says
/// `NO Server(s) unavailable to complete operation` (imap/imap_proxy.c, pipe_including_tag). The backend may have stored it.
fn tells_of_trouble(answer: &Answer) -> bool {
    let text = answer.text.to_ascii_lowercase();
    let in_words = answer.code.is_none() && IN_WORDS.iter().any(|words| text.contains(words));
    answer.status == Status::No && (answer.has_code(&FAILED) || in_words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::imap::wire::Code;

    fn answer(status: Status, code: Option<&str>, text: &str) -> Answer {
        let code = code.map(|name| Code { name: name.into(), arguments: String::new() });
        Answer { status, code, text: text.into() }
    }

    /// Taken for a refusal, a copy that the backend has stored would be appended again.
    #[test]
    fn each_sign_of_a_failure_leaves_open_whether_the_message_is_stored() {
        for code in ["UNAVAILABLE", "SERVERBUG", "CONTACTADMIN", "CORRUPTION"] {
            assert!(tells_of_trouble(&answer(Status::No, Some(code), "no")), "{code}");
            assert!(!tells_of_trouble(&answer(Status::Bad, Some(code), "no")), "{code}");
        }
        for code in ["OVERQUOTA", "NOPERM", "CANNOT", "LIMIT", "TRYCREATE", "INUSE"] {
            assert!(!tells_of_trouble(&answer(Status::No, Some(code), "timed out")), "{code}");
        }
        for words in [
            "Server(s) unavailable to complete operation",
            "System error",
            "Internal error occurred",
            "Connection to backend lost",
            "Time out",
            "Backend timed out",
        ] {
            assert!(tells_of_trouble(&answer(Status::No, None, words)), "{words}");
        }
        assert!(!tells_of_trouble(&answer(Status::No, None, "Invalid date")));
    }
}
