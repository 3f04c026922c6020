// SPDX-License-Identifier: GPL-2.0-only
//! Op programs as data: threads, the ops that they run, and the objects that they share.
//!
//! Owns: the data types and their text form (TOML or JSON through serde). The name of a shared
//! object may contain an instance expression such as `{i}`, `{i/20}`, `{i+1%8}` (see `names`). The
//! ops are declared in `op`.
//! Does not: check meaning (see `compile::check`) or run anything.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{SourcePlace, WorkloadError};

pub mod arg;
pub mod cpus;
pub mod dump;
pub mod guest;
pub mod names;
pub mod op;
pub mod places;
pub mod region;
pub mod time_span;
pub mod work;

pub use cpus::CpuList;
pub use guest::{GuestDef, GuestMemory, GuestsOfLine, SpinLockKind};
pub use op::Op;
pub(crate) use places::Part;
pub use region::{NodeList, RegionDef, RegionPolicy, Sharing};
pub use time_span::TimeSpan;

/// A workload: its threads, shared objects, cgroups and length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    #[serde(default)]
    pub name: String,
    /// Description of what the program models, for `list` and reports.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub doc: String,
    /// Name of one unit of finished work, in the singular.
    #[serde(default = "default_unit")]
    pub unit: String,
    /// Length of the run. If it is absent, the run lasts until every thread has exited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<TimeSpan>,
    /// Whether a mutex lends its owner the priority of the waiters. No executor models this.
    #[serde(default)]
    pub pi_enabled: bool,
    /// rt-app's `cumulative_slack`. If set, the slack of a phase's pass is the sum of the slacks of
    /// all its timers, otherwise the slack of its last timer.
    #[serde(default)]
    pub cumulative_slack: bool,
    #[serde(default, rename = "cgroup", skip_serializing_if = "Vec::is_empty")]
    pub cgroups: Vec<CgroupDef>,
    #[serde(default, rename = "barrier", skip_serializing_if = "Vec::is_empty")]
    pub barriers: Vec<BarrierDef>,
    #[serde(default, rename = "mutex", skip_serializing_if = "Vec::is_empty")]
    pub mutexes: Vec<MutexDef>,
    #[serde(default, rename = "semaphore", skip_serializing_if = "Vec::is_empty")]
    pub semaphores: Vec<SemaphoreDef>,
    #[serde(default, rename = "pipe", skip_serializing_if = "Vec::is_empty")]
    pub pipes: Vec<PipeDef>,
    #[serde(default, rename = "region", skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<RegionDef>,
    #[serde(default, rename = "guest", skip_serializing_if = "Vec::is_empty")]
    pub guests: Vec<GuestDef>,
    /// Threads that run on the machine itself, beside the guests.
    #[serde(default, rename = "thread")]
    pub threads: Vec<ThreadTemplate>,
    /// Requests in the workload file that the simulation does not fulfil, each with its place in
    /// the file.
    #[serde(skip)]
    pub notes: Vec<String>,
    /// Whether the program comes from an rt-app file. The threads of such a program are named
    /// `<task>-<number>`, and a wait on a condition is legal without a lock of the mutex.
    #[serde(skip)]
    pub from_rtapp: bool,
    /// Places of the program's parts in its file.
    #[serde(skip)]
    pub places: places::Places,
}

fn default_unit() -> String {
    "loop".to_owned()
}

/// A cgroup that exists from the start. Missing parents of `path` are made with default limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CgroupDef {
    pub path: String,
    /// `cpu.weight`
    #[serde(default = "default_weight")]
    pub weight: u32,
    /// `cpu.max`: quota per period; absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<TimeSpan>,
    #[serde(default = "default_period")]
    pub period: TimeSpan,
    #[serde(default)]
    pub burst: TimeSpan,
    /// `cpu.idle`
    #[serde(default)]
    pub idle: bool,
    /// `cpuset.cpus`; absent: the CPUs of the parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuList>,
    /// `cpuset.mems`; absent: the nodes of the parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mems: Option<NodeList>,
    /// Extended attributes of the cgroup's directory, by name (`user.NAME`).
    #[serde(default, rename = "xattr", skip_serializing_if = "BTreeMap::is_empty")]
    pub xattrs: BTreeMap<String, String>,
}

fn default_weight() -> u32 {
    100
}

fn default_period() -> TimeSpan {
    TimeSpan(100_000_000)
}

impl CgroupDef {
    /// Returns a cgroup with the kernel's default limits.
    pub fn new(path: &str) -> Self {
        let (weight, period) = (default_weight(), default_period());
        CgroupDef {
            path: path.to_owned(),
            weight,
            quota: None,
            period,
            burst: TimeSpan(0),
            idle: false,
            cpus: None,
            mems: None,
            xattrs: BTreeMap::new(),
        }
    }
}

/// A declaration of a barrier whose number of parties differs from the number of threads that use
/// it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BarrierDef {
    pub name: String,
    pub parties: u32,
}

/// A declaration of a mutex that an unlock does not hand to the first waiter. If the name is a
/// pattern, the declaration holds for every mutex whose name the pattern can produce.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MutexDef {
    pub name: String,
    /// Whether an unlock only wakes the first waiter, so that a running thread may take the mutex
    /// before it, as with glibc's mutexes.
    #[serde(default)]
    pub barging: bool,
}

/// A declaration of a semaphore that does not start at 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SemaphoreDef {
    pub name: String,
    pub value: u32,
}

/// The kind of channel behind `write` and `read`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PipeKind {
    #[default]
    Pipe,
    /// One direction of a Unix stream socket: each message also occupies `overhead` bytes.
    Socket,
}

/// A bounded byte queue. If the name is a pattern, the declaration holds for every queue whose name
/// the pattern can produce.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PipeDef {
    pub name: String,
    #[serde(default)]
    pub kind: PipeKind,
    /// Number of bytes that the queue holds. Default: 65,536 for a pipe (as on Linux), 212,992 for
    /// a socket (its send buffer).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u64>,
    /// Bytes that each message occupies beyond its payload. Default: 0 for a pipe, 668 for a socket
    /// (the skb and rounding, so that a 100-byte message takes 768).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overhead: Option<u64>,
}

impl PipeDef {
    pub fn new(name: &str, kind: PipeKind) -> Self {
        PipeDef { name: name.to_owned(), kind, capacity: None, overhead: None }
    }

    pub fn capacity(&self) -> u64 {
        let default = if self.kind == PipeKind::Pipe { 65_536 } else { 212_992 };
        self.capacity.unwrap_or(default)
    }

    pub fn overhead(&self) -> u64 {
        let default = if self.kind == PipeKind::Pipe { 0 } else { 668 };
        self.overhead.unwrap_or(default)
    }
}

/// A scheduling policy as written in a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PolicyDef {
    #[default]
    Normal,
    Batch,
    Idle,
    Ext,
    Fifo(u8),
    Rr(u8),
    Deadline {
        runtime: TimeSpan,
        deadline: TimeSpan,
        period: TimeSpan,
    },
}

/// A kind of thread, and its number of instances when the run starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThreadTemplate {
    pub name: String,
    /// Number of threads at the start of the run. With 0, only `fork` makes threads of this
    /// template.
    #[serde(default = "one")]
    pub instances: u32,
    #[serde(default)]
    pub policy: PolicyDef,
    #[serde(default)]
    pub nice: i8,
    /// Slice request of a normal task (`sched_attr.sched_runtime`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<TimeSpan>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuList>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// Name of the process; may be a pattern. Threads with the same process name share an address
    /// space. If the name is absent, each thread has its own address space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// Bytes of memory that the thread uses repeatedly, for the cache model.
    #[serde(default)]
    pub footprint: u64,
    /// Time from the start of the run until the first op.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<TimeSpan>,
    pub ops: Vec<Op>,
}

fn one() -> u32 {
    1
}

impl ThreadTemplate {
    /// Returns a template of one normal thread, in a process of its own.
    pub fn new(name: &str, ops: Vec<Op>) -> Self {
        ThreadTemplate {
            name: name.to_owned(),
            instances: 1,
            policy: PolicyDef::Normal,
            nice: 0,
            slice: None,
            cpus: None,
            cgroup: None,
            process: None,
            footprint: 0,
            delay: None,
            ops,
        }
    }
}

/// The handling of a missed timer period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimerMode {
    /// A late caller restarts the period from now.
    #[default]
    Relative,
    /// The ends of the periods are fixed; a late caller catches up.
    Absolute,
}

/// The kind of memory access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TouchKind {
    Read,
    #[default]
    Write,
    /// Each access depends on the one before it (a linked list).
    Chase,
}

/// The order of memory accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    #[default]
    Sequential,
    Random,
}

/// One or more passes over a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Touch {
    #[serde(default)]
    pub kind: TouchKind,
    /// Size of the buffer in bytes.
    pub size: u64,
    /// Number of accesses; 0: one per stride of `size`.
    #[serde(default)]
    pub count: u64,
    /// Bytes from one access to the next.
    #[serde(default = "cache_line")]
    pub stride: u64,
    #[serde(default)]
    pub pattern: Pattern,
}

fn cache_line() -> u64 {
    64
}

impl Program {
    /// Sets the places of the program's parts, and of those of its guests' programs.
    fn with_places(mut self, mut places: places::Places) -> Program {
        let inner = self.guests.iter_mut().zip(std::mem::take(&mut places.guests));
        for (guest, places) in inner {
            let program = guest.program.take().map(|program| program.with_places(places));
            guest.program = program.map(Box::new);
        }
        Program { places, ..self }
    }

    /// Whether the mutex of this name is declared as barging.
    pub(crate) fn is_barging(&self, mutex: &str) -> bool {
        let found = self.mutexes.iter().find(|def| names::declares(&def.name, mutex));
        found.is_some_and(|def| def.barging)
    }

    /// Returns the place of a part in the program's file.
    pub(crate) fn place(&self, part: Part) -> SourcePlace {
        self.places.of(part).unwrap_or_else(|| self.whole())
    }

    /// Returns the place of the whole file; that of a program without a file is its name.
    pub(crate) fn whole(&self) -> SourcePlace {
        SourcePlace::file(self.places.file().unwrap_or(&self.name))
    }

    /// Returns the first guest of the program, and its place in the file.
    pub fn first_guest(&self) -> Option<(SourcePlace, &GuestDef)> {
        Some((self.guest_place(0), self.guests.first()?))
    }

    /// Returns the place of a guest's declaration in the file.
    pub fn guest_place(&self, index: usize) -> SourcePlace {
        self.place(Part::Entry("guest", index))
    }

    /// Returns the first thread that takes CPUs off line or brings them back, and its place in the
    /// file.
    pub fn first_hotplug(&self) -> Option<(SourcePlace, &str)> {
        let at = self.threads.iter().position(|thread| has_hotplug(&thread.ops))?;
        Some((self.place(Part::Entry("thread", at)), &self.threads[at].name))
    }

    /// Replaces each CPU number n in the program by `to(n)`, for a machine with other CPU numbers.
    /// The programs of guests stay as they are, because they name virtual CPUs.
    pub fn map_cpus(&mut self, to: &dyn Fn(u32) -> u32) {
        let lists = self.cgroups.iter_mut().filter_map(|c| c.cpus.as_mut());
        let lists = lists.chain(self.guests.iter_mut().filter_map(|g| g.cpus.as_mut()));
        for list in lists.chain(self.threads.iter_mut().filter_map(|t| t.cpus.as_mut())) {
            *list = list.map(to);
        }
        self.threads.iter_mut().for_each(|t| map_ops(&mut t.ops, to));
    }
}

fn has_hotplug(ops: &[Op]) -> bool {
    ops.iter().any(|op| match op {
        Op::CpuOffline(_) | Op::CpuOnline(_) => true,
        Op::Loop { ops, .. } | Op::Phase { ops, .. } => has_hotplug(ops),
        _ => false,
    })
}

fn map_ops(ops: &mut [Op], to: &dyn Fn(u32) -> u32) {
    for op in ops {
        match op {
            Op::SetAffinity(list) | Op::CpuOffline(list) | Op::CpuOnline(list) => {
                *list = list.map(to);
            }
            Op::Loop { ops, .. } | Op::Phase { ops, .. } => map_ops(ops, to),
            _ => {}
        }
    }
}

/// Parses a program in scxlab's TOML form. Refuses unknown keys and wrong types, with their place.
pub fn from_toml(name: &str, text: &str) -> Result<Program, WorkloadError> {
    let parsed: Result<Program, _> = toml::from_str(text);
    let program = parsed.map_err(|e| {
        let start = e.span().map(|s| s.start);
        let at =
            start.map_or_else(|| SourcePlace::file(name), |s| SourcePlace::in_text(name, text, s));
        WorkloadError::Document { at, message: in_words(e.message().trim_end()) }
    })?;
    Ok(program.with_places(places::Places::of_toml(name, text)))
}

/// Returns a program in scxlab's TOML form, which `from_toml` parses.
pub fn to_toml(program: &Program) -> String {
    // The types above have nothing that TOML lacks: keys are text, and there is no null.
    toml::to_string(program).expect("a program has a TOML form")
}

/// Parses a program in scxlab's JSON form, which has the same keys as TOML.
pub fn from_json(name: &str, text: &str) -> Result<Program, WorkloadError> {
    let parsed: Result<Program, _> = serde_json::from_str(text);
    let program = parsed.map_err(|e| {
        let clamp = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let at = SourcePlace {
            file: name.to_owned(),
            line: clamp(e.line()),
            col: clamp(e.column().max(1)),
        };
        let full = e.to_string();
        let message = in_words(full.split(" at line ").next().unwrap_or(&full));
        WorkloadError::Document { at, message }
    })?;
    Ok(program.with_places(places::Places::of_json(name, text)))
}

/// Returns the parser's message, in this crate's words if it is about the form of an op or names
/// what it expected by a type of the program.
fn in_words(message: &str) -> String {
    if message.starts_with("wanted exactly 1 element") {
        return "an op is a table with one key: write each op as a table of its own".to_owned();
    }
    for (expected, allowed) in EXPECTED {
        if let Some((found, _)) = message.split_once(&format!(", expected {expected}")) {
            let found = found.replace("invalid type: map", "invalid type: table");
            return format!("{found}, must be {allowed}");
        }
    }
    unknown_op(message)
}

/// The parser's names of what it expects, and what a user may write there. Each i8 is a nice value.
const EXPECTED: [(&str, &str); 9] = [
    ("struct variant Op::Loop", "loop = { times = 3, ops = [...] }"),
    ("struct variant Op::Phase", "phase = { name = \"a\", times = 3, ops = [...] }"),
    ("u8", "a whole number from 0 to 255"),
    ("i8", "a whole number from -20 to 19"),
    ("u32", "a whole number from 0 to 4294967295"),
    ("u64", "a whole number, 0 or more"),
    ("a boolean", "true or false"),
    ("a sequence", "a list: [...], or a table with its name in [[...]]"),
    ("struct ", "a table with keys: { ... }"),
];

/// Returns the parser's message, in this crate's words if it is about an op that does not exist.
fn unknown_op(message: &str) -> String {
    let first = format!("`, expected one of `{}`", op::OPS[0].name);
    let found = message.strip_prefix("unknown variant `").and_then(|m| m.split_once(&first));
    let Some((name, _)) = found else {
        return message.to_owned();
    };
    let all: Vec<&str> = op::OPS.iter().map(|op| op.name).collect();
    format!("unknown op \"{name}\"; there are {}", all.join(", "))
}

/// Whether JSON text is in scxlab's form: it has a top-level `thread` or `guest`, and none of
/// rt-app's `tasks`.
pub fn is_our_json(text: &str) -> bool {
    #[derive(Deserialize)]
    struct Probe {
        thread: Option<serde::de::IgnoredAny>,
        guest: Option<serde::de::IgnoredAny>,
        tasks: Option<serde::de::IgnoredAny>,
    }
    // Text that is not strict JSON (it has comments or trailing commas) is rt-app's, unless it is
    // scxlab's with a syntax error. The key `"thread"` or `"guest"` reveals the latter.
    match serde_json::from_str::<Probe>(text) {
        Ok(probe) => (probe.thread.is_some() || probe.guest.is_some()) && probe.tasks.is_none(),
        Err(_) => {
            let ours = ["\"thread\"", "\"guest\""].iter().any(|key| text.contains(key));
            ours && !text.contains("\"tasks\"")
        }
    }
}
