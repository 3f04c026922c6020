// SPDX-License-Identifier: GPL-2.0-only
//! The ids that every layer uses: small integers, each with a type of its own.
//!
//! Owns: only the types. A `TaskId` is a slot in the simulated kernel's task table and may be
//! reused after the task is gone; a pid is not reused within a run.

/// Virtual time, or a duration, in nanoseconds.
pub type Nanos = u64;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
        pub struct $name(pub u32);

        impl $name {
            /// Returns the id as an index into a dense table.
            #[inline]
            pub const fn idx(self) -> usize {
                self.0 as usize
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(/// A logical CPU, numbered as the simulated kernel numbers them.
    CpuId);
id!(/// A physical core: the CPUs that share its pipelines are SMT siblings.
    CoreId);
id!(/// A last-level cache and the cores that share it.
    LlcId);
id!(/// A NUMA node.
    NodeId);
id!(/// A task (thread).
    TaskId);
id!(/// A cgroup v2 directory; 0 is the root.
    CgroupId);
