//! A trace as text.

use crate::base::timestamp::time_text;
use crate::cli::{facts as fact_lines, printable, table};
use crate::ledger::trace::{MessageTrace, TracedAttempt, TriedCopy};
use crate::operations::trace::{Asked, TakenAs, Trace, TracedMessage, held_then};
use crate::site::Site;
use std::collections::BTreeSet;

/// The maximum number of attempts in a table, the newest; a message tried for five days has 130 for each recipient.
const ATTEMPTS_SHOWN: usize = 40;

pub(super) fn text(traced: &Trace, site: &Site, since: i64) -> String {
    let Trace { asked: Asked { what, taken_as, guessed }, messages, more, .. } = traced;
    if messages.is_empty() {
        return never_seen(&traced.asked, site, since);
    }
    let (number, several) = (messages.len(), messages.len() > 1);
    let mut parts: Vec<String> = Vec::new();
    if *guessed {
        parts.push(format!("Taken as {}: {what}.", taken_as.as_str()));
    }
    if several && *taken_as == TakenAs::MessageId {
        let many = if *more { "More than " } else { "" };
        parts.push(format!("{many}{number} messages bear this Message-ID; each has a history of its own."));
    }
    for (index, message) in messages.iter().enumerate() {
        if several {
            parts.push(format!("== {} of {number}{}", index + 1, if *more { " and more" } else { "" }));
        }
        parts.push(message_text(message));
    }
    if *more {
        parts.push(format!(
            "There are more: these are the newest {number}. --limit shows more of them, --since goes less far back."
        ));
    }
    parts.join("\n\n")
}

fn message_text(TracedMessage { verdict, recipients, trace, .. }: &TracedMessage) -> String {
    let mut parts = vec![printable(verdict)];

    let mut facts = vec![("Message-ID", trace.message_id.clone())];
    match &trace.message {
        Some(message) => {
            let sender = if message.sender.is_empty() { "<> (the null sender)" } else { &message.sender };
            facts.extend([
                ("envelope sender", sender.to_owned()),
                ("From", message.from.clone().unwrap_or_default()),
                ("To", message.to.clone().unwrap_or_default()),
                ("Subject", message.subject.clone().unwrap_or_default()),
                ("size", format!("{} bytes", message.size)),
                ("recorded", time_text(message.recorded_at)),
                ("source", if message.source_kept { "kept in the database" } else { "not kept" }.to_owned()),
            ]);
        }
        None => {
            let failed = trace.failures.first();
            let known = failed.map(|failure| (failure.author.clone(), failure.subject.clone()));
            if let Some((author, subject)) = known {
                facts.extend([("From", author.unwrap_or_default()), ("Subject", subject.unwrap_or_default())]);
            }
            let unknown = if failed.is_none() { ", so author and subject are not known" } else { "" };
            facts.push(("recorded", format!("no: no copy of it was delivered yet{unknown}")));
        }
    }
    facts.push((
        "lock",
        trace.lock.holder.as_ref().map_or_else(|| "free".to_owned(), |holder| format!("held by {holder}")),
    ));
    parts.push(fact_lines(17, facts));

    if recipients.len() > 1 {
        let rows = recipients.iter().map(|recipient| {
            let last = recipient.last_at.map(time_text).unwrap_or_default();
            [recipient.recipient.clone(), recipient.summary.clone(), recipient.attempts.to_string(), last]
        });
        parts.push(table(["recipient", "how it stands", "attempts", "last attempt"], rows));
    }
    if !trace.copies.is_empty() {
        let rows = trace.copies.iter().map(|copy| {
            let state = if copy.delivered { "delivered" } else { "OWED" };
            let number = |number: Option<u32>| number.map(|number| number.to_string()).unwrap_or_default();
            [
                copy.mailbox.clone(),
                copy.user.clone(),
                copy.role.as_str().to_owned(),
                state.to_owned(),
                number(copy.uid),
                number(copy.uid_validity),
                time_text(copy.delivered_at.unwrap_or(copy.updated_at)),
                copy.reason.clone().unwrap_or_default(),
            ]
        });
        parts.push(table(["copy in", "of user", "as", "state", "UID", "UIDVALIDITY", "when", "why"], rows));
    }
    if !trace.failures.is_empty() {
        let rows = trace.failures.iter().map(|failure| {
            [
                failure.recipient.clone(),
                failure.count.to_string(),
                time_text(failure.first_at),
                time_text(failure.last_at),
                failure.queue_id.clone().unwrap_or_default(),
                failure.host.clone(),
                failure.cause.to_string(),
            ]
        });
        let header = ["failed before delivery to", "tries", "first", "last", "queue id", "host", "last cause"];
        parts.push(table(header, rows));
    }
    parts.push(attempts_text(trace));
    parts.push(already_there_text(trace));
    parts.push(summary_text(trace));
    parts.retain(|part| !part.is_empty());
    parts.join("\n\n")
}

/// The notifications of the message's events.
fn summary_text(trace: &MessageTrace) -> String {
    let events = trace.notifications.iter().flatten();
    let rows: Vec<[String; 7]> = events
        .flat_map(|event| event.subscriptions.iter().map(move |to| (event, to)))
        .map(|(event, to)| {
            [
                time_text(event.at),
                event.r#type.clone(),
                format!("{}/{}", event.user, event.mailbox),
                to.subscription.to_string(),
                to.state.replace('_', " "),
                to.tries.to_string(),
                to.last.clone().unwrap_or_default(),
            ]
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let left_out = rows.len().saturating_sub(ATTEMPTS_SHOWN);
    let header = ["happened", "what", "to the copy in", "subscription", "is", "tries", "last answer"];
    let mut text = table(header, rows.into_iter().skip(left_out));
    if left_out > 0 {
        text.push_str(&format!("\n{left_out} earlier notifications are not shown; --json has them all."));
    }
    text
}

fn attempts_text(trace: &MessageTrace) -> String {
    if trace.attempts.is_empty() && !trace.failures.is_empty() {
        return String::new();
    }
    if trace.attempts.is_empty() {
        return "Its attempts are no longer kept (prune).".into();
    }
    let left_out = trace.attempts.len().saturating_sub(ATTEMPTS_SHOWN);
    let senders = trace.attempts.iter().skip(left_out).map(|attempt| attempt.another_sender(trace.message.as_ref()));
    let senders: Vec<Option<String>> = senders.map(|sender| sender.map(|sender| format!("<{sender}>"))).collect();
    let rows = trace.attempts.iter().skip(left_out).map(|attempt| {
        let whole: f64 = attempt.stages.iter().map(|(_, took)| took).sum();
        let stages: Vec<String> =
            attempt.stages.iter().map(|(name, took)| format!("{name} {}", brief(*took))).collect();
        [
            time_text(attempt.began_at),
            attempt.recipient.clone(),
            attempt.queue_id.clone().unwrap_or_default(),
            format!("{}:{}", attempt.host, attempt.pid),
            ended(attempt),
            if attempt.stages.is_empty() { String::new() } else { brief(whole) },
            stages.join(", "),
        ]
    });
    let header = ["attempt", "for", "queue id", "host:pid", "how it ended", "ms", "of which"];
    let mut text = if senders.iter().any(Option::is_some) {
        let rows = rows.zip(senders).map(|([at, to, rest @ ..], sender)| {
            let [queue_id, process, ended, whole, stages] = rest;
            [at, to, sender.unwrap_or_default(), queue_id, process, ended, whole, stages]
        });
        let [at, to, queue_id, process, ended, whole, stages] = header;
        table([at, to, "envelope sender", queue_id, process, ended, whole, stages], rows)
    } else {
        table(header, rows)
    };
    if left_out > 0 {
        text.push_str(&format!("\n{left_out} earlier attempts are not shown; --json has them all."));
    }
    text
}

/// For each recipient's copy that already existed, how it had been delivered.
fn already_there_text(trace: &MessageTrace) -> String {
    let tried = trace.attempts.iter().flat_map(|attempt| &attempt.copies);
    let line = |TriedCopy { mailbox, user, earlier, .. }: &TriedCopy| {
        let earlier = earlier.as_ref()?;
        let by = match &earlier.host {
            Some(host) => format!("queue id {} on {host}", earlier.queue_id.as_deref().unwrap_or("(not given)")),
            None => "an attempt that is no longer kept".to_owned(),
        };
        let sender = earlier.sender.as_ref().map_or_else(|| "unknown".to_owned(), |sender| format!("<{sender}>"));
        let at = time_text(earlier.delivered_at);
        Some(printable(&format!(
            "Already there in {mailbox} of {user}: brought by {by} at {at}; envelope sender {sender}."
        )))
    };
    let lines: BTreeSet<String> = tried.filter_map(line).collect();
    lines.into_iter().collect::<Vec<_>>().join("\n")
}

fn brief(milliseconds: f64) -> String {
    if milliseconds < 9.95 { format!("{milliseconds:.1}") } else { format!("{milliseconds:.0}") }
}

fn ended(attempt: &TracedAttempt) -> String {
    let word = |tried: &TriedCopy| match &tried.outcome {
        None if attempt.holds_the_lock => "under way".to_owned(),
        None => "not ended".to_owned(),
        Some(outcome) => outcome.to_string(),
    };
    let words: Vec<String> = attempt.copies.iter().map(word).collect();
    match words.as_slice() {
        [first, rest @ ..] if rest.iter().all(|other| other == first) => match &attempt.lock_was_held_by {
            Some(holder) => format!("{first}: {}", held_then(holder)),
            None => first.clone(),
        },
        _ => {
            let copies = attempt.copies.iter().zip(&words);
            copies.map(|(tried, word)| format!("{}: {word}", tried.mailbox)).collect::<Vec<_>>().join("; ")
        }
    }
}

fn never_seen(Asked { what, taken_as, .. }: &Asked, site: &Site, since: i64) -> String {
    let since = time_text(since);
    let is_address = what.contains('@') && !what.starts_with('@');
    let nothing = match taken_as {
        TakenAs::Address | TakenAs::Beginning if is_address => format!(
            "no message bears the Message-ID <{what}>, and nothing was tried for, or sent by, the address {what} since {since}"
        ),
        TakenAs::Address | TakenAs::Domain | TakenAs::Beginning => {
            format!("no message has {} like {what}, and nothing was tried for one since {since}", taken_as.as_str())
        }
        TakenAs::Piece => format!(
            "no message since {since} has {what} in its subject or author, no address begins like this, and nothing was tried with \
             this queue id"
        ),
        TakenAs::QueueId => format!("nothing was tried with the queue id {what} since {since}"),
        TakenAs::MessageId => format!("no message and no attempt bears the Message-ID {what}"),
    };
    let namespace = format!(
        "It is in another namespace than {:?}: lock.namespace must be what it was when it was delivered.",
        site.namespace()
    );
    let (is_queue_id, is_message_id) =
        (matches!(taken_as, TakenAs::QueueId | TakenAs::Piece), *taken_as == TakenAs::MessageId);
    let causes: [(bool, &str); 7] = [
        (
            true,
            "It never got as far as the ledger: `mailq`, and Postfix's log (grep for the Message-ID, then for its queue id), \
                say where it is. While the database takes no writes, only the log of each host has a delivery: the record \
                \"deferred\" or \"refused\", fields message_id, queue_id, cause. So has a message that is too large.",
        ),
        (true, "It is in another database: is this the configuration that master.cf names?"),
        (!is_queue_id, &namespace),
        (!is_message_id, "It is older: --since goes further back."),
        (is_queue_id, "It is a Message-ID without an @: write it in angle brackets, in quotes."),
        (is_queue_id, "master.cf does not pass --queue-id=${queue_id}."),
        (true, "It was pruned ([retention] in the configuration)."),
    ];
    let causes = causes.iter().filter(|(applies, _)| *applies).enumerate();
    let causes: Vec<String> = causes.map(|(number, (_, text))| format!("  {}. {text}", number + 1)).collect();
    printable(&format!("NEVER SEEN HERE: {nothing}.\n\nWhat to look at:\n{}", causes.join("\n")))
}
