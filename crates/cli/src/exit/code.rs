// SPDX-License-Identifier: GPL-2.0-only
//! The exit codes and their meanings; help, man pages and `docs/reference/flags.md` list them.

use std::process::ExitCode;

use serde::{Deserialize, Serialize};

/// Declares the exit codes once.
macro_rules! codes {
    ($($code:ident = $number:literal, $meaning:literal;)+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum Code {
            $(#[doc = $meaning] $code = $number,)+
        }

        const MEANINGS: &[(u8, &str)] = &[$(($number, $meaning)),+];
    };
}

codes! {
    Success = 0, "the command did what it was asked; a scheduler that is ejected is a result";
    Ejected = 1, "with --fail-on-exit: a scheduler was ejected, a run stopped early, or a task \
        never or hardly\never ran; attach: the scheduler exited by itself; conform: the kernels differ; check: \
        something\nregressed; report: not all runs count; run --again: a run differs; sweep: a cell\ncould not be run; any command: cancelled, or stopped by its deadline";
    Usage = 2, "the command line is wrong: a flag, or a name or knob that does not exist";
    Input = 3, "an input file cannot be read, is malformed, or does not fit the machine";
    Unmodelled = 4, "the input needs a feature that the simulator does not model";
    Internal = 5, "a fault of scxlab itself";
    Output = 6, "a result could not be written";
    Target = 7, "this host or the virtual machine lacks something: QEMU, a kernel, sched_ext, root, \
        KVM for a workload with guests, or a scheduler is already loaded";
    Guest = 8, "the virtual machine booted and then failed: it panicked, hung, or gave no reply";
    Undecided = 9, "check: nothing regressed, but the runs are too few to decide every metric";
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> ExitCode {
        ExitCode::from(code as u8)
    }
}

/// Returns the list of exit codes for help texts.
pub fn list() -> String {
    let line =
        |(code, meaning): &(u8, &str)| format!("\n  {code}  {}", meaning.replace('\n', "\n     "));
    format!("Exit codes:{}", MEANINGS.iter().map(line).collect::<String>())
}
