use block::{MkfsOptions, OpenOptions, Volume};
use fs::{Cred, FileSystem, Ino, OpenFlags, block_on};
use std::sync::Arc;
use std::time::Instant;

fn rss() -> usize {
    let s = std::fs::read_to_string("/proc/self/statm").unwrap();
    s.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

const SEQ: u64 = 1024;
fn main() {
    let n: usize = std::env::args().nth(1).map_or(1_000_000, |s| s.parse().unwrap());
    let path = "/var/tmp/scratch.img";
    let size = 16u64 << 30;
    let f = std::fs::OpenOptions::new().create(true).write(true).read(true).truncate(false).open(path).unwrap();
    f.set_len(size).unwrap();
    let media = Arc::new(media::uring::UringMedia::open(std::path::Path::new(path), Default::default()).unwrap());
    block::mkfs(media.clone(), &MkfsOptions { force: true, ..Default::default() }).unwrap();
    let v = Volume::open(media.clone(), OpenOptions::default()).unwrap();
    let client = fs::Client::new(Arc::new(v.clone()), Cred::root());
    let c = client.blocking();
    c.mkdir("/d", 0o755).unwrap();
    let before = rss();
    let t = Instant::now();
    let time = |what: &str, t: Instant, n: usize| {
        let d = t.elapsed();
        println!("{what:20} {:8.0} ns/op  {:7.3} s", d.as_nanos() as f64 / n as f64, d.as_secs_f64());
    };
    for i in 0..n {
        let f = c.open(format!("/d/f{i}"), fs::OpenOptions::new().write(true).create_new(true)).unwrap();
        drop(f);
    }
    time("create", t, n);
    if std::env::var("STOP").is_ok() { return; }
    println!("rss/file {}", (rss() - before) / n);
    let t = Instant::now();
    block_on(v.sync()).unwrap();
    time("sync", t, n);
    println!("rss/file {}", (rss() - before) / n);
    let mut order: Vec<usize> = (0..n).collect();
    let mut x = 12345u64;
    for i in (1..n).rev() {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1);
        order.swap(i, (x >> 33) as usize % (i + 1));
    }
    let names: Vec<String> = order.iter().map(|i| format!("/d/f{i}")).collect();
    let t = Instant::now();
    for name in &names {
        c.stat(name).unwrap();
    }
    time("stat random", t, n);
    let t = Instant::now();
    let mut count = 0;
    for e in c.read_dir("/d").unwrap() {
        e.unwrap();
        count += 1;
    }
    time("readdir", t, count);
    let t = Instant::now();
    for i in 0..n {
        c.rename(format!("/d/f{i}"), format!("/d/g{i}"), Default::default()).unwrap();
    }
    time("rename", t, n);
    let t = Instant::now();
    block_on(v.checkpoint()).unwrap();
    time("checkpoint", t, n);
    println!("rss/file {} {:?}", (rss() - before) / n, v.counters());
    let t = Instant::now();
    v.close_blocking().unwrap();
    time("close", t, n);
    drop((client, v));
    let t = Instant::now();
    let v = Volume::open(media.clone(), OpenOptions::default()).unwrap();
    time("open clean", t, n);
    let client = fs::Client::new(Arc::new(v.clone()), Cred::root());
    let c = client.blocking();
    let t = Instant::now();
    for i in 0..n {
        c.unlink(format!("/d/g{i}")).unwrap();
    }
    time("unlink", t, n);
    let t = Instant::now();
    block_on(v.checkpoint()).unwrap();
    time("checkpoint", t, n);
    // fsync
    let m = 500;
    let t = Instant::now();
    let f = c.open("/d/log", fs::OpenOptions::new().write(true).create_new(true)).unwrap();
    for i in 0..m {
        f.write_at(&[7u8; 4096], i as u64 * 4096).unwrap();
        f.fsync().unwrap();
    }
    time("append+fsync", t, m);
    let t = Instant::now();
    for i in 0..m {
        let f = c.open(format!("/d/s{i}"), fs::OpenOptions::new().write(true).create_new(true)).unwrap();
        f.write_at(&[7u8; 4096], 0).unwrap();
        f.fsync().unwrap();
    }
    time("create+4k+fsync", t, m);
    let buf = vec![9u8; 1 << 20];
    let t = Instant::now();
    let f = c.open("/big", fs::OpenOptions::new().read(true).write(true).create_new(true)).unwrap();
    for i in 0..SEQ {
        f.write_at(&buf, i << 20).unwrap();
    }
    f.fsync().unwrap();
    let d = t.elapsed().as_secs_f64();
    println!("seq write {:.0} MB/s", SEQ as f64 * 1.048 / d);
    block_on(v.drop_caches()).unwrap();
    let mut buf = buf;
    let t = Instant::now();
    for i in 0..SEQ {
        f.read_at(&mut buf, i << 20).unwrap();
    }
    let d = t.elapsed().as_secs_f64();
    println!("seq read {:.0} MB/s", SEQ as f64 * 1.048 / d);
    println!("{:?}", v.counters());
    drop((f, client));
    v.close_blocking().unwrap();
    let _ = (OpenFlags::READ, Ino::ROOT);
    std::fs::remove_file(path).unwrap();
}
