// SPDX-License-Identifier: GPL-2.0-only
use super::*;

#[test]
fn results_stay_small() {
    assert!(size_of::<Result<u64, Fault>>() <= 16);
}

#[test]
fn a_fault_without_a_place_is_its_kind() {
    let fault = Fault::unmodelled("kfunc bpf_throw");
    assert_eq!(fault.to_string(), "not modelled: kfunc bpf_throw");
    let fault = Fault::bad_argument("bpf_obj_drop", "0x5 is not an object");
    assert_eq!(fault.to_string(), "bpf_obj_drop: bad argument: 0x5 is not an object");
}
