//! `stats`: how deliveries went.

mod histogram;
mod tally;
mod tell;

use super::place::{self, Place};
use super::{complain, moment, pages, say};
use crate::database::{Database, DatabaseError};
use clap::{Args, ValueEnum};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use sysexits::ExitCode;

use tally::Tally;

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
within 1 %, the greatest is exact. Each counts the attempts that came to that stage and recorded it.

Not in here: deliveries that were put off or refused before their journal was written (the database or the recipient's \
mailbox out of reach, a wrong configuration, an unknown recipient). The ledger does not know of them; the delivery's log \
does: records \"deferred\" and \"refused\", fields cause and verdict.

For Prometheus, run it from a timer, and let node_exporter's textfile collector read the file (it reads *.prom). The file \
is replaced in one step. What is counted, is counted within the window that the label names, and goes down again as time \
goes on: gauges, not counters, so do not take rate() of them. Percentiles have the label percentile; 100 is the greatest.

Exit status: 0, 64 for a mistake in the arguments, 69 if the database cannot be asked, 73 if the file cannot be written, \
78 if the configuration cannot be read.")]
pub(super) struct Arguments {
    #[command(flatten)]
    place: Place,
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

/// Since when.
#[derive(Clone, Copy, Debug)]
struct Since {
    /// In microseconds since 1970.
    moment: i64,
    /// How long ago, if it was said so.
    ago: Option<Duration>,
}

fn since(text: &str) -> Result<Since, String> {
    Ok(Since { moment: moment::since(text)?, ago: super::duration(text).ok() })
}

/// What was counted.
struct Counted {
    tally: Tally,
    /// In microseconds since 1970, as all moments here.
    from: i64,
    until: i64,
    ago: Option<Duration>,
    /// Messages recorded within the time, and their bytes.
    messages: (u64, u64),
    /// Copies that are owed now.
    owed: u64,
}

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    let format = if arguments.json { Format::Json } else { arguments.format };
    if format == Format::Prometheus && arguments.since.ago.is_none_or(|ago| ago.is_zero()) {
        complain("--format prometheus wants a window that moves with time, such as --since 1h: its name is a label");
        return ExitCode::Usage;
    }
    let slow = super::Slow::watch("reading the ledger");
    let (_, mut database) = match arguments.place.open(PATIENCE) {
        Ok(opened) => opened,
        Err(status) => return status,
    };
    let counted = match count(database.as_mut(), arguments.since) {
        Ok(counted) => counted,
        Err(error) => return place::failed(&error),
    };
    drop(slow);
    let text = match format {
        Format::Table => tell::text(&counted),
        Format::Json => tell::json(&counted).to_string(),
        Format::Prometheus => tell::prometheus(&counted),
    };
    let Some(file) = &arguments.output else {
        say(text.trim_end());
        return ExitCode::Ok;
    };
    match replace(file, text.trim_end()) {
        Ok(()) => ExitCode::Ok,
        Err(error) => {
            complain(&format!("{}: {error}: its directory has to be there, and to be ours to write", file.display()));
            ExitCode::CantCreat
        }
    }
}

fn count(database: &mut dyn Database, since: Since) -> Result<Counted, DatabaseError> {
    let until = pages::now(database)?;
    // "An hour ago" is meant by the clock that wrote the times.
    let from = since.ago.map_or(since.moment, |ago| until.saturating_sub(pages::microseconds(ago)));
    let tally = tally::read(database, from, until.saturating_add(1))?;
    let recorded = database.select(
        "counting messages",
        "SELECT count(*), coalesce(sum(size), 0) FROM messages WHERE recorded_at >= ? AND recorded_at <= ?",
        &[crate::database::Value::Moment(from), crate::database::Value::Moment(until)],
    )?;
    let owed = database.select("counting what is owed", "SELECT count(*) FROM copies WHERE state = 'owed'", &[])?;
    let number = |rows: &[crate::database::Row], column| -> Result<u64, DatabaseError> {
        Ok(rows.first().map(|row| row.value(column)).transpose()?.flatten().unwrap_or_default())
    };
    let messages = (number(&recorded, 0)?, number(&recorded, 1)?);
    Ok(Counted { tally, from, until, ago: since.ago, messages, owed: number(&owed, 0)? })
}

/// Whoever reads the file sees all of the old one or all of the new one. node_exporter reads what ends in `.prom`: the new
/// one does not, until it is whole. A link stays, and what it leads to is replaced. What is no file (/dev/null, /dev/stdout, a
/// pipe) is written to: root would put a file into the place of the system's device.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    let file = match std::fs::metadata(file) {
        Ok(there) if there.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
        Ok(there) if !there.is_file() => {
            return std::fs::OpenOptions::new().write(true).open(file).and_then(|mut open| writeln!(open, "{text}"));
        }
        Ok(_) => &std::fs::canonicalize(file)?,
        // It is not there yet, or cannot be: to write it will tell.
        Err(_) => file,
    };
    let name = file.file_name().ok_or_else(|| io::Error::other("it is not the name of a file"))?;
    let mut new = std::ffi::OsString::from(".");
    new.push(name);
    new.push(format!(".{}.new", std::process::id()));
    let new = file.with_file_name(new);
    let written = std::fs::File::create(&new)
        .and_then(|mut file| writeln!(file, "{text}").and_then(|()| file.sync_all()))
        .and_then(|()| std::fs::rename(&new, file));
    if written.is_err() {
        // It may not be there at all.
        let _ = std::fs::remove_file(&new);
    }
    written
}
