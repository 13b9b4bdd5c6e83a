//! `check`: does everything that a delivery relies on work, and does it keep the promises?

use super::place::CONFIGURATION;
use super::{complain, say, table};
use crate::config::Config;
use crate::database::{Database, DatabaseError, DatabaseFailure, Finding, State};
use crate::deadline::Deadline;
use crate::lock::{Acquired, LockName};
use crate::mailbox::{MailboxError, MailboxFailure};
use crate::message::Address;
use crate::schema::{self, MigrationState};
use crate::site::{Recipient, Site};
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;
use sysexits::ExitCode;

/// How long all of it may take.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  maildrop_command check
  maildrop_command check --self-test --recipient scuba@mail.axial.net

Run it as the user that Postfix runs deliveries as: what root may read, that user may not.

Exit status: 0 if nothing breaks a promise, 69 if something does, 78 if the configuration cannot be read.")]
pub(super) struct Arguments {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = CONFIGURATION)]
    config: PathBuf,
    /// Prove on the live database that the lock excludes: one connection takes it, another must be refused
    #[arg(long)]
    self_test: bool,
    /// Log in to the mailbox of this address [default: some address of the table]
    #[arg(long, value_name = "ADDRESS")]
    recipient: Option<String>,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    let recipient = match arguments.recipient.as_deref().map(Address::parse).transpose() {
        Ok(recipient) => recipient,
        Err(error) => {
            complain(&format!("--recipient: {error}"));
            return ExitCode::Usage;
        }
    };
    let site = Config::load(&arguments.config).and_then(|config| {
        let findings = settings(&config);
        Ok((Site::configured(config)?, findings))
    });
    let (site, mut findings) = match site {
        Ok(site) => site,
        Err(error) => {
            complain(&error.to_string());
            return ExitCode::Config;
        }
    };
    let deadline = Deadline::after(PATIENCE);
    let slow = super::Slow::watch("asking the database and the mailbox store");
    let mut database = match site.open_database(None, deadline) {
        Ok(database) => Some(database),
        Err(error) => {
            findings.push(database_failed("database", &error));
            None
        }
    };
    // Without its tables nothing can be asked of a database that would say more than that.
    let with_tables = match &mut database {
        Some(database) => look_at_database(database.as_mut(), &mut findings).then_some(database),
        None => None,
    };
    look_at_mailboxes(&site, with_tables, recipient, deadline, &mut findings);
    if arguments.self_test && database.is_some() {
        match self_test(&site, deadline) {
            Ok(finding) => findings.push(finding),
            Err(error) => findings.push(database_failed("mutual exclusion", &error)),
        }
    }
    drop(slow);
    tell(&findings, arguments.json);
    if findings.iter().any(|finding| finding.state == State::Bad) { ExitCode::Unavailable } else { ExitCode::Ok }
}

fn finding(what: &str, state: State, found: impl Into<String>, mend: Option<&str>) -> Finding {
    Finding { what: what.into(), state, found: found.into(), mend: mend.map(Into::into) }
}

/// What the configuration itself says. That the deadline is below Postfix's time limit, and the time to settle above the
/// deadline, is seen to when it is read.
fn settings(config: &Config) -> Vec<Finding> {
    let delivery = &config.delivery;
    let span = |span: Duration| humantime::format_duration(span).to_string();
    let mut findings = vec![
        finding("configuration", State::Good, config.file.display().to_string(), None),
        finding(
            "deadline",
            State::Good,
            format!("{}; Postfix's limit: {}", span(delivery.deadline), span(delivery.postfix_time_limit)),
            Some("see that main.cf says the same: postconf maildrop_time_limit command_time_limit"),
        ),
    ];
    if config.lock.wait.is_zero() {
        let found = "none: a lock held elsewhere is 75 at once";
        findings.push(finding("lock wait", State::Good, found, Some("master.cf may say otherwise: --lock-wait")));
    } else {
        findings.push(finding("lock wait", State::Good, span(config.lock.wait), None));
    }
    findings
        .extend(config.warnings().into_iter().map(|warning| finding("configuration", State::Warning, warning, None)));
    if let Err(error) = crate::log::start(&config.log_settings()) {
        findings.push(finding(
            "log",
            State::Bad,
            error.to_string(),
            Some("start what it names, or choose another log in [log]: until then every delivery is 75"),
        ));
    }
    findings
}

/// Looks at the database, and says whether its tables are there.
fn look_at_database(database: &mut dyn Database, findings: &mut Vec<Finding>) -> bool {
    match database.describe() {
        Ok(described) => findings.push(finding("database", State::Good, described, None)),
        Err(error) => findings.push(database_failed("database", &error)),
    }
    match database.inspect() {
        Ok(inspected) => findings.extend(inspected),
        Err(error) => findings.push(database_failed("database", &error)),
    }
    let missing = match schema::status(database) {
        // The inspection has told it, in one line.
        Ok(all) => all.iter().any(|migration| !migration.optional && migration.state == MigrationState::Pending),
        // It has told this as well.
        Err(_) => true,
    };
    if missing {
        return false;
    }
    match database.addresses(&[]) {
        Ok(book) if book.empty => findings.push(finding(
            "addresses",
            State::Warning,
            "the table is empty",
            Some("fill it, or name domains in [routing]: until then unknown recipients are deferred"),
        )),
        Ok(_) => findings.push(finding("addresses", State::Good, "there are some", None)),
        Err(error) => findings.push(database_failed("addresses", &error)),
    }
    true
}

fn look_at_mailboxes(
    site: &Site,
    database: Option<&mut Box<dyn Database>>,
    recipient: Option<Address>,
    deadline: Deadline,
    findings: &mut Vec<Finding>,
) {
    let recipient = match database.map(|database| site.recipient(recipient, database.as_mut())) {
        None => return findings.extend(greeting(site, deadline)),
        Some(Err(error)) => {
            findings.push(database_failed("recipient", &error));
            return findings.extend(greeting(site, deadline));
        }
        Some(Ok(recipient)) => recipient,
    };
    let (address, destination) = match recipient {
        Recipient::Known(address, destination) => (address, destination),
        Recipient::Unknown(address) => {
            let mend = Some("add it to the table addresses, or name its domain in [routing]");
            findings.push(finding("recipient", State::Bad, format!("{address} has no mailbox here"), mend));
            return findings.extend(greeting(site, deadline));
        }
        Recipient::Nobody => {
            let mend = Some("name an address: check --recipient scuba@mail.axial.net");
            findings.push(finding("mailbox login", State::Warning, "not tried: no address is known", mend));
            return findings.extend(greeting(site, deadline));
        }
    };
    match site.try_mailbox(&destination, deadline) {
        Ok((said, uid_plus)) => {
            let found = format!("{address}: {} of {}; {said}", destination.inbox, destination.user);
            findings.push(finding("mailbox login", State::Good, found, None));
            if !uid_plus {
                let mend =
                    "a copy too many, which a lost lock can leave, cannot be taken out: choose a server with UIDPLUS";
                findings.push(finding("UIDPLUS", State::Warning, "not offered", Some(mend)));
            }
        }
        Err(error) => findings.push(mailbox_failed(&error)),
    }
}

/// Where nobody's mailbox can be tried, the server can at least be greeted.
fn greeting(site: &Site, deadline: Deadline) -> Vec<Finding> {
    match site.try_greeting(deadline) {
        Ok(said) => vec![finding("mailbox store", State::Good, said, None)],
        Err(error) => vec![mailbox_failed(&error)],
    }
}

/// One connection takes the lock, another must be refused, and the first must still hold it afterwards. Finds statement
/// poolers, read/write splits, and clusters whose lock is local to a node.
fn self_test(site: &Site, deadline: Deadline) -> Result<Finding, DatabaseError> {
    let what = "mutual exclusion";
    let name = LockName::new("maildrop self-test", uuid::Uuid::now_v7().as_bytes());
    let mut first = site.open_database(None, deadline)?;
    let mut second = site.open_database(None, deadline)?;
    let broken = |found: &str| {
        let mend = "deliver to one primary, directly or through a pooler in transaction mode: this one would let the same \
                    message be delivered twice at once";
        Ok(finding(what, State::Bad, found, Some(mend)))
    };
    if !matches!(first.acquire(&name, Duration::ZERO)?, Acquired::Held) {
        return broken("a lock that nobody can hold is held");
    }
    for _ in 0..3 {
        if matches!(second.acquire(&name, Duration::ZERO)?, Acquired::Held) {
            return broken("two connections held the same lock at once");
        }
        if !first.still_held(&name)? {
            return broken("the lock was lost between two statements of its own connection");
        }
    }
    first.release(&name)?;
    if !matches!(second.acquire(&name, Duration::from_secs(1))?, Acquired::Held) {
        return broken("a lock that was let go of is still held");
    }
    second.release(&name)?;
    Ok(finding(what, State::Good, "one connection held the lock, the other was refused", None))
}

fn database_failed(what: &str, error: &DatabaseError) -> Finding {
    let mend = match error.failure {
        DatabaseFailure::Unreachable | DatabaseFailure::TimedOut | DatabaseFailure::ConnectionLost => {
            "see that it runs, that database.host and port (or socket) lead to it, that the database is there, and that \
             database.ca_file is of the CA that signed its certificate"
        }
        DatabaseFailure::AccessDenied => {
            "see database.user, its password, and its rights: sql/postgres/grants.sql, sql/mysql/grants.sql"
        }
        DatabaseFailure::Schema => "maildrop_command migrate",
        DatabaseFailure::ReadOnly => "connect to the primary",
        DatabaseFailure::Local => "mend the file or setting that it names",
        DatabaseFailure::Contention | DatabaseFailure::Refused | DatabaseFailure::Other => {
            "the server's own log says more"
        }
    };
    finding(what, State::Bad, error.to_string(), Some(mend))
}

fn mailbox_failed(error: &MailboxError) -> Finding {
    let mend = match error.failure {
        MailboxFailure::Unreachable | MailboxFailure::TimedOut | MailboxFailure::ConnectionLost => {
            "see that it runs, that imap.host, port and encryption fit it, that its certificate is for that name, and that \
             imap.ca_file is of the CA that signed it"
        }
        MailboxFailure::AccessDenied => {
            "see imap.user, its password, and its right to act for every user (Dovecot: a master user, this host in its allow_nets; Cyrus: proxyservers)"
        }
        MailboxFailure::NoSuchMailbox => "see the mailbox's name in the table addresses or in [routing]",
        _ => "the server's own log says more",
    };
    finding("mailbox store", State::Bad, error.to_string(), Some(mend))
}

fn tell(findings: &[Finding], json: bool) {
    let word = |state: State| match state {
        State::Good => "ok",
        State::Warning => "warning",
        State::Bad => "BAD",
    };
    if json {
        let all: Vec<_> = findings
            .iter()
            .map(|finding| {
                serde_json::json!({
                    "what": finding.what,
                    "state": word(finding.state).to_lowercase(),
                    "found": finding.found,
                    "mend": finding.mend,
                })
            })
            .collect();
        return say(&serde_json::Value::from(all).to_string());
    }
    let rows = findings.iter().map(|finding| {
        let mend = finding.mend.as_deref().unwrap_or_default();
        [finding.what.as_str(), word(finding.state), finding.found.as_str(), mend].map(ToOwned::to_owned)
    });
    say(&table(["what", "", "found", "mend"], rows));
    let count = |state: State| findings.iter().filter(|finding| finding.state == state).count();
    say(&match (count(State::Bad), count(State::Warning)) {
        (0, 0) => "All is well.".to_owned(),
        (0, warnings) => format!("It works; {warnings} could be better."),
        (bad, _) => format!("{bad} must be mended before mail is delivered by it."),
    });
}
