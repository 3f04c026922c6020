// SPDX-License-Identifier: GPL-2.0-only
//! The acts of the copies.
//!
//! Owns: the parts of shared tasks, the requests of each copy, and the times of further arrivals.
//!
//! ```text
//! client     post(S) wait(C) |                    client #2     post(S) wait(C #2) |
//! server     wait(S) work post(C) | wait(S) work post(C #2) |
//! ```
//!
//! The draws depend on the recording and the factor alone.

use std::collections::{BTreeMap, BTreeSet};

use scxlab_machine::{Nanos, Stream};
use scxlab_workload::program::{Op, TimeSpan};

use super::clients::{Clients, Givers, Place, Unit, givers, written};
use super::{Copy, Lists};
use crate::arrivals::{self, ARRIVALS};
use crate::history::{Origin, TaskIndex};
use crate::infer::task::{Act, Item, Semaphore};
use crate::infer::{Copies, Plan, locks, roles};

/// The acts of a shared task for one request.
#[derive(Clone, Debug)]
struct Part {
    from: usize,
    to: usize,
    at: Nanos,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A request of this unit; None: not known.
    Request(Option<Unit>),
    /// The wait for the end of a pass.
    Tail,
}

/// The parts of all shared tasks.
struct Parts<'a> {
    plan: &'a Plan<'a>,
    clients: &'a Clients,
    items: &'a BTreeMap<TaskIndex, Vec<Item>>,
    parts: BTreeMap<TaskIndex, Vec<Part>>,
    /// The part in which a child of a request was forked.
    forks: BTreeMap<TaskIndex, (TaskIndex, usize)>,
    /// Task and time of each arrival.
    arrivals: BTreeMap<Unit, (TaskIndex, Nanos)>,
}

/// Returns the acts of all copies.
pub fn lists(
    plan: &Plan<'_>,
    clients: &Clients,
    items: &BTreeMap<TaskIndex, Vec<Item>>,
    copies: Copies,
) -> Lists {
    let scale = copies.scale;
    let parts = Parts::of(plan, clients, items);
    let mut lists = Lists::new();
    let mut single: BTreeMap<TaskIndex, Vec<(Nanos, usize, Vec<Item>)>> = BTreeMap::new();
    for copy in 0..scale.copies() {
        let part = scale.permille - copy * 1000;
        let chosen = Chosen::draw(&parts, (copy, copies.draw), part.min(1000));
        for (&task, list) in items {
            if clients.is_private(task) {
                if chosen.has_task(&parts, task) {
                    let of = |item: &Item| Item { copy, ..item.clone() };
                    lists.insert((copy, task), list.iter().map(of).collect());
                }
            } else {
                let further = parts.parts[&task].iter().enumerate().map(|(i, part)| {
                    let at = chosen.time(part);
                    (at, i, chosen.acts(&parts, task, i, copy))
                });
                single.entry(task).or_default().extend(further);
            }
        }
    }
    for (task, mut all) in single {
        // Of equal times, the copies follow the original.
        all.sort_by_key(|(at, part, _)| (*at, *part));
        let mut list: Vec<Item> = Vec::new();
        let mut last = 0;
        for (at, _, acts) in all {
            for mut item in acts {
                if let Act::Op(Op::Timer { name, period, .. }) = &mut item.act
                    && name == ARRIVALS
                {
                    let at = plan.since_birth(task, at.min(plan.history.end));
                    *period = TimeSpan(at.saturating_sub(last));
                    last = last.max(at);
                }
                list.push(item);
            }
        }
        lists.insert((0, task), list);
    }
    if !scale.permille.is_multiple_of(1000) {
        settle(clients, &mut lists);
    }
    lists.values_mut().for_each(locks::sanitize);
    lists.retain(|(copy, _), list| *copy == 0 || !list.is_empty());
    lists
}

impl<'a> Parts<'a> {
    fn of(
        plan: &'a Plan<'a>,
        clients: &'a Clients,
        items: &'a BTreeMap<TaskIndex, Vec<Item>>,
    ) -> Parts<'a> {
        let givers = givers(items);
        let mut all = Parts {
            plan,
            clients,
            items,
            parts: BTreeMap::new(),
            forks: BTreeMap::new(),
            arrivals: BTreeMap::new(),
        };
        let mut order = Vec::new();
        for (&task, list) in items.iter().filter(|(task, _)| !clients.is_private(**task)) {
            // The acts before the first wait belong to a request from before the recording.
            let first = Part { from: 0, to: 0, at: 0, kind: Kind::Request(None) };
            let mut parts = vec![first];
            for (i, item) in list.iter().enumerate() {
                let giver = givers.get(&(task, i)).map(|giver| giver.0);
                let is_tail = i + 1 == list.len() && is_tail(plan, item);
                if is_tail || clients.begins(task, item, giver) {
                    order.extend((!is_tail).then_some((item.at, task, parts.len())));
                    let kind = if is_tail { Kind::Tail } else { Kind::Request(None) };
                    parts.push(Part { from: i, to: i, at: item.at, kind });
                }
                if let Some(part) = parts.last_mut() {
                    part.to = i + 1;
                }
            }
            all.parts.insert(task, parts);
        }
        order.sort_unstable();
        all.find_forks();
        for (_, task, part) in order {
            let from = all.parts[&task][part].from;
            let unit = all.unit_of_part(task, from, &givers);
            all.parts.entry(task).and_modify(|p| p[part].kind = Kind::Request(unit));
        }
        all.find_takers(&givers);
        all
    }

    /// Gives parts whose request is not known to the client that took what they gave.
    fn find_takers(&mut self, givers: &Givers) {
        for (&(taker, _), &(by, at)) in givers {
            let Place::Private(unit) = self.clients.place(taker) else { continue };
            let Some(parts) = self.parts.get_mut(&by) else { continue };
            let i = parts.partition_point(|part| part.at <= at).saturating_sub(1);
            if parts[i].kind == Kind::Request(None) {
                parts[i].kind = Kind::Request(Some(unit));
            }
        }
    }

    /// Returns the unit whose request an act begins to serve.
    fn unit_of_part(&mut self, task: TaskIndex, at: usize, givers: &Givers) -> Option<Unit> {
        let item = &self.items[&task][at];
        if self.clients.place(task) == Place::Open {
            let unit = self.clients.nr_units + self.arrivals.len();
            self.arrivals.insert(unit, (task, item.at));
            return Some(unit);
        }
        let (by, when) = *givers.get(&(task, at))?;
        self.unit_at(by, when)
    }

    /// Returns the unit for which a task acts at a time.
    fn unit_at(&self, task: TaskIndex, at: Nanos) -> Option<Unit> {
        match self.clients.place(task) {
            Place::Private(unit) => Some(unit),
            Place::Request => self.unit_at(self.parent(task)?, self.birth(task)),
            Place::Shared | Place::Open => {
                let parts = self.parts.get(&task)?;
                let before = parts.partition_point(|part| part.at <= at).checked_sub(1)?;
                if let Kind::Request(unit) = parts[before].kind { unit } else { None }
            }
        }
    }

    fn parent(&self, task: TaskIndex) -> Option<TaskIndex> {
        match self.plan.history.tasks[task as usize].origin {
            Origin::Fork(parent) => Some(parent),
            _ => None,
        }
    }

    fn birth(&self, task: TaskIndex) -> Nanos {
        self.plan.history.tasks[task as usize].born
    }

    fn find_forks(&mut self) {
        for (&task, parts) in &self.parts {
            for (i, part) in parts.iter().enumerate() {
                for item in &self.items[&task][part.from..part.to] {
                    if let (Act::Op(Op::Fork(_)), Some(child)) = (&item.act, item.with) {
                        self.forks.insert(child, (task, i));
                    }
                }
            }
        }
    }

    /// Returns the part to which a child of a request belongs.
    fn part_of(&self, mut task: TaskIndex) -> Option<(TaskIndex, usize)> {
        while self.clients.place(task) == Place::Request {
            if let Some(part) = self.forks.get(&task) {
                return Some(*part);
            }
            task = self.parent(task)?;
        }
        None
    }
}

/// Whether a list's last act is the wait for the end of the pass.
fn is_tail(plan: &Plan<'_>, item: &Item) -> bool {
    matches!(item.act, Act::Op(Op::Timer { .. })) && item.at >= plan.history.end
}

/// The units and parts of one copy.
struct Chosen {
    units: BTreeSet<Unit>,
    /// Parts whose unit is not known.
    parts: BTreeSet<(TaskIndex, usize)>,
    is_first: bool,
    /// Times of arrivals that are not the recorded ones.
    times: BTreeMap<Unit, Nanos>,
    /// Recorded times of the arrivals.
    recorded: BTreeMap<Unit, Nanos>,
}

impl Chosen {
    /// Draws `permille` thousandths of the units of each kind.
    fn draw(parts: &Parts<'_>, (copy, draw): (Copy, u32), permille: u32) -> Chosen {
        let mut stream = Stream::new(draw.into(), "recording.scale", copy.into());
        let mut kinds: BTreeMap<String, BTreeSet<Unit>> = BTreeMap::new();
        for (&task, place) in &parts.clients.places {
            if let Place::Private(unit) = place {
                let role = roles::name(&parts.plan.history.tasks[task as usize].name.comm);
                kinds.entry(role).or_default().insert(*unit);
            }
        }
        let mut units = BTreeSet::new();
        let mut seen = BTreeSet::new();
        for kind in kinds.into_values() {
            // A unit with tasks of several roles counts once.
            let kind: Vec<Unit> = kind.into_iter().filter(|unit| seen.insert(*unit)).collect();
            units.extend(share(&mut stream, kind, permille));
        }
        // A workload without any client would be none.
        if copy == 0 && units.is_empty() {
            units.extend(parts.clients.places.values().find_map(|place| match place {
                Place::Private(unit) => Some(*unit),
                _ => None,
            }));
        }
        let mut times = BTreeMap::new();
        for (&task, _) in parts.parts.iter() {
            let of_task =
                |(unit, (by, _)): (&Unit, &(TaskIndex, Nanos))| (*by == task).then_some(*unit);
            let all: Vec<Unit> = parts.arrivals.iter().filter_map(of_task).collect();
            if all.is_empty() {
                continue;
            }
            let some = share(&mut stream, all.clone(), permille);
            if copy > 0 {
                times.extend(arrival_times(parts, task, &all, &some, &mut stream));
            }
            units.extend(some);
        }
        let mut unknown = Vec::new();
        for (&task, all) in &parts.parts {
            let kind = |i: &usize| all[*i].kind == Kind::Request(None);
            unknown.extend((0..all.len()).filter(kind).map(|i| (task, i)));
        }
        let recorded = parts.arrivals.iter().map(|(unit, (_, at))| (*unit, *at)).collect();
        let parts = share(&mut stream, unknown, permille).into_iter().collect();
        Chosen { units, parts, is_first: copy == 0, times, recorded }
    }

    fn has_part(&self, parts: &Parts<'_>, task: TaskIndex, part: usize) -> bool {
        match parts.parts[&task][part].kind {
            Kind::Tail => self.is_first,
            Kind::Request(Some(unit)) => self.units.contains(&unit),
            Kind::Request(None) => self.parts.contains(&(task, part)),
        }
    }

    fn has_task(&self, parts: &Parts<'_>, task: TaskIndex) -> bool {
        match parts.clients.place(task) {
            Place::Private(unit) => self.units.contains(&unit),
            Place::Request => {
                parts.part_of(task).is_some_and(|(by, part)| self.has_part(parts, by, part))
            }
            Place::Shared | Place::Open => true,
        }
    }

    /// Returns the time at which a part begins in this copy.
    fn time(&self, part: &Part) -> Nanos {
        let unit = match part.kind {
            Kind::Tail => return Nanos::MAX,
            Kind::Request(unit) => unit,
        };
        let moved =
            unit.and_then(|unit| Some((*self.recorded.get(&unit)?, *self.times.get(&unit)?)));
        let Some((recorded, new)) = moved else { return part.at };
        part.at.saturating_add(new).saturating_sub(recorded)
    }

    /// Returns the acts of a part in this copy. An act on an object of a private task is there if
    /// that task is, whoever's request the part serves.
    fn acts(&self, parts: &Parts<'_>, task: TaskIndex, part: usize, copy: Copy) -> Vec<Item> {
        let Part { from, to, .. } = parts.parts[&task][part];
        let is_in = self.has_part(parts, task, part);
        let clients = parts.clients;
        let stays = |item: &&Item| match (&item.act, item.with) {
            (Act::Op(Op::Fork(_)), Some(child)) => match clients.is_private(child) {
                true => self.has_task(parts, child),
                false => self.is_first,
            },
            (Act::Post(semaphore), _) if is_private(clients, *semaphore) => {
                semaphore.owner().is_some_and(|owner| self.has_task(parts, owner))
            }
            _ => match written(item).and_then(|pipe| clients.reader(pipe)) {
                Some(reader) => self.has_task(parts, reader),
                None => is_in,
            },
        };
        let acts = parts.items[&task][from..to].iter().filter(stays);
        acts.map(|item| Item { copy, ..item.clone() }).collect()
    }
}

/// Draws a share of `all`, in order.
fn share<T>(stream: &mut Stream, all: Vec<T>, permille: u32) -> Vec<T> {
    if permille >= 1000 {
        return all;
    }
    let exact = all.len() as u64 * u64::from(permille);
    let mut wanted = exact / 1000 + u64::from(stream.below(1000) < exact % 1000);
    let mut left = all.len() as u64;
    let draw = |_: &T| {
        let taken = stream.below(left) < wanted;
        (left, wanted) = (left - 1, wanted - u64::from(taken));
        taken
    };
    all.into_iter().filter(draw).collect()
}

/// Returns new times for some of a task's arrivals. Their gaps are drawn from all recorded gaps,
/// and fill the time of the task.
fn arrival_times(
    parts: &Parts<'_>,
    task: TaskIndex,
    all: &[Unit],
    some: &[Unit],
    stream: &mut Stream,
) -> BTreeMap<Unit, Nanos> {
    let begin = parts.birth(task);
    let end = parts.plan.history.end;
    let times = all.iter().map(|unit| parts.arrivals[unit].1);
    let mut times: Vec<Nanos> = [begin].into_iter().chain(times).chain([end]).collect();
    times.sort_unstable();
    let gaps: Vec<Nanos> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let length = end.saturating_sub(begin);
    // The last gap lasts until the end.
    let times = arrivals::times(&gaps, some.len() + 1, length, stream);
    some.iter().zip(times).map(|(unit, after)| (*unit, begin.saturating_add(after))).collect()
}

/// An object of the scaled program on which posts and waits, or bytes, must be equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Object {
    Semaphore(Copy, Semaphore),
    Pipe(Copy, String),
}

/// Takes back posts, waits and bytes without a counterpart, because the requests of a part of the
/// clients cannot be told with certainty. A surplus post is the first after which the semaphore
/// is never at 0 again, and a surplus wait is one that finds it at 0; otherwise waits would no
/// longer be for the posts for which they were.
fn settle(clients: &Clients, lists: &mut Lists) {
    let mut all: BTreeMap<Object, Vec<Change>> = BTreeMap::new();
    for (&key, list) in lists.iter() {
        for (i, item) in list.iter().enumerate() {
            let (object, takes, amount) = match &item.act {
                Act::Post(semaphore) => (of_semaphore(clients, item.copy, *semaphore), false, 1),
                Act::Wait(semaphore) => (of_semaphore(clients, item.copy, *semaphore), true, 1),
                Act::Op(Op::Write { pipe, bytes }) => {
                    (of_pipe(clients, item.copy, pipe), false, *bytes)
                }
                Act::Op(Op::Read { pipe, bytes }) => {
                    (of_pipe(clients, item.copy, pipe), true, *bytes)
                }
                Act::Op(Op::Poll { pipes, bytes, .. }) => {
                    (of_pipe(clients, item.copy, &pipes[0]), true, *bytes)
                }
                _ => continue,
            };
            all.entry(object).or_default().push(Change { at: item.at, takes, key, i, amount });
        }
    }
    let mut gone: BTreeMap<((Copy, TaskIndex), usize), u64> = BTreeMap::new();
    for mut changes in all.into_values() {
        changes.sort_unstable();
        for (change, left) in surplus(&changes) {
            gone.insert((change.key, change.i), left);
        }
    }
    for ((key, i), left) in gone.into_iter().rev() {
        let Some(list) = lists.get_mut(&key) else { continue };
        match &mut list[i].act {
            Act::Op(Op::Write { bytes, .. } | Op::Read { bytes, .. } | Op::Poll { bytes, .. })
                if left > 0 =>
            {
                *bytes = left;
            }
            _ => _ = list.remove(i),
        }
    }
}

/// A post or a wait, or a transfer of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Change {
    at: Nanos,
    takes: bool,
    key: (Copy, TaskIndex),
    i: usize,
    amount: u64,
}

/// Returns the changes, in order of time, that have no counterpart, with what is left of them.
fn surplus(changes: &[Change]) -> Vec<(Change, u64)> {
    let sum = |takes: bool| -> u64 {
        let side = changes.iter().filter(|change| change.takes == takes);
        side.map(|change| change.amount).fold(0, u64::saturating_add)
    };
    let (given, taken) = (sum(false), sum(true));
    let mut left = given.abs_diff(taken);
    let mut found = Vec::new();
    let mut cut = |change: &Change, most: u64| {
        let part = change.amount.min(most).min(left);
        if part > 0 {
            left -= part;
            found.push((*change, change.amount - part));
        }
    };
    let mut level = 0u64;
    if given < taken {
        for change in changes {
            match change.takes {
                false => level = level.saturating_add(change.amount),
                true => {
                    cut(change, change.amount.saturating_sub(level));
                    level = level.saturating_sub(change.amount);
                }
            }
        }
    } else {
        // Backwards, what is taken later is needed, and what is given beyond it is not.
        for change in changes.iter().rev() {
            match change.takes {
                true => level = level.saturating_add(change.amount),
                false => {
                    cut(change, change.amount.saturating_sub(level));
                    level = level.saturating_sub(change.amount);
                }
            }
        }
    }
    found
}

fn of_semaphore(clients: &Clients, copy: Copy, semaphore: Semaphore) -> Object {
    let own = is_private(clients, semaphore);
    Object::Semaphore(if own { copy } else { 0 }, semaphore)
}

/// Whether each copy has a semaphore for itself.
fn is_private(clients: &Clients, semaphore: Semaphore) -> bool {
    semaphore.owner().is_some_and(|owner| clients.is_private(owner))
}

fn of_pipe(clients: &Clients, copy: Copy, pipe: &str) -> Object {
    Object::Pipe(if clients.reader(pipe).is_some() { copy } else { 0 }, pipe.to_owned())
}
