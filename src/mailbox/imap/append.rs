//! APPEND (RFC 3501 section 6.3.11): stores a copy; the result says whether it is stored, or that this is not known.

use super::mailbox::{ImapMailbox, is_missing};
use crate::imap::argument::date_time;
use crate::imap::conversation::Progress;
use crate::imap::fetch;
use crate::imap::wire::Answer;
use crate::mailbox::{Appended, MailboxError, MailboxFailure, NewCopy};

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
                Ok(appended) => return appended,
                Err(answer) => answer,
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
            // RFC 3501 section 6.3.11: TRYCREATE. It was there a moment ago, and was removed since.
            if let Err(error) = self.create() {
                return Appended::Refused(error);
            }
        }
    }

    /// `Err`: the server refused; or it said OK before it had the message, which makes no sense.
    fn try_append(
        &mut self,
        doing: &str,
        copy: &NewCopy<'_>,
        go_ahead: &mut dyn FnMut() -> bool,
    ) -> Result<Appended, Answer> {
        let command = match self.command("APPEND", doing) {
            Ok(command) if copy.seen => command.word("(\\Seen)"),
            Ok(command) => command,
            Err(error) => return Ok(Appended::NotSent(error)),
        };
        let command = command.word(&date_time(copy.arrived)).message(copy.bytes);
        let tag = match self.conversation.begin(&command) {
            Ok((tag, Progress::Sent)) => tag,
            Ok((_, Progress::Answered(answer))) => return Err(answer),
            Err(broken) => return Ok(Appended::NotSent(broken.while_doing(doing))),
        };
        if !go_ahead() {
            // Whatever is sent now would end the command.
            self.conversation.give_up();
            return Ok(Appended::Withheld);
        }
        let answer = match self.conversation.end(&tag) {
            Ok(Progress::Sent) => self.conversation.answer(&tag, &mut |_| {}),
            Ok(Progress::Answered(answer)) => Ok(answer),
            Err(broken) => Err(broken),
        };
        match answer {
            Ok(answer) if answer.is_ok() => Ok(Appended::Stored(fetch::append_uid(&answer))),
            Ok(answer) => Err(answer),
            Err(broken) => Ok(Appended::Unknown(broken.while_doing(doing))),
        }
    }
}
