//! Any bytes of an IMAP server's.
#![no_main]

mod held;
#[path = "../../properties/imap/imap_proto_reads.rs"]
mod imap_proto_reads;

use libfuzzer_sys::fuzz_target;
use maildrop_command::imap::property_tests::{Message, Read, any_reply};

fuzz_target!(init: held::let_panics_be_caught(), |data: &[u8]| {
    held::held(|| any_reply(data, &imap_proto_reads::the_same));
});
