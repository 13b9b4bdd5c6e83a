//! What the targets share.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// To be called first: libFuzzer's own hook ends the process at each panic, those included that the program catches
/// (in mailparse) and that a property expects (in imap-proto).
pub fn let_panics_be_caught() {
    std::panic::set_hook(Box::new(|panic| LAST.set(panic.to_string())));
}

/// Ends the process, which libFuzzer calls a crash, where the property panics.
pub fn held(property: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(property)).is_err() {
        eprintln!("{}", LAST.take());
        std::process::abort();
    }
}
