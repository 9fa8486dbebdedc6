//! fsck and dump by their commands: exit codes, what is said about damage and what is to be done, and `fsck.freehold`.

mod common;

use common::{Place, Said, make_tree};
use std::os::unix::fs::FileExt;
use std::process::Command;

/// The image of a volume with some files, closed.
fn filled(p: &Place) -> std::path::PathBuf {
    let image = p.volume("a.img");
    make_tree(&p.mkdir("src"));
    p.line("cp -r src a.img:/").ok();
    image
}

/// Flips bytes in the middle of blocks.
fn damage(image: &std::path::Path, blocks: &[u64]) {
    let file = std::fs::File::options().read(true).write(true).open(image).unwrap();
    for block in blocks {
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, block * 4096 + 40).unwrap();
        file.write_all_at(&bytes.map(|b| !b), block * 4096 + 40).unwrap();
    }
}

/// The block of the inode at a path.
fn block_of(p: &Place, path: &str) -> u64 {
    let table: serde_json::Value = serde_json::from_str(&p.line("dump --json a.img table").ok()).unwrap();
    let inode: serde_json::Value =
        serde_json::from_str(&p.line(&format!("dump --json a.img {path}")).ok()).unwrap();
    let segment = table["segments"][0]["segment"].as_u64().expect("a number");
    segment * 512 + inode["fields"]["ino"].as_u64().unwrap()
}

#[track_caller]
fn ends(said: Said, code: i32, out: &[&str], err: &[&str]) {
    assert_eq!(said.code, Some(code), "{said:?}");
    assert!(out.iter().all(|part| said.out.contains(part)), "{out:?} not all in {said:?}");
    assert!(err.iter().all(|part| said.err.contains(part)), "{err:?} not all in {said:?}");
    assert!(!said.err.contains("panicked"), "{said:?}");
}

#[test]
fn healthy_volumes_are_clean() {
    let p = Place::new();
    filled(&p);
    ends(p.line("fsck a.img"), 0, &["a.img: ", "4 directories", ": clean\n"], &[]);
    ends(p.line("fsck --repair a.img"), 0, &[": clean\n"], &[]);
    let report: serde_json::Value = serde_json::from_str(&p.line("fsck --json a.img").ok()).unwrap();
    assert_eq!(report["problems"].as_array().unwrap().len(), 0);
    assert_eq!(report["stopped_cleanly"], true);
}

#[test]
fn damage_is_told_and_repaired() {
    let p = Place::new();
    let image = filled(&p);
    damage(&image, &[0, block_of(&p, "/src/small"), block_of(&p, "/src/d")]);
    let copy = std::fs::read(&image).unwrap();
    let said = p.line("fsck a.img");
    ends(
        said,
        4,
        &["damage: superblock", "damage: inode", "lost: "],
        &["freehold fsck --repair a.img", "copy"],
    );
    assert_eq!(copy, std::fs::read(&image).unwrap(), "nothing is written without --repair");
    let said = p.line("fsck --repair a.img");
    assert!(!said.out.contains("; repaired"), "said once only: {said:?}");
    ends(said, 1, &["repaired: superblock", "lost+found"], &[]);
    ends(p.line("fsck a.img"), 0, &[": clean\n"], &[]);
    p.line("cat a.img:/src/small").fails(&["does not exist"]);
    p.line("ls a.img:/src/d").fails(&["does not exist"]);
    // Its files are kept, whatever they are called now.
    let all = p.line("ls -lR a.img:/lost+found").ok();
    assert!(all.contains("12000000"), "{all}");
}

#[test]
fn other_commands_point_to_it() {
    let p = Place::new();
    let image = filled(&p);
    damage(&image, &[2, 3]);
    let dir = p.mkdir("d");
    for line in ["ls a.img", "df a.img", "cat a.img:/src/small", "cp a.img:/src/small ."] {
        p.line(line).fails(&["a.img is damaged", "freehold fsck a.img"]);
    }
    assert!(dir.exists());
    // Both copies are lost: what is told must not promise a repair.
    ends(p.line("fsck a.img"), 4, &["fatal: checkpoint"], &["beyond what can be repaired", "backup"]);
    ends(p.line("fsck --repair a.img"), 4, &["fatal: checkpoint"], &["beyond what can be repaired"]);
}

#[test]
fn what_cannot_be_checked() {
    let p = Place::new();
    let image = filled(&p);
    ends(p.line("fsck none.img"), 8, &[], &["does not exist"]);
    ends(p.line("fsck ."), 8, &[], &["neither an image file"]);
    std::fs::write(p.path("zeros"), vec![0; 64 << 20]).unwrap();
    ends(p.line("fsck --repair zeros"), 8, &[], &["zeros holds no Freehold volume"]);
    std::fs::write(p.path("short"), [1; 8192]).unwrap();
    ends(p.line("fsck short"), 8, &[], &["short holds no Freehold volume"]);
    ends(p.line("fsck"), 16, &[], &["Usage"]);
    ends(p.line("fsck --wibble a.img"), 16, &[], &["--wibble"]);
    ends(p.line("fsck --help"), 0, &["Exit codes"], &[]);
    let volume = freehold::open(&image, Default::default()).unwrap();
    ends(p.line("fsck a.img"), 8, &[], &["in use", "process"]);
    volume.close_blocking().unwrap();
    drop(volume);
    // Also to less than any volume has: nobody shall be told to make a new one there.
    for length in [60 << 20, 20 << 20, 8192] {
        std::fs::File::options().write(true).open(&image).unwrap().set_len(length).unwrap();
        ends(p.line("fsck a.img"), 8, &["shorter"], &["cut off"]);
        p.line("ls a.img").fails(&["cut off"]);
    }
}

#[test]
fn as_helper_of_fsck() {
    let p = Place::new();
    let image = filled(&p);
    let helper = p.path("fsck.freehold");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_freehold"), &helper).unwrap();
    let run = |args: &str| -> Said {
        Command::new(&helper).args(args.split_whitespace()).current_dir(p.path("")).output().unwrap().into()
    };
    ends(run("-a a.img"), 0, &["clean"], &[]);
    damage(&image, &[1]);
    ends(run("-n a.img"), 4, &["damage: superblock"], &["fsck.freehold: a.img is damaged"]);
    ends(run("-a -C0 a.img"), 1, &["repaired: superblock"], &[]);
    ends(run("-p -f a.img"), 0, &["clean"], &[]);
    ends(run("-V"), 0, &["fsck.freehold"], &[]);
    ends(run("-q a.img"), 16, &[], &["-q"]);
    ends(run(""), 16, &[], &["usage"]);
    ends(run("-a none.img"), 8, &[], &["does not exist"]);
}

#[test]
fn dump_shows_any_structure() {
    let p = Place::new();
    filled(&p);
    for what in [
        "superblock",
        "checkpoints",
        "table",
        "log",
        "inode 1",
        "block 0",
        "segment 1",
        "path /src/d",
        "/src/small",
    ] {
        assert!(!p.line(&format!("dump a.img {what}")).ok().is_empty());
        let text = p.line(&format!("dump --json a.img {what}")).ok();
        serde_json::from_str::<serde_json::Value>(&text).unwrap_or_else(|e| panic!("{what}: {e}: {text}"));
    }
    assert!(p.line("dump a.img /src/small").ok().contains("size: 5"));
    p.line("dump a.img inode 99999").fails(&["no inode 99999"]);
    p.line("dump a.img /src/none").fails(&["no /src/none"]);
    p.line("dump a.img block 99999999").fails(&["block 99999999", "beyond the volume"]);
    p.line("dump none.img log").fails(&["does not exist"]);
    for wrong in ["wibble", "inode", "inode x", "inode -- -1", "segment 99999999999", "path", "superblock 1"]
    {
        ends(p.line(&format!("dump a.img {wrong}")), 2, &[], &["dump --help"]);
    }
    ends(p.line("dump a.img"), 2, &[], &["WHAT"]);
}
