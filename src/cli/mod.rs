//! The subcommands, a file each: they print what `operations` return, and end with an exit status of sysexits(3); `Err` is one
//! whose reason has been printed.

pub mod audit;
pub(crate) mod check;
mod folders;
pub(crate) mod inject;
pub(crate) mod lock;
pub(crate) mod migrate;
pub(crate) mod notify;
pub(crate) mod prune;
pub(crate) mod queue;
pub(crate) mod quickstart;
pub(crate) mod replay;
pub(crate) mod service;
pub(crate) mod shunt;
mod site_options;
pub(crate) mod stats;
pub(crate) mod subscription;
pub(crate) mod token;
pub(crate) mod trace;
pub(crate) mod web;

use crate::base::server_waits;
use crate::base::terminal::{complain, printable};
use crate::base::timestamp::duration;
use comfy_table::ContentArrangement;
use std::io::{ErrorKind as ErrorKindOfIo, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Whether part of the output could not be written: on a full disk.
pub(crate) static UNSAID: AtomicBool = AtomicBool::new(false);

fn say(text: &str) {
    said(writeln!(std::io::stdout(), "{text}"));
}

/// JSON, in one line.
fn json(what: &impl serde::Serialize) -> String {
    // It fails only for map keys that are not text.
    serde_json::to_value(what).unwrap_or_default().to_string()
}

/// Ends with an exit status that [`ExitCode`](sysexits::ExitCode) has no room for: another program's, or an init script's.
fn exit(status: u8) -> ! {
    // Its reader is gone.
    let _ = std::io::stdout().flush();
    std::process::exit(status.into())
}

/// Complains, once, if something could not be printed.
pub(crate) fn said(printed: std::io::Result<()>) {
    match printed {
        // The reader has enough: `… | head`.
        Err(error) if error.kind() == ErrorKindOfIo::BrokenPipe => {}
        Err(error) if !UNSAID.swap(true, Ordering::Relaxed) => complain(&format!("standard output: {error}")),
        _ => {}
    }
}

/// A table: as wide as the terminal; elsewhere one line for each row, for grep.
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

/// Until it is dropped, says on a terminal every two seconds that something takes time.
struct Slow {
    _until_dropped: Option<Sender<()>>,
}

impl Slow {
    fn watch(what: &'static str) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self { _until_dropped: None };
        }
        let (done, wait) = channel::<()>();
        let watch = move || {
            let mut waited = 0;
            while wait.recv_timeout(Duration::from_secs(2)) == Err(RecvTimeoutError::Timeout) {
                waited += 2;
                // That says more: which server does not answer.
                if !server_waits::is_told() {
                    complain(&format!("{what} … {waited} s"));
                }
            }
        };
        // Without a thread nothing is said.
        Self { _until_dropped: std::thread::Builder::new().spawn(watch).ok().map(|_| done) }
    }
}

/// Says on a terminal, every two seconds at most, how far something has come.
struct Progress(Option<Instant>);

impl Progress {
    fn new() -> Self {
        Self(std::io::stderr().is_terminal().then(Instant::now))
    }

    fn tell(&mut self, text: impl FnOnce() -> String) {
        if let Some(told) = &mut self.0
            && told.elapsed() >= Duration::from_secs(2)
        {
            complain(&text());
            *told = Instant::now();
        }
    }
}
