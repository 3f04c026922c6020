// SPDX-License-Identifier: GPL-2.0-only
//! Random schedulers: `bpf/selftest/whim` on a random machine under a random workload, on both
//! engines (interpreter and JIT compiler).
//!
//! Owns: the decoding of input bytes into such a run, its external disturbances, and its checks.
//! Does not: require that the scheduler stays loaded. `tests/whim.rs` draws the bytes from seeds;
//! in the fuzz target `schedulers` libFuzzer chooses them.
//!
//! Promises: no panic, the laws of `checks.rs` at any moment, and the same events, counts, exits
//! and metrics on both engines.

use scxlab_bpf::vm::Engine;
use scxlab_kernel::Kernel;
use scxlab_kernel::behavior::Sys;
use scxlab_kernel::ext::op::Op;
use scxlab_kernel::flags::ops;
use scxlab_loader::link::{Loaded, OpenObject};
use scxlab_loader::object::Object;
use scxlab_machine::Stream;
use scxlab_machine::cpumask::CpuMask;
use scxlab_machine::id::{CpuId, Nanos, TaskId};
use std::sync::{Arc, OnceLock};

use crate::checks::{Contract, LawChecker};
use crate::machines::{self, LOADS};
use crate::shipped::selftest_object;
use crate::sim;

const MS: Nanos = 1_000_000;
/// Virtual time between two checks of a run.
const STEP: Nanos = 5 * MS;
/// Number of steps of a whole run. They last 200 ms. The watchdog timeouts drawn are 20 to 275
/// ms, so that the watchdog ends some runs of schedulers that lose tasks.
pub const STEPS: u64 = 40;
/// Bound on the instructions of one call, so that a scheduler which does too much is ejected soon.
const INSNS_PER_CALL: u64 = 200_000;
const MAX_EVENTS: u64 = 300_000;
const SCRIPT_WORDS: usize = 64;

/// Number of input bytes that a run uses; it ignores further bytes.
pub const INPUT: usize = 64 + 8 * SCRIPT_WORDS;

/// Observable results of a run, to be compared between engines.
#[derive(Debug, PartialEq, Eq)]
pub struct RunResult {
    hash: u64,
    events: u64,
    executed: u64,
    calls: (u64, u64),
    metrics: String,
    /// The reason why the run ended, the reason of each scheduler's exit, and refusals to attach.
    pub ends: Vec<String>,
}

/// Draws the input bytes of `check` from a seed.
pub fn input(seed: u64) -> Vec<u8> {
    let mut rng = Stream::new(seed, "whim", 0);
    (0..INPUT / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect()
}

/// Decodes the bytes into a machine, workload and scheduler, and runs these on both engines for
/// `steps` steps of 5 ms. Panics if a law of `checks.rs` is broken or if the results of the engines
/// differ.
pub fn check(data: &[u8], steps: u64) -> RunResult {
    let interp = run(data, steps, Engine::Interp);
    assert_eq!(interp, run(data, steps, Engine::Jit), "the engines differ");
    interp
}

/// Reader of the input bytes; it returns zeros after their end.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u64 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first.into()
    }

    fn below(&mut self, n: u64) -> u64 {
        self.byte() % n
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte() as u8))
    }
}

fn run(data: &[u8], steps: u64, engine: Engine) -> RunResult {
    let mut choices = Choices(data);
    let mut k = boot(&mut choices);
    sim::choose_engine(&mut k, engine);
    k.vm.limits.insns_per_call = INSNS_PER_CALL;
    let open = scheduler(&mut choices);
    let outside = choices.word();
    let mut ends = Vec::new();
    let mut rng = Stream::new(outside, "outside", 0);
    let mut watch = LawChecker::new(Contract { long_paths: true, ..Contract::default() });
    let loaded = load(&mut k, &open);
    if outside & 1 == 0 {
        attach(&mut k, &loaded, &mut ends);
    }
    k.start();
    for step in 1..=steps {
        k.advance(step * STEP);
        watch.look(&k);
        assert!(watch.broken.is_empty(), "{:#?}", watch.broken);
        if k.end.stop.is_some() {
            break;
        }
        if step == 2 && outside & 1 != 0 {
            attach(&mut k, &loaded, &mut ends);
        }
        if outside & 2 != 0 && rng.below(3) == 0 {
            disturb(&mut k, &loaded, &mut rng, &mut ends);
        }
    }
    k.close();
    seen(&k, ends)
}

fn boot(choices: &mut Choices) -> Kernel {
    let (seed, cpus_max) = (choices.word() % 4096, 1 + choices.below(16));
    let machine = machines::machine(seed, cpus_max).machine;
    let cpus = machine.topology.nr_cpus() as u64;
    let kind = choices.below((LOADS.len() + OTHER_LOADS.len()) as u64) as usize;
    let text = match LOADS.get(kind) {
        Some(&kind) => machines::load(kind, choices.byte(), cpus),
        None => OTHER_LOADS[kind - LOADS.len()].to_owned(),
    };
    let mut k = sim::kernel_on(machine, &text, choices.byte());
    k.end.limits.max_events = MAX_EVENTS;
    k
}

/// Workloads beside those of `machines.rs`: tasks that fork, exit, communicate, and change class
/// and cgroup; guests whose threads do so, lock and flush.
const OTHER_LOADS: [&str; 8] = [
    "hackbench,groups=1,loops=20",
    "pingpong",
    "spin_barrier",
    "[[thread]]\nname = 'parent-{i}'\ninstances = 4\n\
     ops = [{ loop = { ops = [{ fork = 'child' }, { compute = '200us' }, { sleep = '300us' }] } }]\n\
     [[thread]]\nname = 'child'\ninstances = 0\nops = [{ compute = '100us' }, 'yield', { compute = '100us' }]\n",
    "[[thread]]\nname = 'hog-{i}'\ninstances = 5\nops = [{ loop = { ops = [{ compute = '1ms' }] } }]\n\
     [[thread]]\nname = 'changing-{i}'\ninstances = 3\n\
     ops = [{ loop = { ops = [{ set_policy = { fifo = 10 } }, { compute = '2ms' }, { sleep = '1ms' }, \
     { set_policy = 'normal' }, { compute = '2ms' }, 'exec'] } }]\n",
    "[[cgroup]]\npath = '/a'\nweight = 200\n[[cgroup]]\npath = '/a/b'\nweight = 50\n[[cgroup]]\npath = '/c'\nweight = 1000\n\
     [[thread]]\nname = 'mover-{i}'\ninstances = 6\ncgroup = '/a/b'\n\
     ops = [{ loop = { ops = [{ compute = '700us' }, { move_cgroup = '/c' }, 'yield', { sleep = '200us' }, \
     { move_cgroup = '/a/b' }, { compute = '300us' }] } }]\n",
    "lock_holder,threads=4,unmap=3,vms=2,vcpus=3",
    "[[guest]]\nname = 'vm{i}'\ninstances = 2\nvcpus = 3\nhalt_poll = '20us'\nspinlock = 'ticket'\n\
     [[guest.program.thread]]\nname = 'parent-{i}'\ninstances = 2\n\
     ops = [{ loop = { ops = [{ fork = 'child' }, { compute = '200us' }, { sleep = '300us' }] } }]\n\
     [[guest.program.thread]]\nname = 'child'\ninstances = 0\n\
     ops = [{ compute = '100us' }, 'yield', { spin_lock = 'l' }, { compute = '20us' }, { spin_unlock = 'l' }]\n\
     [[guest.program.thread]]\nname = 'changing-{i}'\ninstances = 3\n\
     ops = [{ loop = { ops = [{ set_policy = { rr = 10 } }, { compute = '2ms' }, { sleep = '1ms' }, \
     { set_policy = 'normal' }, { compute = '2ms' }, 'exec', { set_affinity = '1' }, { compute = '300us' }, \
     { set_affinity = '0-2' }] } }]\n",
];

/// Returns the object `whim` with the knobs, settings and operations that the input chooses.
fn scheduler(choices: &mut Choices) -> OpenObject {
    static OBJECT: OnceLock<Arc<Object>> = OnceLock::new();
    let object = OBJECT.get_or_init(|| {
        Arc::new(Object::parse(selftest_object("whim"), "whim").expect("our own object"))
    });
    let mut open = OpenObject::new(Arc::clone(object));
    let mut set = |knob: &str, value: u64| {
        open.globals.set(knob, &value.to_string()).unwrap_or_else(|e| panic!("{e}"));
    };
    set("permitted", choices.word());
    set("deeds_ppm", choices.byte() * choices.byte() * 10);
    // Draw mostly small rates of wrong calls: a run that ends at once tests little.
    set("wrong_ppm", [0, 10, 100, 1000, 10_000, 100_000][choices.below(6) as usize]);
    set("slice_max_ns", 1 << (choices.below(6) * 4 + 4));
    let settings = Settings::of(choices);
    set("idle_mode", settings.idle_mode());
    for at in 0..SCRIPT_WORDS {
        let word = choices.word().to_le_bytes();
        open.globals.set_bytes(&format!("script[{at}]"), &word).unwrap_or_else(|e| panic!("{e}"));
    }
    settings.put(&mut open);
    open
}

/// Settings of the ops table, and the operations removed from it.
struct Settings {
    flags: u64,
    timeout_ms: u64,
    batch: u64,
    /// The removed operations, as a bit mask indexed by operation number.
    left_out: u64,
}

impl Settings {
    /// Draws settings that a kernel mostly accepts. `ops.init` is never left out, because it
    /// creates the DSQs.
    fn of(choices: &mut Choices) -> Settings {
        let (how, some, others) = (choices.byte(), choices.word(), choices.word());
        let flags = if how & 0x1f == 1 { some } else { some >> 16 & others & ops::ALL };
        let left_out = if how & 0x20 != 0 { others >> 16 & some >> 32 } else { 0 };
        let mut left_out = left_out & !(1 << Op::Init as u32);
        let has = |flag: u64| flags & flag != 0;
        if how & 0xc0 != 0 && has(ops::BUILTIN_IDLE_PER_NODE) && !has(ops::KEEP_BUILTIN_IDLE) {
            left_out |= 1 << Op::UpdateIdle as u32;
        }
        let batch = if how & 0x40 != 0 { 0 } else { choices.byte() };
        Settings { flags, timeout_ms: 20 + choices.byte(), batch, left_out }
    }

    fn lacks(&self, op: Op) -> bool {
        self.left_out >> op as u32 & 1 != 0
    }

    fn idle_mode(&self) -> u64 {
        let kept = self.flags & ops::KEEP_BUILTIN_IDLE != 0 || self.lacks(Op::UpdateIdle);
        match (kept, self.flags & ops::BUILTIN_IDLE_PER_NODE != 0) {
            (false, _) => 2,
            (true, per_node) => per_node.into(),
        }
    }

    fn put(&self, open: &mut OpenObject) {
        let object = Arc::clone(open.object());
        let table = open.table_mut("whim_ops").expect("the table");
        for (member, value) in [
            ("flags", self.flags),
            ("timeout_ms", self.timeout_ms),
            ("dispatch_max_batch", self.batch),
        ] {
            table.set(&object.btf, member, &value.to_string()).unwrap_or_else(|e| panic!("{e}"));
        }
        let members = table.table().members.clone();
        for op in Op::ALL.into_iter().filter(|&op| self.lacks(op)) {
            if members.iter().any(|m| m.name == op.name()) {
                table.set_callback(op.name(), None).unwrap_or_else(|e| panic!("{e}"));
            }
        }
    }
}

fn load(k: &mut Kernel, open: &OpenObject) -> Loaded {
    let target = k.target();
    let mut open = open.clone();
    open.globals.fill_enum_globals("__", &target.btf);
    open.load(k, &target).unwrap_or_else(|e| panic!("{e}"))
}

fn attach(k: &mut Kernel, loaded: &Loaded, ends: &mut Vec<String>) {
    if let Err(refused) = k.attach_object(loaded, None) {
        ends.push(refused.to_string());
    }
}

/// Makes one random external change: affinity, nice value, CPU hotplug, or detaching and attaching
/// the scheduler.
fn disturb(k: &mut Kernel, loaded: &Loaded, rng: &mut Stream, ends: &mut Vec<String>) {
    let cpus = k.cpus.len() as u64;
    let living: Vec<TaskId> = k.tasks.iter().filter(|t| k.is_workload(t)).map(|t| t.id).collect();
    let task = living.get(rng.below(living.len() as u64) as usize).copied();
    match (rng.below(6), task) {
        (0, Some(task)) => {
            let some = (0..cpus as u32).filter(|_| rng.below(2) == 0).chain([0]);
            let mask = CpuMask::of(cpus as usize, some.map(CpuId));
            // The kernel refuses the affinity if no CPU of the mask is on line, or the task is
            // exiting.
            let _refused = k.user(|k| k.set_affinity(task, &mask));
        }
        (1, Some(task)) => {
            let nice = rng.below(40) as i8 - 20;
            let _refused = k.user(|k| k.set_nice(task, nice));
        }
        (2 | 3, _) => {
            let cpu = CpuId(rng.below(cpus) as u32);
            let online = !k.cpus[cpu].online;
            // The kernel refuses to take the last CPU off line.
            let _refused = k.user(|k| k.set_cpu_online(cpu, online));
        }
        (4, _) if k.ext.root.is_some() => k.detach(),
        _ => attach(k, loaded, ends),
    }
}

fn seen(k: &Kernel, mut ends: Vec<String>) -> RunResult {
    ends.extend(k.ext.exits.iter().map(|exit| format!("{exit:?}")));
    ends.push(format!("{:?}", k.end.stop));
    RunResult {
        hash: k.tracer.hash(),
        events: k.tracer.count(),
        executed: k.vm.executed,
        calls: (k.vm.helper_calls(), k.vm.kfunc_calls()),
        metrics: format!("{:?}", k.metrics),
        ends,
    }
}
