// SPDX-License-Identifier: GPL-2.0-only
//! The witness of a real kernel: loads `bpf/live/witness.bpf.c` so that it records every operation
//! of a scheduler.
//!
//! Owns: the assignment of the witness's programs to the scheduler's programs. Does not: compare
//! the records (see the lab's `conform`).

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{Link, MapCore, MapFlags, Object, ObjectBuilder};
use scxlab_lab::conform::LogEntry;
use scxlab_lab::prepare::PreparedObject;
use scxlab_loader::object::MemberKind;

use crate::LiveError;
use crate::log::listen;
use crate::ring;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/witness.bpf.o"));
/// Prefix in the names of the witness's programs. The name of the recorded operation follows.
const PREFIX: &str = "on_";

pub struct Witness {
    object: Object,
    _links: Vec<Link>,
}

impl Witness {
    /// Attaches to the programs of a loaded scheduler, and records their calls from then on.
    pub fn attach(prepared: &PreparedObject, scheduler: &Object) -> Result<Witness, LiveError> {
        let targets = targets(prepared)?;
        let (result, log) = listen(|| load(&targets, scheduler));
        let last = log.lines().last().unwrap_or_default();
        let (object, links) = result.map_err(|e| LiveError::Witness(format!("{e}: {last}")))?;
        Ok(Witness { object, _links: links })
    }

    /// Returns all recorded calls so far, and the number of calls for which the ring buffer had no
    /// room.
    pub fn entries(&self) -> Result<(Vec<LogEntry>, u64), LiveError> {
        self.read().map_err(|e| LiveError::Witness(e.to_string()))
    }

    fn read(&self) -> Result<(Vec<LogEntry>, u64), libbpf_rs::Error> {
        let map = |end: &str| {
            let found = self.object.maps().find(|m| m.name().to_string_lossy().ends_with(end));
            found.ok_or_else(|| std::io::Error::other(format!("no map {end}")))
        };
        let mut entries = Vec::new();
        ring::read(&map("ring")?, |record| entries.extend(LogEntry::read(record)))?;
        // `nr_lost` is the only variable in `.bss`.
        let lost = map(".bss")?.lookup(&0u32.to_ne_bytes(), MapFlags::ANY)?.unwrap_or_default();
        let lost = lost.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        Ok((entries, lost))
    }
}

/// Returns the scheduler's programs by operation.
fn targets(prepared: &PreparedObject) -> Result<BTreeMap<&str, &str>, LiveError> {
    let object = prepared.open.object();
    let table = prepared.open.tables.iter().find(|t| t.name() == prepared.table);
    let members = table.map_or(&[][..], |t| &t.table().members);
    let mut targets = BTreeMap::new();
    let mut used = BTreeMap::new();
    for member in members {
        let MemberKind::Callback(Some(function)) = member.kind else { continue };
        let program = object.functions[function].name.as_str();
        if let Some(other) = used.insert(program, member.name.as_str()) {
            return Err(LiveError::Witness(format!(
                "ops.{other} and ops.{} are the same program, {program}; their calls cannot be distinguished",
                member.name
            )));
        }
        targets.insert(member.name.as_str(), program);
    }
    Ok(targets)
}

fn load(
    targets: &BTreeMap<&str, &str>,
    scheduler: &Object,
) -> Result<(Object, Vec<Link>), libbpf_rs::Error> {
    let mut open = ObjectBuilder::default().name("scxlab_witness")?.open_memory(OBJECT)?;
    for mut program in open.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        let operation = name.strip_prefix(PREFIX).unwrap_or(&name);
        let target = targets.get(operation).and_then(|target| {
            scheduler.progs().find(|p| p.name() == OsStr::new(target)).map(|p| (p, *target))
        });
        match target {
            Some((loaded, target)) => {
                let fd = loaded.as_fd().as_raw_fd();
                program.set_attach_target(fd, Some(target.to_owned()))?;
            }
            None => {
                program.set_autoload(false);
            }
        }
    }
    let object = open.load()?;
    let mut links = Vec::new();
    for program in object.progs_mut().filter(|p| p.autoload()) {
        links.push(program.attach()?);
    }
    Ok((object, links))
}
