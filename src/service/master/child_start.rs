//! The start of each process of the service: its death signal, its memory limit, its confinement and its log.

use crate::base::confinement::{Confined, Confinement, Ports};
use crate::base::endpoint::Endpoint;
use crate::base::{files, log};
use crate::config::{Config, DatabaseRole};
use crate::database::Tls;
use crate::protocol::control::Role;
use crate::service::error::ServiceError;
use rustix::process::{
    Resource, Rlimit, Signal, getpid, getrlimit, kill_process, set_parent_process_death_signal, setrlimit,
};
use signal_hook::consts::{SIGURG, SIGUSR2};
use signal_hook::iterator::Signals;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing::{error, info, warn};

/// Begins a process of the service, and returns the configuration that the master has checked, from the file `checked`. By then
/// all of this is set up:
///
/// - The process gets SIGTERM when `master` ends, however that ends (PR_SET_PDEATHSIG(2const)).
/// - A worker, the timer, the notifier and the web UI get at most `service.worker_memory`: they read messages, or replies and
///   requests of strangers.
/// - A front or a runner can read no password, and only the files that it works with. A notifier or the web UI reaches only its
///   own passwords and servers. The kernel enforces this as far as it can ([landlock](crate::base::confinement)).
/// - The process logs to the configured target. The process reopens the file on SIGURG, which the master sends: that signal does
///   not end a process that has no handler yet, and opens its log later anyway. SIGUSR2 does the same, since an operator may send
///   it to all processes of our name.
///
/// The role itself handles SIGTERM: it ends after the message in progress.
///
/// # Errors
/// If any of this cannot be set up, or if the configuration cannot be read.
pub fn begin(role: Role, master: u32, file: &Path, checked: &Path) -> Result<Config, ServiceError> {
    let errno = |doing| move |error: rustix::io::Errno| ServiceError::system(doing)(error.into());
    set_parent_process_death_signal(Some(Signal::TERM))
        .map_err(errno("asking for the signal of the master's death"))?;
    // The master may have ended before the death signal was set.
    if std::os::unix::process::parent_id() != master {
        return Err(ServiceError::NoMaster);
    }
    let config = checked_configuration(file, checked)?;
    if matches!(role, Role::Worker | Role::Timer | Role::Notifier | Role::Web) {
        let Rlimit { maximum, .. } = getrlimit(Resource::As);
        // The hard limit may be lower than the configured one.
        let current = maximum.map_or(config.service.worker_memory, |maximum| config.service.worker_memory.min(maximum));
        let limit = Rlimit { current: Some(current), maximum };
        setrlimit(Resource::As, limit).map_err(errno("limiting the memory"))?;
    }
    // The handler comes before the log, so that no later signal is lost.
    let mut signals = Signals::new([SIGURG, SIGUSR2]).map_err(ServiceError::system("setting up signals"))?;
    log::start_of_service(&config.log_settings())?;
    // No other thread may exist yet: landlock confines the calling thread, and those that it starts later.
    if let Some(confinement) = confinement(role, &config) {
        confine(&confinement)?;
        if matches!(role, Role::Notifier | Role::Web) {
            end_once_replaced(confinement.read).map_err(ServiceError::system("starting a thread"))?;
        }
    }
    let reopen = move || {
        for _ in signals.forever() {
            if let Err(error) = log::reopen() {
                error!(%error, "the log goes on in the file that was open");
            }
        }
    };
    std::thread::Builder::new().name("log".into()).spawn(reopen).map_err(ServiceError::system("starting a thread"))?;
    Ok(config)
}

/// The configuration of `file` as the master has checked it.
///
/// # Errors
/// If `checked`, which has its text, cannot be read or is not a valid configuration.
pub fn checked_configuration(file: &Path, checked: &Path) -> Result<Config, ServiceError> {
    let text = std::fs::read_to_string(checked).map_err(ServiceError::file("reading", checked))?;
    Ok(Config::parse(file, &text)?)
}

/// Files of the system's resolver and its libraries, and the usual places of trusted certificates. None of these folders has
/// secrets.
const OF_THE_SYSTEM: [&str; 24] = [
    "/usr",
    "/lib",
    "/lib64",
    "/nix/store",
    "/proc",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/nsswitch.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/protocols",
    "/run/systemd/resolve",
    "/run/NetworkManager",
    "/run/resolvconf",
    "/etc/ssl/certs",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/certs",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/ca-trust",
    "/var/lib/ca-certificates",
];

/// DNS over TCP, for answers that are too long for UDP (RFC 7766).
const DNS: u16 = 53;

/// The confinement of a process that talks with strangers, or needs no password. `None` for workers and the timer.
fn confinement(role: Role, config: &Config) -> Option<Confinement> {
    let service = &config.service;
    let log_folder = match config.log_settings().target {
        // The whole folder, since a reopened log may be a new file.
        log::Target::File(file) => file.parent().map(Path::to_owned),
        log::Target::Syslog | log::Target::Journald => None,
    };
    let append = log_folder.into_iter().collect();
    Some(match role {
        Role::Runner => Confinement { append, all: vec![service.queue()], ..Confinement::default() },
        Role::Front => {
            let tls = [&service.certificate_file, &service.key_file, &service.client_ca_file];
            Confinement {
                // There the front reads the memory use of each process.
                read: tls.into_iter().flatten().cloned().chain([PathBuf::from("/proc")]).collect(),
                // The folder of the sockets. The front must not write the workers' configuration, which is there, too.
                sockets: vec![service.runtime_directory.clone()],
                append,
                all: vec![service.messages(), service.state_directory.clone()],
                // The front kills workers that hang.
                signals: true,
                ..Confinement::default()
            }
        }
        Role::Notifier => {
            let mut reached = of_a_client(config, DatabaseRole::Notifier, false, append);
            reached.read.extend(config.notifications.ca_file.clone());
            reached.read.extend(config.notifications.secret_key_file.clone());
            // A receiver in one of these networks may use any port: see `Callback::may_be_called_at`.
            match &mut reached.connects_to {
                Ports::These(ports) if config.notifications.allow_networks.is_empty() => {
                    ports.extend(&config.notifications.allow_ports);
                }
                any => *any = Ports::Any,
            }
            reached
        }
        Role::Web => {
            let web = &config.web;
            let mut reached = of_a_client(config, DatabaseRole::Web, web.allow_mailbox_access, append);
            reached.read.extend(config.notifications.secret_key_file.clone());
            for endpoint in [web.endpoint(), web.api_endpoint()].into_iter().flatten() {
                if let Endpoint::Socket(path) = endpoint {
                    reached.sockets.extend(path.parent().map(Path::to_owned));
                }
            }
            if web.api {
                reached.all.push(service.queue());
            }
            reached
        }
        Role::Worker | Role::Timer => return None,
    })
}

/// The confinement of a client of the database, and of the mailbox store if it opens `mailboxes`.
fn of_a_client(own: &Config, role: DatabaseRole, mailboxes: bool, append: Vec<PathBuf>) -> Confinement {
    let mut read: Vec<PathBuf> = OF_THE_SYSTEM.iter().map(PathBuf::from).collect();
    // These variables may name other certificates.
    read.extend(["SSL_CERT_FILE", "SSL_CERT_DIR"].into_iter().filter_map(std::env::var_os).map(PathBuf::from));
    read.push(own.file.clone());
    let password = own.database.accounts.get(&role).and_then(|account| account.password.as_ref());
    read.extend(password.map(|file| file.path().to_owned()));
    if let Tls::Verify { ca_file: Some(file) } = &own.database.tls {
        read.push(file.clone());
    }
    let mut reached = Confinement { read, append, ..Confinement::default() };
    let mut servers: Vec<&Endpoint> = own.database.addresses.iter().collect();
    if mailboxes {
        servers.push(&own.imap.address);
        reached.read.push(own.imap.password.path().to_owned());
        reached.read.extend(own.imap.ca_file.clone());
    }
    let ports = servers.into_iter().filter_map(|server| match server {
        Endpoint::Tcp { port, .. } => Some(*port),
        Endpoint::Socket(_) => None,
    });
    reached.connects_to = Ports::These(ports.chain([DNS]).collect());
    reached
}

/// The interval at which the files are checked for a replacement.
const LOOK_EACH: Duration = Duration::from_secs(5);

/// Ends this process with SIGTERM once a file that it may read has been replaced: landlock's rules still apply to the old file.
/// The master starts the next process.
fn end_once_replaced(files: Vec<PathBuf>) -> io::Result<()> {
    let inode = |file: &PathBuf| std::fs::metadata(file).ok().map(|found| (found.dev(), found.ino()));
    let was: Vec<_> = files.iter().map(inode).collect();
    let look = move || {
        loop {
            std::thread::sleep(LOOK_EACH);
            let replaced = files.iter().zip(&was).find(|(file, was)| inode(file) != **was);
            if let Some((file, _)) = replaced {
                info!(file = %file.display(), "a file was replaced: this process ends, and the next one reads it");
                // A process may always send a signal to itself.
                let _ = kill_process(getpid(), Signal::TERM);
                return;
            }
        }
    };
    std::thread::Builder::new().name("files".into()).spawn(look).map(drop)
}

fn confine(confinement: &Confinement) -> Result<(), ServiceError> {
    // landlock has no rule for a folder that does not exist.
    for folder in &confinement.all {
        files::create_directory(folder).map_err(ServiceError::file("making the directory", folder))?;
    }
    match confinement.begin() {
        Ok(Confined::Not) => {
            info!("this process is not confined: the kernel has no landlock of 5.19 or later, or it is off");
        }
        Ok(confined) => {
            let covers_tcp = confined == Confined::Whole;
            info!(ports = ?confinement.connects_to, covers_tcp, "this process is confined to its own files (landlock)");
        }
        // Delivery is more important than confinement, so the process goes on.
        Err(error) => warn!(%error, "this process is not confined: landlock refuses"),
    }
    Ok(())
}
