// SPDX-License-Identifier: GPL-2.0-only
//! The guest's default class: the calls into the crate `fair`, whose CPUs are the vCPUs, and the
//! execution of what these calls decide.
//!
//! Owns: the costs that follow from these calls. They are those that the host's kernel charges on
//! the same path (`kernel/src/schedule/default_class.rs`).
//! Does not: decide (see the crate `fair`).
//!
//! The class reads the guest's clock, which goes on while a vCPU waits for a CPU of the host:
//! Debian's kernels have no `CONFIG_PARAVIRT_TIME_ACCOUNTING`, so `rq_clock_task()` contains the
//! time that was stolen.

use scxlab_fair::{
    Balanced, DequeueFlags, EnqueueFlags, Env, Fair, FairPolicy, FairTopo, Params, Resched,
    TaskParams, WakeFlags,
};
use scxlab_kernel::behavior::{Policy, Sys};
use scxlab_machine::id::{CgroupId, CpuId, Nanos, TaskId};

use crate::interrupt::Irq;
use crate::rt::RtQueues;
use crate::{Class, GuestKernel, Mode, Thread, Vcpu};

/// `hrtick_start()`: shortest time for which the kernel arms the slice timer, ns.
const HRTICK_MIN_NS: Nanos = 10_000;

/// The part of the guest's state that the class may read.
struct View<'a> {
    vcpus: &'a [Vcpu],
    threads: &'a [Thread],
    rt: &'a RtQueues,
}

impl Env for View<'_> {
    fn allowed(&self, task: TaskId) -> &[u64] {
        &self.threads[task.idx()].mask
    }

    fn cpu_idle(&self, cpu: CpuId) -> bool {
        let vcpu = &self.vcpus[cpu.idx()];
        vcpu.rq_curr.is_none() && vcpu.wake_list.is_empty()
    }

    fn curr_task(&self, cpu: CpuId) -> Option<TaskId> {
        self.vcpus[cpu.idx()].rq_curr.map(TaskId)
    }

    fn nr_running_other(&self, cpu: CpuId) -> u32 {
        self.rt.nr_running(cpu.idx())
    }

    fn others_queue(&self) -> bool {
        self.rt.any()
    }
}

/// Borrows the class, and at the same time the part of the guest's state that it may read (`View`).
macro_rules! with_view {
    ($os:ident, |$fair:ident, $view:ident| $body:expr) => {{
        let $view = View { vcpus: &$os.vcpus, threads: &$os.threads, rt: &$os.rt };
        let $fair = &mut $os.fair;
        $body
    }};
}

/// Makes the class for a guest with this many vCPUs: cores of one processor, as QEMU makes them if
/// it is told their number only.
pub(crate) fn new_class(vcpus: usize, tick_ns: Nanos, seed: u64) -> Fair {
    let topo = FairTopo {
        core: (0..vcpus as u32).collect(),
        llc: vec![0; vcpus],
        node: vec![0; vcpus],
        llc_bytes: vec![0],
        capacity: vec![1024; vcpus],
        distance: vec![vec![10]],
    };
    Fair::new(&topo, Params { tick_ns, seed, ..Params::default() })
}

fn cpu(v: usize) -> CpuId {
    CpuId(v as u32)
}

fn fair_policy(policy: Policy) -> FairPolicy {
    match policy {
        Policy::Batch => FairPolicy::Batch,
        Policy::Idle => FairPolicy::Idle,
        _ => FairPolicy::Normal,
    }
}

impl GuestKernel {
    pub(crate) fn fair_new(&mut self, t: u32) {
        let thread = self.thread(t);
        let params = TaskParams {
            nice: thread.nice,
            policy: fair_policy(thread.policy),
            slice_request: thread.slice_request,
            group: CgroupId(0),
            process: None,
        };
        self.fair.task_new(TaskId(t), params);
    }

    pub(crate) fn fair_enqueue(
        &mut self,
        host: &mut dyn Sys,
        v: usize,
        to: usize,
        t: u32,
        at: Nanos,
        flags: EnqueueFlags,
    ) {
        self.fair.enqueue(cpu(to), TaskId(t), at, flags);
        self.fair_follow_up(host, v, to);
        self.fair_hrtick_start(host, v, to);
    }

    pub(crate) fn fair_dequeue(
        &mut self,
        host: &mut dyn Sys,
        v: usize,
        t: u32,
        flags: DequeueFlags,
    ) {
        let from = self.thread(t).vcpu;
        self.fair.dequeue(cpu(from), TaskId(t), host.now(), flags);
        self.fair_follow_up(host, v, from);
    }

    pub(crate) fn fair_pick(&mut self, host: &mut dyn Sys, v: usize) -> Option<u32> {
        let mut picked = self.fair.pick_next(cpu(v), host.now());
        if picked.is_none() && self.fair_newidle(host, v) {
            picked = self.fair.pick_next(cpu(v), host.now());
        }
        self.fair_follow_up(host, v, v);
        picked.map(|task| task.0)
    }

    pub(crate) fn fair_put_prev(&mut self, host: &mut dyn Sys, v: usize) {
        self.fair.put_prev(cpu(v), host.now());
        self.fair_follow_up(host, v, v);
    }

    pub(crate) fn fair_set_next(&mut self, host: &mut dyn Sys, v: usize, t: u32) {
        self.fair.set_next(cpu(v), TaskId(t), host.now());
        self.fair_follow_up(host, v, v);
        self.vcpus[v].hrtick_at = None;
        self.fair_hrtick_start(host, v, v);
    }

    pub(crate) fn fair_enter_idle(&mut self, host: &mut dyn Sys, v: usize) {
        let at = host.now();
        with_view!(self, |fair, view| fair.enter_idle(&view, cpu(v), at));
        self.fair.nohz_enter(cpu(v));
    }

    pub(crate) fn fair_leave_idle(&mut self, host: &mut dyn Sys, v: usize) {
        self.fair.leave_idle(cpu(v), host.now());
    }

    pub(crate) fn fair_yield(&mut self, host: &mut dyn Sys, v: usize) {
        self.fair.yield_task(cpu(v), host.now());
        self.fair_follow_up(host, v, v);
    }

    pub(crate) fn fair_reweight(&mut self, host: &mut dyn Sys, v: usize, t: u32) {
        let (nice, policy) = (self.thread(t).nice, fair_policy(self.thread(t).policy));
        let urgency = self.fair.reweight(TaskId(t), nice, policy, host.now());
        if self.class(t) == Class::Fair {
            self.fair_resched(host, v, self.thread(t).vcpu, urgency);
        }
    }

    pub(crate) fn fair_switched_from(&mut self, host: &mut dyn Sys, t: u32) {
        self.fair.switched_from(TaskId(t), host.now());
    }

    pub(crate) fn fair_switched_to(&mut self, host: &mut dyn Sys, t: u32) {
        self.fair.switched_to(TaskId(t), cpu(self.thread(t).vcpu), host.now());
    }

    /// Returns the vCPU for a thread that wakes up, starts or executes a program.
    pub(crate) fn fair_select(
        &mut self,
        host: &mut dyn Sys,
        v: usize,
        t: u32,
        flags: WakeFlags,
    ) -> usize {
        let costs = &self.machine.costs.sched;
        host.charge(costs.select_ns + costs.select_scan_cpu_ns);
        let (at, prev) = (host.now(), cpu(self.thread(t).vcpu));
        let chosen = with_view!(self, |fair, view| {
            fair.select_cpu(&view, TaskId(t), prev, cpu(v), flags, at)
        });
        chosen.idx()
    }

    pub(crate) fn fair_wakeup_preempt(
        &mut self,
        host: &mut dyn Sys,
        v: usize,
        to: usize,
        t: u32,
        flags: WakeFlags,
    ) {
        let urgency = self.fair.wakeup_preempt(cpu(to), TaskId(t), flags);
        self.fair.take_resched(cpu(to));
        self.fair_resched(host, v, to, urgency);
    }

    /// The class's part of the tick.
    pub(crate) fn fair_tick(&mut self, host: &mut dyn Sys, v: usize) {
        let urgency = self.fair.tick(cpu(v), host.now());
        self.fair_resched(host, v, v, urgency);
        self.fair_follow_up(host, v, v);
    }

    /// Balances at the tick: a balance that is due, and a kick of an idle vCPU that is to balance
    /// for all idle ones.
    pub(crate) fn fair_balance_tick(&mut self, host: &mut dyn Sys, v: usize) {
        let at = host.now();
        if self.fair.balance_due(cpu(v), at) {
            let done = with_view!(self, |fair, view| fair.balance(&view, cpu(v), at));
            self.fair_balance_done(host, v, done);
        }
        let kicked = with_view!(self, |fair, view| fair.nohz_kick(&view, cpu(v), at));
        if let Some(target) = kicked {
            self.send(host, v, target.idx(), Irq::Balance);
        }
    }

    /// Balances for all idle vCPUs, on an idle one that was kicked.
    pub(crate) fn fair_nohz_balance(&mut self, host: &mut dyn Sys, v: usize) {
        let at = host.now();
        let done = with_view!(self, |fair, view| fair.nohz_balance(&view, cpu(v), at));
        if let Some(done) = done {
            self.fair_balance_done(host, v, done);
        }
    }

    fn fair_balance_done(&mut self, host: &mut dyn Sys, v: usize, done: Balanced) {
        let costs = &self.machine.costs.sched;
        host.charge(costs.balance_ns + costs.balance_scan_cpu_ns * u64::from(done.scanned));
        self.fair_balanced(host, v, done);
        self.fair_follow_up(host, v, v);
    }

    /// Pulls threads to a vCPU that has none left. Returns whether one of them is awake.
    fn fair_newidle(&mut self, host: &mut dyn Sys, v: usize) -> bool {
        let at = host.now();
        let result = with_view!(self, |fair, view| fair.newidle_balance(&view, cpu(v), at));
        host.charge(result.cost_ns);
        self.fair_balanced(host, v, result.balanced)
    }

    /// Accounts the threads that a balance moved, and requests the pushes that it asked for.
    /// Returns whether one of the threads is awake.
    fn fair_balanced(&mut self, host: &mut dyn Sys, v: usize, done: Balanced) -> bool {
        for moved in &done.moves {
            host.charge(self.machine.costs.sched.migrate_ns);
            let to = moved.to.idx();
            self.thread_mut(moved.task.0).vcpu = to;
            self.fair_follow_up(host, v, to);
            if self.vcpus[to].next_class < Class::Fair && to != v {
                self.resched(host, v, to);
            }
        }
        for push in &done.active {
            host.charge(2 * self.machine.costs.sched.context_switch_ns);
            let from = push.from.idx();
            self.vcpus[from].active_balance = true;
            self.resched(host, v, from);
        }
        done.moves.iter().any(|moved| !moved.delayed)
    }

    /// Pushes a thread to the vCPU that asked for it, while no thread runs on `v`.
    pub(crate) fn fair_active_balance(&mut self, host: &mut dyn Sys, v: usize) {
        let at = host.now();
        let moved = with_view!(self, |fair, view| fair.active_balance(&view, cpu(v), at));
        if let Some(moved) = moved {
            let to = moved.to.idx();
            self.thread_mut(moved.task.0).vcpu = to;
            self.fair_follow_up(host, v, to);
            self.resched(host, v, to);
        }
    }

    /// `hrtick_start_fair()`: arms a timer that ends the running thread's slice to the nanosecond,
    /// if other threads wait.
    pub(crate) fn fair_hrtick_start(&mut self, host: &mut dyn Sys, v: usize, on: usize) {
        let Some(end) = self.fair.slice_end(cpu(on)) else { return };
        let at = end.max(host.now() + HRTICK_MIN_NS);
        if self.vcpus[on].hrtick_at == Some(at) {
            return;
        }
        host.charge(self.machine.costs.irq.hrtimer_arm_ns);
        self.vcpus[on].hrtick_at = Some(at);
        if on != v && matches!(self.vcpus[on].mode, Mode::Runs | Mode::Spins) {
            self.arm(host, on);
        }
    }

    /// Handles the end of the running thread's slice.
    pub(crate) fn hrtick(&mut self, host: &mut dyn Sys, v: usize) {
        host.charge(self.machine.costs.irq.timer_ns);
        self.fair_tick(host, v);
        self.fair_hrtick_start(host, v, v);
    }

    fn fair_follow_up(&mut self, host: &mut dyn Sys, v: usize, of: usize) {
        let urgency = self.fair.take_resched(cpu(of));
        self.fair_resched(host, v, of, urgency);
    }

    fn fair_resched(&mut self, host: &mut dyn Sys, v: usize, of: usize, urgency: Resched) {
        match urgency {
            Resched::No => {}
            Resched::Lazy => self.vcpus[of].resched_lazy = true,
            Resched::Now => self.resched(host, v, of),
        }
    }
}
