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

#[test]
fn mistakes_are_refused_with_the_op_that_makes_them() {
    let cases = [
        ("{ unlock = 'm' }", "thread \"a\", op 1 (unlock m): \"m\" is not locked here"),
        ("{ wait = { cond = 'c', mutex = 'm' } }", "\"m\" is not locked here"),
        ("{ spin_unlock = 's' }", "\"s\" is not locked here"),
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
