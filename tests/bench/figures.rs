//! Medians, quartiles and ratios: clocks lie, most of all on a machine that does other things too.

use crate::comparison::{self, Comparison};
use std::fmt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// What was measured again and again.
#[derive(Clone, Debug, Default)]
pub struct Series(Vec<f64>);

impl Series {
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// A warm-up counts for nothing.
    pub fn push_if(&mut self, counts: bool, value: f64) {
        if counts {
            self.push(value);
        }
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

/// How many times longer one took than the other: the median and the quartiles of the ratios of neighbouring runs, which
/// had the machine in the same mood.
#[derive(Clone, Copy, Debug)]
pub struct Ratio {
    pub value: f64,
    pub quartiles: (f64, f64),
}

impl Ratio {
    pub fn of(one: &Series, other: &Series) -> Self {
        let pairs: Series = one.0.iter().zip(&other.0).map(|(one, other)| one / other).collect();
        Self::alone(&pairs)
    }

    /// Of something to nothing: the thing itself.
    pub fn alone(one: &Series) -> Self {
        Self { value: one.median(), quartiles: (one.quantile(0.25), one.quantile(0.75)) }
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} ({:.2} – {:.2})", self.value, self.quartiles.0, self.quartiles.1)
    }
}

/// The same, in words.
pub fn ratio(one: &Series, other: &Series) -> String {
    Ratio::of(one, other).to_string()
}

/// Runs that are not counted: caches fill, mailboxes come to be.
pub const WARM_UP: usize = 5;

/// Between two runs: what a delivery leaves behind (a session that ends, at a server that has said all) is to cost the next one
/// nothing, which may be another's.
pub fn rest() {
    sleep(Duration::from_millis(40));
}

/// Runs each of these in turns, every other round backwards.
pub fn in_turns(runs: usize, tasks: &mut [&mut dyn FnMut(bool)]) {
    in_turns_after(WARM_UP, runs, tasks);
}

/// The same, with another number of runs that are not counted.
pub fn in_turns_after(warm_up: usize, runs: usize, tasks: &mut [&mut dyn FnMut(bool)]) {
    for round in 0..warm_up + runs {
        let mut run = |task: &mut &mut dyn FnMut(bool)| {
            rest();
            task(round >= warm_up);
        };
        if round % 2 == 0 {
            tasks.iter_mut().for_each(&mut run);
        } else {
            tasks.iter_mut().rev().for_each(&mut run);
        }
    }
}

pub fn milliseconds(span: Duration) -> f64 {
    span.as_secs_f64() * 1000.0
}

/// Lines for the terminal and for a Markdown file alike, and plots for files beside that one.
pub struct Report {
    began: Instant,
    text: String,
    plots: Vec<(PathBuf, String)>,
    comparisons: Vec<Comparison>,
    file: Option<PathBuf>,
}

impl Report {
    pub fn new(file: Option<PathBuf>) -> Self {
        Self { began: Instant::now(), text: String::new(), plots: Vec::new(), comparisons: Vec::new(), file }
    }

    /// A part, with a heading.
    pub fn begin(&mut self, part: &str) {
        self.line(format!("\n## {part}\n"));
    }

    /// What is being done, for a user who waits: on standard error, and in no file.
    pub fn progress(&self, what: impl fmt::Display) {
        eprintln!("{:4} s  {what}", self.began.elapsed().as_secs());
    }

    pub fn line(&mut self, line: impl fmt::Display) {
        println!("{line}");
        self.text.push_str(&format!("{line}\n"));
    }

    /// A plot (SVG), in a file beside the Markdown file: `results.svg`, or `results-NAME.svg`.
    pub fn plot(&mut self, name: &str, title: &str, svg: String) {
        let Some(file) = &self.file else { return };
        let stem = file.file_stem().unwrap_or_default().to_string_lossy();
        let name = if name.is_empty() { format!("{stem}.svg") } else { format!("{stem}-{name}.svg") };
        self.plots.push((file.with_file_name(&name), svg));
        self.line(format!("\n![{title}]({name})\n"));
    }

    /// For the table of ratios.
    pub fn compare(&mut self, comparison: Comparison) {
        self.comparisons.push(comparison);
    }

    /// Puts what `tell` has to say at the head of the file.
    pub fn lead(&mut self, tell: impl FnOnce(&mut Self)) {
        let so_far = std::mem::take(&mut self.text);
        tell(self);
        self.text.push_str(&so_far);
    }

    /// Ends with the table of ratios, and writes everything into files, if it was given one.
    pub fn end(mut self) {
        let comparisons = std::mem::take(&mut self.comparisons);
        comparison::tell(&mut self, &comparisons);
        if let Some(directory) = self.file.as_deref().and_then(Path::parent) {
            std::fs::create_dir_all(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        }
        let markdown = self.file.iter().map(|file| (file, &self.text));
        for (file, text) in markdown.chain(self.plots.iter().map(|(file, svg)| (file, svg))) {
            std::fs::write(file, text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        }
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
}
