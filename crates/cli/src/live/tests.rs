// SPDX-License-Identifier: GPL-2.0-only
//! Tests that the host gets a guest's replies and failures unchanged, and that a malformed reply is
//! an internal error.

use scxlab_lab::prepare::PrepareError;

use super::*;

fn no_guests() -> Job {
    Job { target: LiveTarget::Vm, task: JobTask::Conform { cases: Vec::new(), tries: 1 } }
}

/// The request in the virtual machine has no places, so the host adds the guest's line.
#[test]
fn a_guest_without_kvm_is_named_with_its_line() {
    let text = "duration = '1s'\n[[guest]]\nname = 'vm'\nworkload = 'hogs'\n";
    let workload = scxlab_workload::load("w.toml", text).unwrap();
    let task = JobTask::Runs {
        schedulers: Vec::new(),
        workload: Workload::Program(Box::new(workload)),
        runs: 1,
        seed: 1,
        duration: None,
        start_offset_max: 0,
        compute_noise_permille: 0,
        numa_balancing: None,
        attach_after: None,
        trace: None,
    };
    let job = Job { target: LiveTarget::Vm, task };
    let why = "/dev/kvm: No such file".to_owned();
    let inside = LiveError::NoKvm { at: "w.toml".to_owned(), guest: "vm".to_owned(), why };
    let outside = from_guest(&to_host(Err(inside)), &job).unwrap_err();
    assert_eq!(exit::code_of(&outside), Code::Target);
    let said = outside.to_string();
    assert!(said.starts_with("w.toml:2:1: guest \"vm\" cannot run on vm, where "), "{said}");
    assert!(said.contains(": /dev/kvm: No such file; "), "{said}");
}

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
        let outside = from_guest(&to_host(Err(error)), &no_guests()).unwrap_err();
        assert_eq!((exit::code_of(&outside), outside.to_string()), (code, message));
    }
    assert_eq!(exit::code_of(&no_table().into()), Code::Usage, "as in a simulation");
}

#[test]
fn a_reply_arrives_and_a_broken_one_is_our_fault() {
    let reply = Reply::Observed { kernel: "7.3".into(), cases: vec![vec![]] };
    let Reply::Observed { kernel, cases } = from_guest(&to_host(Ok(reply)), &no_guests()).unwrap()
    else {
        panic!("another reply");
    };
    assert_eq!((kernel.as_str(), cases.len()), ("7.3", 1));
    for bytes in [&b""[..], b"+", b"+{", b"-{", b"-{}"] {
        assert_eq!(exit::code_of(&from_guest(bytes, &no_guests()).unwrap_err()), Code::Internal);
    }
}
