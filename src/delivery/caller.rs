//! Whoever hands a message over, and waits for what becomes of it.

use std::fmt;

/// The program that handed the message over: Postfix's pipe(8), for one.
pub trait Caller: fmt::Debug {
    /// Whether it has died. What it wrote may then be no more than the beginning of a message, and nobody hears how the
    /// delivery ends: nothing may be appended. Postfix has the message, and hands all of it over again.
    fn is_gone(&self) -> bool;
}

/// There is none that could die: the message is at hand, whole, in a file or a mailbox.
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
