// SPDX-License-Identifier: GPL-2.0-only
//! The plan of a sweep: every cell, with the key that identifies its result.
//!
//! Owns: the resolution of all names before work begins, the order of cells, the keys. Does not:
//! run a cell (see `cell.rs`).

use std::fmt;
use std::sync::Arc;

use rayon::prelude::*;
use scxlab_bpf::vm::Engine;
use scxlab_lab::input::{self, Beside, InputFiles, SchedulerInput, Workload};
use scxlab_lab::prepare::Prepared;
use scxlab_lab::session::{CAP, LengthOf, MAX_LENGTH, PERTURB, SessionError};
use scxlab_lab::sim::{MAX_MEMORY, NumaBalancing, SIMULATOR, SimSpec, kernel_types};
use scxlab_machine::Machine;
use scxlab_machine::hash::StableHash;
use scxlab_workload::Program;

use crate::SweepError;
use crate::file::{Numa, Sweep, Variant};

/// A sweep with all its inputs resolved.
pub struct Plan {
    pub sweep: Sweep,
    machines: Vec<Arc<Machine>>,
    programs: Vec<Program>,
    /// The scheduler of each variant on each machine; `None` if all its setups are excluded.
    prepared: Vec<Option<Prepared>>,
    pub setups: Vec<Setup>,
    /// All cells: by scheduler, workload, machine, and then seed, each in the order of the file.
    pub cells: Vec<Cell>,
}

/// A scheduler, a workload and a machine: indices into the lists of the sweep.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub scheduler: usize,
    pub workload: usize,
    pub machine: usize,
    pub key: SetupKey,
}

/// One simulated run of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Index into the setups of the plan.
    pub setup: u32,
    pub seed: u64,
}

/// Hash of all that decides the runs of a setup, except their seeds: the bytes of the object, all
/// knobs, workload, machine, duration, and the sources of the simulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetupKey(pub [u64; 2]);

/// Identifies the result of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CellKey {
    pub setup: SetupKey,
    pub seed: u64,
}

impl SetupKey {
    fn of(text: &str) -> SetupKey {
        // Two hashes, because with 64 bits a collision among the setups of many sweeps would be
        // conceivable, and would give a wrong result silently.
        SetupKey([0, 1].map(|seed| {
            let mut hash = StableHash::new(seed);
            hash.add_bytes(text.as_bytes());
            hash.finish()
        }))
    }
}

impl fmt::Display for SetupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.0[0], self.0[1])
    }
}

impl Plan {
    /// Resolves every machine, workload, scheduler and knob of a sweep. Paths are relative to the
    /// sweep's file, or else to the current folder.
    pub fn new(sweep: Sweep, files: &dyn InputFiles) -> Result<Plan, SweepError> {
        let name = sweep.name.clone();
        let resolver = Resolver { sweep: &sweep, files: &Beside::new(&name, files) };
        let machines = resolver.machines()?;
        let programs = resolver.programs()?;
        let excluded = Excluded::new(&sweep)?;
        let prepared = resolver.schedulers(&machines, &excluded.pairs(&sweep))?;
        let mut plan = Plan {
            machines,
            programs,
            prepared,
            setups: excluded.setups,
            cells: excluded.cells,
            sweep,
        };
        let keys: Vec<SetupKey> = plan.setups.par_iter().map(|setup| plan.key_of(setup)).collect();
        plan.setups.iter_mut().zip(keys).for_each(|(setup, key)| setup.key = key);
        Ok(plan)
    }

    fn key_of(&self, setup: &Setup) -> SetupKey {
        SetupKey::of(&format!("{SIMULATOR} {}", self.spec_of(setup, 0).key()))
    }

    pub fn setup(&self, cell: Cell) -> &Setup {
        &self.setups[cell.setup as usize]
    }

    pub fn key(&self, cell: Cell) -> CellKey {
        CellKey { setup: self.setup(cell).key, seed: cell.seed }
    }

    /// Returns the run of a cell.
    pub fn spec(&self, cell: Cell) -> SimSpec<'_> {
        self.spec_of(self.setup(cell), cell.seed)
    }

    fn spec_of(&self, setup: &Setup, seed: u64) -> SimSpec<'_> {
        let prepared = &self.prepared[setup.scheduler * self.machines.len() + setup.machine];
        SimSpec {
            machine: &self.machines[setup.machine],
            workload: &self.programs[setup.workload],
            scheduler: prepared.as_ref().expect("each setup has a prepared scheduler"),
            seed,
            duration: self.sweep.duration.map(|duration| duration.0),
            cap: Some(CAP),
            perturb: PERTURB,
            engine: Engine::Jit,
            max_memory: MAX_MEMORY,
            numa_balancing: match self.sweep.numa_balancing {
                Numa::Off => NumaBalancing::Off,
                Numa::On => NumaBalancing::On,
                Numa::Ext => NumaBalancing::Ext,
                Numa::ExtLinux39 => NumaBalancing::ExtLinux39,
                Numa::ExtSeriesV5 => NumaBalancing::ExtSeriesV5,
            },
            attach_after: None,
        }
    }

    /// Returns the variants and the machine of a setup.
    pub fn names(&self, setup: &Setup) -> (&Variant, &Variant, &str) {
        let Sweep { schedulers, workloads, machines, .. } = &self.sweep;
        (&schedulers[setup.scheduler], &workloads[setup.workload], &machines[setup.machine])
    }

    /// Returns the name of a setup's unit of work.
    pub fn unit(&self, setup: &Setup) -> &str {
        &self.programs[setup.workload].unit
    }

    /// Names a cell in messages, by the options of `scxlab run`.
    pub fn describe(&self, cell: Cell) -> String {
        let (scheduler, workload, machine) = self.names(self.setup(cell));
        format!("-s {} -w {} -m {machine} --seed {}", scheduler.arg(), workload.arg(), cell.seed)
    }
}

/// The setups and cells that no exclusion takes.
struct Excluded {
    setups: Vec<Setup>,
    cells: Vec<Cell>,
}

impl Excluded {
    fn new(sweep: &Sweep) -> Result<Excluded, SweepError> {
        let (mut setups, mut cells) = (Vec::new(), Vec::new());
        let mut uses = vec![false; sweep.excludes.len()];
        let all = (0..sweep.schedulers.len()).flat_map(|scheduler| {
            (0..sweep.workloads.len()).flat_map(move |workload| {
                (0..sweep.machines.len()).map(move |machine| (scheduler, workload, machine))
            })
        });
        for (scheduler, workload, machine) in all {
            let value = |axis: &str| axis_value(sweep, (scheduler, workload, machine), axis);
            let excludes = sweep.excludes.iter().enumerate();
            let fit: Vec<_> = excludes.filter(|(_, exclude)| exclude.takes_setup(&value)).collect();
            let before = cells.len();
            for seed in &sweep.seeds {
                let mut is_taken = false;
                for (at, _) in fit.iter().filter(|(_, exclude)| exclude.takes_seed(*seed)) {
                    is_taken = true;
                    uses[*at] = true;
                }
                if !is_taken {
                    cells.push(Cell { setup: setups.len() as u32, seed: *seed });
                }
            }
            if cells.len() > before {
                let key = SetupKey([0; 2]);
                setups.push(Setup { scheduler, workload, machine, key });
            }
        }
        let wrong = |why: String| SweepError::File { file: sweep.name.clone(), why };
        if let Some(at) = uses.iter().position(|is_used| !is_used) {
            return Err(wrong(format!("[[exclude]] number {} matches no cell", at + 1)));
        }
        if cells.is_empty() {
            return Err(wrong("its exclusions leave no cell".to_owned()));
        }
        Ok(Excluded { setups, cells })
    }

    /// Tells for each pair of a scheduler and a machine whether a setup has it.
    fn pairs(&self, sweep: &Sweep) -> Vec<bool> {
        let mut pairs = vec![false; sweep.schedulers.len() * sweep.machines.len()];
        for setup in &self.setups {
            pairs[setup.scheduler * sweep.machines.len() + setup.machine] = true;
        }
        pairs
    }
}

/// Returns the value of a setup on an axis other than the seed.
fn axis_value(sweep: &Sweep, setup: (usize, usize, usize), axis: &str) -> Option<String> {
    let (scheduler, workload) = (&sweep.schedulers[setup.0], &sweep.workloads[setup.1]);
    match axis {
        "scheduler" => Some(scheduler.name.clone()),
        "workload" => Some(workload.name.clone()),
        "machine" => Some(sweep.machines[setup.2].clone()),
        _ => {
            let knob = axis.strip_prefix("knob.").and_then(|name| scheduler.setting(name));
            let parameter = || workload.setting(axis.strip_prefix("parameter.")?);
            knob.or_else(parameter).map(ToString::to_string)
        }
    }
}

struct Resolver<'a> {
    sweep: &'a Sweep,
    files: &'a dyn InputFiles,
}

impl Resolver<'_> {
    fn input(&self, error: input::InputError) -> SweepError {
        SweepError::Input { file: self.sweep.name.clone(), error: Box::new(error) }
    }

    fn session(&self, error: SessionError) -> SweepError {
        SweepError::Session { file: self.sweep.name.clone(), error: Box::new(error) }
    }

    fn machines(&self) -> Result<Vec<Arc<Machine>>, SweepError> {
        let machine = |name: &String| input::machine(name, self.files).map(Arc::new);
        self.sweep.machines.iter().map(machine).map(|m| m.map_err(|e| self.input(e))).collect()
    }

    fn programs(&self) -> Result<Vec<Program>, SweepError> {
        if let Some(duration) = self.sweep.duration.filter(|duration| duration.0 > MAX_LENGTH) {
            return Err(
                self.session(SessionError::Length { what: LengthOf::Request, ns: duration.0 })
            );
        }
        let program = |variant: &Variant| {
            let workload = Workload::resolve(&variant.arg(), self.files);
            match workload.map_err(|e| self.input(e))? {
                Workload::Program(program) => match program.duration {
                    Some(own) if self.sweep.duration.is_none() && own.0 > MAX_LENGTH => {
                        let what = LengthOf::Workload;
                        Err(self.session(SessionError::Length { what, ns: own.0 }))
                    }
                    _ => Ok(*program),
                },
                Workload::Command(words) => {
                    Err(self.session(SessionError::Command { command: words.join(" ") }))
                }
            }
        };
        self.sweep.workloads.iter().map(program).collect()
    }

    /// Prepares each variant of a scheduler for each machine that it runs on.
    fn schedulers(
        &self,
        machines: &[Arc<Machine>],
        is_used: &[bool],
    ) -> Result<Vec<Option<Prepared>>, SweepError> {
        let mut inputs: Vec<SchedulerInput> = Vec::new();
        for variant in &self.sweep.schedulers {
            let input = SchedulerInput::resolve(&variant.arg(), self.files);
            inputs.push(share(input.map_err(|e| self.input(e))?, inputs.last()));
        }
        let kernel = kernel_types();
        let prepare = |(pair, is_used): (usize, &bool)| {
            let (scheduler, machine) = (pair / machines.len(), pair % machines.len());
            if !is_used {
                return Ok(None);
            }
            let prepared = Prepared::new(&inputs[scheduler], &machines[machine], &kernel);
            prepared.map(Some).map_err(|error| SweepError::Prepare {
                file: self.sweep.name.clone(),
                machine: self.sweep.machines[machine].clone(),
                error: Box::new(error),
            })
        };
        let all: Vec<Result<_, _>> = is_used.par_iter().enumerate().map(prepare).collect();
        all.into_iter().collect()
    }
}

/// Lets the variants of one object share its bytes.
fn share(mut input: SchedulerInput, before: Option<&SchedulerInput>) -> SchedulerInput {
    let before = before.and_then(|before| before.object.as_ref());
    if let (Some(object), Some(before)) = (&mut input.object, before)
        && object.bytes == before.bytes
    {
        object.bytes = before.bytes.clone();
    }
    input
}
