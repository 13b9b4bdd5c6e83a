//! `[service]`: the long-running service, `maildropd`.

use super::network::Network;
use super::source::{ConfigError, Source};
use super::values;
use super::{AuthorCheck, Config, Retention, Sent};
use crate::base::endpoint::Endpoint;
use crate::base::log::Target;
use crate::base::tls::{TlsError, server_config};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The largest message, in bytes, if the configuration sets no limit.
pub const LARGEST_MESSAGE: u64 = 256 << 20;

/// The part of `worker_memory`, in bytes, that a worker's message may not use: for threads, sessions and their buffers.
pub(crate) const BESIDE_A_MESSAGE: u64 = 128 << 20;
/// The address space of a worker without a message, in bytes; 105 MB were measured.
const WITHOUT_A_MESSAGE: u64 = 128 << 20;

/// A worker that uses this much memory, in bytes, is replaced by a new one.
pub(crate) const RECYCLE_ABOVE: u64 = 200_000_000;

/// How many recipients one message may have: ten times the minimum of RFC 5321 section 4.5.3.1.8.
pub const MAX_RECIPIENTS: u32 = 1000;

/// The shortest interval at which `prune` is run.
const SELDOM: Duration = Duration::from_hours(1);

/// `[service]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Service {
    /// The endpoints of LMTP: absolute paths of unix sockets, or `host:port`.
    pub lmtp: Vec<String>,
    /// The networks from which other machines may connect, encrypted or not.
    pub lmtp_clients: Vec<Network>,
    /// Our certificate for TCP, with its chain, PEM; and its private key.
    #[serde(deserialize_with = "values::optional_path")]
    pub certificate_file: Option<PathBuf>,
    #[serde(deserialize_with = "values::optional_path")]
    pub key_file: Option<PathBuf>,
    /// The CA certificates, PEM, that sign the certificates of clients. A client with such a certificate may connect from
    /// another machine.
    #[serde(deserialize_with = "values::optional_path")]
    pub client_ca_file: Option<PathBuf>,
    /// The HTTP endpoint of metrics and health, if there is one: `host:port`, or the absolute path of a unix socket.
    pub http: Option<String>,
    /// The folder of the service's own sockets and of messages in transit. No other user may enter it.
    #[serde(deserialize_with = "values::path")]
    pub runtime_directory: PathBuf,
    /// The folder of everything that has to survive a restart: the file queue, and messages that crashed workers.
    #[serde(deserialize_with = "values::path")]
    pub state_directory: PathBuf,
    /// How many workers there are. Each delivers one message at a time, with its own database session.
    pub workers: u32,
    /// How many sessions with the IMAP server a worker keeps, each for one user. A message is delivered to as many mailboxes
    /// at once.
    pub mailbox_sessions: usize,
    /// How many processes take messages from the file queue, each for its shard of all Message-IDs. The number is a power of
    /// two, so that a change splits or joins shards, and leaves the others unchanged.
    pub runners: u32,
    /// The interval at which owed copies are retried, as by `replay --owed`; zero for never.
    #[serde(deserialize_with = "values::duration")]
    pub finish_owed_every: Duration,
    /// The interval at which `prune` is run; `None` for never.
    #[serde(deserialize_with = "values::optional_duration")]
    pub prune_every: Option<Duration>,
    /// How many LMTP connections are served at once.
    pub max_connections: u32,
    /// How long a message waits for a worker before it is deferred. See [`Config::worker_wait`].
    #[serde(deserialize_with = "values::duration")]
    pub worker_wait: Duration,
    /// How many messages for one recipient are delivered at once. See [`Service::at_once_for_one`].
    pub max_per_recipient: u32,
    /// How long one mailbox may delay the others of its message, and how long a message waits for recipients who have
    /// `max_per_recipient` deliveries in progress. See [`Config::slow_mailbox_timeout`].
    #[serde(deserialize_with = "values::duration")]
    pub slow_mailbox_timeout: Duration,
    /// Messages larger than this, in bytes, wait for their worker in a file. A value above the largest allowed message has
    /// no effect.
    #[serde(deserialize_with = "values::bytes")]
    pub spool_threshold: u64,
    /// After this many deliveries a worker is replaced by a new one.
    pub recycle_after: u64,
    /// How much address space a worker may use, in bytes (RLIMIT_AS). A worker that needs more ends, before the machine runs
    /// out of memory.
    #[serde(deserialize_with = "values::bytes")]
    pub worker_memory: u64,
    /// How often a process may die without a minute of uptime in between. After that the process is throttled: it is started
    /// once a minute, without end.
    pub restarts: u32,
}

impl Default for Service {
    fn default() -> Self {
        Self {
            lmtp: Vec::new(),
            lmtp_clients: Vec::new(),
            certificate_file: None,
            key_file: None,
            client_ca_file: None,
            http: None,
            runtime_directory: "/run/maildropd".into(),
            state_directory: "/var/lib/maildropd".into(),
            workers: 4,
            mailbox_sessions: 8,
            runners: 1,
            finish_owed_every: Duration::from_mins(5),
            prune_every: None,
            max_connections: 100,
            worker_wait: Duration::from_secs(30),
            max_per_recipient: 2,
            slow_mailbox_timeout: Duration::from_secs(5),
            spool_threshold: 256 << 10,
            recycle_after: 10_000,
            worker_memory: 1_000_000_000,
            restarts: 10,
        }
    }
}

impl Service {
    /// For an embedded site: the sockets are in `DIR/run`, the queue is in `DIR/state`.
    pub fn embedded(directory: &Path) -> Self {
        Self { runtime_directory: directory.join("run"), state_directory: directory.join("state"), ..Self::default() }
    }

    /// How many messages for one recipient are delivered at once. Of several workers, one is always left for other
    /// recipients.
    pub fn at_once_for_one(&self) -> u32 {
        if self.workers > 1 { self.max_per_recipient.min(self.workers - 1) } else { self.max_per_recipient }
    }

    /// The folder of the file queue.
    pub fn queue(&self) -> PathBuf {
        self.state_directory.join("queue")
    }

    /// The file in which the timer records what it has done, and when it continues.
    pub fn timer_state(&self) -> PathBuf {
        self.state_directory.join("timer.json")
    }

    /// Whether the configuration asks for a timer: to retry owed copies, or to run `prune`.
    pub fn has_timer(&self) -> bool {
        !self.finish_owed_every.is_zero() || self.prune_every.is_some()
    }

    /// The folder of messages in transit.
    pub fn messages(&self) -> PathBuf {
        self.runtime_directory.join("messages")
    }

    /// The socket that thin clients and runners connect to.
    pub fn clients_socket(&self) -> PathBuf {
        self.runtime_directory.join("clients.sock")
    }

    /// The socket that workers connect to.
    pub fn workers_socket(&self) -> PathBuf {
        self.runtime_directory.join("workers.sock")
    }

    /// The control socket of the service: status queries and commands.
    pub fn control_socket(&self) -> PathBuf {
        self.runtime_directory.join("control.sock")
    }

    /// The file that the one master of this folder has locked.
    pub fn master_lock(&self) -> PathBuf {
        self.runtime_directory.join("master.lock")
    }

    /// The configuration as the master has checked it. The processes that the master starts read this copy, because a
    /// half-edited file must not stop one worker after the other as they are replaced.
    pub fn checked_configuration(&self) -> PathBuf {
        self.runtime_directory.join("config.toml")
    }
}

/// The runtime directory that this text names, or the default, even if the rest of the text is invalid. The commands that
/// stop the service, or query its status, have to reach the service all the same.
pub(crate) fn runtime_directory_of(text: &str) -> Option<PathBuf> {
    let text: toml::Table = text.parse().ok()?;
    match text.get("service").and_then(|service| service.get("runtime_directory")) {
        Some(named) => named.as_str().map(PathBuf::from),
        None => Some(Service::default().runtime_directory),
    }
}

/// The endpoint in the value of this key.
///
/// # Errors
/// If the value is neither an absolute path nor `host:port`.
pub(super) fn read_endpoint(source: &Source<'_>, key: &str, text: &str, or: &str) -> Result<Endpoint, ConfigError> {
    Endpoint::parse(text, None)
        .ok_or_else(|| source.error(key, &format!("{text:?} is neither the whole path of a socket nor {or}")))
}

impl Service {
    /// The endpoints of metrics and health.
    pub fn http_endpoints(&self) -> Vec<Endpoint> {
        self.http.iter().filter_map(|text| Endpoint::parse(text, None)).collect()
    }

    /// The endpoints of LMTP.
    pub fn lmtp_endpoints(&self) -> Vec<Endpoint> {
        // An unreadable value was refused when the configuration was read.
        self.lmtp.iter().filter_map(|text| Endpoint::parse(text, None)).collect()
    }

    fn check_lmtp(&self, source: &Source<'_>) -> Result<(), ConfigError> {
        let [certificate, key, client_ca] =
            [&self.certificate_file, &self.key_file, &self.client_ca_file].map(Option::is_some);
        source.section("service").refuse_first(&[
            (certificate && !key, "key_file", "it is missing: name the file of the certificate's private key"),
            (key && !certificate, "certificate_file", "it is missing: name the file of the key's certificate"),
            (
                client_ca && !certificate,
                "client_ca_file",
                "without a certificate_file there is no TLS: name one, or leave this out",
            ),
        ])?;
        let for_nobody = self.lmtp_clients.is_empty() && self.client_ca_file.is_none();
        for text in &self.lmtp {
            let endpoint = read_endpoint(source, "service.lmtp", text, "host:port")?;
            source.refuse_if(for_nobody && !endpoint.is_on_this_machine(), "service.lmtp", || {
                format!(
                    "{text} can be reached from other machines, and any client that connects can send mail: say lmtp_clients or \
                     client_ca_file"
                )
            })?;
        }
        Ok(())
    }
}

impl Config {
    /// Checks that LMTP does not silently disable Sent copies: LMTP carries no SASL name, so without an `authserv_id`
    /// nothing proves an author.
    ///
    /// # Errors
    /// If Sent copies are enabled, but none could ever be made of mail that comes by LMTP.
    pub(crate) fn lmtp_makes_sent_copies(&self) -> Result<(), ConfigError> {
        let Sent { enabled, author_check, authserv_id, .. } = &self.sent;
        if !enabled || *author_check != AuthorCheck::Authenticated || authserv_id.is_some() {
            return Ok(());
        }
        let problem = "sent.authserv_id: it is missing: LMTP tells of no SASL login, so that with author_check = \"authenticated\" no author \
                       would have a Sent copy any more; name the filter that writes Authentication-Results, or say enabled = false";
        Err(ConfigError { file: self.file.clone(), line: None, problem: problem.into() })
    }

    /// How long a message waits for a worker: at most half of a delivery's deadline.
    pub fn worker_wait(&self) -> Duration {
        self.service.worker_wait.min(self.delivery.deadline / 2)
    }

    /// A warning if the largest accepted message may not fit into a worker. Such a message is deferred until its mail system
    /// gives up.
    pub(crate) fn memory_warning(&self) -> Option<String> {
        let limit = self.delivery.message_size_limit.unwrap_or(LARGEST_MESSAGE);
        // A line end may be one byte in the limit, and two in memory.
        let largest = limit.saturating_mul(2);
        let source =
            if self.record.keep_source { self.record.keep_source_max.min(largest).saturating_mul(2) } else { 0 };
        let needed = [largest, source, BESIDE_A_MESSAGE, WITHOUT_A_MESSAGE].into_iter().fold(0, u64::saturating_add);
        (needed > self.service.worker_memory).then(|| {
            format!(
                "{}: service.worker_memory: a message as large as delivery.message_size_limit allows ({limit} bytes) may take {needed} bytes \
                 of memory with all that a worker needs, and {} are allowed: what does not fit is deferred until its mail system gives up",
                self.file.display(),
                self.service.worker_memory
            )
        })
    }

    /// How long one mailbox may delay the others of its message: at most a quarter of a delivery's deadline.
    pub fn slow_mailbox_timeout(&self) -> Duration {
        self.service.slow_mailbox_timeout.min(self.delivery.deadline / 4)
    }

    pub(super) fn check_serve(&self, source: &Source<'_>) -> Result<(), ConfigError> {
        let service = &self.service;
        service.check_lmtp(source)?;
        if let Some(http) = &service.http {
            read_endpoint(source, "service.http", http, "host:port")?;
            source.refuse_if(service.lmtp.contains(http), "service.http", || {
                format!("LMTP is spoken at {http}: choose another one")
            })?;
        }
        // Confined processes may write in the folder of the log file, and must not write in the runtime directory.
        if let Target::File(file) = self.log_settings().target {
            source.refuse_if(file.starts_with(&service.runtime_directory), "log.file", || {
                format!(
                    "{} is in service.runtime_directory, where the service keeps what some of its processes may not write: choose \
                     another folder",
                    file.display()
                )
            })?;
        }
        let (has_no_memory, has_no_patience) =
            (service.worker_memory <= RECYCLE_ABOVE, service.slow_mailbox_timeout.is_zero());
        let is_endless = service.prune_every.is_some() && self.retention == Retention::default();
        let is_often = service.prune_every.is_some_and(|every| every < SELDOM);
        source.section("service").refuse_first(&[
            (service.workers == 0, "workers", "0 would let no message in"),
            (service.max_connections == 0, "max_connections", "0 would let no message in"),
            (service.max_per_recipient == 0, "max_per_recipient", "0 would let no message in"),
            (
                service.mailbox_sessions < 2,
                "mailbox_sessions",
                "a message goes to two mailboxes, where its author lives here",
            ),
            (!service.runners.is_power_of_two(), "runners", "it has to be a power of two, such as 1, 2, 4 or 8"),
            (service.recycle_after == 0, "recycle_after", "0 would let no message in"),
            (has_no_memory, "worker_memory", "it has to be more than 200 MB, at which a worker is replaced"),
            (is_often, "prune_every", "at least an hour, such as \"1d\": it reads all that is old, each time"),
            (is_endless, "prune_every", "it forgets what [retention] says: name what is to be forgotten there"),
            (has_no_patience, "slow_mailbox_timeout", "it has to be more than nothing: no mailbox answers at once"),
        ])
    }
}

impl Service {
    /// Reads the front's certificate, key and client CA files, as the front does when it starts.
    ///
    /// # Errors
    /// The first file that cannot be used, and why.
    pub(crate) fn try_tls(&self) -> Result<(), TlsError> {
        match (&self.certificate_file, &self.key_file) {
            (Some(certificate), Some(key)) => server_config(certificate, key, self.client_ca_file.as_deref()).map(drop),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_workers_one_is_left_to_others_than_any_one_recipient() {
        let at_once =
            |workers, max_per_recipient| Service { workers, max_per_recipient, ..Service::default() }.at_once_for_one();
        assert_eq!([at_once(1, 2), at_once(2, 2), at_once(3, 2), at_once(4, 2)], [2, 1, 2, 2]);
        assert_eq!([at_once(2, 1), at_once(8, 100), at_once(1, 1)], [1, 7, 1]);
    }
}
