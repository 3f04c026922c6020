// SPDX-License-Identifier: GPL-2.0-only
//! Tests of NUMA balancing: the arithmetic of scan periods, the filter of pages, groups, weights
//! and the search for a place, against cases computed by hand from the kernel's rules.

use super::super::numa::*;
use super::*;
use crate::balance::TaskKind;

const TICK: Nanos = 4_000_000;

/// Tasks with processes, CPUs on which they run, and sizes of address spaces.
struct Tasks {
    process: Vec<u32>,
    curr: Vec<Option<TaskId>>,
    allowed: Vec<CpuMask>,
    run_ns: Nanos,
    rss: u64,
}

impl Env for Tasks {
    fn allowed(&self, task: TaskId) -> &[u64] {
        &self.allowed[task.idx()]
    }
    fn cpu_idle(&self, cpu: CpuId) -> bool {
        self.curr[cpu.idx()].is_none()
    }
    fn curr_task(&self, cpu: CpuId) -> Option<TaskId> {
        self.curr[cpu.idx()]
    }
    fn nr_running_other(&self, _cpu: CpuId) -> u32 {
        0
    }
    fn others_queue(&self) -> bool {
        false
    }
    fn process(&self, task: TaskId) -> TaskId {
        TaskId(self.process[task.idx()])
    }
    fn nr_threads(&self, task: TaskId) -> u32 {
        let own = self.process[task.idx()];
        self.process.iter().filter(|process| **process == own).count() as u32
    }
    fn run_ns(&self, _task: TaskId) -> Nanos {
        self.run_ns
    }
    fn rss_pages(&self, _task: TaskId) -> u64 {
        self.rss
    }
    fn vm_pages(&self, _task: TaskId) -> u64 {
        self.rss
    }
}

/// A machine with one running task on each CPU of `on`, in order of the tasks.
struct Bench {
    fair: Fair,
    env: Tasks,
    mm: MmScan,
}

impl Bench {
    fn new(topo: FairTopo, process: &[u32], on: &[u32]) -> Bench {
        Bench::with_rules(topo, process, on, NumaRules::Linux73)
    }

    fn with_rules(topo: FairTopo, process: &[u32], on: &[u32], rules: NumaRules) -> Bench {
        let nr_cpus = topo.nr_cpus();
        let mut fair = Fair::new(&topo, Params { tick_ns: TICK, ..Params::default() });
        fair.numa_enable(&topo, rules);
        let mut curr = vec![None; nr_cpus];
        for (task, cpu) in on.iter().enumerate() {
            let id = TaskId(task as u32);
            fair.task_new(id, TaskParams::default());
            fair.enqueue(CpuId(*cpu), id, 0, EnqueueFlags::INITIAL);
            let picked = fair.pick_next(CpuId(*cpu), 0).expect("queued");
            fair.set_next(CpuId(*cpu), picked, 0);
            curr[*cpu as usize] = Some(id);
        }
        let allowed = vec![CpuMask::all(nr_cpus); on.len()];
        let env = Tasks { process: process.to_vec(), curr, allowed, run_ns: 1, rss: 1 };
        Bench { fair, env, mm: MmScan::new(0, TICK) }
    }

    fn cpu_of(&self, task: u32) -> CpuId {
        let found = self.env.curr.iter().position(|curr| *curr == Some(TaskId(task)));
        CpuId(found.expect("it runs") as u32)
    }

    fn fault(&self, task: u32, node: u32, last: Option<(u32, u32)>) -> HintFault {
        let last = last.map(|(cpu, task)| LastAccess::new(CpuId(cpu), task as i32));
        HintFault {
            task: TaskId(task),
            cpu: self.cpu_of(task),
            node,
            pages: 1,
            faults: 1,
            last,
            shared: false,
            local: false,
            migrated: false,
            failed: false,
        }
    }

    /// Counts `pages` faults on a node at a jiffy, the last access being the task's own.
    fn touch(&mut self, task: u32, node: u32, pages: u64, jiffies: u64) -> NumaAction {
        let cpu = self.cpu_of(task);
        let fault = HintFault { pages, ..self.fault(task, node, Some((cpu.0, task))) };
        let now = jiffies * TICK;
        self.fair.numa_fault(&self.env, &fault, &mut self.mm, jiffies, now)
    }

    fn wants(&self, task: u32, node: u32, last: Option<(u32, u32)>) -> bool {
        self.fair.numa_wants_page(&self.env, &self.fault(task, node, last))
    }
}

/// A first scan begins after a second of CPU time; each thread waits for its own time, and one
/// thread of a process scans per period.
#[test]
fn one_thread_scans_per_period() {
    let mut b = Bench::new(topo(2, 1, 2, 1), &[0, 0], &[0, 1]);
    let tick = |b: &mut Bench, task, jiffies| {
        let Bench { fair, env, mm } = b;
        fair.numa_tick(env, TaskId(task), mm, jiffies)
    };
    b.env.run_ns = 1_000_000_000;
    assert!(!tick(&mut b, 0, 400), "not more than a second of CPU time");
    b.env.run_ns = 1_000_000_001;
    assert!(!tick(&mut b, 0, 249), "the address space is not a second old");
    b.env.run_ns = 2_000_000_001;
    assert!(tick(&mut b, 0, 250));
    assert!(!tick(&mut b, 0, 250), "its next period has begun");
    assert!(tick(&mut b, 1, 250), "two ticks and 60 us later than the leader");
    let Bench { fair, env, mm } = &mut b;
    assert_eq!(fair.numa_scan(env, TaskId(0), mm, 250).map(|b| b.pages), Some(65_536));
    assert_eq!(fair.numa_scan(env, TaskId(1), mm, 250), None, "the leader was first");
    assert_eq!(mm.next_scan, 500);
}

/// The rate is at most 2560 MB/s: 100 ms for 256 MB, however large the address space.
#[test]
fn periods_shrink_with_the_address_space() {
    for (rss, period) in
        [(1, 1000), (65_536, 1000), (65_537, 500), (5 * 65_536, 200), (1 << 30, 100)]
    {
        let mut b = Bench::new(topo(2, 1, 1, 1), &[0], &[0]);
        (b.env.rss, b.env.run_ns) = (rss, 2_000_000_000);
        let Bench { fair, env, mm } = &mut b;
        fair.numa_tick(env, TaskId(0), mm, 0);
        assert_eq!(fair.numa_scan_period(TaskId(0)), Some(period), "{rss} pages");
    }
}

/// Each row: remote, local and failed pages of a sequence, the part of them that is private, and
/// the period that follows from one of 1000 ms, with bounds of 100 and 6000 ms.
#[test]
fn periods_adapt_to_faults() {
    let rows = [
        // No faults: twice as long.
        ((0, 0, 0), 10, 2000),
        // Failed migrations: twice as long.
        ((50, 50, 5), 10, 2000),
        // All remote and private: as without faults.
        ((100, 0, 0), 10, 2000),
        // All private: three slots longer, whatever their place.
        ((50, 50, 0), 10, 1300),
        // Seven tenths private: one slot longer.
        ((100, 0, 0), 7, 1100),
        // Mostly shared and local: longer.
        ((0, 100, 0), 3, 1300),
        // Mostly shared and remote: shorter by the missing slots.
        ((100, 0, 0), 3, 600),
        ((50, 50, 0), 3, 800),
    ];
    for ((remote, local, failed), private, wanted) in rows {
        let mut b = Bench::new(topo(2, 1, 1, 1), &[0], &[0]);
        b.env.rss = 10 * 65_536;
        b.touch(0, 0, 0, 1);
        let numa = b.fair.numa.as_mut().expect("enabled");
        let total = remote + local;
        let types = [total as i64 * (10 - private) / 10, total as i64 * private / 10];
        numa.test_period(TaskId(0), 1000, 6000, [remote, local, failed]);
        let mut mm = MmScan::default();
        numa.adapt_period(&b.env, TaskId(0), types, &mut mm, (10, TICK));
        let period = b.fair.numa_scan_period(TaskId(0));
        assert_eq!(period, Some(wanted), "{remote} {local} {failed} {private}");
    }
}

/// The filter of pages on node 0 for a task on node 1, CPU 2.
#[test]
fn pages_move_after_two_faults_from_one_node() {
    let mut b = Bench::new(topo(2, 1, 2, 1), &[0, 0, 0], &[2, 3, 0]);
    assert!(b.wants(0, 0, None), "nobody accessed it before");
    assert!(b.wants(0, 0, Some((2, 0))), "the task itself accessed it");
    assert!(b.wants(0, 0, Some((3, 1))), "another thread of that node did, without a group");
    assert!(!b.wants(0, 0, Some((0, 2))), "a thread of another node did");
    assert!(b.wants(0, 0, Some((0, 0))), "early on, the pid alone decides");
    // After four scans, the last access must come from the node, whoever made it.
    let numa = b.fair.numa.as_mut().expect("enabled");
    numa.test_preferred(TaskId(0), 1, 5);
    assert!(!b.wants(0, 0, Some((0, 0))));
    assert!(b.wants(0, 0, Some((2, 0))));
    assert!(b.wants(0, 0, None));
}

/// Eight bits of the pid are kept, so tasks whose pids differ by 256 look alike.
#[test]
fn pids_are_cut() {
    assert_eq!(LastAccess::new(CpuId(1), 5), LastAccess::new(CpuId(1), 261));
    assert_ne!(LastAccess::new(CpuId(1), 5), LastAccess::new(CpuId(1), 260));
}

/// A task joins the group of the task that made the last access and still runs there. Groups of one
/// process always merge; others only over shared pages.
#[test]
fn groups_form_where_memory_is_shared() {
    let mut b = Bench::new(topo(2, 1, 2, 1), &[0, 0, 2], &[0, 1, 2]);
    let share = |b: &mut Bench, task, last: u32, shared| {
        let cpu = b.cpu_of(last).0;
        let fault = HintFault { shared, ..b.fault(task, 0, Some((cpu, last))) };
        let Bench { fair, env, mm } = b;
        fair.numa_fault(env, &fault, mm, 0, 0);
    };
    share(&mut b, 0, 1, false);
    assert_eq!(b.fair.numa_group(TaskId(0)), Some(0), "alone: the other has no group yet");
    share(&mut b, 1, 0, false);
    assert_eq!(b.fair.numa_group(TaskId(1)), Some(0));
    share(&mut b, 2, 0, false);
    assert_eq!(b.fair.numa_group(TaskId(2)), Some(2), "another process, private pages");
    share(&mut b, 2, 0, true);
    assert_eq!(b.fair.numa_group(TaskId(2)), Some(0), "a page of both");
    // A wrong pid does not join: CPU 1 runs task 1, not task 2.
    let fault = b.fault(0, 0, Some((1, 2)));
    let Bench { fair, env, mm } = &mut b;
    fair.numa_fault(env, &fault, mm, 0, 0);
    b.fair.check_numa().unwrap();
    b.fair.numa_free(TaskId(0), true);
    assert_eq!(b.fair.numa_group(TaskId(0)), None);
    b.fair.check_numa().unwrap();
}

/// The law finds a group whose counts are not those of its members.
#[test]
fn a_leak_of_faults_is_found() {
    let breaks: [fn(&mut NumaGroup); 3] = [
        |group| group.nr_tasks += 1,
        |group| group.total_faults -= 1,
        |group| group.faults[0] += 1,
    ];
    for break_it in breaks {
        let mut b = Bench::new(topo(2, 1, 2, 1), &[0, 0], &[0, 1]);
        for (task, last) in [(0, 1), (1, 0)] {
            let cpu = b.cpu_of(last).0;
            let fault = b.fault(task, 0, Some((cpu, last)));
            let Bench { fair, env, mm } = &mut b;
            fair.numa_fault(env, &fault, mm, 0, 0);
        }
        b.fair.check_numa().unwrap();
        let groups = &mut b.fair.numa.as_mut().expect("balancing is on").groups;
        break_it(groups.iter_mut().flatten().next().expect("a group"));
        let found = b.fair.check_numa();
        assert!(matches!(found, Err(Violation::NumaGroup { .. })), "{found:?}");
    }
}

/// The task prefers the node with most of its memory, and old counts fade by half per sequence.
#[test]
fn preference_follows_faults_that_fade() {
    let mut b = Bench::new(topo(2, 1, 2, 1), &[0], &[0]);
    b.touch(0, 1, 100, 1);
    assert_eq!(b.fair.numa_preferred(TaskId(0)), None, "no sequence is over");
    b.mm.seq = 1;
    let action = b.touch(0, 0, 10, 100);
    assert_eq!(action.preferred, Some(1));
    assert_eq!(b.fair.numa_counts(TaskId(0)).0, 100);
    b.mm.seq = 2;
    b.touch(0, 0, 80, 1000);
    // 100 / 2 on node 1, 10 on node 0.
    assert_eq!(b.fair.numa_counts(TaskId(0)).0, 60);
    assert_eq!(b.fair.numa_preferred(TaskId(0)), Some(1));
    b.mm.seq = 3;
    b.touch(0, 0, 1, 2000);
    // 25 on node 1, 10 / 2 + 80 on node 0.
    assert_eq!(b.fair.numa_counts(TaskId(0)).0, 110);
    assert_eq!(b.fair.numa_preferred(TaskId(0)), Some(0));
    b.fair.check_numa().unwrap();
}

/// With an idle CPU on the preferred node the task moves there. CPUs that it may not use, and those
/// that another move is on its way to, are left out.
#[test]
fn a_task_moves_to_an_idle_cpu_of_its_node() {
    let search = |allow: &[u32]| {
        let mut b = Bench::new(topo(2, 1, 4, 1), &[0], &[0]);
        b.env.allowed[0] = CpuMask::of(8, allow.iter().map(|cpu| CpuId(*cpu)));
        b.touch(0, 1, 100, 1);
        b.mm.seq = 1;
        let first = b.touch(0, 1, 1, 100).go;
        b.mm.seq = 2;
        (first, b.touch(0, 1, 1, 1000).go, b)
    };
    let (first, second, mut b) = search(&[0, 4, 5, 6, 7]);
    assert_eq!((first, second), (Go::Move(CpuId(4)), Go::Move(CpuId(5))), "4 is taken");
    b.fair.numa_arrived(CpuId(4));
    b.mm.seq = 3;
    assert_eq!(b.touch(0, 1, 1, 2000).go, Go::Move(CpuId(4)));
    assert_eq!(search(&[0, 7]).0, Go::Move(CpuId(7)));
    assert_eq!(search(&[0, 1, 2]).0, Go::Stay);
}

/// On a full machine, two tasks whose memory is on each other's node change places.
#[test]
fn tasks_swap_on_a_full_machine() {
    let mut b = Bench::new(topo(2, 1, 2, 1), &[0, 1, 2, 3], &[0, 1, 2, 3]);
    // Let the load averages of the four tasks settle.
    let mut now = 0;
    for _ in 0..200 {
        now += 4 * MS;
        for cpu in 0..4 {
            b.fair.tick(CpuId(cpu), now);
        }
    }
    // Tasks 0 and 3 have their memory far away, the others have it at hand.
    for (task, node) in [(1, 0), (2, 1), (3, 0)] {
        b.touch(task, node, 100, 1);
        b.mm.seq += 1;
        b.touch(task, node, 1, 2);
    }
    b.touch(0, 1, 100, 1000);
    b.mm.seq += 1;
    let action = b.touch(0, 1, 1, 2000);
    assert_eq!(action.preferred, Some(1));
    assert_eq!(action.go, Go::Swap(TaskId(3), CpuId(3)));
}

/// The kinds of interconnects of the shapes that occur.
#[test]
fn interconnects_are_told_apart() {
    let kind = |distance: &[&[u32]]| {
        let n = distance.len() as u32;
        let distance = distance.iter().map(|row| row.to_vec()).collect();
        let topo = FairTopo { distance, ..topo(n, 1, 1, 1) };
        let mut fair = Fair::new(&topo, Params::default());
        fair.numa_enable(&topo, NumaRules::default());
        fair.numa.as_ref().map(|numa| format!("{:?}", numa.test_kind())).unwrap_or_default()
    };
    assert_eq!(kind(&[&[10]]), "", "one node: no balancing");
    assert_eq!(kind(&[&[10, 21], &[21, 10]]), "Direct");
    let all = |a: u32, b: u32, c: u32| -> Vec<u32> { vec![a, b, c] };
    let row = [all(10, 20, 30), all(20, 10, 20), all(30, 20, 10)];
    assert_eq!(kind(&[&row[0], &row[1], &row[2]]), "GluelessMesh", "node 1 is between the others");
    let backplane: [&[u32]; 4] =
        [&[10, 15, 30, 30], &[15, 10, 30, 30], &[30, 30, 10, 15], &[30, 30, 15, 10]];
    assert_eq!(kind(&backplane), "Backplane");
}

/// Balancing between nodes avoids moves away from memory, and prefers those towards it.
#[test]
fn balancing_keeps_tasks_on_their_node() {
    let mut b = Bench::new(topo(3, 1, 2, 1), &[0, 1], &[0, 2]);
    let lost = |b: &Bench, src, dst, idle, others| {
        b.fair.numa_locality_lost(TaskId(0), CpuId(src), CpuId(dst), idle, || others)
    };
    assert_eq!(lost(&b, 0, 2, false, true), 0, "no faults yet");
    b.touch(0, 0, 90, 1);
    b.touch(0, 1, 10, 1);
    b.mm.seq = 1;
    b.touch(0, 0, 1, 100);
    assert_eq!(lost(&b, 0, 2, false, true), 1);
    assert_eq!(lost(&b, 0, 2, false, false), 0, "all tasks there prefer that node");
    assert_eq!(lost(&b, 4, 1, false, true), -1, "homewards");
    assert_eq!(lost(&b, 2, 4, false, true), 100, "a tenth of its faults is on node 1");
    assert_eq!(lost(&b, 4, 2, false, true), -100);
    assert_eq!(lost(&b, 2, 4, true, true), 0, "an idle CPU is worth more");
    assert_eq!(lost(&b, 2, 3, false, true), 0, "the same node");
    // CPU 0 has one task, which prefers its node. CPU 2 has one without a preference.
    assert_eq!(b.fair.numa_running(CpuId(0)), (1, 1));
    assert_eq!(b.fair.numa_running(CpuId(2)), (0, 0));
    let kinds = [(3, 2, 2), (2, 2, 1), (2, 2, 2)].map(|(nr, numa, on)| TaskKind::of(nr, numa, on));
    assert_eq!(kinds, [TaskKind::Regular, TaskKind::Remote, TaskKind::All]);
}

/// A new thread of a process goes to the node that the process prefers, if there is room, although
/// another node has more idle CPUs.
#[test]
fn forks_go_to_the_preferred_node() {
    let place = |prefers: bool| {
        let mut b = Bench::new(topo(2, 1, 4, 1), &[0, 0, 0, 0, 0], &[0, 1, 4, 5]);
        b.fair.task_new(TaskId(4), TaskParams::default());
        b.env.allowed.push(CpuMask::all(8));
        if prefers {
            b.touch(0, 1, 100, 1);
            b.mm.seq = 1;
            b.touch(0, 1, 1, 2);
            b.fair.numa_thread_new(TaskId(4), TaskId(0));
        }
        let Bench { fair, env, .. } = &mut b;
        fair.select_cpu(env, TaskId(4), CpuId(0), CpuId(0), WakeFlags::FORK, 0)
    };
    assert!(place(false).0 < 4, "{}", place(false));
    assert!(place(true).0 >= 4, "{}", place(true));
}

/// 3.9 moves a page at the second fault in a row from a node; the series V5 also at the first of
/// all. 3.9 leaves pages of several address spaces alone.
#[test]
fn pages_move_by_the_rules_of_2013() {
    for (rules, first) in [(NumaRules::Linux39, false), (NumaRules::SeriesV5, true)] {
        let b = Bench::with_rules(topo(2, 1, 2, 1), &[0, 0, 0], &[0, 1, 2], rules);
        assert_eq!(b.wants(0, 1, None), first, "{rules:?}: no fault before");
        assert!(b.wants(0, 1, Some((1, 1))), "{rules:?}: the last one from the same node");
        assert!(!b.wants(0, 1, Some((2, 0))), "{rules:?}: the last one from another node");
        let shared = HintFault { shared: true, ..b.fault(0, 1, Some((0, 0))) };
        assert_eq!(b.fair.numa_wants_page(&b.env, &shared), first, "{rules:?}: shared");
    }
}

/// A fault on a page that stays lengthens the period by ten jiffies, up to 5 s in 3.9 and to the
/// part of ten minutes that one scan is of the address space in the series. 3.9 begins anew after a
/// minute.
#[test]
fn periods_of_2013_grow_with_faults_on_pages_that_stay() {
    // (rules, pages of the address space, first period, longest period, period after the reset)
    let cases = [
        (NumaRules::Linux39, 1, 100, 5000, 100),
        (NumaRules::Linux39, 40 << 16, 100, 5000, 100),
        (NumaRules::SeriesV5, 2 << 16, 500, 300_000, 300_000),
        (NumaRules::SeriesV5, 40 << 16, 100, 15_000, 15_000),
    ];
    for (rules, pages, least, most, later) in cases {
        let mut b = Bench::with_rules(topo(2, 1, 1, 1), &[0], &[0], rules);
        (b.env.rss, b.env.run_ns) = (pages, 1_000_000_001);
        let period = |b: &Bench| b.fair.numa_scan_period(TaskId(0));
        let scan = |b: &mut Bench, jiffies| {
            let Bench { fair, env, mm } = b;
            fair.numa_scan(env, TaskId(0), mm, jiffies).is_some()
        };
        assert!(b.fair.numa_tick(&b.env, TaskId(0), &b.mm, 250));
        assert!(scan(&mut b, 250) && !scan(&mut b, 250 + least / 4 - 1), "{rules:?}");
        assert!(scan(&mut b, 250 + least / 4), "{rules:?}");
        assert_eq!(period(&b), Some(least), "{rules:?}");
        b.touch(0, 0, 1, 300);
        assert_eq!(period(&b), Some(least + 40), "{rules:?}");
        let moved = HintFault { migrated: true, ..b.fault(0, 0, None) };
        b.fair.numa_fault(&b.env, &moved, &mut b.mm, 300, 300 * TICK);
        assert_eq!(period(&b), Some(least + 40), "{rules:?}: the page moved");
        (0..10_000).for_each(|_| _ = b.touch(0, 0, 1, 300));
        assert_eq!(period(&b), Some(most), "{rules:?}");
        scan(&mut b, 250 + 15_001);
        assert_eq!(period(&b), Some(later), "{rules:?}");
    }
}

/// Under the series a task prefers the node with most of its private faults, once for each scan of
/// the whole address space; in 3.9 no task prefers a node.
#[test]
fn private_faults_choose_the_node_in_the_series() {
    for (rules, preferred) in
        [(NumaRules::Linux39, [None; 2]), (NumaRules::SeriesV5, [Some(1), Some(0)])]
    {
        let mut b = Bench::with_rules(topo(2, 1, 2, 1), &[0, 0], &[0, 1], rules);
        let fault = |b: &mut Bench, node, last, pages| {
            let fault = HintFault { pages, ..b.fault(0, node, Some((1, last))) };
            b.fair.numa_fault(&b.env, &fault, &mut b.mm, 300, 300 * TICK)
        };
        fault(&mut b, 1, 0, 10);
        fault(&mut b, 0, 1, 90);
        b.mm.seq = 1;
        let action = fault(&mut b, 0, 0, 30);
        assert_eq!(action.preferred, preferred[0], "{rules:?}: the 90 faults were shared");
        assert_eq!(action.go, Go::Stay);
        assert_eq!(fault(&mut b, 0, 0, 1).preferred, None, "{rules:?}: once for each scan");
        b.mm.seq = 2;
        assert_eq!(fault(&mut b, 0, 0, 1).preferred, preferred[1], "{rules:?}: 5 of node 1 left");
    }
}
