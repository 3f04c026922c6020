// SPDX-License-Identifier: GPL-2.0-only
//! Conversion of logs of operations, from the simulated and from a real kernel, into sequences: the
//! operations of each task in order, with each repeated stretch written once.
//!
//! Owns: the layout of `struct entry` in `bpf/live/witness.h`.

use std::collections::BTreeMap;

use scxlab_kernel::ext::op_record::OpCall;

use super::Case;

/// Operations by task name; `-` holds operations about no task.
pub type Sequences = BTreeMap<String, Vec<String>>;

/// Size in bytes of a `struct entry`, one entry of the log that the witness writes. The witness is
/// the BPF program that records a scheduler's operations on a real kernel.
pub const ENTRY_BYTES: usize = 40;

/// Operation names in the order of `enum witnessed_op`, each with the type of its recorded
/// argument: flags, a number, or a value that cannot be compared.
const OPS: [(&str, LogArg); 25] = [
    ("select_cpu", LogArg::Flags),
    ("enqueue", LogArg::Flags),
    ("dequeue", LogArg::Flags),
    ("tick", LogArg::None),
    ("runnable", LogArg::Flags),
    ("running", LogArg::None),
    ("stopping", LogArg::Number),
    ("quiescent", LogArg::Flags),
    ("yield", LogArg::Number),
    ("set_weight", LogArg::Number),
    ("set_cpumask", LogArg::Number),
    ("init_task", LogArg::Number),
    ("exit_task", LogArg::Number),
    ("enable", LogArg::None),
    ("disable", LogArg::None),
    ("cgroup_init", LogArg::Number),
    ("cgroup_exit", LogArg::None),
    ("cgroup_prep_move", LogArg::None),
    ("cgroup_move", LogArg::None),
    ("cgroup_cancel_move", LogArg::None),
    ("cgroup_set_weight", LogArg::Number),
    ("cpu_online", LogArg::Number),
    ("cpu_offline", LogArg::Number),
    ("init", LogArg::None),
    ("exit", LogArg::Number),
];

#[derive(Clone, Copy)]
enum LogArg {
    None,
    Flags,
    Number,
}

/// One recorded operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    pub op: u32,
    /// The task's pid; -1 if the operation is about no task.
    pub pid: i32,
    pub value: u64,
    /// Time on the kernel's monotonic clock, in ns.
    pub at: u64,
    pub comm: String,
}

impl LogEntry {
    pub fn read(bytes: &[u8]) -> Option<LogEntry> {
        let bytes: &[u8; ENTRY_BYTES] = bytes.get(..ENTRY_BYTES)?.try_into().ok()?;
        let word = |at: usize| i32::from_ne_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
        let wide = |at: usize| u64::from_ne_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| bytes[at + i]));
        let comm = &bytes[24..];
        let end = comm.iter().position(|b| *b == 0).unwrap_or(comm.len());
        Some(LogEntry {
            op: word(0) as u32,
            pid: word(4),
            value: wide(8),
            at: wide(16),
            comm: String::from_utf8_lossy(&comm[..end]).into_owned(),
        })
    }

    /// Converts a call that the simulated kernel recorded. Returns None if `OPS` does not list the
    /// operation; such operations are not compared.
    pub fn of(call: &OpCall) -> Option<LogEntry> {
        let op = OPS.iter().position(|(name, _)| *name == call.op.name())? as u32;
        let (pid, comm) = match &call.task {
            Some((pid, name)) => (*pid as i32, name[..name.floor_char_boundary(15)].to_owned()),
            None => (-1, String::new()),
        };
        Some(LogEntry { op, pid, value: call.value, at: call.at, comm })
    }

    fn name(&self) -> &'static str {
        OPS.get(self.op as usize).map_or("?", |(name, _)| name)
    }

    fn text(&self) -> String {
        let name = self.name();
        match OPS.get(self.op as usize).map(|(_, arg)| *arg) {
            Some(LogArg::Flags) => format!("{name}({:#x})", self.value),
            Some(LogArg::Number) => format!("{name}({})", self.value),
            _ => name.to_owned(),
        }
    }
}

/// Length in ns of the period at the start of a case whose entries are ignored, because each target
/// creates tasks in its own way. The tasks of a case first sleep for at least twice this time.
pub const SETTLE_NS: u64 = 25_000_000;

/// Returns the sequences that the case compares. `start` is the time at which the workload began. A
/// task is listed under the last name that it gave itself.
pub fn sequences(case: &Case, entries: &[LogEntry], start: u64) -> Sequences {
    let window = start + SETTLE_NS..start + case.duration.0;
    let names: BTreeMap<i32, &str> = entries.iter().map(|e| (e.pid, e.comm.as_str())).collect();
    let mut all = Sequences::new();
    for entry in entries.iter().filter(|e| window.contains(&e.at)) {
        let about = if entry.pid < 0 { "-" } else { names[&entry.pid] };
        let watched = case.watch.iter().any(|w| w == about);
        if watched && !case.ignore.contains_key(entry.name()) {
            all.entry(about.to_owned()).or_default().push(entry.text());
        }
    }
    let settled = |ops| fold(if case.compare_turns { ops } else { without_turns(ops) });
    all.into_iter().map(|(about, ops)| (about, settled(ops))).collect()
}

/// Removes ticks and turns from a sequence. A turn is a stretch in which the task stops while
/// runnable, is enqueued, and runs again. The number of turns cannot be compared, because the end
/// of a slice depends on the processor's speed and, on a real kernel, on other tasks that compete
/// for the CPU.
pub fn without_turns(ops: Vec<String>) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut rest = ops.iter().filter(|op| *op != "tick").peekable();
    while let Some(op) = rest.next() {
        if op != "stopping(1)" {
            out.push(op.clone());
            continue;
        }
        let mut turn = vec![op.clone()];
        while let Some(op) = rest.next_if(|op| op.starts_with("enqueue") || *op == "dequeue(0x0)") {
            turn.push(op.clone());
        }
        let again = rest.next_if(|op| *op == "running").is_some();
        if !again && rest.peek().is_some() {
            out.extend(turn);
        }
    }
    out
}

/// Maximum length of a repeated stretch, in operations.
const LONGEST: usize = 12;

/// Replaces all copies of a repeated stretch with one copy and a `+`, because the number of slices,
/// and so of repeats, depends on the processor's speed. If the case ends within a repeat, that
/// unfinished copy is dropped too.
pub fn fold(ops: Vec<String>) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut at = 0;
    while at < ops.len() {
        let repeats = |len: usize| {
            let unit = &ops[at..at + len];
            1 + ops[at + len..].chunks_exact(len).take_while(|next| *next == unit).count()
        };
        let fits = 1..=LONGEST.min((ops.len() - at) / 2);
        let best = fits.map(|len| (len, repeats(len))).filter(|(_, n)| *n > 1);
        match best.max_by_key(|(len, n)| (len * n, std::cmp::Reverse(*len))) {
            None => {
                out.push(ops[at].clone());
                at += 1;
            }
            Some((len, n)) => {
                let unit = &ops[at..at + len];
                out.extend(unit.iter().cloned());
                out.push("+".into());
                at += len * n;
                if unit.starts_with(&ops[at..]) {
                    break;
                }
            }
        }
    }
    out
}
