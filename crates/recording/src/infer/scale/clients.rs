// SPDX-License-Identifier: GPL-2.0-only
//! The place of each task: a source, a task that belongs to one, or a shared one.
//!
//! Owns: the graph of requests. An edge goes from a task to one that waited for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use scxlab_machine::Nanos;
use scxlab_workload::program::Op;

use super::Scale;
use crate::history::{Origin, Step, TaskIndex, Waker};
use crate::infer::task::{Act, Item, Semaphore};
use crate::infer::{Plan, Wait, futexes, roles};

/// A group of tasks that are copied together, or one arrival with all that it causes.
pub type Unit = usize;

/// The place of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Copied with this unit.
    Private(Unit),
    /// A child that ended, of a shared task. Copied with the request in which it was forked.
    Request,
    /// Single, with the requests of all copies.
    Shared,
    /// Single, with arrivals of its own.
    Open,
}

/// The places of all tasks.
pub struct Clients {
    pub places: BTreeMap<TaskIndex, Place>,
    /// Distance of each task to the nearest source in wake-ups.
    levels: BTreeMap<TaskIndex, u32>,
    /// Number of units that are no arrivals.
    pub nr_units: usize,
    /// Readers of each channel.
    readers: BTreeMap<String, BTreeSet<TaskIndex>>,
    /// Roles that wait for one another without any source.
    closed: BTreeSet<String>,
}

/// The sources that reach a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reached {
    Never,
    By(usize),
    BySeveral,
}

/// How the tasks of a node wait.
#[derive(Clone, Copy, Default)]
struct Waits {
    /// For another node.
    input: u64,
    /// For time, or for something outside.
    own: u64,
    arrivals: u64,
}

impl Waits {
    /// A task that now and then waits for time, such as a server with time-outs, is no source.
    fn is_source(self) -> bool {
        self.input == 0 || self.own * 4 >= self.input
    }

    fn is_open(self) -> bool {
        self.is_source() && self.arrivals * 2 > self.own
    }
}

impl Clients {
    pub fn of(plan: &Plan<'_>, items: &BTreeMap<TaskIndex, Vec<Item>>, whole: bool) -> Clients {
        let nodes = Nodes::of(plan, items);
        let readers = readers(items);
        let edges = edges(plan, items, &nodes, &readers);
        let waits = waits(plan, items, &nodes);
        let sources: BTreeSet<usize> = match whole {
            true => BTreeSet::new(),
            false => nodes.all().filter(|n| waits[n].is_source()).collect(),
        };
        let (reached, node_levels) = reach(&nodes, &edges, &sources);
        let components = components(&nodes, &edges, &reached);
        let mut units: BTreeMap<usize, Unit> = BTreeMap::new();
        let mut unit = |of: usize| {
            let next = units.len();
            *units.entry(of).or_insert(next)
        };
        let mut places = BTreeMap::new();
        let mut closed = BTreeSet::new();
        for &task in items.keys() {
            let node = nodes.of_task(task);
            let is_child = nodes.is_request_child(plan, task);
            let place = match reached[&node] {
                Reached::By(source) if waits[&source].is_open() => match node == source {
                    true => Place::Open,
                    false => Place::Shared,
                },
                Reached::By(source) => Place::Private(unit(source)),
                Reached::BySeveral => Place::Shared,
                Reached::Never => {
                    if nodes.size_of(&components, components[&node]) > 1 {
                        closed.insert(roles::name(&plan.history.tasks[task as usize].name.comm));
                    }
                    Place::Private(unit(components[&node]))
                }
            };
            let is_single = matches!(place, Place::Open | Place::Shared);
            places.insert(task, if is_single && is_child { Place::Request } else { place });
        }
        let levels = items.keys().map(|t| (*t, node_levels[&nodes.of_task(*t)])).collect();
        let nr_units = units.len();
        Clients { places, levels, nr_units, readers, closed }
    }

    pub fn place(&self, task: TaskIndex) -> Place {
        self.places.get(&task).copied().unwrap_or(Place::Shared)
    }

    pub fn is_private(&self, task: TaskIndex) -> bool {
        matches!(self.place(task), Place::Private(_) | Place::Request)
    }

    /// Returns the task for which each copy has a channel of its own: the one that reads it.
    pub fn reader(&self, pipe: &str) -> Option<TaskIndex> {
        let readers = self.readers.get(pipe)?;
        let mut all = readers.iter().copied();
        let first = all.next()?;
        let place = self.place(first);
        let same = matches!(place, Place::Private(_)) && all.all(|t| self.place(t) == place);
        (same || self.is_private(first) && readers.len() == 1).then_some(first)
    }

    /// Whether an act of a shared task begins the service of a request.
    pub fn begins(&self, task: TaskIndex, item: &Item, giver: Option<TaskIndex>) -> bool {
        let level = |task: TaskIndex| self.levels.get(&task).copied().unwrap_or(0);
        match (&item.act, self.place(task)) {
            (Act::Op(Op::Timer { name, .. }), Place::Open) => name == crate::ARRIVALS,
            (_, Place::Open) => false,
            (Act::Wait(_) | Act::Op(Op::Read { .. } | Op::Poll { .. }), _) => {
                giver.is_none_or(|by| level(by) < level(task))
            }
            _ => false,
        }
    }

    /// Returns the names of the threads and objects that each copy has for itself.
    pub fn private_names(&self, plan: &Plan<'_>) -> BTreeSet<String> {
        let private = self.places.keys().copied().filter(|task| self.is_private(*task));
        let mut names = BTreeSet::new();
        for task in private {
            names.insert(plan.names[task as usize].clone());
            names.insert(plan.semaphore_name(Semaphore::Of(task)));
            names.insert(plan.semaphore_name(Semaphore::Exits(task)));
            let waits = &plan.waits[task as usize];
            names.extend(waits.iter().filter_map(|wait| match wait {
                Wait::Barrier(object) => Some(futexes::barrier_name(*object)),
                _ => None,
            }));
        }
        let pipes = self.readers.keys().filter(|pipe| self.reader(pipe).is_some());
        names.extend(pipes.cloned());
        names
    }

    /// Returns sentences on what is copied.
    pub fn notes(&self, plan: &Plan<'_>, scale: Scale) -> Vec<String> {
        let of = |is: fn(Place) -> bool| -> String {
            let tasks = self.places.iter().filter(|(_, place)| is(**place));
            let role = |(t, _): (&TaskIndex, &Place)| {
                roles::name(&plan.history.tasks[*t as usize].name.comm)
            };
            tasks.map(role).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ")
        };
        let all = [
            (of(|p| matches!(p, Place::Private(_))), "there are that many of"),
            (of(|p| p == Place::Open), "that many arrivals, drawn from the recorded gaps, come to"),
            (of(|p| p == Place::Shared), "single, with the requests of all copies, stay"),
        ];
        let mut notes: Vec<String> = all
            .into_iter()
            .filter(|(roles, _)| !roles.is_empty())
            .map(|(roles, what)| format!("scale={scale}: {what} {roles}"))
            .collect();
        if !self.closed.is_empty() {
            let closed: Vec<&str> = self.closed.iter().map(String::as_str).collect();
            notes.push(format!(
                "scale={scale}: the recording does not tell clients from servers among {}, which wait \
                 for one another and for nothing outside; they are copied as a whole",
                closed.join(", ")
            ));
        }
        notes
    }
}

/// Sets of tasks that are copied together: a barrier's parties, the virtual CPUs of a guest, a task
/// and its children that ended.
struct Nodes {
    node: BTreeMap<TaskIndex, usize>,
}

impl Nodes {
    fn of(plan: &Plan<'_>, items: &BTreeMap<TaskIndex, Vec<Item>>) -> Nodes {
        let mut parent: BTreeMap<TaskIndex, TaskIndex> = items.keys().map(|t| (*t, *t)).collect();
        let mut groups: BTreeMap<(&str, String), TaskIndex> = BTreeMap::new();
        let mut pairs = Vec::new();
        for (&task, acts) in items {
            let t = &plan.history.tasks[task as usize];
            if let Origin::Fork(by) = t.origin
                && plan.ends[task as usize]
                && items.contains_key(&by)
            {
                pairs.push((by, task));
            }
            let mut member = |group: (&'static str, String)| {
                let first = *groups.entry(group).or_insert(task);
                pairs.push((first, task));
            };
            if t.is_vcpu {
                member(("guest", t.name.tgid.to_string()));
            }
            // The last task at a barrier does not wait.
            let mut barriers = BTreeSet::new();
            for item in acts {
                if let Act::Op(Op::Barrier(name)) = &item.act
                    && barriers.insert(name)
                {
                    member(("barrier", name.clone()));
                }
            }
        }
        for (a, b) in pairs {
            let (a, b) = (root(&parent, a), root(&parent, b));
            parent.insert(a.max(b), a.min(b));
        }
        let node = items.keys().map(|t| (*t, root(&parent, *t) as usize)).collect();
        Nodes { node }
    }

    fn of_task(&self, task: TaskIndex) -> usize {
        self.node[&task]
    }

    fn all(&self) -> impl Iterator<Item = usize> + '_ {
        self.node.values().copied().collect::<BTreeSet<_>>().into_iter()
    }

    /// Returns the number of tasks of a component of nodes.
    fn size_of(&self, components: &BTreeMap<usize, usize>, component: usize) -> usize {
        self.node.values().filter(|node| components[node] == component).count()
    }

    /// Whether a task was forked in the recording, and ended.
    fn is_request_child(&self, plan: &Plan<'_>, task: TaskIndex) -> bool {
        let t = &plan.history.tasks[task as usize];
        let by = if let Origin::Fork(by) = t.origin { Some(by) } else { None };
        plan.ends[task as usize] && by.is_some_and(|by| self.node.contains_key(&by))
    }
}

fn root(parent: &BTreeMap<TaskIndex, TaskIndex>, mut task: TaskIndex) -> TaskIndex {
    while parent[&task] != task {
        task = parent[&task];
    }
    task
}

/// Returns the tasks that read each channel.
fn readers(items: &BTreeMap<TaskIndex, Vec<Item>>) -> BTreeMap<String, BTreeSet<TaskIndex>> {
    let mut readers: BTreeMap<String, BTreeSet<TaskIndex>> = BTreeMap::new();
    for (&task, items) in items {
        for item in items {
            let pipes = match &item.act {
                Act::Op(Op::Read { pipe, .. }) => std::slice::from_ref(pipe),
                Act::Op(Op::Poll { pipes, .. }) => pipes,
                _ => continue,
            };
            for pipe in pipes {
                if !readers.get(pipe).is_some_and(|tasks| tasks.contains(&task)) {
                    readers.entry(pipe.clone()).or_default().insert(task);
                }
            }
        }
    }
    readers
}

/// Returns the edges between nodes, from a node to those that waited for it.
fn edges(
    plan: &Plan<'_>,
    items: &BTreeMap<TaskIndex, Vec<Item>>,
    nodes: &Nodes,
    readers: &BTreeMap<String, BTreeSet<TaskIndex>>,
) -> BTreeMap<usize, BTreeSet<usize>> {
    let mut edges: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    let mut add = |from: TaskIndex, to: TaskIndex| {
        let (from, to) = (nodes.of_task(from), nodes.of_task(to));
        if from != to {
            edges.entry(from).or_default().insert(to);
        }
    };
    for (&task, list) in items {
        for item in list {
            match (&item.act, item.with) {
                (Act::Wait(_), Some(by)) if items.contains_key(&by) => add(by, task),
                (Act::Op(Op::Write { pipe, .. }), _) => {
                    readers.get(pipe).into_iter().flatten().for_each(|to| add(task, *to));
                }
                _ => {}
            }
        }
    }
    for &child in items.keys() {
        if let Origin::Fork(by) = plan.history.tasks[child as usize].origin
            && items.contains_key(&by)
        {
            add(by, child);
        }
    }
    edges
}

fn waits(
    plan: &Plan<'_>,
    items: &BTreeMap<TaskIndex, Vec<Item>>,
    nodes: &Nodes,
) -> BTreeMap<usize, Waits> {
    let mut waits: BTreeMap<usize, Waits> = nodes.all().map(|n| (n, Waits::default())).collect();
    for &task in items.keys() {
        let node = nodes.of_task(task);
        let of = waits.entry(node).or_default();
        let t = &plan.history.tasks[task as usize];
        let inside = |sleep: u32| match t.sleeps[sleep as usize].by {
            Waker::Task(by) => items.contains_key(&by) && nodes.of_task(by) == node,
            _ => false,
        };
        for (i, step) in t.steps.iter().enumerate() {
            let Step::Sleep(sleep) = *step else { continue };
            let reads =
                matches!(t.steps.get(i + 1), Some(Step::Call(_, scxlab_trace::Call::Read { .. })));
            match plan.wait(task, sleep) {
                Wait::Dependency if !inside(sleep) => of.input += 1,
                Wait::Channel if reads => of.input += 1,
                Wait::For(_) | Wait::Timer if !t.is_vcpu => of.own += 1,
                Wait::Arrival => (of.own, of.arrivals) = (of.own + 1, of.arrivals + 1),
                _ => {}
            }
        }
        // A reader that always found bytes has waited for none.
        let reads = |item: &Item| matches!(item.act, Act::Op(Op::Read { .. } | Op::Poll { .. }));
        if of.input == 0 && items[&task].iter().any(reads) {
            of.input = 1;
        }
    }
    waits
}

/// Returns the sources that reach each node on ways that lead through no other source, and the
/// nodes' distances from the nearest one.
fn reach(
    nodes: &Nodes,
    edges: &BTreeMap<usize, BTreeSet<usize>>,
    sources: &BTreeSet<usize>,
) -> (BTreeMap<usize, Reached>, BTreeMap<usize, u32>) {
    let mut reached: BTreeMap<usize, Reached> = nodes.all().map(|n| (n, Reached::Never)).collect();
    let mut levels: BTreeMap<usize, u32> = nodes.all().map(|n| (n, u32::MAX)).collect();
    let mut queue: VecDeque<usize> = sources.iter().copied().collect();
    for &source in sources {
        reached.insert(source, Reached::By(source));
        levels.insert(source, 0);
    }
    while let Some(node) = queue.pop_front() {
        for &to in edges.get(&node).into_iter().flatten().filter(|to| !sources.contains(to)) {
            let merged = match (reached[&node], reached[&to]) {
                (by, Reached::Never) => by,
                (by, before) if by == before => before,
                _ => Reached::BySeveral,
            };
            let level = levels[&node].saturating_add(1).min(levels[&to]);
            if merged != reached[&to] || level < levels[&to] {
                (_, _) = (reached.insert(to, merged), levels.insert(to, level));
                queue.push_back(to);
            }
        }
    }
    (reached, levels)
}

/// Returns the component of each node: nodes that no source reaches are together if there is an
/// edge between them.
fn components(
    nodes: &Nodes,
    edges: &BTreeMap<usize, BTreeSet<usize>>,
    reached: &BTreeMap<usize, Reached>,
) -> BTreeMap<usize, usize> {
    let mut component: BTreeMap<usize, usize> = nodes.all().map(|n| (n, n)).collect();
    fn root(component: &BTreeMap<usize, usize>, mut node: usize) -> usize {
        while component[&node] != node {
            node = component[&node];
        }
        node
    }
    for (from, to) in edges.iter().flat_map(|(from, all)| all.iter().map(move |to| (*from, *to))) {
        if reached[&from] == Reached::Never && reached[&to] == Reached::Never {
            let (a, b) = (root(&component, from), root(&component, to));
            component.insert(a.max(b), a.min(b));
        }
    }
    nodes.all().map(|n| (n, root(&component, n))).collect()
}

/// Time, whether it takes, task, index of the act, amount.
type Transfer = (Nanos, bool, TaskIndex, usize, u64);

/// Givers of tokens and bytes, and the times, by the taker and the index of its act.
pub type Givers = BTreeMap<(TaskIndex, usize), (TaskIndex, Nanos)>;

/// An object that tasks fill and empty.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Store<'a> {
    Semaphore(Semaphore),
    Pipe(&'a str),
}

/// Returns, for each wait on a semaphore and each read of a channel, by its task and index, the
/// task that gave the token or the first byte, and when. First come, first served.
pub fn givers(items: &BTreeMap<TaskIndex, Vec<Item>>) -> Givers {
    // Gives come before takes of the same time.
    let mut stores: BTreeMap<Store<'_>, Vec<Transfer>> = BTreeMap::new();
    for (&task, list) in items {
        for (i, item) in list.iter().enumerate() {
            let (store, takes, amount) = match &item.act {
                Act::Post(semaphore) => (Store::Semaphore(*semaphore), false, 1),
                Act::Wait(semaphore) => (Store::Semaphore(*semaphore), true, 1),
                Act::Op(Op::Write { pipe, bytes }) => (Store::Pipe(pipe), false, *bytes),
                Act::Op(Op::Read { pipe, bytes }) => (Store::Pipe(pipe), true, *bytes),
                // Which of several channels a poll read is not part of the op.
                Act::Op(Op::Poll { pipes, bytes, .. }) if pipes.len() == 1 => {
                    (Store::Pipe(&pipes[0]), true, *bytes)
                }
                _ => continue,
            };
            stores.entry(store).or_default().push((item.at, takes, task, i, amount));
        }
    }
    let mut found = BTreeMap::new();
    for mut all in stores.into_values() {
        all.sort_unstable();
        let mut given: VecDeque<(TaskIndex, Nanos, u64)> = VecDeque::new();
        for (at, takes, task, i, mut amount) in all {
            if !takes {
                given.push_back((task, at, amount));
                continue;
            }
            if let Some(&(by, at, _)) = given.front() {
                found.insert((task, i), (by, at));
            }
            while let Some(first) = given.front_mut().filter(|_| amount > 0) {
                let part = first.2.min(amount);
                (first.2, amount) = (first.2 - part, amount - part);
                if first.2 == 0 {
                    given.pop_front();
                }
            }
        }
    }
    found
}

/// Returns the name of the channel that an act writes.
pub fn written(item: &Item) -> Option<&str> {
    match &item.act {
        Act::Op(Op::Write { pipe, .. }) => Some(pipe),
        _ => None,
    }
}
