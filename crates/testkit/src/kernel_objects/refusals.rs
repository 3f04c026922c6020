// SPDX-License-Identifier: GPL-2.0-only
//! Objects that must not load or attach, each with the required reason.

use super::bench::TestMachine;

/// Asserts that the object does not load and that the error contains all of `says`.
fn refused(b: &mut TestMachine, object: &str, says: &[&str]) {
    let mut open = b.open(object);
    let error = match b.try_load(&mut open) {
        Ok(_) => panic!("{object} loaded"),
        Err(error) => chain(&error),
    };
    for word in says {
        assert!(error.contains(word), "\"{error}\" does not say \"{word}\"");
    }
}

/// Formats an error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

/// Asserts that programs which test their arguments load and run.
pub fn maybe_null(b: &mut TestMachine) {
    let loaded = b.open_and_load("maybe_null");
    b.attach(&loaded, "maybe_null_success");
    super::load::background(b);
    b.sleep(super::bench::SEC / 10);
    assert!(b.k.ext.exits.is_empty(), "{:?}", b.k.ext.exits);
    b.detach();
}

pub fn maybe_null_dispatch(b: &mut TestMachine) {
    refused(b, "maybe_null_fail_dsp", &["maybe_null_fail_dispatch", "NULL"]);
}

pub fn maybe_null_yield(b: &mut TestMachine) {
    refused(b, "maybe_null_fail_yld", &["maybe_null_fail_yield", "NULL"]);
}

pub fn non_scx_kfunc(b: &mut TestMachine) {
    refused(b, "non_scx_kfunc_deny", &["tcp_congestion_ops"]);
}

/// Loads the object as far as possible. The error of the load or of the attach must name the form
/// of the ops table, `sched_ext_ops_cid`, which is not modelled.
fn cid_form(b: &mut TestMachine, object: &str, table: &str) {
    let mut open = b.open(object);
    let error = match b.try_load(&mut open) {
        Err(error) => chain(&error),
        Ok(loaded) => match b.try_attach(&loaded, table) {
            Ok(()) => panic!("{object} attached"),
            Err(error) => chain(&error),
        },
    };
    assert!(error.contains("sched_ext_ops_cid"), "\"{error}\" does not name the form");
}

pub fn enable_cmask(b: &mut TestMachine) {
    cid_form(b, "enable_cmask", "enable_cmask_ops");
}

pub fn qmap(b: &mut TestMachine) {
    cid_form(b, "scx_qmap", "qmap_ops");
}
