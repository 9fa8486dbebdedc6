//! How fast a medium is: `speed PATH randread|randwrite|read|write BLOCK DEPTH SECONDS [pin|nopin] [vector]`.
//!
//! Keeps DEPTH requests of BLOCK bytes in flight on a file or block device (`ram` for memory) and prints requests and
//! bytes per second, and the processor time per request. Compare with fio, for example:
//! `fio --name=x --filename=PATH --direct=1 --ioengine=io_uring --fixedbufs --registerfiles --rw=randread --bs=4k
//! --iodepth=32 --runtime=5 --time_based`. Writing destroys what is on the device.

use media::uring::Options;
use media::{Arena, BufRef, Media, Op, RamMedia, Request, UringMedia, Wait};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [path, mode, block, depth, seconds, flags @ ..] = &args[..] else {
        return Err(
            "usage: speed PATH randread|randwrite|read|write BLOCK DEPTH SECONDS [nopin] [vector]".into()
        );
    };
    let (block, depth): (u32, u64) = (block.parse()?, depth.parse()?);
    let (random, op) = match mode.as_str() {
        "randread" => (true, Op::Read),
        "randwrite" => (true, Op::Write),
        "read" => (false, Op::Read),
        "write" => (false, Op::Write),
        _ => return Err("unknown mode".into()),
    };
    let has = |flag: &str| flags.iter().any(|f| f == flag);
    let media: Arc<dyn Media> = match path.as_str() {
        "ram" => Arc::new(RamMedia::new(1 << 30)?),
        path => Arc::new(UringMedia::open(path, Options { pin: !has("nopin"), ..Options::default() })?),
    };
    let memory = Arc::new(Arena::new(depth as usize * block as usize)?);
    // Devices may treat zeros better than data.
    let noise: Vec<u8> =
        (0..memory.len() as u64).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as u8).collect();
    memory.copy_in(0, &noise);
    let arena = media.register(memory)?;
    let blocks = media.geometry().bytes / block as u64;
    let (mut seed, mut next, mut n) = (88172645463325252u64, 0u64, 0u64);
    let mut request = |slot: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        next = (next + 1) % blocks;
        let place = if random { seed % blocks } else { next } * block as u64;
        let buf = BufRef { arena, offset: slot * block as u64, len: block };
        if has("vector") && block >= 8192 {
            let parts =
                (0..block / 4096).map(|i| BufRef { offset: buf.offset + i as u64 * 4096, len: 4096, ..buf });
            Request::vectored(op, place, parts.collect(), slot)
        } else {
            Request::transfer(op, place, buf, slot)
        }
    };
    (0..depth).for_each(|slot| media.submit(request(slot)));
    media.kick();
    let (start, cpu_start, limit) = (Instant::now(), cpu(), Duration::from_secs_f64(seconds.parse()?));
    let (mut done, mut flying) = (Vec::new(), depth);
    while flying > 0 {
        media.reap(&mut done, Wait::For(None));
        let go_on = start.elapsed() < limit;
        for completion in done.drain(..) {
            completion.result?;
            n += 1;
            if go_on {
                media.submit(request(completion.token));
            } else {
                flying -= 1;
            }
        }
        media.kick();
    }
    let (time, cpu) = (start.elapsed().as_secs_f64(), (cpu() - cpu_start).as_secs_f64());
    println!(
        "{mode} {block} x {depth}: {:.0} requests/s, {:.1} MB/s, {:.2} us of processor per request",
        n as f64 / time,
        n as f64 * block as f64 / time / 1e6,
        cpu * 1e6 / n as f64
    );
    Ok(())
}
