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
    /// Deliver the message on standard input to one recipient (what happens without a subcommand, too)
    #[command(after_help = EXAMPLES)]
    Deliver(pipe::deliver::Arguments),
    /// Write what a site needs to go live: configuration, passwords, SQL, Postfix's fragments, and the commands in their order
    Quickstart(cli::quickstart::Arguments),
    /// Bring the database's schema up to date, or tell how it stands
    Migrate(cli::migrate::Arguments),
    /// Look whether database and mailbox store keep what a delivery relies on
    Check(cli::check::Arguments),
    /// One message's whole history, across all hosts: what was tried, where its copies are, who has its lock now
    Trace(cli::trace::Arguments),
    /// How deliveries went: outcomes, causes of deferrals, contention, how long the stages took
    Stats(cli::stats::Arguments),
    /// Forget what is older than it has to be remembered: attempts, sources, messages
    Prune(cli::prune::Arguments),
    /// Compare the ledger with the mailboxes: copies lost, duplicated or still owed, attempts that never ended
    Audit(cli::audit::Arguments),
    /// Deliver again, or at last: from files, folders, mboxes, queue files, or what the ledger knows
    Replay(cli::replay::Arguments),
    /// The named lock: run a command under it, see who holds it, its name in SQL
    #[command(subcommand)]
    Lock(cli::lock::Command),
    /// Take mail that has no Postfix behind it into the file queue of the service
    Inject(cli::inject::Arguments),
    /// The file queue of the service: list, show, hold, release, drop
    #[command(subcommand)]
    Queue(cli::queue::Command),
    /// Messages that crashed workers of the service: list, show, retry, drop
    #[command(subcommand)]
    Shunt(cli::shunt::Command),
    /// Manage webhook subscriptions: create, list, show, pause, resume, secret, delete
    #[command(subcommand)]
    Subscription(cli::subscription::Command),
    /// Who may use the API: create, list and revoke tokens
    #[command(subcommand)]
    Token(cli::token::Command),
    /// Notifications: how far behind subscribers are; tell them once more
    #[command(subcommand)]
    Notify(cli::notify::Command),
    /// The page: log somebody in, see who is logged in
    #[command(subcommand)]
    Web(cli::web::Command),
    /// The service, maildropd: start it, ask how it is, tell it what to do
    #[command(subcommand)]
    Service(cli::service::Command),
    /// Print the completions for a shell
    Completions(cli::manual::CompletionsArguments),
    /// Print the manual page, or write all manual pages into a folder
    Man(cli::manual::ManArguments),
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
        0 if other && cli::UNSAID.load(Ordering::Relaxed) => ExitCode::IoErr.into(),
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
        cli::said(error.print().and_then(|()| std::io::Write::flush(&mut std::io::stdout())));
        return if cli::UNSAID.load(Ordering::Relaxed) { ExitCode::IoErr } else { ExitCode::Ok };
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
