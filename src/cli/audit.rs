//! `audit`: compares the ledger with the mailboxes.

use super::progress::Progress;
use super::site_options::SiteOptions;
use super::{Ended, help, print_line, table};
use crate::base::deadline::Deadline;
use crate::base::terminal::shell_word;
use crate::base::timestamp;
use crate::ledger::NeverEnded;
use crate::ledger::audit_queries::{RecordedCopy, Selection};
use crate::operations::audit::{Audit, DuplicatedCopy, NotInPlace, NotRemoved, audit, take_out};
use crate::site::Site;
use clap::Args;
use serde_json::{Value, json};
use std::time::Duration;
use sysexits::ExitCode;

/// The time limit of the whole audit.
const PATIENCE: Duration = Duration::from_hours(24);
/// The number of copies that are listed for one mailbox, unless the audit is of that mailbox only.
const A_FEW: usize = 5;
/// The time limit for the removal of one copy, if delivery.deadline is not shorter.
const PATIENCE_FOR_ONE: Duration = Duration::from_mins(2);

#[derive(Debug, Args)]
#[command(after_help = help("audit"))]
pub(crate) struct Arguments {
    #[command(flatten)]
    site: SiteOptions,
    /// Messages recorded since then: 2d or 90m (ago), 2026-11-20, 2026-11-20T03:00:00Z
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = timestamp::since)]
    since: i64,
    /// Only the mailboxes of this user of the mailbox store, or one of them: scuba, scuba/INBOX
    #[arg(long, value_name = "USER[/MAILBOX]")]
    mailbox: Option<String>,
    /// Say which duplicates would be removed; with --yes, remove them
    #[arg(long)]
    repair: bool,
    /// Do what --repair says
    #[arg(long, requires = "repair")]
    yes: bool,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

/// The action on a duplicate.
#[derive(PartialEq)]
enum Repair {
    NotRequested,
    /// The duplicate would be removed.
    Would,
    Removed,
    /// It was left; the reason.
    Left(String),
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let (site, mut database) = arguments.site.open_as(Site::configured, PATIENCE)?;
    let selection = Selection { since: arguments.since, mailbox: arguments.mailbox.as_deref() };
    let progress = Progress::watch("reading the ledger");
    let mut each = |done, of| progress.set(format!("compared {done} of {of} mailboxes"));
    let found = audit(&site, database.as_mut(), &selection, &mut each)?;
    drop((progress, database));
    let repairs: Vec<Repair> = found.twice.iter().map(|twice| repair(&site, twice, arguments)).collect();
    if arguments.json {
        print_line(&as_json(&found, &repairs, arguments).to_string());
    } else {
        show(&found, &repairs, arguments);
    }
    let losses = found.gone.iter().filter(|(_, gone)| gone.is_loss()).count();
    let twice = repairs.iter().filter(|repair| **repair != Repair::Removed).count();
    Ok(if losses + twice + found.owed.len() + found.never_ended.len() > 0 {
        ExitCode::DataErr
    } else if found.unseen.is_empty() {
        ExitCode::Ok
    } else {
        ExitCode::Unavailable
    })
}

fn repair(site: &Site, twice: &DuplicatedCopy, arguments: &Arguments) -> Repair {
    match (arguments.repair, twice.same, arguments.yes) {
        (false, ..) => return Repair::NotRequested,
        (true, false, _) => return Repair::Left("the two differ: compare them, and delete one manually".into()),
        (true, true, false) => return Repair::Would,
        (true, true, true) => {}
    }
    // The removal is journalled like a delivery. imap.append_grace, after which no late effect of an attempt is possible,
    // assumes their deadline.
    match take_out(site, twice, Deadline::after(PATIENCE_FOR_ONE.min(site.deadline()))) {
        Ok(()) => Repair::Removed,
        Err(NotRemoved::Unanswered(error)) => {
            Repair::Left(format!("{error}: it may be out or not; run the audit again in some minutes"))
        }
        Err(error) => Repair::Left(error.to_string()),
    }
}

/// The finding, the mailbox, the message, and a description.
type Row = [String; 4];

/// Prints the findings as text, the most important first.
fn show(found: &Audit, repairs: &[Repair], arguments: &Arguments) {
    let gone = |wanted: fn(NotInPlace) -> bool| -> Vec<(&RecordedCopy, String)> {
        let all = found.gone.iter().filter(|(_, gone)| wanted(*gone));
        all.map(|(copy, gone)| (copy, describe_gone(copy, *gone))).collect()
    };
    let (lost, removed) = (gone(NotInPlace::is_loss), gone(|gone| gone == NotInPlace::Removed));
    let moved = gone(|gone| gone.now().is_some());
    let owed = found.owed.iter().map(|copy| (copy, copy.reason.clone().unwrap_or_default()));
    let mut owed: Vec<_> = owed.collect();
    owed.sort_by_key(|(copy, _)| (&copy.user, &copy.mailbox));

    let mut rows = rows_of("LOST", &lost, arguments);
    let twice = found.twice.iter().zip(repairs);
    rows.extend(twice.map(|(twice, repair)| row("TWICE", &twice.copy, describe_twice(twice, repair))));
    rows.extend(rows_of("OWED", &owed, arguments));
    rows.extend(found.never_ended.iter().map(|attempt| {
        let mailbox = format!("{} of {}", attempt.mailbox, attempt.user);
        ["never ended".into(), mailbox, attempt.message_id.clone(), describe_attempt(attempt)]
    }));
    rows.extend(found.unseen.iter().map(|(user, mailbox, error)| {
        ["not looked at".into(), format!("{mailbox} of {user}"), String::new(), error.to_string()]
    }));
    rows.extend(rows_of("moved", &moved, arguments));
    // Copies deleted by owners would hide the rest: they are only counted, unless the audit is of one mailbox.
    if arguments.mailbox.is_some() {
        rows.extend(rows_of("gone", &removed, arguments));
    }
    if !rows.is_empty() {
        print_line(&table(["found", "mailbox", "message", "what it is"], rows.into_iter()));
        print_line("");
    }

    let since = timestamp::time_text(arguments.since);
    let (looked, well) = match (&arguments.mailbox, found.mailboxes) {
        (Some(mailbox), 0) => (
            format!("No copy for {mailbox} has been recorded since {since}"),
            "name a user as the mailbox store does, or one mailbox, as in scuba/INBOX",
        ),
        (None, 0) => (
            format!("No copy has been recorded since {since}"),
            "there is nothing to look for, and no attempt is overdue",
        ),
        (_, mailboxes) => {
            let (copies, mailboxes) = (copies(found.copies), plural(mailboxes, "mailbox", "mailboxes"));
            let looked = format!("Looked for {copies} in {mailboxes}, of messages recorded since {since}");
            (looked, "all are there, once, and no attempt is overdue")
        }
    };
    let repaired = |state: &Repair| repairs.iter().filter(|repair| *repair == state).count();
    let (taken_out, would) = (repaired(&Repair::Removed), repaired(&Repair::Would));
    let counts = [
        (lost.len(), "lost"),
        (repairs.len() - taken_out, "duplicated"),
        (taken_out, "taken out"),
        (owed.len(), "owed"),
        (found.never_ended.len(), "never ended"),
        (found.unseen.len(), "not looked at"),
        (moved.len(), "moved"),
        (removed.len(), "gone, most likely deleted or filed by their owners"),
    ];
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    let counts: Vec<String> = counts.map(|(count, what)| format!("{count} {what}")).collect();
    let summary = if counts.is_empty() { well.to_owned() } else { counts.join(", ") };
    print_line(&format!("{looked}: {summary}."));

    // These options are for copy and paste.
    let mailbox = arguments.mailbox.as_ref().map(|mailbox| format!(" --mailbox {}", shell_word(mailbox)));
    let options = mailbox.unwrap_or_default() + &arguments.site.options();
    if would > 0 {
        print_line(&format!("Nothing was changed. With --yes, {} would be taken out.", copies(would)));
    } else if !arguments.repair && found.twice.iter().any(|twice| twice.same) {
        print_line(&format!(
            "`maildrop_command audit --repair{options}` takes out duplicated copies that are the same."
        ));
    }
    if !owed.is_empty() {
        print_line(&format!("`maildrop_command replay --owed{options}` finishes what is owed."));
    }
    if !lost.is_empty() {
        // As an argument, the moment must be one word.
        let since = since.replace(' ', "T");
        print_line(&format!(
            "`maildrop_command replay --restore --since {since}{options}` shows what was lost; with --yes, delivers it again."
        ));
    }
}

/// A row for each of these copies; at most [`A_FEW`] for one mailbox, unless the audit is of that mailbox only.
fn rows_of(what: &str, copies: &[(&RecordedCopy, String)], arguments: &Arguments) -> Vec<Row> {
    let few = if arguments.mailbox.is_some() { usize::MAX } else { A_FEW };
    let mut rows = Vec::new();
    for of_mailbox in copies.chunk_by(|(a, _), (b, _)| (&a.user, &a.mailbox) == (&b.user, &b.mailbox)) {
        rows.extend(of_mailbox.iter().take(few).map(|(copy, why)| row(what, copy, why.clone())));
        if let Some((copy, _)) = of_mailbox.get(few) {
            let [what, mailbox, ..] = row(what, copy, String::new());
            let more = format!("and {} more", of_mailbox.len() - few);
            rows.push([what, mailbox, more, format!("--mailbox {}/{} lists them", copy.user, copy.mailbox)]);
        }
    }
    rows
}

fn row(what: &str, copy: &RecordedCopy, text: String) -> Row {
    [what.into(), format!("{} of {}", copy.mailbox, copy.user), copy.message_id.clone(), text]
}

fn copies(count: usize) -> String {
    plural(count, "copy", "copies")
}

fn plural(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn describe_gone(copy: &RecordedCopy, gone: NotInPlace) -> String {
    let was = copy.placement.map_or_else(String::new, |at| format!("it was uid {}; ", at.uid));
    let now = gone.now().map_or_else(String::new, |at| format!("it is uid {} now: ", at.uid));
    let why = match gone {
        NotInPlace::OlderMailbox => "the mailbox has gone back to before that: restored from an old backup?",
        NotInPlace::NewMailbox => "the mailbox was recreated or restored (another UIDVALIDITY), without it",
        NotInPlace::NoMailbox => "the whole mailbox is gone",
        NotInPlace::Renumbered(_) => "the mailbox was recreated or restored (another UIDVALIDITY)",
        NotInPlace::Elsewhere(_) => "somebody took it out and put it back",
        NotInPlace::Removed => "most likely its owner has deleted it, or filed it in another mailbox",
    };
    format!("{was}{now}{why}")
}

fn describe_twice(twice: &DuplicatedCopy, repair: &Repair) -> String {
    let (keep, extra) = (twice.keep.uid, twice.extra.uid);
    match repair {
        Repair::NotRequested if twice.same => {
            format!("uid {extra} is the same as uid {keep}, which the ledger has")
        }
        Repair::NotRequested => format!(
            "uid {extra} is the same message as uid {keep}, which the ledger has, except for what was added on the way"
        ),
        Repair::Would => format!("uid {extra} would be taken out; uid {keep}, which is the same, stays"),
        Repair::Removed => format!("uid {extra} was taken out; uid {keep}, which is the same, stays"),
        Repair::Left(why) => format!("uid {extra} was left, beside uid {keep}: {why}"),
    }
}

fn describe_attempt(NeverEnded { pid, host, age, recipient, delivered, queue_id, .. }: &NeverEnded) -> String {
    let ago = humantime::format_duration(Duration::from_secs(age.as_secs()));
    let who = format!("process {pid} on {host} began {ago} ago, and was cut short");
    if *delivered {
        return format!("{who}; another attempt has delivered the copy. A next delivery to {recipient} looks");
    }
    let postcat = queue_id.as_ref().map(|queue_id| format!(": postcat -q {queue_id}")).unwrap_or_default();
    format!(
        "{who}; NOT delivered. The next delivery to {recipient} looks whether its copy is there first; see Postfix's queue on \
         {host}{postcat}"
    )
}

fn as_json(found: &Audit, repairs: &[Repair], arguments: &Arguments) -> Value {
    let gone = found
        .gone
        .iter()
        .map(|(copy, gone)| json!({ "copy": copy, "why": gone.as_str(), "lost": gone.is_loss(), "now": gone.now() }));
    let twice = found.twice.iter().zip(repairs).map(|(twice, repair)| {
        let (done, why) = match repair {
            Repair::NotRequested => ("nothing", None),
            Repair::Would => ("would be taken out", None),
            Repair::Removed => ("taken out", None),
            Repair::Left(why) => ("left", Some(why)),
        };
        json!({
            "copy": twice.copy, "keep_uid": twice.keep.uid, "extra_uid": twice.extra.uid, "same": twice.same,
            "repair": done, "why": why,
        })
    });
    let owed = found.owed.iter().map(|copy| json!({ "copy": copy, "why": copy.reason }));
    let unseen = found
        .unseen
        .iter()
        .map(|(user, mailbox, error)| json!({ "user": user, "mailbox": mailbox, "error": error.to_string() }));
    json!({
        "since": timestamp::exact(arguments.since),
        "copies": found.copies,
        "mailboxes": found.mailboxes,
        "gone": gone.collect::<Value>(),
        "twice": twice.collect::<Value>(),
        "owed": owed.collect::<Value>(),
        "never_ended": found.never_ended,
        "unseen": unseen.collect::<Value>(),
    })
}
