//! What each process of the service does first: it ends when its master does, it keeps within its memory, it logs.

use crate::base::confinement::{Confined, Confinement};
use crate::base::{files, log};
use crate::config::Config;
use crate::handover::control::Role;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit};
use signal_hook::consts::{SIGURG, SIGUSR2};
use signal_hook::iterator::Signals;
use std::io;
use std::path::{Path, PathBuf};
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
/// - a front, or a runner, reaches no password, nor anything else but the files that it works with, as far as the kernel can hold it
///   to that ([landlock](crate::base::confinement)),
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
    if matches!(role, Role::Front | Role::Runner) {
        // Before there is another thread.
        confine(&confinement(role, &config))?;
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
    let credentials = std::env::var_os("CREDENTIALS_DIRECTORY");
    Ok(Config::parse(file, &text, credentials.as_deref().map(Path::new))?)
}

/// What a front or a runner, which read no password, may reach.
fn confinement(role: Role, config: &Config) -> Confinement {
    let serve = &config.serve;
    let log_folder = match config.log_settings().target {
        // It is made anew when it is opened anew.
        log::Target::File(file) => file.parent().map(Path::to_owned),
        log::Target::Syslog | log::Target::Journald => None,
    };
    let append = log_folder.into_iter().collect();
    if role == Role::Runner {
        // For how long the ledger remembers may stand in the timer's configuration alone.
        let read = serve.timer_config.iter().cloned().collect();
        return Confinement { read, append, all: vec![serve.queue()], ..Confinement::default() };
    }
    let tls = [&serve.certificate_file, &serve.key_file, &serve.client_ca_file];
    Confinement {
        // How much memory which process takes.
        read: tls.into_iter().flatten().cloned().chain([PathBuf::from("/proc")]).collect(),
        // And the configuration that the workers read, which is not to be written.
        sockets: vec![serve.runtime_directory.clone()],
        append,
        all: vec![serve.messages(), serve.state_directory.clone()],
    }
}

fn confine(confinement: &Confinement) -> Result<(), CannotBegin> {
    let system = |source| CannotBegin::System { doing: "making a folder of its own", source };
    // No rule is for a folder that is not there.
    for folder in &confinement.all {
        files::create_directory(folder).map_err(system)?;
    }
    match confinement.begin() {
        Ok(Confined::Whole) => {
            info!("this process is confined to its own files, and can connect to nobody by TCP (landlock)")
        }
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
