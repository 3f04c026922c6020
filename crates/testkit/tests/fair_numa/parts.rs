// SPDX-License-Identifier: GPL-2.0-only
//! `bpf/lib/numa.bpf.h` against a model of its own: the sums over tasks, made anew for each question.

use scxlab_bpf::link::Loaded;
use scxlab_kernel::Kernel;
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

    fn memory(&self, process: u64) -> Option<u64> {
        let faults = |n: u64| -> u64 {
            self.of(process).filter_map(|m| m.memory.filter(|f| f.0 == n)).map(|f| f.1).sum()
        };
        let best = (0..NODES).rev().max_by_key(|n| faults(*n))?;
        (faults(best) > 0).then_some(best)
    }

    fn gains(&self, process: u64, from: u64, to: u64, weight: u64, memory: Option<u64>) -> bool {
        if process == 0 || from == to {
            return false;
        }
        memory.map_or_else(
            || self.home(process, to).0 + weight > self.home(process, from).0,
            |memory| memory == to,
        )
    }

    fn source(&self, process: u64, here: u64, memory: Option<u64>) -> Option<u64> {
        let may = |from: &u64| {
            let (home, nr) = self.home(process, *from);
            let weight = home.checked_div(nr).unwrap_or(0);
            self.queued(Some(process), *from).1 > 0
                && self.gains(process, *from, here, weight, memory)
        };
        (0..NODES).filter(may).min_by_key(|n| self.home(process, *n).1)
    }
}

fn words(node: Option<u64>) -> u64 {
    node.unwrap_or(u64::MAX)
}

/// One step of a random task's life: what it is, in the words of `struct numa_step`.
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
            m.queued = false;
            [2, at, 0, 0, 0, now]
        }
        _ => {
            (m.node, m.weight, m.queued) = (Some(node), weight, true);
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
            let mut words_of_step = next_step(&mut model, &mut state, step << 18);
            call(&mut k, &loaded, "step", &mut words_of_step);
            let (member, node, to) =
                (random(&mut state, MEMBERS), random(&mut state, NODES), random(&mut state, NODES));
            let memory = (random(&mut state, 3) == 0).then(|| random(&mut state, NODES));
            let mut view = [0; 14];
            view[..4].copy_from_slice(&[member, node, to, words(memory)]);
            call(&mut k, &loaded, "view", &mut view);
            assert_eq!(view[9], model.queued(None, node).0, "seed {seed}, step {step}");
            let Some(m) = model.0[member as usize] else { continue };
            let p = m.process;
            let ((home, nr), (queued, nr_queued)) =
                (model.home(p, node), model.queued(Some(p), node));
            assert_eq!(view[4..8], [queued, home, nr, nr_queued], "seed {seed}, step {step}");
            assert_eq!(
                view[10],
                u64::from(model.gains(p, node, to, m.weight, memory)),
                "step {step}"
            );
            let source = if p == 0 { None } else { model.source(p, node, memory) };
            assert_eq!(view[11] as u32, words(source) as u32, "seed {seed}, step {step}");
            assert_eq!(view[12] as u32, words(model.memory(p)) as u32, "seed {seed}, step {step}");
        }
    }
}

/// `numa_has_room` on a machine of nodes with 4 CPUs each.
fn room(k: &mut Kernel, loaded: &Loaded, node: u64, now: u64) -> (bool, u64) {
    let mut query = [node, 1024, 125, now, 4096, 0, 0];
    call(k, loaded, "room", &mut query);
    (query[5] == 1, query[6])
}

#[test]
fn a_node_takes_what_its_cpus_can_run_or_its_share() {
    let mut k = kernel("1c", "hogs,tasks=1", 1);
    let loaded = selftest(&mut k, "numa");
    call(&mut k, &loaded, "start", &mut [NODES]);
    let enqueue = |k: &mut Kernel, member: u64, node: u64, now: u64| {
        call(k, &loaded, "step", &mut [0, member, member + 1, 0, 0, now]);
        call(k, &loaded, "step", &mut [1, member, 0, node, 1024, now]);
    };
    let periods = |n: u64| n << 20;
    (0..3).for_each(|m| enqueue(&mut k, m, 0, 0));
    let (_, average) = room(&mut k, &loaded, 0, periods(32));
    assert!(average.abs_diff(3 * 1024 / 2) < 4, "{average}: half of it after 32 periods");
    let now = periods(2000);
    let (has, average) = room(&mut k, &loaded, 0, now);
    assert!(has && average.abs_diff(3072) < 4, "three tasks on four CPUs: {average}");
    (3..5).for_each(|m| enqueue(&mut k, m, 0, now));
    assert!(!room(&mut k, &loaded, 0, 2 * now).0, "five on four CPUs, others idle");
    (5..29).for_each(|m| enqueue(&mut k, m, 1 + m % 4, 2 * now));
    assert!(room(&mut k, &loaded, 0, 4 * now).0, "five on four CPUs, six on each of the others");
}
