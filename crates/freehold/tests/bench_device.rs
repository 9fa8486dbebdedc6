//! `freehold bench device` on a file: it runs, writes only when told to, and refuses what is in use. On a controller: `lab/tests/beside.sh`.
//!
//! The test on a loop device needs root and is skipped without.

use media::uring::{Options, UringMedia};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Output};

const LEN: usize = 8 << 20;

fn bench(image: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_freehold"));
    command.args(["bench", "device"]).arg(image).args(words);
    command.args(["--size", "4M", "--seconds", "0.02", "--repeat", "1"]).output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn reads_leave_everything_as_it_is() {
    let home = tempfile::tempdir().unwrap();
    let image = home.path().join("image");
    std::fs::write(&image, vec![7; LEN]).unwrap();
    let output = bench(&image, &[]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("4 KiB random read, depth 32") && !said(&output).contains("random write"));
    assert!(std::fs::read(&image).unwrap() == vec![7; LEN]);
}

#[test]
fn everything_is_measured_and_told() {
    let home = tempfile::tempdir().unwrap();
    let (image, json, svg) = (home.path().join("i"), home.path().join("json"), home.path().join("svg"));
    std::fs::write(&image, vec![7; LEN]).unwrap();
    let words = ["--destroy", "--json", json.to_str().unwrap(), "--svg", svg.to_str().unwrap()];
    let output = bench(&image, &words);
    assert!(output.status.success(), "{}", said(&output));
    let told: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!((told["bytes"].as_u64(), told["area"].as_u64()), (Some(LEN as u64), Some(4 << 20)));
    let rows = told["rows"].as_array().unwrap();
    // Six alone, and mixtures of two, two and four.
    assert_eq!(rows.len(), 6 + 2 + 2 + 4);
    for row in rows {
        let figures = &row["queues"]["io_uring"];
        let number = |name: &str| figures[name].as_f64().unwrap();
        assert!(number("operations") > 0.0 && number("per_second") > 0.0, "{row}");
        assert!(number("p50_us") <= number("p99_us") && number("p99_us") <= number("p99_99_us"), "{row}");
    }
    let picture = std::fs::read_to_string(&svg).unwrap();
    assert_eq!(picture.matches("<rect").count(), rows.len());
    assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"));
    let after = std::fs::read(&image).unwrap();
    assert!(after[..4 << 20].chunks(4096).all(|page| page.iter().any(|b| *b != 7)), "it was written");
    assert!(after[4 << 20..] == vec![7; LEN - (4 << 20)], "no more than that was written");
}

#[test]
fn what_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let image = home.path().join("image");
    std::fs::write(&image, vec![7; LEN]).unwrap();
    let held = UringMedia::open(&image, Options::default()).unwrap();
    for words in [&[][..], &["--destroy"]] {
        let output = bench(&image, words);
        assert_eq!(output.status.code(), Some(1), "in use: {}", said(&output));
    }
    drop(held);
    assert!(std::fs::read(&image).unwrap() == vec![7; LEN]);
    let nowhere = home.path().join("no/json");
    let output = bench(&image, &["--destroy", "--json", nowhere.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(std::fs::read(&image).unwrap() == vec![7; LEN], "said before anything was written");
    std::fs::write(&image, vec![7; 64 << 10]).unwrap();
    assert!(said(&bench(&image, &[])).contains("at least 1 MiB"));
    for words in [["--seconds", "0"], ["--repeat", "0"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_freehold"))
            .args(["bench", "device"])
            .arg(&image)
            .args(words)
            .output();
        assert_eq!(output.unwrap().status.code(), Some(2));
    }
}

/// Detaches the device however the test ends.
struct Loop(String);

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// The kernel locks no file below a loop device, and lets everybody open a block device who does not ask for it alone.
#[test]
fn what_the_kernel_uses_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let image = home.path().join("image");
    std::fs::write(&image, vec![7; LEN]).unwrap();
    let made = Command::new("losetup").args(["--find", "--show"]).arg(&image).output();
    let Some(output) = made.ok().filter(|output| output.status.success()) else {
        eprintln!("skipped: no loop device to be had");
        return;
    };
    let device = Loop(String::from_utf8(output.stdout).unwrap().trim().to_string());
    let other = home.path().join("other");
    std::fs::hard_link(&image, &other).unwrap();
    let link = home.path().join("link");
    std::os::unix::fs::symlink(&image, &link).unwrap();
    for file in [&image, &other, &link] {
        for words in [&[][..], &["--destroy"]] {
            let output = bench(file, words);
            let told = said(&output);
            assert_eq!(output.status.code(), Some(1), "{}: {told}", file.display());
            assert!(told.contains("in use") && told.contains(&device.0), "{told}");
        }
    }
    let on_it = Path::new(&device.0);
    let alone = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(on_it).unwrap();
    for words in [&[][..], &["--destroy"]] {
        let output = bench(on_it, words);
        assert_eq!(output.status.code(), Some(1), "in use: {}", said(&output));
    }
    drop(alone);
    let output = bench(on_it, &[]);
    assert!(output.status.success(), "{}", said(&output));
    drop(device);
    assert!(std::fs::read(&image).unwrap() == vec![7; LEN]);
    let output = bench(&other, &["--destroy"]);
    assert!(output.status.success(), "of nobody any more: {}", said(&output));
}
