// SPDX-License-Identifier: GPL-2.0-only
//! More of a recording: the workload for longer, or several times side by side.
//!
//! Owns: `repeat` and `scale`. Copies share nothing but the machine and the cgroups: each has its
//! own threads, semaphores, mutexes, barriers and channels.

use scxlab_workload::program::{Op, Program, TimeSpan};

/// Makes the workload last for this many recordings. Without a duration, each thread of the start
/// does its work so many times.
pub fn repeat(program: &mut Program, times: u64) {
    match &mut program.duration {
        Some(TimeSpan(length)) => *length = length.saturating_mul(times),
        None if times > 1 => {
            for thread in program.threads.iter_mut().filter(|t| t.instances > 0) {
                let ops = std::mem::take(&mut thread.ops);
                if !ops.is_empty() {
                    thread.ops = vec![Op::Loop { times: Some(times), ops }];
                }
            }
        }
        None => {}
    }
}

/// Puts this many copies of the recorded tasks side by side.
pub fn scale(program: &mut Program, copies: u32) {
    let first = program.clone();
    for copy in 2..=copies {
        let name = |name: &str| format!("{name} #{copy}");
        program.threads.extend(first.threads.iter().cloned().map(|mut thread| {
            thread.name = name(&thread.name);
            thread.process = thread.process.as_deref().map(name);
            rename(&mut thread.ops, &name);
            thread
        }));
        let mut barriers = first.barriers.clone();
        barriers.iter_mut().for_each(|b| b.name = name(&b.name));
        program.barriers.extend(barriers);
        let mut mutexes = first.mutexes.clone();
        mutexes.iter_mut().for_each(|m| m.name = name(&m.name));
        program.mutexes.extend(mutexes);
        let mut semaphores = first.semaphores.clone();
        semaphores.iter_mut().for_each(|s| s.name = name(&s.name));
        program.semaphores.extend(semaphores);
        let mut pipes = first.pipes.clone();
        pipes.iter_mut().for_each(|p| p.name = name(&p.name));
        program.pipes.extend(pipes);
    }
}

fn rename(ops: &mut [Op], to: &dyn Fn(&str) -> String) {
    for op in ops {
        match op {
            Op::Lock(name)
            | Op::Unlock(name)
            | Op::Barrier(name)
            | Op::SemPost(name)
            | Op::SemWait(name)
            | Op::Fork(name)
            | Op::Write { pipe: name, .. }
            | Op::Read { pipe: name, .. } => *name = to(name),
            Op::Poll { pipes, .. } => pipes.iter_mut().for_each(|pipe| *pipe = to(pipe)),
            Op::Loop { ops, .. } => rename(ops, to),
            _ => {}
        }
    }
}
