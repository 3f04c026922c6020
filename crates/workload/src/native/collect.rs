// SPDX-License-Identifier: GPL-2.0-only
//! Turns the contents of shared memory into the report.
//!
//! Owns: reading the threads' records after the threads have ended; the text for what a thread
//! waits for.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use scxlab_machine::id::Nanos;

use super::error::{OpError, RefusedCallKind};
use super::plan::Tables;
use super::region;
use super::report::{Calibration, NativeReport, NativeStop, NativeTask, TaskEnd, Unlisted};
use super::shared::{self, Counts, RefusedCallRecord, Slot};
use super::worker::Env;
use crate::compile::insn::{Insn, WaitObject, WaitState};
use crate::exec::LoopTotals;

/// Base of the values of `Slot::end` for a thread whose process was ended by a signal: the value is
/// this base plus the signal's number.
pub const KILLED: u32 = 16;

pub fn report(
    env: &Env,
    calibration: Calibration,
    stop: NativeStop,
    ended: Nanos,
    notes: Vec<String>,
) -> NativeReport {
    let (tables, shared) = (&env.tables, &env.shared);
    let head = shared.head();
    let used = head.nr_slots.load(Relaxed) as usize;
    let filled = shared.slots[..used].iter().filter(|s| s.state.load(Acquire) != shared::FREE);
    let mut tasks: Vec<(u32, NativeTask)> =
        filled.map(|slot| (slot.who.made.load(Relaxed), task(tables, slot))).collect();
    tasks.sort_by_key(|(made, _)| *made);
    let (regions, lost) = region::counted(tables, shared);
    let mut notes = notes;
    if lost > 0 {
        notes.push(format!(
            "the pages of {lost} regions are unknown, because their processes were killed or there \
             were too many"
        ));
    }
    let sum = |i: usize| head.unlisted[i].load(Relaxed);
    NativeReport {
        started_ns: head.started.load(Relaxed),
        ended_ns: ended,
        stop,
        calibration,
        unit: tables.plan.program.unit.clone(),
        tasks: tasks.into_iter().map(|(_, task)| task).collect(),
        templates: tables.compiled.templates.iter().map(|t| t.name.clone()).collect(),
        unlisted: Unlisted {
            tasks: sum(0),
            work_units: sum(1),
            run_ns: sum(2),
            wait_ns: sum(3),
            switches_voluntary: sum(4),
            switches_involuntary: sum(5),
        },
        regions,
        uncounted: lost,
        errors: faults(env),
        nr_errors: head.nr_faults.load(Relaxed).into(),
        notes,
    }
}

fn task(tables: &Tables, slot: &Slot) -> NativeTask {
    let forked = slot.who.forked.load(Relaxed) == 1;
    // The kernel's counts for a forked thread begin at zero with the thread, so nothing is
    // subtracted from them.
    let zero = Counts::default();
    zero.wait.store(1, Relaxed);
    zero.migrations.store(1, Relaxed);
    let counts = counts_since(if forked { &zero } else { &slot.before }, &slot.after);
    let cgroups = &tables.compiled.cgroups;
    let cgroup = slot.cgroup.load(Relaxed).checked_sub(1).and_then(|i| cgroups.get(i as usize));
    NativeTask {
        name: slot.who.name(tables),
        comm: None,
        tid: slot.tid.load(Relaxed),
        tgid: slot.tgid.load(Relaxed),
        nice: slot.nice.load(Relaxed) as i8,
        cgroup: cgroup.map_or("/".to_owned(), |c| c.path.clone()),
        template: slot.who.template.load(Relaxed),
        instance: slot.who.instance.load(Relaxed),
        forked,
        end: match slot.end.load(Relaxed) {
            shared::EXITED => TaskEnd::Exited,
            end if end >= KILLED => TaskEnd::Killed((end - KILLED) as i32),
            _ => TaskEnd::Stopped,
        },
        began_ns: slot.began.load(Relaxed),
        ended_ns: slot.ended.load(Relaxed),
        run_ns: counts.run,
        wait_ns: counts.wait,
        switches_voluntary: counts.voluntary,
        switches_involuntary: counts.involuntary,
        migrations: counts.migrations,
        work_units: slot.units.load(Relaxed),
        phases: phases(slot),
        timers: slot.totals.timers(),
    }
}

/// The kernel's counts for a thread over a time. None: the kernel does not report the count.
pub struct CountsSince {
    pub run: Nanos,
    pub wait: Option<Nanos>,
    pub voluntary: u64,
    pub involuntary: u64,
    pub migrations: Option<u64>,
}

/// Returns how much the counts of a thread have grown.
pub fn counts_since(before: &Counts, after: &Counts) -> CountsSince {
    let since = |f: fn(&Counts) -> &AtomicU64| {
        f(after).load(Relaxed).saturating_sub(f(before).load(Relaxed))
    };
    // `wait` and `migrations` are stored plus one; 0 means unknown.
    let known = |f: fn(&Counts) -> &AtomicU64| {
        let first = f(before).load(Relaxed).checked_sub(1)?;
        Some(f(after).load(Relaxed).checked_sub(1)?.saturating_sub(first))
    };
    CountsSince {
        run: since(|c| &c.run),
        wait: known(|c| &c.wait),
        voluntary: since(|c| &c.voluntary),
        involuntary: since(|c| &c.involuntary),
        migrations: known(|c| &c.migrations),
    }
}

fn phases(slot: &Slot) -> LoopTotals {
    let t = &slot.totals;
    LoopTotals { loops: t.loops.load(Relaxed), run: t.run.load(Relaxed) }
}

fn faults(env: &Env) -> Vec<OpError> {
    let filled = env.shared.faults.iter().filter(|f| f.filled.load(Acquire) == 1);
    filled.map(|f| op_error(&env.tables, f)).collect()
}

/// Returns the first call that the kernel refused.
pub fn first_fault(env: &Env) -> Option<OpError> {
    faults(env).into_iter().next()
}

fn op_error(tables: &Tables, fault: &RefusedCallRecord) -> OpError {
    let what = RefusedCallKind::ALL
        .get(fault.what.load(Relaxed) as usize)
        .copied()
        .unwrap_or(RefusedCallKind::Fork);
    let template = fault.who.template.load(Relaxed) as usize;
    let op = match tables.compiled.code.get(fault.pc.load(Relaxed) as usize) {
        Some(insn) => op_text(tables, *insn, what),
        None => attribute_text(tables, template, what),
    };
    OpError {
        at: fault.at.load(Relaxed),
        thread: fault.who.name(tables),
        op,
        what,
        errno: fault.errno.load(Relaxed),
    }
}

/// Returns the name and argument of a refused op.
fn op_text(tables: &Tables, insn: Insn, what: RefusedCallKind) -> String {
    let c = &tables.compiled;
    let path = |i: u32| c.cgroups.get(i as usize).map_or("/", |g| g.path.as_str());
    match insn {
        Insn::SetPolicy(i) => format!("set_policy {:?}", c.tables.policies[i as usize]),
        Insn::SetNice(nice) => format!("set_nice {nice}"),
        Insn::SetAffinity(i) => format!("set_affinity {}", c.tables.affinities[i as usize]),
        Insn::MoveCgroup(i) => format!("move_cgroup {}", path(i)),
        Insn::SetXattr(i) => {
            let x = &c.tables.xattrs[i as usize];
            format!("set_xattr {} {}", x.cgroup.map_or("/", path), x.name)
        }
        Insn::Fork(i) => format!("fork {}", c.templates[i as usize].name),
        Insn::Write { bytes, .. } => format!("write of {bytes} bytes"),
        Insn::Read { bytes, .. } => format!("read of {bytes} bytes"),
        Insn::Io { bytes, .. } => format!("io of {bytes} bytes"),
        _ => what.name().to_owned(),
    }
}

/// Returns the name and value of the attribute of a thread template that the kernel refused.
fn attribute_text(tables: &Tables, template: usize, what: RefusedCallKind) -> String {
    let def = &tables.plan.program.threads[template];
    match what {
        RefusedCallKind::Policy => format!("policy {:?}", def.policy),
        RefusedCallKind::Nice => format!("nice {}", def.nice),
        RefusedCallKind::Affinity => {
            format!("cpus {}", def.cpus.as_ref().map_or("all".to_owned(), ToString::to_string))
        }
        RefusedCallKind::Cgroup => format!("cgroup {}", def.cgroup.as_deref().unwrap_or("/")),
        RefusedCallKind::Memory => format!("{} bytes to touch", tables.templates[template].touched),
        RefusedCallKind::Region => "its regions of memory".to_owned(),
        what => what.name().to_owned(),
    }
}

/// Describes what every living thread waits for, in the words of `Executor::describe_wait`.
pub fn waits(env: &Env) -> Vec<String> {
    let used = env.shared.head().nr_slots.load(Relaxed) as usize;
    let living = env.shared.slots[..used]
        .iter()
        .filter(|s| !matches!(s.state.load(Acquire), shared::OVER | shared::FREE));
    living.map(|s| format!("{} waits for {}", s.who.name(&env.tables), wait(env, s))).collect()
}

fn wait(env: &Env, slot: &Slot) -> String {
    let index = slot.waits_index.load(Relaxed) as usize;
    let object = WaitObject::ALL.get(slot.waits.load(Relaxed) as usize);
    let object = *object.unwrap_or(&WaitObject::Nothing);
    let mut state = WaitState::default();
    match object {
        WaitObject::Mutex => state.holder = owner(env, index),
        WaitObject::Barrier => {
            let barrier = &env.shared.barriers[index];
            state.arrived = (barrier.here.load(Relaxed), barrier.parties.load(Relaxed));
        }
        _ => {}
    }
    object.text(&env.tables.compiled.objects, index, state)
}

fn owner(env: &Env, mutex: usize) -> Option<String> {
    let slot = env.shared.mutexes[mutex].owner().checked_sub(1)?;
    Some(env.shared.slots[slot as usize].who.name(&env.tables))
}
