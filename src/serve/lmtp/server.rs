//! The server: takes connections, and leads a session on each.

use super::access::{Access, SECURED};
use super::conversation::{Ending, Limits, Surroundings};
use super::listening::{Connection, Listener, Listening, accept};
use super::session::{Session, Settings};
use crate::base::tls::TlsError;
use crate::config::Config;
use crate::serve::handed::Handed;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::io::AsyncWriteExt;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{debug, error, warn};

/// How long nothing is accepted after the system has refused to: it is out of file descriptors, or of memory.
const PAUSE: Duration = Duration::from_millis(200);

/// The LMTP server, before it runs.
pub struct Server {
    listening: Vec<Listening>,
    settings: Arc<Settings>,
    access: Access,
    limits: Limits,
    max_connections: usize,
}

/// Why there is no server.
#[derive(Debug, Error)]
pub enum CannotServe {
    #[error("TLS: {0}")]
    Tls(String),
    #[error("{directory}: {error}")]
    Spool { directory: String, error: io::Error },
}

impl From<TlsError> for CannotServe {
    fn from(error: TlsError) -> Self {
        Self::Tls(error.to_string())
    }
}

impl Server {
    /// A server on these sockets. It makes the folder for large messages, and empties it.
    ///
    /// # Errors
    /// Where that cannot be done, or a certificate cannot be read.
    pub fn new(config: &Config, host: String, listening: Vec<Listening>) -> Result<Self, CannotServe> {
        let settings = Settings::new(config, host);
        settings
            .spool
            .prepare()
            .map_err(|error| CannotServe::Spool { directory: settings.spool.directory.display().to_string(), error })?;
        Ok(Self {
            listening,
            settings: Arc::new(settings),
            access: Access::new(&config.serve)?,
            limits: Limits::default(),
            max_connections: config.serve.max_connections as usize,
        })
    }

    /// Serves until `stop` says true (or nobody is left who could say so), and then until each message that has been begun has been
    /// answered. Messages go to `hand_out`.
    ///
    /// The sockets stay open up to the end: who connects meanwhile waits for whoever serves them next.
    ///
    /// # Errors
    /// Where the system does not let us wait for connections.
    pub async fn run(self, hand_out: mpsc::Sender<Handed>, stop: watch::Receiver<bool>) -> io::Result<()> {
        let Self { listening, settings, access, limits, max_connections } = self;
        let listeners = listening.into_iter().map(Listener::new).collect::<io::Result<Vec<_>>>()?;
        let guide = Arc::new(Guide { settings, access });
        let surroundings = Surroundings { limits, hand_out, stop: stop.clone() };
        let free = Arc::new(Semaphore::new(max_connections));
        let mut sessions = JoinSet::new();
        let mut stop = stop;
        for turn in 0.. {
            // Past the limit nobody is accepted until a session ends. A 421, or a connection that is closed, would count for Postfix
            // as a failure of the whole site; one that waits in the socket's queue does not.
            let next = async {
                let place = free.clone().acquire_owned().await;
                (place, accept(&listeners, turn).await)
            };
            let (place, accepted) = tokio::select! {
                // Once we are to stop, nobody is taken from the socket's queue.
                biased;
                _ = stop.wait_for(|stop| *stop) => break,
                Some(ended) = sessions.join_next() => {
                    report(ended);
                    continue;
                }
                next = next => next,
            };
            match (place, accepted) {
                (Ok(place), Ok(connection)) => {
                    let (guide, surroundings) = (guide.clone(), surroundings.clone());
                    sessions.spawn(async move {
                        let _place = place;
                        guide.lead(connection, surroundings).await;
                    });
                }
                (_, Err(error)) => {
                    warn!(%error, "a connection cannot be accepted");
                    sleep(PAUSE).await;
                }
                // Nobody closes the semaphore.
                (Err(_), Ok(_)) => break,
            }
        }
        while let Some(ended) = sessions.join_next().await {
            report(ended);
        }
        drop(listeners);
        Ok(())
    }
}

/// A session that panics takes its connection with it, and nothing else.
fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        error!(%error, "an LMTP session has failed");
    }
}

/// What each session is led by.
struct Guide {
    settings: Arc<Settings>,
    access: Access,
}

impl Guide {
    async fn lead(&self, connection: Connection, mut surroundings: Surroundings) {
        let address = connection.address();
        // A client that goes away is no news, and what it had handed over is delivered.
        if let Err(error) = self.try_to_lead(connection, &mut surroundings).await {
            debug!(?address, %error, "an LMTP session was cut off");
        }
    }

    async fn try_to_lead(&self, mut connection: Connection, surroundings: &mut Surroundings) -> io::Result<()> {
        let address = connection.address();
        let Some(admission) = self.access.admit(address) else {
            warn!(
                ?address,
                "a client is sent away: it is none of serve.lmtp_clients, and there is no serve.client_ca_file"
            );
            connection.write_all(b"421 4.7.1 This server is not for you\r\n").await?;
            return connection.shutdown().await;
        };
        if let Connection::Tcp(stream, _) = &connection {
            stream.set_nodelay(true)?;
        }
        let mut session = Session::new(self.settings.clone(), admission.client);
        if surroundings.converse(&mut connection, &mut session).await? == Ending::Over {
            return Ok(());
        }
        let Some(tls) = admission.tls else { return Ok(()) };
        let mut stream = timeout(surroundings.limits.tls, tls.accept(connection)).await??;
        session.secured(SECURED);
        surroundings.converse(&mut stream, &mut session).await.map(|_| ())
    }
}
