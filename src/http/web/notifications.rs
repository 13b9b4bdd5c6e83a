//! The notifications of a message: its events, and the state of each one per subscription.

use super::layout::{Column, Screen, moment, number, or_dash, table};
use crate::ledger::notifications::by_message::{NotifiedEvent, NotifiedSubscription};
use crate::ledger::web_sessions::WebSession;
use maud::{Markup, Render, html};

/// How many lines are shown, the newest; `trace --json` has more.
const SHOWN: usize = 50;

const COLUMNS: [Column; 6] =
    [("Time", "t"), ("Event", ""), ("Copy", ""), ("State", ""), ("Tries", "n"), ("Last answer", "")];

/// All users who may see the message see this; the links lead on for users who may see subscriptions.
pub(super) fn of(events: &[NotifiedEvent], viewer: &WebSession) -> Markup {
    let all: Vec<(&NotifiedEvent, Option<&NotifiedSubscription>)> = events
        .iter()
        .flat_map(|event| {
            let nobody = event.subscriptions.is_empty().then_some((event, None));
            event.subscriptions.iter().map(move |to| (event, Some(to))).chain(nobody)
        })
        .collect();
    let shown = all.get(all.len().saturating_sub(SHOWN)..).unwrap_or(&all);
    let rows = shown.iter().map(|(event, to)| {
        let [state, tries, last] = to.map_or_else(
            || [html! { "no subscriber" }, html! { "0" }, html! { "–" }],
            |to| delivery_to(event, to, viewer),
        );
        let copy = html! { (event.mailbox) " of " (event.user) };
        [moment(event.at), event.r#type.render(), copy, state, tries, last]
    });
    html! {
        h2 { "Notifications of this message" }
        @if shown.len() < all.len() { p .hint { "These are the newest " (shown.len()) " of " (all.len()) "." } }
        (table("untitled", "Each notification, and its receiver", COLUMNS, rows))
    }
}

fn delivery_to(event: &NotifiedEvent, to: &NotifiedSubscription, viewer: &WebSession) -> [Markup; 3] {
    let class = match to.state {
        "accepted" => "good",
        "pending" => "wait",
        _ => "bad",
    };
    let state = html! { span class=(class) { (to.state.replace('_', " ")) } };
    let state = if viewer.role >= Screen::Subscriptions.least() {
        html! { a href={ "/subscriptions/" (to.subscription) "/events/" (event.event) } { (state) } }
    } else {
        state
    };
    let last = to.last.as_ref().zip(to.last_at).map(|(last, at)| html! { bdi { (last) } ", " (moment(at)) });
    [state, number(to.tries).render(), or_dash(last)]
}
