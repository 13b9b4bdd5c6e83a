//! One mailbox of one user on an IMAP server.

use super::append::AppendProgress;
use super::message_id_match;
use crate::base::deadline::Deadline;
use crate::imap::argument::{Command, date};
use crate::imap::connection::Conversation;
use crate::imap::fetch::{self, Fetched};
use crate::imap::session::{self, Connection, SERVER_FAILURE_CODES, Session};
use crate::imap::wire::{Answer, MAX_LITERALS, Reply};
use crate::imap::{Broken, Rights};
use crate::mailbox::{
    Appended, FoundCopies, FoundCopy, Mailbox, MailboxError, MailboxFailure, Matching, NewCopy, Pace, Placement,
    Position, Removal, Wanted,
};
use crate::message::{Identity, blind_recipients};
use std::collections::BTreeMap;
use std::time::Duration;

/// The pauses between two STATUS commands for a mailbox that another session is creating. Creating takes some milliseconds,
/// and much longer on a busy disk.
const BEING_CREATED: [Duration; 6] = [
    Duration::from_millis(5),
    Duration::from_millis(20),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(1000),
];

/// How many UIDs one FETCH asks for: servers limit the length of a command line.
pub(super) const UIDS_PER_FETCH: usize = 200;

/// One mailbox of one user who is logged in. A delivery without a search never selects the mailbox.
pub struct ImapMailbox {
    pub(super) conversation: Conversation,
    user: String,
    mailbox: String,
    greeting: String,
    /// Whether this session has tried to create the mailbox. A session tries once, so that a mailbox which someone keeps
    /// removing causes no loop.
    pub(super) created: bool,
    /// The position that [`ask_position`](Self::ask_position) has read in advance.
    position: Option<Position>,
    /// Whether the mailbox was ever selected. From then on the server may answer from an old view, so the session is not
    /// reused.
    selected: bool,
    pub(super) append: Option<AppendProgress>,
}

pub(super) struct Selected {
    pub(super) uid_validity: u32,
    /// `None` if the server does not send UIDNEXT, which RFC 3501 section 6.3.1 requires.
    pub(super) uid_next: Option<u32>,
    pub(super) empty: bool,
    /// MAILBOXID (RFC 8474).
    id: Option<String>,
}

/// A message that may be the wanted copy.
struct Candidate {
    uid: u32,
    deleted: bool,
    size: u64,
}

/// A message whose bytes were all read.
struct ReadMessage {
    identity: Identity,
    /// The values of its Bcc and Resent-Bcc fields.
    blind: Vec<Vec<u8>>,
    /// `None` if the server sent no flags.
    deleted: Option<bool>,
}

impl Connection {
    /// Logs in, and opens one of the user's mailboxes.
    ///
    /// # Errors
    /// `Local` if the settings would lead to another user's mailbox; otherwise those of [`authenticate`](Self::authenticate).
    pub fn open(self, user: &str, mailbox: &str) -> Result<ImapMailbox, MailboxError> {
        if !self.settings.lead_to(user, mailbox) {
            let doing = self.doing(user);
            let detail = format!(
                "imap.login_user does not name the mailbox's user, and {mailbox:?} does not contain {user:?}: the mail of \
                 several users would be in one mailbox; say act_for_user = true, or login_user = \"{{user}}*…\", or name the \
                 mailbox after its user"
            );
            return Err(MailboxError::new(MailboxFailure::Local, doing, detail));
        }
        Ok(self.authenticate(user)?.open(mailbox))
    }
}

impl Session {
    /// One of the user's mailboxes. This sends nothing to the server.
    pub fn open(self, mailbox: &str) -> ImapMailbox {
        let Self { conversation, user, greeting } = self;
        let mailbox = mailbox.to_owned();
        ImapMailbox {
            conversation,
            user,
            mailbox,
            greeting,
            created: false,
            position: None,
            selected: false,
            append: None,
        }
    }
}

impl ImapMailbox {
    /// The round trips to the server in this delivery: the login counts, TLS does not.
    pub fn round_trips(&self) -> u32 {
        self.conversation.round_trips()
    }

    /// The server's description of itself, for people.
    pub fn describe(&self) -> String {
        session::describe(&self.greeting, &self.conversation)
    }

    /// Whether the server can expunge a single UID and reports the UID of an appended message (RFC 4315).
    pub fn has_uid_plus(&self) -> bool {
        self.conversation.can("UIDPLUS")
    }

    /// Reads the mailbox's position now, for the next [`Mailbox::position`], so that several mailboxes can be read in
    /// parallel.
    pub fn ask_position(mut self) -> Result<Self, MailboxError> {
        self.position = self.position()?;
        Ok(self)
    }

    /// Our rights to the mailbox, if the server reports them (RFC 4314 section 3.5). This does not create the mailbox.
    ///
    /// # Errors
    /// If the server does not answer, or reports a failure of its own.
    pub fn my_rights(&mut self) -> Result<Rights, MailboxError> {
        if !self.conversation.can("ACL") {
            return Ok(Rights::Unknown);
        }
        let doing = self.doing("asking for our rights to");
        let mut rights = None;
        let command = self.command("MYRIGHTS", &doing)?;
        let answer = self
            .conversation
            .run(&command, &mut |untagged| rights = fetch::my_rights(untagged.data()).or(rights.take()))
            .map_err(|broken| broken.while_doing(&doing))?;
        match (answer.is_ok(), rights) {
            (true, Some(rights)) => Ok(Rights::Of(rights)),
            (true, None) => Err(MailboxError::new(MailboxFailure::Protocol, doing, "the answer has none")),
            (false, _) if answer.has_code(&SERVER_FAILURE_CODES) => Err(answer.refusal(&doing)),
            (false, _) => Ok(Rights::NoMailbox),
        }
    }

    /// Whether no mailbox has this name, according to STATUS. This does not create the mailbox.
    ///
    /// # Errors
    /// If the server does not answer, or reports a failure of its own.
    pub fn is_missing(&mut self) -> Result<bool, MailboxError> {
        let doing = self.doing("asking for");
        match self.status_once(&doing)? {
            Ok(_) => Ok(false),
            Err(answer) if answer.has_code(&SERVER_FAILURE_CODES) => Err(answer.refusal(&doing)),
            Err(_) => Ok(true),
        }
    }

    /// From now on no wait lasts longer than this deadline.
    pub fn set_deadline(&mut self, deadline: Deadline) {
        self.conversation.set_deadline(deadline);
    }

    /// The session, for the user's next delivery. `None`, with the connection closed, if this delivery may have left a
    /// trace: it selected a mailbox, a command was refused or cut short, or the server sent unsolicited data.
    #[must_use]
    pub fn end(self) -> Option<Session> {
        let Self { mut conversation, user, greeting, selected, append, .. } = self;
        (!selected && append.is_none() && conversation.is_sound()).then_some(Session { conversation, user, greeting })
    }

    pub(super) fn doing(&self, what: &str) -> String {
        format!("{what} {:?} of {}", self.mailbox, self.user)
    }

    fn must(
        &mut self,
        doing: &str,
        command: &Command<'_>,
        on_untagged: &mut dyn FnMut(&Reply),
    ) -> Result<Answer, MailboxError> {
        let answer = self.conversation.run(command, on_untagged).map_err(|broken| broken.while_doing(doing))?;
        if answer.is_ok() { Ok(answer) } else { Err(answer.refusal(doing)) }
    }

    pub(super) fn command(&self, name: &str, doing: &str) -> Result<Command<'static>, MailboxError> {
        Command::new(name).mailbox(&self.mailbox).map_err(|broken| broken.while_doing(doing))
    }

    /// STATUS, never SELECT, because STATUS resets no `\Recent` and builds no view of the mailbox (RFC 3501 section 6.3.10).
    /// A refusal is a value.
    ///
    /// While another session creates the mailbox, Dovecot 2.4.1 may answer `UIDVALIDITY 0`. That happens if twenty
    /// deliveries of one message find no Sent mailbox, so STATUS is repeated.
    pub(super) fn status(&mut self, doing: &str) -> Result<Result<Position, Answer>, MailboxError> {
        let mut again = BEING_CREATED.iter();
        loop {
            match (self.status_once(doing)?, again.next()) {
                (Ok(None), Some(pause)) => self.conversation.pause(*pause),
                (Ok(None), None) => {
                    let detail = "no UIDVALIDITY and UIDNEXT in the answer";
                    return Err(MailboxError::new(MailboxFailure::Protocol, doing, detail));
                }
                (Ok(Some(position)), _) => return Ok(Ok(position)),
                (Err(refusal), _) => return Ok(Err(refusal)),
            }
        }
    }

    fn status_once(&mut self, doing: &str) -> Result<Result<Option<Position>, Answer>, MailboxError> {
        let mut position = None;
        let command = self.command("STATUS", doing)?.word("(UIDVALIDITY UIDNEXT)");
        let answer = self
            .conversation
            .run(&command, &mut |untagged| position = fetch::position(untagged.data()).or(position))
            .map_err(|broken| broken.while_doing(doing))?;
        Ok(if answer.is_ok() { Ok(position) } else { Err(answer) })
    }

    /// The server's own id of the mailbox, if the server has one. A missing id is no failure.
    ///
    /// Cyrus sends MAILBOXID (RFC 8474) in response to EXAMINE. STATUS is not used for that: Cyrus 3.10.2 may answer it with
    /// another mailbox's id, or with garbage. Dovecot sends X-GUID in response to STATUS, without a capability for it. Other
    /// servers refuse X-GUID, or leave it out.
    pub(super) fn id(&mut self) -> Option<String> {
        let doing = self.doing("asking for the id of");
        let mut id = None;
        let identified = match self.conversation.can("OBJECTID") {
            true => self.select("EXAMINE", &doing).map(|selected| id = selected.id),
            false => self.command("STATUS", &doing).and_then(|command| {
                let mut take = |untagged: &Reply| id = fetch::guid(untagged.data()).or(id.take());
                self.must(&doing, &command.word("(X-GUID)"), &mut take).map(drop)
            }),
        };
        if let Err(error) = identified {
            tracing::debug!(%error, "the server tells no id of the mailbox");
        }
        id
    }

    /// Creates the mailbox, and subscribes its user to it: mail programs would not show it otherwise.
    pub(super) fn create(&mut self) -> Result<(), MailboxError> {
        self.created = true;
        let doing = self.doing("creating the mailbox");
        self.must(&doing, &self.command("CREATE", &doing)?, &mut |_| {})?;
        tracing::info!(user = self.user, mailbox = self.mailbox, "created the mailbox");
        let doing = self.doing("subscribing to the mailbox");
        if let Err(error) = self.must(&doing, &self.command("SUBSCRIBE", &doing)?, &mut |_| {}) {
            if !self.conversation.is_usable() {
                return Err(error);
            }
            tracing::warn!(%error, "the mailbox is there, but its user is not subscribed to it");
        }
        Ok(())
    }

    /// Creates the mailbox for a short time, until [`delete`](Self::delete). `false` if the server refuses without a
    /// failure of its own.
    pub(super) fn create_briefly(&mut self) -> Result<bool, MailboxError> {
        let doing = self.doing("creating the mailbox");
        let command = self.command("CREATE", &doing)?;
        let answer = self.conversation.run(&command, &mut |_| {}).map_err(|broken| broken.while_doing(&doing))?;
        if answer.has_code(&SERVER_FAILURE_CODES) { Err(answer.refusal(&doing)) } else { Ok(answer.is_ok()) }
    }

    /// Deletes the mailbox that [`create_briefly`](Self::create_briefly) created.
    pub(super) fn delete(&mut self) -> Result<(), MailboxError> {
        let doing = self.doing("deleting the mailbox");
        self.must(&doing, &self.command("DELETE", &doing)?, &mut |_| {}).map(drop)
    }

    /// EXAMINE or SELECT, repeated for each use. A session that selected a mailbox earlier need not see what another session
    /// has appended since (RFC 3501 section 5.2).
    pub(super) fn select(&mut self, verb: &str, doing: &str) -> Result<Selected, MailboxError> {
        self.selected = true;
        let command = self.command(verb, doing)?;
        let (mut uid_validity, mut uid_next, mut empty, mut id) = (None, None, false, None);
        self.must(doing, &command, &mut |untagged| {
            if let Some(number) = untagged.code("UIDVALIDITY") {
                uid_validity = number.parse().ok();
            }
            if let Some(number) = untagged.code("UIDNEXT") {
                uid_next = number.parse().ok();
            }
            id = untagged.code("MAILBOXID").map(str::to_owned).or(id.take());
            if let Some(exists) = fetch::exists(untagged.data()) {
                empty = exists == 0;
            }
        })?;
        match uid_validity {
            Some(uid_validity) => Ok(Selected { uid_validity, uid_next, empty, id }),
            None => Err(MailboxError::new(MailboxFailure::Protocol, doing, "no UIDVALIDITY in the answer")),
        }
    }

    /// Whether LIST shows the mailbox. A name with a wildcard may match another mailbox; then this one is not considered
    /// missing.
    pub(super) fn is_listed(&mut self, doing: &str) -> Result<bool, MailboxError> {
        let broken = |broken: Broken| broken.while_doing(doing);
        let command = Command::new("LIST").string("").and_then(|list| list.mailbox(&self.mailbox)).map_err(broken)?;
        let mut listed = false;
        self.must(doing, &command, &mut |untagged| listed |= fetch::is_list(untagged.data()))?;
        Ok(listed)
    }

    /// UID FETCH, for the UIDs at or above `lowest`.
    pub(super) fn fetch(
        &mut self,
        doing: &str,
        uids: &str,
        lowest: u32,
        items: &str,
        take: &mut dyn FnMut(Fetched),
    ) -> Result<(), MailboxError> {
        let command = Command::new("UID FETCH").word(uids).word(items);
        self.must(doing, &command, &mut |untagged| {
            // `n:*` includes the last message even if all UIDs are below n (RFC 3501 section 6.4.8). A server may also
            // report flags that other sessions change, at any time (section 7).
            if let Some(fetched) = fetch::fetched(untagged.data()).filter(|fetched| fetched.uid >= lowest) {
                take(fetched);
            }
        })?;
        Ok(())
    }

    fn fetch_whole(&mut self, doing: &str, uid: u32) -> Result<Option<ReadMessage>, MailboxError> {
        let (mut read, mut deleted) = (None, None);
        self.fetch(doing, &uid.to_string(), uid, "(FLAGS BODY.PEEK[])", &mut |fetched| {
            // Flags and body may come in one answer or in two. The flags may be sent once more if another session changes
            // them meanwhile.
            if fetched.uid == uid {
                if let Some(bytes) = fetched.body {
                    read = Some((Identity::of(&bytes), blind_recipients(&bytes)));
                }
                deleted = fetched.deleted.or(deleted);
            }
        })?;
        Ok(read.map(|(identity, blind)| ReadMessage { identity, blind, deleted }))
    }

    /// The messages that may be the wanted one, by their Message-ID.
    ///
    /// From a given UID on, each message is compared: there are few, and the index that answers a SEARCH by header may lack
    /// the newest. In a whole mailbox, the server's SEARCH names the messages to compare.
    ///
    /// The whole header is fetched, because a server answers for a single field from a cache. After a crash during an
    /// APPEND, that cache was wrong on Dovecot 2.4.1 with Maildir: a reused UID had one message's file and another's
    /// Message-ID.
    fn candidates(
        &mut self,
        doing: &str,
        wanted: &Wanted<'_>,
        since: Option<Position>,
    ) -> Result<Vec<Candidate>, MailboxError> {
        let (lowest, sets) = match since {
            Some(since) => (since.uid_next, vec![format!("{}:*", since.uid_next)]),
            None => {
                let uids = self.search(doing, wanted)?;
                let set = |uids: &[u32]| uids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
                (1, uids.chunks(UIDS_PER_FETCH).map(set).collect())
            }
        };
        let mut candidates = BTreeMap::new();
        for set in sets {
            let items = "(FLAGS RFC822.SIZE BODY.PEEK[HEADER])";
            self.fetch(doing, &set, lowest, items, &mut |fetched| {
                let Some(header) = fetched.body else { return };
                if message_id_match::may_be(&header, wanted, since) {
                    let (deleted, size) = (fetched.deleted.unwrap_or(false), fetched.size.unwrap_or(0));
                    candidates.insert(fetched.uid, Candidate { uid: fetched.uid, deleted, size });
                }
            })?;
        }
        Ok(candidates.into_values().collect())
    }

    /// Searches the whole mailbox for messages that arrived since the day before [`Wanted::not_before`].
    fn search(&mut self, doing: &str, wanted: &Wanted<'_>) -> Result<Vec<u32>, MailboxError> {
        let day = wanted.not_before.date();
        let since = date(day.previous_day().unwrap_or(day));
        let mut command = Command::new("UID SEARCH").word("SINCE").word(&since);
        if let Some(id) = message_id_match::searchable(wanted) {
            command =
                command.word("HEADER").word("Message-ID").string(id).map_err(|broken| broken.while_doing(doing))?;
        }
        self.searched(doing, &command)
    }

    pub(super) fn searched(&mut self, doing: &str, command: &Command<'_>) -> Result<Vec<u32>, MailboxError> {
        let mut uids = Vec::new();
        self.must(doing, command, &mut |untagged| uids.extend(fetch::search(untagged.data()).unwrap_or_default()))?;
        Ok(uids)
    }

    /// Marks one message `\Deleted`, and expunges that message alone (RFC 4315 section 2.1).
    ///
    /// Both commands are sent before either is answered. If the connection is lost between them, the copy is marked and
    /// still there, and the next attempt removes it. CLOSE is never used, because it expunges all messages that the user has
    /// marked (RFC 3501 section 6.4.2).
    fn expunge(&mut self, doing: &str, uid: u32) -> Result<Removal, MailboxError> {
        let uid = uid.to_string();
        let mark = Command::new("UID STORE").word(&uid).word("+FLAGS.SILENT").word("(\\Deleted)");
        let expunge = Command::new("UID EXPUNGE").word(&uid);
        let answers = self.conversation.run_both(&mark, &expunge).map_err(|broken| broken.while_doing(doing))?;
        for answer in answers {
            if !answer.is_ok() {
                // A missing right (t or e, RFC 4314 section 2.1) will be missing later as well, so this is no reason to
                // defer.
                tracing::warn!(refusal = answer.quote(), "{doing}");
                return Ok(Removal::Unsupported);
            }
        }
        Ok(Removal::Removed)
    }
}

impl Mailbox for ImapMailbox {
    fn position(&mut self) -> Result<Option<Position>, MailboxError> {
        if let Some(position) = self.position.take() {
            return Ok(Some(position));
        }
        let doing = self.doing("asking for the position of");
        let refusal = match self.status(&doing)? {
            Ok(position) => return Ok(Some(position)),
            Err(refusal) => refusal,
        };
        // NONEXISTENT is of RFC 5530; older servers say NO without a code.
        let may_be_missing = is_missing(&refusal) || refusal.code.is_none();
        if self.created || !may_be_missing {
            return Err(refusal.refusal(&doing));
        }
        // Another delivery may create the mailbox at the same moment, so only its existence after CREATE counts.
        let created = self.create();
        match (created, self.status(&doing)) {
            (_, Ok(Ok(position))) => Ok(Some(position)),
            (Err(error), _) => Err(MailboxError { failure: missing_unless_broken(&error), ..error }),
            (Ok(()), Ok(Err(refusal))) => Err(refusal.refusal(&doing)),
            (Ok(()), Err(error)) => Err(error),
        }
    }

    fn upload(&mut self, copy: &NewCopy<'_>, pace: Option<Pace>) -> Result<(), Appended> {
        if pace.is_some() {
            self.conversation.keep_little_unsent(copy.bytes.len());
        }
        self.conversation.set_pace(pace.map(|Pace { stall, until }| (stall, until)));
        let uploaded = self.upload_or_create(copy);
        self.conversation.set_pace(None);
        uploaded
    }

    fn complete(&mut self) {
        self.complete_upload();
    }

    fn is_answered_within(&mut self, patience: Duration) -> bool {
        self.has_answer_within(patience)
    }

    fn answer(&mut self) -> Appended {
        self.appended()
    }

    fn withhold(&mut self) {
        // Any further byte could complete the command, so the connection is closed.
        self.append = None;
        self.conversation.give_up();
    }

    fn patient_until(&mut self, until: Option<Deadline>) {
        self.conversation.patient_until(until);
    }

    fn find(&mut self, wanted: &Wanted<'_>) -> Result<FoundCopies, MailboxError> {
        let doing = self.doing("looking for a copy in");
        let selected = self.select("EXAMINE", &doing)?;
        let since = wanted.since.filter(|since| since.uid_validity == selected.uid_validity);
        let mut found = FoundCopies { in_range: since.is_some(), copies: Vec::new() };
        if selected.empty {
            return Ok(found);
        }
        for candidate in self.candidates(&doing, wanted, since)? {
            let deleted = match wanted.matching {
                Matching::MessageId => candidate.deleted,
                Matching::Identity if candidate.size > MAX_LITERALS as u64 => {
                    let Candidate { uid, size, .. } = candidate;
                    tracing::warn!(uid, size, "too large to be looked at: passed over");
                    continue;
                }
                Matching::Identity => match self.fetch_whole(&doing, candidate.uid)? {
                    Some(whole) if whole.identity == *wanted.identity => whole.deleted.unwrap_or(candidate.deleted),
                    _ => continue,
                },
            };
            let placement = Placement { uid_validity: selected.uid_validity, uid: candidate.uid };
            found.copies.push(FoundCopy { placement: Some(placement), deleted });
        }
        Ok(found)
    }

    fn remove(
        &mut self,
        extra: Placement,
        keep: Placement,
        wanted: &Wanted<'_>,
        go_ahead: &mut dyn FnMut() -> bool,
    ) -> Result<Removal, MailboxError> {
        let doing = self.doing("taking a copy out of");
        if extra.uid == keep.uid {
            return Err(MailboxError::new(MailboxFailure::Local, doing, "the copy to keep is the one to take out"));
        }
        // A plain EXPUNGE would also remove messages that the user has marked `\Deleted` and may want back.
        if !self.has_uid_plus() {
            return Ok(Removal::Unsupported);
        }
        let selected = self.select("SELECT", &doing)?;
        if [extra, keep].iter().any(|placement| placement.uid_validity != selected.uid_validity) {
            return Ok(Removal::Renumbered);
        }
        let blind = match self.fetch_whole(&doing, extra.uid)? {
            Some(extra) if extra.identity == *wanted.identity => extra.blind,
            _ => return Ok(Removal::NotThere),
        };
        // The copy to keep is read last, which leaves its owner the least time to move it.
        match self.fetch_whole(&doing, keep.uid)? {
            Some(keep) if keep.identity == *wanted.identity && keep.deleted == Some(false) => {
                // The identity does not cover blind recipients. Only a copy that the author's mail program has saved names
                // them, and that copy is not ours to remove.
                if !blind.is_empty() && blind != keep.blind {
                    return Ok(Removal::TellsMore);
                }
            }
            _ => return Ok(Removal::KeeperGone),
        }
        if !go_ahead() {
            return Ok(Removal::Withheld);
        }
        self.expunge(&doing, extra.uid)
    }
}

pub(super) fn is_missing(refusal: &Answer) -> bool {
    refusal.has_code(&["TRYCREATE", "NONEXISTENT"])
}

/// A mailbox that the server refuses to create is a missing one; a failure of the connection is not.
fn missing_unless_broken(error: &MailboxError) -> MailboxFailure {
    match error.failure {
        MailboxFailure::Refused | MailboxFailure::RefusedForGood => MailboxFailure::NoSuchMailbox,
        failure => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::imap::wire::{Code, Status};

    #[test]
    fn a_mailbox_is_missing_by_either_code() {
        for (code, missing) in [("TRYCREATE", true), ("NONEXISTENT", true), ("NOPERM", false)] {
            let code = Some(Code { name: code.into(), arguments: String::new() });
            assert_eq!(is_missing(&Answer { status: Status::No, code, text: "no".into() }), missing);
        }
    }
}
