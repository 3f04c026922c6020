// SPDX-License-Identifier: GPL-2.0-only
//! The state of a loaded scheduler, read as a frontend could: statistics, globals, and per-task
//! data.
//!
//! Owns: nothing. Does not: judge the values (see `cases.rs` and the tests).

use scxlab_kernel::Kernel;
use scxlab_kernel::ext::op::Op;
use scxlab_kernel::task::Task;
use scxlab_loader::btf::BtfKind;
use scxlab_loader::link::Loaded;
use scxlab_machine::id::Nanos;

/// Returns a counter of the map `stats`, summed over all CPUs.
pub fn stat(k: &Kernel, loaded: &Loaded, name: &str) -> u64 {
    let (map, at) = field(loaded, "stats", name);
    let cpus = 0..k.cpus.len() as u32;
    cpus.map(|cpu| {
        let value = k.vm.map_lookup_cpu(map, &[0; 4], cpu).expect("an element");
        word(&value[at..], 8)
    })
    .sum()
}

/// Returns a counter of a task in the hash `task_stats`; 0 if the hash has no entry for the task.
pub fn task_stat(k: &Kernel, loaded: &Loaded, pid: u32, name: &str) -> u64 {
    let (map, at) = field(loaded, "task_stats", name);
    k.vm.map_lookup(map, &pid.to_ne_bytes()).map_or(0, |value| word(&value[at..], 8))
}

/// Reads an integer global of the scheduler by its path.
pub fn global(k: &Kernel, loaded: &Loaded, path: &str) -> i64 {
    let text = loaded.read_global(&k.vm, path).unwrap_or_else(|e| panic!("{e}"));
    text.parse().unwrap_or_else(|_| panic!("{path} is {text}, no number"))
}

/// Returns the task called `name`; the first one, if the workload has several.
pub fn task<'a>(k: &'a Kernel, name: &str) -> &'a Task {
    let found = k.tasks.iter().find(|t| t.name == name);
    found.unwrap_or_else(|| {
        let names: Vec<&str> = k.tasks.iter().map(|t| t.name.as_str()).collect();
        panic!("no task {name}; there are {}", names.join(", "))
    })
}

/// Reads a field that the scheduler keeps for a task in the task storage `tasks`. If the storage
/// has a field `slot`, the function reads the field of `slots[slot]` instead.
pub fn task_field(k: &Kernel, loaded: &Loaded, name: &str, path: &str) -> i64 {
    let owner = task(k, name).addr;
    let read = |path: &str| {
        let (map, at) = field(loaded, "tasks", path);
        let value = k.vm.storage_lookup(map, owner).unwrap_or_else(|e| panic!("{name}: {e:?}"));
        let size = size_of_field(loaded, "tasks", path);
        let bytes = k.vm.mem.bytes(value + at as u64, size as u64).expect("a value");
        sign_extend(word(bytes, size), size)
    };
    if has_field(loaded, "tasks", "slot") {
        let slot = read("slot");
        return global(k, loaded, &format!("slots[{slot}].{path}"));
    }
    read(path)
}

fn value_type(loaded: &Loaded, map: &str) -> scxlab_loader::btf::TypeId {
    let object = &loaded.object;
    let at = object.map(map).unwrap_or_else(|| panic!("no map {map}"));
    object.maps[at].value_ty.expect("a type")
}

fn has_field(loaded: &Loaded, map: &str, path: &str) -> bool {
    loaded.object.btf.path(value_type(loaded, map), &format!(".{path}")).is_ok()
}

fn field(loaded: &Loaded, map: &str, path: &str) -> (scxlab_bpf::map::MapId, usize) {
    let found = loaded.object.btf.path(value_type(loaded, map), &format!(".{path}"));
    let found = found.unwrap_or_else(|e| panic!("{map}: {e}"));
    (loaded.map(map).expect("a map"), found.byte_off() as usize)
}

fn size_of_field(loaded: &Loaded, map: &str, path: &str) -> usize {
    let btf = &loaded.object.btf;
    let found = btf.path(value_type(loaded, map), &format!(".{path}")).expect("a field");
    btf.size_of(found.ty).expect("a size") as usize
}

fn word(bytes: &[u8], size: usize) -> u64 {
    let mut all = [0; 8];
    all[..size].copy_from_slice(&bytes[..size]);
    u64::from_le_bytes(all)
}

/// Interprets values of four and eight bytes as signed, because unsigned fields of these sizes in
/// shipped schedulers stay below the sign bit. Smaller values are unsigned.
fn sign_extend(value: u64, size: usize) -> i64 {
    match size {
        4 => i64::from(value as u32 as i32),
        _ => value as i64,
    }
}

/// Reads a field of a structure of the scheduler at an address, for example in an arena.
pub fn struct_field(k: &Kernel, loaded: &Loaded, structure: &str, addr: i64, path: &str) -> i64 {
    let btf = &loaded.object.btf;
    let ty =
        btf.find(structure, BtfKind::Struct).unwrap_or_else(|| panic!("no struct {structure}"));
    let found = btf.path(ty, &format!(".{path}")).unwrap_or_else(|e| panic!("{structure}: {e}"));
    let size = btf.size_of(found.ty).expect("a size");
    let bytes = k.vm.mem.bytes(addr as u64 + found.byte_off(), size);
    sign_extend(word(bytes.expect("memory of the scheduler's"), size as usize), size as usize)
}

/// Returns the size of a structure of the scheduler, in bytes.
pub fn size_of(loaded: &Loaded, structure: &str) -> i64 {
    let btf = &loaded.object.btf;
    let ty =
        btf.find(structure, BtfKind::Struct).unwrap_or_else(|| panic!("no struct {structure}"));
    btf.size_of(ty).expect("a size") as i64
}

/// Offsets and sizes of some fields of a structure of the scheduler, for tests that read many of
/// them often.
pub struct StructLayout {
    size: u64,
    fields: std::collections::BTreeMap<&'static str, (usize, usize)>,
}

impl StructLayout {
    pub fn new(loaded: &Loaded, structure: &str, paths: &[&'static str]) -> StructLayout {
        let btf = &loaded.object.btf;
        let ty = btf.find(structure, BtfKind::Struct);
        let ty = ty.unwrap_or_else(|| panic!("no struct {structure}"));
        let place = |path| {
            let found = btf.path(ty, &format!(".{path}"));
            let found = found.unwrap_or_else(|e| panic!("{structure}: {e}"));
            let size = btf.size_of(found.ty).expect("a size") as usize;
            (found.byte_off() as usize, size)
        };
        let fields = paths.iter().map(|&path| (path, place(path))).collect();
        StructLayout { size: btf.size_of(ty).expect("a size"), fields }
    }

    /// Reads the structure at `addr`, or the one `index` elements after it.
    pub fn read<'a>(&'a self, k: &'a Kernel, addr: u64, index: u64) -> Record<'a> {
        let at = addr + index * self.size;
        let bytes = k.vm.mem.bytes(at, self.size).expect("memory of the scheduler's");
        Record { layout: self, bytes, at }
    }
}

/// Present contents of a structure.
pub struct Record<'a> {
    layout: &'a StructLayout,
    bytes: &'a [u8],
    pub at: u64,
}

impl Record<'_> {
    pub fn get(&self, path: &'static str) -> i64 {
        let &(at, size) = self.layout.fields.get(path).unwrap_or_else(|| panic!("{path}"));
        sign_extend(word(&self.bytes[at..], size), size)
    }

    /// Returns a field that is an address.
    pub fn addr(&self, path: &'static str) -> u64 {
        self.get(path) as u64
    }
}

/// Reads a global that is an address.
pub fn pointer(k: &Kernel, loaded: &Loaded, path: &str) -> u64 {
    let place = loaded.global(path).unwrap_or_else(|e| panic!("{path}: {e:?}"));
    word(k.vm.mem.bytes(place.addr, 8).expect("a global"), 8)
}

/// Returns the address that the task storage `tasks` holds for a task; None if it holds none.
pub fn task_pointer(k: &Kernel, loaded: &Loaded, task: &Task) -> Option<u64> {
    let value = k.vm.storage_lookup(loaded.map("tasks").expect("a map"), task.addr).ok()?;
    Some(word(k.vm.mem.bytes(value, 8).expect("a value"), 8)).filter(|&at| at != 0)
}

/// Lets the kernel run until a time, and returns the mean number of BPF instructions per call of an
/// operation meanwhile. Panics if there were not more than `at_least` calls.
pub fn insns_per_call(k: &mut Kernel, op: Op, until: Nanos, at_least: u64) -> u64 {
    let before = k.ext.op_stats.0[op as usize];
    k.advance(until);
    let after = k.ext.op_stats.0[op as usize];
    assert!(k.ext.exits.is_empty(), "{:?}", k.ext.exits);
    let calls = after.calls - before.calls;
    assert!(calls > at_least, "only {calls} calls of {op:?}");
    (after.insns - before.insns) / calls
}
