// SPDX-License-Identifier: GPL-2.0-only
use super::*;

fn mem() -> Memory {
    Memory::with_size(2 * ARENA_WINDOW).expect("address space")
}

#[test]
fn same_calls_give_same_addresses() {
    let script = |mem: &mut Memory| {
        let mut got = Vec::new();
        for size in [1, 8, 24, 100, 5000, 9000, 100_000] {
            got.push(mem.alloc(size, 8).expect("alloc"));
        }
        mem.free(got[2], 24);
        mem.free(got[6], 100_000);
        got.push(mem.alloc(30, 8).expect("alloc"));
        got.push(mem.alloc(100_000, 8).expect("alloc"));
        got.push(mem.alloc_region_end_aligned(100, Perm::Read).expect("region"));
        got.push(mem.reserve_arena(16).expect("arena"));
        got
    };
    let (mut a, mut b) = (mem(), mem());
    let got = script(&mut a);
    assert_eq!(got, script(&mut b));
    assert_eq!(got[7], got[2], "a freed object is reused by its class");
    assert_eq!(got[8], got[6], "a freed region is reused by its length");
}

#[test]
fn reused_memory_is_zero() {
    let mut mem = mem();
    for size in [40u64, 3 * PAGE, 200 << 10] {
        let addr = mem.alloc(size, 8).expect("alloc");
        mem.bytes_mut(addr, size).expect("writable").fill(0xaa);
        mem.free(addr, size);
        assert_eq!(mem.alloc(size, 8).expect("again"), addr);
        assert!(
            mem.bytes(addr, size).expect("readable").iter().all(|&byte| byte == 0),
            "size {size}"
        );
    }
}

#[test]
fn objects_are_aligned_and_apart() {
    let mut mem = mem();
    let mut spans = Vec::new();
    for (size, align) in [(1, 1), (20, 16), (72, 64), (40, 4096), (6000, 8), (48, 32), (65, 64)] {
        for _ in 0..5 {
            let addr = mem.alloc(size, align).expect("alloc");
            assert!(addr.is_multiple_of(align), "{size} at {align}");
            spans.push((addr, addr + size));
        }
    }
    spans.sort_unstable();
    assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0));
}

#[test]
fn regions_have_guards_and_end_at_a_page() {
    let mut mem = mem();
    let addr = mem.alloc_region_end_aligned(100, Perm::ReadWrite).expect("region");
    assert_eq!((addr + 104) % PAGE, 0);
    mem.write(addr + 96, 7u64).expect("last word");
    let fault = mem.write(addr + 97, 7u64).expect_err("one byte over the end");
    assert_eq!((fault.why, fault.addr), (MemFaultReason::Unmapped, addr + 97));
    let below = (addr & !(PAGE - 1)) - 1;
    assert_eq!(mem.read::<u8>(below).expect_err("guard").why, MemFaultReason::Unmapped);
}

#[test]
fn permissions_are_kept() {
    let mut mem = mem();
    let ro = mem.alloc_region(8, Perm::Read).expect("region");
    let kernel = mem.alloc_kernel(64, 8).expect("object");
    assert_eq!(mem.read::<u64>(ro), Ok(0));
    assert_eq!(mem.write(ro, 1u8).expect_err("read-only").why, MemFaultReason::ReadOnly);
    assert_eq!(mem.write(kernel, 1u8).expect_err("kernel").why, MemFaultReason::KernelField);
    *mem.host_mut::<u64>(kernel) = 5;
    assert_eq!(mem.read::<u64>(kernel), Ok(5));
    for (addr, why) in
        [(0, MemFaultReason::Null), (8, MemFaultReason::Null), (u64::MAX - 3, MemFaultReason::Null)]
    {
        assert_eq!(mem.read::<u32>(addr).expect_err("null").why, why);
    }
    for addr in [0x1_0000, GUEST_BASE - 1, GUEST_BASE + mem.size(), GUEST_BASE + mem.size() - 1] {
        assert!(mem.read::<u32>(addr).is_err(), "{addr:#x}");
    }
}

#[test]
fn access_over_two_pages_needs_both() {
    let mut mem = mem();
    let addr = mem.alloc_region(2 * PAGE, Perm::ReadWrite).expect("region");
    let cross = addr + PAGE - 3;
    mem.write(cross, 0x1122_3344_5566_7788u64).expect("both writable");
    assert_eq!(mem.read::<u64>(cross), Ok(0x1122_3344_5566_7788));
    mem.set_perm(addr + PAGE, PAGE, Perm::Read);
    assert_eq!(mem.read::<u64>(cross), Ok(0x1122_3344_5566_7788));
    assert_eq!(mem.write(cross, 0u64).expect_err("second page").why, MemFaultReason::ReadOnly);
    mem.set_perm(addr, PAGE, Perm::None);
    assert_eq!(mem.read::<u64>(cross).expect_err("first page").why, MemFaultReason::Unmapped);
}

#[test]
fn window_agrees_with_checked_access() {
    let mut mem = mem();
    let addr = mem.alloc_region(2 * PAGE, Perm::ReadWrite).expect("region");
    mem.set_perm(addr + PAGE, PAGE, Perm::Read);
    let window = mem.window();
    for off in (0..2 * PAGE + 16).step_by(3) {
        let at = addr - 8 + off;
        let crosses = at % PAGE > PAGE - 4;
        let fast = window.load::<u32>(at);
        assert_eq!(fast.is_some(), mem.read::<u32>(at).is_ok() && !crosses, "load at {at:#x}");
        let stored = window.store::<u32>(at, off as u32);
        assert_eq!(stored, mem.allows(at, 4, Access::Store) && !crosses, "store at {at:#x}");
        if stored {
            assert_eq!(mem.read::<u32>(at), Ok(off as u32));
        }
    }
    let end = GUEST_BASE + mem.size();
    for at in [end - 8, end - 1, end, 0, u64::MAX, GUEST_BASE] {
        assert_eq!(window.load::<u64>(at), None, "{at:#x}");
    }
}

#[test]
fn strings_end_at_nul_page_or_limit() {
    let mut mem = mem();
    let addr = mem.alloc_region(PAGE, Perm::ReadWrite).expect("region");
    let text = addr + PAGE - 4;
    mem.bytes_mut(text, 4).expect("end of page").copy_from_slice(b"abc\0");
    assert_eq!(mem.c_str(text, 100).expect("ends before the guard"), b"abc");
    mem.bytes_mut(text, 4).expect("end of page").copy_from_slice(b"abcd");
    assert!(mem.c_str(text, 100).is_err(), "runs into the guard");
    assert_eq!(mem.c_str(text, 2).expect("limit"), b"ab");
}

#[test]
fn arenas_are_windows_of_their_own() {
    let mut mem = mem();
    let window = mem.reserve_arena(1 << 20).expect("arena");
    assert_eq!(window % ARENA_WINDOW, 0);
    assert_eq!(mem.arena_at(window + 5).map(|arena| arena.window), Some(window));
    assert!(mem.read::<u8>(window).is_err());
    mem.alloc_arena_page(window + PAGE).unwrap();
    mem.write(window + PAGE, 3u8).expect("allocated");
    mem.free_arena_page(window + PAGE);
    mem.alloc_arena_page(window + PAGE).unwrap();
    assert_eq!(mem.read::<u8>(window + PAGE), Ok(0), "zero again");
    assert!(mem.reserve_arena(1).is_err(), "the other window is the heap's");
    mem.free_arena(window);
    assert_eq!(mem.reserve_arena(1), Ok(window));
}

#[test]
fn exhaustion_is_an_error() {
    let mut mem = mem();
    assert!(mem.alloc(u64::MAX - 10, 8).is_err());
    assert!(mem.alloc_region(3 * ARENA_WINDOW, Perm::Read).is_err());
    assert!(mem.alloc(100, 8).is_ok(), "a failed allocation leaves the rest intact");
}

/// A request that finds no room leaves the charged bytes as they were.
#[test]
fn exhaustion_charges_nothing() {
    let mut mem = Memory::with_size(SIZE_MIN).expect("address space");
    let fill = |mem: &mut Memory, alloc: fn(&mut Memory) -> Result<u64, OutOfMemory>| {
        while alloc(mem).is_ok() {}
        let before = mem.charged();
        assert!(matches!(alloc(mem), Err(OutOfMemory::Exhausted { .. })));
        assert_eq!(mem.charged(), before);
    };
    fill(&mut mem, |mem| mem.alloc_region(300 << 10, Perm::ReadWrite));
    fill(&mut mem, |mem| mem.alloc(8192, 8));
}

#[test]
#[should_panic(expected = "outside the memory")]
fn host_access_outside_is_our_bug() {
    mem().host_ref::<u64>(8);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "outside the memory")]
fn an_own_address_outside_is_noticed_in_tests() {
    mem().own_mut::<u64>(8);
}

#[test]
fn own_addresses_lead_where_host_addresses_do() {
    let mut mem = Memory::with_size(3 * ARENA_WINDOW).expect("address space");
    assert_eq!(mem.size(), 4 * ARENA_WINDOW, "a power of two");
    let first = mem.alloc(64, 8).expect("memory");
    let last = GUEST_BASE + mem.size() - 8;
    for addr in [first, first + 56, last] {
        *mem.own_mut::<u64>(addr) = addr;
        assert_eq!(*mem.host_ref::<u64>(addr), addr);
    }
}
