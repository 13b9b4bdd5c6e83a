//! HTTP connections: limits on their number, and on the time and size of a request's head.

use crate::base::http_connections::{ConnectionSlot, ProgressStream, SEND_BUFFER, Slots};
use crate::base::listener::Listener;
use crate::base::stop::Stop;
use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt::set_socket_send_buffer_size;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

/// How many connections are served at once, for each listening endpoint.
const MOST_CONNECTIONS: usize = 256;
/// The pause after the system could not accept a connection: it is out of file descriptors, or of memory.
const PAUSE: Duration = Duration::from_millis(200);
/// How long the head of a request may take to arrive, and how long a connection may be idle between two requests.
const HEAD: Duration = Duration::from_secs(30);
/// How large the head may be, in bytes, and in header fields.
const LARGEST_HEAD: usize = 32 << 10;
const MOST_HEADERS: usize = 64;
/// How long requests in progress may take after the stop signal.
const LAST_GRACE: Duration = Duration::from_secs(10);

/// The listeners of one endpoint, and the router that serves it.
pub(super) struct WebEndpoint {
    pub(super) listening: Vec<Listener>,
    pub(super) router: Router,
}

/// Serves until the stop signal, then until the requests in progress are answered and the work that they started has ended.
pub(super) fn run(places: Vec<WebEndpoint>, stop: Stop, end: impl Future<Output = ()>) -> io::Result<()> {
    let (stop_sender, stopping) = watch::channel(false);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        while !stop.is_requested() {
            if stop.wait(Duration::from_hours(1)).is_err() {
                break;
            }
        }
        let _ = stop_sender.send(true);
    })?;
    runtime.block_on(async {
        let mut all = Vec::new();
        let served = places.into_iter().flat_map(|WebEndpoint { listening, router }| {
            let server = WebServer::of(router, stopping.clone());
            all.push(Arc::clone(&server.slots));
            listening.into_iter().map(move |listening| (server.clone(), listening))
        });
        for (server, listening) in served {
            match listening {
                Listener::Unix(listener) => {
                    listener.set_nonblocking(true)?;
                    let listener = UnixListener::from_std(listener)?;
                    tokio::spawn(
                        server.accept(async move || listener.accept().await.map(|(stream, _)| (stream, None))),
                    );
                }
                Listener::Tcp(listener) => {
                    listener.set_nonblocking(true)?;
                    // A connection inherits the size from its listening socket.
                    set_socket_send_buffer_size(&listener, SEND_BUFFER)?;
                    let listener = TcpListener::from_std(listener)?;
                    let next = async move || listener.accept().await.map(|(stream, peer)| (stream, Some(peer.ip())));
                    tokio::spawn(server.accept(next));
                }
            }
        }
        until(stopping).await;
        let answered = async {
            for slots in all {
                slots.are_free().await;
            }
        };
        if timeout(LAST_GRACE, answered).await.is_err() {
            warn!(within = ?LAST_GRACE, "requests that took longer were cut off");
        }
        end.await;
        Ok(())
    })
}

/// Waits for the stop signal.
async fn until(mut stopping: watch::Receiver<bool>) {
    // If the signal thread has ended, the server stops as well.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

#[derive(Clone)]
struct WebServer {
    router: Router,
    slots: Arc<Slots>,
    stopping: watch::Receiver<bool>,
}

impl WebServer {
    /// Serves one endpoint. Each endpoint has its own slots, so that a client that fills one does not block the other.
    fn of(router: Router, stopping: watch::Receiver<bool>) -> Self {
        Self { router, slots: Slots::new(MOST_CONNECTIONS), stopping }
    }

    async fn accept<S>(self, next: impl AsyncFn() -> io::Result<(S, Option<IpAddr>)>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let accepted = async {
            loop {
                match next().await {
                    Ok((stream, peer)) => {
                        let slot = self.slots.admit(peer).await;
                        tokio::spawn(self.clone().serve(stream, slot));
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
            () = until(self.stopping.clone()) => {}
        }
    }

    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, mut slot: ConnectionSlot) {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEAD);
        http.max_buf_size(LARGEST_HEAD).max_headers(MOST_HEADERS);
        let (router, by) = (TowerToHyperService::new(self.router), slot.connection());
        let service = service_fn(move |mut request: Request<Incoming>| {
            by.begins();
            request.extensions_mut().insert(by.clone());
            let answer = router.call(request);
            // A client with many pipelined requests has one of them answered for each turn of the other clients.
            async move {
                tokio::task::yield_now().await;
                answer.await
            }
        });
        let mut connection = pin!(http.serve_connection(TokioIo::new(ProgressStream::of(stream)), service));
        let served = async {
            tokio::select! {
                served = connection.as_mut() => served,
                () = until(self.stopping) => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        };
        tokio::select! {
            served = served => {
                if let Err(error) = served {
                    debug!(%error, "a connection by HTTP was cut off");
                }
            }
            () = slot.is_lost() => debug!("a connection by HTTP has given way to another one"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::http_connections::HttpConnection;
    use axum::Extension;
    use axum::extract::Path;
    use axum::routing::get;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::sync::{Mutex, mpsc};

    /// As documented in docs/api.md.
    const MOST: usize = 256;
    /// An answer of this many bytes is more than the connection's buffer holds.
    const LONG: usize = 1 << 16;

    /// An endpoint that is served, and the queue of its incoming connections.
    struct Served {
        queue: mpsc::UnboundedSender<DuplexStream>,
        accepted: Arc<AtomicUsize>,
    }

    impl Served {
        fn begin(stopping: &watch::Receiver<bool>) -> Self {
            let (queue, waiting) = mpsc::unbounded_channel();
            let accepted = Arc::new(AtomicUsize::new(0));
            let (waiting, count) = (Mutex::new(waiting), Arc::clone(&accepted));
            let login = async |Extension(connection): Extension<HttpConnection>, Path(number): Path<u16>| {
                let mut login = [0; 32];
                login[..2].copy_from_slice(&number.to_be_bytes());
                connection.has_login(login);
                "here"
            };
            let router = Router::new().route("/", get(|| async { "here" })).route("/login/{number}", get(login));
            let server = WebServer::of(router.route("/long", get(|| async { vec![0; LONG] })), stopping.clone());
            tokio::spawn(server.accept(async move || {
                let stream = waiting.lock().await.recv().await.ok_or(io::ErrorKind::BrokenPipe)?;
                count.fetch_add(1, Ordering::Relaxed);
                Ok((stream, None))
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
        ask_for(connection, "/").await;
    }

    async fn ask_for(connection: &mut DuplexStream, path: &str) {
        connection.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
    }

    async fn the_third_has_given_way(all: &mut [DuplexStream]) {
        assert_eq!(all[2].read_to_end(&mut Vec::new()).await.unwrap(), 0);
        for connection in [0, 1, 3] {
            ask(&mut all[connection]).await;
            is_answered(&mut all[connection]).await;
        }
    }

    async fn is_answered(connection: &mut DuplexStream) {
        let mut collected = Vec::new();
        while !collected.ends_with(b"here") {
            assert!(connection.read_buf(&mut collected).await.unwrap() > 0, "{}", String::from_utf8_lossy(&collected));
        }
    }

    /// Time is paused while any task is ready, so that no timeout depends on the load of the machine.
    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(test);
    }

    /// Sends requests, and reads nothing, until no more of them are accepted.
    async fn stuff(connection: &mut DuplexStream) {
        let requests = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(10_000);
        let taken = timeout(Duration::from_secs(1), connection.write_all(&requests)).await;
        assert!(taken.is_err(), "so many answers that nobody reads");
    }

    #[test]
    fn clients_that_send_requests_and_read_nothing_give_way_to_who_reads() {
        run(async {
            let (_tell, stopping) = watch::channel(false);
            let page = Served::begin(&stopping);
            let mut all = Vec::new();
            for _ in 0..MOST {
                all.push(page.connect());
                stuff(all.last_mut().unwrap()).await;
            }
            let mut honest = page.connect();
            ask(&mut honest).await;
            timeout(Duration::from_secs(10), is_answered(&mut honest)).await.expect("there is a slot for it");
        });
    }

    #[test]
    fn a_client_that_reads_nothing_is_cut_off_and_one_that_reads_slowly_is_not() {
        run(async {
            let (_tell, stopping) = watch::channel(false);
            let page = Served::begin(&stopping);
            let mut silent = page.connect();
            stuff(&mut silent).await;
            sleep(Duration::from_mins(3)).await;
            let mut answers = Vec::new();
            let ended = timeout(Duration::from_mins(1), silent.read_to_end(&mut answers)).await;
            ended.expect("it is cut off").unwrap();
            assert!(answers.len() < 1 << 14, "{}: what it was sent before", answers.len());

            let mut slow = page.connect();
            slow.write_all(b"GET /long HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
            let (mut read, mut piece) = (0, vec![0; 1 << 11]);
            loop {
                sleep(Duration::from_mins(1)).await;
                match slow.read(&mut piece).await.unwrap() {
                    0 => break,
                    length => read += length,
                }
            }
            assert!(read > LONG, "{read}: all of it has come");
        });
    }

    #[test]
    fn who_comes_when_256_are_connected_gets_the_place_of_the_one_who_waits_longest_without_a_login() {
        run(async {
            let (_tell, stopping) = watch::channel(false);
            let (page, api) = (Served::begin(&stopping), Served::begin(&stopping));
            let mut all: Vec<DuplexStream> = (0..MOST).map(|_| page.connect()).collect();
            for (number, connection) in all.iter_mut().enumerate() {
                let path = if number < 2 { "/login/1" } else { "/" };
                ask_for(connection, path).await;
                is_answered(connection).await;
            }
            assert_eq!(page.accepted(), MOST);
            let mut there = api.connect();
            ask(&mut there).await;
            is_answered(&mut there).await;

            let mut last = page.connect();
            ask(&mut last).await;
            is_answered(&mut last).await;
            the_third_has_given_way(&mut all).await;
        });
    }

    #[test]
    fn a_login_that_has_most_connections_keeps_no_other_one_out() {
        run(async {
            let (_tell, stopping) = watch::channel(false);
            let page = Served::begin(&stopping);
            let mut all: Vec<DuplexStream> = (0..MOST).map(|_| page.connect()).collect();
            for (number, connection) in all.iter_mut().enumerate() {
                let login = if number < 2 { number } else { 2 };
                ask_for(connection, &format!("/login/{login}")).await;
                is_answered(connection).await;
            }
            let mut last = page.connect();
            ask_for(&mut last, "/login/3").await;
            is_answered(&mut last).await;
            the_third_has_given_way(&mut all).await;
        });
    }

    #[test]
    fn where_each_has_a_login_who_comes_waits_until_one_has_gone() {
        run(async {
            let (_tell, stopping) = watch::channel(false);
            let page = Served::begin(&stopping);
            let mut all: Vec<DuplexStream> = (0..MOST).map(|_| page.connect()).collect();
            for (number, connection) in all.iter_mut().enumerate() {
                ask_for(connection, &format!("/login/{number}")).await;
                is_answered(connection).await;
            }
            let mut last = page.connect();
            ask(&mut last).await;
            assert!(timeout(Duration::from_secs(10), is_answered(&mut last)).await.is_err());
            all.pop();
            is_answered(&mut last).await;
        });
    }
}
