//! The web UI on one machine, asked by its routes.

mod failures_on_screen;
mod login_by_proxy;
mod message_content_embedded;
mod redelivery_embedded;
pub mod screens_embedded;
