//! `stats`: the results of deliveries.

mod prometheus;
mod table;

use super::progress::Progress;
use super::site_options::SiteOptions;
use super::{Ended, fail, help, json, print_line};
use crate::base::files::sync;
use crate::base::timestamp;
use crate::operations::notifications;
use crate::operations::stats::{self, Since};
use clap::{Args, ValueEnum};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use sysexits::ExitCode;

/// The time limit of the whole count.
const PATIENCE: Duration = Duration::from_mins(30);

#[derive(Debug, Args)]
#[command(after_help = help("stats"))]
pub(crate) struct Arguments {
    #[command(flatten)]
    site: SiteOptions,
    /// What began since: 2d, 90m (ago), 2026-11-20, 2026-11-20T03:00:00Z
    #[arg(long, value_name = "WHEN", default_value = "1d", value_parser = since)]
    since: Since,
    /// How it is printed
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

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let format = if arguments.json { Format::Json } else { arguments.format };
    let window = match arguments.since {
        Since::Ago(ago) => ago,
        Since::Moment(_) => Duration::ZERO,
    };
    if format == Format::Prometheus && window.is_zero() {
        let text = "--format prometheus wants a window that moves with time, such as --since 1h: its name is a label";
        return Err(fail(ExitCode::Usage, text));
    }
    let progress = Progress::watch("reading the ledger");
    let (_, mut database) = arguments.site.open(PATIENCE)?;
    let mut counted = stats::count(database.as_mut(), arguments.since)?;
    counted.notifications = notifications::figures(database.as_mut())?;
    let span = (counted.from, counted.until.saturating_add(1));
    counted.notification_attempts = stats::notification_stats(database.as_mut(), span)?;
    drop(progress);
    let text = match format {
        Format::Table => table::text(&counted),
        Format::Json => json(&counted),
        Format::Prometheus => prometheus::text(&counted, window),
    };
    match &arguments.output {
        None => print_line(text.trim_end()),
        Some(file) => replace(file, text.trim_end()).map_err(|error| {
            let text = format!("{}: {error}: its directory has to exist, and to be writable for us", file.display());
            fail(ExitCode::CantCreat, text)
        })?,
    }
    Ok(ExitCode::Ok)
}

/// Replaces a file in one step. The new file gets its name in `.prom`, which node_exporter reads, only when it is
/// complete. A link stays, and its target is replaced. A target that is no regular file (/dev/null, /dev/stdout, a
/// pipe) is written to, since root could replace the device.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    let file = match std::fs::metadata(file) {
        Ok(there) if there.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
        Ok(there) if !there.is_file() => {
            return std::fs::OpenOptions::new().write(true).open(file).and_then(|mut open| writeln!(open, "{text}"));
        }
        Ok(_) => &std::fs::canonicalize(file)?,
        // The file does not exist yet, or the write will fail.
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
