//! Writes the generated part of docs/FORMAT.md: `cargo run -p freehold-format --example format_tables` (in the repository).
//! `cargo test -p freehold-format` fails while that part is stale.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/FORMAT.md");
    let text = std::fs::read_to_string(&file)?;
    let (before, _, after) = format::layout::split_generated(&text)
        .ok_or_else(|| std::io::Error::other("docs/FORMAT.md has lost its markers"))?;
    std::fs::write(&file, format!("{before}{}{after}", format::layout::generated()))
}
