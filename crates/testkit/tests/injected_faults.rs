// SPDX-License-Identifier: GPL-2.0-only
//! Failures injected at each point in turn: memory, maps, `ops.init_task`. Each failure gives an
//! error or an outcome of the run, and leaves nothing behind.

use std::cell::Cell;
use std::rc::Rc;

use scxlab_kernel::Kernel;
use scxlab_kernel::ext::op::Op;
use scxlab_kernel::ext::program::{ExtProgram, NativeOps};
use scxlab_kernel::kernel::Stop;
use scxlab_kernel::task::Class;
use scxlab_kernel::task::behavior::{CgroupSpec, Sys, SysError};
use scxlab_loader::object::Object;
use scxlab_machine::id::CgroupId;
use scxlab_testkit::canary::{Canary, InjectedFault, ops_data};
use scxlab_testkit::checks;
use scxlab_testkit::sim::{attach, kernel};

const MS: u64 = 1_000_000;
const FORKERS: &str = "[[thread]]\nname = 'parent-{i}'\ninstances = 4\n\
     ops = [{ loop = { ops = [{ fork = 'child' }, { compute = '200us' }, { sleep = '300us' }] } }]\n\
     [[thread]]\nname = 'child'\ninstances = 0\nops = [{ compute = '100us' }]\n";

/// A scheduler that leaves tasks to the default dispatch and refuses one call of `ops.init_task`.
struct Refuses {
    left: Cell<u32>,
}

const EPERM: i32 = -1;

impl NativeOps for Refuses {
    fn has(&self, op: Op) -> bool {
        op == Op::InitTask
    }

    fn call(&self, _: &mut Kernel, _: Op, _: &[u64]) -> u64 {
        let left = self.left.get();
        self.left.set(left.wrapping_sub(1));
        if left == 0 { EPERM as u32 as u64 } else { 0 }
    }
}

/// Attaches a scheduler that refuses the `nth` task; returns whether the scheduler stayed.
fn refuse_task(nth: u32) -> bool {
    let mut k = kernel("2n2c1t", FORKERS, 1);
    k.start();
    k.advance(10 * MS);
    let refuses = Refuses { left: Cell::new(nth) };
    k.attach(ExtProgram::Native(Rc::new(refuses)), ops_data("refuses")).expect("a link");
    checks::after(&k);
    let stayed = k.ext.root.is_some();
    if !stayed {
        let message = &k.ext.exits[0].message;
        assert!(message.starts_with("ops.init_task() failed (-1) for "), "{nth}: {message}");
        assert!(k.tasks.iter().all(|t| t.class != Class::Ext), "{nth}");
        k.attach(Canary::program(InjectedFault::None), ops_data("next"))
            .expect("nothing is in its way");
        assert!(k.ext.root.is_some(), "{nth}: {:?}", k.ext.exits);
    }
    k.advance(30 * MS);
    checks::after(&k);
    assert_eq!(k.ext.exits.len(), usize::from(!stayed), "{nth}: {:?}", k.ext.exits);
    stayed
}

/// Refuses each task in turn, until the refused one belongs to a fork; then the fork fails and the
/// scheduler stays.
#[test]
fn any_task_may_be_refused() {
    let stayed = (0..).position(refuse_task).expect("some task is the last");
    assert!(stayed > 4, "four parents and their children: {stayed}");
}

/// A scheduler that refuses the `nth` cgroup that is made after it has attached.
struct RefusesCgroup {
    left: Cell<u32>,
}

impl NativeOps for RefusesCgroup {
    fn has(&self, op: Op) -> bool {
        op == Op::CgroupInit
    }

    fn call(&self, _: &mut Kernel, _: Op, _: &[u64]) -> u64 {
        let left = self.left.get();
        self.left.set(left.wrapping_sub(1));
        if left == 0 { EPERM as u32 as u64 } else { 0 }
    }
}

/// A refused `mkdir` leaves no directory behind, so that the same name can be made again.
#[test]
fn a_cgroup_that_the_scheduler_refuses_is_not_made() {
    let mut k = kernel("2n2c1t", FORKERS, 1);
    k.start();
    k.advance(10 * MS);
    // The scheduler initialises the root while it attaches, and accepts it.
    let refuses = RefusesCgroup { left: Cell::new(1) };
    k.attach(ExtProgram::Native(Rc::new(refuses)), ops_data("refuses")).expect("a link");
    let mut make = || k.user(|k| k.mkdir(CgroupId(0), "a", CgroupSpec::default()));
    assert_eq!(make(), Err(SysError::Invalid));
    let made = make().expect("the second is accepted");
    assert_eq!(k.cgroups.iter().count(), 2, "the root and the second");
    k.user(|k| k.rmdir(made)).expect("it is empty");
    k.advance(30 * MS);
    assert!(k.ext.root.is_some(), "{:?}", k.ext.exits);
    checks::after(&k);
}

/// The default class has a table of queues for each cgroup, with an entry for each CPU. The tables
/// count against the memory limit of the run, so fewer cgroups must fit on a machine with more
/// CPUs.
#[test]
fn cgroups_of_a_large_machine_count_against_the_limit() {
    let room_for = |machine: &str| {
        let mut k = kernel(machine, FORKERS, 1);
        k.start();
        // Set the limit 64 MiB (1 << 26) above the memory that boot has taken, so that cgroups have
        // as much on both machines.
        k.vm.mem.set_limit(k.vm.mem.charged() + (1 << 26));
        let make = |i: usize| {
            let made = k.user(|k| k.mkdir(CgroupId(0), &format!("g{i}"), CgroupSpec::default()));
            made.is_ok().then_some(())
        };
        let made = (0..).map_while(make).count();
        assert!(matches!(k.run(Some(20 * MS)), Stop::OutOfMemory(_)), "{machine}");
        made
    };
    let (small, large) = (room_for("1n8c1t"), room_for("8n128c1t"));
    assert!(large * 3 < small * 2, "{small} cgroups on 8 CPUs, {large} on 1,024");
}

/// Name of a scheduler, and its knobs.
type Subject = (&'static str, &'static [(&'static str, &'static str)]);

/// The knobs of `whim` make it call only functions that take memory, for task storage, masks and
/// elements of a map, and make no mistakes.
const SUBJECTS: [Subject; 3] = [
    ("fair", &[]),
    ("whim", &[("wrong_ppm", "0"), ("idle_mode", "2"), ("permitted", "0x100050")]),
    ("glutton", &[]),
];

/// Loads, attaches and runs a scheduler with the `nth` request for memory refused; returns false if
/// the run makes no `nth` request.
fn refuse_memory((name, knobs): Subject, nth: u64) -> bool {
    let mut k = kernel("1n2c2t", FORKERS, 1);
    let before = k.vm.maps.iter().count();
    k.vm.mem.refuse_request(nth);
    let bytes = scxlab_sched::find(name).expect("ours").object;
    let object = std::sync::Arc::new(Object::parse(bytes, name).expect("an object"));
    let target = k.target();
    let mut open = scxlab_loader::link::OpenObject::new(object);
    open.globals.fill_enum_globals("__", &target.btf);
    for (knob, value) in knobs {
        open.globals.set(knob, value).expect("a knob");
    }
    let loaded = open.load(&mut k, &target);
    match &loaded {
        Ok(loaded) => k.attach_object(loaded, None).unwrap_or_else(|e| panic!("{nth}: {e}")),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert_eq!(k.vm.maps.iter().count(), before, "{nth}: {error}");
            // The simulated memory must have recorded the refusal, because this record ends the
            // run.
            assert!(k.vm.mem.exceeded().is_some(), "{nth}: {error}");
        }
    }
    let stop = k.run(Some(20 * MS));
    let refused = k.vm.mem.exceeded().is_some();
    checks::after(&k);
    if refused {
        assert!(matches!(stop, Stop::OutOfMemory(_)), "{name}, {nth}: {stop:?}");
    } else {
        let stayed = stop == Stop::Finished && k.ext.exits.is_empty();
        assert!(stayed, "{name}, {nth}: {stop:?}, {:?}", k.ext.exits);
    }
    refused
}

/// Refuses each of the first 100 requests for memory, most of them from the load of the object, and
/// then some of the later requests, which tasks cause. Each refusal needs a run of its own.
#[test]
fn memory_may_be_short_at_any_point() {
    for subject in SUBJECTS {
        let mut nth = 0;
        while refuse_memory(subject, nth) {
            nth += if nth < 100 { 1 } else { nth / 4 };
        }
        assert!(nth > 4, "{}: {nth} requests", subject.0);
    }
}

/// After a run whose request for memory was refused, another run gets all its memory.
#[test]
fn a_refusal_stays_within_its_run() {
    assert!(refuse_memory(SUBJECTS[0], 0));
    let mut k = kernel("1n2c2t", FORKERS, 1);
    attach(&mut k, "vtime", scxlab_sched::find("vtime").expect("ours").object, &[]);
    assert_eq!(k.run(Some(20 * MS)), Stop::Finished);
    assert!(k.ext.exits.is_empty());
}
