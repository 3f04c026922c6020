// SPDX-License-Identifier: GPL-2.0-only
//! The native half of the Python module `scxlab`; `python/scxlab` is the other half, and its
//! `_scxlab.pyi` has the types.
//!
//! Owns: the conversion of arguments and results. Does not: decide anything about a run.
//! Start at: `session.rs` (runs), `sweep.rs` (sweeps), `arrow.rs` (tables).

mod arrow;
mod error;
mod inputs;
mod lookup;
mod search;
mod session;
mod sweep;
mod watch;

use pyo3::prelude::*;

#[pymodule]
fn _scxlab(module: &Bound<'_, PyModule>) -> PyResult<()> {
    error::register(module)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("OUTCOME_COLUMNS", scxlab_sweep::cell::OUTCOME_COLUMNS.to_vec())?;
    module.add_class::<arrow::Table>()?;
    module.add_class::<session::Session>()?;
    module.add_class::<sweep::Plan>()?;
    module.add_class::<sweep::Store>()?;
    module.add_function(wrap_pyfunction!(session::run, module)?)?;
    module.add_function(wrap_pyfunction!(search::advise, module)?)?;
    module.add_function(wrap_pyfunction!(search::reproduce, module)?)?;
    module.add_function(wrap_pyfunction!(lookup::inspect, module)?)?;
    module.add_function(wrap_pyfunction!(lookup::machine, module)?)?;
    module.add_function(wrap_pyfunction!(lookup::workload, module)?)?;
    module.add_function(wrap_pyfunction!(lookup::shipped, module)?)?;
    module.add_function(wrap_pyfunction!(lookup::mean_interval, module)?)?;
    module.add_function(wrap_pyfunction!(sweep::abi, module)?)
}
