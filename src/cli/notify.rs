//! `notify`: how far behind subscribers are, telling them once more what was given up, and giving up.

use super::site_options::{LONGEST_ANSWER, SiteOptions, failed};
use super::subscription::{one, told_by};
use super::{complain, json, say, table};
use crate::base::timestamp;
use crate::ledger::{Database, time_span};
use crate::operations::notifications::{self, Behind, GivenUp, Overview};
use crate::operations::operations_log::CommandLine;
use crate::operations::subscriptions::{SubscriptionState, UNANSWERED, notifications_are};
use crate::site::Site;
use crate::webhook::payload;
use clap::{Args, Subcommand};
use std::time::Duration;
use sysexits::ExitCode;
use uuid::Uuid;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// How far behind subscribers are: what is to be told, what was given up, and whose receivers rest
    Status(Status),
    /// Tell once more what was given up, or all that happened
    Redeliver(Redeliver),
    /// Tell a subscription no more what it is still to be told
    GiveUp(GiveUp),
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
  maildrop_command notify redeliver --failed --since 1d
  maildrop_command notify redeliver --all --since 2h --subscription 0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b

What was given up is due at once, as if it had never been tried, and a receiver that rests is asked at once. The notifier tells it: \
see that one runs. It has the same webhook-id as before. What a callback is to be told that has not answered its question yet waits \
until it has.

Where it ends half way, what was due again by then stays so; run once more, it goes on, with --all from the beginning.

It needs the rights of sql/*/grants-operator.sql.

Exit status: 0, 64 for a mistake in the arguments, 65 for the one subscription whose callback has not answered its question yet, \
66 if there is no such subscription, 69 if the database cannot be asked, 78 if the configuration cannot be read.")]
pub(crate) struct Redeliver {
    #[command(flatten)]
    site: SiteOptions,
    /// What was given up: so it is without a word as well
    #[arg(long, conflicts_with = "all")]
    failed: bool,
    /// All that happened, whether the receiver has taken it before or not
    #[arg(long, requires_all = ["subscription", "since"])]
    all: bool,
    /// Of this subscription only
    #[arg(long, value_name = "ID")]
    subscription: Option<Uuid>,
    /// What was given up since: 1d, 2026-11-20, 2026-11-20T03:00:00Z; with --all, what happened since
    #[arg(long, value_name = "TIME", value_parser = timestamp::since)]
    since: Option<i64>,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  maildrop_command notify give-up --subscription 0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b --before 1d
  maildrop_command notify give-up --subscription 0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b --event evt_0193a1b2c3d47e5f8a9b0c1d2e3f4a01

For a receiver that has been away for long and wants only what is new, or that stumbles over one event, which holds back the rest \
where it is told in order. What is given up is kept like what was tried in vain to the end: `notify redeliver` tells it after all. \
What a notifier has in hand at that moment, at most a hundred of a subscription, may still be sent.

It needs the rights of sql/*/grants-operator.sql.

Exit status: 0, 64 for a mistake in the arguments, 66 if there is no such subscription or event, 69 if the database cannot be asked, \
78 if the configuration cannot be read.")]
pub(crate) struct GiveUp {
    #[command(flatten)]
    site: SiteOptions,
    /// What this one is still to be told
    #[arg(long, value_name = "ID")]
    subscription: Uuid,
    /// Only what happened before: 1d, 2026-11-20, 2026-11-20T03:00:00Z
    #[arg(long, value_name = "TIME", value_parser = timestamp::since, conflicts_with = "event")]
    before: Option<i64>,
    /// Only this event, by its webhook-id
    #[arg(long, value_name = "EVENT", value_parser = event)]
    event: Option<Uuid>,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

fn event(text: &str) -> Result<Uuid, String> {
    payload::read_id(text).ok_or_else(|| "write it as in webhook-id: evt_0193a1b2c3d47e5f8a9b0c1d2e3f4a01".into())
}

pub(crate) fn run(command: &Command) -> Result<ExitCode, ExitCode> {
    match command {
        Command::Status(arguments) => {
            let mut database = open(&arguments.site)?.1;
            let overview = notifications::status(database.as_mut()).map_err(|error| failed(&error))?;
            if arguments.json { say(&json(&overview)) } else { tell(&overview) }
        }
        Command::Redeliver(arguments) => redeliver(arguments)?,
        Command::GiveUp(arguments) => give_up(arguments)?,
    }
    Ok(ExitCode::Ok)
}

/// The database of a site that tells subscribers what happens.
fn open(options: &SiteOptions) -> Result<(Site, Box<dyn Database>), ExitCode> {
    let (site, database) = options.open(LONGEST_ANSWER)?;
    told_by(&site)?;
    Ok((site, database))
}

fn redeliver(arguments: &Redeliver) -> Result<(), ExitCode> {
    let (site, mut database) = open(&arguments.site)?;
    if let Some(id) = arguments.subscription
        && one(database.as_mut(), id)?.state == SubscriptionState::Unverified
    {
        complain(UNANSWERED);
        return Err(ExitCode::DataErr);
    }
    let by = CommandLine::of(&site);
    let told = match (arguments.all, arguments.subscription, arguments.since) {
        (true, Some(id), Some(since)) => {
            let until = time_span::now(database.as_mut()).map_err(|error| failed(&error))?;
            notifications::tell_all(database.as_mut(), by.actor(), id, (since, until), None, false, None)
        }
        (_, subscription, since) => notifications::redeliver(database.as_mut(), by.actor(), subscription, since, None),
    };
    let told = told.map_err(|error| failed(&error))?.notifications;
    let due = notifications_are(told, "due again");
    if arguments.json {
        say(&json(&serde_json::json!({ "due_again": told })));
    } else {
        say(&format!("{due}."));
    }
    Ok(())
}

fn give_up(arguments: &GiveUp) -> Result<(), ExitCode> {
    let (site, mut database) = open(&arguments.site)?;
    one(database.as_mut(), arguments.subscription)?;
    let what = match (arguments.event, arguments.before) {
        (Some(event), _) => GivenUp::Event(event),
        (None, Some(moment)) => GivenUp::Before(moment),
        (None, None) => GivenUp::All,
    };
    let by = CommandLine::of(&site);
    let given_up = notifications::give_up(database.as_mut(), by.actor(), arguments.subscription, what);
    let Some(given_up) = given_up.map_err(|error| failed(&error))? else {
        complain("there is no such event: it has not happened, is not published yet, or was pruned");
        return Err(ExitCode::NoInput);
    };
    let outcome = notifications_are(given_up, "given up");
    if arguments.json {
        say(&json(&serde_json::json!({ "given_up": given_up })));
    } else {
        say(&format!("{outcome}."));
    }
    Ok(())
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
        (None, None) => behind.state.to_string(),
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
