//! Any text as the HTML of a message: the first byte says how often the others stand in it.
#![no_main]

mod held;

use libfuzzer_sys::fuzz_target;
use maildrop_command::http::web::property_tests::any_html;

/// What takes time in proportion to its length is read in less than a second.
const LONGEST: usize = 1 << 20;

fuzz_target!(init: held::let_panics_be_caught(), |data: &[u8]| {
    let Some((first, bytes)) = data.split_first() else { return };
    let times = (1 << (first % 16)).min(LONGEST / bytes.len().max(1));
    let text = String::from_utf8_lossy(bytes);
    held::held(|| any_html(&text.repeat(times)));
});
