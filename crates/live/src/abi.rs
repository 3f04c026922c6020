// SPDX-License-Identifier: GPL-2.0-only
//! The types and constants that the probe and the recorder share with their readers, as `build.rs`
//! makes them from `bpf/live/probe.h` and `bpf/live/record.h`. Every struct is `Pod`: integers
//! without padding.

#[allow(
    missing_docs,
    dead_code,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    clippy::all,
    reason = "generated from C"
)]
mod generated {
    pub mod probe {
        include!(concat!(env!("OUT_DIR"), "/probe_abi.rs"));
    }

    pub mod record {
        include!(concat!(env!("OUT_DIR"), "/record_abi.rs"));
    }
}

pub use generated::probe::*;
pub use generated::record;

/// Reads a `T` from the start of `bytes`; None if there are too few bytes.
pub fn plain<T: bytemuck::AnyBitPattern>(bytes: &[u8]) -> Option<T> {
    bytes.get(..size_of::<T>()).map(bytemuck::pod_read_unaligned)
}
