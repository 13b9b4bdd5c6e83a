//! Bugs to order: only in the program that the tests build (feature `test-faults`).
//!
//! A panic, an abort or a hang of a delivery has to leave the message with Postfix. No input provokes any of them, as
//! far as anybody knows; so a test says by `MAILDROP_TEST_FAULT=panic@imap` what is to happen, and where.

use std::time::Duration;

/// Commits the fault that the environment orders at this place, if it orders one here.
pub(crate) fn at(place: &str) {
    let ordered = std::env::var("MAILDROP_TEST_FAULT").unwrap_or_default();
    match ordered.split_once('@') {
        Some((fault, there)) if there == place => commit(fault),
        _ => {}
    }
}

/// Commits the fault that the message orders, by a field of its own: `X-Test-Fault: abort`. The environment has to say
/// `MAILDROP_TEST_FAULT=by-message`.
pub(crate) fn of(message: &[u8]) {
    if std::env::var("MAILDROP_TEST_FAULT").is_ok_and(|fault| fault == "by-message") {
        let text = String::from_utf8_lossy(message);
        if let Some(fault) = text.lines().find_map(|line| line.strip_prefix("X-Test-Fault: ")) {
            commit(fault.trim_end());
        }
    }
}

#[allow(clippy::panic, reason = "that is what it is for")]
fn commit(fault: &str) {
    match fault {
        "panic" => panic!("a fault to order"),
        // A panic while another unwinds: the runtime aborts.
        "panic-twice" => {
            let _second = PanicsWhenDropped;
            panic!("a fault to order");
        }
        "abort" => std::process::abort(),
        "overflow" => drop(std::hint::black_box(deeper(0))),
        "hang" => loop {
            std::thread::sleep(Duration::from_secs(3600));
        },
        "loop" => loop {
            std::hint::spin_loop();
        },
        // Not all at once, and each piece is written to.
        "4GB" => drop(std::hint::black_box((0..64).map(|_| vec![1_u8; 64 << 20]).collect::<Vec<_>>())),
        // The allocator's failure aborts, as that of any growing Vec does.
        "memory" => drop(std::hint::black_box(Vec::<u8>::with_capacity(isize::MAX as usize))),
        other => panic!("no such fault: {other}"),
    }
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    #[allow(clippy::panic, reason = "that is what it is for")]
    fn drop(&mut self) {
        panic!("a second fault to order");
    }
}

#[allow(unconditional_recursion, reason = "that is what it is for")]
fn deeper(depth: u64) -> u64 {
    let room = std::hint::black_box([depth; 1024]);
    deeper(depth + 1).wrapping_add(room[1])
}
