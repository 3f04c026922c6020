// SPDX-License-Identifier: GPL-2.0-only
//! A machine as the text of a machine file, for recordings, which must hold their machine.
//!
//! Owns: the way back from a `Machine` to the form of `file.rs`, by the parts of the topology and
//! by the costs that differ from the base table.
//! Does not: keep the sources of the section `[memory]`, which a `Machine` does not have; they are
//! those of the whole machine.

use std::fmt::{self, Display, Write};

use super::{GivenMemory, Machine};
use crate::cost::{BASES, Constant, ConstantValue, CostTable, IdleState};
use crate::topology::{CAPACITY_SCALE, Topology};

impl Machine {
    /// Returns the text of a machine file that `from_toml` reads as an equal machine. Its costs are
    /// those of the list `costs.constants`.
    ///
    /// ```
    /// use scxlab_machine::Machine;
    /// let machine = Machine::resolve("2n4c2t").unwrap();
    /// assert_eq!(Machine::from_toml("a.toml", &machine.to_toml()).unwrap(), machine);
    /// ```
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        self.write(&mut text).expect("a String grows");
        text
    }

    fn write(&self, to: &mut String) -> fmt::Result {
        writeln!(to, "name = {}", quoted(&self.name))?;
        writeln!(to, "description = {}", quoted(&self.description))?;
        writeln!(to, "source = {}", quoted(&self.source))?;
        writeln!(to, "ple = {}", self.ple)?;
        writeln!(to, "node_reclaim_distance = {}", self.node_reclaim_distance)?;
        write_topology(&self.topology, to)?;
        self.write_memory(to)?;
        write_costs(&self.costs, to)
    }

    fn write_memory(&self, to: &mut String) -> fmt::Result {
        if self.memory == GivenMemory::default() {
            return Ok(());
        }
        let source = quoted(&format!("as the machine: {}", self.source));
        let figure = |value: String, unit| {
            format!("{{ value = {value}, unit = \"{unit}\", source = {source} }}")
        };
        let given = &self.memory;
        let rows = |rows: &Vec<Vec<u64>>| list(rows.iter().map(list));
        let figures = [
            ("latency", given.latency.as_ref().map(|all| figure(rows(all), "ns"))),
            ("bandwidth", given.bandwidth.as_ref().map(|each| figure(list(each), "MB/s"))),
            ("link_bandwidth", given.link_bandwidth.as_ref().map(|all| figure(rows(all), "MB/s"))),
        ];
        writeln!(to, "\n[memory]")?;
        for (name, figure) in figures {
            if let Some(figure) = figure {
                writeln!(to, "{name} = {figure}")?;
            }
        }
        Ok(())
    }
}

fn write_topology(topology: &Topology, to: &mut String) -> fmt::Result {
    writeln!(to, "\n[topology]")?;
    let cores = topology.cores().iter().map(|core| {
        let (l1d, l2) = (size("l1d", core.l1d_bytes), size("l2", core.l2_bytes));
        format!("{{ cpus = \"{}\", {l1d}, {l2} }}", core.cpus)
    });
    let llcs = topology
        .llcs()
        .iter()
        .map(|llc| format!("{{ cpus = \"{}\", {} }}", llc.cpus, size("size", llc.size_bytes)));
    let nodes = topology.nodes().iter().map(|node| {
        format!("{{ cpus = \"{}\", memory_bytes = {} }}", node.cpus, node.memory_bytes)
    });
    writeln!(to, "cores = {}", list(cores))?;
    writeln!(to, "llcs = {}", list(llcs))?;
    writeln!(to, "nodes = {}", list(nodes))?;
    let rows = topology.nodes().iter().map(|node| list(&node.distances));
    writeln!(to, "distances = {}", list(rows))?;
    let capacities: Vec<u32> = topology.cpus().iter().map(|cpu| cpu.capacity).collect();
    if capacities.iter().any(|capacity| *capacity != CAPACITY_SCALE) {
        writeln!(to, "capacities = {}", list(&capacities))?;
    }
    Ok(())
}

fn size(name: &str, bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 10) {
        format!("{name}_kib = {}", bytes >> 10)
    } else {
        format!("{name}_bytes = {bytes}")
    }
}

fn write_costs(costs: &CostTable, to: &mut String) -> fmt::Result {
    let base = CostTable::modern();
    writeln!(to, "\n[cost]\nbase = \"{}\"", BASES[0].0)?;
    if costs.idle != base.idle {
        writeln!(to, "idle = {}", list(costs.idle.iter().map(idle)))?;
    }
    for constant in &costs.constants {
        if !base.constants.contains(constant) {
            write_constant(constant, to)?;
        }
    }
    Ok(())
}

fn write_constant(constant: &Constant, to: &mut String) -> fmt::Result {
    let Constant { name, value, unit, source, note } = constant;
    let value = match value {
        ConstantValue::Number(number) => number.to_string(),
        ConstantValue::Ratio(ratio) => format!("{{ num = {}, den = {} }}", ratio.num, ratio.den),
        ConstantValue::ByDistance(by) => format!(
            "{{ smt = {}, core = {}, llc = {}, node = {} }}",
            by.smt, by.core, by.llc, by.node
        ),
    };
    write!(to, "{name} = {{ value = {value}, unit = \"{unit}\", source = {}", quoted(source))?;
    if !note.is_empty() {
        write!(to, ", note = {}", quoted(note))?;
    }
    writeln!(to, " }}")
}

fn idle(state: &IdleState) -> String {
    let IdleState { name, min_residency_ns, exit_latency_ns, source } = state;
    format!(
        "{{ name = {}, min_residency_ns = {min_residency_ns}, exit_latency_ns = {exit_latency_ns}, \
         source = {} }}",
        quoted(name),
        quoted(source)
    )
}

/// Returns a text as a TOML string.
fn quoted(text: &str) -> toml::Value {
    toml::Value::String(text.to_owned())
}

fn list<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    format!("[{}]", items.join(", "))
}

#[cfg(test)]
mod tests;
