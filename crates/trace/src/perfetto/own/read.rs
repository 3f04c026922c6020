// SPDX-License-Identifier: GPL-2.0-only
//! The reader of scxlab's own events.
//!
//! Owns: the way back from an event's fields to the schema. Unknown fields are ignored, so that
//! later versions may add some.

use super::{CHANNELS, Generic, GenericField};
use crate::call::{Call, ChannelKind};
use crate::names::{CgroupAttributes, TaskAttributes, TaskPolicy};

/// Returns the call of an event `scxlab_call`; None if it is of no known form.
pub fn read_call(event: &Generic) -> Option<Call> {
    let number = |name| number(event, name);
    let channel =
        || Some((number("object")?, channel_kind(text(event, "kind")?)?, number("bytes")?));
    Some(match text(event, "call")? {
        "futex_wait" => Call::FutexWait { object: number("object")?, timeout: number("timeout") },
        "futex_wake" => Call::FutexWake {
            object: number("object")?,
            most: u32::try_from(number("most")?).unwrap_or(u32::MAX),
        },
        "write" => {
            let (object, kind, bytes) = channel()?;
            Call::Write { object, kind, bytes }
        }
        "read" => {
            let (object, kind, bytes) = channel()?;
            Call::Read { object, kind, bytes }
        }
        "poll" => Call::Poll { timeout: number("timeout") },
        "sleep_for" => Call::SleepFor { length: number("length")? },
        "sleep_until" => Call::SleepUntil { at: number("at")? },
        "io" => Call::Io { bytes: number("bytes")? },
        "exec" => Call::Exec,
        "yield" => Call::Yield,
        "join" => Call::Join,
        "count" => Call::Count { units: number("units")? },
        _ => return None,
    })
}

/// Returns the tid and the attributes of an event `scxlab_task`; None if it is of no known form.
pub fn read_task(event: &Generic) -> Option<(u32, TaskAttributes)> {
    let number = |name| number(event, name);
    let prio = || u8::try_from(number("prio")?).ok();
    let policy = match text(event, "policy")? {
        "normal" => TaskPolicy::Normal,
        "batch" => TaskPolicy::Batch,
        "idle" => TaskPolicy::Idle,
        "ext" => TaskPolicy::Ext,
        "fifo" => TaskPolicy::Fifo(prio()?),
        "rr" => TaskPolicy::RoundRobin(prio()?),
        "deadline" => TaskPolicy::Deadline {
            runtime: number("runtime")?,
            deadline: number("deadline")?,
            period: number("period")?,
        },
        _ => return None,
    };
    let attributes = TaskAttributes {
        policy,
        nice: i8::try_from(signed(event, "nice")?).ok()?,
        slice: number("slice").unwrap_or(0),
        cpus: text(event, "cpus").map(str::to_owned),
        cgroup: text(event, "cgroup")?.to_owned(),
        kthread: number("kthread") == Some(1),
    };
    Some((u32::try_from(number("tid")?).ok()?, attributes))
}

/// Returns the path and the limits of an event `scxlab_cgroup`; None if it is of no known form.
pub fn read_cgroup(event: &Generic) -> Option<(String, CgroupAttributes)> {
    let attributes = CgroupAttributes {
        weight: u32::try_from(number(event, "weight")?).ok()?,
        quota: number(event, "quota"),
        period: number(event, "period")?,
        idle: number(event, "idle") == Some(1),
        cpus: text(event, "cpus").map(str::to_owned),
    };
    Some((text(event, "path")?.to_owned(), attributes))
}

/// Returns the tid of an event `scxlab_start`; None if it is of no known form.
pub fn read_start(event: &Generic) -> Option<u32> {
    u32::try_from(number(event, "tid")?).ok()
}

/// Returns the number of missing events of an event `scxlab_lost`; None if it is of no known form.
pub fn read_lost(event: &Generic) -> Option<u64> {
    number(event, "events")
}

/// Returns the text of an event `scxlab_machine`, and the scheduler if it has one; None if it is of
/// no known form.
pub fn read_machine(event: &Generic) -> Option<(&str, Option<&str>)> {
    Some((text(event, "toml")?, text(event, "scheduler")))
}

fn field<'a>(event: &'a Generic, name: &str) -> Option<&'a GenericField> {
    event.field.iter().find(|field| field.name.as_deref() == Some(name))
}

fn text<'a>(event: &'a Generic, name: &str) -> Option<&'a str> {
    field(event, name)?.str_value.as_deref()
}

fn number(event: &Generic, name: &str) -> Option<u64> {
    let field = field(event, name)?;
    field.uint_value.or_else(|| u64::try_from(field.int_value?).ok())
}

fn signed(event: &Generic, name: &str) -> Option<i64> {
    let field = field(event, name)?;
    field.int_value.or_else(|| i64::try_from(field.uint_value?).ok())
}

fn channel_kind(name: &str) -> Option<ChannelKind> {
    CHANNELS.iter().find(|(_, n)| *n == name).map(|(kind, _)| *kind)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{call, cgroup, task};
    use super::*;

    fn channel() -> impl Strategy<Value = ChannelKind> {
        (0..CHANNELS.len()).prop_map(|i| CHANNELS[i].0)
    }

    fn any_call() -> impl Strategy<Value = Call> {
        let (object, bytes) = (any::<u64>(), any::<u64>());
        let timeout = any::<Option<u64>>();
        prop_oneof![
            (object, timeout.clone())
                .prop_map(|(object, timeout)| Call::FutexWait { object, timeout }),
            (object, any::<u32>()).prop_map(|(object, most)| Call::FutexWake { object, most }),
            (object, channel(), bytes).prop_map(|(object, kind, bytes)| Call::Write {
                object,
                kind,
                bytes
            }),
            (object, channel(), bytes).prop_map(|(object, kind, bytes)| Call::Read {
                object,
                kind,
                bytes
            }),
            timeout.prop_map(|timeout| Call::Poll { timeout }),
            bytes.prop_map(|length| Call::SleepFor { length }),
            bytes.prop_map(|at| Call::SleepUntil { at }),
            bytes.prop_map(|bytes| Call::Io { bytes }),
            Just(Call::Exec),
            Just(Call::Yield),
            Just(Call::Join),
            bytes.prop_map(|units| Call::Count { units }),
        ]
    }

    fn any_policy() -> impl Strategy<Value = TaskPolicy> {
        prop_oneof![
            Just(TaskPolicy::Normal),
            Just(TaskPolicy::Batch),
            Just(TaskPolicy::Idle),
            Just(TaskPolicy::Ext),
            any::<u8>().prop_map(TaskPolicy::Fifo),
            any::<u8>().prop_map(TaskPolicy::RoundRobin),
            any::<[u64; 3]>().prop_map(|[runtime, deadline, period]| TaskPolicy::Deadline {
                runtime,
                deadline,
                period
            }),
        ]
    }

    proptest! {
        #[test]
        fn a_call_comes_back(value in any_call()) {
            prop_assert_eq!(read_call(&call(value)), Some(value));
        }

        #[test]
        fn attributes_come_back(
            (tid, policy, nice, slice, cpus, cgroup, kthread) in
                (any::<u32>(), any_policy(), any::<i8>(), any::<u64>(), any::<Option<String>>(),
                    any::<String>(), any::<bool>())
        ) {
            let value = TaskAttributes { policy, nice, slice, cpus, cgroup, kthread };
            prop_assert_eq!(read_task(&task(tid, &value)), Some((tid, value)));
        }

        #[test]
        fn limits_come_back(
            (path, weight, quota, period, idle, cpus) in
                (any::<String>(), any::<u32>(), any::<Option<u64>>(), any::<u64>(), any::<bool>(),
                    any::<Option<String>>())
        ) {
            let value = CgroupAttributes { weight, quota, period, idle, cpus };
            prop_assert_eq!(read_cgroup(&cgroup(&path, &value)), Some((path, value)));
        }
    }
}
