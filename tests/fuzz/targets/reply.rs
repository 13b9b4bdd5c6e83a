//! Any bytes of an IMAP server's.
#![no_main]

mod held;

use libfuzzer_sys::fuzz_target;

fuzz_target!(init: held::let_panics_be_caught(), |data: &[u8]| {
    held::held(|| maildrop_command::mailbox::imap::properties::any_reply(data));
});
