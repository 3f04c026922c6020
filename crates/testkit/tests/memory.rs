// SPDX-License-Identifier: GPL-2.0-only
//! Memory steps: accesses take the machine's latency, streams get the machine's bandwidth, and
//! pages are conserved.

use scxlab_kernel::Kernel;
use scxlab_kernel::behavior::{
    Access, AccessId, Behavior, MemPolicy, Order, RegionSpec, Sys, TaskSpec, TaskStep,
};
use scxlab_kernel::boot::Setup;
use scxlab_kernel::kernel::{Limits, Stop};
use scxlab_machine::cpumask::{self, CpuMask};
use scxlab_machine::id::{CpuId, NodeId, TaskId};
use scxlab_machine::{Machine, Stream, presets};
use scxlab_testkit::canary::{Canary, InjectedFault, ops_data};
use scxlab_testkit::checks::{Contract, run_checked};
use std::collections::BTreeMap;
use std::sync::Arc;

const MS: u64 = 1_000_000;
const PAGES_PER_MIB: u64 = 256;

/// A task with a region of its own.
#[derive(Clone)]
struct Toucher {
    cpus: Vec<CpuId>,
    region: RegionSpec,
    write: bool,
    random: bool,
    memory_permille: u64,
    /// Work of one step, ns.
    work: u64,
    /// Sleep after each step, ns.
    sleep: u64,
}

impl Toucher {
    fn new(cpu: CpuId, pages: u64, populate: &[NodeId]) -> Toucher {
        let region = RegionSpec {
            name: format!("region{cpu}"),
            pages,
            policy: MemPolicy::FirstTouch,
            populate: populate.to_vec(),
            huge: false,
            merge_percent: 0,
        };
        Toucher {
            cpus: vec![cpu],
            region,
            write: false,
            random: false,
            memory_permille: 1000,
            work: MS,
            sleep: 0,
        }
    }
}

/// The tasks of a run, all of which touch memory for ever.
struct Touchers {
    machine: Arc<Machine>,
    plan: Vec<Toucher>,
    tasks: BTreeMap<TaskId, (AccessId, Toucher, bool)>,
}

impl Behavior for Touchers {
    fn start(&mut self, sys: &mut dyn Sys) {
        let costs = self.machine.costs.workload.clone();
        for toucher in self.plan.clone() {
            let region = sys.region_new(toucher.region.clone()).unwrap();
            let (time, bytes) = match (toucher.random, toucher.write) {
                (true, _) => (costs.mem_access_ns, 64),
                (false, false) => (costs.mem_read_ns_per_kib * 4, 4096),
                (false, true) => (costs.mem_write_ns_per_kib * 4, 4096),
            };
            let access = Access {
                region,
                first_page: 0,
                pages: toucher.region.pages,
                order: if toucher.random {
                    Order::Random
                } else {
                    Order::Sequential { resume: true }
                },
                write: toucher.write,
                memory_permille: toucher.memory_permille,
                period: time * 1024 * 1000 / toucher.memory_permille,
                traffic: bytes * 1000 / time * if toucher.write { 2 } else { 1 },
            };
            let access = sys.access_new(access).unwrap();
            let cpus = CpuMask::of(sys.nr_cpus() as usize, toucher.cpus.iter().copied());
            let spec = TaskSpec { affinity: Some(cpus), ..TaskSpec::normal("toucher") };
            let task = sys.fork(None, spec).unwrap();
            self.tasks.insert(task, (access, toucher, false));
        }
    }

    fn step(&mut self, sys: &mut dyn Sys, task: TaskId) -> TaskStep {
        let (access, toucher, slept) = self.tasks.get_mut(&task).unwrap();
        *slept = !*slept;
        if toucher.sleep > 0 && !*slept {
            return TaskStep::SleepUntil(sys.now() + toucher.sleep);
        }
        sys.set_access(task, *access);
        TaskStep::Memory { work: toucher.work }
    }

    fn on_timer(&mut self, _: &mut dyn Sys, _: u64) {}

    fn unit(&self) -> &str {
        "step"
    }

    fn waits_for(&self, _: TaskId) -> Option<String> {
        None
    }
}

fn boot(machine: &Arc<Machine>, plan: Vec<Toucher>) -> Kernel {
    let setup = Setup {
        machine: machine.clone(),
        seed: 1,
        limits: Limits::default(),
        tracer: Default::default(),
        mem_size: 1 << 32,
    };
    let tasks = Touchers { machine: machine.clone(), plan, tasks: BTreeMap::new() };
    Kernel::boot(setup, Box::new(tasks)).unwrap()
}

fn run(machine: &Arc<Machine>, plan: Vec<Toucher>, ms: u64) -> Kernel {
    let mut k = boot(machine, plan);
    assert_eq!(k.run(Some(ms * MS)), Stop::Finished);
    k
}

fn cpus_of(machine: &Machine, node: usize) -> Vec<CpuId> {
    cpumask::iter(&machine.topology.nodes()[node].cpus).collect()
}

/// Returns whether `seen` is within 2 % of `wanted`.
fn close(seen: u64, wanted: u64) -> bool {
    seen.abs_diff(wanted) * 50 <= wanted
}

fn all_presets() -> Vec<Arc<Machine>> {
    presets().iter().map(|(name, _)| Arc::new(Machine::resolve(name).unwrap())).collect()
}

fn served(k: &Kernel, node: usize) -> u64 {
    k.memory.as_ref().unwrap().stats.served_bytes(NodeId(node as u32))
}

#[test]
fn latency_is_the_machines() {
    for machine in all_presets() {
        let memory = machine.node_memory();
        let nodes = machine.topology.nodes().len();
        for (from, to) in (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to))) {
            let Some(&cpu) = cpus_of(&machine, from).first() else { continue };
            let to = NodeId(to as u32);
            let chase = Toucher::new(cpu, 64 * PAGES_PER_MIB, &[to]);
            let k = run(&machine, vec![Toucher { random: true, ..chase }], 20);
            let stats = &k.memory.as_ref().unwrap().stats;
            let wanted = memory.latency_ns.at(NodeId(from as u32), to);
            let seen = k.cpus[cpu].time.busy / stats.accesses();
            // 1 ns more: both are rounded down.
            let name = &machine.name;
            assert!(
                close(seen, wanted) || seen.abs_diff(wanted) <= 1,
                "{name} {from} {to}: {seen} {wanted}"
            );
            let remote = if to.idx() == from { 0 } else { stats.accesses() };
            assert_eq!(stats.remote_accesses(), remote);
        }
    }
}

/// All CPUs of a node read memory in sequence, of their own or of another node: together they get
/// the bandwidth of the node or of the link, or, if they cannot use it up, each gets its own rate.
#[test]
fn bandwidth_is_the_machines() {
    let mut saturated = 0;
    for machine in all_presets() {
        let memory = machine.node_memory();
        let nodes = machine.topology.nodes().len();
        for to in [0, nodes - 1] {
            let cpus = cpus_of(&machine, 0);
            let node = NodeId(to as u32);
            let stream = |cpu: &CpuId| Toucher::new(*cpu, 16 * PAGES_PER_MIB, &[node]);
            let mut k = boot(&machine, cpus.iter().map(stream).collect());
            k.start();
            // The tasks start one after the other, so measure only once all of them run.
            let mut served_at = |until: u64| {
                k.advance(until);
                k.close();
                served(&k, to)
            };
            let before = served_at(20 * MS);
            let seen = (served_at(40 * MS) - before) * 1000 / (20 * MS);
            let link = memory.link_mb_s.at(NodeId(0), node);
            let most = memory.bandwidth_mb_s[to].min(if to == 0 { u64::MAX } else { link });
            let slow =
                memory.latency_ns.at(NodeId(0), node) * 1000 / machine.costs.workload.mem_access_ns;
            let alone = 1024 * 1_000_000 / machine.costs.workload.mem_read_ns_per_kib / slow;
            let wanted = most.min(alone * cpus.len() as u64);
            saturated += u32::from(wanted == most);
            assert!(close(seen, wanted), "{} to node {to}: {seen} of {wanted} MB/s", machine.name);
        }
    }
    assert!(saturated >= 15, "{saturated}");
}

/// Two streams beyond saturation share the node equally; tasks that also compute fill it.
#[test]
fn users_share_a_full_node() {
    let mut machine = Machine::resolve("4c").unwrap();
    machine.costs.memory.bandwidth_mb_s = 8000;
    let machine = Arc::new(machine);
    let stream = |cpu| Toucher::new(CpuId(cpu), 16 * PAGES_PER_MIB, &[NodeId(0)]);
    let k = run(&machine, vec![stream(0), stream(1)], 20);
    let ran = |cpu: u32| k.cpus[CpuId(cpu)].time.busy;
    // Until they are told of each other's demand, both run at full speed.
    let most = 160_000_000 + 500_000;
    assert!(close(ran(0), 20 * MS), "{}", ran(0));
    assert!((159_800_000..=most).contains(&served(&k, 0)), "{}", served(&k, 0));
    let mixed = [300, 600, 1000].iter().zip(0..);
    let mixed = mixed.map(|(m, cpu)| Toucher { memory_permille: *m, ..stream(cpu) }).collect();
    let k = run(&machine, mixed, 20);
    assert!((156_800_000..=most).contains(&served(&k, 0)), "{}", served(&k, 0));
}

/// A write moves its line twice.
#[test]
fn writes_take_twice_the_bandwidth() {
    let machine = Arc::new(Machine::resolve("1c").unwrap());
    let stream = Toucher::new(CpuId(0), 16 * PAGES_PER_MIB, &[NodeId(0)]);
    let k = run(&machine, vec![Toucher { write: true, ..stream }], 20);
    let busy = k.cpus[CpuId(0)].time.busy;
    let stats = &k.memory.as_ref().unwrap().stats;
    assert!(close(stats.accesses() * 64, busy * 1024 / 150), "{}", stats.accesses());
    assert!(close(served(&k, 0), 2 * stats.accesses() * 64));
}

/// First touches cost what the table says, and put each page on the node of the CPU.
#[test]
fn first_touches_are_charged() {
    let machine = Arc::new(Machine::resolve("2n2c1t").unwrap());
    let costs = &machine.costs.memory;
    let cases = [
        (false, 8192, 8192 * (costs.page_fault_ns + 4 * costs.page_clear_ns_per_kib)),
        (true, 8192, 16 * (costs.huge_fault_ns + 2048 * costs.page_clear_ns_per_kib)),
        // More than 16,384 pages: a unit has two.
        (false, 20_000, 20_000 * (costs.page_fault_ns + 4 * costs.page_clear_ns_per_kib)),
    ];
    for (huge, pages, wanted) in cases {
        for random in [false, true] {
            let mut toucher = Toucher::new(CpuId(3), pages, &[]);
            toucher.region.huge = huge;
            let k = run(&machine, vec![Toucher { random, ..toucher }], 200);
            let memory = k.memory.as_ref().unwrap();
            let on = memory.regions().next().unwrap().on();
            assert!(on[0] == 0 && on[1] <= pages);
            if !random {
                assert_eq!(on[1], pages, "one pass takes a tenth of the run");
            }
            let part = wanted * on[1] / pages;
            assert!(memory.stats.first_touch_ns.abs_diff(part) * 1000 <= part, "{huge} {random}");
            assert!(on[1] * 10 >= pages * 9, "{huge} {random}: {on:?}");
        }
    }
}

/// A stop touches a bounded number of pages, so no path through the kernel is longer than 100 us.
#[test]
fn first_touches_do_not_hold_the_kernel() {
    let machine = Arc::new(Machine::resolve("1c").unwrap());
    for huge in [false, true] {
        let mut toucher = Toucher::new(CpuId(0), 1 << 20, &[]);
        toucher.region.huge = huge;
        let mut k = boot(&machine, vec![toucher]);
        k.start();
        for us in 1..2000 {
            k.advance(us * 10_000);
            let c = &k.cpus[CpuId(0)];
            assert!(c.kernel_until <= k.now + 100_000, "{huge}: {} at {}", c.kernel_until, k.now);
        }
    }
}

/// 200 random programs on random machines: the laws hold every 10 us for 5 ms, and every ms for
/// 40 ms.
#[test]
fn pages_add_up() {
    for seed in 0..200 {
        let mut rng = Stream::new(seed, "pages_add_up", 0);
        let mut draw = |n: u64| rng.next_u64() % n;
        let spec = ["1c", "2n2c1t", "4n1c2t", "2n4c1t"][draw(4) as usize];
        let machine = Arc::new(Machine::resolve(spec).unwrap());
        let (nr_cpus, nr_nodes) = (machine.topology.nr_cpus(), machine.topology.nodes().len());
        let plan = (0..1 + draw(12)).map(|i| {
            let mut node = || NodeId(draw(nr_nodes as u64) as u32);
            let nodes: Vec<NodeId> = (0..nr_nodes as u32).map(NodeId).collect();
            let (one, other) = (node(), node());
            let policy = match draw(4) {
                0 => MemPolicy::FirstTouch,
                1 => MemPolicy::Interleave(nodes.clone()),
                2 => MemPolicy::Bind(vec![one]),
                _ => MemPolicy::Preferred(one),
            };
            let populate = if draw(3) == 0 { vec![other] } else { Vec::new() };
            let huge = draw(2) == 0;
            let merge_percent = if huge { 0 } else { [0, 0, 20, 100][draw(4) as usize] };
            let name =
                format!("r{}", if merge_percent > 0 { 100 + merge_percent } else { i as u8 });
            let most = [1000, 1000, 5000, 40_000][draw(4) as usize];
            let pages = if merge_percent > 0 { 1500 } else { 1 + draw(most) };
            let region = RegionSpec { name, pages, policy, populate, huge, merge_percent };
            let cpus: Vec<CpuId> = (0..nr_cpus as u32).map(CpuId).collect();
            Toucher {
                cpus,
                region,
                write: draw(2) == 0,
                random: draw(2) == 0,
                memory_permille: 1 + draw(1000),
                work: 1 + draw(3 * MS),
                sleep: draw(2) * draw(MS),
            }
        });
        let plan: Vec<Toucher> = plan.collect();
        for (until, step) in [(5 * MS, 10_000), (40 * MS, MS)] {
            let mut k = boot(&machine, plan.clone());
            run_checked(&mut k, until, step, Contract::default())
                .unwrap_or_else(|broken| panic!("seed {seed} on {spec}: {broken:#?}"));
        }
    }
}

fn canary(fault: InjectedFault) -> String {
    let machine = Arc::new(Machine::resolve("2n2c1t").unwrap());
    let toucher = Toucher { sleep: 1000, work: 1000, ..Toucher::new(CpuId(0), 10, &[]) };
    let mut k = boot(&machine, vec![toucher; 4]);
    k.attach(Canary::program(fault), ops_data("canary")).expect("attached");
    let broken = run_checked(&mut k, 100 * MS, 50_000, Contract::default()).unwrap_err();
    format!("{}: {}", broken.law, broken.what)
}

#[test]
fn a_lost_page_is_seen() {
    let seen = canary(InjectedFault::LosePage);
    assert!(seen.starts_with("pages add up: node 0: regions have"), "{seen}");
}

#[test]
fn invented_bandwidth_is_seen() {
    let seen = canary(InjectedFault::StretchBandwidth);
    assert!(seen.starts_with("pages add up: node 0: delivered"), "{seen}");
}

/// A region for which no node has room ends the run.
#[test]
fn memory_that_is_full_ends_the_run() {
    let machine = Arc::new(Machine::resolve("2n1c1t").unwrap());
    let room = machine.topology.nodes()[0].memory_bytes / 4096;
    let mut toucher = Toucher::new(CpuId(1), room + 1, &[]);
    toucher.region.policy = MemPolicy::Bind(vec![NodeId(0)]);
    toucher.region.huge = true;
    let mut k = boot(&machine, vec![Toucher { work: 1 << 40, ..toucher }]);
    let stop = k.run(Some(1 << 45));
    assert_eq!(stop, Stop::MemoryFull { region: "region1".into() });
}
