use sim::timed::modes::{Load, Mode, run};
use sim::timed::{Barrier, Profile};
#[test]
fn probe() {
    for p in Profile::all() {
        for mode in Mode::ALL {
            let t = std::time::Instant::now();
            let r = run(&p, &p.host(), Load::new(mode));
            println!("{:28} {:26} {:9.0} depth {:5.1} max {} sw {:.2}  [{:?}]", p.name, mode.name(), r.iops, r.depth_mean, r.depth_max, r.switches, t.elapsed());
        }
        for b in Barrier::HONEST {
            for epoch in [1, 4, 16, 64] {
                let r = run(&p.clone().with(b), &p.host(), Load { epoch, writes: 30_000, ..Load::new(Mode::Barrier) });
                println!("   {:26} epoch {epoch} {:9.0}", b.name(), r.iops);
            }
        }
    }
    for c in [1, 2, 4, 8, 16, 32] {
        let p = Profile::array(c);
        for mode in [Mode::TransferAndFlush, Mode::Barrier, Mode::Unordered] {
            let r = run(&p, &p.host(), Load::new(mode));
            println!("{c} {:26} {:9.0}", mode.name(), r.iops);
        }
    }
}
#[test]
fn probe_all() {
    let t = std::time::Instant::now();
    for f in sim::timed::figures::some(sim::timed::figures::Size::Tiny, "") {
        println!("{} [{:?}]", f.markdown("order"), t.elapsed());
    }
}
