//! Statistics: how deliveries went in an hour, a day, a week. Each plot has a table under it that says the same.

use super::layout::{self, Screen, milliseconds, number};
use super::{Page, failed};
use crate::base::timestamp::told;
use crate::ledger::web_sessions::WebSession;
use crate::operations::stats::{Since, Stage, Statistics, count};
use axum::Extension;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use serde::Deserialize;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The spans that can be asked for, as the address says them.
const SPANS: [(&str, &str, Duration); 3] = [
    ("1h", "1 hour", Duration::from_hours(1)),
    ("1d", "1 day", Duration::from_hours(24)),
    ("7d", "7 days", Duration::from_hours(24 * 7)),
];
/// A count of so many attempts takes its time.
const PATIENCE: Duration = Duration::from_secs(25);
/// For how long what was counted is shown again: a sixtieth of the span, and a minute at least.
fn holds(span: Duration) -> Duration {
    (span / 60).max(Duration::from_mins(1)).min(Duration::from_mins(15))
}

/// What was counted, by span.
pub(super) type Counted = [Option<(Instant, Arc<Statistics>)>; SPANS.len()];

#[derive(Debug, Default, Deserialize)]
pub(super) struct Asked {
    #[serde(default)]
    span: String,
}

pub(super) async fn show(
    State(page): State<Page>,
    Extension(viewer): Extension<WebSession>,
    Query(asked): Query<Asked>,
) -> Response {
    let at = SPANS.iter().position(|(name, ..)| *name == asked.span).unwrap_or_default();
    let Some((_, _, span)) = SPANS.get(at) else { return failed_span() };
    let kept = page.counted_of(at).filter(|(when, _)| when.elapsed() < holds(*span)).map(|(_, counted)| counted);
    let counted = match kept {
        Some(counted) => counted,
        None => {
            let since = Since::Ago(*span);
            match page.ledger.ask_within(PATIENCE, move |database| count(database, since)).await {
                Ok(counted) => page.keep(at, counted),
                Err(problem) => return failed(&problem, Some(&viewer)),
            }
        }
    };
    layout::page("Statistics", Some(Screen::Statistics), Some(&viewer), &main(at, &counted)).into_response()
}

fn failed_span() -> Response {
    axum::http::StatusCode::NOT_FOUND.into_response()
}

impl Page {
    fn counted_of(&self, span: usize) -> Option<(Instant, Arc<Statistics>)> {
        self.statistics.lock().ok()?.get(span)?.clone()
    }

    fn keep(&self, span: usize, counted: Statistics) -> Arc<Statistics> {
        let counted = Arc::new(counted);
        if let Ok(mut kept) = self.statistics.lock()
            && let Some(place) = kept.get_mut(span)
        {
            *place = Some((Instant::now(), Arc::clone(&counted)));
        }
        counted
    }
}

/// A line of a plot, and of the table under it.
struct Line {
    name: String,
    class: &'static str,
    count: u64,
}

fn main(at: usize, counted: &Statistics) -> Markup {
    let attempts = &counted.attempts;
    let line = |name: &str, class, count| Line { name: name.to_owned(), class, count };
    let outcomes = [
        line("delivered", "good", attempts.delivered),
        line("put off", "wait", attempts.deferred),
        line("refused", "bad", attempts.refused),
        line("never ended", "bad", attempts.died),
        line("not ended", "calm", attempts.not_ended),
    ];
    let causes: Vec<Line> = counted.deferrals.iter().map(|cause| line(cause.cause, "wait", cause.attempts)).collect();
    let copies: Vec<Line> = counted.copies.iter().map(|(how, count)| line(how, "tint", *count)).collect();
    html! {
        nav .tabs aria-label="Span" {
            ul {
                @for (index, (name, words, _)) in SPANS.iter().enumerate() {
                    li { a href={ "/statistics?span=" (name) } aria-current=[(index == at).then_some("true")] { (words) } }
                }
            }
        }
        p { "Attempts that began from " (told(counted.from)) " to " (told(counted.until)) ", on all hosts." }
        h2 { "Outcomes of " (number(attempts.all)) " attempts" }
        (bars("Attempts by outcome", "Outcome", &outcomes))
        h2 { "Why they were put off" }
        @if causes.is_empty() { p { "None was." } } @else { (bars("Attempts put off, by cause", "Cause", &causes)) }
        p { "The lock was held elsewhere for " (number(counted.lock.busy)) " attempts, " (format!("{:.2}", counted.lock.busy_share * 100.0)) " % of all." }
        h2 { "Copies" }
        @if copies.is_empty() { p { "None was made." } } @else { (bars("Copies, by how they came", "How", &copies)) }
        p {
            (number(counted.messages.recorded)) @if counted.messages.recorded == 1 { " message was" } @else { " messages were" } " recorded for the first time, with " (number(counted.messages.bytes)) " bytes. "
            "Copies that are owed now: " (number(counted.copies_owed_now)) "."
        }
        h2 { "How long the stages took" }
        @if counted.stages.is_empty() { p { "Nothing was measured." } } @else { (stages(&counted.stages)) }
    }
}

/// Bars, and a table under them.
fn bars(what: &str, of: &str, lines: &[Line]) -> Markup {
    const WIDTH: f64 = 420.0;
    let most = lines.iter().map(|line| line.count).max().unwrap_or_default().max(1);
    let all: u64 = lines.iter().map(|line| line.count).sum();
    let height = lines.len() * 24;
    html! {
        svg viewBox={ "0 0 760 " (height) } width="760" height=(height) role="img" aria-label={ (what) ": the table below has the numbers" } {
            @for (at, line) in lines.iter().enumerate() {
                @let width = line.count as f64 / most as f64 * WIDTH;
                text x="210" y=(at * 24 + 16) text-anchor="end" { (line.name.chars().take(34).collect::<String>()) }
                rect class={ "f-" (line.class) } x="220" y=(at * 24 + 4) width=(format!("{width:.1}")) height="16" rx="2" {}
                text x=(format!("{:.1}", 228.0 + width)) y=(at * 24 + 16) { (number(line.count)) }
            }
        }
        table .rows .narrow {
            caption .unseen { (what) }
            thead { tr { th scope="col" { (of) } th .n scope="col" { "Number" } th .n scope="col" { "Share" } } }
            tbody {
                @for line in lines {
                    tr {
                        td data-label=(of) { (line.name) }
                        td .n data-label="Number" { (number(line.count)) }
                        td .n data-label="Share" { (format!("{:.1} %", line.count as f64 / all.max(1) as f64 * 100.0)) }
                    }
                }
            }
        }
    }
}

fn stages(stages: &[Stage]) -> Markup {
    const WIDTH: f64 = 420.0;
    let ms = |span: Duration| span.as_secs_f64() * 1000.0;
    // By powers of ten, since a lock takes a tenth of a millisecond and a bad append ten seconds.
    let x = |span: Duration| 220.0 + ((ms(span).max(0.1) * 10.0).log10() / 6.0).clamp(0.0, 1.0) * WIDTH;
    let height = stages.len() * 24 + 20;
    html! {
        svg viewBox={ "0 0 760 " (height) } width="760" height=(height) role="img" aria-label="From the median to the 99th percentile of each stage: the table below has the numbers" {
            @for (at, stage) in stages.iter().enumerate() {
                @let (low, high) = (x(stage.p50), x(stage.p99));
                text x="210" y=(at * 24 + 16) text-anchor="end" { (stage.stage) }
                line .axis x1="220" x2="640" y1=(at * 24 + 12) y2=(at * 24 + 12) {}
                rect .f-tint x=(format!("{low:.1}")) y=(at * 24 + 5) width=(format!("{:.1}", (high - low).max(3.0))) height="14" rx="2" {}
            }
            @for (power, words) in ["0.1 ms", "1 ms", "10 ms", "100 ms", "1 s", "10 s"].iter().enumerate() {
                text .soft x=(220 + power * 70) y=(height - 4) { (words) }
            }
        }
        table .rows .narrow {
            caption { "Half, nine of ten and 99 of a hundred attempts took at most so long" }
            thead { tr { th scope="col" { "Stage" } th .n scope="col" { "Attempts" } th .n scope="col" { "50 %" } th .n scope="col" { "90 %" } th .n scope="col" { "99 %" } th .n scope="col" { "Longest" } } }
            tbody {
                @for stage in stages {
                    tr {
                        td data-label="Stage" { (stage.stage) }
                        td .n data-label="Attempts" { (number(stage.attempts)) }
                        td .n data-label="50 %" { (milliseconds(ms(stage.p50))) }
                        td .n data-label="90 %" { (milliseconds(ms(stage.p90))) }
                        td .n data-label="99 %" { (milliseconds(ms(stage.p99))) }
                        td .n data-label="Longest" { (milliseconds(ms(stage.max))) }
                    }
                }
            }
        }
    }
}
