//! What the scenarios share: identities, clients, and processes that are this very test binary started again.

// By this path other files of tests/support find it.
use maildrop_command::base::deadline::Deadline;
use maildrop_command::database::{Client, SqliteDatabase};
use maildrop_command::message::Identity;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Set in a process that a test started: what it is to work on.
const CHILD: &str = "MAILDROP_TEST_CHILD";

pub fn client(queue_id: &str) -> Client {
    Client { host: "mx1.example".into(), pid: std::process::id(), queue_id: Some(queue_id.into()) }
}

/// Far more than anything needs that does not hang: ten processes that sync one after the other, on a slow disk.
pub fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(120))
}

pub fn open(directory: &Path) -> SqliteDatabase {
    maildrop_command::ledger::schema::open_embedded(directory, &client("4bXyz"), soon()).unwrap()
}

pub fn identity(text: &str) -> Identity {
    Identity::of(text.as_bytes())
}

/// A process that runs one test function of this binary, named by its path, on `subject`. Without a subject it does nothing.
pub fn child(function: &str, subject: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", function, "--nocapture", "--quiet", "--test-threads=1"])
        .env(CHILD, subject)
        .stdin(Stdio::null());
    command
}

/// What this process is to work on; `None` where it is no child of a test.
pub fn subject() -> Option<String> {
    std::env::var(CHILD).ok()
}

/// What the test harness of a child writes before it runs anything.
pub const HARNESS: &str = "\nrunning 1 test\n";
