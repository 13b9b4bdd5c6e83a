//! Any bytes on standard input.
#![no_main]

mod held;
#[path = "../../properties/message.rs"]
mod message;

use libfuzzer_sys::fuzz_target;

fuzz_target!(init: held::let_panics_be_caught(), |data: &[u8]| {
    held::held(|| message::holds(data));
});
