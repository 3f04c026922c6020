// SPDX-License-Identifier: GPL-2.0-only
//! Cache lines that threads share, by `atomic` or by messages: what they cost depends on the CPU
//! that wrote them last, on bare CPUs and in guests.

use scxlab_kernel::kernel::Stop;
use scxlab_lab::scheduler::SchedulerArg;
use scxlab_machine::cost::ByDistance;
use scxlab_machine::{CpuId, Machine};
use scxlab_testkit::checks;
use scxlab_testkit::sim::kernel_with_calls;

const MS: u64 = 1_000_000;
const LINES: u64 = 16;

/// Returns the units of two threads with these loops on the CPUs 0 and `other`, bare or as the two
/// vCPUs of a guest, with objects whose tables are named after `PROGRAM`.
fn run_pair(machine: &Machine, other: CpuId, guest: bool, objects: &str, ops: [&str; 2]) -> u64 {
    let (head, program, cpus) = match guest {
        true => (
            format!("[[guest]]\nname = 'g'\nvcpus = 2\npin = true\ncpus = '0,{other}'\n"),
            "guest.program.",
            [CpuId(0), CpuId(1)],
        ),
        false => (String::new(), "", [CpuId(0), other]),
    };
    let mut text = head + &objects.replace("PROGRAM.", program);
    for (i, (cpu, ops)) in cpus.into_iter().zip(ops).enumerate() {
        text += &format!(
            "[[{program}thread]]\nname = 't{i}'\ncpus = '{cpu}'\n\
             ops = [{{ loop = {{ ops = [{ops}] }} }}]\n"
        );
    }
    let mut k = kernel_with_calls(machine.clone(), &text, 1);
    // Runs that are compared have different numbers of searches for the LLC of the guest's process.
    // The threads are pinned, so that the result of a search changes nothing.
    for (tunable, value) in SchedulerArg::parse("eevdf,llc_balancing=0").unwrap().tuning() {
        k.fair.tune(tunable, value);
    }
    assert_eq!(k.run(Some(50 * MS)), Stop::Finished, "{text}");
    checks::after(&k);
    k.metrics.work_units
}

/// Returns the units of two threads which share their lines or have lines of their own.
fn units(machine: &Machine, other: CpuId, guest: bool, shared: bool) -> u64 {
    let ops = |lines| {
        format!(
            "{{ atomic = {{ lines = '{lines}', count = {LINES} }} }}, {{ compute = '5us' }}, \
             {{ count = 1 }}"
        )
    };
    let (first, second) = (ops("l"), ops(if shared { "l" } else { "own" }));
    run_pair(machine, other, guest, "", [&first, &second])
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

/// Returns the rounds of two threads which send each other messages of `bytes`.
fn rounds(machine: &Machine, other: CpuId, kind: &str, bytes: u64, guest: bool) -> u64 {
    let op = |op, pipe| format!("{{ {op} = {{ pipe = '{pipe}', bytes = {bytes} }} }}");
    // The work lets the other thread fall asleep first.
    let work = "{ compute = '30us' }";
    let near = format!("{work}, {}, {}, {{ count = 1 }}", op("write", "p"), op("read", "q"));
    let far = format!("{}, {work}, {}", op("read", "p"), op("write", "q"));
    let pipes = ["p", "q"].map(|p| format!("[[PROGRAM.pipe]]\nname = '{p}'\nkind = '{kind}'\n"));
    run_pair(machine, other, guest, &pipes.concat(), [&near, &far])
}

/// A round takes longer by the way of its two messages: the state of the pipe for the write and
/// for the read, and the message with its bytes. On one CPU it takes as long as without. The 100 ns
/// are for what depends on the moment, such as a wait for a run queue's lock.
#[test]
fn messages_come_from_their_sender() {
    for name in ["2n4c2t", "epyc-2s", "intel-2s"] {
        let machine = Machine::resolve(name).unwrap();
        let mut free = machine.clone();
        let nothing = ByDistance { smt: 0, core: 0, llc: 0, node: 0 };
        (free.costs.cache.line_ns, free.costs.cache.refill_ns_per_kib) = (nothing, nothing);
        let nr_cpus = machine.topology.nr_cpus() as u32;
        let mut others: Vec<CpuId> = (0..nr_cpus).map(CpuId).collect();
        others.sort_by_key(|cpu| machine.topology.distance(CpuId(0), *cpu));
        others.dedup_by_key(|cpu| machine.topology.distance(CpuId(0), *cpu));
        let costs = &machine.costs;
        let (w, guests) = (&costs.workload, [false, true]);
        for (kind, state, message) in [
            ("pipe", w.pipe_lines, w.pipe_message_lines),
            ("socket", w.sock_lines, w.sock_message_lines),
        ] {
            for (&other, bytes, guest) in
                others.iter().flat_map(|o| [1, 4096].map(|b| guests.map(|g| (o, b, g)))).flatten()
            {
                if guest && other == CpuId(0) {
                    continue;
                }
                let away = machine.topology.distance(CpuId(0), other);
                let with = rounds(&machine, other, kind, bytes, guest);
                let without = rounds(&free, other, kind, bytes, guest);
                let more = (50.0 * MS as f64) * (1.0 / with as f64 - 1.0 / without as f64);
                let way = 2 * costs.message_ns(away, 2 * state + message, bytes);
                let off = (more - way as f64).abs();
                let what = format!("{name} {kind} {bytes} {away:?} {guest}: {more} of {way}");
                assert!(off <= 0.06 * way as f64 + 100.0, "{what}");
            }
        }
    }
}
