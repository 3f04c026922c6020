// SPDX-License-Identifier: GPL-2.0-only
//! The bridge to the default class: the kernel's calls into the crate `fair`, and the execution of
//! the decisions that these calls return.
//!
//! Owns: the costs, events and accounts that follow from these calls.
//! Does not: decide (see the crate `fair`).

use crate::bpf::flags::{queue, wake};
use crate::cpu::{Cpu, PerCpu};
use crate::ext::Ext;
use crate::kernel::event::{Event, SplitU64, lane};
use crate::kernel::{AfterEvent, Kernel};
use crate::memory::Memory;
use crate::schedule::rt::RtQueues;
use crate::task::behavior::{CgroupSpec, Policy};
use crate::task::{Class, TaskState, TaskTable};
use scxlab_fair::{
    BandwidthSpec, DequeueFlags, Dequeued, EnqueueFlags, Env, FairPolicy, HintFault, MmScan,
    NumaAction, Resched, ScanBudget, TaskParams, TimerKind, WakeFlags,
};
use scxlab_machine::CostTable;
use scxlab_machine::id::{CgroupId, CpuId, Nanos, TaskId};
use scxlab_trace::event::EventKind;

/// `hrtick_start()`: shortest time for which the kernel arms the slice timer, ns.
const HRTICK_MIN_NS: Nanos = 10_000;

/// The part of the kernel's state that the default class may read.
struct View<'a> {
    cpus: &'a PerCpu<Cpu>,
    tasks: &'a TaskTable,
    rt: &'a RtQueues,
    ext: &'a Ext,
    costs: &'a CostTable,
    memory: Option<&'a Memory>,
    now: Nanos,
}

impl Env for View<'_> {
    fn allowed(&self, task: TaskId) -> &[u64] {
        &self.tasks[task].cpus
    }

    fn cpu_idle(&self, cpu: CpuId) -> bool {
        let c = &self.cpus[cpu];
        c.online && c.is_idle() && c.wake_list.is_empty()
    }

    fn curr_task(&self, cpu: CpuId) -> Option<TaskId> {
        let c = &self.cpus[cpu];
        (!c.is_idle()).then_some(c.curr)
    }

    fn nr_running_other(&self, cpu: CpuId) -> u32 {
        self.rt.nr_running(cpu) + self.ext.cpus[cpu].nr_running
    }

    fn others_queue(&self) -> bool {
        self.rt.any() || self.ext.nr_queued != 0
    }

    fn idle_exit_latency(&self, cpu: CpuId) -> Option<u32> {
        let since = self.cpus[cpu].idle_since?;
        let latency = self.costs.idle_state(self.now.saturating_sub(since)).exit_latency_ns;
        Some(u32::try_from(latency).unwrap_or(u32::MAX))
    }

    fn per_cpu_kthread(&self, task: TaskId) -> bool {
        self.tasks[task].kthread && self.tasks[task].nr_allowed == 1
    }

    fn process(&self, task: TaskId) -> TaskId {
        self.tasks[task].leader
    }

    fn nr_threads(&self, task: TaskId) -> u32 {
        self.tasks[self.tasks[task].leader].nr_other_threads + 1
    }

    fn pid(&self, task: TaskId) -> i32 {
        self.tasks[task].pid as i32
    }

    fn run_ns(&self, task: TaskId) -> Nanos {
        self.tasks[task].account.run_ns
    }

    fn rss_pages(&self, task: TaskId) -> u64 {
        self.memory.map_or(0, |memory| memory.rss(self.tasks[task].leader))
    }

    fn vm_pages(&self, task: TaskId) -> u64 {
        self.memory.map_or(0, |memory| memory.vm_pages(self.tasks[task].leader))
    }

    fn has_mm(&self, task: TaskId) -> bool {
        let t = &self.tasks[task];
        !t.kthread && !t.exiting && !t.is_idle_task()
    }
}

/// Borrows the default class, and at the same time the part of the kernel's state that the class
/// may read (`View`).
macro_rules! with_view {
    ($k:ident, |$fair:ident, $view:ident| $body:expr) => {{
        let $view = View {
            cpus: &$k.cpus,
            tasks: &$k.tasks,
            rt: &$k.rt,
            ext: &$k.ext,
            costs: &$k.machine.costs,
            memory: $k.memory.as_deref(),
            now: $k.now,
        };
        let $fair = &mut $k.fair;
        $body
    }};
}

impl Kernel {
    fn fair_params(&self, task: TaskId) -> TaskParams {
        let t = &self.tasks[task];
        TaskParams {
            nice: t.nice,
            policy: fair_policy(t.policy),
            slice_request: t.slice_request,
            group: t.cgroup,
            process: (!t.kthread).then_some(t.leader),
        }
    }

    pub(crate) fn fair_task_new(&mut self, task: TaskId) {
        let params = self.fair_params(task);
        self.fair.task_new(task, params);
    }

    pub(crate) fn fair_task_dead(&mut self, task: TaskId) {
        let at = self.clock();
        self.fair.numa_free(task, true);
        self.fair.task_dead(task, at);
    }

    pub(crate) fn fair_enqueue(&mut self, cpu: CpuId, task: TaskId, flags: u64) {
        let restore = flags & (queue::WAKEUP | queue::INITIAL | queue::MIGRATED) == 0;
        let flags = EnqueueFlags {
            wakeup: flags & queue::WAKEUP != 0,
            migrated: flags & queue::MIGRATED != 0
                || (restore && self.tasks.migrating == Some(task)),
            initial: flags & queue::INITIAL != 0,
        };
        let at = self.cpus[cpu].rq_clock;
        self.fair.enqueue(cpu, task, at, flags);
        self.mirror_util(task);
        self.fair_follow_up(cpu);
        self.fair_hrtick_start(cpu);
    }

    /// Dequeues a task. Returns true if the task stays queued although it sleeps (delayed dequeue).
    pub(crate) fn fair_dequeue(&mut self, cpu: CpuId, task: TaskId, flags: u64) -> bool {
        if self.tasks[task].on_cpu {
            self.charge_curr(cpu);
        }
        let flags = DequeueFlags {
            sleep: flags & queue::SLEEP != 0,
            special: self.tasks[task].state == TaskState::Dead || flags & queue::CLASS != 0,
            migrating: self.tasks.migrating == Some(task),
        };
        let at = self.clock();
        let delayed = self.fair.dequeue(cpu, task, at, flags) == Dequeued::Delayed;
        self.mirror_util(task);
        self.fair_follow_up(cpu);
        delayed
    }

    /// Requeues a task that was woken before its delayed dequeue ended.
    pub(crate) fn fair_requeue_delayed(&mut self, cpu: CpuId, task: TaskId) {
        self.charge(self.machine.costs.sched.enqueue_ns);
        self.fair_enqueue(cpu, task, queue::WAKEUP);
    }

    pub(crate) fn fair_end_delay(&mut self, task: TaskId) {
        let at = self.clock();
        self.fair.end_delay(task, at);
        self.set_on_rq(task, false);
    }

    /// Whether a sleeping task is still queued in the default class (delayed dequeue).
    pub(crate) fn fair_is_delayed(&self, task: TaskId) -> bool {
        self.tasks[task].class == Class::Fair && self.fair.delayed_on(task).is_some()
    }

    #[inline]
    pub(crate) fn fair_pick(&mut self, cpu: CpuId) -> Option<TaskId> {
        let left = self.ext.switched_all && self.fair.nr_running(cpu) == 0;
        if left { None } else { self.fair_pick_one(cpu) }
    }

    fn fair_pick_one(&mut self, cpu: CpuId) -> Option<TaskId> {
        let curr = self.cpus[cpu].curr;
        if self.tasks[curr].class == Class::Fair {
            self.charge_curr(cpu);
        }
        let at = self.clock();
        let mut picked = self.fair.pick_next(cpu, at);
        if picked.is_none() && self.cpus.is_online(cpu) && self.fair_newidle(cpu) {
            let at = self.clock();
            picked = self.fair.pick_next(cpu, at);
        }
        self.fair_follow_up(cpu);
        picked
    }

    pub(crate) fn fair_set_next(&mut self, cpu: CpuId, task: TaskId) {
        let at = self.clock();
        // Code of another CPU, whose clock is ahead, may already have charged the previous task for
        // this CPU's time up to `charged_until`. This task must not be charged for it again.
        self.tasks[task].exec_start = at.max(self.cpus[cpu].charged_until);
        self.fair.set_next(cpu, task, at);
        self.fair_update_misfit(cpu);
        self.fair_follow_up(cpu);
        self.cpus[cpu].hrtick_at = None;
        self.fair_hrtick_start(cpu);
    }

    pub(crate) fn fair_put_prev(&mut self, cpu: CpuId, task: TaskId) {
        self.charge_curr(cpu);
        let at = self.clock();
        self.fair.put_prev(cpu, at);
        self.mirror_util(task);
        self.fair_follow_up(cpu);
    }

    pub(crate) fn fair_tick(&mut self, cpu: CpuId) {
        self.charge_curr(cpu);
        let at = self.clock();
        let urgency = self.fair.tick(cpu, at);
        self.fair_update_misfit(cpu);
        if self.fair.cache_aware() {
            let scanned = with_view!(self, |fair, view| fair.cache_tick(&view, cpu));
            let per_cpu = self.machine.costs.sched.balance_scan_cpu_ns;
            self.charge(per_cpu * u64::from(scanned));
        }
        self.mirror_util(self.cpus[cpu].curr);
        self.fair_resched(cpu, urgency);
        self.fair_follow_up(cpu);
    }

    fn fair_update_misfit(&mut self, cpu: CpuId) {
        if self.fair.asymmetric() {
            with_view!(self, |fair, view| fair.update_misfit(&view, cpu));
        }
    }

    pub(crate) fn fair_yield(&mut self, cpu: CpuId) {
        self.charge_curr(cpu);
        let at = self.clock();
        self.fair.yield_task(cpu, at);
        self.fair_follow_up(cpu);
    }

    pub(crate) fn fair_yield_to(&mut self, cpu: CpuId, target: TaskId) -> bool {
        self.charge_curr(cpu);
        let at = self.clock();
        let yields = self.fair.yield_to_task(cpu, target, at);
        self.fair_follow_up(cpu);
        yields
    }

    pub(crate) fn fair_wakeup_preempt(&mut self, cpu: CpuId, task: TaskId, flags: u64) {
        let curr = self.cpus[cpu].curr;
        if self.tasks[curr].class == Class::Fair {
            self.charge_curr(cpu);
        }
        let urgency = self.fair.wakeup_preempt(cpu, task, wake_flags(flags));
        self.fair.take_resched(cpu);
        self.fair_resched(cpu, urgency);
    }

    pub(crate) fn fair_select_cpu(&mut self, task: TaskId, prev: CpuId, flags: u64) -> CpuId {
        let costs = &self.machine.costs.sched;
        let cost = costs.select_ns + costs.select_scan_cpu_ns;
        self.charge(cost);
        let (at, here) = (self.clock(), self.exec.cpu);
        with_view!(self, |fair, view| {
            fair.select_cpu(&view, task, prev, here, wake_flags(flags), at)
        })
    }

    /// Tells NUMA balancing of a move. The rest of the default class learns the new CPU when the
    /// kernel enqueues the task there.
    pub(crate) fn fair_migrate(&mut self, task: TaskId, from: CpuId, to: CpuId) {
        if self.memory.is_some() {
            with_view!(self, |fair, view| fair.numa_migrated(&view, task, from, to));
        }
    }

    pub(crate) fn fair_numa_tick(&mut self, task: TaskId, mm: &MmScan, jiffies: u64) -> bool {
        with_view!(self, |fair, view| fair.numa_tick(&view, task, mm, jiffies))
    }

    pub(crate) fn fair_numa_scan(
        &mut self,
        task: TaskId,
        mm: &mut MmScan,
        jiffies: u64,
    ) -> Option<ScanBudget> {
        with_view!(self, |fair, view| fair.numa_scan(&view, task, mm, jiffies))
    }

    pub(crate) fn fair_wants_page(&mut self, fault: &HintFault) -> bool {
        with_view!(self, |fair, view| fair.numa_wants_page(&view, fault))
    }

    pub(crate) fn fair_count_fault(
        &mut self,
        fault: &HintFault,
        mm: &mut MmScan,
        jiffies: u64,
    ) -> NumaAction {
        let at = self.clock();
        with_view!(self, |fair, view| fair.numa_fault(&view, fault, mm, jiffies, at))
    }

    pub(crate) fn fair_reweight(&mut self, task: TaskId) {
        let (nice, policy) = (self.tasks[task].nice, fair_policy(self.tasks[task].policy));
        let at = self.clock();
        let urgency = self.fair.reweight(task, nice, policy, at);
        if self.tasks[task].class == Class::Fair {
            let cpu = self.tasks[task].cpu;
            self.fair_resched(cpu, urgency);
        }
    }

    pub(crate) fn fair_set_group(&mut self, task: TaskId, group: CgroupId) {
        let at = self.clock();
        self.fair.set_group(task, group, at);
    }

    pub(crate) fn fair_switched_from(&mut self, task: TaskId) {
        let at = self.clock();
        self.fair.switched_from(task, at);
        self.mirror_util(task);
        if self.tasks[task].state != TaskState::Runnable {
            self.set_on_rq(task, false);
        }
    }

    pub(crate) fn fair_switched_to(&mut self, task: TaskId) {
        let (at, cpu) = (self.clock(), self.tasks[task].cpu);
        self.fair.switched_to(task, cpu, at);
    }

    pub(crate) fn fair_group_new(&mut self, id: CgroupId, parent: CgroupId, spec: &CgroupSpec) {
        self.fair.add_group(id, parent);
        let plain = CgroupSpec::default();
        self.fair_group_configure(id, &plain, spec);
    }

    pub(crate) fn fair_group_gone(&mut self, id: CgroupId) {
        let at = self.clock();
        self.fair.remove_group(id, at);
    }

    pub(crate) fn fair_group_configure(
        &mut self,
        id: CgroupId,
        old: &CgroupSpec,
        new: &CgroupSpec,
    ) {
        let at = self.clock();
        if old.weight != new.weight {
            self.fair.set_group_weight(id, new.weight, at);
        }
        if old.idle != new.idle {
            self.fair.set_group_idle(id, new.idle, at);
        }
        if (old.quota, old.period, old.burst) != (new.quota, new.period, new.burst) {
            // Differs: the periods of every group begin at multiples of their length; the real
            // kernel draws their phase at random for each group (see
            // docs/internals/fidelity-eevdf.md).
            let spec =
                BandwidthSpec { quota: new.quota, period: new.period, burst: new.burst, phase: 0 };
            self.fair.set_group_bandwidth(id, spec, at);
        }
        self.fair_arm_timers();
    }

    #[inline]
    fn fair_arm_timers(&mut self) {
        if self.fair.has_timers() {
            self.fair_arm_them();
        }
    }

    #[cold]
    fn fair_arm_them(&mut self) {
        for timer in self.fair.take_timers() {
            let slack = timer.kind == TimerKind::Slack;
            let at = timer.at.max(self.now);
            let event =
                Event::Bandwidth { cgroup: timer.group, slack, at: SplitU64::new(timer.at) };
            self.events.push(at, event);
        }
    }

    #[inline(never)]
    pub(crate) fn bandwidth_timer(
        &mut self,
        cgroup: CgroupId,
        slack: bool,
        at: Nanos,
    ) -> AfterEvent {
        let cpu = self.cpus.online_or_any(CpuId(0));
        let kind = if slack { TimerKind::Slack } else { TimerKind::Period };
        self.on_cpu_last(cpu, |k| {
            k.charge(k.machine.costs.irq.timer_ns);
            for cpu in k.fair.bandwidth_timer(cgroup, kind, at) {
                k.fair_follow_up(cpu);
                if k.cpus[cpu].is_idle() {
                    k.resched(cpu);
                }
            }
            k.fair_arm_timers();
        })
    }

    /// `hrtick_start_fair()`: arms a timer that ends the running task's slice to the nanosecond, if
    /// other tasks wait.
    fn fair_hrtick_start(&mut self, cpu: CpuId) {
        let c = &self.cpus[cpu];
        if c.next_class != Class::Fair && self.tasks[c.curr].class != Class::Fair {
            return;
        }
        let Some(end) = self.fair.slice_end(cpu) else { return };
        let at = end.max(self.clock() + HRTICK_MIN_NS);
        if self.cpus[cpu].hrtick_at == Some(at) {
            return;
        }
        self.charge(self.machine.costs.irq.hrtimer_arm_ns);
        self.cpus[cpu].hrtick_at = Some(at);
        self.events.push_in(lane::SLICE, at, Event::HrTick { cpu });
    }

    /// Handles an expiry of the slice timer. Ignores it if the timer has since been armed for
    /// another time.
    #[inline(never)]
    pub(crate) fn hrtick(&mut self, cpu: CpuId) -> AfterEvent {
        let c = &mut self.cpus[cpu];
        if c.hrtick_at != Some(self.now) {
            return AfterEvent::Nothing;
        }
        c.hrtick_at = None;
        if self.tasks[c.curr].class != Class::Fair {
            return AfterEvent::Nothing;
        }
        self.on_cpu_last(cpu, |k| {
            k.charge(k.machine.costs.irq.timer_ns);
            k.take_rq_clock(cpu);
            k.fair_tick(cpu);
            k.fair_hrtick_start(cpu);
        })
    }

    /// Pulls tasks to a CPU that has none left. Returns true if one of them is awake: a balance may
    /// also move sleeping tasks whose dequeue is delayed.
    fn fair_newidle(&mut self, cpu: CpuId) -> bool {
        let at = self.clock();
        let result = with_view!(self, |fair, view| fair.newidle_balance(&view, cpu, at));
        self.charge(result.cost_ns);
        self.fair_balanced(result.balanced)
    }

    /// Balances at the tick: a balance that is due runs as softirq of the same interrupt, and an
    /// idle CPU may be kicked to balance for all CPUs that do not tick.
    pub(crate) fn fair_balance_tick(&mut self, cpu: CpuId) {
        // `sched_tick()`: no CPU balances while sched_ext has all tasks.
        if self.ext.switched_all {
            return;
        }
        let at = self.clock();
        if self.fair.balance_due(cpu, at) {
            self.fair_balance_here(cpu);
        }
        let kicked = with_view!(self, |fair, view| fair.nohz_kick(&view, cpu, at));
        if let Some(target) = kicked {
            self.charge(self.machine.costs.irq.ipi_send_ns);
            let at = self.clock() + self.ipi_latency(cpu, target);
            self.events.push(at, Event::FairBalance { cpu: target });
        }
    }

    /// Balances for all CPUs that do not tick, on an idle CPU that another CPU has kicked to do so.
    #[inline(never)]
    pub(crate) fn fair_balance(&mut self, cpu: CpuId) -> AfterEvent {
        if !self.cpus.is_online(cpu) {
            return AfterEvent::Nothing;
        }
        self.on_cpu_last(cpu, |k| {
            k.charge(k.machine.costs.irq.resched_ns);
            let at = k.clock();
            if let Some(done) = with_view!(k, |fair, view| fair.nohz_balance(&view, cpu, at)) {
                k.fair_balance_done(cpu, done);
            }
        })
    }

    fn fair_balance_here(&mut self, cpu: CpuId) {
        let at = self.clock();
        let done = with_view!(self, |fair, view| fair.balance(&view, cpu, at));
        self.fair_balance_done(cpu, done);
    }

    fn fair_balance_done(&mut self, cpu: CpuId, done: scxlab_fair::Balanced) {
        let costs = &self.machine.costs.sched;
        self.charge(costs.balance_ns + costs.balance_scan_cpu_ns * u64::from(done.scanned));
        self.fair_balanced(done);
        self.fair_follow_up(cpu);
    }

    /// Accounts the tasks that a balance moved, and requests the pushes of running tasks that the
    /// balance asked for. Returns true if one of the moved tasks is awake: a balance may also move
    /// sleeping tasks whose dequeue is delayed.
    fn fair_balanced(&mut self, done: scxlab_fair::Balanced) -> bool {
        for moved in &done.moves {
            self.charge(self.machine.costs.sched.migrate_ns);
            self.fair_moved(moved.task, moved.to);
            self.fair_follow_up(moved.to);
            let to = &self.cpus[moved.to];
            if to.next_class < Class::Fair && moved.to != self.exec.cpu {
                self.resched(moved.to);
            }
        }
        for push in &done.active {
            self.push_for_balance(push.from);
        }
        done.moves.iter().any(|m| !m.delayed)
    }

    fn fair_moved(&mut self, task: TaskId, to: CpuId) {
        let from = self.tasks[task].cpu;
        self.fair_migrate(task, from, to);
        self.count_migration(task, from, to);
    }

    /// Requests the stopper on `from`. The stopper will interrupt the running task and push one
    /// task to the CPU that asked for the push.
    fn push_for_balance(&mut self, from: CpuId) {
        self.charge(2 * self.machine.costs.sched.context_switch_ns);
        self.cpus[from].active_balance = true;
        self.resched(from);
    }

    /// Pushes a task from `cpu` to the CPU that asked for it, while the stopper runs on `cpu`.
    pub(crate) fn fair_active_balance(&mut self, cpu: CpuId) {
        let at = self.clock();
        let moved = with_view!(self, |fair, view| fair.active_balance(&view, cpu, at));
        if let Some(moved) = moved {
            self.fair_moved(moved.task, moved.to);
            self.fair_follow_up(moved.to);
            self.resched(moved.to);
        }
    }

    pub(crate) fn fair_cpu_online(&mut self, cpu: CpuId, online: bool) {
        let at = self.clock();
        let topo = scxlab_fair::FairTopo::new(&self.machine.topology);
        if online {
            self.fair.cpu_online(&topo, cpu, at);
        } else {
            self.fair.cpu_offline(&topo, cpu, at);
        }
    }

    pub(crate) fn fair_leave_idle(&mut self, cpu: CpuId) {
        let at = self.clock();
        self.fair.leave_idle(cpu, at);
    }

    pub(crate) fn fair_enter_idle(&mut self, cpu: CpuId) {
        let at = self.clock();
        with_view!(self, |fair, view| fair.enter_idle(&view, cpu, at));
        self.fair.nohz_enter(cpu);
    }

    /// Follows up a call into the default class: arms the timers that the class wants, traces its
    /// throttles, and reschedules the CPU if the class asks for that.
    #[inline]
    fn fair_follow_up(&mut self, cpu: CpuId) {
        self.fair_arm_timers();
        if self.fair.has_throttles() {
            self.fair_trace_throttles();
        }
        let urgency = self.fair.take_resched(cpu);
        self.fair_resched(cpu, urgency);
    }

    #[cold]
    fn fair_trace_throttles(&mut self) {
        for (cgroup, cpu, on) in self.fair.take_throttles() {
            self.metrics.throttles += u64::from(on);
            let time = self.clock();
            let kind = EventKind::Throttle { cgroup, on };
            self.tracer.emit(scxlab_trace::event::Event { time, cpu, kind });
        }
    }

    #[inline]
    fn fair_resched(&mut self, cpu: CpuId, urgency: Resched) {
        match urgency {
            Resched::No => {}
            Resched::Lazy => self.cpus[cpu].resched_lazy = true,
            Resched::Now => self.resched(cpu),
        }
    }
}

fn fair_policy(policy: Policy) -> FairPolicy {
    match policy {
        Policy::Batch => FairPolicy::Batch,
        Policy::Idle => FairPolicy::Idle,
        _ => FairPolicy::Normal,
    }
}

fn wake_flags(flags: u64) -> WakeFlags {
    WakeFlags {
        ttwu: flags & wake::TTWU != 0,
        fork: flags & wake::FORK != 0,
        exec: flags & wake::EXEC != 0,
        sync: flags & wake::SYNC != 0,
        current_cpu: false,
    }
}
