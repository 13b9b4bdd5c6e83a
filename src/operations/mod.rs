//! What people and programs ask of a site besides deliveries. Each operation returns data; `cli` prints it.

pub(crate) mod activity;
pub mod audit;
pub(crate) mod check;
pub(crate) mod content;
pub(crate) mod dovecot_settings;
pub(crate) mod finish_owed;
pub(crate) mod lock_holder;
pub mod locks;
pub(crate) mod manual_redelivery;
pub(crate) mod notifications;
pub(crate) mod operations_log;
pub(crate) mod prune;
pub(crate) mod quickstart;
pub mod redelivery;
pub(crate) mod replay;
pub(crate) mod search;
pub(crate) mod singleton_lock;
pub(crate) mod stats;
pub(crate) mod submission;
pub(crate) mod submission_status;
pub(crate) mod subscriptions;
pub(crate) mod tokens;
pub(crate) mod trace;
pub(crate) mod web_logins;
