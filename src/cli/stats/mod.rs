//! `stats`: how deliveries went.

mod prometheus;
mod table;

use super::site_options::{SiteOptions, failed};
use super::{complain, json, say};
use crate::base::files::sync;
use crate::base::timestamp;
use crate::operations::notifications;
use crate::operations::stats::{self, Since};
use clap::{Args, ValueEnum};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use sysexits::ExitCode;

/// How long all of it may take.
const PATIENCE: Duration = Duration::from_mins(30);

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  maildrop_command stats
  maildrop_command stats --since 2h
  maildrop_command stats --json --since 2026-11-20 | jq .stages
  maildrop_command stats --since 1h --format prometheus \\
    --output /var/lib/prometheus/node-exporter/maildrop.prom

Counted are attempts, one per try of Postfix's at one recipient, that began within the time asked for. Percentiles are to \
within 1 %, the greatest is exact. Each counts the attempts that came to that stage and recorded it. Of notifications, the tries are \
counted at what happened within that time; how long after its commit the first one began is by the clocks of the database and of \
the notifier's host.

Not in here: deliveries that were deferred or refused before their journal was written (the database or the recipient's \
mailbox out of reach, a wrong configuration, an unknown recipient). The ledger does not know of them; the delivery's log \
does: records \"deferred\" and \"refused\", fields cause and verdict.

For Prometheus, run it from a timer, and let node_exporter's textfile collector read the file (it reads *.prom). The file \
is replaced in one step. What is counted, is counted within the window that the label names, and goes down again as time \
goes on: gauges, not counters, so do not take rate() of them. Percentiles have the label percentile; 100 is the greatest.

Exit status: 0, 64 for a mistake in the arguments, 69 if the database cannot be asked, 73 if the file cannot be written, \
78 if the configuration cannot be read.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    site: SiteOptions,
    /// What began since: 2d, 90m (ago), 2026-11-20, 2026-11-20T03:00:00Z
    #[arg(long, value_name = "WHEN", default_value = "1d", value_parser = since)]
    since: Since,
    /// How it is told
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Print JSON, for programs: --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Write to FILE instead, replacing it in one step
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people
    Table,
    /// For programs
    Json,
    /// Text for node_exporter's textfile collector
    Prometheus,
}

fn since(text: &str) -> Result<Since, String> {
    let moment = timestamp::since(text)?;
    Ok(timestamp::duration(text).map_or(Since::Moment(moment), Since::Ago))
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, ExitCode> {
    let format = if arguments.json { Format::Json } else { arguments.format };
    let window = match arguments.since {
        Since::Ago(ago) => ago,
        Since::Moment(_) => Duration::ZERO,
    };
    if format == Format::Prometheus && window.is_zero() {
        complain("--format prometheus wants a window that moves with time, such as --since 1h: its name is a label");
        return Err(ExitCode::Usage);
    }
    let slow = super::Slow::watch("reading the ledger");
    let (_, mut database) = arguments.site.open(PATIENCE)?;
    let mut counted = stats::count(database.as_mut(), arguments.since).map_err(|error| failed(&error))?;
    counted.notifications = notifications::figures(database.as_mut()).map_err(|error| failed(&error))?;
    let span = (counted.from, counted.until.saturating_add(1));
    counted.telling = stats::telling(database.as_mut(), span).map_err(|error| failed(&error))?;
    drop(slow);
    let text = match format {
        Format::Table => table::text(&counted),
        Format::Json => json(&counted),
        Format::Prometheus => prometheus::text(&counted, window),
    };
    match &arguments.output {
        None => say(text.trim_end()),
        Some(file) => replace(file, text.trim_end()).map_err(|error| {
            complain(&format!("{}: {error}: its directory has to be there, and to be ours to write", file.display()));
            ExitCode::CantCreat
        })?,
    }
    Ok(ExitCode::Ok)
}

/// Replaces a file in one step. The new one ends in `.prom`, which node_exporter reads, only when it is whole. A link stays, and
/// its target is replaced. What is no file (/dev/null, /dev/stdout, a pipe) is written to: root could replace the device.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    let file = match std::fs::metadata(file) {
        Ok(there) if there.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
        Ok(there) if !there.is_file() => {
            return std::fs::OpenOptions::new().write(true).open(file).and_then(|mut open| writeln!(open, "{text}"));
        }
        Ok(_) => &std::fs::canonicalize(file)?,
        // It is not there yet, or writing fails.
        Err(_) => file,
    };
    let name = file.file_name().ok_or_else(|| io::Error::other("it is not the name of a file"))?;
    let new = file.with_file_name(format!(".{}.{}.new", name.display(), std::process::id()));
    let written = std::fs::File::create(&new)
        .and_then(|mut file| writeln!(file, "{text}").and_then(|()| sync(&file)))
        .and_then(|()| std::fs::rename(&new, file));
    if written.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    written
}
