//! The front: LMTP and thin clients on one side, workers on the other, and the broker between them.
//!
//! The front parses no mail, reads no password and delivers nothing, so no message can end it. lmtp(8) treats a dropped
//! connection as a failure of the whole site, and defers all mail that waits for it.

use super::broker::sockets::{Peers, Sockets, Started};
use super::broker::state::{Broker, Settings};
use super::disk_figures::DiskFiguresReader;
use super::error::ServiceError;
use super::http::{self, Sources};
use super::lmtp::{LmtpServer, Spool};
use super::master::listeners::Inherited;
use super::master_link::report_to_master;
use super::shunt::upgrade;
use super::shunt::writer;
use crate::base::files::own_directory;
use crate::base::listener::{Listener, bind_unix};
use crate::base::stop::Stop;
use crate::config::Config;
use crate::protocol::{LARGEST_MESSAGE, LONGEST_HEADER};
use std::future::pending;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{error, info, warn};
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
        longest_delivery: config.delivery.deadline,
        run: Uuid::now_v7().as_u64_pair().1,
    }
}

fn whole(number: impl TryInto<usize>) -> usize {
    number.try_into().unwrap_or(usize::MAX)
}

/// Runs a front until SIGTERM or SIGINT, and then until all messages in progress are answered. The broker, the LMTP server, and
/// metrics share one thread.
///
/// Without a `master`, any process of our user may be a worker. With one, only processes that the master has started are accepted.
/// Otherwise a confined process of the same user could take mail, and report that it is delivered.
///
/// # Errors
/// If a socket cannot be created, or if LMTP cannot be served: without it this process is useless, and the next front may succeed.
pub fn run(config: &Config, inherited: Inherited, master: Option<UnixStream>) -> Result<(), ServiceError> {
    let (queue, service) = (config.service.queue(), &config.service);
    // In this folder a client can submit mail under any name, a worker gets everybody's mail, and messages in progress are stored. So
    // no other user may enter it, and the user of each connection is checked as well (unix(7), SO_PEERCRED).
    let run = &service.runtime_directory;
    own_directory(run).map_err(ServiceError::file("making the directory", run))?;
    let host = gethostname::gethostname().to_string_lossy().into_owned();
    let server = LmtpServer::new(config, host, inherited.lmtp)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(ServiceError::system("starting the runtime"))?.block_on(async {
        // This comes before a client can connect: a client that reaches the front then finds its folders, too.
        let remembered = writer::remembered(&queue, Instant::now());
        let (clients, workers) = (service.clients_socket(), service.workers_socket());
        let mut sockets = Sockets::new(longest_frame(config), Spool::new(config));
        let (started, admitted) = watch::channel(Started::new());
        sockets.listen(listen(&clients)?, Peers::Clients, whole(service.max_connections), None);
        sockets.listen(listen(&workers)?, Peers::Workers, MOST_WORKERS, master.is_some().then_some(admitted));
        let (submissions, submitted) = mpsc::channel(1);
        let (ask, asked) = mpsc::channel(1);
        let (ended_sender, ended) = mpsc::channel(16);
        let (stop_broker, broker_stops) = oneshot::channel();
        let (stop_sender, stop) = watch::channel(false);
        let (status_sender, status) = watch::channel(None);
        let ends = Stop::on_signals().map_err(ServiceError::system("setting up signals"))?;
        let within = config.delivery.deadline.saturating_add(PAST_THE_DEADLINE);
        let signals = async move {
            ends.until_requested().await;
            info!("the front ends, once all that has begun is answered");
            let _ = stop_broker.send(within);
            let _ = stop_sender.send(true);
            pending::<()>().await;
        };
        sockets.write_crashes(queue).map_err(ServiceError::system("starting a thread"))?;
        upgrade::start(config.clone()).map_err(ServiceError::system("starting a thread"))?;
        let broker = Broker::new(broker_settings(config), remembered, Instant::now());
        info!(clients = %clients.display(), workers = %workers.display(), "the front is ready");
        let (tally, max_connections) = (server.tally(), server.max_connections());
        let disk = DiskFiguresReader::of(service);
        let sources = Sources {
            ask: ask.clone(),
            service: status,
            stop: stop.clone(),
            tally,
            max_connections,
            disk: disk.clone(),
        };
        let master_stop = stop.clone();
        let reports = async move {
            let Some(master) = master else { return pending().await };
            let talk = report_to_master(master, ask, started, ended_sender, master_stop, status_sender, disk);
            if let Err(error) = talk.await {
                warn!(%error, "the master cannot be talked with");
            }
        };
        let beside = serve_metrics_until(reports, inherited.http, sources);
        let lmtp = async {
            match server.run(submissions, stop).await {
                Ok(()) => pending().await,
                Err(error) => error,
            }
        };
        tokio::select! {
            () = sockets.run(broker, submitted, asked, ended, broker_stops) => {}
            error = lmtp => return Err(ServiceError::system("serving LMTP")(error)),
            () = beside => {}
            () = signals => {}
        }
        info!("the front has ended");
        Ok(())
    })
}

/// Serves metrics and health until the master is gone: then this process is about to end, and the next front needs the port.
async fn serve_metrics_until(master_is_gone: impl Future<Output = ()>, http: Vec<Listener>, sources: Sources) {
    let metrics = async {
        if let Err(error) = http::run(http, sources).await {
            error!(%error, "metrics and health are not served any more");
        }
        pending::<()>().await;
    };
    tokio::select! {
        () = metrics => {}
        () = master_is_gone => {}
    }
    pending::<()>().await;
}

fn listen(path: &Path) -> Result<UnixListener, ServiceError> {
    let listener = bind_unix(path, 0o600).and_then(|listener| {
        listener.set_nonblocking(true)?;
        UnixListener::from_std(listener)
    });
    listener.map_err(ServiceError::listen(&path.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::configured;

    const SITE: &str = "\
        [database]\nengine = \"postgresql\"\nhost = \"db.invalid\"\ndatabase = \"x\"\nuser = \"x\"\n\
        [imap]\nhost = \"imap.invalid\"\nuser = \"x\"\npassword_file = \"/nowhere\"\n";

    /// If it went on, the front would seem to be healthy, but accept no LMTP.
    #[test]
    fn a_front_ends_where_lmtp_cannot_be_served_and_the_folder_of_its_sockets_is_nobody_elses() {
        use std::os::fd::OwnedFd;
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        // It is no socket, so nobody can wait for connections on it.
        let null = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let inherited = Inherited { lmtp: vec![Listener::Unix(null.into())], http: Vec::new() };
        let error = run(&configured(folder.path()), inherited, None).unwrap_err().to_string();
        assert!(error.starts_with("serving LMTP: "), "{error}");
        let mode = std::fs::metadata(folder.path().join("run")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
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
