// SPDX-License-Identifier: GPL-2.0-only
//! One run of a program, with all memory that the program may touch, and a record of everything
//! observable afterwards.
//!
//! Owns: the list of observations in which both engines must agree. Does not: compare; the caller
//! runs a program on each engine and compares.

use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex};

use rustc_hash::FxBuildHasher;

use super::BareHost;
use crate::insn::random::{KFUNCS, MAP_MARK, Program, ProgramEntry, VALUE_MARK, VALUES_BYTES};
use crate::insn::{Op, decode};
use crate::jit::{CodeCache, CodeKey, CodeStore};
use crate::kfunc::KfuncId;
use crate::map::{MapDef, MapKind, map_flag, map_type};
use crate::mem::{ARENA_WINDOW, PAGE, Perm};
use crate::vm::{Config, Engine, FuncId, Image, InstanceId, InstanceParts, Limits, call, call_raw};

/// Everything observable of a run.
#[derive(Debug, PartialEq, Eq)]
pub struct Observed {
    /// Return value, or the fault's report.
    pub result: Result<u64, String>,
    pub executed: u64,
    pub helper_calls: u64,
    pub kfunc_calls: Vec<(KfuncId, [u64; 5])>,
    pub arena_stores_dropped: u64,
    /// Hash of the memory that the program may write, including its frames.
    pub memory_hash: u64,
}

const INSN_LIMIT: u64 = 5_000;
const PAGES: u64 = 2;
const ARENA_PAGES: u32 = 4;

/// Runs the first function of a program twice in the same host, because state left by the first run
/// matters too. Bits of `flags`: 1 allows stores to kernel structures, 2 adds an arena, 4 selects
/// CPU 1.
pub fn run(
    program: &Program,
    entry: ProgramEntry,
    engine: Engine,
    flags: u8,
) -> Option<[Observed; 2]> {
    run_in(program, entry, engine, flags, CodeCache::default())
}

/// Does the same as `run` with machine code that an earlier run has put into a store.
pub fn run_kept(program: &Program, entry: ProgramEntry, flags: u8) -> Option<[Observed; 2]> {
    let store: Arc<InMemory> = Arc::default();
    let cache = || CodeCache::kept_in(store.clone());
    let first = cache();
    run_in(program, entry, Engine::Jit, flags, first.clone())?;
    first.keep();
    run_in(program, entry, Engine::Jit, flags, cache())
}

/// A store of machine code that is gone with the process.
#[derive(Debug, Default)]
pub struct InMemory(Mutex<BTreeMap<CodeKey, Vec<u8>>>);

impl InMemory {
    /// Changes everything in the store.
    pub fn change(&self, change: impl FnMut(&mut Vec<u8>)) {
        self.0.lock().expect("no panic").values_mut().for_each(change);
    }
}

impl CodeStore for InMemory {
    fn version(&self) -> &str {
        "this process"
    }

    fn load(&self, key: &CodeKey) -> Option<Vec<u8>> {
        self.0.lock().expect("no panic").get(key).cloned()
    }

    fn keep(&self, key: &CodeKey, bytes: &[u8]) {
        self.0.lock().expect("no panic").insert(*key, bytes.to_vec());
    }
}

fn run_in(
    program: &Program,
    entry: ProgramEntry,
    engine: Engine,
    flags: u8,
    codes: CodeCache,
) -> Option<[Observed; 2]> {
    let code = decode(&program.raw, &program.funcs, &program.probe).ok()?;
    let limits =
        Limits { insns_per_call: INSN_LIMIT, may_goto: 50, compile_after: 0, ..Limits::default() };
    let config =
        Config { nr_cpus: 2, mem_size: 2 * ARENA_WINDOW, limits, engine, ..Config::default() };
    let mut host = BareHost::new(config).expect("8 GiB of address space");
    host.allow_kernel_stores = flags & 1 != 0;
    host.cpu = (flags >> 2 & 1).into();
    host.kfuncs = (0..KFUNCS).map(|id| (KfuncId(id), u64::from(id) << 30)).collect();
    let instance = host.vm.add_instance("trial");
    let fixture = Fixture::make(&mut host, instance, flags & 2 != 0);
    let mut image =
        Image { name: "trial".into(), code, funcs: program.funcs.clone(), ..Image::default() };
    for insn in image.code.iter_mut().filter(|insn| insn.op == Op::LdImm64) {
        let map = (insn.imm as u64).wrapping_sub(MAP_MARK);
        if let Some(addr) = usize::try_from(map).ok().and_then(|map| fixture.maps.get(map)) {
            insn.imm = *addr as i64;
        }
        let byte = (insn.imm as u64).wrapping_sub(VALUE_MARK);
        if byte < VALUES_BYTES as u64 + 8 {
            insn.imm = (fixture.values + byte) as i64;
        }
    }
    let image = image.into();
    host.vm.install(instance, InstanceParts { image, codes, ..InstanceParts::default() });
    Some([(); 2].map(|()| once(&mut host, instance, &fixture, entry)))
}

struct Fixture {
    pages: u64,
    arena: u64,
    maps: Vec<u64>,
    /// Address of the values of the first map, an array.
    values: u64,
}

impl Fixture {
    fn make(host: &mut BareHost, instance: InstanceId, arena: bool) -> Fixture {
        let def = |map_type, key_size, value_size, max_entries| MapDef {
            name: "m".into(),
            map_type,
            key_size,
            value_size,
            max_entries,
            ..MapDef::default()
        };
        let defs = [
            def(map_type::ARRAY, 4, 16, 4),
            def(map_type::HASH, 4, 8, 4),
            def(map_type::PERCPU_ARRAY, 4, 8, 2),
        ];
        let mut create = |def: &MapDef| {
            let id = host.vm.create_map(instance, def).expect("a map");
            host.vm.map(id).expect("just made").addr
        };
        let maps: Vec<u64> = defs.iter().map(&mut create).collect();
        if arena {
            let flags = map_flag::MMAPABLE;
            create(&MapDef { map_flags: flags, ..def(map_type::ARENA, 0, 0, ARENA_PAGES) });
        }
        let pages = host.vm.mem.alloc_region(PAGES * PAGE, Perm::ReadWrite).expect("pages");
        let arena = host.vm.instance(instance).map_or(0, |instance| instance.arena_base);
        // Two of the arena's pages exist; the others are holes.
        if arena != 0 {
            host.vm.mem.set_perm(arena, 2 * PAGE, Perm::ReadWrite);
        }
        let array = host.vm.maps.iter().find(|map| map.addr == maps[0]).map(|map| &map.kind);
        let Some(MapKind::Array(array)) = array else { unreachable!("the first map is an array") };
        let values = array.element(0, 0).expect("its first element");
        Fixture { pages, arena, maps, values }
    }
}

fn once(
    host: &mut BareHost,
    instance: InstanceId,
    fixture: &Fixture,
    entry: ProgramEntry,
) -> Observed {
    // In the second run the program gets only the lower half of the arena pointer, which is valid
    // as well.
    let arena = if host.vm.executed == 0 { fixture.arena } else { fixture.arena & 0xffff_ffff };
    let regs = [fixture.pages, host.task, arena, fixture.maps[0], 7];
    let (executed, helpers) = (host.vm.executed, host.vm.helper_calls());
    let result = match entry {
        ProgramEntry::Registers => call_raw(host, instance, FuncId(0), regs),
        ProgramEntry::Array => call(host, instance, FuncId(0), &regs),
    };
    let mut memory = bytes(host, fixture.pages, PAGES * PAGE);
    memory.extend(bytes(host, host.task, 64));
    memory.extend(bytes(host, fixture.values, VALUES_BYTES as u64));
    if fixture.arena != 0 {
        memory.extend(bytes(host, fixture.arena, 2 * PAGE));
    }
    assert!(!host.vm.running(), "the program has left its stack level");
    let outer = host.vm.stacks.enter();
    let frames = host.vm.stacks.frame_pointer(8);
    host.vm.stacks.leave(outer);
    memory.extend(bytes(host, frames, PAGE));
    Observed {
        result: result.map_err(|fault| format!("{fault:#}")),
        executed: host.vm.executed - executed,
        helper_calls: host.vm.helper_calls() - helpers,
        kfunc_calls: std::mem::take(&mut host.kfunc_calls),
        arena_stores_dropped: host.vm.mem.arena_stores_dropped,
        memory_hash: FxBuildHasher.hash_one(memory),
    }
}

fn bytes(host: &BareHost, addr: u64, len: u64) -> Vec<u8> {
    host.vm.mem.host_slice::<u8>(addr, len as usize).to_vec()
}
