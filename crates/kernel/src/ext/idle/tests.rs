// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the picker of idle CPUs. Random sequences of operations run on the picker and on a
//! model of its documented order, which uses plain sets; both must choose the same CPUs.

mod model;

use super::pick::{IdleView, PickQuery, Waker};
use super::*;
use crate::bpf::flags::pick_idle;
use model::{Model, Set};
use proptest::prelude::*;
use scxlab_machine::topology::{CoreLayout, Layout, LlcLayout, NodeLayout};
use scxlab_machine::{CpuMask, Machine, Topology};

/// Specs of machines that differ in which steps of the picker exist.
const SPECS: [&str; 11] = [
    "4c1t",
    "1c2t",
    "4c2t",
    "2c4t",
    "2l2c2t",
    "2n3c2t",
    "2n2l2c2t",
    "2n2l2c4t",
    "4n2c1t",
    "2n2l2c2tf",
    "2n2l20c2t",
];

fn machine(spec: &str) -> Topology {
    Machine::from_spec(spec).unwrap().topology
}

/// One operation on the idle state.
#[derive(Clone, Debug)]
enum IdleStep {
    Mark {
        cpu: u32,
        idle: bool,
    },
    Claim {
        cpu: u32,
    },
    Online {
        cpu: u32,
        online: bool,
    },
    Select {
        here: u32,
        prev: u32,
        affinity: u64,
        allowed: Option<u64>,
        flags: u64,
        sync: Option<bool>,
    },
    Pick {
        here: u32,
        node: u32,
        allowed: u64,
        flags: u64,
    },
}

fn step() -> impl Strategy<Value = IdleStep> {
    let flags = prop::sample::select(vec![0, 0, pick_idle::CORE, pick_idle::IN_NODE, 3]);
    let mask = prop_oneof![Just(u64::MAX), any::<u64>()].boxed();
    let select = (
        any::<[u32; 2]>(),
        mask.clone(),
        any::<Option<u64>>(),
        flags.clone(),
        any::<Option<bool>>(),
    )
        .prop_map(|([here, prev], affinity, allowed, flags, sync)| IdleStep::Select {
            here,
            prev,
            affinity,
            allowed,
            flags,
            sync,
        });
    prop_oneof![
        6 => (any::<u32>(), any::<bool>()).prop_map(|(cpu, idle)| IdleStep::Mark { cpu, idle }),
        1 => any::<u32>().prop_map(|cpu| IdleStep::Claim { cpu }),
        1 => (any::<u32>(), any::<bool>()).prop_map(|(cpu, online)| IdleStep::Online { cpu, online }),
        4 => select,
        2 => (any::<[u32; 2]>(), mask, flags)
            .prop_map(|([here, node], allowed, flags)| IdleStep::Pick { here, node, allowed, flags }),
    ]
}

/// Returns the CPUs whose bit is set in a 64-bit pattern, which is repeated for every 64 CPUs,
/// rotated by 7 more bits each time.
fn pattern(nr_cpus: u32, bits: u64) -> Set {
    (0..nr_cpus).filter(|cpu| bits.rotate_left(cpu / 64 * 7) >> (cpu % 64) & 1 != 0).collect()
}

/// The real idle state and the model of it.
struct Pair<'a> {
    state: IdleState,
    mem: Memory,
    model: Model<'a>,
}

impl<'a> Pair<'a> {
    fn new(topology: &'a Topology, per_node: bool) -> Self {
        let mut mem = Memory::with_size(1 << 32).unwrap();
        let nr_cpus = topology.nr_cpus();
        let mut state = IdleState::new(&mut mem, nr_cpus, topology.nodes().len()).unwrap();
        (state.enabled, state.per_node) = (true, per_node);
        let mut pair = Pair { state, mem, model: Model::new(topology, per_node) };
        pair.refresh();
        pair
    }

    fn refresh(&mut self) {
        let topology = self.model.topology;
        self.state.refresh_siblings(&self.mem, topology);
        self.state.update_steps(&self.mem, topology, self.model.per_node);
    }

    fn view(&mut self, here: u32) -> IdleView<'_> {
        let topology = self.model.topology;
        IdleView { state: &mut self.state, mem: &mut self.mem, topology, here: CpuId(here) }
    }

    fn words(&self, set: &Set) -> CpuMask {
        CpuMask::of(self.model.topology.nr_cpus(), set.iter().map(|&cpu| CpuId(cpu)))
    }

    fn set_online(&mut self, cpu: u32, online: bool) {
        if !online && self.model.online.len() == 1 {
            return;
        }
        let words = self.mem.words_mut(self.state.online, self.state.nr_words());
        if online {
            cpumask::set(words, CpuId(cpu));
            self.model.online.insert(cpu);
        } else {
            cpumask::clear(words, CpuId(cpu));
            self.model.online.remove(&cpu);
        }
        self.refresh();
        self.model.update_steps();
    }

    /// Applies an operation to the real state and to the model; returns the CPU that each chose.
    fn step(&mut self, step: &IdleStep) -> (Option<u32>, Option<u32>) {
        let nr = self.model.topology.nr_cpus() as u32;
        match *step {
            IdleStep::Mark { cpu, idle } => {
                self.view(0).mark(CpuId(cpu % nr), idle);
                self.model.mark(cpu % nr, idle);
                (None, None)
            }
            IdleStep::Claim { cpu } => {
                let real = self.view(0).claim(CpuId(cpu % nr));
                (real.then_some(cpu), self.model.claim(cpu % nr).then_some(cpu))
            }
            IdleStep::Online { cpu, online } => {
                self.set_online(cpu % nr, online);
                (None, None)
            }
            IdleStep::Select { here, prev, affinity, allowed, flags, sync } => {
                self.select(here % nr, prev % nr, affinity, allowed, flags, sync)
            }
            IdleStep::Pick { here, node, allowed, flags } => {
                let set = pattern(nr, allowed);
                let words = self.words(&set);
                let node = node % self.model.topology.nodes().len() as u32;
                let at = self.state.per_node.then_some(NodeId(node));
                let counted = self.state.failed_pick(CpuId(here % nr), flags);
                self.state.work = Work::default();
                let real = self.view(here % nr).pick(&words, at, flags);
                self.work_was_counted(real, counted.filter(|_| at.is_none()));
                (real.map(|cpu| cpu.0), self.model.pick(here % nr, &set, node, flags))
            }
        }
    }

    fn select(
        &mut self,
        here: u32,
        prev: u32,
        affinity: u64,
        allowed: Option<u64>,
        flags: u64,
        sync: Option<bool>,
    ) -> (Option<u32>, Option<u32>) {
        let nr = self.model.topology.nr_cpus() as u32;
        let affine = pattern(nr, affinity);
        let only = allowed.map(|bits| pattern(nr, bits));
        let both = only.as_ref().map_or(affine.clone(), |only| only & &affine);
        let (affinity, only) = (self.words(&affine), only.map(|set| self.words(&set)));
        let query = PickQuery {
            affinity: &affinity,
            nr_affine: cpumask::weight(&affinity),
            allowed: only.as_deref(),
            prev: CpuId(prev),
            flags,
            waker: sync.map(|may_take_over| Waker { may_take_over }),
        };
        let simple = query.waker.is_none() && query.allowed.is_none();
        let here = CpuId(here);
        let counted = self.state.failed_select(here, query.nr_affine, query.prev, flags);
        let among = self.state.failed_select_among(self.model.topology, here, &query);
        self.state.work = Work::default();
        let real = self.view(here.0).select(&query);
        self.work_was_counted(real, counted.filter(|_| simple));
        self.work_was_counted(real, among);
        // In the kernel a task's affinity is never empty, but its intersection with `allowed` may
        // be empty. The picker then chooses no CPU.
        let model = if both.is_empty() && only.is_some() {
            None
        } else {
            self.model.select(here.0, prev, &both, flags, sync)
        };
        (real.map(|cpu| cpu.0), model)
    }

    /// Checks that the work that was counted without a search is the work of the real search, and
    /// that this search finds nothing.
    fn work_was_counted(&self, found: Option<CpuId>, counted: Option<Work>) {
        if let Some(work) = counted {
            assert_eq!((found, self.state.work), (None, work), "{:?}", self.state.failed_search);
        }
    }

    fn sets(&self, pick: impl Fn(&IdleMasks) -> u64) -> Set {
        let nodes = self.state.nodes.iter().chain([&self.state.global]);
        let words = nodes.map(|masks| self.mem.words(pick(masks), self.state.nr_words()));
        words.flat_map(cpumask::iter).map(|cpu| cpu.0).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 600, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn picker_follows_the_documented_order(
        spec in prop::sample::select(&SPECS[..]),
        per_node in any::<bool>(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let topology = machine(spec);
        let mut pair = Pair::new(&topology, per_node);
        for (nth, step) in steps.iter().enumerate() {
            let (real, model) = pair.step(step);
            prop_assert_eq!(real, model, "step {}: {:?}", nth, step);
            prop_assert_eq!(&pair.sets(|m| m.cpu), &pair.model.idle, "idle, {}: {:?}", nth, step);
            prop_assert_eq!(&pair.sets(|m| m.smt), &pair.model.idle_core_cpus, "cores, {}: {:?}", nth, step);
            let steps = (pair.state.topo_llc, pair.state.topo_numa);
            let model = (pair.model.llc_step, pair.model.numa_step);
            prop_assert_eq!(steps, model, "steps, {}: {:?}", nth, step);
        }
    }
}

fn all_idle(topology: &Topology, per_node: bool) -> Pair<'_> {
    let mut pair = Pair::new(topology, per_node);
    for cpu in 0..topology.nr_cpus() as u32 {
        pair.step(&IdleStep::Mark { cpu, idle: true });
    }
    pair
}

fn select(pair: &mut Pair<'_>, prev: u32) -> Option<u32> {
    let step =
        IdleStep::Select { here: 0, prev, affinity: u64::MAX, allowed: None, flags: 0, sync: None };
    let (real, model) = pair.step(&step);
    assert_eq!(real, model);
    real
}

#[test]
fn whole_cores_go_first_then_prev_then_its_sibling_then_the_rest() {
    let topology = machine("2n2c2t");
    let mut pair = all_idle(&topology, false);
    // CPUs 0-3 are node 0 with cores 0-1 and 2-3. Each pick takes one CPU, and no CPU goes idle
    // again, so the order of the CPUs taken is the picker's order.
    let picks: Vec<_> = (0..9).map(|_| select(&mut pair, 1)).collect();
    // Expected order, with CPU 1 as prev: prev itself; the other core of its LLC; cores of the
    // other node by rotation; then, because no whole core is idle any more, prev's sibling; the
    // rest of the LLC; the rest of the other node by rotation.
    assert_eq!(
        picks,
        [Some(1), Some(2), Some(4), Some(6), Some(0), Some(3), Some(5), Some(7), None]
    );
}

#[test]
fn llc_and_node_steps_exist_only_where_they_say_something() {
    let steps = |spec: &str, per_node| {
        let topology = machine(spec);
        let pair = Pair::new(&topology, per_node);
        (pair.state.topo_llc, pair.state.topo_numa)
    };
    assert_eq!(steps("8c2t", false), (false, false), "one LLC");
    assert_eq!(steps("2l4c2t", false), (true, false), "two LLCs in one node");
    assert_eq!(steps("2n4c2t", false), (true, false), "nodes are LLCs");
    assert_eq!(steps("2n2l2c2t", false), (true, true), "two LLCs in each of two nodes");
    assert_eq!(steps("2n2l2c2t", true), (true, false), "per-node masks stand for the node step");
    assert_eq!(
        steps("4l1c1t", false),
        (false, false),
        "a CPU that has its LLC to itself has no domain"
    );
}

#[test]
fn other_nodes_are_searched_by_distance() {
    let layout = Layout {
        cores: (0..4).map(|cpu| CoreLayout { cpus: vec![cpu], ..CoreLayout::default() }).collect(),
        llcs: (0..4).map(|cpu| LlcLayout { cpus: vec![cpu], ..LlcLayout::default() }).collect(),
        nodes: [[10, 40, 20, 30], [40, 10, 30, 20], [20, 30, 10, 40], [30, 20, 40, 10]]
            .into_iter()
            .zip(0..)
            .map(|(row, cpu)| NodeLayout {
                cpus: vec![cpu],
                distances: row.to_vec(),
                ..NodeLayout::default()
            })
            .collect(),
        ..Layout::default()
    };
    let topology = Topology::build(layout).unwrap();
    let mut pair = all_idle(&topology, true);
    let picks: Vec<_> = (0..5).map(|_| select(&mut pair, 0)).collect();
    assert_eq!(picks, [Some(0), Some(2), Some(3), Some(1), None]);
}

#[test]
fn sync_wakeup_takes_the_wakers_cpu_only_while_some_cpu_is_idle() {
    let topology = machine("2n2c1t");
    let sync = |pair: &mut Pair<'_>, may_take_over| {
        let sync = Some(may_take_over);
        let (real, model) = pair.step(&IdleStep::Select {
            here: 0,
            prev: 3,
            affinity: u64::MAX,
            allowed: None,
            flags: 0,
            sync,
        });
        assert_eq!(real, model);
        real
    };
    let mut pair = Pair::new(&topology, false);
    assert_eq!(sync(&mut pair, true), None, "nothing is idle");
    pair.step(&IdleStep::Mark { cpu: 2, idle: true });
    assert_eq!(sync(&mut pair, true), Some(0), "the waker's, though it is not idle");
    assert_eq!(sync(&mut pair, false), Some(2), "something waits on the waker's CPU");
}

#[test]
fn rotation_skips_cpu_0_first_and_wraps() {
    let topology = machine("4c1t");
    let mut mem = Memory::with_size(1 << 32).unwrap();
    let mut state = IdleState::new(&mut mem, topology.nr_cpus(), 1).unwrap();
    let any: Vec<_> =
        (0..5).map(|_| state.any_distribute(CpuId(2), &[0b1011], &[u64::MAX])).collect();
    assert_eq!(any, [1, 3, 0, 1, 3].map(|cpu| Some(CpuId(cpu))));
    assert_eq!(
        state.any_distribute(CpuId(1), &[0b1], &[u64::MAX]),
        Some(CpuId(0)),
        "own cursor per CPU"
    );
    assert_eq!(
        state.any_distribute(CpuId(1), &[0xf0], &[u64::MAX]),
        None,
        "bits behind the last CPU"
    );
}

#[test]
fn work_is_counted_for_charging() {
    let topology = machine("2n2l20c2t");
    let mut pair = all_idle(&topology, false);
    pair.state.work = Work::default();
    assert_eq!(select(&mut pair, 5), Some(5));
    let work = std::mem::take(&mut pair.state.work);
    assert_eq!((work.scanned_words, work.claims), (0, 1), "prev's core was idle: nothing to scan");
    pair.step(&IdleStep::Claim { cpu: 4 });
    pair.state.work = Work::default();
    let found = select(&mut pair, 5).unwrap();
    assert!(topology.same_llc(CpuId(found), CpuId(5)));
    assert!(pair.state.work.scanned_words > 0 && pair.state.work.claims == 1);
}
