//! Connections: few at once, each with little time for what it has to say.

use crate::base::listening::Listening;
use crate::base::stop::Stop;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

/// How many connections are served at once, at each place. Others wait in the socket's queue.
const MOST_CONNECTIONS: usize = 256;
/// The pause after the system could not accept one: it is out of file descriptors, or of memory.
const PAUSE: Duration = Duration::from_millis(200);
/// How long the head of a request may take to come; and how long a connection may rest between two.
const HEAD: Duration = Duration::from_secs(30);
/// How large it may be, in bytes, and in header fields.
const LARGEST_HEAD: usize = 32 << 10;
const MOST_HEADERS: usize = 64;
/// How long requests under way have once this process is told to end.
const LAST_GRACE: Duration = Duration::from_secs(10);

/// What is listened at, and what is served there.
pub(super) struct Place {
    pub(super) listening: Vec<Listening>,
    pub(super) router: Router,
}

/// Serves until it is told to end, and then until the requests under way are answered. By `tell` those that would go on hear of it.
pub(super) fn run(
    places: Vec<Place>,
    stop: Stop,
    (tell, told): (watch::Sender<bool>, watch::Receiver<bool>),
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        while !stop.is_told() {
            if stop.wait(Duration::from_hours(1)).is_err() {
                break;
            }
        }
        let _ = tell.send(true);
    })?;
    runtime.block_on(async {
        let mut all = Vec::new();
        let served = places.into_iter().flat_map(|Place { listening, router }| {
            // Each for itself: who fills up one place leaves the other to those who are there.
            let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
            all.push(Arc::clone(&places));
            let server = Server { router, places, told: told.clone() };
            listening.into_iter().map(move |listening| (server.clone(), listening))
        });
        for (server, listening) in served {
            match listening {
                Listening::Unix(listener) => {
                    listener.set_nonblocking(true)?;
                    let listener = UnixListener::from_std(listener)?;
                    tokio::spawn(server.accept(async move || listener.accept().await.map(|(stream, _)| stream)));
                }
                Listening::Tcp(listener) => {
                    listener.set_nonblocking(true)?;
                    let listener = TcpListener::from_std(listener)?;
                    tokio::spawn(server.accept(async move || listener.accept().await.map(|(stream, _)| stream)));
                }
            }
        }
        until(told).await;
        let each = u32::try_from(MOST_CONNECTIONS).unwrap_or(u32::MAX);
        let answered = async {
            for places in all {
                let _ = places.acquire_many(each).await;
            }
        };
        if timeout(LAST_GRACE, answered).await.is_err() {
            warn!(within = ?LAST_GRACE, "requests that took longer were cut off");
        }
        Ok(())
    })
}

/// Waits until the process is told to end.
async fn until(mut told: watch::Receiver<bool>) {
    // Where nobody can tell any more, it ends as well.
    let _ = told.wait_for(|told| *told).await;
}

#[derive(Clone)]
struct Server {
    router: Router,
    places: Arc<Semaphore>,
    told: watch::Receiver<bool>,
}

impl Server {
    async fn accept<S>(self, next: impl AsyncFn() -> io::Result<S>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let accepted = async {
            // Nobody closes the semaphore.
            while let Ok(place) = Arc::clone(&self.places).acquire_owned().await {
                match next().await {
                    Ok(stream) => {
                        tokio::spawn(self.clone().serve(stream, place));
                    }
                    Err(error) => {
                        warn!(%error, "a connection by HTTP cannot be accepted");
                        sleep(PAUSE).await;
                    }
                }
            }
        };
        tokio::select! {
            () = accepted => {}
            () = until(self.told.clone()) => {}
        }
    }

    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, place: OwnedSemaphorePermit) {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEAD);
        http.max_buf_size(LARGEST_HEAD).max_headers(MOST_HEADERS);
        let mut connection = pin!(http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(self.router)));
        let served = tokio::select! {
            served = connection.as_mut() => served,
            () = until(self.told) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = served {
            debug!(%error, "a connection by HTTP was cut off");
        }
        drop(place);
    }
}
