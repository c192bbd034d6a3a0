//! A chart: one bar per peer, as long as the median, with a whisker from the minimum to the maximum. Enters: figures. Leaves: SVG.

use std::fmt::Write as _;

use super::escaped;
use crate::stats::{Spread, short};

/// Width of a chart in its own units; the page scales it.
pub(super) const WIDTH: f64 = 480.0;
/// The left end of bars; names are left of it.
const LEFT: f64 = 110.0;
/// The right end of the longest whisker; figures are right of it.
const RIGHT: f64 = 410.0;
const ROW: f64 = 24.0;
const BAR: f64 = 14.0;
/// The mark before the figure of a bar that is cut at the end of the axis.
pub(super) const CUT: &str = "\u{203a} ";
/// Half the height of a whisker's ends.
const CAP: f64 = 4.0;

/// One bar.
#[derive(Debug)]
pub(super) struct Bar {
    pub(super) peer: String,
    /// CSS class of the bar's colour.
    pub(super) class: String,
    pub(super) spread: Spread,
    pub(super) is_floor: bool,
}

/// The value at the end of the axis: the greatest of all, but at most twice the greatest of a peer. Beside a very large floor, peers could
/// not be distinguished.
fn end_of_axis(bars: &[Bar]) -> f64 {
    let most = |bars: &mut dyn Iterator<Item = &Bar>| bars.map(|bar| bar.spread.max).fold(0.0, f64::max);
    let (all, peers) = (most(&mut bars.iter()), most(&mut bars.iter().filter(|bar| !bar.is_floor)));
    if peers > 0.0 { all.min(2.0 * peers) } else { all }
}

/// The position of a figure on an axis that ends with `most`. A larger figure is at the axis's end.
fn position(figure: f64, most: f64) -> f64 {
    LEFT + (RIGHT - LEFT) * if most > 0.0 { (figure / most).min(1.0) } else { 0.0 }
}

/// The height of a chart with `bars` bars.
pub(super) fn height(bars: usize) -> f64 {
    ROW * bars as f64 + 4.0
}

/// The chart as a separate picture; `title` is the text for screen readers.
pub(super) fn svg(title: &str, bars: &[Bar]) -> String {
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {}" role="img"><title>{}</title>{}</svg>"#,
        height(bars.len()),
        escaped(title),
        drawn(bars)
    )
}

/// Draws the bars, one below the other, from the top left corner.
pub(super) fn drawn(bars: &[Bar]) -> String {
    let height = height(bars.len());
    let end = end_of_axis(bars);
    let mut out = String::new();
    for (number, Bar { peer, class, spread, .. }) in bars.iter().enumerate() {
        let middle = ROW * (number as f64 + 0.5) + 2.0;
        let [least, median, most] =
            [spread.min, spread.median, spread.max].map(|figure| position(figure, end));
        let _ = write!(
            out,
            r#"<text class="peer" x="{:.1}" y="{:.1}">{}</text>"#,
            LEFT - 8.0,
            middle + 4.0,
            escaped(peer)
        );
        let _ = write!(
            out,
            r#"<rect class="{class}" x="{LEFT}" y="{:.1}" width="{:.1}" height="{BAR}" rx="2"/>"#,
            middle - BAR / 2.0,
            median - LEFT
        );
        let cut = spread.median > end;
        if spread.min < spread.max && !cut {
            let (top, bottom) = (middle - CAP, middle + CAP);
            let _ = write!(
                out,
                r#"<path class="whisker" d="M{least:.1} {middle:.1}H{most:.1}M{least:.1} {top:.1}V{bottom:.1}M{most:.1} {top:.1}V{bottom:.1}"/>"#
            );
        }
        let _ = write!(
            out,
            r#"<text class="value" x="{:.1}" y="{:.1}">{}{}</text>"#,
            most.max(median) + 8.0,
            middle + 4.0,
            if cut { CUT } else { "" },
            short(spread.median)
        );
    }
    let _ = write!(out, r#"<line class="axis" x1="{LEFT}" y1="0" x2="{LEFT}" y2="{height}"/>"#);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(min: f64, median: f64, max: f64) -> Bar {
        let spread = Spread { median, min, max };
        Bar { peer: "a".to_owned(), class: "p0".to_owned(), spread, is_floor: false }
    }

    fn floor(figure: f64) -> Bar {
        Bar { is_floor: true, ..bar(figure, figure, figure) }
    }

    /// Each value of an attribute, in order.
    fn all<'t>(svg: &'t str, before: &'t str) -> Vec<f64> {
        svg.split(before).skip(1).map(|rest| rest.split('"').next().unwrap().parse().unwrap()).collect()
    }

    #[test]
    fn bars_show_medians_and_the_longest_whisker_ends_the_axis() {
        let drawn = svg("t", &[bar(1.0, 2.0, 4.0), bar(1.0, 1.0, 1.0)]);
        let widths = all(&drawn, r#"" width=""#);
        assert_eq!(widths, [150.0, 75.0], "{drawn}");
        assert!(drawn.contains(&format!("H{RIGHT:.1}")), "{drawn}");
        assert_eq!(drawn.matches("whisker").count(), 1, "one round has no spread: {drawn}");
    }

    #[test]
    fn a_floor_far_away_is_cut_off_and_peers_stay_apart() {
        let drawn = svg("t", &[bar(1.0, 1.0, 1.0), floor(1.5), floor(50.0)]);
        assert_eq!(all(&drawn, r#"" width=""#), [150.0, 225.0, 300.0], "{drawn}");
        assert_eq!(drawn.matches(CUT).count(), 1, "{drawn}");
        assert!(drawn.contains(&format!("{CUT}50.0<")), "{drawn}");
        assert_eq!(all(&svg("t", &[floor(4.0), floor(2.0)]), r#"" width=""#), [300.0, 150.0]);
    }

    #[test]
    fn figures_of_nothing_but_zero_are_drawn_as_nothing() {
        assert_eq!(all(&svg("t", &[bar(0.0, 0.0, 0.0)]), r#"" width=""#), [0.0]);
    }
}
