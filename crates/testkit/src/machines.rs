// SPDX-License-Identifier: GPL-2.0-only
//! Random machines, in the format of machine files, and random workloads that fit them.
//!
//! Owns: the range of machines and workloads drawn. Does not: run anything. Equal seeds give equal
//! texts, so the seed identifies a failure.
//!
//! No drawn machine has a cache that several nodes share: x86 kernels split such a cache at the
//! nodes' borders, and `Topology` refuses it.

mod loads;

pub use loads::{LOADS, RandomLoad, load};

use std::fmt::Write;

use scxlab_machine::{Machine, Stream};

/// Largest distance that `Topology` accepts; 255 means "unreachable".
const FAR: u64 = 254;

/// A machine with its description as a machine file.
pub struct RandomMachine {
    pub machine: Machine,
    pub text: String,
}

/// Draws a machine of 1 to `cpus_max` CPUs: 1 to 8 nodes, with or without SMT, regular (all nodes
/// and LLCs alike) or not, hybrid or not.
pub fn machine(seed: u64, cpus_max: u64) -> RandomMachine {
    let mut rng = Stream::new(seed, "machine", cpus_max);
    let cores = cores(&mut rng, cpus_max);
    let mut text = String::from(
        "name = \"random\"\ndescription = \"drawn\"\nsource = \"a seed\"\n[topology]\n",
    );
    write_parts(&mut text, &mut rng, &cores);
    write_distances(&mut text, &mut rng, cores.len() as u64);
    if rng.below(4) == 0 {
        write_capacities(&mut text, &mut rng, &cores);
    }
    let machine =
        Machine::from_toml("random.toml", &text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    RandomMachine { machine, text }
}

/// Number of threads of each core, by node and LLC.
type Cores = Vec<Vec<Vec<u64>>>;

fn pick(rng: &mut Stream, from: &[u64]) -> u64 {
    from[rng.below(from.len() as u64) as usize]
}

fn cores(rng: &mut Stream, cpus_max: u64) -> Cores {
    let nodes = pick(rng, &[1, 1, 2, 2, 2, 3, 4, 8]).min(cpus_max);
    let regular = rng.below(2) == 0;
    let threads = pick(rng, &[1, 2]);
    let room = (cpus_max / nodes).max(1);
    let node = |rng: &mut Stream| {
        let llcs = pick(rng, &[1, 1, 2, 4]).min(room);
        let room = (room / llcs).max(1);
        let llc = |rng: &mut Stream| {
            let threads = threads.min(room);
            // Draw at least half of the available cores, so that large machines are as frequent as
            // small ones.
            let cores = rng.between((room / threads).div_ceil(2), room / threads);
            (0..cores).map(|_| if regular { threads } else { rng.between(1, threads) }).collect()
        };
        let first: Vec<u64> = llc(rng);
        (0..llcs).map(|_| if regular { first.clone() } else { llc(rng) }).collect()
    };
    let first: Vec<Vec<u64>> = node(rng);
    (0..nodes).map(|_| if regular { first.clone() } else { node(rng) }).collect()
}

/// Writes cores, LLCs and nodes. A core's second thread has the number after that of the core's
/// first thread, or all second threads have numbers after those of all first threads.
fn write_parts(text: &mut String, rng: &mut Stream, cores: &Cores) {
    let firmware = rng.below(2) == 0;
    let nr_cores = cores.iter().flatten().map(|llc| llc.len() as u64).sum::<u64>();
    let (mut core, mut next, mut second) = (0, 0, nr_cores);
    let (mut of_cores, mut of_llcs, mut of_nodes) = (String::new(), String::new(), String::new());
    for node in cores {
        let mut in_node = Vec::new();
        for llc in node {
            let mut in_llc: Vec<u64> = Vec::new();
            for &threads in llc {
                let first = if firmware { core } else { next };
                let mut cpus = vec![first];
                for i in 1..threads {
                    cpus.push(if firmware { second } else { first + i });
                    second += 1;
                }
                (core, next) = (core + 1, next + threads);
                writeln!(of_cores, "  {{ cpus = \"{}\" }},", list(&cpus)).expect("a string");
                in_llc.extend(cpus);
            }
            writeln!(of_llcs, "  {{ cpus = \"{}\" }},", list(&in_llc)).expect("a string");
            in_node.extend(in_llc);
        }
        writeln!(of_nodes, "  {{ cpus = \"{}\" }},", list(&in_node)).expect("a string");
    }
    write!(text, "cores = [\n{of_cores}]\nllcs = [\n{of_llcs}]\nnodes = [\n{of_nodes}]\n")
        .expect("a string");
}

fn list(cpus: &[u64]) -> String {
    cpus.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
}

/// Writes the distances: all equal, a line, a ring, pairs, or arbitrary. Lines, rings and arbitrary
/// distances can give domains that overlap.
fn write_distances(text: &mut String, rng: &mut Stream, nodes: u64) {
    let kind = rng.below(6);
    let (one, step) = (rng.between(11, FAR), rng.between(1, 60));
    let some = [rng.between(11, 30), rng.between(31, 60), rng.between(61, FAR)];
    let mut rows = vec![vec![10; nodes as usize]; nodes as usize];
    for a in 0..nodes {
        for b in 0..a {
            let hops = a - b;
            let distance = match kind {
                0 => return,
                1 => one,
                2 => 10 + step * hops,
                3 => 10 + step * hops.min(nodes - hops),
                4 => some[if a / 2 == b / 2 { 0 } else { 2 }],
                _ => pick(rng, &some),
            };
            rows[a as usize][b as usize] = distance.min(FAR);
            rows[b as usize][a as usize] = distance.min(FAR);
        }
    }
    writeln!(text, "distances = {rows:?}").expect("a string");
}

/// Writes capacities: a random number of CPUs has the full capacity, and all further CPUs have one
/// smaller capacity.
fn write_capacities(text: &mut String, rng: &mut Stream, cores: &Cores) {
    let cpus: u64 = cores.iter().flatten().flatten().sum();
    let large = rng.between(1, cpus);
    let small = rng.between(250, 1000);
    let capacities: Vec<u64> =
        (0..cpus).map(|cpu| if cpu < large { 1024 } else { small }).collect();
    writeln!(text, "capacities = {capacities:?}").expect("a string");
}
