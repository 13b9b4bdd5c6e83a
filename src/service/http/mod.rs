//! Metrics and health over HTTP: `/metrics`, `/healthz`, `/readyz`.
//!
//! They share the front's thread with LMTP, so their clients must not be able to use much of it. There are few connections at
//! once and few per second. Each has one short request, and little time. The answers have numbers, but no addresses and no
//! content of messages.

mod handlers;
mod metrics;

use super::broker::sockets::Report;
use super::disk_figures::DiskFiguresReader;
use super::lmtp::{Connection, Listener, LmtpTally};
use crate::base::http_connections::{ConnectionSlot, Slots};
use crate::base::listener::Listener as Open;
use crate::protocol::control::Status;
use handlers::Answers;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

/// How many connections are served at once. The connection that has waited longest for its client gives way to the next.
const MOST_CONNECTIONS: usize = 8;
/// The pause between two connections. An answer takes a fraction of a millisecond, so LMTP is not delayed, however often clients
/// request metrics.
const PACE: Duration = Duration::from_millis(20);
/// The pause after a connection could not be accepted, because of a lack of file descriptors or memory.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a client may take to send its request.
const REQUEST: Duration = Duration::from_secs(5);
/// How long a connection may last.
const CONNECTION: Duration = Duration::from_secs(10);
/// The longest request with its headers, in bytes, and the largest number of headers.
const LONGEST_REQUEST: usize = 16 << 10;
const MOST_HEADERS: usize = 64;

/// What the answers are made from.
pub struct Sources {
    /// Requests a report from the broker.
    pub ask: mpsc::Sender<oneshot::Sender<Report>>,
    /// The status of the service, as last received from the master. `None` without a master, or before its first status.
    pub service: watch::Receiver<Option<Status>>,
    /// Whether this process must end.
    pub stop: watch::Receiver<bool>,
    /// The counters of the LMTP server.
    pub tally: LmtpTally,
    /// The limit on LMTP connections at once.
    pub max_connections: usize,
    pub disk: DiskFiguresReader,
}

/// Serves HTTP for as long as it is polled.
///
/// # Errors
/// If the system cannot wait for connections on these sockets.
pub async fn run(listening: Vec<Open>, sources: Sources) -> io::Result<()> {
    let answers = Arc::new(Answers(sources));
    let slots = Slots::new(MOST_CONNECTIONS);
    let mut accepting = JoinSet::new();
    for open in listening {
        accepting.spawn(serve(Listener::new(open)?, Arc::clone(&slots), Arc::clone(&answers)));
    }
    accepting.join_all().await;
    Ok(())
}

async fn serve(listener: Listener, slots: Arc<Slots>, answers: Arc<Answers>) {
    loop {
        match listener.accept().await {
            Ok(connection) => {
                let slot = slots.admit(connection.address).await;
                tokio::spawn(answer(connection, slot, Arc::clone(&answers)));
                sleep(PACE).await;
            }
            Err(error) => {
                warn!(%error, "a connection for HTTP cannot be accepted");
                sleep(PAUSE).await;
            }
        }
    }
}

/// Answers one request.
async fn answer(connection: Connection, mut slot: ConnectionSlot, answers: Arc<Answers>) {
    let by = slot.connection();
    let service = service_fn(|request: Request<Incoming>| {
        let (answers, by) = (Arc::clone(&answers), by.clone());
        async move {
            let _considered = by.considered();
            Ok::<_, Infallible>(answers.to(request.method(), request.uri().path()).await)
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(REQUEST).keep_alive(false);
    http.max_buf_size(LONGEST_REQUEST).max_headers(MOST_HEADERS);
    let served = timeout(CONNECTION, http.serve_connection(TokioIo::new(connection.stream), service));
    tokio::select! {
        served = served => match served {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!(%error, "a request by HTTP was cut off"),
            Err(_) => debug!("a request by HTTP took too long"),
        },
        () = slot.is_lost() => debug!("a request by HTTP has given way to another one"),
    }
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
