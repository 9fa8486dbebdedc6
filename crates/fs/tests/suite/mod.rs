//! What the client promises, over any empty file system of root's.

use fs::client::SeekTo;
use fs::*;
use std::ffi::OsStr;
use std::io::{Read, Seek as _, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

fn root<F: FileSystem>(fs: Arc<F>) -> Blocking<F> {
    let mut client = Client::new(fs, Cred::root());
    client.set_umask(0);
    client.blocking()
}

fn user<F: FileSystem>(fs: &Arc<F>, uid: u32) -> Blocking<F> {
    Client::new(fs.clone(), Cred::user(uid, uid, &[])).blocking()
}

const READ: OpenOptions = OpenOptions::new().read(true);
const WRITE: OpenOptions = OpenOptions::new().write(true);
const CREATE: OpenOptions = WRITE.create(true);
const NONE: RenameFlags = RenameFlags::empty();

pub fn paths<F: FileSystem>(fs: Arc<F>) {
    let mut c = root(fs);
    c.create_dir_all("a/b").unwrap();
    c.write("a/b/f", "x").unwrap();
    let f = c.stat("a/b/f").unwrap();
    for path in ["/a/b/f", "//a//b///f", "a/./b/f", "a/b/../b/f", "../../a/b/f", "/../a/b/f", "./a/b/./f"] {
        assert_eq!(c.stat(path).map(|a| a.ino), Ok(f.ino), "{path}");
    }
    assert_eq!(c.stat("/").unwrap().ino, Ino::ROOT);
    assert_eq!(c.stat("..").unwrap().ino, Ino::ROOT);
    assert_eq!(c.stat("a/b/../..").unwrap().ino, Ino::ROOT);
    for (path, error) in [
        ("", Error::NotFound),
        ("x", Error::NotFound),
        ("x/f", Error::NotFound),
        ("x/../a", Error::NotFound),
        ("a/b/f/", Error::NotDirectory),
        ("a/b/f/g", Error::NotDirectory),
        ("a/b/f/.", Error::NotDirectory),
        ("a/b/f/..", Error::NotDirectory),
    ] {
        assert_eq!(c.stat(path), Err(error), "{path}");
    }
    assert!(matches!(c.stat("a\0b"), Err(Error::Invalid(_))));
    c.change_dir("a").unwrap();
    assert_eq!(c.stat("b/f").unwrap().ino, f.ino);
    assert_eq!(c.change_dir("b/f"), Err(Error::NotDirectory));
    c.change_root(".").unwrap();
    assert_eq!(c.stat("/b/f").unwrap().ino, f.ino);
    assert_eq!(c.stat("/../../a"), Err(Error::NotFound));
    c.symlink("/../b", "l").unwrap();
    assert_eq!(c.stat("b/../l/f").unwrap().ino, f.ino);
}

pub fn symlinks<F: FileSystem>(fs: Arc<F>) {
    let c = root(fs);
    c.create_dir_all("d/e").unwrap();
    c.write("d/e/f", "x").unwrap();
    let ino = c.stat("d/e/f").unwrap().ino;
    c.symlink("d/e", "rel").unwrap();
    c.symlink("/d/e/", "abs").unwrap();
    c.symlink("../rel/f", "d/up").unwrap();
    c.symlink("f/", "d/e/slash").unwrap();
    c.symlink("nowhere", "dangling").unwrap();
    for path in ["rel/f", "abs/f", "d/up", "rel/../up", "d/e/../../abs/f", "rel//f"] {
        assert_eq!(c.stat(path).map(|a| a.ino), Ok(ino), "{path}");
    }
    assert_eq!(c.lstat("rel").unwrap().kind, FileType::Symlink);
    assert_eq!(c.lstat("rel/").unwrap().kind, FileType::Directory);
    assert_eq!(c.lstat("d/up/"), Err(Error::NotDirectory));
    assert_eq!(c.stat("d/e/slash"), Err(Error::NotDirectory));
    assert_eq!(c.stat("dangling"), Err(Error::NotFound));
    assert_eq!(c.lstat("dangling/"), Err(Error::NotFound));
    assert_eq!(c.exists("dangling"), Ok(false));
    assert_eq!(c.readlink("abs").unwrap().to_str(), Some("/d/e/"));
    assert!(matches!(c.readlink("d"), Err(Error::Invalid(_))));
    // 40 symlinks are followed and 41 are not, wherever in the path they are.
    c.symlink("d", "l0").unwrap();
    for i in 1..=40 {
        c.symlink(format!("l{}", i - 1), format!("l{i}")).unwrap();
    }
    assert_eq!(c.stat("l39/e/f").unwrap().ino, ino);
    assert_eq!(c.stat("l40"), Err(Error::SymlinkLoop));
    assert_eq!(c.stat("l38/../l0/e/f").unwrap().ino, ino);
    assert_eq!(c.stat("l38/../l1/e"), Err(Error::SymlinkLoop));
    c.symlink("self/x", "self").unwrap();
    assert_eq!(c.stat("self"), Err(Error::SymlinkLoop));
    assert_eq!(c.open("self", CREATE).err(), Some(Error::SymlinkLoop));
}

pub fn long_paths<F: FileSystem>(fs: Arc<F>) {
    let c = root(fs);
    let name = "n".repeat(255);
    c.mkdir(&name, 0o777).unwrap();
    assert_eq!(c.mkdir("n".repeat(256), 0o777), Err(Error::NameTooLong));
    assert_eq!(c.stat(format!("{name}/{}/x", "n".repeat(256))), Err(Error::NameTooLong));
    assert_eq!(c.stat(format!("missing/{}", "n".repeat(256))), Err(Error::NotFound));
    let dots = "./".repeat(2047);
    assert_eq!(c.stat(&dots).unwrap().ino, Ino::ROOT);
    assert_eq!(c.stat(format!("{dots}.")).unwrap().ino, Ino::ROOT);
    assert_eq!(c.stat(format!("{dots}//")), Err(Error::NameTooLong));
}

pub fn opening<F: FileSystem>(fs: Arc<F>) {
    let c = root(fs);
    c.mkdir("d", 0o755).unwrap();
    c.write("f", "data").unwrap();
    c.symlink("f", "l").unwrap();
    c.symlink("d", "ld").unwrap();
    c.mknod("fifo", libc::S_IFIFO | 0o666, 0).unwrap();
    let err = |path: &str, options| c.open(path, options).err();
    assert_eq!(err("x", READ), Some(Error::NotFound));
    assert_eq!(err("l", READ), None);
    assert_eq!(err("l", READ.nofollow(true)), Some(Error::SymlinkLoop));
    assert_eq!(err("l", CREATE.nofollow(true)), Some(Error::SymlinkLoop));
    assert_eq!(err("ld", READ.nofollow(true).directory(true)), Some(Error::NotDirectory));
    assert_eq!(err("ld", READ.directory(true)), None);
    assert_eq!(err("f", READ.directory(true)), Some(Error::NotDirectory));
    assert_eq!(err("d", READ), None);
    assert_eq!(err("d", WRITE), Some(Error::IsDirectory));
    for path in ["d", "d/", "new/", ".", "/", "d/.."] {
        assert_eq!(err(path, READ.create(true)), Some(Error::IsDirectory), "{path}");
    }
    assert_eq!(err("f", WRITE.create_new(true)), Some(Error::Exists));
    assert_eq!(err("l", WRITE.create_new(true)), Some(Error::Exists));
    assert_eq!(err(".", WRITE.create_new(true)), Some(Error::Exists));
    assert!(matches!(err("fifo", READ), Some(Error::NotSupported(_))));
    for options in [OpenOptions::new(), READ.truncate(true), CREATE.directory(true), READ.tmpfile(true)] {
        assert!(matches!(err("f", options), Some(Error::Invalid(_))));
    }
    assert_eq!(c.read("f").unwrap(), b"data");
    drop(c.open("l", WRITE.truncate(true)).unwrap());
    assert_eq!(c.stat("f").unwrap().size, 0);
    let file = c.open("f", READ).unwrap();
    assert_eq!(file.write_at(b"x", 0), Err(Error::BadHandle));
    assert_eq!(file.set_len(3), Err(Error::BadHandle));
    assert_eq!(file.append(b"x"), Err(Error::BadHandle));
    file.close().unwrap();
    let dir = c.open("d", READ).unwrap();
    c.at(&dir).write("inside", "").unwrap();
    assert!(c.exists("d/inside").unwrap());
    dir.fsync().unwrap();
}

pub fn creating_through_symlinks<F: FileSystem>(fs: Arc<F>) {
    let c = root(fs);
    c.mkdir("d", 0o755).unwrap();
    c.symlink("d/target", "l").unwrap();
    c.symlink("../l", "d/l2").unwrap();
    c.write("d/l2", "new").unwrap();
    assert_eq!(c.lstat("d/target").unwrap().kind, FileType::Regular);
    assert_eq!(c.read("l").unwrap(), b"new");
    c.symlink("missing/target", "bad").unwrap();
    assert_eq!(c.open("bad", CREATE).err(), Some(Error::NotFound));
    c.symlink("d/slash/", "slash").unwrap();
    assert_eq!(c.open("slash", CREATE).err(), Some(Error::IsDirectory));
    c.symlink("d", "dir").unwrap();
    assert_eq!(c.open("dir", CREATE).err(), Some(Error::IsDirectory));
    assert_eq!(c.mkdir("bad", 0o777), Err(Error::Exists));
}

pub fn names<F: FileSystem>(fs: Arc<F>) {
    let c = root(fs);
    c.mkdir("d", 0o755).unwrap();
    c.write("f", "1").unwrap();
    c.write("g", "2").unwrap();
    c.symlink("f", "l").unwrap();
    assert_eq!(c.link("f", "d/f").unwrap().nlink, 2);
    assert_eq!(c.link("l", "l2").unwrap().kind, FileType::Symlink);
    assert_eq!(c.link_followed("l", "l3").unwrap().nlink, 3);
    assert_eq!(c.link("d", "e"), Err(Error::NotPermitted));
    assert_eq!(c.link("f", "g"), Err(Error::Exists));
    c.unlink("l3").unwrap();
    assert_eq!(c.rename("f", "g", RenameFlags::NOREPLACE), Err(Error::Exists));
    c.rename("f", "g", RenameFlags::EXCHANGE).unwrap();
    assert_eq!((c.read("f").unwrap(), c.read("g").unwrap()), (b"2".to_vec(), b"1".to_vec()));
    c.rename("g", "d/g", NONE).unwrap();
    assert_eq!(c.stat("g"), Err(Error::NotFound));
    for path in [".", "..", "/", "d/.."] {
        assert_eq!(c.mkdir(path, 0o777), Err(Error::Exists), "{path}");
        assert_eq!(c.symlink("x", path), Err(Error::Exists), "{path}");
        assert_eq!(c.unlink(path), Err(Error::IsDirectory), "{path}");
        assert!(matches!(c.rename(path, "x", NONE), Err(Error::Busy(_))), "{path}");
        assert!(matches!(c.rename("f", path, NONE), Err(Error::Busy(_))), "{path}");
    }
    assert!(matches!(c.rmdir("/"), Err(Error::Busy(_))));
    assert!(matches!(c.rmdir("d/."), Err(Error::Invalid(_))));
    assert_eq!(c.rmdir("d/.."), Err(Error::NotEmpty));
    assert_eq!(c.rmdir("d"), Err(Error::NotEmpty));
    assert_eq!(c.rmdir("f"), Err(Error::NotDirectory));
    assert_eq!(c.unlink("d"), Err(Error::IsDirectory));
    c.unlink("d/f").unwrap();
    c.unlink("d/g").unwrap();
    c.rmdir("d/").unwrap();
    assert_eq!(c.mknod("x", 0o644, 0).unwrap().kind, FileType::Regular, "no type means a regular file");
    assert_eq!(c.mknod("s", libc::S_IFSOCK | 0o644, 0).unwrap().kind, FileType::Socket);
}

pub fn trailing_slashes<F: FileSystem>(fs: Arc<F>) {
    let c = root(fs);
    c.mkdir("d/", 0o755).unwrap();
    c.write("f", "").unwrap();
    assert_eq!(c.symlink("x", "new/"), Err(Error::NotFound));
    assert_eq!(c.symlink("x", "f/"), Err(Error::Exists));
    assert_eq!(c.link("f", "new/"), Err(Error::NotFound));
    assert_eq!(c.unlink("f/"), Err(Error::NotDirectory));
    assert_eq!(c.unlink("d/"), Err(Error::IsDirectory));
    assert_eq!(c.unlink("new/"), Err(Error::NotFound));
    assert_eq!(c.rename("f/", "g", NONE), Err(Error::NotDirectory));
    assert_eq!(c.rename("f", "g/", NONE), Err(Error::NotDirectory));
    assert_eq!(c.rename("d", "f/", RenameFlags::EXCHANGE), Err(Error::NotDirectory));
    c.rename("d/", "e/", NONE).unwrap();
    c.rename("f", "e/", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(c.stat("f").unwrap().kind, FileType::Directory);
}

pub fn whole_files<F: FileSystem>(fs: Arc<F>) {
    let c = root(fs);
    let data: Vec<u8> = (0..200_000u32).map(|i| i as u8).collect();
    c.write("f", &data).unwrap();
    assert_eq!(c.read("f").unwrap(), data);
    c.chmod("f", 0o640).unwrap();
    c.write("g", "longer than nothing").unwrap();
    assert_eq!(c.copy("f", "g").unwrap(), data.len() as u64);
    assert_eq!(c.read("g").unwrap(), data);
    assert_eq!(c.stat("g").unwrap().perm, 0o640);
    assert!(matches!(c.copy("f", "./f"), Err(Error::Invalid(_))));
    assert_eq!(c.read("f").unwrap().len(), data.len());
    assert_eq!(c.read("/"), Err(Error::IsDirectory));
    assert_eq!(c.truncate("f", 5).unwrap().size, 5);
    assert_eq!(c.read("f").unwrap(), &data[..5]);
    c.write("f", "").unwrap();
    assert!(c.read("f").unwrap().is_empty());
    c.sync().unwrap();
    assert_eq!(c.statfs().unwrap().name_max, 255);
}

pub fn cursor<F: FileSystem>(fs: Arc<F>) {
    let c = root(fs);
    let mut f = c.create("f").unwrap();
    f.write_all(b"hello, world").unwrap();
    assert_eq!(f.seek(SeekFrom::End(-5)), Ok(7));
    let mut text = String::new();
    f.read_to_string(&mut text).unwrap();
    assert_eq!(text, "world");
    assert_eq!(f.stream_position().unwrap(), 12);
    assert_eq!(Read::read(&mut f, &mut [0; 4]).unwrap(), 0);
    f.seek(SeekTo::Current(-12)).unwrap();
    let mut five = [0; 5];
    f.read_exact(&mut five).unwrap();
    assert_eq!(&five, b"hello");
    assert!(matches!(f.seek(SeekTo::Current(-6)), Err(Error::Invalid(_))));
    assert!(matches!(f.seek(SeekTo::Start(u64::MAX)), Err(Error::Invalid(_))));
    assert_eq!(f.seek(SeekTo::Hole(0)), Ok(12));
    assert_eq!(f.seek(SeekTo::Data(3)), Ok(3));
    assert_eq!(f.seek(SeekTo::Data(12)), Err(Error::NoSuchOffset));
    assert_eq!(f.position(), Ok(3), "a failed seek moves nothing");
    f.set_len(2).unwrap();
    f.write_all_at(b"!", 4).unwrap();
    assert_eq!(c.read("f").unwrap(), b"he\0\0!");
    f.fallocate(Fallocate::ZeroRange { keep_size: true }, 0, 1).unwrap();
    let g = c.create("g").unwrap();
    assert_eq!(f.copy_range(0, &g, 1, 99).unwrap(), 5);
    assert_eq!(c.read("g").unwrap(), b"\0\0e\0\0!");
    for result in [f.fsync(), f.fdatasync(), f.fbarrier(), f.fdatabarrier()] {
        result.unwrap();
    }
    assert_eq!(f.metadata().unwrap().size, 5);
    f.close().unwrap();
    g.close().unwrap();
}

pub fn appending<F: FileSystem>(fs: Arc<F>) {
    let c = root(fs);
    let options = OpenOptions::new().read(true).append(true).create(true);
    let (mut one, mut two) = (c.open("f", options).unwrap(), c.open("f", options).unwrap());
    one.write_all(b"a").unwrap();
    two.write_all(b"bc").unwrap();
    assert_eq!(two.position(), Ok(3));
    assert_eq!(one.append(b"d"), Ok(1));
    assert_eq!(one.write_at(b"e", 0), Ok(1));
    assert_eq!(c.read("f").unwrap(), b"abcde");
    assert_eq!(two.read(&mut [0; 9]), Ok(2));
    two.seek(SeekTo::Start(1)).unwrap();
    assert_eq!(two.read(&mut [0; 9]), Ok(4));
}

pub fn directories<F: FileSystem>(fs: Arc<F>) {
    let c = root(fs);
    c.mkdir("d", 0o755).unwrap();
    for i in 0..600 {
        c.write(format!("d/{i}"), "").unwrap();
    }
    let mut names: Vec<_> = c.read_dir("d").unwrap().map(|e| e.unwrap().name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 600);
    assert_eq!(c.read_dir("d").unwrap().dots(true).count(), 602);
    let all: Vec<_> = c.read_dir("d").unwrap().map(Result::unwrap).collect();
    let mut scan = c.read_dir("d").unwrap();
    scan.seek(all[299].next_offset);
    assert_eq!(scan.next().unwrap().unwrap().name, all[300].name);
    assert_eq!(scan.count(), 299);
    // Removing what was read does not disturb the scan.
    for entry in c.read_dir("d").unwrap() {
        let name = entry.unwrap().name;
        c.unlink(std::path::Path::new("d").join(name)).unwrap();
    }
    c.rmdir("d").unwrap();
    c.write("f", "").unwrap();
    assert_eq!(c.read_dir("f").err(), Some(Error::NotDirectory));
    assert!(fs::client::ReadDir::new(File::from(c.open("f", READ).unwrap())).is_err());
}

pub fn trees<F: FileSystem>(fs: Arc<F>) {
    let c = root(fs);
    c.create_dir_all("a/b//c/./d/../e/").unwrap();
    assert_eq!(c.stat("a/b/c/e").unwrap().kind, FileType::Directory);
    c.create_dir_all("/a/b").unwrap();
    c.create_dir_all("/").unwrap();
    assert_eq!(c.create_dir_all(""), Err(Error::NotFound));
    c.write("a/f", "").unwrap();
    assert_eq!(c.create_dir_all("a/f"), Err(Error::Exists));
    assert_eq!(c.create_dir_all("a/f/g"), Err(Error::NotDirectory));
    c.create_dir_all("keep").unwrap();
    c.write("keep/me", "").unwrap();
    c.symlink("../../keep", "a/b/link").unwrap();
    c.create_dir_all("a/b/link/deep/deeper").unwrap();
    assert!(c.exists("keep/deep/deeper").unwrap());
    assert_eq!(c.remove_dir_all("a/f"), Err(Error::NotDirectory));
    assert_eq!(c.remove_dir_all("a/b/link"), Err(Error::NotDirectory));
    c.remove_dir_all("a").unwrap();
    assert!(!c.exists("a").unwrap() && c.exists("keep/me").unwrap());
    assert!(matches!(c.remove_dir_all("/"), Err(Error::Busy(_))));
    assert_eq!(c.remove_dir_all("a"), Err(Error::NotFound));
}

pub fn permissions<F: FileSystem>(fs: Arc<F>) {
    let r = root(fs.clone());
    let (me, other) = (user(&fs, 5), user(&fs, 6));
    r.mkdir("tmp", 0o1777).unwrap();
    me.mkdir("tmp/mine", 0o777).unwrap();
    assert_eq!(me.stat("tmp/mine").unwrap().perm, 0o755, "the umask");
    me.write("tmp/mine/f", "x").unwrap();
    assert_eq!(other.open("tmp/mine/f", WRITE).err(), Some(Error::AccessDenied));
    assert_eq!(other.access("tmp/mine/f", Access::READ), Ok(()));
    assert_eq!(other.access("tmp/mine/f", Access::WRITE), Err(Error::AccessDenied));
    assert_eq!(other.rmdir("tmp/mine"), Err(Error::NotPermitted));
    assert_eq!(other.unlink("tmp/mine/f"), Err(Error::AccessDenied));
    assert_eq!(other.chmod("tmp/mine", 0o777), Err(Error::NotPermitted));
    assert_eq!(me.mkdir("no", 0o777), Err(Error::AccessDenied));
    me.chmod("tmp/mine", 0o600).unwrap();
    assert_eq!(me.stat("tmp/mine/f"), Err(Error::AccessDenied));
    assert_eq!(me.stat("tmp/mine/./f"), Err(Error::AccessDenied));
    assert_eq!(me.clone().change_dir("tmp/mine"), Err(Error::AccessDenied));
    assert!(r.stat("tmp/mine/f").is_ok());
    let f = me.open("tmp/ro", CREATE.mode(0o400)).unwrap();
    assert_eq!(f.write_at(b"still", 0), Ok(5), "the mode does not bind the one who made the file");
    assert_eq!(me.open("tmp/ro", WRITE).err(), Some(Error::AccessDenied));
    assert_eq!(f.set_len(1), Ok(()));
}

pub fn attributes<F: FileSystem>(fs: Arc<F>) {
    let c = root(fs);
    c.write("f", "").unwrap();
    c.symlink("f", "l").unwrap();
    let set = XattrFlags::empty();
    c.set_xattr("l", "user.a", b"1", set).unwrap();
    assert_eq!(c.get_xattr("f", "user.a").unwrap(), b"1");
    assert_eq!(c.list_xattr("l").unwrap(), ["user.a"]);
    assert_eq!(c.set_xattr("f", "user.a", b"2", XattrFlags::CREATE), Err(Error::Exists));
    assert_eq!(c.set_xattr("f", "user.b", b"2", XattrFlags::REPLACE), Err(Error::NoAttribute));
    assert_eq!(c.lset_xattr("l", "user.a", b"1", set), Err(Error::NotPermitted));
    c.lset_xattr("l", OsStr::from_bytes(b"trusted.\xff"), b"1", set).unwrap();
    assert_eq!(c.llist_xattr("l").unwrap().len(), 1);
    c.lremove_xattr("l", OsStr::from_bytes(b"trusted.\xff")).unwrap();
    c.remove_xattr("l", "user.a").unwrap();
    assert_eq!(c.get_xattr("f", "user.a"), Err(Error::NoAttribute));
    assert_eq!(c.lget_xattr("l", "user.a"), Err(Error::NoAttribute));
    assert!(matches!(c.get_xattr("f", "a"), Err(Error::NotSupported(_))));
    let time = |sec| Some(SetTime::At(Time { sec, nsec: 5 }));
    let attr = c.utimens("l", time(-7), None).unwrap();
    assert_eq!((attr.kind, attr.atime), (FileType::Regular, Time { sec: -7, nsec: 5 }));
    assert_eq!(c.lutimens("l", None, time(8)).unwrap().kind, FileType::Symlink);
    assert_eq!(c.lchown("l", Some(3), None).unwrap().uid, 3);
    assert_eq!(c.chown("l", None, Some(4)).unwrap().gid, 4);
    assert_eq!(c.stat("f").unwrap().uid, 0);
    let f = c.open("f", READ).unwrap();
    assert_eq!(f.chmod(0o4711).unwrap().perm, 0o4711);
    assert_eq!(f.chown(Some(1), None).unwrap().perm, 0o711);
    assert_eq!(f.utimens(time(1), time(2)).unwrap().mtime, Time { sec: 2, nsec: 5 });
}

pub fn temporary_files<F: FileSystem>(fs: Arc<F>) {
    let c = root(fs);
    c.mkdir("d", 0o755).unwrap();
    let options = OpenOptions::new().read(true).write(true).tmpfile(true);
    let f = c.open("d", options.mode(0o600)).unwrap();
    f.write_all_at(b"there", 0).unwrap();
    assert_eq!(f.metadata().unwrap().nlink, 0);
    assert_eq!(c.read_dir("d").unwrap().count(), 0);
    assert_eq!(c.link_file(&f, "d/named").unwrap().nlink, 1);
    drop(f);
    assert_eq!(c.read("d/named").unwrap(), b"there");
    assert_eq!(c.open("d/named", options).err(), Some(Error::NotDirectory));
    // An open file outlives its name.
    let f = c.open("d/named", READ).unwrap();
    c.unlink("d/named").unwrap();
    let mut data = [0; 5];
    assert_eq!((f.read_at(&mut data, 0), &data), (Ok(5), b"there"));
}

pub fn locking<F: FileSystem>(fs: Arc<F>) {
    let (c, other) = (root(fs.clone()), root(fs));
    let (f, g) = (c.create("f").unwrap(), other.create("f").unwrap());
    f.lock_shared().unwrap();
    g.try_lock_shared().unwrap();
    assert_eq!(g.try_lock(), Err(Error::WouldBlock));
    f.lock().unwrap();
    assert_eq!(g.try_lock_shared(), Err(Error::WouldBlock));
    f.unlock().unwrap();
    g.try_lock().unwrap();
    f.lock_range(LockKind::Exclusive, 10, 10, false).unwrap();
    f.unlock_range(12, 2).unwrap();
    let found = g.test_range(LockKind::Shared, 0, 0).unwrap().unwrap();
    assert_eq!((found.start, found.end, found.kind), (10, 11, LockKind::Exclusive));
    assert_eq!(g.lock_range(LockKind::Shared, 13, 2, false), Err(Error::WouldBlock));
    assert_eq!(g.lock_range(LockKind::Shared, 12, 2, false), Ok(()));
    assert!(matches!(f.lock_range(LockKind::Shared, u64::MAX, 2, false), Err(Error::Invalid(_))));
}

pub fn record_locks_end_with_any_close<F: FileSystem>(fs: Arc<F>) {
    let (c, other) = (root(fs.clone()), root(fs));
    let (f, g) = (c.create("f").unwrap(), other.create("f").unwrap());
    f.lock_range(LockKind::Exclusive, 0, 0, false).unwrap();
    drop(g);
    let g = other.create("f").unwrap();
    assert!(g.test_range(LockKind::Shared, 0, 0).unwrap().is_some());
    drop(c.open("f", READ).unwrap());
    assert!(g.test_range(LockKind::Shared, 0, 0).unwrap().is_none());
}

pub fn standing_in_a_removed_directory<F: FileSystem>(fs: Arc<F>) {
    let c = root(fs);
    c.mkdir("d", 0o755).unwrap();
    let mut inside = c.clone();
    inside.change_dir("d").unwrap();
    c.rmdir("d").unwrap();
    assert_eq!(inside.stat("x"), Err(Error::NotFound));
    assert_eq!(inside.stat("../d"), Err(Error::NotFound));
    assert_eq!(inside.mkdir("x", 0o777), Err(Error::NotFound));
    assert_eq!(inside.open("x", CREATE).err(), Some(Error::NotFound));
    assert_eq!(inside.stat("/").unwrap().ino, Ino::ROOT);
}
