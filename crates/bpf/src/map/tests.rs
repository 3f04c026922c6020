// SPDX-License-Identifier: GPL-2.0-only
use proptest::prelude::*;

use super::*;
use crate::mem::{ARENA_WINDOW, PAGE};
use crate::vm::bare::BareHost;
use crate::vm::{Config, FuncId, release_dropped};

fn host() -> (BareHost, InstanceId) {
    let config = Config { nr_cpus: 3, mem_size: 6 * ARENA_WINDOW, ..Config::default() };
    let mut h = BareHost::new(config).expect("memory");
    let instance = h.vm.add_instance("maps");
    (h, instance)
}

fn def(map_type: u32, key_size: u32, value_size: u32, max_entries: u32) -> MapDef {
    let map_flags = match map_type {
        map_type::TASK_STORAGE | map_type::CGRP_STORAGE => map_flag::NO_PREALLOC,
        map_type::ARENA => map_flag::MMAPABLE,
        _ => 0,
    };
    MapDef {
        name: "m".into(),
        map_type,
        key_size,
        value_size,
        max_entries,
        map_flags,
        ..MapDef::default()
    }
}

fn make(h: &mut BareHost, instance: InstanceId, def: &MapDef) -> MapId {
    h.vm.create_map(instance, def).expect("a good definition")
}

fn key(n: u32) -> [u8; 4] {
    n.to_ne_bytes()
}

#[test]
fn definitions_are_checked_as_the_kernel_does() {
    use map_type::*;
    let (mut h, instance) = host();
    let no_flag = |map_type| MapDef { map_flags: 0, ..def(map_type, 4, 8, 0) };
    for (bad, errno) in [
        (def(ARRAY, 8, 8, 1), EINVAL),
        (def(ARRAY, 4, 0, 1), EINVAL),
        (def(ARRAY, 4, 8, 0), EINVAL),
        (def(PERCPU_ARRAY, 4, 40_000, 1), E2BIG),
        (def(HASH, 0, 8, 1), EINVAL),
        (def(HASH, 513, 8, 1), E2BIG),
        (def(HASH, 4, 8, 0), EINVAL),
        (MapDef { map_flags: map_flag::NO_PREALLOC, ..def(LRU_HASH, 4, 8, 1) }, EOPNOTSUPP),
        (def(QUEUE, 4, 8, 1), EINVAL),
        (def(QUEUE, 0, 0, 1), EINVAL),
        (def(RINGBUF, 0, 0, 4097), EINVAL),
        (def(RINGBUF, 0, 0, 12288), EINVAL),
        (def(RINGBUF, 0, 8, 4096), EINVAL),
        (def(TASK_STORAGE, 8, 8, 0), EINVAL),
        (def(TASK_STORAGE, 4, 8, 5), EINVAL),
        (def(TASK_STORAGE, 4, 70_000, 0), E2BIG),
        (no_flag(CGRP_STORAGE), EINVAL),
        (def(ARENA, 0, 0, 0), EINVAL),
        (def(ARENA, 0, 0, (1 << 20) + 1), E2BIG),
        (MapDef { map_flags: 0, ..def(ARENA, 0, 0, 1) }, EINVAL),
        (def(ARRAY_OF_MAPS, 4, 4, 1), EINVAL),
        (def(11, 4, 4, 1), EOPNOTSUPP),
        (def(ARRAY, 4, 1 << 31, 1), E2BIG),
        (def(ARRAY, 4, i32::MAX as u32, u32::MAX), ENOMEM),
    ] {
        let got = h.vm.create_map(instance, &bad).expect_err("refused");
        assert_eq!(got.errno, errno, "{bad:?}: {got}");
    }
    let outside = SpecialField { offset: 12, kind: SpecialKind::Kptr(KptrKind::Kernel(1)) };
    let bad = MapDef { special: vec![outside], ..def(ARRAY, 4, 16, 1) };
    assert_eq!(h.vm.create_map(instance, &bad).expect_err("refused").errno, EINVAL);
}

#[test]
fn arrays_hold_values_at_fixed_places() {
    let (mut h, instance) = host();
    let id = make(&mut h, instance, &def(map_type::ARRAY, 4, 12, 5));
    let vm = &mut h.vm;
    assert_eq!(vm.map_lookup(id, &key(4)), Ok(vec![0; 12]));
    assert_eq!(vm.map_update(id, &key(4), &[7; 12], 0), Ok(()));
    assert_eq!(vm.map_lookup(id, &key(4)), Ok(vec![7; 12]));
    assert_eq!(vm.map_update(id, &key(5), &[7; 12], 0), Err(E2BIG));
    assert_eq!(vm.map_update(id, &key(0), &[7; 12], update_flag::NOEXIST), Err(EEXIST));
    assert_eq!(vm.map_update(id, &key(0), &[7; 12], 3), Err(EINVAL));
    assert_eq!(vm.map_update(id, &key(0), &[7; 12], update_flag::LOCK), Err(EINVAL));
    assert_eq!(vm.map_update(id, &key(0), &[7; 8], 0), Err(EINVAL));
    assert_eq!(vm.map_delete(id, &key(0)), Err(EINVAL));
    assert_eq!(vm.map_lookup(id, &key(5)), Err(ENOENT));
    assert_eq!(vm.map_keys(id).map(|keys| keys.len()), Ok(5));
    let (base, len) = vm.map_area(id).expect("area");
    assert_eq!((len, (base + len) % PAGE), (80, 0), "ends with its page");
    vm.freeze_map(id).expect("freeze");
    assert_eq!(vm.map_update(id, &key(0), &[7; 12], 0), Err(EPERM));
}

#[test]
fn huge_arrays_cost_nothing_until_used() {
    let (mut h, instance) = host();
    let section = MapDef { map_flags: map_flag::MMAPABLE, ..def(map_type::ARRAY, 4, 158 << 20, 1) };
    let id = make(&mut h, instance, &section);
    let (base, _) = h.vm.map_area(id).expect("area");
    assert_eq!(base % PAGE, 0);
    h.vm.poke(base + (100 << 20), b"x").expect("inside");
    assert_eq!(h.vm.mem.read::<u8>(base + (100 << 20)), Ok(b'x'));
    make(&mut h, instance, &def(map_type::HASH, 8, 500, 1_000_000));
}

#[test]
fn per_cpu_values_are_apart() {
    let (mut h, instance) = host();
    for map_type in [map_type::PERCPU_ARRAY, map_type::PERCPU_HASH, map_type::LRU_PERCPU_HASH] {
        let id = make(&mut h, instance, &def(map_type, 4, 12, 2));
        let vm = &mut h.vm;
        assert_eq!(vm.map_value_len(id), Ok(48));
        let all: Vec<u8> = (0..48).collect();
        vm.map_update(id, &key(1), &all, 0).expect("all CPUs");
        assert_eq!(vm.map_lookup_cpu(id, &key(1), 2), Ok(all[32..44].to_vec()));
        vm.map_update_cpu(id, &key(1), &[9; 12], 1).expect("one CPU");
        let got = vm.map_lookup(id, &key(1)).expect("found");
        assert_eq!(
            (&got[..12], &got[16..28], &got[32..44]),
            (&all[..12], &[9; 12][..], &all[32..44])
        );
        assert_eq!(vm.map_lookup_cpu(id, &key(1), 3), Err(ERANGE));
        assert_eq!(vm.map_update(id, &key(1), &[0; 12], 0), Err(EINVAL), "one value for all CPUs");
    }
}

#[test]
fn hashes_have_flags_and_a_capacity() {
    let (mut h, instance) = host();
    let id = make(&mut h, instance, &def(map_type::HASH, 4, 8, 3));
    let vm = &mut h.vm;
    for n in 0..3 {
        vm.map_update(id, &key(n), &[n as u8; 8], update_flag::NOEXIST).expect("new");
    }
    assert_eq!(vm.map_update(id, &key(9), &[9; 8], 0), Err(E2BIG));
    assert_eq!(vm.map_update(id, &key(1), &[1; 8], update_flag::NOEXIST), Err(EEXIST));
    assert_eq!(vm.map_update(id, &key(9), &[9; 8], update_flag::EXIST), Err(ENOENT));
    assert_eq!(vm.map_update(id, &key(1), &[5; 8], update_flag::EXIST), Ok(()));
    assert_eq!(vm.map_delete(id, &key(9)), Err(ENOENT));
    assert_eq!(vm.map_delete(id, &key(0)), Ok(()));
    assert_eq!(vm.map_update(id, &key(9), &[9; 8], 0), Ok(()), "room again");
    let keys: Vec<u8> = vm.map_keys(id).expect("keys").iter().map(|key| key[0]).collect();
    assert_eq!(keys, [1, 2, 9], "in order of insertion");
    assert_eq!(
        vm.map_next_key(id, Some(&key(77))),
        Ok(key(1).to_vec()),
        "an unknown key starts over"
    );
    assert_eq!(vm.map_next_key(id, Some(&key(9))), Err(ENOENT));
    assert_eq!(vm.map_lookup(id, &key(1)), Ok(vec![5; 8]));
    assert_eq!(vm.map_lookup(id, &[0; 3]), Err(EINVAL));
}

#[test]
fn an_lru_drops_what_was_used_longest_ago() {
    let (mut h, instance) = host();
    let id = make(&mut h, instance, &def(map_type::LRU_HASH, 4, 8, 3));
    for n in 0..3 {
        h.vm.map_update(id, &key(n), &[0; 8], 0).expect("room");
    }
    let map = h.vm.maps.get_mut(id).expect("map");
    assert_ne!(map.lookup(&h.vm.mem, &key(0), 0), 0, "a program's lookup is a use");
    h.vm.map_lookup(id, &key(1)).expect("user space's is not");
    h.vm.map_update(id, &key(7), &[0; 8], 0).expect("evicts");
    let keys: Vec<u8> = h.vm.map_keys(id).expect("keys").iter().map(|key| key[0]).collect();
    assert_eq!(keys, [2, 0, 7]);
}

#[test]
fn queues_and_stacks() {
    let (mut h, instance) = host();
    for (map_type, order) in [(map_type::QUEUE, [1, 2]), (map_type::STACK, [2, 1])] {
        let id = make(&mut h, instance, &def(map_type, 0, 4, 2));
        let vm = &mut h.vm;
        assert_eq!(vm.map_pop(id), Err(ENOENT));
        vm.map_update(id, &[], &key(1), 0).expect("room");
        vm.map_update(id, &[], &key(2), 0).expect("room");
        assert_eq!(vm.map_update(id, &[], &key(3), 0), Err(E2BIG));
        assert_eq!(vm.map_update(id, &[], &key(3), update_flag::NOEXIST), Err(EINVAL));
        assert_eq!(vm.map_update(id, &[], &[1; 3], 0), Err(EINVAL));
        assert_eq!(vm.map_lookup(id, &[]), Ok(key(order[0]).to_vec()), "peek");
        assert_eq!(vm.map_pop(id), Ok(key(order[0]).to_vec()));
        assert_eq!(vm.map_pop(id), Ok(key(order[1]).to_vec()));
        assert_eq!(vm.map_pop(id), Err(ENOENT));
        for n in 1..4 {
            vm.map_update(id, &[], &key(n), update_flag::EXIST).expect("replaces the oldest");
        }
        assert_eq!(vm.map_len(id), Ok(2));
        let last = if map_type == map_type::QUEUE { 2 } else { 3 };
        assert_eq!(vm.map_pop(id), Ok(key(last).to_vec()));
    }
}

#[test]
fn storage_goes_with_its_owner() {
    let (mut h, instance) = host();
    let kptr = SpecialField { offset: 8, kind: SpecialKind::Kptr(KptrKind::Kernel(5)) };
    let task = make(
        &mut h,
        instance,
        &MapDef { special: vec![kptr], ..def(map_type::TASK_STORAGE, 4, 16, 0) },
    );
    let cgroup = make(&mut h, instance, &def(map_type::CGRP_STORAGE, 4, 8, 0));
    let owner = 0xffff_8800_0000_9000;
    h.vm.storage_update(task, owner, &[1; 16]).expect("made");
    h.vm.storage_update(cgroup, owner, &[1; 8]).expect("made");
    let at = h.vm.storage_lookup(task, owner).expect("there");
    assert_eq!(
        h.vm.mem.read::<[u64; 2]>(at),
        Ok([0x0101_0101_0101_0101, 0]),
        "the pointer is not user space's"
    );
    h.vm.mem.write(at + 8, 0x77u64).expect("value");
    crate::vm::storage_owner_gone(&mut h, Storage::Task, owner);
    assert_eq!(h.vm.storage_lookup(task, owner), Err(ENOENT));
    assert!(h.vm.storage_lookup(cgroup, owner).is_ok());
    assert_eq!(h.released, [(KptrKind::Kernel(5), 0x77)]);
    assert_eq!(h.vm.storage_delete(task, owner), Err(ENOENT));
}

#[test]
fn maps_in_maps() {
    let (mut h, instance) = host();
    let inner = def(map_type::QUEUE, 0, 4, 10);
    let outer =
        MapDef { inner: Some(Box::new(inner.clone())), ..def(map_type::ARRAY_OF_MAPS, 4, 4, 2) };
    let hash = MapDef { map_type: map_type::HASH_OF_MAPS, ..outer.clone() };
    let wrong = make(&mut h, instance, &def(map_type::QUEUE, 0, 8, 10));
    let right = make(&mut h, instance, &MapDef { max_entries: 99, ..inner });
    for outer in [make(&mut h, instance, &outer), make(&mut h, instance, &hash)] {
        assert_eq!(h.vm.map_set_inner(outer, &key(1), wrong), Err(EINVAL));
        assert_eq!(h.vm.map_set_inner(outer, &key(1), right), Ok(()));
        assert_eq!(h.vm.map_lookup(outer, &key(1)), Ok(right.0.to_ne_bytes().to_vec()));
        assert_eq!(h.vm.map_lookup(outer, &key(0)), Err(ENOENT));
        let addr = h.vm.map(right).expect("inner").addr;
        let map = h.vm.maps.get_mut(outer).expect("outer");
        assert_eq!(map.lookup(&h.vm.mem, &key(1), 0), addr);
        assert_eq!(map.lookup(&h.vm.mem, &key(0), 0), 0);
    }
}

#[test]
fn values_let_go_of_what_they_hold() {
    let (mut h, instance) = host();
    let special = vec![
        SpecialField { offset: 8, kind: SpecialKind::Kptr(KptrKind::Kernel(1)) },
        SpecialField { offset: 0, kind: SpecialKind::SpinLock },
    ];
    let hash = make(
        &mut h,
        instance,
        &MapDef { special: special.clone(), ..def(map_type::HASH, 4, 24, 4) },
    );
    let array =
        make(&mut h, instance, &MapDef { special, ..def(map_type::PERCPU_ARRAY, 4, 24, 2) });
    h.vm.map_update(hash, &key(1), &[0xff; 24], 0).expect("new");
    let at = h.vm.maps.get_mut(hash).expect("map").lookup(&h.vm.mem, &key(1), 0);
    let words = h.vm.mem.read::<[u64; 3]>(at).expect("value");
    assert_eq!(words, [0xffff_ffff_0000_0000, 0, u64::MAX], "lock and pointer are not copied");
    h.vm.mem.write(at + 8, 0x11u64).expect("value");
    h.vm.map_update(hash, &key(1), &[0; 24], 0).expect("replaced");
    release_dropped(&mut h);
    assert_eq!(h.released, [(KptrKind::Kernel(1), 0x11)]);
    h.vm.mem.write(at + 8, 0x22u64).expect("value");
    h.vm.map_delete(hash, &key(1)).expect("deleted");
    release_dropped(&mut h);
    assert_eq!(h.released[1..], [(KptrKind::Kernel(1), 0x22)]);
    for cpu in 0..3 {
        let at = h.vm.maps.get_mut(array).expect("map").lookup(&h.vm.mem, &key(1), cpu);
        h.vm.mem.write(at + 8, 0x30 + u64::from(cpu)).expect("value");
    }
    h.vm.map_update(array, &key(1), &[0; 72], 0).expect("overwritten");
    release_dropped(&mut h);
    assert_eq!(h.released.len(), 2, "an array's value stays, and its reference with it");
    crate::vm::remove_instance(&mut h, instance);
    let last: Vec<u64> = h.released[2..].iter().map(|released| released.1).collect();
    assert_eq!(last, [0x30, 0x31, 0x32]);
    assert!(h.vm.instance(instance).is_none() && h.vm.map(hash).is_none());
}

#[test]
fn ring_buffers_fill_and_drain() {
    let (mut h, instance) = host();
    let id = make(&mut h, instance, &def(map_type::RINGBUF, 0, 0, 4096));
    let (maps, ctx) = h.vm.split_maps();
    let MapKind::Ringbuf(ring) = &mut maps.get_mut(id).expect("map").kind else { panic!("ring") };
    assert_eq!(ring.reserve(ctx.mem, 4096), 0, "never fits with its header");
    for round in 0..50u64 {
        // Four records of 1000 bytes fit into the ring of 4096 bytes. The fifth does not, so its
        // reservation must fail.
        let records: Vec<u64> = (0..5).map(|_| ring.reserve(ctx.mem, 1000)).collect();
        assert!(
            records[..4].iter().all(|&at| at != 0) && records[4] == 0,
            "round {round}: {records:x?}"
        );
        assert_eq!(ring.consume(ctx.mem), None, "busy");
        for (at, &record) in records[..4].iter().enumerate() {
            assert!(ring.owns(ctx.mem, record) && !ring.owns(ctx.mem, record + 8));
            ctx.mem.write(record, [round, at as u64]).expect("record");
            ctx.mem.write(record + 992, u64::MAX).expect("its end");
            ring.commit(ctx.mem, record, at == 2);
            assert!(!ring.owns(ctx.mem, record), "committed");
        }
        assert_eq!(ring.query(0), 4 * 1008);
        for at in [0, 1, 3u64] {
            let record = ring.consume(ctx.mem).expect("committed");
            assert_eq!(
                (record.len(), &record[..8], &record[8..16]),
                (1000, &round.to_ne_bytes()[..], &at.to_ne_bytes()[..])
            );
        }
        assert_eq!(ring.consume(ctx.mem), None);
    }
}

#[test]
fn arena_pages_come_and_go() {
    let (mut h, instance) = host();
    let id = make(&mut h, instance, &def(map_type::ARENA, 0, 0, 1 << 20));
    let (start, len) = h.vm.map_area(id).expect("area");
    assert_eq!((start % ARENA_WINDOW, len), (0, ARENA_WINDOW), "a full arena fills its window");
    let small = make(&mut h, instance, &def(map_type::ARENA, 0, 0, 8));
    let (start, _) = h.vm.map_area(small).expect("area");
    assert_ne!(start as u32, 0, "no page of a small arena looks like NULL");
    let vm = &mut h.vm;
    assert_eq!(vm.arena_alloc(small, start + 7 * PAGE, 1), Ok(start + 7 * PAGE));
    assert_eq!(vm.arena_alloc(small, start + 7 * PAGE, 1), Err(ENOMEM), "taken");
    assert_eq!(vm.arena_alloc(small, 0, 2), Ok(start));
    assert_eq!(vm.arena_alloc(small, 0, 6), Err(ENOMEM), "five left");
    assert_eq!(vm.arena_alloc(small, 0, 5), Ok(start + 2 * PAGE));
    assert_eq!(vm.arena_alloc(small, 0, 1), Err(ENOMEM));
    let MapKind::Arena(arena) = &mut vm.maps.get_mut(small).expect("map").kind else {
        panic!("arena")
    };
    vm.mem.write(start + PAGE, 5u8).expect("allocated");
    arena.free(&mut vm.mem, start + PAGE, 1);
    assert!(vm.mem.read::<u8>(start + PAGE).is_err());
    assert_eq!(vm.arena_touch(small, start + PAGE + 100, 4000), Ok(()), "user space faults it in");
    assert_eq!(vm.mem.read::<u8>(start + PAGE), Ok(0));
    assert_eq!(vm.arena_touch(small, start + 8 * PAGE, 1), Err(EFAULT));
}

#[derive(Clone, Debug)]
enum Step {
    Update(u8, u8, u64),
    Delete(u8),
    Lookup(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..24u8, any::<u8>(), 0..3u64)
            .prop_map(|(key, value, flags)| Step::Update(key, value, flags)),
        (0..24u8).prop_map(Step::Delete),
        (0..24u8).prop_map(Step::Lookup),
    ]
}

proptest! {
    /// A hash map must behave like the model, a vector of entries with a capacity: the operations
    /// return the same results, and the keys come in order of insertion.
    #[test]
    fn hash_agrees_with_a_model(steps in prop::collection::vec(step(), 0..200), key_size in 1..20u32) {
        let (mut h, instance) = host();
        let id = make(&mut h, instance, &def(map_type::HASH, key_size, 3, 16));
        let mut model: Vec<(u8, u8)> = Vec::new();
        let full_key = |short: u8| vec![short; key_size as usize];
        for step in steps {
            match step {
                Step::Update(short, value, flags) => {
                    let found = model.iter().position(|entry| entry.0 == short);
                    let expected = match found {
                        Some(_) if flags == 1 => Err(EEXIST),
                        None if flags == 2 => Err(ENOENT),
                        None if model.len() == 16 => Err(E2BIG),
                        Some(at) => { model[at].1 = value; Ok(()) }
                        None => { model.push((short, value)); Ok(()) }
                    };
                    prop_assert_eq!(h.vm.map_update(id, &full_key(short), &[value; 3], flags), expected);
                }
                Step::Delete(short) => {
                    let found = model.iter().position(|entry| entry.0 == short);
                    let expected = found.map(|at| { model.remove(at); }).ok_or(ENOENT);
                    prop_assert_eq!(h.vm.map_delete(id, &full_key(short)), expected);
                }
                Step::Lookup(short) => {
                    let found = model.iter().find(|entry| entry.0 == short);
                    let expected = found.map(|entry| vec![entry.1; 3]).ok_or(ENOENT);
                    prop_assert_eq!(h.vm.map_lookup(id, &full_key(short)), expected);
                }
            }
            let keys: Vec<u8> = h.vm.map_keys(id).expect("keys").iter().map(|key| key[0]).collect();
            prop_assert_eq!(keys, model.iter().map(|entry| entry.0).collect::<Vec<_>>());
        }
    }
}

/// A frozen map refuses each change from user space, whatever its type.
#[test]
fn frozen_maps_refuse_every_change_from_user_space() {
    let (mut h, instance) = host();
    let mut frozen = |def: &MapDef| {
        let id = make(&mut h, instance, def);
        h.vm.freeze_map(id).expect("freeze");
        id
    };
    let hash = frozen(&def(map_type::HASH, 4, 8, 4));
    let percpu = frozen(&def(map_type::PERCPU_ARRAY, 4, 8, 4));
    let queue = frozen(&def(map_type::QUEUE, 0, 8, 4));
    let progs = frozen(&def(map_type::PROG_ARRAY, 4, 4, 4));
    let vm = &mut h.vm;
    assert_eq!(vm.map_update(hash, &key(0), &[1; 8], 0), Err(EPERM));
    assert_eq!(vm.map_delete(hash, &key(0)), Err(EPERM));
    assert_eq!(vm.map_update_cpu(percpu, &key(0), &[1; 8], 0), Err(EPERM));
    assert_eq!(vm.map_update(queue, &[], &[1; 8], 0), Err(EPERM));
    assert_eq!(vm.map_pop(queue), Err(EPERM));
    assert_eq!(vm.prog_array_set(progs, 0, FuncId(0)), Err(EPERM));
    assert_eq!(vm.map_set_inner(hash, &key(0), percpu), Err(EPERM));
    assert_eq!(vm.storage_update(hash, 0, &[1; 8]), Err(EPERM));
    assert_eq!(vm.storage_delete(hash, 0), Err(EPERM));
    assert_eq!(vm.map_lookup(hash, &key(0)), Err(ENOENT), "reading is allowed");
}
