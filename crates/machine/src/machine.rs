// SPDX-License-Identifier: GPL-2.0-only
//! A machine: topology, costs, and what it is; built from a preset, a spec string or a file's text.
//!
//! Owns: the machine file's form, names of presets, the canonical form that manifests record.
//! Does not: open files; the caller reads them and passes text, with a name for messages.

mod file;
mod presets;

use serde::Serialize;
use thiserror::Error;

pub use presets::presets;

use crate::cost::CostTable;
use crate::hash::hash_bytes;
use crate::topology::lstopo::{self, LstopoError};
use crate::topology::spec::{Sizes, Spec, SpecError, looks_like_spec};
use crate::topology::sysfs::{self, SysfsError, SysfsReader};
use crate::topology::{Topology, TopologyError};

/// What the kernel starts from (`RECLAIM_DISTANCE`); for some processors it knows better.
pub const NODE_RECLAIM_DISTANCE: u32 = 30;

/// A machine that a run can be simulated on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// How it is called: a preset's name, a spec string, a file's name.
    pub name: String,
    /// What it is, in a sentence.
    pub description: String,
    /// Where its figures come from, and which are assumed.
    pub source: String,
    /// Whether its CPUs exit a guest that spins (pause-loop exiting).
    pub ple: bool,
    /// Nodes further apart get no forked, executed or woken task from each other in the kernel's default class.
    pub node_reclaim_distance: u32,
    /// Its CPUs.
    pub topology: Topology,
    /// Its costs.
    pub costs: CostTable,
}

/// Why there is no such machine. The input is at fault.
#[derive(Debug, Error)]
pub enum MachineError {
    /// A machine file or cost table says something wrong, with the line.
    #[error("{file}:{line}: {what}")]
    File {
        /// The file.
        file: String,
        /// The line, 1 first.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// A machine file describes what cannot exist.
    #[error("{file}: {why}")]
    Topology {
        /// The file.
        file: String,
        /// The reason.
        #[source]
        why: TopologyError,
    },
    /// A spec string is wrong.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// An lstopo file is wrong.
    #[error("{file}: {why}")]
    Lstopo {
        /// The file.
        file: String,
        /// The reason.
        #[source]
        why: LstopoError,
    },
    /// The host's sysfs cannot be used.
    #[error("this host: {0}")]
    Sysfs(#[from] SysfsError),
    /// Neither a preset nor a spec string.
    #[error("no machine \"{name}\": give a spec such as 2n4c2t, a file, or one of: {presets}")]
    Unknown {
        /// What was given.
        name: String,
        /// The presets there are.
        presets: String,
    },
}

impl Machine {
    /// The machine that a preset's name or a spec string stands for.
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

    /// A regular machine of default sizes and costs.
    pub fn from_spec(text: &str) -> Result<Machine, MachineError> {
        let spec = Spec::parse(text)?;
        let impossible = |why| SpecError::Impossible { spec: text.to_owned(), why };
        let layout = spec.layout(Sizes::default()).map_err(impossible)?;
        let topology = Topology::build(layout).map_err(impossible)?;
        let source = "a spec string; sizes and costs are defaults";
        Ok(Machine::plain(text, describe(&topology), source, topology))
    }

    /// A machine file's machine. `file` is only a name for messages.
    pub fn from_toml(file: &str, text: &str) -> Result<Machine, MachineError> {
        file::read(file, text)
    }

    /// The machine that an `lstopo --of xml` file shows, with default costs. `file` is only a name.
    pub fn from_lstopo(file: &str, xml: &str) -> Result<Machine, MachineError> {
        let topology = lstopo::parse(xml)
            .map_err(|why| MachineError::Lstopo { file: file.to_owned(), why })?;
        let source = "an lstopo file; costs are defaults";
        Ok(Machine::plain(file, describe(&topology), source, topology))
    }

    /// The machine that a sysfs tree shows, with default costs.
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
        }
    }

    /// The machine as one line of JSON with fixed order: equal machines, equal text.
    pub fn canonical(&self) -> String {
        // Only strings, integers and sequences of them: nothing that JSON cannot carry.
        serde_json::to_string(self).expect("a machine is plain data")
    }

    /// A hash of everything that can change a run on it: all but name, description and source.
    pub fn fingerprint(&self) -> u64 {
        let behaviour = (&self.topology, &self.costs, self.ple, self.node_reclaim_distance);
        let behaviour = serde_json::to_vec(&behaviour);
        hash_bytes(&behaviour.expect("a machine is plain data"))
    }
}

/// The machine in a few words, for one that nobody described.
fn describe(topology: &Topology) -> String {
    let plural = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
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
