// SPDX-License-Identifier: GPL-2.0-only
//! `bpf/lib/numa.bpf.h` compared with an independent model, which recomputes its sums over tasks
//! for each query.

use std::cmp::Ordering;

use scxlab_kernel::Kernel;
use scxlab_loader::link::Loaded;
use scxlab_testkit::shipped::{run_program, selftest};
use scxlab_testkit::sim::kernel;

const NODES: u64 = 5;
const MEMBERS: u64 = 64;

#[derive(Clone, Copy, Default)]
struct Member {
    process: u64,
    node: Option<u64>,
    weight: u64,
    queued: bool,
    memory: Option<(u64, u64)>,
    slept_at: Option<u64>,
}

fn call(k: &mut Kernel, loaded: &Loaded, program: &str, words: &mut [u64]) {
    let mut bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    assert_eq!(run_program(k, loaded, program, &mut bytes), 0);
    for (word, bytes) in words.iter_mut().zip(bytes.chunks(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    }
}

fn random(state: &mut u64, n: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % n
}

struct Model([Option<Member>; MEMBERS as usize]);

impl Model {
    fn of(&self, process: u64) -> impl Iterator<Item = &Member> {
        self.0.iter().flatten().filter(move |m| m.process == process)
    }

    fn home(&self, process: u64, node: u64) -> (u64, u64) {
        let there = self.of(process).filter(|m| m.node == Some(node));
        there.fold((0, 0), |(sum, n), m| (sum + m.weight, n + 1))
    }

    fn queued(&self, process: Option<u64>, node: u64) -> (u64, u64) {
        let all = self.0.iter().flatten().filter(|m| process.is_none_or(|p| p == m.process));
        let there = all.filter(|m| m.queued && m.node == Some(node));
        there.fold((0, 0), |(sum, n), m| (sum + m.weight, n + 1))
    }

    fn faults(&self, process: u64, node: u64) -> u64 {
        self.of(process).filter_map(|m| m.memory.filter(|f| f.0 == node)).map(|f| f.1).sum()
    }

    /// Returns how many more NUMA faults the process of `m` has on node `to` than on node `from`.
    /// The result is 0 unless the process has at least as much weight on `from` as on `to`, and at
    /// most the weight of `m` more.
    fn memory_gain(&self, m: &Member, from: u64, to: u64) -> i64 {
        let (here, there) = (self.home(m.process, from).0, self.home(m.process, to).0);
        let level = m.process != 0 && there <= here && here <= there + m.weight;
        let faults = |node| self.faults(m.process, node) as i64;
        if level { faults(to) - faults(from) } else { 0 }
    }

    fn gains(&self, process: u64, from: u64, to: u64, weight: u64, by_faults: bool) -> bool {
        if process == 0 || from == to {
            return false;
        }
        let (here, there) = (self.home(process, from).0, self.home(process, to).0);
        let key = |node| if by_faults { self.faults(process, node) } else { 0 };
        let level = there <= here && here <= there + weight;
        match key(to).cmp(&key(from)) {
            Ordering::Equal => there + weight > here,
            more if level => more.is_gt(),
            _ => there + weight > here,
        }
    }

    fn scatters(&self, process: u64, from: u64, to: u64, weight: u64, by_faults: bool) -> bool {
        let all: u64 = (0..NODES).map(|n| self.home(process, n).0).sum();
        process != 0 && all > weight && !self.gains(process, from, to, weight, by_faults)
    }

    /// Returns the weights that the two processes have on the two nodes, largest first, before and
    /// after the tasks `m` and `o` exchange their nodes.
    fn swapped(&self, m: &Member, o: &Member, from: u64, to: u64) -> [Vec<u64>; 2] {
        let shares = |moved: u64, other: u64| {
            let mut of = vec![
                self.home(m.process, from).0.wrapping_sub(moved),
                self.home(m.process, to).0 + moved,
            ];
            if o.process != 0 {
                of.push(self.home(o.process, from).0 + other);
                of.push(self.home(o.process, to).0.wrapping_sub(other));
            }
            of.sort_by(|a, b| b.cmp(a));
            of
        };
        [shares(0, 0), shares(m.weight, o.weight)]
    }

    /// Returns the number of tasks of a node that are runnable, or were runnable since the start of
    /// the previous window. Windows are consecutive intervals of 2^26 ns, or 67 ms.
    fn active(&self, node: u64, now: u64) -> u64 {
        let lately =
            |m: &&Member| m.queued || m.slept_at.is_some_and(|at| (now >> 26) - (at >> 26) < 2);
        self.0.iter().flatten().filter(|m| m.node == Some(node)).filter(lately).count() as u64
    }

    fn source(&self, process: u64, here: u64, by_faults: bool) -> Option<u64> {
        let may = |from: &u64| {
            let (home, nr) = self.home(process, *from);
            let weight = home.checked_div(nr).unwrap_or(0);
            self.queued(Some(process), *from).1 > 0
                && self.gains(process, *from, here, weight, by_faults)
        };
        (0..NODES).filter(may).min_by_key(|n| self.home(process, *n).1)
    }
}

fn words(node: Option<u64>) -> u64 {
    node.unwrap_or(u64::MAX)
}

/// Draws one step in a random task's life and applies it to the model. Returns the step as the
/// words of a `struct numa_step`.
fn next_step(model: &mut Model, state: &mut u64, now: u64) -> [u64; 6] {
    let at = random(state, MEMBERS);
    let slot = &mut model.0[at as usize];
    let (node, weight) = (random(state, NODES), 15 + random(state, 3000));
    let Some(m) = slot else {
        let process = random(state, 9);
        *slot = Some(Member { process, ..Member::default() });
        return [0, at, process, 0, 0, now];
    };
    match random(state, 12) {
        0 => {
            *slot = None;
            [5, at, 0, 0, 0, now]
        }
        1 if m.node.is_some() => {
            m.weight = weight;
            [3, at, 0, 0, weight, now]
        }
        2 => {
            m.memory = Some((node, weight));
            [4, at, 0, node, weight, now]
        }
        _ if m.queued => {
            (m.queued, m.slept_at) = (false, Some(now));
            [2, at, 0, 0, 0, now]
        }
        _ => {
            (m.node, m.weight, m.queued, m.slept_at) = (Some(node), weight, true, None);
            [1, at, 0, node, weight, now]
        }
    }
}

#[test]
fn sums_and_judgements_are_those_of_a_model() {
    for seed in 1..=3 {
        let mut k = kernel("1c", "hogs,tasks=1", 1);
        let loaded = selftest(&mut k, "numa");
        call(&mut k, &loaded, "start", &mut [NODES]);
        let (mut model, mut state) = (Model([None; MEMBERS as usize]), seed);
        for step in 0..3000u64 {
            // A step takes 2^24 ns, so one window of 2^26 ns (67 ms), by which `numa.bpf.h` counts
            // active tasks, passes every four steps.
            let now = step << 24;
            let mut words_of_step = next_step(&mut model, &mut state, now);
            call(&mut k, &loaded, "step", &mut words_of_step);
            let (member, node, to) =
                (random(&mut state, MEMBERS), random(&mut state, NODES), random(&mut state, NODES));
            let other = random(&mut state, MEMBERS);
            let by_faults = random(&mut state, 2) == 0;
            let mut view = [0; 18];
            view[..6].copy_from_slice(&[member, node, to, other, u64::from(by_faults), now]);
            call(&mut k, &loaded, "view", &mut view);
            assert_eq!(view[11], model.queued(None, node).0, "seed {seed}, step {step}");
            assert_eq!(view[12], model.active(node, now), "seed {seed}, step {step}");
            let Some(m) = model.0[member as usize] else { continue };
            let p = m.process;
            let ((home, nr), (queued, nr_queued)) =
                (model.home(p, node), model.queued(Some(p), node));
            assert_eq!(view[6..10], [queued, home, nr, nr_queued], "seed {seed}, step {step}");
            let judged = [
                model.gains(p, node, to, m.weight, by_faults),
                model.scatters(p, node, to, m.weight, by_faults),
            ];
            assert_eq!(view[13..15], judged.map(u64::from), "seed {seed}, step {step}");
            if let Some(o) = model.0[other as usize]
                && (m.node, o.node) == (Some(node), Some(to))
                && node != to
                && p != 0
                && p != o.process
            {
                let [before, after] = model.swapped(&m, &o, node, to);
                let gains = view[15] == 1;
                assert!(!gains || after > before, "seed {seed}, step {step}: the list must grow");
                let vetoed = by_faults
                    && model.memory_gain(&m, node, to) + model.memory_gain(&o, to, node) < 0;
                assert!(!gains || !vetoed, "seed {seed}, step {step}: away from memory");
                assert!(
                    gains || vetoed || after[0] <= before[0],
                    "seed {seed}, step {step}: missed"
                );
            }
            let source = if p == 0 { None } else { model.source(p, node, by_faults) };
            assert_eq!(view[16] as u32, words(source) as u32, "seed {seed}, step {step}");
        }
    }
}

/// Calls `numa_has_room` on a machine of nodes with 4 cores each, for a task of weight 1024.
fn room(k: &mut Kernel, loaded: &Loaded, node: u64, beyond: u64, now: u64) -> (bool, u64) {
    let mut query = [node, 1024, beyond, now, 4096, 0, 0];
    call(k, loaded, "room", &mut query);
    (query[5] == 1, query[6])
}

#[test]
fn a_node_takes_a_task_per_core_or_its_share() {
    let mut k = kernel("1c", "hogs,tasks=1", 1);
    let loaded = selftest(&mut k, "numa");
    call(&mut k, &loaded, "start", &mut [NODES]);
    let window = |n: u64| n << 26;
    let run = |k: &mut Kernel, member: u64, node: u64, from: u64, until: u64| {
        call(k, &loaded, "step", &mut [0, member, member + 1, 0, 0, from]);
        call(k, &loaded, "step", &mut [1, member, 0, node, 1024, from]);
        call(k, &loaded, "step", &mut [2, member, 0, 0, 0, until]);
    };
    // Three tasks ran on node 0 for a millisecond each. The node has four cores, so it has room for
    // one more task until a fourth task has run there.
    (0..3).for_each(|m| run(&mut k, m, 0, m << 20, (m + 1) << 20));
    assert!(room(&mut k, &loaded, 0, 0, window(1)).0, "a core is free");
    run(&mut k, 3, 0, window(1), window(1) + (1 << 20));
    assert!(!room(&mut k, &loaded, 0, 0, window(1)).0, "none is, though all sleep");
    assert!(room(&mut k, &loaded, 0, 1, window(1)).0, "for a moment, if another goes");
    assert!(room(&mut k, &loaded, 0, 0, window(2)).0, "three slept for more than a window");
    // More tasks than cores: 24 tasks on 20 cores, four on node 0 and five on each of the others.
    // The share of a node is 4.8 tasks, so node 0 has room for a fifth task, but not for a sixth.
    let now = window(10);
    (0..4).for_each(|m| run(&mut k, m + 10, 0, now, now + 1000));
    (0..20).for_each(|m| run(&mut k, m + 20, 1 + m % 4, now, now + 1000));
    assert!(room(&mut k, &loaded, 0, 0, now).0, "four, where the share is 4.8");
    (0..1).for_each(|m| run(&mut k, m + 14, 0, now, now + 1000));
    assert!(!room(&mut k, &loaded, 0, 0, now).0, "five");
    // Four tasks run all the time on the four cores of node 0. The node has no CPU time for another
    // task, although it has less than its share of tasks.
    let now = window(20);
    (0..4).for_each(|m| call(&mut k, &loaded, "step", &mut [1, m, 0, 0, 1024, now]));
    (0..20).for_each(|m| call(&mut k, &loaded, "step", &mut [1, m + 20, 0, 1 + m % 4, 1024, now]));
    let (has, average) = room(&mut k, &loaded, 0, 1, window(40));
    assert!(!has && average.abs_diff(4096) < 4, "{average}");
}
