//! What people type: a file per subcommand. Each asks `operations`, prints what they give back, and ends with an exit status of
//! sysexits(3). Uses all rooms below.

pub mod audit;
pub(crate) mod check;
pub(crate) mod lock;
pub(crate) mod migrate;
pub(crate) mod prune;
pub(crate) mod replay;
mod site_options;
pub(crate) mod stats;
pub(crate) mod trace;

use crate::base::server_waits;
use crate::base::terminal::{complain, printable};
use crate::base::timestamp::duration;
use comfy_table::ContentArrangement;
use std::io::{ErrorKind as ErrorKindOfIo, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

/// Whether something could not be said: on a full disk.
pub(crate) static UNSAID: AtomicBool = AtomicBool::new(false);

/// Prints what a subcommand other than `deliver` has to say.
fn say(text: &str) {
    said(writeln!(std::io::stdout(), "{text}"));
}

/// What programs get, in one line.
fn json(what: &impl serde::Serialize) -> String {
    // Nothing that is told has keys which are no text, the one thing that JSON lacks.
    serde_json::to_value(what).unwrap_or_default().to_string()
}

/// Remembers, and complains once, if something could not be said.
pub(crate) fn said(printed: std::io::Result<()>) {
    match printed {
        // Whoever read it has heard enough: `… | head`.
        Err(error) if error.kind() == ErrorKindOfIo::BrokenPipe => {}
        Err(error) if !UNSAID.swap(true, Ordering::Relaxed) => complain(&format!("standard output: {error}")),
        _ => {}
    }
}

/// A table for people: as wide as their terminal; elsewhere a line for each row, which a search can find.
fn table<const N: usize>(header: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    if let (true, Some((width, _))) = (std::io::stdout().is_terminal(), terminal_size::terminal_size()) {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width.0);
    }
    table.set_header(header);
    for row in rows {
        table.add_row(row.map(|cell| printable(&cell)));
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// Tells a person at a terminal what takes longer than two seconds. Dropped when it is done.
struct Slow(Option<std::sync::mpsc::Sender<()>>);

impl Slow {
    fn watch(what: &'static str) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(None);
        }
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let watch = move || {
            let mut waited = 0;
            while wait.recv_timeout(Duration::from_secs(2)) == Err(RecvTimeoutError::Timeout) {
                waited += 2;
                // Who is waited for says more.
                if !server_waits::is_told() {
                    complain(&format!("{what} … {waited} s"));
                }
            }
        };
        // Without a thread to tell it, it merely goes untold.
        Self(std::thread::Builder::new().spawn(watch).ok().map(|_| done))
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.0.take();
    }
}
