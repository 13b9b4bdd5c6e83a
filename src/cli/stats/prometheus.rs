//! The figures for Prometheus. Names satisfy promtool's linter: base units, no `_total` and no `quantile` on a gauge.

use crate::base::exposition::{Exposition, Labels, MetricType};
use crate::base::timestamp::span;
use crate::operations::stats::{BUSY, Percentiles, Statistics};
use std::time::Duration;

/// The counts of the last `ago`, which becomes the label `window`.
pub(super) fn text(counted: &Statistics, ago: Duration) -> String {
    let Statistics { attempts, deferrals, failures, copies, messages, lock, stages, .. } = counted;
    let window = span(ago).replace(' ', "");
    let mut text = Sheet { text: Exposition::default(), window: Some(&window) };

    let endings = [
        ("delivered", attempts.delivered),
        ("deferred", attempts.deferred),
        ("refused", attempts.refused),
        ("died", attempts.died),
        ("not ended", attempts.not_ended),
    ];
    let help = "Attempts at delivery that began within the window, by how they ended.";
    text.counts("maildrop_attempts", help, "ending", endings);
    // Contention is exported even if it is zero, because alerts depend on it.
    let others = deferrals.iter().filter(|deferred| deferred.cause != BUSY);
    let causes = [(BUSY, lock.busy)].into_iter().chain(others.map(|deferred| (deferred.cause, deferred.attempts)));
    let help = "Attempts within the window that were deferred, by cause.";
    text.counts("maildrop_deferred_attempts", help, "cause", causes);
    let help =
        "Deliveries that first failed before their journal within the window and were not delivered since, by cause.";
    let failed = failures.iter().map(|failure| (failure.cause, failure.deliveries));
    text.counts("maildrop_failed_deliveries", help, "cause", failed);
    let help = "Share of the attempts within the window that found the lock held elsewhere.";
    text.single("maildrop_lock_busy_ratio", help, lock.busy_share);
    let outcomes = copies.iter().map(|(outcome, number)| (*outcome, *number));
    text.counts("maildrop_copies", "Copies within the window, by what came of them.", "outcome", outcomes);
    text.single("maildrop_messages", "Messages first recorded within the window.", messages.recorded as f64);
    let bytes = messages.bytes as f64;
    text.single("maildrop_messages_bytes", "Size of the messages first recorded within the window.", bytes);
    let name = "maildrop_stage_duration_seconds";
    let help = "How long a stage took at most in this percentage of the attempts within the window.";
    text.text.family(name, MetricType::Gauge, help);
    for stage in stages {
        text.percentiles(name, &[("stage", stage.stage)], &stage.took);
    }
    if let Some(notification_attempts) = &counted.notification_attempts {
        let help = "Tries at notifying of what happened within the window, by class of answer; none: no answer.";
        let tries = notification_attempts.tries.iter().map(|(class, number)| (*class, *number));
        text.counts("maildrop_notification_attempts", help, "class", tries);
        let first = &notification_attempts.first_try;
        if first.notifications > 0 {
            let name = "maildrop_notification_first_try_seconds";
            let help = "How long after its commit an event was first sent, in this percentage at most.";
            text.text.family(name, MetricType::Gauge, help);
            text.percentiles(name, &[], &first.took);
        }
    }
    text.window = None;
    let owed =
        ("maildrop_owed_copies", "Copies that are owed now, whenever that began.", counted.copies_owed_now as f64);
    let of_notifications = counted.notifications.iter().flat_map(|now| {
        [
            ("maildrop_unpublished_events", "Events that no notifier has published yet.", now.unpublished as f64),
            (
                "maildrop_oldest_unpublished_event_seconds",
                "Since when the oldest event waits to be published.",
                now.oldest_unpublished_s,
            ),
            ("maildrop_pending_notifications", "Notifications that are to be sent.", now.pending as f64),
            ("maildrop_given_up_notifications", "Notifications that were given up.", now.given_up as f64),
            ("maildrop_late_subscription_seconds", "By how much the most overdue subscription is late.", now.late_s),
            ("maildrop_paused_subscriptions", "Receivers that rest, since they did not answer.", now.resting as f64),
            ("maildrop_disabled_subscriptions", "Subscriptions that were disabled.", now.disabled as f64),
        ]
    });
    for (name, help, value) in std::iter::once(owed).chain(of_notifications) {
        text.single(name, help, value);
    }
    text.text.into_text()
}

/// All of them are gauges.
struct Sheet<'a> {
    text: Exposition,
    /// The label `window` of each sample, if it has one.
    window: Option<&'a str>,
}

impl Sheet<'_> {
    fn single(&mut self, name: &str, help: &str, value: f64) {
        self.text.family(name, MetricType::Gauge, help);
        self.sample(name, &[], value);
    }

    /// A family with one label.
    fn counts<'a>(&mut self, name: &str, help: &str, label: &str, counts: impl IntoIterator<Item = (&'a str, u64)>) {
        self.text.family(name, MetricType::Gauge, help);
        for (value, number) in counts {
            self.sample(name, &[(label, value)], number as f64);
        }
    }

    fn percentiles(&mut self, name: &str, labels: &Labels<'_>, took: &Percentiles) {
        for (percent, span) in [("50", took.p50), ("90", took.p90), ("99", took.p99), ("100", took.max)] {
            self.sample(name, &[labels, &[("percentile", percent)]].concat(), span.as_secs_f64());
        }
    }

    fn sample(&mut self, name: &str, labels: &Labels<'_>, value: f64) {
        let window = self.window.map(|window| ("window", window));
        let labels: Vec<_> = labels.iter().copied().chain(window).collect();
        self.text.sample(name, &labels, value);
    }
}
