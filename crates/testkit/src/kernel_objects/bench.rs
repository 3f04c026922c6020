// SPDX-License-Identifier: GPL-2.0-only
//! A simulated machine with a test process on it: the environment of the C half of a test.
//!
//! Owns: opening, loading and attaching an object as the tests' headers do (`SCX_OPS_OPEN`,
//! `SCX_OPS_LOAD`, `RESIZE_ARRAY`), waiting, reading and writing globals.
//! Does not: contain any test. A method panics if it fails, which fails the test.

use super::script::{Script, Threads, sleeper};
use scxlab_kernel::Kernel;
use scxlab_kernel::behavior::{Sys, TaskSpec};
use scxlab_kernel::boot::Setup;
use scxlab_kernel::ext::object::ObjectAttachError;
use scxlab_kernel::kernel::Limits;
use scxlab_loader::link::{LinkError, Loaded, OpenObject};
use scxlab_loader::object::Object;
use scxlab_machine::Machine;
use scxlab_machine::cpumask::CpuMask;
use scxlab_machine::id::{CpuId, Nanos, TaskId};
use scxlab_trace::Tracer;
use std::path::PathBuf;
use std::sync::Arc;

/// One millisecond, in ns.
pub const MS: Nanos = 1_000_000;
/// One second, in ns.
pub const SEC: Nanos = 1_000_000_000;
/// Size of the guest's address space, in bytes.
const MEM_SIZE: u64 = 16 << 30;
/// Size in bytes of the debug dump that a frontend allocates (`UEI_DUMP_DFL_LEN`).
const UEI_DUMP_LEN: u64 = 32768;
const SEED: u64 = 1;

/// A running machine with a test process and one kernel worker thread per CPU.
pub struct TestMachine {
    pub k: Kernel,
    pub threads: Threads,
    /// The test process.
    pub runner: TaskId,
}

/// A child of the test process.
#[derive(Clone, Copy, Debug)]
pub struct Child {
    pub task: TaskId,
    pub pid: u32,
}

impl TestMachine {
    pub fn boot(machine: &str) -> TestMachine {
        let machine = Arc::new(Machine::resolve(machine).expect("a machine of the test table"));
        let setup = Setup {
            machine,
            seed: SEED,
            limits: Limits::default(),
            tracer: Tracer::default(),
            mem_size: MEM_SIZE,
        };
        let threads = Threads::default();
        let k = Kernel::boot(setup, Box::new(threads.clone())).expect("guest memory");
        let mut bench = TestMachine { k, threads, runner: TaskId(0) };
        bench.k.start();
        bench.runner = bench.spawn(TaskSpec::normal("runner"), sleeper(50_000, 2 * MS)).task;
        for cpu in 0..bench.nr_cpus() {
            let worker = TaskSpec {
                kthread: true,
                affinity: Some(bench.cpus([cpu])),
                ..TaskSpec::normal(&format!("kworker/{cpu}"))
            };
            bench.spawn(worker, sleeper(20_000, 4 * MS + Nanos::from(cpu) * 100_000));
        }
        bench
    }

    pub fn nr_cpus(&self) -> u32 {
        self.k.cpus.len() as u32
    }

    pub fn cpus(&self, cpus: impl IntoIterator<Item = u32>) -> CpuMask {
        CpuMask::of(self.k.cpus.len(), cpus.into_iter().map(CpuId))
    }

    /// Starts a child of the test process.
    pub fn spawn(&mut self, spec: TaskSpec, script: Script) -> Child {
        let threads = self.threads.clone();
        let fork = |k: &mut Kernel| {
            k.charge(k.machine.costs.syscall.fork_ns);
            threads.fork(k, None, spec, script)
        };
        let task = self.k.user(fork).expect("fork");
        Child { task, pid: self.k.tasks[task].pid }
    }

    /// Opens an object and fills in its `__SCX_*` constants, as `SCX_OPS_OPEN` does. Unlike this
    /// macro, the function does not set `hotplug_seq` of the ops.
    pub fn open(&self, name: &str) -> OpenObject {
        let mut open = OpenObject::new(object(name));
        open.globals.fill_enum_globals("__", &self.k.target().btf);
        open
    }

    /// Makes the preparations of `SCX_OPS_LOAD` and loads the object.
    pub fn try_load(&mut self, open: &mut OpenObject) -> Result<Loaded, LinkError> {
        if open.globals.find("uei_dump_len").is_ok() {
            set(open, "uei_dump_len", UEI_DUMP_LEN);
            resize(open, "uei_dump", UEI_DUMP_LEN);
        }
        let target = self.k.target();
        open.load(&mut self.k, &target)
    }

    pub fn load(&mut self, mut open: OpenObject) -> Loaded {
        self.try_load(&mut open).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Opens and loads an object that needs no preparation.
    pub fn open_and_load(&mut self, name: &str) -> Loaded {
        let open = self.open(name);
        self.load(open)
    }

    pub fn try_attach(&mut self, loaded: &Loaded, table: &str) -> Result<(), ObjectAttachError> {
        self.k.attach_object(loaded, Some(table))
    }

    /// Attaches a struct_ops table, as `bpf_map__attach_struct_ops()` does; panics if this fails.
    pub fn attach(&mut self, loaded: &Loaded, table: &str) {
        self.try_attach(loaded, table).unwrap_or_else(|error| panic!("{table}: {error}"));
    }

    /// Detaches the scheduler, as `bpf_link__destroy()` does.
    pub fn detach(&mut self) {
        self.k.detach();
    }

    /// Lets virtual time pass; the run must not end.
    pub fn sleep(&mut self, ns: Nanos) {
        let until = self.k.now + ns;
        if let Some(stop) = self.k.advance(until) {
            panic!("the run stopped: {stop:?}");
        }
    }

    /// Waits until a condition holds, checking it every 100 us; panics after `limit`.
    pub fn wait(&mut self, limit: Nanos, what: &str, mut so: impl FnMut(&mut Kernel) -> bool) {
        let end = self.k.now + limit;
        while !so(&mut self.k) {
            assert!(self.k.now < end, "not within {} ms: {what}", limit / MS);
            self.sleep(100_000);
        }
    }

    /// Waits until all of `children` have exited, as `waitpid(2)` does.
    pub fn wait_exited(&mut self, children: &[Child], limit: Nanos) {
        self.wait(limit, "all children exit", |k| {
            children.iter().all(|c| k.tasks.by_pid(c.pid) != Some(c.task))
        });
    }

    /// Reads a global of at most 8 bytes, zero-extended.
    pub fn get(&self, loaded: &Loaded, path: &str) -> u64 {
        get(&self.k, loaded, path)
    }

    /// Reads a global that holds a C string.
    pub fn text(&self, loaded: &Loaded, path: &str) -> String {
        let place = loaded.global(path).unwrap_or_else(|error| panic!("{error}"));
        let bytes = self.k.vm.mem.bytes(place.addr, place.size).expect("a global is mapped");
        let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }

    /// Writes a global of a loaded object, as the frontend does through its mapping.
    pub fn put(&mut self, loaded: &Loaded, path: &str, value: u64) {
        loaded
            .write_global(&mut self.k.vm, path, &value.to_string())
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Fills a global with zeros, as `memset(&skel->data->..., 0, ...)` does.
    pub fn clear(&mut self, loaded: &Loaded, path: &str) {
        let place = loaded.global(path).unwrap_or_else(|error| panic!("{error}"));
        let zeros = vec![0; place.size as usize];
        self.k.vm.poke(place.addr, &zeros).expect("a global can be written");
    }

    /// Takes a CPU off line or on line, as through sysfs.
    pub fn set_online(&mut self, cpu: u32, online: bool) {
        self.k.user(|k| k.set_cpu_online(CpuId(cpu), online)).expect("hotplug");
    }

    /// `bpf_prog_test_run_opts()` of a syscall program; returns the program's return value.
    pub fn run_syscall(&mut self, loaded: &Loaded, program: &str, ctx: &mut [u8]) -> i32 {
        let func = loaded.func(program).unwrap_or_else(|| panic!("no program {program}"));
        let instance = loaded.instance;
        self.k
            .user(|k| k.run_syscall(instance, func, ctx))
            .unwrap_or_else(|fault| panic!("{program}: {fault}")) as i32
    }

    /// Returns the exit record of the object (`UEI_RECORD`): kind, code and message.
    pub fn uei(&self, loaded: &Loaded) -> (u64, i64, String) {
        let kind = self.get(loaded, "uei.kind");
        (kind, self.get(loaded, "uei.exit_code") as i64, self.text(loaded, "uei.msg"))
    }

    /// Asserts the exit kind in the exit record, as `SCX_EQ(skel->data->uei.kind, kind)` does.
    pub fn expect_kind(&self, loaded: &Loaded, kind: u64) {
        let (actual, code, message) = self.uei(loaded);
        assert_eq!(actual, kind, "exit kind, with code {code:#x} and message \"{message}\"");
    }

    /// Brings the accounts up to date and checks the laws that apply to every simulation.
    pub fn finish(mut self) {
        self.k.close();
        crate::checks::after(&self.k);
    }
}

/// Reads a global of a loaded object, of at most 8 bytes, zero-extended.
pub fn get(k: &Kernel, loaded: &Loaded, path: &str) -> u64 {
    let place = loaded.global(path).unwrap_or_else(|error| panic!("{error}"));
    let bytes = k.vm.mem.bytes(place.addr, place.size).expect("a global is mapped");
    let mut value = [0; 8];
    value[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(value)
}

/// Sets a global before load.
pub fn set(open: &mut OpenObject, path: &str, value: u64) {
    open.globals.set(path, &value.to_string()).unwrap_or_else(|error| panic!("{error}"));
}

/// Resizes a global array before load, as `RESIZE_ARRAY` does.
pub fn resize(open: &mut OpenObject, array: &str, len: u64) {
    open.globals.resize_array(array, len).unwrap_or_else(|error| panic!("{error}"));
}

/// Sets bits in `ops.flags` before load.
pub fn add_flags(open: &mut OpenObject, table: &str, flags: u64) {
    let object = open.object().clone();
    let edit = open.table_mut(table).unwrap_or_else(|| panic!("no table {table}"));
    let old: u64 = edit.get(&object.btf, "flags").expect("flags").parse().expect("a number");
    edit.set(&object.btf, "flags", &(old | flags).to_string()).expect("flags");
}

/// Reads the compiled object called `name`.
fn object(name: &str) -> Arc<Object> {
    let file = format!("{name}.bpf.o");
    let path = objects_dir().join(&file);
    let bytes = std::fs::read(&path).unwrap_or_else(|error| {
        panic!("{}: {error}; `make kernel-objects` compiles the kernel's objects", path.display())
    });
    Arc::new(Object::parse(&bytes, &file).unwrap_or_else(|error| panic!("{error}")))
}

/// Output folder of `make kernel-objects`.
pub fn objects_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../build/kernel/objects")
}
