//! Medians, quartiles and ratios: clocks lie, most of all on a machine that does other things too.

use std::fmt;

/// What was measured again and again.
#[derive(Clone, Debug, Default)]
pub struct Series(Vec<f64>);

impl Series {
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn values(&self) -> impl Iterator<Item = f64> {
        self.0.iter().copied()
    }

    /// What is left of each run without the growth from `small` to `large` in the same round.
    pub fn beyond(&self, large: &Self, small: &Self) -> impl Iterator<Item = f64> {
        self.0.iter().zip(&large.0).zip(&small.0).map(|((whole, large), small)| whole - (large - small))
    }

    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    pub fn quantile(&self, part: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let place = part * (sorted.len() - 1) as f64;
        let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
        below + (above - below) * place.fract()
    }
}

impl FromIterator<f64> for Series {
    fn from_iter<T: IntoIterator<Item = f64>>(values: T) -> Self {
        Self(values.into_iter().collect())
    }
}

impl fmt::Display for Series {
    /// The median, and the quartiles around it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} ({:.2} – {:.2})", self.median(), self.quantile(0.25), self.quantile(0.75))
    }
}

/// How many times longer one took than the other: of the medians; and the quartiles of the ratios of neighbouring runs,
/// which had the machine in the same mood.
pub fn ratio(one: &Series, other: &Series) -> String {
    let pairs: Series = one.0.iter().zip(&other.0).map(|(one, other)| one / other).collect();
    format!("{:.2} ({:.2} – {:.2})", one.median() / other.median(), pairs.quantile(0.25), pairs.quantile(0.75))
}

/// Lines for the terminal and for a Markdown file alike.
#[derive(Default)]
pub struct Report(String);

impl Report {
    pub fn line(&mut self, line: impl fmt::Display) {
        println!("{line}");
        self.0.push_str(&format!("{line}\n"));
    }

    /// A table, its first column to the left, all others to the right.
    pub fn table<const N: usize>(&mut self, header: [&str; N], rows: &[[String; N]]) {
        let width = |column: usize| {
            rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0).max(header[column].chars().count())
        };
        let widths: [usize; N] = std::array::from_fn(width);
        let cells = |row: [&str; N]| -> String {
            let cell = |column: usize| {
                let (text, width) = (row[column], widths[column]);
                if column == 0 { format!("{text:<width$}") } else { format!("{text:>width$}") }
            };
            format!("| {} |", (0..N).map(cell).collect::<Vec<_>>().join(" | "))
        };
        self.line("");
        self.line(cells(header));
        let rule = |column: usize| {
            let dashes = "-".repeat(widths[column]);
            if column == 0 { format!("-{dashes}-") } else { format!("-{dashes}:") }
        };
        self.line(format!("|{}|", (0..N).map(rule).collect::<Vec<_>>().join("|")));
        for row in rows {
            self.line(cells(std::array::from_fn(|column| row[column].as_str())));
        }
        self.line("");
    }

    pub fn text(&self) -> &str {
        &self.0
    }
}
