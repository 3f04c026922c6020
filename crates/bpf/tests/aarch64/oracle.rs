// SPDX-License-Identifier: GPL-2.0-only
//! The expected results, which are the interpreter's for each run, and the machine code that must
//! give the same results.
//!
//! Owns: the environment of a program, and the choice of what is compared after a run.
//! Does not: choose programs.

use std::collections::BTreeSet;

use scxlab_bpf::fault::{Access, Fault, FaultKind};
use scxlab_bpf::insn::random::{KFUNCS, Program};
use scxlab_bpf::insn::{call, decode};
use scxlab_bpf::jit::{CrossCompiled, generate};
use scxlab_bpf::kfunc::KfuncId;
use scxlab_bpf::map::{MapDef, map_flag, map_type};
use scxlab_bpf::mem::{ARENA_WINDOW, PAGE, Perm};
use scxlab_bpf::vm::bare::BareHost;
use scxlab_bpf::vm::{Config, Engine, FuncId, Image, InstanceId, InstanceParts, Limits, call_raw};

use crate::Words;

const MEM_SIZE: u64 = 2 * ARENA_WINDOW;
pub const NR_PAGES: u64 = MEM_SIZE / PAGE;
const LIMITS: Limits = Limits {
    insns_per_call: 5_000,
    call_depth: 8,
    nesting: 8,
    may_goto: 50,
    compile_after: u64::MAX,
};

/// The CPU on which programs run.
const CPU: u32 = 1;
const FRAME: u64 = 512;
const PAGES: u64 = 2;
const ARENA_PAGES: u32 = 4;
/// The pages that the harness compares: for each address that a program gets, this many pages
/// before the page of the address, and this many from that page on, as far as they are mapped.
const NEAR: u64 = 4;
/// Helpers that return the same value each time. `without_helpers` turns calls of other helpers
/// into calls of kernel functions.
const HELPERS: [u32; 5] = [5, 8, 35, 125, 158];

/// Argument of a run, in one register.
#[derive(Clone, Copy)]
pub enum Arg {
    Value(u64),
    /// Address of two pages that the program may write.
    Pages,
    /// Address of a kernel structure.
    Task,
    /// Address of the arena; 0 without an arena. Two of its four pages are mapped.
    Arena,
    /// The lower 32 bits of the arena's address.
    ArenaLow,
}

/// What a program of a case may write, which memory it has, and which functions are compiled.
#[derive(Clone, Copy, Default)]
pub struct Environment {
    pub kernel_stores: bool,
    pub arena: bool,
    /// Whether the program accesses no memory but its first frames. The harness then compares no
    /// other memory.
    pub frames_only: bool,
    /// Bit n is set if the table of code addresses lacks the address of function n, as if the
    /// function were not compiled. Code calls these functions through the host.
    pub not_compiled: u64,
}

/// The cases in the form that the harness reads, and what they cover.
#[derive(Default)]
pub struct Oracle {
    pub cases: Words,
    pub nr_cases: u64,
    pub code_bytes: u64,
    pub thunk: Vec<u8>,
    /// Operations (`Op`) in the cases, and the ways in which runs ended: 0 for a return, otherwise
    /// the number that `kind` gives the fault.
    pub ops: BTreeSet<u8>,
    pub ends: BTreeSet<u64>,
}

impl Oracle {
    /// Adds a program with its runs, which the harness makes one after the other in the same
    /// memory.
    pub fn case(&mut self, name: &str, mut program: Program, env: Environment, runs: &[[Arg; 5]]) {
        without_helpers(&mut program);
        let code = decode(&program.raw, &program.funcs, &program.probe);
        let code = code.unwrap_or_else(|error| panic!("{name}: {error}"));
        self.ops.extend(code.iter().map(|insn| insn.op as u8));
        let image =
            Image { name: name.to_owned(), code, funcs: program.funcs.clone(), ..Image::default() };
        let mut scene = TestHost::make(&image, env);
        let listed = Self::listed(&scene, env);
        self.head(name, &mut scene, &program, env);
        let before = self.memory(&scene.host, &listed);
        self.code(&image, env);
        self.runs(&mut scene, &program, listed, before, runs);
        self.nr_cases += 1;
    }

    /// Returns the pages that the harness maps and compares, which are those near the addresses
    /// that a program gets. In the harness, an access to any other page is a fault. If the access
    /// is no fault in the interpreter, the results differ and the test fails.
    fn listed(scene: &TestHost, env: Environment) -> Vec<u64> {
        // The harness also compares the guard page above the frames. No program reaches this page,
        // but the code records in it which call each frame waits for.
        let guard = scene.frames + PAGE;
        if env.frames_only {
            return vec![scene.frames - PAGE, guard];
        }
        let mem = &scene.host.vm.mem;
        let places = [scene.frames, scene.pages, scene.host.task, scene.arena];
        let near = |place: u64| {
            let first = place & !(PAGE - 1);
            (0..2 * NEAR).map(move |page| first.wrapping_add(PAGE * page).wrapping_sub(PAGE * NEAR))
        };
        let all: BTreeSet<u64> = places.into_iter().flat_map(near).collect();
        all.into_iter().filter(|page| *page == guard || mem.perm(*page) != Perm::None).collect()
    }

    fn head(&mut self, name: &str, scene: &mut TestHost, program: &Program, env: Environment) {
        let out = &mut self.cases;
        let name = format!("{name}\0");
        out.word(name.len() as u64);
        out.bytes(name.as_bytes());
        let deepest = scene.frames - u64::from(LIMITS.call_depth - 1) * FRAME;
        out.words([scene.frames, deepest, scene.arena, LIMITS.may_goto.into()]);
        out.words([CPU.into(), LIMITS.insns_per_call, env.kernel_stores.into()]);
        out.word(HELPERS.len() as u64);
        for helper in HELPERS {
            let value = scene.ask(&format!("call {helper}\nexit"));
            out.words([helper.into(), value]);
        }
        out.word(program.raw.len() as u64);
        for (raw, probe) in program.raw.iter().zip(&program.probe) {
            out.bytes(bytemuck::bytes_of(raw));
            out.word(u64::from(*probe));
        }
    }

    /// Writes the current contents of the pages to the case, and returns them.
    fn memory(&mut self, host: &BareHost, listed: &[u64]) -> Vec<Vec<u8>> {
        let out = &mut self.cases;
        out.word(listed.len() as u64);
        out.words(listed.iter().copied());
        let mut before = Vec::new();
        for page in listed {
            let bytes = page_of(host, *page).to_vec();
            out.word(host.vm.mem.perm(*page) as u64);
            let empty = bytes.iter().all(|byte| *byte == 0);
            out.word(u64::from(!empty));
            out.bytes(if empty { &[] } else { &bytes });
            before.push(bytes);
        }
        before
    }

    fn code(&mut self, image: &Image, env: Environment) {
        let code = generate(image, "aarch64", NR_PAGES).expect("a known machine");
        let CrossCompiled { funcs, access_thunk } =
            code.unwrap_or_else(|why| panic!("{}: {why}", image.name));
        let room = |code: &[u8]| (code.len() as u64).next_multiple_of(PAGE);
        if self.thunk.is_empty() {
            self.code_bytes += room(&access_thunk);
            self.thunk = access_thunk;
        }
        self.cases.word(funcs.len() as u64);
        for (nth, func) in funcs.iter().enumerate() {
            let compiled = env.not_compiled >> nth & 1 ^ 1;
            let start = image.funcs[nth].start;
            self.cases.words([start.into(), compiled, func.code.len() as u64]);
            self.cases.bytes(&func.code);
            self.code_bytes += room(&func.code);
        }
    }

    fn runs(
        &mut self,
        scene: &mut TestHost,
        program: &Program,
        listed: Vec<u64>,
        mut pages: Vec<Vec<u8>>,
        runs: &[[Arg; 5]],
    ) {
        self.cases.word(runs.len() as u64);
        for args in runs {
            self.run(scene, program, args);
            let changed = |(at, page): (usize, &u64)| {
                let now = page_of(&scene.host, *page);
                (now != pages[at]).then(|| (at, now.to_vec()))
            };
            let changed: Vec<_> = listed.iter().enumerate().filter_map(changed).collect();
            self.cases.word(changed.len() as u64);
            for (at, now) in changed {
                self.cases.word(at as u64);
                self.cases.bytes(&now);
                pages[at] = now;
            }
        }
    }

    fn run(&mut self, scene: &mut TestHost, program: &Program, args: &[Arg; 5]) {
        let regs = args.map(|arg| scene.value(arg));
        let out = &mut self.cases;
        let host = &mut scene.host;
        out.word(host.vm.executed);
        out.words(regs);
        let result = call_raw(host, scene.instance, FuncId(0), regs);
        let calls = std::mem::take(&mut host.kfunc_calls);
        out.word(calls.len() as u64);
        for (id, args) in calls {
            out.word(id.0.into());
            out.words(args);
        }
        let end = match &result {
            Ok(_) => 0,
            Err(fault) => kind(fault),
        };
        self.ends.insert(end);
        out.word(end);
        match result {
            Ok(value) => out.word(value),
            Err(fault) => write_fault(out, program, &fault),
        }
        out.words([host.vm.executed, host.vm.mem.arena_stores_dropped]);
    }
}

/// Number of a fault's kind in the harness.
fn kind(fault: &Fault) -> u64 {
    match fault.kind() {
        FaultKind::InsnLimit { .. } => 1,
        FaultKind::CallDepth { .. } => 2,
        FaultKind::Mem(_) => 3,
        FaultKind::BadCall { .. } => 4,
        other => panic!("no case should end so: {other}"),
    }
}

fn write_fault(out: &mut Words, program: &Program, fault: &Fault) {
    match fault.kind() {
        FaultKind::Mem(mem) => {
            out.words([mem.addr, mem.len.into(), u64::from(mem.access == Access::Store)]);
        }
        FaultKind::BadCall { addr } => out.word(*addr),
        _ => {}
    }
    let places = &fault.0.backtrace;
    out.word(places.len() as u64);
    for place in places {
        let start = program.funcs[place.func.0 as usize].start;
        out.word(u64::from(start + place.insn));
    }
    let known = fault.0.regs.iter().enumerate();
    let known = known.fold(0, |known, (reg, value)| known | u64::from(value.is_some()) << reg);
    out.word(known);
    out.words(fault.0.regs.iter().flatten().copied());
}

/// A host with a program and the memory that the program may access.
struct TestHost {
    host: BareHost,
    instance: InstanceId,
    /// A second instance, in which `ask` runs small programs to learn r10 and the results of
    /// helpers.
    aside: InstanceId,
    pages: u64,
    arena: u64,
    /// r10 of the first frame.
    frames: u64,
}

impl TestHost {
    fn make(image: &Image, env: Environment) -> TestHost {
        let config = Config {
            nr_cpus: 2,
            mem_size: MEM_SIZE,
            limits: LIMITS,
            engine: Engine::Interp,
            ..Config::default()
        };
        let mut host = BareHost::new(config).expect("8 GiB of address space");
        (host.cpu, host.now_ns) = (CPU, 123_456_789_012);
        host.allow_kernel_stores = env.kernel_stores;
        host.kfuncs = (0..KFUNCS).map(|id| (KfuncId(id), u64::from(id) << 30)).collect();
        let (instance, aside) = (host.vm.add_instance("case"), host.vm.add_instance("aside"));
        if env.arena {
            let def = MapDef {
                name: "arena".into(),
                map_type: map_type::ARENA,
                map_flags: map_flag::MMAPABLE,
                max_entries: ARENA_PAGES,
                ..MapDef::default()
            };
            host.vm.create_map(instance, &def).expect("an arena");
        }
        let arena = host.vm.instance(instance).map_or(0, |instance| instance.arena_base);
        if arena != 0 {
            host.vm.mem.set_perm(arena, 2 * PAGE, Perm::ReadWrite);
        }
        let pages = host.vm.mem.alloc_region(PAGES * PAGE, Perm::ReadWrite).expect("pages");
        let parts = InstanceParts { image: image.clone().into(), ..InstanceParts::default() };
        host.vm.install(instance, parts);
        let mut scene = TestHost { host, instance, aside, pages, arena, frames: 0 };
        scene.frames = scene.ask("r0 = r10\nexit");
        scene
    }

    /// Runs a small program and returns its result.
    fn ask(&mut self, text: &str) -> u64 {
        self.host.install_text(self.aside, text, Default::default()).expect(text);
        self.host.run(self.aside, "main", [0; 5]).expect(text)
    }

    fn value(&self, arg: Arg) -> u64 {
        match arg {
            Arg::Value(value) => value,
            Arg::Pages => self.pages,
            Arg::Task => self.host.task,
            Arg::Arena => self.arena,
            Arg::ArenaLow => self.arena & 0xffff_ffff,
        }
    }
}

fn page_of(host: &BareHost, page: u64) -> &[u8] {
    host.vm.mem.host_slice::<u8>(page, PAGE as usize)
}

/// Turns calls of helpers that the harness lacks into calls of kernel functions, whose arguments
/// the harness compares.
fn without_helpers(program: &mut Program) {
    for raw in program.raw.iter_mut().filter(|raw| raw.code == 0x85 && raw.src() == call::HELPER) {
        if !HELPERS.contains(&(raw.imm as u32)) {
            raw.regs = call::KFUNC << 4;
            raw.imm %= KFUNCS as i32;
        }
    }
}
