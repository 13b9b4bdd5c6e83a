//! Opens the mailboxes that one delivery needs, side by side.

use super::routes::Routes;
use super::{Kind, Site};
use crate::deadline::Deadline;
use crate::delivery::OwedCopy;
use crate::mailbox::imap::{self, ImapMailbox};
use crate::mailbox::{Mailbox, MailboxError, MailboxFailure, Role};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::thread;

impl Site {
    /// Opens the mailboxes that copies are owed to, and asks where they stand, side by side. Beside them, what counts how
    /// often an IMAP server is waited for.
    pub(super) fn open_mailboxes(
        &self,
        routes: Routes,
        greeting: Option<Greeting>,
        deadline: Deadline,
    ) -> (Vec<OwedCopy<'static>>, Vec<Arc<AtomicU32>>) {
        let Routes { recipient, sender } = routes;
        // Where Sent is the very INBOX that the recipient's copy goes to, a note to oneself is there once.
        let sender = sender.filter(|sender| (&sender.user, &sender.sent) != (&recipient.user, &recipient.inbox));
        let mut waited_for = Vec::new();
        let (recipients_mailbox, senders_mailbox) = match &self.kind {
            Kind::Embedded(embedded) => (
                Ok(Box::new(embedded.mailbox(&recipient.user, &recipient.inbox)) as Box<dyn Mailbox>),
                sender.as_ref().map(|sender| Ok(Box::new(embedded.mailbox(&sender.user, &sender.sent)) as _)),
            ),
            Kind::Configured(site) => {
                // A server that hangs for the sender's mailbox, and for no other, must leave the recipient's copy its time:
                // at the whole deadline the delivery ends, and would end so at each retry, until Postfix bounces.
                let senders_deadline = deadline.half_way();
                let senders = sender.as_ref().map(|sender| {
                    let (settings, sender) = (site.imap.clone(), sender.clone());
                    Beside::start("imap-sender", move || {
                        imap::connect(&settings, senders_deadline)?
                            .authenticate(&sender.user)?
                            .open(&sender.sent)
                            .ask_position()
                    })
                });
                let doing = "opening the recipient's mailbox";
                let greeted = match greeting {
                    Some(greeting) => greeting.heard(&site.imap, doing),
                    None => imap::connect(&site.imap, deadline),
                };
                let recipients = greeted
                    .and_then(|connection| connection.authenticate(&recipient.user))
                    .and_then(|session| session.open(&recipient.inbox).ask_position());
                let senders = senders.map(|senders| senders.finish("opening the sender's mailbox"));
                let mut boxed = |mailbox: ImapMailbox| {
                    waited_for.push(mailbox.round_trips());
                    Box::new(mailbox) as Box<dyn Mailbox>
                };
                (recipients.map(&mut boxed), senders.map(|senders| senders.map(boxed)))
            }
        };
        let mut owed = vec![OwedCopy {
            role: Role::Recipient,
            user: recipient.user,
            mailbox_name: recipient.inbox,
            mailbox: recipients_mailbox,
        }];
        if let (Some(sender), Some(mailbox)) = (sender, senders_mailbox) {
            owed.push(OwedCopy { role: Role::Sender, user: sender.user, mailbox_name: sender.sent, mailbox });
        }
        (owed, waited_for)
    }
}

/// The IMAP server's greeting, while it is waited for.
pub(super) enum Greeting {
    /// The kernel waits for it.
    Begun(imap::Begun),
    /// A thread does: there is a name to look up, TLS to talk about, or a socket that may be full.
    Beside(Beside<imap::Connection>),
}

impl Greeting {
    pub(super) fn awaited(settings: &imap::Settings, deadline: Deadline) -> Self {
        match imap::begin(settings, deadline) {
            Some(begun) => Self::Begun(begun),
            None => Self::Beside(Beside::start("imap", {
                let settings = settings.clone();
                move || imap::connect(&settings, deadline)
            })),
        }
    }

    fn heard(self, settings: &imap::Settings, doing: &str) -> Result<imap::Connection, MailboxError> {
        match self {
            Self::Begun(begun) => {
                #[cfg(feature = "test-faults")]
                crate::fault::at("imap");
                begun.finish(settings)
            }
            Self::Beside(beside) => beside.finish(doing),
        }
    }
}

/// A piece of work on a thread of its own, whose result is fetched later. A panic in it is a failure like any other.
pub(super) struct Beside<T>(Result<thread::JoinHandle<Result<T, MailboxError>>, std::io::Error>);

impl<T: Send + 'static> Beside<T> {
    fn start(name: &str, work: impl FnOnce() -> Result<T, MailboxError> + Send + 'static) -> Self {
        #[cfg(feature = "test-faults")]
        let work = {
            let name = name.to_owned();
            move || {
                crate::fault::at(&name);
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
    use crate::routing::Destination;
    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    /// Greets, lets doug in, and never answers a login for lisa: one backend of many behind one proxy that hangs.
    fn hang_for_lisa(stream: TcpStream) -> Option<()> {
        let mut out = stream.try_clone().ok()?;
        out.write_all(b"* OK [CAPABILITY IMAP4rev1 SASL-IR AUTH=PLAIN UIDPLUS] ready\r\n").ok()?;
        for line in BufReader::new(stream).lines() {
            let line = line.ok()?;
            let tag = line.split(' ').next()?;
            // base64 of "lisa\0"
            if line.contains(" AUTHENTICATE PLAIN bGlzYQ") {
                continue;
            }
            if line.contains(" STATUS ") {
                out.write_all(b"* STATUS INBOX (UIDVALIDITY 1 UIDNEXT 1)\r\n").ok()?;
            }
            out.write_all(format!("{tag} OK [CAPABILITY IMAP4rev1 UIDPLUS] done\r\n").as_bytes()).ok()?;
        }
        Some(())
    }

    #[test]
    fn a_senders_mailbox_that_hangs_leaves_the_recipients_copy_its_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || hang_for_lisa(stream));
            }
        });
        let directory = tempfile::tempdir().unwrap();
        let (file, password) = (directory.path().join("config.toml"), directory.path().join("password"));
        std::fs::write(&password, "secret\n").unwrap();
        let text = format!(
            "[database]\nengine = \"postgresql\"\nhost = \"127.0.0.1\"\ndatabase = \"x\"\nuser = \"x\"\n\
             [imap]\nhost = \"127.0.0.1\"\nport = {port}\nuser = \"service\"\npassword_file = {password:?}\n"
        );
        std::fs::write(&file, text).unwrap();
        let site = Site::configured(Config::load(&file).unwrap()).unwrap();
        let destination = |user: &str| Destination { user: user.into(), inbox: "INBOX".into(), sent: "Sent".into() };
        let routes = Routes { recipient: destination("doug"), sender: Some(destination("lisa")) };

        let deadline = Deadline::after(Duration::from_secs(8));
        let owed = site.open_mailboxes(routes, None, deadline);
        assert!(deadline.remaining() > Duration::from_millis(500), "the sender's mailbox has used up the time of both");
        let [recipient, sender] = owed.0.as_slice() else { panic!("two copies are owed") };
        assert!(recipient.mailbox.is_ok());
        assert_eq!(sender.mailbox.as_ref().err().map(|error| error.failure), Some(MailboxFailure::TimedOut));
    }
}
