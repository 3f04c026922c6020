// SPDX-License-Identifier: GPL-2.0-only
//! Objects that programs allocate, and the trees and lists that own them.
//!
//! Owns: live objects, their reference counts, the order of every tree and list.
//! Does not: keep these data in guest memory. Nodes and roots are opaque to programs, so their
//! bytes in guest memory stay unused.
//! Models: `bpf_obj_new()`, `bpf_rbtree_*`, `bpf_list_*` of kernel/bpf/helpers.c, v7.3.
//! Differs: a tree is a sorted vector, so an insertion makes as many comparisons as in a balanced
//! tree, and a removal takes time in proportion to the number of nodes.
//! `bpf_rbtree_root/left/right` show a perfectly balanced tree.

use std::collections::{BTreeMap, VecDeque};

use rustc_hash::FxHashMap;

use super::Builtin;
use crate::errno::*;
use crate::fault::Fault;
use crate::vm::{CallSite, Host, InstanceId, Vm, callback, release_dropped};

/// Bytes charged per object for its entries in the tables of objects, of owners, and of tree or
/// list nodes.
const ENTRY_BYTES: u64 = 128;

#[derive(Default)]
pub(crate) struct Objects {
    /// Objects by address.
    live: BTreeMap<u64, Object>,
    /// Nodes of each tree in order, by address of the root. No code iterates over this hash map, so
    /// nothing depends on its order.
    trees: FxHashMap<u64, Vec<u64>>,
    /// Nodes of each list, by address of the head. No code iterates over this hash map, so nothing
    /// depends on its order.
    lists: FxHashMap<u64, VecDeque<u64>>,
    /// Root or head that owns each linked node, by the node's address.
    owners: FxHashMap<u64, u64>,
}

#[derive(Clone, Copy)]
struct Object {
    instance: InstanceId,
    local_type: u32,
    size: u32,
    refs: u32,
}

impl Objects {
    /// Removes a tree. Returns its nodes, leftmost first.
    pub fn clear_tree(&mut self, root: u64) -> Vec<u64> {
        let nodes = self.trees.remove(&root).unwrap_or_default();
        self.disown(&nodes);
        nodes
    }

    pub fn clear_list(&mut self, head: u64) -> Vec<u64> {
        let nodes = Vec::from(self.lists.remove(&head).unwrap_or_default());
        self.disown(&nodes);
        nodes
    }

    fn disown(&mut self, nodes: &[u64]) {
        for node in nodes {
            self.owners.remove(node);
        }
    }

    /// Returns the address of the object that contains a node.
    fn containing(&self, node: u64) -> Option<u64> {
        let (&addr, object) = self.live.range(..=node).next_back()?;
        (node - addr < u64::from(object.size)).then_some(addr)
    }

    fn owned_by(&self, node: u64, owner: u64) -> bool {
        self.owners.get(&node) == Some(&owner)
    }
}

/// Models `bpf_obj_new`: allocates a zeroed object of one of the program's types. Returns 0 if
/// there is no memory.
pub fn new<H: Host>(h: &mut H, site: CallSite, local_type: u64) -> Result<u64, Fault> {
    let vm = h.vm();
    let local_type = local_type as u32;
    let known =
        vm.instance(site.instance).and_then(|instance| instance.local_types.get(&local_type));
    let Some(size) = known.map(|known| known.size) else {
        return Err(Fault::bad_argument(
            "bpf_obj_new",
            format!("the object file has no type with BTF id {local_type}"),
        ));
    };
    vm.work(size.into())?;
    if vm.mem.charge(ENTRY_BYTES).is_err() {
        return Ok(0);
    }
    let Ok(addr) = vm.mem.alloc(size.into(), 8) else {
        vm.mem.give_back(ENTRY_BYTES);
        return Ok(0);
    };
    let object = Object { instance: site.instance, local_type, size, refs: 1 };
    vm.objects.live.insert(addr, object);
    Ok(addr)
}

/// Models `bpf_obj_drop`: drops a reference. Dropping the last reference frees the object and
/// releases what the object holds.
pub fn drop<H: Host>(h: &mut H, addr: u64) -> Result<u64, Fault> {
    if !h.vm().objects.live.contains_key(&addr) {
        return Err(Fault::bad_argument("bpf_obj_drop", format!("{addr:#x} is not an object")));
    }
    h.vm().drop_object(addr);
    release_dropped(h);
    Ok(0)
}

/// Models `bpf_refcount_acquire`: adds a reference to an object.
pub fn acquire<H: Host>(h: &mut H, addr: u64) -> Result<u64, Fault> {
    match h.vm().objects.live.get_mut(&addr) {
        Some(object) => {
            object.refs += 1;
            Ok(addr)
        }
        None => {
            Err(Fault::bad_argument("bpf_refcount_acquire", format!("{addr:#x} is not an object")))
        }
    }
}

impl Vm {
    /// Drops a reference to an object. Ignores an address that is not an object, because programs
    /// can leave stale pointers behind.
    pub(crate) fn drop_object(&mut self, addr: u64) {
        let Some(object) = self.objects.live.get_mut(&addr) else {
            return;
        };
        object.refs -= 1;
        if object.refs > 0 {
            return;
        }
        let Object { instance, local_type, size, .. } = *object;
        self.objects.live.remove(&addr);
        let types =
            self.instance(instance).and_then(|instance| instance.local_types.get(&local_type));
        let special = types.map(|known| known.special.clone()).unwrap_or_default();
        let (_, mut ctx) = self.split_maps();
        ctx.release(instance, &special, addr);
        self.mem.free(addr, size.into());
        self.mem.give_back(ENTRY_BYTES);
    }
}

/// Models `bpf_rbtree_add(root, node, less)`: calls `less(node, other)` for each comparison of a
/// binary search. Adding a node that is already linked fails and drops a reference to the node's
/// object.
pub fn tree_add<H: Host>(
    h: &mut H,
    site: CallSite,
    root: u64,
    node: u64,
    less: u64,
) -> Result<u64, Fault> {
    if h.vm().objects.owners.contains_key(&node) {
        return refuse(h, node);
    }
    let (mut low, mut high) = (0, h.vm().objects.trees.get(&root).map_or(0, Vec::len));
    while low < high {
        let middle = low + (high - low) / 2;
        let Some(&other) = h.vm().objects.trees.get(&root).and_then(|nodes| nodes.get(middle))
        else {
            break;
        };
        if callback(h, site, less, [node, other, 0, 0, 0])? != 0 {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    let objects = &mut h.vm().objects;
    let nodes = objects.trees.entry(root).or_default();
    nodes.insert(low.min(nodes.len()), node);
    objects.owners.insert(node, root);
    Ok(0)
}

/// Refuses a node that is already linked, and drops a reference to the node's object.
fn refuse<H: Host>(h: &mut H, node: u64) -> Result<u64, Fault> {
    if let Some(addr) = h.vm().objects.containing(node) {
        h.vm().drop_object(addr);
        release_dropped(h);
    }
    Ok(neg(EINVAL))
}

/// Removes a node from a tree, or finds a node by its position in the tree. Returns the node's
/// address, or 0.
pub(super) fn tree(vm: &mut Vm, what: Builtin, root: u64, node: u64) -> u64 {
    let objects = &mut vm.objects;
    let Some(nodes) = objects.trees.get_mut(&root) else {
        return 0;
    };
    match what {
        Builtin::RbFirst => nodes.first().copied().unwrap_or(0),
        Builtin::RbRoot => middle(0, nodes.len()).map_or(0, |at| nodes[at]),
        _ => {
            let Some(at) = nodes.iter().position(|&other| other == node) else {
                return 0;
            };
            match what {
                Builtin::RbRemove => {
                    objects.owners.remove(&node);
                    nodes.remove(at)
                }
                Builtin::RbLeft => child(nodes.len(), at, true).map_or(0, |at| nodes[at]),
                _ => child(nodes.len(), at, false).map_or(0, |at| nodes[at]),
            }
        }
    }
}

fn middle(low: usize, high: usize) -> Option<usize> {
    (low < high).then(|| low + (high - low) / 2)
}

/// Returns the index of the left or right child of the node at index `at`, in a perfectly balanced
/// tree whose nodes in order have the indices 0 to `len` - 1; None if there is no such child.
fn child(len: usize, at: usize, left: bool) -> Option<usize> {
    let (mut low, mut high) = (0, len);
    loop {
        let root = middle(low, high)?;
        match at.cmp(&root) {
            std::cmp::Ordering::Less => high = root,
            std::cmp::Ordering::Greater => low = root + 1,
            std::cmp::Ordering::Equal if left => return middle(low, root),
            std::cmp::Ordering::Equal => return middle(root + 1, high),
        }
    }
}

/// Models `bpf_list_push_front`, `_push_back` and `_add` (after a node). Returns 0 or -EINVAL.
pub(super) fn list_add<H: Host>(
    h: &mut H,
    what: Builtin,
    [head, node, prev]: [u64; 3],
) -> Result<u64, Fault> {
    let objects = &mut h.vm().objects;
    let after = match what {
        Builtin::ListPushFront => Some(0),
        Builtin::ListPushBack => Some(objects.lists.get(&head).map_or(0, VecDeque::len)),
        _ => objects
            .lists
            .get(&head)
            .and_then(|nodes| nodes.iter().position(|&other| other == prev))
            .map(|at| at + 1),
    };
    match after.filter(|_| !objects.owners.contains_key(&node)) {
        Some(at) => {
            objects.lists.entry(head).or_default().insert(at, node);
            objects.owners.insert(node, head);
            Ok(0)
        }
        None => refuse(h, node),
    }
}

/// Removes a node from a list. Returns the node's address, or 0.
pub(super) fn list_remove(vm: &mut Vm, what: Builtin, head: u64, node: u64) -> u64 {
    let objects = &mut vm.objects;
    let Some(nodes) = objects.lists.get_mut(&head) else {
        return 0;
    };
    let taken = match what {
        Builtin::ListPopFront => nodes.pop_front(),
        Builtin::ListPopBack => nodes.pop_back(),
        _ => nodes.iter().position(|&other| other == node).and_then(|at| nodes.remove(at)),
    };
    if let Some(node) = taken {
        objects.owners.remove(&node);
    }
    taken.unwrap_or(0)
}

/// Returns a list's first or last node (0 if the list is empty), or answers with 1 or 0 whether
/// `node` is the first node, whether `node` is the last node, or whether the list is empty.
pub(super) fn list_look(vm: &mut Vm, what: Builtin, head: u64, node: u64) -> u64 {
    let objects = &vm.objects;
    let nodes = objects.lists.get(&head);
    let first = nodes.and_then(|nodes| nodes.front().copied());
    let last = nodes.and_then(|nodes| nodes.back().copied());
    let mine = objects.owned_by(node, head);
    match what {
        Builtin::ListFront => first.unwrap_or(0),
        Builtin::ListBack => last.unwrap_or(0),
        Builtin::ListIsFirst => (mine && first == Some(node)).into(),
        Builtin::ListIsLast => (mine && last == Some(node)).into(),
        _ => first.is_none().into(),
    }
}
