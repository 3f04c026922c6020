// SPDX-License-Identifier: GPL-2.0-only
//! The checks that a program must pass before it is compiled.
//!
//! Owns: ranges, references, nesting, fork cycles, and unlocks without a lock.
//! Does not: look for deadlocks. The simulation reports them, with what each thread waits for.

use std::collections::{BTreeMap, BTreeSet};

use scxlab_kernel::cgroup::{MAX_CGROUPS, MAX_DEPTH, NAME_MAX};

use super::{MAX_BYTES, MAX_NESTING, MAX_THREADS, guests, region};
use crate::error::{SourcePlace, WorkloadError};
use crate::program::arg::{self, Arg};
use crate::program::{CgroupDef, Op, Part, Program, ThreadTemplate, names};

pub(super) type Checked = Result<(), WorkloadError>;

/// Checks everything in the program except its cgroups.
pub(super) fn program(program: &Program) -> Checked {
    let total: u64 = program.threads.iter().map(|t| u64::from(t.instances)).sum();
    if total > MAX_THREADS {
        let (at, what) = (program.whole(), "number of threads");
        return Err(WorkloadError::Limit { at, what, value: total, max: MAX_THREADS });
    }
    if program.duration.is_some_and(|d| d.0 == 0) {
        let problem = "a duration of 0: leave it out to run until every thread exits";
        return invalid(program.place(Part::Entry("duration", 0)), problem);
    }
    for (i, pipe) in program.pipes.iter().enumerate() {
        if pipe.capacity() <= pipe.overhead() || pipe.capacity() > MAX_BYTES {
            let problem = format!("pipe \"{}\" cannot hold a message", pipe.name);
            return invalid(program.place(Part::Entry("pipe", i)), problem);
        }
    }
    if let Some(i) = program.barriers.iter().position(|b| b.parties == 0) {
        let problem = format!("barrier \"{}\" has 0 parties", program.barriers[i].name);
        return invalid(program.place(Part::Entry("barrier", i)), problem);
    }
    let mut seen = BTreeSet::new();
    for (i, thread) in program.threads.iter().enumerate() {
        if !seen.insert(&thread.name) {
            let problem = format!("two threads are named \"{}\"", thread.name);
            return invalid(program.place(Part::Entry("thread", i)), problem);
        }
        template(program, i, thread)?;
    }
    region::check(program)?;
    guests::check(program)?;
    forks(program)
}

pub(super) fn invalid(at: SourcePlace, problem: impl Into<String>) -> Checked {
    Err(WorkloadError::Invalid { at, problem: problem.into() })
}

fn template(program: &Program, index: usize, thread: &ThreadTemplate) -> Checked {
    let who = |problem: &str| {
        let problem = format!("thread \"{}\": {problem}", thread.name);
        invalid(program.place(Part::Entry("thread", index)), problem)
    };
    if thread.name.is_empty() {
        return who("a thread needs a name");
    }
    if !(-20..=19).contains(&thread.nice) {
        return who("nice is from -20 to 19");
    }
    if thread.footprint > MAX_BYTES {
        return who("the footprint is more than 1 TiB");
    }
    if let Err(problem) = names::resolve(&thread.name, 0) {
        return who(&problem);
    }
    if let Some(Err(problem)) = thread.process.as_deref().map(|p| names::resolve(p, 0)) {
        return who(&problem);
    }
    arg::Policy::check(&thread.policy).or_else(|problem| who(&problem))?;
    let mut walk = Walk { program, thread: index, next: 0, held: Held::default() };
    walk.ops(&thread.ops, 0, false)
}

/// Mutexes and spin locks that the thread holds after the ops checked so far, if every loop ran
/// once.
#[derive(Default)]
struct Held {
    mutexes: BTreeSet<String>,
    spins: BTreeSet<String>,
}

/// A walk over the ops of a thread template, in the order in which they are written.
struct Walk<'a> {
    program: &'a Program,
    /// Index of the thread template.
    thread: usize,
    /// Number of ops visited so far, which is the number of the next op.
    next: usize,
    held: Held,
}

impl Walk<'_> {
    fn ops(&mut self, list: &[Op], depth: u16, in_phase: bool) -> Checked {
        let (program, thread) = (self.program, self.thread);
        for (i, op) in list.iter().enumerate() {
            let number = self.next;
            self.next += 1;
            let fail = |problem: &str| {
                let name = &program.threads[thread].name;
                let op = format!("thread \"{name}\", op {} ({})", i + 1, op.text());
                invalid(program.place(Part::Op { thread, number }), format!("{op}: {problem}"))
            };
            let locks = |()| locking(op, &mut self.held, program.from_rtapp);
            if let Err(problem) = op.check_args().and_then(locks) {
                return fail(&problem);
            }
            let (body, phase) = match op {
                Op::Loop { ops, .. } => (ops, false),
                Op::Phase { ops, .. } => (ops, true),
                _ => continue,
            };
            if body.is_empty() {
                return fail("its body is empty");
            }
            if depth + 1 >= MAX_NESTING {
                return fail("loops are nested too deeply (32 levels at most)");
            }
            if phase && in_phase {
                return fail("a phase within a phase; use a loop for the inner one");
            }
            self.ops(body, depth + 1, in_phase || phase)?;
        }
        Ok(())
    }
}

/// Updates the set of held locks for one op, and refuses an unlock or a wait without the lock.
fn locking(op: &Op, held: &mut Held, rtapp: bool) -> Result<(), String> {
    let missing = |name: &str| Err(format!("\"{name}\" is not locked here by this thread"));
    match op {
        Op::Lock(name) => {
            held.mutexes.insert(name.clone());
        }
        Op::SpinLock(name) => {
            held.spins.insert(name.clone());
        }
        Op::Unlock(name) if !held.mutexes.remove(name) => return missing(name),
        Op::SpinUnlock(name) if !held.spins.remove(name) => return missing(name),
        // A wait on a condition returns with the mutex locked, even if the thread did not hold the
        // mutex before the wait.
        Op::Wait { mutex, .. } if held.mutexes.insert(mutex.clone()) && !rtapp => {
            return missing(mutex);
        }
        _ => {}
    }
    Ok(())
}

/// Checks that every fork names a template, that no template forks itself directly or indirectly,
/// and that every template has instances or is forked.
fn forks(program: &Program) -> Checked {
    let children = fork_graph(program)?;
    if let Some(cycle) = find_cycle(&children) {
        let path: Vec<_> = cycle.iter().map(|&i| program.threads[i].name.as_str()).collect();
        let problem = format!("threads fork one another for ever: {}", path.join(" -> "));
        return invalid(program.place(Part::Entry("thread", cycle[0])), problem);
    }
    let started = |i: &usize| program.threads[*i].instances > 0;
    let mut alive: BTreeSet<usize> = (0..children.len()).filter(started).collect();
    let mut todo: Vec<usize> = alive.iter().copied().collect();
    while let Some(i) = todo.pop() {
        todo.extend(children[i].iter().copied().filter(|&c| alive.insert(c)));
    }
    match (0..children.len()).find(|i| !alive.contains(i)) {
        Some(i) => {
            let name = &program.threads[i].name;
            let problem = format!("thread \"{name}\" has 0 instances, and nothing forks it");
            invalid(program.place(Part::Entry("thread", i)), problem)
        }
        None => Ok(()),
    }
}

/// Returns for each thread template the indices of the templates that it forks.
fn fork_graph(program: &Program) -> Result<Vec<BTreeSet<usize>>, WorkloadError> {
    let known: BTreeMap<&str, usize> =
        program.threads.iter().enumerate().map(|(i, t)| (t.name.as_str(), i)).collect();
    let mut children = vec![BTreeSet::new(); program.threads.len()];
    for (i, thread) in program.threads.iter().enumerate() {
        let mut unknown = None;
        visit(&thread.ops, &mut |number, op| {
            if let Op::Fork(name) = op {
                match known.get(name.as_str()) {
                    Some(&child) => drop(children[i].insert(child)),
                    None => unknown = unknown.take().or(Some((number, name.clone()))),
                }
            }
        });
        if let Some((number, name)) = unknown {
            let at = program.place(Part::Op { thread: i, number });
            let candidates = known.keys().map(|k| (*k).to_owned()).collect();
            return Err(WorkloadError::UnknownName { at, kind: "thread", name, candidates });
        }
    }
    Ok(children)
}

/// Returns the names along a cycle of forks, with the first repeated at the end.
pub(super) fn fork_cycle(program: &Program) -> Option<Vec<String>> {
    let cycle = find_cycle(&fork_graph(program).ok()?)?;
    Some(cycle.into_iter().map(|i| program.threads[i].name.clone()).collect())
}

/// Finds a cycle of the graph and returns it with its first node repeated at the end. The search is
/// iterative, because forks may form long chains.
fn find_cycle(children: &[BTreeSet<usize>]) -> Option<Vec<usize>> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        OnPath,
        Done,
    }
    let mut marks = vec![Mark::New; children.len()];
    for root in 0..children.len() {
        if marks[root] == Mark::Done {
            continue;
        }
        marks[root] = Mark::OnPath;
        let mut path = vec![(root, children[root].iter())];
        while let Some((node, rest)) = path.last_mut() {
            let node = *node;
            let Some(&next) = rest.next() else {
                marks[node] = Mark::Done;
                path.pop();
                continue;
            };
            match marks[next] {
                Mark::Done => {}
                Mark::New => {
                    marks[next] = Mark::OnPath;
                    path.push((next, children[next].iter()));
                }
                Mark::OnPath => {
                    let nodes = path.iter().map(|(n, _)| *n).skip_while(|n| *n != next);
                    return Some(nodes.chain([next]).collect());
                }
            }
        }
    }
    None
}

/// Calls `f` with the number of each op (see `Part::Op`) and the op, including those in the bodies
/// of loops and phases.
pub(super) fn visit<'a>(ops: &'a [Op], f: &mut impl FnMut(usize, &'a Op)) {
    let mut number = 0;
    let mut todo: Vec<std::slice::Iter<'a, Op>> = vec![ops.iter()];
    while let Some(iter) = todo.last_mut() {
        match iter.next() {
            None => drop(todo.pop()),
            Some(op) => {
                f(number, op);
                number += 1;
                if let Op::Loop { ops, .. } | Op::Phase { ops, .. } = op {
                    todo.push(ops.iter());
                }
            }
        }
    }
}

/// Returns a note for each cgroup of a thread that the workload does not declare, although it
/// declares others: its name may be misspelt.
pub fn undeclared_cgroups(program: &Program) -> Vec<String> {
    let is_known = |path: &str| {
        let below = format!("{}/", path.trim_end_matches('/'));
        program.cgroups.iter().any(|def| def.path == path || def.path.starts_with(&below))
    };
    let mut notes = Vec::new();
    for thread in program.threads.iter().filter(|_| !program.cgroups.is_empty()) {
        let Some(path) = thread.cgroup.as_deref().filter(|path| !is_known(path)) else { continue };
        notes.push(format!(
            "thread \"{}\" is in the cgroup {path}, which no [[cgroup]] declares: it has the \
             default weight and no limit",
            thread.name
        ));
    }
    notes
}

/// Returns every cgroup of the program except the root, parents first. A cgroup that the program
/// does not declare, but that an op, a thread, a guest or the path of another cgroup names, gets
/// the default limits.
pub(super) fn cgroups(program: &Program) -> Result<Vec<CgroupDef>, WorkloadError> {
    let mut paths: BTreeMap<String, CgroupDef> = BTreeMap::new();
    for (i, def) in program.cgroups.iter().enumerate() {
        let part = Part::Entry("cgroup", i);
        cgroup_limits(program, part, def)?;
        if paths.insert(def.path.clone(), def.clone()).is_some() {
            invalid(program.place(part), format!("cgroup {} is declared twice", def.path))?;
        }
    }
    let declared = program.cgroups.iter().map(|def| def.path.clone());
    let mut mentioned: Vec<(Part, String)> =
        declared.enumerate().map(|(i, path)| (Part::Entry("cgroup", i), path)).collect();
    let mut xattrs = Vec::new();
    for (thread, template) in program.threads.iter().enumerate() {
        let own = template.cgroup.iter().map(|path| (Part::Entry("thread", thread), path.clone()));
        mentioned.extend(own);
        visit(&template.ops, &mut |number, op| {
            let part = Part::Op { thread, number };
            if let Op::MoveCgroup(path) | Op::SetXattr { cgroup: path, .. } = op {
                mentioned.push((part, path.clone()));
            }
            if let Op::SetXattr { cgroup, name, value } = op {
                xattrs.push((part, cgroup, name, value));
            }
        });
    }
    for (i, guest) in program.guests.iter().enumerate() {
        let of_vcpus = |instance| {
            let vcpus = if guest.vcpu_cgroups { guest.vcpus } else { 1 };
            (0..vcpus).filter_map(move |vcpu| guest.vcpu_cgroup(instance, vcpu))
        };
        let paths = (0..guest.instances).flat_map(of_vcpus);
        mentioned.extend(paths.map(|path| (Part::Entry("guest", i), path)));
    }
    for (part, cgroup, name, value) in xattrs {
        xattr(program, part, cgroup, name, value)?;
    }
    for (part, path) in mentioned {
        cgroup_path(program, part, &path)?;
        // A parent's path is a prefix of its children's paths, so the order of `paths` puts the
        // parent first.
        for (slash, _) in path.match_indices('/').skip(1) {
            let parent = &path[..slash];
            paths.entry(parent.to_owned()).or_insert_with(|| CgroupDef::new(parent));
        }
        paths.entry(path.clone()).or_insert_with(|| CgroupDef::new(&path));
    }
    // "/" is the root. It always exists and has no limits.
    paths.remove("/");
    if paths.len() >= MAX_CGROUPS as usize {
        let (value, max) = (paths.len() as u64, u64::from(MAX_CGROUPS) - 1);
        let (at, what) = (program.whole(), "number of cgroups");
        return Err(WorkloadError::Limit { at, what, value, max });
    }
    Ok(paths.into_values().collect())
}

fn cgroup_path(program: &Program, part: Part, path: &str) -> Checked {
    let clean = path.starts_with('/')
        && (path == "/" || path[1..].split('/').all(|part| !matches!(part, "" | "." | "..")));
    let shown: String = path.chars().take(60).collect();
    let shown = if shown == path { shown } else { shown + "..." };
    let (depth, name) =
        path.split('/').skip(1).fold((0, 0), |(n, len), s| (n + 1, len.max(s.len())));
    let why = match () {
        () if !clean => "is not of the form /a/b".to_owned(),
        () if path.contains(['\0', '\n']) => {
            "contains a NUL or a line feed, which cgroupfs refuses".to_owned()
        }
        () if depth > MAX_DEPTH => {
            format!("is {depth} levels deep; at most {MAX_DEPTH} are modelled")
        }
        () if name > NAME_MAX => {
            format!("has a name of {name} bytes; at most {NAME_MAX} are possible")
        }
        () => return Ok(()),
    };
    invalid(program.place(part), format!("cgroup path {shown:?} {why}"))
}

/// Checks an extended attribute. Only the namespace `user.` is allowed: setting its attributes
/// needs no privilege, and BPF programs may read them.
fn xattr(program: &Program, part: Part, cgroup: &str, name: &str, value: &str) -> Checked {
    let clean = name.strip_prefix("user.").is_some_and(|n| !n.is_empty())
        && name.len() <= 255
        && !name.contains('\0')
        && value.len() <= 64 << 10;
    if clean {
        return Ok(());
    }
    let problem = "the name of an xattr is user.NAME, up to 255 bytes; its value has up to 64 KiB";
    invalid(program.place(part), format!("cgroup {cgroup}: {name:?}: {problem}"))
}

fn cgroup_limits(program: &Program, part: Part, def: &CgroupDef) -> Checked {
    cgroup_path(program, part, &def.path)?;
    let fail =
        |problem: &str| invalid(program.place(part), format!("cgroup {}: {problem}", def.path));
    if def.path == "/" {
        return fail("the root has no limits");
    }
    if !(1..=10_000).contains(&def.weight) {
        return fail("weight is from 1 to 10000");
    }
    // The kernel accepts the same periods in cpu.max.
    if !(1_000_000..=1_000_000_000).contains(&def.period.0) {
        return fail("period is from 1ms to 1s");
    }
    for (name, value) in &def.xattrs {
        xattr(program, part, &def.path, name, value)?;
    }
    match def.quota {
        Some(quota) if quota.0 < 1_000_000 => fail("quota is at least 1ms"),
        _ => Ok(()),
    }
}
