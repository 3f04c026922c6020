// SPDX-License-Identifier: GPL-2.0-only
//! System calls in a text, as far as their arguments alone tell what they are.
//!
//! Does not: guess. The length of a sleep lies behind a pointer, and the channel of a read behind
//! the table of files, so that such calls are counted and left out.

use super::events::Read;
use crate::call::Call;
use crate::import::raw::RawKind;

/// `FUTEX_PRIVATE_FLAG`, `FUTEX_CLOCK_REALTIME`
const FUTEX_FLAGS: u64 = 128 | 256;
const FUTEX_PRIVATE: u64 = 128;
const FUTEX_WAIT: u64 = 0;
const FUTEX_WAKE: u64 = 1;
const FUTEX_WAIT_BITSET: u64 = 9;
const FUTEX_WAKE_BITSET: u64 = 10;

/// Reads the call `name` with its arguments, such as `uaddr: 0x7f00, op: 0x80, val: 0x2`.
pub fn read(name: &str, arguments: &str) -> Read {
    let argument = |name| argument(arguments, name);
    let call = match name {
        "futex" => return futex(arguments),
        "poll" => argument("timeout_msecs").or_else(|| argument("timeout")).map(poll),
        "epoll_wait" | "epoll_pwait" => argument("timeout").map(poll),
        "select" | "pselect6" | "ppoll" | "epoll_pwait2" => {
            let pointer = ["tvp", "tsp", "timeout"].into_iter().find_map(argument);
            pointer.filter(|pointer| *pointer == 0).map(|_| Call::Poll { timeout: None })
        }
        "sched_yield" => Some(Call::Yield),
        "wait4" | "waitid" => Some(Call::Join),
        _ => None,
    };
    match call {
        Some(call) => Read::Kind(RawKind::Call(call)),
        None => {
            Read::Unknown(format!("the system call {name}, whose meaning its text does not tell"))
        }
    }
}

fn futex(arguments: &str) -> Read {
    let argument = |name| argument(arguments, name);
    let known = || {
        let (op, object) = (argument("op")?, argument("uaddr")?);
        let call = match op & !FUTEX_FLAGS {
            // The time-out lies behind the pointer `utime`.
            FUTEX_WAIT | FUTEX_WAIT_BITSET if argument("utime")? == 0 => {
                Call::FutexWait { object, timeout: None }
            }
            FUTEX_WAKE | FUTEX_WAKE_BITSET => {
                let most = u32::try_from(argument("val")?).unwrap_or(u32::MAX);
                Call::FutexWake { object, most }
            }
            _ => return None,
        };
        Some(if op & FUTEX_PRIVATE == 0 { RawKind::Call(call) } else { RawKind::Private(call) })
    };
    known().map_or_else(
        || Read::Unknown("a futex call with a time-out or of another kind".to_owned()),
        Read::Kind,
    )
}

/// A time-out in ms as a number of 32 bits; negative: none.
fn poll(timeout: u64) -> Call {
    let ms = (timeout as u32).cast_signed();
    Call::Poll { timeout: u64::try_from(ms).ok().map(|ms| ms * 1_000_000) }
}

/// Returns an argument, which is hexadecimal with or without 0x.
fn argument(arguments: &str, name: &str) -> Option<u64> {
    let mut parts = arguments.trim_end_matches(')').split(", ");
    let value = parts.find_map(|part| part.trim().strip_prefix(name)?.strip_prefix(": "))?;
    hex(value.trim())
}

/// Reads a hexadecimal number.
pub fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}
