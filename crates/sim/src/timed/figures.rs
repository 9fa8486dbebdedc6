//! The paper's experiments as tables and pictures: one function for each figure, and what they have in common.
//!
//! Everything here is virtual time: the same on every machine. The command is `freehold-order-flash`; docs/ORDER.md holds what it
//! prints, and says where the curves differ from the paper's.

mod journal;
mod modes;
pub mod plot;
mod power;

pub use journal::{dual_depth, latency, scaling, switches};
pub use modes::{channels, depth, epochs, random_writes};
pub use power::power;

use plot::Plot;
use std::fmt::Write;

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// As in docs/ORDER.md: some seconds in a release build.
    Full,
    /// A fiftieth, for tests.
    Tiny,
}

impl Size {
    fn of(self, full: u64) -> u64 {
        match self {
            Size::Full => full,
            Size::Tiny => (full / 50).max(1),
        }
    }
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Names of the columns.
    pub head: Vec<String>,
    /// Rows, as long as the head.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    fn new(head: &[&str]) -> Table {
        Table { head: head.iter().map(|s| s.to_string()).collect(), rows: Vec::new() }
    }

    fn row<const N: usize>(&mut self, cells: [String; N]) {
        assert_eq!(N, self.head.len());
        self.rows.push(cells.to_vec());
    }

    /// As Markdown, the first column to the left, the others to the right.
    pub fn markdown(&self) -> String {
        let mut out =
            format!("| {} |\n|---|{}\n", self.head.join(" | "), "---:|".repeat(self.head.len() - 1));
        for row in &self.rows {
            let _ = writeln!(out, "| {} |", row.join(" | "));
        }
        out
    }
}

/// A figure.
pub struct Figure {
    /// What it shows.
    pub title: &'static str,
    /// The figures.
    pub table: Table,
    /// Names of files, and pictures.
    pub plots: Vec<(String, Plot)>,
}

/// A figure's name, and how it is made.
type Maker = (&'static str, fn(Size) -> Figure);

const MAKERS: [Maker; 9] = [
    ("fig01", channels),
    ("fig09", random_writes),
    ("ways", epochs),
    ("fig10", depth),
    ("table1", latency),
    ("fig11", switches),
    ("fig12", dual_depth),
    ("fig13", scaling),
    ("power", power),
];

/// The figures whose names begin with `prefix`, in the paper's order.
pub fn some(size: Size, prefix: &str) -> Vec<Figure> {
    MAKERS.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, make)| make(size)).collect()
}

impl Figure {
    /// Title, table and links to the pictures, which lie in the directory `pictures`.
    pub fn markdown(&self, pictures: &str) -> String {
        let mut out = format!("### {}\n\n{}", self.title, self.table.markdown());
        for (file, plot) in &self.plots {
            let _ = write!(out, "\n![{}]({pictures}/{file})\n", plot.title);
        }
        out
    }
}

/// With a separator for thousands.
fn whole(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

fn percent(part: f64, of: f64) -> String {
    let share = 100.0 * part / of;
    if share < 10.0 { format!("{share:.2} %") } else { format!("{share:.0} %") }
}

fn times(value: f64) -> String {
    if value < 10.0 { format!("{value:.2}x") } else { format!("{value:.0}x") }
}
