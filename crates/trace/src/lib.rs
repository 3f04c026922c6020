// SPDX-License-Identifier: GPL-2.0-only
//! Traces: one event schema for simulated, VM and host runs, a hash over all events, and Perfetto
//! files, which are also read.
//!
//! Owns: the event schema, the names of the ids in events, the trace hash, the exporters (Perfetto
//! files, timelines as text), the importers of trace files.
//! Does not: decide when something happens, open files (a sink writes to any `io::Write`, an
//! importer reads any `io::Read`).
//! Start at [`Tracer`]; for the way back at [`import::import`].

#![cfg_attr(not(test), deny(clippy::float_arithmetic, clippy::iter_over_hash_type))]

pub mod call;
pub mod event;
pub mod hash;
pub mod import;
pub mod names;
pub mod perf_sched;
pub mod perfetto;
mod sink;
pub mod timeline;
mod tracer;

pub use call::{Call, ChannelKind};
pub use event::{Event, EventKind, PrevState};
pub use names::{CgroupAttributes, Names, TaskAttributes, TaskName, TaskPolicy};
pub use perf_sched::{PerfLayout, PerfSchedSink};
pub use perfetto::PerfettoSink;
pub use sink::{Sink, Tee, VecSink};
pub use timeline::TimelineSink;
pub use tracer::Tracer;
