//! Notifications: a notifier that is started manually, on each engine, and receivers that answer as receivers do; the API by which
//! subscribers look after themselves, and the page by which operators do.

mod application_receiver;
mod bcc_in_events;
mod bulk_requeue;
mod changed_callback;
mod concurrent_changes;
mod domain_filter;
pub mod event_delivery;
pub mod event_schema;
mod fairness;
mod hanging_database_servers;
mod https_receivers;
mod kills_of_notifiers;
mod leases;
mod leftovers;
mod message_source;
mod misbehaving_receivers;
mod notification_stats;
mod notifier_check;
mod old_snapshot;
mod operations_log_of_each_interface;
pub mod operator_commands;
mod receiver_from_the_guide;
mod requeue_during_delivery;
mod rest_api;
mod retries;
mod schemathesis;
mod secrets;
mod submission_by_http;
mod three_subscribers;
mod token_rights;
mod token_shares;
