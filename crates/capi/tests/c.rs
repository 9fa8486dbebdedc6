//! The C library from C: `api.c` is compiled, linked with the library and run against a served volume in memory, `bucket.c` against a simulated
//! store; the header is compiled as C99 and as C++. Skipped where there is no compiler.
//!
//! Does not verify the static library, which has the same functions.

use sim::s3::{BUCKET, Faults, Features, KEY_ID, Server};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-pedantic", "-Werror"];

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn there_is(compiler: &str) -> bool {
    let found = Command::new(compiler).arg("--version").output().is_ok_and(|o| o.status.success());
    if !found {
        eprintln!("skipped: there is no {compiler}");
    }
    found
}

/// Builds the library as this test was built, and says where it is: cargo builds it for no test by itself. The command's package is built with it
/// because then all that they are made of has the features with which it was built for the tests, and is not built once more.
fn library() -> PathBuf {
    let profile = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_path_buf();
    let mut cargo = Command::new(env!("CARGO"));
    // What cargo says of this test: build scripts that look at such variables would run again, here and the next time without them.
    let said = |(name, _): &(OsString, OsString)| {
        ["CARGO_MANIFEST", "CARGO_PKG"].iter().any(|begin| name.to_string_lossy().starts_with(begin))
    };
    std::env::vars_os().filter(said).for_each(|(name, _)| _ = cargo.env_remove(name));
    cargo.args(["build", "--quiet", "--offline", "--lib", "-p", "freehold-capi", "-p", "freehold"]);
    cargo.current_dir(here()).arg("--target-dir").arg(profile.parent().unwrap());
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    run(&mut cargo);
    assert!(profile.join("libfreehold.so").exists(), "no libfreehold.so in {}", profile.display());
    profile
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&output.stderr));
}

/// A program of this folder, linked with the library.
fn compiled(name: &str, to: &Path) -> PathBuf {
    let (program, library) = (to.join(name), library());
    let mut cc = Command::new("cc");
    cc.args(WARNINGS).args(["-std=c99", "-g", "-pthread", "-I"]).arg(here().join("include"));
    cc.arg(here().join("tests").join(name).with_extension("c")).arg("-o").arg(&program);
    cc.arg("-L").arg(&library).arg("-lfreehold").arg(format!("-Wl,-rpath,{}", library.display()));
    run(&mut cc);
    program
}

#[test]
fn the_header_is_c99_and_cpp() {
    let dir = tempfile::tempdir().unwrap();
    let unit =
        "#include <freehold.h>\n#include <freehold.h>\nint main(void) { return fh_disconnect(0) == 0; }\n";
    for (compiler, standard, file) in [("cc", "-std=c99", "a.c"), ("c++", "-std=c++11", "a.cpp")] {
        if there_is(compiler) {
            let file = dir.path().join(file);
            std::fs::write(&file, unit).unwrap();
            let include = here().join("include");
            run(Command::new(compiler)
                .args(WARNINGS)
                .args([standard, "-fsyntax-only", "-I"])
                .arg(include)
                .arg(file));
        }
    }
}

#[test]
fn a_c_program_uses_a_served_volume() {
    if !there_is("cc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = compiled("api", dir.path());
    let media = Arc::new(media::ram::RamMedia::new(256 << 20).unwrap());
    block::mkfs(media.clone(), &block::MkfsOptions::default()).unwrap();
    let volume = Arc::new(block::Volume::open(media, block::OpenOptions::default()).unwrap());
    let socket = dir.path().join("socket");
    let server = share::Server::start(volume.clone(), &socket, share::server::Options::default()).unwrap();

    let mut child = Command::new(&program)
        .arg(&socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = lines.next();
    if matches!(&ready, Some(Ok(line)) if line == "ready") {
        server.stop();
        child.stdin.take().unwrap().write_all(b"stopped\n").unwrap();
    }
    let last = lines.next();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!((ready.unwrap().unwrap().as_str(), last.unwrap().unwrap().as_str()), ("ready", "done"));
    // Those of its files; on descriptors it asked for others, which are nothing to the volume.
    assert_eq!(volume.counters().barriers, 2);
    volume.close_blocking().unwrap();
}

#[test]
fn a_c_program_uses_a_bucket() {
    if !there_is("cc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = compiled("bucket", dir.path());
    let store = Server::start(Features::ALL, Faults::none()).unwrap();
    let body = |key: &str| store.look(|bucket| bucket.objects().get(key).map(|o| o.body.to_vec()));

    let mut child = Command::new(&program)
        .args([format!("s3://{BUCKET}/below"), store.endpoint()])
        .envs([("AWS_ACCESS_KEY_ID", KEY_ID), ("AWS_SECRET_ACCESS_KEY", "testersecret")])
        .env("HOME", dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let closed = lines.next();
    let seen = body("below/d/note");
    let _ = child.stdin.take().unwrap().write_all(b"seen\n");
    let last = lines.next();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!((closed.unwrap().unwrap().as_str(), last.unwrap().unwrap().as_str()), ("closed", "done"));
    assert_eq!(seen.as_deref(), Some(&b"hello again"[..]), "in the store when it is closed");
    assert_eq!((body("below/last").as_deref(), body("below/lost")), (Some(&b"xy"[..]), None));
    assert_eq!(body("below/d/moved").as_deref(), Some(&b"hello again"[..]));
    assert_eq!((0..200).filter(|i| body(&format!("below/d/q{i:03}")).is_some()).count(), 200);
}
