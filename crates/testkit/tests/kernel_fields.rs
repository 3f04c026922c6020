// SPDX-License-Identifier: GPL-2.0-only
//! No field of the kernel reads a silent zero: each field that `crates/kernel/abi/kernel.h`
//! declares, and that a program can reach from a task or a run queue, takes a non-zero value in a
//! busy run or is listed here with the reason why not.

use scxlab_kernel::Kernel;
use scxlab_kernel::boot::PERCPU_STRIDE;
use scxlab_kernel::ext::op::Op;
use scxlab_kernel::ext::program::{ExtProgram, NativeOps};
use scxlab_loader::btf::{Btf, BtfKind, TypeId};
use scxlab_loader::link::Target;
use scxlab_machine::id::CpuId;
use scxlab_testkit::canary::ops_data;
use scxlab_testkit::checks;
use scxlab_testkit::sim::kernel;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

const MS: u64 = 1_000_000;
const QUEUE: u64 = 7;

/// Fields that are zero in this run, and why that is correct for the simulated machine.
const ALWAYS_ZERO: [(&str, &str); 15] = [
    ("cred.egid.val", "every task runs as root"),
    ("cred.euid.val", "every task runs as root"),
    ("cred.gid.val", "every task runs as root"),
    ("cred.sgid.val", "every task runs as root"),
    ("cred.suid.val", "every task runs as root"),
    ("cred.uid.val", "every task runs as root"),
    ("pid.level", "there is one pid namespace"),
    ("pid_namespace.level", "there is one pid namespace"),
    ("sched_ext_entity.disallow", "for schedulers to set"),
    ("task_struct.mempolicy", "no task has a memory policy; NULL is the default one"),
    ("task_struct.migration_disabled", "nothing in the simulated kernel disables migration"),
    ("task_struct.numa_pages_migrated", "no thread has regions; see `numa.rs`"),
    ("task_struct.total_numa_faults", "no thread has regions; see `numa.rs`"),
    ("rq.lost_idle_time", "the CPUs are equal; see `a_slow_cpu_loses_time`"),
    ("task_struct.stime", "see `ticks_are_charged_where_they_find_the_task`"),
];

/// The kernel's fields that `walk` has visited, by `struct.field`: true once `walk` has seen a
/// non-zero value.
#[derive(Default)]
struct FieldCoverage {
    fields: BTreeMap<String, bool>,
    done: BTreeSet<(u64, u32)>,
}

impl FieldCoverage {
    /// Visits the fields of a struct in guest memory, and of the structs to which it points. In the
    /// names of fields, `part_of` stands for an unnamed struct.
    fn walk(&mut self, k: &Kernel, btf: &Btf, ty: TypeId, addr: u64, part_of: &str) {
        if !self.done.insert((addr, ty.0)) {
            return;
        }
        let owner = if btf.name(ty).is_empty() { part_of } else { btf.name(ty) };
        for member in btf.members(ty) {
            let of = btf.resolve(member.ty).expect("a type");
            let at = addr + u64::from(member.bit_off / 8);
            let name = format!("{owner}.{}", member.name);
            match btf.kind(of) {
                BtfKind::Struct => self.walk(k, btf, of, at, &name),
                BtfKind::Array if self.walk_array(k, btf, of, at) => {}
                kind => {
                    let size = btf.size_of(of).expect("a size") as usize;
                    let bytes = k.vm.mem.host_slice::<u8>(at, size);
                    let set = bytes.iter().any(|b| *b != 0);
                    *self.fields.entry(name).or_default() |= set;
                    if kind == BtfKind::Ptr && set {
                        self.follow(k, btf, of, bytes);
                    }
                }
            }
        }
    }

    /// Visits an array of structs; returns false for an array of anything else.
    fn walk_array(&mut self, k: &Kernel, btf: &Btf, ty: TypeId, addr: u64) -> bool {
        let array = btf.array(ty).expect("an array");
        let of = btf.resolve(array.elem).expect("a type");
        let size = btf.size_of(of).expect("a size");
        if btf.kind(of) != BtfKind::Struct {
            return false;
        }
        (0..u64::from(array.len)).for_each(|i| self.walk(k, btf, of, addr + i * size, ""));
        true
    }

    fn follow(&mut self, k: &Kernel, btf: &Btf, pointer: TypeId, bytes: &[u8]) {
        let target = btf.ty(pointer).expect("a type").target().expect("a pointer");
        let target = btf.resolve(target).expect("a type");
        let addr = u64::from_ne_bytes(bytes.try_into().expect("a pointer"));
        let is_list = btf.name(target) == "list_head";
        if btf.kind(target) == BtfKind::Struct && !is_list {
            self.walk(k, btf, target, addr, "");
        }
    }
}

/// A scheduler that inspects all fields in every operation.
struct FieldReader(Rc<RefCell<FieldCoverage>>);

impl NativeOps for FieldReader {
    fn has(&self, op: Op) -> bool {
        use Op::*;
        matches!(op, Init | SelectCpu | Enqueue | Dispatch | Running | Stopping)
    }

    fn call(&self, k: &mut Kernel, op: Op, args: &[u64]) -> u64 {
        let ret = match op {
            Op::Init => return k.kf_create_dsq(QUEUE, -1),
            Op::SelectCpu => {
                let _ = k.kf_dsq_insert(args[0], QUEUE, 3 * MS, Some(k.now), 0x4000_0000_0000);
                args[1]
            }
            Op::Enqueue => {
                k.kf_dsq_insert(args[0], QUEUE, 3 * MS, Some(k.now), 0).unwrap_or_default()
            }
            Op::Dispatch => k.kf_move_to_local(QUEUE, 0),
            _ => 0,
        };
        look(k, &mut self.0.borrow_mut());
        ret
    }
}

fn look(k: &Kernel, seen: &mut FieldCoverage) {
    let target = k.target();
    let btf = target.btf();
    let find = |name: &str| btf.find(name, BtfKind::Struct).expect("a struct of the kernel");
    seen.done.clear();
    for task in k.tasks.iter() {
        seen.walk(k, btf, find("task_struct"), task.addr, "");
    }
    let rq = target.ksym_var("runqueues").expect("a variable of the kernel").addr;
    for cpu in 0..k.cpus.len() as u64 {
        seen.walk(k, btf, find("rq"), rq + cpu * PERCPU_STRIDE, "");
    }
}

const BUSY: &str = r#"
    duration = "200ms"
    [[cgroup]]
    path = "/limited"
    weight = 300
    quota = "8ms"
    period = "10ms"
    burst = "1ms"
    [[cgroup]]
    path = "/limited/idle"
    idle = true
    [[thread]]
    name = "worker"
    instances = 3
    process = "p"
    cgroup = "/limited"
    ops = [{ loop = { ops = [{ compute = "3ms" }, { sleep = "1ms" }] } }]
    [[thread]]
    name = "low"
    cgroup = "/limited/idle"
    ops = [{ loop = { ops = [{ compute = "3ms" }, { sleep = "1ms" }] } }]
    [[thread]]
    name = "hog"
    instances = 4
    nice = 5
    ops = [{ loop = { ops = [{ compute = "3ms" }, "yield"] } }]
    [[thread]]
    name = "clock"
    policy = { fifo = 3 }
    ops = [{ loop = { ops = [{ compute = "1ms" }, { sleep = "5ms" }] } }]
"#;

#[test]
fn every_field_is_filled_or_explained() {
    let mut k = kernel("2n2c1t", BUSY, 1);
    let seen = Rc::new(RefCell::new(FieldCoverage::default()));
    k.start();
    k.advance(40 * MS);
    k.attach(ExtProgram::Native(Rc::new(FieldReader(seen.clone()))), ops_data("looker")).unwrap();
    k.advance(120 * MS);
    checks::after(&k);
    assert!(k.ext.exits.is_empty(), "{:?}", k.ext.exits);
    let seen = seen.borrow();
    let zero: BTreeSet<&str> =
        seen.fields.iter().filter(|(_, set)| !**set).map(|(name, _)| name.as_str()).collect();
    let explained = ALWAYS_ZERO.iter().map(|(name, _)| *name).collect();
    let silent: Vec<_> = zero.difference(&explained).collect();
    assert!(silent.is_empty(), "declared, reachable and never filled: {silent:?}");
    let stale: Vec<_> = explained.difference(&zero).collect();
    assert!(stale.is_empty(), "listed as always zero, but filled or gone: {stale:?}");
}

fn task_field(k: &Kernel, name: &str, field: &str) -> u64 {
    *k.vm.mem.host_ref(place_in_task(k, name, field))
}

fn place_in_task(k: &Kernel, name: &str, field: &str) -> u64 {
    let target = k.target();
    let ts = target.btf().find("task_struct", BtfKind::Struct).expect("a struct of the kernel");
    let place = target.btf().path(ts, field).expect("a field");
    let task = k.tasks.iter().find(|t| t.name == name).expect("a task");
    task.addr + place.byte_off()
}

fn rq_field(k: &Kernel, cpu: u64, field: &str) -> u64 {
    let target = k.target();
    let rq = target.btf().find("rq", BtfKind::Struct).expect("a struct of the kernel");
    let place = target.btf().path(rq, field).expect("a field");
    let addr = target.ksym_var("runqueues").expect("a variable of the kernel").addr;
    *k.vm.mem.host_ref(addr + cpu * PERCPU_STRIDE + place.byte_off())
}

/// `tgid` is the process's id for every thread, regardless of the number of threads that joined it
/// before.
#[test]
fn every_thread_has_its_process_s_tgid() {
    let threads: String = (0..4)
        .map(|n| {
            format!("[[thread]]\nname = 't{n}'\nprocess = 'p'\nops = [{{ compute = '5ms' }}]\n")
        })
        .collect();
    let text = format!("{threads}[[thread]]\nname = 'other'\nops = [{{ compute = '5ms' }}]\n");
    let mut k = kernel("2c", &text, 1);
    k.start();
    k.advance(2 * MS);
    let number = |name, field| *k.vm.mem.host_ref::<u32>(place_in_task(&k, name, field));
    let leader = number("t0", "pid");
    for name in ["t0", "t1", "t2", "t3"] {
        assert_eq!(number(name, "tgid"), leader, "{name}");
    }
    assert_eq!(number("other", "tgid"), number("other", "pid"));
}

/// A tick charges a whole tick period to the mode that it interrupts, as in a kernel without
/// nohz_full.
#[test]
fn ticks_are_charged_where_they_find_the_task() {
    let text = r#"
        [[thread]]
        name = "user"
        cpus = "0"
        ops = [{ loop = { ops = [{ compute = "5ms" }] } }]
        [[thread]]
        name = "kernel"
        cpus = "1"
        ops = [{ loop = { ops = [{ compute = "100ns" }, "yield"] } }]
    "#;
    let mut k = kernel("2c", text, 1);
    k.start();
    k.advance(4_000 * MS);
    let times = |name| (task_field(&k, name, "utime"), task_field(&k, name, "stime"));
    let (user, kernel) = (times("user"), times("kernel"));
    assert!(user.0 > 3_900 * MS && user.1 < 40 * MS, "in user mode, but utime, stime = {user:?}");
    assert!(kernel.1 > kernel.0, "mostly in the kernel, but utime, stime = {kernel:?}");
    assert_eq!((user.0 + user.1) % k.machine.costs.tick_period_ns(), 0);
}

/// The PELT clock of a slow CPU lags while the CPU is busy and catches up when the CPU becomes
/// idle. If the default class has kept the CPU busy all along until then, the kernel adds the lag
/// to `lost_idle_time`, and load averages leave this time out.
#[test]
fn a_slow_cpu_loses_time() {
    let text = r#"
        [[thread]]
        name = "t"
        cpus = "0"
        ops = [{ compute = "400ms" }, { sleep = "20ms" }, { compute = "100ms" }, { sleep = "1s" }]
    "#;
    let mut k = kernel("biglittle-4b4l", text, 1);
    let speed = u64::from(k.machine.topology.cpu(CpuId(0)).capacity);
    let first = 400 * MS * 1024 / speed;
    let second = 100 * MS * 1024 / speed;
    k.start();
    k.advance(first + 10 * MS);
    let seen = Rc::new(RefCell::new(FieldCoverage::default()));
    k.attach(ExtProgram::Native(Rc::new(FieldReader(seen))), ops_data("looker")).unwrap();
    k.advance(first + 20 * MS + second / 2);
    let lag = |k: &Kernel| rq_field(k, 0, "clock_task") - rq_field(k, 0, "clock_pelt");
    assert!(speed < 1024, "CPU 0 is a little one");
    assert!(rq_field(&k, 0, "lost_idle_time") > 100 * MS);
    assert!(lag(&k) > 30 * MS, "busy on a little CPU, and only {} ns behind", lag(&k));
    k.advance(first + second + 500 * MS);
    assert_eq!(lag(&k), 0, "idle again");
}
