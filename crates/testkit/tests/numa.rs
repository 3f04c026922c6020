// SPDX-License-Identifier: GPL-2.0-only
//! Automatic NUMA balancing: pages come to their tasks and tasks to their pages, at the rates of
//! the kernel; and nothing moves where the kernel moves nothing.

use scxlab_kernel::Kernel;
use scxlab_kernel::kernel::Stop;
use scxlab_kernel::memory::access::MemoryStats;
use scxlab_kernel::numa::NumaBalancing;
use scxlab_loader::btf::BtfKind;
use scxlab_machine::Machine;
use scxlab_machine::id::NodeId;
use scxlab_testkit::checks;
use scxlab_testkit::sim::{attach_shipped, kernel_with_calls, region_pages};

const MS: u64 = 1_000_000;

/// A process of `threads` threads that spend most of their time in one region, which lies on node 1
/// at first.
fn process(name: &str, threads: u32, keys: &str, region: &str) -> String {
    format!(
        "[[region]]\nname = 'heap-{name}'\npopulate = '1'\n{region}\n\
         [[thread]]\nname = '{name}'\ninstances = {threads}\nprocess = '{name}'\n{keys}\n\
         ops = [{{ loop = {{ ops = [\n\
         {{ compute = {{ work = '1ms', region = 'heap-{name}', memory = 60 }} }}, \
         {{ count = 1 }}] }} }}]\n"
    )
}

fn boot(machine: &str, text: &str, mode: NumaBalancing) -> Kernel {
    let mut k = kernel_with_calls(Machine::resolve(machine).unwrap(), text, 1);
    k.numa_balancing = mode;
    k
}

fn run(machine: &str, text: &str, mode: NumaBalancing, ms: u64) -> Kernel {
    let mut k = boot(machine, text, mode);
    run_to(&mut k, ms);
    k
}

fn run_to(k: &mut Kernel, ms: u64) {
    let stop = k.run(Some(ms * MS));
    assert!(matches!(stop, Stop::Finished), "{stop:?}");
    checks::after(k);
    k.fair.check_numa().unwrap();
}

fn stats(k: &Kernel) -> &MemoryStats {
    &k.memory.as_ref().unwrap().stats
}

/// Pages of all regions by node.
fn pages(k: &Kernel) -> Vec<u64> {
    let all = region_pages(k);
    let nodes = k.machine.topology.nodes().len();
    (0..nodes).map(|n| all.iter().map(|region| region.pages[n]).sum()).collect()
}

/// Number of the workload's tasks on each node.
fn tasks(k: &Kernel) -> Vec<usize> {
    let on = |n| {
        let on = |t: &&scxlab_kernel::task::Task| {
            k.is_workload(t) && k.machine.topology.cpu(t.cpu).node == NodeId(n)
        };
        k.tasks.iter().filter(on).count()
    };
    (0..k.machine.topology.nodes().len() as u32).map(on).collect()
}

fn preferred(k: &Kernel, name: &str) -> Option<u32> {
    let task = k.tasks.iter().find(|t| t.name == name).unwrap();
    k.fair.numa_preferred(task.id)
}

/// A task that cannot move gets its memory. Without balancing, and where there is no other node,
/// nothing happens.
#[test]
fn pages_follow_a_lone_task() {
    for region in ["size = '64MiB'\nhuge = false", "size = '256MiB'"] {
        let text = process("a", 1, "cpus = '0'", region);
        let k = run("2n2c1t", &text, NumaBalancing::On, 10_000);
        let (there, total) = (pages(&k)[0], pages(&k).iter().sum::<u64>());
        assert!(there * 100 >= total * 95, "{region}: {there} of {total}");
        let seen = stats(&k);
        assert_eq!(seen.pages_migrated, there, "each moved once");
        assert!(seen.migrate_ns > 0 && seen.hint_faults >= seen.hint_faults_local);
        // Local pages of a single thread are not marked, so after the first scan it has no faults
        // from which the kernel could learn a preference.
        assert_eq!(preferred(&k, "a"), None);
        let k = run("2n2c1t", &text, NumaBalancing::Off, 10_000);
        assert_eq!((stats(&k).pages_migrated, stats(&k).pte_updates), (0, 0));
        assert_eq!((pages(&k)[0], preferred(&k, "a")), (0, None));
    }
}

/// The price of a migration, of a scan and of a fault each take kernel time, which work pays for.
#[test]
fn balancing_costs_what_the_machine_says() {
    let text = process("a", 1, "cpus = '0'", "size = '64MiB'\nhuge = false");
    let run = |tune: fn(&mut Machine)| {
        let mut machine = Machine::resolve("2n2c1t").unwrap();
        tune(&mut machine);
        let mut k = kernel_with_calls(machine, &text, 1);
        k.numa_balancing = NumaBalancing::On;
        run_to(&mut k, 3_000);
        let overhead: u64 = k.cpus.iter().map(|c| c.time.overhead).sum();
        (stats(&k).migrate_ns, overhead, stats(&k).pages_migrated)
    };
    let base = run(|_| {});
    assert!(base.2 > 0);
    let migrate = run(|m| m.costs.memory.page_migrate_ns *= 10);
    assert!(migrate.0 > 5 * base.0, "{base:?}, {migrate:?}");
    let scan = run(|m| m.costs.memory.pte_scan_ns *= 10);
    let fault = run(|m| m.costs.memory.hint_fault_ns *= 10);
    for dear in [migrate, scan, fault] {
        assert!(dear.1 > base.1, "{base:?}, {dear:?}");
    }
}

/// Two threads of one process begin on different nodes, with their heap on one of them. There is
/// room for both on one node, so one of them moves to the other, and the heap follows if it must.
/// Shared pages move slowly: two faults in a row must come from the same node.
#[test]
fn tasks_meet_their_shared_heap() {
    let thread = |name: &str, cpu: u32| {
        format!(
            "[[thread]]\nname = '{name}'\nprocess = 'p'\ncpus = '{cpu}'\nops = [\
             {{ compute = '10ms' }}, 'clear_affinity', {{ loop = {{ ops = [\
             {{ compute = {{ work = '1ms', region = 'heap', memory = 60 }} }}] }} }}]\n"
        )
    };
    let heap = "[[region]]\nname = 'heap'\nsize = '64MiB'\nhuge = false\npopulate = '1'\n";
    let text = [heap, &thread("near", 16), &thread("far", 0)].concat();
    let k = run("2n16c1t", &text, NumaBalancing::On, 60_000);
    let (pages, tasks) = (pages(&k), tasks(&k));
    let together: u64 = (0..2).map(|n| pages[n] * tasks[n] as u64).sum();
    let all = pages.iter().sum::<u64>() * 2;
    assert!(together * 100 >= all * 90, "pages {pages:?}, tasks {tasks:?}");
    assert!(stats(&k).task_moves >= 1);
    // Without balancing they stay apart.
    let k = run("2n16c1t", &text, NumaBalancing::Off, 20_000);
    assert_eq!((self::pages(&k)[1], self::tasks(&k)), (16_384, vec![1, 1]));
}

/// Two processes that start with each other's memory: tasks that swap, or pages that move, bring
/// them together on a full machine.
#[test]
fn processes_settle_on_a_full_machine() {
    let far = |name: &str, home: u32, keys: &str| {
        process(name, 2, keys, "size = '64MiB'\nhuge = false")
            .replace("populate = '1'", &format!("populate = '{home}'"))
    };
    let text = [far("a", 1, ""), far("b", 0, "")].concat();
    let k = run("2n2c1t", &text, NumaBalancing::On, 30_000);
    programs_see(&k);
    let regions = region_pages(&k);
    for name in ["a", "b"] {
        let region = regions.iter().find(|region| region.owner == name).unwrap();
        let on = |n: u32| {
            let on = |t: &&scxlab_kernel::task::Task| {
                t.name.starts_with(&format!("{name}-"))
                    && k.machine.topology.cpu(t.cpu).node == NodeId(n)
            };
            k.tasks.iter().filter(on).count() as u64
        };
        let together = region.pages[0] * on(0) + region.pages[1] * on(1);
        let all = region.pages.iter().sum::<u64>() * 2;
        assert!(together * 100 >= all * 80, "{name}: {:?}", region.pages);
    }
}

/// The fields that programs read are those of the class.
fn programs_see(k: &Kernel) {
    let target = k.target();
    let of = |addr: u64, field: &str| -> u64 {
        let ty = target.btf.find("task_struct", BtfKind::Struct).expect("a task_struct");
        let place = addr + target.btf.path(ty, field).expect("the field").byte_off();
        *k.vm.mem.host_ref(place)
    };
    let mut all = (0, 0);
    for t in k.tasks.iter().filter(|t| k.is_workload(t)) {
        let node = of(t.addr, ".numa_preferred_nid") as u32;
        assert_eq!(Some(node), k.fair.numa_preferred(t.id), "{}", t.name);
        let seen = (of(t.addr, ".total_numa_faults"), of(t.addr, ".numa_pages_migrated"));
        assert_eq!(seen, k.fair.numa_counts(t.id), "{}", t.name);
        all = (all.0 + seen.0, all.1 + seen.1);
    }
    assert!(all.0 > 0);
    assert_eq!(all.1, stats(k).pages_migrated);
}

/// One address space is scanned at 2560 MB/s at most, and a task scans for at most 1/32 of its time
/// plus one scan.
#[test]
fn the_rate_of_scans_is_bounded() {
    // The heap moves between two threads on different nodes, so faults stay remote and scans fast.
    let text = process("a", 2, "", "size = '2GiB'\nhuge = false")
        .replace("process = 'a'\n", "process = 'a'\ncpus = '0,2'\n");
    let k = run("2n2c1t", &text, NumaBalancing::On, 10_000);
    let updates = stats(&k).pte_updates;
    assert!(updates > 0 && updates <= (10 + 1) * 2560 * 256, "{updates}");
    let time = updates * k.machine.costs.memory.pte_scan_ns;
    let run: u64 = k.tasks.iter().filter(|t| k.is_workload(t)).map(|t| t.account.run_ns).sum();
    assert!(time <= run / 32 + 2 * 65_536 * k.machine.costs.memory.pte_scan_ns, "{time} of {run}");
}

/// Pages stay where they are if the node of their task is full, and scans slow down.
#[test]
fn a_full_target_slows_scans() {
    let keys = "cpus = '0'";
    let free = process("a", 1, keys, "size = '16MiB'\nhuge = false");
    let filler = "[[region]]\nname = 'filler'\nsize = '63GiB'\npopulate = '0'\n\
        policy = { bind = '0' }\n[[thread]]\nname = 'z'\ncpus = '1'\n\
        ops = [{ touch = { region = 'filler', size = 1 } }, { sleep = '100s' }]\n";
    let mut machine = Machine::resolve("2n2c1t").unwrap();
    let bytes = machine.topology.nodes()[0].memory_bytes;
    assert_eq!(bytes % (1 << 30), 0);
    let filler = filler.replace("63GiB", &format!("{}GiB", bytes >> 30));
    machine.costs.memory.pte_scan_ns = 1;
    let mut k = kernel_with_calls(machine, &[filler, free.clone()].concat(), 1);
    run_to(&mut k, 10_000);
    assert_eq!((pages(&k)[1], stats(&k).pages_migrated), (16 * 256, 0));
    let slow = stats(&k).pte_updates;
    let task = k.tasks.iter().find(|t| t.name == "a").unwrap().id;
    assert!(k.fair.numa_scan_period(task) >= Some(8000), "{:?}", k.fair.numa_scan_period(task));
    // Without the filler, pages move at the first scans.
    let k = run("2n2c1t", &free, NumaBalancing::On, 10_000);
    assert!(stats(&k).pages_migrated > 0 && slow > 0);
}

/// The regions that the kernel does not scan: other policies, and tasks whose cpuset has one node.
#[test]
fn pages_under_a_policy_stay() {
    for (policy, cgroup) in [
        ("policy = { bind = '1' }", ""),
        ("policy = { interleave = '0-1' }", ""),
        ("policy = { preferred = 1 }", ""),
        ("", "cgroup = '/fence'"),
    ] {
        let mut text = process("a", 1, &format!("cpus = '0'\n{cgroup}"), "size = '16MiB'");
        text = text.replace("populate = '1'\n", &format!("populate = '1'\n{policy}\n"));
        text.push_str("[[cgroup]]\npath = '/fence'\nmems = '1'\n");
        let k = run("2n2c1t", &text, NumaBalancing::On, 5_000);
        assert_eq!((stats(&k).pte_updates, stats(&k).pages_migrated), (0, 0), "{policy}{cgroup}");
    }
}

/// Linux 7.3 scans only tasks of the default class. Under a scheduler that has all tasks nothing is
/// marked, unless the mode `ext` asks for it; no task is moved even then.
#[test]
fn sched_ext_tasks_are_not_scanned() {
    let text = process("a", 2, "cpus = '0-1'", "size = '64MiB'\nhuge = false");
    for (mode, moves) in [(NumaBalancing::On, false), (NumaBalancing::Ext, true)] {
        let mut k = boot("2n2c1t", &text, mode);
        attach_shipped(&mut k, "vtime", &[]);
        run_to(&mut k, 10_000);
        let seen = stats(&k);
        assert_eq!(seen.pte_updates > 0, moves, "{mode:?}");
        assert_eq!(seen.pages_migrated > 0, moves, "{mode:?}");
        assert_eq!((seen.task_moves, seen.task_swaps), (0, 0));
        assert_eq!(preferred(&k, "a-0").is_some(), moves);
    }
}

/// Regions of more than 16,384 pages are tracked in larger units. They settle as those that are
/// tracked page by page.
#[test]
fn large_regions_settle_as_small_ones() {
    for size in ["32MiB", "512MiB"] {
        let text = process("a", 2, "cpus = '0-1'", &format!("size = '{size}'\nhuge = false"));
        let k = run("2n2c1t", &text, NumaBalancing::On, 20_000);
        let (there, total) = (pages(&k)[0], pages(&k).iter().sum::<u64>());
        assert!(there * 100 >= total * 90, "{size}: {there} of {total}");
    }
}
