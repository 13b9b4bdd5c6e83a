//! The story, for people and for programs.

use super::find::{As, Asked};
use super::story::{Attempt, Story};
use super::{Traced, verdict};
use crate::cli::moment::{exact, told};
use crate::cli::{printable, table};
use crate::lock::Holder;
use crate::site::Site;
use serde_json::{Value, json};

/// A table shows so many attempts, the newest; a message tried for five days has 130 for each recipient.
const ATTEMPTS_SHOWN: usize = 40;

/// For people.
pub(super) fn text(traced: &Traced, site: &Site, since: i64) -> String {
    let Asked { what, taken_as, guessed } = &traced.asked;
    let mut parts: Vec<String> = Vec::new();
    if *guessed && !traced.stories.is_empty() {
        parts.push(format!(
            "Taken as {} {what}.",
            if *taken_as == As::Address { "an address:" } else { "a Message-ID:" }
        ));
    }
    if traced.stories.is_empty() {
        return never_seen(&traced.asked, site, since);
    }
    let several = traced.stories.len() > 1;
    if several && *taken_as == As::MessageId {
        let many = if traced.more { "More than " } else { "" };
        let number = traced.stories.len();
        parts.push(format!("{many}{number} messages bear this Message-ID; each has a story of its own."));
    }
    for (number, story) in traced.stories.iter().enumerate() {
        if several {
            parts.push(format!(
                "== {} of {}{}",
                number + 1,
                traced.stories.len(),
                if traced.more { " and more" } else { "" }
            ));
        }
        parts.push(story_text(story, traced));
    }
    if traced.more {
        parts.push(format!(
            "There are more: these are the newest {}. --limit shows more of them, --since goes less far back.",
            traced.stories.len()
        ));
    }
    parts.join("\n\n")
}

fn story_text(story: &Story, traced: &Traced) -> String {
    let standings = verdict::standings(story, traced.now, &traced.limits);
    let (_, line) = verdict::line(story, &standings);
    let mut parts = vec![printable(&line)];

    let mut facts = vec![("Message-ID", story.message_id().to_owned())];
    match &story.message {
        Some(message) => {
            let sender = if message.sender.is_empty() { "<> (the null sender)" } else { &message.sender };
            facts.extend([
                ("envelope sender", sender.to_owned()),
                ("From", message.from.clone().unwrap_or_default()),
                ("To", message.to.clone().unwrap_or_default()),
                ("Subject", message.subject.clone().unwrap_or_default()),
                ("size", format!("{} bytes", message.size)),
                ("recorded", told(message.recorded_at)),
                ("source", if message.source { "kept in the database" } else { "not kept" }.to_owned()),
            ]);
        }
        None => {
            facts.push(("recorded", "no: no copy of it was delivered yet, so sender and subject are not known".into()))
        }
    }
    facts.push(("lock", story.holder.as_ref().map_or_else(|| "free".to_owned(), verdict::held_by)));
    parts.push(
        facts
            .iter()
            .map(|(name, fact)| format!("{name:<17}{}", printable(fact)).trim_end().to_owned())
            .collect::<Vec<_>>()
            .join("\n"),
    );

    if standings.len() > 1 {
        let rows = standings.iter().map(|standing| {
            let last = standing.last_at.map(told).unwrap_or_default();
            [standing.recipient.clone(), standing.told.clone(), standing.attempts.to_string(), last]
        });
        parts.push(table(["recipient", "how it stands", "attempts", "last attempt"], rows));
    }
    if !story.copies.is_empty() {
        let rows = story.copies.iter().map(|copy| {
            let state = if copy.delivered { "delivered" } else { "OWED" };
            let number = |number: Option<u32>| number.map(|number| number.to_string()).unwrap_or_default();
            [
                copy.mailbox.clone(),
                copy.user.clone(),
                copy.role.as_str().to_owned(),
                state.to_owned(),
                number(copy.uid),
                number(copy.uid_validity),
                told(copy.delivered_at.unwrap_or(copy.updated_at)),
                copy.reason.clone().unwrap_or_default(),
            ]
        });
        parts.push(table(["copy in", "of user", "as", "state", "UID", "UIDVALIDITY", "when", "why"], rows));
    }
    parts.push(attempts_text(story));
    parts.join("\n\n")
}

fn attempts_text(story: &Story) -> String {
    if story.attempts.is_empty() {
        return "Its attempts are no longer kept (prune).".into();
    }
    let left_out = story.attempts.len().saturating_sub(ATTEMPTS_SHOWN);
    let rows = story.attempts.iter().skip(left_out).map(|attempt| {
        let whole: f64 = attempt.stages.iter().map(|(_, took)| took).sum();
        let stages: Vec<String> =
            attempt.stages.iter().map(|(name, took)| format!("{name} {}", brief(*took))).collect();
        [
            told(attempt.began_at),
            attempt.recipient.clone(),
            attempt.queue_id.clone().unwrap_or_default(),
            format!("{}:{}", attempt.host, attempt.pid),
            ended(story, attempt),
            if attempt.stages.is_empty() { String::new() } else { brief(whole) },
            stages.join(", "),
        ]
    });
    let mut text = table(["attempt", "for", "queue id", "host:pid", "how it ended", "ms", "of which"], rows);
    if left_out > 0 {
        text.push_str(&format!("\n{left_out} earlier attempts are not shown; --json has them all."));
    }
    text
}

/// Milliseconds, as exactly as anybody wants to know.
fn brief(milliseconds: f64) -> String {
    if milliseconds < 9.95 { format!("{milliseconds:.1}") } else { format!("{milliseconds:.0}") }
}

fn ended(story: &Story, attempt: &Attempt) -> String {
    let word = |tried: &super::story::Tried| match (&tried.ended_at, &tried.outcome) {
        (None, _) if story.holds_the_lock(attempt) => "under way".to_owned(),
        (None, _) => "not ended".to_owned(),
        (Some(_), outcome) => outcome.clone().unwrap_or_default(),
    };
    let words: Vec<String> = attempt.copies.iter().map(word).collect();
    match words.as_slice() {
        [first, rest @ ..] if rest.iter().all(|other| other == first) => first.clone(),
        _ => {
            let copies = attempt.copies.iter().zip(&words);
            copies.map(|(tried, word)| format!("{}: {word}", tried.mailbox)).collect::<Vec<_>>().join("; ")
        }
    }
}

fn never_seen(asked: &Asked, site: &Site, since: i64) -> String {
    let Asked { what, taken_as, guessed } = asked;
    let namespace = site.namespace();
    let heading = match (taken_as, guessed) {
        (As::Address, _) => {
            format!(
                "NEVER SEEN HERE: no message bears the Message-ID <{what}>, and nothing was tried for, or sent by, the \
                     address {what} since {}.",
                told(since)
            )
        }
        (As::QueueId, _) => {
            format!("NEVER SEEN HERE: nothing was tried with the queue id {what} since {}.", told(since))
        }
        (As::MessageId, _) => format!("NEVER SEEN HERE: no message and no attempt bears the Message-ID {what}."),
    };
    let mut look = vec![
        "It never got as far as the ledger: `mailq`, and Postfix's log (grep for the Message-ID, then for its queue id), \
         say where it is. Before the journal is written, a delivery is put off where the database or the recipient's mailbox \
         is out of reach, and refused where the recipient is unknown: the delivery's own log has it, record \"deferred\" or \
         \"refused\", fields message_id, queue_id, cause."
            .to_owned(),
        "It is in another database: is this the configuration that master.cf names?".to_owned(),
    ];
    match taken_as {
        As::MessageId | As::Address => look.push(format!(
            "It is in another namespace than {namespace:?}: lock.namespace must be what it was when it was delivered."
        )),
        As::QueueId => {}
    }
    if *taken_as != As::MessageId {
        look.push("It is older: --since looks further back.".to_owned());
    }
    if *taken_as == As::QueueId {
        look.push("It is a Message-ID without an @: write it in angle brackets, in quotes.".to_owned());
        look.push("master.cf does not hand on --queue-id=${queue_id}.".to_owned());
    }
    look.push("It was pruned ([retention] in the configuration).".to_owned());
    let look: Vec<String> = look.iter().enumerate().map(|(number, text)| format!("  {}. {text}", number + 1)).collect();
    printable(&format!("{heading}\n\nWhat to look at:\n{}", look.join("\n")))
}

/// For programs.
pub(super) fn json(traced: &Traced) -> Value {
    let messages: Vec<Value> = traced.stories.iter().map(|story| story_json(story, traced)).collect();
    json!({
        "asked": { "what": traced.asked.what, "as": traced.asked.taken_as.as_str() },
        "now": exact(traced.now),
        "more": traced.more,
        "messages": messages,
    })
}

fn story_json(story: &Story, traced: &Traced) -> Value {
    let standings = verdict::standings(story, traced.now, &traced.limits);
    let (state, line) = verdict::line(story, &standings);
    let recipients: Vec<Value> = standings
        .iter()
        .map(|standing| {
            json!({
                "recipient": standing.recipient,
                "state": standing.state.as_str(),
                "told": standing.told,
                "attempts": standing.attempts,
                "last_attempt_at": standing.last_at.map(exact),
            })
        })
        .collect();
    let message = story.message.as_ref().map(|message| {
        json!({
            "sender": message.sender,
            "from": message.from,
            "to": message.to,
            "subject": message.subject,
            "size": message.size,
            "recorded_at": exact(message.recorded_at),
            "source_kept": message.source,
        })
    });
    let copies: Vec<Value> = story
        .copies
        .iter()
        .map(|copy| {
            json!({
                "role": copy.role.as_str(),
                "user": copy.user,
                "mailbox": copy.mailbox,
                "recipient": copy.recipient,
                "state": if copy.delivered { "delivered" } else { "owed" },
                "uid_validity": copy.uid_validity,
                "uid": copy.uid,
                "reason": copy.reason,
                "delivered_at": copy.delivered_at.map(exact),
                "updated_at": exact(copy.updated_at),
            })
        })
        .collect();
    json!({
        "state": state.as_str(),
        "verdict": line,
        "message_id": story.message_id(),
        "identity": story.identity(),
        "lock": { "postgresql": story.lock.postgres_key().to_string(), "mysql": story.lock.mysql_name(),
                  "holder": story.holder.as_ref().map(holder_json) },
        "message": message,
        "recipients": recipients,
        "copies": copies,
        "attempts": story.attempts.iter().map(|attempt| attempt_json(story, attempt)).collect::<Vec<_>>(),
    })
}

fn holder_json(holder: &Holder) -> Value {
    json!({
        "host": holder.host,
        "pid": holder.pid,
        "queue_id": holder.queue_id,
        "session": holder.session,
        "held_for_s": holder.held_for.map(|held_for| held_for.as_secs_f64()),
    })
}

fn attempt_json(story: &Story, attempt: &Attempt) -> Value {
    let copies: Vec<Value> = attempt
        .copies
        .iter()
        .map(|tried| {
            json!({
                "role": tried.role.as_str(),
                "user": tried.user,
                "mailbox": tried.mailbox,
                "outcome": tried.outcome,
                "ended_at": tried.ended_at.map(exact),
            })
        })
        .collect();
    let stages: serde_json::Map<String, Value> =
        attempt.stages.iter().map(|(name, took)| ((*name).to_owned(), json!(took))).collect();
    json!({
        "attempt": attempt.name.to_string(),
        "began_at": exact(attempt.began_at),
        "ended_at": attempt.ended_at().map(exact),
        "recipient": attempt.recipient,
        "queue_id": attempt.queue_id,
        "host": attempt.host,
        "pid": attempt.pid,
        "holds_the_lock": story.holds_the_lock(attempt),
        "copies": copies,
        "stages_ms": stages,
    })
}
