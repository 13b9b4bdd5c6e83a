//! Metrics for Prometheus, in its text format (<https://prometheus.io/docs/instrumenting/exposition_formats/>).

use std::fmt::{Display, Write as _};

/// The type of the metrics of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricType {
    Gauge,
    /// A number that only grows; its name ends in `_total`.
    Counter,
    Histogram,
}

pub(crate) type Labels<'a> = [(&'a str, &'a str)];

/// Families of metrics, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Exposition(String);

impl Exposition {
    /// The lines before the samples of one name.
    pub(crate) fn family(&mut self, name: &str, kind: MetricType, help: &str) {
        let kind = match kind {
            MetricType::Gauge => "gauge",
            MetricType::Counter => "counter",
            MetricType::Histogram => "histogram",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    pub(crate) fn sample(&mut self, name: &str, labels: &Labels<'_>, value: impl Display) {
        let labels: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    pub(crate) fn into_text(self) -> String {
        self.0
    }
}

/// Escapes the value of a label as the text format demands: backslash, quote and line feed.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_labels_value_cannot_end_its_line() {
        let mut text = Exposition::default();
        text.family("a", MetricType::Gauge, "What it is.");
        text.sample("a", &[("b", "x\"\\\n"), ("window", "1h")], 0.5);
        text.sample("a", &[], 3.0);
        assert_eq!(
            text.into_text(),
            "# HELP a What it is.\n# TYPE a gauge\na{b=\"x\\\"\\\\\\n\",window=\"1h\"} 0.5\na 3\n"
        );
    }
}
