//! Webhooks as both ends agree on them: allowed callbacks, the shared secret, payloads, signatures, and the retry schedule. No
//! input or output except for the key file.
//!
//! By the specification of Standard Webhooks, version 1.0.0 (<https://github.com/standard-webhooks/standard-webhooks>).

mod callback;
mod networks;
pub(crate) mod payload;
mod retry;
mod signature;

pub use callback::{Callback, Refused};
#[cfg(test)]
pub(crate) use callback::{NOT_PUBLIC, THIS_MACHINE};
pub use retry::{RetryAfter, Schedule};
pub use signature::{MasterKey, ROTATION, WebhookSecret, sign};
