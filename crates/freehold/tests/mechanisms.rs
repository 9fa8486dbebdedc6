//! docs/MECHANISMS.md speaks of what is there: every home and every test that it names exists, functions in brackets stand in
//! the files before them, and every benchmark is a row of `freehold bench` or a file.

use std::path::Path;

#[test]
fn every_line_of_the_table_is_true() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let table = std::fs::read_to_string(root.join("docs/MECHANISMS.md")).unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| line.starts_with("| "))
        .skip(1)
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert!(rows.len() > 30, "the table is not where it was");
    let mut wrong = Vec::new();
    for row in rows {
        let [mechanism, _source, home, _invariant, test, benchmark] = row[..] else {
            wrong.push(format!("{row:?}: not six columns"));
            continue;
        };
        let mut file = String::new();
        for (column, cell) in [("home", home), ("test", test)] {
            for name in cell.split('`').skip(1).step_by(2) {
                if name.contains(['/', '.']) || root.join("crates").join(name).is_dir() {
                    let path =
                        [root.join("crates").join(name), root.join(name)].into_iter().find(|p| p.exists());
                    match path {
                        Some(path) => file = std::fs::read_to_string(path).unwrap_or_default(),
                        None => wrong.push(format!("{mechanism}: {column} {name} is not there")),
                    }
                } else if !file.contains(&format!("fn {name}")) {
                    wrong.push(format!("{mechanism}: no function {name} in the file before it"));
                }
            }
            if column == "home" && !cell.contains('`') {
                wrong.push(format!("{mechanism}: has no home"));
            }
        }
        for name in benchmark.split(',').map(str::trim).filter(|n| !matches!(*n, "-" | "all")) {
            let is_there = match name.trim_matches('`') {
                path if path.contains('/') => {
                    root.join("crates").join(path).exists() || root.join(path).exists()
                }
                name => freehold::bench::row_names().any(|row| row == name),
            };
            if !is_there {
                wrong.push(format!("{mechanism}: no benchmark {name}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
