//! `service start`: starts `maildropd` in the background, and waits until it is ready.

use super::ask::not_asked;
use super::status::told;
use super::{DEGRADED, Place, Slow, complain, exit, say};
use crate::base::timestamp::duration;
use crate::protocol::control::{Command as Order, State, Status};
use crate::protocol::control_client::{NotAsked, SHORT, ask};
use clap::Args;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use sysexits::ExitCode;

/// How often it is asked whether it is ready.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  systemctl enable --now maildropd.socket maildropd.service
  setpriv --reuid maildrop --regid maildrop --clear-groups maildrop_command service start --detached

Where systemd runs, it is systemd that starts services: it makes the sockets, watches the service, and limits what it may do. \
`--detached` starts it all the same. The service runs as the user who starts it, and leaves the terminal.

Exit status: 0 it is well (also if it was running already), 1 it runs and is not well, and maildropd's own where it does not \
begin: 69, 73, 75 or 78.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    place: Place,
    /// Start it even where systemd runs
    #[arg(long)]
    detached: bool,
    /// How long to wait until it is ready
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = duration)]
    wait: Duration,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, ExitCode> {
    let socket = arguments.place.socket()?;
    match ask(&socket, Order::Status, SHORT) {
        Ok(answer) => {
            let pid = answer.status.map(|status| status.pid.to_string()).unwrap_or_default();
            say(&format!("maildropd runs already: pid {pid}"));
            return Ok(ExitCode::Ok);
        }
        Err(NotAsked::NotRunning) => {}
        Err(problem) => return Err(not_asked(&problem, &socket)),
    }
    if Path::new("/run/systemd/system").is_dir() && !arguments.detached {
        complain(
            "systemd starts services here: `systemctl start maildropd` (and `systemctl enable --now maildropd.socket` for its \
             sockets). With --detached it is started without systemd",
        );
        return Err(ExitCode::Usage);
    }
    let mut started = start(&arguments.place.file())?;
    let said = read_stderr(&mut started);
    let _slow = Slow::watch("it is being started");
    let end = Instant::now() + arguments.wait;
    loop {
        match started.try_wait() {
            Ok(None) => {}
            Ok(Some(status)) => {
                // What it said stands for itself: one line that names the mend.
                complain(&said.join().unwrap_or_default());
                let code = status.code().and_then(|code| u8::try_from(code).ok());
                exit(code.unwrap_or(u8::from(ExitCode::Software)));
            }
            Err(error) => return Err(system("waiting for maildropd", &error)),
        }
        let status = ask(&socket, Order::Status, SHORT).ok().and_then(|answer| answer.status);
        match status.filter(|status| status.pid == started.id()) {
            Some(status @ Status { state: State::Well, .. }) => {
                say(&format!("maildropd runs: pid {}", status.pid));
                return Ok(ExitCode::Ok);
            }
            Some(status) if status.state == State::Degraded || Instant::now() >= end => {
                complain(&format!("it runs, and is not well; it goes on trying:\n{}", told(&status)));
                exit(DEGRADED);
            }
            None if Instant::now() >= end => {
                complain("it runs, and does not answer; `maildrop_command service status` says how it is");
                exit(DEGRADED);
            }
            _ => thread::sleep(LOOK),
        }
    }
}

/// The service's program, which lies beside this one.
fn program() -> Result<PathBuf, ExitCode> {
    let this = std::env::current_exe().map_err(|error| system("looking for this program", &error))?;
    let program = this.with_file_name("maildropd");
    if program.is_file() {
        return Ok(program);
    }
    complain(&format!("{} is missing: it belongs beside {}", program.display(), this.display()));
    Err(ExitCode::Unavailable)
}

fn start(file: &Path) -> Result<Child, ExitCode> {
    let file = std::path::absolute(file).map_err(|error| system("the configuration's path", &error))?;
    let mut command = Command::new(program()?);
    command.arg("--config").arg(file).arg("--detach").current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().map_err(|error| system("starting maildropd", &error))
}

/// Reads what it says. Once it runs it says nothing here: it has its log.
fn read_stderr(started: &mut Child) -> thread::JoinHandle<String> {
    let stderr = started.stderr.take();
    thread::spawn(move || {
        let mut said = String::new();
        if let Some(stderr) = stderr {
            // A program of ours says one line, or some.
            let _ = stderr.take(64 << 10).read_to_string(&mut said);
        }
        said.trim_end().trim_start_matches("maildropd: ").to_owned()
    })
}

fn system(doing: &str, error: &std::io::Error) -> ExitCode {
    complain(&format!("{doing}: {error}"));
    ExitCode::OsErr
}
