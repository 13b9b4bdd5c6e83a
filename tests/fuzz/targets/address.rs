//! Any text as an address.
#![no_main]

#[path = "../../properties/address.rs"]
mod address;
mod held;

use libfuzzer_sys::fuzz_target;

fuzz_target!(init: held::let_panics_be_caught(), |data: &[u8]| {
    held::held(|| address::holds(&String::from_utf8_lossy(data)));
});
