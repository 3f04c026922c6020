// SPDX-License-Identifier: GPL-2.0-only
//! Deadline servers: the time that the tasks of the default class and of sched_ext get on a CPU
//! whose real-time tasks would take all of it, 50 ms in each second.
//!
//! Owns: the servers of each CPU, one for each of the two classes.
//! Models: `dl_server_start()`, `dl_server_timer()`, `dl_server_update()`, the fair and the ext
//! server of deadline.c, 7.3, with the default parameters.
//! Differs: a server begins its period at the first tick of a real-time task while tasks of the
//! class wait, and ends it when no real-time task is left. The kernel's is always there, so its
//! first turn comes up to 50 ms earlier. Idle time does not count.

use crate::ext::dispatch::PickResult;
use crate::kernel::event::Event;
use crate::kernel::{AfterEvent, Kernel};
use crate::task::Class;
use scxlab_machine::id::{CpuId, Nanos, TaskId};
use std::collections::BTreeMap;

/// `dl_runtime` and `dl_period` of both servers (`sched_init_dl_servers()`).
const RUNTIME: Nanos = 50_000_000;
const PERIOD: Nanos = 1_000_000_000;
/// Run time of the class below which a turn is not put off (`dl_server_min_res`).
const LEAST: Nanos = 1_000_000;

/// The class that a server serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Served {
    Fair,
    Ext,
}

#[derive(Clone, Copy, Debug)]
struct Server {
    /// Run time that the class has left until the deadline.
    left: Nanos,
    deadline: Nanos,
    /// The server has its turn: tasks of the class run before real-time tasks.
    turn: bool,
    generation: u32,
}

impl Server {
    fn new(now: Nanos, generation: u32) -> Server {
        Server { left: RUNTIME, deadline: now + PERIOD, turn: false, generation }
    }

    /// Latest time at which a turn may begin that ends before the deadline.
    fn zero_laxity(&self) -> Nanos {
        self.deadline - self.left
    }
}

/// The servers of all CPUs on which real-time tasks keep tasks of other classes waiting.
#[derive(Debug, Default)]
pub struct Servers {
    active: BTreeMap<(CpuId, Served), Server>,
    generations: u32,
}

impl Kernel {
    fn waits_for_server(&self, cpu: CpuId, class: Served) -> bool {
        match class {
            Served::Fair => self.fair.nr_runnable(cpu) != 0,
            Served::Ext => self.ext.cpus[cpu].nr_running != 0,
        }
    }

    /// Starts the servers of the classes whose tasks wait while a real-time task runs.
    pub(crate) fn server_start(&mut self, cpu: CpuId) {
        for class in [Served::Fair, Served::Ext] {
            if self.waits_for_server(cpu, class) && !self.servers.active.contains_key(&(cpu, class))
            {
                self.server_renew(cpu, class);
            }
        }
    }

    /// Begins a period of a server, whose turn comes at the latest time for it.
    fn server_renew(&mut self, cpu: CpuId, class: Served) {
        self.servers.generations = self.servers.generations.wrapping_add(1);
        let server = Server::new(self.clock(), self.servers.generations);
        self.servers.active.insert((cpu, class), server);
        self.server_arm(cpu, class, server);
    }

    fn server_arm(&mut self, cpu: CpuId, class: Served, server: Server) {
        self.charge(self.machine.costs.irq.hrtimer_arm_ns);
        let ext = class == Served::Ext;
        let event = Event::DlServer { cpu, ext, generation: server.generation };
        self.events.push(server.zero_laxity().max(self.now), event);
    }

    /// `dl_server_timer()`: gives the class its turn, unless its tasks have had run time meanwhile.
    #[inline(never)]
    pub(crate) fn server_due(&mut self, cpu: CpuId, ext: bool, generation: u32) -> AfterEvent {
        let class = if ext { Served::Ext } else { Served::Fair };
        let known = self.servers.active.get(&(cpu, class));
        if known.is_none_or(|server| server.generation != generation) {
            return AfterEvent::Nothing;
        }
        self.on_cpu_last(cpu, |k| {
            k.charge(k.machine.costs.irq.timer_ns);
            // Run time up to now may put the turn off.
            match k.tasks[k.cpus[cpu].curr].class {
                Class::Ext => k.ext_update_curr(cpu),
                Class::Fair => _ = k.charge_curr(cpu),
                Class::Idle | Class::Rt | Class::Deadline => {}
            }
            let now = k.now;
            let waits = k.waits_for_server(cpu, class);
            let Some(server) = k.servers.active.get_mut(&(cpu, class)) else { return };
            if server.generation != generation {
                return;
            }
            if !waits {
                k.servers.active.remove(&(cpu, class));
            } else if now + LEAST < server.zero_laxity() {
                let server = *server;
                k.server_arm(cpu, class, server);
            } else {
                server.turn = true;
                k.resched(cpu);
            }
        })
    }

    /// Charges the server of the class whose task ran on the CPU. A server that has nothing left
    /// begins its next period.
    #[inline(always)]
    pub(crate) fn server_update(&mut self, cpu: CpuId, delta: Nanos) {
        if !self.servers.active.is_empty() {
            self.server_charge(cpu, delta);
        }
    }

    #[cold]
    #[inline(never)]
    fn server_charge(&mut self, cpu: CpuId, delta: Nanos) {
        let class = match self.tasks[self.cpus[cpu].curr].class {
            Class::Fair => Served::Fair,
            Class::Ext => Served::Ext,
            Class::Idle | Class::Rt | Class::Deadline => return,
        };
        let Some(server) = self.servers.active.get_mut(&(cpu, class)) else { return };
        server.left = server.left.saturating_sub(delta);
        if server.left != 0 {
            return;
        }
        let turn = server.turn;
        if self.rt.nr_running(cpu) == 0 {
            self.servers.active.remove(&(cpu, class));
        } else {
            self.server_renew(cpu, class);
        }
        if turn {
            self.resched(cpu);
        }
    }

    /// Picks a task of a class whose server has its turn, if no deadline task of the CPU has an
    /// earlier deadline than the server.
    #[inline(always)]
    pub(crate) fn server_pick(&mut self, cpu: CpuId, prev: TaskId) -> Option<TaskId> {
        if self.servers.active.is_empty() { None } else { self.server_pick_one(cpu, prev) }
    }

    #[cold]
    #[inline(never)]
    fn server_pick_one(&mut self, cpu: CpuId, prev: TaskId) -> Option<TaskId> {
        let of_cpu = (cpu, Served::Fair)..=(cpu, Served::Ext);
        let turns = self.servers.active.range(of_cpu).filter(|(_, server)| server.turn);
        let mut turns: Vec<_> = turns.map(|(key, server)| (server.deadline, key.1)).collect();
        turns.sort_unstable();
        for (deadline, class) in turns {
            if self.rt_first_deadline(cpu).is_some_and(|first| first < deadline) {
                return None;
            }
            let picked = match class {
                _ if !self.waits_for_server(cpu, class) => None,
                Served::Fair => self.fair_pick(cpu),
                Served::Ext => match self.ext_pick(cpu, prev) {
                    PickResult::Task(task) => Some(task),
                    PickResult::Nothing | PickResult::Retry => None,
                },
            };
            if picked.is_some() {
                return picked;
            }
            self.servers.active.remove(&(cpu, class));
        }
        None
    }
}
