// SPDX-License-Identifier: GPL-2.0-only
//! Tests of compilation itself. `vm/tests` checks that machine code agrees with the interpreter.

use super::*;
use crate::insn::asm::assemble;
use crate::kfunc::KfuncId;
use crate::mem::{PAGE, Perm};
use crate::vm::bare::BareHost;
use crate::vm::bare::trial::InMemory;
use crate::vm::tests::{host, host_on};
use crate::vm::{Config, InPlaceFuncs, InPlaceValues, InstanceId, InstanceParts};

const LOOP: &str = "func main:\nr6 = 10\nr7 = 0\nloop:\nr1 = r6\ncall twice\nr7 += r0\nr6 -= 1\nif r6 != 0 goto loop\n\
                    r0 = r7\nexit\nfunc twice:\nr0 = r1\nr0 += r1\nexit";

fn image(text: &str) -> Image {
    assemble(text).expect("text").image("test").expect("image")
}

fn compiled(h: &BareHost, instance: InstanceId) -> usize {
    h.vm.instance(instance).expect("instance").compiled()
}

/// A host with one program, which shares code through `codes`.
fn sharing(codes: &CodeCache, limits: Limits) -> (BareHost, InstanceId) {
    let mut h = BareHost::new(Config { limits, ..Config::default() }).expect("memory");
    let instance = h.vm.add_instance("test");
    let parts = InstanceParts {
        image: image(LOOP).into(),
        codes: codes.clone(),
        ..InstanceParts::default()
    };
    h.vm.install(instance, parts);
    (h, instance)
}

#[test]
fn functions_are_compiled_when_they_are_entered() {
    let (mut h, instance) = host(LOOP);
    assert_eq!(compiled(&h, instance), 0);
    assert_eq!(h.run(instance, "main", [0; 5]), Ok(110));
    assert_eq!(compiled(&h, instance), 2);
    let (mut h, instance) = host_on(Engine::Interp, LOOP);
    assert_eq!(h.run(instance, "main", [0; 5]), Ok(110));
    assert_eq!(compiled(&h, instance), 0);
}

/// With a thread of its own for the compiler, a program goes on meanwhile, and `keep` waits for all
/// functions that became due.
#[test]
fn a_thread_compiles_beside_the_interpreter() {
    let store = Arc::new(InMemory::default());
    let limits = Limits { compile_after: 20, ..Limits::default() };
    let codes = CodeCache::compiled_beside(store.clone());
    let (mut h, instance) = sharing(&codes, limits);
    (0..5).for_each(|_| assert_eq!(h.run(instance, "main", [0; 5]), Ok(110)));
    codes.keep();
    assert!(compiled(&h, instance) >= 1);
    (0..50).for_each(|_| assert_eq!(h.run(instance, "main", [0; 5]), Ok(110)));
    codes.keep();
    assert_eq!(compiled(&h, instance), 2);
    let (other, instance) = sharing(&CodeCache::kept_in(store), limits);
    assert_eq!(compiled(&other, instance), 2);
}

#[test]
fn functions_are_compiled_once_they_are_warm() {
    // `main` has 9 slots and `compile_after` is 20 instructions per slot, so the JIT compiles
    // `main` after 180 interpreted instructions. A run executes 84, so the first run must not lead
    // to compilation.
    let limits = Limits { compile_after: 20, ..Limits::default() };
    let (mut h, instance) = sharing(&CodeCache::default(), limits);
    let mut seen = Vec::new();
    for _ in 0..5 {
        assert_eq!(h.run(instance, "main", [0; 5]), Ok(110));
        seen.push(compiled(&h, instance));
    }
    // While the interpreter runs `main`, the instructions of `twice`, which `main` calls, count for
    // `main`. Instructions count for `twice` only once `main` is compiled, so the test does not
    // expect the JIT to have compiled both.
    assert_eq!((seen[0], seen[4] >= 1), (0, true), "{seen:?}");
}

/// A function that nothing has run stays as it is.
#[test]
fn what_was_used_can_be_compiled_early() {
    let codes = CodeCache::default();
    let (mut h, instance) = sharing(&codes, Limits::default());
    codes.compile_used();
    assert_eq!(compiled(&h, instance), 0);
    for functions in [1, 2] {
        assert_eq!(h.run(instance, "main", [0; 5]), Ok(110));
        codes.compile_used();
        assert_eq!(compiled(&h, instance), functions, "`main` first, then what it calls");
    }
}

#[test]
fn equal_code_is_compiled_once() {
    let codes = CodeCache::default();
    let limits = Limits { compile_after: 0, ..Limits::default() };
    let (mut first, instance) = sharing(&codes, limits);
    assert_eq!(first.run(instance, "main", [0; 5]), Ok(110));
    let (second, instance) = sharing(&codes, limits);
    assert_eq!(compiled(&second, instance), 2, "before it ran");
    let (other, instance) = sharing(&CodeCache::default(), limits);
    assert_eq!(compiled(&other, instance), 0);
}

/// Code that was kept runs without a compiler, and what is compiled later is added to it.
#[test]
fn kept_code_needs_no_compiler() {
    let store: Arc<InMemory> = Arc::default();
    // Only `main` becomes warm enough.
    let slow = Limits { compile_after: 20, ..Limits::default() };
    let fast = Limits { compile_after: 0, ..Limits::default() };
    let mut before = 0;
    for limits in [slow, fast, fast] {
        let codes = CodeCache::kept_in(store.clone());
        let (mut h, instance) = sharing(&codes, limits);
        assert_eq!(compiled(&h, instance), before, "before it ran");
        for _ in 0..5 {
            assert_eq!(h.run(instance, "main", [0; 5]), Ok(110));
        }
        assert_eq!(h.vm.executed, 5 * 84);
        before = compiled(&h, instance);
        codes.keep();
    }
    assert_eq!(before, 2);
}

#[test]
fn kept_code_is_used_only_if_it_is_whole_and_fits() {
    let limits = Limits { compile_after: 0, ..Limits::default() };
    let fill = |store: &Arc<InMemory>| {
        let codes = CodeCache::kept_in(store.clone());
        let (mut h, instance) = sharing(&codes, limits);
        assert_eq!(h.run(instance, "main", [0; 5]), Ok(110));
        codes.keep();
    };
    let known = |store: &Arc<InMemory>| {
        let (h, instance) = sharing(&CodeCache::kept_in(store.clone()), limits);
        compiled(&h, instance)
    };
    let store: Arc<InMemory> = Arc::default();
    fill(&store);
    assert_eq!(known(&store), 2);
    let mut len = 0;
    store.change(|bytes| len = bytes.len());
    for at in (0..len).step_by(7) {
        store.change(|bytes| bytes[at] ^= 1);
        assert_eq!(known(&store), 0, "byte {at}");
        store.change(|bytes| bytes[at] ^= 1);
    }
    store.change(|bytes| bytes.truncate(len - 1));
    assert_eq!(known(&store), 0);
    fill(&store);
    assert_eq!(known(&store), 2, "what is damaged is made anew");
    let codes = CodeCache::kept_in(store.clone());
    let mut h = BareHost::new(Config { limits, ..Config::default() }).expect("memory");
    let instance = h.vm.add_instance("test");
    let other = image(&LOOP.replace("r6 = 10", "r6 = 11")).into();
    h.vm.install(instance, InstanceParts { image: other, codes, ..InstanceParts::default() });
    assert_eq!(compiled(&h, instance), 0, "another program");
}

#[test]
fn threads_share_code() {
    let codes = CodeCache::default();
    let limits = Limits { compile_after: 1, ..Limits::default() };
    let run = || {
        let (mut h, instance) = sharing(&codes, limits);
        (0..200).map(|_| h.run(instance, "main", [0; 5])).all(|result| result == Ok(110))
            && h.vm.executed == 200 * 84
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
        assert!(threads.into_iter().all(|thread| thread.join().expect("no panic")));
    });
}

#[test]
fn what_is_refused_is_interpreted_and_named() {
    let text = "func main:\nr2 = r1\nr3 = 0\ncall 12\nr0 = 1\nexit";
    let refusals = refusals(&image(text));
    assert_eq!(refusals, [("main".to_owned(), Refusal::TailCall)]);
    let long = "r0 += 1\n".repeat(SLOTS_MAX as usize) + "exit";
    let (mut h, instance) = host(&format!("func main:\n{long}"));
    assert_eq!(h.run(instance, "main", [0; 5]), Ok(u64::from(SLOTS_MAX)));
    let found = h.vm.instance(instance).expect("instance").refusals();
    let (len, max) = (SLOTS_MAX + 1, SLOTS_MAX);
    assert_eq!(found, [("main".to_owned(), Refusal::TooLong { len, max })]);
    assert_eq!(compiled(&h, instance), 0);
}

/// A kfunc that machine code calls panics. The panic must reach the caller of the program, but must
/// not unwind through compiled frames, which would end the process.
#[test]
fn a_panic_of_the_host_goes_through() {
    let (mut h, instance) = host("func main:\ncall inner\nexit\nfunc inner:\ncall $7\nexit");
    h.panics = Some(crate::kfunc::KfuncId(7));
    let result = catch_unwind(AssertUnwindSafe(|| h.run(instance, "main", [0; 5])));
    let panic = result.expect_err("it panicked");
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"a kfunc's own fault"));
    assert_eq!(compiled(&h, instance), 2);
}

#[test]
fn code_is_generated_for_both_machines() {
    for isa in ["x86_64", "aarch64"] {
        let code = generate(&image(LOOP), isa, 1 << 24).expect(isa).expect("both functions");
        assert!(
            code.funcs.len() == 2 && code.funcs.iter().all(|func| func.code.len() >= 12),
            "{isa}"
        );
    }
    assert!(generate(&image(LOOP), "pdp11", 1 << 24).is_none());
}

#[test]
fn frames_below_are_known_without_recursion() {
    let counts = |text| frames_below::all(&image(text));
    let tree = "func a:\ncall b\ncall d\nexit\nfunc b:\ncall c\nexit\nfunc c:\nexit\nfunc d:\ncall c\nexit";
    assert_eq!(counts(tree), Some(vec![2, 1, 0, 1]));
    let circle = "func a:\ncall b\nexit\nfunc b:\ncall a\nexit\nfunc c:\nexit";
    assert_eq!(counts(circle), None);
}

/// Only aarch64 needs the system call `membarrier`. Linux has it on x86-64 too, so the test runs on
/// both.
#[cfg(target_os = "linux")]
#[test]
fn the_kernel_synchronizes_cpus() {
    compile::synchronize_cpus().expect("the system call that other machines need");
}

const TEST_CPU: KfuncId = KfuncId(7);
const TASK_CPU: KfuncId = KfuncId(8);
const NOW: KfuncId = KfuncId(9);
const DSQ_FIRST: KfuncId = KfuncId(10);
const DSQ_LEN: KfuncId = KfuncId(11);
/// Result of these functions when the host carries them out.
const FROM_HOST: u64 = 99;

/// A host of 100 CPUs with one program, whose machine code carries out functions of the host.
fn in_place(text: &str) -> (BareHost, InstanceId) {
    in_place_on(100, text)
}

fn in_place_on(nr_cpus: u32, text: &str) -> (BareHost, InstanceId) {
    let in_place = InPlaceFuncs {
        nr_cpus,
        mask_bytes: nr_cpus.div_ceil(64) * 8,
        percpu_stride: 64,
        per_cpu_ptr: true,
        test_cpu: Some(TEST_CPU),
        task_cpu: Some((TASK_CPU, 16)),
        now: Some(NOW),
        dsq_first: Some(DSQ_FIRST),
        dsq_len: Some(DSQ_LEN),
    };
    let in_place_values = InPlaceValues { call_ns: 3, test_cpu_ns: 5, rq_clock_base_ns: 1000 };
    let limits = Limits { compile_after: 0, ..Limits::default() };
    let config = Config { limits, in_place, in_place_values, ..Config::default() };
    let mut h = BareHost::new(config).expect("memory");
    let kfuncs = [TEST_CPU, TASK_CPU, NOW, DSQ_FIRST, DSQ_LEN];
    h.kfuncs = kfuncs.map(|id| (id, FROM_HOST)).to_vec();
    let instance = h.vm.add_instance("test");
    h.install_text(instance, text, Default::default()).expect("program");
    (h, instance)
}

#[test]
fn addresses_of_per_cpu_variables_need_no_call() {
    let (mut h, instance) = in_place("func main:\ncall 153\nexit\nfunc this:\ncall 154\nexit");
    assert_eq!(h.run(instance, "main", [1000, 0, 0, 0, 0]), Ok(1000));
    assert_eq!(h.run(instance, "main", [1000, 99, 0, 0, 0]), Ok(1000 + 99 * 64));
    assert_eq!(h.run(instance, "main", [1000, 100, 0, 0, 0]), Ok(0));
    assert_eq!(h.run(instance, "main", [1000, 7 << 32 | 2, 0, 0, 0]), Ok(1000 + 2 * 64));
    h.cpu = 3;
    assert_eq!(h.run(instance, "this", [1000, 0, 0, 0, 0]), Ok(1000 + 3 * 64));
    assert_eq!(h.vm.helper_calls(), 5);
}

#[test]
fn a_bit_of_a_readable_mask_needs_no_call() {
    let (mut h, instance) = in_place("func main:\ncall $7\nexit");
    let page = h.vm.mem.alloc_region(PAGE, Perm::Read).expect("page");
    *h.vm.mem.host_mut::<u64>(page + 8) = 1 << 35;
    let mut bit = |cpu: u64, mask: u64| {
        let result = h.run(instance, "main", [cpu, mask, 0, 0, 0]).expect("runs");
        (result, std::mem::take(&mut h.charged_ns), std::mem::take(&mut h.kfunc_calls).len())
    };
    assert_eq!(bit(99, page), (1, 5, 0));
    assert_eq!(bit(98, page), (0, 5, 0));
    assert_eq!(bit(1 << 32 | 99, page), (1, 5, 0), "the CPU is the lower half");
    assert_eq!(bit(100, page), (FROM_HOST, 0, 1), "no such CPU");
    assert_eq!(bit(99, page + PAGE - 16), (0, 5, 0), "the last place on the page");
    assert_eq!(bit(99, page + PAGE - 8), (FROM_HOST, 0, 1), "beyond the page");
    assert_eq!(bit(99, page + 4), (FROM_HOST, 0, 1), "not aligned");
    assert_eq!(bit(99, 0), (FROM_HOST, 0, 1), "NULL");
    assert_eq!(h.vm.kfunc_calls(), 8);
}

#[test]
fn a_bit_of_a_mask_of_one_word_needs_no_call() {
    let (mut h, instance) = in_place_on(8, "func main:\ncall $7\nexit");
    let page = h.vm.mem.alloc_region(PAGE, Perm::Read).expect("page");
    *h.vm.mem.host_mut::<u64>(page + PAGE - 8) = 1 << 7;
    let mut bit = |cpu: u64, mask: u64| {
        let result = h.run(instance, "main", [cpu, mask, 0, 0, 0]).expect("runs");
        (result, std::mem::take(&mut h.charged_ns), std::mem::take(&mut h.kfunc_calls).len())
    };
    assert_eq!(bit(7, page + PAGE - 8), (1, 5, 0), "the last word of the page");
    assert_eq!(bit(6, page + PAGE - 8), (0, 5, 0));
    assert_eq!(bit(8, page + PAGE - 8), (FROM_HOST, 0, 1), "no such CPU");
    assert_eq!(bit(7, page + PAGE - 4), (FROM_HOST, 0, 1), "not aligned");
    assert_eq!(bit(7, page + PAGE), (FROM_HOST, 0, 1), "beyond the page");
}

#[test]
fn a_known_task_tells_its_cpu_without_a_call() {
    let (mut h, instance) = in_place("func main:\ncall $8\nexit");
    let task = h.task;
    *h.vm.mem.host_mut::<[u32; 2]>(task + 16) = [42, 43];
    let cpu = |h: &mut BareHost, task| {
        let result = h.run(instance, "main", [task, 0, 0, 0, 0]).expect("runs");
        (result, std::mem::take(&mut h.charged_ns))
    };
    assert_eq!(cpu(&mut h, task), (FROM_HOST, 0));
    h.vm.note_task(task);
    assert_eq!(cpu(&mut h, task), (42, 3));
    assert_eq!(cpu(&mut h, task + 64), (FROM_HOST, 0), "no task");
    assert_eq!(cpu(&mut h, 0), (FROM_HOST, 0), "NULL");
    h.vm.forget_task(task);
    assert_eq!(cpu(&mut h, task), (FROM_HOST, 0));
}

#[test]
fn what_is_recorded_of_a_dispatch_queue_needs_no_call() {
    let (mut h, instance) = in_place("func main:\ncall $10\nexit\nfunc len:\ncall $11\nexit");
    let look = |h: &mut BareHost, dsq| {
        let results = ["main", "len"].map(|func| h.run(instance, func, [dsq, 0, 0, 0, 0]));
        (results.map(|result| result.expect("runs")), std::mem::take(&mut h.charged_ns))
    };
    for dsq in [0, 1, 64, u64::MAX] {
        assert_eq!(look(&mut h, dsq), ([FROM_HOST, FROM_HOST], 0));
        h.vm.note_dsq_first(dsq, 1000);
        h.vm.note_dsq_len(dsq, 2);
        assert_eq!(look(&mut h, dsq), ([1000, 2], 6), "one lookup does not displace the other");
        assert_eq!(look(&mut h, dsq ^ 1 << 40), ([FROM_HOST, FROM_HOST], 0), "another queue");
        h.vm.forget_dsq(dsq);
        assert_eq!(look(&mut h, dsq), ([FROM_HOST, FROM_HOST], 0));
    }
    assert_eq!(h.vm.kfunc_calls(), 4 * 8);
}

#[test]
fn the_clock_of_a_locked_run_queue_is_read_without_a_call() {
    let (mut h, instance) = in_place("func main:\ncall $9\nexit");
    let now = |h: &mut BareHost| {
        let result = h.run(instance, "main", [0; 5]).expect("runs");
        (result, std::mem::take(&mut h.charged_ns))
    };
    assert_eq!(now(&mut h), (FROM_HOST, 0), "no run queue is locked");
    h.rq_clock = Some(77);
    assert_eq!(now(&mut h), (1077, 3));
    h.rq_clock = None;
    assert_eq!(now(&mut h), (FROM_HOST, 0));
}

#[test]
fn a_function_keeps_memory_if_all_that_it_calls_does() {
    let text = "func main:\ncall looks\ncall deletes\nexit\nfunc looks:\ncall 1\ncall 8\nr0 = 0\nexit\n\
                func deletes:\ncall 3\nexit\nfunc outer:\ncall deletes\nexit";
    let image = image(text);
    let keeps = KeepsMemory::of(&image, InPlaceFuncs::default());
    let calls = image.code.iter().filter(|insn| insn.op == Op::CallFunc);
    assert_eq!(calls.map(|call| keeps.call(call)).collect::<Vec<_>>(), [true, false, false]);
}
