//! `service status`: its state, for people and for programs.

use super::{DEGRADED, Ended, NOT_RUNNING, ServiceOptions, fail, not_asked};
use crate::cli::{json, or_dash, print, print_line, table};
use crate::protocol::control::{Command, Process, State, Status, Task};
use crate::protocol::control_client::{ControlError, SHORT, ask};
use crate::protocol::status_text::{age, figure_label, figures_in_order};
use clap::Args;
use sysexits::ExitCode;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: ServiceOptions,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Ended {
    let socket = arguments.options.socket()?;
    let answer = match ask(&socket, Command::Status, SHORT) {
        Err(ControlError::NotRunning) if arguments.json => {
            print_line(&json(&serde_json::json!({ "state": "not_running" })));
            return Err(fail(NOT_RUNNING, ""));
        }
        answered => answered.map_err(|problem| not_asked(&problem, &socket))?,
    };
    let status = answer.status.ok_or_else(|| fail(ExitCode::Protocol, "the service does not report its state"))?;
    print(arguments.json, &status, || text(&status));
    if status.state == State::Well { Ok(ExitCode::Ok) } else { Err(fail(DEGRADED, "")) }
}

/// The service's state, in lines and a table.
pub(super) fn text(status: &Status) -> String {
    let Status { version, pid, up_s, configuration, state, reasons, listeners, http, processes, front, timer, .. } =
        status;
    let mut lines = vec![format!("maildropd {version} is {}: pid {pid}, for {}", state.as_str(), age(*up_s))];
    lines.extend(reasons.iter().map(|reason| format!("  {reason}")));
    lines.push(format!("configuration: {}", configuration.display()));
    let places = if listeners.is_empty() { "nowhere".into() } else { listeners.join(", ") };
    lines.push(format!("LMTP: {places}"));
    if !http.is_empty() {
        lines.push(format!("metrics and health: {}", http.join(", ")));
    }
    lines.extend(figures_in_order(front).into_iter().map(|(what, value)| format!("{}: {value}", figure_label(what).0)));
    lines.extend(timer.iter().map(Task::to_text));
    let header = ["PROCESS", "PID", "STATE", "FOR", "RESTARTS", "THE LAST ONE"];
    lines.push(table(header, processes.iter().map(row)));
    lines.join("\n")
}

fn row(process: &Process) -> [String; 6] {
    [
        process.name(),
        or_dash(process.pid),
        process.state(),
        or_dash(process.up_s.map(age)),
        process.restarts.to_string(),
        or_dash(process.last_exit()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::control::{Counted, End, LastEnd, LastRun, Role};
    use crate::protocol::status_text::tests::gone;

    #[test]
    fn a_throttled_worker_stands_in_the_table_with_its_reason() {
        let last =
            LastEnd { at: String::new(), end: End::Signal(11), output: vec!["a".into(), "stack\u{1b}[2J".into()] };
        let worker = Process {
            restarts: 12,
            throttled: true,
            starts_in_s: Some(42.5),
            last_end: Some(last),
            ..gone(Role::Worker)
        };
        let front = Process { number: 1, pid: Some(7), up_s: Some(3600.0), ready: true, ..gone(Role::Front) };
        let last = |well, result: &str| LastRun {
            at: "2026-11-22T10:00:00Z".into(),
            took_s: 61.0,
            well,
            result: result.into(),
        };
        let next_at = Some("2026-11-22T10:06:01Z".into());
        let owed = Task {
            task: "finish_owed".into(),
            every_s: 300.0,
            next_at: next_at.clone(),
            failed_runs: 0,
            last: Some(last(true, "3 finished")),
        };
        let failed = Some(last(false, "no right"));
        let prune = Task { task: "prune".into(), next_at: None, failed_runs: 2, last: failed, ..owed.clone() };
        let status = Status {
            version: "0.1.0".into(),
            pid: 6,
            since: String::new(),
            up_s: 7200.0,
            configuration: "/c".into(),
            state: State::Degraded,
            reasons: vec!["worker 2 dies".into()],
            listeners: vec!["/run/lmtp".into()],
            processes: vec![front, worker],
            front: serde_json::json!({ "queue_length": 3 }),
            timer: vec![owed, prune],
            http: vec!["127.0.0.1:9465".into()],
            counted: Counted::default(),
        };
        let text = text(&status);
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        assert_eq!(
            lines[..8],
            [
                "maildropd 0.1.0 is degraded: pid 6, for 2h",
                "  worker 2 dies",
                "configuration: /c",
                "LMTP: /run/lmtp",
                "metrics and health: 127.0.0.1:9465",
                "queue length: 3",
                "finish owed: 3 finished, at 2026-11-22 10:00:00Z, in 1m 1s; next at 2026-11-22 10:06:01Z",
                "prune: FAILED 2 times in a row: no right, at 2026-11-22 10:00:00Z, in 1m 1s; it is under way"
            ]
        );
        assert!(lines[9].contains("front") && lines[9].contains("ready"), "{text}");
        let words: Vec<&str> = lines[10].split_whitespace().collect();
        assert_eq!(words.join(" "), "worker 2 - starts in 42s, throttled - 12 ended by SIGSEGV; it said: stack?[2J");
    }
}
