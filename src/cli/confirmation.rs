//! The rule of safety: at a terminal, a change in bulk of mailboxes, ledger or queue shows what it would do, and wants `--yes`.

use super::{Ended, complain, print_line};
use clap::Args;
use std::io::IsTerminal;
use sysexits::ExitCode;

#[derive(Debug, Args)]
#[group(skip)]
pub(crate) struct Confirmation {
    /// Do it: at a terminal, more than one is changed only with this
    #[arg(long)]
    yes: bool,
}

impl Confirmation {
    pub(super) fn is_missing(&self) -> bool {
        is_missing(self.yes)
    }
}

/// Whether a person has to confirm first. Timers and scripts have no terminal, and need no `--yes`.
pub(super) fn is_missing(yes: bool) -> bool {
    !yes && std::io::stdout().is_terminal()
}

/// Ends a subcommand that has only shown its effect. Standard output may be JSON.
pub(super) fn report_unconfirmed(done: &str, as_json: bool) -> Ended {
    let text = format!("Nothing was {done}. With --yes it is.");
    if as_json {
        complain(&text)
    } else {
        print_line(&text)
    }
    Ok(ExitCode::Ok)
}
