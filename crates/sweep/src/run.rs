// SPDX-License-Identifier: GPL-2.0-only
//! Execution of a sweep on the threads of this process.
//!
//! Owns: which cells are missing, the order in which threads take them, when results are stored.
//! Does not: matter for results, which are the same for any number of threads and any order.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use scxlab_lab::session::{Interrupt, STACK_BYTES};

use crate::SweepError;
use crate::cell::{self, CellResult};
use crate::plan::{Cell, Plan};
use crate::store::Store;

/// Time after which a thread stores the cells that it has finished. Writing a file takes some
/// milliseconds, so this keeps the cost of storing below 2 %. A kill loses this much work of each
/// thread, and the cell that it was running.
const STORE_AFTER: Duration = Duration::from_secs(1);

/// Progress of a sweep, to be read from another thread.
#[derive(Debug)]
pub struct Progress {
    cells: usize,
    done: AtomicUsize,
    /// Cells of this process that do not count.
    failed: AtomicUsize,
}

impl Progress {
    /// Returns the progress of a sweep of which `done` cells are in the store.
    pub fn new(cells: usize, done: usize) -> Progress {
        Progress { cells, done: AtomicUsize::new(done), failed: AtomicUsize::new(0) }
    }

    pub fn cells(&self) -> usize {
        self.cells
    }

    pub fn done(&self) -> usize {
        self.done.load(Ordering::Relaxed)
    }

    pub fn failed(&self) -> usize {
        self.failed.load(Ordering::Relaxed)
    }

    fn finish(&self, result: &CellResult) {
        self.done.fetch_add(1, Ordering::Relaxed);
        self.failed.fetch_add(usize::from(!result.outcome.counts), Ordering::Relaxed);
    }
}

/// Returns the cells that the store lacks, each key once, in the order of the plan.
pub fn missing(plan: &Plan, store: &Store) -> Result<Vec<Cell>, SweepError> {
    let missing = missing_indices(plan, store)?;
    Ok(missing.into_iter().map(|at| plan.cells[at]).collect())
}

/// Returns the indices of these cells in the plan.
pub fn missing_indices(plan: &Plan, store: &Store) -> Result<Vec<usize>, SweepError> {
    let mut known: HashSet<_> = store.keys()?;
    let mut is_new = |at: &usize| known.insert(plan.key(plan.cells[*at]));
    Ok((0..plan.cells.len()).filter(|at| is_new(at)).collect())
}

/// Runs cells on `threads` threads (0: one per CPU) and stores their results. `interrupt` ends the
/// work. Cells that are finished by then are stored in any case.
pub fn run(
    plan: &Plan,
    store: &Store,
    cells: &[Cell],
    threads: usize,
    progress: &Progress,
    interrupt: &Interrupt<'_>,
) -> Result<(), SweepError> {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .stack_size(STACK_BYTES)
        .build()
        .map_err(|e| SweepError::Threads { threads, why: e.to_string() })?;
    let work = Work {
        plan,
        store,
        cells,
        progress,
        interrupt,
        next: AtomicUsize::new(0),
        is_over: AtomicBool::new(false),
        error: Mutex::new(None),
    };
    pool.broadcast(|_| work.carry_out());
    match work.error.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => store.merge(),
    }
}

/// Runs cells one after the other, for a worker that has no store.
pub fn batch(
    plan: &Plan,
    cells: &[Cell],
    interrupt: &Interrupt<'_>,
) -> Result<Vec<CellResult>, SweepError> {
    cells.iter().map(|cell| cell::run(plan, *cell, interrupt)).collect()
}

/// The cells that the threads share.
struct Work<'a> {
    plan: &'a Plan,
    store: &'a Store,
    cells: &'a [Cell],
    progress: &'a Progress,
    interrupt: &'a Interrupt<'a>,
    /// Index of the next cell that no thread has taken.
    next: AtomicUsize,
    is_over: AtomicBool,
    /// The first error of a thread, which ends the others.
    error: Mutex<Option<SweepError>>,
}

impl Work<'_> {
    /// Takes cells until there are none, or another thread has failed.
    fn carry_out(&self) {
        let mut finished = Vec::new();
        let result = self.take_cells(&mut finished);
        // Store the finished cells first, because the error may be an interruption.
        let stored = self.store.add(&finished);
        if let Err(error) = result.and(stored) {
            let mut first = self.error.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert(error);
            // Only now, so that the error is not that of a thread which this one ends.
            self.is_over.store(true, Ordering::Relaxed);
        }
    }

    fn take_cells(&self, finished: &mut Vec<CellResult>) -> Result<(), SweepError> {
        let mut last = Instant::now();
        let stop = || {
            let other = || "another cell could not be stored or run".to_owned();
            self.is_over.load(Ordering::Relaxed).then(other).or_else(self.interrupt)
        };
        while let Some(cell) = self.cells.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            if let Some(why) = stop() {
                return Err(SweepError::Interrupted { why });
            }
            let result = cell::run(self.plan, *cell, &stop)?;
            self.progress.finish(&result);
            finished.push(result);
            if last.elapsed() >= STORE_AFTER {
                self.store.add(finished)?;
                finished.clear();
                last = Instant::now();
            }
        }
        Ok(())
    }
}
