//! Tests that this machine, or this user, has not the means for.

use std::io::Write;
use std::path::Path;

/// Ends this test, and adds `SERVER TEST` to the list.
pub fn did_not_run(server: &str, list: &Path) -> ! {
    let test = std::env::var("NEXTEST_TEST_NAME").ok();
    let test = test.or_else(|| std::thread::current().name().map(str::to_owned)).unwrap_or_else(|| "a test".to_owned());
    let mut list = std::fs::OpenOptions::new().append(true).create(true).open(list).expect("the list can be opened");
    // In one piece, since other tests write as well.
    list.write_all(format!("{server} {test}\n").as_bytes()).expect("the list can be written");
    if std::env::var_os("NEXTEST").is_some() {
        // nextest gives each test a process of its own.
        std::process::exit(0);
    }
    // Under `cargo test` all tests share one process; tests/run knows from the list what has not really failed.
    panic!("it needs {server}, which is not here");
}
