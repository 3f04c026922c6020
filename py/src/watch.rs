// SPDX-License-Identifier: GPL-2.0-only
//! Long work beside the interpreter: without its lock, with progress, and ended by Ctrl-C.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;
use scxlab_lab::session::STACK_BYTES;

use crate::error::Failure;

/// Time between looks at signals and calls of the progress function.
const REFRESH: Duration = Duration::from_millis(100);

/// Tells the work whether it must end.
pub type Interrupt<'a> = dyn Fn() -> Option<String> + Sync + 'a;

/// Does `work` in a thread of its own, without the interpreter's lock. The calling thread
/// meanwhile handles signals, and calls `progress` with what `state` returns: the finished part
/// and the whole. An exception in either ends the work, and is raised when the work has ended.
pub fn watched<T: Send>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    state: &(dyn Fn() -> (usize, usize) + Sync),
    work: impl FnOnce(&Interrupt<'_>) -> Result<T, Failure> + Send,
) -> PyResult<T> {
    let cancelled = AtomicBool::new(false);
    let tell = |py: Python<'_>| match &progress {
        Some(progress) => progress.call1(py, state()).map(drop),
        None => Ok(()),
    };
    let (result, raised) = py.detach(|| {
        thread::scope(|scope| {
            let (done, is_done) = channel::<()>();
            let cancelled = &cancelled;
            let work = move || {
                let _done = done;
                work(&|| cancelled.load(Ordering::Relaxed).then(|| "cancelled".to_owned()))
            };
            let worker = thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, work);
            let worker = match worker {
                Ok(worker) => worker,
                Err(error) => return (Err(Failure::Host(error.to_string())), None),
            };
            let mut raised = None;
            while let Err(RecvTimeoutError::Timeout) = is_done.recv_timeout(REFRESH) {
                let looked = Python::attach(|py| py.check_signals().and_then(|()| tell(py)));
                if let Err(error) = looked {
                    cancelled.store(true, Ordering::Relaxed);
                    raised.get_or_insert(error);
                }
            }
            let result = worker.join();
            (result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)), raised)
        })
    });
    match raised {
        Some(error) => Err(error),
        None => {
            let result = result?;
            tell(py)?;
            Ok(result)
        }
    }
}
