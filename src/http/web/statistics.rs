//! Statistics of deliveries in an hour, a day, a week. A table under each plot holds the same numbers.

use super::auth;
use super::layout::{Column, Screen, milliseconds, moment, number, table};
use super::list_file::{self, FileQuery};
use super::visit::Visit;
use crate::base::summary_cache::{Summary, SummaryCache};
use crate::operations::stats::{EarlyFailures, Since, StageDuration, Statistics, count};
use axum::extract::Query;
use axum::response::Response;
use maud::{Markup, Render, html};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// The time spans: the query parameter, and its label.
const SPANS: [(&str, &str, Duration); 3] = [
    ("1h", "1 hour", Duration::from_hours(1)),
    ("1d", "1 day", Duration::from_hours(24)),
    ("7d", "7 days", Duration::from_hours(7 * 24)),
];
/// How long the count of a span may take. A longer count is left to the command line.
const PATIENCE: Duration = Duration::from_mins(5);
/// How long a request waits for the count: a small ledger is counted by then.
const WAIT: Duration = Duration::from_secs(2);
/// How long a count is cached, at least.
const HOLD: Duration = Duration::from_mins(1);
/// After this many seconds the browser reloads, while a count is running and otherwise.
const REFRESH: [u32; 2] = [3, 60];

/// The counts that all viewers share.
#[derive(Clone)]
pub(super) struct SharedStatistics {
    spans: [SummaryCache<Arc<Statistics>>; SPANS.len()],
    /// One span is counted at a time, so that this takes no more than one of the ledger's threads.
    turn: Arc<Mutex<()>>,
}

impl Default for SharedStatistics {
    fn default() -> Self {
        Self { spans: SPANS.map(|_| SummaryCache::new(HOLD, WAIT)), turn: Arc::default() }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StatisticsQuery {
    span: String,
}

pub(super) async fn show(
    visit: Visit,
    Query(asked): Query<StatisticsQuery>,
    Query(file): Query<FileQuery>,
) -> Response {
    let asked = if asked.span.is_empty() { SPANS[0].0 } else { &asked.span };
    let mut spans = SPANS.iter().zip(&visit.page.statistics.spans);
    let Some(((name, _, span), cache)) = spans.find(|((name, ..), _)| *name == asked) else {
        return auth::nothing_here().await;
    };
    let (blocking, turn, since) =
        (visit.page.blocking.clone(), Arc::clone(&visit.page.statistics.turn), Since::Ago(*span));
    let summary = cache.get(async move {
        let _turn = turn.lock().await;
        blocking.query_long(PATIENCE, move |database| Ok(Arc::new(count(database, since)?))).await
    });
    let summary = summary.await;
    if let (Some(format), Summary::Counted(statistics)) = (file.format, &summary) {
        let Some((columns, rows)) = rows_of(statistics, &file.list) else { return auth::nothing_here().await };
        return list_file::send(&visit, format, &file.list, columns, rows, false);
    }
    let refresh = REFRESH[usize::from(!matches!(summary, Summary::UnderWay))];
    let shown = html! {
        nav .tabs aria-label="Span" {
            ul {
                @for (other, words, _) in &SPANS {
                    li { a href={ "/statistics?span=" (other) } aria-current=[(other == name).then_some("true")] { (words) } }
                }
            }
        }
        p #live { span data-said role="status" { "Counted once a minute. " } a href={ "/statistics?span=" (name) } { "Refresh" } }
        div data-refresh=(refresh) {
            @match &summary {
                Summary::Counted(statistics) => (main(statistics, name)),
                Summary::UnderWay => p role="status" { "This is being counted. Refresh soon." },
                Summary::Failed(why) => {
                    p .bad role="alert" { "It could not be counted: " (why) "." }
                    p { "The command line has more time: " code { "maildrop_command stats --since " (name) } }
                },
            }
        }
    };
    visit.screen(Screen::Statistics, &shown)
}

/// A line of a plot, and of the table under it.
struct PlotLine {
    name: String,
    class: &'static str,
    count: u64,
}

/// The lists with a bar for each line: outcomes, causes, copies.
fn plots(counted: &Statistics) -> [Vec<PlotLine>; 3] {
    let attempts = &counted.attempts;
    let line = |name: &str, class, count| PlotLine { name: name.to_owned(), class, count };
    let outcomes = vec![
        line("delivered", "good", attempts.delivered),
        line("deferred", "wait", attempts.deferred),
        line("refused", "bad", attempts.refused),
        line("never ended", "bad", attempts.died),
        line("not ended", "calm", attempts.not_ended),
    ];
    let causes = counted.deferrals.iter().map(|cause| line(cause.cause, "wait", cause.attempts)).collect();
    let copies = counted.copies.iter().map(|(how, count)| line(how, "tint", *count)).collect();
    [outcomes, causes, copies]
}

/// The columns of a list as a file, and its rows. `None` if there is no such list.
fn rows_of(counted: &Statistics, list: &str) -> Option<(&'static str, Vec<Value>)> {
    let [outcomes, causes, copies] = plots(counted);
    let lines = match list {
        "outcomes" => outcomes,
        "causes" => causes,
        "copies" => copies,
        "failures" => {
            let rows = counted.failures.iter().map(|failures| json!(failures)).collect();
            return Some(("cause,deliveries,tries,over", rows));
        }
        "stages" => {
            let ms = |span: Duration| span.as_secs_f64() * 1000.0;
            let row = |StageDuration { stage, attempts, took }: &StageDuration| {
                json!({
                    "stage": stage, "attempts": attempts, "p50_ms": ms(took.p50), "p90_ms": ms(took.p90), "p99_ms": ms(took.p99),
                    "max_ms": ms(took.max),
                })
            };
            return Some(("stage,attempts,p50_ms,p90_ms,p99_ms,max_ms", counted.stages.iter().map(row).collect()));
        }
        _ => return None,
    };
    Some(("name,number", lines.iter().map(|line| json!({ "name": line.name, "number": line.count })).collect()))
}

fn main(counted: &Statistics, span: &str) -> Markup {
    let attempts = &counted.attempts;
    let [outcomes, causes, copies] = plots(counted);
    let links = |list: &str| list_file::links(&format!("/statistics?span={span}&list={list}"));
    html! {
        p { "Attempts that began from " (moment(counted.from)) " to " (moment(counted.until)) ", on all hosts." }
        h2 { "Outcomes of " (number_of_attempts(attempts.all)) }
        (bars("Attempts by outcome", "Outcome", &outcomes)) (links("outcomes"))
        p .hint {
            "Deferred: Postfix tries again. Not ended: in progress, or cut short and not retried yet. "
            "Never ended: cut short, for example by a crash; a later attempt has searched for its copy, so none is duplicated."
        }
        h2 { "Why they were deferred" }
        @if causes.is_empty() { p { "No attempt was deferred." } } @else { (bars("Attempts deferred, by cause", "Cause", &causes)) (links("causes")) }
        p { "The lock was held elsewhere for " (number_of_attempts(counted.lock.busy)) ", " (format!("{:.2}", counted.lock.busy_share * 100.0)) " % of all." }
        h2 { "Failed before delivery" }
        @if counted.failures.is_empty() {
            p { "No delivery failed before an attempt could begin." }
        } @else {
            (table("narrow untitled", "Recipients whose delivery failed before an attempt, by cause", FAILURES, counted.failures.iter().map(failures)))
            (links("failures"))
        }
        h2 { "Copies" }
        @if copies.is_empty() { p { "No copy was made." } } @else { (bars("Copies, by how they were delivered", "How", &copies)) (links("copies")) }
        p {
            (number(counted.messages.recorded)) @if counted.messages.recorded == 1 { " message was" } @else { " messages were" } " recorded for the first time, with " (number(counted.messages.bytes)) " bytes. "
            "Copies that are owed now: " (number(counted.copies_owed_now)) "."
        }
        h2 { "Duration of the stages" }
        @if counted.stages.is_empty() { p { "Nothing was measured." } } @else { (stages(&counted.stages)) (links("stages")) }
    }
}

const FAILURES: [Column; 4] =
    [("Cause", ""), ("Recipients", "n"), ("Delivered or refused since", "n"), ("Tries of the others", "n")];

fn failures(EarlyFailures { cause, deliveries, tries, over }: &EarlyFailures) -> [Markup; 4] {
    [cause.render(), number(deliveries + over).render(), number(*over).render(), number(*tries).render()]
}

fn number_of_attempts(count: u64) -> String {
    format!("{} attempt{}", number(count), if count == 1 { "" } else { "s" })
}

/// A bar chart, and a table under it.
fn bars(what: &str, of: &'static str, lines: &[PlotLine]) -> Markup {
    const WIDTH: f64 = 420.0;
    let most = lines.iter().map(|line| line.count).max().unwrap_or_default().max(1);
    let all: u64 = lines.iter().map(|line| line.count).sum();
    let height = lines.len() * 24;
    let rows = lines.iter().map(|line| {
        let share = format!("{:.1} %", line.count as f64 / all.max(1) as f64 * 100.0);
        [line.name.render(), number(line.count).render(), share.render()]
    });
    html! {
        svg .plot viewBox={ "0 0 760 " (height) } width="760" height=(height) role="img" aria-label={ (what) ": the table below has the numbers" } {
            @for (at, line) in lines.iter().enumerate() {
                @let width = line.count as f64 / most as f64 * WIDTH;
                text x="210" y=(at * 24 + 16) text-anchor="end" { (line.name.chars().take(34).collect::<String>()) }
                rect class={ "f-" (line.class) } x="220" y=(at * 24 + 4) width=(format!("{width:.1}")) height="16" rx="2" {}
                text x=(format!("{:.1}", 228.0 + width)) y=(at * 24 + 16) { (number(line.count)) }
            }
        }
        (table("narrow untitled", what, [(of, ""), ("Number", "n"), ("Share", "n")], rows))
    }
}

fn stages(stages: &[StageDuration]) -> Markup {
    const WIDTH: f64 = 420.0;
    let ms = |span: Duration| span.as_secs_f64() * 1000.0;
    // A logarithmic scale, since a lock takes 0.1 ms and a bad append 10 s.
    let x = |span: Duration| 220.0 + ((ms(span).max(0.1) * 10.0).log10() / 6.0).clamp(0.0, 1.0) * WIDTH;
    let height = stages.len() * 24 + 20;
    let columns = [("Stage", ""), ("Attempts", "n"), ("50 %", "n"), ("90 %", "n"), ("99 %", "n"), ("Longest", "n")];
    let rows = stages.iter().map(|stage| {
        let took = &stage.took;
        let [p50, p90, p99, max] = [took.p50, took.p90, took.p99, took.max].map(|span| milliseconds(ms(span)).render());
        [stage.stage.render(), number(stage.attempts).render(), p50, p90, p99, max]
    });
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
        (table("narrow", "50, 90 and 99 of a hundred attempts took at most this long", columns, rows))
    }
}
