//! Connections of an HTTP server: the limit on their number, the rule which connection gives way to a new one, and the time limit
//! for a client that reads nothing.
//!
//! Addresses do not distinguish clients here: the web UI and the API listen on this machine only, and a proxy in front connects
//! all clients from one address. So what their requests have shown distinguishes connections.
//!
//! Among those without a valid login, the one that has waited longest for its client is closed. If every connection has shown a
//! login, the login with the most connections loses one, so that no login keeps another one out.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, Sleep, sleep, timeout};

/// The minimum time for which a connection has its slot. A client sends its request well within this time.
const LEAST_TIME: Duration = Duration::from_millis(250);
/// How long a client may accept no byte of an answer. Even at a kilobyte a second, the buffers of the system (`SEND_BUFFER`)
/// accept more well within this time.
const WITHOUT_PROGRESS: Duration = Duration::from_mins(2);
/// How many bytes of an answer the system buffers for each connection. Linux reports free space only once a part of the buffer is
/// sent. With its default of megabytes, a slow client would seem to accept nothing for minutes (tcp(7)).
pub(crate) const SEND_BUFFER: usize = 64 << 10;

/// The limit on connections that are open at once.
pub(crate) struct Slots {
    most: usize,
    taken: Mutex<SlotsTaken>,
    freed: Notify,
}

#[derive(Default)]
struct SlotsTaken {
    last: u64,
    by: HashMap<u64, Holder>,
}

struct Holder {
    /// Since when the connection waits for its client.
    since: Instant,
    last_request: LastRequest,
    /// Dropping this ends the connection.
    _may_stay: oneshot::Sender<()>,
}

/// What the last request of a connection has shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LastRequest {
    Nothing,
    /// The server works on the request, so the client need not do anything.
    BeingAnswered,
    Login(Login),
}

/// Distinguishes logins, such as the digest of a token.
pub(crate) type Login = [u8; 32];

/// A slot for one connection, until this is dropped.
pub(crate) struct ConnectionSlot {
    connection: HttpConnection,
    may_stay: oneshot::Receiver<()>,
}

/// The connection on which a request came.
#[derive(Clone)]
pub(crate) struct HttpConnection {
    slots: Arc<Slots>,
    number: u64,
    /// `None` for a unix socket.
    pub(crate) peer: Option<IpAddr>,
}

/// Marks that the server works on a request, until this is dropped.
pub(crate) struct RequestInProgress<'a>(&'a HttpConnection);

impl Slots {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, taken: Mutex::default(), freed: Notify::new() })
    }

    /// A slot for a new connection, once one is free.
    pub(crate) async fn admit(self: &Arc<Self>, peer: Option<IpAddr>) -> ConnectionSlot {
        loop {
            if let Some(slot) = self.try_admit(peer) {
                return slot;
            }
            // A timeout is no failure: another connection may have had its slot for long enough by then.
            let _ = timeout(LEAST_TIME, self.freed.notified()).await;
        }
    }

    fn try_admit(self: &Arc<Self>, peer: Option<IpAddr>) -> Option<ConnectionSlot> {
        let (mut taken, now) = (self.taken(), Instant::now());
        if taken.by.len() >= self.most {
            let (number, since) = taken.connection_to_close()?;
            if now.saturating_duration_since(since) < LEAST_TIME {
                return None;
            }
            taken.by.remove(&number);
        }
        taken.last += 1;
        let (number, (stays, may_stay)) = (taken.last, oneshot::channel());
        taken.by.insert(number, Holder { since: now, last_request: LastRequest::Nothing, _may_stay: stays });
        Some(ConnectionSlot { connection: HttpConnection { slots: Arc::clone(self), number, peer }, may_stay })
    }

    pub(crate) async fn are_free(&self) {
        while !self.taken().by.is_empty() {
            self.freed.notified().await;
        }
    }

    fn taken(&self) -> MutexGuard<'_, SlotsTaken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SlotsTaken {
    fn connection_to_close(&self) -> Option<(u64, Instant)> {
        self.longest(LastRequest::Nothing).or_else(|| {
            let mut held: HashMap<Login, usize> = HashMap::new();
            for holder in self.by.values() {
                if let LastRequest::Login(login) = holder.last_request {
                    *held.entry(login).or_default() += 1;
                }
            }
            let (login, _) =
                held.into_iter().filter(|(_, count)| *count > 1).max_by_key(|(login, count)| (*count, *login))?;
            self.longest(LastRequest::Login(login))
        })
    }

    /// The connection that has been in this state for longest.
    fn longest(&self, last_request: LastRequest) -> Option<(u64, Instant)> {
        let these = self.by.iter().filter(|(_, holder)| holder.last_request == last_request);
        these.map(|(number, holder)| (*number, holder.since)).min_by_key(|(number, since)| (*since, *number))
    }
}

impl ConnectionSlot {
    pub(crate) fn connection(&self) -> HttpConnection {
        self.connection.clone()
    }

    /// Returns once another connection has taken the slot.
    pub(crate) async fn is_lost(&mut self) {
        // Nothing is ever sent.
        let _ = (&mut self.may_stay).await;
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let HttpConnection { slots, number, .. } = &self.connection;
        slots.taken().by.remove(number);
        slots.freed.notify_one();
    }
}

impl HttpConnection {
    /// A new request has shown nothing yet: another client of the same proxy may have sent it.
    pub(crate) fn begins(&self) {
        self.note_request(LastRequest::Nothing);
    }

    /// The connection keeps its slot while the server works on its request.
    pub(crate) fn considered(&self) -> RequestInProgress<'_> {
        self.note_request(LastRequest::BeingAnswered);
        RequestInProgress(self)
    }

    pub(crate) fn has_login(&self, login: Login) {
        self.note_request(LastRequest::Login(login));
    }

    fn note_request(&self, last_request: LastRequest) {
        if let Some(holder) = self.slots.taken().by.get_mut(&self.number) {
            (holder.last_request, holder.since) = (last_request, Instant::now());
        }
    }
}

impl Drop for RequestInProgress<'_> {
    fn drop(&mut self) {
        let Self(HttpConnection { slots, number, .. }) = self;
        if let Some(holder) =
            slots.taken().by.get_mut(number).filter(|it| it.last_request == LastRequest::BeingAnswered)
        {
            (holder.last_request, holder.since) = (LastRequest::Nothing, Instant::now());
        }
    }
}

/// A stream that fails once its client has accepted nothing for too long.
pub(crate) struct ProgressStream<S> {
    stream: S,
    /// Runs from the moment when the stream accepts no more bytes.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S: Unpin> ProgressStream<S> {
    pub(crate) fn of(stream: S) -> Self {
        Self { stream, stalled: None }
    }

    fn written<T>(
        &mut self,
        context: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let written = write(Pin::new(&mut self.stream), context);
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(WITHOUT_PROGRESS)));
        stalled.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ProgressStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ProgressStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.written(context, |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.written(context, |stream, context| stream.poll_write_vectored(context, bytes))
    }

    /// If this is `true`, hyper does not start an answer before the previous one is written.
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
