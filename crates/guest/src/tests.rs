// SPDX-License-Identifier: GPL-2.0-only
//! Unit tests of a guest's kernel on a host whose time a test advances by hand.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use scxlab_kernel::behavior::{
    Access, AccessId, Behavior, CgroupSpec, GuestRun, MemPolicy, Order, Policy, RegionId,
    RegionSpec, Sys, SysError, TaskSpec, TaskStep,
};
use scxlab_machine::Machine;
use scxlab_machine::cpumask::CpuMask;
use scxlab_machine::id::{CgroupId, CpuId, Nanos, TaskId};

use crate::memory::GuestMemory;
use crate::{Guest, GuestConfig, SpinLocks};

const US: Nanos = 1_000;
const MS: Nanos = 1_000_000;

/// A host without CPUs: a test calls the steps itself.
#[derive(Default)]
struct Host {
    now: Nanos,
    tasks: u32,
    /// Work that is left of a step that the test cut, by vCPU.
    rest: BTreeMap<u32, Nanos>,
    delay: BTreeMap<u32, Nanos>,
    /// vCPUs that are not on a CPU.
    preempted: BTreeSet<u32>,
    /// The class does this with directed yields.
    yields: bool,
    calls: Vec<String>,
}

impl Host {
    fn calls(&mut self) -> Vec<String> {
        std::mem::take(&mut self.calls)
    }
}

impl Sys for Host {
    fn must_schedule(&self) -> bool {
        false
    }

    fn now(&self) -> Nanos {
        self.now
    }
    fn this_cpu(&self) -> CpuId {
        CpuId(0)
    }
    fn cpu_of(&self, _: TaskId) -> CpuId {
        CpuId(0)
    }
    fn atomic_time(&self, _: Option<CpuId>) -> (CpuId, Nanos) {
        (CpuId(0), 0)
    }
    fn message_time(&self, _: Option<CpuId>, _: u64, _: u64) -> (CpuId, Nanos) {
        unreachable!()
    }
    fn nr_cpus(&self) -> u32 {
        1
    }
    fn wake(&mut self, task: TaskId, _: bool) -> bool {
        self.calls.push(format!("wake {task}"));
        true
    }
    fn stop_spin(&mut self, task: TaskId) {
        self.calls.push(format!("stop {task}"));
    }
    fn fork(&mut self, _: Option<TaskId>, _: TaskSpec) -> Result<TaskId, SysError> {
        self.tasks += 1;
        Ok(TaskId(self.tasks - 1))
    }
    fn charge(&mut self, cost: Nanos) {
        self.now += cost;
    }
    fn post(&mut self, _: Nanos, _: CpuId, _: u64) {}
    fn set_affinity(&mut self, _: TaskId, _: &CpuMask) -> Result<(), SysError> {
        Ok(())
    }
    fn set_nice(&mut self, _: TaskId, _: i8) -> Result<(), SysError> {
        Ok(())
    }
    fn set_policy(&mut self, _: TaskId, _: Policy) -> Result<(), SysError> {
        Ok(())
    }
    fn set_footprint(&mut self, _: TaskId, _: u64) {}
    fn mkdir(&mut self, _: CgroupId, _: &str, _: CgroupSpec) -> Result<CgroupId, SysError> {
        Ok(CgroupId(1))
    }
    fn rmdir(&mut self, _: CgroupId) -> Result<(), SysError> {
        Ok(())
    }
    fn set_cgroup(&mut self, _: CgroupId, _: CgroupSpec) -> Result<(), SysError> {
        Ok(())
    }
    fn set_cpuset(&mut self, _: CgroupId, _: Option<&CpuMask>) -> Result<(), SysError> {
        Ok(())
    }
    fn set_xattr(&mut self, _: CgroupId, _: &str, _: &[u8]) -> Result<(), SysError> {
        Ok(())
    }
    fn move_to_cgroup(&mut self, _: TaskId, _: CgroupId) -> Result<(), SysError> {
        Ok(())
    }
    fn set_cpu_online(&mut self, _: CpuId, _: bool) -> Result<(), SysError> {
        Ok(())
    }
    fn random(&mut self, _: &'static str, _: TaskId) -> u64 {
        0
    }
    fn count_work(&mut self, _: TaskId, _: u64) {}
    fn kick(&mut self, task: TaskId) {
        self.calls.push(format!("kick {task}"));
    }
    fn cut_rest(&mut self, task: TaskId) -> Nanos {
        self.rest.remove(&task.0).unwrap_or(0)
    }
    fn run_delay(&self, task: TaskId) -> Nanos {
        self.delay.get(&task.0).copied().unwrap_or(0)
    }
    fn is_on_cpu(&self, task: TaskId) -> bool {
        !self.preempted.contains(&task.0)
    }
    fn yield_to(&mut self, task: TaskId) -> bool {
        self.calls.push(format!("yield to {task}"));
        self.yields
    }
    fn region_new(&mut self, _: RegionSpec) -> Result<RegionId, SysError> {
        Ok(RegionId(7))
    }
    fn access_new(&mut self, access: Access) -> Result<AccessId, SysError> {
        self.calls.push(format!("{:?} from page {}", access.order, access.first_page));
        Ok(AccessId(self.calls.len() as u32))
    }
    fn guest_run(&mut self, _: GuestRun) {}
    fn finish(&mut self) {}
}

/// What a thread of the script does next.
#[derive(Clone, Copy)]
enum Act {
    Step(TaskStep),
    Wake(u32),
    Lock,
}

/// A program in which each thread does what its list says, then exits.
struct Script(Vec<VecDeque<Act>>);

impl Behavior for Script {
    fn start(&mut self, sys: &mut dyn Sys) {
        for n in 0..self.0.len() {
            let leader = (n > 0).then_some(TaskId(0));
            let affinity = Some(CpuMask::of(self.0.len(), [CpuId(n as u32)]));
            let name = format!("t{n}");
            let spec = TaskSpec { thread_group_of: leader, affinity, ..TaskSpec::normal(&name) };
            assert_eq!(sys.fork(None, spec), Ok(TaskId(n as u32)));
        }
    }
    fn step(&mut self, sys: &mut dyn Sys, task: TaskId) -> TaskStep {
        loop {
            match self.0[task.idx()].pop_front() {
                // A spin that nobody ends is asked for again.
                Some(Act::Step(TaskStep::Spin)) => {
                    self.0[task.idx()].push_front(Act::Step(TaskStep::Spin));
                    return TaskStep::Spin;
                }
                Some(Act::Step(step)) => return step,
                Some(Act::Wake(other)) => {
                    sys.wake(TaskId(other), false);
                }
                Some(Act::Lock) => {
                    sys.hold_lock(task, true);
                }
                None => return TaskStep::Exit,
            }
        }
    }
    fn on_timer(&mut self, _: &mut dyn Sys, _: u64) {}
    fn unit(&self) -> &str {
        "nothing"
    }
    fn waits_for(&self, _: TaskId) -> Option<String> {
        None
    }
}

const COMPUTE: Act = Act::Step(TaskStep::Compute { work: 3 * MS });
const SPIN: Act = Act::Step(TaskStep::Spin);
const BLOCK: Act = Act::Step(TaskStep::Block);

/// Boots a guest in which thread n of `threads` is on vCPU n, and calls each vCPU's first step.
fn boot(host: &mut Host, pv: bool, ple: bool, threads: &[&[Act]]) -> Guest {
    let mut machine = Machine::resolve("4c").unwrap();
    machine.ple = ple;
    let config = GuestConfig {
        name: "g".to_owned(),
        number: 0,
        cpus: vec![None; threads.len()],
        nice: 0,
        memory: None,
        spin_locks: SpinLocks::Queued,
        pv_spin_locks: pv,
        pv_tlb_flush: pv,
        halt_poll: 0,
    };
    let script = threads.iter().map(|acts| acts.iter().copied().collect()).collect();
    let mut guest = Guest::new(config, Arc::new(machine), Box::new(Script(script)));
    guest.boot(host, vec![CgroupId(0); threads.len()]).unwrap();
    for v in 0..threads.len() as u32 {
        guest.step(host, v);
    }
    guest
}

#[test]
fn a_cut_step_goes_on() {
    let mut host = Host::default();
    let mut guest = boot(&mut host, false, false, &[&[COMPUTE]]);
    host.now += MS;
    host.rest.insert(0, 2 * MS);
    assert_eq!(guest.step(&mut host, 0), TaskStep::Compute { work: 2 * MS });
    host.now += 2 * MS;
    assert_eq!(guest.step(&mut host, 0), TaskStep::Exit, "the last thread has exited");
    assert_eq!(guest.report(&host, host.now).threads[0].times.run, 3 * MS);
}

#[test]
fn time_off_the_cpu_is_stolen_from_the_thread() {
    let mut host = Host::default();
    let mut guest = boot(&mut host, false, false, &[&[COMPUTE, COMPUTE]]);
    host.now += 6 * MS;
    host.delay.insert(0, 3 * MS);
    guest.step(&mut host, 0);
    let report = guest.report(&host, host.now);
    let (vcpu, thread) = (report.vcpus[0].times, report.threads[0].times);
    assert_eq!((vcpu.user, vcpu.steal), (3 * MS, 3 * MS));
    assert_eq!((thread.run, thread.steal), (3 * MS, 3 * MS));
}

#[test]
fn a_wakeup_wakes_a_halted_vcpu_once() {
    let mut host = Host::default();
    let mut guest =
        boot(&mut host, false, false, &[&[COMPUTE, Act::Wake(1), COMPUTE], &[BLOCK, COMPUTE]]);
    assert_eq!(guest.stats().exits.halt, 1);
    host.calls();
    host.now += 3 * MS;
    guest.step(&mut host, 0);
    assert_eq!(host.calls(), ["wake 1"]);
    assert_eq!(guest.stats().exits.ipi, 1);
    host.now += US;
    assert_eq!(guest.step(&mut host, 1), TaskStep::Compute { work: 3 * MS });
}

#[test]
fn the_last_exit_powers_off() {
    let mut host = Host::default();
    let mut guest = boot(&mut host, false, false, &[&[COMPUTE], &[]]);
    host.calls();
    host.now += 3 * MS;
    assert_eq!(guest.step(&mut host, 0), TaskStep::Exit);
    assert_eq!(host.calls(), ["wake 1"], "the idle vCPU comes to its exit");
    assert_eq!(guest.step(&mut host, 1), TaskStep::Exit);
}

/// Candidates of a directed yield wait for a CPU in the guest's kernel. One that yielded itself
/// counts every second time.
#[test]
fn a_pause_loop_exit_yields_to_a_preempted_vcpu() {
    let mut host = Host::default();
    let threads: [&[Act]; 4] =
        [&[Act::Lock, SPIN], &[Act::Lock, SPIN], &[COMPUTE], &[Act::Lock, COMPUTE]];
    let mut guest = boot(&mut host, false, true, &threads);
    host.calls();
    host.yields = true;
    let mut exits = |host: &mut Host, vcpu: u32, preempted: &[u32]| {
        host.preempted = preempted.iter().copied().collect();
        host.now += MS / 2;
        assert!(matches!(guest.step(host, vcpu), TaskStep::SpinFor { .. }));
        host.calls().into_iter().filter(|call| call.starts_with("yield")).collect::<Vec<_>>()
    };
    assert_eq!(exits(&mut host, 0, &[1, 2, 3]), ["yield to 1"], "it was preempted while it span");
    assert_eq!(exits(&mut host, 0, &[1, 2, 3]), ["yield to 3"], "vCPU 2 is in user mode");
    assert_eq!(exits(&mut host, 1, &[3]), ["yield to 3"]);
    assert!(exits(&mut host, 0, &[1]).is_empty(), "vCPU 1 has yielded");
    assert_eq!(exits(&mut host, 0, &[1]), ["yield to 1"], "for the second time");
    host.yields = false;
    assert_eq!(exits(&mut host, 0, &[1, 3]), ["yield to 3"], "a refusal, and not vCPU 1 again");
}

#[test]
fn a_waiter_for_a_paravirtual_lock_halts_and_is_woken() {
    let mut host = Host::default();
    let mut guest = boot(&mut host, true, false, &[&[Act::Lock, SPIN], &[COMPUTE]]);
    let pause = guest.step(&mut host, 0);
    assert!(matches!(pause, TaskStep::SpinFor { .. }), "{pause:?}");
    host.now += MS / 2;
    assert!(matches!(guest.step(&mut host, 0), TaskStep::SleepUntil(_)));
    host.calls();
    guest.os.lock_freed(&mut host, 0, false);
    assert!(host.calls().is_empty(), "only the first waiter is woken");
    guest.os.lock_freed(&mut host, 0, true);
    assert_eq!(host.calls(), ["wake 0"]);
}

#[test]
fn a_flush_waits_for_vcpus_of_the_process() {
    let flush = Act::Step(TaskStep::FlushTlb);
    for pv in [false, true] {
        let mut host = Host::default();
        let mut guest =
            boot(&mut host, pv, false, &[&[COMPUTE, flush, COMPUTE], &[COMPUTE], &[BLOCK]]);
        host.calls();
        host.preempted.insert(1);
        host.now += 3 * MS;
        let step = guest.step(&mut host, 0);
        if pv {
            assert_eq!(step, TaskStep::Compute { work: 3 * MS });
            assert!(host.calls().is_empty());
            continue;
        }
        assert_eq!((step, host.calls()), (TaskStep::Spin, vec!["kick 1".to_owned()]));
        host.rest.insert(1, MS);
        assert_eq!(guest.step(&mut host, 1), TaskStep::Compute { work: MS });
        // vCPU 1 also ticks, and asks the idle vCPU 2 to balance.
        assert_eq!(host.calls(), ["stop 0", "wake 2"]);
        assert_eq!(guest.step(&mut host, 0), TaskStep::Compute { work: 3 * MS });
    }
}

/// A cut step goes on where its own thread stopped, so each thread has its own place in a region.
/// Random accesses have no place.
#[test]
fn threads_have_their_own_places_in_a_region() {
    let mut host = Host::default();
    let (name, policy) = ("m".to_owned(), MemPolicy::FirstTouch);
    let spec = RegionSpec {
        name,
        pages: 4096,
        policy,
        populate: Vec::new(),
        huge: false,
        merge_percent: 0,
    };
    let mut memory = GuestMemory::new(&mut host, spec).unwrap();
    memory.reserve(512).unwrap();
    let region = memory.reserve(512).unwrap();
    let access = |order| Access {
        region,
        first_page: 10,
        pages: 100,
        order,
        write: true,
        memory_permille: 500,
        period: 1024,
        traffic: 1,
    };
    let sequential = memory.access(access(Order::Sequential { resume: false })).unwrap();
    let random = memory.access(access(Order::Random)).unwrap();
    let mut at_host = |t, id| memory.at_host(&mut host, t, id).unwrap();
    let places = [at_host(0, sequential), at_host(1, sequential), at_host(0, sequential)];
    assert!(places[0] != places[1] && places[0] == places[2], "{places:?}");
    assert_eq!(at_host(0, random), at_host(1, random));
    let sequential = "Sequential { resume: true } from page 522";
    assert_eq!(host.calls(), [sequential, sequential, "Random from page 522"]);
}
