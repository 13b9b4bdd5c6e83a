//! `check`: whether everything that a delivery relies on works and keeps its promises.

use super::progress::Progress;
use super::site_options::{SiteOptions, watch};
use super::{Ended, fail, help, print, print_line, table};
use crate::base::deadline::Deadline;
use crate::config::DatabaseRole;
use crate::ledger::{Finding, FindingState};
use crate::message::Address;
use crate::operations::check::check;
use crate::site::{RENEWAL, Site};
use clap::Args;
use std::cmp::Reverse;
use std::time::Duration;
use sysexits::ExitCode;

/// The time limit of all checks together.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
#[command(after_help = help("check"))]
pub(crate) struct Arguments {
    #[command(flatten)]
    site: SiteOptions,
    /// Prove on the live database that the lock excludes: one connection takes it, another must be refused; and that all
    /// connections lead to one server
    #[arg(long)]
    self_test: bool,
    /// Log in to the mailbox of this address [default: some address of the table]
    #[arg(long, value_name = "ADDRESS", value_parser = Address::parse)]
    recipient: Option<Address>,
    /// Prove again that logins lead to the mailboxes of their users, and check nothing else: once a day, by a timer, where no
    /// maildropd runs, which does it by itself
    #[arg(long, conflicts_with_all = ["self_test", "recipient", "json"])]
    renew_proof: bool,
    /// Show the findings without a problem as well
    #[arg(long, conflicts_with = "renew_proof")]
    all: bool,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    if arguments.renew_proof {
        return renew_proof(&arguments.site);
    }
    let site = arguments.site.resolve_as(|config| Site::configured(config.acting_as(DatabaseRole::Deliveries)))?;
    watch(&site, PATIENCE)?;
    let progress = Progress::watch("asking the database and the mailbox store");
    let findings = check(&site, arguments.recipient.clone(), arguments.self_test, Deadline::after(PATIENCE));
    drop(progress);
    print(arguments.json, &findings, || text(&findings, arguments.all));
    let is_bad = findings.iter().any(|finding| finding.state == FindingState::Bad);
    Ok(if is_bad { ExitCode::Unavailable } else { ExitCode::Ok })
}

/// A user who may not read the password leaves the proof to the users who may.
fn renew_proof(options: &SiteOptions) -> Ended {
    options.log_to_stderr();
    let site = options.resolve_as(|config| {
        let config = config.acting_as(DatabaseRole::Deliveries);
        Site::configured(config.clone()).or_else(|_| Site::without_mailboxes(config))
    })?;
    watch(&site, RENEWAL)?;
    let proof = site.renew_proof(Deadline::after(RENEWAL));
    print_line(proof.map_err(|deferral| fail(ExitCode::Unavailable, deferral.to_string()))?);
    Ok(ExitCode::Ok)
}

/// What must be fixed comes first. What is ok, without advice, is counted or comes last.
fn text(findings: &[Finding], all: bool) -> String {
    use FindingState::{Bad, Good, Warning};
    let is_shown = |finding: &&Finding| all || finding.state != Good || finding.fix.is_some();
    let (mut shown, hidden): (Vec<&Finding>, Vec<&Finding>) = findings.iter().partition(is_shown);
    shown.sort_by_key(|finding| Reverse(finding.state));
    let rows = shown.iter().map(|finding| {
        let word = match finding.state {
            Good => "ok",
            Warning => "warning",
            Bad => "BAD",
        };
        let fix = finding.fix.as_deref().unwrap_or_default();
        [finding.what.as_str(), word, &finding.found, fix].map(ToOwned::to_owned)
    });
    let mut text = if shown.is_empty() { String::new() } else { table(["what", "", "found", "fix"], rows) + "\n" };
    if !hidden.is_empty() {
        text += &format!("{} ok: --all shows them.\n", hidden.len());
    }
    let count = |state: FindingState| findings.iter().filter(|finding| finding.state == state).count();
    text + &match (count(Bad), count(Warning)) {
        (0, 0) => "All is well.".to_owned(),
        (0, warnings) => format!("It works; {warnings} could be better."),
        (bad, _) => format!("{bad} must be fixed before mail is delivered by it."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::FindingState::{Bad, Warning};
    use crate::ledger::check::good;

    #[test]
    fn what_must_be_fixed_comes_first_and_what_is_ok_is_counted() {
        let findings = [
            good("lock", "excludes"),
            Warning.finding("file", "late", "wait"),
            Bad.finding("login", "refused", "name it"),
        ];
        let lines = |text: String| -> Vec<String> {
            text.lines().map(|line| line.trim().split("  ").next().unwrap().into()).collect()
        };
        assert_eq!(lines(text(&findings, false))[..4], ["what", "login", "file", "1 ok: --all shows them."]);
        assert_eq!(lines(text(&findings, true))[..4], ["what", "login", "file", "lock"]);
        assert_eq!(text(&findings[..1], false), "1 ok: --all shows them.\nAll is well.");
    }
}
