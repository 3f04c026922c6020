// SPDX-License-Identifier: GPL-2.0-only
//! Workloads of jobs that spin at barriers, the machine's topology tables, and a checker of gang
//! leaders.

use scxlab_kernel::Kernel;
use scxlab_loader::link::Loaded;
use scxlab_machine::Machine;
use scxlab_machine::id::CpuId;
use scxlab_testkit::state::global;
use std::collections::{BTreeMap, BTreeSet};

/// One cgroup with `threads` threads, each bound to its own CPU.
pub struct Job {
    pub name: &'static str,
    pub threads: u32,
    pub gang: bool,
    /// Workload operations that each thread does before each of its compute operations.
    pub before: &'static str,
    /// Whether the job has no barrier. Otherwise, its threads meet at a barrier after each compute.
    pub no_barrier: bool,
    /// Whether each thread is in a cgroup of its own below the job's.
    pub nested: bool,
    /// Time from the start of one thread to that of the next. With 0, all start together, and may
    /// run together only because of that.
    pub apart_us: u32,
}

impl Job {
    pub fn plain(name: &'static str, threads: u32) -> Self {
        Job {
            name,
            threads,
            gang: false,
            before: "",
            no_barrier: false,
            nested: false,
            apart_us: 0,
        }
    }

    pub fn gang(name: &'static str, threads: u32) -> Self {
        Job { gang: true, ..Job::plain(name, threads) }
    }
}

pub fn jobs(jobs: &[Job]) -> String {
    (0..).zip(jobs).map(|(nth, job)| text_of(job, nth)).collect()
}

/// Returns the text of the job with this number.
fn text_of(job: &Job, nth: u32) -> String {
    let Job { name, before, .. } = job;
    let switch = if job.gang { "xattr = { \"user.cpu.gang\" = \"1\" }\n" } else { "" };
    let mut text = format!("[[cgroup]]\npath = \"/{name}\"\n{switch}");
    let meet =
        if job.no_barrier { String::new() } else { format!("{{ spin_barrier = \"{name}\" }},") };
    for i in 0..job.threads {
        let below = if job.nested { format!("/{i}") } else { String::new() };
        let start = match job.apart_us * (nth * job.threads + i) {
            0 => String::new(),
            us => format!("{{ sleep = \"{us}us\" }}, "),
        };
        text += &format!(
            "[[thread]]\nname = \"{name}-{i}\"\nprocess = \"{name}\"\ncgroup = \"/{name}{below}\"\ncpus = \"{i}\"\n\
             ops = [{start}{{ loop = {{ ops = [{before} {{ compute = \"500us\" }}, {meet} {{ count = 1 }}] }} }}]\n"
        );
    }
    text
}

/// Returns names and values of the scheduler's topology tables, for the globals that the recipe
/// `fair` sets.
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

/// The rounds of every domain that were observed so far.
#[derive(Default)]
pub struct Leaders {
    /// Indexed by round: the gang, the domain, and the leader's CPU.
    pub rounds: BTreeMap<u64, (u64, i64, u64)>,
    /// Indexed by domain: the serial number of the newest round.
    newest: BTreeMap<i64, u64>,
    pub leading_now: usize,
}

impl Leaders {
    /// Records the current rounds. Panics if a CPU takes part in a round that is not its domain's,
    /// or if a finished round reappears.
    pub fn look(&mut self, k: &Kernel, loaded: &Loaded) {
        let mut goes_on = BTreeSet::new();
        for cpu in 0..k.cpus.len() as u64 {
            let of = |field: &str| global(k, loaded, &format!("gang_cpus[{cpu}].{field}"));
            let domain = of("domain");
            let lead = |field: &str| global(k, loaded, &format!("gang_leads[{domain}].{field}"));
            let (round, joined) = (lead("round") as u64, of("round") as u64);
            assert_eq!(round >> 63, 0, "nobody is about to lead between two operations");
            if joined != 0 && !self.rounds.contains_key(&joined) {
                assert_eq!(joined, round, "CPU {cpu} takes part in its domain's round");
            }
            if round == 0 {
                continue;
            }
            let (gang, serial, leader) =
                (round >> 48, round >> 16 & 0xffff_ffff, (round & 0xffff) - 1);
            let leads_here = global(k, loaded, &format!("gang_cpus[{leader}].domain")) == domain;
            assert!(leads_here, "the leader is of the domain");
            self.rounds.insert(round, (gang, domain, leader));
            let newest = self.newest.entry(domain).or_default();
            assert!(serial >= *newest, "round {round:#x} was over");
            *newest = serial;
            if lead("until") as u64 > k.now {
                goes_on.insert(domain);
            }
        }
        self.leading_now = goes_on.len();
    }
}
