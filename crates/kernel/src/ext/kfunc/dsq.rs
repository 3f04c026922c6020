// SPDX-License-Identifier: GPL-2.0-only
//! kfuncs on dispatch queues: create, insert, move, iterate, count.
//!
//! Models: kernel `scx_bpf_dsq_*()`, `scx_dsq_insert_commit()`, `scx_vet_enq_flags()`,
//! `scx_dsq_move()`, 7.3.

use super::{Handler, KfResult, errno};
use crate::bpf::abi;
use crate::bpf::errno::{EEXIST, EINVAL, ENODEV, ENOENT, ENOMEM};
use crate::bpf::flags::{dsq_id, enq, limit, ops, reenq};
use crate::cpu::lock::LockId;
use crate::ext::dsq::DsqId;
use crate::ext::entity::{DirectDispatch, OpsState};
use crate::ext::op::Op;
use crate::ext::stats::Ev;
use crate::ext::{BufferedInsert, DirectSlot};
use crate::kernel::Kernel;
use scxlab_machine::id::{CpuId, TaskId};
use scxlab_trace::event::EventKind;

/// Estimate of the host memory of a DSQ in bytes. It counts towards the memory limit for the rest
/// of the run, because a destroyed DSQ keeps its entry in the table.
const DSQ_BYTES: u64 = size_of::<crate::ext::dsq::Dsq>() as u64 + 256;

pub(super) const TABLE: &[(&str, Handler)] = &[
    ("scx_bpf_dsq_insert___v2", insert),
    ("scx_bpf_dsq_insert", insert),
    ("__scx_bpf_dsq_insert_vtime", insert_vtime_args),
    ("scx_bpf_dsq_insert_vtime", insert_vtime),
    ("scx_bpf_create_dsq", create),
    ("scx_bpf_destroy_dsq", destroy),
    ("scx_bpf_dsq_nr_queued", nr_queued),
    ("scx_bpf_dsq_peek", peek),
    ("scx_bpf_dsq_move_to_local___v2", move_to_local),
    ("scx_bpf_dsq_move_to_local", move_to_local_v1),
    ("scx_bpf_dispatch_nr_slots", nr_slots),
    ("scx_bpf_dispatch_cancel", cancel),
    ("bpf_iter_scx_dsq_new", iter_new),
    ("bpf_iter_scx_dsq_next", iter_next),
    ("bpf_iter_scx_dsq_destroy", iter_destroy),
    ("scx_bpf_dsq_move", move_fifo),
    ("scx_bpf_dsq_move_vtime", move_vtime),
    ("scx_bpf_dsq_move_set_slice", move_set_slice),
    ("scx_bpf_dsq_move_set_vtime", move_set_vtime),
    ("scx_bpf_dsq_reenq", dsq_reenq),
    ("scx_bpf_reenqueue_local___v2", reenqueue_local),
    ("scx_bpf_reenqueue_local", reenqueue_local_sync),
];

impl Kernel {
    /// `scx_bpf_dsq_insert[_vtime]()`; returns 0 if the scheduler may not insert the task.
    #[inline(always)]
    pub fn kf_dsq_insert(
        &mut self,
        task: u64,
        id: u64,
        slice: u64,
        vtime: Option<u64>,
        flags: u64,
    ) -> KfResult {
        if self.ext.root.is_none() {
            return Ok(0);
        }
        if task == 0 {
            self.scx_error("called with NULL task");
            return Ok(0);
        }
        let task = self.kf_task(task)?;
        if !self.on_sched(task) {
            self.ext.count(Ev::InsertNotOwned, 1);
            return Ok(0);
        }
        let Some(flags) = self.vet_enq_flags(id, flags) else { return Ok(0) };
        let priq = if vtime.is_some() { enq::DSQ_PRIQ } else { 0 };
        self.insert_commit(task, id, slice, vtime.unwrap_or(0), flags | priq);
        Ok(1)
    }

    /// Returns the effective flags of an insertion. Reports an error and returns None if the flags
    /// are not allowed.
    #[inline]
    fn vet_enq_flags(&mut self, id: u64, flags: u64) -> Option<u64> {
        let special = enq::INTERNAL_MASK | enq::IMMED | enq::RESCUE;
        if flags & special == 0 && self.ext.flags() & ops::ALWAYS_ENQ_IMMED == 0 {
            return Some(flags);
        }
        self.vet_special_flags(id, flags)
    }

    #[inline(never)]
    fn vet_special_flags(&mut self, id: u64, mut flags: u64) -> Option<u64> {
        let local = id == dsq_id::LOCAL || id & dsq_id::LOCAL_ON == dsq_id::LOCAL_ON;
        let only_local = if local { 0 } else { enq::IMMED | enq::RESCUE };
        if flags & (enq::INTERNAL_MASK | only_local) != 0 {
            return self.bad_enq_flags(id, flags);
        }
        if local && self.ext.flags() & ops::ALWAYS_ENQ_IMMED != 0 {
            flags |= enq::IMMED;
        }
        Some(flags)
    }

    #[cold]
    fn bad_enq_flags(&mut self, id: u64, flags: u64) -> Option<u64> {
        self.scx_error(match flags {
            f if f & enq::INTERNAL_MASK != 0 => format!("invalid enq_flags {flags:#x}"),
            f if f & enq::IMMED != 0 => format!("SCX_ENQ_IMMED on a non-local DSQ {id:#x}"),
            _ => format!("SCX_ENQ_RESCUE on a non-local DSQ {id:#x}"),
        });
        None
    }

    #[inline(always)]
    fn insert_commit(&mut self, task: TaskId, dsq: u64, slice: u64, vtime: u64, flags: u64) {
        let open = self.ext.direct;
        if open != DirectSlot::Closed {
            let verdict = DirectDispatch { dsq_id: dsq, slice, vtime, enq_flags: flags };
            self.mark_direct_dispatch(open, task, verdict);
            return;
        }
        let (cpu, inserted_by) = (self.dispatch_cpu(), self.ext_live_caller());
        let max = self.ext.root.as_ref().map_or(0, |s| batch(s.data.dispatch_max_batch));
        let qseq = match self.tasks[task].ext.ops_state {
            OpsState::Queued { qseq } => qseq,
            _ => 0,
        };
        let entries = &mut self.ext.cpus[cpu].dispatch.entries;
        if entries.len() >= max as usize {
            self.scx_error("dispatch buffer overflow");
            return;
        }
        let enq_flags = flags;
        entries.push(BufferedInsert {
            task,
            qseq,
            dsq_id: dsq,
            slice,
            vtime,
            enq_flags,
            inserted_by,
        });
    }

    /// Returns the CPU whose run queue lock the kernel holds, else the executing CPU. During
    /// `ops.dispatch` the result is the CPU for which the operation was called.
    fn dispatch_cpu(&self) -> CpuId {
        self.ext.locked_rq().unwrap_or(self.exec.cpu)
    }

    fn user_dsq(&self, id: u64) -> Option<DsqId> {
        if id & dsq_id::FLAG_BUILTIN != 0 { None } else { self.ext.dsqs.user(id) }
    }

    /// `scx_bpf_create_dsq()`: creates a user DSQ; returns 0 or a negative errno.
    pub fn kf_create_dsq(&mut self, id: u64, node: i32) -> u64 {
        let nodes = self.machine.topology.nodes().len() as i32;
        if node >= nodes || node < -1 || id & dsq_id::FLAG_BUILTIN != 0 {
            return errno(EINVAL);
        }
        if self.ext.root.is_none() {
            return errno(ENODEV);
        }
        if self.vm.mem.charge(DSQ_BYTES).is_err() {
            return errno(ENOMEM);
        }
        if self.ext.dsqs.create(id).is_none() {
            self.vm.mem.give_back(DSQ_BYTES);
            return errno(EEXIST);
        }
        0
    }

    /// `scx_bpf_dsq_move_to_local()`: moves the first task of a user DSQ that can run on the CPU to
    /// the CPU's local DSQ; returns 1 if there was such a task, else 0.
    pub fn kf_move_to_local(&mut self, id: u64, flags: u64) -> u64 {
        if self.ext.root.is_none() {
            return 0;
        }
        let Some(flags) = self.vet_enq_flags(dsq_id::LOCAL, flags) else { return 0 };
        let cpu = self.dispatch_cpu();
        self.flush_dispatch(cpu);
        let Some(dsq) = self.user_dsq(id) else {
            self.scx_error(format!("invalid DSQ ID {id:#018x}"));
            return 0;
        };
        if !self.consume(cpu, dsq, flags) {
            self.note_dsq_miss(dsq);
            return 0;
        }
        self.ext.cpus[cpu].dispatch.nr_tasks += 1;
        1
    }

    /// Records that the DSQ had no task for the CPU, if a sink takes the events.
    fn note_dsq_miss(&mut self, dsq: DsqId) {
        if self.tracer.is_recording() {
            let q = self.ext.dsqs.get(dsq);
            let (id, queued) = (q.user_visible_id(), q.len() as u32);
            self.note(EventKind::DsqMiss { dsq: id, queued });
        }
    }
}

/// Returns the number of insertions that the dispatch buffer holds. `max` is
/// `ops.dispatch_max_batch`; 0 means the default.
fn batch(max: u32) -> u32 {
    if max == 0 { limit::DSP_DFL_MAX_BATCH } else { max }
}

fn insert(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    k.kf_dsq_insert(a[0], a[1], a[2], None, a[3])
}

fn insert_vtime(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    k.kf_dsq_insert(a[0], a[1], a[2], Some(a[3]), a[4])
}

fn insert_vtime_args(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let [id, slice, vtime, flags]: [u64; 4] = k.vm.mem.read(a[1])?;
    k.kf_dsq_insert(a[0], id, slice, Some(vtime), flags)
}

fn create(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    Ok(k.kf_create_dsq(a[0], a[1] as i32))
}

fn destroy(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let Some(dsq) = k.user_dsq(a[0]) else { return Ok(0) };
    let nr = k.ext.dsqs.get(dsq).len();
    if nr > 0 {
        k.scx_error(format!("attempting to destroy in-use dsq {:#018x} (nr={nr})", a[0]));
    } else {
        k.dsq_changes(dsq);
        k.ext.dsqs.destroy(dsq);
    }
    Ok(0)
}

fn nr_queued(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let id = a[0];
    if k.ext.root.is_none() {
        return Ok(errno(ENODEV));
    }
    let dsq = if id == dsq_id::LOCAL {
        Some(k.ext.dsqs.local(k.dispatch_cpu()))
    } else if id & dsq_id::LOCAL_ON == dsq_id::LOCAL_ON {
        let cpu = k.ext_cpu_valid((id & dsq_id::LOCAL_CPU_MASK) as i32, "");
        cpu.map(|cpu| k.ext.dsqs.local(cpu))
    } else {
        k.user_dsq(id)
    };
    let Some(dsq) = dsq else { return Ok(errno(ENOENT)) };
    let builtin = k.ext.dsqs.is_builtin(dsq);
    let q = k.ext.dsqs.get_mut(dsq);
    let len = q.len() as u64;
    if !builtin {
        q.noted = true;
        k.vm.note_dsq_len(id, len);
    }
    Ok(len)
}

fn peek(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    if k.ext.root.is_none() {
        return Ok(0);
    }
    if a[0] & dsq_id::FLAG_BUILTIN != 0 {
        k.scx_error(format!("peek disallowed on builtin DSQ {:#x}", a[0]));
        return Ok(0);
    }
    let Some(dsq) = k.user_dsq(a[0]) else {
        k.scx_error(format!("peek on non-existent DSQ {:#x}", a[0]));
        return Ok(0);
    };
    let q = k.ext.dsqs.get_mut(dsq);
    q.noted = true;
    let first = q.first().map_or(0, |t| k.tasks[t].addr);
    k.vm.note_dsq_first(a[0], first);
    Ok(first)
}

fn move_to_local(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    Ok(k.kf_move_to_local(a[0], a[1]))
}

fn move_to_local_v1(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    Ok(k.kf_move_to_local(a[0], 0))
}

fn nr_slots(k: &mut Kernel, _: &[u64; 5]) -> KfResult {
    let max = k.ext.root.as_ref().map_or(0, |s| batch(s.data.dispatch_max_batch));
    let cpu = k.dispatch_cpu();
    Ok(u64::from(max) - k.ext.cpus[cpu].dispatch.entries.len() as u64)
}

fn cancel(k: &mut Kernel, _: &[u64; 5]) -> KfResult {
    let cpu = k.dispatch_cpu();
    if k.ext.cpus[cpu].dispatch.entries.pop().is_none() {
        k.scx_error("dispatch buffer underflow");
    }
    Ok(0)
}

/// Layout of an iterator in the program's `struct bpf_iter_scx_dsq` (six 64-bit words).
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct DsqIterState {
    /// Index in the table of DSQs plus 1; 0 for no DSQ.
    dsq: u32,
    /// Flags of the iterator: SCX_DSQ_ITER_REV and `ITER_*`.
    flags: u32,
    /// Key of the last task returned: position or relative vtime, and arrival number (`seq`).
    pos: i64,
    seq: u64,
    /// Number of insertions into the DSQ when the iterator began.
    max_seq: u64,
    /// Slice and vtime that the next move of a task sets, if `flags` says so (`ITER_HAS_*`).
    slice: u64,
    vtime: u64,
}

const ITER_STARTED: u32 = 1;
const ITER_HAS_SLICE: u32 = 1 << 30;
const ITER_HAS_VTIME: u32 = 1 << 31;

fn iter_new(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let &[at, id, flags, ..] = a;
    let mut iter =
        DsqIterState { dsq: 0, flags: 0, pos: 0, seq: 0, max_seq: 0, slice: 0, vtime: 0 };
    k.vm.mem.write(at, iter)?;
    if k.ext.root.is_none() {
        return Ok(errno(ENODEV));
    }
    if flags & !dsq_id::ITER_REV != 0 {
        return Ok(errno(EINVAL));
    }
    let Some(dsq) = k.user_dsq(id) else { return Ok(errno(ENOENT)) };
    iter.dsq = dsq.0 + 1;
    iter.max_seq = k.ext.dsqs.get(dsq).seq;
    iter.flags = flags as u32;
    k.vm.mem.write(at, iter)?;
    Ok(0)
}

fn iter_next(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let mut iter: DsqIterState = k.vm.mem.read(a[0])?;
    let Some(dsq) = iter_dsq(k, &iter) else { return Ok(0) };
    let cursor = (iter.flags & ITER_STARTED != 0).then_some((iter.pos, iter.seq));
    let rev = u64::from(iter.flags) & dsq_id::ITER_REV != 0;
    k.charge(k.machine.costs.kfunc.dsq_scan_task_ns);
    let Some((key, task)) = k.ext.dsqs.get(dsq).next_after(cursor, iter.max_seq, rev) else {
        return Ok(0);
    };
    (iter.pos, iter.seq) = key;
    iter.flags |= ITER_STARTED;
    k.vm.mem.write(a[0], iter)?;
    Ok(k.tasks[task].addr)
}

fn iter_destroy(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    k.vm.mem.write(a[0], 0u64)?;
    Ok(0)
}

fn iter_dsq(k: &Kernel, iter: &DsqIterState) -> Option<DsqId> {
    let dsq = DsqId(iter.dsq.checked_sub(1)?);
    k.ext.dsqs.has(dsq).then_some(dsq)
}

fn move_set_slice(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let mut iter: DsqIterState = k.vm.mem.read(a[0])?;
    iter.slice = a[1];
    iter.flags |= ITER_HAS_SLICE;
    k.vm.mem.write(a[0], iter)?;
    Ok(0)
}

fn move_set_vtime(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let mut iter: DsqIterState = k.vm.mem.read(a[0])?;
    iter.vtime = a[1];
    iter.flags |= ITER_HAS_VTIME;
    k.vm.mem.write(a[0], iter)?;
    Ok(0)
}

fn move_fifo(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    dsq_move(k, a, 0)
}

fn move_vtime(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    dsq_move(k, a, enq::DSQ_PRIQ)
}

/// `scx_dsq_move()`: moves a task from the iterator's DSQ to another DSQ; returns 1, or 0 if the
/// task may not be moved.
fn dsq_move(k: &mut Kernel, a: &[u64; 5], priq: u64) -> KfResult {
    let mut iter: DsqIterState = k.vm.mem.read(a[0])?;
    let Some(src) = iter_dsq(k, &iter) else { return Ok(0) };
    let (has_slice, has_vtime) =
        (iter.flags & ITER_HAS_SLICE != 0, iter.flags & ITER_HAS_VTIME != 0);
    let Some(flags) = k.vet_enq_flags(a[2], a[3]) else { return Ok(0) };
    if k.ext_aborting() {
        return Ok(0);
    }
    let task = k.kf_task(a[1])?;
    iter.flags &= !(ITER_HAS_SLICE | ITER_HAS_VTIME);
    k.vm.mem.write(a[0], iter)?;
    let e = &k.tasks[task].ext;
    if e.dsq != Some(src) || e.dsq_key.1 > iter.max_seq {
        return Ok(0);
    }
    if has_vtime {
        k.scx(task).dsq_vtime = iter.vtime;
    }
    if has_slice {
        k.set_slice(task, iter.slice);
    }
    let rq = k.ext.locked_rq().unwrap_or(k.exec.cpu);
    let dst = k.dsq_for_dispatch(rq, a[2], k.tasks[task].cpu);
    k.move_between(task, src, dst, flags | priq);
    Ok(1)
}

impl Kernel {
    /// `move_task_between_dsqs()`: moves a task from `src` to `dst`, or to a global DSQ if `dst` is
    /// the local DSQ of a CPU on which the task cannot run.
    fn move_between(&mut self, task: TaskId, src: DsqId, mut dst: DsqId, mut flags: u64) {
        let src_cpu = self.tasks[task].cpu;
        let mut target = None;
        if let Some(cpu) = self.ext.dsqs.local_cpu(dst) {
            if cpu != src_cpu && !self.can_run_remote(task, cpu, true) {
                dst = self.global_dsq_of(task);
                flags |= enq::GDSQ_FALLBACK;
            } else {
                target = Some(cpu);
            }
        }
        self.tasks[task].ext.inserted_by = self.ext_live_caller();
        let (from, to) = (self.ext.dsqs.traced_id(src), self.ext.dsqs.traced_id(dst));
        let held = self.ext.locked_rq();
        match held {
            Some(held) => self.switch_rq_lock(held, src_cpu),
            None => self.lock(LockId::Rq(src_cpu)),
        }
        let mut locked = src_cpu;
        self.lock(LockId::Dsq(src));
        self.dsq_unlink(task);
        self.unlock(LockId::Dsq(src));
        self.charge(self.machine.costs.kfunc.dsq_move_ns);
        self.trace(EventKind::DsqMove { task, from, to });
        match target {
            Some(cpu) if cpu != src_cpu => {
                self.move_remote_to_local(task, flags, src_cpu, cpu);
                locked = cpu;
            }
            _ => self.dsq_insert(src_cpu, dst, task, None, flags),
        }
        match held {
            Some(held) => self.switch_rq_lock(locked, held),
            None => self.unlock(LockId::Rq(locked)),
        }
    }
}

fn dsq_reenq(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let (id, mut flags) = (a[0], a[1]);
    if k.ext.root.is_none() {
        return Ok(0);
    }
    if flags & !reenq::USER_MASK != 0 {
        k.scx_error(format!("invalid SCX_REENQ flags {flags:#x}"));
        return Ok(0);
    }
    if flags & reenq::FILTER_MASK == 0 {
        flags |= reenq::ANY;
    }
    let rq = k.dispatch_cpu();
    let dsq = k.dsq_for_dispatch(rq, id, k.exec.cpu);
    k.schedule_reenq(dsq, flags);
    Ok(0)
}

fn reenqueue_local(k: &mut Kernel, _: &[u64; 5]) -> KfResult {
    dsq_reenq(k, &[dsq_id::LOCAL, 0, 0, 0, 0])
}

/// The old form of `reenqueue_local`: enqueues the tasks of the CPU's local DSQ again at once, and
/// does nothing outside `ops.cpu_release`.
fn reenqueue_local_sync(k: &mut Kernel, _: &[u64; 5]) -> KfResult {
    let cpu = match k.ext.frame {
        Some(frame) if frame.op == Some(Op::CpuRelease) => frame.locked,
        _ => None,
    };
    let Some(cpu) = cpu else { return Ok(0) };
    Ok(u64::from(k.reenq_local(cpu, reenq::ANY)))
}

const _: () = assert!(size_of::<DsqIterState>() == size_of::<abi::bpf_iter_scx_dsq>());

#[cfg(test)]
mod tests;
