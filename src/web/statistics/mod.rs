//! Statistics: how deliveries went in an hour, a day, a week. Each plot has a table under it that says the same.

mod hours;

pub(super) use hours::Hours;

use super::layout::{self, Screen, milliseconds, number};
use super::{Page, failed, guard};
use crate::base::timestamp::told;
use crate::ledger::web_sessions::WebSession;
use crate::ledger::{statistics, time_span};
use crate::ledger_threads::Unanswered;
use crate::operations::stats::{Stage, Statistics, tally};
use axum::Extension;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use hours::{HOUR, Sum};
use maud::{Markup, html};
use serde::Deserialize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::warn;

/// The spans that can be asked for: how the address says it, in words, and how many hours that are over belong to it besides the one
/// that runs; none for the last sixty minutes.
const SPANS: [(&str, &str, i64); 3] = [("1h", "1 hour", 0), ("1d", "1 day", 24), ("7d", "7 days", 7 * 24)];
/// How long it may take to count an hour.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a request waits for hours that are being counted: a small ledger is counted by then.
const WAIT: Duration = Duration::from_millis(250);
/// For how long what was counted is shown again: at least this, and [`SHARE`] times as long as it took.
const HOLD: Duration = Duration::from_mins(1);
const SHARE: u32 = 20;
/// The same, while hours are missing.
const HOLD_OF_SOME: Duration = Duration::from_secs(2);
/// After so many seconds the browser reads it anew, while hours are missing and otherwise.
const REFRESH: [u32; 2] = [3, 60];

/// What was counted, for all who look.
#[derive(Clone, Default)]
pub(super) struct Shared {
    spans: Arc<Mutex<[Option<Shown>; SPANS.len()]>>,
    /// Who counts does so alone: the others find what was counted.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// What is shown of a span.
#[derive(Clone)]
struct Shown {
    statistics: Arc<Statistics>,
    /// How many of the hours that are over are in it.
    hours: i64,
    /// Whether the hour that runs is in it.
    runs: bool,
    until: Instant,
}

impl Shown {
    fn is_all(&self, hours: i64) -> bool {
        self.hours == hours && self.runs
    }
}

impl Shared {
    fn of(&self, at: usize) -> Option<Shown> {
        let spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        spans.get(at)?.clone().filter(|shown| Instant::now() < shown.until)
    }

    fn keep(&self, at: usize, shown: Shown) {
        let mut spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = spans.get_mut(at) {
            *place = Some(shown);
        }
    }
}

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
    let at = if asked.span.is_empty() { Some(0) } else { SPANS.iter().position(|(name, ..)| *name == asked.span) };
    let Some((at, (name, _, hours))) = at.and_then(|at| Some((at, SPANS.get(at).copied()?))) else {
        return guard::nothing_here().await;
    };
    let shown = match page.shown(at, hours).await {
        Ok(shown) => shown,
        Err(problem) => return failed(&problem, Some(&viewer)),
    };
    let refresh = if shown.is_all(hours) { REFRESH[1] } else { REFRESH[0] };
    let main = html! {
        nav .tabs aria-label="Span" {
            ul {
                @for (index, (name, words, _)) in SPANS.iter().enumerate() {
                    li { a href={ "/statistics?span=" (name) } aria-current=[(index == at).then_some("true")] { (words) } }
                }
            }
        }
        p #live { span data-said role="status" { "It is counted anew each minute. " } a href={ "/statistics?span=" (name) } { "Look again" } }
        div data-refresh=(refresh) {
            @if shown.hours < hours {
                p role="status" { (shown.hours) " of " (hours) " hours are counted so far, from the newest on: these are shown. The others are being counted; look again soon." }
            }
            @if !shown.runs {
                p role="status" { "The hour that runs could not be counted in time, and is not shown." }
            }
            (main(&shown.statistics))
        }
    };
    layout::page("Statistics", Some(Screen::Statistics), Some(&viewer), &main).into_response()
}

impl Page {
    async fn shown(&self, at: usize, hours: i64) -> Result<Shown, Unanswered> {
        let kept = &self.statistics;
        if let Some(shown) = kept.of(at) {
            return Ok(shown);
        }
        let _turn = kept.turn.lock().await;
        if let Some(shown) = kept.of(at) {
            return Ok(shown);
        }
        let began = Instant::now();
        let shown = self.count(hours).await?;
        let hold = if shown.is_all(hours) { HOLD.max(began.elapsed().saturating_mul(SHARE)) } else { HOLD_OF_SOME };
        kept.keep(at, Shown { until: Instant::now() + hold, ..shown.clone() });
        Ok(shown)
    }

    /// Counts the hour that runs, and adds the hours before it that are counted already; or counts the last sixty minutes.
    async fn count(&self, hours: i64) -> Result<Shown, Unanswered> {
        let asked =
            self.ledger.ask(|database| Ok((time_span::now(database)?, statistics::owed_copies(database, None)?)));
        let (now, owed) = asked.await?;
        let newest = self.hours.newest(now);
        let (begin, until) = if hours == 0 { (now - HOUR, now + 1) } else { ((newest + 1) * HOUR, now + 1) };
        let runs = self.ledger.ask_long(PATIENCE, move |database| tally(database, begin, until));
        let (runs, ()) = tokio::join!(runs, self.hours.wait(newest, hours, WAIT));
        let mut sum = self.hours.sum(newest, hours);
        let counted = match runs {
            Ok(tally) => {
                sum.tally.add(&tally);
                true
            }
            Err(problem) if sum.hours > 0 => {
                warn!(%problem, "the hour that runs cannot be counted for the page's statistics");
                false
            }
            Err(problem) => return Err(problem),
        };
        let Sum { tally, hours } = sum;
        let until = if counted { now } else { begin };
        let statistics = Arc::new(tally.statistics(begin - hours * HOUR, until, owed));
        Ok(Shown { statistics, hours, runs: counted, until: Instant::now() })
    }
}

/// A line of a plot, and of the table under it.
struct Line {
    name: String,
    class: &'static str,
    count: u64,
}

fn main(counted: &Statistics) -> Markup {
    let attempts = &counted.attempts;
    let line = |name: &str, class, count| Line { name: name.to_owned(), class, count };
    let outcomes = [
        line("delivered", "good", attempts.delivered),
        line("deferred", "wait", attempts.deferred),
        line("refused", "bad", attempts.refused),
        line("never ended", "bad", attempts.died),
        line("not ended", "calm", attempts.not_ended),
    ];
    let causes: Vec<Line> = counted.deferrals.iter().map(|cause| line(cause.cause, "wait", cause.attempts)).collect();
    let copies: Vec<Line> = counted.copies.iter().map(|(how, count)| line(how, "tint", *count)).collect();
    html! {
        p { "Attempts that began from " (told(counted.from)) " to " (told(counted.until)) ", on all hosts." }
        h2 { "Outcomes of " (number_of_attempts(attempts.all)) }
        (bars("Attempts by outcome", "Outcome", &outcomes))
        p .hint {
            "Deferred: Postfix tries again. Not ended: under way now, or cut short, and nobody has tried again yet. "
            "Never ended: cut short, by a crash for example, and a later attempt has looked for its copy, so that none is there twice."
        }
        h2 { "Why they were deferred" }
        @if causes.is_empty() { p { "None was." } } @else { (bars("Attempts deferred, by cause", "Cause", &causes)) }
        p { "The lock was held elsewhere for " (number_of_attempts(counted.lock.busy)) ", " (format!("{:.2}", counted.lock.busy_share * 100.0)) " % of all." }
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

fn number_of_attempts(count: u64) -> String {
    format!("{} attempt{}", number(count), if count == 1 { "" } else { "s" })
}

/// Bars, and a table under them.
fn bars(what: &str, of: &str, lines: &[Line]) -> Markup {
    const WIDTH: f64 = 420.0;
    let most = lines.iter().map(|line| line.count).max().unwrap_or_default().max(1);
    let all: u64 = lines.iter().map(|line| line.count).sum();
    let height = lines.len() * 24;
    html! {
        svg .plot viewBox={ "0 0 760 " (height) } width="760" height=(height) role="img" aria-label={ (what) ": the table below has the numbers" } {
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
        svg .plot viewBox={ "0 0 760 " (height) } width="760" height=(height) role="img" aria-label="From the median to the 99th percentile of each stage: the table below has the numbers" {
            @for (at, stage) in stages.iter().enumerate() {
                @let (low, high) = (x(stage.took.p50), x(stage.took.p99));
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
                        td .n data-label="50 %" { (milliseconds(ms(stage.took.p50))) }
                        td .n data-label="90 %" { (milliseconds(ms(stage.took.p90))) }
                        td .n data-label="99 %" { (milliseconds(ms(stage.took.p99))) }
                        td .n data-label="Longest" { (milliseconds(ms(stage.took.max))) }
                    }
                }
            }
        }
    }
}
