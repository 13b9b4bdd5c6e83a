//! `service start`: starts `maildropd` in the background, and waits until it is ready.

use super::status::text;
use super::{DEGRADED, Ended, Failure, Progress, ServiceOptions, complain, fail, not_asked, print_line};
use crate::base::timestamp::duration;
use crate::protocol::control::{Command as Order, State, Status};
use crate::protocol::control_client::{ControlError, SHORT, ask};
use clap::Args;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use sysexits::ExitCode;

/// The interval between two queries whether the service is ready.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: ServiceOptions,
    /// Start it even if systemd runs
    #[arg(long)]
    detached: bool,
    /// How long to wait until it is ready
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = duration)]
    wait: Duration,
}

pub(super) fn run(arguments: &Arguments) -> Ended {
    let socket = arguments.options.socket()?;
    match ask(&socket, Order::Status, SHORT) {
        Ok(answer) => {
            let pid = answer.status.map(|status| status.pid.to_string()).unwrap_or_default();
            print_line(&format!("maildropd runs already: pid {pid}"));
            return Ok(ExitCode::Ok);
        }
        Err(ControlError::NotRunning) => {}
        Err(problem) => return Err(not_asked(&problem, &socket)),
    }
    if Path::new("/run/systemd/system").is_dir() && !arguments.detached {
        let text = "systemd starts services here: `systemctl start maildropd` (and `systemctl enable --now maildropd.socket` \
                    for its sockets). With --detached it is started without systemd";
        return Err(fail(ExitCode::Usage, text));
    }
    let mut started = start(&arguments.options.config)?;
    let stderr = read_stderr(&mut started);
    let _progress = Progress::watch("it is being started");
    let end = Instant::now() + arguments.wait;
    loop {
        match started.try_wait() {
            Ok(None) => {}
            Ok(Some(status)) => {
                // The service's own line names the cause and the fix.
                complain(&stderr.join().unwrap_or_default());
                let code = status.code().and_then(|code| u8::try_from(code).ok());
                return Err(fail(code.unwrap_or(ExitCode::Software.into()), ""));
            }
            Err(error) => return Err(system("waiting for maildropd", &error)),
        }
        let status = ask(&socket, Order::Status, SHORT).ok().and_then(|answer| answer.status);
        match status.filter(|status| status.pid == started.id()) {
            Some(status @ Status { state: State::Well, .. }) => {
                print_line(&format!("maildropd runs: pid {}", status.pid));
                return Ok(ExitCode::Ok);
            }
            Some(status) if status.state == State::Degraded || Instant::now() >= end => {
                let text = format!("it runs, and is not well; it continues to try:\n{}", text(&status));
                return Err(fail(DEGRADED, text));
            }
            None if Instant::now() >= end => {
                let text = "it runs, and does not answer; `maildrop_command service status` prints its state";
                return Err(fail(DEGRADED, text));
            }
            _ => thread::sleep(LOOK),
        }
    }
}

/// The service's program, which is in the same folder as this one.
fn program() -> Result<PathBuf, Failure> {
    let this = std::env::current_exe().map_err(|error| system("looking for this program", &error))?;
    let program = this.with_file_name("maildropd");
    if program.is_file() {
        return Ok(program);
    }
    let text = format!("{} is missing: it belongs beside {}", program.display(), this.display());
    Err(fail(ExitCode::Unavailable, text))
}

fn start(file: &Path) -> Result<Child, Failure> {
    let file = std::path::absolute(file).map_err(|error| system("the configuration's path", &error))?;
    let mut command = Command::new(program()?);
    command.arg("--config").arg(file).arg("--detach").current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().map_err(|error| system("starting maildropd", &error))
}

/// Reads the service's standard error. Once the service runs, it writes to its log.
fn read_stderr(started: &mut Child) -> thread::JoinHandle<String> {
    let stderr = started.stderr.take();
    thread::spawn(move || {
        let mut received = String::new();
        if let Some(stderr) = stderr {
            // The service's program writes one line, or a few.
            let _ = stderr.take(64 << 10).read_to_string(&mut received);
        }
        received.trim_end().trim_start_matches("maildropd: ").to_owned()
    })
}

fn system(doing: &str, error: &std::io::Error) -> Failure {
    fail(ExitCode::OsErr, format!("{doing}: {error}"))
}
