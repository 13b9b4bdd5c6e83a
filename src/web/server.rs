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
            let server = Server::of(router, told.clone());
            all.push(Arc::clone(&server.places));
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
    /// At one place. Each for itself: who fills up one leaves the other to those who are there.
    fn of(router: Router, told: watch::Receiver<bool>) -> Self {
        Self { router, places: Arc::new(Semaphore::new(MOST_CONNECTIONS)), told }
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::sync::{Mutex, mpsc};

    /// As docs/api.md has it.
    const MOST: usize = 256;

    /// A place that is served, and its socket's queue.
    struct Served {
        queue: mpsc::UnboundedSender<DuplexStream>,
        accepted: Arc<AtomicUsize>,
    }

    impl Served {
        fn begin(told: &watch::Receiver<bool>) -> Self {
            let (queue, waiting) = mpsc::unbounded_channel();
            let accepted = Arc::new(AtomicUsize::new(0));
            let (waiting, count) = (Mutex::new(waiting), Arc::clone(&accepted));
            let server = Server::of(Router::new().route("/", get(|| async { "here" })), told.clone());
            tokio::spawn(server.accept(async move || {
                let stream = waiting.lock().await.recv().await.ok_or(io::ErrorKind::BrokenPipe)?;
                count.fetch_add(1, Ordering::Relaxed);
                Ok(stream)
            }));
            Self { queue, accepted }
        }

        fn connect(&self) -> DuplexStream {
            let (near, far) = duplex(1 << 12);
            self.queue.send(far).unwrap();
            near
        }

        fn accepted(&self) -> usize {
            self.accepted.load(Ordering::Relaxed)
        }
    }

    async fn ask(connection: &mut DuplexStream) {
        connection.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    }

    async fn is_answered(connection: &mut DuplexStream) {
        let mut said = Vec::new();
        while !said.ends_with(b"here") {
            assert!(connection.read_buf(&mut said).await.unwrap() > 0, "{}", String::from_utf8_lossy(&said));
        }
    }

    #[test]
    fn who_comes_when_256_are_connected_waits_until_one_has_gone_and_at_the_other_place_does_not() {
        // No time passes while anything is to be done: nobody is late, however busy the machine is.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let (_tell, told) = watch::channel(false);
            let (page, api) = (Served::begin(&told), Served::begin(&told));
            let mut all: Vec<DuplexStream> = (0..MOST).map(|_| page.connect()).collect();
            let mut last = page.connect();
            ask(&mut last).await;
            // Twice: by the second time whoever could be accepted has been.
            for _ in 0..2 {
                for connection in &mut all {
                    ask(connection).await;
                    is_answered(connection).await;
                }
            }
            assert_eq!(page.accepted(), MOST);
            let mut there = api.connect();
            ask(&mut there).await;
            is_answered(&mut there).await;

            all.pop();
            is_answered(&mut last).await;
            assert_eq!(page.accepted(), MOST + 1);
        });
    }
}
