// SPDX-License-Identifier: GPL-2.0-only
//! Spec strings: `2n4c2t` is 2 nodes, each with 1 LLC of 4 cores of 2 threads, 16 CPUs in all.
//!
//! Owns: the grammar, and the CPU numbering of a regular machine.
//! Does not: describe sizes other than the defaults; machine files do.
//!
//! ```text
//! spec      = [ N "n" ] [ N "l" ] [ N "c" ] [ N "t" ] [ numbering ]     at least one count
//! numbering = "a"    siblings adjacent (default): node, LLC, core, thread, as QEMU numbers them
//!           | "f"    firmware order, as x86 servers boot: first threads of all cores, then second ones
//! ```
//!
//! Each count is per unit of the level before it (LLCs per node, cores per LLC, threads per core),
//! so the counts multiply; a missing one is 1. The letters come in this order, each at most once.

use thiserror::Error;

use super::{CPUS_MAX, CoreLayout, Layout, LlcLayout, NODES_MAX, NodeLayout, TopologyError};

/// Order of the CPU numbers of a regular machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Numbering {
    /// Threads of a core have neighbouring numbers.
    #[default]
    Adjacent,
    /// All first threads, then all second threads.
    Firmware,
}

/// Sizes that a spec string does not give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Size of a core's first-level data cache.
    pub l1d_bytes: u64,
    /// Size of a core's second-level cache.
    pub l2_bytes: u64,
    /// Size of each last-level cache.
    pub llc_bytes: u64,
    /// Memory of each node.
    pub node_memory_bytes: u64,
}

impl Default for Sizes {
    /// Returns the sizes of a plain server of the 2020s: 32 KiB L1d and 1 MiB L2 per core, 32 MiB
    /// per LLC, 64 GiB per node.
    fn default() -> Self {
        Sizes {
            l1d_bytes: 32 << 10,
            l2_bytes: 1 << 20,
            llc_bytes: 32 << 20,
            node_memory_bytes: 64 << 30,
        }
    }
}

/// A regular machine: all units of a level are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Number of nodes.
    pub nodes: u32,
    /// Number of last-level caches per node.
    pub llcs: u32,
    /// Number of cores per last-level cache.
    pub cores: u32,
    /// Number of threads per core.
    pub threads: u32,
    /// Order of the CPU numbers.
    pub numbering: Numbering,
}

/// A mistake in a spec string. The input is at fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SpecError {
    /// The string does not have the form of a spec.
    #[error(
        "\"{spec}\" is no machine spec: {why} (the form is 2n1l4c2t: nodes, LLCs a node, cores an LLC, threads a core)"
    )]
    Syntax {
        spec: String,
        /// Description of the mistake.
        why: String,
    },
    /// The counts describe an impossible machine.
    #[error("machine spec \"{spec}\": {why}")]
    Impossible {
        spec: String,
        /// The limit that is exceeded.
        why: TopologyError,
    },
}

impl Spec {
    /// Parses a spec string.
    ///
    /// ```
    /// use scxlab_machine::topology::spec::Spec;
    /// assert_eq!(Spec::parse("2n4c2t").unwrap().nr_cpus(), 16);
    /// assert_eq!(Spec::parse("2n4c2t"), Spec::parse("2n1l4c2ta"));
    /// assert!(Spec::parse("4c2n").is_err());
    /// ```
    pub fn parse(text: &str) -> Result<Spec, SpecError> {
        let counts =
            parse_counts(text).map_err(|why| SpecError::Syntax { spec: text.to_owned(), why })?;
        let ([nodes, llcs, cores, threads], numbering) = counts;
        let spec = Spec { nodes, llcs, cores, threads, numbering };
        match spec.check() {
            Ok(()) => Ok(spec),
            Err(why) => Err(SpecError::Impossible { spec: text.to_owned(), why }),
        }
    }

    /// Returns the number of CPUs, the product of the counts.
    pub fn nr_cpus(&self) -> u64 {
        // Four factors of 32 bits can exceed 64 bits. The saturated product is too large all the
        // same.
        [self.llcs, self.cores, self.threads]
            .iter()
            .fold(u64::from(self.nodes), |product, &n| product.saturating_mul(u64::from(n)))
    }

    /// Returns the machine's lists of CPUs, with the same sizes for every unit.
    pub fn layout(&self, sizes: Sizes) -> Result<Layout, TopologyError> {
        self.check()?;
        let (nodes, llcs, cores, threads) = (self.nodes, self.llcs, self.cores, self.threads);
        let cpus_of =
            |first: u32, nr: u32| (first..first + nr).flat_map(|core| self.cpus_of_core(core));
        Ok(Layout {
            cores: (0..nodes * llcs * cores)
                .map(|core| CoreLayout {
                    cpus: self.cpus_of_core(core).take(threads as usize).collect(),
                    l1d_bytes: sizes.l1d_bytes,
                    l2_bytes: sizes.l2_bytes,
                })
                .collect(),
            llcs: (0..nodes * llcs)
                .map(|llc| LlcLayout {
                    cpus: cpus_of(llc * cores, cores).collect(),
                    size_bytes: sizes.llc_bytes,
                })
                .collect(),
            nodes: (0..nodes)
                .map(|node| NodeLayout {
                    cpus: cpus_of(node * llcs * cores, llcs * cores).collect(),
                    memory_bytes: sizes.node_memory_bytes,
                    distances: Vec::new(),
                })
                .collect(),
            capacities: Vec::new(),
        })
    }

    /// Returns the CPU numbers of the machine's core number `core`.
    fn cpus_of_core(&self, core: u32) -> impl Iterator<Item = u32> + use<> {
        let Spec { threads, numbering, .. } = *self;
        let nr_cores = self.nodes * self.llcs * self.cores;
        (0..threads).map(move |thread| match numbering {
            Numbering::Adjacent => core * threads + thread,
            Numbering::Firmware => thread * nr_cores + core,
        })
    }

    fn check(&self) -> Result<(), TopologyError> {
        match self.nr_cpus() {
            0 => Err(TopologyError::NoCpus),
            nr if nr > CPUS_MAX as u64 => Err(TopologyError::TooManyCpus { nr }),
            _ if self.nodes as usize > NODES_MAX => {
                Err(TopologyError::TooManyNodes { nr: u64::from(self.nodes) })
            }
            _ => Ok(()),
        }
    }
}

impl std::fmt::Display for Spec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}n{}l{}c{}t", self.nodes, self.llcs, self.cores, self.threads)?;
        match self.numbering {
            Numbering::Adjacent => Ok(()),
            Numbering::Firmware => f.write_str("f"),
        }
    }
}

/// Whether `text` looks like an attempt at a spec string rather than a name.
pub fn looks_like_spec(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_digit() || "nlctaf".contains(c))
}

/// Returns the four counts in order and the numbering, or a description of the mistake.
fn parse_counts(text: &str) -> Result<([u32; 4], Numbering), String> {
    const UNITS: [char; 4] = ['n', 'l', 'c', 't'];
    let mut counts = [1; 4];
    let mut next_unit = 0;
    let mut rest = text;
    while rest.starts_with(|c: char| c.is_ascii_digit()) {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, after) = rest.split_at(digits);
        let letter = after.chars().next().ok_or(format!("no unit after {number}"))?;
        let unit =
            UNITS.iter().position(|&u| u == letter).ok_or(format!("unknown unit '{letter}'"))?;
        if unit < next_unit {
            return Err(format!("'{letter}' is repeated or out of order"));
        }
        counts[unit] = number.parse().map_err(|_| format!("{number} is too large a count"))?;
        if counts[unit] == 0 {
            return Err(format!("0{letter} leaves no CPU"));
        }
        next_unit = unit + 1;
        rest = &after[1..];
    }
    match rest {
        _ if next_unit == 0 => Err("it must start with a count".to_owned()),
        "" | "a" => Ok((counts, Numbering::Adjacent)),
        "f" => Ok((counts, Numbering::Firmware)),
        other => Err(format!("unexpected \"{other}\"")),
    }
}
