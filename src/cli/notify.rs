//! `notify`: the subscribers' backlog, redelivery of notifications, and giving them up.

use super::confirmation::{Confirmation, report_unconfirmed};
use super::site_options::QueryOptions;
use super::subscription::{one, open};
use super::{Ended, fail, help, print, table};
use crate::base::timestamp;
use crate::ledger::time_span;
use crate::operations::notifications::{self, Behind, DropSelection, Overview};
use crate::operations::subscriptions::{SubscriptionState, UNANSWERED, notifications_are};
use crate::webhook::payload;
use clap::{Args, Subcommand};
use std::time::Duration;
use sysexits::ExitCode;
use uuid::Uuid;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show how far behind subscribers are: pending and given-up notifications, and paused receivers
    #[command(after_help = help("notify status"))]
    Status(QueryOptions),
    /// Send notifications again: those that were given up, or all of a time
    #[command(after_help = help("notify redeliver"))]
    Redeliver(Redeliver),
    /// Give up a subscription's pending notifications
    #[command(after_help = help("notify give-up"))]
    GiveUp(GiveUp),
}

#[derive(Debug, Args)]
pub(crate) struct Redeliver {
    #[command(flatten)]
    query: QueryOptions,
    #[command(flatten)]
    confirmation: Confirmation,
    /// Notifications that were given up: the default
    #[arg(long, conflicts_with = "all")]
    given_up: bool,
    /// All events, whether the receiver has accepted them before or not
    #[arg(long, requires_all = ["subscription", "since"])]
    all: bool,
    /// Of this subscription only
    #[arg(long, value_name = "ID")]
    subscription: Option<Uuid>,
    /// Notifications given up since: 1d, 2026-11-20, 2026-11-20T03:00:00Z; with --all, events since
    #[arg(long, value_name = "TIME", value_parser = timestamp::since)]
    since: Option<i64>,
}

#[derive(Debug, Args)]
pub(crate) struct GiveUp {
    #[command(flatten)]
    query: QueryOptions,
    #[command(flatten)]
    confirmation: Confirmation,
    /// The subscription
    #[arg(long, value_name = "ID")]
    subscription: Uuid,
    /// Only events before: 1d, 2026-11-20, 2026-11-20T03:00:00Z
    #[arg(long, value_name = "TIME", value_parser = timestamp::since, conflicts_with = "event")]
    before: Option<i64>,
    /// Only this event, by its webhook-id
    #[arg(long, value_name = "EVENT", value_parser = event)]
    event: Option<Uuid>,
}

fn event(text: &str) -> Result<Uuid, String> {
    payload::read_id(text).ok_or_else(|| "write it as in webhook-id: evt_0193a1b2c3d47e5f8a9b0c1d2e3f4a01".into())
}

pub(crate) fn run(command: &Command) -> Ended {
    match command {
        Command::Status(QueryOptions { site, json }) => {
            let overview = notifications::status(open(site)?.database())?;
            print(*json, &overview, || text(&overview));
        }
        Command::Redeliver(arguments) => return redeliver(arguments),
        Command::GiveUp(arguments) => return give_up(arguments),
    }
    Ok(ExitCode::Ok)
}

fn redeliver(Redeliver { query, confirmation, all, subscription, since, .. }: &Redeliver) -> Ended {
    let mut session = open(&query.site)?;
    let (database, by) = session.parts();
    if let Some(id) = subscription
        && one(database, *id)?.state == SubscriptionState::Unverified
    {
        return Err(fail(ExitCode::DataErr, UNANSWERED));
    }
    if confirmation.is_missing() {
        let many = match (all, *subscription, *since) {
            (true, Some(id), Some(since)) => notifications::count_events(database, id, since)?,
            (_, subscription, since) => {
                let which = notifications::given_up_since(since);
                notifications::count_notifications(database, subscription, which)?
            }
        };
        return preview(many, "made due again", query.json);
    }
    let due = match (all, *subscription, *since) {
        (true, Some(id), Some(since)) => {
            let until = time_span::now(database)?;
            notifications::enqueue_range(database, by, id, (since, until), None, false, None)?
        }
        (_, subscription, since) => notifications::redeliver(database, by, subscription, since, None)?,
    };
    let due = due.notifications;
    let value = serde_json::json!({ "due_again": due });
    print(query.json, &value, || format!("{}.", notifications_are(due, "due again")));
    Ok(ExitCode::Ok)
}

fn give_up(GiveUp { query, confirmation, subscription, before, event }: &GiveUp) -> Ended {
    let mut session = open(&query.site)?;
    let (database, by) = session.parts();
    one(database, *subscription)?;
    if event.is_none() && confirmation.is_missing() {
        let which = notifications::still_pending(None, *before);
        let many = notifications::count_notifications(database, Some(*subscription), which)?;
        return preview(many, "given up", query.json);
    }
    let what = match (event, before) {
        (Some(event), _) => DropSelection::Event(*event),
        (None, Some(moment)) => DropSelection::Before(*moment),
        (None, None) => DropSelection::All,
    };
    let given_up = notifications::give_up(database, by, *subscription, what)?;
    let missing = "there is no such event: it has not happened, is not published yet, or was pruned";
    let given_up = given_up.ok_or_else(|| fail(ExitCode::NoInput, missing))?;
    let value = serde_json::json!({ "given_up": given_up });
    print(query.json, &value, || format!("{}.", notifications_are(given_up, "given up")));
    Ok(ExitCode::Ok)
}

/// Prints how many notifications would be changed.
fn preview(many: u64, done: &str, as_json: bool) -> Ended {
    let noun = if many == 1 { "notification" } else { "notifications" };
    print(as_json, &serde_json::json!({ "would_change": many }), || format!("{many} {noun} would be {done}."));
    report_unconfirmed(done, as_json)
}

fn text(overview: &Overview) -> String {
    let span = |seconds: f64| timestamp::span(Duration::try_from_secs_f64(seconds).unwrap_or_default());
    let oldest = overview.oldest_unpublished_s.map(|age| format!(", the oldest for {}", span(age))).unwrap_or_default();
    let unpublished = format!("{} events wait to be published{oldest}.", overview.unpublished);
    if overview.subscriptions.is_empty() {
        return format!("{unpublished}\nNobody is subscribed.");
    }
    let state = |behind: &Behind| match (&behind.reason, behind.progress.rests_s) {
        (Some(reason), _) => format!("{}: {reason}", behind.state),
        (None, Some(rest)) => format!("{}, rests for {}", behind.state, span(rest)),
        (None, None) => behind.state.to_string(),
    };
    let rows = overview.subscriptions.iter().map(|behind| {
        [
            behind.subscription.to_string(),
            format!("{} {}", behind.resource, behind.resource_id).trim_end().to_owned(),
            state(behind),
            behind.progress.pending.to_string(),
            behind.progress.given_up.to_string(),
            behind.progress.last_success_ago_s.map(|ago| format!("{} ago", span(ago))).unwrap_or_default(),
            behind.progress.last_failure.clone().unwrap_or_default(),
        ]
    });
    let header = ["subscription", "to", "state", "pending", "given up", "last accepted", "last failure"];
    format!("{unpublished}\n{}", table(header, rows))
}
