//! Metrics and health, by HTTP: `/metrics`, `/healthz`, `/readyz`.
//!
//! It shares the front's thread with LMTP, so that whoever asks must not be able to take much of it: few connections at once, and
//! not many in a second, one short request on each, little time for all of it. It shows numbers, and neither addresses nor
//! anything of a message.

mod handlers;
mod metrics;

use super::broker::sockets::Report;
use super::disk_figures::DiskFiguresReader;
use super::lmtp::{Connection, Listener, Tally, accept};
use crate::base::http_connections::{Slot, Slots};
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
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

/// How many connections are served at once. The one that has waited longest for its client gives way to the next.
const MOST_CONNECTIONS: usize = 8;
/// The pause between two connections: an answer takes a fraction of a millisecond, of which LMTP is to notice nothing, whoever asks
/// how often.
const PACE: Duration = Duration::from_millis(20);
/// The same, after the system could not accept one: it is out of file descriptors, or of memory.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a request may take to come.
const REQUEST: Duration = Duration::from_secs(5);
/// How long a connection may last in all.
const CONNECTION: Duration = Duration::from_secs(10);
/// How long a request may be, with its headers: in bytes, and their number.
const LONGEST_REQUEST: usize = 16 << 10;
const MOST_HEADERS: usize = 64;

/// What is shown comes from here.
pub struct Sources {
    /// The broker.
    pub ask: mpsc::Sender<oneshot::Sender<Report>>,
    /// What the master last said of the service; `None` where there is no master, or it has said nothing yet.
    pub service: watch::Receiver<Option<Status>>,
    /// Whether this process is to end.
    pub stop: watch::Receiver<bool>,
    /// The LMTP server.
    pub tally: Tally,
    /// How many LMTP connections are served at once.
    pub max_connections: usize,
    pub disk: DiskFiguresReader,
}

/// Who answers, before it runs.
pub struct Http {
    listening: Vec<Open>,
    answers: Answers,
}

impl Http {
    #[must_use]
    pub fn new(listening: Vec<Open>, sources: Sources) -> Self {
        Self { listening, answers: Answers(sources) }
    }

    /// Answers whoever asks, for as long as it is polled.
    ///
    /// # Errors
    /// Where the system does not let us wait for connections.
    pub async fn run(self) -> io::Result<()> {
        if self.listening.is_empty() {
            return Ok(());
        }
        let listeners = self.listening.into_iter().map(Listener::new).collect::<io::Result<Vec<_>>>()?;
        let answers = Arc::new(self.answers);
        let slots = Slots::new(MOST_CONNECTIONS);
        for turn in 0.. {
            match accept(&listeners, turn).await {
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
        Ok(())
    }
}

/// Answers one request.
async fn answer(connection: Connection, mut slot: Slot, answers: Arc<Answers>) {
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
