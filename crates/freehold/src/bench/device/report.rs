//! The table, the JSON file and the picture.

use super::load::{Figures, Load};
use crate::bench::report::figure;
use crate::options::format_size;
use anyhow::Result;
use media::Geometry;
use serde_json::json;
use std::fmt::Write;

/// A stream of a load, in all ways.
pub struct Row {
    /// Of the stream.
    pub name: String,
    pub load: Load,
    /// Name of the way, and its figures.
    pub ways: Vec<(String, Figures)>,
}

impl Row {
    /// The stream, and with what it was mixed.
    fn title(&self) -> String {
        match self.load.streams.len() {
            1 => format!("{}, depth {}", self.name, self.load.depth),
            _ => {
                let others: Vec<String> =
                    self.load.streams.iter().map(|s| s.name()).filter(|name| *name != self.name).collect();
                format!("{}, with {}, depth {}", self.name, others.join(" and "), self.load.depth)
            }
        }
    }
}

/// All that was measured.
pub struct Run {
    pub device: String,
    pub geometry: Geometry,
    /// Bytes of it that were used.
    pub area: u64,
    /// It was written before.
    pub destroy: bool,
    pub seconds: f64,
    pub rows: Vec<Row>,
}

impl Run {
    fn head(&self) -> String {
        let g = &self.geometry;
        let written = if self.destroy {
            "written before"
        } else {
            "not written: reads of what never was may be faster"
        };
        format!(
            "{}: {}, blocks of {}; the first {} of it, {written}; {} s each",
            self.device,
            format_size(g.bytes),
            format_size(g.sector.into()),
            format_size(self.area),
            self.seconds
        )
    }
}

/// For people.
pub fn table(run: &Run) -> String {
    let head = ["load", "queue", "per second", "MB/s", "mean us", "p50", "p99", "p99.99"];
    let mut lines: Vec<Vec<String>> = vec![head.map(String::from).to_vec()];
    for row in &run.rows {
        for (n, (way, f)) in row.ways.iter().enumerate() {
            let title = if n == 0 { row.title() } else { String::new() };
            let figures = [f.per_second, f.mb_per_second, f.mean_us, f.p50_us, f.p99_us, f.p99_99_us];
            lines.push([title, way.clone()].into_iter().chain(figures.map(figure)).collect());
        }
    }
    let width = |c: usize| lines.iter().map(|line| line[c].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut out = run.head() + "\n";
    for line in &lines {
        for (c, cell) in line.iter().enumerate() {
            let width = widths[c];
            let _ = if c < 2 { write!(out, "{cell:<width$}  ") } else { write!(out, "{cell:>width$}  ") };
        }
        out.truncate(out.trim_end_matches(' ').len());
        out.push('\n');
    }
    out
}

/// For programs: sizes in bytes, times in microseconds.
pub fn json(run: &Run) -> Result<String> {
    let rows: Vec<_> = run
        .rows
        .iter()
        .map(|row| {
            let ways: serde_json::Map<_, _> =
                row.ways.iter().map(|(way, f)| (way.clone(), json!(f))).collect();
            let mixed: Vec<String> = row.load.streams.iter().map(|s| s.name()).collect();
            json!({ "stream": row.name, "load": mixed, "depth": row.load.depth, "queues": ways })
        })
        .collect();
    let g = &run.geometry;
    Ok(serde_json::to_string_pretty(&json!({
        "device": run.device, "bytes": g.bytes, "block": g.sector, "atomic_unit": g.atomic_unit, "volatile_cache": g.volatile_cache,
        "numa_node": g.numa_node, "area": run.area, "written": run.destroy, "seconds": run.seconds, "rows": rows,
    }))?)
}

const WIDTH: usize = 960;
const LEFT: usize = 110;
const BAR: usize = 14;

/// Requests in a second, as bars: the longest of each row has the same length. Plain SVG 1.1, with colours for light and dark.
pub fn svg(run: &Run) -> String {
    let longest = WIDTH - LEFT - 330;
    let (mut body, mut y) = (String::new(), 58);
    let text = |out: &mut String, x: usize, y: usize, class: &str, text: &str| {
        let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\" class=\"{class}\">{}</text>", escaped(text));
    };
    for row in &run.rows {
        text(&mut body, 16, y + 11, "row", &row.title());
        y += 18;
        let most = row.ways.iter().map(|(_, f)| f.per_second).fold(1.0, f64::max);
        for (way, f) in &row.ways {
            let width = (f.per_second / most * longest as f64).max(1.0);
            text(&mut body, 30, y + 11, "", way);
            let _ = writeln!(
                body,
                "<rect x=\"{LEFT}\" y=\"{}\" width=\"{width:.1}\" height=\"{}\" class=\"bar\"/>",
                y + 1,
                BAR - 3
            );
            let said = format!(
                "{} in a second, {} MB/s; mean {} us, p99 {} us",
                figure(f.per_second),
                figure(f.mb_per_second),
                figure(f.mean_us),
                figure(f.p99_us)
            );
            text(&mut body, LEFT + width as usize + 6, y + 11, "", &said);
            y += BAR;
        }
        y += 10;
    }
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {y}\" width=\"{WIDTH}\" height=\"{y}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <style>svg{{background:#fff}}text{{fill:#222}}.row{{font-weight:bold}}.head{{font-size:14px}}.bar{{fill:#3b6ea5}}\
         @media (prefers-color-scheme:dark){{svg{{background:#16181c}}text{{fill:#ddd}}.bar{{fill:#6ea3dc}}}}</style>\n"
    );
    text(&mut out, 16, 24, "head", "Requests in a second, by the way in which queues are chosen");
    text(&mut out, 16, 42, "", &run.head());
    out + &body + "</svg>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
