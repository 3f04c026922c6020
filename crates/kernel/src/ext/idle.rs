// SPDX-License-Identifier: GPL-2.0-only
//! Built-in idle tracking: the CPUs that are idle and not claimed, and the CPU sets that programs
//! get pointers to.
//!
//! Owns: the masks of idle CPUs in guest memory, whether idle tracking is on, and the cursors of
//! `cpumask_any_distribute()`.
//! Does not: choose a CPU (see `idle/pick.rs`), or detect that a CPU goes idle (`schedule.rs`
//! reports it).
//! Models: kernel/sched/ext/idle.c, 7.3. Differs: there is one writer, so no claim loses a race.

pub(crate) mod bits;
#[cfg(test)]
pub(crate) mod fixture;
pub(crate) mod objects;
mod pick;
mod topo;

use super::op::Op;
use crate::bpf::abi;
use crate::bpf::flags::{ops, pick_idle, wake};
use crate::kernel::Kernel;
use objects::CpumaskObjects;
use pick::{IdleView, PickQuery, Waker};
use scxlab_bpf::mem::{Memory, OutOfMemory};
use scxlab_machine::Topology;
use scxlab_machine::cpumask;
use scxlab_machine::id::{CpuId, NodeId, TaskId};
use topo::{FailedSearchWork, OnlineSpans, Siblings};

/// Guest addresses of one pair of masks, and the number of CPUs in each: idle CPUs, and CPUs of
/// cores that are idle as a whole. On a busy machine both numbers are 0, and no search needs to
/// read a mask.
#[derive(Clone, Copy, Debug)]
struct IdleMasks {
    cpu: u64,
    smt: u64,
    nr_idle: u32,
    nr_idle_core_cpus: u32,
}

impl IdleMasks {
    fn new(mut mask: impl FnMut() -> Result<u64, OutOfMemory>) -> Result<Self, OutOfMemory> {
        Ok(IdleMasks { cpu: mask()?, smt: mask()?, nr_idle: 0, nr_idle_core_cpus: 0 })
    }

    #[inline(always)]
    fn is_empty(&self) -> bool {
        (self.nr_idle | self.nr_idle_core_cpus) == 0
    }
}

/// Work of searches for idle CPUs for which no time has been charged yet: words of masks read,
/// attempts to claim or mark a CPU, and words of masks computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Work {
    scanned_words: u64,
    claims: u64,
    mask_words: u64,
}

/// Place after which the next `cpumask_any_distribute()` on a CPU starts to search.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    /// CPU that the last search returned (`distribute_cpu_mask_prev`).
    last: u32,
    /// Number of words that a search from `last` + 1 reads if it finds nothing.
    words_if_none: u32,
}

impl Cursor {
    fn new(last: u32, nr_cpus: usize) -> Self {
        Cursor { last, words_if_none: bits::words_if_none(nr_cpus, last as usize + 1) as u32 }
    }
}

/// Buffers for the intersections of a search, kept so that no search allocates.
#[derive(Debug, Default)]
struct SearchBuffers {
    allowed: Vec<u64>,
    llc: Vec<u64>,
    numa: Vec<u64>,
}

/// The CPU sets of the machine as programs see them, and the state of built-in idle tracking.
#[derive(Debug)]
pub struct IdleState {
    /// `scx_builtin_idle_enabled`: whether built-in idle tracking is on.
    enabled: bool,
    /// `scx_builtin_idle_per_node`: whether each node has its own pair of idle masks.
    per_node: bool,
    /// `scx_selcpu_topo_llc`, `scx_selcpu_topo_numa`: whether the default picker has a step for the
    /// LLC of the task's previous CPU, and one for the node.
    topo_llc: bool,
    topo_numa: bool,
    nr_cpus: usize,
    /// Number of 64-bit words of a mask that hold the machine's CPUs.
    nr_words: usize,
    global: IdleMasks,
    nodes: Vec<IdleMasks>,
    possible: u64,
    online: u64,
    none: u64,
    /// On-line threads, indexed by core; filled when a scheduler is loaded.
    siblings: Vec<Siblings>,
    /// On-line CPUs of each LLC and node, filled together with `siblings`. None during a search,
    /// which takes these sets out of the state.
    spans: Option<Box<OnlineSpans>>,
    /// Work of a search that finds no idle CPU, indexed by the CPU that the task ran on last.
    /// Counted anew when the sibling sets or the picker's steps change.
    failed_search: Vec<FailedSearchWork>,
    /// `sched_smt_active()`: some core has two threads on line.
    smt_active: bool,
    /// Cursors of `cpumask_any_distribute()`, indexed by executing CPU.
    cursors: Vec<Cursor>,
    buffers: SearchBuffers,
    buffer: Vec<u64>,
    work: Work,
    /// Objects made by `bpf_cpumask_create()`.
    pub(crate) objects: CpumaskObjects,
}

impl IdleState {
    /// Makes the state in which all CPUs are on line and none is idle.
    pub fn new(mem: &mut Memory, nr_cpus: usize, nr_nodes: usize) -> Result<Self, OutOfMemory> {
        let mut mask = || mem.alloc_kernel(size_of::<abi::cpumask>() as u64, 8);
        let global = IdleMasks::new(&mut mask)?;
        let pair = |_| IdleMasks::new(&mut mask);
        let nodes = (0..nr_nodes).map(pair).collect::<Result<_, OutOfMemory>>()?;
        let (possible, online, none) = (mask()?, mask()?, mask()?);
        for all in [possible, online] {
            bits::fill(mem.words_mut(all, nr_cpus.div_ceil(64)), nr_cpus);
        }
        Ok(IdleState {
            enabled: false,
            per_node: false,
            topo_llc: false,
            topo_numa: false,
            nr_cpus,
            nr_words: nr_cpus.div_ceil(64),
            global,
            nodes,
            possible,
            online,
            none,
            siblings: Vec::new(),
            spans: None,
            failed_search: Vec::new(),
            smt_active: false,
            cursors: vec![Cursor::new(0, nr_cpus); nr_cpus],
            buffers: SearchBuffers::default(),
            buffer: Vec::new(),
            work: Work::default(),
            objects: CpumaskObjects::default(),
        })
    }

    /// Returns whether built-in idle tracking is on.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Returns whether each node has its own pair of idle masks, instead of one for the machine.
    pub fn is_per_node(&self) -> bool {
        self.per_node
    }

    pub fn nr_cpus(&self) -> usize {
        self.nr_cpus
    }

    /// Number of 64-bit words of a mask that hold the machine's CPUs.
    #[inline]
    pub fn nr_words(&self) -> usize {
        self.nr_words
    }

    pub fn nr_nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Guest address of `cpu_possible_mask`.
    pub fn possible_mask(&self) -> u64 {
        self.possible
    }

    /// Guest address of `cpu_online_mask`.
    pub fn online_mask(&self) -> u64 {
        self.online
    }

    /// Guest address of `cpu_none_mask`.
    pub fn none_mask(&self) -> u64 {
        self.none
    }

    /// Guest address of the mask of idle CPUs, of one node or (None) of the machine.
    pub fn idle_mask(&self, node: Option<NodeId>) -> u64 {
        self.masks(node).cpu
    }

    /// Guest address of the mask of CPUs on idle cores, or of the mask of idle CPUs if no core has
    /// two threads on line.
    pub fn smt_mask(&self, node: Option<NodeId>) -> u64 {
        let masks = self.masks(node);
        if self.smt_active { masks.smt } else { masks.cpu }
    }

    /// `idle_cpumask()`: returns the pair of idle masks of one node or (None) of the machine.
    #[inline]
    fn masks(&self, node: Option<NodeId>) -> IdleMasks {
        node.map_or(self.global, |node| self.nodes[node.idx()])
    }

    #[inline]
    fn masks_mut(&mut self, node: Option<NodeId>) -> &mut IdleMasks {
        match node {
            Some(node) => &mut self.nodes[node.idx()],
            None => &mut self.global,
        }
    }

    /// `reset_idle_masks()`: marks all CPUs busy until they next go idle.
    fn reset_masks(&mut self, mem: &mut Memory) {
        let nr_words = self.nr_words();
        let of_nodes = if self.per_node { &mut self.nodes[..] } else { &mut [] };
        let global = (!self.per_node).then_some(&mut self.global);
        for masks in of_nodes.iter_mut().chain(global) {
            mem.words_mut(masks.cpu, nr_words).fill(0);
            mem.words_mut(masks.smt, nr_words).fill(0);
            (masks.nr_idle, masks.nr_idle_core_cpus) = (0, 0);
        }
    }

    /// Returns an empty buffer for a mask. The caller gives it back with `keep_buffer`, so that it
    /// is not allocated for each call.
    pub(crate) fn take_buffer(&mut self) -> Vec<u64> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        buffer
    }

    pub(crate) fn keep_buffer(&mut self, buffer: Vec<u64>) {
        self.buffer = buffer;
    }

    /// Returns the next CPU that is in `a` and in `b`, after the CPU that the last such search on
    /// the CPU `here` returned; wraps around.
    pub(crate) fn any_distribute(&mut self, here: CpuId, a: &[u64], b: &[u64]) -> Option<CpuId> {
        let cursor = &mut self.cursors[here.idx()];
        let words_read = &mut self.work.scanned_words;
        let found = bits::next_and_wrap(a, b, self.nr_cpus, cursor.last + 1, words_read)?;
        *cursor = Cursor::new(found, self.nr_cpus);
        Some(CpuId(found))
    }

    /// Returns the number of words that `searches` searches on the CPU `here` read in a set known
    /// to be empty.
    #[inline(always)]
    fn words_if_none(&self, here: CpuId, searches: u16) -> u64 {
        u64::from(searches) * u64::from(self.cursors[here.idx()].words_if_none)
    }

    /// Returns the work of the default picker if its search fails for certain: no CPU is idle, and
    /// the task may run on all CPUs. The searches and claims of that case were counted when the
    /// on-line CPUs last changed. `nr_affine` is the number of CPUs on which the task may run. None
    /// if the caller must search.
    #[inline(always)]
    fn failed_select(&self, here: CpuId, nr_affine: u32, prev: CpuId, flags: u64) -> Option<Work> {
        let none = !self.per_node && self.global.is_empty();
        let anywhere = nr_affine as usize >= self.nr_cpus;
        if !(none && anywhere && flags & pick_idle::CORE == 0) {
            return None;
        }
        let FailedSearchWork { searches, claims } = self.failed_search[prev.idx()];
        let scanned_words = self.words_if_none(here, searches);
        Some(Work { scanned_words, claims: claims.into(), mask_words: 0 })
    }

    /// As `failed_select`, also for masks per node, and for a task that the scheduler restricts to
    /// some CPUs.
    fn failed_select_among(
        &self,
        topology: &Topology,
        here: CpuId,
        query: &PickQuery<'_>,
    ) -> Option<Work> {
        let masks =
            if self.per_node { &self.nodes[..] } else { std::slice::from_ref(&self.global) };
        let none = masks.iter().all(IdleMasks::is_empty);
        let anywhere = query.nr_affine as usize >= self.nr_cpus;
        let simple = query.waker.is_none() && query.flags & pick_idle::CORE == 0;
        if !(none && anywhere && simple) {
            return None;
        }
        let steps = u64::from(self.topo_llc) + u64::from(self.topo_numa);
        let mask_words = match query.allowed {
            Some(allowed) if !cpumask::intersects(allowed, query.affinity) => {
                return Some(Work::default());
            }
            Some(_) => steps * self.nr_words() as u64,
            None => 0,
        };
        let in_prevs = self.count_failed_search(topology, query.prev, query.allowed);
        let other_nodes = match query.flags & pick_idle::IN_NODE {
            0 => masks.len() as u16 - 1,
            _ => 0,
        };
        let searches = in_prevs.searches + other_nodes * self.searches_per_set();
        let scanned_words = self.words_if_none(here, searches);
        Some(Work { scanned_words, claims: in_prevs.claims.into(), mask_words })
    }

    /// Returns the work of `IdleView::pick` in the machine's pair of masks if no CPU is idle. The
    /// pick searches for an idle core if cores have two threads, and for any CPU unless
    /// SCX_PICK_IDLE_CORE is set. None if the caller must search.
    #[inline(always)]
    fn failed_pick(&self, here: CpuId, flags: u64) -> Option<Work> {
        let both = self.smt_active && flags & pick_idle::CORE == 0;
        let scanned_words = self.words_if_none(here, 1 + u16::from(both));
        self.global.is_empty().then_some(Work { scanned_words, ..Work::default() })
    }
}

impl Kernel {
    /// `scx_idle_enable()`: turns idle tracking on or off, and chooses masks per node or for the
    /// machine, as the scheduler's flags and operations ask.
    pub(crate) fn idle_enable(&mut self, flags: u64, has_update_idle: bool) {
        let idle = &mut self.ext.idle;
        idle.enabled = !has_update_idle || flags & ops::KEEP_BUILTIN_IDLE != 0;
        idle.per_node = flags & ops::BUILTIN_IDLE_PER_NODE != 0;
        idle.refresh_siblings(&self.vm.mem, &self.machine.topology);
        idle.reset_masks(&mut self.vm.mem);
    }

    /// `scx_idle_disable()`: turns built-in idle tracking off.
    pub(crate) fn idle_disable(&mut self) {
        self.ext.idle.enabled = false;
        self.ext.idle.per_node = false;
    }

    /// `scx_idle_update_selcpu_topology()`: decides which steps the default picker has with the
    /// CPUs that are on line.
    pub(crate) fn idle_update_selcpu_topology(&mut self) {
        let per_node = self.ext.flags() & ops::BUILTIN_IDLE_PER_NODE != 0;
        self.ext.idle.update_steps(&self.vm.mem, &self.machine.topology, per_node);
    }

    /// Updates `cpu_online_mask` and the sibling sets when a CPU comes on line or goes off line.
    pub(crate) fn idle_set_online(&mut self, cpu: CpuId, online: bool) {
        let idle = &mut self.ext.idle;
        let words = self.vm.mem.words_mut(idle.online, idle.nr_words());
        let change = if online { cpumask::set } else { cpumask::clear };
        change(words, cpu);
        idle.refresh_siblings(&self.vm.mem, &self.machine.topology);
    }

    /// `scx_update_idle()`: handles a CPU that goes idle, stops being idle, or (`do_notify` false)
    /// stays idle after a search has claimed it.
    pub(crate) fn ext_update_idle(&mut self, cpu: CpuId, idle: bool, do_notify: bool) {
        if !self.ext.enabled {
            return;
        }
        if self.ext.idle.enabled {
            self.with_idle(|view| view.mark(cpu, idle));
        }
        let pcpu = &mut self.ext.cpus[cpu];
        let owed = idle && pcpu.idle_renotify;
        if !do_notify && !owed {
            return;
        }
        pcpu.idle_renotify = false;
        if self.ext.has_op(Op::UpdateIdle) && !self.ext.bypassing(cpu) {
            self.op(Op::UpdateIdle, Some(cpu), &[u64::from(cpu.0), u64::from(idle)]);
        }
    }

    /// `scx_select_cpu_dfl()`: claims an idle CPU for the task; None if the task may use no idle
    /// CPU. The search takes the executing CPU as the waker's CPU, which a synchronous wake-up may
    /// choose although it is busy. `allowed` restricts the search further than the task's affinity
    /// does.
    #[inline(always)]
    pub(crate) fn idle_select_cpu_dfl(
        &mut self,
        task: TaskId,
        prev: CpuId,
        wake_flags: u64,
        allowed: Option<&[u64]>,
        flags: u64,
    ) -> Option<CpuId> {
        if wake_flags & wake::SYNC == 0 && allowed.is_none() {
            let (here, nr_affine) = (self.exec.cpu, self.tasks[task].nr_allowed);
            if let Some(work) = self.ext.idle.failed_select(here, nr_affine, prev, flags) {
                self.charge_work(work);
                return None;
            }
        }
        self.idle_search(task, prev, wake_flags, allowed, flags)
    }

    #[inline(never)]
    fn idle_search(
        &mut self,
        task: TaskId,
        prev: CpuId,
        wake_flags: u64,
        allowed: Option<&[u64]>,
        flags: u64,
    ) -> Option<CpuId> {
        let waker = (wake_flags & wake::SYNC != 0).then(|| self.idle_waker());
        let Kernel { vm, machine, tasks, ext, exec, .. } = self;
        let (topology, here) = (&machine.topology, exec.cpu);
        let t = &tasks[task];
        let (affinity, nr_affine) = (&*t.cpus, t.nr_allowed);
        let query = PickQuery { affinity, nr_affine, allowed, prev, flags, waker };
        if let Some(work) = ext.idle.failed_select_among(topology, here, &query) {
            self.charge_work(work);
            return None;
        }
        let mut view = IdleView { state: &mut ext.idle, mem: &mut vm.mem, topology, here };
        let found = view.select(&query);
        self.charge_idle_work();
        found
    }

    /// Describes the waker of a synchronous wake-up, which is the executing CPU's current task.
    fn idle_waker(&self) -> Waker {
        let cpu = self.exec.cpu;
        let leaves = self.tasks[self.cpus[cpu].curr].exiting;
        let local = self.ext.dsqs.get(self.ext.dsqs.local(cpu));
        Waker { may_take_over: !leaves && local.is_empty() }
    }

    /// `scx_pick_idle_cpu()`: claims an idle CPU of `allowed`, starting at `node` in per-node mode.
    pub(crate) fn idle_pick(
        &mut self,
        allowed: &[u64],
        node: Option<NodeId>,
        flags: u64,
    ) -> Option<CpuId> {
        self.with_idle(|view| view.pick(allowed, node, flags))
    }

    /// Returns whether `scx_pick_idle_cpu()` finds nothing in the machine's pair of masks because
    /// no CPU is idle. In that case this function charges the search, and the caller need not make
    /// it.
    #[inline(always)]
    pub(crate) fn idle_pick_fails(&mut self, flags: u64) -> bool {
        let work = self.ext.idle.failed_pick(self.exec.cpu, flags);
        if let Some(work) = work {
            self.charge_work(work);
        }
        work.is_some()
    }

    /// `scx_idle_test_and_clear_cpu()`: claims the CPU; returns whether it was idle.
    pub(crate) fn idle_claim(&mut self, cpu: CpuId) -> bool {
        self.with_idle(|view| view.claim(cpu))
    }

    /// Returns the node whose masks hold `cpu`; None if there is one pair of masks for the machine.
    pub(crate) fn idle_node_of(&self, cpu: CpuId) -> Option<NodeId> {
        self.ext.idle.per_node.then(|| self.machine.topology.cpu(cpu).node)
    }

    /// `cpumask_any_and_distribute()` with the executing CPU's cursor.
    pub(crate) fn cpumask_any_distribute(&mut self, a: &[u64], b: &[u64]) -> Option<CpuId> {
        let found = self.ext.idle.any_distribute(self.exec.cpu, a, b);
        self.charge_idle_work();
        found
    }

    /// As `cpumask_any_distribute`, for two masks in guest memory whose addresses were checked.
    pub(crate) fn guest_any_distribute(&mut self, a: u64, b: u64) -> Option<CpuId> {
        let Kernel { vm, ext, exec, .. } = self;
        let nr_words = ext.idle.nr_words();
        let found =
            ext.idle.any_distribute(exec.cpu, vm.mem.words(a, nr_words), vm.mem.words(b, nr_words));
        self.charge_idle_work();
        found
    }

    fn with_idle<R>(&mut self, f: impl FnOnce(&mut IdleView<'_>) -> R) -> R {
        let Kernel { vm, machine, ext, exec, .. } = self;
        let mut view = IdleView {
            state: &mut ext.idle,
            mem: &mut vm.mem,
            topology: &machine.topology,
            here: exec.cpu,
        };
        let result = f(&mut view);
        self.charge_idle_work();
        result
    }

    fn charge_idle_work(&mut self) {
        let work = std::mem::take(&mut self.ext.idle.work);
        self.charge_work(work);
    }

    #[inline(always)]
    fn charge_work(&mut self, work: Work) {
        let costs = &self.machine.costs.kfunc;
        let ns = work.scanned_words * costs.idle_scan_word_ns
            + work.claims * costs.idle_claim_ns
            + work.mask_words * costs.cpumask_word_ns;
        self.charge(ns);
    }
}

#[cfg(test)]
mod tests;
