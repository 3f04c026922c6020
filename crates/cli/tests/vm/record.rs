// SPDX-License-Identifier: GPL-2.0-only
//! Tests of `scxlab record`, in a guest whose /init is the scxlab command. The files come back on
//! the console, and are read as any trace is.

mod replay;
mod story;

use std::process::{Command, Stdio};

use scxlab_trace::{Call, ChannelKind};
use serde_json::Value;

use crate::bench::{Bench, Done};
use story::{Heard, Story};

/// A pair that passes a token through pipes, a pair that uses semaphores, a periodic thread, and
/// one that computes.
const WORKLOAD: &str = r#"
duration = "1s"

[[thread]]
name = "ping"
ops = [{ loop = { ops = [{ write = { pipe = "there", bytes = 4 } }, { read = { pipe = "back", bytes = 4 } }, { sleep = "2ms" }] } }]

[[thread]]
name = "pong"
nice = 5
ops = [{ loop = { ops = [{ read = { pipe = "there", bytes = 4 } }, { write = { pipe = "back", bytes = 4 } }] } }]

[[thread]]
name = "poster"
ops = [{ loop = { ops = [{ sem_post = "s" }, { sleep = "3ms" }] } }]

[[thread]]
name = "taker"
ops = [{ loop = { ops = [{ sem_wait = "s" }, { compute = "100us" }] } }]

[[thread]]
name = "hog"
cpus = [1]
ops = [{ loop = { ops = [{ compute = "1ms" }] } }]
"#;

/// Time after which a script is ended. Counted time jumps ahead while the guest only waits for the
/// host to take what it prints.
const PRINTS: &str = "86400s";

/// Prints a file between lines with its name.
const SHOW: &str =
    r#"show() { echo "begin $1"; /usr/bin/gzip -c $1 | /usr/bin/base64; echo "end $1"; }"#;
const PROGRAMS: [&str; 9] = [
    "hackbench",
    "stress-ng",
    "sysbench",
    "setpriv",
    "/bin/sleep",
    "gzip",
    "base64",
    "/bin/mkdir",
    "/bin/ln",
];

fn run(bench: &Bench, script: &str) -> Done {
    let script = format!("exec >/dev/console 2>&1\n{SHOW}\n{script}");
    let args = ["-s", "eevdf", "-m", "1n2c1t", "--accel", "counted", "--duration", PRINTS];
    bench.script(&args, &script, &PROGRAMS)
}

/// Returns the recording that the guest printed.
fn recording(done: &Done, path: &str) -> Story {
    let files = decode(done, path);
    let [bytes] = files.as_slice() else { panic!("{} files {path}: {done}", files.len()) };
    Story::read(path, bytes)
}

/// Returns the files of this name that the guest printed.
fn decode(done: &Done, path: &str) -> Vec<Vec<u8>> {
    let console = done.console.replace('\r', "");
    let begin = format!("begin {path}\n");
    let text = |part: &str| -> String {
        let (text, _) =
            part.split_once(&format!("end {path}\n")).unwrap_or_else(|| panic!("{done}"));
        text.to_owned()
    };
    console.split(&begin).skip(1).map(|part| unpack(text(part), done)).collect()
}

fn unpack(text: String, done: &Done) -> Vec<u8> {
    let decode = "base64 --decode | gzip --decompress";
    let mut child = Command::new("sh")
        .args(["-c", decode])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let writer =
        std::thread::spawn(move || std::io::Write::write_all(&mut input, text.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success(), "{done}");
    output.stdout
}

#[test]
fn a_recording_has_what_the_workload_did() {
    let Some(bench) = Bench::new() else { return };
    let script = format!(
        r#"
/usr/bin/base64 --decode >/w.toml <<END
{}
END
/init record -o /r.pftrace -- /init run --on host -m host -s eevdf -w /w.toml --format json >/said
echo "recorded: $?"
while read line; do echo "$line"; done </said
show /r.pftrace
"#,
        base64(WORKLOAD)
    );
    let done = run(&bench, &script);
    done.says("recorded: 0");
    let story = recording(&done, "/r.pftrace");
    assert_eq!(story.lost, 0, "{done}");
    assert!(story.unexplained < 5, "{} switches to tasks that nothing woke", story.unexplained);

    // The attributes that the workload's file gives.
    assert_eq!((story.attributes("ping").nice, story.attributes("pong").nice), (0, 5));
    assert_eq!(story.attributes("hog").cpus.as_deref(), Some("1"));
    assert!(story.members.contains("hog") && !story.members.contains("swapper/0"));

    // A token goes round: both ends of a pipe have one number, and each end wakes the other.
    let pipes = |name: &str| {
        let write = story.calls(name).find_map(|call| match call {
            Call::Write { object, kind: ChannelKind::Pipe, bytes: 4 } => Some(*object),
            _ => None,
        });
        let read = story.calls(name).find_map(|call| match call {
            Call::Read { object, kind: ChannelKind::Pipe, bytes: 4 } => Some(*object),
            _ => None,
        });
        (write.expect(name), read.expect(name))
    };
    let ((there, back), (answer, question)) = (pipes("ping"), pipes("pong"));
    assert_eq!((there, back), (question, answer));
    assert_ne!(there, back);
    let heard = story.heard("pong");
    let round = [
        Heard::Call(Call::Read { object: there, kind: ChannelKind::Pipe, bytes: 4 }),
        Heard::Call(Call::Write { object: back, kind: ChannelKind::Pipe, bytes: 4 }),
        Heard::Slept,
        Heard::WokenBy("ping".into()),
    ];
    let rounds = heard.windows(4).filter(|window| *window == round.as_slice()).count();
    assert!(rounds > 5, "{rounds} rounds of {}: {heard:?}", heard.len());

    // A semaphore's waiter is woken by the poster, on the same futex.
    let waits = story.calls("taker").filter_map(|call| match call {
        Call::FutexWait { object, timeout: None } => Some(*object),
        _ => None,
    });
    let waits: std::collections::BTreeSet<u64> = waits.collect();
    let wakes = story.calls("poster").filter_map(|call| match call {
        Call::FutexWake { object, most: 1 } => Some(*object),
        _ => None,
    });
    assert!(wakes.filter(|object| waits.contains(object)).count() > 5, "{waits:?}");
    assert!(story.heard("taker").contains(&Heard::WokenBy("poster".into())));

    // Sleeps have their ends, and timers wake from an interrupt.
    let slept =
        story.calls("poster").filter(|call| matches!(call, Call::SleepUntil { .. })).count();
    assert!(slept > 5, "{slept}");
    let woken = |heard: &&Heard| matches!(heard, Heard::WokenBy(_) | Heard::Interrupted);
    let of_poster = story.heard("poster");
    let by_timer = of_poster.iter().filter(|heard| **heard == Heard::Interrupted).count();
    assert!(by_timer * 10 > of_poster.iter().filter(woken).count() * 9, "{of_poster:?}");

    // Run times are those that the probe measured, but for the time before and after its window.
    let tasks = measured(&done);
    assert_eq!(tasks.len(), 5, "{tasks:?}");
    for task in tasks {
        let name = task["name"].as_str().unwrap();
        let (probe, ours) = (task["run_ns"].as_u64().unwrap(), story.run_ns(name));
        // Recorder and probe read the clock at different moments of a switch.
        let apart = ours.abs_diff(probe);
        assert!(apart < 50_000_000 + probe / 10, "{name}: {ours} of {probe} ns");
    }
}

/// Returns the tasks of the results that `run` printed in the guest.
fn measured(done: &Done) -> Vec<Value> {
    let console = done.console.replace('\r', "");
    let (_, rest) = console.split_once("recorded: 0\n").unwrap();
    let (json, _) = rest.split_once("begin /r.pftrace").unwrap();
    let results: Value = serde_json::from_str(json).unwrap_or_else(|why| panic!("{why}: {json}"));
    results["runs"][0]["tasks"].as_array().unwrap().clone()
}

fn base64(text: &str) -> String {
    let mut child =
        Command::new("base64").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}

/// Commands, with the kind of channel that each uses.
const TALKERS: [(&str, &str, ChannelKind); 4] = [
    ("pipe", "hackbench --pipe --groups 1 --loops 5", ChannelKind::Pipe),
    ("unix", "hackbench --groups 1 --loops 5", ChannelKind::Socket),
    ("tcp", "stress-ng --sock 1 --sock-ops 5", ChannelKind::Socket),
    ("eventfd", "stress-ng --eventfd 1 --eventfd-ops 300", ChannelKind::EventFd),
];

/// The tasks at both ends of the connections.
const SENDER: &str = "stress-ng-sock";

/// What one task writes, another one reads from a channel of the same number.
#[test]
fn both_ends_of_a_channel_have_one_number() {
    let Some(bench) = Bench::new() else { return };
    let one = |(name, command, _): &(&str, &str, ChannelKind)| {
        format!(
            "/init record -o /{name}.pftrace -- /usr/bin/{command}
             echo \"{name}: $?\"; show /{name}.pftrace\n"
        )
    };
    let mut script: String = TALKERS.iter().map(one).collect();
    script.push_str(
        "/init record -o /timers.pftrace -- /usr/bin/stress-ng --timerfd 1 --timerfd-ops 200 --poll 1 --poll-ops 50
         echo \"timers: $?\"; show /timers.pftrace
         /init record -o /threads.pftrace -- /usr/bin/sysbench cpu --threads=2 --time=1 run
         echo \"threads: $?\"; show /threads.pftrace\n",
    );
    let done = run(&bench, &script);
    for (name, _, wanted) in TALKERS {
        done.says(&format!("{name}: 0"));
        let story = recording(&done, &format!("/{name}.pftrace"));
        let ends = story.ends();
        let of_kind = || ends.iter().filter(|((kind, _), _)| *kind == wanted);
        let between = of_kind().filter(|(_, end)| end.read > 0 && end.written >= end.read);
        let apart = between.filter(|(_, end)| end.writers.is_disjoint(&end.readers)).count();
        assert!(apart > 0, "{name}: {ends:?}");
        let bytes = of_kind().map(|(_, end)| end.read).max().unwrap_or(0);
        assert!(bytes > 0, "{name}: {ends:?}");
        assert_eq!(story.lost, 0);
        if name == "tcp" {
            // The softirq that delivers a packet runs within the sender's call.
            let woken = story.heard(SENDER);
            let count = |by: &Heard| woken.iter().filter(|heard| *heard == by).count();
            let by_task = count(&Heard::WokenBy(SENDER.into()));
            assert!(by_task > count(&Heard::Interrupted), "{woken:?}");
        }
    }
    let timers = recording(&done, "/timers.pftrace");
    let has = |wanted: &dyn Fn(&Call) -> bool| timers.all_calls().any(wanted);
    assert!(has(&|call| matches!(call, Call::SleepUntil { .. })));
    assert!(has(&|call| matches!(call, Call::Poll { timeout: Some(_) })));
    let threads = recording(&done, "/threads.pftrace");
    let joins = threads.calls("sysbench").filter(|call| **call == Call::Join).count();
    assert!(joins > 0, "pthread_join is a wait for a thread");
    let machine = timers.machine.as_deref().unwrap_or_default();
    let machine = scxlab_machine::Machine::from_toml("the recording", machine).unwrap();
    assert_eq!(machine.topology.nr_cpus(), 2);
}

/// Scopes, signals, full buffers and refusals.
#[test]
fn record_does_what_its_flags_say() {
    let Some(bench) = Bench::new() else { return };
    let done = run(
        &bench,
        r#"
/init record -o /lost.pftrace --buffer 64K -- /usr/bin/hackbench --groups 2 --loops 60
echo "a small buffer: $?"
show /lost.pftrace

/bin/mkdir /sys/fs/cgroup/some /sys/fs/cgroup/some/below
(echo 0 >/sys/fs/cgroup/some/below/cgroup.procs; while :; do /bin/sleep 0.02; done) & inside=$!
(while :; do /bin/sleep 0.03; done) & outside=$!
/init record -o /cgroup.pftrace --cgroup some --duration 300ms
echo "a cgroup: $?"
/init record -o /process.pftrace --pid $outside --duration 300ms
echo "a process: $?"
/bin/ln -s /init /recorder
/recorder record -o /all.pftrace --duration 300ms
echo "all: $?"
kill $inside $outside
show /cgroup.pftrace
show /process.pftrace
show /all.pftrace

/init record -o /ended.pftrace --duration 100ms -- /bin/sleep 1000
echo "a command that is too long: $?"
/init record -o /failed.pftrace -- /bin/sh -c "exit 3"
echo "a command that fails: $?"
/init record -o /asked.pftrace --duration 1000s & recorder=$!
/bin/sleep 2
kill -INT $recorder; wait $recorder
echo "asked to end: $?"
show /asked.pftrace

/usr/bin/setpriv --reuid 1000 --clear-groups /init record -o /no
echo "without root: $?"
/init record -o /no --pid 4194304
echo "no such process: $?"
/init record -o /no --cgroup /other
echo "no such cgroup: $?"
/init record -o /no -- /no/such/program
echo "no such program: $?"
/init record -o /no/such/folder/file --duration 1s
echo "no such folder: $?"
/init record --buffer 3K
echo "a buffer too small: $?"
[ -e /no ] || echo "nothing was written"
"#,
    );
    for line in [
        "a small buffer: 0",
        "lost, because the buffer was full",
        "next: scxlab advise -w /cgroup.pftrace -m /cgroup.pftrace",
        "a cgroup: 0",
        "a process: 0",
        "all: 0",
        "a command that is too long: 0",
        "the command was still running, and was ended",
        "a command that fails: 0",
        "the command ended with exit status: 3",
        "asked to end: 0",
        "recording needs root",
        "without root: 7",
        "there is no process 4194304",
        "no such process: 2",
        "\"/other\" is not a cgroup below /sys/fs/cgroup",
        "no such cgroup: 2",
        "\"/no/such/program\" cannot be started: no such file",
        "no such program: 3",
        "/no/such/folder/file",
        "no such folder: 6",
        "from 64K to 1G",
        "a buffer too small: 2",
        "nothing was written",
    ] {
        done.says(line);
    }
    let lost = recording(&done, "/lost.pftrace");
    assert!(lost.lost > 0, "{done}");
    done.says(&format!("warning: {} events lost", lost.lost));

    // Only the workload's tasks have attributes and calls. All have switches.
    let inside = recording(&done, "/cgroup.pftrace");
    assert_eq!(inside.cgroups(), ["/some/below"]);
    assert!(inside.sleeps() > 0, "{:?}", inside.members);
    let outside = recording(&done, "/process.pftrace");
    assert_eq!(outside.cgroups(), ["/"]);
    assert!(outside.sleeps() > 0, "{:?}", outside.members);
    let all = recording(&done, "/all.pftrace");
    assert_eq!(all.cgroups(), ["/", "/some/below"]);
    for some in [&inside, &outside] {
        assert!(some.switches > some.switches_of_members, "{}", some.switches);
        assert!(some.members.is_subset(&all.members), "{:?}", some.members);
    }
    // The recorder is no part of the workload.
    assert!(!all.members.contains("recorder"), "{:?}", all.members);
    assert!(all.run_ns("recorder") > 0);
    assert!(recording(&done, "/asked.pftrace").switches > 0);
}
