//! APPEND (RFC 3501 section 6.3.11): stores a copy, and says for sure whether it did, or that it cannot be known.

use super::mailbox::{ImapMailbox, is_missing};
use crate::imap::argument::date_time;
use crate::imap::conversation::Progress;
use crate::imap::fetch;
use crate::imap::wire::Answer;
use crate::mailbox::{Appended, MailboxError, MailboxFailure, NewCopy};

/// What came of one APPEND command.
enum Attempt {
    Over(Appended),
    /// The server refused; or, against all sense, agreed before it had the message.
    Answered(Answer),
}

impl ImapMailbox {
    /// Appends the copy; where the mailbox has gone since its position was asked for, it is created once more.
    pub(super) fn append_or_create(&mut self, copy: &NewCopy<'_>, go_ahead: &mut dyn FnMut() -> bool) -> Appended {
        let doing = self.doing("appending to");
        if memchr::memchr(0, copy.bytes).is_some() {
            let detail = "a NUL cannot be sent (RFC 3501 section 4.3)";
            return Appended::NotSent(MailboxError::new(MailboxFailure::Local, doing, detail));
        }
        loop {
            let refusal = match self.try_append(&doing, copy, go_ahead) {
                Attempt::Over(appended) => return appended,
                Attempt::Answered(answer) => answer,
            };
            if refusal.is_ok() {
                // It cannot have stored what it did not have.
                self.conversation.give_up();
                let detail = "the server said OK before it had the message";
                return Appended::NotSent(MailboxError::new(MailboxFailure::Protocol, doing, detail));
            }
            if !is_missing(&refusal) || self.created || !self.conversation.is_usable() {
                return Appended::Refused(refusal.refusal(&doing));
            }
            // RFC 3501 section 6.3.11: TRYCREATE. It was there a moment ago; somebody has removed it.
            if let Err(error) = self.create() {
                return Appended::Refused(error);
            }
        }
    }

    fn try_append(&mut self, doing: &str, copy: &NewCopy<'_>, go_ahead: &mut dyn FnMut() -> bool) -> Attempt {
        let command = match self.command("APPEND", doing) {
            Ok(command) if copy.seen => command.word("(\\Seen)"),
            Ok(command) => command,
            Err(error) => return Attempt::Over(Appended::NotSent(error)),
        };
        let command = command.word(&date_time(copy.arrived)).message(copy.bytes);
        let tag = match self.conversation.begin(&command) {
            Ok((tag, Progress::Sent)) => tag,
            Ok((_, Progress::Answered(answer))) => return Attempt::Answered(answer),
            Err(broken) => return Attempt::Over(Appended::NotSent(broken.while_doing(doing))),
        };
        if !go_ahead() {
            // Not even a LOGOUT: whatever is sent now would end the command.
            self.conversation.give_up();
            return Attempt::Over(Appended::Withheld);
        }
        let answer = match self.conversation.end(&tag) {
            Ok(Progress::Sent) => self.conversation.answer(&tag, &mut |_| {}),
            Ok(Progress::Answered(answer)) => Ok(answer),
            Err(broken) => Err(broken),
        };
        match answer {
            Ok(answer) if answer.is_ok() => Attempt::Over(Appended::Stored(fetch::append_uid(&answer))),
            Ok(answer) => Attempt::Answered(answer),
            Err(broken) => Attempt::Over(Appended::Unknown(broken.while_doing(doing))),
        }
    }
}
