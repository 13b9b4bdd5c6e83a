//! The front's side of its channel to the master: reports of the front, and notices about the service and its workers.

use super::broker::sockets::{Report as Broker, Started};
use super::disk_figures::DiskFiguresReader;
use super::master::front_channel::{FromFront, FrontReport, ToFront};
use super::shunt::WorkerEnd;
use crate::protocol::control::{Status, line};
use crate::queue::{State, Waiting};
use serde_json::{Map, Value};
use std::io;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use tracing::warn;

/// Answers the master's polls, until the master has ended. The master's status goes to `service`.
///
/// # Errors
/// If the master cannot be reached any more: it has ended, and the system is about to send us SIGTERM.
pub async fn report_to_master(
    master: UnixStream,
    ask: mpsc::Sender<oneshot::Sender<Broker>>,
    started: watch::Sender<Started>,
    ended: mpsc::Sender<WorkerEnd>,
    stop: watch::Receiver<bool>,
    service: watch::Sender<Option<Status>>,
    disk: DiskFiguresReader,
) -> io::Result<()> {
    let (heard, mut says) = tokio::net::UnixStream::from_std(master)?.into_split();
    let mut notices = BufReader::new(heard).lines();
    while let Some(notice) = notices.next_line().await? {
        match serde_json::from_str(&notice) {
            Ok(ToFront::Ask) => {
                // The broker's loop has ended, so this process is about to end.
                let Some(broker) = Broker::request(&ask).await else { return Ok(()) };
                let status = service.borrow().clone();
                // The poll is answered at once. Figures that are not read yet are in the next report.
                let figures = timeout(Duration::ZERO, disk.read(status.as_ref())).await.unwrap_or_default();
                let known = known(&broker, figures.queue.iter().flatten());
                let (accepting, database_away) = (!*stop.borrow(), broker.database_away);
                let report = FrontReport { accepting, database_away, known, timer: figures.timer };
                says.write_all(line(&FromFront::Status(report)).as_bytes()).await?;
            }
            Ok(ToFront::Service { status }) => drop(service.send_replace(Some(*status))),
            // The system has no larger process ids.
            Ok(ToFront::WorkerStarted { pid }) => started.send_modify(|started| started.extend(i32::try_from(pid))),
            Ok(ToFront::WorkerEnded(worker)) => {
                // Another process may now have this id.
                let pid = i32::try_from(worker.pid).ok();
                started.send_modify(|started| started.retain(|one| Some(*one) != pid));
                // The broker's loop has ended, so this process is about to end.
                if ended.send(worker).await.is_err() {
                    return Ok(());
                }
            }
            Err(error) => warn!(%error, "what the master says cannot be read"),
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

/// The figures for `service status`.
fn known<'a>(broker: &Broker, queue: impl Iterator<Item = &'a (State, Waiting)>) -> Map<String, Value> {
    let gauges = serde_json::to_value(broker.gauges).unwrap_or_default();
    let mut known = gauges.as_object().cloned().unwrap_or_default();
    known.extend(queue.map(|(state, it)| (format!("file_queue_{state}"), Value::from(it.messages))));
    known
}

#[cfg(test)]
#[path = "master_link_tests.rs"]
mod tests;
