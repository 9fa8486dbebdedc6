//! docs/FORMAT.md says what the code says.

#[test]
fn tables_are_current() {
    let text = include_str!("../../../docs/FORMAT.md");
    let (_, found, _) = format::layout::split_generated(text).expect("docs/FORMAT.md has its markers");
    assert!(
        found == format::layout::generated(),
        "docs/FORMAT.md is stale: run `cargo run -p freehold-format --example format_tables`"
    );
}
