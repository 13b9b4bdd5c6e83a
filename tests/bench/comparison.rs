//! The one table of ratios, and its plot: ours beside each peer, by how it was run and how large the messages were.

use crate::figures::{Ratio, Report};
use crate::plot;

/// A size of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub name: &'static str,
    pub bytes: usize,
    /// Runs of an ordinary delivery for each one of this size.
    pub rarer: usize,
}

pub const SIZES: [Size; 3] = [
    Size { name: "4 KB", bytes: 4_000, rarer: 1 },
    Size { name: "100 KB", bytes: 100_000, rarer: 2 },
    Size { name: "10 MB", bytes: 10_000_000, rarer: 5 },
];

/// What is no ratio, and has a target all the same.
pub const PROCESSOR_TIME: &str = "its processor time, ms";

pub struct Comparison {
    /// What is compared: `÷ dovecot-lda`.
    pub what: String,
    pub how: &'static str,
    pub size: Size,
    pub ratio: Ratio,
    /// What it may be at most.
    pub target: Option<f64>,
}

impl Comparison {
    fn is_missed(&self) -> bool {
        self.target.is_some_and(|target| self.ratio.value > target)
    }
}

/// Tells them all, at the head of the report.
pub fn tell(report: &mut Report, all: &[Comparison]) {
    if all.is_empty() {
        return;
    }
    report.lead(|report| {
        // What belongs together, together, each in the order in which it was first measured.
        let place = |what: &str| all.iter().position(|one| one.what == what);
        let mut sorted: Vec<&Comparison> = all.iter().collect();
        sorted.sort_by_key(|one| (place(&one.what), all.iter().position(|other| other.how == one.how)));
        let mut lines: Vec<(&str, &str)> = sorted.iter().map(|one| (one.what.as_str(), one.how)).collect();
        lines.dedup();
        let mut rows: Vec<[String; 6]> = Vec::new();
        for (what, how) in lines {
            let of = |size: &Size| all.iter().find(|one| one.what == what && one.how == how && one.size == *size);
            let cell = |size: &Size| match of(size) {
                Some(one) if one.is_missed() => format!("**{}**", one.ratio),
                Some(one) => one.ratio.to_string(),
                None => String::new(),
            };
            let with_target = SIZES.iter().filter_map(of).filter(|one| one.target.is_some());
            let missed: Vec<&str> = with_target.clone().filter(|one| one.is_missed()).map(|one| one.size.name).collect();
            let target = with_target.clone().find_map(|one| one.target);
            let verdict = match (target, missed.as_slice()) {
                (None, _) => "none".to_owned(),
                (Some(target), []) => format!("≤ {target}: met"),
                (Some(target), missed) => format!("≤ {target}: missed at {}", missed.join(", ")),
            };
            let [small, medium, large] = SIZES.each_ref().map(cell);
            rows.push([what.to_owned(), how.to_owned(), small, medium, large, verdict]);
        }
        let [small, medium, large] = SIZES.map(|size| size.name);
        report.table(["maildrop_command", "how", small, medium, large, "target"], &rows);
        report.line(
            "Wall time of ours ÷ that of the other: the median (the quartiles) of the ratios of neighbouring runs. **Bold**: \
             above its target.",
        );
        let points: Vec<plot::Row> = sorted
            .iter()
            // What is no ratio has no place among them.
            .filter(|one| one.what != PROCESSOR_TIME)
            .map(|one| plot::Row {
                label: format!("{}, {}, {}", one.what, one.how, one.size.name),
                value: one.ratio.value,
                spread: one.ratio.quartiles,
                target: one.target,
            })
            .collect();
        let title = "A delivery by maildrop_command, beside others";
        report.plot("", title, plot::ratios(title, &points));
    });
}
