//! The command line of `maildropd`: the master, or one of its roles.

use crate::base::deadline::Deadline;
use crate::base::endpoint::Endpoint;
use crate::base::listener::Listener;
use crate::base::log;
use crate::base::terminal::complain_as;
use crate::config::{Config, DatabaseRole};
use crate::http::api::{self, ApiSettings};
use crate::http::web::{self, WebError, WebSettings};
use crate::ledger::web_sessions::WebRole;
use crate::lock::Shard;
use crate::notifier::{self, NotifierSettings};
use crate::operations::operations_log::CommandLine;
use crate::operations::web_logins;
use crate::protocol::control::Role;
use crate::service::error::ServiceError;
use crate::service::front;
use crate::service::master;
use crate::service::master::child_start;
use crate::service::master::front_channel::to_the_master;
use crate::service::master::listeners::{self, Inherited};
use crate::service::runner;
use crate::service::timer;
use crate::service::worker;
use crate::site::{Setup, Site};
use axum::Router;
use clap::{CommandFactory, Parser};
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use sysexits::ExitCode;

/// Deliver mail for Postfix as a service, by LMTP and for thin clients: exactly once, as maildrop_command does.
///
/// It stays in the foreground and starts the processes of the service, and restarts each that ends. The front holds the
/// connections, and workers deliver. Runners take messages out of the file queue. A timer retries owed Sent copies, and
/// prunes. If they are configured, a notifier sends webhooks, and a process serves the web UI. `maildrop_command service`
/// shows their status, and controls them.
#[derive(Debug, Parser)]
#[command(
    name = "maildropd",
    version,
    after_help = "\
Examples:
  systemctl enable --now maildropd.socket maildropd.service
  maildropd --config /etc/maildrop_command/config.toml
  maildropd --embedded /tmp/maildrop-demo --web 127.0.0.1:8025

Signals: SIGTERM and SIGINT end it after the messages in progress, a second one at once. SIGHUP reads the configuration again (one \
with a mistake in it changes nothing) and reopens the log, SIGUSR1 replaces one process after the other, SIGUSR2 opens the \
log again.

Exit status: 0 if it was stopped, 69 if it cannot listen at a socket, 73 if it cannot open its folders or its log, 75 if another one \
is running, 78 if the configuration cannot be read."
)]
struct Arguments {
    /// The configuration file
    #[arg(long, value_name = "FILE", required_unless_present = "embedded", conflicts_with = "embedded")]
    config: Option<PathBuf>,
    /// Serve only the web UI, of what `maildrop_command --embedded DIR` has delivered
    #[arg(long, value_name = "DIR", conflicts_with = "role")]
    embedded: Option<PathBuf>,
    /// The address of the web UI of DIR, on this machine
    #[arg(long, value_name = "ADDRESS:PORT", requires = "embedded")]
    web: Option<String>,
    /// Leave the terminal, as `maildrop_command service start` has it
    #[arg(long, hide = true)]
    detach: bool,
    /// What this process is to do, which the master says of the processes that it starts
    #[arg(long, hide = true)]
    role: Option<String>,
    /// Which of its role this process is
    #[arg(long, hide = true, default_value = "1")]
    number: u32,
    /// The process id of the master; without one it is started manually
    #[arg(long, hide = true, requires = "checked")]
    master: Option<u32>,
    /// The configuration as the master has checked it
    #[arg(long, hide = true)]
    checked: Option<PathBuf>,
}

/// The time limit for opening the ledger of a directory.
const PATIENCE: Duration = Duration::from_mins(1);

/// Checks a role's name. clap does not do this: its usage text does not show a hidden option.
fn role(name: &str) -> Result<Role, String> {
    Role::parse(name).ok_or_else(|| format!("there is no role {name:?}: the roles are {}", Role::TEXTS.join(", ")))
}

/// The command line's definition, from which its manual page and completions are made.
pub(super) fn definition() -> clap::Command {
    Arguments::command()
}

/// Runs a command line of `maildropd`, and returns the status to exit with.
#[must_use]
pub fn run(arguments: &[OsString]) -> u8 {
    crate::base::core_dumps::switch_off();
    crate::base::log::panic_hook();
    u8::from(match Arguments::try_parse_from(arguments) {
        Ok(arguments) => match arguments.role.as_deref().map(role).transpose() {
            Ok(Some(Role::Front)) => ended(be_front(&arguments)),
            Ok(Some(Role::Worker)) => ended(be_worker(&arguments)),
            Ok(Some(Role::Runner)) => ended(be_runner(&arguments)),
            Ok(Some(Role::Timer)) => ended(be_timer(&arguments)),
            Ok(Some(Role::Notifier)) => ended(be_notifier(&arguments)),
            Ok(Some(Role::Web)) => ended(be_page(&arguments)),
            Ok(None) => be_master(&arguments),
            Err(problem) => {
                complain(&problem);
                ExitCode::Usage
            }
        },
        Err(error) if error.use_stderr() => {
            let _ = error.print();
            ExitCode::Usage
        }
        Err(asked) => match asked.print().and_then(|()| std::io::stdout().flush()) {
            // The reader has ended early, as in `… | head`.
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                complain(&format!("standard output: {error}"));
                ExitCode::IoErr
            }
            _ => ExitCode::Ok,
        },
    })
}

fn be_master(arguments: &Arguments) -> ExitCode {
    if arguments.detach
        && let Err(error) = rustix::process::setsid()
    {
        complain(&format!("leaving the terminal: {error}"));
        return ExitCode::OsErr;
    }
    if let (Some(directory), Some(listen)) = (&arguments.embedded, &arguments.web) {
        return ended(be_page_of(directory, listen));
    }
    let Some(config) = &arguments.config else {
        complain("what is to be served of that directory? --web 127.0.0.1:8025");
        return ExitCode::Usage;
    };
    master::run(config, master::this_program()).map_or_else(
        |error| {
            let (exit, problem) = failed(error);
            complain(&problem);
            exit
        },
        |()| ExitCode::Ok,
    )
}

/// Prints and logs the problem, if there is one.
fn ended(result: Result<(), (ExitCode, String)>) -> ExitCode {
    result.map_or_else(
        |(exit, problem)| {
            complain(&problem);
            tracing::error!(problem, "this process of the service cannot go on");
            exit
        },
        |()| ExitCode::Ok,
    )
}

fn failed(error: ServiceError) -> (ExitCode, String) {
    let exit = match error {
        ServiceError::Config(_) => ExitCode::Config,
        ServiceError::Another { .. } => ExitCode::TempFail,
        ServiceError::File { .. } | ServiceError::Log(_) | ServiceError::Queue(_) => ExitCode::CantCreat,
        ServiceError::Listen { .. } | ServiceError::NoMaster | ServiceError::Tls(_) => ExitCode::Unavailable,
        ServiceError::System { .. } => ExitCode::OsErr,
    };
    (exit, error.to_string())
}

fn unusable(problem: impl ToString) -> (ExitCode, String) {
    (ExitCode::Config, problem.to_string())
}

fn unavailable(problem: impl ToString) -> (ExitCode, String) {
    (ExitCode::Unavailable, problem.to_string())
}

/// The configuration of a role once its process has started: from the master, or from the file if a person starts the process.
fn begin(role: Role, arguments: &Arguments) -> Result<Config, (ExitCode, String)> {
    let file = arguments.config.as_deref().ok_or_else(|| (ExitCode::Usage, "--config FILE is missing".to_owned()))?;
    if let (Some(master), Some(checked)) = (arguments.master, &arguments.checked) {
        return child_start::begin(role, master, file, checked).map_err(failed);
    }
    let config = Config::load(file).map_err(unusable)?;
    log::start_of_service(&config.log_settings()).map_err(unusable)?;
    Ok(config)
}

/// The front reads no password.
fn be_front(arguments: &Arguments) -> Result<(), (ExitCode, String)> {
    // The inherited descriptors are taken before any thread starts.
    let inherited = listeners::inherited().map_err(unavailable)?;
    let config = begin(Role::Front, arguments)?;
    let (inherited, master) = if arguments.master.is_some() {
        (inherited, Some(to_the_master().map_err(unavailable)?))
    } else {
        let open = |endpoints: &[Endpoint]| Listener::open_all(endpoints).map_err(unavailable);
        let (lmtp, http) = (open(&config.service.lmtp_endpoints())?, open(&config.service.http_endpoints())?);
        (Inherited { lmtp, http }, None)
    };
    front::run(&config, inherited, master).map_err(failed)
}

fn be_worker(arguments: &Arguments) -> Result<(), (ExitCode, String)> {
    let config = begin(Role::Worker, arguments)?;
    let site = Site::configured(config.clone()).map_err(unusable)?;
    let (file, checked) = (config.file.clone(), arguments.checked.clone());
    let successor = move || could_work(&file, checked.as_deref());
    worker::run(&site, &config, Box::new(successor)).map_err(failed)
}

/// Whether a worker could start: reads the files that a worker reads at its start.
fn could_work(file: &Path, checked: Option<&Path>) -> Result<(), ServiceError> {
    let config = match checked {
        Some(checked) => child_start::checked_configuration(file, checked)?,
        None => Config::load(file)?,
    };
    Ok(Site::configured(config).map(drop)?)
}

/// The runner reads no password.
fn be_runner(arguments: &Arguments) -> Result<(), (ExitCode, String)> {
    let config = begin(Role::Runner, arguments)?;
    let shard = arguments.number.checked_sub(1).and_then(|index| Shard::new(index, config.service.runners));
    let shard = shard.ok_or_else(|| unusable("there is no runner of this number"))?;
    runner::run(&config, shard).map_err(failed)
}

/// The timer reads no database password except the one for its own role.
fn be_timer(arguments: &Arguments) -> Result<(), (ExitCode, String)> {
    let config = begin(Role::Timer, arguments)?;
    let (service, retention) = (config.service.clone(), config.retention);
    let own = config.acting_as(DatabaseRole::Timer);
    let site = if timer::opens_mailboxes(&service) { Site::configured(own) } else { Site::without_mailboxes(own) };
    let site = site.map_err(unusable)?;
    timer::run(&site, &service, retention).map_err(failed)
}

/// The notifier reads no password of mailboxes.
fn be_notifier(arguments: &Arguments) -> Result<(), (ExitCode, String)> {
    let config = begin(Role::Notifier, arguments)?;
    let settings = NotifierSettings::of(&config).map_err(unusable)?;
    let site = Site::without_mailboxes(config.acting_as(DatabaseRole::Notifier)).map_err(unusable)?;
    notifier::run(&site, settings).map_err(|error| (ExitCode::OsErr, error.to_string()))
}

/// The web UI of a directory, for evaluation. It runs in the foreground and prints a login link.
fn be_page_of(directory: &Path, listen: &str) -> Result<(), (ExitCode, String)> {
    let settings = WebSettings::at(listen).map_err(|_| {
        (ExitCode::Usage, format!("--web {listen}: it wants an address of this machine, such as 127.0.0.1:8025"))
    })?;
    // The link is printed only once the web UI can be reached.
    let listeners = web::listen(&settings).map_err(|error| match error {
        WebError::Listen { source, .. } => unavailable(format!("--web: {source}: give another port")),
        error => unavailable(error),
    })?;
    let setup = Setup::embedded(directory).map_err(unusable)?;
    log::start(&setup.log).map_err(unusable)?;
    let site = setup.place.site().map_err(unusable)?;
    let mut database = site.open_database(None, Deadline::after(PATIENCE)).map_err(unavailable)?;
    let by = CommandLine::of(&site);
    let link = web_logins::link(database.as_mut(), by.actor(), settings.origin(), "you", WebRole::Admin);
    let link = link.map_err(unavailable)?;
    drop(database);
    let new = setup.created.map(|directory| format!("{} is new and empty.\n", directory.display()));
    let mut out = std::io::stdout();
    // A closed standard output is harmless.
    let _ = writeln!(
        out,
        "{}The web UI is at {}/ until you press Ctrl-C. This link logs you in, once, within ten minutes:\n{link}",
        new.unwrap_or_default(),
        settings.origin()
    );
    let _ = out.flush();
    web::run(&site, settings, listeners, |_, _| Router::new()).map_err(unavailable)
}

/// The web UI reads the mailbox password only if it may open mailboxes.
fn be_page(arguments: &Arguments) -> Result<(), (ExitCode, String)> {
    let config = begin(Role::Web, arguments)?;
    let settings = WebSettings::of(&config).map_err(unusable)?;
    let own = config.clone().acting_as(DatabaseRole::Web);
    let site = if config.web.allow_mailbox_access { Site::configured(own) } else { Site::without_mailboxes(own) };
    let site = site.map_err(unusable)?;
    let api = config.web.api.then(|| ApiSettings::of(&config, &site)).transpose().map_err(unusable)?;
    let beside = |threads, memory| api.map_or_else(Router::new, |settings| api::router(threads, settings, memory));
    let listeners = web::listen(&settings).map_err(unavailable)?;
    web::run(&site, settings, listeners, beside).map_err(unavailable)
}

fn complain(text: &str) {
    complain_as("maildropd", text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        definition().debug_assert();
    }
}
