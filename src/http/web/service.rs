//! Service: the status of its processes, from its master, as `service status` prints it.

use super::activity::{counted, waiting_deliveries};
use super::layout::{self, Column, Screen, number, or_dash, table};
use super::list_file::{self, FileFormat, FileQuery};
use super::visit::Visit;
use super::{Page, auth};
use crate::base::summary_cache::Summary;
use crate::http::blocking_pools::Work;
use crate::operations::activity::Figures;
use crate::protocol::control::{Command, Process, State, Status, Task};
use crate::protocol::control_client::ask;
use crate::protocol::status_text::{age, figure_label, figures_in_order};
use axum::extract::Query;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use maud::{Markup, Render, html};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;
use tracing::warn;

/// How long the master may take. It normally answers at once.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) async fn show(visit: Visit, Query(asked): Query<FileQuery>) -> Response {
    let shown = |main: &Markup| visit.screen(Screen::Service, main);
    let Some(socket) = visit.page.settings.control.clone() else {
        return shown(&html! { p { "This web UI runs alone: it belongs to no service." } });
    };
    match status(&visit.page, socket.clone()).await {
        Ok(status) => match asked.format.map(|format| file(&visit, format, &asked.list, &status)) {
            None => shown(&main(&status, &counted(&visit.page).await)),
            Some(None) => auth::nothing_here().await,
            Some(Some(file)) => file,
        },
        Err(problem) => {
            warn!(socket = %socket.display(), problem, "the service does not report its status");
            let shown = shown(&html! { p .bad { "The service does not report its status: " (problem) "." } });
            (StatusCode::SERVICE_UNAVAILABLE, shown).into_response()
        }
    }
}

async fn status(page: &Page, socket: PathBuf) -> Result<Status, String> {
    // The control request has a limit of its own, whose error names what it waited for.
    let asked = page.blocking.run(Work::Control, 2 * PATIENCE, move |_, _| ask(&socket, Command::Status, PATIENCE));
    let answer = asked.await.map_err(|why| why.to_string())?.map_err(|problem| problem.to_string())?;
    answer.status.ok_or_else(|| "the answer has no status".to_owned())
}

const COLUMNS: [Column; 6] =
    [("Process", ""), ("State", ""), ("Id", "n"), ("For", "n"), ("Restarts", "n"), ("Last exit", "")];

fn main(status: &Status, figures: &Summary<Figures>) -> Markup {
    let Status { version, pid, up_s, state, reasons, listeners, http, processes, front, timer, .. } = status;
    let class = match state {
        State::Well => "good",
        State::Starting | State::Stopping => "wait",
        State::Degraded => "bad",
    };
    html! {
        p #live { span data-said role="status" { "As the master of the service reports it. " } a href="/service" { "Refresh" } }
        div data-refresh="5" {
            p class=(format!("verdict {class}")) { "Its processes are " (state.as_str()) ": maildropd " (version) ", process " (pid) ", for " (age(*up_s)) "." }
            @if !reasons.is_empty() {
                ul { @for reason in reasons { li { (reason) } } }
            }
            h2 { "Mailbox store and database" }
            @match figures {
                Summary::Counted(Figures { waiting: Some(waiting), .. }) => (waiting_deliveries(waiting)),
                Summary::Counted(_) => p { "No recipient waits because of them. " span .hint { "The deliveries of all hosts say so; nothing is probed." } },
                Summary::UnderWay => p { "The deliveries that wait are being counted." },
                Summary::Failed(why) => p .bad { "The database could not be read: " (why) "." },
            }
            h2 { "Processes" }
            (table("untitled", "Its processes", COLUMNS, processes.iter().map(row)))
            (list_file::links("/service?list=processes"))
            h2 { "Messages in progress" }
            dl {
                dt { "LMTP" } dd { (if listeners.is_empty() { "not served".to_owned() } else { listeners.join(", ") }) }
                @if !http.is_empty() { dt { "Metrics and health" } dd { (http.join(", ")) } }
                @for (what, value) in figures_in_order(front) {
                    @let (label, meaning) = figure_label(what);
                    dt { (label) } dd { (figure(value)) @if !meaning.is_empty() { " " span .hint { (meaning) } } }
                }
            }
            @if !timer.is_empty() {
                h2 { "Tasks at intervals" }
                ul { @for task in timer { li { (layout::with_moments(&task.to_text())) } } }
                (list_file::links("/service?list=tasks"))
            }
        }
    }
}

/// The list as a file. `None` if there is no such list.
fn file(to: &Visit, format: FileFormat, list: &str, status: &Status) -> Option<Response> {
    let task = |Task { task, every_s, next_at, failed_runs, last }: &Task| {
        let last = last.as_ref();
        json!({
            "task": task, "every_s": every_s, "next_at": next_at, "failed_runs": failed_runs, "last_at": last.map(|run| &run.at),
            "took_s": last.map(|run| run.took_s), "result": last.map(|run| &run.result),
        })
    };
    let processes = "role,number,pid,since,up_s,ready,ending,restarts,throttled,starts_in_s";
    let tasks = "task,every_s,next_at,failed_runs,last_at,took_s,result";
    match list {
        "processes" => Some(list_file::send(to, format, list, processes, &status.processes, false)),
        "tasks" => Some(list_file::send(to, format, list, tasks, status.timer.iter().map(task), false)),
        _ => None,
    }
}

fn figure(value: &Value) -> String {
    value.as_u64().map_or_else(|| value.to_string(), number)
}

fn row(process: &Process) -> [Markup; 6] {
    let class = if process.ready && !process.ending { "good" } else { "wait" };
    [
        process.name().render(),
        html! { span class=(class) { (process.state()) } },
        or_dash(process.pid),
        or_dash(process.up_s.map(age)),
        number(process.restarts).render(),
        or_dash(process.last_exit().as_deref()),
    ]
}
