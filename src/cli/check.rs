//! `check`: whether everything that a delivery relies on works and keeps its promises.

use super::site_options::{SiteOptions, watch};
use super::{complain, json, say, table};
use crate::base::deadline::Deadline;
use crate::config::DatabaseRole;
use crate::ledger::{Finding, State};
use crate::message::Address;
use crate::operations::check::check;
use crate::site::{RENEWAL, Site};
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
  maildrop_command check --renew-proof

Run it as the user that Postfix runs deliveries as: what root may read, that user may not.

Exit status: 0 if nothing breaks a promise, 69 if something does, 78 if the configuration cannot be read, \
66 where there is no embedded site. With --renew-proof: 0 also where the password of the mailbox store cannot be read, 69 if \
it cannot be proven now.")]
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
    /// Prove anew that logins lead to the mailboxes of their users, and check nothing else: once a day, by a timer, where no
    /// maildropd runs, which does it by itself
    #[arg(long, conflicts_with_all = ["self_test", "recipient", "json"])]
    renew_proof: bool,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, ExitCode> {
    if arguments.renew_proof {
        return renew_proof(&arguments.site);
    }
    let recipient = arguments.recipient.as_deref().map(Address::parse).transpose().map_err(|error| {
        complain(&format!("--recipient: {error}"));
        ExitCode::Usage
    })?;
    let site = arguments.site.resolve_as(|config| Site::configured(config.acting_as(DatabaseRole::Deliveries)))?;
    watch(&site, PATIENCE)?;
    let slow = super::Slow::watch("asking the database and the mailbox store");
    let findings = check(&site, recipient, arguments.self_test, Deadline::after(PATIENCE));
    drop(slow);
    say(&if arguments.json { json(&findings) } else { text(&findings) });
    let is_bad = findings.iter().any(|finding| finding.state == State::Bad);
    Ok(if is_bad { ExitCode::Unavailable } else { ExitCode::Ok })
}

/// Whoever may not read the password leaves it to those who may.
fn renew_proof(options: &SiteOptions) -> Result<ExitCode, ExitCode> {
    options.log_to_stderr();
    let site = options.resolve_as(|config| {
        let config = config.acting_as(DatabaseRole::Deliveries);
        Site::configured(config.clone()).or_else(|_| Site::without_mailboxes(config))
    })?;
    watch(&site, RENEWAL)?;
    let said = site.renew_proof(Deadline::after(RENEWAL)).map_err(|deferral| {
        complain(&deferral.to_string());
        ExitCode::Unavailable
    })?;
    say(said);
    Ok(ExitCode::Ok)
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
