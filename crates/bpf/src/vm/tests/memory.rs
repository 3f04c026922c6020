// SPDX-License-Identifier: GPL-2.0-only
//! Tests of loads, stores, atomics, arenas, and their faults.

use super::*;

/// A host with a page that programs may write, and the page's address.
fn with_page(text: &str) -> (BareHost, InstanceId, u64) {
    let (mut h, instance) = host(text);
    let page = h.vm.mem.alloc_region(PAGE, Perm::ReadWrite).expect("page");
    (h, instance, page)
}

fn run(h: &mut BareHost, instance: InstanceId, args: [u64; 5]) -> Result<u64, Fault> {
    h.run(instance, "main", args)
}

#[test]
fn loads_extend_as_they_say() {
    for (insn, value) in [
        ("r0 = *(u8 *)(r1 + 0)", 0x88),
        ("r0 = *(u16 *)(r1 + 0)", 0x9988),
        ("r0 = *(u32 *)(r1 + 0)", 0xbbaa_9988),
        ("r0 = *(u64 *)(r1 + 0)", 0xffee_ddcc_bbaa_9988),
        ("r0 = *(s8 *)(r1 + 0)", 0xffff_ffff_ffff_ff88),
        ("r0 = *(s16 *)(r1 + 0)", 0xffff_ffff_ffff_9988),
        ("r0 = *(s32 *)(r1 + 0)", 0xffff_ffff_bbaa_9988),
        ("r0 = *(u16 *)(r1 + 3)", 0xccbb),
        ("w0 = load_acquire((u8 *)(r1 + 1))", 0x99),
        ("r0 = load_acquire((u64 *)(r1 + 0))", 0xffee_ddcc_bbaa_9988),
        ("probe r0 = *(s16 *)(r1 + 0)", 0xffff_ffff_ffff_9988),
    ] {
        let (mut h, instance, page) = with_page(&format!("{insn}\nexit"));
        h.vm.mem.write(page + 8, 0xffee_ddcc_bbaa_9988u64).expect("page");
        assert_eq!(run(&mut h, instance, [page + 8, 0, 0, 0, 0]), Ok(value), "{insn}");
    }
}

#[test]
fn stores_write_their_width() {
    for (insn, value) in [
        ("*(u8 *)(r1 + 0) = r2", 0xffff_ffff_ffff_ff88u64),
        ("*(u16 *)(r1 + 0) = r2", 0xffff_ffff_ffff_9988),
        ("*(u32 *)(r1 + 0) = r2", 0xffff_ffff_bbaa_9988),
        ("*(u64 *)(r1 + 0) = r2", 0xffee_ddcc_bbaa_9988),
        ("*(u8 *)(r1 + 1) = 5", 0xffff_ffff_ffff_05ff),
        ("*(u32 *)(r1 + 0) = -2", 0xffff_ffff_ffff_fffe),
        ("*(u64 *)(r1 + 0) = -2", 0xffff_ffff_ffff_fffe),
        ("*(u64 *)(r1 + 0) = 2", 2),
        ("store_release((u16 *)(r1 + 0), w2)", 0xffff_ffff_ffff_9988),
    ] {
        let (mut h, instance, page) = with_page(&format!("{insn}\nr0 = *(u64 *)(r1 + 0)\nexit"));
        h.vm.mem.write(page, u64::MAX).expect("page");
        let args = [page, 0xffee_ddcc_bbaa_9988, 0, 0, 0];
        assert_eq!(run(&mut h, instance, args), Ok(value), "{insn}");
    }
}

#[test]
fn atomics_modify_and_fetch() {
    let (old, arg) = (0x8000_0001_f000_00f0u64, 0x1_0000_1234u64);
    let low = |value: u64| (old & !0xffff_ffff) | (value & 0xffff_ffff);
    type Case = (&'static str, u64, Option<u64>);
    let cases: [Case; 14] = [
        ("lock *(u64 *)(r1 + 0) += r2", old.wrapping_add(arg), None),
        ("lock *(u32 *)(r1 + 0) += w2", low(old.wrapping_add(arg)), None),
        ("lock *(u64 *)(r1 + 0) |= r2", old | arg, None),
        ("lock *(u32 *)(r1 + 0) &= w2", low(old & arg), None),
        ("lock *(u64 *)(r1 + 0) ^= r2", old ^ arg, None),
        ("r2 = atomic_fetch_add((u64 *)(r1 + 0), r2)", old.wrapping_add(arg), Some(old)),
        (
            "w2 = atomic_fetch_add((u32 *)(r1 + 0), w2)",
            low(old.wrapping_add(arg)),
            Some(old & 0xffff_ffff),
        ),
        ("r2 = atomic_fetch_or((u64 *)(r1 + 0), r2)", old | arg, Some(old)),
        ("w2 = atomic_fetch_and((u32 *)(r1 + 0), w2)", low(old & arg), Some(old & 0xffff_ffff)),
        ("r2 = atomic_fetch_xor((u64 *)(r1 + 0), r2)", old ^ arg, Some(old)),
        ("r2 = xchg_64(r1 + 0, r2)", arg, Some(old)),
        ("w2 = xchg32_32(r1 + 0, w2)", low(arg), Some(old & 0xffff_ffff)),
        ("lock *(u32 *)(r1 + 0) |= w2", low(old | arg), None),
        ("lock *(u64 *)(r1 + 0) &= r2", old & arg, None),
    ];
    for (insn, after, fetched) in cases {
        let (mut h, instance, page) = with_page(&format!("{insn}\nr0 = r2\nexit"));
        h.vm.mem.write(page, old).expect("page");
        let got = run(&mut h, instance, [page, arg, 0, 0, 0]);
        assert_eq!(got, Ok(fetched.unwrap_or(arg)), "{insn}");
        assert_eq!(h.vm.mem.read::<u64>(page), Ok(after), "{insn}");
    }
}

#[test]
fn compare_and_exchange() {
    for (insn, expect, matches) in [
        ("r0 = cmpxchg_64(r1 + 0, r0, r2)", 0x5_0000_0007u64, true),
        ("r0 = cmpxchg_64(r1 + 0, r0, r2)", 7, false),
        ("w0 = cmpxchg32_32(r1 + 0, w0, w2)", 0x9_0000_0007, true),
        ("w0 = cmpxchg32_32(r1 + 0, w0, w2)", 8, false),
    ] {
        let (mut h, instance, page) = with_page(&format!("r0 = r3\n{insn}\nexit"));
        h.vm.mem.write(page, 0x5_0000_0007u64).expect("page");
        let wide = insn.starts_with('r');
        let got = run(&mut h, instance, [page, 0x2_0000_0002, expect, 0, 0]);
        assert_eq!(got, Ok(if wide { 0x5_0000_0007 } else { 7 }), "{insn}");
        let after = match (matches, wide) {
            (false, _) => 0x5_0000_0007,
            (true, true) => 0x2_0000_0002,
            (true, false) => 0x5_0000_0002,
        };
        assert_eq!(h.vm.mem.read::<u64>(page), Ok(after), "{insn}");
    }
}

#[test]
fn bad_accesses_fault_with_their_reason() {
    let mem_fault = |text: &str, args: [u64; 5], h: &mut BareHost, instance| {
        h.install_text(instance, text, Default::default()).expect("program");
        match run(h, instance, args).expect_err(text).kind() {
            FaultKind::Mem(fault) => (fault.why, fault.addr),
            other => panic!("{text}: {other}"),
        }
    };
    let (mut h, instance, page) = with_page("exit");
    let ro = h.vm.mem.alloc_region(PAGE, Perm::Read).expect("page");
    let load = "r0 = *(u32 *)(r1 + 16)\nexit";
    let store = "*(u32 *)(r1 + 16) = 1\nexit";
    let add = "lock *(u64 *)(r1 + 16) += r2\nexit";
    for (text, addr, why) in [
        (load, 0, MemFaultReason::Null),
        (store, 0, MemFaultReason::Null),
        (load, 0x1234_5678, MemFaultReason::OutOfRange),
        (store, u64::MAX >> 1, MemFaultReason::OutOfRange),
        (load, page + PAGE, MemFaultReason::Unmapped),
        (store, page + PAGE - 18, MemFaultReason::Unmapped),
        (load, page - 32, MemFaultReason::Unmapped),
        (store, ro, MemFaultReason::ReadOnly),
        (add, ro, MemFaultReason::ReadOnly),
        (store, ro - 16 + PAGE - 2, MemFaultReason::ReadOnly),
        (add, 0, MemFaultReason::Null),
    ] {
        let got = mem_fault(text, [addr, 0, 0, 0, 0], &mut h, instance);
        let expected = (why, addr.wrapping_add(16));
        // The fault of an access across two pages may report either page's reason.
        let crosses = expected.1 % PAGE > PAGE - 4;
        assert!(got.1 == expected.1 && (got.0 == why || crosses), "{text} at {addr:#x}: {got:?}");
    }
}

#[test]
fn probed_loads_read_zero_where_nothing_is() {
    for addr in [0, 8, 0x1234_0000, u64::MAX, 1 << 63] {
        assert_eq!(exec("r0 = 7\nprobe r0 = *(u64 *)(r1 + 8)\nexit", &[addr]), Ok(0), "{addr:#x}");
    }
}

#[test]
fn stores_to_the_kernel_need_its_consent() {
    let text = "*(u32 *)(r1 + 8) = 5\nr0 = *(u32 *)(r1 + 8)\nexit";
    let (mut h, instance) = host(text);
    let task = h.task;
    let refused = run(&mut h, instance, [task, 0, 0, 0, 0]).expect_err("not allowed");
    assert!(matches!(refused.kind(), FaultKind::Mem(fault) if fault.why == MemFaultReason::KernelField));
    h.allow_kernel_stores = true;
    assert_eq!(run(&mut h, instance, [task, 0, 0, 0, 0]), Ok(5));
}

/// A check before a call must not serve an access after it, if the call freed the page, on whatever
/// path the program comes from the call.
#[test]
fn a_page_that_a_call_frees_is_a_hole_afterwards() {
    let free = crate::kfunc::builtin("bpf_arena_free_pages").expect("listed").0 as i32;
    let text = format!(
        "func main:\nr6 = r1\nr7 = r3\n*(u64 *)(r6 + 0) = 7\nr0 = *(u64 *)(r6 + 8)\n\
         if r2 == 0 goto kept\nr1 = r7\nr2 = r6\ncall frees\nkept:\nr0 = *(u64 *)(r6 + 0)\n\
         call 8\nr0 = *(u64 *)(r6 + 0)\nexit\nfunc frees:\nr3 = 1\ncall ${free}\nexit"
    );
    let (mut h, instance) = host(&text);
    let def = MapDef {
        name: "arena".into(),
        map_type: map_type::ARENA,
        max_entries: 100,
        map_flags: map_flag::MMAPABLE,
        ..MapDef::default()
    };
    let arena = h.vm.create_map(instance, &def).expect("arena");
    let map = h.vm.map(arena).expect("map").addr;
    let page = h.vm.arena_alloc(arena, 0, 1).expect("page");
    assert_eq!(run(&mut h, instance, [page, 0, map, 0, 0]), Ok(7));
    assert_eq!(run(&mut h, instance, [page, 1, map, 0, 0]), Ok(0));
}

#[test]
fn arena_holes_read_zero_and_swallow_stores() {
    let text = "\
        r2 = addr_space_cast(r1, 0x0, 0x1)
        *(u64 *)(r2 + 0) = 9
        r0 = *(u64 *)(r2 + 0)
        r3 = addr_space_cast(r2, 0x1, 0x0)
        exit";
    let (mut h, instance) = host(text);
    let def = MapDef {
        name: "arena".into(),
        map_type: map_type::ARENA,
        max_entries: 100,
        map_flags: map_flag::MMAPABLE,
        ..MapDef::default()
    };
    let arena = h.vm.create_map(instance, &def).expect("arena");
    let (start, len) = h.vm.map_area(arena).expect("area");
    assert_eq!(len, 100 * PAGE);
    let page = h.vm.arena_alloc(arena, 0, 1).expect("page");
    assert_eq!(page, start);
    assert_eq!(run(&mut h, instance, [page, 0, 0, 0, 0]), Ok(9));
    assert_eq!(
        run(&mut h, instance, [page & 0xffff_ffff, 0, 0, 0, 0]),
        Ok(9),
        "only the lower half counts"
    );
    assert_eq!(run(&mut h, instance, [page + PAGE, 0, 0, 0, 0]), Ok(0), "nothing there");
    assert_eq!(h.vm.mem.arena_stores_dropped, 1);
    h.install_text(instance, "r0 = *(u64 *)(r1 + 0)\nexit", Default::default()).expect("program");
    assert_eq!(
        run(&mut h, instance, [page & 0xffff_ffff, 0, 0, 0, 0]),
        Ok(9),
        "a pointer without its upper half"
    );
    assert_eq!(
        run(&mut h, instance, [0; 5]),
        Ok(0),
        "NULL is a hole of the arena, as in the kernel"
    );
}

#[test]
fn a_probed_null_pointer_is_not_the_start_of_the_arena() {
    let (mut h, instance) = host("probe r0 = *(u64 *)(r1 + 8)\nexit");
    let def = MapDef {
        name: "arena".into(),
        map_type: map_type::ARENA,
        max_entries: 1 << 20,
        map_flags: map_flag::MMAPABLE,
        ..MapDef::default()
    };
    let arena = h.vm.create_map(instance, &def).expect("arena");
    let page = h.vm.arena_alloc(arena, 0, 1).expect("page");
    assert_eq!(page as u32, 0, "a full arena starts with its window");
    h.vm.mem.write(page + 8, 7u64).expect("allocated");
    assert_eq!(run(&mut h, instance, [0; 5]), Ok(0));
    assert_eq!(run(&mut h, instance, [page, 0, 0, 0, 0]), Ok(7));
}

#[test]
fn casts_keep_null() {
    for text in
        ["r0 = addr_space_cast(r1, 0x0, 0x1)\nexit", "r0 = addr_space_cast(r1, 0x1, 0x0)\nexit"]
    {
        assert_eq!(exec(text, &[0]), Ok(0));
        assert_eq!(exec(text, &[0x7f00_0000_0000]), Ok(0));
    }
}

/// Returns a host with an array map of 64 bytes, and the array's address. In the program's text,
/// `ARRAY` stands for the address.
fn with_array(text: &str, map_flags: u32) -> (BareHost, InstanceId, u64) {
    let (mut h, instance) = host("exit");
    let def = MapDef {
        name: "data".into(),
        map_type: map_type::ARRAY,
        key_size: 4,
        value_size: 64,
        max_entries: 1,
        map_flags: map_flags | map_flag::MMAPABLE,
        ..MapDef::default()
    };
    let map = h.vm.create_map(instance, &def).expect("array");
    let (addr, _) = h.vm.map_area(map).expect("values");
    h.install_text(instance, &text.replace("ARRAY", &format!("{addr:#x}")), Default::default())
        .expect("program");
    (h, instance, addr)
}

#[test]
fn an_array_at_a_known_address_is_read_and_written_up_to_its_end() {
    let text = "r1 &= 7\nr1 <<= 3\nr2 = ARRAY ll\nr2 += r1\n*(u64 *)(r2 + 0) = 5\nr0 = *(u32 *)(r2 + 0)\nexit";
    let (mut h, instance, addr) = with_array(text, 0);
    for index in [0u64, 7, 8] {
        assert_eq!(run(&mut h, instance, [index, 0, 0, 0, 0]), Ok(5));
        assert_eq!(h.vm.mem.read::<u64>(addr + (index & 7) * 8), Ok(5));
    }
    // With a mask of 1023 the index may lead beyond the array. The program may access the remaining
    // bytes of the array's page, but an access to the next page must fault.
    let beyond = text.replace("r1 &= 7", "r1 &= 1023");
    let (mut h, instance, addr) = with_array(&beyond, 0);
    assert_eq!(run(&mut h, instance, [511, 0, 0, 0, 0]), Ok(5));
    let fault = run(&mut h, instance, [512, 0, 0, 0, 0]).expect_err("behind the page");
    assert!(matches!(fault.kind(), FaultKind::Mem(fault) if fault.addr == addr + PAGE));
}

#[test]
fn constants_at_a_known_address_are_not_written() {
    let text = "r2 = ARRAY ll\nr0 = *(u32 *)(r2 + 60)\n*(u32 *)(r2 + 60) = 5\nexit";
    let (mut h, instance, addr) = with_array(text, map_flag::RDONLY_PROG);
    let fault = run(&mut h, instance, [0; 5]).expect_err("read-only");
    let FaultKind::Mem(fault) = fault.kind() else { panic!("{fault}") };
    assert_eq!((fault.addr, fault.why), (addr + 60, MemFaultReason::ReadOnly));
}

#[test]
fn an_index_into_the_frame_that_may_be_outside_is_checked() {
    let text = "r1 &= MASK\nr2 = r10\nr2 += -64\nr2 += r1\n*(u8 *)(r2 + 0) = 9\nr0 = *(u8 *)(r2 + 0)\nexit";
    let (mut h, instance) = host(&text.replace("MASK", "63"));
    assert_eq!(run(&mut h, instance, [63, 0, 0, 0, 0]), Ok(9));
    // An index of 64 or more leads out of the frame. Above the frame lies the page of the
    // arguments, which programs may write, then a guard page, where the access must fault.
    let (mut h, instance) = host(&text.replace("MASK", "0xffff"));
    assert_eq!(run(&mut h, instance, [64, 0, 0, 0, 0]), Ok(9));
    let fault = run(&mut h, instance, [64 + PAGE, 0, 0, 0, 0]).expect_err("the guard");
    assert!(matches!(fault.kind(), FaultKind::Mem(fault) if fault.why == MemFaultReason::Unmapped));
}

/// A program on CPU 2 of 4 looks up elements of an array of 3 elements of 12 bytes, with and
/// without copies per CPU. A lookup must give the element of CPU 2, or of the CPU that the program
/// names; an index or CPU that does not exist must give 0.
#[test]
fn elements_are_found_by_index_and_cpu() {
    for (map_type, percpu) in [(map_type::ARRAY, false), (map_type::PERCPU_ARRAY, true)] {
        let (mut h, instance) = host("exit");
        let (key_size, value_size, max_entries) = (4, 12, 3);
        let def = MapDef { map_type, key_size, value_size, max_entries, ..MapDef::default() };
        let map = h.vm.create_map(instance, &def).expect("array");
        let addr = h.vm.map(map).expect("just made").addr;
        let find = |helper: u32| {
            format!(
                "*(u32 *)(r10 - 4) = r1\nr3 = r2\nr2 = r10\nr2 += -4\nr1 = {addr:#x} ll\ncall {helper}\nexit\n"
            )
        };
        let text = format!("func own:\n{}func of:\n{}", find(1), find(195));
        h.install_text(instance, &text, Default::default()).expect("program");
        h.cpu = 2;
        let mut find = |func: &str, index: u64, cpu: u64| {
            h.run(instance, func, [index, cpu, 0, 0, 0]).expect(func)
        };
        let first = find("own", 0, 0);
        assert_ne!(first, 0);
        assert_eq!([1, 2, 3, 1 << 31].map(|index| find("own", index, 0)), [first + 16, first + 32, 0, 0]);
        // The lookup must ignore the upper half of a 64-bit index or CPU number.
        assert_eq!(find("own", 1 << 32 | 1, 0), first + 16);
        assert_eq!([2, 1 << 32 | 2].map(|cpu| find("of", 1, cpu)), [first + 16; 2]);
        assert_eq!([4, u64::MAX].map(|cpu| find("of", 0, cpu)), [0, 0]);
        assert_eq!(find("of", 3, 0), 0);
        let others = [0, 1, 3].map(|cpu| find("of", 0, cpu).wrapping_sub(first) as i64);
        assert_eq!(others, if percpu { [-128, -64, 64] } else { [0; 3] });
        assert_eq!(h.vm.helper_calls(), 14);
    }
}
