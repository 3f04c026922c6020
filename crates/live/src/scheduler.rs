// SPDX-License-Identifier: GPL-2.0-only
//! An attached scheduler on the running kernel, from attach to detach.
//!
//! Owns: the BPF link that keeps the scheduler attached. When the link is dropped or this process
//! ends in any way, the kernel moves every task back into its default class.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use libbpf_rs::{Link, MapCore, MapType, Object, ProgramType};
use scxlab_kernel::ext::exit::ExitKind;
use scxlab_lab::counters::Counters;
use scxlab_lab::left_out::left_out;
use scxlab_lab::prepare::PreparedObject;
use scxlab_lab::recipe::Subject;
use scxlab_lab::run::Exit;
use scxlab_loader::link::OpenObject;
use scxlab_loader::object::{MemberKind, ProgramKind, TraceKind};
use scxlab_machine::Machine;

use crate::LiveError;
use crate::exit::{KernelLog, from_log, kind_name, time_in_charge};
use crate::frontend::LiveFrontend;
use crate::kernel::{self, RunningKernel};
use crate::load::load;

/// Name of the array in which the object keeps the kernel's debug dump. `load` gives the array the
/// length of the longest dump that the ops allow.
const DUMP: &str = "uei_dump";
/// Maximum time for the kernel to enable or disable a scheduler. An emulated kernel that reports a
/// stall takes seconds to disable the scheduler.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

/// An attached scheduler.
pub struct Scheduler<'a> {
    prepared: &'a PreparedObject,
    /// The object's settings as loaded.
    plan: OpenObject,
    label: String,
    object: Object,
    link: Option<Link>,
    /// Names and links of the object's other attached programs, which trace the kernel.
    others: Vec<(String, Link)>,
    log: KernelLog,
    /// Time at which the scheduler was enabled, on CLOCK_MONOTONIC in ns.
    enabled_ns: u64,
    /// Parts of the recipe that were skipped, and programs of the object that could not be
    /// attached.
    pub notes: Vec<String>,
}

/// Calls of one operation, and their total time in ns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpCost {
    pub op: String,
    pub calls: u64,
    pub ns: u64,
}

impl<'a> Scheduler<'a> {
    /// Loads and attaches the scheduler. When the function returns, the ops' `init` has run and
    /// every task is under the scheduler, unless the scheduler has already left.
    pub fn attach(
        prepared: &'a PreparedObject,
        label: &str,
        machine: &Machine,
        kernel: &RunningKernel,
    ) -> Result<Scheduler<'a>, LiveError> {
        Scheduler::attach_with(prepared, label, machine, kernel, |_| Ok(()))
    }

    /// Does the same as `attach`, and calls `loaded` between loading and attaching, before any
    /// operation of the scheduler has run.
    pub fn attach_with(
        prepared: &'a PreparedObject,
        label: &str,
        machine: &Machine,
        kernel: &RunningKernel,
        loaded: impl FnOnce(&Object) -> Result<(), LiveError>,
    ) -> Result<Scheduler<'a>, LiveError> {
        let (plan, object) = load(prepared, label)?;
        loaded(&object)?;
        let subject = Subject { machine, kernel: &kernel.btf, table: &prepared.table };
        let mut applied = None;
        if let Some(r) = &prepared.recipe {
            let mut frontend = LiveFrontend { plan: &plan, object: &object };
            applied = Some(r.recipe.after_load(subject, &r.applied, &mut frontend)?);
        }
        let mut scheduler = Scheduler {
            prepared,
            plan,
            label: label.to_owned(),
            object,
            link: None,
            others: Vec::new(),
            log: KernelLog::from_here(),
            enabled_ns: 0,
            notes: prepared.notes(),
        };
        scheduler.link = Some(scheduler.attach_ops()?);
        scheduler.enabled_ns = kernel::now();
        scheduler.attach_others();
        scheduler.wait_enabled()?;
        // If the scheduler has already exited, the recipe's remaining steps are skipped.
        let stayed = scheduler.is_attached();
        if let (Some(r), Some(applied), true) = (&prepared.recipe, applied, stayed) {
            let mut frontend = LiveFrontend { plan: &scheduler.plan, object: &scheduler.object };
            r.recipe.after_attach(subject, &applied, &mut frontend)?;
        }
        Ok(scheduler)
    }

    fn attach_ops(&mut self) -> Result<Link, LiveError> {
        let failed = |why: String| LiveError::Attach { label: self.label.clone(), why };
        let table = OsStr::new(&self.prepared.table);
        let mut maps = self.object.maps_mut();
        let map = maps.find(|m| m.map_type() == MapType::StructOps && m.name() == table);
        let mut map = map.ok_or_else(|| failed("libbpf shows no such table".into()))?;
        map.attach_struct_ops().map_err(|e| failed(format!("{e:#}")))
    }

    /// Attaches the object's tracing programs, as its frontend's `attach()` does.
    fn attach_others(&mut self) {
        let wanted = [ProgramType::Tracing, ProgramType::RawTracepoint, ProgramType::Tracepoint];
        for program in self.object.progs_mut() {
            if !wanted.contains(&program.prog_type()) || !program.autoload() {
                continue;
            }
            match program.attach() {
                Ok(link) => self.others.push((program.name().to_string_lossy().into_owned(), link)),
                Err(e) => self.notes.push(format!(
                    "program {} is not attached: {e}",
                    program.name().to_string_lossy()
                )),
            }
        }
    }

    /// Waits until the kernel has enabled the scheduler or disabled it again. A scheduler that is
    /// ejected while it is being enabled has a link too, and `detach` returns its exit as usual.
    fn wait_enabled(&self) -> Result<(), LiveError> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            match kernel::state().as_str() {
                "enabled" | "disabled" => return Ok(()),
                _ => std::thread::sleep(POLL),
            }
        }
        let why = format!("the kernel is still enabling it after {} s", PATIENCE.as_secs());
        Err(LiveError::Attach { label: self.label.clone(), why })
    }

    /// Lists the parts of the scheduler that do not run here.
    pub fn left_out(&self) -> Vec<String> {
        left_out(self.prepared, |name, kind| {
            // An iterator program runs only when a process reads the program's file, and no process
            // reads it.
            let is_iter = matches!(kind, ProgramKind::Trace { kind: TraceKind::Iter, .. });
            !is_iter && self.others.iter().any(|(attached, _)| attached == name)
        })
    }

    /// Tells whether the scheduler is still in charge.
    pub fn is_attached(&self) -> bool {
        kernel::state() != "disabled" && self.recorded().is_none()
    }

    /// Detaches the scheduler and returns its exit, or `Exit::none()` if this call ended it. If
    /// the kernel was already disabling the scheduler, the exit has the kernel's reason. The exit's
    /// time is relative to `start_ns` (CLOCK_MONOTONIC) and as precise as the time stamps in the
    /// kernel's log.
    pub fn detach(mut self, start_ns: u64) -> Exit {
        self.link = None;
        let start = Instant::now();
        while kernel::state() != "disabled" && start.elapsed() < PATIENCE {
            std::thread::sleep(POLL);
        }
        let (log, name) = (self.log.messages(), &self.prepared.ops_name);
        let exit = self.recorded().or_else(|| from_log(&log, name));
        let Some(exit) = exit.filter(|e| e.kind != ExitKind::Unreg.name()) else {
            return Exit::none();
        };
        let left = time_in_charge(&log, name).map(|ns| self.enabled_ns.saturating_add(ns));
        Exit { at_ns: left.map(|at| at.saturating_sub(start_ns)), ..exit }
    }

    /// Returns the exit recorded in the object's `struct user_exit_info`; None before the exit, or
    /// if the object has no such struct.
    fn recorded(&self) -> Option<Exit> {
        let kind = self.number("uei.kind").filter(|kind| *kind != 0)?;
        let code = self.number("uei.exit_code").unwrap_or(0);
        let message = self.text("uei.msg");
        Some(Exit {
            kind: kind_name(kind),
            code: code as i64,
            message: if message.is_empty() { self.text("uei.reason") } else { message },
            at_ns: None,
            origin: Vec::new(),
            story: None,
            dump: self.text(DUMP),
        })
    }

    fn loaded(&self) -> LiveFrontend<'_> {
        LiveFrontend { plan: &self.plan, object: &self.object }
    }

    /// Returns the value of a numeric global variable.
    pub fn number(&self, path: &str) -> Option<u64> {
        let bytes = self.loaded().bytes(path).ok()?;
        let mut wide = [0; 8];
        wide.get_mut(..bytes.len())?.copy_from_slice(&bytes);
        Some(u64::from_le_bytes(wide))
    }

    /// Returns the value of a text variable, up to its NUL.
    fn text(&self, path: &str) -> String {
        let bytes = self.loaded().bytes(path).unwrap_or_default();
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }

    /// Returns the counters that the scheduler keeps itself, in its maps `stats` and `task_stats`.
    pub fn counters(&self) -> Counters {
        Counters::read(&self.loaded())
    }

    /// Returns the number of instructions that the verifier processed, one entry per program.
    pub fn verified_insns(&self) -> Vec<u64> {
        let loaded = self.object.progs().filter(|p| p.autoload());
        loaded.filter_map(|p| info(&p)).map(|info| info.verified_insns.into()).collect()
    }

    /// Returns calls and time per operation since statistics were enabled (`RunStats`).
    pub fn op_costs(&self) -> Vec<OpCost> {
        let object = self.prepared.open.object();
        let Some(table) =
            self.prepared.open.tables.iter().find(|t| t.name() == self.prepared.table)
        else {
            return Vec::new();
        };
        let mut costs = Vec::new();
        for member in &table.table().members {
            let MemberKind::Callback(Some(function)) = member.kind else { continue };
            let name = OsStr::new(&object.functions[function].name);
            let Some(program) = self.object.progs().find(|p| p.name() == name) else { continue };
            if let Some(info) = info(&program) {
                let (calls, ns) = (info.run_cnt, info.run_time_ns);
                costs.push(OpCost { op: member.name.clone(), calls, ns });
            }
        }
        costs
    }
}

/// Returns the kernel's information on a loaded program.
pub(crate) fn info(program: &libbpf_rs::Program<'_>) -> Option<libbpf_sys::bpf_prog_info> {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut len = size_of_val(&info) as u32;
    let fd = program.as_fd().as_raw_fd();
    // SAFETY: `info` is plain data, and the kernel writes at most `len` bytes.
    let ret = unsafe { libbpf_sys::bpf_prog_get_info_by_fd(fd, &raw mut info, &raw mut len) };
    (ret == 0).then_some(info)
}
