// SPDX-License-Identifier: GPL-2.0-only
//! Guests: virtual CPUs that are tasks of the host, with a small kernel and any workload.

use scxlab_guest::GuestReport;
use scxlab_kernel::Kernel;
use scxlab_kernel::kernel::Stop;
use scxlab_machine::{Distance, Machine, Stream};
use scxlab_testkit::canary::{Canary, InjectedFault, ops_data};
use scxlab_testkit::checks::{self, Contract, LawChecker, run_checked};
use scxlab_testkit::machines::{self, LOADS};
use scxlab_testkit::parallel;
use scxlab_testkit::sim::{
    attach_shipped, kernel, kernel_as_run, kernel_of, kernel_with_calls, kernel_with_guest_costs,
    region_pages,
};
use scxlab_workload::exec::guests;
use scxlab_workload::{WorkloadArg, load, parse_workload_arg};

const MS: u64 = 1_000_000;

fn run(machine: &str, workload: &str, ms: u64) -> (Kernel, Stop) {
    let mut k = kernel_with_calls(Machine::resolve(machine).unwrap(), workload, 1);
    let stop = k.run(Some(ms * MS));
    checks::after(&k);
    (k, stop)
}

/// As `run`, for workloads without an end.
fn run_on(machine: &str, workload: &str, ms: u64) -> Kernel {
    let (k, stop) = run(machine, workload, ms);
    assert_eq!(stop, Stop::Finished, "{workload}");
    k
}

fn report(k: &Kernel, guest: usize) -> GuestReport {
    guests(k)[guest].report(k, k.now)
}

fn work(k: &Kernel) -> u64 {
    k.metrics.work_units
}

/// Returns a machine whose kernel takes no time, except for interrupts between CPUs and the exit
/// from idle states.
fn free_host(machine: &Machine) -> Machine {
    let mut free = machine.clone();
    let costs = &mut free.costs;
    let sched = &mut costs.sched;
    for cost in [
        &mut sched.context_switch_ns,
        &mut sched.switch_mm_ns,
        &mut sched.wakeup_ns,
        &mut sched.select_ns,
        &mut sched.select_scan_cpu_ns,
        &mut sched.enqueue_ns,
        &mut sched.dequeue_ns,
        &mut sched.pick_ns,
        &mut sched.balance_ns,
        &mut sched.balance_scan_cpu_ns,
        &mut sched.migrate_ns,
        &mut costs.syscall.fork_ns,
        &mut costs.irq.resched_ns,
        &mut costs.irq.tick_ns,
        &mut costs.irq.timer_ns,
        &mut costs.irq.hrtimer_arm_ns,
        &mut costs.lock.uncontended_ns,
    ] {
        *cost = 0;
    }
    free
}

/// Returns a machine on which exits of guests take no time.
fn free_exits(machine: &Machine) -> Machine {
    let mut free = machine.clone();
    let guest = &mut free.costs.guest;
    (guest.halt_ns, guest.ipi_ns, guest.inject_ns, guest.timer_ns) = (0, 0, 0, 0);
    free
}

/// Units of work per second, summed over several seeds, of a workload on bare CPUs and in a guest
/// with as many vCPUs. The guest's kernel has the machine's costs, exits and the host's kernel are
/// free.
fn bare_and_inside(name: &str, load: &str) -> (u64, u64) {
    let machine = Machine::resolve(name).unwrap();
    let vcpus = machine.topology.nr_cpus();
    let text = format!("{load},vms=1,vcpus={vcpus},vm.pin=yes");
    let mut rates = (0, 0);
    for seed in 1..=4 {
        let bare = kernel_with_calls(machine.clone(), load, seed);
        let (host, exits) = (free_host(&machine), free_exits(&machine));
        let inside = kernel_with_guest_costs(host, exits, &text, seed);
        let rate = |mut k: Kernel| {
            assert_eq!(k.run(Some(400 * MS)), Stop::Finished, "{load}");
            checks::after(&k);
            work(&k)
        };
        rates.0 += rate(bare);
        rates.1 += rate(inside);
    }
    rates
}

/// If exits and the host's kernel take no time, a guest on idle CPUs does what its workload does
/// without it: its kernel costs what the host's kernel costs on the same path.
///
/// The single runs of hackbench and chat differ by up to 3 % from seed to seed, on bare CPUs as in
/// a guest.
#[test]
fn a_guest_alone_pays_for_exits_only() {
    let loads = [
        ("hogs,tasks=8", 10),
        ("hogs,tasks=13", 10),
        ("sleepers,tasks=4", 10),
        ("sleepers,tasks=40", 10),
        ("schbench", 10),
        ("hackbench,groups=2,loops=100000,work=2us", 20),
        ("chat,rooms=2,users=10,messages=100000", 20),
        ("spin_barrier,jobs=1,threads=2", 10),
        // A halted vCPU takes an interrupt where an idle CPU of the machine polls.
        ("pingpong", 50),
    ];
    let names = ["1n2c", "1n4c", "1n8c"].into_iter();
    let cases: Vec<_> =
        names.flat_map(|name| loads.map(|(load, permille)| (name, load, permille))).collect();
    parallel::map(&cases, |&(name, load, permille)| {
        let (bare, inside) = bare_and_inside(name, load);
        let far = bare.abs_diff(inside) * 1000 > bare * permille;
        assert!(!far, "{name}, {load}: {bare} on bare CPUs, {inside} in a guest");
    });
}

/// With their real costs, exits take little from workloads that seldom halt. Sums of four runs of
/// schbench differ by up to 2 % from seed to seed.
#[test]
fn exits_cost_little_where_vcpus_seldom_halt() {
    for load in [
        "hogs,tasks=8",
        "sleepers,tasks=4",
        "sleepers,tasks=40",
        "schbench",
        "chat,rooms=2,users=10,messages=100000",
        "spin_barrier,jobs=1",
    ] {
        let total = |text: &str| -> u64 {
            let run = |seed| {
                let machine = Machine::resolve("1n8c").unwrap();
                let mut k = kernel_with_calls(machine, text, seed);
                assert_eq!(k.run(Some(400 * MS)), Stop::Finished, "{text}");
                work(&k)
            };
            let runs = if load == "schbench" { 16 } else { 4 };
            (1..=runs).map(run).sum()
        };
        let (bare, inside) = (total(load), total(&format!("{load},vms=1,vcpus=8")));
        assert!(bare.abs_diff(inside) * 100 <= bare, "{load}: {inside} of {bare}");
    }
}

/// Two threads that wake each other in turn pay for each exit in full: a round takes longer by the
/// interrupts that it sends, and at most by all its exits and what the host does for them.
#[test]
fn exits_of_a_ping_pong_take_their_time() {
    let bare = run_on("1n8c", "pingpong", 400);
    let k = run_on("1n8c", "pingpong,vms=1,vcpus=8", 400);
    let lost = (work(&bare) - work(&k)) * (400 * MS / work(&bare));
    let (exits, costs) = (guests(&k)[0].stats().exits, &k.machine.costs);
    let (guest, sched) = (&costs.guest, &costs.sched);
    let interrupts = exits.ipi * guest.ipi_ns + exits.interrupt * guest.inject_ns;
    let wake = sched.wakeup_ns + sched.select_ns + sched.select_scan_cpu_ns + sched.enqueue_ns;
    let sleep = sched.dequeue_ns + 2 * (sched.pick_ns + sched.context_switch_ns);
    let mm = 2 * sched.switch_mm_ns;
    let locks = 4 * costs.lock.hand_over_ns[Distance::Core];
    let halt = guest.halt_ns + wake + sleep + mm + locks + costs.irq.resched_ns;
    // A message's way, if the threads of the bare run share a CPU: the pipe's state for the write,
    // the read and its end, and the message.
    let workload = &costs.workload;
    let lines = 3 * workload.pipe_lines + workload.pipe_message_lines;
    let message = lines * costs.cache.line_ns[Distance::Core];
    let all = interrupts + exits.halt * (halt + message) + exits.timer * guest.timer_ns;
    assert!((interrupts..all).contains(&lost), "{interrupts}, {lost}, {all}: {exits:?}");
}

/// Programs end in a guest as they do without it.
#[test]
fn programs_end_in_a_guest() {
    for load in [
        "hackbench,loops=20",
        "chat,rooms=1,messages=10",
        "pingpong,loops=1000",
        "kernbench,files=20,work=5ms",
        "mkbench,files=10,work=5ms",
    ] {
        let (bare, ended) = run("2n4c", load, 10_000);
        assert_eq!(ended, Stop::AllExited, "{load}");
        for guest in ["vms=1,vcpus=1", "vms=2,vcpus=3", "vms=1,vcpus=8,vm.halt_poll=50us"] {
            let (k, stop) = run("2n4c", &format!("{load},{guest}"), 10_000);
            assert_eq!(stop, Stop::AllExited, "{load},{guest}");
            assert_eq!(work(&k), work(&bare) * guests(&k).len() as u64, "{load},{guest}");
        }
    }
}

/// Every guest finishes units of the benchmarks that have no end.
#[test]
fn endless_benchmarks_run_in_guests() {
    for load in ["ebizzy", "ebizzy,mmap=yes", "dbench", "specjbb,vm.memory=1GiB"] {
        for kind in ["", OLD, "vm.pin=yes,vm.gang=yes"] {
            let k = run_on("x3850x5", &format!("{load},vms=2,vcpus=8,{kind}"), 300);
            for guest in 0..2 {
                assert!(guests(&k)[guest].stats().work_units > 0, "{load} {kind}");
            }
        }
    }
}

/// Each shipped workload file, and an rt-app file, runs in a guest as it is.
#[test]
fn files_run_in_a_guest_unchanged() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../workloads");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|e| e == "toml")).collect();
    files.sort();
    let text = |path: &std::path::Path| std::fs::read_to_string(path).unwrap();
    let mut programs: Vec<_> = files
        .iter()
        .map(|path| load(&path.to_string_lossy(), &text(path)).map_err(|e| e.to_string()))
        .collect();
    let rtapp = r#"{ "tasks": { "t": { "loop": -1, "instance": 3, "run": 1000, "sleep": 500 } } }"#;
    programs.push(load("demo.json", rtapp).map_err(|e| e.to_string()));
    let mut ran = 0;
    for program in programs {
        let program = match program {
            Ok(program) if program.guests.is_empty() => program,
            Ok(_) => continue,
            Err(error) if error.contains("this workload cannot name files") => continue,
            Err(error) => panic!("{error}"),
        };
        let name = program.name.clone();
        let line = "f.toml,vms=1,vcpus=8,vm.memory=16GiB";
        let Ok(WorkloadArg::File { guests: Some(line), .. }) = parse_workload_arg(line) else {
            panic!("guests of a file")
        };
        let machine = Machine::resolve("2n8c").unwrap();
        let nodes = program.regions.iter().any(|region| region.populate.is_some());
        let mut k = match program.into_guests(*line) {
            Ok(program) if !nodes => kernel_of(machine, &program, 1),
            // A guest has one memory node.
            Ok(_) => continue,
            Err(error) => panic!("{name}: {error}"),
        };
        let stop = k.run(Some(200 * MS));
        assert!(matches!(stop, Stop::Finished | Stop::AllExited), "{name}: {stop:?}");
        checks::after(&k);
        assert!(report(&k, 0).vcpus.iter().any(|vcpu| vcpu.switches > 0), "{name}");
        ran += 1;
    }
    assert!(ran >= 10, "{ran} files ran");
}

const OLD: &str = "vm.spinlock=ticket,vm.pv_spinlock=no,vm.pv_tlb_flush=no";

fn lock_holder(machine: &str, guests: &str) -> Kernel {
    run_on(machine, &format!("lock_holder,threads=8,vcpus=8,{guests}"), 1000)
}

/// On a machine without pause-loop exits, two guests that share the CPUs get nearly nothing done,
/// because the vCPU of a lock's holder or of its next owner waits for a CPU.
#[test]
fn preempted_lock_holders_stop_a_guest() {
    let alone = work(&lock_holder("x3650m2", &format!("vms=1,{OLD}")));
    let k = lock_holder("x3650m2", &format!("vms=2,{OLD}"));
    assert!(work(&k) * 3 < alone, "{} of {alone}", work(&k));
    let times = report(&k, 0).vcpus[0].times;
    assert!(times.spin > 2 * times.user, "{times:?}");
    assert_eq!(guests(&k)[0].stats().exits.pause, 0);
}

/// With pause-loop exits, two guests together do nearly as much as one, if any waiter that runs may
/// get the lock. With tickets they help, too, but the host does not know whose turn is next.
#[test]
fn pause_loop_exits_let_the_lock_holder_run() {
    let queued = "vm.pv_spinlock=no,vm.pv_tlb_flush=no";
    let alone = work(&lock_holder("x3850x5", &format!("vms=1,{queued}")));
    let k = lock_holder("x3850x5", &format!("vms=2,{queued}"));
    assert!(work(&k) * 10 > alone * 9, "{} of {alone}", work(&k));
    let stats = guests(&k)[0].stats();
    assert!(stats.exits.pause > 1000 && stats.yields_done > 1000, "{stats:?}");
    let tickets = |machine: &str| work(&lock_holder(machine, &format!("vms=2,{OLD}")));
    let (with, without) = (tickets("x3850x5"), tickets("x3650m2"));
    assert!(with * 10 > alone * 3 && with > 5 * without, "{with}, {without} of {alone}");
}

#[test]
fn locks_that_pass_over_preempted_waiters_help() {
    let rate = |options: &str| work(&lock_holder("x3650m2", &format!("vms=2,{options}")));
    let ticket = rate(OLD);
    let queued = rate("vm.pv_spinlock=no,vm.pv_tlb_flush=no");
    let paravirtual = rate("vm.pv_tlb_flush=no");
    assert!(queued > 2 * ticket, "{queued}, {ticket}");
    assert!(paravirtual > queued, "{paravirtual}, {queued}");
}

/// The locks of a guest's sockets cost a guest that has the CPUs for itself hardly anything. Two
/// guests that share CPUs wait for preempted holders, less so where the host sees them spin.
#[test]
fn sockets_locks_stop_guests_that_share_cpus() {
    let spins = |machine: &str, vms: u32, hold: &str| {
        let load = "hackbench,groups=4,loops=100000,ipc=socket,vcpus=8";
        let k = run_on(machine, &format!("{load},hold={hold},vms={vms},{OLD}"), 200);
        let times = report(&k, 0).vcpus.into_iter().map(|v| v.times);
        let (spin, user) = times.fold((0, 0), |sum, t| (sum.0 + t.spin, sum.1 + t.user));
        (1000 * spin / (spin + user), work(&k))
    };
    for machine in ["x3850x5", "x3650m2"] {
        assert_eq!(spins(machine, 2, "0us").0, 0, "{machine}");
        let alone = spins(machine, 1, "100ns");
        assert!(alone.0 < 100, "{machine}: {alone:?}");
    }
    let (seen, unseen) = (spins("x3850x5", 2, "100ns"), spins("x3650m2", 2, "100ns"));
    assert!(unseen.0 > 300 && unseen.0 > seen.0 && seen.0 > 20, "{seen:?}, {unseen:?}");
    assert!(unseen.1 < seen.1, "{seen:?}, {unseen:?}");
}

/// A flush waits for preempted vCPUs, unless it is paravirtual.
#[test]
fn flushes_wait_for_preempted_virtual_cpus() {
    let wait = |options: &str| {
        let k = lock_holder("x3650m2", &format!("vms=2,unmap=2,work=1ms,{options}"));
        let stats = guests(&k)[0].stats();
        (stats.flush_wait.permille(900), stats.flush_wait.count())
    };
    let ((slow, _), (fast, count)) = (wait(OLD), wait("vm.pv_spinlock=no"));
    assert!(count > 100, "{count}");
    assert!(slow > MS && fast < MS, "{slow}, {fast}");
}

#[test]
fn steal_grows_with_the_number_of_guests() {
    let steal = |vms: u32| {
        let k = run_on("1n1c2t", &format!("hogs,tasks=2,vcpus=2,vms={vms}"), 500);
        report(&k, 0).vcpus.iter().map(|v| v.times.steal).sum::<u64>()
    };
    let steals = [1, 2, 4].map(steal);
    assert!(steals[0] < 10 * MS, "{steals:?}");
    assert!(steals[1].abs_diff(500 * MS) < 50 * MS, "{steals:?}");
    assert!(steals[2].abs_diff(750 * MS) < 50 * MS, "{steals:?}");
}

/// Polling saves halts, and wakes threads up sooner.
#[test]
fn polling_saves_halts() {
    let run = |poll: &str| {
        let k = run_on("2n4c", &format!("pingpong,vms=1,vcpus=2,vm.halt_poll={poll}"), 200);
        let stats = guests(&k)[0].stats();
        (stats.exits.halt, stats.wakeup_latency.permille(500))
    };
    let (without, with) = (run("0us"), run("50us"));
    assert!(with.0 * 10 < without.0 && with.1 < without.1, "{with:?}, {without:?}");
}

/// A vCPU that is pinned stays on its CPU, and a thread stays on the vCPUs of its affinity.
#[test]
fn affinity_holds_on_both_levels() {
    let text = "[[guest]]\nname = 'g'\nvcpus = 4\npin = true\ncpus = '1,3'\n\
         [[guest.program.thread]]\nname = 'a'\ninstances = 3\ncpus = '2'\n\
         ops = [{ loop = { ops = [{ compute = '1ms' }, { count = 1 }] } }]";
    let k = run_on("1n4c", text, 300);
    let report = report(&k, 0);
    let ran = |v: usize| report.vcpus[v].times.user > 0;
    assert_eq!([0, 1, 2, 3].map(ran), [false, false, true, false]);
    let of_thread = |n: usize| report.threads[n].times.run;
    assert!((0..3).all(|n| of_thread(n).abs_diff(100 * MS) < 5 * MS), "{report:?}");
    for (v, task) in guests(&k)[0].vcpu_tasks().enumerate() {
        assert_eq!(k.tasks[task].cpu.0, [1, 3][v % 2]);
    }
}

/// Nice values and real-time priorities decide in the guest.
#[test]
fn a_guest_has_priorities() {
    let text = "[[guest]]\nname = 'g'\n\
         [[guest.program.thread]]\nname = 'a'\nops = [{ loop = { ops = [{ compute = '1ms' }] } }]\n\
         [[guest.program.thread]]\nname = 'b'\nnice = 5\n\
         ops = [{ loop = { ops = [{ compute = '1ms' }] } }]\n\
         [[guest.program.thread]]\nname = 'rt'\npolicy = { fifo = 10 }\n\
         ops = [{ loop = { ops = [{ sleep = '10ms' }, { compute = '1ms' }] } }]\n";
    let k = run_on("1n2c", text, 1000);
    let report = report(&k, 0);
    let run = |n: usize| report.threads[n].times.run / MS;
    assert!((88..=92).contains(&run(2)), "{report:?}");
    let ratio = run(0) * 100 / run(1);
    assert!((280..330).contains(&ratio), "nice 5 has a third of the weight: {ratio}");
}

/// The host's accounts of the vCPU tasks agree with the guest's own, up to the host's own work: its
/// switches, and the interrupts of its CPUs.
#[test]
fn host_and_guest_agree() {
    for workload in [
        "hogs,tasks=5,vms=2,vcpus=2",
        "sleepers,tasks=6,vms=3,vcpus=3",
        "lock_holder,vms=2,vcpus=4,unmap=3",
        "schbench,vms=2,vcpus=4",
    ] {
        let k = run_on("1n4c", workload, 1000);
        for vcpu in guests(&k).iter().flat_map(|guest| guest.report(&k, k.now).vcpus) {
            let task = &k.tasks[vcpu.task].account;
            let times = vcpu.times;
            let inside = times.user + times.spin + times.kernel;
            let switches = task.switches_voluntary + task.switches_involuntary;
            let slack = (switches + 1000) * 5_000;
            assert!(inside.abs_diff(task.run_ns) < slack, "{workload}: {vcpu:?}, {task:?}");
            assert!(slack < 100 * MS, "{workload}: a useful bound");
        }
    }
}

/// Regions of a guest are pages of the host, which conserves them while steps are cut.
#[test]
fn a_guests_memory_is_a_region_of_the_host() {
    let guest = |keys: &str| {
        format!(
            "[[guest]]\nname = 'g'\nvcpus = 2\n{keys}\n\
             [[guest.program.region]]\nname = 'heap'\nsize = '64MiB'\n\
             [[guest.program.thread]]\nname = 'w'\ninstances = 2\nprocess = 'p'\nops = [{{ loop = {{ ops = [\n\
             {{ touch = {{ region = 'heap', kind = 'write' }} }}, {{ count = 1 }}] }} }}]\n"
        )
    };
    for (keys, node) in [
        ("memory = '1GiB'\ncpus = '4-7'", 1),
        ("memory = { size = '1GiB', huge = false }\ncpus = '0-3'", 0),
        ("memory = { size = '64MiB', populate = '1' }\ncpus = '0-3'", 1),
    ] {
        let k = run_on("2n4c", &guest(keys), 300);
        let pages = region_pages(&k);
        assert_eq!(pages.len(), 1, "{keys}");
        assert_eq!((pages[0].owner.as_str(), pages[0].region.as_str()), ("g", "memory"));
        let here = pages[0].pages[node];
        assert_eq!(pages[0].pages.iter().sum::<u64>(), here, "{keys}: {pages:?}");
        assert_eq!(here, 64 * 256, "{keys}");
        assert!(work(&k) > 10, "{keys}: {}", work(&k));
    }
}

/// The work of memory steps stays the same when other guests preempt the vCPUs all the time.
#[test]
fn cut_memory_steps_go_on() {
    let rate = |hogs: &str| {
        let text = format!(
            "[[guest]]\nname = 'g'\nmemory = '1GiB'\npin = true\ncpus = '0'\n\
             [[guest.program.region]]\nname = 'heap'\nsize = '64MiB'\n\
             [[guest.program.thread]]\nname = 'w'\nprocess = 'p'\nops = [{{ loop = {{ ops = [\n\
             {{ compute = {{ work = '7ms', region = 'heap', memory = 60 }} }}, {{ count = 1 }}] }} }}]\n{hogs}"
        );
        work(&run_on("2n4c", &text, 2000))
    };
    let hog = "[[guest.program.thread]]\nname = 'ticker'\nops = [{ loop = { ops = [\
         { sleep = '100us' }, { compute = '1us' }] } }]\n";
    let (alone, beside) = (rate(""), rate(hog));
    assert!(beside < alone && beside * 100 > alone * 90, "{beside} of {alone}");
}

/// A guest's kernel preempts no thread that holds a spin lock, not even for a real-time thread.
#[test]
fn a_lock_holder_is_not_preempted_in_its_guest() {
    let run = |lock: &str, unlock: &str| {
        let text = format!(
            "[[guest]]\nname = 'g'\n\
             [[guest.program.thread]]\nname = 'holder'\nops = [{{ loop = {{ ops = [\
             {lock} {{ compute = '20ms' }} {unlock}] }} }}]\n\
             [[guest.program.thread]]\nname = 'rt'\npolicy = {{ fifo = 10 }}\n\
             ops = [{{ loop = {{ ops = [{{ sleep = '1ms' }}, {{ compute = '10us' }}] }} }}]\n"
        );
        guests(&run_on("1n2c", &text, 500))[0].stats().wakeup_latency.permille(500)
    };
    let free = run("", "");
    let held = run("{ spin_lock = 'l' },", ", { spin_unlock = 'l' }");
    assert!(free < MS / 10 && held > 10 * MS, "{free}, {held}");
}

/// A thread that never gets its vCPU counts in the waits with the time for which it has waited.
#[test]
fn starved_threads_make_waits_longer() {
    let late = |policy: &str| {
        let text = format!(
            "[[guest]]\nname = 'g'\n\
             [[guest.program.thread]]\nname = 'hog'\n{policy}\n\
             ops = [{{ sleep = '2ms' }}, {{ loop = {{ ops = [{{ compute = '1ms' }}] }} }}]\n\
             [[guest.program.thread]]\nname = 'late'\nops = [{{ sleep = '5ms' }}, {{ compute = '1ms' }}]\n"
        );
        let k = run_on("1n2c", &text, 300);
        let stats = guests(&k)[0].stats_at(k.now);
        (stats.wakeup_latency.permille(1000), guests(&k)[0].stats().wakeup_latency.count())
    };
    let (normal, ended) = late("");
    let (starved, fewer) = late("policy = { fifo = 50 }");
    assert!(normal < 50 * MS && starved > 250 * MS, "{normal}, {starved} ns");
    assert_eq!(fewer + 1, ended, "one wait has not ended");
}

/// The checker of the laws notices wait time that is not in the guest's accounts.
#[test]
fn invented_waits_are_seen() {
    let mut k = kernel("1n4c", "sleepers,tasks=6,vms=2,vcpus=3", 1);
    k.attach(Canary::program(InjectedFault::StretchWait), ops_data("canary")).expect("attached");
    let broken = run_checked(&mut k, 100 * MS, 50_000, Contract::default()).unwrap_err();
    let seen = format!("{}: {}", broken.law, broken.what);
    assert!(seen.starts_with("guest time adds up: guest vm0: vm0-vcpu0 has waited for"), "{seen}");
}

/// Each price of the cost table's group `guest` has an effect.
#[test]
fn prices_have_effects() {
    let run = |workload: &str, change: &dyn Fn(&mut Machine)| {
        let mut machine = Machine::resolve("x3850x5").unwrap();
        change(&mut machine);
        let mut k = kernel_with_calls(machine, workload, 1);
        assert_eq!(k.run(Some(300 * MS)), Stop::Finished);
        k
    };
    let pingpong = "pingpong,vms=1,vcpus=2";
    let hogs = "hogs,tasks=4,vms=1,vcpus=2";
    let same = |_: &mut Machine| {};
    let rate = |workload: &str, change: &dyn Fn(&mut Machine)| work(&run(workload, change));
    assert!(rate(pingpong, &|m| m.costs.guest.halt_ns *= 10) < rate(pingpong, &same));
    assert!(rate(pingpong, &|m| m.costs.guest.ipi_ns *= 10) < rate(pingpong, &same));
    assert!(rate(pingpong, &|m| m.costs.guest.inject_ns *= 10) < rate(pingpong, &same));
    assert!(rate(hogs, &|m| m.costs.guest.timer_ns *= 100) < rate(hogs, &same));
    let locks = format!("lock_holder,threads=8,vcpus=8,vms=2,{OLD}");
    let exits = |change: &dyn Fn(&mut Machine)| guests(&run(&locks, change))[0].stats().exits.pause;
    let window = |factor: u64| exits(&move |m| m.costs.guest.ple_window_ns *= factor);
    let pauses = [1, 10, 100].map(window);
    assert!(pauses[0] > pauses[1] && pauses[1] > pauses[2], "{pauses:?}");
    assert_eq!(exits(&|m| m.ple = false), 0);
    let slow = rate(&locks, &|m| m.costs.guest.pause_ns *= 30);
    assert!(slow < rate(&locks, &same));
    let pv = "lock_holder,threads=8,vcpus=8,vms=2";
    let halts = |ns: u64| {
        let change = move |m: &mut Machine| (m.ple, m.costs.guest.pv_spin_ns) = (false, ns);
        guests(&run(pv, &change))[0].stats().exits.halt
    };
    assert!(halts(10_000) > halts(3_000_000));
}

/// The report of a deadlock names the threads in the guest.
#[test]
fn a_deadlock_in_a_guest_is_reported() {
    let text = "[[guest]]\nname = 'g'\nvcpus = 2\n\
         [[guest.program.thread]]\nname = 'w'\nops = [{ compute = '1ms' }, { sem_wait = 's' }]\n";
    let (_, stop) = run("1n2c", text, 1000);
    let Stop::Deadlock { waiting } = stop else { panic!("{stop:?}") };
    assert_eq!(waiting.len(), 2);
    assert!(
        waiting[0].starts_with("g-vcpu0[") && waiting[0].contains("guest g: w: "),
        "{waiting:?}"
    );
}

fn traced(workload: &str, seed: u64) -> (u64, u64) {
    let mut k = kernel_as_run(Machine::resolve("2n4c").unwrap(), workload, seed);
    k.run(Some(200 * MS));
    (k.tracer.hash(), k.tracer.count())
}

#[test]
fn equal_runs_are_equal() {
    let workload = "lock_holder,threads=8,unmap=7,vcpus=8,vms=2";
    let first = traced(workload, 7);
    assert!(first.1 > 1000);
    assert_eq!(traced(workload, 7), first);
    assert_ne!(traced(workload, 8), first);
}

/// Draws guests with random loads.
fn random_guests(seed: u64, cpus: u64) -> String {
    let mut rng = Stream::new(seed, "guests", 0);
    let mut text = String::new();
    for n in 0..rng.between(1, 4) {
        let vcpus = rng.between(1, 2 * cpus);
        let flag = |rng: &mut Stream| rng.below(2) == 0;
        let locks = if flag(&mut rng) { "ticket" } else { "queued" };
        text += &format!(
            "[[guest]]\nname = 'g{n}'\nvcpus = {vcpus}\npin = {}\nspinlock = '{locks}'\n\
             pv_spinlock = {}\npv_tlb_flush = {}\nhalt_poll = '{}us'\n",
            flag(&mut rng),
            flag(&mut rng),
            flag(&mut rng),
            rng.below(3) * 20,
        );
        let kind = LOADS[rng.below(LOADS.len() as u64) as usize];
        let inner = machines::load(kind, seed + n, vcpus);
        text += &inner
            .replace("[[thread]]", "[[guest.program.thread]]")
            .replace("[[cgroup]]", "[[guest.program.cgroup]]");
        text += &format!(
            "[[guest.program.thread]]\nname = 'locker'\nprocess = 'p'\ninstances = {}\nops = [{{ loop = {{ ops = [\
             {{ compute = '{}us' }}, {{ spin_lock = 'l' }}, {{ compute = '3us' }}, {{ spin_unlock = 'l' }}, \
             'unmap', {{ spin_barrier = 'b' }}] }} }}]\n",
            rng.between(1, vcpus),
            rng.between(1, 100)
        );
    }
    text
}

#[test]
fn random_guests_keep_all_laws() {
    for seed in 0..48 {
        let machine = ["1n2c", "2n4c", "x3650m2", "1n4c2t"][seed as usize % 4];
        let mut k = kernel(machine, &random_guests(seed, 4), seed);
        if seed % 3 == 1 {
            attach_shipped(&mut k, "vtime", &[]);
        }
        let mut watch = LawChecker::new(Contract::default());
        k.start();
        for at in 1..=20 {
            k.advance(at * 5 * MS);
            watch.look(&k);
            assert!(watch.broken.is_empty(), "seed {seed}: {:#?}", watch.broken);
            assert!(k.end.stop.is_none(), "seed {seed}: {:?}", k.end.stop);
        }
    }
}

/// A thread whose timer expires while its virtual CPU waits for a CPU has waited from then on: the
/// more the host has to do, the longer.
#[test]
fn a_timer_that_no_vcpu_could_take_counts_as_waiting() {
    let of = |hogs: u32| {
        let host = match hogs {
            0 => String::new(),
            hogs => format!(
                "[[thread]]\nname = 'hog'\ninstances = {hogs}\nnice = -10\ncpus = '0'\n\
                 ops = [{{ loop = {{ ops = [{{ compute = '1ms' }}] }} }}]\n"
            ),
        };
        let text = format!(
            "[[guest]]\nname = 'g'\ncpus = '0'\n\
             [[guest.program.thread]]\nname = 'beat'\n\
             ops = [{{ loop = {{ ops = [{{ sleep = '7ms' }}, {{ compute = '1ms' }}] }} }}]\n\
             {host}"
        );
        let k = run_on("1c", &text, 1000);
        let max = guests(&k)[0].stats_at(k.now).wakeup_latency.max();
        (max, report(&k, 0).threads[0].times.steal)
    };
    let loads = [0, 1, 4].map(of);
    assert!(loads[0].0 < MS && loads[2].0 > 5 * MS, "{loads:?}");
    assert!(loads.map(|(max, _)| max).is_sorted(), "{loads:?}");
    assert!(loads.map(|(_, steal)| steal).is_sorted(), "{loads:?}");
}
