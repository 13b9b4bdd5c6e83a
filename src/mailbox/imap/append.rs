//! APPEND (RFC 3501 section 6.3.11). The result says whether the copy is stored, or that this is unknown.

use super::mailbox::{ImapMailbox, is_missing};
use crate::imap::Broken;
use crate::imap::argument::date_time;
use crate::imap::connection::CommandProgress;
use crate::imap::fetch;
use crate::imap::wire::{Answer, Status};
use crate::mailbox::{Appended, MailboxError, MailboxFailure, NewCopy};
use std::time::Duration;

pub(super) enum AppendProgress {
    /// The server has all bytes except the last CRLF.
    Uploaded { tag: String },
    /// The last CRLF was sent, or the server answered or the connection broke while it was being sent.
    Completed { tag: String, progress: Result<CommandProgress, Broken> },
}

impl ImapMailbox {
    /// Uploads the copy. If the mailbox was removed since its position was read, it is created once.
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
                Ok((tag, CommandProgress::Sent)) => {
                    self.append = Some(AppendProgress::Uploaded { tag });
                    return Ok(());
                }
                Ok((_, CommandProgress::Answered(answer))) => match self.refused(&doing, &answer) {
                    Appended::Recreated => {}
                    refused => return Err(refused),
                },
                Err(broken) => return Err(Appended::NotSent(broken.while_doing(&doing))),
            }
        }
    }

    pub(super) fn complete_upload(&mut self) {
        if let Some(AppendProgress::Uploaded { tag }) = self.append.take() {
            let progress = self.conversation.end(&tag);
            self.append = Some(AppendProgress::Completed { tag, progress });
        }
    }

    pub(super) fn has_answer_within(&mut self, patience: Duration) -> bool {
        let Some(AppendProgress::Completed { tag, progress: progress @ Ok(CommandProgress::Sent) }) = &mut self.append
        else {
            return true;
        };
        match self.conversation.answer_within(tag, patience) {
            Ok(None) => return false,
            Ok(Some(answer)) => *progress = Ok(CommandProgress::Answered(answer)),
            Err(broken) => *progress = Err(broken),
        }
        true
    }

    pub(super) fn appended(&mut self) -> Appended {
        let doing = self.doing("appending to");
        let Some(AppendProgress::Completed { tag, progress }) = self.append.take() else {
            let detail = "no APPEND was completed: a bug of our own";
            return Appended::NotSent(MailboxError::new(MailboxFailure::Internal, doing, detail));
        };
        let answer = match progress {
            Ok(CommandProgress::Sent) => self.conversation.answer(&tag, &mut |_| {}),
            Ok(CommandProgress::Answered(answer)) => Ok(answer),
            Err(broken) => Err(broken),
        };
        match answer {
            Ok(answer) if answer.is_ok() => Appended::Stored(fetch::append_uid(&answer)),
            // The server has the whole message now, and may store it in spite of its NO.
            Ok(answer) if leaves_outcome_open(&answer) => Appended::Unknown(answer.refusal(&doing)),
            Ok(answer) => self.refused(&doing, &answer),
            Err(broken) => Appended::Unknown(broken.while_doing(&doing)),
        }
    }

    /// The result after an answer that does not report a stored copy: a refusal, or an OK before the server had the message.
    fn refused(&mut self, doing: &str, refusal: &Answer) -> Appended {
        if refusal.is_ok() {
            // The server cannot have stored an incomplete message.
            self.conversation.give_up();
            let detail = "the server said OK before it had the message";
            return Appended::NotSent(MailboxError::new(MailboxFailure::Protocol, doing, detail));
        }
        if !is_missing(refusal) || self.created || !self.conversation.is_usable() {
            return Appended::Refused(refusal.refusal(doing));
        }
        // TRYCREATE (RFC 3501 section 6.3.11): the mailbox existed when its position was read, and has just been removed.
        match self.create() {
            Ok(()) => Appended::Recreated,
            Err(error) => Appended::Refused(error),
        }
    }
}

/// Response codes that report a failure of the server and no refusal of the message (RFC 5530 section 3).
const FAILED: [&str; 4] = ["UNAVAILABLE", "SERVERBUG", "CONTACTADMIN", "CORRUPTION"];

/// Words in the text, by which servers without response codes report the same failures.
const IN_WORDS: [&str; 6] = ["unavailable", "system error", "internal error", "connection", "time out", "timed out"];

/// Whether a NO leaves open whether the message is stored. By RFC 3501 section 6.3.11 a NO means that it is not. But a proxy
/// also says NO if it has forwarded the whole message and its backend ends before answering.
///
/// A frontend of Cyrus Murder says `NO Server(s) unavailable to complete operation` then (imap/imap_proxy.c,
/// pipe_including_tag).
fn leaves_outcome_open(answer: &Answer) -> bool {
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

    /// If this counted as a refusal, a copy that the backend has stored would be appended a second time.
    #[test]
    fn each_sign_of_a_failure_leaves_open_whether_the_message_is_stored() {
        for code in ["UNAVAILABLE", "SERVERBUG", "CONTACTADMIN", "CORRUPTION"] {
            assert!(leaves_outcome_open(&answer(Status::No, Some(code), "no")), "{code}");
            assert!(!leaves_outcome_open(&answer(Status::Bad, Some(code), "no")), "{code}");
        }
        for code in ["OVERQUOTA", "NOPERM", "CANNOT", "LIMIT", "TRYCREATE", "INUSE"] {
            assert!(!leaves_outcome_open(&answer(Status::No, Some(code), "timed out")), "{code}");
        }
        for words in [
            "Server(s) unavailable to complete operation",
            "System error",
            "Internal error occurred",
            "Connection to backend lost",
            "Time out",
            "Backend timed out",
        ] {
            assert!(leaves_outcome_open(&answer(Status::No, None, words)), "{words}");
        }
        assert!(!leaves_outcome_open(&answer(Status::No, None, "Invalid date")));
    }
}
