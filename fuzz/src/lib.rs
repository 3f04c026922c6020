// SPDX-License-Identifier: GPL-2.0-only
//! The checks of the fuzz targets, as plain functions of bytes: each panics when a promise is
//! broken.
//!
//! Owns: the decoding of bytes into inputs, and the promises. Does not: generate inputs (libFuzzer
//! does).
//! Start at: `program.rs`; `docs/internals/fuzzing.md` says how to run them.

pub mod engines;
pub mod libbpf;
mod null_sys;
pub mod object;
pub mod program;
pub mod rtapp;
pub mod schedulers;
pub mod texts;
pub mod traces;
