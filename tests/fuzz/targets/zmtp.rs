//! Any bytes of a ZeroMQ peer's: the first says whether a handshake stands before the others, and how they are split.
#![no_main]

mod held;

use libfuzzer_sys::fuzz_target;
use maildrop_command::protocol::zmtp::property_tests::any_bytes;

fuzz_target!(init: held::let_panics_be_caught(), |data: &[u8]| {
    let Some((first, bytes)) = data.split_first() else { return };
    held::held(|| any_bytes(bytes, first & 1 == 1, usize::from(first >> 1) + 1));
});
