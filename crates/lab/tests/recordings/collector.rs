// SPDX-License-Identifier: GPL-2.0-only
//! Recordings of a server whose threads take parts of one heap, and that stops for collections.

use std::sync::Arc;

use scxlab_lab::input::{NoFiles, Workload};
use scxlab_machine::Machine;

use super::{MS, Terms, mean, metric, percent, record_on, replay, run_on};

/// A warehouse waits for a part of the heap, and then reads from a pipe that tells how many parts
/// are left. Its wait is one for a part, although the read comes next. Otherwise nothing would keep
/// it from taking parts of the next collection, whose bytes others then lack, and all would wait
/// for ever. In the replay each warehouse has its recorded parts of a collection, also if another
/// one is faster, so that the throughput is lower.
#[test]
fn collections_replay_to_their_end() {
    let machines = ["1n4c1t", "2n4c1t", "1n8c1t"];
    for (idle, machine) in ["spin", "sleep"].into_iter().flat_map(|i| machines.map(|m| (i, m))) {
        let text = format!("specjbb,warehouses=16,idle={idle},duration=none");
        let workload = Workload::resolve(&text, &NoFiles).unwrap();
        let Workload::Program(original) = workload else { panic!("{text}") };
        let spec = Arc::new(Machine::resolve(machine).unwrap());
        let pair = |seed| {
            let (first, bytes) = record_on(&spec, &original, Terms::noisy(seed, 1000 * MS));
            let again = replay(&bytes);
            assert_eq!(again.notes, Vec::<String>::new(), "{text} on {machine}, seed {seed}");
            let second = run_on(&spec, "eevdf", &again, Terms::noisy(seed + 100, 1000 * MS));
            assert_eq!(first.stop.kind, second.stop.kind, "{text} on {machine}, seed {seed}");
            (metric(&first, "throughput"), metric(&second, "throughput"))
        };
        let (originals, replays): (Vec<f64>, Vec<f64>) = (1..=4).map(pair).unzip();
        let error = percent(mean(&replays), mean(&originals));
        println!("{text} on {machine}: throughput {error:+.1} %");
        assert!(error.abs() <= 25.0, "{text} on {machine}: throughput {error:+.1} %");
    }
}
