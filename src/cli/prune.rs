//! `prune`: forgets what is older than it has to be remembered.

use super::site_options::{SiteOptions, connect, failed};
use super::{Progress, Slow, complain, json, say, table};
use crate::base::timestamp;
use crate::config::{Delivery, Retention};
use crate::ledger::operations_log::Operation;
use crate::operations::operations_log::{CommandLine, write_down};
use crate::operations::prune::{self, Pruned};
use clap::Args;
use std::time::Duration;
use sysexits::ExitCode;

/// How long all of it may take: the first time there may be years to forget.
const PATIENCE: Duration = Duration::from_hours(12);

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  maildrop_command prune --dry-run
  maildrop_command prune --attempts-older-than 30d --sources-older-than 7d --messages-older-than 400d

Run it by a timer. An age that is not given here is that of [retention] in the configuration; where that has none either, \
nothing of the kind is removed. Do a --dry-run first.

How long a message has to be remembered: the ledger is all that knows that a message was delivered. As long as anything \
may bring it back, a ledger that has forgotten it delivers it AGAIN, into the recipient's mailbox and into Sent. Postfix \
brings a message back for five days (maximal_queue_lifetime; delivery.postfix_queue_lifetime in the configuration), and \
longer if it was switched off meanwhile: a mail host that comes back after three weeks tries what it has in its queue once \
more. So does whoever restores a spool from a backup, releases a message from the hold queue, or replays one. Therefore \
ages of attempts and messages that are not longer than the queue's lifetime and imap.settle together are refused, and 30d \
and 400d are better.

What is kept, however old: an attempt that never ended; a message with such an attempt, with a copy that is owed, or that \
was heard of since (a try, even one that found it there already, starts its age anew, as long as that attempt is kept); \
the source of a message with a copy that is owed.

It is safe while mail is delivered: attempts and sources go in small batches, each a transaction of its own, and each \
message under its own lock, the one that its deliveries take, after another look. A message whose lock is held is left for \
the next time. Interrupted, it has removed what it has removed, and can be run again.

It needs the rights of sql/*/grants-operator.sql: the role that delivers can delete nothing.

Exit status: 0, 64 for an age that is too short or another mistake in the arguments, 69 if the database cannot be asked, 78 \
if the configuration cannot be read, or has an age that is too short.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    site: SiteOptions,
    /// Remove attempts that began and ended before: 30d
    #[arg(long, value_name = "AGE", value_parser = timestamp::duration)]
    attempts_older_than: Option<Duration>,
    /// Remove the raw sources of messages that were recorded before: 7d
    #[arg(long, value_name = "AGE", value_parser = timestamp::duration)]
    sources_older_than: Option<Duration>,
    /// Remove messages that were not heard of since, with their copies, sources and attempts: 400d
    #[arg(long, value_name = "AGE", value_parser = timestamp::duration)]
    messages_older_than: Option<Duration>,
    /// Remove events from before, with what subscribers were told of them, or are still to be told: 30d
    #[arg(long, value_name = "AGE", value_parser = timestamp::duration, conflicts_with = "embedded")]
    events_older_than: Option<Duration>,
    /// Remove rows of the operations log, which tells who did what by hand, from before: 365d
    #[arg(long, value_name = "AGE", value_parser = timestamp::duration)]
    operations_older_than: Option<Duration>,
    /// Say what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Rest for so long after each batch, for the sake of replicas
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = timestamp::duration)]
    pause: Duration,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, ExitCode> {
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
    if let Some((key, problem)) = retention.forgets_too_early(delivery.postfix_queue_lifetime + site.policy().settle) {
        complain(&format!("--{}: {problem}", key.replace('_', "-")));
        return Err(ExitCode::Usage);
    }
    let retry = site.config().map(|config| config.notifications.retry.clone()).unwrap_or_default();
    if let Some(problem) = retention.forgets_events_too_early(&retry) {
        complain(&format!("--events-older-than: {problem}"));
        return Err(ExitCode::Usage);
    }
    let kinds = prune::kinds(&retention);
    if kinds.is_empty() && !arguments.json {
        say("Nothing is to be removed: neither an option nor [retention] in the configuration gives an age.");
        return Ok(ExitCode::Ok);
    }
    let mut database = connect(&site, PATIENCE)?;
    let by = CommandLine::of(&site);
    let mut done = Vec::new();
    let mut all = Ok(ExitCode::Ok);
    for (kind, age) in kinds {
        let pruned = if arguments.dry_run {
            let _slow = Slow::watch("counting");
            prune::dry_run(database.as_mut(), kind, age)
        } else {
            let mut progress = Progress::new();
            prune::prune(database.as_mut(), kind, age, arguments.pause, &mut |removed| {
                progress.tell(|| format!("{removed} {} removed …", kind.as_str()));
                true
            })
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
    // What is done is done, even if something failed.
    tell(&done, arguments);
    all.map_err(|error| failed(&error))
}

fn tell(done: &[Pruned], arguments: &Arguments) {
    if arguments.json {
        return say(&json(&done));
    }
    let rows = done.iter().map(|pruned| {
        [
            pruned.kind.as_str().to_owned(),
            timestamp::span(pruned.age),
            timestamp::told(pruned.before),
            pruned.would_remove.unwrap_or(pruned.removed).to_string(),
            kept(pruned),
        ]
    });
    let removed = if arguments.dry_run { "would remove" } else { "removed" };
    say(&table(["what", "older than", "that is, before", removed, "older, but kept"], rows));
    if arguments.dry_run {
        say("Nothing was removed: this was a dry run.");
    }
}

fn kept(pruned: &Pruned) -> String {
    let kept = [
        (pruned.open, "that never ended"),
        (pruned.owed, "with a copy that is owed"),
        (pruned.heard_of, "heard of since, or with an attempt that never ended"),
        (pruned.locked, "being delivered just now"),
    ];
    let kept = kept.iter().filter(|(number, _)| *number > 0);
    kept.map(|(number, why)| format!("{number} {why}")).collect::<Vec<_>>().join(", ")
}
