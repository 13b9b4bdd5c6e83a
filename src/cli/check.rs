//! `check`: does everything that a delivery relies on work, and does it keep the promises?

use super::site_options::SiteOptions;
use super::{complain, json, say, table};
use crate::base::deadline::Deadline;
use crate::ledger::{Finding, State};
use crate::message::Address;
use crate::operations::check::{Asked, check, is_bad};
use clap::Args;
use std::time::Duration;
use sysexits::ExitCode;

/// How long all of it may take.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  maildrop_command check
  maildrop_command check --self-test --recipient scuba@mail.axial.net
  maildrop_command check --embedded /tmp/mail

Run it as the user that Postfix runs deliveries as: what root may read, that user may not.

Exit status: 0 if nothing breaks a promise, 69 if something does, 78 if the configuration cannot be read, \
66 where there is no embedded site.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    site: SiteOptions,
    /// Prove on the live database that the lock excludes: one connection takes it, another must be refused; that all
    /// connections lead to one server; and that the hosts that have delivered lately take the same locks
    #[arg(long)]
    self_test: bool,
    /// Log in to the mailbox of this address [default: some address of the table]
    #[arg(long, value_name = "ADDRESS")]
    recipient: Option<String>,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let recipient = match arguments.recipient.as_deref().map(Address::parse).transpose() {
        Ok(recipient) => recipient,
        Err(error) => {
            complain(&format!("--recipient: {error}"));
            return ExitCode::Usage;
        }
    };
    let site = match arguments.site.resolve_with_mailboxes() {
        Ok(site) => site,
        Err(status) => return status,
    };
    if let Err(status) = super::site_options::watch(&site, PATIENCE) {
        return status;
    }
    let slow = super::Slow::watch("asking the database and the mailbox store");
    let asked = Asked { recipient, self_test: arguments.self_test };
    let findings = check(&site, &asked, Deadline::after(PATIENCE));
    drop(slow);
    say(&if arguments.json { json(&findings) } else { text(&findings) });
    if is_bad(&findings) { ExitCode::Unavailable } else { ExitCode::Ok }
}

fn text(findings: &[Finding]) -> String {
    let word = |state: State| match state {
        State::Good => "ok",
        State::Warning => "warning",
        State::Bad => "BAD",
    };
    let rows = findings.iter().map(|finding| {
        let mend = finding.mend.as_deref().unwrap_or_default();
        [finding.what.as_str(), word(finding.state), finding.found.as_str(), mend].map(ToOwned::to_owned)
    });
    let table = table(["what", "", "found", "mend"], rows);
    let count = |state: State| findings.iter().filter(|finding| finding.state == state).count();
    let well = match (count(State::Bad), count(State::Warning)) {
        (0, 0) => "All is well.".to_owned(),
        (0, warnings) => format!("It works; {warnings} could be better."),
        (bad, _) => format!("{bad} must be mended before mail is delivered by it."),
    };
    format!("{table}\n{well}")
}
