//! The program that hands a message over and waits for the result.

use crate::database::DatabaseError;
use std::fmt;

/// Postfix's pipe(8), for example.
pub trait Caller: fmt::Debug {
    /// Whether the caller has died. What it wrote may then be only the beginning of a message, which must not be appended.
    /// Postfix still has the whole message, and retries it.
    fn is_gone(&self) -> bool;

    /// Called once when the delivery begins to wait for a database server, with the reason.
    fn is_kept_waiting(&self, _reason: &DatabaseError) {}
}

/// A caller that cannot die: the whole message is in a file or a mailbox.
#[derive(Clone, Copy, Debug)]
pub struct NoCaller;

impl Caller for NoCaller {
    fn is_gone(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_at_hand_is_whole_and_stays_so() {
        assert!(!NoCaller.is_gone());
    }
}
