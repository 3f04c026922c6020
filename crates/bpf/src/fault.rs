// SPDX-License-Identifier: GPL-2.0-only
//! Faults: why and where an engine stopped a BPF program. A user gets this report instead of a
//! kernel oops.
//!
//! Owns: fault kinds, the place (function, instruction, source line), registers and backtrace, and
//! their text form.
//! Does not: decide what happens to the scheduler (the simulated kernel ejects it).

use std::fmt;

use crate::vm::{FuncId, InstanceId};

#[cfg(test)]
mod tests;

/// A program's access that guest memory refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{access} of {len} bytes at {addr:#x}: {why}")]
pub struct MemFault {
    pub addr: u64,
    pub len: u32,
    pub access: Access,
    pub why: MemFaultReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Load,
    Store,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Access::Load => "load",
            Access::Store => "store",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemFaultReason {
    /// The address is within the first or last page of the 64-bit space: a NULL (or error) pointer
    /// plus an offset.
    Null,
    /// Not an address of the simulation's memory.
    OutOfRange,
    /// Memory of the simulation, but nothing is allocated there (a guard page, a freed region).
    Unmapped,
    /// Memory that BPF programs may only read.
    ReadOnly,
    /// A field of a kernel structure that programs may not write.
    KernelField,
}

impl fmt::Display for MemFaultReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MemFaultReason::Null => "NULL pointer",
            MemFaultReason::OutOfRange => "not an address of simulated memory",
            MemFaultReason::Unmapped => "nothing is allocated there",
            MemFaultReason::ReadOnly => "memory is read-only",
            MemFaultReason::KernelField => "programs may not write this kernel memory",
        })
    }
}

/// Kind of a fault: an error of the program, a limit, or something that is not modelled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultKind {
    #[error("{0}")]
    Mem(MemFault),
    #[error("instruction limit of {limit} reached")]
    InsnLimit { limit: u64 },
    #[error("call depth over {max} frames")]
    CallDepth { max: u32 },
    #[error("programs called from programs over {max} levels deep")]
    Nesting { max: u32 },
    #[error("call to {addr:#x}, which is not a function of this program")]
    BadCall { addr: u64 },
    #[error("{call}: bad argument: {what}")]
    BadArgument { call: &'static str, what: String },
    #[error("lock at {addr:#x}: {what}")]
    Lock { addr: u64, what: &'static str },
    #[error("out of simulated memory ({what})")]
    OutOfMemory { what: &'static str },
    /// A poisoned instruction: the kernel lacks the field, enumerator or function that the
    /// instruction needs.
    #[error("use of {what}")]
    Poison { what: String },
    #[error("not modelled: {what}")]
    Unmodelled { what: String },
    /// Any other error, such as a host's call of an instance or function that does not exist.
    #[error("{0}")]
    Other(String),
}

/// A fault with its place. The report is boxed, so that results stay two words wide in the
/// interpreter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault(pub Box<FaultReport>);

/// Contents of a fault. While a fault passes through the frames of a program, the engine that runs
/// these frames adds them to the backtrace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultReport {
    pub kind: FaultKind,
    /// Innermost frame first. Empty until the fault has passed through a frame of a program.
    pub backtrace: Vec<BacktraceFrame>,
    /// Registers r0 to r10 of the innermost frame; None for a register that no instruction after
    /// the fault would have read.
    pub regs: [Option<u64>; 11],
}

/// One frame of a backtrace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BacktraceFrame {
    pub instance: InstanceId,
    pub object: String,
    pub func: FuncId,
    pub func_name: String,
    pub section: String,
    /// Index of the instruction slot within its function.
    pub insn: u32,
    /// The instruction as llvm-objdump writes it.
    pub text: String,
    /// `file:line` and the source text, if the object has line information.
    pub source: Option<String>,
}

impl Fault {
    #[cold]
    #[inline(never)]
    pub fn new(kind: FaultKind) -> Fault {
        Fault(Box::new(FaultReport { kind, backtrace: Vec::new(), regs: [None; 11] }))
    }

    /// Returns the fault for a helper, kfunc or feature that the simulation does not model.
    pub fn unmodelled(what: impl Into<String>) -> Fault {
        Fault::new(FaultKind::Unmodelled { what: what.into() })
    }

    pub fn bad_argument(call: &'static str, what: impl Into<String>) -> Fault {
        Fault::new(FaultKind::BadArgument { call, what: what.into() })
    }

    pub fn kind(&self) -> &FaultKind {
        &self.0.kind
    }
}

impl From<MemFault> for Fault {
    fn from(fault: MemFault) -> Fault {
        Fault::new(FaultKind::Mem(fault))
    }
}

impl std::error::Error for Fault {}

/// Prints kind and place in one line. `{:#}` prints the whole report.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.kind)?;
        let Some(place) = self.0.backtrace.first() else {
            return Ok(());
        };
        write!(f, ", in {}", place.brief())?;
        if f.alternate() {
            self.write_report(f)?;
        }
        Ok(())
    }
}

impl Fault {
    fn write_report(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (depth, place) in self.0.backtrace.iter().enumerate() {
            write!(f, "\n  #{depth} {place}")?;
        }
        let known =
            self.0.regs.iter().enumerate().filter_map(|(reg, value)| Some((reg, (*value)?)));
        for (nth, (reg, value)) in known.enumerate() {
            if nth % 4 == 0 {
                write!(f, "\n ")?;
            }
            write!(f, " r{reg}={value:#x}")?;
        }
        Ok(())
    }
}

impl BacktraceFrame {
    /// Returns function, instruction number and source line, as text.
    pub fn brief(&self) -> String {
        let source = self.source.as_ref().map_or(String::new(), |source| format!(" ({source})"));
        format!("{} at instruction {}{source}", self.func_name, self.insn)
    }

    /// Returns function and source line, as text. Meant for a frame at a function's first
    /// instruction.
    pub fn start(&self) -> String {
        let source = self.source.as_ref().map_or(String::new(), |source| format!(" ({source})"));
        format!("{}{source}", self.func_name)
    }
}

impl fmt::Display for BacktraceFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} [{} {}] +{}: {}",
            self.func_name, self.object, self.section, self.insn, self.text
        )?;
        if let Some(source) = &self.source {
            write!(f, "  ; {source}")?;
        }
        Ok(())
    }
}
