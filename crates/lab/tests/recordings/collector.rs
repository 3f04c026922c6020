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
    let cases = [
        (16, "1n4c1t"),
        (16, "2n4c1t"),
        (16, "1n8c1t"),
        // Recordings of less than three collections, which the end cuts off.
        (8, "1n2c1t"),
        (24, "1n2c1t"),
        // An order of warehouses in which a rehearsal ended, and the run did not.
        (24, "1n4c1t"),
    ];
    let idles = ["spin", "sleep"].into_iter();
    for (idle, (warehouses, machine)) in idles.flat_map(|i| cases.map(|case| (i, case))) {
        let text = format!("specjbb,warehouses={warehouses},idle={idle},duration=none");
        let workload = Workload::resolve(&text, &NoFiles).unwrap();
        let Workload::Program(original) = workload else { panic!("{text}") };
        let spec = Arc::new(Machine::resolve(machine).unwrap());
        let pair = |seed| {
            let (first, bytes) = record_on(&spec, &original, Terms::noisy(seed, 700 * MS));
            let again = replay(&bytes);
            assert_eq!(again.notes, Vec::<String>::new(), "{text} on {machine}, seed {seed}");
            let second = run_on(&spec, "eevdf", &again, Terms::noisy(seed + 100, 700 * MS));
            assert_eq!(first.stop.kind, second.stop.kind, "{text} on {machine}, seed {seed}");
            (metric(&first, "throughput"), metric(&second, "throughput"))
        };
        let (originals, replays): (Vec<f64>, Vec<f64>) = (1..=5).map(pair).unzip();
        let error = percent(mean(&replays), mean(&originals));
        println!("{text} on {machine}: throughput {error:+.1} %");
        assert!(error.abs() <= 25.0, "{text} on {machine}: throughput {error:+.1} %");
    }
}
