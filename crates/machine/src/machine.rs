// SPDX-License-Identifier: GPL-2.0-only
//! A machine: topology, costs and description, built from a preset, a spec string or a file's text.
//!
//! Owns: the form of the machine file, the names of presets, the canonical form that manifests
//! record.
//! Does not: open files. The caller reads them and passes their text, with a name for messages.

mod file;
mod memory;
mod presets;
mod write;

use std::fmt::Display;

use serde::Serialize;
use thiserror::Error;

pub use memory::{GivenMemory, NodeMatrix, NodeMemory};
pub use presets::presets;

use crate::cost::CostTable;
use crate::hash::hash_bytes;
use crate::topology::Topology;
use crate::topology::lstopo::{self, LstopoError};
use crate::topology::spec::{Sizes, Spec, SpecError, looks_like_spec};
use crate::topology::sysfs::{self, SysfsError, SysfsReader};

/// The kernel's initial node_reclaim_distance (`RECLAIM_DISTANCE`); for some processors the kernel
/// sets another.
pub const NODE_RECLAIM_DISTANCE: u32 = 30;

/// A machine on which a run can be simulated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// Name: a preset's name, a spec string, or a file's name.
    pub name: String,
    /// Description in one sentence.
    pub description: String,
    /// Source of the figures, and which of them are assumed.
    pub source: String,
    /// Whether the CPUs stop a guest that spins (pause-loop exiting).
    pub ple: bool,
    /// Greatest node distance over which the kernel's default class moves a task at fork, exec or
    /// wake-up.
    pub node_reclaim_distance: u32,
    pub topology: Topology,
    pub costs: CostTable,
    /// Speed of memory between nodes, where a machine file gives it. `node_memory` returns the
    /// whole.
    pub memory: GivenMemory,
}

/// The reason why there is no such machine. The input is at fault.
#[derive(Debug, Error)]
pub enum MachineError {
    /// A mistake in a machine file or cost table, with its line.
    #[error("{file}:{line}: {what}")]
    File {
        file: String,
        /// Line number, from 1.
        line: usize,
        /// Description of the mistake.
        what: String,
    },
    /// A mistake in a spec string.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A mistake in an lstopo file.
    #[error("{file}: {why}")]
    Lstopo {
        file: String,
        #[source]
        why: LstopoError,
    },
    /// The host's sysfs cannot be used.
    #[error("this host: {0}")]
    Sysfs(#[from] SysfsError),
    /// The name is neither a preset nor a spec string.
    #[error("no machine \"{name}\": give a spec such as 2n4c2t, a file, or one of: {presets}")]
    Unknown {
        /// The name that is neither.
        name: String,
        /// The names of all presets, separated by commas.
        presets: String,
    },
}

impl Machine {
    /// Returns the machine of a preset's name or a spec string.
    ///
    /// ```
    /// use scxlab_machine::Machine;
    /// assert_eq!(Machine::resolve("2n4c2t").unwrap().topology.nr_cpus(), 16);
    /// assert_eq!(Machine::resolve("x3650m2").unwrap().topology.nr_cpus(), 8);
    /// assert!(Machine::resolve("x3650m3").is_err());
    /// ```
    pub fn resolve(spec_or_name: &str) -> Result<Machine, MachineError> {
        if let Some((name, text)) = presets().iter().find(|(name, _)| *name == spec_or_name) {
            return Machine::from_toml(&format!("machines/{name}.toml"), text);
        }
        if looks_like_spec(spec_or_name) {
            return Machine::from_spec(spec_or_name);
        }
        let presets: Vec<_> = presets().iter().map(|(name, _)| *name).collect();
        Err(MachineError::Unknown { name: spec_or_name.to_owned(), presets: presets.join(", ") })
    }

    /// Returns the machine that the spec string `text` describes, with default sizes and costs.
    pub fn from_spec(text: &str) -> Result<Machine, MachineError> {
        let spec = Spec::parse(text)?;
        let impossible = |why| SpecError::Impossible { spec: text.to_owned(), why };
        let layout = spec.layout(Sizes::default()).map_err(impossible)?;
        let topology = Topology::build(layout).map_err(impossible)?;
        let source = "a spec string; sizes and costs are defaults";
        Ok(Machine::plain(text, describe(&topology), source, topology))
    }

    /// Returns the machine of a machine file. `file` is only a name for messages.
    pub fn from_toml(file: &str, text: &str) -> Result<Machine, MachineError> {
        file::read(file, text)
    }

    /// Returns the machine that an `lstopo --of xml` file describes, with default costs. `file` is
    /// only a name for messages.
    pub fn from_lstopo(file: &str, xml: &str) -> Result<Machine, MachineError> {
        let topology = lstopo::parse(xml)
            .map_err(|why| MachineError::Lstopo { file: file.to_owned(), why })?;
        let source = "an lstopo file; costs are defaults";
        Ok(Machine::plain(file, describe(&topology), source, topology))
    }

    /// Returns the machine that a sysfs tree describes, with default costs.
    pub fn from_sysfs(reader: &dyn SysfsReader) -> Result<Machine, MachineError> {
        let topology = sysfs::read(reader)?;
        let source = "sysfs of the running host; costs are defaults";
        Ok(Machine::plain("host", describe(&topology), source, topology))
    }

    fn plain(name: &str, description: String, source: &str, topology: Topology) -> Machine {
        Machine {
            name: name.to_owned(),
            description,
            source: source.to_owned(),
            ple: true,
            node_reclaim_distance: NODE_RECLAIM_DISTANCE,
            topology,
            costs: CostTable::modern(),
            memory: GivenMemory::default(),
        }
    }

    /// Returns the machine as one line of JSON with fixed order. Equal machines give equal text.
    pub fn canonical(&self) -> String {
        // A machine holds only strings, integers and sequences of them, which JSON can represent.
        serde_json::to_string(self).expect("a machine is plain data")
    }

    /// Returns a hash of everything that can change a run on the machine: all but name, description
    /// and the sources of figures.
    pub fn fingerprint(&self) -> u64 {
        let mut costs = self.costs.clone();
        for state in &mut costs.idle {
            state.source.clear();
        }
        let behaviour =
            (&self.topology, &costs, self.ple, self.node_reclaim_distance, &self.memory);
        let behaviour = serde_json::to_vec(&behaviour);
        hash_bytes(&behaviour.expect("a machine is plain data"))
    }
}

/// Returns a number with the name of what it counts: "1 CPU", "4 CPUs".
pub fn plural(count: impl Display, what: &str) -> String {
    let count = count.to_string();
    let ending = if count == "1" { "" } else { "s" };
    format!("{count} {what}{ending}")
}

/// Returns a short description, for a machine without one.
fn describe(topology: &Topology) -> String {
    format!(
        "{}, {}, {}, {}",
        plural(topology.nr_cpus(), "CPU"),
        plural(topology.cores().len(), "core"),
        plural(topology.llcs().len(), "LLC"),
        plural(topology.nodes().len(), "node"),
    )
}

#[cfg(test)]
mod tests;
