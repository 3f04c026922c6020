// SPDX-License-Identifier: GPL-2.0-only
//! Loading and unloading of a scheduler.
//!
//! Owns: the order of the steps of loading and of unloading. Models: kernel
//! `scx_root_enable_workfn()`, `scx_root_disable()`, `scx_validate_ops()`, `bpf_scx_init_member()`,
//! 7.3.

use super::exit::{ExitInfo, ExitKind};
use super::op::Op;
use super::program::ExtProgram;
use super::stats::EventStats;
use super::{EnableState, OpsData, Sched};
use crate::bpf::flags::{ecode, exit, limit, ops, queue, slice};
use crate::kernel::Kernel;
use scxlab_machine::id::{CpuId, Nanos};

/// Reason why the kernel refused to attach a scheduler. The kernel reports later failures through
/// `ops.exit`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    #[error("another scheduler is loaded (EBUSY)")]
    Busy,
    #[error("ops.flags has unknown bits {0:#x} (EINVAL)")]
    UnknownFlags(u64),
    #[error("ops.name is empty or has characters other than letters, digits, '_' and '.' (EINVAL)")]
    BadName,
    #[error("ops.timeout_ms is {0}, more than 30000 (E2BIG)")]
    TimeoutTooLong(u32),
    #[error("ops.dispatch_max_batch is {0}, more than 2^31-1 (E2BIG)")]
    BatchTooLarge(u32),
    #[error(
        "ops.dispatch_max_batch is {0}, and a CPU's buffer holds at most {max} (ENOMEM)",
        max = DSP_MAX_BATCH
    )]
    BatchOutOfMemory(u32),
}

/// `alloc_percpu()` gives at most `PCPU_MIN_UNIT_SIZE` (32 KiB): `struct scx_sched_pcpu`, 432 bytes
/// in Debian's kernel, with 48 bytes for each insertion.
const DSP_MAX_BATCH: u32 = (32 * 1024 - 432) / 48;

/// Hotplug operations. They become active after `ops.init` and before all other operations.
const HOTPLUG: [Op; 2] = [Op::CpuOnline, Op::CpuOffline];

impl Kernel {
    /// Attaches a scheduler on CPU 0, or on the first on-line CPU if CPU 0 is off line. `Ok` means
    /// that a link exists; `ext.root` and `ext.exits` tell whether the scheduler is still loaded.
    pub fn attach(&mut self, program: ExtProgram, data: OpsData) -> Result<(), AttachError> {
        check_members(&data)?;
        if self.ext.state != EnableState::Disabled {
            return Err(AttachError::Busy);
        }
        let cpu = self.cpus.online_or_any(CpuId(0));
        self.on_cpu(cpu, |k| k.enable(program, data));
        Ok(())
    }

    /// Detaches the loaded scheduler, as closing its link does.
    pub fn detach(&mut self) {
        let cpu = self.cpus.online_or_any(CpuId(0));
        self.on_cpu(cpu, |k| {
            k.ext_exit(ExitKind::Unreg, 0, "");
            k.ext_disable();
        });
    }

    fn enable(&mut self, program: ExtProgram, data: OpsData) {
        let timeout_ms =
            if data.timeout_ms == 0 { limit::WATCHDOG_MAX_MS } else { data.timeout_ms };
        self.ext.state = EnableState::Enabling;
        self.ext.root = Some(Box::new(Sched {
            active: [false; Op::COUNT],
            has_cpu_preempt: program.has(Op::CpuAcquire) || program.has(Op::CpuRelease),
            program,
            data,
            bypass_depth: 0,
            bypass_since: 0,
            slice_dfl: slice::DFL,
            watchdog_timeout: Nanos::from(timeout_ms) * 1_000_000,
            exit: None,
            exit_flags: 0,
            disabling: false,
            events: EventStats::default(),
            warned_zero_slice: false,
        }));
        self.watchdog_start();
        if self.enable_steps().is_err() {
            self.scx_error("scx_root_enable() failed");
            self.ext_disable();
        } else if self.ext_aborting() {
            self.ext_disable();
        }
    }

    fn enable_steps(&mut self) -> Result<(), ()> {
        let has = |k: &Kernel, op| k.ext.root.as_ref().is_some_and(|s| s.program.has(op));
        let update_idle = has(self, Op::UpdateIdle);
        self.idle_enable(self.ext.flags(), update_idle);
        if has(self, Op::Init) {
            self.activate([Op::Init]);
            let ret = self.op(Op::Init, None, &[]);
            if ret as i32 != 0 {
                let ret = self.sanitize_err(Op::Init, ret);
                self.returned_error(Op::Init, &format!("ops.init() failed ({ret})"));
                return Err(());
            }
            if let Some(sched) = &mut self.ext.root {
                sched.exit_flags |= exit::INITIALIZED;
            }
        }
        self.activate(HOTPLUG);
        self.check_hotplug_seq()?;
        self.idle_update_selcpu_topology();
        self.validate_ops()?;
        self.ext_bypass(true);
        self.activate(Op::ALL);
        self.ext.init_task_enabled = true;
        self.ext_cgroup_init()?;
        self.init_all_tasks()?;
        let partial = self.ext.flags() & ops::SWITCH_PARTIAL != 0;
        self.ext.switching_all = !partial;
        self.ext.enabled = true;
        self.switch_all_tasks();
        self.ext_bypass(false);
        if self.ext_aborting() {
            return Err(());
        }
        self.ext.state = EnableState::Enabled;
        self.ext.switched_all = !partial;
        Ok(())
    }

    fn activate(&mut self, which: impl IntoIterator<Item = Op>) {
        if let Some(sched) = &mut self.ext.root {
            for op in which {
                sched.active[op as usize] = sched.program.has(op);
            }
        }
    }

    fn check_hotplug_seq(&mut self) -> Result<(), ()> {
        let expected = self.ext.root.as_ref().map_or(0, |s| s.data.hotplug_seq);
        let actual = self.ext.hotplug_seq;
        if expected == 0 || expected == actual {
            return Ok(());
        }
        let text = format!("expected hotplug seq {expected} did not match actual {actual}");
        self.ext_exit(ExitKind::UnregKern, ecode::ACT_RESTART | ecode::RSN_HOTPLUG, &text);
        Err(())
    }

    fn validate_ops(&mut self) -> Result<(), ()> {
        let flags = self.ext.flags();
        let has = |op| self.ext.root.as_ref().is_some_and(|s| s.program.has(op));
        let text = if flags & ops::ENQ_LAST != 0 && !has(Op::Enqueue) {
            "SCX_OPS_ENQ_LAST requires ops.enqueue() to be implemented"
        } else if flags & ops::BUILTIN_IDLE_PER_NODE != 0
            && has(Op::UpdateIdle)
            && flags & ops::KEEP_BUILTIN_IDLE == 0
        {
            "SCX_OPS_BUILTIN_IDLE_PER_NODE requires CPU idle selection enabled"
        } else if has(Op::SubAttach) || has(Op::SubDetach) {
            "sub_attach/sub_detach requires cid-form struct_ops"
        } else {
            return Ok(());
        };
        self.scx_error(text);
        Err(())
    }

    fn init_all_tasks(&mut self) -> Result<(), ()> {
        for task in self.schedulable_tasks() {
            if let Err(ret) = self.ext_init_existing(task) {
                let t = &self.tasks[task];
                let text = format!("ops.init_task() failed ({ret}) for {}[{}]", t.name, t.pid);
                self.returned_error(Op::InitTask, &text);
                return Err(());
            }
        }
        Ok(())
    }

    /// Returns all tasks except idle tasks and dead tasks.
    fn schedulable_tasks(&self) -> Vec<scxlab_machine::id::TaskId> {
        let living =
            |t: &&crate::task::Task| !t.is_idle_task() && t.state != crate::task::TaskState::Dead;
        self.tasks.iter().filter(living).map(|t| t.id).collect()
    }

    /// Moves every task to the class that its policy now belongs to.
    fn switch_all_tasks(&mut self) {
        for task in self.schedulable_tasks() {
            let new = self.class_of(self.tasks[task].policy);
            let class = if new == self.tasks[task].class { 0 } else { queue::CLASS };
            let change = self.change_begin(task, queue::SAVE | queue::MOVE | class);
            let slice = self.slice_dfl();
            self.set_slice(task, slice);
            self.set_class(task, new);
            self.change_end(change);
        }
    }

    /// Carries out the first half of a claimed exit: makes the dump and enters bypass, so that all
    /// tasks can run. The second half, `ext_disable`, follows after RCU grace periods.
    pub(crate) fn ext_begin_disable(&mut self) {
        let Some(info) = self.ext.root.as_ref().and_then(|s| s.exit.clone()) else { return };
        let dump = if info.kind.is_error() { self.ext_dump() } else { String::new() };
        if let Some(root) = &mut self.ext.root {
            root.exit = Some(ExitInfo { dump, ..info });
            root.disabling = true;
        }
        self.ext_bypass(true);
    }

    /// Completes a claimed exit: moves the tasks to the default class, calls `ops.exit` and removes
    /// the scheduler. First carries out `ext_begin_disable`, if that has not happened yet.
    pub(crate) fn ext_disable(&mut self) {
        if self.ext.root.as_ref().is_some_and(|s| !s.disabling) {
            self.ext_begin_disable();
        }
        let Some(info) = self.ext.root.as_ref().and_then(|s| s.exit.clone()) else { return };
        self.ext.state = EnableState::Disabling;
        self.ext.switched_all = false;
        self.ext.switching_all = false;
        self.ext_cgroup_exit();
        self.ext.init_task_enabled = false;
        for task in self.schedulable_tasks() {
            let new = self.class_of(self.tasks[task].policy);
            let class = if new == self.tasks[task].class { 0 } else { queue::CLASS };
            let change = self.change_begin(task, queue::SAVE | queue::MOVE | class);
            self.set_class(task, new);
            self.change_end(change);
            self.ext_exit_task(task);
        }
        self.ext.enabled = false;
        let root = self.ext.root.as_mut().expect("checked above");
        let (has_exit, exit_flags) = (root.program.has(Op::Exit), root.exit_flags);
        root.active = [false; Op::COUNT];
        self.idle_disable();
        if has_exit {
            self.activate([Op::Exit]);
            self.op_exit(&info, exit_flags);
        }
        self.ext_bypass(false);
        self.unload(info);
    }

    /// Removes the scheduler; keeps its exit and its event counters for the results of the run.
    fn unload(&mut self, info: ExitInfo) {
        for dsq in self.ext.dsqs.users() {
            self.dsq_changes(dsq);
            self.ext.dsqs.destroy(dsq);
        }
        for pcpu in &mut self.ext.cpus {
            pcpu.dispatch.entries.clear();
            pcpu.ddsp_deferred.clear();
            pcpu.reenq_local = None;
            pcpu.reenq_users.clear();
            pcpu.sync_pending.clear();
            pcpu.bypassing = false;
        }
        self.ext.sched_switch.clear();
        if let Some(sched) = self.ext.root.take() {
            self.ext.last_events = sched.events;
        }
        self.ext.watchdog_gen = self.ext.watchdog_gen.wrapping_add(1);
        self.ext.exits.push(info);
        self.ext.state = EnableState::Disabled;
    }
}

/// `bpf_scx_init_member()`: checks the data members whose values can make attaching fail.
fn check_members(data: &OpsData) -> Result<(), AttachError> {
    let unknown = data.flags & !ops::ALL;
    if unknown != 0 {
        return Err(AttachError::UnknownFlags(unknown));
    }
    let ok = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    if data.name.is_empty() || !data.name.chars().all(ok) {
        return Err(AttachError::BadName);
    }
    if data.timeout_ms > limit::WATCHDOG_MAX_MS {
        return Err(AttachError::TimeoutTooLong(data.timeout_ms));
    }
    if data.dispatch_max_batch > i32::MAX as u32 {
        return Err(AttachError::BatchTooLarge(data.dispatch_max_batch));
    }
    if data.dispatch_max_batch > DSP_MAX_BATCH {
        return Err(AttachError::BatchOutOfMemory(data.dispatch_max_batch));
    }
    Ok(())
}
