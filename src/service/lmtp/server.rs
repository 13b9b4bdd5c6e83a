//! The server: accepts connections, and runs a session on each.

use super::access::Access;
use super::conversation::{SessionContext, SessionEnd, TLS};
use super::counters::LmtpTally;
use super::listener::{Connection, Listener};
use super::session::{LmtpSession, Settings, StartTls};
use super::unauthenticated_limit::UnauthenticatedClients;
use crate::base::listener::Listener as Open;
use crate::config::Config;
use crate::service::error::ServiceError;
use crate::service::inflight_message::InflightMessage;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::either::Either;
use tracing::{debug, warn};

/// The pause after a connection could not be accepted, because of a lack of file descriptors or memory.
const PAUSE: Duration = Duration::from_millis(200);

/// One in this many TCP connections may belong to a client that has not presented its certificate yet: anybody can open those.
const STRANGERS: usize = 4;

/// How long such a client may take to present its certificate.
const STRANGERS_TIME: Duration = Duration::from_mins(1);

/// The LMTP server, before it runs.
pub struct LmtpServer {
    listening: Vec<Open>,
    settings: Arc<Settings>,
    access: Access,
    max_connections: usize,
}

impl LmtpServer {
    /// A server on these sockets. Creates the folder for large messages, and empties it.
    ///
    /// # Errors
    /// If the folder cannot be created or emptied, or if a certificate cannot be read.
    pub fn new(config: &Config, host: String, listening: Vec<Open>) -> Result<Self, ServiceError> {
        let settings = Settings::new(config, host);
        settings.spool.prepare().map_err(ServiceError::file("preparing the directory", &settings.spool.directory))?;
        Ok(Self {
            listening,
            settings: Arc::new(settings),
            access: Access::new(&config.service)?,
            max_connections: config.service.max_connections as usize,
        })
    }

    /// The server's counters.
    pub fn tally(&self) -> LmtpTally {
        self.settings.tally.clone()
    }

    /// The limit on connections at once, for the sockets of each kind.
    pub fn max_connections(&self) -> usize {
        self.max_connections
    }

    /// Serves until `stop` is true, or its sender is dropped. Then the messages in progress are still answered. Messages go to
    /// `submissions`.
    ///
    /// The master holds the sockets too: a client that connects after `stop` waits for the next process that serves them.
    ///
    /// # Errors
    /// If the system cannot wait for connections on these sockets.
    pub async fn run(self, submissions: mpsc::Sender<InflightMessage>, stop: watch::Receiver<bool>) -> io::Result<()> {
        let Self { listening, settings, access, max_connections } = self;
        let strangers = UnauthenticatedClients::new(places_of_strangers(max_connections));
        let handler = Arc::new(SessionHandler { settings, access, strangers });
        let context = SessionContext { submissions, stop };
        // Each kind of socket has its own limit, so clients from other machines cannot keep out those on this one. A listener holds
        // one of the permits while it waits, which is not to keep out clients of the others.
        let is_unix = |open: &Open| matches!(open, Open::Unix(_));
        let permits = [true, false].map(|kind| {
            let listeners = listening.iter().filter(|open| is_unix(open) == kind).count();
            max_connections + listeners.saturating_sub(1)
        });
        let [unix, tcp] = permits.map(|permits| Arc::new(Semaphore::new(permits)));
        let mut accepting = JoinSet::new();
        for open in listening {
            let places = if is_unix(&open) { &unix } else { &tcp };
            let serving = handler.clone().serve(Listener::new(open)?, places.clone(), context.clone());
            accepting.spawn(serving);
        }
        // Without a listener, the server still waits for the request to stop.
        let mut stop = context.stop.clone();
        // If the sender is gone, the service ends as well.
        let _ = stop.wait_for(|stop| *stop).await;
        drop(context);
        accepting.join_all().await;
        for (places, permits) in [unix, tcp].into_iter().zip(permits) {
            // The sessions have returned their permits once they are over.
            let _ = places.acquire_many(u32::try_from(permits).unwrap_or(u32::MAX)).await;
        }
        Ok(())
    }
}

fn places_of_strangers(max_connections: usize) -> usize {
    (max_connections / STRANGERS).max(1)
}

/// The settings that all sessions share.
struct SessionHandler {
    settings: Arc<Settings>,
    access: Access,
    strangers: UnauthenticatedClients,
}

impl SessionHandler {
    /// Serves the connections of a listener until the request to stop.
    ///
    /// At the limit, no connection is accepted until a session ends. Postfix would count a 421, or a closed connection, as a
    /// failure of the whole site. A connection that waits in the socket's backlog does not count so.
    ///
    /// The socket is closed at the request to stop: the last messages may take minutes, and the master that replaces a killed one
    /// needs the socket.
    async fn serve(self: Arc<Self>, listener: Listener, places: Arc<Semaphore>, context: SessionContext) {
        let mut stop = context.stop.clone();
        loop {
            let next = async {
                let place = places.clone().acquire_owned().await;
                (place, listener.accept().await)
            };
            let (place, connection) = tokio::select! {
                // After a request to stop, no more connections are accepted.
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                next = next => next,
            };
            let connection = match connection {
                Ok(connection) => connection,
                Err(error) => {
                    warn!(%error, "a connection cannot be accepted");
                    sleep(PAUSE).await;
                    continue;
                }
            };
            let (handler, context) = (self.clone(), context.clone());
            let open = self.settings.tally.opened(if connection.address.is_some() { "tcp" } else { "unix" });
            tokio::spawn(async move {
                let (_place, address) = ((place, open), connection.address);
                // A client that disconnects is no problem: a message that it has sent is delivered.
                if let Err(error) = handler.run_session(connection, context).await {
                    debug!(?address, %error, "an LMTP session was cut off");
                }
            });
        }
    }

    async fn run_session(&self, connection: Connection, mut context: SessionContext) -> io::Result<()> {
        let Connection { mut stream, address } = connection;
        let Some(admission) = self.access.admit(address) else {
            self.settings.tally.sent_away();
            warn!(
                ?address,
                "a client is sent away: it is none of service.lmtp_clients, and there is no service.client_ca_file"
            );
            stream.write_all(b"421 4.7.1 This server is not for you\r\n").await?;
            return stream.shutdown().await;
        };
        if let Either::Right(tcp) = &stream {
            tcp.set_nodelay(true)?;
        }
        let stranger = address.filter(|_| admission.starttls == StartTls::Required);
        let mut session = LmtpSession::new(self.settings.clone(), admission.starttls);
        let before_tls = async {
            if context.drive(&mut stream, &mut session).await? == SessionEnd::Over {
                return Ok(None);
            }
            let Some(tls) = admission.tls else { return Ok(None) };
            timeout(TLS, tls.accept(stream)).await?.map(Some)
        };
        let secured = if let Some(address) = stranger {
            // Such a client may neither use up the connections of others, nor keep its own for long.
            let Some(place) = self.strangers.admit(address) else {
                self.settings.tally.sent_away();
                debug!(
                    ?address,
                    "a client is sent away: too many others of its address have yet to show a certificate"
                );
                return Ok(());
            };
            tokio::select! {
                secured = timeout(STRANGERS_TIME, before_tls) => secured??,
                _ = place => {
                    self.settings.tally.sent_away();
                    debug!(?address, "a client that has yet to show a certificate gives way to another address");
                    return Ok(());
                }
            }
        } else {
            before_tls.await?
        };
        let Some(mut stream) = secured else { return Ok(()) };
        // If a certificate was required, the client has presented one.
        session.secured();
        context.drive(&mut stream, &mut session).await.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Service;
    use crate::service::lmtp::spool::Spool;
    use std::net::{IpAddr, Ipv4Addr};
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};

    const CERTIFICATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/imap_peer.pem");

    #[test]
    fn a_server_goes_by_its_configuration_and_is_counted_while_it_runs() {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "[database]\nengine = \"postgresql\"\nhost = \"db.invalid\"\ndatabase = \"x\"\nuser = \"x\"\n[imap]\nhost = \
             \"imap.invalid\"\nuser = \"x\"\npassword_file = \"/nowhere\"\n[service]\nmax_connections = 7\nruntime_directory = {:?}\n",
            folder.path()
        );
        let config = Config::parse(std::path::Path::new("/x"), &text).unwrap();
        let server = LmtpServer::new(&config, "mx".into(), Vec::new()).unwrap();
        assert_eq!(server.max_connections(), 7);
        server.settings.tally.sent_away();
        assert_eq!(server.tally().counted().sent_away, 1);
        assert_eq!([1, 7, 8, 100].map(places_of_strangers), [1, 1, 2, 25]);
    }

    #[tokio::test]
    async fn clients_without_a_certificate_take_up_only_their_part_of_the_places() {
        let file = || Some(CERTIFICATE.into());
        let service =
            Service { certificate_file: file(), key_file: file(), client_ca_file: file(), ..Service::default() };
        let spool = Arc::new(Spool { directory: "/nonexistent".into(), above: 1 << 20, limit: None });
        let settings = Settings {
            host: "mx".into(),
            postmaster: "postmaster@x".into(),
            max_recipients: 1,
            deadline: Duration::from_secs(9),
            spool,
            tally: LmtpTally::default(),
        };
        let (access, strangers) = (Access::new(&service).unwrap(), UnauthenticatedClients::new(2));
        let handler = Arc::new(SessionHandler { settings: Arc::new(settings), access, strangers });
        let (submissions, _submitted) = mpsc::channel(1);
        let (_stop, stop) = watch::channel(false);
        let context = SessionContext { submissions, stop };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        // Connects a client that seems to have this address. Returns the first byte that it receives, or `None` if it was
        // disconnected.
        let connect = async |address: Ipv4Addr| {
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let stream = Either::Right(listener.accept().await.unwrap().0);
            let connection = Connection { stream, address: Some(IpAddr::V4(address)) };
            let (handler, context) = (handler.clone(), context.clone());
            let session = tokio::spawn(async move { handler.run_session(connection, context).await });
            let first = client.read_u8().await.ok();
            (client, session, first)
        };
        let [stranger, another] = [1, 2].map(|last| Ipv4Addr::new(192, 0, 2, last));
        let (mut first, session, greeting) = connect(stranger).await;
        assert_eq!(greeting, Some(b'2'));
        let (second, its_session, greeting) = connect(stranger).await;
        assert_eq!(greeting, Some(b'2'));
        assert_eq!(connect(stranger).await.2, None, "all places are taken");
        assert_eq!(connect(Ipv4Addr::LOCALHOST).await.2, Some(b'2'), "a neighbour needs none of them");
        // An address without a connection gets one of those that another address holds.
        let (_third, _session, greeting) = connect(another).await;
        assert_eq!(greeting, Some(b'2'));
        session.await.unwrap().unwrap();
        assert_eq!(first.read_to_end(&mut Vec::new()).await.map_err(|error| error.kind()).err(), None, "it is closed");
        assert_eq!(connect(stranger).await.2, None, "each has as many");
        drop(second);
        // The client has left without reading the greeting, which may be an error.
        drop(its_session.await.unwrap());
        assert_eq!(connect(stranger).await.2, Some(b'2'));
    }
}
