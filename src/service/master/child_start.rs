//! What each process of the service does first: it ends when its master does, it keeps within its memory, it logs.

use crate::base::confinement::{Confined, Confinement, Ports};
use crate::base::endpoint::Endpoint;
use crate::base::{files, log};
use crate::config::{Config, DatabaseRole};
use crate::database::Tls;
use crate::protocol::control::Role;
use rustix::process::{
    Resource, Rlimit, Signal, getpid, getrlimit, kill_process, set_parent_process_death_signal, setrlimit,
};
use signal_hook::consts::{SIGURG, SIGUSR2};
use signal_hook::iterator::Signals;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;
use tracing::{error, info, warn};

/// Why a process of the service cannot begin.
#[derive(Debug, Error)]
pub enum CannotBegin {
    #[error("the master that started this process has ended")]
    NoMaster,
    #[error("{doing}: {source}")]
    System { doing: &'static str, source: io::Error },
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    #[error(transparent)]
    Log(#[from] log::LogError),
}

/// Begins a process of the service: returns the configuration as the master has checked it, which is in the file `checked`,
/// once all of this holds:
///
/// - it gets SIGTERM when `master` ends, however that ends (PR_SET_PDEATHSIG(2const)),
/// - what reads messages, a worker or the timer, or what is answered by strangers, the notifier, gets no more memory than `serve.worker_memory`,
/// - a front, or a runner, reaches no password, nor anything else but the files that it works with; a notifier, or the web UI, none but
///   the passwords and servers that it works with; as far as the kernel can hold it to that ([landlock](crate::base::confinement)),
/// - it logs to where the configuration says, and opens the file anew on SIGURG, which the master sends: a process that does not listen
///   yet is not ended by it, and opens the log later than it listens; and on SIGUSR2, which somebody may send to all that bears our name.
///
/// SIGTERM is for the role itself: end after what is in hand.
///
/// # Errors
/// Where one of these cannot be had.
pub fn begin(role: Role, master: u32, file: &Path, checked: &Path) -> Result<Config, CannotBegin> {
    let system = |doing| move |source| CannotBegin::System { doing, source };
    let errno = |doing| move |error: rustix::io::Errno| CannotBegin::System { doing, source: error.into() };
    set_parent_process_death_signal(Some(Signal::TERM))
        .map_err(errno("asking for the signal of the master's death"))?;
    // It may have ended before that.
    if std::os::unix::process::parent_id() != master {
        return Err(CannotBegin::NoMaster);
    }
    let config = checked_configuration(file, checked)?;
    if matches!(role, Role::Worker | Role::Timer | Role::Notify | Role::Web) {
        let Rlimit { maximum, .. } = getrlimit(Resource::As);
        // Less than we ask for may be all that we may have.
        let current = maximum.map_or(config.serve.worker_memory, |maximum| config.serve.worker_memory.min(maximum));
        let limit = Rlimit { current: Some(current), maximum };
        setrlimit(Resource::As, limit).map_err(errno("limiting the memory"))?;
    }
    // Before the log is opened: whatever comes from now on is not lost.
    let mut signals = Signals::new([SIGURG, SIGUSR2]).map_err(system("setting up signals"))?;
    log::start_of_service(&config.log_settings())?;
    // Before there is another thread.
    if let Some(confinement) = confinement(role, &config)? {
        confine(&confinement)?;
        if matches!(role, Role::Notify | Role::Web) {
            end_once_replaced(confinement.read).map_err(system("starting a thread"))?;
        }
    }
    let reopen = move || {
        for _ in signals.forever() {
            if let Err(error) = log::reopen() {
                error!(%error, "the log goes on in the file that was open");
            }
        }
    };
    std::thread::Builder::new().name("log".into()).spawn(reopen).map_err(system("starting a thread"))?;
    Ok(config)
}

/// The configuration of `file` as the master has checked it.
///
/// # Errors
/// Where `checked`, which has its text, cannot be read, and where that is not allowed.
pub fn checked_configuration(file: &Path, checked: &Path) -> Result<Config, CannotBegin> {
    let text = std::fs::read_to_string(checked)
        .map_err(|source| CannotBegin::System { doing: "reading the configuration", source })?;
    Ok(Config::parse(file, &text)?)
}

/// What the system's resolver and its libraries read, and where systems keep the certificates that they trust. No folder of it has
/// anything secret.
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

/// DNS, where an answer is too long for UDP (RFC 7766).
const DNS: u16 = 53;

/// What a process may reach that talks with strangers; `None` for others.
fn confinement(role: Role, config: &Config) -> Result<Option<Confinement>, CannotBegin> {
    let serve = &config.serve;
    let log_folder = match config.log_settings().target {
        // It is made anew when it is opened anew.
        log::Target::File(file) => file.parent().map(Path::to_owned),
        log::Target::Syslog | log::Target::Journald => None,
    };
    let append = log_folder.into_iter().collect();
    Ok(Some(match role {
        Role::Runner => Confinement { append, all: vec![serve.queue()], ..Confinement::default() },
        Role::Front => {
            let tls = [&serve.certificate_file, &serve.key_file, &serve.client_ca_file];
            Confinement {
                // How much memory which process takes.
                read: tls.into_iter().flatten().cloned().chain([PathBuf::from("/proc")]).collect(),
                // And the configuration that the workers read, which is not to be written.
                sockets: vec![serve.runtime_directory.clone()],
                append,
                all: vec![serve.messages(), serve.state_directory.clone()],
                // It ends workers that hang.
                signals: true,
                ..Confinement::default()
            }
        }
        Role::Notify => {
            let mut reached = of_a_client(config, DatabaseRole::Notifier, false, append);
            reached.read.extend(config.notifications.ca_file.clone());
            reached.read.extend(config.notifications.secret_key_file.clone());
            // A receiver in one of these networks may have any port: see `Callback::may_be_called_at`.
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
            let mut reached = of_a_client(config, DatabaseRole::Web, web.mailboxes, append);
            reached.read.extend(config.notifications.secret_key_file.clone());
            for endpoint in [web.endpoint(), web.api_endpoint()].into_iter().flatten() {
                if let Endpoint::Socket(path) = endpoint {
                    reached.sockets.extend(path.parent().map(Path::to_owned));
                }
            }
            if web.api {
                reached.all.push(serve.queue());
            }
            reached
        }
        Role::Worker | Role::Timer => return Ok(None),
    }))
}

/// What a client of the database reaches, and of the mailbox store where it may open `mailboxes`.
fn of_a_client(own: &Config, role: DatabaseRole, mailboxes: bool, append: Vec<PathBuf>) -> Confinement {
    let mut read: Vec<PathBuf> = OF_THE_SYSTEM.iter().map(PathBuf::from).collect();
    // Where they say otherwise.
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

/// How often it is looked whether a file was replaced.
const LOOK_EACH: Duration = Duration::from_secs(5);

/// Ends this process as its master does, once a file that it may read is another one: the rules name the file that was there. The master
/// starts the next one.
fn end_once_replaced(files: Vec<PathBuf>) -> io::Result<()> {
    let inode = |file: &PathBuf| std::fs::metadata(file).ok().map(|found| (found.dev(), found.ino()));
    let was: Vec<_> = files.iter().map(inode).collect();
    let look = move || {
        loop {
            std::thread::sleep(LOOK_EACH);
            let replaced = files.iter().zip(&was).find(|(file, was)| inode(file) != **was);
            if let Some((file, _)) = replaced {
                info!(file = %file.display(), "a file was replaced: this process ends, and the next one reads it");
                // To ourselves: nobody refuses it.
                let _ = kill_process(getpid(), Signal::TERM);
                return;
            }
        }
    };
    std::thread::Builder::new().name("files".into()).spawn(look).map(drop)
}

fn confine(confinement: &Confinement) -> Result<(), CannotBegin> {
    let system = |source| CannotBegin::System { doing: "making a folder of its own", source };
    // No rule is for a folder that is not there.
    for folder in &confinement.all {
        files::create_directory(folder).map_err(system)?;
    }
    match confinement.begin() {
        Ok(Confined::Whole) => match &confinement.connects_to {
            Ports::These(ports) if ports.is_empty() => {
                info!("this process is confined to its own files, and can connect to nobody by TCP (landlock)");
            }
            Ports::These(ports) => {
                info!(?ports, "this process is confined to its own files and the ports of its servers (landlock)");
            }
            Ports::Any => info!("this process is confined to its own files (landlock)"),
        },
        Ok(Confined::FilesOnly) => {
            info!(
                "this process is confined to its own files (landlock; a kernel from 6.7 on would hold back TCP, too)"
            );
        }
        Ok(Confined::Not) => {
            info!("this process is not confined: the kernel has no landlock of 5.19 or later, or it is off")
        }
        // Mail goes first.
        Err(error) => warn!(%error, "this process is not confined: landlock refuses"),
    }
    Ok(())
}
