//! Plots as SVG, written manually: ratios as points with their spread, and curves on logarithmic axes.

use std::fmt::Write;

/// One line of [`ratios`].
pub struct Row {
    pub label: String,
    pub value: f64,
    /// The quartiles.
    pub spread: (f64, f64),
    /// What it should not exceed.
    pub target: Option<f64>,
}

const WIDTH: f64 = 920.0;
const INK: &str = "#333";
const FAINT: &str = "#ddd";
/// Distinguishable for people who see no red or no green as well (Okabe and Ito 2008).
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000"];
const MET: &str = COLOURS[0];
const MISSED: &str = COLOURS[1];

/// A point for each ratio, a line for its spread, a stroke where its target is. The axis is logarithmic.
pub fn ratios(title: &str, rows: &[Row]) -> String {
    let (left, top, step) = (430.0, 60.0, 22.0);
    let bottom = top + step * rows.len() as f64;
    let all = rows.iter().flat_map(|row| [row.value, row.spread.0, row.spread.1, row.target.unwrap_or(1.0), 1.0]);
    let axis = Axis::over(all, left, WIDTH - 70.0);
    let mut svg = Svg::new(title, bottom + 50.0);
    for tick in axis.ticks() {
        let x = axis.place(tick);
        svg.line((x, top - 8.0), (x, bottom), if tick == 1.0 { INK } else { FAINT }, 1.0);
        svg.text(x, bottom + 16.0, "middle", &number(tick));
    }
    for (row, place) in rows.iter().zip(0..) {
        let y = top + step * (f64::from(place) + 0.5);
        let colour = match row.target {
            Some(target) if row.value > target => MISSED,
            Some(_) => MET,
            None => INK,
        };
        svg.text(left - 12.0, y + 4.0, "end", &row.label);
        svg.line((axis.place(row.spread.0), y), (axis.place(row.spread.1), y), colour, 3.0);
        svg.dot(axis.place(row.value), y, 4.5, colour);
        svg.text(WIDTH - 60.0, y + 4.0, "start", &format!("{:.2}", row.value));
        if let Some(target) = row.target {
            let x = axis.place(target);
            svg.line((x, y - 9.0), (x, y + 9.0), colour, 2.0);
        }
    }
    let legend = "point: the median; line: the quartiles; stroke: the target, at most";
    svg.text(left, bottom + 38.0, "start", legend);
    svg.end()
}

/// A curve for each name, both axes logarithmic.
pub fn curves(title: &str, x_label: &str, y_label: &str, curves: &[(&str, Vec<(f64, f64)>)]) -> String {
    let (left, right, top, bottom) = (80.0, WIDTH - 220.0, 50.0, 400.0);
    let points = || curves.iter().flat_map(|(_, points)| points.iter().copied());
    let across = Axis::over(points().map(|point| point.0), left, right);
    let up = Axis::over(points().map(|point| point.1), bottom, top);
    let mut svg = Svg::new(title, bottom + 55.0);
    for tick in across.ticks() {
        let x = across.place(tick);
        svg.line((x, top), (x, bottom), FAINT, 1.0);
        svg.text(x, bottom + 16.0, "middle", &number(tick));
    }
    for tick in up.ticks() {
        let y = up.place(tick);
        svg.line((left, y), (right, y), FAINT, 1.0);
        svg.text(left - 8.0, y + 4.0, "end", &number(tick));
    }
    svg.text((left + right) / 2.0, bottom + 40.0, "middle", x_label);
    svg.text(left - 60.0, top - 12.0, "start", y_label);
    for (place, (name, points)) in curves.iter().enumerate() {
        let colour = COLOURS[place % COLOURS.len()];
        let path: Vec<(f64, f64)> = points.iter().map(|point| (across.place(point.0), up.place(point.1))).collect();
        for pair in path.windows(2) {
            svg.line(pair[0], pair[1], colour, 2.0);
        }
        for (x, y) in path {
            svg.dot(x, y, 3.5, colour);
        }
        let y = top + 10.0 + 20.0 * place as f64;
        svg.line((right + 14.0, y - 4.0), (right + 34.0, y - 4.0), colour, 2.0);
        svg.text(right + 40.0, y, "start", name);
    }
    svg.end()
}

/// A logarithmic axis from one place of the picture to another.
struct Axis {
    lowest: f64,
    highest: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (mut lowest, mut highest) = (f64::INFINITY, 0.0_f64);
        // Nothing else has a place on it.
        for value in values.filter(|value| value.is_finite() && *value > 0.0) {
            (lowest, highest) = (lowest.min(value), highest.max(value));
        }
        if lowest > highest {
            (lowest, highest) = (1.0, 10.0);
        }
        Self { lowest: lowest / 1.15, highest: highest * 1.15, from, to }
    }

    fn place(&self, value: f64) -> f64 {
        let part = (value.max(self.lowest) / self.lowest).ln() / (self.highest / self.lowest).ln();
        self.from + part * (self.to - self.from)
    }

    /// Powers of ten; with 2 and 5 of each where the axis is short.
    fn ticks(&self) -> Vec<f64> {
        let decades = (self.highest / self.lowest).log10();
        let steps: &[f64] = if decades > 3.5 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let powers = self.lowest.log10().floor() as i32..=self.highest.log10().ceil() as i32;
        // Not 10 to the power of -1, which is no 0.1.
        let power = |n: i32| if n < 0 { 1.0 / 10_f64.powi(-n) } else { 10_f64.powi(n) };
        let all = powers.flat_map(|n| steps.iter().map(move |step| step * power(n)));
        all.filter(|tick| (self.lowest..=self.highest).contains(tick)).collect()
    }
}

/// In few characters.
fn number(value: f64) -> String {
    match value {
        1e6.. => format!("{}M", value / 1e6),
        1e3.. => format!("{}k", value / 1e3),
        _ => format!("{}", (value * 1e6).round() / 1e6),
    }
}

struct Svg(String);

impl Svg {
    fn new(title: &str, height: f64) -> Self {
        let mut svg = Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" \
             height=\"{height:.0}\" font-family=\"sans-serif\" font-size=\"13\" fill=\"{INK}\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
        ));
        let _ =
            writeln!(svg.0, "<title>{0}</title>\n<text x=\"14\" y=\"24\" font-size=\"16\">{0}</text>", escape(title));
        svg
    }

    fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str, width: f64) {
        let _ = writeln!(
            self.0,
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\" stroke-width=\"{width}\"/>"
        );
    }

    fn dot(&mut self, x: f64, y: f64, radius: f64, colour: &str) {
        let _ = writeln!(self.0, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" fill=\"{colour}\"/>");
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, text: &str) {
        let text = escape(text);
        let _ = writeln!(self.0, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
    }

    fn end(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
