//! Requests: one for each try, under one deadline from the lookup of the host to the end of the answer. Redirects and proxies are
//! not used.

use super::connect::{Connector, MOST_LOOKUPS, Stream};
use super::request_failure::RequestFailure;
use crate::base::timestamp;
use crate::webhook::{Callback, RetryAfter, WebhookSecret, payload, sign};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{HOST, RETRY_AFTER};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant, SystemTime};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;
use uuid::Uuid;

/// How much of an answer is read, in bytes.
const LONGEST_ANSWER: usize = 16 << 10;
/// How long a connection is used before its host is looked up again, and how long an idle connection is kept.
const LONGEST_USE: Duration = Duration::from_mins(1);
const LONGEST_REST: Duration = Duration::from_secs(5);

/// One try of a notification, or of a verification request.
#[derive(Debug)]
pub(super) struct SendJob {
    pub(super) subscription: Uuid,
    /// The event's position; `None` for the verification request of a new callback.
    pub(super) position: Option<i64>,
    pub(super) callback: Callback,
    /// `evt_…`: the same in each try.
    pub(super) id: String,
    pub(super) body: String,
    pub(super) secrets: Vec<WebhookSecret>,
    /// The number of the try, from 1.
    pub(super) number: u32,
}

/// The result of a [`SendJob`].
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) subscription: Uuid,
    pub(super) position: Option<i64>,
    /// When the try began, in microseconds since 1970.
    pub(super) started_at: i64,
    pub(super) took: Duration,
    pub(super) answer: Result<ReceiverResponse, RequestFailure>,
}

/// A receiver's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReceiverResponse {
    pub(super) status: u16,
    pub(super) retry_after: Option<Duration>,
    /// The first bytes of the body.
    pub(super) body: Vec<u8>,
    /// Whether the receiver is in a network of ours; subscribers may learn nothing about it.
    pub(super) is_ours: bool,
}

/// Hands requests to the thread that sends them.
pub(super) struct Sender {
    jobs: UnboundedSender<SendJob>,
    pub(super) sent: mpsc::Receiver<Sent>,
}

impl Sender {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system provides no thread.
    pub(super) fn start(connector: Connector, at_most: Duration) -> std::io::Result<Self> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(MOST_LOOKUPS).build()?;
        let (jobs, taken) = unbounded_channel();
        let (done, sent) = mpsc::channel();
        std::thread::Builder::new()
            .name("sending".into())
            .spawn(move || run(runtime, connector, at_most, taken, done))?;
        Ok(Self { jobs, sent })
    }

    /// A sender that sends nothing, the channel for its answers, and the jobs that it was given.
    #[cfg(test)]
    pub(super) fn nowhere() -> (Self, mpsc::Sender<Sent>, UnboundedReceiver<SendJob>) {
        let ((jobs, taken), (done, sent)) = (unbounded_channel(), mpsc::channel());
        (Self { jobs, sent }, done, taken)
    }

    /// Hands over a request, whose result always arrives at [`sent`](Self::sent). Returns `false` if the thread has ended.
    pub(super) fn send(&self, job: SendJob) -> bool {
        self.jobs.send(job).is_ok()
    }
}

fn run(
    runtime: Runtime,
    connector: Connector,
    at_most: Duration,
    mut jobs: UnboundedReceiver<SendJob>,
    done: mpsc::Sender<Sent>,
) {
    let client = Arc::new(HttpClient { connector, idle: Mutex::default() });
    runtime.block_on(async {
        while let Some(job) = jobs.recv().await {
            let (client, done) = (Arc::clone(&client), done.clone());
            tokio::spawn(async move {
                let (started_at, began) = (timestamp::now(), Instant::now());
                let waits = AtomicBool::new(false);
                let answer = timeout(at_most, client.post(&job, &waits)).await;
                let answer = answer.unwrap_or_else(|_| {
                    let within = at_most.as_secs_f64();
                    Err(if waits.load(Ordering::Relaxed) {
                        RequestFailure::NotTried(format!("its host was not looked up within {within} s"))
                    } else {
                        RequestFailure::Failed(format!("no answer within {within} s"))
                    })
                });
                let SendJob { subscription, position, .. } = job;
                let took = began.elapsed();
                // Nobody receives this if the process is ending.
                let _ = done.send(Sent { subscription, position, started_at, took, answer });
            });
        }
    });
    // A resolver may block for any time, so this does not wait for it.
    runtime.shutdown_background();
}

/// An idle connection, for another request.
struct KeptConnection {
    sender: SendRequest<String>,
    is_ours: bool,
    opened: Instant,
    rests_since: Instant,
}

impl KeptConnection {
    /// Whether its host need not be looked up again yet, and its receiver has probably not closed the connection.
    fn is_fresh(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.opened) < LONGEST_USE
            && now.saturating_duration_since(self.rests_since) < LONGEST_REST
    }
}

/// The subscription that a connection serves, and its scheme, host and port. No request uses a connection that was opened for
/// another subscription, or for an earlier callback of the same one.
type ConnectionKey = (Uuid, String);

fn connection_key(job: &SendJob) -> ConnectionKey {
    (job.subscription, job.callback.origin())
}

struct HttpClient {
    connector: Connector,
    idle: Mutex<HashMap<ConnectionKey, Vec<KeptConnection>>>,
}

impl HttpClient {
    /// Sends one request and returns the answer. `waits` is true until the lookup of the host begins.
    async fn post(&self, job: &SendJob, waits: &AtomicBool) -> Result<ReceiverResponse, RequestFailure> {
        if let Some(connection) = self.idle_connection(&connection_key(job)) {
            // The receiver may have closed the connection meanwhile. In that case there is no answer, and a new connection is
            // opened.
            if let Ok(answer) = self.ask(connection, job).await {
                return Ok(answer);
            }
        }
        let (stream, is_ours) = self.connector.connect(&job.callback, waits).await?;
        let sender = handshake(stream).await?;
        let now = Instant::now();
        self.ask(KeptConnection { sender, is_ours, opened: now, rests_since: now }, job).await
    }

    fn idle_connection(&self, key: &ConnectionKey) -> Option<KeptConnection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        idle.retain(|_, connections| {
            connections.retain(|connection| connection.is_fresh(now) && !connection.sender.is_closed());
            !connections.is_empty()
        });
        idle.get_mut(key)?.pop()
    }

    async fn ask(&self, mut connection: KeptConnection, job: &SendJob) -> Result<ReceiverResponse, RequestFailure> {
        connection.sender.ready().await.map_err(failed)?;
        let response = connection.sender.send_request(request(job)?).await.map_err(failed)?;
        let status = response.status().as_u16();
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after = retry_after.and_then(|text| RetryAfter::read(text, SystemTime::now()));
        let is_ours = connection.is_ours;
        let (body, whole) = read(response).await;
        let answer = ReceiverResponse { status, retry_after, body, is_ours };
        if !whole {
            return Ok(answer);
        }
        if connection.sender.ready().await.is_ok() {
            connection.rests_since = Instant::now();
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.entry(connection_key(job)).or_default().push(connection);
        }
        Ok(answer)
    }
}

fn failed(error: hyper::Error) -> RequestFailure {
    RequestFailure::Failed(format!("HTTP: {error}"))
}

async fn handshake(stream: Box<dyn Stream>) -> Result<SendRequest<String>, RequestFailure> {
    let mut http = http1::Builder::new();
    http.max_buf_size(LONGEST_ANSWER);
    let (sender, connection) = http.handshake(TokioIo::new(stream)).await.map_err(failed)?;
    // The task ends when its sender is dropped. The sender reports the errors.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(sender)
}

fn request(job: &SendJob) -> Result<Request<String>, RequestFailure> {
    let seconds = timestamp::now() / 1_000_000;
    let mut request = Request::builder().method(Method::POST).uri(job.callback.path());
    request = request.header(HOST, job.callback.authority());
    for (name, value) in payload::headers(&job.id, job.subscription) {
        request = request.header(name, value);
    }
    request
        .header("webhook-timestamp", seconds)
        .header("webhook-signature", sign(&job.secrets, &job.id, seconds, &job.body))
        .header("maildrop-attempt", job.number)
        .body(job.body.clone())
        .map_err(|error| RequestFailure::Failed(format!("the request cannot be written: {error}")))
}

/// The first bytes of an answer, and whether they are the whole answer.
async fn read(mut response: Response<Incoming>) -> (Vec<u8>, bool) {
    let mut read = Vec::new();
    let body = response.body_mut();
    loop {
        match poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await {
            None => return (read, true),
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    let room = LONGEST_ANSWER - read.len();
                    read.extend(data.iter().take(room));
                    if data.len() > room {
                        return (read, false);
                    }
                }
            }
            Some(Err(_)) => return (read, false),
        }
    }
}

#[cfg(test)]
mod tests;
