// SPDX-License-Identifier: GPL-2.0-only
//! Tests that link objects against the types of `testdata/kernel.c` and run their programs. A
//! program returns the values of its relocations.

mod host;

use std::sync::Arc;

use host::{KFUNCS, TestKernel};

use super::code::POISON;
use super::*;
use crate::object::tests::{core_object, full_object, testdata};
use crate::object::{RelocTarget, code};
use scxlab_bpf::fault::Fault;
use scxlab_bpf::insn::{self, Op, RawInsn};
use scxlab_bpf::vm;

/// Opens an object, lets `prepare` edit it, and loads it.
fn load(object: Object, prepare: impl Fn(&mut OpenObject)) -> (TestKernel, Loaded) {
    let mut kernel = TestKernel::new();
    let mut open = OpenObject::new(Arc::new(object));
    prepare(&mut open);
    let target = kernel.target();
    let loaded = open.load(&mut kernel, &*target).unwrap_or_else(|e| panic!("{e}"));
    (kernel, loaded)
}

fn run(kernel: &mut TestKernel, loaded: &Loaded, program: &str, ctx: u64) -> Result<u64, Fault> {
    let func = loaded.func(program).unwrap_or_else(|| panic!("{program} is not loaded"));
    vm::call_raw(kernel, loaded.instance, func, [ctx, 0, 0, 0, 0])
}

fn refused(object: Object, prepare: impl Fn(&mut OpenObject)) -> String {
    let mut kernel = TestKernel::new();
    let mut open = OpenObject::new(Arc::new(object));
    prepare(&mut open);
    let target = kernel.target();
    let Err(error) = open.load(&mut kernel, &*target) else { panic!("it loaded") };
    assert_eq!(kernel.vm().instances().count(), 0, "something of it remains");
    error.to_string()
}

#[test]
fn functions_callbacks_and_kfuncs_are_reached() {
    let (mut k, loaded) = load(full_object(), |_| {});
    let mut check = |program: &str, expected: u64| {
        assert_eq!(run(&mut k, &loaded, program, 0), Ok(expected), "{program}");
    };
    check("calls", 8 * 100 + 15);
    check("with_callback", 10);
    // The program declares two flavours of the weak kernel function `kfunc_v2`. The one that has
    // the kernel's prototype is bound, and its call adds 600. The other one must count as absent.
    check("kfuncs", 34 + 600);
    check("inner_found", 1);
}

#[test]
fn calls_know_what_kernel_functions_take() {
    let (mut k, loaded) = load(full_object(), |_| {});
    let image = k.vm().instance(loaded.instance).expect("instance").image().clone();
    let add = KFUNCS.iter().position(|name| *name == "kfunc_add").expect("a kfunc") as i64;
    let calls: Vec<_> = image.code.iter().filter(|insn| insn.op == Op::CallKfunc).collect();
    let takes = |id: i64| calls.iter().filter(move |call| call.imm == id).map(|call| 5 - call.dst);
    assert!(takes(add).count() > 0 && takes(add).all(|nr| nr == 2));
}

/// The linker must refuse a call of a kernel function that has no relocation. Otherwise the number
/// in the call would select from the simulator's table of kernel functions, or lie past the end of
/// the table.
#[test]
fn a_kernel_function_that_no_relocation_names_is_refused() {
    for number in [0, 3, 1 << 20, i32::MIN, POISON as i32, -1] {
        let mut object = full_object();
        let calls = object.functions.iter().position(|f| f.name == "calls").expect("calls");
        let function = &mut object.functions[calls];
        function.insns[0] = RawInsn::new(code::CALL, 0, insn::call::KFUNC, 0, number);
        function.relocs.retain(|reloc| reloc.insn != 0);
        let refused = refused(object, |_| {});
        assert!(refused.contains("that no relocation names"), "{number}: {refused}");
        assert!(refused.contains("insn 0"), "{refused}");
    }
}

#[test]
fn what_the_kernel_lacks_faults_only_when_it_is_reached() {
    let (mut k, loaded) = load(full_object(), |_| {});
    let fault = run(&mut k, &loaded, "insists", 0).unwrap_err().to_string();
    assert!(fault.contains("kfunc_absent"), "{fault}");
    let (mut k, loaded) = load(core_object(), |_| {});
    assert_eq!(run(&mut k, &loaded, "guarded", 0), Ok(42));
    for (program, expected) in [
        ("load_gone", "task_struct.gone, which the kernel lacks"),
        ("load_wider_signed", "task_struct.grown, whose size the kernel has changed"),
        ("enum_value_gone", "enum state::ST_GONE, which the kernel lacks"),
    ] {
        let fault = run(&mut k, &loaded, program, 0).unwrap_err();
        assert!(fault.to_string().contains(expected), "{program}: {fault}");
        assert!(format!("{fault:#}").contains("core.bpf.c"), "no source line: {fault:#}");
    }
}

#[test]
fn loads_go_to_the_kernels_offsets() {
    let (mut k, loaded) = load(core_object(), |_| {});
    let task = k.vm.mem.alloc(256, 8).unwrap();
    for (at, byte) in k.vm.mem.bytes_mut(task, 256).unwrap().iter_mut().enumerate() {
        *byte = at as u8;
    }
    let word = |at: u64| u64::from_le_bytes(std::array::from_fn(|i| (at + i as u64) as u8));
    for (program, expected) in [
        ("load_moved", 0x0b0a_0908),
        ("load_anonymous", 0x0f0e_0d0c),
        ("load_nested", word(56)),
        ("load_element", 37),
        ("load_pointer_element", word(88)),
        ("load_flexible", word(136)),
        ("load_wider", word(16)),
        ("load_flavoured", word(0)),
    ] {
        assert_eq!(run(&mut k, &loaded, program, task), Ok(expected), "{program}");
        // A load through a NULL kernel pointer reads 0.
        assert_eq!(run(&mut k, &loaded, program, 0), Ok(0), "{program} of NULL");
    }
    run(&mut k, &loaded, "store_moved", task).unwrap();
    assert_eq!(k.vm.mem.read::<u32>(task + 8), Ok(77));
}

#[test]
fn globals_are_placed_filled_and_protected() {
    let kernel_btf = crate::object::tests::kernel_btf();
    let (mut k, loaded) = load(full_object(), |open| {
        open.globals.set("slice_ns", "1000").unwrap();
        open.globals.set("table[3]", "40").unwrap();
        open.globals.fill_enum_globals("__", &kernel_btf);
        open.globals.resize_array("resizable", 100).unwrap();
        open.globals.set("resizable[99]", "77").unwrap();
    });
    let mut check = |program: &str, expected: u64| {
        assert_eq!(run(&mut k, &loaded, program, 0), Ok(expected), "{program}");
    };
    check("knobs", 1000 + 1 - 3 + 80 - 7 + 5);
    check("table_sum", 46);
    check("dfl", 20_000_000);
    check("data", 4 + 16);
    check("last_huge", 3);
    check("resized", 77);
    check("arena_get", 1234);
    let fault = run(&mut k, &loaded, "write_rodata", 0).unwrap_err();
    assert!(fault.to_string().contains("read-only"), "{fault}");
    assert_eq!(loaded.read_global(&k.vm, "counter").as_deref(), Ok("16"));
    loaded.write_global(&mut k.vm, "counter", "100").unwrap();
    assert_eq!(run(&mut k, &loaded, "data", 0), Ok(20 + 105));
    assert_eq!(loaded.read_global(&k.vm, "cfg.low").as_deref(), Ok("3"));
    assert_eq!(loaded.read_global(&k.vm, "cfg.high").as_deref(), Ok("1000"));
    let frozen = loaded.write_global(&mut k.vm, "slice_ns", "5");
    assert!(matches!(frozen, Err(GlobalError::Frozen { .. })), "{frozen:?}");
    let arena = loaded.global("arena_var").unwrap();
    let area = k.vm.map_area(loaded.map("arena").unwrap()).unwrap();
    assert_eq!(arena.addr, area.0 + 99 * 4096, "arena variables are in the last page");
}

#[test]
fn kernel_variables_and_configuration_are_delivered() {
    let (mut k, loaded) = load(full_object(), |_| {});
    let mut check = |program: &str, expected: u64| {
        assert_eq!(run(&mut k, &loaded, program, 0), Ok(expected), "{program}");
    };
    check("ksym_addr", 0x1234);
    check("ksym_absent", 0);
    check("kconfigs", 0x70304 << 32 | 1 << 16 | u64::from(b'e'));
    check("hz", 1000);
}

#[test]
fn tables_are_matched_by_member_name() {
    let (_, loaded) = load(full_object(), |open| {
        let object = Arc::clone(open.object());
        let table = open.table_mut("first").unwrap();
        table.set(&object.btf, "timeout_ms", "1500").unwrap();
        table.set(&object.btf, "name", "renamed").unwrap();
        assert!(
            table.set(&object.btf, "timeout", "1").unwrap_err().to_string().contains("timeout_ms")
        );
        assert!(table.set(&object.btf, "select", "1").is_err());
        table.set_callback("enqueue", None).unwrap();
    });
    let first = loaded.struct_ops.iter().find(|t| t.name == "first").unwrap();
    assert_eq!(first.type_name, "ops");
    assert!(first.link);
    assert_eq!((first.u64("flags"), first.u64("timeout_ms")), (6, 1500));
    assert_eq!(first.str("name"), "renamed");
    assert_eq!(first.callback("select"), loaded.func("my_select"));
    assert_eq!(first.callback("init"), loaded.func("my_init"));
    assert_eq!(first.callback("enqueue"), None);
    assert!(first.member("newer").is_none(), "the kernel does not know it");
    // Programs that no table uses any more are not loaded, and neither are programs of an optional
    // section (`?` in its name).
    for program in ["my_enqueue", "for_missing_member", "optional_prog", "on_thing"] {
        assert_eq!(loaded.func(program), None, "{program}");
    }
    assert!(loaded.func("on_switch").is_some());
    let second = loaded.struct_ops.iter().find(|t| t.name == "second").unwrap();
    assert_eq!(second.callback("select"), loaded.func("my_select"));
}

#[test]
fn programs_can_be_asked_for_and_left_out() {
    let (_, loaded) = load(full_object(), |open| {
        assert!(open.set_autoload("on_thing", true));
        assert!(open.set_autoload("insists", false));
        assert!(!open.set_autoload("no_such", true));
    });
    assert!(loaded.func("on_thing").is_some());
    assert_eq!(loaded.func("insists"), None);
}

#[test]
fn a_setting_that_the_kernel_lacks_must_be_unset() {
    let text = refused(full_object(), |open| {
        let object = Arc::clone(open.object());
        open.table_mut("first").unwrap().set(&object.btf, "newer_flag", "1").unwrap();
    });
    assert!(text.contains("no member `newer_flag`, but it is set"), "{text}");
}

/// As libbpf does, which takes such a program for one that was forgotten in the table.
#[test]
fn a_struct_ops_program_must_be_in_a_table() {
    let object = || {
        let mut object = full_object();
        for table in &mut object.struct_ops {
            table.members.retain(|member| member.name != "init");
        }
        object
    };
    let text = refused(object(), |_| {});
    assert!(text.contains("program `my_init`") && text.contains("no table names"), "{text}");
    let (_, loaded) = load(object(), |open| assert!(open.set_autoload("my_init", false)));
    assert_eq!(loaded.func("my_init"), None);
}

#[test]
fn strong_externs_must_exist() {
    let without = |hide: &'static str| {
        let mut kernel = TestKernel::new();
        kernel.hide(hide);
        let open = OpenObject::new(Arc::new(full_object()));
        let target = kernel.target();
        open.load(&mut kernel, &*target).map(|_| ()).map_err(|e| e.to_string())
    };
    for name in ["kfunc_add", "per_cpu_counter", "CONFIG_HZ", "LINUX_KERNEL_VERSION"] {
        let text = without(name).unwrap_err();
        assert!(text.contains(&format!("`{name}`")), "{text}");
    }
    for name in ["kfunc_v2", "clock_var", "CONFIG_ABSENT"] {
        assert_eq!(without(name), Ok(()), "{name} is weak");
    }
}

#[test]
fn maps_get_their_definitions() {
    use scxlab_bpf::map::SpecialKind;
    use scxlab_bpf::vm::KptrKind;
    let (k, loaded) = load(full_object(), |open| {
        assert!(open.set_max_entries("hash", 7));
        assert!(!open.set_max_entries("no_such", 7));
    });
    let def = |name: &str| k.vm.maps.get(loaded.map(name).unwrap()).unwrap().def.clone();
    assert_eq!(def("hash").max_entries, 7);
    assert_eq!(def("ring").max_entries, 8192, "rounded up to a power of two of pages");
    let special = def("hash").special;
    let at = |offset: u32| special.iter().find(|f| f.offset == offset).unwrap().kind;
    let task = k.target().btf().find("task_struct", crate::btf::BtfKind::Struct).unwrap();
    let node = loaded.object.btf.find("node", crate::btf::BtfKind::Struct).unwrap();
    assert_eq!(at(24), SpecialKind::Kptr(KptrKind::Kernel(task.0)));
    assert_eq!(at(32), SpecialKind::Untrusted);
    assert_eq!(at(56), SpecialKind::Kptr(KptrKind::Local(node.0)));
    assert_eq!(at(64), SpecialKind::ListHead { local_type: node.0, node_offset: 48 });
    let local = &k.vm.instance(loaded.instance).unwrap().local_types[&node.0];
    assert_eq!((local.name.as_str(), local.size), ("node", 72));
}

#[test]
fn conflicting_candidates_are_refused_with_their_place() {
    let object = Object::parse(&testdata("torn.bpf.o"), "torn.bpf.o").unwrap();
    let text = refused(object, |_| {});
    assert!(text.contains("object \"torn.bpf.o\": section \"syscall\", insn 0: torn.b"), "{text}");
}

#[test]
fn an_address_past_its_section_is_refused() {
    let mut object = full_object();
    let f = object.function("data").unwrap();
    let wild = object.functions[f].relocs.iter_mut().find_map(|r| match &mut r.target {
        RelocTarget::Data { offset, .. } => Some(offset),
        _ => None,
    });
    *wild.unwrap() = 1 << 40;
    let text = refused(object, |_| {});
    assert!(text.contains("section \"syscall\""), "{text}");
    assert!(text.contains("past the end of its data section"), "{text}");
}

/// A damaged object that still parses must either load or end in an error, but never in a panic.
#[test]
fn damaged_objects_are_survived() {
    let mut state: u64 = 88_172_645_463_325_252;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let mut kernel = TestKernel::new();
    let target = kernel.target();
    let (mut loaded, mut refused) = (0, 0);
    for name in ["core.bpf.o", "full.bpf.o"] {
        let bytes = testdata(name);
        for _ in 0..800 {
            let mut bad = bytes.clone();
            for _ in 0..1 + random(3) {
                let at = random(bad.len());
                bad[at] ^= 1 << random(8);
            }
            let Ok(object) = Object::parse(&bad, name) else {
                continue;
            };
            match OpenObject::new(Arc::new(object)).load(&mut kernel, &*target) {
                Ok(done) => {
                    loaded += 1;
                    vm::remove_instance(&mut kernel, done.instance);
                }
                Err(_) => refused += 1,
            }
        }
    }
    assert!(loaded > 50 && refused > 10, "{loaded} loaded, {refused} refused");
}
