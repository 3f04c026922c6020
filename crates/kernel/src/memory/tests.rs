// SPDX-License-Identifier: GPL-2.0-only
//! Tests of placement: policies, fallback, huge and merged pages, cpusets.

use super::alloc::{Fault, Full};
use super::region::{MemPolicy, Place};
use super::*;
use crate::ext::idle::fixture::kernel;
use crate::task::behavior::{CgroupSpec, Sys};

fn node(n: u32) -> NodeId {
    NodeId(n)
}

fn spec(pages: u64, policy: MemPolicy, huge: bool) -> RegionSpec {
    let name = "heap".to_owned();
    RegionSpec { name, pages, policy, populate: Vec::new(), huge, merge_percent: 0 }
}

/// A machine of `sizes.len()` nodes with one CPU each; sizes in pages.
fn machine(sizes: &[u64], distances: &str) -> Machine {
    let pages: Vec<String> = sizes.iter().map(|pages| (pages / 256).to_string()).collect();
    Machine::from_toml(
        "m.toml",
        &format!(
            "name = 'm'\ndescription = 'd'\nsource = 's'\n[topology]\nspec = '{}n1c1t'\n\
             node_memory_mib = [{}]\n{distances}",
            sizes.len(),
            pages.join(", ")
        ),
    )
    .unwrap()
}

/// Touches every unit of a region from a CPU of `from`.
fn touch_all(memory: &mut Memory, id: RegionId, from: u32) -> Result<(), Full> {
    for unit in 0..memory.region(id).unwrap().nr_units() {
        memory.touch(id, unit, true, node(from), None)?;
    }
    Ok(())
}

fn on(memory: &Memory, id: RegionId) -> Vec<u64> {
    memory.region(id).unwrap().on().to_vec()
}

#[test]
fn each_policy_places_pages_where_linux_does() {
    let m = machine(&[1 << 20; 4], "");
    let (a, b) = (vec![node(1), node(3)], vec![node(0), node(1), node(2)]);
    let cases = [
        (MemPolicy::FirstTouch, 1000, false, [0, 0, 1000, 0]),
        (MemPolicy::Preferred(node(1)), 1000, false, [0, 1000, 0, 0]),
        (MemPolicy::Bind(a.clone()), 1000, false, [0, 0, 0, 1000]),
        (MemPolicy::Interleave(a.clone()), 1001, false, [0, 501, 0, 500]),
        (MemPolicy::Interleave(b.clone()), 1001, false, [334, 334, 333, 0]),
        (MemPolicy::FirstTouch, 5 * 512 + 7, true, [0, 0, 2567, 0]),
        (MemPolicy::Interleave(b.clone()), 5 * 512 + 7, true, [1024, 1024, 519, 0]),
        // Larger than 16,384 units, so a unit has several blocks.
        (MemPolicy::Interleave(b.clone()), 100_001, false, [33_334, 33_334, 33_333, 0]),
        (MemPolicy::Interleave(a), 100_001, false, [0, 50_001, 0, 50_000]),
    ];
    for (policy, pages, huge, expected) in cases {
        let mut memory = Memory::new(&m);
        let id = memory.add(spec(pages, policy.clone(), huge)).unwrap();
        touch_all(&mut memory, id, 2).unwrap();
        // A bound region goes to the nearest node of its set: 1 and 3 are equally far from 2, and a
        // node with a higher number than the CPU's is preferred.
        assert_eq!(on(&memory, id), expected, "{policy:?} {pages} {huge}");
        assert_eq!(memory.nodes.used, expected);
        memory.free(id);
        assert_eq!(memory.nodes.used, [0; 4]);
    }
}

/// When a node is full, pages go to the next node by distance; at equal distances to the next
/// higher number. Bound regions find no room outside their nodes.
#[test]
fn a_full_node_overflows_to_the_nearest() {
    let distances =
        "distances = [[10, 20, 30, 20], [20, 10, 20, 30], [30, 20, 10, 20], [20, 30, 20, 10]]";
    let m = machine(&[1024, 1024, 1024, 1024], distances);
    let mut memory = Memory::new(&m);
    let id = memory.add(spec(3000, MemPolicy::FirstTouch, false)).unwrap();
    touch_all(&mut memory, id, 2).unwrap();
    assert_eq!(on(&memory, id), [0, 952, 1024, 1024]);
    let bound = memory.add(spec(1025, MemPolicy::Bind(vec![node(0)]), false)).unwrap();
    assert_eq!(touch_all(&mut memory, bound, 2), Err(Full));
    assert_eq!(on(&memory, bound), [1024, 0, 0, 0]);
    assert_eq!(memory.nodes.used, [1024, 952, 1024, 1024]);
}

/// A node without memory takes no page, and a node without CPUs takes pages before an equally far
/// node with CPUs.
#[test]
fn nodes_without_memory_or_cpus() {
    let parts = "name = 'm'\ndescription = 'd'\nsource = 's'\n[topology]\n\
        cores = [{ cpus = '0' }, { cpus = '1' }]\n\
        llcs = [{ cpus = '0' }, { cpus = '1' }]\n\
        nodes = [{ cpus = '0', memory_mib = 0 }, { cpus = '1', memory_mib = 4 }, { cpus = '', memory_mib = 4 }]\n";
    let m = Machine::from_toml("m.toml", parts).unwrap();
    let mut memory = Memory::new(&m);
    let id = memory.add(spec(1500, MemPolicy::FirstTouch, false)).unwrap();
    touch_all(&mut memory, id, 0).unwrap();
    assert_eq!(on(&memory, id), [0, 476, 1024]);
    let refused = memory.add(spec(1, MemPolicy::Preferred(node(0)), false));
    assert_eq!(refused, Err(SysError::Invalid), "a policy names a node without memory");
}

#[test]
fn populated_pages_lie_in_equal_contiguous_parts() {
    let mut memory = Memory::new(&machine(&[1024, 1024], ""));
    let populate = vec![node(1), node(0)];
    let id =
        memory.add(RegionSpec { populate, ..spec(901, MemPolicy::FirstTouch, false) }).unwrap();
    assert_eq!(on(&memory, id), [451, 450]);
    assert_eq!(memory.region(id).unwrap().place(0), Place::On(node(1)));
    let populate = vec![node(1)];
    let spec = RegionSpec { populate, ..spec(1000, MemPolicy::FirstTouch, false) };
    assert_eq!(memory.add(spec), Err(SysError::NoMemory));
    assert_eq!(memory.nodes.used, [451, 450], "a refused region leaves nothing behind");
}

/// Merged pages are allocated once for all regions of a name. A write makes them the region's own.
#[test]
fn merged_pages_are_shared_until_a_write() {
    let mut memory = Memory::new(&machine(&[4096, 4096], ""));
    let spec = RegionSpec { merge_percent: 20, ..spec(100, MemPolicy::FirstTouch, false) };
    let ids = [memory.add(spec.clone()).unwrap(), memory.add(spec).unwrap()];
    for (id, from) in [(ids[0], 0), (ids[1], 1)] {
        for unit in 0..100 {
            memory.touch(id, unit, false, node(from), None).unwrap();
        }
    }
    assert_eq!(memory.nodes.used, [100, 80]);
    assert_eq!(memory.region(ids[1]).unwrap().merged_on(), [20, 0]);
    assert_eq!(memory.touch(ids[1], 99, false, node(1), None), Ok(None));
    let copied = memory.touch(ids[1], 99, true, node(1), None);
    assert_eq!(copied, Ok(Some(Fault::Unmerged { pages: 1 })));
    assert_eq!((memory.nodes.used.clone(), on(&memory, ids[1])), (vec![100, 81], vec![0, 81]));
    assert_eq!(memory.region(ids[1]).unwrap().merged_on(), [19, 0]);
    memory.free(ids[0]);
    assert_eq!(memory.nodes.used, [20, 81], "the merged pages have another user");
    memory.free(ids[1]);
    assert_eq!(memory.nodes.used, [0, 0]);
}

#[test]
fn cpusets_confine_pages() {
    let mut k = kernel("2n1c1t", &[]);
    let dir = k.mkdir(CgroupId(0), "a", CgroupSpec::default()).unwrap();
    let below = k.mkdir(dir, "b", CgroupSpec::default()).unwrap();
    assert_eq!(k.mems_effective(below), None);
    assert_eq!(k.set_mems(dir, Some(&[node(2)])), Err(SysError::Invalid));
    k.set_mems(dir, Some(&[node(1)])).unwrap();
    k.set_mems(below, Some(&[node(0)])).unwrap();
    assert_eq!(k.mems_effective(below), Some(vec![node(1)]), "the parent lacks node 0");
    let id = k.region_new(spec(10, MemPolicy::FirstTouch, false)).unwrap();
    let both =
        k.region_new(spec(10, MemPolicy::Interleave(vec![node(0), node(1)]), false)).unwrap();
    let memory = k.memory.as_mut().unwrap();
    for unit in 0..10 {
        memory.touch(id, unit, false, node(0), Some(&[node(1)])).unwrap();
        memory.touch(both, unit, false, node(0), Some(&[node(1)])).unwrap();
    }
    assert_eq!((on(memory, id), on(memory, both)), (vec![0, 10], vec![0, 10]));
}
