//! The figures above the list of the screen Activity.

use super::deferred_path;
use super::form::{DAY, FAILED};
use crate::base::summary_cache::Summary;
use crate::base::timestamp;
use crate::http::web::layout::{self, Screen, number};
use crate::ledger::failures::WaitingDeliveries;
use crate::ledger::web_sessions::WebSession;
use crate::operations::activity::{AtAGlance, Figures, LATELY};
use maud::{Markup, html};
use std::time::Duration;

/// The figures above the list.
pub(super) fn above(summary: &Summary<Figures>, viewer: &WebSession) -> Markup {
    let figures = if let Summary::Counted(figures) = summary { Some(*figures) } else { None };
    let hour = LATELY.as_secs() / 3600;
    let count =
        |of: fn(&Figures) -> u64| figures.as_ref().map_or_else(|| "…".to_owned(), |figures| number(of(figures)));
    // Subscriptions have a screen of their own, which not all roles may see.
    let at_a_glance =
        figures.and_then(|figures| figures.shown).filter(|_| viewer.role >= Screen::Subscriptions.least());
    let behind = at_a_glance.map(|AtAGlance { behind_s, .. }| {
        let behind = behind_s.and_then(|behind| Duration::try_from_secs_f64(behind).ok());
        let behind = behind.map_or_else(|| "none".to_owned(), timestamp::span);
        (behind, "notifications behind", "The age of the oldest one that waits.", "/subscriptions".to_owned())
    });
    let lately = |state: &str| format!("/?state={state}&since={hour}h");
    let all = [
        (count(|all| all.delivered), "delivered, last hour", "In the mailbox.", lately("delivered")),
        (count(|all| all.deferred), "deferred now", "Postfix tries them again.", deferred_path()),
        (
            count(|all| all.failed),
            "failed before delivery",
            "Recipients, last day. No mailbox was open.",
            format!("/?state={FAILED}&since={DAY}"),
        ),
        (count(|all| all.owed), "Sent copies owed", "The service makes them later.", "/?state=owed".to_owned()),
        (count(|all| all.refused), "refused, last hour", "Returned to the sender.", lately("refused")),
    ];
    html! {
        @if let Some(trouble) = at_a_glance.and_then(|at_a_glance| notification_trouble(&at_a_glance)) {
            p .bad { (trouble) ". " a href="/subscriptions" { "Subscriptions" } }
        }
        @if let Some(waiting) = figures.and_then(|figures| figures.waiting) { (waiting_deliveries(&waiting)) }
        ul .figures aria-label="Now" {
            @for (count, what, meaning, path) in all.into_iter().chain(behind) {
                li { a href=(path) { b { (count) } (what) span .hint { (meaning) } } }
            }
        }
        @match summary {
            Summary::Counted(figures) => p .hint { "Counted " (layout::moment(figures.at)) "." },
            Summary::UnderWay => p .hint role="status" { "The figures are being counted. Reload the page to see them." },
            Summary::Failed(why) => p .bad role="alert" { "The figures could not be counted: " (why) "." },
        }
    }
}

/// How many recipients wait, since when, and why.
pub(in crate::http::web) fn waiting_deliveries(waiting: &WaitingDeliveries) -> Markup {
    let WaitingDeliveries { all, cause, of_cause, since, .. } = *waiting;
    html! {
        p .verdict .wait {
            (number(all)) @if all == 1 { " recipient waits" } @else { " recipients wait" }
            @if of_cause < all { ", " (number(of_cause)) " of them" }
            " since " (layout::moment(since)) ": " (cause) ". Nothing is lost: they are tried again. "
            a href=(deferred_path()) { "Show what waits" }
        }
    }
}

/// The disabled subscriptions and abandoned notifications, in words.
fn notification_trouble(AtAGlance { disabled, given_up, .. }: &AtAGlance) -> Option<String> {
    let several = |count: u64, one: &str, more: &str| match count {
        0 => None,
        1 => Some(format!("1 {one}")),
        _ => Some(format!("{} {more}", number(count))),
    };
    let disabled = several(*disabled, "subscription is disabled", "subscriptions are disabled");
    let given_up =
        several(*given_up, "notification was given up within a day", "notifications were given up within a day");
    let both: Vec<String> = disabled.into_iter().chain(given_up).collect();
    (!both.is_empty()).then(|| both.join(", and "))
}
