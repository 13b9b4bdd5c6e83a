//! `trace`: one message's whole history, across all hosts.

mod text;

use super::site_options::{SiteOptions, failed};
use super::{complain, json, say};
use crate::base::timestamp;
use crate::operations::trace::trace;
use clap::Args;
use std::time::Duration;
use sysexits::ExitCode;

/// How long all of it may take: a queue id or an address has no index of its own.
const PATIENCE: Duration = Duration::from_mins(10);

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  maildrop_command trace '<123-abc@mail.google.com>'
  maildrop_command trace 4bFQzT2vJcz1sN
  maildrop_command trace scuba@mail.axial.net --since 2h
  maildrop_command trace --json '<123-abc@mail.google.com>' | jq '.messages[].recipients'

What stands in <angle brackets> is a Message-ID (quote it from the shell). What has no @ is a queue id. Anything else \
could be either: it is looked for as a Message-ID first and, if there is none, as an address; the first line says as \
what it was found. An address finds what was tried for that recipient or for that mailbox, and what that envelope sender \
sent.

A Message-ID has an index, and is found however old it is. A queue id or an address is looked for in what was tried since \
--since; five days is how long Postfix keeps a message before it gives it up (maximal_queue_lifetime).

Several messages may share one Message-ID: senders reuse them, and filters rewrite what is in them. Each has a history of \
its own.

Exit status: 0 if there is something to tell, 66 if nothing was found, 69 if the database cannot be asked, 78 if the \
configuration cannot be read.")]
pub(crate) struct Arguments {
    /// A Message-ID, a queue id, or an address
    #[arg(value_name = "MESSAGE-ID|QUEUE-ID|ADDRESS", allow_hyphen_values = true)]
    what: String,
    #[command(flatten)]
    site: SiteOptions,
    /// How far back to look for a queue id or an address: 2d, 90m, 2026-11-20, 2026-11-20T03:00:00Z
    #[arg(long, value_name = "WHEN", default_value = "5d", value_parser = timestamp::since)]
    since: i64,
    /// At most so many messages, the newest first
    #[arg(long, value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    limit: u16,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, ExitCode> {
    if arguments.what.trim().is_empty() {
        complain("say what to trace: a Message-ID, a queue id or an address");
        return Err(ExitCode::Usage);
    }
    let slow = super::Slow::watch("asking the ledger");
    let (site, mut database) = arguments.site.open(PATIENCE)?;
    let traced = trace(&site, database.as_mut(), &arguments.what, arguments.since, arguments.limit.into())
        .map_err(|error| failed(&error))?;
    drop(slow);
    say(&if arguments.json { json(&traced) } else { text::text(&traced, &site, arguments.since) });
    Ok(if traced.messages.is_empty() { ExitCode::NoInput } else { ExitCode::Ok })
}
