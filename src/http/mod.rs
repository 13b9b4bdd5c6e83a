//! The web UI and the REST API: one HTTP server, and the thread pools for blocking work.

pub(crate) mod api;
pub mod blocking_pools;
pub mod web;
