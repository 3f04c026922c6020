// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the checks, and of the code generated for loops.

use super::*;
use crate::program::from_toml;

fn error(text: &str) -> String {
    compile(&from_toml("t.toml", text).unwrap()).unwrap_err().to_string()
}

fn with_ops(ops: &str) -> String {
    format!("name = 't'\n[[thread]]\nname = 'a'\nops = [{ops}]")
}

#[test]
fn loops_become_jumps() {
    let text = with_ops(
        "{ loop = { times = 3, ops = [{ compute = '1ns' }] } }, \
                         { loop = { ops = ['yield'] } }",
    );
    let compiled = compile(&from_toml("t", &text).unwrap()).unwrap();
    let expected = [
        Insn::LoopInit { slot: 0, end: 3, times: 3 },
        Insn::Compute(1),
        Insn::LoopNext { slot: 0, start: 1 },
        Insn::Yield,
        Insn::Jump(3),
        Insn::Takes(LongCall::Exit),
        Insn::Exit,
    ];
    assert_eq!(compiled.code, expected);
}

#[test]
fn an_instruction_is_small() {
    assert!(size_of::<Insn>() <= 24);
}

#[test]
fn objects_that_differ_by_instance_go_through_a_slot() {
    let text = with_ops("{ lock = 'm{i}' }, { unlock = 'm{i}' }, { sem_post = 's' }");
    let compiled = compile(&from_toml("t", &text).unwrap()).unwrap();
    assert_eq!(compiled.templates[0].slots, [(ObjectKind::Mutex, "m{i}".to_owned())]);
    let Insn::Lock(res) = compiled.code[0] else { panic!() };
    assert_eq!(res.index(&[42]), 42);
}

#[test]
fn one_absolute_use_makes_a_timer_absolute() {
    let text = with_ops(
        "{ timer = { name = 't', period = '1ms' } }, \
                         { timer = { name = 't', period = '1ms', mode = 'absolute' } }",
    );
    let compiled = compile(&from_toml("t", &text).unwrap()).unwrap();
    assert!(matches!(compiled.code[0], Insn::Timer { absolute: true, .. }));
}

/// The compiler must refuse a cgroup path that is too deep or has too long a name, and a program
/// with too many cgroups, so that the error appears before the run. The error message shows only
/// the beginning of a long path.
#[test]
fn cgroups_are_bounded_in_depth_name_and_number() {
    let moves = |path: &str| error(&with_ops(&format!("{{ move_cgroup = '{path}' }}")));
    let refused = moves(&"/a".repeat(10_000));
    let wanted =
        format!("cgroup path \"{}...\" is 10000 levels deep; at most 31 are", "/a".repeat(30));
    assert!(refused.contains(&wanted), "{refused}");
    let refused = moves(&format!("/{}", "a".repeat(1_000_000)));
    assert!(refused.contains("...\" has a name of 1000000 bytes; at most 255 are"), "{refused}");
    let most = format!("{{ move_cgroup = '{}/{}' }}", "/a".repeat(30), "b".repeat(255));
    assert!(compile(&from_toml("t", &with_ops(&most)).unwrap()).is_ok());

    let cgroups: String = (0..65_536).map(|n| format!("[[cgroup]]\npath = '/{n}'\n")).collect();
    let refused = error(&format!("{}\n{cgroups}", with_ops("'yield'")));
    assert!(refused.contains("number of cgroups") && refused.contains("65535"), "{refused}");
}

/// A cgroup that nothing declares beside others that something does may be misspelt.
#[test]
fn a_misspelt_cgroup_is_noted() {
    let notes = |declared: &str, used: &str| {
        let thread = format!("[[thread]]\nname = 'a'\ncgroup = '{used}'\nops = ['yield']\n");
        crate::load("t.toml", &format!("{declared}{thread}")).unwrap().notes
    };
    let declared = "[[cgroup]]\npath = '/batch/low'\nweight = 50\n";
    let [note] = &notes(declared, "/bacth")[..] else { panic!("no note") };
    assert!(note.contains("\"a\"") && note.contains("/bacth"), "{note}");
    for (declared, used) in [(declared, "/batch"), (declared, "/batch/low"), ("", "/bacth")] {
        assert_eq!(notes(declared, used), [""; 0]);
    }
}

#[test]
fn mistakes_are_refused_with_the_op_that_makes_them() {
    let cases = [
        ("{ unlock = 'm' }", "thread \"a\", op 1 (unlock m): \"m\" is not locked here"),
        ("{ wait = { cond = 'c', mutex = 'm' } }", "\"m\" is not locked here"),
        ("{ spin_unlock = 's' }", "\"s\" is not locked here"),
        ("{ atomic = { lines = 'l', count = 0 } }", "an op changes 1 to 64 counters"),
        ("{ atomic = { lines = 'l', count = 65 } }", "an op changes 1 to 64 counters"),
        ("{ poll = { pipes = [] } }", "from 1 to 64 pipes"),
        ("{ poll = { pipes = ['p', ''] } }", "an empty name"),
        ("{ loop = { ops = [] } }", "its body is empty"),
        ("{ set_nice = 20 }", "nice is from -20 to 19"),
        ("{ set_policy = { fifo = 0 } }", "real-time priority 0 is not from 1 to 99"),
        ("{ lock = '' }", "an empty name"),
        ("{ lock = 'm{i%0}' }", "is not an expression"),
        ("{ lock = 'm{i' }", "has a { without its }"),
        ("{ touch = { size = 1, stride = 0 } }", "a stride of 0"),
        ("{ read = { pipe = 'p', bytes = 2000000000000 } }", "more than 1 TiB"),
        ("{ move_cgroup = 'x' }", "cgroup path \"x\" is not of the form /a/b"),
        (
            "{ set_xattr = { cgroup = '/a', name = 'trusted.x', value = '1' } }",
            "cgroup /a: \"trusted.x\": the name of an xattr is user.NAME",
        ),
        ("{ fork = 'b' }", "thread \"b\" does not exist; there are a"),
        ("{ fork = 'a' }", "threads fork one another for ever: a -> a"),
        (
            "{ phase = { name = 'p', ops = [{ phase = { name = 'q', ops = ['yield'] } }] } }",
            "a phase within a phase",
        ),
    ];
    for (ops, expected) in cases {
        let message = error(&with_ops(ops));
        assert!(message.contains(expected), "{ops}: {message}");
    }
}

/// An error that is found after parsing names line and column of the op, thread or cgroup, in TOML
/// and in JSON, however the file writes its tables.
#[test]
fn mistakes_are_refused_with_their_line() {
    let toml = |text: &str| error(text);
    let ops = "ops = [\n  'yield',\n  { loop = { times = 2, ops = [\n    { set_nice = 1 },\n    \
               { unlock = 'm' },\n  ] } },\n]";
    let thread = format!("[[thread]]\nname = 'a'\n{ops}");
    assert!(
        toml(&thread).starts_with("t.toml:7:5: thread \"a\", op 2 (unlock m)"),
        "{}",
        toml(&thread)
    );
    let header =
        "[[thread]]\nname = 'a'\n[[thread.ops]]\nsleep = '1ms'\n[[thread.ops]]\nunlock = 'm'";
    assert!(toml(header).starts_with("t.toml:5:1: "), "{}", toml(header));
    let two = format!(
        "{}\n{}",
        with_ops("'yield'"),
        "[[thread]]\nname = 'b'\nnice = 99\nops = ['yield']"
    );
    assert!(toml(&two).starts_with("t.toml:5:1: thread \"b\""), "{}", toml(&two));
    let cgroup = format!("{}\n[[cgroup]]\npath = '/a'\nweight = 0", with_ops("'yield'"));
    assert!(toml(&cgroup).starts_with("t.toml:5:1: cgroup /a"), "{}", toml(&cgroup));
    let moves = with_ops("\n'yield',\n{ move_cgroup = 'x' }");
    assert!(toml(&moves).starts_with("t.toml:6:1: cgroup path"), "{}", toml(&moves));
    let fork = with_ops("\n'yield',\n{ fork = 'x' }");
    assert!(toml(&fork).starts_with("t.toml:6:1: thread \"x\" does not exist"), "{}", toml(&fork));
    let zero = format!("duration = '0s'\n{}", with_ops("'yield'"));
    assert!(toml(&zero).starts_with("t.toml:1:12: a duration of 0"), "{}", toml(&zero));

    let json = "{ \"thread\": [{ \"name\": \"a\", \"ops\": [\n  { \"phase\": { \"name\": \"p\", \
                \"ops\": [\n    \"yield\", { \"unlock\": \"m\" }] } }] }] }";
    let program = crate::program::from_json("t.json", json).unwrap();
    let refused = compile(&program).unwrap_err().to_string();
    assert!(refused.starts_with("t.json:3:14: "), "{refused}");
    let array = crate::load("t.json", "\n [{ \"thread\": [] }]").unwrap_err().to_string();
    assert_eq!(array, "t.json:2:2: an array where an object ({...}) should be");
}

const USER: &str = "[[thread]]\nname = 'a'\nops = [{ touch = { region = 'heap' } }]\n";

#[test]
fn mistakes_in_regions_are_refused_with_their_line() {
    let heap = |keys: &str| format!("{USER}[[region]]\nname = 'heap'\n{keys}\n");
    let user = |op: &str| format!("{}\n[[region]]\nname = 'heap'\nsize = 8192\n", with_ops(op));
    let cases = [
        (USER.to_owned(), "t.toml:3:8: region \"heap\" does not exist"),
        (
            heap("size = 1") + "[[region]]\nname = 'heap'\nsize = 1",
            "t.toml:7:1: region \"heap\": is declared twice",
        ),
        (heap("size = 0"), "t.toml:4:1: region \"heap\": its size is from 1 byte to 1 TiB"),
        (heap("size = '2000GiB'"), "its size is from 1 byte to 1 TiB"),
        (heap("size = 1\nmerge = 20"), "merge needs small pages"),
        (heap("size = 1\nmerge = 101"), "merge is a percentage"),
        (heap("size = 1\nhuge = true\nof = 'all'"), "huge pages are for private memory"),
        (heap("size = 1\nmerge = 1\nof = 'all'"), "merge is for private memory"),
        (
            user("{ touch = { region = 'heap', offset = 4096, size = 4097 } }"),
            "t.toml:4:8: accesses bytes 4096 to 8193 of region \"heap\", which has 8192 bytes",
        ),
        (user("{ touch = { region = 'heap', offset = 8192 } }"), "bytes 8192 to 8193 of region"),
        (user("{ touch = { region = 'heap', size = 0 } }"), "accesses bytes 0 to 0"),
        (user("{ touch = { kind = 'read' } }"), "it needs a size or a region"),
        (user("{ touch = { size = 1, offset = 1 } }"), "an offset without a region"),
        (
            user("{ compute = { work = '1ms', region = 'heap', memory = 0 } }"),
            "memory is a percentage from 1 to 100",
        ),
        (
            user("{ compute = { work = '1ms', region = 'heap', memory = 101 } }"),
            "memory is a percentage from 1 to 100",
        ),
        (
            "[[cgroup]]\npath = '/a'\nmems = '0'\n[[cgroup]]\npath = '/b'\nmems = '1'\n".to_owned()
                + "[[region]]\nname = 'r'\nsize = 1\n[[thread]]\nname = 't'\ncgroup = '/a'\n"
                + "ops = [{ touch = { region = 'r' } }, { move_cgroup = '/b' }]",
            "t.toml:13:38: a thread that uses regions moves to a cgroup with other mems",
        ),
    ];
    for (text, expected) in cases {
        let message = error(&text);
        assert!(message.contains(expected), "{text}: {message}");
    }
    let bad = [
        ("size = '1GB'", "t.toml:6:8: \"1GB\" is not a size: write a number and KiB, MiB or GiB"),
        ("size = -1", "is not a size"),
        ("size = 1\npolicy = 'near'", "t.toml:7:10: unknown variant `near`"),
        ("size = 1\npolicy = { bind = 'x' }", "t.toml:7:10: \"x\" is not a list of nodes"),
        ("size = 1\nof = 'some'", "unknown variant `some`"),
    ];
    for (keys, expected) in bad {
        let message = from_toml("t.toml", &heap(keys)).unwrap_err().to_string();
        assert!(message.contains(expected), "{keys}: {message}");
    }
    let compute = with_ops("{ compute = { work = 'x', region = 'heap', memory = 40 } }");
    let message = from_toml("t.toml", &compute).unwrap_err().to_string();
    assert!(message.contains("t.toml:4:29: \"x\" is not a time"), "{message}");
}

/// Rules that depend on the machine: a node that does not exist or has no memory, too little room,
/// cpusets that exclude a region.
#[test]
fn regions_must_fit_the_machine() {
    let nodes = [2 << 30, 0, 1 << 30].map(|memory_bytes| NodeInfo { memory_bytes });
    let checked = |text: &str| {
        let program = from_toml("t.toml", text).unwrap();
        check(&program).unwrap_or_else(|e| panic!("{text}: {e}"));
        check_nodes(&program, &nodes).map_err(|e| e.to_string())
    };
    let heap = |keys: &str| format!("{USER}[[region]]\nname = 'heap'\n{keys}\n");
    let good = [
        heap("size = '3GiB'"),
        heap("size = '1GiB'\npolicy = { bind = '2' }\npopulate = '0,2'"),
        heap("size = '1GiB'\nof = 'all'\npolicy = { interleave = '0,2' }"),
    ];
    for text in &good {
        checked(text).unwrap();
    }
    let group = |mems: &str, keys: &str| {
        format!(
            "[[cgroup]]\npath = '/a'\nmems = '{mems}'\n[[thread]]\nname = 'a'\ncgroup = '/a/b'\n\
             ops = [{{ touch = {{ region = 'heap' }} }}]\n[[region]]\nname = 'heap'\n{keys}"
        )
    };
    checked(&group("2", "size = 1\npolicy = { bind = '0,2' }")).unwrap();
    let cases = [
        (
            heap("size = 1\npolicy = { preferred = 3 }"),
            "t.toml:4:1: the policy of region \"heap\" names node 3; nodes with memory are 0, 2",
        ),
        (heap("size = 1\npopulate = '1'"), "populate of region \"heap\" names node 1"),
        (
            heap("size = '2GiB'\npolicy = { bind = '2' }"),
            "region \"heap\" has 2 GiB; the nodes that it is bound to (2) have 1 GiB",
        ),
        (heap("size = '4GiB'"), "the regions of the start have 4 GiB; the machine has 3 GiB"),
        (
            heap("size = '2GiB'").replace("name = 'a'", "name = 'a'\ninstances = 2"),
            "the regions of the start have 4 GiB",
        ),
        (group("1", "size = 1"), "t.toml:1:1: mems of cgroup /a names node 1"),
        (
            group("2", "size = 1\npolicy = { bind = '0' }"),
            "t.toml:4:1: thread \"a\" is in cgroup /a/b, whose mems (2) exclude every node that \
             region \"heap\" (t.toml:8:1) names",
        ),
        (group("2", "size = 1\npopulate = '0'"), "exclude every node"),
    ];
    for (text, expected) in cases {
        let message = checked(&text).unwrap_err();
        assert!(message.contains(expected), "{text}: {message}");
    }
    // Threads of one process share the region.
    let shared = "name = 'a'\ninstances = 2\nprocess = 'p'";
    checked(&heap("size = '2GiB'").replace("name = 'a'", shared)).unwrap();
}

#[test]
fn mistakes_outside_the_ops_are_refused() {
    let thread = "[[thread]]\nname = 'a'\nops = ['yield']\n";
    let cases = [
        (format!("{thread}{thread}"), "two threads are named \"a\""),
        (format!("{thread}instances = 0"), "0 instances, and nothing forks it"),
        (format!("{thread}instances = 4000000000"), "number of threads 4000000000 exceeds"),
        (format!("{thread}nice = 30"), "nice is from"),
        (
            format!(
                "{thread}policy = {{ deadline = {{ runtime = '5ms', deadline = '2ms', period = '9ms' }} }}"
            ),
            "runtime <= deadline <= period",
        ),
        (format!("duration = '0s'\n{thread}"), "a duration of 0"),
        (format!("{thread}[[cgroup]]\npath = '/a'\nweight = 0"), "weight is from 1 to 10000"),
        (format!("{thread}[[cgroup]]\npath = '/a'\n[[cgroup]]\npath = '/a'"), "is declared twice"),
        (format!("{thread}[[cgroup]]\npath = '/a/../b'"), "is not of the form"),
        (format!("{thread}[[barrier]]\nname = 'b'\nparties = 0"), "has 0 parties"),
        (format!("{thread}[[pipe]]\nname = 'b'\ncapacity = 0"), "cannot hold a message"),
    ];
    for (text, expected) in cases {
        let message = error(&text);
        assert!(message.contains(expected), "{text}: {message}");
    }
}

/// Guests are refused with the line of the guest, or of the mistake in its program.
#[test]
fn mistakes_in_guests_are_refused_with_their_line() {
    let load = |text: &str| {
        let read = |path: &str| match path {
            "d/b.toml" => Ok("[[region]]\nname = 'heap'\nsize = 1\n".to_owned() + USER),
            "d/c.toml" => Ok("[[guest]]\nname = 'g'\nworkload = 'a.toml'".to_owned()),
            _ => Err("no such file".to_owned()),
        };
        crate::load_with("d/a.toml", text, &read).map_err(|e| e.to_string())
    };
    let guest = |keys: &str| format!("[[guest]]\nname = \"g\"\n{keys}\n");
    let hogs = "workload = 'hogs'\n";
    let inline = "[[guest.program.thread]]\nname = 'a'\nops = ['yield', { nice = 1 }]";
    let cases = [
        (guest(""), "d/a.toml:1:1: guest \"g\" needs `workload` or `program`"),
        (
            guest(&format!("{hogs}{}", inline.replace("nice", "set_nice"))),
            "d/a.toml:1:1: guest \"g\" has `workload` and `program`; it needs one of them",
        ),
        (
            guest(&format!("{hogs}vcpus = 0")),
            "d/a.toml:1:1: guest \"g\": vcpus is 0, must be 1 to 288",
        ),
        (guest(&format!("{hogs}vcpus = 289")), "vcpus is 289"),
        (guest(&format!("{hogs}instances = 0")), "instances is 0"),
        (
            guest(&format!("{hogs}instances = 2")),
            "two guests are named \"g\"; instances need a pattern such as \"vm{i}\"",
        ),
        (guest(hogs) + &guest(hogs), "d/a.toml:5:1: two guests are named \"g\""),
        (guest(&format!("{hogs}nice = 20")), "nice is from"),
        (guest(&format!("{hogs}cgroup = 'a'")), "d/a.toml:1:1: cgroup path \"a\" is not"),
        (guest(&format!("{hogs}vcpu_cgroups = true")), "vcpu_cgroups needs `cgroup`"),
        (guest(&format!("{hogs}memory = '2000GiB'")), "memory: its size is from 1 byte to 1 TiB"),
        (guest(&format!("{hogs}memory = '2GB'")), "d/a.toml:4:10: \"2GB\" is not a size"),
        (
            guest(&format!("{hogs}memory = {{ size = 1, huge = true, merge = 5 }}")),
            "needs small pages",
        ),
        (
            guest(&format!("{hogs}spinlock = 'mcs'")),
            "d/a.toml:4:12: unknown variant `mcs`, expected `ticket` or `queued`",
        ),
        (
            guest("workload = 'lockholder'"),
            "d/a.toml:1:1: guest \"g\" has a bad workload: unknown workload \"lockholder\"; there are",
        ),
        (guest("workload = 'cmd:true'"), "guest \"g\" has a command as its workload"),
        (guest("workload = 'x.toml'"), "guest \"g\" has a workload d/x.toml: no such file"),
        (guest("workload = 'c.toml'"), "a guest cannot contain guests"),
        (guest("workload = 'b.toml,vms=2'"), "a guest cannot contain guests"),
        (guest("workload = 'hogs,vcpus=2'"), "a guest cannot contain guests"),
        (
            guest("workload = 'b.toml'"),
            "d/b.toml:1:1: guest \"g\" has no memory for region \"heap\": give it `memory`",
        ),
        (guest(&inline.replace("nice = 1", "unlock = 'm'")), "d/a.toml:5:17: thread \"a\", op 2"),
        (guest(inline), "unknown op \"nice\""),
        (
            guest("instances = 5000\nworkload = 'hogs'").replace("\"g\"", "\"g{i}\""),
            "number of guests 5000 exceeds the limit of 4095",
        ),
        (
            guest("instances = 400\nvcpus = 288\nworkload = 'hogs,tasks=1'")
                .replace("\"g\"", "\"g{i}\""),
            "number of threads and virtual CPUs 115600 exceeds the limit of 100000",
        ),
    ];
    for (text, expected) in cases {
        let message = load(&text).expect_err(&text);
        assert!(message.contains(expected), "{text}: {message}");
    }
    let good = guest(
        "workload = 'b.toml'\nmemory = '1GiB'\ncgroup = '/x{i}'\nvcpus = 2\nvcpu_cgroups = true",
    );
    let program = load(&good).unwrap();
    let paths: Vec<String> = cgroups(&program).into_iter().map(|c| c.path).collect();
    assert_eq!(paths, ["/x0", "/x0/vcpu0", "/x0/vcpu1"]);
    let nodes = [NodeInfo { memory_bytes: 1 << 29 }];
    let message = check_nodes(&program, &nodes).unwrap_err().to_string();
    let expected =
        "d/a.toml:1:1: the regions and the guests of the start have 1 GiB; the machine has 512 MiB";
    assert_eq!(message, expected);
    let bound = good.replace("'1GiB'", "{ size = '1GiB', policy = { bind = '1' } }");
    let message = check_nodes(&load(&bound).unwrap(), &nodes).unwrap_err().to_string();
    assert!(
        message.starts_with("d/a.toml:1:1: the policy of the memory of guest \"g\" names node 1")
    );
}

/// A file without a unit or a duration has those of its guests' workloads.
#[test]
fn unit_and_duration_come_from_the_guests() {
    let load = |text: &str| crate::load("a.toml", text).unwrap();
    let guests = "[[guest]]\nname = 'a'\nworkload = 'hackbench'\n[[guest]]\nname = 'b'\nworkload = 'sleepers'";
    let program = load(guests);
    let sleepers = program.guests[1].program.as_ref().unwrap();
    assert_eq!(program.unit, program.guests[0].program.as_ref().unwrap().unit);
    assert!(sleepers.duration.is_some() && program.duration.is_none(), "hackbench ends by itself");
    let program = load(&guests.replace("hackbench", "hogs"));
    assert_eq!(program.duration, program.guests[0].program.as_ref().unwrap().duration);
    let program = load(&format!("unit = 'x'\nduration = '7ms'\n{guests}"));
    assert_eq!((program.unit.as_str(), program.duration.unwrap().0), ("x", 7_000_000));
    assert!(program.guests.iter().all(|guest| guest.workload.is_none()), "self-contained");
}

#[test]
fn fork_cycles_over_several_threads_are_found() {
    let fork = |name: &str, of: &str, n: u32| {
        format!("[[thread]]\nname = '{name}'\ninstances = {n}\nops = [{{ fork = '{of}' }}]\n")
    };
    let text = fork("a", "b", 1) + &fork("b", "c", 0) + &fork("c", "b", 0);
    assert!(error(&text).contains("b -> c -> b"));
}

#[test]
fn nesting_is_bounded() {
    let mut ops = vec![Op::Yield];
    for _ in 0..100 {
        ops = vec![Op::Loop { times: Some(2), ops }];
    }
    let program = Program { threads: vec![ThreadTemplate::new("a", ops)], ..Program::default() };
    let message = compile(&program).unwrap_err().to_string();
    assert!(message.contains("nested too deeply"), "{message}");
}
