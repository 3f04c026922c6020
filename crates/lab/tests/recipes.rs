// SPDX-License-Identifier: GPL-2.0-only
//! Shipped recipes on the unmodified objects that they are for: no scheduler is ejected, and the
//! recipe fills tables as the frontend would. The objects come from `make objects`.

use std::path::PathBuf;
use std::sync::Arc;

use scxlab_lab::input::{RecipeInput, SchedulerInput};
use scxlab_lab::prepare::{PrepareError, Prepared, PreparedObject};
use scxlab_lab::run::Run;
use scxlab_lab::sim::{SimError, SimSpec, simulate};
use scxlab_machine::Machine;
use scxlab_workload::{Program, WorkloadArg, parse_workload_arg};

const MS: u64 = 1_000_000;

fn object(name: &str) -> Vec<u8> {
    let folder = if name.starts_with("scx_") { "kernel" } else { "scx" };
    let file = format!("../../build/{folder}/objects/{name}.bpf.o");
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(file);
    std::fs::read(&path)
        .unwrap_or_else(|e| panic!("{}: {e}; `make objects` makes it", path.display()))
}

fn prepare(
    name: &str,
    knobs: &str,
    machine: &Arc<Machine>,
    recipe: RecipeInput,
) -> Result<Prepared, PrepareError> {
    let arg = format!("{name}.bpf.o{knobs}");
    Prepared::simulated(&SchedulerInput::of_object(&arg, &object(name), recipe).unwrap(), machine)
}

fn in_text(text: &str) -> RecipeInput {
    RecipeInput::Text { name: "r.toml".into(), text: text.into() }
}

fn prepared(name: &str, knobs: &str, machine: &str) -> PreparedObject {
    let machine = Arc::new(Machine::resolve(machine).unwrap());
    prepare(name, knobs, &machine, RecipeInput::Auto).unwrap().object.unwrap()
}

fn workload(text: &str) -> Program {
    match parse_workload_arg(text).unwrap() {
        WorkloadArg::Program(program) => *program,
        _ => panic!("{text} is no generator"),
    }
}

fn run(scheduler: &Prepared, work: &str, machine: &Arc<Machine>) -> Result<Run, SimError> {
    let workload = workload(work);
    let spec =
        SimSpec { duration: Some(300 * MS), ..SimSpec::new(machine, &workload, scheduler, 1) };
    simulate(&spec, Default::default(), &|_| None).map(|(run, _)| run)
}

fn stays(name: &str, knobs: &str, machine: &str) {
    let machine = Arc::new(Machine::resolve(machine).unwrap());
    let scheduler = prepare(name, knobs, &machine, RecipeInput::Auto).unwrap();
    for work in ["hogs,tasks=40", "hackbench,groups=1,loops=20", "sleepers,tasks=30", "schbench"] {
        let run = run(&scheduler, work, &machine).unwrap();
        assert_eq!(run.exit.kind, "none", "{name}, {work}: {}", run.exit.message);
        assert!(run.stop.is_regular(), "{name}, {work}: {:?}", run.stop);
        assert!(run.metrics["work_units"].value > 0.0, "{name}, {work}");
        let enqueues = run.metrics.get("op_enqueue_calls").map_or(0.0, |m| m.value);
        assert!(enqueues > 0.0, "{name}, {work}: the scheduler was not in charge");
    }
}

#[test]
fn bpfland_stays() {
    stays("bpfland", "", "2n4c2t");
    stays("bpfland", "", "1n4c1t");
}

#[test]
fn the_kernels_schedulers_stay() {
    for name in ["scx_central", "scx_flatcg", "scx_pair", "scx_cpu0", "scx_simple", "scx_sdt"] {
        stays(name, "", "2n4c2t");
    }
    stays("scx_pair", ",stride=2", "2n4c2t");
}

#[test]
fn bpfland_is_prepared_as_by_its_frontend() {
    let object = prepared("bpfland", "", "2n4c2t");
    let get = |path: &str| object.open.globals.get(path).unwrap();
    assert_eq!(
        (get("smt_enabled"), get("numa_enabled"), get("primary_all")),
        ("true".into(), "true".into(), "true".into())
    );
    assert_eq!(
        (get("slice_max"), get("local_pcpu"), get("sticky_tasks")),
        ("1000000".into(), "false".into(), "false".into())
    );
    assert_eq!((get("cpu_capacity[15]"), get("preferred_cpus[15]")), ("1024".into(), "15".into()));
    assert_eq!((get("cpu_capacity[16]"), get("cpufreq_perf_lvl")), ("0".into(), "1024".into()));
    let flags = |object: &PreparedObject| {
        object.open.tables[0]
            .get(&object.open.object().btf, "flags")
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    // The recipe must set the ops flags ENQ_LAST, ENQ_EXITING, ENQ_MIGRATION_DISABLED,
    // ALLOW_QUEUED_WAKEUP and, on machines with several nodes, BUILTIN_IDLE_PER_NODE.
    assert_eq!(flags(&object), 2 | 4 | 16 | 32 | 64);
    assert_eq!(flags(&prepared("bpfland", "", "1n4c2t")), 2 | 4 | 16 | 32);
    let object = prepared("bpfland", ",primary=\"0-2,5\",slice_max=500000", "2n4c2t");
    assert_eq!((&*object.knobs["primary_all"], &*object.knobs["slice_max"]), ("false", "500000"));
}

/// The fastest CPUs must come first in the scheduler's list `preferred_cpus`.
#[test]
fn bpfland_ranks_cpus_by_capacity() {
    let object = prepared("bpfland", "", "hybrid-8p8e");
    let machine = Machine::resolve("hybrid-8p8e").unwrap();
    let rank = |i: usize| {
        object.open.globals.get(&format!("preferred_cpus[{i}]")).unwrap().parse::<usize>().unwrap()
    };
    let capacities: Vec<u32> = (0..machine.topology.nr_cpus())
        .map(|i| machine.topology.cpus()[rank(i)].capacity)
        .collect();
    assert!(capacities.is_sorted_by(|a, b| a >= b), "{capacities:?}");
    assert!(capacities.first() > capacities.last());
}

#[test]
fn pairs_are_those_of_the_frontend() {
    let object = prepared("scx_pair", "", "1n4c1t");
    let get = |name: &str, at: usize| object.open.globals.get(&format!("{name}[{at}]")).unwrap();
    let all = |name: &str| (0..4).map(|at| get(name, at)).collect::<Vec<_>>().join(" ");
    assert_eq!(
        (all("pair_cpu"), all("pair_id"), all("in_pair_idx")),
        ("2 3 0 1".into(), "0 1 0 1".into(), "0 0 1 1".into())
    );
    let machine = Arc::new(Machine::resolve("1n3c1t").unwrap());
    let error = prepare("scx_pair", "", &machine, RecipeInput::Auto).unwrap_err().to_string();
    assert!(error.ends_with("scx_pair needs an even number of CPUs"), "{error}");
    let machine = Arc::new(Machine::resolve("1n4c1t").unwrap());
    let error =
        prepare("scx_pair", ",stride=3", &machine, RecipeInput::Auto).unwrap_err().to_string();
    assert!(error.contains("stride must divide"), "{error}");
}

/// Without its recipe, an object fails or leaves CPUs idle.
#[test]
fn a_recipe_is_needed() {
    let machine = Arc::new(Machine::resolve("2n4c2t").unwrap());
    let work = |recipe: RecipeInput| {
        let scheduler = prepare("scx_central", "", &machine, recipe).unwrap();
        let run = run(&scheduler, "hogs,tasks=40", &machine).unwrap();
        run.metrics["work_units"].value
    };
    // Without the recipe the scheduler uses one CPU of sixteen, and so must do less than a fifth of
    // the work.
    assert!(work(RecipeInput::None) < work(RecipeInput::Auto) / 5.0);
    let scheduler = prepare("scx_pair", "", &machine, RecipeInput::None).unwrap();
    let error = run(&scheduler, "hogs,tasks=40", &machine).unwrap_err().to_string();
    assert!(error.contains("map \"pair_ctx\""), "{error}");
}

#[test]
fn what_a_program_refuses_is_reported() {
    let machine = Arc::new(Machine::resolve("1n2c1t").unwrap());
    let recipe = |step: &str| format!("doc = 'd'\nsource = 's'\nleaves_out = []\n[[step]]\n{step}");
    let error = |step: &str| {
        let text = recipe(step);
        let scheduler = prepare("bpfland", "", &machine, in_text(&text)).unwrap();
        run(&scheduler, "hogs", &machine).unwrap_err().to_string()
    };
    let no_cpu = "run = 'enable_sibling_cpu'\nctx = { cpu_id = 70000, sibling_cpu_id = 1 }";
    assert_eq!(
        error(no_cpu),
        "r.toml:4: program `enable_sibling_cpu` returned -2 instead of 0 (with cpu_id = 70000, sibling_cpu_id = 1)"
    );
    assert!(
        error("run = 'enable_primary'").contains("it has enable_sibling_cpu, enable_primary_cpu")
    );
    assert!(error("run = 'enable_primary_cpu'\nctx = { cpu = 1 }").contains("field `cpu`"));
    assert!(
        error("run = 'enable_primary_cpu'\nctx = { cpu_id = '1 << 40' }").contains("does not fit")
    );
    assert!(error("inner_maps = { cpu_ctx_stor = 1 }").contains("does not hold maps"));
    let run = "run = 'enable_primary_cpu'\nctx = { cpu_id = 0 }";
    assert!(error(&format!("{run}\ninto = {{ x = 'cpu' }}")).contains("field `cpu`"));
    assert!(error(&format!("{run}\ncpu = 2")).contains("the machine has no CPU 2"));
    assert!(error(&format!("{run}\nreturns = 7")).contains("returned 0 instead of 7"));
    // Constants can be read after load, but not set.
    let after = |set: &str| error(&format!("{run}\n[[step]]\nset = {set}"));
    assert!(after("{ slice_max = 1 }").contains("constant once the object is loaded"));
    assert!(after("{ cpufreq_perf_lvl = 'slice_maxx' }").contains("did you mean slice_max"));
    assert!(
        after("{ 'u64(0x1000)' = 1 }")
            .contains("memory `u64(0x1000)`: the address is not in an arena")
    );
    assert!(after("{ 'no_type(1)' = 1 }").contains("the object has no such type"));
    assert!(error("update = 'no_map'\nkey = 0\nvalue = 0").contains("has no map"));
}

/// The kernel runs a program with a context of at most 65535 bytes (`bpf_prog_test_run_syscall()`).
/// A recipe's step with a larger context must therefore be refused.
#[test]
fn a_context_is_no_larger_than_the_kernel_takes() {
    let machine = Arc::new(Machine::resolve("1n2c1t").unwrap());
    let text = "doc = 'd'\nsource = 's'\nleaves_out = []\n[[step]]
        run = 'which_cpu'\nctx = { kick = 1 }\nreturns = 'any'";
    let outcome = |size: u32| {
        let bytes = with_struct_size(scxlab_sched::find("relay").unwrap().object, "question", size);
        let input = SchedulerInput::of_object("relay", &bytes, in_text(text)).unwrap();
        let scheduler = Prepared::simulated(&input, &machine).unwrap();
        run(&scheduler, "hogs", &machine).map(|_| ()).map_err(|e| e.to_string())
    };
    assert_eq!(outcome(65535), Ok(()));
    let refused =
        "r.toml:4: context of `which_cpu` has 65536 bytes; the kernel takes 65535 at most";
    assert_eq!(outcome(65536), Err(refused.to_owned()));
}

/// Returns the object with `size` as the size of the struct `name` in its BTF.
fn with_struct_size(object: &[u8], name: &str, size: u32) -> Vec<u8> {
    let find = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).position(|w| w == what);
    // `struct btf_header` of version 1: magic, version, flags, length, then offsets and lengths.
    let btf = find(object, &[0x9f, 0xeb, 1, 0, 24, 0, 0, 0]).expect("the object has BTF");
    let word = |at: usize| u32::from_le_bytes(object[at..at + 4].try_into().unwrap()) as usize;
    let (types, len, strings) =
        (btf + 24 + word(btf + 8), word(btf + 12), btf + 24 + word(btf + 16));
    let text = [&[0], name.as_bytes(), &[0]].concat();
    let name = (find(&object[strings..], &text).expect("the name") + 1) as u32;
    let at = types + find(&object[types..types + len], &name.to_le_bytes()).expect("the struct");
    // Kind 4 is BTF_KIND_STRUCT.
    assert_eq!(word(at + 4) >> 24 & 0x1f, 4);
    let mut changed = object.to_vec();
    changed[at + 8..at + 12].copy_from_slice(&size.to_le_bytes());
    changed
}

/// A recipe stores values that a program returns in its context in variables, and later formulas
/// use them. Formulas see the values of the object's variables that were set after load.
#[test]
fn what_programs_answer_is_used() {
    let machine = Arc::new(Machine::resolve("1n2c1t").unwrap());
    let text = "doc = 'd'\nsource = 's'\nleaves_out = []
        [[step]]
        set = { numa_enabled = false }
        [[step]]
        each = 'cpu'
        run = 'enable_sibling_cpu'
        ctx = { cpu_id = 'cpu', sibling_cpu_id = '1 - cpu' }
        returns = 'any'
        into = { 'other[cpu]' = 'sibling_cpu_id' }
        [[step]]
        each = 'cpu'
        require = 'other[cpu] == 1 - cpu && slice_max > 0'
        [[step]]
        set = { cpufreq_perf_lvl = 'other[0] + 40' }
        [[step]]
        attach = true
        [[step]]
        require = 'cpufreq_perf_lvl == 41'
        message = 'read again'";
    let scheduler = prepare("bpfland", "", &machine, in_text(text)).unwrap();
    let run = run(&scheduler, "hogs", &machine).unwrap();
    assert_eq!(run.exit.kind, "none", "{}", run.exit.message);
    let wrong = text.replace("== 41", "== 42");
    let scheduler = prepare("bpfland", "", &machine, in_text(&wrong)).unwrap();
    assert_eq!(
        self::run(&scheduler, "hogs", &machine).unwrap_err().to_string(),
        "r.toml:20: read again"
    );
}

/// Two runs with the same recipe must have the same trace, also if the recipe sorts iterations or
/// has tables of variables.
#[test]
fn recipes_are_deterministic() {
    let machine = Arc::new(Machine::resolve("2n2l2c2t").unwrap());
    let hashes = |name: &str| {
        let once = || {
            let scheduler = prepare(name, "", &machine, RecipeInput::Auto).unwrap();
            run(&scheduler, "sleepers,tasks=20", &machine).unwrap().trace_hash
        };
        (once(), once())
    };
    for name in ["lavd", "layered", "p2dq"] {
        let (a, b) = hashes(name);
        assert_eq!(a, b, "{name}");
    }
}

/// `Run.scheduler` is the user's text, so that results can be told apart.
#[test]
fn runs_carry_the_argument() {
    let machine = Arc::new(Machine::resolve("1n2c1t").unwrap());
    let scheduler = prepare("scx_simple", ",fifo_sched=true", &machine, RecipeInput::Auto).unwrap();
    let run = run(&scheduler, "hogs", &machine).unwrap();
    assert_eq!(run.scheduler, "scx_simple.bpf.o,fifo_sched=true");
}
