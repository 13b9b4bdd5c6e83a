//! `prune`: removes rows that are older than their retention time.

use super::confirmation::{Confirmation, report_unconfirmed};
use super::progress::Progress;
use super::site_options::{SiteOptions, connect};
use super::{Ended, fail, help, json, print_line, table};
use crate::base::timestamp;
use crate::config::{Delivery, Retention};
use crate::ledger::operations_log::Operation;
use crate::operations::operations_log::{CommandLine, write_down};
use crate::operations::prune::{self, Pruned};
use clap::Args;
use std::time::Duration;
use sysexits::ExitCode;

/// The time limit of the whole run: the first run may have to remove the rows of years.
const PATIENCE: Duration = Duration::from_hours(12);

#[derive(Debug, Args)]
#[command(after_help = help("prune"))]
pub(crate) struct Arguments {
    #[command(flatten)]
    site: SiteOptions,
    /// Remove attempts that began and ended before: 30d
    #[arg(long, value_name = "AGE", value_parser = timestamp::duration)]
    attempts_older_than: Option<Duration>,
    /// Remove the raw sources of messages that were recorded before: 7d
    #[arg(long, value_name = "AGE", value_parser = timestamp::duration)]
    sources_older_than: Option<Duration>,
    /// Remove messages without a later try, with their copies, sources and attempts: 400d
    #[arg(long, value_name = "AGE", value_parser = timestamp::duration)]
    messages_older_than: Option<Duration>,
    /// Remove events from before, with their notifications, sent or pending: 30d
    #[arg(long, value_name = "AGE", value_parser = timestamp::duration, conflicts_with = "embedded")]
    events_older_than: Option<Duration>,
    /// Remove rows of the operations log, which says who did what manually, from before: 365d
    #[arg(long, value_name = "AGE", value_parser = timestamp::duration)]
    operations_older_than: Option<Duration>,
    /// Say what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    confirmation: Confirmation,
    /// The pause after each batch, which spares replicas
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = timestamp::duration)]
    pause: Duration,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    arguments.site.log_to_stderr();
    let site = arguments.site.resolve()?;
    let configured = site.config().map(|config| config.retention).unwrap_or_default();
    let retention = Retention {
        attempts_older_than: arguments.attempts_older_than.or(configured.attempts_older_than),
        sources_older_than: arguments.sources_older_than.or(configured.sources_older_than),
        messages_older_than: arguments.messages_older_than.or(configured.messages_older_than),
        events_older_than: arguments.events_older_than.or(configured.events_older_than),
        operations_older_than: arguments.operations_older_than.or(configured.operations_older_than),
    };
    let delivery = site.config().map_or_else(Delivery::default, |config| config.delivery.clone());
    if let Some((key, problem)) =
        retention.forgets_too_early(delivery.postfix_queue_lifetime + site.policy().append_grace)
    {
        return Err(fail(ExitCode::Usage, format!("--{}: {problem}", key.replace('_', "-"))));
    }
    let retry = site.config().map(|config| config.notifications.retry_schedule.clone()).unwrap_or_default();
    if let Some(problem) = retention.forgets_events_too_early(&retry) {
        return Err(fail(ExitCode::Usage, format!("--events-older-than: {problem}")));
    }
    let kinds = prune::kinds(&retention);
    let mut database = connect(&site, PATIENCE)?;
    let by = CommandLine::of(&site);
    let (is_tried, is_unconfirmed) = (arguments.dry_run, arguments.confirmation.is_missing());
    let mut done = Vec::new();
    let mut all = Ok(ExitCode::Ok);
    for (kind, age) in kinds {
        let progress = Progress::watch(format!("counting {}", kind.as_str()));
        let pruned = match is_tried || is_unconfirmed {
            true => prune::dry_run(database.as_mut(), kind, age),
            false => prune::prune(database.as_mut(), kind, age, arguments.pause, &mut |removed| {
                progress.set(format!("{removed} {} removed", kind.as_str()));
                true
            }),
        };
        match pruned {
            Ok(pruned) => {
                if pruned.removed > 0 {
                    let outcome = format!("{} removed, older than {}", pruned.removed, timestamp::span(pruned.age));
                    write_down(database.as_mut(), by.actor(), Operation::Pruned, kind.as_str(), &outcome);
                }
                done.push(pruned);
            }
            Err(error) => {
                all = Err(error);
                break;
            }
        }
    }
    // Completed work is shown even if a later step failed.
    show(&done, is_tried || is_unconfirmed, arguments);
    if all.is_ok() && is_unconfirmed && !is_tried {
        return report_unconfirmed("removed", arguments.json);
    }
    Ok(all?)
}

fn show(done: &[Pruned], is_dry_run: bool, arguments: &Arguments) {
    if arguments.json {
        return print_line(&json(&done));
    }
    let rows = done.iter().map(|pruned| {
        [
            pruned.kind.as_str().to_owned(),
            timestamp::span(pruned.age),
            timestamp::time_text(pruned.before),
            pruned.would_remove.unwrap_or(pruned.removed).to_string(),
            kept(pruned),
        ]
    });
    let removed = if is_dry_run { "would remove" } else { "removed" };
    print_line(&table(["what", "older than", "that is, before", removed, "older, but kept"], rows));
    if arguments.dry_run {
        print_line("Nothing was removed: this was a dry run.");
    }
}

fn kept(pruned: &Pruned) -> String {
    let kept = [
        (pruned.open, "that never ended"),
        (pruned.owed, "with a copy that is owed"),
        (pruned.kept_referenced, "with later attempts or notifications, or with an attempt that never ended"),
        (pruned.locked, "being delivered just now"),
    ];
    let kept = kept.iter().filter(|(number, _)| *number > 0);
    kept.map(|(number, why)| format!("{number} {why}")).collect::<Vec<_>>().join(", ")
}
