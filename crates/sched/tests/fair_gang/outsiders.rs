// SPDX-License-Identifier: GPL-2.0-only
//! Tasks of no gang beside gangs: each must do nearly as much work as without gang scheduling.

use super::layout::{Bound, GangLayout, Work};
use super::{MACHINES, MS, PERIOD, TICK, WARM_UP, assert_attached, attached_with_seed};

/// One task of no gang on each CPU, bound to it.
#[derive(Clone, Copy, Debug)]
struct Outsiders {
    /// Workload operations of each task, repeated for ever.
    ops: &'static str,
    /// Whether the tasks have a cgroup of their own. If not, they are in the root, where each of
    /// them weighs as much as a gang does on all its CPUs.
    grouped: bool,
}

const KINDS: [&str; 5] = [
    "{ compute = \"1ms\" }, { sleep = \"9ms\" }",
    "{ compute = \"300us\" }, { sleep = \"2ms\" }",
    "{ compute = \"4ms\" }, { sleep = \"30ms\" }",
    "{ compute = \"100us\" }, { sleep = \"19ms\" }",
    "{ compute = \"1ms\" }",
];

impl Outsiders {
    fn workload(&self) -> String {
        let (mut text, cgroup) = match self.grouped {
            true => ("[[cgroup]]\npath = \"/outside\"\n".to_owned(), "cgroup = \"/outside\"\n"),
            false => (String::new(), ""),
        };
        for i in 0..8 {
            text += &format!(
                "[[thread]]\nname = \"outside-{i}\"\nprocess = \"outside\"\n{cgroup}cpus = \"{i}\"\n\
                 ops = [{{ loop = {{ ops = [{}, {{ count = 1 }}] }} }}]\n",
                self.ops
            );
        }
        text
    }
}

/// Work done by all outsiders, by the outsider that did the least, and by all gangs.
#[derive(Debug)]
struct Got {
    outside: u64,
    least_outside: u64,
    gangs: u64,
    longest_wait: u64,
}

fn got(layout: &GangLayout, outsiders: &Outsiders, gang: &str) -> Got {
    let text = layout.workload() + &outsiders.workload();
    let (mut k, _) = attached_with_seed(layout.machine, &text, &[("gang", gang)], layout.seed);
    k.start();
    k.advance(WARM_UP);
    let before: Vec<u64> = k.tasks.iter().map(|t| t.account.work_units).collect();
    k.advance(WARM_UP + 1_000 * MS);
    assert_attached(&k);
    let done = k.tasks.iter().zip(before).map(|(t, before)| (t, t.account.work_units - before));
    let (outside, gangs): (Vec<_>, Vec<_>) =
        done.partition(|(t, _)| t.name.starts_with("outside-"));
    Got {
        outside: outside.iter().map(|(_, done)| done).sum(),
        least_outside: *outside.iter().map(|(_, done)| done).min().expect("tasks"),
        gangs: gangs.iter().map(|(_, done)| done).sum(),
        longest_wait: k.metrics.run_queue_wait.max(),
    }
}

/// Gangs delay outsiders that wake up by up to a tenth of a CPU's time, counted in ticks; hogs get
/// the withheld time back later. Each outsider must therefore do at least four fifths of the work
/// that it does without gang scheduling, and so must all gangs together.
fn outsiders_have_their_share(gangs: u32) {
    for (i, ops) in KINDS.into_iter().enumerate() {
        for work in [Work::Barrier, Work::LockAndSleep] {
            let turn = i + gangs as usize + (work == Work::LockAndSleep) as usize;
            let layout = GangLayout {
                machine: MACHINES[(turn / 2 + i) % MACHINES.len()],
                gangs,
                threads: 8,
                work,
                bound: Bound::Each,
                nested: turn.is_multiple_of(3),
                seed: 1 + turn as u64,
            };
            let outsiders = Outsiders { ops, grouped: turn.is_multiple_of(2) };
            let (off, v2) = (got(&layout, &outsiders, "off"), got(&layout, &outsiders, "v2"));
            eprintln!("{layout:?} {outsiders:?}\n  {off:?}\n  {v2:?}");
            assert!(
                v2.outside * 10 >= off.outside * 8,
                "{layout:?}, {outsiders:?}: {off:?} {v2:?}"
            );
            assert!(
                v2.least_outside * 10 >= off.least_outside * 8,
                "{layout:?}, {outsiders:?}: {off:?} {v2:?}"
            );
            assert!(v2.gangs * 10 >= off.gangs * 8, "{layout:?}, {outsiders:?}: {off:?} {v2:?}");
            let bound =
                off.longest_wait + u64::from(gangs + 2) * PERIOD + 4 * u64::from(gangs) * TICK;
            assert!(
                v2.longest_wait <= bound,
                "{layout:?}, {outsiders:?}: {off:?} {v2:?}: the bound is {bound}"
            );
        }
    }
}

#[test]
fn outsiders_have_their_share_beside_2_gangs() {
    outsiders_have_their_share(2);
}

#[test]
fn outsiders_have_their_share_beside_4_gangs() {
    outsiders_have_their_share(4);
}

#[test]
fn outsiders_have_their_share_beside_8_gangs() {
    outsiders_have_their_share(8);
}
