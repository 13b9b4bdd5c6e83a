//! Fixtures of these tests alone; those of several test programs are in tests/support.

pub mod delivery_storm;
pub mod group_replication_servers;
pub mod last_crlf_gate;
pub mod patroni_cluster;
pub mod primary_and_standby;
pub mod rest_client;
pub mod signature_verifier;
pub mod webhook_receiver;
