// SPDX-License-Identifier: GPL-2.0-only
//! Tests that the host gets a guest's replies and failures unchanged, and that a malformed reply is
//! an internal error.

use scxlab_lab::prepare::PrepareError;

use super::*;

#[test]
fn a_failure_has_the_same_code_and_message_outside_the_guest() {
    let no_table = || PrepareError::NoTable {
        object: "vtime".into(),
        wanted: "other".into(),
        present: "vtime".into(),
    };
    let busy = LiveError::Busy { name: "simple".into() };
    for (error, code) in [(no_table().into(), Code::Usage), (busy, Code::Target)] {
        let message = error.to_string();
        let outside = from_guest(&to_host(Err(error))).unwrap_err();
        assert_eq!((exit::code_of(&outside), outside.to_string()), (code, message));
    }
    assert_eq!(exit::code_of(&no_table().into()), Code::Usage, "as in a simulation");
}

#[test]
fn a_reply_arrives_and_a_broken_one_is_our_fault() {
    let reply = Reply::Observed { kernel: "7.3".into(), cases: vec![vec![]] };
    let Reply::Observed { kernel, cases } = from_guest(&to_host(Ok(reply))).unwrap() else {
        panic!("another reply");
    };
    assert_eq!((kernel.as_str(), cases.len()), ("7.3", 1));
    for bytes in [&b""[..], b"+", b"+{", b"-{", b"-{}"] {
        assert_eq!(exit::code_of(&from_guest(bytes).unwrap_err()), Code::Internal);
    }
}
