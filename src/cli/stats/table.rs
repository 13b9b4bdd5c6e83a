//! The statistics as tables.

use crate::base::timestamp::time_text;
use crate::cli::{sentences, table};
use crate::operations::notifications::NotificationFigures;
use crate::operations::stats::{Attempts, Messages, Statistics};
use std::time::Duration;

pub(super) fn text(counted: &Statistics) -> String {
    let Statistics {
        from,
        until,
        attempts,
        deferrals,
        failures,
        copies,
        copies_owed_now,
        messages,
        notifications,
        notification_attempts,
        lock,
        stages,
    } = counted;
    let Attempts { all, delivered, deferred, refused, died, not_ended } = *attempts;
    let Messages { recorded, bytes } = messages;
    let (from, until) = (time_text(*from), time_text(*until));
    let mut parts = vec![sentences(&format!(
        "{from} to {until}: {all} attempts, {delivered} delivered, {deferred} deferred; messages recorded: {recorded}, {bytes} \
         bytes."
    ))];
    if *copies_owed_now > 0 {
        parts.push(sentences(&format!(
            "Copies OWED now, whenever that began: {copies_owed_now}. `maildrop_command replay --owed` finishes them, and with \
             --dry-run names them."
        )));
    }
    if let Some(now) = notifications.filter(|now| *now != NotificationFigures::default()) {
        parts.push(sentences(&format!(
            "Notifications now: {} events are to be published, {} notifications to be shown, {} were given up; {} receivers rest, {} \
             subscriptions are disabled. `maildrop_command notify status` has more.",
            now.unpublished, now.pending, now.given_up, now.resting, now.disabled
        )));
    }
    if all > 0 {
        let deferred = deferrals.iter().map(|deferred| ("deferred", deferred.cause, deferred.attempts));
        let ended = [("refused", "", refused), ("died", "", died), ("not ended", "", not_ended)];
        let rows = [("delivered", "", delivered)].into_iter().chain(deferred).chain(ended);
        let rows = rows.filter(|(_, _, number)| *number > 0).map(|(what, cause, number)| {
            [what.to_owned(), cause.to_owned(), number.to_string(), percent(number as f64 / all as f64)]
        });
        parts.push(table(["attempts that ended", "cause", "number", "share"], rows));
    }
    if !failures.is_empty() {
        let rows = failures
            .iter()
            .map(|one| [one.cause.to_owned(), one.deliveries.to_string(), one.tries.to_string(), one.over.to_string()]);
        parts.push(table(["failed before delivery", "not delivered", "tries", "delivered since"], rows));
    }
    if !copies.is_empty() {
        let rows = copies.iter().map(|(what, number)| [(*what).to_owned(), number.to_string()]);
        parts.push(table(["copies", "number"], rows));
    }
    if let Some(answer) = stages.iter().find(|stage| stage.stage == "lock") {
        let (busy, share, [half, most]) =
            (lock.busy, percent(lock.busy_share), [answer.took.p50, answer.took.p99].map(milliseconds));
        parts.push(sentences(&format!(
            "Contention: {busy} of {all} attempts ({share}) found the lock held elsewhere; half of them all had their answer \
             within {half} ms, 99 % within {most} ms."
        )));
    }
    if !stages.is_empty() {
        let rows = stages.iter().map(|stage| {
            let [p50, p90, p99, max] =
                [stage.took.p50, stage.took.p90, stage.took.p99, stage.took.max].map(milliseconds);
            [stage.stage.to_owned(), stage.attempts.to_string(), p50, p90, p99, max]
        });
        parts.push(table(["stage (ms)", "attempts", "50 %", "90 %", "99 %", "greatest"], rows));
    }
    if let Some(notification_attempts) =
        notification_attempts.as_ref().filter(|notification_attempts| notification_attempts.first_try.notifications > 0)
    {
        let rows = notification_attempts.tries.iter().map(|(class, number)| [(*class).to_owned(), number.to_string()]);
        parts.push(table(["answers to notifications", "tries"], rows));
        let first = &notification_attempts.first_try;
        let [half, most, all] = [first.took.p50, first.took.p99, first.took.max].map(milliseconds);
        parts.push(sentences(&format!(
            "Notifications: half of {} were tried first within {half} ms of their commit, 99 % within {most} ms, all within \
             {all} ms.",
            first.notifications
        )));
    }
    parts.push(sentences(
        "Not in here: what was deferred while the database took no writes or the configuration was wrong, and messages that \
         are too large.\nThe delivery's log has it: records \"deferred\" and \"refused\", fields cause and verdict.",
    ));
    parts.join("\n\n")
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn milliseconds(span: Duration) -> String {
    format!("{:.2}", span.as_micros() as f64 / 1000.0)
}
