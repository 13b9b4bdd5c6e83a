//! `service`: starts the service, `maildropd`, asks how it is, and tells it what to do. It asks its master, at the control socket.

mod ask;
mod start;
mod status;

use super::{Slow, complain, exit, say};
use crate::protocol::control_client::{SHORT, ask};
use ask::{LONG, not_asked};
use clap::{Args, Subcommand};
use std::path::PathBuf;
use sysexits::ExitCode;

use crate::protocol::control;

/// As an init script says it (LSB, "Init Script Actions").
const DEGRADED: u8 = 1;
const NOT_RUNNING: u8 = 3;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start it, and wait until it is ready
    Start(start::Arguments),
    /// End it after the messages in hand, and wait for the end
    Stop(StopArguments),
    /// Replace its processes one after the other, each after the message in hand, and wait until the new ones are ready
    Restart(RestartArguments),
    /// Have it read the configuration anew, then as `restart`; a configuration with a mistake in it changes nothing
    Reload(ReloadArguments),
    /// Have it open its log anew, after the file was moved away
    Reopen(ReopenArguments),
    /// How it is: well, or why not, and each of its processes
    Status(status::Arguments),
}

#[derive(Debug, Args)]
#[group(skip)]
pub(super) struct Place {
    /// The configuration file [default: /etc/maildrop_command/config.toml]
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// The control socket, where the configuration does not name its folder any more
    #[arg(long, value_name = "SOCKET", conflicts_with = "config")]
    pub(super) socket: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  maildrop_command service stop

No message is lost: what is not delivered stays with Postfix, which tries again. Where systemd has made the sockets, the next one \
who connects starts the service again; to keep it ended, use `systemctl stop maildropd.socket maildropd.service`.

Exit status: 0 it has ended, 3 it was not running, 69 or 77 if it cannot be asked.")]
pub(crate) struct StopArguments {
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  maildrop_command service restart

A process of the service runs the program that the service was started with. After an upgrade use `service stop` and `service \
start`, or `systemctl restart maildropd`.

Exit status: 0 all processes are new, 3 it is not running, 69 if one does not come up (the others stay as they are until it \
does), 69 or 77 if it cannot be asked.")]
pub(crate) struct RestartArguments {
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  maildrop_command service reload

The folders of the service cannot change while it runs; all else can, the sockets of LMTP included.

Exit status: 0 all processes run by the new configuration, 3 it is not running, 78 if the configuration is not in order, or no \
process comes up with it (the others stay as they are until one does), 69 or 77 if it cannot be asked.")]
pub(crate) struct ReloadArguments {
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  maildrop_command service reopen

For logrotate(8), where [log] names a file. syslog and journald need nothing of the kind.

Exit status: 0, 3 it is not running, 73 if the file cannot be opened, 69 or 77 if it cannot be asked.")]
pub(crate) struct ReopenArguments {
    #[command(flatten)]
    place: Place,
}

pub(crate) fn run(command: &Command) -> Result<ExitCode, ExitCode> {
    use control::Command as Order;
    match command {
        Command::Start(arguments) => start::run(arguments),
        Command::Status(arguments) => status::run(arguments),
        Command::Stop(StopArguments { place }) => {
            let _slow = Slow::watch("it ends after the messages in hand");
            told(place, Order::Stop, "maildropd has ended", ExitCode::Unavailable)
        }
        Command::Restart(RestartArguments { place }) => {
            let _slow = Slow::watch("one process after the other is replaced");
            told(place, Order::Restart, "all processes are new", ExitCode::Unavailable)
        }
        Command::Reload(ReloadArguments { place }) => {
            let _slow = Slow::watch("one process after the other is replaced");
            told(place, Order::Reload, "all processes run by the new configuration", ExitCode::Config)
        }
        Command::Reopen(ReopenArguments { place }) => {
            told(place, Order::Reopen, "the log was opened anew", ExitCode::CantCreat)
        }
    }
}

/// Tells the service to do something, and prints what came of it.
fn told(place: &Place, order: control::Command, done: &str, otherwise: ExitCode) -> Result<ExitCode, ExitCode> {
    let socket = place.socket()?;
    let patience = if order == control::Command::Reopen { SHORT } else { LONG };
    let answer = ask(&socket, order, patience).map_err(|problem| not_asked(&problem, &socket))?;
    if answer.done {
        say(done);
        if let Some(note) = answer.note {
            complain(&note);
        }
        return Ok(ExitCode::Ok);
    }
    complain(&answer.problem.unwrap_or_else(|| "it was not done, and the service does not say why".into()));
    Err(otherwise)
}
