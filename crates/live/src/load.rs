// SPDX-License-Identifier: GPL-2.0-only
//! Loading of a prepared object into the running kernel through libbpf, as its frontend would do
//! it.
//!
//! Owns: the transfer of all settings in `Prepared`: globals, ops settings, map sizes, which
//! programs are loaded.
//! Does not: choose these settings, or attach the object (see `scheduler.rs`).

use std::ffi::OsStr;

use libbpf_rs::{Object, ObjectBuilder, OpenMapMut, OpenObject as OpenBpf};
use scxlab_lab::prepare::PreparedObject;
use scxlab_loader::link::OpenObject;
use scxlab_loader::object::MemberKind;

use crate::LiveError;
use crate::frontend::is_section;
use crate::kernel::hotplug_seq;
use crate::log::{listen, refusal};

/// Variables in which schedulers keep the kernel's debug dump, by the convention of their common
/// headers.
const DUMP: &str = "uei_dump";
const DUMP_LEN: &str = "uei_dump_len";
/// The kernel's length of a dump in bytes if the ops give none: SCX_EXIT_DUMP_DFL_LEN.
const DUMP_DEFAULT: u32 = 32768;

/// Loads the object with the ops table that was chosen for it. Returns the settings as loaded and
/// the loaded object. `label` names the scheduler in error messages.
pub fn load(prepared: &PreparedObject, label: &str) -> Result<(OpenObject, Object), LiveError> {
    let mut plan = prepared.open.clone();
    set_default_ops(&mut plan, &prepared.table);
    let (result, log) = listen(|| load_quietly(prepared, &plan));
    let object = result.map_err(|what| match refusal(&log) {
        Some(found) => LiveError::Verifier {
            label: label.to_owned(),
            program: found.program,
            source_line: found.source_line,
            log: found.end,
        },
        None => LiveError::Load { label: label.to_owned(), what, log },
    })?;
    Ok((plan, object))
}

/// Makes the settings that every frontend makes: writes the kernel's count of hotplug events into
/// the ops, and makes room for the kernel's debug dump.
fn set_default_ops(plan: &mut OpenObject, table: &str) {
    let object = plan.object().clone();
    let Some(edit) = plan.table_mut(table) else { return };
    let _ = edit.set(&object.btf, "hotplug_seq", &hotplug_seq().to_string());
    let said = edit.get(&object.btf, "exit_dump_len").ok().and_then(|t| t.parse().ok());
    let len = said.filter(|len| *len > 0).unwrap_or(DUMP_DEFAULT);
    if plan.globals.resize_array(DUMP, u64::from(len)).is_ok() {
        let _ = plan.globals.set(DUMP_LEN, &len.to_string());
    }
}

fn load_quietly(prepared: &PreparedObject, plan: &OpenObject) -> Result<Object, String> {
    let text = |e: libbpf_rs::Error| e.to_string();
    let mut builder = ObjectBuilder::default();
    builder.name("scxlab").map_err(text)?;
    let mut open = builder.open_memory(&prepared.bytes).map_err(text)?;
    set_globals(&mut open, plan)?;
    set_tables(&mut open, plan, &prepared.table)?;
    for (name, entries) in plan.max_entries() {
        let mut map = map_named(&mut open, name).ok_or(format!("libbpf shows no map {name}"))?;
        map.set_max_entries(entries).map_err(text)?;
    }
    for (name, load) in plan.autoload() {
        let found = open.progs_mut().find(|p| p.name() == OsStr::new(name));
        found.ok_or(format!("libbpf shows no program {name}"))?.set_autoload(load);
    }
    open.load().map_err(text)
}

/// Sets the contents and sizes of data sections. libbpf makes a map for each section (see
/// `is_section`).
fn set_globals(open: &mut OpenBpf, plan: &OpenObject) -> Result<(), String> {
    for (index, section) in plan.object().sections.iter().enumerate() {
        let content = plan.globals.content(index);
        if content.size == section.size && content.written().next().is_none() {
            continue;
        }
        let mut map = section_map(open, &section.name)
            .ok_or(format!("libbpf shows no map for section {}", section.name))?;
        if content.size != section.size {
            let size = u32::try_from(content.size)
                .map_err(|_| format!("section {} is too large", section.name))?;
            map.set_value_size(size).map_err(|e| format!("size of {}: {e}", section.name))?;
        }
        let bytes = map
            .initial_value_mut()
            .ok_or(format!("section {} has no initial value", section.name))?;
        for (at, page) in content.written() {
            let at = at as usize;
            let len = page.len().min(bytes.len().saturating_sub(at));
            bytes[at..at + len].copy_from_slice(&page[..len]);
        }
    }
    Ok(())
}

fn section_map<'a>(open: &'a mut OpenBpf, section: &str) -> Option<OpenMapMut<'a>> {
    open.maps_mut().find(|map| is_section(map.name(), map.map_type(), section))
}

fn map_named<'a>(open: &'a mut OpenBpf, name: &str) -> Option<OpenMapMut<'a>> {
    open.maps_mut().find(|map| map.name() == OsStr::new(name))
}

/// Copies the settings of the ops table `chosen`, and tells libbpf not to create the object's other
/// ops tables.
fn set_tables(open: &mut OpenBpf, plan: &OpenObject, chosen: &str) -> Result<(), String> {
    for edit in &plan.tables {
        let name = edit.name();
        let mut map = map_named(open, name).ok_or(format!("libbpf shows no table {name}"))?;
        map.set_autocreate(name == chosen).map_err(|e| format!("table {name}: {e}"))?;
        if name != chosen {
            continue;
        }
        let bytes = map.initial_value_mut().ok_or(format!("table {name} has no value"))?;
        let table = edit.table();
        for member in table.members.iter().filter(|m| m.kind == MemberKind::Data) {
            let range = member.offset as usize..(member.offset + member.size) as usize;
            if let (Some(to), Some(from)) = (bytes.get_mut(range.clone()), table.data.get(range)) {
                to.copy_from_slice(from);
            }
        }
    }
    Ok(())
}
