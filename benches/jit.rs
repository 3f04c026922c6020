// SPDX-License-Identifier: GPL-2.0-only
//! Machine code compared with our interpreter, `rbpf`'s machine code, and the same C function
//! compiled for this machine.
//!
//! All four must return the same value. Each round runs all four, and each ratio compares the
//! medians of the rounds. Our machine code counts instructions, checks every access against the
//! simulation's memory and limits the number of instructions. rbpf's code neither checks nor
//! counts, and rbpf accepts no program that refers to data. The native code is `clang -O2`, which
//! may use features that BPF lacks, such as vectors.

use std::error::Error;
use std::sync::Arc;

use rbpf::EbpfVmRaw;
use scxlab_benches::case::Case;
use scxlab_benches::host::cpu_time;
use scxlab_benches::median;
use scxlab_bpf::insn::RawInsn;
use scxlab_bpf::mem::Perm;
use scxlab_bpf::vm::bare::BareHost;
use scxlab_bpf::vm::{Config, Engine, FuncId, Limits, call_raw};
use scxlab_lab::sim::kernel_target;
use scxlab_loader::link::{Loaded, OpenObject};
use scxlab_loader::object::{Object, RelocTarget};
use scxlab_machine::Machine;
use scxlab_trace::Tracer;

const ROUNDS: usize = 9;
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/programs.bpf.o"));

/// Same layout as `struct args` in `programs.c`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    n: u64,
    result: u64,
}

unsafe extern "C" {
    fn arithmetic(args: *mut Args) -> i32;
    fn histogram(args: *mut Args) -> i32;
    fn records(args: *mut Args) -> i32;
    fn branches(args: *mut Args) -> i32;
    fn calls(args: *mut Args) -> i32;
}

type Native = unsafe extern "C" fn(*mut Args) -> i32;

/// The programs: name, number of iterations, and the same function compiled for this machine.
const PROGRAMS: [(&str, u64, Native); 5] = [
    ("arithmetic", 1_000_000, arithmetic),
    ("histogram", 1_000_000, histogram),
    ("records", 1_000_000, records),
    ("branches", 3_000, branches),
    ("calls", 1_000_000, calls),
];

fn main() -> Result<(), Box<dyn Error>> {
    let only = std::env::args().skip(1).find(|arg| !arg.starts_with("--"));
    let wanted = |name: &str| only.as_ref().is_none_or(|only| only == name);
    println!(
        "{:<12} {:>10} {:>10} {:>10} {:>10} {:>10} {:>8} {:>8} {:>8}",
        "program",
        "insns",
        "interp ms",
        "jit ms",
        "rbpf ms",
        "native ms",
        "x interp",
        "x rbpf",
        "of native"
    );
    for (name, n, native) in PROGRAMS.into_iter().filter(|program| wanted(program.0)) {
        row(name, n, native)?;
    }
    println!(
        "\n{:<12} {:>10} {:>10} {:>8} {:>12} {:>12}",
        "scheduler", "interp ms", "jit ms", "x interp", "cold interp", "cold jit ms"
    );
    SCHEDULERS.iter().filter(|name| wanted(name)).try_for_each(|name| simulation(name))
}

/// Schedulers that the benchmark runs in whole simulations, with eight CPUs and forty tasks that
/// run 1 ms and sleep 4 ms.
const SCHEDULERS: [&str; 3] = ["vtime", "fair", "credit"];
const SIMULATIONS: usize = 41;

/// Makes short runs of both engines alternately, so that a disturbance affects both; the ratio is
/// the median over the pairs. A cold run is 100 ms long and includes its preparation: reading the
/// object, linking, compiling.
fn simulation(name: &str) -> Result<(), Box<dyn Error>> {
    let case = |engine, ms: u64| -> Result<Case, Box<dyn Error>> {
        let mut case = Case::new(name, "sleepers,tasks=40", "8c", ms * 1_000_000)?;
        case.engine = engine;
        Ok(case)
    };
    let cold = |engine| -> Result<f64, Box<dyn Error>> {
        let start = cpu_time();
        case(engine, 100)?.run(Tracer::default())?;
        Ok(cpu_time().saturating_sub(start).as_secs_f64() * 1e3)
    };
    let (interp, jit) = (case(Engine::Interp, 500)?, case(Engine::Jit, 500)?);
    let (mut a, mut b, mut ratios, mut colds) =
        (Vec::new(), Vec::new(), Vec::new(), [Vec::new(), Vec::new()]);
    for _ in 0..SIMULATIONS {
        let (left, right) = (interp.run(Tracer::default())?, jit.run(Tracer::default())?);
        if left.run.trace_hash != right.run.trace_hash {
            return Err(format!("{name}: the engines differ").into());
        }
        let (left, right) = (left.took.as_secs_f64(), right.took.as_secs_f64());
        a.push(left * 1e3);
        b.push(right * 1e3);
        ratios.push(left / right);
        colds[0].push(cold(Engine::Interp)?);
        colds[1].push(cold(Engine::Jit)?);
    }
    let [cold_interp, cold_jit] = colds.map(median);
    println!(
        "{name:<12} {:>10.2} {:>10.2} {:>8.2} {cold_interp:>12.2} {cold_jit:>12.2}",
        median(a),
        median(b),
        median(ratios),
    );
    Ok(())
}

fn row(name: &str, n: u64, native: Native) -> Result<(), Box<dyn Error>> {
    let mut interp = Ours::new(name, Engine::Interp)?;
    let mut jit = Ours::new(name, Engine::Jit)?;
    let slots = whole(name)?;
    let mut theirs = match &slots {
        Some(slots) => Some(EbpfVmRaw::new(Some(slots))?),
        None => None,
    };
    if let Some(vm) = &mut theirs {
        vm.jit_compile()?;
    }
    let mut args = Args { n, result: 0 };
    // SAFETY: the function takes a pointer to its arguments.
    unsafe { native(&mut args) };
    let expected = args.result;
    let (mut a, mut b, mut c, mut d) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        a.push(timed(expected, || interp.run(n))?);
        b.push(timed(expected, || jit.run(n))?);
        if let Some(vm) = &theirs {
            c.push(timed(expected, || rbpf(vm, n))?);
        }
        d.push(timed(expected, || {
            let mut args = Args { n, result: 0 };
            // SAFETY: the function takes a pointer to its arguments.
            unsafe { native(std::hint::black_box(&mut args)) };
            Ok(args.result)
        })?);
    }
    let (a, b, c, d) = (median(a), median(b), median(c), median(d));
    let counts = (interp.host.vm.executed, jit.host.vm.executed);
    if counts.0 != counts.1 {
        return Err(format!("{name}: {counts:?} instructions").into());
    }
    println!(
        "{name:<12} {:>10} {:>10.2} {:>10.2} {:>10.2} {:>10.2} {:>8.1} {:>8.2} {:>8.2}",
        counts.0 / ROUNDS as u64,
        a * 1e3,
        b * 1e3,
        c * 1e3,
        d * 1e3,
        a / b,
        c / b,
        d / b
    );
    Ok(())
}

/// Returns the seconds of one run, and checks the run's result.
fn timed(
    expected: u64,
    run: impl FnOnce() -> Result<u64, Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    let start = cpu_time();
    let result = run()?;
    let seconds = cpu_time().saturating_sub(start).as_secs_f64();
    if result != expected {
        return Err(format!("{result:#x} instead of {expected:#x}").into());
    }
    Ok(seconds)
}

fn rbpf(vm: &EbpfVmRaw<'_>, n: u64) -> Result<u64, Box<dyn Error>> {
    let mut args = [n, 0];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut args);
    // SAFETY: the program stays within its arguments and its stack, as the native one does.
    unsafe { vm.execute_program_jit(bytes)? };
    Ok(args[1])
}

/// Returns the slots of a program and its callees in rbpf's form; None if the program or a callee
/// refers to data, which rbpf does not support.
fn whole(name: &str) -> Result<Option<Vec<u8>>, Box<dyn Error>> {
    let object = Object::parse(OBJECT, "programs")?;
    let find = |name: &str| object.functions.iter().position(|f| f.name == name);
    let mut order = vec![find(name).ok_or("no such program")?];
    let mut raw: Vec<RawInsn> = Vec::new();
    let mut starts = Vec::new();
    let mut calls = Vec::new();
    let mut at = 0;
    while let Some(function) = order.get(at).map(|at| &object.functions[*at]) {
        starts.push(raw.len());
        for reloc in &function.relocs {
            let RelocTarget::Function(callee) = reloc.target else { return Ok(None) };
            if !order.contains(&callee) {
                order.push(callee);
            }
            calls.push((raw.len() + reloc.insn as usize, callee));
        }
        raw.extend_from_slice(&function.insns);
        at += 1;
    }
    for (slot, callee) in calls {
        let start = starts[order.iter().position(|f| *f == callee).ok_or("not placed")?];
        raw[slot].imm = start as i32 - slot as i32 - 1;
    }
    Ok(Some(bytemuck::cast_slice(&raw).to_vec()))
}

/// A program of `programs.c`, loaded into a virtual machine of this project.
struct Ours {
    host: BareHost,
    loaded: Loaded,
    func: FuncId,
    args: u64,
}

impl Ours {
    fn new(name: &str, engine: Engine) -> Result<Ours, Box<dyn Error>> {
        let limits = Limits { insns_per_call: u64::MAX, compile_after: 0, ..Limits::default() };
        let mut host = BareHost::new(Config { limits, engine, ..Config::default() })?;
        let target = kernel_target(&Arc::new(Machine::resolve("1c")?))?;
        let object = Arc::new(Object::parse(OBJECT, "programs")?);
        let loaded = OpenObject::new(object).load(&mut host, &target)?;
        let func = loaded.func(name).ok_or("no such program")?;
        let args = host.vm.mem.alloc_region(size_of::<Args>() as u64, Perm::ReadWrite)?;
        Ok(Ours { host, loaded, func, args })
    }

    fn run(&mut self, n: u64) -> Result<u64, Box<dyn Error>> {
        self.host.vm.mem.write(self.args, [n, 0])?;
        let result =
            call_raw(&mut self.host, self.loaded.instance, self.func, [self.args, 0, 0, 0, 0]);
        result.map_err(|fault| format!("{fault:#}"))?;
        Ok(self.host.vm.mem.read::<[u64; 2]>(self.args)?[1])
    }
}
