//! BarrierFS's experiments on a simulated flash device, in virtual time. See `sim::timed` and docs/ORDER.md.

use clap::Parser;
use sim::timed::figures::{self, Size};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Runs the experiments of BarrierFS (FAST'18) on a simulated flash device and prints their tables. Time is virtual: the figures are
/// the same on every machine.
#[derive(Parser)]
#[command(name = "freehold-order-flash")]
struct Arguments {
    /// A fiftieth of the work: only to see that it runs.
    #[arg(long)]
    tiny: bool,
    /// Only figures whose names begin so: fig01, fig09, ways, fig10, table1, fig11, fig12, fig13, power.
    #[arg(long)]
    only: Option<String>,
    /// Put tables into DOCS/ORDER.md, between its marks, and pictures into DOCS/order.
    #[arg(long, value_name = "DOCS", conflicts_with_all = ["tiny", "only"])]
    write: Option<PathBuf>,
}

/// Everything between these lines of ORDER.md is replaced.
const BEGIN: &str = "<!-- begin: printed by freehold-order-flash -->\n";
const END: &str = "<!-- end: printed by freehold-order-flash -->\n";

fn main() -> ExitCode {
    let a = Arguments::parse();
    let size = if a.tiny { Size::Tiny } else { Size::Full };
    let figures = figures::some(size, a.only.as_deref().unwrap_or_default());
    if figures.is_empty() {
        eprintln!("freehold-order-flash: there is no such figure");
        return ExitCode::FAILURE;
    }
    let tables: Vec<String> = figures.iter().map(|figure| figure.markdown("order")).collect();
    let tables = tables.join("\n");
    let Some(docs) = a.write else {
        print!("{tables}");
        return ExitCode::SUCCESS;
    };
    match write(&docs, &figures, &tables) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("freehold-order-flash: {}: {e}", docs.display());
            ExitCode::FAILURE
        }
    }
}

fn write(docs: &Path, figures: &[figures::Figure], tables: &str) -> std::io::Result<()> {
    let page = docs.join("ORDER.md");
    let text = std::fs::read_to_string(&page)?;
    let parts = text.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let Some((before, behind)) = parts else {
        return Err(std::io::Error::other("ORDER.md has no marks for the tables"));
    };
    std::fs::write(&page, format!("{before}{BEGIN}\n{tables}\n{END}{behind}"))?;
    let pictures = docs.join("order");
    std::fs::create_dir_all(&pictures)?;
    for (file, plot) in figures.iter().flat_map(|figure| &figure.plots) {
        std::fs::write(pictures.join(file), plot.svg())?;
    }
    Ok(())
}
