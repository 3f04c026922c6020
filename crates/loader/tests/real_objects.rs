// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the kernel's own schedulers and selftests, if `make` has compiled them into
//! `build/kernel/objects`.
//!
//! The tests need no kernel. They resolve the relocations of each object against the object's own
//! types, so each relocation must give exactly the value that the compiler wrote.

use std::path::PathBuf;

use scxlab_loader::core_relo::{self, CoreError};
use scxlab_loader::object::{MemberKind, Object};

fn objects() -> Vec<PathBuf> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../build/kernel/objects");
    let Ok(entries) = std::fs::read_dir(root) else {
        return Vec::new();
    };
    let mut found: Vec<_> = entries
        .filter_map(|e| e.ok().map(|e| e.path()))
        .filter(|p| p.to_string_lossy().ends_with(".bpf.o"))
        .collect();
    found.sort();
    found
}

#[test]
fn relocations_against_their_own_types_change_nothing() {
    for path in objects() {
        let name = path.display().to_string();
        let object = Object::parse(&std::fs::read(&path).unwrap(), &name).unwrap();
        let (mut same, mut all) = (0, 0);
        for function in &object.functions {
            for relo in &function.core_relos {
                all += 1;
                let what = core_relo::describe(&object.btf, relo);
                match core_relo::resolve(&object.btf, &object.btf, relo) {
                    Ok(r) => {
                        assert!(r.found && !r.poison && r.value == r.original, "{name}: {what}");
                        same += 1;
                    }
                    // An object may declare two flavours of a type with different layouts. A
                    // relocation then has two possible values, so `resolve` reports it as
                    // ambiguous.
                    Err(CoreError::Ambiguous { .. }) => {}
                    Err(e) => panic!("{name}: {what}: {e}"),
                }
            }
        }
        assert!(same * 10 >= all * 9, "{name}: only {same} of {all} relocations are the same");
    }
}

#[test]
fn every_object_has_a_scheduler_or_says_why_not() {
    for path in objects() {
        let name = path.display().to_string();
        let object = Object::parse(&std::fs::read(&path).unwrap(), &name).unwrap();
        assert_eq!(object.license, "GPL", "{name}");
        assert!(!object.struct_ops.is_empty(), "{name}: no struct_ops table");
        for table in &object.struct_ops {
            let named = table.members.iter().find(|m| m.name == "name").unwrap();
            assert_eq!(named.kind, MemberKind::Data, "{name}");
            let at = named.offset as usize;
            assert_ne!(table.data[at], 0, "{name}: {} has no name", table.name);
        }
        for function in &object.functions {
            assert!(function.btf_func.is_some(), "{name}: {} has no prototype", function.name);
            assert!(!function.lines.is_empty(), "{name}: {} has no lines", function.name);
        }
    }
}
