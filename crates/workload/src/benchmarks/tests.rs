// SPDX-License-Identifier: GPL-2.0-only
//! Tests of every generator with its defaults, and of the form of workload arguments.

mod autonuma;
mod dbench;
mod judged;
mod reflex;
mod sysbench;

use super::*;
use crate::compile::NodeInfo;
use crate::exec::mock::{Mock, MockEnd};
use crate::exec::{ExecConfig, Executor};

fn program(arg: &str) -> Program {
    match parse_workload_arg(arg) {
        Ok(WorkloadArg::Program(program)) => *program,
        other => panic!("{other:?}"),
    }
}

fn run(arg: &str, cpus: u32) -> (Mock, MockEnd) {
    let nodes = vec![NodeInfo { memory_bytes: 64 << 30 }];
    let config = ExecConfig { nr_cpus: cpus, nodes, ..ExecConfig::default() };
    let mut executor = Executor::new(&program(arg), config).unwrap();
    let mut mock = Mock::new(cpus as usize, 7);
    let end = mock.run(&mut executor, 5_000_000);
    (mock, end)
}

fn error(arg: &str) -> String {
    parse_workload_arg(arg).unwrap_err().to_string()
}

#[test]
fn every_generator_runs_with_its_defaults() {
    for generator in list() {
        let short = match generator.name {
            "hackbench" => "groups=1,loops=5,duration=1s",
            "chat" => "rooms=1,users=5,messages=5",
            "kernbench" | "mkbench" => "files=4",
            "pingpong" => "work=10us,duration=50ms",
            "reflex" => "delay=10us,duration=50ms",
            name if name.starts_with("numa0") => "size=2MiB,duration=50ms",
            "specjbb" => "memory=0,duration=50ms",
            _ => "duration=50ms",
        };
        assert!(generator.generate([], false).is_ok(), "{}", generator.name);
        let (mock, end) = run(&format!("{},{short}", generator.name), 4);
        assert_eq!(end, MockEnd::Finished, "{}", generator.name);
        assert!(mock.total_work() > 0, "{}", generator.name);
    }
}

#[test]
fn the_registry_is_sorted_and_says_what_everything_is() {
    let names: Vec<_> = list().iter().map(|g| g.name).collect();
    assert!(names.is_sorted());
    for generator in list() {
        assert!(generator.doc.ends_with('.') && !generator.unit.is_empty());
        assert!(generator.params.iter().all(|p| !p.doc.is_empty()));
    }
}

#[test]
fn hackbench_sends_every_message() {
    for ipc in ["socket", "pipe"] {
        let (mock, end) = run(&format!("hackbench,groups=3,fds=4,loops=50,ipc={ipc}"), 2);
        assert_eq!(
            (end, mock.total_work(), mock.tasks.len()),
            (MockEnd::Finished, 3 * 16 * 50, 24)
        );
    }
    let threads = program("hackbench,groups=2,mode=thread");
    assert!(threads.threads.iter().all(|t| t.process.is_some()));
}

/// In a guest, each call on a socket is under the lock of that socket.
#[test]
fn hackbench_locks_each_socket_in_a_guest() {
    let names = |in_guest: bool, hold: &str| {
        let pairs = ["groups=2", "fds=3", hold];
        let program = find("hackbench").generate(pairs, in_guest).unwrap();
        let (mut locks, mut sockets) = (Vec::new(), Vec::new());
        for thread in &program.threads {
            each_op(&thread.ops, &mut |op| match op {
                Op::SpinLock(lock) => locks.push(lock.clone()),
                Op::Read { pipe, .. } | Op::Write { pipe, .. } => sockets.push(pipe.clone()),
                _ => {}
            });
        }
        (locks, sockets)
    };
    let (locks, sockets) = names(true, "hold=100ns");
    assert_eq!(locks, sockets);
    assert_eq!(sockets.len(), 4);
    assert!(names(true, "hold=0us").0.is_empty());
    assert!(names(false, "hold=100ns").0.is_empty());
}

fn find(name: &str) -> &'static Generator {
    list().iter().find(|g| g.name == name).unwrap()
}

fn each_op(ops: &[Op], visit: &mut impl FnMut(&Op)) {
    for op in ops {
        visit(op);
        if let Op::Loop { ops, .. } = op {
            each_op(ops, visit);
        }
    }
}

#[test]
fn chat_passes_each_message_on_to_all_others() {
    for (rooms, users, messages) in [(1, 2, 50), (3, 5, 7), (2, 20, 3)] {
        for turns in ["no", "yes"] {
            let size = format!("rooms={rooms},users={users},messages={messages}");
            let arg = format!("chat,{size},turns={turns}");
            let (mock, end) = run(&arg, 3);
            let units = rooms * users * messages * users;
            assert_eq!((end, mock.total_work()), (MockEnd::Finished, units), "{arg}");
            assert_eq!(mock.tasks.len() as u64, rooms * users * 4, "{arg}");
        }
    }
}

#[test]
fn hackbench_groups_do_not_mix() {
    let config = ExecConfig { nr_cpus: 2, ..ExecConfig::default() };
    let mut program = program("hackbench,groups=2,fds=2,loops=1");
    // The second group has receivers but no senders, so its receivers must wait for ever: messages
    // of the first group's senders must not reach them.
    program.threads[1].instances = 2;
    program.barriers[0].parties = 6;
    let mut executor = Executor::new(&program, config).unwrap();
    let mut mock = Mock::new(2, 1);
    assert_eq!(mock.run(&mut executor, 10_000), MockEnd::Stuck);
    let work: Vec<_> = mock.tasks.iter().map(|t| t.work).collect();
    assert_eq!(work, [2, 2, 0, 0, 0, 0]);
}

#[test]
fn sleepers_keep_to_their_utilization() {
    let (mock, _) = run("sleepers,tasks=8,duration=1s", 8);
    let ran: u64 = mock.tasks.iter().map(|t| t.run_ns).sum();
    // Each task computes for 1 ms in every turn of 5 ms, so in a run of 1 s it must compute for
    // 200 ms. Its 200th turn ends at the same time as the run and is not counted.
    assert_eq!((ran, mock.total_work()), (8 * 200_000_000, 8 * 199));
}

#[test]
fn schbench_serves_every_worker() {
    let (mock, _) = run("schbench,message_threads=2,workers=3,duration=200ms", 8);
    let served: Vec<_> = mock.tasks[2..].iter().map(|t| t.work).collect();
    assert_eq!(served.len(), 6);
    assert!(served.iter().all(|&n| n >= 60), "{served:?}");
}

#[test]
fn hogs_deal_out_nice_values_and_groups() {
    let hogs = program("hogs,tasks=4,nice=0:5,weights=100:300");
    let nices: Vec<_> = hogs.threads.iter().map(|t| t.nice).collect();
    assert_eq!(nices, [0, 5, 0, 5]);
    assert_eq!(hogs.threads[3].cgroup.as_deref(), Some("/group-1"));
    assert_eq!(hogs.cgroups[1].weight, 300);
}

#[test]
fn wrong_arguments_say_what_would_be_right() {
    assert_eq!(
        error("hackbnch"),
        "unknown workload \"hackbnch\"; there are chat, dbench, ebizzy, hackbench, hogs, kernbench, \
         lock_holder, mkbench, numa01, numa01_THREAD_ALLOC, numa02, numa02_SMT, pingpong, reflex, \
         schbench, sleepers, specjbb, spin_barrier, sysbench_cpu, sysbench_memory, sysbench_threads \
         and files"
    );
    assert_eq!(
        error("sleepers,task=1"),
        "workload sleepers: unknown parameter \"task\"; it takes tasks, run, sleep, duration"
    );
    assert_eq!(
        error("sleepers,tasks=0"),
        "workload sleepers: tasks is \"0\", must be a whole number from 1 to 100000"
    );
    assert!(error("sleepers,run=5").contains("must be a time"));
    assert!(error("hackbench,ipc=shm").contains("one of socket, pipe"));
    assert!(error("hogs,nice=1:99").contains("separated by colons"));
    assert!(error("hogs,duration=0s").contains("or none"));
    assert!(error("hackbench,groups=2000,fds=200").contains("limit"));
}

#[test]
fn a_path_is_not_a_generator() {
    for path in ["a/b", "x.json", "y.TOML", "./hackbench"] {
        let file = WorkloadArg::File { path: path.to_owned(), guests: None };
        assert_eq!(parse_workload_arg(path), Ok(file));
    }
}

/// The keys of guests put a generator's program, or that of a file, into guests; they never reach
/// the generator.
#[test]
fn guests_in_one_line() {
    let guests = program("sleepers,vms=2,tasks=3,vcpus=8,vm.gang=yes,vm.spinlock=ticket");
    assert_eq!((guests.name.as_str(), guests.unit.as_str()), ("sleepers", "loop"));
    assert!(guests.threads.is_empty() && guests.duration.is_some());
    let [guest] = &guests.guests[..] else { panic!() };
    assert_eq!((guest.instances, guest.vcpus), (2, 8));
    assert_eq!(guest.spinlock, crate::program::SpinLockKind::Ticket);
    assert_eq!(guest.program.as_ref().unwrap().threads[0].instances, 3);
    let groups: Vec<_> = guests.cgroups.iter().map(|c| (c.path.as_str(), c.xattrs.len())).collect();
    assert_eq!(groups, [("/vm0", 1), ("/vm1", 1)]);
    assert_eq!(guest.instance_cgroup(1).as_deref(), Some("/vm1"));
    let io = program("hogs,vms=3,vm.gang=yes,vm.pin=yes,vm.io_period=2ms,vm.io_work=7us");
    let groups: Vec<_> = io.threads.iter().map(|t| (&*t.name, t.cgroup.as_deref())).collect();
    let vm1 = ("vm1/io", Some("/vm1"));
    assert_eq!(groups, [("vm0/io", Some("/vm0")), vm1, ("vm2/io", Some("/vm2"))]);
    let thread = &io.threads[0];
    let text = format!("{:?}", thread.ops);
    assert!(text.contains("TimeSpan(2000000)") && text.contains("TimeSpan(7000)"), "{text}");
    assert!(thread.cpus.is_none(), "it is not pinned");

    assert_eq!(program("hogs,vcpus=2").guests[0].instances, 1);
    assert_eq!(program("hogs,vms=2").guests[0].vcpus, 1);

    let file = |arg: &str| match parse_workload_arg(arg).unwrap() {
        WorkloadArg::File { path, guests } => (path, guests),
        other => panic!("{other:?}"),
    };
    let (path, line) = file("a,b.json,vms=3,vcpus=2,vm.memory=4GiB,vm.halt_poll=200us");
    assert_eq!(path, "a,b.json");
    let inner = program("hogs");
    let outer = inner.clone().into_guests(*line.unwrap()).unwrap();
    assert_eq!(outer.guests[0].memory.as_ref().unwrap().size.0, 4 << 30);
    assert_eq!(outer.guests[0].halt_poll.0, 200_000);
    assert_eq!(outer.guests[0].program.as_deref(), Some(&inner));
    let huge = |arg: &str| {
        let memory = program(arg).guests[0].memory.clone().unwrap();
        (memory.huge, memory.merge)
    };
    assert_eq!(huge("hogs,vms=1,vm.memory=1GiB"), (true, 0));
    assert_eq!(huge("hogs,vms=1,vm.merge=20,vm.huge=no,vm.memory=1GiB"), (false, 20));
    let again = outer.into_guests(*file("x/y,vms=1").1.unwrap()).unwrap_err().to_string();
    assert!(again.contains("a guest cannot contain guests"), "{again}");

    let cases = [
        ("hogs,vms=0", "workload hogs: vms is \"0\", must be a whole number from 1 to 4095"),
        ("hogs,vcpus=289", "workload hogs: vcpus is \"289\", must be a whole number from 1 to 288"),
        ("a.toml,vms=1,vms=2", "workload a.toml: vms is \"2\", must be given once"),
        ("hogs,vm.pin=yes", "vm.pin is \"yes\", must be beside vms or vcpus"),
        ("hogs,vms=1,vm.pin=maybe", "vm.pin is \"maybe\", must be yes or no"),
        ("hogs,vms=1,vm.spinlock=mcs", "must be ticket or queued"),
        ("hogs,vms=1,vm.halt_poll=3", "must be a time such as 200us"),
        ("hogs,vms=1,vm.io_period=often", "must be a time such as 200us"),
        ("hogs,vms=1,vm.memory=3", "must be a size such as 4GiB"),
        ("hogs,vms=1,vm.huge=no", "vm.huge is \"no\", must be beside vm.memory"),
        ("hogs,vms=1,vm.memory=1GiB,vm.merge=101", "must be a whole number from 0 to 100"),
        ("hogs,vms=1,vm.memory=1GiB,vm.merge=5", "merge needs small pages: set huge = false"),
        ("hogs,vms=1,vm.disk=3", "unknown parameter \"vm.disk\"; it takes vms, vcpus, vm.pin"),
        ("a.toml,vms=1,tasks=3", "workload a.toml: unknown parameter \"tasks\"; it takes vms"),
        ("cmd:true,vms=2", "a command cannot run in guests"),
    ];
    for (arg, expected) in cases {
        assert!(error(arg).contains(expected), "{arg}: {}", error(arg));
    }
}

#[test]
fn a_parameter_is_given_once() {
    for (arg, key) in
        [("schbench,workers=2,workers=3", "workers"), ("hogs,tasks=2,vms=2, vms = 3", "vms")]
    {
        let said = parse_workload_arg(arg).unwrap_err().to_string();
        assert!(said.contains(&format!("parameter \"{key}\" is given twice")), "{said}");
    }
}
