// SPDX-License-Identifier: GPL-2.0-only
//! Tests of `scxlab attach` and `run --on host`. They run in a guest whose /init is the scxlab
//! command, because a test cannot take over the real host.

use crate::bench::Bench;

/// Prints the result of each step on the console, which the test reads.
const SCRIPT: &str = r#"
exec >/dev/console 2>&1
sched_ext=/sys/kernel/sched_ext
say_state() { read state <$sched_ext/state; echo "$1: $state"; }
wait_for() { while read state <$sched_ext/state && [ "$state" != "$1" ]; do /bin/sleep 0.1; done; }
say_state "at first"
/usr/bin/setpriv --reuid 1000 --clear-groups /init attach vtime
echo "attach without root: $?"
/init attach eevdf
echo "attach the default class: $?"
/init attach vtime --install
echo "install without systemd: $?"

/init attach vtime --interval 200ms & attached=$!
wait_for enabled
say_state attached
read name <$sched_ext/root/ops; echo "loaded: $name"
/usr/bin/hackbench --groups 1 --loops 20; echo "hackbench under vtime: $?"
/init attach vtime,slice_ns=1000000
echo "a second one: $?"
/init run --on host -m host -s vtime -w hackbench,groups=1,loops=2
echo "a run beside it: $?"
kill -9 $attached; wait $attached
echo "killed: $?"
wait_for disabled
say_state "after the kill"
/usr/bin/hackbench --groups 1 --loops 20; echo "hackbench after the kill: $?"

/init attach vtime --interval 200ms --format json >/said & attached=$!
while ! read said </said; do /bin/sleep 0.1; done
echo "$said"
kill -TERM $attached; wait $attached
echo "asked to end: $?"
say_state "after the end"

debug=/sys/kernel/debug/sched
read slice <$debug/base_slice_ns
/init attach eevdf,base_slice_ns=9000000,NEXT_BUDDY=1 & attached=$!
while read features <$debug/features && [ "$features" = "${features#* NEXT_BUDDY}" ]; do
    /bin/sleep 0.1
done
read now <$debug/base_slice_ns; echo "tuned: $now"
kill -TERM $attached; wait $attached
echo "tuned until: $?"
read now <$debug/base_slice_ns; [ "$now" = "$slice" ] && echo "the slice is as before"
read features <$debug/features
[ "$features" = "${features#* NEXT_BUDDY}" ] && echo "the features are as before"

/init run --on host -m host -s vtime -s eevdf -w hackbench,groups=1,loops=2
echo "a run of its own: $?"
say_state "at last"
"#;

#[test]
fn attach_leaves_the_machine_as_it_was_even_when_killed() {
    let Some(bench) = Bench::new() else { return };
    let programs = ["hackbench", "setpriv", "/bin/sleep"];
    let done = bench.script(&["-s", "eevdf", "-m", "1n2c1t"], SCRIPT, &programs);
    for line in [
        "at first: disabled",
        "loading a scheduler needs root",
        "attach without root: 7",
        "there is nothing to attach",
        "systemd does not run on this machine",
        "install without systemd: 7",
        "attach the default class: 2",
        "vtime is attached to ",
        "attached: enabled",
        "loaded: vtime",
        "hackbench under vtime: 0",
        "the sched_ext scheduler \"vtime\" is loaded already; stop it first",
        "a second one: 7",
        "a run beside it: 7",
        "killed: 137",
        "after the kill: disabled",
        "hackbench after the kill: 0",
        "{\"elapsed_s\":",
        "vtime is detached",
        "asked to end: 0",
        "after the end: disabled",
        "eevdf,base_slice_ns=9000000,NEXT_BUDDY=1 is set on ",
        "tuned: 9000000",
        "tuned until: 0",
        "the slice is as before",
        "the features are as before",
        "target host   1 run, seed 1",
        "a run of its own: 0",
        "at last: disabled",
    ] {
        done.says(line);
    }
    // The console has the statistics of the first attachment as text, and the statistics of the
    // second as JSON.
    assert!(
        done.console.lines().any(|l| l.contains(" s  ") && l.contains("select_cpu ")),
        "{done}"
    );
    assert!(done.console.contains("\"calls_per_s\":"), "{done}");
}
