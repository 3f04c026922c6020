// SPDX-License-Identifier: GPL-2.0-only
//! Workloads of jobs that spin at barriers, the machine's tables, and a watch over who leads.

use scxlab_bpf::link::Loaded;
use scxlab_kernel::Kernel;
use scxlab_machine::Machine;
use scxlab_machine::id::CpuId;
use scxlab_testkit::state::global;
use std::collections::BTreeMap;

/// One cgroup with a thread for each CPU.
pub struct Job {
    pub name: &'static str,
    pub threads: u32,
    pub gang: bool,
    /// Ops before each barrier's work.
    pub before: &'static str,
    /// No barrier: each thread for itself.
    pub alone: bool,
    /// Each thread in a cgroup of its own below the job's.
    pub nested: bool,
}

impl Job {
    pub fn plain(name: &'static str, threads: u32) -> Self {
        Job { name, threads, gang: false, before: "", alone: false, nested: false }
    }

    pub fn gang(name: &'static str, threads: u32) -> Self {
        Job { gang: true, ..Job::plain(name, threads) }
    }
}

pub fn jobs(jobs: &[Job]) -> String {
    jobs.iter().map(job).collect()
}

fn job(job: &Job) -> String {
    let Job { name, before, .. } = job;
    let switch = if job.gang { "xattr = { \"user.cpu.gang\" = \"1\" }\n" } else { "" };
    let mut text = format!("[[cgroup]]\npath = \"/{name}\"\n{switch}");
    let meet = if job.alone { String::new() } else { format!("{{ spin_barrier = \"{name}\" }},") };
    for i in 0..job.threads {
        let below = if job.nested { format!("/{i}") } else { String::new() };
        text += &format!(
            "[[thread]]\nname = \"{name}-{i}\"\nprocess = \"{name}\"\ncgroup = \"/{name}{below}\"\ncpus = \"{i}\"\n\
             ops = [{{ loop = {{ ops = [{before} {{ compute = \"500us\" }}, {meet} {{ count = 1 }}] }} }}]\n"
        );
    }
    text
}

/// What the recipe `fair` sets.
pub fn topology(machine: &str) -> Vec<(String, String)> {
    let machine = Machine::resolve(machine).unwrap_or_else(|e| panic!("{e}"));
    let t = &machine.topology;
    let mut set = vec![("topo_cpus".to_owned(), t.nr_cpus().to_string())];
    for cpu in (0..t.nr_cpus() as u32).map(CpuId) {
        let info = t.cpu(cpu);
        let mut add = |table: &str, value: u32| {
            set.push((format!("{table}[{}]", cpu.0), value.to_string()));
        };
        add("cpu_core", info.core.0);
        add("cpu_llc", info.llc.0);
        add("cpu_node", info.node.0);
        add("cpu_order", cpu.0);
        add("core_size", 1);
    }
    set
}

/// Who leads which gang in which domain, as the CPUs themselves believe.
#[derive(Default)]
pub struct Leaders {
    /// Of each round the gang, the domain, and the leader.
    pub rounds: BTreeMap<u64, (u64, i64, u64)>,
    pub leading_now: usize,
}

impl Leaders {
    /// Panics if two CPUs lead a gang in one domain, or a round has two leaders.
    pub fn look(&mut self, k: &Kernel, loaded: &Loaded) {
        // Of each gang and domain: who leads, from when to when.
        let mut now: BTreeMap<(u64, i64), Vec<(u64, u64)>> = BTreeMap::new();
        for cpu in 0..k.cpus.len() as u64 {
            let of = |field: &str| global(k, loaded, &format!("gang_cpus[{cpu}].{field}"));
            let round = of("leads") as u64;
            if round == 0 {
                continue;
            }
            let (gang, domain) = (round >> 48, of("domain"));
            assert_eq!(round & 0xffff, cpu + 1, "a CPU leads its own rounds only");
            let seen = *self.rounds.entry(round).or_insert((gang, domain, cpu));
            assert_eq!(seen, (gang, domain, cpu), "round {round:#x} has two leaders");
            now.entry((gang, domain)).or_default().push((of("since") as u64, of("until") as u64));
        }
        // A leader whose time is over may not have looked at the clock yet, when another one is elected.
        for (what, rounds) in &mut now {
            rounds.sort();
            let apart = rounds.windows(2).all(|w| w[1].0 >= w[0].1);
            assert!(apart, "gang and domain {what:?} have two leaders: {rounds:?}");
        }
        let lasts = |rounds: &&Vec<(u64, u64)>| rounds.iter().any(|r| r.1 > k.now);
        self.leading_now = now.values().filter(lasts).count();
    }
}
