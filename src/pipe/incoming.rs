//! The message on standard input.

use super::standard_streams::StandardStreams;
use crate::base::terminal::complain;
use crate::delivery::{Caller, Deferral, Refusal, StatusDetail, Verdict};
use crate::message::Message;
use std::io::{self, IsTerminal, Read};

/// Reads the message to its end, unchanged.
///
/// # Errors
/// The verdict, if the message is too large, if it cannot be read, or if its writer has died.
pub(super) fn read(size_limit: Option<u64>) -> Result<Vec<u8>, Verdict> {
    if io::stdin().is_terminal() {
        // A person runs this, and may not know that the program waits for input.
        complain("reading the message from the terminal; end it with Ctrl-D, or give a file: … < message.eml");
    }
    let limit = size_limit.unwrap_or(u64::MAX);
    let mut raw = Vec::new();
    // One byte above the limit shows that the message is too large.
    let read = io::stdin().lock().take(limit.saturating_add(1)).read_to_end(&mut raw);
    read.map_err(|error| failed(&format!("reading the message: {error}")))?;
    if raw.len() as u64 > limit {
        return Err(Verdict::too_big(format!("the message is larger than the {limit} bytes allowed here")));
    }
    // The delivery checks this once more before each copy is stored. The check here only saves work.
    if StandardStreams.is_gone() {
        return Err(caller_gone());
    }
    Ok(raw)
}

/// The verdict for a caller that has ended, although no process receives it.
pub(super) fn caller_gone() -> Verdict {
    Verdict::from(&Refusal::from(Deferral::CallerGone))
}

/// # Errors
/// The verdict, if the bytes are no message.
pub(super) fn understood(raw: Vec<u8>) -> Result<Message, Verdict> {
    Message::receive(raw).map_err(|error| failed(&error.to_string()))
}

fn failed(text: &str) -> Verdict {
    Verdict::deferred(StatusDetail::SYSTEM, text)
}
