// SPDX-License-Identifier: GPL-2.0-only
//! One thread of the workload: it sets its attributes, waits for the start, and runs its
//! instructions.
//!
//! Owns: the meaning of each instruction in the native executor; `exec.rs` owns it in the
//! simulation.
//! Does not: allocate from the start of the run to the thread's end, except to make a thread
//! (`spawn.rs`).

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use scxlab_machine::Stream;
use scxlab_machine::id::Nanos;

use super::burn::burn;
use super::error::RefusedCallKind;
use super::memory::{self, Buffer};
use super::plan::Tables;
use super::sample;
use super::shared::{self, Shared, Slot};
use super::sys::{self, Errno, SchedAttr};
use crate::compile::insn::{Insn, TimerRef, WaitObject};
use crate::program::PolicyDef;

/// Approximate CPU time between two checks of the stop flag in a long compute.
pub const CHUNK_NS: Nanos = 20_000;

/// Data shared by all threads of a process.
pub struct Env {
    pub tables: Tables,
    pub shared: Shared,
}

/// The reason why a thread ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Exit,
    Stop,
}

pub type Flow = Result<(), End>;

pub struct Thread {
    pub env: &'static Env,
    pub index: u32,
    pub slot: &'static Slot,
    pub binding: &'static [u32],
    loops: &'static [AtomicU64],
    own_timers: &'static [AtomicU64],
    /// Addresses of the regions of the template's accesses, and where these accesses are.
    pub region_at: &'static [AtomicU64],
    pub cursors: &'static [AtomicU64],
    pub pc: u32,
    /// Start of the run on CLOCK_MONOTONIC.
    started: Nanos,
    pub template: u32,
    buffer: Buffer,
    noise: Option<Stream>,
}

/// Runs a thread that exists at the start, from its attributes to its end.
pub fn run_from_start(env: &'static Env, index: u32) {
    let mut thread = Thread::new(env, index);
    let got = thread.attributes(false).and_then(|()| thread.prepare_memory());
    if let Err((what, errno)) = got {
        let pc = if what == RefusedCallKind::Memory { thread.pc } else { u32::MAX };
        env.shared.fault(thread.slot, 0, what, pc, errno);
        env.shared.head().failed.store(index + 1, Release);
    }
    let head = env.shared.head();
    head.ready.fetch_add(1, Release);
    sys::futex_wake(&head.ready, 1);
    while head.go.load(Acquire) == 0 {
        if thread.stopped().is_err() {
            return;
        }
        sys::futex_wait(&head.go, 0, None);
    }
    thread.started = head.started.load(Relaxed);
    thread.begin();
    thread.live(false);
}

/// Runs a thread that another thread forked.
pub fn run_forked(env: &'static Env, index: u32) {
    let mut thread = Thread::new(env, index);
    thread.started = env.shared.head().started.load(Relaxed);
    let began = thread.now();
    thread.slot.began.store(began, Relaxed);
    match thread.attributes(true).and_then(|()| thread.prepare_memory()) {
        Ok(()) => {
            thread.slot.zero.store(began, Relaxed);
            thread.live(false);
        }
        Err((what, errno)) => {
            env.shared.fault(thread.slot, began, what, u32::MAX, errno);
            thread.finish(End::Stop);
        }
    }
}

/// Continues a thread after its `execve`.
pub fn run_again(env: &'static Env, index: u32) {
    let mut thread = Thread::new(env, index);
    thread.started = env.shared.head().started.load(Relaxed);
    thread.pc = thread.slot.pc.load(Relaxed);
    sys::set_comm(thread.comm());
    sys::no_timer_slack();
    if let Err((what, errno)) = thread.prepare_memory() {
        thread.fault(what, errno);
    }
    for _ in 0..thread.slot.draws.load(Relaxed) {
        thread.noise.as_mut().map(Stream::next_u64);
    }
    thread.live(true);
}

impl Thread {
    fn new(env: &'static Env, index: u32) -> Self {
        let (tables, shared) = (&env.tables, &env.shared);
        let slot = &shared.slots[index as usize];
        let template = slot.who.template.load(Relaxed);
        let instance = slot.who.instance.load(Relaxed);
        let table = &tables.templates[template as usize];
        let row = |all: &'static [AtomicU64], width: u32| {
            let (at, width) = (index as usize * width as usize, width as usize);
            &all[at..at + width]
        };
        let plan = &tables.plan;
        let serial = slot.serial.load(Relaxed);
        let noise = (plan.compute_noise_permille > 0)
            .then(|| Stream::new(plan.seed, "workload.compute_noise", serial));
        Thread {
            env,
            index,
            slot,
            // `reserve` in `spawn.rs` has checked that names for this instance are prepared.
            binding: table.binding(instance).unwrap_or(&[]),
            loops: row(shared.loops, tables.max_loops),
            own_timers: row(shared.own_timers, tables.max_timers),
            region_at: row(shared.region_at, tables.max_accesses),
            cursors: row(shared.cursors, tables.max_accesses),
            pc: tables.compiled.templates[template as usize].entry,
            started: 0,
            template,
            buffer: Buffer::none(),
            noise,
        }
    }

    fn comm(&self) -> [u8; 16] {
        let mut comm = [0; 16];
        comm[..8].copy_from_slice(&self.slot.comm[0].load(Relaxed).to_le_bytes());
        comm[8..].copy_from_slice(&self.slot.comm[1].load(Relaxed).to_le_bytes());
        comm
    }

    /// Sets the attributes that the thread's template asks for. Until then, a forked thread has its
    /// parent's attributes.
    fn attributes(&mut self, forked: bool) -> Result<(), (RefusedCallKind, Errno)> {
        let slot = self.slot;
        slot.tid.store(sys::gettid(), Relaxed);
        slot.tgid.store(sys::getpid(), Relaxed);
        slot.state.store(shared::ALIVE, Release);
        sys::set_comm(self.comm());
        sys::no_timer_slack();
        let tables = &self.env.tables;
        let def = &tables.plan.program.threads[self.template as usize];
        if let Some(cgroup) = tables.compiled.templates[self.template as usize].cgroup {
            self.move_cgroup(cgroup).map_err(|errno| (RefusedCallKind::Cgroup, errno))?;
        }
        let attr = policy_attr(def.policy, def.nice, def.slice.map_or(0, |s| s.0));
        let now = sys::sched_getattr().map_err(|errno| (RefusedCallKind::Policy, errno))?;
        if (now.policy, now.nice, now.priority) != (attr.policy, attr.nice, attr.priority)
            || now.runtime != attr.runtime && def.slice.is_some()
            || attr.policy == sys::SCHED_DEADLINE
        {
            let what = if attr.policy == 0 && attr.nice != now.nice {
                RefusedCallKind::Nice
            } else {
                RefusedCallKind::Policy
            };
            sys::sched_setattr(attr).map_err(|errno| (what, errno))?;
        }
        if now.nice != attr.nice && !is_fair(attr.policy) {
            sys::set_nice(def.nice).map_err(|errno| (RefusedCallKind::Nice, errno))?;
        }
        slot.nice.store(def.nice.into(), Relaxed);
        let mask = tables.templates[self.template as usize].mask.as_ref();
        match mask {
            // A forked thread without a mask of its own keeps its parent's affinity.
            None if forked || !tables.plan.restrict => Ok(()),
            mask => sys::set_affinity(mask.unwrap_or(&tables.all_cpus)),
        }
        .map_err(|errno| (RefusedCallKind::Affinity, errno))
    }

    fn prepare_memory(&mut self) -> Result<(), (RefusedCallKind, Errno)> {
        let bytes = self.env.tables.templates[self.template as usize].touched;
        self.buffer = Buffer::new(bytes).map_err(|errno| (RefusedCallKind::Memory, errno))?;
        self.map_regions().map_err(|errno| (RefusedCallKind::Region, errno))
    }

    /// Draws the thread's random start offset.
    fn begin(&mut self) {
        let plan = &self.env.tables.plan;
        if plan.start_offset_max > 0 {
            let serial = self.slot.serial.load(Relaxed);
            let draw = Stream::new(plan.seed, "workload.start_offset", serial).next_u64();
            self.slot.zero.store(draw % plan.start_offset_max.saturating_add(1), Relaxed);
        }
    }

    fn live(&mut self, again: bool) {
        let end = self.run(again);
        self.finish(end);
    }

    fn run(&mut self, again: bool) -> End {
        let zero = self.slot.zero.load(Relaxed);
        if !again && zero > 0 && self.sleep_until(zero).is_err() {
            return End::Stop;
        }
        let code = &self.env.tables.compiled.code;
        loop {
            if let Err(end) = self.stopped() {
                return end;
            }
            let insn = code[self.pc as usize];
            self.pc += 1;
            if let Err(end) = self.exec(insn) {
                return end;
            }
        }
    }

    fn finish(&mut self, end: End) {
        let slot = self.slot;
        if end == End::Stop {
            self.note_unreached();
        }
        sample::own(&slot.after);
        slot.ended.store(self.now(), Relaxed);
        let how = if end == End::Exit { shared::EXITED } else { shared::STOPPED };
        slot.end.store(how, Relaxed);
        self.buffer.free();
        self.unmap_regions(false);
        self.leave();
    }

    /// Returns the time since the start of the run.
    pub fn now(&self) -> Nanos {
        sys::now().saturating_sub(self.started)
    }

    /// Records that the kernel refused the current op.
    pub fn fault(&self, what: RefusedCallKind, errno: Errno) {
        self.env.shared.fault(self.slot, self.now(), what, self.pc.saturating_sub(1), errno);
    }

    fn checked(&self, what: RefusedCallKind, got: Result<(), Errno>) {
        if let Err(errno) = got {
            self.fault(what, errno);
        }
    }

    fn exec(&mut self, insn: Insn) -> Flow {
        let b = self.binding;
        match insn {
            Insn::Unlock(m) => self.unlock(m.index(b)),
            Insn::Signal(c) => self.signal(c.index(b), 1),
            Insn::Broadcast(c) => self.signal(c.index(b), u32::MAX),
            Insn::SemPost(s) => self.sem_post(s.index(b)),
            Insn::SpinUnlock(s) => self.spin_unlock(s.index(b)),
            Insn::Atomic { lines, count } => self.atomic(lines.index(b), count),
            Insn::PhaseBegin => self.phase_begin(),
            Insn::PhaseEnd => self.phase_end(),
            Insn::Count(units) => self.count(units),
            Insn::Jump(start) => self.pc = start,
            Insn::LoopInit { slot, end, times } => match times {
                0 => self.pc = end,
                _ => self.loops[slot as usize].store(times, Relaxed),
            },
            Insn::LoopNext { slot, start } => {
                let left = &self.loops[slot as usize];
                let passes = left.load(Relaxed).saturating_sub(1);
                left.store(passes, Relaxed);
                if passes > 0 {
                    self.pc = start;
                }
            }
            insn => return self.exec_blocking(insn),
        }
        Ok(())
    }

    /// Executes the instructions that take time; passes all others to `exec_rare`.
    fn exec_blocking(&mut self, insn: Insn) -> Flow {
        let b = self.binding;
        match insn {
            Insn::Compute(work) => self.compute(work),
            Insn::ComputeWall(wall) => self.compute_wall(wall),
            Insn::Touch(index) => {
                let touch = &self.env.tables.compiled.tables.touches[index as usize];
                let head = self.env.shared.head();
                self.buffer.touch(touch, || head.stop.load(Relaxed) != 0);
                Ok(())
            }
            Insn::TouchIn(index) | Insn::ComputeIn(index) => self.access_region(index),
            Insn::Sleep(length) => self.sleep_until(self.now().saturating_add(length)),
            Insn::Delay(length) => {
                let zero = self.slot.zero.load(Relaxed).saturating_add(length);
                self.slot.zero.store(zero, Relaxed);
                self.sleep_until(zero)
            }
            Insn::Timer { timer, period, absolute } => self.timer(timer, period, absolute),
            Insn::Lock(m) => self.lock(m.index(b)),
            Insn::Wait { cond, mutex } => self.wait(cond.index(b), mutex.index(b)),
            Insn::Barrier(r) => self.barrier(r.index(b)),
            Insn::SemWait(s) => self.sem_wait(s.index(b)),
            Insn::TakeOrExit(s) => self.take_or_exit(s.index(b)),
            Insn::Write { pipe, bytes } => self.write(pipe.index(b), bytes),
            Insn::Read { pipe, bytes } => self.read(pipe.index(b), bytes),
            Insn::Poll(index) => {
                self.poll(&self.env.tables.compiled.tables.polls[index as usize], b)
            }
            Insn::SpinLock(s) => self.spin_lock(s.index(b)),
            Insn::SpinBarrier(s) => self.spin_barrier(s.index(b)),
            insn => self.exec_rare(insn),
        }
    }

    fn exec_rare(&mut self, insn: Insn) -> Flow {
        let tables = &self.env.tables;
        match insn {
            Insn::Io { bytes, null } => return self.io(bytes, null),
            Insn::Fork(template) => self.fork(template),
            Insn::Unmap => memory::unmap_page(),
            Insn::Join => return self.join(),
            Insn::Exec => self.reexec(),
            // SAFETY: no arguments.
            Insn::Yield => drop(unsafe { libc::sched_yield() }),
            Insn::Exit => return Err(End::Exit),
            Insn::SetAffinity(index) => {
                self.checked(
                    RefusedCallKind::Affinity,
                    sys::set_affinity(&tables.masks[index as usize]),
                );
            }
            Insn::ClearAffinity => {
                self.checked(RefusedCallKind::Affinity, sys::set_affinity(&tables.all_cpus));
            }
            Insn::SetNice(nice) => {
                let got = sys::set_nice(nice);
                if got.is_ok() {
                    self.slot.nice.store(nice.into(), Relaxed);
                }
                self.checked(RefusedCallKind::Nice, got);
            }
            Insn::SetPolicy(index) => {
                let def = &tables.plan.program.threads[self.template as usize];
                let nice = self.slot.nice.load(Relaxed) as i8;
                let slice = def.slice.map_or(0, |s| s.0);
                let attr =
                    policy_attr(tables.compiled.tables.policies[index as usize], nice, slice);
                self.checked(RefusedCallKind::Policy, sys::sched_setattr(attr));
            }
            Insn::MoveCgroup(index) => {
                let got = self.move_cgroup(index);
                self.checked(RefusedCallKind::Cgroup, got);
            }
            Insn::SetXattr(index) => {
                let xattr = &tables.xattrs[index as usize];
                self.checked(
                    RefusedCallKind::Xattr,
                    sys::set_xattr(&xattr.path, &xattr.name, &xattr.value),
                );
            }
            _ => {}
        }
        Ok(())
    }

    /// Moves the thread to a cgroup. An index beyond the table of cgroups, such as `ROOT_CGROUP`,
    /// means the root.
    fn move_cgroup(&self, index: u32) -> Result<(), Errno> {
        let fds = self.env.shared.cgroup_fds;
        let at = if (index as usize) + 1 < fds.len() { index + 1 } else { 0 };
        sys::write(fds[at as usize].load(Relaxed), b"0")?;
        self.slot.cgroup.store(at, Relaxed);
        Ok(())
    }

    fn compute(&mut self, work: Nanos) -> Flow {
        if work == 0 {
            return Ok(());
        }
        let real = self.noisy(work);
        let (mut left, chunk) = (self.iterations(real), self.iterations(CHUNK_NS).max(1));
        let since = self.now();
        while left > 0 {
            self.stopped()?;
            let part = left.min(chunk);
            burn(part);
            left -= part;
        }
        self.note_run(since);
        Ok(())
    }

    /// Returns the work of a compute that asks for `work`.
    pub fn noisy(&mut self, work: Nanos) -> Nanos {
        let noise = u64::from(self.env.tables.plan.compute_noise_permille.min(999));
        let Some(stream) = &mut self.noise else { return work };
        self.slot.draws.store(self.slot.draws.load(Relaxed) + 1, Relaxed);
        let permille = 1000 - noise + stream.next_u64() % (2 * noise + 1);
        let scaled = u128::from(work) * u128::from(permille) / 1000;
        u64::try_from(scaled).unwrap_or(u64::MAX).max(1)
    }

    /// Returns the number of the loop's iterations that do this much work.
    pub fn iterations(&self, work: Nanos) -> u64 {
        let head = self.env.shared.head();
        let (per, ns) = (head.iterations.load(Relaxed), head.iterations_ns.load(Relaxed));
        u64::try_from(u128::from(work) * u128::from(per) / u128::from(ns)).unwrap_or(u64::MAX)
    }

    /// Computes until the thread's CPU time has grown by `wall`.
    fn compute_wall(&mut self, wall: Nanos) -> Flow {
        if wall == 0 {
            return Ok(());
        }
        let since = self.now();
        let until = sys::thread_cpu().saturating_add(wall);
        while sys::thread_cpu() < until {
            self.stopped()?;
            burn(500);
        }
        self.note_run(since);
        Ok(())
    }

    /// Sleeps until `at`, a time since the start of the run.
    fn sleep_until(&self, at: Nanos) -> Flow {
        let at = at.saturating_add(self.started);
        loop {
            self.stopped()?;
            if sys::sleep_until(at) {
                return Ok(());
            }
        }
    }

    /// Models a device's latency by a sleep. For /dev/null it does a real write.
    fn io(&self, bytes: u64, null: bool) -> Flow {
        let plan = &self.env.tables.plan;
        if null {
            let fd = self.env.shared.head().null_fd.load(Relaxed);
            let got = super::memory::write_null(fd, bytes);
            self.checked(RefusedCallKind::Io, got);
            return Ok(());
        }
        let transfer = u128::from(plan.io_kib) * u128::from(bytes) / 1024;
        let transfer = u64::try_from(transfer).unwrap_or(u64::MAX);
        match plan.io_latency.saturating_add(transfer) {
            0 => Ok(()),
            length => self.sleep_until(self.now().saturating_add(length)),
        }
    }

    /// Executes rt-app's timer, like `Executor::timer`.
    fn timer(&mut self, timer: TimerRef, period: Nanos, absolute: bool) -> Flow {
        let now = self.now();
        let zero = self.slot.zero.load(Relaxed);
        let (next, late) = match timer {
            TimerRef::Own(slot) => {
                advance(&self.own_timers[slot as usize], zero, now, period, absolute)
            }
            TimerRef::Shared(res) => {
                let timer = &self.env.shared.timers[res.index(self.binding)];
                let _held = timer.guard.lock();
                advance(&timer.next, zero, now, period, absolute)
            }
        };
        let totals = &self.slot.totals;
        totals.change_timers(|t| t.reached(next, now, period, absolute));
        if late {
            return Ok(());
        }
        let slept = self.sleep_until(next);
        let now = self.now();
        // If the run ends first, the thread has not waited for longer than the timer.
        if slept.is_ok() || now >= next {
            totals.change_timers(|t| t.latency(now.saturating_sub(next)));
        }
        slept
    }

    pub fn note_run(&self, since: Nanos) {
        let run = &self.slot.phase.run;
        let spent = self.now().saturating_sub(since);
        run.store(run.load(Relaxed).saturating_add(spent), Relaxed);
    }

    fn count(&self, units: u64) {
        let all = &self.slot.units;
        all.store(all.load(Relaxed).saturating_add(units), Relaxed);
    }

    fn phase_begin(&self) {
        self.slot.phase.run.store(0, Relaxed);
    }

    fn phase_end(&self) {
        let (phase, totals) = (&self.slot.phase, &self.slot.totals);
        let add = |to: &AtomicU64, more: u64| {
            to.store(to.load(Relaxed).saturating_add(more), Relaxed);
        };
        self.count(1);
        add(&totals.loops, 1);
        add(&totals.run, phase.run.load(Relaxed));
    }

    /// Notes the timers that the thread has not reached although they were due.
    fn note_unreached(&self) {
        let end = self.now();
        let zero = self.slot.zero.load(Relaxed);
        for (timer, period) in self.env.tables.compiled.timers_ahead(self.pc as usize) {
            // Whose task a shared timer's period was is unknown.
            let TimerRef::Own(slot) = timer else { continue };
            let last = last_period(&self.own_timers[slot as usize], zero);
            let due = last.saturating_add(period);
            self.slot.totals.change_timers(|t| t.unreached(due, end, period));
        }
    }

    /// Waits until every child has exited.
    fn join(&self) -> Flow {
        self.waiting(WaitObject::Join, 0);
        loop {
            let children = self.slot.children.load(Acquire);
            if children == 0 {
                break;
            }
            self.stopped()?;
            sys::futex_wait(&self.slot.children, children, None);
        }
        self.waiting(WaitObject::Nothing, 0);
        Ok(())
    }
}

/// Returns the end of the timer's next period and whether that end has passed. `next` stores the
/// end of the last period plus one, or 0 if the timer was never used.
fn advance(
    next: &AtomicU64,
    zero: Nanos,
    now: Nanos,
    period: Nanos,
    absolute: bool,
) -> (Nanos, bool) {
    let due = last_period(next, zero).saturating_add(period);
    let late = now >= due;
    let kept = if late && !absolute { now } else { due };
    next.store(kept.saturating_add(1), Relaxed);
    (due, late)
}

/// Returns the end of a timer's last period.
fn last_period(next: &AtomicU64, zero: Nanos) -> Nanos {
    next.load(Relaxed).checked_sub(1).unwrap_or(zero)
}

fn is_fair(policy: u32) -> bool {
    matches!(policy as i32, libc::SCHED_OTHER | libc::SCHED_BATCH)
}

/// Returns a policy in the kernel's form.
fn policy_attr(policy: PolicyDef, nice: i8, slice: Nanos) -> SchedAttr {
    let base = SchedAttr { nice: nice.into(), ..SchedAttr::default() };
    let of = |policy: libc::c_int| SchedAttr { policy: policy as u32, ..base };
    match policy {
        PolicyDef::Normal => SchedAttr { runtime: slice, ..of(libc::SCHED_OTHER) },
        PolicyDef::Batch => SchedAttr { runtime: slice, ..of(libc::SCHED_BATCH) },
        PolicyDef::Idle => of(libc::SCHED_IDLE),
        PolicyDef::Ext => SchedAttr { policy: sys::SCHED_EXT, ..base },
        PolicyDef::Fifo(prio) => SchedAttr { priority: prio.into(), ..of(libc::SCHED_FIFO) },
        PolicyDef::Rr(prio) => SchedAttr { priority: prio.into(), ..of(libc::SCHED_RR) },
        PolicyDef::Deadline { runtime, deadline, period } => SchedAttr {
            policy: sys::SCHED_DEADLINE,
            runtime: runtime.0,
            deadline: deadline.0,
            period: period.0,
            ..base
        },
    }
}
