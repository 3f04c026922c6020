// SPDX-License-Identifier: GPL-2.0-only
//! Passes of tasks that read the same channels.
//!
//! Owns: the barriers at the ends of their passes. A pass reads what it writes, but any reader of a
//! channel can take any bytes. Without a barrier, a task that is through with its pass would take
//! bytes that a slower one needs for its own, and both could wait for each other for ever.

use std::collections::{BTreeMap, BTreeSet};

use scxlab_workload::program::{BarrierDef, Op, Program, ThreadTemplate};

/// Lets the threads that use a channel with several readers begin their passes together.
pub fn begin_together(program: &mut Program) {
    let mut parties: BTreeMap<String, Parties> = BTreeMap::new();
    for (i, thread) in program.threads.iter().enumerate() {
        collect(&thread.ops, i, &mut parties);
    }
    let mut groups: Vec<BTreeSet<usize>> = Vec::new();
    for Parties { readers, mut all } in parties.into_values() {
        if readers.len() < 2 {
            continue;
        }
        groups.retain_mut(|group| {
            let apart = group.is_disjoint(&all);
            if !apart {
                all.append(group);
            }
            apart
        });
        groups.push(all);
    }
    for (number, mut group) in groups.into_iter().enumerate() {
        group.retain(|i| is_endless(&program.threads[*i]));
        if group.len() < 2 {
            continue;
        }
        let name = format!("pass {number}");
        for i in &group {
            end_passes(&mut program.threads[*i].ops, &name);
        }
        let parties = u32::try_from(group.len()).unwrap_or(u32::MAX);
        program.barriers.push(BarrierDef { name, parties });
    }
}

/// Threads that use a channel, by their indices.
#[derive(Default)]
struct Parties {
    readers: BTreeSet<usize>,
    all: BTreeSet<usize>,
}

fn collect(ops: &[Op], thread: usize, parties: &mut BTreeMap<String, Parties>) {
    for op in ops {
        let (pipes, reads) = match op {
            Op::Loop { ops, .. } => {
                collect(ops, thread, parties);
                continue;
            }
            Op::Read { pipe, .. } => (std::slice::from_ref(pipe), true),
            Op::Poll { pipes, .. } => (&**pipes, true),
            Op::Write { pipe, .. } => (std::slice::from_ref(pipe), false),
            _ => continue,
        };
        for pipe in pipes {
            if !parties.contains_key(pipe) {
                parties.insert(pipe.clone(), Parties::default());
            }
            if let Some(of) = parties.get_mut(pipe) {
                of.all.insert(thread);
                if reads {
                    of.readers.insert(thread);
                }
            }
        }
    }
}

/// Whether a thread exists once, and ends with an endless loop of its passes.
fn is_endless(thread: &ThreadTemplate) -> bool {
    thread.instances == 1 && matches!(thread.ops.last(), Some(Op::Loop { times: None, .. }))
}

/// Adds the barrier to the end of the first pass and of the others.
fn end_passes(ops: &mut Vec<Op>, barrier: &str) {
    let op = || Op::Barrier(barrier.to_owned());
    let Some(Op::Loop { times, ops: mut pass }) = ops.pop() else { return };
    if !ops.is_empty() {
        ops.push(op());
    }
    pass.push(op());
    ops.push(Op::Loop { times, ops: pass });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(readers: [&str; 2]) -> Program {
        let thread = |name: &str, op: &str| {
            format!(
                "[[thread]]\nname = '{name}'\nops = [{{ compute = '1us' }}, \
                 {{ loop = {{ ops = [{op}, {{ compute = '1us' }}] }} }}]\n"
            )
        };
        let read = |pipe: &str| format!("{{ read = {{ pipe = '{pipe}', bytes = 4 }} }}");
        let write = "{ write = { pipe = 'p', bytes = 8 } }, { write = { pipe = 'q', bytes = 8 } }";
        let [a, b] = readers.map(read);
        let text = thread("w", write) + &thread("a", &a) + &thread("b", &b);
        let mut program = scxlab_workload::load("t.toml", &text).unwrap();
        begin_together(&mut program);
        program
    }

    #[test]
    fn readers_of_one_channel_begin_their_passes_together() {
        let shared = program(["p", "p"]);
        assert_eq!(shared.barriers.iter().map(|b| b.parties).collect::<Vec<_>>(), [3]);
        for thread in &shared.threads {
            // After the first pass, and in the loop.
            assert_eq!(format!("{:?}", thread.ops).matches("Barrier").count(), 2);
        }
        assert!(program(["p", "q"]).barriers.is_empty());
    }
}
