// SPDX-License-Identifier: GPL-2.0-only
//! A program as normalised text, one op per line, which tests compare and people read.
//!
//! Owns: the layout. No parser reads this text back; the TOML form is for that.

use std::fmt::Write;

use super::guest::{GuestDef, SpinLockKind};
use super::{Op, PolicyDef, Program, ThreadTemplate};

/// Returns the whole program as text. The same program always gives the same text.
pub fn dump(program: &Program) -> String {
    let mut out = String::new();
    header(&mut out, program);
    for thread in &program.threads {
        thread_line(&mut out, thread);
        ops(&mut out, &thread.ops, 1);
    }
    for guest in &program.guests {
        guest_line(&mut out, guest);
        let inner = guest.program.as_deref().map_or(String::new(), dump);
        inner.lines().for_each(|text| line(&mut out, 1, text));
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

fn guest_line(out: &mut String, guest: &GuestDef) {
    let mut text = format!("guest {} x{} vcpus={}", guest.name, guest.instances, guest.vcpus);
    if let Some(cgroup) = &guest.cgroup {
        let _ = write!(text, " cgroup={cgroup}");
    }
    if let Some(cpus) = &guest.cpus {
        let _ = write!(text, " cpus={cpus}");
    }
    if guest.nice != 0 {
        let _ = write!(text, " nice={}", guest.nice);
    }
    if let Some(memory) = &guest.memory {
        let policy = format!("{:?}", memory.policy).to_lowercase();
        let _ = write!(text, " memory={} {policy}", memory.size);
    }
    if guest.spinlock != SpinLockKind::default() {
        let kind = format!("{:?}", guest.spinlock).to_lowercase();
        let _ = write!(text, " spinlock={kind}");
    }
    if guest.halt_poll.0 > 0 {
        let _ = write!(text, " halt_poll={}", guest.halt_poll);
    }
    let flags = [
        (guest.vcpu_cgroups, " vcpu_cgroups"),
        (guest.pin, " pin"),
        (!guest.pv_spinlock, " no pv_spinlock"),
        (!guest.pv_tlb_flush, " no pv_tlb_flush"),
    ];
    flags.into_iter().filter(|(on, _)| *on).for_each(|(_, flag)| text.push_str(flag));
    line(out, 0, &text);
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
                "cgroup {} weight={} max={quota}/{}{}{}{}{}{}",
                c.path,
                c.weight,
                c.period,
                if c.burst.0 > 0 { format!(" burst={}", c.burst) } else { String::new() },
                if c.idle { " idle" } else { "" },
                c.cpus.as_ref().map_or(String::new(), |l| format!(" cpus={l}")),
                c.mems.as_ref().map_or(String::new(), |l| format!(" mems={l}")),
                c.xattrs.iter().map(|(n, v)| format!(" {n}={v}")).collect::<String>(),
            ),
        );
    }
    for b in &program.barriers {
        line(out, 0, &format!("barrier {} parties={}", b.name, b.parties));
    }
    for m in &program.mutexes {
        let how = if m.barging { " barging" } else { "" };
        line(out, 0, &format!("mutex {}{how}", m.name));
    }
    for s in &program.semaphores {
        line(out, 0, &format!("semaphore {} value={}", s.name, s.value));
    }
    for r in &program.regions {
        let how = format!("{:?} {:?}", r.of, r.policy).to_lowercase();
        let populate = r.populate.as_ref().map_or(String::new(), |l| format!(" populate={l}"));
        let huge = if r.is_huge() { " huge" } else { "" };
        line(
            out,
            0,
            &format!("region {} {} {how}{populate}{huge} merge={}", r.name, r.size, r.merge),
        );
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

pub(super) fn policy(policy: PolicyDef) -> String {
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
        line(out, depth, &op.text());
        if let Op::Loop { ops: body, .. } | Op::Phase { ops: body, .. } = op {
            ops(out, body, depth + 1);
        }
    }
}
