// SPDX-License-Identifier: GPL-2.0-only
//! The debug dump of an ejected scheduler: the running and the waiting tasks of each CPU, and the
//! scheduler's own text.
//!
//! Owns: the dump's format. Does not: decide when to dump (see `enable.rs`).
//! Models: kernel `scx_dump_state()`, `scx_dump_cpu()`, `scx_dump_task()`, `scx_bpf_dump_bstr()`,
//! 7.3. Differs: there are no kernel stacks. The program's frames follow the heading `Backtrace:`,
//! and tasks have no backtrace.

mod buf;

pub use buf::DumpBuf;

use super::entity::{OpsState, TaskPhase};
use super::exit::ExitInfo;
use super::op::Op;
use super::origin::Origin;
use super::stats::Ev;
use crate::bpf::abi;
use crate::bpf::flags::{ent, kick, limit};
use crate::kernel::Kernel;
use crate::task::{Class, Task, TaskState};
use buf::hex_bitmap;
use scxlab_machine::cpumask::CpuMask;
use scxlab_machine::id::{CpuId, TaskId};

/// `SCX_RQ_*` bits that are modelled.
mod rq_flag {
    pub const ONLINE: u32 = 1 << 0;
    pub const CAN_STOP_TICK: u32 = 1 << 1;
    pub const BAL_CB_PENDING: u32 = 1 << 6;
    pub const ROOT_IDLE_RENOTIFY: u32 = 1 << 8;
    pub const IN_WAKEUP: u32 = 1 << 16;
    pub const IN_DISPATCH: u32 = 1 << 17;
}

/// The `struct scx_dump_ctx` of the scheduler's dump operations, in guest memory.
struct Context {
    addr: u64,
    at_jiffies: u64,
}

impl Kernel {
    /// Makes the dump for the exit that was claimed; empty without a scheduler.
    pub(crate) fn ext_dump(&mut self) -> String {
        let Some(sched) = &self.ext.root else {
            return String::new();
        };
        let (name, exit) = (sched.data.name.clone(), sched.exit.clone());
        let len = match sched.data.exit_dump_len {
            0 => limit::EXIT_DUMP_DFL_LEN,
            len => len,
        };
        self.ext.dump = Some(DumpBuf::new(len as usize));
        let ctx = self.dump_context(exit.as_ref());
        self.dump_header(&name, exit.as_ref());
        self.dump_op(Op::Dump, None, "", &[ctx.addr]);
        self.dump_line("");
        self.dump_line("CPU states");
        self.dump_line("----------");
        let waiting = self.waiting_by_cpu();
        for cpu in self.dump_order(exit.as_ref().and_then(|exit| exit.cpu)) {
            self.dump_cpu(&ctx, cpu, &waiting[cpu.idx()]);
        }
        self.dump_events();
        self.ext.dump.take().map_or_else(String::new, DumpBuf::finish)
    }

    /// `scx_bpf_dump_bstr()`: adds text from the scheduler. Reports an error of the scheduler if
    /// none of its dump operations runs.
    pub(crate) fn dump_append(&mut self, text: &str) {
        let taken = self.ext.dump.as_mut().is_some_and(|dump| dump.append(text));
        if !taken {
            self.scx_error("scx_bpf_dump() must only be called from ops.dump() and friends");
        }
    }

    fn dump_line(&mut self, text: impl AsRef<str>) {
        if let Some(dump) = &mut self.ext.dump {
            dump.line(text.as_ref());
        }
    }

    /// Builds the context of the dump operations in guest memory.
    fn dump_context(&mut self, exit: Option<&ExitInfo>) -> Context {
        let (at_ns, at_jiffies) = (self.ktime(), self.jiffies());
        let reason = self.scratch_reason(exit.map_or("none", |exit| exit.kind.reason()));
        let addr = self.ext.scratch.dump_ctx;
        let ctx = self.vm.mem.host_mut::<abi::scx_dump_ctx>(addr);
        ctx.kind = exit.map_or(0, |exit| exit.kind as u32);
        ctx.exit_code = exit.map_or(0, |exit| exit.code);
        ctx.reason = reason;
        (ctx.at_ns, ctx.at_jiffies) = (at_ns, at_jiffies);
        Context { addr, at_jiffies }
    }

    fn dump_header(&mut self, name: &str, exit: Option<&ExitInfo>) {
        self.dump_line(format!("{name}: root"));
        let Some(exit) = exit else {
            return self.dump_line("Debug dump triggered by SysRq-D");
        };
        let current = &self.tasks[self.cpus[self.exec.cpu].curr];
        let place = exit.cpu.map_or(String::new(), |cpu| format!(" on CPU {cpu}"));
        let kind = exit.kind as u32;
        let line = format!("{}[{}] triggered exit kind {kind}{place}:", current.name, current.pid);
        self.dump_line(line);
        self.dump_line(format!("  {} ({})", exit.kind.reason(), exit.message));
        self.dump_line("");
        self.dump_line("Backtrace:");
        self.dump_origin(&exit.origin);
    }

    /// Writes the origin of the exit where the real kernel writes its stack: the origin's lines of
    /// text and the program's frames.
    fn dump_origin(&mut self, origin: &Origin) {
        for line in &origin.lines {
            self.dump_line(format!("  {line}"));
        }
        for (depth, frame) in origin.frames.iter().enumerate() {
            self.dump_line(format!("  #{depth} {frame}"));
        }
        if origin.lines.is_empty() && origin.frames.is_empty() {
            self.dump_line("  in the kernel, outside of the scheduler's programs");
        }
    }

    /// Returns all CPUs. The CPU from which the exit came is the first, so that truncation of the
    /// dump does not lose it.
    fn dump_order(&self, first: Option<CpuId>) -> Vec<CpuId> {
        let rest = (0..self.cpus.len() as u32).map(CpuId).filter(|&cpu| Some(cpu) != first);
        first.into_iter().chain(rest).collect()
    }

    /// Returns the runnable tasks that are not running, indexed by CPU, the oldest first.
    fn waiting_by_cpu(&self) -> Vec<Vec<TaskId>> {
        let mut waiting: Vec<(u64, CpuId, TaskId)> = self
            .tasks
            .iter()
            .filter_map(|t| t.ext.runnable_seq.map(|arrival| (arrival, t.cpu, t.id)))
            .collect();
        waiting.sort_unstable();
        let mut lists = vec![Vec::new(); self.cpus.len()];
        for (_, cpu, task) in waiting {
            lists[cpu.idx()].push(task);
        }
        lists
    }

    /// Dumps a CPU. Leaves out an idle CPU unless the scheduler adds text for it.
    fn dump_cpu(&mut self, ctx: &Context, cpu: CpuId, waiting: &[TaskId]) {
        let curr = self.cpus[cpu].curr;
        let idle = waiting.is_empty() && self.tasks[curr].is_idle_task();
        if idle && !self.ext.has_op(Op::DumpCpu) {
            return;
        }
        let start = self.ext.dump.as_ref().map(DumpBuf::position);
        self.dump_cpu_state(cpu, curr);
        let before = self.ext.dump.as_ref().map(DumpBuf::position);
        let args = [ctx.addr, u64::from(cpu.0), u64::from(idle)];
        self.dump_op(Op::DumpCpu, Some(cpu), "  ", &args);
        let after = self.ext.dump.as_ref().map(DumpBuf::position);
        if idle && before == after {
            if let (Some(dump), Some(start)) = (&mut self.ext.dump, start) {
                dump.rewind(start);
            }
            return;
        }
        if self.tasks[curr].class == Class::Ext {
            self.dump_task(ctx, cpu, curr, '*');
        }
        for &task in waiting {
            self.dump_task(ctx, cpu, task, ' ');
        }
    }

    fn dump_cpu_state(&mut self, cpu: CpuId, curr: TaskId) {
        let pcpu = &self.ext.cpus[cpu];
        let head = format!(
            "CPU {:<4}: nr_run={} flags={:#x} cpu_rel={} ksync={}",
            cpu.0,
            pcpu.nr_running,
            self.rq_flags(cpu),
            u32::from(pcpu.cpu_released),
            pcpu.kick_sync,
        );
        let t = &self.tasks[curr];
        let class = format!(
            "          curr={}[{}] class={}",
            t.name,
            t.pid,
            crate::bpf::mirror::class_name(t.class)
        );
        let kicks = self.kick_lines(cpu);
        self.dump_line("");
        self.dump_line(head);
        self.dump_line(class);
        kicks.into_iter().for_each(|line| self.dump_line(line));
    }

    fn rq_flags(&self, cpu: CpuId) -> u32 {
        let pcpu = &self.ext.cpus[cpu];
        [
            (self.cpus[cpu].online, rq_flag::ONLINE),
            (pcpu.can_stop_tick, rq_flag::CAN_STOP_TICK),
            (pcpu.balance_pending, rq_flag::BAL_CB_PENDING),
            (pcpu.idle_renotify, rq_flag::ROOT_IDLE_RENOTIFY),
            (pcpu.in_wakeup, rq_flag::IN_WAKEUP),
            (pcpu.in_dispatch, rq_flag::IN_DISPATCH),
        ]
        .into_iter()
        .filter_map(|(on, bit)| on.then_some(bit))
        .sum()
    }

    /// Lists the kicks that this CPU has requested and not sent yet.
    fn kick_lines(&self, cpu: CpuId) -> Vec<String> {
        let pcpu = &self.ext.cpus[cpu];
        let nr = self.cpus.len();
        let kicked = |fits: fn(u64) -> bool| {
            let cpus = pcpu.kick_now.iter().filter(|(_, flags)| fits(*flags)).map(|(cpu, _)| *cpu);
            CpuMask::of(nr, cpus)
        };
        let sync = CpuMask::of(nr, pcpu.sync_pending.iter().map(|(cpu, _)| *cpu));
        [
            ("cpus_to_kick   ", kicked(|flags| flags & kick::IDLE == 0)),
            ("idle_to_kick   ", kicked(|flags| flags & kick::IDLE != 0)),
            ("cpus_to_preempt", kicked(|flags| flags & kick::PREEMPT != 0)),
            ("cpus_to_wait   ", kicked(|flags| flags & kick::WAIT != 0)),
            ("cpus_to_sync   ", sync),
        ]
        .into_iter()
        .filter(|(_, mask)| mask.iter().any(|&w| w != 0))
        .map(|(name, mask)| format!("  {name}: {}", hex_bitmap(&mask, nr)))
        .collect()
    }

    fn dump_task(&mut self, ctx: &Context, cpu: CpuId, task: TaskId, marker: char) {
        for line in self.task_lines(ctx, task, marker) {
            self.dump_line(line);
        }
        let addr = self.tasks[task].addr;
        self.dump_op(Op::DumpTask, Some(cpu), "    ", &[ctx.addr, addr]);
    }

    fn task_lines(&self, ctx: &Context, task: TaskId, marker: char) -> [String; 6] {
        let t = &self.tasks[task];
        let guest: &abi::task_struct = self.vm.mem.host_ref(t.addr);
        let scx = &guest.scx;
        // An asterisk marks a task that the scheduler has initialised. `root` names the scheduler
        // of the task: it is always the root scheduler, because sub-schedulers are not modelled.
        let owned = if t.ext.phase == TaskPhase::None { "" } else { "*" };
        let ms = self.jiffies_ms(scx.runnable_at, ctx.at_jiffies);
        let dsq = t.ext.dsq.map(|dsq| self.ext.dsqs.get(dsq).user_visible_id());
        let dsq = dsq.map_or("(n/a)".to_owned(), |id| format!("{id:#x}"));
        let (ops_state, qseq) = ops_state(t);
        let sticky = t.ext.sticky_cpu.map_or(-1, |cpu| i64::from(cpu.0));
        [
            String::new(),
            format!(" {marker}{} {}[{}] {owned}root {ms:+}ms", state_char(t), t.name, t.pid),
            format!(
                "      scx_state/flags={}/{:#x} dsq_flags={:#x} ops_state/qseq={ops_state}/{qseq}",
                t.ext.phase as u32,
                scx.flags & !ent::STATE_MASK,
                u32::from(t.ext.dsq.is_some() && t.ext.on_priq),
            ),
            format!("      sticky/holding_cpu={sticky}/-1 dsq_id={dsq}"),
            format!("      dsq_vtime={} slice={} weight={}", scx.dsq_vtime, scx.slice, scx.weight),
            format!(
                "      cpus={} no_mig={}",
                hex_bitmap(&t.cpus, self.cpus.len()),
                guest.migration_disabled
            ),
        ]
    }

    /// `jiffies_delta_msecs()`: returns `at - now` in ms, negative if `at` has passed.
    fn jiffies_ms(&self, at: u64, now: u64) -> i64 {
        let delta = at.wrapping_sub(now) as i64;
        let ns = i128::from(delta) * i128::from(self.machine.costs.tick_period_ns());
        i64::try_from(ns / 1_000_000).unwrap_or(i64::MAX)
    }

    fn dump_events(&mut self) {
        let Some(sched) = &self.ext.root else { return };
        let counts = *sched.events.all();
        self.dump_line("");
        self.dump_line("Event counters");
        self.dump_line("--------------");
        for (name, count) in Ev::NAMES.iter().zip(counts) {
            let symbol = format!("SCX_EV_{}", name.to_ascii_uppercase());
            self.dump_line(format!("{symbol:>40}: {count:>16}"));
        }
    }

    /// Calls a dump operation. Each line of its text goes into the dump after `prefix`.
    fn dump_op<const N: usize>(
        &mut self,
        op: Op,
        locked: Option<CpuId>,
        prefix: &'static str,
        args: &[u64; N],
    ) {
        if !self.ext.has_op(op) {
            return;
        }
        if let Some(dump) = &mut self.ext.dump {
            dump.open(prefix);
        }
        self.op(op, locked, args);
        if let Some(dump) = &mut self.ext.dump {
            dump.close();
        }
    }
}

/// Returns the task's state as a number (`SCX_OPSS_*`), and its sequence number.
fn ops_state(t: &Task) -> (u32, u64) {
    match t.ext.ops_state {
        OpsState::None => (0, 0),
        OpsState::Queueing => (1, t.ext.qseq),
        OpsState::Queued { qseq } => (2, qseq),
    }
}

fn state_char(t: &Task) -> char {
    match t.state {
        TaskState::New | TaskState::Runnable => 'R',
        TaskState::Sleeping => 'S',
        TaskState::Dead => 'X',
    }
}

#[cfg(test)]
mod tests;
