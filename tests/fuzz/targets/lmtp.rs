//! Any bytes of an LMTP client's.
#![no_main]

mod held;

use libfuzzer_sys::fuzz_target;
use maildrop_command::service::lmtp::property_tests::any_bytes;

fuzz_target!(init: held::let_panics_be_caught(), |data: &[u8]| {
    held::held(|| any_bytes(data));
});
