// SPDX-License-Identifier: GPL-2.0-only
//! Tests of helpers, which programs call.

use super::*;
use crate::fault::FaultKind;
use crate::map::{MapDef, MapId, SpecialField, SpecialKind, map_flag, map_type};
use crate::mem::{PAGE, Perm};
use crate::vm::bare::BareHost;
use crate::vm::tests::host;
use crate::vm::{InstanceId, KptrKind, fire_timer};

/// A program with a map. When the program starts, r1 is the map, and r2 a page that the program may
/// write.
struct Bench {
    h: BareHost,
    instance: InstanceId,
    map: MapId,
    page: u64,
}

impl Bench {
    fn new(map_type: u32, text: &str) -> Bench {
        let key_size = match map_type {
            map_type::QUEUE | map_type::RINGBUF | map_type::USER_RINGBUF => 0,
            _ => 4,
        };
        let storage = matches!(map_type, map_type::TASK_STORAGE | map_type::CGRP_STORAGE);
        let def = MapDef {
            name: "m".into(),
            map_type,
            key_size,
            value_size: if matches!(map_type, map_type::RINGBUF | map_type::USER_RINGBUF) {
                0
            } else {
                8
            },
            max_entries: match map_type {
                map_type::RINGBUF | map_type::USER_RINGBUF => 4096,
                _ if storage => 0,
                _ => 4,
            },
            map_flags: if storage { map_flag::NO_PREALLOC } else { 0 },
            ..MapDef::default()
        };
        Bench::with(def, text)
    }

    fn with(def: MapDef, text: &str) -> Bench {
        let (mut h, instance) = host(text);
        let map = h.vm.create_map(instance, &def).expect("map");
        let page = h.vm.mem.alloc_region(PAGE, Perm::ReadWrite).expect("page");
        Bench { h, instance, map, page }
    }

    fn addr(&self) -> u64 {
        self.h.vm.map(self.map).expect("map").addr
    }

    fn run(&mut self, args: [u64; 3]) -> Result<i64, Fault> {
        let regs = [self.addr(), self.page, args[0], args[1], args[2]];
        self.h.run(self.instance, "main", regs).map(|value| value as i64)
    }
}

/// A program that calls one helper with the registers that `Bench::run` sets: the address of a map,
/// a page that the program may write, and three more arguments.
fn one(id: u32) -> String {
    format!("call {id}\nexit")
}

#[test]
fn maps_by_pointers() {
    for map_type in [map_type::HASH, map_type::ARRAY, map_type::LRU_HASH, map_type::PERCPU_HASH] {
        let text = "\
            r6 = r1
            r7 = r2
            r3 = r2
            r3 += 8
            r4 = 0
            call 2
            if r0 != 0 goto out
            r1 = r6
            r2 = r7
            call 1
            if r0 == 0 goto out
            r0 = *(u64 *)(r0 + 0)
            out:
            exit";
        let mut bench = Bench::new(map_type, text);
        bench.h.vm.mem.write(bench.page, [3u64, 42]).expect("key and value");
        assert_eq!(bench.run([0; 3]), Ok(42), "type {map_type}");
    }
}

#[test]
fn map_errors_reach_the_program() {
    let mut bench = Bench::new(map_type::HASH, "r3 = r2\nr4 = 2\ncall 2\nexit");
    assert_eq!(bench.run([0; 3]), Ok(-ENOENT));
    let mut bench = Bench::new(map_type::HASH, &one(3));
    assert_eq!(bench.run([0; 3]), Ok(-ENOENT));
    let mut bench = Bench::new(map_type::ARRAY, &one(1));
    bench.h.vm.mem.write(bench.page, 4u32).expect("key");
    assert_eq!(bench.run([0; 3]), Ok(0), "index outside");
    let mut bench = Bench::new(map_type::HASH, "r1 = 5\ncall 1\nexit");
    let fault = bench.run([0; 3]).expect_err("no map");
    assert!(matches!(fault.kind(), FaultKind::BadArgument { .. }), "{fault}");
    let mut bench = Bench::new(map_type::HASH, "r2 = 0\ncall 1\nexit");
    assert!(matches!(bench.run([0; 3]).expect_err("no key").kind(), FaultKind::Mem(_)));
}

#[test]
fn queues_copy_in_and_out() {
    let text = "r6 = r1\nr7 = r2\nr3 = 0\ncall 87\nr1 = r6\nr2 = r7\nr2 += 8\ncall 89\nr1 = r6\nr2 = r7\nr2 += 16\ncall 88\n\
                r1 = r6\nr2 = r7\nr2 += 24\ncall 88\nexit";
    let mut bench = Bench::new(map_type::QUEUE, text);
    bench.h.vm.mem.write(bench.page, [7u64, 1, 1, 1]).expect("value");
    assert_eq!(bench.run([0; 3]), Ok(-ENOENT), "the second pop");
    assert_eq!(bench.h.vm.mem.read::<[u64; 4]>(bench.page), Ok([7, 7, 7, 0]));
    let mut bench = Bench::new(map_type::HASH, &one(88));
    assert!(bench.run([0; 3]).is_err(), "not a queue");
}

#[test]
fn per_cpu_lookups_name_a_cpu() {
    let text = "r3 = r3\ncall 195\nexit";
    let mut bench = Bench::new(map_type::PERCPU_ARRAY, text);
    let at = |bench: &mut Bench, cpu| bench.run([cpu, 0, 0]).expect("runs");
    let (zero, one, four) = (at(&mut bench, 0), at(&mut bench, 1), at(&mut bench, 4));
    assert!(zero != 0 && one > zero && four == 0);
    bench.h.cpu = 1;
    let text = one_of("r0 = 0", 1);
    bench.h.install_text(bench.instance, &text, Default::default()).expect("program");
    assert_eq!(bench.run([0; 3]), Ok(one), "this CPU's");
}

fn one_of(first: &str, id: u32) -> String {
    format!("{first}\n{}", one(id))
}

#[test]
fn task_storage_is_made_on_demand() {
    let text = "r2 = r3\nr3 = 0\ncall 156\nexit";
    let mut bench = Bench::new(map_type::TASK_STORAGE, text);
    let task = bench.h.task;
    assert_eq!(bench.run([task, 0, 0]), Ok(0), "absent");
    let value = bench.run([task, 1, 0]).expect("made");
    assert_ne!(value, 0);
    assert_eq!(bench.run([task, 0, 0]), Ok(value), "found");
    assert_eq!(bench.run([task, 2, 0]), Ok(0), "unknown flag");
    assert_eq!(bench.run([0, 1, 0]), Ok(0), "no task");
    bench.h.dead_owners.push(0x55);
    assert_eq!(bench.run([0x55, 1, 0]), Ok(0), "dying");
    let delete = "r2 = r3\ncall 157\nexit";
    bench.h.install_text(bench.instance, delete, Default::default()).expect("program");
    assert_eq!(bench.run([0, 0, 0]), Ok(-EINVAL));
    assert_eq!(bench.run([task, 0, 0]), Ok(0));
    assert_eq!(bench.run([task, 0, 0]), Ok(-ENOENT));
    let wrong = "r2 = r3\nr3 = 0\ncall 210\nexit";
    bench.h.install_text(bench.instance, wrong, Default::default()).expect("program");
    assert!(bench.run([task, 1, 0]).is_err(), "cgroup helper on a task map");
    let wrong = "r2 = r3\ncall 211\nexit";
    bench.h.install_text(bench.instance, wrong, Default::default()).expect("program");
    assert!(bench.run([task, 0, 0]).is_err(), "cgroup helper on a task map");
}

/// Machine code finds elements of a known hash itself, once the helper has found them. It must not
/// find an element that was deleted, also if the key is 0.
#[test]
fn elements_of_a_known_hash_are_found_until_they_are_deleted() {
    let mut bench = Bench::new(map_type::HASH, "exit");
    let map = bench.addr();
    let install = |bench: &mut Bench, call: &str| {
        let text = format!(
            "*(u32 *)(r10 - 4) = r3\n*(u64 *)(r10 - 16) = r4\nr1 = {map} ll\nr2 = r10\nr2 += -4\n\
             r3 = r10\nr3 += -16\nr4 = 0\n{call}\nexit"
        );
        bench.h.install_text(bench.instance, &text, Default::default()).expect("program");
    };
    for _ in 0..2 {
        for key in [0, 1, 64, u64::from(u32::MAX)] {
            install(&mut bench, "call 1");
            assert_eq!(bench.run([key, 0, 0]), Ok(0), "absent");
            install(&mut bench, "call 2");
            assert_eq!(bench.run([key, 5, 0]), Ok(0), "made");
            install(&mut bench, "call 1");
            let value = bench.run([key, 0, 0]).expect("found");
            assert_ne!(value, 0);
            let calls = bench.h.vm.helper_calls();
            assert_eq!(bench.run([key, 0, 0]), Ok(value));
            assert_eq!(bench.h.vm.helper_calls(), calls + 1);
            install(&mut bench, "call 3");
            assert_eq!(bench.run([key, 0, 0]), Ok(0), "deleted");
            install(&mut bench, "call 1");
            assert_eq!(bench.run([key, 0, 0]), Ok(0), "gone");
        }
    }
}

/// Machine code finds values of a known map itself, once the helper has found them. It must not
/// find a value that was deleted.
#[test]
fn storage_of_a_known_map_is_found_until_it_is_deleted() {
    let mut bench = Bench::new(map_type::TASK_STORAGE, "exit");
    let (map, task) = (bench.addr(), bench.h.task);
    let install = |bench: &mut Bench, call: &str| {
        let text = format!("r1 = {map} ll\nr2 = r3\nr3 = 0\n{call}\nexit");
        bench.h.install_text(bench.instance, &text, Default::default()).expect("program");
    };
    for _ in 0..2 {
        install(&mut bench, "r4 = 0\ncall 156");
        assert_eq!(bench.run([task, 0, 0]), Ok(0), "absent");
        install(&mut bench, "r4 = 1\ncall 156");
        let value = bench.run([task, 0, 0]).expect("made");
        let calls = bench.h.vm.helper_calls();
        for _ in 0..3 {
            assert_eq!(bench.run([task, 0, 0]), Ok(value), "found");
        }
        assert_eq!(bench.h.vm.helper_calls(), calls + 3);
        assert_eq!(bench.run([0, 0, 0]), Ok(0), "no task");
        install(&mut bench, "r4 = 0\ncall 210");
        assert!(bench.run([task, 0, 0]).is_err(), "cgroup helper on a task map");
        install(&mut bench, "call 157");
        assert_eq!(bench.run([task, 0, 0]), Ok(0), "deleted");
    }
}

/// A constant that is no map's address finds nothing, whatever else the machine code knows.
#[test]
fn storage_of_no_map_is_refused() {
    let mut bench = Bench::new(map_type::TASK_STORAGE, "exit");
    let (map, task) = (bench.addr(), bench.h.task);
    bench.h.vm.note_task(task);
    let call = |bench: &mut Bench, map: u64, helper: u32| {
        let text = format!("r1 = {map} ll\nr2 = r3\nr3 = 0\nr4 = 1\ncall {helper}\nexit");
        bench.h.install_text(bench.instance, &text, Default::default()).expect("program");
        [task, 0].map(|owner| bench.run([owner, 0, 0]))
    };
    for _ in 0..2 {
        assert!(call(&mut bench, map, 156)[0].is_ok());
    }
    for low in 0..6 {
        for (map, helper) in [(map | low, 210), (map + 64 + low, 156), (low, 156), (low, 210)] {
            for result in call(&mut bench, map, helper) {
                assert!(result.is_err(), "{map:#x} {helper}: {result:?}");
            }
        }
    }
}

#[test]
fn storage_starts_from_an_initial_value() {
    let mut bench = Bench::new(
        map_type::CGRP_STORAGE,
        "r5 = r2\nr2 = r3\nr3 = r5\ncall 210\nr0 = *(u64 *)(r0 + 0)\nexit",
    );
    bench.h.vm.mem.write(bench.page, 99u64).expect("value");
    assert_eq!(bench.run([0x1000, 1, 0]), Ok(99));
}

/// Programs copy and compare up to 64 KiB, once or repeatedly. Each call of the helper must count
/// instructions in proportion to its bytes, and the instruction limit must apply to their sum.
#[test]
fn large_work_counts_by_its_size() {
    const SIZE: u64 = 64 << 10;
    for (id, arguments) in [(113, "r1 = r2\nr2 = r3\nr3 = r1"), (182, "r1 = r2\nr2 = r3\nr3 = r1")]
    {
        let text = format!(
            "r6 = r2\nr7 = r3\nr8 = r4\nagain:\nr2 = r6\nr3 = r7\n{arguments}\ncall {id}\nr8 -= 1\n\
             if r8 != 0 goto again\nexit"
        );
        let mut bench = Bench::new(map_type::ARRAY, &text);
        bench.page = bench.h.vm.mem.alloc_region(SIZE, Perm::ReadWrite).expect("room");
        bench.h.vm.mem.bytes_mut(bench.page, SIZE).expect("room").fill(b'x');
        let mut took = |size: u64, times: u64| {
            let before = bench.h.vm.executed;
            let result = bench.run([size, times, 0]);
            (bench.h.vm.executed - before, result)
        };
        let (small, _) = took(16, 1);
        assert_eq!(took(256, 1).0, small, "helper {id}: part of its call");
        // The cost of a call covers 256 bytes. The next 8 bytes cost a copy (helper 113) one more
        // instruction. A comparison adds its cost only after each 4,096 bytes, so these 8 bytes
        // cost it nothing.
        assert_eq!(took(264, 1).0, small + u64::from(id == 113), "helper {id}");
        let (large, result) = took(SIZE, 1);
        assert_eq!(result, Ok(0), "helper {id}");
        assert!((SIZE / 10..SIZE / 7).contains(&(large - small)), "helper {id}: {small} {large}");
        let fault = took(SIZE, 1 << 20).1.unwrap_err();
        let limit = bench.h.vm.limits.insns_per_call;
        assert_eq!(fault.kind(), &FaultKind::InsnLimit { limit }, "helper {id}");
    }
}

#[test]
fn probe_reads_survive_bad_pointers() {
    for (id, good, bad) in [(113, 0, -EFAULT), (4, 0, -EFAULT), (115, 4, -EFAULT), (45, 4, -EFAULT)]
    {
        let mut bench = Bench::new(map_type::ARRAY, &format!("r1 = r2\nr2 = 6\ncall {id}\nexit"));
        bench
            .h
            .vm
            .mem
            .bytes_mut(bench.page, 16)
            .expect("page")
            .copy_from_slice(b"xxxxxxxxabc\0defg");
        let (page, source) = (bench.page, bench.page + 8);
        assert_eq!(bench.run([source, 0, 0]), Ok(good), "helper {id}");
        let copied = if id == 113 || id == 4 { b"abc\0dexx" } else { b"abc\0xxxx" };
        assert_eq!(bench.h.vm.mem.bytes(page, 8), Ok(&copied[..]), "helper {id}");
        assert_eq!(bench.run([16, 0, 0]), Ok(bad), "helper {id}");
        assert_eq!(bench.h.vm.mem.bytes(page, 6), Ok(&[0; 6][..]), "zeroed");
    }
    let mut bench = Bench::new(map_type::ARRAY, "r1 = r2\nr2 = 3\ncall 115\nexit");
    bench.h.vm.mem.bytes_mut(bench.page + 8, 6).expect("page").copy_from_slice(b"hello\0");
    let source = bench.page + 8;
    assert_eq!(bench.run([source, 0, 0]), Ok(3), "cut");
    assert_eq!(bench.h.vm.mem.bytes(bench.page, 4), Ok(&b"he\0\0"[..]));
}

#[test]
fn strings_compare() {
    for (left, right, size, sign) in [
        ("abc\0", "abc\0", 9, 0),
        ("abc\0", "abd\0", 9, -1),
        ("abd\0", "abc\0", 9, 1),
        ("abX", "abY\0", 2, 0),
        ("ab\0", "abc\0", 9, -1),
    ] {
        let mut bench =
            Bench::new(map_type::ARRAY, "r1 = r2\nr3 = r2\nr3 += 64\nr2 = r4\ncall 182\nexit");
        let page = bench.page;
        bench
            .h
            .vm
            .mem
            .bytes_mut(page, left.len() as u64)
            .expect("page")
            .copy_from_slice(left.as_bytes());
        bench
            .h
            .vm
            .mem
            .bytes_mut(page + 64, right.len() as u64)
            .expect("page")
            .copy_from_slice(right.as_bytes());
        assert_eq!(bench.run([0, size, 0]), Ok(sign), "{left:?} {right:?}");
    }
}

#[test]
fn kernel_pointers_are_exchanged() {
    let mut bench = Bench::new(map_type::ARRAY, "r1 = r2\nr2 = r3\ncall 194\nexit");
    assert_eq!(bench.run([0x77, 0, 0]), Ok(0));
    assert_eq!(bench.run([0, 0, 0]), Ok(0x77));
}

#[test]
fn text_is_printed_and_formatted() {
    let mut bench =
        Bench::new(map_type::ARRAY, "r1 = r2\nr2 = 8\nr3 = 3\nr4 = -4\nr5 = 255\ncall 6\nexit");
    bench.h.vm.mem.bytes_mut(bench.page, 8).expect("page").copy_from_slice(b"%d %d %x");
    assert_eq!(bench.run([0; 3]), Ok(-EINVAL), "no NUL in its size");
    bench.h.vm.mem.bytes_mut(bench.page, 8).expect("page").copy_from_slice(b"%d,%d%x\0");
    assert_eq!(bench.run([0; 3]), Ok(6));
    assert_eq!(bench.h.printed, ["3,-4ff"]);
    let text = "r1 = r2\nr3 = r2\nr3 += 32\nr4 = r2\nr4 += 64\nr5 = 8\nr2 = 4\ncall 165\nexit";
    let mut bench = Bench::new(map_type::ARRAY, text);
    let page = bench.page;
    bench.h.vm.mem.bytes_mut(page, 8).expect("page").fill(b'!');
    bench.h.vm.mem.bytes_mut(page + 32, 6).expect("page").copy_from_slice(b"n=%ld\0");
    bench.h.vm.mem.write(page + 64, 12345u64).expect("page");
    assert_eq!(bench.run([0; 3]), Ok(8), "what it would take, with the NUL");
    assert_eq!(bench.h.vm.mem.bytes(page, 6), Ok(&b"n=1\0!!"[..]));
}

#[test]
fn clocks_and_numbers() {
    for (id, value) in
        [(5, 1_234_567), (125, 1_234_567), (160, 1_000_000), (118, 0xfffb_6c20 + 1), (8, 2)]
    {
        let (mut h, instance) = host(&one(id));
        (h.now_ns, h.cpu) = (1_234_567, 2);
        assert_eq!(h.run(instance, "main", [0; 5]), Ok(value), "helper {id}");
    }
    let (mut h, instance) = host(&one(158));
    assert_eq!(h.run(instance, "main", [0; 5]), Ok(h.task));
}

#[test]
fn locks_are_held_by_one() {
    let (mut h, instance) = host("r6 = r1\ncall 93\nr1 = r6\ncall 94\nr0 = 0\nexit");
    let lock = h.vm.mem.alloc(8, 8).expect("lock");
    assert_eq!(h.run(instance, "main", [lock, 0, 0, 0, 0]), Ok(0));
    assert_eq!(h.locks, [(lock, true), (lock, false)]);
    for (text, what) in [
        ("r6 = r1\ncall 93\nr1 = r6\ncall 93\nexit", "taken while already held"),
        ("call 94\nexit", "released while not held"),
        ("call 93\nexit", "still held when the program ended"),
    ] {
        h.install_text(instance, text, Default::default()).expect("program");
        let fault = h.run(instance, "main", [lock, 0, 0, 0, 0]).expect_err(what);
        assert_eq!(fault.kind(), &FaultKind::Lock { addr: lock, what }, "{text}");
        assert_eq!(h.vm.mem.read::<u32>(lock), Ok(0), "given back after {text}");
    }
    let taken = h.locks.iter().filter(|lock| lock.1).count();
    assert_eq!(taken * 2, h.locks.len(), "as often given back as taken");
}

#[test]
fn loops_have_a_limit() {
    let text = "func main:\nr2 = body ll\nr3 = 0\nr4 = r2\nr4 = 0\ncall 181\nexit\nfunc body:\nr0 = 0\nexit";
    let (mut h, instance) = host(text);
    assert_eq!(h.run(instance, "main", [100, 0, 0, 0, 0]), Ok(100));
    assert_eq!(h.run(instance, "main", [(8 << 20) + 1, 0, 0, 0, 0]), Ok(neg(E2BIG)));
    assert!(
        h.run(instance, "main", [8 << 20, 0, 0, 0, 0]).is_err(),
        "the instruction limit comes first"
    );
}

const WALK: &str = "\
    func main:
    r6 = r1
    *(u64 *)(r10 - 8) = 0
    *(u64 *)(r10 - 16) = r1
    r2 = body ll
    r3 = r10
    r3 += -8
    r4 = 0
    call 164
    r1 = *(u64 *)(r10 - 8)
    r0 *= 1000
    r0 += r1
    exit
    func body:
    r6 = r1
    r7 = r4
    r1 = *(u32 *)(r2 + 0)
    r3 = *(u64 *)(r7 + 0)
    r3 *= 10
    r3 += r1
    *(u64 *)(r7 + 0) = r3
    if r1 != 2 goto out
    *(u32 *)(r10 - 4) = 3
    r1 = r6
    r2 = r10
    r2 += -4
    call 3
    out:
    r0 = 0
    exit";

#[test]
fn all_elements_are_visited_once() {
    let mut bench = Bench::new(map_type::HASH, WALK);
    for key in [1u32, 2, 3, 4] {
        bench.h.vm.map_update(bench.map, &key.to_ne_bytes(), &[0; 8], 0).expect("room");
    }
    assert_eq!(bench.run([0; 3]), Ok(3124), "2 deletes 3: three calls, keys 1 2 4");
    let mut bench = Bench::new(map_type::PERCPU_ARRAY, WALK);
    assert_eq!(bench.run([0; 3]), Ok(4123), "indices 0 to 3; an array's element cannot be deleted");
    let mut bench = Bench::new(map_type::QUEUE, WALK);
    assert!(bench.run([0; 3]).is_err());
}

#[test]
fn ring_records_from_a_program() {
    let text = "\
        r6 = r1
        r2 = 16
        r3 = 0
        call 131
        if r0 == 0 goto out
        *(u64 *)(r0 + 0) = 5
        *(u64 *)(r0 + 8) = 6
        r1 = r0
        r2 = 0
        call 132
        r1 = r6
        r2 = 0
        call 134
        out:
        exit";
    let mut bench = Bench::new(map_type::RINGBUF, text);
    assert_eq!(bench.run([0; 3]), Ok(24));
    assert_eq!(bench.run([0; 3]), Ok(48));
    let record = bench.h.vm.ringbuf_consume(bench.map).expect("ring").expect("record");
    assert_eq!(record, [5u64.to_ne_bytes(), 6u64.to_ne_bytes()].concat());
    bench
        .h
        .install_text(bench.instance, "r1 = r2\ncall 132\nexit", Default::default())
        .expect("program");
    assert!(bench.run([0; 3]).is_err(), "no record");
    let output = "r3 = 8\nr4 = 0\ncall 130\nexit";
    bench.h.install_text(bench.instance, output, Default::default()).expect("program");
    assert_eq!(bench.run([0; 3]), Ok(0));
    bench
        .h
        .install_text(bench.instance, "r3 = 4090\nr4 = 0\ncall 130\nexit", Default::default())
        .expect("program");
    assert_eq!(bench.run([0; 3]), Ok(-EAGAIN));
}

#[test]
fn ring_records_through_dynptrs() {
    let text = "\
        r6 = r2
        r2 = 8
        r3 = 0
        r4 = r10
        r4 += -16
        call 198
        if r0 != 0 goto out
        r1 = r10
        r1 += -16
        r2 = 0
        r3 = r6
        r4 = 8
        r5 = 0
        call 202
        if r0 != 0 goto out
        r1 = r10
        r1 += -16
        r2 = 0
        r3 = 9
        call 203
        if r0 != 0 goto out
        r1 = r10
        r1 += -16
        r2 = 0
        call 199
        r0 = *(u64 *)(r10 - 16)
        out:
        exit";
    let mut bench = Bench::new(map_type::RINGBUF, text);
    bench.h.vm.mem.write(bench.page, 0x1234u64).expect("page");
    assert_eq!(bench.run([0; 3]), Ok(0), "null after submission");
    let record = bench.h.vm.ringbuf_consume(bench.map).expect("ring");
    assert_eq!(record, Some(0x1234u64.to_ne_bytes().to_vec()));
}

#[test]
fn user_records_are_drained() {
    let text = "\
        func main:
        r6 = r2
        r2 = body ll
        r3 = r6
        r4 = 0
        call 209
        exit
        func body:
        r6 = r2
        r2 = 0
        r3 = 4
        call 203
        if r0 == 0 goto out
        r1 = *(u32 *)(r0 + 0)
        r2 = *(u64 *)(r6 + 0)
        r2 *= 10
        r2 += r1
        *(u64 *)(r6 + 0) = r2
        out:
        r0 = 0
        if r1 != 3 goto end
        r0 = 1
        end:
        exit";
    let mut bench = Bench::new(map_type::USER_RINGBUF, text);
    for n in 1..=5u32 {
        bench.h.vm.user_ringbuf_produce(bench.map, &n.to_ne_bytes()).expect("room");
    }
    assert_eq!(bench.run([0; 3]), Ok(3), "the callback stops at 3");
    assert_eq!(bench.run([0; 3]), Ok(2));
    assert_eq!(bench.run([0; 3]), Ok(0));
    assert_eq!(bench.h.vm.mem.read::<u64>(bench.page), Ok(12345));
    let big = vec![0; 5000];
    assert_eq!(bench.h.vm.user_ringbuf_produce(bench.map, &big), Err(E2BIG));
    assert_eq!(bench.h.vm.user_ringbuf_produce(bench.map, &big[..4000]), Ok(()));
    assert_eq!(bench.h.vm.user_ringbuf_produce(bench.map, &big[..200]), Err(ENOSPC));
}

const TIMER: &str = "\
    func main:
    r6 = r1
    *(u32 *)(r10 - 4) = 1
    r2 = r10
    r2 += -4
    call 1
    r7 = r0
    r1 = r7
    r2 = r6
    r3 = 1
    call 169
    if r0 != 0 goto out
    r1 = r7
    r2 = 500
    r3 = 0
    call 171
    if r0 != -22 goto out
    r1 = r7
    r2 = tick ll
    call 170
    if r0 != 0 goto out
    r1 = r7
    r2 = 500
    r3 = 2
    call 171
    out:
    exit
    func tick:
    r4 = *(u32 *)(r2 + 0)
    r5 = *(u64 *)(r3 + 16)
    r5 += r4
    *(u64 *)(r3 + 16) = r5
    r6 = r3
    r1 = r3
    call 172
    *(u64 *)(r6 + 24) = r0
    r1 = r6
    r2 = 1000
    r3 = 1
    call 171
    r0 = 0
    exit";

fn timer_def(map_type: u32) -> MapDef {
    MapDef {
        name: "timers".into(),
        map_type,
        key_size: 4,
        value_size: 32,
        max_entries: 4,
        special: vec![SpecialField { offset: 0, kind: SpecialKind::Timer }],
        ..MapDef::default()
    }
}

#[test]
fn timers_fire_and_rearm() {
    for map_type in [map_type::ARRAY, map_type::HASH] {
        let mut bench = Bench::with(timer_def(map_type), TIMER);
        (bench.h.now_ns, bench.h.cpu) = (100, 2);
        let value = |bench: &BareHost, map| bench.vm.map_lookup(map, &1u32.to_ne_bytes());
        bench.h.vm.map_update(bench.map, &1u32.to_ne_bytes(), &[0; 32], 0).expect("element");
        assert_eq!(bench.run([0; 3]), Ok(0));
        let &[(id, expires, cpu)] = &bench.h.timers[..] else { panic!("one timer") };
        assert_eq!((expires, cpu), (600, Some(2)));
        assert_eq!(bench.run([0; 3]), Ok(-EBUSY), "initialised once");
        fire_timer(&mut bench.h, id).expect("runs");
        assert_eq!(bench.h.timers, [(id, 1000, None)], "armed again, absolute");
        let words = value(&bench.h, bench.map).expect("value");
        assert_eq!(words[16..24], 1u64.to_ne_bytes(), "its key was 1");
        assert_eq!(words[24..32], neg(EDEADLK).to_ne_bytes(), "cannot cancel itself");
        if map_type == map_type::HASH {
            bench.h.vm.map_delete(bench.map, &1u32.to_ne_bytes()).expect("deleted");
        } else {
            bench
                .h
                .vm
                .map_update(bench.map, &1u32.to_ne_bytes(), &[0; 32], 0)
                .expect("overwritten");
        }
        crate::vm::release_dropped(&mut bench.h);
        assert!(bench.h.timers.is_empty(), "gone with its element");
        let before = bench.h.vm.executed;
        fire_timer(&mut bench.h, id).expect("stale");
        assert_eq!(bench.h.vm.executed, before);
    }
}

#[test]
fn timer_misuse_has_errnos() {
    let mut bench =
        Bench::with(timer_def(map_type::ARRAY), "r1 = r2\nr2 = 1\nr3 = 0\ncall 171\nexit");
    assert_eq!(bench.run([0; 3]), Ok(-EINVAL), "not initialised");
    for (text, got) in [
        ("r1 = r2\ncall 172\nexit", -EINVAL),
        ("r5 = r1\nr1 = r2\nr2 = r5\nr3 = 2\ncall 169\nexit", -EINVAL),
        ("r1 = r2\nr2 = 1\nr3 = 4\ncall 171\nexit", -EINVAL),
    ] {
        bench.h.install_text(bench.instance, text, Default::default()).expect("program");
        assert_eq!(bench.run([0; 3]), Ok(got), "{text}");
    }
}

#[test]
fn perf_arrays_are_empty() {
    let def = MapDef {
        name: "events".into(),
        map_type: map_type::PERF_EVENT_ARRAY,
        key_size: 4,
        value_size: 4,
        max_entries: 4,
        ..MapDef::default()
    };
    let mut bench = Bench::with(def, "r5 = r2\nr2 = r3\nr3 = r5\ncall 55\nexit");
    bench.h.vm.mem.bytes_mut(bench.page, 32).expect("page").fill(1);
    assert_eq!(bench.run([2, 24, 0]), Ok(-ENOENT));
    assert_eq!(
        bench.h.vm.mem.bytes(bench.page, 25).map(|bytes| bytes[23..].to_vec()),
        Ok(vec![0, 1])
    );
    assert_eq!(bench.run([4, 24, 0]), Ok(-E2BIG));
    assert_eq!(bench.run([0xffff_ffff, 24, 0]), Ok(-ENOENT), "this CPU");
    assert_eq!(bench.run([0, 16, 0]), Ok(-EINVAL));
}

#[test]
fn released_references_reach_the_host() {
    let def = MapDef {
        special: vec![SpecialField { offset: 0, kind: SpecialKind::Kptr(KptrKind::Kernel(9)) }],
        ..MapDef {
            name: "k".into(),
            map_type: map_type::HASH,
            key_size: 4,
            value_size: 8,
            max_entries: 2,
            ..MapDef::default()
        }
    };
    let mut bench = Bench::with(def, &one(3));
    bench.h.vm.map_update(bench.map, &[0; 4], &[0; 8], 0).expect("element");
    let map = bench.h.vm.maps.get_mut(bench.map).expect("map");
    let value = map.lookup(&bench.h.vm.mem, &[0; 4], 0);
    bench.h.vm.mem.write(value, 0x99u64).expect("value");
    assert_eq!(bench.run([0; 3]), Ok(0));
    assert_eq!(bench.h.released, [(KptrKind::Kernel(9), 0x99)], "before the program went on");
}

#[test]
fn every_implemented_helper_has_a_name() {
    for id in 0..300 {
        assert!(!implemented(id) || name(id).is_some(), "helper {id}");
    }
    assert_eq!(name(0), None);
    assert_eq!(name(113), Some("bpf_probe_read_kernel"));
    assert_eq!(name(100_000), None);
}
