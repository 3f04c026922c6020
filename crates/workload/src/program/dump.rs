// SPDX-License-Identifier: GPL-2.0-only
//! A program as normalised text, one op per line, which tests compare and people read.
//!
//! Owns: the layout. The text cannot be parsed back; TOML can.

use std::fmt::Write;

use super::{Op, PolicyDef, Program, ThreadTemplate, TimerMode};

/// Returns the whole program as text. The same program always gives the same text.
pub fn dump(program: &Program) -> String {
    let mut out = String::new();
    header(&mut out, program);
    for thread in &program.threads {
        thread_line(&mut out, thread);
        ops(&mut out, &thread.ops, 1);
    }
    for note in &program.notes {
        line(&mut out, 0, &format!("note: {note}"));
    }
    out
}

/// Appends an indented line. Writing to a `String` cannot fail.
fn line(out: &mut String, depth: usize, text: &str) {
    let _ = writeln!(out, "{:1$}{text}", "", depth * 2);
}

fn header(out: &mut String, program: &Program) {
    let duration = program.duration.map_or("until all exit".to_owned(), |d| d.to_string());
    let flag = |on: bool, name: &'static str| if on { name } else { "" };
    let flags = flag(program.pi_enabled, ", pi").to_owned()
        + flag(program.cumulative_slack, ", cumulative_slack");
    line(out, 0, &format!("program: {duration}, unit {}{flags}", program.unit));
    for c in &program.cgroups {
        let quota = c.quota.map_or("max".to_owned(), |q| q.to_string());
        line(
            out,
            0,
            &format!(
                "cgroup {} weight={} max={quota}/{}{}{}",
                c.path,
                c.weight,
                c.period,
                c.cpus.as_ref().map_or(String::new(), |l| format!(" cpus={l}")),
                c.xattrs.iter().map(|(n, v)| format!(" {n}={v}")).collect::<String>(),
            ),
        );
    }
    for b in &program.barriers {
        line(out, 0, &format!("barrier {} parties={}", b.name, b.parties));
    }
    for s in &program.semaphores {
        line(out, 0, &format!("semaphore {} value={}", s.name, s.value));
    }
    for p in &program.pipes {
        let kind = format!("{:?}", p.kind).to_lowercase();
        line(out, 0, &format!("{kind} {} capacity={}", p.name, p.capacity()));
    }
}

fn thread_line(out: &mut String, t: &ThreadTemplate) {
    let mut text =
        format!("thread {} x{} {} nice={}", t.name, t.instances, policy(t.policy), t.nice);
    let mut add = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = write!(text, " {key}={value}");
        }
    };
    add("slice", t.slice.map(|s| s.to_string()));
    add("cpus", t.cpus.as_ref().map(|c| c.to_string()));
    add("cgroup", t.cgroup.clone());
    add("process", t.process.clone());
    add("footprint", (t.footprint != 0).then(|| t.footprint.to_string()));
    add("delay", t.delay.map(|d| d.to_string()));
    line(out, 0, &text);
}

fn policy(policy: PolicyDef) -> String {
    match policy {
        PolicyDef::Normal => "normal".into(),
        PolicyDef::Batch => "batch".into(),
        PolicyDef::Idle => "idle".into(),
        PolicyDef::Ext => "ext".into(),
        PolicyDef::Fifo(prio) => format!("fifo:{prio}"),
        PolicyDef::Rr(prio) => format!("rr:{prio}"),
        PolicyDef::Deadline { runtime, deadline, period } => {
            format!("deadline:{runtime}/{deadline}/{period}")
        }
    }
}

fn ops(out: &mut String, list: &[Op], depth: usize) {
    for op in list {
        match op {
            Op::Loop { times, ops: body } => {
                line(out, depth, &times_text("loop", *times));
                ops(out, body, depth + 1);
            }
            Op::Phase { name, times, ops: body } => {
                line(out, depth, &times_text(&format!("phase {name}"), *times));
                ops(out, body, depth + 1);
            }
            op => line(out, depth, &op_text(op)),
        }
    }
}

fn times_text(what: &str, times: Option<u64>) -> String {
    times.map_or(format!("{what} forever"), |n| format!("{what} x{n}"))
}

/// Returns the text of one op. Of a loop or phase it is the first line only.
pub(crate) fn op_text(op: &Op) -> String {
    match op {
        Op::Compute(d) => format!("compute {d}"),
        Op::ComputeWall(d) => format!("compute_wall {d}"),
        Op::Sleep(d) => format!("sleep {d}"),
        Op::Timer { name, period, mode, unique } => {
            let mode = if *mode == TimerMode::Relative { "relative" } else { "absolute" };
            let unique = if *unique { " unique" } else { "" };
            format!("timer {name} {period} {mode}{unique}")
        }
        Op::Wait { cond, mutex } => format!("wait {cond} {mutex}"),
        Op::Write { pipe, bytes } => format!("write {pipe} {bytes}"),
        Op::Read { pipe, bytes } => format!("read {pipe} {bytes}"),
        Op::Touch(t) => format!(
            "touch {:?} {:?} size={} count={} stride={}",
            t.kind, t.pattern, t.size, t.count, t.stride
        )
        .to_lowercase(),
        Op::Io { bytes, null } => format!("io {bytes}{}", if *null { " null" } else { "" }),
        Op::SetAffinity(cpus) => format!("set_affinity {cpus}"),
        Op::SetNice(nice) => format!("set_nice {nice}"),
        Op::SetPolicy(p) => format!("set_policy {}", policy(*p)),
        Op::Count(n) => format!("count {n}"),
        Op::Join => "join".into(),
        Op::Exec => "exec".into(),
        Op::Yield => "yield".into(),
        Op::Exit => "exit".into(),
        Op::ClearAffinity => "clear_affinity".into(),
        Op::Loop { times, .. } => times_text("loop", *times),
        Op::Phase { name, times, .. } => times_text(&format!("phase {name}"), *times),
        named => named_op_text(named),
    }
}

/// Returns the text of the ops whose only argument is a name, and of `SetXattr`.
fn named_op_text(op: &Op) -> String {
    let (verb, name) = match op {
        Op::Lock(n) => ("lock", n),
        Op::Unlock(n) => ("unlock", n),
        Op::Signal(n) => ("signal", n),
        Op::Broadcast(n) => ("broadcast", n),
        Op::Barrier(n) => ("barrier", n),
        Op::SemPost(n) => ("sem_post", n),
        Op::SemWait(n) => ("sem_wait", n),
        Op::SpinLock(n) => ("spin_lock", n),
        Op::SpinUnlock(n) => ("spin_unlock", n),
        Op::SpinBarrier(n) => ("spin_barrier", n),
        Op::Fork(n) => ("fork", n),
        Op::MoveCgroup(n) => ("move_cgroup", n),
        Op::SetXattr { cgroup, name, value } => {
            return format!("set_xattr {cgroup} {name}={value}");
        }
        Op::Suspend(n) => ("suspend", n),
        Op::Resume(n) => ("resume", n),
        other => return format!("{other:?}"),
    };
    format!("{verb} {name}")
}
