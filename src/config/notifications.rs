//! `[notifications]`: webhooks to subscribers, which one process of the service sends.

use super::network::Network;
use super::source::{ConfigError, Source};
use super::values;
use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;

/// `[notifications]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Notifications {
    /// The file with the key from which the secrets of subscriptions are derived. `None` if no notifications are sent.
    #[serde(deserialize_with = "values::optional_path")]
    pub secret_key_file: Option<PathBuf>,
    /// The waits between the tries of one notification.
    #[serde(deserialize_with = "values::durations")]
    pub retry_schedule: Vec<Duration>,
    /// How long a request may take, from looking up its host to the last byte of the answer.
    #[serde(deserialize_with = "values::duration")]
    pub timeout: Duration,
    /// A receiver that has accepted nothing for this time gets no more notifications.
    #[serde(deserialize_with = "values::duration")]
    pub disable_after: Duration,
    /// How many requests are in flight at once.
    pub concurrency: usize,
    /// Whether a callback may use HTTP without encryption.
    pub allow_http: bool,
    pub allow_ports: Vec<u16>,
    /// Networks outside the public Internet that callbacks may be in.
    pub allow_networks: Vec<Network>,
    /// Whether a new callback has to answer a verification request before it gets any notification.
    pub verify_callbacks: bool,
    /// The CA certificates, PEM, that sign the receivers' certificates. `None` for those that the system trusts.
    #[serde(deserialize_with = "values::optional_path")]
    pub ca_file: Option<PathBuf>,
}

/// The default waits between tries, as Standard Webhooks suggests: more than three days in all.
pub(crate) const RETRY: [Duration; 9] = [
    Duration::from_secs(5),
    Duration::from_mins(5),
    Duration::from_mins(30),
    Duration::from_hours(2),
    Duration::from_hours(5),
    Duration::from_hours(10),
    Duration::from_hours(14),
    Duration::from_hours(20),
    Duration::from_hours(24),
];

impl Default for Notifications {
    fn default() -> Self {
        Self {
            secret_key_file: None,
            retry_schedule: RETRY.to_vec(),
            timeout: Duration::from_secs(15),
            disable_after: Duration::from_hours(120),
            concurrency: 512,
            allow_http: false,
            allow_ports: vec![443],
            allow_networks: Vec::new(),
            verify_callbacks: true,
            ca_file: None,
        }
    }
}

impl Notifications {
    pub fn has_notifier(&self) -> bool {
        self.secret_key_file.is_some()
    }

    pub(super) fn check(&self, source: &Source<'_>) -> Result<(), ConfigError> {
        source.section("notifications").refuse_first(&[
            (self.retry_schedule.is_empty(), "retry_schedule", "it is empty: name a wait, such as [\"5s\", \"5m\"]"),
            (self.timeout.is_zero(), "timeout", "a request needs time: the default is \"15s\""),
            (self.concurrency == 0, "concurrency", "0 would let no request out"),
            (self.allow_ports.contains(&0), "allow_ports", "0 is no port"),
        ])
    }
}
