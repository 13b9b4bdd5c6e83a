//! `--owed` and `--restore`: copies that should be in a mailbox by the ledger, and are not.

use super::results::ReplayResults;
use super::{Arguments, Ended, Progress, complain, confirmation, report_unconfirmed};
use crate::base::deadline::Deadline;
use crate::base::timestamp;
use crate::cli::{Columns, json, list, print_line};
use crate::database::DatabaseError;
use crate::ledger::audit_queries::{self, RecordedCopy, Selection};
use crate::ledger::operations_log::Operation;
use crate::operations::audit;
use crate::operations::redelivery::{self, Redelivery};
use crate::operations::replay::MessageReport;
use crate::site::Site;
use std::sync::atomic::Ordering;
use std::time::Duration;
use sysexits::ExitCode;

/// The time limit of the ledger's queries for owed and recorded copies.
const PATIENCE: Duration = Duration::from_hours(1);
/// The number of copies that are shown to people.
const SHOWN: usize = 20;

/// The name of a column, and its text.
type ShownText = (&'static str, fn(&RecordedCopy) -> String);

fn selection(arguments: &Arguments) -> Selection<'_> {
    Selection { since: arguments.since.unwrap_or_default(), mailbox: arguments.mailbox.as_deref() }
}

/// Finishes the owed copies.
pub(super) fn owed(arguments: &Arguments, site: &Site) -> Ended {
    let mut database = site.open_database(None, Deadline::after(PATIENCE))?;
    let left_for = site.left_to_authors_for();
    let (copies, left) = audit_queries::owed_by_now(database.as_mut(), &selection(arguments), left_for)?;
    drop(database);
    if left > 0 && !arguments.json {
        print_line(&format!(
            "{left} copies are left to their authors' own mail programs for a while yet (sent.dedup_delay)"
        ));
    }
    let is_unconfirmed = copies.len() > 1 && confirmation::is_missing(arguments.yes);
    if arguments.dry_run || is_unconfirmed {
        show(arguments, &copies, "nothing is owed", ("why", |copy| copy.reason.clone().unwrap_or_default()));
        return if arguments.dry_run { Ok(ExitCode::Ok) } else { report_unconfirmed("delivered", arguments.json) };
    }
    redeliver(arguments, site, &copies, (Operation::FinishedOwed, redelivery::finish))
}

/// Shows the lost copies, and with `--yes` redelivers them.
pub(super) fn restore(arguments: &Arguments, site: &Site) -> Ended {
    let progress = Progress::watch("reading the mailboxes");
    let mut database = site.open_database(None, Deadline::after(PATIENCE))?;
    let losses = redelivery::lost(site, database.as_mut(), &selection(arguments), audit::never())?;
    drop((progress, database));
    for (user, mailbox, error) in &losses.unseen {
        complain(&format!("{mailbox} of {user} could not be looked at: {error}"));
    }
    // A copy that its owner has deleted must not come back when a person restores what another mailbox has lost.
    let is_meant = |id: &String| arguments.message_id.is_empty() || arguments.message_id.contains(id);
    let meant: Vec<_> = losses.gone.into_iter().filter(|(copy, _)| is_meant(&copy.message_id)).collect();
    let gone = meant.len();
    let wanted = meant.into_iter().filter(|(_, gone)| arguments.deleted || gone.is_loss());
    let copies: Vec<RecordedCopy> = wanted.map(|(copy, _)| copy).collect();
    let seen = if losses.unseen.is_empty() { ExitCode::Ok } else { ExitCode::TempFail };
    if arguments.yes {
        let exit = redeliver(arguments, site, &copies, (Operation::Restored, redelivery::restore))?;
        return Ok(if exit == ExitCode::Ok { seen } else { exit });
    }
    // Mailboxes that could not be read may have lost copies as well.
    if !copies.is_empty() || losses.unseen.is_empty() {
        show(arguments, &copies, "nothing is lost", ("subject", |copy| copy.subject.clone().unwrap_or_default()));
    }
    if arguments.json {
        return Ok(seen);
    }
    let (unseen, mailboxes) = (losses.unseen.len(), losses.mailboxes);
    if unseen > 0 {
        print_line(&format!(
            "{unseen} of {mailboxes} mailboxes could not be looked at: what they have lost is not known"
        ));
    }
    let (looked, lost, left) = (losses.copies, copies.len(), gone - copies.len());
    print_line(&format!("of {looked} copies in {mailboxes} mailboxes, {lost} would be delivered again with --yes"));
    if left > 0 {
        print_line(&format!(
            "gone besides, from mailboxes that go on: {left}, most likely deleted or filed by their owners. \
             With --deleted, what is gone so is brought back, too"
        ));
    } else if arguments.deleted && gone > 0 {
        print_line(
            "what owners have deleted or filed is among them: `maildrop_command audit --mailbox USER` tells which",
        );
    }
    Ok(seen)
}

fn redeliver(
    arguments: &Arguments,
    site: &Site,
    copies: &[RecordedCopy],
    (operation, how): (Operation, Redelivery),
) -> Ended {
    let stop = super::stop_on_signals()?;
    let results = ReplayResults::new(arguments, "delivering", copies.len() as u64, false, None);
    let redeliver = |copy: &RecordedCopy| {
        results.add(Some(MessageReport {
            source: copy.message_id.clone(),
            recipient: Some(format!("{} of {}", copy.mailbox, copy.user)),
            outcome: redelivery::redeliver(site, copy, how)?,
            failure: None,
        }));
        results.add(None);
        Ok::<_, DatabaseError>(())
    };
    let ended = copies.iter().take_while(|_| !stop.load(Ordering::Relaxed)).try_for_each(redeliver);
    let exit = results.finish(site, operation);
    ended?;
    Ok(exit)
}

/// Shows copies: all of them as JSON, or the first of them to people, with the text of the `last` column.
fn show(arguments: &Arguments, copies: &[RecordedCopy], nothing: &str, last: ShownText) {
    if arguments.json {
        return copies.iter().for_each(|copy| print_line(&json(copy)));
    }
    let columns: Columns<RecordedCopy, 4> = [
        ("since", |copy| timestamp::time_text(copy.recorded_at)),
        ("mailbox", |copy| format!("{} of {}", copy.mailbox, copy.user)),
        ("message", |copy| copy.message_id.clone()),
        last,
    ];
    print_line(&list(copies.get(..SHOWN).unwrap_or(copies), nothing, columns));
    if copies.len() > SHOWN {
        print_line(&format!("and {} more; --json has them all", copies.len() - SHOWN));
    }
}
