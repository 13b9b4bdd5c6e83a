//! What a webhook contains and when it is sent: allowed callbacks, secrets, payloads, signatures, and the retry schedule.
//! There is no input or output here, except for the key file.
//!
//! It follows Standard Webhooks, version 1.0.0 (<https://github.com/standard-webhooks/standard-webhooks>).

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
