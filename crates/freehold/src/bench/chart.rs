//! The picture of a run: rates of Freehold and XFS as multiples of ext4's rate in the same run, as one SVG file.
//!
//! Drawn from what `--json` writes and from nothing else, so a picture can be made again from a kept file, and the picture of a run is
//! that of its file. The scale is logarithmic, and 1 (ext4) is the line at which bars begin: to the right is faster, to the left slower. Goals
//! against others than ext4 stand where those others' figures of the run put them. Rows without a figure of ext4, and rows whose unit is no rate,
//! cannot be drawn; the picture and [`Chart::left_out`] name them.
//!
//! Plain SVG 1.1 with two sets of colours, of which the viewer's preference (light, dark) chooses. No scripts, nothing from elsewhere. Tested below.

use super::report::figure;
use super::sample::{Goal, Kind};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The parts of the JSON file that are drawn.
#[derive(Deserialize)]
struct Run {
    machine: Machine,
    scale: Scale,
    rows: Vec<Row>,
    #[serde(default)]
    ended_early: Option<String>,
}

#[derive(Deserialize)]
struct Machine {
    freehold: String,
    build: String,
    kernel: String,
    processor: String,
    processors: usize,
    memory: u64,
    below: String,
}

#[derive(Deserialize)]
struct Scale {
    files: u64,
    repeat: u32,
}

#[derive(Deserialize)]
struct Row {
    name: String,
    unit: String,
    subject: Kind,
    goal: Option<Goal>,
    /// By [`Kind::name`].
    median: BTreeMap<String, Option<f64>>,
}

impl Row {
    /// A figure that can be drawn.
    fn median(&self, kind: Kind) -> Option<f64> {
        self.median.get(kind.name()).copied().flatten().filter(|v| v.is_finite() && *v > 0.0)
    }
}

/// A row as multiples of ext4.
struct Bars<'a> {
    row: &'a Row,
    value: f64,
    ours: f64,
    xfs: Option<f64>,
    /// What the goal asks for.
    goal: Option<f64>,
}

impl Bars<'_> {
    /// `None` for a row that cannot be drawn.
    fn of(row: &Row) -> Option<Bars<'_>> {
        let ext4 = row.median(Kind::Ext4).filter(|_| row.unit.ends_with("/s"))?;
        let value = row.median(row.subject)?;
        let goal = match row.goal {
            Some(Goal::AtLeast(kind, times)) => row.median(kind).map(|other| times * other / ext4),
            _ => None,
        };
        Some(Bars { row, value, ours: value / ext4, xfs: row.median(Kind::Xfs).map(|v| v / ext4), goal })
    }

    fn all(&self) -> impl Iterator<Item = f64> {
        [Some(1.0), Some(self.ours), self.xfs, self.goal].into_iter().flatten()
    }
}

/// A picture.
pub struct Chart {
    /// The file.
    pub svg: String,
    /// Names of the rows that are not in it.
    pub left_out: Vec<String>,
}

const GROUPS: [(Kind, &str); 3] = [
    (Kind::Freehold, "The library in the program, beside system calls"),
    (Kind::Run, "Ordinary programs, under freehold run"),
    (Kind::Fuse, "System calls through the FUSE mount"),
];

const WIDTH: f64 = 940.0;
/// Where bars may be.
const LEFT: f64 = 170.0;
const RIGHT: f64 = 680.0;
const TOP: f64 = 92.0;
const ROW: f64 = 21.0;
const GROUP: f64 = 34.0;
const LINE: f64 = 15.0;
/// Bars end here although their figures go on; the figure is beside the bar.
const LEAST: f64 = 1.0 / 64.0;
const MOST: f64 = 256.0;

const STYLE: &str = "\
text { font: 12px sans-serif; fill: #1f2328 }
.page { fill: #ffffff }
.title { font-size: 18px; font-weight: bold }
.head { font-weight: bold }
.small, .axis { font-size: 11px; fill: #59636e }
.grid { stroke: #d8dee4 }
.one { stroke: #1f2328 }
.ours { fill: #0969da }
.xfs { fill: #9aa4af }
.goal { stroke: #bc4c00; stroke-width: 2 }
.miss { fill: #cf222e }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.page { fill: #0d1117 }
.small, .axis { fill: #9198a1 }
.grid { stroke: #2b313a }
.one { stroke: #e6edf3 }
.ours { fill: #4493f8 }
.xfs { fill: #6e7681 }
.goal { stroke: #f0883e }
.miss { fill: #ff7b72 }
}";

/// Where figures are, from left to right.
struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    /// Powers of two around all bars.
    fn around(bars: &[Bars<'_>]) -> Axis {
        let (mut low, mut high) = (0.5f64, 2.0f64);
        for value in bars.iter().flat_map(Bars::all) {
            (low, high) = (low.min(value), high.max(value));
        }
        Axis { low: low.max(LEAST).log2().floor(), high: high.min(MOST).log2().ceil() }
    }

    fn x(&self, value: f64) -> f64 {
        let at = (value.log2().clamp(self.low, self.high) - self.low) / (self.high - self.low);
        LEFT + at * (RIGHT - LEFT)
    }

    /// Figures with a line of their own.
    fn marks(&self) -> impl Iterator<Item = f64> {
        (self.low as i32..=self.high as i32).map(|power| 2f64.powi(power))
    }
}

/// Draws the picture of the run whose JSON file has this text.
///
/// # Errors
/// The text is not such a file, or has no row that can be drawn.
pub fn draw(json: &str) -> Result<Chart> {
    let run: Run = serde_json::from_str(json).context("this is no file that bench --json writes")?;
    let bars: Vec<Bars<'_>> = run.rows.iter().filter_map(Bars::of).collect();
    ensure!(!bars.is_empty(), "no row has a figure of Freehold and one of ext4: there is nothing to draw");
    let drawn = |name: &str| bars.iter().any(|b| b.row.name == name);
    let left_out: Vec<String> = run.rows.iter().filter(|r| !drawn(&r.name)).map(|r| r.name.clone()).collect();
    let groups: Vec<(&str, Vec<&Bars<'_>>)> = GROUPS
        .iter()
        .map(|(kind, head)| (*head, bars.iter().filter(|b| b.row.subject == *kind).collect()))
        .filter(|(_, rows): &(_, Vec<_>)| !rows.is_empty())
        .collect();
    let notes = match left_out.is_empty() {
        true => Vec::new(),
        false => lines("Not in this picture, having no rate of ext4 to compare with: ", &left_out),
    };
    let bottom = TOP + groups.iter().map(|(_, rows)| GROUP + rows.len() as f64 * ROW).sum::<f64>() + 6.0;
    let height = bottom + 26.0 + LINE * (notes.len() as f64 + 1.0);

    let mut out = Svg::default();
    out.open(WIDTH, height);
    out.text(16.0, 28.0, "title", "start", "Freehold beside ext4 and XFS");
    out.text(16.0, 48.0, "small", "start", &run.machine_line());
    out.text(16.0, 64.0, "small", "start", &run.work_line());
    legend(&mut out, 76.0);
    let axis = Axis::around(&bars);
    for mark in axis.marks() {
        let x = axis.x(mark);
        out.line(x, TOP, bottom, "grid");
        let label = if mark < 1.0 { format!("1/{}x", 1.0 / mark) } else { format!("{mark}x") };
        out.text(x, bottom + 14.0, "axis", "middle", &label);
    }
    let mut y = TOP;
    for (head, rows) in groups {
        out.text(16.0, y + 22.0, "head", "start", head);
        y += GROUP;
        for bars in rows {
            out.bars(&axis, y, bars);
            y += ROW;
        }
    }
    out.line(axis.x(1.0), TOP, bottom, "one");
    for (i, note) in notes.iter().enumerate() {
        out.text(16.0, bottom + 34.0 + i as f64 * LINE, "small", "start", note);
    }
    out.0 += "</svg>\n";
    Ok(Chart { svg: out.0, left_out })
}

impl Run {
    fn machine_line(&self) -> String {
        let m = &self.machine;
        let below = m.below.split(" (").next().unwrap_or_default();
        let memory = m.memory as f64 / (1u64 << 30) as f64;
        format!(
            "{} x {}, {memory:.0} GiB of memory, Linux {}, images on {below}; freehold {} ({} build)",
            m.processors, m.processor, m.kernel, m.freehold, m.build
        )
    }

    fn work_line(&self) -> String {
        let repeat = match self.scale.repeat {
            1 => "one repetition".to_string(),
            n => format!("medians of {n} repetitions"),
        };
        let files = figure(self.scale.files as f64);
        let ended = match &self.ended_early {
            Some(why) => format!("; THE RUN ENDED EARLY: {why}"),
            None => String::new(),
        };
        format!(
            "Rates as multiples of ext4's in the same run, logarithmic; {repeat}; {files} files in the rows of the library{ended}"
        )
    }
}

/// Words in lines that fit, the first behind `head`.
fn lines(head: &str, words: &[String]) -> Vec<String> {
    const FITS: usize = 140;
    let mut lines = vec![head.to_string()];
    for (i, word) in words.iter().enumerate() {
        let comma = if i + 1 < words.len() { ", " } else { "" };
        match lines.last_mut() {
            Some(last) if last.len() + word.len() < FITS => *last += &format!("{word}{comma}"),
            _ => lines.push(format!("{word}{comma}")),
        }
    }
    lines
}

fn legend(out: &mut Svg, y: f64) {
    out.rect(16.0, y, 24.0, 10.0, "ours");
    out.text(46.0, y + 9.0, "small", "start", "Freehold");
    out.rect(112.0, y + 3.0, 24.0, 5.0, "xfs");
    out.text(142.0, y + 9.0, "small", "start", "XFS");
    out.line(186.0, y - 2.0, y + 12.0, "one");
    out.text(192.0, y + 9.0, "small", "start", "ext4");
    out.line(240.0, y - 2.0, y + 12.0, "goal");
    out.text(248.0, y + 9.0, "small", "start", "goal");
    out.text(292.0, y + 9.0, "small", "start", "to the right: faster than ext4; to the left: slower");
}

/// Text of the file so far.
#[derive(Default)]
struct Svg(String);

impl Svg {
    fn open(&mut self, width: f64, height: f64) {
        let _ = writeln!(
            self.0,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height:.0}\" viewBox=\"0 0 {width} {height:.0}\" \
             role=\"img\" aria-label=\"Rates of Freehold and XFS as multiples of ext4's\">\n<style>\n{STYLE}\n</style>"
        );
        self.rect(0.0, 0.0, width, height, "page");
    }

    fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, class: &str) {
        let _ = writeln!(
            self.0,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
        );
    }

    fn line(&mut self, x: f64, from: f64, to: f64, class: &str) {
        let _ = writeln!(
            self.0,
            "<line class=\"{class}\" x1=\"{x:.1}\" y1=\"{from:.1}\" x2=\"{x:.1}\" y2=\"{to:.1}\"/>"
        );
    }

    fn text(&mut self, x: f64, y: f64, class: &str, anchor: &str, text: &str) {
        let text = escaped(text);
        let _ = writeln!(
            self.0,
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
        );
    }

    /// A row whose upper edge is at `y`.
    fn bars(&mut self, axis: &Axis, y: f64, bars: &Bars<'_>) {
        let one = axis.x(1.0);
        let from_one = |value: f64| {
            let end = axis.x(value);
            (one.min(end), (end - one).abs().max(1.0))
        };
        self.text(LEFT - 8.0, y + 12.0, "name", "end", &bars.row.name);
        let (x, width) = from_one(bars.ours);
        self.rect(x, y + 2.0, width, 9.0, "ours");
        if let Some(xfs) = bars.xfs {
            let (x, width) = from_one(xfs);
            self.rect(x, y + 12.0, width, 4.0, "xfs");
        }
        let missed = bars.goal.filter(|goal| bars.ours < *goal);
        if let Some(goal) = bars.goal {
            self.line(axis.x(goal), y, y + 18.0, "goal");
        }
        let mut text = format!("{} ({} {})", times(bars.ours), figure(bars.value), bars.row.unit);
        if let Some(goal) = missed {
            let _ = write!(text, ", goal {}", times(goal));
        }
        let end = bars.all().map(|value| axis.x(value)).fold(one, f64::max);
        self.text(end + 6.0, y + 12.0, if missed.is_some() { "miss" } else { "figure" }, "start", &text);
    }
}

fn times(value: f64) -> String {
    if value < 10.0 { format!("{value:.2}x") } else { format!("{value:.1}x") }
}

/// As the content of an element or of an attribute in quotes. What XML has no way to write becomes a question mark.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            '\t' | '\n' | '\r' => out.push(' '),
            c if c < ' ' || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn run(rows: Value) -> String {
        json!({
            "machine": { "freehold": "1.2", "build": "release", "kernel": "6.18", "processor": "A <B> & \"C\"", "processors": 2,
                         "memory": 8u64 << 30, "below": "ext4 on /dev/x (rw,relatime)" },
            "scale": { "files": 1_000_000, "repeat": 2 },
            "rows": rows,
        })
        .to_string()
    }

    fn row(name: &str, subject: &str, goal: Value, median: Value) -> Value {
        json!({ "name": name, "unit": "ops/s", "subject": subject, "goal": goal, "median": median })
    }

    /// Goes through the text as XML: every tag is closed in its turn, and no content holds what belongs to tags. Returns the
    /// names of the elements.
    fn elements(svg: &str) -> Vec<String> {
        let (mut open, mut seen, mut rest) = (Vec::new(), Vec::new(), svg);
        while let Some(at) = rest.find('<') {
            let content = &rest[..at];
            assert!(!content.contains('>'), "a bare > in {content:?}");
            for part in content.split('&').skip(1) {
                assert!(
                    ["amp;", "lt;", "gt;", "quot;", "#39;"].iter().any(|e| part.starts_with(e)),
                    "{part:?}"
                );
            }
            assert!(content.trim().is_empty() || !open.is_empty(), "text outside: {content:?}");
            let end = at + rest[at..].find('>').expect("a tag without an end");
            let tag = &rest[at + 1..end];
            rest = &rest[end + 1..];
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop().as_deref(), Some(name), "closed in the wrong order");
                continue;
            }
            assert!(!tag.contains('<'), "{tag}");
            assert!(tag.matches('"').count().is_multiple_of(2), "quotes of {tag}");
            let name = tag.split_whitespace().next().unwrap().trim_end_matches('/').to_string();
            if !tag.ends_with('/') {
                open.push(name.clone());
            }
            seen.push(name);
        }
        assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} left open, {rest:?} behind the end");
        assert_eq!(seen[0], "svg");
        seen
    }

    #[test]
    fn is_well_formed_and_says_what_it_lacks() {
        let text = run(json!([
            row("create", "freehold", json!({ "at_least": ["ext4", 10.0] }), json!({ "freehold": 40.0, "ext4": 2.0, "xfs": 1.0 })),
            row("a<b>&'c'", "run", Value::Null, json!({ "freehold run": 1.0, "ext4": 4.0 })),
            row("rand-read", "freehold", json!({ "at_least": ["raw", 0.95] }), json!({ "freehold": 40.0, "raw": 2.0 })),
            row("fuse-x", "fuse", json!({ "at_least": ["passthrough", 0.5] }), json!({ "freehold fuse": 2.0, "ext4": 1e9, "passthrough": 8.0 })),
            { "name": "idle-cpu", "unit": "% of a core", "subject": "freehold", "goal": { "max": 1.0 }, "median": { "freehold": 0.1, "ext4": 1.0 } },
            row("null", "freehold", Value::Null, json!({ "freehold": null, "ext4": 1.0 })),
            row("zero", "freehold", Value::Null, json!({ "freehold": 1.0, "ext4": 0.0 })),
        ]));
        let chart = draw(&text).unwrap();
        let names = elements(&chart.svg);
        // The page, the legend's two, and the bars of three rows, one of them with XFS.
        assert_eq!(names.iter().filter(|n| *n == "rect").count(), 1 + 2 + 4);
        assert_eq!(chart.left_out, ["rand-read", "idle-cpu", "null", "zero"]);
        for part in [
            "A &lt;B&gt; &amp; &quot;C&quot;",
            "a&lt;b&gt;&amp;&#39;c&#39;",
            ">20.0x (40.0 ops/s)<",
            ">0.25x (1.0 ops/s)<",
            "goal 0.00x",
            "rand-read, idle-cpu, null, zero<",
            "images on ext4 on /dev/x; freehold 1.2 (release build)",
        ] {
            assert!(chart.svg.contains(part), "{part} is not in {}", chart.svg);
        }
        assert!(!chart.svg.contains("ENDED EARLY"));
    }

    #[test]
    fn bars_begin_at_ext4_and_stay_on_the_page() {
        let axis = Axis { low: -2.0, high: 2.0 };
        assert_eq!((axis.x(0.25), axis.x(1.0), axis.x(4.0)), (LEFT, (LEFT + RIGHT) / 2.0, RIGHT));
        assert_eq!((axis.x(1e-9), axis.x(1e9)), (LEFT, RIGHT));
        assert_eq!(axis.marks().collect::<Vec<_>>(), [0.25, 0.5, 1.0, 2.0, 4.0]);
        let rows = [row("x", "freehold", Value::Null, json!({ "freehold": 1e12, "ext4": 1.0 }))];
        let rows: Vec<Row> = rows.into_iter().map(|r| serde_json::from_value(r).unwrap()).collect();
        let bars: Vec<Bars<'_>> = rows.iter().filter_map(Bars::of).collect();
        assert_eq!(2f64.powf(Axis::around(&bars).high), MOST);
    }

    #[test]
    fn what_is_no_run_is_refused() {
        for bad in ["", "{}", "[1]", "{\"rows\": []}"] {
            assert!(draw(bad).is_err(), "{bad}");
        }
        assert!(draw(&run(json!([]))).err().unwrap().to_string().contains("nothing to draw"));
        let alone = run(json!([row("create", "freehold", Value::Null, json!({ "freehold": 1.0 }))]));
        assert!(draw(&alone).is_err());
    }

    #[test]
    fn an_early_end_is_in_the_picture() {
        let mut text: Value = serde_json::from_str(&run(json!([row(
            "x",
            "freehold",
            Value::Null,
            json!({ "freehold": 1.0, "ext4": 1.0 })
        )])))
        .unwrap();
        text["ended_early"] = json!("interrupted");
        let chart = draw(&text.to_string()).unwrap();
        elements(&chart.svg);
        assert!(chart.svg.contains("THE RUN ENDED EARLY: interrupted"));
    }
}
