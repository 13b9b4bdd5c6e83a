//! The message on standard input.

use super::standard_streams::StandardStreams;
use crate::base::terminal::complain;
use crate::delivery::{Caller, Deferral, Refusal, StatusDetail, Verdict};
use crate::message::Message;
use std::io::{self, IsTerminal, Read};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Up to this size, in bytes, a message is read before anything else is done: that takes a millisecond or two, and a thread would
/// cost about what it could gain.
const AT_ONCE: u64 = 1 << 20;

/// How long what was opened meanwhile is kept for a message that comes slowly: pipe(8) writes as fast as we read, but another
/// program need not, and servers limit their connections.
const HELD: Duration = Duration::from_secs(5);

/// Reads the message to its end, and runs `meanwhile` while the rest of a large one comes. `None`: it did not run, or what it
/// opened was closed because the message came slowly.
///
/// # Errors
/// The verdict, where the message is too large, cannot be read, or its writer has died.
pub(super) fn receive<T>(
    size_limit: Option<u64>,
    meanwhile: impl FnOnce() -> T,
) -> Result<(Message, Option<T>), Verdict> {
    ask_at_a_terminal();
    let limit = size_limit.unwrap_or(u64::MAX);
    let raw = up_to(AT_ONCE.min(limit), Vec::new())?;
    if (raw.len() as u64) <= AT_ONCE || raw.len() as u64 > limit {
        return Ok((understood(whole(raw, limit)?)?, None));
    }
    let (tell, hear) = mpsc::channel();
    let reader = thread::Builder::new().name("message".into()).spawn(move || {
        #[cfg(feature = "test-faults")]
        crate::base::fault_injection::at("message");
        // It fails only where the receiver is gone.
        let _ = tell.send(up_to(limit, raw).and_then(|raw| whole(raw, limit)).and_then(understood));
    });
    reader.map_err(|error| failed(&format!("out of threads: {error}")))?;
    let mut opened = Some(meanwhile());
    let mut message = hear.recv_timeout(HELD);
    if matches!(message, Err(RecvTimeoutError::Timeout)) {
        opened = None;
        message = hear.recv().map_err(RecvTimeoutError::from);
    }
    let message = message.map_err(|_| failed("an internal error; the log has the details"))??;
    Ok((message, opened))
}

/// Reads the message to its end, as it comes.
///
/// # Errors
/// As [`receive`].
pub(super) fn read(size_limit: Option<u64>) -> Result<Vec<u8>, Verdict> {
    ask_at_a_terminal();
    let limit = size_limit.unwrap_or(u64::MAX);
    whole(up_to(limit, Vec::new())?, limit)
}

fn ask_at_a_terminal() {
    if io::stdin().is_terminal() {
        // Somebody tries it by hand, and waits.
        complain("reading the message from the terminal; end it with Ctrl-D, or give a file: … < message.eml");
    }
}

/// Reads on up to `end`, and one byte more, where it has not ended by then.
fn up_to(end: u64, mut raw: Vec<u8>) -> Result<Vec<u8>, Verdict> {
    let more = end.saturating_add(1).saturating_sub(raw.len() as u64);
    let read = io::stdin().lock().take(more).read_to_end(&mut raw);
    read.map(|_| raw).map_err(|error| failed(&format!("reading the message: {error}")))
}

/// The message's bytes, if these are all of them.
fn whole(raw: Vec<u8>, limit: u64) -> Result<Vec<u8>, Verdict> {
    if raw.len() as u64 > limit {
        return Err(Verdict::too_big(format!("the message is larger than the {limit} bytes allowed here")));
    }
    // Asked again before each copy is stored: here it saves the servers the work.
    if StandardStreams.is_gone() {
        return Err(caller_gone());
    }
    Ok(raw)
}

/// What is said where nobody is there to hear it.
pub(super) fn caller_gone() -> Verdict {
    Verdict::from(&Refusal::from(Deferral::CallerGone))
}

/// The message that these bytes are.
///
/// # Errors
/// The verdict, where they are none.
pub(super) fn understood(raw: Vec<u8>) -> Result<Message, Verdict> {
    Message::receive(raw).map_err(|error| failed(&error.to_string()))
}

fn failed(text: &str) -> Verdict {
    Verdict::deferred(StatusDetail::SYSTEM, text)
}
