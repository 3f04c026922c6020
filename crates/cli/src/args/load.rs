// SPDX-License-Identifier: GPL-2.0-only
//! The options about a recording that several commands share.

use clap::Args;
use scxlab_workload::{WorkloadArg, parse_workload_arg};

use crate::exit::CliError;

/// How much of a recording's load there is. The options are the parameters of the same names behind
/// the recording, for which the page docs/concepts/recordings.md says what they do.
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// Multiply the load from outside of a recording by this factor, such as 2x or 0.5: other
    /// numbers of clients and arrivals
    #[arg(long, value_name = "FACTOR", allow_hyphen_values = true)]
    pub scale: Option<String>,

    /// Go on for the length of this many recordings
    #[arg(long, value_name = "TIMES", allow_hyphen_values = true)]
    pub repeat: Option<String>,
}

impl LoadArgs {
    /// Returns the workload with these options as its parameters. A command has none.
    pub fn of(&self, workload: &str) -> Result<String, CliError> {
        let mut text = workload.to_owned();
        for (key, value) in [("scale", &self.scale), ("repeat", &self.repeat)] {
            let Some(value) = value else { continue };
            if matches!(parse_workload_arg(workload), Ok(WorkloadArg::Command(_))) {
                return Err(CliError::NoRecording { option: key });
            }
            text.push_str(&format!(",{key}={value}"));
        }
        Ok(text)
    }
}
