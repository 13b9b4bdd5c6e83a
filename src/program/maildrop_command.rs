//! The command line as a whole: a delivery, or a subcommand.
//!
//! Without a subcommand, `deliver` runs; `master.cf` uses that. A delivery prints one line and exits 0, 65, 67, 75 or 77 in every
//! case, also after a panic and with unreadable arguments. The other subcommands use the exit statuses of sysexits(3) in their
//! documented meaning.

use crate::base::terminal::complain;
use crate::delivery::{StatusDetail, Verdict};
use crate::{cli, pipe};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use sysexits::ExitCode;

/// Deliver one message for Postfix: exactly once into the recipient's INBOX and the sender's Sent.
///
/// Postfix runs this once per recipient, with the message on standard input. It takes a named lock on the Message-ID in
/// the database that all machines share, records the message, and appends it over IMAP. Exit 75 means: try again later.
#[derive(Debug, Parser)]
#[command(
    name = "maildrop_command",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = EXAMPLES
)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    deliver: pipe::deliver::Arguments,
}

const EXAMPLES: &str = "\
Examples:
  Try it out, with no database and no mail server:
    maildrop_command --embedded /tmp/mail --sender lisa@gmail.com \\
      --recipient scuba@mail.axial.net < message.eml

  In Postfix's master.cf (the whole entry is in postfix/master.cf.maildrop):
    argv=/usr/bin/maildrop_command --config=/etc/maildrop_command/config.toml
      --sender=${sender} --recipient=${recipient} --queue-id=${queue_id}

  Before going live:
    maildrop_command migrate
    maildrop_command check --self-test --config /etc/maildrop_command/config.toml

Exit status of a delivery: 0 delivered, 75 try again later; by a rule of yours 67 (unknown recipient), 65 or 77.";

/// The options of a delivery and nothing else. Postfix's command line is thus parsed without building the definitions of all
/// subcommands. [`Arguments`] parses any other command line, or reports the mistake in it.
#[derive(Debug, Parser)]
#[command(disable_help_flag = true, disable_version_flag = true)]
struct PlainDelivery {
    #[command(flatten)]
    deliver: pipe::deliver::Arguments,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Deliver the message on standard input to one recipient; the default without a subcommand
    #[command(after_help = EXAMPLES)]
    Deliver(pipe::deliver::Arguments),
    /// Write all files of a new site: configuration, passwords, SQL, Postfix's fragments, and a page of numbered commands
    Quickstart(cli::quickstart::Arguments),
    /// Create or upgrade the database's schema, or show its version
    Migrate(cli::migrate::Arguments),
    /// Check configuration, database and mailbox store, and name the fix of each problem
    Check(cli::check::Arguments),
    /// Show one message's history on all hosts: attempts, copies, and who holds its lock
    Trace(cli::trace::Arguments),
    /// Show statistics of deliveries: outcomes, causes of deferrals, lock contention, time of each stage
    Stats(cli::stats::Arguments),
    /// Delete rows past their retention: attempts, sources, messages
    Prune(cli::prune::Arguments),
    /// Compare the ledger with the mailboxes: lost, duplicated and owed copies, attempts that never ended
    Audit(cli::audit::Arguments),
    /// Redeliver messages from files, folders, mboxes or queue files, or those that the ledger lists
    Replay(cli::replay::Arguments),
    /// Use the named lock: run a command under it, list its holders, print its name in SQL
    #[command(subcommand)]
    Lock(cli::lock::Command),
    /// Put a message into the service's file queue, for mail without Postfix
    Inject(cli::inject::Arguments),
    /// Manage the service's file queue: list, show, hold, release, drop
    #[command(subcommand)]
    Queue(cli::queue::Command),
    /// Manage shunted messages, which crashed workers: list, show, retry, drop
    #[command(subcommand)]
    Shunt(cli::shunt::Command),
    /// Manage webhook subscriptions: create, list, show, pause, resume, secret, delete
    #[command(subcommand, mut_subcommands(without_embedded))]
    Subscription(cli::subscription::Command),
    /// Manage tokens of the HTTP API: create, list, revoke
    #[command(subcommand, mut_subcommands(without_embedded))]
    Token(cli::token::Command),
    /// Show how far notifications are behind, and send them again
    #[command(subcommand, mut_subcommands(without_embedded))]
    Notify(cli::notify::Command),
    /// Manage logins to the web UI: create a link, list and end sessions
    #[command(subcommand)]
    Web(cli::web::Command),
    /// Control the service, maildropd: status, reload, restart, stop
    #[command(subcommand)]
    Service(cli::service::Command),
    /// Print the completions for a shell
    Completions(cli::manual::CompletionsArguments),
    /// Print maildrop_command(1), or write the manual pages of all subcommands into a folder
    Man(cli::manual::ManArguments),
}

/// Hides an option that only says that an embedded site has no such feature.
fn without_embedded(subcommand: clap::Command) -> clap::Command {
    subcommand.mut_arg("embedded", |option| option.hide(true))
}

/// The command line's definition, from which its manual pages and completions are made.
#[must_use]
pub fn definition() -> clap::Command {
    Arguments::command()
}

/// The command lines of both programs.
fn programs() -> [clap::Command; 2] {
    [definition(), super::maildropd::definition()]
}

/// Runs a command line, and returns the status to exit with. Never panics.
#[must_use]
pub fn run(arguments: &[OsString]) -> u8 {
    crate::base::core_dumps::switch_off();
    crate::base::log::panic_hook();
    let other = arguments.get(1).and_then(|a| a.to_str()).is_some_and(is_other_subcommand);
    let outcome = catch_unwind(AssertUnwindSafe(|| match dispatch(arguments, other) {
        // The work succeeded, but part of the output could not be written. A reader of that output would mistake it for complete.
        0 if other && cli::REPORTED.load(Ordering::Relaxed) => ExitCode::IoErr.into(),
        status => status,
    }));
    outcome.unwrap_or_else(|_| {
        if other {
            complain("an internal error; the log has the details");
            ExitCode::Software.into()
        } else {
            pipe::report(&Verdict::deferred(StatusDetail::SYSTEM, "an internal error")).into()
        }
    })
}

/// Whether the first word already shows that a command line is no delivery, even if the rest cannot be parsed.
fn is_other_subcommand(name: &str) -> bool {
    name == "help" || (name != "deliver" && Command::has_subcommand(name))
}

fn dispatch(arguments: &[OsString], other: bool) -> u8 {
    if !other && let Ok(plain) = PlainDelivery::try_parse_from(arguments) {
        return pipe::deliver::run(&plain.deliver).into();
    }
    cli::lock::become_program(arguments);
    let parsed = match Arguments::try_parse_from(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return unreadable(&error, arguments, other).into(),
    };
    let ended = match parsed.command {
        None => Ok(pipe::deliver::run(&parsed.deliver)),
        Some(Command::Deliver(arguments)) => Ok(pipe::deliver::run(&arguments)),
        Some(Command::Quickstart(arguments)) => cli::quickstart::run(&arguments),
        Some(Command::Migrate(arguments)) => cli::migrate::run(&arguments),
        Some(Command::Check(arguments)) => cli::check::run(&arguments),
        Some(Command::Trace(arguments)) => cli::trace::run(&arguments),
        Some(Command::Stats(arguments)) => cli::stats::run(&arguments),
        Some(Command::Prune(arguments)) => cli::prune::run(&arguments),
        Some(Command::Audit(arguments)) => cli::audit::run(&arguments),
        Some(Command::Replay(arguments)) => cli::replay::run(&arguments),
        Some(Command::Lock(command)) => cli::lock::run(&command),
        Some(Command::Inject(arguments)) => cli::inject::run(&arguments),
        Some(Command::Queue(command)) => cli::queue::run(&command),
        Some(Command::Shunt(command)) => cli::shunt::run(&command),
        Some(Command::Subscription(command)) => cli::subscription::run(&command),
        Some(Command::Token(command)) => cli::token::run(&command),
        Some(Command::Notify(command)) => cli::notify::run(&command),
        Some(Command::Web(command)) => cli::web::run(&command),
        Some(Command::Service(command)) => cli::service::run(&command),
        Some(Command::Completions(arguments)) => cli::manual::complete(&arguments, programs()),
        Some(Command::Man(arguments)) => cli::manual::man(&arguments, programs()),
    };
    ended.map_or_else(|failure| failure.report(), u8::from)
}

/// The end of a command line that asks for help, or cannot be parsed.
fn unreadable(error: &clap::Error, arguments: &[OsString], other: bool) -> ExitCode {
    let asks = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    // A stray `--help` among the options of a delivery must not exit 0: Postfix would take that for delivered, and the message
    // would be lost.
    let alone = arguments.len() <= 2 || (arguments.len() == 3 && arguments.get(1).is_some_and(|a| a == "deliver"));
    if asks && (other || alone) {
        cli::check_printed(error.print().and_then(|()| std::io::Write::flush(&mut std::io::stdout())));
        return if cli::REPORTED.load(Ordering::Relaxed) { ExitCode::IoErr } else { ExitCode::Ok };
    }
    if other {
        let _ = error.print();
        return ExitCode::Usage;
    }
    let text = error.render().to_string();
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default().trim_start_matches("error: ");
    // The same line helps a person who has mistyped a subcommand.
    let tip = lines.find_map(|line| line.trim_start().strip_prefix("tip: "));
    let tip = tip.map(|tip| format!("; {tip}")).unwrap_or_default();
    pipe::report(&Verdict::deferred(StatusDetail::SYSTEM_CONFIGURATION, format!("bad arguments: {first}{tip}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        definition().debug_assert();
    }

    #[test]
    fn a_subcommand_that_an_embedded_site_has_not_does_not_offer_one() {
        let offers = |name: &str| {
            let definition = definition();
            let below = definition.find_subcommand(name).unwrap().get_subcommands();
            let offers = |one: &clap::Command| one.clone().render_help().to_string().contains("--embedded");
            below.map(offers).collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(["subscription", "token", "notify"].map(offers), [[false]; 3].map(Into::into));
        assert!(offers("lock").contains(&true), "other subcommands do");
    }

    #[test]
    fn the_help_of_every_subcommand_has_examples() {
        fn without(command: &clap::Command, above: &str) -> Vec<String> {
            let name = format!("{above} {}", command.get_name());
            let offered = |below: &&clap::Command| !below.is_hide_set() && below.get_name() != "help";
            let below: Vec<_> = command.get_subcommands().filter(offered).collect();
            let help = command.get_after_help().or(command.get_after_long_help());
            let has = help.is_some_and(|help| help.to_string().contains("Example"));
            let own = (below.is_empty() && !has).then_some(name.clone());
            below.iter().flat_map(|below| without(below, &name)).chain(own).collect()
        }
        assert_eq!(without(&definition(), ""), [""; 0]);
    }
}
