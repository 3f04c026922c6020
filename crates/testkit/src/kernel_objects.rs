// SPDX-License-Identifier: GPL-2.0-only
//! The kernel's own schedulers and selftests, as compiled, on the simulated kernel. For each
//! object, a function does the work of the C program that loads it, and asserts what that program
//! asserts.
//!
//! Owns: the list of objects, the checks of each, and their table in the docs.
//! Does not: compile the objects (`make kernel-objects` does).
//! Models: tools/sched_ext and tools/testing/selftests/sched_ext, 7.3. Differs: the test acts from
//! outside the simulation and costs only the time of its system calls; the tasks that run meanwhile
//! are those of `load.rs`.

mod bench;
mod custody;
mod ejections;
mod examples;
mod life;
mod load;
mod placement;
mod refusals;
mod script;
mod time;
mod userland;

pub use bench::{TestMachine, objects_dir};
use scxlab_bpf::vm::Engine;

use crate::sim::choose_engine;

/// The expected result of an object's test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The object behaves as on the kernel.
    Passes,
    /// The simulator refuses the object, as the kernel does.
    Refused,
    /// The scheduler's part of the test passes; the string names the part that is not modelled.
    Partly(&'static str),
    /// The kernel runs the object and this simulator does not, for the named reason.
    NotModelled(&'static str),
}

/// One object and its test.
pub struct KernelObjectTest {
    pub name: &'static str,
    /// Name of the object file without `.bpf.o`.
    pub object: &'static str,
    pub machine: &'static str,
    pub checks: &'static str,
    pub outcome: Outcome,
    run: fn(&mut TestMachine),
}

impl KernelObjectTest {
    /// Runs the test; it panics when the object does not do what is expected.
    pub fn check(&self) {
        self.check_on(Engine::default());
    }

    /// Runs the test on one engine; returns the hash of all events and the number of instructions
    /// executed.
    pub fn check_on(&self, engine: Engine) -> (u64, u64) {
        let mut bench = TestMachine::boot(self.machine);
        choose_engine(&mut bench.k, engine);
        (self.run)(&mut bench);
        let seen = (bench.k.tracer.hash(), bench.k.vm.executed);
        bench.finish();
        seen
    }
}

macro_rules! cases {
    ($($name:ident $object:literal $machine:literal $outcome:expr, $run:path, $checks:literal;)*) => {
        [$(KernelObjectTest {
            name: stringify!($name),
            object: $object,
            machine: $machine,
            checks: $checks,
            outcome: $outcome,
            run: $run,
        }),*]
    };
}

use Outcome::{NotModelled, Partly, Passes, Refused};

/// The examples of tools/sched_ext.
pub static EXAMPLES: [KernelObjectTest; 8] = cases! {
    scx_simple "scx_simple" "4c" Passes, examples::simple,
        "weighted vtime and FIFO, 2 s each";
    scx_cpu0 "scx_cpu0" "4c" Passes, examples::cpu0,
        "2 s; tasks that wake up and may run on CPU 0 run there";
    scx_central "scx_central" "4c" Passes, examples::central,
        "3 s; one CPU dispatches for all, its timer preempts";
    scx_flatcg "scx_flatcg" "4c" Passes, examples::flatcg,
        "5 s of saturating and napping tasks in nested cgroups: shares within 4 points of the weights, 6 after a change";
    scx_pair "scx_pair" "4c" Passes, examples::pair,
        "3 s, both cgroups saturated; 4096 inner queues; the CPUs of a pair run two cgroups in less than a tenth of the samples";
    scx_sdt "scx_sdt" "4c" Passes, examples::sdt,
        "3 s; per-task data in an arena";
    scx_userland "scx_userland" "4c" Passes, examples::userland,
        "3 s; a user process orders tasks through two queue maps";
    scx_qmap "scx_qmap" "4c" NotModelled("topological CPU numbers (struct sched_ext_ops_cid)"), refusals::qmap,
        "refused, naming the form";
};

/// The selftests.
pub static SELFTESTS: [KernelObjectTest; 34] = cases! {
    allowed_cpus "allowed_cpus" "4c" Passes, placement::allowed_cpus,
        "scx_bpf_select_cpu_and from select_cpu, enqueue and a syscall program; picks stay in the mask";
    create_dsq "create_dsq" "4c" Passes, life::create_dsq,
        "1024 queues created and destroyed; one per task while it lives";
    cyclic_kick_wait "cyclic_kick_wait" "4c" Passes, time::cyclic_kick_wait,
        "three CPUs that wait for each other in a circle go on for 5 s; workers compute 20 us between yields";
    ddsp_bogus_dsq_fail "ddsp_bogus_dsq_fail" "4c" Passes, ejections::ddsp_bogus_dsq,
        "ejected with ERROR within 1 s; tasks go on";
    ddsp_vtimelocal_fail "ddsp_vtimelocal_fail" "4c" Passes, ejections::ddsp_vtimelocal,
        "ejected with ERROR within 1 s; tasks go on";
    dequeue "dequeue" "4c" Passes, custody::dequeue,
        "seven scenarios: ops.dequeue once for each stay in custody, never without; affinity changes are marked";
    dequeue_iter "dequeue_iter" "4c" Passes, custody::dequeue_iter,
        "ops.dequeue iterates its queue, ten times at least";
    dequeue_remote "dequeue_remote" "4c" Passes, custody::dequeue_remote,
        "custody ends before a task runs elsewhere; enqueues equal dequeues";
    dsp_local_on "dsp_local_on" "4c" Passes, placement::dsp_local_on,
        "dispatch to random CPUs' local queues, 1 s";
    enable_cmask "enable_cmask" "4c" NotModelled("topological CPU numbers (struct sched_ext_ops_cid)"),
        refusals::enable_cmask, "refused, naming the form";
    enq_last_no_enq_fails "enq_last_no_enq_fails" "4c" Passes, ejections::enq_last_no_enq,
        "attach gives a link, ops.exit has run with an error";
    enq_select_cpu "enq_select_cpu" "4c" Passes, placement::enq_select_cpu,
        "scx_bpf_select_cpu_dfl from enqueue and a syscall program";
    exit "exit" "4c" Passes, ejections::exit,
        "scx_bpf_exit from six operations: kind UNREG_BPF, code and message";
    hotplug "hotplug" "4c" Passes, ejections::hotplug,
        "CPU hotplug with and without operations for it, and between open and attach: exit kinds and codes";
    init_enable_count "init_enable_count" "4c" Passes, life::init_enable_count,
        "counts of init_task, exit_task, enable, disable; all tasks and SCHED_EXT only";
    maximal "maximal" "4c" Passes, life::maximal,
        "every operation defined; mixed load, cgroups, weights, bandwidth, affinity, hotplug";
    reload_loop "maximal" "4c" Passes, life::reload_loop,
        "attach and detach 200 times, sequentially where the kernel's test has two threads; EBUSY while another is loaded";
    maybe_null "maybe_null" "4c" Passes, refusals::maybe_null,
        "loads, since it tests its arguments";
    maybe_null_fail_dsp "maybe_null_fail_dsp" "4c" Refused, refusals::maybe_null_dispatch,
        "refused: ops.dispatch dereferences prev untested";
    maybe_null_fail_yld "maybe_null_fail_yld" "4c" Refused, refusals::maybe_null_yield,
        "refused: ops.yield dereferences to untested";
    minimal "minimal" "4c" Passes, life::minimal,
        "no operations; attach, 1 s of saturation, detach, three times";
    total_bw "minimal" "4c" Partly("deadline servers, whose bandwidth the test reads"), life::total_bw,
        "load on every CPU before, during and after a scheduler";
    nohz_tick "nohz_tick" "4c" Partly("NOHZ_FULL: every busy CPU ticks, so that a tick that fails to restart would not be seen"), time::nohz_tick,
        "infinite, then finite slices: the counters of running and ticks";
    non_scx_kfunc_deny "non_scx_kfunc_deny" "4c" Refused, refusals::non_scx_kfunc,
        "refused, for another reason than the kernel's: there is no struct tcp_congestion_ops here, so its kfunc filter is not tried";
    numa "numa" "2n2c" Passes, placement::numa,
        "idle masks and picks by node; 1 s";
    peek_dsq "peek_dsq" "4c" Passes, custody::peek_dsq,
        "peeking an empty and a filled queue, and a pool of eight; 3 s";
    prog_run "prog_run" "4c" Passes, ejections::prog_run,
        "a syscall program makes the scheduler exit with its code";
    rt_stall "rt_stall" "4c" Passes, time::rt_stall,
        "4 % beside a FIFO task for 5 s, for tasks of either class; the CPU afterwards";
    select_cpu_dfl "select_cpu_dfl" "4c" Passes, placement::select_cpu_dfl,
        "1028 children; none is enqueued while its CPU is idle";
    select_cpu_dfl_nodispatch "select_cpu_dfl_nodispatch" "4c" Passes, placement::select_cpu_dfl_nodispatch,
        "1028 children; the default pick reaches enqueue";
    select_cpu_dispatch "select_cpu_dispatch" "4c" Passes, placement::select_cpu_dispatch,
        "1028 children dispatched from select_cpu";
    select_cpu_dispatch_bad_dsq "select_cpu_dispatch_bad_dsq" "4c" Passes, ejections::bad_dsq,
        "ejected with ERROR within 1 s; tasks go on";
    select_cpu_dispatch_dbl_dsp "select_cpu_dispatch_dbl_dsp" "4c" Passes, ejections::double_dispatch,
        "ejected with ERROR within 1 s; tasks go on";
    select_cpu_vtime "select_cpu_vtime" "4c" Passes, placement::select_cpu_vtime,
        "a vtime queue filled from select_cpu is consumed";
};

/// Returns the text of docs/reference/kernel-objects.md.
pub fn table() -> String {
    let mut out = String::from(HEADER);
    for (title, cases) in [("Example schedulers", &EXAMPLES[..]), ("Selftests", &SELFTESTS[..])] {
        out +=
            &format!("\n## {title}\n\n| test | object | checked | outcome |\n|---|---|---|---|\n");
        for case in cases {
            let outcome = match case.outcome {
                Passes => "passes".to_owned(),
                Refused => "refused, as by the kernel".to_owned(),
                Partly(missing) => format!("passes in part; not modelled: {missing}"),
                NotModelled(why) => format!("not modelled: {why}"),
            };
            out += &format!(
                "| {} | {}.bpf.o | {} | {outcome} |\n",
                case.name, case.object, case.checks
            );
        }
    }
    out
}

const HEADER: &str = "\
<!-- SPDX-License-Identifier: GPL-2.0-only -->
<!-- Generated: BLESS=1 cargo test -p scxlab-testkit --test kernel_objects -->

# The kernel's own schedulers and selftests

The examples of `tools/sched_ext` and the selftests of `tools/testing/selftests/sched_ext` of Linux 7.3, compiled by
`make kernel-objects` and run unmodified on the simulated kernel. The user-space half of each is written anew in
`crates/testkit/src/kernel_objects`, and asserts what the C file asserts, but for what a row says is not modelled. Times
of tasks' work are ours. Each row is a test of `make test`. The examples, where nothing else is said, run a load of
saturating, sleeping, yielding, pinned, forking and real-time tasks, of which each must run in every second.
";
