//! Curves: how often what is measured, by what factor it grows, and whether that is within the target.

use crate::figures::{Report, Series};

/// Flat: no more than this times the first point, at the last one.
pub const FLAT: f64 = 1.2;
/// Linear: twice as much takes at most 2 to the power of this times as long.
const LINEAR: f64 = 1.1;

/// Measures everything at each of these places, in turns, every other round backwards: all of a curve has had the machine
/// in the same moods.
pub fn in_turns<X, const N: usize>(
    warm_up: usize,
    runs: usize,
    places: &[X],
    mut once: impl FnMut(&X) -> [f64; N],
) -> Vec<[Series; N]> {
    let mut measured: Vec<[Series; N]> = places.iter().map(|_| std::array::from_fn(|_| Series::default())).collect();
    for round in 0..warm_up + runs {
        let mut order: Vec<usize> = (0..places.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for place in order {
            let values = once(&places[place]);
            if round >= warm_up {
                measured[place].iter_mut().zip(values).for_each(|(series, value)| series.push(value));
            }
        }
    }
    measured
}

/// By what factor a delivery is dearer than the first one of its curve, not counting what a baseline has grown by: in each
/// round, which had the machine in one mood.
pub struct Beyond(Series);

impl Beyond {
    pub fn of(first: (&Series, &Series), here: (&Series, &Series)) -> Self {
        let ((first, first_base), (delivery, base)) = (first, here);
        let left = delivery.beyond(base, first_base);
        Self(left.zip(first.values()).map(|(left, first)| left / first).collect())
    }

    pub fn is_flat(&self) -> bool {
        self.0.median() <= FLAT
    }
}

impl std::fmt::Display for Beyond {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// `met` or **missed**.
pub fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "**missed**" }
}

/// Says by which power of x a curve grows.
pub fn linear(report: &mut Report, what: &str, points: &[(f64, f64)]) {
    let upper = &points[points.len() / 2..];
    let (over_all, over_upper) = (exponent(points), exponent(upper));
    let [(first, low), (last, high)] = [points[0], points[points.len() - 1]];
    report.line(format!(
        "- {what}: × {:.2} from {first} to {last} (× {:.0}), as x to the power of {over_all:.2}; from {} on as x to the \
         power of {over_upper:.2}, so × {:.2} for twice as much (target: linear, a power of at most {LINEAR}): {}",
        high / low,
        last / first,
        upper[0].0,
        2_f64.powf(over_upper),
        verdict(over_upper <= LINEAR),
    ));
}

/// The slope of the straight line that fits best, where both axes are logarithmic.
fn exponent(points: &[(f64, f64)]) -> f64 {
    let logs: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    let count = logs.len() as f64;
    let (mean_x, mean_y) =
        logs.iter().fold((0.0, 0.0), |(x, y), (log_x, log_y)| (x + log_x / count, y + log_y / count));
    let covariance: f64 = logs.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let variance: f64 = logs.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    covariance / variance
}
