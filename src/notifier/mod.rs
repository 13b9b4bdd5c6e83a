//! The notifier: a process of the service that publishes what deliveries have written down, and tells subscribers by signed requests.
//!
//! ```text
//! outbox ── publish, under a lock ──▶ events, notifications ── lease a subscription ──▶ requests, side by side
//!                                                                      ▲                       │
//!                                                                      └──── settle, within 100 ms ◀
//! ```
//!
//! Two threads: one owns the session with the database, and decides ([`notifier`], by [`in_hand`]); the other one, a runtime, sends
//! ([`send`]). A notification is settled after its receiver has answered, so that a process that dies in between makes it come twice,
//! and never not at all. Any number of notifiers may work on one database.
//!
//! What makes requests to where strangers say holds no password of mailboxes, and goes where it may only ([`connect`]).

mod connect;
mod event_loop;
mod leased_subscription;
mod local_addresses;
mod send;
mod unanswered;

use crate::config::{Config, Notifications};
use crate::site::Site;
use crate::webhook::{MasterKey, Schedule};
use std::io;
use thiserror::Error;

/// Notifications that are read take so small a part of the memory that a notifier may have: one that is sent is there several times, as
/// its body, as the request and in TLS, and each thread has addresses of its own.
const PART_OF_MEMORY: u64 = 16;

/// What a notifier goes by.
#[derive(Clone, Debug)]
pub struct NotifierSettings {
    key: MasterKey,
    schedule: Schedule,
    notifications: Notifications,
    /// How much memory notifications may take that are read, in bytes.
    memory: usize,
    /// Where the API is, if other machines can reach it.
    api: Option<String>,
}

/// Why there can be no notifier.
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
    /// As a configuration says; the key is read now.
    ///
    /// # Errors
    /// Where no key is named, or one cannot be read.
    pub fn of(config: &Config) -> Result<Self, NotifierError> {
        let settings = &config.notifications;
        let missing = || NotifierError::Key("notifications.secret_key_file: it is missing".into());
        Ok(Self {
            key: MasterKey::configured(settings).map_err(NotifierError::Key)?.ok_or_else(missing)?,
            schedule: Schedule::new(settings.retry.clone()),
            notifications: settings.clone(),
            memory: usize::try_from(config.serve.worker_memory / PART_OF_MEMORY).unwrap_or(usize::MAX),
            api: config.web.public_api(),
        })
    }
}

/// Publishes and tells, until SIGTERM or SIGINT, and then until the requests under way are answered.
///
/// # Errors
/// Where the system gives us no signals or threads, or where there is no CA to be trusted.
pub fn run(site: &Site, settings: NotifierSettings) -> Result<(), NotifierError> {
    event_loop::run(site, settings)
}
