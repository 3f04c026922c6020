// SPDX-License-Identifier: GPL-2.0-only
//! Ops that access regions: pages lie where the policies say, regions live as long as their owners,
//! and the metrics of memory move with the machine's constants.

use scxlab_kernel::Kernel;
use scxlab_kernel::kernel::Stop;
use scxlab_kernel::numa::NumaBalancing;
use scxlab_machine::{Machine, Ratio};
use scxlab_testkit::checks;
use scxlab_testkit::sim::kernel_with_calls;
use scxlab_workload::{Executor, RegionPages};

const MS: u64 = 1_000_000;

/// Runs a workload on a machine with changed constants, without a scheduler loaded and without NUMA
/// balancing, which would move pages (see `numa.rs`).
fn run_on(spec: &str, tune: impl Fn(&mut Machine), text: &str, ms: u64) -> Kernel {
    let mut machine = Machine::resolve(spec).unwrap();
    tune(&mut machine);
    let mut k = kernel_with_calls(machine, text, 1);
    k.numa_balancing = NumaBalancing::Off;
    let stop = k.run(Some(ms * MS));
    assert!(matches!(stop, Stop::Finished | Stop::AllExited), "{stop:?}");
    checks::after(&k);
    k
}

fn run(spec: &str, text: &str, ms: u64) -> Kernel {
    run_on(spec, |_| {}, text, ms)
}

fn pages(k: &Kernel) -> Vec<RegionPages> {
    k.behavior::<Executor>().unwrap().region_pages(k.memory.as_deref())
}

fn first_touch_ns(k: &Kernel) -> u64 {
    k.memory.as_ref().unwrap().stats.first_touch_ns
}

fn accesses(k: &Kernel) -> u64 {
    k.memory.as_ref().unwrap().stats.accesses()
}

/// A thread on CPU `cpu` that writes a region of `keys` once, and then stays alive.
fn writer(cpu: u32, keys: &str) -> String {
    format!(
        "[[region]]\nname = 'heap'\n{keys}\n[[thread]]\nname = 'a'\ncpus = '{cpu}'\n\
         ops = [{{ touch = {{ region = 'heap' }} }}, {{ sleep = '10s' }}]\n"
    )
}

/// Pages per node, to the page, for each policy, on two and on four nodes, huge and small.
#[test]
fn placement_follows_policy() {
    // 6 MiB: 1536 small or 3 huge pages.
    let cases = [
        ("2n2c1t", 3, "", [0, 1536, 0, 0], [0, 1536, 0, 0]),
        ("4n1c1t", 2, "", [0, 0, 1536, 0], [0, 0, 1536, 0]),
        ("2n2c1t", 0, "policy = { interleave = '0-1' }", [768, 768, 0, 0], [1024, 512, 0, 0]),
        ("4n1c1t", 0, "policy = { interleave = '1-3' }", [0, 512, 512, 512], [0, 512, 512, 512]),
        ("4n1c1t", 0, "policy = { bind = '1,3' }", [0, 1536, 0, 0], [0, 1536, 0, 0]),
        ("4n1c1t", 0, "policy = { preferred = 2 }", [0, 0, 1536, 0], [0, 0, 1536, 0]),
        ("4n1c1t", 0, "populate = '1,2'", [0, 768, 768, 0], [0, 512, 1024, 0]),
    ];
    for (machine, cpu, keys, small, huge) in cases {
        for (is_huge, expected) in [(false, small), (true, huge)] {
            let text = writer(cpu, &format!("size = '6MiB'\nhuge = {is_huge}\n{keys}"));
            let seen = pages(&run(machine, &text, 50));
            assert_eq!(seen.len(), 1);
            assert_eq!((&seen[0].region[..], &seen[0].owner[..]), ("heap", "a"));
            assert_eq!(
                seen[0].pages,
                expected[..seen[0].pages.len()],
                "{machine} {keys} {is_huge}"
            );
        }
    }
}

/// A cpuset's nodes confine a thread's first touches, also those of a cgroup below.
#[test]
fn mems_confine_first_touches() {
    let text = "[[cgroup]]\npath = '/a'\nmems = '1'\n[[region]]\nname = 'r'\nsize = '1MiB'\nhuge = false\n\
                [[thread]]\nname = 't'\ncgroup = '/a/b'\ncpus = '0'\n\
                ops = [{ touch = { region = 'r' } }, { sleep = '1s' }]";
    assert_eq!(pages(&run("2n1c1t", text, 20))[0].pages, [0, 256]);
}

/// One region per process, per thread, or for all; instances with different names have different
/// regions. A region keeps its pages until its owner has ended, and the result has them after that.
#[test]
fn regions_belong_to_their_owners() {
    let count = |of: &str, process: &str, name: &str| {
        let text = format!(
            "[[region]]\nname = '{name}'\nsize = '64KiB'\nhuge = false\nof = '{of}'\n[[thread]]\n\
             name = 't'\ninstances = 4\n{process}\n\
             ops = [{{ touch = {{ region = '{name}' }} }}, {{ sleep = '1ms' }}]"
        );
        let k = run("2n2c1t", &text, 100);
        let all = pages(&k);
        assert_eq!(all.iter().flat_map(|r| &r.pages).sum::<u64>(), 16 * all.len() as u64);
        let memory = k.memory.as_ref().unwrap();
        let left = memory.nodes.used.iter().sum::<u64>();
        assert_eq!(left, if of == "all" { 16 } else { 0 }, "the pages of ended owners are free");
        all.len()
    };
    assert_eq!(count("process", "", "heap"), 4);
    assert_eq!(count("process", "process = 'p'", "heap"), 1);
    assert_eq!(count("process", "process = 'p{i/2}'", "heap"), 2);
    assert_eq!(count("process", "process = 'p'", "heap{i/2}"), 2);
    assert_eq!(count("thread", "process = 'p'", "heap"), 4);
    assert_eq!(count("all", "", "heap"), 1);
}

/// `execve` replaces a region by a new one without pages.
#[test]
fn exec_drops_regions() {
    let text = "[[region]]\nname = 'r'\nsize = '64KiB'\nhuge = false\n[[thread]]\nname = 't'\n\
                ops = [{ touch = { region = 'r' } }, 'exec', { touch = { region = 'r', size = 4096 } }, \
                { sleep = '1s' }]";
    let seen = pages(&run("1c", text, 50));
    assert_eq!(seen.iter().map(|r| r.pages[0]).collect::<Vec<_>>(), [16, 1]);
}

/// Forked processes have regions of their own; the run ends when memory is full.
#[test]
fn forks_that_fill_the_memory_end_the_run() {
    let text = "[[region]]\nname = 'r'\nsize = '1GiB'\npopulate = '0'\n[[thread]]\nname = 'main'\n\
                ops = [{ loop = { ops = [{ fork = 'child' }, { sleep = '1ms' }] } }]\n\
                [[thread]]\nname = 'child'\ninstances = 0\n\
                ops = [{ touch = { region = 'r', count = 1 } }, { sleep = '10s' }]";
    let machine = Machine::resolve("1c").unwrap();
    let room = machine.topology.memory_bytes() >> 30;
    let mut k = kernel_with_calls(machine, text, 1);
    assert_eq!(k.run(Some(10_000 * MS)), Stop::MemoryFull { region: "r".into() });
    assert_eq!(k.memory.as_ref().unwrap().regions().count() as u64, room);
}

/// A hog of node 0 whose region is on node `node`.
fn hog(node: u32, op: &str) -> String {
    format!(
        "[[region]]\nname = 'r'\nsize = '64MiB'\npopulate = '{node}'\n[[thread]]\nname = 't'\n\
         cpus = '0'\nops = [{{ loop = {{ ops = [{op}, {{ count = 1 }}] }} }}]"
    )
}

const MIXED: &str = "{ compute = { work = '100us', region = 'r', memory = 50 } }";
const STREAM: &str = "{ touch = { region = 'r', size = 1048576, kind = 'read' } }";

fn work(k: &Kernel) -> u64 {
    k.metrics.work_units
}

#[test]
fn a_remote_thread_slows_with_distance() {
    let far = |m: &mut Machine| m.costs.memory.remote_slowdown = Ratio { num: 34, den: 10 };
    let at = |node, tune: fn(&mut Machine)| work(&run_on("2n2c1t", tune, &hog(node, MIXED), 100));
    let (local, remote) = (at(0, |_| {}), at(1, |_| {}));
    // Half of the work is memory: 1.7 times as long makes 1.35, without the huge pages' tenth.
    assert!((740..=780).contains(&(remote * 1000 / local)), "{remote} of {local}");
    assert!(at(1, far) * 10 < remote * 7);
    assert_eq!(at(0, far), local);
}

#[test]
fn streams_slow_as_their_bandwidth_shrinks() {
    let nodes = |m: &mut Machine| m.costs.memory.bandwidth_mb_s = 5_000;
    let links = |m: &mut Machine| m.costs.memory.link_mb_s = 3_000;
    let at = |node, tune: fn(&mut Machine)| work(&run_on("2n2c1t", tune, &hog(node, STREAM), 100));
    let (local, remote) = (at(0, |_| {}), at(1, |_| {}));
    assert!(remote < local && at(0, nodes) * 10 < local * 6 && at(1, links) * 10 < remote * 6);
    assert_eq!(at(0, links), local, "a link slows no local stream");
}

#[test]
fn huge_pages_fault_less_and_are_faster() {
    let keys = |huge: bool| format!("size = '64MiB'\nhuge = {huge}");
    let (small, huge) = (writer(0, &keys(false)), writer(0, &keys(true)));
    let (small, huge) = (run("1c", &small, 100), run("1c", &huge, 100));
    assert!(first_touch_ns(&huge) < first_touch_ns(&small));
    let random = |huge: bool| {
        let op = "{ touch = { region = 'r', kind = 'chase', count = 1000 } }";
        let text = hog(0, op).replace("populate", &format!("huge = {huge}\npopulate"));
        accesses(&run("1c", &text, 50))
    };
    let (small, huge) = (random(false), random(true));
    assert!((108..=114).contains(&(huge * 100 / small)), "{huge} {small}");
}

/// A chase of an idle machine takes the machine's latency per access, through the workload's op.
#[test]
fn a_chase_takes_the_latency() {
    for (node, wanted) in [(0, 90), (1, 153)] {
        let op = "{ touch = { region = 'r', kind = 'chase', count = 1000 } }";
        let text = hog(node, op).replace("populate", "huge = false\npopulate");
        let k = run("2n2c1t", &text, 100);
        let seen = 100 * MS / accesses(&k);
        assert!(seen.abs_diff(wanted) * 50 <= wanted, "{seen} {wanted}");
    }
}

#[test]
fn merged_pages_take_less_memory() {
    let used = |merge: u32| {
        let text = format!(
            "[[region]]\nname = 'r'\nsize = '4MiB'\nhuge = false\nmerge = {merge}\n[[thread]]\n\
             name = 't'\ninstances = 4\n\
             ops = [{{ touch = {{ region = 'r', kind = 'read' }} }}, {{ sleep = '1s' }}]"
        );
        run("4c", &text, 50).memory.as_ref().unwrap().nodes.used[0]
    };
    assert_eq!((used(0), used(50), used(100)), (4096, 2048 + 512, 1024));
}

/// Compute noise applies to work with a region, too.
#[test]
fn the_same_seed_gives_the_same_run() {
    let text = hog(1, MIXED);
    let hash = |seed| {
        let machine = Machine::resolve("2n2c1t").unwrap();
        let mut k = scxlab_testkit::sim::kernel_as_run(machine, &text, seed);
        k.run(Some(50 * MS));
        (k.tracer.hash(), work(&k))
    };
    assert_eq!(hash(1), hash(1));
    assert_ne!(hash(1), hash(2));
}

/// The ready workloads show in one run what memory does: a heap on another node makes every access
/// remote and costs throughput; streams are limited by a small node, and by the link after they
/// have moved away from their memory.
#[test]
fn ready_workloads_show_their_mechanism() {
    let far = include_str!("../../../workloads/numa-far.toml");
    let near = far.replace("populate = \"1\"", "populate = \"0\"");
    let (far, near) = (run("2n4c1t", far, 200), run("2n4c1t", &near, 200));
    let remote = |k: &Kernel| k.memory.as_ref().unwrap().stats.remote_accesses();
    assert_eq!((remote(&far), remote(&near)), (accesses(&far), 0));
    assert!(work(&far) * 4 < work(&near) * 3, "{} {}", work(&far), work(&near));

    let stream = include_str!("../../../workloads/stream.toml");
    let small = |m: &mut Machine| {
        m.costs.memory.bandwidth_mb_s = 10_000;
        m.costs.memory.link_mb_s = 2_000;
    };
    let (wide, narrow) = (run("2n4c1t", stream, 2000), run_on("2n4c1t", small, stream, 2000));
    assert!(remote(&wide) > 0, "the threads of node 1 move to node 0");
    assert!(work(&narrow) * 3 < work(&wide) * 2, "{} {}", work(&narrow), work(&wide));
    assert_eq!(pages(&wide).iter().map(|r| r.pages[1]).sum::<u64>(), 4 * 65_536);
}
