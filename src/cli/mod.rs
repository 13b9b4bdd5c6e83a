//! The command line: a file per subcommand.
//!
//! No subcommand means `deliver`: that is what `master.cf` runs. A delivery prints one line and exits 0, 65, 67, 75 or
//! 77, whatever happens, panics and unreadable arguments included; the other subcommands use the exit statuses of
//! sysexits(3) as they are meant.

mod audit;
mod check;
mod deliver;
mod ending;
mod lock;
mod migrate;
mod moment;
mod pages;
mod place;
mod prune;
mod replay;
mod stats;
mod trace;

use crate::delivery::verdict::{self, StatusDetail, Verdict};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use comfy_table::ContentArrangement;
use std::ffi::OsString;
use std::io::{ErrorKind as ErrorKindOfIo, IsTerminal, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;
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
    after_help = "\
Examples:
  Try it out, with no database and no mail server:
    maildrop_command --embedded /tmp/mail --sender lisa@gmail.com \\
      --recipient scuba@mail.axial.net < message.eml

  In Postfix's master.cf (the whole entry is in postfix/master.cf.maildrop):
    argv=/usr/bin/maildrop_command --config=/etc/maildrop_command/config.toml
      --sender=${sender} --recipient=${recipient} --queue-id=${queue_id}

  Before going live:
    maildrop_command migrate --config /root/maildrop-migrate.toml
    maildrop_command check --self-test --config /etc/maildrop_command/config.toml

Exit status of a delivery: 0 delivered, 67 unknown recipient, 65 or 77 refused by a rule of yours, 75 try again later."
)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    deliver: deliver::Arguments,
}

/// The options of a delivery and nothing else: what Postfix writes can be read without making the definitions of all the
/// subcommands first. Whatever this cannot read, [`Arguments`] reads, or says what is wrong with it.
#[derive(Debug, Parser)]
#[command(disable_help_flag = true, disable_version_flag = true)]
struct PlainDelivery {
    #[command(flatten)]
    deliver: deliver::Arguments,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Deliver the message on standard input to one recipient (what happens without a subcommand, too)
    Deliver(deliver::Arguments),
    /// Bring the database's schema up to date, or tell how it stands
    Migrate(migrate::Arguments),
    /// Look whether database and mailbox store keep what a delivery relies on
    Check(check::Arguments),
    /// One message's whole story, across all hosts: what was tried, where its copies are, who has its lock now
    Trace(trace::Arguments),
    /// How deliveries went: outcomes, causes of deferrals, contention, how long the stages took
    Stats(stats::Arguments),
    /// Forget what is older than it has to be remembered: attempts, sources, messages
    Prune(prune::Arguments),
    /// Compare the ledger with the mailboxes: copies gone, there twice or still owed, attempts that never ended
    Audit(audit::Arguments),
    /// Deliver again, or at last: from files, folders, mboxes, queue files, or what the ledger knows
    Replay(replay::Arguments),
    /// The named lock: run a command under it, see who holds it, its name in SQL
    #[command(subcommand)]
    Lock(lock::Command),
}

/// The subcommands by which a command line is told apart from a delivery, even where the rest of it cannot be read.
const OTHER_SUBCOMMANDS: [&str; 9] = ["migrate", "check", "replay", "trace", "stats", "audit", "prune", "lock", "help"];

/// The command line's definition, from which its manual pages and completions are made.
#[must_use]
pub fn definition() -> clap::Command {
    Arguments::command()
}

/// Runs a command line, and returns the status to exit with. Never panics.
#[must_use]
pub fn run(arguments: &[OsString]) -> u8 {
    crate::core_dumps::switch_off();
    crate::log::panic_hook();
    let other = arguments.get(1).and_then(|a| a.to_str()).is_some_and(|a| OTHER_SUBCOMMANDS.contains(&a));
    let outcome = catch_unwind(AssertUnwindSafe(|| match dispatch(arguments, other) {
        // All went well, and whoever reads a file of it tomorrow would believe that it is whole.
        ExitCode::Ok if other && UNSAID.load(Ordering::Relaxed) => ExitCode::IoErr,
        exit => exit,
    }));
    u8::from(outcome.unwrap_or_else(|_| {
        if other {
            complain("an internal error; the log has the details");
            ExitCode::Software
        } else {
            verdict::report(&Verdict::deferred(StatusDetail::SYSTEM, "an internal error"))
        }
    }))
}

fn dispatch(arguments: &[OsString], other: bool) -> ExitCode {
    if !other && let Ok(plain) = PlainDelivery::try_parse_from(arguments) {
        return deliver::run(&plain.deliver);
    }
    let parsed = match Arguments::try_parse_from(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return unreadable(&error, arguments, other),
    };
    match parsed.command {
        None => deliver::run(&parsed.deliver),
        Some(Command::Deliver(arguments)) => deliver::run(&arguments),
        Some(Command::Migrate(arguments)) => migrate::run(&arguments),
        Some(Command::Check(arguments)) => check::run(&arguments),
        Some(Command::Trace(arguments)) => trace::run(&arguments),
        Some(Command::Stats(arguments)) => stats::run(&arguments),
        Some(Command::Prune(arguments)) => prune::run(&arguments),
        Some(Command::Audit(arguments)) => audit::run(&arguments),
        Some(Command::Replay(arguments)) => replay::run(&arguments),
        Some(Command::Lock(command)) => lock::run(&command),
    }
}

/// A command line that asks for help, or cannot be read.
fn unreadable(error: &clap::Error, arguments: &[OsString], other: bool) -> ExitCode {
    let asks = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    // A stray `--help` among the options of a delivery must not end in exit 0: Postfix takes that for delivered, though
    // nobody has read the message.
    let alone = arguments.len() <= 2 || (arguments.len() == 3 && arguments.get(1).is_some_and(|a| a == "deliver"));
    if asks && (other || alone) {
        // Nobody is left to tell if help cannot be printed.
        let _ = error.print();
        return ExitCode::Ok;
    }
    if other {
        let _ = error.print();
        return ExitCode::Usage;
    }
    let text = error.render().to_string();
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default().trim_start_matches("error: ");
    // A person who has mistyped a subcommand is told so by the same line.
    let tip = lines.find_map(|line| line.trim_start().strip_prefix("tip: "));
    let tip = tip.map(|tip| format!("; {tip}")).unwrap_or_default();
    verdict::report(&Verdict::deferred(StatusDetail::SYSTEM_CONFIGURATION, format!("bad arguments: {first}{tip}")))
}

/// Prints an error of a subcommand other than `deliver`, with what mends it.
fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "maildrop_command: {}", printable(text));
}

/// Whether [`say`] could not say something: a full disk, say.
static UNSAID: AtomicBool = AtomicBool::new(false);

/// Prints what a subcommand other than `deliver` has to say.
fn say(text: &str) {
    match writeln!(std::io::stdout(), "{text}") {
        // Whoever read it has heard enough: `… | head`.
        Err(error) if error.kind() == ErrorKindOfIo::BrokenPipe => {}
        Err(error) if !UNSAID.swap(true, Ordering::Relaxed) => complain(&format!("standard output: {error}")),
        _ => {}
    }
}

/// Longer than anybody waits, and short enough to be added to any moment.
const LONGEST: Duration = Duration::from_hours(24 * 36_500);

/// Reads `30s`, `5m`, `1h 30m`, or a bare number of seconds.
fn duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse::<u32>() {
        return Ok(Duration::from_secs(u64::from(seconds)));
    }
    let duration = humantime::parse_duration(text).map_err(|_| "write it like 30s, 5m or 1h")?;
    if duration > LONGEST { Err("that is longer than a century".into()) } else { Ok(duration) }
}

/// A table for people: as wide as their terminal; elsewhere a line for each row, which a search can find.
fn table<const N: usize>(header: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    if let (true, Some((width, _))) = (std::io::stdout().is_terminal(), terminal_size::terminal_size()) {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width.0);
    }
    table.set_header(header);
    for row in rows {
        table.add_row(row.map(|cell| printable(&cell)));
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// What servers and messages say comes from outside: nothing of it may move the terminal's cursor, or turn round what stands
/// beside it (Unicode's explicit directions: UAX #9, section 2).
fn printable(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}');
    text.replace(|c: char| (c.is_control() && c != '\n') || turns(c), "?")
}

/// Tells a person at a terminal what takes longer than two seconds. Dropped when it is done.
struct Slow(Option<std::sync::mpsc::Sender<()>>);

impl Slow {
    fn watch(what: &'static str) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(None);
        }
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let watch = move || {
            let mut waited = 0;
            while wait.recv_timeout(Duration::from_secs(2)) == Err(RecvTimeoutError::Timeout) {
                waited += 2;
                complain(&format!("{what} … {waited} s"));
            }
        };
        // Without a thread to tell it, it merely goes untold.
        Self(std::thread::Builder::new().spawn(watch).ok().map(|_| done))
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.0.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_outside_turns_a_line_round() {
        assert_eq!(printable("a\x1b[2J\u{202e}cod.exe\u{2066}\nb ü עב"), "a?[2J?cod.exe?\nb ü עב");
    }

    #[test]
    fn the_command_line_is_sound() {
        definition().debug_assert();
    }
}
