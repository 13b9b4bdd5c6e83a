//! The front: LMTP and thin clients on one side, workers on the other, and the broker between them.
//!
//! The front parses no mail, reads no password and delivers nothing, so no message can end it. lmtp(8) treats a dropped
//! connection as a failure of the whole site, and defers all mail that waits for it.

use super::broker::sockets::{Peers, Report, Sockets, Started};
use super::broker::state::{Broker, Settings};
use super::inflight_message::InflightMessage;
use super::lmtp::Spool;
use super::shunt::WorkerEnd;
use super::shunt::upgrade;
use super::shunt::writer;
use crate::base::files::own_directory;
use crate::base::listener::bind_unix;
use crate::base::stop::Stop;
use crate::config::{Config, MAX_RECIPIENTS};
use crate::protocol::{LARGEST_MESSAGE, LONGEST_HEADER};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::info;
use uuid::Uuid;

/// The largest number of connected workers: more than any site has. The configured number does not serve as the limit: a restart
/// replaces the front last. Until then this front, with the old configuration, has all workers of the new one.
const MOST_WORKERS: usize = 65_536;

/// How much longer than a delivery's deadline the front waits for messages in progress after the request to end. The broker
/// answers for deliveries that take longer.
const PAST_THE_DEADLINE: Duration = Duration::from_secs(10);

/// The longest frame, in bytes. Mail that was accepted under a higher limit, or without one, must still fit. A frame uses memory
/// only as it arrives, and only this user and root can connect.
pub(super) fn longest_frame(config: &Config) -> usize {
    let message = config.delivery.message_size_limit.unwrap_or_default().max(LARGEST_MESSAGE);
    whole(message).saturating_add(LONGEST_HEADER).saturating_add(64)
}

fn broker_settings(config: &Config) -> Settings {
    let service = &config.service;
    Settings {
        worker_wait: config.worker_wait(),
        workers: whole(service.workers),
        max_per_recipient: whole(service.at_once_for_one()),
        patience: config.slow_mailbox_timeout(),
        recipient_delimiter: config.routing.recipient_delimiter.clone(),
        mailbox_sessions: service.mailbox_sessions,
        max_recipients: whole(MAX_RECIPIENTS),
        longest_delivery: config.delivery.deadline,
        run: Uuid::now_v7().as_u64_pair().1,
    }
}

fn whole(number: impl TryInto<usize>) -> usize {
    number.try_into().unwrap_or(usize::MAX)
}

/// Why the front cannot run.
#[derive(Debug, Error)]
pub enum FrontError {
    #[error("making the folder {}: {source}", path.display())]
    Folder { path: PathBuf, source: io::Error },
    #[error("listening at {}: {source}", path.display())]
    Listen { path: PathBuf, source: io::Error },
    #[error("{doing}: {source}")]
    System { doing: &'static str, source: io::Error },
}

/// The channels to the broker inside this process.
#[derive(Clone, Debug)]
pub struct Inside {
    /// Passes a message to the broker.
    pub submissions: mpsc::Sender<InflightMessage>,
    /// Requests a report from the broker.
    pub ask: mpsc::Sender<oneshot::Sender<Report>>,
    /// The workers that the master has started, and that have not ended.
    pub started: watch::Sender<Started>,
    /// Reports to the broker how a worker's process has ended.
    pub ended: mpsc::Sender<WorkerEnd>,
    /// Becomes true when this process must end. The broker waits until all clones of `submissions` are dropped.
    pub stop: watch::Receiver<bool>,
}

/// Creates the folder of the broker's sockets, in which messages in progress are stored, too. There, a client can submit mail
/// under any name, and a worker gets everybody's mail. So no other user may enter the folder, and the user of each connection is
/// checked as well (unix(7), SO_PEERCRED).
///
/// # Errors
/// If the folder cannot be created.
pub fn prepare(config: &Config) -> Result<(), FrontError> {
    for socket in [config.service.clients_socket(), config.service.workers_socket()] {
        if let Some(path) = socket.parent() {
            own_directory(path).map_err(|source| FrontError::Folder { path: path.to_owned(), source })?;
        }
    }
    Ok(())
}

/// Runs a front until SIGTERM or SIGINT, and then until all messages in progress are answered. `beside` is the LMTP server, which
/// passes its messages to the broker. That server runs in the same runtime once the sockets exist. If it fails, the front fails
/// too, and the master starts another one.
///
/// `has_master`: only processes that the master has started are accepted as workers. Otherwise a confined process of the same
/// user could take mail, and report that it is delivered. Without a master, any process of our user may be a worker.
///
/// # Errors
/// If the sockets cannot be created, or if `beside` fails.
pub fn run<B>(config: &Config, has_master: bool, beside: impl FnOnce(Inside) -> B) -> Result<(), FrontError>
where
    B: Future<Output = Result<(), FrontError>> + 'static,
{
    let system = |doing| move |source| FrontError::System { doing, source };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(system("starting the runtime"))?.block_on(async {
        // This comes before a client can connect: a client that reaches the front then finds its folders, too.
        let (queue, service) = (config.service.queue(), &config.service);
        let remembered = writer::remembered(&queue, Instant::now());
        prepare(config)?;
        let (clients, workers) = (service.clients_socket(), service.workers_socket());
        let mut sockets = Sockets::new(longest_frame(config), Spool::new(config));
        let (started, admitted) = watch::channel(Started::new());
        sockets.listen(listen(&clients)?, Peers::Clients, whole(service.max_connections), None);
        sockets.listen(listen(&workers)?, Peers::Workers, MOST_WORKERS, has_master.then_some(admitted));
        let (submissions, submitted) = mpsc::channel(1);
        let (ask, asked) = mpsc::channel(1);
        let (ended_sender, ended) = mpsc::channel(16);
        let (stop_sender, stop) = oneshot::channel();
        let (stop_beside, beside_stops) = watch::channel(false);
        let ends = Stop::on_signals().map_err(system("setting up signals"))?;
        let within = config.delivery.deadline.saturating_add(PAST_THE_DEADLINE);
        let signals = async move {
            ends.until_requested().await;
            info!("the front ends, once all that has begun is answered");
            let _ = stop_sender.send(within);
            let _ = stop_beside.send(true);
            std::future::pending::<()>().await;
        };
        sockets.write_crashes(queue).map_err(system("starting a thread"))?;
        upgrade::start(config.clone()).map_err(system("starting a thread"))?;
        let broker = Broker::new(broker_settings(config), remembered, Instant::now());
        info!(clients = %clients.display(), workers = %workers.display(), "the front is ready");
        let beside = beside(Inside { submissions, ask, started, ended: ended_sender, stop: beside_stops });
        let beside = async {
            match beside.await {
                Ok(()) => std::future::pending().await,
                Err(error) => error,
            }
        };
        tokio::select! {
            () = sockets.run(broker, submitted, asked, ended, stop) => {}
            error = beside => return Err(error),
            () = signals => {}
        }
        info!("the front has ended");
        Ok(())
    })
}

fn listen(path: &Path) -> Result<UnixListener, FrontError> {
    let listener = bind_unix(path, 0o600).and_then(|listener| {
        listener.set_nonblocking(true)?;
        UnixListener::from_std(listener)
    });
    listener.map_err(|source| FrontError::Listen { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::configured;

    const SITE: &str = "\
        [database]\nengine = \"postgresql\"\nhost = \"db.invalid\"\ndatabase = \"x\"\nuser = \"x\"\n\
        [imap]\nhost = \"imap.invalid\"\nuser = \"x\"\npassword_file = \"/nowhere\"\n";

    #[test]
    fn the_folder_of_its_sockets_is_nobody_elses() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let config = configured(folder.path());
        let run = folder.path().join("run");
        let is_closed = || std::fs::metadata(&run).unwrap().permissions().mode() & 0o777 == 0o700;
        prepare(&config).unwrap();
        assert!(is_closed());
        std::fs::set_permissions(&run, std::fs::Permissions::from_mode(0o755)).unwrap();
        prepare(&config).unwrap();
        assert!(is_closed());
    }

    /// If it went on, the front would seem to be healthy, but accept no LMTP.
    #[test]
    fn a_front_ends_where_what_runs_in_it_fails() {
        let folder = tempfile::tempdir().unwrap();
        let failed = FrontError::System { doing: "serving LMTP", source: io::Error::other("no file descriptors") };
        let ended = run(&configured(folder.path()), false, |_| std::future::ready(Err(failed)));
        assert_eq!(ended.unwrap_err().to_string(), "serving LMTP: no file descriptors");
    }

    #[test]
    fn a_front_goes_by_its_configuration() {
        let text = format!(
            "{SITE}[delivery]\ndeadline = \"100s\"\nmessage_size_limit = 1000\n\
             [routing]\nrecipient_delimiter = \"+\"\n[service]\nworkers = 3\nworker_wait = \"10m\"\nslow_mailbox_timeout = \"10m\"\n"
        );
        let config = Config::parse(Path::new("/x"), &text).unwrap();
        let broker = broker_settings(&config);
        let seconds = Duration::from_secs;
        assert_eq!(
            (broker.worker_wait, broker.patience, broker.longest_delivery),
            (seconds(50), seconds(25), seconds(100))
        );
        assert_eq!((broker.workers, broker.max_per_recipient, broker.recipient_delimiter.as_str()), (3, 2, "+"));
        let two = format!("{SITE}[service]\nworkers = 2\n");
        let two = broker_settings(&Config::parse(Path::new("/x"), &two).unwrap());
        assert_eq!(two.max_per_recipient, 1, "a mailbox that hangs does not take both");
        // Mail that was accepted before the limit was lowered must still fit.
        assert_eq!(longest_frame(&config), (LARGEST_MESSAGE as usize) + LONGEST_HEADER + 64);
        let text = format!("{SITE}[delivery]\nmessage_size_limit = \"1GB\"\n");
        let larger = Config::parse(Path::new("/x"), &text).unwrap();
        assert_eq!(longest_frame(&larger), 1_000_000_000 + LONGEST_HEADER + 64);
    }
}
