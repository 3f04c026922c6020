// SPDX-License-Identifier: GPL-2.0-only
//! Parses objects, links them against a kernel's types and loads them into a virtual machine, without
//! running them: `cargo run -p scxlab-bpf --example link -- vmlinux a.bpf.o b.bpf.o`.
//!
//! The kernel is any ELF file with a `.BTF` section. Every function in it counts as callable, every
//! variable as present.

use std::process::ExitCode;
use std::sync::Arc;

use scxlab_bpf::btf::{Btf, Kind};
use scxlab_bpf::fault::Fault;
use scxlab_bpf::inspect::inspect;
use scxlab_bpf::kfunc::KfuncId;
use scxlab_bpf::link::{KconfigValue, KsymVar, OpenObject, Target};
use scxlab_bpf::map::map_type;
use scxlab_bpf::object::{Object, btf_of_elf};
use scxlab_bpf::timer::TimerId;
use scxlab_bpf::vm::{CallSite, Config, Host, KptrKind, Storage, Vm};

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let Some(kernel) = args.next() else {
        eprintln!("usage: link KERNEL OBJECT...");
        return ExitCode::from(2);
    };
    let target =
        match read(&kernel).and_then(|b| btf_of_elf(&b, &kernel).map_err(|e| e.to_string())) {
            Ok(btf) => Types(btf),
            Err(e) => {
                eprintln!("{e}");
                return ExitCode::from(2);
            }
        };
    let (mut good, mut all) = (0, 0);
    for path in args {
        all += 1;
        match link(&path, &target) {
            Ok(text) => {
                good += 1;
                println!("{text}");
            }
            Err(e) => println!("FAILED {path}: {e}"),
        }
    }
    println!("{good} of {all} linked");
    if good == all {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn read(path: &str) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|e| format!("{path}: {e}"))
}

fn link(path: &str, target: &Types) -> Result<String, String> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let object = Object::parse(&read(path)?, name).map_err(|e| e.to_string())?;
    let mut open = OpenObject::new(Arc::new(object));
    let filled = open.globals.fill_enum_globals("__", &target.0);
    // Some frontends size maps before load; here any size will do.
    for map in open.object().maps.clone() {
        if map.max_entries == 0 && matches!(map.map_type, map_type::ARRAY | map_type::HASH) {
            open.set_max_entries(&map.name, 1);
        }
    }
    let report = inspect(&open, target).map_err(|e| e.to_string())?;
    let mut host = Idle(Vm::new(Config::default()).map_err(|e| e.to_string())?);
    let loaded = open.load(&mut host, target).map_err(|e| e.to_string())?;
    let image = host
        .0
        .instance(loaded.instance)
        .map(|i| i.image.code.len())
        .unwrap_or(0);
    Ok(format!(
        "{name}: {} programs, {image} slots, {} maps, {} knobs, {filled} constants, poisoned: {:?}",
        loaded.programs().count(),
        loaded.maps.len(),
        report.knobs.len(),
        report.poisoned,
    ))
}

/// A kernel of which only the types are known.
struct Types(Btf);

impl Target for Types {
    fn btf(&self) -> &Btf {
        &self.0
    }

    fn kfunc(&self, name: &str) -> Option<KfuncId> {
        self.0.find(name, Kind::Func).map(|id| KfuncId(id.0))
    }

    fn ksym_var(&self, name: &str) -> Option<KsymVar> {
        let var = self.0.find(name, Kind::Var)?;
        Some(KsymVar {
            addr: 0,
            btf_id: var.0,
            per_cpu: true,
        })
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

/// A host that nothing is ever asked of, because nothing runs.
struct Idle(Vm);

impl Host for Idle {
    fn vm(&mut self) -> &mut Vm {
        &mut self.0
    }

    fn cpu(&mut self) -> u32 {
        0
    }

    fn ktime_ns(&mut self) -> u64 {
        0
    }

    fn prandom_u32(&mut self) -> u32 {
        0
    }

    fn current_task(&mut self) -> u64 {
        0
    }

    fn kfunc(&mut self, _: CallSite, id: KfuncId, _: [u64; 5]) -> Result<u64, Fault> {
        Err(Fault::unmodelled(format!("kfunc {}", id.0)))
    }

    fn helper(&mut self, _: CallSite, id: u32, _: [u64; 5]) -> Result<u64, Fault> {
        Err(Fault::unmodelled(format!("helper {id}")))
    }

    fn store_to_kernel(&mut self, _: u64, _: u32) -> bool {
        false
    }

    fn printk(&mut self, _: &str) {}
    fn lock(&mut self, _: u64) {}
    fn unlock(&mut self, _: u64) {}
    fn timer_arm(&mut self, _: TimerId, _: u64, _: Option<u32>) {}
    fn timer_cancel(&mut self, _: TimerId) {}
    fn kptr_release(&mut self, _: KptrKind, _: u64) {}

    fn owner_alive(&self, _: Storage, _: u64) -> bool {
        false
    }
}
