//! The figures for Prometheus: the text format (<https://prometheus.io/docs/instrumenting/exposition_formats/>), with names as
//! promtool's linter wants them: base units, no `_total` and no `quantile` on a gauge.

use crate::base::timestamp::span;
use crate::operations::stats::{BUSY, Statistics};
use std::fmt::Write as _;
use std::time::Duration;

/// What was counted since `ago`, which is the label `window`.
pub(super) fn text(counted: &Statistics, ago: Duration) -> String {
    let Statistics { attempts, deferrals, copies, messages, lock, stages, .. } = counted;
    let mut text = Exposition { text: String::new(), window: span(ago).replace(' ', "") };

    text.family("maildrop_attempts", "Attempts at delivery that began within the window, by how they ended.");
    for (ending, number) in [
        ("delivered", attempts.delivered),
        ("deferred", attempts.deferred),
        ("refused", attempts.refused),
        ("died", attempts.died),
        ("not ended", attempts.not_ended),
    ] {
        text.sample("maildrop_attempts", &[("ending", ending)], number as f64);
    }
    text.family("maildrop_deferred_attempts", "Attempts within the window that were put off, by cause.");
    // Contention is told even where there was none: alerts are made of it.
    let others = deferrals.iter().filter(|deferred| deferred.cause != BUSY);
    let others = others.map(|deferred| (deferred.cause, deferred.attempts));
    for (cause, number) in [(BUSY, lock.busy)].into_iter().chain(others) {
        text.sample("maildrop_deferred_attempts", &[("cause", cause)], number as f64);
    }
    text.family(
        "maildrop_lock_busy_ratio",
        "Share of the attempts within the window that found the lock held elsewhere.",
    );
    text.sample("maildrop_lock_busy_ratio", &[], lock.busy_share);
    text.family("maildrop_copies", "Copies within the window, by what came of them.");
    for (outcome, number) in copies {
        text.sample("maildrop_copies", &[("outcome", outcome)], *number as f64);
    }
    text.family("maildrop_messages", "Messages first recorded within the window.");
    text.sample("maildrop_messages", &[], messages.recorded as f64);
    text.family("maildrop_messages_bytes", "Size of the messages first recorded within the window.");
    text.sample("maildrop_messages_bytes", &[], messages.bytes as f64);
    text.family(
        "maildrop_stage_duration_seconds",
        "How long a stage took at most in this percentage of the attempts within the window.",
    );
    for stage in stages {
        for (percent, span) in [("50", stage.p50), ("90", stage.p90), ("99", stage.p99), ("100", stage.max)] {
            let labels = [("stage", stage.stage), ("percentile", percent)];
            text.sample("maildrop_stage_duration_seconds", &labels, span.as_secs_f64());
        }
    }
    text.window.clear();
    text.family("maildrop_owed_copies", "Copies that are owed now, whenever that began.");
    text.sample("maildrop_owed_copies", &[], counted.copies_owed_now as f64);
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
