// SPDX-License-Identifier: GPL-2.0-only
//! The key of a simulated run: all that decides its result, except the seed and the simulator.
//!
//! Owns: which settings the key has. Stores of finished runs compare keys, so a setting that can
//! change a result must be part of it. The engine is not, because all engines give the same
//! results.

use scxlab_machine::hash::HashWriter;

use super::SimSpec;

/// Hash of the sources of everything that decides a simulated run, except machines, workloads and
/// schedulers, which the key of a run covers.
pub const SIMULATOR: &str = env!("SCXLAB_SIMULATOR");

impl SimSpec<'_> {
    /// Returns all that decides the run, except the seed and the simulator, as text.
    pub fn key(&self) -> String {
        let scheduler = self.scheduler.object.as_ref().map(|object| {
            let recipe = object.recipe.as_ref().map(|r| (r.hash, &r.applied.params));
            (object.hash, &object.table, &object.knobs, recipe)
        });
        let mut program = HashWriter::default();
        serde_json::to_writer(&mut program, self.workload).expect("a program is plain data");
        let mut of_scheduler = HashWriter::default();
        let tuning = self.scheduler.input.arg.tuning();
        let tuning: Vec<_> = tuning.iter().map(|(tunable, value)| (tunable.name, value)).collect();
        let text = if tuning.is_empty() { String::new() } else { format!("{tuning:?}") };
        let written =
            std::io::Write::write_fmt(&mut of_scheduler, format_args!("{scheduler:?}{text}"));
        written.expect("a hash takes all");
        let key = serde_json::json!({
            "machine": hex(self.machine.fingerprint()),
            "workload": hex(program.finish()),
            "scheduler": hex(of_scheduler.finish()),
            "duration_ns": self.duration,
            "cap_ns": self.cap,
            "max_memory": self.max_memory,
            "numa_balancing": self.numa_balancing.name(),
            "attach_after_ns": self.attach_after,
            "start_offset_max_ns": self.perturb.start_offset_max,
            "compute_noise_permille": self.perturb.compute_noise_permille,
        });
        key.to_string()
    }
}

fn hex(hash: u64) -> String {
    format!("{hash:016x}")
}
