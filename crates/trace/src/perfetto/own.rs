// SPDX-License-Identifier: GPL-2.0-only
//! scxlab's own events among those of the kernel, as ftrace events of the generic form: a name, and
//! fields with names. The Perfetto UI shows them as it shows the events of any other driver.
//!
//! Owns: the names of these events and of their fields, for the writer and for the reader.
//!
//! ```text
//! scxlab_call     a system call of the running task: `call`, and the fields of the call
//! scxlab_task     attributes of a task: `tid`, `policy`, `nice`, ...
//! scxlab_cgroup   limits of a cgroup: `path`, `weight`, ...
//! scxlab_start    a task that exists when the trace starts: `tid`
//! scxlab_lost     events of this CPU are missing: `events`
//! scxlab_machine  the machine of the events: `toml`, the text of a machine file; `scheduler`, the
//!                 one under which they happened
//! ```

pub mod read;

use super::schema::{Generic, GenericField, Text};
use crate::call::{Call, ChannelKind};
use crate::names::{CgroupAttributes, TaskAttributes, TaskPolicy};

pub const CALL: &str = "scxlab_call";
pub const TASK: &str = "scxlab_task";
pub const CGROUP: &str = "scxlab_cgroup";
pub const START: &str = "scxlab_start";
pub const LOST: &str = "scxlab_lost";
pub const MACHINE: &str = "scxlab_machine";

/// Number of fields of most events, which are calls.
const FIELDS: usize = 4;

/// The fields of an event that is being written.
struct Fields(Vec<GenericField>);

impl Fields {
    fn new() -> Fields {
        Fields(Vec::with_capacity(FIELDS))
    }

    fn push(mut self, name: &'static str, field: GenericField) -> Fields {
        self.0.push(GenericField { name: Some(name.into()), ..field });
        self
    }

    fn text(self, name: &'static str, value: impl Into<Text>) -> Fields {
        let str_value = Some(value.into());
        self.push(name, GenericField { str_value, ..GenericField::default() })
    }

    fn number(self, name: &'static str, value: u64) -> Fields {
        self.push(name, GenericField { uint_value: Some(value), ..GenericField::default() })
    }

    fn signed(self, name: &'static str, value: i64) -> Fields {
        self.push(name, GenericField { int_value: Some(value), ..GenericField::default() })
    }

    fn optional(self, name: &'static str, value: Option<u64>) -> Fields {
        match value {
            Some(value) => self.number(name, value),
            None => self,
        }
    }

    fn optional_text(self, name: &'static str, value: Option<&str>) -> Fields {
        match value {
            Some(value) => self.text(name, value.to_owned()),
            None => self,
        }
    }

    fn of(self, event: &'static str) -> Generic {
        Generic { event_name: Some(event.into()), field: self.0 }
    }
}

/// Returns the event of a call.
pub fn call(call: Call) -> Generic {
    let named = |name: &'static str| Fields::new().text("call", name);
    let channel = |name: &'static str, object, kind, bytes| {
        let fields = named(name).number("object", object).text("kind", channel_name(kind));
        fields.number("bytes", bytes)
    };
    let fields = match call {
        Call::FutexWait { object, timeout } => {
            named("futex_wait").number("object", object).optional("timeout", timeout)
        }
        Call::FutexWake { object, most } => {
            named("futex_wake").number("object", object).number("most", u64::from(most))
        }
        Call::Write { object, kind, bytes } => channel("write", object, kind, bytes),
        Call::Read { object, kind, bytes } => channel("read", object, kind, bytes),
        Call::Poll { timeout } => named("poll").optional("timeout", timeout),
        Call::SleepFor { length } => named("sleep_for").number("length", length),
        Call::SleepUntil { at } => named("sleep_until").number("at", at),
        Call::Io { bytes } => named("io").number("bytes", bytes),
        Call::Exec => named("exec"),
        Call::Yield => named("yield"),
        Call::Join => named("join"),
        Call::Count { units } => named("count").number("units", units),
    };
    fields.of(CALL)
}

/// Returns the event of a task's attributes.
pub fn task(tid: u32, attributes: &TaskAttributes) -> Generic {
    let TaskAttributes { policy, nice, slice, cpus, cgroup, kthread } = attributes;
    let fields = Fields::new().number("tid", u64::from(tid)).signed("nice", i64::from(*nice));
    let fields = match *policy {
        TaskPolicy::Normal => fields.text("policy", "normal"),
        TaskPolicy::Batch => fields.text("policy", "batch"),
        TaskPolicy::Idle => fields.text("policy", "idle"),
        TaskPolicy::Ext => fields.text("policy", "ext"),
        TaskPolicy::Fifo(prio) => fields.text("policy", "fifo").number("prio", u64::from(prio)),
        TaskPolicy::RoundRobin(prio) => fields.text("policy", "rr").number("prio", u64::from(prio)),
        TaskPolicy::Deadline { runtime, deadline, period } => {
            let fields = fields.text("policy", "deadline").number("runtime", runtime);
            fields.number("deadline", deadline).number("period", period)
        }
    };
    let fields = fields.number("slice", *slice).optional_text("cpus", cpus.as_deref());
    fields.text("cgroup", cgroup.clone()).number("kthread", u64::from(*kthread)).of(TASK)
}

/// Returns the event of a cgroup's limits.
pub fn cgroup(path: &str, attributes: &CgroupAttributes) -> Generic {
    let CgroupAttributes { weight, quota, period, idle, cpus } = attributes;
    let fields = Fields::new().text("path", path.to_owned()).number("weight", u64::from(*weight));
    let fields = fields.optional("quota", *quota).number("period", *period);
    fields.number("idle", u64::from(*idle)).optional_text("cpus", cpus.as_deref()).of(CGROUP)
}

/// Returns the event of a task that exists when the trace starts.
pub fn start(tid: u32) -> Generic {
    Fields::new().number("tid", u64::from(tid)).of(START)
}

/// Returns the event of missing events.
pub fn lost(events: u64) -> Generic {
    Fields::new().number("events", events).of(LOST)
}

/// Returns the event of the machine and its scheduler, if that is known.
pub fn machine(toml: &str, scheduler: Option<&str>) -> Generic {
    Fields::new().text("toml", toml.to_owned()).optional_text("scheduler", scheduler).of(MACHINE)
}

const CHANNELS: [(ChannelKind, &str); 4] = [
    (ChannelKind::Pipe, "pipe"),
    (ChannelKind::Socket, "socket"),
    (ChannelKind::EventFd, "eventfd"),
    (ChannelKind::Outside, "outside"),
];

fn channel_name(kind: ChannelKind) -> &'static str {
    CHANNELS.iter().find(|(k, _)| *k == kind).map_or("outside", |(_, name)| name)
}
