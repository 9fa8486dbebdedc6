//! The checkers find mistakes: the model against itself passes, and against variants with one mistake it does not.

mod wrong;

use fs::{Cred, FileSystem, Ino, OpenFlags, SetAttr, Time, XattrFlags, block_on};
use sim::compare::{self, Options};
use sim::differential::{Settings, Side, Trouble, assert_same, check};
use sim::{Blocking, Knobs, Model, Ticking, Tolerance, system_clock};
use wrong::{Mistake, Wrong};

const STRICT: Settings =
    Settings { tolerance: Tolerance::NONE, tree_every: 500, close_at_end: true, trouble: Trouble::NONE };

fn right() -> Side<Model, Ticking> {
    let driver = Ticking::default();
    Side::new(Model::new(driver.0.clock()), driver)
}

fn wrong(mistake: Mistake) -> Side<Wrong, Ticking> {
    let driver = Ticking::default();
    Side::new(Wrong::new(Model::new(driver.0.clock()), mistake), driver)
}

#[test]
fn the_model_is_the_same_as_itself() {
    let all = [Knobs::everything(), Knobs::name_heavy(), Knobs::data_heavy(), Knobs::crash(), Knobs::host()];
    for knobs in all {
        assert_same(right, right, 0..3, knobs, 2000, STRICT);
    }
}

#[test]
fn every_mistake_is_found_and_made_small() {
    use Mistake::*;
    let all = [
        LosesWrite,
        ForgetsCtime,
        RemovesForAll,
        Replaces,
        ListsTwice,
        KeepsXattr,
        KeepsHole,
        MiscountsLinks,
        SharesLocks,
        OtherErrno,
    ];
    for mistake in all {
        let found = (1..=5)
            .find_map(|seed| check(right, || wrong(mistake), seed, Knobs::everything(), 4000, STRICT).err());
        let failure = found.unwrap_or_else(|| panic!("{mistake:?} was not found"));
        println!("{mistake:?}: {failure}\n");
        // A lost write needs the fifty writes that lead to it.
        let most = if mistake == LosesWrite { 400 } else { 12 };
        assert!(failure.ops.len() <= most, "{mistake:?}: {} operations are left", failure.ops.len());
        assert!(failure.to_string().contains(&format!("seed {}", failure.seed)));
    }
}

/// A small tree: a directory with a file that has two names and an attribute, a symlink.
fn tree() -> Model {
    let fs = Model::new(system_clock());
    let root = Cred::root();
    block_on(async {
        let dir = fs.mkdir(&root, Ino::ROOT, b"dir", 0o755).await?;
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let (file, handle) = fs.create(&root, dir.ino, b"file", 0o644, flags).await?;
        fs.write(handle, 10_000, b"contents").await?;
        fs.write(handle, 1 << 40, b"far").await?;
        fs.release(handle).await?;
        fs.setxattr(&root, file.ino, b"user.a", b"value", XattrFlags::empty()).await?;
        fs.link(&root, file.ino, Ino::ROOT, b"other").await?;
        fs.symlink(&root, dir.ino, b"link", b"file").await?;
        fs::Result::Ok(())
    })
    .unwrap();
    fs
}

#[test]
fn a_tree_is_the_same_as_its_snapshot_and_survives_a_mount() {
    let fs = tree();
    let snapshot = fs.snapshot();
    let all = Options { times: true, atime: true };
    compare::tree_with(&Blocking, &fs, &snapshot, all).unwrap();
    let again = Model::from_snapshot(&snapshot, system_clock());
    compare::tree_with(&Blocking, &again, &snapshot, Options { times: true, atime: false }).unwrap();
}

#[test]
fn every_difference_between_trees_is_found() {
    type Change = fn(&Model, Ino, Ino) -> fs::Result<()>;
    let changes: [(&str, &str, Change); 9] = [
        ("/new", "name", |fs, _, _| {
            block_on(fs.symlink(&Cred::root(), Ino::ROOT, b"new", b"file")).map(|_| ())
        }),
        ("/dir/link", "name", |fs, dir, _| block_on(fs.unlink(&Cred::root(), dir, b"link"))),
        ("/dir/file", "permission bits", |fs, _, file| {
            let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
            block_on(fs.setattr(&Cred::root(), file, set)).map(|_| ())
        }),
        ("/dir/file", "owner", |fs, _, file| {
            let set = SetAttr { uid: Some(7), ..SetAttr::default() };
            block_on(fs.setattr(&Cred::root(), file, set)).map(|_| ())
        }),
        ("/dir/file", "contents at offset 10003", |fs, _, file| {
            let handle = block_on(fs.open(&Cred::root(), file, OpenFlags::WRITE))?;
            block_on(fs.write(handle, 10_003, b"X")).map(|_| ())
        }),
        ("/dir/file", "size", |fs, _, file| {
            let set = SetAttr { size: Some(20_000), ..SetAttr::default() };
            block_on(fs.setattr(&Cred::root(), file, set)).map(|_| ())
        }),
        ("/dir/file", "attribute user.a", |fs, _, file| {
            block_on(fs.setxattr(&Cred::root(), file, b"user.a", b"else", XattrFlags::empty()))
        }),
        ("/dir/file", "links", |fs, dir, file| {
            block_on(fs.link(&Cred::root(), file, dir, b"third")).map(|_| ())
        }),
        ("/dir/file", "mtime", |fs, _, file| {
            let mtime = Some(fs::SetTime::At(Time { sec: 5, nsec: 5 }));
            let set = SetAttr { mtime, ..SetAttr::default() };
            block_on(fs.setattr(&Cred::root(), file, set)).map(|_| ())
        }),
    ];
    for (path, what, change) in changes {
        let model = tree();
        let before = model.snapshot();
        let dir = block_on(model.lookup(&Cred::root(), Ino::ROOT, b"dir")).unwrap().ino;
        let file = block_on(model.lookup(&Cred::root(), dir, b"file")).unwrap().ino;
        change(&model, dir, file).unwrap();
        let options = Options { times: what == "mtime", atime: false };
        let difference = compare::tree_with(&Blocking, &model, &before, options).unwrap_err();
        println!("{difference}");
        assert_eq!((&difference.path[..], &difference.what[..]), (path, what));
        // The right one of several snapshots is found.
        let candidates = [before, model.snapshot()];
        assert_eq!(compare::one_of(&Blocking, &model, &candidates, options), Ok(1));
    }
}
