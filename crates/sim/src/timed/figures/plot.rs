//! Pictures: lines over an axis, and groups of bars, as SVG that is readable in light and dark surroundings.

use std::fmt::Write;

/// One line or one kind of bar.
pub struct Series {
    /// For the legend.
    pub name: String,
    /// Points of a line by x; bars by their group's index.
    pub points: Vec<(f64, f64)>,
}

/// How an axis is divided.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// From 0, evenly.
    Linear,
    /// By powers of 10 (x: of 2).
    Logarithmic,
}

/// What is drawn.
#[derive(Clone, PartialEq, Eq)]
pub enum Shape {
    /// Lines with marks.
    Lines,
    /// Lines that stay where they are until the next point.
    Steps,
    /// Bars, in groups of these names.
    Bars(Vec<String>),
}

/// A picture.
pub struct Plot {
    /// Above it.
    pub title: String,
    /// Below the x axis.
    pub x: String,
    /// Above the y axis.
    pub y: String,
    /// Division of the x axis; not for bars.
    pub x_scale: Scale,
    /// Division of the y axis.
    pub y_scale: Scale,
    /// Lines or bars.
    pub shape: Shape,
    /// What is shown.
    pub series: Vec<Series>,
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 620.0;
const TOP: f64 = 86.0;
const BOTTOM: f64 = 310.0;
/// Colours that differ in lightness too.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9"];
const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#222}.title{font-weight:600;font-size:14px}\
.grid{stroke:#8884;stroke-width:1}.page{fill:#fff}\
@media(prefers-color-scheme:dark){text{fill:#ddd}.page{fill:#1b1b1b}}";

struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    scale: Scale,
    base: f64,
}

impl Axis {
    /// `room` is how far an even scale reaches, as a multiple of the highest value.
    fn new(
        values: impl Iterator<Item = f64>,
        scale: Scale,
        base: f64,
        (from, to): (f64, f64),
        room: f64,
    ) -> Axis {
        let (mut low, mut high) = (f64::MAX, f64::MIN_POSITIVE);
        for value in values.filter(|v| *v > 0.0 || scale == Scale::Linear) {
            (low, high) = (low.min(value), high.max(value));
        }
        match scale {
            Scale::Linear => Axis { low: 0.0, high: high.max(1e-9) * room, from, to, scale, base },
            Scale::Logarithmic => {
                let low = base.powf(low.min(high).log(base).floor());
                let high = base.powf(high.log(base).ceil()).max(low * base);
                Axis { low, high, from, to, scale, base }
            }
        }
    }

    fn at(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => value / self.high,
            Scale::Logarithmic => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    fn marks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Logarithmic => {
                let first = self.low.log(self.base).round() as i32;
                let last = self.high.log(self.base).round() as i32;
                (first..=last).map(|power| self.base.powi(power)).collect()
            }
            Scale::Linear => {
                let rough = self.high / 5.0;
                let power = 10f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0]
                    .into_iter()
                    .map(|m| m * power)
                    .find(|s| *s >= rough)
                    .unwrap_or(rough);
                (0..=(self.high / step) as u32).map(|i| i as f64 * step).collect()
            }
        }
    }
}

/// A figure with a prefix, as axes want it.
fn short(value: f64) -> String {
    let (value, unit) = match value {
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e3 => (v / 1e3, "k"),
        v => (v, ""),
    };
    let text = format!("{value:.3}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

impl Plot {
    /// The picture as text.
    pub fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|s| &s.points);
        let y = Axis::new(points().map(|p| p.1), self.y_scale, 10.0, (BOTTOM, TOP), 1.06);
        let mut out = String::new();
        let _ = writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             role=\"img\" aria-label=\"{}\">\n<style>{STYLE}</style>\n<rect class=\"page\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>",
            escaped(&self.title)
        );
        text(&mut out, 16.0, 22.0, "start", "title", &self.title);
        self.legend(&mut out);
        for mark in y.marks() {
            line(&mut out, (LEFT, y.at(mark)), (RIGHT, y.at(mark)), "class=\"grid\"");
            text(&mut out, LEFT - 6.0, y.at(mark) + 4.0, "end", "", &short(mark));
        }
        text(&mut out, 16.0, TOP - 12.0, "start", "", &self.y);
        text(&mut out, (LEFT + RIGHT) / 2.0, HEIGHT - 10.0, "middle", "", &self.x);
        match &self.shape {
            Shape::Bars(groups) => self.bars(&mut out, groups, &y),
            _ => self.lines(
                &mut out,
                &Axis::new(points().map(|p| p.0), self.x_scale, 2.0, (LEFT, RIGHT), 1.0),
                &y,
            ),
        }
        out += "</svg>\n";
        out
    }

    fn legend(&self, out: &mut String) {
        let (mut x, mut y) = (16.0, 42.0);
        for (series, colour) in self.series.iter().zip(COLOURS.iter().cycle()) {
            let width = 34.0 + 6.6 * series.name.chars().count() as f64;
            if x + width > WIDTH {
                (x, y) = (16.0, y + 14.0);
            }
            let _ = writeln!(
                out,
                "<rect x=\"{x:.0}\" y=\"{:.0}\" width=\"14\" height=\"8\" fill=\"{colour}\"/>",
                y - 8.0
            );
            text(out, x + 18.0, y, "start", "", &series.name);
            x += width;
        }
    }

    fn lines(&self, out: &mut String, x: &Axis, y: &Axis) {
        for mark in x.marks() {
            text(out, x.at(mark), BOTTOM + 16.0, "middle", "", &short(mark));
        }
        for (i, (series, colour)) in self.series.iter().zip(COLOURS.iter().cycle()).enumerate() {
            // Lines that lie on one another: the lower ones are broader.
            let above = if self.shape == Shape::Lines { self.series.len() - 1 - i } else { 0 };
            let width = 1.6 + 1.6 * above.min(2) as f64;
            let mut path = String::new();
            let mut last = None;
            for &(px, py) in &series.points {
                let (px, py) = (x.at(px), y.at(py));
                if let (Shape::Steps, Some(before)) = (&self.shape, last) {
                    let _ = write!(path, "{px:.1},{before:.1} ");
                }
                let _ = write!(path, "{px:.1},{py:.1} ");
                last = Some(py);
                if self.shape == Shape::Lines {
                    let _ =
                        writeln!(out, "<circle cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"3\" fill=\"{colour}\"/>");
                }
            }
            let _ = writeln!(
                out,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width:.1}\"/>",
                path.trim_end()
            );
        }
    }

    fn bars(&self, out: &mut String, groups: &[String], y: &Axis) {
        let group = (RIGHT - LEFT) / groups.len() as f64;
        let bar = (group - 16.0) / self.series.len() as f64;
        for (i, name) in groups.iter().enumerate() {
            text(out, LEFT + group * (i as f64 + 0.5), BOTTOM + 16.0, "middle", "", name);
        }
        for (i, (series, colour)) in self.series.iter().zip(COLOURS.iter().cycle()).enumerate() {
            for &(index, value) in &series.points {
                let left = LEFT + 8.0 + group * index + bar * i as f64;
                let top = y.at(value);
                let _ = writeln!(
                    out,
                    "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\"/>",
                    bar - 2.0,
                    BOTTOM - top
                );
                text(
                    out,
                    left + bar / 2.0 - 1.0,
                    top - 3.0,
                    "middle",
                    "",
                    &short((value * 100.0).round() / 100.0),
                );
            }
        }
    }
}

fn line(out: &mut String, from: (f64, f64), to: (f64, f64), how: &str) {
    let _ = writeln!(
        out,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" {how}/>",
        from.0, from.1, to.0, to.1
    );
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, class: &str, text: &str) {
    let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{class}>{}</text>",
        escaped(text)
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
