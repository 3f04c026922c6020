// SPDX-License-Identifier: GPL-2.0-only
//! A loaded object as its frontend sees it: the interface for recipe steps after load.
//!
//! Owns: the interface, and its simulated implementation. Does not: implement the interface for an
//! object that libbpf has loaded; the live crate does.

use scxlab_bpf::fault::Fault;
use scxlab_bpf::map::{MapId, map_type};
use scxlab_kernel::Kernel;
use scxlab_loader::link::{GlobalError, Loaded};
use scxlab_loader::object::Object;
use scxlab_machine::CpuId;

/// Reason why a program returned no value.
#[derive(Debug)]
pub enum RunFailure {
    /// The program was not loaded.
    NotLoaded,
    /// The simulated program stopped at a fault.
    Fault(Box<Fault>),
    /// A real kernel refused to run the program.
    Refused(String),
}

/// Error number of a map operation, as the bpf(2) system call returns it.
pub type Errno = i64;

/// Operations of user space on a loaded object. Maps are identified by their index in the object.
pub trait Frontend {
    fn object(&self) -> &Object;
    /// Returns the present value of a global variable, or of a part of one, as text; or the reason
    /// why there is none.
    fn global(&self, path: &str) -> Result<String, String>;
    fn set_global(&mut self, path: &str, text: &str) -> Result<(), Box<GlobalError>>;
    /// Runs a syscall program, on `cpu` if given. The program may change its context.
    fn run(&mut self, program: &str, ctx: &mut [u8], cpu: Option<CpuId>)
    -> Result<i32, RunFailure>;
    /// Returns the size in bytes of a whole element of a map. In a per-CPU map, that is the size of
    /// all copies together, each padded to a multiple of 8 bytes.
    fn value_len(&self, map: usize) -> usize;
    fn is_per_cpu(&self, map: usize) -> bool;
    /// Returns an element of a map; from a per-CPU map, all copies, or only the copy of `cpu` if
    /// given.
    fn lookup(&self, map: usize, key: &[u8], cpu: Option<CpuId>) -> Result<Vec<u8>, Errno>;
    /// Returns the keys of a map's elements, in arbitrary order.
    fn keys(&self, map: usize) -> Vec<Vec<u8>>;
    fn update(
        &mut self,
        map: usize,
        key: &[u8],
        value: &[u8],
        cpu: Option<CpuId>,
    ) -> Result<(), Errno>;
    /// Creates `slots` maps like the template of a map of maps, and puts them into the first slots
    /// of the map of maps.
    fn fill_map_of_maps(&mut self, map: usize, slots: u32) -> Result<(), String>;
    /// Reads memory of the object's arena. `at` is an address as the object's programs use it.
    fn read_arena(&mut self, at: u64, len: u64) -> Result<Vec<u8>, String>;
    fn write_arena(&mut self, at: u64, bytes: &[u8]) -> Result<(), String>;
}

/// An object in a simulated kernel.
pub struct Simulated<'a> {
    pub kernel: &'a mut Kernel,
    pub loaded: &'a Loaded,
}

const PER_CPU: [u32; 3] =
    [map_type::PERCPU_ARRAY, map_type::PERCPU_HASH, map_type::LRU_PERCPU_HASH];

impl Simulated<'_> {
    fn map_type(&self, id: MapId) -> Option<u32> {
        self.kernel.vm.map(id).map(|map| map.def.map_type)
    }

    /// Checks that the address range lies in the object's arena, and backs the range with memory.
    fn touch_arena(&mut self, at: u64, len: u64) -> Result<(), String> {
        let outside = || "the address is not in an arena of the object".to_owned();
        let is_arena = |id: &MapId| self.map_type(*id) == Some(map_type::ARENA);
        let arena = self.loaded.maps.iter().copied().find(is_arena).ok_or_else(outside)?;
        let (start, size) = self.kernel.vm.map_area(arena).map_err(|_| outside())?;
        let inside = at >= start && at.checked_add(len).is_some_and(|end| end <= start + size);
        if !inside {
            return Err(outside());
        }
        self.kernel.vm.arena_touch(arena, at, len).map_err(|errno| format!("errno {errno}"))
    }
}

impl Frontend for Simulated<'_> {
    fn object(&self) -> &Object {
        &self.loaded.object
    }

    fn global(&self, path: &str) -> Result<String, String> {
        self.loaded.read_global(&self.kernel.vm, path).map_err(|e| e.to_string())
    }

    fn set_global(&mut self, path: &str, text: &str) -> Result<(), Box<GlobalError>> {
        self.loaded.write_global(&mut self.kernel.vm, path, text).map_err(Box::new)
    }

    fn run(
        &mut self,
        program: &str,
        ctx: &mut [u8],
        cpu: Option<CpuId>,
    ) -> Result<i32, RunFailure> {
        let func = self.loaded.func(program).ok_or(RunFailure::NotLoaded)?;
        let instance = self.loaded.instance;
        let call = |k: &mut Kernel, ctx: &mut [u8]| k.run_syscall(instance, func, ctx);
        let result = match cpu {
            None => self.kernel.user(|k| call(k, ctx)),
            Some(cpu) => self.kernel.user_on(cpu, |k| call(k, ctx)),
        };
        result.map(|value| value as i32).map_err(|fault| RunFailure::Fault(Box::new(fault)))
    }

    fn value_len(&self, map: usize) -> usize {
        self.kernel.vm.map_value_len(self.loaded.maps[map]).unwrap_or(0)
    }

    fn is_per_cpu(&self, map: usize) -> bool {
        self.map_type(self.loaded.maps[map]).is_some_and(|ty| PER_CPU.contains(&ty))
    }

    fn lookup(&self, map: usize, key: &[u8], cpu: Option<CpuId>) -> Result<Vec<u8>, Errno> {
        let id = self.loaded.maps[map];
        match cpu {
            Some(cpu) => self.kernel.vm.map_lookup_cpu(id, key, cpu.0),
            None => self.kernel.vm.map_lookup(id, key),
        }
    }

    fn keys(&self, map: usize) -> Vec<Vec<u8>> {
        self.kernel.vm.map_keys(self.loaded.maps[map]).unwrap_or_default()
    }

    fn update(
        &mut self,
        map: usize,
        key: &[u8],
        value: &[u8],
        cpu: Option<CpuId>,
    ) -> Result<(), Errno> {
        let id = self.loaded.maps[map];
        match cpu {
            None => self.kernel.vm.map_update(id, key, value, 0),
            Some(cpu) => self.kernel.vm.map_update_cpu(id, key, value, cpu.0),
        }
    }

    fn fill_map_of_maps(&mut self, map: usize, slots: u32) -> Result<(), String> {
        let outer = self.loaded.maps[map];
        let vm = &mut self.kernel.vm;
        let template = vm.map(outer).and_then(|m| m.def.inner.clone());
        let template = template.ok_or("it does not hold maps")?;
        for slot in 0..slots {
            let inner =
                vm.create_map(self.loaded.instance, &template).map_err(|e| e.to_string())?;
            let put = vm.map_set_inner(outer, &slot.to_ne_bytes(), inner);
            put.map_err(|errno| format!("slot {slot}: errno {errno}"))?;
        }
        Ok(())
    }

    fn read_arena(&mut self, at: u64, len: u64) -> Result<Vec<u8>, String> {
        self.touch_arena(at, len)?;
        Ok(self.kernel.vm.mem.bytes(at, len).map_err(|e| e.to_string())?.to_vec())
    }

    fn write_arena(&mut self, at: u64, bytes: &[u8]) -> Result<(), String> {
        let len = bytes.len() as u64;
        self.touch_arena(at, len)?;
        self.kernel.vm.mem.bytes_mut(at, len).map_err(|e| e.to_string())?.copy_from_slice(bytes);
        Ok(())
    }
}
