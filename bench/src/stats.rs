//! Medians and spreads of a few rounds.

use serde::{Deserialize, Serialize};

/// Median and range of a figure over several rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// The statistics of the finite figures; `None` without any.
    pub(crate) fn of(figures: &[f64]) -> Option<Self> {
        let mut sorted: Vec<f64> = figures.iter().copied().filter(|figure| figure.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        Some(Self { median, min, max })
    }

    /// Whether the ranges of two figures overlap.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        self.min <= other.max && other.min <= self.max
    }
}

/// A figure with three significant digits, and with all digits before the point.
pub(crate) fn short(figure: f64) -> String {
    let digits = match figure.abs() {
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        size if size >= 0.0995 => 2,
        0.0 => 0,
        _ => 3,
    };
    format!("{figure:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_whatever_the_order() {
        let of = |figures: &[f64]| Spread::of(figures).map(|spread| (spread.min, spread.median, spread.max));
        assert_eq!(of(&[3.0, 1.0, 2.0]), Some((1.0, 2.0, 3.0)));
        assert_eq!(of(&[4.0, 1.0, 3.0, 2.0]), Some((1.0, 2.5, 4.0)));
        assert_eq!(of(&[7.0]), Some((7.0, 7.0, 7.0)));
        assert_eq!(of(&[f64::NAN, 5.0]), Some((5.0, 5.0, 5.0)), "a figure that is none does not count");
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn figures_are_shown_with_three_digits() {
        let shown: Vec<_> = [0.0, 0.0123, 0.126, 1.239, 12.34, 123.4, 99.96].map(short).into();
        assert_eq!(shown, ["0", "0.012", "0.13", "1.24", "12.3", "123", "100"]);
    }
}
