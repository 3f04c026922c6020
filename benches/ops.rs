// SPDX-License-Identifier: GPL-2.0-only
//! Operations of `vtime`: our interpreter, our machine code, and the same source compiled for this
//! machine.
//!
//! Our engines are called as the simulator calls them: a call includes entering a guest stack,
//! counting instructions and enforcing the limit on them. The native operations are called as
//! functions. On both sides a kernel function records its call and returns 0. Each round runs the
//! interpreter, the machine code and the native code; each figure is the median of the rounds, in
//! nanoseconds per call.

use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;

use scxlab_benches::host::cpu_time;
use scxlab_benches::median;
use scxlab_benches::noting::RecordingHost;
use scxlab_bpf::vm::{Config, Engine, FuncId, Limits, call};
use scxlab_lab::sim::kernel_target;
use scxlab_loader::btf::BtfKind;
use scxlab_loader::link::{Loaded, OpenObject, Target};
use scxlab_loader::object::Object;
use scxlab_machine::Machine;

const ROUNDS: usize = 21;
const CALLS: u64 = 100_000;

/// Same layout as `struct task_struct` in `native/scx/common.bpf.h`.
#[repr(C)]
struct Task {
    dsq_vtime: u64,
    slice: u64,
    weight: u32,
    flags: u32,
    cpus_ptr: u64,
}

/// A queued task that has used a part of its slice.
const TASK: Task = Task { dsq_vtime: 1_000, slice: 2_000_000, weight: 100, flags: 1, cpus_ptr: 0 };

const WAKEUP: u64 = 1;

unsafe extern "C" {
    static nr_kfunc_calls: u64;
    fn vtime_select_cpu(p: *mut Task, prev_cpu: i32, wake_flags: u64) -> i32;
    fn vtime_enqueue(p: *mut Task, enq_flags: u64);
    fn vtime_dispatch(cpu: i32, prev: *mut Task);
    fn vtime_running(p: *mut Task);
    fn vtime_stopping(p: *mut Task, runnable: bool);
}

/// An operation of `vtime`: its name, the arguments to pass for a task at a given address, and a
/// call of the operation as compiled for this machine.
struct Op {
    name: &'static str,
    args: fn(u64) -> [u64; 4],
    native: fn(*mut Task),
}

const OPS: [Op; 5] = [
    Op {
        name: "select_cpu",
        args: |p| [p, 0, 0, 0],
        native: |p| {
            // SAFETY: the functions have the types declared above, and touch only the task and
            // their own data.
            black_box(unsafe { vtime_select_cpu(p, 0, 0) });
        },
    },
    Op {
        name: "enqueue",
        args: |p| [p, WAKEUP, 0, 0],
        // SAFETY: the function has the type declared above, and touches only the task and its own
        // data.
        native: |p| unsafe { vtime_enqueue(p, WAKEUP) },
    },
    Op {
        name: "dispatch",
        args: |p| [0, p, 0, 0],
        // SAFETY: the function has the type declared above, and touches only the task and its own
        // data.
        native: |p| unsafe { vtime_dispatch(0, p) },
    },
    Op {
        name: "running",
        args: |p| [p, 0, 0, 0],
        // SAFETY: the function has the type declared above, and touches only the task and its own
        // data.
        native: |p| unsafe { vtime_running(p) },
    },
    Op {
        name: "stopping",
        args: |p| [p, 1, 0, 0],
        // SAFETY: the function has the type declared above, and touches only the task and its own
        // data.
        native: |p| unsafe { vtime_stopping(p, true) },
    },
];

fn main() -> Result<(), Box<dyn Error>> {
    println!(
        "{:<12} {:>6} {:>7} {:>10} {:>10} {:>10} {:>8} {:>9}",
        "operation", "insns", "kfuncs", "interp ns", "jit ns", "native ns", "x interp", "of native"
    );
    OPS.iter().try_for_each(row)
}

fn row(op: &Op) -> Result<(), Box<dyn Error>> {
    let mut interp = Ours::new(op, Engine::Interp)?;
    let mut jit = Ours::new(op, Engine::Jit)?;
    let mut task = TASK;
    let p = &raw mut task;
    let [mut a, mut b, mut c] = [const { Vec::new() }; 3];
    // SAFETY: no native operation runs now, so nothing writes `nr_kfunc_calls`.
    let before = unsafe { nr_kfunc_calls };
    for _ in 0..ROUNDS {
        a.push(timed(|| interp.run())?);
        b.push(timed(|| jit.run())?);
        c.push(timed(|| {
            (0..CALLS).for_each(|_| (op.native)(black_box(p)));
            Ok(())
        })?);
    }
    let calls = ROUNDS as u64 * CALLS;
    // SAFETY: no native operation runs now, so nothing writes `nr_kfunc_calls`.
    let native = (unsafe { nr_kfunc_calls } - before) / calls;
    let ours = |ours: &Ours| (ours.host.vm.executed / calls, ours.host.vm.kfunc_calls() / calls);
    let ((insns, kfuncs), counts) = (ours(&jit), ours(&interp));
    if (insns, kfuncs) != counts || kfuncs != native {
        return Err(format!("{}: {counts:?}, {:?}, {native}", op.name, (insns, kfuncs)).into());
    }
    let (a, b, c) = (median(a), median(b), median(c));
    println!(
        "{:<12} {insns:>6} {kfuncs:>7} {a:>10.1} {b:>10.1} {c:>10.1} {:>8.1} {:>9.2}",
        op.name,
        a / b,
        c / b
    );
    Ok(())
}

/// Measures `run`, which makes `CALLS` calls; returns nanoseconds of CPU time per call.
fn timed(run: impl FnOnce() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let start = cpu_time();
    run()?;
    Ok(cpu_time().saturating_sub(start).as_secs_f64() * 1e9 / CALLS as f64)
}

/// An operation of `vtime`, loaded into a virtual machine of this project.
struct Ours {
    host: RecordingHost,
    loaded: Loaded,
    func: FuncId,
    args: [u64; 4],
}

impl Ours {
    fn new(op: &Op, engine: Engine) -> Result<Ours, Box<dyn Error>> {
        let limits = Limits { compile_after: 0, ..Limits::default() };
        let mut host = RecordingHost::new(Config { limits, engine, ..Config::default() })?;
        let target = kernel_target(&Arc::new(Machine::resolve("1c")?))?;
        let shipped = scxlab_sched::find("vtime").ok_or("vtime is not shipped")?;
        let object = Arc::new(Object::parse(shipped.object, shipped.name)?);
        let mut open = OpenObject::new(object);
        open.globals.fill_enum_globals("__", target.btf());
        let loaded = open.load(&mut host, &target)?;
        let func = loaded.func(&format!("vtime_{}", op.name)).ok_or("no such operation")?;
        let task = task(&mut host, target.btf())?;
        Ok(Ours { host, loaded, func, args: (op.args)(task) })
    }

    fn run(&mut self) -> Result<(), Box<dyn Error>> {
        for _ in 0..CALLS {
            let result = call(&mut self.host, self.loaded.instance, self.func, &self.args);
            result.map_err(|fault| format!("{fault:#}"))?;
        }
        Ok(())
    }
}

/// Creates `TASK` in guest memory; returns its address.
fn task(host: &mut RecordingHost, btf: &scxlab_loader::btf::Btf) -> Result<u64, Box<dyn Error>> {
    let ty = btf.find("task_struct", BtfKind::Struct).ok_or("no task_struct")?;
    let at = host.vm.mem.alloc_kernel(btf.size_of(ty)?, 64)?;
    let mut put = |path: &str, bytes: &[u8]| -> Result<(), Box<dyn Error>> {
        let field = btf.path(ty, path)?.byte_off();
        host.vm.mem.host_slice_mut::<u8>(at + field, bytes.len()).copy_from_slice(bytes);
        Ok(())
    };
    put(".scx.dsq_vtime", &TASK.dsq_vtime.to_le_bytes())?;
    put(".scx.slice", &TASK.slice.to_le_bytes())?;
    put(".scx.weight", &TASK.weight.to_le_bytes())?;
    put(".scx.flags", &TASK.flags.to_le_bytes())?;
    Ok(at)
}
