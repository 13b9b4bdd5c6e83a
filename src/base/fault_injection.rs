//! Deliberate faults, only in the program that the tests build (feature `test-faults`).
//!
//! After a panic, an abort or a hang of a delivery, the message must still be with Postfix. No known input provokes any of these,
//! so a test selects the fault and its place: `MAILDROP_TEST_FAULT=panic@imap`.

use std::time::Duration;

/// Commits the fault that the environment selects, if it is for this place.
pub(crate) fn at(place: &str) {
    let ordered = std::env::var("MAILDROP_TEST_FAULT").unwrap_or_default();
    match ordered.split_once('@') {
        Some((fault, there)) if there == place => commit(fault),
        _ => {}
    }
}

/// Commits the fault that the message selects with its field `X-Test-Fault: abort`. The environment must contain
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
        // A panic while another one unwinds: the runtime aborts.
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
        // Each piece is written to: an allocation that is never written to uses no memory.
        "4GB" => drop(std::hint::black_box((0..64).map(|_| vec![1_u8; 64 << 20]).collect::<Vec<_>>())),
        // The failure of the allocator aborts the process, as with any growing Vec.
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
