// SPDX-License-Identifier: GPL-2.0-only
//! Guests as data: virtual machines with virtual CPUs, in which a whole program runs.
//!
//! Owns: the data types, their text forms, the form in one line (`vms=2,vcpus=8`), and the
//! resolution of a guest's `workload` to a program.
//! Does not: check meaning (see `compile::guests`), open files (callers pass a function), or run
//! anything.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, de};

use super::region::ByteSize;
use super::{
    CgroupDef, CpuList, NodeList, Op, Part, Program, RegionDef, RegionPolicy, Sharing,
    ThreadTemplate, TimeSpan, names,
};
use crate::benchmarks::{WorkloadArg, parse_guest_workload};
use crate::error::{SourcePlace, WorkloadError};

/// Maximum number of virtual CPUs of a guest: the default of KVM on x86 for some years.
pub const MAX_VCPUS: u32 = 288;
/// Maximum number of guests of a workload.
pub const MAX_GUESTS: u32 = 4095;

/// A kind of guest, and its number of instances.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestDef {
    /// Name; may be a pattern, such as `vm{i}`.
    pub name: String,
    #[serde(default = "one")]
    pub instances: u32,
    /// Number of virtual CPUs (vCPUs).
    #[serde(default = "one")]
    pub vcpus: u32,
    /// Workload of the guest as `-w` takes it; a file's path is relative to the file that names it.
    /// None after the resolution, which puts it into `program`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// Workload of the guest in this file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<Box<Program>>,
    /// Cgroup of the vCPUs; may be a pattern. None: the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// Whether each vCPU has a cgroup of its own below `cgroup`: `vcpu0`, `vcpu1`, and so on.
    #[serde(default)]
    pub vcpu_cgroups: bool,
    /// Whether vCPU n of instance k runs only on number k * `vcpus` + n of `cpus`, modulo their
    /// number.
    #[serde(default)]
    pub pin: bool,
    /// CPUs on which the vCPUs may run. None: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuList>,
    #[serde(default)]
    pub nice: i8,
    /// Memory of the guest. None: its program has no regions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<GuestMemory>,
    #[serde(default)]
    pub spinlock: SpinLockKind,
    /// Whether a waiter for a spin lock halts its vCPU after a while.
    #[serde(default = "yes")]
    pub pv_spinlock: bool,
    /// Whether a TLB flush leaves out vCPUs that are not on a CPU. They flush before they go on.
    #[serde(default = "yes")]
    pub pv_tlb_flush: bool,
    /// Time for which an idle vCPU polls before it halts.
    #[serde(default)]
    pub halt_poll: TimeSpan,
}

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

/// The spin locks of a guest's kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpinLockKind {
    /// Waiters get the lock in the order in which they came.
    Ticket,
    /// Waiters that run may get the lock before waiters whose vCPU does not run.
    #[default]
    Queued,
}

/// Memory of a guest, which is a region of the process of its vCPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GuestMemory {
    pub size: ByteSize,
    pub policy: RegionPolicy,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub populate: Option<NodeList>,
    /// Whether the memory consists of huge pages of the host. Default: true.
    pub huge: bool,
    /// Percentage of the pages, at the memory's end, that same-page merging (KSM) shares between
    /// all instances of the guest.
    pub merge: u8,
}

impl<'de> Deserialize<'de> for GuestMemory {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        /// The form as a table.
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            size: ByteSize,
            #[serde(default)]
            policy: RegionPolicy,
            #[serde(default)]
            populate: Option<NodeList>,
            #[serde(default = "yes")]
            huge: bool,
            #[serde(default)]
            merge: u8,
        }

        impl<'de> de::Visitor<'de> for Visitor {
            type Value = GuestMemory;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a size such as \"4GiB\", or a table with `size`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<GuestMemory, E> {
                text.parse().map(GuestMemory::new).map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<GuestMemory, E> {
                Ok(GuestMemory::new(ByteSize(bytes)))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<GuestMemory, E> {
                let bytes = u64::try_from(bytes);
                bytes.map_err(|_| E::custom("a negative size")).and_then(|n| self.visit_u64(n))
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<GuestMemory, A::Error> {
                let table = Table::deserialize(de::value::MapAccessDeserializer::new(map))?;
                let Table { size, policy, populate, huge, merge } = table;
                Ok(GuestMemory { size, policy, populate, huge, merge })
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

impl GuestMemory {
    /// Returns memory of huge pages, placed by the first access.
    pub fn new(size: ByteSize) -> Self {
        let policy = RegionPolicy::FirstTouch;
        GuestMemory { size, policy, populate: None, huge: true, merge: 0 }
    }

    /// Returns the memory as a region of the vCPUs' process.
    pub fn region(&self) -> RegionDef {
        RegionDef {
            name: "memory".to_owned(),
            size: self.size,
            of: Sharing::Process,
            policy: self.policy.clone(),
            populate: self.populate.clone(),
            huge: Some(self.huge),
            merge: self.merge,
        }
    }
}

impl GuestDef {
    /// Returns a guest with one vCPU and the defaults of a file.
    pub fn new(name: &str, program: Option<Box<Program>>) -> Self {
        GuestDef {
            name: name.to_owned(),
            instances: 1,
            vcpus: 1,
            workload: None,
            program,
            cgroup: None,
            vcpu_cgroups: false,
            pin: false,
            cpus: None,
            nice: 0,
            memory: None,
            spinlock: SpinLockKind::default(),
            pv_spinlock: true,
            pv_tlb_flush: true,
            halt_poll: TimeSpan(0),
        }
    }

    /// Returns the name of an instance.
    pub fn instance_name(&self, instance: u32) -> String {
        names::instance_name(&self.name, instance)
    }

    /// Returns the cgroup of an instance.
    pub fn instance_cgroup(&self, instance: u32) -> Option<String> {
        Some(names::instance_name(self.cgroup.as_ref()?, instance))
    }

    /// Returns the cgroup of a vCPU of an instance.
    pub fn vcpu_cgroup(&self, instance: u32, vcpu: u32) -> Option<String> {
        let cgroup = self.instance_cgroup(instance)?;
        Some(if self.vcpu_cgroups { format!("{cgroup}/vcpu{vcpu}") } else { cgroup })
    }
}

/// The guests that a workload in one line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestsOfLine {
    /// The guests, without their workload.
    guest: GuestDef,
    /// Whether each guest has a cgroup whose tasks run as a gang.
    gang: bool,
    /// Time between two wake-ups of the thread that each guest has on the host beside its vCPUs.
    /// None: there is no such thread.
    io_period: Option<TimeSpan>,
    /// Work of that thread each time.
    io_work: TimeSpan,
}

/// Keys of the guests in a workload of one line, beside `vms` and `vcpus`.
const LINE_KEYS: [&str; 11] = [
    "vm.pin",
    "vm.gang",
    "vm.spinlock",
    "vm.pv_spinlock",
    "vm.pv_tlb_flush",
    "vm.halt_poll",
    "vm.memory",
    "vm.huge",
    "vm.merge",
    "vm.io_period",
    "vm.io_work",
];

impl GuestsOfLine {
    /// Whether a key of a workload in one line belongs to its guests.
    pub(crate) fn owns(pair: &str) -> bool {
        let key = pair.split_once('=').map_or(pair, |(key, _)| key).trim();
        key == "vms" || key == "vcpus" || key.starts_with("vm.")
    }

    /// Parses the guests' keys of the workload `name`; None if there is no key.
    pub(crate) fn parse<'a>(
        name: &str,
        pairs: impl IntoIterator<Item = &'a str>,
    ) -> Result<Option<GuestsOfLine>, WorkloadError> {
        let mut values: BTreeMap<&str, &str> = BTreeMap::new();
        for pair in pairs {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (key, value) = (key.trim(), value.trim());
            if !["vms", "vcpus"].contains(&key) && !LINE_KEYS.contains(&key) {
                let known = ["vms", "vcpus"].into_iter().chain(LINE_KEYS);
                return Err(WorkloadError::UnknownParam {
                    generator: name.to_owned(),
                    param: key.to_owned(),
                    candidates: known.map(str::to_owned).collect(),
                });
            }
            if values.insert(key, value).is_some() {
                return Err(bad(name, key, value, "given once"));
            }
        }
        let Some(first) = values.keys().next() else { return Ok(None) };
        if !values.contains_key("vms") && !values.contains_key("vcpus") {
            return Err(bad(name, first, values[first], "beside vms or vcpus"));
        }
        let guest = GuestDef::new("vm{i}", None);
        let mut line =
            GuestsOfLine { guest, gang: false, io_period: None, io_work: TimeSpan(5_000) };
        // The memory comes first: `vm.huge` and `vm.merge` are properties of it.
        let memory = values.remove_entry("vm.memory");
        for (key, value) in memory.into_iter().chain(values) {
            line.set(key, value).map_err(|expected| bad(name, key, value, &expected))?;
        }
        Ok(Some(line))
    }

    /// Sets the value of a key. The error says what the value must be.
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let number = |max: u32| {
            let number = value.parse().ok().filter(|n| (1..=max).contains(n));
            number.ok_or_else(|| format!("a whole number from 1 to {max}"))
        };
        let flag = || match value {
            "yes" => Ok(true),
            "no" => Ok(false),
            _ => Err("yes or no".to_owned()),
        };
        let time = || value.parse().map_err(|_| "a time such as 200us".to_owned());
        let guest = &mut self.guest;
        match key {
            "vms" => guest.instances = number(MAX_GUESTS)?,
            "vcpus" => guest.vcpus = number(MAX_VCPUS)?,
            "vm.pin" => guest.pin = flag()?,
            "vm.gang" => self.gang = flag()?,
            "vm.pv_spinlock" => guest.pv_spinlock = flag()?,
            "vm.pv_tlb_flush" => guest.pv_tlb_flush = flag()?,
            "vm.spinlock" => {
                guest.spinlock = match value {
                    "ticket" => SpinLockKind::Ticket,
                    "queued" => SpinLockKind::Queued,
                    _ => return Err("ticket or queued".to_owned()),
                }
            }
            "vm.huge" | "vm.merge" => {
                let memory = guest.memory.as_mut().ok_or("beside vm.memory")?;
                if key == "vm.huge" {
                    memory.huge = flag()?;
                } else {
                    let percent = value.parse().ok().filter(|n| *n <= 100);
                    memory.merge = percent.ok_or("a whole number from 0 to 100")?;
                }
            }
            "vm.halt_poll" => guest.halt_poll = time()?,
            "vm.io_period" => self.io_period = Some(time()?),
            "vm.io_work" => self.io_work = time()?,
            _ => {
                let size = value.parse().map_err(|_| "a size such as 4GiB".to_owned())?;
                guest.memory = Some(GuestMemory::new(size));
            }
        }
        Ok(())
    }
}

fn bad(name: &str, key: &str, value: &str, expected: &str) -> WorkloadError {
    WorkloadError::BadParam {
        generator: name.to_owned(),
        param: key.to_owned(),
        value: value.to_owned(),
        expected: expected.to_owned(),
    }
}

/// A function that returns the text of a file, or the reason why it cannot be read.
pub type ReadText<'a> = dyn Fn(&str) -> Result<String, String> + 'a;

impl Program {
    /// Returns a program that runs this one in guests.
    pub fn into_guests(self, line: GuestsOfLine) -> Result<Program, WorkloadError> {
        let GuestsOfLine { mut guest, gang, io_period, io_work } = line;
        let mut outer = Program { name: self.name.clone(), ..Program::default() };
        if !self.guests.is_empty() {
            let problem = "a guest cannot contain guests, and the workload has some";
            return Err(WorkloadError::Invalid {
                at: self.place(Part::Entry("guest", 0)),
                problem: problem.to_owned(),
            });
        }
        if gang {
            guest.cgroup = Some("/vm{i}".to_owned());
            let group = |i| {
                let xattrs = BTreeMap::from([("user.cpu.gang".to_owned(), "1".to_owned())]);
                CgroupDef { xattrs, ..CgroupDef::new(&format!("/vm{i}")) }
            };
            outer.cgroups = (0..guest.instances).map(group).collect();
        }
        if let Some(period) = io_period {
            outer
                .threads
                .extend((0..guest.instances).map(|i| io_thread(&guest, i, period, io_work)));
        }
        outer.doc.clone_from(&self.doc);
        guest.program = Some(Box::new(self));
        outer.guests = vec![guest];
        outer.adopt_from_guests();
        crate::compile::check(&outer)?;
        Ok(outer)
    }

    /// Returns the guests in the order of their numbers, each with its number among the instances
    /// of its declaration.
    pub fn guest_instances(&self) -> impl Iterator<Item = (&GuestDef, u32)> {
        self.guests.iter().flat_map(|def| (0..def.instances).map(move |i| (def, i)))
    }

    /// Replaces the `workload` of each guest by the program that it names.
    pub(crate) fn resolve_guests(&mut self, read: &ReadText<'_>) -> Result<(), WorkloadError> {
        let mut guests = std::mem::take(&mut self.guests);
        for (i, guest) in guests.iter_mut().enumerate() {
            let at = self.place(Part::Entry("guest", i));
            let invalid = |problem: &str| {
                let problem = format!("guest \"{}\" {problem}", guest.name);
                WorkloadError::Invalid { at: at.clone(), problem }
            };
            match (&guest.workload, &mut guest.program) {
                (None, Some(program)) if program.name.is_empty() => {
                    program.name.clone_from(&guest.name);
                }
                (None, Some(_)) => {}
                (Some(_), Some(_)) => {
                    return Err(invalid("has `workload` and `program`; it needs one of them"));
                }
                (None, None) => return Err(invalid("needs `workload` or `program`")),
                (Some(arg), None) => {
                    let program = named_program(&at, arg, read, &invalid)?;
                    guest.program = Some(Box::new(program));
                    guest.workload = None;
                }
            }
            let program = guest.program.as_ref();
            if program.is_some_and(|program| !program.guests.is_empty()) {
                return Err(invalid("has a workload with guests; a guest cannot contain guests"));
            }
        }
        self.guests = guests;
        self.adopt_from_guests();
        Ok(())
    }

    /// Takes from the guests' programs what this program does not give: the duration, if each of
    /// them has one, and the unit of work.
    fn adopt_from_guests(&mut self) {
        let programs = || self.guests.iter().filter_map(|guest| guest.program.as_deref());
        let durations: Option<Vec<TimeSpan>> = programs().map(|p| p.duration).collect();
        let duration = durations.and_then(|all| all.into_iter().max());
        let unit = programs().next().map(|program| program.unit.clone());
        let note = |guest: &GuestDef| {
            let notes = guest.program.iter().flat_map(|program| &program.notes);
            notes.map(|note| format!("guest {}: {note}", guest.name)).collect::<Vec<_>>()
        };
        let notes: Vec<String> = self.guests.iter().flat_map(note).collect();
        self.notes.extend(notes);
        self.duration = self.duration.or(duration);
        if let Some(unit) = unit.filter(|_| self.places.of(Part::Entry("unit", 0)).is_none()) {
            self.unit = unit;
        }
    }
}

/// Returns the thread that emulates a guest's devices on the host (QEMU's main thread). It belongs
/// to the guest's cgroup, and may run on all CPUs, pinned vCPUs or not.
fn io_thread(guest: &GuestDef, instance: u32, period: TimeSpan, work: TimeSpan) -> ThreadTemplate {
    let ops = vec![Op::Sleep(period), Op::Compute(work.into())];
    let name = format!("vm{instance}/io");
    ThreadTemplate {
        process: Some(name.clone()),
        cgroup: guest.instance_cgroup(instance),
        ..ThreadTemplate::new(&name, vec![Op::Loop { times: None, ops }])
    }
}

/// Returns the program that a guest's `workload` names. `at` is the place of the guest.
fn named_program(
    at: &SourcePlace,
    arg: &str,
    read: &ReadText<'_>,
    invalid: &dyn Fn(&str) -> WorkloadError,
) -> Result<Program, WorkloadError> {
    let path = match parse_guest_workload(arg) {
        Ok(WorkloadArg::Program(program)) => return Ok(*program),
        Ok(WorkloadArg::File { path, guests: None }) => path,
        // The caller refuses the guests.
        Ok(WorkloadArg::File { guests: Some(_), .. }) => {
            return Err(invalid("has a workload with guests; a guest cannot contain guests"));
        }
        Ok(WorkloadArg::Command(_)) => {
            return Err(invalid("has a command as its workload; a guest runs ops only"));
        }
        Err(error) => return Err(invalid(&format!("has a bad workload: {error}"))),
    };
    let folder = at.file.rsplit_once('/').map_or("", |(folder, _)| folder);
    let path = match folder {
        "" => path,
        _ if path.starts_with('/') => path,
        _ => format!("{folder}/{path}"),
    };
    let text = read(&path).map_err(|why| invalid(&format!("has a workload {path}: {why}")))?;
    // Guests in that file are not resolved: files that name one another would never end.
    crate::parse(&path, &text)
}
