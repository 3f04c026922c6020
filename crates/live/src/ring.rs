// SPDX-License-Identifier: GPL-2.0-only
//! Reader for BPF ring buffers that are read once, at the end.

use libbpf_rs::{MapCore, RingBufferBuilder};

/// Passes each record of the ring to `take`.
pub fn read(ring: &dyn MapCore, mut take: impl FnMut(&[u8])) -> Result<(), libbpf_rs::Error> {
    let mut builder = RingBufferBuilder::new();
    builder.add(ring, |record| {
        take(record);
        0
    })?;
    builder.build()?.consume()
}
