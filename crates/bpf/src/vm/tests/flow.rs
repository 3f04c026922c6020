// SPDX-License-Identifier: GPL-2.0-only
//! Tests of calls, limits, instruction counts, fault locations and nesting.

use proptest::prelude::*;

use super::*;
use crate::insn::{RawInsn, decode};

#[test]
fn calls_keep_callee_saved_registers_and_frames() {
    let text = "\
        func main:
        r6 = 6
        r9 = 9
        *(u64 *)(r10 - 8) = 1
        r1 = 40
        call add_two
        r1 = *(u64 *)(r10 - 8)
        r0 += r1
        r0 += r6
        r0 += r9
        exit
        func add_two:
        r6 = 100
        r9 = 100
        *(u64 *)(r10 - 8) = 1000
        r0 = r1
        r0 += 2
        exit";
    assert_eq!(exec(text, &[]), Ok(42 + 1 + 6 + 9));
}

#[test]
fn functions_are_called_by_address() {
    let text = "func main:\nr2 = leaf ll\ncallx r2\nexit\nfunc leaf:\nr0 = 5\nexit";
    assert_eq!(exec(text, &[]), Ok(5));
    let text = "func main:\ncallx r1\nexit";
    assert_eq!(fault_kind(text, &[0x1234]), FaultKind::BadCall { addr: 0x1234 });
}

/// Generates a chain of `len` functions, each calling the next; the last returns `len`.
fn chain(len: usize) -> String {
    let link = |at: usize| format!("func f{at}:\nr0 = *(u64 *)(r10 - 8)\ncall f{}\nexit\n", at + 1);
    let all: String = (1..len).map(link).collect();
    format!("{all}func f{len}:\n*(u64 *)(r10 - 512) = 7\nr0 = {len}\nexit")
}

#[test]
fn a_chain_of_calls_has_room_in_eight_frames() {
    assert_eq!(exec(&chain(8), &[]), Ok(8));
    let (mut h, instance) = host(&chain(9));
    // With the JIT, the run from `f2` on, which must succeed, compiles all functions but `f1`.
    // Their code must not skip the depth check when `f1` calls them.
    assert_eq!(h.run(instance, "f2", [0; 5]), Ok(9));
    let fault = h.run(instance, "f1", [0; 5]).expect_err("too deep");
    assert_eq!(fault.kind(), &FaultKind::CallDepth { max: 8 });
    let places: Vec<_> = fault.0.backtrace.iter().map(|place| &*place.func_name).collect();
    assert_eq!(places, ["f8", "f7", "f6", "f5", "f4", "f3", "f2", "f1"]);
}

#[test]
fn recursion_ends_at_eight_frames() {
    let text = "func main:\nif r1 == 0 goto out\nr1 -= 1\ncall main\nout:\nr0 = r1\nexit";
    assert_eq!(exec(text, &[7]), Ok(0));
    let fault = exec(text, &[8]).expect_err("too deep");
    assert_eq!(fault.kind(), &FaultKind::CallDepth { max: 8 });
    assert_eq!(fault.0.backtrace.len(), 8);
    assert!(fault.0.backtrace.iter().all(|place| place.insn == 2), "{fault:#}");
}

#[test]
fn instructions_are_counted_exactly() {
    for (text, count) in [
        ("exit", 1),
        ("r1 = 1 ll\nexit", 2),
        ("r1 = 10\nloop:\nr1 -= 1\nif r1 != 0 goto loop\nexit", 22),
        ("func main:\ncall f\ncall f\nexit\nfunc f:\nexit", 5),
        ("call 5\ncall 8\nexit", 3),
    ] {
        let (mut h, instance) = host(text);
        h.run(instance, "main", [0; 5]).expect(text);
        assert_eq!(h.vm.executed, count, "{text}");
        h.run(instance, "main", [0; 5]).expect(text);
        assert_eq!(h.vm.executed, 2 * count, "{text}, twice");
    }
}

#[test]
fn the_host_sees_a_current_counter() {
    let text = "r1 = 1\nr2 = 2\ncall $3\nr1 = 1\ncall $3\nexit";
    let (mut h, instance) = host(text);
    let fault = h.run(instance, "main", [0; 5]).expect_err("no such kfunc");
    assert_eq!((h.vm.executed, h.vm.kfunc_calls()), (3, 1));
    assert_eq!(fault.0.backtrace[0].insn, 2);
    h.kfuncs.push((KfuncId(3), 0));
    h.run(instance, "main", [0; 5]).expect("known now");
    assert_eq!((h.vm.executed, h.vm.kfunc_calls(), h.kfunc_calls.len()), (9, 3, 3));
}

#[test]
fn endless_programs_are_stopped() {
    for text in [
        "goto -1\nexit",
        "loop:\nr1 += 1\nif r1 != 0 goto loop\nexit",
        "func main:\nloop:\ncall f\ngoto loop\nfunc f:\nexit",
    ] {
        let (mut h, instance) = host(text);
        let fault = h.run(instance, "main", [0; 5]).expect_err(text);
        assert_eq!(fault.kind(), &FaultKind::InsnLimit { limit: 10_000 }, "{text}");
        assert!((10_000..10_010).contains(&h.vm.executed), "{text}: {}", h.vm.executed);
        assert_eq!(fault.0.backtrace[0].func_name, "main");
        assert!(h.run(instance, "main", [0; 5]).is_err(), "the limit is per invocation");
        assert!(h.vm.executed >= 20_000);
    }
}

#[test]
fn may_goto_leaves_after_its_budget() {
    let text = "r0 = 0\nloop:\nmay_goto out\nr0 += 1\ngoto loop\nout:\nexit";
    assert_eq!(exec(text, &[]), Ok(100));
    let nested = "func main:\nr6 = 0\ncall f\nr6 += r0\ncall f\nr6 += r0\nr0 = r6\nexit\n\
                  func f:\nr0 = 0\nloop:\nmay_goto out\nr0 += 1\ngoto loop\nout:\nexit";
    assert_eq!(exec(nested, &[]), Ok(200), "each frame has its own");
}

/// A `may_goto` jumps once its budget is spent. If it jumps to itself, the instruction limit must
/// end the endless loop.
#[test]
fn may_goto_to_itself_ends_at_the_limit() {
    let fault = fault_kind("loop:\nmay_goto loop\ngoto loop\nexit", &[]);
    assert_eq!(fault, FaultKind::InsnLimit { limit: 10_000 });
}

/// A callback without jumps and calls never checks the instruction limit itself. The limit must
/// still end the loop of the helper that calls it.
#[test]
fn a_straight_callback_ends_at_the_limit() {
    let text = "func main:\nr1 = 1000000\nr2 = body ll\nr3 = 0\nr4 = 0\ncall 181\nexit\n\
                func body:\nr0 = 0\nexit";
    let (mut h, instance) = host(text);
    let fault = h.run(instance, "main", [0; 5]).expect_err("ends");
    assert_eq!(fault.kind(), &FaultKind::InsnLimit { limit: 10_000 });
    assert!(h.vm.executed < 10_100, "{} instructions", h.vm.executed);
}

#[test]
fn struct_ops_get_an_array_of_arguments() {
    let (mut h, instance) = host("r0 = *(u64 *)(r1 + 16)\nr2 = *(u64 *)(r1 + 0)\nr0 += r2\nexit");
    assert_eq!(call(&mut h, instance, FuncId(0), &[1, 2, 40]), Ok(41));
}

#[test]
fn helpers_call_back_on_the_same_stack() {
    let text = "\
        func main:
        *(u64 *)(r10 - 8) = 0
        r1 = 10
        r2 = body ll
        r3 = r10
        r3 += -8
        r4 = 0
        call 181
        r1 = *(u64 *)(r10 - 8)
        r0 *= 1000
        r0 += r1
        exit
        func body:
        *(u64 *)(r10 - 8) = -1
        r3 = *(u64 *)(r2 + 0)
        r3 += r1
        *(u64 *)(r2 + 0) = r3
        r0 = 0
        if r1 < 4 goto out
        r0 = 1
        out:
        exit";
    assert_eq!(exec(text, &[]), Ok(5 * 1000 + 10));
    let deep = "func main:\nr1 = 1\nr2 = main ll\nr3 = 0\nr4 = 0\ncall 181\nexit";
    let fault = exec(deep, &[]).expect_err("callbacks count as frames");
    assert_eq!(fault.kind(), &FaultKind::CallDepth { max: 8 });
    assert_eq!(fault.0.backtrace.len(), 8);
}

#[test]
fn programs_nest_on_stacks_of_their_own() {
    let outer = "func main:\n*(u64 *)(r10 - 8) = 5\nr1 = 37\ncall $1\nr1 = *(u64 *)(r10 - 8)\nr0 += r1\nexit";
    let inner = "func main:\nr0 = *(u64 *)(r1 + 0)\n*(u64 *)(r10 - 8) = 1000\nexit";
    let (mut h, first) = host(outer);
    let second = h.vm.add_instance("second");
    h.install_text(second, inner, Default::default()).expect("program");
    h.nested = Some((KfuncId(1), second, FuncId(0)));
    assert_eq!(h.run(first, "main", [0; 5]), Ok(42));
    h.nested = Some((KfuncId(1), first, FuncId(0)));
    let fault = h.run(first, "main", [0; 5]).expect_err("endless nesting");
    assert_eq!(fault.kind(), &FaultKind::Nesting { max: 8 });
    assert_eq!(fault.0.backtrace.len(), 8);
    assert!(!h.vm.running(), "all levels are left");
    h.nested = Some((KfuncId(1), second, FuncId(0)));
    h.install_text(second, "goto -1\nexit", Default::default()).expect("program");
    let fault = h.run(first, "main", [0; 5]).expect_err("the limit is the outermost's");
    assert_eq!(fault.kind(), &FaultKind::InsnLimit { limit: 10_000 });
    assert_eq!(fault.0.backtrace[1].object, "test");
}

#[test]
fn tail_calls_replace_the_program() {
    let text = "\
        func main:
        r3 = r1
        r6 = r2
        r1 = r2
        r2 = r2
        call 12
        r0 = 1
        exit
        func other:
        r0 = 77
        exit
        func forever:
        r2 = r6
        r3 = 2
        call 12
        r0 = 33
        exit";
    let (mut h, instance) = host(text);
    let def = MapDef {
        name: "progs".into(),
        map_type: map_type::PROG_ARRAY,
        key_size: 4,
        value_size: 4,
        max_entries: 4,
        ..MapDef::default()
    };
    let progs = h.vm.create_map(instance, &def).expect("map");
    h.vm.prog_array_set(progs, 1, FuncId(1)).expect("set");
    h.vm.prog_array_set(progs, 2, FuncId(2)).expect("set");
    assert_eq!(h.vm.prog_array_set(progs, 4, FuncId(2)), Err(crate::errno::E2BIG));
    let addr = h.vm.map(progs).expect("map").addr;
    assert_eq!(h.run(instance, "main", [1, addr, 0, 0, 0]), Ok(77));
    assert_eq!(h.run(instance, "main", [0, addr, 0, 0, 0]), Ok(1), "empty slot: go on");
    assert_eq!(h.run(instance, "main", [9, addr, 0, 0, 0]), Ok(1), "outside: go on");
    assert_eq!(h.run(instance, "main", [2, addr, 0, 0, 0]), Ok(33), "33 tail calls, then go on");
    assert!(h.run(instance, "main", [2, 5, 0, 0, 0]).is_err());
}

#[test]
fn a_fault_says_where() {
    let text =
        "func main:\nr6 = r1\ncall inner\nexit\nfunc inner:\nr7 = 7\nr0 = *(u64 *)(r7 + 8)\nexit";
    let (mut h, instance) = host(text);
    let mut image = (*h.vm.instance(instance).expect("instance").image).clone();
    let line = |pc, line, text: &str| Line { pc, file: "x.bpf.c".into(), line, text: text.into() };
    image.lines =
        vec![line(0, 10, "int main()"), line(3, 20, "  return p->next;"), line(5, 21, "}")];
    h.vm.install(instance, InstanceParts { image: image.into(), ..InstanceParts::default() });
    let fault = h.run(instance, "main", [3, 0, 0, 0, 0]).expect_err("NULL pointer");
    assert_eq!(
        fault.to_string(),
        "load of 8 bytes at 0xf: NULL pointer, in inner at instruction 1 (x.bpf.c:20: return p->next;)"
    );
    let report = format!("{fault:#}");
    assert!(report.contains("#0 inner [test .text] +1: r0 = *(u64 *)(r7 + 0x8)"), "{report}");
    assert!(report.contains("#1 main [test .text] +1: call inner"), "{report}");
    assert_eq!((fault.0.regs[6], fault.0.regs[7]), (None, Some(7)), "r6 is read no more");
}

#[test]
fn helpers_that_nobody_has_stop_the_run_by_name() {
    let fault = fault_kind("call 51\nexit", &[]);
    assert_eq!(fault, FaultKind::Unmodelled { what: "helper bpf_redirect_map (51)".into() });
}

#[test]
fn jiffies_start_before_the_wrap() {
    let (mut h, _) = host("exit");
    h.vm.hz = 250;
    assert_eq!(h.vm.jiffies64(0), 0xffff_ffff - 75_000 + 1);
    assert_eq!(h.vm.jiffies64(4_000_000), 0xffff_ffff - 75_000 + 2);
    assert_eq!(h.vm.jiffies64(300_000_000_000), 1 << 32);
}

#[test]
fn same_program_same_addresses() {
    let run = || {
        let (mut h, instance) = host("r0 = r10\nexit");
        let def = MapDef {
            name: "a".into(),
            map_type: map_type::ARRAY,
            key_size: 4,
            value_size: 100,
            max_entries: 10,
            ..MapDef::default()
        };
        let map = h.vm.create_map(instance, &def).expect("map");
        let stack = h.run(instance, "main", [0; 5]).expect("runs");
        (stack, h.vm.map_area(map).expect("area"), h.vm.map(map).expect("map").addr)
    };
    assert_eq!(run(), run());
}

/// Generates slots that are valid more often than random bytes.
fn slot() -> impl Strategy<Value = RawInsn> {
    let codes = vec![
        0x07, 0x0f, 0x17, 0x27, 0x2f, 0x37, 0x3f, 0x47, 0x57, 0x67, 0x6f, 0x77, 0x9f, 0xa7, 0xb7,
        0xbf, 0xc7, 0xcf, 0x04, 0x0c, 0x3c, 0x9c, 0xb4, 0xbc, 0xd4, 0xd7, 0xdc, 0x61, 0x69, 0x71,
        0x79, 0x81, 0x62, 0x6a, 0x72, 0x7a, 0x63, 0x6b, 0x73, 0x7b, 0xdb, 0xc3, 0x05, 0x06, 0x15,
        0x1d, 0x25, 0x2d, 0x55, 0x5d, 0xa5, 0xe5, 0x16, 0x1e, 0x85, 0x8d, 0x95,
    ];
    let imm = prop_oneof![Just(0), Just(1), 0..220i32, any::<i32>()];
    (prop::sample::select(codes), 0..11u8, 0..11u8, -4..12i16, imm)
        .prop_map(|(code, dst, src, off, imm)| RawInsn::new(code, dst, src, off, imm))
}

/// Clears fields that an instruction must not use, so that most programs decode.
fn tidy(mut raw: RawInsn) -> RawInsn {
    let class = raw.code & 7;
    let register = raw.code & 8 != 0;
    match class {
        1 => raw.imm = 0,
        3 if raw.code & 0xe0 == 0x60 => raw.imm = 0,
        3 => raw.imm &= 0xf1,
        2 => raw.regs &= 0xf,
        4 | 7 => {
            raw.off = 0;
            if register { raw.imm = 0 } else { raw.regs &= 0xf }
        }
        _ if raw.code == 0x95 => raw = RawInsn::new(0x95, 0, 0, 0, 0),
        _ if raw.code == 0x85 => raw = RawInsn::new(0x85, 0, raw.src() % 3, 0, raw.imm),
        _ if raw.code == 0x05 || raw.code == 0xe5 => raw = RawInsn::new(raw.code, 0, 0, raw.off, 0),
        _ if register => raw.imm = 0,
        _ => raw.regs &= 0xf,
    }
    raw
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any program returns or faults within its limits, with the same result in two runs.
    #[test]
    fn any_program_ends(slots in prop::collection::vec(slot(), 1..40), args in any::<[u64; 5]>()) {
        let mut raw: Vec<RawInsn> = slots.into_iter().map(tidy).collect();
        raw.push(RawInsn::new(0x95, 0, 0, 0, 0));
        let func = Func { name: "main".into(), len: raw.len() as u32, ..Func::default() };
        let Ok(code) = decode(&raw, std::slice::from_ref(&func), &[]) else { return Ok(()) };
        let image = Image { name: "any".into(), code, funcs: vec![func], ..Image::default() };
        let run = || {
            let (mut h, instance) = host("exit");
            let def = MapDef { name: "a".into(), map_type: map_type::HASH, key_size: 8, value_size: 16, max_entries: 3, ..MapDef::default() };
            let map = h.vm.create_map(instance, &def).expect("map");
            let page = h.vm.mem.alloc_region(PAGE, Perm::ReadWrite).expect("page");
            h.vm.install(instance, InstanceParts { image: image.clone().into(), ..InstanceParts::default() });
            let map = h.vm.map(map).expect("map").addr;
            let got = h.run(instance, "main", [map, page, args[2], h.task, args[4]]);
            (got, h.vm.executed)
        };
        let (got, executed) = run();
        prop_assert!(executed <= 10_000 + 64);
        prop_assert_eq!(run(), (got, executed));
    }
}

/// The machine caches state of the instance that it ran last. The machine must not use this state
/// after the host calls another instance, installs other code, or removes the instance.
#[test]
fn each_call_runs_the_instance_that_it_names() {
    let (mut h, first) = host("func main:\nr0 = 1\nexit");
    let second = h.vm.add_instance("second");
    h.install_text(second, "func main:\nr0 = 2\nexit", Default::default()).expect("program");
    for _ in 0..3 {
        assert_eq!(h.run(first, "main", [0; 5]), Ok(1));
        assert_eq!(h.run(second, "main", [0; 5]), Ok(2));
    }
    h.install_text(second, "func main:\nr0 = 3\nexit", Default::default()).expect("program");
    assert_eq!(h.run(second, "main", [0; 5]), Ok(3));
    crate::vm::remove_instance(&mut h, second);
    let gone = crate::vm::call_raw(&mut h, second, FuncId(0), [0; 5]).expect_err("it is gone");
    assert!(gone.to_string().contains("no instance"), "{gone}");
    assert_eq!(h.run(first, "main", [0; 5]), Ok(1));
}

/// A kernel function must receive 0 in place of arguments that it does not take, whatever their
/// registers hold.
#[test]
fn kernel_functions_get_what_they_take() {
    let (mut h, instance) = host("func main:\ncall $7\nexit");
    let mut image = (**h.vm.instance(instance).expect("instance").image()).clone();
    image.code[0].dst = 3;
    let parts = InstanceParts { image: image.into(), ..InstanceParts::default() };
    h.vm.install(instance, parts);
    h.kfuncs.push((KfuncId(7), 5));
    assert_eq!(h.run(instance, "main", [1, 2, 3, 4, 5]), Ok(5));
    assert_eq!(h.kfunc_calls, [(KfuncId(7), [1, 2, 0, 0, 0])]);
}

/// A struct_ops program must read its arguments correctly wherever r1 points to, not only at their
/// usual address.
#[test]
fn operations_read_their_arguments_wherever_they_are() {
    let text = "func main:\nr0 = *(u64 *)(r1 + 8)\nr2 = *(u64 *)(r1 + 0)\nr0 -= r2\nexit";
    let (mut h, instance) = host(text);
    let mut image = (**h.vm.instance(instance).expect("instance").image()).clone();
    image.funcs[0].program = Some(ProgramKind::StructOps { sleepable: false });
    h.vm.install(instance, InstanceParts { image: image.into(), ..InstanceParts::default() });
    assert_eq!(crate::vm::call(&mut h, instance, FuncId(0), &[30, 72]), Ok(42));
    let page = h.vm.mem.alloc_region(PAGE, Perm::ReadWrite).expect("memory");
    h.vm.mem.write(page + 8, 9u64).expect("write");
    assert_eq!(h.run(instance, "main", [page, 0, 0, 0, 0]), Ok(9));
    let outside = h.run(instance, "main", [8, 0, 0, 0, 0]).expect_err("no memory");
    assert!(matches!(outside.kind(), FaultKind::Mem(_)), "{outside}");
}

/// The report must not contain r4: machine code does not keep a register that only an unreachable
/// path reads, and a report must not depend on the engine.
#[test]
fn a_fault_shows_no_register_that_only_an_impossible_way_reads() {
    let text = "func main:\nr8 = 0\nr0 = *(u64 *)(r8 + 0)\nif r8 != 0 goto never\nexit\nnever:\nr0 = r4\nexit";
    let fault = exec(text, &[1, 2, 3, 4, 5]).expect_err("NULL");
    assert_eq!((fault.0.regs[8], fault.0.regs[4]), (Some(0), None));
}

/// The instruction limit must stop a loop at its backward jump, whether machine code performs the
/// helper in the loop inline or not. Calls themselves do not look at the limit.
#[test]
fn the_limit_is_looked_at_once_per_loop() {
    for helper in [5, 8] {
        let text = format!(
            "func main:\nr6 = 9\nagain:\ncall {helper}\nr6 += -1\nif r6 != 0 goto again\n\
             call {helper}\nr0 = 7\nexit"
        );
        let (mut h, instance) = host(&text);
        assert_eq!(h.run(instance, "main", [0; 5]), Ok(7), "{helper}");
        // The eighth jump back, the last one, is instruction 25.
        for limit in [4, 5, 24, 25] {
            h.vm.limits.insns_per_call = limit;
            let fault = h.run(instance, "main", [0; 5]).expect_err("a jump back comes later");
            assert_eq!(*fault.kind(), FaultKind::InsnLimit { limit }, "{helper}");
            assert_eq!(fault.0.backtrace[0].insn, 3, "{helper}");
        }
        h.vm.limits.insns_per_call = 26;
        assert_eq!(h.run(instance, "main", [0; 5]), Ok(7), "{helper}");
    }
}
