// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the command that applies a scheduler.

use super::command;

#[test]
fn a_command_is_quoted_for_the_shell_if_it_must_be() {
    for (scheduler, expected) in [
        ("fair,load=pelt", "sudo scxlab attach fair,load=pelt"),
        ("./dir/mine.bpf.o,a=-1", "sudo scxlab attach ./dir/mine.bpf.o,a=-1"),
        ("my dir/x.o", "sudo scxlab attach 'my dir/x.o'"),
        ("it's.o,list=\"1,2\"", r#"sudo scxlab attach 'it'\''s.o,list="1,2"'"#),
    ] {
        assert_eq!(command(scheduler), expected);
    }
}
