// SPDX-License-Identifier: GPL-2.0-only
//! The layout of the mailing-list thread (several gangs of eight on eight CPUs) and variants of it.

use scxlab_kernel::Kernel;
use scxlab_kernel::co_scheduling::CoschedState;
use scxlab_kernel::task::Task;
use scxlab_loader::link::Loaded;
use scxlab_machine::Machine;

/// Workload of each thread, repeated for ever.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// Computes for 500 us, then spins until the gang's last thread arrives.
    Barrier,
    /// Sleeps for 300 us, then does the same as `Barrier`.
    BarrierAndSleep,
    /// Twenty times: computes for 50 us, then for 3 us under a spin lock. Then sleeps for 2 ms.
    LockAndSleep,
}

/// CPUs on which a gang's thread i may run, on a machine of n CPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    Anywhere,
    /// Thread i of a gang may run only on CPU i modulo n, where n is the machine's number of CPUs.
    Each,
    /// As `Each`, except that the gang's last two threads are bound to the same CPU.
    TwoShare,
}

#[derive(Clone, Copy, Debug)]
pub struct GangLayout {
    pub machine: &'static str,
    pub gangs: u32,
    pub threads: u32,
    pub work: Work,
    pub bound: Bound,
    /// Whether the cgroups have three levels: a common parent, the gang, and a cgroup for each
    /// thread.
    pub nested: bool,
    pub seed: u64,
}

impl GangLayout {
    pub fn workload(&self) -> String {
        (0..self.gangs).map(|g| self.gang(g)).collect()
    }

    fn gang(&self, g: u32) -> String {
        let path = if self.nested { format!("/guests/g{g}") } else { format!("/g{g}") };
        let mut text =
            format!("[[cgroup]]\npath = \"{path}\"\nxattr = {{ \"user.cpu.gang\" = \"1\" }}\n");
        for i in 0..self.threads {
            let below = if self.nested { format!("/cpu{i}") } else { String::new() };
            let cpus = self.cpus_of(i);
            // Threads that are not bound spread over the CPUs one after the other.
            let start = match self.bound {
                Bound::Anywhere => {
                    format!("{{ sleep = \"{}us\" }}, ", 45 * (g * self.threads + i + 1))
                }
                Bound::Each | Bound::TwoShare => String::new(),
            };
            text += &format!(
                "[[thread]]\nname = \"g{g}-{i}\"\nprocess = \"g{g}\"\ncgroup = \"{path}{below}\"\n{cpus}\
                 ops = [{start}{{ loop = {{ ops = [{}] }} }}]\n",
                self.ops(g)
            );
        }
        text
    }

    fn cpus_of(&self, i: u32) -> String {
        let machine = Machine::resolve(self.machine).unwrap_or_else(|e| panic!("{e}"));
        let nr = machine.topology.nr_cpus() as u32;
        match self.bound {
            Bound::Anywhere => String::new(),
            Bound::Each => format!("cpus = \"{}\"\n", i % nr),
            Bound::TwoShare => format!("cpus = \"{}\"\n", (i % nr).min(self.threads.min(nr) - 2)),
        }
    }

    fn ops(&self, g: u32) -> String {
        let barrier =
            format!("{{ compute = \"500us\" }}, {{ spin_barrier = \"b{g}\" }}, {{ count = 1 }}");
        match self.work {
            Work::Barrier => barrier,
            Work::BarrierAndSleep => format!("{{ sleep = \"300us\" }}, {barrier}"),
            Work::LockAndSleep => format!(
                "{{ loop = {{ times = 20, ops = [{{ compute = \"50us\" }}, {{ spin_lock = \"l{g}\" }}, \
                 {{ compute = \"3us\" }}, {{ spin_unlock = \"l{g}\" }}, {{ count = 1 }}] }} }}, {{ sleep = \"2ms\" }}"
            ),
        }
    }
}

/// Numbers of samples of one gang: samples in which some of its tasks ran, and samples in which all
/// of its tasks ran that could run.
#[derive(Clone, Copy, Default)]
struct GangSamples {
    some: u64,
    all: u64,
}

/// For each gang, returns the time in which all of its runnable tasks ran, in thousandths of the
/// time in which some of them ran. Tasks in child cgroups of the gang count too; in the kernel's
/// own account of the cgroup, they do not.
pub fn together(k: &mut Kernel, gangs: u32, from: u64, to: u64) -> Vec<u64> {
    const STEP: u64 = 50_000;
    let mut seen = vec![GangSamples::default(); gangs as usize];
    let members: Vec<Vec<_>> = (0..gangs).map(|g| of_gang(k, g).map(|t| t.id).collect()).collect();
    for at in (from..to).step_by(STEP as usize) {
        k.advance(at);
        for (seen, members) in seen.iter_mut().zip(&members) {
            let are =
                |p| members.iter().filter(|&&t| k.tasks[t].account.cosched_state == p).count();
            let (waits, runs) = (are(CoschedState::Waits), are(CoschedState::Runs));
            if runs == 0 || waits + runs < 2 {
                continue;
            }
            seen.some += 1;
            seen.all += u64::from(waits == 0 || runs >= k.cpus.len());
        }
    }
    k.advance(to);
    seen.iter().map(|s| s.all * 1000 / s.some.max(1)).collect()
}

fn of_gang(k: &Kernel, g: u32) -> impl Iterator<Item = &Task> {
    let prefix = format!("g{g}-");
    k.tasks.iter().filter(move |t| t.name.starts_with(&prefix))
}

/// Result of one run.
#[derive(Debug)]
pub struct Outcome {
    pub coscheduled_permille: Vec<u64>,
    pub work: u64,
    pub longest_wait: u64,
    /// CPU time after the warm-up of the task that got the least, in ns.
    pub least_ns: u64,
}

/// Runs a layout. Measures `coscheduled_permille` from `warm_up` on, because gangs need this time
/// to agree on an order.
pub fn run(
    mut k: Kernel,
    _loaded: Loaded,
    layout: &GangLayout,
    warm_up: u64,
    until: u64,
) -> Outcome {
    k.start();
    k.advance(warm_up);
    let before: Vec<u64> = k.tasks.iter().map(|t| t.account.run_ns).collect();
    let coscheduled_permille = together(&mut k, layout.gangs, warm_up, until);
    super::assert_attached(&k);
    let workload = k.tasks.iter().zip(before).filter(|(t, _)| k.is_workload(t));
    let least_ns = workload.map(|(t, before)| t.account.run_ns - before).min().expect("tasks");
    let longest_wait = k.metrics.run_queue_wait.max();
    Outcome { coscheduled_permille, work: super::work(&k), longest_wait, least_ns }
}
