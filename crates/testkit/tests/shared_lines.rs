// SPDX-License-Identifier: GPL-2.0-only
//! Cache lines that threads share (`atomic`): what they cost depends on the CPU that wrote them
//! last, on bare CPUs and in guests.

use scxlab_kernel::kernel::Stop;
use scxlab_machine::{CpuId, Machine};
use scxlab_testkit::checks;
use scxlab_testkit::sim::kernel_with_calls;

const MS: u64 = 1_000_000;
const LINES: u64 = 16;

/// Returns the units of two threads on the CPUs 0 and `other`, which share their lines or have
/// lines of their own.
fn units(machine: &Machine, other: CpuId, guest: bool, shared: bool) -> u64 {
    let lines = if shared { "l" } else { "l{i}" };
    let ops = format!(
        "ops = [{{ loop = {{ ops = [{{ atomic = {{ lines = '{lines}', count = {LINES} }} }}, \
         {{ compute = '5us' }}, {{ count = 1 }}] }} }}]\n"
    );
    let text = match guest {
        true => format!(
            "[[guest]]\nname = 'g'\nvcpus = 2\npin = true\ncpus = '0,{other}'\n\
             [[guest.program.thread]]\nname = 't{{i}}'\ninstances = 2\n{ops}"
        ),
        false => ["0", &other.to_string()]
            .iter()
            .enumerate()
            .map(|(i, cpu)| {
                let ops = ops.replace("{i}", &i.to_string());
                format!("[[thread]]\nname = 't{i}'\ncpus = '{cpu}'\n{ops}")
            })
            .collect(),
    };
    let mut k = kernel_with_calls(machine.clone(), &text, 1);
    assert_eq!(k.run(Some(50 * MS)), Stop::Finished, "{text}");
    checks::after(&k);
    k.metrics.work_units
}

/// A pass takes longer by the time in which the lines come from the other CPU. Threads with lines
/// of their own show what else the distance changes, such as a busy sibling.
#[test]
fn lines_come_from_their_last_writer() {
    for name in ["2n4c2t", "epyc-2s", "dbench-host", "intel-2s"] {
        let machine = Machine::resolve(name).unwrap();
        let nr_cpus = machine.topology.nr_cpus() as u32;
        for guest in [false, true] {
            let mut others: Vec<CpuId> = (1..nr_cpus).map(CpuId).collect();
            others.sort_by_key(|cpu| machine.topology.distance(CpuId(0), *cpu));
            others.dedup_by_key(|cpu| machine.topology.distance(CpuId(0), *cpu));
            for other in others {
                let own = units(&machine, other, guest, false);
                let shared = units(&machine, other, guest, true);
                let away = machine.topology.distance(CpuId(0), other);
                let lock = &machine.costs.lock;
                let line = lock.hand_over_ns[away] - lock.uncontended_ns;
                // Time of a pass with shared lines, less that with lines of its own. The two
                // threads take turns.
                let more = 2 * 50 * MS / shared - 2 * 50 * MS / own;
                let share = more as f64 / (LINES * line) as f64;
                assert!((0.95..1.05).contains(&share), "{name} {guest} {away:?}: {share}");
            }
        }
    }
}
