// SPDX-License-Identifier: GPL-2.0-only
//! The acquisitions and releases of mutexes.
//!
//! Owns: the place of those that no system call shows. A free mutex is taken without a call, and
//! one that nobody waits for is released without one.
//!
//! A pair is visible if a wait for the mutex ended, and the task later woke a waiter of it, without
//! doing in between what it did last before the acquisition: then it is in a further round, and the
//! release is that of a later, invisible acquisition. The work under a mutex is the median over the
//! task's visible pairs, or what lies between its acquisitions and its releases after the same op,
//! or the median over the visible pairs of all tasks. An acquisition before a visible release, and
//! a release after a visible acquisition, are placed at that distance. A mutex whose release is
//! invisible is not held across another op.

use std::collections::{BTreeMap, BTreeSet};

use scxlab_machine::Nanos;

use scxlab_workload::program::Op;

use super::futexes::median;
use super::task::{Act, Item};
use crate::gather::NOISE;
use crate::history::TaskIndex;

/// Work under a mutex of which no pair is visible: up to the next op.
const UNKNOWN: Nanos = Nanos::MAX / 4;

/// The work under a mutex is taken to be shorter by this part, so that a release does not slip
/// behind the next op.
const NEAR: u64 = 50;

/// The usual work under mutexes.
#[derive(Default)]
pub struct Holds {
    /// By mutex and task.
    own: BTreeMap<(u64, TaskIndex), Hold>,
    /// By mutex, over all tasks.
    all: BTreeMap<u64, Hold>,
}

/// The usual use of a mutex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hold {
    /// Work under the mutex in ns; None: unknown.
    work: Option<Nanos>,
    /// Whether the task does other ops under the mutex.
    crosses: bool,
}

impl Hold {
    fn of(pairs: &[(Nanos, bool)]) -> Hold {
        let crossing = pairs.iter().filter(|pair| pair.1).count();
        Hold {
            work: median(pairs.iter().map(|pair| pair.0).collect()),
            crosses: crossing * 2 > pairs.len(),
        }
    }
}

impl Holds {
    fn of(&self, mutex: u64, task: TaskIndex) -> Hold {
        let own = self.own.get(&(mutex, task)).or_else(|| self.all.get(&mutex));
        own.copied().unwrap_or(Hold { work: None, crosses: false })
    }
}

/// A visible pair of acquisition and release.
struct Pair {
    mutex: u64,
    /// Index of the acquisition.
    begin: usize,
    work: Nanos,
    crosses: bool,
}

/// An acquisition whose release has not come.
struct Open {
    begin: usize,
    work: Nanos,
    crosses: bool,
    /// The op before the acquisition.
    before: Option<String>,
}

/// Returns the usual work under each mutex.
pub fn holds(items: &BTreeMap<TaskIndex, Vec<Item>>) -> Holds {
    let mut own: BTreeMap<(u64, TaskIndex), Vec<(Nanos, bool)>> = BTreeMap::new();
    let mut all: BTreeMap<u64, Vec<(Nanos, bool)>> = BTreeMap::new();
    for (&task, items) in items {
        for item in items {
            if let Act::Acquired(mutex) | Act::Released(mutex) = item.act {
                all.entry(mutex).or_default();
            }
        }
        for Pair { mutex, work, crosses, .. } in visible_pairs(items) {
            own.entry((mutex, task)).or_default().push((work, crosses));
            all.entry(mutex).or_default().push((work, crosses));
        }
        for (mutex, work) in halves(items) {
            own.entry((mutex, task)).or_insert_with(|| vec![(work, false)]);
        }
    }
    Holds {
        own: own.into_iter().map(|(key, pairs)| (key, Hold::of(&pairs))).collect(),
        all: all.into_iter().map(|(mutex, pairs)| (mutex, Hold::of(&pairs))).collect(),
    }
}

/// Returns the usual work under each mutex of which acquisitions and releases are visible, each
/// without the other, after the same op: the difference of the work since then.
fn halves(items: &[Item]) -> Vec<(u64, Nanos)> {
    let mut after: BTreeMap<(u64, String), [Vec<Nanos>; 2]> = BTreeMap::new();
    let (mut last, mut work) = (String::new(), 0);
    for item in items {
        let (mutex, half) = match &item.act {
            Act::Acquired(mutex) => (*mutex, 0),
            Act::Released(mutex) => (*mutex, 1),
            Act::Work(ns) => {
                work += ns;
                continue;
            }
            Act::Op(op) => {
                (last, work) = (super::regular::label(op), 0);
                continue;
            }
            _ => continue,
        };
        after.entry((mutex, last.clone())).or_default()[half].push(work);
    }
    let work = |((mutex, _), [acquired, released]): (_, [Vec<Nanos>; 2])| {
        let work = median(released)?.checked_sub(median(acquired)?)?;
        (work > 0).then_some((mutex, work))
    };
    after.into_iter().filter_map(work).collect()
}

fn visible_pairs(items: &[Item]) -> Vec<Pair> {
    let mut pairs = Vec::new();
    let mut open: BTreeMap<u64, Open> = BTreeMap::new();
    let mut last: Option<String> = None;
    for (begin, item) in items.iter().enumerate() {
        match &item.act {
            Act::Work(ns) => open.values_mut().for_each(|o| o.work = o.work.saturating_add(*ns)),
            Act::Acquired(mutex) => {
                let before = last.clone();
                open.insert(*mutex, Open { begin, work: 0, crosses: false, before });
            }
            Act::Released(mutex) => {
                if let Some(Open { begin, work, crosses, .. }) = open.remove(mutex) {
                    pairs.push(Pair { mutex: *mutex, begin, work, crosses });
                }
            }
            Act::Op(op) => {
                let label = super::regular::label(op);
                // Nothing tells the rounds of an acquisition before the first op, except that a
                // unit of work ends one.
                let ends = matches!(op, Op::Count(_));
                open.retain(|_, o| o.before.as_ref().map_or(!ends, |before| *before != label));
                open.values_mut().for_each(|o| o.crosses = true);
                last = Some(label);
            }
            // No mutex is held across a wait for another task.
            Act::Wait(_) => open.clear(),
            Act::Post(_) | Act::Lock(_) | Act::Unlock(_) => {}
        }
    }
    pairs
}

/// Replaces visible acquisitions and releases by pairs of `lock` and `unlock`.
pub fn place(items: Vec<Item>, task: TaskIndex, holds: &Holds) -> Vec<Item> {
    if holds.all.is_empty() {
        return items;
    }
    let ends: BTreeSet<usize> = visible_pairs(&items).into_iter().map(|p| p.begin).collect();
    let out = Vec::with_capacity(items.len());
    let mut placed = Placed { out, held: BTreeMap::new(), at: 0 };
    for (i, item) in items.into_iter().enumerate() {
        placed.at = item.at;
        match item.act {
            Act::Work(work) => placed.work(work),
            Act::Acquired(object) => {
                placed.release(object);
                // Ticks and interrupts make pieces of work differ a little.
                let usual = holds.of(object, task).work.unwrap_or(UNKNOWN);
                let after = match ends.contains(&i) {
                    true => Nanos::MAX,
                    false => (usual - usual / NEAR).min(UNKNOWN),
                };
                placed.push(Act::Lock(object));
                placed.held.insert(object, after);
            }
            Act::Released(object) => {
                if !placed.release(object) {
                    placed.acquire_before(object, holds.of(object, task));
                    placed.push(Act::Unlock(object));
                }
            }
            Act::Op(_) | Act::Wait(_) => {
                placed.release_invisible();
                placed.out.push(item);
            }
            _ => placed.out.push(item),
        }
    }
    let left: Vec<u64> = placed.held.keys().copied().collect();
    left.into_iter().for_each(|object| {
        placed.release(object);
    });
    placed.out
}

/// Makes the acquisitions and releases of a pass pair off: a task holds one mutex at a time, not
/// across a wait for another task, and none at the end. Inferred places could otherwise be in an
/// order in which tasks wait for one another for ever.
pub fn sanitize(items: &mut Vec<Item>) {
    let mut held: Option<u64> = None;
    let mut out = Vec::with_capacity(items.len());
    for item in std::mem::take(items) {
        match item.act {
            Act::Lock(mutex) if held == Some(mutex) => continue,
            Act::Unlock(mutex) if held != Some(mutex) => continue,
            _ => {}
        }
        if waits_for_task(&item.act) {
            let unlock = |mutex| Item { at: item.at, act: Act::Unlock(mutex), with: None, copy: 0 };
            out.extend(held.take().map(unlock));
        }
        match item.act {
            Act::Lock(mutex) => held = Some(mutex),
            Act::Unlock(_) => held = None,
            _ => {}
        }
        out.push(item);
    }
    let at = out.last().map_or(0, |item| item.at);
    out.extend(held.map(|mutex| Item { at, act: Act::Unlock(mutex), with: None, copy: 0 }));
    *items = out;
}

/// Whether another task may have to go on before an act ends.
fn waits_for_task(act: &Act) -> bool {
    match act {
        Act::Wait(_) | Act::Lock(_) => true,
        Act::Op(op) => {
            matches!(op, Op::Barrier(_) | Op::Read { .. } | Op::Write { .. } | Op::Poll { .. })
        }
        _ => false,
    }
}

struct Placed {
    out: Vec<Item>,
    /// Held mutexes, with the work until an invisible release.
    held: BTreeMap<u64, Nanos>,
    at: Nanos,
}

impl Placed {
    fn push(&mut self, act: Act) {
        self.out.push(Item { at: self.at, act, with: None, copy: 0 });
    }

    /// Adds work, and the releases that fall into it.
    fn work(&mut self, mut work: Nanos) {
        loop {
            let due = self.held.iter().filter(|(_, left)| **left <= work);
            let Some((object, left)) = due.min_by_key(|(_, left)| **left).map(|(o, l)| (*o, *l))
            else {
                break;
            };
            // A small rest belongs to the work under the mutex.
            let part = if work - left <= left / NEAR * 2 + NOISE { work } else { left };
            self.pass(part);
            work -= part;
            self.release(object);
        }
        self.pass(work);
    }

    fn pass(&mut self, work: Nanos) {
        if work > 0 {
            self.push(Act::Work(work));
            let known = self.held.values_mut().filter(|left| **left != Nanos::MAX);
            known.for_each(|left| *left = left.saturating_sub(work));
        }
    }

    /// Releases the mutex if it is held.
    fn release(&mut self, object: u64) -> bool {
        let held = self.held.remove(&object).is_some();
        if held {
            self.push(Act::Unlock(object));
        }
        held
    }

    /// Releases the mutexes whose release is invisible.
    fn release_invisible(&mut self) {
        let ended = self.held.iter().filter(|(_, left)| **left != Nanos::MAX);
        let ended: Vec<u64> = ended.map(|(object, _)| *object).collect();
        for object in ended {
            self.release(object);
        }
    }

    /// Puts an acquisition the usual work before the present place, but not before the mutex's last
    /// release.
    fn acquire_before(&mut self, object: u64, hold: Hold) {
        let mut work = hold.work.unwrap_or(UNKNOWN);
        let mut at = self.out.len();
        while at > 0 && work > 0 {
            let Item { at: time, act, .. } = &mut self.out[at - 1];
            match act {
                Act::Work(before) if *before <= work + work / NEAR + NOISE && *before >= work => {
                    at -= 1;
                    break;
                }
                Act::Work(before) if *before > work => {
                    *before -= work;
                    let item = Item { at: *time, act: Act::Work(work), with: None, copy: 0 };
                    self.out.insert(at, item);
                    break;
                }
                Act::Work(before) => {
                    work -= *before;
                    if work <= NOISE {
                        at -= 1;
                        break;
                    }
                }
                Act::Unlock(other) if *other == object => break,
                Act::Op(_) | Act::Wait(_) if !hold.crosses => break,
                _ => {}
            }
            at -= 1;
        }
        self.out.insert(at, Item { at: self.at, act: Act::Lock(object), with: None, copy: 0 });
    }
}
