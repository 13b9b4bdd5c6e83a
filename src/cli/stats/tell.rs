//! What was counted, as a table, as JSON and for Prometheus.

use super::Counted;
use super::histogram::Histogram;
use super::tally::Tally;
use crate::cli::moment::{exact, span, told};
use crate::cli::table;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// The percentiles that are told, besides the greatest value.
const PERCENTILES: [u64; 3] = [50, 90, 99];

/// For people.
pub(super) fn text(counted: &Counted) -> String {
    let Counted { tally, from, until, messages, owed, .. } = counted;
    let all = tally.attempts();
    let mut parts = vec![format!(
        "{} to {}: {all} attempts, {} delivered, {} deferred; messages recorded: {}, {} bytes.",
        told(*from),
        told(*until),
        tally.delivered,
        deferred(tally),
        messages.0,
        messages.1
    )];
    if *owed > 0 {
        parts.push(format!(
            "Copies OWED now, whenever that began: {owed}. `maildrop_command replay --owed` finishes them, and with --dry-run \
             names them."
        ));
    }
    if all > 0 {
        let rows = endings(tally)
            .into_iter()
            .filter(|(_, _, number)| *number > 0)
            .map(|(what, cause, number)| [what.to_owned(), cause.to_owned(), number.to_string(), percent(number, all)]);
        parts.push(table(["attempts that ended", "cause", "number", "share"], rows));
    }
    if !tally.copies.is_empty() {
        let rows = tally.copies.iter().map(|(what, number)| [what.clone(), number.to_string()]);
        parts.push(table(["copies", "number"], rows));
    }
    if let Some((_, lock)) = tally.stages.iter().find(|(name, _)| *name == "lock") {
        parts.push(format!(
            "Contention: {} of {all} attempts ({}) found the lock held elsewhere; half of them all had their answer within \
             {} ms, 99 % within {} ms.",
            tally.busy,
            percent(tally.busy, all),
            milliseconds(lock.percentile(50)),
            milliseconds(lock.percentile(99))
        ));
    }
    if !tally.stages.is_empty() {
        let rows = tally.stages.iter().map(|(name, histogram)| {
            let [p50, p90, p99] = PERCENTILES.map(|percent| milliseconds(histogram.percentile(percent)));
            let greatest = milliseconds(histogram.greatest());
            [(*name).to_owned(), histogram.count().to_string(), p50, p90, p99, greatest]
        });
        parts.push(table(["stage (ms)", "attempts", "50 %", "90 %", "99 %", "greatest"], rows));
    }
    parts.push(
        "Not in here: what was put off or refused before its journal was written (database or mailbox out of reach, wrong \
         configuration, unknown recipient).\nThe delivery's log has it: records \"deferred\" and \"refused\", fields cause and \
         verdict."
            .to_owned(),
    );
    parts.join("\n\n")
}

/// What attempts came to, with the cause of a deferral, and how many.
fn endings(tally: &Tally) -> Vec<(&'static str, &'static str, u64)> {
    let mut endings = vec![("delivered", "", tally.delivered)];
    endings.push(("deferred", BUSY, tally.busy));
    let mut deferred: Vec<_> = tally.deferred.iter().map(|(cause, number)| ("deferred", *cause, *number)).collect();
    deferred.sort_by_key(|(_, _, number)| std::cmp::Reverse(*number));
    endings.extend(deferred);
    endings.push(("refused", "", tally.refused));
    endings.push(("died", "", tally.died));
    endings.push(("not ended", "", tally.open));
    endings
}

const BUSY: &str = "another delivery held the lock";

fn deferred(tally: &Tally) -> u64 {
    tally.busy + tally.deferred.values().sum::<u64>()
}

fn percent(part: u64, all: u64) -> String {
    format!("{:.1} %", share(part, all) * 100.0)
}

fn share(part: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { part as f64 / all as f64 }
}

fn milliseconds(units: u64) -> String {
    format!("{:.2}", Tally::milliseconds(units))
}

/// For programs.
pub(super) fn json(counted: &Counted) -> Value {
    let Counted { tally, from, until, messages, owed, .. } = counted;
    let all = tally.attempts();
    let causes = endings(tally).into_iter().filter(|(what, _, number)| *what == "deferred" && *number > 0);
    let causes: Vec<Value> = causes
        .map(|(_, cause, number)| json!({ "cause": cause, "attempts": number, "share": share(number, all) }))
        .collect();
    let stage = |name: &str, histogram: &Histogram| {
        let [p50, p90, p99] = PERCENTILES.map(|percent| Tally::milliseconds(histogram.percentile(percent)));
        json!({
            "stage": name,
            "attempts": histogram.count(),
            "p50_ms": p50,
            "p90_ms": p90,
            "p99_ms": p99,
            "max_ms": Tally::milliseconds(histogram.greatest()),
        })
    };
    json!({
        "from": exact(*from),
        "until": exact(*until),
        "attempts": {
            "all": all,
            "delivered": tally.delivered,
            "deferred": deferred(tally),
            "refused": tally.refused,
            "died": tally.died,
            "not_ended": tally.open,
        },
        "deferrals": causes,
        "copies": tally.copies,
        "copies_owed_now": owed,
        "messages": { "recorded": messages.0, "bytes": messages.1 },
        "lock": { "busy": tally.busy, "busy_share": share(tally.busy, all) },
        "stages": tally.stages.iter().map(|(name, histogram)| stage(name, histogram)).collect::<Vec<_>>(),
    })
}

/// The text format (<https://prometheus.io/docs/instrumenting/exposition_formats/>), with names as promtool's linter
/// wants them: base units, no `_total` and no `quantile` on a gauge.
pub(super) fn prometheus(counted: &Counted) -> String {
    let Counted { tally, ago, messages, owed, .. } = counted;
    let window = ago.map(|ago| span(ago).replace(' ', "")).unwrap_or_default();
    let mut text = Exposition { text: String::new(), window };

    text.family("maildrop_attempts", "Attempts at delivery that began within the window, by how they ended.");
    for (ending, number) in [
        ("delivered", tally.delivered),
        ("deferred", deferred(tally)),
        ("refused", tally.refused),
        ("died", tally.died),
        ("not ended", tally.open),
    ] {
        text.sample("maildrop_attempts", &[("ending", ending)], number as f64);
    }
    text.family("maildrop_deferred_attempts", "Attempts within the window that were put off, by cause.");
    for (_, cause, number) in endings(tally).into_iter().filter(|(what, _, _)| *what == "deferred") {
        text.sample("maildrop_deferred_attempts", &[("cause", cause)], number as f64);
    }
    text.family(
        "maildrop_lock_busy_ratio",
        "Share of the attempts within the window that found the lock held elsewhere.",
    );
    text.sample("maildrop_lock_busy_ratio", &[], share(tally.busy, tally.attempts()));
    text.family("maildrop_copies", "Copies within the window, by what came of them.");
    for (outcome, number) in &tally.copies {
        text.sample("maildrop_copies", &[("outcome", outcome)], *number as f64);
    }
    text.family("maildrop_messages", "Messages first recorded within the window.");
    text.sample("maildrop_messages", &[], messages.0 as f64);
    text.family("maildrop_messages_bytes", "Size of the messages first recorded within the window.");
    text.sample("maildrop_messages_bytes", &[], messages.1 as f64);
    text.family(
        "maildrop_stage_duration_seconds",
        "How long a stage took at most in this percentage of the attempts within the window.",
    );
    for (name, histogram) in &tally.stages {
        for percent in PERCENTILES.into_iter().chain([100]) {
            let units = if percent < 100 { histogram.percentile(percent) } else { histogram.greatest() };
            let labels = [("stage", *name), ("percentile", &percent.to_string())];
            text.sample("maildrop_stage_duration_seconds", &labels, Tally::seconds(units));
        }
    }
    text.window.clear();
    text.family("maildrop_owed_copies", "Copies that are owed now, whenever that began.");
    text.sample("maildrop_owed_copies", &[], *owed as f64);
    text.text
}

/// Text for Prometheus.
struct Exposition {
    text: String,
    /// The label that each sample gets; none if empty.
    window: String,
}

impl Exposition {
    /// The lines before the samples of one name. All of them are gauges.
    fn family(&mut self, name: &str, help: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "# HELP {name} {}\n# TYPE {name} gauge", help.replace('\\', "\\\\"));
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let window = (!self.window.is_empty()).then_some(("window", self.window.as_str()));
        let labels: Vec<String> = labels
            .iter()
            .copied()
            .chain(window)
            .map(|(label, value)| format!("{label}=\"{}\"", escaped(value)))
            .collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.text, "{name}{labels} {value}");
    }
}

/// A label's value: backslash, quote and line feed are escaped.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_labels_value_cannot_end_its_line() {
        let mut text = Exposition { text: String::new(), window: "1h".into() };
        text.sample("a", &[("b", "x\"\\\n")], 0.5);
        text.window.clear();
        text.sample("a", &[], 3.0);
        assert_eq!(text.text, "a{b=\"x\\\"\\\\\\n\",window=\"1h\"} 0.5\na 3\n");
    }
}
