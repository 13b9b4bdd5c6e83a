use axum::http::HeaderMap;
use standardwebhooks::{Webhook, WebhookError};

/// Whether `body`, as it came, was signed with `secret` (whsec_…) within the last five minutes.
pub fn verify(secret: &str, headers: &HeaderMap, body: &[u8]) -> Result<(), WebhookError> {
    Webhook::new(secret)?.verify(body, headers)
}
