//! The web UI and the REST API: one HTTP server, and one pool of threads for what blocks.

pub(crate) mod api;
pub mod blocking;
pub mod web;
