//! Webhooks as both ends agree on them: where a callback may be, the secret that it shares with us, what it is sent, signatures, and
//! when a notification is tried again. No input or output but that of the keys' files.
//!
//! By the specification of Standard Webhooks, version 1.0.0 (<https://github.com/standard-webhooks/standard-webhooks>).

mod callback;
mod networks;
pub(crate) mod payload;
mod retry;
mod secret;

pub use callback::{Callback, Refused};
#[cfg(test)]
pub(crate) use callback::{NOT_PUBLIC, THIS_MACHINE};
pub use retry::{RetryAfter, Schedule};
pub use secret::{MasterKey, ROTATION, WebhookSecret, sign};
