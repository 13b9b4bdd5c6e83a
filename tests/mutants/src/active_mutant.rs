//! Which mutant is awake, if any. `tests/mutants/run` puts this beside the mutants; it is in no other build.
//!
//! What says so is the limit to this process's resident set, which Linux has and does not keep (getrlimit(2)): every process
//! inherits it that a test starts, one without an environment too, and many tests can run side by side.

use rustix::process::{Resource, getrlimit};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// From here on, in KiB, nobody is awake: those that are reached are noted in the file of the number above it.
const NOTED: usize = 1_000_000;

static ASKED: OnceLock<Option<usize>> = OnceLock::new();
/// Open from the first that is reached on: a process may confine itself meanwhile, and open no file any more.
static NOTES: OnceLock<Option<File>> = OnceLock::new();
static REACHED: [AtomicBool; 8192] = [const { AtomicBool::new(false) }; 8192];

/// Whether this mutant is awake.
pub fn is(number: usize) -> bool {
    let asked = ASKED.get_or_init(|| getrlimit(Resource::Rss).current.and_then(|bytes| usize::try_from(bytes / 1024).ok()));
    match *asked {
        Some(asked) if asked >= NOTED => {
            if !REACHED[number].swap(true, Ordering::Relaxed) {
                let path = || format!(concat!(env!("CARGO_MANIFEST_DIR"), "/reached/{}"), asked - NOTED);
                if let Some(mut file) = NOTES.get_or_init(|| OpenOptions::new().append(true).open(path()).ok()).as_ref() {
                    let _ = file.write_all(format!("{number}\n").as_bytes());
                }
            }
            false
        }
        asked => asked == Some(number),
    }
}
