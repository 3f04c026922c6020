// SPDX-License-Identifier: GPL-2.0-only
//! The tunables that an administrator sets on a running kernel: their names, their files, and the
//! numbers that they take.
//!
//! Owns: the list. Does not: write files (see the crate `live`).
//! Models: `sched_init_debug()`, debug.c v7.3.

use super::{Fair, Features, Params};

/// A tunable of the default class.
#[derive(Debug)]
pub struct Tunable {
    /// Name of its file in debugfs, below `sched/`, or of a scheduler feature.
    pub name: &'static str,
    pub file: &'static str,
    /// Smallest and largest number that it takes.
    pub min: u64,
    pub max: u64,
    field: Field,
}

#[derive(Clone, Copy, Debug)]
enum Field {
    BaseSlice,
    MigrationCost,
    NrMigrate,
    SchedCache,
    Feature(fn(&mut Features) -> &mut bool),
}

const fn number(name: &'static str, min: u64, max: u64, field: Field) -> Tunable {
    Tunable { name, file: name, min, max, field }
}

const fn feature(name: &'static str, field: fn(&mut Features) -> &mut bool) -> Tunable {
    Tunable { name, file: "features", min: 0, max: 1, field: Field::Feature(field) }
}

/// All tunables that are modelled.
pub const TUNABLES: &[Tunable] = &[
    number("base_slice_ns", 100_000, 1_000_000_000, Field::BaseSlice),
    number("migration_cost_ns", 0, 1_000_000_000, Field::MigrationCost),
    number("nr_migrate", 1, 1_024, Field::NrMigrate),
    Tunable {
        name: "llc_balancing",
        file: "llc_balancing/enabled",
        min: 0,
        max: 1,
        field: Field::SchedCache,
    },
    feature("PLACE_LAG", |f| &mut f.place_lag),
    feature("PLACE_DEADLINE_INITIAL", |f| &mut f.place_deadline_initial),
    feature("PLACE_REL_DEADLINE", |f| &mut f.place_rel_deadline),
    feature("RUN_TO_PARITY", |f| &mut f.run_to_parity),
    feature("PREEMPT_SHORT", |f| &mut f.preempt_short),
    feature("NEXT_BUDDY", |f| &mut f.next_buddy),
    feature("PICK_BUDDY", |f| &mut f.pick_buddy),
    feature("CACHE_HOT_BUDDY", |f| &mut f.cache_hot_buddy),
    feature("DELAY_DEQUEUE", |f| &mut f.delay_dequeue),
    feature("DELAY_ZERO", |f| &mut f.delay_zero),
    feature("WAKEUP_PREEMPTION", |f| &mut f.wakeup_preemption),
    feature("SIS_UTIL", |f| &mut f.sis_util),
    feature("ATTACH_AGE_LOAD", |f| &mut f.attach_age_load),
    feature("WA_IDLE", |f| &mut f.wa_idle),
    feature("WA_WEIGHT", |f| &mut f.wa_weight),
    feature("WA_BIAS", |f| &mut f.wa_bias),
    feature("UTIL_EST", |f| &mut f.util_est),
    feature("LB_MIN", |f| &mut f.lb_min),
    feature("NI_RANDOM", |f| &mut f.ni_random),
    feature("NI_RATE", |f| &mut f.ni_rate),
];

impl Tunable {
    /// Returns what is written into the file to set the tunable.
    pub fn text(&self, value: u64) -> String {
        match self.field {
            Field::Feature(_) if value == 0 => format!("NO_{}", self.name),
            Field::Feature(_) => self.name.to_owned(),
            _ => value.to_string(),
        }
    }

    /// Returns the present value from what is read from the file; None if it is not there.
    pub fn read(&self, text: &str) -> Option<u64> {
        let no = format!("NO_{}", self.name);
        match self.field {
            Field::Feature(_) => text.split_whitespace().find_map(|word| match word {
                _ if word == self.name => Some(1),
                _ if word == no => Some(0),
                _ => None,
            }),
            _ => text.trim().parse().ok(),
        }
    }
}

impl Fair {
    /// Sets a tunable, as a write into its file does.
    pub fn tune(&mut self, tunable: &Tunable, value: u64) {
        let Params { migration_cost_ns, nr_migrate, features, .. } = &mut self.params;
        match tunable.field {
            // CPU hotplug computes the slice anew from the default, as in the kernel.
            Field::BaseSlice => self.base_slice = value,
            Field::MigrationCost => *migration_cost_ns = value,
            Field::NrMigrate => *nr_migrate = value as u32,
            Field::Feature(field) => *field(features) = value != 0,
            Field::SchedCache => {
                features.sched_cache = value != 0;
                if value == 0 {
                    self.forget_caches();
                }
            }
        }
    }
}
