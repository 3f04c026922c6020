// SPDX-License-Identifier: GPL-2.0-only
//! Recordings as workloads: the history of each task in a trace, and the op program that does the
//! same under any scheduler.
//!
//! Owns: the split of a task's time into work, system calls and waits (`gather`), and the meaning
//! of each wait (`infer`). Does not: read files (`scxlab_trace` imports them), or run a program.
//! Start at [`Recorder`], then [`infer`].

#![cfg_attr(not(test), deny(clippy::float_arithmetic, clippy::iter_over_hash_type))]

mod arrivals;
mod figures;
mod gather;
pub mod history;
mod infer;
mod overhead;
mod repeat;
mod scope;
pub mod understanding;

pub use arrivals::{ARRIVALS, has_arrivals, vary_arrivals};
pub use figures::Figures;
pub use gather::{MAX_STEPS, Recorder};
pub use history::History;
pub use infer::{Futex, InferError, Mutexes, Options, Replay, Scale, Wait, infer, role_name};
pub use repeat::repeat;
pub use scope::{Scope, name_matches};
pub use understanding::{Understanding, understand};
