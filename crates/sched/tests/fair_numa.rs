// SPDX-License-Identifier: GPL-2.0-only
//! `fair` with the knob `numa`: each process gathers on one node, the limits of this gathering, and
//! the consistency of per-node weights with the queued tasks.

mod fair_numa {
    pub mod matrix;
    pub mod parts;
    pub mod preferred;
    pub mod settle;
}

use std::collections::BTreeMap;
use std::sync::Arc;

use scxlab_kernel::Kernel;
use scxlab_kernel::ext::op::Op;
use scxlab_kernel::numa::NumaBalancing;
use scxlab_kernel::task::{Class, TaskState};
use scxlab_loader::btf::BtfKind;
use scxlab_loader::link::Loaded;
use scxlab_machine::Machine;
use scxlab_machine::id::CpuId;
use scxlab_testkit::checks;
use scxlab_testkit::shipped::{attach_with_recipe, scheduled};
use scxlab_testkit::sim::{kernel, link, region_pages};
use scxlab_testkit::state::{size_of, stat, struct_field, task_field};

use fair_numa::settle::{MS, NodeFigures, SECOND, assert_spread, node_of, watch, work};

/// Default of the knob `numa_settle_ns`, in ns.
const SETTLE: u64 = 32 * MS;
const KINDS: [&str; 3] = ["consolidate", "consolidate+load,load=pelt", "consolidate+faults"];

/// Returns processes of `threads` threads each, which sleep now and then, as virtual machines do.
/// The scheduler places forks on the nodes in turn. The threads of each process, which start one
/// after the other, therefore begin on all nodes.
fn guests(processes: u32, threads: u32, run: &str, sleep: &str) -> String {
    let instances = processes * threads;
    format!(
        "[[thread]]\nname = \"vm-{{i}}\"\nprocess = \"vm-{{i/{threads}}}\"\ninstances = {instances}\n\
         ops = [{{ loop = {{ ops = [{{ compute = \"{run}\" }}, {{ sleep = \"{sleep}\" }}] }} }}]\n"
    )
}

fn hogs(processes: u32, threads: u32) -> String {
    guests(processes, threads, "1ms", "0ms").replace(", { sleep = \"0ms\" }", "")
}

/// Runs for 3 s; returns the CPU time by process and node after the first second.
fn settled(numa: &str, machine: &str, workload: &str) -> (NodeFigures, Kernel, Loaded) {
    let (mut k, loaded) = scheduled(&format!("fair,numa={numa}"), machine, workload, 1);
    k.start();
    k.advance(MS / 2);
    assert_spread(&k);
    k.advance(SECOND);
    let seen = watch(&mut k, 3 * SECOND, None);
    checks::after(&k);
    (seen, k, loaded)
}

#[test]
fn each_process_ends_on_a_node_of_its_own() {
    let guests = guests(4, 4, "7ms", "1ms");
    let (off, before, _) = settled("off", "4n4c1t", &guests);
    for (process, time) in &off.time {
        let all: u64 = time.iter().sum();
        assert!(time.iter().all(|t| (20..=30).contains(&(t * 100 / all))), "{process}: {time:?}");
    }
    for kind in KINDS {
        let (seen, k, loaded) = settled(kind, "4n4c1t", &guests);
        assert_eq!(seen.time.len(), 4, "processes");
        assert!(seen.together() >= 90, "{kind}: {:?}", seen.time);
        assert!(seen.moves < 2, "{kind}: {} moves in two settled seconds", seen.moves);
        assert!(stat(&k, &loaded, "numa_pulls_running") > 0);
        let (all, was) = (work(&k), work(&before));
        assert!(all > was * 97 / 100, "{kind}: {all} ns of work, {was} without");
    }
}

#[test]
fn cpus_that_are_idle_for_good_are_asked() {
    // Two processes have four hogs each, two on each node; half of the CPUs are idle all the time.
    // Each process must gather on one node, and then no task may move.
    let (seen, ..) = settled("consolidate", "2n8c1t", &hogs(2, 4));
    assert!(seen.together() >= 90, "{:?}", seen.time);
    assert_eq!(seen.moves, 0);
}

#[test]
fn without_idle_moments_tasks_change_places() {
    // Each CPU has one hog from the start, so tasks can only exchange places, and each process must
    // gather on one node. First, two processes of eight hogs, four on each of two nodes. Then, four
    // processes of four hogs, for which three exchanges may not be enough.
    for (processes, threads, machine) in [(2, 8, "2n8c1t"), (4, 4, "4n4c1t")] {
        let (seen, k, loaded) = settled("consolidate", machine, &hogs(processes, threads));
        assert_eq!(seen.together(), 100, "{:?}", seen.time);
        assert_eq!(seen.moves, 0, "{:?}", seen.time);
        // Each exchange is two moves and leaves the nodes' loads as even as they were. So no task
        // ever waits, and the hogs do at least 99 % of the work that the CPUs could do.
        assert!(stat(&k, &loaded, "numa_swaps") >= 8);
        assert!(work(&k) > 3 * SECOND * u64::from(processes * threads) * 99 / 100);
    }
}

#[test]
fn a_task_that_came_stays_for_a_while() {
    // There are more threads than CPUs, so that balancing and consolidation conflict. A task that
    // either of them moved to a node must stay there for `SETTLE`.
    let text = guests(4, 6, "5ms", "3ms");
    let (mut k, loaded) = scheduled("fair,numa=consolidate", "4n4c1t", &text, 1);
    k.start();
    k.advance(MS / 2);
    assert_spread(&k);
    let seen = watch(&mut k, SECOND, None);
    assert!(seen.shortest.is_none_or(|gap| gap + MS >= SETTLE), "{:?} ns", seen.shortest);
    assert!(stat(&k, &loaded, "numa_bounces_avoided") > 0);
    let (first, second) =
        (stat(&k, &loaded, "numa_first_pass"), stat(&k, &loaded, "numa_second_pass"));
    assert!(first > 0 && second > 0, "{first} and {second}");
    assert!(stat(&k, &loaded, "numa_pulls") + stat(&k, &loaded, "numa_pulls_running") > 0);
}

/// A process of as many hogs as a node has CPUs, on cores of two threads. With room for a task per
/// core it keeps to one task per core of both nodes. With room for a task per CPU, as in the
/// series, it gathers on one node, whose cores it shares.
#[test]
fn room_by_cpus_fills_the_threads_of_cores() {
    let share = |knobs: &str| {
        let (seen, ..) = settled(&format!("consolidate{knobs}"), "2n4c2t", &hogs(1, 8));
        let time = seen.time.values().next().expect("the process");
        time[0].max(time[1]) * 100 / time.iter().sum::<u64>()
    };
    let (cores, cpus) = (share(""), share(",numa_room=cpus"));
    assert!(cores <= 55 && cpus >= 90, "{cores} {cpus}");
}

#[test]
fn a_process_larger_than_a_node_does_not_crowd_it() {
    let text = guests(1, 6, "9ms", "1ms");
    let (seen, ..) = settled("consolidate", "2n4c1t", &text);
    let time = seen.time.values().next().expect("the process");
    let all: u64 = time.iter().sum();
    assert!(time[0].max(time[1]) * 100 / all <= 72, "{time:?}: at most four of six on a node");
}

#[test]
fn pinned_threads_stay_and_are_left_alone() {
    let text = "[[thread]]\nname = \"vm-{i}\"\nprocess = \"vm\"\ninstances = 2\ncpus = [0, 1, 2, 3]\n\
                ops = [{ loop = { ops = [{ compute = \"5ms\" }, { sleep = \"1ms\" }] } }]\n\
                [[thread]]\nname = \"vm-1{i}\"\nprocess = \"vm\"\ninstances = 2\ncpus = [4, 5, 6, 7]\n\
                ops = [{ loop = { ops = [{ compute = \"5ms\" }, { sleep = \"1ms\" }] } }]\n";
    let (seen, k, loaded) = settled("consolidate", "2n4c1t", text);
    assert_eq!(seen.moves, 0);
    assert!(stat(&k, &loaded, "numa_limited") > 0);
    let torn: u64 = k.tasks.iter().map(|t| t.account.switches_involuntary).sum();
    assert!(torn < 30, "{torn} times off a CPU in vain, in 3 s");
}

fn pointer(k: &Kernel, loaded: &Loaded, name: &str) -> i64 {
    let text = loaded.read_global(&k.vm, name).unwrap_or_else(|e| panic!("{e}"));
    u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("an address") as i64
}

/// Checks that three sums agree for each node: the queued weight that the scheduler keeps for the
/// node, the queued weights that it keeps for each process on the node, and the weights of the
/// kernel's runnable tasks there.
fn check_sums(k: &Kernel, loaded: &Loaded, nodes: i64, by_load: bool) {
    let (proc_bytes, share_bytes) = (size_of(loaded, "numa_proc"), size_of(loaded, "numa_share"));
    let (array, node_bytes) = (pointer(k, loaded, "numa_nodes"), size_of(loaded, "numa_node"));
    let (mut real, mut procs) = (vec![0; nodes as usize], BTreeMap::new());
    for t in k.tasks.iter().filter(|t| t.class == Class::Ext && t.state != TaskState::Dead) {
        let own = task_field(k, loaded, &t.name, "t");
        procs.insert(struct_field(k, loaded, "fair_task", own, "numa.proc"), ());
        if t.on_rq {
            let weight = if by_load {
                struct_field(k, loaded, "fair_task", own, "se.contrib")
            } else {
                struct_field(k, loaded, "fair_task", own, "se.weight")
            };
            // A task on its way to another CPU counts on its former CPU until it runs on the new
            // one.
            let counted = CpuId(struct_field(k, loaded, "fair_task", own, "cpu") as u32);
            real[node_of(k, if t.on_cpu { t.cpu } else { counted })] += weight;
        }
    }
    for node in 0..nodes {
        let queued = struct_field(k, loaded, "numa_node", array + node * node_bytes, "queued");
        let share = |p: &i64| p + proc_bytes + node * share_bytes;
        let all: i64 =
            procs.keys().map(|p| struct_field(k, loaded, "numa_share", share(p), "queued")).sum();
        assert_eq!(all, queued, "node {node} at {}: its processes, and what is queued", k.now);
        assert_eq!(queued, real[node as usize], "node {node} at {}: of runnable tasks", k.now);
    }
}

#[test]
fn weights_of_nodes_are_what_is_queued_at_every_event() {
    for (kind, by_load) in [("consolidate", false), ("consolidate+load,load=pelt", true)] {
        let text = guests(4, 5, "2ms", "1ms")
            + "[[thread]]\nname = \"odd-{i}\"\ninstances = 4\nnice = 5\n\
               ops = [{ loop = { ops = [{ compute = \"3ms\" }, \"yield\", { sleep = \"700us\" }] } }]\n";
        let (mut k, loaded) = scheduled(&format!("fair,numa={kind}"), "4n4c1t", &text, 3);
        k.start();
        while k.now < 100 * MS {
            let next = k.events.iter_unordered().map(|e| e.time).min().expect("an event");
            k.advance(next);
            check_sums(&k, &loaded, 4, by_load);
        }
        assert!(stat(&k, &loaded, "numa_pulls_running") > 0, "{kind}");
    }
}

/// Sets the node of a task's memory, as automatic NUMA balancing would for a task with regions.
fn set_memory(k: &mut Kernel, name: &str, node: i32) {
    let addr = k.tasks.iter().find(|t| t.name == name).expect("the task").addr;
    let target = k.target();
    let ty = target.btf.find("task_struct", BtfKind::Struct).expect("a task_struct");
    let field = target.btf.path(ty, ".numa_preferred_nid").expect("the field");
    let bytes = k.vm.mem.host_slice_mut::<u8>(addr + field.byte_off(), 4);
    bytes.copy_from_slice(&node.to_le_bytes());
}

/// Returns processes whose threads are pinned to the given CPUs for 20 ms, long enough for the
/// scheduler to see their memory's node.
fn settlers(processes: u32, cpus: &[u32]) -> String {
    let thread = |(i, cpu): (usize, &u32)| {
        let process = i as u32 % processes;
        format!(
            "[[thread]]\nname = \"vm-{i}\"\nprocess = \"vm-{process}\"\ncpus = [{cpu}]\n\
             ops = [{{ loop = {{ times = 10, ops = [{{ compute = \"1ms\" }}, {{ sleep = \"1ms\" }}] }} }}, \"clear_affinity\", \
             {{ loop = {{ ops = [{{ compute = \"3ms\" }}, {{ sleep = \"1ms\" }}] }} }}]\n"
        )
    };
    cpus.iter().enumerate().map(thread).collect()
}

/// Returns the node on which each of four processes ends, on a machine of four nodes. Each process
/// has four threads, one on each node at the start; `memory` is the node of each process's memory.
fn ends(memory: [i32; 4], seed: u64) -> (Vec<usize>, NodeFigures) {
    // Each process has one thread on every node.
    let cpus: Vec<u32> = (0..16).map(|i| i / 4 + (i + i / 4) % 4 * 4).collect();
    let (mut k, _) = scheduled("fair,numa=consolidate+faults", "4n4c1t", &settlers(4, &cpus), seed);
    k.start();
    k.advance(MS);
    assert_spread(&k);
    for i in 0..16 {
        set_memory(&mut k, &format!("vm-{i}"), memory[i % 4]);
    }
    k.advance(SECOND);
    let seen = watch(&mut k, 2 * SECOND, None);
    let of = |t: &Vec<u64>| (0..4).max_by_key(|n| t[*n]).expect("a node");
    (seen.time.values().map(of).collect(), seen)
}

#[test]
fn with_faults_a_process_goes_to_its_memory() {
    let orders = [[3, 2, 1, 0], [0, 1, 2, 3], [1, 2, 3, 0], [2, 0, 3, 1], [1, 0, 3, 2]];
    for (seed, memory) in (1..).zip(orders) {
        let (homes, seen) = ends(memory, seed);
        assert_eq!(homes, memory.map(|n| n as usize), "{:?}", seen.time);
        assert!(seen.together() >= 90, "{:?}", seen.time);
    }
}

#[test]
fn processes_whose_memory_is_on_one_node_come_together_all_the_same() {
    for seed in 1..=20 {
        let (mut homes, seen) = ends([seed as i32 % 4; 4], seed);
        homes.sort_unstable();
        assert_eq!(homes, [0, 1, 2, 3], "seed {seed}: {:?}", seen.time);
        assert!(seen.together() >= 90, "seed {seed}: {:?}", seen.time);
    }
}

#[test]
fn faults_are_the_second_key() {
    // Three of four threads begin on node 0. The memory is on node 1, but weight takes precedence,
    // so all four threads must end on node 0.
    let text = settlers(1, &[0, 1, 2, 4]);
    let (mut k, _) = scheduled("fair,numa=consolidate+faults", "2n4c1t", &text, 1);
    k.start();
    k.advance(MS);
    (0..4).for_each(|i| set_memory(&mut k, &format!("vm-{i}"), 1));
    k.advance(SECOND);
    let seen = watch(&mut k, 2 * SECOND, None);
    let time = seen.time.values().next().expect("the process");
    assert_eq!((seen.moves, time[1]), (0, 0), "{time:?}");
}

/// Four processes of four threads with a heap each, most of which lies on one node: 64 % on node
/// `i + shift` for process i, the rest on all nodes.
fn with_memory(shift: u32) -> String {
    (0..4)
        .map(|i| {
            let home = (i + shift) % 4;
            format!(
                "[[region]]\nname = 'heap-{i}'\nsize = '26MiB'\nhuge = false\npopulate = '{home}'\n\
                 [[region]]\nname = 'rest-{i}'\nsize = '24MiB'\nhuge = false\npopulate = '0-3'\n\
                 [[thread]]\nname = 'vm-{i}-{{i}}'\nprocess = 'vm-{i}'\ninstances = 4\n\
                 ops = [{{ loop = {{ ops = [\
                 {{ compute = {{ work = '4ms', region = 'heap-{i}', memory = 50 }} }}, \
                 {{ compute = {{ work = '3ms', region = 'rest-{i}', memory = 50 }} }}, \
                 {{ sleep = '1ms' }}] }} }}]\n"
            )
        })
        .collect()
}

/// Returns for each process the node with most of its CPU time in the last second, and the parts
/// of its CPU time and of its pages there, in percent.
fn places(k: &mut Kernel, until: u64) -> Vec<(usize, u64, u64)> {
    k.advance(until - SECOND);
    let seen = watch(k, until, None);
    let regions = region_pages(k);
    let place = |(i, time): (usize, &Vec<u64>)| {
        let node = (0..4).max_by_key(|n| time[*n]).expect("a node");
        let own = || regions.iter().filter(|region| region.owner == format!("vm-{i}"));
        let there: u64 = own().map(|region| region.pages[node]).sum();
        let all: u64 = own().flat_map(|region| &region.pages).sum();
        (node, time[node] * 100 / time.iter().sum::<u64>(), there * 100 / all)
    };
    seen.time.values().enumerate().map(place).collect()
}

/// With scans of sched_ext tasks, the pages of each process come to the node where consolidation
/// has brought its tasks: the state that the 2013 thread aimed at.
#[test]
fn tasks_and_memory_come_to_one_node() {
    for seed in 1..=20 {
        let shift = seed as u32 % 4;
        let (mut k, _) =
            scheduled("fair,numa=consolidate+faults", "4n4c1t", &with_memory(shift), seed);
        k.numa_balancing = NumaBalancing::Ext;
        k.start();
        let places = places(&mut k, 20 * SECOND);
        assert!(places.iter().all(|p| p.1 >= 90 && p.2 >= 90), "seed {seed}: {places:?}");
        let mut nodes: Vec<usize> = places.iter().map(|p| p.0).collect();
        nodes.sort_unstable();
        assert_eq!(nodes, [0, 1, 2, 3]);
        checks::after(&k);
    }
}

/// Four guests of four vCPUs, whose memory lies on node `i + shift` for guest i. The scheduler
/// places the vCPUs on the nodes in turn.
fn real_guests(shift: u32) -> String {
    (0..4)
        .map(|i| {
            let home = (i + shift) % 4;
            format!(
                "[[guest]]\nname = 'vm-{i}'\nvcpus = 4\n\
                 memory = {{ size = '50MiB', huge = false, populate = '{home}' }}\n\
                 [[guest.program.region]]\nname = 'heap'\nsize = '50MiB'\n\
                 [[guest.program.thread]]\nname = 'worker'\nprocess = 'job'\ninstances = 4\n\
                 ops = [{{ loop = {{ ops = [\
                 {{ compute = {{ work = '7ms', region = 'heap', memory = 50 }} }}, \
                 {{ sleep = '1ms' }}] }} }}]\n"
            )
        })
        .collect()
}

/// The goal of the 2013 thread with guests instead of processes: each guest's vCPUs and memory come
/// to one node. Without the counts of faults the node is another one than that of the memory.
#[test]
fn guests_and_their_memory_come_to_one_node() {
    let run = |numa: &str, balancing, seed: u64| {
        let text = real_guests(seed as u32 % 4);
        let (mut k, _) = scheduled(&format!("fair,numa={numa}"), "4n4c1t", &text, seed);
        k.numa_balancing = balancing;
        k.start();
        let places = places(&mut k, 20 * SECOND);
        checks::after(&k);
        places
    };
    let mut wrong = 0;
    for seed in 1..=8 {
        let with = run("consolidate+faults", NumaBalancing::Ext, seed);
        assert!(with.iter().all(|p| p.1 >= 90 && p.2 >= 90), "seed {seed}: {with:?}");
        let without = run("consolidate", NumaBalancing::Off, seed);
        wrong += without.iter().filter(|p| p.1 >= 90 && p.2 < 10).count();
    }
    assert!(wrong > 0, "no guest was away from its memory");
}

/// As Linux 7.3 does it: the default class places tasks and pages for a while, then the scheduler
/// is attached. Its tasks gather, and no page moves any more.
#[test]
fn after_the_attach_pages_stay() {
    let machine = Arc::new(Machine::resolve("4n4c1t").unwrap());
    let mut k = kernel("4n4c1t", &with_memory(1), 1);
    k.start();
    k.advance(8 * SECOND);
    let preferred = k.tasks.iter().filter(|t| t.name.starts_with("vm-"));
    let preferred: Vec<_> = preferred.map(|t| k.fair.numa_preferred(t.id)).collect();
    assert!(preferred.iter().all(Option::is_some), "{preferred:?}");
    attach_with_recipe(&mut k, "fair,numa=consolidate+faults", &machine);
    let migrated = |k: &Kernel| k.memory.as_ref().unwrap().stats.pages_migrated;
    // Marks of the last scan before the attach may still move a page.
    k.advance(10 * SECOND);
    let before = migrated(&k);
    assert!(before > 0);
    let places = places(&mut k, 14 * SECOND);
    assert!(places.iter().all(|p| p.1 >= 90), "{places:?}");
    assert_eq!(migrated(&k), before);
    checks::after(&k);
}

#[test]
fn on_one_node_nothing_is_done() {
    let text = guests(4, 2, "3ms", "1ms");
    // Returns the mean BPF instructions of the four operations that every task goes through. No
    // counter of NUMA moves may grow.
    let of = |numa: &str| {
        let (mut k, loaded) = scheduled(&format!("fair,numa={numa}"), "4c", &text, 1);
        k.start();
        k.advance(SECOND);
        for counter in
            ["numa_pulls", "numa_pulls_running", "numa_wakes", "numa_swaps", "numa_first_pass"]
        {
            assert_eq!(stat(&k, &loaded, counter), 0, "{counter}");
        }
        [Op::Dispatch, Op::Enqueue, Op::Running, Op::Tick].map(|op| {
            let stats = k.ext.op_stats.0[op as usize];
            stats.insns / stats.calls
        })
    };
    let (off, on) = (of("off"), of("consolidate"));
    assert!(off.iter().zip(&on).all(|(off, on)| *on < off + 25), "{off:?} off, {on:?} on");
}

#[test]
fn two_runs_are_one() {
    let of = || {
        let (seen, k, _) = settled("consolidate", "4n4c1t", &guests(4, 5, "5ms", "2ms"));
        (seen.time, seen.moves, k.metrics.events)
    };
    assert_eq!(of(), of());
}

#[test]
fn what_it_cannot_do_is_refused() {
    let refusal = |knobs: &[(&str, &str)]| {
        let mut k = kernel("2n2c1t", "hogs,tasks=2", 1);
        let object = scxlab_sched::find("fair").expect("fair").object;
        let loaded = link(&mut k, "fair", object, knobs);
        let attached = k.attach_object(&loaded, None);
        let said = format!("{attached:?} {:?}", k.ext.exits);
        assert!(attached.is_err() || !k.ext.exits.is_empty(), "{said}");
        said
    };
    let nodes = refusal(&[("numa", "1"), ("topo_cpus", "4"), ("cpu_node[3]", "64")]);
    assert!(nodes.contains("built for nodes 0 to 63"), "{nodes}");
    let load = refusal(&[("numa", "2"), ("load", "0")]);
    assert!(load.contains("needs load=pelt"), "{load}");
    let kind = refusal(&[("numa", "7")]);
    assert!(kind.contains("preferred (0 to 4)"), "{kind}");
}
