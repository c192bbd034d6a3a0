//! A report as one HTML page: charts for each workload, all figures, the machine. The page is self-contained: it uses no network and no
//! script. It is also valid XHTML, so a test can parse it.

mod chart;
mod plot;

use std::fmt::Write as _;

use crate::machine::Machine;
use crate::report::{Metric, Report, Row, cell};
use crate::workload::Unit;
use chart::Bar;
pub(crate) use plot::picture;

const STYLE: &str = include_str!("style.css");
/// Colours and style for charts.
const CHART_STYLE: &str = include_str!("chart.css");
/// Number of colours; further peers use them again.
const COLOURS: usize = 8;
/// The metrics with charts; the table has all.
const DRAWN: [Metric; 2] = [Metric::Speed, Metric::Cpu];

/// Escapes characters that would be markup.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The page.
pub(crate) fn page(report: &Report) -> String {
    let peers = Peers::of(report);
    let mut out = String::from(
        r#"<!DOCTYPE html><html lang="en" xmlns="http://www.w3.org/1999/xhtml"><head><meta charset="utf-8"/>"#,
    );
    out.push_str(r#"<meta name="viewport" content="width=device-width"/><title>What file systems over S3 cost</title>"#);
    let _ = write!(
        out,
        "<style>{CHART_STYLE}{STYLE}</style></head><body><h1>What file systems over S3 cost</h1>"
    );
    let _ = write!(
        out,
        "<p>{}.</p><p>Medians of {} interleaved rounds; whiskers go from the least to the most. CPU is that of the file \
         system's processes, counted by {}. Grey ones are not rivals but floors: nobody gets below them. A bar that would \
         not fit ends at the edge, with {} before its figure.</p>",
        escaped(&report.machine.line()),
        report.rounds,
        escaped(&report.conditions()),
        chart::CUT.trim()
    );
    out.push_str(&peers.legend());
    for rows in report.rows.chunk_by(|a, b| a.workload == b.workload) {
        out.push_str(&section(rows, &peers));
    }
    out.push_str(&table(report));
    out.push_str(&machine(&report.machine));
    out.push_str("</body></html>\n");
    out
}

/// The peers in the order of their first row, each with the class of its colour.
struct Peers(Vec<(String, String)>);

impl Peers {
    fn of(report: &Report) -> Self {
        let mut peers: Vec<(String, String)> = Vec::new();
        let mut colours = 0;
        for row in &report.rows {
            if peers.iter().any(|(peer, _)| *peer == row.peer) {
                continue;
            }
            let class = if row.is_floor { "floor".to_owned() } else { format!("p{}", colours % COLOURS) };
            colours += usize::from(!row.is_floor);
            peers.push((row.peer.clone(), class));
        }
        Self(peers)
    }

    fn class(&self, peer: &str) -> String {
        self.0.iter().find(|(known, _)| known == peer).map(|(_, class)| class.clone()).unwrap_or_default()
    }

    fn legend(&self) -> String {
        let mut out = String::from(r#"<ul class="legend">"#);
        for (peer, class) in &self.0 {
            let _ = write!(out, r#"<li><i class="{class}"></i>{}</li>"#, escaped(peer));
        }
        out + "</ul>"
    }
}

/// The section of one workload: its charts, and remarks about peers.
fn section(rows: &[Row], peers: &Peers) -> String {
    let Some(Row { workload, about, unit, .. }) = rows.first() else { return String::new() };
    let mut out = format!("<section><h2>{}</h2><p>{}</p>", escaped(workload), escaped(about));
    out.push_str(r#"<div class="charts">"#);
    for metric in DRAWN {
        let bars: Vec<Bar> = rows.iter().filter_map(|row| bar(row, metric, peers)).collect();
        if bars.is_empty() {
            continue;
        }
        let title = caption(metric, *unit);
        let _ = write!(
            out,
            "<figure><figcaption>{}</figcaption>{}</figure>",
            escaped(&title),
            chart::svg(&format!("{workload}: {title}"), &bars)
        );
    }
    out.push_str("</div>");
    let remarks: Vec<String> = rows.iter().filter_map(remark).collect();
    if !remarks.is_empty() {
        let _ = write!(out, r#"<ul class="remarks">{}</ul>"#, remarks.concat());
    }
    out + "</section>"
}

/// The caption of a chart: metric and unit.
fn caption(metric: Metric, unit: Unit) -> String {
    let better = if metric.more_is_better(unit) { "more is better" } else { "less is better" };
    format!("{}, {} ({better})", metric.name(), metric.unit(unit))
}

fn bar(row: &Row, metric: Metric, peers: &Peers) -> Option<Bar> {
    let spread = row.spread(metric)?;
    Some(Bar { peer: row.peer.clone(), class: peers.class(&row.peer), spread, is_floor: row.is_floor })
}

fn remark(row: &Row) -> Option<String> {
    let said = match &row.failure {
        Some(failure) => format!("failed: {failure}"),
        None => row.notes(),
    };
    (!said.is_empty()).then(|| format!("<li><b>{}</b> {}</li>", escaped(&row.peer), escaped(&said)))
}

/// The table of all figures.
fn table(report: &Report) -> String {
    let (rows, metrics) = (&report.rows, report.metrics());
    let mut out = String::from(
        "<section><h2>All figures</h2><div class=\"scroll\"><table><thead><tr><th>workload</th><th>file system</th>",
    );
    for metric in metrics.iter().copied() {
        let unit = if metric == Metric::PeakRss { " MiB" } else { "" };
        let _ = write!(out, "<th>{}{unit}</th>", metric.name());
    }
    out.push_str("<th></th></tr></thead><tbody>");
    let mut last = "";
    for row in rows {
        let (class, name) = if row.workload == last { ("", "") } else { ("first", row.workload.as_str()) };
        last = &row.workload;
        let _ =
            write!(out, r#"<tr class="{class}"><td>{}</td><td>{}</td>"#, escaped(name), escaped(&row.peer));
        if row.failure.is_some() {
            // The reason is beside the workload's charts, where there is room.
            let _ = write!(out, r#"<td colspan="{}">failed</td></tr>"#, metrics.len() + 1);
            continue;
        }
        for metric in metrics.iter().copied() {
            let figure = row.spread(metric).map_or_else(String::new, |spread| cell(metric, row.unit, spread));
            let _ = write!(out, "<td>{}</td>", escaped(&figure));
        }
        let _ = write!(out, "<td>{}</td></tr>", escaped(&row.notes()));
    }
    out + "</tbody></table></div></section>"
}

fn machine(machine: &Machine) -> String {
    let Machine { kernel, processor, cores, memory_mib, transparent_huge_pages, load, commit, user } =
        machine;
    let facts = [
        ("processor", format!("{cores} cores of {processor}")),
        ("memory", format!("{memory_mib} MiB")),
        ("kernel", format!("Linux {kernel}")),
        ("huge pages", transparent_huge_pages.clone()),
        ("load when the run began", load.to_string()),
        ("commit", commit.clone()),
        ("run by", user.clone()),
    ];
    let rows = facts.map(|(name, fact)| format!("<tr><th>{name}</th><td>{}</td></tr>", escaped(&fact)));
    format!("<section><h2>The machine</h2><table><tbody>{}</tbody></table></section>", rows.concat())
}

#[cfg(test)]
mod tests {
    use quick_xml::Reader;
    use quick_xml::events::Event;

    use super::*;
    use crate::workload::{Sample, WORKLOADS};

    pub(super) fn report() -> Report {
        let row = |workload: &str, peer: &str, speeds: &[f64], is_floor| {
            let workload = WORKLOADS.iter().find(|known| known.name == workload).unwrap();
            let mut row = Row::new(workload, peer, is_floor);
            row.samples = speeds
                .iter()
                .map(|seconds| Sample { seconds: *seconds, bytes: 1 << 30, items: 1, ..Sample::default() })
                .collect();
            row
        };
        let mut failed = row("seq_read_4", "x <&\"> y", &[], false);
        failed.failure = Some("exit & <nothing>".to_owned());
        let rows = vec![
            row("seq_read", "mount-s3", &[1.0, 2.0, 4.0], false),
            row("seq_read", "other", &[1.0], false),
            row("seq_read", "(null fs)", &[0.5], true),
            row("seq_read_4", "mount-s3", &[1.0], false),
            failed,
        ];
        Report { rows, rounds: 3, ..Report::default() }
    }

    /// The text and the tags of a page, which must be closed in order.
    pub(super) fn read(page: &str) -> (String, Vec<String>) {
        let mut reader = Reader::from_str(page);
        let (mut text, mut tags, mut open) = (String::new(), Vec::new(), 0);
        loop {
            match reader.read_event().unwrap() {
                Event::Start(tag) => {
                    open += 1;
                    tags.push(tag.name().into_inner().to_owned());
                }
                Event::End(_) => open -= 1,
                Event::Empty(tag) => tags.push(tag.name().into_inner().to_owned()),
                Event::Text(words) => text.push_str(&words.html_content()),
                Event::GeneralRef(name) => {
                    text.push_str(match &*name {
                        "amp" => "&",
                        "lt" => "<",
                        "gt" => ">",
                        "quot" => "\"",
                        other => panic!("no such entity: {other}"),
                    });
                }
                Event::Eof => break,
                _ => {}
            }
        }
        assert_eq!(open, 0, "something is not closed");
        (text, tags)
    }

    #[test]
    fn the_page_is_whole_and_names_each_peer_workload_and_failure() {
        let (text, tags) = read(&page(&report()));
        for word in
            ["mount-s3", "other", "(null fs)", "x <&\"> y", "exit & <nothing>", "seq_read", "seq_read_4"]
        {
            assert!(text.contains(word), "{word} is missing: {text}");
        }
        assert_eq!(tags.iter().filter(|tag| *tag == "svg").count(), 4, "speed and CPU of two workloads");
        assert_eq!(tags.iter().filter(|tag| *tag == "rect").count(), 8, "four peers have figures");
    }

    #[test]
    fn the_page_asks_nothing_of_anybody() {
        let page = page(&report());
        for word in ["<script", "src=", "href=", "url(", "@import"] {
            assert!(!page.contains(word), "{word}");
        }
    }

    #[test]
    fn a_peer_keeps_its_colour_in_every_workload_and_floors_have_none() {
        let peers = Peers::of(&report());
        assert_eq!((peers.class("mount-s3"), peers.class("other")), ("p0".to_owned(), "p1".to_owned()));
        assert_eq!(peers.class("(null fs)"), "floor");
        assert_eq!(peers.class("x <&\"> y"), "p2");
    }
}
