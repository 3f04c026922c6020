// SPDX-License-Identifier: GPL-2.0-only
//! Hand-assembled type tables: well-formed ones, and ones that no compiler would write.

use super::special::{BtfSpecialKind, KptrTag};
use super::*;

/// Assembles a `.BTF` blob record by record. Ids count from 1.
pub(crate) struct Builder {
    types: Vec<u8>,
    strings: Vec<u8>,
    next: u32,
}

impl Builder {
    pub fn new() -> Builder {
        Builder { types: Vec::new(), strings: vec![0], next: 1 }
    }

    pub fn name(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let at = self.strings.len() as u32;
        self.strings.extend_from_slice(text.as_bytes());
        self.strings.push(0);
        at
    }

    pub fn add(
        &mut self,
        name: &str,
        kind: BtfKind,
        vlen: u32,
        size: u32,
        items: &[u32],
    ) -> TypeId {
        let name = self.name(name);
        for word in [name, (kind as u32) << 24 | vlen, size].iter().chain(items) {
            self.types.extend_from_slice(&word.to_le_bytes());
        }
        self.next += 1;
        TypeId(self.next - 1)
    }

    pub fn int(&mut self, name: &str, size: u32) -> TypeId {
        self.add(name, BtfKind::Int, 0, size, &[size * 8])
    }

    /// Adds a struct. Each member is (name, type, bit offset).
    pub fn structure(&mut self, name: &str, size: u32, members: &[(&str, TypeId, u32)]) -> TypeId {
        let mut items = Vec::new();
        for (member, ty, off) in members {
            items.extend([self.name(member), ty.0, *off]);
        }
        self.add(name, BtfKind::Struct, members.len() as u32, size, &items)
    }

    pub fn array(&mut self, elem: TypeId, len: u32) -> TypeId {
        self.add("", BtfKind::Array, 0, 0, &[elem.0, elem.0, len])
    }

    pub fn enumeration(&mut self, name: &str, values: &[(&str, u32)]) -> TypeId {
        let items: Vec<u32> = values.iter().flat_map(|(n, v)| [self.name(n), *v]).collect();
        self.add(name, BtfKind::Enum, values.len() as u32, 4, &items)
    }

    pub fn blob(&self) -> Vec<u8> {
        let mut blob = vec![0x9f, 0xeb, 1, 0];
        let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
        for word in [24, 0, types, types, strings] {
            blob.extend_from_slice(&word.to_le_bytes());
        }
        blob.extend_from_slice(&self.types);
        blob.extend_from_slice(&self.strings);
        blob
    }

    pub fn build(&self) -> Btf {
        Btf::parse(&self.blob()).unwrap()
    }
}

#[test]
fn flavours_are_the_last_triple_underscore() {
    let check = |name, essence| assert_eq!(essential_name(name), essence, "{name}");
    check("task_struct", "task_struct");
    check("task_struct___old", "task_struct");
    check("scx_bpf_dsq_insert___v2___compat", "scx_bpf_dsq_insert___v2");
    check("a___b", "a");
    check("___b", "___b");
    check("a___", "a___");
    check("a____b", "a____b");
    check("a___b____c", "a");
    check("", "");
    check("__", "__");
}

#[test]
fn names_are_found_by_kind_and_by_essence() {
    let mut b = Builder::new();
    let int = b.int("foo", 4);
    let first = b.structure("foo", 4, &[("x", int, 0)]);
    let second = b.structure("foo___v2", 4, &[("x", int, 0)]);
    let btf = b.build();
    assert_eq!(btf.find("foo", BtfKind::Struct), Some(first));
    assert_eq!(btf.find("foo___v2", BtfKind::Struct), Some(second));
    assert_eq!(btf.find("foo", BtfKind::Union), None);
    assert_eq!(btf.find("", BtfKind::Struct), None);
    let all: Vec<_> = btf.with_essential_name("foo___other").collect();
    assert_eq!(all, [int, first, second]);
}

#[test]
fn cycles_end_in_an_error() {
    let mut b = Builder::new();
    // Types 1 and 2 wrap each other; type 3 is an array of itself. A query that would follow either
    // without end must fail.
    let a = b.add("a", BtfKind::Typedef, 0, 2, &[]);
    b.add("b", BtfKind::Const, 0, 1, &[]);
    let array = b.array(TypeId(3), 2);
    let own = b.structure("own", 8, &[("", TypeId(4), 0)]);
    let btf = b.build();
    assert_eq!(btf.resolve(a), Err(BtfError::Cycle { id: 1 }));
    assert_eq!(btf.size_of(a), Err(BtfError::Cycle { id: 1 }));
    assert!(matches!(btf.size_of(array), Err(BtfError::Cycle { .. })));
    assert!(matches!(btf.special_fields(array), Err(BtfError::Cycle { .. })));
    assert!(matches!(btf.field(own, "x"), Err(BtfError::Cycle { .. })));
    // The search for special fields enters a struct that contains itself only to a fixed depth.
    assert_eq!(btf.special_fields(own), Ok(Vec::new()));
    assert!(!btf.type_name(a).is_empty());
}

#[test]
fn a_wide_nest_of_structs_is_too_complex_not_endless() {
    let mut b = Builder::new();
    let int = b.int("int", 4);
    let mut inner = b.structure("s0", 4, &[("x", int, 0)]);
    for level in 1..9 {
        let members: Vec<_> = (0..16).map(|_| ("m", inner, 0)).collect();
        inner = b.structure(&format!("s{level}"), 4, &members);
    }
    let btf = b.build();
    assert!(matches!(btf.special_fields(inner), Err(BtfError::TooComplex { .. })));
}

#[test]
fn sizes_multiply_and_do_not_overflow() {
    let mut b = Builder::new();
    let int = b.int("u32", 4);
    let small = b.array(int, 10);
    let nested = b.array(small, 3);
    let big = b.array(int, u32::MAX);
    let huge = b.array(big, u32::MAX);
    let empty = b.array(huge, 0);
    let proto = b.add("", BtfKind::FuncProto, 0, 0, &[]);
    let btf = b.build();
    assert_eq!(btf.size_of(nested), Ok(120));
    assert_eq!(btf.size_of(big), Err(BtfError::SizeOverflow { id: big.0 }));
    assert_eq!(btf.size_of(huge), Err(BtfError::SizeOverflow { id: huge.0 }));
    assert_eq!(btf.size_of(empty), Ok(0));
    assert!(matches!(btf.size_of(proto), Err(BtfError::NoSize { .. })));
}

#[test]
fn paths_lead_through_structs_and_arrays() {
    let mut b = Builder::new();
    let int = b.int("u32", 4);
    let row = b.array(int, 3);
    let inner = b.structure("inner", 16, &[("pad", int, 0), ("row", row, 32)]);
    let anon = b.structure("", 16, &[("deep", inner, 0)]);
    let outer = b.structure("outer", 20, &[("head", int, 0), ("", anon, 32)]);
    let btf = b.build();
    let offset = |path| btf.path(outer, path).map(|f| f.byte_off());
    assert_eq!(offset(".head"), Ok(0));
    assert_eq!(offset(".deep.row[2]"), Ok(16));
    assert_eq!(offset("deep.row[0]"), Ok(8));
    assert!(matches!(offset(".deep.row[3]"), Err(PathError::Index { index: 3, .. })));
    assert!(matches!(offset(".deep[0]"), Err(PathError::NotNested { .. })));
    let wrong = offset(".haed").unwrap_err();
    assert!(wrong.to_string().contains("did you mean head?"), "{wrong}");
    for bad in [".", "a..b", "deep.row[", "deep.row[x]", "deep.row]", "deep.row[1]x"] {
        assert!(offset(bad).is_err(), "{bad}");
    }
}

#[test]
fn special_fields_repeat_with_their_array() {
    let mut b = Builder::new();
    let long = b.int("u64", 8);
    let opaque = b.array(long, 2);
    let timer = b.structure("bpf_timer", 16, &[("opaque", opaque, 0)]);
    let task = b.structure("task_struct", 8, &[("x", long, 0)]);
    let tagged = b.add("kptr", BtfKind::TypeTag, 0, task.0, &[]);
    let ptr = b.add("", BtfKind::Ptr, 0, tagged.0, &[]);
    let slot = b.structure("slot", 24, &[("t", timer, 0), ("p", ptr, 128)]);
    let slots = b.array(slot, 3);
    let value = b.structure("value", 80, &[("n", long, 0), ("slots", slots, 64)]);
    let many = b.array(slot, 5000);
    let btf = b.build();
    let found = btf.special_fields(value).unwrap();
    let offsets: Vec<_> = found.iter().map(|f| f.offset).collect();
    assert_eq!(offsets, [8, 24, 32, 48, 56, 72]);
    assert_eq!(found[0].kind, BtfSpecialKind::Timer);
    let kptr = BtfSpecialKind::Kptr {
        tag: KptrTag::Owned,
        pointee: "task_struct".to_owned(),
        pointee_id: task,
    };
    assert_eq!(found[1].kind, kptr);
    assert!(matches!(btf.special_fields(many), Err(BtfError::TooComplex { .. })));
}

#[test]
fn a_graph_root_needs_its_tag() {
    let mut b = Builder::new();
    let long = b.int("u64", 8);
    let opaque = b.array(long, 2);
    let root = b.structure("bpf_rb_root", 16, &[("opaque", opaque, 0)]);
    let value = b.structure("value", 16, &[("root", root, 0)]);
    let untagged = b.build();
    assert!(matches!(untagged.special_fields(value), Err(BtfError::BadSpecialField { .. })));
    b.structure("elem", 40, &[("key", long, 0), ("node", opaque, 64)]);
    b.add("contains:elem:node", BtfKind::DeclTag, 0, value.0, &[0]);
    let found = b.build().special_fields(value).unwrap();
    let BtfSpecialKind::RbRoot(contains) = &found[0].kind else { panic!("{found:?}") };
    assert_eq!((contains.ty.as_str(), contains.node_off), ("elem", 8));
}

#[test]
fn dangling_references_are_refused() {
    let mut b = Builder::new();
    b.add("p", BtfKind::Ptr, 0, 9, &[]);
    assert_eq!(Btf::parse(&b.blob()).unwrap_err(), BtfError::DanglingType { at: 1, id: 9, len: 2 });
    let mut b = Builder::new();
    b.add("", BtfKind::Struct, 1, 4, &[1000, 0, 0]);
    assert_eq!(Btf::parse(&b.blob()).unwrap_err(), BtfError::DanglingString { at: 1, off: 1000 });
    let mut b = Builder::new();
    b.add("f", BtfKind::FuncProto, 0x00ff_ffff, 0, &[]);
    assert!(matches!(Btf::parse(&b.blob()), Err(BtfError::Truncated { .. })));
    let mut blob = Builder::new().blob();
    blob[0] = 0xeb;
    assert!(matches!(Btf::parse(&blob), Err(BtfError::Magic { .. })));
}

#[test]
fn every_prefix_and_every_flipped_byte_is_survived() {
    let mut b = Builder::new();
    let int = b.int("u32", 4);
    let array = b.array(int, 3);
    b.structure("s", 12, &[("a", int, 0), ("b", array, 32)]);
    b.add("e", BtfKind::Enum, 1, 4, &[0, 7]);
    b.add("t", BtfKind::Typedef, 0, 1, &[]);
    let blob = b.blob();
    for len in 0..blob.len() {
        assert!(Btf::parse(&blob[..len]).is_err(), "prefix of {len} bytes");
    }
    for at in 0..blob.len() {
        for bit in 0..8 {
            let mut bad = blob.clone();
            bad[at] ^= 1 << bit;
            if let Ok(btf) = Btf::parse(&bad) {
                exercise(&btf);
            }
        }
    }
}

/// Calls the accessors for every type of a table. The test requires only that the calls return.
fn exercise(btf: &Btf) {
    for id in btf.ids() {
        let _ = btf.size_of(id);
        let _ = btf.resolve(id);
        let _ = btf.special_fields(id);
        let _ = btf.field(id, "b");
        let _ = btf.path(id, ".b[1]");
        let _ = btf.type_name(id);
        let _ = btf.enumerators(id).count() + btf.params(id).count();
    }
}
