// SPDX-License-Identifier: GPL-2.0-only
//! The head of a line: the running task, the CPU, flags and the time.
//!
//! Names of tasks may hold spaces, digits and brackets. Therefore a line is read from its CPU,
//! which is the first number in brackets between a thread id and a time.

use scxlab_machine::Nanos;

/// Form of the running task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `COMM PID` or `COMM PID/TID`
    Perf,
    /// `COMM-TID` or `COMM-TID (TGID)`
    Ftrace,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head<'a> {
    pub form: Form,
    /// None if the recorder did not know it.
    pub comm: Option<&'a str>,
    /// None for perf's -1: a task that has ended.
    pub tid: Option<u32>,
    pub tgid: Option<u32>,
    pub cpu: u32,
    /// Whether an interrupt caused the event; None if the line has no flags.
    pub interrupt: Option<bool>,
    pub time: Nanos,
}

/// The name of an event, and the text behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest<'a> {
    pub name: &'a str,
    pub fields: &'a str,
}

impl Head<'_> {
    /// Reads the head of a line; None if the line has none.
    pub fn read(line: &str) -> Option<(Head<'_>, Rest<'_>)> {
        let brackets = line.match_indices(" [").map(|(at, _)| at);
        brackets.into_iter().find_map(|at| {
            let (cpu, behind) = line[at + 2..].split_once(']')?;
            read_parts(&line[..at], cpu, behind)
        })
    }
}

fn read_parts<'a>(task: &'a str, cpu: &str, behind: &'a str) -> Option<(Head<'a>, Rest<'a>)> {
    let cpu = number(cpu)?;
    let (first, rest) = token(behind)?;
    let (flags, time, rest) = match first.strip_suffix(':').and_then(nanos) {
        Some(time) => (None, time, rest),
        None => {
            let (second, rest) = token(rest)?;
            (Some(first), second.strip_suffix(':').and_then(nanos)?, rest)
        }
    };
    let (form, comm, tid, tgid) = read_task(task.trim())?;
    let interrupt = flags.map(|flags| flags.contains(['h', 'H', 's', 'z', 'Z']));
    // perf prints `:TID` for a thread whose name it does not know.
    let is_id = |comm: &str| comm.strip_prefix(':').and_then(number::<u32>).is_some();
    let is_name = |comm: &&str| !matches!(*comm, "<...>" | "<idle>" | ":-1" | "") && !is_id(comm);
    let comm = Some(comm).filter(is_name);
    Some((Head { form, comm, tid, tgid, cpu, interrupt, time }, read_event(rest)?))
}

/// Reads the running task: form, name, thread id, process.
fn read_task(text: &str) -> Option<(Form, &str, Option<u32>, Option<u32>)> {
    // perf: the last word is `PID`, `PID/TID` or -1, and the only one if the name is empty.
    let words = text.rsplit_once(char::is_whitespace);
    let is_unnamed = text.split('/').all(|id| number::<u32>(id).is_some());
    if let Some((comm, ids)) = words.or(is_unnamed.then_some(("", text))) {
        let comm = comm.trim_end();
        match ids.split_once('/') {
            _ if ids == "-1" => return Some((Form::Perf, comm, None, None)),
            Some((pid, tid)) => {
                if let (Some(pid), Some(tid)) = (number(pid), number(tid)) {
                    return Some((Form::Perf, comm, Some(tid), Some(pid)));
                }
            }
            None => {
                if let Some(tid) = number(ids) {
                    return Some((Form::Perf, comm, Some(tid), None));
                }
            }
        }
    }
    let (task, tgid) = match text.strip_suffix(')').and_then(|text| text.rsplit_once('(')) {
        Some((task, tgid)) if !task.is_empty() => (task.trim_end(), number(tgid.trim())),
        _ => (text, None),
    };
    let (comm, tid) = task.rsplit_once('-')?;
    Some((Form::Ftrace, comm, Some(number(tid)?), tgid))
}

/// Reads the name of the event: `sched_switch:`, `sched:sched_switch:`, or `sys_futex(`.
fn read_event(text: &str) -> Option<Rest<'_>> {
    let (first, rest) = token(text)?;
    // perf prints the period before the name if it is asked to.
    let (text, first, rest) = match number::<u64>(first) {
        Some(_) => token(rest).map(|(first, behind)| (rest.trim_start(), first, behind))?,
        None => (text.trim_start(), first, rest),
    };
    if let Some((name, arguments)) = text.split_once('(')
        && name.starts_with("sys_")
    {
        return Some(Rest { name, fields: arguments });
    }
    if first.starts_with("sys_") && rest.trim_start().starts_with("->") {
        return Some(Rest { name: "sys_exit_", fields: rest.trim() });
    }
    if first == "PERF_RECORD_LOST" {
        return Some(Rest { name: first, fields: rest.trim() });
    }
    let name = first.strip_suffix(':')?;
    let name = name.rsplit_once(':').map_or(name, |(_, name)| name);
    Some(Rest { name, fields: rest.trim() })
}

/// Returns CPU and number of lost events of a line such as `CPU:2 [LOST 12 EVENTS]`, as the kernel
/// writes it, or `CPU:2 [12 EVENTS DROPPED]`, as trace-cmd does; the number is 0 if the line does
/// not tell it.
pub fn lost(line: &str) -> Option<(u32, u64)> {
    let (cpu, lost) = line.trim_start().strip_prefix("CPU:")?.split_once(' ')?;
    let lost = lost.trim().strip_prefix('[')?.strip_suffix(']')?;
    let of_kernel = || lost.strip_prefix("LOST ")?.strip_suffix("EVENTS");
    let lost = lost.strip_suffix("EVENTS DROPPED").or_else(of_kernel)?.trim();
    let events = if lost.is_empty() { 0 } else { number(lost)? };
    Some((number(cpu)?, events))
}

/// Whether a line without an event belongs to a format: headers of `trace-cmd report`, and notes
/// about CPUs in both ftrace formats.
pub fn is_header(line: &str) -> bool {
    let starts = ["cpus=", "version = ", "CPU ", "##### CPU "];
    starts.iter().any(|start| line.trim_start().starts_with(start))
}

/// Returns the next word, and the text behind it.
fn token(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let end = text.find(char::is_whitespace).unwrap_or(text.len());
    Some(text.split_at(end)).filter(|(word, _)| !word.is_empty())
}

/// Reads a number of digits only.
pub fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

/// Reads a time in seconds with a fraction. A number without a fraction has a unit that only its
/// clock knows.
fn nanos(text: &str) -> Option<Nanos> {
    let (seconds, fraction) = text.split_once('.')?;
    let digits = fraction.get(..9).unwrap_or(fraction);
    let behind = &fraction[digits.len()..];
    if !behind.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let nanos =
        number::<u64>(digits)?.checked_mul(10u64.pow(9u32.saturating_sub(digits.len() as u32)))?;
    number::<u64>(seconds)?.checked_mul(1_000_000_000)?.checked_add(nanos)
}
