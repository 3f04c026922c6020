// SPDX-License-Identifier: GPL-2.0-only
//! The checks of guests, and of the programs in them.
//!
//! Owns: numbers of guests and vCPUs, names, memory. Does not: resolve a guest's `workload`
//! (`program::guest`), or check CPU numbers in a guest's program (the executors do).

use std::collections::BTreeSet;

use super::check::{Checked, invalid};
use super::{MAX_THREADS, region};
use crate::error::WorkloadError;
use crate::program::guest::{MAX_GUESTS, MAX_VCPUS};
use crate::program::{GuestDef, Part, Program, names};

/// Checks a program's guests.
pub(super) fn check(program: &Program) -> Checked {
    numbers(program)?;
    let mut seen = BTreeSet::new();
    for (i, def) in program.guests.iter().enumerate() {
        guest(program, i, def)?;
        for instance in 0..def.instances {
            let name = def.instance_name(instance);
            if let Some(name) = seen.replace(name) {
                let mut problem = format!("two guests are named \"{name}\"");
                if def.instances > 1 && !names::is_pattern(&def.name) {
                    problem += "; instances need a pattern such as \"vm{i}\"";
                }
                return invalid(program.place(Part::Entry("guest", i)), problem);
            }
        }
    }
    Ok(())
}

/// Checks the numbers of guests, and of vCPUs and threads together.
fn numbers(program: &Program) -> Checked {
    let sum = |of: &dyn Fn(&GuestDef) -> u64| -> u64 {
        program.guests.iter().map(|def| u64::from(def.instances).saturating_mul(of(def))).sum()
    };
    let threads =
        |program: &Program| -> u64 { program.threads.iter().map(|t| u64::from(t.instances)).sum() };
    let tasks = |def: &GuestDef| u64::from(def.vcpus) + def.program.as_deref().map_or(0, threads);
    let (guests, tasks) = (sum(&|_| 1), sum(&tasks).saturating_add(threads(program)));
    let limits = [
        ("number of guests", guests, u64::from(MAX_GUESTS)),
        ("number of threads and virtual CPUs", tasks, MAX_THREADS),
    ];
    for (what, value, max) in limits {
        if value > max && guests > 0 {
            let at = program.whole();
            return Err(WorkloadError::Limit { at, what, value, max });
        }
    }
    Ok(())
}

fn guest(program: &Program, index: usize, def: &GuestDef) -> Checked {
    let at = || program.place(Part::Entry("guest", index));
    let fail = |problem: &str| invalid(at(), format!("guest \"{}\": {problem}", def.name));
    if def.name.is_empty() {
        return fail("a guest needs a name");
    }
    if let Err(problem) = names::resolve(&def.name, 0) {
        return fail(&problem);
    }
    if def.instances == 0 {
        return fail("instances is 0, must be 1 or more");
    }
    if !(1..=MAX_VCPUS).contains(&def.vcpus) {
        return fail(&format!("vcpus is {}, must be 1 to {MAX_VCPUS}", def.vcpus));
    }
    if !(-20..=19).contains(&def.nice) {
        return fail("nice is from -20 to 19");
    }
    if let Some(Err(problem)) = def.cgroup.as_deref().map(|path| names::resolve(path, 0)) {
        return fail(&problem);
    }
    if def.vcpu_cgroups && def.cgroup.is_none() {
        return fail("vcpu_cgroups needs `cgroup`");
    }
    if let Some(Err(problem)) = def.memory.as_ref().map(|m| region::definition(&m.region())) {
        return fail(&format!("memory: {problem}"));
    }
    let inner = match (&def.program, &def.workload) {
        (Some(inner), None) => inner,
        (Some(_), Some(_)) => return fail("has `workload` and `program`; it needs one of them"),
        (None, _) => return fail("has no program"),
    };
    if !inner.guests.is_empty() {
        return fail("a guest cannot contain guests");
    }
    if inner.threads.iter().all(|thread| thread.instances == 0) {
        return fail("its workload has no thread to run");
    }
    if let Some(region) = inner.regions.first().filter(|_| def.memory.is_none()) {
        let (guest, region) = (&def.name, &region.name);
        let problem =
            format!("guest \"{guest}\" has no memory for region \"{region}\": give it `memory`");
        return invalid(inner.place(Part::Entry("region", 0)), problem);
    }
    super::check(inner)
}
