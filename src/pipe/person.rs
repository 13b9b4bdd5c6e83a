//! What a person at a terminal reads of a delivery that waits. Postfix's pipe(8) and local(8) give a delivery no terminal.

use crate::base::server_waits;
use crate::base::terminal::complain;
use crate::site::Site;
use std::io::{IsTerminal, stderr, stdin, stdout};
use std::thread;
use std::time::{Duration, Instant};

/// The interval between two lines that say what the delivery waits for.
const EVERY: Duration = Duration::from_secs(5);

/// Whether a person has started this.
pub(super) fn is_at_terminal() -> bool {
    stdin().is_terminal() || stdout().is_terminal() || stderr().is_terminal()
}

/// Prints a line, if a person reads it.
pub(super) fn notify_person(text: &str) {
    if stderr().is_terminal() {
        complain(text);
    }
}

/// Prints until this process ends which server the delivery waits for, if a person reads it.
pub(super) fn report_waits(site: &Site) {
    if !stderr().is_terminal() {
        return;
    }
    let (servers, began) = (site.servers(), Instant::now());
    let report = move || {
        loop {
            thread::sleep(EVERY);
            let awaited = server_waits::awaited();
            let server = servers.iter().find(|server| Some(server.kind) == awaited);
            let what = server.map_or_else(|| "delivering".to_owned(), |server| format!("waiting for {}", server.name));
            complain(&format!("{what} … {} s", began.elapsed().as_secs()));
        }
    };
    // Without a thread nothing is printed.
    drop(thread::Builder::new().name("waits".into()).spawn(report));
}
