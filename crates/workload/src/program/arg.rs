// SPDX-License-Identifier: GPL-2.0-only
//! The kinds of arguments that ops have.
//!
//! Owns: each kind's type, range, text, and the words that describe it in the reference. A kind
//! that only one op has may stand beside that op (`kinds!` in `op.rs`).

use super::{CpuList, Op, PolicyDef, TimeSpan, TimerMode, dump, names};
use crate::program::time_span::MAX_NANOS;

/// Maximum number of bytes that one op may transfer or touch.
pub const MAX_BYTES: u64 = 1 << 40;

/// Maximum number of cache lines that one op may change.
pub const MAX_LINES: u32 = 64;

/// A kind of argument.
pub trait Arg {
    type Value;
    /// Type, unit and range, for the reference.
    const DOMAIN: &'static str;
    /// Example of a value, in TOML.
    const EXAMPLE: &'static str;

    /// Checks the range.
    fn check(_value: &Self::Value) -> Result<(), String> {
        Ok(())
    }

    /// Returns the value as the text of an op (`Op::text`) shows it; empty if the text need not
    /// show the value. `name` is the name of the argument.
    fn text(name: &str, value: &Self::Value) -> String;
}

macro_rules! object_names {
    ($($kind:ident: $domain:literal, $example:literal;)*) => {$(
        /// Name of a shared object.
        pub struct $kind;

        impl Arg for $kind {
            type Value = String;
            const DOMAIN: &'static str = $domain;
            const EXAMPLE: &'static str = $example;

            fn check(value: &String) -> Result<(), String> {
                object_name(value)
            }

            fn text(_: &str, value: &String) -> String {
                value.clone()
            }
        }
    )*};
}

object_names! {
    Mutex: "name of a mutex", "\"m\"";
    Cond: "name of a condition variable", "\"c\"";
    Barrier: "name of a barrier", "\"b\"";
    Sem: "name of a semaphore", "\"s\"";
    Pipe: "name of a pipe", "\"p{i}\"";
    SpinLock: "name of a spin lock", "\"l\"";
    Lines: "name of a set of cache lines", "\"refs\"";
    SpinBarrier: "name of a spinning barrier", "\"b\"";
    Timer: "name of a timer", "\"t\"";
}

/// Checks the name of a shared object, and the instance expression in it.
pub(super) fn object_name(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("an empty name".into());
    }
    names::resolve(name, 0).map(drop)
}

/// Declares kinds of arguments: type, domain, example, check and text.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident($value:ty): $domain:literal, $example:literal,
        $check:expr, $text:expr;)*) => {$(
        $(#[$doc])*
        pub struct $kind;

        impl Arg for $kind {
            type Value = $value;
            const DOMAIN: &'static str = $domain;
            const EXAMPLE: &'static str = $example;

            fn check(value: &$value) -> Result<(), String> {
                let check: fn(&$value) -> Result<(), String> = $check;
                check(value)
            }

            fn text(name: &str, value: &$value) -> String {
                let text: fn(&str, &$value) -> String = $text;
                text(name, value)
            }
        }
    )*};
}

pub(super) use kinds;

kinds! {
    /// A length of time.
    Span(TimeSpan): "time with unit (ns, us, ms, s, min), at most 1000000000s", "\"2ms\"",
        |span| within(span.0 <= MAX_NANOS, "longer than 1000000000s"),
        |_, span| span.to_string();
    Bytes(u64): "bytes, at most 1 TiB", "100",
        |bytes| within(*bytes <= MAX_BYTES, "more than 1 TiB"),
        |_, bytes| bytes.to_string();
    Units(u64): "number of units", "1", |_| Ok(()), |_, units| units.to_string();
    Flag(bool): "true or false", "true",
        |_| Ok(()),
        |name, on| if *on { name.to_owned() } else { String::new() };
    Mode(TimerMode): "`relative` or `absolute`", "\"absolute\"",
        |_| Ok(()),
        |_, mode| if *mode == TimerMode::Relative { "relative" } else { "absolute" }.to_owned();
    /// Name of a thread template.
    Template(String): "name of a `[[thread]]`", "\"worker\"", |_| Ok(()), |_, name| name.clone();
    Cpus(CpuList): "list of CPUs", "\"0,2-3\"", |_| Ok(()), |_, cpus| cpus.to_string();
    Nice(i8): "-20 to 19", "5",
        |nice| within((-20..=19).contains(nice), "nice is from -20 to 19"),
        |_, nice| nice.to_string();
    /// A scheduling policy, with the ranges of `sched_setattr(2)`.
    Policy(PolicyDef): "`normal`, `batch`, `idle`, `ext`, `{ fifo = 1 }` and `{ rr = 1 }` (priority 1 \
        to 99), or `{ deadline = { runtime, deadline, period } }` (1.024us <= runtime <= deadline <= \
        period)",
        "{ fifo = 50 }", policy, |_, policy| dump::policy(*policy);
    /// Path of a cgroup; `compile::check` checks it with the cgroups that are declared.
    Cgroup(String): "path of a cgroup, `/` or `/a/b`", "\"/a\"", |_| Ok(()), |_, path| path.clone();
    /// Name of an extended attribute; `compile::check` checks it.
    Xattr(String): "`user.NAME`, at most 255 bytes", "\"user.gang\"",
        |_| Ok(()), |_, name| name.clone();
    Text(String): "text", "\"x\"", |_| Ok(()), |_, text| text.clone();
    Times(Option<u64>): "number of passes", "10",
        |_| Ok(()),
        |_, times| times.map_or("forever".to_owned(), |n| format!("x{n}"));
    Body(Vec<Op>): "list of ops", "[{ sleep = \"1ms\" }]", |_| Ok(()), |_, _| String::new();
}

pub(super) fn within(holds: bool, problem: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(problem.to_owned()) }
}

fn policy(policy: &PolicyDef) -> Result<(), String> {
    match *policy {
        PolicyDef::Fifo(prio) | PolicyDef::Rr(prio) if !(1..=99).contains(&prio) => {
            Err(format!("real-time priority {prio} is not from 1 to 99"))
        }
        PolicyDef::Deadline { runtime, deadline, period } => {
            let ordered = runtime.0 >= 1024 && runtime <= deadline && deadline <= period;
            let rule = "a deadline policy needs 1.024us <= runtime <= deadline <= period";
            if ordered {
                Ok(())
            } else {
                Err(format!("{rule}, not {runtime}, {deadline}, {period}"))
            }
        }
        _ => Ok(()),
    }
}
