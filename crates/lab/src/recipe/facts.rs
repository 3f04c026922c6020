// SPDX-License-Identifier: GPL-2.0-only
//! Names that formulas can use: facts of the machine, kernel enumerators, the object's globals,
//! parameters, variables.
//!
//! Owns: the list of facts and functions. A test checks that `docs/reference/recipes.md` describes
//! each.
//! Does not: compute anything that a frontend could not read from sysfs.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use scxlab_loader::btf::{Btf, BtfKind};
use scxlab_loader::link::Globals;
use scxlab_loader::link::knob::{closest, parse_int};
use scxlab_loader::object::Object;
use scxlab_machine::cpumask::CpuMask;
use scxlab_machine::{CoreId, CpuId, LlcId, Machine, NodeId, Topology};

use super::expr::{ExprError, NameResolver, PathStep, path_text};
use super::frontend::Frontend;

/// Names of facts about the machine that take no argument.
pub const FACTS: [&str; 8] = [
    "nr_cpus",
    "nr_cores",
    "nr_llcs",
    "nr_nodes",
    "smt",
    "asymmetric",
    "tick_hz",
    "nr_idle_states",
];

/// Functions that formulas can call, each with its number of arguments.
pub const FUNCTIONS: [(&str, usize); 24] = [
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
    ("idle_exit_ns", 1),
    ("log2", 1),
    ("min", 2),
    ("max", 2),
];

/// All names that a formula can see.
pub struct Scope<'a> {
    pub machine: &'a Machine,
    pub kernel: &'a Btf,
    pub object: &'a Object,
    pub globals: View<'a>,
    /// Values of the recipe's parameters; parameters that have no value yet are absent.
    pub params: &'a [(String, i128)],
    pub vars: &'a Vars,
    /// Loop variables, innermost last.
    pub locals: &'a [(String, i128)],
}

/// The open or loaded object, from which the present values of its globals are read.
#[derive(Clone, Copy)]
pub enum View<'a> {
    Open(&'a Globals),
    Loaded(&'a dyn Frontend),
}

impl View<'_> {
    /// Returns the value of a global variable, or of a part of one, as text; or the reason why
    /// there is none.
    fn get(&self, path: &str) -> Result<String, String> {
        match self {
            View::Open(globals) => globals.get(path).map_err(|error| error.to_string()),
            View::Loaded(frontend) => frontend.global(path),
        }
    }
}

/// Variables of a recipe, by name and indices. A variable that holds a single number has no
/// indices.
#[derive(Clone, Debug, Default)]
pub struct Vars(BTreeMap<String, BTreeMap<Vec<i128>, i128>>);

impl Vars {
    pub fn set(&mut self, name: &str, indices: Vec<i128>, value: i128) {
        self.0.entry(name.to_owned()).or_default().insert(indices, value);
    }

    fn get(&self, name: &str, indices: &[i128]) -> Option<i128> {
        self.0.get(name)?.get(indices).copied()
    }
}

/// Returns the indices in a reference to a recipe's variable, such as 1 and 2 in `a[1][2]`. Refuses
/// a field, because a recipe's variable has none.
pub fn indices(name: &str, steps: &[PathStep]) -> Result<Vec<i128>, ExprError> {
    let index = |step: &PathStep| match step {
        PathStep::Index(index) => Ok(*index),
        PathStep::Field(_) => Err(ExprError::NoValue {
            place: path_text(name, steps),
            why: ": a variable of a recipe has no fields".into(),
        }),
    };
    steps.iter().map(index).collect()
}

impl NameResolver for Scope<'_> {
    fn name(&self, name: &str) -> Result<i128, ExprError> {
        if let Some((_, value)) = self.locals.iter().rev().find(|(n, _)| n == name) {
            return Ok(*value);
        }
        if let Some(value) = self.vars.get(name, &[]) {
            return Ok(value);
        }
        if let Some((_, value)) = self.params.iter().find(|(n, _)| n == name) {
            return Ok(*value);
        }
        self.fact(name)
            .or_else(|| self.kernel.enumerator_value(name).map(i128::from))
            .or_else(|| self.object.btf.enumerator_value(name).map(i128::from))
            .or_else(|| self.global(name))
            .ok_or_else(|| self.no_name(name))
    }

    fn part(&self, name: &str, steps: &[PathStep]) -> Result<i128, ExprError> {
        let no_value = |why: String| {
            let why = format!(": {why}");
            ExprError::NoValue { place: path_text(name, steps), why }
        };
        if self.vars.0.contains_key(name) {
            let found = self.vars.get(name, &indices(name, steps)?);
            return found.ok_or_else(|| no_value("nothing was assigned to it".into()));
        }
        if self.object.variable(name).is_none() {
            return Err(self.no_name(name));
        }
        let text = self.globals.get(&path_text(name, steps)).map_err(no_value)?;
        self.number(&text).ok_or_else(|| no_value(format!("{text} is no number")))
    }

    fn exists(&self, name: &str) -> bool {
        let object = self.object;
        object.variable(name).is_some()
            || object.map(name).is_some()
            || object.programs().any(|(_, function, _)| function.name == name)
    }

    fn size_of(&self, ty: &str) -> Result<i128, ExprError> {
        let btf = &self.object.btf;
        let kinds = [BtfKind::Struct, BtfKind::Union, BtfKind::Typedef, BtfKind::Int];
        let found = kinds.into_iter().find_map(|kind| btf.find(ty, kind));
        let size = found.and_then(|id| btf.size_of(id).ok());
        size.map(i128::from).ok_or_else(|| ExprError::NoValue {
            place: format!("sizeof({ty})"),
            why: ": the object has no such type".into(),
        })
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
        let query = Query { machine: self.machine, topology: &self.machine.topology, name };
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
            "nr_idle_states" => count(self.machine.costs.idle.len()),
            _ => return None,
        })
    }

    /// Returns a global variable's present value, if it is a number.
    fn global(&self, name: &str) -> Option<i128> {
        self.object.variable(name)?;
        self.number(&self.globals.get(name).ok()?)
    }

    /// Parses a global variable's value as text: a number, `true`, `false` or an enumerator's name.
    fn number(&self, text: &str) -> Option<i128> {
        match text {
            "true" => Some(1),
            "false" => Some(0),
            text => {
                parse_int(text).or_else(|| self.object.btf.enumerator_value(text).map(i128::from))
            }
        }
    }

    fn no_name(&self, name: &str) -> ExprError {
        let variables = self.object.sections.iter().flat_map(|s| s.variables.iter());
        let known = FACTS
            .into_iter()
            .chain(self.params.iter().chain(self.locals).map(|(n, _)| n.as_str()))
            .chain(self.vars.0.keys().map(String::as_str))
            .chain(variables.filter(|v| v.global).map(|v| v.name.as_str()));
        ExprError::NoName { name: name.into(), candidates: closest(name, known) }
    }
}

/// One call of a function in a formula.
struct Query<'a> {
    machine: &'a Machine,
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
            "idle_exit_ns" => self.idle_exit_ns(a)?,
            "log2" => a.checked_ilog2().map_or(-1, i128::from),
            "min" => a.min(b),
            _ => a.max(b),
        })
    }

    /// Returns another thread of the CPU's core: the core's second thread if the CPU is the first
    /// thread, and the first thread otherwise; -1 if the core has one thread.
    fn sibling(&self, cpu: CpuId) -> i128 {
        let mask = self.topology.core_mask(cpu);
        let other = self.topology.cpu_ids().find(|c| *c != cpu && in_mask(mask, *c));
        other.map_or(-1, |c| c.0.into())
    }

    /// Returns the CPU at position `at` in order of falling capacity; CPUs of equal capacity are
    /// ordered by number.
    fn by_capacity(&self, at: CpuId) -> i128 {
        let mut cpus: Vec<CpuId> = self.topology.cpu_ids().collect();
        cpus.sort_by_key(|c| Reverse(self.topology.cpu(*c).capacity));
        cpus[at.idx()].0.into()
    }

    fn idle_exit_ns(&self, state: i128) -> Result<i128, ExprError> {
        let states = &self.machine.costs.idle;
        let at = self.id(state, "idle states", states.len())?;
        Ok(states[at as usize].exit_latency_ns.into())
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

/// Returns the 64-bit word with index `at` of a CPU mask; 0 if `at` is past the end of the mask.
fn word(mask: &CpuMask, at: i128) -> i128 {
    let word = usize::try_from(at).ok().and_then(|at| mask.get(at));
    word.map_or(0, |w| i128::from(*w))
}

#[cfg(test)]
mod tests;
