// SPDX-License-Identifier: GPL-2.0-only
//! The instructions that `run.rs` does not execute itself: timers, I/O, forks, scheduling system
//! calls, the end of a thread.
//!
//! Owns: the system call behind each instruction, and its cost. Does not: know the internals of
//! objects (`sync`, `pipe`, `spin`).

use scxlab_kernel::behavior::{Call, Sys, TaskStep};
use scxlab_machine::id::{CgroupId, CpuId, Nanos};

use super::stats::Pending;
use super::thread::{NO_THREAD, Wait};
use super::{Executor, FINISH, Flow, kernel_policy};
use crate::compile::insn::{Insn, TimerRef, WaitObject};

impl Executor {
    /// Executes any instruction that `step_at` does not execute itself. The cost of the function
    /// call is small beside the cost of such an instruction.
    #[inline(never)]
    pub(super) fn exec(&mut self, sys: &mut dyn Sys, t: usize, insn: Insn) -> Flow {
        match insn {
            Insn::ComputeWall(0) => Flow::Next,
            Insn::ComputeWall(wall) => {
                self.threads[t].note_run(sys.now(), wall);
                Flow::Yield(TaskStep::ComputeWall { wall })
            }
            Insn::Touch(index) => {
                let work = self.touch_costs[index as usize];
                if work == 0 { Flow::Next } else { Flow::Yield(TaskStep::Compute { work }) }
            }
            Insn::TouchIn(index) | Insn::ComputeIn(index) => self.access_region(sys, t, index),
            Insn::Delay(length) => {
                let time_zero = &mut self.threads[t].time_zero;
                *time_zero = time_zero.saturating_add(length);
                let at = *time_zero;
                sys.note_call(Call::SleepUntil { at });
                self.sleep_until(at, t)
            }
            Insn::Timer { timer, period, absolute } => self.timer(sys, t, timer, period, absolute),
            Insn::Lock(m) => self.lock(sys, t, m),
            Insn::Unlock(m) => self.unlock(sys, t, m),
            Insn::Wait { cond, mutex } => self.wait(sys, t, cond, mutex),
            Insn::Signal(c) => self.signal(sys, t, c, 1),
            Insn::Broadcast(c) => self.signal(sys, t, c, usize::MAX),
            Insn::Barrier(b) => self.barrier(sys, t, b),
            Insn::SemPost(s) => self.sem_post(sys, t, s),
            Insn::SemWait(s) => self.sem_wait(sys, t, s),
            Insn::TakeOrExit(s) if !self.sem_take(t, s) => self.exit(sys, t),
            Insn::TakeOrExit(_) => Flow::Next,
            Insn::Write { pipe, bytes } => self.write(sys, t, pipe, bytes),
            Insn::Read { pipe, bytes } => self.read(sys, t, pipe, bytes),
            Insn::Poll(index) => self.poll(sys, t, index),
            Insn::SpinLock(s) => self.spin_lock(sys, t, s),
            Insn::SpinUnlock(s) => self.spin_unlock(sys, t, s),
            Insn::SpinBarrier(s) => self.spin_barrier(sys, t, s),
            Insn::Atomic { lines, count } => self.atomic(sys, t, lines, count),
            Insn::LoopInit { slot, end, times } => {
                let thread = &mut self.threads[t];
                match times {
                    0 => thread.pc = end,
                    _ => thread.loops[slot as usize] = times,
                }
                Flow::Next
            }
            Insn::PhaseBegin => self.phase_begin(sys, t),
            Insn::PhaseEnd => self.phase_end(sys, t),
            insn => self.exec_rare(sys, t, insn),
        }
    }

    /// Executes the less frequent instructions: I/O, forks, exits, and system calls that change
    /// attributes.
    fn exec_rare(&mut self, sys: &mut dyn Sys, t: usize, insn: Insn) -> Flow {
        let task = self.threads[t].task;
        match insn {
            Insn::Io { bytes, null } => {
                sys.note_call(Call::Io { bytes });
                sys.charge(self.costs.io_submit);
                let length = self.costs.io_time(bytes);
                if length > 0 && !null {
                    return self.sleep_until(sys.now().saturating_add(length), t);
                }
            }
            Insn::Takes(call) => {
                let wall = self.costs.long_call(call);
                if wall > 0 {
                    return Flow::Yield(TaskStep::ComputeWall { wall });
                }
            }
            Insn::Fork(template) => self.fork(sys, t, template as usize),
            Insn::Join if self.threads[t].children > 0 => {
                sys.note_call(Call::Join);
                self.threads[t].wait = Wait::On(WaitObject::Join, 0);
                return Flow::Yield(TaskStep::Block);
            }
            // The step itself has the whole cost.
            Insn::Unmap => return Flow::Yield(TaskStep::FlushTlb),
            Insn::Exec => {
                sys.note_call(Call::Exec);
                self.remap_regions(sys, t);
                return Flow::Yield(TaskStep::Exec);
            }
            Insn::Yield => {
                sys.note_call(Call::Yield);
                return Flow::Yield(TaskStep::Yield);
            }
            Insn::Exit => return self.exit(sys, t),
            Insn::SetAffinity(index) => {
                sys.charge(self.costs.sched_set);
                let got = sys.set_affinity(task, &self.masks[index as usize]);
                self.checked(sys, t, "sched_setaffinity", got);
            }
            Insn::ClearAffinity => {
                sys.charge(self.costs.sched_set);
                let got = sys.set_affinity(task, &self.all_cpus);
                self.checked(sys, t, "sched_setaffinity", got);
            }
            Insn::CpuOffline(index) => self.hotplug(sys, t, index, false),
            Insn::CpuOnline(index) => self.hotplug(sys, t, index, true),
            Insn::SetNice(nice) => {
                sys.charge(self.costs.sched_set);
                let got = sys.set_nice(task, nice);
                self.checked(sys, t, "setpriority", got);
            }
            Insn::SetPolicy(index) => {
                sys.charge(self.costs.sched_set);
                let policy = kernel_policy(self.compiled.tables.policies[index as usize]);
                let got = sys.set_policy(task, policy);
                self.checked(sys, t, "sched_setscheduler", got);
            }
            Insn::MoveCgroup(index) => {
                sys.charge(self.costs.cgroup_move);
                // An index outside the table of cgroups, such as `ROOT_CGROUP`, means the root
                // cgroup.
                let id = self.cgroup_ids.get(index as usize).copied().unwrap_or(CgroupId(0));
                self.threads[t].cgroup = id;
                let got = sys.move_to_cgroup(task, id);
                self.checked(sys, t, "cgroup.procs", got);
            }
            Insn::SetXattr(index) => {
                sys.charge(self.costs.set_xattr);
                let xattr = &self.compiled.tables.xattrs[index as usize];
                let id = xattr.cgroup.and_then(|c| self.cgroup_ids.get(c as usize).copied());
                let id = id.unwrap_or(CgroupId(0));
                let got = sys.set_xattr(id, &xattr.name, xattr.value.as_bytes());
                self.checked(sys, t, "setxattr", got);
            }
            _ => {}
        }
        Flow::Next
    }

    /// Takes the CPUs of a list off line, or brings them back.
    fn hotplug(&mut self, sys: &mut dyn Sys, t: usize, list: u32, online: bool) {
        let cpus: Vec<u32> = self.compiled.tables.affinities[list as usize].iter().collect();
        let what = if online { "cpu_online" } else { "cpu_offline" };
        for cpu in cpus {
            sys.charge(self.costs.sched_set);
            let got = sys.set_cpu_online(CpuId(cpu), online);
            self.checked(sys, t, what, got);
        }
    }

    fn sleep_until(&mut self, at: Nanos, t: usize) -> Flow {
        self.threads[t].wait = Wait::Until(at);
        Flow::Yield(TaskStep::SleepUntil(at))
    }

    /// Executes rt-app's timer. The timer's first period begins at `Thread::time_zero`.
    fn timer(
        &mut self,
        sys: &mut dyn Sys,
        t: usize,
        timer: TimerRef,
        period: Nanos,
        absolute: bool,
    ) -> Flow {
        sys.charge(self.costs.timer);
        let now = sys.now();
        let thread = &mut self.threads[t];
        thread.phase.c_period = thread.phase.c_period.saturating_add(period);
        let state = match timer {
            TimerRef::Own(slot) => &mut thread.timers[slot as usize],
            TimerRef::Shared(res) => &mut self.timers[res.index(&thread.binding)],
        };
        let next = state.next.unwrap_or(thread.time_zero).saturating_add(period);
        state.next = Some(next);
        sys.note_call(Call::SleepUntil { at: next });
        let late = now >= next;
        if late && !absolute {
            state.next = Some(now);
        }
        thread.phase.slack(next, now, self.cumulative_slack);
        self.timer_totals.reached(next, now, period, absolute);
        if late {
            thread.phase.missed += 1;
            thread.phase.wu_lat = 0;
            return Flow::Next;
        }
        thread.pending = Pending::TimerWake { due: next };
        self.sleep_until(next, t)
    }

    fn exit(&mut self, sys: &mut dyn Sys, t: usize) -> Flow {
        self.unmap_regions(sys, t);
        let thread = &mut self.threads[t];
        let (task, parent) = (thread.task, thread.parent);
        thread.serial = 0;
        self.by_task[task.idx()] = NO_THREAD;
        self.free.push(u32::try_from(t).unwrap_or(NO_THREAD));
        if parent.is_none() {
            self.completed.0 += 1;
            self.completed.1 += u128::from(sys.now());
        }
        if let Some((parent, serial)) = parent {
            let above = &mut self.threads[parent as usize];
            if above.serial == serial {
                above.children -= 1;
                if above.children == 0 && above.wait == Wait::On(WaitObject::Join, 0) {
                    self.release(sys, parent, false);
                }
            }
        }
        self.live -= 1;
        if self.live == 0 && !self.endless {
            // The run ends by a timer event, so that this last thread leaves the CPU first.
            sys.post(sys.now(), sys.this_cpu(), FINISH);
        }
        Flow::Yield(TaskStep::Exit)
    }
}
