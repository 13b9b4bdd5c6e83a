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

mod back_off;
mod connect;
mod event_loop;
mod leased_subscription;
mod local_addresses;
mod send;
mod unanswered;

use crate::config::Config;
use crate::site::Site;
use crate::webhook::{MasterKey, Rules, Schedule};
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;

/// Notifications that are read take so small a part of the memory that a notifier may have: one that is sent is there several times, as
/// its body, as the request and in TLS, and each thread has addresses of its own.
const PART_OF_MEMORY: u64 = 16;

/// What a notifier goes by.
#[derive(Clone, Debug)]
pub struct NotifierSettings {
    key: MasterKey,
    rules: Rules,
    schedule: Schedule,
    /// How long a request may take, from looking up its host to the end of the answer.
    timeout: Duration,
    /// A receiver that has not answered for so long is disabled.
    disable_after: Duration,
    /// How many requests are under way at once.
    concurrency: usize,
    /// How much memory notifications may take that are read, in bytes.
    memory: usize,
    /// How often it is looked for work.
    poll: Duration,
    /// Whether a new callback is asked a question first.
    verify_callbacks: bool,
    ca_file: Option<PathBuf>,
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

/// How often it is looked for what is to be sent.
const POLL_EACH: Duration = Duration::from_millis(250);

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
            rules: Rules::from(settings),
            schedule: Schedule::new(settings.retry.clone()),
            timeout: settings.timeout,
            disable_after: settings.disable_after,
            concurrency: settings.concurrency,
            memory: usize::try_from(config.serve.worker_memory / PART_OF_MEMORY).unwrap_or(usize::MAX),
            poll: POLL_EACH,
            verify_callbacks: settings.verify_callbacks,
            ca_file: settings.ca_file.clone(),
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
