//! The web UI on real servers, and in a real browser.

mod hostile_messages_in_a_browser;
mod message_content;
mod redelivery_in_a_browser;
mod redelivery_screen;
pub mod screens;
pub mod screens_in_a_browser;
mod service_screen;
pub mod subscriptions_screen;
