// SPDX-License-Identifier: GPL-2.0-only
//! What a recording tells of each task, read with scxlab's importer.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use scxlab_machine::TaskId;
use scxlab_trace::import::import;
use scxlab_trace::{Call, ChannelKind, Event, EventKind, Names, PrevState, Sink, TaskAttributes};

/// An event in the life of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    Call(Call),
    /// The task left its CPU asleep.
    Slept,
    WokenBy(String),
    /// An interrupt woke the task.
    Interrupted,
}

#[derive(Default)]
struct Life {
    name: String,
    heard: Vec<Heard>,
    run_ns: u64,
    since: Option<u64>,
    /// Whether the task sleeps, as far as the file tells.
    sleeps: bool,
    attributes: Option<TaskAttributes>,
}

#[derive(Default)]
pub struct Story {
    lives: BTreeMap<TaskId, Life>,
    /// Names of the tasks of the workload.
    pub members: BTreeSet<String>,
    pub lost: u64,
    /// The machine that the file holds.
    pub machine: Option<String>,
    pub switches: u64,
    pub switches_of_members: u64,
    /// Switches to a task that slept and was not woken.
    pub unexplained: u64,
}

/// The use of a channel, in bytes.
#[derive(Debug, Default)]
pub struct Ends {
    pub written: u64,
    pub read: u64,
    pub writers: BTreeSet<TaskId>,
    pub readers: BTreeSet<TaskId>,
}

impl Story {
    pub fn read(file: &str, bytes: &[u8]) -> Story {
        let mut story = Story::default();
        let imported = import(file, bytes, &mut story).unwrap_or_else(|why| panic!("{why}"));
        story.machine.clone_from(&imported.machine);
        if story.lost == 0 {
            assert_eq!(imported.damage(), Vec::<String>::new(), "{imported:?}");
        }
        story
    }

    fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Life> {
        self.lives.values().filter(move |life| life.name == name)
    }

    /// Returns the attributes of the last task of this name.
    pub fn attributes<'a>(&'a self, name: &'a str) -> &'a TaskAttributes {
        let found = self.of(name).filter_map(|life| life.attributes.as_ref()).last();
        found.unwrap_or_else(|| panic!("{name} is none of {:?}", self.members))
    }

    pub fn calls<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Call> {
        self.of(name).flat_map(|life| &life.heard).filter_map(|heard| match heard {
            Heard::Call(call) => Some(call),
            _ => None,
        })
    }

    pub fn heard(&self, name: &str) -> Vec<Heard> {
        self.of(name).flat_map(|life| life.heard.clone()).collect()
    }

    pub fn run_ns(&self, name: &str) -> u64 {
        self.of(name).map(|life| life.run_ns).sum()
    }

    /// Returns the cgroups of the tasks of the workload, except those of kernel threads.
    pub fn cgroups(&self) -> Vec<&str> {
        let attributes = self.lives.values().filter_map(|life| life.attributes.as_ref());
        let groups: BTreeSet<&str> =
            attributes.filter(|a| !a.kthread).map(|a| a.cgroup.as_str()).collect();
        groups.into_iter().collect()
    }

    pub fn all_calls(&self) -> impl Iterator<Item = &Call> {
        let heard = self.lives.values().flat_map(|life| &life.heard);
        heard.filter_map(|heard| match heard {
            Heard::Call(call) => Some(call),
            _ => None,
        })
    }

    /// Returns the ends of each channel.
    pub fn ends(&self) -> BTreeMap<(ChannelKind, u64), Ends> {
        let mut ends: BTreeMap<_, Ends> = BTreeMap::new();
        for (task, life) in &self.lives {
            for heard in &life.heard {
                match heard {
                    Heard::Call(Call::Write { object, kind, bytes }) => {
                        let end = ends.entry((*kind, *object)).or_default();
                        end.written = end.written.saturating_add(*bytes);
                        end.writers.insert(*task);
                    }
                    Heard::Call(Call::Read { object, kind, bytes }) => {
                        let end = ends.entry((*kind, *object)).or_default();
                        end.read = end.read.saturating_add(*bytes);
                        end.readers.insert(*task);
                    }
                    _ => {}
                }
            }
        }
        ends
    }

    /// Returns the number of sleeps for a time.
    pub fn sleeps(&self) -> usize {
        let is_sleep = |heard: &&Heard| matches!(heard, Heard::Call(Call::SleepFor { .. }));
        self.lives.values().flat_map(|life| &life.heard).filter(is_sleep).count()
    }

    fn life(&mut self, task: TaskId, names: &Names) -> &mut Life {
        let life = self.lives.entry(task).or_default();
        if let Some(name) = names.task(task) {
            life.name.clone_from(&name.comm);
        }
        life
    }

    fn switch(&mut self, event: &Event, names: &Names) {
        let EventKind::Switch { prev, next, prev_state } = event.kind else { return };
        self.switches += 1;
        if let Some(prev) = prev {
            let life = self.life(prev, names);
            life.run_ns += life.since.take().map_or(0, |since| event.time - since);
            life.sleeps = prev_state != PrevState::Runnable;
            if life.sleeps {
                life.heard.push(Heard::Slept);
            }
        }
        if let Some(next) = next {
            let life = self.life(next, names);
            life.since = Some(event.time);
            let (slept, member) = (std::mem::take(&mut life.sleeps), life.attributes.is_some());
            self.unexplained += u64::from(slept);
            self.switches_of_members += u64::from(member);
        }
    }
}

impl Sink for Story {
    fn event(&mut self, event: &Event, names: &Names) {
        match event.kind {
            EventKind::Switch { .. } => self.switch(event, names),
            EventKind::Wakeup { task, waker, .. } => {
                let by = waker.and_then(|waker| names.task(waker)).map(|name| name.comm.clone());
                let life = self.life(task, names);
                life.sleeps = false;
                life.heard.push(by.map_or(Heard::Interrupted, Heard::WokenBy));
            }
            EventKind::Call { task, call } => {
                self.life(task, names).heard.push(Heard::Call(call));
            }
            EventKind::Attributes { task } => {
                let attributes = names.attributes(task).cloned();
                let life = self.life(task, names);
                life.attributes = attributes;
                let name = life.name.clone();
                self.members.insert(name);
            }
            EventKind::Lost { events } => self.lost += events,
            _ => {}
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        // A task that got a new name is a member under its last name too.
        let named = self.lives.values().filter(|life| life.attributes.is_some());
        let names: Vec<String> = named.map(|life| life.name.clone()).collect();
        self.members.extend(names);
        Ok(())
    }
}
