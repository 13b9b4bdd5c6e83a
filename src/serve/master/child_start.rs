//! What each process of the service does first: it ends when its master does, it keeps within its memory, it logs.

use crate::base::log;
use crate::config::Config;
use crate::handover::control::Role;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit};
use signal_hook::consts::SIGUSR2;
use signal_hook::iterator::Signals;
use std::io;
use std::path::Path;
use thiserror::Error;
use tracing::error;

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
/// - a worker gets no more memory than `serve.worker_memory`,
/// - it logs to where the configuration says, and opens the file anew on SIGUSR2.
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
    let text = std::fs::read_to_string(checked).map_err(system("reading the configuration"))?;
    let credentials = std::env::var_os("CREDENTIALS_DIRECTORY");
    let config = Config::parse(file, &text, credentials.as_deref().map(Path::new))?;
    if role == Role::Worker {
        let Rlimit { maximum, .. } = getrlimit(Resource::As);
        // Less than we ask for may be all that we may have.
        let current = maximum.map_or(config.serve.worker_memory, |maximum| config.serve.worker_memory.min(maximum));
        let limit = Rlimit { current: Some(current), maximum };
        setrlimit(Resource::As, limit).map_err(errno("limiting the memory"))?;
    }
    log::start_of_service(&config.log_settings())?;
    let mut signals = Signals::new([SIGUSR2]).map_err(system("setting up signals"))?;
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
