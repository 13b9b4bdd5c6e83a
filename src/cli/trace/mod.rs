//! `trace`: one message's whole history, across all hosts.

mod text;

use super::progress::Progress;
use super::site_options::SiteOptions;
use super::{Ended, fail, help, print};
use crate::base::timestamp;
use crate::operations::trace::trace;
use clap::Args;
use std::time::Duration;
use sysexits::ExitCode;

/// The time limit of the whole search: a queue id or an address has no index of its own.
const PATIENCE: Duration = Duration::from_mins(10);

#[derive(Debug, Args)]
#[command(after_help = help("trace"))]
pub(crate) struct Arguments {
    /// A Message-ID, a queue id, an address, @DOMAIN, the beginning of an address, or a part of a subject or an author
    #[arg(value_name = "TEXT", allow_hyphen_values = true)]
    what: String,
    #[command(flatten)]
    site: SiteOptions,
    /// How far back to look for what is found by no index: 2d, 90m, 2026-11-20, 2026-11-20T03:00:00Z
    #[arg(long, value_name = "WHEN", default_value = "5d", value_parser = timestamp::since)]
    since: i64,
    /// At most so many messages, the newest first
    #[arg(long, value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    limit: u16,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    if arguments.what.trim().is_empty() {
        return Err(fail(
            ExitCode::Usage,
            "say what to trace: a Message-ID, a queue id, an address, or a part of a subject or an author",
        ));
    }
    let progress = Progress::watch("asking the ledger");
    let (site, mut database) = arguments.site.open(PATIENCE)?;
    let traced = trace(&site, database.as_mut(), &arguments.what, arguments.since, arguments.limit.into())?;
    drop(progress);
    print(arguments.json, &traced, || text::text(&traced, &site, arguments.since));
    Ok(if traced.messages.is_empty() { ExitCode::NoInput } else { ExitCode::Ok })
}
