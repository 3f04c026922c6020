// SPDX-License-Identifier: GPL-2.0-only
//! What machines, workloads and objects are, without a run.

use std::sync::Arc;

use pyo3::prelude::*;
use scxlab_lab::input;
use scxlab_lab::scheduler::DEFAULT_CLASS;
use scxlab_lab::sim::kernel_target;
use scxlab_lab::stats::Summary;
use scxlab_loader::inspect::inspect as look;
use scxlab_loader::link::{OpenObject, Target};
use scxlab_loader::object::Object;
use scxlab_machine::Machine;
use scxlab_workload::program::to_toml;
use serde_json::json;

use crate::error::Failure;
use crate::inputs::{self, WORKLOADS};

/// The machine for the simulated kernel. An object's needs do not depend on it.
const MACHINE: &str = "1n1c1t";

/// Describes a machine, as JSON.
#[pyfunction]
pub fn machine(text: &str) -> PyResult<String> {
    let machine = inputs::machine(text, &inputs::inputs())?;
    let about = json!({
        "name": machine.name,
        "description": machine.description,
        "nr_cpus": machine.topology.nr_cpus(),
        "fingerprint": format!("{:016x}", machine.fingerprint()),
        "canonical": machine.canonical(),
    });
    Ok(about.to_string())
}

/// Describes a workload, as JSON.
#[pyfunction]
pub fn workload(text: &str) -> PyResult<String> {
    let program = inputs::program(text, &inputs::inputs())?;
    let about = json!({
        "name": program.name,
        "unit": program.unit,
        "duration_ns": program.duration.map(|duration| duration.0),
        "toml": to_toml(&program),
    });
    Ok(about.to_string())
}

/// Describes what a scheduler's object needs and its knobs, as JSON.
#[pyfunction]
pub fn inspect(py: Python<'_>, object: String) -> PyResult<String> {
    py.detach(|| describe(&object)).map_err(PyErr::from)
}

fn describe(object: &str) -> Result<String, Failure> {
    let (name, bytes) = input::object(object, &inputs::inputs())?;
    let object = Arc::new(Object::parse(&bytes, &name)?);
    let target = kernel_target(&Arc::new(Machine::resolve(MACHINE)?))?;
    let mut open = OpenObject::new(object);
    open.globals.fill_enum_globals("__", target.btf());
    let report = look(&open, &target).map_err(|error| Failure::Input(error.to_string()))?;
    let knobs = report.knobs.iter().map(|knob| {
        json!({
            "name": knob.name,
            "type": knob.ty,
            "default": knob.default,
            "values": knob.values,
            "meaning": knob.meaning,
            "constant": knob.constant,
        })
    });
    let tables = report.tables.iter().map(|table| {
        let callbacks: Vec<&String> = table.callbacks.iter().map(|(name, _)| name).collect();
        json!({ "name": table.name, "type": table.type_name, "callbacks": callbacks })
    });
    let about = json!({
        "name": report.name,
        "licence": report.license,
        "programs": report.programs.iter().map(|program| &program.name).collect::<Vec<_>>(),
        "maps": report.maps.iter().map(|map| &map.name).collect::<Vec<_>>(),
        "ops": tables.collect::<Vec<_>>(),
        "knobs": knobs.collect::<Vec<_>>(),
        "missing": report.missing,
        "missing_if_run": report.poisoned,
    });
    Ok(about.to_string())
}

/// Lists the schedulers, machines, workloads and generators inside the module, as JSON.
#[pyfunction]
pub fn shipped() -> String {
    let mut schedulers = vec![DEFAULT_CLASS];
    schedulers.extend(scxlab_sched::shipped().iter().map(|scheduler| scheduler.name));
    let machines: Vec<&str> = scxlab_machine::presets().iter().map(|(name, _)| *name).collect();
    let generators = scxlab_workload::benchmarks::list();
    let shipped = json!({
        "schedulers": schedulers,
        "machines": machines,
        "workloads": WORKLOADS.iter().map(|(path, _)| path).collect::<Vec<_>>(),
        "generators": generators.iter().map(|generator| generator.name).collect::<Vec<_>>(),
    });
    shipped.to_string()
}

/// Returns the mean of some values, and the limits of its 95 % interval, if there is one.
#[pyfunction]
pub fn mean_interval(values: Vec<f64>) -> (Option<f64>, Option<f64>, Option<f64>) {
    let Summary { mean, low, high, .. } = Summary::of(&values);
    (mean, low, high)
}
