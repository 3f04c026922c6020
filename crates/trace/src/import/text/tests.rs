// SPDX-License-Identifier: GPL-2.0-only
//! Lines in the forms of `perf script`, `trace-cmd report` and ftrace.

use proptest::prelude::*;
use scxlab_machine::{CpuId, TaskId};

use super::*;
use crate::call::Call;
use crate::event::{Event, EventKind, PrevState};
use crate::import::{Imported, import};
use crate::names::Names;
use crate::sink::Sink;

/// Draws events as lines: time, CPU, what happened. A task is `name:tid`.
#[derive(Default)]
struct Lines(Vec<String>);

impl Sink for Lines {
    fn event(&mut self, event: &Event, names: &Names) {
        let Event { time, cpu, kind } = *event;
        let task = |task: TaskId| {
            let name = names.task(task).unwrap();
            format!("{}:{}", name.comm, name.pid)
        };
        let or_idle = |id: Option<TaskId>| id.map_or("idle".to_owned(), task);
        let what = match kind {
            EventKind::Switch { prev, next, prev_state } => {
                format!("{} {prev_state:?} > {}", or_idle(prev), or_idle(next))
            }
            EventKind::Wakeup { task: woken, target, waker } => {
                let waker = waker.map_or("interrupt".to_owned(), task);
                format!("{waker} wakes {} on {target}", task(woken))
            }
            EventKind::Migrate { task: moved, from, to } => {
                format!("{} {from} to {to}", task(moved))
            }
            EventKind::Fork { parent, child } => {
                format!("{} forks {}", or_idle(parent), task(child))
            }
            EventKind::Exit { task: ended } => format!("{} ends", task(ended)),
            EventKind::Call { task: caller, call } => format!("{} {call:?}", task(caller)),
            other => format!("{other:?}"),
        };
        self.0.push(format!("{time} {cpu} {what}"));
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn read(text: &str) -> (Vec<String>, Imported) {
    let mut lines = Lines::default();
    let imported = import("a.txt", text.as_bytes(), &mut lines).unwrap();
    (lines.0, imported)
}

#[test]
fn perf_script_is_read() {
    let (events, imported) = read(include_str!("../../../testdata/perf-script.txt"));
    let expected = [
        "0 1 interrupt wakes my task:100 on 1",
        "500 1 idle Runnable > my task:100",
        "2000 1 my task:100 forks my task:101",
        "2500 1 my task:100 wakes my task:101 on 0",
        "3000 1 my task:101 0 to 1",
        "3500 1 my task:100 Sleeping > my task:101",
        "4500 1 my task:101 ends",
        "4500 1 my task:101 Exited > idle",
    ];
    assert_eq!(events, expected);
    assert_eq!(
        (imported.format, imported.start, imported.length),
        (Format::PerfScript, 12_000_000_500, 4500)
    );
    assert_eq!(imported.unknown.count, 0);
    assert_eq!(imported.damage(), Vec::<String>::new());
    assert!(imported.missing().iter().any(|text| text.starts_with("no flags of interrupts")));
}

#[test]
fn ftrace_is_read_with_its_flags() {
    let (events, imported) = read(include_str!("../../../testdata/ftrace.txt"));
    let wait = events.iter().find(|event| event.contains("FutexWait")).unwrap().clone();
    let expected = [
        "0 2 interrupt wakes a-b:7 on 2",
        "100000 2 idle Runnable > a-b:7",
        "200000 2 a-b:7 Count { units: 3 }",
        "300000 2 interrupt wakes c:9 on 3",
        &wait,
        "400000 2 a-b:7 Uninterruptible > c:9",
    ];
    assert_eq!(events, expected);
    assert!(wait.starts_with("350000 2 a-b:7 FutexWait { object: "), "{wait}");
    assert_eq!(imported.format, Format::Ftrace);
    assert_eq!(imported.lost.get(&CpuId(2)), Some(&12));
    assert_eq!(imported.without_process, 1, "only the task c");
    assert_eq!(imported.blind_wakeups, 0);
    assert_eq!(imported.unknown.count, 0);
}

#[test]
fn trace_cmd_is_read_with_its_short_form() {
    let (events, imported) = read(include_str!("../../../testdata/trace-cmd.txt"));
    let expected = [
        "0 0 trace-cmd:123 Runnable > b:c d:9",
        "100 0 b:c d:9 wakes trace-cmd:123 on 0",
        "200 0 b:c d:9 wakes e:10 on 1",
    ];
    assert_eq!(events, expected);
    assert_eq!((imported.format, imported.unknown.count), (Format::TraceCmd, 0));
}

/// A thread without a name, or whose name perf does not know, keeps its thread id.
#[test]
fn a_thread_without_a_name_is_kept() {
    let (events, imported) = read(
        "                   100 [000] 1.000000: sched:sched_switch: prev_comm= prev_pid=100 \
         prev_prio=120 prev_state=S ==> next_comm=b next_pid=101 next_prio=120\n\
         \x20           :101   101 [000] 1.000001: sched:sched_switch: b:101 [120] S ==> :100 [120]\n\
         \x20               100/100 [000] 1.000002: sched:sched_switch: :100 [120] S ==> b:101 [120]\n",
    );
    let expected = [
        "0 0 :100:100 Sleeping > b:101",
        "1000 0 b:101 Sleeping > :100:100",
        "2000 0 :100:100 Sleeping > b:101",
    ];
    assert_eq!((events, imported.events.switches), (expected.map(str::to_owned).to_vec(), 3));
}

/// A name with all that separates fields in it must not become another field.
#[test]
fn names_cannot_forge_fields() {
    let (events, _) = read(
        "\
x pid=1 prio=2  50 [000] 1.000000001: sched:sched_waking: comm=x pid=1 prio=2 pid=60 prio=120 target_cpu=000
x [001] 1.0: y  50 [000] 1.000000002: sched:sched_switch: prev_comm= ==> next_comm=q prev_pid=50 prev_prio=120 prev_state=S ==> next_comm=[x] 5 next_pid=60 next_prio=120
",
    );
    let expected = [
        "0 0 x pid=1 prio=2:50 wakes x pid=1 prio=2:60 on 0",
        "1 0  ==> next_comm=q:50 Sleeping > [x] 5:60",
    ];
    assert_eq!(events, expected);
}

#[test]
fn a_thread_id_is_reused() {
    let (events, imported) = read(
        "\
a 1 [000] 1.000000001: sched:sched_switch: prev_comm=a prev_pid=1 prev_prio=120 prev_state=S ==> next_comm=b next_pid=2 next_prio=120
b 2 [000] 1.000000002: sched:sched_process_exit: comm=b pid=2 prio=120
b 2 [000] 1.000000003: sched:sched_switch: prev_comm=b prev_pid=2 prev_prio=120 prev_state=D ==> next_comm=a next_pid=1 next_prio=120
a 1 [000] 1.000000004: sched:sched_switch: prev_comm=a prev_pid=1 prev_prio=120 prev_state=R ==> next_comm=b next_pid=2 next_prio=120
b 2 [000] 1.000000005: sched:sched_switch: prev_comm=b prev_pid=2 prev_prio=120 prev_state=Z ==> next_comm=a next_pid=1 next_prio=120
a 1 [000] 1.000000006: sched:sched_process_free: comm=b pid=2 prio=120
a 1 [000] 1.000000007: task:task_newtask: pid=2 comm=a clone_flags=3d0f00 oom_score_adj=0
a 1 [000] 1.000000007: sched:sched_process_fork: comm=a pid=1 child_comm=a child_pid=2
a 1 [000] 1.000000008: task:task_newtask: pid=2 comm=a clone_flags=1200000 oom_score_adj=0
",
    );
    let expected = [
        "0 0 a:1 Sleeping > b:2",
        "1 0 b:2 ends",
        "2 0 b:2 Uninterruptible > a:1",
        "3 0 a:1 Runnable > b:2",
        "4 0 b:2 Exited > a:1",
        "6 0 a:1 forks a:2",
        "7 0 a:1 forks a:2",
    ];
    assert_eq!(events, expected);
    assert_eq!(imported.tasks, 4);
    assert_eq!(imported.tasks_faults.replaced, 1);
}

/// `sched_wakeup` follows `sched_waking` and tells the same wake-up.
#[test]
fn a_wakeup_counts_once() {
    let (events, _) = read(
        "\
a 1 [000] 1.000000001: sched:sched_waking: comm=b pid=2 prio=120 target_cpu=000
a 1 [000] 1.000000002: sched:sched_wakeup: comm=b pid=2 prio=120 target_cpu=001
a 1 [000] 1.000000003: sched:sched_wakeup: comm=b pid=2 prio=120 target_cpu=001
",
    );
    assert_eq!(events, ["0 0 a:1 wakes b:2 on 0", "2 0 a:1 wakes b:2 on 1"]);
}

#[test]
fn an_execution_moves_the_thread_id() {
    let (events, imported) = read(
        "\
a 5 [000] 1.000000001: sched:sched_waking: comm=b pid=2 prio=120 target_cpu=000
a 4 [000] 1.000000002: sched:sched_process_exec: filename=/bin/c pid=4 old_pid=5
c 4 [000] 1.000000003: sched:sched_waking: comm=b pid=2 prio=120 target_cpu=000
",
    );
    assert_eq!(events, ["0 0 a:5 wakes b:2 on 0", "1 0 a:4 Exec", "2 0 a:4 wakes b:2 on 0"]);
    assert_eq!(imported.tasks, 2);
}

#[test]
fn calls_are_read_as_far_as_their_text_tells() {
    let call = |name: &str, arguments: &str| match calls::read(name, arguments) {
        events::Read::Kind(RawKind::Call(call) | RawKind::Private(call)) => Some(call),
        _ => None,
    };
    let wake = Some(Call::FutexWake { object: 0x7f10, most: 1 });
    assert_eq!(call("futex", "uaddr: 0x00007f10, op: 0x00000081, val: 0x00000001"), wake);
    assert_eq!(call("futex", "uaddr: 7f10, op: 1, val: 1, utime: 7ff)"), wake);
    assert_eq!(call("futex", "uaddr: 7f10, op: 0, val: 1, utime: 7ff)"), None);
    let poll = |timeout| Some(Call::Poll { timeout });
    assert_eq!(
        call("epoll_wait", "epfd: 5, events: 7f, maxevents: 8, timeout: 0x0000000a"),
        poll(Some(10_000_000))
    );
    assert_eq!(call("poll", "ufds: 0x7f, nfds: 0x1, timeout_msecs: 0xffffffff"), poll(None));
    assert_eq!(call("select", "n: 5, inp: 1, outp: 0, exp: 0, tvp: 0"), poll(None));
    assert_eq!(call("nanosleep", "rqtp: 0x7f, rmtp: 0x0"), None);
    assert_eq!(call("read", "fd: 3, buf: 0x7f, count: 0x8"), None);
}

#[test]
fn what_cannot_be_read_is_told_with_its_line() {
    let long = "y".repeat(1 << 20);
    let good = "a 1 [000] 1.000000001: sched:sched_waking: comm=b pid=2 prio=120 target_cpu=000\n";
    let lines = [
        "a 1 [000] 1.000000002: sched:sched_switch: prev_comm=a prev_pid=1 prev_prio=120 prev_state=? ==> next_comm=b next_pid=2 next_prio=120\n",
        "a 1 [000] 1.000000002: sched:sched_switch: prev_comm=a prev_pid=1 prev_prio=120 prev_state=S ==> next_comm=b\n",
        "a 1 [000] 123456: sched:sched_waking: comm=b pid=2 prio=120 target_cpu=000\n",
        "a 1 [000] 1.000000002: sched:sched_waking: comm=b pid=2 prio=120 target_cpu=8192\n",
        "a 1 [9000] 1.000000002: sched:sched_waking: comm=b pid=2 prio=120 target_cpu=0\n",
        "a 1 [000] 1.000000002: irq:irq_handler_entry: irq=1 name=x\n",
        "a 1 [000] 99999999999999999999.000000002: irq:irq_handler_entry: irq=1 name=x\n",
        "a 1 [000] 1.00000000é0: irq:irq_handler_entry: irq=1 name=x\n",
        "nonsense\n",
        &format!("{long}\n"),
    ];
    for (at, line) in lines.iter().enumerate() {
        let (events, imported) = read(&format!("{good}{line}{good}"));
        assert_eq!(events.len(), 2, "line {at}");
        assert_eq!(imported.unknown.count, 1, "line {at}");
        assert_eq!(imported.unknown.first.unwrap().0, 2, "line {at}");
    }
    let (events, imported) = read(&format!("{good}a 1 [000] 1.0000"));
    assert_eq!((events.len(), imported.end), (1, End::Cut(2)));
}

#[test]
fn states_are_those_of_the_kernel() {
    let expected = [
        ("R", PrevState::Runnable),
        ("R+", PrevState::Runnable),
        ("S", PrevState::Sleeping),
        ("I", PrevState::Sleeping),
        ("t", PrevState::Sleeping),
        ("D", PrevState::Uninterruptible),
        ("D|K", PrevState::Uninterruptible),
        ("X", PrevState::Exited),
        ("Z", PrevState::Exited),
        ("1", PrevState::Sleeping),
        ("256", PrevState::Runnable),
        ("16", PrevState::Exited),
    ];
    for (text, state) in expected {
        assert_eq!(fields::state(text), Some(state), "{text}");
    }
    assert_eq!(fields::state("?"), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever a line holds, the import ends, and each line has an event, a meaning or a place
    /// among the unknown ones.
    #[test]
    fn any_text_is_survived(
        lines in prop::collection::vec("[ -~]{0,40}|a 1 \\[0\\] 1\\.0: sched_[a-z_=: >0-9]{0,40}", 0..20),
    ) {
        let first = "a 1 [000] 1.0: sched:sched_waking: comm=b pid=2 prio=120 target_cpu=000";
        let text = format!("{first}\n{}\n", lines.join("\n"));
        let (events, imported) = read(&text);
        prop_assert!(events.len() as u64 + imported.unknown.count <= 2 * lines.len() as u64 + 2);
        prop_assert!(!events.is_empty());
    }
}

#[test]
fn both_forms_of_lost_events_are_known() {
    for (line, expected) in [
        ("CPU:2 [LOST 12 EVENTS]", Some((2, 12))),
        ("CPU:0 [LOST EVENTS]", Some((0, 0))),
        ("CPU:13 [12 EVENTS DROPPED]", Some((13, 12))),
        ("  CPU:0 [EVENTS DROPPED]", Some((0, 0))),
        ("CPU:0 [12 EVENTS]", None),
        ("CPU:x [EVENTS DROPPED]", None),
        ("CPU:0 [x EVENTS DROPPED]", None),
    ] {
        assert_eq!(super::head::lost(line), expected, "{line}");
    }
}
