// SPDX-License-Identifier: GPL-2.0-only
//! Automatic NUMA balancing of the running kernel, as a setting.

use std::fs;

use scxlab_machine::Machine;

use crate::LiveError;
use crate::job::LiveTarget;

const SYSCTL: &str = "/proc/sys/kernel/numa_balancing";

/// Makes sure that balancing is on or off: sets it in a virtual machine, and refuses a host where
/// it is set otherwise. With one node the kernel has nothing to balance.
pub fn require(target: LiveTarget, machine: &Machine, on: bool) -> Result<(), LiveError> {
    if machine.topology.nodes().len() < 2 {
        return Ok(());
    }
    let wanted = if on { "1" } else { "0" };
    if target == LiveTarget::Vm {
        // The read below tells whether this worked.
        let _ = fs::write(SYSCTL, wanted);
    }
    let found = fs::read_to_string(SYSCTL);
    match found.as_deref().map(str::trim) {
        Ok(found) if found == wanted => Ok(()),
        // Without the setting, the kernel does not balance.
        Err(_) if !on => Ok(()),
        Ok(found) => Err(LiveError::NumaBalancing { wanted: wanted.into(), found: found.into() }),
        Err(why) => Err(LiveError::NoNumaBalancing { why: why.to_string() }),
    }
}
