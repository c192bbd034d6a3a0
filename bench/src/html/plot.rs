//! A report as one SVG picture, for pages that show a file: a row for each workload, with its charts side by side. It contains its style,
//! and follows the viewer's choice of light or dark.

use std::fmt::Write as _;

use super::chart::{self, Bar};
use super::{CHART_STYLE, DRAWN, Peers, bar, caption, escaped};
use crate::report::{Report, Row};

const MARGIN: f64 = 16.0;
/// The gap between the charts of a row.
const GAP: f64 = 24.0;
/// Space above a row of charts, for the names of the workload and of each chart.
const HEAD: f64 = 50.0;
/// The margin below a row of charts.
const FOOT: f64 = 18.0;
/// The distance between two lines of text.
const LINE: f64 = 16.0;

/// Draws the picture. A peer without figures in a workload has no bar there.
pub(crate) fn picture(report: &Report) -> String {
    let peers = Peers::of(report);
    let width = MARGIN * 2.0 + chart::WIDTH * DRAWN.len() as f64 + GAP * (DRAWN.len() - 1) as f64;
    let (mut body, mut y) = (String::new(), MARGIN);
    for rows in report.rows.chunk_by(|a, b| a.workload == b.workload) {
        y += draw_row(&mut body, rows, &peers, y);
    }
    let medians = format!("Medians of {} interleaved rounds, and their range.", report.rounds);
    for said in [format!("{}.", report.machine.line()), medians] {
        let _ =
            write!(body, r#"<text class="unit" x="{MARGIN}" y="{:.1}">{}</text>"#, y + 4.0, escaped(&said));
        y += LINE;
    }
    let height = y + MARGIN + 4.0 - LINE;
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.1}" role="img"><title>What file systems over S3 cost</title><style>{CHART_STYLE}</style><rect class="card" x="0.5" y="0.5" width="{:.1}" height="{:.1}" rx="8"/>{body}</svg>
"#,
        width - 1.0,
        height - 1.0
    )
}

/// Draws one workload from `y` on. Returns its height.
fn draw_row(out: &mut String, rows: &[Row], peers: &Peers, y: f64) -> f64 {
    let Some(Row { workload, about, unit, .. }) = rows.first() else { return 0.0 };
    let _ = write!(
        out,
        r#"<text class="title" x="{MARGIN}" y="{:.1}">{}</text>"#,
        y + 12.0,
        escaped(&format!("{workload}: {about}"))
    );
    let mut highest: f64 = 0.0;
    for (column, metric) in DRAWN.into_iter().enumerate() {
        let bars: Vec<Bar> = rows.iter().filter_map(|row| bar(row, metric, peers)).collect();
        if bars.is_empty() {
            continue;
        }
        let x = MARGIN + (chart::WIDTH + GAP) * column as f64;
        let _ = write!(
            out,
            r#"<text class="unit" x="{x}" y="{:.1}">{}</text><g transform="translate({x} {:.1})">{}</g>"#,
            y + 34.0,
            escaped(&caption(metric, *unit)),
            y + HEAD - 6.0,
            chart::drawn(&bars)
        );
        highest = highest.max(chart::height(bars.len()));
    }
    HEAD + highest + FOOT
}

#[cfg(test)]
mod tests {
    use super::super::tests::{read, report};
    use super::*;

    #[test]
    fn the_picture_is_whole_and_has_each_workload_peer_and_caption() {
        let picture = picture(&report());
        let (text, tags) = read(&picture);
        for word in
            ["seq_read: ", "seq_read_4", "mount-s3", "other", "(null fs)", "more is better", "less is better"]
        {
            assert!(text.contains(word), "{word} is missing: {text}");
        }
        assert_eq!(
            tags.iter().filter(|tag| *tag == "rect").count(),
            9,
            "a card, and two charts of four bars in all"
        );
        assert!(!text.contains("x <&"), "a peer that failed has no bar");
    }

    #[test]
    fn rows_do_not_overlap_and_the_picture_is_as_high_as_all_of_them() {
        let picture = picture(&report());
        let tops: Vec<f64> = picture
            .split("translate(")
            .skip(1)
            .map(|rest| rest.split([' ', ')']).nth(1).unwrap().parse().unwrap())
            .collect();
        assert_eq!(tops.len(), 4);
        assert_eq!(tops[0], tops[1], "charts of one workload stand side by side");
        assert!(tops[2] >= tops[0] + chart::height(3) + FOOT, "{tops:?}");
        let height: f64 = picture
            .split("viewBox=\"0 0 ")
            .nth(1)
            .unwrap()
            .split([' ', '"'])
            .nth(1)
            .unwrap()
            .parse()
            .unwrap();
        assert!(height >= tops[3] + chart::height(1), "{height}");
    }
}
