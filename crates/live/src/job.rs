// SPDX-License-Identifier: GPL-2.0-only
//! Requests to a live target (this host or a virtual machine) and the replies, in a form that can
//! be passed into a virtual machine and back.
//!
//! Owns: the request and the reply. Object files are passed beside the request as files; recorded
//! events follow the reply.
//! The same code executes a job on this host and, as init, in a guest.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use scxlab_lab::conform::{Case, Observed, compare};
use scxlab_lab::input::{ObjectInput, SchedulerInput, Workload};
use scxlab_lab::prepare::Prepared;
use scxlab_lab::run::Run;
use scxlab_machine::Machine;
use scxlab_machine::id::Nanos;
use scxlab_machine::topology::sysfs::SysfsReader;
use scxlab_workload::program::GuestDef;
use scxlab_workload::{Perturb, SourcePlace, compile, native};
use serde::{Deserialize, Serialize};

use crate::guest::GuestHost;
use crate::kernel::RunningKernel;
use crate::run::{LiveSpec, run};
use crate::trace::Recording;
use crate::{LiveError, conform, numa};

/// A request to a live target.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Target that executes the job.
    pub target: LiveTarget,
    pub task: JobTask,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LiveTarget {
    Host,
    Vm,
}

impl LiveTarget {
    pub fn name(self) -> &'static str {
        match self {
            LiveTarget::Host => "host",
            LiveTarget::Vm => "vm",
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobTask {
    /// Runs of every scheduler with every seed. The schedulers take turns, so that a slow change of
    /// the machine's speed affects all schedulers alike.
    Runs {
        schedulers: Vec<SchedulerInput>,
        workload: Workload,
        runs: u32,
        seed: u64,
        duration: Option<Nanos>,
        start_offset_max: Nanos,
        compute_noise_permille: u32,
        /// Automatic NUMA balancing; None: as it is set.
        numa_balancing: Option<bool>,
        /// Time after the workload's start at which the scheduler is attached.
        attach_after: Option<Nanos>,
        /// Size in bytes, a power of two, of the buffer for events of each scheduler's first run;
        /// None if runs are not traced.
        trace: Option<u32>,
    },
    /// Conformance cases. Each case is observed until it agrees with the simulation, at most
    /// `tries` times.
    Conform { cases: Vec<Situation>, tries: u32 },
}

/// A conformance case under a scheduler, and the simulated kernel's record of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Situation {
    pub scheduler: SchedulerInput,
    pub name: String,
    pub text: String,
    /// Whether ticks and ends of slices are compared (`Case::compare_turns`).
    pub compare_turns: bool,
    pub simulated: Observed,
}

/// The reply to a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// Runs in the order of the request: all runs of the first scheduler, then all runs of the next
    /// scheduler.
    Runs { kernel: String, runs: Vec<Run>, recordings: Vec<Recording> },
    /// All tries of each case; only the last one can agree with the simulation.
    Observed { kernel: String, cases: Vec<Vec<Observed>> },
}

impl Reply {
    /// Returns the transport form: JSON in one line, a line break, and the trace records of each
    /// recording.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).expect("a reply is plain data");
        bytes.push(b'\n');
        if let Reply::Runs { recordings, .. } = self {
            recordings.iter().for_each(|r| bytes.extend_from_slice(&r.records));
        }
        bytes
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<Reply, serde_json::Error> {
        let end = bytes.iter().position(|b| *b == b'\n').unwrap_or(bytes.len());
        let (head, mut rest) = bytes.split_at(end);
        rest = rest.get(1..).unwrap_or_default();
        let mut reply = serde_json::from_slice(head)?;
        if let Reply::Runs { recordings, .. } = &mut reply {
            for recording in recordings {
                let records;
                (records, rest) = rest.split_at(recording.len.min(rest.len()));
                recording.records = records.to_vec();
            }
        }
        Ok(reply)
    }
}

impl Job {
    /// Returns the schedulers' object files, in the order in which `attach_objects` takes them
    /// back.
    pub fn objects(&self) -> Vec<Bytes> {
        self.schedulers().filter_map(|s| s.object.as_ref()).map(|o| o.bytes.clone()).collect()
    }

    /// Puts the object files back into the request after its transport. `read` returns an object
    /// file by its position in the list of `objects`.
    pub fn attach_objects(
        &mut self,
        mut read: impl FnMut(usize) -> io::Result<Vec<u8>>,
    ) -> io::Result<()> {
        let schedulers: Vec<&mut SchedulerInput> = match &mut self.task {
            JobTask::Runs { schedulers, .. } => schedulers.iter_mut().collect(),
            JobTask::Conform { cases, .. } => cases.iter_mut().map(|c| &mut c.scheduler).collect(),
        };
        let objects = schedulers.into_iter().filter_map(|s| s.object.as_mut());
        for (index, ObjectInput { bytes, .. }) in objects.enumerate() {
            *bytes = read(index)?.into();
        }
        Ok(())
    }

    /// Returns the maximum memory that traces take, in MiB: the ring buffer, the records read from
    /// it, and the reply.
    pub fn trace_mib(&self) -> u64 {
        match &self.task {
            JobTask::Runs { trace: Some(bytes), schedulers, .. } => {
                (u64::from(*bytes) >> 20) * (1 + 2 * schedulers.len() as u64)
            }
            _ => 0,
        }
    }

    /// Returns the size of the workload's regions of memory, in MiB.
    pub fn region_mib(&self) -> u64 {
        match &self.task {
            JobTask::Runs { workload: Workload::Program(program), .. } => {
                compile::region_bytes(program).div_ceil(1 << 20)
            }
            _ => 0,
        }
    }

    /// Returns the declarations of the workload's guests.
    pub fn guests(&self) -> &[GuestDef] {
        match &self.task {
            JobTask::Runs { workload: Workload::Program(program), .. } => &program.guests,
            _ => &[],
        }
    }

    /// Returns the workload's first guest and its place in the workload's file.
    pub fn first_guest(&self) -> Option<(SourcePlace, &GuestDef)> {
        match &self.task {
            JobTask::Runs { workload: Workload::Program(program), .. } => program.first_guest(),
            _ => None,
        }
    }

    fn schedulers(&self) -> impl Iterator<Item = &SchedulerInput> {
        let (runs, cases) = match &self.task {
            JobTask::Runs { schedulers, .. } => (&schedulers[..], &[][..]),
            JobTask::Conform { cases, .. } => (&[][..], &cases[..]),
        };
        runs.iter().chain(cases.iter().map(|c| &c.scheduler))
    }

    /// Translates the workload's CPU lists to the target's CPU numbers: `to[n]` is the target's
    /// number of CPU n.
    pub fn renumber_cpus(&mut self, to: &[u32]) {
        let is_same = to.iter().enumerate().all(|(n, t)| n as u32 == *t);
        if let (JobTask::Runs { workload: Workload::Program(program), .. }, false) =
            (&mut self.task, is_same)
        {
            program.map_cpus(&|cpu| to.get(cpu as usize).copied().unwrap_or(cpu));
        }
    }

    /// Executes the job on the running kernel. `guests` runs the workload's guests.
    pub fn execute(&self, guests: &dyn GuestHost) -> Result<Reply, LiveError> {
        if let Some((at, guest)) = self.first_guest()
            && let Err(why) = guests.check()
        {
            let (at, guest) = (at.to_string(), guest.name.clone());
            return Err(LiveError::NoKvm { at, guest, why });
        }
        let kernel = RunningKernel::open()?;
        kernel.check_free()?;
        let machine = this_machine()?;
        match &self.task {
            JobTask::Runs {
                schedulers,
                workload,
                runs,
                seed,
                duration,
                start_offset_max,
                compute_noise_permille,
                numa_balancing,
                attach_after,
                trace,
            } => {
                if let Some(on) = numa_balancing {
                    numa::require(self.target, &machine, *on)?;
                }
                let prepare = |s| Prepared::new(s, &machine, &kernel.btf);
                let prepared = schedulers.iter().map(prepare).collect::<Result<Vec<_>, _>>()?;
                let calibration = match workload {
                    Workload::Program(_) => Some(native::calibrate(None)?),
                    Workload::Command(_) => None,
                };
                let mut all: Vec<Vec<Run>> = prepared.iter().map(|_| Vec::new()).collect();
                let mut recordings = Vec::new();
                for index in 0..*runs {
                    for (at, scheduler) in prepared.iter().enumerate() {
                        let spec = LiveSpec {
                            machine: &machine,
                            workload,
                            scheduler,
                            seed: seed.wrapping_add(u64::from(index)),
                            duration: *duration,
                            perturb: Perturb {
                                start_offset_max: *start_offset_max,
                                compute_noise_permille: *compute_noise_permille,
                            },
                            cgroup_root: Some(cgroup_root()),
                            calibration,
                            guests,
                            target: self.target.name(),
                            attach_after: *attach_after,
                            trace: trace.filter(|_| index == 0),
                        };
                        let (run, recording) = run(&kernel, &spec)?;
                        all[at].push(run);
                        recordings.extend(recording.map(|r| Recording { scheduler: at, ..r }));
                    }
                }
                let runs = all.into_iter().flatten().collect();
                Ok(Reply::Runs { kernel: kernel.release, runs, recordings })
            }
            JobTask::Conform { cases, tries } => {
                let mut observed = Vec::new();
                for situation in cases {
                    let mut case = Case::parse(&situation.name, &situation.text)?;
                    case.compare_turns = situation.compare_turns;
                    let prepared = Prepared::new(&situation.scheduler, &machine, &kernel.btf)?;
                    let mut all = Vec::new();
                    for _ in 0..*tries {
                        let one =
                            conform::observe(&kernel, &case, &prepared, &machine, &cgroup_root());
                        let one = match one {
                            // This try counts as one that does not agree with the simulation. Other
                            // tasks may have delayed the case so much that an action came too late.
                            Err(LiveError::Case { what, .. }) => Observed {
                                exit: format!("not carried out: {what}"),
                                ..Observed::default()
                            },
                            other => other?,
                        };
                        let agrees = compare(&case, &situation.simulated, &one).is_empty();
                        all.push(one);
                        if agrees {
                            break;
                        }
                    }
                    observed.push(all);
                }
                Ok(Reply::Observed { kernel: kernel.release, cases: observed })
            }
        }
    }
}

/// Returns the root of the workload's cgroups. Its name contains the process id, so that two
/// processes do not share it.
fn cgroup_root() -> PathBuf {
    Path::new("/sys/fs/cgroup").join(format!("scxlab-{}", std::process::id()))
}

/// Returns the description of this machine.
pub fn this_machine() -> Result<Machine, LiveError> {
    Machine::from_sysfs(&Sysfs).map_err(LiveError::Machine)
}

struct Sysfs;

impl SysfsReader for Sysfs {
    fn read(&self, path: &str) -> io::Result<String> {
        std::fs::read_to_string(Path::new("/sys").join(path))
    }
}
