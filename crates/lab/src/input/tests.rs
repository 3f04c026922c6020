// SPDX-License-Identifier: GPL-2.0-only
//! What is said of arguments that are nearly right.

use super::*;

fn files() -> MemoryFiles {
    let workload = b"[[thread]]\nname = 'a'\nops = [{ compute = '1ms' }]\n";
    let files = [
        ("w.toml", &workload[..]),
        ("random", &[0xff, 0x80, 3, 0xfe]),
        ("empty", b""),
        ("./my-machine", include_bytes!("../../../../machines/small.toml")),
    ];
    MemoryFiles(files.map(|(path, bytes)| (path.to_owned(), bytes.to_vec())).into())
}

#[test]
fn a_parameter_that_a_file_does_not_take_is_named() {
    for (arg, wanted) in [
        ("w.toml,foo=1", "workload w.toml: unknown parameter \"foo\"; it takes vms, vcpus"),
        ("random,foo=1", "random: \"foo=1\" is no parameter of a recording; it takes from=TIME"),
        ("random,scale=0", "random: scale is \"0\", must be a number from 0.001 to 1000"),
        ("random,for=0s", "random: for is \"0s\", must be a time above 0"),
        ("absent.pftrace", "absent.pftrace: entity not found"),
        ("hackbnch", "unknown workload \"hackbnch\"; there are chat"),
    ] {
        let error = Workload::resolve(arg, &files()).unwrap_err().to_string();
        assert!(error.starts_with(wanted), "{arg}: {error}");
    }
    assert!(Workload::resolve("w.toml", &files()).is_ok());
}

#[test]
fn a_file_that_is_no_machine_is_said_to_be_none() {
    for arg in ["random", "empty"] {
        let error = machine(arg, &files()).unwrap_err().to_string();
        let wanted = format!("{arg}: neither a machine file (TOML), lstopo's XML nor a trace file");
        assert_eq!(error, wanted);
    }
    assert!(machine("2n4c2t", &files()).is_ok());
    // The text decides, and not the name.
    assert_eq!(machine("./my-machine", &files()).unwrap().name, "small");
}
