// SPDX-License-Identifier: GPL-2.0-only
//! Programs: any instructions that decode may run, and must do no harm.
//!
//! Promises: no panic; no access outside the simulation's memory (checked by the address
//! sanitizer); an end within the instruction limit; and the same result, fault, counters and prints
//! in a second interpreted run and as machine code.
//!
//! Form of an input: a byte of flags, a byte with the start of the second function, then 8-byte
//! slots. With `REPAIR` each slot is changed towards something that decodes, so that random bytes
//! reach the interpreter; without it the slots are used as they are.

use scxlab_bpf::insn::{RawInsn, call, decode, func_addr};
use scxlab_bpf::kfunc::KfuncId;
use scxlab_bpf::map::{MapDef, MapId, SpecialField, SpecialKind, map_flag, map_type};
use scxlab_bpf::mem::ARENA_WINDOW;
use scxlab_bpf::vm::bare::BareHost;
use scxlab_bpf::vm::{
    Config, Engine, Func, FuncId, Image, InstanceId, InstanceParts, Limits, call_raw,
};

const REPAIR: u8 = 1;
const KERNEL_STORES: u8 = 2;

const MAX_SLOTS: usize = 256;
const INSN_LIMIT: u64 = 5_000;

/// Observable results of a run.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    result: Result<u64, String>,
    executed: u64,
    calls: (u64, u64),
    printed: Vec<String>,
    locks: Vec<(u64, bool)>,
}

pub fn check(data: &[u8]) {
    let [flags, split, rest @ ..] = data else {
        return;
    };
    let mut raw: Vec<RawInsn> = rest.chunks_exact(8).take(MAX_SLOTS).map(slot).collect();
    let funcs = functions(&raw, *split);
    if flags & REPAIR != 0 {
        repair(&mut raw, &funcs);
    }
    let probe: Vec<bool> = raw.iter().map(|insn| insn.imm & 64 != 0).collect();
    let Ok(code) = decode(&raw, &funcs, &probe) else {
        return;
    };
    let image = Image { name: "fuzz".into(), code, funcs, ..Image::default() };
    let first = run(&raw, &image, *flags, Engine::Interp);
    assert_eq!(first, run(&raw, &image, *flags, Engine::Interp), "the same program, run again");
    assert_eq!(first, run(&raw, &image, *flags, Engine::Jit), "the same program as machine code");
    // Each frame may go on to its end after the limit: only entries and jumps back check it.
    let most = INSN_LIMIT + raw.len() as u64 * u64::from(Limits::default().call_depth);
    assert!(first.executed <= most, "{} instructions", first.executed);
}

fn slot(bytes: &[u8]) -> RawInsn {
    RawInsn {
        code: bytes[0],
        regs: bytes[1],
        off: i16::from_le_bytes([bytes[2], bytes[3]]),
        imm: i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
    }
}

/// Returns one function, or two if `split` is inside the program.
fn functions(raw: &[RawInsn], split: u8) -> Vec<Func> {
    let func = |name: &str, start: usize, end: usize| Func {
        name: name.into(),
        section: ".text".into(),
        start: start as u32,
        len: (end - start) as u32,
        program: None,
    };
    let split = usize::from(split);
    if split == 0 || split >= raw.len() {
        return vec![func("main", 0, raw.len())];
    }
    vec![func("main", 0, split), func("other", split, raw.len())]
}

/// Changes slots towards validity: registers that exist, jumps inside the function, constants with
/// both slots, an exit at the end.
fn repair(raw: &mut [RawInsn], funcs: &[Func]) {
    for func in funcs {
        let (start, end) = (func.start as usize, (func.start + func.len) as usize);
        let mut at = start;
        while at < end {
            let two = raw[at].code == LD_IMM64 && at + 2 < end;
            raw[at] = repaired(raw[at], at, start, end, funcs);
            if two {
                raw[at + 1] = RawInsn { imm: raw[at + 1].imm, ..RawInsn::default() };
                at += 1;
            }
            at += 1;
        }
        if end > start {
            raw[end - 1] = RawInsn::new(EXIT, 0, 0, 0, 0);
        }
    }
}

const LD_IMM64: u8 = 0x18;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const JA32: u8 = 0x06;

fn repaired(insn: RawInsn, at: usize, start: usize, end: usize, funcs: &[Func]) -> RawInsn {
    let (mut dst, mut src) = (insn.dst() % 11, insn.src() % 11);
    let (mut off, mut imm) = (insn.off, insn.imm);
    let len = (end - start) as i64;
    let inside = |wanted: i64| (start as i64 + wanted.rem_euclid(len)) - at as i64 - 1;
    match insn.code & 7 {
        // Make jumps and calls valid. The kind of a call is in its source register.
        5 | 6 if insn.code == CALL => {
            (dst, off, src) = (0, 0, src % 3);
            imm = match src {
                call::FUNC => funcs[imm as usize % funcs.len()].start as i32 - at as i32 - 1,
                call::HELPER => imm.rem_euclid(256),
                _ => imm,
            };
        }
        5 | 6 if insn.code == JA32 => (dst, src, off, imm) = (0, 0, 0, inside(imm.into()) as i32),
        5 | 6 if insn.code != EXIT => off = inside(off.into()) as i16,
        // Stores and loads through the frame pointer stay in the frame.
        1..=3 if dst == 10 || src == 10 => off = -8 * (1 + off.rem_euclid(64)),
        _ => {}
    }
    if insn.code & 7 == 7 || insn.code & 7 == 4 || insn.code & 7 == 1 || insn.code == LD_IMM64 {
        dst %= 10;
    }
    if insn.code == LD_IMM64 {
        (src, off) = (0, 0);
    }
    RawInsn::new(insn.code, dst, src, off, imm)
}

fn run(raw: &[RawInsn], image: &Image, flags: u8, engine: Engine) -> Outcome {
    let limits =
        Limits { insns_per_call: INSN_LIMIT, may_goto: 500, compile_after: 0, ..Limits::default() };
    let config =
        Config { nr_cpus: 2, mem_size: 2 * ARENA_WINDOW, limits, engine, ..Config::default() };
    let mut host = BareHost::new(config).expect("8 GiB of address space");
    host.allow_kernel_stores = flags & KERNEL_STORES != 0;
    host.kfuncs = (0..8).map(|id| (KfuncId(id), u64::from(id) << 32)).collect();
    let instance = host.vm.add_instance("fuzz");
    let maps = maps(&mut host, instance);
    let image = with_addresses(raw, image, &maps);
    host.vm.install(instance, InstanceParts { image: image.into(), ..InstanceParts::default() });
    let regs = [maps[0], maps[1], maps[2], host.task, maps[3]];
    let result = call_raw(&mut host, instance, FuncId(0), regs);
    Outcome {
        result: result.map_err(|fault| format!("{fault:#}")),
        executed: host.vm.executed,
        calls: (host.vm.helper_calls(), host.vm.kfunc_calls()),
        printed: host.printed,
        locks: host.locks,
    }
}

/// Replaces each constant that stands for an address by the address of the map or of the function
/// that the constant chooses.
fn with_addresses(raw: &[RawInsn], image: &Image, maps: &[u64]) -> Image {
    let mut image = image.clone();
    for (insn, code) in raw.iter().zip(&mut image.code) {
        if insn.code == LD_IMM64 && insn.imm & 0xffff == 0x4d4d {
            let which = (insn.imm >> 16) as usize & 15;
            code.imm = match which {
                15 => func_addr(FuncId(1)) as i64,
                14 => func_addr(FuncId(0)) as i64,
                which => maps[which % maps.len()] as i64,
            };
        }
    }
    image
}

/// Creates one map of each kind that a scheduler uses; returns their guest addresses.
fn maps(host: &mut BareHost, instance: InstanceId) -> Vec<u64> {
    let def = |name: &str, map_type, key_size, value_size, max_entries| MapDef {
        name: name.into(),
        map_type,
        key_size,
        value_size,
        max_entries,
        ..MapDef::default()
    };
    let special = |offset, kind| SpecialField { offset, kind };
    let timers = MapDef {
        special: vec![special(0, SpecialKind::Timer), special(16, SpecialKind::SpinLock)],
        ..def("timers", map_type::ARRAY, 4, 32, 2)
    };
    let storage = MapDef {
        map_flags: map_flag::NO_PREALLOC,
        ..def("storage", map_type::TASK_STORAGE, 4, 16, 0)
    };
    let arena = MapDef { map_flags: map_flag::MMAPABLE, ..def("arena", map_type::ARENA, 0, 0, 16) };
    let defs = [
        def("array", map_type::ARRAY, 4, 16, 4),
        def("hash", map_type::HASH, 4, 8, 4),
        timers,
        def("ring", map_type::RINGBUF, 0, 0, 4096),
        storage,
        def("percpu", map_type::PERCPU_ARRAY, 4, 8, 2),
        def("queue", map_type::QUEUE, 0, 8, 4),
        def("lru", map_type::LRU_HASH, 8, 8, 2),
        def("user_ring", map_type::USER_RINGBUF, 0, 0, 4096),
        arena,
    ];
    defs.iter().map(|def| map_addr(host, instance, def)).collect()
}

fn map_addr(host: &mut BareHost, instance: InstanceId, def: &MapDef) -> u64 {
    let made: Result<MapId, _> = host.vm.create_map(instance, def);
    let id = made.unwrap_or_else(|error| panic!("{}: {error}", def.name));
    host.vm.map(id).expect("just made").addr
}
