//! Any text where only a word belongs: IMAP arguments, SQL, log records, the line that Postfix reads.
#![no_main]

mod held;
#[path = "../../properties/verdict.rs"]
mod verdict;

use libfuzzer_sys::fuzz_target;

fuzz_target!(init: held::let_panics_be_caught(), |data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    held::held(|| maildrop_command::imap::property_tests::any_argument(&text));
    held::held(|| maildrop_command::database::property_tests::any_text(&text));
    held::held(|| maildrop_command::base::log::property_tests::any_text(&text));
    held::held(|| verdict::holds(&text));
});
