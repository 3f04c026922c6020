// SPDX-License-Identifier: GPL-2.0-only
//! A small driver that tests the class without the kernel: CPUs advance in fixed time steps, and
//! tasks run and sleep.

mod asym;
mod balancing;
mod bandwidth;
mod cache;
mod competition;
mod model;
mod numa;
mod placement;
mod shares;

use super::*;
use scxlab_machine::cpumask::CpuMask;

const MS: Nanos = 1_000_000;
const SEC: Nanos = 1_000_000_000;
const ROOT: CgroupId = CgroupId(0);

/// Behaviour of a task for its whole life.
#[derive(Clone, Copy, Debug)]
enum Life {
    Hog,
    /// Runs for `run`, then sleeps for `sleep`.
    Periodic {
        run: Nanos,
        sleep: Nanos,
    },
}

#[derive(Clone, Debug)]
struct Actor {
    life: Life,
    left: Nanos,
    wake_at: Option<Nanos>,
    cpu: CpuId,
    ran: Nanos,
    migrations: u32,
}

/// The part of the simulated machine that the class sees through `Env`.
struct World {
    allowed: Vec<CpuMask>,
    curr: Vec<Option<TaskId>>,
}

impl Env for World {
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
}

struct Sim {
    fair: Fair,
    world: World,
    actors: Vec<Actor>,
    timers: Vec<BandwidthTimer>,
    now: Nanos,
    step: Nanos,
    nr_cpus: usize,
    /// Every switch: time, CPU and the next task. A repeated run must have the same log.
    log: Vec<(Nanos, CpuId, Option<TaskId>)>,
}

/// A machine of `nodes` nodes with `llcs` LLCs each, `cores` cores per LLC and `threads` threads
/// per core.
fn topo(nodes: u32, llcs: u32, cores: u32, threads: u32) -> FairTopo {
    let n = nodes * llcs * cores * threads;
    let distance = |a: u32| (0..nodes).map(|b| if a == b { 10 } else { 21 }).collect();
    FairTopo {
        core: (0..n).map(|i| i / threads).collect(),
        llc: (0..n).map(|i| i / (threads * cores)).collect(),
        node: (0..n).map(|i| i / (threads * cores * llcs)).collect(),
        llc_bytes: vec![32 << 20; (nodes * llcs) as usize],
        capacity: vec![1024; n as usize],
        distance: (0..nodes).map(distance).collect(),
    }
}

impl Sim {
    fn new(topo: FairTopo) -> Self {
        Self::with(topo, Params::default())
    }

    fn with(topo: FairTopo, params: Params) -> Self {
        let nr_cpus = topo.nr_cpus();
        Sim {
            fair: Fair::new(&topo, params),
            world: World { allowed: Vec::new(), curr: vec![None; nr_cpus] },
            actors: Vec::new(),
            timers: Vec::new(),
            now: 0,
            step: 100_000,
            nr_cpus,
            log: Vec::new(),
        }
    }

    fn cpus(&self) -> impl Iterator<Item = CpuId> + use<> {
        (0..self.nr_cpus as u32).map(CpuId)
    }

    /// Starts a task by fork from CPU 0.
    fn spawn(&mut self, life: Life, params: TaskParams) -> TaskId {
        self.spawn_on(life, params, CpuMask::all(self.nr_cpus), CpuId(0))
    }

    fn spawn_on(&mut self, life: Life, params: TaskParams, on: CpuMask, from: CpuId) -> TaskId {
        let id = TaskId(self.actors.len() as u32);
        let left = match life {
            Life::Hog => Nanos::MAX,
            Life::Periodic { run, .. } => run,
        };
        self.fair.task_new(id, params);
        self.world.allowed.push(on);
        let cpu = self.fair.select_cpu(&self.world, id, from, from, WakeFlags::FORK, self.now);
        let cpu = self.allowed_or_first(id, cpu);
        self.actors.push(Actor { life, left, wake_at: None, cpu, ran: 0, migrations: 0 });
        self.fair.enqueue(cpu, id, self.now, EnqueueFlags::INITIAL);
        self.after_enqueue(cpu, id, WakeFlags::FORK);
        id
    }

    fn hogs(&mut self, n: u32, params: TaskParams) {
        for _ in 0..n {
            self.spawn(Life::Hog, params);
        }
    }

    fn pinned(&mut self, life: Life, params: TaskParams, cpu: u32) -> TaskId {
        self.spawn_on(life, params, CpuMask::of(self.nr_cpus, [CpuId(cpu)]), CpuId(cpu))
    }

    fn allowed_or_first(&self, task: TaskId, cpu: CpuId) -> CpuId {
        let allowed = &self.world.allowed[task.idx()];
        match scxlab_machine::cpumask::test(allowed, cpu) {
            true => cpu,
            false => scxlab_machine::cpumask::first(allowed).expect("some CPU is allowed"),
        }
    }

    fn after_enqueue(&mut self, cpu: CpuId, task: TaskId, flags: WakeFlags) {
        let mut resched = self.fair.wakeup_preempt(cpu, task, flags);
        resched = resched.max(self.fair.take_resched(cpu));
        if self.world.curr[cpu.idx()].is_none() || resched != Resched::No {
            self.schedule(cpu);
        }
    }

    fn wake(&mut self, task: TaskId) {
        let flags = WakeFlags::TTWU;
        if let Some(cpu) = self.fair.delayed_on(task) {
            self.fair.enqueue(cpu, task, self.now, EnqueueFlags::WAKEUP);
            return self.after_enqueue(cpu, task, flags);
        }
        let prev = self.actors[task.idx()].cpu;
        let cpu = self.fair.select_cpu(&self.world, task, prev, prev, flags, self.now);
        let cpu = self.allowed_or_first(task, cpu);
        self.actors[task.idx()].migrations += u32::from(cpu != prev);
        self.actors[task.idx()].cpu = cpu;
        let flags_in = EnqueueFlags { migrated: cpu != prev, ..EnqueueFlags::WAKEUP };
        self.fair.enqueue(cpu, task, self.now, flags_in);
        self.after_enqueue(cpu, task, flags);
    }

    fn schedule(&mut self, cpu: CpuId) {
        let mut next = self.fair.pick_next(cpu, self.now);
        if next.is_none() {
            // The CPU is about to idle, so `Env` must not show the task that has just left.
            let prev = self.world.curr[cpu.idx()].take();
            let newidle = self.fair.newidle_balance(&self.world, cpu, self.now);
            self.world.curr[cpu.idx()] = prev;
            self.apply(&newidle.balanced);
            next = self.fair.pick_next(cpu, self.now);
        }
        let prev = self.world.curr[cpu.idx()];
        if prev == next {
            return;
        }
        self.fair.put_prev(cpu, self.now);
        self.world.curr[cpu.idx()] = next;
        self.log.push((self.now, cpu, next));
        match next {
            Some(task) => {
                self.fair.set_next(cpu, task, self.now);
                self.fair.update_misfit(&self.world, cpu);
            }
            None => self.fair.enter_idle(&self.world, cpu, self.now),
        }
    }

    fn apply(&mut self, balanced: &Balanced) {
        for moved in &balanced.moves {
            let allowed = &self.world.allowed[moved.task.idx()];
            assert!(scxlab_machine::cpumask::test(allowed, moved.to), "{moved:?}");
            assert_ne!(self.world.curr[moved.from.idx()], Some(moved.task), "{moved:?}");
            assert!(!self.fair.throttled_at(moved.task, moved.to), "{moved:?}");
            self.actors[moved.task.idx()].cpu = moved.to;
            self.actors[moved.task.idx()].migrations += 1;
        }
        for active in &balanced.active {
            if let Some(moved) = self.fair.active_balance(&self.world, active.from, self.now) {
                self.actors[moved.task.idx()].cpu = moved.to;
                self.actors[moved.task.idx()].migrations += 1;
            }
            self.schedule(active.from);
        }
    }

    fn resched_all(&mut self) {
        for cpu in self.cpus() {
            if self.fair.take_resched(cpu) != Resched::No {
                self.schedule(cpu);
            }
        }
    }

    fn tick(&mut self, cpu: CpuId) {
        let resched = self.fair.tick(cpu, self.now);
        self.fair.update_misfit(&self.world, cpu);
        self.fair.cache_tick(&self.world, cpu);
        if resched != Resched::No {
            self.schedule(cpu);
        }
        if let Some(idle) = self.fair.nohz_kick(&self.world, cpu, self.now)
            && let Some(balanced) = self.fair.nohz_balance(&self.world, idle, self.now)
        {
            self.apply(&balanced);
            self.resched_all();
        }
        if self.fair.balance_due(cpu, self.now) {
            let balanced = self.fair.balance(&self.world, cpu, self.now);
            self.apply(&balanced);
            self.resched_all();
        }
    }

    fn fire_timers(&mut self) {
        self.timers.append(&mut self.fair.take_timers());
        let (due, later) = self.timers.iter().partition(|t| t.at <= self.now);
        self.timers = later;
        let due: Vec<BandwidthTimer> = due;
        for timer in due {
            // A timer may expire in the middle of a step. Call the class with the time for which
            // the timer was armed, and not with the end of the step.
            self.fair.bandwidth_timer(timer.group, timer.kind, timer.at);
        }
        self.resched_all();
    }

    /// Advances by one step: running tasks progress, sleepers wake, timers and ticks happen.
    fn advance(&mut self) {
        self.now += self.step;
        for cpu in self.cpus() {
            let Some(task) = self.world.curr[cpu.idx()] else {
                continue;
            };
            let actor = &mut self.actors[task.idx()];
            actor.ran += self.step;
            actor.left = actor.left.saturating_sub(self.step);
            if let (0, Life::Periodic { run, sleep }) = (actor.left, actor.life) {
                actor.left = run;
                actor.wake_at = Some(self.now + sleep);
                self.fair.dequeue(cpu, task, self.now, DequeueFlags::SLEEP);
                self.schedule(cpu);
            }
        }
        for at in 0..self.actors.len() {
            if self.actors[at].wake_at.is_some_and(|w| w <= self.now) {
                self.actors[at].wake_at = None;
                self.wake(TaskId(at as u32));
            }
        }
        self.fire_timers();
        if self.now % self.fair.params().tick_ns < self.step {
            for cpu in self.cpus() {
                self.tick(cpu);
            }
        }
        self.resched_all();
    }

    fn run(&mut self, time: Nanos) {
        let end = self.now + time;
        while self.now < end {
            self.advance();
        }
        self.check();
    }

    fn check(&mut self) {
        for cpu in self.cpus() {
            self.fair.check(cpu).unwrap_or_else(|violation| panic!("at {}: {violation}", self.now));
        }
    }

    /// Total CPU time, indexed by task.
    fn ran(&self) -> Vec<Nanos> {
        self.actors.iter().map(|a| a.ran).collect()
    }
}

fn nice(nice: i8) -> TaskParams {
    TaskParams { nice, ..TaskParams::default() }
}

fn in_process(leader: u32) -> TaskParams {
    TaskParams { process: Some(TaskId(leader)), ..TaskParams::default() }
}

fn in_group(group: u32) -> TaskParams {
    TaskParams { group: CgroupId(group), ..TaskParams::default() }
}

/// Asserts that `got` differs from `wanted` by at most `permille` of `whole`.
fn assert_share(got: Nanos, wanted: Nanos, whole: Nanos, permille: u64, what: &str) {
    assert!(
        got.abs_diff(wanted) * 1000 <= whole * permille,
        "{what}: got {got}, wanted {wanted} of {whole}"
    );
}
