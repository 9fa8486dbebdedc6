//! Every kind of structure can be printed, as text and as JSON, on good and on damaged volumes.

#[path = "fsck/lab.rs"]
#[allow(dead_code, reason = "shared with the tests of fsck")]
mod lab;

use block::dump::{What, run};
use lab::Lab;
use std::sync::Arc;

fn dump(lab: &Lab, what: &str, json: bool) -> fs::Result<String> {
    let mut out = Vec::new();
    run(lab.clone_image(), &What::parse(what)?, json, &mut out)?;
    Ok(String::from_utf8(out).unwrap())
}

#[test]
fn everything_in_words_and_json() {
    for lab in [Lab::clean(), Lab::crashed()] {
        for what in [
            "superblock",
            "checkpoints",
            "table",
            "log",
            "inode 1",
            "block 0",
            "block 2",
            "block 16",
            "segment 0",
        ] {
            let text = dump(&lab, what, false).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(!text.is_empty());
            let json = dump(&lab, what, true).unwrap();
            serde_json::from_str::<serde_json::Value>(&json)
                .unwrap_or_else(|e| panic!("{what}: {e}\n{json}"));
        }
        let of = |path: &str| dump(&lab, path, false).unwrap_or_else(|e| panic!("{path}: {e}"));
        assert!(of("/a/inline").contains("size: 1234"));
        assert!(of("path /b/sub/scattered").contains("tree:"));
        assert!(of("/a/third name").contains("xattr_bytes: 9"));
        assert!(of("/a/short link").contains("inline: sub/deep"));
        let (nodes, xattrs) = lab.outside();
        assert!(of(&format!("block {}", nodes[0])).contains("structure: extent node"));
        assert!(of(&format!("block {}", xattrs[0])).contains("structure: extended attributes"));
        let segment = nodes[0] / 512;
        let text = of(&format!("segment {segment}"));
        assert!(text.contains("role: data") && text.contains("owners:"), "{text}");
        assert!(of("segment 1").contains("log, place 0"));
        assert!(dump(&lab, "/a/nothing", false).is_err() && dump(&lab, "block 99999999", false).is_err());
    }
    assert!(dump(&Lab::crashed(), "log", false).unwrap().contains("logged_pages:"));
}

#[test]
fn says_what_it_does_not_understand() {
    for bad in ["", "inode", "inode x", "segment -1", "superblock 3", "everything", "segment 99999999999"] {
        assert!(What::parse(bad).is_err(), "{bad}");
    }
}

/// Who makes a file need not be who looks at it, on a terminal.
#[test]
fn control_characters_are_written_out() {
    let media = Arc::new(media::RamMedia::new(64 << 20).unwrap());
    block::mkfs(media.clone(), &Default::default()).unwrap();
    let volume = block::Volume::open(media.clone(), Default::default()).unwrap();
    let client = fs::Client::new(Arc::new(volume.clone()), fs::Cred::root()).blocking();
    let path = "/\x1b[2J";
    client.write(path, b"\x1b]0;title\x07").unwrap();
    client.set_xattr(path, "user.x", b"\x9b31m", fs::XattrFlags::empty()).unwrap();
    volume.close_blocking().unwrap();
    let (mut text, what) = (Vec::new(), What::parse(path).unwrap());
    run(media, &what, false, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("\\u{1b}[2J") && text.contains("\\u{1b}]0;title\\u{7}"), "{text}");
    assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text}");
}
