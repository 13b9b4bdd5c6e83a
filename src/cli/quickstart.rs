//! `quickstart`: writes the files that a site needs to go live.

use super::{Ended, fail, help, print, table};
use crate::base::deadline::Deadline;
use crate::base::files::{sync, sync_directory};
use crate::operations::dovecot_settings::dovecot_here;
use crate::operations::quickstart::{self, Answers, DatabaseUrl, Domain, File, MailboxStore, Passwords, ServerAddress};
use clap::Args;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::net::{IpAddr, UdpSocket};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;
use sysexits::ExitCode;

/// The time limit of the three doveconf calls together.
const FOR_DOVECONF: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
#[command(after_help = help("quickstart"))]
pub(crate) struct Arguments {
    /// A domain whose mail comes here; may be given several times
    #[arg(long, value_name = "DOMAIN", required = true)]
    domain: Vec<Domain>,
    /// The database that all mail hosts share: postgresql://[ROLE@]HOST[:PORT]/DATABASE, or mysql://, or mariadb://
    #[arg(long, value_name = "URL")]
    database: DatabaseUrl,
    /// The server that the mailboxes are on
    #[arg(long, value_name = "HOST[:PORT]")]
    imap: ServerAddress,
    /// Which one that is; if left out, the Dovecot of this machine, or else Dovecot 2.4
    #[arg(long, value_enum)]
    imap_server: Option<MailboxStore>,
    /// The name by which your own filter writes Authentication-Results; the first domain, if left out
    #[arg(long, value_name = "NAME")]
    authserv_id: Option<Domain>,
    /// The address of a mail host, from which the mailbox store accepts the program; may be given several times. This
    /// machine's, if left out
    #[arg(long, value_name = "ADDRESS")]
    mail_host: Vec<IpAddr>,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
    /// The folder to write
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let named = !arguments.mail_host.is_empty();
    let has_dovecot_here = arguments.imap_server != Some(MailboxStore::Cyrus) && arguments.imap.is_on_this_machine();
    let dovecot = has_dovecot_here.then(|| dovecot_here(Deadline::after(FOR_DOVECONF))).flatten();
    let store_here = || match &dovecot {
        Some(dovecot) if dovecot.config_version.is_none() => MailboxStore::Dovecot23,
        _ => MailboxStore::Dovecot,
    };
    let answers = Answers {
        store: arguments.imap_server.unwrap_or_else(store_here),
        dovecot,
        domains: arguments.domain.clone(),
        database: arguments.database.clone(),
        imap: arguments.imap.clone(),
        authserv_id: arguments.authserv_id.clone().unwrap_or_else(|| arguments.domain[0].clone()),
        mail_hosts: if named { arguments.mail_host.clone() } else { our_addresses(&arguments.imap) },
        mail_hosts_are_named: named,
    };
    let passwords = Passwords::random().map_err(|error| fail(ExitCode::OsErr, error.to_string()))?;
    let (files, folder) = (quickstart::files(&answers, &passwords), arguments.folder.display());
    if fs::read_dir(&arguments.folder).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(fail(ExitCode::CantCreat, format!("{folder} exists, and is not empty: name another folder")));
    }
    write(&arguments.folder, &files).map_err(|error| fail(ExitCode::IoErr, format!("{folder}: {error}")))?;
    let value = |file: &File| serde_json::json!({"path": file.path, "about": file.about});
    let values: Vec<_> = files.iter().map(value).collect();
    print(arguments.json, &serde_json::json!({"folder": arguments.folder, "files": values}), || {
        let rows = files.iter().map(|file| [file.path.to_owned(), file.about.to_owned()]);
        let page = arguments.folder.join("GOING-LIVE.md");
        format!("{}\n\nNothing else was changed. Read {} next.", table(["file", "for"], rows), page.display())
    });
    Ok(ExitCode::Ok)
}

/// This machine's address as the mailbox store sees it: connecting a UDP socket selects the route, and sends nothing
/// (connect(2)). Empty if the name cannot be resolved, or if there is no route.
fn our_addresses(imap: &ServerAddress) -> Vec<IpAddr> {
    let host = imap.host.trim_start_matches('[').trim_end_matches(']');
    if host.eq_ignore_ascii_case("localhost") {
        return vec![IpAddr::from([127, 0, 0, 1]), IpAddr::V6(std::net::Ipv6Addr::LOCALHOST)];
    }
    let towards = |from: &str| {
        let socket = UdpSocket::bind((from, 0))?;
        socket.connect((host, imap.port.unwrap_or(993)))?;
        socket.local_addr().map(|address| address.ip())
    };
    ["0.0.0.0", "::"].into_iter().filter_map(|from| towards(from).ok()).take(1).collect()
}

/// Writes the files, readable by the caller only, since they contain passwords.
fn write(folder: &Path, files: &[File]) -> io::Result<()> {
    let make = |path: &Path| DirBuilder::new().recursive(true).mode(0o700).create(path);
    make(folder)?;
    for file in files {
        let path = folder.join(file.path);
        if let Some(parent) = path.parent() {
            make(parent)?;
        }
        let mut open = OpenOptions::new();
        let mut new = open.write(true).create_new(true).mode(0o600).open(&path)?;
        new.write_all(file.text.as_bytes())?;
        sync(&new)?;
    }
    sync_directory(folder)
}
