//! The notifier: a process of the service that publishes the events of deliveries, and sends them to subscribers in signed
//! requests.
//!
//! ```text
//! outbox ── publish, under a lock ──▶ events, notifications ── lease a subscription ──▶ requests, side by side
//!                                                                      ▲                       │
//!                                                                      └──── settle, within 100 ms ◀
//! ```
//!
//! There are two threads. One owns the database session and decides ([`event_loop`], with [`leased_subscription`]). The other, an
//! async runtime, sends ([`send`]). A notification is settled after its receiver has answered. If the process dies in between,
//! the notification is sent twice, but it is never lost. Any number of notifiers may work on one database.
//!
//! The process that sends requests to URLs of strangers holds no mailbox password, and connects only to allowed addresses
//! ([`connect`]).

mod connect;
mod event_loop;
mod leased_subscription;
mod local_addresses;
mod request_failure;
mod send;

pub use event_loop::run;

use crate::config::{Config, Notifications};
use crate::webhook::{MasterKey, Schedule};
use std::io;
use thiserror::Error;

/// The memory for notifications that were read is one part in this many of the notifier's memory limit. A notification in flight
/// is held several times: as its body, as the request and in TLS. Each thread also has an address space of its own.
const PART_OF_MEMORY: u64 = 16;

#[derive(Clone, Debug)]
pub struct NotifierSettings {
    key: MasterKey,
    schedule: Schedule,
    notifications: Notifications,
    /// How much memory the notifications which are read may take, in bytes.
    memory: usize,
    /// The URL of the API, if other machines can reach it.
    api: Option<String>,
}

/// Why a notifier cannot start.
#[derive(Debug, Error)]
pub enum NotifierError {
    #[error("{doing}: {source}")]
    System { doing: &'static str, source: io::Error },
    #[error("notifications.ca_file: {0}")]
    Tls(String),
    #[error("{0}")]
    Key(String),
}

impl NotifierSettings {
    /// The settings of a configuration. Reads the key file.
    ///
    /// # Errors
    /// If no key file is named, or if it cannot be read.
    pub fn of(config: &Config) -> Result<Self, NotifierError> {
        let settings = &config.notifications;
        let missing = || NotifierError::Key("notifications.secret_key_file: it is missing".into());
        Ok(Self {
            key: MasterKey::configured(settings).map_err(NotifierError::Key)?.ok_or_else(missing)?,
            schedule: Schedule::new(settings.retry_schedule.clone()),
            notifications: settings.clone(),
            memory: usize::try_from(config.service.worker_memory / PART_OF_MEMORY).unwrap_or(usize::MAX),
            api: config.web.public_api(),
        })
    }
}
