//! Any text as the configuration file.
#![no_main]

#[path = "../../properties/config.rs"]
mod config;
mod held;

use libfuzzer_sys::fuzz_target;

fuzz_target!(init: held::let_panics_be_caught(), |data: &[u8]| {
    held::held(|| config::holds(&String::from_utf8_lossy(data)));
});
