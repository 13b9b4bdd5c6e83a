//! Opens the mailboxes that one delivery needs, in parallel.

use super::logins::Counter;
use super::plan::role_of_sent;
use super::sessions::Kept;
use super::{Kind, Site, Terms};
use crate::base::deadline::Deadline;
use crate::config::DedupBy;
use crate::delivery::{NotOpened, OwedCopy, Whose};
use crate::imap;
use crate::ledger::Destination;
use crate::ledger::failures::WRITE_TIMEOUT;
use crate::mailbox::{ImapMailbox, MailboxError, MailboxFailure, MaildirMailbox};
use crate::message::Role;
use std::sync::Arc;
use std::thread;
use std::time::Instant;
use tracing::debug;

const OPENING_SENDERS: &str = "opening the sender's mailbox";

/// The time limits for opening mailboxes.
#[derive(Clone, Copy)]
pub(super) struct OpeningTimes {
    /// The deadline of the delivery.
    pub(super) deadline: Deadline,
    /// Whether the message goes to several mailboxes: no mailbox may then delay the others.
    pub(super) several: bool,
    /// Before the deadline, so that a failure can still be recorded.
    pub(super) recipients: Deadline,
    /// If a server hangs only for the sender's mailbox, half of the time is left for the recipient's copy. Otherwise each
    /// delivery would end at its deadline, until Postfix bounces the message.
    pub(super) authors: Deadline,
}

impl OpeningTimes {
    pub(super) fn of(Terms { policy, deadline, .. }: &Terms<'_>, several: bool) -> Self {
        let batch = several.then_some(policy.slow_mailbox_timeout);
        Self {
            deadline: *deadline,
            several,
            recipients: deadline.leaving(WRITE_TIMEOUT).or_within(batch.or(policy.opening_patience)),
            authors: deadline.half_way().or_within(batch.or(policy.author_patience)),
        }
    }
}

/// A copy that is owed, and its mailbox.
pub(super) struct Owed {
    role: Role,
    whose: Whose,
    user: String,
    mailbox_name: String,
    mailbox: Result<UserMailbox, NotOpened>,
}

enum UserMailbox {
    Imap(Box<ImapMailbox>),
    Maildir(MaildirMailbox),
}

impl Owed {
    /// Lends the copy and its mailbox to one delivery.
    pub(super) fn lend(&mut self) -> OwedCopy<'_> {
        OwedCopy {
            role: self.role,
            whose: self.whose.clone(),
            user: self.user.clone(),
            mailbox_name: self.mailbox_name.clone(),
            mailbox: match &mut self.mailbox {
                Ok(UserMailbox::Imap(mailbox)) => Ok(mailbox.as_mut()),
                Ok(UserMailbox::Maildir(mailbox)) => Ok(mailbox),
                Err(why) => Err(why.clone()),
            },
        }
    }

    /// The author's copy, whose mailbox is not opened.
    pub(super) fn unopened(author: &Destination, why: MailboxError) -> Self {
        Self::authors(author, Err(NotOpened::Trouble(why)))
    }

    fn authors(author: &Destination, mailbox: Result<UserMailbox, NotOpened>) -> Self {
        let Destination { user, sent, .. } = author.clone();
        Self { role: role_of_sent(author), whose: Whose::Authors, user, mailbox_name: sent, mailbox }
    }

    /// Whether the mailbox was not open in time. Also true for the author's, since no recipient's copy waits for that.
    pub(super) fn took_too_long(&self) -> bool {
        self.whose == Whose::Authors || self.timed_out()
    }

    /// The author, if the author's mailbox was not open in time.
    pub(super) fn silent_author(&self) -> Option<&str> {
        (self.whose == Whose::Authors && self.timed_out()).then_some(&self.user)
    }

    fn timed_out(&self) -> bool {
        let too_long = |why: &NotOpened| matches!(why, NotOpened::Trouble(e) if e.failure == MailboxFailure::TimedOut);
        self.mailbox.as_ref().err().is_some_and(too_long)
    }

    /// The mailbox after the delivery, if it is on an IMAP server.
    pub(super) fn into_imap_mailbox(self) -> Option<ImapMailbox> {
        match self.mailbox {
            Ok(UserMailbox::Imap(mailbox)) => Some(*mailbox),
            Ok(UserMailbox::Maildir(_)) | Err(_) => None,
        }
    }
}

/// The error for an author's mailbox that is not opened, because it has just timed out.
pub(super) fn silent_a_moment_ago() -> MailboxError {
    MailboxError::new(MailboxFailure::TimedOut, OPENING_SENDERS, "it did not answer a moment ago")
}

/// A mailbox, and the recipients who have it.
pub(super) struct RecipientsMailbox {
    pub(super) to: Destination,
    /// The indexes of these recipients among all recipients of the message.
    pub(super) recipients: Vec<usize>,
}

impl RecipientsMailbox {
    pub(super) fn is_at(&self, user: &str, mailbox: &str) -> bool {
        (self.to.user.as_str(), self.to.inbox.as_str()) == (user, mailbox)
    }
}

impl Site {
    /// Opens the mailboxes of the copies and reads their positions, in parallel. With several recipients, a mailbox that is not
    /// open in time is left out, so that it does not delay the others.
    pub(super) fn open_mailboxes(
        &self,
        recipients: &[RecipientsMailbox],
        sender: Option<&Destination>,
        greeting: Option<Greeting>,
        kept: &mut Kept<imap::Session>,
        times: OpeningTimes,
    ) -> Vec<Owed> {
        let (of_recipients, of_sender) = match &self.kind {
            Kind::Embedded(embedded) => {
                let maildir = |user: &str, mailbox: &str| Ok(UserMailbox::Maildir(embedded.mailbox(user, mailbox)));
                let of_recipients = recipients.iter().map(|it| maildir(&it.to.user, &it.to.inbox)).collect();
                (of_recipients, sender.map(|sender| maildir(&sender.user, &sender.sent)))
            }
            Kind::Configured(site) => {
                let now = Instant::now();
                let Some((RecipientsMailbox { to: first, .. }, others)) = recipients.split_first() else {
                    return Vec::new();
                };
                let firsts_session = kept.take(&first.user, now);
                let mut beside = |name: &str, user: &str, mailbox: &str, in_time: Deadline| {
                    let (user, mailbox) = (user.to_owned(), mailbox.to_owned());
                    let (settings, session) = (site.imap().cloned(), kept.take(&user, now));
                    let logins = Arc::clone(&self.logins);
                    Background::start(name, move || {
                        let settings = settings?;
                        let reconnect = || imap::connect(&settings, in_time);
                        open_mailbox(&settings, session, reconnect, &user, &mailbox, in_time, &logins)
                    })
                };
                let others: Vec<_> = others
                    .iter()
                    .map(|it| beside("imap-recipient", &it.to.user, &it.to.inbox, times.recipients))
                    .collect();
                let is_left_to_author = site.config.sent.dedup_by == DedupBy::Mailbox;
                let senders = sender
                    .filter(|_| !is_left_to_author)
                    .map(|sender| beside("imap-sender", &sender.user, &sender.sent, times.authors));
                // This thread opens the first mailbox.
                let first = site.imap().and_then(|settings| {
                    // The time limit for the greeting is that of a single mailbox, so the greeting is not used for several.
                    let reconnect = || match greeting.filter(|_| !times.several) {
                        Some(greeting) => {
                            let mut connection = greeting.finish("opening the recipient's mailbox")?;
                            connection.set_deadline(times.recipients);
                            Ok(connection)
                        }
                        None => imap::connect(settings, times.recipients),
                    };
                    open_mailbox(
                        settings,
                        firsts_session,
                        reconnect,
                        &first.user,
                        &first.inbox,
                        times.recipients,
                        &self.logins,
                    )
                });
                let opened = |mailbox: Result<ImapMailbox, MailboxError>, deadline| {
                    let mut mailbox = mailbox?;
                    mailbox.set_deadline(deadline);
                    Ok(UserMailbox::Imap(Box::new(mailbox)))
                };
                let others = others.into_iter().map(|it| it.finish("opening a recipient's mailbox"));
                let of_recipients: Vec<_> =
                    std::iter::once(first).chain(others).map(|it| opened(it, times.deadline)).collect();
                let of_sender = match senders {
                    Some(senders) => Some(opened(senders.finish(OPENING_SENDERS), times.deadline.half_way())),
                    None => sender.map(|_| Err(NotOpened::LeftToTheAuthor)),
                };
                (of_recipients, of_sender)
            }
        };
        let mut owed: Vec<Owed> = Vec::with_capacity(recipients.len() + 1);
        // The delivery numbers the recipients mailbox by mailbox.
        let mut places = 0..;
        for (it, mailbox) in recipients.iter().zip(of_recipients) {
            let Destination { user, inbox, .. } = it.to.clone();
            let whose = Whose::Recipients(places.by_ref().take(it.recipients.len()).collect());
            owed.push(Owed { role: Role::Recipient, whose, user, mailbox_name: inbox, mailbox });
        }
        if let (Some(sender), Some(mailbox)) = (sender, of_sender) {
            owed.push(Owed::authors(sender, mailbox));
        }
        owed
    }
}

/// Opens a mailbox of a user and reads its position, over this user's kept session or over the connection from `reconnect`.
/// Nothing is journalled yet, so a kept session may fail.
fn open_mailbox(
    settings: &imap::Settings,
    session: Option<imap::Session>,
    reconnect: impl FnOnce() -> Result<imap::Connection, MailboxError>,
    user: &str,
    mailbox: &str,
    deadline: Deadline,
    logins: &Counter,
) -> Result<ImapMailbox, MailboxError> {
    let leads_there = |session: &imap::Session| session.user() == user && settings.lead_to(user, mailbox);
    // Only half of the time, so that a new login is still possible.
    let session = session.filter(leads_there).and_then(|session| session.begin(deadline.half_way()));
    match session.map(|session| session.open(mailbox).ask_position()) {
        Some(Ok(mut mailbox)) => {
            mailbox.set_deadline(deadline);
            return Ok(mailbox);
        }
        Some(Err(error)) => debug!(%error, user, "a kept session fails: logging in again"),
        None => {}
    }
    let opened = reconnect()?.open(user, mailbox)?;
    logins.imap();
    opened.ask_position()
}

/// A connection to the IMAP server whose greeting has not come yet.
pub(super) type Greeting = Background<imap::Connection>;

impl Greeting {
    pub(super) fn begin(settings: &imap::Settings, deadline: Deadline) -> Self {
        let settings = settings.clone();
        Self::start("imap", move || imap::connect(&settings, deadline))
    }
}

/// Work on another thread, whose result is fetched later. A panic there becomes an ordinary error.
pub(super) struct Background<T>(Result<thread::JoinHandle<Result<T, MailboxError>>, std::io::Error>);

impl<T: Send + 'static> Background<T> {
    fn start(name: &str, work: impl FnOnce() -> Result<T, MailboxError> + Send + 'static) -> Self {
        #[cfg(feature = "test-faults")]
        let work = {
            let name = name.to_owned();
            move || {
                crate::base::fault_injection::at(&name);
                work()
            }
        };
        Self(thread::Builder::new().name(name.into()).spawn(work))
    }

    fn finish(self, doing: &str) -> Result<T, MailboxError> {
        let failed = |detail: String| MailboxError::new(MailboxFailure::Internal, doing, detail);
        let handle = self.0.map_err(|error| failed(format!("no thread could be started: {error}")))?;
        handle.join().unwrap_or_else(|_| Err(failed("an internal error; the log has the details".into())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::delivery::{NoCaller, Policy};
    use crate::site::Sessions;
    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Mutex;
    use std::time::Duration;
    use tempfile::TempDir;

    /// An IMAP server that lets in every user except lisa, whom it never answers: like a proxy with one hanging backend.
    #[derive(Clone, Default)]
    struct Server {
        /// The commands of each session, with its user.
        asked: Arc<Mutex<Vec<String>>>,
        sessions: Arc<Mutex<Vec<TcpStream>>>,
        /// Whether the server has lost the mailboxes of the users who are logged in.
        forgets: Arc<Mutex<bool>>,
    }

    impl Server {
        fn serve(&self, stream: TcpStream) -> Option<()> {
            let mut out = stream.try_clone().ok()?;
            self.sessions.lock().unwrap().push(stream.try_clone().ok()?);
            out.write_all(b"* OK [CAPABILITY IMAP4rev1 SASL-IR AUTH=PLAIN UIDPLUS] ready\r\n").ok()?;
            let (mut user, mut login) = (String::new(), 0);
            for line in BufReader::new(stream).lines() {
                let line = line.ok()?;
                let (tag, command) = line.split_once(' ')?;
                if let Some(response) = command.strip_prefix("AUTHENTICATE PLAIN ") {
                    use base64::Engine as _;
                    let response = base64::engine::general_purpose::STANDARD.decode(response).ok()?;
                    user = String::from_utf8(response).ok()?.split('\0').next()?.to_owned();
                    login = self.sessions.lock().unwrap().len();
                }
                let verb = command.split(' ').next()?;
                self.asked.lock().unwrap().push(format!("{user} {verb}"));
                if user == "lisa" {
                    continue;
                }
                let forgotten = *self.forgets.lock().unwrap() && login < self.sessions.lock().unwrap().len();
                if verb == "STATUS" && forgotten {
                    out.write_all(format!("{tag} NO [UNAVAILABLE] moved\r\n").as_bytes()).ok()?;
                    continue;
                }
                if verb == "STATUS" {
                    out.write_all(b"* STATUS INBOX (UIDVALIDITY 1 UIDNEXT 1)\r\n").ok()?;
                }
                out.write_all(format!("{tag} OK [CAPABILITY IMAP4rev1 UIDPLUS] done\r\n").as_bytes()).ok()?;
            }
            Some(())
        }

        /// The commands since the last call, sorted.
        fn asked(&self) -> Vec<String> {
            let mut asked = std::mem::take(&mut *self.asked.lock().unwrap());
            asked.sort();
            asked
        }

        /// Starts the server, and a site that uses it.
        fn start(self) -> (Site, TempDir) {
            self.start_as("127.0.0.1")
        }

        /// Starts the server, and a site that knows it by this name.
        fn start_as(self, host: &str) -> (Site, TempDir) {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let site = site_at(host, listener.local_addr().unwrap().port());
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let server = self.clone();
                    thread::spawn(move || server.serve(stream));
                }
            });
            site
        }
    }

    /// A site whose IMAP server is at this port.
    fn site_at(host: &str, port: u16) -> (Site, TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let (file, password) = (directory.path().join("config.toml"), directory.path().join("password"));
        std::fs::write(&password, "secret\n").unwrap();
        let text = format!(
            "[database]\nengine = \"postgresql\"\nhost = \"127.0.0.1\"\ndatabase = \"x\"\nuser = \"x\"\n\
             [imap]\nhost = {host:?}\nport = {port}\nuser = \"service\"\npassword_file = {password:?}\n"
        );
        std::fs::write(&file, text).unwrap();
        (Site::configured(Config::load(&file).unwrap()).unwrap(), directory)
    }

    type Destinations = (Vec<RecipientsMailbox>, Option<Destination>);

    fn destinations(recipient: &str, sender: Option<&str>) -> Destinations {
        let destination = |user: &str| Destination { user: user.into(), inbox: "INBOX".into(), sent: "Sent".into() };
        (vec![RecipientsMailbox { to: destination(recipient), recipients: vec![0] }], sender.map(destination))
    }

    /// The times of a delivery to one mailbox, with these limits for opening a recipient's and the author's mailbox.
    fn times(deadline: Deadline, opening: Option<Duration>, author: Option<Duration>) -> OpeningTimes {
        let policy = Policy { opening_patience: opening, author_patience: author, ..Policy::embedded() };
        OpeningTimes::of(&Terms { policy: &policy, caller: &NoCaller, deadline }, false)
    }

    #[test]
    fn a_senders_mailbox_that_hangs_leaves_the_recipients_copy_its_time() {
        let (site, _directory) = Server::default().start();
        // The test waits for half of this time. The other half exceeds any pause of the test machine.
        let deadline = Deadline::after(Duration::from_secs(16));
        let (recipients, sender) = destinations("doug", Some("lisa"));
        let times = times(deadline, None, None);
        let mut owed = site.open_mailboxes(&recipients, sender.as_ref(), None, &mut Kept::default(), times);
        assert!(deadline.remaining() > Duration::from_millis(500), "the sender's mailbox has used up the time of both");
        let [recipient, sender] = owed.as_mut_slice() else { panic!("two copies are owed") };
        let (recipient, sender) = (recipient.lend(), sender.lend());
        assert!(recipient.mailbox.is_ok());
        assert!(matches!(&sender.mailbox, Err(NotOpened::Trouble(error)) if error.failure == MailboxFailure::TimedOut));
    }

    /// In a worker, other messages wait meanwhile.
    #[test]
    fn a_senders_mailbox_that_hangs_is_waited_for_no_longer_than_the_patience_of_a_worker() {
        let (site, _directory) = Server::default().start();
        // Half of the deadline would be two minutes.
        let deadline = Deadline::after(Duration::from_mins(4));
        let times = times(deadline, None, Some(Duration::from_secs(10)));
        let (recipients, sender) = destinations("doug", Some("lisa"));
        let owed = site.open_mailboxes(&recipients, sender.as_ref(), None, &mut Kept::default(), times);
        assert!(deadline.remaining() > Duration::from_secs(121), "half of it was waited for");
        assert_eq!(owed.iter().map(Owed::silent_author).collect::<Vec<_>>(), [None, Some("lisa")]);
        assert!(!owed[0].timed_out());
    }

    /// Either the greeting hangs, for which the delivery waits in parallel with the database, or the login.
    #[test]
    fn a_recipients_mailbox_that_hangs_is_waited_for_no_longer_than_a_worker_opens_mailboxes() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let greets = Server::default().start();
        let never_greets = site_at("127.0.0.1", silent.local_addr().unwrap().port());
        let greets_by_name = Server::default().start_as("localhost");
        for ((site, _directory), begins) in [(greets, false), (never_greets, true), (greets_by_name, true)] {
            let deadline = Deadline::after(Duration::from_mins(1));
            let opening = Some(Duration::from_secs(1));
            let times = times(deadline, opening, None);
            let greeting = begins.then(|| Greeting::begin(site.imap_settings().unwrap(), deadline.or_within(opening)));
            let (recipients, _) = destinations("lisa", None);
            let owed = site.open_mailboxes(&recipients, None, greeting, &mut Kept::default(), times);
            assert!(owed[0].timed_out() && deadline.remaining() > Duration::from_secs(20), "{deadline:?}");
        }
    }

    /// Opens the mailboxes of a delivery, and ends it.
    fn deliver(site: &Site, sessions: &mut Sessions, destinations: Destinations) {
        let deadline = Deadline::after(Duration::from_secs(60));
        let (recipients, sender) = destinations;
        let times = times(deadline, None, None);
        let mut owed = site.open_mailboxes(&recipients, sender.as_ref(), None, &mut sessions.kept, times);
        assert!(owed.iter_mut().all(|copy| copy.lend().mailbox.is_ok()));
        sessions.used_mailboxes = owed.into_iter().filter_map(Owed::into_imap_mailbox).collect();
        sessions.end();
    }

    #[test]
    fn a_session_serves_the_next_delivery_of_its_user_and_nobody_elses() {
        let server = Server::default();
        let (site, _directory) = server.clone().start();
        let mut sessions = Sessions::default();
        deliver(&site, &mut sessions, destinations("doug", Some("scuba")));
        let both = ["doug AUTHENTICATE", "doug STATUS", "scuba AUTHENTICATE", "scuba STATUS"];
        assert_eq!(server.asked(), both);
        // A session serves its user as sender and as recipient.
        deliver(&site, &mut sessions, destinations("scuba", Some("doug")));
        assert_eq!(server.asked(), ["doug STATUS", "scuba STATUS"]);
        deliver(&site, &mut sessions, destinations("dou", Some("doug")));
        assert_eq!(server.asked(), ["dou AUTHENTICATE", "dou STATUS", "doug STATUS"]);
        // A note to oneself needs two sessions at the same time.
        deliver(&site, &mut sessions, destinations("dou", Some("dou")));
        assert_eq!(server.asked(), ["dou AUTHENTICATE", "dou STATUS", "dou STATUS"]);
        deliver(&site, &mut sessions, destinations("dou", Some("dou")));
        assert_eq!(server.asked(), ["dou STATUS", "dou STATUS"]);
    }

    #[test]
    fn a_session_that_the_server_has_ended_or_that_fails_is_replaced_by_a_new_one() {
        let server = Server::default();
        let (site, _directory) = server.clone().start();
        let mut sessions = Sessions::default();
        deliver(&site, &mut sessions, destinations("doug", None));
        server.asked();
        let mut ended = server.sessions.lock().unwrap().pop().unwrap();
        ended.write_all(b"* BYE shutting down\r\n").unwrap();
        ended.shutdown(std::net::Shutdown::Both).unwrap();
        deliver(&site, &mut sessions, destinations("doug", None));
        assert_eq!(server.asked(), ["doug AUTHENTICATE", "doug STATUS"]);
        *server.forgets.lock().unwrap() = true;
        // This makes the kept session an older one.
        deliver(&site, &mut sessions, destinations("scuba", None));
        server.asked();
        deliver(&site, &mut sessions, destinations("doug", None));
        assert_eq!(server.asked(), ["doug AUTHENTICATE", "doug STATUS", "doug STATUS"]);
    }
}
