// SPDX-License-Identifier: GPL-2.0-only
//! `scxlab conform` with all shipped cases.

use crate::bench::Bench;

#[test]
fn conform_every_case_agrees() {
    let Some(bench) = Bench::new() else { return };
    let done = bench.output(&mut bench.command(&["conform", "--accel", "counted", "--tries", "3"]));
    assert_eq!(done.code, Some(0), "{done}");
    let verdicts: Vec<&str> = done.stdout.lines().filter(|l| l.starts_with("agrees ")).collect();
    let last = format!("{0} of {0} cases agree", verdicts.len());
    assert!(verdicts.len() >= 25 && done.stdout.trim_end().ends_with(&last), "{done}");
    // The kernel's message shows that the guest really carried out the cases: in one of them, the
    // scheduler lets a task stall.
    done.says("disabled (runnable task stall)");
}
