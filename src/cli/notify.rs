//! `notify`: how far behind subscribers are, and telling them once more what was given up.

use super::site_options::{LONGEST_ANSWER, SiteOptions, failed};
use super::{complain, json, say, table};
use crate::base::timestamp;
use crate::operations::notifications::{self, Behind, Overview};
use crate::operations::subscriptions::{self, UNANSWERED, UNVERIFIED};
use clap::{Args, Subcommand};
use std::time::Duration;
use sysexits::ExitCode;
use uuid::Uuid;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// How far behind subscribers are: what is to be told, what was given up, and whose receivers rest
    Status(Status),
    /// Tell once more what was given up
    Redeliver(Redeliver),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  maildrop_command notify status

It needs the rights of sql/*/grants-operator.sql.

Exit status: 0, 69 if the database cannot be asked, 78 if the configuration cannot be read.")]
pub(crate) struct Status {
    #[command(flatten)]
    site: SiteOptions,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  maildrop_command notify redeliver --since 1d

What was given up is due at once, as if it had never been tried, and a receiver that rests is asked at once. The notifier tells it: \
see that one runs. It has the same webhook-id as before. What a callback is to be told that has not answered its question yet waits \
until it has.

It needs the rights of sql/*/grants-operator.sql.

Exit status: 0, 65 for the one subscription whose callback has not answered its question yet, 69 if the database cannot be asked, 78 if the configuration cannot be read.")]
pub(crate) struct Redeliver {
    #[command(flatten)]
    site: SiteOptions,
    /// Of this subscription only
    #[arg(long, value_name = "ID")]
    subscription: Option<Uuid>,
    /// What was given up since: 1d, 2026-11-20, 2026-11-20T03:00:00Z
    #[arg(long, value_name = "TIME", value_parser = timestamp::since)]
    since: Option<i64>,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(command: &Command) -> Result<ExitCode, ExitCode> {
    match command {
        Command::Status(arguments) => {
            let (_, mut database) = arguments.site.open(LONGEST_ANSWER)?;
            let overview = notifications::status(database.as_mut()).map_err(|error| failed(&error))?;
            if arguments.json { say(&json(&overview)) } else { tell(&overview) }
        }
        Command::Redeliver(arguments) => {
            let (_, mut database) = arguments.site.open(LONGEST_ANSWER)?;
            if let Some(id) = arguments.subscription {
                let found = subscriptions::read(database.as_mut(), Some(id)).map_err(|error| failed(&error))?;
                if found.iter().any(|one| one.state == UNVERIFIED) {
                    complain(UNANSWERED);
                    return Err(ExitCode::DataErr);
                }
            }
            let told = notifications::redeliver(database.as_mut(), arguments.subscription, arguments.since);
            let told = told.map_err(|error| failed(&error))?;
            if arguments.json {
                say(&json(&serde_json::json!({ "due_again": told })));
            } else {
                say(&format!("{told} notifications are due again."));
            }
        }
    }
    Ok(ExitCode::Ok)
}

fn tell(overview: &Overview) {
    let span = |seconds: f64| timestamp::span(Duration::try_from_secs_f64(seconds).unwrap_or_default());
    let oldest = overview.oldest_unpublished_s.map(|age| format!(", the oldest for {}", span(age))).unwrap_or_default();
    say(&format!("{} events wait to be published{oldest}.", overview.unpublished));
    if overview.subscriptions.is_empty() {
        return say("Nobody is subscribed.");
    }
    let stands = |behind: &Behind| match (&behind.reason, behind.progress.rests_s) {
        (Some(reason), _) => format!("{}: {reason}", behind.state),
        (None, Some(rest)) => format!("{}, rests for {}", behind.state, span(rest)),
        (None, None) => behind.state.clone(),
    };
    let rows = overview.subscriptions.iter().map(|behind| {
        [
            behind.subscription.to_string(),
            format!("{} {}", behind.resource, behind.resource_id).trim_end().to_owned(),
            stands(behind),
            behind.progress.pending.to_string(),
            behind.progress.given_up.to_string(),
            behind.progress.last_success_ago_s.map(|ago| format!("{} ago", span(ago))).unwrap_or_default(),
            behind.progress.last_failure.clone().unwrap_or_default(),
        ]
    });
    say(&table(["subscription", "to", "state", "pending", "given up", "last taken", "last failure"], rows));
}
