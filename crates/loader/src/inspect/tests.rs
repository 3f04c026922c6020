// SPDX-License-Identifier: GPL-2.0-only
//! Reports on the objects in `testdata/`.

use std::sync::Arc;

use super::*;
use crate::btf::Btf;
use crate::link::{KconfigValue, KsymVar};
use crate::object::tests::{core_object, full_object, kernel_btf};
use scxlab_bpf::kfunc::KfuncId;

/// A kernel that has types, but no functions, variables or configuration values.
struct Bare(Btf);

impl Target for Bare {
    fn btf(&self) -> &Btf {
        &self.0
    }

    fn kfunc(&self, _name: &str) -> Option<KfuncId> {
        None
    }

    fn ksym_var(&self, _name: &str) -> Option<KsymVar> {
        None
    }

    fn kconfig(&self, _name: &str) -> Option<KconfigValue> {
        None
    }
}

fn report(object: Object) -> ObjectReport {
    inspect(&OpenObject::new(Arc::new(object)), &Bare(kernel_btf())).unwrap()
}

#[test]
fn needs_are_listed_with_what_is_missing() {
    let r = report(full_object());
    let missing = r.missing.join("\n");
    for name in ["kfunc_add", "per_cpu_counter", "CONFIG_HZ", "LINUX_KERNEL_VERSION"] {
        assert!(missing.contains(name), "{name} not in {missing}");
    }
    assert!(!missing.contains("kfunc_absent"), "weak externs do not prevent loading");
    assert!(r.poisoned.iter().any(|p| p.starts_with("kfunc_absent")));
    let helpers: Vec<_> = r.helpers.iter().map(|h| (h.id, h.sites)).collect();
    assert_eq!(helpers, [(1, 1), (181, 1)]);
    let add = r.externs.iter().find(|e| e.name == "kfunc_add").unwrap();
    assert_eq!((add.class, add.weak, add.sites), (ExternClass::Kfunc, false, 1));
}

#[test]
fn tables_maps_and_programs_are_described() {
    let r = report(full_object());
    let first = r.tables.iter().find(|t| t.name == "first").unwrap();
    assert!(first.callbacks.contains(&("select".to_owned(), "my_select".to_owned())));
    assert!(first.settings.contains(&("timeout_ms".to_owned(), "5000".to_owned())));
    assert!(first.settings.contains(&("name".to_owned(), "\"first\"".to_owned())));
    assert_eq!(first.unknown, ["newer"]);
    let hash = r.maps.iter().find(|m| m.name == "hash").unwrap();
    assert_eq!(hash.type_name, "hash");
    assert!(hash.special.contains(&("kptr task_struct".to_owned(), 24)));
    let calls = r.programs.iter().find(|p| p.name == "calls").unwrap();
    assert!(calls.insns_reachable > calls.insns);
}

#[test]
fn kernel_fields_are_asked_for_once_each() {
    let r = report(core_object());
    let field =
        |what: &str, kind| r.fields.iter().find(|f| f.what == what && f.kind == kind).unwrap();
    assert!(field("task_struct.pid", RelocKind::FieldByteOffset).found);
    assert_eq!(field("task_struct.gone", RelocKind::FieldByteOffset).sites, 2);
    assert!(!field("task_struct.gone", RelocKind::FieldExists).found);
    // `poisoned` lists a missing field because programs load it. Relocations that only ask whether
    // the field exists add no entry.
    assert_eq!(r.poisoned.iter().filter(|p| *p == "task_struct.gone").count(), 1);
    assert!(r.poisoned.contains(&"enum state::ST_GONE".to_owned()));
    assert!(!r.poisoned.iter().any(|p| p == "struct absent"));
    assert!(r.missing.is_empty(), "{:?}", r.missing);
}
