// SPDX-License-Identifier: GPL-2.0-only
//! A loaded object on the running kernel, with the operations that recipes use.
//!
//! Owns: libbpf's mappings of data sections and arenas, bpf(2) for maps, runs of syscall programs.
//! Does not: know recipes (see the lab crate).

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{
    AsRawLibbpf, Map, MapCore, MapFlags, MapHandle, MapType, Object, ProgramInput, ProgramType,
};
use scxlab_bpf::errno::{EINVAL, ENOENT};
use scxlab_lab::recipe::frontend::{Errno, Frontend, RunFailure};
use scxlab_loader::link::{GlobalError, GlobalRef, OpenObject};
use scxlab_loader::object;
use scxlab_machine::CpuId;

/// A loaded object. The rest of this crate also uses this type to read the object's variables.
pub struct LiveFrontend<'a> {
    pub plan: &'a OpenObject,
    pub object: &'a Object,
}

/// Tells whether a map is the one that libbpf made for a data section. The map's name is the
/// section's name or, if the section's name contains exactly one dot, ends with the section's name.
pub fn is_section(map_name: &OsStr, ty: MapType, section: &str) -> bool {
    let name = map_name.to_string_lossy();
    match ty {
        MapType::Arena => section == ARENA_SECTION,
        MapType::Array => {
            name == section || (section.matches('.').count() == 1 && name.ends_with(section))
        }
        _ => false,
    }
}

const ARENA_SECTION: &str = ".addr_space.1";

impl LiveFrontend<'_> {
    /// Returns the present bytes of a variable, or of a part of one.
    pub fn bytes(&self, path: &str) -> Result<Vec<u8>, String> {
        let place = self.plan.globals.find(path).map_err(|e| e.to_string())?;
        self.bytes_at(place, place.size)
    }

    /// Returns the bytes from a variable to the end of its section, at most `len`.
    pub fn bytes_at(&self, place: GlobalRef, len: u64) -> Result<Vec<u8>, String> {
        let (base, size) = self.mapping(place.section)?;
        let start = place.offset.min(size);
        let len = len.min(size - start) as usize;
        // SAFETY: libbpf maps `size` bytes at `base` for as long as the object lives. Programs may
        // write them at the same time, so each byte is read with a volatile access.
        Ok((0..len).map(|at| unsafe { base.add(start as usize + at).read_volatile() }).collect())
    }

    /// Returns the address at which a data section is mapped, and its size.
    fn mapping(&self, section: usize) -> Result<(*mut u8, u64), String> {
        let name = &self.plan.object().sections[section].name;
        let map = self.object.maps().find(|m| is_section(m.name(), m.map_type(), name));
        let map = map.ok_or_else(|| format!("libbpf shows no map for section {name}"))?;
        let mut size = 0usize;
        // SAFETY: the map outlives this libbpf call, and libbpf writes one size_t to `size`.
        let base = unsafe {
            libbpf_sys::bpf_map__initial_value(
                map.as_libbpf_object().as_ptr(),
                (&raw mut size).cast(),
            )
        };
        if base.is_null() {
            return Err(format!("section {name} is not mapped"));
        }
        Ok((base.cast(), size as u64))
    }

    fn map(&self, index: usize) -> Option<Map<'_>> {
        let name = OsStr::new(&self.plan.object().maps[index].name);
        self.object.maps().find(|m| m.name() == name)
    }

    /// Refuses a range that does not lie within the arena's mapping.
    fn check_arena(&self, at: u64, len: u64) -> Result<(), String> {
        let outside = || "the address is not in an arena of the object".to_owned();
        let arena = self.object.maps().find(|m| m.map_type() == MapType::Arena);
        let arena = arena.ok_or_else(outside)?;
        let mut size = 0usize;
        // SAFETY: the map outlives this libbpf call, and libbpf writes one size_t to `size`.
        let base = unsafe {
            libbpf_sys::bpf_map__initial_value(
                arena.as_libbpf_object().as_ptr(),
                (&raw mut size).cast(),
            )
        };
        let start = base.addr() as u64;
        let bytes = u64::from(arena.max_entries()) * PAGE;
        let inside = start != 0
            && at >= start
            && at.checked_add(len).is_some_and(|end| end <= start.saturating_add(bytes));
        if inside { Ok(()) } else { Err(outside()) }
    }
}

const PAGE: u64 = 4096;

impl Frontend for LiveFrontend<'_> {
    fn object(&self) -> &object::Object {
        self.plan.object()
    }

    fn global(&self, path: &str) -> Result<String, String> {
        let place = self.plan.globals.find(path).map_err(|e| e.to_string())?;
        let bytes = self.bytes_at(place, place.extent())?;
        Ok(place.decode(&self.plan.object().btf, &bytes))
    }

    fn set_global(&mut self, path: &str, text: &str) -> Result<(), Box<GlobalError>> {
        let globals = &self.plan.globals;
        let place = globals.find(path).map_err(Box::new)?;
        let range = || Box::new(GlobalError::Range { path: path.to_owned() });
        if self.plan.object().sections[place.section].name.starts_with(".rodata") {
            return Err(range());
        }
        // Read only the part of the variable that is set. Variables can have many megabytes, and
        // copying them would delay tasks that wait for this setup.
        let now = self.bytes_at(place, place.extent()).map_err(|_| range())?;
        let bytes = place.encode(&self.plan.object().btf, path, text, now).map_err(Box::new)?;
        let (base, size) = self.mapping(place.section).map_err(|_| range())?;
        for (at, byte) in (place.offset..size).zip(bytes) {
            // SAFETY: the address lies within the mapping, which is writable because the section is
            // not constant.
            unsafe { base.add(at as usize).write_volatile(byte) };
        }
        Ok(())
    }

    fn run(
        &mut self,
        program: &str,
        ctx: &mut [u8],
        cpu: Option<CpuId>,
    ) -> Result<i32, RunFailure> {
        let is_it = |name: &OsStr| name == OsStr::new(program);
        let found = self
            .object
            .progs_mut()
            .find(|p| is_it(p.name()) && p.prog_type() == ProgramType::Syscall && p.autoload());
        let found = found.ok_or(RunFailure::NotLoaded)?;
        let input = ProgramInput {
            context_in: (!ctx.is_empty()).then_some(ctx),
            ..ProgramInput::default()
        };
        let run = || found.test_run(input).map(|output| output.return_value as i32);
        let result = match cpu {
            None => run(),
            Some(cpu) => on_cpu(cpu, run).map_err(RunFailure::Refused)?,
        };
        result.map_err(|e| RunFailure::Refused(e.to_string()))
    }

    fn value_len(&self, map: usize) -> usize {
        let size = self.plan.object().maps[map].value_size as usize;
        match self.is_per_cpu(map) {
            true => size.next_multiple_of(8) * libbpf_rs::num_possible_cpus().unwrap_or(1),
            false => size,
        }
    }

    fn is_per_cpu(&self, map: usize) -> bool {
        self.map(map).is_some_and(|m| m.map_type().is_percpu())
    }

    fn lookup(&self, map: usize, key: &[u8], cpu: Option<CpuId>) -> Result<Vec<u8>, Errno> {
        let found = self.map(map).ok_or(EINVAL)?;
        if !found.map_type().is_percpu() {
            let value = found.lookup(key, MapFlags::ANY).map_err(|_| EINVAL)?;
            return value.ok_or(ENOENT);
        }
        let copies = found.lookup_percpu(key, MapFlags::ANY).map_err(|_| EINVAL)?;
        let copies = copies.ok_or(ENOENT)?;
        match cpu {
            Some(cpu) => copies.into_iter().nth(cpu.idx()).ok_or(EINVAL),
            None => Ok(copies.into_iter().flat_map(padded).collect()),
        }
    }

    fn keys(&self, map: usize) -> Vec<Vec<u8>> {
        self.map(map).map(|map| map.keys().collect()).unwrap_or_default()
    }

    fn update(
        &mut self,
        map: usize,
        key: &[u8],
        value: &[u8],
        cpu: Option<CpuId>,
    ) -> Result<(), Errno> {
        let size = self.plan.object().maps[map].value_size as usize;
        let found = self.map(map).ok_or(EINVAL)?;
        if !found.map_type().is_percpu() {
            return found.update(key, value, MapFlags::ANY).map_err(|_| EINVAL);
        }
        let copies: Vec<Vec<u8>> = match cpu {
            None => value
                .chunks(size.next_multiple_of(8))
                .map(|copy| copy[..size.min(copy.len())].to_vec())
                .collect(),
            Some(cpu) => {
                let present = found.lookup_percpu(key, MapFlags::ANY).map_err(|_| EINVAL)?;
                let cpus = libbpf_rs::num_possible_cpus().map_err(|_| EINVAL)?;
                let mut copies = present.unwrap_or_else(|| vec![vec![0; size]; cpus]);
                *copies.get_mut(cpu.idx()).ok_or(EINVAL)? = value.to_vec();
                copies
            }
        };
        found.update_percpu(key, &copies, MapFlags::ANY).map_err(|_| EINVAL)
    }

    fn fill_map_of_maps(&mut self, map: usize, slots: u32) -> Result<(), String> {
        let spec = &self.plan.object().maps[map];
        let template = spec.inner.as_ref().ok_or("it does not hold maps")?;
        let outer = self.map(map).ok_or("libbpf shows no such map")?;
        for slot in 0..slots {
            let options = libbpf_sys::bpf_map_create_opts {
                sz: size_of::<libbpf_sys::bpf_map_create_opts>() as u64,
                map_flags: template.map_flags,
                ..Default::default()
            };
            let inner = MapHandle::create(
                MapType::from(template.map_type),
                None::<&str>,
                template.key_size,
                template.value_size,
                template.max_entries,
                &options,
            );
            let inner = inner.map_err(|e| format!("slot {slot}: {e}"))?;
            let fd = inner.as_fd().as_raw_fd();
            outer
                .update(&slot.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY)
                .map_err(|e| format!("slot {slot}: {e}"))?;
        }
        Ok(())
    }

    fn read_arena(&mut self, at: u64, len: u64) -> Result<Vec<u8>, String> {
        self.check_arena(at, len)?;
        let start: *const u8 = std::ptr::with_exposed_provenance(at as usize);
        // SAFETY: the range lies in the arena's mapping, where user space may touch every page; the
        // kernel allocates missing pages.
        Ok((0..len as usize).map(|i| unsafe { start.add(i).read_volatile() }).collect())
    }

    fn write_arena(&mut self, at: u64, bytes: &[u8]) -> Result<(), String> {
        self.check_arena(at, bytes.len() as u64)?;
        let start: *mut u8 = std::ptr::with_exposed_provenance_mut(at as usize);
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: the range lies in the arena's mapping, as in `read_arena`.
            unsafe { start.add(i).write_volatile(*byte) };
        }
        Ok(())
    }
}

fn padded(mut copy: Vec<u8>) -> Vec<u8> {
    copy.resize(copy.len().next_multiple_of(8), 0);
    copy
}

/// Runs `f` with this thread on the given CPU, because a syscall program runs on the CPU of its
/// caller.
fn on_cpu<R>(cpu: CpuId, f: impl FnOnce() -> R) -> Result<R, String> {
    // SAFETY: an all-zero cpu_set_t is valid.
    let (mut before, mut one): (libc::cpu_set_t, libc::cpu_set_t) = unsafe { std::mem::zeroed() };
    // SAFETY: the sets have the sizes that the calls pass, and CPU_SET checks its bound.
    let ret = unsafe {
        libc::CPU_SET(cpu.idx(), &mut one);
        libc::sched_getaffinity(0, size_of_val(&before), &raw mut before)
            | libc::sched_setaffinity(0, size_of_val(&one), &raw const one)
    };
    if ret != 0 {
        return Err(format!("CPU {cpu}: {}", std::io::Error::last_os_error()));
    }
    let result = f();
    // SAFETY: `before` has the size that the call passes.
    unsafe { libc::sched_setaffinity(0, size_of_val(&before), &raw const before) };
    Ok(result)
}
