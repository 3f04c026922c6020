// SPDX-License-Identifier: GPL-2.0-only
//! Speed of simulations with guests on one core: ten guests of eight virtual CPUs on 64 CPUs, under
//! EEVDF. The trace is off, costs are the defaults, and the workload has no random variation.

use std::error::Error;

use scxlab_benches::case::Case;
use scxlab_benches::median;
use scxlab_trace::Tracer;

const ROUNDS: usize = 5;
const MACHINE: &str = "2n32c";
const GUESTS: &str = "vms=10,vcpus=8";
const DURATION_NS: u64 = 4_000_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    println!("{:<30} {:>10} {:>8}", "workload in each guest", "events/s", "x real");
    for workload in ["sleepers,tasks=16", "lock_holder"] {
        let case = Case::new("eevdf", &format!("{workload},{GUESTS}"), MACHINE, DURATION_NS)?;
        let (mut events, mut speed) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let measured = case.run(Tracer::default())?;
            events.push(measured.rate("events"));
            speed.push(measured.speed());
        }
        println!("{workload:<30} {:>10.0} {:>8.2}", median(events), median(speed));
    }
    Ok(())
}
