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

    let endings = [
        ("delivered", attempts.delivered),
        ("deferred", attempts.deferred),
        ("refused", attempts.refused),
        ("died", attempts.died),
        ("not ended", attempts.not_ended),
    ];
    let help = "Attempts at delivery that began within the window, by how they ended.";
    text.counts("maildrop_attempts", help, "ending", endings);
    // Contention is shown even where there was none: alerts are made of it.
    let others = deferrals.iter().filter(|deferred| deferred.cause != BUSY);
    let causes = [(BUSY, lock.busy)].into_iter().chain(others.map(|deferred| (deferred.cause, deferred.attempts)));
    let help = "Attempts within the window that were deferred, by cause.";
    text.counts("maildrop_deferred_attempts", help, "cause", causes);
    let help = "Share of the attempts within the window that found the lock held elsewhere.";
    text.single("maildrop_lock_busy_ratio", help, lock.busy_share);
    let outcomes = copies.iter().map(|(outcome, number)| (*outcome, *number));
    text.counts("maildrop_copies", "Copies within the window, by what came of them.", "outcome", outcomes);
    text.single("maildrop_messages", "Messages first recorded within the window.", messages.recorded as f64);
    let bytes = messages.bytes as f64;
    text.single("maildrop_messages_bytes", "Size of the messages first recorded within the window.", bytes);
    let name = "maildrop_stage_duration_seconds";
    text.family(name, "How long a stage took at most in this percentage of the attempts within the window.");
    for stage in stages {
        for (percent, span) in
            [("50", stage.took.p50), ("90", stage.took.p90), ("99", stage.took.p99), ("100", stage.took.max)]
        {
            text.sample(name, &[("stage", stage.stage), ("percentile", percent)], span.as_secs_f64());
        }
    }
    if let Some(telling) = &counted.telling {
        let help = "Tries at telling what happened within the window, by class of answer; none: no answer.";
        let tries = telling.tries.iter().map(|(class, number)| (*class, *number));
        text.counts("maildrop_notification_tries", help, "class", tries);
        let first = &telling.first_try;
        if first.notifications > 0 {
            let name = "maildrop_notification_first_try_seconds";
            text.family(
                name,
                "How long after its commit what happened was tried to be told first, in this percentage at most.",
            );
            for (percent, span) in
                [("50", first.took.p50), ("90", first.took.p90), ("99", first.took.p99), ("100", first.took.max)]
            {
                text.sample(name, &[("percentile", percent)], span.as_secs_f64());
            }
        }
    }
    text.window.clear();
    let owed = counted.copies_owed_now as f64;
    text.single("maildrop_owed_copies", "Copies that are owed now, whenever that began.", owed);
    if let Some(now) = &counted.notifications {
        for (name, help, value) in [
            ("maildrop_unpublished_events", "Events that no notifier has published yet.", now.unpublished as f64),
            (
                "maildrop_oldest_unpublished_event_seconds",
                "Since when the oldest event waits to be published.",
                now.oldest_unpublished_s,
            ),
            ("maildrop_pending_notifications", "Notifications that are to be told.", now.pending as f64),
            ("maildrop_given_up_notifications", "Notifications that were given up.", now.given_up as f64),
            (
                "maildrop_late_subscription_seconds",
                "By how much the subscription is late that is due for longest.",
                now.late_s,
            ),
            ("maildrop_resting_receivers", "Receivers that rest, since they did not answer.", now.resting as f64),
            ("maildrop_disabled_subscriptions", "Subscriptions that were disabled.", now.disabled as f64),
        ] {
            text.single(name, help, value);
        }
    }
    text.text
}

struct Exposition {
    text: String,
    /// The label `window` of each sample; none if empty.
    window: String,
}

impl Exposition {
    /// The lines before the samples of one name. All of them are gauges.
    fn family(&mut self, name: &str, help: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} gauge");
    }

    fn single(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, help);
        self.sample(name, &[], value);
    }

    /// A family with one label.
    fn counts<'a>(&mut self, name: &str, help: &str, label: &str, counts: impl IntoIterator<Item = (&'a str, u64)>) {
        self.family(name, help);
        for (value, number) in counts {
            self.sample(name, &[(label, value)], number as f64);
        }
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let window = (!self.window.is_empty()).then_some(("window", self.window.as_str()));
        let labels = labels.iter().copied().chain(window);
        let labels: Vec<String> = labels.map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
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
