// SPDX-License-Identifier: GPL-2.0-only
//! Object files: for any bytes, parsing, inspecting, linking and loading end with a value or a
//! typed error.
//!
//! Promises: no panic, no endless loop, no memory out of proportion (libFuzzer's limits), and every
//! function of a loaded object lies within its code.

use std::cell::OnceCell;
use std::sync::Arc;

use scxlab_bpf::kfunc::KfuncId;
use scxlab_bpf::map::map_type;
use scxlab_bpf::mem::ARENA_WINDOW;
use scxlab_bpf::vm::Config;
use scxlab_bpf::vm::bare::BareHost;
use scxlab_loader::btf::{Btf, BtfKind};
use scxlab_loader::inspect::inspect;
use scxlab_loader::link::{KconfigValue, KsymVar, OpenObject, Target};
use scxlab_loader::object::Object;

thread_local! {
    static KERNEL: OnceCell<Types> = const { OnceCell::new() };
}

pub fn check(data: &[u8]) {
    KERNEL.with(|kernel| load(data, kernel.get_or_init(Types::of_the_kernel)));
}

fn load(data: &[u8], kernel: &Types) {
    let Ok(object) = Object::parse(data, "fuzz") else {
        return;
    };
    let mut open = OpenObject::new(Arc::new(object));
    open.globals.fill_enum_globals("__", &kernel.0);
    // Give maps without a size one element, as frontends size their maps before the load.
    for map in open.object().maps.clone() {
        if map.max_entries == 0 && matches!(map.map_type, map_type::ARRAY | map_type::HASH) {
            open.set_max_entries(&map.name, 1);
        }
    }
    let _report = inspect(&open, kernel).map(|report| format!("{report:?}"));
    for knob in open.globals.knobs() {
        let _refused = open.globals.set(&knob.name, &knob.default);
    }
    let config = Config { nr_cpus: 2, mem_size: 2 * ARENA_WINDOW, ..Config::default() };
    let mut host = BareHost::new(config).expect("8 GiB of address space");
    let Ok(loaded) = open.load(&mut host, kernel) else {
        return;
    };
    let image = host.vm.instance(loaded.instance).expect("just loaded").image().clone();
    for func in &image.funcs {
        let end = u64::from(func.start) + u64::from(func.len);
        assert!(end <= image.code.len() as u64, "{} ends at {end}", func.name);
    }
}

/// A kernel of which only the types are known: every function in them may be called, and every
/// variable exists.
struct Types(Btf);

impl Types {
    fn of_the_kernel() -> Types {
        Types(Btf::parse(scxlab_kernel::abi::KERNEL_BTF).expect("our own BTF"))
    }
}

impl Target for Types {
    fn btf(&self) -> &Btf {
        &self.0
    }

    fn kfunc(&self, name: &str) -> Option<KfuncId> {
        self.0.find(name, BtfKind::Func).map(|id| KfuncId(id.0))
    }

    fn ksym_var(&self, name: &str) -> Option<KsymVar> {
        let var = self.0.find(name, BtfKind::Var)?;
        Some(KsymVar { addr: 0, btf_id: var.0, per_cpu: true })
    }

    fn kconfig(&self, name: &str) -> Option<KconfigValue> {
        match name {
            "LINUX_KERNEL_VERSION" => Some(KconfigValue::Int(0x70304)),
            "CONFIG_NR_CPUS" => Some(KconfigValue::Int(512)),
            "CONFIG_HZ" => Some(KconfigValue::Int(1000)),
            _ => None,
        }
    }
}
