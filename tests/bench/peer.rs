//! What delivers: ours, and what people run today, each a process as Postfix's pipe(8) starts it. All of them are in the
//! image `bench` (tests/images), on one loopback with the servers.

use crate::floor::{self, Calls};
use crate::mariadb::Mariadb;
use crate::process;
use crate::site::{STRANGER, Site, Way, with_crlf};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Where Debian has them, and where `tests/images/start` puts its files.
pub const DOVECOT_LDA: &str = "/usr/lib/dovecot/dovecot-lda";
pub const DOVECOT_CONF: &str = "/srv/dovecot/dovecot.conf";
pub const DOVECOT_ALSO: &str = "/srv/dovecot/also.conf";
pub const MAILS: &str = "/srv/dovecot/home";
const COURIER: &str = "/usr/bin/maildrop";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    Ours,
    /// The same calls to the servers, in a program that runs on.
    Floor,
    /// `article/deliver.py`.
    Article,
    /// Dovecot's: append only.
    DovecotLda,
    /// Courier's maildrop: into a Maildir, and nothing else.
    Courier,
    OursOnMariadb,
    /// The service, to which Postfix hands mail by LMTP.
    Lmtp,
    /// The service, to which a process for each recipient hands it over.
    Via,
}

impl Peer {
    /// In names.
    pub fn short(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Floor => "floor",
            Self::Article => "article",
            Self::DovecotLda => "lda",
            Self::Courier => "courier",
            Self::OursOnMariadb => "mariadb",
            Self::Lmtp => "lmtp",
            Self::Via => "via",
        }
    }

    /// In tables.
    pub fn title(self) -> &'static str {
        match self {
            Self::Ours => "maildrop_command",
            Self::Floor => "the floor, in a program that runs on",
            Self::Article => "the article's program, in Python",
            Self::DovecotLda => "dovecot-lda (append only)",
            Self::Courier => "Courier maildrop (append only)",
            Self::OursOnMariadb => "maildrop_command on MariaDB",
            Self::Lmtp => "maildropd by LMTP",
            Self::Via => "maildrop_command --via",
        }
    }

    /// How many times as long as this one we may take.
    pub fn target(self) -> Option<f64> {
        match self {
            Self::Floor => Some(1.15),
            Self::Article => Some(0.25),
            Self::DovecotLda => Some(2.0),
            Self::Ours | Self::Courier | Self::OursOnMariadb | Self::Lmtp | Self::Via => None,
        }
    }

    /// The user of pipe(8)'s `user=`.
    pub fn user(self) -> &'static str {
        if matches!(self, Self::DovecotLda | Self::Courier) { "vmail" } else { "maildrop" }
    }
}

/// All of them, ready to deliver to the same site.
pub struct Peers<'a> {
    pub site: &'a Site,
    pub mariadb: Mariadb,
    pub configuration: PathBuf,
    article: PathBuf,
    article_configuration: PathBuf,
    filter: PathBuf,
    /// Of dovecot-lda, which would log to the terminal.
    log: PathBuf,
}

/// What a command line says of a message.
pub struct Envelope<'a> {
    pub sender: &'a str,
    /// The mailbox store's.
    pub user: &'a str,
    pub recipient: &'a str,
    pub queue_id: &'a str,
}

/// One delivery.
pub struct Run {
    pub began: Instant,
    pub took: Duration,
    pub processor: Duration,
}

impl<'a> Peers<'a> {
    pub fn set_up(site: &'a Site) -> Self {
        assert!(fs::exists(DOVECOT_CONF).unwrap_or(false), "the peers are in the image `bench`: tests/bench/run");
        site.execute(include_str!("article/tables.sql"));
        let (role, (host, port)) = (&site.servers.role, &site.servers.postgres);
        site.execute(&format!("GRANT SELECT, INSERT ON article_messages, article_copies TO {role}"));
        let (imap_host, imap_port) = &site.servers.imap;
        let article = site.write("deliver.py", include_str!("article/deliver.py"));
        fs::set_permissions(&article, fs::Permissions::from_mode(0o755)).unwrap();
        let article_configuration = site.write(
            "article.ini",
            &format!(
                "[database]\ndsn = host={host} port={port} dbname={role} user={role} password={}\n\n\
                 [imap]\nhost = {imap_host}\nport = {imap_port}\nuser = service\npassword = service-secret\n\n\
                 [log]\nfile = {}\n",
                site.servers.password,
                article.with_file_name("article.log").display()
            ),
        );
        // The argument after the file's name is $1 in it.
        let filter = site.write("courier-filter", &format!("to \"{MAILS}/$1/Maildir/.\"\n"));
        // It reads no other.
        let (uid, gid) = identity(Peer::Courier.user());
        std::os::unix::fs::chown(&filter, Some(uid), Some(gid)).unwrap();
        let [_, log] = ["log", "lda.log"].map(|name| {
            let log = site.write(name, "");
            fs::set_permissions(&log, fs::Permissions::from_mode(0o666)).unwrap();
            log
        });
        let configuration = site.configuration(Way::Plain);
        Self { site, mariadb: Mariadb::set_up(site), configuration, article, article_configuration, filter, log }
    }

    /// Users of the mailbox store, who need not have an INBOX yet.
    pub fn add_users(&mut self, users: &[String]) {
        self.site.add_users(users);
        self.mariadb.add_users(users);
    }

    /// A user with an INBOX, which is empty.
    pub fn add_user(&mut self, user: &str) {
        self.add_users(&[user.to_owned()]);
        self.site.messages(user, "INBOX");
    }

    /// Whether a process of Dovecot's that has served an IMAP session serves the next one as well; as it comes, each has its
    /// own.
    pub fn keep_imap_processes(&self, kept: bool) {
        let settings = "service imap {\n  restart_request_count = unlimited\n  process_min_avail = 2\n}\n";
        fs::write(DOVECOT_ALSO, if kept { settings } else { "" }).unwrap();
        let reload = Command::new("doveadm").args(["-c", DOVECOT_CONF, "reload"]).output().expect("doveadm runs");
        assert!(reload.status.success(), "{reload:?}");
        crate::site::wait_for_servers();
    }

    /// Everything that a user has is gone.
    pub fn remove_mail(&self, user: &str) {
        fs::remove_dir_all(format!("{MAILS}/{user}")).unwrap_or_else(|error| panic!("the mail of {user}: {error}"));
    }

    /// What pipe(8) would start, with its macros or, here, what they stand for.
    pub fn arguments(&self, peer: Peer, envelope: &Envelope<'_>) -> Vec<String> {
        let text = |path: &Path| path.to_str().expect("ASCII").to_owned();
        let Envelope { sender, user, recipient, queue_id } = *envelope;
        match peer {
            Peer::Article => vec![
                text(&self.article),
                format!("--config={}", text(&self.article_configuration)),
                format!("--sender={sender}"),
                format!("--recipient={recipient}"),
                format!("--queue-id={queue_id}"),
            ],
            Peer::DovecotLda => {
                let log = format!("log_path={}", text(&self.log));
                [DOVECOT_LDA, "-c", DOVECOT_CONF, "-o", &log, "-f", sender, "-d", user].map(str::to_owned).to_vec()
            }
            Peer::Courier => vec![COURIER.to_owned(), text(&self.filter), user.to_owned()],
            Peer::Ours | Peer::OursOnMariadb | Peer::Floor | Peer::Lmtp | Peer::Via => {
                unreachable!("they are started otherwise")
            }
        }
    }

    fn command(&self, peer: Peer, user: &str) -> Command {
        let mut command = match peer {
            Peer::Ours => self.site.command(&self.configuration, user),
            Peer::OursOnMariadb => self.site.command(&self.mariadb.configuration, user),
            _ => {
                let recipient = &format!("{user}@mail.example");
                let envelope = Envelope { sender: STRANGER, user, recipient, queue_id: "4cBxyz1234z9rs" };
                let arguments = self.arguments(peer, &envelope);
                let mut command = Command::new(&arguments[0]);
                command.args(&arguments[1..]);
                command
            }
        };
        let (uid, gid) = identity(peer.user());
        command.uid(uid).gid(gid);
        command
    }

    /// What makes one delivery, once it is called: all that is not the delivery's has been done then.
    pub fn delivery(&self, peer: Peer, user: &str, message: Vec<u8>) -> impl FnOnce() -> Run + Send {
        let (servers, user) = (self.site.servers.clone(), user.to_owned());
        let (mut command, message) = match peer {
            Peer::Floor => (None, with_crlf(&message)),
            _ => (Some(self.command(peer, &user)), message),
        };
        move || {
            let began = Instant::now();
            let Some(command) = &mut command else {
                floor::deliver(&servers, &user, &message, Calls::Same);
                return Run { began, took: began.elapsed(), processor: Duration::ZERO };
            };
            let ended = process::run(command, &message);
            Run { began, took: ended.took, processor: ended.processor }
        }
    }
}

/// Of a user of this machine: its number, its group's.
pub fn identity(name: &str) -> (u32, u32) {
    let text = fs::read_to_string("/etc/passwd").expect("/etc/passwd");
    let line = text.lines().find(|line| line.split(':').next() == Some(name));
    let mut numbers =
        line.unwrap_or_else(|| panic!("no user {name}")).split(':').skip(2).map(|n| n.parse().expect("a number"));
    (numbers.next().expect("a user"), numbers.next().expect("a group"))
}
