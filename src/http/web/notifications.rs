//! Who was told of a message: its events, and how it stands with each subscription.

use super::layout::{Screen, moment, number};
use crate::ledger::notifications::by_message::{ToldEvent, ToldTo};
use crate::ledger::web_sessions::WebSession;
use maud::{Markup, html};

/// How many lines are shown, the newest; `trace --json` has more.
const SHOWN: usize = 50;

/// For whoever sees the message; what is behind it is for those who look after subscriptions.
pub(super) fn of(events: &[ToldEvent], viewer: &WebSession) -> Markup {
    let all: Vec<(&ToldEvent, Option<&ToldTo>)> = events
        .iter()
        .flat_map(|event| {
            let nobody = event.told.is_empty().then_some((event, None));
            event.told.iter().map(move |to| (event, Some(to))).chain(nobody)
        })
        .collect();
    let shown = all.get(all.len().saturating_sub(SHOWN)..).unwrap_or(&all);
    html! {
        h2 { "Who was told" }
        @if shown.len() < all.len() { p .hint { "These are the newest " (shown.len()) " of " (all.len()) "." } }
        table .rows {
            caption .unseen { "What was told of it, and to whom" }
            thead { tr { th .t scope="col" { "Happened" } th scope="col" { "What" } th scope="col" { "Copy" } th scope="col" { "State" } th .n scope="col" { "Tries" } th scope="col" { "Last answer" } } }
            tbody {
                @for (event, to) in shown {
                    tr {
                        td .t data-label="Happened" { (moment(event.at)) }
                        td data-label="What" { (event.r#type) }
                        td data-label="Copy" { (event.mailbox) " of " (event.user) }
                        @match to {
                            Some(to) => { (told_to(event, to, viewer)) }
                            None => { td data-label="State" { "nobody has asked for it" } td .n data-label="Tries" { "0" } td data-label="Last answer" { "–" } }
                        }
                    }
                }
            }
        }
    }
}

fn told_to(event: &ToldEvent, to: &ToldTo, viewer: &WebSession) -> Markup {
    let class = match to.state {
        "told" => "good",
        "pending" => "wait",
        _ => "bad",
    };
    html! {
        td data-label="State" {
            @if viewer.role >= Screen::Subscriptions.least() {
                a href={ "/subscriptions/" (to.subscription) "/events/" (event.event) } { span class=(class) { (to.state) } }
            } @else {
                span class=(class) { (to.state) }
            }
        }
        td .n data-label="Tries" { (number(to.tries)) }
        td data-label="Last answer" {
            @match (&to.last, to.last_at) {
                (Some(last), Some(at)) => { bdi { (last) } ", " (moment(at)) }
                _ => { "–" }
            }
        }
    }
}
