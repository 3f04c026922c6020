// SPDX-License-Identifier: GPL-2.0-only
//! The exceptions of the module. No other file decides which exception a failure becomes.
//!
//! Owns: the classes, which say whose fault it is. The messages are those of the command.

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyKeyboardInterrupt};
use pyo3::prelude::*;
use scxlab_lab::advise::AdviseError;
use scxlab_lab::advise::candidate::CandidateError;
use scxlab_lab::advise::goal::GoalError;
use scxlab_lab::input::InputError as LabInputError;
use scxlab_lab::prepare::PrepareError;
use scxlab_lab::reproduce::ReproduceError;
use scxlab_lab::session::SessionError;
use scxlab_lab::sim::SimError;
use scxlab_loader::link::LinkError;
use scxlab_loader::link::error::LinkErrorKind;
use scxlab_loader::object::ObjectError;
use scxlab_machine::MachineError;
use scxlab_sweep::SweepError;
use scxlab_workload::WorkloadError;

create_exception!(scxlab, Error, PyException, "Base of all exceptions of scxlab.");
create_exception!(
    scxlab,
    InputError,
    Error,
    "An argument or a file is wrong, or does not fit the others."
);
create_exception!(
    scxlab,
    UnmodelledError,
    Error,
    "The input needs a feature that the simulator does not model."
);
create_exception!(scxlab, HostError, Error, "This host lacks something, such as memory.");
create_exception!(
    scxlab,
    StoreError,
    Error,
    "The store of a sweep cannot be written, is in use, or is of another version."
);

/// Adds the classes to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("Error", py.get_type::<Error>())?;
    module.add("InputError", py.get_type::<InputError>())?;
    module.add("UnmodelledError", py.get_type::<UnmodelledError>())?;
    module.add("HostError", py.get_type::<HostError>())?;
    module.add("StoreError", py.get_type::<StoreError>())
}

/// A failure, by whose fault it is.
pub enum Failure {
    Input(String),
    Unmodelled(String),
    Host(String),
    Store(String),
    Interrupted(String),
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        match failure {
            Failure::Input(text) => InputError::new_err(text),
            Failure::Unmodelled(text) => UnmodelledError::new_err(text),
            Failure::Host(text) => HostError::new_err(text),
            Failure::Store(text) => StoreError::new_err(text),
            Failure::Interrupted(text) => PyKeyboardInterrupt::new_err(text),
        }
    }
}

/// Declares errors that are always the input's fault.
macro_rules! input_errors {
    ($($error:ty),+ $(,)?) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Failure {
                Failure::Input(error.to_string())
            }
        })+
    };
}

input_errors!(LabInputError, MachineError, WorkloadError, GoalError, ObjectError, ReproduceError);

impl From<PrepareError> for Failure {
    fn from(error: PrepareError) -> Failure {
        let text = error.to_string();
        match error {
            PrepareError::Recipe(e) if e.unmodelled().is_some() => Failure::Unmodelled(text),
            _ => Failure::Input(text),
        }
    }
}

impl From<SimError> for Failure {
    fn from(error: SimError) -> Failure {
        let text = error.to_string();
        match error {
            SimError::Unmodelled { .. } => Failure::Unmodelled(text),
            SimError::Link(LinkError { what: LinkErrorKind::MissingExterns(_), .. }) => {
                Failure::Unmodelled(text)
            }
            SimError::Memory(_) => Failure::Host(text),
            _ => Failure::Input(text),
        }
    }
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Failure {
        let text = error.to_string();
        match error {
            SessionError::Sim(e) => e.into(),
            SessionError::Threads { .. } | SessionError::Trace { .. } => Failure::Host(text),
            SessionError::Interrupted { .. } => Failure::Interrupted(text),
            SessionError::Length { .. }
            | SessionError::Command { .. }
            | SessionError::Seeds { .. } => Failure::Input(text),
        }
    }
}

impl From<AdviseError> for Failure {
    fn from(error: AdviseError) -> Failure {
        match error {
            AdviseError::Session(e) => e.into(),
            AdviseError::Candidate(CandidateError::Prepare(e)) => e.into(),
            _ => Failure::Input(error.to_string()),
        }
    }
}

impl From<CandidateError> for Failure {
    fn from(error: CandidateError) -> Failure {
        match error {
            CandidateError::Prepare(e) => e.into(),
            _ => Failure::Input(error.to_string()),
        }
    }
}

impl From<SweepError> for Failure {
    fn from(error: SweepError) -> Failure {
        let text = error.to_string();
        match error {
            SweepError::File { .. }
            | SweepError::Input { .. }
            | SweepError::Prepare { .. }
            | SweepError::Session { .. } => Failure::Input(text),
            SweepError::Read { .. }
            | SweepError::Write { .. }
            | SweepError::Busy { .. }
            | SweepError::NoStore { .. }
            | SweepError::Damaged { .. }
            | SweepError::OtherVersion { .. } => Failure::Store(text),
            SweepError::Threads { .. } | SweepError::Host { .. } => Failure::Host(text),
            SweepError::Interrupted { .. } => Failure::Interrupted(text),
        }
    }
}
