//! What the front tells the master, and hears of it: how it stands, and which workers have ended.

use super::broker::sockets::Report as Broker;
use super::master::notice::{Notice, Report};
use crate::handover::control::line;
use serde_json::{Map, Value};
use std::io;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

/// How often it is looked whether workers have come or gone, which the master hears of unasked.
const LOOK: Duration = Duration::from_millis(100);

/// Answers the master, and tells it of each change, until it has ended.
///
/// # Errors
/// Where it cannot be talked with any more: it has ended, and the system is about to tell us to.
pub async fn tell_master(
    master: UnixStream,
    ask: mpsc::Sender<oneshot::Sender<Broker>>,
    stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let (heard, mut says) = tokio::net::UnixStream::from_std(master)?.into_split();
    let mut notices = BufReader::new(heard).lines();
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = None;
    loop {
        let asked = tokio::select! {
            notice = notices.next_line() => match notice? {
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(notice) => heard_of(&notice),
            },
            _ = looks.tick() => false,
        };
        let (tell, told) = oneshot::channel();
        // The broker ends with this process.
        if ask.send(tell).await.is_err() {
            return Ok(());
        }
        let Ok(broker) = told.await else { return Ok(()) };
        let workers: Vec<u32> = broker.workers.iter().filter_map(|pid| u32::try_from(*pid).ok()).collect();
        let standing = (!*stop.borrow(), workers);
        if asked || last.as_ref() != Some(&standing) {
            let (accepting, workers) = standing.clone();
            let report = Report::Standing { accepting, workers, known: known(&broker) };
            says.write_all(line(&report).as_bytes()).await?;
            last = Some(standing);
        }
    }
}

/// Whether it asks how we stand.
fn heard_of(notice: &str) -> bool {
    match serde_json::from_str(notice) {
        Ok(Notice::Ask) => return true,
        Ok(Notice::WorkerEnded { number, pid, end, by_us: false, .. }) => {
            info!(number, pid, ?end, "a worker has ended");
        }
        Ok(Notice::WorkerStarted { .. } | Notice::WorkerEnded { .. }) => {}
        Err(error) => warn!(%error, "what the master says cannot be read"),
    }
    false
}

/// The figures for people.
fn known(broker: &Broker) -> Map<String, Value> {
    let standing = &broker.standing;
    let figures = [
        ("queued", standing.queued),
        ("held", standing.held),
        ("ready", standing.ready),
        ("busy", standing.busy),
        ("silent", standing.silent),
    ];
    figures.into_iter().map(|(name, number)| (name.to_owned(), Value::from(number))).collect()
}
