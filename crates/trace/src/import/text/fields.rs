// SPDX-License-Identifier: GPL-2.0-only
//! The fields of an event's text: `name=value`. A task's name may hold spaces.

use super::head::number;
use crate::event::PrevState;
use crate::import::raw::{Comms, Who, state_of_bits};

/// Returns the value of a field: the text up to the next space.
pub fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let behind = behind(text, name)?;
    Some(behind.split(char::is_whitespace).next().unwrap_or(behind))
}

/// Returns the value of a field as a number.
pub fn numeric<T: std::str::FromStr>(text: &str, name: &str) -> Option<T> {
    number(value(text, name)?)
}

/// Returns the value of a field up to the field `next`, which follows it.
pub fn between<'a>(text: &'a str, name: &str, next: &str) -> Option<&'a str> {
    let behind = behind(text, name)?;
    let end = behind.rfind(&format!(" {next}="))?;
    Some(&behind[..end])
}

/// Returns the text behind the last `name=`. A name that a task gave itself comes before the fields
/// that the kernel adds, so that the last one is the kernel's.
fn behind<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let key = format!("{name}=");
    let mut places = text.rmatch_indices(&key).map(|(at, _)| at);
    let at = places.find(|&at| at == 0 || text.as_bytes()[at - 1] == b' ')?;
    Some(&text[at + key.len()..])
}

/// Reads `comm=X pid=N prio=N`, with a prefix before each name.
pub fn who(text: &str, prefix: &str, comms: &mut Comms) -> Option<Who> {
    let [comm, pid, prio] = ["comm", "pid", "prio"].map(|name| format!("{prefix}{name}"));
    // The first `comm=` is the kernel's, and a task's name may hold a second.
    let first = text.find(&format!("{comm}=")).map(|at| &text[at + comm.len() + 1..]);
    let name = first.and_then(|text| Some(&text[..text.rfind(&format!(" {pid}="))?]));
    let name = name.filter(|name| !name.is_empty());
    let tid = numeric(text, &pid)?;
    let prio = value(text, &prio).and_then(|prio| prio.parse().ok());
    Some(Who { tid, comm: name.map(|name| comms.get(name)), prio })
}

/// Reads `COMM:PID [PRIO]`, the form of libtraceevent's plugin.
pub fn short_who(text: &str, comms: &mut Comms) -> Option<Who> {
    let (task, prio) = text.trim().strip_suffix(']')?.rsplit_once(" [")?;
    let (comm, tid) = task.rsplit_once(':')?;
    let name = Some(comm).filter(|name| !name.is_empty());
    Some(Who { tid: number(tid)?, comm: name.map(|name| comms.get(name)), prio: prio.parse().ok() })
}

/// Reads the state of a task that left its CPU: letters of the kernel's `TASK_STATE_TO_CHAR_STR`,
/// with `|` between several, or the bits as a number. None if no letter is known.
pub fn state(text: &str) -> Option<PrevState> {
    if let Some(bits) = number::<i64>(text) {
        return Some(state_of_bits(bits));
    }
    let has = |letters: &[char]| text.contains(letters);
    Some(match text {
        _ if has(&['X', 'Z']) => PrevState::Exited,
        _ if has(&['D']) => PrevState::Uninterruptible,
        _ if has(&['S', 'T', 't', 'P', 'I', 'x', 'K', 'W', 'N']) => PrevState::Sleeping,
        _ if has(&['R']) => PrevState::Runnable,
        _ => return None,
    })
}
