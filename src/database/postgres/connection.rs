//! A connection to PostgreSQL, driven by the calling thread. The blocking client of the same library cannot limit the wait
//! for an answer, and hides the parameters that the server reports when it greets us.

use crate::database::unsupported_products;
use postgres::error::DbError;
use std::future::{self, Future};
use std::io;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{AsyncMessage, Client, Config, Error, Socket};

/// How long disconnecting may take.
const FAREWELL: Duration = Duration::from_secs(1);

/// Parameters that the server reports, from version 14 on, when it greets us and whenever they change (PostgreSQL manual,
/// "Asynchronous Operations"). The library libpq uses the same two if `target_session_attrs` is `read-write`.
const READ_ONLY: [&str; 2] = ["in_hot_standby", "default_transaction_read_only"];

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Failed {
    Said(Error),
    /// The server did not answer for this long, and the connection was given up.
    Silent(Duration),
    GivenUp,
    /// This machine lacks the resources for another connection.
    Local(io::Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Said(error)
    }
}

/// The socket's side of the connection.
trait Traffic {
    fn poll_message(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<AsyncMessage, Error>>>;
    fn parameter(&self, name: &str) -> Option<&str>;
}

impl<S, T> Traffic for tokio_postgres::Connection<S, T>
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    fn poll_message(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<AsyncMessage, Error>>> {
        Self::poll_message(self, context)
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        Self::parameter(self, name)
    }
}

pub(super) struct PostgresConnection {
    runtime: Runtime,
    /// `None` once it was given up.
    client: Option<Client>,
    line: Line,
}

impl PostgresConnection {
    /// Connects to the first address of `config` that answers, and authenticates, all within `silence`.
    pub(super) fn open<T>(config: &Config, tls: T, silence: Option<Duration>) -> Result<Self, Failed>
    where
        T: MakeTlsConnect<Socket>,
        T::Stream: Send + 'static,
    {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(Failed::Local)?;
        let opening = config.connect(tls);
        let (client, traffic) = match silence {
            None => runtime.block_on(opening)?,
            Some(silence) => {
                let opening = async { timeout(silence, opening).await };
                runtime.block_on(opening).map_err(|_| Failed::Silent(silence))??
            }
        };
        let line = Line { traffic: Box::new(traffic), notices: Vec::new(), ended: false };
        Ok(Self { runtime, client: Some(client), line })
    }

    /// Runs `ask`, and waits for the answer, for at most `limit` if there is one.
    pub(super) fn ask<T>(
        &mut self,
        limit: Option<Duration>,
        ask: impl AsyncFnOnce(&Client) -> Result<T, Error>,
    ) -> Result<T, Failed> {
        let Some(client) = &self.client else { return Err(Failed::GivenUp) };
        let line = &mut self.line;
        let answered = async {
            let mut asked = pin!(ask(client));
            future::poll_fn(|context| match line.read(context) {
                Err(error) => Poll::Ready(Err(error)),
                Ok(()) => asked.as_mut().poll(context),
            })
            .await
        };
        let Some(limit) = limit else { return Ok(self.runtime.block_on(answered)?) };
        match self.runtime.block_on(async { timeout(limit, answered).await }) {
            Ok(answered) => Ok(answered?),
            Err(_) => {
                // A late answer must not be taken for that to another statement, so the connection is given up.
                self.client = None;
                Err(Failed::Silent(limit))
            }
        }
    }

    /// Reads what has arrived, without waiting. Fails if the server has ended the session.
    pub(super) fn poll_incoming(&mut self) -> Result<(), Failed> {
        let line = &mut self.line;
        let notices = async {
            // Lets the runtime poll the socket.
            tokio::task::yield_now().await;
            future::poll_fn(|context| Poll::Ready(line.read(context))).await
        };
        Ok(self.runtime.block_on(notices)?)
    }

    /// The server's notices since the last call.
    pub(super) fn notices(&mut self) -> Vec<DbError> {
        std::mem::take(&mut self.line.notices)
    }

    /// The product, if the server has reported that it is not PostgreSQL itself.
    pub(super) fn unsupported_product(&self) -> Option<&'static str> {
        unsupported_products::detect_from_parameters(|name| self.line.traffic.parameter(name))
    }

    /// Whether the server has reported that it takes no writes. Versions before 14 do not report it.
    pub(super) fn reports_read_only(&self) -> bool {
        READ_ONLY.iter().any(|name| self.line.traffic.parameter(name) == Some("on"))
    }
}

/// The incoming side of the connection.
struct Line {
    traffic: Box<dyn Traffic + Send>,
    notices: Vec<DbError>,
    ended: bool,
}

impl Line {
    /// Reads and writes as far as possible without waiting. If the connection ends with an error, that error is returned
    /// once.
    fn read(&mut self, context: &mut Context<'_>) -> Result<(), Error> {
        while !self.ended {
            match self.traffic.poll_message(context) {
                Poll::Ready(Some(Ok(AsyncMessage::Notice(notice)))) => self.notices.push(notice),
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(error))) => {
                    self.ended = true;
                    return Err(error);
                }
                Poll::Ready(None) => self.ended = true,
                Poll::Pending => break,
            }
        }
        Ok(())
    }
}

impl Drop for PostgresConnection {
    /// Terminates the session, so that the server releases a lock at once.
    fn drop(&mut self) {
        if self.client.take().is_none() {
            return;
        }
        let line = &mut self.line;
        let farewell = future::poll_fn(|context| match line.read(context) {
            Ok(()) if !line.ended => Poll::Pending,
            Ok(()) | Err(_) => Poll::Ready(()),
        });
        // If this does not succeed in time, the kernel ends the connection.
        drop(self.runtime.block_on(async { timeout(FAREWELL, farewell).await }));
    }
}
