// SPDX-License-Identifier: GPL-2.0-only
//! Sweeps: plans, batches of cells, stores.
//!
//! Owns: what a worker needs to run cells (`Plan::bundle`), stores behind functions of Python.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use pyo3::exceptions::PyFileNotFoundError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use scxlab_sweep::cell;
use scxlab_sweep::file::Sweep;
use scxlab_sweep::plan::{Cell, Plan as SweepPlan};
use scxlab_sweep::run;
use scxlab_sweep::store::{Abi, Place, Store as SweepStore};
use scxlab_sweep::table;

use crate::arrow::Table;
use crate::error::Failure;
use crate::inputs;
use crate::watch::watched;

/// Returns all that must be equal in programs that work on one sweep, as text.
#[pyfunction]
pub fn abi() -> String {
    Abi::this().to_string()
}

/// Files by path, and sysfs by path.
type Bundle = (BTreeMap<String, Vec<u8>>, BTreeMap<String, String>);

/// A sweep with all its inputs.
#[pyclass(frozen, module = "scxlab._scxlab")]
pub struct Plan {
    plan: SweepPlan,
    bundle: Bundle,
}

#[pymethods]
impl Plan {
    /// Resolves a sweep. `files` come before files of this host. `sysfs` is that of another host,
    /// with which all files must be in `files`.
    #[new]
    #[pyo3(signature = (name, text, files, sysfs=None))]
    fn new(
        py: Python<'_>,
        name: &str,
        text: &str,
        files: BTreeMap<String, Vec<u8>>,
        sysfs: Option<BTreeMap<String, String>>,
    ) -> PyResult<Plan> {
        let plan = py.detach(|| {
            let inputs = match sysfs {
                Some(sysfs) => scxlab_results::inputs::Inputs::kept(BTreeMap::new(), sysfs),
                None => inputs::inputs(),
            };
            files.iter().for_each(|(path, bytes)| inputs.add(path, bytes));
            let plan = SweepPlan::new(Sweep::parse(name, text)?, &inputs)?;
            let files = inputs.files().into_iter().map(|(path, bytes)| (path, bytes.into()));
            Ok::<_, Failure>(Plan { plan, bundle: (files.collect(), inputs.sysfs()) })
        });
        Ok(plan?)
    }

    /// Number of cells.
    fn __len__(&self) -> usize {
        self.plan.cells.len()
    }

    /// Returns the files and the sysfs that the plan was made from, with which another host makes
    /// an equal one.
    fn bundle(&self) -> Bundle {
        self.bundle.clone()
    }

    /// Names a cell by the options of `scxlab run`.
    fn describe(&self, cell: usize) -> PyResult<String> {
        Ok(self.plan.describe(self.cells(&[cell])?[0]))
    }

    /// Runs cells on this thread, and returns them as a file for a store.
    fn run<'py>(&self, py: Python<'py>, cells: Vec<usize>) -> PyResult<Bound<'py, PyBytes>> {
        let cells = self.cells(&cells)?;
        let bytes = watched(py, None, &|| (0, 0), |interrupt| {
            Ok(cell::file(&run::batch(&self.plan, &cells, interrupt)?))
        })?;
        Ok(PyBytes::new(py, &bytes))
    }
}

impl Plan {
    fn cells(&self, at: &[usize]) -> Result<Vec<Cell>, Failure> {
        let cell = |at: &usize| {
            let found = self.plan.cells.get(*at).copied();
            found.ok_or_else(|| Failure::Input(format!("the sweep has no cell {at}")))
        };
        at.iter().map(cell).collect()
    }
}

/// A store of finished cells.
#[pyclass(frozen, module = "scxlab._scxlab")]
pub struct Store(SweepStore);

#[pymethods]
impl Store {
    /// Opens a store in a folder of this host.
    #[staticmethod]
    fn local(py: Python<'_>, folder: PathBuf) -> PyResult<Store> {
        Ok(Store(py.detach(|| SweepStore::open(&folder)).map_err(Failure::from)?))
    }

    /// Opens a store behind an object of Python that has the methods of `Place`.
    #[staticmethod]
    fn remote(py: Python<'_>, url: String, place: Py<PyAny>) -> PyResult<Store> {
        let place = Box::new(Remote { url, place });
        Ok(Store(py.detach(|| SweepStore::at(place)).map_err(Failure::from)?))
    }

    /// Returns the indices of the plan's cells that are not in the store, each key once.
    fn missing(&self, py: Python<'_>, plan: &Plan) -> PyResult<Vec<usize>> {
        let missing = py.detach(|| run::missing_indices(&plan.plan, &self.0));
        Ok(missing.map_err(Failure::from)?)
    }

    /// Adds files of finished cells.
    fn add(&self, py: Python<'_>, files: Vec<Vec<u8>>) -> PyResult<()> {
        Ok(py.detach(|| self.0.add_files(&files)).map_err(Failure::from)?)
    }

    /// Runs cells on `jobs` threads of this process, and adds them.
    #[pyo3(signature = (plan, cells, jobs, progress))]
    fn run(
        &self,
        py: Python<'_>,
        plan: &Plan,
        cells: Vec<usize>,
        jobs: usize,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let cells = plan.cells(&cells)?;
        let all = plan.plan.cells.len();
        let state = run::Progress::new(all, all - cells.len());
        watched(py, progress, &|| (state.done(), state.cells()), |interrupt| {
            Ok(run::run(&plan.plan, &self.0, &cells, jobs, &state, interrupt)?)
        })
    }

    /// Merges small files, if there are many.
    fn merge(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.0.merge()).map_err(Failure::from)?)
    }

    /// Writes results.parquet, and returns the table and the summary as text.
    fn publish(&self, py: Python<'_>, plan: &Plan) -> PyResult<(Table, String)> {
        let published = py.detach(|| {
            let results = table::results(&plan.plan, &self.0)?;
            self.0.publish(&results.table)?;
            let summary = results.summary().to_string();
            Ok::<_, Failure>((Table::new(results.table), summary))
        });
        Ok(published?)
    }
}

/// A place behind an object of Python.
struct Remote {
    url: String,
    place: Py<PyAny>,
}

impl Remote {
    fn call<T>(&self, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> io::Result<T> {
        Python::attach(|py| {
            call(self.place.bind(py)).map_err(|error| {
                let kind = match error.is_instance_of::<PyFileNotFoundError>(py) {
                    true => io::ErrorKind::NotFound,
                    false => io::ErrorKind::Other,
                };
                io::Error::new(kind, error.value(py).to_string())
            })
        })
    }
}

impl Place for Remote {
    fn path(&self, name: &str) -> PathBuf {
        Path::new(&self.url).join(name)
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.call(|place| place.call_method1("list", (folder,))?.extract())
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        self.call(|place| place.call_method1("read", (name,))?.extract())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.call(|place| {
            place.call_method1("write", (name, PyBytes::new(place.py(), bytes))).map(drop)
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.call(|place| place.call_method1("remove", (name,)).map(drop))
    }
}
