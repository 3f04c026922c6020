// SPDX-License-Identifier: GPL-2.0-only
//! What formulas can name: the machine's facts, kernel enumerators, the object's globals, parameters, loop variables.
//!
//! Owns: the list of facts and functions (`docs/reference/recipes.md` describes it; a test holds it to this).
//! Does not: compute anything that a frontend could not read from sysfs.

use std::cmp::Reverse;

use scxlab_bpf::btf::Btf;
use scxlab_bpf::link::Globals;
use scxlab_bpf::link::knob::{closest, parse_int};
use scxlab_bpf::object::Object;
use scxlab_machine::cpumask::CpuMask;
use scxlab_machine::{CoreId, CpuId, LlcId, Machine, NodeId, Topology};

use super::expr::{ExprError, Names};

/// Facts without arguments.
pub const FACTS: [&str; 7] =
    ["nr_cpus", "nr_cores", "nr_llcs", "nr_nodes", "smt", "asymmetric", "tick_hz"];

/// Functions with the number of their arguments.
pub const FUNCTIONS: [(&str, usize); 22] = [
    ("core", 1),
    ("llc", 1),
    ("node", 1),
    ("thread", 1),
    ("capacity", 1),
    ("sibling", 1),
    ("by_capacity", 1),
    ("core_llc", 1),
    ("llc_node", 1),
    ("core_cpus", 1),
    ("llc_cpus", 1),
    ("node_cpus", 1),
    ("core_cpu", 2),
    ("llc_cpu", 2),
    ("node_cpu", 2),
    ("core_mask", 2),
    ("llc_mask", 2),
    ("node_mask", 2),
    ("llc_bytes", 1),
    ("node_distance", 2),
    ("min", 2),
    ("max", 2),
];

/// Everything in sight of a formula.
pub struct Scope<'a> {
    pub machine: &'a Machine,
    pub kernel: &'a Btf,
    pub object: &'a Object,
    pub globals: &'a Globals,
    /// Values of the recipe's parameters; those that are not yet known are absent.
    pub params: &'a [(String, i128)],
    /// Loop variables, innermost last.
    pub locals: &'a [(String, i128)],
}

impl Names for Scope<'_> {
    fn name(&self, name: &str) -> Result<i128, ExprError> {
        let bound = self.locals.iter().rev().chain(self.params).find(|(n, _)| n == name);
        if let Some((_, value)) = bound {
            return Ok(*value);
        }
        self.fact(name)
            .or_else(|| self.kernel.enumerator_value(name).map(i128::from))
            .or_else(|| self.object.btf.enumerator_value(name).map(i128::from))
            .or_else(|| self.global(name))
            .ok_or_else(|| self.no_name(name))
    }

    fn call(&self, name: &str, args: &[i128]) -> Result<i128, ExprError> {
        let Some((_, wanted)) = FUNCTIONS.iter().find(|(n, _)| *n == name) else {
            let candidates: Vec<_> = FUNCTIONS.iter().map(|(n, _)| *n).collect();
            return Err(ExprError::NoFunction {
                name: name.into(),
                candidates: candidates.join(", "),
            });
        };
        if args.len() != *wanted {
            let (wanted, given) = (*wanted, args.len());
            return Err(ExprError::Arguments { name: name.into(), wanted, given });
        }
        let second = args.get(1).copied().unwrap_or(0);
        let query = Query { topology: &self.machine.topology, name };
        query.answer(args[0], second)
    }
}

impl Scope<'_> {
    fn fact(&self, name: &str) -> Option<i128> {
        let topology = &self.machine.topology;
        let count = |n: usize| n as i128;
        Some(match name {
            "nr_cpus" => count(topology.nr_cpus()),
            "nr_cores" => count(topology.cores().len()),
            "nr_llcs" => count(topology.llcs().len()),
            "nr_nodes" => count(topology.nodes().iter().filter(|n| nr(&n.cpus) > 0).count()),
            "smt" => topology.has_smt().into(),
            "asymmetric" => topology.is_asymmetric().into(),
            "tick_hz" => self.machine.costs.clock.tick_hz.into(),
            _ => return None,
        })
    }

    /// A global variable's present value, if it is a number.
    fn global(&self, name: &str) -> Option<i128> {
        self.object.variable(name)?;
        let text = self.globals.get(name).ok()?;
        match text.as_str() {
            "true" => Some(1),
            "false" => Some(0),
            text => parse_int(text),
        }
    }

    fn no_name(&self, name: &str) -> ExprError {
        let variables = self.object.sections.iter().flat_map(|s| s.variables.iter());
        let known = FACTS
            .into_iter()
            .chain(self.params.iter().chain(self.locals).map(|(n, _)| n.as_str()))
            .chain(variables.filter(|v| v.global).map(|v| v.name.as_str()));
        ExprError::NoName { name: name.into(), candidates: closest(name, known) }
    }
}

/// One function call on a topology.
struct Query<'a> {
    topology: &'a Topology,
    name: &'a str,
}

impl Query<'_> {
    fn answer(&self, a: i128, b: i128) -> Result<i128, ExprError> {
        let t = self.topology;
        Ok(match self.name {
            "core" => t.cpu(self.cpu(a)?).core.0.into(),
            "llc" => t.cpu(self.cpu(a)?).llc.0.into(),
            "node" => t.cpu(self.cpu(a)?).node.0.into(),
            "thread" => t.cpu(self.cpu(a)?).smt.into(),
            "capacity" => t.cpu(self.cpu(a)?).capacity.into(),
            "sibling" => self.sibling(self.cpu(a)?),
            "by_capacity" => self.by_capacity(self.cpu(a)?),
            "core_llc" => t.core(self.core(a)?).llc.0.into(),
            "llc_node" => t.llc(self.llc(a)?).node.0.into(),
            "core_cpus" => nr(&t.core(self.core(a)?).cpus),
            "llc_cpus" => nr(&t.llc(self.llc(a)?).cpus),
            "node_cpus" => nr(&t.node(self.node(a)?).cpus),
            "core_cpu" => self.nth(&t.core(self.core(a)?).cpus, b)?,
            "llc_cpu" => self.nth(&t.llc(self.llc(a)?).cpus, b)?,
            "node_cpu" => self.nth(&t.node(self.node(a)?).cpus, b)?,
            "core_mask" => word(&t.core(self.core(a)?).cpus, b),
            "llc_mask" => word(&t.llc(self.llc(a)?).cpus, b),
            "node_mask" => word(&t.node(self.node(a)?).cpus, b),
            "llc_bytes" => t.llc(self.llc(a)?).size_bytes.into(),
            "node_distance" => t.node_distance(self.node(a)?, self.node(b)?).into(),
            "min" => a.min(b),
            _ => a.max(b),
        })
    }

    /// The next thread of the core for its first one, the first one for the others; -1 for a core of one.
    fn sibling(&self, cpu: CpuId) -> i128 {
        let mask = self.topology.core_mask(cpu);
        let other = self.topology.cpu_ids().find(|c| *c != cpu && in_mask(mask, *c));
        other.map_or(-1, |c| c.0.into())
    }

    /// CPUs in order of falling capacity; equal ones by number.
    fn by_capacity(&self, at: CpuId) -> i128 {
        let mut cpus: Vec<CpuId> = self.topology.cpu_ids().collect();
        cpus.sort_by_key(|c| Reverse(self.topology.cpu(*c).capacity));
        cpus[at.idx()].0.into()
    }

    fn nth(&self, mask: &CpuMask, n: i128) -> Result<i128, ExprError> {
        let mut cpus = self.topology.cpu_ids().filter(|c| in_mask(mask, *c));
        let found = usize::try_from(n).ok().and_then(|n| cpus.nth(n));
        found.map(|c| c.0.into()).ok_or(ExprError::OutOfRange {
            name: self.name.into(),
            arg: n,
            what: "CPUs there",
            max: nr(mask) - 1,
        })
    }

    fn cpu(&self, id: i128) -> Result<CpuId, ExprError> {
        self.id(id, "CPUs", self.topology.nr_cpus()).map(CpuId)
    }

    fn core(&self, id: i128) -> Result<CoreId, ExprError> {
        self.id(id, "cores", self.topology.cores().len()).map(CoreId)
    }

    fn llc(&self, id: i128) -> Result<LlcId, ExprError> {
        self.id(id, "LLCs", self.topology.llcs().len()).map(LlcId)
    }

    fn node(&self, id: i128) -> Result<NodeId, ExprError> {
        self.id(id, "nodes", self.topology.nodes().len()).map(NodeId)
    }

    fn id(&self, id: i128, what: &'static str, len: usize) -> Result<u32, ExprError> {
        let found = u32::try_from(id).ok().filter(|id| (*id as usize) < len);
        let max = len as i128 - 1;
        found.ok_or_else(|| ExprError::OutOfRange { name: self.name.into(), arg: id, what, max })
    }
}

fn in_mask(mask: &CpuMask, cpu: CpuId) -> bool {
    scxlab_machine::cpumask::test(mask, cpu)
}

fn nr(mask: &CpuMask) -> i128 {
    scxlab_machine::cpumask::weight(mask).into()
}

/// 64 bits of a mask, by number; 0 past its end.
fn word(mask: &CpuMask, at: i128) -> i128 {
    let word = usize::try_from(at).ok().and_then(|at| mask.get(at));
    word.map_or(0, |w| i128::from(*w))
}

#[cfg(test)]
mod tests;
