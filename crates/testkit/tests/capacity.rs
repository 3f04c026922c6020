// SPDX-License-Identifier: GPL-2.0-only
//! The default class on the machines that ship and have CPUs of different capacity: tasks that
//! always run come to large CPUs, and rare ones stay where they are.

use scxlab_kernel::Kernel;
use scxlab_testkit::checks;
use scxlab_testkit::sim::kernel;

const MS: u64 = 1_000_000;
const MACHINES: [&str; 2] = ["biglittle-4b4l", "hybrid-8p8e"];

/// Runs tasks called `t` and returns in how many of 1,000 samples from the second half a second on
/// they had a CPU of full capacity, and were on any.
fn samples(machine: &str, workload: &str) -> (u32, u32) {
    let mut k = kernel(machine, workload, 1);
    k.start();
    let (mut large, mut all) = (0, 0);
    for at in 500..1_500 {
        k.advance(at * MS);
        for t in k.tasks.iter().filter(|t| t.name.starts_with('t') && t.on_cpu) {
            all += 1;
            large += u32::from(capacity(&k, t.cpu.0) == 1024);
        }
    }
    checks::after(&k);
    (large, all)
}

fn capacity(k: &Kernel, cpu: u32) -> u32 {
    k.machine.topology.cpus()[cpu as usize].capacity
}

/// Number of cores whose CPUs have full capacity.
fn large_cores(machine: &str) -> usize {
    let k =
        kernel(machine, "duration = '1ms'\n[[thread]]\nname = 't'\nops = [{ compute = '1us' }]", 1);
    let cpus = k.machine.topology.cpus().iter().filter(|cpu| cpu.capacity == 1024);
    let mut cores: Vec<u32> = cpus.map(|cpu| cpu.core.0).collect();
    cores.dedup();
    cores.len()
}

#[test]
fn hogs_have_large_cpus() {
    for machine in MACHINES {
        for nr in 1..=large_cores(machine) {
            let workload = format!(
                "duration = '2s'\n[[thread]]\nname = 't'\ninstances = {nr}\n\
                 ops = [{{ loop = {{ ops = [{{ compute = '1ms' }}] }} }}]"
            );
            let (large, all) = samples(machine, &workload);
            assert!(all >= nr as u32 * 990, "{nr} on {machine}: {all}");
            assert!(large * 100 >= all * 97, "{nr} on {machine}: {large} of {all}");
        }
    }
}

/// Tasks that use most of a CPU and sleep are placed anew at each wake-up.
#[test]
fn heavy_sleepers_have_large_cpus() {
    for machine in MACHINES {
        let workload = "duration = '2s'\n[[thread]]\nname = 't'\ninstances = 2\n\
                        ops = [{ loop = { ops = [{ compute = '9ms' }, { sleep = '1ms' }] } }]";
        let (large, all) = samples(machine, workload);
        assert!(all >= 1_000 && large * 100 >= all * 97, "{machine}: {large} of {all}");
    }
}

/// A pinned task has no choice, and does not keep the balancer from others.
#[test]
fn pinned_hogs_stay_on_small_cpus() {
    for machine in MACHINES {
        let k = kernel(
            machine,
            "duration = '1ms'\n[[thread]]\nname = 't'\nops = [{ compute = '1us' }]",
            1,
        );
        let small = k.machine.topology.cpus().iter().position(|cpu| cpu.capacity != 1024).unwrap();
        let workload = format!(
            "duration = '2s'\n[[thread]]\nname = 't'\ncpus = '{small}'\n\
             ops = [{{ loop = {{ ops = [{{ compute = '1ms' }}] }} }}]\n[[thread]]\nname = 'u'\n\
             ops = [{{ loop = {{ ops = [{{ compute = '1ms' }}] }} }}]"
        );
        let (large, all) = samples(machine, &workload);
        assert!(all >= 990 && large == 0, "{machine}: {large} of {all}");
        let workload = workload.replace("'t'", "'v'").replace("'u'", "'t'");
        let (large, all) = samples(machine, &workload);
        assert!(large * 100 >= all * 97, "{machine}: {large} of {all}");
    }
}
