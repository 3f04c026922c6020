// SPDX-License-Identifier: GPL-2.0-only
//! Tests of built-in kfuncs, which programs call. `$name` in a program's text stands for the id of
//! the kfunc.

use super::*;
use crate::fault::FaultKind;
use crate::map::{LocalType, MapDef, SpecialField, SpecialKind, map_flag, map_type};
use crate::vm::bare::BareHost;
use crate::vm::tests::host;
use crate::vm::{InstanceId, KptrKind};

fn with_ids(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        match line.split_once('$') {
            Some((before, name)) => {
                let id = builtin(name.trim()).unwrap_or_else(|| panic!("no kfunc {name}"));
                out.push_str(&format!("{before}${}\n", id.0 as i32));
            }
            None => out.push_str(&format!("{line}\n")),
        }
    }
    out
}

/// A host whose program knows one type of 48 bytes: a tree node at offset 0, a key at 32, a kernel
/// pointer at 40.
fn with_type(text: &str) -> (BareHost, InstanceId) {
    let (mut h, instance) = host("exit");
    let special = vec![
        SpecialField { offset: 0, kind: SpecialKind::RbNode },
        SpecialField { offset: 40, kind: SpecialKind::Kptr(KptrKind::Kernel(3)) },
    ];
    let types = [(7, LocalType { name: "node".into(), size: 48, special })].into();
    h.install_text(instance, &with_ids(text), types).expect("program");
    (h, instance)
}

#[test]
fn ids_and_names_agree() {
    for &(name_, _) in BUILTINS {
        let id = builtin(name_).expect("listed");
        assert!(id.is_builtin());
        assert_eq!(name(id), Some(name_));
        assert_ne!(kfunc_addr(id), kfunc_addr(KfuncId(id.0 & 0xffff)));
    }
    assert_eq!(builtin("scx_bpf_kick_cpu"), None);
    assert_eq!(name(KfuncId(3)), None);
}

#[test]
fn number_iterators() {
    let text = "\
        r6 = 0
        r3 = r2
        r2 = r1
        r1 = r10
        r1 += -8
        call $bpf_iter_num_new
        r7 = r0
        next:
        r1 = r10
        r1 += -8
        call $bpf_iter_num_next
        if r0 == 0 goto out
        r6 *= 10
        r1 = *(s32 *)(r0 + 0)
        r6 += r1
        goto next
        out:
        r0 = r6
        if r7 == 0 goto end
        r0 = r7
        end:
        exit";
    let (mut h, instance) = with_type(text);
    let mut sum = |start: i32, end: i32| {
        h.run(instance, "main", [start as u32 as u64, end as u32 as u64, 0, 0, 0])
            .map(|value| value as i64)
    };
    assert_eq!(sum(1, 5), Ok(1234));
    assert_eq!(sum(-2, 1), Ok(-210));
    assert_eq!(sum(3, 3), Ok(0));
    assert_eq!(sum(4, 3), Ok(-EINVAL));
    assert_eq!(sum(0, (8 << 20) + 1), Ok(-E2BIG));
    assert_eq!(sum(i32::MIN, i32::MIN + 1), Ok(i64::from(i32::MIN)));
}

#[test]
fn objects_are_made_and_dropped() {
    let text = "\
        r1 = 7
        r2 = 0
        call $bpf_obj_new_impl
        r6 = r0
        *(u64 *)(r6 + 40) = 0x55
        r1 = r6
        r2 = 0
        call $bpf_refcount_acquire_impl
        r1 = r6
        r2 = 0
        call $bpf_obj_drop_impl
        r7 = *(u64 *)(r6 + 40)
        r1 = r6
        r2 = 0
        call $bpf_obj_drop_impl
        r0 = r7
        exit";
    let (mut h, instance) = with_type(text);
    assert_eq!(h.run(instance, "main", [0; 5]), Ok(0x55), "alive while there is a reference");
    assert_eq!(h.released, [(KptrKind::Kernel(3), 0x55)], "and what it held was released");
    let (mut h, instance) = with_type("r1 = 8\ncall $bpf_obj_new\nexit");
    assert!(h.run(instance, "main", [0; 5]).is_err(), "unknown type");
    let (mut h, instance) = with_type("r1 = 8\ncall $bpf_obj_drop\nexit");
    let fault = h.run(instance, "main", [0; 5]).expect_err("no object");
    assert!(matches!(fault.kind(), FaultKind::BadArgument { call: "bpf_obj_drop", .. }));
}

/// The verifier of a real kernel refuses these programs; `docs/internals/fidelity.md` says that
/// nothing here does.
#[test]
fn stale_and_leaked_objects_go_unnoticed() {
    let stale = "\
        r1 = 7
        r2 = 0
        call $bpf_obj_new_impl
        r6 = r0
        r1 = r6
        r2 = 0
        call $bpf_obj_drop_impl
        *(u64 *)(r6 + 32) = 0x55
        r0 = *(u64 *)(r6 + 32)
        exit";
    let (mut h, instance) = with_type(stale);
    assert_eq!(h.run(instance, "main", [0; 5]), Ok(0x55));
    let (mut h, instance) = with_type("r1 = 7\nr2 = 0\ncall $bpf_obj_new_impl\nr0 = 0\nexit");
    assert_eq!(h.run(instance, "main", [0; 5]), Ok(0));
}

/// Program: `add` adds an object with key r1 to the tree at r2. `pop` removes the first object of
/// the tree at r1 and returns its key, or -1 if the tree is empty.
const TREE: &str = "\
    func add:
    r6 = r1
    r7 = r2
    r1 = 7
    r2 = 0
    call $bpf_obj_new_impl
    *(u64 *)(r0 + 32) = r6
    r1 = r7
    r2 = r0
    r3 = less ll
    r4 = 0
    r5 = 0
    call $bpf_rbtree_add_impl
    exit
    func less:
    r1 = *(u64 *)(r1 + 32)
    r2 = *(u64 *)(r2 + 32)
    r0 = 1
    if r1 < r2 goto out
    r0 = 0
    out:
    exit
    func pop:
    r6 = r1
    call $bpf_rbtree_first
    if r0 == 0 goto none
    r1 = r6
    r2 = r0
    call $bpf_rbtree_remove
    r6 = *(u64 *)(r0 + 32)
    r1 = r0
    r2 = 0
    call $bpf_obj_drop_impl
    r0 = r6
    exit
    none:
    r0 = -1
    exit";

/// An allocation that fails after the object's entry was charged gives the charge back.
#[test]
fn an_object_that_gets_no_memory_costs_none() {
    let text = "r1 = 7\nr2 = 0\ncall $bpf_obj_new_impl\nexit";
    let (mut h, instance) = with_type(text);
    let before = h.vm.mem.charged();
    for request in 0..2 {
        h.vm.mem.refuse_request(request);
        assert_eq!(h.run(instance, "main", [0; 5]), Ok(0), "request {request}");
        assert_eq!(h.vm.mem.charged(), before, "request {request}");
    }
    assert_ne!(h.run(instance, "main", [0; 5]), Ok(0));
}

#[test]
fn trees_are_sorted() {
    let (mut h, instance) = with_type(TREE);
    let root = h.vm.mem.alloc(16, 8).expect("root");
    let mut keys: Vec<u64> = (0..200).map(|n: u64| n * 7919 % 101).collect();
    for &key in &keys {
        assert_eq!(h.run(instance, "add", [key, root, 0, 0, 0]), Ok(0));
    }
    keys.sort_unstable();
    for key in keys {
        assert_eq!(h.run(instance, "pop", [root, 0, 0, 0, 0]), Ok(key));
    }
    assert_eq!(h.run(instance, "pop", [root, 0, 0, 0, 0]), Ok(u64::MAX), "empty");
}

#[test]
fn a_tree_costs_comparisons_like_a_balanced_one() {
    let (mut h, instance) = with_type(TREE);
    let root = h.vm.mem.alloc(16, 8).expect("root");
    for key in 0..1023 {
        h.run(instance, "add", [key, root, 0, 0, 0]).expect("added");
    }
    let before = h.vm.executed;
    h.run(instance, "add", [5000, root, 0, 0, 0]).expect("added");
    let outside = 13;
    assert_eq!((h.vm.executed - before - outside) / 6, 10, "ten comparisons among 1023 nodes");
}

#[test]
fn a_tree_shows_a_balanced_shape() {
    let (mut h, instance) = with_type(TREE);
    let root = h.vm.mem.alloc(16, 8).expect("root");
    for key in 0..7 {
        h.run(instance, "add", [key, root, 0, 0, 0]).expect("added");
    }
    let look = |h: &mut BareHost, what, node| objects::tree(&mut h.vm, what, root, node);
    let key = |h: &BareHost, node: u64| h.vm.mem.read::<u64>(node + 32).expect("node");
    let top = look(&mut h, RbRoot, 0);
    let (left, right) = (look(&mut h, RbLeft, top), look(&mut h, RbRight, top));
    assert_eq!([top, left, right].map(|node| key(&h, node)), [3, 1, 5]);
    let leaf = look(&mut h, RbRight, left);
    assert_eq!(key(&h, leaf), 2);
    assert_eq!(look(&mut h, RbLeft, leaf), 0);
    assert_eq!(look(&mut h, RbRemove, 0x1234), 0, "not in this tree");
}

#[test]
fn a_tree_in_a_map_goes_with_it() {
    let (mut h, instance) = with_type(TREE);
    let def = MapDef {
        name: "roots".into(),
        map_type: map_type::ARRAY,
        key_size: 4,
        value_size: 24,
        max_entries: 1,
        special: vec![SpecialField {
            offset: 8,
            kind: SpecialKind::RbRoot { local_type: 7, node_offset: 0 },
        }],
        ..MapDef::default()
    };
    let map = h.vm.create_map(instance, &def).expect("map");
    let root = h.vm.map_area(map).expect("area").0 + 8;
    for key in [5, 1] {
        h.run(instance, "add", [key, root, 0, 0, 0]).expect("added");
    }
    let first = objects::tree(&mut h.vm, RbFirst, root, 0);
    h.vm.mem.write(first + 40, 0xabcu64).expect("object");
    crate::vm::remove_instance(&mut h, instance);
    assert_eq!(h.released, [(KptrKind::Kernel(3), 0xabc)]);
}

#[test]
fn lists_keep_their_order() {
    let text = "\
        func push:
        r6 = r2
        r7 = r3
        r8 = r1
        r1 = 7
        call $bpf_obj_new
        *(u64 *)(r0 + 32) = r8
        r1 = r6
        r2 = r0
        if r7 == 0 goto front
        call $bpf_list_push_back_impl
        exit
        front:
        call $bpf_list_push_front_impl
        exit
        func pop:
        if r2 == 0 goto first
        call $bpf_list_pop_back
        goto got
        first:
        call $bpf_list_pop_front
        got:
        if r0 == 0 goto out
        r0 = *(u64 *)(r0 + 32)
        out:
        exit";
    let (mut h, instance) = with_type(text);
    let head = h.vm.mem.alloc(16, 8).expect("head");
    for (key, back) in [(2, 1), (1, 0), (3, 1), (4, 1)] {
        assert_eq!(h.run(instance, "push", [key, head, back, 0, 0]), Ok(0));
    }
    let front = objects::list_look(&mut h.vm, ListFront, head, 0);
    assert_eq!(objects::list_look(&mut h.vm, ListIsFirst, head, front), 1);
    assert_eq!(objects::list_look(&mut h.vm, ListIsLast, head, front), 0);
    assert_eq!(objects::list_look(&mut h.vm, ListEmpty, head, 0), 0);
    for (key, back) in [(1, 0), (4, 1), (2, 0), (3, 0), (0, 0), (0, 1)] {
        assert_eq!(h.run(instance, "pop", [head, back, 0, 0, 0]), Ok(key));
    }
}

#[test]
fn a_node_hangs_in_one_place() {
    let text = "\
        r6 = r1
        r1 = 7
        call $bpf_obj_new
        r7 = r0
        *(u64 *)(r7 + 40) = 0x66
        r1 = r7
        call $bpf_refcount_acquire
        r1 = r6
        r2 = r7
        call $bpf_list_push_back
        r1 = r6
        r2 = r7
        call $bpf_list_push_back
        exit";
    let (mut h, instance) = with_type(text);
    let head = h.vm.mem.alloc(16, 8).expect("head");
    assert_eq!(h.run(instance, "main", [head, 0, 0, 0, 0]), Ok(neg(EINVAL)));
    assert!(h.released.is_empty(), "the list still has its reference");
}

#[test]
fn resilient_locks_refuse_to_deadlock() {
    let text = "\
        r6 = r1
        call $bpf_res_spin_lock
        r1 = r6
        call $bpf_res_spin_lock
        r7 = r0
        r1 = r6
        call $bpf_res_spin_unlock
        r0 = r7
        exit";
    let (mut h, instance) = with_type(text);
    let lock = h.vm.mem.alloc(8, 8).expect("lock");
    assert_eq!(h.run(instance, "main", [lock, 0, 0, 0, 0]), Ok(neg(EDEADLK)));
    assert_eq!(h.locks, [(lock, true), (lock, false)]);
}

#[test]
fn programs_allocate_arena_pages() {
    let text = "\
        r6 = r1
        r3 = r2
        r2 = 0
        r4 = -1
        r5 = 0
        call $bpf_arena_alloc_pages
        if r0 == 0 goto out
        r7 = r0
        *(u64 *)(r7 + 0) = 1
        r1 = r6
        r2 = r7
        r3 = 1
        call $bpf_arena_free_pages
        r0 = *(u64 *)(r7 + 0)
        r0 += 100
        out:
        exit";
    let (mut h, instance) = with_type(text);
    let def = MapDef {
        name: "arena".into(),
        map_type: map_type::ARENA,
        max_entries: 4,
        map_flags: map_flag::MMAPABLE,
        ..MapDef::default()
    };
    let map = h.vm.create_map(instance, &def).expect("map");
    let addr = h.vm.map(map).expect("map").addr;
    assert_eq!(h.run(instance, "main", [addr, 1, 0, 0, 0]), Ok(100), "a freed page reads 0");
    assert_eq!(h.run(instance, "main", [addr, 5, 0, 0, 0]), Ok(0), "too many");
    assert_eq!(h.run(instance, "main", [77, 1, 0, 0, 0]), Ok(0), "no arena");
    assert_eq!(arena::reserve(&mut h.vm, addr, 0, 1), Ok(neg(EINVAL)));
}

#[test]
fn dynptrs_are_cut_and_cloned() {
    let text = "\
        r6 = r1
        r2 = 32
        r3 = 0
        r4 = r10
        r4 += -16
        call 197
        r1 = r10
        r1 += -16
        r2 = 8
        r3 = 16
        call $bpf_dynptr_adjust
        r1 = r10
        r1 += -16
        r2 = r10
        r2 += -32
        call $bpf_dynptr_clone
        r1 = r10
        r1 += -32
        call $bpf_dynptr_size
        r7 = r0
        r1 = r10
        r1 += -32
        r2 = 4
        r3 = 0
        r4 = 4
        call $bpf_dynptr_slice
        r0 -= r6
        r0 *= 100
        r0 += r7
        exit";
    let (mut h, instance) = with_type(text);
    let data = h.vm.mem.alloc(32, 8).expect("data");
    assert_eq!(h.run(instance, "main", [data, 0, 0, 0, 0]), Ok(12 * 100 + 8));
}
